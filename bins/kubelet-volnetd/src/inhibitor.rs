//! The lock at logind that delays a shutdown of the machine until pods have ended
//! (docs/decisions/0076-who-delays-a-shutdown.md). kubelet-syncd gets a copy, and one stays here: the death of one of the two does
//! not end the delay.
//!
//! Nothing of what is sent to logind, and nothing of the file that is written for it, comes from a peer.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_sys::dbus::bus::{Bus, BusError, SYSTEM_BUS};
use bulkhead_sys::dbus::login1;
use bulkhead_sys::systemd::{self, SystemdError};

/// logind's setting, raised by a file of upstream's name and words.
const DROP_IN: &str = "/etc/systemd/logind.conf.d/99-kubelet.conf";
const LOGIND: &str = "systemd-logind.service";
/// logind reads its files a moment after it was told to: the first look, twice as long before each next one.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LOOKS: u32 = 5;

/// Why there is no lock.
#[derive(Debug, thiserror::Error)]
pub enum InhibitorError {
    #[error("shutdownGracePeriod is not configured on this node")]
    NotConfigured,
    #[error("the system bus or logind")]
    Bus(#[from] BusError),
    #[error("unable to override inhibit delay by shutdown manager: {path}")]
    DropIn { path: PathBuf, source: std::io::Error },
    #[error("unable to reload logind conf")]
    Reload(#[from] SystemdError),
    #[error(
        "node shutdown manager was unable to update logind InhibitDelayMaxSec to {}s (ShutdownGracePeriod), current value of \
         InhibitDelayMaxSec ({}s) is less than requested ShutdownGracePeriod",
        wanted.as_secs(),
        found.as_secs()
    )]
    TooShort { wanted: Duration, found: Duration },
    #[error("the lock cannot be copied")]
    Copy(#[source] std::io::Error),
    #[error("the write ended unexpectedly")]
    Ended(#[source] tokio::task::JoinError),
}

/// The copy that stays here.
#[derive(Debug, Default)]
pub struct Inhibitor {
    held: tokio::sync::Mutex<Option<OwnedFd>>,
}

impl Inhibitor {
    /// Takes the lock anew and gives a copy. While a shutdown is being prepared logind gives none, and it is a copy of the one that
    /// is held.
    ///
    /// # Errors
    /// See [`InhibitorError`].
    pub async fn take(&self, delay: Option<Duration>) -> Result<OwnedFd, InhibitorError> {
        let delay = delay.ok_or(InhibitorError::NotConfigured)?;
        let mut held = self.held.lock().await;
        let lock = match taken(delay).await {
            Err(InhibitorError::Bus(error @ BusError::Refused { .. })) => {
                // The older one counts as long as it is open.
                let older = held.take().ok_or(error)?;
                tracing::info!("failed to get a new inhibitor lock, keeping the held one");
                older
            }
            other => other?,
        };
        let copy = lock.try_clone().map_err(InhibitorError::Copy);
        *held = Some(lock);
        copy
    }

    /// Closes the copy here. False: there was none.
    pub async fn release(&self) -> bool {
        self.held.lock().await.take().is_some()
    }
}

async fn taken(delay: Duration) -> Result<OwnedFd, InhibitorError> {
    let mut bus = Bus::connect(Path::new(SYSTEM_BUS), true).await?;
    let mut longest = login1::longest_delay(&mut bus).await?;
    if longest < delay {
        longest = raise(&mut bus, delay).await?;
    }
    if longest < delay {
        return Err(InhibitorError::TooShort { wanted: delay, found: longest });
    }
    let lock = login1::inhibit_shutdown(&mut bus).await?;
    tracing::info!(seconds = delay.as_secs(), "delaying the machine's shutdown until pods have ended");
    Ok(lock)
}

/// Has logind delay a shutdown for longer. Answers what it says afterwards.
async fn raise(bus: &mut Bus, delay: Duration) -> Result<Duration, InhibitorError> {
    let written = tokio::task::spawn_blocking(move || {
        write_drop_in(Path::new(DROP_IN), delay)?;
        systemd::reload_by_signal(LOGIND).map_err(InhibitorError::from)
    });
    written.await.map_err(InhibitorError::Ended)??;
    let mut wait = FIRST_LOOK;
    let mut longest = Duration::ZERO;
    for _ in 0..LOOKS {
        longest = login1::longest_delay(bus).await?;
        if longest >= delay {
            break;
        }
        tokio::time::sleep(wait).await;
        wait *= 2;
    }
    Ok(longest)
}

fn write_drop_in(path: &Path, delay: Duration) -> Result<(), InhibitorError> {
    let text = format!("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={}\n", delay.as_secs());
    let write = || {
        if let Some(folder) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        }
        // logind reads it as root; the administrator is to be able to read it as well.
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o644).open(path)?;
        // Whatever the umask says.
        file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())
    };
    write().map_err(|source| InhibitorError::DropIn { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drop_in_is_upstreams() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logind.conf.d/99-kubelet.conf");
        for seconds in [3000, 20] {
            write_drop_in(&path, Duration::from_secs(seconds)).unwrap();
            let expected = format!("# Kubelet logind override\n[Login]\nInhibitDelayMaxSec={seconds}\n");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        std::fs::create_dir(folder.path().join("taken")).unwrap();
        let error = write_drop_in(&folder.path().join("taken"), Duration::from_secs(1)).unwrap_err();
        assert!(error.to_string().contains("taken"), "{error}");
    }

    #[tokio::test]
    async fn nothing_is_held_where_nothing_is_configured() {
        let inhibitor = Inhibitor::default();
        assert!(matches!(inhibitor.take(None).await, Err(InhibitorError::NotConfigured)));
        assert!(!inhibitor.release().await);
    }
}
