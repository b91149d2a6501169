//! The stand-in's misbehaviour and its controllers, seen through a client that is not the kit's own.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::wait::{SHORT, eventually};
use bulkhead_apiserver::faults::{Action, Rule};

const AGENT: &str = "kubelet/v1.36.2";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Long enough for an answer that comes at all.
const A_MOMENT: Duration = Duration::from_millis(300);

struct Place {
    // Order of fields is order of drop: the client's connection, the server, its files.
    client: Client,
    cluster: Cluster,
    _folder: tempfile::TempDir,
}

fn place(config: Config) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::stand_in(folder.path(), config).unwrap();
    let pair = cluster.authority().client("tester", MASTERS, YEAR).unwrap();
    let client = cluster.client_as(&Credential::Certificate(pair)).unwrap().with_agent(AGENT).unwrap();
    Place { client, cluster, _folder: folder }
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {"k": "1"}})
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [{"name": "main", "image": "registry.test/x:1"}]}})
}

fn ready_node(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

/// The request on a thread of its own: whether it was answered within a moment, and its answer in the end.
fn answered_at_once(client: &Client, then: impl FnOnce()) -> (bool, Result<client::Answer>) {
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel();
        scope.spawn(move || drop(sender.send(client.get(MAPS))));
        match receiver.recv_timeout(A_MOMENT) {
            Ok(answer) => (true, answer),
            Err(_) => {
                then();
                (false, receiver.recv().unwrap())
            }
        }
    })
}

#[test]
fn answers_that_fail_as_often_as_asked_for() {
    let place = place(Config::default());
    let faults = place.cluster.faults().unwrap();
    faults.add(
        Rule::new(Action::Answer { code: 429, retry_after_seconds: Some(7) })
            .verb("list")
            .resource("configmaps")
            .times(1),
    );
    let refused = place.client.get(MAPS).unwrap();
    assert_eq!((refused.status, refused.headers["retry-after"].to_str().unwrap()), (429, "7"));
    assert_eq!(refused.json()["reason"], "TooManyRequests");
    assert_eq!(place.client.get(MAPS).unwrap().status, 200, "once only");
    let id = faults.add(Rule::new(Action::Conflict).verb("update"));
    place.cluster.create(&map("a")).unwrap();
    let path = format!("{MAPS}/a");
    assert_eq!(place.client.send_json("PUT", &path, &map("a")).unwrap().json()["reason"], "Conflict");
    faults.remove(id);
    assert_eq!(place.client.send_json("PUT", &path, &map("a")).unwrap().status, 200);
    let statuses: Vec<_> = place.cluster.requests().unwrap().iter().map(|one| (one.what(), one.status)).collect();
    let expected = [("list", 429), ("list", 200), ("update", 409), ("update", 200)]
        .map(|(verb, code)| (format!("{verb} configmaps"), code));
    assert_eq!(statuses, expected, "the kit's own requests are not among them");
}

#[test]
fn an_answer_that_hangs_comes_when_the_rule_is_gone() {
    let place = place(Config::default());
    let faults = place.cluster.faults().unwrap();
    faults.add(Rule::new(Action::Hang).agent("kubelet"));
    let (at_once, answer) = answered_at_once(&place.client, || faults.clear());
    assert!(!at_once);
    assert_eq!(answer.unwrap().status, 200);
    faults.blackhole(true);
    assert!(place.cluster.list("configmaps", None).is_ok(), "the kit itself still gets answers");
    let (at_once, answer) = answered_at_once(&place.client, || faults.blackhole(false));
    assert!(!at_once);
    assert_eq!(answer.unwrap().status, 200);
}

#[test]
fn connections_that_break_before_or_after_the_work() {
    let place = place(Config::default());
    let faults = place.cluster.faults().unwrap();
    faults.add(Rule::new(Action::DropConnection).verb("create").times(1));
    assert!(place.client.send_json("POST", MAPS, &map("before")).is_err());
    assert!(place.cluster.find("configmaps", "default", "before").unwrap().is_none());
    faults.add(Rule::new(Action::LoseAnswer).verb("create").times(1));
    assert!(place.client.send_json("POST", MAPS, &map("after")).is_err());
    assert!(place.cluster.find("configmaps", "default", "after").unwrap().is_some());
    assert_eq!(place.client.send_json("POST", MAPS, &map("after")).unwrap().json()["reason"], "AlreadyExists");
}

#[test]
fn watches_fall_silent_and_end() {
    let place = place(Config::default());
    let faults = place.cluster.faults().unwrap();
    let mut events = place.client.watch(&format!("{MAPS}?fieldSelector=metadata.name%3Da")).unwrap();
    faults.pause_watches(true);
    place.cluster.create(&map("a")).unwrap();
    assert!(events.next(A_MOMENT).is_err(), "nothing is delivered");
    faults.pause_watches(false);
    assert_eq!(events.expect(SHORT).unwrap().kind, "ADDED", "what happened meanwhile comes then");
    faults.close_watches();
    assert_eq!(events.next(SHORT).unwrap(), None);
    assert!(place.client.watch(MAPS).is_ok(), "and may be opened again");
}

#[test]
fn a_server_that_was_away_keeps_its_port_and_its_objects() {
    let place = place(Config::default());
    place.cluster.create(&map("a")).unwrap();
    let before = place.cluster.get("configmaps", "default", "a").unwrap();
    let mut events = place.client.watch(&format!("{MAPS}?fieldSelector=metadata.name%3Da")).unwrap();
    assert_eq!(events.expect(SHORT).unwrap().kind, "ADDED");
    let address = place.cluster.address();
    place.cluster.stop().unwrap();
    assert!(!matches!(events.next(SHORT), Ok(Some(_))), "watches break");
    assert!(place.client.get(MAPS).is_err());
    place.cluster.resume().unwrap();
    assert_eq!(place.cluster.address(), address);
    assert_eq!(place.cluster.get("configmaps", "default", "a").unwrap(), before);
    assert_eq!(place.client.get(MAPS).unwrap().status, 200);
}

#[test]
fn pods_are_bound_to_nodes_that_are_ready() {
    let place = place(Config { pod_cidrs: true, ..Config::default() });
    let cluster = &place.cluster;
    cluster.create(&pod("early")).unwrap();
    cluster.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})).unwrap();
    let taints = |node: &Value| node["spec"]["taints"].as_array().map_or(0, Vec::len);
    assert_eq!(taints(&cluster.get("nodes", "", "n").unwrap()), 1, "not ready yet");
    assert_eq!(cluster.get("pods", "default", "early").unwrap()["spec"].get("nodeName"), None);
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    cluster.patch_status("nodes", "", "n", &status).unwrap();
    let bound = cluster.wait_for("pods", "default", "early", "bound", |pod| pod["spec"]["nodeName"] == "n").unwrap();
    assert_eq!(bound["status"]["conditions"][0]["type"], "PodScheduled");
    assert_eq!(bound["metadata"]["generation"], 1);
    let node = cluster.wait_for("nodes", "", "n", "without taints", |node| taints(node) == 0).unwrap();
    assert_eq!(node["spec"]["podCIDRs"], json!(["10.244.0.0/24"]));
    let phases: Vec<_> =
        cluster.statuses("pods", "default", "early").unwrap().iter().map(|one| one["phase"].clone()).collect();
    assert_eq!(phases, ["Pending", "Pending"], "without and with the condition");
}

#[test]
fn a_namespace_comes_with_an_account_and_goes_with_all_that_is_in_it() {
    let place = place(Config::default());
    let cluster = &place.cluster;
    cluster.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})).unwrap();
    cluster.wait_for("serviceaccounts", "team", "default", "there", |_| true).unwrap();
    let root = cluster.wait_for("configmaps", "team", "kube-root-ca.crt", "there", |_| true).unwrap();
    assert!(root["data"]["ca.crt"].as_str().is_some_and(|pem| pem.contains("BEGIN CERTIFICATE")));
    cluster.create(&ready_node("n")).unwrap();
    let mut running = pod("running");
    running["metadata"]["namespace"] = json!("team");
    running["spec"]["nodeName"] = json!("n");
    cluster.create(&running).unwrap();
    cluster.delete("namespaces", "", "team", None).unwrap();
    cluster
        .wait_for("pods", "team", "running", "to end", |pod| pod["metadata"]["deletionTimestamp"].is_string())
        .unwrap();
    let refused =
        cluster.client().send_json("POST", "/api/v1/namespaces/team/configmaps", &json!({"metadata": {"name": "x"}}));
    assert_eq!(refused.unwrap().json()["details"]["causes"][0]["reason"], "NamespaceTerminating");
    cluster.delete("pods", "team", "running", Some(0)).unwrap();
    cluster.wait_gone("namespaces", "", "team").unwrap();
}

#[test]
fn a_clock_that_runs_ahead_ends_tokens_and_certificates() {
    let place = place(Config::default());
    let cluster = &place.cluster;
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}});
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let issued = cluster.client().send_json("POST", path, &request).unwrap().success().unwrap();
    let token = issued["status"]["token"].as_str().unwrap().to_owned();
    let workload = cluster.client_as(&Credential::Token(token)).unwrap();
    assert_eq!(workload.get("/apis").unwrap().status, 200);
    cluster.server().unwrap().clock().set_offset_seconds(700);
    assert_eq!(workload.get("/apis").unwrap().status, 401);
    assert_eq!(cluster.client().get("/apis").unwrap().status, 200);
    cluster.server().unwrap().clock().set_offset_seconds(2 * 365 * 24 * 3600);
    assert_eq!(cluster.client().get("/apis").unwrap().status, 401, "a year's certificate");
}

#[test]
fn many_pods_and_their_watchers() {
    let place = place(Config { scheduler: false, ..Config::default() });
    let cluster = &place.cluster;
    let mut events = place.client.watch("/api/v1/pods?fieldSelector=spec.nodeName%3Dn").unwrap();
    let mut watches = Vec::new();
    for index in 0..100 {
        let mut pod = pod(&format!("p{index}"));
        pod["spec"]["nodeName"] = json!("n");
        cluster.create(&pod).unwrap();
        watches.push(
            place.client.watch(&format!("{MAPS}?fieldSelector=metadata.name%3Dm{index}&resourceVersion=1")).unwrap(),
        );
    }
    for index in 0..100 {
        assert_eq!(events.expect(SHORT).unwrap().name(), format!("p{index}"), "each, in order");
    }
    cluster.create(&map("m42")).unwrap();
    assert_eq!(watches[42].expect(SHORT).unwrap().name(), "m42");
}

#[test]
fn kubectl_is_understood() {
    if kubectl().is_none() {
        return crate::skip::skip_this_test(crate::skip::Lack::Program("kubectl")).unwrap();
    }
    let place = place(Config::default());
    let cluster = &place.cluster;
    cluster.create(&ready_node("n")).unwrap();
    cluster.create(&pod("a")).unwrap();
    let bound = cluster.wait_for("pods", "default", "a", "bound", |pod| pod["spec"]["nodeName"] == "n").unwrap();
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "a.1", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "a", "uid": bound["metadata"]["uid"]}, "reason": "Started", "message": "Container started",
        "type": "Normal", "count": 1, "lastTimestamp": "2026-11-21T01:00:00Z", "firstTimestamp": "2026-11-21T01:00:00Z"});
    cluster.create(&event).unwrap();
    let run = |arguments: &[&str]| cluster.kubectl(arguments).unwrap();
    let both = run(&["get", "nodes,pods", "-A", "-o", "wide"]);
    assert!(both.contains("node/n") && both.contains("CONTAINER-RUNTIME") && both.contains("pod/a"), "{both}");
    assert!(run(&["get", "pod", "a", "-o", "yaml"]).contains("dnsPolicy: ClusterFirst"));
    assert!(run(&["describe", "pod", "a"]).contains("Container started"));
    let node = run(&["describe", "node", "n"]);
    assert!(node.contains("Non-terminated Pods") && node.contains(" a "), "{node}");
    assert!(run(&["get", "events"]).contains("Started"));
    assert!(run(&["label", "pod", "a", "x=y"]).contains("labeled"));
    assert!(run(&["annotate", "node", "n", "x=y"]).contains("annotated"));
    let manifest = cluster.folder().join("map.json");
    std::fs::write(&manifest, map("c").to_string()).unwrap();
    assert!(run(&["create", "-f", &manifest.display().to_string()]).contains("configmap/c created"));
    let mut applied = map("applied");
    for (value, said) in [("1", "created"), ("2", "configured"), ("2", "unchanged")] {
        applied["data"]["k"] = json!(value);
        std::fs::write(&manifest, applied.to_string()).unwrap();
        let answer = run(&["apply", "-f", &manifest.display().to_string()]);
        assert!(answer.contains(said), "{said}: {answer}");
    }
    let path = manifest.display().to_string();
    assert!(run(&["apply", "--server-side", "--force-conflicts", "-f", &path]).contains("serverside-applied"));
    assert!(run(&["patch", "configmap", "c", "-p", "{\"data\":{\"k\":\"w\"}}"]).contains("patched"));
    assert!(run(&["delete", "configmap", "c"]).contains("deleted"));
    assert!(run(&["delete", "pod", "a", "--now", "--wait=false"]).contains("deleted"));
    assert!(run(&["api-resources"]).contains("certificatesigningrequests"));
    assert!(run(&["version"]).contains("1.36"));
    eventually("the pod is marked", SHORT, || match cluster.find("pods", "default", "a")? {
        Some(pod) if pod["metadata"]["deletionTimestamp"].is_string() => Ok(()),
        other => bail!("{other:?}"),
    })
    .unwrap();
}
