//! Disks of iSCSI targets: what kubelet-volnetd is asked for (upstream `pkg/volume/iscsi`).

use bulkhead_ipc::common::IscsiChap;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;

use super::mount::Mount;
use super::{Failure, Phase};
use crate::csi::requests::Pairs;
use crate::ports::ClusterReader;
use crate::spec::{IscsiSource, ObjectRef, VolumeSpec};

impl Mount<'_> {
    pub(super) async fn set_up_iscsi(&self, source: &IscsiSource) -> Result<(), Failure> {
        let namespace = self.pod.identity.as_ref().map_or("default", |identity| identity.namespace.as_str());
        let reader = &*self.context.ports.reader;
        let mut request = request(reader, self.uid, namespace, &self.spec, source).await?;
        (request.fs_group, request.fs_group_on_root_mismatch) = (self.group(), self.pod.on_root_mismatch);
        self.one_of_its_pods()?;
        self.attached_disk("iscsi", self.context.ports.verbs.set_up_iscsi(request)).await
    }
}

/// The request, without the group that the volume is given to.
///
/// # Errors
/// The secret with passwords cannot be read.
async fn request(
    reader: &dyn ClusterReader,
    uid: &PodUid,
    namespace: &str,
    spec: &VolumeSpec,
    source: &IscsiSource,
) -> Result<api::SetUpIscsiRequest, Failure> {
    let mut disk = source.disk(&spec.name);
    if let Some(secret) = secret_of(source) {
        let of = if secret.namespace.is_empty() { namespace } else { &secret.namespace };
        let secret = ObjectRef { namespace: of.to_owned(), name: secret.name.clone() };
        let pairs = pairs(reader, &secret).await?;
        disk.chap = source.chap_session.then(|| chap(&pairs));
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

/// The secret that is to be there (upstream createSecretMap): CHAP of discovery wants it, too, although nothing is discovered.
fn secret_of(source: &IscsiSource) -> Option<&ObjectRef> {
    source.secret.as_ref().filter(|_| source.chap_discovery || source.chap_session)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_kind_of_chap_has_the_secret_read() {
        let secret = ObjectRef { namespace: "n".into(), name: "s".into() };
        for (chap_discovery, chap_session, secret, read) in [
            (false, false, Some(&secret), false),
            (true, false, Some(&secret), true),
            (false, true, Some(&secret), true),
            (true, true, None, false),
        ] {
            let source =
                IscsiSource { chap_discovery, chap_session, secret: secret.cloned(), ..IscsiSource::default() };
            assert_eq!(secret_of(&source), secret.filter(|_| read), "{source:?}");
        }
    }
}
