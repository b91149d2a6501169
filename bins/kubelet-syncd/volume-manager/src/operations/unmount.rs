//! Unpublish and unstage: what takes a volume back, with its last pod from the node.

use bulkhead_csi::v1;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;

use super::csi_words::Act;
use super::{Failure, Phase};
use crate::actual_state::{ActualVolume, Nameless, Presence};
use crate::context::Context;
use crate::spec::UniqueName;

/// Takes a volume back from a pod.
///
/// # Errors
/// See [`Failure`]; the volume is still there, or may be.
pub async fn unmount(context: &Context, name: &UniqueName, uid: &PodUid) -> Result<(), Failure> {
    let phase = Phase::TearDown;
    let known = {
        let state = context.state();
        state.actual.volumes.get(name).and_then(|volume| Some((volume.device.clone()?, volume.pods.get(uid)?.clone())))
    };
    let Some((mut device, published)) = known else { return Ok(()) };
    device.spec_name.clone_from(&published.spec_name);
    let verbs = &context.ports.verbs;
    let failed = |error| Failure::verb(phase, &error);
    let request = |verb| {
        let guard = Some(verbs.guard(verb)?);
        Ok(api::EndPublishRequest { pod_uid: uid.to_string(), device: Some(device.clone()), guard })
    };
    let _place = context.place(&device.driver).await;
    let begin = request("begin_unpublish").map_err(failed)?;
    verbs.begin_unpublish(begin).await.map_err(failed)?;
    note(context, name, |volume| {
        if let Some(published) = volume.pods.get_mut(uid) {
            published.presence = Presence::Uncertain;
            published.host_path.clear();
        }
    });
    if !published.unreadable {
        let call = v1::NodeUnpublishVolumeRequest {
            volume_id: device.volume_handle.clone(),
            target_path: published.target_path,
        };
        let called = context.ports.drivers.unpublish(&device.driver, call).await;
        called.map_err(|error| Failure::act(phase, &error, Act::Unpublish, device.block))?;
    }
    let end = request("end_publish").map_err(failed)?;
    verbs.end_publish(end).await.map_err(failed)?;
    note(context, name, |volume| {
        volume.pods.remove(uid);
    });
    tracing::info!(volume = %name, pod_uid = %uid, "UnmountVolume.TearDown succeeded");
    Ok(())
}

/// Takes back by its path what nobody knows the volume of (upstream cleanupMounts).
async fn unstage_nameless(context: &Context, name: &UniqueName, volume: &ActualVolume) -> Result<(), Failure> {
    let phase = Phase::UnmountDevice;
    let folder = match volume.nameless() {
        Some(Nameless::FileSystem { folder, .. }) => folder.to_owned(),
        Some(Nameless::Block(_)) => String::new(),
        None => return Ok(()),
    };
    let verbs = &context.ports.verbs;
    let failed = |error| Failure::verb(phase, &error);
    let guard = Some(verbs.guard("end_stage").map_err(failed)?);
    let request = api::EndStageRequest { device: volume.device.clone(), guard, folder };
    verbs.end_stage(request).await.map_err(failed)?;
    context.state().actual.volumes.remove(name);
    tracing::info!(volume = %name, "cleaned up a volume that could not be reconstructed");
    Ok(())
}

/// Takes a volume that no pod has any more from the node.
///
/// # Errors
/// See [`Failure`]; the volume is still there, or may be.
pub async fn unstage(context: &Context, name: &UniqueName) -> Result<(), Failure> {
    let phase = Phase::UnmountDevice;
    let disk = context.state().actual.volumes.get(name).and_then(|volume| volume.disk.clone());
    if let Some(place) = disk {
        return end_disk(context, name, place).await;
    }
    let known = {
        let state = context.state();
        state.actual.volumes.get(name).and_then(|volume| Some((volume.device.clone()?, volume.staging_path.clone())))
    };
    let Some((device, staging_target_path)) = known else { return Ok(()) };
    if device.volume_handle.is_empty() {
        let volume = context.state().actual.volumes.get(name).cloned();
        let Some(volume) = volume else { return Ok(()) };
        return unstage_nameless(context, name, &volume).await;
    }
    let verbs = &context.ports.verbs;
    let failed = |error| Failure::verb(phase, &error);
    let request = |verb| {
        let guard = Some(verbs.guard(verb)?);
        Ok(api::EndStageRequest { device: Some(device.clone()), guard, folder: String::new() })
    };
    let _place = context.place(&device.driver).await;
    let can = context.ports.drivers.capabilities(&device.driver, false).await;
    let can = can.map_err(|error| Failure::capabilities(phase, &error, Act::Unstage, device.block))?;
    let begin = request("begin_unstage").map_err(failed)?;
    verbs.begin_unstage(begin).await.map_err(failed)?;
    note(context, name, |volume| volume.staged = Presence::Uncertain);
    if can.stage {
        let call = v1::NodeUnstageVolumeRequest { volume_id: device.volume_handle.clone(), staging_target_path };
        let called = context.ports.drivers.unstage(&device.driver, call).await;
        called.map_err(|error| Failure::act(phase, &error, Act::Unstage, device.block))?;
    }
    let end = request("end_stage").map_err(failed)?;
    verbs.end_stage(end).await.map_err(failed)?;
    context.state().actual.volumes.remove(name);
    tracing::info!(volume = %name, "UnmountDevice succeeded");
    Ok(())
}

/// Unmounts and detaches a disk that no pod has any more.
async fn end_disk(context: &Context, name: &UniqueName, place: api::DiskPlace) -> Result<(), Failure> {
    let failed = |error| Failure::verb(Phase::UnmountDevice, &error);
    let verbs = &context.ports.verbs;
    let guard = Some(verbs.guard("end_disk").map_err(failed)?);
    verbs.end_disk(api::EndDiskRequest { place: Some(place), guard }).await.map_err(failed)?;
    context.state().actual.volumes.remove(name);
    tracing::info!(volume = %name, "UnmountDevice succeeded");
    Ok(())
}

fn note(context: &Context, name: &UniqueName, write: impl FnOnce(&mut ActualVolume)) {
    if let Some(volume) = context.state().actual.volumes.get_mut(name) {
        write(volume);
    }
}
