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

/// Takes what was passed, once, and clears the variables so that no child inherits them.
pub(crate) fn take() -> std::io::Result<Listeners> {
    Ok(bulkhead_sys::listen_fds::take()?.into_iter().collect())
}
