use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::sources::uids::{Forgetful, FoundPod, UidBook, UidStore, UidStoreError};
use kubelet_model::decode;
use kubelet_model::pod::source::SourceKind;

fn node() -> ForNode {
    NodeName::parse("node-a").unwrap().into()
}

fn no_record() -> Uids {
    Uids::new(Box::new(Forgetful), Vec::new())
}

fn from(text: &str) -> Pod {
    decode::pod(text.as_bytes()).unwrap().0
}

const WEB: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  namespace: kube-system\n  labels: {tier: static}\n\
                   spec:\n  terminationGracePeriodSeconds: 2\n  containers:\n  - name: main\n    \
                   image: registry.k8s.io/e2e-test-images/busybox:1.37.0-1\n    command: [sh, -c, sleep 3600]\n    \
                   resources: {requests: {cpu: 10m}}\n";

/// What upstream's kubelet made of the same file, as its mirror pod showed it (without what the API server adds).
#[test]
fn a_file_becomes_what_upstream_makes_of_it() {
    let built = build(from(WEB), Origin::File("/m/web.yaml"), &node(), &no_record()).unwrap();
    let pod = serde_json::to_value(&built.pod).unwrap();
    let uid = pod["metadata"]["uid"].as_str().unwrap().to_owned();
    assert_eq!(uid.len(), 32);
    assert_eq!(
        pod["metadata"],
        json!({
            "name": "web-node-a", "namespace": "kube-system", "uid": uid, "labels": {"tier": "static"},
            "annotations": {"kubernetes.io/config.hash": uid},
        })
    );
    assert_eq!(
        pod["spec"],
        json!({
            "containers": [{
                "command": ["sh", "-c", "sleep 3600"],
                "image": "registry.k8s.io/e2e-test-images/busybox:1.37.0-1",
                "imagePullPolicy": "IfNotPresent",
                "name": "main",
                "resources": {"requests": {"cpu": "10m"}},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }],
            "dnsPolicy": "ClusterFirst",
            "enableServiceLinks": true,
            "nodeName": "node-a",
            "restartPolicy": "Always",
            "schedulerName": "default-scheduler",
            "securityContext": {},
            "terminationGracePeriodSeconds": 2,
            "tolerations": [{"effect": "NoExecute", "operator": "Exists"}],
        })
    );
    assert_eq!(pod["status"], json!({"phase": "Pending"}));
}

#[test]
fn every_default() {
    let text = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"d","annotations":{"pod.beta.kubernetes.io/init-containers":"x"}},
      "spec":{"hostNetwork":true,"terminationGracePeriodSeconds":-5,
        "initContainers":[{"name":"i","image":"a","resources":{"limits":{"memory":"1Gi"}}}],
        "containers":[{"name":"c","image":"a:latest","ports":[{"containerPort":80},{"containerPort":81,"hostPort":81,"protocol":"UDP"}],
          "env":[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}],
          "resources":{"limits":{"cpu":"0.0001","memory":"64Mi"},"requests":{"memory":"32Mi"}},
          "livenessProbe":{"httpGet":{"port":80}},"readinessProbe":{"grpc":{"port":1},"periodSeconds":3},
          "lifecycle":{"preStop":{"httpGet":{"port":"x"}}}}],
        "volumes":[{"name":"bare"},{"name":"host","hostPath":{"path":"/x"}},{"name":"down","downwardAPI":{"items":[{"path":"a","fieldRef":{"fieldPath":"metadata.labels"}}]}},
          {"name":"proj","projected":{"sources":[]}},{"name":"image","image":{"reference":"r"}}]}}"#;
    let mut pod = from(text);
    defaults::apply(&mut pod);
    let once = pod.clone();
    defaults::apply(&mut pod);
    assert_eq!(pod, once, "defaulting is idempotent");
    let spec = serde_json::to_value(&pod).unwrap()["spec"].clone();
    let container = &spec["containers"][0];
    let expected: &[(&Value, Value)] = &[
        (&spec["terminationGracePeriodSeconds"], json!(1)),
        (&spec["initContainers"][0]["resources"]["requests"], json!({"memory": "1Gi"})),
        (&spec["initContainers"][0]["imagePullPolicy"], json!("Always")),
        (&container["imagePullPolicy"], json!("Always")),
        (
            &container["ports"],
            json!([{"containerPort": 80, "hostPort": 80, "protocol": "TCP"},
                   {"containerPort": 81, "hostPort": 81, "protocol": "UDP"}]),
        ),
        (&container["env"][0]["valueFrom"]["fieldRef"]["apiVersion"], json!("v1")),
        (&container["resources"]["limits"], json!({"cpu": "1m", "memory": "64Mi"})),
        (&container["resources"]["requests"], json!({"cpu": "1m", "memory": "32Mi"})),
        (
            &container["livenessProbe"],
            json!({"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10,
                   "successThreshold": 1, "failureThreshold": 3}),
        ),
        (
            &container["readinessProbe"],
            json!({"grpc": {"port": 1, "service": ""}, "timeoutSeconds": 1, "periodSeconds": 3,
                   "successThreshold": 1, "failureThreshold": 3}),
        ),
        (&container["lifecycle"]["preStop"]["httpGet"], json!({"path": "/", "port": "x", "scheme": "HTTP"})),
        (&spec["volumes"][0], json!({"name": "bare", "emptyDir": {}})),
        (&spec["volumes"][1]["hostPath"], json!({"path": "/x", "type": ""})),
        (&spec["volumes"][2]["downwardAPI"]["defaultMode"], json!(0o644)),
        (&spec["volumes"][2]["downwardAPI"]["items"][0]["fieldRef"]["apiVersion"], json!("v1")),
        (&spec["volumes"][3]["projected"]["defaultMode"], json!(0o644)),
        (&spec["volumes"][4]["image"]["pullPolicy"], json!("Always")),
    ];
    for (got, wanted) in expected {
        assert_eq!(*got, wanted);
    }
    assert!(pod.metadata.annotations.unwrap().is_empty());
}

#[test]
fn pod_level_requests_come_from_containers_and_limits() {
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  resources: {limits: {cpu: 2, memory: 1Gi}}\n  containers:\n  \
                - {name: a, image: i, resources: {requests: {cpu: 250m}}}\n  - {name: b, image: i, resources: {requests: {cpu: 250m}}}\n";
    let mut pod = from(text);
    defaults::apply(&mut pod);
    let resources = serde_json::to_value(pod.spec.unwrap().resources).unwrap();
    assert_eq!(resources["requests"], json!({"cpu": "500m", "memory": "1Gi"}));
}

#[test]
fn a_url_differs_in_toleration_and_uid() {
    let file = build(from(WEB), Origin::File("/m/web.yaml"), &node(), &no_record()).unwrap().pod;
    let url = build(from(WEB), Origin::Url("http://x/"), &node(), &no_record()).unwrap().pod;
    assert_eq!(url.spec.unwrap().tolerations, None);
    assert_ne!(file.metadata.uid, url.metadata.uid);
    let other_file = build(from(WEB), Origin::File("/m/web2.yaml"), &node(), &no_record()).unwrap().pod;
    assert_ne!(file.metadata.uid, other_file.metadata.uid);
    let again = build(from(&WEB.replace("sh, -c", "sh,  -c")), Origin::File("/m/web.yaml"), &node(), &no_record());
    assert_eq!(file.metadata.uid, again.unwrap().pod.metadata.uid, "layout does not matter");
    let edited = build(from(&WEB.replace("3600", "3601")), Origin::File("/m/web.yaml"), &node(), &no_record());
    assert_ne!(file.metadata.uid, edited.unwrap().pod.metadata.uid);
}

#[test]
fn names_uids_and_tolerations() {
    let base = "apiVersion: v1\nkind: Pod\nmetadata: {META}\nspec: {containers: [{name: c, image: i}]TOL}\n";
    let make = |meta: &str, tolerations: &str| {
        let text = base.replace("META", meta).replace("TOL", tolerations);
        build(from(&text), Origin::File("/m/a"), &node(), &no_record())
    };
    let pod = make("name: x, uid: abc", "").unwrap().pod;
    assert_eq!(pod.metadata.uid.as_deref(), Some("abc"));
    assert_eq!(pod.metadata.annotations.unwrap()[CONFIG_HASH], "abc");
    assert_eq!(pod.metadata.namespace.as_deref(), Some("default"));
    assert_eq!(make("generateName: x", "").unwrap_err(), RefusedPod::NoName);
    assert_eq!(make("name: x, uid: ../b", "").unwrap_err(), RefusedPod::UnsafeUid("../b".to_owned()));
    let limited =
        ", tolerations: [{operator: Exists, effect: NoExecute, tolerationSeconds: 5}, {key: a, operator: Exists}]";
    let tolerations = make("name: x", limited).unwrap().pod.spec.unwrap().tolerations.unwrap();
    assert_eq!(tolerations.len(), 2);
    assert_eq!(tolerations[0].toleration_seconds, None);
}

#[test]
fn api_references_are_refused() {
    let base = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: c, image: iENV}]SPEC}\n";
    for (env, spec, kind) in [
        ("", ", serviceAccountName: sa", "serviceaccounts"),
        ("", ", serviceAccount: sa", "serviceaccounts"),
        ("", ", imagePullSecrets: [{name: s}]", "secrets"),
        ("", ", volumes: [{name: v, secret: {secretName: s}}]", "secrets"),
        ("", ", volumes: [{name: v, azureFile: {secretName: s, shareName: t}}]", "secrets"),
        ("", ", volumes: [{name: v, rbd: {monitors: [m], image: i, secretRef: {name: s}}}]", "secrets"),
        ("", ", volumes: [{name: v, projected: {sources: [{secret: {name: s}}]}}]", "secrets"),
        (", env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]", "", "secrets"),
        (", envFrom: [{secretRef: {name: s}}]", "", "secrets"),
        (", envFrom: [{configMapRef: {name: s}}]", "", "configmaps"),
        (", env: [{name: A, valueFrom: {configMapKeyRef: {name: s, key: k}}}]", "", "configmaps"),
        ("", ", volumes: [{name: v, configMap: {name: s}}]", "configmaps"),
        ("", ", volumes: [{name: v, projected: {sources: [{configMap: {name: s}}]}}]", "configmaps"),
        ("", ", resourceClaims: [{name: r, resourceClaimName: c}]", "resourceclaims"),
        ("", ", volumes: [{name: v, csi: {driver: d}}]", "csidrivers (via CSI volumes)"),
        ("", ", volumes: [{name: v, glusterfs: {endpoints: e, path: p}}]", "endpoints (via glusterFS volumes)"),
        ("", ", volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]", "persistentvolumeclaims"),
        (
            "",
            ", volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce]}}}}]",
            "persistentvolumeclaims (via ephemeral volumes)",
        ),
        (
            "",
            ", volumes: [{name: v, projected: {sources: [{clusterTrustBundle: {name: t, path: p}}]}}]",
            "clustertrustbundles",
        ),
    ] {
        let text = base.replace("ENV", env).replace("SPEC", spec);
        let refused = build(from(&text), Origin::File("/m/a"), &node(), &no_record()).unwrap_err();
        assert_eq!(refused.to_string(), format!("static pods may not reference {kind}"), "{text}");
    }
    let fine = base.replace("ENV", "").replace("SPEC", ", imagePullSecrets: [{}]");
    assert!(build(from(&fine), Origin::File("/m/a"), &node(), &no_record()).is_ok(), "an empty name refers to nothing");
}

#[test]
fn addresses_are_checked_as_the_gate_says() {
    let text = format!("{WEB}\n  hostAliases: [{{ip: 010.0.0.5, hostnames: [a]}}]\n");
    for strict_ip_cidr in [true, false] {
        let node = ForNode { gates: Gates { strict_ip_cidr }, ..node() };
        let built = build(from(&text), Origin::File("/m/web.yaml"), &node, &no_record());
        match built {
            Err(refused) => assert!(strict_ip_cidr && refused.to_string().contains("leading 0s"), "{refused}"),
            Ok(built) => {
                let aliases = built.pod.spec.unwrap().host_aliases.unwrap();
                assert!(!strict_ip_cidr && aliases[0].ip == "010.0.0.5", "as it stands");
            }
        }
    }
}

#[derive(Default, Clone)]
struct Shelf(std::sync::Arc<parking_lot::Mutex<UidBook>>);

impl UidStore for Shelf {
    fn load(&self) -> Result<UidBook, UidStoreError> {
        // Through its serialised form, as on disk.
        let json = serde_json::to_string(&*self.0.lock()).unwrap();
        Ok(serde_json::from_str(&json).unwrap())
    }

    fn save(&self, book: &UidBook) -> Result<(), UidStoreError> {
        *self.0.lock() = book.clone();
        Ok(())
    }
}

fn running(uid: &str, source: SourceKind, hash: u32) -> FoundPod {
    FoundPod {
        uid: uid.to_owned(),
        namespace: "kube-system".to_owned(),
        name: "web-node-a".to_owned(),
        source: source.to_owned(),
        runs: true,
        containers: vec![("main".to_owned(), hash)],
    }
}

#[test]
fn the_uid_of_a_matching_running_pod_is_adopted_and_remembered() {
    let hash = 0xa785_d335; // name main, this image: from a recording
    let uid_of = |uids: &Uids, text: &str| {
        build(from(text), Origin::File("/m/web.yaml"), &node(), uids).unwrap().pod.metadata.uid.unwrap()
    };
    let generated = uid_of(&no_record(), WEB);
    for (runs, adopted) in [
        (vec![running("old", SourceKind::File, hash)], true),
        (vec![running("old", SourceKind::Http, hash)], true),
        (vec![running("old", SourceKind::Api, hash)], false),
        (vec![running("old", SourceKind::File, hash + 1)], false),
        (vec![FoundPod { containers: vec![], ..running("old", SourceKind::File, hash) }], false),
        (vec![FoundPod { name: "web-node-b".to_owned(), ..running("old", SourceKind::File, hash) }], false),
        (
            vec![FoundPod {
                containers: vec![("main".to_owned(), hash), ("gone".to_owned(), 1)],
                ..running("old", SourceKind::File, hash)
            }],
            false,
        ),
    ] {
        let uids = Uids::new(Box::new(Forgetful), runs.clone());
        assert_eq!(uid_of(&uids, WEB) == "old", adopted, "{runs:?}");
        assert!(adopted || uid_of(&uids, WEB) == generated);
    }

    let shelf = Shelf::default();
    let commit = |uids: &mut Uids, text: &str| {
        let built = build(from(text), Origin::File("/m/web.yaml"), &node(), uids).unwrap();
        uids.commit("file:", BTreeMap::from([(built.origin.clone(), built.choice())]));
        built.pod.metadata.uid.unwrap()
    };
    let mut first = Uids::new(Box::new(shelf.clone()), vec![running("old", SourceKind::File, hash)]);
    assert_eq!(commit(&mut first, WEB), "old");
    // After a restart with nothing running the record decides.
    let mut second = Uids::new(Box::new(shelf.clone()), Vec::new());
    assert_eq!(commit(&mut second, WEB), "old");
    // Edited while we were away, same image and name: the hash cannot tell, the record can.
    let edited = WEB.replace("3600", "60");
    let third = Uids::new(Box::new(shelf.clone()), vec![running("old", SourceKind::File, hash)]);
    assert_ne!(uid_of(&third, &edited), "old");
    // Another kubelet ran the same manifest in between under its own uid.
    let fourth = Uids::new(Box::new(shelf.clone()), vec![running("theirs", SourceKind::File, hash)]);
    assert_eq!(uid_of(&fourth, WEB), "theirs");
    // Ours still runs beside it: ours.
    let fifth = Uids::new(
        Box::new(shelf.clone()),
        vec![running("theirs", SourceKind::File, hash), running("old", SourceKind::File, hash)],
    );
    assert_eq!(uid_of(&fifth, WEB), "old");
    // Once delivered, nothing is adopted any more.
    let mut sixth = Uids::new(Box::new(Forgetful), vec![running("old", SourceKind::File, hash)]);
    sixth.close_adoption(SourceKind::File);
    assert_eq!(uid_of(&sixth, WEB), generated);
    // An edit that was recorded before we went away, and the pod from before it still ends: it is not what the manifest means.
    let shelf_of_edit = Shelf::default();
    let edit = |uids: &mut Uids, text: &str| {
        let built = build(from(text), Origin::File("/m/web.yaml"), &node(), uids).unwrap();
        uids.commit("file:", BTreeMap::from([(built.origin.clone(), built.choice())]));
        built.pod.metadata.uid.unwrap()
    };
    let mut before = Uids::new(Box::new(shelf_of_edit.clone()), Vec::new());
    let (first_uid, edited_uid) = (edit(&mut before, WEB), edit(&mut before, &edited));
    let ends = || vec![running(&first_uid, SourceKind::File, hash)];
    let mut seventh = Uids::new(Box::new(shelf_of_edit.clone()), ends());
    assert_eq!(edit(&mut seventh, &edited), edited_uid);
    // Nor is one whose manifest was removed meanwhile.
    seventh.commit("file:", BTreeMap::new());
    assert_eq!(
        uid_of(&Uids::new(Box::new(shelf_of_edit.clone()), vec![running(&edited_uid, SourceKind::File, hash)]), WEB),
        generated
    );
    // The content of it again: then what still ends, or what somebody else runs by its hash, is meant, whoever made it.
    assert_eq!(
        uid_of(
            &Uids::new(Box::new(shelf_of_edit.clone()), vec![running(&edited_uid, SourceKind::File, hash)]),
            &edited
        ),
        edited_uid
    );
    assert_eq!(uid_of(&Uids::new(Box::new(shelf_of_edit), ends()), WEB), first_uid);
    // One of upstream's that was taken over, moved away and back: ours has its own uid then, and upstream, put back, its hash again.
    let moved = Shelf::default();
    let theirs = || vec![running("theirs", SourceKind::File, hash)];
    let mut eighth = Uids::new(Box::new(moved.clone()), theirs());
    assert_eq!(edit(&mut eighth, WEB), "theirs");
    eighth.commit("file:", BTreeMap::new());
    eighth.close_adoption(SourceKind::File);
    assert_eq!(edit(&mut eighth, WEB), generated);
    assert_eq!(uid_of(&Uids::new(Box::new(moved.clone()), theirs()), WEB), "theirs");
    // An earlier version has kept no digest.
    moved.0.lock().retired_digests.clear();
    assert_eq!(uid_of(&Uids::new(Box::new(moved.clone()), theirs()), WEB), generated);
    // Records of files that are gone go.
    second.commit("file:", BTreeMap::new());
    assert!(shelf.0.lock().choices.is_empty());
}

/// What another kubelet has ended is not started again from the record, and what it runs is taken over whatever was retired before.
#[test]
fn what_the_record_says_once_another_kubelet_has_had_the_node() {
    let hash = 0xa785_d335;
    let built = build(from(WEB), Origin::File("/m/web.yaml"), &node(), &no_record()).unwrap();
    let (key, choice) = (built.origin.clone(), built.choice());
    let uid = choice.uid.clone();
    let record = || UidBook {
        choices: BTreeMap::from([(key.clone(), choice.clone())]),
        retired: vec!["before".to_owned()],
        ..UidBook::default()
    };
    let found = |uid: &str, runs| FoundPod { runs, ..running(uid, SourceKind::File, hash) };
    for (found, kept, adopted) in [
        (vec![], false, uid.as_str()),
        (vec![found(&uid, true)], true, &uid),
        (vec![found(&uid, false)], false, &uid),
        (vec![found("theirs", true)], false, "theirs"),
        (vec![found("before", true)], false, "before"),
    ] {
        let book = record().after_another_kubelet(&found);
        assert_eq!((book.choices.contains_key(&key), book.retired.len()), (kept, 0), "{found:?}");
        let uids = Uids::new(Box::new(Shelf(std::sync::Arc::new(parking_lot::Mutex::new(book)))), found.clone());
        let pod = build(from(WEB), Origin::File("/m/web.yaml"), &node(), &uids).unwrap().pod;
        assert_eq!(pod.metadata.uid.as_deref(), Some(adopted), "{found:?}");
    }
}

/// An upgrade, or a way back, makes no static pod anew: neither hash may change, and where a later version knows one more
/// default the recorded uid stays.
#[test]
fn a_version_keeps_the_uids_of_the_one_before() {
    let built = build(from(WEB), Origin::File("/m/web.yaml"), &node(), &no_record()).unwrap();
    let uid = built.pod.metadata.uid.clone().unwrap();
    assert_eq!((built.digest.as_str(), uid.as_str()), (WEB_DIGEST, WEB_UID), "as version 0.1.0 has it");

    // As a version wrote it that did not know a default: another digest of the same manifest.
    let mut choice = built.choice();
    choice.digest = "0".repeat(32);
    choice.uid = "recorded".into();
    let mut earlier = (*choice.pod).clone();
    earlier.metadata.uid = Some("recorded".into());
    earlier.metadata.annotations.get_or_insert_default().insert(CONFIG_HASH.to_owned(), "recorded".into());
    if let Some(spec) = &mut earlier.spec {
        spec.enable_service_links = None;
    }
    choice.pod = Box::new(earlier);
    let shelf = Shelf::default();
    shelf.0.lock().choices.insert(built.origin, choice);
    let uids = Uids::new(Box::new(shelf), Vec::new());
    let uid_of =
        |text: &str| build(from(text), Origin::File("/m/web.yaml"), &node(), &uids).unwrap().pod.metadata.uid.unwrap();
    assert_eq!(uid_of(WEB), "recorded");
    // An edit stays an edit.
    assert_ne!(uid_of(&WEB.replace("3600", "60")), "recorded");
    assert_ne!(uid_of(&WEB.replace("cpu: 10m", "cpu: 20m")), "recorded");
}

const WEB_DIGEST: &str = "5e9debeaa921bef813175b499aa470a7";
const WEB_UID: &str = "eb735be65b24d06408589dc9d81e73c1";
