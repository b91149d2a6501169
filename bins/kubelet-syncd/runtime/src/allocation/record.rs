//! What one pod has: the resources of its resizable containers and of the pod as a whole; taking them from a spec and
//! putting them into one (upstream `pkg/kubelet/allocation/allocation_manager.go` allocationFromPod,
//! updatePodFromAllocation).

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_config::Feature;
use bulkhead_types::Quantity;
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kubelet_model::v1::{Container, Pod};
use serde::{Deserialize, Serialize};

use kubelet_model::pod::resources::{Amounts, amounts, pod_level, raise, requests, requests_of};
use kubelet_model::pod::spec::{containers, init_containers, is_sidecar};

/// Which resources of a pod can be resized; the names are the feature gates'.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gates {
    /// `InPlacePodVerticalScalingInitContainers`: init containers that are no sidecars.
    pub init_containers: bool,
    /// `InPlacePodLevelResourcesVerticalScaling`.
    pub pod_level: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Gates { init_containers: true, pod_level: true }
    }
}

impl Gates {
    pub fn of(gates: &bulkhead_config::FeatureGates) -> Self {
        Gates {
            init_containers: gates.enabled(Feature::InPlacePodVerticalScalingInitContainers),
            pod_level: gates.enabled(Feature::InPlacePodLevelResourcesVerticalScaling),
        }
    }

    fn init_is_resizable(self, container: &Container) -> bool {
        self.init_containers || is_sidecar(container)
    }

    /// Init containers first, as upstream visits them.
    pub fn resizable(self, pod: &Pod) -> impl Iterator<Item = &Container> {
        init_containers(pod).iter().filter(move |c| self.init_is_resizable(c)).chain(containers(pod))
    }
}

/// Requests and limits of one pod, by container. The field names are those of upstream's checkpoint.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PodResources {
    #[serde(rename = "ContainerResources", default, deserialize_with = "null_is_empty")]
    pub containers: BTreeMap<String, ResourceRequirements>,
    #[serde(rename = "PodLevelResources", default)]
    pub pod: Option<ResourceRequirements>,
}

/// Go writes a map that was never made as null.
fn null_is_empty<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, ResourceRequirements>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The same amounts, however they are written ("1" and "1000m", absent and empty).
pub fn same(one: &ResourceRequirements, other: &ResourceRequirements) -> bool {
    let claims = |r: &ResourceRequirements| r.claims.clone().unwrap_or_default();
    amounts(one.requests.as_ref()) == amounts(other.requests.as_ref())
        && amounts(one.limits.as_ref()) == amounts(other.limits.as_ref())
        && claims(one) == claims(other)
}

/// [`same`] for what may be absent; absent and empty are the same.
pub fn same_level(one: Option<&ResourceRequirements>, other: Option<&ResourceRequirements>) -> bool {
    let none = ResourceRequirements::default();
    same(one.unwrap_or(&none), other.unwrap_or(&none))
}

/// A container's resources with the pod's limits of cpu and memory where it has none of its own (upstream
/// `pkg/kubelet/util` GetLimits): what the container really gets.
pub fn effective(own: &ResourceRequirements, level: Option<&ResourceRequirements>) -> ResourceRequirements {
    let mut result = own.clone();
    let Some(pod_limits) = level.and_then(|l| l.limits.as_ref()) else { return result };
    for name in ["cpu", "memory"] {
        let is_zero = |q: &ApiQuantity| Quantity::parse(&q.0).is_ok_and(Quantity::is_zero);
        let has_own = result.limits.as_ref().and_then(|l| l.get(name)).is_some_and(|q| !is_zero(q));
        if let Some(limit) = pod_limits.get(name).filter(|q| !has_own && !is_zero(q)) {
            result.limits.get_or_insert_default().insert(name.to_owned(), limit.clone());
        }
    }
    result
}

impl PodResources {
    /// What the spec asks for.
    pub fn of(pod: &Pod, gates: Gates) -> Self {
        let own = |c: &Container| (c.name.clone(), c.resources.clone().unwrap_or_default());
        PodResources {
            containers: gates.resizable(pod).map(own).collect(),
            pod: pod.spec.as_ref().and_then(|s| s.resources.clone()).filter(|_| gates.pod_level),
        }
    }

    /// What containers really get when they have these resources.
    pub fn actuated(&self) -> Self {
        let real = |(name, own): (&String, &ResourceRequirements)| (name.clone(), effective(own, self.pod.as_ref()));
        PodResources { containers: self.containers.iter().map(real).collect(), pod: self.pod.clone() }
    }

    /// A container, or the pod as a whole, requests less cpu or memory than in the other.
    pub fn requests_less_than(&self, other: &Self) -> bool {
        let less = |ours: Option<&ResourceRequirements>, theirs: Option<&ResourceRequirements>| {
            let (ours, theirs) = (requests(ours), requests(theirs));
            let amount = |list: &Amounts, name: &str| list.get(name).copied().unwrap_or(Quantity::ZERO);
            ["cpu", "memory"].into_iter().any(|name| amount(&ours, name) < amount(&theirs, name))
        };
        less(self.pod.as_ref(), other.pod.as_ref())
            || other.containers.iter().any(|(name, theirs)| less(self.containers.get(name), Some(theirs)))
    }

    /// Equal amounts of the same containers.
    pub fn same(&self, other: &Self) -> bool {
        self.containers.len() == other.containers.len()
            && same_level(self.pod.as_ref(), other.pod.as_ref())
            && self.containers.iter().all(|(name, own)| other.containers.get(name).is_some_and(|o| same(own, o)))
    }

    /// What a pod that was granted what its spec says still has beyond that, while it has these resources: of each container that
    /// runs, and of the pod as a whole, the larger request counts (upstream `component-helpers/resource`, UseStatusResources). An
    /// init container that is no sidecar counts as granted.
    pub fn held_beyond(&self, pod: &Pod, is_running: impl Fn(&str) -> bool) -> Amounts {
        let stays = |c: &Container| is_sidecar(c) || containers(pod).iter().any(|other| other.name == c.name);
        let own = |c: &Container| {
            let mut own = requests(c.resources.as_ref());
            if let Some(real) = self.containers.get(&c.name).filter(|_| stays(c) && is_running(&c.name)) {
                raise(&mut own, &requests(Some(real)));
            }
            own
        };
        let granted_level = requests(pod_level(pod));
        let (mut level, mut real) = (granted_level.clone(), requests(self.pod.as_ref()));
        // What is not requested for the pod as a whole any more is not looked at.
        real.retain(|name, _| level.contains_key(name));
        raise(&mut level, &real);
        let granted = requests_of(pod, |c| requests(c.resources.as_ref()), granted_level);
        let held = requests_of(pod, own, level).into_iter();
        let beyond = held.map(|(name, held)| {
            let granted = granted.get(&name).copied().unwrap_or(Quantity::ZERO);
            (name, held - granted)
        });
        beyond.filter(|(_, beyond)| *beyond > Quantity::ZERO).collect()
    }

    /// The pod with these resources instead of its own. None: it has them already.
    pub fn substituted(&self, pod: &Pod, gates: Gates) -> Option<Arc<Pod>> {
        let differs = |c: &&Container| {
            let own = c.resources.clone().unwrap_or_default();
            self.containers.get(&c.name).is_some_and(|ours| !same(&own, ours))
        };
        let level = pod.spec.as_ref().and_then(|s| s.resources.as_ref());
        let level_differs = gates.pod_level && !same_level(level, self.pod.as_ref());
        if !level_differs && !gates.resizable(pod).any(|c| differs(&c)) {
            return None;
        }
        let mut pod = pod.clone();
        let spec = pod.spec.as_mut()?;
        if level_differs {
            spec.resources.clone_from(&self.pod);
        }
        let put = |container: &mut Container| {
            if let Some(ours) = self.containers.get(&container.name) {
                container.resources = Some(ours.clone());
            }
        };
        spec.containers.iter_mut().for_each(put);
        let init = spec.init_containers.iter_mut().flatten();
        init.filter(|c| gates.init_is_resizable(c)).for_each(put);
        Some(Arc::new(pod))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
    }

    #[test]
    fn other_units_are_no_change() {
        let old = pod(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {}}}]}));
        let new = pod(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1000m"}}}]}));
        assert!(PodResources::of(&old, Gates::default()).substituted(&new, Gates::default()).is_none());
        let more = pod(json!({"containers": [{"name": "a", "resources": {"requests": {"cpu": "1001m"}}}]}));
        let back = PodResources::of(&old, Gates::default()).substituted(&more, Gates::default()).unwrap();
        assert_eq!(back.spec, old.spec);
    }

    #[test]
    fn only_what_can_be_resized_is_put_back() {
        let with = |amount: &str| {
            let r = json!({"requests": {"cpu": amount}});
            pod(json!({
                "resources": r,
                "initContainers": [{"name": "i", "resources": r}, {"name": "s", "restartPolicy": "Always", "resources": r}],
                "containers": [{"name": "a", "resources": r}],
                "ephemeralContainers": [{"name": "e"}],
            }))
        };
        let (old, new) = (with("1"), with("2"));
        let cpu = |c: &Container| c.resources.clone().unwrap().requests.unwrap()["cpu"].0.clone();
        for (gates, expected) in [
            (Gates::default(), ["1", "1", "1", "1"]),
            (Gates { init_containers: false, pod_level: true }, ["1", "2", "1", "1"]),
            (Gates { init_containers: true, pod_level: false }, ["2", "1", "1", "1"]),
        ] {
            let record = PodResources::of(&old, gates);
            let shown = record.substituted(&new, gates).unwrap();
            let spec = shown.spec.as_ref().unwrap();
            let level = spec.resources.as_ref().unwrap().requests.as_ref().unwrap()["cpu"].0.clone();
            let init = spec.init_containers.as_ref().unwrap();
            let got = [level, cpu(&init[0]), cpu(&init[1]), cpu(&spec.containers[0])];
            assert_eq!(got, expected.map(str::to_owned), "{gates:?}");
        }
    }

    #[test]
    fn what_is_still_held_counts_as_long_as_it_runs() {
        let cpu = |milli: i64| json!({"requests": {"cpu": format!("{milli}m"), "memory": "1Gi"}});
        let with = |[init, sidecar, a, b]: [i64; 4], level: Option<i64>| {
            let init = [
                json!({"name": "i", "resources": cpu(init)}),
                json!({"name": "s", "restartPolicy": "Always", "resources": cpu(sidecar)}),
            ];
            let containers = [json!({"name": "a", "resources": cpu(a)}), json!({"name": "b", "resources": cpu(b)})];
            pod(json!({"resources": level.map(cpu), "initContainers": init, "containers": containers}))
        };
        type Case<'a> = ([i64; 4], Option<i64>, [i64; 4], Option<i64>, &'a [&'a str], i64);
        #[rustfmt::skip]
        let cases: &[Case<'_>] = &[
            // granted: init container, sidecar, a, b; pod; had: the same; which run; thousandths beyond
            ([100, 100, 100, 100], None,      [100, 100, 100, 100], None,       &["s", "a", "b"], 0),
            ([100, 100, 100, 100], None,      [100, 100, 400, 200], None,       &["s", "a", "b"], 400),
            // One shrinks while another grows: neither is less than what it was granted.
            ([100, 100, 300, 100], None,      [100, 100, 100, 400], None,       &["s", "a", "b"], 300),
            ([100, 100, 100, 100], None,      [100, 100, 400, 200], None,       &["s", "b"],      100),
            ([100, 100, 100, 100], None,      [100, 300, 100, 100], None,       &["s", "a", "b"], 200),
            ([100, 100, 100, 100], None,      [900, 100, 100, 100], None,       &["i"],           0),
            ([100, 100, 100, 100], Some(500), [100, 100, 400, 200], Some(900),  &["s", "a", "b"], 400),
            ([100, 100, 100, 100], Some(900), [100, 100, 400, 200], Some(500),  &["s", "a", "b"], 0),
            ([100, 100, 100, 100], None,      [100, 100, 100, 100], Some(900),  &["s", "a", "b"], 0),
        ];
        for (granted, level, had, had_level, running, beyond) in cases {
            let real = PodResources::of(&with(*had, *had_level), Gates::default());
            let held = real.held_beyond(&with(*granted, *level), |name| running.contains(&name));
            let expected: Amounts =
                [("cpu".to_owned(), Quantity::from_milli(*beyond))].into_iter().filter(|(_, q)| !q.is_zero()).collect();
            assert_eq!(held, expected, "{granted:?} {level:?} {had:?} {had_level:?} {running:?}");
        }
    }

    #[test]
    fn the_pods_limit_stands_in_for_a_containers_own() {
        let list = |value| serde_json::from_value::<ResourceRequirements>(value).unwrap();
        let level = list(json!({"limits": {"cpu": "2", "memory": "1Gi", "hugepages-2Mi": "2Mi"}}));
        let own = list(json!({"limits": {"cpu": "1", "memory": "0"}, "requests": {"cpu": "1"}}));
        let real = effective(&own, Some(&level));
        assert!(same(&real, &list(json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1"}}))));
        assert!(same(&effective(&own, None), &own));
    }
}
