//! Environment variables, and the selectors (`fieldRef`, `resourceFieldRef`) that downward API volumes share with them.

use crate::v1::PodSpec;
use bulkhead_types::Quantity;
use bulkhead_types::resource_name::is_huge_page;
use k8s_openapi::api::core::v1::ResourceFieldSelector;
use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, FileKeySelector, ObjectFieldSelector};

use super::field::{Errors, Path, items, text};
use super::security::no_backsteps;
use super::{containers, names};

const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
pub const VOLUME_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
/// Every path that the API knows as a field label of a pod.
const KNOWN_FIELDS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const BYTE_DIVISORS: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

pub fn validate(vars: &[EnvVar], path: &Path, errors: &mut Errors) {
    for (index, var) in vars.iter().enumerate() {
        let path = path.index(index);
        if var.name.is_empty() {
            errors.required(&path.child("name"), "");
        } else {
            errors.invalid_each(&path.child("name"), &var.name[..], names::env_name(&var.name));
        }
        value_from(var, &path.child("valueFrom"), errors);
    }
}

fn value_from(var: &EnvVar, path: &Path, errors: &mut Errors) {
    let Some(from) = &var.value_from else { return };
    let mut sources = 0;
    if let Some(field) = &from.field_ref {
        sources += 1;
        field_selector(field, &ENV_FIELDS, &path.child("fieldRef"), errors);
    }
    if let Some(resource) = &from.resource_field_ref {
        sources += 1;
        resource_selector(resource, false, &path.child("resourceFieldRef"), errors);
    }
    if let Some(key) = &from.config_map_key_ref {
        sources += 1;
        object_key(&key.name, &key.key, &path.child("configMapKeyRef"), errors);
    }
    if let Some(key) = &from.secret_key_ref {
        sources += 1;
        object_key(&key.name, &key.key, &path.child("secretKeyRef"), errors);
    }
    if let Some(key) = &from.file_key_ref {
        sources += 1;
        file_key(key, &path.child("fileKeyRef"), errors);
    }
    if sources == 0 {
        errors.invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        );
    } else if !text(&var.value).is_empty() {
        errors.invalid(path, "", "may not be specified when `value` is not empty");
    } else if sources > 1 {
        errors.invalid(path, "", "may not have more than one field specified at a time");
    }
}

pub fn validate_from(sources: &[EnvFromSource], path: &Path, errors: &mut Errors) {
    for (index, source) in sources.iter().enumerate() {
        let indexed = path.index(index);
        let prefix = text(&source.prefix);
        if !prefix.is_empty() {
            errors.invalid_each(&indexed.child("prefix"), prefix, names::env_name(prefix));
        }
        let mut count = 0;
        for (field, name) in [
            ("configMapRef", source.config_map_ref.as_ref().map(|r| r.name.as_str())),
            ("secretRef", source.secret_ref.as_ref().map(|r| r.name.as_str())),
        ] {
            let Some(name) = name else { continue };
            count += 1;
            let path = indexed.child(field).child("name");
            if name.is_empty() {
                errors.required(&path, "");
            } else {
                errors.invalid_each(&path, name, names::dns_subdomain(name));
            }
        }
        if count == 0 {
            errors.invalid(path, "", "must specify one of: `configMapRef` or `secretRef`");
        } else if count > 1 {
            errors.invalid(path, "", "may not have more than one field specified at a time");
        }
    }
}

fn object_key(name: &str, key: &str, path: &Path, errors: &mut Errors) {
    errors.invalid_each(&path.child("name"), name, names::dns_subdomain(name));
    if key.is_empty() {
        errors.required(&path.child("key"), "");
    } else {
        errors.invalid_each(&path.child("key"), key, names::config_key(key));
    }
}

fn file_key(selector: &FileKeySelector, path: &Path, errors: &mut Errors) {
    if selector.key.is_empty() {
        errors.required(&path.child("key"), "");
    } else {
        errors.invalid_each(&path.child("key"), &selector.key[..], names::env_name(&selector.key));
    }
    if selector.volume_name.is_empty() {
        errors.required(&path.child("volumeName"), "");
    } else {
        let wrong = names::dns_label(&selector.volume_name);
        errors.invalid_each(&path.child("volumeName"), &selector.volume_name[..], wrong);
    }
    if selector.path.is_empty() {
        errors.required(&path.child("path"), "");
    } else {
        no_backsteps(&selector.path, &path.child("path"), errors);
    }
}

/// A `fileKeyRef` must name an emptyDir of this pod.
pub fn file_key_volumes(spec: &PodSpec, errors: &mut Errors) {
    for (path, container) in containers::all(spec) {
        for (index, var) in items(&container.env).iter().enumerate() {
            let Some(key) = var.value_from.as_ref().and_then(|f| f.file_key_ref.as_ref()) else { continue };
            let path = path.child("env").index(index).child("valueFrom").child("fileKeyRef").child("volumeName");
            match items(&spec.volumes).iter().rev().find(|v| v.name == key.volume_name) {
                None => errors.not_found(&path, &key.volume_name[..], ""),
                Some(volume) if volume.empty_dir.is_none() => {
                    errors.invalid(&path, &key.volume_name[..], "referenced volume must be of type emptyDir");
                }
                Some(_) => {}
            }
        }
    }
}

/// `metadata.labels['key']` into path and key (upstream SplitMaybeSubscriptedPath).
pub fn subscripted(field_path: &str) -> Option<(&str, &str)> {
    field_path.strip_suffix("']")?.split_once("['").filter(|(path, _)| !path.is_empty())
}

/// The field that a `fieldPath` stands for (upstream `pkg/apis/core/pods/helpers.go`, ConvertDownwardAPIFieldLabel): old clients say
/// `spec.host` for `spec.nodeName`.
///
/// # Errors
/// Why it stands for none, in upstream's words.
pub fn field_label(path: &str) -> Result<&str, String> {
    match subscripted(path) {
        Some(("metadata.annotations" | "metadata.labels", _)) => Ok(path),
        Some(_) => Err(format!("field label does not support subscript: {path}")),
        None if path == "spec.host" => Ok("spec.nodeName"),
        None if KNOWN_FIELDS.contains(&path) => Ok(path),
        None => Err(format!("field label not supported: {path}")),
    }
}

pub fn field_selector(selector: &ObjectFieldSelector, allowed: &[&str], path: &Path, errors: &mut Errors) {
    let version = text(&selector.api_version);
    if version.is_empty() {
        errors.required(&path.child("apiVersion"), "");
        return;
    }
    let field_path = selector.field_path.as_str();
    if field_path.is_empty() {
        errors.required(&path.child("fieldPath"), "");
        return;
    }
    let refuse = |errors: &mut Errors, why: String| {
        errors.invalid(&path.child("fieldPath"), field_path, &format!("error converting fieldPath: {why}"));
    };
    if version != "v1" {
        return refuse(errors, format!("unsupported pod version: {version}"));
    }
    let field = match field_label(field_path) {
        Ok(field) => field,
        Err(why) => return refuse(errors, why),
    };
    match subscripted(field) {
        Some(("metadata.annotations", key)) => {
            let key = key.to_lowercase();
            errors.invalid_each(path, &key, names::qualified_name(&key));
        }
        Some((_, key)) => errors.invalid_each(path, key, names::qualified_name(key)),
        None => errors.one_of(&path.child("fieldPath"), field, allowed),
    }
}

pub fn resource_selector(selector: &ResourceFieldSelector, in_volume: bool, path: &Path, errors: &mut Errors) {
    let resource = selector.resource.as_str();
    let huge_pages = ["requests.", "limits."].iter().any(|list| resource.strip_prefix(list).is_some_and(is_huge_page));
    if in_volume && text(&selector.container_name).is_empty() {
        errors.required(&path.child("containerName"), "");
    } else if resource.is_empty() {
        errors.required(&path.child("resource"), "");
    } else if !huge_pages {
        errors.one_of(&path.child("resource"), resource, &RESOURCES);
    }
    let Some(divisor) = selector.divisor.as_ref().and_then(|d| Quantity::parse(&d.0).ok()) else { return };
    if divisor.is_zero() {
        return;
    }
    let shown = divisor.to_string();
    let what = match resource {
        "limits.cpu" | "requests.cpu" => {
            if shown != "1m" && shown != "1" {
                let why = "only divisor's values 1m and 1 are supported with the cpu resource";
                errors.invalid(&path.child("divisor"), resource, why);
            }
            return;
        }
        "limits.memory" | "requests.memory" => "memory",
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => "local ephemeral storage",
        _ if huge_pages => "hugepages",
        _ => return,
    };
    if !BYTE_DIVISORS.contains(&shown.as_str()) {
        let list = BYTE_DIVISORS.join(", ");
        let why = format!("only divisor's values {list} are supported with the {what} resource");
        errors.invalid(&path.child("divisor"), resource, &why);
    }
}
