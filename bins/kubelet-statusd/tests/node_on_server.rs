//! The node's tasks over TLS against the stand-in API server, which checks what a real one checks (node authorizer,
//! NodeRestriction, strategic merges, resource versions).

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::{ApiClient, CredentialFile, MemorySource};
use bulkhead_config::NodeConfig;
use bulkhead_daemon::progress::Progress;
use bulkhead_ipc::syncd::{NodeImage, NodeState};
use bulkhead_testkit::apiserver::resources::{self, Resource};
use bulkhead_testkit::apiserver::{ApiServer, Config};
use bulkhead_types::GoDuration;
use kubelet_statusd::events::{EventQueue, OwnEvents};
use kubelet_statusd::node::Start;
use kubelet_statusd::node::facts::Facts;
use kubelet_statusd::node::metrics::Metrics;
use kubelet_statusd::node::ready::SilentPeers;
use kubelet_statusd::node::server::Server;
use kubelet_statusd::node::syncd_view::View;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(30);

struct Cluster {
    server: ApiServer,
    view: watch::Sender<View>,
    _events: OwnEvents,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Cluster {
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
        runtime_status_age_seconds: Some(1.0),
        relist_age_seconds: Some(1.0),
        node_allocatable_enforced: true,
        capacity: amounts.clone().into(),
        allocatable: amounts.into(),
        images: vec![NodeImage { names: vec![], size_bytes: 7 }],
        volumes_synced: true,
        ..NodeState::default()
    }
}

fn start() -> Cluster {
    let server = ApiServer::start(Config::default(), &tokio::runtime::Handle::current()).unwrap();
    let mut config = NodeConfig::for_tests(Path::new("/nowhere"));
    config.flags.cloud_provider = "external".into();
    config.kubelet.node_status_update_frequency = GoDuration::from_secs(1);
    config.kubelet.node_lease_duration_seconds = 4;
    let config = Arc::new(config);
    let pair = server.authority().client("system:node:test-node", "system:nodes", Duration::from_secs(3600)).unwrap();
    let kubeconfig = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: \"https://{}\", certificate-authority: /ca}}}}]\n\
         users: [{{name: u, user: {{client-certificate: /cert, client-key: /key}}}}]\n",
        server.address()
    );
    let source = MemorySource::new(&kubeconfig);
    source.put_all([
        (CredentialFile::ClusterCa, server.authority().pem()),
        (CredentialFile::ClientCertificate, pair.certificate),
        (CredentialFile::ClientKey, pair.key),
    ]);
    let api = ApiClient::start_with("kubelet-statusd", config.clone(), Arc::new(source));
    let (events, own) = EventQueue::new();
    let (view, receiver) = watch::channel(View::of(well(), Instant::now()));
    let facts = Facts { boot_id: "boot".into(), machine_id: "m".into(), architecture: "amd64", ..Facts::default() };
    let start = Start {
        server: Server::new(&config, &api),
        config,
        facts,
        metrics: Metrics::register(&prometheus::Registry::new()).unwrap(),
        events,
        view: receiver,
        pressure: watch::channel(None).1,
        silent_peers: watch::channel(SilentPeers::default()).1,
        addresses: watch::Sender::new(Vec::new()),
        progress: Progress::default(),
    };
    let task = tokio::spawn(async move {
        api.ready().await;
        kubelet_statusd::node::keep(start, jiff::Timestamp::now).await;
    });
    Cluster { server, view, _events: own, task }
}

fn resource(group: &str, plural: &str) -> &'static Resource {
    resources::find(group, "v1", plural).unwrap()
}

impl Cluster {
    fn says(&self, state: NodeState) {
        self.view.send_replace(View::of(state, Instant::now()));
    }

    /// Waits until an object is as wanted.
    async fn until(&self, resource: &'static Resource, namespace: &str, good: impl Fn(&Value) -> bool) -> Value {
        let mut changed = self.server.with_store(|store| store.subscribe(resource));
        let look = async {
            loop {
                let object = self.server.with_store(|store| store.get(resource, namespace, "test-node"));
                if let Some(object) = object.filter(|object| good(&object.value)) {
                    return object.value.clone();
                }
                changed.changed().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, look).await.unwrap()
    }

    async fn until_ready(&self, status: &str) -> Value {
        self.until(resource("", "nodes"), "", |node| {
            let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.iter().any(|one| one["type"] == "Ready" && one["status"] == status)
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_joins_and_follows_its_state() {
    let cluster = start();
    let node = cluster.until_ready("True").await;
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "test-node");
    assert_eq!(node["status"]["allocatable"]["memory"], "4Gi");
    assert_eq!(node["status"]["addresses"], json!([{"type": "Hostname", "address": "test-node"}]));
    let uid = node["metadata"]["uid"].clone();
    let lease = cluster.until(resource("coordination.k8s.io", "leases"), "kube-node-lease", |_| true).await;
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], uid);
    let csi_node = cluster.until(resource("storage.k8s.io", "csinodes"), "", |_| true).await;
    assert_eq!(csi_node["metadata"]["ownerReferences"][0]["uid"], uid);

    cluster.says(NodeState { network_ready: false, network_reason: "N".into(), ..well() });
    cluster.until_ready("False").await;
    cluster.says(well());
    cluster.until_ready("True").await;
    // The lease goes on.
    let first = lease["spec"]["renewTime"].clone();
    cluster
        .until(resource("coordination.k8s.io", "leases"), "kube-node-lease", |lease| {
            lease["spec"]["renewTime"] != first
        })
        .await;
    // Nothing of all that was refused, and what was read is little.
    let refused: Vec<String> = cluster
        .server
        .log()
        .after(0)
        .into_iter()
        .filter(|record| record.status >= 400 && record.verb != "get")
        .map(|record| format!("{} {}", record.what(), record.status))
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_server_that_was_away_sees_what_is_true_now() {
    let cluster = start();
    cluster.until_ready("True").await;
    cluster.server.stop();
    cluster.says(NodeState { volumes_in_use: vec!["kubernetes.io/csi/d^v".into()], ..well() });
    cluster.server.resume().unwrap();
    let node = cluster
        .until(resource("", "nodes"), "", |node| node["status"]["volumesInUse"] == json!(["kubernetes.io/csi/d^v"]))
        .await;
    assert_eq!(node["status"]["images"].as_array().map(Vec::len), Some(1));
}

/// `kubectl delete node`, and the garbage collector takes the lease; then somebody makes the Node again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_node_gets_no_lease() {
    let cluster = start();
    let mut node = cluster.until_ready("True").await;
    let (nodes, leases) = (resource("", "nodes"), resource("coordination.k8s.io", "leases"));
    cluster.until(leases, "kube-node-lease", |_| true).await;
    let creations = || {
        let log = cluster.server.log().after(0);
        log.into_iter().filter(|record| record.what() == "create leases").count()
    };
    let before = creations();
    cluster.server.with_store(|store| {
        store.remove(nodes, "", "test-node");
        store.remove(leases, "kube-node-lease", "test-node");
    });
    // The lease is due each second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(creations(), before);
    node["metadata"]["uid"] = json!("another");
    cluster.server.with_store(|store| store.put(nodes, node));
    let owned = |lease: &Value| lease["metadata"]["ownerReferences"][0]["uid"] == "another";
    cluster.until(leases, "kube-node-lease", owned).await;
}
