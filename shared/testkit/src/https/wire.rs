//! What comes of a connection, read and written by threads that wait: an answer's body as it arrives, and the two
//! directions of a connection that left HTTP or never was of it.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::{Buf as _, Bytes};
use http::HeaderMap;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::runtime::Handle;

use super::LIMIT;

/// Bytes both ways.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

fn in_time<T>(runtime: &Handle, limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let waited = runtime.block_on(async { tokio::time::timeout(limit, work).await });
    waited.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, format!("nothing within {limit:?}"))))
}

/// An answer that is read and counted by nobody's thread; dropping it breaks the connection.
#[derive(Debug)]
pub struct Counted(tokio::task::JoinHandle<()>);

impl Counted {
    /// Whether the answer has ended or broken.
    pub fn is_over(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An answer whose body is read as it comes.
pub struct Arriving {
    pub status: u16,
    pub headers: HeaderMap,
    runtime: Handle,
    body: Incoming,
    rest: Bytes,
    limit: Duration,
}

impl std::fmt::Debug for Arriving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arriving").field("status", &self.status).finish_non_exhaustive()
    }
}

impl Arriving {
    pub(super) fn new(runtime: &Handle, response: http::Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        Self {
            status: head.status.as_u16(),
            headers: head.headers,
            runtime: runtime.clone(),
            body,
            rest: Bytes::new(),
            limit: LIMIT,
        }
    }

    /// How long the next bytes may take, from now on; later than that a read fails with `TimedOut`.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// What arrives next; `None` at the end.
    ///
    /// # Errors
    /// Nothing came in time, or the connection broke before the end.
    pub fn chunk(&mut self) -> io::Result<Option<Bytes>> {
        if !self.rest.is_empty() {
            return Ok(Some(std::mem::take(&mut self.rest)));
        }
        let body = &mut self.body;
        in_time(&self.runtime, self.limit, async {
            while let Some(frame) = body.frame().await {
                // Trailers are not asked for.
                if let Ok(data) = frame.map_err(io::Error::other)?.into_data()
                    && !data.is_empty()
                {
                    return Ok(Some(data));
                }
            }
            Ok(None)
        })
    }

    /// Reads on without a thread that waits, and counts the bytes: until the answer ends, or what is given back is dropped.
    pub fn counted(self, bytes: Arc<AtomicU64>) -> Counted {
        let Self { runtime, mut body, rest, .. } = self;
        bytes.fetch_add(rest.len() as u64, Ordering::Relaxed);
        Counted(runtime.spawn(async move {
            while let Some(Ok(frame)) = body.frame().await {
                let length = frame.data_ref().map_or(0, Bytes::len);
                bytes.fetch_add(length as u64, Ordering::Relaxed);
            }
        }))
    }

    /// Reads until `text` has come; gives all up to then (and what came along).
    ///
    /// # Errors
    /// The answer ended, broke or fell silent before: with what there was.
    pub fn read_until(&mut self, text: &str) -> Result<String> {
        let mut seen = Vec::new();
        loop {
            let next = self.chunk().with_context(|| format!("waiting for {text:?} after {:?}", printable(&seen)))?;
            let Some(next) = next else {
                anyhow::bail!("waiting for {text:?}: the answer ended after {:?}", printable(&seen));
            };
            seen.extend_from_slice(&next);
            if seen.windows(text.len().max(1)).any(|window| window == text.as_bytes()) {
                return Ok(String::from_utf8_lossy(&seen).into_owned());
            }
        }
    }
}

fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(2000)..]).into_owned()
}

impl Read for Arriving {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(mut next) = self.chunk()? else { return Ok(0) };
        let taken = next.len().min(into.len());
        next.copy_to_slice(&mut into[..taken]);
        self.rest = next;
        Ok(taken)
    }
}

/// A connection, both ways.
#[derive(Debug)]
pub struct Connection {
    pub reader: Reader,
    pub writer: Writer,
}

impl Connection {
    pub(super) fn new(runtime: &Handle, wire: Box<dyn Wire>) -> Self {
        let (read, write) = tokio::io::split(wire);
        Self {
            reader: Reader { runtime: runtime.clone(), half: read, limit: LIMIT },
            writer: Writer { runtime: runtime.clone(), half: write, limit: LIMIT },
        }
    }
}

impl Read for Connection {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.reader.read(into)
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

/// What comes; for a thread of its own. The connection ends when both directions are dropped.
pub struct Reader {
    runtime: Handle,
    half: ReadHalf<Box<dyn Wire>>,
    limit: Duration,
}

impl Reader {
    /// How long the next bytes may take, from now on; later than that a read fails with `TimedOut`.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let half = &mut self.half;
        in_time(&self.runtime, self.limit, half.read(into))
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reader")
    }
}

/// What goes; for a thread of its own.
pub struct Writer {
    runtime: Handle,
    half: WriteHalf<Box<dyn Wire>>,
    limit: Duration,
}

impl Writer {
    /// How long the other side may keep from reading, from now on; later than that a write fails with `TimedOut`.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Says that nothing more goes this way; the other way stays.
    ///
    /// # Errors
    /// The connection broke.
    pub fn finish(&mut self) -> io::Result<()> {
        let half = &mut self.half;
        in_time(&self.runtime, self.limit, half.shutdown())
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let half = &mut self.half;
        in_time(&self.runtime, self.limit, half.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        let half = &mut self.half;
        in_time(&self.runtime, self.limit, half.flush())
    }
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Writer")
    }
}
