//! Whether the API server was reachable lately, as far as our own requests tell.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::Instant;

/// What the last requests said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reachability {
    /// Nothing was asked yet, or there are no credentials to ask with.
    Unknown,
    /// The last request was answered - with whatever; an error code is an answer.
    Reachable { since: Instant },
    /// The last request was not answered.
    Unreachable { since: Instant, reason: Arc<str> },
}

impl Reachability {
    pub fn is_reachable(&self) -> bool {
        matches!(self, Reachability::Reachable { .. })
    }
}

/// Takes notes for [`Reachability`]; wakes whoever waits only when something changed.
#[derive(Debug)]
pub(crate) struct Notes(watch::Sender<Reachability>);

impl Notes {
    pub(crate) fn new() -> Self {
        Notes(watch::Sender::new(Reachability::Unknown))
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Reachability> {
        self.0.subscribe()
    }

    pub(crate) fn answered(&self) {
        let changed = self.0.send_if_modified(|now| {
            let changes = !now.is_reachable();
            if changes {
                *now = Reachability::Reachable { since: Instant::now() };
            }
            changes
        });
        if changed {
            tracing::info!("the API server answers");
        }
    }

    pub(crate) fn failed(&self, why: &str) {
        let changed = self.0.send_if_modified(|now| {
            let changes = !matches!(now, Reachability::Unreachable { .. });
            if changes {
                *now = Reachability::Unreachable { since: Instant::now(), reason: why.into() };
            }
            changes
        });
        if changed {
            tracing::warn!(error = why, "the API server does not answer");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_changes_are_told() {
        let notes = Notes::new();
        let mut seen = notes.subscribe();
        notes.failed("refused");
        assert!(seen.has_changed().unwrap());
        let first = seen.borrow_and_update().clone();
        assert!(matches!(&first, Reachability::Unreachable { reason, .. } if &**reason == "refused"));
        notes.failed("again");
        assert!(!seen.has_changed().unwrap());
        notes.answered();
        assert!(seen.borrow_and_update().is_reachable());
        notes.answered();
        assert!(!seen.has_changed().unwrap());
    }
}
