//! Which dead containers and sandboxes go (upstream `kuberuntime_gc.go`, `pod_container_deletor.go`). Pure: pods as the
//! runtime knows them in, ids out.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bulkhead_types::{ContainerId, PodUid, SandboxId};

use kubelet_model::pod::model::{ContainerStatus, RunState, RuntimePod, SandboxState};

/// Limits of container garbage collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GcPolicy {
    /// Containers younger than this stay.
    pub min_age: Duration,
    /// Dead instances kept of each container; None is no limit.
    pub max_per_container: Option<usize>,
    /// Dead instances kept on the node; None is no limit.
    pub max_total: Option<usize>,
}

impl Default for GcPolicy {
    fn default() -> Self {
        GcPolicy { min_age: Duration::ZERO, max_per_container: Some(1), max_total: None }
    }
}

/// A container that goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerRemoval {
    pub pod: PodUid,
    pub id: ContainerId,
    /// Its state is not known, so it is stopped first.
    pub kill_first: bool,
}

/// A sandbox that goes: it is stopped, unless it was, then removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRemoval {
    pub pod: PodUid,
    pub id: SandboxId,
}

/// Which containers a pass removes, in order: of a container the oldest instance first (upstream `kuberuntime_gc.go` removeOldestN), so
/// that what a pass leaves that is cut off is the newest, of which the pod's status is made. `removable` says which pods' containers all
/// go (their content should be removed); pass a function that is false for every pod while not all sources are ready.
pub fn containers(
    pods: &[RuntimePod],
    now: SystemTime,
    policy: GcPolicy,
    removable: impl Fn(&PodUid) -> bool,
) -> Vec<ContainerRemoval> {
    let mut plan = Vec::new();
    // Dead instances by pod and container, newest first.
    let mut groups: BTreeMap<(&PodUid, &str), Vec<&ContainerStatus>> = BTreeMap::new();
    for pod in pods {
        let Some(uid) = &pod.uid else { continue };
        let evictable = || pod.containers.iter().filter(|c| is_evictable(c, now, policy.min_age));
        if removable(uid) {
            plan.extend(evictable().rev().map(|status| removal(uid, status)));
            continue;
        }
        for status in evictable() {
            groups.entry((uid, &status.name)).or_default().push(status);
        }
    }
    if let Some(max) = policy.max_per_container {
        drop_beyond(&mut groups, max, &mut plan);
    }
    let total = |groups: &BTreeMap<_, Vec<&ContainerStatus>>| groups.values().map(Vec::len).sum::<usize>();
    if let Some(max) = policy.max_total
        && total(&groups) > max
    {
        let per_group = (max / groups.len().max(1)).max(1);
        drop_beyond(&mut groups, per_group, &mut plan);
        if total(&groups) > max {
            let mut all: Vec<(&PodUid, &ContainerStatus)> =
                groups.iter().flat_map(|((uid, _), list)| list.iter().map(move |c| (*uid, *c))).collect();
            all.sort_by(|a, b| b.1.created_at.cmp(&a.1.created_at).then_with(|| b.1.id.cmp(&a.1.id)));
            plan.extend(all.drain(max.min(all.len())..).rev().map(|(uid, status)| removal(uid, status)));
        }
    }
    plan
}

/// One that was created in the future, because the clock was set back since, is as young as can be and no younger.
fn is_evictable(status: &ContainerStatus, now: SystemTime, min_age: Duration) -> bool {
    let age = now.duration_since(status.created_at).unwrap_or_default();
    status.state != RunState::Running && age >= min_age
}

fn removal(pod: &PodUid, status: &ContainerStatus) -> ContainerRemoval {
    ContainerRemoval { pod: pod.clone(), id: status.id.clone(), kill_first: status.state == RunState::Unknown }
}

fn drop_beyond(
    groups: &mut BTreeMap<(&PodUid, &str), Vec<&ContainerStatus>>,
    keep: usize,
    plan: &mut Vec<ContainerRemoval>,
) {
    for ((uid, _), list) in groups.iter_mut() {
        // Oldest last; they go first.
        while list.len() > keep {
            if let Some(status) = list.pop() {
                plan.push(removal(uid, status));
            }
        }
    }
}

/// Not-ready sandboxes that no container refers to, the oldest first: all of a removable pod, else all but the newest. `pods` as they
/// are when the containers have been removed.
pub fn sandboxes(pods: &[RuntimePod], removable: impl Fn(&PodUid) -> bool) -> Vec<SandboxRemoval> {
    let mut result = Vec::new();
    for pod in pods {
        let Some(uid) = &pod.uid else { continue };
        let keep = usize::from(!removable(uid));
        for sandbox in pod.sandboxes.iter().skip(keep).rev() {
            let used = pod.containers.iter().any(|c| c.sandbox_id == sandbox.id);
            if sandbox.state == SandboxState::NotReady && !used {
                result.push(SandboxRemoval { pod: uid.clone(), id: sandbox.id.clone() });
            }
        }
    }
    result
}

/// Dead instances to remove right after a container died, the oldest first: of that container, all but the newest `keep`; with
/// `everything`, all dead instances of the pod (its content should be removed).
pub fn surplus_dead_containers(
    pod: &RuntimePod,
    died: &ContainerId,
    max_per_container: Option<usize>,
    everything: bool,
) -> Vec<ContainerId> {
    let exited = pod.containers.iter().filter(|c| c.state == RunState::Exited);
    if everything {
        return exited.rev().map(|c| c.id.clone()).collect();
    }
    let Some(died) = pod.containers.iter().find(|c| c.id == *died) else { return Vec::new() };
    let keep = max_per_container.map_or(usize::MAX, |max| max.max(1));
    let mut surplus: Vec<ContainerId> =
        exited.filter(|c| c.name == died.name).skip(keep).map(|c| c.id.clone()).collect();
    surplus.reverse();
    surplus
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubelet_model::fixtures::{container_status, sandbox_status, uid};
    use proptest::prelude::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// Instances given as (name, id, state, created), newest first.
    fn pod(list: &[(&str, &str, RunState, u64)]) -> RuntimePod {
        let mut pod = RuntimePod { uid: Some(uid()), ..RuntimePod::default() };
        for (name, id, state, created) in list {
            let mut status = container_status(name, *state, 1);
            status.id = ContainerId::parse(id).unwrap();
            status.created_at = at(*created);
            pod.containers.push(status);
        }
        pod
    }

    fn ids(plan: &[ContainerRemoval]) -> Vec<&str> {
        plan.iter().map(|c| c.id.as_str()).collect()
    }

    const DEAD: RunState = RunState::Exited;

    #[test]
    fn one_dead_instance_of_each_container_stays() {
        let p = [pod(&[
            ("a", "a3", DEAD, 30),
            ("b", "b1", DEAD, 25),
            ("a", "a2", DEAD, 20),
            ("a", "a1", RunState::Unknown, 10),
        ])];
        let found = containers(&p, at(100), GcPolicy::default(), |_| false);
        assert_eq!(ids(&found), ["a1", "a2"]);
        assert!(found[0].kill_first && !found[1].kill_first);
        assert_eq!(
            ids(&containers(&p, at(100), GcPolicy::default(), |_| true)),
            ["a1", "a2", "b1", "a3"],
            "the oldest first"
        );
        let young = GcPolicy { min_age: Duration::from_secs(85), ..GcPolicy::default() };
        assert!(ids(&containers(&p, at(100), young, |_| true)) == ["a1"]);
        let running = [pod(&[("a", "a2", RunState::Running, 30), ("a", "a1", DEAD, 20)])];
        assert!(containers(&running, at(100), GcPolicy::default(), |_| false).is_empty());
    }

    /// The clock was set back: what was created before that goes with its pod all the same.
    #[test]
    fn what_was_created_in_the_future_has_no_age() {
        let p = [pod(&[("a", "a2", DEAD, 4000), ("a", "a1", DEAD, 3900)])];
        let ask = |seconds, removable: bool| {
            let policy = GcPolicy { min_age: Duration::from_secs(seconds), ..GcPolicy::default() };
            containers(&p, at(400), policy, |_| removable).len()
        };
        assert_eq!([ask(0, true), ask(0, false), ask(1, true)], [2, 1, 0]);
    }

    #[test]
    fn a_limit_for_the_node() {
        let p = [pod(&[("a", "a3", DEAD, 30), ("b", "b1", DEAD, 25), ("a", "a2", DEAD, 20), ("c", "c1", DEAD, 10)])];
        let limit = |n| GcPolicy { max_per_container: None, max_total: Some(n), ..GcPolicy::default() };
        assert_eq!(ids(&containers(&p, at(100), limit(3), |_| false)), ["a2"]);
        assert_eq!(ids(&containers(&p, at(100), limit(2), |_| false)), ["a2", "c1"]);
        assert!(containers(&p, at(100), limit(4), |_| false).is_empty());
    }

    #[test]
    fn sandboxes_go_when_nothing_is_in_them() {
        let mut p = pod(&[("a", "a1", DEAD, 1)]);
        p.containers[0].sandbox_id = SandboxId::parse("s1").unwrap();
        for (id, attempt, state) in
            [("s3", 3, SandboxState::NotReady), ("s2", 2, SandboxState::NotReady), ("s1", 1, SandboxState::NotReady)]
        {
            p.sandboxes.push(sandbox_status(id, attempt, state));
        }
        let names = |p: &RuntimePod, all| {
            sandboxes(std::slice::from_ref(p), |_| all).iter().map(|s| s.id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(&p, false), ["s2"]);
        assert_eq!(names(&p, true), ["s2", "s3"]);
        p.sandboxes[0].state = SandboxState::Ready;
        assert_eq!(names(&p, true), ["s2"]);
    }

    #[test]
    fn surplus_after_a_death() {
        let p = pod(&[("a", "a3", DEAD, 30), ("b", "b1", DEAD, 25), ("a", "a2", DEAD, 20), ("a", "a1", DEAD, 10)]);
        let id = |text| ContainerId::parse(text).unwrap();
        assert_eq!(surplus_dead_containers(&p, &id("a3"), Some(1), false), [id("a1"), id("a2")]);
        assert_eq!(surplus_dead_containers(&p, &id("a3"), Some(0), false).len(), 2, "the newest tells why it ended");
        assert!(surplus_dead_containers(&p, &id("a3"), None, false).is_empty());
        assert!(surplus_dead_containers(&p, &id("gone"), Some(1), false).is_empty());
        assert_eq!(surplus_dead_containers(&p, &id("gone"), Some(1), true).len(), 4);
    }

    proptest! {
        #[test]
        fn running_containers_and_used_sandboxes_stay(
            states in prop::collection::vec((0usize..3, 0usize..4, 0u64..50), 0..20),
            all in any::<bool>(), per in prop::option::of(0usize..3), total in prop::option::of(0usize..6),
        ) {
            let kinds = [RunState::Running, RunState::Exited, RunState::Unknown, RunState::Created];
            let mut list: Vec<_> = states.iter().enumerate()
                .map(|(i, (name, kind, created))| (["a", "b", "c"][*name], format!("c{i}"), kinds[*kind], *created)).collect();
            list.sort_by_key(|l| std::cmp::Reverse(l.3));
            let list: Vec<_> = list.iter().map(|l| (l.0, l.1.as_str(), l.2, l.3)).collect();
            let mut p = pod(&list);
            p.sandboxes.push(sandbox_status("s0", 0, SandboxState::NotReady));
            let policy = GcPolicy { min_age: Duration::ZERO, max_per_container: per, max_total: total };
            let found = containers(std::slice::from_ref(&p), at(60), policy, |_| all);
            for gone in &found {
                let status = p.containers.iter().find(|c| c.id == gone.id).unwrap();
                prop_assert!(status.state != RunState::Running);
                prop_assert_eq!(gone.kill_first, status.state == RunState::Unknown);
            }
            let of = |removal: &ContainerRemoval| list.iter().find(|l| l.1 == removal.id.as_str()).copied().unwrap();
            for (at, later) in found.iter().enumerate() {
                let (later, before) = (of(later), found[..at].iter().map(of));
                prop_assert!(before.filter(|one| one.0 == later.0).all(|one| one.3 <= later.3), "{:?}", found);
            }
            let mut unique: Vec<_> = ids(&found);
            unique.sort_unstable();
            unique.dedup();
            prop_assert_eq!(unique.len(), found.len());
            let gone = sandboxes(std::slice::from_ref(&p), |_| all);
            prop_assert!(gone.is_empty() || p.containers.is_empty());
            let left = p.containers.iter().filter(|c| c.state != RunState::Running).count() - found.len();
            if all { prop_assert_eq!(left, 0); }
            if let Some(total) = total { prop_assert!(left <= total); }
        }
    }
}
