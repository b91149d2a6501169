//! One operation from its begin to its place in the books (upstream's `pkg/volume/util/operationexecutor`): what it needs to know is
//! taken out of the state before, and what came of it is written there after it.

use std::sync::Arc;

use bulkhead_types::PodUid;
use kubelet_model::events::EventType;
use tokio::time::Instant;

use crate::context::{Context, State};
use crate::operations::expand::{Expand, Moment};
use crate::operations::mount::Mount;
use crate::operations::{Failure, Phase, unmount};
use crate::reconciler::{Action, Attacher};
use crate::spec::{Source, UniqueName};

/// One operation, from its begin to its place in the books.
pub async fn operate(context: Arc<Context>, action: Action) {
    let began = Instant::now();
    let (volume, pod) = action.key();
    let (volume, pod) = (volume.clone(), pod.cloned());
    let (plugin, block, migrated) = {
        let state = context.state();
        let actual = state.actual.volumes.get(&volume);
        let desired = pod.as_ref().and_then(|pod| state.desired.volume(pod, &volume));
        let plugin = actual.map(|v| v.plugin.clone()).or_else(|| desired.map(|v| v.spec.plugin()));
        let of_device = actual.is_some_and(|volume| {
            volume.device.as_ref().is_some_and(|device| device.block)
                || volume.disk.as_ref().is_some_and(|disk| disk.block)
        });
        let migrated = desired.and_then(|v| v.spec.csi()).is_some_and(|source| source.migrated);
        (plugin.unwrap_or_default(), of_device || desired.is_some_and(|v| v.spec.block), migrated)
    };
    let Some(operation) = action.operation(block) else { return };
    let result = match &action {
        Action::Attach { volume, pod } => attach(&context, volume, pod),
        Action::Mount { volume, pod } => mount(&context, volume, pod).await,
        Action::Unmount { volume, pod } => {
            let unknown = context.state().actual.published(volume, pod).is_some_and(|published| published.unreadable);
            let result = unmount::unmount(&context, volume, pod).await;
            if unknown && !result.as_ref().is_err_and(|failure| failure.away) {
                context.ports.metrics.force_cleaned(result.is_ok());
            }
            result
        }
        Action::Expand { volume, pod } => expand(&context, volume, pod).await,
        Action::Unstage { volume } => unmount::unstage(&context, volume).await,
        Action::Forget { .. } => return,
    };
    context.ports.metrics.observe(&plugin, operation, result.is_ok(), migrated, began.elapsed());
    finish(&context, &action, block, result);
    context.touch();
}

/// What upstream's plugins do where no controller attaches: nothing, but for CSI's, which leaves it to the controller.
/// A FlexVolume driver's `attach` is the controller's as well.
fn attach(context: &Context, volume: &UniqueName, uid: &PodUid) -> Result<(), Failure> {
    let wanted = {
        let mut state = context.state();
        let State { desired, attacher, .. } = &mut *state;
        let Some(pod) = desired.pods.get(uid) else { return Ok(()) };
        let Some(wanted) = pod.volumes.get(volume) else { return Ok(()) };
        if matches!(wanted.spec.source, Source::Csi(_) | Source::Flex(_)) {
            return Err(Failure::new(Phase::Attach, "attaching volumes from the kubelet is not supported"));
        }
        if let Attacher::Node(attached) = attacher {
            attached.insert(volume.clone());
        }
        (pod.facts.clone(), wanted.spec.name.clone())
    };
    let (pod, name) = wanted;
    let message = format!("AttachVolume.Attach succeeded for volume {name:?} ");
    context.event(&pod, EventType::Normal, "SuccessfulAttachVolume", message);
    Ok(())
}

async fn mount(context: &Context, volume: &UniqueName, uid: &PodUid) -> Result<(), Failure> {
    let found = {
        let mut state = context.state();
        state.desired.pods.get_mut(uid).and_then(|pod| {
            let wanted = pod.volumes.get_mut(volume)?;
            let remount = std::mem::take(&mut wanted.remount);
            Some((pod.facts.clone(), wanted.spec.clone(), wanted.attachable, remount, wanted.label.mount.clone()))
        })
    };
    // Nobody wants it any more.
    let Some((pod, spec, attachable, remount, wanted)) = found else { return Ok(()) };
    let label = {
        let state = context.state();
        // What a pod has, it keeps as it is.
        let has = state.actual.volumes.get(volume).filter(|there| there.pods.contains_key(uid));
        has.map_or(wanted, |there| there.label.clone())
    };
    let result = Mount { context, volume, uid, pod, spec: spec.clone(), attachable, remount, label }.run().await;
    let Err(failure) = &result else { return result };
    if remount {
        // As upstream's remountRequired: until the driver has been called with success.
        let mut state = context.state();
        let wanted = state.desired.pods.get_mut(uid).and_then(|pod| pod.volumes.get_mut(volume));
        wanted.into_iter().for_each(|wanted| wanted.remount = true);
    }
    if failure.mismatch && spec.claim.is_some() {
        say_mismatch(context, &spec.name, &failure.text).await;
    }
    result
}

/// Told to the PersistentVolume, beside what the pod is told (upstream `operation_generator.go` checkForFailedMount).
async fn say_mismatch(context: &Context, name: &str, why: &str) {
    let Ok(volume) = context.ports.reader.volume(name).await else { return };
    let message = format!("MountVolume failed for volume {name:?} {why}");
    let reason = "FailedMountOnFilesystemMismatch";
    context.event_of("PersistentVolume", &volume.metadata, EventType::Warning, reason, message);
}

async fn expand(context: &Context, volume: &UniqueName, uid: &PodUid) -> Result<(), Failure> {
    let found = {
        let state = context.state();
        let pod = state.desired.pods.get(uid);
        pod.and_then(|pod| Some((pod.facts.clone(), pod.volumes.get(volume)?.spec.clone())))
    };
    let Some((pod, spec)) = found else { return Ok(()) };
    Expand { context, volume, uid, pod, spec, moment: Moment::Online }.run().await
}

fn finish(context: &Context, action: &Action, block: bool, result: Result<(), Failure>) {
    let (volume, pod) = action.key();
    let key = (volume.clone(), pod.cloned());
    let mut state = context.state();
    state.busy.end(volume, action.scope());
    let Err(failure) = result else {
        state.back_offs.forget(&key);
        state.errors.remove(&key);
        return;
    };
    state.back_offs.failed(key.clone(), action.kind(), Instant::now());
    let wanted = pod.and_then(|pod| {
        let wanted = state.desired.pods.get(pod)?;
        Some((wanted.facts.clone(), wanted.volumes.get(volume)?.spec.name.clone()))
    });
    let device = state.actual.volumes.get(volume).and_then(|v| v.device.as_ref()).map(|d| d.spec_name.clone());
    let name = wanted.as_ref().map(|(_, name)| name.clone()).or(device).unwrap_or_else(|| volume.0.clone());
    let message = failure.message(&name, block);
    state.errors.insert(key, message.clone());
    drop(state);
    match (action, wanted) {
        (_, _) if failure.away => tracing::debug!(volume = %volume, "{message}"),
        (Action::Mount { .. } | Action::Attach { .. }, Some((pod, _))) => {
            context.event(&pod, EventType::Warning, failure.phase.reason(block), message);
        }
        (Action::Expand { .. }, Some((pod, _))) => {
            context.event(&pod, EventType::Warning, "VolumeResizeFailed", message);
        }
        (_, _) => tracing::warn!(volume = %volume, "{message}"),
    }
}
