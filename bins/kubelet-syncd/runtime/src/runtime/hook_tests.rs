//! Hooks in the order of work: what is asked of the runtime, what is said, and how much grace is left.

use std::time::Duration;

use kubelet_model::v1::Pod;
use tokio::time::{Instant, timeout};

use super::end::primary_ip;
use super::fake_runtime::{World, kill_pod, world};
use super::grace_clock::HeldBack;
use super::stop::KillContext;
use kubelet_model::fixtures::{container_status, pod, sandbox_status, uid};
use kubelet_model::pod::model::{RunState, RuntimePod, SandboxState};
use kubelet_model::pod::spec::PodIdentity;

/// A pod of one container with these hooks, and 30 s of grace.
fn hooked(lifecycle: serde_json::Value) -> Pod {
    pod(
        serde_json::json!({"terminationGracePeriodSeconds": 30, "enableServiceLinks": true, "containers": [{"name": "a", "image": "i",
        "ports": [{"name": "web", "containerPort": 80}], "lifecycle": lifecycle}]}),
    )
}

fn pre_stop(command: &[&str]) -> Pod {
    hooked(serde_json::json!({"preStop": {"exec": {"command": command}}}))
}

fn running(names: &[&str]) -> RuntimePod {
    RuntimePod {
        uid: Some(uid()),
        namespace: "ns".to_owned(),
        name: "p".to_owned(),
        sandboxes: vec![sandbox_status("s0", 0, SandboxState::Ready)],
        containers: names.iter().map(|name| container_status(name, RunState::Running, 0)).collect(),
    }
}

#[test]
fn a_hook_of_the_hosts_network_goes_where_the_node_is_now() {
    let told = |mut pod: Pod| {
        pod.status.get_or_insert_default().pod_ip = Some("10.9.9.9".to_owned());
        pod
    };
    let (own, none) = (running(&[]), RuntimePod::default());
    let mut bare = own.clone();
    bare.sandboxes[0].ips.clear();
    let sandbox = own.ips()[0].to_string();
    let host = ["10.240.0.2".parse().unwrap(), "fd00::2".parse().unwrap()];
    let container = serde_json::json!([{"name": "a", "image": "i"}]);
    let of_host = told(pod(serde_json::json!({"hostNetwork": true, "containers": container})));
    let of_its_own = told(pod(serde_json::json!({"containers": container})));
    for (pod, runtime, host, expected) in [
        (Some(&of_host), &bare, &host[..], Some("10.240.0.2")),
        (Some(&of_host), &bare, &[], Some("10.9.9.9")),
        (Some(&of_its_own), &own, &host, Some(sandbox.as_str())),
        (Some(&of_its_own), &bare, &host, Some("10.9.9.9")),
        (None, &own, &host, Some(sandbox.as_str())),
        (None, &none, &host, None),
    ] {
        let ip = primary_ip(pod, runtime, host).map(|ip| ip.to_string());
        assert_eq!(ip.as_deref(), expected);
    }
}

/// Kills the pod; what was asked of the runtime, and the seconds that it took.
async fn kill(world: &World, pod: Option<&Pod>, status: &RuntimePod, grace: i64) -> (Vec<String>, u64) {
    let begun = Instant::now();
    assert!(kill_pod(&world.manager, pod, status, Some(grace)).await.is_ok());
    let calls = world.fake.cri().into_iter().filter(|call| !call.starts_with("StopPodSandbox")).collect();
    (calls, begun.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_failed_post_start_ends_its_container() {
    let w = world();
    let p = hooked(serde_json::json!({"postStart": {"exec": {"command": ["exit", "9"]}},
        "preStop": {"exec": {"command": ["sleep", "3"]}}}));
    let result = w.sync(&p, &running(&[])).await;
    let error = result.actions[0].error.as_ref().unwrap();
    assert_eq!(error.reason, "PostStartHookError");
    let who = PodIdentity::of(&p).unwrap();
    assert_eq!(
        error.message,
        format!(
            "Exec lifecycle hook ([exit 9]) for Container \"a\" in Pod \"{who}\" failed - error: command 'exit 9' exited with 9: , message: \"no\\n\""
        )
    );
    assert!(!error.transient);
    let lines: Vec<String> = w.fake.take().into_iter().skip_while(|l| !l.starts_with("StartContainer")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).filter(|l| !l.starts_with("link")).collect();
    assert_eq!(
        lines,
        [
            "StartContainer a-new",
            "event Normal Started spec.containers{a} Container started",
            "ExecSync a-new exit 9",
            "event Warning FailedPostStartHook spec.containers{a} PostStartHook failed",
            "event Normal Killing spec.containers{a} FailedPostStartHook",
            "ExecSync a-new sleep 3",
            "StopContainer a-new 27",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn an_instance_is_not_shown_before_its_hook_has_succeeded() {
    let w = world();
    let p = hooked(serde_json::json!({"postStart": {"sleep": {"seconds": 20}}}));
    let mut instance = running(&["a"]);
    instance.containers[0].id = bulkhead_types::ContainerId::parse("a-new").unwrap();
    let shown = || w.manager.shown(&instance).containers.len();
    let none = running(&[]);
    let sync = w.sync(&p, &none);
    tokio::pin!(sync);
    assert!(timeout(Duration::from_secs(19), &mut sync).await.is_err());
    assert_eq!(shown(), 0);
    assert!(sync.await.is_ok());
    assert_eq!(shown(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_post_start_that_is_cut_off_has_not_failed() {
    let w = world();
    let p = hooked(serde_json::json!({"postStart": {"exec": {"command": ["sleep", "100"]}}}));
    let begun = Instant::now();
    let result = w.sync_until(&p, &running(&[]), "ExecSync a-new sleep 100").await;
    assert!(result.is_transient() && begun.elapsed().as_secs() == 0);
    assert!(w.fake.events().iter().all(|event| !event.contains("Failed") && !event.contains("Killing")));
    assert!(!w.fake.cri().iter().any(|call| call.starts_with("StopContainer")), "whoever ends the pod does that");
}

#[tokio::test(start_paused = true)]
async fn whole_seconds_of_pre_stop_are_gone_from_the_grace_period() {
    for (hook, grace, left, took) in [
        (serde_json::json!({"sleep": {"seconds": 2}}), 6, 4, 2),
        (serde_json::json!({"sleep": {"seconds": 0}}), 6, 6, 0),
        // The floor, and no longer than the grace period.
        (serde_json::json!({"sleep": {"seconds": 5}}), 6, 2, 5),
        (serde_json::json!({"sleep": {"seconds": 60}}), 6, 2, 6),
        // No time for it.
        (serde_json::json!({"sleep": {"seconds": 60}}), 0, 2, 0),
    ] {
        let w = world();
        let p = hooked(serde_json::json!({"preStop": hook}));
        assert_eq!(
            kill(&w, Some(&p), &running(&["a"]), grace).await,
            (vec![format!("StopContainer a-id {left}")], took)
        );
    }
}

/// The API server takes any that is not negative.
#[tokio::test(start_paused = true)]
async fn a_grace_period_of_any_length_is_one() {
    let hook = |seconds: i64| serde_json::json!({"preStop": {"sleep": {"seconds": seconds}}});
    let p = |seconds: i64| {
        pod(serde_json::json!({
            "initContainers": [{"name": "side", "image": "i", "restartPolicy": "Always", "lifecycle": hook(3)}],
            "containers": [{"name": "a", "image": "i", "lifecycle": hook(seconds)}]}))
    };
    let w = world();
    let (calls, took) = kill(&w, Some(&p(7)), &running(&["side", "a"]), i64::MAX).await;
    let left = i64::MAX - 7;
    assert_eq!(calls, [format!("StopContainer a-id {left}"), format!("StopContainer side-id {left}")]);
    assert_eq!(took, 7);
    let (w, p, status) = (world(), p(i64::MAX), running(&["side", "a"]));
    let endless = timeout(Duration::from_secs(3600), kill_pod(&w.manager, Some(&p), &status, Some(i64::MAX)));
    assert!(endless.await.is_err(), "it is as long as it says");
}

#[tokio::test(start_paused = true)]
async fn a_failed_pre_stop_hook_is_one_event_and_the_container_is_stopped() {
    for (command, calls) in [
        (["exit", "1"], ["ExecSync a-id exit 1", "StopContainer a-id 10"]),
        (["sleep", "99"], ["ExecSync a-id sleep 99", "StopContainer a-id 2"]),
    ] {
        let w = world();
        assert!(kill_pod(&w.manager, Some(&pre_stop(&command)), &running(&["a"]), Some(10)).await.is_ok());
        assert_eq!(
            w.fake.events(),
            [
                "event Normal Killing spec.containers{a} Stopping container a",
                "event Warning FailedPreStopHook spec.containers{a} PreStopHook failed",
            ]
        );
        let cri = w.fake.cri();
        assert_eq!(cri[..2], calls);
    }
}

#[tokio::test(start_paused = true)]
async fn a_shrinking_grace_period_does_not_run_pre_stop_again() {
    let w = world();
    let (p, status) = (pre_stop(&["sleep", "50"]), running(&["a"]));
    let first = kill_pod(&w.manager, Some(&p), &status, Some(60));
    assert!(timeout(Duration::from_secs(10), first).await.is_err());
    assert_eq!(w.fake.cri(), ["ExecSync a-id sleep 50"]);
    assert_eq!(kill(&w, Some(&p), &status, 5).await, (vec!["StopContainer a-id 2".to_owned()], 5));
    // The hook has ended with its container; a kill that comes late finds nothing to wait for.
    assert_eq!(kill(&w, Some(&p), &status, 5).await, (vec!["StopContainer a-id 5".to_owned()], 0));
}

#[tokio::test(start_paused = true)]
async fn a_kill_in_a_sync_is_left_when_the_pod_ends() {
    let w = world();
    let (p, mut status) = (pre_stop(&["sleep", "20"]), running(&["a"]));
    status.containers[0].hash = 7;
    let begun = Instant::now();
    let result = w.sync_until(&p, &status, "ExecSync a-id sleep 20").await;
    assert!(result.actions.is_empty() && begun.elapsed().as_secs() == 0);
    assert_eq!(w.fake.cri(), ["ExecSync a-id sleep 20"]);
    assert_eq!(kill(&w, Some(&p), &status, 30).await, (vec!["StopContainer a-id 10".to_owned()], 20));
}

#[tokio::test(start_paused = true)]
async fn sidecars_begin_their_hooks_at_once_and_stop_last() {
    let w = world();
    let hook = |seconds: &str| serde_json::json!({"preStop": {"exec": {"command": ["sleep", seconds]}}});
    let p = pod(serde_json::json!({
        "initContainers": [{"name": "side", "image": "i", "restartPolicy": "Always", "lifecycle": hook("3")}],
        "containers": [{"name": "a", "image": "i", "lifecycle": hook("7")}]}));
    let (calls, took) = kill(&w, Some(&p), &running(&["side", "a"]), 20).await;
    assert_eq!(calls[..2], ["ExecSync side-id sleep 3", "ExecSync a-id sleep 7"]);
    assert_eq!(calls[2..], ["StopContainer a-id 13", "StopContainer side-id 13"]);
    assert_eq!(took, 7);
}

/// A pod whose container is held back for 6 s and ends so many seconds after its signal, with 5 s of grace.
#[tokio::test(start_paused = true)]
async fn a_sidecar_waits_from_the_first_signal_of_its_pod_on() {
    let none = serde_json::json!({});
    let hook = serde_json::json!({"preStop": {"sleep": {"seconds": 3}}});
    let late_hook = serde_json::json!({"preStop": {"sleep": {"seconds": 9}}});
    for (lifecycle, ends_after, left, signal) in [
        (&none, 2, 3, 8),
        // It is waited for until the grace period is over, and no longer.
        (&none, 60, 2, 11),
        // A hook that runs meanwhile takes nothing of it.
        (&hook, 2, 3, 8),
        // Nor does one that is cut off after the time of a grace period.
        (&late_hook, 60, 2, 11),
    ] {
        let w = world();
        let p = pod(serde_json::json!({
            "initContainers": [{"name": "side", "image": "i", "restartPolicy": "Always", "lifecycle": lifecycle}],
            "containers": [{"name": "a", "image": "i"}]}));
        let held = HeldBack::default();
        w.fake.log().held = Some((held.clone(), [6, ends_after].map(Duration::from_secs)));
        let begun = Instant::now();
        let status = running(&["side", "a"]);
        let context = KillContext { over: Some(5), host_ips: &[], held: &held };
        let kill = w.manager.kill_pod(Some(&p), &status, context);
        tokio::pin!(kill);
        let mut signals = Vec::new();
        loop {
            let is_over = timeout(Duration::from_millis(100), &mut kill).await.is_ok();
            signals.extend(w.fake.cri().into_iter().map(|call| (call, begun.elapsed().as_secs())));
            if is_over {
                break;
            }
        }
        signals.retain(|(call, _)| call.starts_with("StopContainer"));
        let of_sidecar = (format!("StopContainer side-id {left}"), signal);
        assert_eq!(signals, [("StopContainer a-id 5".to_owned(), 6), of_sidecar], "{lifecycle}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_only_the_runtime_knows_has_its_hook_on_its_container() {
    let w = world();
    let p = pre_stop(&["sleep", "1"]);
    let container = &p.spec.as_ref().unwrap().containers[0];
    w.fake.log().annotations = kubelet_model::pod::labels::container_annotations(container, &p, 0);
    let (calls, _) = kill(&w, None, &running(&["a"]), 10).await;
    assert_eq!(calls, ["ContainerStatus a-id", "ExecSync a-id sleep 1", "StopContainer a-id 9"]);
    // No time for a hook: nothing is asked.
    let w = world();
    assert_eq!(kill(&w, None, &running(&["a"]), 0).await.0, ["StopContainer a-id 2"]);
}
