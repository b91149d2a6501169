//! The conditions that a kubelet owns (upstream `pkg/kubelet/status/generate.go`).

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_model::v1::Pod;

use super::phase::Phase;
use crate::runtime::actions::sandbox_decision;
use kubelet_model::pod::model::RuntimePod;
use kubelet_model::pod::restart::{may_restart_all, restart_all_cleaned_up, restart_all_wanted};
use kubelet_model::pod::spec::{containers, init_containers, is_sidecar};

/// Conditions that are computed here and never taken over from elsewhere.
pub const OWNED: [&str; 8] = [
    "PodScheduled",
    "Ready",
    "Initialized",
    "ContainersReady",
    "PodReadyToStartContainers",
    "AllContainersRestarting",
    "PodResizeInProgress",
    "PodResizePending",
];

/// All containers of the pod are being restarted in place.
const RESTARTING: &str = "AllContainersRestarting";
/// Whether containers can be started.
pub const SANDBOX_READY: &str = "PodReadyToStartContainers";

/// Puts the condition of that type as it was into the status, in the place of the computed one.
pub fn keep(status: &mut PodStatus, last: &PodStatus, kind: &str) {
    let before = last.conditions.iter().flatten().find(|c| c.type_ == kind);
    let now = status.conditions.iter_mut().flatten().find(|c| c.type_ == kind);
    if let (Some(before), Some(now)) = (before, now) {
        now.clone_from(before);
    }
}

/// One condition before times and generations are put in.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NewCondition {
    kind: &'static str,
    status: bool,
    reason: &'static str,
    message: String,
}

impl NewCondition {
    fn of(kind: &'static str, status: bool) -> Self {
        NewCondition { kind, status, reason: "", message: String::new() }
    }

    fn because(kind: &'static str, status: bool, reason: &'static str, message: String) -> Self {
        NewCondition { kind, status, reason, message }
    }
}

/// What the conditions are computed from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub pod: &'a Pod,
    pub runtime: &'a RuntimePod,
    pub old: Option<&'a PodStatus>,
    /// Init, then regular.
    pub statuses: &'a [ContainerStatus],
    pub phase: Phase,
    /// Message of the condition DisruptionTarget, when the pod is ended from outside.
    pub disruption: Option<&'a str>,
    pub now: Timestamp,
}

/// All conditions of the pod: foreign ones untouched, then our own, in upstream's order.
pub(super) fn all(inputs: Inputs<'_>) -> Vec<PodCondition> {
    let listed = |status: Option<&PodStatus>| status.and_then(|s| s.conditions.clone()).unwrap_or_default();
    let before = listed(inputs.old);
    let mut conditions = listed(inputs.pod.status.as_ref());
    conditions.retain(|c| !OWNED.contains(&c.type_.as_str()));
    if let Some(disruption) = before.iter().find(|c| c.type_ == "DisruptionTarget") {
        conditions.retain(|c| c.type_ != "DisruptionTarget");
        conditions.push(disruption.clone());
    }
    let containers_ready = containers_ready(&inputs);
    let conditions_now = [
        NewCondition::of(SANDBOX_READY, !sandbox_decision(inputs.pod, inputs.runtime).create),
        initialized(&inputs),
        ready(&inputs, &containers_ready, &conditions),
        containers_ready,
        NewCondition::of("PodScheduled", true),
    ];
    let restarting = may_restart_all(inputs.pod).then(|| all_restarting(&inputs));
    for condition in conditions_now.into_iter().chain(restarting) {
        conditions.push(finish(condition, &before, inputs.pod, inputs.now));
    }
    if let Some(message) = inputs.disruption {
        let condition = NewCondition::because("DisruptionTarget", true, "TerminationByKubelet", message.to_owned());
        conditions.retain(|c| c.type_ != condition.kind);
        conditions.push(finish(condition, &before, inputs.pod, inputs.now));
    }
    conditions
}

/// Ready and ContainersReady anew, for the containers as they are in the status now.
pub(super) fn renew_readiness(pod: &Pod, last: &PodStatus, status: &mut PodStatus, now: Timestamp) {
    let statuses: Vec<ContainerStatus> =
        status.init_container_statuses.iter().chain(&status.container_statuses).flatten().cloned().collect();
    let Some(phase) = status.phase.as_deref().and_then(Phase::parse) else { return };
    let runtime = RuntimePod::default();
    let inputs = Inputs { pod, runtime: &runtime, old: Some(last), statuses: &statuses, phase, disruption: None, now };
    let before = last.conditions.as_deref().unwrap_or_default();
    let containers_ready = containers_ready(&inputs);
    for condition in [ready(&inputs, &containers_ready, before), containers_ready] {
        let renewed = finish(condition, before, pod, now);
        match status.conditions.iter_mut().flatten().find(|c| c.type_ == renewed.type_) {
            Some(condition) => *condition = renewed,
            None => status.conditions.get_or_insert_default().push(renewed),
        }
    }
}

/// A condition with its times: the last transition stays unless the status changed.
fn finish(condition: NewCondition, before: &[PodCondition], pod: &Pod, now: Timestamp) -> PodCondition {
    let status = if condition.status { "True" } else { "False" };
    let same = before.iter().find(|c| c.type_ == condition.kind && c.status == status);
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    PodCondition {
        type_: condition.kind.to_owned(),
        status: status.to_owned(),
        reason: some(condition.reason),
        message: some(&condition.message),
        last_transition_time: same.and_then(|c| c.last_transition_time.clone()).or(Some(Time(now))),
        last_probe_time: None,
        // Upstream leaves it out of this one.
        observed_generation: pod.metadata.generation.filter(|g| *g > 0 && condition.kind != RESTARTING),
    }
}

/// Go's way of printing a list.
fn listing(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

fn join_messages(unknown: &[&str], other: &[&str], what: &str) -> String {
    let mut parts = Vec::new();
    if !unknown.is_empty() {
        parts.push(format!("containers with unknown status: {}", listing(unknown)));
    }
    if !other.is_empty() {
        parts.push(format!("containers with {what} status: {}", listing(other)));
    }
    parts.join(", ")
}

fn containers_ready(inputs: &Inputs<'_>) -> NewCondition {
    const KIND: &str = "ContainersReady";
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    let sidecars = init_containers(inputs.pod).iter().filter(|c| is_sidecar(c));
    for container in sidecars.chain(containers(inputs.pod)) {
        match inputs.statuses.iter().find(|s| s.name == container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) if !status.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    if inputs.phase == Phase::Succeeded && unknown.is_empty() {
        return NewCondition::because(KIND, false, "PodCompleted", String::new());
    }
    if inputs.phase == Phase::Failed {
        return NewCondition::because(KIND, false, "PodFailed", String::new());
    }
    let message = join_messages(&unknown, &unready, "unready");
    if message.is_empty() {
        return NewCondition::of(KIND, true);
    }
    NewCondition::because(KIND, false, "ContainersNotReady", message)
}

fn ready(inputs: &Inputs<'_>, containers_ready: &NewCondition, conditions: &[PodCondition]) -> NewCondition {
    if !containers_ready.status {
        return NewCondition { kind: "Ready", ..containers_ready.clone() };
    }
    let gates = inputs.pod.spec.as_ref().and_then(|s| s.readiness_gates.as_deref()).unwrap_or(&[]);
    let mut missing = Vec::new();
    for gate in gates.iter().map(|g| &g.condition_type) {
        match conditions.iter().find(|c| c.type_ == *gate) {
            None => missing.push(format!("corresponding condition of pod readiness gate {gate:?} does not exist.")),
            Some(c) if c.status != "True" => {
                missing.push(format!("the status of pod readiness gate {gate:?} is not \"True\", but {}", c.status));
            }
            Some(_) => {}
        }
    }
    if missing.is_empty() {
        return NewCondition::of("Ready", true);
    }
    NewCondition::because("Ready", false, "ReadinessGatesNotReady", missing.join(", "))
}

fn initialized(inputs: &Inputs<'_>) -> NewCondition {
    const KIND: &str = "Initialized";
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for container in init_containers(inputs.pod) {
        match inputs.statuses.iter().find(|s| s.name == container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) => {
                let done = if is_sidecar(container) { status.started == Some(true) } else { status.ready };
                if !done {
                    incomplete.push(container.name.as_str());
                }
            }
        }
    }
    if inputs.phase == Phase::Succeeded && unknown.is_empty() {
        return NewCondition::because(KIND, true, "PodCompleted", String::new());
    }
    let has_run = containers(inputs.pod).iter().any(|c| {
        let status = inputs.statuses.iter().find(|s| s.name == c.name);
        status.and_then(|s| s.state.as_ref()).is_some_and(|s| s.running.is_some() || s.terminated.is_some())
    });
    if has_run {
        return NewCondition::of(KIND, true);
    }
    let message = join_messages(&unknown, &incomplete, "incomplete");
    let was = inputs.old.and_then(|s| s.conditions.as_ref()).into_iter().flatten();
    let was_initialized = was.into_iter().any(|c| c.type_ == KIND && c.status == "True");
    if message.is_empty() || was_initialized {
        return NewCondition::of(KIND, true);
    }
    NewCondition::because(KIND, false, "ContainersNotInitialized", message)
}

fn all_restarting(inputs: &Inputs<'_>) -> NewCondition {
    const KIND: &str = RESTARTING;
    match inputs.phase {
        Phase::Succeeded => return NewCondition::because(KIND, false, "PodCompleted", String::new()),
        Phase::Failed => return NewCondition::because(KIND, false, "PodFailed", String::new()),
        Phase::Pending | Phase::Running => {}
    }
    if !restart_all_wanted(inputs.pod, inputs.runtime, inputs.old) || restart_all_cleaned_up(inputs.pod, inputs.runtime)
    {
        return NewCondition::of(KIND, false);
    }
    let message = "container exited with restart policy rule".to_owned();
    NewCondition::because(KIND, true, "RestartAllContainersStarted", message)
}
