//! The kernel's log, for kubelet-evictiond, which may not open it by itself (docs/decisions/0063-who-reads-the-kernels-log.md).

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens it for reading, for the life of the launcher: so its place in the log outlives its reader. `None`, with a warning, where
/// the machine does not allow it: upstream's start ends there (`pkg/kubelet/kubelet.go` NewMainKubelet), unless
/// `KubeletInUserNamespace` is on.
pub fn open(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .inspect_err(|error| {
            tracing::warn!(
                %error,
                path = %path.display(),
                "failed to open the kernel's log, for which CAP_SYSLOG is needed where kernel.dmesg_restrict is 1: out of memory is not \
                 told of"
            );
        })
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_not_there_ends_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert!(open(&folder.path().join("kmsg")).is_none());
    }

    #[test]
    fn nobody_can_write_through_it() {
        // Not the machine's, which not everybody may open: who may write is settled when a file is opened, whatever it is.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        std::fs::write(&path, "6,1,0,-;booted\n").unwrap();
        let log = open(&path).unwrap();
        assert_eq!(rustix::io::write(&log, b"x"), Err(rustix::io::Errno::BADF));
        assert_eq!(rustix::io::read(&log, &mut [0_u8; 100]), Ok(15));
    }
}
