//! Peers of tests: how plugins are reached, one that ends with all its connections, and a descriptor broker.

// For tests alone, which end where a value is not what it should be.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use bulkhead_ipc::broker::{self, BrokerClient, BrokerRequest};
use bulkhead_ipc::limits::{Gate, Limits};
use bulkhead_ipc::peers::PeerUsers;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
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

/// A broker at this path, for as long as the runtime lives that this is called in. Whoever runs the test is kubelet-syncd.
///
/// # Panics
/// Nobody can listen there.
pub fn broker_at(
    path: &Path,
    answer: impl Fn(BrokerRequest) -> Result<Option<OwnedFd>, tonic::Status> + Clone + Send + Sync + 'static,
) -> BrokerClient {
    let users = Arc::new(PeerUsers {
        syncd: rustix::process::geteuid().as_raw(),
        evictiond: 1_000_001,
        statusd: 1_000_002,
        pods_cgroup: "/no-such/kubepods".into(),
        no_pods: None,
    });
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    let handler = move |_, request| std::future::ready(answer(request));
    tokio::spawn(broker::serve(listener, users, Gate::new(Limits::default()), handler, std::future::pending()));
    BrokerClient::new(path)
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
