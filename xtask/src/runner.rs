//! Runs the tests with nextest, passes on what it says, and puts what a reader wants to know of the whole run before its
//! summary, which stays the end of the output: tests that needed another try (which are run again before it), what was skipped,
//! where the time went. Ends the run where going on tells nothing.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead_testkit::{build, processes};

use crate::checks::{BUILD, cargo_program};
use crate::lints::Lints;
use crate::outcome::{Outcome, plain};
use crate::phases::{Phases, minutes};
use crate::{interrupt, retries};

/// As many as are worth a look.
const SLOWEST: usize = 12;
const BINARIES: usize = 8;
/// Most tests wait more than they compute: four labs and a machine, or tests without either, keep two cores busy.
const LEAST_THREADS: usize = 5;

/// Runs `cargo nextest run` with these arguments. `runtime`: what the labs run on.
///
/// # Errors
/// A test failed; one that needed another try failed when it was run again, or needed one for the second time in a row; all failed
/// in the same way; the lints that ran beside them found something.
pub fn run(
    rest: &[String],
    environment: &[(&str, &OsStr)],
    skips: &Path,
    runtime: &str,
    lints: Option<Lints>,
    phases: &mut Phases,
) -> Result<()> {
    // Ctrl-C reaches the runner too, which ends its tests and says what came of them; we wait for that.
    let _signals = interrupt::listen()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.max(LEAST_THREADS).to_string();
    let mut arguments = [&["nextest", "run"], BUILD].concat();
    if !rest.iter().any(|one| one.starts_with("--test-threads") || one.starts_with("-j") || one == "--no-capture") {
        arguments.extend(["--test-threads", &threads]);
    }
    arguments.extend(rest.iter().map(String::as_str));
    let (mut child, mut said) = start(&arguments, environment)?;

    let (mut outcome, mut end, mut broken) = (Outcome::default(), End::default(), None);
    let mut line = Vec::new();
    while said.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        if let Some(now) = end.take(&text) {
            std::io::stderr().write_all(now.as_bytes())?;
            outcome.line(now.lines().last().unwrap_or_default());
        }
        if broken.is_none()
            && let Some(reason) = outcome.broken()
        {
            broken = Some(reason.to_owned());
            eprintln!("\nxtask: tests fail in the same way one after the other: the run ends here");
            processes::interrupt(&child);
        }
        line.clear();
    }
    let status = child.wait().context("waiting for cargo")?;
    phases.end("tests");
    let lints = lints.map_or(Ok(()), Lints::finish);
    phases.end("the rest of the lints");

    let retried = outcome.retried().into_keys().collect();
    let record = build::target_dir().join("tests-that-needed-another-try");
    let mut bugs = retries::twice(&record, &outcome.names(), &retried)?;
    // Where a test has failed, the run has. The tests of a run that goes on are run again alone.
    if status.success() {
        bugs.extend(retries::again(&retried, |filter| failed_again(filter, &threads, environment))?);
        phases.end("tests run again");
    }
    let report = report(&outcome, &bugs, &skipped_in(skips), runtime, phases);
    eprint!("{report}{}", end.held);

    if let Some(reason) = broken {
        bail!("the node, or this machine, is broken: tests one after the other failed with \"{reason}\"");
    }
    if !status.success() {
        bail!("cargo nextest run failed ({status})");
    }
    if !bugs.is_empty() {
        bail!(
            "needed another try and failed when run again, or needed one in the run before, too, which is a bug: {}",
            bugs.into_iter().collect::<Vec<_>>().join(", ")
        );
    }
    lints
}

/// The runner, and what it says.
fn start(arguments: &[&str], environment: &[(&str, &OsStr)]) -> Result<(Child, BufReader<ChildStderr>)> {
    eprintln!("\n+ cargo {}", arguments.join(" "));
    let mut command = Command::new(cargo_program());
    if std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        command.args(["--color", "always"]);
    }
    command.current_dir(build::workspace_root()).args(arguments).envs(environment.iter().copied());
    let mut child = command.stderr(Stdio::piped()).spawn().context("starting cargo")?;
    let said = BufReader::new(child.stderr.take().context("cargo has no output")?);
    Ok((child, said))
}

/// Runs the tests of a filter once, each with one try. Gives those that failed.
fn failed_again(filter: &str, threads: &str, environment: &[(&str, &OsStr)]) -> Result<BTreeSet<String>> {
    let again = ["--ignore-default-filter", "--retries", "0", "--test-threads", threads, "-E", filter];
    let (mut child, mut said) = start(&[&["nextest", "run"], BUILD, &again].concat(), environment)?;
    let (mut outcome, mut line) = (Outcome::default(), Vec::new());
    while said.read_until(b'\n', &mut line)? > 0 {
        std::io::stderr().write_all(&line)?;
        outcome.line(&String::from_utf8_lossy(&line));
        line.clear();
    }
    let (status, failed) = (child.wait().context("waiting for cargo")?, outcome.failed());
    if !status.success() && failed.is_empty() {
        bail!("tests that needed another try could not be run again ({status})");
    }
    Ok(failed)
}

/// Where the runner's summary begins, which is a line of dashes and one that says so.
#[derive(Debug, Default)]
struct End {
    begun: bool,
    held: String,
}

impl End {
    /// Gives what is to be printed now, or nothing where that is to wait.
    fn take(&mut self, line: &str) -> Option<String> {
        let plain = plain(line);
        let text = plain.trim();
        if !self.begun && text.starts_with("Summary [") {
            self.begun = true;
        }
        if self.begun {
            self.held.push_str(line);
            return None;
        }
        let before = std::mem::take(&mut self.held);
        if !text.is_empty() && text.chars().all(|one| one == '─') {
            line.clone_into(&mut self.held);
            return (!before.is_empty()).then_some(before);
        }
        Some(before + line)
    }
}

/// Each once, in order.
pub fn skipped_in(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines.dedup();
    lines
}

/// What is told before the end.
pub fn report(
    outcome: &Outcome,
    bugs: &BTreeSet<String>,
    skipped: &[String],
    runtime: &str,
    phases: &Phases,
) -> String {
    let seconds = |seconds: f64| minutes(Duration::from_secs_f64(seconds));
    let mut text = format!("\nwhere the time went:\n{}", phases.lines());
    if !outcome.names().is_empty() {
        let (with, without) = outcome.with_and_without_a_node();
        let (with, without) = (seconds(with), seconds(without));
        let _ = writeln!(text, "  the tests one by one: {with} with a node or a machine, {without} without");
        let _ = writeln!(text, "by test binary, its tests one by one:");
        for (name, sum, tests) in outcome.binaries().into_iter().take(BINARIES) {
            let _ = writeln!(text, "  {:>6}  {name} ({tests})", seconds(sum));
        }
        let _ = writeln!(text, "the slowest tests:");
        for (name, sum) in outcome.slowest(SLOWEST) {
            let _ = writeln!(text, "  {:>6}  {name}", seconds(sum));
        }
    }
    let _ = writeln!(text, "labs that ask for no runtime of their own ran on {runtime}");
    let _ = writeln!(text, "skipped: {}", skipped.len());
    for line in skipped {
        let _ = writeln!(text, "  {line}");
    }
    let retried = outcome.retried();
    let _ = writeln!(text, "needed another try: {}", retried.len());
    for (name, reasons) in retried {
        let again = if bugs.contains(&name) { " - and again since, or in the run before: a bug" } else { "" };
        let _ = writeln!(text, "  {name}{again}");
        reasons.iter().filter(|reason| !reason.is_empty()).for_each(|reason| {
            let _ = writeln!(text, "      {reason}");
        });
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runner_s_summary_waits_for_ours() {
        let mut end = End::default();
        let printed: String = [
            "────────────\n",
            " Nextest run ID 1\n",
            "        PASS [   0.034s] (1/1) d good\n",
            "────────────\n",
            "\u{1b}[32m     Summary\u{1b}[0m [   4.696s] 5 tests run: 2 passed (1 flaky)\n",
            "   FLAKY 2/2 [   0.027s] (3/5) d flaky\n",
        ]
        .into_iter()
        .filter_map(|line| end.take(line))
        .collect();
        assert_eq!(printed, "────────────\n Nextest run ID 1\n        PASS [   0.034s] (1/1) d good\n");
        assert!(end.held.starts_with("────────────\n") && end.held.ends_with("d flaky\n"), "{:?}", end.held);
    }

    #[test]
    fn what_is_held_back_is_given_where_no_summary_comes() {
        let mut end = End::default();
        assert_eq!(end.take("────\n"), None);
        assert_eq!(end.take("────\n").as_deref(), Some("────\n"));
        assert_eq!(end.take("error: it does not build\n").as_deref(), Some("────\nerror: it does not build\n"));
        assert_eq!(end.held, "");
    }

    #[test]
    fn the_report_names_retries_skips_and_times() {
        let mut outcome = Outcome::default();
        for line in [
            "  TRY 1 FAIL [  61.000s] (───) bulkhead-tests::cluster cluster_life::flaky",
            "    Error: pod a is ready: not within 20 s; last seen: Pending",
            "  TRY 2 PASS [   2.000s] (2/5) bulkhead-tests::cluster cluster_life::flaky",
        ] {
            outcome.line(line);
        }
        let bugs = std::iter::once("bulkhead-tests::cluster cluster_life::flaky".to_owned()).collect();
        let text = report(&outcome, &bugs, &["lines: no journald".to_owned()], "containerd 1.6", &Phases::default());
        for told in [
            "needed another try: 1\n  bulkhead-tests::cluster cluster_life::flaky - and again since, or in the run before: a bug\n",
            "ran on containerd 1.6\n",
            "skipped: 1\n  lines: no journald\n",
            "    1:03  bulkhead-tests::cluster (1)\n",
            "    1:03  bulkhead-tests::cluster cluster_life::flaky\n",
        ] {
            assert!(text.contains(told), "{text}");
        }
    }
}
