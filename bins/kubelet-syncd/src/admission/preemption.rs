//! Which pods a critical one may push off the node, and which of them it takes: as few and as unimportant as will do
//! (upstream `pkg/kubelet/preemption/preemption.go`).

use std::fmt;
use std::sync::Arc;

use bulkhead_types::{PodUid, QosClass};
use kubelet_model::v1::Pod;

use super::Shortage;
use super::resources::request;
use crate::desired::uid_of;
use kubelet_model::pod::resources::qos_class;
use kubelet_model::pod::spec::is_critical;

/// Reason of the event and of the status.
pub const REASON: &str = "Preempting";
/// Message of the event and of the status.
pub const MESSAGE: &str = "Preempted in order to admit critical pod";
/// Message of the condition DisruptionTarget.
pub const DISRUPTION: &str = "Pod was preempted by Kubelet to accommodate a critical pod.";

/// No set of pods frees what is needed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no set of running pods found to reclaim resources: {0}")]
pub struct NoVictims(Needs);

/// What is still to be freed, by resource. Only positive amounts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Needs(Vec<(String, i64)>);

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (resource, amount) in &self.0 {
            write!(f, "(res: {resource}, q: {amount}), ")?;
        }
        f.write_str("]")
    }
}

impl Needs {
    fn without<'a>(&self, pods: impl Iterator<Item = &'a Arc<Pod>> + Clone) -> Needs {
        let left = self.0.iter().map(|(resource, amount)| {
            let freed = pods.clone().map(|p| request(p, resource)).fold(0_i64, i64::saturating_add);
            (resource.clone(), amount.saturating_sub(freed))
        });
        Needs(left.filter(|(_, amount)| *amount > 0).collect())
    }

    /// How much of the needs would be left open: 0 is none.
    fn distance(&self, pod: &Pod) -> f64 {
        let open = |(resource, amount): &(String, i64)| {
            let left = amount.saturating_sub(request(pod, resource));
            if left > 0 { (left as f64 / *amount as f64).powi(2) } else { 0.0 }
        };
        self.0.iter().map(open).sum()
    }
}

/// May `by` push `pod` off the node?
fn is_preemptable(by: &Pod, pod: &Pod) -> bool {
    let priority = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.priority);
    (is_critical(by) && !is_critical(pod)) || matches!((priority(by), priority(pod)), (Some(a), Some(b)) if a > b)
}

/// The pods that go: best-effort ones first, guaranteed ones last, by the order of upstream.
///
/// # Errors
/// All preemptable pods together do not free enough.
pub(super) fn victims(pod: &Pod, others: &[Arc<Pod>], short: &[Shortage]) -> Result<Vec<PodUid>, NoVictims> {
    let of_class = |class: QosClass| -> Vec<Arc<Pod>> {
        others.iter().filter(|other| is_preemptable(pod, other) && qos_class(other) == class).cloned().collect()
    };
    let [best_effort, burstable, guaranteed] =
        [QosClass::BestEffort, QosClass::Burstable, QosClass::Guaranteed].map(of_class);
    let needs = Needs(short.iter().map(|s| (s.resource.clone(), s.missing())).filter(|(_, n)| *n > 0).collect());
    let open = needs.without(best_effort.iter().chain(&burstable).chain(&guaranteed));
    if !open.0.is_empty() {
        return Err(NoVictims(open));
    }
    let from_guaranteed = nearest(&guaranteed, needs.without(best_effort.iter().chain(&burstable)))?;
    let from_burstable = nearest(&burstable, needs.without(best_effort.iter().chain(&from_guaranteed)))?;
    let from_best_effort = nearest(&best_effort, needs.without(from_burstable.iter().chain(&from_guaranteed)))?;
    Ok(from_best_effort.iter().chain(&from_burstable).chain(&from_guaranteed).filter_map(|p| uid_of(p)).collect())
}

/// Takes, one after another, the pod that comes nearest to what is still needed; of equals the one that asks for less.
fn nearest(pods: &[Arc<Pod>], mut needs: Needs) -> Result<Vec<Arc<Pod>>, NoVictims> {
    let (mut pods, mut taken) = (pods.to_vec(), Vec::new());
    let size = |pod: &Pod| (request(pod, "memory"), request(pod, "cpu"));
    while !needs.0.is_empty() {
        let best = (0..pods.len()).reduce(|best, next| {
            let (held, found) = (needs.distance(&pods[best]), needs.distance(&pods[next]));
            let better = found < held || (found == held && size(&pods[next]) <= size(&pods[best]));
            if better { next } else { best }
        });
        let Some(best) = best else { return Err(NoVictims(needs)) };
        let pod = pods.swap_remove(best);
        needs = needs.without(std::iter::once(&pod));
        taken.push(pod);
    }
    Ok(taken)
}
