//! A list of promises, each tried and told by itself: one that is broken does not hide the others.

use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};

/// What was tried, in order.
#[derive(Debug, Default)]
pub struct Checklist {
    rows: Vec<(String, Result<(), String>)>,
}

impl Checklist {
    /// Tries one promise. What it says about is the row's name in the document, too.
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

    /// The table, and whether it is the document's: the lines of `document` whose last column begins with `test`.
    ///
    /// # Errors
    /// What does not hold, and where the document says something else.
    pub fn finish(self, document: &str, test: &str) -> Result<()> {
        let told: BTreeSet<&str> = document.lines().filter_map(|line| named(line, test)).collect();
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
            told == tried,
            "the document names what was not tried: {:#?}\nand lacks: {:#?}",
            told.difference(&tried).collect::<Vec<_>>(),
            tried.difference(&told).collect::<Vec<_>>()
        );
        Ok(())
    }
}

/// The second column of a row whose last one begins with the test's name.
fn named<'a>(line: &'a str, test: &str) -> Option<&'a str> {
    let mut columns = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim);
    let (_, what, how) = (columns.next()?, columns.next()?, columns.next()?);
    how.starts_with(&format!("`{test}`")).then_some(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_and_the_test_say_the_same() {
        let document = "| line | what | how |\n|---|---|---|\n| 1 | it runs | `init` |\n| 2 | OpenRC | not run |\n";
        let mut list = Checklist::default();
        list.holds("it runs", || Ok(()));
        list.finish(document, "init").unwrap();

        let mut list = Checklist::default();
        list.holds("it runs", || bail!("it does not"));
        assert!(list.finish(document, "init").unwrap_err().to_string().contains("it does not"));
        assert!(Checklist::default().finish(document, "init").unwrap_err().to_string().contains("it runs"));
    }
}
