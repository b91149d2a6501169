//! What syncd reads of an API server, and what that costs there: pods through interruptions, 400 configMaps with each

//! strategy, tokens.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::{ApiClient, MemorySource};
use bulkhead_config::NodeConfig;
use bulkhead_testkit::Cluster;
use bulkhead_testkit::apiserver::faults::{Action, Rule};
use bulkhead_testkit::apiserver::{Config, Grant};
use bulkhead_types::{NodeName, PodUid};
use kubelet_model::events::{EventSink, NodeEvent, PodEvent};
use kubelet_model::objects::{ObjectError, Objects, TokenWanted};
use kubelet_model::v1::Pod;
use kubelet_syncd::api::live::{ApiObjects, Certifying, initial_node};
use kubelet_syncd::api::node::NodeSeen;
use kubelet_syncd::api::pods::{self, ApiPods, PodSource};
use kubelet_syncd::hub::PodHub;
use kubelet_syncd::sources::file::NoManifests;
use kubelet_syncd::sources::uids::Forgetful;
use kubelet_syncd::sources::{PodOp, PodUpdate, Sources, SourcesConfig};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

const NODE: &str = "test-node";
const PATIENCE: Duration = Duration::from_secs(60);

/// Hears no events.
struct Nobody;

impl EventSink for Nobody {
    fn emit(&self, _: PodEvent) {}

    fn emit_node(&self, _: NodeEvent) {}
}

struct World {
    cluster: Cluster,
    config: Arc<NodeConfig>,
    kubeconfig: String,
    runtime: tokio::runtime::Runtime,
    _folder: tempfile::TempDir,
}

fn world(strategy: &str) -> World {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::stand_in(folder.path(), Config { keep_bodies: false, ..Config::default() }).unwrap();
    cluster.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})).unwrap();
    let kubeconfig = std::fs::read_to_string(cluster.kubeconfig_for_node(NODE).unwrap()).unwrap();
    let mut config = NodeConfig::for_tests(folder.path());
    config.kubelet.config_map_and_secret_change_detection_strategy = strategy.to_owned();
    config.kubelet.kube_api_qps = Some(5000);
    config.kubelet.kube_api_burst = 5000;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    World { cluster, config: Arc::new(config), kubeconfig, runtime, _folder: folder }
}

impl World {
    fn wait<T>(&self, what: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, what).await.expect("nothing came in time") })
    }

    fn client(&self) -> ApiClient {
        let _inside = self.runtime.enter();
        ApiClient::start_with("kubelet-syncd", self.config.clone(), Arc::new(MemorySource::new(&self.kubeconfig)))
    }

    fn objects(&self) -> Arc<ApiObjects> {
        let client = self.client();
        let _inside = self.runtime.enter();
        let initial = initial_node(&self.config, &Default::default(), &Default::default());
        let events = Arc::new(Nobody);
        ApiObjects::start(&client, &self.config, initial, &Certifying { writes: Default::default(), events })
    }

    /// Creates a pod on the node with these configMaps as volumes.
    fn pod(&self, name: &str, config_maps: impl Iterator<Item = String>) -> Arc<Pod> {
        let volume = |map: String| json!({"name": format!("v-{map}"), "configMap": {"name": map}});
        let volumes: Vec<Value> = config_maps.map(volume).collect();
        let pod = self.cluster.create(&json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}], "volumes": volumes}}));
        Arc::new(serde_json::from_value(pod.unwrap()).unwrap())
    }

    /// Requests that were made, by verb, for configMaps; not for those that every pod's token volume names.
    fn count(&self, verb: &str) -> usize {
        let requests = self.cluster.requests().unwrap();
        let counts = |uri: &str| !uri.contains("kube-root-ca.crt");
        requests.iter().filter(|r| r.verb == verb && r.resource == "configmaps" && counts(&r.uri)).count()
    }
}

/// The requests about claims that the node itself made, as verbs, and what it asked of its rights.
fn about_claims(world: &World) -> Vec<String> {
    let requests = world.cluster.requests().unwrap();
    let kinds = ["persistentvolumeclaims", "selfsubjectaccessreviews"];
    let those = requests.iter().filter(|r| r.user == format!("system:node:{NODE}") && kinds.contains(&r.resource));
    those.map(|r| format!("{} {}", r.verb, r.resource)).collect()
}

/// A pod with the claim `data`, which is bound.
fn claiming(world: &World) -> Arc<Pod> {
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "pv"}});
    world.cluster.create(&claim).unwrap();
    let bound = json!({"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
    world.cluster.patch_status("persistentvolumeclaims", "default", "data", &bound).unwrap();
    let pod = world.cluster.create(&json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}}));
    Arc::new(serde_json::from_value(pod.unwrap()).unwrap())
}

#[test]
fn claims_are_watched_where_nodes_may_and_their_pods_synced_when_it_is_the_nodes_turn() {
    let world = world("Watch");
    world.cluster.server().unwrap().grant(Grant::new("system:nodes", &["list", "watch"], &["persistentvolumeclaims"]));
    let pod = claiming(&world);
    let uid = PodUid::parse(pod.metadata.uid.as_deref().unwrap()).unwrap();
    let objects = world.objects();
    let mut changes = objects.changes();
    let entered = world.runtime.enter();
    objects.register_pod(&pod);
    drop(entered);
    let watches = || about_claims(&world).contains(&"watch persistentvolumeclaims".to_owned());
    world.wait(async {
        while !watches() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let turn = json!({"status": {"allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"}}});
    world.cluster.patch_status("persistentvolumeclaims", "default", "data", &turn).unwrap();
    // Of the pod's other objects changes may be told as well.
    world.wait(async { while changes.recv().await.unwrap() != uid {} });

    let entered = world.runtime.enter();
    objects.unregister_pod(&uid);
    drop(entered);
    assert!(!about_claims(&world).contains(&"get persistentvolumeclaims".to_owned()), "{:?}", about_claims(&world));
}

#[test]
fn claims_are_not_watched_where_nodes_may_not() {
    let world = world("Watch");
    let pod = claiming(&world);
    let objects = world.objects();
    let entered = world.runtime.enter();
    objects.register_pod(&pod);
    drop(entered);
    let asked = || about_claims(&world);
    world.wait(async {
        while asked().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // What follows an answer is done before something else that was asked for later.
        while objects.persistent_volume_claim("default", "data").await.is_err() {}
    });
    assert_eq!(asked(), ["create selfsubjectaccessreviews", "get persistentvolumeclaims"]);
}

/// 400 configMaps, 4 pods that name 100 each, and a fifth that names 100 of them again.
fn four_hundred(world: &World) -> (Arc<ApiObjects>, Vec<PodUid>) {
    for index in 0..400 {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{index}"), "namespace": "default"},
            "data": {"k": "1"}, "immutable": index % 2 == 1});
        world.cluster.create(&map).unwrap();
    }
    let objects = world.objects();
    let mut uids = Vec::new();
    for index in 0..5 {
        let first = index % 4 * 100;
        let pod = world.pod(&format!("p{index}"), (first..first + 100).map(|i| format!("m{i}")));
        let _inside = world.runtime.enter();
        objects.register_pod(&pod);
        uids.push(PodUid::parse(pod.metadata.uid.as_deref().unwrap()).unwrap());
    }
    (objects, uids)
}

/// Reads each of the 400 once, all at a time, again where the server could not be asked yet.
fn read_all(world: &World, objects: &Arc<ApiObjects>) {
    world.wait(async {
        let mut tasks = tokio::task::JoinSet::new();
        for index in 0..400 {
            let objects = objects.clone();
            tasks.spawn(async move {
                loop {
                    match objects.config_map("default", &format!("m{index}")).await {
                        Ok(map) => return map.data.as_ref().unwrap()["k"].clone(),
                        Err(ObjectError::Away(_)) => tokio::task::yield_now().await,
                        Err(error) => panic!("m{index}: {error}"),
                    }
                }
            });
        }
        assert!(tasks.join_all().await.iter().all(|value| value == "1"));
    });
}

async fn value(objects: &ApiObjects, name: &str) -> String {
    objects.config_map("default", name).await.unwrap().data.as_ref().unwrap()["k"].clone()
}

#[test]
fn watch_opens_one_for_each_object_on_few_connections() {
    let world = world("Watch");
    let (objects, uids) = four_hundred(&world);
    let mut changes = objects.changes();
    read_all(&world, &objects);
    read_all(&world, &objects);
    let (watches, lists, gets) = (world.count("watch"), world.count("list"), world.count("get"));
    assert_eq!((watches, lists, gets), (400, 0, 0), "one streaming list each, which goes on as the watch");

    let change = json!({"data": {"k": "2"}});
    world.cluster.patch("configmaps", "default", "m2", &change).unwrap();
    // Others are told, too, of the cluster's own configMap, which comes when it comes.
    let mut told = std::collections::BTreeSet::new();
    world.wait(async {
        while value(&objects, "m2").await != "2" || !(told.contains(&uids[0]) && told.contains(&uids[4])) {
            told.insert(changes.recv().await.unwrap());
        }
    });
    assert_eq!(world.count("watch"), 400, "the running watch told of it");

    // Every watch ends at once: those of immutable objects do not come back.
    world.cluster.faults().unwrap().close_watches();
    world.cluster.patch("configmaps", "default", "m4", &change).unwrap();
    world.wait(async {
        while value(&objects, "m4").await != "2" {
            changes.recv().await.unwrap();
        }
    });
    let requests = world.cluster.requests().unwrap();
    let again = |name: &str| {
        let selector = format!("metadata.name%3D{name}&");
        requests.iter().filter(|r| r.verb == "watch" && format!("{}&", r.uri).contains(&selector)).count()
    };
    assert_eq!((again("m4"), again("m5"), again("m7")), (2, 1, 1));
    let protocols: std::collections::BTreeSet<&str> = requests.iter().map(|r| r.protocol.as_str()).collect();
    assert_eq!(protocols.into_iter().collect::<Vec<_>>(), ["HTTP/2.0"]);
}

#[test]
fn cache_asks_once_for_each_object() {
    let world = world("Cache");
    let (objects, _) = four_hundred(&world);
    // A large cluster has its nodes ask seldom.
    let seldom = json!({"metadata": {"annotations": {"node.alpha.kubernetes.io/ttl": "300"}}});
    world.cluster.patch("nodes", "", NODE, &seldom).unwrap();
    let mut node = objects.node_seen();
    let told = |seen: &NodeSeen| String::from_utf8_lossy(&seen.json).contains("ttl\":\"300");
    world.wait(async { node.wait_for(told).await.map(|_| ()) }).unwrap();
    read_all(&world, &objects);
    assert_eq!(world.count("get"), 400);
    read_all(&world, &objects);
    assert_eq!(world.count("get"), 400);
    assert_eq!(world.count("watch"), 0);
}

#[test]
fn get_asks_each_time() {
    let world = world("Get");
    let (objects, _) = four_hundred(&world);
    read_all(&world, &objects);
    read_all(&world, &objects);
    assert_eq!((world.count("get"), world.count("watch")), (800, 0));
    let missing = world.wait(objects.secret("default", "x")).unwrap_err();
    assert!(matches!(missing, ObjectError::Refused(_) | ObjectError::NotFound(_)), "{missing}");
}

#[test]
fn tokens_are_asked_for_once() {
    let world = world("Watch");
    let objects = world.objects();
    let pod = world.pod("p", std::iter::empty());
    let wanted = TokenWanted {
        namespace: "default".into(),
        service_account: "default".into(),
        service_account_uid: None,
        audiences: vec![],
        expiration_seconds: 3607,
        pod_name: "p".into(),
        pod_uid: pod.metadata.uid.clone().unwrap(),
    };
    let first = world.wait(objects.token(&wanted)).unwrap();
    assert_eq!(world.wait(objects.token(&wanted)).unwrap(), first);
    assert!(first.expires > jiff::Timestamp::now());
    let asked = || world.cluster.requests().unwrap().iter().filter(|r| r.subresource == "token").count();
    assert_eq!(asked(), 1);
    let unknown = TokenWanted { service_account: "nobody".into(), ..wanted };
    let error = world.wait(objects.token(&unknown)).unwrap_err();
    assert!(error.to_string().starts_with("failed to fetch token: "), "{error}");
}

fn shown(update: PodUpdate) -> (PodOp, Vec<String>) {
    let mut names: Vec<String> = update.pods.iter().map(|p| p.metadata.name.clone().unwrap()).collect();
    names.sort();
    (update.op, names)
}

#[test]
fn an_outage_takes_no_pod_away() {
    let world = world("Watch");
    let (a, _b) = (world.pod("a", std::iter::empty()), world.pod("b", std::iter::empty()));
    let objects = world.objects();
    let client = world.client();
    let mut node_seen = objects.node_seen();
    world.wait(async { node_seen.wait_for(|seen| seen.node.is_some()).await.map(|_| ()) }).unwrap();
    let node = NodeName::parse(NODE).unwrap();
    let hub = Arc::new(PodHub::default());
    let (seen_sender, mut seen) = watch::channel(ApiPods::default());
    let (sources, mut updates): (Sources, mpsc::Receiver<PodUpdate>) = {
        let _inside = world.runtime.enter();
        let config =
            SourcesConfig { node: node.clone().into(), file: None, http: None, api: true, running: Vec::new() };
        let (sources, updates) = Sources::start(config, NoManifests, Box::new(Forgetful), Arc::new(|_| {}));
        let source = PodSource {
            node: node.clone(),
            sender: sources.api_sender().unwrap(),
            hub: hub.clone(),
            mirror_pods: Arc::default(),
            statics: sources.statics(),
            seen: seen_sender,
            starts: kubelet_syncd::start_latency::StartTimes::register(&prometheus::Registry::new()).unwrap(),
        };
        tokio::spawn(source.run(pods::changes(&client, &node)));
        (sources, updates)
    };
    let mut next = || shown(world.wait(updates.recv()).unwrap());
    assert_eq!(next(), (PodOp::Add, vec!["a".into(), "b".into()]));
    world.wait(async { seen.wait_for(|seen| seen.synced).await.map(|_| ()) }).unwrap();
    let uid = PodUid::parse(a.metadata.uid.as_deref().unwrap()).unwrap();
    assert_eq!(hub.api(&uid).unwrap().uid, uid.as_str());

    // Down and up again: the first news after it is the pod that is new, not that the others had gone.
    world.cluster.stop().unwrap();
    world.wait(async {
        while sources.states()[0].errors.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    world.cluster.resume().unwrap();
    world.pod("c", std::iter::empty());
    assert_eq!(next(), (PodOp::Add, vec!["c".into()]));

    // The server says that the watch's place is too old: everything is listed anew.
    let gone =
        Rule::new(Action::Answer { code: 410, retry_after_seconds: None }).verb("watch").resource("pods").times(1);
    world.cluster.faults().unwrap().add(gone);
    world.cluster.faults().unwrap().close_watches();
    world.pod("d", std::iter::empty());
    assert_eq!(next(), (PodOp::Add, vec!["d".into()]));
    world.cluster.delete("pods", "default", "b", Some(0)).unwrap();
    let (op, names) = next();
    assert_eq!(names, ["b"]);
    assert!(matches!(op, PodOp::Remove | PodOp::Delete));
}
