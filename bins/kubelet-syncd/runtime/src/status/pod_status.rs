//! The whole status of a pod (upstream `pkg/kubelet/kubelet_pods.go` generateAPIPodStatus).

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use bulkhead_types::ContainerId;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, HostIP, PodCondition, PodIP, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_model::v1::Pod;

use super::conditions;
use super::containers::{self, seconds};
use super::phase::{Phase, phase};
use super::reason_cache::StartFailure;
use super::termination::{POD_BYTES_MAX, head};
use crate::allocation::PodResources;
use crate::allocation::conditions::IN_PROGRESS;
use kubelet_model::node_facts::{HandlerFeatures, NodeFacts};
use kubelet_model::pod::model::RuntimePod;
use kubelet_model::pod::resources::{pod_limits, pod_requests, qos_class, to_api};
use kubelet_model::pod::restart::restart_all_wanted;
use kubelet_model::pod::spec::{
    self, ContainerKind, ephemeral_as_container, ephemeral_containers, host_network, init_containers,
};
use kubelet_probes::prober::results::ProbeResults;

/// Why a pod is ended from outside: eviction, preemption, deadline, shutdown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminationReason {
    pub reason: String,
    pub message: String,
    /// Message of the condition DisruptionTarget; None: the pod does not get one.
    pub disruption: Option<String>,
    pub fails: Fails,
}

/// Until when a pod that is ended from outside counts as Failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fails {
    /// Until its containers have stopped; then the phase is told by how they ended, and one whose containers all exited with 0
    /// has Succeeded (upstream `pkg/kubelet/kubelet.go` SyncTerminatingPod applies the kill's PodStatusFunc before the kill alone,
    /// and what SyncPod's rejectPod told is overruled the same way).
    UntilStopped,
    /// However they end (upstream `pkg/kubelet/active_deadline.go` ShouldEvict, asked for each status).
    ForGood,
}

/// What a status is computed from.
#[derive(Debug, Clone, Copy)]
pub struct StatusInput<'a> {
    pub pod: &'a Pod,
    pub runtime: &'a RuntimePod,
    /// The status computed last; None: what the pod object carries.
    pub old: Option<&'a PodStatus>,
    /// From [`super::reason_cache::ReasonCache::of`].
    pub start_failures: &'a HashMap<String, StartFailure>,
    /// Termination message files (or log tails) of exited containers, by id.
    pub messages: &'a BTreeMap<ContainerId, String>,
    pub probes: &'a ProbeResults,
    pub facts: &'a NodeFacts,
    /// What the handler of its RuntimeClass can do, from [`crate::runtime::pod_runtime::handler_features`].
    pub handler: Option<HandlerFeatures>,
    /// What the pod's containers were given last.
    pub actuated: Option<&'a PodResources>,
    /// What is to be said of its resize.
    pub resize: &'a [PodCondition],
    /// The pod's containers were all stopped because the pod ends.
    pub terminal: bool,
    /// Forces phase Failed with that reason, for as long as [`Fails`] says.
    pub termination: Option<&'a TerminationReason>,
    pub now: Timestamp,
}

/// Computes the status. Store it only if [`super::transition::illegal`] has nothing against it.
pub fn generate(input: &StatusInput<'_>) -> PodStatus {
    let StatusInput { pod, runtime, .. } = *input;
    let old = input.old.or(pod.status.as_ref());
    let mut status = PodStatus {
        qos_class: Some(qos_class(pod).as_str().to_owned()),
        observed_generation: pod.metadata.generation.filter(|g| *g > 0),
        start_time: old.and_then(|o| o.start_time.clone()).or(Some(Time(seconds(input.now)))),
        ..PodStatus::default()
    };
    if input.facts.pod_level_resize {
        status.allocated_resources = Some(to_api(&pod_requests(pod, true))).filter(|r| !r.is_empty());
        status.resources = Some(pod_resources(input, old));
    }
    set_container_statuses(input, old, &mut status);
    let all: Vec<ContainerStatus> =
        status.init_container_statuses.iter().chain(&status.container_statuses).flatten().cloned().collect();
    let phase = set_phase(input, old, &all, &mut status);
    let disruption = input.termination.and_then(|v| v.disruption.as_deref());
    let now = seconds(input.now);
    let mut listed = conditions::all(conditions::Inputs { pod, runtime, old, statuses: &all, phase, disruption, now });
    if !phase.is_terminal() && !input.terminal {
        listed.extend_from_slice(input.resize);
    }
    status.conditions = Some(listed);
    set_addresses(input, old, phase, &mut status);
    limit_messages(pod, &mut status);
    status
}

/// What the pod has: while a resize is under way what was told before, else what it was granted.
fn pod_resources(input: &StatusInput<'_>, old: Option<&PodStatus>) -> ResourceRequirements {
    let is_under_way = input.resize.iter().any(|c| c.type_ == IN_PROGRESS);
    let told = old.filter(|o| is_under_way && o.phase.as_deref() == Some("Running"));
    told.and_then(|o| o.resources.clone()).unwrap_or_else(|| effective_resources(input.pod))
}

/// The pod's requests and limits in sum.
fn effective_resources(pod: &Pod) -> ResourceRequirements {
    let list = |amounts| Some(to_api(&amounts)).filter(|l: &BTreeMap<_, _>| !l.is_empty());
    ResourceRequirements { claims: None, limits: list(pod_limits(pod, true)), requests: list(pod_requests(pod, true)) }
}

fn set_container_statuses(input: &StatusInput<'_>, old: Option<&PodStatus>, status: &mut PodStatus) {
    let pod = input.pod;
    let restarting = restart_all_wanted(pod, input.runtime, old);
    let compute = |kind, old: Option<&Vec<ContainerStatus>>, list: &[kubelet_model::v1::Container]| {
        let inputs = containers::Inputs {
            pod,
            runtime: input.runtime,
            kind,
            old: old.map_or(&[], Vec::as_slice),
            failures: input.start_failures,
            messages: input.messages,
            probes: input.probes,
            restarting,
            runtime_name: &input.facts.runtime_name,
            actuated: input.actuated,
            recursive_read_only: input.handler.map(|handler| handler.recursive_read_only_mounts),
            stop_signals: input.facts.stop_signals,
            image_volume_digests: input.facts.image_volume_digests,
        };
        Some(containers::statuses(inputs, list)).filter(|l| !l.is_empty())
    };
    let ephemeral: Vec<_> = ephemeral_containers(pod).iter().map(ephemeral_as_container).collect();
    status.container_statuses =
        compute(ContainerKind::Regular, old.and_then(|o| o.container_statuses.as_ref()), spec::containers(pod));
    status.init_container_statuses =
        compute(ContainerKind::Init, old.and_then(|o| o.init_container_statuses.as_ref()), init_containers(pod));
    status.ephemeral_container_statuses =
        compute(ContainerKind::Ephemeral, old.and_then(|o| o.ephemeral_container_statuses.as_ref()), &ephemeral);
}

/// The pod has been here for longer than it may (`activeDeadlineSeconds`).
pub fn is_past_deadline(pod: &Pod, status: &PodStatus, now: Timestamp) -> bool {
    seconds_to_deadline(pod, status, now).is_some_and(|left| left <= 0)
}

/// Seconds until the pod has been here for too long; below zero when it has. None: it may stay.
pub fn seconds_to_deadline(pod: &Pod, status: &PodStatus, now: Timestamp) -> Option<i64> {
    let allowed = pod.spec.as_ref()?.active_deadline_seconds?;
    let since = status.start_time.as_ref()?.0;
    Some(since.as_second().saturating_add(allowed).saturating_sub(now.as_second()))
}

/// Decides the phase and what goes with it. Returns the phase that conditions are computed with.
fn set_phase(
    input: &StatusInput<'_>,
    old: Option<&PodStatus>,
    all: &[ContainerStatus],
    status: &mut PodStatus,
) -> Phase {
    let of = |s: Option<&PodStatus>| s.and_then(|s| s.phase.as_deref()).and_then(Phase::parse);
    let (old_phase, api_phase) = (of(old), of(input.pod.status.as_ref()));
    let computed = phase(input.pod, all, input.terminal, has_active_regular_container(input));
    let fails = input.termination.map(|termination| termination.fails);
    let result = settle(api_phase, old_phase, computed, input.terminal, fails);
    let has_ended = [api_phase, old_phase].into_iter().flatten().any(Phase::is_terminal);
    if let Some(termination) = input.termination.filter(|_| result == Phase::Failed && !has_ended) {
        status.reason = Some(termination.reason.clone());
        status.message = Some(termination.message.clone());
    } else if Some(result) == old_phase {
        let inherit = |field: fn(&PodStatus) -> &Option<String>| {
            let text = |s: Option<&PodStatus>| s.and_then(|s| field(s).clone()).filter(|t| !t.is_empty());
            text(old).or_else(|| text(input.pod.status.as_ref()))
        };
        status.reason = inherit(|s| &s.reason);
        status.message = inherit(|s| &s.message);
    }
    status.phase = Some(result.as_str().to_owned());
    result
}

/// The phase to tell, where the API server has `api`, this process told `told` last and the containers come to `computed`.
///
/// No way leads out of an end that the API server has. One that only this process has told stays, whatever the runtime shows by now,
/// except for the Failed of a pod that was being ended: that was never on the API server, because its containers might still run.
fn settle(
    api: Option<Phase>,
    told: Option<Phase>,
    computed: Phase,
    has_stopped: bool,
    termination: Option<Fails>,
) -> Phase {
    let ended = |phase: Option<Phase>| phase.filter(|phase| phase.is_terminal());
    if let Some(end) = ended(api) {
        return end;
    }
    if termination == Some(Fails::UntilStopped) && has_stopped && computed.is_terminal() {
        return computed;
    }
    ended(told).unwrap_or(if termination.is_some() { Phase::Failed } else { computed })
}

/// A regular container exists in the newest sandbox.
fn has_active_regular_container(input: &StatusInput<'_>) -> bool {
    let Some(sandbox) = input.runtime.sandboxes.first() else { return false };
    let regular = |name: &str| spec::containers(input.pod).iter().any(|c| c.name == name);
    input.runtime.containers.iter().any(|c| c.sandbox_id == sandbox.id && regular(&c.name))
}

/// A pod of the host's network has the node's addresses as they are now, and at its end those that it had (upstream's
/// convertStatusToAPIStatus takes addresses from the runtime alone, and `pleg/generic.go` getPodIPs keeps them where no sandbox is
/// ready any more).
///
/// While nobody has named the node's addresses (a cloud is to, and the Node is not seen yet), those that the pod was told with stay.
/// Upstream lists no pod of the API server before it has seen the Node (`pkg/kubelet/kubelet.go` nodeHasSynced).
fn set_addresses(input: &StatusInput<'_>, old: Option<&PodStatus>, phase: Phase, status: &mut PodStatus) {
    let host = &input.facts.host_ips;
    let follows_host = host_network(input.pod) && !host.is_empty() && !phase.is_terminal();
    let mut ips: Vec<IpAddr> = input.facts.sort_pod_ips(input.runtime.ips());
    if ips.is_empty() && !follows_host {
        // The sandbox is gone or being replaced: the last known addresses stay.
        ips = old.and_then(|o| o.pod_ips.as_ref()).into_iter().flatten().filter_map(|ip| ip.ip.parse().ok()).collect();
    }
    if host.is_empty()
        && let Some(old) = old
    {
        status.host_ip.clone_from(&old.host_ip);
        status.host_ips.clone_from(&old.host_ips);
    }
    if let Some(primary) = host.first() {
        status.host_ip = Some(primary.to_string());
        status.host_ips = Some(host.iter().take(2).map(|ip| HostIP { ip: ip.to_string() }).collect());
        if host_network(input.pod) {
            if ips.is_empty() {
                ips.push(*primary);
            }
            if let ([own], [_, second]) = (ips.as_slice(), host.as_slice())
                && own.is_ipv6() != second.is_ipv6()
            {
                ips.push(*second);
            }
        }
    }
    if let Some(primary) = ips.first() {
        status.pod_ip = Some(primary.to_string());
        status.pod_ips = Some(ips.iter().map(|ip| PodIP { ip: ip.to_string() }).collect());
    }
}

/// Each container gets its share of what a pod may say at its end.
fn limit_messages(pod: &Pod, status: &mut PodStatus) {
    let count = spec::containers(pod).len() + init_containers(pod).len() + ephemeral_containers(pod).len();
    let share = POD_BYTES_MAX / count.max(1);
    let lists =
        [&mut status.container_statuses, &mut status.init_container_statuses, &mut status.ephemeral_container_statuses];
    for container in lists.into_iter().flatten().flatten() {
        for state in [&mut container.state, &mut container.last_state].into_iter().flatten() {
            if let Some(message) = state.terminated.as_mut().and_then(|t| t.message.as_mut())
                && message.len() > share
            {
                *message = head(message, share).to_owned();
            }
        }
    }
}

/// Status of a pod that was refused: nothing else is said of it, whatever it has been.
pub fn rejected(pod: &Pod, reason: &str, message: &str, now: Timestamp) -> PodStatus {
    let since = pod.status.as_ref().and_then(|s| s.start_time.clone());
    PodStatus {
        phase: Some(Phase::Failed.as_str().to_owned()),
        reason: Some(reason.to_owned()),
        message: Some(format!("Pod was rejected: {message}")),
        qos_class: Some(qos_class(pod).as_str().to_owned()),
        start_time: since.or(Some(Time(seconds(now)))),
        observed_generation: pod.metadata.generation.filter(|g| *g > 0),
        ..PodStatus::default()
    }
}

/// The same for a pod that runs: what was told of it before is kept, or its conditions would begin anew and its containers'
/// past would be lost.
pub fn rejected_while_it_runs(pod: &Pod, rejected: PodStatus) -> PodStatus {
    let told = pod.status.clone().unwrap_or_default();
    PodStatus {
        phase: rejected.phase,
        reason: rejected.reason,
        message: rejected.message,
        qos_class: rejected.qos_class,
        start_time: rejected.start_time,
        observed_generation: rejected.observed_generation,
        ..told
    }
}

#[cfg(test)]
#[path = "pod_status_tests.rs"]
mod tests;
