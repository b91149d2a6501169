//! What of a computed status may be told, given what the API server has: other writers' fields stay, a terminal phase
//! waits for the containers, nothing goes back from an end
//! (upstream `pkg/kubelet/status/status_manager.go` mergePodStatus, checkContainerStateTransition).

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::normal::Status;
use crate::api_writer::seconds;

/// Conditions that only a kubelet writes (upstream `pkg/kubelet/types/pod_status.go` PodConditionByKubelet).
const OWNED: [&str; 8] = [
    "PodScheduled",
    "Ready",
    "Initialized",
    "ContainersReady",
    "PodResizeInProgress",
    "PodResizePending",
    "PodReadyToStartContainers",
    "AllContainersRestarting",
];
/// A condition that others write as well.
const DISRUPTION: &str = "DisruptionTarget";
/// Fields that a kubelet does not write; all but the last by upstream's merge, that one because nobody here sets it.
const FOREIGN: [&str; 4] = [
    "resourceClaimStatuses",
    "extendedResourceClaimStatus",
    "nodeAllocatableResourceClaimStatuses",
    "nominatedNodeName",
];

/// What the merge depends on beside the two statuses.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// A container may still run: an end is not to be told.
    pub containers_may_run: bool,
    /// A mirror pod's phase may leave an end: the pod from the file was started anew.
    pub is_static: bool,
    pub now: Timestamp,
}

/// A status that must not be written: a container would leave its end although the pod has reached its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("container {container:?} would leave its end although the pod is {phase}")]
pub struct IllegalTransition {
    pub container: String,
    pub phase: String,
}

/// Whether a pod of this phase has ended for good.
pub fn is_terminal(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// The status's phase, or nothing.
pub fn phase(status: &Status) -> &str {
    text(status, "phase")
}

/// What to write, given what the API server has (`old`) and what was computed (`new`), both in normal form.
///
/// # Errors
/// [`IllegalTransition`]; nothing of the new status may be written.
pub fn merge(old: &Status, new: &Status, terms: Terms) -> Result<Status, IllegalTransition> {
    let mut merged = new.clone();
    let old_is_terminal = is_terminal(phase(old));
    if old_is_terminal && !terms.is_static {
        check_ends(old, new)?;
    }
    let ends = !old_is_terminal && is_terminal(phase(new));
    merged.insert("conditions".to_owned(), Value::Array(conditions(old, new, ends, terms)));
    for field in FOREIGN {
        take_over(old, &mut merged, field);
    }
    let withheld = ends && terms.containers_may_run;
    let would_return = old_is_terminal && !terms.is_static && phase(old) != phase(new);
    if withheld || would_return {
        for field in ["phase", "reason", "message"] {
            take_over(old, &mut merged, field);
        }
    }
    if old.contains_key("startTime") {
        take_over(old, &mut merged, "startTime");
    }
    if generation(old) > generation(&merged) {
        take_over(old, &mut merged, "observedGeneration");
    }
    if terms.is_static && !is_terminal(phase(&merged)) {
        keep_host(old, &mut merged);
    }
    if is_terminal(phase(&merged)) {
        force_unready(old, &mut merged, terms.now);
    }
    if merged.get("conditions").is_some_and(|c| c.as_array().is_some_and(Vec::is_empty)) {
        merged.remove("conditions");
    }
    Ok(merged)
}

/// Others' conditions as they are, then ours; DisruptionTarget only together with the end.
fn conditions(old: &Status, new: &Status, ends: bool, terms: Terms) -> Vec<Value> {
    let owned = |condition: &Value| condition["type"].as_str().is_some_and(|kind| OWNED.contains(&kind));
    let mut others: Vec<Value> = list(old).iter().filter(|c| !owned(c)).cloned().collect();
    let mut ours = Vec::new();
    for condition in list(new) {
        if owned(condition) {
            ours.push(if terms.is_static { since(old, condition) } else { condition.clone() });
        } else if condition["type"] == DISRUPTION && ends && !terms.containers_may_run {
            let mut condition = condition.clone();
            let before = find(old, DISRUPTION).filter(|c| c["status"] == condition["status"]);
            // The time at which it was decided is long past; what counts is when it is told.
            condition["lastTransitionTime"] = match before.map(|c| &c["lastTransitionTime"]) {
                Some(time @ Value::String(_)) => time.clone(),
                _ => Value::String(seconds(terms.now)),
            };
            match others.iter_mut().find(|c| c["type"] == DISRUPTION) {
                Some(place) => *place = condition,
                None => others.push(condition),
            }
        }
    }
    others.append(&mut ours);
    others
}

/// The condition with the time that was told, where its status is the one that was told. Whoever computes it for a static
/// pod after a restart may have to do so before the mirror pod is known, and then takes the present for the time.
fn since(old: &Status, condition: &Value) -> Value {
    let mut condition = condition.clone();
    let told = condition["type"].as_str().and_then(|kind| find(old, kind));
    if let Some(told) =
        told.filter(|told| told["status"] == condition["status"] && told["lastTransitionTime"].is_string())
    {
        condition["lastTransitionTime"] = told["lastTransitionTime"].clone();
    }
    condition
}

/// The host's addresses where none are told: as for [`since`], they may not be known before the mirror pod is. With them goes the address
/// of a pod of the host's network.
fn keep_host(old: &Status, merged: &mut Status) {
    if merged.contains_key("hostIP") {
        return;
    }
    for field in ["hostIP", "hostIPs"] {
        take_over(old, merged, field);
    }
    if !merged.contains_key("podIP") && old.get("podIP") == old.get("hostIP") {
        for field in ["podIP", "podIPs"] {
            take_over(old, merged, field);
        }
    }
}

/// A pod that has ended is not ready, whatever was computed a moment earlier.
fn force_unready(old: &Status, merged: &mut Status, now: Timestamp) {
    let kinds = ["ContainersReady", "Ready"];
    if !kinds.iter().any(|kind| find(merged, kind).is_some_and(|c| c["status"] == "True")) {
        return;
    }
    let reason = if phase(merged) == "Succeeded" { "PodCompleted" } else { "PodFailed" };
    for kind in kinds {
        let generation = find(merged, kind).and_then(|c| c.get("observedGeneration")).cloned();
        let unready_since = find(merged, kind)
            .filter(|c| c["status"] == "False")
            .or_else(|| find(old, kind).filter(|c| c["status"] == "False"))
            .and_then(|c| c.get("lastTransitionTime"))
            .cloned();
        let mut condition = Map::new();
        condition.insert("type".into(), json!(kind));
        condition.insert("status".into(), json!("False"));
        condition.insert("reason".into(), json!(reason));
        condition.insert("lastTransitionTime".into(), unready_since.unwrap_or_else(|| json!(seconds(now))));
        if let Some(generation) = generation {
            condition.insert("observedGeneration".into(), generation);
        }
        if let Some(Value::Array(conditions)) = merged.get_mut("conditions") {
            match conditions.iter_mut().find(|c| c["type"] == kind) {
                Some(place) => *place = Value::Object(condition),
                None => conditions.push(Value::Object(condition)),
            }
        }
    }
}

/// In a pod that has ended no container comes back. (Whether one may in a pod that has not is for those to judge who know
/// its restart policy.)
fn check_ends(old: &Status, new: &Status) -> Result<(), IllegalTransition> {
    for list in ["initContainerStatuses", "containerStatuses"] {
        let items = |status: &Status| status.get(list).and_then(Value::as_array).cloned().unwrap_or_default();
        let after = items(new);
        for before in items(old).iter().filter(|c| c["state"]["terminated"].is_object()) {
            let now = after.iter().find(|c| c["name"] == before["name"]);
            if now.is_some_and(|c| !c["state"]["terminated"].is_object()) {
                let container = before["name"].as_str().unwrap_or_default().to_owned();
                return Err(IllegalTransition { container, phase: phase(old).to_owned() });
            }
        }
    }
    Ok(())
}

fn take_over(old: &Status, merged: &mut Status, field: &str) {
    match old.get(field) {
        Some(value) => merged.insert(field.to_owned(), value.clone()),
        None => merged.remove(field),
    };
}

fn generation(status: &Status) -> i64 {
    status.get("observedGeneration").and_then(Value::as_i64).unwrap_or(0)
}

fn list(status: &Status) -> &[Value] {
    status.get("conditions").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn find<'a>(status: &'a Status, kind: &str) -> Option<&'a Value> {
    list(status).iter().find(|c| c["type"] == kind)
}

fn text<'a>(status: &'a Status, key: &str) -> &'a str {
    status.get(key).and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
