//! `/stats/summary`: the JSON that upstream serves (`k8s.io/kubelet/pkg/apis/stats/v1alpha1`), fields in its order and
//! indented as it does. Unknown figures are absent. Times have whole seconds.

mod form;

use std::time::Duration;

use bulkhead_ipc::evictiond as stats;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde::{Serialize, Serializer};

use crate::peers::Peers;
use crate::server::answer::{self, Answer};

/// How long a form may take to come.
const FORM_TIME: Duration = Duration::from_secs(10);
/// The interface whose counters stand for the whole network (upstream `pkg/kubelet/stats/helper.go`).
const DEFAULT_INTERFACE: &str = "eth0";

/// `/stats/summary`.
pub async fn serve(peers: &Peers, request: Request<Incoming>) -> Answer {
    let small = match tokio::time::timeout(FORM_TIME, form::read(request)).await {
        Ok(Ok(parameters)) => only_cpu_and_memory(&parameters),
        Ok(Err(problem)) => return failed(&format!("parse form failed: {problem}")),
        Err(_) => return failed("parse form failed: the body does not come"),
    };
    match peers.summary(small).await {
        // No pods would say that there are none.
        Ok((node, _)) if !node.pods_known => {
            failed("failed to list pod stats: kubelet-syncd has not told which there are")
        }
        Ok((node, pods)) => answer::json(document(&node, &pods, small)),
        Err(status) => {
            tracing::warn!(code = ?status.code(), "failed to get statistics from kubelet-evictiond: {}", status.message());
            failed(&format!("failed to get statistics: {}", status.message()))
        }
    }
}

fn failed(problem: &str) -> Answer {
    answer::text(StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: {problem}"))
}

/// Upstream: only when it is there exactly once and says "true".
fn only_cpu_and_memory(parameters: &[(String, String)]) -> bool {
    let mut values = parameters.iter().filter(|(key, _)| key == "only_cpu_and_memory");
    values.next().is_some_and(|(_, value)| value == "true") && values.next().is_none()
}

/// The whole document. `only_cpu_and_memory` leaves out file systems, networks, processes and volumes.
pub fn document(node: &stats::NodeStats, pods: &[stats::PodStats], only_cpu_and_memory: bool) -> Vec<u8> {
    let all = !only_cpu_and_memory;
    let document = Document { node: Node::of(node, all), pods: pods.iter().map(|pod| Pod::of(pod, all)).collect() };
    let mut out = Vec::with_capacity(4096 + pods.len() * 6144);
    let format = serde_json::ser::PrettyFormatter::with_indent(b" ");
    // Neither memory nor these types can fail to be written.
    if let Err(error) = document.serialize(&mut serde_json::Serializer::with_formatter(&mut out, format)) {
        tracing::error!(%error, "failed to encode statistics");
    }
    out
}

/// RFC 3339 with whole seconds; null for no time, as Go writes its zero time.
#[derive(Debug)]
struct Time<'a>(&'a str);

impl Serialize for Time<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let whole = self.0.parse::<jiff::Timestamp>().and_then(|at| jiff::Timestamp::from_second(at.as_second()));
        match whole {
            Ok(at) => serializer.collect_str(&at),
            Err(_) => serializer.serialize_none(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    node: Node<'a>,
    pods: Vec<Pod<'a>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node<'a> {
    node_name: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system_containers: Vec<Container<'a>>,
    start_time: Time<'a>,
    #[serde(flatten)]
    usage: Usage<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Network<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fs: Option<Fs<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<Runtime<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rlimit: Option<Rlimit<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<Swap<'a>>,
}

impl<'a> Node<'a> {
    fn of(node: &'a stats::NodeStats, all: bool) -> Self {
        let system = |one: &'a stats::SystemContainer| Container {
            name: &one.name,
            start_time: Time(&one.start_time),
            usage: Usage::of(one.cpu.as_ref(), one.memory.as_ref(), one.io.as_ref().filter(|_| all)),
            rootfs: None,
            logs: None,
            swap: one.swap.as_ref().map(Swap::of),
        };
        let runtime = Runtime {
            image_fs: node.image_fs.as_ref().map(Fs::of),
            container_fs: node.container_fs.as_ref().map(Fs::of),
        };
        let rlimit = || Rlimit { time: Time(&node.rlimit_time), maxpid: node.max_pid, curproc: node.running_processes };
        Node {
            node_name: &node.node_name,
            system_containers: node.system_containers.iter().map(system).collect(),
            start_time: Time(&node.start_time),
            usage: Usage::of(node.cpu.as_ref(), node.memory.as_ref(), node.io.as_ref().filter(|_| all)),
            network: node.network.as_ref().filter(|_| all).map(Network::of),
            fs: node.node_fs.as_ref().filter(|_| all).map(Fs::of),
            runtime: (all && (runtime.image_fs.is_some() || runtime.container_fs.is_some())).then_some(runtime),
            rlimit: all.then(rlimit),
            swap: node.swap.as_ref().map(Swap::of),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Runtime<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    image_fs: Option<Fs<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_fs: Option<Fs<'a>>,
}

#[derive(Debug, Serialize)]
struct Rlimit<'a> {
    time: Time<'a>,
    maxpid: u64,
    curproc: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Pod<'a> {
    pod_ref: PodRef<'a>,
    start_time: Time<'a>,
    containers: Vec<Container<'a>>,
    #[serde(flatten)]
    usage: Usage<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Network<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    volume: Vec<Volume<'a>>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    ephemeral_storage: Option<Fs<'a>>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    process_stats: Option<Processes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<Swap<'a>>,
}

impl<'a> Pod<'a> {
    fn of(pod: &'a stats::PodStats, all: bool) -> Self {
        let container = |one: &'a stats::ContainerStats| Container {
            name: &one.name,
            start_time: Time(&one.start_time),
            usage: Usage::of(one.cpu.as_ref(), one.memory.as_ref(), one.io.as_ref().filter(|_| all)),
            rootfs: one.rootfs.as_ref().filter(|_| all).map(Fs::of),
            logs: one.logs.as_ref().filter(|_| all).map(Fs::of),
            swap: one.swap.as_ref().map(Swap::of),
        };
        let volume = |volume: &'a stats::VolumeStats| {
            let (name, namespace) = (volume.claim_name.as_str(), volume.claim_namespace.as_str());
            let pvc_ref = (!name.is_empty()).then_some(ClaimRef { name, namespace });
            let health = volume.abnormal.map(|abnormal| Health { abnormal });
            Some(Volume { fs: Fs::of(volume.fs.as_ref()?), name: &volume.name, pvc_ref, health })
        };
        let count = pod.process.as_ref().and_then(|process| process.process_count);
        Pod {
            pod_ref: PodRef { name: &pod.name, namespace: &pod.namespace, uid: &pod.uid },
            start_time: Time(&pod.start_time),
            containers: pod.containers.iter().map(container).collect(),
            usage: Usage::of(pod.cpu.as_ref(), pod.memory.as_ref(), pod.io.as_ref().filter(|_| all)),
            network: pod.network.as_ref().filter(|_| all).map(Network::of),
            volume: if all { pod.volumes.iter().filter_map(volume).collect() } else { Vec::new() },
            ephemeral_storage: pod.ephemeral_storage.as_ref().filter(|_| all).map(Fs::of),
            process_stats: count.filter(|_| all).map(|process_count| Processes { process_count }),
            swap: pod.swap.as_ref().map(Swap::of),
        }
    }
}

#[derive(Debug, Serialize)]
struct PodRef<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
}

#[derive(Debug, Serialize)]
struct Processes {
    process_count: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Container<'a> {
    name: &'a str,
    start_time: Time<'a>,
    #[serde(flatten)]
    usage: Usage<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rootfs: Option<Fs<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logs: Option<Fs<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<Swap<'a>>,
}

#[derive(Debug, Serialize)]
struct Volume<'a> {
    #[serde(flatten)]
    fs: Fs<'a>,
    name: &'a str,
    #[serde(rename = "pvcRef", skip_serializing_if = "Option::is_none")]
    pvc_ref: Option<ClaimRef<'a>>,
    #[serde(rename = "volumeHealthStats", skip_serializing_if = "Option::is_none")]
    health: Option<Health>,
}

/// What a driver says of its volume's condition.
#[derive(Debug, Serialize)]
struct Health {
    abnormal: bool,
}

#[derive(Debug, Serialize)]
struct ClaimRef<'a> {
    name: &'a str,
    namespace: &'a str,
}

#[derive(Debug, Serialize)]
struct Usage<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<Cpu<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    io: Option<Io<'a>>,
}

impl<'a> Usage<'a> {
    fn of(
        cpu: Option<&'a stats::CpuStats>,
        memory: Option<&'a stats::MemoryStats>,
        io: Option<&'a stats::IoStats>,
    ) -> Self {
        Usage {
            cpu: cpu.map(|cpu| Cpu {
                time: Time(&cpu.time),
                usage_nano_cores: cpu.usage_nano_cores,
                usage_core_nano_seconds: cpu.usage_core_nano_seconds,
                psi: cpu.psi.as_ref().map(Psi::of),
            }),
            memory: memory.map(|memory| Memory {
                time: Time(&memory.time),
                available_bytes: memory.available_bytes,
                usage_bytes: memory.usage_bytes,
                working_set_bytes: memory.working_set_bytes,
                rss_bytes: memory.rss_bytes,
                page_faults: memory.page_faults,
                major_page_faults: memory.major_page_faults,
                psi: memory.psi.as_ref().map(Psi::of),
            }),
            io: io.map(|io| Io { time: Time(&io.time), psi: io.psi.as_ref().map(Psi::of) }),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Cpu<'a> {
    time: Time<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage_nano_cores: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage_core_nano_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    psi: Option<Psi>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Memory<'a> {
    time: Time<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rss_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    major_page_faults: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    psi: Option<Psi>,
}

#[derive(Debug, Serialize)]
struct Io<'a> {
    time: Time<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    psi: Option<Psi>,
}

#[derive(Debug, Serialize)]
struct Psi {
    full: PsiData,
    some: PsiData,
}

impl Psi {
    fn of(psi: &stats::Psi) -> Self {
        let line = |line: Option<stats::PsiData>| {
            let line = line.unwrap_or_default();
            PsiData { total: line.total, avg10: Go(line.avg10), avg60: Go(line.avg60), avg300: Go(line.avg300) }
        };
        Psi { full: line(psi.full), some: line(psi.some) }
    }
}

#[derive(Debug, Serialize)]
struct PsiData {
    total: u64,
    avg10: Go,
    avg60: Go,
    avg300: Go,
}

/// A float as Go's JSON has it: whole numbers without a fraction.
#[derive(Debug)]
struct Go(f64);

impl Serialize for Go {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole percentage fits")]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.fract() == 0.0 && (0.0..=1e6).contains(&self.0) {
            serializer.serialize_u64(self.0 as u64)
        } else {
            serializer.serialize_f64(self.0)
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Swap<'a> {
    time: Time<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap_available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap_usage_bytes: Option<u64>,
}

impl<'a> Swap<'a> {
    fn of(swap: &'a stats::SwapStats) -> Self {
        Swap { time: Time(&swap.time), swap_available_bytes: swap.available_bytes, swap_usage_bytes: swap.usage_bytes }
    }
}

#[derive(Debug, Serialize)]
struct Network<'a> {
    time: Time<'a>,
    #[serde(flatten)]
    main: Interface<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface<'a>>,
}

impl<'a> Network<'a> {
    fn of(network: &'a stats::NetworkStats) -> Self {
        let interface = |one: &'a stats::InterfaceStats| Interface {
            name: &one.name,
            rx_bytes: Some(one.rx_bytes),
            rx_errors: Some(one.rx_errors),
            tx_bytes: Some(one.tx_bytes),
            tx_errors: Some(one.tx_errors),
        };
        let main = network.interfaces.iter().find(|one| one.name == DEFAULT_INTERFACE);
        Network {
            time: Time(&network.time),
            // An empty name when there is none of that name.
            main: main.map(interface).unwrap_or_default(),
            interfaces: network.interfaces.iter().map(interface).collect(),
        }
    }
}

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Interface<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rx_errors: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tx_errors: Option<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Fs<'a> {
    time: Time<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inodes_free: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inodes_used: Option<u64>,
}

impl<'a> Fs<'a> {
    fn of(fs: &'a stats::FsStats) -> Self {
        Fs {
            time: Time(&fs.time),
            available_bytes: fs.available_bytes,
            capacity_bytes: fs.capacity_bytes,
            used_bytes: fs.used_bytes,
            inodes_free: fs.inodes_free,
            inodes: fs.inodes,
            inodes_used: fs.inodes_used,
        }
    }
}

#[cfg(test)]
mod tests;
