//! The Prometheus text format 0.0.4: reading what the processes hand over, joining it into one text in which each
//! family and each series exists once. Pure.
//!
//! A scraper throws a whole scrape away for one bad line, so a process whose text does not parse is left out entirely.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;

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
    const fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
            Kind::Untyped => "untyped",
        }
    }

    fn parse(text: &str) -> Option<Self> {
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

/// Reads a text, strictly: every sample belongs to the family above it, no family and no series comes twice.
///
/// # Errors
/// The first line that is wrong.
pub fn parse(text: &str) -> Result<Vec<Family>, FormatError> {
    let mut families: Vec<Family> = Vec::new();
    let mut names: HashSet<String> = HashSet::new();
    let mut series: HashSet<(String, Vec<(String, String)>)> = HashSet::new();
    // HELP and TYPE both open a family, whichever comes first.
    let mut open = |families: &mut Vec<Family>, name: &str| -> Result<(), &'static str> {
        if families.last().is_some_and(|family| family.name == name && family.samples.is_empty()) {
            return Ok(());
        }
        if !is_metric_name(name) {
            return Err("not a metric name");
        }
        if !names.insert(name.to_owned()) {
            return Err("family comes twice");
        }
        families.push(Family { name: name.to_owned(), help: String::new(), kind: Kind::Untyped, samples: Vec::new() });
        Ok(())
    };
    for (index, line) in text.lines().enumerate() {
        let wrong = |problem| FormatError { line: index + 1, problem };
        let line = line.trim_matches([' ', '\t']);
        if let Some(comment) = line.strip_prefix('#') {
            let comment = comment.trim_start();
            if let Some(rest) = comment.strip_prefix("HELP ") {
                let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
                open(&mut families, name).map_err(wrong)?;
                if let Some(family) = families.last_mut() {
                    family.help = unescape(help);
                }
            } else if let Some(rest) = comment.strip_prefix("TYPE ") {
                let (name, kind) = rest.split_once(' ').ok_or(wrong("TYPE without a type"))?;
                open(&mut families, name).map_err(wrong)?;
                let kind = Kind::parse(kind.trim()).ok_or(wrong("unknown type"))?;
                if let Some(family) = families.last_mut() {
                    family.kind = kind;
                }
            }
            continue;
        }
        if line.is_empty() {
            continue;
        }
        let sample = parse_sample(line).map_err(wrong)?;
        let belongs = families.last().is_some_and(|family| belongs(family, &sample.name));
        if !belongs {
            open(&mut families, &sample.name).map_err(wrong)?;
        }
        let mut labels = sample.labels.clone();
        labels.sort();
        if labels.windows(2).any(|pair| matches!(pair, [a, b] if a.0 == b.0)) {
            return Err(wrong("label comes twice"));
        }
        if !series.insert((sample.name.clone(), labels)) {
            return Err(wrong("series comes twice"));
        }
        if let Some(family) = families.last_mut() {
            family.samples.push(sample);
        }
    }
    Ok(families)
}

fn belongs(family: &Family, sample: &str) -> bool {
    let Some(suffix) = sample.strip_prefix(family.name.as_str()) else { return false };
    match family.kind {
        Kind::Histogram => matches!(suffix, "_bucket" | "_sum" | "_count"),
        Kind::Summary => matches!(suffix, "" | "_sum" | "_count"),
        Kind::Counter | Kind::Gauge | Kind::Untyped => suffix.is_empty(),
    }
}

fn is_metric_name(name: &str) -> bool {
    name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_' || b == b':')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':')
}

fn is_label_name(name: &str) -> bool {
    is_metric_name(name) && !name.contains(':')
}

fn parse_sample(line: &str) -> Result<Sample, &'static str> {
    let end = line.find(['{', ' ', '\t']).ok_or("sample without a value")?;
    let (name, mut rest) = line.split_at(end);
    if !is_metric_name(name) {
        return Err("not a metric name");
    }
    let mut labels = Vec::new();
    rest = rest.trim_start();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside.trim_start();
        loop {
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (label, after) = rest.split_once('=').ok_or("label without a value")?;
            let label = label.trim();
            if !is_label_name(label) {
                return Err("not a label name");
            }
            let quoted = after.trim_start().strip_prefix('"').ok_or("label value without quotes")?;
            let mut escaped = false;
            let close = quoted
                .char_indices()
                .find(|(_, c)| {
                    let closes = *c == '"' && !escaped;
                    escaped = *c == '\\' && !escaped;
                    closes
                })
                .ok_or("label value without an end")?
                .0;
            let (value, after) = quoted.split_at(close);
            labels.push((label.to_owned(), unescape(value)));
            rest = after.strip_prefix('"').unwrap_or(after).trim_start();
            rest = match rest.strip_prefix(',') {
                Some(after) => after.trim_start(),
                None if rest.starts_with('}') => rest,
                None => return Err("no comma between labels"),
            };
        }
    }
    let mut fields = rest.split_whitespace();
    let value = fields.next().and_then(parse_value).ok_or("not a value")?;
    let timestamp = match fields.next() {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| "not a timestamp")?),
    };
    if fields.next().is_some() {
        return Err("something after the timestamp");
    }
    Ok(Sample { name: name.to_owned(), labels, value, timestamp })
}

fn parse_value(text: &str) -> Option<f64> {
    match text {
        "+Inf" | "Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        // Rust takes more spellings of these than the format has.
        _ if text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b)) => text.parse().ok(),
        _ => None,
    }
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
    let mut out = String::new();
    for family in families {
        let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# HELP {} {help}\n# TYPE {} {}", family.name, family.name, family.kind.as_str());
        for sample in &family.samples {
            out.push_str(&sample.name);
            if !sample.labels.is_empty() {
                out.push('{');
                for (index, (name, value)) in sample.labels.iter().enumerate() {
                    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                    let _ = write!(out, "{}{name}=\"{value}\"", if index > 0 { "," } else { "" });
                }
                out.push('}');
            }
            let _ = write!(out, " {}", value_text(sample.value));
            if let Some(timestamp) = sample.timestamp {
                let _ = write!(out, " {timestamp}");
            }
            out.push('\n');
        }
    }
    out
}

/// The families of one process, by its name.
#[derive(Debug, Clone)]
pub struct Source {
    pub process: &'static str,
    pub families: Vec<Family>,
}

/// How the same series of two processes becomes one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Join {
    Sum,
    Min,
    Max,
}

fn join_of(family: &str) -> Join {
    match family {
        // The node agent is as old as its oldest process; a younger one shows in bulkhead_process_start_time_seconds.
        "process_start_time_seconds" => Join::Min,
        "process_virtual_memory_max_bytes" => Join::Max,
        _ => Join::Sum,
    }
}

/// Joins the texts of all processes. The same series in two of them is added up; `process_*` is also given per process
/// as `bulkhead_process_*{process="…"}`. A family that two processes declare with different types is the first one's.
pub fn merge(sources: Vec<Source>) -> Vec<Family> {
    let mut merged: BTreeMap<String, Family> = BTreeMap::new();
    let mut index: HashMap<(String, Vec<(String, String)>), usize> = HashMap::new();
    let mut add = |family: Family| {
        let join = join_of(&family.name);
        let known =
            merged.entry(family.name.clone()).or_insert_with(|| Family { samples: Vec::new(), ..family.clone() });
        if known.kind != family.kind {
            tracing::warn!(family = family.name, "two processes disagree on a metric's type, one of them is left out");
            return;
        }
        for sample in family.samples {
            let mut labels = sample.labels.clone();
            labels.sort();
            match index.entry((sample.name.clone(), labels)) {
                std::collections::hash_map::Entry::Vacant(vacant) => {
                    vacant.insert(known.samples.len());
                    known.samples.push(sample);
                }
                std::collections::hash_map::Entry::Occupied(at) => {
                    if let Some(known) = known.samples.get_mut(*at.get()) {
                        known.value = match join {
                            Join::Sum => known.value + sample.value,
                            Join::Min => known.value.min(sample.value),
                            Join::Max => known.value.max(sample.value),
                        };
                    }
                }
            }
        }
    };
    for source in sources {
        for family in source.families {
            if family.name.starts_with("process_") && matches!(family.kind, Kind::Counter | Kind::Gauge) {
                add(of_process(&family, source.process));
            }
            add(family);
        }
    }
    merged.into_values().filter(|family| !family.samples.is_empty()).collect()
}

fn of_process(family: &Family, process: &str) -> Family {
    let name = format!("bulkhead_{}", family.name);
    let samples = family
        .samples
        .iter()
        .map(|sample| {
            let mut labels = sample.labels.clone();
            labels.push(("process".to_owned(), process.to_owned()));
            Sample { name: name.clone(), labels, value: sample.value, timestamp: sample.timestamp }
        })
        .collect();
    Family { help: format!("{} Of one process of the node agent.", family.help), kind: family.kind, samples, name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn source(process: &'static str, text: &str) -> Source {
        Source { process, families: parse(text).unwrap() }
    }

    #[test]
    fn the_same_family_of_two_processes_becomes_one() {
        let merged = merge(vec![
            source(
                "a",
                "# HELP x_total h\n# TYPE x_total counter\nx_total{k=\"1\",l=\"2\"} 1\nx_total{k=\"2\",l=\"2\"} 5\n",
            ),
            source("b", "# HELP x_total h\n# TYPE x_total counter\nx_total{l=\"2\",k=\"1\"} 2.5\n"),
            source("c", "# HELP x_total h\n# TYPE x_total gauge\nx_total 9\n"),
        ]);
        assert_eq!(
            render(&merged),
            "# HELP x_total h\n# TYPE x_total counter\nx_total{k=\"1\",l=\"2\"} 3.5\nx_total{k=\"2\",l=\"2\"} 5\n"
        );
    }

    #[test]
    fn process_metrics_are_summed_and_kept_apart() {
        let text = |cpu: u32, start: u32| {
            format!(
                "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total {cpu}\n\
                 # TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {start}\n"
            )
        };
        let merged = merge(vec![source("kubelet-syncd", &text(3, 90)), source("kubelet-volnetd", &text(4, 80))]);
        let out = render(&merged);
        for line in [
            "process_cpu_seconds_total 7",
            "process_start_time_seconds 80",
            "bulkhead_process_cpu_seconds_total{process=\"kubelet-syncd\"} 3",
            "bulkhead_process_start_time_seconds{process=\"kubelet-volnetd\"} 80",
        ] {
            assert!(out.lines().any(|l| l == line), "{line} in\n{out}");
        }
        parse(&out).unwrap();
    }

    #[test]
    fn histograms_stay_whole() {
        let text =
            "# HELP h help\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n";
        assert_eq!(render(&merge(vec![source("a", text)])), text);
        let doubled = merge(vec![source("a", text), source("b", text)]);
        assert_eq!(doubled[0].samples.iter().map(|s| s.value).collect::<Vec<_>>(), [2.0, 4.0, 6.0, 4.0]);
    }

    #[test]
    fn bad_texts_are_refused() {
        for (text, problem) in [
            ("x", "sample without a value"),
            ("x y", "not a value"),
            ("x inf", "not a value"),
            ("1x 1", "not a metric name"),
            ("x{a=1} 1", "label value without quotes"),
            ("x{a=\"1} 1", "label value without an end"),
            ("x{a=\"1\" b=\"2\"} 1", "no comma between labels"),
            ("x{a=\"1\",a=\"2\"} 1", "label comes twice"),
            ("x 1 2 3", "something after the timestamp"),
            ("x 1\nx 2", "series comes twice"),
            ("# TYPE x counter\nx 1\n# TYPE y gauge\ny 1\n# TYPE x counter\n", "family comes twice"),
            ("# TYPE x strange", "unknown type"),
            ("# TYPE h histogram\nh_bucket{le=\"1\"} 1\nx 1\nh_sum 1\nh 1\nh_bucket{le=\"2\"} 1", "family comes twice"),
        ] {
            assert_eq!(parse(text).unwrap_err().problem, problem, "{text}");
        }
        assert!(parse("x{a=\"\\\"\\\\\\n\",} 1e3 5\n\n# a comment\n").is_ok());
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parser_panic_and_what_parses_survives(text in "[a-c_]{0,2}[ -~\n]{0,80}") {
            if let Ok(families) = parse(&text) {
                let rendered = render(&merge(vec![Source { process: "p", families }]));
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
