//! Plugins of tests: how they are reached, and one that ends with all its connections.

// For tests alone, which end where a value is not what it should be.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::path::Path;
use std::thread::JoinHandle;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;

use crate::csi::connection::DialFuture;
use crate::csi::{Dial, PluginAddress};

/// Connects without a broker.
#[derive(Debug)]
pub struct Direct;

impl Dial for Direct {
    fn dial(&self, address: &PluginAddress) -> DialFuture {
        let PluginAddress::Endpoint(path) = address.clone() else { panic!("an endpoint was named") };
        Box::pin(UnixStream::connect(path))
    }
}

/// A server in a thread of its own: with it, its connections end.
#[derive(Debug)]
pub struct Serving(Option<(oneshot::Sender<()>, JoinHandle<()>)>);

impl Serving {
    /// At this path, in place of what is there.
    ///
    /// # Panics
    /// Nobody can listen there.
    pub fn at<F: Future<Output = ()>>(path: &Path, serve: impl FnOnce(UnixListener) -> F + Send + 'static) -> Self {
        let _ = std::fs::remove_file(path);
        let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = serve(UnixListener::from_std(listener).unwrap()) => {}
                    _ = stopped => {}
                }
            });
        });
        Serving(Some((stop, thread)))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let Some((stop, thread)) = self.0.take() else { return };
        let _ = stop.send(());
        let _ = thread.join();
    }
}
