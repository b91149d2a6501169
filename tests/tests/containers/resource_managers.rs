//! Containers with CPUs and memory of a NUMA node for themselves: the kernel, upstream's state files and the metrics agree on who
//! has which; what is taken is given back; what does not fit is refused, a pod by its status and a node by its exit code.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{LONG, Lab, Node, NodeBuilder, Pod, eventually};
use bulkhead_tests::lab;
use bulkhead_tests::scrape::{Format, Scrape};
use bulkhead_tests::upstream::checkpoints;
use serde_json::{Value, json};

use super::resize::limits;

const READ_ONLY_PORT: u16 = 10255;
/// Laid aside of the memory of the one node that there is.
const KEPT: &str = "100Mi";

/// CPU 0 is the system's, the next are to be had; whole pods lie on one NUMA node. The period is longer than the test: what changes
/// is acted upon at once.
fn node(lab: &Lab) -> NodeBuilder {
    lab.node("alpha")
        .config("readOnlyPort", json!(READ_ONLY_PORT))
        .config("cpuManagerPolicy", json!("static"))
        .config("cpuManagerReconcilePeriod", json!("10m"))
        .config("reservedSystemCPUs", json!("0"))
        .config("memoryManagerPolicy", json!("Static"))
        .config("systemReserved", json!({"memory": KEPT}))
        .config("evictionHard", json!({"memory.available": "0%"}))
        .config("reservedMemory", json!([{"numaNode": 0, "limits": {"memory": KEPT}}]))
        .config("topologyManagerPolicy", json!("single-numa-node"))
}

/// Alone on so many CPUs.
fn guaranteed(name: &str, cpus: usize) -> Pod {
    let amounts = json!({"cpu": cpus.to_string(), "memory": "32Mi"});
    Pod::idle(name).container_field("resources", json!({"requests": amounts, "limits": amounts}))
}

/// Process, and container id.
fn process(node: &Node, pod: &str) -> Result<(i32, String)> {
    let (cri, name) = (node.cri()?, node.pod_name(pod));
    let all = cri.containers()?;
    let found = all.iter().find(|one| one.pod == name && one.name == "main" && one.running);
    let id = &found.with_context(|| format!("{name} does not run"))?.id;
    Ok((cri.pid(id)?, id.clone()))
}

/// CPUs and memory nodes that a pod's container may use, as the kernel lists them.
fn allowed(node: &Node, pod: &str) -> Result<(String, String)> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process(node, pod)?.0))?;
    let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(|list| list.trim().to_owned());
    let cpus = of("Cpus_allowed_list:").context("no list of CPUs")?;
    Ok((cpus, of("Mems_allowed_list:").context("no list of memory nodes")?))
}

fn wait_cpus(node: &Node, pod: &str, cpus: &str) -> Result<()> {
    eventually(&format!("{pod} runs on CPUs {cpus}"), LONG, || {
        let (now, _) = allowed(node, pod)?;
        ensure!(now == cpus, "it runs on {now}");
        Ok(())
    })
}

fn state(node: &Node, file: &str) -> Result<String> {
    Ok(std::fs::read_to_string(node.root_dir().join(file))?)
}

/// The file, byte for byte, once what has changed is written.
fn wait_cpu_state(node: &Node, default: &str, entries: &[(&str, &[(&str, &str)])]) -> Result<()> {
    let wanted = checkpoints::static_cpu_manager(default, entries);
    eventually("the CPU manager's state is written", LONG, || {
        let now = state(node, "cpu_manager_state")?;
        ensure!(now == wanted, "{now} instead of {wanted}");
        Ok(())
    })
}

/// The memory manager's likewise: its entries, and bytes that are given.
fn wait_memory_state(node: &Node, entries: &Value, reserved: i64) -> Result<()> {
    eventually("the memory manager's state is written", LONG, || {
        let now: Value = serde_json::from_str(&state(node, "memory_manager_state")?)?;
        let table = &now["machineState"]["0"]["memoryMap"]["memory"];
        ensure!(now["policyName"] == "Static" && &now["entries"] == entries, "{now}");
        ensure!(table["reserved"] == reserved && table["systemReserved"] == 100 << 20, "{now}");
        Ok(())
    })
}

fn metrics(lab: &Lab) -> Result<Scrape> {
    let port = Https::plain(SocketAddr::new(lab.netns().address().into(), READ_ONLY_PORT));
    Scrape::read(&String::from_utf8_lossy(&port.get("/metrics")?.body), Format::Prometheus)
}

/// The last CPU that there is, and all of them: a machine of two has `1` and `0-1`.
fn cpus() -> Result<(usize, String)> {
    let count = std::thread::available_parallelism()?.get();
    ensure!(count > 1, "the test needs two CPUs");
    Ok((count - 1, format!("0-{}", count - 1)))
}

#[test]
fn containers_have_cpus_and_memory_for_themselves() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (free, all) = cpus()?;
    let own = if free == 1 { "1".to_owned() } else { format!("1-{free}") };
    let node = node(&lab).start()?;
    node.write(&Pod::idle("shared"))?;
    node.wait_pod("shared", "it runs", |pod| pod.phase == "Running")?;
    wait_cpus(&node, "shared", &all)?;
    wait_cpu_state(&node, &all, &[])?;

    // An init container hands its CPUs on: there are no others.
    let mut init = guaranteed("own", free).value()["spec"]["containers"][0].clone();
    (init["name"], init["command"]) = (json!("init"), json!(["/bin/true"]));
    node.write(&guaranteed("own", free).spec("initContainers", json!([init])))?;
    let pod = node.wait_pod("own", "it runs", |pod| pod.phase == "Running")?;
    ensure!(allowed(&node, "own")? == (own.clone(), "0".to_owned()), "{:?}", allowed(&node, "own")?);
    wait_cpus(&node, "shared", "0")?;
    let containers = [("init", own.as_str()), ("main", own.as_str())];
    let entries = [(pod.uid.as_str(), containers.as_slice())];
    wait_cpu_state(&node, "0", &entries)?;
    let block = json!([{"numaAffinity": [0], "type": "memory", "size": 32 << 20}]);
    wait_memory_state(&node, &json!({&pod.uid: {"main": block}}), 32 << 20)?;
    let (pid, _) = process(&node, "own")?;
    ensure!((limits(pid, 0)?.quota, limits(pid, 1)?.quota) == (-1, -1), "{:?} {:?}", limits(pid, 0)?, limits(pid, 1)?);

    node.write(&guaranteed("late", 1))?;
    let late = node.wait_pod("late", "it is refused", |pod| pod.phase == "Failed")?;
    ensure!(late.reason == "TopologyAffinityError", "{late:?}");
    ensure!(late.message == "Pod was rejected: Resources cannot be allocated with Topology locality", "{late:?}");
    let scrape = metrics(&lab)?;
    let exclusive = u32::try_from(free)?;
    for (name, labels, value) in [
        ("kubelet_cpu_manager_exclusive_cpu_allocation_count", &[] as &[(&str, &str)], f64::from(exclusive)),
        ("kubelet_cpu_manager_shared_pool_size_millicores", &[], 0.0),
        ("kubelet_cpu_manager_allocation_per_numa", &[("numa_node", "0")], f64::from(exclusive)),
        ("kubelet_cpu_manager_pinning_requests_total", &[], 2.0),
        ("kubelet_cpu_manager_pinning_errors_total", &[], 0.0),
        ("kubelet_memory_manager_pinning_requests_total", &[], 2.0),
        ("kubelet_topology_manager_admission_requests_total", &[], 3.0),
        ("kubelet_topology_manager_admission_errors_total", &[], 1.0),
        ("kubelet_topology_manager_admission_duration_ms_count", &[], 3.0),
        // The init container is one of them.
        (
            "kubelet_container_aligned_compute_resources_count",
            &[("boundary", "numa_node"), ("scope", "container")],
            3.0,
        ),
        (
            "kubelet_container_aligned_compute_resources_failure_count",
            &[("boundary", "numa_node"), ("scope", "container")],
            1.0,
        ),
    ] {
        let now = scrape.one(name, labels)?;
        ensure!(now == value, "{name} is {now} and not {value}");
    }

    // What was given outlives the process that gave it.
    let (before, ids) = (state(&node, "memory_manager_state")?, (process(&node, "own")?, process(&node, "shared")?));
    node.kill_daemon("kubelet-syncd")?;
    eventually("kubelet-syncd is back", LONG, || {
        let now = node.agent()?.node()?;
        ensure!(now.sources_ready, "{now:?}");
        Ok(())
    })?;
    node.wait_pod("own", "it still runs", |pod| pod.phase == "Running" && pod.containers.iter().all(|c| c.ready))?;
    wait_cpu_state(&node, "0", &entries)?;
    let after = state(&node, "memory_manager_state")?;
    ensure!(after == before, "{after}");
    ensure!((process(&node, "own")?, process(&node, "shared")?) == ids, "a container was restarted");
    ensure!(allowed(&node, "own")?.0 == own && allowed(&node, "shared")?.0 == "0");

    for pod in ["own", "late"] {
        node.remove(pod)?;
        node.wait_gone(pod)?;
    }
    wait_cpus(&node, "shared", &all)?;
    wait_cpu_state(&node, &all, &[])?;
    wait_memory_state(&node, &Value::Null, 0)?;
    node.write(&guaranteed("late", 1))?;
    node.wait_pod("late", "it fits now", |pod| pod.phase == "Running")?;
    wait_cpus(&node, "late", "1")?;
    node.finish()
}

/// A pod with one CPU and 64 MiB of its own, of whose two containers the first has `of_main` for itself.
fn whole(name: &str, of_main: &Value) -> Pod {
    let mut other = Pod::idle(name).value()["spec"]["containers"][0].clone();
    other["name"] = json!("other");
    let own = json!({"cpu": "1", "memory": "64Mi"});
    let mut main = Pod::idle(name).value()["spec"]["containers"][0].clone();
    main["resources"] = json!({"requests": of_main, "limits": of_main});
    Pod::idle(name).spec("containers", json!([main, other])).spec("resources", json!({"requests": own, "limits": own}))
}

/// CPUs and memory of a pod's own (gate PodLevelResourceManagers), of which its containers share what none has for itself.
#[test]
fn containers_share_what_is_their_pods_own() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (_, all) = cpus()?;
    let node = node(&lab)
        .config("featureGates", json!({"PodLevelResourceManagers": true}))
        .config("topologyManagerScope", json!("pod"))
        .start()?;
    // Nothing would be left for the other container.
    node.write(&whole("greedy", &json!({"cpu": "1", "memory": "32Mi"})))?;
    let greedy = node.wait_pod("greedy", "it is refused", |pod| pod.phase == "Failed")?;
    ensure!(greedy.reason == "TopologyAffinityError", "{greedy:?}");
    let words = "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager";
    ensure!(greedy.message == format!("Pod was rejected: {words}"), "{greedy:?}");

    node.write(&whole("whole", &json!({})))?;
    node.write(&Pod::idle("shared"))?;
    let pod = node.wait_pod("whole", "it runs", |pod| pod.phase == "Running" && pod.containers.len() == 2)?;
    let same = |node: &Node| -> Result<()> {
        ensure!(allowed(node, "whole")? == ("1".to_owned(), "0".to_owned()), "{:?}", allowed(node, "whole")?);
        let now: Value = serde_json::from_str(&state(node, "cpu_manager_state")?)?;
        ensure!(now.to_string().contains(&format!("\"{}\":{{\"cpuSet\":\"1\"}}", pod.uid)), "{now}");
        let own = &now["entries"][&pod.uid];
        ensure!(own == &json!({"main": "1", "other": "1"}), "{now}");
        let now: Value = serde_json::from_str(&state(node, "memory_manager_state")?)?;
        ensure!(now["machineState"]["0"]["memoryMap"]["memory"]["reserved"] == 64 << 20, "{now}");
        Ok(())
    };
    same(&node)?;
    let scrape = metrics(&lab)?;
    for (resource, requests) in [("cpu", 0.0), ("memory", 1.0)] {
        let family = format!("kubelet_{resource}_manager_pinning_requests_total");
        ensure!(scrape.one(&family, &[])? == requests, "{family}");
        for (family, label, value, count) in [
            ("resource_manager_allocations_total", "source", "pod", 2.0),
            ("resource_manager_container_assignments", "assignment_type", "pod_shared", 2.0),
        ] {
            let found = scrape.one(family, &[("resource_name", resource), (label, value)])?;
            ensure!(found == count, "{family} of {resource} is {found}");
        }
    }
    ensure!(scrape.family("resource_manager_allocation_errors_total").is_err(), "a family without a series");
    node.wait_pod("shared", "it runs", |pod| pod.phase == "Running")?;
    let rest = if all == "0-1" { "0".to_owned() } else { all.replace("0-", "0,2-") };
    wait_cpus(&node, "shared", &rest)?;

    // It is taken in as it was.
    let before = (process(&node, "whole")?, process(&node, "shared")?);
    node.kill_daemon("kubelet-syncd")?;
    eventually("kubelet-syncd is back", LONG, || {
        let now = node.agent()?.node()?;
        ensure!(now.sources_ready, "{now:?}");
        Ok(())
    })?;
    node.wait_pod("whole", "it still runs", |pod| pod.phase == "Running" && pod.containers.iter().all(|c| c.ready))?;
    same(&node)?;
    ensure!((process(&node, "whole")?, process(&node, "shared")?) == before, "a container was restarted");

    node.remove("whole")?;
    node.wait_gone("whole")?;
    wait_cpus(&node, "shared", &all)?;
    eventually("its CPUs and its memory are given back", LONG, || {
        let now: Value = serde_json::from_str(&state(&node, "cpu_manager_state")?)?;
        ensure!(now["defaultCpuSet"] == all.as_str() && !now.to_string().contains(&pod.uid), "{now}");
        let now: Value = serde_json::from_str(&state(&node, "memory_manager_state")?)?;
        ensure!(now["machineState"]["0"]["memoryMap"]["memory"]["reserved"] == 0, "{now}");
        Ok(())
    })?;
    node.finish()
}

/// The node's reason, in upstream's words.
fn refusal(builder: NodeBuilder, file: Option<&str>) -> Result<String> {
    let folder = tempfile::tempdir()?;
    std::fs::create_dir_all(folder.path().join("root"))?;
    if let Some(content) = file {
        std::fs::write(folder.path().join("root/cpu_manager_state"), content)?;
    }
    let (status, said) = builder.in_folder(folder.path()).run_to_end()?;
    ensure!(status.code() == Some(1), "{status}: {said}");
    Ok(said)
}

#[test]
fn a_node_whose_managers_cannot_start_ends() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let none = checkpoints::cpu_manager();
    let damaged = none.replace("checksum\":", "checksum\":1");
    let more = json!([{"numaNode": 0, "limits": {"memory": KEPT}}, {"numaNode": 7, "limits": {"memory": "1Gi"}}]);
    for (builder, file, reason) in [
        (node(&lab), Some(none.as_str()), "configured policy \"static\" differs from state checkpoint policy \"none\""),
        (node(&lab), Some("{\"policyName\":\"static\",\"defaultCpuS"), "could not restore state from checkpoint"),
        (lab.node("alpha"), Some(damaged.as_str()), "checkpoint is corrupted"),
        (node(&lab).config("topologyManagerPolicy", json!("sideways")), None, "topologyManagerPolicy"),
        (node(&lab).config("reservedSystemCPUs", json!("4000")), None, "reservedSystemCPUs"),
        (
            node(&lab).config("systemReserved", json!({"memory": "1124Mi"})).config("reservedMemory", more),
            None,
            "the reserved memory configuration references a NUMA node 7 that does not exist on this machine",
        ),
    ] {
        let said = refusal(builder, file)?;
        ensure!(said.contains(reason), "{reason}: {said}");
    }
    Ok(())
}
