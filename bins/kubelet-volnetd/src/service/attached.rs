//! `Volumes.SetUpFc`, `Volumes.SetUpIscsi`, `Volumes.EndDisk` and `Volumes.ListDisks`.

use bulkhead_ipc::volnetd::{DiskPlace as WirePlace, DiskState, EndDiskRequest, SetUpFcRequest, SetUpIscsiRequest};
use tonic::Status;

use super::Verbs;
use super::used::Used;
use crate::operations::attached::{self, Disk};
use crate::operations::flex_device;
use crate::operations::local::Ready;
use crate::validate::{self, InvalidRequest};
use crate::volumes::disk::place::{DiskPlace, Plugin};
use crate::volumes::disk::{fc, iscsi};

pub(super) async fn set_up_fc(verbs: &Verbs, request: SetUpFcRequest) -> Result<Ready, Status> {
    let SetUpFcRequest { pod_uid, volume, disk, read_only, fs_group, fs_type, mount_options, block, .. } = request;
    let on_root_mismatch = request.fs_group_on_root_mismatch;
    let used = Used { pod_uid, volume, read_only, fs_group, on_root_mismatch, fs_type, mount_options, block };
    set_up(verbs, used, Disk::Fc(fc::Disk::parse(disk)?)).await
}

pub(super) async fn set_up_iscsi(verbs: &Verbs, request: SetUpIscsiRequest) -> Result<Ready, Status> {
    let SetUpIscsiRequest { pod_uid, volume, disk, read_only, fs_group, fs_type, mount_options, block, .. } = request;
    let on_root_mismatch = request.fs_group_on_root_mismatch;
    let used = Used { pod_uid, volume, read_only, fs_group, on_root_mismatch, fs_type, mount_options, block };
    let disk = disk.ok_or(InvalidRequest::Missing { field: "disk" })?;
    iscsi::chap(disk.chap.as_ref())?;
    set_up(verbs, used, Disk::Iscsi(iscsi::Disk::parse(&disk)?, disk.chap)).await
}

async fn set_up(verbs: &Verbs, used: Used, disk: Disk) -> Result<Ready, Status> {
    let place = disk.place();
    let wanted = used.wanted(place.plugin, place.point(&verbs.node.settings), false)?;
    // Judged before a disk is attached.
    wanted.file_system.as_ref().map_err(Clone::clone)?;
    let locks = wanted.lock(&verbs.node).await?;
    attached::set_up(verbs.node.clone(), locks, wanted, disk).await
}

pub(super) async fn end(verbs: &Verbs, request: EndDiskRequest) -> Result<(), Status> {
    let WirePlace { plugin, name, block } = request.place.ok_or(InvalidRequest::Missing { field: "place" })?;
    let allowed = "kubernetes.io/fc, kubernetes.io/iscsi or kubernetes.io/flexvolume";
    let plugin = Plugin::attached(&plugin).ok_or_else(|| validate::bad("plugin", &plugin, allowed))?;
    let place = DiskPlace { plugin, name };
    if plugin == Plugin::Flex {
        let allowed = "a FlexVolume driver and a volume";
        let flex = place.of_flex().ok_or_else(|| validate::bad("name", &place.name, allowed))?;
        if block {
            return Err(validate::bad("block", "true", "false of a FlexVolume driver's").into());
        }
        verbs.guard(request.guard.as_ref())?;
        return flex_device::end(verbs.node.clone(), flex.into()).await;
    }
    Disk::of_place(&place)?;
    verbs.guard(request.guard.as_ref())?;
    attached::end(verbs.node.clone(), place, block).await
}

pub(super) async fn list(verbs: &Verbs) -> Result<Vec<DiskState>, Status> {
    let all = attached::list(&verbs.node).await?;
    let state = |found: attached::Attached| {
        let (plugin, name) = (found.place.plugin.name().to_owned(), found.place.name);
        DiskState { place: Some(WirePlace { plugin, name, block: found.block }), in_use: found.in_use }
    };
    Ok(all.into_iter().map(state).collect())
}
