//! A node that runs short of something: who is evicted and what is said of it, on the real API server with real control groups and
//! file systems; and that no death of a process makes a second victim, or forgets the first.

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::{LONG, Pod, eventually};
use bulkhead_tests::disk::Disk;
use bulkhead_tests::history::pod_only_advances;
use bulkhead_tests::joined::{Member, NAMESPACE, NODE, create, events, wait_phase, wait_ready};
use bulkhead_tests::lab;
use serde_json::{Value, json};

pub(crate) const MIB: u64 = 1 << 20;

/// What has to be reserved so that pods may have this much of the machine's memory.
pub(crate) fn reserved_beside(bytes: u64) -> Result<String> {
    let meminfo = std::fs::read_to_string("/proc/meminfo")?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).context("no MemTotal")?;
    let total: u64 = line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024;
    Ok((total - bytes).to_string())
}

/// Takes memory step by step until it is told to end, as failed, for one that exits with 0 has Succeeded; what it takes goes with its
/// pod.
pub(crate) fn taker(name: &str, megabytes: u64, pause: &str) -> Pod {
    let script = format!(
        "trap 'exit 3' TERM; i=0; while true; do dd if=/dev/zero of=/mem/$i bs=1M count={megabytes} 2>/dev/null; \
         i=$((i+1)); sleep {pause}; done"
    );
    Pod::busybox(name, &script).empty_dir("mem", "Memory", None, "/mem")
}

pub(crate) fn condition(member: &Member, kind: &str) -> Result<Value> {
    let node = member.cluster.get("nodes", "", NODE)?;
    let conditions = node["status"]["conditions"].as_array().context("no conditions")?;
    conditions.iter().find(|one| one["type"] == kind).cloned().with_context(|| format!("no {kind}"))
}

/// Of the node.
pub(crate) fn node_events(member: &Member, reason: &str) -> Result<Vec<String>> {
    let all = member.cluster.list("events", Some("default"))?;
    let of_node = all.iter().filter(|event| event["involvedObject"]["kind"] == "Node" && event["reason"] == reason);
    Ok(of_node.map(|event| event["message"].as_str().unwrap_or_default().to_owned()).collect())
}

pub(crate) fn evicted(member: &Member) -> Result<Vec<String>> {
    let pods = member.cluster.list("pods", Some(NAMESPACE))?;
    let evicted = pods.iter().filter(|pod| pod["status"]["reason"] == "Evicted");
    Ok(evicted.map(|pod| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect())
}

pub(crate) fn is_said(status: &Value, expected: &[&str]) -> Result<()> {
    let message = status["message"].as_str().unwrap_or_default();
    for part in expected {
        ensure!(message.contains(part), "{part:?} is not in {message:?}");
    }
    Ok(())
}

#[test]
fn who_takes_the_pods_memory_is_evicted_and_nobody_else() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let reserved = reserved_beside(700 * MIB)?;
    let mut member = Member::start(&lab, &[], |node| {
        node.config("systemReserved", json!({"memory": reserved}))
            .config("evictionHard", json!({"memory.available": "100Mi"}))
            .config("evictionPressureTransitionPeriod", json!("20s"))
    })?;
    member.node.write(&Pod::idle("static"))?;
    let resources = json!({"requests": {"memory": "64Mi"}});
    create(&member.cluster, Pod::idle("calm").container_field("resources", resources))?;
    wait_ready(&member.cluster, "calm")?;
    let calm = member.node.fingerprint()?;
    create(&member.cluster, taker("taker", 8, "0.03"))?;
    let gone = wait_phase(&member.cluster, "taker", "Failed")?;
    let status = &gone["status"];
    ensure!(status["reason"] == "Evicted", "{status:#}");
    is_said(
        status,
        &[
            "The node was low on resource: memory. Threshold quantity: 100Mi, available: ",
            "Container main was using ",
            ", request is 0, has larger consumption of memory. ",
        ],
    )?;
    let target =
        status["conditions"].as_array().and_then(|all| all.iter().find(|one| one["type"] == "DisruptionTarget"));
    let target = target.context("no DisruptionTarget")?;
    ensure!(target["status"] == "True" && target["reason"] == "TerminationByKubelet", "{target}");
    ensure!(target["message"] == status["message"], "{target}");
    let ended = &status["containerStatuses"][0]["state"]["terminated"];
    ensure!(
        ended["reason"] == "Error" && ended["exitCode"] == 3,
        "it ended upon SIGTERM, and not by the kernel: {ended}"
    );
    pod_only_advances(&member.cluster.history("pods", NAMESPACE, "taker")?)?;
    let event = member.wait_event("taker", "Evicted", |message| status["message"] == message)?;
    ensure!(event["type"] == "Warning", "{event}");
    let annotations = &event["metadata"]["annotations"];
    ensure!(annotations["starved_resource"] == "memory" && annotations["offending_containers"] == "main", "{event}");
    eventually("the node says what it did", LONG, || {
        let said = node_events(&member, "EvictionThresholdMet")?;
        ensure!(said.first().is_some_and(|message| message == "Attempting to reclaim memory"), "{said:?}");
        Ok(())
    })?;

    // A node under pressure takes no more of those who suffer first.
    eventually("MemoryPressure is True", LONG, || {
        let pressure = condition(&member, "MemoryPressure")?;
        ensure!(pressure["status"] == "True" && pressure["reason"] == "KubeletHasInsufficientMemory", "{pressure}");
        Ok(())
    })?;
    create(&member.cluster, Pod::idle("late"))?;
    let refused = wait_phase(&member.cluster, "late", "Failed")?;
    ensure!(refused["status"]["reason"] == "Evicted", "{refused:#}");
    is_said(&refused["status"], &["Pod was rejected: The node had condition: [MemoryPressure]. "])?;
    let wants = json!({"requests": {"memory": "8Mi"}});
    create(&member.cluster, Pod::idle("burstable").container_field("resources", wants))?;
    wait_ready(&member.cluster, "burstable")?;
    member.node.kill_daemon("kubelet-syncd")?;
    member.node.wait_healthy()?;
    create(&member.cluster, Pod::idle("later"))?;
    is_said(&wait_phase(&member.cluster, "later", "Failed")?["status"], &["[MemoryPressure]"])?;

    eventually("the pressure is over, and stays over", LONG, || {
        let pressure = condition(&member, "MemoryPressure")?;
        ensure!(pressure["status"] == "False" && pressure["reason"] == "KubeletHasSufficientMemory", "{pressure}");
        Ok(())
    })?;
    create(&member.cluster, Pod::idle("after"))?;
    wait_ready(&member.cluster, "after")?;
    let now = member.node.fingerprint()?;
    ensure!(calm.iter().all(|one| now.contains(one)), "calm and static run as before: {calm:?}, {now:?}");
    let mut all = evicted(&member)?;
    all.sort();
    ensure!(all == ["late", "later", "taker"], "{all:?}");
    let metrics = member.node.agent()?.metrics("kubelet-evictiond")?;
    ensure!(metrics.contains("kubelet_evictions{eviction_signal=\"allocatableMemory.available\"} 1"), "{metrics}");
    member.node.finish()
}

#[test]
fn who_fills_the_nodes_disk_is_evicted_and_so_is_who_exceeds_its_own_limits() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let disk = Disk::new(&lab, "nodefs", 300)?;
    let member = Member::start(&lab, &[], |node| {
        node.in_folder(disk.path())
            .config("evictionHard", json!({"nodefs.available": "100Mi"}))
            .config("evictionMinimumReclaim", json!({"nodefs.available": "20Mi"}))
            .config("evictionPressureTransitionPeriod", json!("5s"))
            .config("volumeStatsAggPeriod", json!("2s"))
    })?;
    let writer = |name: &str, megabytes: u64, total: u64| {
        let script = format!(
            "trap 'exit 3' TERM; i=0; while [ $i -lt {total} ]; do dd if=/dev/zero of=/data/$i bs=1M count={megabytes} \
             2>/dev/null; i=$((i+1)); sleep 0.1; done; while true; do sleep 1; done"
        );
        Pod::busybox(name, &script)
    };
    create(&member.cluster, writer("calm", 1, 10).empty_dir("data", "", Some("50Mi"), "/data"))?;
    create(&member.cluster, writer("greedy", 1, 10).empty_dir("data", "", Some("5Mi"), "/data"))?;
    let gone = wait_phase(&member.cluster, "greedy", "Failed")?;
    ensure!(gone["status"]["reason"] == "Evicted", "{:#}", gone["status"]);
    let message = "Usage of EmptyDir volume \"data\" exceeds the limit \"5Mi\". ";
    ensure!(gone["status"]["message"] == message, "{:#}", gone["status"]);
    let conditions = gone["status"]["conditions"].as_array().cloned().unwrap_or_default();
    ensure!(!conditions.iter().any(|one| one["type"] == "DisruptionTarget"), "{conditions:?}");
    ensure!(condition(&member, "DiskPressure")?["status"] == "False");

    // CVE-2020-8557: a container's /etc/hosts is a file on the node's disk, too.
    let script = "dd if=/dev/zero of=/etc/hosts bs=1M count=20 2>/dev/null; while true; do sleep 1; done";
    let limits = json!({"limits": {"ephemeral-storage": "8Mi"}});
    create(&member.cluster, Pod::busybox("hosts", script).container_field("resources", limits))?;
    let gone = wait_phase(&member.cluster, "hosts", "Failed")?;
    let message = "Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. ";
    ensure!(gone["status"]["message"] == message, "{:#}", gone["status"]);

    create(&member.cluster, writer("taker", 5, 1000).empty_dir("data", "", None, "/data"))?;
    let gone = wait_phase(&member.cluster, "taker", "Failed")?;
    ensure!(gone["status"]["reason"] == "Evicted", "{:#}", gone["status"]);
    is_said(
        &gone["status"],
        &["The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: "],
    )?;
    member.wait_event("taker", "Evicted", |message| gone["status"]["message"] == message)?;
    eventually("its files are gone, and with them the pressure", LONG, || {
        let pressure = condition(&member, "DiskPressure")?;
        ensure!(
            pressure["status"] == "False" && !node_events(&member, "EvictionThresholdMet")?.is_empty(),
            "{pressure}"
        );
        let told = events(&member.cluster, &member.cluster.get("nodes", "", NODE)?)?;
        ensure!(told.iter().any(|event| event.contains("NodeHasDiskPressure")), "{told:#?}");
        Ok(())
    })?;
    let mut all = evicted(&member)?;
    all.sort();
    ensure!(all == ["greedy", "hosts", "taker"], "{all:?}");
    ensure!(wait_ready(&member.cluster, "calm")?["status"]["phase"] == "Running");
    member.node.finish()?;
    drop(disk);
    Ok(())
}

/// There is room for what is in files, and none for more files.
#[test]
fn who_takes_the_nodes_inodes_is_evicted() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let disk = Disk::with_inodes(&lab, "nodefs", 200, 4096)?;
    let member = Member::start(&lab, &[], |node| {
        node.in_folder(disk.path())
            .config("evictionHard", json!({"nodefs.inodesFree": "1000"}))
            .config("evictionPressureTransitionPeriod", json!("5s"))
    })?;
    create(&member.cluster, Pod::idle("calm"))?;
    wait_ready(&member.cluster, "calm")?;
    // Less than there is, or the node itself could make no file any more.
    let free = rustix::fs::statvfs(disk.path())?.f_ffree;
    let total = free.checked_sub(500).with_context(|| format!("{free} inodes are free"))?;
    let script = format!(
        "trap 'exit 3' TERM; i=0; while [ $i -lt {total} ]; do : > /data/$i; i=$((i+1)); done; while true; do sleep 1; done"
    );
    create(&member.cluster, Pod::busybox("taker", &script).empty_dir("data", "", None, "/data"))?;
    let gone = wait_phase(&member.cluster, "taker", "Failed")?;
    ensure!(gone["status"]["reason"] == "Evicted", "{:#}", gone["status"]);
    is_said(&gone["status"], &["The node was low on resource: inodes. Threshold quantity: 1k, available: "])?;
    member.wait_event("taker", "Evicted", |message| gone["status"]["message"] == message)?;
    eventually("its files are gone, and with them the pressure", LONG, || {
        let pressure = condition(&member, "DiskPressure")?;
        ensure!(
            pressure["status"] == "False" && !node_events(&member, "NodeHasDiskPressure")?.is_empty(),
            "{pressure}"
        );
        Ok(())
    })?;
    ensure!(evicted(&member)? == ["taker"], "{:?}", evicted(&member)?);
    ensure!(wait_ready(&member.cluster, "calm")?["status"]["phase"] == "Running");
    member.node.finish()?;
    drop(disk);
    Ok(())
}

/// Each process is killed while the evicted pod still ends.
#[test]
fn no_death_makes_a_second_victim_or_forgets_the_first() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let reserved = reserved_beside(600 * MIB)?;
    let mut member = Member::start(&lab, &[], |node| {
        node.config("systemReserved", json!({"memory": reserved}))
            .config("evictionHard", json!({"pid.available": "1"}))
            .config("evictionSoft", json!({"allocatableMemory.available": "100Mi"}))
            .config("evictionSoftGracePeriod", json!({"allocatableMemory.available": "2s"}))
            .config("evictionMaxPodGracePeriod", json!(8))
    })?;
    // Takes what it wants and no more, and does not end when it is asked to.
    let stubborn = |name: &str| {
        let script =
            "trap '' TERM; dd if=/dev/zero of=/mem/a bs=1M count=280 2>/dev/null; while true; do sleep 1; done";
        Pod::busybox(name, script)
            .empty_dir("mem", "Memory", None, "/mem")
            .spec("terminationGracePeriodSeconds", json!(30))
    };
    create(&member.cluster, stubborn("one"))?;
    create(&member.cluster, stubborn("two"))?;
    eventually("one of them is evicted", LONG, || {
        let log = std::fs::read_to_string(member.node.log())?;
        ensure!(log.contains("Evicting pod"), "not yet");
        Ok(())
    })?;
    member.node.kill_daemon("kubelet-syncd")?;
    member.node.kill_daemon("kubelet-evictiond")?;
    member.node.wait_healthy()?;
    member.node.kill_daemon("kubelet-evictiond")?;
    member.node.kill_daemon("kubelet-statusd")?;
    member.node.wait_healthy()?;
    eventually("it has ended as evicted", LONG, || {
        ensure!(evicted(&member)?.len() == 1, "not yet");
        Ok(())
    })?;
    let victim = evicted(&member)?.remove(0);
    let gone = wait_phase(&member.cluster, &victim, "Failed")?;
    is_said(&gone["status"], &["The node was low on resource: memory. Threshold quantity: 100Mi, available: "])?;
    let container = &gone["status"]["containerStatuses"][0];
    ensure!(container["restartCount"] == 0 && container["state"]["terminated"]["exitCode"] == 137, "{container:#}");
    let other = if victim == "one" { "two" } else { "one" };
    ensure!(wait_ready(&member.cluster, other)?["status"]["containerStatuses"][0]["restartCount"] == 0);
    let log = std::fs::read_to_string(member.node.log())?;
    ensure!(log.matches("Evicting pod").count() == 1, "one was asked for");
    // Gone from the API: nothing of it is kept.
    member.cluster.delete("pods", NAMESPACE, &victim, Some(0))?;
    let state = member.node.root_dir().join("bulkhead/syncd/evictions.json");
    eventually("the record goes with the pod", LONG, || {
        let kept = std::fs::read_to_string(&state)?;
        ensure!(kept.contains("\"evictions\":{}"), "{kept}");
        Ok(())
    })?;
    member.node.finish()
}
