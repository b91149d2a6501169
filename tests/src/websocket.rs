//! A WebSocket client over a connection to a node: the frames are another implementation's, reading and writing have a
//! thread each where a test wants both at once.

use std::io::{self, Read, Write};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_testkit::https::{Https, Reader, Upgrade, Writer};
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketContext};
use tokio_tungstenite::tungstenite::{Error, Message};

/// A connection, both ways.
#[derive(Debug)]
pub struct WebSocket {
    /// The protocol that the server chose.
    pub protocol: Option<String>,
    pub receiver: Receiver,
    pub sender: Sender,
}

/// What comes.
#[derive(Debug)]
pub struct Receiver {
    context: WebSocketContext,
    wire: ReadOnly,
}

/// What goes.
#[derive(Debug)]
pub struct Sender(Writer);

/// Answers of the protocol itself go nowhere.
#[derive(Debug)]
struct ReadOnly(Reader);

impl Read for ReadOnly {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for ReadOnly {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl WebSocket {
    /// Asks for one of `protocols`.
    ///
    /// # Errors
    /// The node refused, or its answer is not that of a WebSocket server.
    pub fn open(node: &Https, path: &str, protocols: &str) -> Result<Self> {
        let key = generate_key();
        let headers =
            [("sec-websocket-version", "13"), ("sec-websocket-key", &key), ("sec-websocket-protocol", protocols)];
        let (headers, connection) = match node.upgrade("GET", path, "websocket", &headers)? {
            Upgrade::Switched(headers, connection) => (headers, connection),
            Upgrade::Refused(answer) => bail!("{}: {}", answer.status, String::from_utf8_lossy(&answer.body)),
        };
        let accepted = headers.get("sec-websocket-accept").context("no Sec-WebSocket-Accept")?;
        ensure!(accepted == derive_accept_key(key.as_bytes()).as_str(), "{accepted:?}");
        let protocol = headers.get("sec-websocket-protocol").and_then(|one| one.to_str().ok()).map(str::to_owned);
        let context = WebSocketContext::new(Role::Client, None);
        let receiver = Receiver { context, wire: ReadOnly(connection.reader) };
        Ok(WebSocket { protocol, receiver, sender: Sender(connection.writer) })
    }
}

impl Receiver {
    /// How long the next bytes may take, from now on.
    pub fn set_limit(&mut self, limit: Duration) {
        self.wire.0.set_limit(limit);
    }

    /// The next message; `None` after a close that says that all is well.
    ///
    /// # Errors
    /// The connection broke, fell silent, or was closed for another reason.
    pub fn receive(&mut self) -> Result<Option<Message>> {
        match self.context.read(&mut self.wire) {
            Ok(Message::Close(Some(frame))) if u16::from(frame.code) == 1000 => Ok(None),
            Ok(Message::Close(frame)) => bail!("closed: {frame:?}"),
            Ok(message) => Ok(Some(message)),
            Err(Error::ConnectionClosed) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The next binary message.
    ///
    /// # Errors
    /// As [`Receiver::receive`].
    pub fn binary(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            match self.receive()? {
                Some(Message::Binary(bytes)) => return Ok(Some(bytes.to_vec())),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }
}

impl Sender {
    /// A binary message.
    ///
    /// # Errors
    /// The connection broke.
    pub fn binary(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.frame(Frame::message(bytes, OpCode::Data(Data::Binary), true))
    }

    /// # Errors
    /// The connection broke.
    pub fn ping(&mut self, content: &'static [u8]) -> Result<()> {
        self.frame(Frame::ping(content))
    }

    /// # Errors
    /// The connection broke.
    pub fn close(&mut self) -> Result<()> {
        self.frame(Frame::close(None))
    }

    fn frame(&mut self, mut frame: Frame) -> Result<()> {
        frame.header_mut().mask = Some([0x37, 0xfa, 0x21, 0x3d]);
        let mut bytes = Vec::with_capacity(frame.len());
        frame.format(&mut bytes)?;
        self.0.write_all(&bytes)?;
        // TLS takes bytes that the socket had no room for, and keeps them until something follows.
        self.0.flush()?;
        Ok(())
    }
}
