//! Forbidden calls in a form that does no harm where they are allowed: for the tests that show they are not.
//!
//! Each call gets integers, and null wherever the kernel wants a pointer. Where it may be made, it fails for that or
//! does nothing; where it may not, it says EPERM, EACCES or ENOSYS, or the caller is killed. Each is made in a child, so
//! that what it would change or kill is that child. No daemon calls any of it, so none has it in its program.

use std::io;

use rustix::process::{Pid, WaitOptions};

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was carried out, or would have been with arguments that mean something (EFAULT, EINVAL, EBADF…).
    Allowed,
    /// The error number of the refusal.
    Refused(i32),
    /// The signal that killed whoever tried.
    Killed(i32),
    /// The same, with a core file.
    Dumped(i32),
}

/// Runs `act` in a forked child. An error without a number counts as EIO.
///
/// # Errors
/// No child could be made or waited for.
pub fn in_child(act: impl FnOnce() -> io::Result<()>) -> io::Result<Ended> {
    // SAFETY: the callers are single-threaded test programs, so the child may do whatever its parent could; it runs the
    // closure and leaves by _exit, running no destructor or handler of the parent's.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)) {
            Ok(Ok(())) => 0,
            Ok(Err(error)) => error.raw_os_error().unwrap_or(libc::EIO),
            Err(_) => libc::EIO,
        };
        // SAFETY: ends this process at once; no memory is touched.
        unsafe { libc::_exit(code) }
    }
    let pid = Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error)?;
    loop {
        let status = match rustix::process::waitpid(Some(pid), WaitOptions::empty()) {
            Ok(Some((_, status))) => status,
            Ok(None) | Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if let Some(signal) = status.terminating_signal() {
            return Ok(if libc::WCOREDUMP(status.as_raw()) { Ended::Dumped(signal) } else { Ended::Killed(signal) });
        }
        return Ok(match status.exit_status().unwrap_or(libc::EIO) {
            0 => Ended::Allowed,
            code => Ended::Refused(code),
        });
    }
}

/// Calls that no list of arguments makes harmless by itself; each knows its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    AddKey,
    Acct,
    AdjTime,
    Bpf,
    Chroot,
    CloneUserNamespace,
    Clone3,
    DeleteModule,
    Fanotify,
    FileSystemOpen,
    Foreign32Bit,
    ForeignX32,
    HardwarePorts,
    InitModule,
    InsertTerminalInput,
    IoUring,
    KernelLog,
    KexecLoad,
    Keyctl,
    ListMounts,
    Mount,
    MountSetAttributes,
    MoveMount,
    MoveProcessPages(i32),
    OpenByHandle,
    OpenTree,
    PerfEvent,
    Personality,
    PidfdGetfd(i32),
    PivotRoot,
    ProcessVmRead(i32),
    ProcessVmWrite(i32),
    Quota,
    Reboot,
    SetDomainName,
    SetHostName,
    SetNamespace,
    SetTime,
    SwapOn,
    TraceAttach(i32),
    TraceMe,
    Unmount,
    UnshareAll,
    Userfault,
}

/// `EFAULT` and the like mean that the kernel was willing.
fn willing(number: i32) -> bool {
    ![libc::EPERM, libc::EACCES, libc::ENOSYS].contains(&number)
}

/// Makes the call in this process: see [`in_child`].
///
/// # Errors
/// It was refused.
pub fn make(call: Call) -> io::Result<()> {
    match raw(call) {
        -1 => match io::Error::last_os_error() {
            error if error.raw_os_error().is_some_and(willing) => Ok(()),
            error => Err(error),
        },
        // int 0x80 answers the error number itself.
        code if code < 0 && !i32::try_from(-code).is_ok_and(willing) => {
            Err(io::Error::from_raw_os_error(i32::try_from(-code).unwrap_or(libc::EIO)))
        }
        _ => Ok(()),
    }
}

fn raw(call: Call) -> i64 {
    // In the kernel's headers; not in the library's yet, or not for all.
    const LISTMOUNT: i64 = 458;
    const PIDFD_GETFD: i64 = 438;
    const X32: i64 = 0x4000_0000;
    const TIOCSTI: i64 = 0x5412;
    const UTS_MAX: i64 = 64;
    let (number, arguments): (i64, [i64; 5]) = match call {
        // No such command, and null.
        Call::Bpf => (libc::SYS_bpf, [-1, 0, 0, 0, 0]),
        Call::AddKey => (libc::SYS_add_key, [0; 5]),
        // Session keyring, not to be made.
        Call::Keyctl => (libc::SYS_keyctl, [0, -3, 0, 0, 0]),
        // Null would switch accounting off; no address is at 1.
        Call::Acct => (libc::SYS_acct, [1, 0, 0, 0, 0]),
        Call::AdjTime => (libc::SYS_adjtimex, [0; 5]),
        Call::Chroot => (libc::SYS_chroot, [1, 0, 0, 0, 0]),
        Call::CloneUserNamespace => {
            (libc::SYS_clone, [i64::from(libc::CLONE_NEWUSER | libc::CLONE_THREAD | libc::CLONE_SIGHAND), 0, 0, 0, 0])
        }
        Call::Clone3 => (libc::SYS_clone3, [0; 5]),
        Call::DeleteModule => (libc::SYS_delete_module, [1, 0, 0, 0, 0]),
        // No class has these bits.
        Call::Fanotify => (libc::SYS_fanotify_init, [-1, 0, 0, 0, 0]),
        Call::FileSystemOpen => (libc::SYS_fsopen, [1, 0, 0, 0, 0]),
        Call::Foreign32Bit => return foreign_getpid(),
        Call::ForeignX32 => (libc::SYS_getpid | X32, [0; 5]),
        #[cfg(target_arch = "x86_64")]
        Call::HardwarePorts => (libc::SYS_ioperm, [0x80, 1, 0, 0, 0]),
        #[cfg(not(target_arch = "x86_64"))]
        Call::HardwarePorts => (libc::SYS_getpid, [0; 5]),
        Call::InitModule => (libc::SYS_init_module, [1, 0, 1, 0, 0]),
        // Descriptor 0 is /dev/null or no terminal of ours, and the character's address is none.
        Call::InsertTerminalInput => (libc::SYS_ioctl, [0, TIOCSTI, 1, 0, 0]),
        Call::IoUring => (libc::SYS_io_uring_setup, [1, 1, 0, 0, 0]),
        // SYSLOG_ACTION_SIZE_UNREAD: a number, nothing is read.
        Call::KernelLog => (libc::SYS_syslog, [9, 0, 0, 0, 0]),
        // More segments than there may be.
        Call::KexecLoad => (libc::SYS_kexec_load, [0, 1 << 20, 1, 0, 0]),
        Call::ListMounts => (LISTMOUNT, [1, 0, 0, 0, 0]),
        Call::Mount => (libc::SYS_mount, [1, 1, 1, 0, 0]),
        Call::MountSetAttributes => (libc::SYS_mount_setattr, [-1, 1, 0, 1, 32]),
        Call::MoveMount => (libc::SYS_move_mount, [-1, 1, -1, 1, 0]),
        Call::MoveProcessPages(pid) => (libc::SYS_move_pages, [i64::from(pid), 1, 1, 0, 1]),
        Call::OpenByHandle => (libc::SYS_open_by_handle_at, [-1, 1, 0, 0, 0]),
        Call::OpenTree => (libc::SYS_open_tree, [-1, 1, 0, 0, 0]),
        Call::PerfEvent => (libc::SYS_perf_event_open, [1, 0, -1, -1, 0]),
        // ADDR_NO_RANDOMIZE: predictable addresses for what is started next, in this child alone.
        Call::Personality => (libc::SYS_personality, [0x004_0000, 0, 0, 0, 0]),
        Call::PidfdGetfd(pid) => {
            // SAFETY: integer arguments; a descriptor that this child's end closes.
            let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
            (PIDFD_GETFD, [pidfd, 0, 0, 0, 0])
        }
        Call::PivotRoot => (libc::SYS_pivot_root, [1, 1, 0, 0, 0]),
        // One vector each, at addresses where nothing is: the target is looked up and checked first.
        Call::ProcessVmRead(pid) => return vm(libc::SYS_process_vm_readv, pid),
        Call::ProcessVmWrite(pid) => return vm(libc::SYS_process_vm_writev, pid),
        // Q_SYNC of nothing.
        Call::Quota => (libc::SYS_quotactl, [-1, 1, 0, 0, 0]),
        // Without the magic numbers.
        Call::Reboot => (libc::SYS_reboot, [0; 5]),
        Call::SetDomainName => (libc::SYS_setdomainname, [1, UTS_MAX + 1, 0, 0, 0]),
        Call::SetHostName => (libc::SYS_sethostname, [1, UTS_MAX + 1, 0, 0, 0]),
        Call::SetNamespace => (libc::SYS_setns, [-1, 0, 0, 0, 0]),
        Call::SetTime => (libc::SYS_settimeofday, [0; 5]),
        Call::SwapOn => (libc::SYS_swapon, [1, 0, 0, 0, 0]),
        // PTRACE_SEIZE: does not stop it, and ends with this child.
        Call::TraceAttach(pid) => (libc::SYS_ptrace, [0x4206, i64::from(pid), 0, 0, 0]),
        Call::TraceMe => (libc::SYS_ptrace, [0; 5]),
        Call::Unmount => (libc::SYS_umount2, [1, 0, 0, 0, 0]),
        Call::UnshareAll => (libc::SYS_unshare, [i64::from(libc::CLONE_NEWUSER | libc::CLONE_NEWNS), 0, 0, 0, 0]),
        // Flags that there are not.
        Call::Userfault => (libc::SYS_userfaultfd, [-1, 0, 0, 0, 0]),
    };
    let [a, b, c, d, e] = arguments;
    // SAFETY: where the kernel takes a pointer, the table gives null or 1, at neither of which anything can be mapped, so
    // the kernel reads and writes nothing; descriptors are -1; what is left are numbers that change this process alone.
    unsafe { libc::syscall(number, a, b, c, d, e) }
}

fn vm(number: i64, pid: i32) -> i64 {
    let mut byte = [0u8; 1];
    let local = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    // Where programs and their libraries never are.
    let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(1), iov_len: 1 };
    // SAFETY: the local vector is one live byte; the remote one is looked up in the other process, where nothing is.
    unsafe { libc::syscall(number, pid, &raw const local, 1, &raw const remote, 1, 0) }
}

/// getpid by the 32-bit entry of the kernel, which filters of 64-bit numbers do not know.
#[cfg(target_arch = "x86_64")]
fn foreign_getpid() -> i64 {
    let result: i32;
    // SAFETY: getpid (20 in the 32-bit table) has no arguments and touches no memory; the kernel may clobber r8 to r11.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("eax") 20 => result, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    i64::from(result)
}

/// There is no such entry that a program of this architecture could use.
#[cfg(not(target_arch = "x86_64"))]
fn foreign_getpid() -> i64 {
    i64::from(-libc::ENOSYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_status_of_a_child_is_reported() {
        let code = |number| move || Err(io::Error::from_raw_os_error(number));
        assert_eq!(in_child(|| Ok(())).unwrap(), Ended::Allowed);
        assert_eq!(in_child(code(libc::EACCES)).unwrap(), Ended::Refused(libc::EACCES));
        let killed = in_child(|| {
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            Ok(())
        });
        assert_eq!(killed.unwrap(), Ended::Killed(libc::SIGKILL));
    }

    #[test]
    fn a_call_that_is_not_filtered_is_allowed_and_a_filtered_one_is_not() {
        // Nothing here that a container's or a sandbox's own filter may deny.
        for call in [Call::ProcessVmRead(std::process::id().cast_signed()), Call::TraceMe, Call::Personality] {
            assert_eq!(in_child(|| make(call)).unwrap(), Ended::Allowed, "{call:?}");
            let filtered = in_child(|| {
                let denied = crate::seccomp::Deny::UNPRIVILEGED;
                crate::seccomp::restrict(denied, Some(&[])).map_err(io::Error::other)?;
                make(call)
            });
            assert_eq!(filtered.unwrap(), Ended::Refused(libc::EPERM), "{call:?}");
        }
    }
}
