//! Desired pods: read from the manifest folder, the URL and the API server, merged per source into ordered changes for
//! the main loop.
//!
//! | task | receives | sends |
//! |---|---|---|
//! | [`file::run`] | watch events and bytes of manifests | complete sets of source `file` |
//! | [`http::run`] | answers of `staticPodURL` | complete sets of source `http` |
//! | `api::pods` (through [`Sources::api_sender`]) | the watch of the API server's pods | a complete set of source `api`, then single pods |
//! | merge, here | all of that | [`PodUpdate`]s, at most 50 waiting |
//!
//! "No pods desired" and "not heard from yet" never look alike: a source that has not delivered is not ready, and until
//! [`Sources::all_ready`] nothing is deleted.

pub mod file;
pub mod http;
pub mod merge;
mod references;
mod spared;
pub mod static_pod;
pub mod uids;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::PodUid;
use jiff::Timestamp;
use kubelet_model::pod::source::SourceKind;
use kubelet_model::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

pub use file::{Absence, FileConfig, ManifestStore, SetSink};
pub use http::HttpConfig;
pub use merge::{DroppedPod, FullName, Merge, PodOp, PodUpdate};
use spared::Spared;
pub use static_pod::ForNode;
pub use uids::{FoundPod, UidStore, Uids};

/// Changes that wait for the main loop. Upstream's channel has 50 places; each may hold a pod of its own (1.5 MiB on an API
/// server), a full one holds up the sources, and a watch that is not read is held up in its connection.
const UPDATES_WAITING: usize = 8;
/// What waits for the merge, each a set or a pod.
const CHANGES_WAITING: usize = 4;

/// Which sources there are.
#[derive(Debug)]
pub struct SourcesConfig {
    pub node: ForNode,
    pub file: Option<FileConfig>,
    pub http: Option<HttpConfig>,
    /// An API server will deliver sets through [`Sources::api_sender`].
    pub api: bool,
    /// Static pods that run now; their uids are adopted by manifests that match.
    pub running: Vec<FoundPod>,
}

/// State of one source, for whoever asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceState {
    pub kind: SourceKind,
    /// It has delivered a set.
    pub seen: bool,
    pub pods: usize,
    /// What was refused and why.
    pub errors: Vec<String>,
    /// For how long it has delivered nothing; zero once it has.
    pub silent: Duration,
}

/// Called with each pod that was dropped, to record an event on it.
pub type DroppedSink = Arc<dyn Fn(DroppedPod) + Send + Sync>;

#[derive(Debug, Default)]
struct Shared {
    merge: Merge,
    errors: BTreeMap<SourceKind, Vec<String>>,
    spared: Spared,
}

/// The running sources. Dropping it ends them.
#[derive(Debug)]
pub struct Sources {
    shared: Arc<Mutex<Shared>>,
    kinds: Vec<SourceKind>,
    changes: mpsc::Sender<(SourceKind, SourceChange)>,
    statics: watch::Sender<Arc<[StaticName]>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    started: Instant,
}

/// What a source tells of its pods.
#[derive(Debug)]
enum SourceChange {
    /// With what could not be taken.
    Set(Vec<Pod>, Vec<String>),
    Upsert(Box<Pod>),
    Remove(PodUid),
    Again(PodUid, Absence),
}

/// A wanted static pod; its mirror on the API server has the same full name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticName {
    pub uid: PodUid,
    pub name: FullName,
}

impl Drop for Sources {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// Delivers what one source wants to the merge, in order.
#[derive(Debug, Clone)]
pub struct SetSender {
    kind: SourceKind,
    changes: mpsc::Sender<(SourceKind, SourceChange)>,
    shared: Arc<Mutex<Shared>>,
    /// Goes with the next set.
    untaken: Vec<String>,
}

impl SetSender {
    async fn send(&self, change: SourceChange) -> bool {
        self.changes.send((self.kind, change)).await.is_ok()
    }

    /// One pod is new or has changed. False when nobody listens any more.
    pub async fn upsert(&self, pod: Pod) -> bool {
        self.send(SourceChange::Upsert(Box::new(pod))).await
    }

    /// One pod is gone.
    pub async fn remove(&self, uid: PodUid) -> bool {
        self.send(SourceChange::Remove(uid)).await
    }
}

impl SetSink for SetSender {
    async fn set(&mut self, pods: Vec<Pod>) -> bool {
        let untaken = std::mem::take(&mut self.untaken);
        self.send(SourceChange::Set(pods, untaken)).await
    }

    async fn again(&mut self, uid: PodUid, absence: Absence) -> bool {
        self.send(SourceChange::Again(uid, absence)).await
    }

    fn errors(&mut self, errors: Vec<String>) {
        self.shared.lock().errors.insert(self.kind, errors);
    }

    fn untaken(&mut self, untaken: Vec<String>) {
        self.untaken = untaken;
    }
}

impl Sources {
    /// Starts the configured sources on the current runtime. The receiver gets every change in order; the main loop
    /// calls [`Self::consumed`] for each it has taken.
    pub fn start<S: ManifestStore + 'static>(
        config: SourcesConfig,
        manifests: S,
        uid_store: Box<dyn UidStore>,
        dropped: DroppedSink,
    ) -> (Sources, mpsc::Receiver<PodUpdate>) {
        let running = config.running.clone();
        let uids = Uids::new(uid_store, config.running);
        let spared = Spared::new(running, |uid| uids.was_taken(uid));
        let shared = Arc::new(Mutex::new(Shared { spared, ..Shared::default() }));
        let (changes, incoming) = mpsc::channel(CHANGES_WAITING);
        let statics = watch::Sender::new(Arc::default());
        let (updates, outgoing) = mpsc::channel(UPDATES_WAITING);
        let uids = Arc::new(Mutex::new(uids));
        let mut sources = Sources {
            shared: shared.clone(),
            kinds: Vec::new(),
            changes,
            statics: statics.clone(),
            tasks: Vec::new(),
            started: Instant::now(),
        };
        sources.tasks.push(tokio::spawn(merge_changes(incoming, updates, shared, statics, dropped)));
        if let Some(file) = config.file {
            let sender = sources.register(SourceKind::File);
            let node = config.node.clone();
            sources.tasks.push(tokio::spawn(file::run(file, node, uids.clone(), manifests, sender)));
        }
        if let Some(http) = config.http {
            let sender = sources.register(SourceKind::Http);
            sources.tasks.push(tokio::spawn(http::run(http, config.node, uids, sender)));
        }
        if config.api {
            sources.register(SourceKind::Api);
        }
        (sources, outgoing)
    }

    fn register(&mut self, kind: SourceKind) -> SetSender {
        self.shared.lock().merge.register(kind);
        self.kinds.push(kind);
        SetSender { kind, changes: self.changes.clone(), shared: self.shared.clone(), untaken: Vec::new() }
    }

    /// Where the API server's pods go in, when there is an API server.
    pub fn api_sender(&self) -> Option<SetSender> {
        self.kinds.contains(&SourceKind::Api).then(|| SetSender {
            kind: SourceKind::Api,
            changes: self.changes.clone(),
            shared: self.shared.clone(),
            untaken: Vec::new(),
        })
    }

    /// The static pods that are wanted now.
    pub fn statics(&self) -> watch::Receiver<Arc<[StaticName]>> {
        self.statics.subscribe()
    }

    /// The main loop has taken a change of that source.
    pub fn consumed(&self, kind: SourceKind) {
        self.shared.lock().merge.consumed(kind);
    }

    /// Every source has delivered and the main loop has heard it. Before that nothing may be deleted.
    pub fn all_ready(&self) -> bool {
        self.shared.lock().merge.all_ready()
    }

    /// All pods that are wanted now, as their sources have them, by namespace and name.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.shared.lock().merge.pods()
    }

    /// The pod of that UID, where a source wants it.
    pub fn pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        self.shared.lock().merge.pod(uid.as_str())
    }

    /// Of a pod that the main loop does not know: it is no orphan yet. It runs and may be that of a manifest that could not be taken
    /// ([`Spared`]), or the change that wants it has not been consumed.
    pub fn spares(&self, uid: &PodUid) -> bool {
        let shared = self.shared.lock();
        shared.spared.has(uid, &shared.merge)
    }

    /// The manifests that could not be taken and of which there is no record, each with the reason.
    pub fn untaken(&self) -> Vec<String> {
        self.shared.lock().spared.untaken().to_vec()
    }

    pub fn states(&self) -> Vec<SourceState> {
        let shared = self.shared.lock();
        let state = |kind: &SourceKind| {
            let seen = shared.merge.delivered(*kind);
            SourceState {
                kind: *kind,
                seen,
                pods: shared.merge.count(*kind),
                errors: shared.errors.get(kind).cloned().unwrap_or_default(),
                silent: if seen { Duration::ZERO } else { self.started.elapsed() },
            }
        };
        self.kinds.iter().map(state).collect()
    }
}

async fn merge_changes(
    mut incoming: mpsc::Receiver<(SourceKind, SourceChange)>,
    updates: mpsc::Sender<PodUpdate>,
    shared: Arc<Mutex<Shared>>,
    statics: watch::Sender<Arc<[StaticName]>>,
    dropped: DroppedSink,
) {
    while let Some((kind, change)) = incoming.recv().await {
        let (merged, names) = {
            let mut shared = shared.lock();
            let now = Timestamp::now();
            let merged = match change {
                SourceChange::Set(pods, untaken) => {
                    let Shared { merge, spared, .. } = &mut *shared;
                    let merged = merge.set(kind, pods, now);
                    if kind == SourceKind::File {
                        spared.told(untaken, merge);
                    }
                    merged
                }
                SourceChange::Upsert(pod) => shared.merge.upsert(kind, *pod, now),
                SourceChange::Remove(uid) => shared.merge.remove(kind, uid.as_str()),
                SourceChange::Again(uid, Absence::MovedAway) => shared.merge.again(kind, uid.as_str()),
                SourceChange::Again(uid, Absence::Removed) => shared.merge.renew(kind, uid.as_str(), now),
            };
            (merged, kind.is_static().then(|| static_names(&shared.merge)))
        };
        if let Some(names) = names {
            statics.send_if_modified(|known| {
                let changed = **known != *names;
                if changed {
                    *known = names;
                }
                changed
            });
        }
        merged.dropped.into_iter().for_each(|pod| dropped(pod));
        for update in merged.updates {
            if updates.send(update).await.is_err() {
                return;
            }
        }
    }
}

fn static_names(merge: &Merge) -> Arc<[StaticName]> {
    let of = |kind| merge.names(kind);
    let all = of(SourceKind::File).chain(of(SourceKind::Http));
    all.filter_map(|(uid, name)| Some(StaticName { uid: PodUid::parse(uid).ok()?, name: name.clone() })).collect()
}
