//! Which states of pod workers and which ways between them were seen, which requests the API server got, and which never.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// As `kubelet.syncd.v1.WorkerState` counts them; the pod that is not known is the first and the last.
const STATES: [&str; 6] = ["none", "waiting", "sync", "terminating", "terminated", "finished"];

/// What kubelet-statusd may ask about pods, with the codes that it may get in a run of family `api`.
const REQUESTS: [&str; 14] = [
    "kubelet-statusd create pods 201",
    "kubelet-statusd create pods 409",
    "kubelet-statusd delete pods 200",
    "kubelet-statusd delete pods 404",
    "kubelet-statusd delete pods 409",
    "kubelet-statusd get pods 200",
    "kubelet-statusd get pods 404",
    "kubelet-statusd patch pods/status 200",
    "kubelet-statusd patch pods/status 404",
    "kubelet-statusd patch pods/status 409",
    "kubelet-statusd patch pods/status 422",
    "kubelet-statusd patch pods/status 500",
    "kubelet-syncd watch pods 200",
    "kubelet-syncd watch pods 410",
];

/// Transitions, by the numbers of both states, and what was done in all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    transitions: BTreeMap<String, u64>,
    phases: BTreeMap<String, u64>,
    deeds: BTreeMap<String, u64>,
    /// Requests about pods, each with its answer's code.
    #[serde(default)]
    requests: BTreeMap<String, u64>,
    /// Changes asked of the CSI driver or of the device plugin, each with what came of it; evictions, and conditions of the node.
    #[serde(default)]
    calls: BTreeMap<String, u64>,
}

impl Coverage {
    pub fn transition(&mut self, from: i32, to: i32) {
        if from != to {
            *self.transitions.entry(format!("{from}-{to}")).or_default() += 1;
        }
    }

    pub fn phase(&mut self, phase: &str) {
        *self.phases.entry(phase.to_owned()).or_default() += 1;
    }

    pub fn deed(&mut self, deed: &str) {
        *self.deeds.entry(deed.to_owned()).or_default() += 1;
    }

    /// A request of the node, and the answer's code.
    pub fn request(&mut self, request: &str) {
        if request.contains(" pods") {
            *self.requests.entry(request.to_owned()).or_default() += 1;
        }
    }

    /// A change asked of the CSI driver or of the device plugin, and the code that it has answered with.
    pub fn call(&mut self, call: &str) {
        *self.calls.entry(call.to_owned()).or_default() += 1;
    }

    pub fn add(&mut self, other: &Coverage) {
        for (key, count) in &other.calls {
            *self.calls.entry(key.clone()).or_default() += count;
        }
        for (key, count) in &other.transitions {
            *self.transitions.entry(key.clone()).or_default() += count;
        }
        for (key, count) in &other.phases {
            *self.phases.entry(key.clone()).or_default() += count;
        }
        for (key, count) in &other.requests {
            *self.requests.entry(key.clone()).or_default() += count;
        }
        for (key, count) in &other.deeds {
            *self.deeds.entry(key.clone()).or_default() += count;
        }
    }

    /// For people: a row for each state, a column for each that follows; what was never seen is named.
    pub fn table(&self) -> String {
        let count = |from: usize, to: usize| self.transitions.get(&format!("{from}-{to}")).copied().unwrap_or(0);
        let mut text = format!("{:<12}", "from \\ to");
        for state in STATES {
            text.push_str(&format!("{state:>12}"));
        }
        let mut never = Vec::new();
        for (from, name) in STATES.iter().enumerate() {
            text.push_str(&format!("\n{name:<12}"));
            for (to, next) in STATES.iter().enumerate() {
                let seen = count(from, to);
                text.push_str(&if from == to { format!("{:>12}", "") } else { format!("{seen:>12}") });
                if from != to && seen == 0 {
                    never.push(format!("{name} to {next}"));
                }
            }
        }
        let list = |counts: &BTreeMap<String, u64>| {
            counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
        };
        text.push_str(&format!("\nphases told: {}\n", list(&self.phases)));
        text.push_str(&format!("what was done: {}\n", list(&self.deeds)));
        if !self.calls.is_empty() {
            text.push_str(&format!("calls of driver and plugin, evictions and conditions: {}\n", list(&self.calls)));
        }
        if !self.requests.is_empty() {
            text.push_str(&format!("requests about pods: {}\n", list(&self.requests)));
            let missing = REQUESTS.iter().filter(|name| !self.requests.contains_key(**name));
            never.extend(missing.map(|name| (*name).to_owned()));
        }
        text.push_str(&format!(
            "never seen: {}\n",
            if never.is_empty() { "nothing".to_owned() } else { never.join(", ") }
        ));
        text
    }
}
