//! `kubelet.syncd.v1.RuntimeStats`: what the runtime measures of pods, passed on in our own messages (upstream
//! `pkg/kubelet/stats/cri_stats_provider.go` listPodStatsStrictlyFromCRI).

use bulkhead_cri::v1;
use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::runtime_stats_server::RuntimeStats;
use bulkhead_types::{ContainerId, SandboxId};
use futures_util::stream;
use tonic::{Request, Response, Status};

use super::api::Answer;
use super::stats::StatsApi;

/// Interfaces of one pod that are passed on.
const INTERFACES_MAX: usize = 256;

/// See the module. It shares the turn at the runtime with the figures of disks.
#[derive(Debug, Clone, Default)]
pub struct RuntimeStatsApi(pub StatsApi);

#[tonic::async_trait]
impl RuntimeStats for RuntimeStatsApi {
    type PodsStream = Answer<api::RuntimePod>;

    async fn pods(&self, _: Request<api::RuntimePodsRequest>) -> Result<Response<Self::PodsStream>, Status> {
        let request = v1::ListPodSandboxStatsRequest::default();
        let reply = self.0.ask(async |cri| cri.list_pod_sandbox_stats(request).await).await?;
        let pods: Vec<_> = reply.stats.into_iter().filter_map(pod).map(Ok).collect();
        Ok(Response::new(Box::pin(stream::iter(pods))))
    }
}

/// A sandbox with a valid id, when the runtime tells of it.
fn pod(stats: v1::PodSandboxStats) -> Option<api::RuntimePod> {
    let sandbox_id = stats.attributes?.id;
    SandboxId::parse(&sandbox_id).ok()?;
    let linux = stats.linux?;
    Some(api::RuntimePod {
        sandbox_id,
        cpu: linux.cpu.map(cpu),
        memory: linux.memory.map(memory),
        network: linux.network.map(network),
        io: linux.io.map(io),
        process_count: linux.process.and_then(|process| value(process.process_count)),
        containers: linux.containers.into_iter().filter_map(container).collect(),
    })
}

/// A container with a valid id.
pub(super) fn container(stats: v1::ContainerStats) -> Option<api::RuntimeContainer> {
    let id = stats.attributes?.id;
    ContainerId::parse(&id).ok()?;
    let swap = stats.swap.map(|swap| api::RuntimeSwap {
        time_ms: milliseconds(swap.timestamp),
        available: value(swap.swap_available_bytes),
        usage: value(swap.swap_usage_bytes),
    });
    Some(api::RuntimeContainer {
        id,
        cpu: stats.cpu.map(cpu),
        memory: stats.memory.map(memory),
        swap,
        io: stats.io.map(io),
    })
}

fn cpu(cpu: v1::CpuUsage) -> api::RuntimeCpu {
    api::RuntimeCpu {
        time_ms: milliseconds(cpu.timestamp),
        usage_nano_cores: value(cpu.usage_nano_cores),
        usage_core_nano_seconds: value(cpu.usage_core_nano_seconds),
        psi: cpu.psi.map(psi),
    }
}

fn memory(memory: v1::MemoryUsage) -> api::RuntimeMemory {
    api::RuntimeMemory {
        time_ms: milliseconds(memory.timestamp),
        available: value(memory.available_bytes),
        usage: value(memory.usage_bytes),
        working_set: value(memory.working_set_bytes),
        rss: value(memory.rss_bytes),
        page_faults: value(memory.page_faults),
        major_page_faults: value(memory.major_page_faults),
        psi: memory.psi.map(psi),
    }
}

fn io(io: v1::IoUsage) -> api::RuntimeIo {
    api::RuntimeIo { time_ms: milliseconds(io.timestamp), psi: io.psi.map(psi) }
}

fn network(network: v1::NetworkUsage) -> api::RuntimeNetwork {
    let interface = |one: v1::NetworkInterfaceUsage| api::RuntimeInterface {
        name: one.name,
        rx_bytes: value(one.rx_bytes).unwrap_or(0),
        rx_errors: value(one.rx_errors).unwrap_or(0),
        tx_bytes: value(one.tx_bytes).unwrap_or(0),
        tx_errors: value(one.tx_errors).unwrap_or(0),
    };
    let default = network.default_interface;
    // Some runtimes tell of the default one twice.
    let named = default.as_ref().map(|one| one.name.clone());
    let others = network.interfaces.into_iter().filter(|one| Some(&one.name) != named.as_ref());
    let interfaces = default.into_iter().chain(others).take(INTERFACES_MAX).map(interface).collect();
    api::RuntimeNetwork { time_ms: milliseconds(network.timestamp), interfaces }
}

fn psi(psi: v1::PsiStats) -> api::RuntimePsi {
    let line = |line: v1::PsiData| api::RuntimePsiLine {
        total: line.total,
        avg10: line.avg10,
        avg60: line.avg60,
        avg300: line.avg300,
    };
    api::RuntimePsi { some: psi.some.map(line), full: psi.full.map(line) }
}

fn value(wrapped: Option<v1::UInt64Value>) -> Option<u64> {
    wrapped.map(|wrapped| wrapped.value)
}

/// The runtime counts nanoseconds.
fn milliseconds(timestamp: i64) -> i64 {
    timestamp / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: u64) -> Option<v1::UInt64Value> {
        Some(v1::UInt64Value { value })
    }

    #[test]
    fn what_the_runtime_measures_is_passed_on_and_nothing_made_up() {
        let interface = |name: &str| v1::NetworkInterfaceUsage {
            name: name.into(),
            rx_bytes: number(5),
            ..v1::NetworkInterfaceUsage::default()
        };
        let container = |id: &str| v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes { id: id.into(), ..Default::default() }),
            memory: Some(v1::MemoryUsage { working_set_bytes: number(9), ..Default::default() }),
            ..v1::ContainerStats::default()
        };
        let linux = v1::LinuxPodSandboxStats {
            cpu: Some(v1::CpuUsage {
                timestamp: 1_795_222_061_500_000_000,
                usage_core_nano_seconds: number(7),
                ..v1::CpuUsage::default()
            }),
            network: Some(v1::NetworkUsage {
                default_interface: Some(interface("eth0")),
                interfaces: vec![interface("eth0"), interface("eth1")],
                ..v1::NetworkUsage::default()
            }),
            process: Some(v1::ProcessUsage { process_count: number(3), ..Default::default() }),
            containers: vec![container("c1"), container("../c2"), v1::ContainerStats::default()],
            ..v1::LinuxPodSandboxStats::default()
        };
        let sandbox = |id: &str| v1::PodSandboxStats {
            attributes: Some(v1::PodSandboxAttributes { id: id.into(), ..Default::default() }),
            linux: Some(linux.clone()),
        };
        let told = pod(sandbox("s1")).unwrap();
        let cpu = told.cpu.unwrap();
        assert_eq!(
            (cpu.time_ms, cpu.usage_core_nano_seconds, cpu.usage_nano_cores),
            (1_795_222_061_500, Some(7), None)
        );
        assert_eq!((told.process_count, told.memory), (Some(3), None));
        let names: Vec<_> = told.network.unwrap().interfaces.into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["eth0", "eth1"]);
        let ids: Vec<_> = told.containers.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(ids, ["c1"], "ids become parts of paths");
        assert_eq!(told.containers[0].memory.unwrap().working_set, Some(9));
        assert_eq!(pod(sandbox("../s1")), None);
        assert_eq!(pod(v1::PodSandboxStats::default()), None);
    }

    #[tokio::test]
    async fn before_the_start_nothing_is_known() {
        let answer = RuntimeStatsApi::default().pods(Request::new(api::RuntimePodsRequest {})).await;
        assert_eq!(answer.err().map(|status| status.code()), Some(tonic::Code::Unavailable));
    }
}
