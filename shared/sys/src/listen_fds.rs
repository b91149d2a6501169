//! Takes the descriptors that a supervisor passed (sd_listen_fds(3)).
//!
//! systemd sets LISTEN_PID; the launcher cannot (the pid is only known after the fork), so it sets BULKHEAD_LISTEN
//! instead, and does so for the direct child alone.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

const FIRST_FD: RawFd = 3;
/// More than any process of ours is passed.
const MAX_FDS: i32 = 16;

/// The passed descriptors with their names, marked close-on-exec. A second call gives none.
///
/// # Errors
/// Malformed variables, or numbers that are not open.
pub fn take() -> io::Result<Vec<(String, OwnedFd)>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let variable = |name| std::env::var(name).ok();
    let Some(count) = variable("LISTEN_FDS") else { return Ok(Vec::new()) };
    let for_us = variable("BULKHEAD_LISTEN").is_some()
        || variable("LISTEN_PID").and_then(|pid| pid.parse::<u32>().ok()) == Some(std::process::id());
    if !for_us || TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    let count: i32 =
        count.parse().ok().filter(|count| (0..=MAX_FDS).contains(count)).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("LISTEN_FDS={count}: 0 to {MAX_FDS}"))
        })?;
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut taken = Vec::new();
    for fd in FIRST_FD..FIRST_FD + count {
        // SAFETY: fcntl(F_GETFD) on any number is harmless; it says whether the descriptor is open.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("passed descriptor {fd} is not open")));
        }
        // SAFETY: the supervisor gave this open descriptor to this process, and `TAKEN` lets it be owned only once.
        let owned = unsafe { OwnedFd::from_raw_fd(fd) };
        rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC)?;
        let name = names.next().filter(|name| !name.is_empty()).unwrap_or("grpc");
        taken.push((name.to_owned(), owned));
    }
    Ok(taken)
}
