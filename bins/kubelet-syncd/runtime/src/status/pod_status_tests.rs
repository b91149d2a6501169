//! Statuses as a watcher saw them from upstream, step by step, and what must hold for any.

use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::*;
use crate::status::terminate::terminate;
use kubelet_model::fixtures::{container_status, pod, sandbox_status};
use kubelet_model::node_facts::HostFacts;
use kubelet_model::pod::model::{ImageMount, LinuxUser, RunState, SandboxState};

struct World {
    pod: Pod,
    runtime: RuntimePod,
    old: Option<PodStatus>,
    failures: HashMap<String, StartFailure>,
    messages: BTreeMap<ContainerId, String>,
    facts: NodeFacts,
    handler: Option<HandlerFeatures>,
    terminal: bool,
    termination: Option<TerminationReason>,
    now: i64,
}

fn world(spec: serde_json::Value) -> World {
    let mut facts = NodeFacts::new(HostFacts::default());
    facts.host_ips = vec!["10.240.0.2".parse().unwrap()];
    let mut pod = pod(spec);
    // Not a static pod, so that it can end.
    pod.metadata.annotations = None;
    pod.metadata.generation = Some(1);
    World {
        pod,
        runtime: RuntimePod::default(),
        old: None,
        failures: HashMap::new(),
        messages: BTreeMap::new(),
        facts,
        handler: Some(HandlerFeatures::default()),
        terminal: false,
        termination: None,
        now: 1000,
    }
}

/// The runtime has lost the record of the instance that ended last, and still has an earlier one whose start failed.
#[test]
fn an_instance_that_never_started_takes_back_no_later_end() {
    let mut w = world(serde_json::json!({
        "restartPolicy": "OnFailure",
        "initContainers": [{"name": "i", "image": "i"}],
        "containers": [{"name": "c", "image": "i"}],
    }));
    w.sandbox();
    let instance = |w: &mut World, state: RunState, restart_count: u32| {
        w.container("i", state, 0);
        w.runtime.containers[0].restart_count = restart_count;
        w.runtime.containers[0].id = ContainerId::parse(&format!("i-{restart_count}")).unwrap();
        w.step().init_container_statuses.unwrap().remove(0)
    };
    let ended = instance(&mut w, RunState::Exited, 2);
    assert!(ended.state.as_ref().unwrap().terminated.is_some() && ended.restart_count == 2);
    assert_eq!(instance(&mut w, RunState::Created, 1), ended);
    let next = instance(&mut w, RunState::Created, 3);
    assert!(next.state.unwrap().waiting.is_some() && next.restart_count == 3, "the next one is shown");
}

/// The same while the container waits for its next start: what was told of it stays whole, and the reason follows.
#[test]
fn nor_does_it_hide_what_a_container_waits_for() {
    let mut w = world(serde_json::json!({"containers": [{"name": "c", "image": "i"}]}));
    w.sandbox();
    let instance = |w: &mut World, state: RunState, restart_count: u32| {
        w.container("c", state, 1);
        w.runtime.containers[0].restart_count = restart_count;
        w.runtime.containers[0].id = ContainerId::parse(&format!("c-{restart_count}")).unwrap();
        w.step().container_statuses.unwrap().remove(0)
    };
    let failure = |reason: &str| StartFailure { reason: reason.to_owned(), message: String::new() };
    w.failures.insert("c".to_owned(), failure("CrashLoopBackOff"));
    let waits = instance(&mut w, RunState::Exited, 7);
    assert!(waits.state.as_ref().unwrap().waiting.is_some() && waits.restart_count == 7, "{waits:?}");
    assert_eq!(instance(&mut w, RunState::Created, 5), waits);
    w.failures.insert("c".to_owned(), failure("PostStartHookError"));
    let other = instance(&mut w, RunState::Created, 5);
    assert_eq!(other.state.unwrap().waiting.unwrap().reason.as_deref(), Some("PostStartHookError"));
    assert_eq!((other.container_id, other.last_state), (waits.container_id, waits.last_state));
    let next = instance(&mut w, RunState::Created, 8);
    assert!(next.container_id.unwrap().ends_with("c-8") && next.restart_count == 8, "the next one is shown");
}

/// An instance was made and never started, twice over deaths of the process, and the runtime has lost the one that had run before:
/// its end was told, and what came after it says nothing of it. Without it the pod would be Pending again.
#[test]
fn what_was_made_and_never_started_hides_no_end_that_was_told() {
    let mut w = world(serde_json::json!({"containers": [{"name": "c", "image": "i"}]}));
    w.sandbox();
    w.container("c", RunState::Exited, 137);
    let ended = w.step();
    let made = |w: &mut World, restart_count: u32| {
        w.runtime.containers.insert(0, container_status("c", RunState::Created, 0));
        w.runtime.containers[0].restart_count = restart_count;
        w.runtime.containers[0].id = ContainerId::parse(&format!("c-{restart_count}")).unwrap();
    };
    w.runtime.containers.clear();
    made(&mut w, 1);
    let of_first = w.step();
    made(&mut w, 2);
    let of_second = w.step();
    for status in [&of_first, &of_second] {
        let shown = &status.container_statuses.as_ref().unwrap()[0];
        assert!(shown.state.as_ref().unwrap().waiting.is_some());
        let told = &ended.container_statuses.as_ref().unwrap()[0].state;
        assert_eq!(shown.last_state, *told);
        assert_eq!(status.phase.as_deref(), Some("Running"));
    }
    // Nothing was told, and the runtime still has it.
    w.runtime.containers.push(container_status("c", RunState::Exited, 137));
    w.old = None;
    let status = w.step();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    let shown = &status.container_statuses.as_ref().unwrap()[0];
    assert_eq!(shown.last_state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 137);
}

impl World {
    fn step(&mut self) -> PodStatus {
        self.now += 1;
        let status = generate(&StatusInput {
            pod: &self.pod,
            runtime: &self.runtime,
            old: self.old.as_ref(),
            start_failures: &self.failures,
            messages: &self.messages,
            probes: &ProbeResults::default(),
            facts: &self.facts,
            handler: self.handler,
            actuated: None,
            resize: &[],
            terminal: self.terminal,
            termination: self.termination.as_ref(),
            now: Timestamp::from_second(self.now).unwrap(),
        });
        self.old = Some(status.clone());
        status
    }

    fn sandbox(&mut self) {
        self.runtime.sandboxes = vec![sandbox_status("s0", 0, SandboxState::Ready)];
    }

    fn container(&mut self, name: &str, state: RunState, exit_code: i32) {
        self.runtime.containers.retain(|c| c.name != name);
        self.runtime.containers.insert(0, container_status(name, state, exit_code));
    }
}

/// `Type=Status/Reason/Message` of each condition.
fn conditions(status: &PodStatus) -> Vec<String> {
    let one = |c: &k8s_openapi::api::core::v1::PodCondition| {
        let reason = c.reason.as_deref().map(|r| format!("/{r}")).unwrap_or_default();
        let message = c.message.as_deref().map(|m| format!("/{m}")).unwrap_or_default();
        format!("{}={}{reason}{message}", c.type_, c.status)
    };
    status.conditions.iter().flatten().map(one).collect()
}

fn main_state(status: &PodStatus) -> serde_json::Value {
    serde_json::to_value(&status.container_statuses.as_ref().unwrap()[0]).unwrap()
}

const UNREADY: &str = "Ready=False/ContainersNotReady/containers with unready status: [main]";
const CONTAINERS_UNREADY: &str = "ContainersReady=False/ContainersNotReady/containers with unready status: [main]";

fn simple(policy: &str) -> serde_json::Value {
    serde_json::json!({"restartPolicy": policy, "containers": [{"name": "main", "image": "i"}]})
}

#[test]
fn the_user_of_a_container_is_shown_where_the_runtime_reports_it() {
    let mut w = world(serde_json::json!({"initContainers": [{"name": "first", "image": "i"}],
        "containers": [{"name": "main", "image": "i"}], "ephemeralContainers": [{"name": "debug", "image": "i"}]}));
    w.sandbox();
    w.container("first", RunState::Exited, 0);
    w.container("main", RunState::Running, 0);
    w.container("debug", RunState::Running, 0);
    let users = |s: &PodStatus| {
        let lists = [&s.init_container_statuses, &s.container_statuses, &s.ephemeral_container_statuses];
        lists.map(|list| serde_json::to_value(&list.as_ref().unwrap()[0].user).unwrap())
    };
    assert_eq!(users(&w.step()), [const { serde_json::Value::Null }; 3]);
    for container in &mut w.runtime.containers {
        let supplemental_groups = if container.name == "main" { vec![2, 7] } else { Vec::new() };
        container.user = Some(LinuxUser { uid: 1, gid: 2, supplemental_groups });
    }
    let plain = serde_json::json!({"linux": {"uid": 1, "gid": 2}});
    let groups = serde_json::json!({"linux": {"uid": 1, "gid": 2, "supplementalGroups": [2, 7]}});
    assert_eq!(users(&w.step()), [plain.clone(), groups, plain]);
}

#[test]
fn life_of_a_plain_pod() {
    let mut w = world(simple("Always"));
    let s = w.step();
    assert_eq!(
        (s.phase.as_deref(), s.qos_class.as_deref(), s.observed_generation),
        (Some("Pending"), Some("BestEffort"), Some(1))
    );
    assert_eq!(
        conditions(&s),
        ["PodReadyToStartContainers=False", "Initialized=True", UNREADY, CONTAINERS_UNREADY, "PodScheduled=True"]
    );
    assert_eq!(
        main_state(&s),
        serde_json::json!({"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}, "lastState": {}, "ready": false,
            "restartCount": 0, "image": "i", "imageID": "", "started": false})
    );
    assert_eq!(serde_json::to_value(&s.resources).unwrap(), serde_json::json!({}));
    assert_eq!((s.host_ip.as_deref(), s.pod_ip.as_deref()), (Some("10.240.0.2"), None));
    let start = s.start_time.clone();

    w.sandbox();
    let s = w.step();
    assert_eq!(conditions(&s)[0], "PodReadyToStartContainers=True");
    assert_eq!(s.phase.as_deref(), Some("Pending"));

    w.container("main", RunState::Running, 0);
    let s = w.step();
    assert_eq!(
        (s.phase.as_deref(), s.pod_ip.as_deref(), s.start_time.clone()),
        (Some("Running"), Some("10.88.0.5"), start)
    );
    assert_eq!(
        conditions(&s),
        [
            "PodReadyToStartContainers=True",
            "Initialized=True",
            "Ready=True",
            "ContainersReady=True",
            "PodScheduled=True"
        ]
    );
    assert_eq!(
        main_state(&s),
        serde_json::json!({"name": "main", "state": {"running": {"startedAt": "1970-01-01T00:00:00Z"}}, "lastState": {}, "ready": true,
            "restartCount": 0, "image": "i", "imageID": "sha256:i", "containerID": "containerd://main-id", "started": true, "resources": {}})
    );
    let transitions: Vec<_> =
        s.conditions.iter().flatten().map(|c| c.last_transition_time.as_ref().unwrap().0.as_second()).collect();
    assert_eq!(transitions, [1002, 1001, 1003, 1003, 1001]);

    // Deleted: killed, sandbox stopped.
    w.container("main", RunState::Exited, 137);
    w.runtime.sandboxes[0].state = SandboxState::NotReady;
    w.terminal = true;
    w.pod.metadata.deletion_timestamp = serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).unwrap();
    let s = w.step();
    assert_eq!((s.phase.as_deref(), s.pod_ip.as_deref()), (Some("Failed"), Some("10.88.0.5")));
    assert_eq!(
        conditions(&s),
        [
            "PodReadyToStartContainers=False",
            "Initialized=True",
            "Ready=False/PodFailed",
            "ContainersReady=False/PodFailed",
            "PodScheduled=True"
        ]
    );
    assert_eq!(
        main_state(&s)["state"],
        serde_json::json!({"terminated": {"exitCode": 137, "reason": "Error", "startedAt": "1970-01-01T00:00:00Z",
            "finishedAt": "1970-01-01T00:00:00Z", "containerID": "containerd://main-id"}})
    );
    assert_eq!(terminate(&w.pod, &s), s);
}

#[test]
fn a_termination_that_the_runtime_has_forgotten_stays_in_the_status() {
    let mut w = world(simple("Never"));
    w.sandbox();
    w.container("main", RunState::Exited, 0);
    let told = w.step();
    w.container("main", RunState::Exited, 255);
    w.runtime.containers[0].reason = "Unknown".to_owned();
    let s = w.step();
    assert_eq!((s.phase.as_deref(), main_state(&s)), (Some("Succeeded"), main_state(&told)));
    // Nothing was told of another instance.
    w.runtime.containers[0].id = ContainerId::parse("another").unwrap();
    assert_eq!(main_state(&w.step())["state"]["terminated"]["exitCode"], 255);
}

#[test]
fn success_and_failure_for_good() {
    let mut w = world(simple("Never"));
    w.sandbox();
    w.container("main", RunState::Exited, 0);
    let s = w.step();
    assert_eq!(s.phase.as_deref(), Some("Succeeded"));
    assert_eq!(
        conditions(&s)[1..4],
        ["Initialized=True/PodCompleted", "Ready=False/PodCompleted", "ContainersReady=False/PodCompleted"]
    );
    w.runtime.containers.clear();
    assert_eq!(w.step().phase.as_deref(), Some("Succeeded"), "whatever the runtime forgets");
    let mut w = world(simple("Never"));
    w.sandbox();
    w.container("main", RunState::Exited, 3);
    w.runtime.containers[0].message = "oci".to_owned();
    w.messages.insert(ContainerId::parse("main-id").unwrap(), "bye".to_owned());
    let s = w.step();
    assert_eq!(s.phase.as_deref(), Some("Failed"));
    assert_eq!(main_state(&s)["state"]["terminated"]["message"], "oci: bye");
}

#[test]
fn crash_loop() {
    let mut w = world(simple("Always"));
    w.sandbox();
    w.container("main", RunState::Exited, 7);
    let s = w.step();
    assert_eq!((s.phase.as_deref(), conditions(&s)[2].as_str()), (Some("Running"), UNREADY));
    assert!(main_state(&s)["state"]["terminated"].is_object());
    let message = "back-off 10s restarting failed container=main pod=p_ns(u)".to_owned();
    w.failures
        .insert("main".to_owned(), StartFailure { reason: "CrashLoopBackOff".to_owned(), message: message.clone() });
    let s = w.step();
    assert_eq!(
        main_state(&s)["state"],
        serde_json::json!({"waiting": {"reason": "CrashLoopBackOff", "message": message}})
    );
    assert_eq!(main_state(&s)["lastState"]["terminated"]["exitCode"], 7);
    assert_eq!(s.phase.as_deref(), Some("Running"));
    // Second life, with the first one still on record.
    let mut next = container_status("main", RunState::Running, 0);
    next.id = ContainerId::parse("main-2").unwrap();
    next.restart_count = 1;
    w.runtime.containers.insert(0, next);
    w.failures.clear();
    let s = w.step();
    assert_eq!((main_state(&s)["restartCount"].as_i64(), main_state(&s)["ready"].as_bool()), (Some(1), Some(true)));
    assert_eq!(main_state(&s)["lastState"]["terminated"]["containerID"], "containerd://main-id");
    // The old record goes: what it said stays.
    w.runtime.containers.truncate(1);
    assert_eq!(main_state(&w.step())["lastState"]["terminated"]["exitCode"], 7);
}

#[test]
fn refused_starts_wait_and_say_why() {
    let mut w = world(simple("Always"));
    w.sandbox();
    let failure = StartFailure { reason: "ErrImageNeverPull".to_owned(), message: "not present".to_owned() };
    w.failures.insert("main".to_owned(), failure);
    let s = w.step();
    assert_eq!(
        main_state(&s)["state"],
        serde_json::json!({"waiting": {"reason": "ErrImageNeverPull", "message": "not present"}})
    );
    assert_eq!(s.phase.as_deref(), Some("Pending"));
    // Deleted before it ever ran.
    w.pod.metadata.deletion_timestamp = serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).unwrap();
    w.runtime.sandboxes[0].state = SandboxState::NotReady;
    w.terminal = true;
    let s = w.step();
    assert_eq!(main_state(&s)["state"]["waiting"]["reason"], "ContainerCreating");
    assert_eq!((s.phase.as_deref(), conditions(&s)[2].as_str()), (Some("Pending"), UNREADY));
    let end = terminate(&w.pod, &s);
    assert_eq!(end.phase.as_deref(), Some("Failed"));
    assert_eq!(
        main_state(&end)["state"],
        serde_json::json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown",
            "message": "The container could not be located when the pod was terminated"}})
    );
}

#[test]
fn init_containers() {
    let spec = |policy: &str| {
        serde_json::json!({"restartPolicy": policy,
        "initContainers": [{"name": "i1", "image": "i"}, {"name": "i2", "image": "i"}], "containers": [{"name": "main", "image": "i"}]})
    };
    let mut w = world(spec("Always"));
    let s = w.step();
    assert_eq!(
        conditions(&s)[1],
        "Initialized=False/ContainersNotInitialized/containers with incomplete status: [i1 i2]"
    );
    assert_eq!(main_state(&s)["state"]["waiting"]["reason"], "PodInitializing");
    w.sandbox();
    w.container("i1", RunState::Running, 0);
    let s = w.step();
    let i1 = serde_json::to_value(&s.init_container_statuses.as_ref().unwrap()[0]).unwrap();
    assert_eq!((i1["ready"].as_bool(), i1["started"].as_bool()), (Some(false), Some(true)));
    w.container("i1", RunState::Exited, 0);
    let s = w.step();
    assert_eq!(conditions(&s)[1], "Initialized=False/ContainersNotInitialized/containers with incomplete status: [i2]");
    let i1 = serde_json::to_value(&s.init_container_statuses.as_ref().unwrap()[0]).unwrap();
    assert_eq!((i1["ready"].as_bool(), i1["started"].as_bool()), (Some(true), Some(false)));
    w.container("i2", RunState::Exited, 0);
    let s = w.step();
    assert_eq!((conditions(&s)[1].as_str(), s.phase.as_deref()), ("Initialized=True", Some("Pending")));
    w.container("main", RunState::Running, 0);
    assert_eq!(w.step().phase.as_deref(), Some("Running"));
    // Their records go; the runtime of a static pod's next life knows nothing of them.
    w.runtime.containers.retain(|c| c.name == "main");
    w.old = None;
    let s = w.step();
    let i1 = serde_json::to_value(&s.init_container_statuses.as_ref().unwrap()[0]).unwrap();
    assert_eq!(
        (i1["state"]["terminated"]["reason"].as_str(), s.phase.as_deref()),
        (Some("Completed"), Some("Running"))
    );

    let mut w = world(spec("Never"));
    w.sandbox();
    w.container("i1", RunState::Exited, 3);
    let s = w.step();
    assert_eq!(s.phase.as_deref(), Some("Failed"));
    assert_eq!(
        conditions(&s)[1..4],
        [
            "Initialized=False/ContainersNotInitialized/containers with incomplete status: [i1 i2]",
            "Ready=False/PodFailed",
            "ContainersReady=False/PodFailed"
        ]
    );
}

#[test]
fn sums_of_resources() {
    let amounts = serde_json::json!({"cpu": "250m", "memory": "64Mi"});
    let mut w = world(serde_json::json!({"containers": [
        {"name": "main", "image": "i", "resources": {"limits": amounts, "requests": amounts},
         "volumeMounts": [{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/r", "readOnly": true}]}]}));
    w.sandbox();
    w.container("main", RunState::Running, 0);
    let s = w.step();
    let json = serde_json::to_value(&s).unwrap();
    assert_eq!(json["allocatedResources"], amounts);
    assert_eq!(json["resources"], serde_json::json!({"limits": amounts, "requests": amounts}));
    // With gate InPlacePodLevelResourcesVerticalScaling off nothing is said of the pod as a whole.
    w.facts.pod_level_resize = false;
    let off = w.step();
    assert_eq!((off.resources, off.allocated_resources), (None, None));
    w.facts.pod_level_resize = true;
    assert_eq!(json["containerStatuses"][0]["allocatedResources"], amounts);
    assert_eq!(
        json["containerStatuses"][0]["volumeMounts"],
        serde_json::json!([{"name": "v", "mountPath": "/v"}, {"name": "v", "mountPath": "/r", "readOnly": true, "recursiveReadOnly": "Disabled"}])
    );
    assert_eq!(s.qos_class.as_deref(), Some("Guaranteed"));
}

/// By what the pod's own handler can do when the instance is made; another answer later makes another mount of no instance.
#[test]
fn mounts_are_told_as_the_instance_has_them() {
    let mount =
        serde_json::json!({"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "IfPossible"});
    let mut w = world(serde_json::json!({"containers": [{"name": "main", "image": "i", "volumeMounts": [mount]}]}));
    let can = |recursive_read_only_mounts| Some(HandlerFeatures { recursive_read_only_mounts, ..Default::default() });
    let shown = |w: &mut World, handler| {
        w.handler = handler;
        main_state(&w.step())["volumeMounts"][0]["recursiveReadOnly"].as_str().unwrap().to_owned()
    };
    assert_eq!(shown(&mut w, None), "Disabled", "the class is not known yet");
    assert_eq!(shown(&mut w, can(true)), "Enabled");
    assert_eq!(shown(&mut w, None), "Enabled");
    w.sandbox();
    w.container("main", RunState::Running, 0);
    for later in [None, can(true), can(false), None] {
        assert_eq!(shown(&mut w, later), "Enabled");
    }
    w.runtime.containers[0].id = "next".parse().unwrap();
    assert_eq!(shown(&mut w, can(false)), "Disabled");
    // The first look at it came after the class was lost sight of, and nothing else was told.
    w.old = None;
    assert_eq!(shown(&mut w, None), "Disabled");
}

#[test]
fn containers_that_vanish() {
    let mut w = world(simple("Always"));
    w.sandbox();
    w.container("main", RunState::Running, 0);
    w.step();
    w.runtime.containers.clear();
    let s = w.step();
    assert_eq!(main_state(&s)["lastState"]["terminated"]["reason"], "ContainerStatusUnknown");
    assert_eq!((main_state(&s)["restartCount"].as_i64(), s.phase.as_deref()), (Some(1), Some("Running")));
    let mut w = world(simple("Always"));
    w.sandbox();
    w.container("main", RunState::Running, 0);
    w.step();
    w.container("main", RunState::Unknown, 0);
    let s = w.step();
    assert_eq!(main_state(&s)["state"]["terminated"]["exitCode"], 137);
    assert_eq!(main_state(&s)["restartCount"], 1);
}

#[test]
fn host_network_verdicts_rejections_and_gates() {
    let mut w = world(serde_json::json!({"hostNetwork": true, "containers": [{"name": "main", "image": "i"}],
        "readinessGates": [{"conditionType": "x.io/ok"}]}));
    w.sandbox();
    w.runtime.sandboxes[0].host_network = true;
    w.runtime.sandboxes[0].ips.clear();
    w.container("main", RunState::Running, 0);
    let s = w.step();
    assert_eq!(s.pod_ip.as_deref(), Some("10.240.0.2"));
    assert!(conditions(&s).contains(&"Ready=False/ReadinessGatesNotReady/corresponding condition of pod readiness gate \"x.io/ok\" does not exist.".to_owned()));
    let disruption = Some("low on memory".to_owned());
    let (reason, message) = ("Evicted".to_owned(), "low".to_owned());
    w.termination = Some(TerminationReason { reason, message, disruption, fails: Fails::UntilStopped });
    let s = w.step();
    assert_eq!((s.phase.as_deref(), s.reason.as_deref()), (Some("Failed"), Some("Evicted")));
    assert_eq!(conditions(&s)[5], "DisruptionTarget=True/TerminationByKubelet/low on memory");
    w.termination = None;
    let s = w.step();
    assert!(conditions(&s).contains(&"DisruptionTarget=True/TerminationByKubelet/low on memory".to_owned()));
    assert_eq!(
        (s.phase.as_deref(), s.reason.as_deref(), s.message.as_deref()),
        (Some("Failed"), Some("Evicted"), Some("low"))
    );
    let r = rejected(&w.pod, "OutOfcpu", "no", Timestamp::UNIX_EPOCH);
    assert_eq!((r.reason.as_deref(), r.message.as_deref()), (Some("OutOfcpu"), Some("Pod was rejected: no")));
    w.pod.status = Some(PodStatus {
        pod_ip: Some("10.1.1.1".to_owned()),
        phase: Some("Running".to_owned()),
        ..Default::default()
    });
    let kept = rejected_while_it_runs(&w.pod, r);
    assert_eq!((kept.phase.as_deref(), kept.reason.as_deref()), (Some("Failed"), Some("OutOfcpu")));
    assert_eq!(kept.pod_ip.as_deref(), Some("10.1.1.1"));
}

/// Statuses of a pod that is ended from outside: while its containers stop, and once they have.
fn ended_from_outside(policy: &str, exit_code: i32, fails: Fails, prepare: impl FnOnce(&mut World)) -> [PodStatus; 2] {
    let mut w = world(simple(policy));
    w.sandbox();
    w.container("main", RunState::Running, 0);
    prepare(&mut w);
    w.step();
    let (reason, message) = ("Preempting".to_owned(), "for another".to_owned());
    w.termination = Some(TerminationReason { reason, message, disruption: Some("room".to_owned()), fails });
    let stops = w.step();
    w.container("main", RunState::Exited, exit_code);
    w.terminal = true;
    let stopped = w.step();
    assert_eq!(conditions(&w.step()), conditions(&stopped), "the runtime's last word on it says no more");
    [stops, stopped]
}

/// Upstream's critical_pod_test.go: who exits with 0 has Succeeded, whoever asked for it.
#[test]
fn a_pod_that_is_ended_from_outside_ends_as_its_containers_do() {
    let text = |s: &PodStatus| {
        let reason = s.reason.clone().unwrap_or_default();
        assert_eq!(reason.is_empty(), s.message.is_none());
        format!("{} {reason}", s.phase.as_deref().unwrap())
    };
    for (policy, exit_code, fails, expected) in [
        ("Always", 0, Fails::UntilStopped, "Succeeded "),
        ("OnFailure", 0, Fails::UntilStopped, "Succeeded "),
        ("Never", 0, Fails::UntilStopped, "Succeeded "),
        ("Always", 143, Fails::UntilStopped, "Failed Preempting"),
        ("Never", 1, Fails::UntilStopped, "Failed Preempting"),
        ("Always", 0, Fails::ForGood, "Failed Preempting"),
        ("Never", 137, Fails::ForGood, "Failed Preempting"),
    ] {
        let [stops, stopped] = ended_from_outside(policy, exit_code, fails, |_| {});
        assert_eq!(text(&stops), "Failed Preempting");
        assert_eq!(text(&stopped), expected, "{policy} {exit_code} {fails:?}");
        for status in [stops, stopped] {
            assert!(conditions(&status).contains(&"DisruptionTarget=True/TerminationByKubelet/room".to_owned()));
        }
    }
    // What the API server was told stays.
    let told = |w: &mut World| {
        let reason = Some("Evicted".to_owned());
        w.pod.status = Some(PodStatus { phase: Some("Failed".to_owned()), reason, ..Default::default() });
    };
    let [_, stopped] = ended_from_outside("Always", 0, Fails::UntilStopped, told);
    assert_eq!((stopped.phase.as_deref(), stopped.reason.as_deref()), (Some("Failed"), Some("Evicted")));
    // A static pod does not end for good.
    let [_, stopped] = ended_from_outside("Always", 0, Fails::UntilStopped, |w| w.pod = pod(simple("Always")));
    assert_eq!((stopped.phase.as_deref(), stopped.reason.as_deref()), (Some("Failed"), Some("Preempting")));
}

#[test]
fn after_a_restart_the_api_servers_copy_goes_on() {
    let status = serde_json::json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z", "podIP": "10.88.0.9",
        "podIPs": [{"ip": "10.88.0.9"}],
        "conditions": [{"type": "Initialized", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:02Z"},
            {"type": "x.io/theirs", "status": "False", "lastTransitionTime": "2026-01-01T00:00:03Z"}],
        "containerStatuses": [{"name": "main", "image": "i", "imageID": "sha256:i", "ready": true, "started": true,
            "restartCount": 3, "containerID": "containerd://main-id",
            "state": {"running": {"startedAt": "2026-01-01T00:00:01Z"}},
            "lastState": {"terminated": {"exitCode": 9, "containerID": "containerd://gone"}}}]});
    let mut w = world(simple("Always"));
    w.pod.status = serde_json::from_value(status).unwrap();
    w.sandbox();
    w.container("main", RunState::Running, 0);
    let s = w.step();
    assert_eq!(serde_json::to_value(&s.start_time).unwrap(), "2026-01-01T00:00:00Z");
    let main = main_state(&s);
    assert_eq!((main["restartCount"].as_i64(), main["started"].as_bool()), (Some(3), Some(true)));
    assert_eq!(main["lastState"]["terminated"]["exitCode"], 9);
    let since = |kind: &str| {
        let condition = s.conditions.iter().flatten().find(|c| c.type_ == kind).unwrap();
        serde_json::to_value(&condition.last_transition_time).unwrap()
    };
    assert_eq!([since("Initialized"), since("Ready")], ["2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"]);
    assert_eq!(since("x.io/theirs"), "2026-01-01T00:00:03Z");

    // It completed, and the runtime has forgotten all of it: what was said stays said.
    let mut w = world(simple("Never"));
    let ended =
        serde_json::json!({"terminated": {"exitCode": 0, "reason": "Completed", "containerID": "containerd://x"}});
    w.pod.status = serde_json::from_value(serde_json::json!({"phase": "Succeeded", "podIP": "10.88.0.9",
        "podIPs": [{"ip": "10.88.0.9"}], "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [{"name": "main",
        "image": "i", "imageID": "sha256:i", "ready": false, "restartCount": 1, "state": ended}]}))
    .unwrap();
    let s = w.step();
    assert_eq!((s.phase.as_deref(), s.pod_ip.as_deref()), (Some("Succeeded"), Some("10.88.0.9")));
    assert_eq!((&main_state(&s)["state"], main_state(&s)["restartCount"].as_i64()), (&ended, Some(1)));
    assert_eq!(terminate(&w.pod, &s).phase.as_deref(), Some("Succeeded"));
}

#[test]
fn a_termination_message_stays_after_a_restart() {
    let mut w = world(simple("Never"));
    w.sandbox();
    w.container("main", RunState::Exited, 5);
    w.messages.insert(w.runtime.containers[0].id.clone(), "why".to_owned());
    w.terminal = true;
    let told = w.step();
    assert_eq!(main_state(&told)["state"]["terminated"]["message"], "why");
    // Nothing has been read again yet.
    w.messages.clear();
    (w.pod.status, w.old) = (Some(told), None);
    assert_eq!(main_state(&w.step())["state"]["terminated"]["message"], "why");
    // Another container's end is not this one's.
    w.container("main", RunState::Exited, 5);
    w.runtime.containers[0].id = "another".parse().unwrap();
    assert!(main_state(&w.step())["state"]["terminated"].get("message").is_none());
}

#[test]
fn addresses_by_the_family_of_the_configured_one() {
    let ips = ["fd00::5", "10.88.0.5", "10.88.0.6"];
    let (v4_first, v6_first) = (["10.88.0.5", "fd00::5"], ["fd00::5", "10.88.0.5"]);
    for (node_ip, host, pod_ips) in [
        ("", ["10.0.0.1", "fd00::1"], v4_first),
        ("", ["fd00::1", "10.0.0.1"], v4_first),
        ("::", ["fd00::1", "10.0.0.1"], v6_first),
        ("fd00::1", ["10.0.0.1", "fd00::1"], v6_first),
    ] {
        let mut w = world(simple("Always"));
        w.facts.node_ips = node_ip.parse().into_iter().collect();
        w.facts.host_ips = host.iter().map(|ip| ip.parse().unwrap()).collect();
        w.sandbox();
        w.runtime.sandboxes[0].ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        w.container("main", RunState::Running, 0);
        let s = w.step();
        assert_eq!((s.host_ip.as_deref(), s.pod_ip.as_deref()), (Some(host[0]), Some(pod_ips[0])));
        assert_eq!(s.host_ips.unwrap().iter().map(|h| h.ip.as_str()).collect::<Vec<_>>(), host);
        assert_eq!(s.pod_ips.unwrap().iter().map(|p| p.ip.as_str()).collect::<Vec<_>>(), pod_ips);
    }
}

/// After a restart as well, when the API server's copy is all that is known of what was told.
#[test]
fn a_pod_of_the_hosts_network_follows_the_nodes_addresses() {
    let told = |phase: &str| -> PodStatus {
        let ips = serde_json::json!([{"ip": "10.9.9.9"}]);
        serde_json::from_value(serde_json::json!({"phase": phase, "podIP": "10.9.9.9", "podIPs": ips})).unwrap()
    };
    let shown = |w: &mut World| {
        let ips: Vec<String> = w.step().pod_ips.into_iter().flatten().map(|ip| ip.ip).collect();
        ips.join(" ")
    };
    let spec = serde_json::json!({"hostNetwork": true, "containers": [{"name": "main", "image": "i"}]});
    let mut w = world(spec);
    w.sandbox();
    w.runtime.sandboxes[0].ips.clear();
    w.container("main", RunState::Running, 0);
    w.pod.status = Some(told("Running"));
    w.old = None;
    assert_eq!(shown(&mut w), "10.240.0.2");
    w.facts.host_ips = ["10.240.0.3", "fd00::3"].map(|ip| ip.parse().unwrap()).to_vec();
    assert_eq!(shown(&mut w), "10.240.0.3 fd00::3");
    let kept = std::mem::take(&mut w.facts.host_ips);
    assert_eq!(shown(&mut w), "10.240.0.3 fd00::3", "the node's are not known");
    w.facts.host_ips = kept;
    // What has ended had the addresses that it was told with.
    w.facts.host_ips[0] = "10.240.0.4".parse().unwrap();
    w.terminal = true;
    w.container("main", RunState::Exited, 1);
    assert_eq!(shown(&mut w), "10.240.0.3 fd00::3");
    // One of its own network keeps what was told of it while its sandbox is away.
    let mut w = world(simple("Always"));
    w.old = Some(told("Running"));
    assert_eq!(shown(&mut w), "10.9.9.9");
}

/// Where a cloud names the node's addresses they are not known before the Node is seen with them.
#[test]
fn the_hosts_addresses_stay_while_nobody_names_them() {
    let shown = |s: &PodStatus| {
        let all = s.host_ips.iter().flatten().map(|host| host.ip.as_str()).collect::<Vec<_>>();
        assert_eq!(s.host_ip.as_deref(), all.first().copied());
        all.join(" ")
    };
    let mut w = world(simple("Always"));
    w.sandbox();
    w.container("main", RunState::Running, 0);
    w.facts.host_ips.clear();
    assert_eq!(shown(&w.step()), "", "nothing is made up");
    w.old = None;
    w.pod.status = serde_json::from_value(serde_json::json!(
        {"phase": "Running", "hostIP": "10.9.9.9", "hostIPs": [{"ip": "10.9.9.9"}, {"ip": "fd00::9"}]}))
    .unwrap();
    assert_eq!(shown(&w.step()), "10.9.9.9 fd00::9", "as the API server has them");
    assert_eq!(shown(&w.step()), "10.9.9.9 fd00::9", "as they were told last");
    w.facts.host_ips = vec!["10.240.0.3".parse().unwrap()];
    assert_eq!(shown(&w.step()), "10.240.0.3");
}

#[test]
fn generations_are_those_of_the_spec_that_was_looked_at() {
    let mut w = world(simple("Always"));
    w.step();
    w.pod.metadata.generation = Some(2);
    let s = w.step();
    assert_eq!(s.observed_generation, Some(2));
    assert!(s.conditions.iter().flatten().all(|c| c.observed_generation == Some(2)));
}

#[test]
fn deadlines() {
    let mut spec = simple("Always");
    spec["activeDeadlineSeconds"] = serde_json::json!(30);
    let mut w = world(spec);
    let s = w.step();
    let at = |second| Timestamp::from_second(second).unwrap();
    assert_eq!(seconds_to_deadline(&w.pod, &s, at(1001)), Some(30));
    assert!(!is_past_deadline(&w.pod, &s, at(1030)));
    assert!(is_past_deadline(&w.pod, &s, at(1031)));
    assert_eq!(seconds_to_deadline(&w.pod, &s, at(1041)), Some(-10));
    assert_eq!(seconds_to_deadline(&w.pod, &PodStatus::default(), at(1041)), None);
    w.pod.spec.as_mut().unwrap().active_deadline_seconds = None;
    assert_eq!(seconds_to_deadline(&w.pod, &s, at(9999)), None);
}

#[test]
fn long_messages_are_shared_out() {
    let mut w = world(serde_json::json!({"containers": [{"name": "a", "image": "i"}, {"name": "main", "image": "i"}]}));
    w.container("main", RunState::Exited, 1);
    w.messages.insert(ContainerId::parse("main-id").unwrap(), "x".repeat(9000));
    let s = w.step();
    let statuses = s.container_statuses.unwrap();
    let message = |c: &ContainerStatus| c.state.as_ref().and_then(|s| s.terminated.as_ref()?.message.clone());
    assert_eq!(message(&statuses[1]).unwrap().len(), 6144);
    assert_eq!(statuses[0].name, "a");
}

proptest! {
    #[test]
    fn a_status_is_complete_and_never_leaves_an_end(
        steps in prop::collection::vec((prop::collection::vec((0usize..3, 0usize..4, 0i32..3), 0..4), any::<bool>(), any::<bool>()), 1..12),
        policy in prop_oneof![Just("Always"), Just("OnFailure"), Just("Never")],
    ) {
        let names = ["i1", "a", "b"];
        let states = [RunState::Created, RunState::Running, RunState::Exited, RunState::Unknown];
        let mut w = world(serde_json::json!({"restartPolicy": policy, "initContainers": [{"name": "i1", "image": "i"}],
            "containers": [{"name": "b", "image": "i"}, {"name": "a", "image": "i"}]}));
        let mut ended: Option<String> = None;
        let mut counts = BTreeMap::<String, i32>::new();
        for (instances, ready, terminal) in steps {
            w.runtime.containers.clear();
            for (index, (name, state, exit_code)) in instances.iter().enumerate() {
                let mut c = container_status(names[*name], states[*state], *exit_code);
                c.id = ContainerId::parse(&format!("c{index}")).unwrap();
                c.created_at = SystemTime::UNIX_EPOCH + Duration::from_secs(50 - index as u64);
                w.runtime.containers.push(c);
            }
            w.sandbox();
            if !ready { w.runtime.sandboxes[0].state = SandboxState::NotReady; }
            w.terminal = terminal;
            let before = w.old.clone();
            let s = w.step();
            let listed: Vec<_> = s.container_statuses.iter().flatten().map(|c| c.name.as_str()).collect();
            prop_assert_eq!(listed, ["a", "b"]);
            prop_assert_eq!(s.init_container_statuses.as_ref().map(Vec::len), Some(1));
            prop_assert_eq!(s.conditions.as_ref().map(Vec::len), Some(5));
            for c in s.container_statuses.iter().chain(&s.init_container_statuses).flatten() {
                let state = c.state.clone().unwrap();
                let set = [state.running.is_some(), state.waiting.is_some(), state.terminated.is_some()];
                prop_assert_eq!(set.iter().filter(|s| **s).count(), 1, "exactly one state");
                prop_assert!(!c.ready || c.name == "i1" || state.running.is_some());
                let least = counts.entry(c.name.clone()).or_default();
                prop_assert!(c.restart_count >= *least, "never counts back");
                *least = c.restart_count;
            }
            if let Some(phase) = &ended { prop_assert_eq!(s.phase.as_ref(), Some(phase)); }
            if matches!(s.phase.as_deref(), Some("Failed" | "Succeeded")) { ended = s.phase.clone(); }
            // A condition that did not change keeps its time.
            for (old, new) in before.iter().flat_map(|b| b.conditions.iter().flatten()).zip(s.conditions.iter().flatten()) {
                if old.status == new.status { prop_assert_eq!(&old.last_transition_time, &new.last_transition_time); }
            }
            let end = terminate(&w.pod, &s);
            prop_assert!(matches!(end.phase.as_deref(), Some("Failed" | "Succeeded")));
        }
    }
}

#[test]
fn a_restart_in_place_counts_once_however_often_it_is_looked_at() {
    let rule = serde_json::json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [88]}}]);
    let mut w = world(serde_json::json!({"restartPolicy": "Never",
        "initContainers": [{"name": "i", "image": "i"}, {"name": "s", "image": "i", "restartPolicy": "Always"}],
        "containers": [{"name": "a", "image": "i", "restartPolicy": "Never", "restartPolicyRules": rule}]}));
    w.sandbox();
    w.container("i", RunState::Exited, 0);
    w.container("s", RunState::Running, 0);
    w.container("a", RunState::Exited, 88);
    w.step();
    // They are removed one after another, the one that asked for it last.
    for removed in ["s", "i", "a"] {
        w.runtime.containers.retain(|c| c.name != removed);
        w.step();
        w.step();
    }
    let status = w.step();
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let seen: Vec<_> =
        all.map(|c| (c.name.as_str(), c.restart_count, c.state.clone().unwrap().waiting.is_some())).collect();
    assert_eq!(seen, [("i", 1, true), ("s", 1, true), ("a", 1, true)]);
    assert_eq!(status.phase.as_deref(), Some("Running"));
}

#[test]
fn image_volumes_tell_their_image() {
    let mut w = world(serde_json::json!({
        "volumes": [{"name": "models", "image": {"reference": "r.test/models:1"}}, {"name": "scratch", "emptyDir": {}}],
        "containers": [{"name": "main", "image": "i", "volumeMounts": [
            {"name": "models", "mountPath": "/models"}, {"name": "scratch", "mountPath": "/scratch"}]}]}));
    w.sandbox();
    w.container("main", RunState::Running, 0);
    let mount = |path: &str, image: &str| ImageMount { path: path.into(), image: image.into() };
    w.runtime.containers[0].image_volumes = vec![mount("/models", "sha256:m"), mount("/scratch", "sha256:x")];
    let mounts = |w: &mut World| w.step().container_statuses.unwrap().remove(0).volume_mounts.unwrap();
    assert!(mounts(&mut w).iter().all(|mount| mount.volume_status.is_none()), "the gate is off");
    w.facts.image_volume_digests = true;
    let told = serde_json::to_value(mounts(&mut w)).unwrap();
    assert_eq!(told[0]["volumeStatus"], serde_json::json!({"image": {"imageRef": "sha256:m"}}));
    assert_eq!(told[1].get("volumeStatus"), None);
    w.runtime.containers[0].image_volumes = vec![mount("/models", &"x".repeat(257))];
    assert_eq!(mounts(&mut w)[0].volume_status, None);
}

/// Its start was answered too late, it ran and ended all the same, and then its record was lost.
#[test]
fn a_failure_to_start_takes_back_no_end_that_was_told() {
    let mut w = world(serde_json::json!({"restartPolicy": "Never",
        "containers": [{"name": "main", "image": "i"}, {"name": "other", "image": "i"}]}));
    w.sandbox();
    w.container("main", RunState::Exited, 0);
    w.container("other", RunState::Running, 0);
    let failure = StartFailure { reason: "RunContainerError".into(), message: "no answer".into() };
    w.failures.insert("main".to_owned(), failure);
    let ended = main_state(&w.step());
    assert_eq!(ended["state"]["terminated"]["exitCode"], 0);
    w.runtime.containers.retain(|c| c.name == "other");
    assert_eq!(main_state(&w.step())["state"], ended["state"]);
    w.pod.spec.as_mut().unwrap().restart_policy = Some("Always".to_owned());
    assert_eq!(main_state(&w.step())["state"]["waiting"]["reason"], "RunContainerError");
}
