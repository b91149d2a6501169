//! The other side of supervision: notifications, the watchdog's beat, the death pipe, the signals.

use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Tells systemd or the launcher; a missing NOTIFY_SOCKET is fine.
pub(crate) fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "supervisor could not be notified");
    }
}

/// What each beat of a start adds to the time that the supervisor gives it (`TimeoutStartSec=` of the units).
const START_EXTENSION_USEC: u32 = 90_000_000;

/// Beats twice within each watchdog interval, from the one thread that does the work: a stuck loop stops the beat.
/// `healthy` may hold the beat back when the daemon's own main task has stopped turning. Until the daemon was `ready` once
/// a beat also asks for more time: what it waits for (another process, the runtime) takes as long as it takes.
pub(crate) async fn watchdog(healthy: impl Fn() -> bool, ready: impl Fn() -> bool) {
    let Some(interval) = sd_notify::watchdog_enabled().filter(|interval| *interval > Duration::from_millis(1)) else {
        return std::future::pending().await;
    };
    let mut tick = tokio::time::interval(interval / 2);
    let mut starting = true;
    loop {
        tick.tick().await;
        // Never afterwards: systemd would stretch the watchdog itself.
        starting &= !ready();
        if healthy() {
            if starting {
                notify(&[sd_notify::NotifyState::ExtendTimeoutUsec(START_EXTENSION_USEC)]);
            }
            notify(&[sd_notify::NotifyState::Watchdog]);
        } else {
            tracing::error!("main task does not turn, the watchdog's beat is held back");
        }
    }
}

/// Cancels the token on SIGTERM or SIGINT.
pub(crate) async fn stop_signals(stop: CancellationToken) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("asked to stop");
    stop.cancel();
    Ok(())
}

/// Resolves when the launcher is gone: the pipe's other end is closed. Never resolves without a pipe (systemd).
pub(crate) async fn launcher_gone(pipe: Option<OwnedFd>) {
    let Some(pipe) = pipe else { return std::future::pending().await };
    let Ok(pipe) = bulkhead_sys::async_fd::register(pipe) else { return };
    loop {
        let Ok(mut ready) = pipe.readable().await else { return };
        let mut byte = [0u8; 1];
        match ready.try_io(|fd| rustix::io::read(fd, &mut byte).map_err(std::io::Error::from)) {
            Ok(Ok(0)) => return,
            Ok(Err(error)) if error.kind() != std::io::ErrorKind::Interrupted => return,
            // Nothing is ever written; a byte means nothing.
            Ok(_) | Err(_) => {}
        }
    }
}
