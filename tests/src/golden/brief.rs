//! States that last less than a second: upstream, which looks once a second, tells some of them, ours are all told. Such a
//! state is known by the recorded one that it comes just before or just after.

use serde_json::Value;

const LISTS: [&str; 3] = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];

/// Whether `ours` is the recorded status but for containers in a state of less than a second beside the recorded one.
pub(super) fn is_beside(recorded: &Value, ours: &Value) -> bool {
    let (mut plain, mut told) = (recorded.clone(), ours.clone());
    let (mut runs, mut starts) = (false, false);
    let mut brief = false;
    for list in LISTS {
        let (Some(theirs), Some(mine)) = (plain[list].as_array_mut(), told[list].as_array_mut()) else { continue };
        if theirs.len() != mine.len() {
            return false;
        }
        for (theirs, mine) in theirs.iter_mut().zip(mine) {
            if theirs == mine {
                continue;
            }
            if runs_before(theirs, mine) {
                runs = true;
            } else if starts_before(theirs, mine) {
                (runs, starts) = (true, true);
            } else if !pauses_after(theirs, mine) && !holds_back_after(theirs, mine) {
                return false;
            }
            brief = true;
            *mine = theirs.clone();
        }
    }
    for status in [&mut plain, &mut told] {
        if starts {
            // Pending as long as one of them has not run.
            status["phase"] = Value::Null;
        }
        if let Some(conditions) = status["conditions"].as_array_mut() {
            // What follows from a container that runs.
            conditions.retain(|one| !(runs && (one["type"] == "Ready" || one["type"] == "ContainersReady")));
        }
    }
    brief && super::compare::without_sandbox(&plain) == super::compare::without_sandbox(&told)
}

fn instance(status: &Value) -> (&Value, &Value) {
    (&status["name"], &status["restartCount"])
}

/// The instance that is recorded as ended still runs.
fn runs_before(recorded: &Value, ours: &Value) -> bool {
    instance(recorded) == instance(ours)
        && recorded["state"]["terminated"].is_object()
        && ours["state"]["running"].is_object()
        && recorded["lastState"] == ours["lastState"]
}

/// The first instance, recorded as running, is made and not started yet, or not made: one of several comes first.
fn starts_before(recorded: &Value, ours: &Value) -> bool {
    let reason = ours["state"]["waiting"]["reason"].as_str();
    instance(recorded) == instance(ours)
        && recorded["restartCount"] == 0
        && recorded["state"]["running"].is_object()
        && ours["state"]["waiting"].is_object()
        && matches!(reason, None | Some("ContainerCreating" | "PodInitializing"))
        && recorded["lastState"] == ours["lastState"]
}

/// The instance that is recorded as ended is followed by the pause before the next.
fn pauses_after(recorded: &Value, ours: &Value) -> bool {
    instance(recorded) == instance(ours)
        && recorded["state"]["terminated"].is_object()
        && ours["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        && ours["lastState"]["terminated"] == recorded["state"]["terminated"]
}

/// A pull that failed is followed by the pause before the next.
fn holds_back_after(recorded: &Value, ours: &Value) -> bool {
    let (failed, pause) = (&recorded["state"]["waiting"], &ours["state"]["waiting"]);
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let why = format!(": {}: {}", text(failed, "reason"), text(failed, "message"));
    instance(recorded) == instance(ours)
        && text(failed, "reason") == "ErrImagePull"
        && text(pause, "reason") == "ImagePullBackOff"
        && text(pause, "message").strip_prefix("Back-off pulling image ").is_some_and(|rest| rest.ends_with(&why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(state: Value, last: Value, ready: &str) -> Value {
        let container = json!({"name": "m", "restartCount": 1, "state": state, "lastState": last});
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}], "containerStatuses": [container]})
    }

    #[test]
    fn a_brief_state_lies_beside_a_recorded_one() {
        let end = json!({"terminated": {"exitCode": 1}});
        let recorded = pod(end.clone(), json!({}), "False");
        let pause = |reason: &str| json!({"waiting": {"reason": reason, "message": "back-off 10s"}});
        assert!(is_beside(&recorded, &pod(pause("CrashLoopBackOff"), end.clone(), "False")));
        assert!(is_beside(&recorded, &pod(json!({"running": {}}), json!({}), "True")));
        assert!(!is_beside(&recorded, &recorded), "that is the recorded one itself");
        assert!(!is_beside(&recorded, &pod(pause("CrashLoopBackOff"), json!({}), "False")), "after nothing");
        assert!(!is_beside(&recorded, &pod(pause("CrashLoopBackOff"), end, "True")), "ready in a pause");
        assert!(!is_beside(&recorded, &pod(pause("Other"), json!({}), "False")));
    }

    #[test]
    fn containers_start_one_after_the_other() {
        let pod = |phase: &str, first: Value, second: Value| {
            let one = |name: &str, state: Value| json!({"name": name, "restartCount": 0, "state": state});
            json!({"phase": phase, "containerStatuses": [one("a", first), one("b", second)]})
        };
        let runs = || json!({"running": {}});
        let recorded = pod("Running", runs(), runs());
        assert!(is_beside(&recorded, &pod("Pending", runs(), json!({"waiting": {}}))));
        assert!(!is_beside(&recorded, &pod("Pending", runs(), json!({"waiting": {"reason": "ErrImagePull"}}))));
        assert!(!is_beside(&recorded, &pod("Pending", runs(), runs())), "a phase alone");
    }

    #[test]
    fn a_pause_between_pulls_says_why_the_last_one_failed() {
        let waits = |reason: &str, message: &str| {
            pod(json!({"waiting": {"reason": reason, "message": message}}), json!({}), "False")
        };
        let recorded = waits("ErrImagePull", "no such host");
        let text = "Back-off pulling image \"a\": ErrImagePull: no such host";
        assert!(is_beside(&recorded, &waits("ImagePullBackOff", text)));
        assert!(!is_beside(&recorded, &waits("ImagePullBackOff", "Back-off pulling image \"a\"")));
    }
}
