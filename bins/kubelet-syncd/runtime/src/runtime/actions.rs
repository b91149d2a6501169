//! What has to be done to a pod: its spec and what the runtime knows, in; the actions of one sync, out.
//!
//! Pure. The rules are upstream's computePodActions and computeInitContainerActions
//! (`pkg/kubelet/kuberuntime/kuberuntime_manager.go`, `kuberuntime_container.go`, `util/util.go`).

use std::collections::BTreeMap;

use bulkhead_types::{ContainerId, SandboxId};
use kubelet_model::v1::{Container, Pod};

use kubelet_model::pod::hash::container_hash;
use kubelet_model::pod::model::{ContainerStatus, RunState, RuntimePod, SandboxState};
use kubelet_model::pod::restart::{
    History, failed_init_exit_code, may_restart, restarts_after_kill, should_start, triggers_restart_all,
};
use kubelet_model::pod::spec::{
    containers, ephemeral_containers, host_network, image, init_containers, is_deleted, is_sidecar,
};
use kubelet_probes::prober::results::{ProbeResult, ProbeResults};

/// Why a container is killed; decides its grace period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillReason {
    Unknown,
    StartupProbe,
    LivenessProbe,
    RestartAllContainers,
}

/// A container instance to kill.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerKill {
    pub id: ContainerId,
    pub name: String,
    /// Message of the event `Killing`.
    pub message: String,
    pub reason: KillReason,
}

/// A container instance to remove for an in-place restart of the pod; its log stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerReset {
    pub id: ContainerId,
    pub name: String,
    /// It may be running.
    pub kill: bool,
}

/// Actions of one sync, to be done in the order that `sync` documents. Numbers are indices into the spec's lists.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodActions {
    /// Stop all containers and sandboxes.
    pub kill_pod: bool,
    pub create_sandbox: bool,
    /// Attempt number of the sandbox that is to be created or used.
    pub attempt: u32,
    /// The sandbox to use; when one is to be created: the one that it replaces.
    pub sandbox_id: Option<SandboxId>,
    pub init_containers_to_start: Vec<usize>,
    pub containers_to_start: Vec<usize>,
    pub ephemeral_containers_to_start: Vec<usize>,
    pub containers_to_kill: Vec<ContainerKill>,
    pub containers_to_reset: Vec<ContainerReset>,
    /// What running containers and the pod's cgroup have to become; [`super::resize::plan`] fills it in.
    pub resize: super::resize::Resize,
}

impl PodActions {
    /// Nothing at all is to be done.
    pub fn is_empty(&self) -> bool {
        let PodActions { attempt, sandbox_id, .. } = self;
        *self == PodActions { attempt: *attempt, sandbox_id: sandbox_id.clone(), ..PodActions::default() }
    }

    /// Some container is to be started.
    pub fn starts_containers(&self) -> bool {
        !(self.init_containers_to_start.is_empty()
            && self.containers_to_start.is_empty()
            && self.ephemeral_containers_to_start.is_empty())
    }
}

/// Whether the pod needs a new sandbox (upstream PodSandboxChanged).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxDecision {
    pub create: bool,
    pub attempt: u32,
    pub id: Option<SandboxId>,
}

/// Decides on the sandbox alone. Also what condition `PodReadyToStartContainers` says.
pub fn sandbox_decision(pod: &Pod, runtime: &RuntimePod) -> SandboxDecision {
    let Some(newest) = runtime.sandboxes.first() else {
        return SandboxDecision { create: true, attempt: 0, id: None };
    };
    let next = newest.attempt.saturating_add(1);
    let replace = |id| SandboxDecision { create: true, attempt: next, id };
    let ready = runtime.sandboxes.iter().filter(|s| s.state == SandboxState::Ready).count();
    if ready > 1 || newest.state != SandboxState::Ready {
        return replace(Some(newest.id.clone()));
    }
    let wants_host_network = host_network(pod);
    if newest.host_network != wants_host_network {
        return replace(None);
    }
    if !wants_host_network && newest.has_network && newest.ips.is_empty() {
        return replace(Some(newest.id.clone()));
    }
    SandboxDecision { create: false, attempt: newest.attempt, id: Some(newest.id.clone()) }
}

/// Computes the actions of one sync.
pub fn compute(pod: &Pod, runtime: &RuntimePod, probes: &ProbeResults, past: &History) -> PodActions {
    let sandbox = sandbox_decision(pod, runtime);
    let mut actions = PodActions {
        kill_pod: sandbox.create,
        create_sandbox: sandbox.create,
        attempt: sandbox.attempt,
        sandbox_id: sandbox.id,
        ..PodActions::default()
    };
    if past.restart_all {
        actions.containers_to_reset = resets(pod, runtime);
        return actions;
    }
    if sandbox.create {
        with_new_sandbox(pod, runtime, past, &mut actions);
    } else {
        with_sandbox(pod, runtime, probes, past, &mut actions);
    }
    // A deleted pod's worker ends it; whatever this sync was asked for before the deletion, nothing begins any more.
    actions.create_sandbox &= !is_deleted(pod);
    if is_deleted(pod) || actions.kill_pod && !actions.create_sandbox {
        actions.init_containers_to_start.clear();
        actions.containers_to_start.clear();
        actions.ephemeral_containers_to_start.clear();
    }
    actions
}

fn with_sandbox(pod: &Pod, runtime: &RuntimePod, probes: &ProbeResults, past: &History, actions: &mut PodActions) {
    let ephemeral = ephemeral_containers(pod).iter().enumerate();
    actions.ephemeral_containers_to_start =
        ephemeral.filter(|(_, c)| runtime.newest(&c.name).is_none()).map(|(index, _)| index).collect();
    let initialized = init_actions(pod, runtime, probes, actions);
    if !actions.kill_pod && initialized {
        regular_actions(pod, runtime, probes, past, actions);
    }
}

/// Everything starts over, from the first init container, unless nothing that may run (again) is left.
///
/// What still runs ends with the old sandbox; where its policy asks for its exit code before it runs again, no sandbox is
/// made for its sake yet. Upstream asks for the pod's policy alone: a pod with `Never` then waits for ever for containers
/// that have not run, or that may run again by their own policy.
fn with_new_sandbox(pod: &Pod, runtime: &RuntimePod, past: &History, actions: &mut PodActions) {
    let to_start: Vec<usize> = containers(pod)
        .iter()
        .enumerate()
        .filter(|(_, c)| !past.ended.contains(&c.name) && runtime.newest(&c.name).is_none_or(|s| runs_again(c, pod, s)))
        .map(|(index, _)| index)
        .collect();
    let has_run = has_any_regular_container_created(pod, runtime) || !past.ended.is_empty();
    if to_start.is_empty() && has_run || init_keeps_from_starting_over(pod, runtime) {
        actions.create_sandbox = false;
        return;
    }
    if init_containers(pod).is_empty() {
        actions.containers_to_start = to_start;
    } else {
        actions.init_containers_to_start = vec![0];
    }
}

/// The container may run in the pod's next sandbox.
fn runs_again(container: &Container, pod: &Pod, newest: &ContainerStatus) -> bool {
    match newest.state {
        RunState::Created => true,
        RunState::Running | RunState::Unknown => restarts_after_kill(container, pod),
        RunState::Exited => may_restart(container, pod, newest.exit_code),
    }
}

/// An init container has failed for good, or may have once it is stopped.
fn init_keeps_from_starting_over(pod: &Pod, runtime: &RuntimePod) -> bool {
    let ordinary = init_containers(pod).iter().filter(|c| !is_sidecar(c));
    ordinary.filter_map(|c| Some((c, runtime.newest(&c.name)?))).any(|(container, status)| match status.state {
        RunState::Created => false,
        RunState::Running | RunState::Unknown => !restarts_after_kill(container, pod),
        RunState::Exited => failed_init_exit_code(status.exit_code, &status.reason)
            .is_some_and(|code| !may_restart(container, pod, code)),
    })
}

/// Some regular container exists in a state that only follows on initialization
/// (upstream HasAnyRegularContainerCreated).
pub fn has_any_regular_container_created(pod: &Pod, runtime: &RuntimePod) -> bool {
    containers(pod).iter().any(|c| {
        runtime
            .newest(&c.name)
            .is_some_and(|s| matches!(s.state, RunState::Created | RunState::Running | RunState::Exited))
    })
}

fn definition_changed(container: &Container, status: &ContainerStatus) -> bool {
    status.hash != container_hash(&container.name, image(container))
}

fn kill(status: &ContainerStatus, message: String, reason: KillReason) -> ContainerKill {
    ContainerKill { id: status.id.clone(), name: status.name.clone(), message, reason }
}

fn regular_actions(pod: &Pod, runtime: &RuntimePod, probes: &ProbeResults, past: &History, actions: &mut PodActions) {
    let mut kept = 0;
    for (index, container) in containers(pod).iter().enumerate().filter(|(_, c)| !past.ended.contains(&c.name)) {
        let newest = runtime.newest(&container.name);
        let running = newest.filter(|s| s.state == RunState::Running);
        let Some(status) = running else {
            if should_start(container, pod, newest) {
                actions.containers_to_start.push(index);
                if let Some(status) = newest.filter(|s| s.state == RunState::Unknown) {
                    // It may be running: never two instances at once.
                    let message = "Container is in \"unknown\" state, try killing it before restart".to_owned();
                    actions.containers_to_kill.push(kill(status, message, KillReason::Unknown));
                }
            }
            continue;
        };
        let failed =
            |results: &BTreeMap<ContainerId, ProbeResult>| results.get(&status.id) == Some(&ProbeResult::Failure);
        let (mut message, reason, restart) = if definition_changed(container, status) {
            // Whatever the restart policy says: what runs is not what is wanted.
            (format!("Container {} definition changed", container.name), KillReason::Unknown, true)
        } else if failed(&probes.liveness) {
            let text = format!("Container {} failed liveness probe", container.name);
            (text, KillReason::LivenessProbe, restarts_after_kill(container, pod))
        } else if failed(&probes.startup) {
            let text = format!("Container {} failed startup probe", container.name);
            (text, KillReason::StartupProbe, restarts_after_kill(container, pod))
        } else {
            kept += 1;
            continue;
        };
        if restart {
            message.push_str(", will be restarted");
            actions.containers_to_start.push(index);
        }
        actions.containers_to_kill.push(kill(status, message, reason));
    }
    if kept == 0 && actions.containers_to_start.is_empty() {
        actions.kill_pod = true;
        // Sidecars must not keep the pod alive.
        actions.init_containers_to_start.clear();
    }
}

/// Adds what init containers need. True when regular containers may run.
fn init_actions(pod: &Pod, runtime: &RuntimePod, probes: &ProbeResults, actions: &mut PodActions) -> bool {
    let list = init_containers(pod);
    if list.is_empty() {
        return true;
    }
    // What is left of a former sandbox proves nothing, should its removal have failed: one that was made there and never
    // started stays as it is when the sandbox goes.
    let sandbox = runtime.sandboxes.first().map(|s| &s.id);
    let newest = |name: &str| runtime.newest(name).filter(|s| Some(&s.sandbox_id) == sandbox);
    // Exited ones prove nothing either: after a reboot, all containers of the old sandbox are there, exited.
    let mut initialized = containers(pod)
        .iter()
        .any(|c| newest(&c.name).is_some_and(|s| matches!(s.state, RunState::Created | RunState::Running)));
    let mut start = Vec::new();
    // Backwards: the last one that has a status tells how far initialization got, whatever became of those before it.
    let mut seen_later = initialized;
    for (index, container) in list.iter().enumerate().rev() {
        let sidecar = is_sidecar(container);
        let Some(status) = newest(&container.name) else {
            if seen_later && sidecar {
                start.push(index);
            }
            continue;
        };
        if seen_later && !sidecar {
            continue;
        }
        let mut step = InitStep { container, index, status, last: index + 1 == list.len(), seen_later };
        match step.decide(pod, probes, actions, &mut start) {
            Progress::Failed => {
                actions.kill_pod = true;
                actions.init_containers_to_start.clear();
                return false;
            }
            Progress::AllDone => initialized = true,
            Progress::Going => {}
        }
        seen_later = true;
    }
    if !seen_later {
        start.push(0);
    }
    start.reverse();
    actions.init_containers_to_start = start;
    initialized
}

enum Progress {
    Going,
    /// The last init container is done (a sidecar: has started).
    AllDone,
    Failed,
}

/// One init container that has a status.
struct InitStep<'a> {
    container: &'a Container,
    index: usize,
    status: &'a ContainerStatus,
    last: bool,
    seen_later: bool,
}

impl InitStep<'_> {
    fn decide(
        &mut self,
        pod: &Pod,
        probes: &ProbeResults,
        actions: &mut PodActions,
        start: &mut Vec<usize>,
    ) -> Progress {
        let sidecar = is_sidecar(self.container);
        let unknown = "Init container is in \"unknown\" state, try killing it before restart";
        match self.status.state {
            // Created and never started: the runtime failed in between.
            RunState::Created => start.push(self.index),
            RunState::Running if sidecar => return self.running_sidecar(probes, actions, start),
            RunState::Running => {}
            RunState::Exited if sidecar => start.push(self.index),
            RunState::Exited => match failed_init_exit_code(self.status.exit_code, &self.status.reason) {
                None => return self.done(start),
                Some(code) if may_restart(self.container, pod, code) => start.push(self.index),
                Some(_) => return Progress::Failed,
            },
            RunState::Unknown => {
                if !sidecar && !restarts_after_kill(self.container, pod) {
                    return Progress::Failed;
                }
                actions.containers_to_kill.push(kill(self.status, unknown.to_owned(), KillReason::Unknown));
                start.push(self.index);
            }
        }
        Progress::Going
    }

    fn done(&self, start: &mut Vec<usize>) -> Progress {
        if self.last {
            return Progress::AllDone;
        }
        if !self.seen_later {
            start.push(self.index + 1);
        }
        Progress::Going
    }

    fn running_sidecar(&self, probes: &ProbeResults, actions: &mut PodActions, start: &mut Vec<usize>) -> Progress {
        let name = &self.container.name;
        let mut restart = |message: String, reason| {
            actions.containers_to_kill.push(kill(self.status, message, reason));
        };
        if self.container.startup_probe.is_some() {
            match probes.startup.get(&self.status.id) {
                Some(ProbeResult::Success) => {}
                Some(ProbeResult::Failure) => {
                    restart(format!("Init container {name} failed startup probe"), KillReason::StartupProbe);
                    start.push(self.index);
                    return Progress::Going;
                }
                _ => return Progress::Going,
            }
        }
        let progress = self.done(start);
        if definition_changed(self.container, self.status) {
            restart(format!("Init container {name} definition changed"), KillReason::Unknown);
            start.push(self.index);
        } else if self.container.liveness_probe.is_some()
            && probes.liveness.get(&self.status.id) == Some(&ProbeResult::Failure)
        {
            restart(format!("Init container {name} failed liveness probe"), KillReason::LivenessProbe);
            start.push(self.index);
        }
        progress
    }
}

/// Every instance of every container, those that triggered the restart last.
fn resets(pod: &Pod, runtime: &RuntimePod) -> Vec<ContainerReset> {
    let split = |list: &[Container]| {
        let (mut triggers, mut others) = (Vec::new(), Vec::new());
        for container in list {
            for status in runtime.containers.iter().filter(|s| s.name == container.name) {
                let exited = status.state == RunState::Exited;
                let reset = ContainerReset { id: status.id.clone(), name: status.name.clone(), kill: !exited };
                if exited && triggers_restart_all(container, status.exit_code) {
                    triggers.push(reset);
                } else {
                    others.push(reset);
                }
            }
        }
        (triggers, others)
    };
    let (init_triggers, init_others) = split(init_containers(pod));
    let (triggers, others) = split(containers(pod));
    [others, init_others, triggers, init_triggers].concat()
}

#[cfg(test)]
#[path = "actions_tests.rs"]
mod tests;
