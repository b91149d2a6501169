use super::*;

/// A raw call's error number; 0 for success.
fn raw(number: i64, arguments: [i64; 3]) -> i32 {
    // SAFETY: the numbers that the tests pass take integers alone, or fail on null before they touch memory.
    let result = unsafe { libc::syscall(number, arguments[0], arguments[1], arguments[2], 0, 0, 0) };
    if result >= 0 { 0 } else { io::Error::last_os_error().raw_os_error().unwrap_or(-1) }
}

#[test]
fn denied_calls_answer_eperm_and_the_rest_work() {
    std::thread::spawn(|| {
        restrict(&[Deny::OpenByHandle, Deny::Exec, Deny::Mount], Some(&[Family::Unix, Family::Vsock])).unwrap();
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

#[test]
fn every_call_of_every_group_is_denied() {
    std::thread::spawn(|| {
        restrict(&Deny::ALL, Some(&[])).unwrap();
        for group in Deny::ALL {
            for (call, when) in group.rules() {
                let arguments = match when {
                    When::Always => [0; 3],
                    When::AnyBit { argument, bits } => at(argument, bits[0]),
                    When::NoBit { argument, .. } => at(argument, 0),
                    When::OneOf { argument, values } => at(argument, values[0]),
                    When::NoneOf { argument, .. } => at(argument, 0x0040_0000),
                };
                assert_eq!(raw(call, arguments), libc::EPERM, "{group}: call {call}");
            }
        }
        for call in [libc::SYS_socket, libc::SYS_socketpair] {
            assert_eq!(raw(call, [libc::AF_UNIX.into(), 1, 0]), libc::EPERM);
        }
    })
    .join()
    .unwrap();
}

fn at(argument: u8, value: u64) -> [i64; 3] {
    let mut arguments = [0; 3];
    arguments[usize::from(argument)] = value.cast_signed();
    arguments
}

#[test]
fn kinds_of_a_family_are_told_apart() {
    std::thread::spawn(|| {
        restrict(&[], Some(&[Family::Inet6Raw, Family::Netfilter])).unwrap();
        let (cloexec, raw_ip) = (libc::SOCK_CLOEXEC, libc::IPPROTO_RAW);
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET, libc::SOCK_STREAM | cloexec] {
            assert_eq!(raw(libc::SYS_socket, [libc::AF_INET6.into(), kind.into(), 0]), libc::EPERM, "type {kind}");
        }
        let denied = raw(libc::SYS_socket, [libc::AF_INET6.into(), (libc::SOCK_RAW | cloexec).into(), raw_ip.into()]);
        assert_eq!(denied == libc::EPERM, !rustix::process::geteuid().is_root(), "the kernel's own word: {denied}");
        for (protocol, expected) in [(libc::NETLINK_NETFILTER, 0), (libc::NETLINK_ROUTE, libc::EPERM), (9, libc::EPERM)]
        {
            let kind = (libc::SOCK_RAW | cloexec).into();
            assert_eq!(raw(libc::SYS_socket, [libc::AF_NETLINK.into(), kind, protocol.into()]), expected, "{protocol}");
        }
        assert_eq!(raw(libc::SYS_socket, [libc::AF_INET.into(), libc::SOCK_RAW.into(), 1]), libc::EPERM);
    })
    .join()
    .unwrap();
    assert!(Family::Inet.includes(Family::InetRaw) && !Family::InetRaw.includes(Family::Inet));
    assert!(!Family::Inet.includes(Family::Inet6) && Family::Netfilter.includes(Family::Netfilter));
}

#[test]
fn arguments_decide_where_a_call_has_harmless_uses() {
    let allowed = Deny::UNPRIVILEGED.iter().copied().filter(|deny| *deny != Deny::Exec).collect::<Vec<_>>();
    std::thread::spawn(move || {
        restrict(&allowed, Some(&[Family::Unix, Family::Inet])).unwrap();
        for bit in NAMESPACE_BITS {
            assert_eq!(raw(libc::SYS_clone, at(0, bit | 17)), libc::EPERM, "clone with {bit:#x}");
        }
        assert_eq!(raw(libc::SYS_clone3, [0; 3]), libc::ENOSYS, "its flags cannot be seen");
        assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7, "threads are clones too");
        assert!(std::process::Command::new("/bin/true").status().unwrap().success(), "and so are children");
        assert_eq!(raw(libc::SYS_personality, at(0, 0xffff_ffff)), 0, "asking is no change");
        assert_eq!(raw(libc::SYS_personality, at(0, 0x0040_0000)), libc::EPERM, "READ_IMPLIES_EXEC");
        assert_eq!(raw(libc::SYS_ioctl, [-1, 0x5412, 0]), libc::EPERM);
        assert_eq!(raw(libc::SYS_ioctl, [-1, 0x5412 | 1 << 32, 0]), libc::EPERM, "the kernel takes 32 bits of it");
        assert_eq!(raw(libc::SYS_ioctl, [-1, 0xC020_AA00, 0]), libc::EPERM, "of two groups' requests each is denied");
        assert_eq!(raw(libc::SYS_ioctl, [-1, 0x5421, 0]), libc::EBADF, "other requests go on to the descriptor");
        assert!(std::net::UdpSocket::bind("127.0.0.1:0").is_ok());
        assert!(std::net::UdpSocket::bind("[::1]:0").is_err());
        for family in [libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, libc::AF_NETLINK, libc::AF_BLUETOOTH] {
            assert_eq!(raw(libc::SYS_socket, [family.into(), 3, 0]), libc::EPERM);
            assert_eq!(raw(libc::SYS_socketpair, [family.into(), 3, 0]), libc::EPERM);
        }
    })
    .join()
    .unwrap();
}

#[test]
fn whoever_only_looks_lists_folders_and_opens_no_file() {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;

    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
    use rustix::io::Errno;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("file"), "12345").unwrap();
    std::os::unix::fs::symlink("file", at("link")).unwrap();
    std::fs::create_dir(at("sub")).unwrap();
    let listener = UnixListener::bind(at("socket")).unwrap();
    let root = folder.path().to_owned();
    std::thread::spawn(move || {
        restrict(&Deny::ALL, Some(&[])).unwrap();
        let at = |name: &str| root.join(name);
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 4);
        assert_eq!(std::fs::metadata(at("file")).unwrap().len(), 5);
        assert!(rustix::fs::statvfs(&root).is_ok());
        let open = |path: &Path, flags| rustix::fs::openat(CWD, path, flags, Mode::RUSR).map(drop);
        let list = OFlags::RDONLY | OFlags::DIRECTORY;
        assert_eq!(open(&at("sub"), list | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC), Ok(()));
        assert_eq!(open(&at("file"), list), Err(Errno::NOTDIR));
        for flags in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR, OFlags::PATH, OFlags::CREATE | OFlags::WRONLY] {
            assert_eq!(open(&at("file"), flags), Err(Errno::PERM), "{flags:?}");
        }
        // Kernels before 6.4 make a file of these two.
        assert_eq!(open(&at("new"), list | OFlags::CREATE), Err(Errno::PERM));
        assert_eq!(open(&root, OFlags::TMPFILE | OFlags::RDWR), Err(Errno::PERM));
        let other = rustix::fs::openat2(CWD, &root, list, Mode::empty(), ResolveFlags::empty());
        assert_eq!(other.map(drop), Err(Errno::PERM));
        let refused = |result: io::Result<()>| result.unwrap_err().raw_os_error() == Some(libc::EPERM);
        assert!(refused(std::fs::read(at("file")).map(drop)));
        assert!(refused(std::fs::read_link(at("link")).map(drop)));
        assert!(refused(std::fs::remove_file(at("file"))));
        assert!(refused(std::fs::rename(at("file"), at("other"))));
        assert!(refused(std::fs::create_dir(at("new"))));
        assert!(refused(std::fs::hard_link(at("file"), at("new"))));
        assert!(refused(UnixStream::connect(at("socket")).map(drop)));
        // A socket that is there already is as good as one that is made.
        assert_eq!(raw(libc::SYS_connect, [-1, 0, 0]), libc::EPERM);
    })
    .join()
    .unwrap();
    drop(listener);
}

/// CLONE_NEWNS to CLONE_NEWNET (linux/sched.h), by their numbers and not by the list under test.
const NAMESPACE_BITS: [u64; 7] =
    [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];

#[cfg(target_arch = "x86_64")]
#[test]
fn another_abi_s_numbers_kill() {
    use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
    // getpid by its x32 number: the kernel may not even have that ABI, the filter comes first.
    let mut command = std::process::Command::new("/bin/true");
    let call = || {
        restrict(&[Deny::Namespaces], None).map_err(io::Error::other)?;
        raw(0x4000_0000 | libc::SYS_getpid, [0; 3]);
        Ok(())
    };
    // SAFETY: what the child allocates between fork and its end it never frees; it waits for no lock of another thread.
    let mut child = unsafe { command.pre_exec(call) }.spawn().unwrap();
    // It dies before exec, and says nothing through the pipe by which a failed start would be told.
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGSYS));
}

#[test]
fn the_privileged_way_leaves_no_new_privs_alone() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    std::thread::spawn(|| {
        restrict_with_privilege(&[Deny::Trace], None).unwrap();
        assert_eq!(raw(libc::SYS_ptrace, [0; 3]), libc::EPERM);
        assert!(!rustix::thread::no_new_privs().unwrap());
        crate::process::keep_only(&[]).unwrap();
        assert!(matches!(restrict_with_privilege(&[Deny::Keys], None), Err(SeccompError::Privileged(_))));
    })
    .join()
    .unwrap();
}
