//! Reads the serving certificate, its key and the clients' authorities, anew whenever they change. What is broken leaves
//! in force what was there before; a node that has no pair and none configured makes one, once.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::source::SourceError;
use bulkhead_apiclient::{CredentialFile, CredentialSource};
use bulkhead_ipc::broker::{BrokerClient, BrokerError};
use bulkhead_ipc::volnetd::{ServingPair, credential};
use bulkhead_types::{BackOff, chain};
use futures_util::StreamExt as _;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::pair::{self, PairError};
use super::policy::Policy;
use super::{InForce, Serving};
use crate::server::authn::x509::{AuthorityError, ClientAuthority};

/// Certificate and key are two files: a moment for the second to follow the first.
const SETTLE: Duration = Duration::from_millis(100);
/// While kubelet-volnetd is away, or something is broken: look again.
const AGAIN: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Why something stays as it was.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error("{}", .file.name())]
    Read { file: CredentialFile, source: SourceError },
    #[error("clientCAFile")]
    Authority(#[from] AuthorityError),
    #[error("the serving certificate")]
    Pair(#[from] PairError),
    #[error("the node's own serving certificate cannot be written")]
    Put(#[source] BrokerError),
    #[error("the node's own serving certificate cannot be handed over")]
    Memfd(#[source] std::io::Error),
}

impl FollowError {
    /// Nobody is to blame: kubelet-volnetd is away for the moment.
    fn is_unknown(&self) -> bool {
        match self {
            FollowError::Read { source, .. } => source.is_unknown(),
            FollowError::Put(error) => error.code() == tonic::Code::Unavailable,
            _ => false,
        }
    }
}

/// What the node puts into a certificate of its own.
#[derive(Debug, Clone)]
pub struct Own {
    pub name: String,
    pub addresses: Vec<IpAddr>,
}

/// Where everything comes from.
pub struct Files {
    pub source: Arc<dyn CredentialSource>,
    pub broker: BrokerClient,
    pub policy: Policy,
    /// None: the pair is the operator's.
    pub own: Option<Own>,
    /// The pair is signed for the node (serverTLSBootstrap): until there is one, connections fail at once.
    pub signed: bool,
    /// `authentication.x509.clientCAFile` is set.
    pub client_ca: bool,
    /// Gate AllowParsingUserUIDFromCertAuth.
    pub client_uids: bool,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("own", &self.own).field("client_ca", &self.client_ca).finish_non_exhaustive()
    }
}

/// What was read last, to tell a change from a look.
#[derive(Debug, Default)]
struct LastRead {
    authority: Option<Vec<u8>>,
    pair: Option<(Vec<u8>, Vec<u8>)>,
    /// What was last complained of.
    problem: Option<String>,
}

impl Files {
    /// Keeps `in_force` current, for ever.
    pub async fn follow(self, in_force: InForce) {
        let mut changes = self.source.changes();
        let mut seen = LastRead::default();
        let mut again = BackOff::new(AGAIN.0, AGAIN.1);
        if self.signed {
            match pair::none_yet(&self.policy) {
                Ok(config) => drop(in_force.config.send_replace(Some(Arc::new(config)))),
                Err(error) => tracing::error!(%error, "failed to make a serving certificate, connections wait for one"),
            }
        }
        loop {
            let outcome = self.look(&mut seen, &in_force).await;
            let wait = match &outcome {
                Ok(()) => {
                    again.reset();
                    seen.problem = None;
                    None
                }
                Err(error) => {
                    complain(error, &mut seen, &in_force);
                    Some(again.pause())
                }
            };
            tokio::select! {
                changed = changes.next() => {
                    if changed.is_none() {
                        return;
                    }
                    tokio::time::sleep(SETTLE).await;
                }
                () = sleep(wait) => {}
            }
        }
    }

    /// One look; each half comes into force without the other.
    async fn look(&self, seen: &mut LastRead, in_force: &InForce) -> Result<(), FollowError> {
        let authority = self.look_at_authority(seen, in_force).await;
        let pair = self.look_at_pair(seen, in_force).await;
        authority.and(pair)
    }

    async fn look_at_authority(&self, seen: &mut LastRead, in_force: &InForce) -> Result<(), FollowError> {
        if !self.client_ca {
            return Ok(());
        }
        let pem = self.read(CredentialFile::ClientCa).await?;
        if seen.authority.as_ref() == Some(&pem) {
            return Ok(());
        }
        let authority = ClientAuthority::from_pem(&pem, &self.policy.provider, self.client_uids)?;
        tracing::info!(authorities = authority.subjects().len(), "certificates of clients are checked");
        in_force.authority.send_replace(Some(Arc::new(authority)));
        seen.authority = Some(pem);
        // New connections are to be asked for certificates of these.
        seen.pair = None;
        Ok(())
    }

    async fn look_at_pair(&self, seen: &mut LastRead, in_force: &InForce) -> Result<(), FollowError> {
        let Some(pair) = self.pair().await? else { return Ok(()) };
        if seen.pair.as_ref() == Some(&pair) {
            return Ok(());
        }
        let authority = in_force.authority.borrow().clone();
        let config = pair::server_config(&self.policy, &pair.0, &pair.1, authority.as_deref())?;
        let ends = pair::not_after(&pair.0).map(|at| at.to_string()).unwrap_or_default();
        let digest: String = Sha256::digest(&pair.0).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        tracing::info!(ends, digest, "serving certificate in force");
        in_force.config.send_replace(Some(Arc::new(config)));
        seen.pair = Some(pair);
        Ok(())
    }

    /// What is to be shown: the pair that was signed, else the one that is configured or one's own. None: nothing is signed
    /// yet, which is no fault.
    async fn pair(&self) -> Result<Option<(Vec<u8>, Vec<u8>)>, FollowError> {
        if self.signed {
            match self.read(CredentialFile::ServingPair).await {
                Ok(pair) => return Ok(Some((pair.clone(), pair))),
                Err(FollowError::Read { source: SourceError::Missing, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let certificates = match self.read(CredentialFile::ServingCertificate).await {
            Err(FollowError::Read { source: SourceError::Missing, .. }) if self.own.is_some() => {
                self.make().await?;
                self.read(CredentialFile::ServingCertificate).await?
            }
            Err(FollowError::Read { source: SourceError::Missing, .. }) if self.signed => return Ok(None),
            other => other?,
        };
        Ok(Some((certificates, self.read(CredentialFile::ServingKey).await?)))
    }

    async fn read(&self, file: CredentialFile) -> Result<Vec<u8>, FollowError> {
        self.source.read(file).await.map_err(|source| FollowError::Read { file, source })
    }

    /// Makes the node's own pair and has it written. One that is there by now is as good.
    async fn make(&self) -> Result<(), FollowError> {
        let Some(own) = &self.own else { return Ok(()) };
        let made = pair::self_signed(&own.name, &own.addresses)?;
        let content = ServingPair { certificates: made.certificates.into_bytes(), private_key: made.key.into_bytes() };
        let content =
            bulkhead_sys::memfd::sealed("serving-pair", &content.encode_to_vec()).map_err(FollowError::Memfd)?;
        match self.broker.put_credential(credential::Kind::ServingCertificate, content).await {
            Ok(()) => {
                tracing::info!(name = own.name, "made a serving certificate for this node");
                Ok(())
            }
            Err(error) if error.code() == tonic::Code::AlreadyExists => Ok(()),
            Err(error) => Err(FollowError::Put(error)),
        }
    }
}

/// Says what is wrong, once, and what that means.
fn complain(error: &FollowError, seen: &mut LastRead, in_force: &InForce) {
    let text = chain(error);
    if error.is_unknown() {
        tracing::debug!(error = text, "what the HTTPS server shows and believes is not known, asking again");
    } else if seen.problem.as_ref() != Some(&text) {
        if in_force.config.borrow().is_some() {
            tracing::warn!(
                error = text,
                "a changed file of the HTTPS server cannot be used: what was there before stays in force"
            );
        } else {
            tracing::error!(error = text, "no serving certificate available for the kubelet");
        }
        seen.problem = Some(text);
    }
}

async fn sleep(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// A server whose files come from `files` from now on. Must be called within a tokio runtime; ends with it.
pub fn start(files: Files) -> Serving {
    let (in_force, serving) = super::serving();
    tokio::spawn(files.follow(in_force));
    serving
}

#[cfg(test)]
mod tests {
    use bulkhead_apiclient::MemorySource;
    use bulkhead_config::KubeletConfiguration;
    use rustls::ServerConfig;

    use super::*;

    fn put(source: &MemorySource, name: &str) {
        let pair = pair::self_signed(name, &[]).unwrap();
        source
            .put_all([(CredentialFile::ServingCertificate, pair.certificates), (CredentialFile::ServingKey, pair.key)]);
    }

    async fn changed(serving: &Serving, from: &Arc<ServerConfig>) -> Arc<ServerConfig> {
        let mut config = serving.config.clone();
        let changed = config.wait_for(|now| now.as_ref().is_some_and(|now| !Arc::ptr_eq(now, from)));
        changed.await.unwrap().clone().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_broken_leaves_in_force_what_was_there() {
        let source = MemorySource::new("");
        let policy = Policy::of(&KubeletConfiguration::default());
        let broker = BrokerClient::new(std::path::Path::new("/nonexistent"));
        let files = Files {
            source: Arc::new(source.clone()),
            broker,
            policy,
            own: None,
            signed: false,
            client_ca: true,
            client_uids: true,
        };
        let serving = start(files);
        assert!(serving.authority().is_none());
        put(&source, "a");
        let first = serving.config().await;
        // Half of a new pair, then nonsense: neither counts.
        source.put(CredentialFile::ServingKey, pair::self_signed("b", &[]).unwrap().key);
        tokio::time::sleep(Duration::from_secs(30)).await;
        source.put(CredentialFile::ServingCertificate, "x");
        tokio::time::sleep(Duration::from_secs(30)).await;
        source.remove(CredentialFile::ServingKey);
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(Arc::ptr_eq(&first, &serving.config().await));
        put(&source, "b");
        let second = changed(&serving, &first).await;
        // New authorities: connections from now on are asked for their clients.
        source.put(CredentialFile::ClientCa, pair::self_signed("ca", &[]).unwrap().certificates);
        changed(&serving, &second).await;
        let authority = serving.authority().unwrap();
        source.put(CredentialFile::ClientCa, "nothing");
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(Arc::ptr_eq(&authority, &serving.authority().unwrap()));
    }
}
