//! Which thresholds are in force: those of the configuration, the copy for the pods' memory, and those of containerfs, which follow
//! where containers' writable layers lie (upstream `pkg/kubelet/eviction/helpers.go` addAllocatableThresholds,
//! UpdateContainerFsThresholds). Pure.

use bulkhead_config::eviction::{Signal, Threshold};

/// Where images and containers' writable layers lie, as seen from the file system of the root directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// All on that one.
    #[default]
    Single,
    /// Images and writable layers together on another one.
    ImageFs,
    /// Images and writable layers on two. Thresholds of containerfs are then those of nodefs, wherever the layers lie (upstream
    /// UpdateContainerFsThresholds).
    Split,
}

impl Layout {
    /// By the devices of the root directory, of images and of containers (upstream `pkg/kubelet/stats/provider.go` HasDedicatedImageFs,
    /// HasDedicatedContainerFs: a writable layer that does not lie with images makes these dedicated as well).
    pub fn of(root: u64, images: u64, containers: u64) -> Self {
        match (images == root, containers == images) {
            (true, true) => Layout::Single,
            (false, true) => Layout::ImageFs,
            (_, false) => Layout::Split,
        }
    }
}

/// All thresholds in force. `allocatable`: the pods' memory as a whole is limited (`enforceNodeAllocatable` has `pods`). While the layout
/// is not known containerfs has none: those of the file system on which the layers do not lie would be met by the other's figures.
pub fn in_force(configured: &[Threshold], allocatable: bool, layout: Option<Layout>) -> Vec<Threshold> {
    let is_container_fs =
        |signal: Signal| matches!(signal, Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree);
    let kept = configured.iter().filter(|threshold| !is_container_fs(threshold.signal));
    let mut thresholds: Vec<Threshold> = kept.copied().collect();
    if allocatable {
        let hard = configured.iter().filter(|t| t.signal == Signal::MemoryAvailable && t.is_hard());
        thresholds.extend(hard.map(|t| Threshold { signal: Signal::AllocatableMemoryAvailable, ..*t }));
    }
    let copied = configured.iter().filter_map(|threshold| {
        let signal = match (layout?, threshold.signal) {
            (Layout::Single | Layout::Split, Signal::NodeFsAvailable) => Signal::ContainerFsAvailable,
            (Layout::Single | Layout::Split, Signal::NodeFsInodesFree) => Signal::ContainerFsInodesFree,
            (Layout::ImageFs, Signal::ImageFsAvailable) => Signal::ContainerFsAvailable,
            (Layout::ImageFs, Signal::ImageFsInodesFree) => Signal::ContainerFsInodesFree,
            _ => return None,
        };
        Some(Threshold { signal, ..*threshold })
    });
    thresholds.extend(copied);
    thresholds
}

/// Thresholds of containerfs that the configuration has and that do not count.
pub fn ignored(configured: &[Threshold]) -> Vec<(Signal, &'static str)> {
    let of = [Signal::ContainerFsAvailable, Signal::ContainerFsInodesFree];
    let found = configured.iter().filter(|threshold| of.contains(&threshold.signal));
    found.map(|threshold| (threshold.signal, if threshold.is_hard() { "hard" } else { "soft" })).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bulkhead_config::eviction::Limit;
    use bulkhead_types::Quantity;

    use super::*;

    fn threshold(signal: Signal, bytes: i64, grace: u64) -> Threshold {
        Threshold {
            signal,
            limit: Limit::Quantity(Quantity::from_bytes(bytes)),
            grace_period: Duration::from_secs(grace),
            min_reclaim: None,
        }
    }

    #[test]
    fn container_fs_follows_where_the_layers_lie() {
        let configured = [
            threshold(Signal::MemoryAvailable, 1, 0),
            threshold(Signal::NodeFsAvailable, 10, 0),
            threshold(Signal::ImageFsAvailable, 20, 0),
            threshold(Signal::ImageFsInodesFree, 30, 60),
            threshold(Signal::ContainerFsAvailable, 99, 0),
            threshold(Signal::MemoryAvailable, 2, 60),
        ];
        let of = |layout| {
            let all = in_force(&configured, true, Some(layout));
            let containers = all.iter().filter(|t| t.signal.as_str().starts_with("containerfs"));
            containers.map(|t| (t.signal.as_str(), t.limit.absolute(0), t.grace_period.as_secs())).collect::<Vec<_>>()
        };
        assert_eq!(of(Layout::Single), [("containerfs.available", 10, 0)]);
        assert_eq!(of(Layout::Split), [("containerfs.available", 10, 0)]);
        assert_eq!(of(Layout::ImageFs), [("containerfs.available", 20, 0), ("containerfs.inodesFree", 30, 60)]);
        let unknown = in_force(&configured, true, None);
        assert!(!unknown.iter().any(|t| t.signal == Signal::ContainerFsAvailable), "{unknown:?}");
        assert_eq!(ignored(&configured), [(Signal::ContainerFsAvailable, "hard")]);
        let pods: Vec<_> = in_force(&configured, true, Some(Layout::Single))
            .into_iter()
            .filter(|t| t.signal == Signal::AllocatableMemoryAvailable)
            .collect();
        assert_eq!(pods, [threshold(Signal::AllocatableMemoryAvailable, 1, 0)], "the hard one alone");
        assert!(
            !in_force(&configured, false, Some(Layout::Single))
                .iter()
                .any(|t| t.signal == Signal::AllocatableMemoryAvailable)
        );
    }

    #[test]
    fn layouts() {
        assert_eq!(Layout::of(1, 1, 1), Layout::Single);
        assert_eq!(Layout::of(1, 2, 2), Layout::ImageFs);
        assert_eq!(Layout::of(1, 2, 1), Layout::Split);
        assert_eq!(Layout::of(1, 1, 2), Layout::Split, "CRI-O with an image store on the root directory's disk");
        assert_eq!(Layout::of(1, 2, 3), Layout::Split);
    }
}
