//! For how long a pod waited for its images: from the first try to pull each until it was there, failed tries and the
//! back-off between them included (upstream `pod_startup_latency_tracker.go`, where a failed try ends nothing). What several
//! images waited for at the same time counts once. Pure.
//!
//! Upstream gives each end to the oldest begin, of whichever image it was; here an end is its own image's.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// Of one pod; it holds the images that are waited for, and no more.
#[derive(Debug, Default)]
pub(super) struct PullTime {
    /// Of all waits that have ended.
    total: Duration,
    waits: HashMap<String, Wait>,
}

#[derive(Debug, Clone, Copy)]
struct Wait {
    since: Instant,
    /// What waits that have ended cover of the time before it.
    before: Duration,
}

impl PullTime {
    /// A pull begins; it may be another try.
    pub(super) fn began(&mut self, image: &str, now: Instant) {
        let wait = Wait { since: now, before: self.total };
        self.waits.entry(image.to_owned()).or_insert(wait);
    }

    /// The image is there.
    pub(super) fn ended(&mut self, image: &str, now: Instant) {
        let Some(ended) = self.waits.remove(image) else { return };
        let covered = |until: Instant| ended.before + until.saturating_duration_since(ended.since);
        // Whatever else has ended since it began lies within it.
        self.total = covered(now);
        for later in self.waits.values_mut().filter(|wait| wait.since > ended.since) {
            later.before = covered(later.since);
        }
    }

    /// Waits that have not ended do not count.
    pub(super) fn total(&self) -> Duration {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Seconds that the steps come to: at a second, an image's pull begins or the image is there.
    fn seconds(steps: &[(u64, &str, bool)]) -> u64 {
        let (mut time, start) = (PullTime::default(), Instant::now());
        for (second, image, begins) in steps {
            let now = start + Duration::from_secs(*second);
            if *begins { time.began(image, now) } else { time.ended(image, now) }
        }
        time.total().as_secs()
    }

    #[test]
    fn from_the_first_try_until_the_image_is_there() {
        const BEGINS: bool = true;
        const THERE: bool = false;
        for (name, steps, expected) in [
            ("one try", &[(1, "a", BEGINS), (3, "a", THERE)][..], 2),
            ("tries that failed", &[(1, "a", BEGINS), (11, "a", BEGINS), (31, "a", BEGINS), (33, "a", THERE)], 32),
            ("pulled for another pod meanwhile", &[(1, "a", BEGINS), (21, "a", THERE), (30, "a", THERE)], 20),
            ("not yet", &[(1, "a", BEGINS)], 0),
            ("was there", &[(1, "a", THERE)], 0),
            ("one after the other", &[(1, "a", BEGINS), (3, "a", THERE), (7, "b", BEGINS), (8, "b", THERE)], 3),
            ("at the same time", &[(1, "a", BEGINS), (2, "b", BEGINS), (5, "a", THERE), (8, "b", THERE)], 7),
            ("one within another", &[(1, "a", BEGINS), (2, "b", BEGINS), (3, "b", THERE), (8, "a", THERE)], 7),
            ("beside one that never comes", &[(1, "a", BEGINS), (2, "b", BEGINS), (3, "b", THERE)], 1),
        ] {
            assert_eq!(seconds(steps), expected, "{name}");
        }
    }

    proptest! {
        /// As the seconds that at least one wait which has ended covers.
        #[test]
        fn each_second_counts_once(steps in proptest::collection::vec((0..3_u64, 0..4_usize, any::<bool>()), 0..40)) {
            const IMAGES: [&str; 4] = ["a", "b", "c", "d"];
            let (mut second, mut timed) = (0, Vec::new());
            let (mut begun, mut covered) = ([None; 4], std::collections::BTreeSet::new());
            for (after, image, begins) in steps {
                second += after;
                timed.push((second, IMAGES[image], begins));
                if begins {
                    begun[image].get_or_insert(second);
                } else if let Some(since) = begun[image].take() {
                    covered.extend(since..second);
                }
            }
            prop_assert_eq!(seconds(&timed), covered.len() as u64);
        }
    }
}
