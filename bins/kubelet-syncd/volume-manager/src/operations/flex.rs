//! Volumes of FlexVolume drivers: what kubelet-volnetd is asked for (upstream `pkg/volume/flexvolume`).

use bulkhead_ipc::common::{FlexSecret, FlexVolume};
use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;

use super::{Failure, Phase, secrets};
use crate::pod_facts::PodFacts;
use crate::ports::ClusterReader;
use crate::spec::{FlexSource, ObjectRef, VolumeSpec};

/// The request.
///
/// # Errors
/// The volume is used as a driver's cannot be, or its secret cannot be read.
pub async fn request(
    reader: &dyn ClusterReader,
    uid: &PodUid,
    pod: &PodFacts,
    spec: &VolumeSpec,
    source: &FlexSource,
) -> Result<api::SetUpFlexRequest, Failure> {
    if spec.block {
        return Err(Failure::new(Phase::NewMounter, format!("no block volume plugin matched: {}", source.driver)));
    }
    if !spec.mount_options.is_empty() {
        return Err(Failure::new(Phase::MountOptions, "Mount options are not supported for this volume type"));
    }
    let info = secrets::pod_info(pod);
    let secret = match &source.secret {
        Some(secret) => Some(read(reader, secret, &info.namespace, &source.driver).await?),
        None => None,
    };
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
            secret,
        }),
        fs_group_on_root_mismatch: pod.on_root_mismatch,
    })
}

/// Upstream addSecretsToOptions and GetSecretForPV: a driver has secrets of its own type alone.
async fn read(
    reader: &dyn ClusterReader,
    secret: &ObjectRef,
    pod_namespace: &str,
    driver: &str,
) -> Result<FlexSecret, Failure> {
    let namespace = if secret.namespace.is_empty() { pod_namespace } else { &secret.namespace };
    let failed = |why: &str| format!("couldn't get secret {namespace}/{} err: {why}", secret.name);
    let found = reader.secret(namespace, &secret.name).await;
    let found = found.map_err(|error| Failure::object(Phase::SetUp, failed(&error.to_string()), &error))?;
    if found.type_.as_deref() != Some(driver) {
        return Err(Failure::new(Phase::SetUp, failed(&format!("cannot get secret of type {driver}"))));
    }
    Ok(FlexSecret { data: found.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect() })
}
