//! Ages as kubectl shows them (`apimachinery/pkg/util/duration`, HumanDuration).

use jiff::Timestamp;

/// "12s", "3m4s", "5h", "2d3h", "1y20d"; "<invalid>" for what lies in the future.
pub(crate) fn human(seconds: i64) -> String {
    let two = |large: i64, large_unit: char, small: i64, small_unit: char| {
        if small == 0 { format!("{large}{large_unit}") } else { format!("{large}{large_unit}{small}{small_unit}") }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match seconds {
        ..-1 => "<invalid>".into(),
        -1 => "0s".into(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 24 * 8 => two(hours / 24, 'd', hours % 24, 'h'),
        _ if hours < 24 * 365 * 2 => format!("{}d", hours / 24),
        _ if hours < 24 * 365 * 8 => two(hours / 24 / 365, 'y', hours / 24 % 365, 'd'),
        _ => format!("{}y", hours / 24 / 365),
    }
}

/// The age of an RFC 3339 time; empty for no time.
pub(crate) fn since(time: &str, now: Timestamp) -> String {
    match time.parse::<Timestamp>() {
        Ok(at) => human(now.as_second().saturating_sub(at.as_second())),
        Err(_) => String::new(),
    }
}

/// "in 12s" for what is to come; empty when it is past or unknown.
pub(crate) fn until(time: &str, now: Timestamp) -> String {
    match time.parse::<Timestamp>() {
        Ok(at) if at > now => format!("in {}", human(at.as_second().saturating_sub(now.as_second()))),
        _ => String::new(),
    }
}

/// The same for a fraction of seconds, which is cut off.
pub(crate) fn seconds(number: f64) -> String {
    #[allow(clippy::cast_possible_truncation, reason = "the cast saturates, and whole seconds are shown")]
    human(number as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_kubectl() {
        for (seconds, text) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (185, "3m5s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_000, "3h3m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (180_000, "2d2h"),
            (8 * 86_400, "8d"),
            (729 * 86_400, "729d"),
            (730 * 86_400, "2y"),
            (740 * 86_400, "2y10d"),
            (9 * 365 * 86_400, "9y"),
        ] {
            assert_eq!(human(seconds), text, "{seconds}");
        }
        let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        assert_eq!(since("2026-01-01T00:00:00Z", now), "60s");
        assert_eq!(since("", now), "");
        assert_eq!(until("2026-01-01T00:01:30Z", now), "in 30s");
        assert_eq!(until("2026-01-01T00:00:30Z", now), "");
    }

    proptest::proptest! {
        #[test]
        fn any_number_has_a_text(seconds in proptest::prelude::any::<i64>()) {
            proptest::prop_assert!(!human(seconds).is_empty());
        }
    }
}
