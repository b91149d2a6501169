//! Runs libFuzzer for each target: builds the program with counters, hands it the corpus, tells how far it is, and keeps what it
//! found.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead_testkit::build;
use bulkhead_tests::fuzz::Target;
use bulkhead_tests::fuzz::searched::{self, Record, Searched};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};
use parking_lot::Mutex;

/// The counters that libFuzzer reads, as cargo-fuzz asks for them; each is an option of the stable compiler.
const COUNTERS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// No input is longer, bytes.
const LONGEST: u32 = 4096;
/// How often a line says how far it is.
const PULSE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(500);

/// What is done for each target.
#[derive(Debug)]
pub struct Plan {
    pub program: PathBuf,
    /// Keep what is found, and write the time into the record.
    pub keep: bool,
    pub record: Mutex<Record>,
}

fn folder() -> PathBuf {
    build::target_dir().join("fuzz-search")
}

/// Builds the program with counters in a target folder of its own.
///
/// # Errors
/// There is no C++ compiler, or cargo failed.
pub fn build() -> Result<PathBuf> {
    let compiler = std::env::var_os("CXX").unwrap_or_else(|| "c++".into());
    if Command::new(&compiler).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        bail!("libFuzzer is built by a C++ compiler, and there is no {} (apt-get install g++)", compiler.display());
    }
    let version = Command::new("rustc").arg("-vV").output().context("asking rustc for its host")?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc -vV names no host")?;
    let target = folder().join("build");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(build::workspace_root());
    // With --target, build scripts and macros are built without the counters, which they could not be linked with.
    cargo.args(["build", "--locked", "--profile", "fuzz", "--package", "bulkhead-tests", "--features", "libfuzzer"]);
    cargo.args(["--bin", "fuzz_target", "--target", host]).arg("--target-dir").arg(&target);
    build::forget_own_build(&mut cargo);
    cargo.env("RUSTFLAGS", COUNTERS.split_whitespace().collect::<Vec<_>>().join(" "));
    if !cargo.status().context("starting cargo")?.success() {
        bail!("cargo could not build the targets");
    }
    Ok(target.join(host).join("fuzz/fuzz_target"))
}

/// Searches in these targets for so much processor time each, some at a time.
///
/// # Errors
/// A target broke, or could not be run.
pub fn all(plan: &Plan, targets: &[(&'static Target, Duration)], jobs: usize) -> Result<()> {
    println!(
        "{:<16} {:>9} {:>12} {:>9} {:>7} {:>9} {:>7}",
        "target", "processor", "inputs", "a second", "edges", "features", "corpus"
    );
    let waiting = Mutex::new(targets.iter());
    let broken = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let next = waiting.lock().next().copied();
                    let Some((target, time)) = next else { return };
                    if let Err(error) = one(plan, target, time) {
                        println!("{:<16} {error:#}", target.name);
                        broken.lock().push(target.name);
                    }
                }
            });
        }
    });
    let broken = broken.into_inner();
    if broken.is_empty() { Ok(()) } else { bail!("something is wrong with {}", broken.join(", ")) }
}

/// Ends the search when it is dropped.
struct Search(Child);

impl Drop for Search {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn one(plan: &Plan, target: &'static Target, time: Duration) -> Result<()> {
    let folder = folder().join(target.name);
    let corpus = folder.join("corpus");
    std::fs::create_dir_all(&corpus).with_context(|| format!("creating {}", corpus.display()))?;
    for (number, input) in target.corpus()?.iter().enumerate() {
        std::fs::write(corpus.join(format!("kept-{number}")), input).context("writing the corpus")?;
    }
    let dictionary = folder.join("words");
    let words: String = target.words.iter().map(|word| format!("\"{}\"\n", quoted(word))).collect();
    std::fs::write(&dictionary, words).context("writing the dictionary")?;
    let log = folder.join("log");
    let output = std::fs::File::create(&log).with_context(|| format!("creating {}", log.display()))?;
    let mut command = fuzzer(plan, target, &folder);
    command.arg(format!("-dict={}", dictionary.display())).arg(&corpus).stderr(output);
    let mut search = Search(command.spawn().context("starting the search")?);
    let pid = Pid::from_raw(i32::try_from(search.0.id())?);
    let (mut used, mut told, mut asked) = (Duration::ZERO, Duration::ZERO, false);
    let status = loop {
        if let Some(status) = search.0.try_wait().context("waiting for the search")? {
            break status;
        }
        used = processor_time(pid).unwrap_or(used);
        if used >= time && !asked {
            // Upon this one libFuzzer ends well.
            kill(pid, Signal::SIGUSR1).context("ending the search")?;
            asked = true;
        }
        if used >= told + PULSE {
            told = used;
            println!("{}", row(target, used, &log));
        }
        std::thread::sleep(LOOK);
    };
    println!("{} done", row(target, used, &log));
    if !status.success() {
        bail!(
            "{status}; the input is in {}, what it said in {}; `cargo xtask fuzz --input FILE {}` repeats it",
            folder.display(),
            log.display(),
            target.name
        );
    }
    if !plan.keep {
        return Ok(());
    }
    keep(plan, target, &folder, &corpus)?;
    let inputs = last_line(&log).first().and_then(|number| number.trim_start_matches('#').parse().ok()).unwrap_or(0);
    let mut record = plan.record.lock();
    record.add(target.name, Searched { time: used, inputs }, &searched::file())
}

fn fuzzer(plan: &Plan, target: &Target, folder: &Path) -> Command {
    let mut command = Command::new(&plan.program);
    command.env("BULKHEAD_FUZZ_TARGET", target.name).stdin(Stdio::null()).stdout(Stdio::null());
    // What takes long is judged by its processor time, in the target; this one ends what hangs, on a machine that does other things
    // first.
    command.args(["-timeout=900", "-rss_limit_mb=1024", &format!("-max_len={LONGEST}")]);
    command.arg(format!("-artifact_prefix={}/found-", folder.display()));
    command
}

/// The fewest inputs that reach what all of them reach; how often they do does not count, for there would be ten times as many.
fn keep(plan: &Plan, target: &'static Target, folder: &Path, corpus: &Path) -> Result<()> {
    let fewest = folder.join("fewest");
    let _ = std::fs::remove_dir_all(&fewest);
    std::fs::create_dir_all(&fewest).with_context(|| format!("creating {}", fewest.display()))?;
    let mut command = fuzzer(plan, target, folder);
    let status =
        command.args(["-set_cover_merge=1", "-use_counters=0"]).args([&fewest, corpus]).stderr(Stdio::null()).status();
    if !status.context("starting the merge")?.success() {
        bail!("the inputs of {} could not be merged", corpus.display());
    }
    let mut inputs = Vec::new();
    for entry in std::fs::read_dir(&fewest).with_context(|| format!("reading {}", fewest.display()))? {
        inputs.push(std::fs::read(entry?.path())?);
    }
    target.keep(&inputs)
}

/// One line: what libFuzzer said last.
fn row(target: &Target, used: Duration, log: &Path) -> String {
    let words = last_line(log);
    let after = |name: &str| words.iter().position(|word| word == name).and_then(|at| words.get(at + 1));
    let after = |name: &str| after(name).map_or("", String::as_str);
    format!(
        "{:<16} {:>8}s {:>12} {:>9} {:>7} {:>9} {:>7}",
        target.name,
        used.as_secs(),
        words.first().map_or("", |word| word.trim_start_matches('#')),
        after("exec/s:"),
        after("cov:"),
        after("ft:"),
        after("corp:").split('/').next().unwrap_or(""),
    )
}

/// Words of the last line of libFuzzer's that says how far it is: `#INPUTS EVENT NAME: FIGURE ...`.
fn last_line(log: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let line = text.lines().rev().find(|line| line.starts_with('#')).unwrap_or_default();
    line.split_whitespace().map(str::to_owned).collect()
}

/// As libFuzzer's dictionaries have it: quotes, backslashes and what is no letter are escaped.
fn quoted(word: &[u8]) -> String {
    word.iter()
        .map(|byte| match byte {
            b'"' | b'\\' => format!("\\{}", char::from(*byte)),
            b' '..=b'~' => char::from(*byte).to_string(),
            other => format!("\\x{other:02x}"),
        })
        .collect()
}

/// User and system time of a process (proc_pid_stat(5), fields 14 and 15).
fn processor_time(pid: Pid) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    let second = u64::try_from(sysconf(SysconfVar::CLK_TCK).ok()??).ok()?;
    Some(Duration::from_millis(ticks * 1000 / second.max(1)))
}
