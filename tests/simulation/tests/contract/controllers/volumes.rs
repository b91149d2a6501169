//! The cluster's controllers as far as a node's volumes go by them, asked of the model and of kube-controller-manager on a real control
//! plane. There the test itself is the driver's external attacher, which says of each VolumeAttachment that it is done.

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_simulation::apiserver::NODE;
use bulkhead_simulation::attacher::attachment;
use bulkhead_simulation::volumes::{DRIVER, unique_name};
use bulkhead_simulation::volumes_schedule::Claim;
use bulkhead_testkit::cluster::controllers_are_there;
use bulkhead_testkit::image;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::wait::{LONG, eventually};
use serde_json::{Value, json};

use super::{PODS, Subject};

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";

/// That the node's kubelet leaves attaching to the controller (upstream ControllerManagedAttachAnnotation).
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

fn hold(subject: &Subject) -> Result<()> {
    subject.furnish()?;
    what_a_pod_wants_is_attached_until_nobody_uses_it(subject).context("what a pod wants")?;
    what_an_ended_pod_wanted_is_detached(subject).context("an ended pod")?;
    an_ephemeral_claim_is_its_pods(subject).context("an ephemeral claim")?;
    subject.is_content()
}

#[test]
fn the_model_is_the_clusters_controllers() -> Result<()> {
    hold(&Subject::model()?)
}

#[test]
fn kube_controller_manager_is_what_the_model_takes_it_for() -> Result<()> {
    if !controllers_are_there() {
        return skip_this_test(Lack::ControlPlane);
    }
    hold(&Subject::real()?)
}

impl Subject {
    /// The node, and claims that are bound.
    fn furnish(&self) -> Result<()> {
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": NODE, "annotations": {MANAGED: "true"}}});
        self.create("/api/v1/nodes", &node)?;
        match self {
            Subject::Model { model, .. } => model.furnish(),
            Subject::Real { .. } => {
                let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
                    "metadata": {"name": DRIVER}, "spec": {"attachRequired": true, "podInfoOnMount": false}});
                self.create("/apis/storage.k8s.io/v1/csidrivers", &driver)?;
                [Claim::Once, Claim::Many].into_iter().try_for_each(|claim| self.claim(claim))?;
            }
        }
        for claim in [Claim::Once, Claim::Many] {
            self.eventually("a claim is bound", || {
                let found = self.get(&format!("{CLAIMS}/{}", claim.name()))?.context("no claim")?;
                ensure!(found["status"]["phase"] == "Bound", "{found}");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// A claim, and the volume that is to be bound to it.
    fn claim(&self, claim: Claim) -> Result<()> {
        let (name, volume) = (claim.name(), claim.volume_of(""));
        let (modes, size) = (json!([claim.access_mode()]), json!({"storage": "1Mi"}));
        let made = self.create(
            CLAIMS,
            &json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
                "spec": {"accessModes": modes, "storageClassName": "", "volumeName": volume,
                    "resources": {"requests": size}}}),
        )?;
        let claimed = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name,
            "namespace": "default", "uid": made["metadata"]["uid"]});
        self.create(
            VOLUMES,
            &json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
                "spec": {"accessModes": modes, "capacity": size, "storageClassName": "",
                    "persistentVolumeReclaimPolicy": "Retain", "claimRef": claimed,
                    "csi": {"driver": DRIVER, "volumeHandle": volume}}}),
        )?;
        Ok(())
    }

    /// What there is to do is done.
    fn goes_on(&self) -> Result<()> {
        match self {
            Subject::Model { model, .. } => model.reconcile(),
            Subject::Real { .. } => {
                let all = self.get(ATTACHMENTS)?.unwrap_or_default();
                for one in all["items"].as_array().into_iter().flatten() {
                    let name = one["metadata"]["name"].as_str().unwrap_or_default();
                    if one["status"]["attached"] != true {
                        let path = format!("{ATTACHMENTS}/{name}/status");
                        self.patch(&path, &json!({"status": {"attached": true}}))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn eventually<T>(&self, what: &str, mut look: impl FnMut() -> Result<T>) -> Result<T> {
        eventually(what, LONG, || {
            self.goes_on()?;
            look()
        })
    }

    fn pod(&self, name: &str, volume: &Value) -> Result<Value> {
        self.create(
            PODS,
            &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
                "spec": {"nodeName": NODE, "automountServiceAccountToken": false, "volumes": [volume],
                    "containers": [{"name": "main", "image": image::BUSYBOX}]}}),
        )
    }

    fn pod_with(&self, name: &str, claim: Claim) -> Result<Value> {
        let name_of_claim = claim.name();
        self.pod(name, &json!({"name": name_of_claim, "persistentVolumeClaim": {"claimName": name_of_claim}}))
    }

    fn uses(&self, claims: &[Claim]) -> Result<()> {
        let names: Vec<String> = claims.iter().map(|claim| unique_name(&claim.volume_of(""))).collect();
        self.patch(&format!("/api/v1/nodes/{NODE}/status"), &json!({"status": {"volumesInUse": names}}))
    }

    /// The Node names it as attached, and there is an attachment of it.
    fn is_attached(&self, claim: Claim) -> Result<(bool, Option<Value>)> {
        let node = self.get(&format!("/api/v1/nodes/{NODE}"))?.context("no Node")?;
        let name = unique_name(&claim.volume_of(""));
        let mut attached = node["status"]["volumesAttached"].as_array().into_iter().flatten();
        let made = self.get(&format!("{ATTACHMENTS}/{}", attachment(&claim.volume_of(""))))?;
        Ok((attached.any(|one| one["name"] == name), made))
    }

    fn wait_attached(&self, claim: Claim) -> Result<()> {
        self.eventually(&format!("{} is attached", claim.name()), || {
            let (is_told, made) = self.is_attached(claim)?;
            let made = made.context("no VolumeAttachment")?;
            ensure!(made["spec"]["attacher"] == DRIVER && made["spec"]["nodeName"] == NODE, "{made}");
            ensure!(made["spec"]["source"]["persistentVolumeName"] == claim.volume_of(""), "{made}");
            ensure!(is_told && made["status"]["attached"] == true, "told: {is_told}, {made}");
            Ok(())
        })
    }

    fn wait_detached(&self, claim: Claim) -> Result<()> {
        self.eventually(&format!("{} is detached", claim.name()), || match self.is_attached(claim)? {
            (false, None) => Ok(()),
            (is_told, made) => bail!("told: {is_told}, {made:?}"),
        })
    }
}

/// Attached when a pod of the node wants it; when none does, detached once the Node does not say any more that it is in use.
fn what_a_pod_wants_is_attached_until_nobody_uses_it(subject: &Subject) -> Result<()> {
    for (pod, claim) in [("one", Claim::Once), ("other", Claim::Many)] {
        ensure!(subject.is_attached(claim)? == (false, None), "nobody wants it yet");
        subject.pod_with(pod, claim)?;
        subject.wait_attached(claim)?;
    }
    subject.uses(&[Claim::Once])?;
    for pod in ["one", "other"] {
        subject.delete_pod(pod)?;
    }
    // By then the controllers have seen that both pods are gone.
    subject.wait_detached(Claim::Many)?;
    let (is_told, made) = subject.is_attached(Claim::Once)?;
    let is_attached = made.as_ref().is_some_and(|made| made["metadata"]["deletionTimestamp"].is_null());
    ensure!(is_told && is_attached, "it is in use: {is_told}, {made:?}");
    subject.uses(&[])?;
    subject.wait_detached(Claim::Once)
}

/// A pod that has ended wants nothing, though its object is there.
fn what_an_ended_pod_wanted_is_detached(subject: &Subject) -> Result<()> {
    subject.pod_with("ends", Claim::Once)?;
    subject.wait_attached(Claim::Once)?;
    subject.patch(&format!("{PODS}/ends/status"), &json!({"status": {"phase": "Succeeded"}}))?;
    subject.wait_detached(Claim::Once)?;
    ensure!(subject.get(&format!("{PODS}/ends"))?.is_some(), "its object is there");
    Ok(())
}

/// A claim of a generic ephemeral volume comes after its pod, is the pod's, and goes after it.
fn an_ephemeral_claim_is_its_pods(subject: &Subject) -> Result<()> {
    let own = Claim::Own.name();
    let spec = json!({"accessModes": [Claim::Own.access_mode()], "storageClassName": "",
        "resources": {"requests": {"storage": "1Mi"}}});
    let volume = json!({"name": own, "ephemeral": {"volumeClaimTemplate": {"spec": spec}}});
    let path = |pod: &str| format!("{CLAIMS}/{pod}-{own}");
    for pod in ["stays", "goes"] {
        let made = subject.pod(pod, &volume)?;
        let claim = subject.eventually("its claim is there", || subject.get(&path(pod))?.context("no claim"))?;
        let owners = &claim["metadata"]["ownerReferences"];
        let of_pod = json!([{"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": made["metadata"]["uid"],
            "controller": true, "blockOwnerDeletion": true}]);
        ensure!(*owners == of_pod, "{owners}");
        ensure!(claim["spec"]["accessModes"] == spec["accessModes"], "{claim}");
    }
    subject.delete_pod("goes")?;
    subject.eventually("its claim goes", || match subject.get(&path("goes"))? {
        None => Ok(()),
        Some(claim) => bail!("{claim}"),
    })?;
    let stays = subject.get(&path("stays"))?.context("the other pod's claim")?;
    ensure!(stays["metadata"]["deletionTimestamp"].is_null(), "{stays}");
    subject.delete_pod("stays")
}
