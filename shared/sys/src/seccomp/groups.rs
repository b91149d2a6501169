//! Which system calls are denied together, and which of their arguments decide.
//!
//! Numbers that the C library's headers do not have yet are the kernel's own: since 424 they are the same on every
//! architecture (`scripts/syscall.tbl`). A kernel that lacks a call answers ENOSYS or EPERM, both of which mean no.

/// open_tree_attr, since Linux 6.15.
const SYS_OPEN_TREE_ATTR: i64 = 467;
/// setxattrat, getxattrat, listxattrat and removexattrat, since Linux 6.13.
const XATTR_AT: [i64; 4] = [463, 464, 465, 466];
/// file_setattr, since Linux 6.17.
const SYS_FILE_SETATTR: i64 = 469;
/// fchmodat2, since Linux 6.6.
const SYS_FCHMODAT2: i64 = 452;
/// statmount and listmount, since Linux 6.8.
const SYS_STATMOUNT: i64 = 457;
const SYS_LISTMOUNT: i64 = 458;
/// quotactl_fd, since Linux 5.14.
const SYS_QUOTACTL_FD: i64 = 443;
/// process_madvise, since Linux 5.10.
const SYS_PROCESS_MADVISE: i64 = 440;
/// pidfd_getfd, since Linux 5.6.
const SYS_PIDFD_GETFD: i64 = 438;

/// Every flag with which clone(2) makes a namespace; CLONE_NEWTIME shares its bit with the signal number and is known
/// to clone3 and unshare alone.
const NEW_NAMESPACES: [u64; 7] = [
    libc::CLONE_NEWNS as u64,
    libc::CLONE_NEWCGROUP as u64,
    libc::CLONE_NEWUTS as u64,
    libc::CLONE_NEWIPC as u64,
    libc::CLONE_NEWUSER as u64,
    libc::CLONE_NEWPID as u64,
    libc::CLONE_NEWNET as u64,
];

/// The requests of linux/userfaultfd.h, in the order of their numbers.
const USERFAULT_REQUESTS: [u64; 10] = [
    0xC020_AA00,
    0x8010_AA01,
    0x8010_AA02,
    0xC028_AA03,
    0xC020_AA04,
    0xC028_AA05,
    0xC018_AA06,
    0xC020_AA07,
    0xC020_AA08,
    0xC018_AA3F,
];

/// With which a folder is opened, or the call fails; and those that make a file, of which `O_TMPFILE` has the first one's bit as well.
const FOLDER: u64 = libc::O_DIRECTORY as u64;
const NEW_FILE: [u64; 2] = [libc::O_CREAT as u64, (libc::O_TMPFILE & !libc::O_DIRECTORY) as u64];

/// What reads links and extended attributes of files, and what changes files and folders by their names. openat2 has its flags
/// in memory, where a filter cannot look.
const BY_NAME: &[i64] = &[
    libc::SYS_openat2,
    libc::SYS_readlinkat,
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    XATTR_AT[0],
    XATTR_AT[1],
    XATTR_AT[2],
    XATTR_AT[3],
    SYS_FILE_SETATTR,
    libc::SYS_truncate,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_mkdirat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    SYS_FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
];

/// A group of calls that a process has no business making.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deny {
    /// open_by_handle_at: opens any inode past every directory and Landlock rule.
    OpenByHandle,
    /// fanotify: gives descriptors of whatever others open.
    Fanotify,
    /// Starting programs.
    Exec,
    /// io_uring: makes other calls unseen by this filter.
    IoUring,
    /// Looking into other processes, writing to them, taking their descriptors.
    Trace,
    /// Kernel keyrings.
    Keys,
    /// BPF programs and performance events.
    BpfPerf,
    /// Kernel modules, kexec, reboot, swap, accounting, clocks, quotas, the kernel's log.
    Machine,
    /// Mounts.
    Mount,
    /// Another root: chroot and pivot_root.
    Root,
    /// New or other namespaces.
    Namespaces,
    /// Device files, fifos: what mknod makes.
    Nodes,
    /// userfaultfd, and the requests to such a descriptor: lengthens races.
    Userfault,
    /// Other personalities: they switch off protections of memory.
    Personality,
    /// Typing into a terminal on others' behalf.
    Terminal,
    /// Hardware ports and descriptor tables.
    RawIo,
    /// Opening anything but folders, reading links and extended attributes, and changing what is there: what is left of files
    /// is their metadata, and lists of folders.
    Files,
    /// Connecting sockets.
    Connect,
}

/// When a call of a group is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Always,
    /// The argument has one of these bits.
    AnyBit {
        argument: u8,
        bits: &'static [u64],
    },
    /// The argument lacks this bit.
    NoBit {
        argument: u8,
        bit: u64,
    },
    /// The argument, as 32 bits, is one of these.
    OneOf {
        argument: u8,
        values: &'static [u64],
    },
    /// The argument, as 32 bits, is none of these.
    NoneOf {
        argument: u8,
        values: &'static [u64],
    },
}

impl Deny {
    /// Every group; the two for whoever does no more than look stand last.
    pub const ALL: [Deny; 18] = [
        Deny::OpenByHandle,
        Deny::Fanotify,
        Deny::Exec,
        Deny::IoUring,
        Deny::Trace,
        Deny::Keys,
        Deny::BpfPerf,
        Deny::Machine,
        Deny::Mount,
        Deny::Root,
        Deny::Namespaces,
        Deny::Nodes,
        Deny::Userfault,
        Deny::Personality,
        Deny::Terminal,
        Deny::RawIo,
        Deny::Files,
        Deny::Connect,
    ];

    /// What a process without privileges has no use for, though it opens files and connects to others.
    pub const UNPRIVILEGED: &'static [Deny] = Deny::ALL.split_at(Deny::ALL.len() - 2).0;

    /// The group's name where people see it: "open-by-handle".
    pub const fn name(self) -> &'static str {
        match self {
            Deny::OpenByHandle => "open-by-handle",
            Deny::Fanotify => "fanotify",
            Deny::Exec => "exec",
            Deny::IoUring => "io-uring",
            Deny::Trace => "trace",
            Deny::Keys => "keys",
            Deny::BpfPerf => "bpf-perf",
            Deny::Machine => "machine",
            Deny::Mount => "mount",
            Deny::Root => "root",
            Deny::Namespaces => "namespaces",
            Deny::Nodes => "nodes",
            Deny::Userfault => "userfault",
            Deny::Personality => "personality",
            Deny::Terminal => "terminal",
            Deny::RawIo => "raw-io",
            Deny::Files => "files",
            Deny::Connect => "connect",
        }
    }

    /// Calls that are denied whatever their arguments are.
    const fn calls(self) -> &'static [i64] {
        match self {
            Deny::OpenByHandle => &[libc::SYS_open_by_handle_at],
            Deny::Fanotify => &[libc::SYS_fanotify_init, libc::SYS_fanotify_mark],
            Deny::Exec => &[libc::SYS_execve, libc::SYS_execveat],
            Deny::IoUring => &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register],
            Deny::Trace => &[
                libc::SYS_ptrace,
                libc::SYS_process_vm_readv,
                libc::SYS_process_vm_writev,
                libc::SYS_kcmp,
                libc::SYS_move_pages,
                libc::SYS_migrate_pages,
                SYS_PIDFD_GETFD,
                SYS_PROCESS_MADVISE,
            ],
            Deny::Keys => &[libc::SYS_add_key, libc::SYS_request_key, libc::SYS_keyctl],
            Deny::BpfPerf => &[libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_lookup_dcookie],
            Deny::Machine => &[
                libc::SYS_init_module,
                libc::SYS_finit_module,
                libc::SYS_delete_module,
                libc::SYS_kexec_load,
                libc::SYS_kexec_file_load,
                libc::SYS_reboot,
                libc::SYS_swapon,
                libc::SYS_swapoff,
                libc::SYS_acct,
                libc::SYS_settimeofday,
                libc::SYS_clock_settime,
                libc::SYS_adjtimex,
                libc::SYS_clock_adjtime,
                libc::SYS_sethostname,
                libc::SYS_setdomainname,
                libc::SYS_quotactl,
                SYS_QUOTACTL_FD,
                libc::SYS_syslog,
                libc::SYS_vhangup,
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
                SYS_OPEN_TREE_ATTR,
                SYS_STATMOUNT,
                SYS_LISTMOUNT,
            ],
            Deny::Root => &[libc::SYS_pivot_root, libc::SYS_chroot],
            Deny::Namespaces => &[libc::SYS_unshare, libc::SYS_setns],
            #[cfg(target_arch = "x86_64")]
            Deny::Nodes => &[libc::SYS_mknod, libc::SYS_mknodat],
            #[cfg(not(target_arch = "x86_64"))]
            Deny::Nodes => &[libc::SYS_mknodat],
            Deny::Userfault => &[libc::SYS_userfaultfd],
            #[cfg(target_arch = "x86_64")]
            Deny::RawIo => &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt],
            #[cfg(not(target_arch = "x86_64"))]
            Deny::RawIo => &[],
            Deny::Files => BY_NAME,
            Deny::Connect => &[libc::SYS_connect],
            // Their arguments decide.
            Deny::Personality | Deny::Terminal => &[],
        }
    }

    /// Calls that are denied by their arguments.
    const fn by_argument(self) -> &'static [(i64, When)] {
        match self {
            // What glibc starts threads and programs with, and then only without a new namespace.
            Deny::Namespaces => &[(libc::SYS_clone, When::AnyBit { argument: 0, bits: &NEW_NAMESPACES })],
            // Asking for the present one (all bits), and Linux itself, are harmless and done by some libraries.
            Deny::Personality => &[(libc::SYS_personality, When::NoneOf { argument: 0, values: &[0, 0xffff_ffff] })],
            // TIOCSTI and TIOCLINUX, the two that put characters into a terminal's input.
            Deny::Terminal => &[(libc::SYS_ioctl, When::OneOf { argument: 1, values: &[0x5412, 0x541c] })],
            // From UFFDIO_REGISTER to UFFDIO_POISON, and UFFDIO_API: what was registered before stays so.
            Deny::Userfault => &[(libc::SYS_ioctl, When::OneOf { argument: 1, values: &USERFAULT_REQUESTS })],
            Deny::Files => &[
                (libc::SYS_openat, When::NoBit { argument: 2, bit: FOLDER }),
                (libc::SYS_openat, When::AnyBit { argument: 2, bits: &NEW_FILE }),
                #[cfg(target_arch = "x86_64")]
                (libc::SYS_open, When::NoBit { argument: 1, bit: FOLDER }),
                #[cfg(target_arch = "x86_64")]
                (libc::SYS_open, When::AnyBit { argument: 1, bits: &NEW_FILE }),
            ],
            _ => &[],
        }
    }

    /// Each call of the group with the condition under which it is denied.
    pub(super) fn rules(self) -> impl Iterator<Item = (i64, When)> {
        self.calls().iter().map(|call| (*call, When::Always)).chain(self.by_argument().iter().copied())
    }
}

impl std::fmt::Display for Deny {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Address families for which `socket` stays allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Unix,
    Inet,
    Inet6,
    /// Raw sockets alone.
    InetRaw,
    Inet6Raw,
    /// Netlink, to the kernel's packet filter alone.
    Netfilter,
    Vsock,
}

/// Types of sockets that are not raw: SOCK_STREAM, SOCK_DGRAM, SOCK_RDM, SOCK_SEQPACKET, SOCK_DCCP, SOCK_PACKET. The kernel takes
/// flags in the same argument.
const NOT_RAW: [u64; 6] = [1, 2, 4, 5, 6, 10];
const SOCKET_TYPE: u64 = 0xf;

impl Family {
    /// As systemd writes it in RestrictAddressFamilies=: "AF_UNIX".
    pub const fn name(self) -> &'static str {
        match self {
            Family::Unix => "AF_UNIX",
            Family::Inet | Family::InetRaw => "AF_INET",
            Family::Inet6 | Family::Inet6Raw => "AF_INET6",
            Family::Netfilter => "AF_NETLINK",
            Family::Vsock => "AF_VSOCK",
        }
    }

    pub(super) const fn raw(self) -> u64 {
        // The constants are small positive numbers.
        match self {
            Family::Unix => libc::AF_UNIX as u64,
            Family::Inet | Family::InetRaw => libc::AF_INET as u64,
            Family::Inet6 | Family::Inet6Raw => libc::AF_INET6 as u64,
            Family::Netfilter => libc::AF_NETLINK as u64,
            Family::Vsock => libc::AF_VSOCK as u64,
        }
    }
}

impl Family {
    /// Whether whoever may make sockets of this kind may make those of the other.
    pub const fn includes(self, other: Family) -> bool {
        let all = !matches!(self, Family::InetRaw | Family::Inet6Raw);
        self.raw() == other.raw() && (all || self as u8 == other as u8)
    }

    /// Which sockets of the family are denied all the same: each a list of conditions on arguments (which, mask, value; the
    /// mask `None`: the argument is another value), all of which hold.
    pub(super) fn but_for(self) -> Vec<[(u8, Option<u64>, u64); 2]> {
        let family = (0, Some(u64::MAX), self.raw());
        match self {
            Family::InetRaw | Family::Inet6Raw => {
                NOT_RAW.into_iter().map(|kind| [family, (1, Some(SOCKET_TYPE), kind)]).collect()
            }
            Family::Netfilter => vec![[family, (2, None, libc::NETLINK_NETFILTER as u64)]],
            Family::Unix | Family::Inet | Family::Inet6 | Family::Vsock => Vec::new(),
        }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())?;
        match self {
            Family::InetRaw | Family::Inet6Raw => f.write_str(" (raw)"),
            Family::Netfilter => f.write_str(" (netfilter)"),
            Family::Unix | Family::Inet | Family::Inet6 | Family::Vsock => Ok(()),
        }
    }
}
