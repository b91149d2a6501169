//! Whether another kubelet has had the node since our socket of the pod resources API was bound: each kubelet binds its own at its start
//! and leaves it behind (upstream `pkg/kubelet/server/server.go`, ListenAndServePodResources). What was written down of pods is of the
//! time before then. This process forgets what it knew of volumes, and tells those of the others that decide by such files
//! ([`ANOTHER_KUBELET`] in their folders).
//!
//! The socket is known by its mtime, which is when it was made: nothing that is done to a socket later sets that. Its ctime changes with
//! an owner or a label, and the number of an inode is given out again at once. Where there is no socket somebody has removed it, and
//! that was no kubelet. Restarts of ours bind nothing, or note what they bind.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use bulkhead_daemon::ANOTHER_KUBELET;
use bulkhead_sys::open;
use bulkhead_types::{InstancePaths, Process, chain};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::journal;

/// The file in this process's folder with the mtime of the socket that was bound here last.
const NOTED: &str = "pod-resources-socket";
/// Below the root directory.
const FOLDER: &str = "pod-resources";
const SOCKET: &str = "kubelet.sock";
/// Those whose files say what is to be done with pods.
const TOLD: [Process; 2] = [Process::Syncd, Process::Evictiond];

/// Both are there, and they are two.
fn is_another(noted: Option<&str>, there: Option<&str>) -> bool {
    noted.zip(there).is_some_and(|(noted, there)| noted != there)
}

/// What a look has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Looked {
    /// There was no other kubelet, or everybody knows of it.
    Done,
    /// Somebody may not know of it: what is noted stays as it is, so that no socket that is bound now is the one that was noted, and
    /// the next start finds another kubelet out again.
    Failed,
}

/// Looks once, before anything that was kept is relied upon. `forget` drops what this process itself has kept. A failure is logged:
/// it keeps no node from coming up.
pub fn look(paths: &InstancePaths, state: BorrowedFd<'_>, forget: impl FnOnce() -> io::Result<()>) -> Looked {
    let mut come_to = Looked::Failed;
    let looked = noted(state).and_then(|noted| {
        let there = made(&paths.root_dir)?;
        if !is_another(noted.as_deref(), there.as_deref()) {
            come_to = Looked::Done;
            return Ok(());
        }
        tracing::info!("another kubelet has had the node: what was kept of its pods before is outdated");
        forget()?;
        for process in TOLD {
            tell(paths, process)?;
        }
        come_to = Looked::Done;
        // Last: where this start comes to an end before, the next one finds it out again.
        journal::replace(state, Path::new(NOTED), there.unwrap_or_default().as_bytes(), 0o600)
    });
    if let Err(error) = looked {
        tracing::warn!(error = chain(&error), "failed to find out whether another kubelet has had the node");
    }
    come_to
}

/// The socket is about to be bound: whoever ends before [`bound`] leaves none that is known.
pub fn binding(state: BorrowedFd<'_>, looked: Looked) {
    if looked == Looked::Failed {
        return;
    }
    let removed = match rustix::fs::unlinkat(state, NOTED, AtFlags::empty()) {
        Err(errno) if errno != Errno::NOENT => Err(errno),
        _ => rustix::fs::fsync(state),
    };
    if let Err(errno) = removed {
        tracing::warn!(error = %io::Error::from(errno), "failed to forget the socket that was bound before");
    }
}

/// It is bound.
pub fn bound(root_dir: &Path, state: BorrowedFd<'_>, looked: Looked) {
    if looked == Looked::Failed {
        return;
    }
    let noted = made(root_dir).and_then(|made| match made {
        Some(made) => journal::replace(state, Path::new(NOTED), made.as_bytes(), 0o600),
        None => Ok(()),
    });
    if let Err(error) = noted {
        tracing::warn!(
            error = chain(&error),
            "failed to note the socket that was bound: another kubelet after this one is not noticed"
        );
    }
}

/// When the socket that is there was made. That it is there is on the disk on return, as what is noted of it will be.
fn made(root_dir: &Path) -> io::Result<Option<String>> {
    let root = open::base_dir(root_dir).map_err(io::Error::other)?;
    let folder = match open::dir_beneath(root.as_fd(), FOLDER) {
        Ok(folder) => folder,
        Err(error) if error.errno() == Some(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(io::Error::other(error)),
    };
    let stat = open::lstat_at(folder.as_fd(), SOCKET).map_err(io::Error::other)?;
    let socket = stat.filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
    rustix::fs::fsync(&folder)?;
    Ok(socket.map(|stat| format!("{}.{:09}", stat.st_mtime, stat.st_mtime_nsec)))
}

fn noted(state: BorrowedFd<'_>) -> io::Result<Option<String>> {
    use std::io::Read as _;
    let file = match open::regular_beneath(state, NOTED) {
        Ok(file) => std::fs::File::from(file),
        Err(error) if error.errno() == Some(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(io::Error::other(error)),
    };
    let mut text = Vec::new();
    file.take(256).read_to_end(&mut text)?;
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

/// The folder is the process's own, which may put there what it likes: nothing is opened that is there.
fn tell(paths: &InstancePaths, process: Process) -> io::Result<()> {
    let folder = match open::base_dir(&paths.private_state(process)) {
        Ok(folder) => folder,
        // It has kept nothing.
        Err(error) if error.errno() == Some(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(io::Error::other(error)),
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&folder, ANOTHER_KUBELET, flags, Mode::RUSR | Mode::WUSR) {
        Ok(_) | Err(Errno::EXIST) => Ok(rustix::fs::fsync(&folder)?),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn only_a_socket_that_is_there_and_is_not_the_one_that_was_noted_is_anothers() {
        for (noted, there, another) in [
            (None, None, false),
            (None, Some("1.5"), false),
            (Some("1.5"), None, false),
            (Some("1.5"), Some("1.5"), false),
            (Some("1.5"), Some("1.6"), true),
            (Some(""), Some("1.6"), true),
        ] {
            assert_eq!(is_another(noted, there), another, "{noted:?} {there:?}");
        }
    }

    struct Root {
        dir: tempfile::TempDir,
        paths: InstancePaths,
        state: OwnedFd,
        /// By which sockets are made: two of one tick of the kernel's would not differ.
        clock: Cell<i64>,
    }

    impl Root {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root_dir = dir.path().to_owned();
            let paths = InstancePaths { root_dir, run_dir: PathBuf::new(), pod_logs_dir: PathBuf::new() };
            for folder in ["pod-resources", "bulkhead/volnetd", "bulkhead/syncd"] {
                std::fs::create_dir_all(dir.path().join(folder)).unwrap();
            }
            let state = open::base_dir(&paths.private_state(Process::Volnetd)).unwrap();
            Root { dir, paths, state, clock: Cell::new(1) }
        }

        fn socket(&self) -> PathBuf {
            self.dir.path().join("pod-resources/kubelet.sock")
        }

        fn bind(&self) {
            let _ = std::fs::remove_file(self.socket());
            drop(UnixListener::bind(self.socket()).unwrap());
            self.clock.set(self.clock.get() + 1);
            let time = rustix::fs::Timespec { tv_sec: self.clock.get(), tv_nsec: 7 };
            let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(rustix::fs::CWD, self.socket(), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }

        fn bind_ours(&self) {
            self.bind_after(Looked::Done);
        }

        fn bind_after(&self, looked: Looked) {
            binding(self.state.as_fd(), looked);
            self.bind();
            bound(self.dir.path(), self.state.as_fd(), looked);
        }

        /// What a start finds: whether volumes were forgotten, and kubelet-syncd told.
        fn start(&self) -> (bool, bool) {
            let forgotten = Cell::new(false);
            let looked = look(&self.paths, self.state.as_fd(), || {
                forgotten.set(true);
                Ok(())
            });
            assert_eq!(looked, Looked::Done);
            let told = self.dir.path().join("bulkhead/syncd").join(ANOTHER_KUBELET);
            (forgotten.get(), std::fs::remove_file(told).is_ok())
        }
    }

    #[test]
    fn starts_of_our_own_are_none_of_anothers() {
        let root = Root::new();
        assert_eq!(root.start(), (false, false), "the first");
        root.bind_ours();
        assert_eq!(root.start(), (false, false));
        std::fs::set_permissions(root.socket(), std::fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(root.start(), (false, false), "its mode is another one");
        root.bind_ours();
        assert_eq!(root.start(), (false, false), "it was removed, or the whole agent began anew");
        std::fs::remove_file(root.socket()).unwrap();
        assert_eq!(root.start(), (false, false), "somebody has removed it");
        root.bind_ours();
        binding(root.state.as_fd(), Looked::Done);
        root.bind();
        assert_eq!(root.start(), (false, false), "killed between the bind and its note");
        std::fs::remove_dir_all(root.dir.path().join("pod-resources")).unwrap();
        assert_eq!(root.start(), (false, false));
    }

    #[test]
    fn anothers_is_found_out_once_and_not_before_everybody_was_told() {
        let root = Root::new();
        root.bind_ours();
        root.bind();
        let fail = || look(&root.paths, root.state.as_fd(), || Err(Errno::NOSPC.into()));
        assert_eq!(fail(), Looked::Failed);
        assert_eq!(root.start(), (true, true), "the try before has come to nothing");
        assert_eq!(root.start(), (false, false));
        // The socket is bound all the same, and again where the whole agent begins anew.
        root.bind();
        for _ in 0..2 {
            root.bind_after(fail());
        }
        assert_eq!(root.start(), (true, true), "ours is not taken for the one that was noted");
        assert_eq!(root.start(), (false, false), "killed before ours was bound");
        root.bind_ours();
        assert_eq!(root.start(), (false, false));
        // Nothing is opened that stands in the place of the word.
        root.bind();
        let word = root.dir.path().join("bulkhead/syncd").join(ANOTHER_KUBELET);
        std::os::unix::fs::symlink("/nowhere", &word).unwrap();
        assert_eq!(root.start(), (true, true));
        // Who has no folder has kept nothing.
        std::fs::remove_dir(root.dir.path().join("bulkhead/syncd")).unwrap();
        root.bind();
        assert_eq!(root.start(), (true, false));
        assert_eq!(root.start(), (false, false));
    }
}
