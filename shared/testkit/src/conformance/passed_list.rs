//! The list of specs that upstream's kubelet passes: a header that says on what it was recorded, then a spec a line, sorted.
//! And what a run says beside it.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, bail};

use super::{Outcome, Report};

/// On what a list was recorded, in the order of its lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    pub fields: Vec<(String, String)>,
}

impl Header {
    /// One more line.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// What a line of it says.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PassedList {
    pub header: Header,
    pub specs: BTreeSet<String>,
}

const TITLE: &str = "# Upstream's end-to-end specs that upstream's kubelet passes, one a line, sorted.\n\
                     # Written by `cargo xtask conformance --record`, not by hand.\n";

impl PassedList {
    /// What passed in a run.
    pub fn of(header: Header, report: &Report) -> Self {
        let passed = report.specs.iter().filter(|(_, spec)| spec.outcome == Outcome::Passed);
        Self { header, specs: passed.map(|(name, _)| name.clone()).collect() }
    }

    /// Reads a list.
    ///
    /// # Errors
    /// A line that is none of a list, with its number.
    pub fn parse(text: &str) -> Result<Self> {
        let mut list = Self::default();
        for (index, line) in text.lines().enumerate() {
            let number = index + 1;
            if let Some(comment) = line.strip_prefix('#') {
                // Lines of the title have no field.
                if let Some((name, value)) = comment.trim().split_once(": ")
                    && !name.contains(' ')
                {
                    list.header.fields.push((name.to_owned(), value.to_owned()));
                }
            } else if line.trim() != line {
                bail!("line {number} begins or ends with a space: a line is a spec's name and nothing else");
            } else if !line.is_empty() {
                if list.specs.last().is_some_and(|last| last.as_str() >= line) {
                    bail!("line {number} is not sorted behind the line before it: {line}");
                }
                list.specs.insert(line.to_owned());
            }
        }
        list.specs.first().context("there is no spec in it")?;
        Ok(list)
    }

    /// The list as it stands in its file.
    pub fn to_text(&self) -> String {
        let mut text = TITLE.to_owned();
        for (name, value) in &self.header.fields {
            text.push_str(&format!("# {name}: {value}\n"));
        }
        for spec in &self.specs {
            text.push_str(spec);
            text.push('\n');
        }
        text
    }

    /// What a run says beside the list. Specs of the list that the run was not asked for do not count.
    pub fn compare(&self, report: &Report) -> Comparison {
        let mut comparison = Comparison::default();
        for (name, spec) in &report.specs {
            let name = name.clone();
            match (self.specs.contains(&name), spec.outcome) {
                (true, Outcome::Passed) => comparison.same += 1,
                (true, _) => comparison.worse.push(name),
                (false, Outcome::Passed) => comparison.better.push(name),
                (false, Outcome::Failed) => comparison.failed_unlisted.push(name),
                (false, Outcome::Skipped) => {}
            }
        }
        comparison
    }
}

/// What a run says beside a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Specs that passed, as the list has it.
    pub same: usize,
    /// Specs of the list that did not pass. A skipped one counts: a node that makes specs skip themselves passes nothing.
    pub worse: Vec<String>,
    /// Specs that passed and are not on the list.
    pub better: Vec<String>,
    /// Specs that failed and are not on the list.
    pub failed_unlisted: Vec<String>,
}

impl Comparison {
    /// Whether everything passed that the list has of this run.
    pub fn is_conformant(&self) -> bool {
        self.worse.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::conformance::Spec;

    fn report(specs: &[(&str, Outcome)]) -> Report {
        let spec = |outcome| Spec { outcome, took: Duration::ZERO, message: String::new() };
        Report { specs: specs.iter().map(|(name, outcome)| ((*name).to_owned(), spec(*outcome))).collect() }
    }

    #[test]
    fn a_list_is_read_as_it_was_written() -> Result<()> {
        let run = report(&[("b", Outcome::Passed), ("a", Outcome::Passed), ("c", Outcome::Failed)]);
        let list = PassedList::of(Header::default().with("runtime", "containerd 1.6: Debian's"), &run);
        assert_eq!(list.specs.iter().collect::<Vec<_>>(), ["a", "b"]);
        let read = PassedList::parse(&list.to_text())?;
        assert_eq!(read, list);
        assert_eq!(read.header.get("runtime"), Some("containerd 1.6: Debian's"));
        Ok(())
    }

    #[test]
    fn a_list_that_is_none_is_refused_with_the_line() {
        for (text, why) in [
            ("", "no spec"),
            ("# runtime: x\n", "no spec"),
            ("b\na\n", "line 2 is not sorted"),
            ("a\na\n", "line 2 is not sorted"),
            ("a \n", "line 1 begins or ends with a space"),
        ] {
            let error = PassedList::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_lists_of_the_repository_say_on_what_they_were_recorded() -> Result<()> {
        let folder = crate::build::workspace_root().join("tests/conformance");
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "txt") {
                continue;
            }
            let list =
                PassedList::parse(&std::fs::read_to_string(&path)?).with_context(|| path.display().to_string())?;
            for field in ["specs", "kubelet", "runtime", "machine", "focus", "skip"] {
                let said = list.header.get(field).is_some_and(|value| !value.is_empty());
                assert!(said, "{}: {field}", path.display());
            }
        }
        Ok(())
    }

    #[test]
    fn only_what_upstream_passes_and_this_node_does_not_is_against_it() {
        let list = PassedList::of(
            Header::default(),
            &report(&["passes", "breaks", "skips", "not asked for"].map(|name| (name, Outcome::Passed))),
        );
        let run = report(&[
            ("passes", Outcome::Passed),
            ("breaks", Outcome::Failed),
            ("skips", Outcome::Skipped),
            ("gained", Outcome::Passed),
            ("fails with both", Outcome::Failed),
            ("skips with both", Outcome::Skipped),
        ]);
        let seen = list.compare(&run);
        assert_eq!(seen.worse, ["breaks", "skips"]);
        assert_eq!(seen.better, ["gained"]);
        assert_eq!(seen.failed_unlisted, ["fails with both"]);
        assert_eq!(seen.same, 1);
        assert!(!seen.is_conformant());
        assert!(list.compare(&report(&[("passes", Outcome::Passed), ("x", Outcome::Failed)])).is_conformant());
    }
}
