//! Seeds of the simulation that no tree before this one was tried with: each tree begins at another place, and a tree always at the
//! same, so that who runs it again sees the same failure.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use bulkhead_testkit::build;

/// About 80 s of two processors.
const SEEDS: u64 = 50;
/// The first seed of a tree that git does not know.
const UNKNOWN: u64 = 1;

/// Runs them with the program that the tests' build has made.
///
/// # Errors
/// A check failed; what the program prints is the story of it, and its schedule.
pub fn run(programs: &Path) -> Result<()> {
    let (from, seeds) = (first(&build::workspace_root()).to_string(), SEEDS.to_string());
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    // A failure may take long to shrink; whoever looks into it does so.
    let arguments = ["--from", &from, "--seeds", &seeds, "--jobs", &jobs];
    eprintln!("\n+ simulate {} --no-shrink", arguments.join(" "));
    let mut simulate = Command::new(programs.join("simulate"));
    let status = simulate.args(arguments).arg("--no-shrink").status().context("starting the simulation")?;
    if !status.success() {
        bail!("new seeds of the simulation: {status} (cargo xtask simulate {})", arguments.join(" "));
    }
    Ok(())
}

/// Drawn from what is committed in the folder, whoever owns it.
fn first(folder: &Path) -> u64 {
    let safe = format!("safe.directory={}", folder.display());
    let hash = git(folder)
        .args(["-c", &safe, "rev-parse", "HEAD^{tree}"])
        .stdin(Stdio::null())
        .output()
        .ok()
        .filter(|answer| answer.status.success());
    hash.and_then(|answer| drawn(&String::from_utf8_lossy(&answer.stdout))).unwrap_or_else(|| {
        eprintln!("git knows no tree in {}: the seeds are those from {UNKNOWN} on", folder.display());
        UNKNOWN
    })
}

/// git in this folder, whatever repository a hook that runs this is about.
fn git(folder: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(folder);
    for variable in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        command.env_remove(variable);
    }
    command
}

/// The first eight digits.
fn drawn(hash: &str) -> Option<u64> {
    u64::from_str_radix(hash.get(..8)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_seed_is_drawn_from_the_tree() {
        assert_eq!(drawn("0000002a94c0ffee0123456789abcdef01234567\n"), Some(0x2a));
        assert_eq!(drawn("ffffffff\n"), Some(0xffff_ffff));
        assert!(drawn("").is_none() && drawn("HEAD^{tree}\n").is_none());
    }

    #[test]
    fn each_tree_begins_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let run = |arguments: &[&str]| {
            let who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"];
            let done = git(folder.path()).args(who).args(arguments).output().unwrap();
            assert!(done.status.success(), "{arguments:?}: {done:?}");
        };
        run(&["init", "--quiet"]);
        assert_eq!(first(folder.path()), UNKNOWN, "nothing is committed");
        let mut seen = vec![UNKNOWN];
        for content in ["a", "b"] {
            std::fs::write(folder.path().join("file"), content).unwrap();
            run(&["add", "file"]);
            run(&["commit", "--quiet", "-m", content]);
            let seed = first(folder.path());
            assert!(!seen.contains(&seed) && seed == first(folder.path()), "{seed} after {seen:?}");
            seen.push(seed);
        }
    }
}
