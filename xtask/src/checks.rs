//! Format, lints, dependencies, tests. The tests come last, so that the runner's own summary is the end of the output.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use bulkhead_testkit::{build, machine, previous};

use crate::versions;

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
    if has("fmt") {
        cargo(&["fmt", "--all", "--check"])?;
    } else {
        eprintln!("\n!!! SKIPPED: format (rustfmt is not installed) !!!");
    }
    if has("clippy") {
        cargo(&["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    } else {
        eprintln!("\n!!! SKIPPED: lints (clippy is not installed) !!!");
    }
    if has("deny") {
        // The advisory data base is fetched by cargo-deny itself: offline it may be missing, and that is no fault of the change.
        cargo(&["deny", "--offline", "check", "licenses", "bans", "sources"])?;
    } else {
        eprintln!("\nskipped: licences, sources and bans (cargo-deny is not installed)");
    }
    Ok(())
}

/// All checks, then all tests.
///
/// # Errors
/// The first step that fails.
pub fn test(no_checks: bool, rest: &[String]) -> Result<()> {
    if machine::is_root() {
        machine::ensure_installed_for_systemd(&|line| eprintln!("{line}"))?;
    } else {
        eprintln!("!!! Not root: the tests with a real containerd will be skipped !!!");
    }
    if !no_checks {
        check()?;
    }
    // One build of programs and tests together: apart, cargo would build the libraries twice, with other features.
    cargo(&["build", "--workspace", "--all-targets", "--locked"])?;
    let programs = build::target_dir().join("debug");
    let mut environment = vec![("BULKHEAD_BIN_DIR", programs.as_os_str())];
    // Nodes need root. After the build of now, which has made what both versions are made of.
    let before = if machine::is_root() { versions::programs_for_tests()? } else { None };
    environment.extend(before.iter().map(|folder| (previous::VARIABLE, folder.as_os_str())));
    let mut arguments = if has("nextest") {
        vec!["nextest", "run", "--workspace", "--locked"]
    } else {
        vec!["test", "--workspace", "--locked", "--no-fail-fast"]
    };
    arguments.extend(rest.iter().map(String::as_str));
    cargo_with(&arguments, &environment)
}
