//! The table by a few lives of pods.

use serde_json::{Value, json};

use super::*;
use kubelet_model::fixtures::uid;

const SECOND: Duration = Duration::from_secs(1);

fn pod(spec: Value) -> Pod {
    let metadata = json!({"name": "p", "namespace": "ns", "uid": uid().as_str()});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn status(phase: &str, containers: &[Value], init: &[Value]) -> PodStatus {
    let all =
        json!({"phase": phase, "podIP": "10.0.0.9", "containerStatuses": containers, "initContainerStatuses": init});
    serde_json::from_value(all).unwrap()
}

fn container(name: &str, id: &str, started: bool, state: Value) -> Value {
    json!({"name": name, "containerID": format!("containerd://{id}"), "started": started, "ready": false, "image": "",
        "imageID": "", "restartCount": 0, "state": state})
}

fn running(name: &str, id: &str, started: bool) -> Value {
    container(name, id, started, json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}}))
}

struct World {
    table: Table,
    registry: prometheus::Registry,
    start: Instant,
}

impl World {
    fn new(restored: Restored) -> Self {
        let (start, registry) = (Instant::now(), prometheus::Registry::new());
        // The process has run for long: no probe waits for a random time.
        let began = Started { instant: start - SECOND * 999, time: SystemTime::UNIX_EPOCH };
        World { table: Table::new(began, ProbeMetrics::register(&registry).unwrap(), restored), registry, start }
    }

    fn due(&mut self, seconds: u32) -> Vec<(WorkerId, Attempt)> {
        self.table.due(self.start + SECOND * seconds, SystemTime::now())
    }

    fn done(&mut self, worker: WorkerId, outcome: Outcome, seconds: u32) -> Option<String> {
        let event = self.table.done(worker, outcome, SECOND, self.start + SECOND * seconds)?;
        Some(format!("{} {} {}", event.reason, event.field_path, event.message))
    }

    fn results(&self, name: &str, id: &str) -> [Option<ProbeResult>; 3] {
        let mut instance =
            kubelet_model::fixtures::container_status(name, kubelet_model::pod::model::RunState::Running, 0);
        instance.id = ContainerId::parse(id).unwrap();
        let runtime = RuntimePod { containers: vec![instance.clone()], ..RuntimePod::default() };
        let results = self.table.results(&uid(), &runtime);
        [&results.startup, &results.readiness, &results.liveness].map(|list| list.get(&instance.id).copied())
    }

    fn changed(&mut self) -> usize {
        self.table.to_save(true).map_or(0, |(_, pods)| pods.len())
    }
}

const TCP: &str = r#"{"tcpSocket": {"port": 80}, "periodSeconds": 2, "failureThreshold": 2}"#;

fn probe() -> Value {
    serde_json::from_str(TCP).unwrap()
}

#[test]
fn startup_then_readiness_at_once() {
    let mut world = World::new(Restored::default());
    let pod = pod(json!({"containers": [{"name": "c", "startupProbe": probe(), "readinessProbe": probe()}]}));
    world.table.add(&uid(), &pod, world.start, || 0.0);
    world.table.add(&uid(), &pod, world.start, || 0.0);
    assert_eq!(world.table.len(), 2);
    assert!(world.due(0).is_empty(), "nothing is known of the pod");
    let now = world.start + SECOND;
    world.table.observe(&uid(), &pod, &status("Running", &[running("c", "a", false)], &[]), now);
    assert!(world.due(1).is_empty());
    let due = world.due(2);
    assert_eq!(due.len(), 1);
    assert_eq!((due[0].1.container.as_str(), due[0].1.ip.as_str()), ("a", "10.0.0.9"));
    assert_eq!(world.results("c", "a"), [Some(ProbeResult::Unknown), Some(ProbeResult::Failure), None]);
    assert_eq!(world.changed(), 0, "initial values are no news");
    let event = world.done(due[0].0, Outcome::Failure("x".to_owned()), 2);
    assert_eq!(event.unwrap(), "Unhealthy spec.containers{c} Startup probe failed: x");
    let again = world.due(4);
    assert_eq!(world.done(again[0].0, Outcome::Success, 4), None);
    assert_eq!((world.results("c", "a")[0], world.changed()), (Some(ProbeResult::Success), 1));
    // The status shows it; readiness does not wait for its own beat.
    let now = world.start + SECOND * 9 / 2;
    assert!(world.table.observe(&uid(), &pod, &status("Running", &[running("c", "a", true)], &[]), now));
    let ready = world.table.due(now, SystemTime::now());
    assert_eq!(ready.len(), 1);
    // A look while it is probed makes it probe again.
    world.table.observe(&uid(), &pod, &status("Running", &[running("c", "a", true)], &[]), now);
    world.done(ready[0].0, Outcome::Warning("w".to_owned()), 5).unwrap();
    assert_eq!((world.results("c", "a")[1], world.changed()), (Some(ProbeResult::Success), 1));
    assert_eq!(world.due(5).len(), 1);
}

#[test]
fn only_a_probe_of_the_pods_address_waits_for_it() {
    let mut world = World::new(Restored::default());
    let exec = json!({"exec": {"command": ["true"]}});
    let elsewhere = json!({"httpGet": {"port": 80, "host": "127.0.0.1"}});
    let pod =
        pod(json!({"containers": [{"name": "c", "livenessProbe": exec, "readinessProbe": elsewhere}, {"name": "d",
        "readinessProbe": probe()}]}));
    let mut seen = status("Running", &[running("c", "a", true), running("d", "b", true)], &[]);
    seen.pod_ip = None;
    seen.pod_ips = None;
    world.table.add(&uid(), &pod, world.start, || 0.0);
    world.table.observe(&uid(), &pod, &seen, world.start);
    let due = world.due(1);
    let probed: Vec<_> = due.iter().map(|(_, attempt)| attempt.container.as_str().to_owned()).collect();
    assert_eq!(probed, ["a", "a"], "{due:?}");
    seen.pod_ip = Some("10.0.0.9".to_owned());
    world.table.observe(&uid(), &pod, &seen, world.start + SECOND);
    let later = world.due(3);
    assert!(later.iter().any(|(_, attempt)| attempt.container.as_str() == "b"), "{later:?}");
}

/// As before a cloud has named the Node's addresses.
#[test]
fn a_pod_of_the_machines_network_without_an_address_is_probed_there() {
    let spec =
        |host_network| json!({"hostNetwork": host_network, "containers": [{"name": "c", "readinessProbe": probe()}]});
    let mut seen = status("Running", &[running("c", "a", true)], &[]);
    for (host_network, ip, expected) in [
        (true, None, "127.0.0.1"),
        (true, Some(""), "127.0.0.1"),
        (true, Some("10.0.0.9"), "10.0.0.9"),
        (false, None, ""),
        (false, Some("10.0.0.9"), "10.0.0.9"),
    ] {
        seen.pod_ip = ip.map(str::to_owned);
        let pod = pod(spec(host_network));
        let mut world = World::new(Restored::default());
        world.table.add(&uid(), &pod, world.start, || 0.0);
        world.table.observe(&uid(), &pod, &seen, world.start);
        let asked: Vec<String> = world.due(1).into_iter().map(|(_, attempt)| attempt.ip).collect();
        let wanted: Vec<&str> = Some(expected).filter(|ip| !ip.is_empty()).into_iter().collect();
        assert_eq!(asked, wanted, "{host_network} {ip:?}");
    }
}

#[test]
fn liveness_fails_once_for_an_instance() {
    let mut world = World::new(Restored::default());
    let pod = pod(json!({"containers": [{"name": "c", "livenessProbe": probe()}]}));
    world.table.observe(&uid(), &pod, &status("Running", &[running("c", "a", true)], &[]), world.start);
    world.table.add(&uid(), &pod, world.start, || 0.0);
    for seconds in [0, 2] {
        assert_eq!(world.changed(), 0);
        let due = world.due(seconds);
        world.done(due[0].0, Outcome::Failure(String::new()), seconds);
    }
    assert_eq!((world.results("c", "a")[2], world.changed()), (Some(ProbeResult::Failure), 1));
    assert!(world.due(20).is_empty(), "on hold");
    let text = {
        let mut text = Vec::new();
        prometheus::Encoder::encode(&prometheus::TextEncoder::new(), &world.registry.gather(), &mut text).unwrap();
        String::from_utf8(text).unwrap()
    };
    assert!(text.contains("probe_type=\"Liveness\",result=\"failed\"} 2"), "{text}");
    // An error of the prober counts for nothing.
    world.table.observe(&uid(), &pod, &status("Running", &[running("c", "b", true)], &[]), world.start);
    for seconds in [22, 24, 26] {
        let due = world.due(seconds);
        let outcome = Outcome::Error { state: "unknown", text: "gone".to_owned() };
        let event = world.done(due[0].0, outcome, seconds).unwrap();
        assert!(event.ends_with("Liveness probe errored and resulted in unknown state: gone"), "{event}");
    }
    assert_eq!(world.results("c", "b")[2], Some(ProbeResult::Success));
    world.table.forget(&uid());
    assert!(world.table.is_empty() && world.registry.gather().is_empty() && world.table.next().is_none());
}

#[test]
fn the_end_of_a_pod() {
    let mut world = World::new(Restored::default());
    let all = json!({"startupProbe": probe(), "readinessProbe": probe(), "livenessProbe": probe()});
    let named = |name: &str, more: Value| {
        let mut container = all.clone();
        container["name"] = json!(name);
        more.as_object().into_iter().flatten().for_each(|(key, value)| container[key] = value.clone());
        container
    };
    let pod = pod(json!({"containers": [named("c", json!({}))], "initContainers": [
        named("side", json!({"restartPolicy": "Always"})), named("init", json!({}))]}));
    world.table.add(&uid(), &pod, world.start, || 0.0);
    assert_eq!(world.table.len(), 6, "an init container that ends is not probed");
    world.table.stop_liveness_and_startup(&uid());
    assert_eq!(world.table.len(), 4);
    let both = status("Running", &[running("c", "a", true)], &[running("side", "s", true)]);
    let mut deleted = pod.clone();
    deleted.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    world.table.observe(&uid(), &deleted, &both, world.start);
    assert_eq!(world.due(0).len(), 2, "both are still probed for readiness");
    assert_eq!(world.table.len(), 2, "the sidecar's others have ended by themselves");
    world.table.remove(&uid());
    assert!(world.table.is_empty());
}

#[test]
fn a_container_that_has_ended_for_good_is_left_alone() {
    let mut world = World::new(Restored::default());
    let pod =
        pod(json!({"restartPolicy": "Never", "containers": [{"name": "c", "readinessProbe": probe()}, {"name": "d"}]}));
    world.table.observe(&uid(), &pod, &status("Running", &[running("c", "a", true)], &[]), world.start);
    world.table.add(&uid(), &pod, world.start, || 0.0);
    let due = world.due(0);
    world.done(due[0].0, Outcome::Success, 0);
    assert_eq!(world.changed(), 1);
    let ended = container("c", "a", false, json!({"terminated": {"exitCode": 1}}));
    world.table.observe(&uid(), &pod, &status("Running", &[ended], &[]), world.start);
    assert!(world.due(2).is_empty());
    assert_eq!((world.changed(), world.table.len()), (1, 0));
    world.table.add(&uid(), &pod, world.start, || 0.0);
    assert_eq!(world.table.len(), 0);
}

#[test]
fn a_restart_of_this_process() {
    let mut world = World::new(Restored::default());
    let pod = pod(json!({"containers": [{"name": "c", "readinessProbe": probe(), "startupProbe": probe()}]}));
    let up = |started| status("Running", &[running("c", "a", started)], &[]);
    world.table.observe(&uid(), &pod, &up(false), world.start);
    world.table.add(&uid(), &pod, world.start, || 0.0);
    let startup = world.due(0);
    world.done(startup[0].0, Outcome::Success, 0);
    world.table.observe(&uid(), &pod, &up(true), world.start);
    let readiness = world.due(0);
    world.done(readiness[0].0, Outcome::Success, 0);
    assert_eq!(world.table.take_untold(), HashSet::from([uid()]));
    let (json, untold) = world.table.to_save(true).expect("what is told early is kept later");
    assert_eq!(untold, HashSet::new());
    let steady = world.due(2);
    world.done(steady[0].0, Outcome::Success, 2);
    assert!(world.table.to_save(true).is_none(), "a steady probe writes nothing");

    let mut next = World::new(Restored::from_json(&json));
    let all_well = [Some(ProbeResult::Success), Some(ProbeResult::Success), None];
    assert_eq!(next.results("c", "a"), all_well, "before anything else is known");
    next.table.add(&uid(), &pod, next.start, || 0.0);
    next.table.observe(&uid(), &pod, &up(true), next.start);
    let due = next.due(0);
    assert_eq!((due.len(), next.results("c", "a"), next.changed()), (1, all_well, 0));
    next.done(due[0].0, Outcome::Failure(String::new()), 0);
    assert_eq!(next.results("c", "a"), all_well, "one failure of two");
}

#[test]
fn the_first_beats_of_a_new_process_are_spread() {
    let mut world = World::new(Restored::default());
    world.table.began.instant = world.start;
    let pod = pod(json!({"containers": [{"name": "c", "readinessProbe": probe()}]}));
    world.table.add(&uid(), &pod, world.start, || 0.75);
    world.table.observe(&uid(), &pod, &status("Running", &[running("c", "a", true)], &[]), world.start);
    assert_eq!(world.table.next(), Some(world.start + SECOND * 3 / 2));
}

#[test]
fn what_a_probe_has_come_to_is_said_in_upstreams_words() {
    use ProbeResult::{Failure, Success, Unknown};
    let of = |kind| [Success, Failure, Unknown].map(|result| status_word(kind, result));
    assert_eq!(of(ProbeKind::Liveness), [None, Some("unhealthy"), None]);
    assert_eq!(of(ProbeKind::Readiness), [Some("ready"), Some("not ready"), Some("not ready")]);
    assert_eq!(of(ProbeKind::Startup), [Some("started"), Some("unhealthy"), Some("unhealthy")]);
}
