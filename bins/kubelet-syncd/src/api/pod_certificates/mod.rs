//! Certificates of pods: a key that is made here, a request that kubelet-statusd writes, and what its signer answers
//! (`docs/decisions/0074-certificates-of-pods.md`).
//!
//! Keys are in memory alone, and in the memory file system of the volumes that show them. After a restart of this process each source
//! gets a new one, as upstream; until it is issued the files stay as they are. Nothing is watched before the first pod asks.

pub mod key;
pub mod metrics;
pub mod state;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Once, Weak};
use std::time::Duration;

use bulkhead_apiclient::watch::{Change, Scope, watch};
use bulkhead_apiclient::{ApiClient, Bare, Lane, ObjectRef, random_fraction};
use bulkhead_ipc::syncd::PodCertificateAsk;
use bulkhead_types::PodUid;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Api;
use kubelet_model::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch as channel};

use self::state::{ABANDONED, Act, Answer, Pending, Record, after};
use super::node::NodeSeen;
use super::server::Got;
use crate::storage_writes::StorageWrites;
use kubelet_model::events::{EventSink, EventType, PodEvent};
use kubelet_model::objects::ObjectError;
use kubelet_model::objects::certificates::{CertificateWanted, Credential};
use kubelet_model::pod::spec::PodIdentity;

/// How long who asks waits for a certificate that has not been issued yet.
const ISSUE: Duration = Duration::from_secs(5);
/// Refreshes are spread over so much, as upstream's.
const JITTER: SignedDuration = SignedDuration::from_mins(5);
/// Between tries to ask for one.
const RETRY: Duration = Duration::from_secs(5);
/// All are looked at after so long, whatever is heard.
const LOOK: Duration = Duration::from_secs(60);

/// Whom certificates are asked of, and who is told.
pub struct Ports {
    pub client: ApiClient,
    pub node_name: String,
    pub node: channel::Receiver<NodeSeen>,
    pub writes: StorageWrites,
    pub events: Arc<dyn EventSink + Send + Sync>,
    pub changes: broadcast::Sender<PodUid>,
}

impl std::fmt::Debug for Ports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ports").field("node_name", &self.node_name).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Kept {
    records: BTreeMap<CertificateWanted, Record>,
    /// Being asked for at this moment, or a while ago in vain.
    asking: BTreeSet<CertificateWanted>,
    /// Why one could not be asked for.
    trouble: BTreeMap<CertificateWanted, String>,
    /// What the API server shows, by namespace and name.
    answers: BTreeMap<(String, String), Answer>,
    pods: HashMap<PodUid, PodIdentity>,
}

/// All certificates of the pods here.
#[derive(Debug)]
pub struct PodCertificates {
    ports: Ports,
    kept: Mutex<Kept>,
    /// Changes with each thing that is heard.
    told: channel::Sender<u64>,
    /// Whose key is made that takes long.
    turn: tokio::sync::Mutex<()>,
    begun: Once,
}

impl PodCertificates {
    pub fn new(ports: Ports) -> Arc<Self> {
        let (told, _) = channel::channel(0);
        Arc::new(PodCertificates {
            ports,
            kept: Mutex::default(),
            told,
            turn: tokio::sync::Mutex::default(),
            begun: Once::new(),
        })
    }

    fn tell(&self) {
        self.told.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Events name the pod.
    pub fn register(&self, uid: &PodUid, pod: &Pod) {
        let sources = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let mut sources =
            sources.flat_map(|volume| volume.projected.iter().flat_map(|one| one.sources.iter().flatten()));
        if sources.any(|source| source.pod_certificate.is_some())
            && let Ok(identity) = PodIdentity::of(pod)
        {
            self.kept.lock().pods.insert(uid.clone(), identity);
        }
    }

    /// The pod is gone, and its keys with it.
    pub fn unregister(&self, uid: &PodUid) {
        let mut kept = self.kept.lock();
        kept.pods.remove(uid);
        kept.records.retain(|wanted, _| wanted.pod_uid != uid.as_str());
        kept.trouble.retain(|wanted, _| wanted.pod_uid != uid.as_str());
    }

    /// What a volume shows; waits a little for what is not issued yet.
    pub async fn get(self: &Arc<Self>, wanted: &CertificateWanted) -> Got<Credential> {
        self.begun.call_once(|| {
            let field_selector = format!("spec.nodeName={}", self.ports.node_name);
            let changes = watch(&self.ports.client, Lane::Main, Scope { field_selector, ..Scope::default() });
            tokio::spawn(follow(Arc::downgrade(self), changes));
            tokio::spawn(drive(Arc::downgrade(self), self.told.subscribe()));
        });
        let mut told = self.told.subscribe();
        if !self.kept.lock().records.contains_key(wanted) {
            self.kept.lock().records.insert(wanted.clone(), Record::default());
            self.tell();
        }
        let settled = told.wait_for(|_| {
            let kept = self.kept.lock();
            kept.records.get(wanted).is_none_or(|record| record.fresh.is_some() || record.refused.is_some())
                || kept.trouble.contains_key(wanted)
        });
        let _ = tokio::time::timeout(ISSUE, settled).await;
        let kept = self.kept.lock();
        let shown = kept.records.get(wanted).cloned().unwrap_or_default().shown();
        shown.map_err(|why| match kept.trouble.get(wanted) {
            Some(trouble) => ObjectError::Refused(format!("{why}: {trouble}")),
            None => ObjectError::Refused(why),
        })
    }

    /// How many there are of each signer in each state, for `kubelet_podcertificate_states`.
    pub fn states(&self) -> BTreeMap<(String, &'static str), u64> {
        let now = Timestamp::now();
        let mut states = BTreeMap::new();
        for (wanted, record) in &self.kept.lock().records {
            *states.entry((wanted.signer.clone(), record.metrics_state(now))).or_default() += 1;
        }
        states
    }

    /// Looks at all of them. Answers which are to be asked for, and when to look again.
    fn look(&self) -> (Vec<CertificateWanted>, Duration) {
        let now = Timestamp::now();
        let mut kept = self.kept.lock();
        let Kept { records, asking, answers, pods, .. } = &mut *kept;
        let (mut asks, mut says, mut tells) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut wake = after(now, SignedDuration::try_from(LOOK).unwrap_or(JITTER));
        for (wanted, record) in records {
            if asking.contains(wanted) {
                continue;
            }
            let name = record.pending.as_ref().map(|pending| pending.name.clone()).unwrap_or_default();
            let object = format!("{}/{name}", wanted.namespace);
            let answer = answers.get(&(wanted.namespace.clone(), name)).cloned();
            for act in record.step(now, answer, &object, jitter()) {
                match act {
                    Act::Ask => asks.push(wanted.clone()),
                    Act::Tell => {
                        tells.insert(wanted.pod_uid.clone());
                    }
                    Act::Say(reason, text) => says.push((wanted.pod_uid.clone(), reason, text)),
                }
            }
            wake = record.wake(now).map_or(wake, |at| at.min(wake));
        }
        asking.extend(asks.iter().cloned());
        let events: Vec<PodEvent> = says
            .into_iter()
            .filter_map(|(uid, reason, text)| {
                let identity = PodUid::parse(&uid).ok().and_then(|uid| pods.get(&uid))?;
                Some(PodEvent::pod(identity, EventType::Warning, reason, text))
            })
            .collect();
        drop(kept);
        events.into_iter().for_each(|event| self.ports.events.emit(event));
        for uid in tells.iter().filter_map(|uid| PodUid::parse(uid).ok()) {
            // Nobody listens: nobody is to be told.
            let _ = self.ports.changes.send(uid);
        }
        let pause = wake.duration_since(now);
        (asks, Duration::try_from(pause).unwrap_or(LOOK).min(LOOK) + Duration::from_millis(1))
    }

    /// Makes a key and has the request written. What failed is said, and tried again after a while.
    async fn ask(self: Arc<Self>, wanted: CertificateWanted) {
        let outcome = self.request(&wanted).await;
        let failed = outcome.is_err();
        self.asked(&wanted, outcome);
        if failed {
            self.tell();
            tokio::time::sleep(RETRY).await;
        }
        self.kept.lock().asking.remove(&wanted);
        self.tell();
    }

    fn asked(&self, wanted: &CertificateWanted, outcome: Result<Pending, String>) {
        let mut kept = self.kept.lock();
        let Kept { records, trouble, .. } = &mut *kept;
        // It may have gone with its pod.
        let Some(record) = records.get_mut(wanted) else { return };
        match outcome {
            Ok(pending) => {
                trouble.remove(wanted);
                record.pending = Some(pending);
            }
            Err(why) => {
                let (pod_uid, volume, signer) = (&wanted.pod_uid, &wanted.volume, &wanted.signer);
                tracing::warn!(pod_uid, volume, signer, "failed to get pod certificate: {why}");
                trouble.insert(wanted.clone(), why);
            }
        }
    }

    async fn request(&self, wanted: &CertificateWanted) -> Result<Pending, String> {
        let key_type = wanted.key_type.clone();
        // RSA's are made one at a time: each keeps a thread busy for up to seconds, and others need these threads and the cores too.
        let turn = if key::takes_long(&key_type) { Some(self.turn.lock().await) } else { None };
        let accounts: Api<Bare<ServiceAccount>> =
            Api::namespaced(self.ports.client.client(Lane::Main), &wanted.namespace);
        let account = accounts.get(&wanted.service_account).await;
        let Bare(account) = account.map_err(|error| format!("while fetching service account: {error}"))?;
        let node = self.ports.node.borrow().node.clone();
        let node_uid = node.and_then(|node| node.metadata.uid.clone());
        let node_uid = node_uid.ok_or("while getting node object from local cache: it is not there yet")?;
        let made = tokio::task::spawn_blocking(move || key::generate(&key_type)).await;
        drop(turn);
        let (key, request) = made.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        let name = format!("req-{:016x}", random_fraction().to_bits() ^ random_fraction().to_bits().rotate_left(11));
        let ask = PodCertificateAsk {
            namespace: wanted.namespace.clone(),
            name: name.clone(),
            pod_name: wanted.pod_name.clone(),
            pod_uid: wanted.pod_uid.clone(),
            service_account_name: wanted.service_account.clone(),
            service_account_uid: account.metadata.uid.unwrap_or_default(),
            node_uid,
            signer_name: wanted.signer.clone(),
            max_expiration_seconds: wanted.max_expiration_seconds,
            stub_pkcs10_request: request,
            annotations: wanted.annotations.clone().into_iter().collect(),
        };
        let written = self.ports.writes.pod_certificate(ask).await;
        written.map_err(|refused| format!("while creating on API: {refused}"))?;
        let abandon = after(after(Timestamp::now(), ABANDONED), jitter());
        Ok(Pending { name, key, abandon, seen: false })
    }
}

fn jitter() -> SignedDuration {
    SignedDuration::from_secs((random_fraction() * JITTER.as_secs_f64()) as i64)
}

/// Takes each step in its time, for ever.
async fn drive(certificates: Weak<PodCertificates>, mut told: channel::Receiver<u64>) {
    loop {
        let pause = {
            let Some(certificates) = certificates.upgrade() else { return };
            told.borrow_and_update();
            let (asks, pause) = certificates.look();
            for wanted in asks {
                tokio::spawn(certificates.clone().ask(wanted));
            }
            pause
        };
        if let Ok(Err(_)) = tokio::time::timeout(pause, told.changed()).await {
            return;
        }
    }
}

/// Follows the requests of this node for ever.
async fn follow(certificates: Weak<PodCertificates>, mut stream: BoxStream<'static, Change<PodCertificateRequest>>) {
    let entry = |request: &PodCertificateRequest| {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        ((text(&request.metadata.namespace), text(&request.metadata.name)), Answer::of(request))
    };
    while let Some(change) = stream.next().await {
        let Some(certificates) = certificates.upgrade() else { return };
        let mut kept = certificates.kept.lock();
        match change {
            Change::Restarted(all) => {
                let last = std::mem::take(&mut kept.answers);
                let name = |one: &ObjectRef| (one.namespace.clone(), one.name.clone());
                kept.answers = all.keyed(last, name, |request| entry(&request));
            }
            Change::Applied(request) => {
                let (name, answer) = entry(&request);
                kept.answers.insert(name, answer);
            }
            Change::Deleted(request) => drop(kept.answers.remove(&(request.namespace, request.name))),
            Change::Failed(error) => {
                tracing::debug!("pod certificate requests could not be watched on the API server: {error}");
            }
        }
        drop(kept);
        certificates.tell();
    }
}
