//! preStop hooks, each begun once in a container's life.
//!
//! A hook is a task of its own: the work that waits for it may be cancelled because the grace period shrinks, and the
//! next work waits for the same hook, for as long as its own grace period lasts. When its container has been stopped the
//! hook is over, whatever it was doing. What was begun and what has ended is also handed to a store: after a restart of
//! this process a hook that has ended is not run again, a sleep goes on where it was, and a command or request that was
//! cut off with the process is made again, because nobody knows how far it came.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bulkhead_types::ContainerId;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// More than a node has containers that end at a time: a bound on what a damaged file can bring in.
const ENTRIES_MAX: usize = 16_384;
/// After a restart a container may exist that nobody has looked at yet. By then it has been.
const SETTLED: Duration = Duration::from_secs(600);

/// Keeps what was begun over a restart. Called after every change; must not block long.
pub trait PreStopStore: Send + Sync {
    fn save(&self, json: &[u8]);
}

/// For tests and for where nothing is to be kept.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoStore;

impl PreStopStore for NoStore {
    fn save(&self, _json: &[u8]) {}
}

/// What outlives this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// Milliseconds since 1970.
    began_ms: u64,
    ended: bool,
}

/// The saved form: by container, with no version, which could not be told from a container.
#[derive(Debug, Default, Deserialize)]
struct Notes(#[serde(deserialize_with = "bulkhead_daemon::state_file::map")] BTreeMap<String, Note>);

#[derive(Debug)]
struct Entry {
    note: Note,
    /// From an earlier life of this process.
    restored: bool,
    task: Option<Task>,
}

#[derive(Debug)]
struct Task {
    ended: watch::Receiver<bool>,
    abort: AbortHandle,
}

/// All hooks that were begun for containers that still exist. One for the node.
pub struct PreStops {
    hooks: Mutex<HashMap<ContainerId, Entry>>,
    store: Arc<dyn PreStopStore>,
    since: Instant,
}

impl std::fmt::Debug for PreStops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PreStops").field("hooks", &self.hooks).finish_non_exhaustive()
    }
}

impl PreStops {
    /// Whether anything is made of what was saved.
    ///
    /// # Errors
    /// Why not.
    pub fn understands(saved: &[u8]) -> serde_json::Result<()> {
        serde_json::from_slice::<Notes>(saved).map(drop)
    }

    /// `saved`: what the store was given last; what cannot be read counts as nothing.
    pub fn new(store: Arc<dyn PreStopStore>, saved: Option<&[u8]>) -> Self {
        let notes = saved.and_then(|json| serde_json::from_slice::<Notes>(json).ok()).unwrap_or_default().0;
        let entry = |(id, note): (String, Note)| {
            Some((ContainerId::parse(&id).ok()?, Entry { note, restored: true, task: None }))
        };
        let hooks = Mutex::new(notes.into_iter().take(ENTRIES_MAX).filter_map(entry).collect());
        PreStops { hooks, store, since: Instant::now() }
    }

    fn hooks(&self) -> MutexGuard<'_, HashMap<ContainerId, Entry>> {
        // Plain data, valid at every step.
        self.hooks.lock()
    }

    fn save(&self, hooks: &HashMap<ContainerId, Entry>) {
        let notes: BTreeMap<&str, Note> = hooks.iter().map(|(id, entry)| (id.as_str(), entry.note)).collect();
        // Strings and numbers: nothing there can fail.
        self.store.save(&serde_json::to_vec(&notes).unwrap_or_default());
    }

    /// Waits for the container's hook, at most for `limit`; one that has not been begun is begun. `hook` is given the
    /// time for which it has been running already. Cancelling the wait leaves the hook to go on.
    pub async fn run<F>(
        self: &Arc<Self>,
        id: &ContainerId,
        limit: Duration,
        now: SystemTime,
        hook: impl FnOnce(Duration) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let Some(mut ended) = self.begin(id, now, hook) else { return };
        // The sender lives in the task; should that be gone, so is the hook.
        let _ = tokio::time::timeout(limit, ended.wait_for(|ended| *ended)).await;
    }

    /// None: the hook has ended.
    fn begin<F>(
        self: &Arc<Self>,
        id: &ContainerId,
        now: SystemTime,
        hook: impl FnOnce(Duration) -> F,
    ) -> Option<watch::Receiver<bool>>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let now_ms = now.duration_since(UNIX_EPOCH).map_or(0, |t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX));
        let mut hooks = self.hooks();
        let before = hooks.get(id);
        if before.is_some_and(|entry| entry.note.ended) {
            return None;
        }
        if let Some(task) = before.and_then(|entry| entry.task.as_ref()) {
            return Some(task.ended.clone());
        }
        let began_ms = before.map_or(now_ms, |entry| entry.note.began_ms.min(now_ms));
        let hook = hook(Duration::from_millis(now_ms - began_ms));
        let (sender, ended) = watch::channel(false);
        let (all, own) = (Arc::downgrade(self), id.clone());
        let task = tokio::spawn(async move {
            hook.await;
            if let Some(all) = all.upgrade() {
                all.ended(&own);
            }
            // Nobody may be waiting any more.
            let _ = sender.send(true);
        });
        let task = Task { ended: ended.clone(), abort: task.abort_handle() };
        hooks.insert(id.clone(), Entry { note: Note { began_ms, ended: false }, restored: false, task: Some(task) });
        self.save(&hooks);
        Some(ended)
    }

    fn ended(&self, id: &ContainerId) {
        let mut hooks = self.hooks();
        if let Some(entry) = hooks.get_mut(id) {
            entry.note.ended = true;
            entry.task = None;
            self.save(&hooks);
        }
    }

    /// The container has been stopped. True when its hook was still running, which it is not any more.
    pub fn stopped(&self, id: &ContainerId) -> bool {
        let mut hooks = self.hooks();
        let Some(entry) = hooks.get_mut(id).filter(|entry| !entry.note.ended) else { return false };
        entry.note.ended = true;
        let task = entry.task.take();
        self.save(&hooks);
        task.is_some_and(|task| {
            task.abort.abort();
            true
        })
    }

    /// Keeps what belongs to containers that still exist.
    pub fn retain(&self, exist: &HashSet<ContainerId>) {
        let mut hooks = self.hooks();
        let before = hooks.len();
        let settled = self.since.elapsed() >= SETTLED;
        hooks.retain(|id, entry| exist.contains(id) || (entry.restored && !settled));
        if hooks.len() != before {
            self.save(&hooks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Kept(Mutex<Vec<u8>>);

    impl PreStopStore for Kept {
        fn save(&self, json: &[u8]) {
            *self.0.lock() = json.to_vec();
        }
    }

    fn id() -> ContainerId {
        ContainerId::parse("c").unwrap()
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_hook_outlives_who_waits_for_it_and_runs_once() {
        let hooks = Arc::new(PreStops::new(Arc::new(NoStore), None));
        let begun = Arc::new(AtomicUsize::new(0));
        let hook = |_| {
            let begun = begun.clone();
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
        };
        let start = tokio::time::Instant::now();
        // Cancelled after two seconds, given up after three more, waited out in the third.
        let id = id();
        let wait = hooks.run(&id, Duration::from_secs(60), at(0), hook);
        assert!(tokio::time::timeout(Duration::from_secs(2), wait).await.is_err());
        hooks.run(&id, Duration::from_secs(3), at(2), hook).await;
        assert_eq!(start.elapsed().as_secs(), 5);
        hooks.run(&id, Duration::from_secs(60), at(5), hook).await;
        assert_eq!(start.elapsed().as_secs(), 10);
        hooks.run(&id, Duration::from_secs(60), at(10), hook).await;
        assert_eq!((start.elapsed().as_secs(), begun.load(Ordering::Relaxed)), (10, 1));
        assert!(!hooks.stopped(&id));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopped_container_ends_its_hook() {
        let hooks = Arc::new(PreStops::new(Arc::new(NoStore), None));
        let alive = Arc::new(());
        let held = alive.clone();
        let hook = move |_| async move {
            let _held = held;
            std::future::pending::<()>().await;
        };
        hooks.run(&id(), Duration::from_secs(1), at(0), hook).await;
        assert!(hooks.stopped(&id()));
        assert!(!hooks.stopped(&id()), "said once");
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&alive), 1, "the hook is gone");
        hooks.run(&id(), Duration::from_secs(1), at(1), |_| async { panic!("it was begun before") }).await;
    }

    #[tokio::test(start_paused = true)]
    async fn over_a_restart() {
        let kept = Arc::new(Kept::default());
        let saved = || kept.0.lock().clone();
        let hooks = Arc::new(PreStops::new(kept.clone(), None));
        let sleeping = |_| tokio::time::sleep(Duration::from_secs(10));
        hooks.run(&id(), Duration::from_secs(4), at(100), sleeping).await;
        let seen = Arc::new(Mutex::new(None));
        let hook = |elapsed: Duration| {
            *seen.lock() = Some(elapsed);
            async {}
        };
        // The process was gone while it ran: the hook is told for how long.
        let again = Arc::new(PreStops::new(kept.clone(), Some(&saved())));
        again.run(&id(), Duration::from_secs(4), at(105), hook).await;
        assert_eq!(*seen.lock(), Some(Duration::from_secs(5)));
        // It had ended when the process went.
        let third = Arc::new(PreStops::new(kept.clone(), Some(&saved())));
        third.run(&id(), Duration::from_secs(4), at(109), |_| async { panic!("it has ended") }).await;
        third.retain(&HashSet::from([id()]));
        assert!(!saved().is_empty() && saved() != b"{}");
        third.retain(&HashSet::new());
        assert!(saved() != b"{}", "nobody may have looked yet");
        tokio::time::advance(SETTLED).await;
        third.retain(&HashSet::new());
        assert_eq!(saved(), b"{}");
        // Damage is no hook.
        for damaged in [&b"["[..], br#"{"../x": {"began_ms": 1, "ended": true}}"#] {
            assert!(PreStops::new(kept.clone(), Some(damaged)).hooks().is_empty());
        }
    }
}
