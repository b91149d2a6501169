//! `stats`: what node and pods use, the largest first.

use std::fmt::Write as _;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::evictiond::stats_client::StatsClient;
use bulkhead_ipc::evictiond::{
    CpuStats, FsStats, MemoryStats, NodeStats, PodStats, SummaryRequest, summary_part::Part,
};
use bulkhead_types::Process;
use serde::Serialize;

use crate::amount::bytes;
use crate::connect::{connect, request, within};
use crate::instance::Instance;
use crate::output::Printer;
use crate::table::{Table, printable};
use crate::{Exit, Failure};

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Stats {
    node: Node,
    /// False: kubelet-syncd has not told which pods there are.
    pods_known: bool,
    pods: Vec<Pod>,
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Usage {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_nano_cores: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_nano_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_working_set_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_usage_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_available_bytes: Option<u64>,
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    name: String,
    #[serde(flatten)]
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_fs: Option<FileSystem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image_fs: Option<FileSystem>,
    tasks: u64,
    tasks_max: u64,
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct FileSystem {
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    available_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inodes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inodes_free: Option<u64>,
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Pod {
    namespace: String,
    name: String,
    uid: String,
    #[serde(flatten)]
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ephemeral_storage_bytes: Option<u64>,
    containers: Vec<Container>,
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    name: String,
    #[serde(flatten)]
    usage: Usage,
}

/// `stats`.
pub(crate) async fn show(
    instance: &Instance,
    namespace: Option<&str>,
    printer: &mut Printer<'_>,
) -> Result<Exit, Failure> {
    let connected = connect(instance, Process::Evictiond).await?;
    let mut client = StatsClient::new(connected.channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let call = async {
        // A person who looks twice wants to see a change.
        let mut stream =
            client.summary(request(SummaryRequest { max_age_ms: 1000, ..Default::default() })).await?.into_inner();
        let (mut node, mut pods) = (NodeStats::default(), Vec::new());
        while let Some(part) = stream.message().await? {
            match part.part {
                Some(Part::Node(stats)) => node = stats,
                Some(Part::Pod(stats)) => pods.push(stats),
                None => {}
            }
        }
        Ok((node, pods))
    };
    let (node, pods) = within(Process::Evictiond, instance, call).await?;
    let mut stats = view(node, pods);
    stats.pods.retain(|pod| namespace.is_none_or(|namespace| pod.namespace == namespace));
    if !stats.pods_known {
        printer.note("kubelet-ctl: kubelet-evictiond has not heard of the pods yet, kubelet-syncd does not answer it");
    }
    printer.print(&stats, || text(&stats))?;
    Ok(Exit::Success)
}

fn usage(cpu: Option<CpuStats>, memory: Option<MemoryStats>) -> Usage {
    let memory = memory.unwrap_or_default();
    let cpu = cpu.unwrap_or_default();
    Usage {
        cpu_nano_cores: cpu.usage_nano_cores,
        cpu_nano_seconds: cpu.usage_core_nano_seconds,
        memory_working_set_bytes: memory.working_set_bytes,
        memory_usage_bytes: memory.usage_bytes,
        memory_available_bytes: memory.available_bytes,
    }
}

fn file_system(fs: FsStats) -> FileSystem {
    FileSystem {
        capacity_bytes: fs.capacity_bytes,
        available_bytes: fs.available_bytes,
        used_bytes: fs.used_bytes,
        inodes: fs.inodes,
        inodes_free: fs.inodes_free,
    }
}

fn view(node: NodeStats, pods: Vec<PodStats>) -> Stats {
    let mut pods: Vec<Pod> = pods
        .into_iter()
        .map(|pod| Pod {
            namespace: pod.namespace,
            name: pod.name,
            uid: pod.uid,
            usage: usage(pod.cpu, pod.memory),
            processes: pod.process.and_then(|process| process.process_count),
            ephemeral_storage_bytes: pod.ephemeral_storage.and_then(|fs| fs.used_bytes),
            containers: pod
                .containers
                .into_iter()
                .map(|container| Container { name: container.name, usage: usage(container.cpu, container.memory) })
                .collect(),
        })
        .collect();
    let size = |pod: &Pod| (pod.usage.cpu_nano_cores, pod.usage.memory_working_set_bytes);
    pods.sort_by(|a, b| size(b).cmp(&size(a)).then_with(|| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name))));
    Stats {
        pods_known: node.pods_known,
        node: Node {
            name: node.node_name,
            usage: usage(node.cpu, node.memory),
            node_fs: node.node_fs.map(file_system),
            image_fs: node.image_fs.map(file_system),
            tasks: node.running_processes,
            tasks_max: node.max_pid,
        },
        pods,
    }
}

/// As `kubectl top`: thousandths of a core, never 0 for what is not idle.
fn cores(nano: Option<u64>) -> String {
    nano.map(|nano| format!("{}m", nano.div_ceil(1_000_000))).unwrap_or_default()
}

fn mebibytes(bytes: Option<u64>) -> String {
    bytes.map(|bytes| format!("{}Mi", bytes >> 20)).unwrap_or_default()
}

/// Nothing where it is not known.
fn shown(amount: Option<u64>) -> String {
    amount.map(|amount| bytes(i64::try_from(amount).unwrap_or(i64::MAX))).unwrap_or_default()
}

fn text(stats: &Stats) -> String {
    let mut out = String::new();
    let node = &stats.node;
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "Node {}: CPU {}, memory {} used (working set), {} available, {} of {} tasks",
        printable(&node.name),
        cores(node.usage.cpu_nano_cores),
        shown(node.usage.memory_working_set_bytes),
        shown(node.usage.memory_available_bytes),
        node.tasks,
        node.tasks_max
    );
    for (name, fs) in [("nodefs", &node.node_fs), ("imagefs", &node.image_fs)] {
        if let Some(fs) = fs {
            let _ = writeln!(
                out,
                "{name}: {} of {} available, {} of {} inodes free",
                shown(fs.available_bytes),
                shown(fs.capacity_bytes),
                fs.inodes_free.unwrap_or(0),
                fs.inodes.unwrap_or(0)
            );
        }
    }
    if stats.pods.is_empty() {
        return out;
    }
    let mut table = Table::new(&["NAMESPACE", "POD", "CONTAINER", "CPU", "MEMORY", "PROCS", "DISK"]);
    for pod in &stats.pods {
        let cells: [&str; 7] = [
            &pod.namespace,
            &pod.name,
            "",
            &cores(pod.usage.cpu_nano_cores),
            &mebibytes(pod.usage.memory_working_set_bytes),
            &pod.processes.map(|processes| processes.to_string()).unwrap_or_default(),
            &shown(pod.ephemeral_storage_bytes),
        ];
        table.row(cells);
        if pod.containers.len() > 1 {
            for container in &pod.containers {
                let cpu = cores(container.usage.cpu_nano_cores);
                let memory = mebibytes(container.usage.memory_working_set_bytes);
                let cells: [&str; 7] = [&pod.namespace, &pod.name, &container.name, &cpu, &memory, "", ""];
                table.row(cells);
            }
        }
    }
    let _ = write!(out, "\n{}", table.render(0));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::evictiond::{ContainerStats, ProcessStats};

    #[test]
    fn the_largest_first() {
        let cpu = |nano| Some(CpuStats { usage_nano_cores: Some(nano), ..Default::default() });
        let memory = |bytes| {
            Some(MemoryStats { working_set_bytes: Some(bytes), available_bytes: Some(3 << 30), ..Default::default() })
        };
        let pod = |name: &str, nano, bytes: u64, containers: &[&str]| PodStats {
            namespace: "default".into(),
            name: name.into(),
            cpu: cpu(nano),
            memory: memory(bytes),
            process: Some(ProcessStats { process_count: Some(2) }),
            containers: containers
                .iter()
                .map(|name| ContainerStats {
                    name: (*name).into(),
                    cpu: cpu(nano),
                    memory: memory(bytes),
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        };
        let node = NodeStats {
            node_name: "n".into(),
            cpu: cpu(1_500_000_000),
            memory: memory(5 << 30),
            node_fs: Some(FsStats {
                available_bytes: Some(61 << 30),
                capacity_bytes: Some(252 << 30),
                inodes_free: Some(9),
                inodes: Some(10),
                ..Default::default()
            }),
            running_processes: 191,
            max_pid: 32768,
            pods_known: true,
            ..Default::default()
        };
        let stats = view(node, vec![pod("idle", 0, 1 << 20, &["a"]), pod("busy", 250_100_000, 30 << 20, &["a", "b"])]);
        assert_eq!(
            text(&stats),
            "\
Node n: CPU 1500m, memory 5.0Gi used (working set), 3.0Gi available, 191 of 32768 tasks
nodefs: 61.0Gi of 252.0Gi available, 9 of 10 inodes free

NAMESPACE   POD    CONTAINER   CPU    MEMORY   PROCS   DISK
default     busy   -           251m   30Mi     2       -
default     busy   a           251m   30Mi     -       -
default     busy   b           251m   30Mi     -       -
default     idle   -           0m     1Mi      2       -
"
        );
    }
}
