//! Which pods count: those that kubelet-syncd lists, and those of the list before of which it does not know yet. After its start it
//! lists a pod when the pod's source has delivered it, and says what runs of it when it has looked, while the containers run on:
//! upstream tells of whatever the runtime has (`pkg/kubelet/stats/cri_stats_provider.go` listPodStatsPartiallyFromCRI). Pure.

use std::collections::HashMap;

use crate::pods::{Pod, PodContainer};

/// The pods out of `listed` and those that counted `before`. `sources_ready`: what was not listed has gone. `runs`: whether a
/// container, of a pod with this cgroup, still does.
pub fn known(
    mut listed: Vec<Pod>,
    before: &[Pod],
    sources_ready: bool,
    runs: impl Fn(Option<&str>, &PodContainer) -> bool,
) -> Vec<Pod> {
    let places: HashMap<_, _> = listed.iter().enumerate().map(|(at, pod)| (pod.uid.clone(), at)).collect();
    for pod in before {
        let mut place = places.get(&pod.uid).and_then(|at| listed.get_mut(*at));
        if let Some(now) = place.as_mut().filter(|now| !now.containers.is_empty()) {
            // kubelet-syncd says where the pod's cgroup is when it has prepared the pod, later than what it saw of the containers.
            now.cgroup = now.cgroup.take().or_else(|| pod.cgroup.clone());
            continue;
        }
        if place.is_none() && sources_ready {
            continue;
        }
        let mut containers = pod.containers.clone();
        containers.retain(|container| runs(pod.cgroup.as_deref(), container));
        if containers.is_empty() {
            continue;
        }
        let kept = Pod { containers, ..pod.clone() };
        match place {
            Some(place) => *place = kept,
            None => listed.push(kept),
        }
    }
    listed
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_types::{ContainerName, Namespace, PodName, PodUid};

    /// A pod whose containers have these ids.
    fn pod(uid: &str, ids: &[&str]) -> Pod {
        let container = |id: &&str| PodContainer {
            name: ContainerName::parse("c").unwrap(),
            id: (*id).into(),
            image: "img".into(),
            started_at: String::new(),
        };
        Pod {
            uid: PodUid::parse(uid).unwrap(),
            namespace: Namespace::parse("default").unwrap(),
            name: PodName::parse(uid).unwrap(),
            started_at: String::new(),
            cgroup: Some(format!("/kubepods/pod{uid}")),
            sandbox: None,
            host_network: false,
            containers: ids.iter().map(container).collect(),
            volumes: Vec::new(),
            trace_parent: String::new(),
        }
    }

    #[test]
    fn what_runs_on_while_kubelet_syncd_starts_counts() {
        let before = [pod("a", &["a1", "a2"]), pod("b", &["b1"]), pod("c", &["gone"]), pod("d", &[])];
        for (sources_ready, listed, expected) in [
            (false, vec![], vec![("a", vec!["a1", "a2"]), ("b", vec!["b1"])]),
            (true, vec![], vec![]),
            // Not looked at yet, and looked at.
            (false, vec![pod("b", &[]), pod("a", &["a3"])], vec![("b", vec!["b1"]), ("a", vec!["a3"])]),
            (true, vec![pod("b", &[]), pod("a", &["a3"])], vec![("b", vec!["b1"]), ("a", vec!["a3"])]),
            (true, vec![pod("c", &[]), pod("d", &[])], vec![("c", vec![]), ("d", vec![])]),
            (false, vec![pod("new", &["n1"])], vec![("new", vec!["n1"]), ("a", vec!["a1", "a2"]), ("b", vec!["b1"])]),
        ] {
            let runs = |cgroup: Option<&str>, container: &PodContainer| cgroup.is_some() && container.id != "gone";
            let known = known(listed, &before, sources_ready, runs);
            let told: Vec<_> = known
                .iter()
                .map(|pod| (pod.uid.as_str(), pod.containers.iter().map(|one| one.id.as_str()).collect::<Vec<_>>()))
                .collect();
            assert_eq!(told, expected, "{sources_ready}");
        }
    }

    #[test]
    fn the_cgroup_is_known_before_the_pod_is_prepared_again() {
        let before = [pod("a", &["a1"])];
        let unprepared = |ids| Pod { cgroup: None, ..pod("a", ids) };
        for (sources_ready, listed) in
            [(false, unprepared(&["a1"])), (true, unprepared(&["a1"])), (true, unprepared(&[]))]
        {
            let known = known(vec![listed], &before, sources_ready, |_, _| true);
            assert_eq!(known[0].cgroup.as_deref(), Some("/kubepods/poda"), "{sources_ready}");
        }
        let elsewhere = Pod { cgroup: Some("/other".into()), ..pod("a", &["a1"]) };
        assert_eq!(known(vec![elsewhere], &before, true, |_, _| true)[0].cgroup.as_deref(), Some("/other"));
    }
}
