//! Statistics that are the runtime's to tell: those of pods with gate PodAndContainerStatsFromCRI, and those of containers whose cgroup is
//! not found.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{LONG, Lab, Pod, eventually};
use bulkhead_tests::lab;
use bulkhead_tests::scrape::{Format, Scrape};
use serde_json::{Value, json};

fn number(value: &Value, pointer: &str) -> Result<u64> {
    value.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("no number {pointer} in {value:#}"))
}

#[test]
fn pods_are_shown_as_the_runtime_measures_them() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let gates = json!({"PodAndContainerStatsFromCRI": true});
    let node = lab.node("alpha").config("readOnlyPort", json!(10255)).config("featureGates", gates).start()?;
    let port = Https::plain(SocketAddr::new(lab.netns().address().into(), 10255));
    let get = |path: &str| {
        let answer = port.get(path)?;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        ensure!(answer.status == 200, "{path}: {} {body:.300}", answer.status);
        Ok(body)
    };
    let works = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; while true; do sleep 1000; done";
    node.write(&Pod::busybox("works", works).and_container("side", "while true; do sleep 1000; done"))?;
    node.wait_running("works", 2)?;
    let name = node.pod_name("works");
    let pod = eventually("the pod is shown, with what it used", LONG, || {
        let summary: Value = serde_json::from_str(&get("/stats/summary")?)?;
        let pods = summary["pods"].as_array().context("no pods")?;
        let pod = pods.iter().find(|pod| pod["podRef"]["name"] == name.as_str()).context("it is not there")?;
        ensure!(number(pod, "/cpu/usageCoreNanoSeconds")? > 50_000_000, "{pod:#}");
        // The runtime counts a container when it has asked its shim.
        ensure!(pod["containers"].as_array().is_some_and(|all| all.len() == 2), "{pod:#}");
        number(pod, "/process_stats/process_count")?;
        Ok(pod.clone())
    })?;
    ensure!(number(&pod, "/process_stats/process_count")? >= 3, "two shells and what they run: {pod:#}");
    ensure!(number(&pod, "/memory/workingSetBytes")? > 0 && number(&pod, "/network/rxBytes").is_ok(), "{pod:#}");
    for container in pod["containers"].as_array().into_iter().flatten() {
        ensure!(number(container, "/memory/workingSetBytes")? > 0, "{container:#}");
        ensure!(container["memory"].get("rssBytes").is_none(), "ours, and not the runtime's: {container:#}");
        ensure!(container["logs"].is_object() && container["rootfs"].is_object(), "{container:#}");
    }
    let resource = Scrape::read(&get("/metrics/resource")?, Format::Prometheus)?;
    let main = [("container", "main"), ("pod", name.as_str()), ("namespace", "default")];
    ensure!(resource.one("container_cpu_usage_seconds_total", &main)? > 0.05, "what metrics-server reads");
    let cadvisor = Scrape::read(&get("/metrics/cadvisor")?, Format::Prometheus)?;
    let others: Vec<_> = cadvisor.families.keys().filter(|family| !family.starts_with("machine_")).collect();
    ensure!(others.is_empty(), "{others:?}");
    ensure!(cadvisor.one("machine_cpu_cores", &[])? >= 1.0, "the machine is left");
    let metrics = node.agent()?.metrics("kubelet-evictiond")?;
    ensure!(metrics.contains("kubelet_metrics_provider{provider=\"cri\"} 1"), "{metrics}");

    // The runtime's word is asked of kubelet-syncd; without it the last one stands.
    node.kill_daemon("kubelet-syncd")?;
    eventually("the pod is shown again", LONG, || {
        let summary: Value = serde_json::from_str(&get("/stats/summary")?)?;
        let pods = summary["pods"].as_array().context("no pods")?;
        ensure!(pods.iter().any(|pod| pod["podRef"]["name"] == name.as_str()), "{pods:?}");
        Ok(())
    })?;
    node.finish()
}

/// An OCI runtime that gives the cgroup of a container or sandbox a name that nobody looks for.
const ELSEWHERE: &str = r#"#!/bin/sh
before=
for word; do
    [ "$before" = --bundle ] && sed -i 's|"cgroupsPath":"\([^"]*\)/\([^/"]*\)"|"cgroupsPath":"\1/elsewhere-\2"|' "$word/config.json"
    before=$word
done
exec runc "$@"
"#;

/// Has containerd make all pods by it.
fn put_elsewhere(lab: &Lab) -> Result<()> {
    let program = lab.folder().join("elsewhere");
    std::fs::write(&program, ELSEWHERE)?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    let file = lab.folder().join("containerd/config.toml");
    let config = std::fs::read_to_string(&file)?;
    let runtime = config.lines().map(str::trim).find(|line| line.ends_with(".containerd.runtimes.runc]"));
    let table = runtime.and_then(|line| line.strip_suffix(']')).context("no runtime in containerd's configuration")?;
    let options = format!("{config}\n{table}.options]\nBinaryName = \"{}\"\n", program.display());
    std::fs::write(&file, options)?;
    lab.containerd().restart()
}

/// As those of Kata.
#[test]
fn containers_whose_cgroup_is_not_found_are_shown_as_the_runtime_measures_them() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    put_elsewhere(&lab)?;
    let node = lab.node("alpha").config("readOnlyPort", json!(10255)).start()?;
    let port = Https::plain(SocketAddr::new(lab.netns().address().into(), 10255));
    let get = |path: &str| {
        let answer = port.get(path)?;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        ensure!(answer.status == 200, "{path}: {} {body:.300}", answer.status);
        Ok(body)
    };
    let works = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; while true; do sleep 1000; done";
    node.write(&Pod::busybox("works", works))?;
    node.wait_running("works", 1)?;
    let name = node.pod_name("works");
    let main = [("container", "main"), ("pod", name.as_str()), ("namespace", "default")];
    // Nobody has asked for disks, with which the runtime is asked in any case.
    let resource = eventually("what metrics-server reads of it", LONG, || {
        let text = get("/metrics/resource")?;
        let resource = Scrape::read(&text, Format::Prometheus)?;
        ensure!(resource.one("container_cpu_usage_seconds_total", &main)? > 0.05, "{text}");
        ensure!(resource.one("container_memory_working_set_bytes", &main)? > 0.0, "{text}");
        ensure!(resource.one("container_start_time_seconds", &main)? > 0.0, "{text}");
        Ok(text)
    })?;
    for family in ["container_cpu_usage_seconds_total", "container_memory_working_set_bytes"] {
        let line =
            resource.lines().find(|line| line.starts_with(&format!("{family}{{container=\"main\""))).context(family)?;
        let time = line.rsplit(' ').next().and_then(|time| time.parse::<u64>().ok());
        ensure!(line.split(' ').count() == 3 && time.is_some_and(|time| time > 1_600_000_000_000), "no time: {line}");
    }
    let container = eventually("all figures of it, and a rate of two answers", LONG, || {
        let summary: Value = serde_json::from_str(&get("/stats/summary")?)?;
        let pods = summary["pods"].as_array().context("no pods")?;
        let pod = pods.iter().find(|pod| pod["podRef"]["name"] == name.as_str()).context("it is not there")?;
        ensure!(number(pod, "/memory/workingSetBytes")? > 0, "{pod:#}");
        let container = pod["containers"].as_array().and_then(|all| all.first()).context("no container")?;
        number(container, "/cpu/usageNanoCores")?;
        Ok(container.clone())
    })?;
    ensure!(number(&container, "/cpu/usageCoreNanoSeconds")? > 50_000_000, "{container:#}");
    ensure!(number(&container, "/memory/workingSetBytes")? > 0, "{container:#}");
    ensure!(container["logs"].is_object() && container["rootfs"].is_object(), "{container:#}");
    let cadvisor = Scrape::read(&get("/metrics/cadvisor")?, Format::Prometheus)?;
    let of_container = cadvisor.all("container_memory_working_set_bytes", &main);
    ensure!(of_container.is_empty(), "its cgroup was found: {of_container:?}");
    node.finish()
}
