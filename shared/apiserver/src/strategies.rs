//! What the server makes of an object before it is stored, by resource: defaults, the split between an object and its
//! status, and what an update may not change (the registries' strategies).

use serde_json::{Value, json};

use super::identity::User;
use super::pods;
use super::resources::Resource;
use super::status::{ApiError, FieldError};
use super::storage::Store;

/// What a strategy needs to know beside the object.
#[derive(Debug, Clone, Copy)]
pub struct StrategyContext<'a> {
    pub user: &'a User,
    /// A new node is not ready: the server taints it until it is.
    pub taint_new_nodes: bool,
}

/// Completes a new object.
///
/// # Errors
/// What admission refuses.
pub fn prepare_create(
    store: &Store,
    resource: &Resource,
    object: &mut Value,
    context: StrategyContext<'_>,
) -> Result<(), ApiError> {
    match resource.kind {
        "Pod" => {
            pods::defaults::apply(object);
            pods::admission::admit(store, object)?;
            object["metadata"]["generation"] = json!(1);
            object["status"] = json!({"phase": "Pending", "qosClass": pods::qos::class(object)});
            if object["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty()) {
                object["status"]["conditions"] = json!([{
                    "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                    "lastProbeTime": null, "lastTransitionTime": null,
                }]);
            }
            amounts(object);
        }
        "Node" => {
            ensure_object(object, "spec");
            ensure_object(object, "status");
            if context.taint_new_nodes {
                let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
                let known = object["spec"]["taints"]
                    .as_array()
                    .is_some_and(|list| list.iter().any(|one| same_taint(one, &taint)));
                if !known {
                    push(&mut object["spec"], "taints", taint);
                }
            }
            if object["status"]["allocatable"].is_null() && object["status"]["capacity"].is_object() {
                object["status"]["allocatable"] = object["status"]["capacity"].clone();
            }
        }
        "Namespace" => {
            let name = object["metadata"]["name"].clone();
            ensure_object(&mut object["metadata"], "labels");
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            object["status"] = json!({"phase": "Active"});
        }
        "Secret" => secret(object),
        "Service" => service(store, resource, object),
        "CertificateSigningRequest" => {
            object["status"] = json!({});
            let user = context.user.to_json();
            for field in ["username", "groups", "uid", "extra"] {
                match user.get(field) {
                    Some(value) => object["spec"][field] = value.clone(),
                    None => drop(object["spec"].as_object_mut().and_then(|spec| spec.remove(field))),
                }
            }
        }
        "PersistentVolumeClaim" => {
            default(&mut object["spec"], "volumeMode", json!("Filesystem"));
            object["status"] = json!({"phase": "Pending"});
        }
        "PersistentVolume" => {
            default(&mut object["spec"], "volumeMode", json!("Filesystem"));
            default(&mut object["spec"], "persistentVolumeReclaimPolicy", json!("Retain"));
            object["status"] = json!({"phase": "Pending"});
        }
        "CSIDriver" => {
            for (field, value) in [
                ("attachRequired", json!(true)),
                ("podInfoOnMount", json!(false)),
                ("storageCapacity", json!(false)),
                ("requiresRepublish", json!(false)),
                ("seLinuxMount", json!(false)),
                ("fsGroupPolicy", json!("ReadWriteOnceWithFSType")),
                ("volumeLifecycleModes", json!(["Persistent"])),
            ] {
                ensure_object(object, "spec");
                default(&mut object["spec"], field, value);
            }
        }
        "StorageClass" => {
            default(object, "reclaimPolicy", json!("Delete"));
            default(object, "volumeBindingMode", json!("Immediate"));
        }
        "PriorityClass" => default(object, "preemptionPolicy", json!("PreemptLowerPriority")),
        "VolumeAttachment" => object["status"] = json!({"attached": false}),
        "Event" if object.get("eventTime").is_none() => object["eventTime"] = Value::Null,
        _ => {}
    }
    Ok(())
}

/// Separates what the request may write from what it may not; complaints about the rest.
pub fn prepare_update(resource: &Resource, subresource: &str, new: &mut Value, old: &Value) -> Vec<FieldError> {
    match (resource.kind, subresource) {
        ("Pod", "") => {
            keep(new, old, "status");
            pods::defaults::apply(new);
            for field in ["priority", "preemptionPolicy"] {
                if new["spec"][field].is_null() && !old["spec"][field].is_null() {
                    new["spec"][field] = old["spec"][field].clone();
                }
            }
            amounts(new);
            let errors = pods::update::complaints(new, old);
            bump_generation(new, old);
            errors
        }
        ("Pod", "status") => {
            pods::status::prepare(new, old);
            pods::status::canonical(new);
            amounts(new);
            pods::status::complaints(new, old)
        }
        ("Pod", "resize") => {
            *new = pods::resize::prepare(new, old);
            pods::defaults::apply(new);
            amounts(new);
            bump_generation(new, old);
            pods::resize::complaints(new, old)
        }
        ("Pod", "ephemeralcontainers") => match pods::update::ephemeral_containers(new, old) {
            Ok(pod) => {
                *new = pod;
                pods::defaults::apply(new);
                amounts(new);
                bump_generation(new, old);
                Vec::new()
            }
            Err(error) => vec![error],
        },
        ("CertificateSigningRequest", "") => {
            keep(new, old, "spec");
            keep(new, old, "status");
            Vec::new()
        }
        ("CertificateSigningRequest", "approval") => {
            keep(new, old, "spec");
            let certificate = old["status"]["certificate"].clone();
            if !certificate.is_null() {
                new["status"]["certificate"] = certificate;
            }
            stamp_conditions(new);
            Vec::new()
        }
        ("Node", "") => {
            keep(new, old, "status");
            node_complaints(new, old)
        }
        (_, "status") => {
            keep(new, old, "spec");
            Vec::new()
        }
        ("Secret", _) => {
            secret(new);
            immutable_data(new, old, &["data", "type"])
        }
        ("ConfigMap", _) => immutable_data(new, old, &["data", "binaryData"]),
        ("RuntimeClass", _) if new["handler"] != old["handler"] => {
            vec![FieldError::invalid("handler", &new["handler"], "field is immutable")]
        }
        _ if resource.has_subresource("status") => {
            keep(new, old, "status");
            Vec::new()
        }
        _ => Vec::new(),
    }
}

fn bump_generation(new: &mut Value, old: &Value) {
    if new["spec"] != old["spec"] {
        new["metadata"]["generation"] = json!(old["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
    }
}

/// Takes a part from the old object, absence included.
fn keep(new: &mut Value, old: &Value, part: &str) {
    let Some(map) = new.as_object_mut() else { return };
    match old.get(part) {
        Some(value) => map.insert(part.to_owned(), value.clone()),
        None => map.remove(part),
    };
}

fn node_complaints(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (after, before) = (&new["spec"], &old["spec"]);
    if before["providerID"].as_str().is_some_and(|id| !id.is_empty()) && after["providerID"] != before["providerID"] {
        let why = "node updates may not change providerID except from \"\" to valid";
        errors.push(FieldError::forbidden("spec.providerID", why));
    }
    if before["podCIDRs"].as_array().is_some_and(|list| !list.is_empty()) && after["podCIDRs"] != before["podCIDRs"] {
        let why = "node updates may not change podCIDR except from \"\" to valid";
        errors.push(FieldError::forbidden("spec.podCIDRs", why));
    }
    errors
}

fn immutable_data(new: &Value, old: &Value, fields: &[&str]) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if old.get("type").is_some() && new["type"] != old["type"] {
        errors.push(FieldError::invalid("type", &new["type"], "field is immutable"));
    }
    if old["immutable"] == true {
        let why = "field is immutable when `immutable` is set";
        if new["immutable"] != true {
            errors.push(FieldError::forbidden("immutable", why));
        }
        for field in fields.iter().filter(|field| **field != "type" && new[**field] != old[**field]) {
            errors.push(FieldError::forbidden(field, why));
        }
    }
    errors
}

fn secret(object: &mut Value) {
    use base64::Engine as _;
    default(object, "type", json!("Opaque"));
    let plain = object.as_object_mut().and_then(|secret| secret.remove("stringData"));
    if let Some(Value::Object(plain)) = plain {
        ensure_object(object, "data");
        for (key, value) in plain {
            let text = value.as_str().unwrap_or_default();
            object["data"][key] = json!(base64::engine::general_purpose::STANDARD.encode(text));
        }
    }
}

fn service(store: &Store, resource: &Resource, object: &mut Value) {
    ensure_object(object, "spec");
    let spec = &mut object["spec"];
    default(spec, "type", json!("ClusterIP"));
    default(spec, "sessionAffinity", json!("None"));
    default(spec, "internalTrafficPolicy", json!("Cluster"));
    default(spec, "ipFamilyPolicy", json!("SingleStack"));
    default(spec, "ipFamilies", json!(["IPv4"]));
    if let Some(ports) = spec.get_mut("ports").and_then(Value::as_array_mut) {
        for port in ports {
            default(port, "protocol", json!("TCP"));
            let number = port["port"].clone();
            default(port, "targetPort", number);
        }
    }
    if spec["type"] != "ExternalName" && spec["clusterIP"].as_str().unwrap_or_default().is_empty() {
        let taken = |address: &str| store.list(resource, None).any(|other| other.value["spec"]["clusterIP"] == address);
        let free = (2u32..65_000).map(|n| format!("10.96.{}.{}", n / 250, n % 250 + 1)).find(|address| !taken(address));
        spec["clusterIP"] = json!(free);
    }
    if spec["clusterIP"].is_string() {
        spec["clusterIPs"] = json!([spec["clusterIP"]]);
    }
    object["status"] = json!({"loadBalancer": {}});
}

/// New conditions of a signing request get their times.
fn stamp_conditions(object: &mut Value) {
    let now = super::clock::stamp(jiff::Timestamp::now());
    if let Some(conditions) = object["status"].get_mut("conditions").and_then(Value::as_array_mut) {
        for condition in conditions {
            for field in ["lastUpdateTime", "lastTransitionTime"] {
                default(condition, field, json!(now));
            }
        }
    }
}

/// Resource amounts of all containers in canonical form.
fn amounts(pod: &mut Value) {
    let in_list = |resources: &mut Value| {
        for list in ["requests", "limits"] {
            if let Some(list) = resources.get_mut(list).and_then(Value::as_object_mut) {
                pods::defaults::canonical_amounts(list);
            }
        }
    };
    pods::each_container(pod, |container| {
        if let Some(resources) = container.get_mut("resources") {
            in_list(resources);
        }
    });
    if let Some(resources) = pod["spec"].get_mut("resources") {
        in_list(resources);
    }
    if let Some(overhead) = pod["spec"].get_mut("overhead").and_then(Value::as_object_mut) {
        pods::defaults::canonical_amounts(overhead);
    }
}

/// Key and effect make a taint.
pub fn same_taint(one: &Value, other: &Value) -> bool {
    one["key"] == other["key"] && one["effect"] == other["effect"]
}

fn push(object: &mut Value, field: &str, value: Value) {
    if !object[field].is_array() {
        object[field] = json!([]);
    }
    if let Some(list) = object[field].as_array_mut() {
        list.push(value);
    }
}

fn ensure_object(object: &mut Value, field: &str) {
    if !object[field].is_object() {
        object[field] = json!({});
    }
}

fn default(object: &mut Value, field: &str, value: Value) {
    if let Some(map) = object.as_object_mut()
        && map.get(field).is_none_or(Value::is_null)
    {
        map.insert(field.to_owned(), value);
    }
}
