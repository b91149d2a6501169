//! What admission looks at of the node: labels and taints as the API server has them, amounts as this process knows them.

use std::collections::BTreeMap;

use bulkhead_types::{Quantity, go_arch};
use k8s_openapi::api::core::v1::{Node, Taint};

use kubelet_model::pod::resources::{Amounts, amounts};

/// Label with the operating system.
pub const OS_LABEL: &str = "kubernetes.io/os";
/// The only one.
pub const OS: &str = "linux";

/// The node.
#[derive(Debug, Clone, Default)]
pub struct NodeInfo {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
    /// What pods may have in sum. What is not in it is not known and does not refuse anybody, but for huge pages.
    pub allocatable: Amounts,
    /// What pods that were granted less than they had, or other amounts, still have beyond what they were granted: it is used as well.
    pub held: Amounts,
    /// None: not known yet, then the container's own request is refused by the runtime side.
    pub supplemental_groups_policy: Option<bool>,
}

impl NodeInfo {
    /// `name`: with `--hostname-override`. `node`: as last seen; None before it is registered, then what it will have is
    /// made up from the command line. `own`: amounts that this process knows; they win over what the object says, which
    /// may be from before a restart.
    pub fn of(name: &str, flag_labels: &BTreeMap<String, String>, node: Option<&Node>, own: Amounts) -> Self {
        let mut labels = node.and_then(|n| n.metadata.labels.clone()).unwrap_or_else(|| flag_labels.clone());
        // Whatever the object says, this is what it is (upstream rejectPodAdmissionBasedOnOSSelector).
        labels.insert(OS_LABEL.to_owned(), OS.to_owned());
        for (key, value) in [("kubernetes.io/arch", go_arch()), ("kubernetes.io/hostname", name)] {
            labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
        }
        let status = node.and_then(|n| n.status.as_ref());
        let mut allocatable = amounts(status.and_then(|s| s.allocatable.as_ref()));
        allocatable.extend(own);
        NodeInfo {
            name: name.to_owned(),
            labels,
            taints: node.and_then(|n| n.spec.as_ref()?.taints.clone()).unwrap_or_default(),
            allocatable,
            held: Amounts::new(),
            supplemental_groups_policy: status.and_then(|s| s.features.as_ref()?.supplemental_groups_policy),
        }
    }

    /// In the resource's own counting unit: thousandths for cpu, whole units else. None: no limit is known.
    pub fn capacity(&self, resource: &str) -> Option<i64> {
        self.allocatable.get(resource).map(|q| count(resource, *q))
    }

    /// What is used beyond what pods were granted, likewise.
    pub fn held(&self, resource: &str) -> i64 {
        self.held.get(resource).map_or(0, |q| count(resource, *q))
    }
}

/// An amount as upstream counts it: thousandths of a core, else whole units, rounded up.
pub fn count(resource: &str, amount: Quantity) -> i64 {
    if resource == "cpu" { amount.milli_value() } else { amount.value() }
}
