//! A daemon's sockets: those that it listens on, and the one at which it is heard. The launcher holds them for its life, so a
//! daemon's restart loses no caller, and makes anew what somebody has removed from their folder.

use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_config::{NodeConfig, NodeConfigError};
use bulkhead_daemon::Passed;
use bulkhead_types::Process;
use rustix::process::Gid;
use tokio::net::UnixDatagram;

use super::folder::{self, FolderError};

/// How often the files of a daemon that runs are looked for.
const LOOK: Duration = Duration::from_secs(60);

/// Could not make a socket or its folder.
#[derive(Debug, thiserror::Error)]
#[error("failed to {doing} {}", path.display())]
pub struct SocketError {
    doing: &'static str,
    path: PathBuf,
    source: std::io::Error,
}

/// Could not make anew what was removed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("failed to write the configuration for the daemons")]
    Config(#[from] NodeConfigError),
    #[error("failed to take another group")]
    Group(#[from] rustix::io::Errno),
}

/// Sockets of one daemon.
#[derive(Debug)]
pub struct Sockets {
    process: Process,
    listeners: Vec<Listener>,
    notifications: UnixDatagram,
    notified_at: SocketFile,
}

#[derive(Debug)]
struct Listener {
    passed: Passed,
    fd: OwnedFd,
    /// `None`: it has an address and no file.
    file: Option<SocketFile>,
}

impl Sockets {
    /// Binds everything anew; the folder is there. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// A socket cannot be bound, or given to who is to use it.
    pub fn bind(config: &NodeConfig, process: Process) -> Result<Self, SocketError> {
        let mut listeners = vec![listen(config, process, Passed::Grpc)?];
        if process == Process::Volnetd {
            listeners.push(listen(config, process, Passed::Broker)?);
        }
        if let Some(port) = config.flags.vsock_port_of(process) {
            let failed = |source| SocketError {
                doing: "listen on (--vsock-port)",
                path: PathBuf::from(format!("vsock port {port}")),
                source,
            };
            let fd = bulkhead_sys::vsock::listen(port).map_err(failed)?;
            listeners.push(Listener { passed: Passed::Vsock, fd, file: None });
        }
        let (notifications, notified_at) = notification(config, process)?;
        Ok(Sockets { process, listeners, notifications, notified_at })
    }

    /// Copies of what it listens on, to be passed to a new child.
    pub fn copies(&self) -> std::io::Result<Vec<(String, OwnedFd)>> {
        self.listeners.iter().map(|one| Ok((one.passed.name().to_owned(), one.fd.try_clone()?))).collect()
    }

    /// Where the daemon is heard.
    pub fn notifications(&self) -> &UnixDatagram {
        &self.notifications
    }

    /// Until a file of these sockets is no longer there, or another one: nobody finds the daemon any more.
    pub async fn removed(&self) {
        // They were looked at right before: where they cannot be made anew, a daemon that runs is not ended at once.
        loop {
            tokio::time::sleep(LOOK).await;
            if !self.stand() {
                return;
            }
        }
    }

    fn stand(&self) -> bool {
        self.notified_at.stands() && self.listeners.iter().flat_map(|one| &one.file).all(SocketFile::stands)
    }

    /// Makes anew what was removed: folder, configuration, sockets. What was connected stays so until the daemon ends; who
    /// connects now finds the next one.
    ///
    /// # Errors
    /// One of them cannot be made.
    pub fn restore(&mut self, config: &NodeConfig) -> Result<(), RestoreError> {
        let rendered = config.paths.rendered_config();
        if self.stand() && rendered.exists() {
            return Ok(());
        }
        tracing::warn!(
            process = self.process.name(),
            folder = %config.paths.run_dir.display(),
            "files of the node agent were removed from its folder, making them anew"
        );
        as_group(config.users.gid, || {
            folder::prepare(config)?;
            if !rendered.exists() {
                config.save(&rendered)?;
            }
            for one in &mut self.listeners {
                if one.file.as_ref().is_some_and(|file| !file.stands()) {
                    *one = listen(config, self.process, one.passed)?;
                }
            }
            Ok(())
        })?;
        if !self.notified_at.stands() {
            let made = as_group(config.users.primary_gid(self.process), || Ok(notification(config, self.process)?))?;
            (self.notifications, self.notified_at) = made;
        }
        Ok(())
    }
}

/// Removes the files, on a clean stop.
pub fn remove(config: &NodeConfig) {
    for process in Process::ALL {
        let _ = std::fs::remove_file(config.paths.socket(process));
        let _ = std::fs::remove_file(notification_path(config, process));
    }
    let _ = std::fs::remove_file(config.paths.broker_socket());
}

pub fn notification_path(config: &NodeConfig, process: Process) -> PathBuf {
    config.paths.run_dir.join(format!("{}.notify", process.name()))
}

/// Where a socket was bound: another file at the path is not it.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn of(path: &Path) -> Result<Self, SocketError> {
        let found = std::fs::symlink_metadata(path);
        let found = found.map_err(|source| SocketError { doing: "look at", path: path.to_owned(), source })?;
        Ok(SocketFile { path: path.to_owned(), device: found.dev(), inode: found.ino() })
    }

    fn stands(&self) -> bool {
        let found = std::fs::symlink_metadata(&self.path);
        found.is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode))
    }
}

/// Does the work with another effective group. After its start the launcher gives no file away (decision 3), but what it makes and
/// owns it may give to a group that it is in.
fn as_group<T>(gid: u32, work: impl FnOnce() -> Result<T, RestoreError>) -> Result<T, RestoreError> {
    use rustix::thread::set_thread_res_gid;
    set_thread_res_gid(None::<Gid>, Gid::from_raw(gid), None::<Gid>)?;
    let done = work();
    set_thread_res_gid(None::<Gid>, Gid::ROOT, None::<Gid>)?;
    done
}

fn listen(config: &NodeConfig, process: Process, passed: Passed) -> Result<Listener, SocketError> {
    let gid = config.users.gid;
    let (path, fd) = if passed == Passed::Broker {
        let path = config.paths.broker_socket();
        let fd = listen_seqpacket(&path, gid)?;
        (path, fd)
    } else {
        let path = config.paths.socket(process);
        let fd = listen_stream(&path, gid)?;
        (path, fd)
    };
    Ok(Listener { passed, fd, file: Some(SocketFile::of(&path)?) })
}

fn listen_stream(path: &Path, gid: u32) -> Result<OwnedFd, SocketError> {
    remove_stale(path)?;
    let failed = |doing| move |source| SocketError { doing, path: path.to_owned(), source };
    let listener = std::os::unix::net::UnixListener::bind(path).map_err(failed("listen on"))?;
    give(path, 0, gid, 0o660)?;
    Ok(listener.into())
}

fn listen_seqpacket(path: &Path, gid: u32) -> Result<OwnedFd, SocketError> {
    remove_stale(path)?;
    let listener = bulkhead_sys::scm::listen(path, 0o660).map_err(|source| SocketError {
        doing: "listen on",
        path: path.to_owned(),
        source,
    })?;
    give(path, 0, gid, 0o660)?;
    Ok(listener)
}

/// A daemon's notification socket: it alone may write there, so a message needs no further proof of who sent it.
fn notification(config: &NodeConfig, process: Process) -> Result<(UnixDatagram, SocketFile), SocketError> {
    let path = notification_path(config, process);
    remove_stale(&path)?;
    let failed = |source| SocketError { doing: "listen on", path: path.clone(), source };
    let socket = std::os::unix::net::UnixDatagram::bind(&path).map_err(failed)?;
    match give(&path, config.users.uid(process), 0, 0o200) {
        // After the launcher's start: then by the daemon's own group, in which nobody else is.
        Err(error) if error.source.kind() == std::io::ErrorKind::PermissionDenied => {
            give(&path, 0, config.users.primary_gid(process), 0o020)?;
        }
        given => given?,
    }
    socket.set_nonblocking(true).map_err(failed)?;
    Ok((UnixDatagram::from_std(socket).map_err(failed)?, SocketFile::of(&path)?))
}

fn give(path: &Path, uid: u32, gid: u32, mode: u32) -> Result<(), SocketError> {
    let failed = |doing| move |source| SocketError { doing, path: path.to_owned(), source };
    // The mode first: as the new owner's, only CAP_FOWNER could change it.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed("set the mode of"))?;
    std::os::unix::fs::chown(path, Some(uid), Some(gid)).map_err(failed("set the owner of"))
}

fn remove_stale(path: &Path) -> Result<(), SocketError> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(SocketError { doing: "remove the old socket", path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(folder: &Path) -> NodeConfig {
        let mut config = NodeConfig::for_tests(folder);
        let gid = rustix::process::getegid().as_raw();
        let uid = rustix::process::geteuid().as_raw();
        config.users = bulkhead_config::Users {
            gid,
            syncd: uid,
            evictiond: uid,
            statusd: uid,
            syncd_gid: gid,
            evictiond_gid: gid,
            statusd_gid: gid,
        };
        config.paths.run_dir = folder.join("run");
        config
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_removed_is_missed_and_made_anew() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        folder::prepare(&config).unwrap();
        config.save(&config.paths.rendered_config()).unwrap();
        let mut sockets = Sockets::bind(&config, Process::Volnetd).unwrap();
        let files = [
            config.paths.socket(Process::Volnetd),
            config.paths.broker_socket(),
            notification_path(&config, Process::Volnetd),
        ];
        for file in &files {
            assert!(tokio::time::timeout(10 * LOOK, sockets.removed()).await.is_err(), "they stand");
            std::fs::remove_file(file).unwrap();
            tokio::time::timeout(2 * LOOK, sockets.removed()).await.unwrap();
            sockets.restore(&config).unwrap();
            assert!(file.exists(), "{}", file.display());
        }
        std::os::unix::net::UnixStream::connect(&files[0]).unwrap();
        // Another's socket at the path is none of the daemon's.
        std::fs::remove_file(&files[0]).unwrap();
        let _other = std::os::unix::net::UnixListener::bind(&files[0]).unwrap();
        tokio::time::timeout(2 * LOOK, sockets.removed()).await.unwrap();
        std::fs::remove_dir_all(&config.paths.run_dir).unwrap();
        sockets.restore(&config).unwrap();
        assert!(config.paths.rendered_config().exists() && files.iter().all(|file| file.exists()));
        remove(&config);
        assert!(files.iter().all(|file| !file.exists()));
    }
}
