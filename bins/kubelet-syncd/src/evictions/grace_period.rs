//! How long the end of a pod may take that is killed for others, and which evicted ones take longer.

use std::collections::HashMap;
use std::time::Duration;

use bulkhead_types::PodUid;
use tokio::time::Instant;

/// The runtime is given at least so long to kill a pod (upstream `pkg/kubelet/pod_workers.go` killPodNow).
const KILL_MIN: Duration = Duration::from_secs(10);
/// And then what is left of the pod so long to go (upstream `pkg/kubelet/eviction/eviction_manager.go` podCleanupTimeout).
const CLEANUP: Duration = Duration::from_secs(30);

/// Longer than anything is waited for; an instant so far from now can still be told.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// The runtime is to have killed a pod that has this grace period (seconds) by then.
pub fn kill(grace_period: u64) -> Duration {
    Duration::from_secs(grace_period.saturating_add(grace_period / 2)).clamp(KILL_MIN, LONGEST)
}

/// For so long after it was accepted others wait for the end of an evicted pod.
pub fn wait(grace_period: u64) -> Duration {
    kill(grace_period) + CLEANUP
}

/// Until when the runtime is to have killed each pod that this life of the process has evicted.
#[derive(Debug, Default)]
pub struct Kills {
    until: HashMap<PodUid, Instant>,
}

impl Kills {
    /// The pod is being killed from now on.
    pub fn begin(&mut self, uid: &PodUid, grace_period: u64, now: Instant) {
        self.until.insert(uid.clone(), now + kill(grace_period));
    }

    /// When the first of them is to have ended.
    pub fn next(&self) -> Option<Instant> {
        self.until.values().min().copied()
    }

    /// Those that are to have ended by now, each once.
    pub fn take_due(&mut self, now: Instant) -> Vec<PodUid> {
        self.until.extract_if(|_, until| *until <= now).map(|(uid, _)| uid).collect()
    }

    /// Forgets pods that are gone.
    pub fn retain(&mut self, is_there: impl Fn(&PodUid) -> bool) {
        self.until.retain(|uid, _| is_there(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_the_grace_period_the_longer_it_may_take() {
        for (grace, seconds) in [(0, 10), (1, 10), (7, 10), (8, 12), (60, 90), (3600, 5400)] {
            assert_eq!(kill(grace), Duration::from_secs(seconds), "{grace}");
            assert_eq!(wait(grace), Duration::from_secs(seconds + 30), "{grace}");
        }
        for huge in [u64::MAX, u64::MAX / 2, 1 << 40] {
            assert_eq!(kill(huge), LONGEST);
            let _can_be_told = Instant::now() + wait(huge);
        }
    }

    #[test]
    fn who_takes_longer_is_told_once() {
        let uid = |text: &str| PodUid::parse(text).unwrap();
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut kills = Kills::default();
        assert_eq!(kills.next(), None);
        for (pod, grace) in [("long", 60), ("short", 1), ("gone", 2), ("forever", u64::MAX)] {
            kills.begin(&uid(pod), grace, now);
        }
        kills.retain(|one| *one != uid("gone"));
        assert_eq!((kills.next(), kills.take_due(at(9))), (Some(at(10)), vec![]));
        assert_eq!(kills.take_due(at(10)), [uid("short")]);
        assert_eq!((kills.take_due(at(89)), kills.next()), (vec![], Some(at(90))));
        assert_eq!(kills.take_due(at(90)), [uid("long")]);
        assert_eq!(kills.take_due(at(1 << 20)), []);
    }
}
