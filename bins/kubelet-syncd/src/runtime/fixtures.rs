//! Small values for tests of these modules.

use std::time::SystemTime;

use bulkhead_types::{ContainerId, PodUid, SandboxId};
use k8s_openapi::api::core::v1::Pod;

use super::hash::container_hash;
use super::model::{ContainerStatus, RunState, SandboxState, SandboxStatus};

pub const UID: &str = "11111111-2222-3333-4444-555555555555";

/// A static pod `p` in `ns` with that spec.
pub fn pod(spec: serde_json::Value) -> Pod {
    serde_json::from_value(serde_json::json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": UID,
                     "annotations": {"kubernetes.io/config.source": "file"}},
        "spec": spec,
    }))
    .unwrap()
}

pub fn uid() -> PodUid {
    PodUid::parse(UID).unwrap()
}

pub fn sandbox_status(id: &str, attempt: u32, state: SandboxState) -> SandboxStatus {
    SandboxStatus {
        id: SandboxId::parse(id).unwrap(),
        attempt,
        state,
        created_at: SystemTime::UNIX_EPOCH,
        host_network: false,
        has_network: true,
        ips: vec!["10.88.0.5".parse().unwrap()],
    }
}

/// An instance of container `name` with image `i`, in sandbox `s0`, with id `<name>-id`.
pub fn container_status(name: &str, state: RunState, exit_code: i32) -> ContainerStatus {
    ContainerStatus {
        id: ContainerId::parse(&format!("{name}-id")).unwrap(),
        name: name.to_owned(),
        sandbox_id: SandboxId::parse("s0").unwrap(),
        state,
        created_at: SystemTime::UNIX_EPOCH,
        started_at: (state != RunState::Created).then_some(SystemTime::UNIX_EPOCH),
        finished_at: (state == RunState::Exited).then_some(SystemTime::UNIX_EPOCH),
        exit_code,
        reason: match (state, exit_code) {
            (RunState::Exited, 0) => "Completed".to_owned(),
            (RunState::Exited, _) => "Error".to_owned(),
            _ => String::new(),
        },
        message: String::new(),
        image: "i".to_owned(),
        image_ref: "sha256:i".to_owned(),
        restart_count: 0,
        hash: container_hash(name, "i"),
        log_path: String::new(),
        termination_message_path: String::new(),
        termination_message_policy: String::new(),
        termination_message_host_path: None,
        pod_termination_grace: None,
        pod_deletion_grace: None,
    }
}
