//! Ctrl-C, SIGTERM and SIGHUP as a message: whoever waits stops waiting, and everything is taken down in order.

use std::sync::mpsc::{Receiver, sync_channel};

use anyhow::{Context, Result};
use bulkhead_testkit::wait;
use tokio::signal::unix::{SignalKind, signal};

/// From now on the three signals end waits (see [`wait::interrupt`]) and arrive at the receiver.
///
/// # Errors
/// The handlers cannot be installed.
pub fn listen() -> Result<Receiver<&'static str>> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting to listen for signals")?;
    let (sender, receiver) = sync_channel(8);
    let (ready, is_ready) = sync_channel(1);
    std::thread::spawn(move || {
        runtime.block_on(async move {
            let streams = (|| {
                Ok::<_, std::io::Error>((
                    signal(SignalKind::interrupt())?,
                    signal(SignalKind::terminate())?,
                    signal(SignalKind::hangup())?,
                ))
            })();
            let (mut interrupt, mut terminate, mut hangup) = match streams {
                Ok(streams) => streams,
                Err(error) => {
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            let _ = ready.send(Ok(()));
            loop {
                let name = tokio::select! {
                    _ = interrupt.recv() => "SIGINT",
                    _ = terminate.recv() => "SIGTERM",
                    _ = hangup.recv() => "SIGHUP",
                };
                wait::interrupt();
                // A full queue means that nobody has come round to the first one yet: no news in the ninth.
                let _ = sender.try_send(name);
            }
        });
    });
    is_ready.recv().context("the signal thread ended")?.context("installing signal handlers")?;
    Ok(receiver)
}
