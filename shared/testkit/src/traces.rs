//! What a run of tests may have left on the machine: mounts, cgroups, network namespaces and interfaces, loop devices, processes.
//! Only what bears a name that the test kit gives counts: a machine does other things meanwhile.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::wait::eventually;
use crate::{cgroups, lab, mounts, processes};

/// Names of a lab's namespace and interface begin like this.
const PREFIX: &str = "bulkhead";
/// Names of cgroups begin like one of these: those of labs, of tests of one process, and of the tests of the simulation's stand-ins.
const CGROUPS: [&str; 3] = ["bulkhead-lab-", "bulkhead-c-test-", "bulkhead-contract-"];
/// What was told to end ends within this time.
const LIMIT: Duration = Duration::from_secs(10);

/// One line for each thing that there is now.
pub fn now() -> BTreeSet<String> {
    let names = |folder: &str| names(Path::new(folder)).into_iter().filter(|name| name.starts_with(PREFIX));
    let mut found = BTreeSet::new();
    found.extend(mounts::below(Path::new("/")).into_iter().filter(|path| is_ours(path)).map(shown("mount")));
    found.extend(
        cgroups::below("/").into_iter().filter(|path| is_our_cgroup(path)).map(|path| format!("cgroup {path}")),
    );
    found.extend(names("/run/netns").map(|name| format!("network namespace {name}")));
    found.extend(names("/sys/class/net").map(|name| format!("network interface {name}")));
    found.extend(loop_devices());
    // A pid alone may be another process later; what is left behind stays.
    found.extend(processes::with_argument(is_ours).into_iter().map(|pid| format!("process {pid}")));
    found
}

/// Waits until nothing is there that was not there `before`.
///
/// # Errors
/// What is left when the time is up.
pub fn check(before: &BTreeSet<String>) -> Result<()> {
    eventually("the tests left nothing on the machine", LIMIT, || {
        let now = now();
        let left: Vec<&str> = now.difference(before).map(String::as_str).collect();
        ensure!(left.is_empty(), "{} things are left:\n  {}", left.len(), left.join("\n  "));
        Ok(())
    })
}

fn shown(kind: &str) -> impl Fn(PathBuf) -> String {
    move |path| format!("{kind} {}", path.display())
}

/// A lab's folder, or a temporary one of the crate tempfile.
fn is_ours(path: &Path) -> bool {
    let in_temporary = || {
        let below = path.strip_prefix(std::env::temp_dir()).ok().and_then(|below| below.components().next());
        below.is_some_and(|first| first.as_os_str().to_string_lossy().starts_with(".tmp"))
    };
    path.starts_with(lab::FOLDERS) || in_temporary()
}

fn is_our_cgroup(path: &str) -> bool {
    path.split('/').any(|part| CGROUPS.iter().any(|name| part.starts_with(name)))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Those with a file of ours.
fn loop_devices() -> impl Iterator<Item = String> {
    let file = |device: &String| std::fs::read_to_string(format!("/sys/block/{device}/loop/backing_file")).ok();
    let devices = names(Path::new("/sys/block")).into_iter().filter_map(move |device| Some((file(&device)?, device)));
    devices
        .filter(|(file, _)| is_ours(Path::new(file.trim())))
        .map(|(file, device)| format!("{device} with {}", file.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_labs_and_tests_are_ours() {
        assert!(is_ours(&Path::new(lab::FOLDERS).join("7/nodes/alpha/pods")));
        assert!(is_ours(&std::env::temp_dir().join(".tmpAbC/root")));
        for other in ["/", "/proc", "/tmp", "/tmp/.X11-unix", "/tmp/a/.tmpAbC", "/var/lib/kubelet/pods"] {
            assert!(!is_ours(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn cgroups_of_labs_and_tests_are_ours() {
        for ours in ["bulkhead-lab-7", "a/bulkhead-c-test-life-12/kubepods", "bulkhead-contract-9"] {
            assert!(is_our_cgroup(ours), "{ours}");
        }
        for other in ["", "kubepods/burstable", "a-bulkhead-lab-7", "system.slice/bulkhead.service"] {
            assert!(!is_our_cgroup(other), "{other}");
        }
    }

    #[test]
    fn a_process_with_a_folder_of_ours_is_found_until_it_ends() {
        for folder in [Path::new(lab::FOLDERS).join("0/traces"), std::env::temp_dir().join(".tmpTraces/run")] {
            let before = now();
            let mut child = std::process::Command::new("sh");
            child.args(["-c", "read line", &format!("--run-dir={}", folder.display())]);
            let mut child = child.stdin(std::process::Stdio::piped()).spawn().unwrap();
            let line = format!("process {}", child.id());
            eventually("the process is found", LIMIT, || {
                ensure!(now().contains(&line), "it is not");
                Ok(())
            })
            .unwrap();
            drop(child.stdin.take());
            child.wait().unwrap();
            assert!(!now().difference(&before).any(|left| *left == line));
        }
    }
}
