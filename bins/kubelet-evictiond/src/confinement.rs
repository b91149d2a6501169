//! What is left of CAP_DAC_READ_SEARCH: listing below two folders, reading in /proc and /sys, nothing else.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bulkhead_config::NodeConfig;
use bulkhead_sys::fence::{Enforcement, Fence};
use bulkhead_sys::seccomp::{self, Deny, Family};
use bulkhead_types::InstancePaths;

/// How long to wait for kubelet-volnetd to make the folders: a Landlock rule needs the folder it is about.
const FOLDERS_PATIENCE: Duration = Duration::from_secs(10);

/// How often a fence that lacks a folder looks whether it is there now.
const OUTGROWN_CHECK: Duration = Duration::from_secs(10);

/// The fence was put up before its folders were there. A fence is never widened, only a new process can have another.
static INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// What was put in force.
#[derive(Debug)]
pub struct Fenced {
    /// The Landlock rules in words, for `Process.Privileges`.
    pub rules: Vec<String>,
    /// False on a kernel without Landlock: the capability must then not be kept.
    pub landlock: bool,
}

/// The hook of the daemon skeleton: waits for the folders, then fences.
///
/// # Errors
/// No Landlock on this kernel, or a filter that the kernel refuses: this daemon must not run with its capability and
/// without its fence.
pub fn confine(config: &NodeConfig) -> std::io::Result<Vec<String>> {
    let pods = config.paths.pods();
    let logs = &config.paths.pod_logs_dir;
    let started = Instant::now();
    while !(pods.is_dir() && logs.is_dir()) && started.elapsed() < FOLDERS_PATIENCE {
        std::thread::sleep(Duration::from_millis(20));
    }
    let complete = pods.is_dir() && logs.is_dir();
    INCOMPLETE.store(!complete, Ordering::Relaxed);
    let fenced = fence(&pods, logs)?;
    if !fenced.landlock {
        return Err(std::io::Error::other(
            "this kernel enforces no Landlock rules (is landlock in the lsm= list?), and CAP_DAC_READ_SEARCH is not kept without them",
        ));
    }
    Ok(fenced.rules)
}

/// Resolves when folders that the fence should name are there and it does not name them. Never, and without a timer,
/// for a complete fence.
pub(crate) async fn outgrown(paths: &InstancePaths) {
    if !INCOMPLETE.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
    while !(paths.pods().is_dir() && paths.pod_logs_dir.is_dir()) {
        tokio::time::sleep(OUTGROWN_CHECK).await;
    }
}

/// Fences the calling thread and all that it starts.
///
/// # Errors
/// The kernel refuses the rules or the filter.
pub fn fence(pods: &Path, logs: &Path) -> std::io::Result<Fenced> {
    let fence = Fence {
        read_dirs: vec![pods.to_owned(), logs.to_owned()],
        read_files: vec!["/proc".into(), "/sys".into()],
        read_write: Vec::new(),
    };
    let report = fence.enforce().map_err(std::io::Error::other)?;
    for path in &report.missing {
        tracing::warn!(path = %path.display(), "folder is not there, what is made in it later will not be measured");
    }
    // OpenByHandle is the one that matters: with CAP_DAC_READ_SEARCH it opens any inode, and Landlock has no say in it.
    seccomp::restrict(&Deny::ALL, Some(&[Family::Unix])).map_err(std::io::Error::other)?;
    Ok(Fenced { rules: report.rules, landlock: report.enforcement != Enforcement::None })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread of its own, because the fence cannot be taken down.
    fn fenced<T: Send + 'static>(work: impl FnOnce(&Path) -> T + Send + 'static) -> T {
        let folder = tempfile::tempdir().unwrap();
        let pods = folder.path().join("pods");
        let logs = folder.path().join("logs");
        std::fs::create_dir_all(pods.join("uid/volumes/v")).unwrap();
        std::fs::create_dir_all(&logs).unwrap();
        std::fs::write(pods.join("uid/volumes/v/secret"), vec![b'x'; 10_000]).unwrap();
        std::fs::write(folder.path().join("beside"), "x").unwrap();
        let root = folder.path().to_owned();
        std::thread::spawn(move || {
            let fenced = fence(&pods, &logs).unwrap();
            assert!(fenced.landlock);
            assert_eq!(fenced.rules.len(), 4, "{:?}", fenced.rules);
            work(&root)
        })
        .join()
        .unwrap()
    }

    #[test]
    fn files_below_pods_are_measured_and_never_read() {
        fenced(|root| {
            let secret = root.join("pods/uid/volumes/v/secret");
            assert_eq!(std::fs::metadata(&secret).unwrap().len(), 10_000);
            assert_eq!(std::fs::read_dir(root.join("pods/uid/volumes/v")).unwrap().count(), 1);
            let usage = crate::disk::walk(&root.join("pods/uid/volumes/v"), crate::disk::Bounds::default()).unwrap();
            assert_eq!(usage.inodes, 2);
            assert!(usage.bytes >= 10_000);
            assert_eq!(std::fs::read(&secret).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
            assert!(std::fs::write(&secret, "y").is_err());
            assert!(std::fs::write(root.join("pods/new"), "y").is_err());
            assert!(std::fs::remove_file(&secret).is_err());
        });
    }

    #[test]
    fn everything_else_is_out_of_reach() {
        fenced(|root| {
            assert!(std::fs::read_dir(root).is_err());
            assert!(std::fs::read(root.join("beside")).is_err());
            assert!(std::fs::read("/etc/shadow").is_err());
            assert!(std::fs::read_dir("/root").is_err());
            assert!(std::fs::read("/proc/stat").is_ok());
            assert!(std::fs::read_dir("/sys/fs/cgroup").is_ok());
            assert!(
                std::net::TcpStream::connect("127.0.0.1:1")
                    .is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied)
            );
            assert!(std::process::Command::new("/bin/true").status().is_err());
            assert!(std::os::unix::net::UnixStream::pair().is_ok());
        });
    }
}
