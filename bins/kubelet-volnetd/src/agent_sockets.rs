//! Sockets by which others on the node reach kubelet-syncd: device plugins that register (decision 80), and agents that ask by the pod
//! resources API (decision 83) and the pods API (decision 87). They are bound here, because their folders are root's; a copy of each
//! is kept, so that clients wait in its queue while the process that answers restarts.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use bulkhead_sys::open::{self, OpenError};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

/// With what the name of the device plugins' socket begins among what the supervisor keeps over restarts.
pub const KEPT_DEVICE_PLUGINS: &str = "device-plugins";
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

/// Under which name the socket of device plugins is kept that was bound in this start of the kubelet (`NodeConfig::start_id`).
/// Plugins register again when they see a new one, and expect one of each start of the whole agent, as upstream binds it; a
/// process that restarts alone disturbs none.
pub fn kept_name(start_id: &str) -> String {
    format!("{KEPT_DEVICE_PLUGINS}-{start_id}")
}

/// Whether what is kept under this name is taken up; else it is closed, and the socket is bound anew.
pub fn is_taken_up(name: &str, start_id: &str) -> bool {
    name == kept_name(start_id)
}

/// Which file in a folder the socket is.
type FileId = (u64, u64);

/// What is bound.
#[derive(Debug)]
struct Bound {
    socket: OwnedFd,
    /// None: an earlier process bound it, and its name is looked at instead.
    file: Option<FileId>,
}

/// What is told of a socket that is bound, and of none that is given again.
#[derive(Debug, Clone, Copy)]
pub enum Binding<'a> {
    /// What has its name goes now.
    Begins,
    Done(&'a OwnedFd),
}

/// A socket, with the copy that is kept.
#[derive(Debug)]
pub struct AgentSocket {
    /// Below the root directory, and the socket in it.
    folder: &'static str,
    name: &'static str,
    /// Those who register put sockets of their own there, all of which go when it is bound anew.
    clears: bool,
    kept: Mutex<Option<Bound>>,
}

impl AgentSocket {
    const fn new(folder: &'static str, name: &'static str, clears: bool) -> Self {
        AgentSocket { folder, name, clears, kept: Mutex::new(None) }
    }

    /// Where device plugins register.
    pub const fn device_plugins() -> Self {
        Self::new("device-plugins", "kubelet.sock", true)
    }

    /// Where monitoring agents ask who has which devices.
    pub const fn pod_resources() -> Self {
        Self::new("pod-resources", "kubelet.sock", false)
    }

    /// Where agents ask which pods there are.
    pub const fn pods_api() -> Self {
        Self::new("pods-api", "pods-api.sock", false)
    }

    /// The socket that an earlier process bound.
    pub fn adopt(&self, socket: OwnedFd) {
        *self.kept.lock() = Some(Bound { socket, file: None });
    }

    /// A copy of the listening socket. One that was bound before is given again, as long as its file is there.
    /// `named`: the root directory in the name by which clients find the socket. `tell` hears of a new one.
    ///
    /// # Errors
    /// Its folder is not root's alone, or the kernel refuses.
    pub fn take(&self, root_dir: &Path, named: &Path, tell: impl Fn(Binding<'_>)) -> Result<OwnedFd, AgentSocketError> {
        let mut kept = self.kept.lock();
        let folder = folder(root_dir, self.folder)?;
        let path = named.join(self.folder).join(self.name);
        let there = socket_file(folder.as_fd(), self.name)?;
        let is_bound = |bound: &Bound| match bound.file {
            Some(file) => there == Some(file),
            None => there.is_some() && listens_on(&bound.socket, &path),
        };
        let bound = match kept.take().filter(is_bound) {
            Some(bound) => Bound { file: there, ..bound },
            None => {
                tell(Binding::Begins);
                if self.clears {
                    clear(folder.as_fd(), &named.join(self.folder))?;
                }
                let bound = bind(folder.as_fd(), self.name, &path)?;
                tell(Binding::Done(&bound.socket));
                bound
            }
        };
        let copy = bound.socket.try_clone().map_err(|source| AgentSocketError::Kernel { path, source })?;
        *kept = Some(bound);
        Ok(copy)
    }
}

/// The folder, made where it is missing: root's, as the one above it, and nobody else may write in them.
fn folder(root_dir: &Path, name: &str) -> Result<OwnedFd, OpenError> {
    let root = open::base_dir(root_dir)?;
    let folder = open::create_dirs_beneath(root.as_fd(), name, FOLDER_MODE)?;
    let path = root_dir.join(name);
    for (fd, component) in [(&root, root_dir), (&folder, path.as_path())] {
        let stat = rustix::fs::fstat(fd).map_err(|errno| io_error("examine", component, errno))?;
        let why = match stat {
            _ if stat.st_uid != 0 => "does not belong to root",
            _ if open::others_may_write(&stat) => "may be written by others than root",
            _ => continue,
        };
        return Err(OpenError::Untrusted { path: path.clone(), component: component.to_owned(), why });
    }
    Ok(folder)
}

/// Which file the name is; None: there is none, or it is no socket.
fn socket_file(folder: BorrowedFd<'_>, name: &str) -> Result<Option<FileId>, OpenError> {
    let stat = open::lstat_at(folder, name)?;
    let stat = stat.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
    Ok(stat.map(|stat| (stat.st_dev, stat.st_ino)))
}

/// It listens, and was bound under that name.
fn listens_on(socket: &OwnedFd, path: &Path) -> bool {
    let name = rustix::net::getsockname(socket).ok().and_then(|name| SocketAddrUnix::try_from(name).ok());
    rustix::net::sockopt::socket_acceptconn(socket).unwrap_or(false)
        && name.is_some_and(|name| name.path_bytes() == Some(path.as_os_str().as_encoded_bytes()))
}

/// Sockets go, everything else stays (upstream `pkg/kubelet/cm/devicemanager/manager.go`, CleanupPluginDirectory).
/// No file `DEPRECATION` is made: a plugin that finds one there does not register (`plugin/v1beta1/stub.go`, Register).
fn clear(folder: BorrowedFd<'_>, path: &Path) -> Result<(), OpenError> {
    for entry in Dir::read_from(folder).map_err(|errno| io_error("read", path, errno))? {
        let entry = entry.map_err(|errno| io_error("read", path, errno))?;
        let name = entry.file_name();
        let Ok(stat) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Socket {
            rustix::fs::unlinkat(folder, name, AtFlags::empty())
                .map_err(|errno| io_error("remove a socket in", path, errno))?;
        }
    }
    Ok(())
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
    Ok(Bound { socket: listener.into(), file: Some(file) })
}

fn io_error(doing: &'static str, path: &Path, errno: Errno) -> OpenError {
    OpenError::Io { doing, path: PathBuf::from(path), source: errno.into() }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn inode(path: &Path) -> FileId {
        socket_file(open::base_dir(path.parent().unwrap()).unwrap().as_fd(), "kubelet.sock").unwrap().unwrap()
    }

    #[test]
    fn one_socket_as_long_as_its_file_is_there() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("pod-resources/kubelet.sock");
        let socket = AgentSocket::pod_resources();
        let take = || socket.take(root.path(), root.path(), |_| ());
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
        other.take(root.path(), root.path(), |_| ()).unwrap();
        let _client = UnixStream::connect(&path).unwrap();
        assert!(anew.accept().is_err());
    }

    #[test]
    fn a_kept_socket_is_taken_up_in_the_start_of_the_kubelet_that_bound_it() {
        for (bound_in, now, taken_up) in [
            ("a", "a", true),
            ("a", "b", false),
            ("a", "ab", false),
            ("ab", "a", false),
            ("", "a", false),
            ("a", "", false),
            // A launcher that names no start: nothing says that there was another one.
            ("", "", true),
        ] {
            let name = kept_name(bound_in);
            assert!(name.starts_with(KEPT_DEVICE_PLUGINS));
            assert_eq!(is_taken_up(&name, now), taken_up, "{bound_in:?}, {now:?}");
        }
        assert!(!is_taken_up(KEPT_DEVICE_PLUGINS, "a") && !is_taken_up(KEPT_DEVICE_PLUGINS, ""));
        // As the kernel makes them: what the launcher takes for a name.
        let name = kept_name("0f6b2c9e-53a1-4c39-9d7e-2a51b8f0c4d3");
        assert!(name.len() <= 64 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{name}");
    }

    /// A copy is with the supervisor too, so that neither restart binds anew; and all sockets go where it is.
    #[test]
    fn plugins_socket_is_kept_over_restarts_and_theirs_go_with_a_new_one() {
        let root = tempfile::tempdir().unwrap();
        if !rustix::process::getuid().is_root() {
            return;
        }
        let folder = root.path().join("device-plugins");
        std::fs::create_dir(&folder).unwrap();
        let (plugin, socket) = (folder.join("plugin.sock"), folder.join("kubelet.sock"));
        std::fs::write(folder.join("kubelet_internal_checkpoint"), "{}").unwrap();
        let _old = UnixListener::bind(&plugin).unwrap();
        let kept = Cell::new(0);
        let take = |of: &AgentSocket| {
            of.take(root.path(), root.path(), |bind| kept.set(kept.get() + u32::from(matches!(bind, Binding::Done(_)))))
        };
        let own = AgentSocket::device_plugins();
        let first = take(&own).unwrap();
        let left = |folder: &Path| {
            let names =
                std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.collect::<std::collections::BTreeSet<_>>()
        };
        let expected = ["kubelet.sock", "kubelet_internal_checkpoint"].map(String::from);
        assert_eq!(left(&folder), expected.into(), "a file more could keep plugins from registering");
        // syncd alone: the same one, and nothing is deleted.
        let _new = UnixListener::bind(&plugin).unwrap();
        let again = UnixListener::from(take(&own).unwrap());
        UnixStream::connect(&socket).unwrap();
        assert!(again.accept().is_ok() && plugin.exists() && kept.get() == 1);
        // volnetd alone: what was kept, if it is that socket.
        let successor = AgentSocket::device_plugins();
        successor.adopt(first.try_clone().unwrap());
        take(&successor).unwrap();
        take(&successor).unwrap();
        assert!(plugin.exists() && kept.get() == 1);
        let mistaken = AgentSocket::pod_resources();
        mistaken.adopt(first);
        take(&mistaken).unwrap();
        assert_eq!(kept.get(), 2);
        // Somebody has removed it: plugins look for a new one.
        std::fs::remove_file(&socket).unwrap();
        take(&successor).unwrap();
        assert!(socket.exists() && !plugin.exists() && kept.get() == 3);
    }

    #[test]
    fn what_is_refused() {
        let root = tempfile::tempdir().unwrap();
        for socket in [AgentSocket::pod_resources(), AgentSocket::device_plugins()] {
            let take = || socket.take(root.path(), root.path(), |_| ());
            let folder = root.path().join(socket.folder);
            std::fs::create_dir(&folder).unwrap();
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
            let writable = take();
            assert!(matches!(writable, Err(AgentSocketError::Open(OpenError::Untrusted { .. }))), "{writable:?}");
            std::fs::remove_dir(&folder).unwrap();
            std::fs::create_dir(root.path().join("elsewhere")).unwrap();
            std::os::unix::fs::symlink("elsewhere", &folder).unwrap();
            assert!(take().is_err(), "a link");
            std::fs::remove_file(&folder).unwrap();
            std::fs::create_dir_all(folder.join("kubelet.sock/in-the-way")).unwrap();
            assert!(take().is_err());
            std::fs::remove_dir(root.path().join("elsewhere")).unwrap();
        }
        let own = AgentSocket::pod_resources();
        std::fs::remove_dir_all(root.path().join("pod-resources")).unwrap();
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(own.take(root.path(), root.path(), |_| ()).is_err(), "the folder above is anybody's");
    }
}
