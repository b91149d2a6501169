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
