//! The node's conditions: status, reason, message, transition times, and which change is worth an event. Pure.
//!
//! Conditions of others (NetworkUnavailable, node problem detectors') stay as they are and where they are. Order and
//! texts are upstream's (`nodestatus/setters.go`): Ready comes after the pressures.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::ready::Ready;

/// What presses on the node, as kubelet-evictiond found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pressure {
    pub memory: bool,
    pub disk: bool,
    pub pid: bool,
}

struct Row {
    kind: &'static str,
    pressed: fn(&Pressure) -> bool,
    /// Reason, message and event reason while it presses, then while it does not.
    texts: [[&'static str; 3]; 2],
}

const PRESSURES: [Row; 3] = [
    Row {
        kind: "MemoryPressure",
        pressed: |pressure| pressure.memory,
        texts: [
            ["KubeletHasInsufficientMemory", "kubelet has insufficient memory available", "NodeHasInsufficientMemory"],
            ["KubeletHasSufficientMemory", "kubelet has sufficient memory available", "NodeHasSufficientMemory"],
        ],
    },
    Row {
        kind: "DiskPressure",
        pressed: |pressure| pressure.disk,
        texts: [
            ["KubeletHasDiskPressure", "kubelet has disk pressure", "NodeHasDiskPressure"],
            ["KubeletHasNoDiskPressure", "kubelet has no disk pressure", "NodeHasNoDiskPressure"],
        ],
    },
    Row {
        kind: "PIDPressure",
        pressed: |pressure| pressure.pid,
        texts: [
            ["KubeletHasInsufficientPID", "kubelet has insufficient PID available", "NodeHasInsufficientPID"],
            ["KubeletHasSufficientPID", "kubelet has sufficient PID available", "NodeHasSufficientPID"],
        ],
    },
];

/// What the list says already: what counts while kubelet-evictiond has said nothing. A condition that is not there, or that
/// the controller has called Unknown, does not press.
pub fn as_they_are(conditions: &[NodeCondition]) -> Pressure {
    let is = |kind: &str| conditions.iter().any(|condition| condition.type_ == kind && condition.status == "True");
    Pressure { memory: is("MemoryPressure"), disk: is("DiskPressure"), pid: is("PIDPressure") }
}

/// Brings the list up to date; gives the reasons of the events that the changes are worth.
pub fn update(
    conditions: &mut Vec<NodeCondition>,
    pressure: &Pressure,
    ready: &Ready,
    now: Timestamp,
) -> Vec<&'static str> {
    let mut events = Vec::new();
    for row in &PRESSURES {
        let pressed = (row.pressed)(pressure);
        let [reason, message, event] = row.texts[usize::from(!pressed)];
        let status = if pressed { "True" } else { "False" };
        let condition = entry(conditions, row.kind);
        condition.last_heartbeat_time = Some(Time(now));
        // As long as the status stays, so does the text, whoever wrote it.
        if condition.status != status {
            condition.status = status.to_owned();
            condition.reason = Some(reason.to_owned());
            condition.message = Some(message.to_owned());
            condition.last_transition_time = Some(Time(now));
            events.push(event);
        }
    }
    let existed = conditions.iter().any(|condition| condition.type_ == "Ready");
    let condition = entry(conditions, "Ready");
    let status = if ready.ready { "True" } else { "False" };
    condition.last_heartbeat_time = Some(Time(now));
    if condition.status != status {
        condition.last_transition_time = Some(Time(now));
        if existed {
            events.push(if ready.ready { "NodeReady" } else { "NodeNotReady" });
        }
    }
    condition.status = status.to_owned();
    condition.reason = Some(ready.reason.to_owned());
    condition.message = Some(ready.message.clone());
    events
}

fn entry<'a>(conditions: &'a mut Vec<NodeCondition>, kind: &str) -> &'a mut NodeCondition {
    let at = conditions.iter().position(|condition| condition.type_ == kind).unwrap_or_else(|| {
        conditions.push(NodeCondition {
            type_: kind.to_owned(),
            status: "Unknown".to_owned(),
            ..NodeCondition::default()
        });
        conditions.len() - 1
    });
    &mut conditions[at]
}

/// Whether two lists say the same, heartbeats and order aside.
pub fn same(old: &[NodeCondition], new: &[NodeCondition]) -> bool {
    let by_type = |list: &[NodeCondition]| {
        let mut list: Vec<NodeCondition> = list.to_vec();
        list.iter_mut().for_each(|condition| condition.last_heartbeat_time = None);
        list.sort_by(|a, b| a.type_.cmp(&b.type_));
        list
    };
    by_type(old) == by_type(new)
}

/// Remembers which change was told, so that a change that the API server does not take yet is told once, not with
/// each try.
#[derive(Debug, Default)]
pub struct ReportedConditions(BTreeMap<&'static str, &'static str>);

impl ReportedConditions {
    /// Of the events that one computation gave, those that are new. Changes that are no longer there may be told again.
    pub fn fresh(&mut self, events: Vec<&'static str>) -> Vec<&'static str> {
        let subject = |event: &'static str| match event {
            "NodeReady" | "NodeNotReady" => "Ready",
            "NodeHasInsufficientMemory" | "NodeHasSufficientMemory" => "Memory",
            "NodeHasDiskPressure" | "NodeHasNoDiskPressure" => "Disk",
            _ => "PID",
        };
        let before = std::mem::take(&mut self.0);
        let mut fresh = Vec::new();
        for event in events {
            if before.get(subject(event)) != Some(&event) {
                fresh.push(event);
            }
            self.0.insert(subject(event), event);
        }
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn state(ready: bool) -> Ready {
        let reason = if ready { "KubeletReady" } else { "KubeletNotReady" };
        Ready { ready, reason, message: "m".into() }
    }

    fn summary(conditions: &[NodeCondition]) -> Vec<(&str, &str, &str)> {
        conditions
            .iter()
            .map(|c| (c.type_.as_str(), c.status.as_str(), c.reason.as_deref().unwrap_or_default()))
            .collect()
    }

    #[test]
    fn a_new_node_has_all_four_conditions_in_order() {
        let mut conditions = Vec::new();
        let events = update(&mut conditions, &Pressure::default(), &state(false), at(0));
        assert_eq!(
            summary(&conditions),
            [
                ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                ("PIDPressure", "False", "KubeletHasSufficientPID"),
                ("Ready", "False", "KubeletNotReady"),
            ]
        );
        assert_eq!(events, ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"]);
        assert!(conditions.iter().all(|c| c.last_transition_time == Some(Time(at(0)))));
        assert_eq!(update(&mut conditions, &Pressure::default(), &state(true), at(5)), ["NodeReady"]);
        assert_eq!(conditions[3].last_transition_time, Some(Time(at(5))));
        assert_eq!(conditions[0].last_transition_time, Some(Time(at(0))));
        assert_eq!(conditions[0].last_heartbeat_time, Some(Time(at(5))));
    }

    #[test]
    fn pressure_and_back() {
        let mut conditions = Vec::new();
        update(&mut conditions, &Pressure::default(), &state(true), at(0));
        let pressed = Pressure { memory: true, disk: true, pid: true };
        assert_eq!(
            update(&mut conditions, &pressed, &state(true), at(1)),
            ["NodeHasInsufficientMemory", "NodeHasDiskPressure", "NodeHasInsufficientPID"]
        );
        assert_eq!(
            summary(&conditions)[..3],
            [
                ("MemoryPressure", "True", "KubeletHasInsufficientMemory"),
                ("DiskPressure", "True", "KubeletHasDiskPressure"),
                ("PIDPressure", "True", "KubeletHasInsufficientPID"),
            ]
        );
    }

    #[test]
    fn until_it_is_measured_it_stays_as_it_was() {
        let mut conditions = Vec::new();
        assert_eq!(as_they_are(&conditions), Pressure::default(), "a new node");
        let pressed = Pressure { disk: true, ..Pressure::default() };
        update(&mut conditions, &pressed, &state(true), at(0));
        assert_eq!(as_they_are(&conditions), pressed);
        conditions.iter_mut().for_each(|condition| condition.status = "Unknown".into());
        assert_eq!(as_they_are(&conditions), Pressure::default(), "never Unknown");
    }

    #[test]
    fn conditions_of_others_stay() {
        let foreign =
            NodeCondition { type_: "NetworkUnavailable".into(), status: "False".into(), ..Default::default() };
        let mut conditions = vec![foreign.clone()];
        update(&mut conditions, &Pressure::default(), &state(true), at(0));
        assert_eq!(conditions[0], foreign);
        assert_eq!(conditions.len(), 5);
    }

    #[test]
    fn unknown_written_by_the_controller_is_taken_back_with_an_event() {
        let mut conditions = Vec::new();
        update(&mut conditions, &Pressure::default(), &state(true), at(0));
        conditions.iter_mut().for_each(|condition| condition.status = "Unknown".into());
        let events = update(&mut conditions, &Pressure::default(), &state(true), at(9));
        assert_eq!(events, ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID", "NodeReady"]);
    }

    #[test]
    fn a_changed_condition_is_one_event_until_it_is_gone() {
        let mut told = ReportedConditions::default();
        assert_eq!(told.fresh(vec!["NodeNotReady"]), ["NodeNotReady"]);
        assert!(told.fresh(vec!["NodeNotReady"]).is_empty());
        assert!(told.fresh(vec![]).is_empty());
        assert_eq!(told.fresh(vec!["NodeNotReady"]), ["NodeNotReady"]);
        assert_eq!(told.fresh(vec!["NodeReady"]), ["NodeReady"]);
    }

    proptest! {
        #[test]
        fn transition_times_move_with_the_status_alone(steps in prop::collection::vec(any::<(bool, bool)>(), 1..20)) {
            let mut conditions = Vec::new();
            let mut last: Option<(bool, bool)> = None;
            for (second, (memory, ready)) in steps.into_iter().enumerate() {
                let now = at(i64::try_from(second).unwrap());
                let before = conditions.clone();
                let events = update(&mut conditions, &Pressure { memory, ..Default::default() }, &state(ready), now);
                let moved = |kind: &str| {
                    conditions.iter().find(|c| c.type_ == kind).unwrap().last_transition_time == Some(Time(now))
                };
                prop_assert_eq!(moved("MemoryPressure"), last.is_none_or(|(was, _)| was != memory));
                prop_assert_eq!(moved("Ready"), last.is_none_or(|(_, was)| was != ready));
                prop_assert_eq!(same(&before, &conditions), last == Some((memory, ready)));
                prop_assert_eq!(events.is_empty(), last == Some((memory, ready)));
                last = Some((memory, ready));
            }
        }
    }
}
