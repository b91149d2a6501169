//! Times that lie as far in the future as somebody else says: an API object, a configuration, a plugin.

use std::ops::Add;
use std::time::Duration;

/// Nothing is waited for longer: 100 years. Seconds in API objects are up to 2^63, with which a clock overflows
/// (`Instant + Duration` panics) and gRPC has no form (8 digits of hours; tonic panics). Go's `time.Duration` holds 292 years, so a
/// server in Go reads this one right.
pub const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The time after `now` by as much as somebody else says, or by [`FAR`] if that is less. For `Instant`s of std and of tokio, and for
/// `SystemTime`.
pub fn later<T: Add<Duration, Output = T>>(now: T, by: Duration) -> T {
    now + by.min(FAR)
}

#[cfg(test)]
mod tests {
    use std::time::{Instant, SystemTime};

    use super::*;

    #[test]
    fn no_duration_is_too_long() {
        let second = Duration::from_secs(1);
        let cases = [
            (Duration::ZERO, Duration::ZERO),
            (second, second),
            (FAR - second, FAR - second),
            (FAR, FAR),
            (FAR + second, FAR),
            (Duration::from_secs(i64::MAX.unsigned_abs()), FAR),
            (Duration::from_secs(i64::MAX.unsigned_abs() / 2 * 3), FAR),
            (Duration::from_secs(u64::MAX), FAR),
            (Duration::MAX, FAR),
        ];
        let (now, day) = (Instant::now(), SystemTime::now());
        for (by, expected) in cases {
            assert_eq!(later(now, by).duration_since(now), expected, "{by:?}");
            assert_eq!(later(day, by).duration_since(day).unwrap(), expected, "{by:?}");
        }
        // Once more from there.
        let far = later(later(now, Duration::MAX), Duration::MAX);
        assert_eq!(far.duration_since(now), FAR * 2);
    }
}
