//! Pods of which something else is true than was shown: the health of their devices has changed, or a driver that they wait for is
//! there. Told to the sync loop once a second at most, however often it changes (upstream `resourceupdates`).

use std::collections::BTreeSet;
use std::time::Duration;

use bulkhead_types::PodUid;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Between two times that are told.
const PAUSE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub struct News {
    pods: Mutex<(BTreeSet<PodUid>, Option<Instant>)>,
    told: Notify,
}

impl News {
    /// These are to be looked at.
    pub fn add(&self, uids: impl IntoIterator<Item = String>) {
        let uids = uids.into_iter().filter_map(|uid| PodUid::parse(&uid).ok());
        let mut pods = self.pods.lock();
        pods.0.extend(uids);
        if !pods.0.is_empty() {
            self.told.notify_one();
        }
    }

    /// Waits until there are some.
    pub async fn changed(&self) {
        loop {
            let due = {
                let pods = self.pods.lock();
                (!pods.0.is_empty()).then(|| pods.1.map(|last| last + PAUSE))
            };
            match due {
                Some(Some(due)) => return tokio::time::sleep_until(due).await,
                Some(None) => return,
                None => self.told.notified().await,
            }
        }
    }

    /// All of them.
    pub fn take(&self) -> BTreeSet<PodUid> {
        let mut pods = self.pods.lock();
        pods.1 = Some(Instant::now());
        std::mem::take(&mut pods.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_thousand_changes_a_second() {
        let (news, start) = (News::default(), Instant::now());
        let mut told = 0;
        let changes = async {
            for _ in 0..3000 {
                news.add(["p".to_owned()]);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let listening = async {
            loop {
                news.changed().await;
                assert_eq!(news.take().len(), 1);
                told += 1;
            }
        };
        tokio::select! {
            () = changes => {}
            () = listening => {}
        }
        assert!((3..=4).contains(&told), "{told} in {:?}", start.elapsed());
    }
}
