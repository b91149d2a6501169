//! Keeps the Node: registers it, then writes its status when that changes or is due.
//!
//! As upstream's syncNodeStatus it computes every nodeStatusUpdateFrequency and tries a write up to five times; unlike it,
//! it also computes at once when kubelet-syncd says something new, so a node is Ready, or not, when it is and not ten
//! seconds later. A Node that is deleted while we run is not made again before a restart, as upstream.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::random_fraction;
use bulkhead_config::{Feature, NodeConfig};
use bulkhead_daemon::addresses::Prober;
use bulkhead_ipc::syncd::NodeState;
use bulkhead_types::BackOff;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeAddress};
use tokio::sync::watch;
use tokio::time::Instant;

use super::addresses::{AddressSettings, Decision, decide, has_to_detect};
use super::cadence::{Cadence, jittered};
use super::conditions::{Pressure, ReportedConditions};
use super::csinode::Progress;
use super::metrics::Metrics;
use super::ready::SilentPeers;
use super::server::{RequestError, Server};
use super::status::{self, Change, Fixed, Now};
use super::syncd_view::{GRACE, View};
use super::{object, patch};
use crate::events::{EventQueue, Involved, Record};

const REGISTER_RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(7));
const TRIES: u32 = 5;
const JITTER: f64 = 0.04;
/// Changes that come together are written together.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// So many changes in a period are looked at without delay, further ones no faster than this.
const HURRIES: u32 = 5;
const HURRY: Duration = Duration::from_secs(1);
/// With a Node that does not stand yet the CSINode is made at once; its success belongs into the first status.
const FIRST_CSI_NODE: Duration = Duration::from_secs(2);

/// The wall clock.
pub type Clock = fn() -> Timestamp;

/// Everything that the reporter uses.
#[derive(Debug)]
pub struct Reporter {
    pub config: Arc<NodeConfig>,
    pub server: Server,
    pub fixed: Fixed,
    pub metrics: Metrics,
    pub events: EventQueue,
    pub view: watch::Receiver<View>,
    pub pressure: watch::Receiver<Option<Pressure>>,
    pub silent_peers: watch::Receiver<SilentPeers>,
    pub storage: watch::Receiver<Progress>,
    /// Is told the addresses that were found out last.
    pub addresses: watch::Sender<Vec<NodeAddress>>,
    pub clock: Clock,
    /// Tells the other loops that the Node stands; none: there is none, or it has gone.
    pub node_uid: watch::Sender<Option<String>>,
}

/// Why a status was not written.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the status cannot be encoded: {0}")]
    Encode(#[from] serde_json::Error),
}

/// Why a status is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Occasion {
    Period,
    News,
}

/// What is remembered from one computation to the next.
struct Memory {
    /// The Node as an answer of the API server showed it last.
    node: Option<Node>,
    addresses: Option<Decision>,
    prober: Prober,
    told: ReportedConditions,
    rebooted: bool,
    unschedulable: bool,
    enforced: bool,
    cadence: Cadence,
}

impl Reporter {
    /// Never ends.
    pub async fn run(mut self) {
        let mut memory = Memory {
            node: None,
            addresses: None,
            prober: Prober::default(),
            told: ReportedConditions::default(),
            rebooted: false,
            unschedulable: false,
            enforced: false,
            cadence: Cadence::new(self.config.kubelet.node_status_report_frequency.to_std()),
        };
        self.first_state().await;
        if self.config.kubelet.register_node() {
            self.register(&mut memory).await;
            self.first_csi_node().await;
        }
        let frequency = self.config.kubelet.node_status_update_frequency.to_std();
        loop {
            self.report(&mut memory, Occasion::Period).await;
            let next = Instant::now() + jittered(frequency, JITTER, random_fraction());
            for hurried in 0_u32.. {
                let news = news(&mut self.view, &mut self.pressure, &mut self.silent_peers, &mut self.storage);
                if self.server.rests(tokio::time::timeout_at(next, news)).await.is_err() {
                    break;
                }
                self.server.pause(if hurried < HURRIES { DEBOUNCE } else { HURRY.min(frequency) }).await;
                self.report(&mut memory, Occasion::News).await;
            }
        }
    }

    /// Waits until kubelet-syncd has said something of the node, for as long as a start may take.
    async fn first_state(&mut self) {
        let known = self.view.wait_for(|view| view.state.is_some());
        if self.server.rests(tokio::time::timeout(GRACE, known)).await.is_err() {
            tracing::warn!("kubelet-syncd has said nothing of the node yet");
        }
    }

    async fn first_csi_node(&mut self) {
        let settled = self.storage.wait_for(|progress| *progress != Progress::NotYet);
        // Late is no error: the status says so, and is written anew when it stands.
        let _ = self.server.rests(tokio::time::timeout(FIRST_CSI_NODE, settled)).await;
    }

    /// The Node is created, or the one that stands is put right; tried until it works.
    async fn register(&mut self, memory: &mut Memory) {
        self.metrics.registering();
        let mut retry = BackOff::new(REGISTER_RETRY.0, REGISTER_RETRY.1);
        loop {
            self.server.pause(retry.pause()).await;
            let empty = object::initial(&self.config, self.fixed.facts.architecture);
            let initial = self.compute(&empty, memory, Occasion::Period).await;
            match self.try_register(&initial).await {
                Ok(node) => {
                    tracing::info!(node = self.server.name(), "Successfully registered node");
                    self.tell_uid(&node);
                    memory.node = Some(node);
                    return;
                }
                Err(error) => tracing::warn!(%error, ?retry, "failed to register node, will retry"),
            }
        }
    }

    async fn try_register(&self, initial: &Node) -> Result<Node, WriteError> {
        let created = self.server.create_node(initial).await;
        self.metrics.node_write(created.is_ok());
        let refused = match created {
            Ok(node) => {
                self.metrics.registered();
                return Ok(node);
            }
            Err(error) => error,
        };
        let get_on_exists_only = self.config.feature_gates().enabled(Feature::KubeletRegistrationGetOnExistsOnly);
        if !refused.already_exists() && (!refused.is_forbidden() || get_on_exists_only) {
            return Err(refused.into());
        }
        let existing = self.server.get_node().await?;
        let wanted = object::reconciled(&existing, initial);
        match patch::node_patch(&existing, &wanted)? {
            None => Ok(existing),
            Some(patch) => {
                let written = self.server.patch_node_status(&patch).await;
                self.metrics.node_write(written.is_ok());
                Ok(written?)
            }
        }
    }

    fn tell_uid(&self, node: &Node) {
        self.node_uid.send_if_modified(|known| {
            let changed = *known != node.metadata.uid;
            known.clone_from(&node.metadata.uid);
            changed
        });
    }

    /// One period's work: computes, and writes where that is worth it.
    async fn report(&mut self, memory: &mut Memory, occasion: Occasion) {
        let mut pause = Duration::from_millis(100);
        for attempt in 0..TRIES {
            match self.try_report(memory, occasion, attempt).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(%error, attempt, "Error updating node status, will retry");
                    if matches!(&error, WriteError::Request(error) if error.is_not_found()) {
                        memory.node = None;
                        // Nothing new may belong to it.
                        self.node_uid.send_replace(None);
                    }
                    let final_here = match &error {
                        WriteError::Request(error) => error.is_not_found() || error.is_overload(),
                        WriteError::Encode(_) => true,
                    };
                    if final_here {
                        return;
                    }
                    if attempt > 0 {
                        self.server.reconnect();
                    }
                }
            }
            self.server.pause(jittered(pause, 0.5, random_fraction())).await;
            pause *= 2;
        }
        tracing::error!("unable to update node status: update exceeds retry count");
    }

    async fn try_report(&mut self, memory: &mut Memory, occasion: Occasion, attempt: u32) -> Result<(), WriteError> {
        let old = self.current(memory, attempt).await?;
        self.tell_uid(&old);
        let new = self.compute(&old, memory, occasion).await;
        let change = status::change(&old, &new);
        let due = memory.cadence.due(Instant::now());
        let worth = match change {
            Change::Other => true,
            Change::Images => occasion == Occasion::Period,
            Change::Nothing => false,
        };
        memory.node = Some(old);
        if !worth && !due {
            return Ok(());
        }
        let Some(patch) = memory.node.as_ref().map(|old| patch::node_patch(old, &new)).transpose()?.flatten() else {
            return Ok(());
        };
        let written = self.server.patch_node_status(&patch).await;
        self.metrics.status_write(written.is_ok());
        let node = written?;
        memory.cadence.written(Instant::now(), change != Change::Nothing, random_fraction());
        if is_ready(&node) {
            self.metrics.ready();
        }
        memory.node = Some(node);
        Ok(())
    }

    /// The Node as it stands: the newer of our last answer and of what kubelet-syncd's watch saw; after a failure, or where
    /// neither is there, the API server's word.
    async fn current(&self, memory: &Memory, attempt: u32) -> Result<Node, RequestError> {
        if attempt == 0 {
            let view = self.view.borrow().clone();
            let seen = view.state.as_deref().and_then(|state| seen_by_watch(state, memory.node.as_ref()));
            if let Some(node) = newer(memory.node.clone(), seen) {
                return Ok(node);
            }
        }
        self.server.get_node().await
    }

    async fn compute(&mut self, old: &Node, memory: &mut Memory, occasion: Occasion) -> Node {
        if occasion == Occasion::Period {
            self.fixed.facts.read_again();
        }
        if occasion == Occasion::Period || memory.addresses.is_none() {
            self.look_at_addresses(old, memory).await;
        }
        let view = self.view.borrow_and_update().clone();
        let storage = self.storage.borrow_and_update().problem();
        let now = Now {
            time: whole_second((self.clock)()),
            known: view.state.as_deref(),
            silent: view.is_silent(Instant::now()) || view.state.is_none(),
            silent_peers: *self.silent_peers.borrow_and_update(),
            addresses: memory.addresses.as_ref(),
            pressure: *self.pressure.borrow_and_update(),
            storage: storage.as_deref(),
            shutting_down: view.state.as_ref().is_some_and(|state| state.shutting_down),
        };
        let (new, events) = status::next(old, &self.fixed, &now);
        self.record_changes(old, &new, events, memory, &view);
        self.addresses.send_if_modified(|known| {
            let found = new.status.as_ref().and_then(|status| status.addresses.clone()).unwrap_or_default();
            let changed = *known != found;
            *known = found;
            changed
        });
        new
    }

    async fn look_at_addresses(&self, old: &Node, memory: &mut Memory) {
        let wanted = AddressSettings {
            node_ips: &self.config.node_ips,
            name: self.config.node_name.as_str(),
            external_cloud_provider: object::is_external(&self.config),
        };
        let addresses = old.status.as_ref().and_then(|status| status.addresses.as_ref());
        let has_addresses = addresses.is_some_and(|list| !list.is_empty());
        let detect = has_to_detect(&wanted, has_addresses);
        let probed = memory.prober.probe(wanted.node_ips, wanted.name, detect).await;
        memory.addresses = match decide(&wanted, has_addresses, &probed) {
            Ok(decision) => Some(decision),
            Err(error) => {
                tracing::error!(%error, "failed to find the node's addresses, keeping those that it has");
                None
            }
        };
    }

    fn record_changes(&self, old: &Node, new: &Node, events: Vec<&'static str>, memory: &mut Memory, view: &View) {
        let name = self.server.name();
        let about_status = |reason: &str| self.event("Normal", reason, format!("Node {name} status is now: {reason}"));
        let boot_id = &self.fixed.facts.boot_id;
        let boot_of = |node: &Node| node.status.as_ref()?.node_info.as_ref().map(|info| info.boot_id.clone());
        let old_boot = boot_of(old).unwrap_or_default();
        if !memory.rebooted && !old_boot.is_empty() && old_boot != *boot_id {
            memory.rebooted = true;
            self.event("Warning", "Rebooted", format!("Node {name} has been rebooted, boot id: {boot_id}"));
        }
        for reason in memory.told.fresh(events) {
            about_status(reason);
        }
        let unschedulable = new.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
        if unschedulable != memory.unschedulable {
            memory.unschedulable = unschedulable;
            about_status(if unschedulable { "NodeNotSchedulable" } else { "NodeSchedulable" });
        }
        if !memory.enforced && view.state.as_ref().is_some_and(|state| state.node_allocatable_enforced) {
            memory.enforced = true;
            self.event("Normal", "NodeAllocatableEnforced", "Updated Node Allocatable limit across pods".to_owned());
        }
    }

    fn event(&self, kind: &'static str, reason: &str, message: String) {
        self.events.record(Record { involved: Involved::Node, kind, reason: reason.to_owned(), message });
    }
}

/// Something worth a computation has come.
async fn news(
    view: &mut watch::Receiver<View>,
    pressure: &mut watch::Receiver<Option<Pressure>>,
    silent_peers: &mut watch::Receiver<SilentPeers>,
    storage: &mut watch::Receiver<Progress>,
) {
    // A sender that has ended (the CSINode's, once it stands) has no more news.
    tokio::select! {
        Ok(()) = view.changed() => {}
        Ok(()) = pressure.changed() => {}
        Ok(()) = silent_peers.changed() => {}
        Ok(()) = storage.changed() => {}
        else => std::future::pending::<()>().await,
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|list| list.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

/// kubelet-syncd's copy of our Node, if it has one that can be read. One without images has those of the last answer, `known`: nobody
/// else writes them. Where there was no answer yet, it is no copy to compare with.
fn seen_by_watch(state: &NodeState, known: Option<&Node>) -> Option<Node> {
    if state.api_node_json.is_empty() || (state.api_node_without_images && known.is_none()) {
        return None;
    }
    let mut node: Node = serde_json::from_slice(&state.api_node_json)
        .inspect_err(|error| tracing::warn!(%error, "failed to decode the Node from kubelet-syncd"))
        .ok()?;
    if state.api_node_without_images
        && let Some(known) = known
    {
        let images = known.status.as_ref().and_then(|status| status.images.clone());
        node.status.get_or_insert_default().images = images;
    }
    Some(node)
}

/// The newer of two copies. Resource versions grow; where they cannot be compared the watch's copy is taken.
fn newer(answered: Option<Node>, seen: Option<Node>) -> Option<Node> {
    let version = |node: &Node| node.metadata.resource_version.as_ref()?.parse::<u64>().ok();
    match (answered, seen) {
        (Some(answered), Some(seen)) => match (version(&answered), version(&seen)) {
            (Some(a), Some(s)) if a >= s => Some(answered),
            _ => Some(seen),
        },
        (answered, seen) => seen.or(answered),
    }
}

/// The API has whole seconds; what is compared with its answers should too.
fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(version: &str) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n", "resourceVersion": version}})).unwrap()
    }

    #[test]
    fn the_newer_copy_counts() {
        let version = |node: Option<Node>| node.and_then(|node| node.metadata.resource_version);
        assert_eq!(version(newer(Some(node("9")), Some(node("10")))).unwrap(), "10");
        assert_eq!(version(newer(Some(node("10")), Some(node("9")))).unwrap(), "10");
        assert_eq!(version(newer(Some(node("x")), Some(node("9")))).unwrap(), "9");
        assert_eq!(version(newer(None, Some(node("9")))).unwrap(), "9");
        assert_eq!(version(newer(Some(node("9")), None)).unwrap(), "9");
        assert_eq!(newer(None, None), None);
    }

    #[test]
    fn the_watchs_copy_is_read_or_ignored() {
        let state = |json: &str| NodeState { api_node_json: json.as_bytes().to_vec(), ..NodeState::default() };
        assert_eq!(seen_by_watch(&state(""), None), None);
        assert_eq!(seen_by_watch(&state("{"), None), None);
        assert!(seen_by_watch(&state(r#"{"metadata":{"name":"n"}}"#), None).is_some());
    }

    /// Somebody has written another label, and the copy of that has no room for images.
    #[test]
    fn images_that_were_left_out_are_those_of_the_last_answer() {
        let known: Node = serde_json::from_value(json!({"metadata": {"name": "n", "resourceVersion": "9"},
            "status": {"images": [{"names": ["i"], "sizeBytes": 1}]}}))
        .unwrap();
        let mut written = known.clone();
        written.metadata.resource_version = Some("10".to_owned());
        written.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
        let without = Node { status: None, ..written.clone() };
        let mut state = NodeState {
            api_node_json: serde_json::to_vec(&without).unwrap(),
            api_node_without_images: true,
            ..NodeState::default()
        };
        let seen = seen_by_watch(&state, Some(&known));
        let current = newer(Some(known.clone()), seen).unwrap();
        assert_eq!(current, written);
        assert_eq!(status::change(&current, &written), Change::Nothing);
        assert_eq!(seen_by_watch(&state, None), None, "the server is asked");
        state.api_node_without_images = false;
        assert_eq!(seen_by_watch(&state, Some(&known)), Some(without), "it has none");
    }
}
