//! Tables and invariants of the pod workers' state machine.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn uid(text: &str) -> PodUid {
    PodUid::parse(text).unwrap()
}

fn facts(name: &str) -> PodFacts {
    PodFacts { full_name: format!("{name}_default"), is_static: true, spec_grace: Some(30), ..PodFacts::default() }
}

fn seen(facts: PodFacts, runtime_ended: bool) -> PodView<u32> {
    PodView { pod: 1, facts, runtime_ended }
}

struct Machine {
    workers: Workers<u32>,
    now: Instant,
    running: HashMap<PodUid, Work<u32>>,
    log: Vec<String>,
}

impl Machine {
    fn new() -> Self {
        Machine { workers: Workers::default(), now: Instant::now(), running: HashMap::new(), log: Vec::new() }
    }

    fn take(&mut self, actions: Vec<Action<u32>>) {
        for action in actions {
            match action {
                Action::Run { uid, work } => {
                    self.log.push(format!("{:?} {uid} {}", work.kind, work.termination.grace_seconds));
                    assert!(self.running.insert(uid, *work).is_none(), "two pieces of work at once");
                }
                Action::Cancel { uid } => self.log.push(format!("cancel {uid}")),
                Action::Requeue { uid, retry } => self.log.push(format!("requeue {uid} {retry:?}")),
                Action::Finished { uid } => self.log.push(format!("finished {uid}")),
            }
        }
    }

    fn update(&mut self, pod: &str, kind: UpdateType, facts: PodFacts, kill: Option<Kill>) {
        let actions = self.workers.update(&uid(pod), kind, seen(facts, true), kill.as_ref(), self.now);
        self.take(actions);
    }

    fn done(&mut self, pod: &str, outcome: Outcome) {
        self.now += Duration::from_secs(1);
        let Some(work) = self.running.remove(&uid(pod)) else { return };
        let actions = self.workers.done(&uid(pod), work.kind, outcome, self.now);
        self.take(actions);
    }

    fn known(&mut self, desired: &[&str]) -> BTreeMap<PodUid, PodWorkerSync> {
        let desired = desired.iter().map(|t| uid(t)).collect();
        let (known, actions) = self.workers.sync_known(&desired, self.now);
        self.take(actions);
        known
    }

    fn log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }
}

#[test]
fn a_life() {
    let mut m = Machine::new();
    m.update("a", UpdateType::Create, facts("p"), None);
    m.done("a", Outcome::Done);
    m.update("a", UpdateType::Kill, facts("p"), None);
    m.done("a", Outcome::Done);
    m.done("a", Outcome::Done);
    assert_eq!(m.log(), ["Sync a 0", "requeue a Success", "Terminating a 30", "Terminated a 30", "finished a"]);
    assert_eq!(m.workers.lifecycle(&uid("a")), Some(Lifecycle::Finished));
    assert!(m.known(&[]).is_empty());
}

#[test]
fn work_that_did_its_part_is_followed_by_the_rest() {
    let mut m = Machine::new();
    m.update("a", UpdateType::Create, facts("p"), None);
    m.done("a", Outcome::Again);
    assert_eq!(m.running[&uid("a")].last_sync, Some(m.now), "the rest is for what is there by now");
    m.done("a", Outcome::Again);
    m.update("a", UpdateType::Kill, facts("p"), None);
    m.done("a", Outcome::Again);
    assert_eq!(m.log(), ["Sync a 0", "Sync a 0", "Sync a 0", "cancel a", "Terminating a 30"]);
}

#[test]
fn a_pod_is_active_until_it_has_been_terminated() {
    let mut m = Machine::new();
    let active = |m: &Machine| [false, true].map(|is_over| m.workers.is_active(&uid("a"), || is_over));
    assert_eq!(active(&m), [true, false], "nothing is known but its phase");
    m.update("a", UpdateType::Create, facts("p"), None);
    assert_eq!(active(&m), [true, false]);
    m.update("a", UpdateType::Kill, facts("p"), None);
    assert_eq!(active(&m), [true, true]);
    m.done("a", Outcome::Cancelled);
    assert_eq!(active(&m), [true, true]);
    m.done("a", Outcome::Done);
    assert_eq!(active(&m), [false, false], "terminated");
    m.done("a", Outcome::Done);
    assert_eq!(active(&m), [false, false], "finished");
}

#[test]
fn the_newest_update_waits_and_a_kill_interrupts() {
    let mut m = Machine::new();
    m.update("a", UpdateType::Create, facts("p"), None);
    m.update("a", UpdateType::Update, facts("p"), None);
    m.update("a", UpdateType::Kill, facts("p"), None);
    m.update("a", UpdateType::Kill, facts("p"), Some(Kill { grace: Some(5), evicted: true, hurried: false }));
    m.update("a", UpdateType::Kill, facts("p"), Some(Kill { grace: Some(9), evicted: false, hurried: false }));
    m.done("a", Outcome::Cancelled);
    assert_eq!(m.log(), ["Sync a 0", "cancel a", "cancel a", "Terminating a 5"]);
}

#[test]
fn an_evicted_pods_content_stays_until_its_end_was_read() {
    let mut m = Machine::new();
    m.update("a", UpdateType::Create, facts("p"), None);
    m.update("a", UpdateType::Kill, facts("p"), Some(Kill { grace: Some(5), evicted: true, hurried: false }));
    m.done("a", Outcome::Cancelled);
    assert_eq!(m.workers.lifecycle(&uid("a")), Some(Lifecycle::Terminating));
    assert!(!m.workers.content_should_be_removed(&uid("a")));
    m.done("a", Outcome::Done);
    assert_eq!(m.workers.lifecycle(&uid("a")), Some(Lifecycle::Terminated));
    assert!(m.workers.content_should_be_removed(&uid("a")));
    assert!(!m.workers.content_should_be_removed(&uid("b")));
}

#[test]
fn who_has_to_go_in_a_hurry_waits_for_nobody() {
    let hurried = |m: &Machine| m.running.get(&uid("a")).map(|work| work.termination.hurried);
    let kill = |grace, evicted, hurried| Some(Kill { grace, evicted, hurried });
    for (first, second, expected) in [
        (None, None, (false, None)),
        (kill(None, true, false), None, (true, None)),
        (kill(Some(9), false, true), None, (true, None)),
        (None, kill(Some(5), false, false), (false, Some(true))),
        (None, kill(None, true, false), (false, Some(true))),
        (None, kill(None, false, true), (false, Some(true))),
        (None, kill(None, false, false), (false, None)),
        (kill(None, true, false), kill(None, true, false), (true, None)),
    ] {
        let mut m = Machine::new();
        m.update("a", UpdateType::Create, facts("p"), None);
        m.done("a", Outcome::Done);
        m.update("a", UpdateType::Kill, facts("p"), first.clone());
        let before = hurried(&m);
        m.log();
        if second.is_some() {
            m.update("a", UpdateType::Kill, facts("p"), second.clone());
        }
        let asks_anew = m.log() == ["cancel a"];
        if asks_anew {
            m.done("a", Outcome::Cancelled);
        }
        let after = asks_anew.then(|| hurried(&m)).flatten();
        assert_eq!((before, after), (Some(expected.0), expected.1), "{first:?} then {second:?}");
    }
}

#[test]
fn an_object_that_says_the_same_takes_the_others_place() {
    let mut m = Machine::new();
    m.update("a", UpdateType::Create, facts("p"), None);
    m.done("a", Outcome::Done);
    m.log();
    m.workers.replace_pod(&uid("a"), &7, |old| *old == 3);
    m.workers.replace_pod(&uid("b"), &7, |_| true);
    let again = |m: &mut Machine| {
        let actions = m.workers.renotify(&uid("a"), m.now);
        m.take(actions);
        m.running.get(&uid("a")).and_then(|work| work.pod)
    };
    assert_eq!(again(&mut m), Some(1));
    m.workers.replace_pod(&uid("a"), &7, |old| *old == 1);
    m.done("a", Outcome::Done);
    assert_eq!(again(&mut m), Some(7));
}

#[test]
fn grace_only_shrinks() {
    let with = |deletion: Option<u64>, spec: Option<u64>| PodFacts {
        deletion_grace: deletion,
        spec_grace: spec,
        ..PodFacts::default()
    };
    let cases = [
        (0, with(None, Some(30)), None, 30),
        (0, with(None, None), None, 1),
        (0, with(Some(0), Some(30)), None, 1),
        (0, with(Some(10), Some(30)), None, 10),
        (0, with(Some(10), Some(30)), Some(3), 3),
        (10, with(Some(20), Some(30)), None, 10),
        (10, with(Some(5), Some(30)), Some(7), 5),
        (10, with(None, Some(3)), None, 10),
    ];
    for (current, facts, kill, expected) in cases {
        assert_eq!(effective_grace(current, Some(&facts), kill), expected, "{current} {facts:?} {kill:?}");
    }
    assert_eq!(effective_grace(0, None, None), 1);
}

#[test]
fn a_pod_of_the_api_server_alone_does_not_come_back() {
    let mut m = Machine::new();
    assert!(m.workers.may_come_back(&uid("a")), "nothing is known of it");
    m.update("a", UpdateType::Create, PodFacts { is_static: false, ..facts("p") }, None);
    m.update("b", UpdateType::Create, facts("q"), None);
    let actions = m.workers.kill_runtime_pod(&uid("c"), "c_default", 1, m.now);
    m.take(actions);
    assert_eq!(["a", "b", "c"].map(|pod| m.workers.may_come_back(&uid(pod))), [false, true, true]);
    m.update("a", UpdateType::Kill, PodFacts { is_static: false, ..facts("p") }, None);
    m.update("a", UpdateType::Create, PodFacts { is_static: false, ..facts("p") }, None);
    assert!(m.workers.may_come_back(&uid("a")), "it is wanted again");
}

#[test]
fn namesakes_start_one_after_another() {
    let mut m = Machine::new();
    m.update("a", UpdateType::Create, facts("p"), None);
    m.update("b", UpdateType::Create, facts("p"), None);
    m.update("c", UpdateType::Create, facts("p"), None);
    assert_eq!(m.workers.lifecycle(&uid("b")), Some(Lifecycle::Waiting));
    assert_eq!(m.workers.waits_for(&uid("b")), Some(&uid("a")));
    m.done("a", Outcome::Done);
    m.log();
    m.update("a", UpdateType::Kill, facts("p"), None);
    m.done("a", Outcome::Done);
    m.done("a", Outcome::Done);
    // The next in line starts at once, the one after it waits on.
    let log = m.log();
    assert_eq!(log[..4], ["Terminating a 30", "Terminated a 30", "finished a", "Sync b 0"]);
    assert_eq!(m.workers.lifecycle(&uid("c")), Some(Lifecycle::Waiting));
    // A pod that ends while it waits is over without any work.
    m.update("c", UpdateType::Kill, facts("p"), None);
    assert_eq!(m.log().last().unwrap(), "finished c");
}

#[test]
fn same_uid_again_waits_for_the_end() {
    let mut m = Machine::new();
    m.update("a", UpdateType::Create, facts("p"), None);
    m.done("a", Outcome::Done);
    m.update("a", UpdateType::Kill, facts("p"), None);
    m.update("a", UpdateType::Create, facts("p"), None);
    assert_eq!(m.known(&["a"]).len(), 1);
    m.done("a", Outcome::Done);
    m.done("a", Outcome::Done);
    // Forgotten, so that housekeeping creates it anew.
    assert!(m.known(&["a"]).is_empty());
    m.log();
    m.update("a", UpdateType::Create, facts("p"), None);
    assert_eq!(m.log(), ["Sync a 0"]);
}

#[test]
fn first_sight_of_an_ended_pod() {
    let ended = PodFacts { terminal_phase: true, is_static: false, ..facts("p") };
    let mut m = Machine::new();
    m.update("a", UpdateType::Create, ended.clone(), None);
    assert_eq!(m.log(), ["Terminated a 0"]);
    let mut m = Machine::new();
    let actions = m.workers.update(&uid("a"), UpdateType::Create, seen(ended, false), None, m.now);
    m.take(actions);
    assert_eq!(m.log(), ["Terminating a 30"]);
}

#[test]
fn runtime_pods_and_orphans() {
    let mut m = Machine::new();
    let actions = m.workers.kill_runtime_pod(&uid("r"), "x_y", 1, m.now);
    m.take(actions);
    m.done("r", Outcome::Failed(Retry::Failed { back_off: None }));
    let known = m.known(&[]);
    assert_eq!(known[&uid("r")].lifecycle, Lifecycle::Terminating);
    m.done("r", Outcome::Done);
    assert_eq!(
        m.log(),
        ["TerminatingRuntime r 1", "requeue r Failed { back_off: None }", "TerminatingRuntime r 1", "finished r"]
    );
    m.update("a", UpdateType::Create, facts("p"), None);
    m.done("a", Outcome::Done);
    m.log();
    m.known(&[]);
    assert_eq!(m.log(), ["Terminating a 30"]);
}

#[test]
fn an_orphan_that_is_being_synced_ends_right_after_that() {
    let mut m = Machine::new();
    m.update("a", UpdateType::Create, facts("p"), None);
    m.known(&[]);
    assert_eq!(m.log(), ["Sync a 0"]);
    m.done("a", Outcome::Failed(Retry::Failed { back_off: None }));
    assert_eq!(m.log(), ["Terminating a 30"]);
    // What fails at its end is not repeated at once for being an orphan.
    m.known(&[]);
    m.done("a", Outcome::Failed(Retry::Failed { back_off: None }));
    assert_eq!(m.log(), ["requeue a Failed { back_off: None }"]);
}

#[test]
fn a_pod_that_is_being_deleted_is_desired_and_no_orphan() {
    let mut m = Machine::new();
    let of_api = || PodFacts { is_static: false, ..facts("p") };
    m.update("a", UpdateType::Create, of_api(), None);
    m.done("a", Outcome::Done);
    m.update("a", UpdateType::Update, PodFacts { deleted: true, ..of_api() }, None);
    let counted = |m: &Machine, is_desired: bool| -> Vec<(Lifecycle, bool)> {
        m.workers.snapshot(|_| is_desired).map(|(_, known)| (known.lifecycle, known.orphan)).collect()
    };
    assert_eq!(counted(&m, true), [(Lifecycle::Terminating, false)]);
    assert_eq!(counted(&m, false), [(Lifecycle::Terminating, true)]);
}

#[test]
fn queries_of_unknown_pods() {
    let mut m = Machine::new();
    let x = uid("x");
    let ask = |w: &Workers<u32>| {
        [w.termination_requested(&x), w.runtime_should_be_removed(&x), w.content_should_be_removed(&x)]
    };
    assert_eq!(ask(&m.workers), [false; 3]);
    m.known(&[]);
    assert_eq!(ask(&m.workers), [false, true, true]);
}

#[derive(Debug, Clone)]
enum Step {
    Update(u8, UpdateType, Option<u64>, bool),
    Done(u8, u8),
    RuntimePod(u8),
    SyncKnown(Vec<u8>),
    Renotify(u8),
}

fn step() -> impl Strategy<Value = Step> {
    let kind =
        prop_oneof![Just(UpdateType::Create), Just(UpdateType::Update), Just(UpdateType::Sync), Just(UpdateType::Kill)];
    prop_oneof![
        4 => (0u8..4, kind, proptest::option::of(0u64..60), any::<bool>())
            .prop_map(|(pod, kind, grace, deleted)| Step::Update(pod, kind, grace, deleted)),
        6 => (0u8..4, 0u8..6).prop_map(|(pod, outcome)| Step::Done(pod, outcome)),
        1 => (0u8..4).prop_map(Step::RuntimePod),
        2 => proptest::collection::vec(0u8..4, 0..4).prop_map(Step::SyncKnown),
        1 => (0u8..4).prop_map(Step::Renotify),
    ]
}

proptest! {
    #[test]
    fn invariants(steps in proptest::collection::vec(step(), 1..120)) {
        let mut m = Machine::new();
        let mut stage: HashMap<PodUid, (Lifecycle, u64)> = HashMap::new();
        let mut running: HashMap<PodUid, WorkKind> = HashMap::new();
        for step in steps {
            m.now += Duration::from_secs(1);
            let actions = match step {
                Step::Update(pod, kind, grace, deleted) => {
                    let uid = uid(&format!("u{pod}"));
                    // Two uids share each full name.
                    let facts = PodFacts { deleted, deletion_grace: grace, ..facts(&format!("n{}", pod / 2)) };
                    m.workers.update(&uid, kind, seen(facts, true), None, m.now)
                }
                Step::Done(pod, outcome) => {
                    let uid = uid(&format!("u{pod}"));
                    let Some(kind) = running.remove(&uid) else { continue };
                    let outcome = match outcome {
                        0 => Outcome::Cancelled,
                        1 => Outcome::Failed(Retry::NetworkNotReady),
                        2 if kind == WorkKind::Sync => Outcome::Terminal,
                        3 if kind == WorkKind::Sync => Outcome::Again,
                        _ => Outcome::Done,
                    };
                    m.workers.done(&uid, kind, outcome, m.now)
                }
                Step::RuntimePod(pod) => m.workers.kill_runtime_pod(&uid(&format!("u{pod}")), &format!("n{}_default", pod / 2), 1, m.now),
                Step::SyncKnown(pods) => {
                    let desired = pods.iter().map(|p| uid(&format!("u{p}"))).collect();
                    m.workers.sync_known(&desired, m.now).1
                }
                Step::Renotify(pod) => m.workers.renotify(&uid(&format!("u{pod}")), m.now),
            };
            // Whoever is forgotten may begin anew.
            let before = stage.clone();
            stage.retain(|uid, _| m.workers.lifecycle(uid).is_some());
            for action in actions {
                if let Action::Run { uid, work } = action {
                    prop_assert!(running.insert(uid.clone(), work.kind).is_none(), "two pieces of work for {uid}");
                    if let Some((old, _)) = stage.get(&uid) && work.kind == WorkKind::Sync {
                        prop_assert!(*old <= Lifecycle::Sync, "{uid} is synced after {old:?}");
                    }
                }
            }
            running.retain(|uid, _| m.workers.lifecycle(uid).is_some());
            for pod in 0..4u8 {
                let uid = uid(&format!("u{pod}"));
                let Some(now) = m.workers.lifecycle(&uid) else { continue };
                let grace = m.workers.grace(&uid).unwrap_or(0);
                if let Some((old, old_grace)) = stage.get(&uid) {
                    // A forgotten pod is in `before` and not here any more, unless this step made it anew.
                    if before.contains_key(&uid) {
                        prop_assert!(now >= *old, "{uid} went back from {old:?} to {now:?}");
                        if *old_grace != 0 && grace != 0 {
                            prop_assert!(grace <= *old_grace, "{uid}: grace grew from {old_grace} to {grace}");
                        }
                    }
                }
                stage.insert(uid, (now, grace));
            }
            // At most one started static pod of a name.
            for name in 0..2u8 {
                let started = (0..2u8)
                    .filter(|i| {
                        let uid = uid(&format!("u{}", name * 2 + i));
                        matches!(running.get(&uid), Some(WorkKind::Sync))
                    })
                    .count();
                prop_assert!(started <= 1, "two pods named n{name} are started");
            }
        }
    }
}
