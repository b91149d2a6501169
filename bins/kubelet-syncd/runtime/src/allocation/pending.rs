//! Whose resize is tried first (upstream `pkg/kubelet/allocation/allocation_manager.go` sortPendingResizes): one that
//! asks for no more than before, then by priority, Guaranteed before others, then who has waited longest. Pure.

use std::cmp::Ordering;

use bulkhead_types::{PodUid, QosClass};
use jiff::Timestamp;
use kubelet_model::v1::Pod;

use kubelet_model::pod::resources::{pod_requests, qos_class};

/// One resize that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    pub uid: PodUid,
    increases: bool,
    priority: i32,
    guaranteed: bool,
    /// None: it was not tried yet.
    since: Option<Timestamp>,
}

impl Candidate {
    /// `wanted`: the pod as asked for; `allocated`: the same with what it has.
    pub fn new(uid: PodUid, wanted: &Pod, allocated: &Pod, since: Option<Timestamp>) -> Self {
        let (new, old) = (pod_requests(wanted, true), pod_requests(allocated, true));
        let more = |name: &str| new.get(name).copied().unwrap_or_default() > old.get(name).copied().unwrap_or_default();
        Candidate {
            uid,
            increases: more("cpu") || more("memory"),
            priority: wanted.spec.as_ref().and_then(|s| s.priority).unwrap_or(0),
            guaranteed: qos_class(wanted) == QosClass::Guaranteed,
            since,
        }
    }

    fn order(&self, other: &Self) -> Ordering {
        let waited = match (self.since, other.since) {
            (Some(one), Some(two)) => one.cmp(&two),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => Ordering::Equal,
        };
        (self.increases.cmp(&other.increases))
            .then(other.priority.cmp(&self.priority))
            .then(other.guaranteed.cmp(&self.guaranteed))
            .then(waited)
    }
}

/// In the order in which they are tried; of equals who came first.
pub fn in_order(mut waiting: Vec<Candidate>) -> Vec<PodUid> {
    waiting.sort_by(Candidate::order);
    waiting.into_iter().map(|c| c.uid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn candidate(uid: &str, increases: bool, priority: i32, guaranteed: bool, since: Option<i64>) -> Candidate {
        let since = since.map(|s| Timestamp::from_second(s).unwrap());
        Candidate { uid: PodUid::parse(uid).unwrap(), increases, priority, guaranteed, since }
    }

    #[test]
    fn upstreams_order() {
        let waiting = vec![
            candidate("new", true, 0, false, None),
            candidate("late", true, 0, false, Some(9)),
            candidate("early", true, 0, false, Some(5)),
            candidate("guaranteed", true, 0, true, Some(9)),
            candidate("important", true, 10, false, None),
            candidate("smaller", false, -5, false, None),
        ];
        let order: Vec<String> = in_order(waiting).iter().map(ToString::to_string).collect();
        assert_eq!(order, ["smaller", "important", "guaranteed", "early", "late", "new"]);
    }

    #[test]
    fn a_smaller_request_in_one_resource_and_a_larger_in_another_is_more() {
        let pod = |cpu: &str, memory: &str| -> Pod {
            let resources = serde_json::json!({"requests": {"cpu": cpu, "memory": memory}});
            serde_json::from_value(serde_json::json!({
                "metadata": {}, "spec": {"containers": [{"name": "c", "resources": resources}]},
            }))
            .unwrap()
        };
        let uid = || PodUid::parse("u").unwrap();
        let of = |new: &Pod| Candidate::new(uid(), new, &pod("1", "1Gi"), None).increases;
        assert!(!of(&pod("1000m", "1Gi")) && !of(&pod("500m", "512Mi")));
        assert!(of(&pod("500m", "2Gi")) && of(&pod("1001m", "1")));
    }

    proptest! {
        #[test]
        fn the_order_is_one(list in prop::collection::vec((any::<bool>(), -2..3i32, any::<bool>(), prop::option::of(0..4i64)), 0..8)) {
            let all: Vec<Candidate> = list.iter().enumerate()
                .map(|(i, (a, b, c, d))| candidate(&format!("u{i}"), *a, *b, *c, *d)).collect();
            let ordered = in_order(all.clone());
            let at = |uid: &PodUid| all.iter().find(|c| c.uid == *uid).unwrap();
            prop_assert_eq!(ordered.len(), all.len());
            for pair in ordered.windows(2) {
                prop_assert!(at(&pair[0]).order(at(&pair[1])) != Ordering::Greater);
            }
        }
    }
}
