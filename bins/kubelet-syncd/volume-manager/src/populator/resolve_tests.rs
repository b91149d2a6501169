use serde_json::{Value, json};

use super::*;

fn pod() -> Pod {
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"containers": [
        {"name": "a", "volumeMounts": [{"name": "data", "mountPath": "/d"}], "volumeDevices": [{"name": "raw", "devicePath": "/r"}]}],
        "volumes": []}}))
    .unwrap()
}

fn volume(source: Value) -> Volume {
    let mut volume = source;
    volume["name"] = json!("data");
    serde_json::from_value(volume).unwrap()
}

fn claim(change: impl Fn(&mut Value)) -> PersistentVolumeClaim {
    let mut claim = json!({"metadata": {"name": "c", "namespace": "ns", "uid": "cu"},
        "spec": {"volumeName": "pv"}, "status": {"phase": "Bound", "capacity": {"storage": "1Mi"}}});
    change(&mut claim);
    serde_json::from_value(claim).unwrap()
}

fn kept() -> Claim {
    super::claim(&claim(|_| {}))
}

fn persistent_volume(change: impl Fn(&mut Value)) -> PersistentVolume {
    let mut volume = json!({"metadata": {"name": "pv"}, "spec": {"capacity": {"storage": "2Mi"},
        "accessModes": ["ReadWriteOnce"], "claimRef": {"uid": "cu"},
        "csi": {"driver": "d", "volumeHandle": "h", "nodeStageSecretRef": {"name": "s", "namespace": "sn"}}}});
    change(&mut volume);
    serde_json::from_value(volume).unwrap()
}

#[test]
fn claims_that_may_not_be_used() {
    assert_eq!(check_claim(&claim(|_| {})), Ok(()));
    let refused = |change: &dyn Fn(&mut Value)| check_claim(&claim(change)).unwrap_err();
    let deleted = |c: &mut Value| c["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(refused(&deleted), "PVC is being deleted");
    let protected = claim(|c| {
        deleted(c);
        c["metadata"]["finalizers"] = json!(["kubernetes.io/pvc-protection"]);
    });
    assert_eq!(check_claim(&protected), Ok(()));
    assert_eq!(refused(&|c| c["status"]["phase"] = json!("Pending")), "PVC is not bound");
    assert_eq!(refused(&|c| c["status"] = json!(null)), "PVC is not bound");
    assert_eq!(refused(&|c| c["spec"]["volumeName"] = json!("")), "PVC has empty pvc.Spec.VolumeName");
}

#[test]
fn whose_a_claim_is() {
    let ephemeral = volume(json!({"ephemeral": {"volumeClaimTemplate": {"spec": {}}}}));
    assert_eq!(claim_name(&pod(), &ephemeral).unwrap(), "p-data");
    let named = volume(json!({"persistentVolumeClaim": {"claimName": "c"}}));
    assert_eq!(claim_name(&pod(), &named).unwrap(), "c");
    assert_eq!(check_owner(&pod(), &named, &claim(|_| {})), Ok(()));
    let text = "PVC ns/c was not created for pod ns/p (pod is not owner)";
    assert_eq!(check_owner(&pod(), &ephemeral, &claim(|_| {})).unwrap_err(), text);
    let owned = |uid: &str, controller: bool| {
        claim(|c| {
            c["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": controller}]);
        })
    };
    assert_eq!(check_owner(&pod(), &ephemeral, &owned("u", true)), Ok(()));
    assert_eq!(check_owner(&pod(), &ephemeral, &owned("u", false)).unwrap_err(), text);
    assert_eq!(check_owner(&pod(), &ephemeral, &owned("other", true)).unwrap_err(), text);
}

#[test]
fn a_volume_of_another_claim() {
    assert_eq!(check_claim_ref(&persistent_volume(|_| {}), "cu"), Ok(()));
    let other = persistent_volume(|v| v["spec"]["claimRef"]["uid"] = json!("x"));
    assert_eq!(
        check_claim_ref(&other, "cu").unwrap_err(),
        "found PV object pv but its pv.Spec.ClaimRef.UID x does not point to claim.UID cu"
    );
    let free = persistent_volume(|v| v["spec"]["claimRef"] = json!(null));
    assert_eq!(
        check_claim_ref(&free, "cu").unwrap_err(),
        "found PV object pv but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
    );
}

#[test]
fn modes_and_uses() {
    let used = |name: &str| Use::of(&pod(), name);
    assert_eq!(used("data"), Use { mounted: true, device: false });
    assert_eq!(used("raw"), Use { mounted: false, device: true });
    assert!(!used("none").any());
    let named = volume(json!({"persistentVolumeClaim": {"claimName": "c", "readOnly": true}}));
    let block = persistent_volume(|v| v["spec"]["volumeMode"] = json!("Block"));
    let of = |used: Use, volume: &PersistentVolume| persistent(&named, used, kept(), volume);
    assert_eq!(
        of(used("data"), &block).unwrap_err(),
        "volume data has volumeMode Block, but is specified in volumeMounts"
    );
    assert_eq!(
        of(used("raw"), &persistent_volume(|_| {})).unwrap_err(),
        "volume data has volumeMode Filesystem, but is specified in volumeDevices"
    );
    assert!(of(used("raw"), &block).unwrap().block);
    let spec = of(used("data"), &persistent_volume(|_| {})).unwrap();
    assert!(spec.read_only && !spec.block);
    assert_eq!((spec.name.as_str(), spec.capacity, spec.first_access_mode()), ("pv", 2 << 20, "ReadWriteOnce"));
    assert_eq!(spec.claim.as_ref().unwrap().capacity, 1 << 20);
    let secret = ObjectRef { namespace: "sn".into(), name: "s".into() };
    assert_eq!(spec.csi().unwrap().stage_secret, Some(secret));
    assert_eq!(spec.unique_name("u").0, "kubernetes.io/csi/d^h");
}

#[test]
fn kinds_that_are_not_there() {
    let cephfs = persistent_volume(|v| {
        v["spec"]["csi"] = json!(null);
        v["spec"]["cephfs"] = json!({"monitors": ["m"]});
    });
    let named = volume(json!({"persistentVolumeClaim": {"claimName": "c"}}));
    let used = Use { mounted: true, device: false };
    assert_eq!(
        persistent(&named, used, kept(), &cephfs).unwrap_err(),
        "failed to get Plugin from volumeSpec for volume \"pv\" err=no volume plugin matched"
    );
}

#[test]
fn paths_of_local_volumes_are_absolute() {
    let named = volume(json!({"persistentVolumeClaim": {"claimName": "c"}}));
    for (path, wanted) in [("/mnt/d", "/mnt/d"), ("mnt/d", "/mnt/d")] {
        let local = persistent_volume(|v| {
            v["spec"]["csi"] = json!(null);
            v["spec"]["local"] = json!({"path": path});
        });
        let spec = persistent(&named, Use { mounted: true, device: false }, kept(), &local).unwrap();
        assert_eq!(spec.source, crate::spec::Source::Local { path: wanted.into(), fs_type: String::new() });
    }
}

#[test]
fn exports_of_an_nfs_server() {
    let nfs = persistent_volume(|v| {
        v["spec"]["csi"] = json!(null);
        v["spec"]["nfs"] = json!({"server": "s", "path": "/p", "readOnly": true});
        v["spec"]["mountOptions"] = json!(["vers=3", "nolock"]);
    });
    let named = volume(json!({"persistentVolumeClaim": {"claimName": "c"}}));
    let spec = persistent(&named, Use { mounted: true, device: false }, kept(), &nfs).unwrap();
    assert_eq!(spec.source, crate::spec::Source::Nfs { server: "s".into(), path: "/p".into() });
    assert!(!spec.read_only, "upstream goes by the claim's use");
    assert_eq!(spec.mount_options, ["nolock", "vers=3"]);
    assert_eq!(
        (spec.plugin().as_str(), spec.unique_name("u").0.as_str()),
        ("kubernetes.io/nfs", "kubernetes.io/nfs/u-pv")
    );
    let inline = volume(json!({"nfs": {"server": "fd00::1", "path": "/p", "readOnly": true}}));
    let spec = inline_nfs(&inline, inline.nfs.as_ref().unwrap());
    assert!(spec.read_only && spec.claim.is_none());
    assert_eq!(spec.unique_name("u").0, "kubernetes.io/nfs/u-data");
}

/// A driver gets what the spec says, and the other plugins what the older annotation says.
#[test]
fn whose_options_a_mount_has() {
    let options = json!(["vers=3", "nolock", "", "nolock"]);
    let nfs = json!({"server": "s", "path": "/p"});
    let of = |kind: &str, source: &Value, annotation: Option<&str>| {
        let volume = persistent_volume(|v| {
            v["spec"]["csi"] = json!(null);
            v["spec"][kind] = source.clone();
            v["spec"]["mountOptions"] = options.clone();
            v["metadata"]["annotations"] =
                annotation.map_or(json!(null), |text| json!({"volume.beta.kubernetes.io/mount-options": text}));
        });
        let named = self::volume(json!({"persistentVolumeClaim": {"claimName": "c"}}));
        persistent(&named, Use { mounted: true, device: false }, kept(), &volume).unwrap().mount_options
    };
    let of_spec = ["vers=3", "nolock", "", "nolock"];
    for (kind, source) in [
        ("csi", json!({"driver": "d", "volumeHandle": "h"})),
        ("gcePersistentDisk", json!({"pdName": "d"})),
        ("cinder", json!({"volumeID": "id"})),
    ] {
        for annotation in [None, Some("noatime"), Some("")] {
            assert_eq!(of(kind, &source, annotation), of_spec, "{kind} {annotation:?}");
        }
    }
    for (annotation, expected) in
        [(None, &["nolock", "vers=3"][..]), (Some("soft,,hard,soft"), &["hard", "soft"]), (Some(""), &[])]
    {
        assert_eq!(of("nfs", &nfs, annotation), expected, "{annotation:?}");
    }
}

#[test]
fn volumes_of_flexvolume_drivers() {
    let source =
        json!({"driver": "v/d", "fsType": "ext4", "options": {"a": "b"}, "readOnly": true, "secretRef": {"name": "s"}});
    let inline = volume(json!({"flexVolume": source}));
    let spec = inline_flex(&inline, inline.flex_volume.as_ref().unwrap());
    let wanted = FlexSource {
        can: FlexCan::default(),
        driver: "v/d".into(),
        fs_type: "ext4".into(),
        options: [("a".to_owned(), "b".to_owned())].into(),
        secret: Some(ObjectRef { namespace: String::new(), name: "s".into() }),
    };
    assert!(spec.read_only && spec.claim.is_none() && spec.source == Source::Flex(wanted.clone()));
    assert_eq!((spec.plugin().as_str(), spec.unique_name("u").0.as_str()), ("v/d", "v/d/u-data"));
    let flex = persistent_volume(|volume| {
        volume["spec"].as_object_mut().unwrap().remove("csi");
        volume["spec"]["flexVolume"] = source.clone();
        volume["spec"]["flexVolume"]["secretRef"]["namespace"] = json!("other");
    });
    let named = volume(json!({"persistentVolumeClaim": {"claimName": "c"}}));
    let spec = persistent(&named, Use { mounted: true, device: false }, kept(), &flex).unwrap();
    let secret = Some(ObjectRef { namespace: "other".into(), name: "s".into() });
    assert_eq!(spec.source, Source::Flex(FlexSource { secret, ..wanted.clone() }));
    assert!(!spec.read_only, "upstream goes by the claim's use");
    assert_eq!(spec.unique_name("u").0, "v/d/u-pv");
    assert!(spec.place().is_none() && !spec.may_grow());
    // What is attached has one name for all pods, and is mounted once a node.
    let can = FlexCan { attach: true, expand: true, measure: false };
    let attached = VolumeSpec { source: Source::Flex(FlexSource { can, ..wanted }), ..spec };
    let place = attached.place().unwrap();
    assert_eq!((place.plugin.as_str(), place.name.as_str()), ("kubernetes.io/flexvolume", "v/d/pv"));
    assert!(attached.unique_name("u").0 == "v/d/pv" && attached.may_grow());
}

#[test]
fn inline_volumes() {
    let csi = volume(json!({"csi": {"driver": "d", "fsType": "xfs", "readOnly": true, "volumeAttributes": {"a": "b"},
        "nodePublishSecretRef": {"name": "s"}}}));
    let spec = inline(&pod(), &csi).unwrap();
    let source = spec.csi().unwrap();
    assert!(spec.read_only && source.ephemeral);
    assert_eq!(source.publish_secret, Some(ObjectRef { namespace: "ns".into(), name: "s".into() }));
    assert_eq!(source.handle, names::ephemeral_handle("u", "data"));
    assert_eq!(spec.unique_name("u").0, "kubernetes.io/csi/u-data");
}
