//! The smallest node agent there can be, to measure others by: it watches its pods, starts each with the calls of
//! [`bulkhead_testkit::floor`], says once that it runs, and at its end stops, deletes and removes it. Nothing is prepared, checked,
//! repeated or kept, so that what it takes is the runtime's and the API server's time alone.
//!
//! Its one argument is a file that [`bulkhead_testkit::null_agent`] writes. It ends when the server ends the watch.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::apiserver::authority::Pair;
use bulkhead_testkit::cluster::client::{Client, Credential};
use bulkhead_testkit::cri::Cri;
use bulkhead_testkit::floor::{Calls, FloorPod, Named};
use bulkhead_testkit::image;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("null_agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let file = std::env::args().nth(1).context("the file with what to do is missing")?;
    let told: Value = serde_json::from_slice(&std::fs::read(&file).context(file)?)?;
    let text = |name: &str| told[name].as_str().map(str::to_owned).with_context(|| format!("{name} is missing"));
    let cri = Cri::new(&PathBuf::from(text("runtime")?))?;
    let calls = Calls::new(cri.channel(), text("cgroup")?, PathBuf::from(text("logs")?));
    let credential = Credential::Certificate(Pair { certificate: text("certificate")?, key: text("key")? });
    let (server, ca, node) = (text("server")?.parse()?, text("ca")?, text("node")?);
    let in_flight = told["in_flight"].as_u64().and_then(|number| usize::try_from(number).ok()).unwrap_or(1);
    cri.block_on(async {
        let server = Client::new(&Handle::current(), server, &ca, &credential)?;
        watch(&node, Arc::new(Agent { server, calls, turns: Semaphore::new(in_flight) })).await
    })
}

struct Agent {
    server: Client,
    calls: Calls,
    /// First come, first served: starts and ends.
    turns: Semaphore,
}

/// A task for each pod; that it is to end is told once.
async fn watch(node: &str, agent: Arc<Agent>) -> Result<()> {
    let mut events = agent.server.open_watch(&format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{node}")).await?;
    eprintln!("watching pods");
    let mut pods: HashMap<String, Option<oneshot::Sender<()>>> = HashMap::new();
    while let Some(event) = events.read().await? {
        ensure!(event.kind != "ERROR", "the watch broke: {}", event.object);
        let Some(pod) = PodName::of(&event.object) else { continue };
        if event.kind == "DELETED" {
            pods.remove(&pod.uid);
        } else if !event.object["metadata"]["deletionTimestamp"].is_null() {
            if let Some(end) = pods.get_mut(&pod.uid).and_then(Option::take) {
                let _ = end.send(());
            }
        } else if !pods.contains_key(&pod.uid) {
            let (end, ends) = oneshot::channel();
            pods.insert(pod.uid.clone(), Some(end));
            let agent = agent.clone();
            tokio::spawn(async move {
                if let Err(error) = agent.live(&pod, ends).await {
                    eprintln!("null_agent: {}: {error:#}", pod.name);
                }
            });
        }
    }
    Ok(())
}

struct PodName {
    namespace: String,
    name: String,
    uid: String,
}

impl PodName {
    fn of(object: &Value) -> Option<Self> {
        let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned);
        Some(Self { namespace: text("namespace")?, name: text("name")?, uid: text("uid")? })
    }

    fn path(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/{}", self.namespace, self.name)
    }
}

impl Agent {
    async fn live(&self, pod: &PodName, ends: oneshot::Receiver<()>) -> Result<()> {
        let turn = self.turns.acquire().await?;
        let made = self.calls.start(Named { name: &pod.name, uid: &pod.uid }).await?;
        let told = self.say_running(pod, &made).await;
        drop(turn);
        told?;
        // Whoever holds the other end has seen the object go: then there is nothing to be deleted.
        let deleted = ends.await.is_ok();
        let _turn = self.turns.acquire().await?;
        self.calls.stop(&made).await?;
        if deleted {
            self.delete(pod).await?;
        }
        self.calls.remove(&made).await
    }

    async fn say_running(&self, pod: &PodName, made: &FloorPod) -> Result<()> {
        let now = Timestamp::now().round(jiff::Unit::Second)?.to_string();
        let conditions = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
        let conditions = conditions
            .map(|kind| json!({"type": kind, "status": "True", "lastProbeTime": null, "lastTransitionTime": now}));
        let container = json!({
            "name": "main", "ready": true, "started": true, "restartCount": 0, "image": image::BUSYBOX, "imageID": "",
            "containerID": format!("containerd://{}", made.container), "state": {"running": {"startedAt": now}},
        });
        let status = json!({"phase": "Running", "startTime": now, "conditions": conditions,
                            "containerStatuses": [container]});
        let patch = json!({"metadata": {"uid": pod.uid}, "status": status});
        self.ask("PATCH", &format!("{}/status", pod.path()), "application/strategic-merge-patch+json", &patch).await
    }

    async fn delete(&self, pod: &PodName) -> Result<()> {
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0,
                             "preconditions": {"uid": pod.uid}});
        self.ask("DELETE", &pod.path(), "application/json", &options).await
    }

    async fn ask(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Result<()> {
        let headers = [("content-type", content_type), ("accept", "application/json")];
        let answer = self.server.exchange(method, path, &headers, body.to_string().as_bytes()).await?;
        answer.success().map(drop).with_context(|| format!("{method} {path}"))
    }
}
