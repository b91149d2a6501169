//! How much of everything a stranger may have.

use std::time::Duration;

/// Bounds of one server.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once. One more takes the place of another ([`super::connections`]); when all have proved who they are
    /// and are busy it is refused.
    pub connections: usize,
    /// From the connection to the end of TLS' handshake.
    pub handshake_time: Duration,
    /// Request line and headers, bytes. More is answered 431.
    pub head_bytes: usize,
    /// Length of a request's body as the client announces it, bytes. More is answered 413, unread. None of ours needs one.
    pub body_bytes: u64,
    /// From the first byte of a request to the end of its headers.
    pub head_time: Duration,
    /// Without a request.
    pub idle_time: Duration,
    /// How long a client that has not proved who it is may take nothing of what it is sent. One that has may do so for as
    /// long as an answer may take: somebody reads it page by page.
    pub stall_time: Duration,
    /// Until an answer begins. None: whoever answers has limits of its own.
    pub answer_time: Option<Duration>,
    /// From the end of the headers to the end of the answer.
    pub answer_life: Duration,
}

/// More than a network is away without losing its connections, less than it takes to fill a server by hand.
const STALL: Duration = Duration::from_secs(30);
/// Go's server takes so much more than it is told (`net/http`, initialReadLimitSize).
const SLACK: usize = 4096;

impl Limits {
    /// The HTTPS server; numbers with a name upstream are upstream's (`pkg/kubelet/server/server.go`). `open_files`:
    /// how many descriptors this process may have, of which a stream takes two.
    pub fn main(open_files: usize) -> Self {
        Limits {
            connections: (open_files.saturating_sub(256) / 2).clamp(64, 8192),
            handshake_time: Duration::from_secs(10),
            head_bytes: (1 << 20) + SLACK,
            body_bytes: 1 << 20,
            head_time: Duration::from_secs(30),
            idle_time: Duration::from_secs(90),
            stall_time: STALL,
            answer_time: None,
            answer_life: Duration::from_secs(4 * 3600),
        }
    }
}

impl Default for Limits {
    /// The plain servers, which anybody may ask and which only tell: less of everything.
    fn default() -> Self {
        Limits {
            connections: 64,
            handshake_time: Duration::from_secs(10),
            head_bytes: 16 * 1024,
            body_bytes: 1 << 20,
            head_time: Duration::from_secs(10),
            idle_time: Duration::from_secs(90),
            stall_time: STALL,
            answer_time: Some(Duration::from_secs(15)),
            answer_life: Duration::from_secs(90),
        }
    }
}
