//! How often the runtime is listed, and whether it is asked for events.

use std::time::Duration;

/// How often to list everything.
#[derive(Debug, Clone, Copy)]
pub struct PlegOptions {
    /// While events flow; a tenth of it is added or taken off at random.
    pub audit_interval: Duration,
    /// While they do not, or tell nothing: pause after the previous list.
    pub relist_interval: Duration,
    /// False: do not even ask for events.
    pub events: bool,
}

impl Default for PlegOptions {
    fn default() -> Self {
        PlegOptions { audit_interval: Duration::from_secs(60), relist_interval: Duration::from_secs(1), events: true }
    }
}

impl PlegOptions {
    /// Lists that come in parts (feature gate CRIListStreaming) are there to be tried out: somebody who looks for their calls, or
    /// for what becomes of their errors, sees some each minute. Upstream, which relists all the time, shows them every second.
    #[must_use]
    pub fn with_streamed_lists(self) -> Self {
        PlegOptions { audit_interval: Duration::from_secs(20), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streamed_lists_are_seen_within_a_minute() {
        let (usual, streamed) = (PlegOptions::default(), PlegOptions::default().with_streamed_lists());
        assert!(streamed.audit_interval * 2 < usual.audit_interval);
        assert_eq!((streamed.relist_interval, streamed.events), (usual.relist_interval, usual.events));
    }
}
