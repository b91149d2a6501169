//! The one connection to a plugin, made as soon as it is registered and made anew whenever it breaks: that it stands is what is known
//! of a driver that nobody asks anything.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bulkhead_types::BackOff;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;
use tonic::transport::Channel;

use crate::csi::connection::{DIAL_TIMEOUT, channel, not_reached};
use crate::csi::{Dial, PluginAddress};

/// Pauses between tries; who wants to ask something does not wait for them.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// A connection that has lasted so long was a good one.
const LASTS: Duration = Duration::from_secs(10);

/// How far it is.
#[derive(Debug, Clone)]
enum State {
    Connecting,
    Connected(Channel),
    Failed(Status),
}

/// See the module. It ends when this is dropped.
#[derive(Debug)]
pub struct Connection {
    state: watch::Receiver<State>,
    at_once: Arc<Notify>,
    stop: CancellationToken,
    _end: DropGuard,
}

/// Tells of its end.
struct Watched {
    stream: UnixStream,
    _closed: oneshot::Sender<()>,
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connection {
    /// Begins to connect. `changed` is called with every change. Must be called within a tokio runtime.
    pub fn begin(dial: Arc<dyn Dial>, endpoint: &str, changed: impl Fn() + Send + Sync + 'static) -> Self {
        let (sender, state) = watch::channel(State::Connecting);
        let (at_once, stop) = (Arc::new(Notify::new()), CancellationToken::new());
        let address = PluginAddress::Endpoint(endpoint.to_owned());
        let (poked, stopped) = (at_once.clone(), stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = keep(&dial, &address, &sender, &poked, &changed) => {}
            }
        });
        Connection { state, at_once, stop: stop.clone(), _end: stop.drop_guard() }
    }

    /// Whether it stands.
    pub fn is_connected(&self) -> bool {
        matches!(*self.state.borrow(), State::Connected(_))
    }

    /// Ends with the connection's owner.
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// What a call is made on; where it does not stand, it is tried once more. No time limit.
    ///
    /// # Errors
    /// UNAVAILABLE: nobody is there.
    pub async fn channel(&self) -> Result<Channel, Status> {
        let mut state = self.state.clone();
        let mut tried = false;
        loop {
            match state.borrow_and_update().clone() {
                State::Connected(channel) => return Ok(channel),
                State::Failed(status) if tried => return Err(status),
                State::Failed(_) => {
                    tried = true;
                    self.at_once.notify_one();
                }
                State::Connecting => tried = true,
            }
            if state.changed().await.is_err() {
                return Err(Status::unavailable("the plugin is not registered any more"));
            }
        }
    }
}

async fn keep(
    dial: &Arc<dyn Dial>,
    address: &PluginAddress,
    state: &watch::Sender<State>,
    at_once: &Notify,
    changed: &(impl Fn() + Send + Sync),
) {
    let mut retry = BackOff::new(RETRY.0, RETRY.1);
    loop {
        match connect(dial, address).await {
            Ok((channel, closed)) => {
                let since = Instant::now();
                state.send_replace(State::Connected(channel));
                changed();
                // Nothing is ever sent: the end is what is waited for.
                let _ = closed.await;
                tracing::info!(endpoint = %address, "Connection changed: the plugin has closed it");
                if since.elapsed() >= LASTS {
                    retry.reset();
                }
                state.send_replace(State::Failed(Status::unavailable("the plugin has closed the connection")));
                changed();
            }
            Err(status) => {
                tracing::debug!(endpoint = %address, "{}", status.message());
                state.send_replace(State::Failed(status));
                changed();
            }
        }
        tokio::select! {
            () = at_once.notified() => {}
            () = tokio::time::sleep(retry.pause()) => {}
        }
        state.send_replace(State::Connecting);
    }
}

async fn connect(dial: &Arc<dyn Dial>, address: &PluginAddress) -> Result<(Channel, oneshot::Receiver<()>), Status> {
    let stream = match tokio::time::timeout(DIAL_TIMEOUT, dial.dial(address)).await {
        Ok(dialed) => dialed.map_err(|error| not_reached(address, &error))?,
        Err(_) => return Err(not_reached(address, &io::ErrorKind::TimedOut.into())),
    };
    let (sender, closed) = oneshot::channel();
    let channel = tokio::time::timeout(DIAL_TIMEOUT, channel(Watched { stream, _closed: sender })).await;
    match channel {
        Ok(channel) => Ok((channel?, closed)),
        Err(_) => Err(not_reached(address, &io::ErrorKind::TimedOut.into())),
    }
}
