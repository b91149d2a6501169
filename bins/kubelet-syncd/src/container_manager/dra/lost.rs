//! Claims of pods that are gone: ended while this process was not there, or so that nobody could be asked. Tried when it is found out,
//! when a driver comes back, and now and then; who waits for a driver is told then, too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::BackOff;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::manager::DraManager;

/// Between tries.
const AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// Runs for ever.
pub async fn keep(manager: Arc<DraManager>) {
    let mut lost = manager.lost.subscribe();
    let mut drivers = manager.plugins().changes();
    let mut again = BackOff::new(AGAIN.0, AGAIN.1);
    let mut usable = BTreeMap::new();
    loop {
        let gone = lost.borrow_and_update().clone();
        let left = sweep(&manager, gone.into_iter()).await;
        let next = left.then(|| Instant::now() + again.pause());
        loop {
            tokio::select! {
                told = lost.changed() => if told.is_err() { return } else { break },
                told = drivers.changed() => if told.is_err() { return },
                () = sleep_until(next) => break,
            }
            // A driver that a try did not reach is a change, too: the next try waits for its time, or for one that is back.
            drivers.borrow_and_update();
            let now = manager.plugins().usable();
            let back = now.iter().any(|(driver, is)| *is && usable.get(driver) != Some(&true));
            usable = now;
            if back {
                again.reset();
                manager.driver_is_back();
                break;
            }
        }
    }
}

/// Never, where there is no time.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Each pod for itself: one driver that hangs holds up nobody else's. Answers whether something is left.
async fn sweep(manager: &DraManager, lost: impl Iterator<Item = String>) -> bool {
    let tries = lost.map(|uid| async move {
        let outcome = manager.unprepare_claims(&uid).await;
        match &outcome {
            Ok(()) => {
                manager.lost.send_if_modified(|known| {
                    known.remove(&uid);
                    false
                });
            }
            Err(error) => {
                tracing::info!(pod_uid = uid, "Unpreparing pod resources in reconcile loop failed, will retry: {error}")
            }
        }
        outcome.is_err()
    });
    join_all(tries).await.contains(&true)
}
