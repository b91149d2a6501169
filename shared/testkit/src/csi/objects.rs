//! Objects of the API about storage, to be created.

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::Cluster;

/// A class of volumes of a driver, with more fields (`volumeBindingMode`).
pub fn storage_class(name: &str, driver: &str, fields: &Value) -> Value {
    let mut class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": driver, "allowVolumeExpansion": true, "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate"});
    merge(&mut class, fields);
    class
}

/// What the cluster is told of a driver.
pub fn csi_driver(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": name}, "spec": spec})
}

/// A claim of a class for `size`, in the namespace `default`; `spec` says more (`volumeMode`, `volumeName`).
pub fn claim(name: &str, class: &str, size: &str, spec: &Value) -> Value {
    let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": size}}}});
    merge(&mut claim["spec"], spec);
    claim
}

/// Creates a volume of a driver, its handle being its name, and the claim of the same name, bound to each other as the controller of
/// claims would: for clusters where none runs. `spec` says more of the volume (`volumeMode`, `accessModes`, `csi`).
///
/// # Errors
/// An object was refused.
pub fn create_bound(cluster: &Cluster, name: &str, driver: &str, spec: &Value) -> Result<()> {
    let mut own = json!({"volumeName": name});
    for field in ["accessModes", "storageClassName", "volumeMode"] {
        if !spec[field].is_null() {
            own[field] = spec[field].clone();
        }
    }
    let claim = cluster.create(&claim(name, "", "16Mi", &own))?;
    let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "16Mi"}, "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": "default",
                "uid": claim["metadata"]["uid"]},
            "csi": {"driver": driver, "volumeHandle": name}}});
    merge(&mut volume["spec"], spec);
    cluster.create(&volume)?;
    let capacity = json!({"storage": "16Mi"});
    let status =
        json!({"status": {"phase": "Bound", "capacity": capacity, "accessModes": volume["spec"]["accessModes"]}});
    cluster.patch_status("persistentvolumeclaims", "default", name, &status)?;
    cluster.patch_status("persistentvolumes", "", name, &json!({"status": {"phase": "Bound"}})).map(drop)
}

/// A volume of a pod that is made of a claim.
pub fn of_claim(claim: &str) -> Value {
    json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}})
}

/// Sets fields; those of objects one by one.
fn merge(into: &mut Value, other: &Value) {
    let empty = Map::new();
    for (key, value) in other.as_object().unwrap_or(&empty) {
        if value.is_object() && into[key].is_object() {
            merge(&mut into[key], value);
        } else {
            into[key] = value.clone();
        }
    }
}
