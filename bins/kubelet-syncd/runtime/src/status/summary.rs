//! Containers in a few words, for `kubelet-ctl` and other readers that want no Kubernetes types.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

/// One container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContainerSummary {
    pub name: String,
    /// Without `containerd://`.
    pub id: String,
    /// `waiting`, `running` or `terminated`.
    pub state: &'static str,
    pub reason: String,
    pub message: String,
    pub exit_code: i32,
    pub restart_count: u32,
    pub image: String,
    pub image_id: String,
    /// RFC 3339, or empty.
    pub started_at: String,
    /// RFC 3339, or empty.
    pub finished_at: String,
    pub ready: bool,
    pub init: bool,
}

/// All containers of the status, init containers first.
pub fn summarize(status: &PodStatus) -> Vec<ContainerSummary> {
    let init = status.init_container_statuses.iter().flatten().map(|s| one(s, true));
    let rest = status.container_statuses.iter().chain(&status.ephemeral_container_statuses).flatten();
    init.chain(rest.map(|s| one(s, false))).collect()
}

fn one(status: &ContainerStatus, init: bool) -> ContainerSummary {
    let id = status.container_id.as_deref().unwrap_or("");
    let mut summary = ContainerSummary {
        name: status.name.clone(),
        id: id.split_once("://").map_or(id, |(_, id)| id).to_owned(),
        state: "waiting",
        restart_count: u32::try_from(status.restart_count).unwrap_or(0),
        image: status.image.clone(),
        image_id: status.image_id.clone(),
        ready: status.ready,
        init,
        ..ContainerSummary::default()
    };
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let time = |value: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
        value.as_ref().map(|t| t.0.to_string()).unwrap_or_default()
    };
    let state = status.state.clone().unwrap_or_default();
    if let Some(running) = &state.running {
        summary.state = "running";
        summary.started_at = time(&running.started_at);
    } else if let Some(terminated) = &state.terminated {
        summary.state = "terminated";
        summary.exit_code = terminated.exit_code;
        summary.reason = text(&terminated.reason);
        summary.message = text(&terminated.message);
        summary.started_at = time(&terminated.started_at);
        summary.finished_at = time(&terminated.finished_at);
    } else if let Some(waiting) = &state.waiting {
        summary.reason = text(&waiting.reason);
        summary.message = text(&waiting.message);
    }
    summary
}
