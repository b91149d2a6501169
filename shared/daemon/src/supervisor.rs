//! The other side of supervision: notifications, the watchdog's beat, the death pipe, the signals.

use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::progress::{Beat, Progress};

/// Tells systemd or the launcher; a missing NOTIFY_SOCKET is fine.
pub(crate) fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "supervisor could not be notified");
    }
}

/// What each beat of a start adds to the time that the supervisor gives it (`TimeoutStartSec=` of the units).
const START_EXTENSION_USEC: u32 = 90_000_000;

/// Beats twice within each watchdog interval, from the one thread that does the work and only while every loop answers
/// it: a stuck loop stops the beat. Why it is held back is logged and told to the supervisor. Until the daemon was
/// `ready` once a beat also asks for more time: what it waits for (another process, the runtime) takes as long as it takes.
pub(crate) async fn watchdog(progress: Progress, ready: impl Fn() -> bool) {
    let Some(interval) = sd_notify::watchdog_enabled().filter(|interval| *interval > Duration::from_millis(1)) else {
        return std::future::pending().await;
    };
    beat(progress, interval, ready, notify).await;
}

async fn beat(
    progress: Progress,
    interval: Duration,
    ready: impl Fn() -> bool,
    notify: impl Fn(&[sd_notify::NotifyState<'_>]),
) {
    let mut tick = tokio::time::interval(interval / 2);
    let (mut held_back, mut starting) = (false, true);
    loop {
        tick.tick().await;
        // Never afterwards: systemd would stretch the watchdog itself.
        starting &= !ready();
        match progress.beat() {
            Beat::Send => {
                if starting {
                    notify(&[sd_notify::NotifyState::ExtendTimeoutUsec(START_EXTENSION_USEC)]);
                }
                notify(&[sd_notify::NotifyState::Watchdog]);
                if std::mem::take(&mut held_back) {
                    tracing::info!("every loop goes round again");
                    notify(&[sd_notify::NotifyState::Status("")]);
                }
            }
            Beat::HoldBack(reason) => {
                held_back = true;
                tracing::error!(reason, "stuck, the watchdog's beat is held back");
                notify(&[sd_notify::NotifyState::Status(&reason)]);
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use parking_lot::Mutex;

    /// A daemon's skeleton with a main task that blocks on what never comes: the beat ends, the reason is told, and when
    /// the task comes round after all, the beat is back.
    #[tokio::test(start_paused = true)]
    async fn a_main_task_that_blocks_stops_the_beat() {
        let progress = Progress::default();
        let heartbeat = progress.register("engine", Duration::from_secs(20));
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        let held = lock.clone().lock_owned().await;
        let wedge = Arc::new(tokio::sync::Notify::new());
        let (wedged, seen) = (wedge.clone(), lock.clone());
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = heartbeat.asked() => {}
                    // A lock that somebody forgot to let go of.
                    () = wedged.notified() => drop(seen.lock().await),
                }
            }
        });
        let said = Arc::new(Mutex::new((0_u32, Vec::new())));
        let log = said.clone();
        tokio::spawn(beat(
            progress,
            Duration::from_secs(30),
            || true,
            move |states| {
                let mut said = log.lock();
                for state in states {
                    match state {
                        sd_notify::NotifyState::Watchdog => said.0 += 1,
                        sd_notify::NotifyState::Status(text) => said.1.push((*text).to_owned()),
                        _ => {}
                    }
                }
            },
        ));
        let beats = || said.lock().0;
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert!(beats() >= 40, "{} beats in ten minutes", beats());
        wedge.notify_one();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let before = beats();
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(beats(), before, "stuck: no beat any more");
        assert!(said.lock().1[0].contains("\"engine\" has not gone round"));
        drop(held);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(beats() > before);
        assert_eq!(said.lock().1.last().unwrap(), "");
    }
}
