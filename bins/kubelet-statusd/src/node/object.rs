//! The Node object beside its status: what a new one has, and what is put right on one that stands already. Pure.
//!
//! Rules of upstream's `pkg/kubelet/kubelet_node_status.go`: initialNode, updateDefaultLabels, the reconcile functions.

use std::collections::BTreeMap;

use bulkhead_config::NodeConfig;
use bulkhead_types::Quantity;
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
    let mut labels: BTreeMap<String, String> =
        [(HOSTNAME, name), (OS, "linux"), (ARCH, architecture), (BETA_OS, "linux"), (BETA_ARCH, architecture)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
    labels.extend(config.flags.node_labels.clone());
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

/// The Node that stands on the API server, as it has to be by what a new one would be. `first`: this start of the kubelet
/// has not put it right before.
pub fn reconciled(existing: &Node, initial: &Node, first: bool) -> Node {
    let mut node = existing.clone();
    let wanted = initial.metadata.annotations.as_ref().and_then(|map| map.get(CONTROLLER_ATTACHES));
    set_or_remove(&mut node.metadata.annotations, CONTROLLER_ATTACHES, wanted.map(String::as_str));
    for key in DEFAULT_LABELS {
        if let Some(value) = initial.metadata.labels.as_ref().and_then(|map| map.get(key)) {
            set_or_remove(&mut node.metadata.labels, key, Some(value.as_str()).filter(|value| !value.is_empty()));
        }
    }
    let new = initial.status.clone().unwrap_or_default();
    let status = node.status.get_or_insert_with(NodeStatus::default);
    let capacity = status.capacity.get_or_insert_with(|| new.capacity.clone().unwrap_or_default());
    let allocatable = status.allocatable.get_or_insert_with(|| new.allocatable.clone().unwrap_or_default());
    // What an earlier kubelet offered of device plugins is not to be had before they are back. What an administrator
    // offers after the kubelet has started stays until it starts again, as with upstream's.
    for (name, amount) in capacity.iter_mut().filter(|(name, _)| first && is_extended(name)) {
        *amount = ApiQuantity("0".to_owned());
        allocatable.insert(name.clone(), ApiQuantity("0".to_owned()));
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

/// `hugepages-<size>`.
fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

/// A resource that the node does not measure by itself (upstream `v1helper.IsExtendedResourceName`).
pub fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
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
        let got = reconciled(&old, &new, true);
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
                    "capacity": {"cpu": "2", "hugepages-2Mi": "1Gi", "vendor.com/gpu": "0"},
                    "allocatable": {"cpu": "2", "hugepages-2Mi": "1Gi", "vendor.com/gpu": "0"},
                },
            })
        );
        assert_eq!(reconciled(&got, &new, true), got);
        let again = reconciled(&old, &new, false).status.unwrap();
        for list in [again.capacity, again.allocatable] {
            assert_eq!(list.unwrap()["vendor.com/gpu"].0, "2", "a restart of this process alone takes nothing away");
        }
    }

    #[test]
    fn attaching_by_the_kubelet_takes_the_annotation_away() {
        let old = node(json!({"metadata": {"annotations": {CONTROLLER_ATTACHES: "true", "a": "b"}}}));
        let got = reconciled(&old, &node(json!({"metadata": {}})), true);
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

    #[test]
    fn kinds_of_resources() {
        assert!(is_extended("vendor.com/gpu"));
        for name in ["cpu", "hugepages-1Gi", "kubernetes.io/x", "a.kubernetes.io/x", "requests.vendor.com/gpu"] {
            assert!(!is_extended(name), "{name}");
        }
    }
}
