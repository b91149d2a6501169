//! The socket between a daemon and a helper that runs programs for it (the journal's reader, the keeper of iptables chains),
//! both ends: a question each datagram, with the writing end of a pipe, and the answer is what comes out of the other end.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use rustix::pipe::PipeFlags;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt as _, Interest};
use tokio::net::unix::pipe;

/// Largest question, bytes: a FlexVolume driver is told of a secret, which holds certificates.
pub const MAX_QUESTION_BYTES: usize = 64 * 1024;
/// Largest answer that is a message, bytes.
const MAX_ANSWER_BYTES: u64 = 64 * 1024;

/// Why nothing can be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("this node has no such helper")]
    NoHelper,
    #[error("the question has more than {MAX_QUESTION_BYTES} bytes")]
    TooLong,
    #[error("failed to ask the helper")]
    Io(#[from] io::Error),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("the helper ended without an answer")]
    NoAnswer,
    #[error("the helper's answer is not understood")]
    Answer(#[from] prost::DecodeError),
}

/// The end that asks. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Asker {
    way: Way,
}

/// How the helper is reached.
#[derive(Debug, Clone, Default)]
enum Way {
    #[default]
    None,
    /// One socket for all questions, from the launcher.
    Passed(Arc<AsyncFd<OwnedFd>>),
    /// A connection for each question: who listens there starts when somebody asks.
    At(Arc<Path>),
}

impl Asker {
    /// `socket`: SOCK_SEQPACKET, given by the launcher where it starts that helper.
    ///
    /// # Errors
    /// It cannot be registered with the runtime.
    pub fn new(socket: Option<OwnedFd>) -> io::Result<Self> {
        let socket = socket.map(bulkhead_sys::async_fd::register).transpose()?;
        Ok(Asker { way: socket.map_or(Way::None, |socket| Way::Passed(Arc::new(socket))) })
    }

    /// The launcher's helper, by the socket that it passes, or the unit's, by the path at which that one listens.
    ///
    /// # Errors
    /// The socket cannot be registered with the runtime.
    pub fn passed_or_at(socket: Option<OwnedFd>, path: &Path) -> io::Result<Self> {
        if socket.is_some() { Asker::new(socket) } else { Ok(Asker::at(path)) }
    }

    /// The helper that listens at this path, as its unit has it.
    pub fn at(path: &Path) -> Self {
        Asker { way: Way::At(path.into()) }
    }

    pub fn is_there(&self) -> bool {
        !matches!(self.way, Way::None)
    }

    /// Asks. The pipe ends when the answer does; when it is dropped, whoever writes into it ends.
    ///
    /// # Errors
    /// There is no helper, or it cannot be asked.
    pub async fn ask(&self, question: &impl Message) -> Result<pipe::Receiver, AskError> {
        let question = question.encode_to_vec();
        if question.len() > MAX_QUESTION_BYTES {
            return Err(AskError::TooLong);
        }
        let (answer, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
        rustix::io::ioctl_fionbio(&answer, true).map_err(io::Error::from)?;
        let answer = pipe::Receiver::from_owned_fd(answer)?;
        match &self.way {
            Way::None => return Err(AskError::NoHelper),
            Way::Passed(socket) => {
                let send = |fd: &OwnedFd| bulkhead_sys::scm::send(fd, &question, &[write.as_fd()]);
                socket.async_io(Interest::WRITABLE, send).await?;
            }
            // A new socket has room for a question, which stays there for the helper when this end is closed.
            Way::At(path) => bulkhead_sys::scm::send(bulkhead_sys::scm::connect(path)?, &question, &[write.as_fd()])?,
        }
        Ok(answer)
    }

    /// Asks for an answer that is one message.
    ///
    /// # Errors
    /// As [`Self::ask`]; none comes within `patience`, or it is none: the helper ended before it was written.
    pub async fn ask_for<R: Message + Default>(
        &self,
        question: &impl Message,
        patience: Duration,
    ) -> Result<R, AskError> {
        let mut pipe = self.ask(question).await?.take(MAX_ANSWER_BYTES);
        let mut bytes = Vec::new();
        tokio::time::timeout(patience, pipe.read_to_end(&mut bytes)).await.map_err(|_| AskError::Late(patience))??;
        // A message of nothing but defaults has no bytes, and so has no answer: answers say more than that.
        if bytes.is_empty() {
            return Err(AskError::NoAnswer);
        }
        Ok(R::decode(&*bytes)?)
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
    pub async fn next<Q: Message + Default>(&self) -> io::Result<Option<(Q, OwnedFd)>> {
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
            let question = buffer.get(..length).and_then(|bytes| Q::decode(bytes).ok());
            if let Some(question) = question.zip(fds.pop()) {
                return Ok(Some(question));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::JournalQuery;

    #[tokio::test]
    async fn a_reader_that_listens_is_asked_over_a_connection_of_the_questions_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.sock");
        let reader = Asker::at(&path);
        let query = JournalQuery { units: vec!["kubelet".into()], ..JournalQuery::default() };
        assert!(matches!(reader.ask(&query).await, Err(AskError::Io(_))), "nobody listens");
        let listener = bulkhead_sys::scm::listen(&path, 0o600).unwrap();
        // Asked before anybody accepts: as with a reader that starts only now.
        let mut answer = reader.ask(&query).await.unwrap();
        let questions = Questions::new(bulkhead_sys::scm::accept(&listener).unwrap()).unwrap();
        let (asked, pipe) = questions.next::<JournalQuery>().await.unwrap().unwrap();
        assert_eq!(asked, query);
        drop(pipe);
        let mut said = String::new();
        answer.read_to_string(&mut said).await.unwrap();
        assert!(said.is_empty() && questions.next::<JournalQuery>().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn questions_arrive_with_a_pipe_and_what_is_none_is_passed_over() {
        let (asker, answerer) = bulkhead_sys::scm::pair().unwrap();
        let (raw, questions) = (asker.try_clone().unwrap(), Questions::new(answerer).unwrap());
        let reader = Asker::new(Some(asker)).unwrap();
        bulkhead_sys::scm::send(&raw, b"without a pipe", &[]).unwrap();
        let query = JournalQuery { units: vec!["kubelet".into()], ..JournalQuery::default() };
        let mut answer = reader.ask(&query).await.unwrap();
        let (asked, pipe) = questions.next::<JournalQuery>().await.unwrap().unwrap();
        assert_eq!(asked, query);
        rustix::io::write(&pipe, b"a line").unwrap();
        drop(pipe);
        let mut said = String::new();
        answer.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "a line");

        let long = JournalQuery { pattern: "x".repeat(MAX_QUESTION_BYTES), ..JournalQuery::default() };
        assert!(matches!(reader.ask(&long).await, Err(AskError::TooLong)));
        assert!(matches!(Asker::default().ask(&query).await, Err(AskError::NoHelper)));
        let answers = async {
            let (_, pipe) = questions.next::<JournalQuery>().await.unwrap().unwrap();
            rustix::io::write(&pipe, &query.encode_to_vec()).unwrap();
            drop(pipe);
            let (_, pipe) = questions.next::<JournalQuery>().await.unwrap().unwrap();
            drop(pipe);
            questions.next::<JournalQuery>().await.unwrap().unwrap()
        };
        let asked = async {
            let patience = Duration::from_secs(10);
            assert_eq!(reader.ask_for::<JournalQuery>(&query, patience).await.unwrap(), query);
            assert!(matches!(reader.ask_for::<JournalQuery>(&query, patience).await, Err(AskError::NoAnswer)));
            let late = reader.ask_for::<JournalQuery>(&query, Duration::from_millis(1)).await;
            assert!(matches!(late, Err(AskError::Late(_))), "{late:?}");
        };
        let (_unanswered, ()) = tokio::join!(answers, asked);
        drop((raw, reader));
        assert!(questions.next::<JournalQuery>().await.unwrap().is_none());
    }
}
