//! Format, lints, dependencies, tests. The tests come last, so that the runner's own summary is the end of the output.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use bulkhead_testkit::skip::{self, Lack, skip_into};
use bulkhead_testkit::{IDLE, Lab, Pod, build, machine, previous, traces};

use crate::lints::{self, Lints};
use crate::outcome::Outcome;
use crate::phases::Phases;
use crate::{commits, runner, runtimes, seeds, versions};

/// What is skipped where there is no clippy.
const LINTS: &str = "lints";

/// What is built for a run of all tests, programs and tests together, and with what only `demo --cluster` and `conformance` need
/// of xtask: another set of features would be another build.
pub const BUILD: &[&str] = &["--workspace", "--locked", "--features=xtask/cluster"];

/// The cargo that runs us.
pub fn cargo_program() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Runs cargo in the workspace, saying so.
///
/// # Errors
/// It failed.
pub fn cargo(arguments: &[&str]) -> Result<()> {
    cargo_with(arguments, &[])
}

fn cargo_with(arguments: &[&str], environment: &[(&str, &std::ffi::OsStr)]) -> Result<()> {
    eprintln!("\n+ cargo {}", arguments.join(" "));
    let mut command = Command::new(cargo_program());
    command.current_dir(build::workspace_root()).args(arguments).envs(environment.iter().copied());
    let status = command.status().context("starting cargo")?;
    if !status.success() {
        bail!("cargo {} failed ({status})", arguments.join(" "));
    }
    Ok(())
}

/// Whether `cargo <tool>` is there.
fn has(tool: &str) -> bool {
    let mut command = Command::new(cargo_program());
    command.args([tool, "--version"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Everything that needs no running node.
///
/// # Errors
/// The first check that fails.
pub fn check() -> Result<()> {
    unbuilt(&mut Phases::default(), None)?;
    if has("clippy") { lints::now() } else { skip_into(None, LINTS, Lack::Program("clippy")) }
}

/// What needs no build: format and dependencies.
fn unbuilt(phases: &mut Phases, skips: Option<&Path>) -> Result<()> {
    if has("fmt") {
        cargo(&["fmt", "--all", "--check"])?;
    } else {
        skip_into(skips, "the format of the sources", Lack::Program("rustfmt"))?;
    }
    phases.end("format");
    commits::check()?;
    if has("deny") {
        // The advisory data base is fetched by cargo-deny itself: offline it may be missing, and that is no fault of the change.
        cargo(&["deny", "--offline", "check", "licenses", "bans", "sources"])?;
    } else {
        skip_into(skips, "licences, sources and bans of dependencies", Lack::CargoDeny)?;
    }
    phases.end("dependencies");
    Ok(())
}

/// All checks, then all tests. `new_seeds`: of the simulation, before the tests.
///
/// # Errors
/// The first step that fails.
pub fn test(no_checks: bool, new_seeds: bool, rest: &[String]) -> Result<()> {
    let mut phases = Phases::default();
    let skips = build::target_dir().join(format!("skips.{}", std::process::id()));
    std::fs::create_dir_all(build::target_dir())?;
    let before = traces::now();
    let done = steps(no_checks, new_seeds, rest, &skips, &mut phases);
    // The runner's summary stays the end of what is printed where there is nothing to say. A test that failed may have left more.
    let left = traces::check(&before);
    if let (Err(_), Err(left)) = (&done, &left) {
        eprintln!("\n{left:#}");
    }
    let done = done.and(left);
    if done.is_err() && !phases.has("tests") {
        eprint!("\nwhere the time went:\n{}", phases.lines());
    }
    let _ = std::fs::remove_file(&skips);
    done
}

fn steps(no_checks: bool, new_seeds: bool, rest: &[String], skips: &Path, phases: &mut Phases) -> Result<()> {
    if machine::is_root() {
        machine::ensure_installed_for_tests(&|line| eprintln!("{line}"))?;
    } else {
        skip_into(Some(skips), "all tests with a node", Lack::Root)?;
    }
    phases.end("packages");
    if !no_checks {
        unbuilt(phases, Some(skips))?;
    }
    // One build of programs and tests together: apart, cargo would build the libraries twice, with other features.
    let compiler = if no_checks { Vec::new() } else { lints::as_compiler() };
    let build = [&["build", "--all-targets"], BUILD].concat();
    cargo_with(&build, &compiler)?;
    phases.end("build");
    let programs = build::target_dir().join("debug");
    let mut environment = compiler.clone();
    environment.extend([("BULKHEAD_BIN_DIR", programs.as_os_str()), (skip::VARIABLE, skips.as_os_str())]);
    // Nodes need root. After the build of now, which has made what both versions are made of.
    let before = if machine::is_root() { versions::programs_for_tests()? } else { None };
    environment.extend(before.iter().map(|folder| (previous::VARIABLE, folder.as_os_str())));
    phases.end("the version before");
    // Alone, while nothing else needs the processors. All tests run whatever came of them.
    let seeds = if new_seeds { seeds::run(&programs) } else { Ok(()) };
    if new_seeds {
        phases.end("new seeds");
    }
    let lints = match (no_checks, has("clippy")) {
        (true, _) => None,
        // They were part of the build.
        (false, true) if !compiler.is_empty() => None,
        (false, true) => Some(Lints::start()?),
        (false, false) => {
            skip_into(Some(skips), LINTS, Lack::Program("clippy"))?;
            None
        }
    };
    // Who names tests wants those, and at once.
    if machine::is_root() && rest.is_empty() {
        first_node(&programs)?;
        phases.end("a first node");
    }
    let runtime = if machine::is_root() { runtimes::chosen()? } else { "nothing: they need root".to_owned() };
    eprintln!("\nlabs that ask for no runtime of their own run on {runtime}");
    if has("nextest") {
        // Who names tests wants those and no lanes. All tests run whatever became of the lanes.
        let lanes = match rest.is_empty() && machine::is_root() {
            true => runtimes::lanes(&environment),
            false => Ok(()),
        };
        phases.end("newer runtimes");
        return runner::run(rest, &environment, skips, &runtime, lints, phases).and(lanes).and(seeds);
    }
    let mut arguments = [&["test", "--no-fail-fast"], BUILD].concat();
    arguments.extend(rest.iter().map(String::as_str));
    let done = cargo_with(&arguments, &environment).and(lints.map_or(Ok(()), Lints::finish)).and(seeds);
    phases.end("tests");
    eprint!("{}", runner::report(&Outcome::default(), &BTreeSet::new(), &runner::skipped_in(skips), &runtime, phases));
    done
}

/// One node that runs one pod. Where that cannot be, every test with a node would wait in vain for the same thing.
fn first_node(programs: &Path) -> Result<()> {
    eprintln!("\n+ a first node");
    build::use_programs(programs)?;
    // A container runtime now and then fails a call for reasons of its own; a broken node fails twice.
    let Err(first) = one_node() else { return Ok(()) };
    eprintln!("{first:#}\nonce more");
    one_node().context("no test with a node can pass: a first node did not run a pod, twice")
}

fn one_node() -> Result<()> {
    let lab = Lab::start_beside()?;
    let node = lab.node("first").start()?;
    node.write(&Pod::busybox("first", &format!("echo it runs; {IDLE}")))?;
    node.wait_for_log("first", "main", "it runs")?;
    node.finish()
}
