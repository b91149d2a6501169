//! Claims of pods that are gone: ended while this process was not there, or so that nobody could be asked. Tried when it is found out,
//! when a driver comes back, and now and then; who waits for a driver is told then, too.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::BackOff;
use futures_util::future::join_all;

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
        let pause = async { if left { tokio::time::sleep(again.pause()).await } else { std::future::pending().await } };
        tokio::select! {
            told = lost.changed() => if told.is_err() { return },
            told = drivers.changed() => if told.is_err() { return },
            () = pause => {}
        }
        drivers.borrow_and_update();
        let now = manager.plugins().usable();
        let back = now.iter().any(|(driver, is)| *is && usable.get(driver) != Some(&true));
        usable = now;
        if back {
            again.reset();
            manager.driver_is_back();
        }
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
