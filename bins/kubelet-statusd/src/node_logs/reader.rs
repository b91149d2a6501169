//! The way to the process that reads the journal: a socket that was inherited. Each question goes with the writing end of a
//! pipe, and the answer is what comes out of the other end.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use bulkhead_ipc::common::JournalQuery;
use prost::Message as _;
use rustix::pipe::PipeFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;

/// What the other side takes.
const DATAGRAM_MAX: usize = 8 * 1024;

/// Why nothing can be read.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    #[error("this node has no reader of the journal")]
    None,
    #[error("the question has more than {DATAGRAM_MAX} bytes")]
    TooLong,
    #[error("asking the reader of the journal")]
    Io(#[from] io::Error),
}

/// The reader, where there is one.
#[derive(Debug, Clone, Default)]
pub struct JournalReader {
    socket: Option<Arc<AsyncFd<OwnedFd>>>,
}

impl JournalReader {
    /// `socket`: SOCK_SEQPACKET, given by the launcher where the configuration turns the log query on.
    ///
    /// # Errors
    /// It cannot be registered with the runtime.
    pub fn new(socket: Option<OwnedFd>) -> io::Result<Self> {
        let socket = socket.map(bulkhead_sys::async_fd::register).transpose()?;
        Ok(JournalReader { socket: socket.map(Arc::new) })
    }

    pub fn is_there(&self) -> bool {
        self.socket.is_some()
    }

    /// Asks. The pipe ends when the answer does; when it is dropped, whoever writes into it ends.
    ///
    /// # Errors
    /// There is no reader, or it cannot be asked.
    pub async fn ask(&self, query: &JournalQuery) -> Result<pipe::Receiver, ReaderError> {
        let socket = self.socket.as_ref().ok_or(ReaderError::None)?;
        let question = query.encode_to_vec();
        if question.len() > DATAGRAM_MAX {
            return Err(ReaderError::TooLong);
        }
        let (answer, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
        rustix::io::ioctl_fionbio(&answer, true).map_err(io::Error::from)?;
        let answer = pipe::Receiver::from_owned_fd(answer)?;
        socket.async_io(Interest::WRITABLE, |fd| bulkhead_sys::scm::send(fd, &question, &[write.as_fd()])).await?;
        Ok(answer)
    }
}
