//! Go's `time.Duration` text: what every duration of the configuration, of flags and of pod specs is written in.
//!
//! Parsing and printing are exact (Go `time/time.go`, `time/format.go`), error texts included: operators compare them.

use std::fmt;
use std::time::Duration;

/// A signed span of nanoseconds, written like `1m0s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GoDuration(i64);

/// Why a text is no duration; the messages are Go's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GoDurationError {
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit { unit: String, text: String },
}

const LIMIT: u64 = 1 << 63;

impl GoDuration {
    pub const ZERO: GoDuration = GoDuration(0);

    pub const fn from_nanos(nanos: i64) -> Self {
        GoDuration(nanos)
    }

    pub const fn from_millis(millis: i64) -> Self {
        GoDuration(millis.saturating_mul(1_000_000))
    }

    pub const fn from_secs(secs: i64) -> Self {
        GoDuration(secs.saturating_mul(1_000_000_000))
    }

    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// As a std duration; a negative span is zero.
    pub const fn to_std(self) -> Duration {
        Duration::from_nanos(if self.0 < 0 { 0 } else { self.0.unsigned_abs() })
    }

    /// Parses what Go's `time.ParseDuration` parses: `300ms`, `-1.5h`, `2h45m`, `0`.
    pub fn parse(text: &str) -> Result<Self, GoDurationError> {
        let invalid = || GoDurationError::Invalid(text.to_owned());
        let (negative, mut rest) = match text.as_bytes().first() {
            Some(b'-') => (true, &text[1..]),
            Some(b'+') => (false, &text[1..]),
            _ => (false, text),
        };
        if rest == "0" {
            return Ok(GoDuration::ZERO);
        }
        if rest.is_empty() {
            return Err(invalid());
        }
        let mut total: u64 = 0;
        while !rest.is_empty() {
            if !rest.starts_with(|c: char| c == '.' || c.is_ascii_digit()) {
                return Err(invalid());
            }
            let (whole, after) = leading_int(rest).ok_or_else(invalid)?;
            let had_whole = after.len() != rest.len();
            rest = after;
            let (mut fraction, mut scale, mut had_fraction) = (0_u64, 1_f64, false);
            if let Some(after_dot) = rest.strip_prefix('.') {
                let (value, value_scale, after) = leading_fraction(after_dot);
                had_fraction = after.len() != after_dot.len();
                (fraction, scale, rest) = (value, value_scale, after);
            }
            if !had_whole && !had_fraction {
                return Err(invalid());
            }
            let unit_end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
            if unit_end == 0 {
                return Err(GoDurationError::MissingUnit(text.to_owned()));
            }
            let (unit_text, after) = rest.split_at(unit_end);
            rest = after;
            let unit = unit_nanos(unit_text)
                .ok_or_else(|| GoDurationError::UnknownUnit { unit: unit_text.to_owned(), text: text.to_owned() })?;
            if whole > LIMIT / unit {
                return Err(invalid());
            }
            let mut value = whole * unit;
            if fraction > 0 {
                // Go computes this in float64 too; the cast cannot exceed one unit.
                value += (fraction as f64 * (unit as f64 / scale)) as u64;
                if value > LIMIT {
                    return Err(invalid());
                }
            }
            total = total.checked_add(value).filter(|t| *t <= LIMIT).ok_or_else(invalid)?;
        }
        if negative {
            return Ok(GoDuration((total as i64).wrapping_neg()));
        }
        i64::try_from(total).map(GoDuration).map_err(|_| invalid())
    }
}

fn unit_nanos(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// Digits at the start; None on overflow.
fn leading_int(text: &str) -> Option<(u64, &str)> {
    let mut value: u64 = 0;
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    for digit in text[..end].bytes() {
        if value > LIMIT / 10 {
            return None;
        }
        value = value * 10 + u64::from(digit - b'0');
        if value > LIMIT {
            return None;
        }
    }
    Some((value, &text[end..]))
}

/// Digits after the point: value, power of ten, rest. Digits that no longer fit are dropped, as in Go.
fn leading_fraction(text: &str) -> (u64, f64, &str) {
    let (mut value, mut scale, mut overflow) = (0_u64, 1_f64, false);
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    for digit in text[..end].bytes() {
        if overflow {
            continue;
        }
        if value > (LIMIT - 1) / 10 {
            overflow = true;
            continue;
        }
        let next = value * 10 + u64::from(digit - b'0');
        if next > LIMIT {
            overflow = true;
            continue;
        }
        value = next;
        scale *= 10.0;
    }
    (value, scale, &text[end..])
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.unsigned_abs();
        if nanos == 0 {
            return f.write_str("0s");
        }
        if self.0 < 0 {
            f.write_str("-")?;
        }
        if nanos < 1_000_000_000 {
            let (unit, digits, name) = match nanos {
                0..1_000 => (1, 0, "ns"),
                1_000..1_000_000 => (1_000, 3, "\u{b5}s"),
                _ => (1_000_000, 6, "ms"),
            };
            write!(f, "{}", nanos / unit)?;
            write_fraction(f, nanos % unit, digits)?;
            return f.write_str(name);
        }
        let seconds = nanos / 1_000_000_000;
        let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        write!(f, "{}", seconds % 60)?;
        write_fraction(f, nanos % 1_000_000_000, 9)?;
        f.write_str("s")
    }
}

fn write_fraction(f: &mut fmt::Formatter<'_>, fraction: u64, digits: usize) -> fmt::Result {
    if fraction == 0 {
        return Ok(());
    }
    let text = format!("{fraction:0digits$}");
    write!(f, ".{}", text.trim_end_matches('0'))
}

impl std::str::FromStr for GoDuration {
    type Err = GoDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        GoDuration::parse(text)
    }
}

impl serde::Serialize for GoDuration {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for GoDuration {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        GoDuration::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_as_go_does() {
        let table: &[(&str, i64)] = &[
            ("0", 0),
            ("+0", 0),
            ("-0", 0),
            ("5s", 5_000_000_000),
            ("1478s", 1_478_000_000_000),
            ("-5s", -5_000_000_000),
            ("+5s", 5_000_000_000),
            ("5.0s", 5_000_000_000),
            ("5.6s", 5_600_000_000),
            ("5.s", 5_000_000_000),
            (".5s", 500_000_000),
            ("100.00100s", 100_001_000_000),
            ("10ns", 10),
            ("12us", 12_000),
            ("12\u{b5}s", 12_000),
            ("12\u{3bc}s", 12_000),
            ("3h30m", 12_600_000_000_000),
            ("10.5s4m", 250_500_000_000),
            ("-2m3.4s", -123_400_000_000),
            ("1h2m3s4ms5us6ns", 3_723_004_005_006),
            ("39h9m14.425s", 140_954_425_000_000),
            ("52763797000ns", 52_763_797_000),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
            ("9223372036s854ms775us807ns", i64::MAX),
            ("0.100000000000000000000h", 360_000_000_000),
            ("0.830103483285477580700h", 2_988_372_539_827),
        ];
        for (text, nanos) in table {
            assert_eq!(GoDuration::parse(text).map(GoDuration::as_nanos), Ok(*nanos), "{text}");
        }
    }

    #[test]
    fn refuses_with_gos_words() {
        let table = [
            ("", "time: invalid duration \"\""),
            ("3", "time: missing unit in duration \"3\""),
            ("-", "time: invalid duration \"-\""),
            ("s", "time: invalid duration \"s\""),
            (".", "time: invalid duration \".\""),
            (".s", "time: invalid duration \".s\""),
            ("+.s", "time: invalid duration \"+.s\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("1m 30s", "time: unknown unit \"m \" in duration \"1m 30s\""),
            ("9223372036854775810ns", "time: invalid duration \"9223372036854775810ns\""),
            ("9223372036854775808ns", "time: invalid duration \"9223372036854775808ns\""),
            ("3000000h", "time: invalid duration \"3000000h\""),
        ];
        for (text, message) in table {
            assert_eq!(GoDuration::parse(text).unwrap_err().to_string(), message, "{text}");
        }
    }

    #[test]
    fn prints_as_go_does() {
        let table = [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1\u{b5}s"),
            (2_200_000, "2.2ms"),
            (100_000_000, "100ms"),
            (3_300_000_000, "3.3s"),
            (60_000_000_000, "1m0s"),
            (120_000_000_000, "2m0s"),
            (245_000_000_000, "4m5s"),
            (245_001_000_000, "4m5.001s"),
            (18_367_001_000_000, "5h6m7.001s"),
            (480_000_000_001, "8m0.000000001s"),
            (i64::MAX, "2562047h47m16.854775807s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ];
        for (nanos, text) in table {
            assert_eq!(GoDuration::from_nanos(nanos).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn round_trips(nanos: i64) {
            let duration = GoDuration::from_nanos(nanos);
            // float64 rounding in the fraction of a long span is Go's too; below 2^52 ns it is exact.
            if nanos.unsigned_abs() < 1 << 52 {
                prop_assert_eq!(GoDuration::parse(&duration.to_string()), Ok(duration));
            }
        }

        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = GoDuration::parse(&text);
        }

        #[test]
        fn never_panics_near_valid(text in "[-+]?([0-9.]{0,25}(ns|us|ms|s|m|h|d)?){0,4}") {
            let _ = GoDuration::parse(&text);
        }
    }
}
