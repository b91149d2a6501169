//! What the test runner says of each try, read line by line as it comes: which tests needed another one, where the time went,
//! and whether so many fail in the same way that the rest of the run can tell nothing more.

use std::collections::{BTreeMap, BTreeSet};

/// So many tests in a row, of those that run a node, that fail in the same way are one failure: of the node or the machine. One
/// or two may share the cause that they are about.
const SAME_WAY: usize = 4;
/// Of a reason: what follows differs by the pod, the path and the number in it.
const REASON_LENGTH: usize = 120;

/// One try of one test.
#[derive(Debug, Clone, PartialEq)]
pub struct Try {
    pub binary: String,
    pub test: String,
    pub seconds: f64,
    pub passed: bool,
    /// The first words of why it failed, without numbers; empty where it passed or said nothing.
    pub reason: String,
}

impl Try {
    /// As the runner names it.
    pub fn name(&self) -> String {
        format!("{} {}", self.binary, self.test)
    }

    /// Whether it is about a node on a real runtime. Its package is that of the tests that cross processes; two of its binaries
    /// start none, and its library has unit tests.
    fn has_a_node(&self) -> bool {
        self.binary
            .strip_prefix("bulkhead-tests::")
            .is_some_and(|binary| !binary.contains('/') && !["apiserver_contract", "files"].contains(&binary))
    }
}

/// Everything that was said so far.
#[derive(Debug, Default)]
pub struct Outcome {
    tries: Vec<Try>,
    /// What comes next belongs to the last try, which failed; its reason is not known yet.
    reason: Awaited,
}

#[derive(Debug, Default, PartialEq)]
enum Awaited {
    #[default]
    Nothing,
    Error,
    Panic,
}

impl Outcome {
    /// Takes the next line. A failing test's output comes right after the line that says so.
    pub fn line(&mut self, line: &str) {
        let line = plain(line);
        if let Some(one) = status(&line) {
            self.reason = if one.passed || !one.reason.is_empty() { Awaited::Nothing } else { Awaited::Error };
            self.tries.push(one);
            return;
        }
        let text = line.trim();
        let found = match self.reason {
            Awaited::Nothing => return,
            Awaited::Panic => Some(text),
            Awaited::Error => text.strip_prefix("Error: "),
        };
        if let Some(text) = found {
            if let Some(last) = self.tries.last_mut() {
                last.reason = words_of(text);
            }
            self.reason = Awaited::Nothing;
        } else if text.starts_with("thread '") && text.contains("panicked at") {
            self.reason = Awaited::Panic;
        }
    }

    /// Tests and their tries, in order.
    fn tests(&self) -> BTreeMap<String, Vec<&Try>> {
        let mut tests: BTreeMap<String, Vec<&Try>> = BTreeMap::new();
        for one in &self.tries {
            tests.entry(one.name()).or_default().push(one);
        }
        tests
    }

    /// All tests that ran.
    pub fn names(&self) -> BTreeSet<String> {
        self.tests().into_keys().collect()
    }

    /// Tests that passed, though not at once, with the reasons of the tries before.
    pub fn retried(&self) -> BTreeMap<String, Vec<String>> {
        self.tests()
            .into_iter()
            .filter(|(_, tries)| tries.len() > 1 && tries.last().is_some_and(|last| last.passed))
            .map(|(name, tries)| (name, tries.iter().filter(|one| !one.passed).map(|one| one.reason.clone()).collect()))
            .collect()
    }

    /// Tests that failed in their last try.
    pub fn failed(&self) -> BTreeSet<String> {
        let failed = |tries: &[&Try]| tries.last().is_some_and(|last| !last.passed);
        self.tests().into_iter().filter(|(_, tries)| failed(tries)).map(|(name, _)| name).collect()
    }

    /// The reason that the last tests with a node all failed for, where those are too many to go on.
    pub fn broken(&self) -> Option<&str> {
        let mut nodes = self.tries.iter().rev().filter(|one| one.has_a_node());
        let last = nodes.clone().next().filter(|one| !one.passed && !one.reason.is_empty())?;
        let mut tests = BTreeSet::new();
        while let Some(one) = nodes.next().filter(|one| !one.passed && one.reason == last.reason) {
            tests.insert(one.name());
        }
        (tests.len() >= SAME_WAY).then_some(last.reason.as_str())
    }

    /// Seconds and number of tests by binary, all tries counted, the longest first.
    pub fn binaries(&self) -> Vec<(String, f64, usize)> {
        let mut binaries: BTreeMap<&str, (f64, BTreeSet<&str>)> = BTreeMap::new();
        for one in &self.tries {
            let binary = binaries.entry(&one.binary).or_default();
            binary.0 += one.seconds;
            binary.1.insert(&one.test);
        }
        let mut sorted: Vec<_> =
            binaries.into_iter().map(|(name, (seconds, tests))| (name.to_owned(), seconds, tests.len())).collect();
        sorted.sort_by(|one, other| other.1.total_cmp(&one.1));
        sorted
    }

    /// Seconds of tests with a node, and of all others.
    pub fn with_and_without_a_node(&self) -> (f64, f64) {
        let sum = |with: bool| self.tries.iter().filter(|one| one.has_a_node() == with).map(|one| one.seconds).sum();
        (sum(true), sum(false))
    }

    /// The tests that took longest, all tries counted.
    pub fn slowest(&self, count: usize) -> Vec<(String, f64)> {
        let sum = |tries: Vec<&Try>| tries.iter().map(|one| one.seconds).sum();
        let mut sorted: Vec<(String, f64)> = self.tests().into_iter().map(|(name, tries)| (name, sum(tries))).collect();
        sorted.sort_by(|one, other| other.1.total_cmp(&one.1));
        sorted.truncate(count);
        sorted
    }
}

/// The line without the escape sequences of colours.
pub fn plain(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(one) = characters.next() {
        if one == '\u{1b}' {
            characters.by_ref().find(|next| next.is_ascii_alphabetic());
        } else {
            text.push(one);
        }
    }
    text
}

/// `TRY 1 FAIL [   0.657s] (───) package::binary module::test`; also without the try, and with other words. What is no end of a
/// try (a test that is slow, or is being ended) has `>` before its seconds, or no place among all.
fn status(line: &str) -> Option<Try> {
    let (head, rest) = line.split_once('[')?;
    let (seconds, rest) = rest.split_once(']')?;
    let seconds = seconds.trim().strip_suffix('s')?.parse().ok()?;
    let (_, rest) = rest.trim_start().strip_prefix('(')?.split_once(')')?;
    let (binary, test) = rest.trim().split_once(' ')?;
    let mut words = head.split_whitespace();
    let mut verdict = words.next()?;
    if verdict == "TRY" {
        words.next()?.parse::<u32>().ok()?;
        verdict = words.next()?;
    }
    let passed = match verdict {
        // A process that outlives its test, or a time-out that is told to be none.
        "PASS" | "LEAK" | "TMPASS" => true,
        "FAIL" | "TMT" | "XFAIL" | "LKFAIL" | "ABORT" => false,
        signal if signal.starts_with("SIG") => false,
        _ => return None,
    };
    let reason = if verdict == "TMT" { "it took too long" } else { "" };
    Some(Try { binary: binary.to_owned(), test: test.trim().to_owned(), seconds, passed, reason: reason.to_owned() })
}

/// The same failure of two tests is told with another number, path and last look: none of those is kept.
fn words_of(text: &str) -> String {
    let text = text.split("; last seen:").next().unwrap_or_default();
    text.chars().filter(|one| !one.is_ascii_digit()).take(REASON_LENGTH).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Outcome {
        let mut outcome = Outcome::default();
        text.lines().for_each(|line| outcome.line(line));
        outcome
    }

    const RUN: &str = "
    Starting 5 tests across 1 binary (1 test skipped)
        PASS [   0.034s] (1/5) kubelet-syncd admission::tests::good
\u{1b}[31m  TRY 1 FAIL\u{1b}[0m [   7.657s] (───) \u{1b}[35mbulkhead-tests::cluster\u{1b}[0m cluster_life::flaky
  stdout ───

    running 1 test
  stderr ───
    the kubelet starts
    Error: pod a1 is ready: not within 20 s; last seen: Pending

    Caused by:
        Error: of something else
        SLOW [> 60.000s] (───) bulkhead-tests::cluster cluster_life::slow
  TRY 2 PASS [   2.027s] (2/5) bulkhead-tests::cluster cluster_life::flaky
  TRY 1 SIGABRT [   0.337s] (───) d panics
    thread 'panics' (21474) panicked at src/lib.rs:3:23:
    oh & no
    stack backtrace:
  TRY 2 FAIL [   0.430s] (3/5) d panics
TRY 1 TRMNTG [> 61.000s] (───) bulkhead-tests::cluster cluster_life::slow
   TRY 1 TMT [  61.002s] (5/5) bulkhead-tests::cluster cluster_life::slow
";

    #[test]
    fn tries_are_read_with_their_reasons() {
        let outcome = read(RUN);
        let short: Vec<_> =
            outcome.tries.iter().map(|one| (one.name(), one.seconds, one.passed, one.reason.as_str())).collect();
        let name = |name: &str| name.to_owned();
        assert_eq!(
            short,
            [
                (name("kubelet-syncd admission::tests::good"), 0.034, true, ""),
                (name("bulkhead-tests::cluster cluster_life::flaky"), 7.657, false, "pod a is ready: not within  s"),
                (name("bulkhead-tests::cluster cluster_life::flaky"), 2.027, true, ""),
                (name("d panics"), 0.337, false, "oh & no"),
                (name("d panics"), 0.43, false, ""),
                (name("bulkhead-tests::cluster cluster_life::slow"), 61.002, false, "it took too long"),
            ]
        );
        let retried = outcome.retried();
        assert_eq!(retried.len(), 1, "who failed in every try needed no retry, it failed: {retried:?}");
        assert_eq!(retried["bulkhead-tests::cluster cluster_life::flaky"], ["pod a is ready: not within  s"]);
        let failed: Vec<String> = outcome.failed().into_iter().collect();
        assert_eq!(failed, ["bulkhead-tests::cluster cluster_life::slow", "d panics"]);
    }

    #[test]
    fn time_is_summed_over_tries() {
        let outcome = read(RUN);
        assert_eq!(outcome.slowest(1), [("bulkhead-tests::cluster cluster_life::slow".to_owned(), 61.002)]);
        let (name, seconds, tests) = &outcome.binaries()[0];
        assert_eq!((name.as_str(), seconds.round(), *tests), ("bulkhead-tests::cluster", 71.0, 2));
        let (with, without) = outcome.with_and_without_a_node();
        assert_eq!((with.round(), without.round()), (71.0, 1.0));
    }

    fn failing(tests: &[(&str, &str)]) -> Outcome {
        let mut text = String::new();
        for (test, error) in tests {
            text += &format!("  TRY 1 FAIL [   1.0s] (───) bulkhead-tests::{test}\n    Error: {error}\n");
        }
        read(&text)
    }

    #[test]
    fn many_that_fail_in_the_same_way_are_one_failure() {
        let same = "containerd answers: not within 20 s; last seen:";
        let mut tests = vec![
            ("cluster a", "something else"),
            ("cluster b", same),
            ("cluster b", same),
            ("pods c", "containerd answers: not within 21 s; last seen: nothing"),
            ("pods d", same),
        ];
        assert_eq!(failing(&tests).broken(), None, "three tests, one of them twice");
        tests.push(("serving e", same));
        assert_eq!(failing(&tests).broken(), Some("containerd answers: not within  s"));
        // Neither is about a node.
        tests.push(("files f", "a link"));
        tests.push(("bin/bench g", "a number"));
        assert_eq!(failing(&tests).broken(), Some("containerd answers: not within  s"));
        tests.push(("cluster h", "something else"));
        assert_eq!(failing(&tests).broken(), None);
    }

    #[test]
    fn one_that_passes_shows_that_the_node_works() {
        let mut outcome = failing(&[("cluster a", "x"), ("cluster b", "x"), ("cluster c", "x")]);
        outcome.line("        PASS [   0.034s] (9/99) bulkhead-tests::cluster d");
        outcome.line("  TRY 1 FAIL [   1.0s] (───) bulkhead-tests::cluster e");
        outcome.line("    Error: x");
        assert_eq!(outcome.broken(), None);
    }
}
