//! `--lock-file` and `--exit-on-lock-contention`: one process at a time, and the old one makes way for the new.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::inotify;
use rustix::process::{Signal, getpid, kill_process};

/// The lock was not had, or cannot be watched.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} the lock file {path:?} of --lock-file")]
pub struct LockError {
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Held for the life of the process; no child inherits it.
#[derive(Debug)]
pub struct LockFile {
    _file: File,
}

/// Takes the lock and waits for it if it must (upstream `pkg/util/flock`). With `make_way`, this process is told to
/// stop (SIGTERM) as soon as somebody opens or deletes the file.
pub fn acquire(path: &Path, make_way: bool) -> Result<LockFile, LockError> {
    let file = lock(path, None)?;
    if make_way {
        watch(path).map_err(|source| LockError { doing: "watch", path: path.to_owned(), source })?;
    }
    Ok(LockFile { _file: file })
}

/// The locked file. `earlier` is what an earlier start of this node left open: as long as it is the file at `path`, the
/// lock is ours already.
pub fn lock(path: &Path, earlier: Option<File>) -> Result<File, LockError> {
    let failed = |doing| move |source| LockError { doing, path: path.to_owned(), source };
    if let Some(file) = earlier.filter(|file| is_at(file, path)) {
        file.lock().map_err(failed("lock"))?;
        return Ok(file);
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(failed("open"))?;
    file.lock().map_err(failed("lock"))?;
    Ok(file)
}

fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let (Ok(ours), Ok(there)) = (file.metadata(), std::fs::metadata(path)) else { return false };
    (ours.dev(), ours.ino()) == (there.dev(), there.ino())
}

fn watch(path: &Path) -> io::Result<()> {
    let notifier = inotify::init(inotify::CreateFlags::CLOEXEC)?;
    inotify::add_watch(&notifier, path, inotify::WatchFlags::OPEN | inotify::WatchFlags::DELETE_SELF)?;
    // A thread, because everything else here waits in a runtime that starts later. It gives up all capabilities first:
    // they belong to each thread, and those that the main thread drops would live on here.
    std::thread::Builder::new().name("lock-file".into()).spawn(move || {
        if let Err(error) = bulkhead_sys::process::keep_only(&[]) {
            tracing::error!(error = &error as &dyn std::error::Error, "the lock file is not watched");
            return;
        }
        wait_for_contention(&notifier);
        tracing::info!("somebody else wants the lock file, stopping");
        if let Err(error) = kill_process(getpid(), Signal::TERM) {
            tracing::error!(%error, "could not stop for the lock file");
        }
    })?;
    Ok(())
}

fn wait_for_contention(notifier: &OwnedFd) {
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut reader = inotify::Reader::new(notifier, &mut buffer);
    loop {
        match reader.next() {
            Err(rustix::io::Errno::INTR) => {}
            // An error ends the watch, and with it the promise: better to make way.
            Ok(_) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let held = acquire(&path, false).unwrap();
        let second = File::open(&path).unwrap();
        assert!(matches!(second.try_lock(), Err(std::fs::TryLockError::WouldBlock)));
        drop(held);
        second.try_lock().unwrap();
        // What an earlier start left is used while it is that file, and not when the path was given to another.
        assert!(is_at(&lock(&path, Some(second.try_clone().unwrap())).unwrap(), &path));
        std::fs::rename(&path, folder.path().join("old")).unwrap();
        assert!(is_at(&lock(&path, Some(second)).unwrap(), &path));
        let missing = acquire(&folder.path().join("no/lock"), false).unwrap_err();
        assert!(missing.to_string().contains("--lock-file"));
    }
}
