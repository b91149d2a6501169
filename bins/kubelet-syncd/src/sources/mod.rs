//! Desired pods: read from the manifest folder and the URL (and, with the API server, from there), merged per source
//! into ordered changes for the main loop.
//!
//! | task | receives | sends |
//! |---|---|---|
//! | [`file::run`] | watch events and bytes of manifests | complete sets of source `file` |
//! | [`http::run`] | answers of `staticPodURL` | complete sets of source `http` |
//! | the API source | (its seam: [`SourcesConfig::api`], [`Sources::api_sender`]) | complete sets of source `api` |
//! | merge, here | complete sets | [`PodUpdate`]s, at most 50 waiting |
//!
//! "No pods desired" and "not heard from yet" never look alike: a source that has not delivered is not ready, and until
//! [`Sources::all_ready`] nothing is deleted.

pub mod decode;
pub mod defaults;
pub mod file;
pub mod http;
pub mod merge;
mod references;
pub mod static_pod;
pub mod uids;
pub mod validation;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bulkhead_types::NodeName;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;

pub use file::{FileConfig, ManifestStore, SetSink};
pub use http::HttpConfig;
pub use merge::{DroppedPod, Merge, PodOp, PodUpdate, SourceKind};
pub use uids::{RunningPod, UidStore, Uids};

/// Changes that wait for the main loop; upstream's channel has the same length.
const UPDATES_WAITING: usize = 50;
/// Sets that wait for the merge: one for each source is enough, since each is complete.
const SETS_WAITING: usize = 4;

/// Which sources there are.
#[derive(Debug)]
pub struct SourcesConfig {
    pub node: NodeName,
    pub file: Option<FileConfig>,
    pub http: Option<HttpConfig>,
    /// An API server will deliver sets through [`Sources::api_sender`].
    pub api: bool,
    /// Static pods that run now; their uids are adopted by manifests that match.
    pub running: Vec<RunningPod>,
}

/// State of one source, for whoever asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceState {
    /// `file`, `http`, `api`.
    pub name: &'static str,
    /// It has delivered a set.
    pub seen: bool,
    pub pods: usize,
    /// What was refused and why.
    pub errors: Vec<String>,
}

/// Told of pods that were dropped, to record an event on them.
pub type DroppedSink = Arc<dyn Fn(DroppedPod) + Send + Sync>;

#[derive(Debug, Default)]
struct Shared {
    merge: Merge,
    errors: BTreeMap<SourceKind, Vec<String>>,
}

/// The running sources. Dropping it ends them.
#[derive(Debug)]
pub struct Sources {
    shared: Arc<Mutex<Shared>>,
    kinds: Vec<SourceKind>,
    sets: mpsc::Sender<(SourceKind, Vec<Pod>)>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for Sources {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// Delivers complete sets of one source to the merge.
#[derive(Debug, Clone)]
pub struct SetSender {
    kind: SourceKind,
    sets: mpsc::Sender<(SourceKind, Vec<Pod>)>,
    shared: Arc<Mutex<Shared>>,
}

impl SetSink for SetSender {
    async fn set(&mut self, pods: Vec<Pod>) -> bool {
        self.sets.send((self.kind, pods)).await.is_ok()
    }

    fn errors(&mut self, errors: Vec<String>) {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).errors.insert(self.kind, errors);
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
        let shared = Arc::new(Mutex::new(Shared::default()));
        let (sets, incoming) = mpsc::channel(SETS_WAITING);
        let (updates, outgoing) = mpsc::channel(UPDATES_WAITING);
        let uids = Arc::new(Mutex::new(Uids::new(uid_store, config.running)));
        let mut sources = Sources { shared: shared.clone(), kinds: Vec::new(), sets, tasks: Vec::new() };
        sources.tasks.push(tokio::spawn(merge_sets(incoming, updates, shared, dropped)));
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
        self.shared().merge.register(kind);
        self.kinds.push(kind);
        SetSender { kind, sets: self.sets.clone(), shared: self.shared.clone() }
    }

    fn shared(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the API server's pods go in, when there is an API server.
    pub fn api_sender(&self) -> Option<SetSender> {
        self.kinds.contains(&SourceKind::Api).then(|| SetSender {
            kind: SourceKind::Api,
            sets: self.sets.clone(),
            shared: self.shared.clone(),
        })
    }

    /// The main loop has taken a change of that source.
    pub fn consumed(&self, kind: SourceKind) {
        self.shared().merge.consumed(kind);
    }

    /// Every source has delivered and the main loop has heard it. Before that nothing may be deleted.
    pub fn all_ready(&self) -> bool {
        self.shared().merge.all_ready()
    }

    pub fn states(&self) -> Vec<SourceState> {
        let shared = self.shared();
        let state = |kind: &SourceKind| SourceState {
            name: kind.as_str(),
            seen: shared.merge.delivered(*kind),
            pods: shared.merge.count(*kind),
            errors: shared.errors.get(kind).cloned().unwrap_or_default(),
        };
        self.kinds.iter().map(state).collect()
    }
}

async fn merge_sets(
    mut incoming: mpsc::Receiver<(SourceKind, Vec<Pod>)>,
    updates: mpsc::Sender<PodUpdate>,
    shared: Arc<Mutex<Shared>>,
    dropped: DroppedSink,
) {
    while let Some((kind, pods)) = incoming.recv().await {
        let merged = {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.merge.set(kind, pods, Timestamp::now())
        };
        merged.dropped.into_iter().for_each(|pod| dropped(pod));
        for update in merged.updates {
            if updates.send(update).await.is_err() {
                return;
            }
        }
    }
}

/// An error with its causes, on one line.
fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.ends_with(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text
}
