//! fsGroup on many files beside `chown -R`: kubelet-volnetd's own walk, on a tree of this machine's disk.

use std::os::fd::AsFd as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_sys::open;
use kubelet_volnetd::volumes::ownership::{self, Access};

const ROUNDS: usize = 3;
/// Of one directory.
const FILES: usize = 1000;
const GROUP: u32 = 2000;
/// No walk is to be cut short here.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The fastest of some rounds.
#[derive(Debug, Clone, Copy)]
pub struct Given {
    pub entries: u64,
    /// All entries change: their group, and with the node their mode as well.
    pub chown: Duration,
    pub node: Duration,
    /// Nothing is to be changed.
    pub chown_again: Duration,
    pub node_again: Duration,
}

/// Measures a tree of `files` files below a new folder of `at`.
///
/// # Errors
/// The tree cannot be made, or an entry could not be given.
pub fn measure(at: &Path, files: usize) -> Result<Given> {
    let tree = tempfile::tempdir_in(at).with_context(|| at.display().to_string())?;
    make(tree.path(), files)?;
    let mut given = Given {
        entries: 0,
        chown: Duration::MAX,
        node: Duration::MAX,
        chown_again: Duration::MAX,
        node_again: Duration::MAX,
    };
    for _ in 0..ROUNDS {
        given.chown = given.chown.min(chown_all(tree.path(), GROUP)?);
        given.chown_again = given.chown_again.min(chown_all(tree.path(), GROUP)?);
        reset(tree.path())?;
        let (took, entries) = node(tree.path())?;
        given.node = given.node.min(took);
        given.node_again = given.node_again.min(node(tree.path())?.0);
        given.entries = entries;
        reset(tree.path())?;
    }
    Ok(given)
}

fn folders(files: usize) -> usize {
    files.div_ceil(FILES)
}

fn make(root: &Path, files: usize) -> Result<()> {
    for folder in 0..folders(files) {
        let path = root.join(folder.to_string());
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        for file in folder * FILES..files.min((folder + 1) * FILES) {
            std::fs::File::create(path.join(file.to_string()))?;
        }
    }
    reset(root)
}

/// As it was made: root's, without the bits that fsGroup adds.
fn reset(root: &Path) -> Result<()> {
    let set = |path: &Path, mode| {
        chown(path, None, Some(0))?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
    };
    for folder in std::fs::read_dir(root)? {
        let folder = folder?.path();
        for file in std::fs::read_dir(&folder)? {
            set(&file?.path(), 0o644)?;
        }
        set(&folder, 0o755)?;
    }
    set(root, 0o755).context("the tree's root")?;
    rustix::fs::sync();
    Ok(())
}

/// Its own start, a millisecond, included.
fn chown_all(root: &Path, group: u32) -> Result<Duration> {
    let begin = Instant::now();
    let status = Command::new("chown").arg("-R").arg(format!(":{group}")).arg(root).status().context("chown")?;
    ensure!(status.success(), "chown -R: {status}");
    Ok(begin.elapsed())
}

fn node(root: &Path) -> Result<(Duration, u64)> {
    let handle = open::base_dir(root)?;
    let begin = Instant::now();
    let walked = ownership::give(handle.as_fd(), GROUP, Access::ReadWrite, PATIENCE)?;
    let took = begin.elapsed();
    ensure!(walked.failed == 0, "{} entries could not be given", walked.failed);
    Ok((took, walked.entries))
}
