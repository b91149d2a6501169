//! In-tree kinds of volumes that a CSI driver serves: which driver, and what it is told (upstream `k8s.io/csi-translation-lib`,
//! `pkg/volume/csimigration`). Pure. All of them are migrated in every release that this node stands in for; a driver that has not
//! registered is waited for, as any other.
//!
//! The node needs one direction alone: what a controller has attached is named by the driver's handle.

use bulkhead_types::VolumeName;
use k8s_openapi::api::core::v1::{
    AzureDiskVolumeSource, AzureFilePersistentVolumeSource, PersistentVolume, PersistentVolumeSpec,
};
use kubelet_model::v1::{Pod, Volume};

use crate::spec::{CsiSource, ObjectRef, Source, VolumeSpec};

const AWS_EBS: &str = "ebs.csi.aws.com";
const AZURE_DISK: &str = "disk.csi.azure.com";
const AZURE_FILE: &str = "file.csi.azure.com";
const CINDER: &str = "cinder.csi.openstack.org";
const GCE_PD: &str = "pd.csi.storage.gke.io";
const PORTWORX: &str = "pxd.portworx.com";
const VSPHERE: &str = "csi.vsphere.vmware.com";

/// What the driver is to find out of the node's.
const UNSPECIFIED: &str = "UNSPECIFIED";
/// The one kind of an Azure disk.
const MANAGED: &str = "Managed";
/// Annotations of a Portworx volume's PersistentVolume: the secret of its driver's calls.
const AUTH_SECRET: [&str; 2] = ["openstorage.io/auth-secret-namespace", "openstorage.io/auth-secret-name"];
/// Of an Azure file share's PersistentVolume.
const RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";
/// Zones in a label of a PersistentVolume stand between these.
const ZONES: &str = "__";
/// Labels of a PersistentVolume's zones, the older one first.
const ZONE_LABELS: [&str; 2] = ["failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"];

/// What a driver is told of a PersistentVolume, and its access modes; `None`: it is of no such kind.
pub type Translated = Option<Result<(CsiSource, Vec<String>), String>>;

/// A PersistentVolume.
pub fn persistent(volume: &PersistentVolume) -> Translated {
    let spec = volume.spec.as_ref()?;
    let source = source_of(volume, spec)?;
    let modes = spec.access_modes.clone().unwrap_or_default();
    let modes = if spec.gce_persistent_disk.is_some() { gce_modes(modes) } else { modes };
    Some(source.map(|source| (source, modes)).map_err(|why| format!("failed to translate in-tree pv to CSI: {why}")))
}

fn source_of(volume: &PersistentVolume, spec: &PersistentVolumeSpec) -> Option<Result<CsiSource, String>> {
    if let Some(disk) = &spec.aws_elastic_block_store {
        return Some(aws(&disk.volume_id, disk.fs_type.as_deref(), disk.partition));
    }
    if let Some(disk) = &spec.azure_disk {
        // An empty mode is told, too.
        return Some(azure_disk(disk, disk.caching_mode.as_deref()));
    }
    if let Some(share) = &spec.azure_file {
        return Some(azure_file_of_claim(volume, spec, share));
    }
    if let Some(disk) = &spec.cinder {
        return Some(Ok(source(CINDER, disk.volume_id.clone(), disk.fs_type.as_deref(), [])));
    }
    if let Some(disk) = &spec.gce_persistent_disk {
        let place = gce_place(volume);
        let handle = place.map(|place| format!("projects/{UNSPECIFIED}/{place}/disks/{}", disk.pd_name));
        return Some(handle.map(|handle| gce(handle, disk.fs_type.as_deref(), disk.partition)));
    }
    if let Some(disk) = &spec.portworx_volume {
        let found = source(PORTWORX, disk.volume_id.clone(), disk.fs_type.as_deref(), []);
        return Some(Ok(with_auth_secret(volume, found)));
    }
    let disk = spec.vsphere_volume.as_ref()?;
    Some(Ok(vsphere(&disk.volume_path, disk.fs_type.as_deref(), disk.storage_policy_name.as_deref())))
}

/// A volume of a pod; `None`: it is of no such kind.
pub fn inline(pod: &Pod, volume: &Volume) -> Option<Result<VolumeSpec, String>> {
    let namespace = pod.metadata.namespace.as_deref().filter(|name| !name.is_empty()).unwrap_or("default");
    let of_driver = |driver: &str, id: &str| format!("{driver}-{id}");
    let (name, mode, source) = if let Some(disk) = &volume.aws_elastic_block_store {
        let source = aws(&disk.volume_id, disk.fs_type.as_deref(), disk.partition);
        let handle = source.as_ref().map_or("", |source| &source.handle);
        (of_driver(AWS_EBS, handle), "ReadWriteOnce", source)
    } else if let Some(disk) = &volume.azure_disk {
        let caching = disk.caching_mode.as_deref().filter(|mode| !mode.is_empty());
        (disk.disk_uri.clone(), "ReadWriteOnce", azure_disk(disk, caching))
    } else if let Some(share) = &volume.azure_file {
        // One share's name may be that of several accounts.
        let source = azure_file("", &share.secret_name, &share.share_name, &volume.name, namespace);
        (source.handle.clone(), "ReadWriteMany", Ok(source))
    } else if let Some(disk) = &volume.cinder {
        let source = source(CINDER, disk.volume_id.clone(), disk.fs_type.as_deref(), []);
        (of_driver(CINDER, &disk.volume_id), "ReadWriteOnce", Ok(source))
    } else if let Some(disk) = &volume.gce_persistent_disk {
        let handle = format!("projects/{UNSPECIFIED}/zones/{UNSPECIFIED}/disks/{}", disk.pd_name);
        let mode = if disk.read_only == Some(true) { "ReadOnlyMany" } else { "ReadWriteOnce" };
        (of_driver(GCE_PD, &disk.pd_name), mode, Ok(gce(handle, disk.fs_type.as_deref(), disk.partition)))
    } else if let Some(disk) = &volume.portworx_volume {
        let mode = if disk.read_only == Some(true) { "ReadOnlyMany" } else { "ReadWriteOnce" };
        let source = source(PORTWORX, disk.volume_id.clone(), disk.fs_type.as_deref(), []);
        (of_driver(PORTWORX, &disk.volume_id), mode, Ok(source))
    } else if let Some(disk) = &volume.vsphere_volume {
        let source = vsphere(&disk.volume_path, disk.fs_type.as_deref(), disk.storage_policy_name.as_deref());
        (of_driver(VSPHERE, &disk.volume_path), "ReadWriteOnce", Ok(source))
    } else {
        return None;
    };
    let source = match source {
        Ok(source) => source,
        Err(why) => return Some(Err(format!("failed to translate in-tree pv to CSI: {why}"))),
    };
    let name = folder(&source.driver, name);
    Some(Ok(VolumeSpec { access_modes: vec![mode.to_owned()], ..VolumeSpec::inline(name, Source::Csi(source)) }))
}

/// The name of an inline volume's folders: upstream's name of its PersistentVolume. One that is no such name (a path of a datastore, a
/// disk's URI, a share's handle) stands there by its digest, as folders have names of that kind alone.
fn folder(driver: &str, name: String) -> String {
    if VolumeName::parse(&name).is_ok() { name } else { format!("{driver}-{}", crate::names::hex_digest(&[&name])) }
}

fn source<const N: usize>(
    driver: &str,
    handle: String,
    fs_type: Option<&str>,
    attributes: [(&str, String); N],
) -> CsiSource {
    CsiSource {
        driver: driver.to_owned(),
        handle,
        fs_type: fs_type.unwrap_or_default().to_owned(),
        attributes: attributes.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
        stage_secret: None,
        publish_secret: None,
        expand_secret: None,
        ephemeral: false,
        migrated: true,
    }
}

/// `aws://<zone>/<volume>`, `aws:///<volume>` or `<volume>`.
fn aws(id: &str, fs_type: Option<&str>, partition: Option<i32>) -> Result<CsiSource, String> {
    let handle = match id.strip_prefix("aws://") {
        None => id,
        Some(rest) => {
            let volume = rest.split_once('/').map_or("", |(_, path)| path.trim_matches('/'));
            if !volume.starts_with("vol-") || volume.contains('/') {
                return Err(format!(
                    "failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume ({id})"
                ));
            }
            volume
        }
    };
    Ok(source(AWS_EBS, handle.to_owned(), fs_type, [("partition", partition.unwrap_or(0).to_string())]))
}

fn azure_disk(disk: &AzureDiskVolumeSource, caching_mode: Option<&str>) -> Result<CsiSource, String> {
    if let Some(kind) = disk.kind.as_deref().filter(|kind| !kind.eq_ignore_ascii_case(MANAGED)) {
        return Err(format!("kind({kind}) is not supported in csi migration"));
    }
    let kind = [("kind", MANAGED.to_owned())];
    let mut found = source(AZURE_DISK, disk.disk_uri.clone(), disk.fs_type.as_deref(), kind);
    let optional = [("cachingmode", caching_mode), ("fstype", disk.fs_type.as_deref())];
    found.attributes.extend(optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.to_owned()))));
    Ok(found)
}

fn azure_file(group: &str, secret: &str, share: &str, volume: &str, namespace: &str) -> CsiSource {
    // The account of a secret whose name names it; else the secret's name stands for it.
    let account = secret.split_once("azure-storage-account-").and_then(|(_, rest)| rest.rsplit_once("-secret"));
    let account = account.map(|(account, _)| account).filter(|account| !account.is_empty()).unwrap_or(secret);
    let handle = format!("{group}#{account}#{share}#{volume}#{namespace}");
    let mut found = source(AZURE_FILE, handle, None, [("sharename", share.to_owned())]);
    found.stage_secret = Some(ObjectRef { namespace: namespace.to_owned(), name: secret.to_owned() });
    found
}

fn azure_file_of_claim(
    volume: &PersistentVolume,
    spec: &PersistentVolumeSpec,
    share: &AzureFilePersistentVolumeSource,
) -> Result<CsiSource, String> {
    let of_claim = || spec.claim_ref.as_ref().and_then(|claim| claim.namespace.clone());
    let namespace = share.secret_namespace.clone().or_else(of_claim).unwrap_or_default();
    if namespace.is_empty() {
        return Err("could not find a secret namespace in PersistentVolumeSource or ClaimRef".to_owned());
    }
    let annotations = volume.metadata.annotations.as_ref();
    let group = annotations.and_then(|all| all.get(RESOURCE_GROUP)).cloned().unwrap_or_default();
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    Ok(azure_file(&group, &share.secret_name, &share.share_name, name, &namespace))
}

fn gce(handle: String, fs_type: Option<&str>, partition: Option<i32>) -> CsiSource {
    let partition = partition.filter(|number| *number != 0).map(|number| number.to_string()).unwrap_or_default();
    source(GCE_PD, handle, fs_type, [("partition", partition)])
}

/// `zones/<zone>`, or `regions/<region>` of a disk in several zones.
fn gce_place(volume: &PersistentVolume) -> Result<String, String> {
    let labels = volume.metadata.labels.as_ref();
    let label = |name: &&str| labels.and_then(|labels| labels.get(*name)).filter(|zones| !zones.is_empty());
    let zones: Vec<&str> = ZONE_LABELS.iter().find_map(label).map_or(Vec::new(), |zones| zones.split(ZONES).collect());
    match zones[..] {
        [] => Ok(format!("zones/{UNSPECIFIED}")),
        [zone] => Ok(format!("zones/{zone}")),
        _ => region(&zones).map(|region| format!("regions/{region}")),
    }
}

/// The one region of these zones.
fn region(zones: &[&str]) -> Result<String, String> {
    let mut regions = std::collections::BTreeSet::new();
    for zone in zones {
        match zone.split('-').collect::<Vec<_>>()[..] {
            [place, region, _] => regions.insert(format!("{place}-{region}")),
            _ => {
                return Err(format!(
                    "failed to get region from zones: zone in unexpected format, expected: {{locale}}-{{region}}-{{zone}}, got: {zone}"
                ));
            }
        };
    }
    match regions.pop_first() {
        Some(region) if regions.is_empty() => Ok(region),
        first => {
            let all: Vec<String> = first.into_iter().chain(regions).collect();
            let all = all.join(" ");
            Err(format!("failed to get region from zones: multiple or no regions gotten from zones, got: [{all}]"))
        }
    }
}

/// The in-tree kind let pass what the driver refuses: ReadWriteMany, and both of the others.
fn gce_modes(modes: Vec<String>) -> Vec<String> {
    if modes.is_empty() {
        return modes;
    }
    let read_only = modes.iter().all(|mode| mode == "ReadOnlyMany");
    vec![if read_only { "ReadOnlyMany" } else { "ReadWriteOnce" }.to_owned()]
}

/// The secret of all calls on the node, where the PersistentVolume names one by both annotations.
fn with_auth_secret(volume: &PersistentVolume, source: CsiSource) -> CsiSource {
    let annotation = |key: &str| volume.metadata.annotations.as_ref()?.get(key).cloned();
    let [Some(namespace), Some(name)] = AUTH_SECRET.map(annotation) else { return source };
    let secret = Some(ObjectRef { namespace, name });
    CsiSource { stage_secret: secret.clone(), publish_secret: secret.clone(), expand_secret: secret, ..source }
}

fn vsphere(path: &str, fs_type: Option<&str>, policy: Option<&str>) -> CsiSource {
    let mut found = source(VSPHERE, path.to_owned(), fs_type, []);
    let policy = policy.filter(|policy| !policy.is_empty());
    found.attributes.extend(policy.map(|policy| ("storagepolicyname".to_owned(), policy.to_owned())));
    found
}

#[cfg(test)]
#[path = "migration_tests.rs"]
mod tests;
