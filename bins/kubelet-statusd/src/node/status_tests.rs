//! The status against what upstream's kubelet wrote on a real machine, and what each input changes.

use super::*;
use bulkhead_config::NodeConfig;
use k8s_openapi::api::core::v1::NodeAddress;
use serde_json::json;

fn fixed() -> Fixed {
    Fixed {
        facts: Facts {
            machine_id: "3d1219c7c4c5404aaa1f6d2a48adfda4".into(),
            system_uuid: "3d1219c7c4c5404aaa1f6d2a48adfda4".into(),
            boot_id: "388b6634-8ef7-4698-8254-8a3cbb6f596b".into(),
            kernel_version: "6.18.44".into(),
            os_image: "Debian GNU/Linux 12 (bookworm)".into(),
            architecture: "amd64",
            cgroup_v1: true,
            no_cpu_quota: false,
        },
        kubelet_version: "v1.36.2".into(),
        port: 10250,
        declared_features: None,
        local_storage_isolation: true,
        sync_frequency: Duration::from_secs(60),
    }
}

fn amounts(list: &[(&str, &str)]) -> std::collections::HashMap<String, String> {
    list.iter().map(|(name, amount)| ((*name).to_owned(), (*amount).to_owned())).collect()
}

fn state() -> NodeState {
    let image = |names: &[&str], size_bytes| bulkhead_ipc::syncd::NodeImage {
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        size_bytes,
    };
    NodeState {
        runtime_name: "containerd".into(),
        runtime_version: "1.6.20".into(),
        runtime_ready: true,
        network_ready: true,
        pleg: "cri-events".into(),
        relist_age_seconds: Some(1.0),
        runtime_status_age_seconds: Some(0.5),
        capacity: amounts(&[
            ("cpu", "2"),
            ("ephemeral-storage", "264212084Ki"),
            ("hugepages-1Gi", "0"),
            ("hugepages-2Mi", "0"),
            ("memory", "24684092Ki"),
            ("pods", "250"),
        ]),
        allocatable: amounts(&[
            ("cpu", "2"),
            ("ephemeral-storage", "267847642337"),
            ("hugepages-1Gi", "0"),
            ("hugepages-2Mi", "0"),
            ("memory", "24581692Ki"),
            ("pods", "250"),
        ]),
        images: vec![
            image(&["registry.k8s.io/e2e-test-images/agnhost:2.63.0"], 97_768_299),
            image(&[], 21_938_919),
            image(&["registry.k8s.io/pause:3.10.1", "registry.k8s.io/pause:3.10.2"], 329_195),
        ],
        ..NodeState::default()
    }
}

fn address(kind: &str, address: &str) -> NodeAddress {
    NodeAddress { type_: kind.into(), address: address.into() }
}

fn decision() -> Decision {
    let addresses = Some(vec![address("InternalIP", "10.240.0.2"), address("Hostname", "test-node")]);
    Decision { addresses, provided: None }
}

fn now<'a>(state: Option<&'a NodeState>, decision: Option<&'a Decision>, time: i64) -> Now<'a> {
    Now {
        time: Timestamp::from_second(1_795_223_923 + time).unwrap(),
        known: state,
        silent: false,
        silent_peers: SilentPeers::default(),
        addresses: decision,
        pressure: Some(Pressure::default()),
        storage: None,
        shutting_down: false,
    }
}

/// A node as it stands after registration and the first status.
fn registered() -> Node {
    let initial = object::initial(&NodeConfig::for_tests(std::path::Path::new("/t")), "amd64");
    next(&initial, &fixed(), &now(Some(&state()), Some(&decision()), 0)).0
}

#[test]
fn a_new_node_is_what_upstream_writes() {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": "2026-11-21T01:18:43Z", "lastTransitionTime": "2026-11-21T01:18:43Z",
        })
    };
    assert_eq!(
        serde_json::to_value(registered()).unwrap(),
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": "test-node",
                "labels": {
                    "beta.kubernetes.io/arch": "amd64",
                    "beta.kubernetes.io/os": "linux",
                    "kubernetes.io/arch": "amd64",
                    "kubernetes.io/hostname": "test-node",
                    "kubernetes.io/os": "linux",
                },
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            },
            "spec": {},
            "status": {
                "addresses": [
                    {"type": "InternalIP", "address": "10.240.0.2"},
                    {"type": "Hostname", "address": "test-node"},
                ],
                "allocatable": {
                    "cpu": "2", "ephemeral-storage": "267847642337", "hugepages-1Gi": "0", "hugepages-2Mi": "0",
                    "memory": "24581692Ki", "pods": "250",
                },
                "capacity": {
                    "cpu": "2", "ephemeral-storage": "264212084Ki", "hugepages-1Gi": "0", "hugepages-2Mi": "0",
                    "memory": "24684092Ki", "pods": "250",
                },
                "conditions": [
                    condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                    condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                    condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                    condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
                ],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                "images": [
                    {"names": ["registry.k8s.io/e2e-test-images/agnhost:2.63.0"], "sizeBytes": 97_768_299},
                    {"sizeBytes": 21_938_919},
                    {"names": ["registry.k8s.io/pause:3.10.1", "registry.k8s.io/pause:3.10.2"], "sizeBytes": 329_195},
                ],
                "nodeInfo": {
                    "architecture": "amd64",
                    "bootID": "388b6634-8ef7-4698-8254-8a3cbb6f596b",
                    "containerRuntimeVersion": "containerd://1.6.20",
                    "kernelVersion": "6.18.44",
                    "kubeProxyVersion": "",
                    "kubeletVersion": "v1.36.2",
                    "machineID": "3d1219c7c4c5404aaa1f6d2a48adfda4",
                    "operatingSystem": "linux",
                    "osImage": "Debian GNU/Linux 12 (bookworm)",
                    "systemUUID": "3d1219c7c4c5404aaa1f6d2a48adfda4",
                },
            },
        })
    );
}

#[test]
fn a_heartbeat_is_no_change_and_images_are_no_hurry() {
    let old = registered();
    let (new, events) = next(&old, &fixed(), &now(Some(&state()), Some(&decision()), 10));
    assert_ne!(old, new);
    assert_eq!(change(&old, &new), Change::Nothing);
    assert!(events.is_empty());
    let mut pulled = state();
    pulled.images.pop();
    assert_eq!(change(&old, &next(&old, &fixed(), &now(Some(&pulled), None, 10)).0), Change::Images);
    pulled.network_ready = false;
    assert_eq!(change(&old, &next(&old, &fixed(), &now(Some(&pulled), None, 10)).0), Change::Other);
}

#[test]
fn what_the_api_server_writes_differently_is_no_change() {
    let mut old = registered();
    let status = old.status.as_mut().unwrap();
    status.capacity.as_mut().unwrap().insert("pods".into(), ApiQuantity("250.0".into()));
    status.images.as_mut().unwrap()[1].names = None;
    old.metadata.annotations.get_or_insert_default().insert("node.alpha.kubernetes.io/ttl".into(), "0".into());
    let (new, _) = next(&old, &fixed(), &now(Some(&state()), Some(&decision()), 10));
    assert_eq!(change(&old, &new), Change::Nothing);
}

#[test]
fn an_unknown_syncd_takes_nothing_away() {
    let old = registered();
    let (new, events) = next(&old, &fixed(), &Now { silent: true, ..now(None, None, 30) });
    let (old_status, new_status) = (old.status.unwrap(), new.status.unwrap());
    assert_eq!(events, ["NodeNotReady"]);
    let ready = new_status.conditions.as_ref().unwrap().last().unwrap();
    assert_eq!(ready.message.as_deref(), Some("kubelet-syncd is not healthy: it does not answer"));
    assert_eq!(NodeStatus { conditions: None, ..new_status }, NodeStatus { conditions: None, ..old_status });
}

#[test]
fn a_node_of_which_nothing_is_known_says_so() {
    let initial = object::initial(&NodeConfig::for_tests(std::path::Path::new("/t")), "amd64");
    let (node, _) = next(&initial, &fixed(), &Now { silent: true, ..now(None, None, 0) });
    let conditions = node.status.unwrap().conditions.unwrap();
    assert_eq!(
        conditions.last().unwrap().message.as_deref(),
        Some(
            "[kubelet-syncd is not healthy: it does not answer, missing node capacity for resources: cpu, memory, pods, ephemeral-storage]"
        )
    );
}

#[test]
fn resources_of_others_are_kept() {
    let mut old = registered();
    let status = old.status.as_mut().unwrap();
    let (capacity, allocatable) = (status.capacity.as_mut().unwrap(), status.allocatable.as_mut().unwrap());
    capacity.insert("vendor.com/gpu".into(), ApiQuantity("2".into()));
    // A size that the machine does not have: it goes when the Node is registered again.
    capacity.insert("hugepages-3Mi".into(), ApiQuantity("9Mi".into()));
    for name in ["gone.com/x", "No.Qualified.Name/x"] {
        allocatable.insert(name.into(), ApiQuantity("1".into()));
    }
    let status = next(&old, &fixed(), &now(Some(&state()), None, 0)).0.status.unwrap();
    let (capacity, allocatable) = (status.capacity.unwrap(), status.allocatable.unwrap());
    for list in [&capacity, &allocatable] {
        assert_eq!((list["vendor.com/gpu"].0.as_str(), list["hugepages-3Mi"].0.as_str()), ("2", "9Mi"));
    }
    assert!(!allocatable.contains_key("gone.com/x"), "an extended resource without capacity");
    assert!(allocatable.contains_key("No.Qualified.Name/x"), "no extended resource");
}

#[test]
fn runtime_features_volumes_and_swap() {
    let mut state = state();
    let handler = |name: &str, mounts| bulkhead_ipc::syncd::RuntimeHandler {
        name: name.into(),
        recursive_read_only_mounts: mounts,
        user_namespaces: true,
    };
    state.runtime_handlers = vec![handler("runc", true), handler("", false)];
    state.supplemental_groups_policy = Some(true);
    state.volumes_in_use = vec!["kubernetes.io/csi/d^v".into()];
    state.swap_capacity_bytes = 4096;
    let old = registered();
    let (node, _) = next(&old, &fixed(), &now(Some(&state), None, 0));
    assert_eq!(node.status.as_ref().unwrap().volumes_in_use, None);
    state.volumes_synced = true;
    let (node, _) = next(&node, &fixed(), &now(Some(&state), None, 0));
    let status = serde_json::to_value(node.status.unwrap()).unwrap();
    assert_eq!(
        status["runtimeHandlers"],
        json!([
            {"name": "", "features": {"recursiveReadOnlyMounts": false, "userNamespaces": true}},
            {"name": "runc", "features": {"recursiveReadOnlyMounts": true, "userNamespaces": true}},
        ])
    );
    assert_eq!(status["features"], json!({"supplementalGroupsPolicy": true}));
    assert_eq!(status["volumesInUse"], json!(["kubernetes.io/csi/d^v"]));
    for (says, shown) in [(Some(false), json!({"supplementalGroupsPolicy": false})), (None, json!(null))] {
        state.supplemental_groups_policy = says;
        let (node, _) = next(&old, &fixed(), &now(Some(&state), None, 0));
        assert_eq!(serde_json::to_value(node.status.unwrap()).unwrap()["features"], shown);
    }
    assert_eq!(status["nodeInfo"]["swap"], json!({"capacity": 4096}));
}

#[test]
fn the_providers_annotation_comes_and_goes_and_addresses_may_stay() {
    let given = Decision { addresses: None, provided: Some("10.0.0.1".into()) };
    let (node, _) = next(&registered(), &fixed(), &now(Some(&state()), Some(&given), 0));
    assert_eq!(node.metadata.annotations.as_ref().unwrap()[PROVIDED_NODE_IP], "10.0.0.1");
    assert_eq!(node.status.as_ref().unwrap().addresses.as_ref().unwrap().len(), 2);
    let (node, _) = next(&node, &fixed(), &now(Some(&state()), Some(&decision()), 0));
    assert!(!node.metadata.annotations.unwrap().contains_key(PROVIDED_NODE_IP));
}
