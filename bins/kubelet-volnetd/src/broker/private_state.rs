//! A process's own state folder, `<root-dir>/bulkhead/<process>/`, 0700 and its own.
//!
//! It is handed over open because its parents are root's. The uid of a process may change between two starts of the
//! node (the block of ids is claimed anew): then the folder and the files in it are given to the new uid.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use bulkhead_ipc::broker::Caller;
use bulkhead_sys::{open, tree};
use rustix::fs::{AtFlags, FileType, Gid, Mode, Uid};

use super::BrokerError;
use crate::node::Node;
use crate::validate;

/// A process keeps a handful of files.
const MAX_ENTRIES: usize = 10_000;

pub fn open(node: &Node, caller: Caller) -> Result<OwnedFd, BrokerError> {
    let Some(process) = caller.role.process() else {
        return Err(validate::bad("caller", caller.role.as_str(), "one of the daemons").into());
    };
    let path = node.settings.paths.private_state(process);
    let error = |errno: rustix::io::Errno| BrokerError::PrivateState { path: path.clone(), source: errno.into() };
    let root = open::base_dir(&node.settings.paths.root_dir)?;
    let parent = open::create_dirs_beneath(root.as_fd(), "bulkhead", 0o711)?;
    let dir = open::create_dirs_beneath(parent.as_fd(), Path::new(process.short()), 0o700)?;
    let stat = rustix::fs::fstat(&dir).map_err(error)?;
    if stat.st_uid != caller.uid || stat.st_mode & 0o7777 != 0o700 {
        let owner = (Some(Uid::from_raw(caller.uid)), Some(Gid::from_raw(caller.uid)));
        // While the files change hands the folder is root's, so that nobody puts something else in their place.
        rustix::fs::fchown(&dir, Some(Uid::ROOT), Some(Gid::ROOT)).map_err(error)?;
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(0o700)).map_err(error)?;
        for entry in tree::list(dir.as_fd(), MAX_ENTRIES)
            .map_err(|source| BrokerError::PrivateState { path: path.clone(), source })?
        {
            let name = entry.name.as_os_str();
            let stat = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW).map_err(error)?;
            // A hard link could be somebody else's file.
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_nlink == 1 {
                rustix::fs::chownat(&dir, name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW).map_err(error)?;
            }
        }
        rustix::fs::fchown(&dir, owner.0, owner.1).map_err(error)?;
    }
    Ok(dir)
}
