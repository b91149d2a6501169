//! What two runs asked of the runtime: the same requests, and in an order that keeps to the recorded one.

use std::collections::BTreeMap;

use serde_json::Value;

use super::compare::{Difference, difference};
use super::normal::{self, Names};
use super::proxy::Call;

/// Recorded calls about two containers that lie nearer to each other than this, in seconds, may as well come the other way
/// round: upstream makes them beside each other.
const BESIDE: f64 = 0.3;

/// Which calls are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Those of the pod's life, up to the stop of its containers.
    Life,
    /// The stop of its sandbox and the removal of what is left, which garbage collection makes up to a minute later.
    Removal,
}

impl Part {
    fn of(key: &str) -> Self {
        match key.split('/').next() {
            Some("StopPodSandbox" | "RemoveContainer" | "RemovePodSandbox") => Self::Removal,
            _ => Self::Life,
        }
    }
}

/// One kind of call about one thing: its first request, and how often it was made.
#[derive(Debug)]
struct First {
    /// Calls of this kind about this thing.
    times: usize,
    /// Place among all calls of the run.
    at: usize,
    /// Seconds since the run's first call.
    time: f64,
    /// `name/attempt` of the container that it is about.
    of: String,
    request: Value,
}

/// Calls of one pod side by side; `recorded` with the seconds since the first. How often each was made counts, but for
/// probes, whose number is a matter of time. Pulls are not in the recordings. A recording that ended before garbage collection came to
/// the pod says nothing about the removal of what it left.
pub fn calls(
    pod: &str,
    part: Part,
    recorded: &[(f64, Call)],
    recorded_names: &Names,
    ours: &[Call],
    our_names: &Names,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    let recorded = keyed(recorded.iter().map(|(time, call)| (*time, call)), recorded_names);
    let ours = keyed(ours.iter().map(|call| (0.0, call)), our_names);
    let was_collected = recorded.keys().any(|key| key.starts_with("RemovePodSandbox"));
    for (key, first) in recorded.iter().filter(|(key, _)| Part::of(key) == part) {
        let Some(other) = ours.get(key) else {
            differences.push(difference(pod, &format!("cri/{key}"), "asked", "not asked"));
            continue;
        };
        values(pod, &format!("cri/{key}"), &first.request, &other.request, &mut differences);
        if first.times != other.times && is_counted(key) && (part == Part::Life || was_collected) {
            let times = |first: &First| format!("{} times", first.times);
            differences.push(difference(pod, &format!("cri/{key}/times"), &times(first), &times(other)));
        }
    }
    let additional = |key: &&String| !recorded.contains_key(*key) && Part::of(key) == part;
    for key in ours.keys().filter(additional).filter(|_| part == Part::Life || was_collected) {
        differences.push(difference(pod, &format!("cri/{key}"), "not asked", "asked"));
    }
    differences.extend(order(pod, part, &recorded, &ours));
    differences
}

/// Whether the number of these calls follows from the pod alone, and not from how long it was there.
fn is_counted(key: &str) -> bool {
    !key.starts_with("ExecSync/")
}

/// Of the calls that both runs made: what was asked before what, but for what happens beside each other.
fn order(pod: &str, part: Part, recorded: &BTreeMap<String, First>, ours: &BTreeMap<String, First>) -> Vec<Difference> {
    let both: Vec<(&String, &First, &First)> =
        recorded.iter().filter_map(|(key, first)| Some((key, first, ours.get(key)?))).collect();
    let mut differences = Vec::new();
    for (key, first, our_first) in &both {
        for (later_key, later, our_later) in &both {
            let in_part = Part::of(later_key) == part && (part == Part::Removal || Part::of(key) == part);
            let in_order = in_part && first.at < later.at && (first.of == later.of || later.time - first.time > BESIDE);
            if in_order && our_later.at < our_first.at {
                let after = format!("{later_key} after {key}");
                differences.push(difference(pod, "order", &after, "before it"));
            }
        }
    }
    differences
}

/// The first of each kind of call. Of a crash loop only those of the first two instances: how many there are is a matter of
/// time.
fn keyed<'a>(calls: impl Iterator<Item = (f64, &'a Call)>, names: &Names) -> BTreeMap<String, First> {
    let mut keyed: BTreeMap<String, First> = BTreeMap::new();
    // Sandboxes in the order in which they are named first: ids differ from run to run.
    let mut sandboxes: Vec<Value> = Vec::new();
    for (at, (time, call)) in calls.enumerate() {
        let metadata = &call.request["config"]["metadata"];
        let attempt = metadata["attempt"].as_u64().unwrap_or(0);
        let of = match call.method.as_str() {
            "CreateContainer" => format!("{}/{attempt}", metadata["name"].as_str().unwrap_or_default()),
            _ => call.of.clone(),
        };
        let early = of.rsplit('/').next().and_then(|n| n.parse().ok()).is_none_or(|attempt: u64| attempt < 2);
        let key = match call.method.as_str() {
            "RunPodSandbox" => format!("RunPodSandbox/{attempt}"),
            "CreateContainer" | "StartContainer" if early => format!("{}/{of}", call.method),
            "StopContainer" if early => {
                format!("StopContainer/{of}/timeout-{}", call.request["timeout"].as_str().unwrap_or("0"))
            }
            "ExecSync" if early => {
                let command = call.request["cmd"].as_array().into_iter().flatten().filter_map(Value::as_str);
                format!("ExecSync/{of}/{}", command.collect::<Vec<_>>().join(" ").replace('/', "~1"))
            }
            "RemoveContainer" if early => format!("RemoveContainer/{of}"),
            "StopPodSandbox" | "RemovePodSandbox" => {
                let id = &call.request["pod_sandbox_id"];
                let at = sandboxes.iter().position(|known| known == id).unwrap_or_else(|| {
                    sandboxes.push(id.clone());
                    sandboxes.len() - 1
                });
                format!("{}/{at}", call.method)
            }
            _ => continue,
        };
        let first = || First { times: 0, at, time, of, request: normal::request(call, names) };
        keyed.entry(key).or_insert_with(first).times += 1;
    }
    keyed
}

fn values(pod: &str, place: &str, recorded: &Value, ours: &Value, out: &mut Vec<Difference>) {
    match (recorded, ours) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let part = key.replace('/', "~1");
                let (x, y) = (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
                values(pod, &format!("{place}/{part}"), x, y, out);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (x, y)) in a.iter().zip(b).enumerate() {
                values(pod, &format!("{place}/{index}"), x, y, out);
            }
        }
        (a, b) if a == b => {}
        (a, b) => out.push(difference(pod, place, &a.to_string(), &b.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn call(method: &str, of: &str, request: Value) -> Call {
        Call { method: method.into(), request, pod_uid: String::new(), of: of.into() }
    }

    #[test]
    fn requests_are_compared_to_the_leaf() {
        let run = |value: Value| call("RunPodSandbox", "", json!({"config": value}));
        let none = Names::default();
        let (a, b) = (run(json!({"hostname": "a", "x": [1]})), run(json!({"hostname": "b", "x": [1]})));
        let found = calls("p", Part::Life, &[(0.0, a)], &none, &[b], &none);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].place, "cri/RunPodSandbox/0/config/hostname");
    }

    #[test]
    fn a_probe_counts_once_and_a_hook_comes_before_the_stop() {
        let none = Names::default();
        let exec = |command: &str| call("ExecSync", "a/0", json!({"cmd": [command], "timeout": "1"}));
        let stop = |of: &str| call("StopContainer", of, json!({"timeout": "2"}));
        let recorded = [(0.0, exec("probe")), (1.0, exec("hook")), (1.0, stop("b/0")), (1.1, stop("a/0"))];
        let ours = [exec("probe"), exec("probe"), stop("b/0"), exec("hook"), stop("a/0")];
        assert_eq!(calls("p", Part::Life, &recorded, &none, &ours, &none), []);
        let early = [exec("probe"), stop("a/0"), exec("hook"), stop("b/0")];
        let found = calls("p", Part::Life, &recorded, &none, &early, &none);
        assert_eq!(found.iter().map(|one| one.place.as_str()).collect::<Vec<_>>(), ["order"]);
        assert_eq!(calls("p", Part::Life, &recorded, &none, &ours[2..], &none).len(), 1, "no probe was made");
    }

    #[test]
    fn calls_that_are_made_twice_and_removals_count() {
        let none = Names::default();
        let start = || call("StartContainer", "a/0", json!({"container_id": "x"}));
        let of_sandbox = |method: &str| call(method, "", json!({"pod_sandbox_id": "s"}));
        let places = |part: Part, recorded: &[(f64, Call)], ours: &[Call]| -> Vec<String> {
            calls("p", part, recorded, &none, ours, &none).into_iter().map(|one| one.place).collect()
        };
        let recorded = [(0.0, start())];
        assert_eq!(places(Part::Life, &recorded, &[start(), start()]), ["cri/StartContainer/a/0/times"]);
        let collected = [
            (0.0, start()),
            (1.0, of_sandbox("StopPodSandbox")),
            (2.0, call("RemoveContainer", "a/0", json!({"container_id": "x"}))),
            (3.0, of_sandbox("RemovePodSandbox")),
        ];
        let ours: Vec<Call> = collected.iter().map(|(_, call)| call.clone()).collect();
        assert!(places(Part::Removal, &collected, &ours).is_empty());
        assert_eq!(places(Part::Removal, &collected, &ours[..3]), ["cri/RemovePodSandbox/0"]);
        let wrong = [ours[0].clone(), ours[2].clone(), ours[1].clone(), ours[3].clone()];
        assert_eq!(places(Part::Removal, &collected, &wrong), ["order"]);
        assert!(places(Part::Life, &collected, &ours[..1]).is_empty(), "removals are no part of a life");
        assert!(places(Part::Removal, &collected[..2], &ours).is_empty(), "the recording ended before them");
    }
}
