//! The kernel's edge: every system call that needs care, and the only home of `unsafe` in the workspace.
//!
//! Mechanism without policy: which path, which capability, which peer is decided by the callers; here it is made sure
//! that the call does exactly what its name says. Blocking calls throughout but for [`dbus`]; async code wraps them
//! (`AsyncFd`, `spawn_blocking`).
//!
//! | module | for |
//! |---|---|
//! | [`scm`] | one datagram with descriptors over a SEQPACKET socket |
//! | [`peer`] | who is at the other end of a Unix socket |
//! | [`process`] | privileges of this process: read and reduce |
//! | [`spawn`] | start a child with an exact user, capabilities and descriptors |
//! | [`listen_fds`] | the descriptors that a supervisor passed |
//! | [`attempt`] | forbidden calls in a form that does no harm, for tests; no daemon calls them |
//! | [`alarm`] | an end for a process that may wait in the kernel for ever |
//! | [`async_fd`] | descriptors in tokio's reactor |
//! | [`memfd`] | sealed memory files |
//! | [`fence`] | Landlock |
//! | [`fork`] | a child of this program that shares one descriptor with it |
//! | [`fs_context`] | a mount by parameters, with what the kernel says of them |
//! | [`seccomp`] | system call filters |
//! | [`open`] | the three rules for opening files |
//! | [`tree`] | walking and removing a directory tree that others may be changing |
//! | [`mount`], [`mountinfo`] | mounts and the kernel's list of them |
//! | [`loop_device`] | loop devices that keep a file or device open |
//! | [`cgroup`] | control groups v1 and v2 behind one interface |
//! | [`clock`] | the clock of processes' start times |
//! | [`inotify`] | the one inotify instance |
//! | `kernel_file` | small files of `/proc` and `/sys`, read with few calls |
//! | [`heap`] | memory that the allocator does not use |
//! | [`page`] | the size of a page |
//! | [`program`] | pages of this program that are not being used |
//! | [`dbus`] | the system bus, and what is asked of logind on it |
//! | [`systemd`] | the requests to systemd: slices, properties, a stop, a reload |
//! | [`vsock`] | sockets between a virtual machine and its host |
//! | [`xfs`] | growth of an xfs that is mounted |
#![allow(unsafe_code)]

pub mod alarm;
pub mod async_fd;
pub mod attempt;
pub mod cgroup;
pub mod clock;
pub mod dbus;
pub mod fence;
pub mod fork;
pub mod fs_context;
pub mod heap;
pub mod inotify;
mod kernel_file;
pub mod listen_fds;
pub mod loop_device;
pub mod memfd;
pub mod mount;
pub mod mountinfo;
pub mod notify;
pub mod open;
pub mod page;
pub mod peer;
pub mod process;
pub mod program;
pub mod scm;
pub mod seccomp;
pub mod session;
pub mod spawn;
pub mod systemd;
pub mod tree;
pub mod vsock;
pub mod xfs;

/// Capability names, as the kernel's.
pub use caps::Capability;
