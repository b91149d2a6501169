//! Families as text: Prometheus' format 0.0.4 or OpenMetrics. Pure.

use std::fmt::Write as _;

use super::exposition::{Family, Kind, value_text};
use crate::scrape::join::Joined;
use crate::scrape::lines::{Block, parse_value};
use crate::scrape::numbers::{go_float, open_metrics_float};

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Prometheus,
    OpenMetrics,
}

/// Writes families one after the other.
#[derive(Debug)]
pub struct Encoder {
    dialect: Dialect,
    out: String,
    /// The series of one sample, used again and again.
    series: String,
}

impl Encoder {
    pub fn new(dialect: Dialect) -> Self {
        Encoder { dialect, out: String::with_capacity(64 * 1024), series: String::new() }
    }

    pub fn joined(&mut self, family: &Joined<'_>) {
        match family {
            Joined::Text(block) => self.block(block),
            Joined::Made(family) => self.family(family),
        }
    }

    /// As a process wrote it.
    pub fn block(&mut self, block: &Block<'_>) {
        self.head(block.name, block.help, block.kind);
        for line in &block.lines {
            self.sample(block.kind, line.series, line.value, line.timestamp);
        }
    }

    pub fn family(&mut self, family: &Family) {
        let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
        self.head(&family.name, &help, family.kind);
        let mut series = std::mem::take(&mut self.series);
        for sample in &family.samples {
            series.clear();
            series.push_str(&sample.name);
            for (index, (name, value)) in sample.labels.iter().enumerate() {
                series.push(if index == 0 { '{' } else { ',' });
                series.push_str(name);
                series.push_str("=\"");
                escape(value, &mut series);
                series.push('"');
            }
            if !sample.labels.is_empty() {
                series.push('}');
            }
            self.sample(family.kind, &series, &value_text(sample.value), sample.timestamp);
        }
        self.series = series;
    }

    pub fn finish(mut self) -> String {
        if self.dialect == Dialect::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    /// `help` with the text format's escapes. Writing to a String cannot fail.
    fn head(&mut self, name: &str, help: &str, kind: Kind) {
        let (name, kind, help) = match self.dialect {
            Dialect::Prometheus => (name, kind.as_str(), help.to_owned()),
            Dialect::OpenMetrics => {
                let (name, kind) = open_metrics_type(name, kind);
                (name, kind, help.replace('"', "\\\""))
            }
        };
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, kind: Kind, series: &str, value: &str, timestamp: Option<i64>) {
        match bound(kind, series).and_then(|(before, bound, after)| Some((before, self.bound(bound)?, after))) {
            Some((before, bound, after)) => {
                let _ = write!(self.out, "{before}{bound}{after} {value}");
            }
            None => {
                self.out.push_str(series);
                self.out.push(' ');
                self.out.push_str(value);
            }
        }
        if let Some(timestamp) = timestamp {
            let _ = match self.dialect {
                Dialect::Prometheus => write!(self.out, " {timestamp}"),
                #[allow(clippy::cast_precision_loss, reason = "milliseconds of this millennium fit")]
                Dialect::OpenMetrics => write!(self.out, " {}", open_metrics_float(timestamp as f64 / 1000.0)),
            };
        }
        self.out.push('\n');
    }

    /// How this dialect writes a bound, when that is not how it stands there.
    fn bound(&self, text: &str) -> Option<String> {
        match self.dialect {
            // Only numbers that are long as plain decimals have an exponent in Go's form.
            Dialect::Prometheus if text.len() < 7 => None,
            Dialect::OpenMetrics if text.contains(['.', 'e', 'I']) && text.len() < 7 => None,
            Dialect::Prometheus => parse_value(text).map(go_float),
            Dialect::OpenMetrics => parse_value(text).map(open_metrics_float),
        }
    }
}

/// A counter that does not end as OpenMetrics demands keeps its series' name and is of an unknown type, as in upstream's
/// encoder: another name would hide it from every query.
fn open_metrics_type(name: &str, kind: Kind) -> (&str, &'static str) {
    match (kind, name.strip_suffix("_total")) {
        (Kind::Counter, Some(base)) if !base.is_empty() => (base, "counter"),
        (Kind::Counter | Kind::Untyped, _) => (name, "unknown"),
        (kind, _) => (name, kind.as_str()),
    }
}

/// The bound of a bucket or quantile, with what stands before and after it.
fn bound(kind: Kind, series: &str) -> Option<(&str, &str, &str)> {
    let label = match kind {
        Kind::Histogram => "le=\"",
        Kind::Summary => "quantile=\"",
        Kind::Counter | Kind::Gauge | Kind::Untyped => return None,
    };
    // It is the last label wherever a library wrote it; a value before it may look like it.
    let start = series.rfind(label)?;
    let behind_a_label = series.get(..start)?.ends_with(['{', ',']);
    let (before, rest) = series.split_at(start + label.len());
    let (bound, _) = rest.split_once('"').filter(|_| behind_a_label)?;
    parse_value(bound)?;
    Some((before, bound, rest.get(bound.len()..)?))
}

fn escape(value: &str, out: &mut String) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scrape::lines::scan;

    fn both(text: &str) -> [String; 2] {
        [Dialect::Prometheus, Dialect::OpenMetrics].map(|dialect| {
            let [mut as_it_is, mut taken_apart] = [Encoder::new(dialect), Encoder::new(dialect)];
            for block in scan(text).unwrap() {
                as_it_is.block(&block);
                taken_apart.family(&Family::from(&block));
            }
            let text = as_it_is.finish();
            assert_eq!(text, taken_apart.finish());
            text
        })
    }

    #[test]
    fn the_two_dialects() {
        let text = "# HELP a_total say \"hi\" \\\\ \\n\n# TYPE a_total counter\na_total{l=\"x\\\"y\"} 3\n\
                    # HELP b n\n# TYPE b counter\nb 1\n\
                    # HELP h n\n# TYPE h histogram\nh_bucket{le=\"0.5\"} 1\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"1048576\"} 1\n\
                    h_bucket{le=\"+Inf\"} 2\nh_sum 3.5\nh_count 2\n\
                    # HELP s n\n# TYPE s summary\ns{quantile=\"1\"} 4\ns_sum 4\ns_count 1\n\
                    # HELP t n\n# TYPE t gauge\nt 4 1795222067915\n# HELP u n\n# TYPE u untyped\nu NaN\n";
        let [prometheus, open] = both(text);
        assert_eq!(prometheus, text.replace("1048576", "1.048576e+06"));
        assert_eq!(
            open,
            "# HELP a say \\\"hi\\\" \\\\ \\n\n# TYPE a counter\na_total{l=\"x\\\"y\"} 3\n\
             # HELP b n\n# TYPE b unknown\nb 1\n\
             # HELP h n\n# TYPE h histogram\nh_bucket{le=\"0.5\"} 1\nh_bucket{le=\"1.0\"} 1\nh_bucket{le=\"1.048576e+06\"} 1\n\
             h_bucket{le=\"+Inf\"} 2\nh_sum 3.5\nh_count 2\n\
             # HELP s n\n# TYPE s summary\ns{quantile=\"1.0\"} 4\ns_sum 4\ns_count 1\n\
             # HELP t n\n# TYPE t gauge\nt 4 1.795222067915e+09\n# HELP u n\n# TYPE u unknown\nu NaN\n# EOF\n"
        );
    }

    #[test]
    fn what_only_looks_like_a_bound_stays() {
        let text =
            "# HELP h n\n# TYPE h histogram\nh_bucket{a=\"x,le=1\",le=\"2\"} 1\nh_sum{a=\"le=\\\"1048576\\\"\"} 1\n";
        assert!(both(text)[1].contains("h_sum{a=\"le=\\\"1048576\\\"\"} 1\n"), "{:?}", both(text));
        assert!(both(text)[1].contains("h_bucket{a=\"x,le=1\",le=\"2.0\"} 1\n"));
    }
}
