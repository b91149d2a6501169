//! `Volumes.SetUpFc`, `Volumes.EndDisk` and `Volumes.ListDisks`.

use bulkhead_ipc::volnetd::{DiskPlace as WirePlace, DiskState, EndDiskRequest, SetUpFcRequest};
use tonic::Status;

use super::Verbs;
use crate::operations::fc;
use crate::operations::local::{Ready, Wanted};
use crate::validate::{self, InvalidRequest};
use crate::volumes::disk::fc::Disk;
use crate::volumes::disk::options::{FsType, Options};
use crate::volumes::disk::place::{DiskPlace, Plugin};
use crate::volumes::empty_dir::Group;
use crate::volumes::local::Local;

pub(super) async fn set_up(verbs: &Verbs, request: SetUpFcRequest) -> Result<Ready, Status> {
    let pod = validate::pod_uid(&request.pod_uid)?;
    let volume = validate::volume(&request.volume)?;
    let group = request.fs_group.map(|group| validate::id("fs_group", group)).transpose()?;
    let disk = Disk::parse(request.disk)?;
    let local = Local {
        plugin: Plugin::Fc,
        volume,
        path: DiskPlace::fc(&disk).point(&verbs.node.settings),
        read_only: request.read_only,
        group: group.map(|id| Group { id, on_root_mismatch: request.fs_group_on_root_mismatch }),
    };
    let wanted = Wanted {
        pod: pod.clone(),
        local,
        fs_type: FsType::parse(&request.fs_type)?,
        options: Options::parse(&request.mount_options, request.read_only)?,
        block: request.block,
        grow: false,
    };
    let lock = verbs.node.lock_pod(&pod).await?;
    fc::set_up(verbs.node.clone(), lock, wanted, disk).await
}

pub(super) async fn end(verbs: &Verbs, request: EndDiskRequest) -> Result<(), Status> {
    let WirePlace { plugin, name, block } = request.place.ok_or(InvalidRequest::Missing { field: "place" })?;
    let plugin = Plugin::attached(&plugin).ok_or_else(|| validate::bad("plugin", &plugin, "kubernetes.io/fc"))?;
    Disk::of_folder(&name)?;
    verbs.guard(request.guard.as_ref())?;
    fc::end(verbs.node.clone(), DiskPlace { plugin, name }, block).await
}

pub(super) async fn list(verbs: &Verbs) -> Result<Vec<DiskState>, Status> {
    let all = fc::list(&verbs.node).await?;
    let state = |found: fc::Attached| {
        let (plugin, name) = (found.place.plugin.name().to_owned(), found.place.name);
        DiskState { place: Some(WirePlace { plugin, name, block: found.block }), in_use: found.in_use }
    };
    Ok(all.into_iter().map(state).collect())
}
