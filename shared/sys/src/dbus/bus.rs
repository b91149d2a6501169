//! One connection to the system bus.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::wire::{self, Body, Call, HEAD, Kind, Message};
use crate::{async_fd, scm};

/// Where the system bus listens.
pub const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";
/// For the greeting, and for each call.
const DEADLINE: Duration = Duration::from_secs(5);
/// Largest message that is read, bytes: replies are some words, and what others on the bus may send is not read for longer.
const MAX_MESSAGE: usize = 256 << 10;
/// Signals that wait while a reply is read.
const MAX_WAITING: usize = 64;

/// Why the bus, or who was called on it, did not do it.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    #[error("failed to talk to the system bus")]
    Socket(#[from] io::Error),
    #[error("the system bus did not accept us")]
    Authentication,
    #[error("the system bus has closed the connection")]
    Closed,
    #[error("what came on the system bus cannot be understood")]
    Malformed,
    #[error("no answer on the system bus within {} s", DEADLINE.as_secs())]
    Late,
    /// By the service, or by the bus in its place.
    #[error("{name}: {message}")]
    Refused { name: String, message: String },
}

/// See the module.
#[derive(Debug)]
pub struct Bus {
    socket: AsyncFd<OwnedFd>,
    /// What has been read and not taken.
    buffer: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    signals: VecDeque<Message>,
    serial: u32,
}

/// A reply, and the descriptors that came with it.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) message: Message,
    pub(super) descriptors: Vec<OwnedFd>,
}

impl Bus {
    /// Connects as this process's user. `descriptors`: replies may bring some.
    ///
    /// # Errors
    /// See [`BusError`]. Call within a tokio runtime.
    pub async fn connect(path: &Path, descriptors: bool) -> Result<Self, BusError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.map_err(io::Error::from)?;
        // A full backlog is an error here: nobody waits for it.
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).map_err(io::Error::from)?).map_err(io::Error::from)?;
        let mut bus = Bus {
            socket: async_fd::register(socket)?,
            buffer: Vec::new(),
            descriptors: VecDeque::new(),
            signals: VecDeque::new(),
            serial: 0,
        };
        tokio::time::timeout(DEADLINE, bus.greet(descriptors)).await.map_err(|_| BusError::Late)??;
        bus.call(Call { body: Body::default(), signature: "", ..of_the_bus("Hello") }).await?;
        Ok(bus)
    }

    async fn greet(&mut self, descriptors: bool) -> Result<(), BusError> {
        let uid: String = rustix::process::getuid().as_raw().to_string().bytes().map(|b| format!("{b:02x}")).collect();
        self.send(format!("\0AUTH EXTERNAL {uid}\r\n").as_bytes()).await?;
        self.expect("OK ").await?;
        if descriptors {
            self.send(b"NEGOTIATE_UNIX_FD\r\n").await?;
            self.expect("AGREE_UNIX_FD").await?;
        }
        self.send(b"BEGIN\r\n").await
    }

    /// A line of the greeting.
    async fn expect(&mut self, start: &str) -> Result<(), BusError> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                let line: Vec<u8> = self.buffer.drain(..end + 2).collect();
                return if line.starts_with(start.as_bytes()) { Ok(()) } else { Err(BusError::Authentication) };
            }
            if self.buffer.len() > 1024 {
                return Err(BusError::Authentication);
            }
            self.fill().await?;
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), BusError> {
        Ok(self.socket.async_io(Interest::WRITABLE, |fd| scm::send(fd, bytes, &[])).await?)
    }

    /// Reads what there is. Nothing is lost when the wait is given up.
    async fn fill(&mut self) -> Result<(), BusError> {
        let mut bytes = [0; 4096];
        let read = self.socket.async_io(Interest::READABLE, |fd| scm::recv(fd, &mut bytes)).await?;
        if read.len == 0 {
            return Err(BusError::Closed);
        }
        self.buffer.extend(&bytes[..read.len]);
        self.descriptors.extend(read.fds);
        Ok(())
    }

    /// The next message, and the descriptors that belong to it.
    async fn next(&mut self) -> Result<Reply, BusError> {
        loop {
            if let Some(head) = self.buffer.get(..HEAD) {
                let length = wire::length(head).filter(|length| *length <= MAX_MESSAGE).ok_or(BusError::Malformed)?;
                if self.buffer.len() >= length {
                    let bytes: Vec<u8> = self.buffer.drain(..length).collect();
                    let message = wire::parse(&bytes).ok_or(BusError::Malformed)?;
                    let count = (message.descriptors as usize).min(self.descriptors.len());
                    return Ok(Reply { message, descriptors: self.descriptors.drain(..count).collect() });
                }
            }
            self.fill().await?;
        }
    }

    /// A call and its reply; signals that come before it wait.
    pub(super) async fn call(&mut self, call: Call) -> Result<Reply, BusError> {
        self.serial += 1;
        let serial = self.serial;
        let answered = async {
            self.send(&wire::encode(&call, serial)).await?;
            loop {
                let reply = self.next().await?;
                match reply.message.kind {
                    Kind::Signal if self.signals.len() < MAX_WAITING => self.signals.push_back(reply.message),
                    Kind::Return if reply.message.reply_to == Some(serial) => return Ok(reply),
                    Kind::Error if reply.message.reply_to == Some(serial) => {
                        let message = reply.message.text().unwrap_or_default();
                        return Err(BusError::Refused { name: reply.message.error.unwrap_or_default(), message });
                    }
                    _ => {}
                }
            }
        };
        tokio::time::timeout(DEADLINE, answered).await.map_err(|_| BusError::Late)?
    }

    /// Asks for signals.
    pub(super) async fn follow(&mut self, rule: &str) -> Result<(), BusError> {
        let mut body = Body::default();
        body.string(rule);
        self.call(Call { body, signature: "s", ..of_the_bus("AddMatch") }).await.map(drop)
    }

    /// The next signal. Nothing is lost when the wait is given up.
    pub(super) async fn signal(&mut self) -> Result<Message, BusError> {
        loop {
            if let Some(signal) = self.signals.pop_front() {
                return Ok(signal);
            }
            let message = self.next().await?.message;
            if message.kind == Kind::Signal {
                return Ok(message);
            }
        }
    }
}

fn of_the_bus(member: &'static str) -> Call {
    Call {
        destination: "org.freedesktop.DBus",
        path: "/org/freedesktop/DBus",
        interface: "org.freedesktop.DBus",
        member,
        signature: "",
        body: Body::default(),
    }
}
