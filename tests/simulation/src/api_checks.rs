//! What must hold of what the node writes to the API server: looked at with each version of a pod that the server stores, with each
//! request, and at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bulkhead_apiserver::request_log::Record;
use bulkhead_apiserver::storage::ChangeKind;
use bulkhead_simulation_kernel as kernel;
use serde_json::Value;

use crate::apiserver::FOREIGN;
use crate::checks::SILENCE;
use crate::world::{Object, World, attempt_of};

/// How a static pod's mirror is called, behind the pod's name.
const OF_NODE: &str = "-test-node";
/// What the server does with a request it has done within this time, unless a fault holds it up; then its sender's end ends it.
const LAST_WORDS: Duration = Duration::from_millis(10);

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn is_over(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// The model's id of a container, without the runtime's name.
fn id_of(status: &Value) -> Option<&str> {
    status["containerID"].as_str()?.split_once("://").map(|(_, id)| id)
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainerStatuses", "containerStatuses"]
        .into_iter()
        .flat_map(|list| pod["status"][list].as_array().into_iter().flatten())
}

/// A pod as the server stores it.
fn object_of(pod: &Value) -> Object {
    let (metadata, status) = (&pod["metadata"], &pod["status"]);
    let annotation = |key: &str| metadata["annotations"][key].as_str();
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut object = Object {
        name: text(&metadata["name"]),
        version: annotation("simulation/version").and_then(|version| version.parse().ok()),
        is_mirror: annotation("kubernetes.io/config.mirror").is_some(),
        phase: text(&status["phase"]),
        reason: text(&status["reason"]),
        start_time: text(&status["startTime"]),
        has_foreign: conditions.into_iter().any(|condition| condition["type"] == FOREIGN),
        is_deleting: metadata["deletionTimestamp"].is_string(),
        changed: kernel::now(),
        ..Object::default()
    };
    for one in containers(pod) {
        let name = text(&one["name"]);
        let count = one["restartCount"].as_u64().and_then(|count| u32::try_from(count).ok());
        object.counts.insert(name.clone(), count.unwrap_or(0));
        if one["state"]["running"].is_object() {
            object.running.insert(name.clone());
        }
        let Some(id) = id_of(one) else { continue };
        if let Ok(number) = id.trim_start_matches('c').parse() {
            object.ids.insert(name, number);
        }
        if one["state"]["terminated"].is_object() {
            object.ended.insert(id.to_owned());
        }
    }
    object
}

impl World {
    /// A request of the node that changes a pod, after it was answered. `who`: the process.
    pub fn check_request(&mut self, who: &str, record: &Record) {
        if who != "kubelet-statusd" {
            self.breaks("own-uid", format!("{who} writes to the API server: {}", record.what()));
        }
        let empty = Value::Null;
        let body = record.body.as_ref().unwrap_or(&empty);
        let uid = match record.verb {
            "patch" => &body["metadata"]["uid"],
            "delete" => &body["preconditions"]["uid"],
            _ => return,
        };
        // A refusal of the simulation has no body.
        if record.body.is_some() && uid.as_str().is_none_or(str::is_empty) {
            self.breaks("own-uid", format!("{} of {} names no uid", record.what(), record.name));
        }
    }

    /// A version of a pod that the server has stored.
    pub fn check_object(&mut self, kind: ChangeKind, pod: &Value) {
        let uid = text(&pod["metadata"]["uid"]);
        let mut now = object_of(pod);
        let before = self.objects.get(&uid).cloned();
        self.check_ends(pod);
        self.sizes.is_told(&uid, pod);
        self.check_starting_written(&uid, pod);
        if !now.is_mirror {
            // A request that outlives its sender is taken after those of the next life. Its server knows no order of them, and the next
            // look at the pod makes it good: as with upstream, whose patches name no version either.
            let is_late = self.last_words.is_some_and(|at| at + LAST_WORDS > kernel::now());
            if let Some(before) = before.as_ref().filter(|_| !is_late) {
                self.check_forward(&uid, before, &now);
            }
            let ends = is_over(&now.phase) && before.as_ref().is_none_or(|before| !is_over(&before.phase));
            let running = self.running(&uid).find(|c| !c.is_ghost).map(|c| c.name().to_owned());
            if let Some(running) = running.filter(|_| ends) {
                let text = format!("{} is written to be {}, and {running} runs", now.name, now.phase);
                self.breaks("ended-last", text);
            }
            let stranger = containers(pod).filter_map(id_of).find(|id| {
                let container = self.containers.get(*id);
                container.is_some_and(|container| container.uid() != uid)
            });
            if let Some(id) = stranger {
                let text = format!("{id} is not a container of {} ({uid})", now.name);
                self.breaks("own-uid", text);
            }
        }
        if before.as_ref().is_none_or(|before| before.phase != now.phase || before.is_deleting != now.is_deleting) {
            let how = if now.is_deleting { ", being deleted" } else { "" };
            self.tell("kube-apiserver", format!("has {} with phase {:?}{how}", now.name, now.phase));
        }
        if kind == ChangeKind::Deleted {
            now.is_gone = true;
            self.tell("kube-apiserver", format!("has {} no more", now.name));
            if !now.is_mirror && !self.forced.contains(&uid) {
                self.check_deleted(&uid, &now);
            }
        }
        self.objects.insert(uid, now);
    }

    fn check_forward(&mut self, uid: &str, before: &Object, now: &Object) {
        let name = &now.name;
        if is_over(&before.phase) && before.phase != now.phase {
            self.breaks("terminal-stays", format!("{name} was {} and is {:?}", before.phase, now.phase));
        }
        if before.reason == "Evicted" && now.reason != before.reason {
            self.breaks("stays-evicted", format!("{name} was evicted, and is {:?} now", now.reason));
        }
        // In a new sandbox init containers run anew, and meanwhile the pod is Pending, as with upstream (getPhase).
        let is_first = self.newest_sandbox(uid).is_none_or(|sandbox| attempt_of(sandbox) == 0);
        if is_first && before.phase == "Running" && now.phase == "Pending" {
            self.breaks("status-forward", format!("{name} was Running and is Pending"));
        }
        if !before.start_time.is_empty() && before.start_time != now.start_time {
            self.breaks("status-forward", format!("{name} started at {}, now {:?}", before.start_time, now.start_time));
        }
        for (container, number) in &before.ids {
            if let Some(older) = now.ids.get(container).filter(|now| *now < number) {
                let text = format!("{container} of {name} is c{older}, an older instance than c{number}");
                self.breaks("status-forward", text);
            }
            if before.ended.contains(&format!("c{number}"))
                && now.ids.get(container) == Some(number)
                && now.running.contains(container)
            {
                self.breaks("status-forward", format!("{container} of {name} had ended as c{number} and runs"));
            }
        }
        for (container, count) in &before.counts {
            if let Some(after) = now.counts.get(container).filter(|after| *after < count) {
                let text = format!("restart count of {container} of {name} fell from {count} to {after}");
                self.breaks("written-counts", text);
            }
        }
        if before.has_foreign && !now.has_foreign {
            self.breaks("others-stay", format!("somebody else's condition of {name} is gone"));
        }
    }

    /// The object was taken away, and by nobody but the node.
    fn check_deleted(&mut self, uid: &str, last: &Object) {
        let name = &last.name;
        let running = self.running(uid).find(|c| !c.is_ghost).map(|c| c.name().to_owned());
        if let Some(running) = running {
            self.breaks("deleted-last", format!("{name} is deleted while {running} runs"));
        }
        if self.cgroups.contains(uid) {
            self.breaks("deleted-last", format!("{name} is deleted before its cgroup"));
        }
        if self.has_volumes(uid) {
            self.breaks("deleted-last", format!("{name} is deleted before its volumes are taken back"));
        }
        self.check_given_back(uid, name);
        if !self.asked.contains(uid) {
            self.breaks("deleted-last", format!("{name} is deleted, and nobody has asked for that"));
        }
        if !is_over(&last.phase) {
            self.breaks("deleted-last", format!("{name} is deleted with phase {:?}", last.phase));
        }
    }

    /// Once nothing has happened from outside for long. `by_version`: uids of pods that have a sandbox; `restless`: those that crash for
    /// ever.
    pub(crate) fn check_api_end(&mut self, by_version: &BTreeMap<u64, String>, restless: &[String]) {
        let (mut wrong, mut noisy) = (Vec::new(), None);
        let mut kept = BTreeSet::new();
        for (pod, wanted) in &self.wanted {
            let own = wanted.uid.clone();
            let (name, is_mirror) =
                (if own.is_some() { pod.clone() } else { format!("{pod}{OF_NODE}") }, own.is_none());
            let found = self.objects.iter().find(|(uid, object)| {
                !object.is_gone
                    && object.is_mirror == is_mirror
                    && object.name == name
                    && own.as_ref().is_none_or(|own| own == *uid)
            });
            let Some((uid, object)) = found else {
                // No mirror is made of a static pod that has ended, as with upstream.
                let told = by_version.get(&wanted.version).and_then(|uid| self.told.get(uid));
                if is_mirror && told.is_some_and(|told| is_over(&told.phase)) {
                    continue;
                }
                wrong.push(format!("kube-apiserver has no {name}"));
                continue;
            };
            kept.insert(uid.clone());
            if object.is_deleting || object.version != Some(wanted.version) {
                wrong.push(format!("kube-apiserver's {name} is another version, or being deleted"));
            }
            let Some(uid) = by_version.get(&wanted.version).filter(|uid| !restless.contains(uid)) else { continue };
            let told = self.told.get(uid).cloned().unwrap_or_default();
            let running: BTreeSet<String> = self.running(uid).map(|c| c.name().to_owned()).collect();
            if object.phase != told.phase {
                wrong.push(format!("kube-apiserver has {name} as {:?}, and it is {:?}", object.phase, told.phase));
            }
            if object.running != running {
                wrong.push(format!("kube-apiserver has {:?} of {name} running, and it is {running:?}", object.running));
            }
            if told.counts.iter().any(|(container, count)| object.counts.get(container) != Some(count)) {
                wrong.push(format!(
                    "kube-apiserver has restart counts {:?} of {name}, not {:?}",
                    object.counts, told.counts
                ));
            }
            if object.changed + SILENCE > self.end() {
                noisy.get_or_insert_with(|| format!("{name} was written at {:.3} s", object.changed.as_secs_f64()));
            }
        }
        let left = self.objects.iter().find(|(uid, object)| !object.is_gone && !kept.contains(*uid));
        if let Some((_, object)) = left {
            wrong.push(format!("kube-apiserver still has {}, which nobody wants", object.name));
        }
        if let Some(first) = wrong.first() {
            self.breaks("last-truth", first);
        }
        if let Some(noisy) = noisy {
            self.breaks("api-silence", noisy);
        }
    }
}
