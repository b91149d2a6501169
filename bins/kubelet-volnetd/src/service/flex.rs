//! `Volumes.AskFlexDriver` and `Volumes.SetUpFlex`.

use bulkhead_ipc::volnetd::{AskFlexDriverReply, AskFlexDriverRequest, FlexPart, SetUpFlexReply, SetUpFlexRequest};
use bulkhead_types::FlexDriver;
use tonic::Status;

use super::Verbs;
use crate::operations::flex::{self, Growth, Wanted};
use crate::validate::{self, InvalidRequest};
use crate::volumes::empty_dir::Group;
use crate::volumes::flex::FlexVolume;

/// Bytes of what a driver calls its device.
const DEVICE_MAX: usize = 4096;

pub(super) async fn ask(verbs: &Verbs, request: AskFlexDriverRequest) -> Result<AskFlexDriverReply, Status> {
    let driver = FlexDriver::parse(&request.driver).map_err(InvalidRequest::from)?;
    let capabilities = flex::capabilities(&verbs.node, &driver).await?;
    Ok(AskFlexDriverReply { capabilities: Some(capabilities) })
}

pub(super) async fn set_up(verbs: &Verbs, request: SetUpFlexRequest) -> Result<SetUpFlexReply, Status> {
    let part = request.part();
    let pod = validate::pod_uid(&request.pod_uid)?;
    let driver = FlexDriver::parse(&request.driver).map_err(InvalidRequest::from)?;
    let flex = FlexVolume { driver, volume: validate::volume(&request.volume)? };
    let told = request.options.ok_or(InvalidRequest::Missing { field: "options" })?;
    let group = told.fs_group.map(|group| validate::id("fs_group", group)).transpose()?;
    let on_root_mismatch = request.fs_group_on_root_mismatch;
    let group = group.filter(|_| !told.read_only).map(|id| Group { id, on_root_mismatch });
    let device = request.device;
    // The Node's word becomes no option of the driver's command line. What the driver itself calls its device goes back to it as it is;
    // kubelet-flexvolume looks at both before it runs the driver.
    let is_bad = |device: &&String| device.len() > DEVICE_MAX || device.contains('\0') || device.starts_with('-');
    if let Some(bad) = device.as_ref().filter(is_bad) {
        return Err(validate::bad("device", bad, "at most 4096 bytes without NUL that do not begin with '-'").into());
    }
    let growth = request.grow.map(|grow| Growth { new: grow.new_size, old: grow.old_size });
    if part != FlexPart::Unspecified && (device.is_none() || growth.is_some()) {
        return Err(
            validate::bad("part", part.as_str_name(), "of a volume that is attached, and that is not to grow").into()
        );
    }
    let wanted = Wanted { pod, flex, told, group, device, growth, is_mounted_once: part == FlexPart::Pod };
    if part == FlexPart::Device {
        // The pod's lock is not held: however long the driver takes, the pod can go.
        flex::set_up_device(verbs.node.clone(), wanted).await?;
        return Ok(SetUpFlexReply::default());
    }
    let walk = verbs.node.lock_walk(&wanted.pod, wanted.flex.driver.as_str(), &wanted.flex.volume).await?;
    let locks = (verbs.node.lock_pod(&wanted.pod).await?, walk);
    let ready = flex::set_up(verbs.node.clone(), locks, wanted).await?;
    Ok(SetUpFlexReply { host_path: verbs.told(&ready.path), relabel: ready.relabel })
}
