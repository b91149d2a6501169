//! What the pods API tells: the pods that the sources want, each with the status that is known here, before the API server has it.

use std::sync::Arc;

use bulkhead_ipc::syncd::{PodState, WorkerState};
use bulkhead_types::PodUid;
use kubelet_model::v1::Pod;
use kubelet_pods_api::{Providers, Seen};
use serde_json::Value;
use tokio::sync::watch;

use super::node_view::NodeView;
use crate::hub::PodHub;
use crate::hub::pods::Change;

/// See the module.
#[derive(Debug)]
pub struct NodePods {
    pub view: Arc<NodeView>,
    pub hub: Arc<PodHub>,
}

/// None: it cannot be written as JSON, which no pod is.
fn object(pod: &Pod, state: Option<&PodState>, managed_fields: Option<&[u8]>) -> Option<Value> {
    let mut object = serde_json::to_value(pod).ok()?;
    let json = |text: &[u8]| serde_json::from_slice::<Value>(text).ok();
    if let Some(status) = state.and_then(|state| json(&state.status_json)) {
        object["status"] = status;
    }
    if let Some(fields) = managed_fields.and_then(json) {
        object["metadata"]["managedFields"] = fields;
    }
    Some(object)
}

impl Providers for NodePods {
    fn uids(&self) -> Vec<String> {
        let pods = self.view.sources().map(|sources| sources.pods()).unwrap_or_default();
        pods.iter().filter_map(|pod| pod.metadata.uid.clone()).collect()
    }

    fn pod(&self, uid: &str) -> Seen {
        let Ok(uid) = PodUid::parse(uid) else { return Seen { pod: None, over: true } };
        let wanted = self.view.sources().and_then(|sources| sources.pod(&uid));
        let state = self.hub.get(&uid);
        // A pod that the sync loop has not taken in yet is no pod that is over.
        let over = state.as_ref().map_or(wanted.is_none(), |state| state.worker() == WorkerState::Finished);
        let fields = self.hub.managed_fields(&uid);
        let pod = wanted.and_then(|pod| object(&pod, state.as_deref(), fields.as_deref()));
        Seen { pod, over }
    }

    fn since(&self, position: Option<u64>) -> (u64, Vec<String>) {
        let (position, changes) = self.hub.since(position);
        let uid = |change| match change {
            Change::Upsert(_, uid) => Some(uid.to_string()),
            Change::Removed(_, uid) => Some(uid),
            Change::SnapshotDone(_) => None,
        };
        (position, changes.into_iter().filter_map(uid).collect())
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.hub.watch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_newest_status_is_told() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": {"containers": []},
            "status": {"phase": "Pending"}}))
        .unwrap();
        let state = PodState { status_json: br#"{"phase":"Running"}"#.to_vec(), ..PodState::default() };
        let phase = |state: Option<&PodState>| object(&pod, state, None).unwrap()["status"]["phase"].clone();
        assert_eq!((phase(None), phase(Some(&PodState::default()))), (json!("Pending"), json!("Pending")));
        assert_eq!(phase(Some(&state)), json!("Running"));
        let fields = object(&pod, None, Some(br#"[{"manager":"m"}]"#)).unwrap();
        assert_eq!(fields["metadata"]["managedFields"], json!([{"manager": "m"}]));
    }
}
