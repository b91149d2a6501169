//! Amounts of bytes, as people read them.

/// "1.5Gi".
pub(crate) fn bytes(amount: i64) -> String {
    let units = [(1_i64 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    let unit = units.into_iter().find(|(size, _)| amount.unsigned_abs() >= size.unsigned_abs());
    #[allow(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
    match unit {
        Some((size, name)) => format!("{:.1}{name}", amount as f64 / size as f64),
        None => amount.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_unit_leaves_a_digit_before_the_point() {
        for (amount, expected) in [
            (0, "0"),
            (1023, "1023"),
            (1536, "1.5Ki"),
            (-1536, "-1.5Ki"),
            (3 << 20, "3.0Mi"),
            (1 << 30, "1.0Gi"),
            (5 << 40, "5.0Ti"),
            (i64::MIN, "-8388608.0Ti"),
        ] {
            assert_eq!(bytes(amount), expected);
        }
    }
}
