//! What a reading says of each signal (upstream `pkg/kubelet/eviction/helpers.go` makeSignalObservations). Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_config::eviction::Signal;
use bulkhead_types::Quantity;

/// One signal as it was read: bytes, inodes or tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    pub available: i64,
    pub capacity: i64,
    /// When, since boot.
    pub at: Duration,
}

/// All signals of which something is known. One that is absent is unknown: it meets no threshold.
pub type Observations = BTreeMap<Signal, Observation>;

/// What pods are evicted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    Memory,
    EphemeralStorage,
    Inodes,
    Pids,
}

impl Resource {
    /// Upstream `signalToResource`.
    pub const fn of(signal: Signal) -> Self {
        match signal {
            Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable => Resource::Memory,
            Signal::NodeFsAvailable | Signal::ImageFsAvailable | Signal::ContainerFsAvailable => {
                Resource::EphemeralStorage
            }
            Signal::NodeFsInodesFree | Signal::ImageFsInodesFree | Signal::ContainerFsInodesFree => Resource::Inodes,
            Signal::PidAvailable => Resource::Pids,
        }
    }

    /// As messages name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Resource::Memory => "memory",
            Resource::EphemeralStorage => "ephemeral-storage",
            Resource::Inodes => "inodes",
            Resource::Pids => "pids",
        }
    }

    /// An amount of it in the API's notation.
    pub fn amount(self, amount: i64) -> Quantity {
        match self {
            Resource::Memory | Resource::EphemeralStorage => Quantity::from_bytes(amount),
            Resource::Inodes | Resource::Pids => Quantity::from_i64(amount),
        }
    }
}

/// A condition of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Condition {
    Memory,
    Disk,
    Pid,
}

impl Condition {
    pub const ALL: [Condition; 3] = [Condition::Memory, Condition::Disk, Condition::Pid];

    /// Upstream `signalToNodeCondition`.
    pub const fn of(signal: Signal) -> Self {
        match Resource::of(signal) {
            Resource::Memory => Condition::Memory,
            Resource::EphemeralStorage | Resource::Inodes => Condition::Disk,
            Resource::Pids => Condition::Pid,
        }
    }

    /// `v1.NodeConditionType`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Condition::Memory => "MemoryPressure",
            Condition::Disk => "DiskPressure",
            Condition::Pid => "PIDPressure",
        }
    }
}

/// Memory of a control group, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    pub working_set: u64,
    pub limit: u64,
}

/// A file system, bytes and inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileSystem {
    pub available: u64,
    pub capacity: u64,
    pub inodes_free: u64,
    pub inodes: u64,
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Of the machine's memory, or of that of all pods.
pub fn memory(signal: Signal, memory: Memory, at: Duration, into: &mut Observations) {
    let available = signed(memory.limit.saturating_sub(memory.working_set));
    let capacity = available.saturating_add(signed(memory.working_set));
    into.insert(signal, Observation { available, capacity, at });
}

/// Of tasks: `max` that there may be, `running` that there are.
pub fn pids(max: u64, running: u64, at: Duration, into: &mut Observations) {
    let available = signed(max).saturating_sub(signed(running));
    into.insert(Signal::PidAvailable, Observation { available, capacity: signed(max), at });
}

/// Of a file system; of `None`, which does not answer, nothing is known any more.
pub fn file_system(signals: [Signal; 2], fs: Option<FileSystem>, at: Duration, into: &mut Observations) {
    let [bytes, inodes] = signals;
    let Some(fs) = fs else {
        into.remove(&bytes);
        into.remove(&inodes);
        return;
    };
    into.insert(bytes, Observation { available: signed(fs.available), capacity: signed(fs.capacity), at });
    // Some file systems (btrfs, vfat) have no number of inodes: upstream's statfs says 0 of 0, which meets no percentage.
    into.insert(inodes, Observation { available: signed(fs.inodes_free), capacity: signed(fs.inodes), at });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_as_signals() {
        let at = Duration::from_secs(5);
        let mut seen = Observations::new();
        memory(Signal::MemoryAvailable, Memory { working_set: 3, limit: 10 }, at, &mut seen);
        memory(Signal::AllocatableMemoryAvailable, Memory { working_set: 30, limit: 10 }, at, &mut seen);
        pids(100, 130, at, &mut seen);
        let node = [Signal::NodeFsAvailable, Signal::NodeFsInodesFree];
        let fs = FileSystem { available: 1, capacity: 2, inodes_free: 3, inodes: u64::MAX };
        file_system(node, Some(fs), at, &mut seen);
        assert_eq!(seen[&Signal::MemoryAvailable], Observation { available: 7, capacity: 10, at });
        assert_eq!(seen[&Signal::AllocatableMemoryAvailable], Observation { available: 0, capacity: 30, at });
        assert_eq!(seen[&Signal::PidAvailable], Observation { available: -30, capacity: 100, at });
        assert_eq!(seen[&Signal::NodeFsInodesFree], Observation { available: 3, capacity: i64::MAX, at });
        file_system(node, None, at, &mut seen);
        assert_eq!(seen.len(), 3, "a file system that hangs is unknown, not empty");
    }

    #[test]
    fn names_are_upstreams() {
        let all = Signal::ALL.map(|signal| (Resource::of(signal).as_str(), Condition::of(signal).as_str()));
        assert_eq!(all.iter().filter(|(resource, _)| *resource == "memory").count(), 2);
        assert_eq!(all.iter().filter(|(_, condition)| *condition == "DiskPressure").count(), 6);
        assert_eq!(Resource::Memory.amount(100 << 20).to_string(), "100Mi");
        assert_eq!(Resource::Inodes.amount(1024).to_string(), "1024");
    }
}
