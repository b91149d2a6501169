//! Memory figures out of `memory.stat`. Which numbers make "usage" and "working set" follows cAdvisor
//! (`container/libcontainer/handler.go`): working set = usage - inactive_file. Pure.

use crate::kernel;

/// Memory in bytes, faults in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    pub usage: u64,
    pub working_set: u64,
    pub rss: Option<u64>,
    pub cache: Option<u64>,
    pub mapped_file: Option<u64>,
    pub active_file: Option<u64>,
    pub inactive_file: Option<u64>,
    /// v2 alone; v1 has a file of its own.
    pub kernel: Option<u64>,
    /// v1 alone; v2 has a file of its own.
    pub swap: Option<u64>,
    pub page_faults: Option<u64>,
    pub major_page_faults: Option<u64>,
    /// `None`: no limit.
    pub limit: Option<u64>,
}

/// Swap in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swap {
    pub usage: u64,
    /// Of swap alone. `None`: no limit.
    pub limit: Option<u64>,
}

/// Above this a limit means "none" (upstream `pkg/kubelet/stats/helper.go`).
const UNLIMITED: u64 = 1 << 62;

/// A limit as a file gives it ("max" is no number); what is too large is none.
pub fn limit(value: Option<u64>) -> Option<u64> {
    value.filter(|limit| *limit <= UNLIMITED)
}

/// Of v1: the `total_` values count children in; page faults are the cgroup's own, as cAdvisor reports them.
pub fn v1(usage: u64, limit_in_bytes: Option<u64>, stat: &[u8]) -> Memory {
    let mut memory = Memory { usage, limit: limit(limit_in_bytes), ..Memory::default() };
    for (key, value) in kernel::pairs(stat) {
        let slot = match key {
            b"total_rss" => &mut memory.rss,
            b"total_cache" => &mut memory.cache,
            b"total_mapped_file" => &mut memory.mapped_file,
            b"total_active_file" => &mut memory.active_file,
            b"total_inactive_file" => &mut memory.inactive_file,
            b"total_swap" => &mut memory.swap,
            b"pgfault" => &mut memory.page_faults,
            b"pgmajfault" => &mut memory.major_page_faults,
            _ => continue,
        };
        *slot = Some(value);
    }
    memory.working_set = usage.saturating_sub(memory.inactive_file.unwrap_or(0));
    memory
}

/// Of v2, which counts children in everywhere. `usage: None` is the root, which has no file for it: what is anonymous
/// and what is cached together, as v1 counts it there.
pub fn v2(usage: Option<u64>, max: Option<u64>, stat: &[u8]) -> Option<Memory> {
    let mut memory = Memory { limit: limit(max), ..Memory::default() };
    for (key, value) in kernel::pairs(stat) {
        let slot = match key {
            b"anon" => &mut memory.rss,
            b"file" => &mut memory.cache,
            b"file_mapped" => &mut memory.mapped_file,
            b"active_file" => &mut memory.active_file,
            b"inactive_file" => &mut memory.inactive_file,
            b"kernel" => &mut memory.kernel,
            b"pgfault" => &mut memory.page_faults,
            b"pgmajfault" => &mut memory.major_page_faults,
            _ => continue,
        };
        *slot = Some(value);
    }
    memory.usage = usage.or_else(|| memory.rss?.checked_add(memory.cache?))?;
    memory.working_set = memory.usage.saturating_sub(memory.inactive_file.unwrap_or(0));
    Some(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn working_sets() {
        let stat = b"cache 5\nrss 7\npgfault 9\npgmajfault 2\ntotal_rss 11\ntotal_inactive_file 40\ninactive_file 1\n";
        let memory = v1(100, Some(u64::MAX >> 1), stat);
        assert_eq!((memory.usage, memory.working_set, memory.rss), (100, 60, Some(11)));
        assert_eq!((memory.page_faults, memory.major_page_faults, memory.limit), (Some(9), Some(2), None));
        assert_eq!(v1(30, Some(64), stat).working_set, 0, "never below zero");
        assert_eq!(v1(30, Some(64), stat).limit, Some(64));
        let stat = b"anon 7\nfile 3\nkernel 2\ninactive_file 10\npgfault 1\npgmajfault 0\n";
        let memory = v2(Some(100), None, stat).unwrap();
        assert_eq!((memory.working_set, memory.rss, memory.cache), (90, Some(7), Some(3)));
        assert_eq!((memory.kernel, memory.limit), (Some(2), None));
        assert_eq!(v2(None, None, stat).unwrap().usage, 10, "the root");
        assert_eq!(v2(None, None, b"x 1\n"), None);
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parsers_panic(stat in proptest::collection::vec(any::<u8>(), 0..300),
                                           usage in any::<u64>(), limit in any::<Option<u64>>()) {
            prop_assert!(v1(usage, limit, &stat).working_set <= usage);
            prop_assert!(v2(Some(usage), limit, &stat).is_some_and(|memory| memory.working_set <= usage));
            let _ = v2(None, limit, &stat);
        }
    }
}
