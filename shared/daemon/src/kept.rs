//! Descriptors that the supervisor keeps for a daemon over its restarts (systemd's file descriptor store, sd_notify(3); the
//! launcher has the same). The next start finds them among the passed ones, by their name.

use std::os::fd::BorrowedFd;

use bulkhead_sys::notify;

/// Has the supervisor keep a copy under this name, in place of what it kept under it before. Without a supervisor, or with
/// one that keeps nothing, a restart finds nothing, which is no error.
pub fn keep(name: &str, fd: BorrowedFd<'_>) {
    let_go(name);
    if let Err(error) = notify::keep(name, fd) {
        tracing::warn!(%error, name, "the supervisor could not be given what it is to keep");
    }
}

/// Has the supervisor close what it keeps under this name; nothing there is fine.
pub fn let_go(name: &str) {
    if let Err(error) = notify::let_go(name) {
        tracing::warn!(%error, name, "the supervisor could not be told to close what it keeps");
    }
}
