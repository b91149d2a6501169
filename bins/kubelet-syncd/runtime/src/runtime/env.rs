//! Environment of a container: where each value comes from, `$(VAR)` expansion, and the variables that describe
//! services. Order and overriding are upstream's (`pkg/kubelet/kubelet_pods.go` makeEnvironmentVariables), except that
//! where upstream's order is random ours is that of declaration.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVarSource};
use kubelet_model::v1::{Container, Pod};

use super::argument_list::{ArgumentsTooLong, Environment, Room, Variables};
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
    #[error(transparent)]
    TooLong(#[from] ArgumentsTooLong),
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
    let services = service_variables(inputs.services.known, namespace, links)?;
    let mut result = Variables::default();
    for from in container.env_from.iter().flatten() {
        set_from(&mut result, from, inputs.objects)?;
    }
    let known = ValueContext { pod, container, namespace, inputs, facts };
    for variable in container.env.iter().flatten() {
        let literal = variable.value.as_deref().unwrap_or("");
        let value = if !literal.is_empty() {
            let value_of = |name: &str| result.get(name).or_else(|| services.get(name));
            let value = expand(literal, result.room(&variable.name)?, value_of);
            Some(value.map_err(|_| ArgumentsTooLong::with_variable(&variable.name))?.into())
        } else if let Some(source) = &variable.value_from {
            known.value(source)?
        } else {
            Some(Cow::Borrowed(&b""[..]))
        };
        // What is optional and absent leaves what envFrom may have set.
        if let Some(value) = value {
            result.set(variable.name.clone(), value)?;
        }
    }
    for (name, value) in services.finish() {
        result.add(name, value)?;
    }
    Ok(result.finish())
}

/// Sets the variables of one `envFrom`, by key; none of an optional source that does not exist.
fn set_from(result: &mut Variables, from: &EnvFromSource, objects: &NamedObjects) -> Result<(), EnvError> {
    let name = |key: &str| format!("{}{key}", from.prefix.as_deref().unwrap_or(""));
    if let Some(source) = &from.config_map_ref {
        let map = or_none_if_optional(objects.config_map(&source.name), source.optional)?;
        for (key, value) in map.and_then(|map| map.data.as_ref()).into_iter().flatten() {
            result.set(name(key), Cow::Borrowed(value.as_bytes()))?;
        }
    } else if let Some(source) = &from.secret_ref {
        let secret = or_none_if_optional(objects.secret(&source.name), source.optional)?;
        for (key, value) in secret.and_then(|secret| secret.data.as_ref()).into_iter().flatten() {
            result.set(name(key), Cow::Borrowed(&value.0))?;
        }
    }
    Ok(())
}

/// Only an object that is known not to exist may be missed.
fn or_none_if_optional<T>(found: Result<&T, LookupError>, optional: Option<bool>) -> Result<Option<&T>, EnvError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(LookupError::NotFound { .. }) if optional == Some(true) => Ok(None),
        Err(error) => Err(error.into()),
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

impl<'a> ValueContext<'a> {
    /// None: it is optional and absent.
    fn value(&self, source: &EnvVarSource) -> Result<Option<Cow<'a, [u8]>>, EnvError> {
        let objects = self.inputs.objects;
        Ok(match source {
            EnvVarSource { field_ref: Some(field), .. } => {
                let text = variable_field(self.pod, &field.field_path, self.inputs.pod_ips, self.facts)?;
                Some(text.into_bytes().into())
            }
            EnvVarSource { resource_field_ref: Some(resource), .. } => {
                Some(variable_resource(resource, self.pod, self.container, self.facts)?.into_bytes().into())
            }
            EnvVarSource { config_map_key_ref: Some(key), .. } => {
                let Some(map) = or_none_if_optional(objects.config_map(&key.name), key.optional)? else {
                    return Ok(None);
                };
                let value = map.data.as_ref().and_then(|d| d.get(&key.key)).map(String::as_bytes);
                self.or_no_key(value, "ConfigMap", &key.name, &key.key, key.optional)?
            }
            EnvVarSource { secret_key_ref: Some(key), .. } => {
                let Some(secret) = or_none_if_optional(objects.secret(&key.name), key.optional)? else {
                    return Ok(None);
                };
                let value = secret.data.as_ref().and_then(|d| d.get(&key.key)).map(|bytes| bytes.0.as_slice());
                self.or_no_key(value, "Secret", &key.name, &key.key, key.optional)?
            }
            EnvVarSource { file_key_ref: Some(key), .. } if self.facts.env_files => {
                env_files::value(self.inputs.files, key)?.map(Cow::Borrowed)
            }
            _ => Some(Cow::Borrowed(b"")),
        })
    }

    fn or_no_key(
        &self,
        value: Option<&'a [u8]>,
        kind: &'static str,
        name: &str,
        key: &str,
        optional: Option<bool>,
    ) -> Result<Option<Cow<'a, [u8]>>, EnvError> {
        if value.is_some() || optional == Some(true) {
            return Ok(value.map(Cow::Borrowed));
        }
        let (namespace, name, key) = (self.namespace.to_owned(), name.to_owned(), key.to_owned());
        Err(EnvError::NoKey { kind, key, namespace, name })
    }
}

/// Command and arguments with every variable of the environment put in.
///
/// # Errors
/// [`EnvError::NotText`]: the runtime takes text only. [`EnvError::TooLong`] as soon as there is no room left beside the environment.
pub fn expand_command(
    container: &Container,
    environment: &Environment,
) -> Result<(Vec<String>, Vec<String>), EnvError> {
    let (command, args, _) = expanded(container, environment)?;
    Ok((command, args))
}

/// Whether a start with these is to wait for its turn among the large ones.
///
/// # Errors
/// As [`expand_command`].
pub(super) fn is_large(container: &Container, environment: &Environment) -> Result<bool, EnvError> {
    let (command, args, room) = expanded(container, environment)?;
    Ok(room.is_large(environment.len() + command.len() + args.len()))
}

/// Command and arguments, and how much room they leave.
fn expanded(container: &Container, environment: &Environment) -> Result<(Vec<String>, Vec<String>, Room), EnvError> {
    let mut room = Room::beside(environment);
    let command = expand_all("command", container.command.as_ref(), environment, &mut room)?;
    let args = expand_all("args", container.args.as_ref(), environment, &mut room)?;
    Ok((command, args, room))
}

fn expand_all(
    field: &str,
    list: Option<&Vec<String>>,
    environment: &Environment,
    room: &mut Room,
) -> Result<Vec<String>, EnvError> {
    let value_of = |name: &str| environment.get(name).map(Vec::as_slice);
    let expanded = list.into_iter().flatten().enumerate().map(|(index, text)| {
        let which = || format!("{field}[{index}]");
        let expanded = expand(text, room.text(), value_of).map_err(|_| ArgumentsTooLong::Passed(which()))?;
        room.take(&expanded, which)?;
        String::from_utf8(expanded).map_err(|_| EnvError::NotText(text.clone()))
    });
    expanded.collect()
}

/// Variables for the services of the namespace (if wanted) and, always, for `kubernetes` in `default`
/// (upstream `pkg/kubelet/envvars`). Where two give the same name (`a` and `a-service`), the first counts.
fn service_variables(services: &[Service], namespace: &str, links: bool) -> Result<Variables, ArgumentsTooLong> {
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
    let mut result = Variables::default();
    for (name, service) in chosen {
        let prefix = name.replace('-', "_").to_uppercase();
        let ip = &service.cluster_ip;
        let mut set = |suffix: String, value: String| result.add(format!("{prefix}_{suffix}"), value.into_bytes());
        set("SERVICE_HOST".to_owned(), ip.clone())?;
        if let Some(first) = service.ports.first() {
            set("SERVICE_PORT".to_owned(), first.port.to_string())?;
        }
        for port in service.ports.iter().filter(|p| !p.name.is_empty()) {
            let port_name = port.name.replace('-', "_").to_uppercase();
            set(format!("SERVICE_PORT_{port_name}"), port.port.to_string())?;
        }
        for (index, port) in service.ports.iter().enumerate() {
            let upper = if port.protocol.is_empty() { "TCP".to_owned() } else { port.protocol.to_uppercase() };
            let lower = upper.to_lowercase();
            let host = if ip.contains(':') { format!("[{ip}]") } else { ip.clone() };
            let url = format!("{lower}://{host}:{}", port.port);
            if index == 0 {
                set("PORT".to_owned(), url.clone())?;
            }
            let base = format!("PORT_{}_{upper}", port.port);
            set(base.clone(), url)?;
            set(format!("{base}_PROTO"), lower)?;
            set(format!("{base}_PORT"), port.port.to_string())?;
            set(format!("{base}_ADDR"), ip.clone())?;
        }
    }
    Ok(result)
}

#[cfg(test)]
#[path = "env_tests.rs"]
mod tests;
