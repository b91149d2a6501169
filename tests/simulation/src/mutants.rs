//! Mistakes that a core could have, and whether they are found: proof that the checks see something.
//!
//! None of them stands in the source. They are edits of a copy of it, all in one build, of which `BULKHEAD_MUTANT` names the one in
//! force; so that what is shipped knows nothing of them, and one build does for all.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

/// The variable that names the mutant in force.
pub const VARIABLE: &str = "BULKHEAD_MUTANT";

/// One mistake.
#[derive(Debug, Clone, Copy)]
pub struct Mutant {
    pub name: &'static str,
    /// What is wrong with it, for people.
    pub mistake: &'static str,
    file: &'static str,
    /// Stands there once.
    from: &'static str,
    /// `MUTANT` in it is true where this mutant is in force.
    to: &'static str,
}

/// All of them, in the order of a pod's life.
pub const MUTANTS: [Mutant; 9] = [
    Mutant {
        name: "takes-over",
        mistake: "after a restart an edited manifest takes over the pod from before the edit, which still ends (as it was until this found it)",
        file: "bins/kubelet-syncd/src/sources/uids.rs",
        from: "&& !self.book.retired.contains(&running.uid)",
        to: "&& (MUTANT || !self.book.retired.contains(&running.uid))",
    },
    Mutant {
        name: "namesakes",
        mistake: "a static pod's successor starts while the one before it ends",
        file: "bins/kubelet-syncd/src/pod_workers/state.rs",
        from: "return started == uid;",
        to: "return started == uid || MUTANT;",
    },
    Mutant {
        name: "stale-look",
        mistake: "work begins with a picture of the pod from before the last work",
        file: "bins/kubelet-syncd/pleg/src/cache.rs",
        from: "if let Some(answer) = inner.answer(uid, newer_than) {",
        to: "let newer_than = if MUTANT { newer_than - std::time::Duration::from_secs(3600) } else { newer_than };\n            \
             if let Some(answer) = inner.answer(uid, newer_than) {",
    },
    Mutant {
        name: "no-retry",
        mistake: "a wake-up is lost: work that failed is not done again at its time",
        file: "bins/kubelet-syncd/src/sync_loop/main_loop.rs",
        from: "self.queue.set(&uid, at);",
        to: "if !MUTANT { self.queue.set(&uid, at); }",
    },
    Mutant {
        name: "no-order",
        mistake: "containers start beside init containers",
        file: "bins/kubelet-syncd/runtime/src/runtime/actions.rs",
        from: "if !actions.kill_pod && initialized {",
        to: "if !actions.kill_pod && (initialized || MUTANT) {",
    },
    Mutant {
        name: "dead-sandbox",
        mistake: "a sandbox that has died is not replaced",
        file: "bins/kubelet-syncd/runtime/src/runtime/actions.rs",
        from: "if ready > 1 || newest.state != SandboxState::Ready {",
        to: "if ready > 1 || newest.state != SandboxState::Ready && !MUTANT {",
    },
    Mutant {
        name: "runs-twice",
        mistake: "restartPolicy Never restarts what has failed",
        file: "bins/kubelet-syncd/model/src/pod/restart.rs",
        from: "\"Never\" => false,",
        to: "\"Never\" => MUTANT && exit_code != 0,",
    },
    Mutant {
        name: "lost-count",
        mistake: "a restart is not counted",
        file: "bins/kubelet-syncd/runtime/src/runtime/start.rs",
        from: "Some(status) => status.restart_count.saturating_add(1),",
        to: "Some(status) => status.restart_count.saturating_add(u32::from(!MUTANT)),",
    },
    Mutant {
        name: "early-removal",
        mistake: "a pod whose end failed counts as ended, and what it has is removed",
        file: "bins/kubelet-syncd/src/pod_workers/state.rs",
        from: "match (kind, outcome) {",
        to: "let fails = matches!((kind, &outcome), (WorkKind::Terminating, Outcome::Failed(_)));\n        \
             match (kind, if fails && MUTANT { Outcome::Done } else { outcome }) {",
    },
];

impl Mutant {
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
    for mutant in MUTANTS {
        let path = copy.join(mutant.file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", mutant.file))?;
        std::fs::write(&path, mutant.edit(&text)?).with_context(|| format!("writing {}", mutant.file))?;
    }
    Ok(())
}
