//! When a pod is looked at again after work on it (upstream `pkg/kubelet/pod_workers.go`, completeWork).

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// Wait after a sync that could not reach the network plugin.
pub const NETWORK_NOT_READY: Duration = Duration::from_secs(1);
/// Wait after any other failure.
pub const BACK_OFF: Duration = Duration::from_secs(10);
/// Wait after a call that another process of ours did not answer: it restarts, and that is quick.
pub const PEER_AWAY: Duration = Duration::from_millis(500);

/// Between two tries to renew a token; also how far behind its time a renewal may be.
pub const TOKEN_RETRY: Duration = Duration::from_secs(10);

/// What the work ended with, as far as the next look is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// The pod went on to its next phase: look at once.
    PhaseTransition,
    /// All is well: look once a sync period has passed.
    Success,
    /// The node's network is not ready.
    NetworkNotReady,
    /// Another of our processes did not answer; nothing is known to have failed.
    PeerAway,
    /// Something failed; when a container's back-off ends sooner or later than usual, then.
    Failed { back_off: Option<Duration> },
}

impl Retry {
    /// After something failed. `left`: until the first back-off ends (upstream MinBackoffExpiration). `only_restarts`: crash-loop
    /// back-offs are all that failed, which nothing ends early, so the next look is at the end of the first. Anything else may be put
    /// right at any time, as by an operator who brings an image to the node: it is looked at after 10 to 15 s ([`BACK_OFF`]), or at
    /// the end of a back-off that ends before.
    pub fn after_failure(left: Option<Duration>, only_restarts: bool) -> Self {
        Retry::Failed { back_off: left.filter(|left| only_restarts || *left < jitter(BACK_OFF, 1.0)) }
    }
}

/// Time until the next look. `random` is uniform in `0.0..1.0`: it spreads the pods of a node over time.
pub fn delay(retry: Retry, sync_frequency: Duration, random: f64) -> Duration {
    let base = match retry {
        Retry::PhaseTransition => return Duration::ZERO,
        Retry::Success => sync_frequency,
        Retry::NetworkNotReady => NETWORK_NOT_READY,
        Retry::PeerAway => PEER_AWAY,
        // Exactly at the end of the back-off: upstream adds up to half of it, which serves nobody here.
        Retry::Failed { back_off: Some(left) } => return left.min(sync_frequency),
        Retry::Failed { back_off: None } => BACK_OFF.min(sync_frequency),
    };
    jitter(base, random)
}

/// Time until the pod is looked at because a token that its volumes show is to be replaced from `renew` on, however long
/// the sync period is: what is shown must not expire.
pub fn until_renewal(renew: Timestamp, now: Timestamp) -> Duration {
    // A moment later than that time itself, which does not count yet.
    let left = renew.duration_since(now).saturating_add(jiff::SignedDuration::from_secs(1));
    Duration::try_from(left).unwrap_or_default().max(TOKEN_RETRY)
}

/// When the next look is. `random` as for [`delay`]; `origin`: any moment, always the same. Pods with which all is well are looked at
/// together, at one of twelve moments of a sync period, so that a node with many pods wakes up a few times for all of them.
pub fn next_look(retry: Retry, now: Instant, sync_frequency: Duration, random: f64, origin: Instant) -> Instant {
    let at = now + delay(retry, sync_frequency, random);
    if retry == Retry::Success { gathered(at, now, sync_frequency, origin) } else { at }
}

/// The moment before `at` at which pods are looked at together, or the one after it where that is less than a period from `now`.
fn gathered(at: Instant, now: Instant, sync_frequency: Duration, origin: Instant) -> Instant {
    let step = sync_frequency / 12;
    let past = at.saturating_duration_since(origin).as_nanos().checked_rem(step.as_nanos()).unwrap_or(0);
    let before = at - Duration::from_nanos(u64::try_from(past).unwrap_or(0));
    if before < now + sync_frequency { before + step } else { before }
}

/// `base * (1 + U[0, 0.5])`.
pub fn jitter(base: Duration, random: f64) -> Duration {
    base.mul_f64(1.0 + 0.5 * random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        let minute = Duration::from_secs(60);
        let cases = [
            (Retry::PhaseTransition, 0.9, 0.0),
            (Retry::Success, 0.0, 60.0),
            (Retry::Success, 1.0, 90.0),
            (Retry::NetworkNotReady, 1.0, 1.5),
            (Retry::Failed { back_off: None }, 0.0, 10.0),
            (Retry::Failed { back_off: None }, 1.0, 15.0),
            (Retry::Failed { back_off: Some(Duration::from_secs(4)) }, 0.5, 4.0),
            (Retry::Failed { back_off: Some(Duration::from_secs(300)) }, 0.5, 60.0),
        ];
        for (retry, random, seconds) in cases {
            assert_eq!(delay(retry, minute, random), Duration::from_secs_f64(seconds), "{retry:?} {random}");
        }
    }

    #[test]
    fn only_restarts_are_waited_for() {
        let minute = Duration::from_secs(60);
        let cases = [
            (None, false, 10.0..=15.0),
            (Some(300), true, 60.0..=60.0),
            (Some(20), true, 20.0..=20.0),
            (Some(300), false, 10.0..=15.0),
            (Some(15), false, 10.0..=15.0),
            (Some(14), false, 14.0..=14.0),
            (Some(3), false, 3.0..=3.0),
            (Some(3), true, 3.0..=3.0),
            (Some(0), false, 0.0..=0.0),
        ];
        for (left, only_restarts, expected) in cases {
            let retry = Retry::after_failure(left.map(Duration::from_secs), only_restarts);
            let got = [0.0, 1.0].map(|random| delay(retry, minute, random).as_secs_f64());
            assert_eq!(got, [*expected.start(), *expected.end()], "{left:?} {only_restarts}");
        }
    }

    #[test]
    fn pods_with_which_all_is_well_share_moments() {
        let origin = Instant::now();
        let at = |millis| origin + Duration::from_millis(millis);
        let minute = Duration::from_secs(60);
        let cases = [
            (0, 60_000, 60_000),
            (1, 60_001, 65_000),
            (1, 65_001, 65_000),
            (7_300, 90_000, 90_000),
            (7_300, 97_299, 95_000),
        ];
        for (now, due, expected) in cases {
            assert_eq!(gathered(at(due), at(now), minute, origin), at(expected), "{now} {due}");
        }
        assert_eq!(gathered(at(5), at(0), Duration::ZERO, origin), at(5));
        for step in 0..300 {
            let (now, random) = (at(137 * step), step as f64 / 299.0);
            let due = next_look(Retry::Success, now, minute, random, origin);
            assert!((now + minute..=now + minute * 3 / 2).contains(&due), "{step}");
        }
        assert_eq!(
            next_look(Retry::PeerAway, at(1), minute, 0.0, origin),
            at(501),
            "nobody waits for others after a failure"
        );
    }

    #[test]
    fn tokens_are_looked_at_in_time_and_not_too_often() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let wait = |seconds: i64| {
            let renew = now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap();
            until_renewal(renew, now).as_secs()
        };
        assert_eq!([wait(480), wait(0), wait(-50)], [481, 10, 10]);
        assert_eq!(until_renewal(Timestamp::MIN, Timestamp::MAX), TOKEN_RETRY);
        assert!(until_renewal(Timestamp::MAX, Timestamp::MIN) > Duration::from_secs(3600));
    }
}
