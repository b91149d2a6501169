//! Places that many may ask for, shared by where they come from: nobody has more than half of what the others leave, so one
//! source cannot have all of them, nor can a few.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::server::source::Source;

/// See the module. Cheap to clone; all clones share.
#[derive(Debug, Clone)]
pub struct Shares(Arc<Mutex<Shared>>);

#[derive(Debug)]
struct Shared {
    free: usize,
    /// How many each source has; no more entries than there are places.
    taken: HashMap<Source, usize>,
}

/// One place; given back when it is dropped.
#[derive(Debug)]
pub struct Share {
    shares: Shares,
    source: Source,
}

impl Shares {
    pub fn new(places: usize) -> Self {
        Shares(Arc::new(Mutex::new(Shared { free: places, taken: HashMap::new() })))
    }

    /// None: there is none left, or none for this source.
    pub fn take(&self, source: Source) -> Option<Share> {
        let mut shared = self.0.lock();
        let own = shared.taken.get(&source).copied().unwrap_or(0);
        if shared.free == 0 || own > shared.free / 2 {
            return None;
        }
        shared.free -= 1;
        shared.taken.insert(source, own + 1);
        drop(shared);
        Some(Share { shares: self.clone(), source })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shared = self.shares.0.lock();
        shared.free += 1;
        let left = shared.taken.remove(&self.source).unwrap_or(1) - 1;
        if left > 0 {
            shared.taken.insert(self.source, left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_at_most_half_of_what_the_others_leave() {
        let shares = Shares::new(64);
        let source = |last: u8| Source::from(std::net::SocketAddr::from(([192, 0, 2, last], 1)));
        let all_of = |last: u8| std::iter::from_fn(|| shares.take(source(last))).collect::<Vec<_>>();
        let first = all_of(1);
        assert_eq!(first.len(), 22);
        let others: Vec<_> = (2..6).map(all_of).collect();
        let of = others.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(of, [15, 10, 6, 4], "and there is one for the next");
        assert!(shares.take(source(6)).is_some());
        let rest: Vec<_> = (6..200).filter_map(|last| shares.take(source(last))).collect();
        assert_eq!(rest.len(), 64 - 57);
        assert!(shares.take(source(200)).is_none());
        drop(first);
        assert!(shares.take(source(200)).is_some());
        drop((others, rest));
        assert!(shares.0.lock().taken.is_empty() && shares.0.lock().free == 64);
    }
}
