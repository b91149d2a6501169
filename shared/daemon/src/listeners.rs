//! The sockets that the supervisor holds for a daemon (sd_listen_fds(3)).
//!
//! The supervisor keeps them open over a daemon's restart, so a caller that connects in between waits instead of failing.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// The name of the gRPC socket; volnetd also has "broker". "death" is the launcher's pipe.
pub(crate) const GRPC: &str = "grpc";
/// A listening vsock, where the administrator wants one.
pub(crate) const VSOCK: &str = "vsock";
pub(crate) const DEATH: &str = "death";

/// Passed descriptors by name.
pub(crate) type Listeners = BTreeMap<String, OwnedFd>;

/// Takes what was passed; a second call finds nothing.
///
/// # Errors
/// See [`bulkhead_sys::listen_fds::take`].
pub(crate) fn take() -> std::io::Result<Listeners> {
    Ok(by_name(bulkhead_sys::listen_fds::take()?))
}

/// Of one name the first counts: sockets come before what an earlier start of this process had kept, which may have given
/// it any name and must not take a socket's place.
fn by_name<T>(passed: Vec<(String, T)>) -> BTreeMap<String, T> {
    let mut listeners = BTreeMap::new();
    for (name, fd) in passed {
        listeners.entry(name).or_insert(fd);
    }
    listeners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_takes_no_socket_s_place() {
        let passed = [(GRPC, 3), ("tcp-main", 4), (GRPC, 5)].map(|(name, fd)| (name.to_owned(), fd));
        let listeners = by_name(passed.into());
        assert_eq!((listeners[GRPC], listeners["tcp-main"], listeners.len()), (3, 4, 2));
    }
}
