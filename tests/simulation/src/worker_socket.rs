//! A socket of workers, as `bulkhead_worker` speaks there: each connection is a worker, which says its number and then answers one
//! request after the other.

use std::future::Future;
use std::os::fd::OwnedFd;

use bulkhead_sys::{async_fd, scm};
use bulkhead_worker::Message;
use tokio::io::Interest;

/// What the workers of a socket do.
pub trait Worker: Clone + Send + 'static {
    /// The number that each of them says first.
    const PID: u32;

    /// Answers a request; None: the worker dies of it.
    fn answer(&self, request: Message, asker: &OwnedFd) -> impl Future<Output = Option<Message>> + Send;
}

/// Serves until it is dropped.
pub async fn serve(worker: impl Worker, listener: OwnedFd) {
    let Ok(listener) = async_fd::register(listener) else { return };
    while let Ok(connection) = listener.async_io(Interest::READABLE, |listener| scm::accept(listener)).await {
        tokio::spawn(work(worker.clone(), connection));
    }
}

/// One of them.
async fn work<W: Worker>(worker: W, connection: OwnedFd) {
    let Ok(connection) = async_fd::register(connection) else { return };
    let mut next = Some(Message::of(W::PID.to_le_bytes().to_vec()));
    while let Some(message) = next.take() {
        if connection.async_io(Interest::WRITABLE, |socket| message.send(socket)).await.is_err() {
            return;
        }
        let Ok(Some(request)) = connection.async_io(Interest::READABLE, |socket| Message::recv(socket)).await else {
            return;
        };
        next = worker.answer(request, connection.get_ref()).await;
    }
}
