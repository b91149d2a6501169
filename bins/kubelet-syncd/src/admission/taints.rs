//! Taints with the effect NoExecute that the pod does not tolerate; static pods tolerate all of them.

use k8s_openapi::api::core::v1::{Taint, Toleration};
use kubelet_model::v1::Pod;

use super::Obstacle;
use super::node_info::NodeInfo;
use kubelet_model::pod::spec::is_static;

pub(super) fn check(pod: &Pod, node: &NodeInfo, comparing: bool) -> Option<Obstacle> {
    if is_static(pod) {
        return None;
    }
    let hurts = |taint: &&Taint| taint.effect == "NoExecute" && !tolerates(pod, taint, comparing);
    node.taints.iter().find(hurts)?;
    let message = "node(s) had taints that the pod didn't tolerate";
    Some(Obstacle::Predicate { name: "TaintToleration", message })
}

/// `comparing`: the operators Lt and Gt count (gate TaintTolerationComparisonOperators).
pub fn tolerates(pod: &Pod, taint: &Taint, comparing: bool) -> bool {
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or(&[]);
    tolerations.iter().any(|toleration| covers(toleration, taint, comparing))
}

fn covers(toleration: &Toleration, taint: &Taint, comparing: bool) -> bool {
    let own = |text: &Option<String>| text.as_deref().unwrap_or("").to_owned();
    let (effect, key, value) = (own(&toleration.effect), own(&toleration.key), own(&toleration.value));
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    let tainted = taint.value.as_deref().unwrap_or("");
    match toleration.operator.as_deref().unwrap_or("") {
        "" | "Equal" => value == tainted,
        "Exists" => true,
        operator @ ("Lt" | "Gt") if comparing => {
            let numbers = value.parse::<i64>().ok().zip(tainted.parse::<i64>().ok());
            numbers.is_some_and(|(own, taint)| if operator == "Lt" { taint < own } else { taint > own })
        }
        _ => false,
    }
}
