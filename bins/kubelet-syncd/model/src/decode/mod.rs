//! Bytes of a manifest to a pod: YAML or JSON, read into a plain value first and into the API type second, as upstream
//! does (`pkg/kubelet/config/common.go`, `sigs.k8s.io/yaml`). Unknown fields are tolerated, the last of two equal keys
//! wins, and of several YAML documents the first is taken; the API's own types are strict.

mod path_errors;
mod yaml;

#[cfg(test)]
mod tests;

use crate::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;

use crate::validation::resources;

/// Upstream refuses what reaches this many bytes.
pub const MANIFEST_MAX_BYTES: usize = 10 * 1024 * 1024;

/// Why bytes are not the wanted object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("larger than {MANIFEST_MAX_BYTES} bytes")]
    TooLarge,
    #[error("empty: there is no document in it")]
    Empty,
    #[error("not UTF-8 or UTF-16 text")]
    NotText,
    #[error("neither YAML nor JSON: {0}")]
    Syntax(String),
    #[error("a mapping with apiVersion and kind is needed at the top")]
    NotAnObject,
    #[error("field {0:?} is missing or not a text")]
    MissingTypeField(&'static str),
    #[error("holds {api_version} {kind}; a v1 {wanted} is needed")]
    WrongKind { api_version: String, kind: String, wanted: &'static str },
    #[error("{field}: {message}")]
    Type { field: String, message: String },
}

/// The top object of a manifest before it has a type.
#[derive(Debug, Clone)]
pub struct Document {
    value: Value,
    /// The file holds more documents, which are ignored.
    pub more_documents: bool,
}

/// Reads the first document.
pub fn document(bytes: &[u8]) -> Result<Document, DecodeError> {
    if bytes.len() >= MANIFEST_MAX_BYTES {
        return Err(DecodeError::TooLarge);
    }
    let text = yaml::to_text(bytes)?;
    let (mut value, more_documents) = yaml::read(&text)?;
    yaml::normalise(&mut value);
    match value {
        Value::Null => Err(DecodeError::Empty),
        Value::Object(_) => Ok(Document { value, more_documents }),
        _ => Err(DecodeError::NotAnObject),
    }
}

impl Document {
    fn type_field(&self, field: &'static str) -> Result<&str, DecodeError> {
        match self.value.get(field).and_then(Value::as_str) {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(DecodeError::MissingTypeField(field)),
        }
    }

    fn check_kind(&self, wanted: &'static str) -> Result<(), DecodeError> {
        let kind = self.type_field("kind")?;
        let api_version = self.type_field("apiVersion")?;
        if api_version == "v1" && kind == wanted {
            return Ok(());
        }
        Err(DecodeError::WrongKind { api_version: api_version.to_owned(), kind: kind.to_owned(), wanted })
    }

    /// As one v1 Pod.
    pub fn into_pod(self) -> Result<Pod, DecodeError> {
        self.check_kind("Pod")?;
        typed_pod(self.value)
    }

    /// As a v1 PodList. (A v1 List is no PodList, for upstream neither.)
    pub fn into_pod_list(mut self) -> Result<Vec<Pod>, DecodeError> {
        self.check_kind("PodList")?;
        let items = match self.value.get_mut("items").map(Value::take) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(items)) => items,
            Some(_) => {
                let message = "invalid type, expected a list".to_owned();
                return Err(DecodeError::Type { field: "items".to_owned(), message });
            }
        };
        let mut pods = Vec::with_capacity(items.len());
        for (index, mut item) in items.into_iter().enumerate() {
            // Items have no type of their own in the API; what they say is not looked at.
            if let Value::Object(fields) = &mut item {
                fields.remove("apiVersion");
                fields.remove("kind");
            }
            pods.push(typed_pod(item).map_err(|e| match e {
                DecodeError::Type { field, message } if field.is_empty() => {
                    DecodeError::Type { field: format!("items[{index}]"), message }
                }
                DecodeError::Type { field, message } => {
                    DecodeError::Type { field: format!("items[{index}].{field}"), message }
                }
                other => other,
            })?);
        }
        Ok(pods)
    }

    pub fn is_pod_list(&self) -> bool {
        self.value.get("kind").and_then(Value::as_str) == Some("PodList")
    }
}

/// One v1 Pod from a file's bytes; with it whether more documents were ignored.
pub fn pod(bytes: &[u8]) -> Result<(Pod, bool), DecodeError> {
    let document = document(bytes)?;
    let more = document.more_documents;
    Ok((document.into_pod()?, more))
}

fn typed_pod(value: Value) -> Result<Pod, DecodeError> {
    let mut pod: Pod =
        path_errors::from_value(&value).map_err(|e| DecodeError::Type { field: e.path, message: e.message })?;
    canonical_quantities(&mut pod)?;
    Ok(pod)
}

/// Checks every quantity and brings it into canonical form, as upstream's decoder does by keeping the parsed value.
fn canonical_quantities(pod: &mut Pod) -> Result<(), DecodeError> {
    let Some(spec) = &mut pod.spec else { return Ok(()) };
    for (field, containers) in
        [("containers", Some(&mut spec.containers)), ("initContainers", spec.init_containers.as_mut())]
    {
        for (index, container) in containers.into_iter().flatten().enumerate() {
            container_quantities(container, &format!("spec.{field}[{index}]"))?;
        }
    }
    if let Some(overhead) = &mut spec.overhead {
        list(overhead, "spec.overhead")?;
    }
    if let Some(resources) = &mut spec.resources {
        for (field, quantities) in [("limits", &mut resources.limits), ("requests", &mut resources.requests)] {
            if let Some(quantities) = quantities {
                list(quantities, &format!("spec.resources.{field}"))?;
            }
        }
    }
    for (index, volume) in spec.volumes.iter_mut().flatten().enumerate() {
        let at = format!("spec.volumes[{index}]");
        if let Some(limit) = volume.empty_dir.as_mut().and_then(|e| e.size_limit.as_mut()) {
            one(limit, || format!("{at}.emptyDir.sizeLimit"))?;
        }
        let projected = volume.projected.iter_mut().flat_map(|p| p.sources.iter_mut().flatten());
        let projected = projected.filter_map(|s| s.downward_api.as_mut()).flat_map(|d| d.items.iter_mut().flatten());
        let plain = volume.downward_api.iter_mut().flat_map(|d| d.items.iter_mut().flatten());
        for divisor in plain.chain(projected).filter_map(|f| f.resource_field_ref.as_mut()?.divisor.as_mut()) {
            one(divisor, || format!("{at}.downwardAPI.divisor"))?;
        }
    }
    Ok(())
}

fn container_quantities(container: &mut Container, at: &str) -> Result<(), DecodeError> {
    if let Some(resources) = &mut container.resources {
        for (field, quantities) in [("limits", &mut resources.limits), ("requests", &mut resources.requests)] {
            if let Some(quantities) = quantities {
                list(quantities, &format!("{at}.resources.{field}"))?;
            }
        }
    }
    for (index, var) in container.env.iter_mut().flatten().enumerate() {
        let divisor = var.value_from.as_mut().and_then(|f| f.resource_field_ref.as_mut()?.divisor.as_mut());
        if let Some(divisor) = divisor {
            one(divisor, || format!("{at}.env[{index}].valueFrom.resourceFieldRef.divisor"))?;
        }
    }
    Ok(())
}

fn list(quantities: &mut resources::ResourceList, at: &str) -> Result<(), DecodeError> {
    for (name, quantity) in quantities {
        one(quantity, || format!("{at}[{name}]"))?;
    }
    Ok(())
}

fn one(quantity: &mut Quantity, field: impl Fn() -> String) -> Result<(), DecodeError> {
    resources::check_quantity(quantity).map_err(|message| DecodeError::Type { field: field(), message })
}
