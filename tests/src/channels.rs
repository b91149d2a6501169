//! A client of streams by WebSocket in `v4.channel.k8s.io`, which the runtime speaks itself: the first byte of each message
//! names a channel.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_testkit::https::{Https, Upgrade};
use serde_json::Value;

use crate::websocket::{Receiver, Sender, WebSocket};

/// Channels of a remote command.
pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
pub const STATUS: u8 = 3;
pub const RESIZE: u8 = 4;

const PROTOCOL: &str = "v4.channel.k8s.io";

/// An open stream.
#[derive(Debug)]
pub struct Socket {
    pub messages: Messages,
    pub input: Input,
}

/// What comes.
#[derive(Debug)]
pub struct Messages(Receiver);

/// What goes.
#[derive(Debug)]
pub struct Input(Sender);

/// How a remote command ended and what it wrote.
#[derive(Debug)]
pub struct Ended {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// As the runtime told it: a `Status`.
    pub status: Value,
}

impl Ended {
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// 0 for success.
    ///
    /// # Errors
    /// It ended in another way.
    pub fn exit_code(&self) -> Result<i32> {
        if self.status["status"] == "Success" {
            return Ok(0);
        }
        let cause = &self.status["details"]["causes"][0];
        ensure!(cause["reason"] == "ExitCode", "{}", self.status);
        Ok(cause["message"].as_str().context("no exit code")?.parse()?)
    }
}

/// Asks for a stream, whatever comes of it.
///
/// # Errors
/// No answer.
pub fn ask(node: &Https, path: &str) -> Result<Upgrade> {
    let key = ("sec-websocket-key", "AAAAAAAAAAAAAAAAAAAAAA==");
    node.upgrade(
        "GET",
        path,
        "websocket",
        &[key, ("sec-websocket-version", "13"), ("sec-websocket-protocol", PROTOCOL)],
    )
}

/// Opens a stream.
///
/// # Errors
/// It was refused.
pub fn open(node: &Https, path: &str) -> Result<Socket> {
    let socket = WebSocket::open(node, path, PROTOCOL)?;
    ensure!(socket.protocol.as_deref() == Some(PROTOCOL), "{:?}", socket.protocol);
    Ok(Socket { messages: Messages(socket.receiver), input: Input(socket.sender) })
}

impl Messages {
    /// How long the next bytes may take, from now on.
    pub fn set_limit(&mut self, limit: Duration) {
        self.0.set_limit(limit);
    }

    /// The next message, its channel first; `None` when the server closes.
    ///
    /// # Errors
    /// The connection broke, or what came is no message.
    pub fn message(&mut self) -> Result<Option<(u8, Vec<u8>)>> {
        let Some(mut message) = self.0.binary()? else { return Ok(None) };
        ensure!(!message.is_empty(), "a message without a channel");
        let channel = message.remove(0);
        Ok(Some((channel, message)))
    }

    /// The next message that is not empty and of that channel; others are passed over.
    ///
    /// # Errors
    /// The stream ended before.
    pub fn next_of(&mut self, channel: u8) -> Result<Vec<u8>> {
        loop {
            match self.message()? {
                Some((seen, bytes)) if seen == channel && !bytes.is_empty() => return Ok(bytes),
                Some(_) => {}
                None => bail!("the stream ended without a message on channel {channel}"),
            }
        }
    }

    /// Reads standard output until it shows `text`.
    ///
    /// # Errors
    /// What came instead.
    pub fn read_until(&mut self, text: &str) -> Result<String> {
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(text) {
            let next = self.next_of(STDOUT);
            let next = next.with_context(|| format!("{:?} has no {text:?}", String::from_utf8_lossy(&seen)))?;
            seen.extend(next);
        }
        Ok(String::from_utf8_lossy(&seen).into_owned())
    }

    /// Everything up to the end.
    ///
    /// # Errors
    /// The connection broke, or nothing was said of how it ended.
    pub fn to_end(&mut self) -> Result<Ended> {
        let (mut stdout, mut stderr, mut status) = (Vec::new(), Vec::new(), Vec::new());
        while let Some((channel, bytes)) = self.message()? {
            match channel {
                STDOUT => stdout.extend(bytes),
                STDERR => stderr.extend(bytes),
                STATUS => status.extend(bytes),
                other => bail!("channel {other}"),
            }
        }
        let said = String::from_utf8_lossy(&status).into_owned();
        let status = serde_json::from_slice(&status).with_context(|| format!("status {said:?}"))?;
        Ok(Ended { stdout, stderr, status })
    }
}

impl Input {
    /// Sends a message.
    ///
    /// # Errors
    /// The connection broke, or the other side did not read in time.
    pub fn send(&mut self, channel: u8, bytes: &[u8]) -> Result<()> {
        let mut message = Vec::with_capacity(bytes.len() + 1);
        message.push(channel);
        message.extend_from_slice(bytes);
        self.0.binary(message)
    }
}
