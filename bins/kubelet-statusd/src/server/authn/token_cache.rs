//! What the API server has said of tokens, for a while (`apiserver/pkg/authentication/token/cache`). Tokens themselves are
//! not kept: entries are known by a keyed hash that nobody outside can compute. Pure in time.

use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use super::identity::Identity;
use super::presented::Token;
use crate::lru::Lru;

/// Entries of good tokens; upstream keeps some tens of thousands of both kinds.
const GOOD: usize = 8192;
/// Entries of tokens that are nobody's. Strangers fill them as they like, and push out nothing but one another's.
const REFUSED: usize = 1024;
/// SHA-256 works on blocks of so many bytes.
const BLOCK: usize = 64;

/// A token's place in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key([u8; 32]);

/// Who the token is good for; None: nobody.
pub type Authenticated = Option<Identity>;

/// See the module.
#[derive(Debug)]
pub struct TokenCache {
    secret: [u8; 32],
    /// Of good and of bad tokens alike; zero: each is asked about each time.
    lifetime: Duration,
    /// Also those whose time is over: they were good before.
    good: Lru<Key, (Instant, Identity)>,
    refused: Lru<Key, Instant>,
}

impl TokenCache {
    /// `secret`: random.
    pub fn new(secret: [u8; 32], lifetime: Duration) -> Self {
        TokenCache { secret, lifetime, good: Lru::new(GOOD), refused: Lru::new(REFUSED) }
    }

    pub fn key(&self, token: &Token) -> Key {
        Key(hmac_sha256(&self.secret, token.0.as_bytes()))
    }

    pub fn get(&mut self, key: Key, now: Instant) -> Option<Authenticated> {
        if let Some((until, who)) = self.good.get(&key) {
            return (now < *until).then(|| Some(who.clone()));
        }
        let until = self.refused.get(&key)?;
        (now < *until).then_some(None)
    }

    /// Whether the token has been good, however long ago; not if the API server has said since that it is nobody's. That it
    /// could not say (as it also words what it refuses) changes nothing: known clients matter most when it is in trouble.
    pub fn was_good(&mut self, key: Key) -> bool {
        self.good.get(&key).is_some()
    }

    pub fn put(&mut self, key: Key, verdict: Authenticated, now: Instant) {
        let until = now + self.lifetime;
        match verdict {
            Some(who) => {
                self.refused.remove(&key);
                self.good.put(key, (until, who));
            }
            None => {
                self.good.remove(&key);
                self.refused.put(key, until);
            }
        }
    }
}

/// RFC 2104.
fn hmac_sha256(key: &[u8; 32], message: &[u8]) -> [u8; 32] {
    let mut pads = [[0x36; BLOCK], [0x5c; BLOCK]];
    for pad in &mut pads {
        pad.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
    }
    let inner = Sha256::new().chain_update(pads[0]).chain_update(message).finalize();
    Sha256::new().chain_update(pads[1]).chain_update(inner).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_rfcs() {
        // Computed with another implementation of HMAC-SHA-256.
        let key: [u8; 32] = std::array::from_fn(|i| u8::try_from(i).unwrap());
        let hex: String = hmac_sha256(&key, b"token").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "799ef35acf21da6109953721bac8e63fcef145cf7d97915acf277349c7282a9c");
    }

    #[test]
    fn answers_are_good_for_their_time() {
        let mut cache = TokenCache::new([7; 32], Duration::from_secs(120));
        let (good, bad) = (cache.key(&Token("good".into())), cache.key(&Token("bad".into())));
        assert_ne!(good, bad);
        let now = Instant::now();
        cache.put(good, Some(Identity::anonymous()), now);
        cache.put(bad, None, now);
        let later = now + Duration::from_secs(119);
        assert_eq!(cache.get(good, later), Some(Some(Identity::anonymous())));
        assert_eq!(cache.get(bad, later), Some(None), "a refusal is kept, too");
        assert_eq!(cache.get(good, now + Duration::from_secs(120)), None);
        assert!(cache.was_good(good) && !cache.was_good(bad), "it is known longer than it is believed");
        // Strangers push out one another's, and what was good is forgotten once it is not.
        for number in 0..REFUSED + 10 {
            let key = cache.key(&Token(number.to_string()));
            cache.put(key, None, now);
        }
        assert_eq!((cache.get(good, later), cache.get(bad, later)), (Some(Some(Identity::anonymous())), None));
        cache.put(good, None, now);
        assert!(!cache.was_good(good) && cache.get(good, now) == Some(None));
        assert_eq!(cache.get(cache.key(&Token("new".into())), now), None);
        let mut none = TokenCache::new([7; 32], Duration::ZERO);
        none.put(good, Some(Identity::anonymous()), now);
        assert!(none.get(good, now).is_none() && none.was_good(good));
        assert_ne!(TokenCache::new([8; 32], Duration::ZERO).key(&Token("good".into())), good, "another secret");
    }
}
