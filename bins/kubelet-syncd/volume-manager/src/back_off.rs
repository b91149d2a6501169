//! When an operation that failed is tried again (upstream `pkg/util/goroutinemap/exponentialbackoff`), one for each volume of
//! each pod.

use std::collections::HashMap;
use std::time::Duration;

use bulkhead_types::PodUid;
use tokio::time::Instant;

use crate::spec::UniqueName;

/// Wait after the first failure; it doubles with each one.
pub const FIRST: Duration = Duration::from_millis(500);
/// The longest wait.
pub const LONGEST: Duration = Duration::from_secs(122);

/// What has failed: a volume of a pod, or what concerns all of its pods.
pub type Key = (UniqueName, Option<PodUid>);

#[derive(Debug, Clone, Copy)]
struct Wait {
    wait: Duration,
    until: Instant,
}

/// All waits.
#[derive(Debug, Default)]
pub struct BackOffs(HashMap<Key, Wait>);

impl BackOffs {
    /// It has failed now.
    pub fn failed(&mut self, key: Key, now: Instant) {
        let last = self.0.get(&key).map_or(Duration::ZERO, |wait| wait.wait);
        let wait = (last * 2).clamp(FIRST, LONGEST);
        self.0.insert(key, Wait { wait, until: now + wait });
    }

    /// It has succeeded, or nobody wants it any more.
    pub fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// What failed for want of something that is there now is tried at once; waits go on from where they were.
    pub fn hurry(&mut self, now: Instant) {
        self.0.values_mut().for_each(|wait| wait.until = wait.until.min(now));
    }

    /// Until when nothing is tried.
    pub fn until(&self, key: &Key, now: Instant) -> Option<Instant> {
        self.0.get(key).map(|wait| wait.until).filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_for_each_volume() {
        let (mut waits, start) = (BackOffs::default(), Instant::now());
        let key = |name: &str| (UniqueName(name.into()), None);
        let mut now = start;
        for expected in [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000] {
            waits.failed(key("a"), now);
            let until = waits.until(&key("a"), now).unwrap();
            assert_eq!(until - now, Duration::from_millis(expected));
            assert_eq!(waits.until(&key("a"), until), None);
            now = until;
        }
        assert_eq!(waits.until(&key("b"), now), None);
        waits.failed(key("a"), now);
        waits.hurry(now);
        assert_eq!(waits.until(&key("a"), now), None);
        waits.forget(&key("a"));
        waits.failed(key("a"), now);
        assert_eq!(waits.until(&key("a"), now), Some(now + FIRST));
    }
}
