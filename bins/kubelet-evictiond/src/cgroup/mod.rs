//! Usage of control groups, v1 or v2, from the kernel's files: where the hierarchies are, and one picture of both.

mod io;
mod memory;
mod names;
mod pressure;
mod tree;
mod v1;
mod v2;

use std::path::{Path, PathBuf};

use bulkhead_ipc::evictiond::{CgroupCpu, CgroupIo};
use bulkhead_sys::mountinfo;

pub use memory::{Memory, Swap, limit};
pub use names::{container_candidates, of_agent, of_process, pod_path, qos_levels};
pub use pressure::{Line, Pressure, Psi};
pub use v1::Mounts;

use crate::kernel::{self, Reader};

/// Where the hierarchies are mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hierarchy {
    V1(Mounts),
    V2 { root: PathBuf },
}

/// What one cgroup uses, its children included.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    pub cpu_nanoseconds: Option<u64>,
    pub memory: Option<Memory>,
    pub swap: Option<Swap>,
    /// Tasks (threads count, as pids.max does).
    pub tasks: Option<u64>,
    pub pressure: Pressure,
}

/// What only /metrics/cadvisor shows of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Detail {
    pub cpu: CgroupCpu,
    pub memory: MemoryDetail,
    pub io: Vec<CgroupIo>,
    /// 0: no limit.
    pub threads_max: Option<u64>,
    /// Processes of the group itself that were killed for want of memory.
    pub oom_kills: Option<u64>,
}

/// Memory figures that have files of their own; bytes, but for `failures`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryDetail {
    pub max_usage: Option<u64>,
    /// v1 alone.
    pub kernel: Option<u64>,
    pub failures: Option<u64>,
    pub reservation: Option<u64>,
    /// As the kernel has it: of memory and swap together on v1, of swap on v2.
    pub swap_limit: Option<u64>,
}

impl Hierarchy {
    /// Finds the mounts in the text of /proc/self/mountinfo. Memory on v1 makes it v1, as hybrid systems have an empty
    /// v2 beside it.
    pub fn from_mountinfo(mountinfo: &[u8]) -> Option<Self> {
        let mut mounts = Mounts::default();
        for mount in mountinfo::parse(mountinfo) {
            let point = mount.mount_point.into_owned();
            match &*mount.fs_type {
                "cgroup2" => mounts.unified = mounts.unified.or(Some(point)),
                "cgroup" => {
                    for option in mount.super_options.split(',') {
                        let slot = match option {
                            "cpu" => &mut mounts.cpu,
                            "cpuacct" => &mut mounts.cpuacct,
                            "memory" => &mut mounts.memory,
                            "pids" => &mut mounts.pids,
                            "blkio" => &mut mounts.blkio,
                            _ => continue,
                        };
                        slot.get_or_insert_with(|| point.clone());
                    }
                }
                _ => {}
            }
        }
        match mounts.unified {
            _ if mounts.memory.is_some() || mounts.cpuacct.is_some() => Some(Hierarchy::V1(mounts)),
            Some(root) => Some(Hierarchy::V2 { root }),
            None => None,
        }
    }

    /// Reads a cgroup by its path as /proc/<pid>/cgroup shows it ("/kubepods/pod…"). What cannot be read is absent.
    pub fn usage(&self, reader: &mut Reader, cgroup: &str) -> Usage {
        match self {
            Hierarchy::V1(mounts) => v1::usage(mounts, reader, cgroup),
            Hierarchy::V2 { root } => v2::usage(root, reader, cgroup),
        }
    }

    /// [`Usage::cpu_nanoseconds`] alone: one file.
    pub fn cpu_nanoseconds(&self, reader: &mut Reader, cgroup: &str) -> Option<u64> {
        match self {
            Hierarchy::V1(mounts) => v1::cpu_nanoseconds(mounts, reader, cgroup),
            Hierarchy::V2 { root } => v2::cpu_nanoseconds(root, reader, cgroup),
        }
    }

    /// The rest of it, which takes about twice as many files.
    pub fn detail(&self, reader: &mut Reader, cgroup: &str) -> Detail {
        match self {
            Hierarchy::V1(mounts) => v1::detail(mounts, reader, cgroup),
            Hierarchy::V2 { root } => v2::detail(root, reader, cgroup),
        }
    }

    /// The processes of the cgroup itself, not of its children; at most as many as fit into the reader.
    pub fn processes(&self, reader: &mut Reader, cgroup: &str) -> Option<Vec<u32>> {
        // The controller that cAdvisor looks at; all have the same processes where a runtime put them.
        let mount = match self {
            Hierarchy::V1(mounts) => {
                mounts.cpu.as_deref().or(mounts.memory.as_deref()).or(mounts.cpuacct.as_deref())?
            }
            Hierarchy::V2 { root } => root,
        };
        let list = reader.below(mount, cgroup, "cgroup.procs").ok()?;
        Some(list.split(|b| *b == b'\n').filter_map(kernel::number).filter_map(|pid| pid.try_into().ok()).collect())
    }

    /// The whole machine: the root cgroup, with the machine's memory as its limit.
    pub fn machine(&self, reader: &mut Reader) -> Usage {
        let mut usage = self.usage(reader, "/");
        usage.pressure = machine_pressure(reader);
        let meminfo = reader.read(Path::new("/proc/meminfo")).unwrap_or_default();
        let total = kernel::meminfo(meminfo, "MemTotal");
        if let Some(memory) = &mut usage.memory {
            memory.limit = total;
        }
        if let (Some(total), Some(free)) = (kernel::meminfo(meminfo, "SwapTotal"), kernel::meminfo(meminfo, "SwapFree"))
        {
            usage.swap = Some(Swap { usage: total.saturating_sub(free), limit: Some(total) });
        }
        usage
    }

    fn any_mount(&self) -> Option<&Path> {
        match self {
            Hierarchy::V1(mounts) => mounts.memory.as_deref().or(mounts.cpuacct.as_deref()),
            Hierarchy::V2 { root } => Some(root),
        }
    }

    /// Whether this cgroup is there.
    pub fn exists(&self, cgroup: &str) -> bool {
        self.any_mount().is_some_and(|at| at.join(cgroup.trim_start_matches('/')).is_dir())
    }

    /// The cgroups below this one, parents before children: `most` at most, and without those that are left out and what is below
    /// them.
    pub fn below(&self, cgroup: &str, most: usize, is_left_out: impl Fn(&str) -> bool) -> Vec<String> {
        self.any_mount().map(|mount| tree::below(mount, cgroup, most, is_left_out)).unwrap_or_default()
    }

    /// When its folder was made: the time of a file that nothing writes to.
    pub fn made_at(&self, cgroup: &str) -> Option<jiff::Timestamp> {
        let folder = self.any_mount()?.join(cgroup.trim_start_matches('/'));
        let times = ["", "cgroup.clone_children", "cgroup.events"]
            .map(|name| std::fs::metadata(folder.join(name)).and_then(|file| file.modified()).ok());
        let oldest = times.into_iter().flatten().min()?;
        oldest.try_into().ok()
    }
}

fn machine_pressure(reader: &mut Reader) -> Pressure {
    let mut of = |name: &str| reader.read(&Path::new("/proc/pressure").join(name)).ok().and_then(pressure::parse);
    Pressure { cpu: of("cpu"), memory: of("memory"), io: of("io") }
}

/// The three files in a cgroup's folder.
fn pressure_below(reader: &mut Reader, mount: &Path, cgroup: &str) -> Pressure {
    let mut of = |name: &str| reader.below(mount, cgroup, name).ok().and_then(pressure::parse);
    let cpu = of("cpu.pressure");
    // All three or none: no two more attempts at each cgroup of a kernel without them.
    if cpu.is_none() {
        return Pressure::default();
    }
    Pressure { cpu, memory: of("memory.pressure"), io: of("io.pressure") }
}

#[cfg(test)]
mod tests;
