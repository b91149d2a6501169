//! `Volumes.SetUpFlex`.

use bulkhead_ipc::volnetd::SetUpFlexRequest;
use bulkhead_types::FlexDriver;
use tonic::Status;

use super::Verbs;
use crate::operations::flex::{self, Ready, Wanted};
use crate::validate::{self, InvalidRequest};
use crate::volumes::empty_dir::Group;
use crate::volumes::flex::FlexVolume;

pub(super) async fn set_up(verbs: &Verbs, request: SetUpFlexRequest) -> Result<Ready, Status> {
    let pod = validate::pod_uid(&request.pod_uid)?;
    let driver = FlexDriver::parse(&request.driver).map_err(InvalidRequest::from)?;
    let flex = FlexVolume { driver, volume: validate::volume(&request.volume)? };
    let told = request.options.ok_or(InvalidRequest::Missing { field: "options" })?;
    let group = told.fs_group.map(|group| validate::id("fs_group", group)).transpose()?;
    let on_root_mismatch = request.fs_group_on_root_mismatch;
    let group = group.filter(|_| !told.read_only).map(|id| Group { id, on_root_mismatch });
    let lock = verbs.node.lock_pod(&pod).await?;
    flex::set_up(verbs.node.clone(), lock, Wanted { pod, flex, told, group }).await
}
