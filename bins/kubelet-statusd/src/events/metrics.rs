//! What becomes of events, counted.

use prometheus::{IntCounterVec, Opts, Registry};

/// Families of this task.
#[derive(Debug, Clone)]
pub struct EventMetrics {
    events: IntCounterVec,
}

impl EventMetrics {
    /// # Errors
    /// The family cannot be made.
    pub fn new() -> Result<Self, prometheus::Error> {
        let events = IntCounterVec::new(
            Opts::new("bulkhead_events_total", "[ALPHA] Events by what became of them."),
            &["outcome"],
        )?;
        Ok(EventMetrics { events })
    }

    /// # Errors
    /// A family of the same name exists already.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.events.clone()))
    }

    /// `created`, `counted`, `known` (to the server), `spam`, `refused` (by the server), `unreadable` or `lost` (a queue was full).
    pub fn count(&self, outcome: &str, events: u64) {
        self.events.with_label_values(&[outcome]).inc_by(events);
    }
}
