//! A process's private state: a folder that only it may enter, locked for as long as the process lives.
//!
//! The folder lies below the root directory, which an unprivileged daemon cannot traverse: it is handed over as an open
//! descriptor, and everything here is relative to that.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};

/// Why private state could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("state folder is held by another instance of this process")]
    Locked,
    #[error("failed to lock the state folder")]
    Lock(#[source] std::io::Error),
    #[error("failed to read state file {name:?}")]
    Read { name: String, source: std::io::Error },
    #[error("failed to write state file {name:?}")]
    Write { name: String, source: std::io::Error },
}

/// The file that kubelet-volnetd puts into state folders when it finds that another kubelet has had the node: what the folder's files
/// say of pods is of the time before. Who has nothing there that would be acted upon is not told.
pub const ANOTHER_KUBELET: &str = "another-kubelet";

/// An open, locked state folder.
#[derive(Debug)]
pub struct StateDir {
    dir: File,
}

/// A larger state file is neither read whole nor written: nothing that we keep is to come near, so it is damage.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

impl StateDir {
    /// Takes the lock for the life of the descriptor.
    ///
    /// # Errors
    /// [`StateError::Locked`] while another process holds it.
    pub fn lock(dir: OwnedFd) -> Result<Self, StateError> {
        match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(StateDir { dir: dir.into() }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(StateError::Locked),
            Err(error) => Err(StateError::Lock(error.into())),
        }
    }

    /// The file's content, or `None` when there is none.
    pub fn read(&self, name: &str) -> Result<Option<Vec<u8>>, StateError> {
        use std::io::Read as _;
        let failed = |source| StateError::Read { name: name.to_owned(), source };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = match rustix::fs::openat(&self.dir, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error.into())),
        };
        let mut content = Vec::new();
        file.take(MAX_FILE_BYTES).read_to_end(&mut content).map_err(failed)?;
        Ok(Some(content))
    }

    /// Replaces the file: temporary file, fsync, rename, fsync of the folder. After a crash the old or the new content
    /// is there, never a mixture. A failure leaves the one before, but for that of the last step, after which it may be either.
    ///
    /// # Errors
    /// Of the disk; or the content is larger than what is read again (64 MiB), and the next start would find it cut off.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), StateError> {
        let failed = |source| StateError::Write { name: name.to_owned(), source };
        if u64::try_from(content.len()).is_ok_and(|bytes| bytes > MAX_FILE_BYTES) {
            let problem = format!("it would have {} bytes, of which {MAX_FILE_BYTES} are read again", content.len());
            return Err(failed(std::io::Error::new(std::io::ErrorKind::FileTooLarge, problem)));
        }
        let temporary = format!(".{name}.tmp");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file =
            rustix::fs::openat(&self.dir, &temporary, flags, Mode::RUSR | Mode::WUSR).map_err(|e| failed(e.into()))?;
        let mut file = File::from(file);
        file.write_all(content).and_then(|()| file.sync_all()).map_err(failed)?;
        rustix::fs::renameat(&self.dir, &temporary, &self.dir, name).map_err(|e| failed(e.into()))?;
        self.dir.sync_all().map_err(failed)
    }

    /// Removes the file; a missing one is fine.
    pub fn remove(&self, name: &str) -> Result<(), StateError> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(StateError::Write { name: name.to_owned(), source: error.into() }),
        }
    }

    /// Removes `files` where another kubelet has had the node since they were written ([`ANOTHER_KUBELET`]). True: so it was, and it is
    /// said again until [`StateDir::taken_over`].
    ///
    /// # Errors
    /// Of the disk; the next start tries again.
    pub fn drop_outdated(&self, files: &[&str]) -> Result<bool, StateError> {
        match rustix::fs::statat(&self.dir, ANOTHER_KUBELET, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => {}
            Err(rustix::io::Errno::NOENT) => return Ok(false),
            Err(error) => {
                return Err(StateError::Read { name: ANOTHER_KUBELET.to_owned(), source: error.into() });
            }
        }
        for file in files {
            self.remove(file)?;
        }
        Ok(true)
    }

    /// Nothing outdated is left.
    ///
    /// # Errors
    /// Of the disk; the next start drops what is outdated once more.
    pub fn taken_over(&self) -> Result<(), StateError> {
        let failed = |source| StateError::Write { name: ANOTHER_KUBELET.to_owned(), source };
        // What was removed is gone for good before the word is.
        self.dir.sync_all().map_err(failed)?;
        self.remove(ANOTHER_KUBELET)
    }
}

impl AsFd for StateDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_and_whole_files() -> Result<(), Box<dyn std::error::Error>> {
        let temp = tempfile::tempdir()?;
        let open =
            || rustix::fs::open(temp.path(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let state = StateDir::lock(open()?)?;
        assert!(matches!(StateDir::lock(open()?), Err(StateError::Locked)));
        assert_eq!(state.read("a.json")?, None);
        state.write("a.json", b"one")?;
        state.write("a.json", b"two")?;
        assert_eq!(state.read("a.json")?.as_deref(), Some(&b"two"[..]));
        state.remove("a.json")?;
        state.remove("a.json")?;
        assert_eq!(state.read("a.json")?, None);
        drop(state);
        StateDir::lock(open()?)?;
        Ok(())
    }

    #[test]
    fn what_is_outdated_is_dropped_until_the_node_is_taken_over() -> Result<(), Box<dyn std::error::Error>> {
        let temp = tempfile::tempdir()?;
        let state = StateDir::lock(File::open(temp.path())?.into())?;
        let files = || ["a", "b"].map(|name| state.read(name).ok().flatten().is_some());
        let write = || state.write("a", b"").and_then(|()| state.write("b", b""));
        write()?;
        assert!(!state.drop_outdated(&["a"])?);
        assert_eq!(files(), [true, true]);
        std::fs::write(temp.path().join(ANOTHER_KUBELET), "")?;
        for _ in 0..2 {
            assert!(state.drop_outdated(&["a"])?);
            assert_eq!(files(), [false, true]);
            write()?;
        }
        state.taken_over()?;
        assert!(!state.drop_outdated(&["a"])?);
        assert_eq!(files(), [true, true]);
        Ok(())
    }

    #[test]
    fn what_would_be_read_cut_off_is_not_written() -> Result<(), Box<dyn std::error::Error>> {
        let temp = tempfile::tempdir()?;
        let state = StateDir::lock(File::open(temp.path())?.into())?;
        state.write("a.json", b"one")?;
        let large = vec![0; usize::try_from(MAX_FILE_BYTES)? + 1];
        let Err(StateError::Write { source, .. }) = state.write("a.json", &large) else { panic!("it was written") };
        assert_eq!(source.to_string(), "it would have 67108865 bytes, of which 67108864 are read again");
        assert_eq!(state.read("a.json")?.as_deref(), Some(&b"one"[..]));
        Ok(())
    }
}
