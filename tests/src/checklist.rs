//! A checklist of a document, each row tried and reported by itself: one that is broken does not hide the others.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_testkit::build;

/// The rows of a document that one test is to try, and what was tried so far, in order.
#[derive(Debug)]
pub struct Checklist {
    documented: BTreeSet<String>,
    rows: Vec<(String, Result<(), String>)>,
}

impl Checklist {
    /// The checklist of `document`, a path from the root of the repository, for the test in `file`, which is `file!()`.
    ///
    /// # Errors
    /// The document cannot be read, or no row of it names the test: said before anything is tried.
    pub fn of(document: &str, file: &str) -> Result<Self> {
        let path = build::workspace_root().join(document);
        let text = std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
        Self::parse(&text, file).with_context(|| document.to_owned())
    }

    fn parse(document: &str, file: &str) -> Result<Self> {
        let documented: BTreeSet<String> =
            document.lines().filter_map(|line| row_of(line, file)).map(Into::into).collect();
        ensure!(!documented.is_empty(), "no row names {file} in its last column");
        Ok(Self { documented, rows: Vec::new() })
    }

    /// Tries one row. `what` is its name in the document.
    pub fn holds(&mut self, what: &str, check: impl FnOnce() -> Result<()>) {
        let result = check().map_err(|error| format!("{error:#}"));
        eprintln!("{} {what}", if result.is_ok() { "ok    " } else { "FAILED" });
        self.rows.push((what.to_owned(), result));
    }

    /// The same for what everything after it is built on.
    ///
    /// # Errors
    /// It does not hold.
    pub fn needs(&mut self, what: &str, check: impl FnOnce() -> Result<()>) -> Result<()> {
        self.holds(what, check);
        match self.rows.last() {
            Some((what, Err(why))) => bail!("{what}\n    {why}"),
            _ => Ok(()),
        }
    }

    /// Prints the table of what was tried, and holds it against the document's rows.
    ///
    /// # Errors
    /// What does not hold, and where the document says something else.
    pub fn finish(self) -> Result<()> {
        let documented: BTreeSet<&str> = self.documented.iter().map(String::as_str).collect();
        let tried: BTreeSet<&str> = self.rows.iter().map(|(what, _)| what.as_str()).collect();
        let mut table = format!("\n| {:<110} | |\n", "what holds");
        for (what, result) in &self.rows {
            table.push_str(&format!("| {what:<110} | {} |\n", if result.is_ok() { "yes" } else { "NO" }));
        }
        eprintln!("{table}");
        let broken: Vec<_> = self
            .rows
            .iter()
            .filter_map(|(what, result)| Some(format!("{what}\n    {}", result.as_ref().err()?)))
            .collect();
        if !broken.is_empty() {
            bail!("{} of {} do not hold:\n{}", broken.len(), self.rows.len(), broken.join("\n"));
        }
        ensure!(
            documented == tried,
            "the document names what was not tried: {:#?}\nand lacks: {:#?}",
            documented.difference(&tried).collect::<Vec<_>>(),
            tried.difference(&documented).collect::<Vec<_>>()
        );
        Ok(())
    }
}

/// The second column of a row whose last one begins with the path of the test, or with the end of it, in backquotes.
fn row_of<'a>(line: &'a str, file: &str) -> Option<&'a str> {
    let mut columns = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim);
    let (_, what, how) = (columns.next()?, columns.next()?, columns.next()?);
    let (test, _) = how.strip_prefix('`')?.split_once('`')?;
    let rest = file.strip_suffix(test)?;
    (rest.is_empty() || rest.ends_with('/')).then_some(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str =
        "| line | what | how |\n|---|---|---|\n| 1 | it runs | `init/main.rs` |\n| 2 | OpenRC | not run |\n";

    fn checklist() -> Checklist {
        Checklist::parse(DOCUMENT, "tests/tests/init/main.rs").unwrap()
    }

    #[test]
    fn the_document_and_the_test_have_the_same_rows() {
        let mut list = checklist();
        list.holds("it runs", || Ok(()));
        list.finish().unwrap();

        let mut list = checklist();
        list.holds("it runs", || bail!("it does not"));
        assert!(list.finish().unwrap_err().to_string().contains("it does not"));
        assert!(checklist().finish().unwrap_err().to_string().contains("it runs"));
    }

    #[test]
    fn a_document_that_does_not_name_the_test_is_an_error_before_anything_is_tried() {
        let error = Checklist::parse(DOCUMENT, "tests/tests/init.rs").unwrap_err();
        assert_eq!(error.to_string(), "no row names tests/tests/init.rs in its last column");
        assert!(Checklist::parse(DOCUMENT, "tests/tests/reinit/main.rs").is_err());
    }
}
