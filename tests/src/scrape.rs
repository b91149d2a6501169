//! A strict reader of what scrapers are answered: Prometheus' text 0.0.4 and OpenMetrics 1.0.0. It refuses what a lenient
//! scraper would let pass, for the next one does not.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};

/// Which format a text claims to be in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Prometheus,
    OpenMetrics,
}

/// One line of values.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// With `_bucket`, `_sum`, `_count` or `_total`.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub value: f64,
    /// As it stands there.
    pub timestamp: Option<String>,
}

/// A family with all its series.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    pub name: String,
    pub help: String,
    pub kind: String,
    pub series: Vec<Series>,
}

impl Family {
    /// Names of labels, without those of bounds.
    pub fn labels(&self) -> BTreeSet<&str> {
        let names = self.series.iter().flat_map(|series| series.labels.keys());
        names.map(String::as_str).filter(|name| !matches!(*name, "le" | "quantile")).collect()
    }

    /// The finite bounds of the first histogram, as they are written.
    pub fn bounds(&self) -> Vec<&str> {
        let bounds = self.series.iter().filter_map(|series| series.labels.get("le")).map(String::as_str);
        bounds.take_while(|bound| *bound != "+Inf").collect()
    }
}

/// All families of an answer, by name.
#[derive(Debug, Clone, Default)]
pub struct Scrape {
    pub families: BTreeMap<String, Family>,
}

impl Scrape {
    /// Reads an answer.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn read(text: &str, format: Format) -> Result<Self> {
        let mut reader = Reader { format, scrape: Self::default(), order: Vec::new(), ended: false };
        ensure!(text.ends_with('\n'), "the last line has no end");
        for (number, line) in text.lines().enumerate() {
            reader.line(line).with_context(|| format!("line {}: {line}", number + 1))?;
        }
        ensure!(reader.ended == (format == Format::OpenMetrics), "# EOF");
        // OpenMetrics takes the end off some names, and leaves them where they stand.
        ensure!(format == Format::OpenMetrics || reader.order.is_sorted(), "families are not sorted");
        for family in reader.scrape.families.values() {
            check(family, format).with_context(|| format!("family {}", family.name))?;
        }
        Ok(reader.scrape)
    }

    pub fn family(&self, name: &str) -> Result<&Family> {
        self.families.get(name).with_context(|| format!("no family {name}"))
    }

    /// All series of this name (with its suffix) that have these labels among theirs.
    pub fn all(&self, name: &str, labels: &[(&str, &str)]) -> Vec<&Series> {
        let bases = ["_bucket", "_sum", "_count"].into_iter().filter_map(|suffix| name.strip_suffix(suffix));
        let family = bases.chain([name]).find_map(|base| self.families.get(base));
        let fits = |series: &&Series| {
            series.name == name
                && labels.iter().all(|(key, value)| series.labels.get(*key).is_some_and(|known| known == value))
        };
        family.map(|family| family.series.iter().filter(fits).collect()).unwrap_or_default()
    }

    /// The one series of this name with these labels.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub fn one(&self, name: &str, labels: &[(&str, &str)]) -> Result<f64> {
        match self.all(name, labels).as_slice() {
            [one] => Ok(one.value),
            other => bail!("{} series {name}{labels:?}", other.len()),
        }
    }

    /// The sum of all series of this name with these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.all(name, labels).iter().map(|series| series.value).sum()
    }
}

struct Reader {
    format: Format,
    scrape: Scrape,
    order: Vec<String>,
    ended: bool,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<()> {
        ensure!(!self.ended, "something behind # EOF");
        ensure!(!line.is_empty() && line.trim() == line, "an empty line, or blanks around it");
        if let Some(comment) = line.strip_prefix("# ") {
            return self.comment(comment);
        }
        let series = series(line)?;
        let name = self.order.last().context("a series before any family")?;
        let family = self.scrape.families.get_mut(name).context("the family")?;
        ensure!(!family.kind.is_empty(), "a series before its TYPE");
        let suffix = series.name.strip_prefix(name.as_str()).context("a series of another family")?;
        let allowed: &[&str] = match (family.kind.as_str(), self.format) {
            ("histogram", _) => &["_bucket", "_sum", "_count"],
            ("summary", _) => &["", "_sum", "_count"],
            ("counter", Format::OpenMetrics) => &["_total"],
            _ => &[""],
        };
        ensure!(allowed.contains(&suffix), "suffix {suffix:?} of a {}", family.kind);
        let same = |other: &Series| other.name == series.name && other.labels == series.labels;
        ensure!(!family.series.iter().any(same), "a series that is there already");
        family.series.push(series);
        Ok(())
    }

    fn comment(&mut self, comment: &str) -> Result<()> {
        if comment == "EOF" && self.format == Format::OpenMetrics {
            self.ended = true;
            return Ok(());
        }
        let mut words = comment.splitn(3, ' ');
        let (keyword, name) = (words.next().unwrap_or_default(), words.next().context("a name")?);
        let rest = words.next().context("what is said of it")?;
        match keyword {
            "HELP" => {
                ensure!(is_name(name), "not a name");
                let escapes = if self.format == Format::OpenMetrics { "\\n\"" } else { "\\n" };
                let help = unescaped(rest, escapes)?;
                ensure!(self.format == Format::Prometheus || !bare_quote(rest), "a quote without an escape");
                let family = Family { name: name.to_owned(), help, kind: String::new(), series: Vec::new() };
                ensure!(self.scrape.families.insert(name.to_owned(), family).is_none(), "a family twice");
                self.order.push(name.to_owned());
            }
            "TYPE" => {
                ensure!(self.order.last().is_some_and(|last| last == name), "TYPE that does not follow HELP");
                let untyped = if self.format == Format::OpenMetrics { "unknown" } else { "untyped" };
                ensure!(["counter", "gauge", "histogram", "summary", untyped].contains(&rest), "type {rest}");
                let family = self.scrape.families.get_mut(name).context("the family")?;
                ensure!(family.kind.is_empty(), "a second TYPE");
                rest.clone_into(&mut family.kind);
            }
            other => bail!("# {other}"),
        }
        Ok(())
    }
}

fn is_name(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_' || b == b':');
    first && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':')
}

fn bare_quote(text: &str) -> bool {
    let mut escaped = false;
    text.chars().any(|c| {
        let bare = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        bare
    })
}

fn unescaped(text: &str, allowed: &str) -> Result<String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next().filter(|escape| allowed.contains(*escape)) {
            Some('n') => out.push('\n'),
            Some(other) => out.push(other),
            None => bail!("an escape that there is not in {text:?}"),
        }
    }
    Ok(out)
}

fn series(line: &str) -> Result<Series> {
    let end = line.find(['{', ' ']).context("a value")?;
    let (name, mut rest) = line.split_at(end);
    ensure!(is_name(name), "not a name");
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").context("a label")?;
            ensure!(is_name(label) && !label.contains(':'), "label {label:?}");
            let mut escaped = false;
            let close = after.bytes().position(|b| {
                let closes = b == b'"' && !escaped;
                escaped = b == b'\\' && !escaped;
                closes
            });
            let (value, after) = after.split_at(close.context("the end of a label's value")?);
            ensure!(labels.insert(label.to_owned(), unescaped(value, "\\n\"")?).is_none(), "a label twice");
            rest = &after[1..];
            match (rest.strip_prefix(','), rest.strip_prefix('}')) {
                (Some(after), _) => rest = after,
                (_, Some(after)) => {
                    rest = after;
                    break;
                }
                _ => bail!("neither a comma nor the end"),
            }
        }
    }
    let mut fields = rest.strip_prefix(' ').context("one blank before the value")?.split(' ');
    let value = number(fields.next().unwrap_or_default())?;
    let timestamp = fields.next().map(str::to_owned);
    ensure!(fields.next().is_none(), "something behind the timestamp");
    Ok(Series { name: name.to_owned(), labels, value, timestamp })
}

fn number(text: &str) -> Result<f64> {
    Ok(match text {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        _ => {
            ensure!(text.bytes().all(|b| b.is_ascii_digit() || b"+-.e".contains(&b)), "number {text:?}");
            text.parse()?
        }
    })
}

/// What no single line shows.
fn check(family: &Family, format: Format) -> Result<()> {
    ensure!(!family.kind.is_empty() && !family.series.is_empty(), "no type, or no series");
    for series in &family.series {
        let counts = family.kind == "counter" || series.name.ends_with("_bucket") || series.name.ends_with("_count");
        ensure!(!(counts && family.kind != "gauge") || series.value >= 0.0, "{series:?} counts below none");
        match (&series.timestamp, format) {
            (None, _) => {}
            (Some(time), Format::Prometheus) => ensure!(time.parse::<i64>().is_ok(), "{time}: not milliseconds"),
            (Some(time), Format::OpenMetrics) => {
                let seconds: f64 = time.parse()?;
                ensure!((1e9..1e10).contains(&seconds), "{time}: not seconds of now");
            }
        }
    }
    if family.kind != "histogram" {
        return Ok(());
    }
    let mut groups: BTreeMap<Vec<(&String, &String)>, Vec<&Series>> = BTreeMap::new();
    for series in &family.series {
        let labels = series.labels.iter().filter(|(name, _)| *name != "le").collect();
        groups.entry(labels).or_default().push(series);
    }
    for (labels, group) in groups {
        let part = |suffix: &str| group.iter().find(|series| series.name.ends_with(suffix)).map(|series| series.value);
        let (count, _) = part("_count").zip(part("_sum")).with_context(|| format!("{labels:?} has no sum or count"))?;
        let (mut last_bound, mut last) = (f64::NEG_INFINITY, 0.0);
        for bucket in group.iter().filter(|series| series.name.ends_with("_bucket")) {
            let text = bucket.labels.get("le").context("a bucket without a bound")?;
            let bound = number(text)?;
            ensure!(format == Format::Prometheus || text.contains(['.', 'e', 'I']), "bound {text:?}");
            ensure!(bound > last_bound && bucket.value >= last, "{bucket:?} after {last} up to {last_bound}");
            (last_bound, last) = (bound, bucket.value);
        }
        ensure!(last_bound == f64::INFINITY && last == count, "{labels:?} ends at {last_bound} with {last} of {count}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused() {
        let good =
            "# HELP a h\n# TYPE a histogram\na_bucket{le=\"1.0\"} 1\na_bucket{le=\"+Inf\"} 2\na_sum 3\na_count 2\n";
        assert!(Scrape::read(good, Format::Prometheus).is_ok());
        let open = format!("{good}# EOF\n");
        assert!(Scrape::read(&open, Format::OpenMetrics).is_ok());
        for (bad, format) in [
            (good.to_owned(), Format::OpenMetrics),
            (open.clone(), Format::Prometheus),
            (format!("{open}# HELP b h\n# TYPE b gauge\nb 1\n"), Format::OpenMetrics),
            (open.replace("1.0", "1"), Format::OpenMetrics),
            (good.replace("a_count 2", "a_count 3"), Format::Prometheus),
            (good.replace("a_bucket{le=\"+Inf\"} 2\n", ""), Format::Prometheus),
            (good.replace("le=\"1.0\"} 1", "le=\"1.0\"} 9"), Format::Prometheus),
            ("# HELP b h\n# TYPE b gauge\nb 1\nb 2\n".to_owned(), Format::Prometheus),
            ("# HELP b h\n# TYPE b counter\nb 1\n# EOF\n".to_owned(), Format::OpenMetrics),
            ("# HELP b h\n# TYPE b gauge\nb 1\n# HELP a h\n# TYPE a gauge\na 1\n".to_owned(), Format::Prometheus),
            ("# HELP b h\n# TYPE b gauge\nb{l=\"\\x\"} 1\n".to_owned(), Format::Prometheus),
            ("# TYPE b gauge\nb 1\n".to_owned(), Format::Prometheus),
            ("# HELP b h\n# TYPE b gauge\nb  1\n".to_owned(), Format::Prometheus),
        ] {
            assert!(Scrape::read(&bad, format).is_err(), "{bad}");
        }
    }
}
