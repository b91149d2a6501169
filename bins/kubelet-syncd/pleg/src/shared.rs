//! What the task and the handles to it have in common: the pod cache, who hears of events, and what is counted.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::cache::PodCache;
use super::evented::EventSource;
use super::subscribers::Subscribers;

/// Numbers for the operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlegStats {
    /// Where events come from now. None: nowhere, relisting.
    pub source: Option<EventSource>,
    pub relists: u64,
    pub inspections: u64,
    /// Events that the runtime sent and that concerned a container's own process.
    pub runtime_events: u64,
    pub events_missed: u64,
    /// Events for which a subscriber had no room; it has heard of their pods later.
    pub events_discarded: u64,
    pub connection_errors: u64,
    /// Inspections that failed.
    pub inspect_errors: u64,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub cache: Arc<PodCache>,
    pub subscribers: Mutex<Subscribers>,
    pub stats: Mutex<PlegStats>,
    pub last_list: Mutex<Option<Instant>>,
    pub listed_once: watch::Sender<bool>,
    pub connected: AtomicBool,
}
