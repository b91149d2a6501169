//! Columns for people: what `kubectl get` shows (`pkg/printers/internalversion`), for pods, nodes and events as the real
//! server has them, name and age for everything else.

use std::time::SystemTime;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::negotiation::metadata_of;
use super::request::Query;
use super::resources::Resource;
use super::storage::Object;

/// Title, type, and whether only `-o wide` shows it.
type Column = (&'static str, &'static str, bool);

const PODS: &[Column] = &[
    ("Name", "string", false),
    ("Ready", "string", false),
    ("Status", "string", false),
    ("Restarts", "string", false),
    ("Age", "string", false),
    ("IP", "string", true),
    ("Node", "string", true),
    ("Nominated Node", "string", true),
    ("Readiness Gates", "string", true),
];
const NODES: &[Column] = &[
    ("Name", "string", false),
    ("Status", "string", false),
    ("Roles", "string", false),
    ("Age", "string", false),
    ("Version", "string", false),
    ("Internal-IP", "string", true),
    ("External-IP", "string", true),
    ("OS-Image", "string", true),
    ("Kernel-Version", "string", true),
    ("Container-Runtime", "string", true),
];
const EVENTS: &[Column] = &[
    ("Last Seen", "string", false),
    ("Type", "string", false),
    ("Reason", "string", false),
    ("Object", "string", false),
    ("Subobject", "string", true),
    ("Source", "string", true),
    ("Message", "string", false),
    ("First Seen", "string", true),
    ("Count", "string", true),
    ("Name", "string", true),
];
const REQUESTS: &[Column] = &[
    ("Name", "string", false),
    ("Age", "string", false),
    ("SignerName", "string", false),
    ("Requestor", "string", false),
    ("Condition", "string", false),
];
const OTHERS: &[Column] = &[("Name", "string", false), ("Age", "string", false)];

/// The table of some objects; `includeObject` of the query says what comes with each row.
pub fn of(resource: &Resource, objects: &[Object], metadata: Value, query: &Query, now: SystemTime) -> Value {
    let now = Timestamp::try_from(now).unwrap_or_else(|_| Timestamp::now());
    let columns = match resource.plural {
        "pods" => PODS,
        "nodes" => NODES,
        "events" => EVENTS,
        "certificatesigningrequests" => REQUESTS,
        _ => OTHERS,
    };
    let definitions: Vec<Value> = columns
        .iter()
        .map(|(name, kind, wide)| {
            let format = if *name == "Name" { "name" } else { "" };
            json!({"name": name, "type": kind, "format": format, "description": "", "priority": i32::from(*wide)})
        })
        .collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let value = &object.value;
            let cells = match resource.plural {
                "pods" => pod(value, now),
                "nodes" => node(value, now),
                "events" => event(value, now),
                "certificatesigningrequests" => signing_request(value, now),
                _ => json!([name(value), age(&value["metadata"]["creationTimestamp"], now)]),
            };
            let mut row = json!({"cells": cells});
            match query.get("includeObject") {
                "None" => {}
                "Object" => row["object"] = value.clone(),
                _ => row["object"] = metadata_of(value),
            }
            row
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    })
}

fn name(object: &Value) -> &Value {
    &object["metadata"]["name"]
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn or_none(value: &str) -> &str {
    if value.is_empty() { "<none>" } else { value }
}

fn age(time: &Value, now: Timestamp) -> String {
    match text(time).parse::<Timestamp>() {
        Ok(time) => short(now.as_second() - time.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// As people read durations: `45s`, `3m20s`, `26h`, `3d`.
fn short(seconds: i64) -> String {
    let two = |big: i64, unit: &str, small: i64, rest: &str| {
        if small == 0 { format!("{big}{unit}") } else { format!("{big}{unit}{small}{rest}") }
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..=0 => "0s".to_owned(),
        _ if seconds < 120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => two(days, "d", hours % 24, "h"),
        _ if days < 730 => format!("{days}d"),
        _ => two(days / 365, "y", days % 365, "d"),
    }
}

fn pod(pod: &Value, now: Timestamp) -> Value {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let mut reason = match text(&status["reason"]) {
        "" => text(&status["phase"]).to_owned(),
        reason => reason.to_owned(),
    };
    let sidecars: Vec<&Value> =
        list(&spec["initContainers"]).iter().filter(|one| one["restartPolicy"] == "Always").collect();
    let is_sidecar = |status: &Value| sidecars.iter().any(|one| one["name"] == status["name"]);
    let total = list(&spec["containers"]).len() + sidecars.len();
    let (mut ready, mut restarts, mut last_restart) = (0usize, 0i64, None::<Timestamp>);
    let mut initializing = false;
    let mut note_restart = |status: &Value| {
        let ended = text(&status["lastState"]["terminated"]["finishedAt"]).parse::<Timestamp>().ok();
        last_restart = last_restart.max(ended);
        status["restartCount"].as_i64().unwrap_or(0)
    };
    for (index, one) in list(&status["initContainerStatuses"]).iter().enumerate() {
        restarts += note_restart(one);
        let state = &one["state"];
        if state["terminated"]["exitCode"] == 0 {
            continue;
        }
        if is_sidecar(one) && one["started"] == true {
            ready += usize::from(one["ready"] == true);
            continue;
        }
        let waiting = text(&state["waiting"]["reason"]);
        reason = if state["terminated"].is_object() {
            format!("Init:{}", ended_text(&state["terminated"]))
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            format!("Init:{waiting}")
        } else {
            format!("Init:{index}/{}", list(&spec["initContainers"]).len())
        };
        initializing = true;
        break;
    }
    let initialized =
        list(&status["conditions"]).iter().any(|one| one["type"] == "Initialized" && one["status"] == "True");
    if !initializing || initialized {
        let mut running = false;
        for one in list(&status["containerStatuses"]).iter().rev() {
            restarts += note_restart(one);
            let state = &one["state"];
            let waiting = text(&state["waiting"]["reason"]);
            if !waiting.is_empty() {
                reason = waiting.to_owned();
            } else if state["terminated"].is_object() {
                reason = ended_text(&state["terminated"]);
            } else if one["ready"] == true && state["running"].is_object() {
                running = true;
                ready += 1;
            }
        }
        if reason == "Completed" && running {
            let is_ready =
                list(&status["conditions"]).iter().any(|one| one["type"] == "Ready" && one["status"] == "True");
            reason = if is_ready { "Running" } else { "NotReady" }.to_owned();
        }
    }
    if pod["metadata"]["deletionTimestamp"].is_string() {
        let ended = matches!(text(&status["phase"]), "Failed" | "Succeeded");
        if text(&status["reason"]) == "NodeLost" {
            reason = "Unknown".to_owned();
        } else if !ended {
            reason = "Terminating".to_owned();
        }
    }
    let restarts = match last_restart {
        Some(last) if restarts > 0 => format!("{restarts} ({} ago)", short(now.as_second() - last.as_second())),
        _ => restarts.to_string(),
    };
    let gates = list(&spec["readinessGates"]);
    let met = gates.iter().filter(|gate| {
        list(&status["conditions"]).iter().any(|one| one["type"] == gate["conditionType"] && one["status"] == "True")
    });
    let gates_text = if gates.is_empty() { "<none>".to_owned() } else { format!("{}/{}", met.count(), gates.len()) };
    json!([
        name(pod),
        format!("{ready}/{total}"),
        reason,
        restarts,
        age(&pod["metadata"]["creationTimestamp"], now),
        or_none(text(&status["podIP"])),
        or_none(text(&spec["nodeName"])),
        or_none(text(&status["nominatedNodeName"])),
        gates_text,
    ])
}

fn ended_text(ended: &Value) -> String {
    match text(&ended["reason"]) {
        "" => match ended["signal"].as_i64().unwrap_or(0) {
            0 => format!("ExitCode:{}", ended["exitCode"].as_i64().unwrap_or(0)),
            signal => format!("Signal:{signal}"),
        },
        reason => reason.to_owned(),
    }
}

fn node(node: &Value, now: Timestamp) -> Value {
    let condition = list(&node["status"]["conditions"]).iter().find(|one| one["type"] == "Ready");
    let mut status = match condition.map(|one| text(&one["status"])) {
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if node["spec"]["unschedulable"] == true {
        status.push_str(",SchedulingDisabled");
    }
    let mut roles: Vec<&str> = Vec::new();
    for (key, value) in node["metadata"]["labels"].as_object().into_iter().flatten() {
        if let Some(role) = key.strip_prefix("node-role.kubernetes.io/").filter(|role| !role.is_empty()) {
            roles.push(role);
        } else if key == "kubernetes.io/role" && !text(value).is_empty() {
            roles.push(text(value));
        }
    }
    let address = |kind: &str| {
        let found = list(&node["status"]["addresses"]).iter().find(|one| one["type"] == kind);
        or_none(found.map_or("", |one| text(&one["address"]))).to_owned()
    };
    let info = |field: &str| match text(&node["status"]["nodeInfo"][field]) {
        "" => "<unknown>".to_owned(),
        value => value.to_owned(),
    };
    json!([
        name(node),
        status,
        or_none(&roles.join(",")),
        age(&node["metadata"]["creationTimestamp"], now),
        text(&node["status"]["nodeInfo"]["kubeletVersion"]),
        address("InternalIP"),
        address("ExternalIP"),
        info("osImage"),
        info("kernelVersion"),
        info("containerRuntimeVersion"),
    ])
}

fn event(event: &Value, now: Timestamp) -> Value {
    let time = |field: &str| match (&event[field], &event["eventTime"]) {
        (Value::String(_), _) => age(&event[field], now),
        (_, Value::String(_)) => age(&event["eventTime"], now),
        _ => "<unknown>".to_owned(),
    };
    let (first, last) = (time("firstTimestamp"), time("lastTimestamp"));
    let count = event["series"]["count"].as_i64().or_else(|| event["count"].as_i64()).unwrap_or(0).max(1);
    let last_seen = if count > 1 { format!("{last} (x{count} over {first})") } else { last };
    let object = &event["involvedObject"];
    let source = match (text(&event["source"]["component"]), text(&event["source"]["host"])) {
        (component, "") => component.to_owned(),
        (component, host) => format!("{component}, {host}"),
    };
    json!([
        last_seen,
        text(&event["type"]),
        text(&event["reason"]),
        format!("{}/{}", text(&object["kind"]).to_lowercase(), text(&object["name"])),
        text(&object["fieldPath"]),
        source,
        text(&event["message"]).trim(),
        first,
        count.to_string(),
        name(event),
    ])
}

fn signing_request(request: &Value, now: Timestamp) -> Value {
    let has = |kind: &str| list(&request["status"]["conditions"]).iter().any(|one| one["type"] == kind);
    let mut condition = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied",
        (_, true) => "Approved",
        _ => "Pending",
    }
    .to_owned();
    if has("Failed") {
        condition.push_str(",Failed");
    }
    if !text(&request["status"]["certificate"]).is_empty() {
        condition.push_str(",Issued");
    }
    let created = age(&request["metadata"]["creationTimestamp"], now);
    json!([name(request), created, text(&request["spec"]["signerName"]), text(&request["spec"]["username"]), condition])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-21T01:00:00Z".parse().unwrap()
    }

    #[test]
    fn durations() {
        for (seconds, expected) in [
            (0, "0s"),
            (45, "45s"),
            (119, "119s"),
            (200, "3m20s"),
            (300, "5m"),
            (3 * 3600 + 60, "3h1m"),
            (26 * 3600, "26h"),
            (3 * 86_400, "3d"),
            (400 * 86_400, "400d"),
        ] {
            assert_eq!(short(seconds), expected);
        }
    }

    #[test]
    fn the_status_column_of_a_pod() {
        let status = |status: Value| {
            let whole = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]}, "status": status});
            let cells = pod(&whole, now());
            format!("{} {}", text(&cells[1]), text(&cells[2]))
        };
        assert_eq!(status(json!({"phase": "Pending"})), "0/1 Pending");
        assert_eq!(
            status(
                json!({"phase": "Running", "containerStatuses": [{"name": "a", "ready": true, "state": {"running": {}}}]})
            ),
            "1/1 Running"
        );
        assert_eq!(
            status(
                json!({"phase": "Running", "containerStatuses": [{"name": "a", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]})
            ),
            "0/1 CrashLoopBackOff"
        );
        assert_eq!(
            status(json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]})),
            "0/1 Init:0/1"
        );
        assert_eq!(
            status(
                json!({"phase": "Succeeded", "containerStatuses": [{"name": "a", "state": {"terminated": {"reason": "Completed", "exitCode": 0}}}]})
            ),
            "0/1 Completed"
        );
        assert_eq!(status(json!({"phase": "Failed", "reason": "Evicted"})), "0/1 Evicted");
    }

    #[test]
    fn a_recorded_node() {
        let cells = node(
            &json!({
                "metadata": {"name": "node-a", "creationTimestamp": "2026-11-21T00:59:30Z", "labels": {"node-role.kubernetes.io/worker": ""}},
                "spec": {"unschedulable": true},
                "status": {
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "addresses": [{"type": "InternalIP", "address": "10.240.0.2"}],
                    "nodeInfo": {"kubeletVersion": "v1.36.2", "osImage": "Debian"},
                },
            }),
            now(),
        );
        assert_eq!(
            cells,
            json!([
                "node-a",
                "Ready,SchedulingDisabled",
                "worker",
                "30s",
                "v1.36.2",
                "10.240.0.2",
                "<none>",
                "Debian",
                "<unknown>",
                "<unknown>"
            ])
        );
    }
}
