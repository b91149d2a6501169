//! Listening sockets for kubelet-syncd in folders that only root may write (docs/decisions/0080-device-plugins.md): bound here once,
//! and passed to each start of it. A copy stays here, and one with the supervisor, so that neither restart binds anew: plugins
//! register again when they see a new socket, and not before.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bulkhead_sys::open::{self, OpenError};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Name of the socket among what the supervisor keeps over restarts.
pub const KEPT_DEVICE_PLUGINS: &str = "device-plugins";
/// Below the root directory.
const FOLDER: &str = "device-plugins";
/// The socket by which plugins register.
const SOCKET: &str = "kubelet.sock";
/// As upstream: an empty file that says that plugins are to use plugins_registry.
const DEPRECATION: &str = "DEPRECATION";
/// Plugins of a whole node that start at once.
const BACKLOG: i32 = 128;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{path} may be written by others than root")]
    Untrusted { path: PathBuf },
    #[error("failed to {doing} {path}")]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
}

/// The copies that stay here.
#[derive(Debug, Default)]
pub struct Listeners {
    device_plugins: Mutex<Option<OwnedFd>>,
}

impl Listeners {
    /// The socket that an earlier start had.
    pub fn adopt(&self, kept: OwnedFd) {
        *self.device_plugins.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
    }

    /// A copy of the socket of device-plugins. Where there is none, or its name is gone, it is bound anew: all sockets in the folder
    /// are deleted before, as plugins expect of a kubelet that starts. `keep` is told of a new one.
    ///
    /// # Errors
    /// See [`ListenerError`].
    pub fn device_plugins(&self, root_dir: &Path, keep: impl FnOnce(&OwnedFd)) -> Result<OwnedFd, ListenerError> {
        let path = root_dir.join(FOLDER).join(SOCKET);
        let mut held = self.device_plugins.lock().unwrap_or_else(PoisonError::into_inner);
        let copy = |fd: &OwnedFd| fd.try_clone().map_err(|source| io("copy", &path, source));
        if let Some(fd) = held.as_ref().filter(|fd| is_of(fd, &path)) {
            return copy(fd);
        }
        let fd = bind(root_dir, &path)?;
        keep(&fd);
        let copied = copy(&fd)?;
        *held = Some(fd);
        Ok(copied)
    }
}

fn io(doing: &'static str, path: &Path, source: impl Into<std::io::Error>) -> ListenerError {
    ListenerError::Io { doing, path: path.to_owned(), source: source.into() }
}

/// It listens under that name, which is there.
fn is_of(fd: &OwnedFd, path: &Path) -> bool {
    let listens = rustix::net::sockopt::socket_acceptconn(fd).unwrap_or(false);
    let name = rustix::net::getsockname(fd).ok().and_then(|name| SocketAddrUnix::try_from(name).ok());
    let named = name.is_some_and(|name| name.path_bytes() == Some(path.as_os_str().as_encoded_bytes()));
    let there = std::fs::symlink_metadata(path)
        .is_ok_and(|found| std::os::unix::fs::FileTypeExt::is_socket(&found.file_type()));
    listens && named && there
}

/// Binds under the real path, which the kernel shows of the socket (/proc/net/unix): the folder is root's alone, so nobody else can
/// put anything in its place.
fn bind(root_dir: &Path, path: &Path) -> Result<OwnedFd, ListenerError> {
    let root = open::base_dir(root_dir)?;
    let folder = open::dir_beneath(root.as_fd(), FOLDER)?;
    for (fd, path) in [(&root, root_dir.to_owned()), (&folder, root_dir.join(FOLDER))] {
        let stat = rustix::fs::fstat(fd).map_err(|errno| io("examine", &path, errno))?;
        if stat.st_uid != 0 || open::others_may_write(&stat) {
            return Err(ListenerError::Untrusted { path });
        }
    }
    delete_sockets(&folder, &root_dir.join(FOLDER))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    if let Err(error) = rustix::fs::openat(&folder, DEPRECATION, flags, Mode::from_raw_mode(0o644)) {
        tracing::warn!(%error, "Failed to create deprecation file at socket dir");
    }
    let made = || -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    let socket = made().map_err(|errno| io("listen on", path, errno))?;
    tracing::info!(path = %path.display(), "device plugins can register");
    Ok(socket)
}

/// Upstream's clean-up: sockets go, everything else stays.
fn delete_sockets(folder: &OwnedFd, path: &Path) -> Result<(), ListenerError> {
    let entries = Dir::read_from(folder).map_err(|errno| io("read", path, errno))?;
    for entry in entries {
        let entry = entry.map_err(|errno| io("read", path, errno))?;
        let name = entry.file_name();
        let Ok(stat) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if FileType::from_raw_mode(stat.st_mode) == FileType::Socket {
            rustix::fs::unlinkat(folder, name, AtFlags::empty())
                .map_err(|errno| io("remove a socket in", path, errno))?;
        }
    }
    Ok(())
}

impl ListenerError {
    /// The error number behind it, for the answer's code.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            ListenerError::Open(error) => error.errno(),
            ListenerError::Untrusted { .. } => Some(Errno::PERM),
            ListenerError::Io { source, .. } => source.raw_os_error().map(Errno::from_raw_os_error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn bound_once_and_anew_where_it_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        if std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(dir.path()).unwrap()) != 0 {
            return;
        }
        let folder = dir.path().join(FOLDER);
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o750)).unwrap();
        let (plugin, socket) = (folder.join("plugin.sock"), folder.join(SOCKET));
        std::fs::write(folder.join("kubelet_internal_checkpoint"), "{}").unwrap();
        let listeners = Listeners::default();
        let _old = UnixListener::bind(&plugin).unwrap();
        let kept = std::cell::Cell::new(0);
        let ask = |listeners: &Listeners| listeners.device_plugins(dir.path(), |_| kept.set(kept.get() + 1)).unwrap();
        let first = ask(&listeners);
        assert!(
            !plugin.exists()
                && folder.join("kubelet_internal_checkpoint").exists()
                && folder.join(DEPRECATION).exists()
        );
        // syncd alone: the same one, and nothing is deleted.
        let _new = UnixListener::bind(&plugin).unwrap();
        let again = ask(&listeners);
        UnixStream::connect(&socket).unwrap();
        assert!(plugin.exists() && kept.get() == 1);
        UnixListener::from(again).accept().unwrap();
        // volnetd alone: what was kept.
        let successor = Listeners::default();
        successor.adopt(first.try_clone().unwrap());
        ask(&successor);
        assert!(plugin.exists() && kept.get() == 1);
        // Somebody has removed it: plugins look for a new one.
        std::fs::remove_file(&socket).unwrap();
        ask(&successor);
        assert!(socket.exists() && !plugin.exists() && kept.get() == 2);
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::remove_file(&socket).unwrap();
        assert!(matches!(listeners.device_plugins(dir.path(), |_| ()), Err(ListenerError::Untrusted { .. })));
    }
}
