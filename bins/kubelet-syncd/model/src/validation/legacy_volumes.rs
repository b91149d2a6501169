//! Network and cloud volume sources that the API still has: required fields and ranges, as upstream asks for them.

use crate::v1::Volume;
use k8s_openapi::api::core::v1::{
    AWSElasticBlockStoreVolumeSource, AzureDiskVolumeSource, AzureFileVolumeSource, CSIVolumeSource,
    CinderVolumeSource, FCVolumeSource, FlexVolumeSource, FlockerVolumeSource, GCEPersistentDiskVolumeSource,
    GitRepoVolumeSource, GlusterfsVolumeSource, ISCSIVolumeSource, NFSVolumeSource, PhotonPersistentDiskVolumeSource,
    PortworxVolumeSource, QuobyteVolumeSource, RBDVolumeSource, ScaleIOVolumeSource, StorageOSVolumeSource,
    VsphereVirtualDiskVolumeSource,
};

use super::field::{AsJson, Errors, Path, items, text};
use super::names;
use super::security::local_descending_path;
use super::volumes::OneSource;

pub fn validate(volume: &Volume, one: &mut OneSource, path: &Path, errors: &mut Errors) {
    let mut sources = Sources { one, path, errors };
    sources.check(volume.git_repo.as_deref(), "gitRepo", git_repo);
    sources.check(volume.gce_persistent_disk.as_deref(), "gcePersistentDisk", |disk, _, errors| {
        gce_persistent_disk(disk, &path.child("persistentDisk"), errors);
    });
    sources.check(volume.aws_elastic_block_store.as_deref(), "awsElasticBlockStore", aws_elastic_block_store);
    sources.check(volume.nfs.as_deref(), "nfs", nfs);
    sources.check(volume.iscsi.as_deref(), "iscsi", iscsi);
    iscsi_volume_name(volume, path, sources.errors);
    sources.check(volume.glusterfs.as_deref(), "glusterfs", glusterfs);
    sources.check(volume.flocker.as_deref(), "flocker", flocker);
    sources.check(volume.rbd.as_deref(), "rbd", rbd);
    sources.check(volume.cinder.as_deref(), "cinder", cinder);
    sources.check(volume.cephfs.as_deref(), "cephFS", |ceph, _, errors| {
        if ceph.monitors.is_empty() {
            errors.required(&path.child("cephfs").child("monitors"), "");
        }
    });
    sources.check(volume.quobyte.as_deref(), "quobyte", quobyte);
    sources.check(volume.fc.as_deref(), "fc", fibre_channel);
    sources.check(volume.flex_volume.as_deref(), "flexVolume", flex_volume);
    sources.check(volume.azure_file.as_deref(), "azureFile", azure_file);
    sources.check(volume.vsphere_volume.as_deref(), "vsphereVolume", vsphere_volume);
    sources.check(volume.photon_persistent_disk.as_deref(), "photonPersistentDisk", photon_persistent_disk);
    sources.check(volume.portworx_volume.as_deref(), "portworxVolume", portworx_volume);
    sources.check(volume.azure_disk.as_deref(), "azureDisk", azure_disk);
    sources.check(volume.storageos.as_deref(), "storageos", storageos);
    sources.check(volume.scale_io.as_deref(), "scaleIO", scale_io);
    sources.check(volume.csi.as_deref(), "csi", csi);
}

/// The sources of one volume, of which it may have one.
struct Sources<'a> {
    one: &'a mut OneSource,
    path: &'a Path,
    errors: &'a mut Errors,
}

impl Sources<'_> {
    /// One that is there is checked where no other one came before it, at its own path.
    fn check<T>(&mut self, source: Option<&T>, name: &'static str, check: impl FnOnce(&T, &Path, &mut Errors)) {
        if let Some(at) = self.one.first(source.is_some(), name, self.path, self.errors)
            && let Some(source) = source
        {
            check(source, &at, self.errors);
        }
    }
}

fn gce_persistent_disk(disk: &GCEPersistentDiskVolumeSource, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("pdName"), &disk.pd_name);
    partition(disk.partition, &path.child("partition"), errors);
}

/// The name that the target's portal is looked up by, with the volume's.
fn iscsi_volume_name(volume: &Volume, path: &Path, errors: &mut Errors) {
    if let Some(source) = &volume.iscsi
        && source.initiator_name.is_some()
        && volume.name.len() + 1 + source.target_portal.len() > 64
    {
        errors.invalid(
            &path.child("name"),
            &volume.name[..],
            "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.",
        );
    }
}

fn git_repo(git: &GitRepoVolumeSource, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("repository"), &git.repository);
    local_descending_path(text(&git.directory), &path.child("directory"), errors);
}

fn aws_elastic_block_store(disk: &AWSElasticBlockStoreVolumeSource, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("volumeID"), &disk.volume_id);
    partition(disk.partition, &path.child("partition"), errors);
}

fn nfs(nfs: &NFSVolumeSource, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("server"), &nfs.server);
    errors.require(&path.child("path"), &nfs.path);
    if !nfs.path.starts_with('/') {
        errors.invalid(&path.child("path"), &nfs.path[..], "must be an absolute path");
    }
}

fn glusterfs(gluster: &GlusterfsVolumeSource, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("endpoints"), &gluster.endpoints);
    errors.require(&path.child("path"), &gluster.path);
}

fn flocker(flocker: &FlockerVolumeSource, path: &Path, errors: &mut Errors) {
    let (name, uuid) = (text(&flocker.dataset_name), text(&flocker.dataset_uuid));
    if name.is_empty() && uuid.is_empty() {
        errors.required(path, "one of datasetName and datasetUUID is required");
    }
    if !name.is_empty() && !uuid.is_empty() {
        errors.invalid(path, "resource", "datasetName and datasetUUID can not be specified simultaneously");
    }
    if name.contains('/') {
        errors.invalid(&path.child("datasetName"), name, "must not contain '/'");
    }
}

fn rbd(rbd: &RBDVolumeSource, path: &Path, errors: &mut Errors) {
    if rbd.monitors.is_empty() {
        errors.required(&path.child("monitors"), "");
    }
    errors.require(&path.child("image"), &rbd.image);
}

fn cinder(cinder: &CinderVolumeSource, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("volumeID"), &cinder.volume_id);
    secret_name(cinder.secret_ref.as_ref().map(|s| s.name.as_str()), path, errors);
}

fn flex_volume(flex: &FlexVolumeSource, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("driver"), &flex.driver);
    for key in flex.options.iter().flatten().map(|(key, _)| key) {
        let namespace = key.split_once('/').map_or(key.as_str(), |(namespace, _)| namespace);
        let normalized = format!(".{}", namespace.to_lowercase());
        if normalized.ends_with(".kubernetes.io") || normalized.ends_with(".k8s.io") {
            errors.invalid(&path.child("options").key(key), key, "kubernetes.io and k8s.io namespaces are reserved");
        }
    }
}

fn azure_file(azure: &AzureFileVolumeSource, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("secretName"), &azure.secret_name);
    errors.require(&path.child("shareName"), &azure.share_name);
}

fn vsphere_volume(vsphere: &VsphereVirtualDiskVolumeSource, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("volumePath"), &vsphere.volume_path);
}

fn photon_persistent_disk(photon: &PhotonPersistentDiskVolumeSource, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("pdID"), &photon.pd_id);
}

fn portworx_volume(portworx: &PortworxVolumeSource, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("volumeID"), &portworx.volume_id);
}

fn storageos(storage: &StorageOSVolumeSource, path: &Path, errors: &mut Errors) {
    let (name, namespace) = (text(&storage.volume_name), text(&storage.volume_namespace));
    if name.is_empty() {
        errors.required(&path.child("volumeName"), "");
    } else {
        errors.invalid_each(&path.child("volumeName"), name, names::dns_label(name));
    }
    if !namespace.is_empty() {
        errors.invalid_each(&path.child("volumeNamespace"), namespace, names::dns_label(namespace));
    }
    secret_name(storage.secret_ref.as_ref().map(|s| s.name.as_str()), path, errors);
}

fn scale_io(scale: &ScaleIOVolumeSource, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("gateway"), &scale.gateway);
    errors.require(&path.child("system"), &scale.system);
    errors.require(&path.child("volumeName"), text(&scale.volume_name));
}

fn csi(csi: &CSIVolumeSource, path: &Path, errors: &mut Errors) {
    let at = &path.child("driver");
    if csi.driver.is_empty() {
        errors.required(at, "");
    } else {
        if csi.driver.len() > 63 {
            errors.too_long(at, 63);
        }
        errors.invalid_each(at, &csi.driver[..], names::dns_subdomain(&csi.driver.to_lowercase()));
    }
}

fn partition(partition: Option<i32>, path: &Path, errors: &mut Errors) {
    if let Some(number) = partition.filter(|p| !(0..=255).contains(p)) {
        errors.invalid(path, number, &names::between(1, 255));
    }
}

fn secret_name(name: Option<&str>, path: &Path, errors: &mut Errors) {
    if name == Some("") {
        errors.required(&path.child("secretRef").child("name"), "");
    }
}

fn iscsi(source: &ISCSIVolumeSource, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("targetPortal"), &source.target_portal);
    if source.iqn.is_empty() {
        errors.required(&path.child("iqn"), "");
    } else {
        iscsi_name(&source.iqn, &path.child("iqn"), errors);
    }
    if !(0..=255).contains(&source.lun) {
        errors.invalid(&path.child("lun"), source.lun, &names::between(0, 255));
    }
    let chap = source.chap_auth_discovery == Some(true) || source.chap_auth_session == Some(true);
    if chap && source.secret_ref.is_none() {
        errors.required(&path.child("secretRef"), "");
    }
    if let Some(initiator) = &source.initiator_name {
        iscsi_name(initiator, &path.child("initiatorname"), errors);
    }
}

/// `iqn.YYYY-MM.domain:id`, `eui.` and 16, `naa.` and 32 letters or digits.
fn iscsi_name(name: &str, path: &Path, errors: &mut Errors) {
    let alphanumeric = |rest: &str, count: usize| {
        // One character of any kind stands between prefix and digits, as upstream's pattern has it.
        let mut chars = rest.chars();
        chars.next().is_some() && chars.clone().count() == count && chars.all(|c| c.is_ascii_alphanumeric())
    };
    let fine = if name.starts_with("iqn") {
        is_iqn(name)
    } else if let Some(rest) = name.strip_prefix("eui") {
        alphanumeric(rest, 16)
    } else if let Some(rest) = name.strip_prefix("naa") {
        alphanumeric(rest, 32)
    } else {
        errors.invalid(path, name, "must be valid format starting with iqn, eui, or naa");
        return;
    };
    if !fine {
        errors.invalid(path, name, "must be valid format");
    }
}

fn is_iqn(name: &str) -> bool {
    let Some((date, rest)) = name.strip_prefix("iqn.").and_then(|r| r.split_once('.')) else { return false };
    let date_fine =
        date.len() == 7 && date.bytes().enumerate().all(|(i, b)| if i == 4 { b == b'-' } else { b.is_ascii_digit() });
    let Some((authority, id)) = rest.split_once(':') else { return false };
    date_fine
        && !authority.is_empty()
        && authority.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
        && !id.is_empty()
        && !id.contains(|c: char| ",;*&$|".contains(c) || c.is_whitespace())
}

fn quobyte(source: &QuobyteVolumeSource, path: &Path, errors: &mut Errors) {
    let why = "must be a host:port pair or multiple pairs separated by commas";
    let registry = path.child("registry");
    if source.registry.is_empty() {
        errors.required(&registry, why);
    } else if text(&source.tenant).len() >= 65 {
        errors.required(&path.child("tenant"), "must be a UUID and may not exceed a length of 64 characters");
    } else {
        for pair in source.registry.split(',') {
            let split = match pair.strip_prefix('[') {
                Some(rest) => rest.split_once("]:"),
                None => pair.rsplit_once(':').filter(|(host, _)| !host.contains(':')),
            };
            if split.is_none() {
                errors.invalid(&registry, &source.registry[..], why);
            }
        }
    }
    errors.require(&path.child("volume"), &source.volume);
}

fn fibre_channel(source: &FCVolumeSource, path: &Path, errors: &mut Errors) {
    let targets = items(&source.target_wwns);
    let at = path.child("targetWWNs");
    if targets.is_empty() && items(&source.wwids).is_empty() {
        errors.required(&at, "must specify either targetWWNs or wwids, but not both");
    }
    if !targets.is_empty() && !items(&source.wwids).is_empty() {
        errors.invalid(&at, AsJson(&targets), "targetWWNs and wwids can not be specified simultaneously");
    }
    if !targets.is_empty() {
        match source.lun {
            None => errors.required(&path.child("lun"), "lun is required if targetWWNs is specified"),
            Some(lun) if !(0..=255).contains(&lun) => {
                errors.invalid(&path.child("lun"), lun, &names::between(0, 255));
            }
            Some(_) => {}
        }
    }
}

fn azure_disk(disk: &AzureDiskVolumeSource, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("diskName"), &disk.disk_name);
    errors.require(&path.child("diskURI"), &disk.disk_uri);
    if let Some(mode) = &disk.caching_mode {
        errors.one_of(&path.child("cachingMode"), mode, &["None", "ReadOnly", "ReadWrite"]);
    }
    let Some(kind) = &disk.kind else { return };
    errors.one_of(&path.child("kind"), kind, &["Dedicated", "Managed", "Shared"]);
    if kind == "Managed" && !disk.disk_uri.starts_with("/subscriptions/") {
        errors.not_supported(
            &path.child("diskURI"),
            &disk.disk_uri,
            &["/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"],
        );
    }
    if kind != "Managed" && !disk.disk_uri.starts_with("https://") {
        errors.not_supported(
            &path.child("diskURI"),
            &disk.disk_uri,
            &["https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"],
        );
    }
}
