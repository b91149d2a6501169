//! Kubernetes resource quantities: `100m`, `1.5Gi`, `3e2`.
//!
//! Semantics are those of upstream `apimachinery/pkg/api/resource/quantity.go`: rounding is always away from zero,
//! nothing is finer than a billionth, and the canonical form keeps the family of suffixes that the text came with.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};

/// Family of suffixes that a quantity is printed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Format {
    /// `n u m "" k M G T P E`.
    #[default]
    DecimalSi,
    /// `"" Ki Mi Gi Ti Pi Ei`.
    BinarySi,
    /// `e3`, `E-3`.
    DecimalExponent,
}

/// A number with nano precision, at most 2^63-1 in magnitude when parsed. Equality and order look at the value alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quantity {
    /// Billionths. 2^63 * 10^9 is below 2^94, so sums of any realistic number of quantities fit.
    nanos: i128,
    format: Format,
}

/// Why a text is no quantity; the messages are upstream's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    #[error("unable to parse numeric part of quantity")]
    Numeric,
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

const NANOS: i128 = 1_000_000_000;
const MAX: i128 = i64::MAX as i128 * NANOS;

impl Quantity {
    pub const ZERO: Quantity = Quantity { nanos: 0, format: Format::DecimalSi };

    /// A whole number, printed with decimal suffixes (`1k`).
    pub const fn from_i64(value: i64) -> Self {
        Quantity { nanos: value as i128 * NANOS, format: Format::DecimalSi }
    }

    /// A number of thousandths, printed with decimal suffixes (`1500m`).
    pub const fn from_milli(milli: i64) -> Self {
        Quantity { nanos: milli as i128 * 1_000_000, format: Format::DecimalSi }
    }

    /// A number of bytes, printed with binary suffixes (`1Ki`).
    pub const fn from_bytes(bytes: i64) -> Self {
        Quantity { nanos: bytes as i128 * NANOS, format: Format::BinarySi }
    }

    /// The value rounded away from zero to a whole number.
    pub fn value(self) -> i64 {
        clamp(div_away_from_zero(self.nanos, NANOS))
    }

    /// The value in thousandths, rounded away from zero.
    pub fn milli_value(self) -> i64 {
        clamp(div_away_from_zero(self.nanos, 1_000_000))
    }

    pub fn is_zero(self) -> bool {
        self.nanos == 0
    }

    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Rounded away from zero to thousandths, as API defaulting does with every resource list.
    #[must_use]
    pub fn round_up_to_milli(self) -> Self {
        Quantity { nanos: div_away_from_zero(self.nanos, 1_000_000).saturating_mul(1_000_000), ..self }
    }

    /// True when the value is a whole number.
    pub fn is_integer(self) -> bool {
        self.nanos % NANOS == 0
    }

    /// Value as a float; for ratios and thresholds only.
    pub fn as_f64(self) -> f64 {
        self.nanos as f64 / NANOS as f64
    }

    /// Parses upstream's quantity grammar.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let (negative, unsigned) = match text.as_bytes()[0] {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let digits_end = |s: &str| s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len());
        let (whole, rest) = unsigned.split_at(digits_end(unsigned));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(after) => after.split_at(digits_end(after)),
            None => ("", rest),
        };
        check_suffix_shape(suffix)?;
        let (base, exponent, format) = interpret_suffix(suffix)?;
        let nanos =
            if base == 2 { scale_binary(whole, fraction, exponent) } else { scale_decimal(whole, fraction, exponent) };
        let nanos = nanos.min(MAX);
        Ok(Quantity { nanos: if negative { -nanos } else { nanos }, format })
    }
}

/// Letters of suffixes, then an optional sign, then digits, then nothing.
fn check_suffix_shape(suffix: &str) -> Result<(), QuantityError> {
    let after_letters = suffix.trim_start_matches(|c: char| "eEinumkKMGTP".contains(c));
    let after_sign = after_letters.strip_prefix(['-', '+']).unwrap_or(after_letters);
    if after_sign.bytes().all(|b| b.is_ascii_digit()) { Ok(()) } else { Err(QuantityError::Format) }
}

fn interpret_suffix(suffix: &str) -> Result<(u8, i64, Format), QuantityError> {
    let decimal = |exponent| Ok((10, exponent, Format::DecimalSi));
    let binary = |exponent| Ok((2, exponent, Format::BinarySi));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError::Suffix)?;
            let exponent: i64 = exponent.parse().map_err(|_| QuantityError::Suffix)?;
            Ok((10, exponent, Format::DecimalExponent))
        }
    }
}

/// `whole.fraction * 10^exponent` in billionths, rounded up, saturating at `i128::MAX`.
fn scale_decimal(whole: &str, fraction: &str, exponent: i64) -> i128 {
    let digits: String = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return 0;
    }
    // Place of the last digit, in powers of ten of a billionth.
    let shift = exponent.saturating_add(9).saturating_sub(fraction.len() as i64);
    if shift >= 0 {
        let places = (digits.len() as i64).saturating_add(shift);
        if places > 37 {
            return i128::MAX;
        }
        let value: i128 = digits.parse().unwrap_or(i128::MAX);
        return value.saturating_mul(10_i128.pow(u32::try_from(shift).unwrap_or(37)));
    }
    let dropped = usize::try_from(shift.unsigned_abs()).unwrap_or(usize::MAX);
    if dropped >= digits.len() {
        // Something positive below a billionth: rounded up.
        return 1;
    }
    let (kept, lost) = digits.split_at(digits.len() - dropped);
    if kept.len() > 37 {
        return i128::MAX;
    }
    let value: i128 = kept.parse().unwrap_or(i128::MAX);
    if lost.bytes().any(|b| b != b'0') { value.saturating_add(1) } else { value }
}

/// `whole.fraction * 2^exponent` in billionths, rounded up, saturating.
fn scale_binary(whole: &str, fraction: &str, exponent: i64) -> i128 {
    let whole = whole.trim_start_matches('0');
    if whole.len() > 20 {
        return i128::MAX;
    }
    let factor = 1_i128 << exponent;
    let whole_part = if whole.is_empty() { 0 } else { whole.parse::<i128>().unwrap_or(i128::MAX) };
    let whole_nanos = whole_part.saturating_mul(factor).saturating_mul(NANOS);
    let fraction = fraction.trim_end_matches('0');
    if fraction.is_empty() {
        return whole_nanos;
    }
    // 18 digits times 2^60 times 10^9 would not fit: do the billionths digit by digit, from the right.
    let mut remainder_seen = false;
    let mut accumulated: i128 = 0;
    for digit in fraction.bytes().rev() {
        let sum = i128::from(digit - b'0') * factor * NANOS + accumulated;
        remainder_seen |= sum % 10 != 0;
        accumulated = sum / 10;
    }
    whole_nanos.saturating_add(accumulated).saturating_add(i128::from(remainder_seen))
}

fn div_away_from_zero(value: i128, by: i128) -> i128 {
    let quotient = value / by;
    match (value % by).cmp(&0) {
        Ordering::Equal => quotient,
        Ordering::Greater => quotient + 1,
        Ordering::Less => quotient - 1,
    }
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

impl fmt::Display for Quantity {
    /// The canonical form: no fraction, the largest suffix that loses nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        let small = self.nanos.abs() < 1024 * NANOS;
        if self.format == Format::BinarySi && !small && self.is_integer() {
            let (mut value, mut steps) = (self.nanos / NANOS, 0_usize);
            while value % 1024 == 0 && steps < 6 {
                value /= 1024;
                steps += 1;
            }
            return write!(f, "{value}{}", ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][steps]);
        }
        let (mut value, mut exponent) = (self.nanos, -9_i32);
        while value % 1000 == 0 && (exponent < 18 || self.format == Format::DecimalExponent) {
            value /= 1000;
            exponent += 3;
        }
        if self.format == Format::DecimalExponent {
            return if exponent == 0 { write!(f, "{value}") } else { write!(f, "{value}e{exponent}") };
        }
        let suffix = match exponent {
            -9 => "n",
            -6 => "u",
            -3 => "m",
            0 => "",
            3 => "k",
            6 => "M",
            9 => "G",
            12 => "T",
            15 => "P",
            _ => "E",
        };
        write!(f, "{value}{suffix}")
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl std::hash::Hash for Quantity {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.nanos.hash(state);
    }
}

impl Add for Quantity {
    type Output = Quantity;

    /// Saturating. A zero takes the other's suffix family, as upstream's `Add` does.
    fn add(self, other: Quantity) -> Quantity {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Quantity { nanos: self.nanos.saturating_add(other.nanos), format }
    }
}

impl Sub for Quantity {
    type Output = Quantity;

    fn sub(self, other: Quantity) -> Quantity {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Quantity { nanos: self.nanos.saturating_sub(other.nanos), format }
    }
}

impl Neg for Quantity {
    type Output = Quantity;

    fn neg(self) -> Quantity {
        Quantity { nanos: self.nanos.saturating_neg(), ..self }
    }
}

impl AddAssign for Quantity {
    fn add_assign(&mut self, other: Quantity) {
        *self = *self + other;
    }
}

impl SubAssign for Quantity {
    fn sub_assign(&mut self, other: Quantity) {
        *self = *self - other;
    }
}

impl std::iter::Sum for Quantity {
    fn sum<I: Iterator<Item = Quantity>>(iter: I) -> Quantity {
        iter.fold(Quantity::ZERO, Add::add)
    }
}

impl std::str::FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Quantity::parse(text)
    }
}

impl serde::Serialize for Quantity {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Quantity {
    /// From a string or, as in upstream's JSON, from a bare number.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl serde::de::Visitor<'_> for Text {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity such as 100m or 1Gi")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Quantity, E> {
                Quantity::parse(text.trim()).map_err(E::custom)
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Quantity, E> {
                Ok(Quantity::from_i64(value))
            }

            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Quantity, E> {
                Quantity::parse(&value.to_string()).map_err(E::custom)
            }

            fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Quantity, E> {
                Quantity::parse(&value.to_string()).map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_rounds_and_prints() {
        // text, value, milli value, canonical
        let table: &[(&str, i64, i64, &str)] = &[
            ("0", 0, 0, "0"),
            ("0n", 0, 0, "0"),
            ("-0", 0, 0, "0"),
            ("1n", 1, 1, "1n"),
            ("0.5n", 1, 1, "1n"),
            ("1m", 1, 1, "1m"),
            ("100m", 1, 100, "100m"),
            ("1000m", 1, 1000, "1"),
            ("1500m", 2, 1500, "1500m"),
            ("1.5", 2, 1500, "1500m"),
            ("0.5", 1, 500, "500m"),
            (".5", 1, 500, "500m"),
            ("5.", 5, 5000, "5"),
            ("-1.5", -2, -1500, "-1500m"),
            ("+3", 3, 3000, "3"),
            ("100", 100, 100_000, "100"),
            ("1000", 1000, 1_000_000, "1k"),
            ("100000", 100_000, 100_000_000, "100k"),
            ("1k", 1000, 1_000_000, "1k"),
            ("1E", 1_000_000_000_000_000_000, i64::MAX, "1E"),
            ("1024", 1024, 1_024_000, "1024"),
            ("1Ki", 1024, 1_024_000, "1Ki"),
            ("1023Ki", 1_047_552, 1_047_552_000, "1023Ki"),
            ("1024Ki", 1_048_576, 1_048_576_000, "1Mi"),
            ("1.5Gi", 1_610_612_736, 1_610_612_736_000, "1536Mi"),
            ("0.5Ki", 512, 512_000, "512"),
            ("100Mi", 104_857_600, 104_857_600_000, "100Mi"),
            ("1Ei", 1_152_921_504_606_846_976, i64::MAX, "1Ei"),
            ("1e3", 1000, 1_000_000, "1e3"),
            ("1E3", 1000, 1_000_000, "1e3"),
            ("12e-1", 2, 1200, "1200e-3"),
            ("1e0", 1, 1000, "1"),
            ("9223372036854775807", i64::MAX, i64::MAX, "9223372036854775807"),
            ("9223372036854775808", i64::MAX, i64::MAX, "9223372036854775807"),
            ("100E", i64::MAX, i64::MAX, "9223372036854775807"),
            ("-100E", -i64::MAX, i64::MIN, "-9223372036854775807"),
            ("1e99999", i64::MAX, i64::MAX, "9223372036854775807"),
            ("1e-99999", 1, 1, "1e-9"),
            ("0e99999", 0, 0, "0"),
            ("0.0001Ki", 1, 103, "102400u"),
        ];
        for (text, value, milli, canonical) in table {
            let quantity = Quantity::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(quantity.value(), *value, "value of {text}");
            assert_eq!(quantity.milli_value(), *milli, "milli value of {text}");
            assert_eq!(quantity.to_string(), *canonical, "canonical form of {text}");
        }
    }

    #[test]
    fn refuses() {
        for text in [
            "", " 1", "1 ", "1.1.M", "1+1.0M", "0.1mi", "0.1am", "aoeu", ".5i", "1i", "-3.01i", "1ki", "1Kii", "1mM",
            "1e", "1e+", "--1", "1,0", "1_0", "٣",
        ] {
            assert!(Quantity::parse(text).is_err(), "{text} must be refused");
        }
        assert_eq!(Quantity::parse("1kib"), Err(QuantityError::Format));
        assert_eq!(Quantity::parse("1ki"), Err(QuantityError::Suffix));
    }

    #[test]
    fn sums_keep_the_first_family() {
        let parse = |t: &str| Quantity::parse(t).unwrap();
        assert_eq!((parse("1Gi") + parse("1Gi")).to_string(), "2Gi");
        assert_eq!((Quantity::ZERO + parse("1Gi")).to_string(), "1Gi");
        assert_eq!((parse("100m") + parse("2")).to_string(), "2100m");
        assert_eq!((parse("1Gi") - parse("1Mi")).to_string(), "1023Mi");
        assert_eq!([parse("250m"), parse("750m")].into_iter().sum::<Quantity>(), Quantity::from_i64(1));
        assert!(parse("999m") < parse("1"));
        assert_eq!(parse("1.0001").round_up_to_milli().to_string(), "1001m");
    }

    #[test]
    fn reads_numbers_from_json() {
        let read = |t: &str| serde_json::from_str::<Quantity>(t).map(|q| q.to_string());
        assert_eq!(read("5").unwrap(), "5");
        assert_eq!(read("0.25").unwrap(), "250m");
        assert_eq!(read("\"1Gi\"").unwrap(), "1Gi");
        assert!(read("true").is_err());
    }

    proptest! {
        #[test]
        fn canonical_form_is_stable(text in "[-+]?[0-9]{1,12}(\\.[0-9]{1,12})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e[-+]?[0-9]{1,2})?") {
            let quantity = Quantity::parse(&text).unwrap();
            let canonical = quantity.to_string();
            let again = Quantity::parse(&canonical).unwrap();
            prop_assert_eq!(quantity, again);
            prop_assert_eq!(canonical, again.to_string());
        }

        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = Quantity::parse(&text);
        }

        #[test]
        fn never_panics_near_valid(text in "[-+]?[0-9]{0,50}\\.?[0-9]{0,50}[eEinumkKMGTP]{0,3}[-+]?[0-9]{0,30}") {
            let _ = Quantity::parse(&text);
        }

        #[test]
        fn order_follows_value(a in -1_000_000_000_i64..1_000_000_000, b in -1_000_000_000_i64..1_000_000_000) {
            prop_assert_eq!(Quantity::from_milli(a).cmp(&Quantity::from_milli(b)), a.cmp(&b));
        }
    }
}
