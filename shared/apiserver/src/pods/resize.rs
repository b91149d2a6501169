//! What `pods/resize` may change: cpu and memory of containers and of the pod as a whole (`ValidatePodResize`,
//! `podResizeStrategy`).

use bulkhead_types::Quantity;
use serde_json::{Map, Value, json};

use super::{is_mirror, qos};
use crate::status::FieldError;

const LISTS: [&str; 2] = ["containers", "initContainers"];

fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The pod that the request makes of the old one: everything else that it changes is dropped without a word.
pub fn prepare(new: &Value, old: &Value) -> Value {
    let mut pod = old.clone();
    let put = |target: &mut Value, source: &Value, field: &str| {
        let Some(map) = target.as_object_mut() else { return };
        match source.get(field) {
            Some(value) => map.insert(field.to_owned(), value.clone()),
            None => map.remove(field),
        };
    };
    for list in LISTS {
        let names =
            |pod: &Value| -> Vec<Value> { array(&pod["spec"][list]).iter().map(|c| c["name"].clone()).collect() };
        if names(new) != names(old) {
            // Validation says what is wrong with it.
            put(&mut pod["spec"], &new["spec"], list);
            continue;
        }
        for (index, container) in array(&new["spec"][list]).iter().enumerate() {
            for field in ["resources", "resizePolicy"] {
                put(&mut pod["spec"][list][index], container, field);
            }
        }
    }
    put(&mut pod["spec"], &new["spec"], "resources");
    pod
}

/// Complaints about a pod that [`prepare`] has made.
pub fn complaints(new: &Value, old: &Value) -> Vec<FieldError> {
    if is_mirror(old) {
        return vec![FieldError::forbidden("", "static pods cannot be resized")];
    }
    let mut errors = Vec::new();
    if qos::class(new) != old["status"]["qosClass"].as_str().unwrap_or_else(|| qos::class(old)) {
        let why = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid("spec", &json!(qos::class(new)), why));
    }
    let running = array(&old["status"]["containerStatuses"]).iter().find(|c| c["state"]["running"].is_object());
    if running.is_some_and(|c| !c["resources"].is_object()) {
        errors.push(FieldError::forbidden("spec", "Pod running on node without support for resize"));
    }
    pod_level(&new["spec"]["resources"], &old["spec"]["resources"], &mut errors);
    if !order(new, old, &mut errors) {
        return errors;
    }
    for list in LISTS {
        for (index, container) in array(&new["spec"][list]).iter().enumerate() {
            let field = format!("spec.{list}[{index}]");
            one(&field, list, container, &old["spec"][list][index], &mut errors);
        }
    }
    errors
}

fn pod_level(new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    if old.is_object() && !new.is_object() {
        errors.push(FieldError::forbidden("spec.resources", "pod-level resources cannot be removed"));
        return;
    }
    for list in ["requests", "limits"] {
        if removed(&new[list], &old[list]) {
            let field = format!("spec.resources.{list}");
            let what = list.trim_end_matches('s');
            errors.push(FieldError::forbidden(&field, &format!("pod-level resource {what}s cannot be removed")));
        }
        if others(&new[list]) != others(&old[list]) {
            errors.push(FieldError::forbidden("spec", "only cpu and memory resources are mutable at pod-level"));
        }
    }
    exceeds("spec.resources", new, errors);
}

/// Containers stay what they are. False: nothing else can be said of them.
fn order(new: &Value, old: &Value, errors: &mut Vec<FieldError>) -> bool {
    let before = errors.len();
    for list in LISTS {
        let (new, old) = (array(&new["spec"][list]), array(&old["spec"][list]));
        if new.len() != old.len() {
            let why = format!("{list} may not be added or removed on resize");
            errors.push(FieldError::forbidden(&format!("spec.{list}"), &why));
            continue;
        }
        for (index, _) in new.iter().zip(old).enumerate().filter(|(_, (new, old))| new["name"] != old["name"]) {
            let why = format!("{list} may not be renamed or reordered on resize");
            errors.push(FieldError::forbidden(&format!("spec.{list}[{index}].name"), &why));
        }
    }
    errors.len() == before
}

fn one(field: &str, list: &str, new: &Value, old: &Value, errors: &mut Vec<FieldError>) {
    let resources = format!("{field}.resources");
    for (amounts, what) in [("requests", "resource requests"), ("limits", "resource limits")] {
        if removed(&new["resources"][amounts], &old["resources"][amounts]) {
            let why = format!("{what} cannot be removed");
            errors.push(FieldError::forbidden(&format!("{resources}.{amounts}"), &why));
        }
    }
    exceeds(&resources, &new["resources"], errors);
    let same = |amounts: &str| others(&new["resources"][amounts]) == others(&old["resources"][amounts]);
    if !(same("requests") && same("limits") && new["resizePolicy"] == old["resizePolicy"]) {
        let (field, why) = match list {
            "containers" => ("spec", "only cpu and memory resources are mutable"),
            _ => (field, "only cpu and memory resources for init or sidecar containers are mutable"),
        };
        errors.push(FieldError::forbidden(field, why));
    }
    let restarts = array(&new["resizePolicy"]).iter().any(|policy| policy["restartPolicy"] == "RestartContainer");
    if list == "initContainers" && new != old && new["restartPolicy"] != "Always" && restarts {
        let why = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
        errors.push(FieldError::forbidden(field, why));
    }
}

fn removed(new: &Value, old: &Value) -> bool {
    old.as_object().is_some_and(|old| old.keys().any(|name| new.get(name).is_none()))
}

/// What is neither cpu nor memory.
fn others(list: &Value) -> Map<String, Value> {
    let all = list.as_object().cloned().unwrap_or_default();
    all.into_iter().filter(|(name, _)| name != "cpu" && name != "memory").collect()
}

/// A request above its limit.
fn exceeds(field: &str, resources: &Value, errors: &mut Vec<FieldError>) {
    let amount = |value: &Value| value.as_str().and_then(|text| Quantity::parse(text).ok());
    for (name, request) in resources["requests"].as_object().into_iter().flatten() {
        let limit = &resources["limits"][name];
        if let (Some(wanted), Some(most)) = (amount(request), amount(limit))
            && wanted > most
        {
            let why = format!("must be less than or equal to {name} limit of {most}");
            errors.push(FieldError::invalid(&format!("{field}.requests"), request, &why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(resources: Value) -> Value {
        json!({"metadata": {"name": "p"}, "status": {"qosClass": "Burstable"}, "spec": {
            "nodeName": "x",
            "containers": [{"name": "a", "image": "1", "resources": resources}],
            "initContainers": [{"name": "i", "resources": {}}],
        }})
    }

    fn refused(new: &Value, old: &Value) -> Vec<String> {
        complaints(&prepare(new, old), old).into_iter().map(|e| format!("{}: {}", e.field, e.body)).collect()
    }

    #[test]
    fn only_resources_change() {
        let old = pod(json!({"requests": {"cpu": "1"}}));
        let mut new = pod(json!({"requests": {"cpu": "2"}}));
        new["spec"]["nodeName"] = json!("y");
        new["spec"]["containers"][0]["image"] = json!("2");
        let made = prepare(&new, &old);
        assert_eq!(made, pod(json!({"requests": {"cpu": "2"}})));
        assert!(complaints(&made, &old).is_empty());
    }

    #[test]
    fn upstreams_complaints() {
        let old = pod(json!({"requests": {"cpu": "1", "memory": "1Gi", "example.com/x": "1"}}));
        let with = |resources| refused(&pod(resources), &old);
        let no = |what: &str| vec![what.to_owned()];
        assert_eq!(
            with(json!({"requests": {"cpu": "1", "example.com/x": "1"}})),
            no("spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed")
        );
        assert_eq!(
            with(json!({"requests": {"cpu": "1", "memory": "1Gi", "example.com/x": "2"}})),
            no("spec: Forbidden: only cpu and memory resources are mutable")
        );
        let list = json!({"cpu": "1", "memory": "1Gi", "example.com/x": "1"});
        let equal = json!({"requests": list, "limits": {"cpu": "1", "memory": "1Gi", "example.com/x": "1"}});
        let mut only = pod(equal);
        only["spec"]["initContainers"] = json!([]);
        let mut single = old.clone();
        single["spec"]["initContainers"] = json!([]);
        assert!(refused(&only, &single)[0].contains("Pod QOS Class may not change as a result of resizing"));
        let above = json!({"requests": list, "limits": {"cpu": "500m", "example.com/x": "1"}});
        assert!(with(above).iter().any(|e| e.contains("must be less than or equal to cpu limit of 500m")));
        let mut renamed = old.clone();
        renamed["spec"]["containers"][0]["name"] = json!("b");
        assert_eq!(
            refused(&renamed, &old),
            no("spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize")
        );
        let mut fewer = old.clone();
        fewer["spec"]["initContainers"] = json!([]);
        assert_eq!(
            refused(&fewer, &old),
            no("spec.initContainers: Forbidden: initContainers may not be added or removed on resize")
        );
        let mut mirror = old.clone();
        mirror["metadata"]["annotations"] = json!({super::super::MIRROR: "x"});
        assert_eq!(refused(&old, &mirror), no(": Forbidden: static pods cannot be resized"));
    }
}
