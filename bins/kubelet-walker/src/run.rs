//! The process that forks workers: who may ask for one, and when it ends.

use std::collections::BTreeMap;
use std::error::Error;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bulkhead_config::NodeConfig;
use bulkhead_daemon::Passed;
use bulkhead_daemon::arguments::{self, Arguments};
use bulkhead_daemon::logging::{self, LogFormat};
use bulkhead_daemon::privileges::{self, Program};
use bulkhead_sys::notify;
use bulkhead_worker::fork_server::Watch;
use bulkhead_worker::{Connections, serve};

use crate::answer::answer;

const ABOUT: &str = "enters pods' folders and file systems for kubelet-evictiond, in processes that may hang";

/// As a unit, without a worker and a connection for so long, it ends; the next connection starts it again.
const IDLE: Duration = Duration::from_secs(60);
/// How long to wait for kubelet-volnetd to make the folders: a Landlock rule needs the folder it is about.
const FOLDERS_PATIENCE: Duration = Duration::from_secs(10);
/// How often a fence that lacks a folder looks whether it is there now.
const OUTGROWN_CHECK: Duration = Duration::from_secs(10);

/// The body of `main`.
///
/// # Errors
/// A bad command line, a configuration that cannot be read, privileges that cannot be dropped, no socket.
pub fn run() -> Result<(), Box<dyn Error>> {
    privileges::hide_memory()?;
    let run_dir = match arguments::parse("kubelet-walker", ABOUT, std::env::args().skip(1))? {
        Arguments::Run { run_dir } => run_dir,
        Arguments::Print(text) => {
            println!("{text}");
            return Ok(());
        }
    };
    let config = NodeConfig::load(&run_dir.join("config.json"))?;
    let format = if config.kubelet.logging.format == "json" { LogFormat::Json } else { LogFormat::Text };
    logging::start(format, config.kubelet.logging.verbosity, None);
    let mut passed: BTreeMap<String, OwnedFd> = bulkhead_sys::listen_fds::take()?.into_iter().collect();
    // The one user that systemd made the socket for. Read before the fence, and not by the peer's place in /proc, because
    // nothing of /proc is left behind it.
    let asker = std::fs::metadata(run_dir.join("kubelet-walker.sock")).map(|socket| socket.uid());
    let title = bulkhead_sys::program::Title::find();
    // No socket is made or connected behind the filter.
    let supervisor = notify::Supervisor::connect().unwrap_or_else(|error| {
        tracing::warn!(%error, "the supervisor cannot be told anything");
        notify::Supervisor::default()
    });
    wait_for_folders(&config);
    let applied = privileges::apply(Program::Walker, Some(&config))?;
    for warning in &applied.warnings {
        tracing::warn!("{warning}");
    }
    if applied.landlock.is_empty() {
        let why = applied.landlock_left_out.join(", ");
        tracing::warn!(
            why,
            "there is no fence: the filter opens no file, and folders of the whole machine can be listed"
        );
    }
    let missing = applied.missing_folders;
    let each = || {
        let _ = supervisor.tell("WATCHDOG=1");
        !missing.is_empty() && outgrown(&missing)
    };
    let title = title.map(|title| (title, "kubelet-walker: worker"));
    // No timer where there is nothing to look for.
    let beat = sd_notify::watchdog_enabled().map(|interval| interval / 2);
    let check = (!missing.is_empty()).then_some(OUTGROWN_CHECK);
    let period = beat.into_iter().chain(check).min();
    let watch = |idle| Watch { title, idle, each: period.map(|period| (period, &each as &dyn Fn() -> bool)) };
    let paths = config.paths;
    let work = |request| answer(&paths, &request);
    // What only the start ran. Workers that are forked from here on have none of it either.
    bulkhead_sys::program::let_go_of_pages();
    if let Some(socket) = passed.remove(Passed::Requests.name()) {
        return Ok(serve(&Connections::Passed(socket), &watch(None), &work)?);
    }
    let socket = passed
        .remove(Passed::Walker.name())
        .ok_or("it is started by `kubelet` or by kubelet-walker.socket, which give it a socket")?;
    let asker = asker?;
    let _ = supervisor.tell("READY=1");
    Ok(serve(&Connections::Listener { socket, may_connect: &move |uid| uid == asker }, &watch(Some(IDLE)), &work)?)
}

/// Waits for the folders that the fence names, but not for ever: what is made in them later is then not measured.
fn wait_for_folders(config: &NodeConfig) {
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

/// Whether folders that the fence should name are there by now: a fence is never widened, only a new process can have
/// another.
fn outgrown(missing: &[PathBuf]) -> bool {
    let there = missing.iter().all(|folder| Path::is_dir(folder));
    if there {
        tracing::info!("the pods' folders were made after the fence was put up; starting again to measure them");
    }
    there
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bulkhead_config::NodeConfig;
    use bulkhead_daemon::privileges::{Applied, Program, restrict};

    /// A thread of its own, because the fence cannot be taken down.
    fn fenced<T: Send + 'static>(work: impl FnOnce(&Path) -> T + Send + 'static) -> T {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        let mut config = NodeConfig::for_tests(&root);
        config.paths.pod_logs_dir = root.join("logs");
        let pods = config.paths.pods();
        std::fs::create_dir_all(pods.join("uid/volumes/v")).unwrap();
        std::fs::create_dir_all(pods.join("uid/volumes/deep").join("d/".repeat(100))).unwrap();
        std::fs::create_dir_all(&config.paths.pod_logs_dir).unwrap();
        std::fs::write(pods.join("uid/volumes/v/secret"), vec![b'x'; 10_000]).unwrap();
        std::fs::write(root.join("beside"), "x").unwrap();
        std::thread::spawn(move || {
            super::wait_for_folders(&config);
            let mut applied = Applied::default();
            restrict(Program::Walker.row(), Some(&config), &mut applied).unwrap();
            assert!(applied.landlock.len() >= 2 && applied.missing_folders.is_empty(), "{applied:?}");
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
            let volume = root.join("root/pods/uid/volumes/v");
            let usage = crate::walk::walk(&volume, crate::walk::Bounds::default()).unwrap();
            assert_eq!(usage.inodes, 2);
            assert!(usage.bytes >= 10_000);
            // More levels than are open at once: the way back leads through the fence.
            let deep = root.join("root/pods/uid/volumes/deep");
            let usage = crate::walk::walk(&deep, crate::walk::Bounds::default()).unwrap();
            assert_eq!((usage.inodes, usage.incomplete), (101, false));
            assert_eq!(std::fs::read(&secret).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
            assert!(std::fs::write(&secret, "y").is_err());
            assert!(std::fs::write(root.join("root/pods/new"), "y").is_err());
            assert!(std::fs::remove_file(&secret).is_err());
        });
    }

    /// As root, whose every capability does not pass the fence by.
    #[test]
    fn everything_else_is_out_of_reach() {
        fenced(|root| {
            assert!(std::fs::read_dir(root).is_err());
            assert!(std::fs::read(root.join("beside")).is_err());
            for file in [
                "/etc/shadow",
                "/proc/stat",
                "/proc/slabinfo",
                "/proc/kpageflags",
                "/proc/self/environ",
                "/sys/kernel/mm/transparent_hugepage/enabled",
            ] {
                let error = std::fs::read(file).unwrap_err().kind();
                assert!(
                    matches!(error, std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::NotFound),
                    "{file}: {error}"
                );
            }
            for folder in [
                "/root",
                "/proc",
                "/sys",
                "/sys/fs/cgroup",
                "/sys/fs/bpf",
                "/sys/kernel/debug",
                "/sys/firmware",
                "/sys/fs/pstore",
            ] {
                let error = std::fs::read_dir(folder).map(|_| ()).unwrap_err().kind();
                assert!(
                    matches!(error, std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::NotFound),
                    "{folder}: {error}"
                );
            }
            assert!(
                std::net::TcpStream::connect("127.0.0.1:1")
                    .is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied)
            );
            assert!(std::process::Command::new("/bin/true").status().is_err());
        });
    }

    /// As on a kernel that has no Landlock: the filter is what is left.
    #[test]
    fn without_a_fence_folders_are_listed_and_no_file_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("v");
        std::fs::create_dir_all(volume.join("deep/deeper")).unwrap();
        std::fs::write(volume.join("secret"), vec![b'x'; 10_000]).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(volume.join("socket")).unwrap();
        std::thread::spawn(move || {
            let row = Program::Walker.row();
            bulkhead_sys::seccomp::restrict(&row.denied(None), Some(&row.families(None))).unwrap();
            let measured = crate::measure::volume(&volume).unwrap();
            assert_eq!((measured.folder.inodes, measured.folder.incomplete), (5, false));
            assert!(measured.folder.bytes >= 10_000 && measured.fs.capacity_bytes > 0);
            assert!(std::fs::read_dir("/proc").is_ok(), "names of the whole machine");
            let file = volume.join("secret");
            for file in [file.as_path(), Path::new("/proc/stat"), Path::new("/proc/slabinfo"), Path::new("/etc/passwd")]
            {
                let refused = std::fs::read(file).unwrap_err().kind();
                assert_eq!(refused, std::io::ErrorKind::PermissionDenied, "{}", file.display());
            }
            let refused = std::os::unix::net::UnixStream::connect(volume.join("socket")).unwrap_err().kind();
            assert_eq!(refused, std::io::ErrorKind::PermissionDenied);
        })
        .join()
        .unwrap();
    }
}
