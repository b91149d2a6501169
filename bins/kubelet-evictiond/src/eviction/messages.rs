//! What is said of an eviction, to the letter of upstream's (`pkg/kubelet/eviction/helpers.go` evictionMessage): it stands in statuses
//! and events, where tools look for it. Every sentence ends with a space. Pure.

use std::collections::BTreeMap;

use bulkhead_config::eviction::{Limit, Threshold};
use bulkhead_ipc::evictiond::ContainerStats;

use super::rank::Ranked;
use crate::signals::observation::{Observations, Resource};

/// Bytes of a text, and of an annotation's value: kubelet-syncd takes no more of all of it (`kubelet-syncd/src/evictions/book.rs`),
/// because a request is one message of the internal API. Upstream has no such bounds. A pod gets there with some hundred containers.
const TEXT_MAX: usize = 96 << 10;
const ANNOTATION_MAX: usize = 64 << 10;

/// Message, and annotations of the event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EvictionMessage {
    pub text: String,
    pub annotations: BTreeMap<String, String>,
}

impl EvictionMessage {
    /// What is too long for a request is cut: a pod of which there is much to tell goes all the same.
    #[must_use]
    pub fn within_bounds(mut self) -> Self {
        cut(&mut self.text, TEXT_MAX);
        for value in self.annotations.values_mut() {
            cut(value, ANNOTATION_MAX);
        }
        self
    }
}

/// Leaves the beginning of a text, whole characters, at most so many bytes.
pub fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        text.truncate((0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default());
    }
}

/// Of a pod that goes for a threshold of the node. `actionable`: all thresholds that were met, the one that counts first.
pub fn eviction(resource: Resource, pod: &Ranked, actionable: &[Threshold], seen: &Observations) -> EvictionMessage {
    let name = resource.as_str();
    let mut text = format!("The node was low on resource: {name}. ");
    let met = actionable.iter().filter(|threshold| Resource::of(threshold.signal) == resource);
    if let Some((threshold, reading)) = met.filter_map(|t| Some((t, seen.get(&t.signal)?))).next() {
        let quantity = match threshold.limit {
            Limit::Quantity(quantity) => quantity.to_string(),
            // As upstream, which writes a share of inodes and of tasks in binary units too.
            Limit::Fraction(_) => Resource::Memory.amount(threshold.limit.absolute(reading.capacity)).to_string(),
        };
        let available = resource.amount(reading.available);
        text += &format!("Threshold quantity: {quantity}, available: {available}. ");
    }
    let mut annotations = BTreeMap::new();
    let Some(stats) = &pod.stats else { return EvictionMessage { text, annotations } };
    if let (Resource::Memory, Some(request), Some(memory)) = (resource, &pod.pod.pod_memory_request_text, &stats.memory)
    {
        let used = amount(Resource::Memory, memory.working_set_bytes.unwrap_or(0));
        let pod = &pod.pod.name;
        text += &format!("Pod {pod} was using {used}, request is {request}, has larger consumption of {name}. ");
        annotations.insert("offending_pod".to_owned(), pod.clone());
        annotations.insert("offending_pod_usage".to_owned(), used);
    }
    let (mut containers, mut usages) = (Vec::new(), Vec::new());
    for one in &stats.containers {
        let Some(container) = pod.pod.containers.iter().find(|container| container.name == one.name) else { continue };
        let (request, request_text) = match resource {
            Resource::Memory => (container.memory_request, &container.memory_request_text),
            _ => (container.ephemeral_storage_request, &container.ephemeral_storage_request_text),
        };
        let Some(used) = used(resource, one).filter(|used| i64::try_from(*used).unwrap_or(i64::MAX) > request) else {
            continue;
        };
        let used = amount(resource, used);
        let container = &one.name;
        text += &format!(
            "Container {container} was using {used}, request is {request_text}, has larger consumption of {name}. "
        );
        containers.push(container.clone());
        usages.push(used);
    }
    annotations.insert("offending_containers".to_owned(), containers.join(","));
    annotations.insert("offending_containers_usage".to_owned(), usages.join(","));
    annotations.insert("starved_resource".to_owned(), name.to_owned());
    EvictionMessage { text, annotations }
}

fn amount(resource: Resource, amount: u64) -> String {
    resource.amount(i64::try_from(amount).unwrap_or(i64::MAX)).to_string()
}

/// Of inodes and tasks nothing is said.
fn used(resource: Resource, container: &ContainerStats) -> Option<u64> {
    match resource {
        Resource::Memory => container.memory.as_ref()?.working_set_bytes,
        Resource::EphemeralStorage => {
            let layer = container.rootfs.as_ref()?.used_bytes?;
            Some(layer.saturating_add(container.logs.as_ref()?.used_bytes?))
        }
        Resource::Inodes | Resource::Pids => None,
    }
}

/// Of an emptyDir with a limit.
pub fn empty_dir(name: &str, limit: &str) -> String {
    format!("Usage of EmptyDir volume {name:?} exceeds the limit {limit:?}. ")
}

/// Of all that a pod has on the node's disk.
pub fn pod_ephemeral_storage(limit: &str) -> String {
    format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ")
}

/// Of a container's logs and writable layer.
pub fn container_ephemeral_storage(name: &str, limit: &str) -> String {
    format!("Container {name} exceeded its local ephemeral storage limit {limit:?}. ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bulkhead_config::eviction::Signal;
    use bulkhead_ipc::evictiond::{FsStats, MemoryStats, PodStats};
    use bulkhead_ipc::syncd::{Candidate, CandidateContainer};
    use bulkhead_types::Quantity;

    use super::*;
    use crate::signals::observation::Observation;

    fn ranked() -> Ranked {
        let fs = |used| Some(FsStats { used_bytes: Some(used), ..FsStats::default() });
        let container = |name: &str, memory: u64| ContainerStats {
            name: name.into(),
            memory: Some(MemoryStats { working_set_bytes: Some(memory), ..MemoryStats::default() }),
            rootfs: fs(10 << 20),
            logs: fs(1 << 20),
            ..ContainerStats::default()
        };
        let named = |name: &str, request: i64, text: &str| CandidateContainer {
            name: name.into(),
            memory_request: request,
            memory_request_text: text.into(),
            ephemeral_storage_request_text: "0".into(),
            ..CandidateContainer::default()
        };
        Ranked {
            pod: Candidate {
                name: "web".into(),
                containers: vec![named("a", 64 << 20, "64Mi"), named("b", 0, "0"), named("c", 1 << 40, "1Ti")],
                ..Candidate::default()
            },
            stats: Some(PodStats {
                memory: Some(MemoryStats { working_set_bytes: Some(300 << 20), ..MemoryStats::default() }),
                containers: ["a", "b", "c", "debug"].map(|name| container(name, 100 << 20)).into(),
                ..PodStats::default()
            }),
        }
    }

    fn met(signal: Signal, limit: Limit, available: i64) -> (Vec<Threshold>, Observations) {
        let threshold = Threshold { signal, limit, grace_period: Duration::ZERO, min_reclaim: None };
        let reading = Observation { available, capacity: 10_000, at: Duration::ZERO };
        (vec![threshold], [(signal, reading)].into())
    }

    #[test]
    fn memory() {
        let hundred = Limit::Quantity(Quantity::parse("100Mi").unwrap());
        let (actionable, seen) = met(Signal::AllocatableMemoryAvailable, hundred, 98_304);
        let said = eviction(Resource::Memory, &ranked(), &actionable, &seen);
        assert_eq!(
            said.text,
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: 96Ki. \
             Container a was using 100Mi, request is 64Mi, has larger consumption of memory. \
             Container b was using 100Mi, request is 0, has larger consumption of memory. "
        );
        let annotations: Vec<_> = said.annotations.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(
            annotations,
            [
                ("offending_containers", "a,b"),
                ("offending_containers_usage", "100Mi,100Mi"),
                ("starved_resource", "memory")
            ]
        );
        let mut pod_level = ranked();
        pod_level.pod.pod_memory_request_text = Some("200Mi".into());
        let said = eviction(Resource::Memory, &pod_level, &actionable, &seen);
        assert!(
            said.text
                .contains("96Ki. Pod web was using 300Mi, request is 200Mi, has larger consumption of memory. Con"),
            "{}",
            said.text
        );
        assert_eq!(said.annotations["offending_pod_usage"], "300Mi");
    }

    #[test]
    fn what_is_said_of_a_thousand_containers_goes_into_a_request() {
        let mut ranked = ranked();
        let name = |index: usize| format!("{index:0>63}");
        let used = ranked.stats.as_ref().unwrap().containers[0].clone();
        ranked.pod.containers = (0..1200)
            .map(|index| CandidateContainer {
                name: name(index),
                memory_request_text: "0".into(),
                ..CandidateContainer::default()
            })
            .collect();
        ranked.stats.as_mut().unwrap().containers =
            (0..1200).map(|index| ContainerStats { name: name(index), ..used.clone() }).collect();
        let said = eviction(Resource::Memory, &ranked, &[], &Observations::new());
        assert!(said.text.len() > TEXT_MAX && said.annotations["offending_containers"].len() > ANNOTATION_MAX);
        let whole = said.clone();
        let said = said.within_bounds();
        assert_eq!((said.text.len(), said.annotations["offending_containers"].len()), (TEXT_MAX, ANNOTATION_MAX));
        assert!(whole.text.starts_with(&said.text));
        assert_eq!(said.annotations["starved_resource"], "memory");
        let together: usize = said.annotations.values().map(String::len).sum();
        assert!(said.text.len() + together < bulkhead_ipc::MAX_MESSAGE_BYTES - 4096);
        let mut text = "aöö".to_owned();
        cut(&mut text, 4);
        assert_eq!(text, "aö", "whole characters");
    }

    #[test]
    fn disks_and_tasks() {
        let (actionable, seen) = met(Signal::NodeFsAvailable, Limit::Fraction(0.1), 500);
        let said = eviction(Resource::EphemeralStorage, &ranked(), &actionable, &seen).text;
        assert!(
            said.starts_with(
                "The node was low on resource: ephemeral-storage. Threshold quantity: 1k, available: 500. \
                 Container a was using 11Mi, request is 0, has larger consumption of ephemeral-storage. "
            ),
            "{said}"
        );
        let (actionable, seen) = met(Signal::PidAvailable, Limit::Fraction(0.5), 12);
        let said = eviction(Resource::Pids, &ranked(), &actionable, &seen);
        assert_eq!(said.text, "The node was low on resource: pids. Threshold quantity: 5000, available: 12. ");
        assert_eq!(said.annotations["starved_resource"], "pids");
        let nothing = Ranked { stats: None, ..ranked() };
        let said = eviction(Resource::Memory, &nothing, &[], &Observations::new());
        assert_eq!((said.text.as_str(), said.annotations.len()), ("The node was low on resource: memory. ", 0));
    }
}
