//! Network and cloud volume sources that the API still has: required fields and ranges, as upstream asks for them.

use crate::v1::Volume;
use k8s_openapi::api::core::v1::{AzureDiskVolumeSource, FCVolumeSource, ISCSIVolumeSource, QuobyteVolumeSource};

use super::field::{AsJson, Errors, Path, items, text};
use super::names;
use super::security::local_descending_path;
use super::volumes::OneSource;

pub fn validate(volume: &Volume, one: &mut OneSource, path: &Path, errors: &mut Errors) {
    if let Some(at) = one.first(volume.git_repo.is_some(), "gitRepo", path, errors)
        && let Some(git) = &volume.git_repo
    {
        errors.require(&at.child("repository"), &git.repository);
        local_descending_path(text(&git.directory), &at.child("directory"), errors);
    }
    if one.first(volume.gce_persistent_disk.is_some(), "gcePersistentDisk", path, errors).is_some()
        && let Some(disk) = &volume.gce_persistent_disk
    {
        let at = path.child("persistentDisk");
        errors.require(&at.child("pdName"), &disk.pd_name);
        partition(disk.partition, &at.child("partition"), errors);
    }
    if let Some(at) = one.first(volume.aws_elastic_block_store.is_some(), "awsElasticBlockStore", path, errors)
        && let Some(disk) = &volume.aws_elastic_block_store
    {
        errors.require(&at.child("volumeID"), &disk.volume_id);
        partition(disk.partition, &at.child("partition"), errors);
    }
    if let Some(at) = one.first(volume.nfs.is_some(), "nfs", path, errors)
        && let Some(nfs) = &volume.nfs
    {
        errors.require(&at.child("server"), &nfs.server);
        errors.require(&at.child("path"), &nfs.path);
        if !nfs.path.starts_with('/') {
            errors.invalid(&at.child("path"), &nfs.path[..], "must be an absolute path");
        }
    }
    if let Some(at) = one.first(volume.iscsi.is_some(), "iscsi", path, errors)
        && let Some(source) = &volume.iscsi
    {
        iscsi(source, &at, errors);
    }
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
    if let Some(at) = one.first(volume.glusterfs.is_some(), "glusterfs", path, errors)
        && let Some(gluster) = &volume.glusterfs
    {
        errors.require(&at.child("endpoints"), &gluster.endpoints);
        errors.require(&at.child("path"), &gluster.path);
    }
    if let Some(at) = one.first(volume.flocker.is_some(), "flocker", path, errors)
        && let Some(flocker) = &volume.flocker
    {
        let (name, uuid) = (text(&flocker.dataset_name), text(&flocker.dataset_uuid));
        if name.is_empty() && uuid.is_empty() {
            errors.required(&at, "one of datasetName and datasetUUID is required");
        }
        if !name.is_empty() && !uuid.is_empty() {
            errors.invalid(&at, "resource", "datasetName and datasetUUID can not be specified simultaneously");
        }
        if name.contains('/') {
            errors.invalid(&at.child("datasetName"), name, "must not contain '/'");
        }
    }
    if let Some(at) = one.first(volume.rbd.is_some(), "rbd", path, errors)
        && let Some(rbd) = &volume.rbd
    {
        if rbd.monitors.is_empty() {
            errors.required(&at.child("monitors"), "");
        }
        errors.require(&at.child("image"), &rbd.image);
    }
    if let Some(at) = one.first(volume.cinder.is_some(), "cinder", path, errors)
        && let Some(cinder) = &volume.cinder
    {
        errors.require(&at.child("volumeID"), &cinder.volume_id);
        secret_name(cinder.secret_ref.as_ref().map(|s| s.name.as_str()), &at, errors);
    }
    if one.first(volume.cephfs.is_some(), "cephFS", path, errors).is_some()
        && volume.cephfs.as_ref().is_some_and(|c| c.monitors.is_empty())
    {
        errors.required(&path.child("cephfs").child("monitors"), "");
    }
    if let Some(at) = one.first(volume.quobyte.is_some(), "quobyte", path, errors)
        && let Some(source) = &volume.quobyte
    {
        quobyte(source, &at, errors);
    }
    if let Some(at) = one.first(volume.fc.is_some(), "fc", path, errors)
        && let Some(source) = &volume.fc
    {
        fibre_channel(source, &at, errors);
    }
    if let Some(at) = one.first(volume.flex_volume.is_some(), "flexVolume", path, errors)
        && let Some(flex) = &volume.flex_volume
    {
        errors.require(&at.child("driver"), &flex.driver);
        for key in flex.options.iter().flatten().map(|(key, _)| key) {
            let namespace = key.split_once('/').map_or(key.as_str(), |(namespace, _)| namespace);
            let normalized = format!(".{}", namespace.to_lowercase());
            if normalized.ends_with(".kubernetes.io") || normalized.ends_with(".k8s.io") {
                errors.invalid(&at.child("options").key(key), key, "kubernetes.io and k8s.io namespaces are reserved");
            }
        }
    }
    if let Some(at) = one.first(volume.azure_file.is_some(), "azureFile", path, errors)
        && let Some(azure) = &volume.azure_file
    {
        errors.require(&at.child("secretName"), &azure.secret_name);
        errors.require(&at.child("shareName"), &azure.share_name);
    }
    if let Some(at) = one.first(volume.vsphere_volume.is_some(), "vsphereVolume", path, errors)
        && let Some(vsphere) = &volume.vsphere_volume
    {
        errors.require(&at.child("volumePath"), &vsphere.volume_path);
    }
    if let Some(at) = one.first(volume.photon_persistent_disk.is_some(), "photonPersistentDisk", path, errors)
        && let Some(photon) = &volume.photon_persistent_disk
    {
        errors.require(&at.child("pdID"), &photon.pd_id);
    }
    if let Some(at) = one.first(volume.portworx_volume.is_some(), "portworxVolume", path, errors)
        && let Some(portworx) = &volume.portworx_volume
    {
        errors.require(&at.child("volumeID"), &portworx.volume_id);
    }
    if let Some(at) = one.first(volume.azure_disk.is_some(), "azureDisk", path, errors)
        && let Some(source) = &volume.azure_disk
    {
        azure_disk(source, &at, errors);
    }
    if let Some(at) = one.first(volume.storageos.is_some(), "storageos", path, errors)
        && let Some(storage) = &volume.storageos
    {
        let (name, namespace) = (text(&storage.volume_name), text(&storage.volume_namespace));
        if name.is_empty() {
            errors.required(&at.child("volumeName"), "");
        } else {
            errors.invalid_each(&at.child("volumeName"), name, names::dns_label(name));
        }
        if !namespace.is_empty() {
            errors.invalid_each(&at.child("volumeNamespace"), namespace, names::dns_label(namespace));
        }
        secret_name(storage.secret_ref.as_ref().map(|s| s.name.as_str()), &at, errors);
    }
    if let Some(at) = one.first(volume.scale_io.is_some(), "scaleIO", path, errors)
        && let Some(scale) = &volume.scale_io
    {
        errors.require(&at.child("gateway"), &scale.gateway);
        errors.require(&at.child("system"), &scale.system);
        errors.require(&at.child("volumeName"), text(&scale.volume_name));
    }
    if let Some(at) = one.first(volume.csi.is_some(), "csi", path, errors)
        && let Some(csi) = &volume.csi
    {
        let at = at.child("driver");
        if csi.driver.is_empty() {
            errors.required(&at, "");
        } else {
            if csi.driver.len() > 63 {
                errors.too_long(&at, 63);
            }
            errors.invalid_each(&at, &csi.driver[..], names::dns_subdomain(&csi.driver.to_lowercase()));
        }
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
