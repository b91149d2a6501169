//! When each pod is to be looked at, kept by time: whoever asks what comes next does not go through the pods of which nothing is due.

use std::collections::{BTreeSet, HashMap};

use bulkhead_types::PodUid;
use tokio::time::Instant;

#[derive(Debug, Default)]
pub(super) struct DueTimes {
    of: HashMap<PodUid, Instant>,
    by_time: BTreeSet<(Instant, PodUid)>,
}

impl DueTimes {
    /// At this time, unless an earlier one was said.
    pub(super) fn at(&mut self, uid: &PodUid, at: Instant) {
        match self.of.get(uid) {
            Some(due) if *due <= at => return,
            Some(due) => {
                self.by_time.remove(&(*due, uid.clone()));
            }
            None => {}
        }
        self.of.insert(uid.clone(), at);
        self.by_time.insert((at, uid.clone()));
    }

    pub(super) fn contains(&self, uid: &PodUid) -> bool {
        self.of.contains_key(uid)
    }

    pub(super) fn of(&self, uid: &PodUid) -> Option<Instant> {
        self.of.get(uid).copied()
    }

    pub(super) fn remove(&mut self, uid: &PodUid) {
        if let Some((uid, due)) = self.of.remove_entry(uid) {
            self.by_time.remove(&(due, uid));
        }
    }

    /// All that is due at some time, the earliest first.
    pub(super) fn by_time(&self) -> impl Iterator<Item = (Instant, &PodUid)> {
        self.by_time.iter().map(|(due, uid)| (*due, uid))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Both sides hold the same, and the earliest word counts until it is taken.
        #[test]
        fn the_earliest_time_of_each_pod_in_order(steps in proptest::collection::vec((0..6_u8, 0..5_u64), 0..60)) {
            let start = Instant::now();
            let (mut due, mut expected) = (DueTimes::default(), HashMap::<PodUid, Instant>::new());
            for (which, after) in steps {
                let uid = PodUid::parse(&format!("u{which}")).unwrap();
                if after == 0 {
                    due.remove(&uid);
                    expected.remove(&uid);
                } else {
                    let at = start + Duration::from_secs(after);
                    due.at(&uid, at);
                    let earliest = expected.entry(uid).or_insert(at);
                    *earliest = at.min(*earliest);
                }
                let mut in_order: Vec<(Instant, PodUid)> =
                    expected.iter().map(|(uid, at)| (*at, uid.clone())).collect();
                in_order.sort();
                let told: Vec<(Instant, PodUid)> = due.by_time().map(|(at, uid)| (at, uid.clone())).collect();
                prop_assert_eq!(told, in_order);
                prop_assert!(expected.keys().all(|uid| due.contains(uid)) && due.of.len() == expected.len());
            }
        }
    }
}
