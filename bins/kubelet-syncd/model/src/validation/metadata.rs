//! Names, namespace, labels, annotations, owners and finalizers of a pod.

use std::collections::BTreeMap;

use crate::v1::{Pod, PodSpec};
use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::field::{AsJson, Errors, Path, items, quote, text};
use super::{containers, names, scheduling, security};
use crate::annotations::CONFIG_MIRROR;

/// All annotations of one object together, keys and values.
const ANNOTATIONS_MAX_BYTES: usize = 256 * 1024;
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const APPARMOR_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER_PREFIX: &str = "container.seccomp.security.alpha.kubernetes.io/";

pub fn validate(pod: &Pod, spec: &PodSpec, errors: &mut Errors) {
    let path = Path::new("metadata");
    object_meta(&pod.metadata, &path, errors);
    if let Some(annotations) = &pod.metadata.annotations {
        known_annotations(annotations, spec, &path.child("annotations"), errors);
    }
}

fn object_meta(meta: &ObjectMeta, path: &Path, errors: &mut Errors) {
    let generate_name = text(&meta.generate_name);
    if !generate_name.is_empty() {
        // A prefix may end in '-': what gets appended makes the name valid.
        let masked = match generate_name.strip_suffix('-') {
            Some(stem) if !stem.is_empty() => {
                let mut stem: String = stem.to_owned();
                stem.pop();
                stem.push('a');
                stem
            }
            _ => generate_name.to_owned(),
        };
        errors.invalid_each(&path.child("generateName"), generate_name, names::dns_subdomain(&masked));
    }
    let name = text(&meta.name);
    if name.is_empty() {
        errors.required(&path.child("name"), "name or generateName is required");
    } else {
        errors.invalid_each(&path.child("name"), name, names::dns_subdomain(name));
    }
    let namespace = text(&meta.namespace);
    if namespace.is_empty() {
        errors.required(&path.child("namespace"), "");
    } else {
        errors.invalid_each(&path.child("namespace"), namespace, names::dns_label(namespace));
    }
    if let Some(generation) = meta.generation.filter(|g| *g < 0) {
        errors.invalid(&path.child("generation"), generation, "must be greater than or equal to 0");
    }
    labels(meta.labels.as_ref(), &path.child("labels"), errors);
    annotations(meta.annotations.as_ref(), &path.child("annotations"), errors);
    owners(meta, &path.child("ownerReferences"), errors);
    finalizers(meta, &path.child("finalizers"), errors);
}

/// Keys and values of labels, node selectors and `matchLabels`.
pub fn labels(labels: Option<&BTreeMap<String, String>>, path: &Path, errors: &mut Errors) {
    for (key, value) in labels.into_iter().flatten() {
        errors.invalid_each(path, key, names::qualified_name(key));
        errors.invalid_each(path, value, names::label_value(value));
    }
}

fn annotations(annotations: Option<&BTreeMap<String, String>>, path: &Path, errors: &mut Errors) {
    let mut total = 0;
    for (key, value) in annotations.into_iter().flatten() {
        errors.invalid_each(path, key, names::qualified_name(&key.to_lowercase()));
        total += key.len() + value.len();
    }
    if total > ANNOTATIONS_MAX_BYTES {
        errors.too_long(path, ANNOTATIONS_MAX_BYTES);
    }
}

fn owners(meta: &ObjectMeta, path: &Path, errors: &mut Errors) {
    let mut controller: Option<String> = None;
    for owner in items(&meta.owner_references) {
        let version = owner.api_version.rsplit('/').next().unwrap_or("");
        if version.is_empty() || owner.api_version.matches('/').count() > 1 {
            errors.invalid(&path.child("apiVersion"), &owner.api_version[..], "version must not be empty");
        }
        for (field, value) in [("kind", &owner.kind), ("name", &owner.name), ("uid", &owner.uid)] {
            if value.is_empty() {
                errors.invalid(&path.child(field), &value[..], "must not be empty");
            }
        }
        if owner.api_version == "v1" && owner.kind == "Event" {
            errors.invalid(path, AsJson(owner), "/v1, Kind=Event is disallowed from being an owner");
        }
        if owner.controller == Some(true) {
            let this = format!("{}/{}", owner.kind, owner.name);
            match &controller {
                Some(first) => errors.invalid(
                    path,
                    AsJson(&meta.owner_references),
                    &format!("Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"),
                ),
                None => controller = Some(this),
            }
        }
    }
}

fn finalizers(meta: &ObjectMeta, path: &Path, errors: &mut Errors) {
    let finalizers = items(&meta.finalizers);
    for finalizer in finalizers {
        errors.invalid_each(path, finalizer, names::qualified_name(finalizer));
    }
    let has = |name: &str| finalizers.iter().any(|f| f == name);
    if has("orphan") && has("foregroundDeletion") {
        errors.invalid(path, AsJson(&finalizers), "finalizer foregroundDeletion and orphan cannot be both set");
    }
    for (index, finalizer) in finalizers.iter().enumerate() {
        if !finalizer.contains('/') && !["kubernetes", "orphan", "foregroundDeletion"].contains(&finalizer.as_str()) {
            errors.invalid(
                &path.index(index),
                finalizer,
                "name is neither a standard finalizer name nor is it fully qualified",
            );
        }
    }
}

fn known_annotations(annotations: &BTreeMap<String, String>, spec: &PodSpec, path: &Path, errors: &mut Errors) {
    if let Some(value) = annotations.get(CONFIG_MIRROR)
        && text(&spec.node_name).is_empty()
    {
        errors.invalid(&path.key(CONFIG_MIRROR), value, "must set spec.nodeName if mirror pod annotation is set");
    }
    if let Some(value) = annotations.get(TOLERATIONS).filter(|v| !v.is_empty()) {
        match serde_json::from_str::<Vec<Toleration>>(value) {
            Ok(tolerations) => scheduling::tolerations(&tolerations, &path.child(TOLERATIONS), errors),
            Err(e) => errors.invalid(path, TOLERATIONS, &e.to_string()),
        }
    }
    if let Some(value) = annotations.get(DELETION_COST) {
        let first_digit_ok = value == "0" || value.starts_with(|c: char| c == '-' || ('1'..='9').contains(&c));
        if !first_digit_ok || value.parse::<i32>().is_err() {
            errors.invalid(&path.key(DELETION_COST), value, "must be a 32bit integer");
        }
    }
    if let Some(profile) = annotations.get(SECCOMP_POD) {
        seccomp_annotation(profile, &path.child(SECCOMP_POD), errors);
    }
    for (key, value) in annotations {
        if key.starts_with(SECCOMP_CONTAINER_PREFIX) {
            seccomp_annotation(value, &path.child(key), errors);
        }
        let Some(container) = key.strip_prefix(APPARMOR_PREFIX) else { continue };
        if !containers::all(spec).any(|(_, c)| c.name == container) {
            errors.invalid(&path.key(key), container, "container not found");
        }
        if !(value.is_empty() || value == "runtime/default" || value == "unconfined" || value.starts_with("localhost/"))
        {
            errors.invalid(&path.key(key), value, &format!("invalid AppArmor profile name: {}", quote(value)));
        }
    }
}

fn seccomp_annotation(profile: &str, path: &Path, errors: &mut Errors) {
    match profile {
        "runtime/default" | "docker/default" | "unconfined" => {}
        _ => match profile.strip_prefix("localhost/") {
            Some(local) => security::local_descending_path(local, path, errors),
            None => errors.invalid(path, profile, "must be a valid seccomp profile"),
        },
    }
}

/// Where a profile is given by field and by its old annotation, both must say the same.
pub fn profiles_agree(pod: &Pod, spec: &PodSpec, errors: &mut Errors) {
    let Some(annotations) = &pod.metadata.annotations else { return };
    let spec_path = Path::new("spec");
    if let Some(profile) = spec.security_context.as_ref().and_then(|s| s.seccomp_profile.as_ref())
        && let Some(annotation) = annotations.get(SECCOMP_POD)
    {
        let path = spec_path.child("securityContext").child("seccompProfile");
        agree(annotation, &profile.type_, profile.localhost_profile.as_deref(), "seccomp", &path, errors);
    }
    let windows = spec.os.as_ref().is_some_and(|os| os.name == "windows");
    let pod_apparmor = spec.security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
    for (path, container) in containers::all(spec) {
        let path = path.child("securityContext");
        let context = container.security_context.as_ref();
        if let Some(profile) = context.and_then(|s| s.seccomp_profile.as_ref())
            && let Some(annotation) = annotations.get(&format!("{SECCOMP_CONTAINER_PREFIX}{}", container.name))
        {
            let path = path.child("seccompProfile");
            agree(annotation, &profile.type_, profile.localhost_profile.as_deref(), "seccomp", &path, errors);
        }
        let profile = context.and_then(|s| s.app_armor_profile.as_ref()).or(pod_apparmor);
        if !windows
            && let Some(profile) = profile
            && let Some(annotation) = annotations.get(&format!("{APPARMOR_PREFIX}{}", container.name))
        {
            let path = path.child("appArmorProfile");
            agree(annotation, &profile.type_, profile.localhost_profile.as_deref(), "apparmor", &path, errors);
        }
    }
}

fn agree(annotation: &str, kind: &str, localhost: Option<&str>, what: &str, path: &Path, errors: &mut Errors) {
    let same_kind = match kind {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => annotation == "runtime/default" || (what == "seccomp" && annotation == "docker/default"),
        "Localhost" => annotation.starts_with("localhost/"),
        _ => true,
    };
    if !same_kind {
        errors.forbidden(&path.child("type"), &format!("{what} type in annotation and field must match"));
    } else if kind == "Localhost" && annotation.strip_prefix("localhost/") != localhost {
        errors
            .forbidden(&path.child("localhostProfile"), &format!("{what} profile in annotation and field must match"));
    }
}
