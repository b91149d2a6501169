//! The socket between kubelet-statusd and the reader of the journal, both ends: a question each datagram, with the writing
//! end of a pipe, and the answer is what comes out of the other end.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use prost::Message as _;
use rustix::pipe::PipeFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;

use crate::common::JournalQuery;

/// Largest question, bytes.
pub const MAX_QUESTION_BYTES: usize = 8 * 1024;

/// Why nothing can be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("this node has no reader of the journal")]
    NoReader,
    #[error("the question has more than {MAX_QUESTION_BYTES} bytes")]
    TooLong,
    #[error("failed to ask the reader of the journal")]
    Io(#[from] io::Error),
}

/// The end that asks. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct JournalReader {
    way: Way,
}

/// How the reader is reached.
#[derive(Debug, Clone, Default)]
enum Way {
    #[default]
    None,
    /// One socket for all questions, from the launcher.
    Passed(Arc<AsyncFd<OwnedFd>>),
    /// A connection for each question: who listens there starts when somebody asks.
    At(Arc<Path>),
}

impl JournalReader {
    /// `socket`: SOCK_SEQPACKET, given by the launcher where the configuration turns the log query on.
    ///
    /// # Errors
    /// It cannot be registered with the runtime.
    pub fn new(socket: Option<OwnedFd>) -> io::Result<Self> {
        let socket = socket.map(bulkhead_sys::async_fd::register).transpose()?;
        Ok(JournalReader { way: socket.map_or(Way::None, |socket| Way::Passed(Arc::new(socket))) })
    }

    /// The reader that listens at this path, as its unit has it.
    pub fn at(path: &Path) -> Self {
        JournalReader { way: Way::At(path.into()) }
    }

    pub fn is_there(&self) -> bool {
        !matches!(self.way, Way::None)
    }

    /// Asks. The pipe ends when the answer does; when it is dropped, whoever writes into it ends.
    ///
    /// # Errors
    /// There is no reader, or it cannot be asked.
    pub async fn ask(&self, query: &JournalQuery) -> Result<pipe::Receiver, AskError> {
        let question = query.encode_to_vec();
        if question.len() > MAX_QUESTION_BYTES {
            return Err(AskError::TooLong);
        }
        let (answer, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
        rustix::io::ioctl_fionbio(&answer, true).map_err(io::Error::from)?;
        let answer = pipe::Receiver::from_owned_fd(answer)?;
        match &self.way {
            Way::None => return Err(AskError::NoReader),
            Way::Passed(socket) => {
                let send = |fd: &OwnedFd| bulkhead_sys::scm::send(fd, &question, &[write.as_fd()]);
                socket.async_io(Interest::WRITABLE, send).await?;
            }
            // A new socket has room for a question, which stays there for the reader when this end is closed.
            Way::At(path) => bulkhead_sys::scm::send(bulkhead_sys::scm::connect(path)?, &question, &[write.as_fd()])?,
        }
        Ok(answer)
    }
}

/// The end that answers.
#[derive(Debug)]
pub struct Questions {
    socket: AsyncFd<OwnedFd>,
}

impl Questions {
    /// # Errors
    /// The socket cannot be registered with the runtime.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Questions { socket: bulkhead_sys::async_fd::register(socket)? })
    }

    /// The next question with the pipe for its answer; `None` when the other end is closed. What is no question is passed
    /// over, and its pipe ends.
    ///
    /// # Errors
    /// The socket is broken.
    pub async fn next(&self) -> io::Result<Option<(JournalQuery, OwnedFd)>> {
        let mut buffer = vec![0; MAX_QUESTION_BYTES];
        loop {
            let received =
                self.socket.async_io(Interest::READABLE, |fd| bulkhead_sys::scm::recv(fd, &mut buffer)).await;
            let (length, mut fds) = match received {
                Ok(datagram) if datagram.len == 0 => return Ok(None),
                Ok(datagram) => (datagram.len, datagram.fds),
                // Too long, or with too many descriptors.
                Err(error) if error.kind() == io::ErrorKind::InvalidData => continue,
                Err(error) => return Err(error),
            };
            let question = buffer.get(..length).and_then(|bytes| JournalQuery::decode(bytes).ok());
            if let Some(question) = question.zip(fds.pop()) {
                return Ok(Some(question));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt as _;

    #[tokio::test]
    async fn a_reader_that_listens_is_asked_over_a_connection_of_the_questions_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.sock");
        let reader = JournalReader::at(&path);
        let query = JournalQuery { units: vec!["kubelet".into()], ..JournalQuery::default() };
        assert!(matches!(reader.ask(&query).await, Err(AskError::Io(_))), "nobody listens");
        let listener = bulkhead_sys::scm::listen(&path, 0o600).unwrap();
        // Asked before anybody accepts: as with a reader that starts only now.
        let mut answer = reader.ask(&query).await.unwrap();
        let questions = Questions::new(bulkhead_sys::scm::accept(&listener).unwrap()).unwrap();
        let (asked, pipe) = questions.next().await.unwrap().unwrap();
        assert_eq!(asked, query);
        drop(pipe);
        let mut said = String::new();
        answer.read_to_string(&mut said).await.unwrap();
        assert!(said.is_empty() && questions.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn questions_arrive_with_a_pipe_and_what_is_none_is_passed_over() {
        let (asker, answerer) = bulkhead_sys::scm::pair().unwrap();
        let (raw, questions) = (asker.try_clone().unwrap(), Questions::new(answerer).unwrap());
        let reader = JournalReader::new(Some(asker)).unwrap();
        bulkhead_sys::scm::send(&raw, b"without a pipe", &[]).unwrap();
        let query = JournalQuery { units: vec!["kubelet".into()], ..JournalQuery::default() };
        let mut answer = reader.ask(&query).await.unwrap();
        let (asked, pipe) = questions.next().await.unwrap().unwrap();
        assert_eq!(asked, query);
        rustix::io::write(&pipe, b"a line").unwrap();
        drop(pipe);
        let mut said = String::new();
        answer.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "a line");

        let long = JournalQuery { pattern: "x".repeat(MAX_QUESTION_BYTES), ..JournalQuery::default() };
        assert!(matches!(reader.ask(&long).await, Err(AskError::TooLong)));
        assert!(matches!(JournalReader::default().ask(&query).await, Err(AskError::NoReader)));
        drop((raw, reader));
        assert!(questions.next().await.unwrap().is_none());
    }
}
