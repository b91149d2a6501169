//! The one inotify instance. The kernel allows 128 for each user, and all of root's processes share them.

use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// A watch of this instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId(i32);

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// None: events were lost, anything may have happened anywhere.
    pub watch: Option<WatchId>,
    pub change: Change,
    /// Name inside the watched directory; empty when it is about the directory itself.
    pub name: OsString,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Made or moved here.
    Added,
    /// Written and closed, or its attributes (owner, mode) changed.
    Modified,
    /// Removed or moved away.
    Removed,
    /// The watched directory itself is gone or elsewhere: the watch is of no use any more.
    SelfGone,
    /// The queue overflowed.
    Overflow,
}

/// Non-blocking; readable when there are events.
#[derive(Debug)]
pub struct Inotify {
    fd: OwnedFd,
}

impl Inotify {
    pub fn new() -> io::Result<Self> {
        Ok(Inotify { fd: rustix::fs::inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)? })
    }

    /// Watches a directory's entries, and the directory for going away. A second watch of the same directory is the
    /// same watch.
    pub fn watch_dir(&self, path: &Path) -> io::Result<WatchId> {
        let flags = WatchFlags::CREATE
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        Ok(WatchId(rustix::fs::inotify::add_watch(&self.fd, path, flags)?))
    }

    /// Forgets a watch; one that is gone already is fine.
    pub fn unwatch(&self, watch: WatchId) {
        let _ = rustix::fs::inotify::remove_watch(&self.fd, watch.0);
    }

    /// Takes what is there, at most a buffer full (some 60 events or more); empty when there is nothing.
    pub fn read(&self) -> io::Result<Vec<Event>> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.fd, &mut buffer);
        let mut events = Vec::new();
        loop {
            if !events.is_empty() && reader.is_buffer_empty() {
                return Ok(events);
            }
            match reader.next() {
                Ok(event) => {
                    if let Some(change) = change(event.events()) {
                        events.push(Event {
                            watch: (event.wd() >= 0).then_some(WatchId(event.wd())),
                            change,
                            name: OsString::from_vec(
                                event.file_name().map(|n| n.to_bytes().to_vec()).unwrap_or_default(),
                            ),
                        });
                    }
                }
                Err(Errno::WOULDBLOCK) => return Ok(events),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

fn change(flags: ReadFlags) -> Option<Change> {
    if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
        Some(Change::Overflow)
    } else if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT) {
        Some(Change::SelfGone)
    } else if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        Some(Change::Added)
    } else if flags.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
        Some(Change::Removed)
    } else if flags.intersects(ReadFlags::CLOSE_WRITE | ReadFlags::ATTRIB) {
        Some(Change::Modified)
    } else {
        // IGNORED: the end of a watch, told by SelfGone or asked for by us.
        None
    }
}

impl AsFd for Inotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Inotify {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let inotify = Inotify::new().unwrap();
        let watch = inotify.watch_dir(dir.path()).unwrap();
        assert_eq!(inotify.read().unwrap(), []);
        std::fs::write(dir.path().join("a"), "x").unwrap();
        std::fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        std::fs::remove_file(dir.path().join("b")).unwrap();
        let events = inotify.read().unwrap();
        let short: Vec<_> = events.iter().map(|e| (e.change, e.name.to_str().unwrap())).collect();
        use Change::*;
        assert_eq!(short, [(Added, "a"), (Modified, "a"), (Removed, "a"), (Added, "b"), (Removed, "b")]);
        assert!(events.iter().all(|e| e.watch == Some(watch)));
        drop(dir);
        assert!(inotify.read().unwrap().iter().any(|e| e.change == SelfGone));
        inotify.unwatch(watch);
    }
}
