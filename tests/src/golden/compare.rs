//! What differs between a recording and a run, and which of it is meant.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::Release;
use serde_json::Value;

use super::brief;
use super::normal::Names;

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    pub pod: String,
    /// `cri/CreateContainer/main/0/config/linux/...`, `status/...`, `event/...`.
    pub place: String,
    pub recorded: String,
    pub ours: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}\n    recorded: {}\n    ours:     {}", self.pod, self.place, self.recorded, self.ours)
    }
}

/// A difference that is meant: `golden/meant.json`.
#[derive(Debug, Clone)]
pub struct Meant {
    /// A pod's name, or `*`.
    pod: String,
    /// Beginning of the place; a `*` stands for one part of it.
    place: String,
    /// Part of what is on either side; None: whatever it is.
    text: Option<String>,
    /// Part of a line of docs/differences.md.
    line: String,
}

/// The list of what is meant.
///
/// # Errors
/// It cannot be read, or names a line that docs/differences.md does not have.
pub fn meant() -> Result<Vec<Meant>> {
    read("meant.json")
}

/// What a runtime does otherwise than the one of the recordings, or can do and that one could not:
/// `golden/runtimes/<release>.json`, in the same form.
///
/// # Errors
/// As [`meant`].
pub fn meant_on(release: Release) -> Result<Vec<Meant>> {
    match release {
        Release::V2_1 => read("runtimes/2.1.json"),
        // 1.7 differs from 1.6 in nothing that the recordings have.
        Release::Installed | Release::V1_7 => Ok(Vec::new()),
    }
}

fn read(file: &str) -> Result<Vec<Meant>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let list: Value = serde_json::from_slice(&std::fs::read(here.join("golden").join(file))?)?;
    let document = std::fs::read_to_string(here.join("../docs/differences.md"))?;
    let text = |value: &Value, key: &str| Ok::<_, anyhow::Error>(value[key].as_str().context("no text")?.to_owned());
    let list = list.as_array().context("no list")?;
    list.iter()
        .map(|one| {
            let part = one.get("text").map(|_| text(one, "text")).transpose()?;
            let meant =
                Meant { pod: text(one, "pod")?, place: text(one, "place")?, text: part, line: text(one, "line")? };
            ensure!(document.contains(&meant.line), "docs/differences.md has no line with {:?}", meant.line);
            Ok(meant)
        })
        .collect()
}

impl Meant {
    /// Whether this is that difference.
    pub fn covers(&self, difference: &Difference) -> bool {
        let mut parts = difference.place.split('/');
        (self.pod == "*" || self.pod == difference.pod)
            && self.place.split('/').all(|wanted| parts.next().is_some_and(|part| wanted == "*" || wanted == part))
            && self
                .text
                .as_ref()
                .is_none_or(|text| difference.recorded.contains(text) || difference.ours.contains(text))
    }
}

pub(super) fn difference(pod: &str, place: &str, recorded: &str, ours: &str) -> Difference {
    Difference { pod: pod.to_owned(), place: place.to_owned(), recorded: recorded.to_owned(), ours: ours.to_owned() }
}

/// The statuses that a watcher saw. Short ones may be skipped on either side, so ours have to be found among the recorded
/// ones in the same order; the last one before the deletion and the very last one have to be there.
pub fn statuses(pod: &str, recorded: &[Value], ours: &[Value]) -> Vec<Difference> {
    let mut differences = Vec::new();
    let mut from = 0;
    for status in ours {
        let same = |one: &Value| tells(one, status);
        match recorded.iter().skip(from).position(same) {
            Some(at) => from += at,
            None if recorded.iter().any(same) => {
                differences.push(difference(pod, "status/order", "earlier", &status.to_string()));
            }
            None if recorded.iter().any(|end| is_end_withheld(end, status)) => {}
            None if recorded.iter().skip(from).any(|one| brief::is_beside(one, status)) => {}
            None => {
                let near = recorded.iter().skip(from).find(|one| one["phase"] == status["phase"]);
                let near = near.map_or_else(|| "nothing like it".to_owned(), Value::to_string);
                differences.push(difference(pod, "status/unexpected", &near, &status.to_string()));
            }
        }
    }
    // A state of less than a second may have passed before it could be told, or stand for the recorded one beside it.
    let beside = |one: &Value, status: &Value| brief::is_beside(one, status) || brief::is_beside(status, one);
    let told = |one: &Value| ours.iter().any(|status| tells(one, status) || beside(one, status));
    for skipped in recorded.iter().filter(|one| !told(one)) {
        differences.push(difference(pod, "status/skipped", &skipped.to_string(), "never told"));
    }
    let deleting = |status: &Value| status["deleting"] == true;
    let milestones = [recorded.iter().rfind(|one| !deleting(one)), recorded.last()];
    let there = |one: &Value| ours.iter().any(|status| status == one || (!deleting(one) && as_far_as(one, status)));
    for milestone in milestones.into_iter().flatten().filter(|one| !there(one)) {
        let last = ours.iter().rfind(|one| deleting(one) == deleting(milestone));
        let last = last.map_or_else(|| "never".to_owned(), Value::to_string);
        differences.push(difference(pod, "status/missing", &milestone.to_string(), &last));
    }
    differences.sort();
    differences.dedup();
    differences
}

/// Whether `status` says what the recorded one says, but for the word on the sandbox.
fn tells(recorded: &Value, status: &Value) -> bool {
    without_sandbox(recorded) == without_sandbox(status)
}

/// Whether `status` is the pod's end but for the phase: the terminal one is not told, here as by upstream, while something
/// of the pod may still be at work.
fn is_end_withheld(end: &Value, status: &Value) -> bool {
    let phase = |one: &Value| one["phase"].as_str().unwrap_or_default().to_owned();
    let mut told = without_sandbox(status);
    told["phase"] = end["phase"].clone();
    matches!(phase(end).as_str(), "Succeeded" | "Failed")
        && matches!(phase(status).as_str(), "Pending" | "Running")
        && told == without_sandbox(end)
}

/// A status without the word on the sandbox and its address, which comes a moment before or after that on the containers.
pub(super) fn without_sandbox(status: &Value) -> Value {
    let mut status = status.clone();
    if let Some(map) = status.as_object_mut() {
        map.remove("podIP");
        map.remove("podIPs");
    }
    if let Some(conditions) = status["conditions"].as_array_mut() {
        conditions.retain(|condition| condition["type"] != "PodReadyToStartContainers");
    }
    status
}

/// Whether a pod is as far as another was: same phase and addresses, and each container as often restarted and as ready.
pub fn as_far_as(goal: &Value, status: &Value) -> bool {
    let lists = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];
    let far = |list: &str| {
        let (wanted, ours) = (goal[list].as_array(), status[list].as_array());
        let (wanted, ours) = (wanted.map_or(&[][..], Vec::as_slice), ours.map_or(&[][..], Vec::as_slice));
        let restarts = |c: &Value| c["restartCount"].as_i64().unwrap_or(0);
        let runs = |c: &Value| c["state"].get("running").is_some();
        let reason = |c: &Value| c["state"]["waiting"]["reason"].clone();
        wanted.len() == ours.len()
            && wanted.iter().zip(ours).all(|(goal, ours)| {
                restarts(ours) >= restarts(goal)
                    && runs(ours) == runs(goal)
                    && ours["ready"] == goal["ready"]
                    // In a loop the pause is as good as the end before it.
                    && ((restarts(goal) > 0 && reason(goal).is_null()) || reason(ours) == reason(goal))
            })
    };
    let same = |key: &&str| goal[*key] == status[*key];
    ["phase", "observedGeneration", "hostIPs", "podIPs", "resources"].iter().all(same)
        && goal["conditions"] == status["conditions"]
        && lists.into_iter().all(far)
}

/// Events by reason, text, source and the container that they are about, and those that come once by their number.
pub fn events(
    pod: &str,
    recorded: &[Value],
    recorded_names: &Names,
    ours: &[Value],
    our_names: &Names,
) -> Vec<Difference> {
    let counted = |events: &[Value], names: &Names| -> BTreeMap<(String, String), i64> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let of = |e: &Value| {
            let source = ["component", "host", "reportingComponent", "reportingInstance"].map(|key| text(&e[key]));
            let key = format!("event/{}/{}", text(&e["reason"]), text(&e["fieldPath"]));
            let told = format!("{} {} from {}", text(&e["type"]), names.text(&text(&e["message"])), source.join(" "));
            ((key, told), e["count"].as_i64().unwrap_or(1))
        };
        let mut counted = BTreeMap::new();
        for (event, count) in events.iter().map(of) {
            *counted.entry(event).or_default() += count;
        }
        counted
    };
    let (recorded, ours) = (counted(recorded, recorded_names), counted(ours, our_names));
    let mut differences = Vec::new();
    for ((key, text), count) in &recorded {
        // What came once comes once. How often what came again comes is a matter of time, as it is with probes that fail.
        let is_counted = *count == 1 && !key.starts_with("event/Unhealthy/");
        if let Some(other) = ours.get(&(key.clone(), text.clone())).filter(|other| is_counted && **other != 1) {
            differences.push(difference(pod, &format!("{key}/count"), "1", &format!("{other}: {text}")));
        }
    }
    let set = |counted: BTreeMap<(String, String), i64>| counted.into_keys().collect::<BTreeSet<_>>();
    let (recorded, ours) = (set(recorded), set(ours));
    let only = |these: &BTreeSet<(String, String)>, others: &BTreeSet<(String, String)>, recorded: bool| {
        let left: Vec<Difference> = these
            .difference(others)
            .map(
                |(key, text)| {
                    if recorded { difference(pod, key, text, "none") } else { difference(pod, key, "none", text) }
                },
            )
            .collect();
        left
    };
    // Whether a program listens yet when it is probed first is the machine's mood.
    let is_chance = |one: &Difference| {
        one.place.starts_with("event/Unhealthy/")
            && ["connection refused", "failed to connect service"].iter().any(|text| one.recorded.contains(text))
    };
    differences.extend(only(&recorded, &ours, true).into_iter().filter(|one| !is_chance(one)));
    differences.extend(only(&ours, &recorded, false));
    differences
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn skipped_and_wrong_statuses_are_differences() {
        let recorded =
            [json!({"phase": "Pending"}), json!({"phase": "Running"}), json!({"phase": "Failed", "deleting": true})];
        assert_eq!(statuses("p", &recorded, &recorded[1..])[0].place, "status/skipped");
        assert_eq!(statuses("p", &recorded, &recorded[..2])[0].place, "status/missing");
        let wrong = [json!({"phase": "Running"}), json!({"phase": "Pending"}), recorded[2].clone()];
        assert_eq!(statuses("p", &recorded, &wrong)[0].place, "status/order");
        let end = json!({"phase": "Succeeded", "containerStatuses": [{"name": "a"}]});
        let held = json!({"phase": "Pending", "containerStatuses": [{"name": "a"}]});
        assert!(statuses("p", std::slice::from_ref(&end), &[held.clone(), end.clone()]).is_empty());
        assert!(!is_end_withheld(&held, &end));
        let without_the_middle = [recorded[0].clone(), recorded[2].clone()];
        let places = |found: Vec<Difference>| found.into_iter().map(|one| one.place).collect::<Vec<_>>();
        assert_eq!(places(statuses("p", &recorded, &without_the_middle)), ["status/missing", "status/skipped"]);
        let unknown = [recorded[0].clone(), recorded[1].clone(), json!({"phase": "Unknown"}), recorded[2].clone()];
        assert_eq!(places(statuses("p", &recorded, &unknown)), ["status/unexpected"]);
    }

    #[test]
    fn events_are_compared_with_their_number_and_source() {
        let none = Names::default();
        let event = |reason: &str, message: &str, count: i64, host: &str| json!({"type": "Normal", "reason": reason, "message": message, "count": count, "host": host, "fieldPath": "f"});
        let places = |recorded: &[Value], ours: &[Value]| -> Vec<String> {
            events("p", recorded, &none, ours, &none).into_iter().map(|one| one.place).collect()
        };
        let started = |count: i64, host: &str| [event("Started", "s", count, host)];
        assert!(places(&started(1, "n"), &started(1, "n")).is_empty());
        assert_eq!(places(&started(1, "n"), &started(2, "n")), ["event/Started/f/count"]);
        assert!(places(&started(3, "n"), &started(2, "n")).is_empty(), "a loop");
        assert_eq!(places(&started(1, "n"), &started(1, "m")), ["event/Started/f", "event/Started/f"]);
        let refused = [event("Unhealthy", "connection refused", 1, "n")];
        assert!(places(&refused, &[]).is_empty(), "it listened at once");
        assert_eq!(places(&[], &refused), ["event/Unhealthy/f"]);
    }

    #[test]
    fn a_meant_difference_is_matched_by_its_place() {
        let difference = difference("env", "cri/CreateContainer/main/0/config/envs/3", "a", "b");
        let with = |pod: &str, place: &str, text: Option<&str>| Meant {
            pod: pod.into(),
            place: place.into(),
            text: text.map(str::to_owned),
            line: String::new(),
        };
        let meant = |pod: &str, place: &str| with(pod, place, None);
        assert!(with("*", "cri", Some("b")).covers(&difference) && !with("*", "cri", Some("c")).covers(&difference));
        assert!(meant("*", "cri/CreateContainer/*/*/config/envs").covers(&difference));
        assert!(!meant("*", "cri/CreateContainer/*/*/config/mounts").covers(&difference));
        assert!(!meant("other", "cri").covers(&difference));
    }
}
