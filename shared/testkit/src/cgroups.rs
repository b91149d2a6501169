//! Control groups of a lab, in every mounted hierarchy (v1, hybrid or v2): made before a node starts, searched for
//! leaks, removed at the end.

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

/// The file that says how much memory `cgroup` uses, page cache included, bytes.
///
/// # Errors
/// No hierarchy has it.
pub fn memory_usage_file(cgroup: &str) -> Result<PathBuf> {
    let files = hierarchies()
        .into_iter()
        .flat_map(|at| ["memory.usage_in_bytes", "memory.current"].map(|name| inside(&at, cgroup).join(name)));
    files.into_iter().find(|file| file.is_file()).with_context(|| format!("no memory controller of {cgroup}"))
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

/// The files by which a process enters `cgroup`, one for each hierarchy.
pub(crate) fn member_files(cgroup: &str) -> Vec<PathBuf> {
    hierarchies().iter().map(|hierarchy| inside(hierarchy, cgroup).join("cgroup.procs")).collect()
}

/// The files by which a process joins `pid` in each hierarchy where that process is.
///
/// # Errors
/// The process is gone.
pub(crate) fn member_files_of(pid: i32) -> Result<Vec<PathBuf>> {
    let path = format!("/proc/{pid}/cgroup");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    Ok(hierarchies()
        .iter()
        .filter_map(|hierarchy| {
            let name = hierarchy.file_name()?.to_str()?;
            let cgroup = text.lines().find_map(|line| in_hierarchy(line, name))?;
            Some(inside(hierarchy, cgroup).join("cgroup.procs"))
        })
        .collect())
}

/// The path in a line of /proc/<pid>/cgroup, if the line is about the hierarchy that is mounted in a folder of this name.
fn in_hierarchy<'a>(line: &'a str, folder: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    // The one of version 2 has no controllers in its line; it is mounted beside the others, or alone.
    let fits = match controllers {
        "" => folder == "unified" || folder == "cgroup",
        named => named.split(',').any(|one| one.strip_prefix("name=").unwrap_or(one) == folder) || named == folder,
    };
    fits.then_some(path)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hierarchy_has_its_line() {
        for (line, folder, path) in [
            ("9:name=systemd:/a/init.scope", "systemd", Some("/a/init.scope")),
            ("4:memory:/a", "memory", Some("/a")),
            ("3:cpu,cpuacct:/a", "cpuacct", Some("/a")),
            ("3:cpu,cpuacct:/a", "cpu,cpuacct", Some("/a")),
            ("0::/a:b", "unified", Some("/a:b")),
            ("0::/", "cgroup", Some("/")),
            ("4:memory:/a", "cpu", None),
            ("0::/a", "memory", None),
        ] {
            assert_eq!(in_hierarchy(line, folder), path, "{line} {folder}");
        }
    }
}
