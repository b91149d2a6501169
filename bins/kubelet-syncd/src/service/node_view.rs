//! What `Node.Get` and `Node.Watch` are answered from: each part of the process is looked at when it is asked for, and
//! whoever changes something says so.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::Reachability;
use bulkhead_config::NodeConfig;
use bulkhead_cri::{CriClient, v1};
use bulkhead_ipc::syncd as api;
use parking_lot::{Mutex, MutexGuard};
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::api::node::NodeSeen;
use crate::api::pods::ApiPods;
use crate::container_manager::ContainerManager;
use crate::hub::PodHub;
use crate::node_resources::{NodeResources, texts};
use crate::node_shutdown::logind::Preparing;
use crate::service::silence;
use crate::sources::{SourceState, Sources};
use crate::sync_loop::NodeContext;
use crate::sync_loop::runtime_health::{Handler, RuntimeHealth};
use kubelet_edges::volnetd::Authority;
use kubelet_model::pod::source::SourceKind;
use kubelet_pleg::{EventSource, Pleg};

/// Changes are gathered for so long before watchers are told.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// What announces no change of its own (PLEG's health, a source's errors) is looked at in this period.
const LOOK: Duration = Duration::from_secs(1);
/// Of the Node's JSON and the images together; with the rest they fit into a message.
const BULK_MAX: usize = 224 << 10;
/// Of the Node's JSON.
const NODE_JSON_MAX: usize = 144 << 10;
/// Bytes of mirrors that nobody wants, in the message that has the Node, too.
const MIRRORS_MAX: usize = 24 << 10;

/// All parts, as far as they are there yet.
#[derive(Debug)]
pub struct NodeView {
    config: Arc<NodeConfig>,
    hub: Arc<PodHub>,
    parts: Mutex<Parts>,
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Parts {
    first: Option<FirstParts>,
    api: Option<ApiParts>,
    node: Option<Arc<NodeContext>>,
    sources: Option<Arc<Sources>>,
    device_registration_error: String,
}

/// What there is before the runtime has answered.
#[derive(Debug, Clone)]
pub struct FirstParts {
    pub cri: CriClient,
    pub pleg: Pleg,
    pub health: watch::Receiver<RuntimeHealth>,
    /// When the runtime answered last.
    pub answered: watch::Receiver<Option<Instant>>,
    /// Who it is; none: it has not said yet.
    pub version: watch::Receiver<Option<v1::VersionResponse>>,
    pub image_fs: watch::Receiver<String>,
    pub sandbox_image: watch::Receiver<String>,
    pub images: watch::Receiver<Arc<[api::NodeImage]>>,
    pub authority: Arc<Authority>,
    pub resources: NodeResources,
    /// Bytes.
    pub swap_capacity: u64,
    /// Whether the machine goes down.
    pub preparing: Preparing,
}

/// What there is with an API server.
#[derive(Debug, Clone)]
pub struct ApiParts {
    pub node: watch::Receiver<NodeSeen>,
    pub pods: watch::Receiver<ApiPods>,
    pub reachability: watch::Receiver<Reachability>,
}

impl NodeView {
    pub fn new(config: Arc<NodeConfig>, hub: Arc<PodHub>) -> Arc<Self> {
        Arc::new(NodeView { config, hub, parts: Mutex::default(), changed: watch::Sender::new(0) })
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        // No method panics between two writes.
        self.parts.lock()
    }

    fn touch(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Tells watchers of each change of that part, for as long as it lives.
    fn follow<T: Send + Sync + 'static>(self: &Arc<Self>, mut part: watch::Receiver<T>) {
        let view = Arc::downgrade(self);
        tokio::spawn(async move {
            while part.changed().await.is_ok() {
                let Some(view) = view.upgrade() else { return };
                part.borrow_and_update();
                view.touch();
            }
        });
    }

    pub fn set_first(self: &Arc<Self>, first: FirstParts) {
        self.follow(first.health.clone());
        self.follow(first.version.clone());
        self.follow(first.image_fs.clone());
        self.follow(first.images.clone());
        self.follow(first.preparing.clone());
        self.parts().first = Some(first);
        self.touch();
    }

    pub fn set_api(self: &Arc<Self>, api: ApiParts) {
        self.follow(api.node.clone());
        self.follow(api.pods.clone());
        self.follow(api.reachability.clone());
        self.parts().api = Some(api);
        self.touch();
    }

    pub fn set_sync_loop(self: &Arc<Self>, node: Arc<NodeContext>, sources: Arc<Sources>) {
        self.follow(node.volume_manager.in_use());
        node.container_manager.shown().into_iter().for_each(|shown| self.follow(shown));
        self.parts().node = Some(node);
        self.set_sources(sources);
    }

    pub(super) fn set_sources(&self, sources: Arc<Sources>) {
        self.parts().sources = Some(sources);
        self.touch();
    }

    /// Why no device plugin can register by its socket; empty: they can.
    pub fn set_device_registration(&self, error: String) {
        let before = std::mem::replace(&mut self.parts().device_registration_error, error.clone());
        if before != error {
            self.touch();
        }
    }

    /// Where pods come from, once that has begun.
    pub fn sources(&self) -> Option<Arc<Sources>> {
        self.parts().sources.clone()
    }

    /// The same, where they begin within that time.
    pub async fn sources_within(&self, patience: Duration) -> Option<Arc<Sources>> {
        let mut changed = self.changed.subscribe();
        let begun = changed.wait_for(|_| self.parts().sources.is_some());
        let _ = tokio::time::timeout(patience, begun).await;
        self.sources()
    }

    /// Who has what for himself, once that is known.
    pub fn container_manager(&self) -> Option<Arc<ContainerManager>> {
        self.parts().node.as_ref().map(|node| node.container_manager.clone())
    }

    /// The runtime, once there is a connection to ask for.
    pub fn cri(&self) -> Option<CriClient> {
        self.parts().first.as_ref().map(|first| first.cri.clone())
    }

    /// Where a watcher begins.
    pub fn watcher(self: &Arc<Self>) -> Watcher {
        let mut changed = self.changed.subscribe();
        changed.borrow_and_update();
        Watcher { view: self.clone(), changed, told: None, looked_at: api::NodeState::default() }
    }

    /// How each source of pods is; none before they have begun.
    pub fn source_states(&self) -> Vec<api::SourceState> {
        sources(&self.parts())
    }

    /// Everything as it is now.
    pub fn state(&self) -> api::NodeState {
        self.with_bulk(self.without_bulk())
    }

    /// With what is large and announces its changes itself.
    fn with_bulk(&self, state: api::NodeState) -> api::NodeState {
        let parts = self.parts();
        let Some(first) = &parts.first else { return state };
        let mut resources = first.resources.clone();
        for shown in parts.node.iter().flat_map(|node| node.container_manager.shown()) {
            resources.extend(&shown.borrow());
        }
        let images = first.images.borrow();
        let room = BULK_MAX.saturating_sub(images.iter().map(image_bytes).sum());
        let (api_node_json, api_node_without_images) =
            parts.api.as_ref().map(|api| node_json(&api.node.borrow(), room)).unwrap_or_default();
        api::NodeState {
            capacity: texts(&resources.capacity).into_iter().collect(),
            allocatable: texts(&resources.allocatable).into_iter().collect(),
            images: fitting(&images, BULK_MAX - api_node_json.len()),
            api_node_json,
            api_node_without_images,
            ..state
        }
    }

    /// Everything else.
    fn without_bulk(&self) -> api::NodeState {
        let parts = self.parts();
        let node_name = self.config.node_name.to_string();
        let Some(first) = &parts.first else {
            let problems = vec!["waits for kubelet-volnetd and for its own state folder".to_owned()];
            return api::NodeState { node_name, problems, ..api::NodeState::default() };
        };
        let (health, stats) = (first.health.borrow().clone(), first.pleg.stats());
        let version = first.version.borrow().clone().unwrap_or_default();
        let pods = parts.api.as_ref().map(|api| api.pods.borrow().clone()).unwrap_or_default();
        let sources_ready = first.authority.sources_ready();
        let volumes = parts.node.as_ref().map(|node| node.volume_manager.in_use().borrow().clone());
        let volumes = volumes.unwrap_or_default();
        let orphan_mirrors = if sources_ready { self.orphans(&pods) } else { Vec::new() };
        api::NodeState {
            node_name,
            runtime_name: version.runtime_name,
            runtime_version: version.runtime_version,
            runtime_api_version: version.runtime_api_version,
            problems: problems(&parts, first, &health),
            runtime_ready: health.ready,
            runtime_reason: health.reason,
            network_ready: health.network_ready,
            network_reason: health.network_reason,
            pleg: match stats.source {
                Some(EventSource::Cri) => "cri-events",
                Some(EventSource::Containerd) => "containerd-events",
                None => "relist",
            }
            .to_owned(),
            relist_age_seconds: first.pleg.list_age().map(|age| age.as_secs_f64()),
            events_received: stats.runtime_events,
            events_missed: stats.events_missed,
            sources_ready,
            sources: sources(&parts),
            generation: first.authority.generation(),
            sync_loop_age_seconds: parts.node.as_ref().map_or(0.0, |node| node.loop_monitor.age().as_secs_f64()),
            image_fs_mountpoint: first.image_fs.borrow().clone(),
            sandbox_image: first.sandbox_image.borrow().clone(),
            runtime_handlers: health.handlers.into_iter().map(handler).collect(),
            supplemental_groups_policy: health.supplemental_groups_policy,
            volumes_in_use: volumes.names,
            volumes_synced: volumes.complete,
            swap_capacity_bytes: first.swap_capacity,
            runtime_status_age_seconds: first.answered.borrow().map(|at| at.elapsed().as_secs_f64()),
            orphan_mirrors,
            api_synced: pods.synced,
            shutting_down: first.preparing.borrow().unwrap_or(false),
            device_registration_error: parts.device_registration_error.clone(),
            node_allocatable_enforced: parts.node.as_ref().is_some_and(|node| node.cgroups.limits_pods()),
            cgroup_driver: parts.node.as_ref().map(|node| node.cgroups.driver.clone()).unwrap_or_default(),
            ..api::NodeState::default()
        }
    }

    /// A mirror whose static pod still ends is no orphan yet.
    fn orphans(&self, pods: &ApiPods) -> Vec<api::MirrorRef> {
        if pods.unwanted_mirrors.is_empty() {
            return Vec::new();
        }
        let known = self.hub.list();
        // One that the runtime alone has may be static.
        let is_api = |pod: &api::PodState| SourceKind::parse(&pod.source) == Some(SourceKind::Api);
        let ending = |mirror: &api::MirrorRef| {
            known.iter().any(|pod| !is_api(pod) && pod.namespace == mirror.namespace && pod.name == mirror.name)
        };
        fitting_mirrors(pods.unwanted_mirrors.iter().filter(|mirror| !ending(mirror)))
    }
}

/// As many as have room in one message: anybody may make mirrors. The others' turn comes when these are gone.
fn fitting_mirrors<'a>(mirrors: impl Iterator<Item = &'a api::MirrorRef>) -> Vec<api::MirrorRef> {
    let mut bytes = 0;
    let fits = |mirror: &&api::MirrorRef| {
        bytes += mirror.encoded_len() + 8;
        bytes <= MIRRORS_MAX
    };
    mirrors.take_while(fits).cloned().collect()
}

/// In a message, with what is around the names.
fn image_bytes(image: &api::NodeImage) -> usize {
    16 + image.names.iter().map(|name| name.len() + 4).sum::<usize>()
}

/// As many of the largest as have room in one message, whatever `nodeStatusMaxImages` allows.
fn fitting(images: &[api::NodeImage], room: usize) -> Vec<api::NodeImage> {
    let mut bytes = 0;
    let fits = |image: &&api::NodeImage| {
        bytes += image_bytes(image);
        bytes <= room
    };
    images.iter().take_while(fits).cloned().collect()
}

/// A Node that leaves no room for all images (`room`: what they leave), or does not fit, is told without its own list of them; one that
/// does not fit even so, not at all: who writes it then asks the server. Says whether images were left out.
fn node_json(seen: &NodeSeen, room: usize) -> (Vec<u8>, bool) {
    if seen.json.len() <= room.min(NODE_JSON_MAX) {
        return (seen.json.to_vec(), false);
    }
    let smaller = seen.node.as_ref().and_then(|node| serde_json::to_vec(&**node).ok());
    smaller.filter(|json| json.len() <= NODE_JSON_MAX).map(|json| (json, true)).unwrap_or_default()
}

fn handler(handler: Handler) -> api::RuntimeHandler {
    api::RuntimeHandler {
        name: handler.name,
        recursive_read_only_mounts: handler.recursive_read_only_mounts,
        user_namespaces: handler.user_namespaces,
    }
}

fn sources(parts: &Parts) -> Vec<api::SourceState> {
    let states = parts.sources.as_ref().map(|sources| sources.states()).unwrap_or_default();
    states.into_iter().map(|state| source(state, parts.api.as_ref())).collect()
}

fn source(state: SourceState, api: Option<&ApiParts>) -> api::SourceState {
    let waits_for = match api {
        _ if state.seen => String::new(),
        Some(api) if state.kind == SourceKind::Api => {
            silence::api_waits_for(&api.reachability.borrow(), api.node.borrow().synced)
        }
        _ => silence::static_waits_for(state.kind).to_owned(),
    };
    api::SourceState {
        name: state.kind.to_string(),
        seen: state.seen,
        pods: u32::try_from(state.pods).unwrap_or(u32::MAX),
        errors: state.errors,
        silent_seconds: state.silent.as_secs_f64(),
        silent: state.silent >= silence::SILENT_AFTER,
        waits_for,
    }
}

fn problems(parts: &Parts, first: &FirstParts, health: &RuntimeHealth) -> Vec<String> {
    let mut problems = Vec::new();
    if !health.ready {
        problems.push(format!("container runtime is not ready: {}", health.reason));
    } else if !health.network_ready {
        problems.push(format!("container runtime network not ready: {}", health.network_reason));
    }
    if *first.preparing.borrow() == Some(true) {
        problems.push("the machine goes down: pods are ended and none is admitted".to_owned());
    }
    if let Err(error) = first.pleg.health() {
        problems.push(format!("PLEG is not healthy: {error}"));
    }
    if parts.node.as_ref().is_some_and(|node| node.cgroups.epoch().is_none()) {
        problems.push("waits for kubelet-volnetd".to_owned());
    }
    if let Some(api) = &parts.api {
        if let Reachability::Unreachable { reason, .. } = &*api.reachability.borrow() {
            problems.push(format!("the API server does not answer: {reason}"));
        }
        if !api.node.borrow().synced {
            problems.push("the API server has not yet said whether it has this Node".to_owned());
        } else if !api.pods.borrow().synced {
            problems.push("the API server has not yet said which pods are to run here".to_owned());
        }
    }
    problems
}

/// One caller of `Node.Watch`.
#[derive(Debug)]
pub struct Watcher {
    view: Arc<NodeView>,
    changed: watch::Receiver<u64>,
    told: Option<api::NodeState>,
    /// The same without what is large.
    looked_at: api::NodeState,
}

impl Watcher {
    /// The state now, the first time; then when something other than an age or a counter has changed.
    pub async fn next(&mut self) -> api::NodeState {
        loop {
            let mut touched = true;
            if self.told.is_some() {
                touched = tokio::time::timeout(LOOK, self.changed.changed()).await.is_ok();
                if touched {
                    tokio::time::sleep(DEBOUNCE).await;
                    self.changed.borrow_and_update();
                }
            }
            let small = self.view.without_bulk();
            let looked_at = without_ages(small.clone());
            if !touched && looked_at == self.looked_at {
                continue;
            }
            self.looked_at = looked_at;
            let state = self.view.with_bulk(small);
            let told = without_ages(state.clone());
            if self.told.as_ref() != Some(&told) {
                self.told = Some(told);
                return state;
            }
        }
    }
}

/// What is left to compare: neither ages nor counters.
fn without_ages(state: api::NodeState) -> api::NodeState {
    api::NodeState {
        // That it has ever happened is no age.
        relist_age_seconds: state.relist_age_seconds.map(|_| 0.0),
        sync_loop_age_seconds: 0.0,
        runtime_status_age_seconds: state.runtime_status_age_seconds.map(|_| 0.0),
        events_received: 0,
        events_missed: 0,
        generation: 0,
        sources: state.sources.into_iter().map(|source| api::SourceState { silent_seconds: 0.0, ..source }).collect(),
        ..state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_holds_what_fits() {
        let image = |n: usize| api::NodeImage { names: vec!["n".repeat(n)], size_bytes: 1 };
        assert_eq!(fitting(&[image(10), image(20)], BULK_MAX).len(), 2);
        assert_eq!(fitting(&vec![image(1000); 500], 80 << 10).len(), (80 << 10) / 1020);
        let mirror = api::MirrorRef { name: "m".repeat(253), namespace: "n".repeat(63), uid: "u".repeat(36) };
        let told = fitting_mirrors(std::iter::repeat_n(&mirror, 10_000));
        assert!((50..1000).contains(&told.len()), "{}", told.len());
        assert_eq!(fitting_mirrors([&mirror; 3].into_iter()).len(), 3);
        let node = |images: usize, annotation: usize, room: usize| {
            let names: Vec<_> = (0..images).map(|_| serde_json::json!({"names": ["n".repeat(100)]})).collect();
            let whole = serde_json::json!({"metadata": {"annotations": {"a": "x".repeat(annotation)}},
                "status": {"images": names}});
            let json: Arc<[u8]> = serde_json::to_vec(&whole).unwrap().into();
            let mut node: k8s_openapi::api::core::v1::Node = serde_json::from_value(whole).unwrap();
            node.status.as_mut().unwrap().images = None;
            node_json(&NodeSeen { synced: true, node: Some(Arc::new(node)), json }, room)
        };
        for (images, annotation, room, length, without_images) in [
            (50, 10, BULK_MAX, 5000..10_000, false),
            (2000, 10, BULK_MAX, 10..200, true),
            // Ours take the room.
            (50, 10, 4 << 10, 10..200, true),
            (10, 200 << 10, BULK_MAX, 0..1, false),
        ] {
            let (json, without) = node(images, annotation, room);
            assert!(length.contains(&json.len()) && without == without_images, "{images} {annotation} {room}");
        }
    }

    #[test]
    fn ages_and_counters_are_no_news() {
        let old = api::NodeState {
            runtime_status_age_seconds: Some(1.0),
            relist_age_seconds: Some(0.1),
            events_received: 1,
            ..Default::default()
        };
        let later = api::NodeState {
            runtime_status_age_seconds: Some(2.0),
            events_received: 5,
            relist_age_seconds: Some(3.0),
            sync_loop_age_seconds: 1.0,
            ..Default::default()
        };
        assert_eq!(without_ages(old.clone()), without_ages(later.clone()));
        let never = api::NodeState { runtime_status_age_seconds: None, ..later.clone() };
        assert_ne!(without_ages(old.clone()), without_ages(never));
        let unlisted = api::NodeState { relist_age_seconds: None, ..later.clone() };
        assert_ne!(without_ages(old.clone()), without_ages(unlisted));
        assert_ne!(without_ages(old), without_ages(api::NodeState { api_synced: true, ..later }));
    }
}
