//! Open files that systemd keeps for kubelet.service (its file descriptor store): those of an earlier start are taken up,
//! new ones are given to it. It closes them when the service is stopped, and not when it is restarted.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use bulkhead_sys::notify;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sd_notify::NotifyState;

/// Name of `--lock-file`'s.
pub const LOCK_FILE: &str = "lock-file";
/// For systemd to have read all that was said to it.
const PATIENCE: Duration = Duration::from_secs(5);

/// systemd does not keep what it was given.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error("failed to take what systemd keeps for kubelet.service")]
    Take(#[source] std::io::Error),
    #[error("failed to have systemd keep this node's claims")]
    Give(#[source] std::io::Error),
    #[error("systemd has not taken this node's claims within {} s", PATIENCE.as_secs())]
    Silent,
}

/// What is kept.
#[derive(Debug)]
pub struct KeptLocks {
    /// Of an earlier start, not taken up yet.
    earlier: BTreeMap<String, OwnedFd>,
    /// Held by this process too until it ends, so that no lock is without a holder for a moment.
    held: Vec<File>,
}

impl KeptLocks {
    /// Takes what systemd passed to this start.
    ///
    /// # Errors
    /// The passed descriptors are not what sd_listen_fds(3) says.
    pub fn take() -> Result<Self, KeepError> {
        let earlier = bulkhead_sys::listen_fds::take().map_err(KeepError::Take)?.into_iter().collect();
        Ok(KeptLocks { earlier, held: Vec::new() })
    }

    /// The file of this name that an earlier start left.
    pub fn adopt(&mut self, name: &str) -> Option<File> {
        self.earlier.remove(name).map(File::from)
    }

    /// Has systemd keep the file, in place of any other of this name.
    ///
    /// # Errors
    /// systemd cannot be told.
    pub fn keep(&mut self, name: &str, file: File) -> Result<(), KeepError> {
        notify::let_go(name).and_then(|()| notify::keep(name, file.as_fd())).map_err(KeepError::Give)?;
        self.held.push(file);
        Ok(())
    }

    /// What nobody took up is closed, here and there.
    ///
    /// # Errors
    /// systemd cannot be told.
    pub fn let_go_of_the_rest(&mut self) -> Result<(), KeepError> {
        std::mem::take(&mut self.earlier)
            .into_keys()
            .try_for_each(|name| notify::let_go(&name))
            .map_err(KeepError::Give)
    }

    /// Says that the service is up, and how it is, and waits until systemd has read everything: it believes no process that
    /// has ended.
    ///
    /// # Errors
    /// It does not answer.
    pub fn finish(self, status: &str) -> Result<(), KeepError> {
        let (ours, theirs) = std::io::pipe().map_err(KeepError::Give)?;
        sd_notify::notify(&last_words(status)).map_err(KeepError::Give)?;
        // It closes the descriptor once it comes to this message (sd_notify(3), BARRIER=1).
        notify::barrier(theirs.as_fd()).map_err(KeepError::Give)?;
        drop(theirs);
        let mut fds = [PollFd::new(&ours, PollFlags::HUP)];
        let patience = Timespec { tv_sec: PATIENCE.as_secs().cast_signed(), tv_nsec: 0 };
        loop {
            match poll(&mut fds, Some(&patience)) {
                Ok(0) => return Err(KeepError::Silent),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(KeepError::Give(error.into())),
            }
        }
    }
}

/// With READY=1 systemd starts the daemons; that the process ends then is all right (`RemainAfterExit=yes`).
fn last_words(status: &str) -> [NotifyState<'_>; 2] {
    [NotifyState::Status(status), NotifyState::Ready]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_unit_waits_for_is_said_last() {
        let unit = include_str!("../../../../systemd/kubelet.service");
        for line in ["Type=notify", "NotifyAccess=main", "RemainAfterExit=yes"] {
            assert!(unit.lines().any(|there| there == line), "{line}");
        }
        assert!(matches!(last_words("Node a"), [NotifyState::Status("Node a"), NotifyState::Ready]));
    }
}
