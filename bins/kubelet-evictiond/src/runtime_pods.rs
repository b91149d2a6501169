//! Statistics of pods as the runtime measures them, in the place of our own: gate PodAndContainerStatsFromCRI (upstream
//! `pkg/kubelet/stats/cri_stats_provider_linux.go`). Pure.

use std::sync::Arc;

use bulkhead_ipc::evictiond::{
    ContainerStats, CpuStats, InterfaceStats, IoStats, MemoryStats, NetworkStats, PodStats, ProcessStats, Psi, PsiData,
    SwapStats,
};
use bulkhead_ipc::syncd::{
    RuntimeContainer, RuntimeCpu, RuntimeIo, RuntimeMemory, RuntimeNetwork, RuntimePod, RuntimePsi, RuntimePsiLine,
    RuntimeSwap,
};

use crate::pods::Pod;
use crate::stats;

/// Where statistics of pods come from.
#[derive(Debug, Clone, PartialEq)]
pub enum PodFigures {
    /// The gate is off, or the runtime has none.
    OurOwn,
    Told(Arc<Vec<RuntimePod>>),
    /// The runtime did not answer.
    Unknown,
}

/// Puts the runtime's figures in the place of ours, and leaves out whom it does not tell of. Disks stay: of them the runtime is asked
/// apart.
pub fn replace(measured: Vec<PodStats>, pods: &[Pod], told: &[RuntimePod]) -> Vec<PodStats> {
    let replaced = measured.into_iter().filter_map(|stats| {
        let pod = pods.iter().find(|pod| pod.uid.as_str() == stats.uid)?;
        let of_runtime = told.iter().find(|told| pod.sandbox.as_deref() == Some(told.sandbox_id.as_str()))?;
        Some(pod_stats(stats, pod, of_runtime))
    });
    replaced.collect()
}

fn pod_stats(own: PodStats, pod: &Pod, told: &RuntimePod) -> PodStats {
    let containers = own.containers.into_iter().filter_map(|own| {
        let id = &pod.containers.iter().find(|container| container.name.as_str() == own.name)?.id;
        let of_runtime = told.containers.iter().find(|container| container.id == *id)?;
        Some(container_stats(own, of_runtime))
    });
    PodStats {
        containers: containers.collect(),
        cpu: told.cpu.map(|told| cpu(told, own.cpu.as_ref().and_then(|own| own.usage_nano_cores))),
        memory: told.memory.map(memory),
        process: told.process_count.map(|count| ProcessStats { process_count: Some(count) }),
        io: told.io.map(io),
        // Of a whole pod the runtime tells none.
        swap: None,
        network: told.network.as_ref().filter(|_| !pod.host_network).map(network),
        ..own
    }
}

/// Of a container's memory upstream passes on the working set alone.
fn container_stats(own: ContainerStats, told: &RuntimeContainer) -> ContainerStats {
    let working_set = |memory: RuntimeMemory| MemoryStats {
        time: time(memory.time_ms),
        working_set_bytes: memory.working_set,
        psi: memory.psi.map(psi),
        ..MemoryStats::default()
    };
    ContainerStats {
        cpu: told.cpu.map(|told| cpu(told, own.cpu.as_ref().and_then(|own| own.usage_nano_cores))),
        memory: told.memory.map(working_set),
        swap: told.swap.map(swap),
        io: told.io.map(io),
        ..own
    }
}

/// A runtime that tells no rate leaves it to us: `own`.
pub fn cpu(told: RuntimeCpu, own: Option<u64>) -> CpuStats {
    CpuStats {
        time: time(told.time_ms),
        usage_nano_cores: told.usage_nano_cores.or(own),
        usage_core_nano_seconds: told.usage_core_nano_seconds,
        psi: told.psi.map(psi),
    }
}

pub fn memory(told: RuntimeMemory) -> MemoryStats {
    MemoryStats {
        time: time(told.time_ms),
        available_bytes: told.available,
        usage_bytes: told.usage,
        working_set_bytes: told.working_set,
        rss_bytes: told.rss,
        page_faults: told.page_faults,
        major_page_faults: told.major_page_faults,
        psi: told.psi.map(psi),
    }
}

pub fn swap(told: RuntimeSwap) -> SwapStats {
    SwapStats { time: time(told.time_ms), available_bytes: told.available, usage_bytes: told.usage }
}

pub fn io(told: RuntimeIo) -> IoStats {
    IoStats { time: time(told.time_ms), psi: told.psi.map(psi) }
}

fn network(told: &RuntimeNetwork) -> NetworkStats {
    let interfaces = told.interfaces.iter().map(|one| InterfaceStats {
        name: one.name.clone(),
        rx_bytes: one.rx_bytes,
        rx_errors: one.rx_errors,
        tx_bytes: one.tx_bytes,
        tx_errors: one.tx_errors,
        ..InterfaceStats::default()
    });
    NetworkStats { time: time(told.time_ms), interfaces: interfaces.collect() }
}

fn psi(told: RuntimePsi) -> Psi {
    let line =
        |line: RuntimePsiLine| PsiData { total: line.total, avg10: line.avg10, avg60: line.avg60, avg300: line.avg300 };
    Psi { some: told.some.map(line), full: told.full.map(line) }
}

fn time(milliseconds: i64) -> String {
    stats::time_of(milliseconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::PodContainer;
    use bulkhead_ipc::syncd::RuntimeInterface;
    use bulkhead_types::{ContainerName, Namespace, PodName, PodUid};

    fn pod(uid: &str, sandbox: &str) -> Pod {
        let container = |name: &str, id: &str| PodContainer {
            name: ContainerName::parse(name).unwrap(),
            id: id.into(),
            image: "img".into(),
            started_at: String::new(),
        };
        Pod {
            uid: PodUid::parse(uid).unwrap(),
            namespace: Namespace::parse("default").unwrap(),
            name: PodName::parse("web").unwrap(),
            started_at: String::new(),
            cgroup: None,
            sandbox: Some(sandbox.into()),
            host_network: false,
            containers: vec![container("main", "c1"), container("side", "c2")],
            volumes: Vec::new(),
            trace_parent: String::new(),
        }
    }

    fn measured(uid: &str) -> PodStats {
        let container = |name: &str| ContainerStats {
            name: name.into(),
            start_time: "2026-11-21T00:00:00Z".into(),
            cpu: Some(CpuStats { usage_nano_cores: Some(11), ..CpuStats::default() }),
            memory: Some(MemoryStats { rss_bytes: Some(1), ..MemoryStats::default() }),
            logs: Some(Default::default()),
            ..ContainerStats::default()
        };
        PodStats {
            uid: uid.into(),
            containers: vec![container("main"), container("side")],
            memory: Some(MemoryStats { usage_bytes: Some(1), ..MemoryStats::default() }),
            process: Some(ProcessStats { process_count: Some(1) }),
            swap: Some(SwapStats::default()),
            network: Some(NetworkStats::default()),
            ephemeral_storage: Some(Default::default()),
            ..PodStats::default()
        }
    }

    fn told(sandbox: &str) -> RuntimePod {
        let memory =
            RuntimeMemory { time_ms: 1_795_222_061_500, working_set: Some(9), rss: Some(8), ..Default::default() };
        let cpu = RuntimeCpu { time_ms: 1_795_222_061_500, usage_core_nano_seconds: Some(7), ..Default::default() };
        let main = RuntimeContainer { id: "c1".into(), cpu: Some(cpu), memory: Some(memory), ..Default::default() };
        RuntimePod {
            sandbox_id: sandbox.into(),
            cpu: Some(RuntimeCpu { usage_nano_cores: Some(5), ..cpu }),
            memory: Some(memory),
            network: Some(RuntimeNetwork {
                interfaces: vec![RuntimeInterface { name: "eth0".into(), rx_bytes: 3, ..Default::default() }],
                ..RuntimeNetwork::default()
            }),
            process_count: Some(4),
            containers: vec![main],
            ..RuntimePod::default()
        }
    }

    #[test]
    fn the_runtime_s_figures_and_whom_it_does_not_know() {
        let pods = [pod("u1", "s1"), pod("u2", "s2"), Pod { host_network: true, ..pod("u3", "s3") }];
        let own = ["u1", "u2", "u3"].map(measured).to_vec();
        let replaced = replace(own, &pods, &[told("s3"), told("s1"), told("old")]);
        let uids: Vec<_> = replaced.iter().map(|pod| pod.uid.as_str()).collect();
        assert_eq!(uids, ["u1", "u3"]);
        let first = &replaced[0];
        assert_eq!(first.cpu.as_ref().unwrap().usage_nano_cores, Some(5));
        assert_eq!(first.memory.as_ref().unwrap().usage_bytes, None, "not measured there, not told");
        assert_eq!(first.process.unwrap().process_count, Some(4));
        assert_eq!((&first.swap, first.ephemeral_storage.is_some()), (&None, true));
        assert_eq!(first.network.as_ref().unwrap().interfaces[0].rx_bytes, 3);
        let [main] = first.containers.as_slice() else { panic!("{:?}", first.containers) };
        let memory = main.memory.as_ref().unwrap();
        assert_eq!((memory.working_set_bytes, memory.rss_bytes), (Some(9), None));
        assert_eq!(memory.time, "2026-11-21T00:47:41.500Z");
        let cpu = main.cpu.as_ref().unwrap();
        assert_eq!(
            (cpu.usage_core_nano_seconds, cpu.usage_nano_cores),
            (Some(7), Some(11)),
            "our rate where it has none"
        );
        assert!(main.logs.is_some() && main.start_time.ends_with('Z'));
        assert_eq!(replaced[1].network, None, "the node's own interfaces");
    }
}
