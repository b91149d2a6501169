//! Tests that needed another try. They are run again at the end of the run, and a failure then fails it; one that needed another try
//! when it last ran, too, fails the run whatever became of it.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// As often is each of them run again: what fails one time in two passes all of them one time in eight.
const TIMES: usize = 3;
/// From then on none is run again any more.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Runs these tests again, next to each other, until one fails. `run` takes the runner's filter and gives those that failed, which
/// is what this gives.
///
/// # Errors
/// As `run`.
pub fn again(
    retried: &BTreeSet<String>,
    mut run: impl FnMut(&str) -> Result<BTreeSet<String>>,
) -> Result<BTreeSet<String>> {
    let (begun, filter) = (Instant::now(), filter(retried));
    for _ in 0..TIMES {
        if retried.is_empty() || begun.elapsed() > LIMIT {
            break;
        }
        let failed = run(&filter)?;
        if !failed.is_empty() {
            return Ok(failed);
        }
    }
    Ok(BTreeSet::new())
}

/// The runner's filter of tests by their names, each a binary and a test.
fn filter(names: &BTreeSet<String>) -> String {
    let one = |name: &String| {
        let (binary, test) = name.split_once(' ')?;
        Some(format!("(binary_id(={binary}) & test(={test}))"))
    };
    names.iter().filter_map(one).collect::<Vec<_>>().join(" | ")
}

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
    fn what_needed_another_try_is_run_again_until_it_fails() {
        let retried = names(&["bulkhead-tests::cluster a::b", "kubelet-syncd c"]);
        let mut rounds = Vec::new();
        let failed = again(&retried, |filter| {
            rounds.push(filter.to_owned());
            Ok(if rounds.len() == 2 { names(&["kubelet-syncd c"]) } else { names(&[]) })
        });
        assert_eq!(failed.unwrap(), names(&["kubelet-syncd c"]));
        let filter =
            "(binary_id(=bulkhead-tests::cluster) & test(=a::b)) | (binary_id(=kubelet-syncd) & test(=c))".to_owned();
        assert_eq!(rounds, [filter.clone(), filter]);
        let mut runs = 0;
        let mut good = |_: &str| {
            runs += 1;
            Ok(names(&[]))
        };
        assert_eq!(again(&retried, &mut good).unwrap(), names(&[]));
        assert_eq!(again(&names(&[]), &mut good).unwrap(), names(&[]), "nobody needed another try");
        assert_eq!(runs, TIMES);
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
