//! What every API server that our tests use must do, be it the stand-in of the test kit or a real control plane: the
//! same suite runs against the programs in `$KUBEBUILDER_ASSETS` when that is set. Where a server's inside has to be
//! seen (its history cut short, its clock moved), the test is about the stand-in alone and says so.

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

// === Objects ===

#[test]
fn a_pod_is_stored_as_the_real_server_completes_it() -> Result<()> {
    let place = Place::new("defaults")?;
    let mut wanted = pod("a", "node-a");
    wanted["spec"]["containers"][0]["readinessProbe"] = json!({"httpGet": {"port": 80}});
    wanted["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "0.5"}});
    wanted["spec"]["volumes"] = json!([{"name": "scratch"}]);
    let pod = place.create(&wanted)?;
    let spec = &pod["spec"];
    assert_eq!(pod["metadata"]["generation"], 1);
    assert!(pod["metadata"]["uid"].is_string() && pod["metadata"]["creationTimestamp"].is_string());
    assert_eq!(pod["status"]["phase"], "Pending");
    assert_eq!(pod["status"]["qosClass"], "Burstable");
    for (field, value) in [
        ("restartPolicy", json!("Always")),
        ("dnsPolicy", json!("ClusterFirst")),
        ("schedulerName", json!("default-scheduler")),
        ("enableServiceLinks", json!(true)),
        ("serviceAccountName", json!("default")),
        ("serviceAccount", json!("default")),
        ("securityContext", json!({})),
        ("priority", json!(0)),
        ("preemptionPolicy", json!("PreemptLowerPriority")),
    ] {
        assert_eq!(spec[field], value, "{field}");
    }
    let main = &spec["containers"][0];
    assert_eq!(main["imagePullPolicy"], "IfNotPresent");
    assert_eq!(main["terminationMessagePath"], "/dev/termination-log");
    assert_eq!(main["terminationMessagePolicy"], "File");
    assert_eq!(main["resources"]["requests"]["cpu"], "500m");
    assert_eq!(main["readinessProbe"]["httpGet"], json!({"path": "/", "port": 80, "scheme": "HTTP"}));
    assert_eq!(main["readinessProbe"]["periodSeconds"], 10);
    assert_eq!(spec["volumes"][0], json!({"name": "scratch", "emptyDir": {}}));
    let token = &spec["volumes"][1];
    assert!(token["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access-")), "{token}");
    assert_eq!(token["projected"]["defaultMode"], 420);
    assert_eq!(main["volumeMounts"][0]["name"], token["name"]);
    let tolerated: Vec<_> =
        spec["tolerations"].as_array().into_iter().flatten().map(|one| one["key"].clone()).collect();
    assert_eq!(tolerated, ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]);
    Ok(())
}

#[test]
fn refusals_are_worded_and_typed() -> Result<()> {
    let place = Place::new("refusals")?;
    let client = place.client();
    let message = refused(&client.get(&format!("{PODS}/none"))?, 404, "NotFound");
    assert_eq!(message, "pods \"none\" not found");
    let body = client.get(&format!("{PODS}/none"))?.json();
    assert_eq!(body["details"], json!({"name": "none", "kind": "pods"}));
    place.create(&map("a", "1"))?;
    let message = refused(&client.send_json("POST", MAPS, &map("a", "1"))?, 409, "AlreadyExists");
    assert_eq!(message, "configmaps \"a\" already exists");
    let mut elsewhere = map("b", "1");
    elsewhere["metadata"]["namespace"] = json!("nowhere");
    let message =
        refused(&client.send_json("POST", "/api/v1/namespaces/nowhere/configmaps", &elsewhere)?, 404, "NotFound");
    assert_eq!(message, "namespaces \"nowhere\" not found");
    refused(&client.send_json("POST", MAPS, &elsewhere)?, 400, "BadRequest");
    refused(&client.send_json("POST", MAPS, &map("Not_A_Name", "1"))?, 422, "Invalid");
    refused(
        &client.send_json("POST", MAPS, &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}))?,
        422,
        "Invalid",
    );
    refused(
        &client.send_json(
            "POST",
            PODS,
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {}}),
        )?,
        422,
        "Invalid",
    );
    refused(&client.get("/api/v1/namespaces/default/nothings")?, 404, "NotFound");
    refused(&client.get(&format!("{PODS}?fieldSelector=spec.unknown%3D1"))?, 400, "BadRequest");
    let generated =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "g-", "namespace": "default"}});
    let name = place.create(&generated)?["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    assert!(name.starts_with("g-") && name.len() == 7, "{name}");
    Ok(())
}

#[test]
fn writes_are_guarded_by_version_and_uid() -> Result<()> {
    let place = Place::new("locks")?;
    let client = place.client();
    let first = place.create(&map("a", "1"))?;
    let path = format!("{MAPS}/a");
    let mut second = first.clone();
    second["data"]["k"] = json!("2");
    let updated = client.send_json("PUT", &path, &second)?.success()?;
    assert!(version(&updated) > version(&first));
    let message = refused(&client.send_json("PUT", &path, &second)?, 409, "Conflict");
    assert_eq!(
        message,
        "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the \
         latest version and try again"
    );
    let stale = json!({"metadata": {"resourceVersion": first["metadata"]["resourceVersion"]}, "data": {"k": "3"}});
    refused(&client.patch(&path, "merge-patch", &stale)?, 409, "Conflict");
    let same = client.patch(&path, "merge-patch", &json!({"data": {"k": "2"}}))?.success()?;
    assert_eq!(version(&same), version(&updated), "a write that changes nothing makes no new version");
    // A PUT of another uid is a failed precondition, a PATCH to another uid an invalid change.
    let mut other = same.clone();
    other["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    let message = refused(&client.send_json("PUT", &path, &other)?, 409, "Conflict");
    assert!(message.contains("Precondition failed: UID in precondition"), "{message}");
    let patch = json!({"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}});
    let message = refused(&client.patch(&path, "strategic-merge-patch", &patch)?, 422, "Invalid");
    assert!(message.contains("metadata.uid: Invalid value") && message.contains("field is immutable"), "{message}");
    // A lease cannot be overwritten blindly.
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "x"},
        "spec": {"holderIdentity": "x", "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}});
    client.send_json("POST", leases, &lease)?.success()?;
    refused(&client.send_json("PUT", &format!("{leases}/x"), &lease)?, 422, "Invalid");
    Ok(())
}

#[test]
fn every_patch_type() -> Result<()> {
    let place = Place::new("patches")?;
    let client = place.client();
    place.create(&pod("a", "node-a"))?;
    let path = format!("{PODS}/a");
    let status = format!("{path}/status");
    let first = json!({"status": {
        "$setElementOrder/conditions": [{"type": "Initialized"}, {"type": "Ready"}],
        "conditions": [
            {"type": "Initialized", "status": "True", "lastProbeTime": null, "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "m"},
        ],
        "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "hostIP": "10.1.0.1", "hostIPs": [{"ip": "10.1.0.1"}],
        "containerStatuses": [{"name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0}],
    }});
    client.patch(&status, "strategic-merge-patch", &first)?.success()?;
    let second = json!({"status": {
        "phase": "Running",
        "$setElementOrder/conditions": [{"type": "Initialized"}, {"type": "Ready"}],
        "conditions": [{"type": "Ready", "status": "True", "reason": null, "message": null}],
    }});
    let pod = client.patch(&status, "strategic-merge-patch", &second)?.success()?;
    let conditions = pod["status"]["conditions"].as_array().context("no conditions")?;
    let types: Vec<_> = conditions.iter().map(|one| one["type"].clone()).collect();
    assert_eq!(types, ["Initialized", "Ready"]);
    assert_eq!(conditions[1]["status"], "True");
    assert!(conditions[1].get("reason").is_none(), "{conditions:?}");
    assert!(conditions[1].get("lastProbeTime").is_some(), "always written: {conditions:?}");
    assert_eq!(pod["status"]["containerStatuses"][0]["lastState"], json!({}));
    assert_eq!(pod["status"]["qosClass"], "BestEffort");

    let patch = json!([{"op": "add", "path": "/metadata/labels/b", "value": "2"}, {"op": "remove", "path": "/metadata/labels/app"}]);
    let pod = client.patch(&path, "json-patch", &patch)?.success()?;
    assert_eq!(pod["metadata"]["labels"], json!({"b": "2"}));
    let failing = json!([{"op": "test", "path": "/metadata/labels/b", "value": "3"}]);
    refused(&client.patch(&path, "json-patch", &failing)?, 422, "Invalid");
    let pod = client.patch(&path, "merge-patch", &json!({"metadata": {"labels": {"b": null, "c": "3"}}}))?.success()?;
    assert_eq!(pod["metadata"]["labels"], json!({"c": "3"}));
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"k": "v"}});
    let made = client.patch(&format!("{MAPS}/applied?fieldManager=me"), "apply-patch", &applied)?;
    assert_eq!((made.status, made.json()["data"]["k"].clone()), (201, json!("v")));
    assert_eq!(client.patch(&format!("{MAPS}/applied?fieldManager=me"), "apply-patch", &applied)?.status, 200);
    refused(&client.patch(&path, "unknown-patch", &json!({}))?, 415, "UnsupportedMediaType");
    refused(&client.patch(&format!("{PODS}/none"), "merge-patch", &json!({}))?, 404, "NotFound");
    Ok(())
}

#[test]
fn a_status_and_a_specification_are_written_apart() -> Result<()> {
    let place = Place::new("status")?;
    let client = place.client();
    place.create(&pod("a", "node-a"))?;
    let path = format!("{PODS}/a");
    let patch = json!({"spec": {"nodeName": "other"}, "status": {"phase": "Running", "observedGeneration": 1}});
    let pod = client.patch(&format!("{path}/status"), "merge-patch", &patch)?.success()?;
    assert_eq!((pod["spec"]["nodeName"].clone(), pod["status"]["phase"].clone()), (json!("node-a"), json!("Running")));
    assert_eq!(pod["metadata"]["generation"], 1, "a status is no new generation");
    let patch = json!({"status": {"phase": "Failed"}, "spec": {"containers": [{"name": "main", "image": "registry.test/busybox:2"}]}});
    let pod = client.patch(&path, "strategic-merge-patch", &patch)?.success()?;
    assert_eq!(pod["status"]["phase"], "Running");
    assert_eq!(pod["spec"]["containers"][0]["image"], "registry.test/busybox:2");
    assert_eq!(pod["metadata"]["generation"], 2);
    let message =
        refused(&client.patch(&path, "merge-patch", &json!({"spec": {"hostNetwork": true}}))?, 422, "Invalid");
    assert!(message.contains("pod updates may not change fields other than"), "{message}");
    let cleared = client
        .patch(&format!("{path}/status"), "merge-patch", &json!({"status": {"observedGeneration": null}}))?
        .success()?;
    assert_eq!(cleared["status"]["observedGeneration"], 1, "it cannot be cleared");
    let wrong = json!({"status": {"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.1"}]}});
    refused(&client.patch(&format!("{path}/status"), "merge-patch", &wrong)?, 422, "Invalid");

    let node =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"capacity": {"cpu": "2"}}});
    let node = place.create(&node)?;
    assert_eq!(node["status"]["allocatable"]["cpu"], "2");
    let patch = json!({
        "metadata": {"labels": {"l": "1"}, "annotations": {"a": "1"}},
        "spec": {"unschedulable": true},
        "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "m"}]},
    });
    let node = client.patch("/api/v1/nodes/n/status", "strategic-merge-patch", &patch)?.success()?;
    assert_eq!(
        (node["metadata"]["labels"]["l"].clone(), node["metadata"]["annotations"]["a"].clone()),
        (json!("1"), json!("1"))
    );
    assert!(node["spec"].get("unschedulable").is_none());
    let addresses = |list: Value| json!({"status": {"addresses": list}});
    let path = "/api/v1/nodes/n/status";
    client
        .patch(
            path,
            "strategic-merge-patch",
            &addresses(json!([{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "n"}])),
        )?
        .success()?;
    let whole = json!([{"type": "InternalIP", "address": "10.0.0.2"}, {"$patch": "replace"}]);
    let node = client.patch(path, "strategic-merge-patch", &addresses(whole))?.success()?;
    assert_eq!(node["status"]["addresses"], json!([{"type": "InternalIP", "address": "10.0.0.2"}]));
    Ok(())
}

/// Takes away what the server fills in by itself.
fn without_defaults(mut spec: Value) -> Value {
    let strip = |object: &mut Value, defaults: &[(&str, Value)]| {
        if let Some(map) = object.as_object_mut() {
            map.retain(|key, value| !defaults.iter().any(|(field, default)| key == field && value == default));
        }
    };
    strip(
        &mut spec,
        &[
            ("restartPolicy", json!("Always")),
            ("dnsPolicy", json!("ClusterFirst")),
            ("schedulerName", json!("default-scheduler")),
            ("enableServiceLinks", json!(true)),
            ("priority", json!(0)),
            ("preemptionPolicy", json!("PreemptLowerPriority")),
            ("serviceAccount", json!("default")),
            ("serviceAccountName", json!("default")),
            ("securityContext", json!({})),
        ],
    );
    for list in ["containers", "initContainers"] {
        for container in spec[list].as_array_mut().into_iter().flatten() {
            strip(
                container,
                &[
                    ("terminationMessagePath", json!("/dev/termination-log")),
                    ("terminationMessagePolicy", json!("File")),
                    ("resources", json!({})),
                ],
            );
            for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
                if let Some(probe) = container.get_mut(probe) {
                    let counts = [
                        ("timeoutSeconds", 1),
                        ("periodSeconds", 10),
                        ("successThreshold", 1),
                        ("failureThreshold", 3),
                    ];
                    strip(probe, &counts.map(|(field, value)| (field, json!(value))));
                }
            }
        }
    }
    for volume in spec["volumes"].as_array_mut().into_iter().flatten() {
        for source in ["secret", "configMap", "downwardAPI", "projected"] {
            if let Some(source) = volume.get_mut(source) {
                strip(source, &[("defaultMode", json!(420))]);
            }
        }
    }
    // Empty lists are not stored; asking for one that is not there has made it.
    spec.as_object_mut().into_iter().for_each(|map| map.retain(|_, value| !value.is_null()));
    spec
}

#[test]
fn recorded_pods_are_completed_as_the_recorded_server_did() -> Result<()> {
    let place = Place::new("recorded")?;
    let recordings = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let mut seen = 0;
    for entry in std::fs::read_dir(&recordings).with_context(|| format!("reading {}", recordings.display()))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let recording: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
        let (pod, statuses) = (&recording["pod"], &recording["statuses"]);
        if !pod["spec"].is_object() || !statuses[0]["qosClass"].is_string() {
            continue;
        }
        let name = pod["metadata"]["name"].as_str().context("a pod without a name")?;
        let wanted = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": without_defaults(pod["spec"].clone())});
        let stored = place.create(&wanted).with_context(|| path.display().to_string())?;
        assert_eq!(stored["spec"], pod["spec"], "{name}");
        assert_eq!(stored["status"]["qosClass"], statuses[0]["qosClass"], "{name}");
        seen += 1;
    }
    ensure!(seen > 20, "only {seen} recordings");
    Ok(())
}

// === Deletion ===

#[test]
fn a_pod_ends_in_two_steps() -> Result<()> {
    let place = Place::new("graceful")?;
    let client = place.client();
    let created = place.create(&pod("a", "node-a"))?;
    let uid = created["metadata"]["uid"].clone();
    let path = format!("{PODS}/a");
    let mut events = client.watch(&format!("{PODS}?resourceVersion={}", version(&created)))?;
    let marked = client.request("DELETE", &path, &[], b"")?.success()?;
    assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(marked["metadata"]["generation"], 2);
    let again = client.send_json("DELETE", &path, &json!({"gracePeriodSeconds": 60}))?.success()?;
    assert_eq!(again["metadata"], marked["metadata"], "a period only shrinks");
    let shorter = client.send_json("DELETE", &path, &json!({"gracePeriodSeconds": 5}))?.success()?;
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    assert_eq!(shorter["metadata"]["generation"], 2);
    let patch = json!({"metadata": {"uid": uid, "deletionTimestamp": null}, "status": {"phase": "Succeeded"}});
    let status = client.patch(&format!("{path}/status"), "strategic-merge-patch", &patch)?.success()?;
    assert!(status["metadata"]["deletionTimestamp"].is_string(), "a status does not take it back");
    let wrong = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}});
    let message = refused(&client.send_json("DELETE", &path, &wrong)?, 409, "Conflict");
    assert!(message.contains("the UID in the precondition (other) does not match the UID in record"), "{message}");
    let last = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}});
    client.send_json("DELETE", &path, &last)?.success()?;
    refused(&client.get(&path)?, 404, "NotFound");
    let mut seen = Vec::new();
    while seen.last().is_none_or(|(kind, _)| kind != "DELETED") {
        let event = events.expect(SHORT)?;
        seen.push((event.kind, event.object["metadata"]["deletionGracePeriodSeconds"].clone()));
    }
    let kinds = |kind: &str, period: i64| (kind.to_owned(), json!(period));
    assert_eq!(
        seen,
        [kinds("MODIFIED", 30), kinds("MODIFIED", 5), kinds("MODIFIED", 5), kinds("MODIFIED", 0), kinds("DELETED", 0)]
    );
    Ok(())
}

#[test]
fn what_nobody_looks_after_goes_at_once_and_finalizers_hold() -> Result<()> {
    let place = Place::new("deletion")?;
    let client = place.client();
    place.create(&pod("unscheduled", ""))?;
    client.request("DELETE", &format!("{PODS}/unscheduled"), &[], b"")?.success()?;
    refused(&client.get(&format!("{PODS}/unscheduled"))?, 404, "NotFound");
    place.create(&pod("ended", "node-a"))?;
    client.patch(&format!("{PODS}/ended/status"), "merge-patch", &json!({"status": {"phase": "Failed"}}))?.success()?;
    client.request("DELETE", &format!("{PODS}/ended"), &[], b"")?.success()?;
    refused(&client.get(&format!("{PODS}/ended"))?, 404, "NotFound");

    let mut held = map("held", "1");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    place.create(&held)?;
    client.request("DELETE", &format!("{MAPS}/held"), &[], b"")?.success()?;
    assert!(place.get("configmaps", "default", "held")?["metadata"]["deletionTimestamp"].is_string());
    place.patch("configmaps", "default", "held", &json!({"metadata": {"finalizers": null}}))?;
    refused(&client.get(&format!("{MAPS}/held"))?, 404, "NotFound");

    place.create(&map("plain", "1"))?;
    let status = client.request("DELETE", &format!("{MAPS}/plain"), &[], b"")?.success()?;
    assert_eq!((status["kind"].clone(), status["status"].clone()), (json!("Status"), json!("Success")));
    for name in ["x", "y"] {
        place.create(&map(name, "1"))?;
    }
    client.request("DELETE", &format!("{MAPS}?fieldSelector=metadata.name%3Dx"), &[], b"")?.success()?;
    assert!(place.find("configmaps", "default", "x")?.is_none());
    assert!(place.find("configmaps", "default", "y")?.is_some());
    Ok(())
}

// === Lists and watches ===

#[test]
fn lists_select_and_page() -> Result<()> {
    let place = Place::new("lists")?;
    let client = place.client();
    for (name, node) in [("a", "node-a"), ("b", "node-b"), ("c", "node-a")] {
        place.create(&pod(name, node))?;
    }
    let names = |query: &str| -> Result<Vec<String>> {
        let list = client.get(&format!("/api/v1/pods?{query}"))?.success()?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        Ok(items.iter().map(|one| one["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect())
    };
    assert_eq!(names("fieldSelector=spec.nodeName%3Dnode-a")?, ["a", "c"]);
    assert_eq!(names("fieldSelector=metadata.name%3Db")?, ["b"]);
    assert_eq!(names("fieldSelector=status.phase%3DPending,spec.nodeName!%3Dnode-a")?, ["b"]);
    assert_eq!(names("labelSelector=app+in+(a,b)")?, ["a", "b"]);
    assert_eq!(names("labelSelector=app!%3Da,app")?, ["b", "c"]);
    assert_eq!(names("labelSelector=!app")?, [""; 0]);
    let first = client.get(&format!("{PODS}?limit=2"))?.success()?;
    assert_eq!(first["kind"], "PodList");
    assert!(first["items"][0].get("kind").is_none(), "elements do not repeat the list's kind");
    assert_eq!(first["metadata"]["remainingItemCount"], 1);
    let token = first["metadata"]["continue"].as_str().context("no token")?;
    place.create(&pod("d", "node-a"))?;
    let second = client.get(&format!("{PODS}?limit=2&continue={token}"))?.success()?;
    assert_eq!(second["items"].as_array().map(Vec::len), Some(1), "the list is of one version");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    refused(&client.get(&format!("{PODS}?resourceVersionMatch=Exact"))?, 422, "Invalid");
    Ok(())
}

#[test]
fn a_watch_tells_every_change_from_where_it_was_asked_to() -> Result<()> {
    let place = Place::new("watch")?;
    let client = place.client();
    let first = place.create(&map("a", "1"))?;
    let mut from_there = client.watch(&format!("{MAPS}?resourceVersion={}", version(&first)))?;
    let mut all = client.watch(&format!("{MAPS}?fieldSelector=metadata.name%3Da"))?;
    let event = all.expect(SHORT)?;
    assert_eq!((event.kind.as_str(), event.name()), ("ADDED", "a"), "what is there comes first");
    let updated = place.patch("configmaps", "default", "a", &json!({"data": {"k": "2"}}))?;
    place.create(&map("b", "1"))?;
    place.delete("configmaps", "default", "a", None)?;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let event = from_there.expect(SHORT)?;
        seen.push((event.kind.clone(), event.name().to_owned()));
    }
    let kind = |kind: &str, name: &str| (kind.to_owned(), name.to_owned());
    assert_eq!(seen, [kind("MODIFIED", "a"), kind("ADDED", "b"), kind("DELETED", "a")]);
    let event = all.expect(SHORT)?;
    assert_eq!((event.kind.as_str(), event.object["data"]["k"].as_str()), ("MODIFIED", Some("2")));
    let gone = all.expect(SHORT)?;
    assert_eq!(gone.kind, "DELETED");
    assert!(version(&gone.object) > version(&updated), "the deletion has a version of its own");
    let mut short = client.watch(&format!("{MAPS}?timeoutSeconds=1&resourceVersion={}", version(&gone.object)))?;
    assert_eq!(short.next(LONG)?, None, "it ends when its time is up");
    Ok(())
}

#[test]
fn a_watch_follows_its_selector() -> Result<()> {
    let place = Place::new("selector")?;
    let client = place.client();
    let mut mine = client.watch("/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-a")?;
    place.create(&pod("other", "node-b"))?;
    place.create(&pod("waiting", ""))?;
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "waiting"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-a"}});
    let answer = client.send_json("POST", &format!("{PODS}/waiting/binding"), &binding)?;
    assert_eq!(answer.status, 201, "{:?}", answer.json());
    let event = mine.expect(SHORT)?;
    assert_eq!((event.kind.as_str(), event.name()), ("ADDED", "waiting"), "bound to this node: new for its watcher");
    let scheduled = event.object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|one| one["type"] == "PodScheduled" && one["status"] == "True");
    assert!(scheduled, "{}", event.object["status"]);
    let message = refused(&client.send_json("POST", &format!("{PODS}/waiting/binding"), &binding)?, 409, "Conflict");
    assert!(message.contains("pod waiting is already assigned to node \"node-a\""), "{message}");

    let mut labelled = client.watch(&format!("{PODS}?labelSelector=app%3Dwaiting"))?;
    assert_eq!(labelled.expect(SHORT)?.kind, "ADDED");
    let changed = place.patch("pods", "default", "waiting", &json!({"metadata": {"labels": {"app": "x"}}}))?;
    let event = labelled.expect(SHORT)?;
    assert_eq!(event.kind, "DELETED", "it no longer matches");
    assert_eq!(event.object["metadata"]["labels"]["app"], "waiting", "as it was");
    assert_eq!(version(&event.object), version(&changed), "at the version of the change");
    Ok(())
}

#[test]
fn initial_events_end_with_a_bookmark() -> Result<()> {
    let place = Place::new("initial")?;
    let client = place.client();
    let last = place.create(&map("a", "1"))?;
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&fieldSelector=metadata.name%3Da";
    let mut events = client.watch(&format!("{MAPS}?{query}"))?;
    assert_eq!(events.expect(SHORT)?.kind, "ADDED");
    let mark = events.expect(SHORT)?;
    assert_eq!(mark.kind, "BOOKMARK");
    assert_eq!(mark.object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert!(version(&mark.object) >= version(&last));
    assert_eq!(mark.object["kind"], "ConfigMap");
    place.patch("configmaps", "default", "a", &json!({"data": {"k": "2"}}))?;
    assert_eq!(events.expect(SHORT)?.kind, "MODIFIED");
    let refused_query = client.request("GET", &format!("{MAPS}?watch=true&sendInitialEvents=true"), &[], b"")?;
    refused(&refused_query, 422, "Invalid");
    Ok(())
}

#[test]
fn a_version_that_is_forgotten_is_gone_and_bookmarks_keep_watches_fresh() -> Result<()> {
    // A real server forgets after minutes: about the stand-in alone.
    let config =
        Config { history: 3, bookmark_every: Duration::from_millis(50), scheduler: false, ..Config::default() };
    let place = Place::with("gone", config, true)?;
    let client = place.client();
    let first = place.create(&map("a", "0"))?;
    for value in ["1", "2", "3", "4", "5"] {
        place.patch("configmaps", "default", "a", &json!({"data": {"k": value}}))?;
    }
    let mut events = client.watch(&format!("{MAPS}?resourceVersion={}", version(&first)))?;
    let event = events.expect(SHORT)?;
    assert_eq!(
        (event.kind.as_str(), event.object["code"].clone(), event.object["reason"].clone()),
        ("ERROR", json!(410), json!("Expired"))
    );
    let message = event.object["message"].as_str().unwrap_or_default();
    assert!(message.starts_with(&format!("too old resource version: {} (", version(&first))), "{message}");
    assert_eq!(events.next(SHORT)?, None, "and the watch is over");
    let mut marked = client.watch(&format!("{MAPS}?allowWatchBookmarks=true&fieldSelector=metadata.name%3Dnone"))?;
    let now = place.patch("configmaps", "default", "a", &json!({"data": {"k": "6"}}))?;
    let mut mark = marked.expect(SHORT)?;
    while version(&mark.object) < version(&now) {
        mark = marked.expect(SHORT)?;
    }
    assert_eq!(mark.kind, "BOOKMARK", "although nothing that it selects has changed");
    client.watch(&format!("{MAPS}?resourceVersion={}", version(&mark.object)))?;
    let page = client.get(&format!("{MAPS}?limit=1"))?.success()?;
    place.server()?.with_store(|store| {
        let a = store.get(bulkhead_testkit::apiserver::resources::named("configmaps"), "default", "a");
        let mut changed = a.map(|one| one.value.clone()).unwrap_or_default();
        changed["data"]["k"] = json!("7");
        store.put(bulkhead_testkit::apiserver::resources::named("configmaps"), changed);
        store.compact();
    });
    if let Some(token) = page["metadata"]["continue"].as_str() {
        let message = refused(&client.get(&format!("{MAPS}?limit=1&continue={token}"))?, 410, "Expired");
        assert!(message.starts_with("The provided continue parameter is too old"), "{message}");
    }
    Ok(())
}

// === Who may do what ===

/// Two nodes, a pod on each, and the objects that they name.
fn furnished(name: &str) -> Result<(Place, Client)> {
    let place = Place::new(name)?;
    for node in ["node-a", "node-b"] {
        place.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}))?;
        let mut pod = pod(&format!("on-{node}"), node);
        pod["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": format!("secret-{node}")}}]);
        place.create(&pod)?;
        place.create(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("secret-{node}"), "namespace": "default"}}))?;
    }
    let client = place.client_as_node("node-a")?;
    // The real authorizer learns of pods by a watch of its own.
    bulkhead_testkit::eventually("the node may read its secret", SHORT, || {
        client.get("/api/v1/namespaces/default/secrets/secret-node-a")?.success().map(drop)
    })?;
    Ok((place, client))
}

#[test]
fn a_node_reads_what_its_pods_name_and_nothing_else() -> Result<()> {
    let (_place, node) = furnished("authorizer")?;
    let forbidden = |path: &str| -> Result<String> { Ok(refused(&node.get(path)?, 403, "Forbidden")) };
    node.get("/api/v1/nodes/node-a")?.success()?;
    node.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-a")?.success()?;
    node.get("/api/v1/services?fieldSelector=spec.clusterIP!%3DNone")?.success()?;
    node.watch("/api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Dsecret-node-a")?;
    assert_eq!(
        forbidden("/api/v1/namespaces/default/secrets/secret-node-b")?,
        "secrets \"secret-node-b\" is forbidden: User \"system:node:node-a\" cannot get resource \"secrets\" in API group \"\" in \
         the namespace \"default\": no relationship found between node 'node-a' and this object"
    );
    assert!(forbidden("/api/v1/namespaces/default/secrets")?.ends_with("No Object name found"));
    assert!(
        forbidden("/api/v1/nodes/node-b")?.ends_with("node 'node-a' cannot read 'node-b', only its own Node object")
    );
    assert!(forbidden("/api/v1/pods")?.ends_with("can only list/watch pods with spec.nodeName field selector"));
    forbidden("/api/v1/namespaces")?;
    forbidden("/api/v1/namespaces/default/pods/on-node-b")?;
    Ok(())
}

#[test]
fn a_node_writes_its_own_objects_and_nothing_else() -> Result<()> {
    let (place, node) = furnished("restriction")?;
    let forbidden = |answer: Answer| refused(&answer, 403, "Forbidden");
    let status = json!({"status": {"phase": "Running"}});
    node.patch(&format!("{PODS}/on-node-a/status"), "strategic-merge-patch", &status)?.success()?;
    let message = forbidden(node.patch(&format!("{PODS}/on-node-b/status"), "strategic-merge-patch", &status)?);
    assert!(
        message.ends_with("node \"node-a\" can only update pod status for pods with spec.nodeName set to itself"),
        "{message}"
    );
    let message =
        forbidden(node.send_json("DELETE", &format!("{PODS}/on-node-b"), &json!({"gracePeriodSeconds": 0}))?);
    assert!(message.ends_with("node \"node-a\" can only delete pods with spec.nodeName set to itself"), "{message}");
    let labels = json!({"metadata": {"labels": {"app": "y"}}});
    let message = forbidden(node.patch(&format!("{PODS}/on-node-a/status"), "strategic-merge-patch", &labels)?);
    assert!(message.ends_with("node \"node-a\" cannot update labels through pod status"), "{message}");
    let message = forbidden(node.send_json("POST", PODS, &pod("plain", "node-a"))?);
    assert!(message.contains("pod does not have \"kubernetes.io/config.mirror\" annotation"), "{message}");

    let own = place.get("nodes", "", "node-a")?;
    let mut mirror = pod("static-node-a", "node-a");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "h"});
    mirror["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "node-a",
        "uid": own["metadata"]["uid"], "controller": true}]);
    let made = node.send_json("POST", PODS, &mirror)?.success()?;
    assert!(
        made["spec"].get("serviceAccountName").is_none() && made["spec"].get("volumes").is_none(),
        "{}",
        made["spec"]
    );
    node.send_json("DELETE", &format!("{PODS}/static-node-a"), &json!({"gracePeriodSeconds": 0}))?.success()?;

    let allowed = json!({"metadata": {"labels": {"kubernetes.io/os": "linux", "example.com/x": "1"}}});
    node.patch("/api/v1/nodes/node-a/status", "strategic-merge-patch", &allowed)?.success()?;
    let role = json!({"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}});
    let message = forbidden(node.patch("/api/v1/nodes/node-a/status", "strategic-merge-patch", &role)?);
    assert!(message.ends_with("is not allowed to modify labels: node-role.kubernetes.io/control-plane"), "{message}");
    let message = forbidden(node.patch("/api/v1/nodes/node-b/status", "strategic-merge-patch", &allowed)?);
    assert!(message.ends_with("node \"node-a\" is not allowed to modify node \"node-b\""), "{message}");
    let taints = json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}});
    let message = forbidden(node.patch("/api/v1/nodes/node-a", "strategic-merge-patch", &taints)?);
    assert!(message.ends_with("node \"node-a\" is not allowed to modify taints"), "{message}");

    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = |name: &str| {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}})
    };
    let made = node.send_json("POST", leases, &lease("node-a"))?.success()?;
    let mut renewed = made.clone();
    renewed["spec"]["renewTime"] = json!("2026-01-01T00:00:10.000000Z");
    node.send_json("PUT", &format!("{leases}/node-a"), &renewed)?.success()?;
    refused(&node.send_json("PUT", &format!("{leases}/node-a"), &renewed)?, 409, "Conflict");
    forbidden(node.send_json("POST", leases, &lease("node-b"))?);
    let csi = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "node-b"}, "spec": {"drivers": []}});
    forbidden(node.send_json("POST", "/apis/storage.k8s.io/v1/csinodes", &csi)?);
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"},
        "involvedObject": {"kind": "Node", "name": "node-a", "apiVersion": "v1"}, "reason": "Starting", "count": 1});
    node.send_json("POST", "/api/v1/namespaces/default/events", &event)?.success()?;
    let again =
        node.patch("/api/v1/namespaces/default/events/e", "strategic-merge-patch", &json!({"count": 2}))?.success()?;
    assert_eq!(again["count"], 2);
    node.request("DELETE", "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dnode-a", &[], b"")?
        .success()?;
    Ok(())
}

#[test]
fn tokens_are_issued_for_pods_of_the_node_and_recognised() -> Result<()> {
    let (place, node) = furnished("tokens")?;
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let uid = |pod: &str| -> Result<Value> { Ok(place.get("pods", "default", pod)?["metadata"]["uid"].clone()) };
    let ask = |client: &Client, pod: &str, uid: Value, seconds: i64| {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {
            "expirationSeconds": seconds, "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid},
        }});
        client.send_json("POST", path, &request)
    };
    let own = uid("on-node-a")?;
    let issued = ask(&node, "on-node-a", own.clone(), 3607)?;
    assert_eq!(issued.status, 201);
    let token = issued.json()["status"]["token"].as_str().context("no token")?.to_owned();
    assert_eq!(token.split('.').count(), 3);
    assert!(issued.json()["status"]["expirationTimestamp"].is_string());
    let message = refused(&ask(place.client(), "on-node-a", own.clone(), 599)?, 422, "Invalid");
    assert!(message.ends_with("may not specify a duration less than 10 minutes"), "{message}");
    refused(&ask(place.client(), "on-node-a", json!("other"), 600)?, 409, "Conflict");
    refused(&ask(&node, "on-node-a", json!("other"), 600)?, 403, "Forbidden");
    let message = refused(&ask(&node, "on-node-b", uid("on-node-b")?, 600)?, 403, "Forbidden");
    assert!(message.ends_with("node requested token bound to a pod scheduled on a different node"), "{message}");

    let review = |token: &str, audiences: Value| -> Result<Value> {
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token, "audiences": audiences}});
        Ok(node.send_json("POST", "/apis/authentication.k8s.io/v1/tokenreviews", &review)?.success()?["status"].clone())
    };
    let seen = review(&token, json!([]))?;
    assert_eq!(
        (seen["authenticated"].clone(), seen["user"]["username"].clone()),
        (json!(true), json!("system:serviceaccount:default:default"))
    );
    assert_ne!(review("nonsense", json!([]))?["authenticated"], true);
    assert_ne!(review(&token, json!(["vault"]))?["authenticated"], true);
    let workload = place.client_as(&Credential::Token(token))?;
    refused(&workload.get(PODS)?, 403, "Forbidden");
    Ok(())
}

#[test]
fn access_reviews_and_strangers() -> Result<()> {
    let place = Place::new("access")?;
    let review = |user: &str, groups: Value, attributes: Value| -> Result<bool> {
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {"user": user, "groups": groups, "resourceAttributes": attributes}});
        let answer = place.client().send_json("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", &review)?;
        Ok(answer.success()?["status"]["allowed"] == true)
    };
    let proxy = json!({"verb": "get", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": "a"});
    assert!(review("root", json!(["system:masters"]), proxy.clone())?);
    assert!(!review("nobody", json!(["system:authenticated"]), proxy)?);
    assert!(!review(
        "system:node:a",
        json!(["system:nodes"]),
        json!({"verb": "get", "version": "v1", "resource": "nodes", "name": "b"})
    )?);

    let nobody = place.client_as(&Credential::Nothing)?;
    let message = refused(&nobody.get(PODS)?, 403, "Forbidden");
    assert_eq!(
        message,
        "pods is forbidden: User \"system:anonymous\" cannot list resource \"pods\" in API group \"\" in the namespace \"default\""
    );
    assert_eq!(nobody.get("/readyz")?.status, 200);
    let wrong = place.client_as(&Credential::Token("wrong".to_owned()))?;
    assert_eq!(refused(&wrong.get(PODS)?, 401, "Unauthorized"), "Unauthorized");
    Ok(())
}

#[test]
fn signing_requests_are_approved_and_signed() -> Result<()> {
    // Who approves and signs is a controller, and none runs beside a bare API server: about the stand-in, but for the
    // parts of the API itself.
    let place = Place::with("signing", Config { approval: Approval::Clients, ..Config::default() }, false)?;
    let client = place.client();
    let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let request = |signer: &str, usages: Value, addresses: &[std::net::IpAddr]| -> Result<(Value, String)> {
        let (request, key) = node_request("node-a", addresses)?;
        let object = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
            "metadata": {"generateName": "csr-"},
            "spec": {"request": request, "signerName": format!("kubernetes.io/{signer}"), "usages": usages, "username": "forged"}});
        Ok((object, key))
    };
    let (wanted, key) = request("kube-apiserver-client-kubelet", json!(["digital signature", "client auth"]), &[])?;
    let node = place.client_as_node("node-a")?;
    let made = node.send_json("POST", path, &wanted)?.success()?;
    assert_eq!(made["spec"]["username"], "system:node:node-a", "not what the request says");
    assert!(made["spec"]["groups"].as_array().is_some_and(|groups| groups.contains(&json!("system:nodes"))));
    let name = made["metadata"]["name"].as_str().context("no name")?.to_owned();
    let (serving, _) = request("kubelet-serving", json!(["digital signature", "server auth"]), &["10.0.0.1".parse()?])?;
    let serving = client.send_json("POST", path, &serving)?.success()?;
    let serving_name = serving["metadata"]["name"].as_str().context("no name")?.to_owned();
    let mut approved = serving.clone();
    approved["status"]["conditions"] =
        json!([{"type": "Approved", "status": "True", "reason": "Test", "message": "m"}]);
    refused(&node.send_json("PUT", &format!("{path}/{serving_name}/approval"), &approved)?, 403, "Forbidden");
    let answer = client.send_json("PUT", &format!("{path}/{serving_name}/approval"), &approved)?.success()?;
    assert_eq!(answer["status"]["conditions"][0]["type"], "Approved");
    if !place.is_stand_in() {
        return Ok(());
    }
    let has_certificate = |object: &Value| object["status"]["certificate"].is_string();
    place.wait_for("certificatesigningrequests", "", &serving_name, "signed", has_certificate)?;
    let signed = place.wait_for("certificatesigningrequests", "", &name, "approved and signed", has_certificate)?;
    let kubeconfig = bulkhead_testkit::cluster::kubeconfig::with_user(
        &place.url(),
        &place.ca(),
        "node",
        json!({"client-certificate-data": signed["status"]["certificate"]}),
    );
    assert!(kubeconfig["users"][0]["user"]["client-certificate-data"].is_string());
    let certificate = bulkhead_testkit::apiserver::authority::decode_certificate(&signed["status"])?;
    let pair = bulkhead_testkit::apiserver::authority::Pair { certificate, key };
    let fresh = place.client_as(&Credential::Certificate(pair))?;
    refused(&fresh.get("/api/v1/nodes/node-a")?, 404, "NotFound");
    refused(&fresh.get("/api/v1/nodes/node-b")?, 403, "Forbidden");
    Ok(())
}

#[test]
fn an_expired_certificate_is_unauthorized() -> Result<()> {
    let place = Place::new("expired")?;
    let expired = place.node_certificate("node-a", Duration::ZERO)?;
    let client = place.client_as(&Credential::Certificate(expired))?;
    // The certificate is valid to the second in which it was made.
    bulkhead_testkit::eventually("the certificate is refused", SHORT, || {
        let answer = client.get("/api/v1/nodes/node-a")?;
        ensure!(answer.status == 401, "{}", answer.status);
        Ok(())
    })
}

// === Forms ===

#[test]
fn only_what_both_sides_understand_is_spoken() -> Result<()> {
    let place = Place::new("forms")?;
    let client = place.client();
    place.create(&map("a", "1"))?;
    let path = format!("{MAPS}/a");
    let both =
        client.request("GET", &path, &[("accept", "application/vnd.kubernetes.protobuf, application/json")], b"")?;
    assert_eq!(both.status, 200, "a client that takes JSON as well is answered");
    refused(&client.request("GET", &path, &[("accept", "application/x-nothing")], b"")?, 406, "NotAcceptable");
    let unknown = client.request("POST", MAPS, &[("content-type", "application/x-nothing")], b"x")?;
    refused(&unknown, 415, "UnsupportedMediaType");
    if place.is_stand_in() {
        let binary = &[("accept", "application/vnd.kubernetes.protobuf")];
        refused(&client.request("GET", &path, binary, b"")?, 406, "NotAcceptable");
        let binary = &[("content-type", "application/vnd.kubernetes.protobuf")];
        refused(&client.request("POST", MAPS, binary, b"k8s\0")?, 415, "UnsupportedMediaType");
    }
    let table = &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")];
    place.create(&pod("a", "node-a"))?;
    let table = client.request("GET", PODS, table, b"")?.success()?;
    let columns: Vec<_> =
        table["columnDefinitions"].as_array().into_iter().flatten().map(|one| one["name"].clone()).collect();
    assert_eq!(columns[..5], ["Name", "Ready", "Status", "Restarts", "Age"]);
    let cells = table["rows"][0]["cells"].as_array().context("no cells")?;
    assert_eq!(cells[..3], ["a", "0/1", "Pending"]);
    let metadata = &[("accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")];
    let metadata = client.request("GET", &path, metadata, b"")?.success()?;
    assert_eq!(metadata["kind"], "PartialObjectMetadata");
    assert!(metadata.get("data").is_none());
    let version = client.get("/version")?.success()?;
    assert_eq!((version["major"].as_str(), version["minor"].is_string()), (Some("1"), true));
    let core = client.get("/api/v1")?.success()?;
    assert!(core["resources"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "pods/status")));
    let tried = client.send_json("POST", &format!("{MAPS}?dryRun=All"), &map("tried", "1"))?.success()?;
    assert_eq!(tried["metadata"]["name"], "tried");
    assert!(place.find("configmaps", "default", "tried")?.is_none());
    Ok(())
}
