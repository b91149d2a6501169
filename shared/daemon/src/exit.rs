//! Exit codes of the daemons, so that a supervisor's log says why a process ended.

use std::net::SocketAddr;

/// Why a daemon ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitReason {
    /// Asked to stop, stopped.
    Stopped = 0,
    /// Anything that the log line before it explains.
    Failed = 1,
    /// The command line is wrong.
    Usage = 64,
    /// The rendered configuration cannot be read.
    Config = 78,
    /// Sockets, users or privileges are not as they must be.
    Privileges = 77,
    /// Another instance of this daemon still holds the state folder.
    Locked = 75,
    /// The launcher is gone.
    Orphaned = 79,
    /// An address that the configuration names cannot be listened on.
    Listen = 69,
}

impl ExitReason {
    /// What a supervisor may print for an exit code of ours.
    pub fn explain(code: i32) -> &'static str {
        match code {
            0 => "stopped as asked",
            1 => "failed, see its last log line",
            64 => "wrong command line",
            69 => "cannot listen on a configured address, see its last log line",
            75 => "another instance still holds the state folder",
            77 => "sockets, user or privileges are not as they must be",
            78 => "the rendered configuration cannot be read",
            79 => "its launcher was gone",
            _ => "unexpected exit code",
        }
    }
}

/// An address that has to be served cannot be listened on: the work ends with [`ExitReason::Listen`].
#[derive(Debug, thiserror::Error)]
#[error("Failed to listen and serve on {address}")]
pub struct ListenError {
    pub address: SocketAddr,
    pub source: std::io::Error,
}

impl From<ExitReason> for std::process::ExitCode {
    fn from(reason: ExitReason) -> Self {
        std::process::ExitCode::from(reason as u8)
    }
}
