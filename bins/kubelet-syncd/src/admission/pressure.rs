//! The eviction manager's word: a node that is short of something takes no more of the pods that would suffer first
//! (upstream `pkg/kubelet/eviction/eviction_manager.go` Admit).

use k8s_openapi::api::core::v1::Taint;
use kubelet_model::v1::Pod;

use super::{Rejection, taints};
use bulkhead_types::QosClass;
use kubelet_model::pod::resources::qos_class;
use kubelet_model::pod::spec::is_critical;

/// Conditions of the node that are true now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pids: bool,
}

impl Pressure {
    fn names(self) -> Vec<&'static str> {
        let all = [(self.memory, "MemoryPressure"), (self.disk, "DiskPressure"), (self.pids, "PIDPressure")];
        all.into_iter().filter_map(|(on, name)| on.then_some(name)).collect()
    }
}

pub(super) fn check(pod: &Pod, pressure: Pressure) -> Option<Rejection> {
    if pressure == Pressure::default() || is_critical(pod) {
        return None;
    }
    if pressure == (Pressure { memory: true, ..Pressure::default() }) {
        let taint = Taint {
            key: "node.kubernetes.io/memory-pressure".to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        };
        if qos_class(pod) != QosClass::BestEffort || taints::tolerates(pod, &taint, false) {
            return None;
        }
    }
    Some(Rejection::new("Evicted", format!("The node had condition: [{}]. ", pressure.names().join(" "))))
}
