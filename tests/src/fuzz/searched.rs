//! How long each target has been searched in all, over all runs that kept what they found: a file with a line a target.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_testkit::build;

const HEADING: &str = "# target, seconds of processor time, inputs (written by `cargo xtask fuzz --keep`)\n";

/// What was done in one target.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Searched {
    /// Of the processor, to the second.
    pub time: Duration,
    pub inputs: u64,
}

/// The targets that were searched, by name.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Record(BTreeMap<String, Searched>);

/// Where the record is kept.
pub fn file() -> PathBuf {
    build::workspace_root().join("tests/fixtures/fuzz/searched.txt")
}

impl Record {
    /// The record in that file; none is an empty one.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it is none of a record.
    pub fn read(file: &Path) -> Result<Self> {
        match std::fs::read_to_string(file) {
            Ok(text) => Self::parse(&text).with_context(|| format!("reading {}", file.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("reading {}", file.display())),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let mut record = Self::default();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let parsed = || -> Option<(String, Searched)> {
                let [name, seconds, inputs] = fields.as_slice() else { return None };
                let searched =
                    Searched { time: Duration::from_secs(seconds.parse().ok()?), inputs: inputs.parse().ok()? };
                Some(((*name).to_owned(), searched))
            };
            let (name, searched) =
                parsed().with_context(|| format!("line {}: not a target, seconds and inputs", number + 1))?;
            record.0.insert(name, searched);
        }
        Ok(record)
    }

    fn text(&self) -> String {
        let lines = self.0.iter().map(|(name, one)| format!("{name} {} {}\n", one.time.as_secs(), one.inputs));
        std::iter::once(HEADING.to_owned()).chain(lines).collect()
    }

    /// What was done in a target so far.
    #[must_use]
    pub fn of(&self, target: &str) -> Searched {
        self.0.get(target).copied().unwrap_or_default()
    }

    /// Adds to it, and writes it down.
    ///
    /// # Errors
    /// The file cannot be written; the old one stays then.
    pub fn add(&mut self, target: &str, more: Searched, file: &Path) -> Result<()> {
        let one = self.0.entry(target.to_owned()).or_default();
        one.time += Duration::from_secs(more.time.as_secs());
        one.inputs += more.inputs;
        let new = file.with_extension("new");
        std::fs::write(&new, self.text()).with_context(|| format!("writing {}", new.display()))?;
        std::fs::rename(&new, file).with_context(|| format!("replacing {}", file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("searched.txt");
        let mut record = Record::read(&file).unwrap();
        assert_eq!(record.of("paths"), Searched::default());
        let more = Searched { time: Duration::from_millis(59_900), inputs: 7 };
        record.add("paths", more, &file).unwrap();
        record.add("paths", more, &file).unwrap();
        record.add("spdy", more, &file).unwrap();
        let again = Record::read(&file).unwrap();
        assert_eq!(again, record);
        assert_eq!(again.of("paths"), Searched { time: Duration::from_secs(118), inputs: 14 });
        assert_eq!(std::fs::read_to_string(&file).unwrap(), format!("{HEADING}paths 118 14\nspdy 59 7\n"));
    }

    #[test]
    fn a_line_that_is_none_is_named() {
        for line in ["paths", "paths 1", "paths one 2", "paths 1 -2", "paths 1 2 3", ""] {
            let error = Record::parse(&format!("{HEADING}{line}\n")).unwrap_err().to_string();
            assert_eq!(error, "line 2: not a target, seconds and inputs", "{line}");
        }
    }
}
