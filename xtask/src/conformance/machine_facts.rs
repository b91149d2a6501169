//! On what a run was made: the header of the list that is recorded from it.

use anyhow::{Context as _, Result};
use bulkhead_testkit::conformance::Header;
use bulkhead_testkit::{Lab, Node, machine};

use super::{Programs, Selection};

/// The header for a run.
///
/// # Errors
/// A program does not tell its version.
pub fn header(node: &Node, lab: &Lab, programs: &Programs, selection: &Selection) -> Result<Header> {
    let kubelet = node.programs()?.join("kubelet").display().to_string();
    let first_line = |text: String| text.lines().next().unwrap_or_default().trim().to_owned();
    let version = |program: &str, argument: &str| machine::run(program, &[argument]).map(first_line);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").context("reading the kernel's release")?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(Header::default()
        .with("specs", &version(&programs.path("e2e.test").display().to_string(), "--version")?)
        .with("kubelet", &version(&kubelet, "--version")?)
        .with("runtime", &lab.containerd().programs().versions())
        .with("machine", &format!("{}, Linux {}, cgroup {}, {cpus} CPUs", system(), kernel.trim(), cgroup_version()))
        .with("focus", &selection.focus)
        .with("skip", &selection.skip))
}

/// As /etc/os-release calls this system.
fn system() -> String {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.map_or_else(|| "an unknown system".to_owned(), |name| name.trim_matches('"').to_owned())
}

/// The unified hierarchy has this file at its root.
fn cgroup_version() -> &'static str {
    if std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { "v2" } else { "v1" }
}
