//! What kubelet-volnetd opens below /var/log, and what a client is told when it does not.

use std::fs::File;
use std::os::fd::OwnedFd;

use bulkhead_ipc::broker::{BrokerClient, BrokerError};
use bulkhead_ipc::volnetd::NodeLog;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_types::chain;
use http::StatusCode;
use jiff::Timestamp;
use tonic::Code;

/// A file or a directory below the folder of logs.
#[derive(Debug)]
pub enum Opened {
    File { file: File, size: u64, modified: Option<Timestamp> },
    Directory { directory: OwnedFd, modified: Option<Timestamp> },
}

/// Why there is nothing to show. Who gets to read a cause is authorised for the node's logs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotOpened {
    #[error("no such file or directory")]
    Missing,
    /// It leads out of the folder, or is neither a file nor a directory.
    #[error("path escapes from parent, or is no file")]
    Outside,
    #[error("permission denied")]
    Denied,
    #[error("the node's files cannot be opened at the moment: {0}")]
    Unavailable(String),
    #[error("it could not be opened: {0}")]
    Failed(String),
}

impl NotOpened {
    fn of(error: &BrokerError) -> Self {
        match error.code() {
            // What no file can be called is not there.
            Code::NotFound | Code::InvalidArgument => NotOpened::Missing,
            Code::FailedPrecondition => NotOpened::Outside,
            Code::PermissionDenied => NotOpened::Denied,
            Code::Unavailable | Code::DeadlineExceeded => NotOpened::Unavailable(chain(error)),
            _ => NotOpened::Failed(chain(error)),
        }
    }

    /// Status and body of the answer, in the words of Go's file server where it has some, with the cause behind them where
    /// the node failed.
    pub fn answer(&self) -> (StatusCode, String) {
        match self {
            NotOpened::Missing => (StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
            NotOpened::Outside | NotOpened::Denied => (StatusCode::FORBIDDEN, "403 Forbidden\n".to_owned()),
            NotOpened::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, format!("{self}\n")),
            NotOpened::Failed(cause) => {
                (StatusCode::INTERNAL_SERVER_ERROR, format!("500 Internal Server Error: {cause}\n"))
            }
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
    let stat =
        rustix::fs::fstat(&opened).map_err(|errno| NotOpened::Failed(format!("failed to examine it: {errno}")))?;
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
    fn a_failure_of_the_node_comes_with_its_cause() {
        let refused = |code, message: &str| BrokerError::Refused { what: "NodeLog", code, message: message.to_owned() };
        let error = refused(Code::Internal, "failed to open syslog: Input/output error");
        let (status, words) = NotOpened::of(&error).answer();
        assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        assert!(words.starts_with("500 Internal Server Error: ") && words.ends_with("Input/output error\n"), "{words}");
        let error = refused(Code::Unavailable, "worker process 7 has been in NodeLog of syslog for 9 s");
        let (status, words) = NotOpened::of(&error).answer();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(words.contains("cannot be opened at the moment: ") && words.contains("worker process 7"), "{words}");
        assert_eq!(NotOpened::of(&refused(Code::NotFound, "x")).answer().1, "404 page not found\n");
    }

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
