//! What differs from run to run is taken out, the same way on both sides.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::proxy::Call;

/// Texts that stand for something of one run: the pod's uid, addresses, folders.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// Longest first, so that a folder is not taken for its parent.
    replacements: Vec<(String, String)>,
}

impl Names {
    pub fn new(pairs: &[(&str, &str)]) -> Self {
        let mut replacements: Vec<(String, String)> = pairs
            .iter()
            .filter(|(found, _)| !found.is_empty())
            .map(|(found, name)| ((*found).to_owned(), (*name).to_owned()))
            .collect();
        replacements.sort_by_key(|(found, _)| std::cmp::Reverse(found.len()));
        Self { replacements }
    }

    /// A text with every one of them replaced, and what always differs.
    pub fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (found, name) in &self.replacements {
            text = text.replace(found, name);
        }
        neighbours(&ports(&hex_runs(&text)))
    }

    /// All texts of a value.
    pub fn value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(list) => Value::Array(list.iter().map(|one| self.value(one)).collect()),
            Value::Object(map) => {
                Value::Object(map.iter().map(|(key, one)| (self.text(key), self.value(one))).collect())
            }
            other => other.clone(),
        }
    }
}

/// Ids of 64 hexadecimal digits become `ID`, the eight digits at the end of a termination file's name `SUFFIX`.
fn hex_runs(text: &str) -> String {
    let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let run = rest.find(|c| !is_hex(c)).unwrap_or(rest.len());
        let (hex, after) = rest.split_at(run);
        match hex.len() {
            64 => out.push_str("ID"),
            8 if after.is_empty() && out.contains("/containers/") && out.ends_with('/') => out.push_str("SUFFIX"),
            _ => out.push_str(hex),
        }
        let next = after.find(is_hex).unwrap_or(after.len());
        // Only a run that begins a word is an id.
        out.push_str(&after[..next]);
        rest = &after[next..];
    }
    out
}

/// What the pods beside it use, as a refusal tells it (`requested: 5, used: 10, capacity: 7`).
fn neighbours(text: &str) -> String {
    const USED: &str = ", used: ";
    let Some((before, after)) = text.split_once(USED) else { return text.to_owned() };
    let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{before}{USED}N{rest}")
}

/// The port that a connection went out by, as error texts have it (`1.2.3.4:41182->`).
fn ports(text: &str) -> String {
    let Some((before, after)) = text.split_once("->") else { return text.to_owned() };
    match before.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|c| c.is_ascii_digit()) => {
            format!("{host}:PORT->{}", ports(after))
        }
        _ => format!("{before}->{}", ports(after)),
    }
}

/// A request as it is compared. Facts of the machine are left out: huge pages that the kernel offers, and which block of users
/// a pod was given.
pub fn request(call: &Call, names: &Names) -> Value {
    let mut request = names.value(&call.request);
    drop_machine(&mut request);
    for sandbox in ["/config", "/sandbox_config"] {
        if let Some(seen) = request.pointer_mut(&format!("{sandbox}/annotations/kubernetes.io~1config.seen")) {
            *seen = json!("TIME");
        }
    }
    let config = &mut request["config"];
    if let Some(envs) = config.get_mut("envs") {
        *envs = environment(envs, names);
    }
    for options in ["/config/dns_config/options", "/sandbox_config/dns_config/options"] {
        // Out of a hash table, too.
        if let Some(Value::Array(options)) = request.pointer_mut(options) {
            options.sort_by_key(Value::to_string);
        }
    }
    let config = &mut request["config"];
    if config.is_null()
        && let Some(map) = request.as_object_mut()
    {
        map.remove("config");
    }
    request
}

/// Whether it is the first of the users that a pod was given for its own: always whole blocks, none the machine's.
fn is_a_block(first: &Value) -> bool {
    first.as_u64().is_some_and(|first| first >= 65536 && first.is_multiple_of(65536))
}

fn drop_machine(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("hugepage_limits");
            if let Some(first) = map.get_mut("host_id").filter(|first| is_a_block(first)) {
                *first = json!("BLOCK");
            }
            map.values_mut().for_each(drop_machine);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_machine),
        _ => {}
    }
}

/// Name and readable value, by name: upstream sends them in the order of a hash table, ours in that of declaration. What
/// the machine's memory is, is left out.
fn environment(envs: &Value, names: &Names) -> Value {
    const OF_THE_MACHINE: &str = "MEM";
    let mut all = BTreeMap::new();
    for env in envs.as_array().into_iter().flatten() {
        let key = env["key"].as_str().unwrap_or_default().to_owned();
        let value = names.text(&base64_text(env["value"].as_str().unwrap_or_default()));
        let value = if key == OF_THE_MACHINE { "MACHINE".to_owned() } else { value };
        all.insert(key, value);
    }
    json!(all)
}

/// Standard base64; what is not valid stays as it is.
fn base64_text(text: &str) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::new();
    let (mut bits, mut count) = (0_u32, 0);
    for c in text.bytes().filter(|c| *c != b'=') {
        let Some(digit) = ALPHABET.iter().position(|a| *a == c) else { return text.to_owned() };
        bits = (bits << 6) | digit as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

const OF_THE_POD: [&str; 13] = [
    "phase",
    "reason",
    "message",
    "qosClass",
    "observedGeneration",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "resources",
    "allocatedResources",
    "resize",
    "nominatedNodeName",
];
const OF_A_CONTAINER: [&str; 10] = [
    "started",
    "image",
    "imageID",
    "containerID",
    "resources",
    "allocatedResources",
    "allocatedResourcesStatus",
    "volumeMounts",
    "stopSignal",
    // The runtime of the recordings does not tell it: `super::users`.
    "user",
];

/// What of a pod's status is compared: everything but times, whose ids and addresses [`Names`] takes out. `deleting`: the
/// pod has a deletion timestamp.
pub fn status(status: &Value, deleting: bool) -> Value {
    let mut out = Map::new();
    for key in OF_THE_POD {
        if let Some(value) = status.get(key) {
            out.insert(key.to_owned(), value.clone());
        }
    }
    drop_no_limit(&mut out);
    let condition = |c: &Value| pick(c, &["type", "status", "reason", "message", "observedGeneration"]);
    let conditions = status["conditions"].as_array().into_iter().flatten().map(condition).collect();
    out.insert("conditions".to_owned(), Value::Array(conditions));
    for key in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
        if let Some(list) = status[key].as_array() {
            out.insert(key.to_owned(), list.iter().map(container).collect());
        }
    }
    if deleting {
        out.insert("deleting".to_owned(), json!(true));
    }
    Value::Object(out)
}

/// What cgroup version 1 reads where no limit of memory is set: upstream tells it as the limit of the pod.
const NO_LIMIT: &str = "9007199254740988Ki";

fn drop_no_limit(status: &mut Map<String, Value>) {
    let Some(resources) = status.get_mut("resources") else { return };
    if resources["limits"]["memory"] == NO_LIMIT
        && let Some(limits) = resources["limits"].as_object_mut()
    {
        limits.remove("memory");
        if limits.is_empty()
            && let Some(resources) = resources.as_object_mut()
        {
            resources.remove("limits");
        }
    }
}

fn pick(value: &Value, keys: &[&str]) -> Value {
    let present = keys.iter().filter_map(|key| Some(((*key).to_owned(), value.get(*key)?.clone())));
    Value::Object(present.collect())
}

fn container(status: &Value) -> Value {
    let state = |state: &Value| {
        let mut state = state.clone();
        for inner in state.as_object_mut().into_iter().flat_map(|map| map.values_mut()) {
            for key in ["startedAt", "finishedAt", "containerID"] {
                if let Some(map) = inner.as_object_mut() {
                    map.remove(key);
                }
            }
        }
        if state.is_null() { json!({}) } else { state }
    };
    let mut out = json!({
        "name": status["name"],
        "state": state(&status["state"]),
        "lastState": state(&status["lastState"]),
        "ready": status["ready"].as_bool().unwrap_or(false),
        "restartCount": status["restartCount"].as_i64().unwrap_or(0),
    });
    for key in OF_A_CONTAINER {
        if let Some(value) = status.get(key) {
            out[key] = value.clone();
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_folders_lose_their_run() {
        let names = Names::new(&[("/var/lib/kubelet", "ROOT"), ("abc-uid", "UID"), ("10.0.0.7", "POD-IP")]);
        let id = "0123456789abcdef".repeat(4);
        assert_eq!(names.text(&format!("containerd://{id}")), "containerd://ID");
        assert_eq!(
            names.text("/var/lib/kubelet/pods/abc-uid/containers/main/0a1b2c3d"),
            "ROOT/pods/UID/containers/main/SUFFIX"
        );
        assert_eq!(names.text("a785d335"), "a785d335");
        assert_eq!(names.text("udp 10.0.0.7:41182->1.2.3.4:53: late"), "udp POD-IP:PORT->1.2.3.4:53: late");
        assert_eq!(
            names.text("cpu, requested: 9, used: 10, capacity: 2"),
            names.text("cpu, requested: 9, used: 0, capacity: 2")
        );
        assert_eq!(base64_text("dGNwOi8vMTAuOTYuMC4xOjQ0Mw=="), "tcp://10.96.0.1:443");
    }

    #[test]
    fn any_block_of_users_is_as_good_as_another() {
        let of = |first: u64| {
            let asked = json!({"config": {"linux": {"uids": [{"host_id": first, "length": 65536}]}}});
            let call =
                Call { method: "RunPodSandbox".into(), request: asked, pod_uid: String::new(), of: String::new() };
            request(&call, &Names::default())
        };
        assert_eq!(of(131_072), of(4_235_198_464));
        assert_ne!(of(131_072), of(0), "the machine's own users");
        assert_ne!(of(131_072), of(131_073));
    }

    #[test]
    fn a_status_keeps_what_tools_match_on() {
        let full = json!({"phase": "Running", "podIP": "1.2.3.4", "conditions": [
            {"type": "Ready", "status": "True", "lastTransitionTime": "now"}],
            "containerStatuses": [{"name": "a", "state": {"running": {"startedAt": "now"}}, "ready": true, "image": "x"}]});
        let expected = json!({"phase": "Running", "podIP": "1.2.3.4", "deleting": true,
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "a", "state": {"running": {}}, "lastState": {}, "ready": true, "restartCount": 0,
                "image": "x"}]});
        assert_eq!(status(&full, true), expected);
    }
}
