//! When the next round comes: every five minutes, as upstream, and besides as soon as something is to be done. Pure.

use super::passes::Unused;
use super::policy::Policy;

/// Upstream ImageGCPeriod.
pub const PERIOD_MS: i64 = 300_000;
/// After a round in which kubelet-syncd, the runtime or the file system did not answer.
const RETRY_MS: i64 = 5_000;
/// Two rounds are no closer.
const SHORTEST_MS: i64 = 1_000;

/// How a round ended, as far as it matters for the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Whole,
    /// Images that are too young are enough, and the first of them comes of age then.
    Waits(i64),
    /// Somebody did not answer.
    Away,
}

/// When the next round is due. `left`: images that nobody uses and that are still there.
pub fn next_round(policy: &Policy, end: End, left: &[Unused], now_ms: i64, began_ms: i64) -> i64 {
    let mut due = match end {
        End::Away => now_ms.saturating_add(RETRY_MS),
        End::Whole | End::Waits(_) => now_ms.saturating_add(PERIOD_MS),
    };
    if let End::Waits(until) = end {
        due = due.min(until);
    }
    if policy.max_age_ms > 0 {
        // What is used now may be unused from now on.
        due = due.min(now_ms.saturating_add(policy.max_age_ms.saturating_add(1).max(RETRY_MS)));
        let too_old = |image: &Unused| {
            let last = image.last_used_ms.unwrap_or(began_ms).max(began_ms);
            let of_age = image.first_detected_ms.saturating_add(policy.min_age_ms);
            // One that is due already could not be removed: another look will do.
            Some(last.saturating_add(policy.max_age_ms).saturating_add(1).max(of_age)).filter(|at| *at > now_ms)
        };
        due = left.iter().filter_map(too_old).fold(due, i64::min);
    }
    due.max(now_ms.saturating_add(SHORTEST_MS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_soon_as_something_is_to_be_done() {
        let policy = Policy { high_percent: 85, low_percent: 80, min_age_ms: 1_000, max_age_ms: 10_000 };
        let never = Policy { max_age_ms: 0, ..policy };
        let unused = |first_detected_ms, last_used_ms| Unused {
            id: "a".into(),
            size: 1,
            first_detected_ms,
            last_used_ms,
            seen_use_ms: 0,
        };
        let now = 100_000;
        let next = |policy: &Policy, end, left: &[Unused], began| next_round(policy, end, left, now, began) - now;
        assert_eq!(next(&never, End::Whole, &[unused(0, None)], 0), PERIOD_MS);
        assert_eq!(next(&never, End::Waits(now + 7), &[], 0), SHORTEST_MS);
        assert_eq!(next(&never, End::Waits(now + 70_000), &[], 0), 70_000);
        assert_eq!(next(&never, End::Away, &[], 0), RETRY_MS);
        // It becomes too old, it has not been watched for long enough, it is too young.
        assert_eq!(next(&policy, End::Whole, &[unused(0, Some(95_000))], 0), 5_001);
        assert_eq!(next(&policy, End::Whole, &[unused(0, Some(5))], 97_000), 7_001);
        assert_eq!(next(&policy, End::Whole, &[unused(0, None)], 97_000), 7_001);
        let slow = Policy { min_age_ms: 8_000, ..policy };
        assert_eq!(next(&slow, End::Whole, &[unused(now, None)], 0), 8_000);
        // It should have gone, or nobody is unused yet.
        assert_eq!(next(&policy, End::Whole, &[unused(0, Some(5))], 0), 10_001);
        assert_eq!(next(&policy, End::Whole, &[], 0), 10_001);
        let short = Policy { max_age_ms: 1, min_age_ms: 0, ..policy };
        assert_eq!(next(&short, End::Whole, &[], 0), RETRY_MS);
        let long = Policy { max_age_ms: 2 * PERIOD_MS, ..policy };
        assert_eq!(next(&long, End::Whole, &[], 0), PERIOD_MS);
    }
}
