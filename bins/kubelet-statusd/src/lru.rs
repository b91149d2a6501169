//! A map of bounded size that forgets what was used longest ago.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// Keys are kept twice: hashes, rather than the texts that they stand for.
#[derive(Debug)]
pub struct Lru<K, V> {
    capacity: usize,
    clock: u64,
    entries: HashMap<K, (u64, V)>,
    by_use: BTreeMap<u64, K>,
}

impl<K: Hash + Eq + Clone, V> Lru<K, V> {
    pub fn new(capacity: usize) -> Self {
        Lru { capacity, clock: 0, entries: HashMap::new(), by_use: BTreeMap::new() }
    }

    /// The value, which counts as used now.
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        self.clock += 1;
        let clock = self.clock;
        let (used, value) = self.entries.get_mut(key)?;
        self.by_use.remove(used);
        self.by_use.insert(clock, key.clone());
        *used = clock;
        Some(value)
    }

    /// Puts the value, as used now; the longest unused goes when there is no room.
    pub fn put(&mut self, key: K, value: V) {
        self.clock += 1;
        if let Some((used, _)) = self.entries.insert(key.clone(), (self.clock, value)) {
            self.by_use.remove(&used);
        }
        self.by_use.insert(self.clock, key);
        while self.entries.len() > self.capacity
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.entries.remove(&oldest);
        }
    }

    pub fn remove(&mut self, key: &K) {
        if let Some((used, _)) = self.entries.remove(key) {
            self.by_use.remove(&used);
        }
    }

    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_the_longest_unused() {
        let mut lru = Lru::new(2);
        lru.put(1, "a");
        lru.put(2, "b");
        assert_eq!(lru.get(&1), Some(&mut "a"));
        lru.put(3, "c");
        assert_eq!((lru.get(&1).copied(), lru.get(&2).copied(), lru.get(&3).copied()), (Some("a"), None, Some("c")));
        lru.put(3, "d");
        assert_eq!((lru.entries.len(), lru.get(&3).copied()), (2, Some("d")));
        lru.remove(&3);
        assert_eq!((lru.len(), lru.by_use.len(), lru.get(&3)), (1, 1, None));
    }
}
