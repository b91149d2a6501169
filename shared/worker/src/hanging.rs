//! What does not answer, in words for a person.

use std::fmt;

use tokio::time::Instant;

/// A request that has not been answered for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hanging {
    pub pid: u32,
    pub what: String,
    pub since: Instant,
}

impl fmt::Display for Hanging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker process {} has been in {} for {} s", self.pid, self.what, self.since.elapsed().as_secs())
    }
}

/// What a person should know of file systems that do not answer; `None` where all do.
pub fn degraded(hanging: &[Hanging]) -> Option<String> {
    let names: Vec<String> = hanging.iter().map(ToString::to_string).collect();
    (!names.is_empty()).then(|| format!("file systems do not answer: {}", names.join("; ")))
}
