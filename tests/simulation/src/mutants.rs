//! Mistakes that a core could have, and whether they are found: proof that the checks see something.
//!
//! None of them stands in the source. They are edits of a copy of it, all in one build, of which `BULKHEAD_MUTANT` names the one in
//! force; so that what is shipped knows nothing of them, and one build does for all.

mod pods;
mod resources;

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::schedule::Family;

/// The variable that names the mutant in force.
pub const VARIABLE: &str = "BULKHEAD_MUTANT";

/// The variable that says, when a copy is built, where it was copied from: the copy is gone when its program runs.
pub const COPIED_FROM: &str = "BULKHEAD_COPIED_FROM";

/// The top of the workspace, with what a run reads of it.
pub const WORKSPACE: &str = match option_env!("BULKHEAD_COPIED_FROM") {
    Some(workspace) => workspace,
    None => concat!(env!("CARGO_MANIFEST_DIR"), "/../.."),
};

/// One mistake.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    pub name: &'static str,
    /// What is wrong with it, for people.
    pub mistake: &'static str,
    /// The family of seeds that is to find it.
    pub only: Option<Family>,
    file: &'static str,
    /// Stands there once.
    from: &'static str,
    /// `MUTANT` in it is true where this mutant is in force.
    to: &'static str,
}

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Mutant> {
    pods::MUTANTS.iter().chain(&resources::MUTANTS)
}

/// Kept schedules, by name, that find mutants of other names.
pub const FOUND_IN: [(&str, &[&str]); 13] = [
    ("full-and-pressed", &["blinks", "admits-all", "pressure-waits"]),
    ("kill-untold", &["kill-unread", "kill-by-each"]),
    (
        "killed-while-one-is-evicted",
        &["not-in-flight", "forgets-evicted", "runs-no-more", "soft-at-once", "long-grace"],
    ),
    ("made-and-never-started", &["hidden-end"]),
    ("memory-by-priority", &["rank-by-use", "critical-goes"]),
    ("older-write-last", &["older-write", "not-reserved"]),
    ("purged-newest-first", &["newest-first"]),
    ("refused-after-a-restart", &["left-by-refused", "cpus-twice"]),
    ("removed-while-allocating", &["shared-stay", "given-away"]),
    ("rotated-logs", &["not-taken-back", "never-opened", "asks-twice", "logs-pile-up", "newest-goes"]),
    ("two-patches", &["no-second-try"]),
    ("volume-reported-before", &["early-unmount", "early-unstage"]),
    ("watches-that-fail", &["relist-keeps", "away-is-gone", "foreign-lost", "killed-is-error", "early-delete"]),
];

impl Mutant {
    /// The kept schedule of this name is there for it.
    pub fn is_found_in(&self, kept: &str) -> bool {
        let others = || FOUND_IN.iter().any(|(name, mutants)| *name == kept && mutants.contains(&self.name));
        self.name == kept || others()
    }

    fn condition(&self) -> String {
        format!("std::env::var_os({VARIABLE:?}).is_some_and(|name| name == {:?})", self.name)
    }

    /// The file's text with this mistake in it, which is off unless it is named.
    ///
    /// # Errors
    /// The place is not there once: the source has changed, and this table has to follow.
    pub fn edit(&self, text: &str) -> Result<String> {
        let places = text.matches(self.from).count();
        ensure!(places == 1, "mutant {}: {:?} is in {} {places} times", self.name, self.from, self.file);
        Ok(text.replace(self.from, &self.to.replace("MUTANT", &self.condition())))
    }

    /// The file that it is in, from the top of the workspace.
    pub fn file(&self) -> &'static str {
        self.file
    }
}

/// Copies the source to `copy` and puts all mutants in.
///
/// # Errors
/// It cannot be copied, or a mutant does not fit.
pub fn write(workspace: &Path, copy: &Path) -> Result<()> {
    if copy.exists() {
        std::fs::remove_dir_all(copy).context("removing an older copy")?;
    }
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(workspace)
        .output()
        .context("listing the source with git")?;
    ensure!(listed.status.success(), "git ls-files has failed");
    for name in listed.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        let (from, to) = (workspace.join(&name), copy.join(&name));
        if !from.is_file() || from.is_symlink() {
            continue;
        }
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
        }
        std::fs::copy(&from, &to).with_context(|| format!("copying {name}"))?;
    }
    for mutant in all() {
        let path = copy.join(mutant.file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", mutant.file))?;
        std::fs::write(&path, mutant.edit(&text)?).with_context(|| format!("writing {}", mutant.file))?;
    }
    Ok(())
}
