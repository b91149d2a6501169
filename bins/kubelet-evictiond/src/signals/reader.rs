//! Reads what can be read in an instant: memory and tasks. File systems, which may hang, are asked of kubelet-walker.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::eviction::Signal;
use parking_lot::Mutex;

use super::observation::{self, Observations};
use crate::cgroup::{Hierarchy, Usage};
use crate::kernel::{self, Reader};
use crate::sample::SamplerError;

/// Memory that is used, page cache included, bytes; of the two signals of memory.
pub type MemoryUsage = BTreeMap<Signal, u64>;

/// What was read at once.
#[derive(Debug, Clone, Default)]
pub struct KernelReading {
    pub seen: Observations,
    pub memory_usage: MemoryUsage,
}

/// Blocking: a handful of small reads, on a thread of the pool.
#[derive(Debug)]
pub struct KernelReader {
    hierarchy: Hierarchy,
    reader: Reader,
    /// The cgroup of all pods, by each driver's name: one of them is there.
    pods_cgroups: Vec<String>,
    /// Page cache in use counts as available, too (`--eviction-exclude-active-page-cache`).
    exclude_active_page_cache: bool,
}

impl KernelReader {
    /// # Errors
    /// No control groups on this machine.
    pub fn new(pods_cgroups: Vec<String>, exclude_active_page_cache: bool) -> Result<Self, SamplerError> {
        let mountinfo = std::fs::read("/proc/self/mountinfo").map_err(SamplerError::Mounts)?;
        let hierarchy = Hierarchy::from_mountinfo(&mountinfo).ok_or(SamplerError::NoCgroups)?;
        Ok(KernelReader { hierarchy, reader: Reader::default(), pods_cgroups, exclude_active_page_cache })
    }

    /// The machine has cgroup v2 alone.
    pub fn is_v2(&self) -> bool {
        matches!(self.hierarchy, Hierarchy::V2 { .. })
    }

    /// Reads now. What cannot be read is absent: a cgroup may vanish under the read.
    pub fn read(&mut self) -> KernelReading {
        let mut reading = KernelReading::default();
        let at = bulkhead_sys::clock::since_boot();
        let machine = self.hierarchy.machine(&mut self.reader);
        self.memory(Signal::MemoryAvailable, &machine, at, &mut reading);
        if let Some(pods) = self.pods_cgroups.iter().find(|cgroup| self.hierarchy.exists(cgroup)) {
            let pods = self.hierarchy.usage(&mut self.reader, pods);
            self.memory(Signal::AllocatableMemoryAvailable, &pods, at, &mut reading);
        }
        let pid_max = self.reader.number(Path::new("/proc/sys/kernel/pid_max"));
        let threads_max = self.reader.number(Path::new("/proc/sys/kernel/threads-max"));
        let running = self.reader.read(Path::new("/proc/loadavg")).ok().and_then(kernel::tasks);
        if let (Some(max), Some(running)) = (kernel::max_tasks(pid_max, threads_max), running) {
            observation::pids(max, running, at, &mut reading.seen);
        }
        reading
    }

    /// Without a limit nothing is known of what is left.
    fn memory(&self, signal: Signal, usage: &Usage, at: Duration, reading: &mut KernelReading) {
        let Some(memory) = usage.memory else { return };
        let Some(limit) = memory.limit else { return };
        let cache = memory.active_file.filter(|_| self.exclude_active_page_cache).unwrap_or(0);
        let memory = observation::Memory { working_set: memory.working_set.saturating_sub(cache), limit };
        observation::memory(signal, memory, at, &mut reading.seen);
        reading.memory_usage.insert(signal, usage.memory.map_or(0, |memory| memory.usage));
    }
}

/// The reader, shared with the pool's threads.
pub type SharedReader = Arc<Mutex<KernelReader>>;

/// Reads on a thread of the pool. `None`: the process stops.
pub async fn read(reader: &SharedReader) -> Option<KernelReading> {
    let reader = reader.clone();
    tokio::task::spawn_blocking(move || reader.lock().read()).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Memory;

    #[test]
    fn this_machine_has_memory_and_tasks_left() {
        let mut reader = KernelReader::new(vec!["/no-such-kubepods".into()], false).unwrap();
        let KernelReading { seen, memory_usage } = reader.read();
        assert!(memory_usage[&Signal::MemoryAvailable] > 0);
        for signal in [Signal::MemoryAvailable, Signal::PidAvailable] {
            let reading = seen[&signal];
            assert!(reading.available > 0 && reading.available < reading.capacity, "{signal:?}: {reading:?}");
        }
        assert!(!seen.contains_key(&Signal::AllocatableMemoryAvailable));
    }

    #[test]
    fn page_cache_in_use_is_available_where_that_is_asked_for() {
        let memory =
            Memory { usage: 900, working_set: 700, active_file: Some(300), limit: Some(1000), ..Memory::default() };
        let usage = Usage { memory: Some(memory), ..Usage::default() };
        let available = |exclude| {
            let reader = KernelReader::new(Vec::new(), exclude).unwrap();
            let mut reading = KernelReading::default();
            reader.memory(Signal::MemoryAvailable, &usage, Duration::from_secs(1), &mut reading);
            assert_eq!(reading.memory_usage[&Signal::MemoryAvailable], 900);
            reading.seen[&Signal::MemoryAvailable].available
        };
        assert_eq!((available(false), available(true)), (300, 600));
    }
}
