//! `resources`: a map of the machine's NUMA nodes, CPUs, memory and devices, and which container has what of it for itself.

use std::fmt::Write as _;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::syncd::resource_entry::Entry;
use bulkhead_ipc::syncd::resources_client::ResourcesClient;
use bulkhead_ipc::syncd::{self as wire, ListResourcesRequest};
use bulkhead_types::Process;
use serde::Serialize;

use crate::amount::bytes;
use crate::connect::{connect, request, within};
use crate::instance::Instance;
use crate::output::Printer;
use crate::table::{Table, printable};
use crate::{Exit, Failure};

/// More than a node can have; what comes after them is not shown.
const MAX_ENTRIES: usize = 100_000;
/// Cells of a node's memory.
const BAR: usize = 40;
/// CPUs in a line of the map.
const CPUS_PER_LINE: usize = 16;

/// Of a CPU or of memory that containers share, and of what they cannot have for themselves.
const SHARED: &str = ".";
const RESERVED: &str = "r";

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Resources {
    policies: Policies,
    nodes: Vec<Node>,
    /// Healthy ones of all plugins.
    devices: Vec<Device>,
    holders: Vec<Holder>,
}

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Policies {
    cpu_manager: String,
    memory_manager: String,
    topology_manager: String,
    topology_scope: String,
    allocatable_cpus: Vec<u32>,
    allocatable_memory: Vec<Memory>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    id: u32,
    cores: Vec<Core>,
    memory_bytes: u64,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Core {
    socket: u32,
    cpus: Vec<u32>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Memory {
    kind: String,
    bytes: u64,
    nodes: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    resource: String,
    id: String,
    nodes: Vec<i64>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Holder {
    /// By which the map names it.
    key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pod: String,
    pod_uid: String,
    container: String,
    cpus: Vec<u32>,
    memory: Vec<Memory>,
    devices: Vec<Device>,
    claims: Vec<Claim>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Claim {
    namespace: String,
    name: String,
    devices: Vec<ClaimDevice>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct ClaimDevice {
    driver: String,
    pool: String,
    device: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    share_id: String,
    cdi_devices: Vec<String>,
}

/// `resources`.
pub(crate) async fn show(instance: &Instance, printer: &mut Printer<'_>) -> Result<Exit, Failure> {
    let connected = connect(instance, Process::Syncd).await?;
    let mut client = ResourcesClient::new(connected.channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let call = async {
        let mut stream = client.list(request(ListResourcesRequest {})).await?.into_inner();
        let mut entries = Vec::new();
        while let Some(entry) = stream.message().await? {
            if entries.len() < MAX_ENTRIES {
                entries.extend(entry.entry);
            }
        }
        Ok(entries)
    };
    let resources = view(within(Process::Syncd, instance, call).await?);
    printer.print(&resources, || text(&resources))?;
    Ok(Exit::Success)
}

/// A, B, ... Z, AA, AB, ...
fn key(mut number: usize) -> String {
    let mut letters = Vec::new();
    loop {
        letters.push(char::from(b'A' + u8::try_from(number % 26).unwrap_or(0)));
        match (number / 26).checked_sub(1) {
            Some(more) => number = more,
            None => return letters.into_iter().rev().collect(),
        }
    }
}

fn view(entries: Vec<Entry>) -> Resources {
    let mut resources = Resources::default();
    for entry in entries {
        match entry {
            Entry::Policies(policies) => resources.policies = policies.into(),
            Entry::Node(node) => resources.nodes.push(node.into()),
            Entry::Device(one) => resources.devices.push(one.into()),
            Entry::Holder(holder) => {
                let key = key(resources.holders.len());
                resources.holders.push(Holder { key, ..holder.into() });
            }
        }
    }
    resources
}

impl From<wire::ResourcePolicies> for Policies {
    fn from(policies: wire::ResourcePolicies) -> Self {
        Policies {
            cpu_manager: policies.cpu_manager,
            memory_manager: policies.memory_manager,
            topology_manager: policies.topology_manager,
            topology_scope: policies.topology_scope,
            allocatable_cpus: policies.allocatable_cpus,
            allocatable_memory: policies.allocatable_memory.into_iter().map(Memory::from).collect(),
        }
    }
}

impl From<wire::NumaNode> for Node {
    fn from(node: wire::NumaNode) -> Self {
        let cores = node.cores.into_iter().map(|core| Core { socket: core.socket, cpus: core.cpus });
        Node { id: node.id, cores: cores.collect(), memory_bytes: node.memory_bytes }
    }
}

impl From<wire::MemoryBlock> for Memory {
    fn from(block: wire::MemoryBlock) -> Self {
        Memory { kind: block.kind, bytes: block.bytes, nodes: block.nodes }
    }
}

impl From<wire::NodeDevice> for Device {
    fn from(device: wire::NodeDevice) -> Self {
        Device { resource: device.resource, id: device.id, nodes: device.nodes }
    }
}

impl From<wire::ResourceHolder> for Holder {
    fn from(holder: wire::ResourceHolder) -> Self {
        let device = |device: wire::HeldClaimDevice| ClaimDevice {
            driver: device.driver,
            pool: device.pool,
            device: device.device,
            share_id: device.share_id,
            cdi_devices: device.cdi_devices,
        };
        let claim = |claim: wire::HeldClaim| Claim {
            namespace: claim.namespace,
            name: claim.name,
            devices: claim.devices.into_iter().map(device).collect(),
        };
        Holder {
            key: String::new(),
            namespace: holder.namespace,
            pod: holder.pod,
            pod_uid: holder.pod_uid,
            container: holder.container,
            cpus: holder.cpus,
            memory: holder.memory.into_iter().map(Memory::from).collect(),
            devices: holder.devices.into_iter().map(Device::from).collect(),
            claims: holder.claims.into_iter().map(claim).collect(),
        }
    }
}

impl Resources {
    /// Who has the CPU, as the map shows it. With policy `none` all are shared.
    fn of_cpu(&self, cpu: u32) -> String {
        let keys: Vec<&str> = self.holders.iter().filter(|one| one.cpus.contains(&cpu)).map(|one| &*one.key).collect();
        let policies = &self.policies;
        match keys.join("+") {
            keys if !keys.is_empty() => keys,
            _ if policies.allocatable_cpus.is_empty() || policies.allocatable_cpus.contains(&cpu) => SHARED.to_owned(),
            _ => RESERVED.to_owned(),
        }
    }

    /// Bytes of memory of the node alone that containers can have for themselves.
    fn allocatable(&self, node: u32) -> u64 {
        let of_it = |block: &&Memory| block.kind == "memory" && block.nodes == [node];
        self.policies.allocatable_memory.iter().filter(of_it).map(|block| block.bytes).sum()
    }

    /// What containers have of the node's memory: key and bytes. A block of several nodes counts a part on each.
    fn memory(&self, node: u32) -> Vec<(&str, u64)> {
        let held = |holder: &Holder| -> u64 {
            let blocks = holder.memory.iter().filter(|block| block.kind == "memory" && block.nodes.contains(&node));
            blocks.map(|block| block.bytes / block.nodes.len().max(1) as u64).sum()
        };
        let all = self.holders.iter().map(|holder| (holder.key.as_str(), held(holder)));
        all.filter(|(_, bytes)| *bytes > 0).collect()
    }
}

fn amount(number: u64) -> String {
    bytes(i64::try_from(number).unwrap_or(i64::MAX))
}

/// `0-3,8`.
fn ranges(numbers: impl IntoIterator<Item = u32>) -> String {
    let mut sorted: Vec<u32> = numbers.into_iter().collect();
    sorted.sort_unstable();
    sorted.dedup();
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for number in sorted {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let part = |(from, to): (u32, u32)| if from == to { from.to_string() } else { format!("{from}-{to}") };
    parts.into_iter().map(part).collect::<Vec<_>>().join(",")
}

/// A line of [`BAR`] cells: reserved, each holder's letter, the rest shared. Who has a part has a cell.
fn bar(total: u64, allocatable: u64, held: &[(&str, u64)]) -> String {
    let cells = |bytes: u64| {
        let cells = u128::from(bytes) * BAR as u128 / u128::from(total.max(1));
        usize::try_from(cells).unwrap_or(BAR).clamp(usize::from(bytes > 0), BAR)
    };
    let mut line = RESERVED.repeat(cells(total.saturating_sub(allocatable)));
    for (key, bytes) in held {
        let letter = if key.len() == 1 { key } else { "+" };
        line.push_str(&letter.repeat(cells(*bytes)));
    }
    line.truncate(BAR);
    let rest = BAR - line.len();
    line + &SHARED.repeat(rest)
}

fn node_text(resources: &Resources, node: &Node, out: &mut String) {
    let all: Vec<u32> = node.cores.iter().flat_map(|core| core.cpus.iter().copied()).collect();
    let _ = writeln!(out, "NUMA node {}: CPUs {}, memory {}", node.id, ranges(all), amount(node.memory_bytes));
    // A core's CPUs stand together, so that it is seen who shares one.
    let mut line = String::new();
    let mut in_line = 0;
    for core in &node.cores {
        if in_line > 0 && in_line + core.cpus.len() > CPUS_PER_LINE {
            let _ = writeln!(out, "  cpu   {}", line.trim_end());
            (line, in_line) = (String::new(), 0);
        }
        let cells: Vec<String> = core.cpus.iter().map(|cpu| format!("{cpu}:{}", resources.of_cpu(*cpu))).collect();
        let _ = write!(line, "[{}] ", cells.join(" "));
        in_line += core.cpus.len();
    }
    if in_line > 0 {
        let _ = writeln!(out, "  cpu   {}", line.trim_end());
    }
    let (allocatable, held) = (resources.allocatable(node.id), resources.memory(node.id));
    if allocatable > 0 && node.memory_bytes > 0 {
        let taken: u64 = held.iter().map(|(_, bytes)| *bytes).sum();
        let free = allocatable.saturating_sub(taken);
        let bar = bar(node.memory_bytes, allocatable, &held);
        let _ = writeln!(out, "  mem   {bar}  {} free of {}", amount(free), amount(allocatable));
    }
    device_text(resources, |nodes| nodes.first() == Some(&i64::from(node.id)), out);
}

/// Devices of which `here` says yes, a line each resource.
fn device_text(resources: &Resources, here: impl Fn(&[i64]) -> bool, out: &mut String) {
    let mut lines: Vec<(&str, Vec<String>)> = Vec::new();
    for device in resources.devices.iter().filter(|device| here(&device.nodes)) {
        let has = |holder: &&Holder| {
            holder.devices.iter().any(|held| held.resource == device.resource && held.id == device.id)
        };
        let key = resources.holders.iter().find(has).map_or(SHARED, |holder| holder.key.as_str());
        let cell = format!("{}:{key}", printable(&device.id));
        match lines.iter_mut().find(|(resource, _)| *resource == device.resource) {
            Some((_, cells)) => cells.push(cell),
            None => lines.push((&device.resource, vec![cell])),
        }
    }
    for (resource, cells) in lines {
        let _ = writeln!(out, "  dev   {}  {}", printable(resource), cells.join(" "));
    }
}

fn text(resources: &Resources) -> String {
    let policies = &resources.policies;
    let mut out = format!(
        "CPU manager {}, memory manager {}, topology manager {} (scope {})\n",
        printable(&policies.cpu_manager),
        printable(&policies.memory_manager),
        printable(&policies.topology_manager),
        printable(&policies.topology_scope),
    );
    for node in &resources.nodes {
        out.push('\n');
        node_text(resources, node, &mut out);
    }
    let known = |id: i64| resources.nodes.iter().any(|node| i64::from(node.id) == id);
    let mut elsewhere = String::new();
    device_text(resources, |nodes| !nodes.first().is_some_and(|id| known(*id)), &mut elsewhere);
    if !elsewhere.is_empty() {
        let _ = write!(out, "\nOf no NUMA node\n{elsewhere}");
    }
    let _ = writeln!(out, "\n{SHARED} shared or free, {RESERVED} reserved, letters as below\n");
    if resources.holders.is_empty() {
        out.push_str("No container has anything for itself.\n");
        return out;
    }
    let mut table = Table::new(&["KEY", "NAMESPACE", "POD", "CONTAINER", "CPUS", "MEMORY", "DEVICES", "CLAIMS"]);
    for holder in &resources.holders {
        // A pod that is no longer wanted has no name left.
        let pod = if holder.pod.is_empty() { format!("uid {}", holder.pod_uid) } else { holder.pod.clone() };
        table.row([
            holder.key.clone(),
            holder.namespace.clone(),
            pod,
            holder.container.clone(),
            ranges(holder.cpus.iter().copied()),
            joined(&holder.memory, memory_text),
            joined(&holder.devices, |device| format!("{}/{}", device.resource, device.id)),
            joined(&holder.claims, claim_text),
        ]);
    }
    out.push_str(&table.render(0));
    out
}

fn joined<T>(all: &[T], one: impl Fn(&T) -> String) -> String {
    all.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn memory_text(block: &Memory) -> String {
    let kind = if block.kind == "memory" { String::new() } else { format!("{} ", block.kind) };
    format!("{kind}{} on {}", amount(block.bytes), ranges(block.nodes.iter().copied()))
}

fn claim_text(claim: &Claim) -> String {
    let device = |device: &ClaimDevice| format!("{}/{}/{}", device.driver, device.pool, device.device);
    format!("{} ({})", claim.name, joined(&claim.devices, device))
}

#[cfg(test)]
#[path = "resources_tests.rs"]
mod tests;
