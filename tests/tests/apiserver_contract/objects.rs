//! What is stored, what is refused, and what a write may change.

use super::*;

pub fn a_pod_is_stored_as_the_real_server_completes_it(server: Server) -> Result<()> {
    let place = Place::new("defaults", server)?;
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

pub fn refusals_are_worded_and_typed(server: Server) -> Result<()> {
    let place = Place::new("refusals", server)?;
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

pub fn writes_are_guarded_by_version_and_uid(server: Server) -> Result<()> {
    let place = Place::new("locks", server)?;
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

pub fn every_patch_type(server: Server) -> Result<()> {
    let place = Place::new("patches", server)?;
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

pub fn a_status_and_a_specification_are_written_apart(server: Server) -> Result<()> {
    let place = Place::new("status", server)?;
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
    let differ = json!({"status": {"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.1"}]}});
    let taken = client.patch(&format!("{path}/status"), "merge-patch", &differ)?.success()?;
    assert_eq!(taken["status"]["podIPs"], json!([{"ip": "10.0.0.2"}]), "of two that differ the single one counts");

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
pub fn a_resize_changes_cpu_and_memory_and_nothing_else(server: Server) -> Result<()> {
    let place = Place::new("resize", server)?;
    let client = place.client();
    place.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"},
        "status": {"capacity": {"cpu": "8", "memory": "16Gi", "pods": "110"}}}))?;
    let mut wanted = pod("a", "node-a");
    wanted["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "100m", "memory": "1Gi"}});
    let name = wanted["spec"]["containers"][0]["name"].clone();
    let created = place.create(&wanted)?;
    let path = format!("{PODS}/a/resize");
    let ask = |container: Value| {
        let mut container = container;
        container["name"] = name.clone();
        client.patch(&path, "strategic-merge-patch", &json!({"spec": {"containers": [container]}}))
    };
    let resized = ask(json!({"resources": {"requests": {"cpu": "0.2"}}, "image": "other"}))?.success()?;
    assert_eq!(resized["metadata"]["generation"], 2);
    assert_eq!(resized["spec"]["containers"][0]["resources"]["requests"], json!({"cpu": "200m", "memory": "1Gi"}));
    assert_eq!(resized["spec"]["containers"][0]["image"], created["spec"]["containers"][0]["image"]);
    let same = ask(json!({"resources": {"requests": {"cpu": "200m"}}}))?.success()?;
    assert_eq!(same["metadata"]["generation"], 2);
    let all = json!({"cpu": "1", "memory": "1Gi"});
    for (container, why) in [
        (
            json!({"resources": {"requests": all, "limits": all}}),
            "Pod QOS Class may not change as a result of resizing",
        ),
        (json!({"resources": {"requests": {"memory": null}}}), "resource requests cannot be removed"),
        (json!({"resources": {"limits": {"cpu": "100m"}}}), "must be less than or equal to cpu limit of 100m"),
        (json!({"resources": {"requests": {"ephemeral-storage": "1Gi"}}}), "only cpu and memory resources are mutable"),
    ] {
        let message = refused(&ask(container)?, 422, "Invalid");
        assert!(message.contains(why), "{message}");
    }
    // The pod itself takes none of it.
    let mut whole = same;
    whole["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("300m");
    refused(&client.send_json("PUT", &format!("{PODS}/a"), &whole)?, 422, "Invalid");
    let replaced = client.send_json("PUT", &path, &whole)?.success()?;
    assert_eq!(replaced["spec"]["containers"][0]["resources"]["requests"]["cpu"], "300m");
    Ok(())
}

pub fn containers_for_debugging_are_added_and_stay(server: Server) -> Result<()> {
    let place = Place::new("debugging", server)?;
    place.create(&pod("a", "node-a"))?;
    let client = place.client();
    let path = format!("{PODS}/a/ephemeralcontainers");
    let add = |all: Value| client.patch(&path, "strategic-merge-patch", &json!({"spec": {"ephemeralContainers": all}}));
    let one = |name: &str, target: &str| json!({"name": name, "image": "i", "targetContainerName": target});
    let added = add(json!([one("looks", "main")]))?.success()?;
    assert_eq!(added["spec"]["ephemeralContainers"][0]["targetContainerName"], "main");
    let message = refused(&add(json!([one("lost", "nobody")]))?, 422, "Invalid");
    let field = "spec.ephemeralContainers[0].targetContainerName: Not found: \"nobody\"";
    assert!(message.contains(field), "{message}");
    // What is there stays as it is.
    let message = refused(&add(json!([{"name": "looks", "image": "other"}]))?, 422, "Invalid");
    assert!(message.contains("existing ephemeral containers"), "{message}");
    Ok(())
}

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

pub fn recorded_pods_are_completed_as_the_recorded_server_did(server: Server) -> Result<()> {
    let place = Place::new("recorded", server)?;
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

pub fn bodies_are_decoded_by_their_types(server: Server) -> Result<()> {
    let place = Place::new("typed", server)?;
    let client = place.client();
    let post = |path: &str, object: &Value| client.send_json("POST", path, object);
    let mut wrong = pod("a", "node-a");
    wrong["spec"]["containers"][0]["image"] = json!(1);
    let message = refused(&post(PODS, &wrong)?, 400, "BadRequest");
    assert!(message.contains("cannot unmarshal number"), "{message}");
    let mut unknown = pod("a", "node-a");
    unknown["spec"]["unheardOf"] = json!(true);
    let warned = post(&format!("{PODS}?dryRun=All&fieldValidation=Warn"), &unknown)?;
    let warning = warned.headers.get("warning").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    assert!(warned.status == 201 && warning.contains("unknown field \\\"spec.unheardOf\\\""), "{warning}");
    let message = refused(&post(&format!("{PODS}?fieldValidation=Strict"), &unknown)?, 400, "BadRequest");
    assert!(message.contains("strict decoding error: unknown field \"spec.unheardOf\""), "{message}");
    let stored = post(&format!("{PODS}?fieldValidation=Ignore"), &unknown)?.success()?;
    assert!(stored["spec"].get("unheardOf").is_none(), "what is unknown is not kept");
    Ok(())
}

pub fn empty_fields_are_left_out_and_times_have_their_form(server: Server) -> Result<()> {
    let place = Place::new("empty", server)?;
    let client = place.client();
    let mut wanted = pod("a", "node-a");
    wanted["metadata"]["annotations"] = json!({});
    wanted["spec"]["containers"][0]["args"] = json!([]);
    wanted["spec"]["containers"][0]["env"] = json!([{"name": "E", "value": ""}]);
    wanted["spec"]["nodeSelector"] = json!({});
    wanted["spec"]["subdomain"] = json!("");
    wanted["spec"]["hostNetwork"] = json!(false);
    wanted["spec"]["securityContext"] = json!({});
    let stored = place.create(&wanted)?;
    let (spec, main) = (&stored["spec"], &stored["spec"]["containers"][0]);
    assert!(stored["metadata"].get("annotations").is_none() && main.get("args").is_none(), "{stored}");
    assert!(["nodeSelector", "subdomain", "hostNetwork"].iter().all(|field| spec.get(field).is_none()), "{spec}");
    assert_eq!((&main["env"], &spec["securityContext"]), (&json!([{"name": "E"}]), &json!({})));
    let created = stored["metadata"]["creationTimestamp"].as_str().unwrap_or_default();
    assert_eq!(
        (created.len(), created.ends_with('Z')),
        ("2026-01-01T00:00:00Z".len(), true),
        "whole seconds: {created}"
    );

    // Fractions of seconds are dropped where a time has none, and other zones become UTC.
    let status = json!({"status": {"startTime": "2026-01-01T01:00:00.5+01:00", "conditions": [
        {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00.999Z"}]}});
    let path = format!("{PODS}/a/status");
    let pod = client.patch(&path, "strategic-merge-patch", &status)?.success()?;
    assert_eq!(pod["status"]["startTime"], "2026-01-01T00:00:00Z");
    let ready = |pod: &Value| {
        let all = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|one| one["type"] == "Ready").unwrap_or_default()
    };
    assert_eq!(ready(&pod)["lastTransitionTime"], "2026-01-01T00:00:00Z");
    assert!(ready(&pod).get("lastProbeTime").is_some_and(Value::is_null), "a time that is never left out: {pod}");

    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l", "namespace": "default"},
        "spec": {"holderIdentity": "h", "renewTime": "2026-01-01T00:00:00.123456Z"}});
    let lease = place.create(&lease)?;
    assert_eq!(lease["spec"]["renewTime"], "2026-01-01T00:00:00.123456Z", "microseconds");
    Ok(())
}

pub fn managers_of_fields_are_noted(server: Server) -> Result<()> {
    let place = Place::new("managers", server)?;
    let client = place.client();
    let made = place.create(&map("a", "1"))?;
    let entries = |object: &Value| object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let first = entries(&made);
    assert_eq!(first.len(), 1, "{made}");
    assert_eq!(
        (first[0]["manager"].as_str(), first[0]["operation"].as_str(), first[0]["fieldsType"].as_str()),
        (Some("bulkhead-testkit"), Some("Update"), Some("FieldsV1"))
    );
    assert_eq!(first[0]["apiVersion"], "v1");
    assert!(first[0]["time"].is_string());
    let path = format!("{MAPS}/a");
    let changed = client.patch(&format!("{path}?fieldManager=other"), "merge-patch", &json!({"data": {"x": "1"}}))?;
    let managers: Vec<_> = entries(&changed.success()?).iter().map(|one| one["manager"].clone()).collect();
    assert_eq!(managers, ["bulkhead-testkit", "other"]);
    // Given as an empty one they are forgotten.
    let mut stripped = place.get("configmaps", "default", "a")?;
    stripped["metadata"]["managedFields"] = json!([{}]);
    let stripped = client.send_json("PUT", &path, &stripped)?.success()?;
    assert!(entries(&stripped).is_empty(), "{stripped}");
    Ok(())
}
