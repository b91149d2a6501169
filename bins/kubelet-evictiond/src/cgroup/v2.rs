//! Cgroups of version 2, all controllers in one tree.

use std::path::Path;

use bulkhead_types::cpu;

use super::memory::{self, Swap};
use super::{Detail, MemoryDetail, Usage, io, pressure_below};
use crate::kernel::{self, Reader};

pub(super) fn cpu_nanoseconds(root: &Path, reader: &mut Reader, cgroup: &str) -> Option<u64> {
    kernel::keyed(reader.below(root, cgroup, "cpu.stat").ok()?, "usage_usec")?.checked_mul(1000)
}

pub(super) fn usage(root: &Path, reader: &mut Reader, cgroup: &str) -> Usage {
    let cpu_nanoseconds = cpu_nanoseconds(root, reader, cgroup);
    let bytes = reader.number_below(root, cgroup, "memory.current");
    let is_root = cgroup.trim_matches('/').is_empty();
    let max = reader.number_below(root, cgroup, "memory.max");
    let memory = if bytes.is_some() || is_root {
        memory::v2(bytes, max, reader.below(root, cgroup, "memory.stat").unwrap_or_default())
    } else {
        None
    };
    let swap = reader
        .number_below(root, cgroup, "memory.swap.current")
        .map(|usage| Swap { usage, limit: memory::limit(reader.number_below(root, cgroup, "memory.swap.max")) });
    Usage {
        cpu_nanoseconds,
        memory,
        swap,
        tasks: reader.number_below(root, cgroup, "pids.current"),
        pressure: pressure_below(reader, root, cgroup),
    }
}

pub(super) fn detail(root: &Path, reader: &mut Reader, cgroup: &str) -> Detail {
    let mut detail = Detail::default();
    if let Ok(max) = reader.below(root, cgroup, "cpu.max") {
        (detail.cpu.quota, detail.cpu.period) = quota(max);
    }
    detail.cpu.shares = reader.number_below(root, cgroup, "cpu.weight").and_then(shares);
    for (key, value) in kernel::pairs(reader.below(root, cgroup, "cpu.stat").unwrap_or_default()) {
        let cpu = &mut detail.cpu;
        match key {
            b"user_usec" => cpu.user = value.checked_mul(1000),
            b"system_usec" => cpu.system = value.checked_mul(1000),
            b"nr_periods" => cpu.cfs_periods = value,
            b"nr_throttled" => cpu.cfs_throttled_periods = value,
            b"throttled_usec" => cpu.cfs_throttled = value.saturating_mul(1000),
            b"nr_bursts" => cpu.cfs_burst_periods = value,
            b"burst_usec" => cpu.cfs_burst = value.saturating_mul(1000),
            _ => {}
        }
    }
    let events = reader.below(root, cgroup, "memory.events").unwrap_or_default();
    let (failures, all_kills) = (kernel::keyed(events, "max"), kernel::keyed(events, "oom_kill"));
    // Those of children are counted there.
    let own = reader.below(root, cgroup, "memory.events.local").ok().and_then(|own| kernel::keyed(own, "oom_kill"));
    detail.oom_kills = own.or(all_kills);
    let mut number = |name: &str| reader.number_below(root, cgroup, name);
    detail.memory = MemoryDetail {
        max_usage: number("memory.peak"),
        kernel: None,
        failures,
        reservation: memory::limit(number("memory.min")),
        swap_limit: memory::limit(number("memory.swap.max")),
    };
    detail.threads_max = reader.below(root, cgroup, "pids.max").ok().map(|max| kernel::number(max).unwrap_or(0));
    detail.io = reader.below(root, cgroup, "io.stat").map(io::v2).unwrap_or_default();
    detail
}

/// `cpu.max`: "max 100000", "50000 100000".
fn quota(max: &[u8]) -> (Option<u64>, Option<u64>) {
    let text = std::str::from_utf8(max).unwrap_or_default();
    let mut fields = text.split_ascii_whitespace().map(|field| field.parse().ok());
    (fields.next().flatten(), fields.next().flatten())
}

/// A weight (1 to 10,000) as the shares that it was made of (2 to 262,144), as cAdvisor counts back.
fn shares(weight: u64) -> Option<u64> {
    (1..=10_000).contains(&weight).then(|| cpu::weight_to_shares(weight))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_and_weights() {
        assert_eq!(quota(b"max 100000\n"), (None, Some(100_000)));
        assert_eq!(quota(b"50000 100000\n"), (Some(50_000), Some(100_000)));
        assert_eq!(quota(b""), (None, None));
        assert_eq!((shares(1), shares(10_000), shares(0), shares(10_001)), (Some(2), Some(262_144), None, None));
        assert_eq!(shares(39), Some(998), "1024 shares are weight 39, which counts back to this upstream, too");
    }
}
