//! Disks behind Fibre Channel: what kubelet-volnetd is asked for, and what its answers mean (upstream `pkg/volume/fc`).

use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;
use kubelet_edges::volnetd::VolnetdError;

use super::mount::Mount;
use super::{Failure, Phase, local};
use crate::spec::{FcSource, VolumeSpec};

impl Mount<'_> {
    pub(super) async fn set_up_fc(&self, source: &FcSource) -> Result<(), Failure> {
        let mut request = request(self.uid, &self.spec, source)?;
        (request.fs_group, request.fs_group_on_root_mismatch) = (self.group(), self.pod.on_root_mismatch);
        self.one_of_its_pods()?;
        self.attached_disk("fc", self.context.ports.verbs.set_up_fc(request)).await
    }
}

/// The request, without the group that the volume is given to.
///
/// # Errors
/// The volume names no disk.
fn request(uid: &PodUid, spec: &VolumeSpec, source: &FcSource) -> Result<api::SetUpFcRequest, Failure> {
    let what = if spec.block { "mapper" } else { "mounter" };
    let none = || format!("fc: no fc disk information found. failed to make a new {what}");
    let disk = source.disk().ok_or_else(|| Failure::new(Phase::NewMounter, none()))?;
    Ok(api::SetUpFcRequest {
        pod_uid: uid.to_string(),
        volume: spec.name.clone(),
        disk: Some(disk),
        read_only: spec.read_only,
        fs_type: source.fs_type.clone(),
        mount_options: spec.mount_options.clone(),
        block: spec.block,
        ..Default::default()
    })
}

/// What failed: the search for the disk, what is done once a node, or once a pod.
pub fn failure(error: &VolnetdError) -> Failure {
    match error {
        VolnetdError::Refused { source, .. } if source.details() == b"WaitForAttach" => {
            Failure::verb(Phase::WaitForAttach, error)
        }
        _ => local::failure(error),
    }
}

/// What was not even understood has attached nothing.
pub fn may_be_attached(error: &VolnetdError) -> bool {
    !matches!(error, VolnetdError::Refused { source, .. } if source.code() == tonic::Code::InvalidArgument)
}

/// Folders of the maps of a block volume, by its link: that of all pods, and the pod's.
pub fn maps(uid: &PodUid, volume: &str, place: &api::DiskPlace, link: &str) -> (String, String) {
    let of_pod = link.rsplit_once('/').map_or(link, |(folder, _)| folder);
    let escaped = place.plugin.replace('/', "~");
    let root = link.strip_suffix(&format!("/pods/{uid}/volumeDevices/{escaped}/{volume}")).unwrap_or_default();
    (format!("{root}/plugins/{}/volumeDevices/{}", place.plugin, place.name), of_pod.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::{Code, Status};

    #[test]
    fn what_failed_is_told_by_its_details() {
        let of = |details: &'static [u8]| {
            let source = Status::with_details(Code::Aborted, "no fc disk found", details.into());
            let failure = failure(&VolnetdError::Refused { verb: "set_up_fc", source });
            failure.message("pv", false)
        };
        assert_eq!(of(b"WaitForAttach"), "MountVolume.WaitForAttach failed for volume \"pv\" : no fc disk found");
        assert_eq!(of(b"MountDevice"), "MountVolume.MountDevice failed for volume \"pv\" : no fc disk found");
        assert_eq!(of(b""), "MountVolume.SetUp failed for volume \"pv\" : no fc disk found");
    }

    #[test]
    fn folders_of_maps_as_upstream() {
        let uid = PodUid::parse("u").unwrap();
        let place = api::DiskPlace { plugin: "kubernetes.io/fc".into(), name: "50-lun-0".into(), block: true };
        let (global, map) = maps(&uid, "pv", &place, "/var/lib/kubelet/pods/u/volumeDevices/kubernetes.io~fc/pv");
        assert_eq!(global, "/var/lib/kubelet/plugins/kubernetes.io/fc/volumeDevices/50-lun-0");
        assert_eq!(map, "/var/lib/kubelet/pods/u/volumeDevices/kubernetes.io~fc");
    }
}
