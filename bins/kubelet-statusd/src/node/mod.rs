//! The Node object: registration, status, lease.

use crate::outward::Outward;

/// Keeps the Node and its lease until the daemon is to stop.
pub async fn run(outward: Outward) {
    outward.stop.cancelled().await;
}
