//! Who pulls, and who waits for that. `serializeImagePulls` and `maxParallelImagePulls` bound the pulls from each registry, so that
//! a slow one holds up no other's (docs/decisions/0082-pulls.md). No I/O.

use std::collections::BTreeMap;
use std::sync::Arc;

use kubelet_model::pod::image_reference::ImageName;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Registries that are pulled from at once, where pulls are bounded at all: what pods name is unbounded.
pub const REGISTRIES_MAX: usize = 16;

/// What is pulled for whom.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subject {
    /// As the container names it.
    pub image: String,
    pub pod_uid: String,
    /// Of the pod; empty where it is not known.
    pub namespace: String,
    pub pod: String,
}

impl Subject {
    /// The host that the image's name begins with, or is short for.
    pub fn registry(&self) -> String {
        let name = ImageName::parse(&self.image).map(|name| name.repository).unwrap_or_default();
        name.split('/').next().unwrap_or_default().to_owned()
    }
}

/// A pull that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pull {
    pub of: Subject,
    pub queued: Instant,
    /// None: it waits for its turn.
    pub began: Option<Instant>,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    registry: String,
    pull: Pull,
    /// Of who waits.
    wake: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct State {
    /// Pulls from one registry at once. None: any number of all.
    each: Option<usize>,
    ids: u64,
    /// In the order in which they came.
    entries: Vec<Entry>,
}

impl State {
    /// Begins what may begin, first come first served within each registry.
    fn next(&mut self, now: Instant) {
        let mut pulling: BTreeMap<String, usize> = BTreeMap::new();
        for entry in self.entries.iter().filter(|entry| entry.pull.began.is_some()) {
            *pulling.entry(entry.registry.clone()).or_default() += 1;
        }
        for entry in self.entries.iter_mut().filter(|entry| entry.pull.began.is_none()) {
            let may_begin = match (self.each, pulling.get(&entry.registry)) {
                (None, _) => true,
                (Some(each), Some(now)) => *now < each,
                (Some(_), None) => pulling.len() < REGISTRIES_MAX,
            };
            if may_begin {
                *pulling.entry(entry.registry.clone()).or_default() += 1;
                entry.pull.began = Some(now);
                if let Some(wake) = entry.wake.take() {
                    // Who has gone away meanwhile takes its entry along.
                    let _ = wake.send(());
                }
            }
        }
    }
}

/// See the module. Clones are the same.
#[derive(Debug, Clone)]
pub struct PullQueue(Arc<Mutex<State>>);

impl PullQueue {
    /// `each`: pulls from one registry at once; None: no bound.
    pub fn new(each: Option<usize>) -> Self {
        PullQueue(Arc::new(Mutex::new(State { each: each.map(|each| each.max(1)), ids: 0, entries: Vec::new() })))
    }

    /// Waits for a turn, which ends when it is dropped.
    pub async fn turn(&self, of: Subject) -> Turn {
        let (wake, woken) = oneshot::channel();
        let turn = {
            let mut state = self.0.lock();
            state.ids += 1;
            let (id, now) = (state.ids, Instant::now());
            let (registry, pull) = (of.registry(), Pull { of, queued: now, began: None });
            state.entries.push(Entry { id, registry, pull, wake: Some(wake) });
            state.next(now);
            Turn { queue: self.clone(), id }
        };
        // The sender lives as long as the turn.
        let _ = woken.await;
        turn
    }

    /// All that have not ended, in the order in which they came.
    pub fn pulls(&self) -> Vec<Pull> {
        self.0.lock().entries.iter().map(|entry| entry.pull.clone()).collect()
    }
}

/// The right to pull.
#[derive(Debug)]
#[must_use = "the turn ends when it is dropped"]
pub struct Turn {
    queue: PullQueue,
    id: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.queue.0.lock();
        state.entries.retain(|entry| entry.id != self.id);
        state.next(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use futures_util::future::BoxFuture;
    use proptest::prelude::*;

    fn of(image: &str) -> Subject {
        Subject { image: image.to_owned(), ..Subject::default() }
    }

    #[test]
    fn registries() {
        for (image, expected) in [
            ("busybox", "docker.io"),
            ("library/busybox:1", "docker.io"),
            ("docker.io/library/busybox", "docker.io"),
            ("localhost/a", "localhost"),
            ("r.test:5000/team/app:1", "r.test:5000"),
            ("Not A Name", ""),
        ] {
            assert_eq!(of(image).registry(), expected, "{image}");
        }
    }

    /// Which of the futures have their turn.
    fn poll(waiting: &mut [(String, BoxFuture<'static, Turn>, Option<Turn>)]) {
        for (_, future, turn) in waiting.iter_mut().filter(|(_, _, turn)| turn.is_none()) {
            *turn = future.now_or_never();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_registry_holds_up_itself() {
        let queue = PullQueue::new(Some(1));
        let slow = queue.turn(of("slow.test/a")).await;
        assert!(queue.turn(of("slow.test/b")).now_or_never().is_none(), "its own turn");
        assert_eq!(queue.pulls().len(), 1, "who went away does not wait");
        let waiting = queue.clone();
        let second = tokio::spawn(async move { waiting.turn(of("slow.test/b")).await });
        tokio::task::yield_now().await;
        let quick = queue.turn(of("quick.test/a")).await;
        let stages: Vec<bool> = queue.pulls().iter().map(|pull| pull.began.is_some()).collect();
        assert_eq!(stages, [true, false, true]);
        drop((slow, quick));
        drop(second.await.unwrap());
        assert!(queue.pulls().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn registries_at_once_are_bounded_where_pulls_are() {
        let queue = PullQueue::new(Some(2));
        let mut turns = Vec::new();
        for n in 0..REGISTRIES_MAX {
            turns.push(queue.turn(of(&format!("r{n}.test/a"))).await);
        }
        assert!(queue.turn(of("more.test/a")).now_or_never().is_none());
        assert!(queue.turn(of("r0.test/b")).now_or_never().is_some());
        turns.pop();
        assert!(queue.turn(of("more.test/a")).now_or_never().is_some());
        let unbounded = PullQueue::new(None);
        let turns: Vec<_> = (0..100).map(|n| unbounded.turn(of(&format!("r{n}.test/a"))).now_or_never()).collect();
        assert!(turns.iter().all(Option::is_some));
    }

    proptest! {
        /// Whoever comes and goes: bounds hold, nobody waits for nothing, and within a registry the order is kept.
        #[test]
        fn turns_are_given_out_in_order(each in 1usize..3, steps in prop::collection::vec((any::<bool>(), 0usize..20), 1..80)) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _entered = runtime.enter();
            let queue = PullQueue::new(Some(each));
            let mut waiting: Vec<(String, BoxFuture<'static, Turn>, Option<Turn>)> = Vec::new();
            for (comes, n) in steps {
                if comes || waiting.is_empty() {
                    let registry = format!("r{}.test/a", n % 3);
                    let (queue, image) = (queue.clone(), registry.clone());
                    waiting.push((registry, Box::pin(async move { queue.turn(of(&image)).await }), None));
                } else {
                    // An end, or somebody who waits no more.
                    drop(waiting.remove(n % waiting.len()));
                }
                // A future that is polled for the first time takes its place in the queue then.
                poll(&mut waiting);
                poll(&mut waiting);
                for registry in 0..3 {
                    let registry = format!("r{registry}.test/a");
                    let all = waiting.iter().filter(|(of, _, _)| *of == registry).map(|(_, _, turn)| turn.is_some());
                    let all: Vec<bool> = all.collect();
                    let pulling = all.iter().filter(|has| **has).count();
                    prop_assert_eq!(pulling, all.len().min(each));
                    prop_assert!(all.iter().take(pulling).all(|has| *has), "first come, first served: {:?}", all);
                }
            }
        }
    }
}
