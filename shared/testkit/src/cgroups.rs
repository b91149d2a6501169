//! Control groups of a lab, in every mounted hierarchy (v1, hybrid or v2): made before a node starts, searched for leaks, removed at the end.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use crate::{processes, wait::insist};

/// Mount points of all cgroup hierarchies.
pub fn hierarchies() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut found: Vec<PathBuf> = mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let (at, kind) = (fields.next()?, fields.next()?);
            (kind == "cgroup" || kind == "cgroup2").then(|| PathBuf::from(at))
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

fn inside(hierarchy: &Path, cgroup: &str) -> PathBuf {
    hierarchy.join(cgroup.trim_start_matches('/'))
}

/// Makes `cgroup` in every hierarchy.
///
/// # Errors
/// A hierarchy refuses; an empty v2 hierarchy beside v1 counts as one.
pub fn create(cgroup: &str) -> Result<()> {
    for hierarchy in hierarchies() {
        let path = inside(&hierarchy, cgroup);
        std::fs::create_dir_all(&path).with_context(|| format!("creating cgroup {}", path.display()))?;
        // A new cpuset of v1 has no CPU and no memory node, and no process can enter it.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let (mine, parent) = (path.join(file), path.parent().unwrap_or(&hierarchy).join(file));
            if let (Ok(now), Ok(all)) = (std::fs::read_to_string(&mine), std::fs::read_to_string(parent))
                && now.trim().is_empty()
            {
                std::fs::write(&mine, all.trim()).with_context(|| format!("writing {}", mine.display()))?;
            }
        }
    }
    Ok(())
}

/// Cgroups below `cgroup` in any hierarchy, as paths relative to it; `cgroup` itself is not among them.
pub fn below(cgroup: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for hierarchy in hierarchies() {
        let top = inside(&hierarchy, cgroup);
        let mut open = vec![top.clone()];
        while let Some(folder) = open.pop() {
            for child in folders(&folder) {
                if let Ok(relative) = child.strip_prefix(&top) {
                    found.insert(relative.to_string_lossy().into_owned());
                }
                open.push(child);
            }
        }
    }
    found
}

/// Kills every process in `cgroup` and below, and removes it from all hierarchies.
///
/// # Errors
/// A cgroup that is still there after five seconds.
pub fn kill_and_remove(cgroup: &str) -> Result<()> {
    insist(&format!("removing cgroup {cgroup}"), Duration::from_secs(5), || {
        let mut left = None;
        for hierarchy in hierarchies() {
            let top = inside(&hierarchy, cgroup);
            if top.exists()
                && let Err(error) = remove_tree(&top)
            {
                left = Some(anyhow::Error::new(error).context(format!("{}", top.display())));
            }
        }
        left.map_or(Ok(()), Err)
    })
}

fn remove_tree(folder: &Path) -> std::io::Result<()> {
    for child in folders(folder) {
        remove_tree(&child)?;
    }
    let members = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    for pid in members.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0) {
        processes::signal(pid, Signal::SIGKILL);
        // A frozen process only dies when it is thawed.
        let _ = std::fs::write(folder.join("freezer.state"), "THAWED");
    }
    std::fs::remove_dir(folder)
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}
