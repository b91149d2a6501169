//! Local volumes: what kubelet-volnetd is asked for, and what its answers mean (upstream `pkg/volume/local`).

use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;
use kubelet_edges::volnetd::VolnetdError;
use kubelet_model::events::EventType;

use super::mount::Mount;
use super::{Failure, Phase};
use crate::spec::VolumeSpec;

impl Mount<'_> {
    pub(super) async fn set_up_local(&self, path: &str, fs_type: &str) -> Result<(), Failure> {
        let mut request = request(self.uid, &self.spec, path, fs_type);
        (request.fs_group, request.fs_group_on_root_mismatch) = (self.group(), self.pod.on_root_mismatch);
        self.one_of_its_pods()?;
        let reply = self.with_group("local-volume", self.context.ports.verbs.set_up_local(request)).await;
        let reply = reply.map_err(|error| failure(&error))?;
        if let (Some(wanted), Some(other)) = (self.group(), reply.other_group) {
            let message = other_group(wanted, &self.spec.name, other);
            self.context.event(&self.pod, EventType::Warning, "AlreadyMountedVolume", message);
        }
        if self.spec.block {
            let (global, map) = maps(self.uid, &self.spec.name, &reply.host_path);
            self.say_mapped_at(&global, &map);
        }
        self.mounted(reply.host_path);
        Ok(())
    }
}

/// The request, without the group that the volume is given to.
pub fn request(uid: &PodUid, spec: &VolumeSpec, path: &str, fs_type: &str) -> api::SetUpLocalRequest {
    let claimed = spec.claim.as_ref().map_or(0, |claim| claim.capacity);
    api::SetUpLocalRequest {
        pod_uid: uid.to_string(),
        volume: spec.name.clone(),
        path: path.to_owned(),
        read_only: spec.read_only,
        fs_type: fs_type.to_owned(),
        mount_options: spec.mount_options.clone(),
        block: spec.block,
        grow: !spec.block && !spec.read_only && claimed > 0 && spec.capacity > claimed,
        ..Default::default()
    }
}

/// What failed: once a node, or once a pod.
pub fn failure(error: &VolnetdError) -> Failure {
    let VolnetdError::Refused { source, .. } = error else { return Failure::verb(Phase::SetUp, error) };
    match source.details() {
        b"MountDevice" => Failure::verb(Phase::Device, error),
        b"FilesystemMismatch" => Failure { mismatch: true, ..Failure::verb(Phase::Device, error) },
        _ => Failure::verb(Phase::SetUp, error),
    }
}

/// Upstream's warning to a pod whose group a shared volume does not get.
fn other_group(wanted: i64, volume: &str, is: i64) -> String {
    format!("The requested fsGroup is {wanted}, but the volume {volume} has GID {is}. The volume may not be shareable.")
}

/// Folders of the maps of a block volume, by its link: that of all pods, and the pod's.
fn maps(uid: &PodUid, volume: &str, link: &str) -> (String, String) {
    const PLUGIN: &str = "kubernetes.io~local-volume";
    let of_pod = link.rsplit_once('/').map_or(link, |(folder, _)| folder);
    let root = link.strip_suffix(&format!("/pods/{uid}/volumeDevices/{PLUGIN}/{volume}")).unwrap_or_default();
    (format!("{root}/plugins/{PLUGIN}/volumeDevices/{volume}"), of_pod.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::{Code, Status};

    #[test]
    fn what_failed_is_told_by_its_details() {
        let of = |details: &'static [u8]| {
            let source = Status::with_details(Code::Aborted, "no", details.into());
            let failure = failure(&VolnetdError::Refused { verb: "set_up_local", source });
            (failure.phase, failure.mismatch, failure.text)
        };
        assert_eq!(of(b""), (Phase::SetUp, false, "no".into()));
        assert_eq!(of(b"MountDevice"), (Phase::Device, false, "no".into()));
        assert_eq!(of(b"FilesystemMismatch"), (Phase::Device, true, "no".into()));
    }

    #[test]
    fn folders_of_maps_as_upstream() {
        let uid = PodUid::parse("u").unwrap();
        let (global, map) = maps(&uid, "pv", "/var/lib/kubelet/pods/u/volumeDevices/kubernetes.io~local-volume/pv");
        assert_eq!(global, "/var/lib/kubelet/plugins/kubernetes.io~local-volume/volumeDevices/pv");
        assert_eq!(map, "/var/lib/kubelet/pods/u/volumeDevices/kubernetes.io~local-volume");
    }
}
