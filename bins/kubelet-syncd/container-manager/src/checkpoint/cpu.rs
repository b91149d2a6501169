//! `cpu_manager_state`, in the three versions of upstream `cpumanager/state/checkpoint.go`: of the first, containers go by the
//! runtime's ids; the third (written with the gate `PodLevelResourceManagers` alone) has pods' own CPUs too.

use std::collections::BTreeMap;

use bulkhead_config::cpu_set::CpuSet;
use serde::{Deserialize, Serialize};

use super::go::{CheckpointError, checksum, json, map, optional_map, parse};
use crate::cpu::state::{Assignments, CpuState};

/// The file's name in the root directory.
pub const FILE: &str = "cpu_manager_state";

/// Containers that ran when the process started: the runtime's id to pod uid and container name.
pub type InitialContainers = BTreeMap<String, (String, String)>;

fn some<T: Default>() -> Option<T> {
    Some(T::default())
}

fn none_or_empty<T>(of: &Option<BTreeMap<String, T>>) -> bool {
    of.as_ref().is_none_or(BTreeMap::is_empty)
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File<E, P> {
    #[serde(default)]
    policy_name: String,
    // Go reads names in any case.
    #[serde(default, rename = "defaultCpuSet", alias = "defaultCPUSet")]
    default_cpus: String,
    #[serde(default = "some", skip_serializing_if = "none_or_empty")]
    #[serde(bound(deserialize = "E: Deserialize<'de>", serialize = "E: Serialize"))]
    entries: Option<BTreeMap<String, E>>,
    #[serde(default = "some", skip_serializing_if = "none_or_empty")]
    #[serde(bound(deserialize = "P: Deserialize<'de>", serialize = "P: Serialize"))]
    pod_entries: Option<BTreeMap<String, P>>,
    #[serde(default)]
    checksum: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct PodEntry {
    #[serde(default, rename = "cpuSet", skip_serializing_if = "String::is_empty")]
    cpus: String,
}

type Containers = BTreeMap<String, String>;

impl<E, P> File<E, P> {
    fn dump(&self, name: &str, entries: &str, pods: Option<String>) -> String {
        let pods = pods.map(|pods| format!(" PodEntries:(state.PodCPUAssignments){pods}")).unwrap_or_default();
        let (policy, default) = (&self.policy_name, &self.default_cpus);
        format!(
            "(*state.{name}){{PolicyName:(string){policy} DefaultCPUSet:(string){default} Entries:{entries}{pods} Checksum:(checksum.Checksum)0}}"
        )
    }
}

impl File<Containers, PodEntry> {
    fn entries(&self) -> String {
        let inner = |containers: &Containers| map(containers, Clone::clone);
        format!("(map[string]map[string]string){}", optional_map(self.entries.as_ref(), inner))
    }

    fn sum(&self, name: &str, with_pods: bool) -> u64 {
        let elements = |pod: &PodEntry| {
            let cpus = CpuSet::parse(&pod.cpus).unwrap_or_default();
            let cpus: BTreeMap<u32, ()> = cpus.iter().map(|cpu| (cpu, ())).collect();
            let cpus = map(&cpus, |()| "{}".to_owned());
            format!("{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}}){cpus}}}}}")
        };
        let pods = with_pods.then(|| optional_map(self.pod_entries.as_ref(), elements));
        checksum(&self.dump(name, &self.entries(), pods))
    }
}

/// The file of a state. `pod_level`: the gate is on.
///
/// # Errors
/// None that a state can cause.
pub fn write(policy: &str, state: &CpuState, pod_level: bool) -> Result<Vec<u8>, CheckpointError> {
    let texts =
        |of: &BTreeMap<String, CpuSet>| of.iter().map(|(name, cpus)| (name.clone(), cpus.to_string())).collect();
    let pods = state.pods.iter().map(|(uid, cpus)| (uid.clone(), PodEntry { cpus: cpus.to_string() }));
    let mut file: File<Containers, PodEntry> = File {
        policy_name: policy.to_owned(),
        default_cpus: state.default.to_string(),
        entries: Some(state.entries.iter().map(|(uid, of)| (uid.clone(), texts(of))).collect()),
        pod_entries: Some(if pod_level { pods.collect() } else { BTreeMap::new() }),
        checksum: 0,
    };
    // The second version is summed under the name that the structure had when it was the newest.
    file.checksum = file.sum("CPUManagerCheckpoint", pod_level);
    json(&file)
}

/// The state of a file that the same policy wrote, in any version.
///
/// # Errors
/// It is cut off or damaged, of another policy, or of a container that nobody knows.
pub fn read(
    bytes: &[u8],
    policy: &str,
    pod_level: bool,
    initial: &InitialContainers,
) -> Result<CpuState, CheckpointError> {
    let newer = newer(bytes, pod_level);
    let file = match newer {
        Ok(file) => file,
        Err(error) => match first(bytes, initial) {
            Ok(file) => file,
            // A file of the first version says what is wrong with it; of any other, what was found first counts.
            Err(unknown @ CheckpointError::UnknownContainer(_)) => return Err(unknown),
            Err(_) => return Err(error),
        },
    };
    if file.policy_name != policy {
        let (configured, found) = (policy.to_owned(), file.policy_name);
        return Err(CheckpointError::CpuPolicy { configured, found });
    }
    let bad = |why| CheckpointError::DefaultCpus { cpus: file.default_cpus.clone(), why };
    let default = cpus(&file.default_cpus).map_err(bad)?;
    let mut entries: Assignments<CpuSet> = Assignments::new();
    for (pod, containers) in file.entries.unwrap_or_default() {
        let own = entries.entry(pod.clone()).or_default();
        for (container, text) in containers {
            let bad =
                |why| CheckpointError::Cpus { cpus: text.clone(), container: container.clone(), pod: pod.clone(), why };
            let parsed = cpus(&text).map_err(bad)?;
            own.insert(container, parsed);
        }
    }
    let pods = file.pod_entries.filter(|_| pod_level).unwrap_or_default().into_iter();
    let pods: Result<_, CheckpointError> = pods
        .map(|(uid, entry)| {
            let bad = |why| CheckpointError::Json(format!("failed to parse cpuset: {why}"));
            Ok((uid, cpus(&entry.cpus).map_err(bad)?))
        })
        .collect();
    Ok(CpuState { default, entries, pods: pods? })
}

/// A list of CPUs, or why it is none as Go says it.
fn cpus(text: &str) -> Result<CpuSet, String> {
    CpuSet::parse(text).map_err(|error| {
        let numbers = text.split(',').flat_map(|part| part.splitn(2, '-'));
        match numbers.into_iter().find(|number| number.parse::<u32>().is_err()) {
            Some(number) => format!("strconv.Atoi: parsing {number:?}: invalid syntax"),
            None => error.to_string(),
        }
    })
}

/// The third or the second version.
fn newer(bytes: &[u8], pod_level: bool) -> Result<File<Containers, PodEntry>, CheckpointError> {
    let mut file: File<Containers, PodEntry> = parse(bytes)?;
    if pod_level && file.checksum == file.sum("CPUManagerCheckpoint", true) {
        return Ok(file);
    }
    // Kubelets of some versions summed the second under its own name.
    let names: &[&str] =
        if pod_level { &["CPUManagerCheckpoint"] } else { &["CPUManagerCheckpoint", "CPUManagerCheckpointV2"] };
    // Without a checksum: of the time when there was none.
    if file.checksum == 0 || names.iter().any(|name| file.checksum == file.sum(name, false)) {
        file.pod_entries = None;
        return Ok(file);
    }
    Err(CheckpointError::Corrupted)
}

/// The first version, with containers' names in place of their ids.
fn first(bytes: &[u8], initial: &InitialContainers) -> Result<File<Containers, PodEntry>, CheckpointError> {
    let file: File<String, PodEntry> = parse(bytes)?;
    let entries = format!("(map[string]string){}", optional_map(file.entries.as_ref(), Clone::clone));
    if file.checksum != 0 && file.checksum != checksum(&file.dump("CPUManagerCheckpoint", &entries, None)) {
        return Err(CheckpointError::Corrupted);
    }
    let mut named: BTreeMap<String, Containers> = BTreeMap::new();
    for (id, cpus) in file.entries.unwrap_or_default() {
        let Some((pod, container)) = initial.get(&id) else { return Err(CheckpointError::UnknownContainer(id)) };
        named.entry(pod.clone()).or_default().insert(container.clone(), cpus);
    }
    let (policy_name, default_cpus) = (file.policy_name, file.default_cpus);
    Ok(File { policy_name, default_cpus, entries: Some(named), pod_entries: None, checksum: 0 })
}
