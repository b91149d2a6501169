//! Which volumes the log was told of that could not be measured as a whole: of each it is told now and then, however often it is measured.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A volume is told of again after this.
const AGAIN: Duration = Duration::from_secs(3600);
/// So many are remembered; of more nothing is told until one of them may be told of again.
const MAX: usize = 1000;

/// Volumes that were told of, and when.
#[derive(Debug, Default)]
pub struct Incomplete {
    told: Mutex<HashMap<String, Instant>>,
}

impl Incomplete {
    /// Whether this one is to be told of now.
    pub fn is_news(&self, volume: &str) -> bool {
        // Each change is a single call: a holder that panicked left a whole map.
        let mut told = self.told.lock();
        told.retain(|_, at| at.elapsed() < AGAIN);
        if told.len() >= MAX || told.contains_key(volume) {
            return false;
        }
        told.insert(volume.to_owned(), Instant::now());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_volume_is_told_of_now_and_then() {
        let incomplete = Incomplete::default();
        assert_eq!(["a", "a", "b"].map(|volume| incomplete.is_news(volume)), [true, false, true]);
        tokio::time::advance(AGAIN).await;
        assert!(incomplete.is_news("a"));
        assert_eq!((0..MAX).filter(|index| incomplete.is_news(&index.to_string())).count(), MAX - 1);
    }
}
