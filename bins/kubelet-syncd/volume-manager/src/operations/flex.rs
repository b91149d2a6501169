//! Volumes of FlexVolume drivers: what kubelet-volnetd is asked for, and what its answers mean (upstream `pkg/volume/flexvolume`).

use bulkhead_ipc::common::{FlexCapabilities, FlexSecret, FlexVolume};
use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;
use k8s_openapi::api::core::v1::Node;
use kubelet_edges::volnetd::VolnetdError;
use tonic::Code;

use super::mount::Mount;
use super::{Failure, Phase, fc, local, secrets};
use crate::actual_state::Presence;
use crate::pod_facts::PodFacts;
use crate::ports::ClusterReader;
use crate::spec::{FlexCan, FlexSource, ObjectRef, UniqueName, VolumeSpec};

impl Mount<'_> {
    pub(super) async fn set_up_flex(&self, source: &FlexSource) -> Result<(), Failure> {
        let reader = &*self.context.ports.reader;
        let device = device(reader.node().borrow().as_deref(), self.volume);
        let mut request = request(self.uid, &self.pod, &self.spec, source, device)?;
        let secret = secret(reader, &self.pod, source).await?;
        self.one_of_its_pods()?;
        let _place = self.context.place(&source.driver).await;
        if source.can.attach {
            self.mount_flex_device(request.clone()).await?;
            request.part = api::FlexPart::Pod.into();
            if !self.may_publish() {
                return Ok(());
            }
        }
        request.options.iter_mut().for_each(|told| told.secret.clone_from(&secret));
        // Giving it to a group is part of it, and told by nobody: what takes long is the driver's mount more often.
        let reply = self.context.ports.verbs.set_up_flex(request).await.map_err(|error| failure(&error))?;
        // Until its file system fills it, the pod does not have it.
        self.mounted_as(Presence::Uncertain, reply.host_path.clone(), reply.relabel);
        self.expand().await?;
        self.mounted_as(Presence::Yes, reply.host_path, reply.relabel);
        Ok(())
    }

    /// What is done once a node, which holds back no pod's end. It is to be unmounted, whatever comes of it.
    async fn mount_flex_device(&self, request: api::SetUpFlexRequest) -> Result<(), Failure> {
        if self.context.state().desired.volume(self.uid, self.volume).is_none() {
            return Ok(());
        }
        let request = api::SetUpFlexRequest { part: api::FlexPart::Device.into(), ..request };
        let done = self.context.ports.verbs.set_up_flex(request).await;
        if done.as_ref().err().is_none_or(fc::may_be_attached) {
            self.attempted();
        }
        done.map(|_| ()).map_err(|error| failure(&error))
    }
}

/// What a driver says it can do.
pub fn can(told: FlexCapabilities) -> FlexCan {
    FlexCan { attach: told.attach, expand: told.requires_fs_resize, measure: told.supports_metrics }
}

/// What the Node says of the device of a volume that a controller has attached.
pub fn device(node: Option<&Node>, volume: &UniqueName) -> String {
    let attached = node.and_then(|node| node.status.as_ref()?.volumes_attached.as_ref());
    let entry = attached.into_iter().flatten().find(|entry| entry.name == volume.0);
    entry.map(|entry| entry.device_path.clone()).unwrap_or_default()
}

/// The request, without the secret.
///
/// # Errors
/// The volume is used as a driver's cannot be.
pub fn request(
    uid: &PodUid,
    pod: &PodFacts,
    spec: &VolumeSpec,
    source: &FlexSource,
    device: String,
) -> Result<api::SetUpFlexRequest, Failure> {
    super::is_plain(spec, &source.driver)?;
    let info = secrets::pod_info(pod);
    Ok(api::SetUpFlexRequest {
        pod_uid: uid.to_string(),
        volume: spec.name.clone(),
        driver: source.driver.clone(),
        options: Some(FlexVolume {
            fs_type: source.fs_type.clone(),
            read_only: spec.read_only,
            options: source.options.clone().into_iter().collect(),
            pod_name: info.name,
            pod_namespace: info.namespace,
            service_account: info.service_account,
            fs_group: pod.fs_group,
            secret: None,
        }),
        fs_group_on_root_mismatch: pod.on_root_mismatch,
        device: Some(device).filter(|_| source.can.attach),
        grow: None,
        part: api::FlexPart::Unspecified.into(),
    })
}

/// Upstream addSecretsToOptions and GetSecretForPV: a driver has secrets of its own type alone.
///
/// # Errors
/// It cannot be read.
pub async fn secret(
    reader: &dyn ClusterReader,
    pod: &PodFacts,
    source: &FlexSource,
) -> Result<Option<FlexSecret>, Failure> {
    let Some(ObjectRef { namespace, name }) = &source.secret else { return Ok(None) };
    let of_pod = secrets::pod_info(pod).namespace;
    let namespace = if namespace.is_empty() { &of_pod } else { namespace };
    let failed = |why: &str| format!("couldn't get secret {namespace}/{name} err: {why}");
    let found = reader.secret(namespace, name).await;
    let found = found.map_err(|error| Failure::object(Phase::SetUp, failed(&error.to_string()), &error))?;
    if found.type_.as_deref() != Some(source.driver.as_str()) {
        return Err(Failure::new(Phase::SetUp, failed(&format!("cannot get secret of type {}", source.driver))));
    }
    let data = found.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect();
    Ok(Some(FlexSecret { data }))
}

/// What failed: the wait for the controller's work, what is done once a node, or once a pod.
pub fn failure(error: &VolnetdError) -> Failure {
    match error {
        VolnetdError::Refused { source, .. } if source.details() == b"WaitForAttach" => {
            Failure::verb(Phase::WaitForAttach, error)
        }
        VolnetdError::Refused { source, .. } if source.details() == b"GetDeviceMountPath" => {
            Failure::verb(Phase::DevicePath, error)
        }
        _ => local::failure(error),
    }
}

/// What was to grow is not mounted: only its next mount has the secret, and asks again.
pub fn is_not_mounted(error: &VolnetdError) -> bool {
    matches!(error, VolnetdError::Refused { source, .. } if source.code() == Code::FailedPrecondition)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use tonic::Status;

    #[test]
    fn what_failed_is_told_by_its_details() {
        for (details, phase) in [
            (&b"WaitForAttach"[..], "MountVolume.WaitForAttach failed"),
            (b"GetDeviceMountPath", "MountVolume.GetDeviceMountPath failed"),
            (b"MountDevice", "MountVolume.MountDevice failed"),
            (b"", "MountVolume.SetUp failed"),
        ] {
            let source = Status::with_details(Code::Aborted, "no such share", details.to_vec().into());
            let failure = failure(&VolnetdError::Refused { verb: "set_up_flex", source });
            assert_eq!(failure.message("pv", false), format!("{phase} for volume \"pv\" : no such share"));
        }
    }

    #[test]
    fn what_is_not_mounted_waits_for_its_next_mount() {
        for (code, is_not) in [(Code::FailedPrecondition, true), (Code::Aborted, false), (Code::Unavailable, false)] {
            let (verb, source) = ("set_up_flex", Status::new(code, "no"));
            let error = match code {
                Code::Unavailable => VolnetdError::Away { verb, source },
                _ => VolnetdError::Refused { verb, source },
            };
            assert_eq!(is_not_mounted(&error), is_not, "{code:?}");
        }
    }

    #[test]
    fn the_device_is_the_controllers_word() {
        let node = json!({"metadata": {"name": "n"}, "status": {"volumesAttached": [
            {"name": "v/d/one", "devicePath": "/dev/sdb"}, {"name": "v/d/two", "devicePath": ""}]}});
        let node: Node = serde_json::from_value(node).unwrap();
        for (volume, expected) in [("v/d/one", "/dev/sdb"), ("v/d/two", ""), ("v/d/none", "")] {
            assert_eq!(device(Some(&node), &UniqueName(volume.into())), expected, "{volume}");
        }
        assert_eq!(device(None, &UniqueName("v/d/one".into())), "");
    }
}
