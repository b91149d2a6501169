//! One message on a worker's socket (SOCK_SEQPACKET): bytes and descriptors. Bytes that are too many for a datagram travel
//! in a sealed memfd, which is then the first of the descriptors.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bulkhead_sys::{memfd, scm};

/// Bytes that go into the datagram itself: well below the smallest buffer that a socket of the kernel's default has.
const INLINE_BYTES: usize = 8 * 1024;

/// The largest message, bytes.
const MAX_BYTES: u64 = 64 << 20;

/// First byte of a datagram: what follows is the message.
const INLINE: u8 = 0;
/// The first descriptor holds the message.
const IN_MEMFD: u8 = 1;

/// What is asked of a worker, or what it answers.
#[derive(Debug, Default)]
pub struct Message {
    pub bytes: Vec<u8>,
    /// At most three.
    pub fds: Vec<OwnedFd>,
}

impl Message {
    pub fn of(bytes: Vec<u8>) -> Self {
        Message { bytes, fds: Vec::new() }
    }

    /// Sends it whole. The socket has room: there is one message at a time in each direction.
    ///
    /// # Errors
    /// The other end is closed, or the kernel has no memory for it.
    pub fn send(&self, socket: impl AsFd) -> io::Result<()> {
        let mut datagram = Vec::with_capacity(1 + self.bytes.len().min(INLINE_BYTES));
        if self.bytes.len() <= INLINE_BYTES {
            datagram.push(INLINE);
            datagram.extend_from_slice(&self.bytes);
            let fds: Vec<BorrowedFd<'_>> = self.fds.iter().map(AsFd::as_fd).collect();
            return scm::send(socket, &datagram, &fds);
        }
        datagram.push(IN_MEMFD);
        let large = memfd::sealed("worker-message", &self.bytes)?;
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(&large).chain(&self.fds).map(AsFd::as_fd).collect();
        scm::send(socket, &datagram, &fds)
    }

    /// The next message; `None` when the other end is closed.
    ///
    /// # Errors
    /// `WouldBlock` where there is none yet, `InvalidData` for what is no message.
    pub fn recv(socket: impl AsFd) -> io::Result<Option<Self>> {
        let mut buffer = vec![0; INLINE_BYTES + 1];
        let scm::Datagram { len, mut fds } = scm::recv(socket, &mut buffer)?;
        match buffer.first().filter(|_| len > 0) {
            None => Ok(None),
            Some(&INLINE) => {
                buffer.truncate(len);
                buffer.drain(..1);
                Ok(Some(Message { bytes: buffer, fds }))
            }
            Some(&IN_MEMFD) if !fds.is_empty() => {
                let bytes = memfd::read_sealed(fds.remove(0), MAX_BYTES).map_err(io::Error::other)?;
                Ok(Some(Message { bytes, fds }))
            }
            Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a datagram that is no message of a worker's")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_any_size_arrive_with_their_descriptors() {
        let (a, b) = scm::pair().unwrap();
        for bytes in [0, 1, INLINE_BYTES, INLINE_BYTES + 1, 3 << 20] {
            let file = tempfile::tempfile().unwrap();
            let sent = Message { bytes: vec![7; bytes], fds: vec![file.into()] };
            sent.send(&a).unwrap();
            let got = Message::recv(&b).unwrap().unwrap();
            assert_eq!((got.bytes, got.fds.len()), (sent.bytes, 1));
        }
        assert_eq!(Message::recv(&b).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        for none in [&[9][..], &[IN_MEMFD]] {
            scm::send(&a, none, &[]).unwrap();
            assert_eq!(Message::recv(&b).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        drop(a);
        assert!(Message::recv(&b).unwrap().is_none());
    }
}
