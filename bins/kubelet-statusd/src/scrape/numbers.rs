//! Numbers as Go writes them: so does the label `le` of everybody's stored series look, and another text for the same
//! bound would be another series.

/// The shortest text that is this number, with an exponent below 1e-4 and from 1e6 on (Go's `FormatFloat(v, 'g', -1, 64)`).
pub fn go_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// The same for OpenMetrics, where a bound is never without a point or an exponent.
pub fn open_metrics_float(value: f64) -> String {
    let mut text = go_float(value);
    if value.is_finite() && !text.contains(['e', '.']) {
        text.push_str(".0");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn as_go_writes_them() {
        for (value, text, open) in [
            (0.0, "0", "0.0"),
            (1.0, "1", "1.0"),
            (-1.0, "-1", "-1.0"),
            (0.005, "0.005", "0.005"),
            (0.0001, "0.0001", "0.0001"),
            (0.00001, "1e-05", "1e-05"),
            (9.999_999_999_999_999e-6, "9.999999999999999e-06", "9.999999999999999e-06"),
            (123_456.0, "123456", "123456.0"),
            (1_000_000.0, "1e+06", "1e+06"),
            (1_048_576.0, "1.048576e+06", "1.048576e+06"),
            (15_552_000.0, "1.5552e+07", "1.5552e+07"),
            (1_795_222_066.5, "1.7952220665e+09", "1.7952220665e+09"),
            (1e100, "1e+100", "1e+100"),
            (f64::INFINITY, "+Inf", "+Inf"),
            (f64::NEG_INFINITY, "-Inf", "-Inf"),
            (f64::NAN, "NaN", "NaN"),
        ] {
            assert_eq!((go_float(value).as_str(), open_metrics_float(value).as_str()), (text, open));
        }
    }

    proptest! {
        #[test]
        fn the_number_survives(value in any::<f64>()) {
            for text in [go_float(value), open_metrics_float(value)] {
                prop_assert!(value.is_nan() || super::super::lines::parse_value(&text) == Some(value), "{text}");
            }
        }
    }
}
