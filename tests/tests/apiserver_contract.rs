//! What every API server that our tests use must do, be it the stand-in of the test kit or a real control plane: the
//! same suite runs against the programs in `$KUBEBUILDER_ASSETS` when that is set. Where a server's inside has to be
//! seen (its history cut short, its clock moved), the test is about the stand-in alone and says so.

#[path = "apiserver_contract/access.rs"]
mod access;
#[path = "apiserver_contract/deletion.rs"]
mod deletion;
#[path = "apiserver_contract/forms.rs"]
mod forms;
#[path = "apiserver_contract/objects.rs"]
mod objects;
#[path = "apiserver_contract/watches.rs"]
mod watches;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::Cluster;
use bulkhead_testkit::apiserver::authority::node_request;
use bulkhead_testkit::apiserver::{Approval, Config};
use bulkhead_testkit::cluster::client::{Answer, Client, Credential};
use bulkhead_testkit::wait::{LONG, SHORT};
use serde_json::{Value, json};

/// A server with a folder of its own; both go at the end.
struct Place {
    folder: std::path::PathBuf,
    cluster: Option<Cluster>,
}

impl Place {
    fn new(name: &str) -> Result<Self> {
        Self::with(name, Config { scheduler: false, ..Config::default() }, false)
    }

    fn with(name: &str, config: Config, stand_in: bool) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("bulkhead-contract-{name}-{}", std::process::id()));
        let cluster = if stand_in { Cluster::stand_in(&folder, config) } else { Cluster::start(&folder, config) };
        // The folder belongs to the place before anything can go wrong in it.
        let mut place = Self { folder, cluster: None };
        place.cluster = Some(cluster?);
        // No controller runs beside a real API server: what a node's test needs is made here.
        if !place.is_stand_in() {
            for object in [
                json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "default"}}),
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-node-lease"}}),
            ] {
                let created = place.create(&object);
                ensure!(created.is_ok() || format!("{created:?}").contains("409"), "{created:?}");
            }
        }
        Ok(place)
    }
}

impl std::ops::Deref for Place {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster.as_ref().expect("the cluster lives as long as its place")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.cluster = None;
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn pod(name: &str, node: &str) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "registry.test/busybox:1"}], "terminationGracePeriodSeconds": 30},
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

fn map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {"k": value}})
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[track_caller]
fn refused(answer: &Answer, code: u16, reason: &str) -> String {
    let body = answer.json();
    assert_eq!((answer.status, body["reason"].as_str()), (code, Some(reason)), "{body}");
    assert_eq!(
        (body["kind"].as_str(), body["status"].as_str(), body["code"].as_u64()),
        (Some("Status"), Some("Failure"), Some(u64::from(code)))
    );
    body["message"].as_str().unwrap_or_default().to_owned()
}
