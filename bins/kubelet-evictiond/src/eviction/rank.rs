//! Who goes first (upstream `pkg/kubelet/eviction/helpers.go` rankMemoryPressure, rankPIDPressure, rankDiskPressureFunc). Pure.

use std::cmp::Ordering;

use bulkhead_config::eviction::Signal;
use bulkhead_ipc::evictiond::{FsStats, PodStats};
use bulkhead_ipc::syncd::Candidate;

use crate::signals::observation::Resource;
use crate::signals::thresholds::Layout;

/// A pod with what it uses.
#[derive(Debug, Clone)]
pub struct Ranked {
    pub pod: Candidate,
    /// `None`: nothing was measured of it.
    pub stats: Option<PodStats>,
}

impl Ranked {
    /// With what was measured of it, if anything was.
    pub fn of(pod: Candidate, measured: &[PodStats]) -> Self {
        let stats = measured.iter().find(|stats| stats.uid == pod.uid).cloned();
        Ranked { pod, stats }
    }
}

/// What of a pod's disks counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Parts {
    /// Writable layers.
    pub root_fs: bool,
    pub logs: bool,
    pub local_volumes: bool,
}

/// What lies on the file system that is short.
pub fn parts(signal: Signal, layout: Layout) -> Parts {
    use Signal::{ContainerFsAvailable, ContainerFsInodesFree, ImageFsAvailable, ImageFsInodesFree};
    use Signal::{NodeFsAvailable, NodeFsInodesFree};
    let all = Parts { root_fs: true, logs: true, local_volumes: true };
    match (layout, signal) {
        (Layout::Single, _) => all,
        (Layout::ImageFs, NodeFsAvailable | NodeFsInodesFree) => Parts { root_fs: false, ..all },
        (Layout::ImageFs, _) => Parts { root_fs: true, ..Parts::default() },
        (Layout::Split, NodeFsAvailable | NodeFsInodesFree | ContainerFsAvailable | ContainerFsInodesFree) => all,
        // Images alone, which are nobody's.
        (Layout::Split, ImageFsAvailable | ImageFsInodesFree) => Parts::default(),
        (Layout::Split, _) => all,
    }
}

/// What a pod uses of what is short, and what it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub used: i64,
    /// Above which it uses more than it asked for.
    pub request: i64,
    /// How far it is above that, by the request that upstream subtracts: of inodes that of bytes.
    pub excess: i64,
}

/// `None`: nothing was measured.
pub fn usage(ranked: &Ranked, signal: Signal, layout: Layout) -> Option<Usage> {
    let stats = ranked.stats.as_ref()?;
    let pod = &ranked.pod;
    Some(match Resource::of(signal) {
        Resource::Memory => {
            let used = signed(stats.memory.as_ref().and_then(|memory| memory.working_set_bytes));
            Usage { used, request: pod.memory_request, excess: used.saturating_sub(pod.memory_request) }
        }
        Resource::Pids => {
            let used = signed(stats.process.as_ref().and_then(|process| process.process_count));
            Usage { used, request: 0, excess: used }
        }
        Resource::EphemeralStorage => {
            let used = disk(stats, &pod.local_volumes, parts(signal, layout), |fs| fs.used_bytes);
            let request = pod.ephemeral_storage_request;
            Usage { used, request, excess: used.saturating_sub(request) }
        }
        Resource::Inodes => {
            let used = disk(stats, &pod.local_volumes, parts(signal, layout), |fs| fs.inodes_used);
            Usage { used, request: 0, excess: used.saturating_sub(pod.ephemeral_storage_request) }
        }
    })
}

fn signed(number: Option<u64>) -> i64 {
    i64::try_from(number.unwrap_or(0)).unwrap_or(i64::MAX)
}

fn disk(stats: &PodStats, local: &[String], parts: Parts, of: impl Fn(&FsStats) -> Option<u64>) -> i64 {
    let amount = |fs: Option<&FsStats>| signed(fs.and_then(&of));
    let mut sum = 0_i64;
    for container in &stats.containers {
        if parts.root_fs {
            sum = sum.saturating_add(amount(container.rootfs.as_ref()));
        }
        if parts.logs {
            sum = sum.saturating_add(amount(container.logs.as_ref()));
        }
    }
    if parts.local_volumes {
        let volumes = stats.volumes.iter().filter(|volume| local.contains(&volume.name));
        sum = volumes.fold(sum, |sum, volume| sum.saturating_add(amount(volume.fs.as_ref())));
    }
    sum
}

/// Sorts: who goes first is first.
pub fn rank(pods: &mut [Ranked], signal: Signal, layout: Layout) {
    let by_pids = Resource::of(signal) == Resource::Pids;
    pods.sort_by(|a, b| {
        let (a_uses, b_uses) = (usage(a, signal, layout), usage(b, signal, layout));
        // Nothing known of it: first.
        let unknown = || b_uses.is_none().cmp(&a_uses.is_none());
        let both = a_uses.zip(b_uses);
        let exceeds = |uses: Usage| uses.used > uses.request;
        let by_request = match both {
            _ if by_pids => Ordering::Equal,
            Some((a, b)) => exceeds(b).cmp(&exceeds(a)),
            None => unknown(),
        };
        let by_excess = both.map_or_else(unknown, |(a, b)| b.excess.cmp(&a.excess));
        by_request.then(a.pod.priority.cmp(&b.pod.priority)).then(by_excess)
    });
}

#[cfg(test)]
mod tests {
    use bulkhead_ipc::evictiond::{ContainerStats, MemoryStats, ProcessStats, VolumeStats};
    use proptest::prelude::*;

    use super::*;

    fn pod(name: &str, priority: i32, request: i64, used: Option<u64>) -> Ranked {
        let fs = |used| Some(FsStats { used_bytes: Some(used), inodes_used: Some(used), ..FsStats::default() });
        let stats = used.map(|used| PodStats {
            memory: Some(MemoryStats { working_set_bytes: Some(used), ..MemoryStats::default() }),
            process: Some(ProcessStats { process_count: Some(used) }),
            containers: vec![ContainerStats { rootfs: fs(used), logs: fs(1), ..ContainerStats::default() }],
            volumes: ["scratch", "secret"]
                .map(|name| VolumeStats { name: name.into(), fs: fs(10), ..VolumeStats::default() })
                .into(),
            ..PodStats::default()
        });
        let pod = Candidate {
            name: name.into(),
            priority,
            memory_request: request,
            ephemeral_storage_request: request,
            local_volumes: vec!["scratch".into()],
            ..Candidate::default()
        };
        Ranked { pod, stats }
    }

    fn order(mut pods: Vec<Ranked>, signal: Signal) -> Vec<String> {
        rank(&mut pods, signal, Layout::Single);
        pods.into_iter().map(|ranked| ranked.pod.name).collect()
    }

    #[test]
    fn over_its_request_then_priority_then_by_how_much() {
        let pods = || {
            vec![
                pod("below", 0, 1000, Some(900)),
                pod("above-important", 10, 100, Some(900)),
                pod("above-a-little", 0, 100, Some(200)),
                pod("above-much", 0, 100, Some(500)),
                pod("unknown", 50, 0, None),
                pod("no-request", 0, 0, Some(300)),
            ]
        };
        let memory = ["unknown", "above-much", "no-request", "above-a-little", "above-important", "below"];
        assert_eq!(order(pods(), Signal::MemoryAvailable), memory);
        assert_eq!(order(pods(), Signal::AllocatableMemoryAvailable), memory);
        assert_eq!(
            order(pods(), Signal::PidAvailable),
            ["below", "above-much", "no-request", "above-a-little", "above-important", "unknown"],
            "no request of tasks: by priority, then by number"
        );
        assert_eq!(order(pods(), Signal::NodeFsAvailable), memory);
        // All use inodes, of which none asks; upstream subtracts the request of bytes.
        assert_eq!(
            order(pods(), Signal::NodeFsInodesFree),
            ["unknown", "above-much", "no-request", "above-a-little", "below", "above-important"]
        );
    }

    #[test]
    fn what_counts_depends_on_where_it_lies() {
        let one = pod("p", 0, 0, Some(100));
        let used = |signal, layout| usage(&one, signal, layout).unwrap().used;
        for (layout, node, image, container) in
            [(Layout::Single, 111, 111, 111), (Layout::ImageFs, 11, 100, 100), (Layout::Split, 111, 0, 111)]
        {
            let all = [Signal::NodeFsAvailable, Signal::ImageFsAvailable, Signal::ContainerFsAvailable];
            assert_eq!(all.map(|signal| used(signal, layout)), [node, image, container], "{layout:?}");
            let all = [Signal::NodeFsInodesFree, Signal::ImageFsInodesFree, Signal::ContainerFsInodesFree];
            assert_eq!(all.map(|signal| used(signal, layout)), [node, image, container], "{layout:?}");
        }
    }

    proptest! {
        /// A total order: sorting never panics, and nobody of a lower rank stands before somebody of a higher one.
        #[test]
        fn any_pods(pods in prop::collection::vec((any::<i8>(), 0..100_i64, prop::option::of(0..100_u64)), 0..30)) {
            let mut pods: Vec<Ranked> = pods.into_iter().map(|(p, r, u)| pod("p", p.into(), r, u)).collect();
            rank(&mut pods, Signal::MemoryAvailable, Layout::Single);
            for pair in pods.windows(2) {
                let [a, b] = pair else { continue };
                let key = |ranked: &Ranked| {
                    let uses = usage(ranked, Signal::MemoryAvailable, Layout::Single);
                    (uses.is_some(), uses.is_some_and(|uses| uses.used <= uses.request), ranked.pod.priority)
                };
                prop_assert!(key(a) <= key(b));
            }
        }
    }
}
