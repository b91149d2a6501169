//! A child of this very program that shares nothing with its parent but one descriptor: what may hang in the kernel is
//! done there, and hangs alone.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::panic::AssertUnwindSafe;

use rustix::process::Pid;

use crate::program::Title;

/// What a child that panicked ends with.
const PANICKED: u8 = 101;

/// Runs `work` in a new process that has standard input, output and error, and `kept` under its number, and no other
/// descriptor, shows `title` as its command line, and ignores what asks it to end (SIGINT, SIGTERM, SIGHUP): no lock
/// and no listening socket of the parent's outlives the parent in it. The child ends with the code that
/// `work` returns and runs no destructor of what it inherited. In the parent `kept` is closed.
///
/// # Errors
/// This process has more than one thread (a lock of another thread would stay taken in the child for ever), or the kernel
/// makes no process.
pub fn apart(kept: OwnedFd, title: Option<(Title, &str)>, work: impl FnOnce(OwnedFd) -> u8) -> io::Result<Pid> {
    if threads()? != 1 {
        return Err(io::Error::other("a process with several threads does not fork"));
    }
    // SAFETY: there is one thread, so nothing is held by another one and the child may do whatever the parent could. It
    // leaves by _exit: nothing of the parent's is dropped or flushed a second time.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let code = std::panic::catch_unwind(AssertUnwindSafe(|| {
            close_all_but(kept.as_raw_fd());
            ignore_requests_to_end();
            if let Some((title, text)) = title {
                title.show(text);
            }
            work(kept)
        }));
        // SAFETY: ends this process at once; no memory is touched.
        unsafe { libc::_exit(code.unwrap_or(PANICKED).into()) }
    }
    Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error)
}

/// Threads of this process: each is a folder of /proc/self/task, and a folder has a link from each below it, one from above
/// and its own. Examining the folder takes no right to read it.
fn threads() -> io::Result<u64> {
    let links = rustix::fs::stat("/proc/self/task")?.st_nlink;
    #[allow(clippy::useless_conversion, reason = "the type differs between architectures")]
    Ok(u64::from(links).saturating_sub(2))
}

fn close_all_but(kept: RawFd) {
    let kept = kept.unsigned_abs();
    for (first, last) in [(3, kept.saturating_sub(1)), (kept.saturating_add(1).max(3), libc::c_uint::MAX)] {
        if first <= last {
            // SAFETY: the owners of these descriptors live in the parent; in this child nothing that owns one is used or
            // dropped again, because it ends by _exit. A kernel before 5.9 refuses, below what this project runs on.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

/// A terminal sends its signals to all processes, and so may who stops a service: this one ends when its socket is closed, and
/// until then it is needed for what its parent still does.
fn ignore_requests_to_end() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: no handler is installed, only the disposition of this process is changed, which has one thread.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Takes the end of a child, if it has ended.
pub fn reap(child: Pid) -> bool {
    !matches!(rustix::process::waitpid(Some(child), rustix::process::WaitOptions::NOHANG), Ok(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_does_not_fork() {
        // The harness runs a test beside its main thread.
        let (kept, _other) = crate::scm::pair().unwrap();
        assert!(threads().unwrap() >= 2);
        assert!(apart(kept, None, |_| 0).unwrap_err().to_string().contains("several threads"));
    }
}
