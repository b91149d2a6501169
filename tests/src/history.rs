//! What must never go backwards in the versions of an object, whatever is restarted meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Checks all versions of a pod, oldest first; versions of other pods of that name (other uids) are told apart.
///
/// # Errors
/// The first step backwards, with both versions' numbers.
pub fn pod_only_advances(history: &[Value]) -> Result<()> {
    let mut last: BTreeMap<&str, &Value> = BTreeMap::new();
    let mut seen: BTreeMap<(&str, &str), Containers<'_>> = BTreeMap::new();
    for pod in history {
        let uid = text(&pod["metadata"]["uid"]);
        let old = last.insert(uid, pod);
        let what = || {
            let version = |pod: &Value| text(&pod["metadata"]["resourceVersion"]).to_owned();
            format!("pod {uid}, version {} after {:?}", version(pod), old.map(version))
        };
        if let Some(old) = old {
            step(&old["status"], &pod["status"]).with_context(what)?;
        }
        let generation = pod["metadata"]["generation"].as_i64().unwrap_or(i64::MAX);
        ensure!(
            pod["status"]["observedGeneration"].as_i64().unwrap_or(0) <= generation,
            "{}: ahead of the spec",
            what()
        );
        for (list, one) in containers(&pod["status"]) {
            let known = seen.entry((uid, list)).or_default();
            known.add(one).with_context(what)?;
        }
    }
    Ok(())
}

/// From one status to the next.
fn step(old: &Value, new: &Value) -> Result<()> {
    let phase = |status: &'_ Value| text(&status["phase"]).to_owned();
    let (was, is) = (phase(old), phase(new));
    ensure!(!matches!(was.as_str(), "Succeeded" | "Failed") || was == is, "the phase went from {was} to {is}");
    ensure!(was != "Running" || is != "Pending", "the phase went from {was} to {is}");
    for field in ["startTime", "qosClass", "hostIP"] {
        ensure!(old[field].is_null() || old[field] == new[field], "{field}: {} became {}", old[field], new[field]);
    }
    let observed = |value: &Value| value["observedGeneration"].as_i64().unwrap_or(0);
    ensure!(observed(old) <= observed(new), "observedGeneration went back");
    for was in list(old, "conditions") {
        let kind = &was["type"];
        let Some(is) = list(new, "conditions").iter().find(|is| is["type"] == *kind) else {
            anyhow::bail!("condition {kind} is lost");
        };
        ensure!(observed(was) <= observed(is), "observedGeneration of {kind} went back");
        let moved = was["lastTransitionTime"] != is["lastTransitionTime"];
        ensure!(
            !moved || was["status"] != is["status"] || was_overtaken(old, new, was, is),
            "a time changed without its status: {was} became {is}"
        );
        ensure!(text(&was["lastTransitionTime"]) <= text(&is["lastTransitionTime"]), "the time of {kind} went back");
    }
    for (name, was) in containers(old) {
        let found = containers(new).find(|(list, is)| *list == name && is["name"] == was["name"]);
        ensure!(found.is_some(), "the status of container {} is lost", was["name"]);
    }
    Ok(())
}

/// Whether the condition may have had its other value between two versions, which was overtaken before it was told: a node's
/// times are those of what it knew (upstream: `updateLastTransitionTime` compares with the status manager's cache, and what
/// is in there when a request can be made is what is told). It leaves a trace: a container that began or ended between the
/// two times, and was not told of so before. A sandbox that came and went with its pod's deletion leaves none.
fn was_overtaken(old: &Value, new: &Value, was: &Value, is: &Value) -> bool {
    let generation = |condition: &Value| condition["observedGeneration"].as_i64();
    if was["type"] == "PodReadyToStartContainers" && generation(was) < generation(is) {
        return true;
    }
    let between = text(&was["lastTransitionTime"])..=text(&is["lastTransitionTime"]);
    let told: BTreeSet<String> = containers(old).flat_map(|(_, one)| steps(one)).map(|(step, _)| step).collect();
    containers(new).flat_map(|(_, one)| steps(one)).any(|(step, at)| between.contains(&at) && !told.contains(&step))
}

/// The begin and the end of a container and of the one before it, as far as they are told: which step, and when.
fn steps(container: &Value) -> Vec<(String, &str)> {
    let running = &container["state"]["running"];
    let mut steps = vec![(&container["containerID"], "started", text(&running["startedAt"]))];
    for ended in [&container["state"]["terminated"], &container["lastState"]["terminated"]] {
        steps.push((&ended["containerID"], "started", text(&ended["startedAt"])));
        steps.push((&ended["containerID"], "finished", text(&ended["finishedAt"])));
    }
    let told = steps.into_iter().filter(|(_, _, at)| !at.is_empty());
    told.map(|(id, step, at)| (format!("{} {step}", text(id)), at)).collect()
}

/// What is known of one pod's containers of one list.
#[derive(Default)]
struct Containers<'a> {
    restarts: BTreeMap<&'a str, i64>,
    /// Ids that have ended, or were followed by another.
    over: BTreeSet<&'a str>,
    current: BTreeMap<&'a str, &'a str>,
}

impl<'a> Containers<'a> {
    fn add(&mut self, status: &'a Value) -> Result<()> {
        let name = text(&status["name"]);
        let restarts = status["restartCount"].as_i64().unwrap_or(0);
        let before = self.restarts.insert(name, restarts).unwrap_or(0);
        ensure!(before <= restarts, "restartCount of {name} went from {before} to {restarts}");
        let id = text(&status["containerID"]);
        if id.is_empty() {
            return Ok(());
        }
        let running = status["state"]["running"].is_object();
        ensure!(!running || !self.over.contains(id), "container {name} {id} runs after its end");
        if let Some(former) = self.current.insert(name, id).filter(|former| *former != id) {
            self.over.insert(former);
        }
        if status["state"]["terminated"].is_object() {
            self.over.insert(id);
        }
        Ok(())
    }
}

fn containers(status: &Value) -> impl Iterator<Item = (&'static str, &Value)> {
    ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"]
        .into_iter()
        .flat_map(|name| list(status, name).iter().map(move |one| (name, one)))
}

/// The distinct values that a condition had, oldest first.
pub fn values_of(history: &[Value], kind: &str) -> Vec<String> {
    let mut values: Vec<String> = history
        .iter()
        .filter_map(|object| list(&object["status"], "conditions").iter().find(|one| one["type"] == kind))
        .map(|one| text(&one["status"]).to_owned())
        .collect();
    values.dedup();
    values
}

/// The same of Ready, from when it first was true: how often a pod is told as not ready before that is up to who tells of it,
/// who tells what is the case and not each step.
pub fn readiness(history: &[Value]) -> Vec<String> {
    values_of(history, "Ready").into_iter().skip_while(|value| value != "True").collect()
}

/// A condition of an object.
///
/// # Errors
/// It has none of that type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Result<&'a Value> {
    let found = list(&object["status"], "conditions").iter().find(|one| one["type"] == kind);
    found.with_context(|| format!("there is no condition {kind} in {}", object["status"]))
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(status: Value) -> Value {
        json!({"metadata": {"uid": "u", "resourceVersion": "1", "generation": 2}, "status": status})
    }

    fn container(id: &str, restarts: i64, state: &str) -> Value {
        json!({"containerStatuses": [{"name": "m", "containerID": id, "restartCount": restarts, "state": {state: {}}}]})
    }

    #[test]
    fn steps_backwards_are_found() {
        let ready = |value: &str, time: &str| json!({"conditions": [{"type": "Ready", "status": value, "lastTransitionTime": time}]});
        for (what, from, to, well) in [
            ("starts", json!({"phase": "Pending"}), json!({"phase": "Running"}), true),
            ("unstarts", json!({"phase": "Running"}), json!({"phase": "Pending"}), false),
            ("comes back", json!({"phase": "Failed"}), json!({"phase": "Running"}), false),
            ("began later", json!({"startTime": "1"}), json!({"startTime": "2"}), false),
            ("generation", json!({"observedGeneration": 2}), json!({"observedGeneration": 1}), false),
            ("ahead", json!({}), json!({"observedGeneration": 3}), false),
            ("condition", ready("True", "1"), ready("False", "2"), true),
            ("condition lost", ready("True", "1"), json!({}), false),
            ("time alone", ready("True", "1"), ready("True", "2"), false),
            ("restart", container("a", 0, "running"), container("b", 1, "running"), true),
            ("fewer restarts", container("a", 1, "running"), container("a", 0, "running"), false),
            ("revived", container("a", 0, "terminated"), container("a", 0, "running"), false),
            ("container lost", container("a", 0, "running"), json!({}), false),
        ] {
            assert_eq!(pod_only_advances(&[pod(from), pod(to)]).is_ok(), well, "{what}");
        }
        let others =
            [pod(container("a", 0, "running")), pod(container("b", 1, "running")), pod(container("a", 1, "running"))];
        assert!(pod_only_advances(&others).is_err(), "an earlier container");
    }

    /// A container that did its work while the API server was busy: that it was ready in between is told by the time alone.
    #[test]
    fn a_time_moves_alone_where_a_container_began_or_ended() {
        let status = |since: &str, containers: Value| {
            let conditions = json!([{"type": "Ready", "status": "False", "lastTransitionTime": since}]);
            pod(json!({"conditions": conditions, "containerStatuses": containers}))
        };
        let waiting = json!([{"name": "m", "state": {"waiting": {}}}]);
        let at = |second: u32| format!("2026-01-01T00:00:{second:02}Z");
        let ended = |started: u32, finished: u32| {
            json!([{"name": "m", "containerID": "a",
                "state": {"terminated": {"containerID": "a", "startedAt": at(started), "finishedAt": at(finished)}}}])
        };
        let running = json!([{"name": "m", "containerID": "a", "state": {"running": {"startedAt": at(2)}}}]);
        for (what, from, to, well) in [
            ("ran", status(&at(1), waiting.clone()), status(&at(3), ended(2, 3)), true),
            ("ended", status(&at(1), running.clone()), status(&at(3), ended(2, 3)), true),
            ("nothing began", status(&at(1), waiting.clone()), status(&at(3), waiting.clone()), false),
            ("told before", status(&at(1), ended(2, 3)), status(&at(3), ended(2, 3)), false),
            ("told before that it runs", status(&at(1), running.clone()), status(&at(3), running), false),
            ("at another time", status(&at(1), waiting), status(&at(3), ended(4, 5)), false),
        ] {
            assert_eq!(pod_only_advances(&[from, to]).is_ok(), well, "{what}");
        }
    }

    #[test]
    fn the_time_of_a_sandbox_moves_alone_where_its_pod_was_deleted() {
        let status = |kind: &str, since: &str, generation: u32| {
            let condition =
                json!({"type": kind, "status": "False", "lastTransitionTime": since, "observedGeneration": generation});
            pod(json!({"conditions": [condition]}))
        };
        for (kind, generation, well) in
            [("PodReadyToStartContainers", 2, true), ("PodReadyToStartContainers", 1, false), ("Ready", 2, false)]
        {
            let history = [status(kind, "1", 1), status(kind, "2", generation)];
            assert_eq!(pod_only_advances(&history).is_ok(), well, "{kind} {generation}");
        }
    }

    #[test]
    fn another_pod_of_the_name_begins_anew() {
        let mut second = pod(json!({"phase": "Pending"}));
        second["metadata"]["uid"] = json!("v");
        pod_only_advances(&[pod(json!({"phase": "Failed"})), second]).unwrap();
    }
}
