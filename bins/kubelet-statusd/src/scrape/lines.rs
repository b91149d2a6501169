//! Reading a process's text in the format 0.0.4 without copying it: where its families and series begin and end, and
//! whether every line is in the format. Pure.
//!
//! A scraper throws a whole scrape away for one bad line, so one that is wrong condemns the text of that process.

use std::collections::HashSet;

use super::exposition::{FormatError, Kind};

/// A metric with all its series, as it stands in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block<'a> {
    pub name: &'a str,
    /// With the text's escapes.
    pub help: &'a str,
    pub kind: Kind,
    pub lines: Vec<Line<'a>>,
}

/// One line of values, as it stands in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'a> {
    /// Name and labels: `x_bucket{a="1",le="5"}`.
    pub series: &'a str,
    pub value: &'a str,
    /// Milliseconds since the epoch.
    pub timestamp: Option<i64>,
}

impl<'a> Line<'a> {
    /// The family's name, or that with `_bucket`, `_sum` or `_count`.
    pub fn name(&self) -> &'a str {
        self.series.split('{').next().unwrap_or_default()
    }

    /// Labels in the order of the text, values with their escapes.
    pub fn labels(&self) -> Labels<'a> {
        let inside = self.series.split_once('{').map_or("", |(_, rest)| rest);
        Labels { rest: inside }
    }
}

/// The labels of a series, one after the other. An item that is an error is the last.
#[derive(Debug, Clone)]
pub struct Labels<'a> {
    /// Behind the opening brace or the last comma.
    rest: &'a str,
}

impl<'a> Labels<'a> {
    fn label(&mut self) -> Result<(&'a str, &'a str), &'static str> {
        let (label, after) = self.rest.split_once('=').ok_or("label without a value")?;
        let label = label.trim();
        if !is_label_name(label) {
            return Err("not a label name");
        }
        let quoted = after.trim_start().strip_prefix('"').ok_or("label value without quotes")?;
        let mut escaped = false;
        let close = quoted
            .bytes()
            .position(|b| {
                let closes = b == b'"' && !escaped;
                escaped = b == b'\\' && !escaped;
                closes
            })
            .ok_or("label value without an end")?;
        let (value, after) = quoted.split_at(close);
        let after = after.strip_prefix('"').unwrap_or(after).trim_start();
        self.rest = match after.strip_prefix(',') {
            Some(after) => after,
            None if after.starts_with('}') => after,
            None => return Err("no comma between labels"),
        };
        Ok((label, value))
    }
}

impl<'a> Iterator for Labels<'a> {
    type Item = Result<(&'a str, &'a str), &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        self.rest = self.rest.trim_start();
        if self.rest.is_empty() || self.rest.starts_with('}') {
            return None;
        }
        let label = self.label();
        if label.is_err() {
            self.rest = "";
        }
        Some(label)
    }
}

/// Reads a text, strictly: every sample belongs to the family above it, no family and no series comes twice.
///
/// # Errors
/// The first line that is wrong.
pub fn scan(text: &str) -> Result<Vec<Block<'_>>, FormatError> {
    let mut reader = Reader::default();
    for (index, line) in text.lines().enumerate() {
        reader.line(line.trim_matches([' ', '\t'])).map_err(|problem| FormatError { line: index + 1, problem })?;
    }
    Ok(reader.blocks)
}

#[derive(Debug, Default)]
struct Reader<'a> {
    blocks: Vec<Block<'a>>,
    names: HashSet<&'a str>,
    /// Of the last block.
    series: HashSet<&'a str>,
}

impl<'a> Reader<'a> {
    fn line(&mut self, line: &'a str) -> Result<(), &'static str> {
        if let Some(comment) = line.strip_prefix('#') {
            return self.comment(comment.trim_start());
        }
        if line.is_empty() {
            return Ok(());
        }
        let line = sample(line)?;
        if !self.blocks.last().is_some_and(|block| belongs(block.name, block.kind, line.name())) {
            self.open(line.name())?;
        }
        if !self.series.insert(line.series) {
            return Err("series comes twice");
        }
        if let Some(block) = self.blocks.last_mut() {
            block.lines.push(line);
        }
        Ok(())
    }

    fn comment(&mut self, comment: &'a str) -> Result<(), &'static str> {
        if let Some(rest) = comment.strip_prefix("HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            self.open(name)?;
            if let Some(block) = self.blocks.last_mut() {
                block.help = help;
            }
        } else if let Some(rest) = comment.strip_prefix("TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or("TYPE without a type")?;
            self.open(name)?;
            let kind = Kind::parse(kind.trim()).ok_or("unknown type")?;
            if let Some(block) = self.blocks.last_mut() {
                block.kind = kind;
            }
        }
        Ok(())
    }

    /// HELP and TYPE both open a family, whichever comes first.
    fn open(&mut self, name: &'a str) -> Result<(), &'static str> {
        if self.blocks.last().is_some_and(|block| block.name == name && block.lines.is_empty()) {
            return Ok(());
        }
        if !is_metric_name(name) {
            return Err("not a metric name");
        }
        if !self.names.insert(name) {
            return Err("family comes twice");
        }
        self.series.clear();
        self.blocks.push(Block { name, help: "", kind: Kind::Untyped, lines: Vec::new() });
        Ok(())
    }
}

fn belongs(family: &str, kind: Kind, sample: &str) -> bool {
    let Some(suffix) = sample.strip_prefix(family) else { return false };
    match kind {
        Kind::Histogram => matches!(suffix, "_bucket" | "_sum" | "_count"),
        Kind::Summary => matches!(suffix, "" | "_sum" | "_count"),
        Kind::Counter | Kind::Gauge | Kind::Untyped => suffix.is_empty(),
    }
}

fn sample(line: &str) -> Result<Line<'_>, &'static str> {
    let end = line.find(['{', ' ', '\t']).ok_or("sample without a value")?;
    let (name, mut rest) = line.split_at(end);
    if !is_metric_name(name) {
        return Err("not a metric name");
    }
    let mut series = name;
    if let Some(inside) = rest.trim_start().strip_prefix('{') {
        let mut labels = Labels { rest: inside };
        // A series has a handful of labels: looking at each pair is cheaper than a set.
        let mut seen = [""; 16];
        for (count, label) in labels.by_ref().enumerate() {
            let (name, _) = label?;
            if seen.iter().take(count).any(|known| *known == name) {
                return Err("label comes twice");
            }
            *seen.get_mut(count).ok_or("too many labels")? = name;
        }
        rest = labels.rest.strip_prefix('}').ok_or("labels without an end")?;
        series = line.split_at(line.len() - rest.len()).0;
    }
    let mut fields = rest.split_whitespace();
    let value = fields.next().filter(|value| parse_value(value).is_some()).ok_or("not a value")?;
    let timestamp = match fields.next() {
        None => None,
        Some(text) => Some(text.parse().map_err(|_| "not a timestamp")?),
    };
    if fields.next().is_some() {
        return Err("something after the timestamp");
    }
    Ok(Line { series, value, timestamp })
}

/// The number that a value's text is; `None` when it is none of the format's.
pub fn parse_value(text: &str) -> Option<f64> {
    match text {
        "+Inf" | "Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        // Rust takes more spellings of these than the format has.
        _ if text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b)) => text.parse().ok(),
        _ => None,
    }
}

fn is_metric_name(name: &str) -> bool {
    name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_' || b == b':')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':')
}

fn is_label_name(name: &str) -> bool {
    is_metric_name(name) && !name.contains(':')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_not_the_format_is_refused() {
        for (text, problem) in [
            ("x", "sample without a value"),
            ("x y", "not a value"),
            ("x inf", "not a value"),
            ("1x 1", "not a metric name"),
            ("x{a=1} 1", "label value without quotes"),
            ("x{a=\"1} 1", "label value without an end"),
            ("x{a=\"1\" b=\"2\"} 1", "no comma between labels"),
            ("x{a=\"1\",a=\"2\"} 1", "label comes twice"),
            ("x{a=\"1\",", "labels without an end"),
            ("x 1 2 3", "something after the timestamp"),
            ("x 1 y", "not a timestamp"),
            ("x 1\nx 2", "series comes twice"),
            ("# TYPE x counter\nx 1\n# TYPE y gauge\ny 1\n# TYPE x counter\n", "family comes twice"),
            ("# TYPE x strange", "unknown type"),
            ("# TYPE h histogram\nh_bucket{le=\"1\"} 1\nx 1\nh_sum 1\nh 1\nh_bucket{le=\"2\"} 1", "family comes twice"),
        ] {
            assert_eq!(scan(text).unwrap_err().problem, problem, "{text}");
        }
        assert!(scan("x{a=\"\\\"\\\\\\n\",} 1e3 5\n\n# a comment\n").is_ok());
    }

    #[test]
    fn parts_of_a_text() {
        let text = "# HELP h it's \\\\ help\n# TYPE h histogram\nh_bucket{a=\"}, \\\"\",le=\"+Inf\"} 3 17\nh_count{a=\"}, \\\"\"} 3\ny 1\n";
        let blocks = scan(text).unwrap();
        let [h, y] = blocks.as_slice() else { panic!("{blocks:?}") };
        assert_eq!((h.name, h.help, h.kind), ("h", "it's \\\\ help", Kind::Histogram));
        let bucket = h.lines[0];
        assert_eq!(bucket.series, "h_bucket{a=\"}, \\\"\",le=\"+Inf\"}");
        assert_eq!((bucket.name(), bucket.value, bucket.timestamp), ("h_bucket", "3", Some(17)));
        assert_eq!(bucket.labels().collect::<Vec<_>>(), [Ok(("a", "}, \\\"")), Ok(("le", "+Inf"))]);
        assert_eq!((y.kind, y.lines[0].series), (Kind::Untyped, "y"));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[a-c_#{]{0,3}[ -~\n]{0,80}") {
            let _ = scan(&text);
        }
    }
}
