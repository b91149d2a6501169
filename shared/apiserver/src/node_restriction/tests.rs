use serde_json::json;

use super::*;

fn store() -> Store {
    let mut store = Store::new(10);
    store.put(named("nodes"), json!({"metadata": {"name": "a", "uid": "node-uid"}}));
    for (name, node) in [("mine", "a"), ("other", "b")] {
        store.put(
            named("pods"),
            json!({
                "metadata": {"namespace": "n", "name": name, "uid": format!("{name}-uid"), "labels": {"k": "v"}},
                "spec": {"nodeName": node, "volumes": [{"name": "t", "projected": {"sources": [
                    {"serviceAccountToken": {"path": "token"}},
                ]}}]},
            }),
        );
    }
    store
}

fn write<'a>(operation: Operation, plural: &str, subresource: &'a str, name: &'a str) -> Write<'a> {
    Write { operation, resource: named(plural), subresource, namespace: "n", name, new: None, old: None }
}

fn mirror() -> Value {
    json!({
        "metadata": {
            "name": "static-a",
            "annotations": {pods::MIRROR: "h"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "node-uid", "controller": true}],
        },
        "spec": {"nodeName": "a", "containers": [{"name": "main"}]},
    })
}

fn refused(write: Write<'_>) -> String {
    admit(&store(), "a", write).unwrap_err().message
}

#[test]
fn pods() {
    let create = |pod: &Value| {
        admit(&store(), "a", Write { new: Some(pod), ..write(Operation::Create, "pods", "", "") })
            .map_err(|e| e.message)
    };
    assert_eq!(create(&mirror()), Ok(()));
    let with = |change: fn(&mut Value)| {
        let mut pod = mirror();
        change(&mut pod);
        create(&pod).unwrap_err()
    };
    assert_eq!(
        with(|pod| pod["metadata"]["annotations"] = json!({})),
        "pods \"static-a\" is forbidden: pod does not have \"kubernetes.io/config.mirror\" annotation, node \"a\" can only \
         create mirror pods"
    );
    assert!(with(|pod| pod["spec"]["nodeName"] = json!("b")).ends_with("with spec.nodeName set to itself"));
    assert!(
        with(|pod| pod["metadata"]["ownerReferences"] = json!([])).ends_with("with an owner reference set to itself")
    );
    assert!(with(|pod| pod["metadata"]["ownerReferences"][0]["uid"] = json!("x")).contains("UID mismatch"));
    assert!(with(|pod| pod["spec"]["serviceAccountName"] = json!("x")).ends_with("that reference serviceaccounts"));

    assert!(admit(&store(), "a", write(Operation::Delete, "pods", "", "mine")).is_ok());
    assert_eq!(
        refused(write(Operation::Delete, "pods", "", "other")),
        "pods \"other\" is forbidden: node \"a\" can only delete pods with spec.nodeName set to itself"
    );
    assert_eq!(admit(&store(), "a", write(Operation::Delete, "pods", "", "none")).unwrap_err().code, 404);
    assert!(refused(write(Operation::Update, "pods", "", "mine")).contains("unexpected operation \"UPDATE\""));
    assert!(
        refused(write(Operation::Create, "pods", "binding", "mine")).contains("unexpected pod subresource \"binding\"")
    );
}

#[test]
fn statuses_of_own_pods_without_touching_labels() {
    let store = store();
    let status = |name: &str, change: fn(&mut Value)| {
        let old = store.get(named("pods"), "n", name).unwrap().value.clone();
        let mut new = old.clone();
        change(&mut new);
        let write = Write { new: Some(&new), old: Some(&old), ..write(Operation::Update, "pods", "status", name) };
        admit(&store, "a", write).map_err(|error| error.message)
    };
    assert_eq!(status("mine", |pod| pod["status"] = json!({"phase": "Running"})), Ok(()));
    assert!(status("mine", |pod| pod["metadata"]["labels"] = json!({})).unwrap_err().ends_with("through pod status"));
    assert!(status("other", |_| {}).unwrap_err().contains("can only update pod status for pods"));
}

#[test]
fn own_node_and_its_labels() {
    let create = |name: &str, labels: Value| {
        let node = json!({"metadata": {"name": name, "labels": labels}});
        admit(&store(), "a", Write { new: Some(&node), ..write(Operation::Create, "nodes", "", "") })
            .map_err(|e| e.message)
    };
    assert_eq!(create("a", json!({"kubernetes.io/os": "linux", "own": "x", "x.node.kubernetes.io/y": ""})), Ok(()));
    assert!(create("b", json!({})).unwrap_err().ends_with("node \"a\" is not allowed to modify node \"b\""));
    assert_eq!(
        create("a", json!({"node-role.kubernetes.io/master": "", "node-restriction.kubernetes.io/x": ""})).unwrap_err(),
        "nodes \"a\" is forbidden: node \"a\" is not allowed to set the following labels: \
         node-restriction.kubernetes.io/x, node-role.kubernetes.io/master"
    );
    let old = json!({"metadata": {"name": "a", "labels": {}}, "spec": {}});
    let new = json!({"metadata": {"name": "a", "labels": {"kubernetes.io/x": "1"}}, "spec": {}});
    let update = Write { new: Some(&new), old: Some(&old), ..write(Operation::Update, "nodes", "status", "a") };
    assert_eq!(refused(update), "nodes \"a\" is forbidden: is not allowed to modify labels: kubernetes.io/x");
    let tainted = json!({"metadata": {"name": "a"}, "spec": {"taints": [{"key": "x"}]}});
    let update = Write { new: Some(&tainted), ..update };
    assert!(refused(update).ends_with("is not allowed to modify taints"));
}

#[test]
fn tokens_are_bound_to_own_pods() {
    let ask = |spec: Value| {
        let request = json!({"spec": spec});
        let write = Write { new: Some(&request), ..write(Operation::Create, "serviceaccounts", "token", "sa") };
        admit(&store(), "a", write).map_err(|error| error.message)
    };
    let bound = |name: &str, uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid});
    assert_eq!(ask(json!({"boundObjectRef": bound("mine", "mine-uid")})), Ok(()));
    assert!(ask(json!({})).unwrap_err().ends_with("node requested token not bound to a pod"));
    assert!(ask(json!({"boundObjectRef": bound("mine", "")})).unwrap_err().ends_with("without a uid"));
    assert!(ask(json!({"boundObjectRef": bound("mine", "x")})).unwrap_err().contains("does not match the UID"));
    assert!(ask(json!({"boundObjectRef": bound("other", "other-uid")})).unwrap_err().ends_with("different node"));
    let other_audience = json!({"boundObjectRef": bound("mine", "mine-uid"), "audiences": ["vault"]});
    assert!(ask(other_audience).unwrap_err().contains("audience \"vault\" not found in pod spec volume"));
}

#[test]
fn own_lease_and_csi_node() {
    let lease = json!({"metadata": {"name": "b"}});
    let mut create = Write { new: Some(&lease), ..write(Operation::Create, "leases", "", "") };
    assert!(refused(create).contains("system namespace"));
    create.namespace = "kube-node-lease";
    assert!(refused(create).ends_with("same name as the requesting node"));
    assert!(admit(&store(), "a", write(Operation::Update, "csinodes", "", "a")).is_ok());
    assert!(refused(write(Operation::Delete, "csinodes", "", "b")).contains("can only access CSINode"));
}

#[test]
fn certificates_in_its_own_name() {
    let ask = |name: &str| {
        let (request, _) = crate::authority::node_request(name, &[]).unwrap();
        let object = json!({"metadata": {"name": "c"}, "spec": {
            "request": request, "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        }});
        let write = Write { new: Some(&object), ..write(Operation::Create, "certificatesigningrequests", "", "") };
        admit(&store(), "a", write).map_err(|error| error.message)
    };
    assert_eq!(ask("a"), Ok(()));
    assert!(ask("b").unwrap_err().ends_with("can only create a node CSR with CN=system:node:a"));
}
