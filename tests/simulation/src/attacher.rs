//! What the cluster's controllers do about volumes: claims and volumes that are there from the beginning, claims of generic ephemeral
//! volumes, and the attach-detach controller, which goes by pods, volumesInUse and volumesAttached.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::apiserver::{Model, NODE};
use crate::volumes::{DRIVER, unique_name};
use crate::volumes_schedule::Claim;

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";

/// The VolumeAttachment's name, as upstream's controller computes it.
pub fn attachment(handle: &str) -> String {
    let digest = Sha256::digest(format!("{handle}{DRIVER}{NODE}"));
    digest.iter().fold("csi-".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"][key].as_str().unwrap_or_default()
}

fn owner(claim: &Value) -> Option<&str> {
    claim["metadata"]["ownerReferences"][0]["uid"].as_str()
}

impl Model {
    /// The driver's object, and claims that are bound.
    pub fn furnish(&self) {
        let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": true, "podInfoOnMount": false}});
        self.must("POST", "/apis/storage.k8s.io/v1/csidrivers", &driver);
        for claim in Claim::SHARED {
            self.bind(claim, claim.name(), &claim.volume_of(""), &json!([]));
        }
    }

    /// Makes a claim and its volume, bound to each other.
    fn bind(&self, claim: Claim, name: &str, volume: &str, owners: &Value) {
        let (modes, size) = (json!([claim.access_mode()]), json!({"storage": "1Mi"}));
        let made = self.must(
            "POST",
            CLAIMS,
            &json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": name, "namespace": "default", "ownerReferences": owners},
                "spec": {"accessModes": modes, "storageClassName": "", "volumeName": volume,
                    "resources": {"requests": size}}}),
        );
        self.must(
            "POST",
            VOLUMES,
            &json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
                "spec": {"accessModes": modes, "capacity": size, "storageClassName": "",
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name,
                        "namespace": "default", "uid": made["metadata"]["uid"]},
                    "csi": {"driver": DRIVER, "volumeHandle": volume}}}),
        );
        let status = json!({"status": {"phase": "Bound", "capacity": size, "accessModes": modes}});
        self.patch(&format!("{CLAIMS}/{name}/status"), &status);
    }

    pub(crate) fn must(&self, method: &str, path: &str, body: &Value) -> Value {
        match self.request(method, path, body) {
            Ok(answer) => answer,
            Err(refusal) => {
                self.world().lock().breaks("no-end", format!("the model refuses {method} {path}: {refusal}"));
                Value::Null
            }
        }
    }

    pub(crate) fn items(&self, path: &str) -> Vec<Value> {
        let list = self.request("GET", path, &Value::Null).unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// One pass of all controllers.
    pub fn reconcile(&self) {
        let pods = self.items("/api/v1/namespaces/default/pods");
        self.claims_of(&pods);
        self.attach(&pods);
    }

    /// Claims of generic ephemeral volumes come after their pods, and go after them.
    fn claims_of(&self, pods: &[Value]) {
        let claims = self.items(CLAIMS);
        let live: BTreeSet<&str> = pods.iter().map(|pod| text(pod, "uid")).collect();
        for claim in claims.iter().filter(|claim| owner(claim).is_some_and(|uid| !live.contains(uid))) {
            self.must("DELETE", &format!("{CLAIMS}/{}", text(claim, "name")), &Value::Null);
            let volume = claim["spec"]["volumeName"].as_str().unwrap_or_default();
            self.must("DELETE", &format!("{VOLUMES}/{volume}"), &Value::Null);
        }
        for pod in pods.iter().filter(|pod| !pod["metadata"]["deletionTimestamp"].is_string()) {
            let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
            let (uid, name) = (text(pod, "uid"), text(pod, "name"));
            let own = format!("{name}-{}", Claim::Own.name());
            let has = claims.iter().any(|claim| owner(claim) == Some(uid));
            if has || !volumes.into_iter().any(|volume| volume["ephemeral"].is_object()) {
                continue;
            }
            let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": true,
                "blockOwnerDeletion": true}]);
            self.bind(Claim::Own, &own, &Claim::Own.volume_of(uid), &owners);
        }
    }

    /// What pods of the node want is attached; what none wants and the node does not use is detached.
    fn attach(&self, pods: &[Value]) {
        let Ok(node) = self.request("GET", &format!("/api/v1/nodes/{NODE}"), &Value::Null) else { return };
        let bound: BTreeMap<String, String> = self
            .items(CLAIMS)
            .iter()
            .map(|claim| {
                (text(claim, "name").to_owned(), claim["spec"]["volumeName"].as_str().unwrap_or_default().to_owned())
            })
            .collect();
        let is_over = |pod: &&Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let mut wanted = BTreeSet::new();
        for pod in pods.iter().filter(|pod| !is_over(pod)) {
            for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
                let claim = match volume["persistentVolumeClaim"]["claimName"].as_str() {
                    Some(claim) => claim.to_owned(),
                    None if volume["ephemeral"].is_object() => format!("{}-{}", text(pod, "name"), Claim::Own.name()),
                    None => continue,
                };
                wanted.extend(bound.get(&claim).cloned());
            }
        }
        let status = &node["status"];
        let prefix = unique_name("");
        let handle = |name: &str| name.strip_prefix(&prefix).map(str::to_owned);
        let in_use = status["volumesInUse"].as_array().into_iter().flatten();
        let in_use: BTreeSet<String> = in_use.filter_map(|name| name.as_str().and_then(handle)).collect();
        let attached = status["volumesAttached"].as_array().into_iter().flatten();
        let before: BTreeSet<String> = attached.filter_map(|one| one["name"].as_str().and_then(handle)).collect();
        let now: BTreeSet<String> = before
            .iter()
            .filter(|one| wanted.contains(*one) || in_use.contains(*one))
            .chain(&wanted)
            .cloned()
            .collect();
        if now == before {
            return;
        }
        for handle in now.difference(&before) {
            self.world().lock().tell("controller", format!("attaches {handle}"));
            let name = attachment(handle);
            self.must(
                "POST",
                ATTACHMENTS,
                &json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
                    "spec": {"attacher": DRIVER, "nodeName": NODE, "source": {"persistentVolumeName": handle}}}),
            );
            self.patch(&format!("{ATTACHMENTS}/{name}/status"), &json!({"status": {"attached": true}}));
        }
        let list: Vec<Value> =
            now.iter().map(|handle| json!({"name": unique_name(handle), "devicePath": ""})).collect();
        self.patch(&format!("/api/v1/nodes/{NODE}/status"), &json!({"status": {"volumesAttached": list}}));
        for handle in before.difference(&now) {
            let mut world = self.world().lock();
            world.tell("controller", format!("detaches {handle}"));
            world.check_detach(handle);
            drop(world);
            self.must("DELETE", &format!("{ATTACHMENTS}/{}", attachment(handle)), &Value::Null);
        }
    }
}
