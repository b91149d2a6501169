//! The order of a resize: memory, then CPU; of each first what makes room (the pod's limit and then its request, when
//! they grow), then the containers, decreases before increases, then what takes room away (the pod's request and then
//! its limit). So the pod's limit is never less than the sum of its containers'. Pure.

use super::plan::{ContainerUpdate, Kind, Resize};
use kubelet_model::pod::resources::CgroupResources;

/// What the pod's cgroup has, as far as a resize is about it. Limits that are none are -1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodLimits {
    /// cgroup v1 shares.
    pub cpu_shares: u64,
    /// Microseconds in a period.
    pub cpu_quota_us: i64,
    pub cpu_period_us: u64,
    /// Bytes.
    pub memory_limit_bytes: i64,
}

impl PodLimits {
    /// These limits with what a pod is to have. Removing a limit is not supported, as upstream: it stays as it is.
    #[must_use]
    pub fn wanted(self, wanted: &CgroupResources) -> Self {
        PodLimits {
            cpu_shares: wanted.cpu_shares.unwrap_or(self.cpu_shares),
            cpu_quota_us: wanted.cpu_quota_us.filter(|q| *q != 0).unwrap_or(self.cpu_quota_us),
            cpu_period_us: wanted.cpu_period_us.unwrap_or(self.cpu_period_us),
            memory_limit_bytes: wanted.memory_limit_bytes.filter(|b| *b > 0).unwrap_or(self.memory_limit_bytes),
        }
    }

    /// Room that the limit of CPU leaves, in thousandths of a CPU; no limit is the largest.
    fn cpu(self) -> i64 {
        let period = i64::try_from(self.cpu_period_us).unwrap_or(i64::MAX).max(1);
        if self.cpu_quota_us < 0 { i64::MAX } else { self.cpu_quota_us.saturating_mul(1000) / period }
    }

    fn memory(self) -> i64 {
        if self.memory_limit_bytes < 0 { i64::MAX } else { self.memory_limit_bytes }
    }
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The pod's limit of a resource.
    PodLimit(Kind),
    /// The pod's request; that of memory stands in no cgroup.
    PodRequest(Kind),
    /// One container's limit and request; the number is that of the update.
    Container(Kind, usize),
}

/// All changes, in their order.
pub fn steps(resize: &Resize, current: PodLimits, wanted: PodLimits) -> Vec<Step> {
    let mut steps = Vec::new();
    for kind in [Kind::Memory, Kind::Cpu] {
        if !(resize.touches(kind) || resize.restarts || resize.pod_level) {
            continue;
        }
        let (old, new) = match kind {
            Kind::Memory => ((current.memory(), 0), (wanted.memory(), 0)),
            Kind::Cpu => ((current.cpu(), current.cpu_shares), (wanted.cpu(), wanted.cpu_shares)),
        };
        if new.0 > old.0 {
            steps.push(Step::PodLimit(kind));
        }
        if new.1 > old.1 {
            steps.push(Step::PodRequest(kind));
        }
        steps.extend(containers(&resize.updates, kind).map(|index| Step::Container(kind, index)));
        if new.1 < old.1 {
            steps.push(Step::PodRequest(kind));
        }
        if new.0 < old.0 {
            steps.push(Step::PodLimit(kind));
        }
    }
    steps
}

fn containers(updates: &[ContainerUpdate], kind: Kind) -> impl Iterator<Item = usize> {
    let those = move |grow: bool| {
        let all = updates.iter().enumerate();
        all.filter(move |(_, update)| update.grows(kind) == Some(grow)).map(|(index, _)| index)
    };
    those(false).chain(those(true))
}

#[cfg(test)]
#[path = "steps_tests.rs"]
mod tests;
