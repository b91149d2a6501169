use serde_json::json;

use super::*;
use kubelet_model::fixtures::{container_status, sandbox_status};
use kubelet_model::pod::model::SandboxState;

/// One regular container `c` and one sidecar `s`, as given.
fn pod(c: serde_json::Value, s: serde_json::Value) -> Pod {
    let mut sidecar = s;
    sidecar["name"] = json!("s");
    sidecar["restartPolicy"] = json!("Always");
    let mut container = c;
    container["name"] = json!("c");
    serde_json::from_value(json!({"metadata": {}, "spec": {"initContainers": [sidecar], "containers": [container]}}))
        .unwrap()
}

fn with(resources: serde_json::Value) -> serde_json::Value {
    json!({"resources": resources})
}

fn running(names: &[&str]) -> RuntimePod {
    let containers = names.iter().map(|name| container_status(name, RunState::Running, 0)).collect();
    RuntimePod { sandboxes: vec![sandbox_status("s1", 0, SandboxState::Ready)], containers, ..Default::default() }
}

fn planned(old: &Pod, new: &Pod, runtime: &RuntimePod) -> PodActions {
    let mut actions = PodActions::default();
    let actuated = PodResources::of(old, Gates::default()).actuated();
    plan(new, runtime, Some(&actuated), Gates::default(), &mut actions);
    actions
}

#[test]
fn only_running_containers_that_differ_are_updated() {
    let old = pod(with(json!({"requests": {"cpu": "100m", "memory": "64Mi"}})), json!({}));
    let new = pod(with(json!({"requests": {"cpu": "0.1", "memory": "128Mi"}})), with(json!({"limits": {"cpu": "1"}})));
    let actions = planned(&old, &new, &running(&["c", "s"]));
    let names: Vec<_> = actions.resize.updates.iter().map(|u| u.name.as_str()).collect();
    assert_eq!(names, ["s", "c"]);
    let c = &actions.resize.updates[1];
    assert_eq!((c.grows(Kind::Memory), c.grows(Kind::Cpu)), (Some(true), None));
    assert!(actions.resize.touches(Kind::Cpu) && !actions.resize.restarts && !actions.resize.pod_level);
    assert_eq!(planned(&old, &new, &running(&["c"])).resize.updates.len(), 1);
    assert!(planned(&new, &new, &running(&["c", "s"])).is_empty());
    let same = pod(with(json!({"requests": {"cpu": "0.1", "memory": "65536Ki"}})), json!({}));
    assert!(planned(&old, &same, &running(&["c", "s"])).is_empty(), "equal amounts in other units");
}

#[test]
fn of_what_is_not_known_nothing_is_changed() {
    let new = pod(with(json!({"limits": {"cpu": "1"}})), json!({}));
    for actuated in [None, Some(PodResources::default())] {
        let mut actions = PodActions::default();
        plan(&new, &running(&["c", "s"]), actuated.as_ref(), Gates::default(), &mut actions);
        assert!(actions.is_empty(), "{actuated:?}");
    }
}

#[test]
fn a_policy_of_a_resource_that_changes_restarts() {
    let policy = |amount: &str| {
        json!({
            "resources": {"requests": {"cpu": amount}},
            "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"},
                             {"resourceName": "memory", "restartPolicy": "NotRequired"}],
        })
    };
    let (old, new) = (pod(policy("1"), policy("1")), pod(policy("2"), policy("2")));
    let actions = planned(&old, &new, &running(&["c", "s"]));
    assert!(actions.resize.restarts && actions.resize.updates.is_empty());
    assert_eq!((actions.containers_to_start, actions.init_containers_to_start), (vec![0], vec![0]));
    let kills: Vec<_> = actions.containers_to_kill.iter().map(|k| k.message.as_str()).collect();
    assert_eq!(kills, ["Container s resize requires restart", "Container c resize requires restart"]);
    let mut only_memory = policy("1");
    only_memory["resources"]["requests"]["memory"] = json!("1Gi");
    let actions = planned(&old, &pod(only_memory, policy("1")), &running(&["c", "s"]));
    assert!(!actions.resize.restarts && actions.resize.updates.len() == 1);
}

#[test]
fn what_is_killed_anyway_is_not_resized() {
    let (old, new) =
        (pod(with(json!({"limits": {"cpu": "1"}})), json!({})), pod(with(json!({"limits": {"cpu": "2"}})), json!({})));
    let actuated = PodResources::of(&old, Gates::default());
    let runtime = running(&["c"]);
    let kill = ContainerKill {
        id: runtime.containers[0].id.clone(),
        name: "c".into(),
        message: String::new(),
        reason: KillReason::LivenessProbe,
    };
    for mut actions in [
        PodActions { containers_to_kill: vec![kill], ..Default::default() },
        PodActions { kill_pod: true, ..Default::default() },
        PodActions { create_sandbox: true, ..Default::default() },
    ] {
        plan(&new, &runtime, Some(&actuated), Gates::default(), &mut actions);
        assert!(actions.resize.is_empty() && actions.containers_to_start.is_empty());
    }
}

#[test]
fn the_pods_limits_are_its_containers_where_they_have_none() {
    let level = |cpu: &str| -> Pod {
        let mut pod = pod(json!({}), with(json!({"limits": {"cpu": "100m"}})));
        pod.spec.as_mut().unwrap().resources = Some(serde_json::from_value(json!({"limits": {"cpu": cpu}})).unwrap());
        pod
    };
    let actions = planned(&level("1"), &level("2"), &running(&["c", "s"]));
    assert!(actions.resize.pod_level);
    let updates: Vec<_> = actions.resize.updates.iter().map(|u| (u.name.as_str(), u.to.cpu_limit)).collect();
    assert_eq!(updates, [("c", 2000)]);
    let mut off = PodActions::default();
    let gates = Gates { pod_level: false, ..Gates::default() };
    let actuated = PodResources::of(&level("1"), gates);
    plan(&level("2"), &running(&["c", "s"]), Some(&actuated), gates, &mut off);
    assert!(off.is_empty());
}
