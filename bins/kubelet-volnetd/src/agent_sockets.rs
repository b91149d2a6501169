//! Sockets by which agents on the node ask kubelet-syncd: of the pod resources API (decision 83) and of the pods API (decision 87).
//! They are bound here, because their folders are root's; a copy of each is kept, so that clients wait in its queue while the process
//! that answers restarts.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bulkhead_sys::open::{self, OpenError};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

/// Of a folder that is not there yet, or that somebody has removed (upstream's `CreateListener`).
const FOLDER_MODE: u32 = 0o750;

/// Why it is not given.
#[derive(Debug, thiserror::Error)]
pub enum AgentSocketError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("failed to listen on {path}")]
    Kernel { path: PathBuf, source: std::io::Error },
}

/// What is bound, and which file that is.
#[derive(Debug)]
struct Bound {
    socket: OwnedFd,
    file: (u64, u64),
}

/// A socket, with the copy that is kept.
#[derive(Debug)]
pub struct AgentSocket {
    /// Below the root directory, and the socket in it.
    folder: &'static str,
    name: &'static str,
    kept: Mutex<Option<Bound>>,
}

impl AgentSocket {
    /// Where monitoring agents ask who has which devices.
    pub fn pod_resources() -> Self {
        AgentSocket { folder: "pod-resources", name: "kubelet.sock", kept: Mutex::default() }
    }

    /// Where agents ask which pods there are.
    pub fn pods_api() -> Self {
        AgentSocket { folder: "pods-api", name: "pods-api.sock", kept: Mutex::default() }
    }

    /// A copy of the listening socket. One that was bound by this process before is given again, as long as its file is there.
    /// `named`: the root directory as the operator wrote it, by which clients find the socket.
    ///
    /// # Errors
    /// Its folder is not root's alone, or the kernel refuses.
    pub fn take(&self, root_dir: &Path, named: &Path) -> Result<OwnedFd, AgentSocketError> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = folder(root_dir, self.folder)?;
        let path = named.join(self.folder).join(self.name);
        let there = socket_file(folder.as_fd(), self.name)?;
        let bound = match kept.take().filter(|bound| there == Some(bound.file)) {
            Some(bound) => bound,
            None => bind(folder.as_fd(), self.name, &path)?,
        };
        let copy = bound.socket.try_clone().map_err(|source| AgentSocketError::Kernel { path, source })?;
        *kept = Some(bound);
        Ok(copy)
    }
}

/// The folder, made where it is missing: root's, and nobody else may write in it.
fn folder(root_dir: &Path, name: &str) -> Result<OwnedFd, OpenError> {
    let root = open::base_dir(root_dir)?;
    let folder = open::create_dirs_beneath(root.as_fd(), name, FOLDER_MODE)?;
    let path = || root_dir.join(name);
    let stat = rustix::fs::fstat(&folder).map_err(|errno| io_error("examine", &path(), errno))?;
    let why = match stat {
        _ if stat.st_uid != 0 => "does not belong to root",
        _ if open::others_may_write(&stat) => "may be written by others than root",
        _ => return Ok(folder),
    };
    Err(OpenError::Untrusted { path: path(), component: path(), why })
}

/// Which file the name is; None: there is none, or it is no socket.
fn socket_file(folder: BorrowedFd<'_>, name: &str) -> Result<Option<(u64, u64)>, OpenError> {
    let stat = open::lstat_at(folder, name)?;
    let stat = stat.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
    Ok(stat.map(|stat| (stat.st_dev, stat.st_ino)))
}

/// In place of whatever file is there. It is bound under its own name, and not renamed to it, so that the kernel shows that name
/// (`/proc/net/unix`); the mode is 0755, by the umask, as upstream's socket has it.
fn bind(folder: BorrowedFd<'_>, name: &str, path: &Path) -> Result<Bound, AgentSocketError> {
    match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(io_error("remove", path, errno).into()),
    }
    let kernel = |source| AgentSocketError::Kernel { path: path.to_owned(), source };
    let listener = UnixListener::bind(path).map_err(kernel)?;
    listener.set_nonblocking(true).map_err(kernel)?;
    // Nothing of gRPC carries a descriptor; who is accepted later has it from here. On older kernels what comes is closed as it is read.
    bulkhead_sys::scm::refuse_rights(&listener);
    // Root alone could have put another folder there meanwhile.
    let file = socket_file(folder, name)?.ok_or_else(|| io_error("find", path, Errno::NOENT))?;
    tracing::info!(path = %path.display(), "listening");
    Ok(Bound { socket: listener.into(), file })
}

fn io_error(doing: &'static str, path: &Path, errno: Errno) -> OpenError {
    OpenError::Io { doing, path: PathBuf::from(path), source: errno.into() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn inode(path: &Path) -> (u64, u64) {
        socket_file(open::base_dir(path.parent().unwrap()).unwrap().as_fd(), "kubelet.sock").unwrap().unwrap()
    }

    #[test]
    fn one_socket_as_long_as_its_file_is_there() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("pod-resources/kubelet.sock");
        let socket = AgentSocket::pod_resources();
        let take = || socket.take(root.path(), root.path());
        if !rustix::process::getuid().is_root() {
            assert!(take().is_err(), "the folder is another user's");
            return;
        }
        let first = take().unwrap();
        let made = inode(&path);
        assert!(std::fs::metadata(&path).unwrap().file_type().is_socket());
        assert_eq!(std::fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o7777, 0o750);
        // Nobody answers; the copy that is kept holds the queue.
        drop(first);
        let _waits = UnixStream::connect(&path).unwrap();
        let again = UnixListener::from(take().unwrap());
        assert_eq!(inode(&path), made);
        assert!(again.accept().is_ok(), "the same queue");

        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "somebody's").unwrap();
        let anew = UnixListener::from(take().unwrap());
        let _client = UnixStream::connect(&path).unwrap();
        assert!(anew.accept().is_ok() && again.accept().is_err(), "another socket");
        // A successor knows nothing of it.
        let other = AgentSocket::pod_resources();
        other.take(root.path(), root.path()).unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        assert!(anew.accept().is_err());
    }

    #[test]
    fn what_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let socket = AgentSocket::pod_resources();
        let folder = root.path().join("pod-resources");
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        let writable = socket.take(root.path(), root.path());
        assert!(matches!(writable, Err(AgentSocketError::Open(OpenError::Untrusted { .. }))), "{writable:?}");
        std::fs::remove_dir(&folder).unwrap();
        std::fs::create_dir(root.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink("elsewhere", &folder).unwrap();
        assert!(socket.take(root.path(), root.path()).is_err(), "a link");
        std::fs::remove_file(&folder).unwrap();
        std::fs::create_dir_all(folder.join("kubelet.sock/in-the-way")).unwrap();
        assert!(socket.take(root.path(), root.path()).is_err());
    }
}
