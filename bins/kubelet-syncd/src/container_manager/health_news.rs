//! Pods whose devices' health is news, told to the sync loop at most once a second (upstream `resourceupdates`): a device that changes
//! a thousand times a second makes one status a second.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

const PACE: Duration = Duration::from_secs(1);

/// Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct HealthNews(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    told: Mutex<BTreeSet<String>>,
    told_news: Notify,
    ready: Mutex<BTreeSet<String>>,
    ready_news: Notify,
}

fn take(pods: &Mutex<BTreeSet<String>>) -> BTreeSet<String> {
    std::mem::take(&mut *pods.lock().unwrap_or_else(PoisonError::into_inner))
}

impl HealthNews {
    /// Something of these pods' devices has changed, by uid.
    pub fn tell(&self, pods: BTreeSet<String>) {
        if !pods.is_empty() {
            self.0.told.lock().unwrap_or_else(PoisonError::into_inner).extend(pods);
            self.0.told_news.notify_one();
        }
    }

    /// Waits until there is something to [`HealthNews::take`].
    pub async fn changed(&self) {
        self.0.ready_news.notified().await;
    }

    /// The pods since the last call.
    pub fn take(&self) -> BTreeSet<String> {
        take(&self.0.ready)
    }

    /// Passes on what is told, once a second. Runs for ever.
    pub async fn pace(self) {
        loop {
            self.0.told_news.notified().await;
            let pods = take(&self.0.told);
            self.0.ready.lock().unwrap_or_else(PoisonError::into_inner).extend(pods);
            self.0.ready_news.notify_one();
            tokio::time::sleep(PACE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn at_most_once_a_second() {
        let news = HealthNews::default();
        tokio::spawn(news.clone().pace());
        let teller = news.clone();
        tokio::spawn(async move {
            for _ in 0..3000 {
                teller.tell(BTreeSet::from(["u".to_owned()]));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let (mut heard, until) = (0, tokio::time::Instant::now() + Duration::from_secs(10));
        while tokio::time::timeout_at(until, news.changed()).await.is_ok() {
            assert_eq!(news.take().len(), 1);
            heard += 1;
        }
        assert!((3..=5).contains(&heard), "{heard}");
    }
}
