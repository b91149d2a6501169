//! Statistics of pods that are the runtime's to tell: gate PodAndContainerStatsFromCRI.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{LONG, Pod, eventually};
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
