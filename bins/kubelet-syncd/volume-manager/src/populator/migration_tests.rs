use serde_json::{Value, json};

use super::*;
use kubelet_model::pod::spec::is_migrated;

fn secret(reference: Option<&ObjectRef>) -> Option<String> {
    reference.map(|secret| format!("{}/{}", secret.namespace, secret.name))
}

fn shown(source: &CsiSource) -> Value {
    json!([source.driver, source.handle, source.fs_type, source.attributes, secret(source.stage_secret.as_ref())])
}

fn of_volume(kind: &str, fields: Value, metadata: Value) -> Result<(Value, Vec<String>), String> {
    let mut metadata = metadata;
    metadata["name"] = json!("pv");
    let volume = json!({"metadata": metadata, "spec": {kind: fields, "accessModes": ["ReadWriteMany"],
        "claimRef": {"namespace": "ns", "name": "c"}}});
    let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
    let (source, modes) = persistent(&volume).unwrap()?;
    assert!(source.migrated && !source.ephemeral);
    Ok((shown(&source), modes))
}

#[test]
fn persistent_volumes() {
    let none = json!({});
    let azure = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d";
    let table = [
        (
            "awsElasticBlockStore",
            json!({"volumeID": "vol-1", "fsType": "xfs"}),
            none.clone(),
            json!(["ebs.csi.aws.com", "vol-1", "xfs", {"partition": "0"}, null]),
        ),
        (
            "awsElasticBlockStore",
            json!({"volumeID": "aws://eu-1a/vol-1", "partition": 2}),
            none.clone(),
            json!(["ebs.csi.aws.com", "vol-1", "", {"partition": "2"}, null]),
        ),
        (
            "azureDisk",
            json!({"diskName": "d", "diskURI": azure}),
            none.clone(),
            json!(["disk.csi.azure.com", azure, "", {"kind": "Managed"}, null]),
        ),
        (
            "azureDisk",
            json!({"diskName": "d", "diskURI": "u", "kind": "managed", "cachingMode": "ReadOnly", "fsType": "ext4"}),
            none.clone(),
            json!(["disk.csi.azure.com", "u", "ext4", {"kind": "Managed", "cachingmode": "ReadOnly", "fstype": "ext4"}, null]),
        ),
        (
            "azureDisk",
            json!({"diskName": "d", "diskURI": "u", "cachingMode": ""}),
            none.clone(),
            json!(["disk.csi.azure.com", "u", "", {"kind": "Managed", "cachingmode": ""}, null]),
        ),
        (
            "azureFile",
            json!({"shareName": "s", "secretName": "azure-storage-account-acc-secret"}),
            json!({"annotations": {"kubernetes.io/azure-file-resource-group": "rg"}}),
            json!(["file.csi.azure.com", "rg#acc#s#pv#ns", "", {"sharename": "s"}, "ns/azure-storage-account-acc-secret"]),
        ),
        (
            "azureFile",
            json!({"shareName": "s", "secretName": "mine", "secretNamespace": "other"}),
            none.clone(),
            json!(["file.csi.azure.com", "#mine#s#pv#other", "", {"sharename": "s"}, "other/mine"]),
        ),
        (
            "cinder",
            json!({"volumeID": "id", "fsType": "ext4"}),
            none.clone(),
            json!(["cinder.csi.openstack.org", "id", "ext4", {}, null]),
        ),
        (
            "gcePersistentDisk",
            json!({"pdName": "d"}),
            none.clone(),
            json!(["pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", "", {"partition": ""}, null]),
        ),
        (
            "gcePersistentDisk",
            json!({"pdName": "d", "partition": 1}),
            json!({"labels": {"topology.kubernetes.io/zone": "us-central1-a"}}),
            json!(["pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/us-central1-a/disks/d", "", {"partition": "1"}, null]),
        ),
        (
            "gcePersistentDisk",
            json!({"pdName": "d"}),
            json!({"labels": {"failure-domain.beta.kubernetes.io/zone": "us-central1-a__us-central1-b"}}),
            json!(["pd.csi.storage.gke.io", "projects/UNSPECIFIED/regions/us-central1/disks/d", "", {"partition": ""}, null]),
        ),
        ("portworxVolume", json!({"volumeID": "id"}), none.clone(), json!(["pxd.portworx.com", "id", "", {}, null])),
        (
            "vsphereVolume",
            json!({"volumePath": "[ds] a/b.vmdk", "storagePolicyName": "gold"}),
            none,
            json!(["csi.vsphere.vmware.com", "[ds] a/b.vmdk", "", {"storagepolicyname": "gold"}, null]),
        ),
    ];
    for (kind, fields, metadata, expected) in table {
        let (found, modes) = of_volume(kind, fields, metadata).unwrap();
        assert_eq!(found, expected, "{kind}");
        assert_eq!(modes, [if kind == "gcePersistentDisk" { "ReadWriteOnce" } else { "ReadWriteMany" }], "{kind}");
    }
    let other: PersistentVolume =
        serde_json::from_value(json!({"spec": {"nfs": {"server": "s", "path": "/"}}})).unwrap();
    assert!(persistent(&other).is_none());
}

#[test]
fn what_cannot_be_translated() {
    for (kind, fields, metadata, expected) in [
        (
            "awsElasticBlockStore",
            json!({"volumeID": "aws:///x"}),
            json!({}),
            "failed to translate in-tree pv to CSI: failed to translate Kubernetes ID to EBS Volume ID Invalid format for AWS volume (aws:///x)",
        ),
        (
            "gcePersistentDisk",
            json!({"pdName": "d"}),
            json!({"labels": {"topology.kubernetes.io/zone": "us-a-b__eu-a-b"}}),
            "failed to translate in-tree pv to CSI: failed to get region from zones: multiple or no regions gotten from zones, got: [eu-a us-a]",
        ),
        (
            "azureDisk",
            json!({"diskName": "d", "diskURI": "u", "kind": "Dedicated"}),
            json!({}),
            "failed to translate in-tree pv to CSI: kind(Dedicated) is not supported in csi migration",
        ),
        (
            "azureFile",
            json!({"shareName": "s", "secretName": "x", "secretNamespace": ""}),
            json!({}),
            "failed to translate in-tree pv to CSI: could not find a secret namespace in PersistentVolumeSource or ClaimRef",
        ),
    ] {
        assert_eq!(of_volume(kind, fields, metadata).unwrap_err(), expected);
    }
}

/// Upstream's TestTranslatePortworxInTreePVToCSI: one of the two annotations names nothing.
#[test]
fn the_secret_of_a_portworx_volume() {
    let (namespace, name) = ("openstorage.io/auth-secret-namespace", "openstorage.io/auth-secret-name");
    for (annotations, expected) in [
        (json!({namespace: "n", name: "s"}), Some("n/s")),
        (json!({namespace: "n"}), None),
        (json!({name: "s"}), None),
        (json!(null), None),
    ] {
        let volume = json!({"metadata": {"name": "pv", "annotations": annotations},
            "spec": {"portworxVolume": {"volumeID": "id"}}});
        let volume: PersistentVolume = serde_json::from_value(volume).unwrap();
        let (source, _) = persistent(&volume).unwrap().unwrap();
        for found in [&source.stage_secret, &source.publish_secret, &source.expand_secret] {
            assert_eq!(secret(found.as_ref()).as_deref(), expected, "{annotations}");
        }
    }
}

#[test]
fn modes_of_gce_disks() {
    let of = |modes: &[&str]| gce_modes(modes.iter().map(ToString::to_string).collect());
    assert_eq!(of(&["ReadOnlyMany"]), ["ReadOnlyMany"]);
    assert_eq!(of(&["ReadOnlyMany", "ReadWriteOnce"]), ["ReadWriteOnce"]);
    assert_eq!(of(&["ReadWriteMany", "ReadOnlyMany"]), ["ReadWriteOnce"]);
    assert!(of(&[]).is_empty());
}

#[test]
fn volumes_of_pods() {
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns"}})).unwrap();
    let of = |source: Value| {
        let mut volume = source;
        volume["name"] = json!("data");
        let volume: Volume = serde_json::from_value(volume).unwrap();
        assert!(is_migrated(&volume));
        inline(&pod, &volume).unwrap().unwrap()
    };
    for (source, name, handle, mode) in [
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws:///vol-1"}}),
            "ebs.csi.aws.com-vol-1",
            "vol-1",
            "ReadWriteOnce",
        ),
        (json!({"azureDisk": {"diskName": "d", "diskURI": "u"}}), "u", "u", "ReadWriteOnce"),
        (json!({"cinder": {"volumeID": "id"}}), "cinder.csi.openstack.org-id", "id", "ReadWriteOnce"),
        (
            json!({"gcePersistentDisk": {"pdName": "d", "readOnly": true}}),
            "pd.csi.storage.gke.io-d",
            "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d",
            "ReadOnlyMany",
        ),
        (json!({"portworxVolume": {"volumeID": "id"}}), "pxd.portworx.com-id", "id", "ReadWriteOnce"),
    ] {
        let spec = of(source);
        assert_eq!((spec.name.as_str(), spec.first_access_mode()), (name, mode));
        assert_eq!(spec.csi().unwrap().handle, handle);
        assert_eq!(spec.unique_name("u").0, format!("kubernetes.io/csi/{}^{handle}", spec.csi().unwrap().driver));
    }
    // None of these is a folder's name.
    for (source, driver, handle) in [
        (json!({"vsphereVolume": {"volumePath": "[ds] a/b.vmdk"}}), "csi.vsphere.vmware.com", "[ds] a/b.vmdk"),
        (json!({"azureDisk": {"diskName": "d", "diskURI": "/s/D"}}), "disk.csi.azure.com", "/s/D"),
        (json!({"azureFile": {"shareName": "s", "secretName": "x"}}), "file.csi.azure.com", "#x#s#data#ns"),
    ] {
        let spec = of(source);
        assert_eq!(spec.csi().unwrap().handle, handle);
        assert!(VolumeName::parse(&spec.name).is_ok() && spec.name.starts_with(driver), "{}", spec.name);
    }
    // An empty mode is told of a PersistentVolume alone.
    let spec = of(json!({"azureDisk": {"diskName": "d", "diskURI": "u", "cachingMode": ""}}));
    assert_eq!(spec.csi().unwrap().attributes, [("kind".to_owned(), "Managed".to_owned())].into());
    // Two accounts may have a share of one name.
    let of_account = |account: &str| of(json!({"azureFile": {"shareName": "s", "secretName": account}})).name;
    assert_ne!(of_account("x"), of_account("y"));
    let volume = json!({"name": "data", "azureDisk": {"diskName": "d", "diskURI": "u", "kind": "Shared"}});
    let refused = inline(&pod, &serde_json::from_value(volume).unwrap()).unwrap().unwrap_err();
    assert_eq!(refused, "failed to translate in-tree pv to CSI: kind(Shared) is not supported in csi migration");
    let plain: Volume = serde_json::from_value(json!({"name": "v", "emptyDir": {}})).unwrap();
    assert!(!is_migrated(&plain) && inline(&pod, &plain).is_none());
}
