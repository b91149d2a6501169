//! System call filters: a list of what is denied (EPERM), everything else allowed.
//!
//! A deny list, because the daemons are built on a large runtime whose calls differ from version to version; what
//! matters is that the few calls which would widen a hole are gone. Filters bind the calling thread and those it starts
//! later. Calls of the 32-bit and x32 ABIs: the former are killed by the architecture check, the latter exist on kernels
//! built with X86_X32 alone, which distributions switch off.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

/// A group of calls that a daemon has no business making.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deny {
    /// open_by_handle_at: opens any inode past every directory and Landlock rule.
    OpenByHandle,
    /// Starting programs.
    Exec,
    /// io_uring: makes other calls unseen by this filter.
    IoUring,
    /// Looking into and writing to other processes.
    Trace,
    /// Kernel keyrings.
    Keys,
    /// BPF programs and performance events.
    BpfPerf,
    /// Kernel modules, kexec, reboot, swap, accounting, clocks.
    Machine,
    /// Mounts and roots.
    Mount,
    /// New or other namespaces.
    Namespaces,
    /// userfaultfd: lengthens races.
    Userfault,
    /// Hardware ports.
    RawIo,
}

impl Deny {
    /// Everything: what a process without privileges has no use for.
    pub const ALL: [Deny; 11] = [
        Deny::OpenByHandle,
        Deny::Exec,
        Deny::IoUring,
        Deny::Trace,
        Deny::Keys,
        Deny::BpfPerf,
        Deny::Machine,
        Deny::Mount,
        Deny::Namespaces,
        Deny::Userfault,
        Deny::RawIo,
    ];

    const fn calls(self) -> &'static [i64] {
        match self {
            Deny::OpenByHandle => &[libc::SYS_open_by_handle_at],
            Deny::Exec => &[libc::SYS_execve, libc::SYS_execveat],
            Deny::IoUring => &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register],
            Deny::Trace => &[libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_kcmp],
            Deny::Keys => &[libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl],
            Deny::BpfPerf => &[libc::SYS_bpf, libc::SYS_perf_event_open],
            Deny::Machine => &[
                libc::SYS_init_module,
                libc::SYS_finit_module,
                libc::SYS_delete_module,
                libc::SYS_kexec_load,
                libc::SYS_reboot,
                libc::SYS_swapon,
                libc::SYS_swapoff,
                libc::SYS_acct,
                libc::SYS_settimeofday,
                libc::SYS_clock_settime,
                libc::SYS_adjtimex,
                libc::SYS_sethostname,
                libc::SYS_setdomainname,
                libc::SYS_quotactl,
            ],
            Deny::Mount => &[
                libc::SYS_mount,
                libc::SYS_umount2,
                libc::SYS_move_mount,
                libc::SYS_fsopen,
                libc::SYS_fsmount,
                libc::SYS_fsconfig,
                libc::SYS_fspick,
                libc::SYS_open_tree,
                libc::SYS_mount_setattr,
                libc::SYS_pivot_root,
                libc::SYS_chroot,
            ],
            Deny::Namespaces => &[libc::SYS_unshare, libc::SYS_setns],
            Deny::Userfault => &[libc::SYS_userfaultfd],
            #[cfg(target_arch = "x86_64")]
            Deny::RawIo => &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt],
            #[cfg(not(target_arch = "x86_64"))]
            Deny::RawIo => &[],
        }
    }
}

/// Address families for which `socket` stays allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Unix,
    Netlink,
    Inet,
    Inet6,
}

impl Family {
    const fn raw(self) -> u64 {
        // The constants are small positive numbers.
        match self {
            Family::Unix => libc::AF_UNIX as u64,
            Family::Netlink => libc::AF_NETLINK as u64,
            Family::Inet => libc::AF_INET as u64,
            Family::Inet6 => libc::AF_INET6 as u64,
        }
    }
}

/// Why a filter could not be built or loaded.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    #[error("no system call filter for the architecture {0}")]
    Architecture(&'static str),
    #[error("building the system call filter")]
    Build(#[from] seccompiler::BackendError),
    #[error("loading the system call filter")]
    Load(#[from] seccompiler::Error),
}

/// Loads the filter for this thread and all it starts. `families`: None leaves `socket` alone. Sets no_new_privs.
pub fn restrict(deny: &[Deny], families: Option<&[Family]>) -> Result<(), SeccompError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        deny.iter().flat_map(|group| group.calls()).map(|call| (*call, Vec::new())).collect();
    if let Some(families) = families {
        // Denied when the family differs from each allowed one: conditions of one rule are joined by "and".
        let conditions: Vec<_> = families
            .iter()
            .map(|family| SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, family.raw()))
            .collect::<Result<_, _>>()?;
        if conditions.is_empty() {
            rules.insert(libc::SYS_socket, Vec::new());
        } else {
            rules.insert(libc::SYS_socket, vec![SeccompRule::new(conditions)?]);
        }
    }
    let arch =
        TargetArch::try_from(std::env::consts::ARCH).map_err(|_| SeccompError::Architecture(std::env::consts::ARCH))?;
    let denied = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let program: BpfProgram = SeccompFilter::new(rules, SeccompAction::Allow, denied, arch)?.try_into()?;
    seccompiler::apply_filter(&program)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_calls_answer_eperm_and_the_rest_work() {
        std::thread::spawn(|| {
            restrict(&[Deny::OpenByHandle, Deny::Exec, Deny::Mount], Some(&[Family::Unix, Family::Netlink])).unwrap();
            assert!(std::net::UdpSocket::bind("127.0.0.1:0").is_err());
            assert!(std::os::unix::net::UnixDatagram::unbound().is_ok());
            assert!(std::process::Command::new("/bin/true").status().is_err());
            assert_eq!(
                rustix::mount::unmount("/nonexistent", rustix::mount::UnmountFlags::empty()),
                Err(rustix::io::Errno::PERM)
            );
            assert!(std::fs::read("/proc/self/stat").is_ok());
        })
        .join()
        .unwrap();
        assert!(std::process::Command::new("/bin/true").status().is_ok(), "other threads are free");
    }
}
