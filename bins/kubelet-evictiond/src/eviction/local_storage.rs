//! Who has used more of the node's disk than its own limits allow (upstream `pkg/kubelet/eviction/eviction_manager.go`
//! localStorageEviction). Pure. All of them go in one pass, whatever the node has left.

use bulkhead_ipc::evictiond::{FsStats, PodStats};
use bulkhead_ipc::syncd::Candidate;

use super::messages;
use crate::signals::thresholds::Layout;

/// Why a pod goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exceeded {
    /// As in the label of `kubelet_evictions`.
    pub signal: &'static str,
    pub message: String,
}

/// Whether anything of the pod has a limit that is looked after here.
pub fn has_limits(pod: &Candidate) -> bool {
    pod.ephemeral_storage_limit.is_some() || !pod.empty_dirs.is_empty()
}

/// The first limit that the pod exceeds.
pub fn exceeded(pod: &Candidate, stats: &PodStats, layout: Layout) -> Option<Exceeded> {
    empty_dir(pod, stats).or_else(|| whole_pod(pod, stats)).or_else(|| container(pod, stats, layout))
}

fn used(fs: Option<&FsStats>) -> i64 {
    i64::try_from(fs.and_then(|fs| fs.used_bytes).unwrap_or(0)).unwrap_or(i64::MAX)
}

fn empty_dir(pod: &Candidate, stats: &PodStats) -> Option<Exceeded> {
    let over = pod.empty_dirs.iter().find(|limited| {
        let volume = stats.volumes.iter().find(|volume| volume.name == limited.name);
        volume.is_some_and(|volume| used(volume.fs.as_ref()) > limited.size_limit)
    })?;
    let message = messages::empty_dir(&over.name, &over.size_limit_text);
    Some(Exceeded { signal: "emptydirfs.limit", message })
}

fn whole_pod(pod: &Candidate, stats: &PodStats) -> Option<Exceeded> {
    let over = used(stats.ephemeral_storage.as_ref()) > pod.ephemeral_storage_limit?;
    over.then(|| Exceeded {
        signal: "ephemeralpodfs.limit",
        message: messages::pod_ephemeral_storage(&pod.ephemeral_storage_limit_text),
    })
}

fn container(pod: &Candidate, stats: &PodStats, layout: Layout) -> Option<Exceeded> {
    let limited = pod.containers.iter().filter(|container| !container.init && container.ephemeral_storage_limit != 0);
    let over = limited.into_iter().find(|container| {
        let Some(one) = stats.containers.iter().find(|one| one.name == container.name) else { return false };
        let layer = if layout == Layout::Single { used(one.rootfs.as_ref()) } else { 0 };
        used(one.logs.as_ref()).saturating_add(layer) > container.ephemeral_storage_limit
    })?;
    let message = messages::container_ephemeral_storage(&over.name, &over.ephemeral_storage_limit_text);
    Some(Exceeded { signal: "ephemeralcontainerfs.limit", message })
}

#[cfg(test)]
mod tests {
    use bulkhead_ipc::evictiond::{ContainerStats, VolumeStats};
    use bulkhead_ipc::syncd::{CandidateContainer, CandidateEmptyDir};

    use super::*;

    fn fs(used: u64) -> Option<FsStats> {
        Some(FsStats { used_bytes: Some(used), ..FsStats::default() })
    }

    fn pod() -> Candidate {
        let container = |name: &str, init, limit, text: &str| CandidateContainer {
            name: name.into(),
            init,
            ephemeral_storage_limit: limit,
            ephemeral_storage_limit_text: text.into(),
            ..CandidateContainer::default()
        };
        Candidate {
            ephemeral_storage_limit: Some(1000),
            ephemeral_storage_limit_text: "1k".into(),
            containers: vec![
                container("a", false, 100, "100"),
                container("b", false, 0, "0"),
                container("i", true, 1, "1"),
            ],
            empty_dirs: vec![CandidateEmptyDir { name: "v".into(), size_limit: 50, size_limit_text: "50".into() }],
            ..Candidate::default()
        }
    }

    fn stats(volume: u64, total: u64, layer: u64, logs: u64) -> PodStats {
        let container =
            |name: &str| ContainerStats { name: name.into(), rootfs: fs(layer), logs: fs(logs), ..Default::default() };
        PodStats {
            volumes: vec![VolumeStats { name: "v".into(), fs: fs(volume), ..VolumeStats::default() }],
            ephemeral_storage: fs(total),
            containers: ["a", "b", "i"].map(container).into(),
            ..PodStats::default()
        }
    }

    #[test]
    fn each_limit() {
        let check =
            |stats: &PodStats, layout| exceeded(&pod(), stats, layout).map(|found| (found.signal, found.message));
        assert_eq!(check(&stats(50, 1000, 60, 40), Layout::Single), None, "a limit may be reached");
        assert_eq!(
            check(&stats(51, 1001, 0, 0), Layout::Single).unwrap(),
            ("emptydirfs.limit", "Usage of EmptyDir volume \"v\" exceeds the limit \"50\". ".to_owned())
        );
        assert_eq!(
            check(&stats(0, 1001, 0, 0), Layout::Single).unwrap(),
            (
                "ephemeralpodfs.limit",
                "Pod ephemeral local storage usage exceeds the total limit of containers 1k. ".to_owned()
            )
        );
        assert_eq!(
            check(&stats(0, 0, 61, 40), Layout::Single).unwrap(),
            (
                "ephemeralcontainerfs.limit",
                "Container a exceeded its local ephemeral storage limit \"100\". ".to_owned()
            )
        );
        assert_eq!(check(&stats(0, 0, 61, 40), Layout::ImageFs), None, "layers lie on another disk");
        assert_eq!(check(&stats(0, 0, 0, 101), Layout::Split).unwrap().0, "ephemeralcontainerfs.limit");
        assert_eq!(check(&PodStats::default(), Layout::Single), None, "nothing is known");
        assert!(has_limits(&pod()) && !has_limits(&Candidate::default()));
    }
}
