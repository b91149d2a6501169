//! What kubelet-volnetd opens below /var/log, and what a client is told when it does not.

use std::fs::File;
use std::os::fd::OwnedFd;

use bulkhead_ipc::broker::{BrokerClient, BrokerError};
use bulkhead_ipc::volnetd::NodeLog;
use bulkhead_ipc::volnetd::open_request::Kind;
use http::StatusCode;
use jiff::Timestamp;
use tonic::Code;

/// A file or a directory below the folder of logs.
#[derive(Debug)]
pub enum Opened {
    File { file: File, size: u64, modified: Option<Timestamp> },
    Directory { directory: OwnedFd, modified: Option<Timestamp> },
}

/// Why there is nothing to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotOpened {
    #[error("no such file or directory")]
    Missing,
    /// It leads out of the folder, or is neither a file nor a directory.
    #[error("path escapes from parent, or is no file")]
    Outside,
    #[error("permission denied")]
    Denied,
    #[error("the node's files cannot be opened at the moment")]
    Unavailable,
    #[error("it could not be opened")]
    Failed,
}

impl NotOpened {
    fn of(error: &BrokerError) -> Self {
        match error.code() {
            // What no file can be called is not there.
            Code::NotFound | Code::InvalidArgument => NotOpened::Missing,
            Code::FailedPrecondition => NotOpened::Outside,
            Code::PermissionDenied => NotOpened::Denied,
            Code::Unavailable | Code::DeadlineExceeded => NotOpened::Unavailable,
            _ => NotOpened::Failed,
        }
    }

    /// Status and body of the answer, in the words of Go's file server where it has some.
    pub fn answer(self) -> (StatusCode, &'static str) {
        match self {
            NotOpened::Missing => (StatusCode::NOT_FOUND, "404 page not found\n"),
            NotOpened::Outside | NotOpened::Denied => (StatusCode::FORBIDDEN, "403 Forbidden\n"),
            NotOpened::Unavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "the node's files cannot be opened at the moment\n")
            }
            NotOpened::Failed => (StatusCode::INTERNAL_SERVER_ERROR, "500 Internal Server Error\n"),
        }
    }
}

/// Opens what `relative` names; empty is the folder itself. It is another process that resolves it: a path of a stranger is
/// no path here.
pub async fn open(broker: &BrokerClient, relative: &str) -> Result<Opened, NotOpened> {
    let kind = Kind::NodeLog(NodeLog { relative: relative.to_owned() });
    let opened = broker.open(kind).await.map_err(|error| {
        tracing::debug!(relative, error = &error as &dyn std::error::Error, "a node's log is not opened");
        NotOpened::of(&error)
    })?;
    let stat = rustix::fs::fstat(&opened).map_err(|_| NotOpened::Failed)?;
    let modified = Timestamp::from_second(stat.st_mtime).ok().filter(|at| at.as_second() != 0);
    match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::RegularFile => {
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            Ok(Opened::File { file: File::from(opened), size, modified })
        }
        rustix::fs::FileType::Directory => Ok(Opened::Directory { directory: opened, modified }),
        _ => Err(NotOpened::Outside),
    }
}

/// A path without empty, `.` and `..` segments; `None` when it leads up and out.
pub fn lexical(path: &str) -> Option<String> {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()?),
            name => segments.push(name),
        }
    }
    Some(segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart_by_their_text() {
        for (path, expected) in [
            ("", Some("")),
            ("/", Some("")),
            ("/kubelet.log", Some("kubelet.log")),
            ("a//./b/", Some("a/b")),
            ("a/../b", Some("b")),
            ("..", None),
            ("/../etc/passwd", None),
            ("a/../../etc/passwd", None),
            ("..\\..\\etc", Some("..\\..\\etc")),
        ] {
            assert_eq!(lexical(path).as_deref(), expected, "{path}");
        }
    }
}
