//! Reads what can be read in an instant: memory and tasks. File systems, which may hang, are asked of kubelet-walker.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bulkhead_config::eviction::Signal;

use super::observation::{self, Observations};
use crate::cgroup::{Hierarchy, Usage};
use crate::kernel::{self, Reader};
use crate::sample::SamplerError;

/// Blocking: a handful of small reads, on a thread of the pool.
#[derive(Debug)]
pub struct KernelReader {
    hierarchy: Hierarchy,
    reader: Reader,
    /// The cgroup of all pods, by each driver's name: one of them is there.
    pods_cgroups: Vec<String>,
}

impl KernelReader {
    /// # Errors
    /// No control groups on this machine.
    pub fn new(pods_cgroups: Vec<String>) -> Result<Self, SamplerError> {
        let mountinfo = std::fs::read_to_string("/proc/self/mountinfo").map_err(SamplerError::Mounts)?;
        let hierarchy = Hierarchy::from_mountinfo(&mountinfo).ok_or(SamplerError::NoCgroups)?;
        Ok(KernelReader { hierarchy, reader: Reader::default(), pods_cgroups })
    }

    /// Reads now. What cannot be read is absent: a cgroup may vanish under the read.
    pub fn read(&mut self) -> Observations {
        let mut seen = Observations::new();
        let at = bulkhead_sys::clock::since_boot();
        let machine = self.hierarchy.machine(&mut self.reader);
        memory(Signal::MemoryAvailable, &machine, at, &mut seen);
        if let Some(pods) = self.pods_cgroups.iter().find(|cgroup| self.hierarchy.exists(cgroup)) {
            let pods = self.hierarchy.usage(&mut self.reader, pods);
            memory(Signal::AllocatableMemoryAvailable, &pods, at, &mut seen);
        }
        let pid_max = self.reader.number(Path::new("/proc/sys/kernel/pid_max"));
        let threads_max = self.reader.number(Path::new("/proc/sys/kernel/threads-max"));
        let running = self.reader.read(Path::new("/proc/loadavg")).ok().and_then(kernel::tasks);
        if let (Some(max), Some(running)) = (kernel::max_tasks(pid_max, threads_max), running) {
            observation::pids(max, running, at, &mut seen);
        }
        seen
    }
}

/// Without a limit nothing is known of what is left.
fn memory(signal: Signal, usage: &Usage, at: Duration, seen: &mut Observations) {
    let Some(memory) = usage.memory else { return };
    if let Some(limit) = memory.limit {
        let memory = observation::Memory { working_set: memory.working_set, limit };
        observation::memory(signal, memory, at, seen);
    }
}

/// The reader, shared with the pool's threads.
pub type SharedReader = Arc<Mutex<KernelReader>>;

/// Reads on a thread of the pool. `None`: the process stops.
pub async fn read(reader: &SharedReader) -> Option<Observations> {
    let reader = reader.clone();
    let read = move || reader.lock().map(|mut reader| reader.read()).ok();
    tokio::task::spawn_blocking(read).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory_and_tasks_left() {
        let mut reader = KernelReader::new(vec!["/no-such-kubepods".into()]).unwrap();
        let seen = reader.read();
        for signal in [Signal::MemoryAvailable, Signal::PidAvailable] {
            let reading = seen[&signal];
            assert!(reading.available > 0 && reading.available < reading.capacity, "{signal:?}: {reading:?}");
        }
        assert!(!seen.contains_key(&Signal::AllocatableMemoryAvailable));
    }
}
