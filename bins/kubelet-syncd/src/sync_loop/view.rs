//! What callers see of a pod, put together from what each part knows.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use bulkhead_ipc::syncd as api;
use bulkhead_types::{Namespace, PodName, PodUid};
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_model::v1::Pod;

use super::node::NodeContext;
use super::runtime_side::Stage;
use crate::metrics::{Metrics, static_label};
use crate::pod_workers::Lifecycle;
use crate::pod_workers::state::PodWorkerSync;
use crate::volumes::set_up::Outcomes;
use kubelet_model::pod::model::{RunState, RuntimePod};
use kubelet_model::pod::names::log_number;
use kubelet_model::pod::resources::qos_class;
use kubelet_model::pod::source::SourceKind;
use kubelet_model::pod::spec;
use kubelet_runtime::status::conditions::SANDBOX_READY;
use kubelet_runtime::status::containers::seconds;
use kubelet_runtime::status::readiness::with_readiness;
use kubelet_runtime::status::summary::{ContainerSummary, summarize};

/// A pod is wanted: who it is, before anything is known of it.
pub fn introduce(node: &NodeContext, uid: &PodUid, pod: &Pod, source: SourceKind) {
    node.pods.begin(uid);
    let name = pod.metadata.name.clone().unwrap_or_default();
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let logs = match (Namespace::parse(&namespace), PodName::parse(&name)) {
        (Ok(namespace), Ok(name)) => node.config.paths.pod_logs(&namespace, &name, uid).display().to_string(),
        _ => String::new(),
    };
    let is_static = spec::is_static(pod);
    let mirrored = || serde_json::to_vec(&Pod { status: None, ..pod.clone() }).unwrap_or_default();
    let static_pod_json = if is_static { mirrored() } else { Vec::new() };
    node.hub.modify(uid, |state| {
        state.is_static = is_static;
        state.static_pod_json = static_pod_json;
        state.namespace = namespace;
        state.name = name;
        state.source = source.to_string();
        state.qos_class = qos_class(pod).as_str().to_owned();
        state.host_network = spec::host_network(pod);
        state.log_directory = logs;
        state.container_names = spec::container_names(pod);
        if state.phase.is_empty() {
            state.phase = "Pending".to_owned();
            // Nothing is known of it yet.
            state.containers_may_run = true;
        }
    });
}

/// Where the worker is.
pub fn lifecycle(node: &NodeContext, uid: &PodUid, lifecycle: Lifecycle, waits_for: Option<&PodUid>) {
    let state = match lifecycle {
        Lifecycle::Waiting => api::WorkerState::Waiting,
        Lifecycle::Sync => api::WorkerState::Sync,
        Lifecycle::Terminating => api::WorkerState::Terminating,
        Lifecycle::Terminated => api::WorkerState::Terminated,
        Lifecycle::Finished => api::WorkerState::Finished,
    };
    let may_delete = lifecycle == Lifecycle::Finished;
    let is_shown = |pod: &api::PodState| {
        let may_run = matches!(lifecycle, Lifecycle::Waiting | Lifecycle::Sync);
        pod.worker == state as i32 && pod.may_delete == may_delete && may_run && pod.containers_may_run
    };
    // For most looks at most pods.
    if lifecycle == Lifecycle::Sync && node.hub.get(uid).is_some_and(|pod| is_shown(&pod)) {
        return;
    }
    node.hub.modify_known(uid, |pod| {
        pod.worker = state.into();
        pod.may_delete = may_delete;
        match lifecycle {
            Lifecycle::Waiting | Lifecycle::Sync => pod.containers_may_run = true,
            // Until the work says that nothing runs any more.
            Lifecycle::Terminating => {}
            Lifecycle::Terminated | Lifecycle::Finished => pod.containers_may_run = false,
        }
    });
    if let (Lifecycle::Waiting, Some(other)) = (lifecycle, waits_for) {
        node.hub.why(uid, format!("waits for the end of pod {other}, which has the same name"));
    }
    if lifecycle == Lifecycle::Finished {
        node.hub.why(uid, "finished: its containers have ended, its volumes and cgroup are gone");
    }
}

/// The status and the runtime's view, anew from the cache.
pub fn refresh(node: &NodeContext, uid: &PodUid, pod: &Arc<Pod>, stage: Stage) {
    let runtime = node.cache.get(uid);
    let status = node.runtime.compute_status(node, uid, pod, &runtime, stage);
    publish(node, uid, pod, &runtime, &status, stage);
}

/// The pod is ending: of what probes find, its readiness is shown, and nothing else is said before the end (upstream
/// `SetContainerReadiness`).
pub fn readiness(node: &NodeContext, uid: &PodUid, pod: &Arc<Pod>) {
    let Some(last) = node.pods.status(uid) else { return };
    let runtime = node.cache.get(uid);
    let results = node.prober.results(uid, &runtime).readiness;
    let Some(status) = with_readiness(pod, &last, &results, jiff::Timestamp::now()) else { return };
    let status = Arc::new(status);
    node.pods.set_status(uid, status.clone());
    publish(node, uid, pod, &runtime, &status, Stage::Alive);
}

/// A pod that was rejected and of which the runtime has nothing: that is all there will ever be to say of it. Its object may go once its
/// worker has cleaned up after a former life (`SyncLoop::update_not_admitted`).
pub fn rejected(node: &NodeContext, uid: &PodUid, pod: &Pod, status: &PodStatus) {
    publish(node, uid, pod, &Arc::default(), &Arc::new(status.clone()), Stage::Gone);
    node.hub.modify_known(uid, |state| {
        state.instances.get_or_insert_default();
    });
}

/// The pod's sandbox stands: its containers can be started (upstream tells that before the first image is pulled).
pub fn sandbox_ready(node: &NodeContext, uid: &PodUid) {
    node.pods.sandbox_made(uid);
    let Some(mut status) = node.pods.status(uid).map(Arc::unwrap_or_clone) else { return };
    let conditions = status.conditions.iter_mut().flatten();
    let waits = conditions.into_iter().find(|c| c.type_ == SANDBOX_READY && c.status != "True");
    let Some(condition) = waits else { return };
    condition.status = "True".to_owned();
    condition.last_transition_time = Some(Time(seconds(jiff::Timestamp::now())));
    node.hub.modify_known(uid, |state| put_status(node, uid, state, &status));
    node.pods.set_status(uid, Arc::new(status));
    node.pods.show(uid, None);
}

/// The status itself, with a new version when it is a new one.
fn put_status(node: &NodeContext, uid: &PodUid, state: &mut api::PodState, status: &PodStatus) {
    let json = serde_json::to_vec(status).unwrap_or_default();
    if state.status_json != json {
        state.status_json = json;
        state.status_version = node.pods.next_status_version();
        // What events show before the next work begins comes of what the last work did.
        let span = bulkhead_trace::current().or_else(|| node.pods.cause(uid));
        state.trace_parent = span.map(|span| span.to_string()).unwrap_or_default();
    }
    state.phase = status.phase.clone().unwrap_or_default();
    state.reason = status.reason.clone().unwrap_or_default();
    state.message = status.message.clone().unwrap_or_default();
    state.started_at = status.start_time.as_ref().map(|t| t.0.to_string()).unwrap_or_default();
    state.conditions = conditions(status);
}

/// Shows a computed status. `stage`: from `Stopped` on nothing of the pod runs any more.
pub fn publish(
    node: &NodeContext,
    uid: &PodUid,
    pod: &Pod,
    runtime: &Arc<RuntimePod>,
    status: &Arc<PodStatus>,
    stage: Stage,
) {
    // How long a container waits is no part of its status.
    let shows = (stage == Stage::Alive && !has_waiting(status)).then_some((status, runtime));
    if node.pods.show(uid, shows) {
        return why_it_is_so(node, uid, pod, status);
    }
    let phase = status.phase.as_deref().unwrap_or_default();
    if node.pods.show_phase(uid, phase).is_none_or(|before| before != "Running") && phase == "Running" {
        node.started_running(uid);
    }
    node.hub.modify_known(uid, |state| {
        put_status(node, uid, state, status);
        if stage != Stage::Alive {
            state.containers_may_run = false;
        }
        put_instances(state, runtime);
        put_sandbox(state, runtime);
        state.ips = ips(status, runtime);
        let containers = summarize(status).into_iter();
        state.containers =
            containers.map(|c| (node.pods.back_off_until(uid, &c.name), c)).map(|(at, c)| container(c, at)).collect();
        if is_let_live(state) {
            let why = why_of(status, pod);
            if !why.is_empty() && state.why != why {
                state.why = why;
                state.why_since = jiff::Timestamp::now().to_string();
            }
        }
    });
}

/// What a pod that nobody is ending does, where its status tells.
pub fn why_it_is_so(node: &NodeContext, uid: &PodUid, pod: &Pod, status: &PodStatus) {
    if lives(node, uid) {
        let why = why_of(status, pod);
        if !why.is_empty() {
            node.hub.why(uid, why);
        }
    }
}

/// Nobody is ending the pod.
pub fn lives(node: &NodeContext, uid: &PodUid) -> bool {
    node.hub.get(uid).is_some_and(|state| is_let_live(&state))
}

fn is_let_live(state: &api::PodState) -> bool {
    [api::WorkerState::Sync as i32, api::WorkerState::Unspecified as i32].contains(&state.worker)
}

fn has_waiting(status: &PodStatus) -> bool {
    let regular = status.container_statuses.iter().chain(&status.init_container_statuses);
    let all = regular.chain(&status.ephemeral_container_statuses).flatten();
    all.filter_map(|container| container.state.as_ref()).any(|state| state.waiting.is_some())
}

/// What the runtime has of the pod, whether or not anything else is said of it now.
pub fn seen(node: &NodeContext, uid: &PodUid, runtime: &RuntimePod) {
    node.pods.show(uid, None);
    node.hub.modify_known(uid, |state| put_instances(state, runtime));
}

fn put_sandbox(state: &mut api::PodState, runtime: &RuntimePod) {
    let sandbox = runtime.sandboxes.first();
    state.sandbox_id = sandbox.map(|s| s.id.to_string()).unwrap_or_default();
    state.sandbox_created_at = sandbox.map(|s| time(s.created_at)).unwrap_or_default();
    state.sandbox_ready = runtime.has_ready_sandbox();
}

/// RFC 3339.
fn time(at: SystemTime) -> String {
    jiff::Timestamp::try_from(at).map(|at| at.to_string()).unwrap_or_default()
}

fn put_instances(state: &mut api::PodState, runtime: &RuntimePod) {
    if runtime.uid.is_none() && state.instances.is_none() {
        // Nobody has looked yet; that is not the same as nothing being there.
        return;
    }
    let containers = runtime.containers.iter().map(|instance| api::ContainerInstance {
        name: instance.name.clone(),
        id: instance.id.to_string(),
        log_number: log_number(&instance.log_path, &state.log_directory, &instance.name),
        running: instance.state == RunState::Running,
    });
    state.instances = Some(api::Instances { containers: containers.collect() });
}

fn ips(status: &PodStatus, runtime: &RuntimePod) -> Vec<String> {
    let given: Vec<String> = status.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect();
    if given.is_empty() { runtime.ips().iter().map(IpAddr::to_string).collect() } else { given }
}

fn conditions(status: &PodStatus) -> Vec<api::Condition> {
    let of = |c: &k8s_openapi::api::core::v1::PodCondition| api::Condition {
        r#type: c.type_.clone(),
        status: c.status == "True",
        reason: c.reason.clone().unwrap_or_default(),
        message: c.message.clone().unwrap_or_default(),
        last_transition: c.last_transition_time.as_ref().map(|t| t.0.to_string()).unwrap_or_default(),
    };
    status.conditions.iter().flatten().map(of).collect()
}

fn container(c: ContainerSummary, back_off_until: Option<SystemTime>) -> api::ContainerState {
    let back_off_until = back_off_until.filter(|_| c.state == "waiting");
    api::ContainerState {
        name: c.name,
        id: c.id,
        state: c.state.to_owned(),
        reason: c.reason,
        message: c.message,
        exit_code: c.exit_code,
        restart_count: c.restart_count,
        image: c.image,
        image_id: c.image_id,
        started_at: c.started_at,
        finished_at: c.finished_at,
        ready: c.ready,
        init: c.init,
        back_off_until: back_off_until.map(time).unwrap_or_default(),
    }
}

/// The sentence for a pod that nobody is ending: what its worst container waits for, or that it runs.
fn why_of(status: &PodStatus, pod: &Pod) -> String {
    let all = || status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    let held_up = all().find_map(|c| {
        let waiting = c.state.as_ref()?.waiting.as_ref()?;
        let reason =
            waiting.reason.as_deref().filter(|r| !matches!(*r, "ContainerCreating" | "PodInitializing" | ""))?;
        let message = waiting.message.as_deref().unwrap_or_default();
        let colon = if message.is_empty() { "" } else { ": " };
        Some(format!("container {} waits, {reason}{colon}{message}", c.name))
    });
    let is_running = |c: &ContainerStatus| c.state.as_ref().is_some_and(|s| s.running.is_some());
    match (status.phase.as_deref(), held_up) {
        (_, Some(why)) => why,
        (Some("Running"), None) => {
            let regular = status.container_statuses.iter().flatten();
            let running = regular.clone().filter(|c| is_running(c)).count();
            let total = spec::containers(pod).len();
            match (running, total) {
                (1, 1) => "runs, its container is up".to_owned(),
                (running, total) if running == total => format!("runs, all {total} containers are up"),
                (running, total) => format!("runs, {running} of {total} containers are up"),
            }
        }
        (Some("Succeeded"), None) => "all containers have ended with success".to_owned(),
        (Some("Failed"), None) => match (&status.reason, &status.message) {
            (Some(reason), message) => format!("failed, {reason}: {}", message.clone().unwrap_or_default()),
            (None, _) => "at least one container has failed for good".to_owned(),
        },
        // The step that the worker is at says more than "Pending".
        _ => String::new(),
    }
}

/// What came of the pod's volumes.
pub fn volumes(node: &NodeContext, uid: &PodUid, outcomes: &Outcomes) {
    let shown = outcomes.iter().map(|(plan, outcome)| api::PodVolume {
        name: plan.name.to_string(),
        kind: plan.kind.name().to_owned(),
        ready: outcome.is_ok(),
        host_path: outcome.as_ref().map(|ready| ready.host_path.clone()).unwrap_or_default(),
        error: outcome.as_ref().err().map(ToString::to_string).unwrap_or_default(),
    });
    let shown: Vec<api::PodVolume> = shown.collect();
    node.hub.modify_known(uid, |state| state.volumes = shown);
}

/// `kubelet_working_pods`, all combinations that exist.
pub fn count_workers<'a>(metrics: &Metrics, snapshot: impl Iterator<Item = (&'a PodUid, PodWorkerSync)>) {
    let mut counts = std::collections::BTreeMap::new();
    for lifecycle in ["sync", "terminating", "terminated"] {
        for (config, is_static) in [("desired", ""), ("desired", "true"), ("orphan", ""), ("orphan", "true")] {
            counts.insert((lifecycle, config, is_static), 0_u32);
        }
    }
    for lifecycle in ["sync", "terminating", "terminated"] {
        counts.insert((lifecycle, "runtime_only", "unknown"), 0);
    }
    for (_, known) in snapshot {
        let lifecycle = match known.lifecycle {
            Lifecycle::Waiting | Lifecycle::Sync => "sync",
            Lifecycle::Terminating => "terminating",
            Lifecycle::Terminated | Lifecycle::Finished => "terminated",
        };
        let (config, is_static) = match (known.has_config, known.orphan) {
            (false, _) => ("runtime_only", "unknown"),
            (true, false) => ("desired", static_label(known.is_static)),
            (true, true) => ("orphan", static_label(known.is_static)),
        };
        *counts.entry((lifecycle, config, is_static)).or_insert(0) += 1;
    }
    for ((lifecycle, config, is_static), count) in counts {
        metrics.pods.working.with_label_values(&[lifecycle, config, is_static]).set(f64::from(count));
    }
}

/// `kubelet_running_pods` and `kubelet_running_containers`.
pub fn count_runtime(metrics: &Metrics, pods: &[(PodUid, Arc<RuntimePod>)]) {
    let ready = pods.iter().filter(|(_, pod)| pod.has_ready_sandbox()).count();
    metrics.pods.running.set(ready as f64);
    let states = [
        ("created", RunState::Created),
        ("running", RunState::Running),
        ("exited", RunState::Exited),
        ("unknown", RunState::Unknown),
    ];
    for (label, state) in states {
        let count: usize = pods.iter().map(|(_, pod)| pod.containers.iter().filter(|c| c.state == state).count()).sum();
        metrics.pods.running_containers.with_label_values(&[label]).set(count as f64);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kubelet_model::fixtures::sandbox_status;
    use kubelet_model::pod::model::SandboxState;

    use super::*;

    #[test]
    fn the_first_sandbox_is_shown_whatever_its_time() {
        let mut state = api::PodState::default();
        let (mut old, new) =
            (sandbox_status("s0", 0, SandboxState::NotReady), sandbox_status("s1", 1, SandboxState::Ready));
        old.created_at += Duration::from_secs(7);
        put_sandbox(&mut state, &RuntimePod { sandboxes: vec![new, old], ..RuntimePod::default() });
        assert_eq!((state.sandbox_id.as_str(), state.sandbox_ready), ("s1", true));
        assert_eq!(state.sandbox_created_at, "1970-01-01T00:00:00Z");
        put_sandbox(&mut state, &RuntimePod::default());
        assert_eq!(state, api::PodState::default());
    }
}
