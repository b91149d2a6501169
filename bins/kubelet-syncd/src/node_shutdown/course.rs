//! The course of one shutdown: first it is announced, then groups of pods end one after the other, the lowest priority first, then
//! their last statuses are written. Pure.
//!
//! Upstream takes its list of pods once. Here each turn looks at those that are there, so that a successor of this process, which
//! learns of its pods one by one, goes on where its predecessor was: the time since the beginning counts.

use std::collections::HashSet;
use std::time::Duration;

use bulkhead_config::kubelet::ShutdownGracePeriodByPodPriority;
use bulkhead_config::shutdown;
use bulkhead_types::{PodUid, later};
use tokio::time::Instant;

/// The API server is to know that the node is not ready before the first pod ends, and how pods have ended before the machine goes
/// on; neither is waited for longer.
const TOLD: Duration = Duration::from_secs(1);

/// A pod that has not ended yet: a container runs, or a volume is still there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivePod {
    pub uid: PodUid,
    pub priority: i32,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace: Option<u64>,
}

/// What is known at this moment.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub pods: &'a [LivePod],
    /// Every source has said which pods there are.
    pub sources_ready: bool,
    /// The API server shows the node as not ready, or nobody has to be told.
    pub announced: bool,
    /// The API server shows pods as ended that have, or nobody has to be told.
    pub settled: bool,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// The pod has so many seconds to end.
    Kill { uid: PodUid, grace: u64 },
    /// All pods up to this group have ended.
    Ended { priority: i32, period: u64 },
    /// The group's time is over, and some have not.
    TimedOut { priority: i32, period: u64 },
    /// The machine may go on. Comes once.
    Release,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Announcing { until: Instant },
    Group { index: usize, until: Instant },
    Settling { until: Instant },
    Over,
}

/// See the module.
#[derive(Debug)]
pub struct Course {
    groups: Vec<ShutdownGracePeriodByPodPriority>,
    began: Instant,
    stage: Stage,
    killed: HashSet<PodUid>,
}

impl Course {
    /// `groups`: [`shutdown::grace_periods`]. `elapsed`: since the shutdown began, for a successor of the process that saw it begin.
    pub fn new(groups: Vec<ShutdownGracePeriodByPodPriority>, now: Instant, elapsed: Duration) -> Self {
        let began = now.checked_sub(elapsed).unwrap_or(now);
        let until = now + TOLD.min(shutdown::total(&groups) / 4);
        Course { groups, began, stage: Stage::Announcing { until }, killed: HashSet::new() }
    }

    /// When the next turn is due by time alone.
    pub fn next(&self) -> Option<Instant> {
        match self.stage {
            Stage::Announcing { until } | Stage::Group { until, .. } | Stage::Settling { until } => Some(until),
            Stage::Over => None,
        }
    }

    /// Everything that is to be done now.
    pub fn turn(&mut self, now: Instant, view: &View<'_>) -> Vec<Act> {
        let mut acts = Vec::new();
        loop {
            match self.stage {
                Stage::Announcing { until } if view.announced || now >= until => self.stage = self.group(0, now),
                Stage::Group { index, until } => {
                    let mut waits = false;
                    for pod in view.pods.iter().filter(|pod| group_of(&self.groups, pod.priority) <= index) {
                        waits = true;
                        if self.killed.insert(pod.uid.clone()) {
                            acts.push(Act::Kill { uid: pod.uid.clone(), grace: self.grace(pod, until - now) });
                        }
                    }
                    let (priority, period) = (self.groups[index].priority, self.period(index).as_secs());
                    if waits && now >= until {
                        acts.push(Act::TimedOut { priority, period });
                    } else if waits || (!view.sources_ready && now < until) {
                        return acts;
                    } else if !self.killed.is_empty() {
                        acts.push(Act::Ended { priority, period });
                    }
                    self.stage = self.group(index + 1, now);
                }
                Stage::Settling { until } if view.settled || now >= until => {
                    self.stage = Stage::Over;
                    acts.push(Act::Release);
                }
                Stage::Announcing { .. } | Stage::Settling { .. } | Stage::Over => return acts,
            }
        }
    }

    /// The stage that begins now. No group takes longer than its period, nor past the time by which it had to be over.
    fn group(&self, index: usize, now: Instant) -> Stage {
        let by = |groups: &[ShutdownGracePeriodByPodPriority]| later(self.began, shutdown::total(groups));
        if index == self.groups.len() {
            return Stage::Settling { until: (now + TOLD).min(by(&self.groups)) };
        }
        Stage::Group { index, until: later(now, self.period(index)).min(by(&self.groups[..=index])).max(now) }
    }

    fn period(&self, index: usize) -> Duration {
        shutdown::total(&self.groups[index..=index])
    }

    /// As long as its group has, or as the pod itself wants if that is less; never longer than the group is waited for.
    fn grace(&self, pod: &LivePod, left: Duration) -> u64 {
        let period = self.period(group_of(&self.groups, pod.priority)).as_secs();
        let left = left.as_secs() + u64::from(left.subsec_nanos() > 0);
        pod.grace.unwrap_or(period).min(period).min(left)
    }
}

/// The group of a priority (upstream `groupByPriority`): the highest one that does not begin above it; what is lower than all of
/// them is in the lowest.
fn group_of(groups: &[ShutdownGracePeriodByPodPriority], priority: i32) -> usize {
    groups.iter().rposition(|group| group.priority <= priority).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn groups(all: &[(i32, i64)]) -> Vec<ShutdownGracePeriodByPodPriority> {
        let group = |&(priority, shutdown_grace_period_seconds)| ShutdownGracePeriodByPodPriority {
            priority,
            shutdown_grace_period_seconds,
        };
        all.iter().map(group).collect()
    }

    fn pod(name: &str, priority: i32, grace: u64) -> LivePod {
        LivePod { uid: PodUid::parse(name).unwrap(), priority, grace: Some(grace) }
    }

    fn seconds(n: f64) -> Duration {
        Duration::from_secs_f64(n)
    }

    const KNOWN: View<'static> = View { pods: &[], sources_ready: true, announced: true, settled: true };

    fn kill(name: &str, grace: u64) -> Act {
        Act::Kill { uid: PodUid::parse(name).unwrap(), grace }
    }

    /// Upstream's `Test_groupByPriority`.
    #[test]
    fn groups_by_priority() {
        // The groups' priorities; a pod's priority and its group.
        type Case = (&'static [i32], &'static [(i32, usize)]);
        let cases: [Case; 3] = [
            (
                &[0, 2_000_000_000],
                &[(0, 0), (1, 0), (1_000_000_000, 0), (2_000_000_000, 1), (2_000_001_000, 1), (-1, 0)],
            ),
            (&[0, 10_000, 2_000_000_000], &[(0, 0), (9_999, 0), (10_000, 1), (10_001, 1), (2_000_000_000, 2)]),
            (&[10, 20], &[(5, 0), (10, 0), (15, 0), (20, 1), (25, 1)]),
        ];
        for (configured, pods) in cases {
            let groups = groups(&configured.iter().map(|priority| (*priority, 1)).collect::<Vec<_>>());
            for (priority, expected) in pods {
                assert_eq!(group_of(&groups, *priority), *expected, "{configured:?} {priority}");
            }
        }
    }

    #[test]
    fn the_lowest_first_and_each_for_as_long_as_it_wants() {
        let start = Instant::now();
        let mut course = Course::new(groups(&[(0, 20), (2_000_000_000, 10)]), start, Duration::ZERO);
        let all = [pod("a", 0, 5), pod("b", 100, 300), pod("c", 2_000_001_000, 300)];
        let view = View { pods: &all, ..KNOWN };
        assert_eq!(course.turn(start, &view), [kill("a", 5), kill("b", 20)]);
        assert_eq!(course.turn(start + seconds(1.0), &view), [], "they are waited for");
        assert_eq!(course.next(), Some(start + seconds(20.0)));
        let view = View { pods: &all[1..], ..KNOWN };
        assert_eq!(course.turn(start + seconds(19.9), &view), []);
        let next = course.turn(start + seconds(20.0), &view);
        assert_eq!(next, [Act::TimedOut { priority: 0, period: 20 }, kill("c", 10)], "b is waited for no longer");
        let ended = course.turn(start + seconds(21.0), &View { settled: false, ..KNOWN });
        assert_eq!(ended, [Act::Ended { priority: 2_000_000_000, period: 10 }]);
        assert_eq!(course.turn(start + seconds(21.5), &View { settled: false, ..KNOWN }), []);
        assert_eq!(course.turn(start + seconds(22.0), &View { settled: false, ..KNOWN }), [Act::Release]);
        assert_eq!(course.turn(start + seconds(23.0), &view), [], "it comes once");
        assert_eq!(course.next(), None);
    }

    #[test]
    fn groups_without_pods_are_passed_over() {
        let start = Instant::now();
        let mut course = Course::new(groups(&[(0, 20), (10, 20), (20, 20)]), start, Duration::ZERO);
        let all = [pod("c", 20, 30)];
        assert_eq!(course.turn(start, &View { pods: &all, ..KNOWN }), [kill("c", 20)]);
        let mut course = Course::new(groups(&[(0, 20)]), start, Duration::ZERO);
        assert_eq!(course.turn(start, &KNOWN), [Act::Release]);
        let mut course = Course::new(groups(&[(0, 0)]), start, Duration::ZERO);
        let now = course.turn(start, &View { pods: &[pod("a", 0, 30)], ..KNOWN });
        assert_eq!(now, [kill("a", 0), Act::TimedOut { priority: 0, period: 0 }, Act::Release]);
    }

    #[test]
    fn a_period_of_any_length_is_one() {
        let start = Instant::now();
        let mut course = Course::new(groups(&[(0, i64::MAX), (10, i64::MAX)]), start, Duration::ZERO);
        let grace = i64::MAX.unsigned_abs();
        let all = [pod("a", 0, 30), pod("b", 10, grace)];
        assert_eq!(course.turn(start, &View { pods: &all, ..KNOWN }), [kill("a", 30)]);
        let next = course.turn(start, &View { pods: &all[1..], ..KNOWN });
        assert_eq!(next[0], Act::Ended { priority: 0, period: grace });
        assert!(matches!(next[1..], [Act::Kill { grace, .. }] if grace > 3_000_000_000), "{next:?}");
    }

    #[test]
    fn it_is_announced_first_but_not_waited_for_longer_than_a_second() {
        let start = Instant::now();
        let all = [pod("a", 0, 30)];
        let silent = View { pods: &all, announced: false, ..KNOWN };
        let mut course = Course::new(groups(&[(0, 20)]), start, Duration::ZERO);
        assert_eq!(course.turn(start + seconds(0.9), &silent), []);
        assert_eq!(course.turn(start + seconds(1.0), &silent), [kill("a", 19)], "the machine waits 20 s, not 21");
        let mut course = Course::new(groups(&[(0, 20)]), start, Duration::ZERO);
        assert_eq!(course.turn(start + seconds(0.2), &View { announced: true, ..silent }), [kill("a", 20)]);
        assert_eq!(Course::new(groups(&[(0, 2)]), start, Duration::ZERO).next(), Some(start + seconds(0.5)));
    }

    #[test]
    fn a_successor_has_the_time_that_is_left() {
        let start = Instant::now() + seconds(1000.0);
        let all = [pod("a", 0, 300), pod("c", 10, 300)];
        let mut course = Course::new(groups(&[(0, 20), (10, 10)]), start, seconds(15.0));
        // Not all sources have delivered: there may be more pods.
        let some = View { pods: &all[1..], sources_ready: false, ..KNOWN };
        assert_eq!(course.turn(start, &some), []);
        assert_eq!(course.turn(start + seconds(1.0), &View { pods: &all, ..KNOWN }), [kill("a", 4)]);
        let next = course.turn(start + seconds(5.0), &View { pods: &all, ..KNOWN });
        assert_eq!(next, [Act::TimedOut { priority: 0, period: 20 }, kill("c", 10)]);
        // One whose group had its turn, and of which nobody knew.
        let late = [pod("d", 3, 300), all[1].clone()];
        assert_eq!(course.turn(start + seconds(7.0), &View { pods: &late, ..KNOWN }), [kill("d", 8)]);
        let mut course = Course::new(groups(&[(0, 20), (10, 10)]), start, seconds(25.0));
        let now = course.turn(start, &View { pods: &all, ..KNOWN });
        assert_eq!(now, [kill("a", 0), Act::TimedOut { priority: 0, period: 20 }, kill("c", 5)]);
    }

    proptest! {
        #[test]
        fn everybody_is_asked_once_in_order_and_the_machine_never_waits_longer(
            periods in proptest::collection::vec(0i64..30, 1..5),
            pods in proptest::collection::vec((0i32..60, 0u64..40, 0u64..200), 0..12),
            elapsed in 0u64..60,
            announced: bool,
            sources_ready: bool,
        ) {
            let groups = groups(&periods.iter().enumerate().map(|(i, s)| (i32::try_from(i).unwrap() * 10, *s)).collect::<Vec<_>>());
            let total = shutdown::total(&groups);
            let start = Instant::now() + seconds(1000.0);
            let elapsed = Duration::from_secs(elapsed).min(total);
            let mut course = Course::new(groups.clone(), start, elapsed);
            // Each ends so long after it was asked.
            let all: Vec<(LivePod, Duration)> = pods.iter().enumerate()
                .map(|(i, (priority, grace, takes))| (pod(&format!("p{i}"), *priority, *grace), seconds(*takes as f64 / 4.0))).collect();
            let mut asked: Vec<(PodUid, Instant)> = Vec::new();
            let mut now = start;
            let mut released = None;
            for _ in 0..1000 {
                let ended = |p: &LivePod, takes: &Duration| asked.iter().any(|(uid, at)| *uid == p.uid && now >= *at + *takes);
                let live: Vec<LivePod> = all.iter().filter(|(p, takes)| !ended(p, takes)).map(|(p, _)| p.clone()).collect();
                let acts = course.turn(now, &View { pods: &live, sources_ready, announced, settled: true });
                for act in acts {
                    match act {
                        Act::Kill { uid, grace } => {
                            let group = |uid: &PodUid| group_of(&groups, all.iter().find(|(p, _)| p.uid == *uid).unwrap().0.priority);
                            prop_assert!(asked.iter().all(|(other, _)| *other != uid && group(other) <= group(&uid)));
                            prop_assert!(grace <= total.as_secs());
                            asked.push((uid, now));
                        }
                        Act::Release => {
                            prop_assert_eq!(released, None);
                            released = Some(now);
                        }
                        Act::Ended { .. } | Act::TimedOut { .. } => {}
                    }
                }
                match course.next() {
                    Some(next) => now = next.min(now + seconds(0.25)).max(now + Duration::from_millis(1)),
                    None => break,
                }
            }
            let released = released.expect("it never ended");
            prop_assert!(released <= start - elapsed + total + Duration::from_millis(2) || released <= start + TOLD + Duration::from_millis(2));
            prop_assert_eq!(asked.len(), all.len(), "somebody was not asked");
        }
    }
}
