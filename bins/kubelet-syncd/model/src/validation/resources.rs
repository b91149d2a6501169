//! Resource names and amounts, of containers and of the pod, and defaulting's sums over containers.

use std::collections::{BTreeMap, BTreeSet};

use crate::v1::{Container, PodSpec};
use bulkhead_types::Quantity;
use bulkhead_types::resource_name::{huge_page_size, is_extended, is_huge_page, is_native, is_pod_level};
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use super::field::{Errors, Path, items, quote};
use super::names;

/// A resource list as the API types hold it.
pub type ResourceList = BTreeMap<String, ApiQuantity>;

const STANDARD: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];
const INTEGERS: [&str; 9] = [
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
];

/// Requests may be below limits only for these.
pub fn is_overcommit_allowed(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

/// The quantity; decoding has refused what does not parse.
pub fn amount(quantity: &ApiQuantity) -> Quantity {
    Quantity::parse(&quantity.0).unwrap_or_default()
}

fn resource_name(name: &str, path: &Path, errors: &mut Errors) -> bool {
    let wrong = names::qualified_name(name);
    if !wrong.is_empty() {
        errors.invalid_each(path, name, wrong);
        return false;
    }
    let standard = STANDARD.contains(&name) || is_huge_page(name.strip_prefix("requests.").unwrap_or(name));
    if !name.contains('/') && !standard {
        errors.invalid(path, name, "must be a standard resource type or fully qualified");
        return false;
    }
    true
}

fn container_resource_name(name: &str, path: &Path, errors: &mut Errors) {
    resource_name(name, path, errors);
    if !name.contains('/') {
        if !["cpu", "memory", "ephemeral-storage"].contains(&name) && !is_huge_page(name) {
            errors.invalid(path, name, "must be a standard resource for containers");
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.invalid(path, name, "doesn't follow extended resource name standard");
    }
}

fn pod_resource_name(name: &str, path: &Path, errors: &mut Errors) {
    if resource_name(name, path, errors) && !is_pod_level(name) {
        errors.not_supported(path, name, &["cpu", "hugepages-", "memory"]);
    }
}

fn quantity_value(name: &str, quantity: Quantity, path: &Path, errors: &mut Errors) {
    if quantity.is_negative() {
        errors.invalid(path, quantity.to_string(), "must be greater than or equal to 0");
    }
    if (INTEGERS.contains(&name) || is_extended(name)) && quantity.milli_value() % 1000 != 0 {
        errors.invalid(path, quantity.to_string(), "must be an integer");
    }
}

fn huge_page_value(name: &str, quantity: Quantity, path: &Path, errors: &mut Errors) {
    let page = huge_page_size(name);
    let divisible = page.is_some_and(|page| {
        page > Quantity::ZERO && page.milli_value() % 1000 == 0 && quantity.value() % page.value() == 0
    });
    if !divisible {
        let why = format!("{quantity} is not positive integer multiple of {name}");
        errors.invalid(path, quantity.to_string(), &why);
    }
}

pub fn container(resources: &ResourceRequirements, claims: &BTreeSet<&str>, path: &Path, errors: &mut Errors) {
    requirements(resources, container_resource_name, claims, path, errors);
}

/// `spec.overhead` is checked as a list of limits.
pub fn overhead(overhead: &ResourceList, path: &Path, errors: &mut Errors) {
    let as_limits = ResourceRequirements { limits: Some(overhead.clone()), ..Default::default() };
    requirements(&as_limits, container_resource_name, &BTreeSet::new(), path, errors);
}

fn requirements(
    resources: &ResourceRequirements,
    check_name: fn(&str, &Path, &mut Errors),
    claims: &BTreeSet<&str>,
    path: &Path,
    errors: &mut Errors,
) {
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    let empty = ResourceList::new();
    let limits = resources.limits.as_ref().unwrap_or(&empty);
    let requests = resources.requests.as_ref().unwrap_or(&empty);
    for (name, quantity) in limits {
        let (path, quantity) = (limits_path.key(name), amount(quantity));
        check_name(name, &path, errors);
        quantity_value(name, quantity, &path, errors);
        if is_huge_page(name) {
            huge_page_value(name, quantity, &path, errors);
        }
    }
    for (name, quantity) in requests {
        let (path, quantity) = (requests_path.key(name), amount(quantity));
        check_name(name, &path, errors);
        quantity_value(name, quantity, &path, errors);
        match limits.get(name).map(amount) {
            Some(limit) if quantity != limit && !is_overcommit_allowed(name) => {
                let why = format!("must be equal to {name} limit of {limit}");
                errors.invalid(&requests_path, quantity.to_string(), &why);
            }
            Some(limit) if quantity > limit => {
                let why = format!("must be less than or equal to {name} limit of {limit}");
                errors.invalid(&requests_path, quantity.to_string(), &why);
            }
            None if !is_overcommit_allowed(name) => {
                errors.required(&limits_path, "Limit must be set for non overcommitable resources");
            }
            _ => {}
        }
        if is_huge_page(name) {
            huge_page_value(name, quantity, &path, errors);
        }
    }
    let mut all = limits.keys().chain(requests.keys());
    let computes = limits.keys().chain(requests.keys()).any(|n| n == "cpu" || n == "memory");
    if all.any(|n| is_huge_page(n)) && !computes {
        errors.forbidden(path, "HugePages require cpu or memory");
    }
    claim_names(resources, claims, &path.child("claims"), errors);
}

fn claim_names(resources: &ResourceRequirements, known: &BTreeSet<&str>, path: &Path, errors: &mut Errors) {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for (index, claim) in items(&resources.claims).iter().enumerate() {
        let path = path.index(index);
        if claim.name.is_empty() {
            errors.required(&path, "");
            continue;
        }
        let request = claim.request.as_deref().unwrap_or("");
        let key = if request.is_empty() { claim.name.clone() } else { format!("{}/{request}", claim.name) };
        if !request.is_empty() {
            errors.invalid_each(&path.child("request"), request, names::dns_label(request));
        }
        let whole = request.is_empty() && seen.iter().any(|s| s.split('/').next() == Some(&claim.name));
        if seen.contains(&claim.name) || seen.contains(&key) || whole {
            errors.duplicate(&path, key.clone());
        }
        seen.insert(key);
        if !known.contains(claim.name.as_str()) {
            let mut why = "must be one of the names in pod.spec.resourceClaims".to_owned();
            if known.is_empty() {
                why.push_str(" which is empty");
            } else {
                why.push_str(": ");
                why.push_str(&known.iter().copied().collect::<Vec<_>>().join(", "));
            }
            errors.not_found(&path, &claim.name[..], &why);
        }
    }
}

/// `spec.resources`: names, amounts, and that containers fit in.
pub fn pod(spec: &PodSpec, claims: &BTreeSet<&str>, path: &Path, errors: &mut Errors) {
    let Some(resources) = &spec.resources else { return };
    let path = path.child("resources");
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        errors.forbidden(&path, "may not be set for a windows pod");
        return;
    }
    if resources.claims.is_some() {
        errors.forbidden(&path.child("claims"), "claims may not be set for Resources at pod-level");
    }
    requirements(resources, pod_resource_name, claims, &path, errors);

    let empty = ResourceList::new();
    let pod_requests = resources.requests.as_ref().unwrap_or(&empty);
    let pod_limits = resources.limits.as_ref().unwrap_or(&empty);
    for (name, sum) in sum_over_containers(spec, Kind::Requests) {
        let Some(given) = pod_requests.get(&name).map(amount) else { continue };
        if sum > given {
            let why = format!("must be greater than or equal to aggregate container requests of {sum}");
            errors.invalid(&path.child("requests").key(&name), given.to_string(), &why);
        }
    }
    for (name, sum) in sum_over_containers(spec, Kind::Limits) {
        let Some(given) = pod_limits.get(&name).map(amount).filter(|_| is_huge_page(&name)) else { continue };
        if sum > given {
            let why = format!("must be greater than or equal to aggregate container limits of {sum}");
            errors.invalid(&path.child("limits").key(&name), given.to_string(), &why);
        }
    }
    for (index, container) in spec.containers.iter().enumerate() {
        for (name, limit) in container.resources.iter().flat_map(|r| r.limits.iter().flatten()) {
            let Some(pod_limit) = pod_limits.get(name).map(amount) else { continue };
            let limit = amount(limit);
            if limit > pod_limit {
                let path = path.child("containers").index(index).key(name).child("limits");
                let why = format!("must be less than or equal to pod limits of {pod_limit}");
                errors.invalid(&path, limit.to_string(), &why);
            }
        }
    }
}

/// Which of a container's two lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Requests,
    Limits,
}

/// What the containers ask for together: the sum of containers and sidecars, or where more, the largest init container
/// with the sidecars before it (upstream `component-helpers/resource` AggregateContainerRequests and -Limits).
pub fn sum_over_containers(spec: &PodSpec, kind: Kind) -> BTreeMap<String, Quantity> {
    let list = |container: &Container| -> BTreeMap<String, Quantity> {
        let lists = container.resources.as_ref().and_then(|r| match kind {
            Kind::Requests => r.requests.as_ref(),
            Kind::Limits => r.limits.as_ref(),
        });
        lists.into_iter().flatten().map(|(name, quantity)| (name.clone(), amount(quantity))).collect()
    };
    let add = |to: &mut BTreeMap<String, Quantity>, from: &BTreeMap<String, Quantity>| {
        for (name, quantity) in from {
            *to.entry(name.clone()).or_default() += *quantity;
        }
    };
    let mut total = BTreeMap::new();
    for container in &spec.containers {
        add(&mut total, &list(container));
    }
    let (mut sidecars, mut largest) = (BTreeMap::new(), BTreeMap::<String, Quantity>::new());
    for container in items(&spec.init_containers) {
        let own = list(container);
        let mut peak = sidecars.clone();
        add(&mut peak, &own);
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut total, &own);
            add(&mut sidecars, &own);
        }
        raise(&mut largest, &peak);
    }
    raise(&mut total, &largest);
    total
}

fn raise(to: &mut BTreeMap<String, Quantity>, from: &BTreeMap<String, Quantity>) {
    for (name, quantity) in from {
        let slot = to.entry(name.clone()).or_insert(*quantity);
        *slot = (*slot).max(*quantity);
    }
}

/// Why a quantity's text is refused when a manifest is decoded.
pub fn check_quantity(quantity: &mut ApiQuantity) -> Result<(), String> {
    match Quantity::parse(quantity.0.trim()) {
        Ok(parsed) => {
            // Upstream keeps the parsed value and prints its canonical form from then on.
            quantity.0 = parsed.to_string();
            Ok(())
        }
        Err(e) => Err(format!("{}: {e}", quote(&quantity.0))),
    }
}
