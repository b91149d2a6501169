//! What the operator sets for the node as a whole, as the kernel and the operator's window show it.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{LONG, Node, Pod, cgroups, eventually, machine};
use bulkhead_tests::journald::helper_of;
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// Upstream's chains, by a process that is there for a moment each minute; none where the configuration does not want them.
#[test]
fn chains_of_iptables_are_kept_unless_they_are_switched_off() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let iptables = |words: &[&str]| lab.netns().run(|| machine::run("iptables", words));
    let firewall = || -> Result<()> {
        let rules = iptables(&["-S", "KUBE-FIREWALL"])?;
        ensure!(rules.contains("block incoming localnet connections"), "{rules}");
        iptables(&["-t", "mangle", "-S", "KUBE-IPTABLES-HINT"]).map(drop)
    };
    let flush = || -> Result<()> {
        for table in ["mangle", "nat", "filter"] {
            iptables(&["-t", table, "-F"])?;
            iptables(&["-t", table, "-X"])?;
        }
        ensure!(firewall().is_err(), "a flush takes them away");
        Ok(())
    };
    let node = lab.node("alpha").start()?;
    eventually("the chains are there", LONG, firewall)?;
    let launcher = *node.pids().get("kubelet").context("no launcher")?;
    eventually("who made them is gone", LONG, || {
        ensure!(helper_of(launcher, "kubelet-iptables").is_err(), "it still runs");
        Ok(())
    })?;
    flush()?;
    eventually("they are made again when the canary is looked for", LONG, firewall)?;
    eventually("it is told in upstream's words", LONG, || {
        let log = std::fs::read_to_string(node.log())?;
        for said in ["Initialized iptables rules: protocol=IPv4", "IPTables canary deleted"] {
            ensure!(log.contains(said), "{said} is not in the log");
        }
        Ok(())
    })?;
    node.finish()?;

    flush()?;
    let node = lab.node("beta").config("makeIPTablesUtilChains", json!(false)).start()?;
    ensure!(firewall().is_err() && node.kill_daemon("kubelet-volnetd").is_ok());
    let mut node = node;
    node.wait_healthy()?;
    ensure!(firewall().is_err(), "nobody asked for them");
    node.finish()
}

#[test]
fn reservations_and_the_cfs_period_reach_the_cgroups() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    // Those of the machine, however few this test may use.
    let cpus: u64 = machine::run("getconf", &["_NPROCESSORS_ONLN"])?.trim().parse()?;
    let node = lab
        .node("alpha")
        .config("reservedSystemCPUs", json!("0"))
        .config("cpuCFSQuotaPeriod", json!("50ms"))
        .config("podPidsLimit", json!(200))
        .config("kubeReserved", json!({"cpu": "900m", "memory": "100Mi", "pid": "1000"}))
        .start()?;
    let limits = json!({"limits": {"cpu": "100m", "memory": "64Mi"}});
    node.write(&Pod::idle("web").container_field("resources", limits))?;
    let running = node.wait_running("web", 1)?;
    let pod = format!("kubepods/pod{}", running.sandbox.uid);
    let container = format!("{pod}/{}", running.main().id);

    // Explicit CPUs are the whole reservation of CPU: kubeReserved's does not count beside them.
    let shares = (cpus - 1) * 1024;
    if let Some(value) = value(&node, "kubepods", "cpu.shares") {
        ensure!(value == shares.max(2).to_string(), "cpu.shares of kubepods: {value}");
        for cgroup in [&pod, &container] {
            let of = |file| value_of(&node, cgroup, file);
            ensure!((of("cpu.cfs_period_us")?, of("cpu.cfs_quota_us")?) == ("50000".to_owned(), "5000".to_owned()));
        }
    } else {
        let value = value_of(&node, "kubepods", "cpu.weight")?;
        ensure!(value == weight(shares).to_string(), "cpu.weight of kubepods: {value}");
        for cgroup in [&pod, &container] {
            ensure!(value_of(&node, cgroup, "cpu.max")? == "5000 50000");
        }
    }
    ensure!(value_of(&node, &pod, "pids.max")? == "200");
    let tasks = |name: &str| -> Result<u64> {
        Ok(std::fs::read_to_string(format!("/proc/sys/kernel/{name}"))?.trim().parse()?)
    };
    let most = tasks("pid_max")?.min(tasks("threads-max")?);
    ensure!(value_of(&node, "kubepods", "pids.max")? == (most - 1000).to_string());

    // The runtime says where its images are; how full that is, is measured.
    eventually("the images' file system is measured", LONG, || {
        let stats: Value = serde_json::from_str(&node.ctl(&["stats", "-o", "json"])?)?;
        let capacity = stats["node"]["imageFs"]["capacityBytes"].as_u64();
        ensure!(capacity.is_some_and(|bytes| bytes > 0), "{stats}");
        Ok(())
    })?;
    let log = std::fs::read_to_string(node.log())?;
    for field in ["reservedSystemCPUs", "cpuCFSQuotaPeriod"] {
        ensure!(!log.contains(field), "{field} is named as not there yet");
    }
    node.finish()
}

/// The numbers are those that upstream's kubelet writes for the same settings.
#[test]
fn what_is_reserved_is_enforced_and_told() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cpus: u64 = machine::run("getconf", &["_NPROCESSORS_ONLN"])?.trim().parse()?;
    for name in ["reserved-system", "reserved-kube"] {
        reserve(&format!("{}/{name}", lab.cgroup()))?;
    }
    let node = lab
        .node("alpha")
        .config("enforceNodeAllocatable", json!(["pods", "system-reserved", "kube-reserved-compressible"]))
        .config("systemReservedCgroup", json!(format!("{}/reserved-system", lab.cgroup())))
        .config("kubeReservedCgroup", json!(format!("{}/reserved-kube", lab.cgroup())))
        .config("systemReserved", json!({"cpu": "200m", "memory": "300Mi", "pid": "500", "ephemeral-storage": "1Gi"}))
        .config("kubeReserved", json!({"cpu": "100m", "memory": "100Mi", "pid": "300"}))
        .config("featureGates", json!({"QOSReserved": true}))
        .config("qosReserved", json!({"memory": "50%"}))
        .start()?;
    let limits = json!({"limits": {"cpu": "100m", "memory": "64Mi"}});
    node.write(&Pod::idle("web").container_field("resources", limits))?;
    let before = node.wait_running("web", 1)?;

    let enforced = || -> Result<()> {
        let is_v1 = value(&node, "kubepods", "cpu.shares").is_some();
        let kept = (cpus * 1000 - 300) * 1024 / 1000;
        for (cgroup, shares) in [("reserved-system", 204), ("reserved-kube", 102), ("kubepods", kept)] {
            let (file, wanted) = if is_v1 { ("cpu.shares", shares) } else { ("cpu.weight", weight(shares)) };
            let found = value_of(&node, cgroup, file)?;
            ensure!(found == wanted.to_string(), "{file} of {cgroup}: {found}");
        }
        let memory = if is_v1 { "memory.limit_in_bytes" } else { "memory.max" };
        ensure!(value_of(&node, "reserved-system", memory)? == "314572800");
        ensure!(value_of(&node, "reserved-system", "pids.max")? == "500");
        ensure!(value_of(&node, "reserved-kube", "pids.max")? == "max", "compressible: CPU alone");
        let kube = value_of(&node, "reserved-kube", memory)?;
        ensure!(["9223372036854771712", "max"].contains(&kube.as_str()), "{kube}");
        // Of what a guaranteed pod asks for half is out of reach for lower classes.
        let pods: u64 = value_of(&node, "kubepods", memory)?.parse()?;
        for level in ["kubepods/burstable", "kubepods/besteffort"] {
            let limit = value_of(&node, level, memory)?;
            ensure!(limit == (pods - (32 << 20)).to_string(), "{memory} of {level}: {limit}, {pods} for all pods");
        }
        Ok(())
    };
    // The node's events are in the log, too.
    let told = |what: &str| {
        eventually(what, LONG, || {
            ensure!(std::fs::read_to_string(node.log())?.contains(what), "it is not in the log");
            Ok(())
        })
    };
    eventually("all limits are set", LONG, enforced)?;
    told("Updated limits on system reserved cgroup")?;
    told("Updated limits on kube reserved cgroup")?;

    // A cgroup that goes is told of, and holds up no pod.
    let system = format!("{}/reserved-system", lab.cgroup());
    cgroups::kill_and_remove(&system)?;
    node.kill_daemon("kubelet-volnetd")?;
    told("Failed to enforce System Reserved Cgroup Limits on ")?;
    node.write(&Pod::idle("late"))?;
    node.wait_running("late", 1)?;
    reserve(&system)?;
    node.kill_daemon("kubelet-volnetd")?;
    eventually("all limits are set again", LONG, enforced)?;
    ensure!(node.wait_running("web", 1)?.main().id == before.main().id, "the pod was left alone");
    let log = std::fs::read_to_string(node.log())?;
    for field in ["qosReserved", "systemReservedCgroup", "enforceNodeAllocatable["] {
        ensure!(!log.contains(field), "{field} is named as not there yet");
    }
    node.finish()
}

/// What an operator makes before the start: a cgroup with its controllers.
fn reserve(cgroup: &str) -> Result<()> {
    cgroups::create(cgroup)?;
    for top in cgroups::hierarchies().into_iter().filter(|top| top.join("cgroup.subtree_control").exists()) {
        let path = top.join(cgroup.trim_start_matches('/'));
        let above: Vec<_> = path.ancestors().skip(1).take_while(|above| above.starts_with(&top)).collect();
        for folder in above.into_iter().rev() {
            // A hierarchy beside those of version 1 has none of them.
            for controller in ["+cpu", "+memory", "+pids"] {
                let _ = std::fs::write(folder.join("cgroup.subtree_control"), controller);
            }
        }
    }
    Ok(())
}

fn weight(shares: u64) -> u64 {
    1 + (shares.max(2) - 2) * 9999 / 262_142
}

/// A file of a cgroup below the node's, in whichever hierarchy has it.
fn value(node: &Node, cgroup: &str, file: &str) -> Option<String> {
    let root = node.cgroup_root().trim_start_matches('/');
    let paths = cgroups::hierarchies().into_iter().map(|top| top.join(root).join(cgroup).join(file));
    let found: Option<PathBuf> = paths.into_iter().find(|path| path.exists());
    Some(std::fs::read_to_string(found?).ok()?.trim().to_owned())
}

fn value_of(node: &Node, cgroup: &str, file: &str) -> Result<String> {
    value(node, cgroup, file).with_context(|| format!("{cgroup} has no {file}"))
}
