//! Lifecycle hooks on a real runtime, by the traces that containers leave of them and by what the API server shows.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{Cluster, IDLE, LONG, Lab, Node, Pod, agnhost, eventually};
use bulkhead_tests::history::pod_only_advances;
use bulkhead_tests::joined::{NODE, create, events, main_of, wait_event, wait_ready};
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// A node of a cluster, and a folder that its pods see as `/w`.
struct World {
    cluster: Cluster,
    node: Node,
    traces: PathBuf,
}

impl World {
    fn start(lab: &Lab) -> Result<Self> {
        let cluster = lab.cluster()?;
        let traces = lab.folder().join("traces");
        std::fs::create_dir_all(&traces)?;
        let node = lab.node(NODE).joins(&cluster)?.config("clusterDNS", json!(["10.96.0.10"])).start()?;
        Ok(World { cluster, node, traces })
    }

    /// Creates a pod whose containers leave traces.
    fn create(&self, pod: Pod, grace: i64) -> Result<Value> {
        let pod = pod.spec("terminationGracePeriodSeconds", json!(grace));
        let folder = self.traces.to_string_lossy();
        let mut pod = pod.host_path("w", &folder, "Directory", "/w").value().clone();
        for container in pod["spec"]["initContainers"].as_array_mut().into_iter().flatten() {
            container["image"] = json!(self.node.image());
            container["volumeMounts"] = json!([{"name": "w", "mountPath": "/w"}]);
        }
        create(&self.cluster, Pod::from_value(pod))
    }

    fn traces(&self, file: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.traces.join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn wait_trace(&self, file: &str, line: &str) -> Result<()> {
        eventually("the trace of a hook", LONG, || {
            let seen = self.traces(file);
            ensure!(seen.iter().any(|one| one == line), "no {line:?} in {file}: {seen:?}");
            Ok(())
        })
    }

    /// The first version of the pod that tells of a failed postStart; the pause before the next start takes its place.
    fn wait_failed(&self, pod: &str) -> Result<Value> {
        eventually("the hook's failure", LONG, || {
            let told = |pod: &Value| main_of(pod)["state"]["waiting"]["reason"] == "PostStartHookError";
            self.history(pod)?.into_iter().find(told).context("nothing tells of it")
        })
    }

    fn delete(&self, pod: &str, grace: Option<i64>) -> Result<()> {
        self.cluster.delete("pods", "default", pod, grace)
    }

    fn wait_gone(&self, pod: &str) -> Result<()> {
        self.cluster.wait_gone("pods", "default", pod)
    }

    fn history(&self, pod: &str) -> Result<Vec<Value>> {
        let history = self.cluster.history("pods", "default", pod)?;
        pod_only_advances(&history)?;
        Ok(history)
    }
}

fn exec(script: &str) -> Value {
    json!({"exec": {"command": ["sh", "-c", script]}})
}

/// Leaves a trace when it is asked to end, and ends.
fn tells(file: &str, what: &str) -> String {
    format!("trap 'echo {what} >> /w/{file}; exit 0' TERM; while true; do sleep 3600 & wait $!; done")
}

/// Does not end when it is asked to.
const STUBBORN: &str = "trap '' TERM; while true; do sleep 3600; done";
/// The same, with a trace of it.
const ASKED: &str = "trap 'echo asked >> /w/asked' TERM; while true; do sleep 3600 & wait $!; done";

#[test]
fn hooks_run_in_their_order_and_tell_of_their_failures() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let world = World::start(&lab)?;
    let cluster = &world.cluster;

    // A sidecar beside a container, both with hooks.
    let side = json!({"name": "side", "restartPolicy": "Always", "command": ["sh", "-c", tells("order", "side stops")],
        "lifecycle": {"preStop": exec("echo side hook >> /w/order")}});
    let hooks = json!({"postStart": exec("sleep 1; echo started >> /w/order"),
        "preStop": exec("echo main hook >> /w/order; sleep 1; echo main hook ends >> /w/order")});
    let order = Pod::busybox("order", &tells("order", "main stops"))
        .container_field("lifecycle", hooks)
        .spec("initContainers", json!([side]));
    let order = world.create(order, 20)?;
    // Hooks that last until they are let go: more of them than pods may start at a time.
    let wait = json!({"postStart": exec("echo waits >> /w/slow; while ! [ -e /w/go ]; do sleep 0.1; done")});
    let slow = ["slow-0", "slow-1", "slow-2", "slow-3", "slow-4"];
    for pod in slow {
        world.create(Pod::idle(pod).container_field("lifecycle", wait.clone()), 5)?;
    }
    let broken = json!({"postStart": exec("echo no; exit 9"), "preStop": exec("echo broken >> /w/broken; exit 3")});
    let broken = world.create(Pod::idle("broken").container_field("lifecycle", broken), 5)?;
    let stuck = world.create(
        Pod::idle("stuck")
            .container_field("lifecycle", json!({"postStart": exec("echo stuck >> /w/stuck; sleep 3600")})),
        30,
    )?;

    let pod = wait_ready(cluster, "order")?;
    ensure!(world.traces("order") == ["started"], "{:?}", world.traces("order"));
    let slow_hooks = || world.traces("slow").len();
    eventually("the slow hooks run", LONG, || {
        ensure!(slow_hooks() == slow.len(), "{} run", slow_hooks());
        Ok(())
    })?;
    // Somebody else starts while they do, and nobody is told that they run.
    create(cluster, Pod::idle("bystander"))?;
    wait_ready(cluster, "bystander")?;
    for name in slow {
        let pod = cluster.get("pods", "default", name)?;
        let waiting = &main_of(&pod)["state"]["waiting"]["reason"];
        ensure!(pod["status"]["phase"] == "Pending" && waiting == "ContainerCreating", "{:#}", pod["status"]);
        ensure!(main_of(&pod)["started"] == false && main_of(&pod)["ready"] == false, "{:#}", pod["status"]);
    }
    std::fs::write(world.traces.join("go"), "")?;
    for name in slow {
        wait_ready(cluster, name)?;
    }

    // A failed postStart ends its container, after its preStop.
    let shown = world.wait_failed("broken")?;
    let who = format!("broken_default({})", broken["metadata"]["uid"].as_str().context("no uid")?);
    let text = "sh -c echo no; exit 9";
    let message = format!(
        "Exec lifecycle hook ([{text}]) for Container \"main\" in Pod \"{who}\" failed - error: command '{text}' exited with 9: , message: \"no\\n\""
    );
    ensure!(main_of(&shown)["state"]["waiting"]["message"] == message.as_str(), "{:#}", shown["status"]);
    ensure!(main_of(&shown)["lastState"]["terminated"]["exitCode"] == 0, "{:#}", shown["status"]);
    for line in [
        "Warning FailedPostStartHook spec.containers{main} PostStartHook failed",
        "Normal Killing spec.containers{main} FailedPostStartHook",
        "Warning FailedPreStopHook spec.containers{main} PreStopHook failed",
    ] {
        wait_event(cluster, &broken, line)?;
    }
    ensure!(world.traces("broken").first().is_some_and(|line| line == "broken"), "preStop did not run");

    // A pod whose postStart never ends goes when it is deleted, and its hook has not failed.
    world.wait_trace("stuck", "stuck")?;
    world.delete("stuck", None)?;
    world.delete("order", None)?;
    world.wait_gone("stuck")?;
    wait_event(cluster, &stuck, "Normal Killing spec.containers{main} Stopping container main")?;
    let told = events(cluster, &stuck)?;
    ensure!(told.iter().all(|line| !line.contains("Failed")), "{told:#?}");

    world.wait_gone("order")?;
    let traces = world.traces("order");
    let at = |line: &str| traces.iter().position(|one| one == line).with_context(|| format!("no {line:?}: {traces:?}"));
    ensure!(traces.len() == 6, "{traces:?}");
    ensure!(at("side hook")? < at("main hook ends")?, "the sidecar's hook waited: {traces:?}");
    ensure!(at("main hook")? < at("main hook ends")? && at("main hook ends")? < at("main stops")?, "{traces:?}");
    ensure!(at("main stops")? < at("side stops")?, "the sidecar did not stop last: {traces:?}");
    ensure!(!events(cluster, &pod)?.iter().any(|line| line.contains("Hook")), "{:#?}", events(cluster, &order)?);
    for pod in ["order", "slow-0", "broken"] {
        world.history(pod)?;
    }
    world.node.finish()
}

#[test]
fn pre_stop_runs_once_while_the_grace_period_shrinks_and_processes_restart() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let world = World::start(&lab)?;
    let cluster = &world.cluster;
    let hook = |file: &str, then: &str| json!({"preStop": exec(&format!("echo runs >> /w/{file}; {then}"))});
    let pods = [
        ("shrinks", hook("shrinks", "sleep 3600"), STUBBORN),
        ("forced", hook("forced", "sleep 3600"), STUBBORN),
        ("survives", hook("survives", "true"), ASKED),
        ("sleeps", json!({"preStop": {"sleep": {"seconds": 3600}}}), IDLE),
        ("naps", json!({"preStop": {"sleep": {"seconds": 0}}}), IDLE),
    ];
    let mut created = Vec::new();
    for (name, lifecycle, script) in pods {
        let pod = Pod::busybox(name, script).container_field("lifecycle", lifecycle);
        created.push(world.create(pod, 3700)?);
    }
    for name in ["shrinks", "forced", "survives", "sleeps", "naps"] {
        wait_ready(cluster, name)?;
    }
    for name in ["shrinks", "forced", "survives", "sleeps"] {
        world.delete(name, None)?;
    }
    for name in ["shrinks", "forced", "survives"] {
        world.wait_trace(name, "runs")?;
    }
    // The hook of one has ended: its container has been asked to end.
    world.wait_trace("asked", "asked")?;
    world.node.kill_daemon("kubelet-syncd")?;
    // Two hooks were cut off with the process, and are made again by the next.
    for name in ["shrinks", "forced"] {
        eventually("the hook is made again", LONG, || {
            ensure!(world.traces(name) == ["runs", "runs"], "{:?}", world.traces(name));
            Ok(())
        })?;
    }
    // An hour becomes two seconds, and nothing.
    world.delete("shrinks", Some(2))?;
    world.delete("sleeps", Some(2))?;
    world.delete("forced", Some(0))?;
    world.delete("survives", Some(2))?;
    world.delete("naps", None)?;
    for name in ["shrinks", "forced", "survives", "sleeps", "naps"] {
        world.wait_gone(name)?;
    }
    eventually("the runtime has nothing of them", LONG, || {
        let left = world.node.cri()?.sandboxes()?.len();
        ensure!(left == 0, "{left} sandboxes");
        Ok(())
    })?;
    for (name, times) in [("shrinks", 2), ("forced", 2), ("survives", 1)] {
        ensure!(world.traces(name).len() == times, "{name}: {:?}", world.traces(name));
    }
    for (index, code) in [(0, 137), (3, 0), (4, 0)] {
        let name = created[index]["metadata"]["name"].as_str().context("no name")?;
        let history = world.history(name)?;
        let last = history.last().context("no version")?;
        ensure!(main_of(last)["state"]["terminated"]["exitCode"] == code, "{name}: {:#}", last["status"]);
    }
    // Cut off by the end of its grace period.
    for index in [0, 3] {
        wait_event(cluster, &created[index], "Warning FailedPreStopHook spec.containers{main} PreStopHook failed (1)")?;
    }
    let napped = events(cluster, &created[4])?;
    ensure!(!napped.iter().any(|line| line.contains("Hook")), "{napped:#?}");
    world.node.finish()
}

#[test]
fn hooks_make_requests() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    agnhost::import(&lab, env!("CARGO_BIN_EXE_agnhost"))?;
    let world = World::start(&lab)?;
    let cluster = &world.cluster;
    let server = |name: &str, arguments: Value, port: u16| {
        let container = json!([{"name": "main", "image": agnhost::IMAGE, "imagePullPolicy": "Never", "args": arguments,
            "env": [{"name": "LISTEN_AFTER_MS", "value": "0"}], "ports": [{"name": "web", "containerPort": port}]}]);
        Pod::empty(name).spec("containers", container)
    };
    let tls = ["netexec", "--http-port=9090", "--udp-port=-1", "--tls-cert-file=/localhost.crt"];
    let tls = json!([&tls[..], &["--tls-private-key-file=/localhost.key"]].concat());
    let plain = create(cluster, server("plain", json!(["netexec", "--http-port=8080", "--udp-port=-1"]), 8080))?;
    let tls = create(cluster, server("tls", tls, 9090))?;
    let address = |pod: &str| -> Result<String> {
        Ok(wait_ready(cluster, pod)?["status"]["podIP"].as_str().context("no podIP")?.to_owned())
    };
    let (to_plain, to_tls) = (address("plain")?, address("tls")?);
    let get = |host: &str, port: u16, scheme: &str, path: &str| {
        json!({"httpGet": {"host": host, "port": port, "scheme": scheme, "path": path,
            "httpHeaders": [{"name": "Authorization", "value": "secret"}]}})
    };
    // Both servers are asked, one of them without the encryption that the hook wants of it; any answer will do.
    let hooked = Pod::idle("hooked").container_field(
        "lifecycle",
        json!({
            "postStart": get(&to_plain, 8080, "HTTP", "/echo?msg=poststart&code=500"),
            "preStop": get(&to_tls, 9090, "HTTPS", "/echo?msg=prestop"),
        }),
    );
    let fallback = Pod::idle("fallback").container_field(
        "lifecycle",
        json!({
            "postStart": get(&to_plain, 8080, "HTTPS", "/echo?msg=fallback"),
        }),
    );
    let refused = Pod::idle("refused")
        .container_field(
            "lifecycle",
            json!({
        "postStart": {"httpGet": {"port": "web", "path": "/x"}}}),
        )
        .container_field("ports", json!([{"name": "web", "containerPort": 81}]));
    create(cluster, hooked)?;
    let fallback = create(cluster, fallback)?;
    let refused = create(cluster, refused)?;
    for name in ["hooked", "fallback"] {
        wait_ready(cluster, name)?;
    }
    let line = world.node.wait_for_log_of(&plain, "main", "/echo?msg=poststart&code=500")?;
    let said = line.lines().find(|line| line.contains("poststart")).unwrap_or_default();
    ensure!(said.contains("GET ") && said.contains("kube-lifecycle/1.36") && said.contains("secret"), "{said}");
    let line = world.node.wait_for_log_of(&plain, "main", "/echo?msg=fallback")?;
    let said = line.lines().find(|line| line.contains("fallback")).unwrap_or_default();
    ensure!(!said.contains("secret"), "credentials went in plain: {said}");
    let told = format!(
        "Warning LifecycleHTTPFallback  request to HTTPS lifecycle hook {to_plain}:8080 got HTTP response, retry with HTTP succeeded"
    );
    wait_event(cluster, &fallback, &told)?;
    let shown = world.wait_failed("refused")?;
    let message = main_of(&shown)["state"]["waiting"]["message"].as_str().unwrap_or_default();
    let who = format!("refused_default({})", refused["metadata"]["uid"].as_str().context("no uid")?);
    let begin =
        format!("HTTP lifecycle hook (/x) for Container \"main\" in Pod \"{who}\" failed - error: Get \"http://");
    ensure!(message.starts_with(&begin) && message.ends_with(":81: connect: connection refused"), "{message}");
    world.delete("hooked", None)?;
    world.wait_gone("hooked")?;
    world.node.wait_for_log_of(&tls, "main", "/echo?msg=prestop")?;
    world.node.finish()
}
