//! Connections to plugins (decision 64): which paths are sockets that root alone can have put there.
//!
//! Where a plugin's socket lies is the plugin's own word, and the other end of a connection sees root. So the path is below the
//! root directory, no component of it is a link, nobody but root may write in a folder on the way, and the socket is root's. A
//! volume of a pod is no place for one.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_ipc::volnetd::PluginSocket;
use bulkhead_sys::mountinfo::MountInfo;
use bulkhead_sys::open::{self, OpenError};
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::BrokerError;
use crate::node::{Node, Settings};
use crate::validate::{self, InvalidRequest};

/// File systems of the machine's own disks and memory: they answer. A plugin's folder may be a mount of one of them.
const OWN: [&str; 10] = ["ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "tmpfs", "overlay"];

/// A connection; nobody waits for it.
pub fn connect(node: &Node, socket: &PluginSocket) -> Result<OwnedFd, BrokerError> {
    let relative = relative(&node.settings, socket)?;
    let root_dir = &node.settings.paths.root_dir;
    let root = open::base_dir(root_dir)?;
    let handle = resolve(root, root_dir, &relative)?;
    open::connect_to(&handle, &root_dir.join(relative)).map_err(|error| match error.errno() {
        Some(Errno::CONNREFUSED) => BrokerError::NobodyListens(error),
        _ => error.into(),
    })
}

/// The path below the root directory.
fn relative(settings: &Settings, socket: &PluginSocket) -> Result<PathBuf, InvalidRequest> {
    let (field, text) = match (socket.registration.as_str(), socket.endpoint.as_str()) {
        (registration, "") => {
            let good = validate::relative_path(registration).map(|path| Path::new("plugins_registry").join(path));
            return good.map_err(|_| {
                validate::bad("registration", registration, "a relative path without empty, '.' or '..' components")
            });
        }
        ("", endpoint) => ("endpoint", endpoint),
        (_, endpoint) => return Err(validate::bad("endpoint", endpoint, "nothing, where registration is set")),
    };
    let places = [&settings.named_root_dir, &settings.paths.root_dir];
    let below = places.iter().find_map(|root| Path::new(text).strip_prefix(root).ok());
    // Slashes that are doubled or at the end, and ".", are what Go's paths are cleaned of. ".." is nobody's honest word.
    let components: Option<PathBuf> = below.and_then(|below| {
        below.components().map(|part| matches!(part, std::path::Component::Normal(_)).then_some(part)).collect()
    });
    match components {
        Some(path)
            if text.len() <= 4096 && !text.contains('\0') && path.iter().count() > 0 && !path.starts_with("pods") =>
        {
            Ok(path)
        }
        _ => Err(validate::bad(
            field,
            text,
            "an absolute path without '..' below the root directory, and not below its pods",
        )),
    }
}

/// A handle of the socket.
fn resolve(root: OwnedFd, root_dir: &Path, relative: &Path) -> Result<OwnedFd, OpenError> {
    let whole = root_dir.join(relative);
    let untrusted =
        |component: &Path, why| OpenError::Untrusted { path: whole.clone(), component: component.to_owned(), why };
    let (mut here, mut path) = (root, root_dir.to_owned());
    for name in relative {
        let stat = rustix::fs::fstat(&here).map_err(|errno| io_error("examine", &path, errno))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {}
            FileType::Symlink => return Err(untrusted(&path, "is a link")),
            _ => return Err(io_error("go through", &path, Errno::NOTDIR)),
        }
        if stat.st_uid != 0 {
            return Err(untrusted(&path, "does not belong to root"));
        }
        if open::others_may_write(&stat) {
            return Err(untrusted(&path, "may be written by others than root"));
        }
        path.push(name);
        let flags = OFlags::PATH | OFlags::NOFOLLOW;
        here = match open::beneath_same_mount(here.as_fd(), name, flags) {
            Err(error) if error.errno() == Some(Errno::XDEV) => {
                if !is_own(&path) {
                    return Err(untrusted(&path, "is a file system that may not answer"));
                }
                open::beneath(here.as_fd(), name, flags, 0)?
            }
            other => other.map_err(|error| named(error, &path))?,
        };
    }
    let stat = rustix::fs::fstat(&here).map_err(|errno| io_error("examine", &path, errno))?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        return Err(untrusted(&path, "is a link"));
    }
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(OpenError::WrongType { path, wanted: "a socket" });
    }
    if stat.st_uid != 0 {
        return Err(untrusted(&path, "does not belong to root"));
    }
    Ok(here)
}

/// Whether the mount at this path is of a file system that answers.
fn is_own(path: &Path) -> bool {
    let mut mounts = MountInfo::new();
    // The last one of a path is on top.
    match mounts.read() {
        Ok(all) => {
            all.filter(|mount| mount.mount_point == path).last().is_some_and(|mount| OWN.contains(&&*mount.fs_type))
        }
        Err(error) => {
            tracing::warn!(%error, "failed to read mounts");
            false
        }
    }
}

fn io_error(doing: &'static str, path: &Path, errno: Errno) -> OpenError {
    OpenError::Io { doing, path: path.to_owned(), source: errno.into() }
}

/// With the whole path, and a link told as what it is.
fn named(error: OpenError, path: &Path) -> OpenError {
    match error.errno() {
        Some(errno) => io_error("open", path, errno),
        None => error,
    }
}
