//! The kernel's log as an open descriptor of `/dev/kmsg`. Who holds it for us opened it: a process without privileges may not where
//! `kernel.dmesg_restrict` is set. The descriptor's place in the log is shared with whoever holds it, so that it outlives us.

use std::fs::File;
use std::future::Future;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The longest record, with its properties (the kernel's CONSOLE_EXT_LOG_MAX), and as much again.
pub const RECORD_MAX: usize = 16 << 10;

/// What a read found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// A record of that many bytes.
    Record(usize),
    /// Records were overwritten before they were read; the next read goes on after them.
    Overwritten,
    /// There is no further record yet.
    Nothing,
}

/// A log; the tests have their own.
pub trait KernelLog: Send {
    /// Goes to the oldest record that there is.
    ///
    /// # Errors
    /// It is no log of the kernel.
    fn rewind(&mut self) -> io::Result<()>;
    /// # Errors
    /// The log cannot be read any more.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Read>;
    /// Until there may be something to read.
    ///
    /// # Errors
    /// It cannot be waited for.
    fn readable(&mut self) -> impl Future<Output = io::Result<()>> + Send;
}

/// The machine's.
#[derive(Debug)]
pub struct Kmsg(AsyncFd<OwnedFd>);

impl Kmsg {
    /// Call within a tokio runtime.
    ///
    /// # Errors
    /// It is a file that cannot be waited for, so no log.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        bulkhead_sys::async_fd::register(fd).map(Kmsg)
    }
}

impl KernelLog for Kmsg {
    fn rewind(&mut self) -> io::Result<()> {
        // A copy of the descriptor has the same place in the log.
        File::from(self.0.get_ref().try_clone()?).seek(SeekFrom::Start(0)).map(drop)
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Read> {
        let mut read = |fd: &OwnedFd| -> io::Result<Read> {
            match rustix::io::read(fd, &mut *buffer) {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => Ok(Read::Record(bytes)),
                Err(Errno::PIPE) => Ok(Read::Overwritten),
                Err(error) => Err(error.into()),
            }
        };
        // The reactor is told of what is written, and not of a place that was moved back: what it knows counts at the end alone.
        let mut found = read(self.0.get_ref());
        if found.as_ref().is_err_and(|error: &io::Error| error.kind() == io::ErrorKind::WouldBlock) {
            found = self.0.try_io(Interest::READABLE, read);
        }
        match found {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(Read::Nothing)
            }
            found => found,
        }
    }

    async fn readable(&mut self) -> io::Result<()> {
        // What is ready stays so until a read finds nothing.
        self.0.readable().await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oom::record;
    use bulkhead_testkit::skip::{Lack, skip_this_test};

    /// As the launcher opens it; None, and said aloud, for others than root where `kernel.dmesg_restrict` is set.
    fn machines() -> Option<OwnedFd> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        match rustix::fs::open("/dev/kmsg", flags, Mode::empty()) {
            Err(_) if !rustix::process::geteuid().is_root() => {
                skip_this_test(Lack::Root).unwrap();
                None
            }
            opened => Some(opened.expect("this machine's kernel log may be read")),
        }
    }

    #[tokio::test]
    async fn the_machines_log_is_read_from_its_beginning_as_often_as_one_likes() {
        let Some(fd) = machines() else { return };
        let mut log = Kmsg::new(fd).unwrap();
        let mut buffer = vec![0; RECORD_MAX];
        let mut all = Vec::new();
        for _ in 0..2 {
            log.rewind().unwrap();
            let mut sequences = Vec::new();
            loop {
                match log.read(&mut buffer).unwrap() {
                    Read::Record(bytes) => sequences.push(record::parse(&buffer[..bytes]).unwrap().sequence),
                    Read::Overwritten => {}
                    Read::Nothing => break,
                }
            }
            assert!(sequences.is_sorted_by(|a, b| a < b), "{sequences:?}");
            all.push(sequences);
        }
        // What is new comes at the end; who begins anew finds the same without anything new. A busy log may have lost its oldest meanwhile.
        let common = all[1].iter().filter(|sequence| all[0].contains(sequence)).count();
        assert!(!all[0].is_empty() && common > 0, "{all:?}");
    }

    #[tokio::test]
    async fn what_is_no_log_is_an_error() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let read = Kmsg::new(null.into()).and_then(|mut log| log.read(&mut [0; 10]));
        assert!(read.is_err(), "{read:?}");
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(Kmsg::new(ours.into()).unwrap().rewind().is_err(), "a socket has no beginning");
    }
}
