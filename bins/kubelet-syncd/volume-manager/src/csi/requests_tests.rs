//! Compared with what upstream sent to the hostpath driver.

use serde_json::{Value, json};

use super::*;
use crate::spec::Source;

fn source(spec: &VolumeSpec) -> &CsiSource {
    spec.csi().unwrap()
}

fn volume(handle: &str, name: &str, block: bool, ephemeral: bool) -> VolumeSpec {
    let attributes: Pairs = if ephemeral {
        [("a".to_owned(), "b".to_owned())].into()
    } else {
        let identity = "1795360951520-7291-hostpath.csi.k8s.io".to_owned();
        [("storage.kubernetes.io/csiProvisionerIdentity".to_owned(), identity)].into()
    };
    let source = Source::Csi(CsiSource {
        driver: "hostpath.csi.k8s.io".to_owned(),
        handle: handle.to_owned(),
        fs_type: String::new(),
        attributes,
        stage_secret: None,
        publish_secret: None,
        expand_secret: None,
        ephemeral,
        migrated: false,
    });
    VolumeSpec {
        block,
        access_modes: if ephemeral { Vec::new() } else { vec!["ReadWriteOnce".to_owned()] },
        ..VolumeSpec::inline(name.to_owned(), source)
    }
}

fn capability_json(capability: &v1::VolumeCapability) -> Value {
    let mode = capability.access_mode.as_ref().unwrap().mode().as_str_name();
    match capability.access_type.as_ref().unwrap() {
        AccessType::Block(_) => json!({"access_mode": {"mode": mode}, "block": {}}),
        AccessType::Mount(mount) => {
            let mut shown = json!({});
            if !mount.fs_type.is_empty() {
                shown["fs_type"] = json!(mount.fs_type);
            }
            if !mount.mount_flags.is_empty() {
                shown["mount_flags"] = json!(mount.mount_flags);
            }
            if !mount.volume_mount_group.is_empty() {
                shown["volume_mount_group"] = json!(mount.volume_mount_group);
            }
            json!({"access_mode": {"mode": mode}, "mount": shown})
        }
    }
}

/// Without what is empty, as protobuf's JSON has it.
fn compact(fields: &[(&str, Value)]) -> Value {
    let is_empty = |value: &Value| match value {
        Value::String(text) => text.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(set) => !set,
        _ => false,
    };
    let kept = fields.iter().filter(|(_, value)| !is_empty(value));
    Value::Object(kept.map(|(key, value)| ((*key).to_owned(), value.clone())).collect())
}

const CAN: Capabilities = Capabilities {
    stage: true,
    single_node_multi_writer: true,
    expand: true,
    mount_group: false,
    stats: true,
    condition: true,
};

fn pod() -> PodInfo {
    PodInfo {
        name: "csi-pod".into(),
        namespace: "default".into(),
        uid: "4bb0ec72-4ebc-4585-a543-8b341daf7e02".into(),
        service_account: "default".into(),
    }
}

fn publish_json(request: &v1::NodePublishVolumeRequest) -> Value {
    compact(&[
        ("volume_id", json!(request.volume_id)),
        ("publish_context", json!(request.publish_context)),
        ("staging_target_path", json!(request.staging_target_path)),
        ("target_path", json!(request.target_path)),
        ("volume_capability", capability_json(request.volume_capability.as_ref().unwrap())),
        ("readonly", json!(request.readonly)),
        ("secrets", json!(request.secrets)),
        ("volume_context", json!(request.volume_context)),
    ])
}

#[test]
fn a_volume_is_staged() {
    let path = "$ROOT/plugins/kubernetes.io/csi/hostpath.csi.k8s.io/0ba4/globalmount";
    let spec = volume("8afac6de-e688-11f1-8eba-5646475931de", "pvc-06b8", false, false);
    let request = stage(&spec, source(&spec), CAN, Some(2000), path.to_owned(), Pairs::new(), "");
    let shown = compact(&[
        ("volume_id", json!(request.volume_id)),
        ("publish_context", json!(request.publish_context)),
        ("staging_target_path", json!(request.staging_target_path)),
        ("volume_capability", capability_json(request.volume_capability.as_ref().unwrap())),
        ("secrets", json!(request.secrets)),
        ("volume_context", json!(request.volume_context)),
    ]);
    assert_eq!(
        shown,
        json!({"staging_target_path": path,
            "volume_capability": {"access_mode": {"mode": "SINGLE_NODE_MULTI_WRITER"}, "mount": {}},
            "volume_context": {"storage.kubernetes.io/csiProvisionerIdentity": "1795360951520-7291-hostpath.csi.k8s.io"},
            "volume_id": "8afac6de-e688-11f1-8eba-5646475931de"})
    );
}

#[test]
fn a_block_volume_is_published() {
    let staging = "$ROOT/plugins/kubernetes.io/csi/volumeDevices/staging/pvc-046c";
    let target = "$ROOT/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-046c/4bb0ec72-4ebc-4585-a543-8b341daf7e02";
    let spec = volume("8afb6922-e688-11f1-8eba-5646475931de", "pvc-046c", true, false);
    let publication = Publication {
        staging_path: staging.to_owned(),
        target_path: target.to_owned(),
        mount_group: Some(2000),
        extra_context: pod().context(false),
        ..Publication::default()
    };
    assert_eq!(
        publish_json(&publish(&spec, source(&spec), CAN, publication)),
        json!({"staging_target_path": staging, "target_path": target,
            "volume_capability": {"access_mode": {"mode": "SINGLE_NODE_MULTI_WRITER"}, "block": {}},
            "volume_context": {"csi.storage.k8s.io/ephemeral": "false", "csi.storage.k8s.io/pod.name": "csi-pod",
                "csi.storage.k8s.io/pod.namespace": "default",
                "csi.storage.k8s.io/pod.uid": "4bb0ec72-4ebc-4585-a543-8b341daf7e02",
                "csi.storage.k8s.io/serviceAccount.name": "default",
                "storage.kubernetes.io/csiProvisionerIdentity": "1795360951520-7291-hostpath.csi.k8s.io"},
            "volume_id": "8afb6922-e688-11f1-8eba-5646475931de"})
    );
}

#[test]
fn an_inline_volume_has_no_stage_and_no_mount_flags() {
    let target = "$ROOT/pods/4bb0ec72-4ebc-4585-a543-8b341daf7e02/volumes/kubernetes.io~csi/inline/mount";
    let handle = "csi-ae7c522a47bf8e3435073d82c44946bab38968dcceffa370ef6c02c14006c159";
    let mut spec = volume(handle, "inline", false, true);
    spec.mount_options = vec!["noatime".to_owned()];
    let publication =
        Publication { target_path: target.to_owned(), extra_context: pod().context(true), ..Publication::default() };
    assert_eq!(
        publish_json(&publish(&spec, source(&spec), CAN, publication)),
        json!({"target_path": target,
            "volume_capability": {"access_mode": {"mode": "SINGLE_NODE_MULTI_WRITER"}, "mount": {}},
            "volume_context": {"a": "b", "csi.storage.k8s.io/ephemeral": "true",
                "csi.storage.k8s.io/pod.name": "csi-pod", "csi.storage.k8s.io/pod.namespace": "default",
                "csi.storage.k8s.io/pod.uid": "4bb0ec72-4ebc-4585-a543-8b341daf7e02",
                "csi.storage.k8s.io/serviceAccount.name": "default"},
            "volume_id": handle})
    );
}

#[test]
fn the_group_goes_to_drivers_that_take_it() {
    let spec = volume("h", "v", false, false);
    let can = Capabilities { mount_group: true, ..CAN };
    let group = |can| {
        let request = stage(&spec, source(&spec), can, Some(2000), "p".into(), Pairs::new(), "");
        match request.volume_capability.unwrap().access_type.unwrap() {
            AccessType::Mount(mount) => mount.volume_mount_group,
            AccessType::Block(_) => unreachable!(),
        }
    };
    assert_eq!((group(can).as_str(), group(CAN).as_str()), ("2000", ""));
}
