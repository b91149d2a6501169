//! Tables of what one sync does, and what must hold for any pod in any state.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::*;
use kubelet_model::fixtures::{container_status, pod, sandbox_status};

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

fn ready() -> RuntimePod {
    RuntimePod { sandboxes: vec![sandbox_status("s0", 0, SandboxState::Ready)], ..RuntimePod::default() }
}

fn with(states: &[(&str, RunState, i32)]) -> RuntimePod {
    let mut runtime = ready();
    for (index, (name, state, exit_code)) in states.iter().enumerate() {
        let mut status = container_status(name, *state, *exit_code);
        status.created_at = SystemTime::UNIX_EPOCH + Duration::from_secs(100 - index as u64);
        runtime.containers.push(status);
    }
    runtime
}

fn run(spec: serde_json::Value, runtime: &RuntimePod) -> PodActions {
    compute(&pod(spec), runtime, &ProbeResults::default(), &History::default())
}

fn two(policy: &str) -> serde_json::Value {
    serde_json::json!({"restartPolicy": policy, "containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]})
}

fn init(policy: &str) -> serde_json::Value {
    serde_json::json!({"restartPolicy": policy, "initContainers": [{"name": "i1", "image": "i"}, {"name": "i2", "image": "i"}],
        "containers": [{"name": "a", "image": "i"}]})
}

fn sidecars() -> serde_json::Value {
    json(
        r#"{"restartPolicy": "Always", "initContainers": [{"name": "s1", "image": "i", "restartPolicy": "Always"},
        {"name": "i2", "image": "i"}, {"name": "s3", "image": "i", "restartPolicy": "Always"}],
        "containers": [{"name": "a", "image": "i"}]}"#,
    )
}

#[test]
fn a_new_pod_gets_a_sandbox_and_starts() {
    let actions = run(two("Always"), &RuntimePod::default());
    assert_eq!((actions.create_sandbox, actions.kill_pod, actions.attempt, actions.sandbox_id), (true, true, 0, None));
    assert_eq!(actions.containers_to_start, [0, 1]);
    let actions = run(init("Always"), &RuntimePod::default());
    assert_eq!((actions.init_containers_to_start, actions.containers_to_start), (vec![0], vec![]));
}

#[test]
fn sandbox_table() {
    let decide = |spec: serde_json::Value, change: &dyn Fn(&mut RuntimePod)| {
        let mut runtime = ready();
        runtime.sandboxes[0].attempt = 3;
        change(&mut runtime);
        let d = sandbox_decision(&pod(spec), &runtime);
        (d.create, d.attempt, d.id.map(|id| id.to_string()))
    };
    let s0 = || Some("s0".to_owned());
    assert_eq!(decide(two("Always"), &|_| {}), (false, 3, s0()));
    assert_eq!(decide(two("Always"), &|r| r.sandboxes.clear()), (true, 0, None));
    assert_eq!(
        decide(two("Always"), &|r| r.sandboxes.push(sandbox_status("s1", 2, SandboxState::Ready))),
        (true, 4, s0())
    );
    assert_eq!(
        decide(two("Always"), &|r| r.sandboxes.push(sandbox_status("s1", 2, SandboxState::NotReady))),
        (false, 3, s0())
    );
    assert_eq!(decide(two("Always"), &|r| r.sandboxes[0].state = SandboxState::NotReady), (true, 4, s0()));
    assert_eq!(decide(two("Always"), &|r| r.sandboxes[0].host_network = true), (true, 4, None));
    assert_eq!(decide(two("Always"), &|r| r.sandboxes[0].ips.clear()), (true, 4, s0()));
    let host = serde_json::json!({"hostNetwork": true, "containers": []});
    assert_eq!(
        decide(host, &|r| {
            r.sandboxes[0].host_network = true;
            r.sandboxes[0].ips.clear();
        }),
        (false, 3, s0())
    );
}

#[test]
fn replacing_a_sandbox() {
    let mut runtime = with(&[("a", RunState::Exited, 0), ("b", RunState::Exited, 1)]);
    runtime.sandboxes[0].state = SandboxState::NotReady;
    let never = run(two("Never"), &runtime);
    assert_eq!((never.create_sandbox, never.kill_pod, never.starts_containers()), (false, true, false));
    assert_eq!(run(two("OnFailure"), &runtime).containers_to_start, [1]);
    assert_eq!(run(two("Always"), &runtime).containers_to_start, [0, 1]);
    runtime.containers[1].exit_code = 0;
    let done = run(two("OnFailure"), &runtime);
    assert_eq!((done.create_sandbox, done.kill_pod), (false, true));
    runtime.containers.clear();
    assert!(run(two("Never"), &runtime).create_sandbox, "it never ran: try again");
}

#[test]
fn a_pod_that_runs_once_starts_over_only_with_what_has_not_run() {
    let lost = |states: &[(&str, RunState, i32)]| {
        let mut runtime = with(states);
        runtime.sandboxes[0].state = SandboxState::NotReady;
        runtime
    };
    let decide = |spec: serde_json::Value, states: &[(&str, RunState, i32)]| {
        let actions = run(spec, &lost(states));
        assert!(actions.kill_pod);
        (actions.create_sandbox, actions.init_containers_to_start, actions.containers_to_start)
    };
    let exited = |name, code| (name, RunState::Exited, code);
    let nothing = (false, vec![], vec![]);
    assert_eq!(decide(two("Never"), &[exited("a", 1)]), (true, vec![], vec![1]), "b has never run");
    assert_eq!(decide(two("Never"), &[("a", RunState::Created, 0)]), (true, vec![], vec![0, 1]));
    assert_eq!(decide(two("Never"), &[("a", RunState::Running, 0), ("b", RunState::Unknown, 0)]), nothing);
    let mut own = two("Never");
    own["containers"][1]["restartPolicy"] = "Always".into();
    assert_eq!(decide(own, &[exited("a", 1), exited("b", 137)]), (true, vec![], vec![1]), "b may run again");
    assert_eq!(decide(init("Never"), &[exited("i2", 0), exited("i1", 0)]), (true, vec![0], vec![]));
    assert_eq!(decide(init("Never"), &[exited("i1", 1)]), nothing);
    assert_eq!(decide(init("Never"), &[("i1", RunState::Running, 0)]), nothing, "its exit code decides");
    assert_eq!(decide(init("Always"), &[("i1", RunState::Running, 0)]), (true, vec![0], vec![]));
}

#[test]
fn what_ended_for_good_is_not_run_again_when_its_record_is_lost() {
    let told = |state: &str| -> k8s_openapi::api::core::v1::PodStatus {
        serde_json::from_value(serde_json::json!({"containerStatuses": [{"name": "a", "image": "", "imageID": "",
            "ready": false, "restartCount": 0, "state": json(state)}]}))
        .unwrap()
    };
    let start = |policy: &str, runtime: &RuntimePod, state: &str| {
        let p = pod(two(policy));
        let past = History::of(&p, runtime, Some(&told(state)));
        let actions = compute(&p, runtime, &ProbeResults::default(), &past);
        (actions.containers_to_start, actions.kill_pod, actions.create_sandbox)
    };
    let ended = r#"{"terminated": {"exitCode": 1}}"#;
    let other = with(&[("b", RunState::Running, 0)]);
    assert_eq!(start("Never", &other, ended), (vec![], false, false));
    assert_eq!(start("OnFailure", &other, ended), (vec![0], false, false));
    assert_eq!(start("Never", &other, r#"{"waiting": {}}"#), (vec![0], false, false));
    assert_eq!(start("Never", &with(&[("b", RunState::Exited, 0)]), ended), (vec![], true, false));
    assert_eq!(start("Never", &with(&[("a", RunState::Created, 0), ("b", RunState::Running, 0)]), ended).0, [0]);
    assert_eq!(start("Never", &RuntimePod::default(), ended), (vec![1], true, true));
}

#[test]
fn regular_containers() {
    for (policy, state, exit_code, start) in [
        ("Always", RunState::Exited, 0, vec![0]),
        ("OnFailure", RunState::Exited, 0, vec![]),
        ("OnFailure", RunState::Exited, 1, vec![0]),
        ("Never", RunState::Exited, 1, vec![]),
        ("Never", RunState::Created, 0, vec![0]),
        ("Never", RunState::Unknown, 0, vec![0]),
        ("Never", RunState::Running, 0, vec![]),
    ] {
        let actions = run(two(policy), &with(&[("a", state, exit_code), ("b", RunState::Running, 0)]));
        assert_eq!(actions.containers_to_start, start, "{policy} {state:?} {exit_code}");
        assert_eq!(actions.containers_to_kill.len(), usize::from(state == RunState::Unknown));
        assert!(!actions.kill_pod);
    }
    let over = run(two("Never"), &with(&[("a", RunState::Exited, 1), ("b", RunState::Exited, 0)]));
    assert!(over.kill_pod && !over.create_sandbox && !over.starts_containers());
    assert!(run(two("Always"), &with(&[("a", RunState::Running, 0), ("b", RunState::Running, 0)])).is_empty());
}

#[test]
fn changed_and_failing_containers_are_killed() {
    let mut runtime = with(&[("a", RunState::Running, 0), ("b", RunState::Running, 0)]);
    runtime.containers[0].hash = 1;
    let actions = run(two("Never"), &runtime);
    assert_eq!(actions.containers_to_kill[0].message, "Container a definition changed, will be restarted");
    assert_eq!(actions.containers_to_start, [0]);

    let runtime = with(&[("a", RunState::Running, 0), ("b", RunState::Running, 0)]);
    let mut probes = ProbeResults::default();
    probes.liveness.insert(runtime.containers[0].id.clone(), ProbeResult::Failure);
    probes.startup.insert(runtime.containers[1].id.clone(), ProbeResult::Failure);
    let actions = compute(&pod(two("OnFailure")), &runtime, &probes, &History::default());
    let kills: Vec<_> = actions.containers_to_kill.iter().map(|k| (k.message.as_str(), k.reason)).collect();
    assert_eq!(
        kills,
        [
            ("Container a failed liveness probe, will be restarted", KillReason::LivenessProbe),
            ("Container b failed startup probe, will be restarted", KillReason::StartupProbe),
        ]
    );
    let actions = compute(&pod(two("Never")), &runtime, &probes, &History::default());
    assert!(actions.containers_to_start.is_empty() && actions.kill_pod);
    assert_eq!(actions.containers_to_kill[0].message, "Container a failed liveness probe");
}

#[test]
fn init_containers_run_one_after_another() {
    for (states, start_init, start, kill) in [
        (vec![], vec![0], vec![], false),
        (vec![("i1", RunState::Running, 0)], vec![], vec![], false),
        (vec![("i1", RunState::Exited, 0)], vec![1], vec![], false),
        (vec![("i1", RunState::Exited, 3)], vec![0], vec![], false),
        (vec![("i1", RunState::Created, 0)], vec![0], vec![], false),
        (vec![("i2", RunState::Exited, 0), ("i1", RunState::Exited, 0)], vec![], vec![0], false),
        (vec![("i2", RunState::Exited, 0)], vec![], vec![0], false),
        (vec![("i2", RunState::Running, 0), ("i1", RunState::Exited, 0)], vec![], vec![], false),
        (vec![("a", RunState::Running, 0)], vec![], vec![], false),
        (vec![("a", RunState::Exited, 1), ("i2", RunState::Exited, 0)], vec![], vec![0], false),
        (vec![("a", RunState::Exited, 1)], vec![0], vec![], false),
    ] {
        let actions = run(init("Always"), &with(&states));
        let found = (actions.init_containers_to_start, actions.containers_to_start, actions.kill_pod);
        assert_eq!(found, (start_init, start, kill), "{states:?}");
    }
    let failed = run(init("Never"), &with(&[("i1", RunState::Exited, 3)]));
    assert!(failed.kill_pod && !failed.create_sandbox && !failed.starts_containers());
    let mut former = with(&[("i2", RunState::Exited, 0), ("i1", RunState::Running, 0)]);
    former.containers[0].sandbox_id = SandboxId::parse("former").unwrap();
    assert!(!run(init("Always"), &former).starts_containers(), "i2 ran in another sandbox");
    let mut runtime = with(&[("i1", RunState::Exited, 0)]);
    runtime.containers[0].reason = "OOMKilled".to_owned();
    assert_eq!(run(init("Always"), &runtime).init_containers_to_start, [0], "killed by the kernel is failed");
    assert_eq!(run(init("OnFailure"), &runtime).init_containers_to_start, [0]);
    assert!(run(init("Never"), &runtime).kill_pod);
}

#[test]
fn sidecars_stay() {
    for (states, start_init, start) in [
        (vec![("s1", RunState::Running, 0)], vec![1], vec![]),
        (vec![("i2", RunState::Exited, 0), ("s1", RunState::Running, 0)], vec![2], vec![]),
        (vec![("i2", RunState::Exited, 0), ("s1", RunState::Exited, 1)], vec![0, 2], vec![]),
        (
            vec![("s3", RunState::Running, 0), ("i2", RunState::Exited, 0), ("s1", RunState::Running, 0)],
            vec![],
            vec![0],
        ),
        (
            vec![("a", RunState::Running, 0), ("s3", RunState::Exited, 0), ("i2", RunState::Exited, 0)],
            vec![0, 2],
            vec![],
        ),
    ] {
        let actions = run(sidecars(), &with(&states));
        assert_eq!((actions.init_containers_to_start, actions.containers_to_start), (start_init, start), "{states:?}");
    }
    let mut spec = sidecars();
    spec["restartPolicy"] = "Never".into();
    let over =
        run(spec, &with(&[("a", RunState::Exited, 0), ("s3", RunState::Running, 0), ("s1", RunState::Exited, 0)]));
    assert!(over.kill_pod && !over.starts_containers(), "nothing regular is left, so sidecars end too");
}

#[test]
fn the_next_container_waits_for_a_sidecars_startup_probe() {
    let mut spec = sidecars();
    spec["initContainers"][0]["startupProbe"] = serde_json::json!({"exec": {"command": ["true"]}});
    let runtime = with(&[("s1", RunState::Running, 0)]);
    let mut probes = ProbeResults::default();
    assert!(compute(&pod(spec.clone()), &runtime, &probes, &History::default()).init_containers_to_start.is_empty());
    probes.startup.insert(runtime.containers[0].id.clone(), ProbeResult::Success);
    assert_eq!(compute(&pod(spec.clone()), &runtime, &probes, &History::default()).init_containers_to_start, [1]);
    probes.startup.insert(runtime.containers[0].id.clone(), ProbeResult::Failure);
    let actions = compute(&pod(spec), &runtime, &probes, &History::default());
    assert_eq!((actions.init_containers_to_start, actions.containers_to_kill.len()), (vec![0], 1));
}

#[test]
fn nothing_of_a_former_sandbox_says_that_initialization_is_over() {
    let mut runtime = with(&[("i1", RunState::Running, 0), ("a", RunState::Created, 0)]);
    let here = run(init("Always"), &runtime);
    assert!(here.starts_containers() && here.init_containers_to_start.is_empty(), "of this sandbox it does: {here:?}");
    // Made in the sandbox before, never started: it stays like that when its sandbox goes.
    runtime.sandboxes[0].state = SandboxState::NotReady;
    runtime.sandboxes.insert(0, sandbox_status("s1", 1, SandboxState::Ready));
    runtime.containers[0].sandbox_id = runtime.sandboxes[0].id.clone();
    let there = run(init("Always"), &runtime);
    assert!(!there.starts_containers() && !there.kill_pod, "i1 is still at it: {there:?}");
}

#[test]
fn ephemeral_containers_start_once() {
    let spec = serde_json::json!({"containers": [{"name": "a", "image": "i"}],
        "ephemeralContainers": [{"name": "d1", "image": "i"}, {"name": "d2", "image": "i"}]});
    let actions = run(spec, &with(&[("a", RunState::Running, 0), ("d1", RunState::Exited, 1)]));
    assert_eq!(actions.ephemeral_containers_to_start, [1]);
    let over = serde_json::json!({"restartPolicy": "Never", "containers": [{"name": "a", "image": "i"}],
        "ephemeralContainers": [{"name": "d1", "image": "i"}]});
    let actions = run(over, &with(&[("a", RunState::Exited, 0)]));
    assert!(actions.kill_pod && !actions.starts_containers(), "its sandbox goes");
}

#[test]
fn restarting_all_containers_resets_every_instance() {
    let spec = json(
        r#"{"restartPolicy": "Always", "initContainers": [{"name": "i1", "image": "i"}], "containers": [
        {"name": "a", "image": "i", "restartPolicy": "Never", "restartPolicyRules": [
            {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}]},
        {"name": "b", "image": "i"}]}"#,
    );
    let runtime = with(&[("a", RunState::Exited, 88), ("b", RunState::Running, 0), ("i1", RunState::Exited, 0)]);
    let actions =
        compute(&pod(spec), &runtime, &ProbeResults::default(), &History { restart_all: true, ..History::default() });
    let order: Vec<_> = actions.containers_to_reset.iter().map(|r| (r.name.as_str(), r.kill)).collect();
    assert_eq!(order, [("b", true), ("i1", false), ("a", false)]);
    assert!(!actions.starts_containers() && !actions.kill_pod);
}

fn any_state() -> impl Strategy<Value = RunState> {
    prop_oneof![Just(RunState::Created), Just(RunState::Running), Just(RunState::Exited), Just(RunState::Unknown)]
}

prop_compose! {
    fn any_runtime()(
        sandboxes in prop::collection::vec((any::<bool>(), any::<bool>(), any::<bool>()), 0..3),
        statuses in prop::collection::vec((0usize..6, any_state(), 0i32..3, any::<bool>()), 0..8),
    ) -> RuntimePod {
        let names = ["s1", "i2", "s3", "a", "b", "other"];
        let mut runtime = RuntimePod::default();
        for (index, (is_ready, host, ip)) in sandboxes.into_iter().enumerate() {
            let state = if is_ready { SandboxState::Ready } else { SandboxState::NotReady };
            let mut sandbox = sandbox_status(&format!("s{index}"), 9 - index as u32, state);
            sandbox.host_network = host;
            if ip { sandbox.ips.clear(); }
            runtime.sandboxes.push(sandbox);
        }
        for (index, (name, state, exit_code, changed)) in statuses.into_iter().enumerate() {
            let mut status = container_status(names[name], state, exit_code);
            status.id = ContainerId::parse(&format!("c{index}")).unwrap();
            if changed { status.hash ^= 1; }
            runtime.containers.push(status);
        }
        runtime
    }
}

proptest! {
    #[test]
    fn actions_never_contradict(
        runtime in any_runtime(),
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
        deleted in any::<bool>(),
        with_init in any::<bool>(),
    ) {
        let mut spec = sidecars();
        spec["restartPolicy"] = policy.into();
        spec["containers"] = serde_json::json!([{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]);
        if !with_init { spec["initContainers"] = serde_json::json!([]); }
        let mut p = pod(spec);
        if deleted {
            p.metadata.deletion_timestamp = serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).unwrap();
        }
        let actions = compute(&p, &runtime, &ProbeResults::default(), &History::default());

        // A sandbox is made only in place of all that there is.
        prop_assert!(!actions.create_sandbox || actions.kill_pod);
        // With the sandbox gone and none to come, nothing starts.
        prop_assert!(!actions.kill_pod || actions.create_sandbox || !actions.starts_containers());
        // A new sandbox starts either at the first init container or with regular ones.
        if actions.create_sandbox {
            prop_assert!(actions.init_containers_to_start.is_empty() || actions.containers_to_start.is_empty());
            prop_assert!(actions.init_containers_to_start.iter().all(|i| *i == 0));
            prop_assert!(!runtime.sandboxes.iter().any(|s| s.attempt >= actions.attempt));
        } else if !actions.kill_pod {
            // An existing sandbox: nothing regular starts before the last init container has got going.
            if with_init && !actions.containers_to_start.is_empty() {
                let past = |name: &str| runtime.newest(name).is_some_and(|s| matches!(s.state, RunState::Running | RunState::Created));
                prop_assert!(past("s3") || past("a") || past("b"));
            }
        }
        if deleted {
            prop_assert!(!actions.starts_containers() && !actions.create_sandbox);
        }
        // Whatever is running and starts again is killed first; nothing is killed twice.
        let lists = [(containers(&p), &actions.containers_to_start), (init_containers(&p), &actions.init_containers_to_start)];
        for (list, indices) in lists {
            prop_assert!(indices.windows(2).all(|w| w[0] < w[1]), "in order, each once");
            for index in indices {
                let newest = runtime.newest(&list[*index].name);
                if let Some(status) = newest.filter(|s| matches!(s.state, RunState::Running | RunState::Unknown)) {
                    prop_assert!(actions.kill_pod || actions.containers_to_kill.iter().any(|k| k.id == status.id));
                }
            }
        }
        let mut ids: Vec<_> = actions.containers_to_kill.iter().map(|k| k.id.to_string()).collect();
        ids.sort();
        ids.dedup();
        prop_assert_eq!(ids.len(), actions.containers_to_kill.len());
        // The same again gives the same.
        prop_assert_eq!(&actions, &compute(&p, &runtime, &ProbeResults::default(), &History::default()));
    }
}
