//! The sockets that the supervisor holds for a daemon (sd_listen_fds(3)).
//!
//! The supervisor keeps them open over a daemon's restart, so a caller that connects in between waits instead of failing.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

/// What a supervisor gives a process of the node agent, by the name under which it does (`FileDescriptorName=` in the units).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passed {
    /// The gRPC socket that a daemon listens on.
    Grpc,
    /// kubelet-volnetd's side socket.
    Broker,
    /// A listening vsock, where the administrator wants one.
    Vsock,
    /// Read end of the launcher's pipe.
    Death,
    /// The end of a helper's socket that its daemon asks at; of a helper that systemd starts, the one that it listens on.
    Journal,
    Walker,
    Iptables,
    Disks,
    Flexvolume,
    /// /dev/kmsg, open for reading.
    KernelLog,
    /// The end of its socket that a helper answers at, from the launcher.
    Questions,
    /// The same of kubelet-walker.
    Requests,
}

impl Passed {
    pub const ALL: [Passed; 12] = [
        Passed::Grpc,
        Passed::Broker,
        Passed::Vsock,
        Passed::Death,
        Passed::Journal,
        Passed::Walker,
        Passed::Iptables,
        Passed::Disks,
        Passed::Flexvolume,
        Passed::KernelLog,
        Passed::Questions,
        Passed::Requests,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Passed::Grpc => "grpc",
            Passed::Broker => "broker",
            Passed::Vsock => "vsock",
            Passed::Death => "death",
            Passed::Journal => "journal",
            Passed::Walker => "walker",
            Passed::Iptables => "iptables",
            Passed::Disks => "disks",
            Passed::Flexvolume => "flexvolume",
            Passed::KernelLog => "kmsg",
            Passed::Questions => "questions",
            Passed::Requests => "requests",
        }
    }
}

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
        let grpc = Passed::Grpc.name();
        let passed = [(grpc, 3), ("tcp-main", 4), (grpc, 5)].map(|(name, fd)| (name.to_owned(), fd));
        let listeners = by_name(passed.into());
        assert_eq!((listeners[grpc], listeners["tcp-main"], listeners.len()), (3, 4, 2));
    }
}
