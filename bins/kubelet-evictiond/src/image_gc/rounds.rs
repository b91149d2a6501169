//! The loop of rounds: when one is due, and as soon as the image file system gets beyond the high threshold.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_daemon::progress::Heartbeat;
use tokio_util::sync::CancellationToken;

use super::collector::{Collector, now_ms};
use super::store::ImageStore;

/// Until the daemon is to stop.
pub async fn run<S: ImageStore>(collector: Arc<Collector<S>>, heartbeat: Heartbeat, stop: CancellationToken) {
    let policy = *collector.policy();
    if policy.is_disabled() {
        tracing::info!("ImageGCHighThresholdPercent is set 100 and ImageMaximumGCAge is 0, disable image GC");
    }
    let mut usage = collector.usage();
    // A round looks at the file system itself: only what gets full after one calls for the next.
    let mut was_below = false;
    let mut due = now_ms();
    loop {
        let left = Duration::from_millis(u64::try_from(due.saturating_sub(now_ms())).unwrap_or(0));
        let is_due = heartbeat
            .rests(async {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => None,
                    () = tokio::time::sleep(left) => Some(true),
                    changed = usage.changed() => changed.is_ok().then_some(false),
                }
            })
            .await;
        let Some(mut is_due) = is_due else { return };
        if let Some(used) = *usage.borrow_and_update()
            && !policy.is_disabled()
        {
            is_due |= was_below && used >= policy.high_percent;
            was_below = used < policy.high_percent;
        }
        if is_due {
            // For kubelet-syncd, the runtime and the file system. A removal goes on there when this process ends.
            let _waiting = heartbeat.waits_on();
            tokio::select! {
                next = collector.round() => due = next,
                () = stop.cancelled() => return,
            }
        }
    }
}
