//! Clippy, in one of two ways. On a machine of CI, where everything is compiled once and from nothing, it is the compiler of the
//! workspace's own crates, which it can be: the lints cost what they cost, and nothing is read twice. Elsewhere it runs beside
//! the tests, in the idle class, so that no test has less than it would have alone, and what `cargo build` has made is used.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result, bail};
use bulkhead_testkit::build;

use crate::checks::{cargo, cargo_program};

/// What only `demo --cluster` and `conformance` build of xtask must not go stale unseen.
const ARGUMENTS: &[&str] =
    &["clippy", "--workspace", "--all-targets", "--features=xtask/cluster", "--locked", "--", "-D", "warnings"];

/// What makes clippy the compiler of a build's own crates, with warnings as errors; none where that is not wanted (`$CI`) or it
/// is not there.
pub fn as_compiler() -> Vec<(&'static str, &'static OsStr)> {
    let is_there = || {
        let mut command = Command::new(DRIVER);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if std::env::var_os("CI").is_none() || !is_there() {
        return Vec::new();
    }
    // As `cargo clippy` passes on what follows its `--`.
    let arguments = "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";
    vec![(build::COMPILER, OsStr::new(DRIVER)), ("CLIPPY_ARGS", OsStr::new(arguments))]
}

/// Runs it by itself.
///
/// # Errors
/// It found something.
pub fn now() -> Result<()> {
    cargo(ARGUMENTS)
}

/// Beside `cargo-clippy`.
const DRIVER: &str = "clippy-driver";

/// Clippy at work. Its target folder is its own: it would hold up every other cargo, each of which waits for the lock of its folder.
#[derive(Debug)]
pub struct Lints(JoinHandle<Result<()>>);

impl Lints {
    /// # Errors
    /// The program did not start.
    pub fn start() -> Result<Self> {
        let target = build::target_dir().join("lints");
        std::fs::create_dir_all(&target).with_context(|| format!("creating {}", target.display()))?;
        let log = target.join("output");
        let output = std::fs::File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        eprintln!("\n+ cargo {} (beside what follows)", ARGUMENTS.join(" "));
        let mut child = idle(cargo_program())
            .current_dir(build::workspace_root())
            .args(ARGUMENTS)
            .env("CARGO_TARGET_DIR", &target)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("starting cargo clippy")?;
        Ok(Self(std::thread::spawn(move || told(child.wait()?.success(), &log))))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It found something, which was printed then.
    pub fn finish(self) -> Result<()> {
        self.0.join().unwrap_or_else(|_| bail!("waiting for cargo clippy panicked"))
    }
}

/// What was found is printed at once, so that it is seen before the tests end.
fn told(clean: bool, log: &Path) -> Result<()> {
    if clean {
        return Ok(());
    }
    eprintln!("\nlints:\n{}", read(log));
    bail!("cargo clippy failed");
}

fn read(log: &Path) -> String {
    std::fs::read_to_string(log).unwrap_or_else(|error| format!("{}: {error}", log.display()))
}

/// Runs when no other process wants to (sched(7), SCHED_IDLE), and dies with the thread that started it.
fn idle(program: std::ffi::OsString) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "chrt", "--idle", "0"]).arg(program);
    command
}
