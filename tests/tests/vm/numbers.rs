//! What is measured, as scrapers and the API server's clients read it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::eventually;
use bulkhead_testkit::vm::Vm;
use serde_json::Value;

use crate::node::{Node, PODS, World, get, shown};

/// What is measured on v2 reaches every page, pressure included. Each kind of measurement has its own turn, so a pod may be on
/// one page before it is on the next.
pub fn statistics(world: &mut World, node: &Node) -> Result<()> {
    let patience = Duration::from_secs(PODS.into());
    eventually("all pods are measured", patience, || {
        // A moment before each look, so that the looking does not take the time that is waited for.
        let mut page = |path: &str| world.vm.run(&format!("sleep 0.2; {}", get(path)));
        let summary = serde_json::from_str(&page("/stats/summary")?)?;
        in_summary(&summary, node)?;
        in_metrics(&page("/metrics/cadvisor")?, &page("/metrics/resource")?, node)?;
        all_daemons_count(&summary, &mut world.vm)
    })
}

/// "kubelet" is all of it and not the process that measures: what the kernel counts for the slice.
fn all_daemons_count(summary: &Value, vm: &mut Vm) -> Result<()> {
    let parts = summary["node"]["systemContainers"].as_array().context("system containers")?;
    let kubelet = parts.iter().find(|part| part["name"] == "kubelet").with_context(|| format!("{parts:?}"))?;
    let usage = kubelet["memory"]["usageBytes"].as_u64().with_context(|| kubelet.to_string())?;
    let counted: u64 = vm.run("cat /sys/fs/cgroup/kubelet.slice/memory.current")?.parse()?;
    let measures: u64 = vm.run("cat /sys/fs/cgroup/kubelet.slice/kubelet-evictiond.service/memory.current")?.parse()?;
    // The two are not read in the same moment.
    ensure!(usage > 2 * measures && usage > counted / 2, "{usage} bytes, and {counted} in the slice: {kubelet}");
    ensure!(kubelet["cpu"]["usageCoreNanoSeconds"].as_u64() > Some(0), "{kubelet}");
    Ok(())
}

fn in_summary(summary: &Value, node: &Node) -> Result<()> {
    let positive = |value: &Value| value.as_u64().is_some_and(|number| number > 0);
    let whole = &summary["node"];
    for value in ["cpu", "memory", "fs", "runtime"].map(|part| &whole[part]) {
        ensure!(value.is_object(), "{whole}");
    }
    ensure!(
        positive(&whole["cpu"]["usageCoreNanoSeconds"]) && positive(&whole["memory"]["workingSetBytes"]),
        "{whole}"
    );
    let pods = summary["pods"].as_array().context("pods")?;
    for name in node.running.keys() {
        let pod = pods.iter().find(|pod| pod["podRef"]["name"] == shown(name).as_str());
        let pod = pod.with_context(|| format!("no {name} in {summary}"))?;
        let container = &pod["containers"][0];
        for part in [pod, container] {
            ensure!(
                positive(&part["cpu"]["usageCoreNanoSeconds"]) && positive(&part["memory"]["workingSetBytes"]),
                "{part}"
            );
            ensure!(part["cpu"]["psi"]["some"].is_object() && part["io"]["psi"].is_object(), "{part}");
        }
        ensure!(positive(&pod["process_stats"]["process_count"]), "{pod}");
    }
    Ok(())
}

fn in_metrics(cadvisor: &str, resource: &str, node: &Node) -> Result<()> {
    for (name, scope) in &node.scopes {
        let of = |text: &str, family: &str, labels: &[String]| {
            let line = text.lines().find(|line| {
                line.strip_prefix(family).is_some_and(|rest| rest.starts_with('{'))
                    && labels.iter().all(|label| line.contains(label))
            });
            let value = line.and_then(|line| line.rsplit('}').next()?.split_whitespace().next()?.parse::<f64>().ok());
            value.with_context(|| format!("{family} has no {labels:?}"))
        };
        let id = [format!("id=\"/kubepods.slice/{scope}\""), "container=\"main\"".to_owned()];
        ensure!(of(cadvisor, "container_memory_working_set_bytes", &id)? > 0.0);
        ensure!(of(cadvisor, "container_cpu_usage_seconds_total", &id)? > 0.0);
        of(cadvisor, "container_pressure_memory_waiting_seconds_total", &id)?;
        if name != "besteffort" {
            ensure!(of(cadvisor, "container_spec_memory_limit_bytes", &id)? > 0.0);
        }
        let pod = [format!("pod=\"{}\"", shown(name))];
        ensure!(of(resource, "pod_memory_working_set_bytes", &pod)? > 0.0);
        ensure!(of(resource, "container_cpu_usage_seconds_total", &pod)? > 0.0);
    }
    Ok(())
}
