//! What the loop waits for before it acts again, and for how long. Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use bulkhead_ipc::syncd::EvictionInFlight;
use tokio::time::Instant;

/// The runtime is given at least so long to kill a pod (upstream `pkg/kubelet/pod_workers.go` killPodNow).
const KILL_MIN: Duration = Duration::from_secs(10);
/// And then what is left of the pod so long to go (upstream `pkg/kubelet/eviction/eviction_manager.go` podCleanupTimeout).
const CLEANUP: Duration = Duration::from_secs(30);
/// Longer than anything is waited for; an instant so far from now can still be told.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// What is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    Nothing,
    /// The end of all of these pods; asked for when it is time to look.
    Pods {
        uids: BTreeSet<String>,
        until: Instant,
        look: Instant,
    },
    Pause {
        until: Instant,
    },
}

/// How long the end of a pod that has this grace period (seconds) is waited for, from the eviction on.
pub fn wait(grace: i64) -> Duration {
    let grace = u64::try_from(grace).unwrap_or(0);
    let kill = Duration::from_secs(grace.saturating_add(grace / 2)).max(KILL_MIN);
    kill.saturating_add(CLEANUP).min(LONGEST)
}

/// Pods that are being evicted and are waited for, and how long that takes at most. `None`: there are none.
pub fn in_flight(evictions: Vec<EvictionInFlight>) -> Option<(BTreeSet<String>, Duration)> {
    let waited_for = evictions.into_iter().filter_map(|one| {
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST);
        // A version that does not say waited so long.
        let wait = if one.wait_seconds == 0.0 { CLEANUP } else { seconds(one.wait_seconds) };
        let left = wait.checked_sub(seconds(one.age_seconds)).filter(|left| !left.is_zero())?;
        Some((one.uid, left))
    });
    let (uids, left): (BTreeSet<String>, Vec<Duration>) = waited_for.unzip();
    Some((uids, left.into_iter().max()?))
}

/// Both are waited for. A pause beside pods is none.
pub fn both(one: Hold, other: Hold) -> Hold {
    match (one, other) {
        (Hold::Nothing, hold) | (hold, Hold::Nothing) => hold,
        (Hold::Pods { mut uids, until, look }, Hold::Pods { uids: others, until: later, look: sooner }) => {
            uids.extend(others);
            Hold::Pods { uids, until: until.max(later), look: look.min(sooner) }
        }
        (pods @ Hold::Pods { .. }, Hold::Pause { .. }) | (Hold::Pause { .. }, pods @ Hold::Pods { .. }) => pods,
        (Hold::Pause { until }, Hold::Pause { until: later }) => Hold::Pause { until: until.max(later) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_the_grace_period_the_longer_the_wait() {
        for (grace, seconds) in [(-1, 40), (0, 40), (1, 40), (6, 40), (7, 40), (8, 42), (60, 120), (3600, 5430)] {
            assert_eq!(wait(grace), Duration::from_secs(seconds), "{grace}");
        }
        for huge in [i64::MAX, i64::MAX - 1, 1 << 40] {
            assert_eq!(wait(huge), LONGEST);
            let _can_be_told = Instant::now() + wait(huge);
        }
    }

    #[test]
    fn evictions_of_either_kind_are_waited_for_until_their_time_is_over() {
        let one = |uid: &str, age_seconds, wait_seconds| EvictionInFlight {
            uid: uid.into(),
            age_seconds,
            wait_seconds,
            ..EvictionInFlight::default()
        };
        let held = |evictions: &[EvictionInFlight]| {
            in_flight(evictions.to_vec()).map(|(uids, left)| (uids.into_iter().collect::<String>(), left.as_secs()))
        };
        assert_eq!(held(&[]), None);
        assert_eq!(held(&[one("a", 29.0, 0.0)]), Some(("a".into(), 1)), "an older kubelet-syncd");
        assert_eq!(held(&[one("a", 30.0, 0.0)]), None);
        assert_eq!(held(&[one("a", 30.0, 120.0), one("b", 1.0, 40.0), one("c", 41.0, 40.0)]), Some(("ab".into(), 90)));
        assert_eq!(held(&[one("a", f64::NAN, 40.0), one("b", f64::INFINITY, 40.0), one("c", -1.0, 40.0)]), None);
        assert_eq!(held(&[one("a", 0.0, 1e300)]), Some(("a".into(), LONGEST.as_secs())));
    }

    #[test]
    fn holds_add_up() {
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let pods = |uids: &str, until, look| Hold::Pods {
            uids: uids.chars().map(String::from).collect(),
            until: at(until),
            look: at(look),
        };
        let pause = |until| Hold::Pause { until: at(until) };
        for (one, other, held) in [
            (Hold::Nothing, Hold::Nothing, Hold::Nothing),
            (Hold::Nothing, pods("a", 40, 1), pods("a", 40, 1)),
            (pods("a", 90, 2), pods("bc", 40, 1), pods("abc", 90, 1)),
            (pause(1), pods("a", 40, 1), pods("a", 40, 1)),
            (pause(1), pause(2), pause(2)),
            (pause(1), Hold::Nothing, pause(1)),
        ] {
            assert_eq!(both(one.clone(), other.clone()), held);
            assert_eq!(both(other, one), held);
        }
    }
}
