//! What an update of a pod may change (`ValidatePodUpdate`), and what its subresources leave alone.

use serde_json::{Value, json};

use crate::status::FieldError;

const FORBIDDEN: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
    `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing \
    tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Complaints about a change of the spec through the pod itself.
pub fn complaints(new: &Value, old: &Value) -> Vec<FieldError> {
    let (new, old) = (&new["spec"], &old["spec"]);
    if new == old {
        return Vec::new();
    }
    for list in ["containers", "initContainers"] {
        if length(&new[list]) != length(&old[list]) {
            return vec![FieldError::forbidden(
                &format!("spec.{list}"),
                "pod updates may not add or remove containers",
            )];
        }
    }
    let mut errors = Vec::new();
    match (new["activeDeadlineSeconds"].as_i64(), old["activeDeadlineSeconds"].as_i64()) {
        (Some(after), Some(before)) if after > before => errors.push(FieldError::invalid(
            "spec.activeDeadlineSeconds",
            &json!(after),
            "must be less than or equal to previous value",
        )),
        (None, Some(_)) => errors.push(FieldError::invalid(
            "spec.activeDeadlineSeconds",
            &Value::Null,
            "must not update from a positive integer to nil value",
        )),
        _ => {}
    }
    let (after, before) = (array(&new["tolerations"]), array(&old["tolerations"]));
    if before.iter().any(|one| !after.contains(one)) {
        errors.push(FieldError::forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
    let mut munged = new.clone();
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        restore(&mut munged, old, field);
    }
    if old["terminationGracePeriodSeconds"].as_i64().is_some_and(|period| period < 0)
        && new["terminationGracePeriodSeconds"] == 1
    {
        restore(&mut munged, old, "terminationGracePeriodSeconds");
    }
    for list in ["containers", "initContainers"] {
        for index in 0..length(&munged[list]) {
            let image = old[list][index]["image"].clone();
            munged[list][index]["image"] = image;
        }
    }
    if munged != *old {
        errors.push(FieldError::forbidden("spec", FORBIDDEN));
    }
    errors
}

fn restore(new: &mut Value, old: &Value, field: &str) {
    let Some(map) = new.as_object_mut() else { return };
    match old.get(field) {
        Some(value) => map.insert(field.to_owned(), value.clone()),
        None => map.remove(field),
    };
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn length(value: &Value) -> usize {
    array(value).len()
}

/// The pod as `pods/ephemeralcontainers` may change it: those containers, nothing else, and only more of them.
///
/// # Errors
/// An existing one was changed or removed, or the target of a new one is no container of the pod.
pub fn ephemeral_containers(new: &Value, old: &Value) -> Result<Value, FieldError> {
    let (after, before) = (array(&new["spec"]["ephemeralContainers"]), array(&old["spec"]["ephemeralContainers"]));
    for (index, one) in before.iter().enumerate() {
        let same = after.iter().find(|other| other["name"] == one["name"]);
        if same != Some(one) {
            let field = format!("spec.ephemeralContainers[{index}]");
            return Err(FieldError::forbidden(&field, "existing ephemeral containers may not be changed or removed"));
        }
    }
    for (index, one) in after.iter().enumerate() {
        let target = &one["targetContainerName"];
        let is_there =
            |target: &str| target.is_empty() || super::containers(old, false).any(|one| one["name"] == target);
        if target.as_str().is_some_and(|target| !is_there(target)) {
            return Err(FieldError::not_found(
                &format!("spec.ephemeralContainers[{index}].targetContainerName"),
                target,
            ));
        }
    }
    let mut pod = old.clone();
    pod["spec"]["ephemeralContainers"] = json!(after);
    Ok(pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_few_fields_may_change() {
        let old = json!({"spec": {"containers": [{"name": "a", "image": "1"}], "tolerations": [{"key": "k"}]}});
        let with = |change: fn(&mut Value)| {
            let mut new = old.clone();
            change(&mut new["spec"]);
            complaints(&new, &old)
        };
        assert!(with(|_| {}).is_empty());
        assert!(with(|spec| spec["containers"][0]["image"] = json!("2")).is_empty());
        assert!(with(|spec| spec["activeDeadlineSeconds"] = json!(5)).is_empty());
        assert!(with(|spec| spec["tolerations"] = json!([{"key": "k"}, {"key": "l"}])).is_empty());
        assert!(!with(|spec| spec["tolerations"] = json!([])).is_empty());
        assert_eq!(with(|spec| spec["nodeName"] = json!("x"))[0].field, "spec");
        assert_eq!(with(|spec| spec["containers"] = json!([]))[0].field, "spec.containers");
    }

    #[test]
    fn subresources_change_their_part_only() {
        let old = json!({"spec": {"nodeName": "x", "containers": [{"name": "a", "image": "1", "resources": {}}]}});
        let mut new = old.clone();
        new["spec"]["nodeName"] = json!("y");
        new["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
        new["spec"]["ephemeralContainers"] = json!([{"name": "debug"}]);
        let debugged = ephemeral_containers(&new, &old).unwrap();
        assert_eq!(debugged["spec"]["containers"], old["spec"]["containers"]);
        assert!(ephemeral_containers(&old, &debugged).is_err());
    }
}
