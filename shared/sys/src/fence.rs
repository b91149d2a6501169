//! Landlock: what a process may still open, whatever capabilities it holds.
//!
//! Applies to the calling thread and those it starts later: call it before any thread exists. Kernels that know fewer
//! rights enforce fewer; what was enforced is reported in words, never assumed.

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus,
};

/// Everything that is not named here cannot be opened any more. Paths that do not exist are left out and reported.
#[derive(Debug, Clone, Default)]
pub struct Fence {
    /// Listing of directories at and below these, nothing else.
    pub read_dirs: Vec<PathBuf>,
    /// Reading of files and listing of directories at and below these.
    pub read_files: Vec<PathBuf>,
    /// Reading, writing, creating and removing below these: the process's own state.
    pub read_write: Vec<PathBuf>,
}

/// What is in force now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FenceReport {
    pub enforcement: Enforcement,
    /// The rules in words: "read-dir /var/lib/kubelet/pods".
    pub rules: Vec<String>,
    /// Paths that were not there.
    pub missing: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforcement {
    Full,
    /// The kernel knows a part of the rights.
    Partial,
    /// The kernel has no Landlock, or it is off.
    None,
}

/// Why the fence could not be put up.
#[derive(Debug, thiserror::Error)]
pub enum FenceError {
    #[error("building the Landlock rules")]
    Rules(#[from] landlock::RulesetError),
}

impl Fence {
    /// Puts the fence up. Also sets no_new_privs, which Landlock requires.
    pub fn enforce(&self) -> Result<FenceReport, FenceError> {
        // ABI 5 (kernel 6.10) is the newest whose file rights we have rules for; best effort lowers it.
        let abi = ABI::V5;
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(abi))?
            .create()?;
        let read_dir: BitFlags<AccessFs> = AccessFs::ReadDir.into();
        let read_file = AccessFs::ReadDir | AccessFs::ReadFile;
        let read_write = AccessFs::from_all(abi) & !AccessFs::Execute & !AccessFs::MakeChar & !AccessFs::MakeBlock;
        let mut report = FenceReport { enforcement: Enforcement::None, rules: Vec::new(), missing: Vec::new() };
        let sets = [
            ("read-dir", &self.read_dirs, read_dir),
            ("read-file", &self.read_files, read_file),
            ("read-write", &self.read_write, read_write),
        ];
        for (word, paths, access) in sets {
            for path in paths {
                let Ok(fd) = PathFd::new(path) else {
                    report.missing.push(path.clone());
                    continue;
                };
                ruleset = ruleset.add_rule(PathBeneath::new(fd, access))?;
                report.rules.push(format!("{word} {}", path.display()));
            }
        }
        report.enforcement = match ruleset.restrict_self()?.ruleset {
            RulesetStatus::FullyEnforced => Enforcement::Full,
            RulesetStatus::PartiallyEnforced => Enforcement::Partial,
            RulesetStatus::NotEnforced => Enforcement::None,
        };
        if report.enforcement == Enforcement::None {
            report.rules.clear();
        }
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_cannot_be_opened() {
        let dir = tempfile::tempdir().unwrap();
        let pods = dir.path().join("pods");
        let own = dir.path().join("own");
        std::fs::create_dir_all(&pods).unwrap();
        std::fs::create_dir_all(&own).unwrap();
        std::fs::write(pods.join("secret"), "s").unwrap();
        let fence = Fence {
            read_dirs: vec![pods.clone()],
            read_files: vec!["/proc".into()],
            read_write: vec![own.clone(), dir.path().join("absent")],
        };
        // Landlock binds the thread that asks: a thread of its own leaves the other tests free.
        std::thread::spawn(move || {
            let report = fence.enforce().unwrap();
            assert_eq!(report.enforcement, Enforcement::Full);
            assert_eq!(report.missing.len(), 1);
            assert_eq!(std::fs::read_dir(&pods).unwrap().count(), 1);
            assert!(std::fs::metadata(pods.join("secret")).is_ok(), "sizes stay readable");
            assert!(std::fs::read(pods.join("secret")).is_err());
            assert!(std::fs::write(pods.join("new"), "x").is_err());
            assert!(std::fs::read("/proc/self/stat").is_ok());
            assert!(std::fs::read("/etc/passwd").is_err());
            std::fs::write(own.join("state"), "x").unwrap();
            std::fs::rename(own.join("state"), own.join("state2")).unwrap();
        })
        .join()
        .unwrap();
    }
}
