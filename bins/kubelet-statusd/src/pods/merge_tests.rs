//! The merge, case by case, and what it never does.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::pods::normal::normal;

fn map(value: Value) -> Status {
    normal(value.as_object().unwrap().clone())
}

fn terms(containers_may_run: bool) -> Terms {
    Terms { containers_may_run, is_static: false, now: "2026-05-05T05:05:05.5Z".parse().unwrap() }
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn merged(old: Value, new: Value, containers_may_run: bool) -> Value {
    Value::Object(merge(&map(old), &map(new), terms(containers_may_run)).unwrap())
}

#[test]
fn what_others_write_stays() {
    let old = json!({"phase": "Pending", "nominatedNodeName": "n", "resourceClaimStatuses": [{"name": "c"}],
        "extendedResourceClaimStatus": {"resourceClaimName": "e"},
        "conditions": [condition("example.com/gate", "True"), condition("PodScheduled", "True"), condition("DisruptionTarget", "True")]});
    let new = json!({"phase": "Running", "resourceClaimStatuses": [{"name": "mine"}],
        "conditions": [condition("example.com/gate", "False"), condition("Ready", "True"), condition("PodScheduled", "True")]});
    let result = merged(old.clone(), new, false);
    for field in ["nominatedNodeName", "resourceClaimStatuses", "extendedResourceClaimStatus"] {
        assert_eq!(result[field], old[field], "{field}");
    }
    let kinds: Vec<_> = result["conditions"].as_array().unwrap().iter().map(|c| (&c["type"], &c["status"])).collect();
    let expected =
        [("example.com/gate", "True"), ("DisruptionTarget", "True"), ("Ready", "True"), ("PodScheduled", "True")]
            .map(|(kind, status)| (json!(kind), json!(status)));
    assert_eq!(kinds, expected.iter().map(|(kind, status)| (kind, status)).collect::<Vec<_>>());
}

#[test]
fn a_static_pods_condition_keeps_its_transition_time() {
    let old =
        json!({"phase": "Running", "conditions": [condition("Ready", "True"), condition("Initialized", "False")]});
    let mut later = [condition("Ready", "True"), condition("Initialized", "True")];
    for one in &mut later {
        one["lastTransitionTime"] = json!("2026-02-02T00:00:00Z");
    }
    let new = json!({"phase": "Running", "conditions": later});
    for (is_static, ready) in [(true, "2026-01-01T00:00:00Z"), (false, "2026-02-02T00:00:00Z")] {
        let merged = merge(&map(old.clone()), &map(new.clone()), Terms { is_static, ..terms(true) }).unwrap();
        assert_eq!(merged["conditions"][0]["lastTransitionTime"], ready);
        assert_eq!(merged["conditions"][1]["lastTransitionTime"], "2026-02-02T00:00:00Z", "its status is another");
    }
}

/// A restarted kubelet-syncd may have told it before it knew the host's addresses.
#[test]
fn a_static_pod_keeps_the_hosts_addresses_until_others_are_told() {
    let with = |host: &str, pod: &str| {
        let mut status = json!({"phase": "Running"});
        for (ip, ips, value) in [("hostIP", "hostIPs", host), ("podIP", "podIPs", pod)] {
            if !value.is_empty() {
                status[ip] = json!(value);
                status[ips] = json!([{"ip": value}]);
            }
        }
        status
    };
    for (is_static, old, new, expected) in [
        (true, ("10.0.0.1", "10.0.0.1"), ("", ""), ("10.0.0.1", "10.0.0.1")),
        (true, ("10.0.0.1", "10.0.0.1"), ("10.0.0.2", "10.0.0.2"), ("10.0.0.2", "10.0.0.2")),
        (true, ("10.0.0.1", "10.8.0.1"), ("", "10.8.0.2"), ("10.0.0.1", "10.8.0.2")),
        (true, ("10.0.0.1", "10.8.0.1"), ("", ""), ("10.0.0.1", "")),
        (true, ("", ""), ("", ""), ("", "")),
        (false, ("10.0.0.1", "10.0.0.1"), ("", ""), ("", "")),
    ] {
        let (old_status, new_status) = (with(old.0, old.1), with(new.0, new.1));
        let merged = merge(&map(old_status), &map(new_status), Terms { is_static, ..terms(true) }).unwrap();
        assert_eq!(merged, map(with(expected.0, expected.1)), "{is_static} {old:?} {new:?}");
    }
    let refused = json!({"phase": "Failed", "reason": "r"});
    let merged = merge(&map(with("10.0.0.1", "10.8.0.1")), &map(refused), Terms { is_static: true, ..terms(false) });
    assert_eq!(merged.unwrap().get("hostIP"), None, "of one that was refused nothing else is told");
}

#[test]
fn an_end_waits_for_the_containers() {
    let old = json!({"phase": "Running", "conditions": [condition("Ready", "True")]});
    let new = json!({"phase": "Failed", "reason": "Evicted", "message": "m",
        "conditions": [condition("Ready", "False"), condition("DisruptionTarget", "True")]});
    let held = merged(old.clone(), new.clone(), true);
    assert_eq!((held["phase"].as_str(), held.get("reason"), held.get("message")), (Some("Running"), None, None));
    assert_eq!(held["conditions"], json!([condition("Ready", "False")]));
    let told = merged(old, new, false);
    assert_eq!((told["phase"].as_str(), told["reason"].as_str()), (Some("Failed"), Some("Evicted")));
    assert_eq!(told["conditions"][0]["type"], "DisruptionTarget", "appended to others' conditions");
    assert_eq!(told["conditions"][1]["type"], "Ready");
    // The time is that of telling.
    assert_eq!(told["conditions"][0]["lastTransitionTime"], "2026-05-05T05:05:05Z");
}

#[test]
fn a_disruption_that_the_server_knows_keeps_its_time() {
    let old = json!({"phase": "Running", "conditions": [condition("DisruptionTarget", "True")]});
    let mut ours = condition("DisruptionTarget", "True");
    ours["reason"] = json!("TerminationByKubelet");
    ours["lastTransitionTime"] = json!("2026-03-03T03:03:03Z");
    let told = merged(old.clone(), json!({"phase": "Failed", "conditions": [ours]}), false);
    assert_eq!(told["conditions"][0]["reason"], "TerminationByKubelet");
    assert_eq!(told["conditions"][0]["lastTransitionTime"], "2026-01-01T00:00:00Z");
    // Once the end is told, the condition is nobody's to change again.
    let mut after = old;
    after["phase"] = json!("Failed");
    let again = merged(
        after.clone(),
        json!({"phase": "Failed", "conditions": [condition("DisruptionTarget", "False")]}),
        false,
    );
    assert_eq!(again["conditions"], after["conditions"]);
}

#[test]
fn an_ended_pod_is_never_ready() {
    for (phase, reason) in [("Succeeded", "PodCompleted"), ("Failed", "PodFailed")] {
        let mut unready = condition("ContainersReady", "False");
        unready["lastTransitionTime"] = json!("2026-02-02T02:02:02Z");
        let mut ready = condition("Ready", "True");
        ready["observedGeneration"] = json!(3);
        let old = json!({"phase": "Running", "conditions": [condition("Ready", "True")]});
        let result = merged(old, json!({"phase": phase, "conditions": [ready, unready]}), false);
        assert_eq!(
            result["conditions"],
            json!([
                {"type": "Ready", "status": "False", "reason": reason, "lastTransitionTime": "2026-05-05T05:05:05Z", "observedGeneration": 3},
                {"type": "ContainersReady", "status": "False", "reason": reason, "lastTransitionTime": "2026-02-02T02:02:02Z"},
            ])
        );
    }
}

#[test]
fn nothing_returns_from_an_end() {
    let ended = json!({"name": "a", "state": {"terminated": {"exitCode": 1}}});
    let old = json!({"phase": "Failed", "reason": "Evicted", "containerStatuses": [ended]});
    let result = merged(old.clone(), json!({"phase": "Running", "containerStatuses": [ended]}), false);
    assert_eq!((result["phase"].as_str(), result["reason"].as_str()), (Some("Failed"), Some("Evicted")));
    let other_end = merged(old.clone(), json!({"phase": "Succeeded", "containerStatuses": [ended]}), false);
    assert_eq!(other_end["phase"], "Failed");

    let back = json!({"phase": "Running", "containerStatuses": [{"name": "a", "state": {"running": {}}}]});
    let error = merge(&map(old.clone()), &map(back.clone()), terms(false)).unwrap_err();
    assert_eq!(error, IllegalTransition { container: "a".into(), phase: "Failed".into() });
    // A static pod may have been started again under the same mirror.
    let of_static = Terms { is_static: true, ..terms(false) };
    assert_eq!(merge(&map(old), &map(back), of_static).unwrap()["phase"], "Running");
}

#[test]
fn start_time_and_generation_never_go_back() {
    let old = json!({"startTime": "2026-01-01T00:00:00Z", "observedGeneration": 4});
    let result = merged(old, json!({"startTime": "2026-01-01T00:00:09Z", "observedGeneration": 3}), false);
    assert_eq!(
        (result["startTime"].as_str(), result["observedGeneration"].as_i64()),
        (Some("2026-01-01T00:00:00Z"), Some(4))
    );
    let first = merged(json!({}), json!({"startTime": "2026-01-01T00:00:09Z", "observedGeneration": 1}), false);
    assert_eq!(first["startTime"], "2026-01-01T00:00:09Z");
}

fn status() -> impl Strategy<Value = Status> {
    let kinds = vec!["Ready", "ContainersReady", "PodScheduled", "DisruptionTarget", "example.com/x"];
    let conditions = prop::sample::subsequence(kinds, 0..5)
        .prop_flat_map(|kinds| {
            let len = kinds.len();
            (Just(kinds), prop::collection::vec(any::<bool>(), len))
        })
        .prop_map(|(kinds, up)| {
            let of = |(kind, up): (&str, bool)| condition(kind, if up { "True" } else { "False" });
            kinds.into_iter().zip(up).map(of).collect::<Vec<_>>()
        });
    let phases = prop::sample::select(vec!["", "Pending", "Running", "Succeeded", "Failed"]);
    (phases, conditions, 0..4_i64).prop_map(|(phase, conditions, generation)| {
        map(json!({"phase": phase, "conditions": conditions, "observedGeneration": generation}))
    })
}

proptest! {
    #[test]
    fn merging_again_changes_nothing(old in status(), new in status(), may_run in any::<bool>()) {
        let once = merge(&old, &new, terms(may_run)).unwrap();
        let twice = merge(&once, &new, terms(may_run)).unwrap();
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn never_back_and_never_too_early(old in status(), new in status(), may_run in any::<bool>()) {
        let result = merge(&old, &new, terms(may_run)).unwrap();
        if is_terminal(phase(&old)) {
            prop_assert_eq!(phase(&result), phase(&old));
        } else if may_run {
            prop_assert!(!is_terminal(phase(&result)));
        }
        if is_terminal(phase(&result)) {
            prop_assert!(find(&result, "Ready").is_none_or(|c| c["status"] == "False"));
        }
        prop_assert_eq!(find(&result, "example.com/x"), find(&old, "example.com/x"));
    }
}
