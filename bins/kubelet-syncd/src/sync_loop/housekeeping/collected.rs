//! Of which pods what is left is being removed right now. While it is, what the runtime has of such a pod says nothing of one that has
//! come back under its uid, as a static pod does whose manifest is removed and written again.

use std::collections::HashMap;
use std::sync::Arc;

use bulkhead_types::PodUid;
use parking_lot::{Mutex, MutexGuard};

/// By uid, how many tasks remove something of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Collected(Arc<Mutex<HashMap<PodUid, u32>>>);

impl Collected {
    fn tasks(&self) -> MutexGuard<'_, HashMap<PodUid, u32>> {
        // Every step leaves it whole.
        self.0.lock()
    }

    pub(super) fn contains(&self, uid: &PodUid) -> bool {
        self.tasks().contains_key(uid)
    }

    /// One more task, until the answer is dropped.
    pub(super) fn begin(&self, uid: &PodUid) -> Collecting {
        *self.tasks().entry(uid.clone()).or_default() += 1;
        Collecting { all: self.clone(), uid: uid.clone() }
    }
}

/// A task that removes what is left of a pod.
#[derive(Debug)]
pub(super) struct Collecting {
    all: Collected,
    uid: PodUid,
}

impl Drop for Collecting {
    fn drop(&mut self) {
        let mut tasks = self.all.tasks();
        let left = tasks.get(&self.uid).map_or(0, |tasks| tasks.saturating_sub(1));
        match left {
            0 => drop(tasks.remove(&self.uid)),
            left => drop(tasks.insert(self.uid.clone(), left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn until_the_last_task_has_ended() {
        let (collected, uid) = (Collected::default(), PodUid::parse("a").unwrap());
        let (first, second) = (collected.begin(&uid), collected.begin(&uid));
        drop(first);
        assert!(collected.contains(&uid));
        drop(second);
        assert!(!collected.contains(&uid));
    }
}
