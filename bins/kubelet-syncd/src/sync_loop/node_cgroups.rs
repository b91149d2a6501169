//! The pods' cgroup tree as a whole: its top in every life of kubelet-volnetd, and the values of the QoS levels after the set of
//! pods has changed (upstream `pkg/kubelet/cm/qos_container_manager_linux.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bulkhead_config::reserved::Part;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::{BackOff, Epoch, Quantity};
use kubelet_edges::volnetd::VolnetdError;
use kubelet_model::events::{EventSink as _, EventType, NodeEvent};
use kubelet_model::pod::memory_qos::{ClassRequests, QosReserved};
use kubelet_model::pod::resources::burstable_cpu_shares;
use kubelet_model::v1::Pod;
use tokio::sync::watch;
use tokio::time::Instant;

use super::node::NodeContext;
use crate::cgroups::{Capacity, kubepods_resources};

/// What the top of the tree is made of, and how far it is.
#[derive(Debug)]
pub struct NodeCgroups {
    pub capacity: Capacity,
    /// `kubeReserved` and `systemReserved` together.
    pub reserved: BTreeMap<String, Quantity>,
    /// `enforceNodeAllocatable` has `pods`.
    pub enforce_pods: bool,
    /// What no lower QoS class may use; None: gate QOSReserved is off or nothing is reserved.
    pub qos_reserved: Option<QosReserved>,
    /// The runtime's cgroup driver, as it says; empty: the configured one.
    pub driver: String,
    /// volnetd's life in which the top of the tree is in place.
    pub ready: watch::Receiver<Option<Epoch>>,
    /// The top of the tree has its limits.
    pub limited: AtomicBool,
    /// The values of the QoS levels that were written last; absent: they are not known. Held while they are written.
    pub qos_written: tokio::sync::Mutex<Option<api::SetQosRequest>>,
    /// The values that the QoS levels have are not, or may not be, the ones that were to be written.
    pub qos_unsettled: tokio::sync::Notify,
}

impl NodeCgroups {
    /// volnetd's life in which the tree is in place now.
    pub fn epoch(&self) -> Option<Epoch> {
        *self.ready.borrow()
    }

    /// Waits until volnetd can take verbs for pods; gives its epoch. `None`: the process ends.
    pub async fn wait_ready(&self) -> Option<Epoch> {
        let mut ready = self.ready.clone();
        ready.wait_for(Option::is_some).await.ok().and_then(|epoch| *epoch)
    }

    /// The limit on all pods together is wanted, and volnetd has set it.
    pub fn limits_pods(&self) -> bool {
        self.enforce_pods && self.epoch().is_some() && self.limited.load(Ordering::Relaxed)
    }
}

/// The values of the QoS levels follow this long after the pods' requests have changed.
const QOS_DEBOUNCE: Duration = Duration::from_millis(200);
/// They wait for so long again while there is nothing to write them to, or no pod to compute them from.
const QOS_WAIT: Duration = Duration::from_secs(1);

/// When the values of the QoS levels are written: at the start, after changes, when kubelet-volnetd has restarted, a minute after they
/// could not be written, and each minute where levels have limits of memory. (Upstream writes them each minute in any case.)
#[derive(Debug)]
pub struct QosTimes {
    at: Option<Instant>,
    /// Whatever was written last.
    anew: bool,
}

impl QosTimes {
    pub fn new(now: Instant) -> Self {
        QosTimes { at: Some(now + QOS_DEBOUNCE), anew: true }
    }

    /// The pods' requests have changed.
    pub fn soon(&mut self, now: Instant) {
        self.not_later_than(now + QOS_DEBOUNCE);
    }

    /// The values could not be written.
    pub fn again(&mut self, now: Instant) {
        self.not_later_than(now + ENFORCE_AGAIN);
        self.anew = true;
    }

    fn not_later_than(&mut self, at: Instant) {
        self.at = Some(self.at.map_or(at, |set| set.min(at)));
    }

    /// The values may be other ones than those that were written.
    pub fn anew_soon(&mut self, now: Instant) {
        self.soon(now);
        self.anew = true;
    }

    pub fn next(&self) -> Option<Instant> {
        self.at
    }

    /// Whether it is time. True: whatever was written last. `ready`: the pods' cgroup tree is in place, and at least one pod is desired
    /// or all sources have delivered; pods of an earlier life may run before that.
    pub fn take_due(&mut self, now: Instant, ready: bool) -> Option<bool> {
        self.at.take_if(|at| *at <= now)?;
        if !ready {
            self.at = Some(now + QOS_WAIT);
            return None;
        }
        Some(std::mem::take(&mut self.anew))
    }
}

const RETRY: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Limits that could not be set are tried again after this time, as upstream does.
const ENFORCE_AGAIN: Duration = Duration::from_secs(60);

/// Puts the top of the pods' cgroup tree in place in every life of volnetd, and says so: no pod is started before. Limits that
/// cannot be set (of the tree, or of what is reserved) hold up no pod: the node's events tell of them.
pub async fn keep_node_cgroups(node: Arc<NodeContext>, ready: watch::Sender<Option<Epoch>>) {
    let mut peer = node.volnetd.link().watch();
    let mut told = Enforced::default();
    let mut disk_told = false;
    let say = |epoch: Option<Epoch>| ready.send_if_modified(|now| std::mem::replace(now, epoch) != epoch);
    loop {
        let epoch = peer.borrow_and_update().ready_epoch();
        let mut again = false;
        match epoch {
            Some(epoch) => match ensure_node(&node).await {
                Some(reply) => {
                    node.cgroups.limited.store(reply.limits_error.is_empty(), Ordering::Relaxed);
                    say(Some(epoch));
                    let mut events: Vec<NodeEvent> =
                        limits_failed(&node.config.cgroup_root, &reply).into_iter().collect();
                    again = !events.is_empty();
                    // Once in a life of this process, as upstream at its start.
                    if !std::mem::replace(&mut disk_told, true) {
                        events.extend(memory_on_disk(&reply, node.facts().host.swap_on));
                    }
                    match enforce_reserved(&node).await {
                        Some(reply) => {
                            again |= reply.cgroups.iter().any(|cgroup| !cgroup.error.is_empty());
                            events.extend(told.events(&reply.cgroups));
                        }
                        None => again = true,
                    }
                    events.into_iter().for_each(|event| node.reporter.emit_node(event));
                }
                // volnetd went away meanwhile: its next life is waited for below.
                None => {
                    say(None);
                }
            },
            // Verbs in flight fail by themselves; new work waits.
            None => {
                say(None);
            }
        }
        tokio::select! {
            changed = peer.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(ENFORCE_AGAIN), if again => {}
        }
    }
}

/// None: volnetd went away.
async fn ensure_node(node: &NodeContext) -> Option<api::EnsureNodeReply> {
    let resources = kubepods_resources(&node.cgroups.capacity, &node.cgroups.reserved, node.cgroups.enforce_pods);
    let mut retry = BackOff::new(RETRY, RETRY_MAX);
    loop {
        let request = api::EnsureNodeRequest { kubepods: Some(resources.clone()), driver: node.cgroups.driver.clone() };
        match node.volnetd.ensure_node(&CallContext::new(), request).await {
            Ok(reply) => {
                tracing::info!(driver = reply.driver, version = reply.version, "created the pods' cgroup tree");
                return Some(reply);
            }
            Err(error @ VolnetdError::Away { .. }) => {
                node.volnetd.link().state().ready_epoch()?;
                // The link still has it: this call alone was lost, as over a stop of this process, and nothing tells of a next life.
                tracing::info!(
                    error = &error as &dyn std::error::Error,
                    "waiting for kubelet-volnetd to create the pods' cgroup tree"
                );
            }
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "failed to create the pods' cgroup tree: pods wait"
                );
            }
        }
        tokio::time::sleep(retry.pause()).await;
        node.volnetd.link().state().ready_epoch()?;
    }
}

/// None: it is not known.
async fn enforce_reserved(node: &NodeContext) -> Option<api::EnforceReservedReply> {
    match node.volnetd.enforce_reserved(&CallContext::new(), api::EnforceReservedRequest {}).await {
        Ok(reply) => Some(reply),
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to set limits of reserved cgroups");
            None
        }
    }
}

fn warning(message: String) -> NodeEvent {
    NodeEvent { kind: EventType::Warning, reason: "FailedNodeAllocatableEnforcement", message }
}

/// Upstream's event about the tree as a whole. Its success is told by kubelet-statusd.
fn limits_failed(cgroup_root: &str, reply: &api::EnsureNodeReply) -> Option<NodeEvent> {
    let error = Some(&reply.limits_error).filter(|error| !error.is_empty())?;
    let parts = cgroup_root.split('/').filter(|part| !part.is_empty()).chain(["kubepods"]);
    let name = parts.map(|part| format!("{part:?}")).collect::<Vec<_>>().join(" ");
    Some(warning(format!("Failed to update Node Allocatable Limits [{name}]: {error}")))
}

/// Upstream's event at a start on a machine whose kernel may write volumes in memory to a disk (`pkg/kubelet/cm`
/// NewContainerManager).
fn memory_on_disk(reply: &api::EnsureNodeReply, swap_on: bool) -> Option<NodeEvent> {
    let message = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) might be \
                   swapped to disk and should no longer be considered secure.";
    (swap_on && reply.tmpfs_without_noswap).then(|| NodeEvent {
        kind: EventType::Warning,
        reason: "PossibleMemoryBackedVolumesOnDisk",
        message: message.to_owned(),
    })
}

/// Which of the reserved cgroups have had their success told: once, and again after a failure.
#[derive(Debug, Default)]
struct Enforced(BTreeSet<String>);

impl Enforced {
    fn events(&mut self, cgroups: &[api::ReservedCgroup]) -> Vec<NodeEvent> {
        let event = |cgroup: &api::ReservedCgroup| {
            let part = Part::of_key(&cgroup.enforcement)?;
            if cgroup.error.is_empty() {
                let message = part.enforced(&cgroup.cgroup);
                let new = self.0.insert(cgroup.enforcement.clone());
                new.then_some(NodeEvent { kind: EventType::Normal, reason: "NodeAllocatableEnforced", message })
            } else {
                self.0.remove(&cgroup.enforcement);
                Some(warning(part.failed(&cgroup.cgroup, &cgroup.error)))
            }
        };
        cgroups.iter().filter_map(event).collect()
    }
}

/// Shares of the burstable level, and what memory the levels keep. `anew`: also where the same was written last. What could not be
/// written is unsettled; so are limits of memory, for a level that uses more than it may gets what it uses instead.
pub async fn set_qos(node: &NodeContext, pods: &[Arc<Pod>], anew: bool) {
    let pods = || pods.iter().map(|p| &**p);
    let levels = node.facts().memory_qos.map(|qos| qos.of_levels(pods()));
    if let Some(levels) = levels {
        node.metrics.memory.min.set(levels.guaranteed() as f64);
        node.metrics.memory.low.set(levels.burstable_low as f64);
    }
    let limits = node.cgroups.qos_reserved.map(|reserved| reserved.limits(ClassRequests::of(pods())));
    let (burstable_memory_limit_bytes, best_effort_memory_limit_bytes) = limits.unwrap_or_default();
    let request = api::SetQosRequest {
        burstable_cpu_shares: burstable_cpu_shares(pods()),
        kubepods_memory_min_bytes: levels.map(|levels| levels.kubepods_min),
        burstable_memory_low_bytes: levels.map(|levels| levels.burstable_low),
        burstable_memory_limit_bytes,
        best_effort_memory_limit_bytes,
    };
    if !node.config.kubelet.cgroups_per_qos() {
        return;
    }
    // One after the other: kubelet-volnetd works on calls side by side, and older values must not be those that stay.
    let mut written = node.cgroups.qos_written.lock().await;
    if *written == Some(request) && !anew {
        return;
    }
    match node.volnetd.set_qos(&CallContext::new(), request).await {
        Ok(_) => *written = Some(request),
        Err(error) => {
            *written = None;
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to update cgroups of QoS classes");
        }
    }
    if written.is_none() || limits.is_some() {
        node.cgroups.qos_unsettled.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_levels_follow_starts_and_changes() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut times = QosTimes::new(start);
        assert_eq!((times.take_due(at(199), true), times.next()), (None, Some(at(200))));
        assert_eq!((times.take_due(at(200), false), times.next()), (None, Some(at(1200))));
        times.soon(at(300));
        assert_eq!((times.take_due(at(1200), true), times.next()), (Some(true), None));
        times.soon(at(6000));
        times.soon(at(6100));
        assert_eq!((times.take_due(at(6199), true), times.next()), (None, Some(at(6200))));
        assert_eq!((times.take_due(at(6200), true), times.next()), (Some(false), None));
        times.soon(at(7000));
        times.anew_soon(at(7100));
        assert_eq!((times.take_due(at(7200), true), times.next()), (Some(true), None), "both at once");
        times.again(at(8000));
        assert_eq!((times.take_due(at(67_999), true), times.next()), (None, Some(at(68_000))), "could not be written");
        times.soon(at(9000));
        assert_eq!((times.take_due(at(9200), true), times.next()), (Some(true), None), "a change comes first");
    }

    #[test]
    fn what_became_of_limits_is_told_in_upstreams_words() {
        let cgroup = |enforcement: &str, error: &str| api::ReservedCgroup {
            enforcement: enforcement.into(),
            cgroup: "/r".into(),
            error: error.into(),
        };
        let mut told = Enforced::default();
        let mut events = |cgroups: &[api::ReservedCgroup]| -> Vec<String> {
            let shown = |e: NodeEvent| format!("{:?} {}: {}", e.kind, e.reason, e.message);
            told.events(cgroups).into_iter().map(shown).collect()
        };
        let done = "Normal NodeAllocatableEnforced: Updated limits on system reserved cgroup /r";
        assert_eq!(events(&[cgroup("system-reserved", "")]), [done]);
        assert_eq!(
            events(&[cgroup("system-reserved", ""), cgroup("kube-reserved-compressible", "gone")]),
            [
                "Warning FailedNodeAllocatableEnforcement: Failed to enforce Kube Reserved Compressible Cgroup Limits on \"/r\": gone"
            ]
        );
        assert_eq!(events(&[cgroup("system-reserved", "x"), cgroup("of-tomorrow", "")]).len(), 1);
        assert_eq!(events(&[cgroup("system-reserved", "")]), [done]);

        let reply = |error: &str| api::EnsureNodeReply { limits_error: error.into(), ..Default::default() };
        assert_eq!(limits_failed("/a", &reply("")), None);
        let message = limits_failed("/a", &reply("busy")).unwrap().message;
        assert_eq!(message, "Failed to update Node Allocatable Limits [\"a\" \"kubepods\"]: busy");
    }

    #[test]
    fn memory_that_may_be_swapped_out_is_told_of() {
        for (swap_on, tmpfs_without_noswap, told) in
            [(true, true, true), (true, false, false), (false, true, false), (false, false, false)]
        {
            let reply = api::EnsureNodeReply { tmpfs_without_noswap, ..Default::default() };
            let event = memory_on_disk(&reply, swap_on);
            assert_eq!(event.is_some(), told, "{swap_on} {tmpfs_without_noswap}");
            let text = "The tmpfs noswap option is not supported. Memory-backed volumes (e.g. secrets, emptyDirs, etc.) \
                        might be swapped to disk and should no longer be considered secure.";
            assert!(event.is_none_or(|event| event.message == text));
        }
    }
}
