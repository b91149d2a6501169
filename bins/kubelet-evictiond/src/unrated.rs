//! Whose CPU rate a sample lacks, because their counters were read for the first time.

use bulkhead_ipc::evictiond::{CpuStats, NodeStats, PodStats};

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unrated {
    pub cgroup: String,
    pub whose: Whose,
}

/// By places in the sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    Node,
    SystemContainer(usize),
    Pod(usize),
    Container { pod: usize, container: usize },
}

impl Whose {
    /// Its CPU usage in the sample.
    pub fn cpu<'a>(self, node: &'a mut NodeStats, pods: &'a mut [PodStats]) -> Option<&'a mut CpuStats> {
        let cpu = match self {
            Whose::Node => &mut node.cpu,
            Whose::SystemContainer(at) => &mut node.system_containers.get_mut(at)?.cpu,
            Whose::Pod(at) => &mut pods.get_mut(at)?.cpu,
            Whose::Container { pod, container } => &mut pods.get_mut(pod)?.containers.get_mut(container)?.cpu,
        };
        cpu.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::evictiond::{ContainerStats, SystemContainer};

    fn cpu(usage: u64) -> Option<CpuStats> {
        Some(CpuStats { usage_core_nano_seconds: Some(usage), ..CpuStats::default() })
    }

    #[test]
    fn places_in_a_sample() {
        let of_system = |usage| SystemContainer { cpu: cpu(usage), ..SystemContainer::default() };
        let container = |usage| ContainerStats { cpu: cpu(usage), ..ContainerStats::default() };
        let system_containers = vec![of_system(2), of_system(3)];
        let mut node = NodeStats { cpu: cpu(1), system_containers, ..NodeStats::default() };
        let pod = |usage, containers| PodStats { cpu: cpu(usage), containers, ..PodStats::default() };
        let mut pods = [pod(4, vec![container(5)]), pod(6, vec![container(7), ContainerStats::default()])];
        let mut of = |whose: Whose| whose.cpu(&mut node, &mut pods).and_then(|cpu| cpu.usage_core_nano_seconds);
        assert_eq!([Whose::Node, Whose::SystemContainer(1), Whose::Pod(1)].map(&mut of), [Some(1), Some(3), Some(6)]);
        assert_eq!(of(Whose::Container { pod: 1, container: 0 }), Some(7));
        for none in [
            Whose::SystemContainer(2),
            Whose::Pod(2),
            Whose::Container { pod: 1, container: 1 },
            Whose::Container { pod: 0, container: 1 },
            Whose::Container { pod: 2, container: 0 },
        ] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }
}
