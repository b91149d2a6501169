//! Statuses of containers (upstream `pkg/kubelet/kubelet_pods.go` convertToAPIContainerStatuses, and the probe manager's
//! `ready` and `started`).

use std::collections::{BTreeMap, HashMap};
use std::time::SystemTime;

use bulkhead_types::ContainerId;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    ContainerUser, ImageVolumeStatus, LinuxContainerUser, VolumeMountStatus, VolumeStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_model::v1::{Container, Pod};

use super::reason_cache::StartFailure;
use super::resources;
use super::termination::join;
use crate::allocation::PodResources;
use crate::runtime::actions::has_any_regular_container_created;
use crate::runtime::container_config::recursive_read_only;
use kubelet_model::pod::model::{ContainerStatus as Instance, ImageMount, LinuxUser, RunState, RuntimePod};
use kubelet_model::pod::names::absolute;
use kubelet_model::pod::restart::{may_restart, should_start};
use kubelet_model::pod::spec::{ContainerKind, image, init_containers, is_deleted, is_sidecar};
use kubelet_model::pod::stop_signal;
use kubelet_probes::prober::results::{ProbeResult, ProbeResults};

/// Bytes: a longer reference would not be taken (`ImageVolumeStatus`).
const IMAGE_REF_MAX: usize = 256;

const UNKNOWN: &str = "ContainerStatusUnknown";
/// Why a container of a pod that restarts in place waits, and as what it ended.
pub(super) const RESTARTING: &str = "RestartingAllContainers";
const REMOVED: &str = "The container is removed because RestartAllContainers in place";
/// As if it had been killed: what became of the container is not known.
const UNKNOWN_EXIT: i32 = 137;

/// What containerd says of a container whose end it did not see (its `unknownExitCode` and `unknownExitReason`).
const UNSEEN_EXIT: i32 = 255;
const UNSEEN: &str = "Unknown";

/// What the statuses of one list of containers are computed from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub pod: &'a Pod,
    pub runtime: &'a RuntimePod,
    pub kind: ContainerKind,
    pub old: &'a [ContainerStatus],
    pub failures: &'a HashMap<String, StartFailure>,
    /// What exited containers left in their termination message file (or log), by id.
    pub messages: &'a BTreeMap<ContainerId, String>,
    pub probes: &'a ProbeResults,
    /// The pod restarts in place.
    pub restarting: bool,
    pub runtime_name: &'a str,
    /// Whether the pod's handler mounts recursively read-only. None: not known now.
    pub recursive_read_only: Option<bool>,
    /// Which signal stops a container is told.
    pub stop_signals: bool,
    /// Which image a volume has is told (gate ImageVolumeWithDigest).
    pub image_volume_digests: bool,
    /// What containers were given last, by name.
    pub actuated: Option<&'a PodResources>,
}

/// Statuses of `list`, one for each container.
pub(super) fn statuses(inputs: Inputs<'_>, list: &[Container]) -> Vec<ContainerStatus> {
    let mut result: Vec<ContainerStatus> = list.iter().map(|container| one(inputs, container)).collect();
    if inputs.kind != ContainerKind::Init {
        // Clients rely on it.
        result.sort_by(|a, b| a.name.cmp(&b.name));
    }
    result
}

fn one(inputs: Inputs<'_>, container: &Container) -> ContainerStatus {
    let old = inputs.old.iter().find(|s| s.name == container.name);
    let mut instances = inputs.runtime.containers.iter().filter(|s| s.name == container.name);
    let newest = instances.next();
    let told = old.filter(|old| newest.is_some_and(|instance| is_superseded(instance, old)));
    let newest = newest.filter(|_| told.is_none());
    let mut status = match (newest, told) {
        (Some(instance), _) => {
            let mut status = convert(inputs, container, instance, old);
            // One that was made and never started says nothing of the end before it.
            let mut ends = instances.filter_map(|previous| convert(inputs, container, previous, old).state);
            if let Some(ended) = ends.find(|state| state.terminated.is_some()) {
                status.last_state = Some(ended);
            }
            status
        }
        (None, Some(told)) if is_waiting(told) => told.clone(),
        (None, _) => without_instance(inputs, container, old),
    };
    apply_start_failure(inputs, container, newest, &mut status);
    set_readiness(inputs, container, newest, old, &mut status);
    status
}

/// A later instance than this one, which was never started, has ended, and the runtime has lost it, or its successor is not in
/// the list yet: what was reported of that end stays, and of the wait after it. As the newest instance this one would take it back.
fn is_superseded(instance: &Instance, old: &ContainerStatus) -> bool {
    let count = i32::try_from(instance.restart_count).unwrap_or(i32::MAX);
    let has_ended = terminated_of(old.state.as_ref()).is_some()
        || (is_waiting(old) && terminated_of(old.last_state.as_ref()).is_some());
    instance.state == RunState::Created && has_ended && old.restart_count > count
}

fn is_waiting(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|state| state.waiting.is_some())
}

/// What is shown before the runtime knows the container, or after it has forgotten it.
fn without_instance(inputs: Inputs<'_>, container: &Container, old: Option<&ContainerStatus>) -> ContainerStatus {
    let default_reason = if init_containers(inputs.pod).is_empty() { "ContainerCreating" } else { "PodInitializing" };
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: image(container).to_owned(),
        state: Some(waiting(default_reason, "")),
        last_state: Some(ContainerState::default()),
        volume_mounts: mount_statuses(container, inputs, &[], old.filter(|_| inputs.recursive_read_only.is_none())),
        ..ContainerStatus::default()
    };
    let Some(old) = old else { return status };
    let was_terminated = terminated_of(old.state.as_ref()).is_some();
    if was_terminated {
        status = old.clone();
    } else {
        status.restart_count = old.restart_count;
        status.last_state = old.last_state.clone().or(Some(ContainerState::default()));
    }
    let was_waiting =
        old.state.as_ref().is_none_or(|s| s.waiting.is_some() || (s.running.is_none() && s.terminated.is_none()));
    if inputs.restarting && !was_waiting {
        status.state = Some(waiting(RESTARTING, REMOVED));
        status.last_state = Some(terminated(RESTARTING, REMOVED));
        status.restart_count = old.restart_count.saturating_add(1);
        return status;
    }
    let was_running = old.state.as_ref().is_some_and(|s| s.running.is_some());
    if was_running && terminated_of(status.last_state.as_ref()).is_none() {
        // It ran and nobody saw its end: waiting alone would put the pod back to Pending.
        let message = "The container could not be located when the pod was deleted.  The container used to be Running";
        status.last_state = Some(terminated(UNKNOWN, message));
        if !is_deleted(inputs.pod) {
            status.restart_count = status.restart_count.saturating_add(1);
        }
    }
    status
}

fn convert(
    inputs: Inputs<'_>,
    container: &Container,
    instance: &Instance,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let id = format!("{}://{}", inputs.runtime_name, instance.id);
    // How an instance has its mounts was decided when it was made, and the class may be another one by now.
    let is_told = |old: &&ContainerStatus| old.container_id.as_ref() == Some(&id);
    let told_mounts = old.filter(|old| inputs.recursive_read_only.is_none() || is_told(old));
    let mut status = ContainerStatus {
        name: instance.name.clone(),
        image: instance.image.clone(),
        image_id: instance.image_ref.clone(),
        container_id: Some(id.clone()),
        restart_count: i32::try_from(instance.restart_count).unwrap_or(i32::MAX),
        last_state: Some(ContainerState::default()),
        volume_mounts: mount_statuses(container, inputs, &instance.image_volumes, told_mounts),
        user: instance.user.as_ref().map(user),
        stop_signal: stop_signal::shown(instance.stop_signal).filter(|_| inputs.stop_signals),
        resources: Some(resources::of_container(
            container,
            instance,
            &id,
            old,
            inputs.actuated.and_then(|pod| pod.containers.get(&container.name)),
        )),
        allocated_resources: container.resources.as_ref().and_then(|r| r.requests.clone()).filter(|r| !r.is_empty()),
        ..ContainerStatus::default()
    };
    let old_terminated = old.and_then(|o| terminated_of(o.state.as_ref()));
    if let Some(old) = old {
        status.restart_count = status.restart_count.max(old.restart_count);
        // Usually the runtime still has the previous instance and says better; after an in-place restart it has not.
        if let Some(ended) = old_terminated.filter(|_| old.container_id.as_ref() != Some(&id)) {
            status.last_state = Some(ContainerState { terminated: Some(ended.clone()), ..ContainerState::default() });
        } else if let Some(ended) = terminated_of(old.last_state.as_ref()) {
            status.last_state = Some(ContainerState { terminated: Some(ended.clone()), ..ContainerState::default() });
        }
    }
    let known = known_end(old, instance, &id);
    status.state = Some(match instance.state {
        RunState::Running => {
            let count = i32::try_from(instance.restart_count).unwrap_or(i32::MAX);
            if let Some(old) = old.filter(|o| old_terminated.is_some() && o.restart_count >= count) {
                status.restart_count = old.restart_count.saturating_add(1);
            }
            let started_at = instance.started_at.map(time);
            ContainerState { running: Some(ContainerStateRunning { started_at }), ..ContainerState::default() }
        }
        // containerd may lose an end that it has told, when it dies before that is on the disk.
        RunState::Exited if known.is_some() => {
            ContainerState { terminated: known.cloned(), ..ContainerState::default() }
        }
        RunState::Exited => {
            let own = inputs.messages.get(&instance.id).map_or("", String::as_str);
            // After a restart the file has not been read yet, or is gone: what was told before is the same end.
            let told = old.and_then(|old| told_message(old, &id)).filter(|_| own.is_empty());
            let some = |text: String| (!text.is_empty()).then_some(text);
            ContainerState {
                terminated: Some(ContainerStateTerminated {
                    exit_code: instance.exit_code,
                    reason: some(instance.reason.clone()),
                    message: told.or_else(|| some(join(&instance.message, own, ""))),
                    // One whose start failed never ran: upstream shows the runtime's zero as it is.
                    started_at: Some(time(instance.started_at.unwrap_or(SystemTime::UNIX_EPOCH))),
                    finished_at: Some(time(instance.finished_at.unwrap_or(SystemTime::UNIX_EPOCH))),
                    container_id: Some(id),
                    signal: None,
                }),
                ..ContainerState::default()
            }
        }
        RunState::Unknown if old.and_then(|o| o.state.as_ref()).is_some_and(|s| s.running.is_some()) => {
            status.restart_count = old.map_or(0, |o| o.restart_count).saturating_add(1);
            let reason = if inputs.restarting { RESTARTING } else { UNKNOWN };
            terminated(reason, "The container could not be located when the pod was terminated")
        }
        RunState::Created | RunState::Unknown => waiting("", ""),
    });
    status
}

/// No groups at all are no field, as with upstream.
fn user(user: &LinuxUser) -> ContainerUser {
    let supplemental_groups = Some(user.supplemental_groups.clone()).filter(|groups| !groups.is_empty());
    ContainerUser { linux: Some(LinuxContainerUser { uid: user.uid, gid: user.gid, supplemental_groups }) }
}

/// The end that was told of an instance whose end the runtime does not know any more.
fn known_end<'a>(
    old: Option<&'a ContainerStatus>,
    instance: &Instance,
    id: &str,
) -> Option<&'a ContainerStateTerminated> {
    let unseen = instance.exit_code == UNSEEN_EXIT && instance.reason == UNSEEN;
    let end = terminated_of(old?.state.as_ref()).filter(|_| unseen)?;
    (end.container_id.as_deref() == Some(id) && end.exit_code != UNSEEN_EXIT).then_some(end)
}

/// What a status says of the end of the container `id`.
fn told_message(status: &ContainerStatus, id: &str) -> Option<String> {
    let ends = [terminated_of(status.state.as_ref()), terminated_of(status.last_state.as_ref())];
    let end = ends.into_iter().flatten().find(|end| end.container_id.as_deref() == Some(id))?;
    end.message.clone().filter(|text| !text.is_empty())
}

/// It was told to have ended for good, and the runtime has nothing of it any more: nobody starts it again, whatever an earlier
/// start is thought to have failed with. Told as waiting, it would be a step back, for which the whole status would be thrown
/// away each time.
fn stays_ended(inputs: Inputs<'_>, container: &Container, newest: Option<&Instance>, status: &ContainerStatus) -> bool {
    let is_settled = match inputs.kind {
        ContainerKind::Regular => true,
        ContainerKind::Init => !is_sidecar(container) && has_any_regular_container_created(inputs.pod, inputs.runtime),
        ContainerKind::Ephemeral => false,
    };
    let for_good =
        terminated_of(status.state.as_ref()).is_some_and(|end| !may_restart(container, inputs.pod, end.exit_code));
    newest.is_none() && is_settled && for_good && !inputs.restarting
}

/// A container that should run and could not be started says why.
fn apply_start_failure(
    inputs: Inputs<'_>,
    container: &Container,
    newest: Option<&Instance>,
    status: &mut ContainerStatus,
) {
    if inputs.kind == ContainerKind::Init {
        if newest.is_some_and(|s| s.state == RunState::Exited && s.exit_code == 0) {
            return;
        }
        let is_waiting = status.state.as_ref().is_some_and(|s| s.waiting.is_some());
        // In a pod that restarts in place it has been removed to run again.
        if newest.is_none()
            && is_waiting
            && !inputs.restarting
            && !is_sidecar(container)
            && has_any_regular_container_created(inputs.pod, inputs.runtime)
        {
            // It has been removed since; but for its success nothing that comes after it would be there.
            let message = "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally";
            status.state = Some(terminated_with("Completed", message, 0));
            return;
        }
    }
    if !should_start(container, inputs.pod, newest) || stays_ended(inputs, container, newest, status) {
        return;
    }
    let Some(failure) = inputs.failures.get(&container.name) else { return };
    if terminated_of(status.state.as_ref()).is_some() {
        status.last_state = status.state.take();
    }
    status.state = Some(waiting(&failure.reason, &failure.message));
}

/// `started` and `ready` by what probes found out (upstream `pkg/kubelet/prober/prober_manager.go`). Of an instance that no
/// probe has spoken about, what was told before stays told: readiness does not change because this process began anew.
fn set_readiness(
    inputs: Inputs<'_>,
    container: &Container,
    newest: Option<&Instance>,
    old: Option<&ContainerStatus>,
    status: &mut ContainerStatus,
) {
    if inputs.kind == ContainerKind::Ephemeral {
        return;
    }
    let running = status.state.as_ref().is_some_and(|s| s.running.is_some());
    let told = old.filter(|old| old.container_id.is_some() && old.container_id == status.container_id);
    let passed = |has_probe: bool, results: &BTreeMap<ContainerId, ProbeResult>, before: bool| match newest
        .and_then(|instance| results.get(&instance.id))
    {
        Some(result) => *result == ProbeResult::Success,
        None => !has_probe || before,
    };
    let was_started = told.is_some_and(|old| old.started == Some(true));
    let started = running && passed(container.startup_probe.is_some(), &inputs.probes.startup, was_started);
    let was_ready = told.is_some_and(|old| old.ready);
    status.started = Some(started);
    status.ready = if inputs.kind == ContainerKind::Init && !is_sidecar(container) {
        terminated_of(status.state.as_ref()).is_some_and(|t| t.exit_code == 0)
    } else {
        started && passed(container.readiness_probe.is_some(), &inputs.probes.readiness, was_ready)
    };
}

/// `images`: those that the container's instance has mounted. Upstream looks for the volume's name in the runtime's answer, which
/// has none; a mount is known by its path. `told`: a status whose mounts are as they are now (upstream takes them from any that was
/// told before, also from before the class was known).
fn mount_statuses(
    container: &Container,
    inputs: Inputs<'_>,
    images: &[ImageMount],
    told: Option<&ContainerStatus>,
) -> Option<Vec<VolumeMountStatus>> {
    let volumes = inputs.pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let is_image = |name: &str| volumes.iter().any(|volume| volume.name == name && volume.image.is_some());
    let image_of = |mount: &k8s_openapi::api::core::v1::VolumeMount| {
        let wanted = inputs.image_volume_digests && is_image(&mount.name);
        let path = absolute(&mount.mount_path);
        let found = images.iter().find(|image| wanted && image.path == path)?;
        let image_ref = found.image.clone();
        let fits = image_ref.len() <= IMAGE_REF_MAX;
        fits.then_some(VolumeStatus { image: Some(ImageVolumeStatus { image_ref }) })
    };
    let supported = inputs.recursive_read_only == Some(true);
    let told_of = |mount: &k8s_openapi::api::core::v1::VolumeMount| {
        let mut told = told?.volume_mounts.iter().flatten();
        told.find(|told| told.name == mount.name && told.mount_path == mount.mount_path)?.recursive_read_only.clone()
    };
    let mounts = container.volume_mounts.as_deref().filter(|m| !m.is_empty())?;
    let status = |mount: &k8s_openapi::api::core::v1::VolumeMount| {
        let read_only = mount.read_only == Some(true);
        let recursive = || match recursive_read_only(mount, supported) {
            Ok(true) => "Enabled".to_owned(),
            Ok(false) | Err(_) => "Disabled".to_owned(),
        };
        VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: read_only.then_some(true),
            recursive_read_only: read_only.then(|| told_of(mount).unwrap_or_else(recursive)),
            volume_status: image_of(mount),
        }
    };
    Some(mounts.iter().map(status).collect())
}

/// The terminated part of a state, if that is what it is.
pub(super) fn terminated_of(state: Option<&ContainerState>) -> Option<&ContainerStateTerminated> {
    state?.terminated.as_ref()
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let waiting = ContainerStateWaiting { reason: some(reason), message: some(message) };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

fn terminated(reason: &str, message: &str) -> ContainerState {
    terminated_with(reason, message, UNKNOWN_EXIT)
}

fn terminated_with(reason: &str, message: &str, exit_code: i32) -> ContainerState {
    let terminated = ContainerStateTerminated {
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        exit_code,
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

/// End of a container of which nothing is known any more when its pod ends.
pub(super) fn lost() -> ContainerState {
    terminated(UNKNOWN, "The container could not be located when the pod was terminated")
}

/// API times have whole seconds.
fn time(time: SystemTime) -> Time {
    Time(seconds(Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH)))
}

/// Cut to whole seconds, as times of the API are.
pub fn seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(Timestamp::UNIX_EPOCH)
}
