//! Who tells of pods, and how they change.

use serde_json::Value;
use tokio::sync::watch;

/// What is known of a pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Seen {
    /// The pod with its newest status; None: no source wants it any more.
    pub pod: Option<Value>,
    /// Nothing of it runs and nothing will: its pod worker has finished, or it is forgotten.
    pub over: bool,
}

/// Answers at once, and waits for nobody.
pub trait Providers: Send + Sync {
    /// UIDs of the pods that are wanted on this node.
    fn uids(&self) -> Vec<String>;

    fn pod(&self, uid: &str) -> Seen;

    /// UIDs of pods that have changed since that position, or all where it is not known any more, and the position now.
    fn since(&self, position: Option<u64>) -> (u64, Vec<String>);

    /// Sees each change.
    fn changes(&self) -> watch::Receiver<u64>;
}
