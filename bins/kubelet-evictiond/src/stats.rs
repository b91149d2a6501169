//! Readings as the messages that the API carries. Pure, but for the clock.

use bulkhead_ipc::evictiond::{
    ContainerStats, CpuStats, FsStats, IoStats, MemoryStats, NetworkStats, Psi, PsiData, SwapStats,
};
use bulkhead_ipc::syncd::DiskUsage;

use crate::cgroup::{self, Usage};
use crate::disk::{FileSystem, Folder};

/// When something was read.
#[derive(Debug, Clone)]
pub struct Moment {
    /// RFC 3339, milliseconds.
    pub text: String,
    /// Since the epoch.
    pub milliseconds: i64,
}

impl Moment {
    pub fn now() -> Self {
        Self::at(jiff::Timestamp::now())
    }

    fn at(time: jiff::Timestamp) -> Self {
        Moment { text: format!("{time:.3}"), milliseconds: time.as_millisecond() }
    }
}

pub fn memory(usage: &Usage, time: &Moment) -> Option<MemoryStats> {
    let memory = usage.memory?;
    Some(MemoryStats {
        time: time.text.clone(),
        available_bytes: memory.limit.map(|limit| limit.saturating_sub(memory.working_set)),
        usage_bytes: Some(memory.usage),
        working_set_bytes: Some(memory.working_set),
        rss_bytes: memory.rss,
        page_faults: memory.page_faults,
        major_page_faults: memory.major_page_faults,
        psi: Some(pressure(usage.pressure.memory)),
    })
}

/// What a pod without a cgroup uses: the sums of its containers (upstream `cri_stats_provider.go`, addPodCPUMemoryStats). A figure
/// that one of them lacks counts as nothing; pressure cannot be summed.
pub fn of_containers(containers: &[ContainerStats]) -> (Option<CpuStats>, Option<MemoryStats>) {
    let cpu = containers.iter().filter_map(|container| container.cpu.as_ref()).fold(None, |sum, one| {
        let mut sum: CpuStats = sum.unwrap_or_default();
        sum.time.clone_from(&one.time);
        plus(&mut sum.usage_nano_cores, one.usage_nano_cores);
        plus(&mut sum.usage_core_nano_seconds, one.usage_core_nano_seconds);
        Some(sum)
    });
    let memory = containers.iter().filter_map(|container| container.memory.as_ref()).fold(None, |sum, one| {
        let mut sum: MemoryStats = sum.unwrap_or_default();
        sum.time.clone_from(&one.time);
        plus(&mut sum.available_bytes, one.available_bytes);
        plus(&mut sum.usage_bytes, one.usage_bytes);
        plus(&mut sum.working_set_bytes, one.working_set_bytes);
        plus(&mut sum.rss_bytes, one.rss_bytes);
        plus(&mut sum.page_faults, one.page_faults);
        plus(&mut sum.major_page_faults, one.major_page_faults);
        Some(sum)
    });
    (cpu, memory)
}

/// The same of swap (upstream addSwapStats); `None`: nobody has figures of it.
pub fn swap_of_containers(containers: &[ContainerStats]) -> Option<SwapStats> {
    containers.iter().filter_map(|container| container.swap.as_ref()).fold(None, |sum, one| {
        let mut sum: SwapStats = sum.unwrap_or_default();
        sum.time.clone_from(&one.time);
        plus(&mut sum.available_bytes, one.available_bytes);
        plus(&mut sum.usage_bytes, one.usage_bytes);
        Some(sum)
    })
}

fn plus(sum: &mut Option<u64>, one: Option<u64>) {
    *sum = one.map(|one| sum.unwrap_or(0).saturating_add(one)).or(*sum);
}

pub fn io(usage: &Usage, time: &Moment) -> IoStats {
    IoStats { time: time.text.clone(), psi: Some(pressure(usage.pressure.io)) }
}

/// Of every cgroup with memory, as upstream (`pkg/kubelet/stats/helper.go`, cadvisorInfoToSwapStats): kernels that do not account swap have
/// no file of it, and a file that is not there is read as 0, that of the limit as well.
pub fn swap(usage: &Usage, time: &Moment) -> Option<SwapStats> {
    let unaccounted = || usage.memory.map(|_| cgroup::Swap { usage: 0, limit: Some(0) });
    let swap = usage.swap.or_else(unaccounted)?;
    Some(SwapStats {
        time: time.text.clone(),
        available_bytes: swap.limit.map(|limit| limit.saturating_sub(swap.usage)),
        usage_bytes: Some(swap.usage),
    })
}

/// What is measured has a pressure, as upstream (`pkg/kubelet/stats/helper.go`, cadvisorInfoToCPUandMemoryStats): where the kernel gives
/// none its lines are absent, and /stats/summary shows zeros.
pub fn pressure(of_kernel: Option<cgroup::Psi>) -> Psi {
    of_kernel.map(psi).unwrap_or_default()
}

pub fn psi(psi: cgroup::Psi) -> Psi {
    let line =
        |line: cgroup::Line| PsiData { total: line.total, avg10: line.avg10, avg60: line.avg60, avg300: line.avg300 };
    Psi { some: Some(line(psi.some)), full: Some(line(psi.full)) }
}

pub fn network(interfaces: Vec<bulkhead_ipc::evictiond::InterfaceStats>, time: &Moment) -> NetworkStats {
    NetworkStats { time: time.text.clone(), interfaces }
}

/// A file system as a whole.
pub fn whole(fs: FileSystem, time: &str) -> FsStats {
    FsStats {
        time: time.to_owned(),
        available_bytes: Some(fs.available),
        capacity_bytes: Some(fs.capacity),
        used_bytes: Some(fs.used),
        inodes_free: Some(fs.inodes_free),
        inodes: Some(fs.inodes),
        inodes_used: Some(fs.inodes.saturating_sub(fs.inodes_free)),
    }
}

/// A folder's share of its file system.
pub fn part(fs: FileSystem, folder: Folder, time: &str) -> FsStats {
    FsStats { used_bytes: Some(folder.bytes), inodes_used: Some(folder.inodes), ..whole(fs, time) }
}

/// A moment as the runtime tells it, in RFC 3339.
pub fn time_of(milliseconds: i64) -> Option<String> {
    jiff::Timestamp::from_millisecond(milliseconds).map(|time| Moment::at(time).text).ok()
}

/// What the runtime says of a share; the rest of the file system is absent while it is not known here.
pub fn told(usage: &DiskUsage, fs: Option<FileSystem>) -> FsStats {
    let time = time_of(usage.time_ms).unwrap_or_default();
    let fs = fs.map(|fs| whole(fs, &time)).unwrap_or_default();
    FsStats { time, used_bytes: usage.used_bytes, inodes_used: usage.inodes_used, ..fs }
}

/// Adds what one share uses to a sum, unknown counting as nothing.
pub fn add(sum: &mut Folder, share: &FsStats) {
    sum.bytes = sum.bytes.saturating_add(share.used_bytes.unwrap_or(0));
    sum.inodes = sum.inodes.saturating_add(share.inodes_used.unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::{Memory, Swap};

    #[test]
    fn swap_that_is_not_there() {
        let time = Moment::now();
        let memory = Some(Memory::default());
        let usage = |swap| Usage { memory, swap, ..Usage::default() };
        let figures = |usage: &Usage| swap(usage, &time).map(|swap| (swap.usage_bytes, swap.available_bytes));
        let limited = usage(Some(Swap { usage: 3, limit: Some(10) }));
        assert_eq!(figures(&limited), Some((Some(3), Some(7))));
        let open = usage(Some(Swap { usage: 3, limit: None }));
        assert_eq!(figures(&open), Some((Some(3), None)), "no limit, no figure");
        assert_eq!(figures(&usage(None)), Some((Some(0), Some(0))), "not accounted");
        assert_eq!(figures(&Usage::default()), None, "no such group");
    }

    #[test]
    fn pressure_that_the_kernel_does_not_give_has_no_lines() {
        let (time, memory) = (Moment::now(), Some(Memory::default()));
        let silent = Usage { memory, ..Usage::default() };
        assert_eq!(super::memory(&silent, &time).unwrap().psi, Some(Psi::default()));
        assert_eq!(io(&silent, &time).psi, Some(Psi::default()));
        let line = cgroup::Line { total: 7, avg10: 0.0, avg60: 1.25, avg300: 0.0 };
        let told = pressure(Some(cgroup::Psi { some: line, full: line }));
        assert_eq!(told.full.unwrap().total, 7);
    }

    #[test]
    fn sums_of_a_pod_without_a_cgroup() {
        let container = |rate, working_set, rss| ContainerStats {
            cpu: Some(CpuStats {
                time: "t".to_owned(),
                usage_nano_cores: rate,
                usage_core_nano_seconds: Some(5),
                psi: Some(Psi::default()),
            }),
            memory: Some(MemoryStats {
                working_set_bytes: Some(working_set),
                rss_bytes: rss,
                ..MemoryStats::default()
            }),
            ..ContainerStats::default()
        };
        let all = [container(Some(1), 10, None), ContainerStats::default(), container(None, 20, Some(7))];
        let (cpu, memory) = of_containers(&all);
        let expected =
            CpuStats { time: "t".to_owned(), usage_nano_cores: Some(1), usage_core_nano_seconds: Some(10), psi: None };
        assert_eq!(cpu, Some(expected));
        let memory = memory.unwrap();
        assert_eq!((memory.working_set_bytes, memory.rss_bytes, memory.usage_bytes), (Some(30), Some(7), None));
        assert_eq!(of_containers(&[ContainerStats::default()]), (None, None));
    }

    #[test]
    fn shares_of_unknown_file_systems() {
        let usage = DiskUsage { time_ms: 1_795_222_061_500, used_bytes: Some(32_768), ..DiskUsage::default() };
        let alone = told(&usage, None);
        assert_eq!((alone.used_bytes, alone.capacity_bytes, alone.inodes_used), (Some(32_768), None, None));
        assert_eq!(alone.time, "2026-11-21T00:47:41.500Z");
        let fs = FileSystem { capacity: 100, available: 50, used: 50, inodes: 10, inodes_free: 4, device: 0 };
        let known = told(&usage, Some(fs));
        assert_eq!((known.capacity_bytes, known.inodes_used), (Some(100), None), "of images, not of everybody");
        let mut sum = Folder::default();
        add(&mut sum, &known);
        assert_eq!((sum.bytes, sum.inodes), (32_768, 0));
    }
}
