//! Which images go, in which order (upstream imagesInEvictionOrder, freeOldImages, freeSpace). Pure.

use bulkhead_ipc::syncd::StoredImage;

use super::ledger::Ledger;
use super::policy::Policy;

/// An image that nobody uses and that is not pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    pub id: String,
    pub size: i64,
    pub first_detected_ms: i64,
    /// None: it was never seen used, so it is older than any other.
    pub last_used_ms: Option<i64>,
    /// What kubelet-syncd said of its last use: it removes no image that was used since.
    pub seen_use_ms: u64,
}

/// The image file system, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageFs {
    pub capacity: i64,
    pub available: i64,
}

/// What a file system beyond the high threshold asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    pub used_percent: i64,
    /// Bytes, down to the low threshold.
    pub wanted: i64,
}

impl ImageFs {
    /// In whole percent, as upstream rounds. `None`: it has no size.
    pub fn used_percent(&self) -> Option<i64> {
        let available = self.available.clamp(0, self.capacity.max(0));
        let free = i128::from(available).checked_mul(100)?.checked_div(i128::from(self.capacity.max(0)))?;
        Some(100 - i64::try_from(free).unwrap_or(100))
    }

    /// `None`: nothing is to be freed.
    pub fn shortage(&self, policy: &Policy) -> Option<Shortage> {
        let used_percent = self.used_percent().filter(|used| *used >= policy.high_percent)?;
        let keep = i128::from(self.capacity) * i128::from(100 - policy.low_percent) / 100;
        let wanted = keep - i128::from(self.available.clamp(0, self.capacity));
        Some(Shortage { used_percent, wanted: i64::try_from(wanted).unwrap_or(i64::MAX) })
    }
}

impl Unused {
    /// It has been there for long enough to go.
    pub fn is_of_age(&self, policy: &Policy, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.first_detected_ms) >= policy.min_age_ms
    }

    /// It was not used for longer than it may be.
    pub fn is_too_old(&self, policy: &Policy, now_ms: i64) -> bool {
        let unused_for = |last: i64| now_ms.saturating_sub(last);
        policy.max_age_ms > 0 && self.last_used_ms.is_none_or(|last| unused_for(last) > policy.max_age_ms)
    }
}

/// All images that may go, the one that goes first first: not used for longest, then there for longest.
pub fn order(images: &[StoredImage], ledger: &Ledger, now_ms: i64) -> Vec<Unused> {
    let unused = images.iter().filter(|image| image.uses == 0 && !image.pinned).map(|image| {
        let record = ledger.get(&image.id);
        Unused {
            id: image.id.clone(),
            size: i64::try_from(image.size_bytes).unwrap_or(i64::MAX),
            first_detected_ms: record.map_or(now_ms, |record| record.first_detected_ms),
            last_used_ms: record.and_then(|record| record.last_used_ms),
            seen_use_ms: image.last_used_ms,
        }
    });
    let mut all: Vec<Unused> = unused.collect();
    all.sort_by(|a, b| (a.last_used_ms, a.first_detected_ms, &a.id).cmp(&(b.last_used_ms, b.first_detected_ms, &b.id)));
    all
}

/// Those that go because of their age. `began_ms`: when this process began to watch; nothing is known of uses before that, so
/// nothing goes until it has watched for as long as an image may be unused.
pub fn too_old<'a>(order: &'a [Unused], policy: &Policy, now_ms: i64, began_ms: i64) -> Vec<&'a Unused> {
    if policy.max_age_ms == 0 || now_ms.saturating_sub(began_ms) <= policy.max_age_ms {
        return Vec::new();
    }
    order.iter().filter(|image| image.is_too_old(policy, now_ms) && image.is_of_age(policy, now_ms)).collect()
}

/// When the first of those that are too young comes of age; `None`: all of them together would not be enough, with what was freed.
pub fn worth_waiting(order: &[Unused], policy: &Policy, now_ms: i64, missing: i64) -> Option<i64> {
    let young: Vec<&Unused> = order.iter().filter(|image| !image.is_of_age(policy, now_ms)).collect();
    let sum = young.iter().fold(0_i64, |sum, image| sum.saturating_add(image.size));
    let first = young.iter().map(|image| image.first_detected_ms.saturating_add(policy.min_age_ms)).min()?;
    (sum >= missing).then_some(first)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::ledger::Record;
    use super::super::ledger::tests::image;
    use super::*;

    const POLICY: Policy = Policy { high_percent: 90, low_percent: 80, min_age_ms: 0, max_age_ms: 0 };

    fn ids(images: &[Unused]) -> Vec<&str> {
        images.iter().map(|image| image.id.as_str()).collect()
    }

    #[test]
    fn who_is_not_used_for_longest_goes_first() {
        let mut ledger = Ledger::default();
        ledger.detect(&[image("a", 1, 1), image("b", 1, 1)], 10);
        ledger.detect(&[image("a", 1, 0), image("b", 1, 1)], 20);
        assert_eq!(ids(&order(&[image("a", 1, 0), image("b", 1, 0)], &ledger, 30)), ["a", "b"]);
        // Used at the same moment: who was there first; never used: before all.
        let mut ledger = Ledger::default();
        ledger.detect(&[image("b", 1, 1)], 10);
        ledger.detect(&[image("a", 1, 1), image("b", 1, 1), image("c", 1, 0)], 20);
        let all = [image("a", 1, 0), image("b", 1, 0), image("c", 1, 0)];
        assert_eq!(ids(&order(&all, &ledger, 30)), ["c", "b", "a"]);
        let pinned = StoredImage { pinned: true, ..image("c", 1, 0) };
        assert_eq!(ids(&order(&[image("a", 1, 0), image("b", 1, 1), pinned], &ledger, 30)), ["a"]);
    }

    /// Upstream's published cases of ages, a minute as the limit.
    #[test]
    fn ages() {
        let policy = Policy { max_age_ms: 60_000, ..POLICY };
        let used_at = |last_used_ms| {
            let images = [("a".to_owned(), Record { first_detected_ms: 0, last_used_ms })].into();
            order(&[image("a", 1, 0)], &Ledger { images, ..Ledger::default() }, 0)
        };
        let goes = |policy: &Policy, last, now, began| !too_old(&used_at(last), policy, now, began).is_empty();
        for (last, now, began, expected) in [
            (Some(0), 0, 0, false),
            (Some(0), 60_000, 0, false),
            (Some(0), 60_001, 0, true),
            // It has not watched for long enough.
            (Some(0), 60_001, 1, false),
            (None, 60_001, 1, false),
            // Never seen used.
            (None, 60_001, 0, true),
            (Some(50_000), 60_001, 0, false),
            (Some(50_000), 110_001, 0, true),
        ] {
            assert_eq!(goes(&policy, last, now, began), expected, "{last:?} {now} {began}");
        }
        assert!(!goes(&POLICY, None, i64::MAX, 0), "without a limit nobody is too old");
        let young = Policy { min_age_ms: 70_000, ..policy };
        assert!(!goes(&young, None, 69_999, 0) && goes(&young, None, 70_000, 0), "and nobody is before its time");
    }

    #[test]
    fn shortages() {
        let of =
            |capacity, available| ImageFs { capacity, available }.shortage(&POLICY).map(|s| (s.used_percent, s.wanted));
        for (capacity, available, expected) in [
            (1000, 600, None),
            (1000, 110, None),
            (1000, 109, Some((90, 91))),
            (1000, 100, Some((90, 100))),
            (1000, 50, Some((95, 150))),
            (1000, 0, Some((100, 200))),
            // Whole percent of what is free are rounded down, so this is 91 percent used.
            (1000, 99, Some((91, 101))),
            (1000, 2000, None),
            (0, 0, None),
            (i64::MAX, 0, Some((100, i64::MAX / 5))),
        ] {
            assert_eq!(of(capacity, available), expected, "{capacity} {available}");
        }
    }

    #[test]
    fn the_young_are_waited_for_where_that_is_enough() {
        let policy = Policy { min_age_ms: 100, ..POLICY };
        let mut ledger = Ledger::default();
        ledger.detect(&[image("old", 50, 0)], 0);
        ledger.detect(&[image("old", 50, 0), image("a", 30, 0)], 90);
        let images = [image("old", 50, 0), image("a", 30, 0), image("b", 30, 0)];
        ledger.detect(&images, 95);
        let order = order(&images, &ledger, 100);
        assert_eq!(worth_waiting(&order, &policy, 100, 60), Some(190));
        assert_eq!(worth_waiting(&order, &policy, 100, 61), None);
        assert_eq!(worth_waiting(&order, &policy, 1000, 1), None, "nobody is young any more");
    }

    proptest! {
        /// Whoever is used or pinned is not among those who may go, everybody else is, and the order is one of last uses.
        #[test]
        fn only_who_is_not_used_may_go(
            images in proptest::collection::vec((0_u32..3, any::<bool>(), 0_i64..100, proptest::option::of(0_i64..100)), 0..20),
            max_age_ms in 0_i64..50,
            min_age_ms in 0_i64..50,
            began in 0_i64..100,
        ) {
            let policy = Policy { max_age_ms, min_age_ms, ..POLICY };
            let mut ledger = Ledger::default();
            let mut all = Vec::new();
            for (number, (uses, pinned, first_detected_ms, last_used_ms)) in images.into_iter().enumerate() {
                all.push(StoredImage { pinned, ..image(&number.to_string(), 1, uses) });
                ledger.images.insert(number.to_string(), Record { first_detected_ms, last_used_ms });
            }
            let order = order(&all, &ledger, 100);
            for image in &all {
                let may_go = image.uses == 0 && !image.pinned;
                prop_assert_eq!(order.iter().any(|one| one.id == image.id), may_go);
            }
            prop_assert!(order.is_sorted_by_key(|one| one.last_used_ms));
            for old in too_old(&order, &policy, 100, began) {
                prop_assert!(100 - began > max_age_ms && max_age_ms > 0);
                prop_assert!(old.last_used_ms.is_none_or(|last| 100 - last > max_age_ms));
                prop_assert!(100 - old.first_detected_ms >= min_age_ms);
            }
        }

        #[test]
        fn a_shortage_is_what_lacks_to_the_low_threshold(capacity in 1000_i64..1 << 50, part in 0.0..=1.0_f64, low in 0_i64..99) {
            let available = ((capacity as f64) * part) as i64;
            let policy = Policy { high_percent: low + 1, low_percent: low, ..POLICY };
            if let Some(shortage) = (ImageFs { capacity, available }).shortage(&policy) {
                prop_assert!(shortage.wanted >= 0, "{:?}", shortage);
                let after = ImageFs { capacity, available: available + shortage.wanted };
                prop_assert!(after.used_percent().unwrap() <= low + 1);
            }
        }
    }
}
