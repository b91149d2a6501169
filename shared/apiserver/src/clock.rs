//! What time it is for the server: the machine's, moved by an offset that a test may change.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use jiff::{SignedDuration, Timestamp};

/// A clock with an offset.
#[derive(Debug, Default)]
pub struct Clock {
    offset_seconds: AtomicI64,
}

impl Clock {
    pub fn now(&self) -> Timestamp {
        let offset = SignedDuration::from_secs(self.offset_seconds.load(Ordering::Relaxed));
        Timestamp::now().checked_add(offset).unwrap_or_else(|_| Timestamp::now())
    }

    /// As time-stamps of objects are written: RFC 3339, whole seconds.
    pub fn stamp(&self) -> String {
        stamp(self.now())
    }

    /// Sets the offset to the machine's clock.
    pub fn set_offset_seconds(&self, seconds: i64) {
        self.offset_seconds.store(seconds, Ordering::Relaxed);
    }

    /// For certificate checks.
    pub fn since_epoch(&self) -> Duration {
        let machine = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let offset = self.offset_seconds.load(Ordering::Relaxed);
        Duration::from_secs(machine.saturating_add_signed(offset))
    }
}

/// RFC 3339 with whole seconds, rounded down as Go does.
pub fn stamp(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

/// `seconds` later.
pub fn later(time: Timestamp, seconds: i64) -> Timestamp {
    time.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}
