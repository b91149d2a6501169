//! The version before this one: which revision that is, its sources out of git, and where its programs are kept.
//!
//! `proto/recorded/` has a record of each released version, with the commit that it was made of; the newest one is the
//! version before.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::build::{self, PROGRAMS};

/// Names a folder with programs of another version to be taken for the one before.
pub const VARIABLE: &str = "BULKHEAD_PREVIOUS_BIN_DIR";
/// Records of released versions, from the workspace's root.
pub const RECORDS: &str = "proto/recorded";

/// Everything that a node runs, its command line tool included.
pub fn programs() -> impl Iterator<Item = &'static str> {
    PROGRAMS.into_iter().chain(["kubelet-journal"])
}

/// The commit of the newest record.
///
/// # Errors
/// There is no record, or one is no file.
pub fn recorded_revision() -> Result<String> {
    let folder = build::workspace_root().join(RECORDS);
    let mut texts = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        texts.push(std::fs::read_to_string(&path).with_context(|| path.display().to_string())?);
    }
    newest(&texts).with_context(|| format!("there is no record in {}", folder.display()))
}

fn newest(records: &[String]) -> Option<String> {
    let line = |text: &str, name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let numbers = |version: &str| version.split('.').map(|part| part.parse().unwrap_or(0)).collect::<Vec<u64>>();
    let of = |text: &String| Some((numbers(&line(text, "version ")?), line(text, "revision ")?));
    records.iter().filter_map(of).max().map(|(_, revision)| revision)
}

/// Where the programs of a revision are kept once they are built.
pub fn folder(revision: &str) -> PathBuf {
    build::target_dir().join("previous").join(revision)
}

/// Whether all programs are in a folder.
pub fn is_complete(folder: &Path) -> bool {
    programs().all(|program| folder.join(program).is_file())
}

/// The folder with the programs of the version before: `$BULKHEAD_PREVIOUS_BIN_DIR`, or what `cargo xtask test` has built.
pub fn find() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(VARIABLE) {
        return Some(folder.into());
    }
    let folder = folder(&recorded_revision().ok()?);
    is_complete(&folder).then_some(folder)
}

/// The full name of a revision.
///
/// # Errors
/// What git says: there is no history here, or not as much.
pub fn resolve(revision: &str) -> Result<String> {
    git(&["rev-parse", "--verify", "--quiet", &format!("{revision}^{{commit}}")])
        .with_context(|| format!("there is no commit {revision} in the history of this folder"))
}

/// Lays a revision's files, or those below `paths`, into a new folder. Git's own folder is only read.
///
/// # Errors
/// What git or tar says.
pub fn extract(revision: &str, paths: &[&str], into: &Path) -> Result<()> {
    std::fs::create_dir_all(into).with_context(|| into.display().to_string())?;
    let mut command = git_command();
    command.args(["archive", "--format=tar", revision, "--"]).args(paths).stdout(Stdio::piped());
    let mut archive = command.spawn().context("starting git")?;
    let stream = archive.stdout.take().context("git has no output")?;
    // The files' times are those of now. Cargo looks at times only, and would take a crate that it has built of one
    // revision for that of another, were the sources of both older than what it has built.
    let unpacked = Command::new("tar").args(["-x", "-m", "-C"]).arg(into).stdin(stream).status();
    let archived = archive.wait().context("waiting for git")?;
    ensure!(archived.success(), "git archive {revision} {paths:?}: {archived}");
    ensure!(unpacked.context("starting tar")?.success(), "unpacking {revision} failed");
    Ok(())
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = git_command().args(arguments).output().context("starting git")?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(output.status.success(), "git {}: {} {said}", arguments.join(" "), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn git_command() -> Command {
    let root = build::workspace_root();
    let mut command = Command::new("git");
    // Somebody else's clone is read all the same: its programs are built and run here anyway.
    command.arg("-c").arg(format!("safe.directory={}", root.display())).current_dir(root).stdin(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_record_is_found_by_number() {
        let record = |version: &str| format!("# text\nversion {version}\nrevision of-{version}\nmessage x\n");
        let records = ["0.9.0", "0.10.0", "0.2.11"].map(record);
        assert_eq!(newest(&records).as_deref(), Some("of-0.10.0"));
        assert_eq!(newest(&["nothing".to_owned()]), None);
    }
}
