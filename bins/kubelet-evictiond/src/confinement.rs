//! What is left of CAP_DAC_READ_SEARCH: listing below two folders, reading in /proc and /sys, nothing else.

use std::time::{Duration, Instant};

use bulkhead_config::NodeConfig;
use bulkhead_daemon::Daemon;

/// How long to wait for kubelet-volnetd to make the folders: a Landlock rule needs the folder it is about.
const FOLDERS_PATIENCE: Duration = Duration::from_secs(10);

/// How often a fence that lacks a folder looks whether it is there now.
const OUTGROWN_CHECK: Duration = Duration::from_secs(10);

/// Waits for the folders that the fence names, but not for ever: what is made in them later is then not measured.
pub fn wait_for_folders(config: &NodeConfig) {
    let folders = [config.paths.pods(), config.paths.pod_logs_dir.clone()];
    let started = Instant::now();
    while !folders.iter().all(|folder| folder.is_dir()) {
        if started.elapsed() >= FOLDERS_PATIENCE {
            tracing::warn!("the pods' folders are not there, what is made in them later will not be measured");
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Resolves when folders that the fence should name are there and it does not name them: a fence is never widened, only a
/// new process can have another. Never, and without a timer, for a complete fence.
pub(crate) async fn outgrown(daemon: &Daemon) {
    let missing = daemon.folders_missing_from_fence();
    if missing.is_empty() {
        std::future::pending::<()>().await;
    }
    while !missing.iter().all(|folder| folder.is_dir()) {
        tokio::time::sleep(OUTGROWN_CHECK).await;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bulkhead_config::NodeConfig;
    use bulkhead_daemon::privileges::{Applied, Program, restrict};
    use bulkhead_types::Process;

    /// A thread of its own, because the fence cannot be taken down.
    fn fenced<T: Send + 'static>(work: impl FnOnce(&Path) -> T + Send + 'static) -> T {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        let mut config = NodeConfig::for_tests(&root);
        config.paths.pod_logs_dir = root.join("logs");
        let pods = config.paths.pods();
        std::fs::create_dir_all(pods.join("uid/volumes/v")).unwrap();
        std::fs::create_dir_all(&config.paths.pod_logs_dir).unwrap();
        std::fs::write(pods.join("uid/volumes/v/secret"), vec![b'x'; 10_000]).unwrap();
        std::fs::write(root.join("beside"), "x").unwrap();
        std::thread::spawn(move || {
            super::wait_for_folders(&config);
            let mut applied = Applied::default();
            restrict(Program::Daemon(Process::Evictiond).row(), Some(&config), &mut applied).unwrap();
            assert!(applied.landlock.len() >= 4 && applied.missing_folders.is_empty(), "{applied:?}");
            work(&root)
        })
        .join()
        .unwrap()
    }

    #[test]
    fn files_below_pods_are_measured_and_never_read() {
        fenced(|root| {
            let secret = root.join("root/pods/uid/volumes/v/secret");
            assert_eq!(std::fs::metadata(&secret).unwrap().len(), 10_000);
            assert_eq!(std::fs::read_dir(root.join("root/pods/uid/volumes/v")).unwrap().count(), 1);
            let usage =
                crate::disk::walk(&root.join("root/pods/uid/volumes/v"), crate::disk::Bounds::default()).unwrap();
            assert_eq!(usage.inodes, 2);
            assert!(usage.bytes >= 10_000);
            assert_eq!(std::fs::read(&secret).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
            assert!(std::fs::write(&secret, "y").is_err());
            assert!(std::fs::write(root.join("root/pods/new"), "y").is_err());
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
