//! Memory QoS (gate `MemoryQoS`, cgroup v2 alone): where memory is throttled, and what of it is kept for whom (KEP 2570,
//! upstream `pkg/kubelet/kuberuntime/kuberuntime_container_linux.go`, `pkg/kubelet/cm/qos_container_manager_linux.go`).

use std::collections::BTreeMap;

use crate::v1::Pod;
use bulkhead_types::{QosClass, Quantity};

use super::resources::{Amounts, pod_requests, qos_class};
use crate::node_facts::MemoryQos;

/// What is kept at the levels of the pods' tree, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Levels {
    /// `memory.min` of kubepods: it has to cover what is kept below it.
    pub kubepods_min: u64,
    /// `memory.low` of burstable.
    pub burstable_low: u64,
}

impl Levels {
    /// What of [`Levels::kubepods_min`] is for guaranteed pods.
    pub fn guaranteed(&self) -> u64 {
        self.kubepods_min.saturating_sub(self.burstable_low)
    }
}

/// Memory that all pods of a class ask for, bytes (upstream getQoSMemoryRequests).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassRequests {
    pub guaranteed: u64,
    pub burstable: u64,
}

impl ClassRequests {
    pub fn of<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> Self {
        let mut sums = ClassRequests::default();
        for pod in pods {
            let sum = match qos_class(pod) {
                QosClass::BestEffort => continue,
                QosClass::Burstable => &mut sums.burstable,
                QosClass::Guaranteed => &mut sums.guaranteed,
            };
            *sum = sum.saturating_add(u64::try_from(bytes(&pod_requests(pod, true))).unwrap_or(0));
        }
        sums
    }
}

/// `qosReserved` (gate `QOSReserved`): how much of what a class asks for no lower class may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QosReserved {
    /// Percent of the requests, 0 to 100.
    pub memory_percent: u64,
    /// Bytes that all pods may have together.
    pub allocatable: u64,
}

impl QosReserved {
    /// Limits of burstable and of besteffort, bytes (upstream setMemoryReserve). None: there is nothing to be had, which
    /// the kernel would not take for a limit.
    pub fn limits(&self, requests: ClassRequests) -> (Option<i64>, Option<i64>) {
        let kept = |bytes: u64| u128::from(bytes) * u128::from(self.memory_percent) / 100;
        let burstable = u128::from(self.allocatable).saturating_sub(kept(requests.guaranteed));
        let best_effort = burstable.saturating_sub(kept(requests.burstable));
        let limit = |bytes: u128| i64::try_from(bytes).ok().filter(|bytes| *bytes > 0 && self.allocatable > 0);
        (limit(burstable), limit(best_effort))
    }
}

fn bytes(amounts: &Amounts) -> i64 {
    amounts.get("memory").copied().unwrap_or(Quantity::ZERO).value()
}

impl MemoryQos {
    /// A container's `unified` values.
    pub fn of_container(&self, class: QosClass, requests: &Amounts, limits: &Amounts) -> BTreeMap<String, String> {
        let (request, limit) = (bytes(requests), bytes(limits));
        let mut unified = BTreeMap::new();
        let mut set = |name: &str, value: i64| unified.insert(name.to_owned(), value.to_string());
        if request != 0 && self.tiered {
            set(if class == QosClass::Guaranteed { "memory.min" } else { "memory.low" }, request);
        } else {
            set("memory.min", 0);
            set("memory.low", 0);
        }
        if request != limit {
            let high = self.high(request, if limit != 0 { limit } else { self.allocatable });
            if high > request {
                set("memory.high", high);
            }
        }
        unified
    }

    /// Between request and `most`, in whole pages. Floating-point as upstream's, so that both find the same page.
    fn high(&self, request: i64, most: i64) -> i64 {
        if most <= 0 {
            return 0;
        }
        let (request, page) = (request as f64, self.page_size.max(1) as f64);
        let high = request + (most as f64 - request) * self.throttling_factor;
        ((high / page).floor() as i64).saturating_mul(self.page_size.max(1))
    }

    /// `memory.min` and `memory.low` of a pod's own cgroup.
    pub fn of_pod(&self, class: QosClass, requests: &Amounts) -> (Option<u64>, Option<u64>) {
        let request = u64::try_from(bytes(requests)).ok().filter(|bytes| *bytes > 0 && self.tiered);
        if class == QosClass::Guaranteed { (request, None) } else { (None, request) }
    }

    /// What the levels keep for these pods.
    pub fn of_levels<'a>(&self, pods: impl IntoIterator<Item = &'a Pod>) -> Levels {
        if !self.tiered {
            return Levels::default();
        }
        let ClassRequests { guaranteed, burstable } = ClassRequests::of(pods);
        Levels { kubepods_min: guaranteed.saturating_add(burstable), burstable_low: burstable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const MIB: i64 = 1 << 20;

    fn qos(tiered: bool) -> MemoryQos {
        MemoryQos { throttling_factor: 0.9, tiered, allocatable: 1000 * MIB, page_size: 4096 }
    }

    fn memory(mib: i64) -> Amounts {
        if mib == 0 { Amounts::new() } else { [("memory".to_owned(), Quantity::from_i64(mib * MIB))].into() }
    }

    #[test]
    fn what_lower_classes_may_not_use() {
        let limits = |percent, allocatable: u64, guaranteed, burstable| {
            QosReserved { memory_percent: percent, allocatable }.limits(ClassRequests { guaranteed, burstable })
        };
        assert_eq!(limits(50, 1000, 0, 0), (Some(1000), Some(1000)));
        assert_eq!(limits(50, 1000, 200, 100), (Some(900), Some(850)));
        assert_eq!(limits(100, 1000, 600, 400), (Some(400), None));
        assert_eq!(limits(100, 1000, 1200, 400), (None, None));
        assert_eq!(limits(0, 1000, 600, 400), (Some(1000), Some(1000)));
        assert_eq!(limits(50, 0, 0, 0), (None, None));
        assert_eq!(limits(100, u64::MAX, u64::MAX, 1), (None, None));
    }

    #[test]
    fn containers() {
        let show = |tiered, class, request, limit| -> String {
            let unified = qos(tiered).of_container(class, &memory(request), &memory(limit));
            unified.iter().map(|(k, v)| format!("{}={v} ", k.trim_start_matches("memory."))).collect()
        };
        use QosClass::{BestEffort, Burstable, Guaranteed};
        let of = |factored: i64| factored / 4096 * 4096;
        // request + 0.9 of the way to the limit, or to what the node has.
        let (to_limit, to_node, from_nothing) = (of(91 * MIB), of(901 * MIB), of(900 * MIB));
        for (tiered, class, request, limit, expected) in [
            (false, Burstable, 10, 100, format!("high={to_limit} low=0 min=0 ")),
            (true, Burstable, 10, 100, format!("high={to_limit} low={} ", 10 * MIB)),
            (true, Burstable, 10, 0, format!("high={to_node} low={} ", 10 * MIB)),
            (true, Guaranteed, 10, 10, format!("min={} ", 10 * MIB)),
            (true, BestEffort, 0, 0, "low=0 min=0 ".to_owned()),
            (false, Burstable, 0, 1000, format!("high={from_nothing} low=0 min=0 ")),
        ] {
            assert_eq!(show(tiered, class, request, limit), expected, "{tiered} {class} {request} {limit}");
        }
    }

    #[test]
    fn levels_cover_their_pods() {
        let pod = |resources: serde_json::Value| -> Pod {
            serde_json::from_value(json!({"spec": {"containers": [{"name": "a", "resources": resources}]}})).unwrap()
        };
        let pods = [
            pod(json!({"limits": {"cpu": "1", "memory": "8Mi"}, "requests": {"cpu": "1", "memory": "8Mi"}})),
            pod(json!({"requests": {"memory": "4Mi"}})),
            pod(json!({})),
        ];
        let levels = qos(true).of_levels(&pods);
        assert_eq!(levels, Levels { kubepods_min: 12 << 20, burstable_low: 4 << 20 });
        assert_eq!((levels.guaranteed(), Levels::default().guaranteed()), (8 << 20, 0));
        assert_eq!(qos(false).of_levels(&pods), Levels::default());
        let of = |tiered, class| qos(tiered).of_pod(class, &memory(4));
        assert_eq!(of(true, QosClass::Guaranteed), (Some(4 << 20), None));
        assert_eq!(of(true, QosClass::Burstable), (None, Some(4 << 20)));
        assert_eq!(of(false, QosClass::Burstable), (None, None));
    }

    proptest! {
        #[test]
        fn throttling_begins_between_request_and_limit(request in 0i64..1 << 50, more in 1i64..1 << 50, factor in 0.01f64..=1.0) {
            let settings = MemoryQos { throttling_factor: factor, ..qos(true) };
            let high = settings.high(request, request + more);
            prop_assert!(high % 4096 == 0 && high > request - 4096 && high <= request + more);
        }
    }
}
