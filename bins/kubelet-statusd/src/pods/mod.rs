//! Pod status, mirror pods, and the deletion of pods that have ended.

use crate::outward::Outward;

/// Writes what kubelet-syncd says of its pods until the daemon is to stop.
pub async fn run(outward: Outward) {
    outward.stop.cancelled().await;
}
