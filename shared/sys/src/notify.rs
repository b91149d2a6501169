//! Messages to whoever supervises this process: the part of sd_notify(3) that keeps descriptors over a restart, and states of a
//! process that may make no socket by then. Plain states of others go by the `sd-notify` crate.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// Has the supervisor keep a copy of the descriptor under this name. Without a supervisor nothing happens.
///
/// # Errors
/// The supervisor's socket cannot be written to.
pub fn keep(name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
    send(&format!("FDSTORE=1\nFDNAME={name}\n"), Some(fd))
}

/// Has the supervisor close all that it keeps under this name; nothing there is fine.
///
/// # Errors
/// The supervisor's socket cannot be written to.
pub fn let_go(name: &str) -> io::Result<()> {
    send(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"), None)
}

/// Gives the supervisor the descriptor to close once it has come to this message, and so all before it.
///
/// # Errors
/// The supervisor's socket cannot be written to.
pub fn barrier(fd: BorrowedFd<'_>) -> io::Result<()> {
    send("BARRIER=1", Some(fd))
}

/// A supervisor that is connected to once: for a process that may make no socket later. By default there is none.
#[derive(Debug, Default)]
pub struct Supervisor(Option<UnixDatagram>);

impl Supervisor {
    /// Without a supervisor whatever it is told goes nowhere.
    ///
    /// # Errors
    /// The supervisor's socket cannot be connected to.
    pub fn connect() -> io::Result<Self> {
        socket().map(Supervisor)
    }

    /// Tells it a state: `READY=1`, `WATCHDOG=1`.
    ///
    /// # Errors
    /// The supervisor's socket cannot be written to.
    pub fn tell(&self, state: &str) -> io::Result<()> {
        self.0.as_ref().map_or(Ok(()), |socket| socket.send(state.as_bytes()).map(drop))
    }
}

/// Connected to the supervisor, where there is one.
fn socket() -> io::Result<Option<UnixDatagram>> {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else { return Ok(None) };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(&path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(Some(socket))
}

fn send(text: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let Some(socket) = socket()? else { return Ok(()) };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if let Some(fd) = &fd
        && !control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(fd)))
    {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // Waits for room, as systemd's own does: what is not kept is lost with the next restart.
    rustix::net::sendmsg(&socket, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
