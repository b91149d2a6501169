//! From a pod's volume to what it stands for (upstream `pkg/kubelet/volumemanager/populator`). [`resolve`] is pure; what it needs
//! of the API server is asked for here, at each look anew: nodes may read claims and volumes by name, and not watch them. Of what a
//! pod has already, only that is asked which may still make a difference to it.

pub mod migration;
pub mod node_affinity;
pub mod resolve;

use kubelet_model::v1::{Pod, Volume};

use crate::ports::ClusterReader;
use crate::spec::VolumeSpec;
use kubelet_model::objects::ObjectError;
use kubelet_model::pod::spec::is_migrated;
use resolve::Use;

/// Why a volume is not known yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unresolved {
    /// Upstream's text.
    pub text: String,
    /// The API server could not be asked: nothing is wrong with the pod.
    pub away: bool,
}

/// A volume that is this manager's: a claim, or an inline volume of a CSI driver, of an NFS server, behind Fibre
/// Channel, of an iSCSI target, of a FlexVolume driver, or of an in-tree kind that a CSI driver serves.
pub fn is_managed(volume: &Volume) -> bool {
    is_migrated(volume)
        || volume.persistent_volume_claim.is_some()
        || volume.ephemeral.is_some()
        || volume.csi.is_some()
        || volume.nfs.is_some()
        || volume.fc.is_some()
        || volume.iscsi.is_some()
        || volume.flex_volume.is_some()
}

/// Finds out what a volume of a pod is. `has`: what it was when it was mounted for the pod, if it is and its size is known. Whatever
/// became of its claim since, such a pod keeps it; what it may get is a larger one, and that the PersistentVolume alone says.
///
/// # Errors
/// In upstream's words.
pub async fn populate(
    reader: &dyn ClusterReader,
    pod: &Pod,
    volume: &Volume,
    used: Use,
    has: Option<&VolumeSpec>,
) -> Result<VolumeSpec, Unresolved> {
    let refused = |text| Unresolved { text, away: false };
    if let Some((has, claim)) = has.and_then(|has| Some((has, has.claim.as_ref()?))) {
        if !has.may_grow() {
            return Ok(has.clone());
        }
        let processing = |text: String| format!("error processing PVC {}/{}: {text}", claim.namespace, claim.name);
        let persistent = reader.volume(&has.name).await.map_err(|error| not_read(&has.name, &error, processing))?;
        resolve::check_claim_ref(&persistent, &claim.uid).map_err(|text| refused(processing(text)))?;
        return resolve::persistent(volume, used, claim.clone(), &persistent).map_err(refused);
    }
    if volume.csi.is_some() {
        return resolve::inline(pod, volume).map_err(refused);
    }
    if let Some(nfs) = &volume.nfs {
        return Ok(resolve::inline_nfs(volume, nfs));
    }
    if let Some(fc) = &volume.fc {
        return Ok(resolve::inline_fc(volume, fc));
    }
    if let Some(iscsi) = &volume.iscsi {
        return Ok(resolve::inline_iscsi(volume, iscsi));
    }
    if let Some(flex) = &volume.flex_volume {
        return Ok(resolve::inline_flex(volume, flex));
    }
    if let Some(translated) = migration::inline(pod, volume) {
        return translated.map_err(refused);
    }
    let Some(claim_name) = resolve::claim_name(pod, volume) else {
        return Err(refused(format!("volume {} is of no kind that is known here", volume.name)));
    };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let processing = |text: String| format!("error processing PVC {namespace}/{claim_name}: {text}");
    let claim = reader.claim(namespace, &claim_name).await.map_err(|error| Unresolved {
        away: matches!(error, ObjectError::Away(_)),
        text: processing(format!("failed to fetch PVC from API server: {error}")),
    })?;
    resolve::check_claim(&claim).map_err(|text| refused(processing(text)))?;
    resolve::check_owner(pod, volume, &claim).map_err(refused)?;
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
    let persistent = reader.volume(&name).await.map_err(|error| not_read(&name, &error, processing))?;
    let claim = resolve::claim(&claim);
    resolve::check_claim_ref(&persistent, &claim.uid).map_err(|text| refused(processing(text)))?;
    resolve::persistent(volume, used, claim, &persistent).map_err(refused)
}

fn not_read(name: &str, error: &ObjectError, processing: impl Fn(String) -> String) -> Unresolved {
    Unresolved {
        away: matches!(error, ObjectError::Away(_)),
        text: processing(format!("failed to fetch PV {name} from API server: {error}")),
    }
}
