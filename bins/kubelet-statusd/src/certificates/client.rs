//! The client certificate: got, kept, renewed. What there is to do is [`decide::client`]'s word; this looks and acts.
//!
//! The credentials that a node begins with are read once there is something to ask for and kept in memory until there is an
//! answer: whoever deletes their file meanwhile disturbs nothing.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::source::BrokerSource;
use bulkhead_apiclient::{ApiClient, CredentialFile, CredentialSource, is_pair, random_fraction};
use bulkhead_config::NodeConfig;
use bulkhead_config::kubeconfig::{Kubeconfig as Parsed, Material};
use bulkhead_daemon::StateDir;
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::volnetd::credential::Kind;
use bulkhead_types::chain as words;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::decide::{self, CertificateSettings, CertificateState, Kubeconfig, Memory, Shown, Todo, Why};
use super::key::{Key, KeyError, request_name};
use super::leaf::{self, Chain, Subject};
use super::metrics::ClientMetrics;
use super::pending::{self, Pending};
use super::request::{RequestError, Signer, Wish, obtain};
use super::store::{Store, StoreError};

/// Events of files come in groups: one look for all of them.
const SETTLE: Duration = Duration::from_millis(100);
/// Look at least so often: clocks are set, machines sleep.
pub(super) const AUDIT: Duration = Duration::from_secs(300);
/// While kubelet-volnetd is away.
pub(super) const AGAIN: Duration = Duration::from_secs(1);
/// How long a bootstrap kubeconfig may take to become credentials.
const READY: Duration = Duration::from_secs(30);

/// Why something is not done.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the certificates on the disk: {0}")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the bootstrap kubeconfig cannot be used")]
    NoCredentials,
}

impl Failure {
    fn is_unknown(&self) -> bool {
        matches!(self, Failure::Store(error) if error.is_unknown())
    }
}

/// Certificates and key, PEM.
type Pair = (Vec<u8>, Vec<u8>);

/// One look at the disk; the pair that is inline in the kubeconfig comes along.
struct Observation {
    seen: CertificateState,
    inline: Option<Pair>,
    /// What the bootstrap kubeconfig has in it, as a digest.
    begins_with: Option<[u8; 32]>,
}

impl Observation {
    /// Whether there is a reason to try again before it is time.
    fn differs(&self, other: &Observation) -> bool {
        self.seen != other.seen || self.begins_with != other.begins_with
    }
}

/// See the module.
pub struct ClientCertificate {
    config: Arc<NodeConfig>,
    api: ApiClient,
    broker: BrokerClient,
    volnetd: Link,
    store: Store,
    state: Arc<StateDir>,
    bootstrap: BrokerSource,
    /// None: rotateCertificates is off, and upstream has no counters then.
    metrics: Option<ClientMetrics>,
    subject: Subject,
    wanted: CertificateSettings,
}

impl std::fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientCertificate").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

impl ClientCertificate {
    /// None: the configuration asks for nothing of this.
    pub fn new(
        config: Arc<NodeConfig>,
        api: ApiClient,
        broker: BrokerClient,
        volnetd: Link,
        state: Arc<StateDir>,
        metrics: Option<ClientMetrics>,
    ) -> Option<Self> {
        let wanted = CertificateSettings {
            rotates: config.rotates_client(),
            bootstraps: config.bootstrap_kubeconfig().is_some(),
        };
        if !wanted.rotates && !wanted.bootstraps {
            return None;
        }
        let source = BrokerSource::new(broker.clone(), volnetd.clone());
        Some(ClientCertificate {
            subject: leaf::of_node(config.node_name.as_str()),
            store: Store { source: Arc::new(source), broker: broker.clone() },
            bootstrap: BrokerSource::bootstrap(broker.clone(), volnetd.clone()),
            config,
            api,
            broker,
            volnetd,
            state,
            metrics,
            wanted,
        })
    }

    /// For ever.
    pub async fn run(self) {
        let mut changes = self.store.source.changes();
        let mut memory = Memory { was_good: false, is_first: false, share: random_fraction() };
        let mut bootstrap: Option<ApiClient> = None;
        let mut failures = 0;
        // Certificates in a row that were no good for longer: clocks that differ, say.
        let mut in_a_row = 0;
        let mut told = LastLogged::default();
        loop {
            let look = match self.look(bootstrap.is_some()).await {
                Ok(look) => look,
                Err(error) => {
                    tracing::debug!(%error, "certificates cannot be looked at now");
                    tokio::time::sleep(AGAIN).await;
                    continue;
                }
            };
            let todo = self.todo(&look.seen, memory);
            told.tell(&todo, &look.seen, self.wanted);
            if todo != Todo::Bootstrap {
                memory.learn(&look.seen.kubeconfig);
                // What it began with is not kept for longer than it is of use.
                bootstrap = None;
            }
            let done = match todo {
                Todo::Idle | Todo::Until(_) => {
                    (failures, in_a_row) = (0, 0);
                    let pause = match todo {
                        Todo::Until(at) => Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default(),
                        _ => AUDIT,
                    };
                    wait(&mut changes, pause.min(AUDIT)).await;
                    continue;
                }
                Todo::Keep => self.keep(look).await.map(|()| memory.is_first = true),
                Todo::Bootstrap => {
                    let client = bootstrap.get_or_insert_with(|| self.bootstrap_client()).clone();
                    self.unless_changed(&mut changes, todo, memory, self.ask_first(&client)).await
                }
                Todo::Renew(_) => {
                    tokio::time::sleep(decide::pause(in_a_row, random_fraction())).await;
                    let asked = self.unless_changed(&mut changes, todo, memory, self.renew()).await;
                    asked.map(|()| {
                        memory.is_first = false;
                        in_a_row += 1;
                    })
                }
            };
            match done {
                Ok(()) => failures = 0,
                Err(error) if error.is_unknown() => {
                    tracing::debug!(error = words(&error), "certificates cannot be written now");
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => {
                    failures += 1;
                    if let Some(metrics) = &self.metrics {
                        metrics.failures.inc();
                    }
                    let pause = decide::pause(failures, random_fraction());
                    tracing::error!(error = words(&error), ?pause, "failed to get a client certificate, will retry");
                    self.rest(&mut changes, pause, bootstrap.is_some()).await;
                }
            }
        }
    }

    /// A pause that ends when what is on the disk is not what it was after the failure.
    async fn rest(&self, changes: &mut BoxStream<'static, ()>, pause: Duration, knows_bootstrap: bool) {
        let over = tokio::time::Instant::now() + pause;
        let before = self.look(knows_bootstrap).await.ok();
        loop {
            wait(changes, over.saturating_duration_since(tokio::time::Instant::now())).await;
            let now = self.look(knows_bootstrap).await.ok();
            let changed = before.as_ref().zip(now.as_ref()).is_some_and(|(before, now)| now.differs(before));
            if changed || tokio::time::Instant::now() >= over {
                return;
            }
        }
    }

    fn todo(&self, seen: &CertificateState, memory: Memory) -> Todo {
        decide::client(self.wanted, seen, memory, &self.subject, Timestamp::now())
    }

    fn bootstrap_client(&self) -> ApiClient {
        ApiClient::bootstrap("kubelet-statusd", self.config.clone(), self.broker.clone(), self.volnetd.clone())
    }

    /// Works until that is done, or until something on the disk has made it needless, or the certificate with which it is asked
    /// for has ended: a renewal that nobody approves must not keep a node from beginning anew.
    async fn unless_changed(
        &self,
        changes: &mut BoxStream<'static, ()>,
        todo: Todo,
        memory: Memory,
        work: impl Future<Output = Result<(), Failure>>,
    ) -> Result<(), Failure> {
        tokio::pin!(work);
        // The first look is soon: what was seen before this began may end meanwhile.
        let mut pause = SETTLE;
        loop {
            tokio::select! {
                done = &mut work => return done,
                () = wait(changes, pause) => {}
            }
            let look = match self.look(todo == Todo::Bootstrap).await {
                Ok(look) => look,
                Err(_) => continue,
            };
            let now = self.todo(&look.seen, memory);
            if std::mem::discriminant(&now) != std::mem::discriminant(&todo) {
                tracing::info!(
                    "the certificate is not asked for any more in this way: something has changed, or ended"
                );
                return Ok(());
            }
            pause = decide::until_another_end(&look.seen, Timestamp::now()).min(AUDIT);
        }
    }

    async fn look(&self, knows_bootstrap: bool) -> Result<Observation, StoreError> {
        let (kubeconfig, inline) = match self.store.read(CredentialFile::Kubeconfig).await {
            Ok(None) => (Kubeconfig::Missing, None),
            Err(error) if error.is_unknown() => return Err(error),
            Err(_) => (Kubeconfig::Unusable, None),
            Ok(Some(bytes)) => match Parsed::parse(&bytes) {
                Err(_) => (Kubeconfig::Unusable, None),
                Ok(parsed) => {
                    let (shown, inline) = self.shown(&parsed).await?;
                    (Kubeconfig::Usable(shown), inline)
                }
            },
        };
        let signed = self.optional(CredentialFile::ClientPair).await?;
        let signed = signed.filter(|pair| is_pair(pair)).and_then(|pair| Chain::parse(&pair));
        let begins_with = if self.wanted.bootstraps { self.begins_with().await? } else { None };
        let can_bootstrap = self.wanted.bootstraps && (knows_bootstrap || begins_with.is_some());
        Ok(Observation { seen: CertificateState { kubeconfig, signed, can_bootstrap }, inline, begins_with })
    }

    async fn begins_with(&self) -> Result<Option<[u8; 32]>, StoreError> {
        let file = CredentialFile::Kubeconfig;
        match self.bootstrap.read(file).await {
            Ok(bytes) => Ok(Some(Sha256::digest(bytes).into())),
            Err(source) if source.is_unknown() => Err(StoreError::Read { file, source }),
            Err(_) => Ok(None),
        }
    }

    /// A file that may be missing or unfit to be opened: both are nothing.
    async fn optional(&self, file: CredentialFile) -> Result<Option<Vec<u8>>, StoreError> {
        match self.store.read(file).await {
            Err(error) if error.is_unknown() => Err(error),
            Err(_) => Ok(None),
            Ok(bytes) => Ok(bytes),
        }
    }

    async fn shown(&self, parsed: &Parsed) -> Result<(Shown, Option<Pair>), StoreError> {
        let user = &parsed.user;
        let (Some(certificate), Some(key)) = (&user.client_certificate, &user.client_key) else {
            return Ok((Shown::Nothing, None));
        };
        let inline = matches!((certificate, key), (Material::Data(_), Material::Data(_)));
        let certificate = self.material(certificate, CredentialFile::ClientCertificate).await?;
        let key = self.material(key, CredentialFile::ClientKey).await?;
        let (Some(certificate), Some(key)) = (certificate, key) else { return Ok((Shown::Lost, None)) };
        let both = [certificate.as_slice(), b"\n", key.as_slice()].concat();
        Ok(match Chain::parse(&certificate).filter(|_| is_pair(&both)) {
            None => (Shown::Lost, None),
            Some(chain) if inline => (Shown::Inline(chain), Some((certificate, key))),
            Some(chain) => (Shown::Named(chain), None),
        })
    }

    async fn material(&self, material: &Material, file: CredentialFile) -> Result<Option<Vec<u8>>, StoreError> {
        match material {
            Material::Data(bytes) => Ok(Some(bytes.clone())),
            Material::File(_) => self.optional(file).await,
        }
    }

    /// What `kubeadm init` writes into the kubeconfig itself is kept where the renewed ones will be, and where
    /// `kubeadm init phase kubelet-finalize` looks for it.
    async fn keep(&self, look: Observation) -> Result<(), Failure> {
        let Some((certificates, key)) = look.inline else { return Ok(()) };
        let key = String::from_utf8_lossy(&key).into_owned();
        self.store.put(Kind::ClientPair, certificates, &key).await?;
        tracing::info!("the client certificate of the kubeconfig is kept, to be renewed at once");
        Ok(())
    }

    /// The first certificate of a node that begins with other credentials.
    async fn ask_first(&self, client: &ApiClient) -> Result<(), Failure> {
        let written = match self.store.put_kubeconfig().await {
            // Its file is gone: what was written before stays.
            Err(StoreError::Put(error)) if error.code() == tonic::Code::NotFound => false,
            other => {
                other?;
                true
            }
        };
        if self.optional(CredentialFile::ClientPair).await?.is_some_and(|pair| self.is_good(&pair)) {
            // Only the kubeconfig was missing. Where it still is, nothing but another file would help.
            return if written { Ok(()) } else { Err(Failure::NoCredentials) };
        }
        tokio::time::timeout(READY, client.ready()).await.map_err(|_| Failure::NoCredentials)?;
        let key = self.pending_key().await?;
        let name = request_name(&key, &self.subject, &Signer::Client.usages());
        let wish = Wish { signer: Signer::Client, key: &key, subject: &self.subject, name };
        let issued = match obtain(client, &wish).await {
            Err(error) if error.needs_new_key() => {
                self.store.put_pending(&Key::generate()?.to_pem()).await?;
                return Err(error.into());
            }
            other => other?,
        };
        self.store.put(Kind::ClientPair, issued, &key.to_pem()).await?;
        tracing::info!("this node has its client certificate");
        Ok(())
    }

    fn is_good(&self, pair: &[u8]) -> bool {
        is_pair(pair) && Chain::parse(pair).is_some_and(|chain| chain.first_end > Timestamp::now())
    }

    /// The key of the request that may be there already; a new one otherwise, which is kept before it is used.
    async fn pending_key(&self) -> Result<Key, Failure> {
        let kept = self.optional(CredentialFile::PendingClientKey).await?;
        if let Some(key) = kept.as_deref().and_then(Key::from_pem) {
            tracing::info!("asking with the key of an earlier request");
            return Ok(key);
        }
        let key = Key::generate()?;
        self.store.put_pending(&key.to_pem()).await?;
        Ok(key)
    }

    /// The next certificate, asked for with the one in force.
    async fn renew(&self) -> Result<(), Failure> {
        let Pending { key, name } = pending::load_or_make(&self.state, Signer::Client, &self.subject)?;
        let wish = Wish { signer: Signer::Client, key: &key, subject: &self.subject, name };
        let issued = match obtain(&self.api, &wish).await {
            Err(error) if error.needs_new_key() => {
                pending::forget(&self.state, Signer::Client);
                return Err(error.into());
            }
            other => other?,
        };
        self.store.put(Kind::ClientPair, issued, &key.to_pem()).await?;
        pending::forget(&self.state, Signer::Client);
        tracing::info!("the client certificate is renewed");
        Ok(())
    }
}

/// Until something changes, no longer than `longest`.
pub(super) async fn wait(changes: &mut BoxStream<'static, ()>, longest: Duration) {
    tokio::select! {
        _ = changes.next() => tokio::time::sleep(SETTLE).await,
        () = tokio::time::sleep(longest) => {}
    }
}

/// What was logged last, so that the same is not said at each look.
#[derive(Debug, Default)]
struct LastLogged(Option<(Todo, bool)>);

impl LastLogged {
    fn tell(&mut self, todo: &Todo, seen: &CertificateState, wanted: CertificateSettings) {
        let stuck = wanted.bootstraps && !seen.can_bootstrap && !matches!(seen.kubeconfig, Kubeconfig::Usable(_));
        let now = Some((*todo, stuck));
        if std::mem::replace(&mut self.0, now) == now {
            return;
        }
        match todo {
            Todo::Idle if stuck => {
                tracing::error!(
                    "neither the kubeconfig nor the bootstrap kubeconfig can be used, waiting for one of them"
                );
            }
            Todo::Idle => tracing::debug!("nothing is to be done about the client certificate"),
            Todo::Until(at) => tracing::info!(%at, "the client certificate is good until it is looked at again"),
            Todo::Bootstrap => {
                tracing::info!("there is no client certificate: asking for one with the bootstrap kubeconfig")
            }
            Todo::Keep => {}
            Todo::Renew(Why::None) => tracing::info!("asking for a client certificate"),
            Todo::Renew(why) => tracing::info!(why = why.as_str(), "asking for a new client certificate"),
        }
    }
}
