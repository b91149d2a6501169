//! Between two processes one of which may be of another version ([`crate::versions`]): calls go through, each message as the other end
//! understands it. A connection stands for one of theirs, and breaks when theirs does.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tonic::Status;

use crate::schedule::Program;
use crate::versions::{Ends, Record};
use crate::world::Shared;

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// Who is at the ends.
#[derive(Debug, Clone)]
pub struct Edge {
    pub world: Shared,
    pub record: Arc<Record>,
    pub from: Program,
    pub to: Program,
    /// Where the one that is called listens itself.
    pub behind: PathBuf,
}

/// Serves until it is dropped.
pub async fn serve(edge: Edge, listener: std::os::unix::net::UnixListener) {
    let Ok(listener) = UnixListener::from_std(listener) else { return };
    while let Ok((near, _)) = listener.accept().await {
        tokio::spawn(carry(edge.clone(), near));
    }
}

async fn carry(edge: Edge, near: UnixStream) {
    let Ok(far) = UnixStream::connect(&edge.behind).await else { return };
    let client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let Ok((sender, connection)) = client.handshake(TokioIo::new(far)).await else { return };
    let service = hyper::service::service_fn(move |request| pass(edge.clone(), sender.clone(), request));
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let served = server.serve_connection(TokioIo::new(near), service);
    // The end of either is the end of both.
    tokio::select! {
        _ = connection => {}
        _ = served => {}
    }
}

impl Edge {
    /// Of what is answered, and not of what is asked.
    fn ends(&self, is_answer: bool) -> Ends {
        let world = self.world.lock();
        let (from, to) = (world.age(self.from), world.age(self.to));
        if is_answer { Ends { of_sender: to, of_receiver: from } } else { Ends { of_sender: from, of_receiver: to } }
    }
}

async fn pass(
    edge: Edge,
    mut sender: SendRequest<Changed>,
    request: Request<Incoming>,
) -> Result<Response<Changed>, Infallible> {
    let path = request.uri().path().to_owned();
    if edge.ends(false).is_before() && !edge.record.has(&path) {
        edge.world.lock().coverage.call(&format!("{path} unimplemented"));
        return Ok(Status::unimplemented(format!("{path} came later")).into_http());
    }
    let changed = |is_answer: bool| Change { edge: edge.clone(), path: path.clone(), is_answer };
    let request = request.map(|body| Changed::new(body, changed(false)));
    match sender.send_request(request).await {
        Ok(answer) => Ok(answer.map(|body| Changed::new(body, changed(true)))),
        Err(_) => Ok(Status::unavailable("the other end is gone").into_http()),
    }
}

/// What is done to the messages of one direction of a call.
#[derive(Debug)]
struct Change {
    edge: Edge,
    path: String,
    is_answer: bool,
}

impl Change {
    fn of(&self, message: &[u8]) -> Vec<Vec<u8>> {
        let ends = self.edge.ends(self.is_answer);
        self.edge.record.passes(&self.path, self.is_answer, message, ends)
    }
}

/// A body whose messages are changed on their way.
#[derive(Debug, Default)]
pub struct Changed {
    /// None: there is nothing in it.
    inner: Option<(Incoming, Change)>,
    buffer: BytesMut,
    ready: VecDeque<Bytes>,
}

impl Changed {
    fn new(body: Incoming, change: Change) -> Self {
        Changed { inner: Some((body, change)), ..Changed::default() }
    }

    /// Messages that are whole.
    fn take_messages(&mut self) {
        let Some((_, change)) = &self.inner else { return };
        while let Some(prefix) = self.buffer.get(..PREFIX) {
            let is_compressed = prefix.first() != Some(&0);
            let length = prefix.get(1..).map_or(0, |mut length| length.get_u32());
            let whole = PREFIX.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
            if self.buffer.len() < whole {
                return;
            }
            let framed = self.buffer.split_to(whole).freeze();
            let message = framed.slice(PREFIX..);
            if is_compressed {
                self.ready.push_back(framed);
                continue;
            }
            for message in change.of(&message) {
                let mut framed = BytesMut::with_capacity(PREFIX + message.len());
                framed.put_u8(0);
                framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
                framed.extend_from_slice(&message);
                self.ready.push_back(framed.freeze());
            }
        }
    }
}

impl Body for Changed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        loop {
            if let Some(message) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(message))));
            }
            let Some((inner, _)) = &mut this.inner else { return Poll::Ready(None) };
            match ready!(Pin::new(inner).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        this.buffer.extend_from_slice(&data);
                        this.take_messages();
                    }
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return Poll::Ready(other),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && self.inner.as_ref().is_none_or(|(inner, _)| inner.is_end_stream())
    }
}
