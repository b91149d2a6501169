//! Cgroups of version 1, each controller with a tree of its own.

use std::path::PathBuf;

use bulkhead_ipc::evictiond::CgroupCpu;

use super::memory::{self, Swap};
use super::{Detail, MemoryDetail, Usage, io, pressure_below};
use crate::kernel::{self, Reader};

/// Where each controller is mounted; figures of those that are not are left out. `unified`: v2's tree beside them,
/// which has no controller but pressure.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mounts {
    pub cpu: Option<PathBuf>,
    pub cpuacct: Option<PathBuf>,
    pub memory: Option<PathBuf>,
    pub pids: Option<PathBuf>,
    pub blkio: Option<PathBuf>,
    pub unified: Option<PathBuf>,
}

/// The kernel's clock ticks in nanoseconds: cpuacct.stat counts in them. 100 a second on every architecture that it runs on.
const TICK_NANOSECONDS: u64 = 10_000_000;

pub(super) fn cpu_nanoseconds(mounts: &Mounts, reader: &mut Reader, cgroup: &str) -> Option<u64> {
    reader.number_below(mounts.cpuacct.as_ref()?, cgroup, "cpuacct.usage")
}

pub(super) fn usage(mounts: &Mounts, reader: &mut Reader, cgroup: &str) -> Usage {
    let mut usage = Usage { cpu_nanoseconds: cpu_nanoseconds(mounts, reader, cgroup), ..Usage::default() };
    if let Some(at) = &mounts.memory
        && let Some(bytes) = reader.number_below(at, cgroup, "memory.usage_in_bytes")
    {
        let limit = reader.number_below(at, cgroup, "memory.limit_in_bytes");
        let both = memory::limit(reader.number_below(at, cgroup, "memory.memsw.limit_in_bytes"));
        let stat = reader.below(at, cgroup, "memory.stat").unwrap_or_default();
        let memory = memory::v1(bytes, limit, stat);
        let limit = both.map(|both| both.saturating_sub(memory.limit.unwrap_or(0)));
        usage.swap = memory.swap.map(|swap| Swap { usage: swap, limit });
        usage.memory = Some(memory);
    }
    if let Some(at) = &mounts.pids {
        usage.tasks = reader.number_below(at, cgroup, "pids.current");
    }
    if let Some(at) = &mounts.unified {
        usage.pressure = pressure_below(reader, at, cgroup);
    }
    usage
}

pub(super) fn detail(mounts: &Mounts, reader: &mut Reader, cgroup: &str) -> Detail {
    let mut detail = Detail::default();
    if let Some(at) = &mounts.cpuacct {
        let stat = reader.below(at, cgroup, "cpuacct.stat").unwrap_or_default();
        detail.cpu.user = kernel::keyed(stat, "user").and_then(|ticks| ticks.checked_mul(TICK_NANOSECONDS));
        detail.cpu.system = kernel::keyed(stat, "system").and_then(|ticks| ticks.checked_mul(TICK_NANOSECONDS));
    }
    if let Some(at) = &mounts.cpu {
        detail.cpu.shares = reader.number_below(at, cgroup, "cpu.shares");
        detail.cpu.period = reader.number_below(at, cgroup, "cpu.cfs_period_us");
        // -1, which is no number here: none.
        detail.cpu.quota = reader.number_below(at, cgroup, "cpu.cfs_quota_us");
        if detail.cpu.quota.is_some() {
            throttled(&mut detail.cpu, reader.below(at, cgroup, "cpu.stat").unwrap_or_default());
        }
    }
    if let Some(at) = &mounts.memory {
        let mut number = |name: &str| reader.number_below(at, cgroup, name);
        detail.memory = MemoryDetail {
            max_usage: number("memory.max_usage_in_bytes"),
            kernel: number("memory.kmem.usage_in_bytes"),
            failures: number("memory.failcnt"),
            reservation: memory::limit(number("memory.soft_limit_in_bytes")),
            swap_limit: memory::limit(number("memory.memsw.limit_in_bytes")),
        };
        let control = reader.below(at, cgroup, "memory.oom_control").unwrap_or_default();
        detail.oom_kills = kernel::keyed(control, "oom_kill");
    }
    if let Some(at) = &mounts.pids {
        detail.threads_max = Some(reader.number_below(at, cgroup, "pids.max").unwrap_or(0));
    }
    if let Some(at) = &mounts.blkio {
        let counts = io::V1_FILES.iter().find(|[bytes, _]| reader.below(at, cgroup, bytes).is_ok_and(io::v1_counts));
        if let Some([bytes, operations]) = counts {
            let bytes = reader.below(at, cgroup, bytes).unwrap_or_default().to_vec();
            detail.io = io::v1(&bytes, reader.below(at, cgroup, operations).unwrap_or_default());
        }
    }
    detail
}

fn throttled(cpu: &mut CgroupCpu, stat: &[u8]) {
    for (key, value) in kernel::pairs(stat) {
        match key {
            b"nr_periods" => cpu.cfs_periods = value,
            b"nr_throttled" => cpu.cfs_throttled_periods = value,
            b"throttled_time" => cpu.cfs_throttled = value,
            b"nr_bursts" => cpu.cfs_burst_periods = value,
            b"burst_time" => cpu.cfs_burst = value,
            _ => {}
        }
    }
}
