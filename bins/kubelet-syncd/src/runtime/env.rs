//! Environment of a container: where each value comes from, `$(VAR)` expansion, and the variables that describe
//! services. Order and overriding are upstream's (`pkg/kubelet/kubelet_pods.go` makeEnvironmentVariables), except that
//! where upstream's order is random ours is that of declaration.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bulkhead_types::Quantity;
use k8s_openapi::api::core::v1::{Container, EnvVarSource, ObjectFieldSelector, Pod, ResourceFieldSelector};

use super::node_facts::NodeFacts;
use super::podspec::{self, is_static};
use super::resources::amounts;

/// Why an environment cannot be made; becomes the message of `CreateContainerConfigError`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    #[error("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")]
    NoServiceLinks,
    #[error("services have not yet been read at least once, cannot construct envvars")]
    ServicesNotRead,
    #[error("couldn't get {kind} {namespace}/{name}, no kubeClient defined")]
    NeedsApi { kind: &'static str, namespace: String, name: String },
    #[error("env {variable:?} uses fileKeyRef, which is not supported yet")]
    FileKeyRef { variable: String },
    #[error("unsupported fieldPath: {0}")]
    FieldPath(String),
    #[error("host IP unknown; known addresses: []")]
    HostIpUnknown,
    #[error("unsupported container resource : {0}")]
    Resource(String),
    #[error("container {0} not found")]
    NoSuchContainer(String),
    #[error("divisor {0:?} of resource {1} is not a quantity")]
    Divisor(String, String),
}

/// A service as far as variables need it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    /// Empty or `None` for a headless one.
    pub cluster_ip: String,
    pub ports: Vec<ServicePort>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServicePort {
    pub name: String,
    /// Empty means TCP.
    pub protocol: String,
    pub port: i32,
}

/// The services that are known, and whether they were ever listed (without an API server they never are).
#[derive(Debug, Clone, Copy, Default)]
pub struct Services<'a> {
    pub known: &'a [Service],
    pub synced: bool,
}

/// Name and value, in the order in which they go to the runtime.
pub type Environment = Vec<(String, String)>;

/// The whole environment of a container. `pod_ips`: primary first, at most one of each family.
pub fn environment(
    pod: &Pod,
    container: &Container,
    pod_ips: &[IpAddr],
    services: Services<'_>,
    facts: &NodeFacts,
) -> Result<Environment, EnvError> {
    let links = pod.spec.as_ref().and_then(|s| s.enable_service_links).ok_or(EnvError::NoServiceLinks)?;
    if !is_static(pod) && !services.synced {
        return Err(EnvError::ServicesNotRead);
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let service_variables = service_variables(services.known, namespace, links);
    let needs_api =
        |kind, name: &str| EnvError::NeedsApi { kind, namespace: namespace.to_owned(), name: name.to_owned() };
    for from in container.env_from.iter().flatten() {
        if let Some(source) = &from.config_map_ref {
            return Err(needs_api("configMap", &source.name));
        }
        if let Some(source) = &from.secret_ref {
            return Err(needs_api("secret", &source.name));
        }
    }
    let mut result = Environment::new();
    for variable in container.env.iter().flatten() {
        let literal = variable.value.as_deref().unwrap_or("");
        let value = if !literal.is_empty() {
            expand(literal, |name| lookup(&result, name).or_else(|| lookup(&service_variables, name)))
        } else if let Some(source) = &variable.value_from {
            match source {
                EnvVarSource { field_ref: Some(field), .. } => field_value(field, pod, pod_ips, facts)?,
                EnvVarSource { resource_field_ref: Some(resource), .. } => {
                    resource_value(resource, pod, container, facts)?
                }
                EnvVarSource { config_map_key_ref: Some(key), .. } => return Err(needs_api("configMap", &key.name)),
                EnvVarSource { secret_key_ref: Some(key), .. } => return Err(needs_api("secret", &key.name)),
                EnvVarSource { file_key_ref: Some(_), .. } => {
                    return Err(EnvError::FileKeyRef { variable: variable.name.clone() });
                }
                _ => String::new(),
            }
        } else {
            String::new()
        };
        match result.iter_mut().find(|(name, _)| *name == variable.name) {
            Some((_, old)) => *old = value,
            None => result.push((variable.name.clone(), value)),
        }
    }
    for (name, value) in service_variables {
        if lookup(&result, &name).is_none() {
            result.push((name, value));
        }
    }
    Ok(result)
}

fn lookup<'a>(environment: &'a [(String, String)], name: &str) -> Option<&'a str> {
    environment.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
}

/// Command and arguments with every variable of the environment put in.
pub fn expand_command(container: &Container, environment: &[(String, String)]) -> (Vec<String>, Vec<String>) {
    let expand_all = |list: &Option<Vec<String>>| {
        list.iter().flatten().map(|text| expand(text, |name| lookup(environment, name))).collect()
    };
    (expand_all(&container.command), expand_all(&container.args))
}

/// `$(NAME)` becomes its value, or stays when there is none; `$$` is one `$`
/// (upstream `third_party/forked/golang/expansion`).
pub fn expand<'a>(text: &str, value_of: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
            match value_of(name) {
                Some(value) => out.push_str(value),
                None => {
                    out.push_str("$(");
                    out.push_str(name);
                    out.push(')');
                }
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

fn field_value(
    selector: &ObjectFieldSelector,
    pod: &Pod,
    pod_ips: &[IpAddr],
    facts: &NodeFacts,
) -> Result<String, EnvError> {
    let join = |ips: &[IpAddr]| ips.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
    let pod_ips = facts.sort_pod_ips(pod_ips);
    let spec = podspec::spec(pod);
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    Ok(match selector.field_path.as_str() {
        "metadata.name" => text(&pod.metadata.name),
        "metadata.namespace" => text(&pod.metadata.namespace),
        "metadata.uid" => text(&pod.metadata.uid),
        "spec.nodeName" => text(&spec.node_name),
        "spec.serviceAccountName" => text(&spec.service_account_name),
        "status.hostIP" => facts.host_ips.first().ok_or(EnvError::HostIpUnknown)?.to_string(),
        "status.hostIPs" if facts.host_ips.is_empty() => return Err(EnvError::HostIpUnknown),
        "status.hostIPs" => join(&facts.host_ips),
        "status.podIP" => pod_ips.first().map(IpAddr::to_string).unwrap_or_default(),
        "status.podIPs" => join(&pod_ips),
        path => {
            let unsupported = || EnvError::FieldPath(path.to_owned());
            let (map, key) = path.strip_suffix("']").and_then(|p| p.split_once("['")).ok_or_else(unsupported)?;
            let map: Option<&BTreeMap<String, String>> = match map {
                "metadata.labels" => pod.metadata.labels.as_ref(),
                "metadata.annotations" => pod.metadata.annotations.as_ref(),
                _ => return Err(unsupported()),
            };
            map.and_then(|m| m.get(key)).cloned().unwrap_or_default()
        }
    })
}

fn resource_value(
    selector: &ResourceFieldSelector,
    pod: &Pod,
    container: &Container,
    facts: &NodeFacts,
) -> Result<String, EnvError> {
    let named = selector.container_name.as_deref().filter(|n| !n.is_empty() && *n != container.name);
    let found;
    let container = match named {
        Some(name) => {
            found = podspec::find_container(pod, name).ok_or_else(|| EnvError::NoSuchContainer(name.to_owned()))?.1;
            &*found
        }
        None => container,
    };
    let unsupported = || EnvError::Resource(selector.resource.clone());
    let (list, name) = selector.resource.split_once('.').ok_or_else(unsupported)?;
    if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !name.starts_with("hugepages-") {
        return Err(unsupported());
    }
    let own = container.resources.as_ref();
    let nonzero = |q: &Quantity| !q.is_zero();
    let amount = match list {
        "limits" => {
            let pod_level = pod.spec.as_ref().and_then(|s| s.resources.as_ref()?.limits.as_ref());
            amounts(own.and_then(|r| r.limits.as_ref()))
                .get(name)
                .copied()
                .filter(nonzero)
                .or_else(|| amounts(pod_level).get(name).copied().filter(nonzero))
                .or_else(|| facts.allocatable.get(name).copied())
        }
        "requests" => amounts(own.and_then(|r| r.requests.as_ref())).get(name).copied(),
        _ => return Err(unsupported()),
    };
    let amount = amount.unwrap_or(Quantity::ZERO);
    let divisor = match selector.divisor.as_ref().map(|q| q.0.as_str()) {
        None | Some("" | "0") => Quantity::from_i64(1),
        Some(text) => {
            Quantity::parse(text).map_err(|_| EnvError::Divisor(text.to_owned(), selector.resource.clone()))?
        }
    };
    let (amount, divisor) =
        if name == "cpu" { (amount.milli_value(), divisor.milli_value()) } else { (amount.value(), divisor.value()) };
    let divisor = if divisor <= 0 { 1 } else { divisor };
    Ok((i128::from(amount) + i128::from(divisor) - 1).div_euclid(i128::from(divisor)).to_string())
}

/// Variables for the services of the namespace (if wanted) and, always, for `kubernetes` in `default`
/// (upstream `pkg/kubelet/envvars`).
pub fn service_variables(services: &[Service], namespace: &str, links: bool) -> Environment {
    let mut chosen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services {
        if service.cluster_ip.is_empty() || service.cluster_ip == "None" {
            continue;
        }
        let is_master = service.namespace == "default" && service.name == "kubernetes";
        if service.namespace == namespace && (links || is_master) {
            chosen.insert(&service.name, service);
        } else if is_master {
            chosen.entry(&service.name).or_insert(service);
        }
    }
    let mut result = Environment::new();
    for (name, service) in chosen {
        let prefix = name.replace('-', "_").to_uppercase();
        let ip = &service.cluster_ip;
        let mut set = |suffix: String, value: String| result.push((format!("{prefix}_{suffix}"), value));
        set("SERVICE_HOST".to_owned(), ip.clone());
        if let Some(first) = service.ports.first() {
            set("SERVICE_PORT".to_owned(), first.port.to_string());
        }
        for port in service.ports.iter().filter(|p| !p.name.is_empty()) {
            let port_name = port.name.replace('-', "_").to_uppercase();
            set(format!("SERVICE_PORT_{port_name}"), port.port.to_string());
        }
        for (index, port) in service.ports.iter().enumerate() {
            let upper = if port.protocol.is_empty() { "TCP".to_owned() } else { port.protocol.to_uppercase() };
            let lower = upper.to_lowercase();
            let host = if ip.contains(':') { format!("[{ip}]") } else { ip.clone() };
            let url = format!("{lower}://{host}:{}", port.port);
            if index == 0 {
                set("PORT".to_owned(), url.clone());
            }
            let base = format!("PORT_{}_{upper}", port.port);
            set(base.clone(), url);
            set(format!("{base}_PROTO"), lower);
            set(format!("{base}_PORT"), port.port.to_string());
            set(format!("{base}_ADDR"), ip.clone());
        }
    }
    result
}

#[cfg(test)]
#[path = "env_tests.rs"]
mod tests;
