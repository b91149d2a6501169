//! What a pod's status may say, and what of it the server keeps whatever the writer says
//! (`podStatusStrategy`, `ValidatePodStatusUpdate`).

use serde_json::{Value, json};

use crate::status::FieldError;

/// Puts the parts in order that a write of the status cannot change.
pub fn prepare(new: &mut Value, old: &Value) {
    new["spec"] = old["spec"].clone();
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences"] {
        if let Some(map) = new["metadata"].as_object_mut() {
            match old["metadata"].get(field) {
                Some(value) => map.insert(field.to_owned(), value.clone()),
                None => map.remove(field),
            };
        }
    }
    if new["status"]["qosClass"].as_str().unwrap_or_default().is_empty() && !old["status"]["qosClass"].is_null() {
        new["status"]["qosClass"] = old["status"]["qosClass"].clone();
    }
    // Of two that differ the single address counts, as clients of old know no list.
    let single = new["status"]["podIP"].as_str().unwrap_or_default().to_owned();
    if !single.is_empty() && new["status"]["podIPs"][0]["ip"].as_str().is_some_and(|first| first != single) {
        new["status"]["podIPs"] = json!([{"ip": single}]);
    }
    keep_observed_generations(new, old);
}

/// `observedGeneration` cannot be cleared, neither the pod's nor a condition's.
fn keep_observed_generations(new: &mut Value, old: &Value) {
    let is_set = |value: &Value| value.as_i64().is_some_and(|number| number != 0);
    if !is_set(&new["status"]["observedGeneration"]) && is_set(&old["status"]["observedGeneration"]) {
        new["status"]["observedGeneration"] = old["status"]["observedGeneration"].clone();
    }
    let before = old["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let Some(conditions) = new["status"].get_mut("conditions").and_then(Value::as_array_mut) else { return };
    for condition in conditions {
        let known = before.iter().find(|other| other["type"] == condition["type"]);
        let generation = known.map_or(Value::Null, |known| known["observedGeneration"].clone());
        if !is_set(&condition["observedGeneration"]) && is_set(&generation) {
            condition["observedGeneration"] = generation;
        }
    }
}

/// Brings a status into the form in which the typed server stores it: some fields are always there.
pub fn canonical(pod: &mut Value) {
    let Some(status) = pod.get_mut("status").filter(|status| status.is_object()) else { return };
    if let Some(conditions) = status.get_mut("conditions").and_then(Value::as_array_mut) {
        for condition in conditions {
            for field in ["lastProbeTime", "lastTransitionTime"] {
                if condition.get(field).is_none() && condition.is_object() {
                    condition[field] = Value::Null;
                }
            }
        }
    }
    for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
        if let Some(statuses) = status.get_mut(list).and_then(Value::as_array_mut) {
            for one in statuses.iter_mut().filter(|one| one.is_object()) {
                for (field, value) in [
                    ("state", json!({})),
                    ("lastState", json!({})),
                    ("ready", json!(false)),
                    ("restartCount", json!(0)),
                    ("image", json!("")),
                    ("imageID", json!("")),
                ] {
                    if one.get(field).is_none_or(Value::is_null) {
                        one[field] = value;
                    }
                }
            }
        }
    }
}

/// Complaints about a new status.
pub fn complaints(new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (after, before) = (&new["status"], &old["status"]);
    if after["qosClass"] != before["qosClass"] {
        errors.push(FieldError::invalid("status.qosClass", &after["qosClass"], "field is immutable"));
    }
    if let Some(conditions) = after["conditions"].as_array() {
        for (index, condition) in conditions.iter().enumerate() {
            if condition["type"].as_str().unwrap_or_default().is_empty() {
                errors.push(FieldError::required(&format!("status.conditions[{index}].type"), ""));
            }
            let status = condition["status"].as_str().unwrap_or_default();
            if !["True", "False", "Unknown"].contains(&status) {
                let field = format!("status.conditions[{index}].status");
                errors.push(FieldError::unsupported(&field, &condition["status"], &["True", "False", "Unknown"]));
            }
        }
    }
    addresses(&mut errors, after, "podIPs", "podIP");
    addresses(&mut errors, after, "hostIPs", "hostIP");
    for list in ["containerStatuses", "initContainerStatuses"] {
        transitions(&mut errors, new, old, list);
    }
    errors
}

/// The first of the list is the single field; no address twice; at most one of a family.
fn addresses(errors: &mut Vec<FieldError>, status: &Value, list: &str, single: &str) {
    let Some(all) = status[list].as_array().filter(|all| !all.is_empty()) else { return };
    let field = format!("status.{list}");
    let texts: Vec<&str> = all.iter().map(|one| one["ip"].as_str().unwrap_or_default()).collect();
    for (index, text) in texts.iter().enumerate() {
        if text.parse::<std::net::IpAddr>().is_err() {
            let at = format!("{field}[{index}]");
            errors.push(FieldError::invalid(
                &at,
                &json!(text),
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ));
        }
    }
    let one = status[single].as_str().unwrap_or_default();
    if one != texts[0] {
        let why = format!("must be equal to `{field}[0].ip`");
        errors.push(FieldError::invalid(&format!("{field}[0].ip"), &json!(texts[0]), &why.replace(&field, single)));
    }
    let sixes = texts.iter().filter(|text| text.contains(':')).count();
    if sixes > 1 || texts.len() - sixes > 1 {
        errors.push(FieldError::invalid(&field, &json!(all), "may specify no more than one IP for each IP family"));
    }
}

/// A container that has ended for good stays ended.
fn transitions(errors: &mut Vec<FieldError>, new: &Value, old: &Value, list: &str) {
    let policy = old["spec"]["restartPolicy"].as_str().unwrap_or("Always");
    if policy == "Always" {
        return;
    }
    let (Some(after), Some(before)) = (new["status"][list].as_array(), old["status"][list].as_array()) else { return };
    for one in before {
        let ended = &one["state"]["terminated"];
        let restartable = policy == "OnFailure" && ended["exitCode"].as_i64().unwrap_or(0) != 0;
        let spec_list = if list == "containerStatuses" { "containers" } else { "initContainers" };
        let own_rules = old["spec"][spec_list].as_array().is_some_and(|containers| {
            containers
                .iter()
                .any(|container| container["name"] == one["name"] && container["restartPolicy"].is_string())
        });
        // A failed init container of a pod that restarts on failure, sidecars, and containers with rules of their own.
        if !ended.is_object() || restartable || own_rules {
            continue;
        }
        let same = after.iter().position(|other| other["name"] == one["name"]);
        if let Some(index) = same.filter(|index| !after[*index]["state"]["terminated"].is_object()) {
            let field = format!("status.{list}[{index}].state");
            errors.push(FieldError::forbidden(&field, "may not be transitioned to non-terminated state"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_a_status_cannot_change() {
        let old = json!({
            "metadata": {"deletionTimestamp": "t", "ownerReferences": [{"uid": "u"}]},
            "spec": {"nodeName": "x"},
            "status": {"qosClass": "Burstable", "observedGeneration": 2, "conditions": [{"type": "Ready", "observedGeneration": 2}]},
        });
        let mut new = json!({
            "metadata": {"ownerReferences": []},
            "spec": {"nodeName": "y"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        prepare(&mut new, &old);
        assert_eq!(new["metadata"], old["metadata"]);
        assert_eq!(new["spec"], old["spec"]);
        assert_eq!(new["status"]["qosClass"], "Burstable");
        assert_eq!(new["status"]["observedGeneration"], 2);
        assert_eq!(new["status"]["conditions"][0]["observedGeneration"], 2);
    }

    #[test]
    fn statuses_that_are_refused() {
        let old = json!({
            "spec": {"restartPolicy": "Never"},
            "status": {"qosClass": "BestEffort", "containerStatuses": [{"name": "a", "state": {"terminated": {"exitCode": 1}}}]},
        });
        let refused = |status: Value| complaints(&json!({"status": status}), &old);
        let running = json!({"qosClass": "BestEffort", "containerStatuses": [{"name": "a", "state": {"running": {}}}]});
        assert_eq!(refused(running)[0].field, "status.containerStatuses[0].state");
        assert_eq!(refused(json!({"qosClass": "Guaranteed"}))[0].field, "status.qosClass");
        let ips = json!({"qosClass": "BestEffort", "podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.1"}]});
        assert_eq!(refused(ips)[0].field, "status.podIPs[0].ip");
        let two =
            json!({"qosClass": "BestEffort", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]});
        assert_eq!(refused(two)[0].field, "status.podIPs");
        assert!(refused(json!({"qosClass": "BestEffort"})).is_empty());
    }

    #[test]
    fn fields_that_are_always_there() {
        let mut pod = json!({"status": {"conditions": [{"type": "Ready"}], "containerStatuses": [{"name": "a"}]}});
        canonical(&mut pod);
        assert!(pod["status"]["conditions"][0].get("lastProbeTime").is_some());
        assert_eq!(pod["status"]["containerStatuses"][0]["lastState"], json!({}));
    }
}
