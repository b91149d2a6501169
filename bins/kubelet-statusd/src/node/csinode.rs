//! The CSINode object: there with no drivers from the start, and owned by this Node. Its drivers are `csi_drivers`'.
//!
//! As upstream's `pkg/volume/csi/nodeinfomanager`: until it stands the node is not Ready. Two things are otherwise: what
//! keeps failing is tried again for ever, where upstream ends its process; and an API server without this API does not
//! hold the node back.

use std::time::Duration;

use bulkhead_apiclient::random_fraction;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::cadence::jittered;
use super::lease::owner;
use super::metrics::Metrics;
use super::server::{RequestError, Server};

const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
/// In-tree plugins whose volumes CSI drivers serve; sorted.
const PLUGINS: &str = "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,\
                       kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume";
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(30));

/// How far the object is; the text is Ready's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress {
    NotYet,
    Failed(String),
    Done,
}

impl Progress {
    /// Why the node is not Ready.
    pub fn problem(&self) -> Option<String> {
        match self {
            Progress::NotYet => Some("CSINode is not yet initialized".to_owned()),
            Progress::Failed(why) => Some(format!("failed to initialize CSINode: {why}")),
            Progress::Done => None,
        }
    }
}

/// What has to be done to the object. Pure.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Create(Box<CSINode>),
    /// Of a Node of the same name that is gone.
    Delete {
        uid: Option<String>,
    },
    Patch(Value),
    Nothing,
}

/// The step that an object, or its absence, calls for.
pub fn step(existing: Option<&CSINode>, node: &str, node_uid: &str) -> Step {
    let Some(existing) = existing else {
        let metadata = ObjectMeta {
            name: Some(node.to_owned()),
            annotations: Some([(MIGRATED.to_owned(), PLUGINS.to_owned())].into()),
            owner_references: Some(vec![owner(node, node_uid)]),
            ..ObjectMeta::default()
        };
        return Step::Create(Box::new(CSINode { metadata, spec: CSINodeSpec::default() }));
    };
    let mut owners = existing.metadata.owner_references.iter().flatten();
    if !owners.any(|owner| owner.kind == "Node" && owner.name == node && owner.uid == node_uid) {
        return Step::Delete { uid: existing.metadata.uid.clone() };
    }
    let annotation = existing.metadata.annotations.as_ref().and_then(|map| map.get(MIGRATED));
    if annotation.map(String::as_str) != Some(PLUGINS) {
        return Step::Patch(json!({"metadata": {"annotations": {MIGRATED: PLUGINS}}}));
    }
    Step::Nothing
}

/// Sees to the object until it stands, then ends.
pub async fn run(server: Server, metrics: Metrics, node_uid: String, progress: watch::Sender<Progress>) {
    let mut retry = RETRY.0;
    loop {
        match once(&server, &metrics, &node_uid).await {
            Ok(true) => {
                progress.send_replace(Progress::Done);
                return;
            }
            // The one of a former Node was deleted: the next look creates ours.
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, ?retry, "failed to create CSINode, will retry");
                progress.send_replace(Progress::Failed(error.to_string()));
            }
        }
        server.pause(jittered(retry, 0.1, random_fraction())).await;
        retry = (retry * 3).min(RETRY.1);
    }
}

/// One step towards it; whether it stands.
///
/// # Errors
/// See [`RequestError`].
pub async fn once(server: &Server, metrics: &Metrics, node_uid: &str) -> Result<bool, RequestError> {
    let existing = match server.get_csi_node().await {
        Ok(node) => Some(node),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error),
    };
    let written = match step(existing.as_ref(), server.name(), node_uid) {
        Step::Nothing => return Ok(true),
        Step::Create(node) => match server.create_csi_node(&node).await {
            Ok(_) => Ok(true),
            // Nothing but the API itself can be missing when an object is created.
            Err(error) if error.is_not_found() => {
                tracing::warn!("the API server does not serve CSINode: volumes of CSI drivers will not work");
                return Ok(true);
            }
            // Somebody was faster: the next look says whose it is.
            Err(error) if error.already_exists() => return Ok(false),
            Err(error) => Err(error),
        },
        Step::Delete { uid } => server.delete_csi_node(uid).await.map(|()| false),
        Step::Patch(patch) => server.patch_csi_node(&patch).await.map(|_| true),
    };
    metrics.csi_node_write(written.is_ok());
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_one_is_upstreams() {
        let Step::Create(node) = step(None, "node-a", "u") else { panic!("it has to be created") };
        assert_eq!(
            serde_json::to_value(node).unwrap(),
            json!({
                "apiVersion": "storage.k8s.io/v1",
                "kind": "CSINode",
                "metadata": {
                    "name": "node-a",
                    "annotations": {"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume"},
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "u"}],
                },
                "spec": {"drivers": []},
            })
        );
    }

    #[test]
    fn existing_ones() {
        let existing = |owner_uid: &str, annotation: &str| -> CSINode {
            serde_json::from_value(json!({
                "metadata": {
                    "name": "n", "uid": "c", "annotations": {MIGRATED: annotation, "a": "b"},
                    "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": owner_uid}],
                },
                "spec": {"drivers": null},
            }))
            .unwrap()
        };
        assert_eq!(step(Some(&existing("u", PLUGINS)), "n", "u"), Step::Nothing);
        assert_eq!(step(Some(&existing("old", PLUGINS)), "n", "u"), Step::Delete { uid: Some("c".into()) });
        assert_eq!(
            step(Some(&existing("u", "x")), "n", "u"),
            Step::Patch(json!({"metadata": {"annotations": {MIGRATED: PLUGINS}}}))
        );
        let unowned: CSINode = serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {}})).unwrap();
        assert_eq!(step(Some(&unowned), "n", "u"), Step::Delete { uid: None });
    }

    #[test]
    fn texts() {
        assert_eq!(Progress::NotYet.problem().unwrap(), "CSINode is not yet initialized");
        assert_eq!(Progress::Failed("x".into()).problem().unwrap(), "failed to initialize CSINode: x");
        assert_eq!(Progress::Done.problem(), None);
    }
}
