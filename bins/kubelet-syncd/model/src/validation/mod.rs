//! What upstream checks when a pod is created (`pkg/apis/core/validation` ValidatePodCreate, all gates but [`Gates`] as in
//! 1.36 by default), for pods that come from files and URLs. Pods from the API server were checked there.
//!
//! All errors are collected. The pod must have been through defaulting: what has a default is required here.

mod containers;
pub(crate) mod env;
pub mod field;
mod handlers;
mod legacy_volumes;
mod metadata;
pub mod names;
pub mod resources;
mod scheduling;
mod security;
pub mod sysctl;
mod volumes;
mod windows;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use crate::v1::{Pod, PodSpec};

pub use field::{Errors, FieldError};
use field::{Path, items, text};

const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCHES_MAX_CHARS: usize = 2048;
const HOSTNAME_MAX: usize = 64;

/// The gates that are looked at.
#[derive(Debug, Clone, Copy)]
pub struct Gates {
    /// `StrictIPCIDRValidation`.
    pub strict_ip_cidr: bool,
}

impl Default for Gates {
    fn default() -> Self {
        Gates { strict_ip_cidr: true }
    }
}

/// Everything that is wrong with a new pod; empty when it can be taken.
pub fn validate_pod(pod: &Pod, gates: Gates) -> Errors {
    let mut errors = Errors::default();
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    metadata::validate(pod, spec, &mut errors);
    validate_spec(pod, spec, gates, &mut errors);
    let path = Path::new("spec");
    if text(&spec.service_account_name).is_empty() {
        for (vi, volume) in items(&spec.volumes).iter().enumerate() {
            let sources = volume.projected.iter().flat_map(|p| items(&p.sources));
            for (si, _) in sources.enumerate().filter(|(_, s)| s.service_account_token.is_some()) {
                let path = path.child("volumes").index(vi).child("projected").child("sources").index(si);
                let why = "must not be specified when serviceAccountName is not set";
                errors.forbidden(&path.child("serviceAccountToken"), why);
            }
        }
    }
    containers::image_whitespace(&spec.containers, &path.child("containers"), &mut errors);
    containers::image_whitespace(items(&spec.init_containers), &path.child("initContainers"), &mut errors);
    if !items(&spec.ephemeral_containers).is_empty() {
        errors.forbidden(&path.child("ephemeralContainers"), "cannot be set on create");
    }
    if !text(&spec.node_name).is_empty() && !items(&spec.scheduling_gates).is_empty() {
        errors.forbidden(&path.child("nodeName"), "cannot be set until all schedulingGates have been cleared");
    }
    metadata::profiles_agree(pod, spec, &mut errors);
    errors
}

fn validate_spec(pod: &Pod, spec: &PodSpec, gates: Gates, errors: &mut Errors) {
    let path = Path::new("spec");
    if spec.termination_grace_period_seconds.is_none() {
        errors.required(&path.child("terminationGracePeriodSeconds"), "");
    }
    let facts = containers::PodFacts {
        spec,
        volumes: volumes::validate(spec, text(&pod.metadata.name), &path.child("volumes"), errors),
        claim_names: items(&spec.resource_claims)
            .iter()
            .map(|c| c.name.as_str())
            .filter(|name| !name.is_empty())
            .collect(),
        host_users: spec.host_users != Some(false),
    };
    resource_claims(spec, &path.child("resourceClaims"), errors);
    containers::regular(&facts, &path.child("containers"), errors);
    containers::init(&facts, &path.child("initContainers"), errors);
    resources::pod(spec, &facts.claim_names, &path, errors);
    containers::host_network_ports(spec, &path, errors);
    errors.required_one_of(&path.child("restartPolicy"), text(&spec.restart_policy), &["Always", "OnFailure", "Never"]);
    errors.required_one_of(
        &path.child("dnsPolicy"),
        text(&spec.dns_policy),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    );
    metadata::labels(spec.node_selector.as_ref(), &path.child("nodeSelector"), errors);
    security::pod(spec, &path.child("securityContext"), errors);
    if let Some(affinity) = &spec.affinity {
        scheduling::affinity(affinity, &path.child("affinity"), errors);
    }
    dns_config(spec, &path.child("dnsConfig"), gates, errors);
    for (index, gate) in items(&spec.readiness_gates).iter().enumerate() {
        let path = path.child("readinessGates").index(index).child("conditionType");
        errors.invalid_each(&path, &gate.condition_type[..], names::qualified_name(&gate.condition_type));
    }
    let mut scheduling_gates = BTreeSet::new();
    for (index, gate) in items(&spec.scheduling_gates).iter().enumerate() {
        let path = path.child("schedulingGates").index(index);
        errors.invalid_each(&path, &gate.name[..], names::qualified_name(&gate.name));
        if !scheduling_gates.insert(&gate.name) {
            errors.duplicate(&path, &gate.name[..]);
        }
    }
    let constraints = items(&spec.topology_spread_constraints);
    scheduling::spread_constraints(constraints, &path.child("topologySpreadConstraints"), errors);
    windows::host_process(spec, &path, errors);
    security::host_users(spec, &path, errors);
    host_names(spec, &path, gates, errors);
    object_names(spec, &path, errors);
    if let Some(seconds) = spec.active_deadline_seconds.filter(|s| !(1..=i64::from(i32::MAX)).contains(s)) {
        let why = names::between(1, i64::from(i32::MAX));
        errors.invalid(&path.child("activeDeadlineSeconds"), seconds, &why);
    }
    scheduling::tolerations(items(&spec.tolerations), &path.child("tolerations"), errors);
    if let Some(policy) = &spec.preemption_policy {
        let path = path.child("preemptionPolicy");
        errors.required_one_of(&path, policy, &["PreemptLowerPriority", "Never"]);
    }
    if let Some(overhead) = &spec.overhead {
        resources::overhead(overhead, &path.child("overhead"), errors);
    }
    windows::os(spec, &path, errors);
    env::file_key_volumes(spec, errors);
}

/// Static pods may not have claims at all (refused after validation); a name is checked so that errors are upstream's.
fn resource_claims(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (index, claim) in items(&spec.resource_claims).iter().enumerate() {
        let path = path.index(index).child("name");
        if claim.name.is_empty() {
            errors.required(&path, "");
        } else if seen.insert(&claim.name) {
            errors.invalid_each(&path, &claim.name[..], names::dns_label(&claim.name));
        } else {
            errors.duplicate(&path, &claim.name[..]);
        }
    }
}

fn dns_config(spec: &PodSpec, path: &Path, gates: Gates, errors: &mut Errors) {
    let config = spec.dns_config.as_ref();
    if text(&spec.dns_policy) == "None" {
        match config {
            None => return errors.required(path, "must provide `dnsConfig` when `dnsPolicy` is None"),
            Some(config) if items(&config.nameservers).is_empty() => {
                let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
                return errors.required(&path.child("nameservers"), why);
            }
            Some(_) => {}
        }
    }
    let Some(config) = config else { return };
    let (servers, searches) = (items(&config.nameservers), items(&config.searches));
    let servers_path = path.child("nameservers");
    if servers.len() > NAMESERVERS_MAX {
        let why = format!("must not have more than {NAMESERVERS_MAX} nameservers");
        errors.invalid(&servers_path, field::AsJson(&servers), &why);
    }
    for (index, server) in servers.iter().enumerate() {
        errors.invalid_each(&servers_path.index(index), server, names::ip_address(server, gates.strict_ip_cidr));
    }
    let searches_path = path.child("searches");
    if searches.len() > SEARCHES_MAX {
        let why = format!("must not have more than {SEARCHES_MAX} search paths");
        errors.invalid(&searches_path, field::AsJson(&searches), &why);
    }
    if searches.join(" ").len() > SEARCHES_MAX_CHARS {
        let why =
            format!("must not have more than {SEARCHES_MAX_CHARS} characters (including spaces) in the search list");
        errors.invalid(&searches_path, field::AsJson(&searches), &why);
    }
    for (index, search) in searches.iter().enumerate().filter(|(_, s)| *s != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        errors.invalid_each(&searches_path.index(index), search, names::dns_subdomain_with_underscore(search));
    }
    for (index, option) in items(&config.options).iter().enumerate() {
        if text(&option.name).is_empty() {
            errors.required(&path.child("options").index(index), "must not be empty");
        }
    }
}

fn host_names(spec: &PodSpec, path: &Path, gates: Gates, errors: &mut Errors) {
    if let Some(name) = &spec.hostname_override {
        let path = path.child("hostnameOverride");
        if spec.set_hostname_as_fqdn == Some(true) {
            errors.forbidden(&path, "may not be specified when setHostnameAsFQDN is true");
        }
        if spec.host_network == Some(true) {
            errors.forbidden(&path, "may not be specified when hostNetwork is true");
        }
        if name.len() > HOSTNAME_MAX {
            errors.too_long(&path, HOSTNAME_MAX);
        }
        errors.invalid_each(&path, name, names::dns_subdomain(name));
    }
    for (field, name) in [("hostname", text(&spec.hostname)), ("subdomain", text(&spec.subdomain))] {
        if !name.is_empty() {
            errors.invalid_each(&path.child(field), name, names::dns_label(name));
        }
    }
    for (i, alias) in items(&spec.host_aliases).iter().enumerate() {
        let path = path.child("hostAliases").index(i);
        errors.invalid_each(&path.child("ip"), &alias.ip[..], names::ip_address(&alias.ip, gates.strict_ip_cidr));
        for (j, name) in items(&alias.hostnames).iter().enumerate() {
            errors.invalid_each(&path.child("hostnames").index(j), name, names::dns_subdomain(name));
        }
    }
}

/// Fields that name another object.
fn object_names(spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let group = spec.scheduling_group.as_ref();
    for (field, name) in [
        ("serviceAccountName", text(&spec.service_account_name)),
        ("nodeName", text(&spec.node_name)),
        ("priorityClassName", text(&spec.priority_class_name)),
    ] {
        if !name.is_empty() {
            errors.invalid_each(&path.child(field), name, names::dns_subdomain(name));
        }
    }
    if let Some(name) = &spec.runtime_class_name {
        errors.invalid_each(&path.child("runtimeClassName"), name, names::dns_subdomain(name));
    }
    if let Some(group) = group {
        let path = path.child("schedulingGroup").child("podGroupName");
        match &group.pod_group_name {
            None => errors.invalid(&path, field::AsJson(&()), "must specify one of: `podGroupName`"),
            Some(name) => errors.invalid_each(&path, name, names::dns_subdomain(name)),
        }
    }
}
