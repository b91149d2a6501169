//! The Node object beside its status: what a new one has, and what is put right on one that stands already. Pure.
//!
//! Rules of upstream's `pkg/kubelet/kubelet_node_status.go`: initialNode, updateDefaultLabels, the reconcile functions.

use std::collections::BTreeMap;

use bulkhead_config::NodeConfig;
use bulkhead_types::Quantity;
use bulkhead_types::resource_name::{is_extended, is_huge_page};
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Annotation: the attach/detach controller attaches this node's volumes.
pub const CONTROLLER_ATTACHES: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
const HOSTNAME: &str = "kubernetes.io/hostname";
const OS: &str = "kubernetes.io/os";
const ARCH: &str = "kubernetes.io/arch";
const BETA_OS: &str = "beta.kubernetes.io/os";
const BETA_ARCH: &str = "beta.kubernetes.io/arch";

/// Labels that are put right on a Node that stands already, when a new one would have them.
const DEFAULT_LABELS: [&str; 12] = [
    HOSTNAME,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    OS,
    ARCH,
    "node.kubernetes.io/windows-build",
    BETA_OS,
    BETA_ARCH,
];

/// A new Node, without its status.
pub fn initial(config: &NodeConfig, architecture: &str) -> Node {
    let name = config.node_name.as_str();
    let labels = config.initial_labels(architecture);
    let mut taints: Vec<Taint> = config
        .kubelet
        .register_with_taints
        .iter()
        .map(|taint| Taint {
            key: taint.key.clone(),
            value: (!taint.value.is_empty()).then(|| taint.value.clone()),
            effect: taint.effect.clone(),
            // Validation refuses a configured time.
            time_added: None,
        })
        .collect();
    if is_external(config) {
        taints.push(Taint {
            key: UNINITIALIZED.to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    let annotations = config
        .kubelet
        .enable_controller_attach_detach()
        .then(|| [(CONTROLLER_ATTACHES.to_owned(), "true".to_owned())].into());
    let provider_id = &config.kubelet.provider_id;
    Node {
        metadata: ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), annotations, ..Default::default() },
        spec: Some(NodeSpec {
            taints: (!taints.is_empty()).then_some(taints),
            provider_id: (!provider_id.is_empty()).then(|| provider_id.clone()),
            ..NodeSpec::default()
        }),
        status: None,
    }
}

/// Whether a cloud controller manages the node.
pub fn is_external(config: &NodeConfig) -> bool {
    config.flags.cloud_provider == "external"
}

/// The Node that stands on the API server, as it has to be by what a new one would be.
pub fn reconciled(existing: &Node, initial: &Node) -> Node {
    let mut node = existing.clone();
    let wanted = initial.metadata.annotations.as_ref().and_then(|map| map.get(CONTROLLER_ATTACHES));
    set_or_remove(&mut node.metadata.annotations, CONTROLLER_ATTACHES, wanted.map(String::as_str));
    for key in DEFAULT_LABELS {
        if let Some(value) = initial.metadata.labels.as_ref().and_then(|map| map.get(key)) {
            set_or_remove(&mut node.metadata.labels, key, Some(value.as_str()).filter(|value| !value.is_empty()));
        }
    }
    let new = initial.status.clone().unwrap_or_default();
    let moved = is_of_another_machine(existing, initial);
    let status = node.status.get_or_insert_with(NodeStatus::default);
    let capacity = status.capacity.get_or_insert_with(|| new.capacity.clone().unwrap_or_default());
    let allocatable = status.allocatable.get_or_insert_with(|| new.allocatable.clone().unwrap_or_default());
    // Of device plugins the node has what kubelet-syncd knows, which is nothing before they are back. What others offer
    // (an administrator, a controller) stays, unless they offered it on another machine.
    let of = |list: &Option<BTreeMap<String, ApiQuantity>>, name: &str| list.as_ref()?.get(name).cloned();
    for (name, amount) in capacity.iter_mut().filter(|(name, _)| is_extended(name)) {
        let (all, usable) = match of(&new.capacity, name) {
            Some(all) => (all, of(&new.allocatable, name)),
            None if moved => (ApiQuantity("0".to_owned()), None),
            None => continue,
        };
        allocatable.insert(name.clone(), usable.unwrap_or_else(|| all.clone()));
        *amount = all;
    }
    let pages = |list: &Option<BTreeMap<String, ApiQuantity>>| -> BTreeMap<String, ApiQuantity> {
        let list = list.clone().unwrap_or_default();
        list.into_iter().filter(|(name, _)| is_huge_page(name)).collect()
    };
    let supported = pages(&new.capacity);
    // An initial object without capacity knows nothing: it takes nothing away.
    if new.capacity.is_some() {
        for list in [&mut *capacity, &mut *allocatable] {
            list.retain(|name, _| !is_huge_page(name) || supported.contains_key(name));
        }
    }
    for (list, wanted) in [(capacity, supported), (allocatable, pages(&new.allocatable))] {
        for (name, amount) in wanted {
            set_amount(list, &name, &amount);
        }
    }
    node
}

/// Whether the Node was filled in on another machine. The machine's own id says so no more than together with that of its firmware:
/// images that make `/etc/machine-id` anew at each boot are one machine all the same. A `systemUUID` that stands for the machine id
/// (`Facts::read`, where the firmware has none) says nothing of its own. Upstream zeroes what the Node offers where its folder of device
/// plugins is empty (`ShouldResetExtendedResourceCapacity`), which kubelet-statusd cannot see.
fn is_of_another_machine(existing: &Node, initial: &Node) -> bool {
    let ids = |node: &Node| {
        let info = node.status.as_ref()?.node_info.as_ref()?;
        let has_both = !info.machine_id.is_empty() && !info.system_uuid.is_empty();
        (has_both && info.system_uuid != info.machine_id).then(|| (info.machine_id.clone(), info.system_uuid.clone()))
    };
    ids(existing).zip(ids(initial)).is_some_and(|(old, new)| old.0 != new.0 && old.1 != new.1)
}

/// Sets an amount unless the same one stands there in another notation.
pub fn set_amount(list: &mut BTreeMap<String, ApiQuantity>, name: &str, amount: &ApiQuantity) {
    let same = |old: &ApiQuantity| match (Quantity::parse(&old.0), Quantity::parse(&amount.0)) {
        (Ok(old), Ok(new)) => old == new,
        _ => old == amount,
    };
    if !list.get(name).is_some_and(same) {
        list.insert(name.to_owned(), amount.clone());
    }
}

/// The two labels that are forced with every status.
pub fn force_labels(node: &mut Node, architecture: &str) {
    set_or_remove(&mut node.metadata.labels, OS, Some("linux"));
    set_or_remove(&mut node.metadata.labels, ARCH, Some(architecture));
}

/// Whether the forced labels differ.
pub fn forced_labels_differ(old: &Node, new: &Node) -> bool {
    let label = |node: &Node, key: &str| node.metadata.labels.as_ref().and_then(|map| map.get(key)).cloned();
    [OS, ARCH].into_iter().any(|key| label(old, key) != label(new, key))
}

/// Sets a key, or takes it out; an absent map stays absent where nothing is to be set.
pub fn set_or_remove(map: &mut Option<BTreeMap<String, String>>, key: &str, value: Option<&str>) {
    match (map.as_mut(), value) {
        (None, None) => {}
        (Some(map), None) => {
            map.remove(key);
        }
        (_, Some(value)) => {
            map.get_or_insert_default().insert(key.to_owned(), value.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config() -> NodeConfig {
        NodeConfig::for_tests(std::path::Path::new("/t"))
    }

    fn node(value: serde_json::Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_plain_new_node() {
        assert_eq!(
            serde_json::to_value(initial(&config(), "amd64")).unwrap(),
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
            })
        );
    }

    #[test]
    fn taints_labels_provider() {
        let mut config = config();
        config.flags.cloud_provider = "external".into();
        config.flags.node_labels = [("kubernetes.io/hostname", "other"), ("a", "b")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        config.kubelet.register_with_taints = serde_json::from_value(json!([
            {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
            {"key": "k", "value": "v", "effect": "NoExecute"},
        ]))
        .unwrap();
        config.kubelet.provider_id = "cloud://1".into();
        config.kubelet.enable_controller_attach_detach = Some(false);
        let node = initial(&config, "arm64");
        assert_eq!(
            serde_json::to_value(node.spec).unwrap(),
            json!({
                "providerID": "cloud://1",
                "taints": [
                    {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
                    {"key": "k", "value": "v", "effect": "NoExecute"},
                    {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"},
                ],
            })
        );
        assert_eq!(node.metadata.annotations, None);
        let labels = node.metadata.labels.unwrap();
        assert_eq!((labels["kubernetes.io/hostname"].as_str(), labels["a"].as_str()), ("other", "b"));
    }

    #[test]
    fn an_existing_node_is_put_right_and_kept_otherwise() {
        let new = node(json!({
            "metadata": {
                "labels": {"kubernetes.io/os": "linux", "topology.kubernetes.io/zone": "", "kubernetes.io/hostname": "n", "mine": "new"},
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            },
            "spec": {"taints": [{"key": "t", "effect": "NoSchedule"}]},
            "status": {"capacity": {"cpu": "4", "hugepages-2Mi": "1Gi"}, "allocatable": {"cpu": "3", "hugepages-2Mi": "1Gi"}},
        }));
        let old = node(json!({
            "metadata": {
                "labels": {"kubernetes.io/os": "plan9", "topology.kubernetes.io/zone": "z", "mine": "old", "other": "x"},
                "annotations": {"a": "b"},
            },
            "spec": {"taints": [{"key": "kept", "effect": "NoExecute"}], "unschedulable": true},
            "status": {
                "capacity": {"cpu": "2", "hugepages-1Gi": "1Gi", "vendor.com/gpu": "2"},
                "allocatable": {"cpu": "2", "hugepages-1Gi": "1Gi", "vendor.com/gpu": "2"},
            },
        }));
        let got = reconciled(&old, &new);
        assert_eq!(
            serde_json::to_value(&got).unwrap(),
            json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "labels": {"kubernetes.io/os": "linux", "kubernetes.io/hostname": "n", "mine": "old", "other": "x"},
                    "annotations": {"a": "b", "volumes.kubernetes.io/controller-managed-attach-detach": "true"},
                },
                "spec": {"taints": [{"key": "kept", "effect": "NoExecute"}], "unschedulable": true},
                "status": {
                    "capacity": {"cpu": "2", "hugepages-2Mi": "1Gi", "vendor.com/gpu": "2"},
                    "allocatable": {"cpu": "2", "hugepages-2Mi": "1Gi", "vendor.com/gpu": "2"},
                },
            })
        );
        assert_eq!(reconciled(&got, &new), got);
    }

    #[test]
    fn extended_resources_are_what_is_known_and_else_stay_with_the_machine() {
        // (machine and firmware of the Node that stands, what is known now: of all and usable; what the Node has then)
        let cases = [
            (("m", "u"), None, ("2", "2")),
            (("", ""), None, ("2", "2")),
            (("other", "another"), None, ("0", "0")),
            // A machine id made anew, a firmware's that was not there yet, or that stands for the machine's.
            (("other", "u"), None, ("2", "2")),
            (("m", "another"), None, ("2", "2")),
            (("other", ""), None, ("2", "2")),
            (("other", "other"), None, ("2", "2")),
            (("m", "u"), Some(("0", "0")), ("0", "0")),
            (("m", "u"), Some(("4", "3")), ("4", "3")),
            (("other", "another"), Some(("4", "3")), ("4", "3")),
        ];
        for (machine, known, expected) in cases {
            let of = |(machine, firmware): (&str, &str), amounts: Option<(&str, &str)>| {
                let list = |amount: Option<&str>| match amount {
                    Some(amount) => json!({"cpu": "2", "vendor.com/gpu": amount}),
                    None => json!({"cpu": "2"}),
                };
                let mut node = node(json!({"metadata": {}, "status": {
                    "capacity": list(amounts.map(|(all, _)| all)),
                    "allocatable": list(amounts.map(|(_, usable)| usable)),
                }}));
                let info = k8s_openapi::api::core::v1::NodeSystemInfo {
                    machine_id: machine.to_owned(),
                    system_uuid: firmware.to_owned(),
                    ..Default::default()
                };
                node.status.as_mut().unwrap().node_info = Some(info);
                node
            };
            let got = reconciled(&of(machine, Some(("2", "2"))), &of(("m", "u"), known)).status.unwrap();
            let (all, usable) = (got.capacity.unwrap(), got.allocatable.unwrap());
            let got = (all["vendor.com/gpu"].0.as_str(), usable["vendor.com/gpu"].0.as_str());
            assert_eq!(got, expected, "{machine:?}: {known:?}");
            assert_eq!((all["cpu"].0.as_str(), usable["cpu"].0.as_str()), ("2", "2"));
        }
    }

    #[test]
    fn attaching_by_the_kubelet_takes_the_annotation_away() {
        let old = node(json!({"metadata": {"annotations": {CONTROLLER_ATTACHES: "true", "a": "b"}}}));
        let got = reconciled(&old, &node(json!({"metadata": {}})));
        assert_eq!(got.metadata.annotations.unwrap().into_keys().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn the_same_amount_in_another_notation_is_no_change() {
        let amount = |text: &str| ApiQuantity(text.to_owned());
        let mut list = BTreeMap::from([("memory".to_owned(), amount("1Mi"))]);
        set_amount(&mut list, "memory", &amount("1048576"));
        assert_eq!(list["memory"].0, "1Mi");
        set_amount(&mut list, "memory", &amount("1048577"));
        assert_eq!(list["memory"].0, "1048577");
        set_amount(&mut list, "cpu", &amount("2"));
        assert_eq!(list["cpu"].0, "2");
    }
}
