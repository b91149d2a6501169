//! The checks on a claim and its volume, and what they make of it. Upstream's words, its order.

use std::collections::BTreeSet;

use bulkhead_types::Quantity;
use k8s_openapi::api::core::v1::{
    FCVolumeSource, FlexVolumeSource, ISCSIPersistentVolumeSource, ISCSIVolumeSource, NFSVolumeSource,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, SecretReference,
};
use k8s_openapi::apimachinery::pkg::api::resource;
use kubelet_model::pod::names::absolute;
use kubelet_model::v1::{Pod, Volume};

use super::migration;
use crate::names;
use crate::spec::{Claim, CsiSource, FcSource, FlexCan, FlexSource, IscsiSource, ObjectRef, Source, VolumeSpec};

/// Protects a claim that pods use.
const PROTECTION: &str = "kubernetes.io/pvc-protection";
/// Group that the pod gets beside its own.
const GID: &str = "pv.beta.kubernetes.io/gid";

/// Options of mount, before PersistentVolumes had a field for them.
const MOUNT_OPTIONS: &str = "volume.beta.kubernetes.io/mount-options";

/// How a pod's containers use a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Use {
    /// In volumeMounts.
    pub mounted: bool,
    /// In volumeDevices.
    pub device: bool,
}

impl Use {
    /// Of all containers of a pod.
    pub fn of(pod: &Pod, volume: &str) -> Self {
        let Some(spec) = &pod.spec else { return Use::default() };
        let regular = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let mut used = Use::default();
        for container in regular {
            used.mounted |= container.volume_mounts.iter().flatten().any(|mount| mount.name == volume);
            used.device |= container.volume_devices.iter().flatten().any(|device| device.name == volume);
        }
        for container in spec.ephemeral_containers.iter().flatten() {
            used.mounted |= container.volume_mounts.iter().flatten().any(|mount| mount.name == volume);
            used.device |= container.volume_devices.iter().flatten().any(|device| device.name == volume);
        }
        used
    }

    pub fn any(self) -> bool {
        self.mounted || self.device
    }
}

/// The claim of a volume; a generic ephemeral volume's is named by the pod.
pub fn claim_name(pod: &Pod, volume: &Volume) -> Option<String> {
    if let Some(source) = &volume.persistent_volume_claim {
        return Some(source.claim_name.clone());
    }
    volume.ephemeral.as_ref()?;
    Some(format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name))
}

/// Whether pods may use the claim.
///
/// # Errors
/// Why not.
pub fn check_claim(claim: &PersistentVolumeClaim) -> Result<(), String> {
    let protected = claim.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == PROTECTION);
    if claim.metadata.deletion_timestamp.is_some() && !protected {
        return Err("PVC is being deleted".to_owned());
    }
    if claim.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
        return Err("PVC is not bound".to_owned());
    }
    if claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default().is_empty() {
        return Err("PVC has empty pvc.Spec.VolumeName".to_owned());
    }
    Ok(())
}

/// A generic ephemeral volume's claim belongs to the pod.
///
/// # Errors
/// It does not.
pub fn check_owner(pod: &Pod, volume: &Volume, claim: &PersistentVolumeClaim) -> Result<(), String> {
    if volume.ephemeral.is_none() {
        return Ok(());
    }
    let same_namespace = claim.metadata.namespace == pod.metadata.namespace;
    let owned = claim
        .metadata
        .owner_references
        .iter()
        .flatten()
        .any(|owner| owner.controller == Some(true) && Some(&owner.uid) == pod.metadata.uid.as_ref());
    if same_namespace && owned {
        return Ok(());
    }
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    Err(format!(
        "PVC {}/{} was not created for pod {}/{} (pod is not owner)",
        text(&claim.metadata.namespace),
        text(&claim.metadata.name),
        text(&pod.metadata.namespace),
        text(&pod.metadata.name)
    ))
}

/// The volume is this claim's, and not that of one of the same name before it.
///
/// # Errors
/// It is not.
pub fn check_claim_ref(volume: &PersistentVolume, claim_uid: &str) -> Result<(), String> {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let Some(reference) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return Err(format!(
            "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
        ));
    };
    let found = reference.uid.as_deref().unwrap_or_default();
    if found != claim_uid {
        return Err(format!(
            "found PV object {name} but its pv.Spec.ClaimRef.UID {found} does not point to claim.UID {claim_uid}"
        ));
    }
    Ok(())
}

/// What is kept of a claim.
pub fn claim(claim: &PersistentVolumeClaim) -> Claim {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    Claim {
        namespace: text(&claim.metadata.namespace),
        name: text(&claim.metadata.name),
        uid: text(&claim.metadata.uid),
        capacity: storage(claim.status.as_ref().and_then(|status| status.capacity.as_ref())),
    }
}

/// What a claim's volume is.
///
/// # Errors
/// It does not fit its use, or is of a kind that this node does not have.
pub fn persistent(
    volume: &Volume,
    used: Use,
    claim: Claim,
    persistent: &PersistentVolume,
) -> Result<VolumeSpec, String> {
    let name = persistent.metadata.name.clone().unwrap_or_default();
    let Some(spec) = &persistent.spec else { return Err(format!("PV {name} has no spec")) };
    let translated = migration::persistent(persistent).transpose()?;
    let mode = spec.volume_mode.as_deref().unwrap_or("Filesystem");
    if used.mounted && mode != "Filesystem" {
        return Err(format!("volume {} has volumeMode {mode}, but is specified in volumeMounts", volume.name));
    }
    if used.device && mode != "Block" {
        return Err(format!("volume {} has volumeMode {mode}, but is specified in volumeDevices", volume.name));
    }
    let read_only = volume.persistent_volume_claim.as_ref().and_then(|source| source.read_only) == Some(true);
    let modes = || spec.access_modes.clone().unwrap_or_default();
    let (source, access_modes) = match translated {
        Some((source, modes)) => (Source::Csi(source), modes),
        None => {
            let source = source_of(spec);
            let text = |why| format!("failed to get Plugin from volumeSpec for volume {name:?} err={why}");
            (source.map_err(text)?, modes())
        }
    };
    let mount_options = mount_options(persistent, spec, &source);
    let gid = persistent.metadata.annotations.as_ref().and_then(|all| all.get(GID)?.parse::<i64>().ok());
    Ok(VolumeSpec {
        name,
        source,
        block: mode == "Block",
        read_only,
        access_modes,
        mount_options,
        node_affinity: spec.node_affinity.clone(),
        claim: Some(claim),
        capacity: storage(spec.capacity.as_ref()),
        capacity_text: spec
            .capacity
            .as_ref()
            .and_then(|all| all.get("storage"))
            .map(|q| q.0.clone())
            .unwrap_or_default(),
        // What is no group for a pod's spec is none here; 0 by way of a cut-off number would be root's.
        gid: gid.filter(|gid| (0..=i64::from(i32::MAX)).contains(gid)),
    })
}

/// As a CSI driver gets them, of either kind of PersistentVolume, those of the spec stand; the other plugins prefer the older
/// annotation's, and join them (upstream MountOptionFromSpec and JoinMountOptions): each once, in order, and none that is empty.
fn mount_options(persistent: &PersistentVolume, spec: &PersistentVolumeSpec, source: &Source) -> Vec<String> {
    let of_spec = spec.mount_options.clone().unwrap_or_default();
    if matches!(source, Source::Csi(_)) {
        return of_spec;
    }
    let annotation = persistent.metadata.annotations.as_ref().and_then(|all| all.get(MOUNT_OPTIONS));
    let options = annotation.map_or(of_spec, |text| text.split(',').map(ToOwned::to_owned).collect());
    let joined: BTreeSet<String> = options.into_iter().filter(|option| !option.is_empty()).collect();
    joined.into_iter().collect()
}

fn storage(amounts: Option<&std::collections::BTreeMap<String, resource::Quantity>>) -> i64 {
    let text = amounts.and_then(|amounts| amounts.get("storage"));
    text.and_then(|quantity| Quantity::parse(&quantity.0).ok()).map_or(0, |quantity| quantity.value().max(0))
}

fn secret(reference: Option<&SecretReference>) -> Option<ObjectRef> {
    let reference = reference?;
    Some(ObjectRef {
        namespace: reference.namespace.clone().unwrap_or_default(),
        name: reference.name.clone().unwrap_or_default(),
    })
}

fn source_of(spec: &PersistentVolumeSpec) -> Result<Source, &'static str> {
    if let Some(csi) = &spec.csi {
        return Ok(Source::Csi(CsiSource {
            driver: csi.driver.clone(),
            handle: csi.volume_handle.clone(),
            fs_type: csi.fs_type.clone().unwrap_or_default(),
            attributes: csi.volume_attributes.clone().unwrap_or_default(),
            stage_secret: secret(csi.node_stage_secret_ref.as_ref()),
            publish_secret: secret(csi.node_publish_secret_ref.as_ref()),
            expand_secret: secret(csi.node_expand_secret_ref.as_ref()),
            ephemeral: false,
            migrated: false,
        }));
    }
    if let Some(local) = &spec.local {
        let fs_type = local.fs_type.clone().unwrap_or_default();
        // A relative path is one below the machine's root (upstream `pkg/volume/local`, MakeAbsolutePath).
        return Ok(Source::Local { path: absolute(&local.path), fs_type });
    }
    if let Some(nfs) = &spec.nfs {
        // As upstream: read-only is what the claim's use says, and not nfs.readOnly of the PersistentVolume.
        return Ok(Source::Nfs { server: nfs.server.clone(), path: nfs.path.clone() });
    }
    if let Some(fc) = &spec.fc {
        return Ok(Source::Fc(fc_source(fc)));
    }
    if let Some(iscsi) = &spec.iscsi {
        return Ok(Source::Iscsi(iscsi_source(iscsi)));
    }
    if let Some(flex) = &spec.flex_volume {
        // As upstream: read-only is what the claim's use says.
        return Ok(Source::Flex(FlexSource {
            driver: flex.driver.clone(),
            fs_type: flex.fs_type.clone().unwrap_or_default(),
            options: flex.options.clone().unwrap_or_default(),
            secret: secret(flex.secret_ref.as_ref()),
            can: FlexCan::default(),
        }));
    }
    if let Some(host) = &spec.host_path {
        return Ok(Source::HostPath { path: host.path.clone(), kind: host.type_.clone().unwrap_or_default() });
    }
    // Upstream has none of the others (cephfs, glusterfs, rbd) any more.
    Err("no volume plugin matched")
}

/// What an inline volume of a CSI driver is.
///
/// # Errors
/// It is used as a block device.
pub fn inline(pod: &Pod, volume: &Volume) -> Result<VolumeSpec, String> {
    let Some(csi) = &volume.csi else { return Err(format!("volume {} is no inline volume", volume.name)) };
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let secret = csi.node_publish_secret_ref.as_ref().map(|r| ObjectRef { namespace, name: r.name.clone() });
    let source = Source::Csi(CsiSource {
        driver: csi.driver.clone(),
        handle: names::ephemeral_handle(uid, &volume.name),
        fs_type: csi.fs_type.clone().unwrap_or_default(),
        attributes: csi.volume_attributes.clone().unwrap_or_default(),
        stage_secret: None,
        publish_secret: secret,
        expand_secret: None,
        ephemeral: true,
        migrated: false,
    });
    Ok(inline_of(volume, source, csi.read_only))
}

/// What an inline volume of an NFS server is.
pub fn inline_nfs(volume: &Volume, nfs: &NFSVolumeSource) -> VolumeSpec {
    let source = Source::Nfs { server: nfs.server.clone(), path: nfs.path.clone() };
    inline_of(volume, source, nfs.read_only)
}

/// What an inline volume behind Fibre Channel is.
pub fn inline_fc(volume: &Volume, fc: &FCVolumeSource) -> VolumeSpec {
    inline_of(volume, Source::Fc(fc_source(fc)), fc.read_only)
}

/// What an inline volume of an iSCSI target is.
pub fn inline_iscsi(volume: &Volume, iscsi: &ISCSIVolumeSource) -> VolumeSpec {
    let secret = iscsi.secret_ref.as_ref();
    let all = ISCSIPersistentVolumeSource {
        chap_auth_discovery: iscsi.chap_auth_discovery,
        chap_auth_session: iscsi.chap_auth_session,
        fs_type: iscsi.fs_type.clone(),
        initiator_name: iscsi.initiator_name.clone(),
        iqn: iscsi.iqn.clone(),
        iscsi_interface: iscsi.iscsi_interface.clone(),
        lun: iscsi.lun,
        portals: iscsi.portals.clone(),
        read_only: iscsi.read_only,
        secret_ref: secret.map(|secret| SecretReference { name: Some(secret.name.clone()), namespace: None }),
        target_portal: iscsi.target_portal.clone(),
    };
    inline_of(volume, Source::Iscsi(iscsi_source(&all)), iscsi.read_only)
}

/// What an inline volume of a FlexVolume driver is.
pub fn inline_flex(volume: &Volume, flex: &FlexVolumeSource) -> VolumeSpec {
    let source = FlexSource {
        driver: flex.driver.clone(),
        fs_type: flex.fs_type.clone().unwrap_or_default(),
        options: flex.options.clone().unwrap_or_default(),
        secret: flex
            .secret_ref
            .as_ref()
            .map(|secret| ObjectRef { namespace: String::new(), name: secret.name.clone() }),
        can: FlexCan::default(),
    };
    inline_of(volume, Source::Flex(source), flex.read_only)
}

fn iscsi_source(iscsi: &ISCSIPersistentVolumeSource) -> IscsiSource {
    let first = std::iter::once(iscsi.target_portal.clone());
    let interface = iscsi.iscsi_interface.clone().filter(|name| !name.is_empty());
    IscsiSource {
        portals: first.chain(iscsi.portals.iter().flatten().cloned()).collect(),
        iqn: iscsi.iqn.clone(),
        lun: u32::try_from(iscsi.lun).unwrap_or_default(),
        interface: interface.unwrap_or_else(|| "default".to_owned()),
        initiator_name: iscsi.initiator_name.clone().unwrap_or_default(),
        chap_discovery: iscsi.chap_auth_discovery == Some(true),
        chap_session: iscsi.chap_auth_session == Some(true),
        secret: secret(iscsi.secret_ref.as_ref()),
        fs_type: iscsi.fs_type.clone().unwrap_or_default(),
    }
}

fn fc_source(fc: &FCVolumeSource) -> FcSource {
    FcSource {
        wwns: fc.target_wwns.clone().unwrap_or_default(),
        lun: fc.lun.and_then(|lun| u32::try_from(lun).ok()),
        wwids: fc.wwids.clone().unwrap_or_default(),
        fs_type: fc.fs_type.clone().unwrap_or_default(),
    }
}

fn inline_of(volume: &Volume, source: Source, read_only: Option<bool>) -> VolumeSpec {
    VolumeSpec { read_only: read_only == Some(true), ..VolumeSpec::inline(volume.name.clone(), source) }
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;
