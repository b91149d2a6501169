//! The mirror pod of a static pod: what it is made from and whether it is still the right one
//! (upstream `pkg/kubelet/pod/mirror_client.go`).

use serde_json::{Map, Value, json};

/// Names the static pod's own hash.
const HASH: &str = "kubernetes.io/config.hash";
/// Makes a pod a mirror pod.
pub const MIRROR: &str = "kubernetes.io/config.mirror";

/// A static pod from which no mirror pod can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MirrorError {
    #[error("static pod is no JSON object with metadata")]
    NotAPod,
    #[error("static pod has no annotation {HASH}")]
    NoHash,
}

/// The node that owns mirror pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub name: String,
    pub uid: String,
}

/// A static pod, read.
#[derive(Debug, Clone, PartialEq)]
pub struct StaticPod {
    pod: Map<String, Value>,
    pub hash: String,
}

impl StaticPod {
    /// # Errors
    /// [`MirrorError`].
    pub fn parse(json: &[u8]) -> Result<Self, MirrorError> {
        let Ok(Value::Object(pod)) = serde_json::from_slice(json) else { return Err(MirrorError::NotAPod) };
        if !pod.get("metadata").is_some_and(Value::is_object) {
            return Err(MirrorError::NotAPod);
        }
        let hash = pod["metadata"]["annotations"][HASH].as_str().unwrap_or_default().to_owned();
        if hash.is_empty() {
            return Err(MirrorError::NoHash);
        }
        Ok(StaticPod { pod, hash })
    }

    /// The object to create.
    pub fn mirror(&self, owner: &Owner) -> Value {
        let mut pod = self.pod.clone();
        pod.insert("apiVersion".into(), json!("v1"));
        pod.insert("kind".into(), json!("Pod"));
        pod.remove("status");
        let mut mirror = Value::Object(pod);
        let metadata = &mut mirror["metadata"];
        metadata["annotations"][MIRROR] = json!(self.hash);
        metadata["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Node", "name": owner.name, "uid": owner.uid, "controller": true}]);
        if let Some(metadata) = metadata.as_object_mut() {
            // The server's to choose.
            for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
                metadata.remove(field);
            }
        }
        mirror
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_with_an_owner_and_a_hash() {
        let pod = json!({"metadata": {"name": "web-n", "namespace": "kube-system", "uid": "abc", "generation": 1, "labels": {"tier": "static"},
            "annotations": {"kubernetes.io/config.hash": "abc", "kubernetes.io/config.source": "file"}},
            "spec": {"nodeName": "n"}, "status": {"phase": "Pending"}});
        let pod = StaticPod::parse(pod.to_string().as_bytes()).unwrap();
        let owner = Owner { name: "n".into(), uid: "node-uid".into() };
        assert_eq!(
            pod.mirror(&owner),
            json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "n"},
                "metadata": {"name": "web-n", "namespace": "kube-system", "labels": {"tier": "static"},
                    "annotations": {"kubernetes.io/config.hash": "abc", "kubernetes.io/config.mirror": "abc", "kubernetes.io/config.source": "file"},
                    "ownerReferences": [{"apiVersion": "v1", "controller": true, "kind": "Node", "name": "n", "uid": "node-uid"}]}})
        );
    }

    #[test]
    fn what_is_no_static_pod_makes_none() {
        assert_eq!(StaticPod::parse(b"[]"), Err(MirrorError::NotAPod));
        assert_eq!(StaticPod::parse(br#"{"metadata":[]}"#), Err(MirrorError::NotAPod));
        assert_eq!(StaticPod::parse(br#"{"metadata":{"name":"a"}}"#), Err(MirrorError::NoHash));
        assert_eq!(StaticPod::parse(br#"{"metadata":{"annotations":5}}"#), Err(MirrorError::NoHash));
    }
}
