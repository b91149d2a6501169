//! Probes on a real runtime: what they find is told to the API server, and acted upon.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{Cluster, IDLE, LONG, Lab, Node, Pod, agnhost, eventually, processes};
use bulkhead_tests::history::{condition, pod_only_advances};
use bulkhead_tests::joined::{NODE, create, events, is_ready, is_true, main_of, never_back, wait_event, wait_ready};
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// A node of a cluster, and a folder that its pods see as `/w`.
struct World {
    cluster: Cluster,
    node: Node,
    signs: PathBuf,
}

impl World {
    fn start(lab: &Lab) -> Result<Self> {
        let cluster = lab.cluster()?;
        let signs = lab.folder().join("signs");
        std::fs::create_dir_all(&signs)?;
        let node = lab.node(NODE).joins(&cluster)?.start()?;
        Ok(World { cluster, node, signs })
    }

    fn create(&self, pod: Pod) -> Result<Value> {
        create(&self.cluster, pod.host_path("w", &self.signs.to_string_lossy(), "Directory", "/w"))
    }

    fn sign(&self, name: &str) -> Result<()> {
        std::fs::write(self.signs.join(name), "").with_context(|| format!("giving the sign {name}"))
    }

    fn take_back(&self, name: &str) -> Result<()> {
        std::fs::remove_file(self.signs.join(name)).with_context(|| format!("taking back the sign {name}"))
    }

    fn wait(&self, pod: &str, what: &str, wanted: impl FnMut(&Value) -> bool) -> Result<Value> {
        self.cluster.wait_for("pods", "default", pod, what, wanted)
    }

    fn history(&self, pod: &str) -> Result<Vec<Value>> {
        let history = self.cluster.history("pods", "default", pod)?;
        pod_only_advances(&history)?;
        Ok(history)
    }
}

/// A probe each second.
fn probe(action: Value, failures: u32) -> Value {
    let mut probe = action;
    probe["periodSeconds"] = json!(1);
    probe["failureThreshold"] = json!(failures);
    probe
}

fn exec(script: &str, failures: u32) -> Value {
    probe(json!({"exec": {"command": ["sh", "-c", script]}}), failures)
}

/// A pod of agnhost that serves at once.
fn agnhost_pod(name: &str, command: &[&str]) -> Pod {
    Pod::busybox(name, "")
        .container_field("image", json!(agnhost::IMAGE))
        .container_field("command", Value::Null)
        .container_field("args", json!(command))
        .container_field("env", json!([{"name": "LISTEN_AFTER_MS", "value": "0"}]))
}

#[test]
fn probes_gate_readiness_restart_containers_and_emit_events() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    agnhost::import(&lab, env!("CARGO_BIN_EXE_agnhost"))?;
    let world = World::start(&lab)?;
    let cluster = &world.cluster;

    let all = Pod::idle("all")
        .container_field("startupProbe", exec("test -e /w/started || { echo not yet; exit 1; }", 60))
        .container_field("readinessProbe", exec("test -e /w/ready", 1))
        .container_field("livenessProbe", exec("! test -e /w/sick", 1));
    let all = world.create(all)?;
    let header = json!([{"name": "X-Probe", "value": "1"}, {"name": "Host", "value": "me"}]);
    let web = agnhost_pod("web", &["netexec"])
        .container_field("ports", json!([{"name": "site", "containerPort": 8080}]))
        .container_field(
            "readinessProbe",
            probe(json!({"httpGet": {"port": "site", "path": "/healthz?a=b", "httpHeaders": header}}), 1),
        )
        .container_field(
            "livenessProbe",
            probe(json!({"httpGet": {"port": 8080, "path": "/redirect?location=http%3A%2F%2F0.0.0.0%2F"}}), 1),
        )
        .container_field("startupProbe", probe(json!({"tcpSocket": {"port": "site"}}), 60));
    let web = world.create(web)?;
    let grpc = agnhost_pod("grpc-alpha", &["grpc-health-checking"])
        .container_field("readinessProbe", probe(json!({"grpc": {"port": 5000}}), 1))
        .container_field("livenessProbe", probe(json!({"grpc": {"port": 5000, "service": "nobody"}}), 1000));
    let grpc = world.create(grpc)?;
    let closed = Pod::idle("closed")
        .container_field("readinessProbe", probe(json!({"tcpSocket": {"port": 9}}), 1))
        .container_field("livenessProbe", probe(json!({"httpGet": {"port": 9, "path": "/x"}}), 1000));
    let closed = world.create(closed)?;
    let side = json!({"name": "side", "image": world.node.image(), "restartPolicy": "Always",
        "command": ["sh", "-c", IDLE], "startupProbe": exec("test -e /w/side", 60),
        "volumeMounts": [{"name": "w", "mountPath": "/w"}]});
    world.create(Pod::idle("gated").spec("initContainers", json!([side])))?;
    // The runtime ends a command that takes too long, but not what it began in the background: that is ours to do. Some
    // of it holds the output open, some does not. Only the first try begins anything.
    let alone = probe(json!({"exec": {"command": ["sleep", "61733"]}}), 1000);
    let script = "mkdir /begun || exit 1; sleep 61731 & sleep 61734 >/dev/null 2>&1 & sleep 61732; true";
    let slow = Pod::idle("slow").container_field("readinessProbe", exec(script, 1));
    let slow = world.create(slow.container_field("livenessProbe", alone))?;

    // Startup comes before the others.
    let waits = world.wait("all", "it runs", |pod| main_of(pod)["state"]["running"].is_object())?;
    ensure!(main_of(&waits)["started"] == false && main_of(&waits)["ready"] == false, "{waits:#}");
    wait_event(cluster, &all, "Warning Unhealthy spec.containers{main} Startup probe failed: not yet\n")?;
    world.sign("ready")?;
    let still = world.wait("all", "it runs", |_| true)?;
    ensure!(main_of(&still)["ready"] == false, "{still:#}");
    world.sign("started")?;
    let ready = wait_ready(cluster, "all")?;
    ensure!(main_of(&ready)["started"] == true && main_of(&ready)["restartCount"] == 0, "{ready:#}");

    // Readiness comes and goes; liveness ends the container, once.
    world.take_back("ready")?;
    let unready = world.wait("all", "it is not ready", |pod| !is_true(pod, "Ready"))?;
    let why = condition(&unready, "ContainersReady")?;
    ensure!(
        why["reason"] == "ContainersNotReady" && why["message"] == "containers with unready status: [main]",
        "{why}"
    );
    world.sign("ready")?;
    wait_ready(cluster, "all")?;
    world.sign("sick")?;
    wait_event(
        cluster,
        &all,
        "Normal Killing spec.containers{main} Container main failed liveness probe, will be restarted (1)",
    )?;
    world.take_back("sick")?;
    world.wait("all", "it was restarted", |pod| main_of(pod)["restartCount"] == 1 && is_ready(pod))?;
    for pair in world.history("all")?.windows(2) {
        let (old, new) = (main_of(&pair[0]), main_of(&pair[1]));
        let begins = old["containerID"] != new["containerID"];
        ensure!(!begins || new["started"] != true, "started before it was asked: {new:#}");
        ensure!(new["ready"] != true || new["started"] == true, "ready before it has started: {new:#}");
    }

    // Over the network.
    wait_ready(cluster, "web")?;
    wait_event(
        cluster,
        &web,
        "Warning ProbeWarning spec.containers{main} Liveness probe warning: Probe terminated redirects, Response body: ",
    )?;
    wait_ready(cluster, "grpc-alpha")?;
    wait_event(
        cluster,
        &grpc,
        "Warning Unhealthy spec.containers{main} Liveness probe failed: error: health rpc probe failed: rpc error: code = ",
    )?;
    let ask = ["wget", "-q", "-O-", "http://127.0.0.1:8080/make-not-serving"];
    let container = world.node.wait_running("grpc", 1)?.main().id.clone();
    let (code, said) = world.node.cri()?.exec(&container, &ask)?;
    ensure!(code == 0, "{said}");
    world.wait("grpc-alpha", "it is not ready", |pod| !is_true(pod, "Ready"))?;
    let unhealthy = "Readiness probe failed: service unhealthy (responded with \"NOT_SERVING\")";
    wait_event(cluster, &grpc, &format!("Warning Unhealthy spec.containers{{main}} {unhealthy}"))?;
    let shown = world.wait("closed", "it runs", |pod| main_of(pod)["state"]["running"].is_object())?;
    let address = shown["status"]["podIP"].as_str().context("no address")?;
    let refused = format!("dial tcp {address}:9: connect: connection refused");
    wait_event(
        cluster,
        &closed,
        &format!("Warning Unhealthy spec.containers{{main}} Readiness probe failed: {refused}"),
    )?;
    let refused = format!("Liveness probe failed: Get \"http://{address}:9/x\": {refused}");
    wait_event(cluster, &closed, &format!("Warning Unhealthy spec.containers{{main}} {refused}"))?;

    // A sidecar's startup gates what comes after it.
    let gated = world.wait("gated", "its sidecar runs", |pod| {
        pod["status"]["initContainerStatuses"][0]["state"]["running"].is_object()
    })?;
    ensure!(main_of(&gated)["state"]["waiting"]["reason"] == "PodInitializing", "{gated:#}");
    world.sign("side")?;
    wait_ready(cluster, "gated")?;

    // Time is up: a failure, and the command is ended before the next one begins.
    let commands = |mark: &str| -> Vec<_> {
        processes::all().into_iter().filter(|(_, line)| line.iter().any(|one| one.starts_with(mark))).collect()
    };
    let late = "Liveness probe failed: command timed out: \"sleep 61733\" timed out after 1s";
    wait_event(cluster, &slow, &format!("Warning Unhealthy spec.containers{{main}} {late}"))?;
    ensure!(commands("61733").len() <= 1, "{:?}", commands("61733"));
    let line = format!(
        "Warning Unhealthy spec.containers{{main}} Readiness probe failed: command timed out: \"sh -c {script}\" timed out after 1s"
    );
    wait_event(cluster, &slow, &line)?;
    // Nothing begins them again, so that what is left would stay.
    for mark in ["61731", "61732", "61734"] {
        eventually("what a probe began is ended", LONG, || {
            ensure!(commands(mark).is_empty(), "{:?}", commands(mark));
            Ok(())
        })?;
    }
    cluster.delete("pods", "default", "slow", None)?;
    cluster.wait_gone("pods", "default", "slow")?;
    ensure!(commands("6173").is_empty(), "{:?}", commands("6173"));
    world.node.finish()
}

/// However much probes have to say of a pod: what is told of it, and of the others, comes through.
#[test]
fn long_output_of_probes_holds_nothing_up() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let world = World::start(&lab)?;
    let mut pod =
        (1..6).fold(Pod::idle("talker"), |pod, more| pod.and_container(&format!("c{more}"), IDLE)).value().clone();
    let talks = exec("test -e /w/ready && exit 0; head -c 10000 /dev/zero | tr '\\0' x; exit 1", 3);
    for container in pod["spec"]["containers"].as_array_mut().context("no containers")? {
        container["readinessProbe"] = talks.clone();
        container["volumeMounts"] = json!([{"name": "w", "mountPath": "/w"}]);
    }
    pod["spec"]["volumes"] = json!([{"name": "w", "hostPath": {"path": world.signs, "type": "Directory"}}]);
    let talker = create(&world.cluster, Pod::from_value(pod))?;
    let uid = talker["metadata"]["uid"].as_str().context("no uid")?;
    // As many as are kept, each of which had more to say than a message between processes has room for with the others.
    eventually("it has said much", LONG, || {
        let pods = world.node.agent()?.pods()?;
        let events = &pods.iter().find(|pod| pod.uid == uid).context("no such pod")?.recent_events;
        let unhealthy = events.iter().filter(|event| event.reason == "Unhealthy").count();
        ensure!(unhealthy > 30, "{unhealthy}");
        Ok(())
    })?;
    let told =
        wait_event(&world.cluster, &talker, "Warning Unhealthy spec.containers{main} Readiness probe failed: xxx")?;
    ensure!(told.len() > 10_000, "the API server is told the whole: {} bytes", told.len());
    world.create(Pod::idle("other"))?;
    wait_ready(&world.cluster, "other")?;
    world.sign("ready")?;
    wait_ready(&world.cluster, "talker")?;
    for name in ["talker", "other"] {
        world.cluster.delete("pods", "default", name, Some(1))?;
        world.cluster.wait_gone("pods", "default", name)?;
    }
    world.node.finish()
}

#[test]
fn readiness_outlives_a_restart_and_goes_on_while_a_pod_ends() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let world = World::start(&lab)?;
    let cluster = &world.cluster;
    for sign in ["ready", "well"] {
        world.sign(sign)?;
    }
    let ends = "trap 'rm /w/well; touch /w/asked; while test -e /w/asked; do sleep 0.1; done; exit 0' TERM; \
                while true; do sleep 0.1; done";
    // A slow machine is no reason to kill it: each command has its time.
    let patient = |mut probe: Value| {
        probe["timeoutSeconds"] = json!(10);
        probe
    };
    let steady = Pod::idle("steady-alpha")
        .container_field("startupProbe", patient(exec("test -e /w/ready", 60)))
        .container_field("readinessProbe", patient(exec("test -e /w/ready", 2)))
        .container_field("livenessProbe", patient(exec("test -e /w/ready -o -e /w/gone", 2)));
    let steady = world.create(steady)?;
    let ending = Pod::busybox("ending", ends)
        .spec("terminationGracePeriodSeconds", json!(60))
        .container_field("readinessProbe", exec("test -e /w/well", 1))
        .container_field("livenessProbe", exec("test -e /w/well", 1));
    let ending = world.create(ending)?;
    // Not ready, and not because of a restart.
    world.create(Pod::idle("never").container_field("readinessProbe", exec("exit 1", 1)))?;
    let mut node = world.node;
    for pod in ["steady-alpha", "ending"] {
        wait_ready(cluster, pod)?;
    }
    for _ in 0..3 {
        node.kill_daemon("kubelet-syncd")?;
        node.wait_healthy()?;
        node.wait_pod("steady", "it is known again", |pod| pod.phase == "Running")?;
    }
    // What it finds now is told: it is probed again.
    std::fs::write(world.signs.join("gone"), "")?;
    std::fs::remove_file(world.signs.join("ready"))?;
    cluster.wait_for("pods", "default", "steady-alpha", "it is not ready", |pod| !is_true(pod, "Ready"))?;
    never_back(cluster, "steady-alpha")?;
    let changes: Vec<bool> = cluster
        .history("pods", "default", "steady-alpha")?
        .iter()
        .map(|pod| main_of(pod)["ready"] == true)
        .fold(Vec::new(), |mut all, ready| {
            if all.last() != Some(&ready) {
                all.push(ready);
            }
            all
        });
    ensure!(changes == [false, true, false], "readiness changed {} times", changes.len() - 1);
    let now = cluster.get("pods", "default", "steady-alpha")?;
    ensure!(main_of(&now)["restartCount"] == 0, "{now:#}");
    let told = events(cluster, &steady)?;
    ensure!(!told.iter().any(|line| line.contains(" Killing ")), "it was killed: {told:#?}");
    let never = cluster.history("pods", "default", "never")?;
    ensure!(never.iter().all(|pod| main_of(pod)["ready"] != true), "a pod that never was ready was told as ready");

    // The end: readiness goes, liveness does nothing.
    cluster.delete("pods", "default", "ending", None)?;
    let told = cluster.wait_for("pods", "default", "ending", "it is not ready while it ends", |pod| {
        pod["metadata"]["deletionTimestamp"].is_string() && !is_true(pod, "Ready")
    })?;
    ensure!(main_of(&told)["state"]["running"].is_object() && told["status"]["phase"] == "Running", "{told:#}");
    ensure!(main_of(&told)["started"] == true && main_of(&told)["ready"] == false, "{told:#}");
    eventually("the sign that it was asked to end", LONG, || {
        ensure!(world.signs.join("asked").exists());
        Ok(())
    })?;
    std::fs::remove_file(world.signs.join("asked"))?;
    cluster.wait_gone("pods", "default", "ending")?;
    wait_event(cluster, &ending, "Warning Unhealthy spec.containers{main} Readiness probe failed")?;
    let lines = events(cluster, &ending)?;
    ensure!(!lines.iter().any(|line| line.contains("failed liveness probe")), "{lines:#?}");
    ensure!(lines.iter().filter(|line| line.contains(" Started ")).count() == 1, "{lines:#?}");
    node.finish()
}
