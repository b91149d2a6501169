//! Containers without a cgroup on this machine (those of Kata and of other virtual machines, or of a runtime that puts them
//! elsewhere): what they use is what the runtime tells (upstream `pkg/kubelet/stats/cri_stats_provider.go` makeContainerStats,
//! whose figures stand where cAdvisor has none). Pure.

use std::collections::HashSet;

use bulkhead_ipc::evictiond::{ContainerStats, PodStats};
use bulkhead_ipc::syncd::RuntimeCpu;

use crate::rates::Rates;
use crate::runtime::{ContainerFigures, RuntimeDisks};
use crate::{runtime_pods, stats};

/// One of them, by its places in the sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Groupless {
    pub id: String,
    pub pod: usize,
    pub container: usize,
}

/// Gives each of them the runtime's figures, and gives a pod of which nothing was measured what its containers use together. Who is not
/// told of goes, as with upstream: it has ended, most likely; with `all_stay` somebody else decides on that. Gives the ids of those that
/// are told of. `rates`: of earlier answers, for a runtime that tells none.
pub fn fill(
    pods: &mut [PodStats],
    groupless: &[Groupless],
    told: Option<&RuntimeDisks>,
    rates: &mut Rates,
    all_stay: bool,
) -> HashSet<String> {
    let mut known = HashSet::new();
    rates.begin();
    // The last first: places of those before stay as they are when one goes.
    for Groupless { id, pod, container } in groupless.iter().rev() {
        let Some(containers) = pods.get_mut(*pod).map(|pod| &mut pod.containers) else { continue };
        let figures = told.and_then(|told| told.figures.get(id));
        let is_told = figures.is_some() || told.is_some_and(|told| told.layers.contains_key(id));
        if let Some((stats, figures)) = containers.get_mut(*container).zip(figures) {
            put(stats, *figures, id, rates);
        }
        if is_told {
            known.insert(id.clone());
        } else if !all_stay && *container < containers.len() {
            containers.remove(*container);
        }
    }
    rates.end();
    for pod in pods.iter_mut().filter(|pod| pod.cpu.is_none() && pod.memory.is_none()) {
        (pod.cpu, pod.memory) = stats::of_containers(&pod.containers);
        pod.swap = pod.swap.take().or_else(|| stats::swap_of_containers(&pod.containers));
    }
    known
}

fn put(stats: &mut ContainerStats, told: ContainerFigures, id: &str, rates: &mut Rates) {
    stats.cpu = told.cpu.map(|cpu| runtime_pods::cpu(cpu, rate(cpu, id, rates)));
    stats.memory = told.memory.map(runtime_pods::memory);
    stats.swap = told.swap.map(runtime_pods::swap);
    stats.io = told.io.map(runtime_pods::io);
}

/// From this answer and an earlier one, by the runtime's clock (upstream getAndUpdateContainerUsageNanoCores).
fn rate(told: RuntimeCpu, id: &str, rates: &mut Rates) -> Option<u64> {
    let at = u64::try_from(told.time_ms).ok()?.saturating_mul(1_000_000);
    rates.observe(id, at, told.usage_core_nano_seconds?)
}

#[cfg(test)]
mod tests {
    use bulkhead_ipc::evictiond::{CpuStats, MemoryStats};
    use bulkhead_ipc::syncd::{DiskUsage, RuntimeMemory, RuntimeSwap};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn cpu(seconds: i64, used: u64) -> RuntimeCpu {
        RuntimeCpu { time_ms: seconds * 1000, usage_core_nano_seconds: Some(used), ..RuntimeCpu::default() }
    }

    fn told(containers: &[(&str, ContainerFigures)]) -> RuntimeDisks {
        let figures = containers.iter().map(|(id, figures)| ((*id).to_owned(), *figures)).collect();
        RuntimeDisks { figures, ..RuntimeDisks::default() }
    }

    /// What the runtime says of CPU alone.
    fn of_cpu(cpu: RuntimeCpu) -> ContainerFigures {
        ContainerFigures { cpu: Some(cpu), ..ContainerFigures::default() }
    }

    fn container(name: &str) -> ContainerStats {
        ContainerStats { name: name.into(), ..ContainerStats::default() }
    }

    fn measured(name: &str, used: u64) -> ContainerStats {
        let cpu = CpuStats { usage_core_nano_seconds: Some(used), ..CpuStats::default() };
        let memory = MemoryStats { working_set_bytes: Some(used), ..MemoryStats::default() };
        ContainerStats { cpu: Some(cpu), memory: Some(memory), ..container(name) }
    }

    fn pod(containers: Vec<ContainerStats>) -> PodStats {
        PodStats { containers, ..PodStats::default() }
    }

    fn lacks(id: &str, pod: usize, container: usize) -> Groupless {
        Groupless { id: id.into(), pod, container }
    }

    #[test]
    fn all_that_the_runtime_tells_and_no_more() {
        let memory = RuntimeMemory {
            time_ms: 1_795_222_061_500,
            available: Some(1),
            usage: Some(2),
            working_set: Some(3),
            rss: Some(4),
            page_faults: Some(5),
            major_page_faults: Some(6),
            psi: None,
        };
        let swap = RuntimeSwap { time_ms: 1_795_222_061_500, available: Some(7), usage: Some(8) };
        let all = ContainerFigures { memory: Some(memory), swap: Some(swap), ..of_cpu(cpu(1_795_222_061, 9)) };
        let mut pods = [pod(vec![container("all"), container("cpu"), container("layer")])];
        let mut told = told(&[("c1", all), ("c2", of_cpu(cpu(1, 9)))]);
        told.layers.insert("c3".into(), DiskUsage::default());
        let groupless = [lacks("c1", 0, 0), lacks("c2", 0, 1), lacks("c3", 0, 2)];
        let known = fill(&mut pods, &groupless, Some(&told), &mut Rates::default(), false);
        assert_eq!(known, HashSet::from(["c1", "c2", "c3"].map(str::to_owned)));
        let [all, of_cpu, layer] = pods[0].containers.as_slice() else { panic!("{pods:?}") };
        let expected = MemoryStats {
            time: "2026-11-21T00:47:41.500Z".into(),
            available_bytes: Some(1),
            usage_bytes: Some(2),
            working_set_bytes: Some(3),
            rss_bytes: Some(4),
            page_faults: Some(5),
            major_page_faults: Some(6),
            psi: None,
        };
        assert_eq!(all.memory, Some(expected));
        let swap = all.swap.as_ref().unwrap();
        assert_eq!((swap.available_bytes, swap.usage_bytes), (Some(7), Some(8)));
        let cpu = all.cpu.as_ref().unwrap();
        assert_eq!((cpu.time.as_str(), cpu.usage_core_nano_seconds), ("2026-11-21T00:47:41.000Z", Some(9)));
        assert!(of_cpu.cpu.is_some() && of_cpu.memory.is_none() && of_cpu.swap.is_none(), "0 would be a statement");
        assert_eq!(layer, &container("layer"));
    }

    #[test]
    fn who_has_a_cgroup_stays_as_measured_and_who_is_not_told_of_goes() {
        let figures = of_cpu(cpu(1, 100));
        for (told, all_stay, expected) in [
            (Some(told(&[("c0", figures), ("c2", figures)])), false, vec![("own", Some(1)), ("b", Some(100))]),
            (Some(told(&[("c1", figures)])), false, vec![("own", Some(1)), ("a", Some(100))]),
            (Some(told(&[])), false, vec![("own", Some(1))]),
            (None, false, vec![("own", Some(1))]),
            (Some(told(&[("c2", figures)])), true, vec![("own", Some(1)), ("a", None), ("b", Some(100))]),
            (None, true, vec![("own", Some(1)), ("a", None), ("b", None)]),
        ] {
            let mut pods = [pod(Vec::new()), pod(vec![measured("own", 1), container("a"), container("b")])];
            // The last two are in no sample.
            let groupless = [lacks("c1", 1, 1), lacks("c2", 1, 2), lacks("c9", 1, 9), lacks("c1", 7, 0)];
            fill(&mut pods, &groupless, told.as_ref(), &mut Rates::default(), all_stay);
            let used = |one: &ContainerStats| one.cpu.as_ref().and_then(|cpu| cpu.usage_core_nano_seconds);
            let shown: Vec<_> = pods[1].containers.iter().map(|one| (one.name.as_str(), used(one))).collect();
            assert_eq!(shown, expected, "{told:?} {all_stay}");
        }
    }

    #[test]
    fn a_rate_of_two_answers_where_the_runtime_tells_none() {
        let mut rates = Rates::default();
        let mut rate = |told_of: RuntimeCpu| {
            let mut pods = [pod(vec![container("a")])];
            let told = told(&[("c1", of_cpu(told_of))]);
            fill(&mut pods, &[lacks("c1", 0, 0)], Some(&told), &mut rates, false);
            pods[0].containers[0].cpu.as_ref().unwrap().usage_nano_cores
        };
        assert_eq!(rate(cpu(10, SECOND)), None, "the first");
        assert_eq!(rate(cpu(10, SECOND)), None, "the same answer, for another sample");
        assert_eq!(rate(cpu(20, 6 * SECOND)), Some(SECOND / 2), "5 s of CPU in 10 s");
        assert_eq!(rate(cpu(20, 6 * SECOND)), Some(SECOND / 2));
        assert_eq!(rate(RuntimeCpu { usage_nano_cores: Some(7), ..cpu(30, 6 * SECOND) }), Some(7), "it tells one");
        assert_eq!(rate(cpu(40, SECOND)), None, "its counter went back");
        assert_eq!(rate(cpu(35, 2 * SECOND)), None, "so did its clock");
        assert_eq!(rate(cpu(36, 2 * SECOND)), Some(0));
        assert_eq!(rate(cpu(-1, 2 * SECOND)), None);
        fill(&mut [], &[], None, &mut rates, false);
        assert!(rates.is_empty(), "what is gone is forgotten");
    }

    #[test]
    fn a_pod_without_a_cgroup_uses_what_its_containers_do() {
        let swap = |used| Some(RuntimeSwap { usage: Some(used), ..RuntimeSwap::default() });
        let memory = |used| Some(RuntimeMemory { working_set: Some(used), ..RuntimeMemory::default() });
        let figures = |used| ContainerFigures { memory: memory(used), swap: swap(used), ..of_cpu(cpu(1, used)) };
        let of_group = MemoryStats { working_set_bytes: Some(1000), ..MemoryStats::default() };
        let mut pods = [
            pod(vec![measured("own", 1), container("a"), container("b")]),
            PodStats { memory: Some(of_group.clone()), ..pod(vec![container("c")]) },
            pod(Vec::new()),
        ];
        let groupless = [lacks("c1", 0, 1), lacks("c2", 0, 2), lacks("c3", 1, 0)];
        let told = told(&[("c1", figures(10)), ("c2", figures(20)), ("c3", figures(40))]);
        fill(&mut pods, &groupless, Some(&told), &mut Rates::default(), false);
        let sums = |pod: &PodStats| {
            (
                pod.cpu.as_ref().and_then(|cpu| cpu.usage_core_nano_seconds),
                pod.memory.as_ref().and_then(|memory| memory.working_set_bytes),
                pod.swap.as_ref().and_then(|swap| swap.usage_bytes),
            )
        };
        assert_eq!(sums(&pods[0]), (Some(31), Some(31), Some(30)));
        assert_eq!((sums(&pods[1]), &pods[1].memory), ((None, Some(1000), None), &Some(of_group)), "its own");
        assert_eq!(sums(&pods[2]), (None, None, None));
    }
}
