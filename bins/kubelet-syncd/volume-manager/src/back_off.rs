//! When an operation that failed is tried again (upstream `pkg/util/goroutinemap/exponentialbackoff`), one for each volume of
//! each pod. Only the operation that failed waits: another one on the same volume begins at once, and with a wait of its own
//! (upstream `nestedpendingoperations.go` Run).

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

/// Which operation it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Attach,
    Mount,
    Expand,
    Unmount,
    Unstage,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    kind: Kind,
    wait: Duration,
    until: Instant,
}

/// All waits.
#[derive(Debug, Default)]
pub struct BackOffs(HashMap<Key, Wait>);

impl BackOffs {
    /// It has failed now.
    pub fn failed(&mut self, key: Key, kind: Kind, now: Instant) {
        let last = self.0.get(&key).filter(|wait| wait.kind == kind).map_or(Duration::ZERO, |wait| wait.wait);
        let wait = (last * 2).clamp(FIRST, LONGEST);
        self.0.insert(key, Wait { kind, wait, until: now + wait });
    }

    /// It has succeeded, or nobody wants it any more.
    pub fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// Only waits for volumes of such pods, and for volumes themselves, go on.
    pub fn retain(&mut self, is_kept: impl Fn(&Key) -> bool) {
        self.0.retain(|key, _| is_kept(key));
    }

    /// What failed for want of something that is there now is tried at once; waits go on from where they were.
    pub fn hurry(&mut self, now: Instant, is_meant: impl Fn(&UniqueName) -> bool) {
        let meant = self.0.iter_mut().filter(|((volume, _), _)| is_meant(volume));
        meant.for_each(|(_, wait)| wait.until = wait.until.min(now));
    }

    /// Until when an operation of this kind is not tried.
    pub fn until(&self, key: &Key, kind: Kind, now: Instant) -> Option<Instant> {
        self.waited_until(key, kind).filter(|until| *until > now)
    }

    /// The same where that is over; `None`: it has not failed, or something else was tried since.
    pub fn waited_until(&self, key: &Key, kind: Kind) -> Option<Instant> {
        self.0.get(key).filter(|wait| wait.kind == kind).map(|wait| wait.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_for_each_volume() {
        let (mut waits, start) = (BackOffs::default(), Instant::now());
        let volume = |name: &str| UniqueName(name.into());
        let key = |name: &str| (volume(name), None);
        let (stage, other) = (Kind::Mount, Kind::Unstage);
        let mut now = start;
        for expected in [500, 1000, 2000, 4000, 8000, 16_000, 32_000, 64_000, 122_000, 122_000] {
            waits.failed(key("a"), stage, now);
            let until = waits.until(&key("a"), stage, now).unwrap();
            assert_eq!(until - now, Duration::from_millis(expected));
            assert_eq!(waits.until(&key("a"), stage, until), None);
            assert_eq!(waits.waited_until(&key("a"), stage), Some(until));
            assert_eq!(waits.until(&key("a"), other, now), None, "another operation does not wait");
            now = until;
        }
        assert_eq!(waits.until(&key("b"), stage, now), None);
        waits.failed(key("a"), stage, now);
        waits.hurry(now, |name| *name == volume("b"));
        assert!(waits.until(&key("a"), stage, now).is_some(), "another volume was meant");
        waits.hurry(now, |name| *name == volume("a"));
        assert_eq!(waits.until(&key("a"), stage, now), None);
        waits.failed(key("a"), other, now);
        assert_eq!(waits.until(&key("a"), other, now), Some(now + FIRST), "it has failed for the first time");
        waits.forget(&key("a"));
        waits.failed(key("a"), stage, now);
        assert_eq!(waits.until(&key("a"), stage, now), Some(now + FIRST));
        waits.retain(|(name, _)| *name == volume("b"));
        assert_eq!(waits.until(&key("a"), stage, now), None);
    }
}
