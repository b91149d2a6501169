//! How long relists take, for `kubelet_pleg_relist_duration_seconds`. Upstream's relist is a list and a look at each pod that
//! it shows changed, and alerts on slow runtimes read its duration (upstream `pleg/generic.go`, `Relist`). Here most looks
//! are events' doing, so a relist is either a list with the looks that it caused, or the looks that begin in one go without
//! one. Pure, with the clock passed in.

use std::collections::HashSet;
use std::time::Duration;

use bulkhead_types::PodUid;
use tokio::time::Instant;

/// The relists that are under way: not more than pods that are looked at, or wait for that.
#[derive(Debug, Default)]
pub(super) struct Relists {
    under_way: Vec<Relist>,
}

#[derive(Debug)]
struct Relist {
    began: Instant,
    awaited: HashSet<PodUid>,
}

impl Relists {
    /// A list that began then has ended, and is followed by looks at these pods; none of them waits for anything but room.
    pub(super) fn listed(&mut self, began: Instant, pods: impl Iterator<Item = PodUid>) {
        let awaited = pods.filter(|uid| !self.awaits(uid)).collect();
        self.under_way.push(Relist { began, awaited });
    }

    /// Looks at these pods begin.
    pub(super) fn looks<'a>(&mut self, pods: impl Iterator<Item = &'a PodUid>, now: Instant) {
        let awaited: HashSet<PodUid> = pods.filter(|uid| !self.awaits(uid)).cloned().collect();
        if !awaited.is_empty() {
            self.under_way.push(Relist { began: now, awaited });
        }
    }

    /// A look has ended, whatever came of it.
    pub(super) fn looked_at(&mut self, uid: &PodUid) {
        for relist in &mut self.under_way {
            relist.awaited.remove(uid);
        }
    }

    /// Takes out those that are over, with how long each took.
    pub(super) fn over(&mut self, now: Instant) -> Vec<Duration> {
        let over = self.under_way.extract_if(.., |relist| relist.awaited.is_empty());
        over.map(|relist| now.saturating_duration_since(relist.began)).collect()
    }

    fn awaits(&self, uid: &PodUid) -> bool {
        self.under_way.iter().any(|relist| relist.awaited.contains(uid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Step {
        /// A list that began at this second.
        Listed(u64, &'static [&'static str]),
        Look(&'static [&'static str]),
        LookedAt(&'static str),
    }
    use Step::*;

    #[test]
    fn a_relist_lasts_until_its_last_look() {
        for (name, steps, expected) in [
            ("a list that shows nothing", &[(1, Listed(0, &[]))][..], &[1][..]),
            (
                "a list and its looks",
                &[(1, Listed(0, &["a", "b"])), (1, Look(&["a", "b"])), (3, LookedAt("b")), (9, LookedAt("a"))],
                &[9],
            ),
            (
                "there is no room for all at once",
                &[
                    (1, Listed(0, &["a", "b"])),
                    (1, Look(&["a"])),
                    (2, LookedAt("a")),
                    (2, Look(&["b"])),
                    (5, LookedAt("b")),
                ],
                &[5],
            ),
            ("what events bring", &[(1, Look(&["a", "b"])), (2, LookedAt("a")), (13, LookedAt("b"))], &[12]),
            (
                "a look that hangs holds up its own alone",
                &[(1, Look(&["a"])), (2, Look(&["b"])), (3, LookedAt("b")), (4, Listed(3, &[])), (31, LookedAt("a"))],
                &[1, 1, 30],
            ),
            (
                "pods that wait for room are one list's",
                &[
                    (1, Listed(0, &["a"])),
                    (2, Listed(1, &["a"])),
                    (3, Look(&["a"])),
                    (4, LookedAt("a")),
                    (5, Look(&["a"])),
                    (7, LookedAt("a")),
                ],
                &[1, 4, 2],
            ),
            ("a look that nobody waits for", &[(1, LookedAt("a"))], &[]),
        ] {
            let (mut relists, start, mut took) = (Relists::default(), Instant::now(), Vec::new());
            let (at, uid) = (|second| start + Duration::from_secs(second), |uid: &str| PodUid::parse(uid).unwrap());
            for (second, step) in steps {
                match step {
                    Listed(began, pods) => relists.listed(at(*began), pods.iter().map(|pod| uid(pod))),
                    Look(pods) => {
                        let pods: Vec<PodUid> = pods.iter().map(|pod| uid(pod)).collect();
                        relists.looks(pods.iter(), at(*second));
                    }
                    LookedAt(pod) => relists.looked_at(&uid(pod)),
                }
                took.extend(relists.over(at(*second)).iter().map(Duration::as_secs));
            }
            assert_eq!((took.as_slice(), relists.under_way.len()), (expected, 0), "{name}");
        }
    }
}
