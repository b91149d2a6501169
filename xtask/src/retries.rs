//! Which tests needed another try when they last ran: one that needs it again fails the run, whatever became of it.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

/// Takes the record at `path` up to this run: of the tests that `ran` the ones in `retried` stand in it, of all others what stood
/// there before. Gives those that needed another try both times.
///
/// # Errors
/// The record cannot be read or written.
pub fn twice(path: &Path, ran: &BTreeSet<String>, retried: &BTreeSet<String>) -> Result<BTreeSet<String>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| format!("reading {}", path.display())),
    };
    let before: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    let now: BTreeSet<&String> = before.difference(ran).chain(retried).collect();
    let lines: String = now.into_iter().map(|name| format!("{name}\n")).collect();
    std::fs::write(path, lines).with_context(|| format!("writing {}", path.display()))?;
    Ok(before.intersection(retried).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_test_that_needs_another_try_twice_in_a_row_is_named() {
        let path = std::env::temp_dir().join(format!("bulkhead-retries-{}", std::process::id()));
        let run = |ran: &[&str], retried: &[&str]| twice(&path, &names(ran), &names(retried)).unwrap();
        assert_eq!(run(&["a 1", "a 2", "b 3"], &["a 1", "b 3"]), names(&[]));
        assert_eq!(run(&["a 2"], &["a 2"]), names(&[]), "a run of one test says nothing of the others");
        assert_eq!(run(&["a 1", "a 2", "b 3"], &["a 1"]), names(&["a 1"]));
        assert_eq!(run(&["a 1", "a 2", "b 3"], &["b 3", "a 2"]), names(&[]), "there was a good run between");
        std::fs::remove_file(&path).unwrap();
    }
}
