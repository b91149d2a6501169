//! What is done next (upstream `pkg/kubelet/volumemanager/reconciler`). Pure: both states in, actions out. A volume is taken back from
//! up to [`PODS_AT_ONCE`] pods at a time; every other operation on it runs alone.

use std::collections::BTreeSet;

use bulkhead_types::PodUid;
use k8s_openapi::api::core::v1::Node;
use tokio::time::Instant;

use crate::actual_state::{ActualState, ActualVolume, Expansion, Nameless, Presence};
use crate::back_off::{BackOffs, Kind};
use crate::desired_state::{DesiredState, DesiredVolume};
use crate::metrics::Operation;
use crate::pending_operations::PendingOperations;
use crate::spec::UniqueName;

/// From how many pods one volume is taken back at a time: a share that does not answer, and from which many pods have ended, leaves its
/// driver places for other volumes ([`Context::place`](crate::context::Context::place)).
pub const PODS_AT_ONCE: usize = 4;

/// What the Node's status lists, as the watch of it shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeVolumes {
    /// The API server has said what it has of the Node.
    pub known: bool,
    pub in_use: BTreeSet<String>,
    pub attached: BTreeSet<String>,
    /// Those of `in_use` that this node has left out since: a write without them may be under way, and what `in_use` says of them may be
    /// over at any time. None is wanted again before the Node was seen without it, as upstream waits until a volume that is wanted
    /// again was reported again (`MarkVolumesAsReportedInUse`).
    pub withdrawn: BTreeSet<String>,
    /// What this node has reported in a complete list and the Node does not show yet. It stays in the list until the Node shows it,
    /// wanted or not: a write without it, sent after the one with it, would else be overlooked by whoever wants it meanwhile and sees
    /// the first.
    pub told: BTreeSet<String>,
    /// What a life of this process before left out has been thought of, see [`Self::inherit`].
    pub inherited: bool,
    /// So long it counts where no complete list can be reported.
    pub inherited_until: Option<Instant>,
}

impl NodeVolumes {
    /// What the Node's status says.
    pub fn of(node: &Node) -> Self {
        let status = node.status.as_ref();
        NodeVolumes {
            known: true,
            in_use: status.iter().flat_map(|s| s.volumes_in_use.iter().flatten().cloned()).collect(),
            attached: status.iter().flat_map(|s| s.volumes_attached.iter().flatten().map(|v| v.name.clone())).collect(),
            ..NodeVolumes::default()
        }
    }

    /// The Node as it was seen next.
    #[must_use]
    pub fn followed_by(&self, mut seen: NodeVolumes) -> NodeVolumes {
        seen.withdrawn = self.withdrawn.intersection(&seen.in_use).cloned().collect();
        seen.told = self.told.difference(&seen.in_use).cloned().collect();
        (seen.inherited, seen.inherited_until) = (self.inherited, self.inherited_until);
        seen
    }

    /// Once in each life, when both states are known: what the Node lists and nothing is there of may have been left out by the life
    /// before, whose write kubelet-statusd may be sending. Of what is there no life has left anything out. Until `until`, when such a
    /// write has ended, where a source of pods that does not deliver keeps the list from being reported whole.
    pub fn inherit(&mut self, actual: &ActualState, until: Instant) {
        if self.known && !std::mem::replace(&mut self.inherited, self.known) {
            let is_there: BTreeSet<&str> = actual.volumes.keys().map(|name| name.0.as_str()).collect();
            self.withdrawn = self.in_use.iter().filter(|name| !is_there.contains(name.as_str())).cloned().collect();
            self.inherited_until = Some(until);
        }
    }

    /// What was inherited counts no longer than that.
    pub fn lapse(&mut self, now: Instant) {
        if self.inherited_until.is_some_and(|until| until <= now) {
            self.inherited_until = None;
            self.withdrawn.clear();
        }
    }

    /// The node is about to report these, which are all where `complete`; else nobody writes them: kubelet-statusd leaves what the
    /// Node lists.
    pub fn report(&mut self, names: &[String], complete: bool) {
        if complete {
            let left_out = self.in_use.iter().filter(|name| !names.contains(name)).cloned();
            self.withdrawn = left_out.collect();
            self.inherited_until = None;
            self.told = names.iter().filter(|name| !self.in_use.contains(*name)).cloned().collect();
        }
    }
}

/// Who attaches volumes to the node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Attacher {
    /// A controller: the Node's status tells of what it has attached.
    #[default]
    Controller,
    /// This node (enableControllerAttachDetach: false): what it has attached.
    Node(BTreeSet<UniqueName>),
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Where no controller does it.
    Attach {
        volume: UniqueName,
        pod: PodUid,
    },
    /// Attach is awaited already: stage where that has to be, and publish.
    Mount {
        volume: UniqueName,
        pod: PodUid,
    },
    Unmount {
        volume: UniqueName,
        pod: PodUid,
    },
    /// It has become larger than its claim says.
    Expand {
        volume: UniqueName,
        pod: PodUid,
    },
    Unstage {
        volume: UniqueName,
    },
    /// Nothing of it is left: forgotten at once.
    Forget {
        volume: UniqueName,
    },
}

impl Action {
    /// The volume that it is about, and the pod that it is for.
    pub fn key(&self) -> (&UniqueName, Option<&PodUid>) {
        match self {
            Action::Attach { volume, pod }
            | Action::Mount { volume, pod }
            | Action::Unmount { volume, pod }
            | Action::Expand { volume, pod } => (volume, Some(pod)),
            Action::Unstage { volume } | Action::Forget { volume } => (volume, None),
        }
    }

    /// The pod of upstream's key (`operation_executor.go`): volumes are taken back from their pods in parallel. A mount has none there
    /// either, but where nothing is done once a node, and such volumes have names of their own for each pod.
    pub fn scope(&self) -> Option<&PodUid> {
        match self {
            Action::Unmount { pod, .. } => Some(pod),
            Action::Attach { .. }
            | Action::Mount { .. }
            | Action::Expand { .. }
            | Action::Unstage { .. }
            | Action::Forget { .. } => None,
        }
    }

    /// The pod whose part of the volume it works on from its begin on. A mount says by itself when it comes to that.
    pub fn publishes_to(&self) -> Option<&PodUid> {
        match self {
            Action::Unmount { pod, .. } | Action::Expand { pod, .. } => Some(pod),
            Action::Attach { .. } | Action::Mount { .. } | Action::Unstage { .. } | Action::Forget { .. } => None,
        }
    }

    /// As what it waits after a failure.
    pub fn kind(&self) -> Kind {
        match self {
            Action::Attach { .. } => Kind::Attach,
            Action::Mount { .. } => Kind::Mount,
            Action::Expand { .. } => Kind::Expand,
            Action::Unmount { .. } => Kind::Unmount,
            Action::Unstage { .. } | Action::Forget { .. } => Kind::Unstage,
        }
    }

    /// As what it is measured; forgetting takes no time. `block`: it is about a block volume.
    pub fn operation(&self, block: bool) -> Option<Operation> {
        Some(match (self, block) {
            (Action::Attach { .. }, _) => Operation::Attach,
            (Action::Mount { .. }, false) => Operation::Mount,
            (Action::Mount { .. }, true) => Operation::Map,
            (Action::Unmount { .. }, false) => Operation::Unmount,
            (Action::Unmount { .. }, true) => Operation::Unmap,
            (Action::Expand { .. }, _) => Operation::Expand,
            (Action::Unstage { .. }, false) => Operation::UnmountDevice,
            (Action::Unstage { .. }, true) => Operation::UnmapDevice,
            (Action::Forget { .. }, _) => return None,
        })
    }
}

/// The pods that a start has found, until each has said what it wants (upstream's `HasAddedPods`): what was found of a volume is not
/// taken from the node before, only to be staged again for one of them.
#[derive(Debug, Default)]
pub struct Populating {
    awaited: BTreeSet<PodUid>,
    until: Option<Instant>,
}

impl Populating {
    /// They are waited for, until that time at most: one that waits for something else does not come to say it.
    pub fn begin(awaited: BTreeSet<PodUid>, until: Instant) -> Self {
        Populating { awaited, until: Some(until) }
    }

    /// The pod has said it, of all of its volumes, or has ended. True where it was the last.
    pub fn has_come(&mut self, pod: &PodUid) -> bool {
        self.awaited.remove(pod) && self.awaited.is_empty()
    }

    /// How long there is something to wait for.
    pub fn until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| !self.awaited.is_empty() && *until > now)
    }
}

/// Everything that is looked at.
#[derive(Debug)]
pub struct Look<'a> {
    pub desired: &'a DesiredState,
    pub actual: &'a ActualState,
    /// Operations that run.
    pub busy: &'a PendingOperations,
    /// Pods whose containers have ended, and whose volumes are to go.
    pub ended: &'a BTreeSet<PodUid>,
    pub back_offs: &'a BackOffs,
    pub node: &'a NodeVolumes,
    pub attacher: &'a Attacher,
    /// All sources of pods have delivered, and the actual state is of this life of kubelet-volnetd.
    pub may_unmount: bool,
    /// Until then pods are to say what they want of what was found, see [`Populating`].
    pub populating_until: Option<Instant>,
    /// Whether the actual state is known at all: before, nothing is mounted either.
    pub known: bool,
    pub now: Instant,
}

/// What is to be begun now, no two actions of which exclude each other, and when to look again where nothing happens meanwhile.
pub fn plan(look: &Look<'_>) -> (Vec<Action>, Option<Instant>) {
    let mut plan = Plan { look, due: Vec::new(), again: None };
    if !look.known {
        return (Vec::new(), None);
    }
    if look.may_unmount {
        plan.unmount();
    }
    plan.mount();
    if look.may_unmount {
        plan.unstage();
    }
    (begin(look.busy, plan.due), plan.again)
}

/// Of those that are due, with the ends of their waits, what nothing excludes. Those of one volume have their turns in order of the time
/// since which they could begin, those that have not failed first: calls that hang again and again, of pods of which there are more
/// than may be taken back from at a time, keep neither other pods nor a mount from their turn.
fn begin(busy: &PendingOperations, mut due: Vec<(Option<Instant>, Action)>) -> Vec<Action> {
    let (mut taken, mut actions) = (busy.clone(), Vec::new());
    let mut waiting: BTreeSet<UniqueName> = BTreeSet::new();
    due.sort_by_key(|(since, _)| *since);
    for (_, action) in due {
        let (volume, scope) = (action.key().0, action.scope());
        if waiting.contains(volume) {
            continue;
        }
        if taken.excludes(volume, scope) || taken.count(volume) >= PODS_AT_ONCE {
            waiting.insert(volume.clone());
            continue;
        }
        taken.begin(volume, scope, None);
        actions.push(action);
    }
    actions
}

struct Plan<'a> {
    look: &'a Look<'a>,
    /// What is to be done, with the end of its wait where it has failed before.
    due: Vec<(Option<Instant>, Action)>,
    again: Option<Instant>,
}

impl Plan<'_> {
    /// Once its wait is over, and unless one like it runs.
    fn begin(&mut self, volume: &UniqueName, pod: Option<&PodUid>, action: Action) {
        if self.look.busy.runs(volume, action.scope()) {
            return;
        }
        let (key, kind) = ((volume.clone(), pod.cloned()), action.kind());
        match self.look.back_offs.until(&key, kind, self.look.now) {
            Some(until) => self.again = Some(self.again.map_or(until, |again| again.min(until))),
            None => self.due.push((self.look.back_offs.waited_until(&key, kind), action)),
        }
    }

    fn unmount(&mut self) {
        for (name, volume) in &self.look.actual.volumes {
            // What is not a driver's goes with the pod's folder.
            if volume.device.is_none() {
                continue;
            }
            for pod in volume.pods.keys() {
                if self.look.ended.contains(pod) && self.look.desired.volume(pod, name).is_none() {
                    self.begin(name, Some(pod), Action::Unmount { volume: name.clone(), pod: pod.clone() });
                }
            }
        }
    }

    fn mount(&mut self) {
        for (uid, pod) in self.look.desired.pods.iter().filter(|(_, pod)| pod.prepared) {
            for (name, volume) in &pod.volumes {
                let there = self.look.actual.published(name, uid);
                let done = there.is_some_and(|there| there.presence == Presence::Yes && !there.host_path.is_empty());
                if done && !volume.remount && self.grows(name, volume) {
                    self.begin(name, Some(uid), Action::Expand { volume: name.clone(), pod: uid.clone() });
                    continue;
                }
                if done && !volume.remount {
                    continue;
                }
                if volume.attachable && !is_attached(self.look.attacher, self.look.node, name) {
                    if let Attacher::Node(_) = self.look.attacher {
                        self.begin(name, Some(uid), Action::Attach { volume: name.clone(), pod: uid.clone() });
                    }
                    continue;
                }
                let label = &volume.label.mount;
                if self.look.actual.volumes.get(name).is_some_and(|there| there.is_labelled_otherwise(uid, label)) {
                    continue;
                }
                self.begin(name, Some(uid), Action::Mount { volume: name.clone(), pod: uid.clone() });
            }
        }
    }

    /// A volume that a pod has only to read is not looked at.
    fn grows(&self, name: &UniqueName, volume: &DesiredVolume) -> bool {
        let Some(actual) = self.look.actual.volumes.get(name) else { return false };
        let (known, spec) = (actual.claim_size, &volume.spec);
        actual.expansion == Expansion::Possible && spec.may_grow() && known > 0 && spec.capacity > known
    }

    /// Of what nobody knows the volume of: whether a pod wants it, which makes it known, or has it as a block device.
    fn is_wanted(&self, volume: &ActualVolume) -> bool {
        if let Some(place) = &volume.disk {
            // What was found by its folder may have another name than its specification gives it.
            let desired = self.look.desired.pods.values().flat_map(|pod| pod.volumes.values());
            return desired.filter_map(|wanted| wanted.spec.place()).any(|wanted| wanted == *place);
        }
        let Some(it) = volume.nameless() else { return false };
        let desired = self.look.desired.pods.values().flat_map(|pod| pod.volumes.values());
        let mut wanted = desired.filter_map(|wanted| Some((wanted.spec.csi()?, &wanted.spec)));
        if wanted.any(|(source, spec)| it.is(&source.driver, &source.handle, spec.block, &spec.name)) {
            return true;
        }
        let has_pods = self.look.actual.volumes.values().filter(|other| !other.pods.is_empty());
        let devices = has_pods.filter_map(|other| other.device.as_ref());
        let mut blocks = devices.filter(|device| device.block);
        matches!(it, Nameless::Block(name) if blocks.any(|device| device.spec_name == name))
    }

    fn unstage(&mut self) {
        let mut published = self.look.actual.volumes.values().flat_map(|volume| volume.pods.values());
        let somebodys_is_unknown = published.any(|published| published.unreadable);
        for (name, volume) in &self.look.actual.volumes {
            // With another label than pods want it with, it is staged anew.
            let wanted = match volume.staged {
                Presence::No => self.look.desired.wants(name),
                Presence::Uncertain | Presence::Yes => self.look.desired.wants_with(name, &volume.label),
            };
            if !volume.pods.is_empty() || wanted || self.is_wanted(volume) {
                continue;
            }
            // A pod may have it: nobody knows what that pod's is, nor which pod's this is.
            if somebodys_is_unknown && volume.device.as_ref().is_some_and(|device| device.spec_name.is_empty()) {
                continue;
            }
            if let Some(until) = self.look.populating_until.filter(|_| volume.found) {
                self.again = Some(self.again.map_or(until, |again| again.min(until)));
                continue;
            }
            if volume.staged == Presence::No {
                self.begin(name, None, Action::Forget { volume: name.clone() });
            } else {
                self.begin(name, None, Action::Unstage { volume: name.clone() });
            }
        }
    }
}

/// Volumes that are still mounted with another SELinux label than a further pod wants.
pub fn labelled_otherwise(desired: &DesiredState, actual: &ActualState) -> Vec<(UniqueName, PodUid)> {
    let pods = desired.pods.iter();
    let wanted = pods.flat_map(|(uid, pod)| pod.volumes.iter().map(move |(name, volume)| (uid, name, volume)));
    let waiting = wanted.filter(|(uid, name, volume)| {
        actual.volumes.get(*name).is_some_and(|there| there.is_labelled_otherwise(uid, &volume.label.mount))
    });
    waiting.map(|(uid, name, _)| (name.clone(), uid.clone())).collect()
}

/// By a controller: it was reported in use first, and then attached, so that none detaches it under the mount.
pub fn is_attached(attacher: &Attacher, node: &NodeVolumes, volume: &UniqueName) -> bool {
    match attacher {
        Attacher::Controller => {
            let is_reported = node.in_use.contains(&volume.0) && !node.withdrawn.contains(&volume.0);
            is_reported && node.attached.contains(&volume.0)
        }
        Attacher::Node(attached) => attached.contains(volume),
    }
}

/// What the Node's status is to list, sorted. A volume of `busy` that it lists stays: the mount of a pod that has gone meanwhile may not
/// have reached kubelet-volnetd yet, so that nothing is there to be seen, and it must not be detached under it.
pub fn in_use(
    desired: &DesiredState,
    actual: &ActualState,
    node: &NodeVolumes,
    busy: &PendingOperations,
) -> Vec<String> {
    let listed: BTreeSet<String> = node.in_use.union(&node.attached).cloned().collect();
    let wanted = desired.attachable().filter(|name| !node.withdrawn.contains(&name.0));
    let busy = busy.volumes().filter(|name| node.in_use.contains(&name.0));
    let there = wanted.chain(actual.attachable(&listed)).chain(busy).map(|name| &name.0);
    let all: BTreeSet<&String> = there.chain(&node.told).collect();
    all.into_iter().cloned().collect()
}

#[cfg(test)]
#[path = "reconciler_tests.rs"]
mod tests;
