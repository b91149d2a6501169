//! Pods' lives against a server of a few lines: who is asked what, when, and how often.

use std::time::{Duration, Instant};

use bulkhead_ipc::syncd::{ApiObject, PodState, WorkerState};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::pods::facts::OrphanMirror;
use crate::pods::normal::normal;

const EPOCH: u64 = 7;

fn status(phase: &str) -> Vec<u8> {
    json!({"phase": phase}).to_string().into_bytes()
}

fn uid(text: &str) -> PodUid {
    PodUid::parse(text).unwrap()
}

fn target(job: &Job) -> &str {
    job.target.as_ref().map_or("", PodUid::as_str)
}

fn copy(of: &str, version: u32, phase: &str) -> ApiCopy {
    ApiCopy {
        uid: uid(of),
        version: version.to_string(),
        deleting: false,
        mirror_hash: String::new(),
        status: status(phase).into(),
    }
}

fn object(uid: &str, version: u32, phase: &str) -> ApiObject {
    ApiObject {
        uid: uid.into(),
        resource_version: version.to_string(),
        status_json: status(phase),
        ..ApiObject::default()
    }
}

fn pod(uid: &str, phase: &str, api: ApiObject) -> PodState {
    PodState {
        uid: uid.into(),
        namespace: "d".into(),
        name: uid.into(),
        source: "api".into(),
        worker: WorkerState::Sync.into(),
        status_json: status(phase),
        api: Some(api),
        ..PodState::default()
    }
}

/// A store with a clock.
struct Desk {
    store: StatusStore,
    now: Instant,
}

impl Desk {
    fn new() -> Self {
        let mut store = StatusStore::new(1, PodMetrics::new().unwrap());
        let now = Instant::now();
        store.connected(EPOCH, now);
        Desk { store, now }
    }

    fn tell(&mut self, state: PodState) {
        let (desired, seen) = Desired::of(state).unwrap();
        self.store.upsert(desired, seen, self.now);
    }

    /// Lets time pass until something is asked; `None`: nothing is, within an hour.
    fn next(&mut self) -> Option<Job> {
        let end = self.now + Duration::from_secs(3600);
        loop {
            if let Some(job) = self.store.next(self.now, Timestamp::UNIX_EPOCH) {
                return Some(job);
            }
            let at = self.store.wake_at().filter(|at| *at <= end)?;
            self.now = self.now.max(at) + Duration::from_millis(1);
        }
    }

    fn job(&mut self) -> Job {
        self.next().expect("a request")
    }

    fn end(&mut self, job: &Job, outcome: Outcome) {
        self.store.finished(job, outcome, self.now);
    }

    fn quiet(&mut self) {
        assert_eq!(self.next(), None);
    }
}

fn patch(job: &Job) -> Value {
    match &job.action {
        Action::Patch { body, .. } => serde_json::from_slice::<Value>(body).unwrap()["status"].clone(),
        other => panic!("no patch: {other:?}"),
    }
}

#[test]
fn written_once_and_then_nothing() {
    let mut desk = Desk::new();
    desk.tell(pod("a", "Running", object("a", 5, "Pending")));
    let job = desk.job();
    assert_eq!(patch(&job), json!({"phase": "Running"}));
    desk.end(&job, Outcome::Object(copy("a", 6, "Running")));
    desk.quiet();
    // The watch is behind our answer, then catches up: no news.
    desk.tell(PodState { phase: "noise".into(), ..pod("a", "Running", object("a", 5, "Pending")) });
    desk.quiet();
    desk.tell(pod("a", "Running", object("a", 6, "Running")));
    desk.quiet();
}

/// What a pod is compared for costs, so it is not compared again where nothing can come of it.
#[test]
fn a_pod_is_looked_at_again_only_where_something_may_come_of_it() {
    let seen = |version, phase| object("a", version, phase);
    let deleting = |version, phase| ApiObject { deleting: true, ..seen(version, phase) };
    let wish = |phase, api| pod("a", phase, api);
    let may_go = |api| PodState { may_delete: true, ..wish("Failed", api) };
    // What is wanted at first, what comes before the answer, what the server makes of the patch, whether the answer is cause for a look.
    for (what, first, meanwhile, made, looks) in [
        ("as it was wanted", wish("Running", seen(5, "")), None, "Running", false),
        (
            "the watch was first",
            wish("Running", seen(5, "")),
            Some(wish("Running", seen(6, "Running"))),
            "Running",
            false,
        ),
        ("of a pod that ends", wish("Running", deleting(5, "")), None, "Running", false),
        ("something else is made of it", wish("Running", seen(5, "")), None, "Unknown", true),
        ("another wish", wish("Running", seen(5, "")), Some(wish("Failed", seen(5, ""))), "Running", true),
        ("somebody wrote since", wish("Running", seen(5, "")), Some(wish("Running", seen(7, "Odd"))), "Running", true),
        ("it may go", may_go(deleting(5, "")), None, "Failed", true),
        ("it may go now", wish("Failed", deleting(5, "")), Some(may_go(deleting(5, ""))), "Failed", true),
    ] {
        let mut desk = Desk::new();
        desk.tell(first);
        let job = desk.job();
        if let Some(meanwhile) = meanwhile {
            desk.tell(meanwhile);
        }
        desk.end(&job, Outcome::Object(copy("a", 6, made)));
        assert_eq!(!desk.store.due.is_empty(), looks, "{what}");
    }
}

#[test]
fn only_what_the_watch_shows_beyond_our_own_answer_is_news() {
    let (own, status_json) = (object("a", 6, "Running"), status("Failed"));
    for (what, state, is_news) in [
        ("our own", pod("a", "Running", own.clone()), false),
        ("what was before it", pod("a", "Running", object("a", 5, "Pending")), false),
        ("another wish with it", PodState { status_json, ..pod("a", "", own.clone()) }, true),
        ("a later one", pod("a", "Running", object("a", 7, "Running")), true),
        ("another pod's", pod("a", "Running", object("b", 6, "Running")), true),
        ("it is being deleted", pod("a", "Running", ApiObject { deleting: true, ..own.clone() }), true),
        ("it is gone", PodState { api: None, ..pod("a", "Running", own.clone()) }, true),
    ] {
        let mut desk = Desk::new();
        desk.tell(pod("a", "Running", object("a", 5, "Pending")));
        let job = desk.job();
        desk.end(&job, Outcome::Object(copy("a", 6, "Running")));
        let (desired, seen) = Desired::of(state.clone()).unwrap();
        assert_eq!(desk.store.upsert(desired, seen, desk.now), is_news, "{what}");
        assert_eq!(!desk.store.due.is_empty(), is_news, "{what}");
    }
    // What somebody writes after it is answered as ever.
    let mut desk = Desk::new();
    desk.tell(pod("a", "Running", object("a", 5, "Pending")));
    let job = desk.job();
    desk.end(&job, Outcome::Object(copy("a", 6, "Running")));
    desk.tell(pod("a", "Running", own));
    desk.tell(pod("a", "Running", object("a", 7, "Unknown")));
    assert_eq!(patch(&desk.job()), json!({"phase": "Running"}));
}

#[test]
fn pods_that_start_or_end_are_counted() {
    let mut desk = Desk::new();
    let at = |phase: &str, worker: WorkerState| PodState {
        phase: phase.into(),
        worker: worker.into(),
        ..pod("a", phase, object("a", 5, "Pending"))
    };
    desk.tell(PodState { phase: "Pending".into(), ..pod("b", "Pending", object("b", 5, "Pending")) });
    for (phase, worker, busy) in [
        ("Pending", WorkerState::Waiting, 2),
        ("Pending", WorkerState::Sync, 2),
        ("Running", WorkerState::Sync, 1),
        ("Running", WorkerState::Terminating, 2),
        ("Failed", WorkerState::Terminated, 2),
        ("Failed", WorkerState::Finished, 1),
        ("Pending", WorkerState::Sync, 2),
    ] {
        desk.tell(at(phase, worker));
        assert_eq!(desk.store.busy(), busy, "{phase} {worker:?}");
    }
    desk.store.node(Facts { shutting_down: true, ..facts() }, desk.now);
    assert_eq!(desk.store.busy(), 0, "nothing is to be kept for later");
    desk.store.node(facts(), desk.now);
    desk.store.removed(&uid("a"), desk.now);
    assert_eq!(desk.store.busy(), 1);
    desk.store.connected(EPOCH + 1, desk.now);
    desk.store.snapshot_done(desk.now);
    assert_eq!(desk.store.busy(), 0);
}

#[test]
fn of_many_changes_the_newest_is_written_and_one_at_a_time() {
    let mut desk = Desk::new();
    desk.tell(pod("a", "Pending", object("a", 5, "")));
    let first = desk.job();
    for phase in ["Running", "Unknown", "Failed"] {
        desk.tell(pod("a", phase, object("a", 5, "")));
    }
    desk.quiet();
    desk.end(&first, Outcome::Object(copy("a", 6, "Pending")));
    let second = desk.job();
    assert_eq!(patch(&second), json!({"phase": "Failed"}));
    desk.end(&second, Outcome::Object(copy("a", 7, "Failed")));
    desk.quiet();
}

#[test]
fn eight_patches_at_once_and_a_slow_one_holds_up_no_other() {
    let mut desk = Desk::new();
    for i in 0..20 {
        desk.tell(pod(&format!("p{i:02}"), "Running", object(&format!("p{i:02}"), 5, "Pending")));
    }
    let mut jobs: Vec<Job> = std::iter::from_fn(|| desk.next()).collect();
    assert_eq!(jobs.len(), IN_FLIGHT);
    let slow = jobs.remove(0);
    let mut written = 0;
    while let Some(job) = jobs.pop() {
        desk.end(&job, Outcome::Object(copy(job.uid(), 6, "Running")));
        written += 1;
        jobs.extend(desk.next());
    }
    assert_eq!(written, 19);
    desk.end(&slow, Outcome::Object(copy(slow.uid(), 6, "Running")));
    desk.quiet();
}

#[test]
fn a_refusal_holds_up_its_pod_alone() {
    let mut desk = Desk::new();
    desk.tell(pod("a", "Running", object("a", 5, "Pending")));
    let job = desk.job();
    let asked = desk.now;
    desk.end(&job, Outcome::Later(Some(Duration::from_secs(7))));
    desk.tell(pod("b", "Running", object("b", 5, "Pending")));
    let other = desk.job();
    assert_eq!(other.uid(), "b");
    desk.end(&other, Outcome::Object(copy("b", 6, "Running")));
    let again = desk.job();
    assert!(again.uid() == "a" && desk.now >= asked + Duration::from_secs(7));
    // Pauses grow to a bound, for ever; and what is sent then is the newest.
    let mut last = desk.now;
    for _ in 0..12 {
        desk.end(&again, Outcome::Later(None));
        desk.tell(pod("a", "Failed", object("a", 5, "Pending")));
        assert_eq!(patch(&desk.job()), json!({"phase": "Failed"}));
        assert!(
            desk.now - last >= ANSWERED.first / 2 && desk.now - last <= ANSWERED.longest + Duration::from_millis(10)
        );
        last = desk.now;
    }
}

#[test]
fn a_refused_wish_does_not_hold_up_another() {
    let mut desk = Desk::new();
    desk.tell(pod("a", "Odd", object("a", 5, "Pending")));
    let job = desk.job();
    desk.end(&job, Outcome::Refused);
    let refused = desk.now;
    desk.tell(pod("a", "Running", object("a", 5, "Pending")));
    assert_eq!(patch(&desk.job()), json!({"phase": "Running"}));
    assert!(desk.now - refused < Duration::from_millis(100));
}

#[test]
fn one_patch_probes_a_server_that_does_not_answer() {
    let mut desk = Desk::new();
    for name in ["a", "b", "c"] {
        desk.tell(pod(name, "Running", object(name, 5, "Pending")));
    }
    let jobs: Vec<Job> = std::iter::from_fn(|| desk.next()).collect();
    assert_eq!(jobs.len(), 3);
    for job in &jobs {
        desk.end(job, Outcome::Silent);
    }
    let mut waits = Vec::new();
    for _ in 0..12 {
        let before = desk.now;
        let probe = desk.job();
        assert_eq!(desk.next(), None, "one at a time");
        waits.push(desk.now - before);
        desk.end(&probe, Outcome::Silent);
    }
    assert!(waits.last().is_some_and(|wait| *wait >= Duration::from_secs(2)), "{waits:?}");
    // One answer, and the others follow.
    desk.tell(pod("b", "Failed", object("b", 5, "Pending")));
    let probe = desk.job();
    desk.end(&probe, Outcome::Object(copy(probe.uid(), 6, "Running")));
    let rest: Vec<Job> = std::iter::from_fn(|| desk.next()).collect();
    assert!(rest.len() >= 2 && rest.iter().filter(|job| job.uid() == "b").all(|job| patch(job)["phase"] == "Failed"));
}

#[test]
fn what_is_not_there_is_not_written_until_it_is_seen_anew() {
    let mut desk = Desk::new();
    desk.tell(pod("a", "Running", object("a", 5, "Pending")));
    let job = desk.job();
    desk.end(&job, Outcome::Missing);
    desk.quiet();
    desk.tell(pod("a", "Failed", object("a", 5, "Pending")));
    desk.quiet();
    desk.tell(pod("a", "Failed", object("a", 9, "Pending")));
    assert_eq!(patch(&desk.job()), json!({"phase": "Failed"}));
}

#[test]
fn a_conflict_is_looked_into() {
    let mut desk = Desk::new();
    desk.tell(pod("a", "Running", object("a", 5, "Pending")));
    let job = desk.job();
    desk.end(&job, Outcome::Conflict);
    let look = desk.job();
    assert_eq!(look.action, Action::Look);
    // Another pod has the name now: not ours to write to.
    desk.end(&look, Outcome::Object(copy("other", 9, "Pending")));
    desk.quiet();

    desk.tell(pod("b", "Running", object("b", 5, "Pending")));
    let job = desk.job();
    desk.end(&job, Outcome::Conflict);
    let look = desk.job();
    let looked = desk.now;
    desk.end(&look, Outcome::Object(copy("b", 9, "Pending")));
    let again = desk.job();
    assert!(patch(&again) == json!({"phase": "Running"}) && desk.now - looked >= ANSWERED.first / 2);
}

#[test]
fn the_end_and_the_deletion() {
    let mut desk = Desk::new();
    let deleting = |version, phase| ApiObject { deleting: true, ..object("a", version, phase) };
    let last = |api| PodState { may_delete: true, ..pod("a", "Failed", api) };
    desk.tell(last(deleting(5, "Running")));
    let job = desk.job();
    assert_eq!(patch(&job), json!({"phase": "Failed"}));
    desk.end(&job, Outcome::Object(ApiCopy { deleting: true, ..copy("a", 6, "Failed") }));
    let delete = desk.job();
    assert_eq!((&delete.action, target(&delete)), (&Action::DeletePod, "a"));
    // A finalizer holds it: again when something about it changes, not before.
    desk.end(&delete, Outcome::Object(ApiCopy { deleting: true, ..copy("a", 7, "Failed") }));
    desk.quiet();
    desk.tell(last(deleting(7, "Failed")));
    desk.quiet();
    desk.tell(last(deleting(8, "Failed")));
    let delete = desk.job();
    assert_eq!(delete.action, Action::DeletePod);
    desk.end(&delete, Outcome::Done);
    desk.quiet();
    desk.tell(last(deleting(8, "Failed")));
    desk.quiet();
    desk.store.removed(&uid("a"), desk.now);
    desk.quiet();
}

/// What others wait for is not held up for what may come with it.
#[test]
fn a_new_phase_and_the_last_word_are_told_at_once() {
    let mut desk = Desk::new();
    let at =
        |phase: &str, version, seen| PodState { phase: phase.into(), ..pod("a", phase, object("a", version, seen)) };
    desk.tell(at("Pending", 5, "Pending"));
    desk.quiet();
    desk.tell(at("Running", 5, "Pending"));
    let job = desk.store.next(desk.now, Timestamp::UNIX_EPOCH).expect("a request at once");
    assert_eq!(patch(&job), json!({"phase": "Running"}));
    desk.end(&job, Outcome::Object(copy("a", 6, "Running")));
    desk.quiet();
    let deleting = |version, seen| ApiObject { deleting: true, ..object("a", version, seen) };
    let ended = |version, seen| PodState { phase: "Failed".into(), ..pod("a", "Failed", deleting(version, seen)) };
    desk.tell(ended(6, "Running"));
    let job = desk.store.next(desk.now, Timestamp::UNIX_EPOCH).expect("a request at once");
    desk.end(&job, Outcome::Object(ApiCopy { deleting: true, ..copy("a", 7, "Failed") }));
    desk.quiet();
    desk.tell(PodState { may_delete: true, ..ended(7, "Failed") });
    let job = desk.store.next(desk.now, Timestamp::UNIX_EPOCH).expect("a request at once");
    assert_eq!(job.action, Action::DeletePod);
}

#[test]
fn the_version_between_the_deletion_and_the_end_is_no_reason_to_delete_again() {
    let mut desk = Desk::new();
    let deleting = |version| ApiObject { deleting: true, ..object("a", version, "Failed") };
    let last = |api| PodState { may_delete: true, ..pod("a", "Failed", api) };
    desk.tell(last(deleting(5)));
    let delete = desk.job();
    desk.end(&delete, Outcome::Done);
    let ended = desk.now;
    // With a grace period of 0.
    desk.tell(last(deleting(6)));
    assert_eq!(desk.store.next(ended + RECONCILE / 2, Timestamp::UNIX_EPOCH), None);
    desk.tell(PodState { api: None, ..last(deleting(6)) });
    desk.quiet();
    // A server that was put back to an older state has it again, and keeps it.
    desk.tell(last(deleting(9)));
    assert_eq!(desk.job().action, Action::DeletePod);
    assert!(desk.now - ended >= RECONCILE);
}

#[test]
fn a_change_that_can_wait_goes_with_the_next() {
    let mut desk = Desk::new();
    let with = |sandbox: &str, phase: &str| {
        let condition = json!({"type": "PodReadyToStartContainers", "status": sandbox});
        json!({"phase": phase, "conditions": [condition]}).to_string().into_bytes()
    };
    let api = ApiObject { status_json: with("False", "Pending"), ..object("a", 5, "") };
    let tell = |status: Vec<u8>| PodState { status_json: status, ..pod("a", "", api.clone()) };
    let began = desk.now;
    desk.tell(tell(with("True", "Pending")));
    assert_eq!(desk.store.next(desk.now + SETTLE, Timestamp::UNIX_EPOCH), None);
    desk.tell(tell(with("True", "Running")));
    let job = desk.job();
    assert!(patch(&job)["phase"] == "Running" && desk.now - began < MINOR);
    desk.end(&job, Outcome::Object(ApiCopy { status: with("True", "Running").into(), ..copy("a", 6, "") }));
    desk.quiet();
    // Alone it goes in the end.
    let began = desk.now;
    desk.tell(tell(with("False", "Running")));
    let job = desk.job();
    assert!(desk.now - began >= MINOR && desk.now - began < MINOR * 2);
    desk.end(&job, Outcome::Object(ApiCopy { status: with("False", "Running").into(), ..copy("a", 7, "") }));
    desk.quiet();
    // Of a pod that is being deleted it is to go with what tells of the end.
    let deleted = ApiObject { deleting: true, status_json: with("False", "Running"), ..object("a", 8, "") };
    let tell = |status: Vec<u8>| PodState { status_json: status, ..pod("a", "", deleted.clone()) };
    let began = desk.now;
    desk.tell(tell(with("True", "Running")));
    let job = desk.job();
    assert!(desk.now - began >= MINOR_DELETING && desk.now - began < MINOR_DELETING + MINOR);
    let copy = ApiCopy { status: with("True", "Running").into(), deleting: true, ..copy("a", 9, "") };
    desk.end(&job, Outcome::Object(copy));
    desk.quiet();
}

#[test]
fn who_overwrites_us_is_answered_without_haste() {
    let mut desk = Desk::new();
    desk.tell(pod("a", "Running", object("a", 5, "Pending")));
    let job = desk.job();
    desk.end(&job, Outcome::Object(copy("a", 6, "Running")));
    let written = desk.now;
    desk.tell(pod("a", "Running", object("a", 7, "Unknown")));
    let job = desk.job();
    assert!(patch(&job) == json!({"phase": "Running"}) && desk.now - written >= RECONCILE);
    desk.end(&job, Outcome::Object(copy("a", 8, "Running")));
    // Our own change is not held up by that.
    desk.tell(pod("a", "Failed", object("a", 7, "Unknown")));
    let told = desk.now;
    let job = desk.job();
    assert!(patch(&job) == json!({"phase": "Failed"}) && desk.now - told < Duration::from_millis(50));
}

#[test]
fn a_server_that_stores_something_else_is_not_asked_for_ever() {
    let mut desk = Desk::new();
    desk.tell(pod("a", "running", object("a", 5, "Pending")));
    let job = desk.job();
    desk.end(&job, Outcome::Object(copy("a", 6, "Running")));
    desk.quiet();
    desk.tell(pod("a", "running", object("a", 6, "Running")));
    desk.quiet();
    // A pod that has ended goes all the same, and not before the server was told once.
    let status_json = json!({"phase": "Failed", "reason": "x"}).to_string().into_bytes();
    let api = ApiObject { deleting: true, ..object("a", 7, "Failed") };
    desk.tell(PodState { may_delete: true, status_json, ..pod("a", "", api) });
    let job = desk.job();
    assert_eq!(patch(&job), json!({"reason": "x"}));
    desk.end(&job, Outcome::Object(ApiCopy { deleting: true, ..copy("a", 8, "Failed") }));
    let delete = desk.job();
    assert_eq!(delete.action, Action::DeletePod);
    desk.end(&delete, Outcome::Done);
    desk.quiet();
}

/// The copy that a patch was made from was older than what the server had, as after a restart of either process.
#[test]
fn what_a_patch_from_an_old_copy_leaves_is_mended_at_once() {
    let mut desk = Desk::new();
    let with = |phase: &str| json!({"phase": phase, "reason": "x"}).to_string().into_bytes().into_boxed_slice();
    let api = ApiObject { deleting: true, ..object("a", 5, "Running") };
    desk.tell(PodState { may_delete: true, ..pod("a", "Failed", api) });
    let job = desk.job();
    assert_eq!(patch(&job), json!({"phase": "Failed"}));
    desk.end(&job, Outcome::Object(ApiCopy { deleting: true, status: with("Failed"), ..copy("a", 7, "") }));
    let written = desk.now;
    let job = desk.job();
    assert!(patch(&job) == json!({"reason": null}) && desk.now - written < Duration::from_millis(50));
    desk.end(&job, Outcome::Object(ApiCopy { deleting: true, ..copy("a", 8, "Failed") }));
    assert_eq!(desk.job().action, Action::DeletePod);
}

#[test]
fn what_is_gone_leaves_nothing_behind() {
    let mut desk = Desk::new();
    for i in 0..100 {
        let name = format!("u{i}");
        desk.tell(pod(&name, "Running", object(&name, 1, "Pending")));
        desk.store.removed(&uid(&name), desk.now);
    }
    assert!(desk.store.pods.is_empty() && desk.store.named.is_empty() && desk.store.due.is_empty());
}

#[test]
fn a_pod_that_a_snapshot_does_not_name_is_forgotten() {
    let mut desk = Desk::new();
    desk.tell(pod("a", "Running", object("a", 5, "Running")));
    desk.tell(pod("b", "Running", object("b", 5, "Running")));
    desk.quiet();
    desk.store.connected(EPOCH + 1, desk.now);
    desk.tell(pod("b", "Failed", object("b", 5, "Running")));
    desk.store.snapshot_done(desk.now);
    assert_eq!(desk.store.pods.keys().collect::<Vec<_>>(), [&uid("b")]);
    let job = desk.job();
    assert_eq!(patch(&job), json!({"phase": "Failed"}));
    desk.end(&job, Outcome::Object(copy("b", 6, "Failed")));
    desk.quiet();
}

fn static_pod(hash: &str, api: Option<ApiObject>) -> PodState {
    let json =
        json!({"metadata": {"name": "web-n", "namespace": "d", "annotations": {"kubernetes.io/config.hash": hash}}});
    PodState {
        name: "web-n".into(),
        source: "file".into(),
        is_static: true,
        static_pod_json: json.to_string().into_bytes(),
        api,
        ..pod(hash, "Running", ApiObject::default())
    }
}

fn facts() -> Facts {
    let owner = Some(Owner { name: "n".into(), uid: "nu".into() });
    Facts { epoch: EPOCH, owner, api_synced: true, sources_ready: true, shutting_down: false, orphans: Vec::new() }
}

fn mirror(uid: &str, version: u32, hash: &str, phase: &str) -> ApiCopy {
    ApiCopy { mirror_hash: hash.into(), ..copy(uid, version, phase) }
}

fn mirror_object(uid: &str, version: u32, hash: &str, phase: &str) -> ApiObject {
    ApiObject { mirror_hash: hash.into(), ..object(uid, version, phase) }
}

#[test]
fn a_mirror_pod_is_made_once_the_node_is_known_and_written_at_once() {
    let mut desk = Desk::new();
    desk.tell(static_pod("h1", None));
    desk.quiet();
    desk.store.node(Facts { api_synced: false, ..facts() }, desk.now);
    desk.quiet();
    // Known by another life of kubelet-syncd: not to be acted upon.
    desk.store.node(Facts { epoch: EPOCH - 1, ..facts() }, desk.now);
    desk.quiet();
    desk.store.node(facts(), desk.now);
    let create = desk.job();
    assert!(matches!(create.action, Action::Create { .. }));
    let created = desk.now;
    desk.end(&create, Outcome::Object(mirror("m1", 6, "h1", "Pending")));
    let job = desk.job();
    assert_eq!((patch(&job), target(&job)), (json!({"phase": "Running"}), "m1"));
    assert!(desk.now - created < Duration::from_millis(50));
    desk.end(&job, Outcome::Object(mirror("m1", 7, "h1", "Running")));
    desk.tell(static_pod("h1", Some(mirror_object("m1", 6, "h1", "Pending"))));
    desk.tell(static_pod("h1", Some(mirror_object("m1", 7, "h1", "Running"))));
    desk.quiet();
    // Somebody deletes it: another takes its place, with the status.
    desk.tell(static_pod("h1", None));
    let create = desk.job();
    assert!(matches!(create.action, Action::Create { .. }));
    desk.end(&create, Outcome::Object(mirror("m2", 9, "h1", "Pending")));
    assert_eq!((patch(&desk.job()), desk.now > created), (json!({"phase": "Running"}), true));
}

#[test]
fn a_mirror_pod_that_could_not_be_made_is_made_in_the_next_life_too() {
    let mut desk = Desk::new();
    desk.store.node(facts(), desk.now);
    desk.tell(static_pod("h1", None));
    let create = desk.job();
    desk.end(&create, Outcome::Later(None));
    // The node's stream is the first to hear of kubelet-syncd's next life, and the pod is no news in it.
    desk.store.node(Facts { epoch: EPOCH + 1, ..facts() }, desk.now);
    desk.quiet();
    desk.store.connected(EPOCH + 1, desk.now);
    desk.tell(static_pod("h1", None));
    desk.store.snapshot_done(desk.now);
    assert!(matches!(desk.job().action, Action::Create { .. }));
}

#[test]
fn a_mirror_pod_of_another_hash_is_replaced() {
    let mut desk = Desk::new();
    desk.store.node(facts(), desk.now);
    let old = mirror_object("m1", 5, "h0", "Running");
    desk.tell(static_pod("h1", Some(old.clone())));
    let delete = desk.job();
    assert_eq!((&delete.action, target(&delete)), (&Action::DeleteMirror, "m1"));
    desk.end(&delete, Outcome::Done);
    let create = desk.job();
    assert!(matches!(create.action, Action::Create { .. }), "although the watch still shows the old one");
    desk.end(&create, Outcome::Object(mirror("m2", 7, "h1", "Running")));
    desk.tell(PodState { why: "noise".into(), ..static_pod("h1", Some(old)) });
    desk.tell(static_pod("h1", None));
    assert_eq!(
        desk.store.next(desk.now + Duration::from_secs(1), Timestamp::UNIX_EPOCH),
        None,
        "ours was not seen yet"
    );
    desk.tell(static_pod("h1", Some(mirror_object("m2", 7, "h1", "Running"))));
    desk.quiet();
}

#[test]
fn its_predecessor_ends_first() {
    let mut desk = Desk::new();
    desk.store.node(facts(), desk.now);
    let m1 = mirror_object("m1", 5, "h0", "Running");
    let leaving = |worker: WorkerState| PodState { worker: worker.into(), ..static_pod("h0", Some(m1.clone())) };
    desk.tell(leaving(WorkerState::Terminating));
    desk.tell(PodState { worker: WorkerState::Waiting.into(), ..static_pod("h1", Some(m1.clone())) });
    desk.quiet();
    desk.tell(leaving(WorkerState::Finished));
    assert_eq!(desk.job().action, Action::DeleteMirror);
}

#[test]
fn a_name_that_is_taken_is_looked_at_and_never_deleted_unless_a_mirror() {
    let mut desk = Desk::new();
    desk.store.node(facts(), desk.now);
    desk.tell(static_pod("h1", None));
    let create = desk.job();
    desk.end(&create, Outcome::Conflict);
    let look = desk.job();
    assert_eq!(look.action, Action::Look);
    desk.end(&look, Outcome::Object(copy("somebodys", 6, "Running")));
    for _ in 0..3 {
        let again = desk.job();
        assert_eq!(again.action, Action::Look, "only looked at, at long intervals");
        desk.end(&again, Outcome::Object(copy("somebodys", 6, "Running")));
    }
    let look = desk.job();
    desk.end(&look, Outcome::Object(mirror("m1", 8, "h1", "Pending")));
    assert_eq!(patch(&desk.job()), json!({"phase": "Running"}));
}

#[test]
fn a_mirror_pod_that_no_watch_shows_is_looked_for() {
    let mut desk = Desk::new();
    desk.store.node(facts(), desk.now);
    desk.tell(static_pod("h1", None));
    let create = desk.job();
    desk.end(&create, Outcome::Object(mirror("m1", 6, "h1", "Running")));
    let created = desk.now;
    let look = desk.job();
    assert!(look.action == Action::Look && desk.now - created >= LOOK_AFTER);
    desk.end(&look, Outcome::Missing);
    assert!(matches!(desk.job().action, Action::Create { .. }));
}

#[test]
fn orphans_go_when_everything_is_known_and_their_pod_has_ended() {
    let mut desk = Desk::new();
    let orphans = vec![OrphanMirror { uid: uid("m1"), namespace: "d".into(), name: "web-n".into() }];
    let ending = |worker: WorkerState| PodState { worker: worker.into(), ..static_pod("h0", None) };
    desk.tell(ending(WorkerState::Terminating));
    for unknown in [
        Facts { sources_ready: false, orphans: orphans.clone(), ..facts() },
        Facts { api_synced: false, orphans: orphans.clone(), ..facts() },
        Facts { epoch: EPOCH - 1, orphans: orphans.clone(), ..facts() },
    ] {
        desk.store.node(unknown, desk.now);
        desk.quiet();
    }
    desk.store.node(Facts { orphans, ..facts() }, desk.now);
    for _ in 0..5 {
        assert_eq!(desk.store.next(desk.now, Timestamp::UNIX_EPOCH), None);
        desk.now = desk.store.wake_at().unwrap();
    }
    desk.tell(ending(WorkerState::Finished));
    let job = desk.job();
    assert_eq!((&job.action, target(&job), job.name.as_str()), (&Action::DeleteOrphan, "m1", "web-n"));
    desk.end(&job, Outcome::Done);
    desk.store.node(facts(), desk.now);
    desk.quiet();
}

/// What may happen next.
#[derive(Debug, Clone)]
enum Step {
    Wish(usize, u8),
    /// The watch shows what the server has now.
    Show(usize),
    /// The oldest request is answered: applied or not, and with or without an answer.
    Answer {
        applied: bool,
        heard: bool,
    },
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..3_usize, 0..5_u8).prop_map(|(pod, n)| Step::Wish(pod, n)),
        2 => (0..3_usize).prop_map(Step::Show),
        5 => (any::<bool>(), any::<bool>()).prop_map(|(applied, heard)| Step::Answer { applied, heard }),
        1 => Just(Step::Restart),
    ]
}

/// A server with three pods.
struct Server {
    pods: Vec<(u32, Value)>,
    version: u32,
}

impl Server {
    fn apply(&mut self, job: &Job) {
        let at: usize = job.uid().parse().unwrap();
        self.version += 1;
        let mut status = self.pods[at].1.as_object().unwrap().clone();
        for (key, value) in patch(job).as_object().unwrap() {
            status.insert(key.clone(), value.clone());
        }
        self.pods[at] = (self.version, Value::Object(normal(status)));
    }

    fn copy(&self, at: usize) -> ApiCopy {
        let (version, status) = &self.pods[at];
        ApiCopy { status: status.to_string().into_bytes().into(), ..copy(&at.to_string(), *version, "") }
    }

    fn object(&self, at: usize) -> ApiObject {
        let copy = self.copy(at);
        ApiObject {
            uid: copy.uid.to_string(),
            resource_version: copy.version,
            status_json: copy.status.into_vec(),
            ..ApiObject::default()
        }
    }
}

proptest! {
    /// Whatever order wishes, answers and failures come in: never two requests for one pod, and in the end the server has
    /// the newest wish of each.
    #[test]
    fn the_newest_wish_arrives(steps in prop::collection::vec(step(), 1..60)) {
        let mut server = Server { pods: vec![(1, json!({})), (1, json!({})), (1, json!({}))], version: 1 };
        let mut desk = Desk::new();
        let mut wishes: Vec<Vec<u8>> = vec![b"{}".to_vec(); 3];
        let mut shown: Vec<ApiObject> = (0..3).map(|at| server.object(at)).collect();
        let mut flying: Vec<Job> = Vec::new();
        let state = |at: usize, wish: &[u8], api: &ApiObject| PodState { status_json: wish.to_vec(), ..pod(&at.to_string(), "", api.clone()) };
        for at in 0..3 {
            desk.tell(state(at, &wishes[at], &shown[at]));
        }
        for step in steps {
            desk.now += Duration::from_millis(200);
            match step {
                Step::Wish(at, n) => {
                    wishes[at] = json!({"hostIP": format!("10.0.0.{n}")}).to_string().into_bytes();
                    desk.tell(state(at, &wishes[at], &shown[at]));
                }
                Step::Show(at) => {
                    shown[at] = server.object(at);
                    desk.tell(state(at, &wishes[at], &shown[at]));
                }
                Step::Answer { applied, heard } if !flying.is_empty() => {
                    let job = flying.remove(0);
                    if applied {
                        server.apply(&job);
                    }
                    let outcome = match (applied, heard) {
                        (true, true) => Outcome::Object(server.copy(job.uid().parse().unwrap())),
                        (false, true) => Outcome::Later(None),
                        (_, false) => Outcome::Silent,
                    };
                    desk.end(&job, outcome);
                }
                Step::Answer { .. } => {}
                Step::Restart => {
                    desk.store.connected(EPOCH + 1, desk.now);
                    for at in 0..3 {
                        shown[at] = server.object(at);
                        desk.tell(state(at, &wishes[at], &shown[at]));
                    }
                    desk.store.snapshot_done(desk.now);
                }
            }
            while let Some(job) = desk.store.next(desk.now, Timestamp::UNIX_EPOCH) {
                prop_assert!(flying.iter().all(|other| other.pod != job.pod));
                flying.push(job);
            }
        }
        for at in 0..3 {
            shown[at] = server.object(at);
            desk.tell(state(at, &wishes[at], &shown[at]));
        }
        for _ in 0..200 {
            let job = if flying.is_empty() { desk.next() } else { Some(flying.remove(0)) };
            let Some(job) = job else { break };
            server.apply(&job);
            desk.end(&job, Outcome::Object(server.copy(job.uid().parse().unwrap())));
        }
        for (wish, (_, stored)) in wishes.iter().zip(&server.pods) {
            prop_assert_eq!(stored, &serde_json::from_slice::<Value>(wish).unwrap());
        }
        prop_assert_eq!(desk.next(), None);
    }
}

#[test]
fn a_pod_that_comes_again_waits_for_the_request_of_before() {
    let mut desk = Desk::new();
    desk.tell(pod("a", "Pending", object("a", 5, "")));
    let first = desk.job();
    // Another life of kubelet-syncd, which has not heard of its pods yet.
    desk.store.connected(EPOCH + 1, desk.now);
    desk.store.snapshot_done(desk.now);
    assert!(desk.store.pods.is_empty());
    desk.tell(pod("a", "Running", object("a", 5, "")));
    desk.quiet();
    desk.end(&first, Outcome::Object(copy("a", 6, "Pending")));
    let second = desk.job();
    assert_eq!(patch(&second), json!({"phase": "Running"}));
    desk.end(&second, Outcome::Object(copy("a", 7, "Running")));
    desk.quiet();

    // One that does not come again leaves nothing.
    desk.tell(pod("a", "Failed", object("a", 7, "Running")));
    let last = desk.job();
    desk.store.removed(&uid("a"), desk.now);
    desk.end(&last, Outcome::Object(copy("a", 8, "Failed")));
    assert!(desk.store.pods.is_empty() && desk.store.under_way.is_empty());
}
