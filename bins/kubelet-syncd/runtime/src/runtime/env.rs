//! Environment of a container: where each value comes from, `$(VAR)` expansion, and the variables that describe
//! services. Order and overriding are upstream's (`pkg/kubelet/kubelet_pods.go` makeEnvironmentVariables), except that
//! where upstream's order is random ours is that of declaration.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVarSource};
use kubelet_model::v1::{Container, Pod};

use super::env_files::{self, EnvFileError, EnvFiles};
use kubelet_model::node_facts::NodeFacts;
use kubelet_model::objects::named_objects::{LookupError, NamedObjects, ObjectReferences};
use kubelet_model::objects::{Service, Services};
use kubelet_model::pod::downward::{DownwardError, variable_field, variable_resource};
use kubelet_model::pod::expansion::expand;
use kubelet_model::pod::spec::is_static;

/// Why an environment cannot be made; becomes the message of `CreateContainerConfigError`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    #[error("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")]
    NoServiceLinks,
    #[error("services have not yet been read at least once, cannot construct envvars")]
    ServicesNotRead,
    #[error(transparent)]
    Object(#[from] LookupError),
    /// `kind` as upstream writes it here: `ConfigMap`, `Secret`.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    NoKey { kind: &'static str, key: String, namespace: String, name: String },
    #[error(transparent)]
    File(#[from] EnvFileError),
    #[error(transparent)]
    Downward(#[from] DownwardError),
    #[error("{0:?} is not valid UTF-8 once its variables are put in")]
    NotText(String),
}

impl EnvError {
    /// Somebody has not answered yet: nothing is known to be wrong with the pod.
    pub fn is_transient(&self) -> bool {
        match self {
            EnvError::ServicesNotRead => true,
            EnvError::Object(error) => error.is_transient(),
            EnvError::File(error) => matches!(error, EnvFileError::Away(_)),
            _ => false,
        }
    }
}

/// Name and value, in the order in which they go to the runtime. A secret's value may be any bytes.
pub type Environment = Vec<(String, Vec<u8>)>;

/// What an environment is made of besides the pod.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// Primary first, at most one of each family.
    pub pod_ips: &'a [IpAddr],
    pub services: Services<'a>,
    /// At least what [`wanted`] names.
    pub objects: &'a NamedObjects,
    /// At least what [`env_files::wanted`] names.
    pub files: &'a EnvFiles,
}

/// The objects that a container's environment names.
pub fn wanted(container: &Container) -> ObjectReferences {
    let mut wanted = ObjectReferences::default();
    for from in container.env_from.iter().flatten() {
        wanted.config_maps.extend(from.config_map_ref.iter().map(|r| r.name.clone()));
        wanted.secrets.extend(from.secret_ref.iter().map(|r| r.name.clone()));
    }
    let computed = container.env.iter().flatten().filter(|v| v.value.as_deref().unwrap_or("").is_empty());
    for source in computed.filter_map(|v| v.value_from.as_ref()) {
        wanted.config_maps.extend(source.config_map_key_ref.iter().map(|r| r.name.clone()));
        wanted.secrets.extend(source.secret_key_ref.iter().map(|r| r.name.clone()));
    }
    wanted
}

/// The whole environment of a container.
pub fn environment(
    pod: &Pod,
    container: &Container,
    inputs: Inputs<'_>,
    facts: &NodeFacts,
) -> Result<Environment, EnvError> {
    let links = pod.spec.as_ref().and_then(|s| s.enable_service_links).ok_or(EnvError::NoServiceLinks)?;
    if !is_static(pod) && !inputs.services.synced {
        return Err(EnvError::ServicesNotRead);
    }
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let service_variables = service_variables(inputs.services.known, namespace, links);
    let mut result = Environment::new();
    for from in container.env_from.iter().flatten() {
        for (key, value) in values_of(from, inputs.objects)? {
            set(&mut result, format!("{}{key}", from.prefix.as_deref().unwrap_or("")), value);
        }
    }
    for variable in container.env.iter().flatten() {
        let literal = variable.value.as_deref().unwrap_or("");
        let value = if !literal.is_empty() {
            Some(expand(literal, |name| lookup(&result, name).or_else(|| lookup(&service_variables, name))))
        } else if let Some(source) = &variable.value_from {
            let known = ValueContext { pod, container, namespace, inputs, facts };
            known.value(source)?
        } else {
            Some(Vec::new())
        };
        // What is optional and absent leaves what envFrom may have set.
        if let Some(value) = value {
            set(&mut result, variable.name.clone(), value);
        }
    }
    for (name, value) in service_variables {
        if lookup(&result, &name).is_none() {
            result.push((name, value));
        }
    }
    Ok(result)
}

/// Keys and values of one `envFrom`, by key; none of an optional source that does not exist.
fn values_of(from: &EnvFromSource, objects: &NamedObjects) -> Result<BTreeMap<String, Vec<u8>>, EnvError> {
    if let Some(source) = &from.config_map_ref {
        return match objects.config_map(&source.name) {
            Ok(map) => Ok(map.data.iter().flatten().map(|(k, v)| (k.clone(), v.clone().into_bytes())).collect()),
            Err(error) => none_if_optional(error, source.optional),
        };
    }
    if let Some(source) = &from.secret_ref {
        return match objects.secret(&source.name) {
            Ok(secret) => Ok(secret.data.iter().flatten().map(|(k, v)| (k.clone(), v.0.clone())).collect()),
            Err(error) => none_if_optional(error, source.optional),
        };
    }
    Ok(BTreeMap::new())
}

/// Only an object that is known not to exist may be missed.
fn none_if_optional<T: Default>(error: LookupError, optional: Option<bool>) -> Result<T, EnvError> {
    match error {
        LookupError::NotFound { .. } if optional == Some(true) => Ok(T::default()),
        error => Err(error.into()),
    }
}

/// What a `valueFrom` is looked up in.
struct ValueContext<'a> {
    pod: &'a Pod,
    container: &'a Container,
    namespace: &'a str,
    inputs: Inputs<'a>,
    facts: &'a NodeFacts,
}

impl ValueContext<'_> {
    /// None: it is optional and absent.
    fn value(&self, source: &EnvVarSource) -> Result<Option<Vec<u8>>, EnvError> {
        let objects = self.inputs.objects;
        Ok(match source {
            EnvVarSource { field_ref: Some(field), .. } => {
                Some(variable_field(self.pod, &field.field_path, self.inputs.pod_ips, self.facts)?.into_bytes())
            }
            EnvVarSource { resource_field_ref: Some(resource), .. } => {
                Some(variable_resource(resource, self.pod, self.container, self.facts)?.into_bytes())
            }
            EnvVarSource { config_map_key_ref: Some(key), .. } => {
                let map = match objects.config_map(&key.name) {
                    Ok(map) => map,
                    Err(error) => return none_if_optional(error, key.optional),
                };
                let value = map.data.as_ref().and_then(|d| d.get(&key.key)).map(|text| text.clone().into_bytes());
                self.or_no_key(value, "ConfigMap", &key.name, &key.key, key.optional)?
            }
            EnvVarSource { secret_key_ref: Some(key), .. } => {
                let secret = match objects.secret(&key.name) {
                    Ok(secret) => secret,
                    Err(error) => return none_if_optional(error, key.optional),
                };
                let value = secret.data.as_ref().and_then(|d| d.get(&key.key)).map(|bytes| bytes.0.clone());
                self.or_no_key(value, "Secret", &key.name, &key.key, key.optional)?
            }
            EnvVarSource { file_key_ref: Some(key), .. } if self.facts.env_files => {
                env_files::value(self.inputs.files, key)?
            }
            _ => Some(Vec::new()),
        })
    }

    fn or_no_key(
        &self,
        value: Option<Vec<u8>>,
        kind: &'static str,
        name: &str,
        key: &str,
        optional: Option<bool>,
    ) -> Result<Option<Vec<u8>>, EnvError> {
        if value.is_some() || optional == Some(true) {
            return Ok(value);
        }
        let (namespace, name, key) = (self.namespace.to_owned(), name.to_owned(), key.to_owned());
        Err(EnvError::NoKey { kind, key, namespace, name })
    }
}

/// A name that is there already keeps its place.
fn set(environment: &mut Environment, name: String, value: Vec<u8>) {
    match environment.iter_mut().find(|(n, _)| *n == name) {
        Some((_, old)) => *old = value,
        None => environment.push((name, value)),
    }
}

pub(super) fn lookup<'a>(environment: &'a [(String, Vec<u8>)], name: &str) -> Option<&'a [u8]> {
    environment.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_slice())
}

/// Command and arguments with every variable of the environment put in.
///
/// # Errors
/// [`EnvError::NotText`]: the runtime takes text only.
pub fn expand_command(
    container: &Container,
    environment: &[(String, Vec<u8>)],
) -> Result<(Vec<String>, Vec<String>), EnvError> {
    let expand_all = |list: &Option<Vec<String>>| {
        let expanded = list.iter().flatten().map(|text| {
            String::from_utf8(expand(text, |name| lookup(environment, name)))
                .map_err(|_| EnvError::NotText(text.clone()))
        });
        expanded.collect::<Result<Vec<String>, EnvError>>()
    };
    Ok((expand_all(&container.command)?, expand_all(&container.args)?))
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
        let mut set = |suffix: String, value: String| result.push((format!("{prefix}_{suffix}"), value.into_bytes()));
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
