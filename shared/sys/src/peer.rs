//! Who is at the other end of a connected Unix socket.
//!
//! Uid and gid come from the socket and cannot change. User namespace and cgroups are read from `/proc/<pid>`, where
//! a pid may be reused between two reads: a pidfd pins the process, and after reading it must still be alive. The
//! pidfd is the socket's own (SO_PEERPIDFD, kernel 6.5); before that it is opened by pid at accept, which leaves the
//! moment between connect and accept open: a caller that dies in it has its reply thrown away, so all that a reused
//! pid could gain is that an unrelated process is looked at and the connection refused or accepted for the right uid.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use rustix::process::{Pid, PidfdFlags};

use crate::kernel_file;

/// What is known of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIdentity {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
    /// Its uid map is the same as ours. Root of a container with user namespace is not root.
    pub same_user_namespace: bool,
    /// Its cgroup in each hierarchy, as in /proc/<pid>/cgroup: "/kubepods/pod…".
    pub cgroups: Vec<String>,
}

/// Why a peer could not be identified. All of them mean: refuse.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("failed to read the peer's credentials from the socket")]
    Credentials(#[source] io::Error),
    #[error("peer process {pid} is in another pid namespace or gone")]
    NoProcess { pid: i32 },
    #[error(
        "peer process {pid} is hidden by the option hidepid= of /proc, which has to let the daemons' group see it (gid=)"
    )]
    Hidden { pid: i32 },
    #[error("failed to read {what} of peer process {pid}")]
    Proc { pid: i32, what: &'static str, source: io::Error },
}

/// Identifies the process that connected (or that called `listen`, seen from the client).
pub fn identify(socket: impl AsFd) -> Result<PeerIdentity, PeerError> {
    let socket = socket.as_fd();
    let credentials = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials)
        .map_err(|e| PeerError::Credentials(e.into()))?;
    let pid = credentials.pid();
    // The kernel shows 0 for a process that our pid namespace does not contain.
    let raw = Pid::from_raw(pid).ok_or(PeerError::NoProcess { pid })?;
    let pidfd = peer_pidfd(socket, raw).map_err(|_| PeerError::NoProcess { pid })?;
    let proc = |what: &'static str| {
        let path = format!("/proc/{pid}/{what}");
        kernel_file::read(Path::new(&path)).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied if is_alive(&pidfd) => PeerError::Hidden { pid },
            _ => PeerError::Proc { pid, what, source },
        })
    };
    let uid_map = proc("uid_map")?;
    let cgroups = parse_cgroups(&proc("cgroup")?);
    let ours = own_uid_map().map_err(|source| PeerError::Proc { pid, what: "uid_map (ours)", source })?;
    if !is_alive(&pidfd) {
        return Err(PeerError::NoProcess { pid });
    }
    Ok(PeerIdentity {
        pid,
        uid: credentials.uid(),
        gid: credentials.gid(),
        same_user_namespace: uid_map == ours,
        cgroups,
    })
}

/// This process's own map, which is written once for a user namespace and stays (`user_namespaces(7)`); no process here changes its.
fn own_uid_map() -> io::Result<&'static str> {
    static OURS: OnceLock<String> = OnceLock::new();
    if let Some(ours) = OURS.get() {
        return Ok(ours);
    }
    let ours = kernel_file::read(Path::new("/proc/self/uid_map"))?;
    Ok(OURS.get_or_init(|| ours))
}

/// The user alone, for who has no /proc to look into.
///
/// # Errors
/// The socket has no peer.
pub fn user(socket: impl AsFd) -> io::Result<u32> {
    let credentials = nix::sys::socket::getsockopt(&socket.as_fd(), nix::sys::socket::sockopt::PeerCredentials)?;
    Ok(credentials.uid())
}

fn peer_pidfd(socket: impl AsFd, pid: Pid) -> io::Result<OwnedFd> {
    if let Ok(fd) = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerPidfd) {
        return Ok(fd);
    }
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// Pins a process: its number is given to no other one as long as this is held. `None`: it is gone.
pub(crate) fn pin(pid: i32) -> Option<OwnedFd> {
    rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// A pidfd becomes readable when its process has exited.
pub fn is_alive(pidfd: &OwnedFd) -> bool {
    let mut fds = [rustix::event::PollFd::new(pidfd, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(0))
}

/// This process's own cgroup in each hierarchy, as a peer sees it.
///
/// # Errors
/// /proc/self/cgroup cannot be read.
pub fn own_cgroups() -> io::Result<Vec<String>> {
    Ok(parse_cgroups(&std::fs::read_to_string("/proc/self/cgroup")?))
}

/// The path part of each line of /proc/<pid>/cgroup.
fn parse_cgroups(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_our_own_peer() {
        let (a, _b) = crate::scm::pair().unwrap();
        let peer = identify(&a).unwrap();
        assert_eq!(peer.pid, std::process::id().cast_signed());
        assert_eq!(peer.uid, rustix::process::getuid().as_raw());
        assert!(peer.same_user_namespace);
        assert!(!peer.cgroups.is_empty());
    }

    #[test]
    fn a_cgroup_is_all_behind_the_second_colon() {
        let cgroups = parse_cgroups("4:memory:/kubepods-x/a\n0::/a:b/kubepods/pod1\n");
        assert_eq!(cgroups, ["/kubepods-x/a", "/a:b/kubepods/pod1"]);
    }

    #[test]
    fn a_peer_in_a_user_namespace_is_recognised() {
        use std::os::unix::process::CommandExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.sock");
        let listener = crate::scm::listen(&path, 0o666).unwrap();
        // `unshare -U` keeps uid 0 outside and is nobody or root inside: another map in any case.
        let mut command = std::process::Command::new("sleep");
        command.arg("30");
        let connect_to = path.clone();
        // SAFETY: the closure runs in a forked child of this (multi-threaded) test; it makes raw system calls and one
        // small allocation-free connect (`SocketAddrUnix` is a fixed array), and leaks the socket into the exec'd
        // program on purpose, so that the connection lives as long as the child.
        unsafe {
            command.pre_exec(move || {
                rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWUSER)?;
                let socket = crate::scm::connect(&connect_to)?;
                rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::empty())?;
                let _ = std::os::fd::IntoRawFd::into_raw_fd(socket);
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        let server = crate::scm::accept(&listener).unwrap();
        let peer = identify(&server).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!peer.same_user_namespace);
        assert!(matches!(identify(&server), Err(PeerError::NoProcess { .. } | PeerError::Proc { .. })));
    }
}
