//! Creating and changing objects: the order of checks, the optimistic lock, what counts as a change
//! (`apiserver/pkg/registry/generic/registry`, `pkg/registry/rest`).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::clock::stamp;
use super::identity::User;
use super::node_restriction::{self, Operation, Write};
use super::patch::{self, PatchType};
use super::request::Request;
use super::resources::{Resource, named};
use super::status::{ApiError, FieldError};
use super::storage::{Object, Store, Stored};
use super::strategies::{self, StrategyContext};
use super::{deletion, meta};

/// Who writes, when, and whether for real.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    pub user: &'a User,
    pub now: Timestamp,
    pub dry_run: bool,
    pub taint_new_nodes: bool,
}

impl<'a> Context<'a> {
    fn strategy_context(&self) -> StrategyContext<'a> {
        StrategyContext { user: self.user, taint_new_nodes: self.taint_new_nodes }
    }

    /// The admission of a node's writes; everybody else passes.
    ///
    /// # Errors
    /// What NodeRestriction refuses.
    pub fn admit(&self, store: &Store, write: Write<'_>) -> Result<(), ApiError> {
        match self.user.as_node() {
            Some(node) => node_restriction::admit(store, node, write),
            None => Ok(()),
        }
    }
}

/// Reads a body as an object of the resource's kind.
///
/// # Errors
/// 400.
pub fn decode(resource: &Resource, kind: &str, body: &[u8]) -> Result<Value, ApiError> {
    let mut object: Value = serde_json::from_slice(body).map_err(|error| {
        ApiError::bad_request(format!(
            "{kind} in version {:?} cannot be handled as a {kind}: json: {error}",
            resource.version
        ))
    })?;
    if !object.is_object() {
        return Err(ApiError::bad_request(format!("{kind} in version {:?}: an object is expected", resource.version)));
    }
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let (own_kind, own_version) = (text("kind"), text("apiVersion"));
    let expected = kind_version(resource, kind);
    if !own_version.is_empty() && own_version != expected {
        return Err(ApiError::bad_request(format!(
            "the API version in the data ({own_version}) does not match the expected API version ({expected})"
        )));
    }
    if !own_kind.is_empty() && own_kind != kind {
        return Err(ApiError::bad_request(format!(
            "{own_kind} in version {:?} cannot be handled as a {kind}",
            resource.version
        )));
    }
    object["kind"] = json!(kind);
    object["apiVersion"] = json!(expected);
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    Ok(object)
}

/// The version that objects of a kind are written in: some subresources have kinds of other groups.
fn kind_version(resource: &Resource, kind: &str) -> String {
    match kind {
        "TokenRequest" => "authentication.k8s.io/v1".to_owned(),
        "Eviction" => "policy/v1".to_owned(),
        _ => resource.api_version(),
    }
}

/// Creates an object.
///
/// # Errors
/// 400, 403, 404 (namespace), 409, 422.
pub fn create(
    store: &mut Store,
    context: Context<'_>,
    resource: &'static Resource,
    namespace: &str,
    mut object: Value,
) -> Result<Object, ApiError> {
    meta::drop_nulls(&mut object);
    meta::set_namespace(&mut object, namespace)?;
    let has_version = object["metadata"]["resourceVersion"].as_str().is_some_and(|version| !version.is_empty());
    if has_version {
        return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    meta::fill_system_fields(&mut object, &stamp(context.now));
    namespace_accepts(store, resource, namespace, &object)?;
    context.admit(
        store,
        Write {
            operation: Operation::Create,
            resource,
            subresource: "",
            namespace,
            name: "",
            new: Some(&object),
            old: None,
        },
    )?;
    strategies::prepare_create(store, resource, &mut object, context.strategy_context())?;
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut errors = meta::complaints(resource, &object);
    errors.extend(required_fields(resource, &object));
    if !errors.is_empty() {
        return Err(ApiError::invalid_object(resource, &name, &errors));
    }
    if let Some(existing) = store.get(resource, namespace, &name) {
        let mut error = ApiError::already_exists(resource, &name);
        if existing.value["metadata"]["deletionTimestamp"].is_string() {
            error.message = format!("object is being deleted: {}", error.message);
        }
        return Err(error);
    }
    Ok(if context.dry_run { Stored::detached(object) } else { store.put(resource, object) })
}

fn namespace_accepts(store: &Store, resource: &Resource, namespace: &str, object: &Value) -> Result<(), ApiError> {
    if !resource.namespaced {
        return Ok(());
    }
    let Some(found) = store.get(named("namespaces"), "", namespace) else {
        return Err(ApiError::not_found(named("namespaces"), namespace));
    };
    if found.value["metadata"]["deletionTimestamp"].is_string() {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut error = ApiError::forbidden(resource, name, &why);
        let message = format!("namespace {namespace} is being terminated");
        error.details["causes"] =
            json!([{"reason": "NamespaceTerminating", "message": message, "field": "metadata.namespace"}]);
        return Err(error);
    }
    Ok(())
}

/// The few fields without which an object of a kind makes no sense.
fn required_fields(resource: &Resource, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut require = |field: &str, value: &Value| {
        let empty = value.is_null() || value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty);
        if empty {
            errors.push(FieldError::required(field, ""));
        }
    };
    match resource.kind {
        "Pod" => {
            require("spec.containers", &object["spec"]["containers"]);
            for (index, container) in object["spec"]["containers"].as_array().into_iter().flatten().enumerate() {
                require(&format!("spec.containers[{index}].name"), &container["name"]);
                require(&format!("spec.containers[{index}].image"), &container["image"]);
            }
        }
        "RuntimeClass" => require("handler", &object["handler"]),
        "CertificateSigningRequest" => {
            require("spec.request", &object["spec"]["request"]);
            require("spec.signerName", &object["spec"]["signerName"]);
            require("spec.usages", &object["spec"]["usages"]);
        }
        "Event" => require("involvedObject.name", &object["involvedObject"]["name"]),
        _ => {}
    }
    errors
}

/// A PUT: the object and whether it is new.
///
/// # Errors
/// 400, 403, 404, 409, 422.
pub fn replace(
    store: &mut Store,
    context: Context<'_>,
    resource: &'static Resource,
    request: &Request,
    object: Value,
) -> Result<(Object, bool), ApiError> {
    let Some(existing) = store.get(resource, &request.namespace, &request.name) else {
        if !resource.create_on_update || !request.subresource.is_empty() {
            return Err(ApiError::not_found(resource, &request.name));
        }
        check_name(&object, &request.name)?;
        let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if !version.is_empty() && version != "0" {
            return Err(ApiError::not_found(resource, &request.name));
        }
        return Ok((create(store, context, resource, &request.namespace, object)?, true));
    };
    let wanted = object["metadata"]["uid"].as_str().unwrap_or_default();
    let uid = existing.value["metadata"]["uid"].as_str().unwrap_or_default();
    if !wanted.is_empty() && wanted != uid {
        let why = storage_precondition(resource, &request.namespace, &request.name, wanted, uid);
        return Err(ApiError::conflict(resource.group, resource.plural, &request.name, &why));
    }
    Ok((update(store, context, resource, request, &existing, object)?, false))
}

/// As the storage words a precondition that failed.
pub fn storage_precondition(resource: &Resource, namespace: &str, name: &str, wanted: &str, uid: &str) -> String {
    let group = if resource.group.is_empty() { String::new() } else { format!("{}/", resource.group) };
    let table = if resource.plural == "nodes" { "minions" } else { resource.plural };
    let place = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
    format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{group}{table}/{place}{name}, ResourceVersion: 0, \
         AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"
    )
}

/// A PATCH: the object and whether it is new (which only apply can make).
///
/// # Errors
/// 400, 403, 404, 409, 415, 422.
pub fn patch(
    store: &mut Store,
    context: Context<'_>,
    resource: &'static Resource,
    request: &Request,
    kind: PatchType,
    body: &[u8],
) -> Result<(Object, bool), ApiError> {
    if kind == PatchType::Apply && request.query.get("fieldManager").is_empty() {
        let error = FieldError::required("fieldManager", "is required for apply patch");
        return Err(ApiError::invalid("meta.k8s.io", "PatchOptions", "", &[error]));
    }
    let Some(existing) = store.get(resource, &request.namespace, &request.name) else {
        if kind != PatchType::Apply || !request.subresource.is_empty() {
            return Err(ApiError::not_found(resource, &request.name));
        }
        let object = patch::patched(resource, kind, &Value::Null, body)?;
        if let Some(uid) = object["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
            let why =
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
            return Err(ApiError::conflict(resource.group, resource.plural, &request.name, &why));
        }
        let mut object = decode(resource, resource.kind, object.to_string().as_bytes())?;
        object["metadata"]["name"] = json!(request.name);
        return Ok((create(store, context, resource, &request.namespace, object)?, true));
    };
    let object = patch::patched(resource, kind, &existing.value, body)?;
    Ok((update(store, context, resource, request, &existing, object)?, false))
}

fn check_name(object: &Value, name: &str) -> Result<(), ApiError> {
    let own = object["metadata"]["name"].as_str().unwrap_or_default();
    if own == name {
        return Ok(());
    }
    if own.is_empty() {
        return Err(ApiError::bad_request(format!("name must be provided: {name:?}")));
    }
    Err(ApiError::bad_request(format!("the name of the object ({own}) does not match the name on the URL ({name})")))
}

/// What PUT and PATCH have in common, once there is an old and a new object.
fn update(
    store: &mut Store,
    context: Context<'_>,
    resource: &'static Resource,
    request: &Request,
    existing: &Object,
    mut new: Value,
) -> Result<Object, ApiError> {
    let old = &existing.value;
    if !new["metadata"].is_object() {
        return Err(ApiError::bad_request("the object has no metadata"));
    }
    meta::drop_nulls(&mut new);
    meta::set_namespace(&mut new, &request.namespace)?;
    check_name(&new, &request.name)?;
    let subresource = request.subresource.as_str();
    context.admit(
        store,
        Write {
            operation: Operation::Update,
            resource,
            subresource,
            namespace: &request.namespace,
            name: &request.name,
            new: Some(&new),
            old: Some(old),
        },
    )?;
    check_version(resource, &request.name, &new, old)?;
    restore_system_fields(&mut new, old);
    let mut errors = Vec::new();
    let (uid, old_uid) = (&new["metadata"]["uid"], &old["metadata"]["uid"]);
    if uid != old_uid {
        errors.push(FieldError::invalid("metadata.uid", uid, "field is immutable"));
    }
    errors.extend(strategies::prepare_update(resource, subresource, &mut new, old));
    errors.extend(meta::complaints(resource, &new));
    if !errors.is_empty() {
        return Err(ApiError::invalid_object(resource, &request.name, &errors));
    }
    new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
    // A write that changes nothing is no event and no new version.
    if new == *old {
        return Ok(existing.clone());
    }
    if context.dry_run {
        return Ok(Stored::detached(new));
    }
    if deletion::ends_with_this_update(&new, old) {
        store.put(resource, new);
        return Ok(store.remove(resource, &request.namespace, &request.name).unwrap_or_else(|| existing.clone()));
    }
    Ok(store.put(resource, new))
}

/// The optimistic lock.
fn check_version(resource: &Resource, name: &str, new: &Value, old: &Value) -> Result<(), ApiError> {
    let version = new["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    if version.is_empty() || version == "0" {
        if resource.unconditional_update {
            return Ok(());
        }
        let error = FieldError::invalid("metadata.resourceVersion", &json!(0), "must be specified for an update");
        return Err(ApiError::invalid(resource.group, resource.plural, name, &[error]));
    }
    if version.parse::<u64>().is_err() {
        let error = FieldError::invalid("metadata.resourceVersion", &json!(version), "must be an unsigned integer");
        return Err(ApiError::invalid(resource.group, resource.plural, name, &[error]));
    }
    if old["metadata"]["resourceVersion"] != version { Err(ApiError::modified(resource, name)) } else { Ok(()) }
}

/// Fields that an update cannot change, whatever it says.
fn restore_system_fields(new: &mut Value, old: &Value) {
    let (Some(metadata), Some(before)) = (new["metadata"].as_object_mut(), old["metadata"].as_object()) else { return };
    for field in ["generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        match before.get(field) {
            Some(value) => metadata.insert(field.to_owned(), value.clone()),
            None => metadata.remove(field),
        };
    }
    for field in ["selfLink", "managedFields"] {
        metadata.remove(field);
    }
    if metadata.get("uid").and_then(Value::as_str).unwrap_or_default().is_empty()
        && let Some(uid) = before.get("uid")
    {
        metadata.insert("uid".to_owned(), uid.clone());
    }
    for (field, value) in [("kind", &old["kind"]), ("apiVersion", &old["apiVersion"])] {
        new[field] = value.clone();
    }
}
