//! The order of work against a runtime that only writes down what it is asked.

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_cri::Code;
use bulkhead_types::ContainerId;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use kubelet_model::v1::{Container, Volume};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::runtime::container_config::{MountedVolume, VolumeRoot};
use crate::runtime::fake_runtime::{Managers, container, kill_pod, simple, status, sub_path, world};
use crate::runtime::gc::GcPolicy;
use crate::runtime::result::ActionError;
use crate::runtime::run_options::{RunContainerOptions, WithoutQuota};
use kubelet_model::fixtures::{FakeObjects, UID, container_status, pod, uid};
use kubelet_model::pod::model::SandboxState;

#[tokio::test]
async fn from_nothing_to_running() {
    let w = world();
    let result = w.sync(&simple(&["a", "b"]), &RuntimePod::default()).await;
    assert!(result.is_ok() && result.did_work());
    assert_eq!(result.new_sandbox.as_ref().unwrap().0.as_str(), "new0");
    assert_eq!(
        w.fake.take(),
        [
            "log directory -",
            "RunPodSandbox 0",
            "PodSandboxStatus new0",
            "ready new0 [10.88.0.9]",
            "ImageStatus i",
            "log directory a",
            "hosts p [10.88.0.9]",
            "termination a",
            "CreateContainer new0 a",
            "event Normal Created spec.containers{a} Container created",
            "StartContainer a-new",
            "event Normal Started spec.containers{a} Container started",
            "link a 0 a-new",
            "ImageStatus i",
            "log directory b",
            "hosts p [10.88.0.9]",
            "termination b",
            "CreateContainer new0 b",
            "event Normal Created spec.containers{b} Container created",
            "StartContainer b-new",
            "event Normal Started spec.containers{b} Container started",
            "link b 0 b-new",
        ]
    );
    let settled = w.sync(&simple(&["a"]), &status(vec![container_status("a", RunState::Running, 0)])).await;
    assert!(settled.is_ok() && !settled.did_work() && w.fake.take().is_empty());
}

#[tokio::test]
async fn host_network_needs_no_address() {
    let w = world();
    let mut p = simple(&["a"]);
    p.spec.as_mut().unwrap().host_network = Some(true);
    w.sync(&p, &RuntimePod::default()).await;
    assert_eq!(w.fake.cri(), ["RunPodSandbox 0", "ImageStatus i", "CreateContainer new0 a", "StartContainer a-new"]);
}

#[tokio::test]
async fn one_failure_does_not_stop_the_others() {
    let w = world();
    w.fake.fail("StartContainer a-new", Code::Unknown, "boom in a-new");
    let result = w.sync(&simple(&["a", "b"]), &status(vec![])).await;
    assert_eq!(w.fake.events()[1], "event Warning Failed spec.containers{a} Error: boom in a");
    assert!(w.fake.take().contains(&"StartContainer b-new".to_owned()));
    let error = result.actions[0].error.clone().unwrap();
    assert_eq!((error.reason.as_str(), error.message.as_str()), ("RunContainerError", "boom in a-new"));
    assert_eq!(
        result.error_text().unwrap(),
        "failed to \"StartContainer\" for \"a\" with RunContainerError: \"boom in a-new\""
    );
    assert!(result.actions[1].error.is_none());
}

#[tokio::test]
async fn failures_and_what_they_are_called() {
    for (call, code, reason, event) in [
        (
            "ImageStatus i",
            Code::NotFound,
            "ErrImagePull",
            "event Warning Failed spec.containers{a} Error: ErrImagePull",
        ),
        (
            "CreateContainer s0 a",
            Code::Unknown,
            "CreateContainerError",
            "event Warning Failed spec.containers{a} Error: no",
        ),
    ] {
        let w = world();
        w.fake.fail(call, code, "no");
        let result = w.sync(&simple(&["a"]), &status(vec![])).await;
        assert_eq!(result.actions[0].error.as_ref().unwrap().reason, reason);
        assert_eq!(w.fake.events(), [event]);
    }
    let w = world();
    let mut refused = simple(&["a"]);
    refused.spec.as_mut().unwrap().security_context =
        serde_json::from_value(serde_json::json!({"runAsNonRoot": true})).unwrap();
    let result = w.sync(&refused, &status(vec![])).await;
    let error = result.actions[0].error.clone().unwrap();
    assert_eq!(error.reason, "CreateContainerConfigError");
    assert!(error.message.starts_with("container has runAsNonRoot and image will run as root"));
    assert_eq!(w.fake.cri(), ["ImageStatus i"], "nothing was made for it");
}

#[tokio::test]
async fn a_sandbox_that_cannot_be_made() {
    let w = world();
    w.fake.fail("RunPodSandbox 0", Code::Unknown, "no network");
    let result = w.sync(&simple(&["a"]), &RuntimePod::default()).await;
    assert_eq!(
        w.fake.events(),
        [
            "event Warning FailedCreatePodSandBox  Failed to create pod sandbox: rpc error: code = Unknown desc = no network"
        ]
    );
    assert_eq!(result.actions[0].error.as_ref().unwrap().reason, "CreatePodSandboxError");
    w.fake.take();
    let result = w.sync_with(&simple(&["a"]), &RuntimePod::default(), false, true).await;
    assert!(result.is_ok() && w.fake.events().is_empty(), "it is being deleted: no news");
    w.fake.take();
    let mut users = simple(&["a"]);
    users.spec.as_mut().unwrap().host_users = Some(false);
    w.sync(&users, &RuntimePod::default()).await;
    assert_eq!(
        w.fake.take(),
        [
            "event Warning FailedCreatePodSandBox  Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not support user namespaces"
        ]
    );
}

#[tokio::test]
async fn volnetd_away_is_a_transient_error() {
    let w = world();
    w.fake.log().volnetd_away = true;
    let result = w.sync(&simple(&["a"]), &RuntimePod::default()).await;
    assert!(result.is_transient() && w.fake.events().is_empty());
    let result = w.sync(&simple(&["a"]), &status(vec![])).await;
    assert!(result.is_transient() && w.fake.events().is_empty());
}

#[tokio::test]
async fn crashes_back_off() {
    let w = world();
    let p = simple(&["a"]);
    let crashed = |count: u32, finished: u64| {
        let mut c = container_status("a", RunState::Exited, 1);
        c.restart_count = count;
        c.finished_at = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(finished));
        status(vec![c])
    };
    w.fake.log().volnetd_away = true;
    assert!(w.sync(&p, &crashed(0, 1000)).await.is_transient());
    w.fake.log().volnetd_away = false;
    assert!(
        w.sync(&p, &crashed(0, 1000)).await.is_ok(),
        "the first restart is at once, and the failed attempt does not count"
    );
    assert_eq!(w.fake.log().configs[0].log_path, "a/1.log");
    w.fake.take();
    let held = w.sync(&p, &crashed(1, 1000)).await;
    let error = held.actions[0].error.clone().unwrap();
    assert_eq!(error.reason, "CrashLoopBackOff");
    assert_eq!(error.message, format!("back-off 10s restarting failed container=a pod=p_ns({})", uid()));
    assert_eq!(held.back_off_until(), Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1010)));
    assert!(!held.did_work());
    assert_eq!(
        w.fake.take(),
        [format!(
            "event Warning BackOff spec.containers{{a}} Back-off restarting failed container a in pod p_ns({})",
            uid()
        )]
    );
    *w.now.lock() += Duration::from_secs(10);
    assert!(w.sync(&p, &crashed(1, 1000)).await.is_ok());
    w.manager.forget_expired_back_off();
}

#[tokio::test]
async fn restart_counts_go_on_after_the_runtime_forgot() {
    let w = world();
    w.fake.log().highest_log = Some(3);
    w.sync(&simple(&["a"]), &status(vec![])).await;
    let config = w.fake.log().configs.pop().unwrap();
    assert_eq!((config.log_path.as_str(), config.metadata.unwrap().attempt), ("a/4.log", 4));
}

/// Upstream's mirror_pod_test.go asks for 1 after a manifest was removed and written again.
#[tokio::test]
async fn restart_counts_go_on_when_a_pod_begins_anew() {
    let w = world();
    let count = || w.fake.log().configs.pop().unwrap().metadata.unwrap().attempt;
    w.manager.begins_anew(&uid(), &status(vec![container_status("a", RunState::Exited, 0)]));
    w.sync(&simple(&["a"]), &status(vec![])).await;
    assert_eq!(count(), 1);
    w.fake.log().highest_log = Some(3);
    w.sync(&simple(&["a"]), &status(vec![])).await;
    assert_eq!(count(), 4, "what the logs tell of a life before this process");
    w.fake.log().highest_log = None;
    w.manager.retain_former_lives(|_| false);
    w.sync(&simple(&["a"]), &status(vec![])).await;
    assert_eq!(count(), 0);
}

#[tokio::test]
async fn a_dead_sandbox_is_replaced() {
    let w = world();
    let mut p = simple(&["a"]);
    p.spec.as_mut().unwrap().init_containers = Some(vec![serde_json::from_value(container("i")).unwrap()]);
    let mut old = status(vec![container_status("a", RunState::Running, 0), container_status("i", RunState::Exited, 0)]);
    old.sandboxes[0].state = SandboxState::NotReady;
    w.sync(&p, &old).await;
    let events = w.fake.events();
    assert_eq!(events[0], "event Normal SandboxChanged  Pod sandbox changed, it will be killed and re-created.");
    assert_eq!(events[1], "event Normal Killing spec.containers{a} Stopping container a");
    assert_eq!(
        w.fake.cri(),
        [
            "StopContainer a-id 30",
            "StopPodSandbox s0",
            "RemoveContainer i-id",
            "RunPodSandbox 1",
            "PodSandboxStatus new1",
            "ImageStatus i",
            "CreateContainer new1 i",
            "StartContainer i-new",
        ]
    );
    w.fake.fail("StopPodSandbox s0", Code::Unknown, "stuck");
    let result = w.sync(&p, &old).await;
    assert!(!w.fake.take().iter().any(|l| l.starts_with("RunPodSandbox")), "never two sandboxes");
    assert_eq!(result.actions.last().unwrap().error.as_ref().unwrap().reason, "KillPodSandboxError");
}

#[tokio::test]
async fn init_containers_first_and_alone() {
    let w = world();
    let mut p = simple(&["a"]);
    let init: Vec<Container> = ["i", "j"].map(|n| serde_json::from_value(container(n)).unwrap()).to_vec();
    p.spec.as_mut().unwrap().init_containers = Some(init);
    w.fake.fail("ImageStatus i", Code::NotFound, "no");
    w.sync(&p, &status(vec![])).await;
    assert_eq!(w.fake.cri(), ["ImageStatus i"], "no other starts after a failed init container");
    let mut older = container_status("i", RunState::Exited, 0);
    older.id = ContainerId::parse("i-old").unwrap();
    let mut oldest = older.clone();
    oldest.id = ContainerId::parse("i-oldest").unwrap();
    let (running, newest) = (container_status("j", RunState::Running, 0), container_status("i", RunState::Exited, 0));
    let s = status(vec![running, newest, older, oldest]);
    w.sync(&p, &s).await;
    assert_eq!(
        w.fake.take(),
        ["remove log i 0 i-oldest", "RemoveContainer i-oldest", "remove log i 0 i-old", "RemoveContainer i-old"]
    );
    w.fake.fail("RemoveContainer i-oldest", Code::Unknown, "busy");
    w.sync(&p, &s).await;
    assert_eq!(w.fake.cri(), ["RemoveContainer i-oldest"], "one that is newer stays as long as an older one does");
}

#[tokio::test]
async fn changed_definition() {
    let w = world();
    let p = simple(&["a"]);
    let mut old = container_status("a", RunState::Running, 0);
    old.hash = 7;
    w.sync(&p, &status(vec![old])).await;
    let events = w.fake.events();
    assert_eq!(events[0], "event Normal Killing spec.containers{a} Container a definition changed, will be restarted");
    assert_eq!(
        w.fake.cri(),
        ["StopContainer a-id 30", "ImageStatus i", "CreateContainer s0 a", "StartContainer a-new"]
    );
}

#[tokio::test(start_paused = true)]
async fn killing_a_pod() {
    let w = world();
    let mut p = simple(&["a", "b"]);
    p.spec.as_mut().unwrap().init_containers =
        Some(vec![serde_json::from_value(serde_json::json!({"name": "side", "restartPolicy": "Always"})).unwrap()]);
    let s = status(vec![
        container_status("side", RunState::Running, 0),
        container_status("a", RunState::Running, 0),
        container_status("b", RunState::Exited, 0),
    ]);
    assert!(kill_pod(&w.manager, Some(&p), &s, None).await.is_ok());
    assert_eq!(w.fake.cri(), ["StopContainer a-id 30", "StopContainer side-id 30", "StopPodSandbox s0"]);
    kill_pod(&w.manager, Some(&p), &s, Some(0)).await;
    assert!(w.fake.cri().contains(&"StopContainer a-id 2".to_owned()), "never less than two seconds");
    let mut orphan = s.clone();
    orphan.containers[1].pod_termination_grace = Some(12);
    kill_pod(&w.manager, None, &orphan, None).await;
    let lines = w.fake.take();
    assert!(
        lines.contains(&"StopContainer a-id 12".to_owned()) && lines.contains(&"StopContainer side-id 2".to_owned())
    );
    assert!(lines.contains(&"event Normal Killing spec.containers{a} Stopping container a".to_owned()));
    w.fake.fail("StopContainer a-id 30", Code::NotFound, "gone");
    assert!(kill_pod(&w.manager, Some(&p), &s, None).await.is_ok());
    w.fake.fail("StopContainer a-id 30", Code::DeadlineExceeded, "slow");
    let result = kill_pod(&w.manager, Some(&p), &s, None).await;
    assert!(result.is_transient() && result.error_text().unwrap().contains("KillContainerError"));
}

#[tokio::test]
async fn restarting_in_place_keeps_logs_and_sandbox() {
    let w = world();
    let s = status(vec![container_status("a", RunState::Running, 0)]);
    w.sync_with(&simple(&["a"]), &s, true, false).await;
    assert_eq!(
        w.fake.take(),
        ["event Normal Killing spec.containers{a} killing", "StopContainer a-id 2", "RemoveContainer a-id",]
    );
}

#[tokio::test]
async fn garbage() {
    let w = world();
    let mut dead =
        status(vec![container_status("a", RunState::Exited, 0), container_status("b", RunState::Unknown, 0)]);
    dead.sandboxes[0].state = SandboxState::NotReady;
    w.fake.fail("RemoveContainer a-id", Code::Unknown, "busy");
    let failed = w.manager.collect_garbage(std::slice::from_ref(&dead), GcPolicy::default(), |_| true).await;
    assert_eq!(failed.len(), 1);
    assert_eq!(
        w.fake.take(),
        [
            // What is not known of its hook and its grace period is read off it.
            "ContainerStatus b-id",
            "event Normal Killing spec.containers{b} Container is in unknown state, try killing it before removal",
            "StopContainer b-id 2",
            "remove log b 0 b-id",
            "RemoveContainer b-id",
            "remove log a 0 a-id",
            "RemoveContainer a-id",
        ]
    );
    dead.containers.clear();
    w.manager.collect_garbage(std::slice::from_ref(&dead), GcPolicy::default(), |_| true).await;
    assert_eq!(w.fake.take(), ["StopPodSandbox s0", "RemovePodSandbox s0"]);
    // In one pass, and without a second stop of what was stopped.
    let mut ended = status(vec![container_status("a", RunState::Exited, 0)]);
    ended.sandboxes[0].state = SandboxState::NotReady;
    assert!(kill_pod(&w.manager, Some(&simple(&["a"])), &ended, None).await.is_ok());
    assert_eq!(w.fake.cri(), ["StopPodSandbox s0"]);
    w.fake.fail("RemovePodSandbox s0", Code::Unknown, "busy");
    w.fake.log().failures.remove("RemoveContainer a-id");
    let collect = || w.manager.collect_garbage(std::slice::from_ref(&ended), GcPolicy::default(), |_| true);
    assert_eq!(collect().await.len(), 1);
    assert_eq!(w.fake.cri(), ["RemoveContainer a-id", "RemovePodSandbox s0"]);
    w.fake.log().failures.clear();
    assert!(collect().await.is_empty());
    assert_eq!(w.fake.cri(), ["RemoveContainer a-id", "StopPodSandbox s0", "RemovePodSandbox s0"]);
    let mut older = container_status("a", RunState::Exited, 0);
    older.id = ContainerId::parse("a-old").unwrap();
    let p = status(vec![container_status("a", RunState::Exited, 0), older]);
    let died = ContainerId::parse("a-id").unwrap();
    w.manager.remove_surplus(&p, &died, GcPolicy::default(), false).await;
    assert_eq!(w.fake.cri(), ["RemoveContainer a-old"]);
}

/// Claims that cannot be prepared, or a driver that does not answer.
struct Claims(bool);

impl ContainerManager for Claims {
    fn prepare_dynamic_resources<'a>(&'a self, _: &'a Pod) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async {
            if self.0 {
                return Err("DRA driver d is not registered".to_owned());
            }
            std::future::pending().await
        })
    }

    fn run_options<'a>(
        &'a self,
        _: &'a Pod,
        _: &'a Container,
    ) -> BoxFuture<'a, Result<RunContainerOptions, ActionError>> {
        Box::pin(async { Err(ActionError::new("CreateContainerConfigError", "the claim is not known")) })
    }

    fn without_quota(&self, _: &Pod) -> WithoutQuota {
        WithoutQuota::default()
    }

    fn created(&self, _: &Pod, _: &Container, _: &ContainerId, _: &RunContainerOptions) {}
}

/// Containers have CPUs that nobody else has.
struct OwnCpus;

impl ContainerManager for OwnCpus {
    fn prepare_dynamic_resources<'a>(&'a self, _: &'a Pod) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn run_options<'a>(
        &'a self,
        _: &'a Pod,
        _: &'a Container,
    ) -> BoxFuture<'a, Result<RunContainerOptions, ActionError>> {
        Box::pin(async {
            Ok(RunContainerOptions { cpuset_cpus: "2-3".to_owned(), without_quota: true, ..Default::default() })
        })
    }

    fn without_quota(&self, _: &Pod) -> WithoutQuota {
        WithoutQuota { containers: ["a".to_owned()].into(), pod: true }
    }

    fn created(&self, _: &Pod, _: &Container, _: &ContainerId, _: &RunContainerOptions) {}
}

#[tokio::test]
async fn no_quota_holds_the_sandbox_of_containers_with_cpus_for_themselves() {
    let mut w = world();
    let mut p = simple(&["a"]);
    let list = serde_json::json!({"cpu": "2", "memory": "64Mi"});
    p.spec.as_mut().unwrap().containers[0].resources =
        serde_json::from_value(serde_json::json!({"limits": list, "requests": list})).unwrap();
    for (own, quota) in [(false, 200_000), (true, -1)] {
        if own {
            w.container_manager = Managers(Box::new(OwnCpus));
        }
        w.sync(&p, &RuntimePod::default()).await;
        let mut log = w.fake.log();
        let sandbox = log.sandboxes.pop().unwrap().linux.unwrap().resources.unwrap();
        let container = log.configs.pop().unwrap().linux.unwrap().resources.unwrap();
        assert_eq!((sandbox.cpu_quota, container.cpu_quota), (quota, quota));
    }
}

#[tokio::test]
async fn a_pod_whose_claims_cannot_be_prepared_gets_no_sandbox() {
    let mut w = world();
    w.container_manager = Managers(Box::new(Claims(true)));
    let p = simple(&["a"]);
    let result = w.sync(&p, &RuntimePod::default()).await;
    assert!(result.is_ok() && !result.did_work(), "it waits for its time, as with upstream: {result:?}");
    assert_eq!(
        w.fake.take(),
        [
            "event Warning FailedPrepareDynamicResources  Failed to prepare dynamic resources: prepare dynamic resources: \
          DRA driver d is not registered"
        ]
    );
    // It has its sandbox, and its devices are not known: it is not started without them.
    let result = w.sync(&p, &status(vec![])).await;
    let errors: Vec<_> = result.actions.iter().map(|a| a.error.as_ref().map(|e| e.reason.as_str())).collect();
    assert_eq!(errors, [Some("CreateContainerConfigError")]);
    assert!(w.fake.cri().iter().all(|call| !call.starts_with("CreateContainer")));
    // The end of a pod does not wait for a driver.
    w.container_manager = Managers(Box::new(Claims(false)));
    let stop = CancellationToken::new();
    stop.cancel();
    let ended = w.sync_cancelled(&p, &RuntimePod::default(), stop).await;
    assert!(!ended.did_work(), "{ended:?}");
}

/// A container that needs the API server, in a pod that comes from there.
fn named(container: serde_json::Value) -> Pod {
    let mut all = serde_json::json!({"name": "a", "image": "i"});
    for (key, value) in container.as_object().unwrap() {
        all[key] = value.clone();
    }
    let mut pod = pod(serde_json::json!({"containers": [all], "enableServiceLinks": true}));
    pod.metadata.annotations = None;
    pod
}

fn config_error(result: &SyncResult) -> (String, bool) {
    let error = result.actions.iter().find_map(|a| a.error.as_ref()).expect("a failed action");
    assert_eq!(error.reason, "CreateContainerConfigError");
    (error.message.clone(), error.transient)
}

#[tokio::test]
async fn an_environment_waits_for_its_objects() {
    let w = world();
    let pod = named(serde_json::json!({"envFrom": [{"configMapRef": {"name": "cm"}}]}));
    let ready = status(vec![]);
    let result = w.sync(&pod, &ready).await;
    assert_eq!(config_error(&result), ("configmap \"cm\" not found".to_owned(), false));
    let expected = ["event Warning Failed spec.containers{a} Error: configmap \"cm\" not found"];
    assert_eq!(w.fake.events(), expected);
    assert!(w.fake.cri().iter().all(|call| !call.starts_with("CreateContainer")));

    // Silence is not absence: nothing is said, and it is tried again soon.
    w.objects.set_away(true);
    let result = w.sync(&pod, &ready).await;
    assert_eq!(config_error(&result), ("no route".to_owned(), true));
    assert!(result.is_transient() && w.fake.events().is_empty());
    w.objects.set_away(false);

    w.objects.services_pending();
    w.objects.put_config_map("cm", &[("K", "v")]);
    let result = w.sync(&pod, &ready).await;
    let (message, transient) = config_error(&result);
    assert_eq!(message, "services have not yet been read at least once, cannot construct envvars");
    assert!(transient);
}

#[tokio::test]
async fn an_environment_of_objects_and_services() {
    let w = world();
    w.objects.put_secret("s", &[("K", b"v")]);
    let service = kubelet_model::objects::Service {
        namespace: "default".into(),
        name: "kubernetes".into(),
        cluster_ip: "10.96.0.1".into(),
        ports: vec![],
    };
    w.objects.put_services(&[service]);
    let pod = named(serde_json::json!({"envFrom": [{"secretRef": {"name": "s"}}]}));
    assert!(w.sync(&pod, &status(vec![])).await.is_ok());
    let envs = w.fake.log().configs[0].envs.clone();
    let seen: Vec<_> = envs.iter().map(|e| (e.key.as_str(), std::str::from_utf8(&e.value).unwrap())).collect();
    assert_eq!(seen, [("K", "v"), ("KUBERNETES_SERVICE_HOST", "10.96.0.1")]);
    assert_eq!(w.objects.take_asked(), ["secret s"]);
    // Nothing is asked for a container that names nothing.
    assert!(w.sync(&simple(&["b"]), &status(vec![])).await.is_ok());
    assert!(w.objects.take_asked().is_empty());
}

#[tokio::test]
async fn runtime_classes() {
    let mut w = world();
    let mut pod = simple(&["a"]);
    pod.spec.as_mut().unwrap().runtime_class_name = Some("kata".to_owned());
    let result = w.sync(&pod, &RuntimePod::default()).await;
    let text = "Failed to create pod sandbox: runtimeclass.node.k8s.io \"kata\" not found";
    assert_eq!(w.fake.events(), [format!("event Warning FailedCreatePodSandBox  {text}")]);
    let error = result.actions[0].error.as_ref().unwrap();
    let named = PodIdentity::of(&pod).unwrap();
    assert_eq!(
        error.message,
        format!("Failed to generate sandbox config for pod \"{named}\": runtimeclass.node.k8s.io \"kata\" not found")
    );
    assert!(!error.transient && w.fake.cri().is_empty());

    w.objects.set_away(true);
    assert!(w.sync(&pod, &RuntimePod::default()).await.is_transient());
    assert!(w.fake.events().is_empty());
    // A sandbox that is there needs no class.
    w.fake.take();
    assert!(w.sync(&pod, &status(vec![])).await.is_ok());

    w.objects = FakeObjects::default();
    w.objects.put_handler("kata", "kata-qemu");
    w.fake.take();
    assert!(w.sync(&pod, &RuntimePod::default()).await.is_ok());
    assert!(w.fake.cri().contains(&"RunPodSandbox 0 by kata-qemu".to_owned()));
}

#[tokio::test]
async fn parts_of_volumes() {
    let mut w = world();
    let folder = format!("/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/v");
    let volume = MountedVolume {
        host_path: (&folder).into(),
        read_only: false,
        managed: true,
        root: VolumeRoot::Plugin("kubernetes.io/empty-dir"),
        folder: None,
        gid: None,
    };
    w.volumes = BTreeMap::from([("v".to_owned(), volume)]);
    let mut pod = named(serde_json::json!({"env": [{"name": "A", "value": "x"}], "volumeMounts": [
        {"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/w", "subPathExpr": "$(A)/y"}]}));
    let declared =
        Volume { name: "v".into(), empty_dir: Some(Box::new(EmptyDirVolumeSource::default())), ..Default::default() };
    pod.spec.as_mut().unwrap().volumes = Some(vec![declared]);
    assert!(w.sync(&pod, &status(vec![])).await.is_ok());
    let mounts: Vec<_> = w.fake.log().configs[0].mounts.iter().map(|m| m.host_path.clone()).collect();
    assert_eq!(mounts[..2], [folder.clone(), sub_path(UID, "v", "a", 1)]);

    // Why it failed could tell about the host's files: it is not for the pod's owner.
    w.fake.take();
    let call = format!("sub path a 1 {folder}/x/y");
    w.fake.fail(&call, Code::Internal, "");
    let result = w.sync(&pod, &status(vec![])).await;
    let text = "failed to prepare subPath for volumeMount \"v\" of container \"a\"";
    assert_eq!(config_error(&result), (text.to_owned(), false));
    assert_eq!(w.fake.events(), [format!("event Warning Failed spec.containers{{a}} Error: {text}")]);
    w.fake.log().volnetd_away = true;
    assert!(w.sync(&pod, &status(vec![])).await.is_transient());
}
