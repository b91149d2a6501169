//! One datagram and its descriptors over a Unix SEQPACKET socket: the wire of the descriptor broker.
//!
//! Every socket made here is close-on-exec and non-blocking; so are the descriptors that arrive (close-on-exec only).
//!
//! Whoever may send to a Unix socket may send descriptors with it, asked for or not, and the kernel closes those that
//! nobody takes in the receiver's own context. The close of a socket with SO_LINGER waits until its data is
//! acknowledged, so a stranger's descriptor could hold up the thread that reads. Hence every descriptor that arrives is
//! taken and disarmed, and sockets that want none say so to the kernel ([`refuse_rights`]).

use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// More descriptors than any message of ours carries; a message with more is refused.
pub const MAX_FDS: usize = 4;

/// The most that the kernel lets one message carry (SCM_MAX_FD of include/net/scm.h).
const KERNEL_MAX_FDS: usize = 253;

/// Datagrams that [`finish`] looks through; more do not fit into a socket's buffer of the usual size.
const MAX_LEFTOVERS: usize = 4096;

/// Pending connections of a listener. The callers are three daemons and the operator's tool.
const BACKLOG: i32 = 64;

/// What arrived.
#[derive(Debug)]
pub struct Datagram {
    /// Bytes of the buffer that were filled. 0 with no descriptors means that the peer has closed.
    pub len: usize,
    pub fds: Vec<OwnedFd>,
}

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A listening socket at `path`, replacing a stale one there. The mode is set before anyone can connect, because
/// `listen` comes last. Owner and group are the caller's to change.
pub fn listen(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    match std::fs::remove_file(path) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
        _ => {}
    }
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::fs::chmod(path, rustix::fs::Mode::from_raw_mode(mode))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Takes one pending connection; `WouldBlock` when there is none.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, FLAGS)?)
}

/// Connects to a listener of [`listen`]. A Unix connect is immediate, or fails with `WouldBlock` if the backlog is
/// full.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Two connected sockets.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?)
}

/// Sends one datagram, whole or not at all. Fails with `WouldBlock` when the socket's buffer is full, with
/// `InvalidInput` for more than [`MAX_FDS`] descriptors or for an empty datagram (which would look like a close).
pub fn send(socket: impl AsFd, data: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if fds.len() > MAX_FDS || data.is_empty() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let sent =
        rustix::net::sendmsg(socket, &[IoSlice::new(data)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    if sent == data.len() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::WriteZero)) }
}

/// Receives one datagram. A datagram longer than `buffer`, or with more than [`MAX_FDS`] descriptors, is an
/// `InvalidData` error and its descriptors are closed.
pub fn recv(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Datagram> {
    // Room for all that can come: what has none would be closed by the kernel here, without being disarmed.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(buffer)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    fds.iter().for_each(disarm);
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a datagram larger than allowed"));
    }
    Ok(Datagram { len: got.bytes, fds })
}

/// Whether a datagram waits, which stays where it is: `WouldBlock` where none does.
pub fn peek(socket: impl AsFd) -> io::Result<()> {
    let mut byte = [0; 1];
    rustix::net::recv(socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::TRUNC)?;
    Ok(())
}

/// Makes the close of a received socket immediate, whatever its owner set; other kinds of files have no such option.
fn disarm(fd: &OwnedFd) {
    let _ = rustix::net::sockopt::set_socket_linger(fd, None);
}

/// Ends a conversation: nothing more can be sent to this socket, and what still waits in it is taken and closed here,
/// where its descriptors are disarmed first.
pub fn finish(socket: OwnedFd) {
    let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Read);
    let mut nothing = [0; 1];
    for _ in 0..MAX_LEFTOVERS {
        match recv(&socket, &mut nothing) {
            // An empty datagram looks like the end, and carries descriptors as well as another.
            Ok(datagram) if datagram.len == 0 && datagram.fds.is_empty() => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {}
            Err(_) => return,
        }
    }
}

/// Has the kernel refuse (EPERM, to the sender) any message with descriptors to this socket, and to those that a
/// listener accepts later: SO_PASSRIGHTS, kernel 6.16. False on an older kernel, where they arrive and are closed.
pub fn refuse_rights(socket: impl AsFd) -> bool {
    // asm-generic/socket.h; the architectures with other numbers (sparc, parisc, alpha, mips) are none of ours.
    const SO_PASSRIGHTS: libc::c_int = 83;
    let off: libc::c_int = 0;
    // SAFETY: the option's value is one int, and the pointer is to a live one of that size.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PASSRIGHTS,
            (&raw const off).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn a_descriptor_arrives_open_and_close_on_exec() {
        let (a, b) = pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"hello").unwrap();
        send(&a, b"take", &[file.as_fd()]).unwrap();
        let mut buffer = [0; 16];
        let mut got = recv(&b, &mut buffer).unwrap();
        assert_eq!(&buffer[..got.len], b"take");
        let fd = got.fds.pop().unwrap();
        assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        let mut received = std::fs::File::from(fd);
        received.rewind().unwrap();
        let mut text = String::new();
        received.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn bounds_hold() {
        let (a, b) = pair().unwrap();
        let mut small = [0; 4];
        assert_eq!(recv(&b, &mut small).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        send(&a, b"too long", &[]).unwrap();
        assert_eq!(recv(&b, &mut small).unwrap_err().kind(), io::ErrorKind::InvalidData);
        send(&a, b"ok", &[]).unwrap();
        assert_eq!(recv(&b, &mut small).unwrap().len, 2, "datagrams do not run into each other");
        let file = tempfile::tempfile().unwrap();
        assert!(send(&a, b"x", &[file.as_fd(); MAX_FDS + 1]).is_err());
        assert!(send(&a, b"", &[]).is_err());
        drop(a);
        assert_eq!(recv(&b, &mut small).unwrap().len, 0);
    }

    #[test]
    fn listener_replaces_a_stale_socket_and_has_its_mode() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        drop(listen(&path, 0o600).unwrap());
        let listener = listen(&path, 0o660).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        let client = connect(&path).unwrap();
        let server = accept(&listener).unwrap();
        send(&client, b"x", &[]).unwrap();
        assert_eq!(recv(&server, &mut [0; 2]).unwrap().len, 1);
    }

    /// A TCP socket whose close would wait for ever: data that nobody reads, and SO_LINGER.
    fn lingering() -> (OwnedFd, std::net::TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.set_nonblocking(true).unwrap();
        while (&client).write(&[0; 65536]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::from_secs(60))).unwrap();
        (client.into(), server)
    }

    #[test]
    fn a_descriptor_that_would_hold_up_its_closing_does_not() {
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (a, b) = pair().unwrap();
            let (armed, _unread) = lingering();
            let many: Vec<BorrowedFd<'_>> = std::iter::repeat_n(armed.as_fd(), KERNEL_MAX_FDS).collect();
            for fds in [&many[..], &many[..1], &many[..1]] {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(KERNEL_MAX_FDS))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
                rustix::net::sendmsg(&a, &[IoSlice::new(b"take")], &mut control, SendFlags::empty()).unwrap();
            }
            // The last one of this side: armed again as long as only the datagrams hold it.
            drop((armed, a));
            assert_eq!(recv(&b, &mut [0; 8]).unwrap_err().kind(), io::ErrorKind::InvalidData, "253 descriptors");
            finish(b);
            done.send(()).unwrap();
        });
        ended.recv_timeout(std::time::Duration::from_secs(20)).expect("closing waited for a stranger's socket");
    }

    #[test]
    fn a_socket_that_wants_no_descriptors_gets_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let listener = listen(&path, 0o600).unwrap();
        let supported = refuse_rights(&listener);
        let client = connect(&path).unwrap();
        let server = accept(&listener).unwrap();
        let file = tempfile::tempfile().unwrap();
        let sent = send(&client, b"x", &[file.as_fd()]);
        assert_eq!(sent.is_err(), supported, "{sent:?}");
        send(&client, b"y", &[]).unwrap();
        let mut byte = [0; 1];
        if !supported {
            assert_eq!(recv(&server, &mut byte).unwrap().fds.len(), 1);
        }
        assert_eq!((recv(&server, &mut byte).unwrap().fds.len(), byte), (0, *b"y"));
    }
}
