//! What this process keeps of root's power.
//!
//! Each capability stands here with the work that needs it; the skeleton drops all others before a thread exists. The
//! filter takes away what no verb needs and what would widen a hole: starting programs, opening by handle, other
//! namespaces, tracing, modules, and every socket family but Unix and netlink.

use bulkhead_sys::Capability;
use bulkhead_sys::seccomp::{self, Deny, Family};

/// Held for life.
pub const CAPABILITIES: &[Capability] = &[
    Capability::CAP_SYS_ADMIN,    // mount, umount, sysctls of the machine
    Capability::CAP_CHOWN,        // private state folders, fsGroup, owners of files in volumes
    Capability::CAP_FOWNER,       // chmod and unlink of what a pod's user owns
    Capability::CAP_FSETID,       // keeps setgid when a volume is given to its group
    Capability::CAP_DAC_OVERRIDE, // reads and removes what a pod's user made private
    Capability::CAP_KILL,         // what is left in a pod's cgroup, or by a command in a container
    Capability::CAP_NET_ADMIN,    // utility chains, later
    Capability::CAP_SYSLOG,       // /dev/kmsg under dmesg_restrict
    Capability::CAP_SYS_RESOURCE, // PSI windows below 2 s, limits above ours
];

const DENIED: &[Deny] = &[
    Deny::Exec,
    Deny::OpenByHandle,
    Deny::IoUring,
    Deny::Trace,
    Deny::Keys,
    Deny::BpfPerf,
    Deny::Machine,
    Deny::Namespaces,
    Deny::Userfault,
    Deny::RawIo,
];

/// Loads the filter. No Landlock here: the verbs reach from the root directory to hostPath's arbitrary host paths, and
/// a domain of Landlock may not mount at all.
pub fn apply() -> std::io::Result<()> {
    seccomp::restrict(DENIED, Some(&[Family::Unix, Family::Netlink])).map_err(std::io::Error::other)
}
