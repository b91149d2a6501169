//! Statuses, mirror pods and deletions.

use bulkhead_daemon::progress::{LOOP_BOUND, Progress};
use bulkhead_ipc::syncd::{ApiObject, MirrorRef, NodeState, PodState, WorkerState};
use kubelet_statusd::events::EventQueue;
use kubelet_statusd::node::syncd_view::{self, ViewSenders};
use kubelet_statusd::pods::{PodMetrics, Writer};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::api_writer::api::{Api, Fault};
use crate::api_writer::syncd::Syncd;

struct Lab {
    api: Api,
    syncd: Syncd,
    task: JoinHandle<()>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn start_writer(api: &Api, syncd: &Syncd) -> JoinHandle<()> {
    let (progress, (told, view, node)) = (Progress::default(), ViewSenders::new());
    let follow = syncd_view::follow(syncd.link(), told, progress.register("view", LOOP_BOUND));
    let writer = Writer {
        client: api.client(),
        syncd: syncd.link(),
        node,
        metrics: PodMetrics::new().unwrap(),
        events: EventQueue::new().0,
        heartbeat: progress.register("pods", LOOP_BOUND),
    };
    tokio::spawn(async move {
        // Whoever keeps the Node looks at it too.
        let _view = view;
        tokio::join!(follow, writer.run());
    })
}

async fn lab() -> Lab {
    let (api, syncd) = (Api::default(), Syncd::start().await);
    let task = start_writer(&api, &syncd);
    Lab { api, syncd, task }
}

fn path(name: &str) -> String {
    format!("/api/v1/namespaces/d/pods/{name}")
}

fn phase(api: &Api, name: &str) -> Option<String> {
    Some(api.get(&path(name))?["status"]["phase"].as_str()?.to_owned())
}

fn object(pod: &Value) -> ApiObject {
    let metadata = &pod["metadata"];
    ApiObject {
        uid: metadata["uid"].as_str().unwrap().into(),
        resource_version: metadata["resourceVersion"].as_str().unwrap().into(),
        status_json: pod["status"].to_string().into_bytes(),
        deleting: metadata["deletionTimestamp"].is_string(),
        generation: 1,
        mirror_hash: metadata["annotations"]["kubernetes.io/config.mirror"].as_str().unwrap_or_default().into(),
    }
}

impl Lab {
    /// Somebody creates a pod that is to run here.
    fn create(&self, name: &str) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "d", "uid": name}, "status": {"phase": "Pending"}});
        self.api.put(&path(name), pod);
    }

    /// Somebody asks for its deletion.
    fn delete(&self, name: &str) {
        let mut pod = self.api.get(&path(name)).unwrap();
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        self.api.put(&path(name), pod);
    }

    /// kubelet-syncd's view, with the server's copy as its watch would have it now.
    fn state(&self, name: &str, phase: &str) -> PodState {
        PodState {
            uid: name.into(),
            namespace: "d".into(),
            name: name.into(),
            source: "api".into(),
            worker: WorkerState::Sync.into(),
            status_json: json!({"phase": phase, "conditions": [{"type": "Ready", "status": if phase == "Running" { "True" } else { "False" }}]})
                .to_string()
                .into_bytes(),
            api: self.api.get(&path(name)).as_ref().map(object),
            containers_may_run: true,
            ..PodState::default()
        }
    }

    fn tell(&self, name: &str, phase: &str) {
        self.syncd.tell(self.state(name, phase));
    }

    async fn phase_is(&self, name: &str, wanted: &str) {
        self.api.until(&format!("{name} is {wanted}"), |api| phase(api, name).as_deref() == Some(wanted)).await;
    }

    /// A pod of its own is written: whatever was to come before it has come.
    async fn settle(&self, name: &str) {
        self.create(name);
        self.tell(name, "Running");
        self.phase_is(name, "Running").await;
    }
}

#[tokio::test]
async fn a_life_in_four_requests() {
    let lab = lab().await;
    lab.create("a");
    lab.tell("a", "Pending");
    lab.api.until("first status", |api| api.get(&path("a")).unwrap()["status"]["conditions"].is_array()).await;
    lab.tell("a", "Running");
    lab.phase_is("a", "Running").await;
    lab.delete("a");
    lab.tell("a", "Running");
    // The end is withheld while something may run.
    lab.tell("a", "Failed");
    lab.api
        .until("not ready", |api| api.get(&path("a")).unwrap()["status"]["conditions"][0]["status"] == "False")
        .await;
    assert_eq!(phase(&lab.api, "a").as_deref(), Some("Running"));
    lab.syncd.tell(PodState { may_delete: true, containers_may_run: false, ..lab.state("a", "Failed") });
    lab.api.until("it is gone", |api| api.get(&path("a")).is_none()).await;
    lab.syncd.forget("a");
    lab.settle("z").await;
    let requests: Vec<String> = lab.api.requests("/pods/a").into_iter().map(|(line, _)| line).collect();
    let status = format!("PATCH {}/status", path("a"));
    let delete = format!("DELETE {}", path("a"));
    assert_eq!(requests.iter().collect::<Vec<_>>(), [&status, &status, &status, &status, &delete]);
    let (_, delete) = lab.api.requests("DELETE").remove(0);
    assert_eq!((&delete["gracePeriodSeconds"], &delete["preconditions"]["uid"]), (&json!(0), &json!("a")));
}

#[tokio::test]
async fn a_hundred_pods_at_once_need_a_request_each() {
    let lab = lab().await;
    for i in 0..100 {
        lab.create(&format!("p{i}"));
        lab.tell(&format!("p{i}"), "Running");
    }
    lab.api.until("all run", |api| (0..100).all(|i| phase(api, &format!("p{i}")).as_deref() == Some("Running"))).await;
    assert_eq!(lab.api.requests("").len(), 100);
}

#[tokio::test]
async fn a_server_that_is_away_gets_the_newest_when_it_is_back() {
    let lab = lab().await;
    for i in 0..30 {
        lab.create(&format!("p{i}"));
    }
    lab.api.fail("", usize::MAX, Fault::Broken);
    for phase in ["Pending", "Unknown", "Running"] {
        for i in 0..30 {
            lab.tell(&format!("p{i}"), phase);
        }
    }
    lab.api.until("it was tried", |api| api.requests("").len() >= 3).await;
    let tried = lab.api.requests("").len();
    lab.api.heal();
    lab.api.until("all run", |api| (0..30).all(|i| phase(api, &format!("p{i}")).as_deref() == Some("Running"))).await;
    let sent = lab.api.requests("").len() - tried;
    assert!(tried <= 20, "one probe at a time: {tried}");
    assert!(sent <= 31, "one request each: {sent}");
}

#[tokio::test]
async fn one_pods_trouble_is_its_own() {
    let lab = lab().await;
    for name in ["busy", "broken", "unheard", "stuck"] {
        lab.create(name);
    }
    lab.api.fail("/busy/", 2, Fault::Answer(429, json!({"retryAfterSeconds": 1})));
    lab.api.fail("/broken/", 2, Fault::Answer(500, json!({})));
    lab.api.fail("/unheard/", 1, Fault::Unheard);
    lab.api.fail("/stuck/", 1, Fault::Held);
    lab.tell("stuck", "Running");
    lab.api.until("it is held", |api| api.requests("/stuck/").len() == 1).await;
    for name in ["busy", "broken", "unheard"] {
        lab.tell(name, "Running");
    }
    for name in ["broken", "busy"] {
        lab.phase_is(name, "Running").await;
    }
    lab.settle("z").await;
    assert_eq!(phase(&lab.api, "stuck").as_deref(), Some("Pending"));
    lab.api.release();
    lab.phase_is("stuck", "Running").await;
    lab.phase_is("unheard", "Running").await;
}

#[tokio::test]
async fn who_has_the_name_now_is_left_alone() {
    let lab = lab().await;
    lab.create("a");
    let before = lab.state("a", "Running");
    let successor = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "d", "uid": "other"}, "status": {"phase": "Pending"}});
    lab.api.put(&path("a"), successor);
    lab.syncd.tell(before);
    lab.api.until("it was looked at", |api| api.requests("GET").len() == 1).await;
    lab.create("gone");
    let gone = lab.state("gone", "Running");
    lab.api.remove(&path("gone"));
    lab.syncd.tell(gone);
    lab.api.until("it was tried", |api| api.requests("/gone/").len() == 1).await;
    lab.settle("z").await;
    assert_eq!(phase(&lab.api, "a").as_deref(), Some("Pending"));
    assert_eq!((lab.api.requests("/pods/a").len(), lab.api.requests("/pods/gone").len()), (2, 1));
}

#[tokio::test]
async fn syncds_restart_repeats_nothing_and_deletes_nothing() {
    let mut lab = lab().await;
    for name in ["a", "b"] {
        lab.create(name);
        lab.tell(name, "Running");
        lab.phase_is(name, "Running").await;
    }
    let written = lab.api.requests("").len();
    let same = vec![lab.state("a", "Running")];
    lab.syncd.restart(same).await;
    lab.settle("z").await;
    assert_eq!(lab.api.requests("").len(), written + 1, "{:#?}", lab.api.requests(""));
    assert_eq!(phase(&lab.api, "b").as_deref(), Some("Running"));
    lab.tell("a", "Failed");
    lab.api.until("it is told", |api| api.requests("/pods/a").len() == 2).await;
}

#[tokio::test]
async fn our_restart_loses_and_repeats_nothing() {
    let mut lab = lab().await;
    lab.create("a");
    lab.tell("a", "Running");
    lab.phase_is("a", "Running").await;
    let written = lab.api.requests("").len();
    lab.task.abort();
    // The status of `a` changes while statusd is away; that of the other pod does not.
    lab.syncd.tell(PodState { containers_may_run: false, ..lab.state("a", "Succeeded") });
    lab.create("b");
    lab.tell("b", "Pending");
    lab.task = start_writer(&lab.api, &lab.syncd);
    lab.phase_is("a", "Succeeded").await;
    lab.api.until("conditions", |api| api.get(&path("b")).unwrap()["status"]["conditions"].is_array()).await;
    lab.tell("a", "Succeeded");
    lab.settle("z").await;
    assert_eq!(lab.api.requests("").len(), written + 3);
}

fn node() -> NodeState {
    NodeState {
        api_node_json: json!({"metadata": {"name": "n", "uid": "node-uid"}}).to_string().into_bytes(),
        api_synced: true,
        sources_ready: true,
        ..NodeState::default()
    }
}

#[tokio::test]
async fn a_mirror_pods_life() {
    let lab = lab().await;
    let static_pod = |hash: &str| {
        let json = json!({"metadata": {"name": "web-n", "namespace": "d", "annotations": {"kubernetes.io/config.hash": hash}}, "spec": {"nodeName": "n"}});
        PodState {
            uid: hash.into(),
            source: "file".into(),
            is_static: true,
            static_pod_json: json.to_string().into_bytes(),
            ..lab.state("web-n", "Running")
        }
    };
    lab.syncd.tell(static_pod("h1"));
    lab.settle("y").await;
    assert!(lab.api.get(&path("web-n")).is_none(), "the node is not known");
    lab.syncd.node(node());
    lab.phase_is("web-n", "Running").await;
    let mirror = lab.api.get(&path("web-n")).unwrap();
    assert_eq!(mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"], "h1");
    assert_eq!(mirror["metadata"]["ownerReferences"][0]["uid"], "node-uid");

    // Another file: its own mirror pod.
    lab.syncd.forget("h1");
    lab.syncd.tell(static_pod("h2"));
    let hash =
        |api: &Api| Some(api.get(&path("web-n"))?["metadata"]["annotations"]["kubernetes.io/config.mirror"].clone());
    lab.api.until("renewed", |api| hash(api) == Some(json!("h2"))).await;
    lab.phase_is("web-n", "Running").await;
    lab.syncd.tell(static_pod("h2"));

    // Somebody removes it: it is made again.
    let renewed = lab.api.get(&path("web-n")).unwrap()["metadata"]["uid"].clone();
    lab.api.remove(&path("web-n"));
    lab.syncd.tell(static_pod("h2"));
    lab.api
        .until("made again", |api| api.get(&path("web-n")).is_some_and(|pod| pod["metadata"]["uid"] != renewed))
        .await;
    lab.phase_is("web-n", "Running").await;

    // The file goes: the mirror pod is an orphan.
    let uid = lab.api.get(&path("web-n")).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    lab.syncd.forget("h2");
    let orphan = MirrorRef { uid, namespace: "d".into(), name: "web-n".into() };
    lab.syncd.node(NodeState { orphan_mirrors: vec![orphan], ..node() });
    lab.api.until("it is gone", |api| api.get(&path("web-n")).is_none()).await;
    lab.syncd.node(node());
    lab.settle("z").await;
    assert_eq!(lab.api.requests("POST").len(), 3);
    assert_eq!(lab.api.requests("DELETE").len(), 2);
    assert_eq!(lab.syncd.node_streams(), 1, "whoever needs the node looks at the same stream");
}
