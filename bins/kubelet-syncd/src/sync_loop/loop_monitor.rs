//! When the main loop turned last, for those who watch over it.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Before the first turn its age is zero.
#[derive(Debug, Default)]
pub struct LoopMonitor {
    last_turn: Mutex<Option<Instant>>,
}

impl LoopMonitor {
    /// The main loop has turned.
    pub fn turned(&self) {
        *self.last_turn.lock() = Some(Instant::now());
    }

    /// Since the main loop's last turn.
    pub fn age(&self) -> Duration {
        let last = *self.last_turn.lock();
        last.map_or(Duration::ZERO, |at| at.elapsed())
    }
}
