//! How long pods have when the machine goes down, by their priority (upstream `pkg/kubelet/nodeshutdown`). Pure.

use std::time::Duration;

use bulkhead_types::GoDuration;

use crate::gates::{Feature, FeatureGates};
use crate::kubelet::{KubeletConfiguration, ShutdownGracePeriodByPodPriority};

/// Priority of a pod that names none (upstream `scheduling.DefaultPriorityWhenNoDefaultClassExists`).
const DEFAULT_PRIORITY: i32 = 0;
/// From here on a pod is critical (upstream `scheduling.SystemCriticalPriority`).
const CRITICAL_PRIORITY: i32 = 2_000_000_000;
const SECOND: i64 = 1_000_000_000;

/// The groups, lowest priority first. Empty: pods are not ended when the machine goes down.
pub fn grace_periods(config: &KubeletConfiguration, gates: &FeatureGates) -> Vec<ShutdownGracePeriodByPodPriority> {
    if !gates.enabled(Feature::GracefulNodeShutdown) {
        return Vec::new();
    }
    let mut groups = config.shutdown_grace_period_by_pod_priority.clone();
    if !gates.enabled(Feature::GracefulNodeShutdownBasedOnPodPriority) || groups.is_empty() {
        groups = two_groups(config.shutdown_grace_period, config.shutdown_grace_period_critical_pods);
    }
    groups.sort_by_key(|group| group.priority);
    groups
}

/// How long a shutdown has to wait for all of them.
pub fn total(groups: &[ShutdownGracePeriodByPodPriority]) -> Duration {
    let seconds = groups.iter().map(|group| u64::try_from(group.shutdown_grace_period_seconds).unwrap_or(0));
    Duration::from_secs(seconds.fold(0, u64::saturating_add))
}

/// The older form: a time for all, and the part of it that critical pods have at its end (upstream `migrateConfig`).
fn two_groups(all: GoDuration, critical: GoDuration) -> Vec<ShutdownGracePeriodByPodPriority> {
    let first = all.as_nanos().saturating_sub(critical.as_nanos());
    if all.is_zero() || first < 0 || critical.is_negative() {
        return Vec::new();
    }
    let group = |priority, nanos: i64| ShutdownGracePeriodByPodPriority {
        priority,
        shutdown_grace_period_seconds: nanos / SECOND,
    };
    vec![group(DEFAULT_PRIORITY, first), group(CRITICAL_PRIORITY, critical.as_nanos())]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(groups: &[ShutdownGracePeriodByPodPriority]) -> Vec<(i32, i64)> {
        groups.iter().map(|group| (group.priority, group.shutdown_grace_period_seconds)).collect()
    }

    /// Upstream's `Test_migrateConfig`.
    #[test]
    fn the_older_form_is_two_groups() {
        // Seconds for all, of these for critical pods; the groups.
        type Case = (i64, i64, &'static [(i32, i64)]);
        let cases: [Case; 5] = [
            (300, 120, &[(0, 180), (2_000_000_000, 120)]),
            (100, 0, &[(0, 100), (2_000_000_000, 0)]),
            (0, 0, &[]),
            (0, 100, &[]),
            (100, 150, &[]),
        ];
        for (all, critical, expected) in cases {
            let groups = two_groups(GoDuration::from_secs(all), GoDuration::from_secs(critical));
            assert_eq!(shown(&groups), expected, "{all} {critical}");
        }
    }

    #[test]
    fn gates_and_order() {
        let by_priority = [(100, 7), (0, 3), (-5, 2)].map(|(priority, shutdown_grace_period_seconds)| {
            ShutdownGracePeriodByPodPriority { priority, shutdown_grace_period_seconds }
        });
        let config = KubeletConfiguration {
            shutdown_grace_period_by_pod_priority: by_priority.to_vec(),
            ..KubeletConfiguration::default()
        };
        let groups = grace_periods(&config, &FeatureGates::default());
        assert_eq!((shown(&groups), total(&groups)), (vec![(-5, 2), (0, 3), (100, 7)], Duration::from_secs(12)));
        let gate = |name: &str| FeatureGates::from_map(&[(name.to_owned(), false)].into());
        assert!(grace_periods(&config, &gate("GracefulNodeShutdownBasedOnPodPriority")).is_empty());
        let config = KubeletConfiguration {
            shutdown_grace_period: GoDuration::from_secs(30),
            shutdown_grace_period_critical_pods: GoDuration::from_secs(10),
            ..KubeletConfiguration::default()
        };
        for gates in [FeatureGates::default(), gate("GracefulNodeShutdownBasedOnPodPriority")] {
            assert_eq!(shown(&grace_periods(&config, &gates)), [(0, 20), (2_000_000_000, 10)]);
        }
        assert!(grace_periods(&config, &gate("GracefulNodeShutdown")).is_empty());
        assert!(grace_periods(&KubeletConfiguration::default(), &FeatureGates::default()).is_empty());
    }
}
