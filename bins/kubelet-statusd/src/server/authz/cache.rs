//! What the API server has said of somebody's rights, for a while (upstream `apiserver/plugin/pkg/authorizer/webhook`).
//! Pure in time.

use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use crate::lru::Lru;
use crate::server::reviews::AccessStatus;

const CAPACITY: usize = 8192;
/// Of what the client chooses: more than this is asked about each time, so that nobody fills the cache with a few requests.
const MAX_CHOSEN: usize = 10_000;

/// A question's place in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key([u8; 32]);

impl Key {
    /// `spec`: the whole question as it is sent.
    pub fn of(spec: &[u8]) -> Self {
        Key(Sha256::digest(spec).into())
    }
}

/// Whether an answer may be remembered. `chosen`: how many characters the client has chosen.
pub const fn may_remember(chosen: usize) -> bool {
    chosen < MAX_CHOSEN
}

/// See the module.
#[derive(Debug)]
pub struct AccessCache {
    allowed: Duration,
    refused: Duration,
    entries: Lru<Key, (Instant, AccessStatus)>,
}

impl AccessCache {
    /// Lifetimes of answers.
    pub fn new(allowed: Duration, refused: Duration) -> Self {
        AccessCache { allowed, refused, entries: Lru::new(CAPACITY) }
    }

    pub fn get(&mut self, key: Key, now: Instant) -> Option<AccessStatus> {
        let (until, status) = self.entries.get(&key)?;
        (now < *until).then(|| status.clone())
    }

    pub fn put(&mut self, key: Key, status: AccessStatus, now: Instant) {
        let lifetime = if status.allowed { self.allowed } else { self.refused };
        self.entries.put(key, (now + lifetime, status));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yes_lasts_longer_than_no() {
        let mut cache = AccessCache::new(Duration::from_secs(300), Duration::from_secs(30));
        let (yes, no) = (Key::of(b"yes"), Key::of(b"no"));
        let now = Instant::now();
        let allowed = AccessStatus { allowed: true, denied: false };
        cache.put(yes, allowed.clone(), now);
        cache.put(no, AccessStatus::default(), now);
        let at = |seconds: u64| now + Duration::from_secs(seconds);
        assert_eq!((cache.get(yes, at(31)), cache.get(no, at(31))), (Some(allowed), None));
        assert_eq!(cache.get(no, at(29)), Some(AccessStatus::default()));
        assert_eq!(cache.get(yes, at(300)), None);
        assert_eq!(cache.get(Key::of(b"other"), now), None);
        assert!(may_remember(9_999) && !may_remember(10_000));
    }
}
