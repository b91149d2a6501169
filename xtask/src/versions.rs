//! What has to do with released versions: the record of each one's internal API, and the node with the programs of the one
//! before among its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_testkit::build::{self, PROGRAMS};
use bulkhead_testkit::machine;

use crate::checks::cargo_program;

const RECORDS: &str = "proto/recorded";
/// Beside those that every node has.
const JOURNAL: &str = "kubelet-journal";

fn git(arguments: &[&str]) -> Result<String> {
    let output =
        Command::new("git").current_dir(build::workspace_root()).args(arguments).output().context("starting git")?;
    ensure!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A revision in a folder of its own below target/, removed from git's list when it is dropped.
struct Worktree(PathBuf);

impl Worktree {
    fn of(revision: &str) -> Result<Self> {
        let folder = build::target_dir().join("versions").join(revision);
        if !folder.join("Cargo.toml").is_file() {
            let shown = folder.to_string_lossy();
            git(&["worktree", "prune"])?;
            git(&["worktree", "add", "--force", "--detach", &shown, revision])?;
        }
        Ok(Self(folder))
    }
}

impl Drop for Worktree {
    fn drop(&mut self) {
        // What was built stays in its target folder, which is beside it.
        let _ = git(&["worktree", "remove", "--force", &self.0.to_string_lossy()]);
    }
}

/// Writes the record of a version: that of `revision`, which is HEAD unless given. Done when a version is tagged.
///
/// # Errors
/// There is another record of that version, or the revision's API does not compile.
pub fn record_api(revision: Option<&str>) -> Result<()> {
    let revision = git(&["rev-parse", &format!("{}^{{commit}}", revision.unwrap_or("HEAD"))])?;
    let tree = Worktree::of(&revision)?;
    let manifest = std::fs::read_to_string(tree.0.join("Cargo.toml"))?;
    let version = manifest.lines().find_map(|line| line.strip_prefix("version = "));
    let version = version.context("Cargo.toml names no version")?.trim_matches('"').to_owned();
    let mut command = Command::new(cargo_program());
    command
        .current_dir(build::workspace_root())
        .args(["run", "--locked", "--quiet", "--package", "bulkhead-tests", "--bin", "record-api", "--"])
        .arg("--proto")
        .arg(tree.0.join("proto"))
        .args(["--into", RECORDS, "--version", &version, "--revision", &revision]);
    ensure!(command.status().context("starting cargo")?.success(), "the record could not be written");
    Ok(())
}

/// Builds the programs of an earlier version and runs the tests that mix them with those of now. `from`: the newest tag
/// that is not HEAD, else the revision of the newest record.
///
/// # Errors
/// A build fails, or a test.
pub fn test_upgrade(from: Option<&str>) -> Result<()> {
    if !machine::is_root() {
        bail!("the test needs root: it makes network namespaces, cgroups and mounts");
    }
    machine::ensure_installed(&|line| eprintln!("{line}"))?;
    let revision = match from {
        Some(revision) => revision.to_owned(),
        None => newest_tag().map_or_else(recorded_revision, Ok)?,
    };
    let revision = git(&["rev-parse", &format!("{revision}^{{commit}}")])?;
    eprintln!("the version before is {revision}");
    let previous = programs_of(&revision)?;
    let now = build::programs("dev")?;
    let mut command = Command::new(cargo_program());
    command
        .current_dir(build::workspace_root())
        .args(["test", "--locked", "--package", "bulkhead-tests", "--test", "mixed_versions", "--"])
        .args(["--nocapture", "--test-threads=1"])
        .env("BULKHEAD_PREVIOUS_BIN_DIR", previous)
        .env("BULKHEAD_BIN_DIR", now);
    ensure!(command.status().context("starting cargo")?.success(), "a pod noticed the change of versions");
    Ok(())
}

fn newest_tag() -> Option<String> {
    // The tag of what is being tested is no version before.
    let described = git(&["describe", "--tags", "--abbrev=0", "HEAD^"]).ok()?;
    (!described.is_empty()).then_some(described)
}

fn recorded_revision() -> Result<String> {
    let folder = build::workspace_root().join(RECORDS);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path)?;
        let line = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        let numbers = |version: String| -> Vec<u64> { version.split('.').filter_map(|n| n.parse().ok()).collect() };
        if let (Some(version), Some(revision)) = (line("version "), line("revision ")) {
            found.push((numbers(version), revision));
        }
    }
    found.sort();
    found.pop().map(|(_, revision)| revision).with_context(|| format!("there is no record in {}", folder.display()))
}

/// Programs of a revision, in a target folder of its own that is kept for the next time.
fn programs_of(revision: &str) -> Result<PathBuf> {
    let target = build::target_dir().join("versions").join(format!("{revision}.target"));
    let programs = target.join("debug");
    let complete = |folder: &Path| PROGRAMS.iter().chain(&[JOURNAL]).all(|name| folder.join(name).is_file());
    if complete(&programs) {
        return Ok(programs);
    }
    let tree = Worktree::of(revision)?;
    let mut command = Command::new(cargo_program());
    command.current_dir(&tree.0).args(["build", "--locked", "--bins"]).env("CARGO_TARGET_DIR", &target);
    for program in PROGRAMS {
        command.args(["--package", program]);
    }
    // What cargo tells about this workspace is not true of that one.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    ensure!(command.status().context("starting cargo")?.success(), "{revision} does not build");
    ensure!(complete(&programs), "a program of {revision} is missing in {}", programs.display());
    Ok(programs)
}
