//! A descriptor in tokio's reactor.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Registers for readiness and makes the descriptor non-blocking: one that a supervisor passed may not be, and a
/// blocking call would stop the one thread. Call within a tokio runtime.
pub fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    // SAFETY: the reactor needs the number to stay open and to mean the same file until it is deregistered. An
    // `OwnedFd` cannot change its number, and `AsyncFd` deregisters before it drops (and so closes) the descriptor.
    unsafe { AsyncFd::register(fd) }.map_err(Into::into)
}

/// Waits until an eventfd has been signalled, and sets it back.
pub async fn take_event(event: &AsyncFd<OwnedFd>) -> io::Result<()> {
    let mut count = [0; 8];
    let read = event.async_io(tokio::io::Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut count)?));
    read.await.map(drop)
}

/// Registers for what polls as urgent: a PSI file with a trigger.
pub fn register_priority(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: as above.
    unsafe { AsyncFd::register_with_interest(fd, tokio::io::Interest::PRIORITY) }.map_err(Into::into)
}

/// The inotify instance, waiting for events.
pub fn register_inotify(inotify: crate::inotify::Inotify) -> io::Result<AsyncFd<crate::inotify::Inotify>> {
    // SAFETY: as above: an `Inotify` is an `OwnedFd` that it never replaces.
    unsafe { AsyncFd::register_with_interest(inotify, tokio::io::Interest::READABLE) }.map_err(Into::into)
}
