//! Metrics as values: families with their series, from and to the Prometheus text format 0.0.4. Pure. How a text is read
//! without being taken apart, joined with others and written in other formats: [`crate::scrape`].

use crate::scrape::encode::{Dialect, Encoder};
use crate::scrape::lines::{Block, Line, parse_value, scan};

/// `# TYPE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
    Summary,
    Untyped,
}

impl Kind {
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
            Kind::Untyped => "untyped",
        }
    }

    /// The type by its name in the text.
    pub fn parse(text: &str) -> Option<Self> {
        [Kind::Counter, Kind::Gauge, Kind::Histogram, Kind::Summary, Kind::Untyped]
            .into_iter()
            .find(|kind| kind.as_str() == text)
    }
}

/// One line of values.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The family's name, or that with `_bucket`, `_sum` or `_count`.
    pub name: String,
    /// In the order of the text, values without escapes.
    pub labels: Vec<(String, String)>,
    pub value: f64,
    /// Milliseconds since the epoch.
    pub timestamp: Option<i64>,
}

/// A metric with all its series.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    pub name: String,
    /// Without escapes.
    pub help: String,
    pub kind: Kind,
    pub samples: Vec<Sample>,
}

/// Why a text is not in the format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the metrics: {problem}")]
pub struct FormatError {
    pub line: usize,
    pub problem: &'static str,
}

impl From<&Line<'_>> for Sample {
    fn from(line: &Line<'_>) -> Self {
        Sample {
            name: line.name().to_owned(),
            labels: line.labels().flatten().map(|(name, value)| (name.to_owned(), unescape(value))).collect(),
            // Only lines with a value are read.
            value: parse_value(line.value).unwrap_or(f64::NAN),
            timestamp: line.timestamp,
        }
    }
}

impl From<&Block<'_>> for Family {
    fn from(block: &Block<'_>) -> Self {
        Family {
            name: block.name.to_owned(),
            help: unescape(block.help),
            kind: block.kind,
            samples: block.lines.iter().map(Sample::from).collect(),
        }
    }
}

/// Reads a text, strictly: every sample belongs to the family above it, no family and no series comes twice.
///
/// # Errors
/// The first line that is wrong.
pub fn parse(text: &str) -> Result<Vec<Family>, FormatError> {
    Ok(scan(text)?.iter().map(Family::from).collect())
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some(other @ ('\\' | '"')) => out.push(other),
                Some(other) => {
                    out.push('\\');
                    out.push(other);
                }
                None => out.push('\\'),
            },
            c => out.push(c),
        }
    }
    out
}

/// A value as text; whole numbers without a fraction.
pub fn value_text(value: f64) -> String {
    if value.is_nan() {
        "NaN".into()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf".into() } else { "-Inf".into() }
    } else {
        format!("{value}")
    }
}

/// Writes families in the text format.
pub fn render(families: &[Family]) -> String {
    let mut encoder = Encoder::new(Dialect::Prometheus);
    families.iter().for_each(|family| encoder.family(family));
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn values() {
        for (value, text) in [(3.0, "3"), (0.25, "0.25"), (f64::INFINITY, "+Inf"), (f64::NEG_INFINITY, "-Inf")] {
            assert_eq!(value_text(value), text);
        }
        assert_eq!(value_text(f64::NAN), "NaN");
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parser_panic_and_what_parses_survives(text in "[a-c_]{0,2}[ -~\n]{0,80}") {
            if let Ok(families) = parse(&text) {
                let rendered = render(&families);
                prop_assert!(parse(&rendered).is_ok(), "{rendered}");
            }
        }

        #[test]
        fn any_label_value_and_help_survives(value in any::<String>(), help in any::<String>(), number in any::<f64>()) {
            let family = Family {
                name: "x".into(), help: help.replace('\r', ""), kind: Kind::Gauge,
                samples: vec![Sample { name: "x".into(), labels: vec![("l".into(), value.replace('\r', ""))], value: number, timestamp: None }],
            };
            let back = parse(&render(std::slice::from_ref(&family))).unwrap();
            prop_assert_eq!(&back[0].samples[0].labels, &family.samples[0].labels);
            prop_assert!(back[0].samples[0].value == number || number.is_nan());
        }
    }
}
