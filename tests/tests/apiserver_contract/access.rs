//! Who may read and write what; tokens and certificates.

use super::*;

/// Two nodes, a pod on each, and the objects that they name.
fn furnished(name: &str, server: Server) -> Result<(Place, Client)> {
    let place = Place::new(name, server)?;
    for node in ["node-a", "node-b"] {
        place.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}))?;
        let mut pod = pod(&format!("on-{node}"), node);
        pod["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": format!("secret-{node}")}}]);
        place.create(&pod)?;
        place.create(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("secret-{node}"), "namespace": "default"}}))?;
    }
    let client = place.client_as_node("node-a")?;
    // The authorizer learns of pods by a watch of its own.
    bulkhead_testkit::eventually("the node may read its secret", SHORT, || {
        client.get("/api/v1/namespaces/default/secrets/secret-node-a")?.success().map(drop)
    })?;
    Ok((place, client))
}

pub fn a_node_reads_what_its_pods_name_and_nothing_else(server: Server) -> Result<()> {
    let (_place, node) = furnished("authorizer", server)?;
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

pub fn a_node_writes_its_own_objects_and_nothing_else(server: Server) -> Result<()> {
    let (place, node) = furnished("restriction", server)?;
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

pub fn tokens_are_issued_for_pods_of_the_node_and_recognised(server: Server) -> Result<()> {
    let (place, node) = furnished("tokens", server)?;
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

pub fn access_reviews_and_strangers(server: Server) -> Result<()> {
    let place = Place::new("access", server)?;
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

pub fn signing_requests_are_approved_and_signed(server: Server) -> Result<()> {
    let place = Place::with("signing", Config { approval: Approval::Clients, ..Config::default() }, server)?;
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
    // Asked for by the node itself, or the signer does not know it.
    let serving = node.send_json("POST", path, &serving)?.success()?;
    let serving_name = serving["metadata"]["name"].as_str().context("no name")?.to_owned();
    let mut approved = serving.clone();
    approved["status"]["conditions"] =
        json!([{"type": "Approved", "status": "True", "reason": "Test", "message": "m"}]);
    refused(&node.send_json("PUT", &format!("{path}/{serving_name}/approval"), &approved)?, 403, "Forbidden");
    let answer = client.send_json("PUT", &format!("{path}/{serving_name}/approval"), &approved)?.success()?;
    assert_eq!(answer["status"]["conditions"][0]["type"], "Approved");
    // Who approves and signs is a controller, and none runs beside the real server.
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

pub fn an_expired_certificate_is_unauthorized(server: Server) -> Result<()> {
    let place = Place::new("expired", server)?;
    let expired = place.node_certificate("node-a", Duration::ZERO)?;
    let client = place.client_as(&Credential::Certificate(expired))?;
    // The certificate is valid to the second in which it was made.
    bulkhead_testkit::eventually("the certificate is refused", SHORT, || {
        let answer = client.get("/api/v1/nodes/node-a")?;
        ensure!(answer.status == 401, "{}", answer.status);
        Ok(())
    })
}

/// The node authorizer of a real server learns of a pod by a watch of its own, a moment after whoever was told of the pod
/// by another: a client must ask again. The stand-in knows at once; that may not stay so, but never shall it know less.
pub fn the_authorizer_knows_soon_after_the_watch_tells(server: Server) -> Result<()> {
    let place = Place::new("lag", server)?;
    let node = place.client_as_node("node-a")?;
    place.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}))?;
    let mut told = node.watch("/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-a")?;
    for index in 0..5 {
        let secret = format!("late-{index}");
        let path = format!("/api/v1/namespaces/default/secrets/{secret}");
        place.create(
            &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret, "namespace": "default"}}),
        )?;
        refused(&node.get(&path)?, 403, "Forbidden");
        let mut pod = pod(&format!("late-{index}"), "node-a");
        pod["spec"]["volumes"] = json!([{"name": "s", "secret": {"secretName": secret}}]);
        place.create(&pod)?;
        assert_eq!(told.expect(SHORT)?.name(), format!("late-{index}"));
        bulkhead_testkit::eventually("the node may read the secret of its pod", SHORT, || {
            let answer = node.get(&path)?;
            if answer.status != 403 {
                answer.success()?;
                return Ok(());
            }
            let message = refused(&answer, 403, "Forbidden");
            anyhow::bail!("{message}")
        })?;
        place.delete("pods", "default", &format!("late-{index}"), Some(0))?;
        while told.expect(SHORT)?.kind != "DELETED" {}
        bulkhead_testkit::eventually("and not any more when the pod is gone", SHORT, || {
            let answer = node.get(&path)?;
            ensure!(answer.status == 403, "{}", answer.status);
            Ok(())
        })?;
    }
    Ok(())
}
