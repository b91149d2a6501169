//! A run of the specs: ginkgo with e2e.test, its output followed line by line.

use std::fs::File;
use std::io::{BufRead as _, BufReader, IsTerminal as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bulkhead_testkit::conformance::{Header, Outcome, Progress, Report, Update};
use bulkhead_testkit::{processes, wait};

use super::Programs;

/// Specs of a run where neither the command line nor a list says which, and which of these are left out.
const FOCUS: &str = r"\[NodeConformance\]";
const SKIP: &str = r"\[Serial\]|\[Disruptive\]|\[Flaky\]|\[Slow\]";

/// What the command line says of it.
#[derive(Debug, Default)]
pub struct Asked {
    pub focus: Option<String>,
    pub skip: Option<String>,
    pub processes: u16,
}

impl Asked {
    /// What is said, and where nothing is said, that with which the list was recorded that the run is compared with.
    pub fn selection(&self, list: Option<&Header>) -> Selection {
        let choose = |said: &Option<String>, field: &str, default: &str| {
            let recorded = list.and_then(|list| list.get(field)).unwrap_or(default);
            said.clone().unwrap_or_else(|| recorded.to_owned())
        };
        Selection {
            focus: choose(&self.focus, "focus", FOCUS),
            skip: choose(&self.skip, "skip", SKIP),
            processes: self.processes,
        }
    }
}

/// What ginkgo is asked for.
#[derive(Debug)]
pub struct Selection {
    pub focus: String,
    pub skip: String,
    pub processes: u16,
}

/// Runs the specs and gives what became of each; ginkgo's own output and report go to `output`.
///
/// # Errors
/// The specs were not begun or were cut short.
pub fn run(programs: &Programs, kubeconfig: &Path, selection: &Selection, output: &Path) -> Result<Report> {
    let report = output.join("report.json");
    let log = output.join("ginkgo.log");
    let mut specs = Specs::start(programs, kubeconfig, selection, output)?;
    specs.show(&log)?;
    let ended = specs.ginkgo.wait().context("waiting for ginkgo")?;
    if !report.is_file() {
        bail!("ginkgo ended ({ended}) without a report; its output is {}", log.display());
    }
    let report = Report::read(&std::fs::read(&report).context("reading ginkgo's report")?)?;
    if report.specs.is_empty() {
        bail!("no spec fits --focus {:?} and --skip {:?}", selection.focus, selection.skip);
    }
    Ok(report)
}

/// ginkgo and the processes that it starts, in a process group of their own.
#[derive(Debug)]
struct Specs {
    ginkgo: Child,
    lines: Receiver<String>,
    began: Instant,
}

impl Specs {
    fn start(programs: &Programs, kubeconfig: &Path, selection: &Selection, output: &Path) -> Result<Self> {
        let mut command = Command::new(programs.path("ginkgo"));
        command
            .arg("-v")
            .arg("--no-color")
            .arg(format!("--procs={}", selection.processes))
            .arg(format!("--focus={}", selection.focus))
            .arg(format!("--skip={}", selection.skip))
            // For the line that says which spec has been running for long.
            .args(["--poll-progress-after=30s", "--poll-progress-interval=60s"])
            // Above any selection that one node gets through: the slow and serial ones take hours.
            .arg("--timeout=12h")
            .args(["--json-report=report.json", "--junit-report=junit.xml"])
            .arg(format!("--output-dir={}", output.display()))
            .arg(programs.path("e2e.test"))
            .arg("--")
            .arg("--provider=local")
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .args(["--num-nodes=1", "--allowed-not-ready-nodes=0", "--system-pods-startup-timeout=30s"])
            .arg("--disable-log-dump=true")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
            // The cluster is on this machine.
            command.env_remove(name);
        }
        let mut ginkgo = command.spawn().context("starting ginkgo")?;
        // As many lines as ginkgo writes for one spec with a long log; then it waits for whoever reads.
        let (sender, lines) = sync_channel(4096);
        let streams: [Box<dyn std::io::Read + Send>; 2] = [
            Box::new(ginkgo.stdout.take().context("ginkgo's output")?),
            Box::new(ginkgo.stderr.take().context("ginkgo's errors")?),
        ];
        for stream in streams {
            let sender = sender.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream);
                let mut line = Vec::new();
                while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                    if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                        return;
                    }
                    line.clear();
                }
            });
        }
        Ok(Self { ginkgo, lines, began: Instant::now() })
    }

    /// Shows how far the run is until it ends.
    fn show(&mut self, log: &Path) -> Result<()> {
        let mut log = File::create(log).with_context(|| format!("creating {}", log.display()))?;
        let mut progress = Progress::default();
        let display = Display::new(self.began);
        loop {
            if wait::interrupted() {
                bail!("interrupted");
            }
            // In slices, so that an interrupt is noticed.
            match self.lines.recv_timeout(Duration::from_millis(200)) {
                Ok(line) => {
                    writeln!(log, "{line}").context("writing ginkgo's output")?;
                    if let Some(update) = progress.line(&line) {
                        display.show(&progress, &update);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Both streams have ended.
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }
}

impl Drop for Specs {
    fn drop(&mut self) {
        // Nothing of an ended group is left to be killed.
        processes::kill_group(self.ginkgo.id() as i32);
        let _ = self.ginkgo.wait();
    }
}

/// One line for each spec that ends, and for each that has been running for long.
struct Display {
    began: Instant,
    red: (&'static str, &'static str),
}

impl Display {
    fn new(began: Instant) -> Self {
        Self { began, red: if std::io::stdout().is_terminal() { ("\x1b[31m", "\x1b[0m") } else { ("", "") } }
    }

    fn show(&self, progress: &Progress, update: &Update) {
        let of = progress.total.map_or_else(|| "?".to_owned(), |total| total.to_string());
        let head = |what: &str, took: Duration| {
            let failed = if progress.failed == 0 { String::new() } else { format!(", {} failed", progress.failed) };
            format!("   {:>3} of {of}{failed}  {what} {:>6.1} s ", progress.ended(), took.as_secs_f64())
        };
        match update {
            Update::Total(total) => {
                println!("   {total} specs will run ({:.0} s after the start)", self.began.elapsed().as_secs_f64());
            }
            Update::Running { name, since } => println!("{} {name}", head("running", *since)),
            Update::Ended { name, outcome, took } => {
                let (what, (on, off)) = match outcome {
                    Outcome::Passed => ("passed ", ("", "")),
                    Outcome::Skipped => ("skipped", ("", "")),
                    Outcome::Failed => ("FAILED ", self.red),
                };
                println!("{on}{} {name}{off}", head(what, *took));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_of_the_specs_of_its_list_unless_others_are_asked_for() {
        let list = Header::default().with("focus", "csi-hostpath").with("skip", "Slow");
        let chosen = |focus: Option<&str>, list| {
            let asked = Asked { focus: focus.map(str::to_owned), ..Asked::default() };
            let selection = asked.selection(list);
            (selection.focus, selection.skip)
        };
        let pair = |focus: &str, skip: &str| (focus.to_owned(), skip.to_owned());
        assert_eq!(chosen(None, Some(&list)), pair("csi-hostpath", "Slow"));
        assert_eq!(chosen(Some("subPath"), Some(&list)), pair("subPath", "Slow"));
        assert_eq!(chosen(None, None), pair(FOCUS, SKIP));
    }
}
