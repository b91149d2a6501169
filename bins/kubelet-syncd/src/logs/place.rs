//! Where a container's log is, as the runtime has it. Who asks names a pod and a container; everything else follows from what this
//! process knows of them.

use std::sync::Arc;

use bulkhead_ipc::syncd::{ContainerInstance, ContainerLogPlace, PodState};
use bulkhead_ipc::volnetd::PodLogId;
use bulkhead_types::{InstancePaths, Namespace, PodName, PodUid};
use kubelet_model::pod::model::{ContainerStatus, RuntimePod};
use kubelet_model::pod::names::log_number;
use parking_lot::Mutex;

use crate::hub::PodHub;

/// In one message of a list: far below its limit with the longest names there are.
const PAGE: usize = 250;

/// A container's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub pod: PodLogId,
    pub container: String,
    /// `<n>` of `<n>.log`.
    pub number: u32,
    pub container_id: String,
    pub running: bool,
}

impl Place {
    fn of(pod: &PodState, instance: &ContainerInstance) -> Option<Self> {
        Some(Place {
            pod: PodLogId { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() },
            container: instance.name.clone(),
            // A log that is elsewhere is not ours.
            number: instance.log_number?,
            container_id: instance.id.clone(),
            running: instance.running,
        })
    }
}

/// The logs of containers that run in pods that are left alone: nobody manages these pods, and they are in no hub, but they write
/// on. Upstream's `container_log_manager.go` (rotateLogs) rotates the logs of all containers that run in the runtime.
#[derive(Debug, Default)]
pub struct SparedLogs(Mutex<Vec<Place>>);

impl SparedLogs {
    /// Those that there are now; replaces what was there.
    pub fn set(&self, places: Vec<Place>) {
        *self.0.lock() = places;
    }

    /// Without the pods that are managed by now.
    fn besides(&self, hub: &PodHub) -> Vec<Place> {
        let is_known = |place: &Place| PodUid::parse(&place.pod.uid).is_ok_and(|uid| hub.get(&uid).is_some());
        self.0.lock().iter().filter(|place| !is_known(place)).cloned().collect()
    }
}

/// The logs of its containers that run, as far as they lie where this node's do.
pub fn of_spared(uid: &PodUid, pod: &RuntimePod, paths: &InstancePaths) -> Vec<Place> {
    let (Ok(namespace), Ok(name)) = (Namespace::parse(&pod.namespace), PodName::parse(&pod.name)) else {
        return Vec::new();
    };
    let folder = paths.pod_logs(&namespace, &name, uid).display().to_string();
    let place = |container: &ContainerStatus| {
        Some(Place {
            pod: PodLogId { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: uid.to_string() },
            container: container.name.clone(),
            number: log_number(&container.log_path, &folder, &container.name)?,
            container_id: container.id.to_string(),
            running: true,
        })
    };
    pod.running().filter_map(place).collect()
}

fn places(pod: &PodState) -> impl Iterator<Item = Place> + '_ {
    let instances = pod.instances.iter().flat_map(|known| &known.containers);
    instances.filter_map(|instance| Place::of(pod, instance))
}

/// The log of this container.
pub fn find(hub: &PodHub, spared: &SparedLogs, pod: &str, container_id: &str) -> Option<Place> {
    match hub.get(&PodUid::parse(pod).ok()?) {
        Some(pod) => places(&pod).find(|place| place.container_id == container_id),
        None => {
            let mut spared = spared.besides(hub).into_iter();
            spared.find(|place| place.pod.uid == pod && place.container_id == container_id)
        }
    }
}

/// All of them, in pages.
pub fn pages(hub: &PodHub, spared: &SparedLogs) -> Vec<Vec<ContainerLogPlace>> {
    pages_of(&hub.list(), spared.besides(hub))
}

fn pages_of(pods: &[Arc<PodState>], spared: Vec<Place>) -> Vec<Vec<ContainerLogPlace>> {
    let wire = |place: Place| ContainerLogPlace {
        pod_uid: place.pod.uid,
        namespace: place.pod.namespace,
        name: place.pod.name,
        container: place.container,
        number: place.number,
        container_id: place.container_id,
        running: place.running,
    };
    let all: Vec<ContainerLogPlace> = pods.iter().flat_map(|pod| places(pod)).chain(spared).map(wire).collect();
    all.chunks(PAGE).map(<[_]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_config::NodeConfig;
    use bulkhead_ipc::syncd::{Instances, LogPage};
    use kubelet_model::fixtures::container_status;
    use kubelet_model::pod::model::RunState;
    use prost::Message as _;

    fn instance(name: &str, id: &str, log_number: Option<u32>, running: bool) -> ContainerInstance {
        ContainerInstance { name: name.into(), id: id.into(), log_number, running }
    }

    #[test]
    fn a_place_is_what_the_runtime_has_and_nothing_else() {
        let (hub, spared) = (PodHub::default(), SparedLogs::default());
        let find = |hub: &PodHub, pod: &str, container: &str| find(hub, &spared, pod, container);
        let uid = PodUid::parse("u1").unwrap();
        hub.modify(&uid, |pod| (pod.namespace, pod.name) = ("default".into(), "web".into()));
        assert_eq!(find(&hub, "u1", "c0"), None, "nobody has looked yet");
        let containers = vec![
            instance("main", "c0", Some(0), false),
            instance("main", "c1", Some(1), true),
            instance("side", "s0", None, true),
        ];
        hub.modify(&uid, |pod| pod.instances = Some(Instances { containers }));
        let place = find(&hub, "u1", "c1").unwrap();
        assert_eq!((place.container.as_str(), place.number, place.running), ("main", 1, true));
        assert_eq!((place.pod.namespace.as_str(), place.pod.name.as_str()), ("default", "web"));
        for (pod, container) in [("u1", "s0"), ("u1", "main"), ("u1", ""), ("u2", "c1"), ("../u1", "c1")] {
            assert_eq!(find(&hub, pod, container), None, "{pod} {container}");
        }
        let pages = pages(&hub, &spared);
        let ids: Vec<_> = pages.iter().flatten().map(|log| (log.container_id.as_str(), log.running)).collect();
        assert_eq!(ids, [("c0", false), ("c1", true)]);
    }

    #[test]
    fn what_runs_in_a_pod_that_is_left_alone_has_its_place_until_the_pod_is_managed() {
        let uid = PodUid::parse("u1").unwrap();
        let paths = NodeConfig::for_tests(std::path::Path::new("/t")).paths.clone();
        let (namespace, name) = (Namespace::parse("kube-system").unwrap(), PodName::parse("web-n").unwrap());
        let folder = paths.pod_logs(&namespace, &name, &uid).display().to_string();
        let container =
            |name: &str, state, log_path: String| ContainerStatus { log_path, ..container_status(name, state, 0) };
        let pod = RuntimePod {
            uid: Some(uid.clone()),
            namespace: namespace.to_string(),
            name: name.to_string(),
            containers: vec![
                container("main", RunState::Running, format!("{folder}/main/3.log")),
                container("dead", RunState::Exited, format!("{folder}/dead/0.log")),
                container("elsewhere", RunState::Running, "/var/log/0.log".to_owned()),
            ],
            ..RuntimePod::default()
        };
        let (hub, spared) = (PodHub::default(), SparedLogs::default());
        spared.set(of_spared(&uid, &pod, &paths));
        let place = find(&hub, &spared, "u1", "main-id").unwrap();
        assert_eq!((place.container.as_str(), place.number, place.running), ("main", 3, true));
        assert_eq!((place.pod.namespace.as_str(), place.pod.name.as_str()), ("kube-system", "web-n"));
        for (pod, container) in [("u1", "dead-id"), ("u1", "elsewhere-id"), ("u2", "main-id")] {
            assert_eq!(find(&hub, &spared, pod, container), None, "{pod} {container}");
        }
        let listed = |hub: &PodHub| -> Vec<_> {
            pages(hub, &spared).into_iter().flatten().map(|log| log.container_id).collect()
        };
        assert_eq!(listed(&hub), ["main-id"]);
        hub.modify(&uid, |state| state.name = name.to_string());
        assert!(listed(&hub).is_empty() && find(&hub, &spared, "u1", "main-id").is_none(), "a manifest has adopted it");
    }

    #[test]
    fn a_page_fits_into_a_message() {
        let containers = (0..PAGE + 1).map(|n| instance(&"c".repeat(63), &format!("{n:064}"), Some(u32::MAX), true));
        let pod = PodState {
            uid: "u".repeat(63),
            namespace: "n".repeat(63),
            name: "p".repeat(253),
            instances: Some(Instances { containers: containers.collect() }),
            ..PodState::default()
        };
        let pages = pages_of(&[Arc::new(pod)], Vec::new());
        assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [PAGE, 1]);
        assert!(
            LogPage { logs: pages[0].clone(), version: "v".repeat(16), unchanged: false }.encoded_len()
                < bulkhead_ipc::MAX_MESSAGE_BYTES
        );
    }
}
