//! The machine goes down with pods on it: does it wait for them, in which order do they end, what is told of it, and does the death
//! of any process in between take their time away? With logind and `systemctl poweroff`, in a machine with a real systemd.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::https::Https;
use bulkhead_testkit::systemd::Machine;
use bulkhead_testkit::{Cluster, LONG, Pod, build, eventually};
use bulkhead_tests::history::condition;
use bulkhead_tests::joined::{NAMESPACE, is_ready};
use bulkhead_tests::scrape::{Format, Scrape};
use bulkhead_tests::systemd_machine;
use serde_json::{Value, json};

/// What pods write of their end, a line each: seconds since the boot, the pod, what.
const ENDS: &str = "/var/lib/ends";
const LOGIND: [&str; 3] = ["org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"];
const READ_ONLY_PORT: u16 = 10255;
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// Priority classes that every cluster has, and no class.
const CLASSES: [(&str, i64); 3] =
    [("", 0), ("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

#[test]
fn pods_end_by_priority_before_the_machine_is_off() -> Result<()> {
    let Some(builder) = systemd_machine()? else { return Ok(()) };
    let mut machine = Machine::boot(builder)?;
    let cluster = machine.cluster(Config::default())?;
    start(&machine, &cluster, |config| {
        config["shutdownGracePeriodByPodPriority"] = json!([
            {"priority": 2_000_000_000, "shutdownGracePeriodSeconds": 10},
            {"priority": 0, "shutdownGracePeriodSeconds": 20},
            {"priority": 2_000_001_000, "shutdownGracePeriodSeconds": 5},
        ]);
        config["readOnlyPort"] = json!(READ_ONLY_PORT);
    })?;
    the_lock_is_held(&machine)?;
    let delay = machine.check(&[&["busctl", "get-property"], &LOGIND[..], &["InhibitDelayMaxUSec"]].concat())?;
    ensure!(delay.trim() == "t 35000000", "{delay}");
    let conf = machine.check(&["cat", "/etc/systemd/logind.conf.d/99-kubelet.conf"])?;
    ensure!(conf == "# Kubelet logind override\n[Login]\nInhibitDelayMaxSec=35\n", "{conf}");

    let pods = [
        // Ends when it has been asked to, and has a mount of its own.
        ending("low", 0, 30, 3).empty_dir("memory", "Memory", None, "/memory"),
        // Does not listen: it has as long as it says itself.
        recording("deaf", 0, 2, "trap '' TERM"),
        ending("middle", 1, 30, 1),
        ending("high", 2, 30, 1),
    ];
    for pod in &pods {
        cluster.create(&pod.clone().spec("nodeName", json!(machine.hostname())).value().clone())?;
    }
    machine.write_pod(&ending("static", 2, 30, 1))?;
    let fixed = format!("static-{}", machine.hostname());
    let names = ["low", "deaf", "middle", "high", &fixed];
    for name in names {
        cluster.wait_for("pods", NAMESPACE, name, "ready", is_ready)?;
    }

    let began = Instant::now();
    machine.check(&["systemctl", "poweroff", "--no-wall"])?;
    wait_not_ready(&cluster, &machine)?;
    // Nobody new comes in meanwhile, from either source.
    cluster.create(&Pod::idle("late").spec("nodeName", json!(machine.hostname())).value().clone())?;
    machine.write_pod(&Pod::idle("late-static"))?;
    let late = cluster.wait_for("pods", NAMESPACE, "late", "failed", |pod| pod["status"]["phase"] == "Failed")?;
    ensure!(late["status"]["reason"] == "NodeShutdown", "{late:#}");
    ensure!(
        late["status"]["message"] == "Pod was rejected: Pod was rejected as the node is shutting down.",
        "{late:#}"
    );
    eventually("the static pod is refused", LONG, || {
        let said = machine.journal(&["--unit=kubelet-syncd", "--output=cat"])?;
        let refused = said.lines().any(|line| line.contains("late-static") && line.contains("NodeShutdown"));
        ensure!(refused, "not yet");
        Ok(())
    })?;
    machine.wait_powered_off()?;
    let took = began.elapsed();
    println!("off after {:.1} s", took.as_secs_f64());
    ensure!(took < Duration::from_secs(35), "it took as long as logind waits at most: {took:?}");

    let ends = Ends::read(&machine)?;
    println!("{ends:#?}");
    // Each group after the one before has ended, and not only after its time.
    for (before, after) in [("low end", "middle term"), ("middle end", "high term"), ("middle end", "static term")] {
        ensure!(ends.at(before)? <= ends.at(after)?, "{before} comes after {after}: {ends:#?}");
    }
    ensure!(ends.at("static end")? > 0.0 && ends.at("high end")? > 0.0);
    // What it had mounted was gone by then.
    ensure!(ends.mounts("middle")? == 0, "the volume of a pod that has ended was still mounted: {ends:#?}");
    ensure!(ends.at("middle term")? - ends.at("low term")? < 15.0, "the group's whole time was waited for: {ends:#?}");
    for name in names {
        terminated(&cluster.get("pods", NAMESPACE, name)?)?;
    }
    not_ready_came_first(&cluster, &machine)?;
    let state = machine.outside("/var/lib/kubelet/graceful_node_shutdown_state");
    let state: Value = serde_json::from_slice(&std::fs::read(state)?)?;
    ensure!(state["startTime"].as_str() > Some("2") && state["endTime"].as_str() > Some("2"), "{state}");

    machine.start()?;
    machine.check(&["rm", "-f", "/etc/kubernetes/manifests/late-static.yaml"])?;
    machine.wait_healthy()?;
    wait_ready(&cluster, &machine)?;
    let (from, to) = times(&machine)?;
    ensure!(0.0 < from && from < to, "the last shutdown was from {from} to {to}");
    the_lock_is_held(&machine)?;
    machine.remove_pod("static")?;
    cluster.wait_gone("pods", NAMESPACE, &fixed)?;
    a_shutdown_that_is_called_off(&machine, &cluster)?;
    machine.finish()
}

/// As upstream's tests: the signal, by nobody in particular.
fn a_shutdown_that_is_called_off(machine: &Machine, cluster: &Cluster) -> Result<()> {
    // One that ends with 0 would have Succeeded.
    let create = |name: &str| -> Result<()> {
        let pod = Pod::busybox(name, "trap 'exit 3' TERM; while true; do sleep 1000 & wait $!; done");
        cluster.create(&pod.spec("nodeName", json!(machine.hostname())).value().clone()).map(drop)
    };
    let (_, last) = times(machine)?;
    create("passing")?;
    cluster.wait_for("pods", NAMESPACE, "passing", "ready", is_ready)?;
    emit(machine, true)?;
    wait_not_ready(cluster, machine)?;
    let ended = cluster.wait_for("pods", NAMESPACE, "passing", "failed", |pod| pod["status"]["phase"] == "Failed")?;
    terminated(&ended)?;
    cluster.wait_for("pods", NAMESPACE, "passing", "its sandbox has ended", |pod| {
        condition(pod, "PodReadyToStartContainers").is_ok_and(|ready| ready["status"] == "False")
    })?;
    eventually("the lock is let go", LONG, || {
        ensure!(!locks(machine)?.contains("kubelet"), "not yet");
        Ok(())
    })?;
    emit(machine, false)?;
    wait_ready(cluster, machine)?;
    eventually("it is shown when it was", LONG, || {
        let (from, to) = times(machine)?;
        ensure!(last < from && from < to, "from {from} to {to}, the one before ended {last}");
        Ok(())
    })?;
    the_lock_is_held(machine)?;
    create("after")?;
    cluster.wait_for("pods", NAMESPACE, "after", "ready", is_ready)?;

    // The bus is another one, and then the daemon that keeps one of the copies.
    for unit in ["dbus.service", "kubelet-volnetd.service", "kubelet-syncd.service"] {
        machine.check(&["systemctl", "kill", "--signal=KILL", unit])?;
        the_lock_is_held(machine)?;
    }
    // logind itself may need a moment to be back on the bus.
    eventually("signals are heard", LONG, || {
        emit(machine, true)?;
        let node = cluster.get("nodes", "", machine.hostname())?;
        ensure!(condition(&node, "Ready")?["status"] == "False", "not yet");
        Ok(())
    })?;
    emit(machine, false)?;
    wait_ready(cluster, machine)?;
    for name in ["passing", "after", "low", "deaf", "middle", "high", "late"] {
        cluster.delete("pods", NAMESPACE, name, Some(1))?;
        cluster.wait_gone("pods", NAMESPACE, name)?;
    }
    Ok(())
}

#[test]
fn pods_have_their_time_whoever_dies_meanwhile() -> Result<()> {
    let Some(builder) = systemd_machine()? else { return Ok(()) };
    let mut machine = Machine::boot(builder)?;
    let cluster = machine.cluster(Config::default())?;
    start(&machine, &cluster, |config| {
        config["shutdownGracePeriod"] = json!("30s");
        config["shutdownGracePeriodCriticalPods"] = json!("10s");
    })?;
    the_lock_is_held(&machine)?;
    let create = |seconds: u32| -> Result<()> {
        for (name, class) in [("low", 0), ("critical", 1)] {
            let pod = ending(name, class, 60, seconds).spec("nodeName", json!(machine.hostname()));
            cluster.create(&pod.value().clone())?;
        }
        ["low", "critical"]
            .iter()
            .try_for_each(|name| cluster.wait_for("pods", NAMESPACE, name, "ready", is_ready).map(drop))
    };
    create(6)?;
    // Dead when it begins: kubelet-syncd, whose place is taken only after a while, and kubelet-statusd for the whole time.
    let stop = ["systemctl", "stop", "kubelet-syncd.service", "kubelet-syncd.socket"];
    machine.check(&stop)?;
    machine.check(&["systemctl", "stop", "kubelet-statusd.service", "kubelet-statusd.socket"])?;
    let began = Instant::now();
    machine.check(&["systemctl", "poweroff", "--no-wall"])?;
    eventually("logind prepares", LONG, || {
        let said = machine.check(&[&["busctl", "get-property"], &LOGIND[..], &["PreparingForShutdown"]].concat())?;
        ensure!(said.trim() == "b true", "{said}");
        Ok(())
    })?;
    machine.check(&["systemctl", "start", "kubelet-syncd.socket", "kubelet-syncd.service"])?;
    // Dead in the middle: once the first group has been asked, its successor goes on. Then the other one that holds the lock.
    wait_term(&machine, "low")?;
    let before = machine.unit("kubelet-syncd.service")?;
    machine.check(&["systemctl", "kill", "--signal=KILL", "kubelet-syncd.service"])?;
    let after = machine.wait_another_run("kubelet-syncd.service", &before)?;
    eventually("the successor has its copy of the lock", LONG, || {
        let open = machine.check(&["ls", "-l", &format!("/proc/{}/fd", after.main_pid)])?;
        ensure!(open.contains("/run/systemd/inhibit/"), "{open}");
        Ok(())
    })?;
    machine.check(&["systemctl", "kill", "--signal=KILL", "kubelet-volnetd.service"])?;
    machine.wait_powered_off()?;
    let took = began.elapsed();
    println!("off after {:.1} s", took.as_secs_f64());
    let ends = Ends::read(&machine)?;
    println!("{ends:#?}");
    ensure!(ends.at("low end")? - ends.at("low term")? >= 5.5, "low did not have its time: {ends:#?}");
    ensure!(ends.at("low end")? <= ends.at("critical term")?, "{ends:#?}");
    ensure!(ends.at("critical end")? - ends.at("critical term")? >= 5.5, "critical did not have its time: {ends:#?}");

    // On again, what happened is told.
    machine.start()?;
    machine.wait_healthy()?;
    wait_ready(&cluster, &machine)?;
    for name in ["low", "critical"] {
        cluster.delete("pods", NAMESPACE, name, Some(1))?;
        cluster.wait_gone("pods", NAMESPACE, name)?;
    }
    machine.finish()
}

/// Installs and starts the node.
fn start(machine: &Machine, cluster: &Cluster, change: impl FnOnce(&mut Value)) -> Result<()> {
    machine.install_programs(&build::bin_dir()?)?;
    machine.install_units(&build::workspace_root())?;
    machine.join(cluster, change)?;
    machine.check(&["systemctl", "enable", "--now", "kubelet"])?;
    machine.wait_healthy()?;
    wait_ready(cluster, machine)
}

/// A pod that writes down when it is asked to end, and ends so many seconds later, with a failure: with 0 it would have Succeeded.
fn ending(name: &str, class: usize, grace: u32, seconds: u32) -> Pod {
    recording(name, class, grace, &format!("trap 'say term; sleep {seconds}; say end; exit 3' TERM"))
}

/// `$mounts`: mounts of pods' volumes of memory that the machine has at that moment.
fn recording(name: &str, class: usize, grace: u32, trap: &str) -> Pod {
    let script = format!(
        "say() {{ read up rest < /proc/uptime; mounts=$(grep -c empty-dir/memory /proc/1/mountinfo); \
         echo \"$up {name} $1 $mounts\" >> /ends/log; }}; {trap}; while true; do sleep 1 & wait $!; done"
    );
    let (class, priority) = CLASSES[class];
    let pod = Pod::busybox(name, &script)
        .spec("terminationGracePeriodSeconds", json!(grace))
        .spec("hostPID", json!(true))
        .spec("priority", json!(priority))
        .container_field("securityContext", json!({"privileged": true}))
        .host_path("ends", ENDS, "DirectoryOrCreate", "/ends");
    if class.is_empty() { pod } else { pod.spec("priorityClassName", json!(class)) }
}

/// What the pods wrote.
#[derive(Debug)]
struct Ends(Vec<String>);

impl Ends {
    fn read(machine: &Machine) -> Result<Self> {
        let text = std::fs::read_to_string(machine.outside(&format!("{ENDS}/log"))).unwrap_or_default();
        Ok(Ends(text.lines().map(str::to_owned).collect()))
    }

    fn line(&self, what: &str) -> Result<&str> {
        let line = self.0.iter().find(|line| line.contains(&format!(" {what} ")));
        line.map(String::as_str).with_context(|| format!("no {what}: {self:#?}"))
    }

    /// Seconds since the boot.
    fn at(&self, what: &str) -> Result<f64> {
        Ok(self.line(what)?.split(' ').next().unwrap_or_default().parse()?)
    }

    fn mounts(&self, pod: &str) -> Result<u32> {
        Ok(self.line(&format!("{pod} term"))?.split(' ').next_back().unwrap_or_default().parse()?)
    }
}

fn wait_term(machine: &Machine, pod: &str) -> Result<()> {
    eventually("the pod is asked to end", LONG, || Ends::read(machine)?.line(&format!("{pod} term")).map(drop))
}

/// Locks at logind, without the heading.
fn locks(machine: &Machine) -> Result<String> {
    machine.check(&["systemd-inhibit", "--list", "--no-legend", "--no-pager"])
}

/// One lock in upstream's words.
fn the_lock_is_held(machine: &Machine) -> Result<()> {
    eventually("the lock is held", LONG, || {
        let all = locks(machine)?;
        let ours: Vec<&str> = all.lines().filter(|line| line.starts_with("kubelet ")).collect();
        ensure!(ours.len() == 1, "{all}");
        let words = ["root", "shutdown", "Kubelet needs time to handle node shutdown", "delay"];
        ensure!(words.iter().all(|word| ours[0].contains(word)), "{all}");
        Ok(())
    })
}

fn emit(machine: &Machine, begins: bool) -> Result<()> {
    let signal = ["PrepareForShutdown", "b", if begins { "true" } else { "false" }];
    machine.check(&[&["busctl", "emit"], &LOGIND[1..], &signal].concat()).map(drop)
}

fn wait_ready(cluster: &Cluster, machine: &Machine) -> Result<()> {
    let ready = |node: &Value| condition(node, "Ready").is_ok_and(|ready| ready["status"] == "True");
    cluster.wait_for("nodes", "", machine.hostname(), "ready", ready).map(drop)
}

fn wait_not_ready(cluster: &Cluster, machine: &Machine) -> Result<()> {
    let not_ready = |node: &Value| {
        condition(node, "Ready").is_ok_and(|ready| {
            ready["status"] == "False"
                && ready["reason"] == "KubeletNotReady"
                && ready["message"] == "node is shutting down"
        })
    };
    cluster.wait_for("nodes", "", machine.hostname(), "not ready", not_ready).map(drop)
}

/// How a pod has ended that was ended for the shutdown.
fn terminated(pod: &Value) -> Result<()> {
    let status = &pod["status"];
    ensure!(status["phase"] == "Failed" && status["reason"] == "Terminated" && status["message"] == MESSAGE, "{pod:#}");
    let target = condition(pod, "DisruptionTarget")?;
    ensure!(target["status"] == "True" && target["reason"] == "TerminationByKubelet" && target["message"] == MESSAGE);
    Ok(())
}

/// Seconds of the epoch: when the last shutdown began, and when it ended.
fn times(machine: &Machine) -> Result<(f64, f64)> {
    let port = Https::plain((machine.address(), READ_ONLY_PORT).into());
    let scrape = Scrape::read(&String::from_utf8_lossy(&port.get("/metrics")?.body), Format::Prometheus)?;
    let of = |what: &str| scrape.one(&format!("kubelet_graceful_shutdown_{what}_time_seconds"), &[]);
    Ok((of("start")?, of("end")?))
}

/// By the order of the API server's own versions: the node's condition before the first event of a container that is stopped.
fn not_ready_came_first(cluster: &Cluster, machine: &Machine) -> Result<()> {
    let version = |object: &Value| -> Option<u64> { object["metadata"]["resourceVersion"].as_str()?.parse().ok() };
    let history = cluster.history("nodes", "", machine.hostname())?;
    let told =
        history.iter().find(|node| condition(node, "Ready").is_ok_and(|r| r["message"] == "node is shutting down"));
    let told = told.and_then(version).context("the node was never told as shutting down")?;
    let events = cluster.list("events", None)?;
    let killing = events.iter().filter(|event| event["reason"] == "Killing").filter_map(version).min();
    let killing = killing.context("no container was stopped")?;
    ensure!(told < killing, "the node was not ready with {told}, a container was stopped with {killing}");
    let shutdown = events
        .iter()
        .any(|event| event["reason"] == "Shutdown" && event["message"] == "Shutdown manager detected shutdown event");
    ensure!(shutdown, "no event says that the machine goes down");
    Ok(())
}
