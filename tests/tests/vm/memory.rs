//! Memory: what is kept for whom, who is throttled, and who is killed.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::node::{MIB, NAMESPACE, Node, PODS, TREE, World, expect, get};

/// Request of the burstable pod, and from where on it is throttled: half-way to its limit.
const REQUEST: u64 = 16 * MIB;
const HIGH: u64 = 48 * MIB;

/// Gate MemoryQoS with TieredReservation: requests are kept, what lies between request and limit is throttled. The metrics
/// say what is kept for either level.
pub fn kept(world: &mut World, node: &Node) -> Result<()> {
    let vm = &mut world.vm;
    let pod = |name: &str, file: &str| format!("{}/{file}", node.slices[name]);
    let own = |name: &str, file: &str| format!("{}/{file}", node.scopes[name]);
    let table = [
        ("memory.min".to_owned(), 64 * MIB + REQUEST),
        ("kubepods-burstable.slice/memory.low".to_owned(), REQUEST),
        (pod("guaranteed", "memory.min"), 64 * MIB),
        (pod("burstable", "memory.low"), REQUEST),
        (own("guaranteed", "memory.min"), 64 * MIB),
        (own("burstable", "memory.low"), REQUEST),
        (own("burstable", "memory.high"), HIGH),
    ];
    let mut table: Vec<(String, String)> = table.map(|(file, value)| (file, value.to_string())).into();
    // Where request and limit are one there is nothing to throttle.
    table.push((own("guaranteed", "memory.high"), "max".to_owned()));
    expect(vm, &table)?;
    let metrics =
        vm.run(&format!("{} > /tmp/metrics; grep ^kubelet_memory_qos_ /tmp/metrics | sort", get("/metrics")))?;
    let metrics: Vec<(&str, f64)> = metrics
        .lines()
        .map(|line| {
            let (name, value) = line.split_once(' ').context("a series")?;
            Ok((name, value.parse()?))
        })
        .collect::<Result<_>>()?;
    let expected = [
        ("kubelet_memory_qos_node_memory_low_bytes", REQUEST as f64),
        ("kubelet_memory_qos_node_memory_min_bytes", (64 * MIB) as f64),
    ];
    ensure!(metrics == expected, "{metrics:?}");
    Ok(())
}

/// A container that takes more than `memory.high` gets it, slowly: the kernel counts that and makes it wait, and nobody is
/// killed for it.
pub fn throttled(world: &mut World, node: &Node) -> Result<()> {
    let vm = &mut world.vm;
    let scope = format!("{TREE}/{}", node.scopes["burstable"]);
    let before = events(&vm.run(&format!("cat {scope}/memory.events"))?)?;
    ensure!(before["high"] == 0, "{before:?}");
    let waited = format!("sed -n 's/^some .*total=//p' {scope}/memory.pressure");
    let waited_before: u64 = vm.run(&waited)?.parse()?;
    // The container's first process is the one that listens.
    let first = vm.run(&format!(
        "for pid in $(cat {scope}/cgroup.procs); do grep -q '^NSpid:.*[[:space:]]1$' /proc/$pid/status && echo $pid || :; done"
    ))?;
    vm.run(&format!("kill -USR1 {first}"))?;
    let done = vm.until("it has what it takes", PODS, &format!("grep . /proc/{first}/root/dev/shm/done"))?;
    ensure!(done == "0", "writing ended with {done}");
    let after = events(&vm.run(&format!("cat {scope}/memory.events"))?)?;
    ensure!(after["high"] > 0, "{after:?}");
    let harmed = ["max", "oom", "oom_kill"].map(|event| after[event]);
    ensure!(harmed == [0; 3], "{after:?}");
    let peak: u64 = vm.run(&format!("cat {scope}/memory.peak"))?.parse()?;
    ensure!(peak > HIGH && peak < 80 * MIB, "it had {peak} at most");
    let waited_after: u64 = vm.run(&waited)?.parse()?;
    ensure!(waited_after > waited_before, "it waited for memory {waited_before} us before and {waited_after} after");
    ensure!(world.node()?.running == node.running, "nobody was killed");
    Ok(())
}

fn events(text: &str) -> Result<BTreeMap<String, u64>> {
    let of = |line: &str| {
        let (name, count) = line.split_once(' ').with_context(|| line.to_owned())?;
        Ok((name.to_owned(), count.parse()?))
    };
    text.lines().map(of).collect()
}

/// Killed for memory: the whole container, and so it is said. containerd 1.6 may miss the kernel's word when the cgroup goes
/// with its last process; the pod is run again until it has not.
pub fn killed(world: &mut World) -> Result<()> {
    let mut ended = Value::Null;
    world.wait("greedy", "a container is killed for memory", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        let killed = [&status["state"]["terminated"], &status["lastState"]["terminated"]];
        let killed = killed.into_iter().find(|ended| ended["reason"] == "OOMKilled");
        ended = killed.cloned().unwrap_or_default();
        killed.is_some()
    })?;
    ensure!(ended["exitCode"] == 137, "{ended}");
    world.cluster.delete("pods", NAMESPACE, "greedy", None)?;
    world.gone("greedy")?;
    // Its slice goes after its object, and what was kept for it a little later.
    let gone = format!(
        "[ $(find {TREE} -name 'kubepods-*-pod*.slice' -o -name 'kubepods-pod*.slice' | wc -l) = 3 ]\n\
         [ $(cat {TREE}/memory.min) = {} ]\n[ $(cat {TREE}/kubepods-burstable.slice/memory.low) = {} ]",
        64 * MIB + crate::resize::REQUEST,
        crate::resize::REQUEST
    );
    world.vm.until("the greedy pod is gone", PODS, &gone)?;
    Ok(())
}

/// The machine itself is out of memory, or so the kernel is told (sysrq's `f`): the node's event says who was killed, and the machine's
/// count counts it.
pub fn machine_ran_out(world: &mut World) -> Result<()> {
    told_of_the_machine(world, 0)?;
    world.cluster.create(&crate::node::glutton())?;
    world.wait("glutton", "it runs", |pod| pod["status"]["phase"] == "Running")?;
    // Some end while they are looked at.
    let held = format!(
        "for pid in $(cat $(find {TREE} -path '*besteffort*' -name cgroup.procs)); do \
         held=$(sed -n 's/^VmRSS:[^0-9]*\\([0-9]*\\) kB/\\1/p' /proc/$pid/status 2> /dev/null || :); \
         [ \"${{held:-0}}\" -gt 15000 ] && echo $pid; done | grep ."
    );
    let victim = world.vm.until("it holds what it takes", PODS, &held)?;
    // Whoever writes to the log by himself is not believed.
    let forged = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=forged,\
                  pid=1,uid=0";
    world.vm.run(&format!("echo '<4>{forged}' > /dev/kmsg"))?;
    world.vm.run("echo 1 > /proc/sys/kernel/sysrq; echo f > /proc/sysrq-trigger")?;
    let said = format!("System OOM encountered, victim process: sh, pid: {victim}");
    bulkhead_testkit::eventually("the node says that it was out of memory", Duration::from_secs(PODS.into()), || {
        let told = system_ooms(world)?;
        ensure!(told == [(said.clone(), 1)], "{told:?} instead of {said:?}");
        Ok(())
    })?;
    told_of_the_machine(world, 1)?;
    world.cluster.delete("pods", NAMESPACE, "glutton", None)?;
    world.gone("glutton")
}

/// Messages of the node's events SystemOOM, and how often each was said.
fn system_ooms(world: &World) -> Result<Vec<(String, u64)>> {
    let events = world.cluster.list("events", Some(NAMESPACE))?;
    let of_memory = events.iter().filter(|event| event["reason"] == "SystemOOM");
    Ok(of_memory
        .map(|event| {
            let count = event["count"].as_u64().or(event["series"]["count"].as_u64()).unwrap_or(1);
            (event["message"].as_str().unwrap_or_default().to_owned(), count)
        })
        .collect())
}

/// So often and no more, whoever has died meanwhile.
pub fn told_of_the_machine(world: &mut World, times: usize) -> Result<()> {
    let series = format!(
        "{} | sed -n 's/^container_oom_events_total{{[^}}]*id=\"\\/\",[^}}]*}} \\([0-9]*\\) .*/\\1/p' | grep -x {times}",
        get("/metrics/cadvisor")
    );
    // Statistics are up to ten seconds old.
    world.vm.until(&format!("the machine's count is shown as {times}"), PODS, &series)?;
    let told = system_ooms(world)?;
    ensure!(told.len() == times && told.iter().all(|(_, count)| *count == 1), "{told:?}");
    Ok(())
}
