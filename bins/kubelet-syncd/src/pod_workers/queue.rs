//! The pods that are due at some time: a queue with one wake-up, the earliest, and at most one entry for each pod.

use std::collections::{BTreeSet, HashMap};
use tokio::time::Instant;

use bulkhead_types::PodUid;

/// Times at which pods are to be looked at again. A pod that is added twice keeps the earlier time.
#[derive(Debug, Default)]
pub struct WorkQueue {
    order: BTreeSet<(Instant, PodUid)>,
    due: HashMap<PodUid, Instant>,
}

impl WorkQueue {
    pub fn add(&mut self, uid: &PodUid, at: Instant) {
        match self.due.get(uid) {
            Some(old) if *old <= at => return,
            Some(old) => {
                self.order.remove(&(*old, uid.clone()));
            }
            None => {}
        }
        self.order.insert((at, uid.clone()));
        self.due.insert(uid.clone(), at);
    }

    /// Replaces the pod's time, also by a later one: work has just been done on it.
    pub fn set(&mut self, uid: &PodUid, at: Instant) {
        self.remove(uid);
        self.add(uid, at);
    }

    pub fn remove(&mut self, uid: &PodUid) {
        if let Some(old) = self.due.remove(uid) {
            self.order.remove(&(old, uid.clone()));
        }
    }

    /// When the next pod is due.
    pub fn next(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Takes what is due now, oldest first.
    pub fn take_due(&mut self, now: Instant) -> Vec<PodUid> {
        let mut taken = Vec::new();
        while let Some((at, _)) = self.order.first()
            && *at <= now
        {
            if let Some((_, uid)) = self.order.pop_first() {
                self.due.remove(&uid);
                taken.push(uid);
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn earliest_first_and_once_each() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let uid = |t: &str| PodUid::parse(t).unwrap();
        let mut queue = WorkQueue::default();
        queue.add(&uid("a"), at(5));
        queue.add(&uid("b"), at(3));
        queue.add(&uid("a"), at(9));
        assert_eq!(queue.next(), Some(at(3)));
        queue.add(&uid("a"), at(1));
        assert_eq!(queue.take_due(at(4)), vec![uid("a"), uid("b")]);
        assert_eq!(queue.next(), None);
        queue.add(&uid("a"), at(1));
        queue.set(&uid("a"), at(8));
        assert_eq!(queue.next(), Some(at(8)));
        queue.remove(&uid("a"));
        assert!(queue.take_due(at(99)).is_empty());
    }
}
