//! The one inotify instance. The kernel allows 128 for each user, and all of root's processes share them: there may be
//! none to be had, so one that an earlier start had can be taken up.

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
    /// Its name was removed.
    Removed,
    /// It was moved away, to another name or another directory.
    MovedAway,
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

    /// Takes up an instance that a supervisor kept, without the watches that it had. Events of those may still be read; they
    /// are nobody's.
    ///
    /// # Errors
    /// It is something else, or the kernel does not tell what it watches.
    pub fn adopt(fd: OwnedFd) -> io::Result<Self> {
        let number = fd.as_raw_fd();
        let what = std::fs::read_link(format!("/proc/self/fd/{number}"))?;
        if what.as_os_str() != "anon_inode:inotify" {
            let text = format!("it is {}, no inotify instance", what.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&fd, true)?;
        let inotify = Inotify { fd };
        for watch in watches(&std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?) {
            inotify.unwatch(watch);
        }
        Ok(inotify)
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

/// Watches of an instance as proc_pid_fdinfo(5) lists them: `inotify wd:1f ino:2 ...`, in hexadecimal digits.
fn watches(fdinfo: &str) -> Vec<WatchId> {
    let number = |line: &str| {
        let digits = line.strip_prefix("inotify wd:")?.split(' ').next()?;
        i32::from_str_radix(digits, 16).ok().map(WatchId)
    };
    fdinfo.lines().filter_map(number).collect()
}

fn change(flags: ReadFlags) -> Option<Change> {
    if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
        Some(Change::Overflow)
    } else if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT) {
        Some(Change::SelfGone)
    } else if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
        Some(Change::Added)
    } else if flags.contains(ReadFlags::DELETE) {
        Some(Change::Removed)
    } else if flags.contains(ReadFlags::MOVED_FROM) {
        Some(Change::MovedAway)
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
        assert_eq!(short, [(Added, "a"), (Modified, "a"), (MovedAway, "a"), (Added, "b"), (Removed, "b")]);
        assert!(events.iter().all(|e| e.watch == Some(watch)));
        drop(dir);
        assert!(inotify.read().unwrap().iter().any(|e| e.change == SelfGone));
        inotify.unwatch(watch);
    }

    #[test]
    fn what_an_earlier_start_had_is_taken_up_without_its_watches() {
        let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let earlier = Inotify::new().unwrap();
        // More than ten, so that hexadecimal digits matter.
        for n in 0..20 {
            let dir = old.path().join(n.to_string());
            std::fs::create_dir(&dir).unwrap();
            earlier.watch_dir(&dir).unwrap();
        }
        let inotify = Inotify::adopt(earlier.fd.try_clone().unwrap()).unwrap();
        let fdinfo = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", inotify.as_raw_fd())).unwrap();
        assert_eq!(watches(&fdinfo), [], "{fdinfo}");
        while !inotify.read().unwrap().is_empty() {}
        let watch = inotify.watch_dir(new.path()).unwrap();
        std::fs::write(old.path().join("19/a"), "x").unwrap();
        std::fs::create_dir(new.path().join("b")).unwrap();
        let events = inotify.read().unwrap();
        assert_eq!(events, [Event { watch: Some(watch), change: Change::Added, name: "b".into() }]);
        let refused = Inotify::adopt(std::fs::File::open("/dev/null").unwrap().into()).unwrap_err();
        assert_eq!(refused.to_string(), "it is /dev/null, no inotify instance");
    }
}
