//! Where a container's log is, as the runtime has it. Who asks names a pod and a container; everything else follows from what this
//! process knows of them.

use std::sync::Arc;

use bulkhead_ipc::syncd::{ContainerInstance, ContainerLogPlace, PodState};
use bulkhead_ipc::volnetd::PodLogId;
use bulkhead_types::PodUid;

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

fn places(pod: &PodState) -> impl Iterator<Item = Place> + '_ {
    let instances = pod.instances.iter().flat_map(|known| &known.containers);
    instances.filter_map(|instance| Place::of(pod, instance))
}

/// The log of this container.
pub fn find(hub: &PodHub, pod: &str, container_id: &str) -> Option<Place> {
    let pod = hub.get(&PodUid::parse(pod).ok()?)?;
    places(&pod).find(|place| place.container_id == container_id)
}

/// All of them, in pages.
pub fn pages(pods: &[Arc<PodState>]) -> Vec<Vec<ContainerLogPlace>> {
    let wire = |place: Place| ContainerLogPlace {
        pod_uid: place.pod.uid,
        namespace: place.pod.namespace,
        name: place.pod.name,
        container: place.container,
        number: place.number,
        container_id: place.container_id,
        running: place.running,
    };
    let all: Vec<ContainerLogPlace> = pods.iter().flat_map(|pod| places(pod)).map(wire).collect();
    all.chunks(PAGE).map(<[_]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::syncd::{Instances, LogPage};
    use prost::Message as _;

    fn instance(name: &str, id: &str, log_number: Option<u32>, running: bool) -> ContainerInstance {
        ContainerInstance { name: name.into(), id: id.into(), log_number, running }
    }

    #[test]
    fn a_place_is_what_the_runtime_has_and_nothing_else() {
        let hub = PodHub::default();
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
        let pages = pages(&hub.list());
        let ids: Vec<_> = pages.iter().flatten().map(|log| (log.container_id.as_str(), log.running)).collect();
        assert_eq!(ids, [("c0", false), ("c1", true)]);
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
        let pages = pages(&[Arc::new(pod)]);
        assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [PAGE, 1]);
        assert!(
            LogPage { logs: pages[0].clone(), version: "v".repeat(16), unchanged: false }.encoded_len()
                < bulkhead_ipc::MAX_MESSAGE_BYTES
        );
    }
}
