//! Pods as programs get to see them: stable names, absent instead of empty.

use bulkhead_ipc::syncd::{ContainerState, Event, PodState, PodVolume, WorkerState};
use serde::Serialize;

/// One pod.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) source: String,
    /// What the API server has of it, as kubelet-syncd saw it last; absent: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) api: Option<ApiCopy>,
    pub(crate) worker: &'static str,
    pub(crate) phase: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    pub(crate) why: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) why_since: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) qos_class: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) cgroup: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) sandbox_id: String,
    pub(crate) sandbox_ready: bool,
    pub(crate) ips: Vec<String>,
    pub(crate) host_network: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) started_at: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) log_directory: String,
    pub(crate) containers: Vec<Container>,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) conditions: Vec<Condition>,
    pub(crate) events: Vec<PodEvent>,
    /// v1.PodStatus, where one pod was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<serde_json::Value>,
}

/// A pod on the API server.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ApiCopy {
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) deleting: bool,
    /// It only shows a pod that comes from a manifest.
    pub(crate) mirror: bool,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Container {
    pub(crate) name: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) init: bool,
    pub(crate) state: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exit_code: Option<i32>,
    pub(crate) ready: bool,
    /// Its startup probe has succeeded, or it has none; absent while that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started: Option<bool>,
    pub(crate) restarts: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) back_off_until: String,
    pub(crate) image: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) image_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) started_at: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) finished_at: String,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) ready: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) host_path: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) error: String,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Condition {
    pub(crate) r#type: String,
    pub(crate) status: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) last_transition: String,
}

#[derive(Debug, Clone, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PodEvent {
    pub(crate) time: String,
    pub(crate) r#type: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) field_path: String,
    pub(crate) namespace: String,
    pub(crate) pod: String,
}

impl Pod {
    /// `with_status`: keep the whole v1.PodStatus too.
    pub(crate) fn new(state: PodState, with_status: bool) -> Self {
        let worker = match state.worker() {
            WorkerState::Unspecified => "Unknown",
            WorkerState::Waiting => "Waiting",
            WorkerState::Sync => "Sync",
            WorkerState::Terminating => "Terminating",
            WorkerState::Terminated => "Terminated",
            WorkerState::Finished => "Finished",
        };
        let whole: Option<serde_json::Value> = serde_json::from_slice(&state.status_json).ok();
        let started = |name: &str| has_started(whole.as_ref()?, name);
        let events = state.recent_events.into_iter().map(|event| PodEvent::new(event, &state.namespace, &state.name));
        Pod {
            events: events.collect(),
            namespace: state.namespace,
            name: state.name,
            uid: state.uid,
            source: state.source,
            api: state.api.map(|api| ApiCopy {
                uid: api.uid,
                resource_version: api.resource_version,
                deleting: api.deleting,
                mirror: !api.mirror_hash.is_empty(),
            }),
            worker,
            phase: state.phase,
            reason: state.reason,
            message: state.message,
            why: state.why,
            why_since: state.why_since,
            qos_class: state.qos_class,
            cgroup: state.cgroup,
            sandbox_id: state.sandbox_id,
            sandbox_ready: state.sandbox_ready,
            ips: state.ips,
            host_network: state.host_network,
            started_at: state.started_at,
            log_directory: state.log_directory,
            containers: state
                .containers
                .into_iter()
                .map(|container| Container { started: started(&container.name), ..Container::new(container) })
                .collect(),
            volumes: state.volumes.into_iter().map(Volume::new).collect(),
            conditions: state
                .conditions
                .into_iter()
                .map(|condition| Condition {
                    r#type: condition.r#type,
                    status: condition.status,
                    reason: condition.reason,
                    message: condition.message,
                    last_transition: condition.last_transition,
                })
                .collect(),
            status: whole.filter(|_| with_status),
        }
    }

    /// What is asked for and not given yet, as the pod's conditions say.
    pub(crate) fn resize(&self) -> String {
        let one = |kind: &str, word: &str| {
            let condition = self.conditions.iter().find(|condition| condition.r#type == kind && condition.status)?;
            let details = [condition.reason.as_str(), condition.message.as_str()];
            let details: Vec<&str> = details.into_iter().filter(|detail| !detail.is_empty()).collect();
            Some(if details.is_empty() { word.to_owned() } else { format!("{word} ({})", details.join(": ")) })
        };
        let both = [one("PodResizeInProgress", "in progress"), one("PodResizePending", "pending")];
        both.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// The SOURCE column: where the pod is from, and what of it is on the API server when that does not go without saying.
    pub(crate) fn origin(&self) -> String {
        let more = match &self.api {
            Some(api) if api.mirror && api.deleting => "/mirror deleting",
            Some(api) if api.mirror => "/mirror",
            Some(api) if api.deleting => "/deleting",
            None if self.source == "api" => "/gone",
            _ => "",
        };
        format!("{}{more}", self.source)
    }

    /// The STATUS column as kubectl works it out: what a container waits for or ended with comes before the phase.
    pub(crate) fn status_word(&self) -> String {
        if matches!(self.worker, "Terminating") {
            return "Terminating".into();
        }
        if !self.reason.is_empty() {
            return self.reason.clone();
        }
        let inits = self.containers.iter().filter(|container| container.init);
        let init_count = inits.clone().count();
        for (index, init) in inits.enumerate() {
            match init.state.as_str() {
                "terminated" if init.exit_code.unwrap_or(0) == 0 => {}
                // A sidecar that has started.
                "running" if init.ready => {}
                "running" | "" => return format!("Init:{index}/{init_count}"),
                _ if init.reason.is_empty() || init.reason == "PodInitializing" => {
                    return format!("Init:{index}/{init_count}");
                }
                _ => return format!("Init:{}", init.reason),
            }
        }
        let main: Vec<_> = self.containers.iter().filter(|container| !container.init).collect();
        if main.iter().any(|container| container.state == "waiting" || container.state == "terminated") {
            let troubled = main.iter().rev().find(|container| {
                !container.reason.is_empty() && container.state != "running" && container.reason != "Completed"
            });
            if let Some(container) = troubled {
                return container.reason.clone();
            }
            if main.iter().all(|container| container.state == "terminated") {
                return "Completed".into();
            }
        }
        self.phase.clone()
    }

    /// "1/2": ready ones of the containers that are not init containers.
    pub(crate) fn ready(&self) -> String {
        let main = self.containers.iter().filter(|container| !container.init);
        format!("{}/{}", main.clone().filter(|container| container.ready).count(), main.count())
    }

    pub(crate) fn restarts(&self) -> u32 {
        self.containers.iter().map(|container| container.restarts).sum()
    }
}

/// `started` of a container in a v1.PodStatus.
fn has_started(status: &serde_json::Value, name: &str) -> Option<bool> {
    let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let containers = lists.into_iter().filter_map(|list| status[list].as_array()).flatten();
    containers.into_iter().find(|container| container["name"] == name)?["started"].as_bool()
}

impl Container {
    /// What its probes wait for, in a pod that is to run.
    pub(crate) fn probes_wait_for(&self) -> &'static str {
        match (self.state.as_str(), self.started, self.ready) {
            ("running", Some(false), _) => "its startup probe has not succeeded yet",
            // An init container that is to end is never ready while it runs.
            ("running", Some(true), false) if !self.init => "its readiness probe does not succeed",
            _ => "",
        }
    }

    fn new(state: ContainerState) -> Self {
        Container {
            exit_code: (state.state == "terminated").then_some(state.exit_code),
            name: state.name,
            init: state.init,
            state: state.state,
            reason: state.reason,
            message: state.message,
            ready: state.ready,
            started: None,
            restarts: state.restart_count,
            back_off_until: state.back_off_until,
            image: state.image,
            image_id: state.image_id,
            id: state.id,
            started_at: state.started_at,
            finished_at: state.finished_at,
        }
    }
}

impl Volume {
    fn new(volume: PodVolume) -> Self {
        Volume {
            name: volume.name,
            kind: volume.kind,
            ready: volume.ready,
            host_path: volume.host_path,
            error: volume.error,
        }
    }
}

impl PodEvent {
    /// An event of a pod; one that does not name it is of the pod that carries it.
    fn new(event: Event, namespace: &str, pod: &str) -> Self {
        let or = |text: String, other: &str| if text.is_empty() { other.to_owned() } else { text };
        PodEvent {
            time: event.time,
            r#type: event.r#type,
            reason: event.reason,
            message: event.message,
            field_path: event.field_path,
            namespace: or(event.namespace, namespace),
            pod: or(event.pod_name, pod),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_probes_wait_for_and_what_a_resize_has_come_to() {
        let status = serde_json::json!({
            "initContainerStatuses": [{"name": "init", "started": true}, {"name": "sidecar", "started": false}],
            "containerStatuses": [{"name": "slow", "started": false}, {"name": "sick", "started": true}, {"name": "well", "started": true}, {"name": "new"}],
        });
        let container = |name: &str, init: bool, ready: bool| ContainerState {
            name: name.into(),
            state: "running".into(),
            init,
            ready,
            ..Default::default()
        };
        let condition = |kind: &str, reason: &str, message: &str| bulkhead_ipc::syncd::Condition {
            r#type: kind.into(),
            status: true,
            reason: reason.into(),
            message: message.into(),
            ..Default::default()
        };
        let state = PodState {
            status_json: status.to_string().into_bytes(),
            containers: vec![
                container("init", true, false),
                container("sidecar", true, false),
                container("slow", false, false),
                container("sick", false, false),
                container("well", false, true),
                container("new", false, false),
            ],
            conditions: vec![
                condition("PodResizePending", "Deferred", "Node didn't have enough resource: cpu"),
                condition("PodResizeInProgress", "", ""),
            ],
            ..Default::default()
        };
        let pod = Pod::new(state, false);
        let waits: Vec<&str> = pod.containers.iter().map(Container::probes_wait_for).collect();
        let (startup, readiness) = ("its startup probe has not succeeded yet", "its readiness probe does not succeed");
        assert_eq!(waits, ["", startup, startup, readiness, "", ""]);
        assert_eq!(pod.resize(), "in progress, pending (Deferred: Node didn't have enough resource: cpu)");
        assert!(pod.status.is_none());
    }

    #[test]
    fn status_words_are_kubectls() {
        let container = |state: &str, reason: &str, init: bool| ContainerState {
            name: "c".into(),
            state: state.into(),
            reason: reason.into(),
            init,
            // An init container is ready when it has ended well; a running one only as a sidecar that has started.
            ready: state == "running" && !init,
            ..Default::default()
        };
        let pod = |phase: &str, containers: Vec<ContainerState>| {
            Pod::new(PodState { phase: phase.into(), containers, ..Default::default() }, false)
        };
        for (pod, word) in [
            (pod("Running", vec![container("running", "", false)]), "Running"),
            (pod("Running", vec![container("waiting", "CrashLoopBackOff", false)]), "CrashLoopBackOff"),
            (pod("Pending", vec![container("waiting", "ContainerCreating", false)]), "ContainerCreating"),
            (pod("Succeeded", vec![container("terminated", "Completed", false)]), "Completed"),
            (pod("Failed", vec![container("terminated", "Error", false)]), "Error"),
            (
                pod("Pending", vec![container("running", "", true), container("waiting", "PodInitializing", false)]),
                "Init:0/1",
            ),
            (pod("Pending", vec![container("waiting", "ImagePullBackOff", true)]), "Init:ImagePullBackOff"),
            (
                pod(
                    "Running",
                    vec![
                        ContainerState { ready: true, ..container("running", "", true) },
                        container("running", "", false),
                    ],
                ),
                "Running",
            ),
            (pod("Pending", vec![]), "Pending"),
        ] {
            assert_eq!(pod.status_word(), word, "{pod:?}");
        }
        let from = |source: &str, mirror_hash: &str, deleting| {
            let api =
                bulkhead_ipc::syncd::ApiObject { mirror_hash: mirror_hash.into(), deleting, ..Default::default() };
            Pod::new(PodState { source: source.into(), api: Some(api), ..Default::default() }, false).origin()
        };
        assert_eq!([from("api", "", false), from("api", "", true)], ["api", "api/deleting"]);
        assert_eq!([from("file", "h", false), from("file", "h", true)], ["file/mirror", "file/mirror deleting"]);
        let alone = |source: &str| Pod::new(PodState { source: source.into(), ..Default::default() }, false).origin();
        assert_eq!([alone("file"), alone("api")], ["file", "api/gone"]);
        let mut evicted = pod("Failed", vec![]);
        evicted.reason = "Evicted".into();
        assert_eq!(evicted.status_word(), "Evicted");
        let terminating = Pod::new(
            PodState { worker: WorkerState::Terminating.into(), phase: "Running".into(), ..Default::default() },
            false,
        );
        assert_eq!(terminating.status_word(), "Terminating");
    }
}
