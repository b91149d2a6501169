//! Signals that were held back for long enough go out beside the slots, one after the other.

use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// Whose signals go out next, in order of arrival.
#[derive(Debug)]
pub struct Overdue {
    every: Duration,
    /// When the last one's did.
    last: Mutex<Option<Instant>>,
}

impl Overdue {
    /// `every`: the time between two of them.
    pub fn new(every: Duration) -> Self {
        Overdue { every, last: Mutex::new(None) }
    }

    /// Waits for a turn. Who is dropped meanwhile has none, and costs those behind it nothing.
    pub async fn turn(&self) {
        let mut last = self.last.lock().await;
        if let Some(last) = *last {
            tokio::time::sleep_until(last + self.every).await;
        }
        *last = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn turns_keep_their_distance_and_nobody_who_has_gone_is_waited_for() {
        let (overdue, begun) = (Overdue::new(Duration::from_secs(1)), Instant::now());
        let turn = || async {
            overdue.turn().await;
            begun.elapsed().as_secs()
        };
        assert_eq!(turn().await, 0, "the first waits for nobody");
        let (first, gone, second) = (turn(), turn(), turn());
        tokio::pin!(first);
        assert!(futures_util::poll!(&mut first).is_pending());
        {
            tokio::pin!(gone);
            assert!(futures_util::poll!(&mut gone).is_pending());
        }
        assert_eq!(tokio::join!(first, second), (1, 2));
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(turn().await, 12, "nothing is saved up, and nothing owed");
    }
}
