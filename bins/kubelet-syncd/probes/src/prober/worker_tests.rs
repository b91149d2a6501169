//! A worker by table and by random lives.

use proptest::prelude::*;

use super::*;

const BEGAN: u64 = 1_000_000;

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn worker(kind: ProbeKind, success: u32, failure: u32) -> Worker {
    let rules = Rules { initial_delay: Duration::from_secs(5), success_threshold: success, failure_threshold: failure };
    Worker::new(kind, rules)
}

fn running(id: &str, since: u64, started: bool) -> Target {
    let state = TargetState::Running { since: Some(at(since)) };
    Target { id: ContainerId::parse(id).unwrap(), state, started }
}

fn tick(worker: &mut Worker, target: Option<&Target>, now: u64) -> Tick {
    let sight = Sight { pod_is_over: false, pod_is_deleted: false, target, began: at(BEGAN), now: at(now) };
    worker.tick(&sight, |_| None)
}

fn result(worker: &Worker) -> Option<ProbeResult> {
    worker.published().map(|(_, result)| result)
}

#[test]
fn initial_values_and_delay() {
    for (kind, initial) in [
        (ProbeKind::Liveness, ProbeResult::Success),
        (ProbeKind::Readiness, ProbeResult::Failure),
        (ProbeKind::Startup, ProbeResult::Unknown),
    ] {
        let mut w = worker(kind, 1, 3);
        assert_eq!((tick(&mut w, None, BEGAN), result(&w)), (Tick::Wait, None));
        let new = running("a", BEGAN, kind != ProbeKind::Startup);
        assert_eq!((tick(&mut w, Some(&new), BEGAN + 4), result(&w)), (Tick::Wait, Some(initial)), "{kind:?}");
        assert_eq!(tick(&mut w, Some(&new), BEGAN + 5), Tick::Probe, "{kind:?}");
        // Others wait for startup, and startup is over then.
        let other = running("a", BEGAN, kind == ProbeKind::Startup);
        assert_eq!(tick(&mut w, Some(&other), BEGAN + 5), Tick::Wait, "{kind:?}");
    }
}

#[test]
fn thresholds_and_hold() {
    let mut w = worker(ProbeKind::Liveness, 1, 3);
    let one = running("a", BEGAN, true);
    assert_eq!(tick(&mut w, Some(&one), BEGAN + 9), Tick::Probe);
    for (verdict, expected) in [
        (ProbeOutcome::Failure, ProbeResult::Success),
        (ProbeOutcome::Failure, ProbeResult::Success),
        (ProbeOutcome::Success, ProbeResult::Success),
        (ProbeOutcome::Failure, ProbeResult::Success),
        (ProbeOutcome::Failure, ProbeResult::Success),
        (ProbeOutcome::Failure, ProbeResult::Failure),
    ] {
        w.done(verdict);
        assert_eq!(result(&w), Some(expected));
    }
    assert_eq!(tick(&mut w, Some(&one), BEGAN + 99), Tick::Wait, "on hold");
    let two = running("b", BEGAN + 100, true);
    assert_eq!((tick(&mut w, Some(&two), BEGAN + 110), result(&w)), (Tick::Probe, Some(ProbeResult::Success)));
    w.done(ProbeOutcome::Failure);
    w.done(ProbeOutcome::Failure);
    assert_eq!(result(&w), Some(ProbeResult::Success), "the first one's failures do not count");

    let mut w = worker(ProbeKind::Readiness, 2, 1);
    tick(&mut w, Some(&one), BEGAN + 9);
    w.done(ProbeOutcome::Success);
    assert_eq!(result(&w), Some(ProbeResult::Failure));
    w.done(ProbeOutcome::Success);
    assert_eq!(result(&w), Some(ProbeResult::Success));
    w.done(ProbeOutcome::Failure);
    assert_eq!(result(&w), Some(ProbeResult::Failure));
    assert_eq!(tick(&mut w, Some(&one), BEGAN + 10), Tick::Probe, "readiness is never on hold");

    let mut w = worker(ProbeKind::Startup, 1, 3);
    let new = running("a", BEGAN, false);
    tick(&mut w, Some(&new), BEGAN + 9);
    w.done(ProbeOutcome::Success);
    assert_eq!((tick(&mut w, Some(&new), BEGAN + 10), result(&w)), (Tick::Wait, Some(ProbeResult::Success)));
}

#[test]
fn a_container_that_is_made_and_not_started_yet_has_failed_nothing() {
    for (kind, before, then) in [
        (ProbeKind::Liveness, ProbeResult::Success, Tick::Probe),
        (ProbeKind::Startup, ProbeResult::Unknown, Tick::Wait),
        (ProbeKind::Readiness, ProbeResult::Failure, Tick::Probe),
    ] {
        let mut w = worker(kind, 1, 1);
        let made = Target { state: TargetState::Waiting, ..running("a", BEGAN, false) };
        assert_eq!((tick(&mut w, Some(&made), BEGAN), result(&w)), (Tick::Wait, Some(before)), "{kind:?}");
        assert_eq!(
            (tick(&mut w, Some(&running("a", BEGAN, true)), BEGAN + 9), result(&w)),
            (then, Some(before)),
            "{kind:?}"
        );
    }
}

#[test]
fn ends() {
    let ended = |restarts| Target { state: TargetState::Ended { restarts }, ..running("a", BEGAN, false) };
    let mut w = worker(ProbeKind::Readiness, 1, 1);
    assert_eq!((tick(&mut w, Some(&ended(true)), BEGAN), result(&w)), (Tick::Wait, Some(ProbeResult::Failure)));
    assert_eq!(tick(&mut w, Some(&ended(false)), BEGAN), Tick::End);
    let waiting = Target { state: TargetState::Waiting, ..running("a", BEGAN, false) };
    assert_eq!(tick(&mut w, Some(&waiting), BEGAN), Tick::Wait);
    let target = running("a", BEGAN, true);
    let sight = |is_over, is_deleted| Sight {
        pod_is_over: is_over,
        pod_is_deleted: is_deleted,
        target: Some(&target),
        began: at(BEGAN),
        now: at(BEGAN + 9),
    };
    assert_eq!(w.tick(&sight(true, false), |_| None), Tick::End);
    assert_eq!(w.tick(&sight(false, true), |_| None), Tick::Probe, "readiness goes on while the pod ends");
    for kind in [ProbeKind::Liveness, ProbeKind::Startup] {
        let mut w = worker(kind, 1, 1);
        assert_eq!((w.tick(&sight(false, true), |_| None), result(&w)), (Tick::End, Some(ProbeResult::Success)));
    }
}

#[test]
fn what_an_earlier_process_knew_goes_on() {
    let old = running("a", BEGAN - 11, true);
    for kind in ProbeKind::ALL {
        let mut w = worker(kind, 1, 3);
        tick(&mut w, Some(&old), BEGAN);
        // Nothing is said of an old container before it is probed; that it has started is known.
        assert_eq!(result(&w), (kind == ProbeKind::Startup).then_some(ProbeResult::Success), "{kind:?}");
    }
    let known = Memory {
        container: old.id.clone(),
        result: Some(ProbeResult::Success),
        last: Some(ProbeOutcome::Failure),
        run: 2,
        on_hold: false,
    };
    let mut w = worker(ProbeKind::Readiness, 1, 3);
    let sight =
        Sight { pod_is_over: false, pod_is_deleted: false, target: Some(&old), began: at(BEGAN), now: at(BEGAN) };
    assert_eq!(w.tick(&sight, |_| Some(known.clone())), Tick::Probe);
    assert_eq!(result(&w), Some(ProbeResult::Success));
    w.done(ProbeOutcome::Failure);
    assert_eq!(result(&w), Some(ProbeResult::Failure), "the third in a row");
    // A clock that went back is no reason to wait for ever, nor to probe what has just begun.
    let mut w = worker(ProbeKind::Readiness, 1, 3);
    assert_eq!(tick(&mut w, Some(&running("a", BEGAN + 50, true)), BEGAN), Tick::Wait);
}

/// One step of a random life.
#[derive(Debug, Clone)]
enum Step {
    /// Time passes, the container may be another one, run or not, have started or not.
    Tick {
        container: u8,
        runs: bool,
        started: bool,
    },
    ProbeOutcome(bool),
    /// The process begins anew with what was kept.
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let tick = (0_u8..3, prop::bool::weighted(0.9), any::<bool>()).prop_map(|(container, runs, started)| Step::Tick {
        container,
        runs,
        started,
    });
    proptest::collection::vec(
        prop_oneof![3 => tick, 5 => any::<bool>().prop_map(Step::ProbeOutcome), 1 => Just(Step::Restart)],
        1..80,
    )
}

proptest! {
    #[test]
    fn whatever_happens(kind in 0_usize..3, success in 1_u32..4, failure in 1_u32..4, steps in steps()) {
        let kind = ProbeKind::ALL[kind];
        let rules = Rules { initial_delay: Duration::ZERO, success_threshold: success, failure_threshold: failure };
        let mut w = Worker::new(kind, rules);
        let (mut now, mut highest, mut may_probe) = (BEGAN, 0, false);
        // Verdicts on the present instance since its result changed last; instances that a failure was published of.
        let mut in_a_row: Vec<bool> = Vec::new();
        let mut failed = std::collections::BTreeSet::new();
        for step in steps {
            let before = w.published().map(|(id, result)| (id.clone(), result));
            match step {
                Step::Tick { container, runs, started } => {
                    now += 1;
                    // Instances never come back.
                    highest = highest.max(container);
                    let state = if runs { TargetState::Running { since: Some(at(BEGAN)) } } else { TargetState::Waiting };
                    let id = ContainerId::parse(&format!("c{highest}")).unwrap();
                    let target = Target { id: id.clone(), state, started };
                    let was_same = w.memory().is_some_and(|m| m.container == id);
                    let held = was_same && w.memory().is_some_and(|m| m.on_hold);
                    let tick = tick(&mut w, Some(&target), now);
                    may_probe = tick == Tick::Probe;
                    if !was_same {
                        in_a_row.clear();
                    }
                    prop_assert!(!may_probe || runs, "what does not run is not probed");
                    prop_assert!(!may_probe || started == (kind != ProbeKind::Startup), "startup comes first");
                    prop_assert!(!held || !may_probe, "on hold");
                    if was_same && runs {
                        prop_assert_eq!(w.published().map(|(id, r)| (id.clone(), r)), before, "a look changes nothing");
                    }
                }
                Step::ProbeOutcome(ok) if may_probe => {
                    may_probe = false;
                    in_a_row.push(ok);
                    w.done(if ok { ProbeOutcome::Success } else { ProbeOutcome::Failure });
                    let threshold = usize::try_from(if ok { success } else { failure }).unwrap();
                    let run = in_a_row.iter().rev().take_while(|one| **one == ok).count();
                    let (id, result) = w.published().unwrap();
                    if run < threshold {
                        prop_assert_eq!(Some((id.clone(), result)), before, "below the threshold nothing is published");
                    } else {
                        prop_assert_eq!(result, if ok { ProbeResult::Success } else { ProbeResult::Failure });
                        if !ok && kind != ProbeKind::Readiness {
                            prop_assert!(failed.insert(id.clone()), "two kills for {id}");
                        }
                    }
                }
                Step::ProbeOutcome(_) => {}
                Step::Restart => {
                    // Everything between is unknown; what was published and counted is taken up at the first sight.
                    let kept = w.memory().cloned();
                    let mut next = Worker::new(kind, rules);
                    if let Some(kept) = kept {
                        let target = Target {
                            id: kept.container.clone(),
                            state: TargetState::Running { since: Some(at(BEGAN)) },
                            started: kind != ProbeKind::Startup,
                        };
                        let sight = Sight {
                            pod_is_over: false, pod_is_deleted: false, target: Some(&target), began: at(now), now: at(now),
                        };
                        next.tick(&sight, |_| Some(kept.clone()));
                        prop_assert_eq!(next.memory(), Some(&kept));
                    }
                    w = next;
                    may_probe = false;
                }
            }
        }
    }
}
