//! kube-apiserver: the stand-in of `shared/apiserver`, which the contract suite holds against the real one, behind connections that take
//! their time. What the workload asks goes past them; what the node asks and what becomes of its pods is looked at after each turn.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_apiserver::faults::{Action, Rule};
use bulkhead_apiserver::identity::User;
use bulkhead_apiserver::request_log::Record;
use bulkhead_apiserver::resources::named;
use bulkhead_apiserver::status::ApiError;
use bulkhead_apiserver::{ApiServer, Config};
use bulkhead_simulation_kernel as kernel;
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Handle;

use crate::schedule::{ApiFault, Shape};
use crate::world::{Shared, Wanted};

/// The port that the node's kubeconfig names.
pub const PORT: u16 = 6443;
/// The node's name, as the configuration for tests has it.
pub const NODE: &str = "test-node";
/// A connection's bytes that the model holds while they are under way.
const BUFFER: usize = 64 << 10;
/// A request that has no answer for so long gets none any more: its connection is broken, or the node has given it up.
const PATIENCE: Duration = Duration::from_secs(60);
/// The condition that somebody else writes.
pub const FOREIGN: &str = "example.com/simulated";

/// Over plain http nobody proves who they are: the server knows the node by being asked.
pub fn kubeconfig() -> String {
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{PORT}")}}],
        "users": [{"name": "u", "user": {}}]})
    .to_string()
}

/// What is stored, which outlives the service.
#[derive(Debug, Clone)]
pub struct Model {
    server: Arc<ApiServer>,
    world: Shared,
}

/// How far the log and the history were looked at.
#[derive(Debug, Default)]
pub struct Seen {
    request: u64,
    /// Requests without an answer, and since when.
    waiting: BTreeMap<u64, Duration>,
    version: u64,
}

impl Model {
    /// # Errors
    /// The stand-in cannot be made.
    pub fn start(world: Shared, machine: &Handle) -> Result<Self> {
        let config =
            Config { scheduler: false, taint_new_nodes: false, anonymous: Some(User::node(NODE)), ..Config::default() };
        let server =
            ApiServer::without_listener(config, machine).context("starting the stand-in for kube-apiserver")?;
        Ok(Model { server: Arc::new(server), world })
    }

    /// Serves until it is dropped, which breaks its connections.
    pub async fn serve(self, listener: std::os::unix::net::UnixListener) {
        let Ok(listener) = UnixListener::from_std(listener) else { return };
        loop {
            if let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(self.clone().carry(stream));
            }
        }
    }

    /// One connection of the node, until either side ends it.
    async fn carry(self, stream: UnixStream) {
        let (near, far) = tokio::io::duplex(BUFFER);
        let (from_node, to_node) = stream.into_split();
        let (from_server, to_server) = tokio::io::split(near);
        let asked = async {
            self.ask_late(from_node, to_server).await;
            // What a client that is gone has sent is taken all the same.
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        tokio::select! {
            () = self.server.connection(far) => {}
            () = asked => {}
            () = self.pass(from_server, to_node) => {}
        }
    }

    /// What the node asks, in order and late; and whether it has ended meanwhile.
    async fn ask_late(&self, mut from: OwnedReadHalf, mut to: impl AsyncWrite + Unpin) {
        let mut buffer = vec![0; BUFFER];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            self.take_its_time().await;
            let state = from.ready(Interest::READABLE).now_or_never();
            if state.is_some_and(|state| state.is_ok_and(|state| state.is_read_closed())) {
                self.world.lock().last_words = Some(kernel::now());
            }
            if to.write_all(buffer.get(..count).unwrap_or_default()).await.is_err() {
                return;
            }
        }
    }

    async fn take_its_time(&self) {
        let late = self.world.lock().way_to_api();
        if late > 0 {
            tokio::time::sleep(Duration::from_millis(late)).await;
        }
    }

    /// Bytes from one side to the other, in order and late.
    async fn pass(&self, mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
        let mut buffer = vec![0; BUFFER];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            self.take_its_time().await;
            if to.write_all(buffer.get(..count).unwrap_or_default()).await.is_err() {
                return;
            }
        }
    }

    pub(crate) fn world(&self) -> &Shared {
        &self.world
    }

    /// As the cluster's owner, past the wire. `body`: null for none.
    ///
    /// # Errors
    /// It is refused.
    pub fn request(&self, method: &str, path: &str, body: &Value) -> Result<Value, ApiError> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.server.ask(method, path, "application/json", body.as_bytes())
    }

    /// The same with a body of another type.
    pub(crate) fn ask(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Result<Value, ApiError> {
        self.server.ask(method, path, kind, body)
    }

    fn path(pod: &str) -> String {
        format!("/api/v1/namespaces/default/pods/{pod}")
    }

    fn get(&self, pod: &str) -> Option<Value> {
        self.server.ask("GET", &Self::path(pod), "", &[]).ok()
    }

    /// Creates a pod on the node. False: its name is taken by one that goes.
    pub fn create(&self, pod: &str, shape: &Shape) -> bool {
        if let Some(there) = self.get(pod) {
            return !there["metadata"]["deletionTimestamp"].is_string();
        }
        let version = self.world.lock().next_version();
        let mut manifest = crate::node::manifest(pod, shape, version);
        manifest["spec"]["nodeName"] = json!(NODE);
        manifest["spec"]["automountServiceAccountToken"] = json!(false);
        let body = manifest.to_string();
        let made = self.server.ask("POST", "/api/v1/namespaces/default/pods", "application/json", body.as_bytes());
        let mut world = self.world.lock();
        match made {
            Ok(made) => {
                let uid = made["metadata"]["uid"].as_str().map(str::to_owned);
                if let Some(uid) = &uid {
                    world.sizes.comes(uid, pod, shape);
                }
                let wanted = Wanted { shape: shape.clone(), version, since: kernel::now(), uid, is_edited: false };
                world.wanted.insert(pod.to_owned(), wanted);
            }
            Err(refusal) => world.breaks("no-end", format!("the model refuses {pod}: {refusal}")),
        }
        true
    }

    /// Deletes it, as kubectl does; `grace`: seconds.
    pub fn delete(&self, pod: &str, grace: Option<u64>) {
        let query = grace.map(|grace| format!("?gracePeriodSeconds={grace}")).unwrap_or_default();
        let before = self.get(pod);
        // There may be none.
        let _ = self.server.ask("DELETE", &format!("{}{query}", Self::path(pod)), "", &[]);
        let mut world = self.world.lock();
        world.wanted.remove(pod);
        let Some(uid) = before.as_ref().and_then(|before| before["metadata"]["uid"].as_str()) else { return };
        world.asked.insert(uid.to_owned());
        if self.get(pod).is_none() {
            world.forced.insert(uid.to_owned());
        }
    }

    /// See [`crate::schedule::Deed::Edit`].
    pub fn edit(&self, pod: &str, image: bool) {
        let Some(there) = self.get(pod).filter(|there| !there["metadata"]["deletionTimestamp"].is_string()) else {
            return;
        };
        let version = self.world.lock().next_version();
        let mut patch = json!({"metadata": {"annotations": {"simulation/edit": version.to_string()}}});
        let name = there["spec"]["containers"][0]["name"].as_str().unwrap_or_default();
        if image && there["spec"]["restartPolicy"] == "Always" {
            patch["spec"] = json!({"containers": [{"name": name, "image": format!("image{version}")}]});
            if let Some(wanted) = self.world.lock().wanted.get_mut(pod) {
                wanted.is_edited = true;
            }
        }
        self.patch(&Self::path(pod), &patch);
    }

    /// See [`crate::schedule::Deed::Meddle`].
    pub fn meddle(&self, pod: &str) {
        if self.get(pod).is_some() {
            let condition = json!({"type": FOREIGN, "status": "True"});
            self.patch(&format!("{}/status", Self::path(pod)), &json!({"status": {"conditions": [condition]}}));
        }
    }

    /// Patches something as the cluster's owner (strategic merge); that it is refused is noted as a check that fails.
    pub fn patch(&self, path: &str, patch: &Value) {
        let kind = "application/strategic-merge-patch+json";
        if let Err(refusal) = self.server.ask("PATCH", path, kind, patch.to_string().as_bytes()) {
            self.world.lock().breaks("no-end", format!("the model refuses a patch of {path}: {refusal}"));
        }
    }

    /// Puts a fault into force.
    pub fn fault(&self, fault: ApiFault) {
        let writes = |action: Action, times: u32| {
            for resource in ["pods/status", "pods"] {
                let rule = Rule::new(action.clone()).resource(resource).times(times);
                self.server.faults().add(rule.verb("patch").verb("delete").verb("create"));
            }
        };
        match fault {
            ApiFault::Answer { code, times } => writes(Action::Answer { code, retry_after_seconds: None }, times),
            ApiFault::Conflict { times } => writes(Action::Conflict, times),
            ApiFault::AnswerLost => writes(Action::LoseAnswer, 1),
            ApiFault::DeathAfter => self.world.lock().statusd_dies = true,
            ApiFault::Dropped => writes(Action::DropConnection, 1),
            ApiFault::Late { by } => writes(Action::Delay(Duration::from_millis(by)), 1),
            ApiFault::NoList { code } => {
                let rule = Rule::new(Action::Answer { code, retry_after_seconds: None }).resource("pods").times(1);
                self.server.faults().add(rule.verb("watch").verb("list"));
            }
        }
    }

    pub fn close_watches(&self) {
        self.server.faults().close_watches();
    }

    pub fn forget_history(&self) {
        self.server.with_store(bulkhead_apiserver::storage::Store::compact);
        self.server.faults().close_watches();
    }

    pub fn silence_watches(&self, silent: bool, bookmarks: bool) {
        if bookmarks {
            self.server.faults().withhold_events(silent);
        } else {
            self.server.faults().pause_watches(silent);
        }
    }

    pub fn silence(&self, silent: bool) {
        self.server.faults().blackhole(silent);
    }

    /// From here on everything is answered as it should be.
    pub fn end_faults(&self) {
        self.server.faults().clear();
        let mut world = self.world.lock();
        world.statusd_dies = false;
        world.volumes.faults.clear();
        world.claims.faults.clear();
        // Whoever waits for one of these gets it.
        world.claims.renewed.clear();
    }

    /// What the node has asked for and got since the last look, and what became of pods and of the Node. Whether anything was stored.
    pub fn look(&self, seen: &mut Seen) -> bool {
        self.look_at_requests(seen);
        let version = seen.version;
        let (mut nodes, mut events) = (Vec::new(), Vec::new());
        let changes: Vec<_> = self.server.with_store(|store| {
            seen.version = store.version();
            let changes = |plural: &str| {
                let changes = store.changes_after(named(plural), version);
                changes.map(|changes| changes.cloned().collect::<Vec<_>>()).unwrap_or_default()
            };
            nodes = changes("nodes");
            events = changes("events");
            changes("pods")
        });
        let mut world = self.world.lock();
        for change in changes {
            world.check_object(change.kind, &change.object.value);
        }
        for change in nodes {
            world.check_node(&change.object.value);
        }
        for change in events {
            world.check_event(&change.object.value);
        }
        seen.version != version
    }

    fn look_at_requests(&self, seen: &mut Seen) {
        let mark = self.server.log().mark();
        if mark == seen.request && seen.waiting.is_empty() {
            return;
        }
        let oldest = seen.waiting.keys().next().map_or(seen.request, |oldest| oldest - 1);
        let mut records = self.server.log().after(oldest);
        records.retain(|record| record.number > seen.request || seen.waiting.contains_key(&record.number));
        let now = kernel::now();
        let mut world = self.world.lock();
        for record in &records {
            if record.status == 0 {
                seen.waiting.entry(record.number).or_insert(now);
            } else {
                seen.waiting.remove(&record.number);
                told(&mut world, record);
            }
        }
        seen.request = mark;
        seen.waiting.retain(|_, since| *since + PATIENCE > now);
    }
}

/// A request of the node that was answered.
fn told(world: &mut crate::world::World, record: &Record) {
    let who = record.agent.split(' ').next_back().unwrap_or_default().to_owned();
    world.coverage.request(&format!("{who} {} {}", record.what(), record.status));
    let writes_pod = record.resource == "pods" && !matches!(record.verb, "get" | "list" | "watch");
    if !writes_pod {
        return;
    }
    let body = record.body.as_ref().map(short).unwrap_or_default();
    world.tell("kube-apiserver", format!("{who}: {} {} {body}: {}", record.what(), record.name, record.status));
    world.check_request(&who, record);
    if world.statusd_dies && who == "kubelet-statusd" && record.status < 300 {
        world.statusd_dies = false;
        world.tell("fault", "kubelet-statusd dies before it has the answer");
        world.commands.push(crate::world::Command::KillStatusd { down: 100 });
    }
}

/// What a request is about, for people.
fn short(body: &Value) -> String {
    let status = &body["status"];
    let phase = status["phase"].as_str().map(str::to_owned);
    let containers = ["initContainerStatuses", "containerStatuses"].into_iter().flat_map(|key| {
        status[key].as_array().into_iter().flatten().map(|one| {
            let state = one["state"].as_object().into_iter().flatten().find(|(_, state)| !state.is_null());
            let state = state.map_or("", |(name, _)| name.as_str());
            format!("{} {state}", one["name"].as_str().unwrap_or_default())
        })
    });
    phase.into_iter().chain(containers).collect::<Vec<_>>().join(", ")
}
