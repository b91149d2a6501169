//! A folder of programs in which each may be of this version or of the one before, and is replaced while the node runs.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::node::DAEMONS;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::{LONG, Node, build, eventually, previous};

/// The launcher's program, and the processes that it starts besides the daemons.
pub const OTHERS: [&str; 7] = [
    "kubelet",
    "kubelet-walker",
    "kubelet-journal",
    "kubelet-iptables",
    "kubelet-disks",
    "kubelet-flexvolume",
    "kubelet-ctl",
];

/// Which of two versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    Old,
    New,
}

impl Age {
    pub fn other(self) -> Self {
        if self == Age::Old { Age::New } else { Age::Old }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Mix {
    folder: PathBuf,
    old: PathBuf,
    new: PathBuf,
}

/// The programs of the version before, or nothing (said loudly) where there is no history to build them of.
///
/// # Errors
/// The history reaches back to that version and nobody has built it, under `CI=true`.
pub fn previous() -> Result<Option<PathBuf>> {
    let folder = previous::find();
    if folder.is_none() {
        let known = previous::resolve(&previous::recorded_revision()?).is_ok();
        // `cargo xtask test` builds it, and the variable of the test kit names another folder.
        skip_this_test(if known { Lack::Program("the version before") } else { Lack::History })?;
    }
    Ok(folder)
}

impl Mix {
    /// A folder with all programs of one version.
    ///
    /// # Errors
    /// A program is missing, or the folder cannot be written.
    pub fn all(folder: PathBuf, previous: &Path, age: Age) -> Result<Self> {
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let mix = Mix { folder, old: previous.to_owned(), new: build::bin_dir()? };
        for program in DAEMONS.iter().chain(&OTHERS) {
            mix.put(program, age)?;
        }
        Ok(mix)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Replaces a program as a package manager does: what runs keeps its file, whoever starts next gets the new one.
    ///
    /// # Errors
    /// It is missing, or cannot be written.
    pub fn put(&self, program: &str, age: Age) -> Result<()> {
        let from = if age == Age::Old { &self.old } else { &self.new }.join(program);
        let (draft, to) = (self.folder.join(format!(".{program}.new")), self.folder.join(program));
        if age == Age::Old && build::HELPERS.contains(&program) && !from.exists() {
            // The version before did without.
            let _ = std::fs::remove_file(to);
            return Ok(());
        }
        std::fs::copy(&from, &draft).with_context(|| format!("copying {}", from.display()))?;
        std::fs::rename(&draft, &to).with_context(|| to.display().to_string())
    }

    /// Replaces a daemon's program and kills the daemon; waits until the node is well with the other one.
    ///
    /// # Errors
    /// It is not.
    pub fn exchange(&self, node: &mut Node, daemon: &str, age: Age) -> Result<()> {
        self.put(daemon, age)?;
        node.kill_daemon(daemon)?;
        eventually(&format!("{daemon} runs from its new file"), LONG, || self.runs(node, daemon))?;
        node.wait_healthy()
    }

    /// The launcher too: it is stopped with its daemons, and everything starts from what now stands in the folder.
    ///
    /// # Errors
    /// It does not end, or the node is not well afterwards.
    pub fn exchange_launcher(&self, node: &mut Node, age: Age) -> Result<()> {
        self.put("kubelet", age)?;
        for helper in build::HELPERS {
            self.put(helper, age)?;
        }
        node.stop()?;
        node.launch()?;
        node.wait_healthy()?;
        self.runs(node, "kubelet")
    }

    /// The process is of the file that stands in the folder now.
    fn runs(&self, node: &Node, program: &str) -> Result<()> {
        let pid = *node.pids().get(program).with_context(|| format!("{program} does not run"))?;
        let [runs, stands] = [PathBuf::from(format!("/proc/{pid}/exe")), self.folder.join(program)]
            .map(|path| std::fs::metadata(path).map(|file| (file.dev(), file.ino())));
        ensure!(runs? == stands?, "{program} still runs from its former file");
        Ok(())
    }
}
