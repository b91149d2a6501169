//! The node's tasks against an API server that is a table in memory: which requests are made, with what, and how often.
//! Time is tokio's paused clock, so half an hour of cluster life takes no time and every count is exact.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bulkhead_config::NodeConfig;
use bulkhead_daemon::progress::{Beat, Progress};
use bulkhead_ipc::syncd::NodeState;
use http_body_util::BodyExt as _;
use kube::client::Body;
use kubelet_statusd::events::{EventQueue, OwnEvents};
use kubelet_statusd::node::Start;
use kubelet_statusd::node::conditions::Pressure;
use kubelet_statusd::node::facts::Facts;
use kubelet_statusd::node::metrics::Metrics;
use kubelet_statusd::node::ready::SilentPeers;
use kubelet_statusd::node::server::Server;
use kubelet_statusd::node::syncd_view::View;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

/// One request as it came.
#[derive(Debug, Clone)]
struct Request {
    what: String,
    body: Value,
    at: Instant,
}

#[derive(Debug, Default)]
struct World {
    node: Option<Value>,
    lease: Option<Value>,
    csi_node: Option<Value>,
    version: u64,
    requests: Vec<Request>,
    /// (what it begins with, code, reason): each refuses one request.
    refusals: VecDeque<(&'static str, u16, &'static str)>,
    /// Answers nothing at all.
    silent: bool,
    no_storage_api: bool,
}

type Answer = (u16, Value);

fn failure(code: u16, reason: &str) -> Answer {
    (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "refused"}))
}

impl World {
    fn stamp(&mut self, mut object: Value, uid: &str) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if object["metadata"].get("uid").is_none() {
            object["metadata"]["uid"] = json!(uid);
        }
        object
    }

    fn answer(&mut self, method: &str, path: &str, body: Value) -> Answer {
        let what = format!("{method} {path}");
        self.requests.push(Request { what: what.clone(), body: body.clone(), at: Instant::now() });
        if let Some(at) = self.refusals.iter().position(|(start, ..)| what.starts_with(start)) {
            let (_, code, reason) = self.refusals.remove(at).unwrap();
            return failure(code, reason);
        }
        if self.no_storage_api && path.contains("csinodes") {
            return failure(404, "NotFound");
        }
        let got = |object: &Option<Value>| object.clone().map_or_else(|| failure(404, "NotFound"), |o| (200, o));
        match what.as_str() {
            "POST /api/v1/nodes" if self.node.is_some() => failure(409, "AlreadyExists"),
            "POST /api/v1/nodes" => {
                let node = self.stamp(body, "node-uid");
                self.node = Some(node.clone());
                (201, node)
            }
            "GET /api/v1/nodes/test-node" => got(&self.node),
            "PATCH /api/v1/nodes/test-node/status" => match self.node.take() {
                None => failure(404, "NotFound"),
                Some(mut node) => {
                    merge(&mut node, &body);
                    let node = self.stamp(node, "");
                    self.node = Some(node.clone());
                    (200, node)
                }
            },
            "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/test-node" => got(&self.lease),
            "POST /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
            | "PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/test-node" => {
                let lease = self.stamp(body, "lease-uid");
                self.lease = Some(lease.clone());
                (200, lease)
            }
            "GET /apis/storage.k8s.io/v1/csinodes/test-node" => got(&self.csi_node),
            "POST /apis/storage.k8s.io/v1/csinodes" => {
                let csi_node = self.stamp(body, "csi-uid");
                self.csi_node = Some(csi_node.clone());
                (201, csi_node)
            }
            "DELETE /apis/storage.k8s.io/v1/csinodes/test-node" => {
                self.csi_node = None;
                (200, json!({"kind": "Status", "status": "Success"}))
            }
            other => panic!("nobody should ask for {other}"),
        }
    }
}

/// A strategic merge, as far as these tests need one.
fn merge(object: &mut Value, patch: &Value) {
    for (key, value) in patch.as_object().unwrap() {
        match (key.as_str(), value) {
            ("conditions", Value::Array(changes)) => {
                let mut list = object["conditions"].as_array().cloned().unwrap_or_default();
                for change in changes {
                    match list.iter_mut().find(|one| one["type"] == change["type"]) {
                        Some(one) => merge(one, change),
                        None => list.push(change.clone()),
                    }
                }
                object["conditions"] = Value::Array(list);
            }
            (key, _) if key.starts_with('$') => {}
            ("addresses", Value::Array(items)) => {
                object[key] = items.iter().filter(|item| item.get("$patch").is_none()).cloned().collect();
            }
            (_, Value::Null) => drop(object.as_object_mut().unwrap().remove(key)),
            (_, Value::Object(_)) => {
                if !object[key].is_object() {
                    object[key] = json!({});
                }
                merge(&mut object[key], value);
            }
            _ => object[key] = value.clone(),
        }
    }
}

struct Node {
    world: Arc<Mutex<World>>,
    view: watch::Sender<View>,
    /// What kubelet-evictiond says.
    pressure: watch::Sender<Option<Pressure>>,
    /// Who is silent.
    silent_peers: watch::Sender<SilentPeers>,
    events: OwnEvents,
    task: tokio::task::JoinHandle<()>,
    reconnects: Arc<Mutex<u32>>,
    progress: Progress,
    /// While it is set, the tasks are not polled, whatever wakes them.
    wedge: Arc<AtomicBool>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn well() -> NodeState {
    let amounts = [("cpu", "2"), ("memory", "4Gi"), ("pods", "110"), ("ephemeral-storage", "10Gi")]
        .map(|(name, amount)| (name.to_owned(), amount.to_owned()));
    NodeState {
        runtime_name: "containerd".into(),
        runtime_version: "2.1.0".into(),
        runtime_ready: true,
        network_ready: true,
        pleg: "cri-events".into(),
        runtime_status_age_seconds: Some(1.0),
        relist_age_seconds: Some(1.0),
        node_allocatable_enforced: true,
        capacity: amounts.clone().into(),
        allocatable: amounts.into(),
        ..NodeState::default()
    }
}

/// A wall clock that goes with the paused one.
fn clock() -> jiff::Timestamp {
    static BEGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let since = Instant::now().saturating_duration_since(*BEGIN.get_or_init(Instant::now));
    jiff::Timestamp::from_second(1_800_000_000 + i64::try_from(since.as_secs()).unwrap()).unwrap()
}

fn facts() -> Facts {
    Facts {
        boot_id: "boot-2".into(),
        machine_id: "m".into(),
        system_uuid: "u".into(),
        architecture: "amd64",
        ..Facts::default()
    }
}

fn start(world: World, configure: impl FnOnce(&mut NodeConfig), state: Option<NodeState>) -> Node {
    let mut config = NodeConfig::for_tests(Path::new("/nowhere"));
    // Detection would ask the real resolver.
    config.flags.cloud_provider = "external".into();
    configure(&mut config);
    let world = Arc::new(Mutex::new(world));
    let served = world.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let world = served.clone();
        async move {
            let (parts, body) = request.into_parts();
            if parts.method == http::Method::PATCH {
                assert_eq!(parts.headers[http::header::CONTENT_TYPE], "application/strategic-merge-patch+json");
            }
            let bytes = body.collect().await.map_err(|error| std::io::Error::other(error.to_string()))?.to_bytes();
            let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
            if world.lock().silent {
                std::future::pending::<()>().await;
            }
            let (code, answer) = world.lock().answer(parts.method.as_str(), parts.uri.path(), body);
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            Ok::<_, std::io::Error>(http::Response::builder().status(code).body(answer).unwrap())
        }
    });
    let client = || kube::Client::new(service.clone(), "default");
    let (progress, reconnects) = (Progress::default(), Arc::<Mutex<u32>>::default());
    let counted = reconnects.clone();
    let reconnect = Arc::new(move || *counted.lock() += 1);
    let server = Server::with_clients(&config, client(), client(), reconnect);
    let metrics = Metrics::register(&prometheus::Registry::new()).unwrap();
    let (events, recorded) = EventQueue::new();
    let mut first = View::new(Instant::now());
    first.state = state.map(Arc::new);
    let (view, receiver) = watch::channel(first);
    let (pressure, pressed) = watch::channel(None);
    let (silent_peers, silent) = watch::channel(SilentPeers::default());
    let start = Start {
        config: Arc::new(config),
        server,
        facts: facts(),
        metrics,
        events,
        view: receiver,
        pressure: pressed,
        silent_peers: silent,
        addresses: tokio::sync::watch::Sender::new(Vec::new()),
        progress: progress.clone(),
    };
    let wedge = Arc::<AtomicBool>::default();
    let task = tokio::spawn(unless(wedge.clone(), kubelet_statusd::node::keep(start, clock)));
    Node { world, view, pressure, silent_peers, events: recorded, task, reconnects, progress, wedge }
}

/// Polls the tasks, but not while `wedged`.
async fn unless(wedged: Arc<AtomicBool>, tasks: impl Future<Output = ()>) {
    let mut tasks = Box::pin(tasks);
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    std::future::poll_fn(|cx| {
        // Comes back to see whether it still is.
        while tick.poll_tick(cx).is_ready() {}
        if wedged.load(Ordering::Relaxed) { std::task::Poll::Pending } else { tasks.as_mut().poll(cx) }
    })
    .await;
}

impl Node {
    /// What syncd says from now on; it goes on answering.
    fn says(&self, state: NodeState) {
        self.view.send_replace(View::of(state, Instant::now()));
    }

    /// Time passes while syncd answers every five seconds, as it does.
    async fn pass(&self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_secs(1).min(end - Instant::now())).await;
            self.view.send_if_modified(|view| {
                view.answered = Instant::now();
                false
            });
        }
    }

    fn take(&self) -> Vec<Request> {
        std::mem::take(&mut self.world.lock().requests)
    }

    fn count(requests: &[Request], what: &str) -> usize {
        requests.iter().filter(|request| request.what.starts_with(what)).count()
    }

    fn condition(&self, kind: &str) -> Value {
        let world = self.world.lock();
        let conditions = world.node.as_ref().unwrap()["status"]["conditions"].as_array().unwrap().clone();
        conditions.into_iter().find(|condition| condition["type"] == kind).unwrap()
    }

    fn event_reasons(&mut self) -> Vec<String> {
        let mut reasons = Vec::new();
        while let Some(record) = self.events.try_next() {
            reasons.push(record.reason);
        }
        reasons
    }
}

const STATUS: &str = "PATCH /api/v1/nodes/test-node/status";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

#[tokio::test(start_paused = true)]
async fn a_new_node_is_ready_with_four_writes_and_quiet_after() {
    let mut node = start(World::default(), |_| {}, Some(well()));
    node.pass(Duration::from_secs(2)).await;
    let requests = node.take();
    let created = requests.iter().find(|request| request.what == "POST /api/v1/nodes").unwrap();
    assert_eq!(created.body["spec"]["taints"][0]["key"], "node.cloudprovider.kubernetes.io/uninitialized");
    assert_eq!(created.body["status"]["capacity"]["memory"], "4Gi");
    let ready = created.body["status"]["conditions"][3].clone();
    assert_eq!(
        (ready["status"].as_str(), ready["message"].as_str()),
        (Some("False"), Some("CSINode is not yet initialized"))
    );
    assert_eq!(node.condition("Ready")["status"], "True");
    let writes: Vec<&str> = requests.iter().filter(|r| !r.what.starts_with("GET")).map(|r| r.what.as_str()).collect();
    let lease = format!("POST {LEASES}");
    let mut sorted = writes.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [STATUS, "POST /api/v1/nodes", &lease, "POST /apis/storage.k8s.io/v1/csinodes"], "{writes:?}");
    assert_eq!(
        node.world.lock().lease.as_ref().unwrap()["metadata"]["ownerReferences"],
        json!([{"apiVersion": "v1", "kind": "Node", "name": "test-node", "uid": "node-uid"}])
    );
    assert_eq!(
        node.event_reasons(),
        [
            "Starting",
            "NodeHasSufficientMemory",
            "NodeHasNoDiskPressure",
            "NodeHasSufficientPID",
            "NodeAllocatableEnforced",
            "NodeReady"
        ]
    );

    // Half an hour of nothing: a lease every ten seconds, a status every five minutes, and not one read.
    node.pass(Duration::from_secs(1800)).await;
    let requests = node.take();
    let leases = Node::count(&requests, "PUT ");
    assert!((170..=180).contains(&leases), "{leases} renewals");
    let statuses = Node::count(&requests, STATUS);
    assert!((5..=7).contains(&statuses), "{statuses} statuses");
    assert_eq!(requests.len(), leases + statuses);
    assert!(node.event_reasons().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_node_is_patched_at_once_and_a_restart_of_syncd_is_none() {
    let mut node = start(World::default(), |_| {}, Some(well()));
    node.pass(Duration::from_secs(60)).await;
    node.take();
    node.event_reasons();

    let changed = Instant::now();
    node.says(NodeState {
        network_ready: false,
        network_reason: "NetworkReady=false reason:R message:m".into(),
        ..well()
    });
    node.pass(Duration::from_secs(1)).await;
    let requests = node.take();
    let patch = requests.iter().find(|request| request.what == STATUS).unwrap();
    assert!(patch.at - changed < Duration::from_millis(200));
    assert_eq!(
        node.condition("Ready")["message"],
        "container runtime network not ready: NetworkReady=false reason:R message:m"
    );
    assert_eq!(
        patch.body["status"].as_object().unwrap().keys().collect::<Vec<_>>(),
        ["$setElementOrder/conditions", "conditions"]
    );
    node.says(well());
    node.pass(Duration::from_secs(1)).await;
    assert_eq!(node.condition("Ready")["status"], "True");
    assert_eq!(node.event_reasons(), ["NodeNotReady", "NodeReady"]);
    node.take();

    // Fifteen seconds without an answer are a restart; half a minute is not.
    tokio::time::sleep(Duration::from_secs(15)).await;
    node.says(well());
    node.pass(Duration::from_secs(20)).await;
    assert_eq!(Node::count(&node.take(), STATUS), 0);
    tokio::time::sleep(Duration::from_secs(35)).await;
    assert_eq!(node.condition("Ready")["message"], "kubelet-syncd is not healthy: it does not answer");
    let requests = node.take();
    assert_eq!(Node::count(&requests, STATUS), 1);
    assert!(Node::count(&requests, "PUT ") >= 3, "the lease goes on");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_stands_is_put_right_and_stays_ready() {
    let stands = || {
        let now = "2026-01-01T00:00:00Z";
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "lastTransitionTime": now});
        World {
            node: Some(json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {
                    "name": "test-node", "uid": "node-uid", "resourceVersion": "5",
                    "labels": {"kubernetes.io/os": "plan9", "mine": "x"}, "annotations": {"a": "b"},
                },
                "spec": {"taints": [{"key": "t", "effect": "NoSchedule"}]},
                "status": {
                    "capacity": {"vendor.com/gpu": "1", "cpu": "2"},
                    "nodeInfo": {"bootID": "boot-1"},
                    "conditions": [
                        condition("NetworkUnavailable", "False"), condition("MemoryPressure", "False"),
                        condition("DiskPressure", "False"), condition("PIDPressure", "False"), condition("Ready", "True"),
                    ],
                },
            })),
            csi_node: Some(json!({"metadata": {"name": "test-node", "uid": "csi-old", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "test-node", "uid": "gone"},
            ]}, "spec": {"drivers": []}})),
            version: 5,
            ..World::default()
        }
    };
    let mut node = start(stands(), |_| {}, Some(well()));
    node.pass(Duration::from_secs(5)).await;
    let requests = node.take();
    assert!(requests.iter().all(|request| request.body.get("spec").is_none() || !request.what.starts_with("PATCH")));
    let world = node.world.lock();
    let object = world.node.clone().unwrap();
    assert_eq!(object["metadata"]["labels"]["kubernetes.io/os"], "linux");
    assert_eq!(object["metadata"]["labels"]["kubernetes.io/hostname"], "test-node");
    assert_eq!(object["metadata"]["labels"]["mine"], "x");
    assert_eq!(object["metadata"]["annotations"]["volumes.kubernetes.io/controller-managed-attach-detach"], "true");
    assert_eq!(object["spec"]["taints"], json!([{"key": "t", "effect": "NoSchedule"}]));
    assert_eq!(object["status"]["capacity"]["vendor.com/gpu"], "1");
    assert_eq!(object["status"]["conditions"][0]["type"], "NetworkUnavailable");
    assert_eq!(object["status"]["conditions"][4]["lastTransitionTime"], "2026-01-01T00:00:00Z");
    assert_eq!(world.csi_node.as_ref().unwrap()["metadata"]["uid"], "csi-uid");
    drop(world);
    assert_eq!(
        node.event_reasons(),
        [
            "Starting",
            "NodeHasSufficientMemory",
            "NodeHasNoDiskPressure",
            "NodeHasSufficientPID",
            "NodeAllocatableEnforced",
            "Rebooted"
        ]
    );
}

/// What an administrator or a controller offers on the Node stays over restarts; of plugins it shows what kubelet-syncd knows.
#[tokio::test(start_paused = true)]
async fn a_restart_sets_only_extended_resources_of_plugins() {
    // (machine and firmware that the Node was filled in on, what it has then of others' and of a plugin's that is not back)
    for (machine, firmware, expected) in
        [("m", "u", ["2", "0"]), ("other", "u", ["2", "0"]), ("other", "v", ["0", "0"])]
    {
        let amounts = json!({"others.com/eni": "2", "vendor.com/gpu": "2"});
        let mut world = World::default();
        let stands = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "test-node"}, "status": {
            "capacity": amounts, "allocatable": amounts,
            "nodeInfo": {
                "machineID": machine, "systemUUID": firmware, "bootID": "boot-2", "kernelVersion": "", "osImage": "",
                "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "linux",
                "architecture": "amd64",
            },
        }});
        world.node = Some(world.stamp(stands, "node-uid"));
        let mut state = well();
        for list in [&mut state.capacity, &mut state.allocatable] {
            list.insert("vendor.com/gpu".to_owned(), "0".to_owned());
        }
        let node = start(world, |_| {}, Some(state));
        node.pass(Duration::from_secs(5)).await;
        let patches: Vec<Request> = node.take().into_iter().filter(|request| request.what == STATUS).collect();
        assert_eq!(patches[0].body["status"]["capacity"]["vendor.com/gpu"], "0", "the first write has it");
        let world = node.world.lock();
        let status = &world.node.as_ref().unwrap()["status"];
        for list in ["capacity", "allocatable"] {
            for (name, expected) in ["others.com/eni", "vendor.com/gpu"].into_iter().zip(expected) {
                assert_eq!(status[list][name], expected, "{machine} {firmware}: {name} in {status}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_are_met_as_upstream_meets_them() {
    let lease_put: &'static str = Box::leak(format!("PUT {LEASES}").into_boxed_str());
    let world = World {
        refusals: VecDeque::from([
            ("POST /api/v1/nodes", 500, "InternalError"),
            ("POST /api/v1/nodes", 403, "Forbidden"),
            ("PATCH /api/v1/nodes", 500, "InternalError"),
            ("PATCH /api/v1/nodes", 409, "Conflict"),
            (lease_put, 409, "Conflict"),
            (lease_put, 500, "InternalError"),
        ]),
        ..World::default()
    };
    let node = start(world, |_| {}, Some(well()));
    node.pass(Duration::from_secs(30)).await;
    let requests = node.take();
    // 500: again. Forbidden: the Node might stand; it does not: again. Then it is created.
    assert_eq!(Node::count(&requests, "POST /api/v1/nodes"), 3);
    assert_eq!(node.condition("Ready")["status"], "True");
    assert_eq!(Node::count(&requests, STATUS), 3);
    assert!(Node::count(&requests, "GET /api/v1/nodes/test-node") >= 2, "tries after a failure read the Node");
    // The conflict: read, written again, refused once more, written.
    assert!(Node::count(&requests, &format!("GET {LEASES}/test-node")) >= 2);
    let renewals: Vec<&Request> = requests.iter().filter(|request| request.what.starts_with(lease_put)).collect();
    assert!(renewals.len() >= 4, "{renewals:?}");
    assert!(*node.reconnects.lock() >= 1);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_is_not_thronged_and_back_is_back() {
    let node = start(World::default(), |_| {}, Some(well()));
    node.pass(Duration::from_secs(30)).await;
    node.take();
    node.world.lock().silent = true;
    node.says(NodeState { volumes_synced: true, volumes_in_use: vec!["v".into()], ..well() });
    node.pass(Duration::from_secs(120)).await;
    node.world.lock().silent = false;
    node.pass(Duration::from_secs(30)).await;
    let world = node.world.lock();
    assert_eq!(world.node.as_ref().unwrap()["status"]["volumesInUse"], json!(["v"]));
    let renewed = world.requests.iter().filter(|request| request.what.starts_with("PUT ")).count();
    assert!((1..=4).contains(&renewed), "{renewed} renewals");
    assert!(world.requests.len() < 15, "{:?}", world.requests);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_deleted_is_not_made_again() {
    let node = start(World::default(), |_| {}, Some(well()));
    node.pass(Duration::from_secs(30)).await;
    node.world.lock().node = None;
    node.take();
    node.says(NodeState { network_ready: false, ..well() });
    node.pass(Duration::from_secs(120)).await;
    let requests = node.take();
    assert_eq!(Node::count(&requests, "POST "), 0);
    let asked = Node::count(&requests, "GET /api/v1/nodes/test-node");
    assert!((8..=14).contains(&asked), "{asked}: once a period");
    assert!(Node::count(&requests, "PUT ") >= 10, "the lease goes on");
    // Somebody makes it: its status is filled again.
    node.world.lock().node = Some(
        json!({"metadata": {"name": "test-node", "uid": "other", "resourceVersion": "99"}, "spec": {}, "status": {}}),
    );
    node.pass(Duration::from_secs(12)).await;
    assert_eq!(node.condition("Ready")["status"], "False");
    assert_eq!(node.world.lock().node.as_ref().unwrap()["status"]["capacity"]["cpu"], "2");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_to_register_only_speaks_of_one_that_stands() {
    let node = start(World::default(), |config| config.kubelet.register_node = Some(false), Some(well()));
    node.pass(Duration::from_secs(60)).await;
    let requests = node.take();
    assert_eq!(Node::count(&requests, "POST ") + Node::count(&requests, "PATCH "), 0);
    node.world.lock().node =
        Some(json!({"metadata": {"name": "test-node", "uid": "u", "resourceVersion": "1"}, "spec": {}, "status": {}}));
    node.pass(Duration::from_secs(15)).await;
    assert_eq!(node.condition("Ready")["status"], "True");
    assert!(node.world.lock().lease.is_some());
}

#[tokio::test(start_paused = true)]
async fn without_the_storage_api_the_node_is_ready_and_with_a_failing_one_it_says_why() {
    let node = start(World { no_storage_api: true, ..World::default() }, |_| {}, Some(well()));
    node.pass(Duration::from_secs(5)).await;
    assert_eq!(node.condition("Ready")["status"], "True");

    let refusals = VecDeque::from([("POST /apis/storage", 500, "InternalError"); 3]);
    let node = start(World { refusals, ..World::default() }, |_| {}, Some(well()));
    node.pass(Duration::from_millis(200)).await;
    let message = node.condition("Ready")["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("failed to initialize CSINode: creating the CSINode"), "{message}");
    node.pass(Duration::from_secs(5)).await;
    assert_eq!(node.condition("Ready")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn a_start_waits_for_syncd_but_not_for_ever() {
    let node = start(World::default(), |_| {}, None);
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(node.take().iter().filter(|request| !request.what.contains("leases")).count(), 0);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let message = node.condition("Ready")["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("[kubelet-syncd is not healthy: it does not answer"), "{message}");
    node.says(well());
    node.pass(Duration::from_secs(1)).await;
    assert_eq!(node.condition("Ready")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn images_wait_for_the_period_and_our_own_echo_is_no_news() {
    let node = start(World::default(), |_| {}, Some(well()));
    // Between two periods.
    node.pass(Duration::from_secs(34)).await;
    node.take();
    let image = bulkhead_ipc::syncd::NodeImage { names: vec!["i:1".into()], size_bytes: 5 };
    for size_bytes in 0..20 {
        let image = bulkhead_ipc::syncd::NodeImage { size_bytes, ..image.clone() };
        node.says(NodeState { images: vec![image], ..well() });
        node.pass(Duration::from_millis(100)).await;
    }
    assert_eq!(Node::count(&node.take(), STATUS), 0);
    node.pass(Duration::from_secs(12)).await;
    assert_eq!(Node::count(&node.take(), STATUS), 1);
    let echo = node.world.lock().node.clone().unwrap();
    let image = bulkhead_ipc::syncd::NodeImage { size_bytes: 19, ..image };
    let api_node_json = serde_json::to_vec(&echo).unwrap();
    node.says(NodeState { images: vec![image], api_node_json, ..well() });
    node.pass(Duration::from_secs(12)).await;
    let requests = node.take();
    assert_eq!(Node::count(&requests, STATUS) + Node::count(&requests, "GET "), 0);
}

#[tokio::test(start_paused = true)]
async fn a_silent_volnetd_is_told_at_once_and_its_return() {
    let node = start(World::default(), |_| {}, Some(well()));
    node.pass(Duration::from_secs(2)).await;
    assert_eq!(node.condition("Ready")["status"], "True");
    node.silent_peers.send_replace(SilentPeers { volnetd: true, evictiond: false });
    node.pass(Duration::from_secs(1)).await;
    let ready = node.condition("Ready");
    assert_eq!(ready["message"], "kubelet-volnetd is not healthy: it does not answer");
    assert_eq!((&ready["status"], &ready["reason"]), (&json!("False"), &json!("KubeletNotReady")));
    node.silent_peers.send_replace(SilentPeers::default());
    node.pass(Duration::from_secs(1)).await;
    assert_eq!(node.condition("Ready")["status"], "True");
}

#[tokio::test(start_paused = true)]
async fn pressure_is_told_at_once_and_stays_while_evictiond_is_away() {
    let mut node = start(World::default(), |_| {}, Some(well()));
    node.pass(Duration::from_secs(2)).await;
    assert_eq!(node.condition("DiskPressure")["status"], "False", "nobody has said anything of it");
    node.take();
    node.event_reasons();
    node.pressure.send_replace(Some(Pressure { disk: true, ..Pressure::default() }));
    node.pass(Duration::from_secs(1)).await;
    let pressed = node.condition("DiskPressure");
    assert_eq!((&pressed["status"], &pressed["reason"]), (&json!("True"), &json!("KubeletHasDiskPressure")));
    assert_eq!(Node::count(&node.take(), STATUS), 1);
    assert_eq!(node.event_reasons(), ["NodeHasDiskPressure"]);
    node.pass(Duration::from_secs(600)).await;
    assert_eq!(node.condition("DiskPressure")["status"], "True");
    assert!(node.event_reasons().is_empty());
    node.pressure.send_replace(Some(Pressure::default()));
    node.pass(Duration::from_secs(1)).await;
    assert_eq!(node.condition("DiskPressure")["reason"], "KubeletHasNoDiskPressure");
}

/// A new life of kubelet-statusd that has not heard of kubelet-evictiond yet.
#[tokio::test(start_paused = true)]
async fn a_restart_takes_no_pressure_away() {
    let condition = json!({"type": "MemoryPressure", "status": "True", "reason": "KubeletHasInsufficientMemory",
        "message": "m", "lastTransitionTime": "2026-11-21T00:00:00Z", "lastHeartbeatTime": "2026-11-21T00:00:00Z"});
    let stands = json!({"apiVersion": "v1", "kind": "Node", "status": {"conditions": [condition]},
        "metadata": {"name": "test-node", "uid": "node-uid", "resourceVersion": "5"}});
    let world = World { node: Some(stands), version: 5, ..World::default() };
    let mut node = start(world, |_| {}, Some(well()));
    node.pass(Duration::from_secs(20)).await;
    let pressed = node.condition("MemoryPressure");
    assert_eq!((&pressed["status"], &pressed["lastTransitionTime"]), (&json!("True"), &json!("2026-11-21T00:00:00Z")));
    // At each start a Node is made to be registered, as upstream's, which is where the event of enough memory comes from.
    let told = node.event_reasons();
    assert!(!told.iter().any(|reason| reason == "NodeHasInsufficientMemory"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn cordoning_is_one_event() {
    let mut node = start(World::default(), |_| {}, Some(well()));
    node.pass(Duration::from_secs(5)).await;
    node.event_reasons();
    let mut object = node.world.lock().node.clone().unwrap();
    object["spec"]["unschedulable"] = json!(true);
    object["metadata"]["resourceVersion"] = json!("1000");
    let api_node_json = serde_json::to_vec(&object).unwrap();
    node.says(NodeState { api_node_json, ..well() });
    node.pass(Duration::from_secs(30)).await;
    assert_eq!(node.event_reasons(), ["NodeNotSchedulable"]);
}

impl Node {
    /// How often the watchdog's beat was held back while time passed, looked at as a daemon does: every 15 seconds.
    async fn beats_missed(&self, time: Duration) -> Vec<String> {
        let (end, mut missed) = (Instant::now() + time, Vec::new());
        while Instant::now() < end {
            if let Beat::HoldBack(why) = self.progress.beat() {
                missed.push(why);
            }
            self.pass(Duration::from_secs(15)).await;
        }
        missed
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_hangs_holds_no_beat_back() {
    let hour = Duration::from_secs(3600);
    // From the start on, with nothing registered; and later.
    let node = start(World { silent: true, ..World::default() }, |_| {}, Some(well()));
    assert_eq!(node.beats_missed(hour).await, Vec::<String>::new());
    node.world.lock().silent = false;
    assert_eq!(node.beats_missed(hour).await, Vec::<String>::new());
    assert_eq!(node.condition("Ready")["status"], "True");
    node.world.lock().silent = true;
    assert_eq!(node.beats_missed(hour).await, Vec::<String>::new());
    // One that refuses everything.
    node.world.lock().silent = false;
    let refused =
        ["GET", "PATCH", "PUT", "POST"].into_iter().cycle().take(4000).map(|what| (what, 500, "InternalError"));
    node.world.lock().refusals.extend(refused);
    assert_eq!(node.beats_missed(hour).await, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_not_polled_holds_the_heartbeat_back() {
    let node = start(World::default(), |_| {}, Some(well()));
    node.pass(Duration::from_secs(60)).await;
    // The connections of others would still be served.
    node.wedge.store(true, Ordering::Relaxed);
    let missed = node.beats_missed(Duration::from_secs(120)).await;
    let said = missed.join(" ");
    assert!(said.contains("\"lease\"") && said.contains("\"node\""), "{missed:?}");
    node.wedge.store(false, Ordering::Relaxed);
    node.pass(Duration::from_secs(60)).await;
    assert_eq!(node.progress.beat(), Beat::Send);
}
