//! Subjects of commits: `area: what changed`, at most 72 characters, so that a list of them can be read.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::build::workspace_root;

const LENGTH_MAX: usize = 72;

/// Checks the commits that no branch of a remote has; where there is no remote, the newest one.
///
/// # Errors
/// A subject of another form; git cannot be asked.
pub fn check() -> Result<()> {
    if !workspace_root().join(".git").exists() {
        eprintln!("no git repository: subjects of commits are not checked");
        return Ok(());
    }
    let of_the_change = ["HEAD", "--not", "--remotes"];
    let change = if git(&["for-each-ref", "refs/remotes"])?.is_empty() { &["-1", "HEAD"][..] } else { &of_the_change };
    let log = git(&[&["log", "--no-merges", "--format=%h %s"], change].concat())?;
    let wrong: Vec<String> = log
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(commit, subject)| Some(format!("  {commit} {subject:?}: {}", problem(subject)?)))
        .collect();
    ensure!(wrong.is_empty(), "subjects of commits:\n{}", wrong.join("\n"));
    Ok(())
}

fn git(arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").current_dir(workspace_root()).args(arguments).output().context("starting git")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {}", arguments.join(" "), complaint.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// What is wrong with a subject.
fn problem(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > LENGTH_MAX {
        return Some(format!("{length} characters, {LENGTH_MAX} at most"));
    }
    let is_of_an_area = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-., /".contains(c);
    match subject.split_once(": ") {
        Some((area, what)) if !area.is_empty() && area.chars().all(is_of_an_area) && !what.trim().is_empty() => None,
        _ => Some("not `area: what changed`, with the area in small letters".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects() {
        for subject in ["docs: one table", "syncd, statusd: modules in layers", "kubelet-ctl: --watch", ".ci: less"] {
            assert_eq!(problem(subject), None, "{subject}");
        }
        let long = format!("docs: {}", "x".repeat(LENGTH_MAX));
        for subject in ["fix", "Docs: one table", "docs:", "docs: ", ": x", "", &long] {
            assert!(problem(subject).is_some(), "{subject}");
        }
    }
}
