//! Who has which CPUs (upstream `cpumanager/state`).

use std::collections::BTreeMap;

use bulkhead_config::cpu_set::CpuSet;

/// Pod uid, then container name.
pub type Assignments<T> = BTreeMap<String, BTreeMap<String, T>>;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuState {
    /// What containers without CPUs of their own run on; empty with policy `none`.
    pub default: CpuSet,
    pub entries: Assignments<CpuSet>,
    /// CPUs of pods that have some as a whole; their containers' entries are parts of that.
    pub pods: BTreeMap<String, CpuSet>,
}

impl CpuState {
    pub fn get(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.entries.get(uid)?.get(container)
    }

    /// What a container is to run on; empty: nothing is set.
    pub fn or_default(&self, uid: &str, container: &str) -> &CpuSet {
        self.get(uid, container).unwrap_or(&self.default)
    }

    pub(super) fn set(&mut self, uid: &str, container: &str, cpus: CpuSet) {
        self.entries.entry(uid.to_owned()).or_default().insert(container.to_owned(), cpus);
    }

    /// Takes a container's entry, and the pod's if it was the last.
    pub(super) fn take(&mut self, uid: &str, container: &str) -> Option<CpuSet> {
        let containers = self.entries.get_mut(uid)?;
        let had = containers.remove(container);
        if containers.is_empty() {
            self.entries.remove(uid);
        }
        had
    }
}
