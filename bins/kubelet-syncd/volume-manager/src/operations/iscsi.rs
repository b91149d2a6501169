//! Disks of iSCSI targets: what kubelet-volnetd is asked for (upstream `pkg/volume/iscsi`).

use bulkhead_ipc::common::IscsiChap;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;

use super::{Failure, Phase};
use crate::csi::requests::Pairs;
use crate::ports::ClusterReader;
use crate::spec::{IscsiSource, ObjectRef, VolumeSpec};

/// The request, without the group that the volume is given to.
///
/// # Errors
/// The secret with passwords cannot be read.
pub async fn request(
    reader: &dyn ClusterReader,
    uid: &PodUid,
    namespace: &str,
    spec: &VolumeSpec,
    source: &IscsiSource,
) -> Result<api::SetUpIscsiRequest, Failure> {
    let mut disk = source.disk(&spec.name);
    if let (true, Some(secret)) = (source.chap, &source.secret) {
        let of = if secret.namespace.is_empty() { namespace } else { &secret.namespace };
        let secret = ObjectRef { namespace: of.to_owned(), name: secret.name.clone() };
        disk.chap = Some(chap(&pairs(reader, &secret).await?));
    }
    Ok(api::SetUpIscsiRequest {
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

async fn pairs(reader: &dyn ClusterReader, secret: &ObjectRef) -> Result<Pairs, Failure> {
    let ObjectRef { namespace, name } = secret;
    let found = reader.secret(namespace, name).await.map_err(|error| {
        let text = format!("couldn't get secret {namespace}/{name} error: {error}");
        Failure::object(Phase::NewMounter, text, &error)
    })?;
    let text = |value: Vec<u8>| String::from_utf8_lossy(&value).into_owned();
    Ok(found.data.unwrap_or_default().into_iter().map(|(key, value)| (key, text(value.0))).collect())
}

/// By upstream's keys.
fn chap(pairs: &Pairs) -> IscsiChap {
    let value = |name: &str| pairs.get(&format!("node.session.auth.{name}")).cloned().unwrap_or_default();
    IscsiChap {
        username: value("username"),
        password: value("password"),
        username_in: value("username_in"),
        password_in: value("password_in"),
    }
}
