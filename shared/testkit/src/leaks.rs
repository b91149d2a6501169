//! What a node must not leave behind: after its pods are gone, and after it is gone itself.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};

use crate::wait::{SHORT, eventually};
use crate::{Node, cgroups, loops, mounts};

const SHIM: &str = "shim process ";
/// What the runtime or CNI may have forgotten although the containers are gone.
const FORGOTTEN: [&str; 3] = [SHIM, "network namespace ", "address "];

/// Things that belong to pods, one line each. Empty when the node has no pod and forgot none.
pub fn of_pods(node: &Node) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let containerd = node.lab().containerd();
    for (address, sandbox) in containerd.addresses() {
        found.insert(format!("address {address} is still given to sandbox {sandbox}"));
    }
    for namespace in containerd.network_namespaces() {
        found.insert(format!("network namespace {namespace} of a sandbox"));
    }
    for shim in containerd.shims() {
        found.insert(format!("{SHIM}{shim}"));
    }
    for mount in mounts::below(node.root_dir()) {
        // The root directory is made a shared mount of itself and stays one, as upstream leaves it.
        if mount != node.root_dir() {
            found.insert(format!("mount {}", mount.display()));
        }
    }
    for (device, file) in loops::below(node.root_dir()) {
        found.insert(format!("loop device {} of {file}", device.display()));
    }
    for cgroup in cgroups::below(node.cgroup_root()) {
        if cgroup.split('/').any(|part| part.starts_with("pod")) {
            found.insert(format!("cgroup {cgroup}"));
        }
    }
    for folder in children(&node.root_dir().join("pods")) {
        found.insert(format!("pod directory {folder}"));
    }
    found.extend(log_links(node));
    // A process each time, and this is asked again and again: only when nothing is left that would go with a container.
    if found.iter().all(|thing| FORGOTTEN.iter().any(|kind| thing.starts_with(kind))) {
        match containerd.ctr(&["containers", "ls", "--quiet"]) {
            Ok(list) => found.extend(list.lines().map(|id| format!("container {id} in the runtime"))),
            Err(error) => {
                found.insert(format!("the runtime does not answer: {error:#}"));
            }
        }
    }
    found
}

/// Links in /var/log/containers that lead to this node's logs.
fn log_links(node: &Node) -> Vec<String> {
    let logs = node.pod_logs();
    children(Path::new("/var/log/containers"))
        .into_iter()
        .filter(|name| {
            std::fs::read_link(Path::new("/var/log/containers").join(name)).is_ok_and(|to| to.starts_with(&logs))
        })
        .map(|name| format!("log link {name}"))
        .collect()
}

fn children(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Waits until no trace of any pod is left.
///
/// # Errors
/// What is left when the time is up.
pub fn wait_no_pods(node: &Node, limit: Duration) -> Result<()> {
    eventually("every pod is gone without a trace", limit, || {
        let left = of_pods(node);
        if left.is_empty() {
            return Ok(());
        }
        bail!("{} things are left:\n  {}", left.len(), left.into_iter().collect::<Vec<_>>().join("\n  "))
    })
}

/// Waits until no trace of any pod is left but processes of the runtime.
///
/// # Errors
/// What is left when the time is up.
pub fn wait_runtime_alone(node: &Node, limit: Duration) -> Result<()> {
    eventually("every pod is gone but for processes of the runtime", limit, || {
        let left: Vec<String> = of_pods(node).into_iter().filter(|thing| !thing.starts_with(SHIM)).collect();
        ensure!(left.is_empty(), "{} things are left:\n  {}", left.len(), left.join("\n  "));
        Ok(())
    })
}

/// After the node was stopped: no pod, no process, no claim.
///
/// # Errors
/// What is left.
pub fn check(node: &Node) -> Result<()> {
    eventually("the stopped node left nothing behind", SHORT, || {
        let mut left = of_pods(node);
        left.extend(node.all_pids().into_iter().map(|(name, pid)| format!("process {name} ({pid})")));
        left.extend(sockets_that_answer(node.run_dir()));
        left.extend(
            node.user_claim()
                .filter(|claim| is_held(claim, node.root_dir()))
                .map(|claim| format!("claim {}", claim.display())),
        );
        if left.is_empty() {
            return Ok(());
        }
        bail!("{} things are left:\n  {}", left.len(), left.into_iter().collect::<Vec<_>>().join("\n  "))
    })
}

/// Whether the node with this root directory holds the claim: the block of users that it let go of may be another node's by now.
fn is_held(path: &Path, root_dir: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let its = std::fs::read_to_string(path)
        .is_ok_and(|holder| holder.contains(&format!("{:?}", root_dir.display().to_string())));
    its && Flock::lock(file, FlockArg::LockSharedNonblock).is_err()
}

fn sockets_that_answer(run_dir: &Path) -> Vec<String> {
    children(run_dir)
        .into_iter()
        .filter(|name| name.ends_with(".sock"))
        .filter(|name| std::os::unix::net::UnixStream::connect(run_dir.join(name)).is_ok())
        .map(|name| format!("socket {name} still accepts"))
        .collect()
}
