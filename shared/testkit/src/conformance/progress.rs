//! ginkgo's output (`-v`, no colour, processes in parallel) as it comes, line by line. It is for showing how far the run
//! is and for nothing else: what counts is in ginkgo's report.

use std::time::Duration;

use super::Outcome;

/// How far the run is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// How many specs will run; known from the first lines on.
    pub total: Option<usize>,
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    /// The spec whose name is the next line.
    ended: Option<(Outcome, Duration)>,
    /// A process tells where its spec is. When that spec has ended, ginkgo repeats all of it without this beginning.
    told: bool,
}

/// What a line has told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// The number of specs is known.
    Total(usize),
    /// A spec has ended.
    Ended { name: String, outcome: Outcome, took: Duration },
    /// A spec has been running for some time.
    Running { name: String, since: Duration },
}

impl Progress {
    /// How many specs have ended.
    pub fn ended(&self) -> usize {
        self.passed + self.failed + self.skipped
    }

    /// Takes the next line.
    pub fn line(&mut self, line: &str) -> Option<Update> {
        if let Some((outcome, took)) = self.ended.take() {
            let count = match outcome {
                Outcome::Passed => &mut self.passed,
                Outcome::Skipped => &mut self.skipped,
                Outcome::Failed => &mut self.failed,
            };
            *count += 1;
            return Some(Update::Ended { name: without_labels(line.trim()).to_owned(), outcome, took });
        }
        if line.trim_start().starts_with("Progress Report for Ginkgo Process #") {
            self.told = true;
            return None;
        }
        if let Some((name, rest)) = line.split_once(" (Spec Runtime: ") {
            if !std::mem::take(&mut self.told) {
                return None;
            }
            let since = duration(rest.trim_end().trim_end_matches(')'))?;
            return Some(Update::Running { name: without_labels(name.trim()).to_owned(), since });
        }
        if let Some(rest) = line.strip_prefix("Will run ") {
            let total = rest.split_ascii_whitespace().next()?.parse().ok()?;
            self.total = Some(total);
            return Some(Update::Total(total));
        }
        self.ended = ended(line);
        None
    }
}

/// `• [1.234 seconds]`, `• [FAILED] [1.234 seconds]`, `S [SKIPPED] [0.5 seconds]`; specs that the filters leave out have no time.
fn ended(line: &str) -> Option<(Outcome, Duration)> {
    let mut words = line.trim_end().strip_suffix(" seconds]")?.split(' ');
    let mark = words.next()?;
    let mut outcome = Outcome::Passed;
    let mut seconds = None;
    for word in words {
        let word = word.strip_prefix('[').unwrap_or(word);
        match word.trim_end_matches(']') {
            "SKIPPED" => outcome = Outcome::Skipped,
            "FAILED" | "PANICKED!" | "TIMEDOUT" | "INTERRUPTED" | "ABORTED" => outcome = Outcome::Failed,
            other => seconds = other.parse().ok(),
        }
    }
    // Blocks of set-up that belong to no spec begin with their own name.
    if !matches!(mark, "•" | "S" | "↺") {
        return None;
    }
    Some((outcome, Duration::try_from_secs_f64(seconds?).ok()?))
}

/// ginkgo puts a spec's labels behind its name: one more group in brackets, with commas.
fn without_labels(name: &str) -> &str {
    match name.rsplit_once(" [") {
        Some((rest, labels)) if labels.ends_with(']') && labels.contains(", ") => rest,
        _ => name,
    }
}

/// Go's way to write a duration: `1h2m3.5s`, `1m0.25s`, `900ms`.
fn duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(unit_at);
        let unit_end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let seconds = number.parse::<f64>().ok()?
            * match unit {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "µs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        total = total.checked_add(Duration::try_from_secs_f64(seconds).ok()?)?;
        rest = after;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn updates(text: &str) -> (Progress, Vec<Update>) {
        let mut progress = Progress::default();
        let updates = text.lines().filter_map(|line| progress.line(line)).collect();
        (progress, updates)
    }

    #[test]
    fn a_run_is_followed_spec_by_spec() {
        let (progress, updates) = updates(
            "Running Suite: Kubernetes e2e suite - /tmp\n\
             Will run 3 of 7421 specs\n\
             Running in parallel across 8 processes\n\
             SSSSSSSSSS\n\
             ------------------------------\n\
             • [5.123 seconds]\n\
             [sig-node] Pods should be updated [NodeConformance] [Conformance] [sig-node, NodeConformance, Conformance]\n\
             k8s.io/kubernetes/test/e2e/common/node/pods.go:344\n\
             ------------------------------\n\
             \x20 Progress Report for Ginkgo Process #4\n\
             \x20 Automatically polling progress:\n\
             \x20   [sig-node] Probing container should wait [NodeConformance] (Spec Runtime: 1m20.5s)\n\
             ------------------------------\n\
             S [SKIPPED] [0.250 seconds]\n\
             [sig-node] Sysctls should be skipped [NodeConformance]\n\
             ------------------------------\n\
             • [FAILED] [12.000 seconds]\n\
             [sig-node] Probing container [It] should wait [NodeConformance]\n\
             \x20 Timeline >>\n\
             \x20 Automatically polling progress:\n\
             \x20   [sig-node] Probing container should wait [NodeConformance] (Spec Runtime: 1m20.5s)\n",
        );
        assert_eq!((progress.passed, progress.skipped, progress.failed), (1, 1, 1));
        assert_eq!((progress.ended(), progress.total), (3, Some(3)));
        let ended = |name: &str, outcome, millis| Update::Ended {
            name: name.to_owned(),
            outcome,
            took: Duration::from_millis(millis),
        };
        assert_eq!(
            updates,
            [
                Update::Total(3),
                ended("[sig-node] Pods should be updated [NodeConformance] [Conformance]", Outcome::Passed, 5123),
                Update::Running {
                    name: "[sig-node] Probing container should wait [NodeConformance]".to_owned(),
                    since: Duration::from_millis(80_500),
                },
                ended("[sig-node] Sysctls should be skipped [NodeConformance]", Outcome::Skipped, 250),
                ended("[sig-node] Probing container [It] should wait [NodeConformance]", Outcome::Failed, 12_000),
            ]
        );
    }

    #[test]
    fn set_up_of_the_suite_is_no_spec() {
        let (progress, updates) = updates("[SynchronizedBeforeSuite] [FAILED] [30.001 seconds]\nBefore all\n");
        assert_eq!((progress.ended(), updates), (0, Vec::new()));
    }

    #[test]
    fn output_of_a_spec_that_looks_like_a_result_is_none() {
        for line in ["• []", "• [x seconds]", "• [FAILED] [-1 seconds]", " seconds]", "• [1e400 seconds]"] {
            assert_eq!(ended(line), None, "{line}");
        }
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
        assert_eq!(duration("1h0m1.5s"), Some(Duration::from_millis(3_601_500)));
        assert_eq!(duration("900ms"), Some(Duration::from_millis(900)));
        for wrong in ["1", "s", "1.2.3s", "5 minutes", "99999999999999999999999h"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }
}
