//! Evictions while something is not as it should be: images and writable layers on two file systems, one that does not answer, processes
//! and the API server away.

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::silent_fs::SilentFs;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::{LONG, Node, Pod, eventually, processes};
use bulkhead_tests::disk::Disk;
use bulkhead_tests::golden::Proxy;
use bulkhead_tests::joined::{Member, NODE, create, wait_node, wait_phase, wait_ready};
use bulkhead_tests::lab;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::eviction::{MIB, condition, evicted, is_said, reserved_beside, taker};

fn pressure(node: &Node) -> Result<Value> {
    Ok(serde_json::from_str(&node.ctl(&["pressure", "-o", "json"])?)?)
}

/// One signal of it.
fn signal<'a>(pressure: &'a Value, name: &str) -> Result<&'a Value> {
    let signals = pressure["signals"].as_array().context("no signals")?;
    signals.iter().find(|one| one["signal"] == name).with_context(|| format!("no {name} in {pressure}"))
}

/// Writes to its emptyDir until it is told to end.
fn writer(name: &str) -> Pod {
    let script = "trap 'exit 3' TERM; i=0; while [ $i -lt 1000 ]; do dd if=/dev/zero of=/data/$i bs=1M count=5 2>/dev/null; \
                  i=$((i+1)); sleep 0.1; done; while true; do sleep 1; done";
    Pod::busybox(name, script).empty_dir("data", "", None, "/data")
}

/// Takes this much of the pods' memory, keeps it, and ends when it is told to.
fn holder(name: &str, megabytes: u64) -> Pod {
    let script = format!(
        "trap 'exit 3' TERM; dd if=/dev/zero of=/mem/a bs=1M count={megabytes} 2>/dev/null; echo taken; while true; do sleep 0.1; done"
    );
    Pod::busybox(name, &script).empty_dir("mem", "Memory", None, "/mem")
}

#[test]
fn layers_apart_from_images_follow_the_nodes_disk() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (disk, images) = (Disk::new(&lab, "nodefs", 300)?, Disk::new(&lab, "imagefs", 100)?);
    let proxy = Proxy::start(&lab.folder().join("split.sock"), &lab.containerd().socket())?;
    proxy.file_systems(images.path(), disk.path())?;
    let mut member = Member::start(&lab, &[], |node| {
        node.in_folder(disk.path())
            .config("containerRuntimeEndpoint", json!(proxy.endpoint()))
            .config("featureGates", json!({"KubeletSeparateDiskGC": false}))
            .config("evictionHard", json!({"nodefs.available": "100Mi", "imagefs.available": "20Mi"}))
            .config("evictionPressureTransitionPeriod", json!("2s"))
    })?;
    // Without the gate a node with such disks evicts nobody, and says so.
    let filler = disk.path().join("filler");
    eventually("the node says that it evicts nobody", LONG, || {
        let pressure = pressure(&member.node)?;
        ensure!(pressure["fileSystems"] == "split", "{pressure}");
        ensure!(pressure["doing"].as_str().is_some_and(|doing| doing.contains("KubeletSeparateDiskGC")), "{pressure}");
        Ok(())
    })?;
    create(&member.cluster, Pod::idle("calm"))?;
    wait_ready(&member.cluster, "calm")?;
    std::fs::write(&filler, vec![1; usize::try_from(190 * MIB)?])?;
    eventually("the disk is seen to be short", LONG, || {
        let pressure = pressure(&member.node)?;
        let left = signal(&pressure, "nodefs.available")?["available"].as_u64().context("unknown")?;
        ensure!(left < 100 * MIB, "{left}");
        Ok(())
    })?;
    ensure!(condition(&member, "DiskPressure")?["status"] == "False");
    std::fs::remove_file(&filler)?;
    member.node.stop()?;
    let config = member.node.config_file();
    let text = std::fs::read_to_string(&config)?;
    let mut content: Value = serde_json::from_str(&text)?;
    content["featureGates"] = json!({"KubeletSeparateDiskGC": true});
    std::fs::write(&config, content.to_string())?;
    member.node.launch()?;
    member.node.wait_healthy()?;

    eventually("containerfs has the thresholds of nodefs", LONG, || {
        let pressure = pressure(&member.node)?;
        let of = |name: &str| -> Result<Value> { Ok(signal(&pressure, name)?["thresholds"][0]["limit"].clone()) };
        ensure!(of("containerfs.available")? == "100Mi" && of("imagefs.available")? == "20Mi", "{pressure}");
        Ok(())
    })?;
    create(&member.cluster, writer("taker"))?;
    let gone = wait_phase(&member.cluster, "taker", "Failed")?;
    is_said(
        &gone["status"],
        &["The node was low on resource: ephemeral-storage. Threshold quantity: 100Mi, available: "],
    )?;
    eventually("its files are gone, and with them the pressure", LONG, || {
        let pressure = condition(&member, "DiskPressure")?;
        ensure!(pressure["status"] == "False", "{pressure}");
        Ok(())
    })?;
    ensure!(evicted(&member)? == ["taker"]);
    ensure!(wait_ready(&member.cluster, "calm")?["status"]["containerStatuses"][0]["restartCount"] == 0);
    member.node.finish()?;
    drop((disk, images));
    Ok(())
}

#[test]
fn a_file_system_that_hangs_makes_its_signals_unknown_and_nothing_else() -> Result<()> {
    if !SilentFs::is_possible() {
        return skip_this_test(Lack::Fuse);
    }
    let Some(lab) = lab()? else { return Ok(()) };
    let silent = lab.folder().join("silent-images");
    std::fs::create_dir(&silent)?;
    let file_system = SilentFs::mount_silent(&silent)?;
    let proxy = Proxy::start(&lab.folder().join("silent.sock"), &lab.containerd().socket())?;
    proxy.file_systems(&silent, &silent)?;
    let reserved = reserved_beside(700 * MIB)?;
    let member = Member::start(&lab, &[], |node| {
        node.config("containerRuntimeEndpoint", json!(proxy.endpoint()))
            .config("systemReserved", json!({"memory": reserved}))
            .config(
                "evictionHard",
                json!({"memory.available": "100Mi", "imagefs.available": "1%", "nodefs.available": "1%"}),
            )
    })?;
    eventually("it is known what hangs", LONG, || {
        ensure!(file_system.unanswered() > 0, "nobody has asked");
        let said = member.node.agent()?.hello("kubelet-evictiond")?.degraded.join("; ");
        ensure!(said.contains("silent-images"), "{said:?}");
        let pressure = pressure(&member.node)?;
        ensure!(signal(&pressure, "imagefs.available")?["available"].is_null(), "{pressure}");
        ensure!(signal(&pressure, "nodefs.available")?["available"].is_u64(), "{pressure}");
        Ok(())
    })?;
    create(&member.cluster, Pod::idle("calm").container_field("resources", json!({"requests": {"memory": "64Mi"}})))?;
    wait_ready(&member.cluster, "calm")?;
    create(&member.cluster, taker("taker", 8, "0.03"))?;
    let gone = wait_phase(&member.cluster, "taker", "Failed")?;
    is_said(&gone["status"], &["The node was low on resource: memory. "])?;
    ensure!(gone["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3, "{:#}", gone["status"]);
    ensure!(condition(&member, "DiskPressure")?["status"] == "False", "what is unknown is no pressure");
    ensure!(evicted(&member)? == ["taker"]);
    drop(file_system);
    eventually("it is known again", LONG, || {
        let said = member.node.agent()?.hello("kubelet-evictiond")?.degraded.join("; ");
        ensure!(!said.contains("silent-images"), "{said:?}");
        Ok(())
    })?;
    member.node.finish()
}

/// Memory becomes short while nobody looks at it; and the API server is not there to be told.
#[test]
fn both_away_under_pressure_then_the_api_server() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(bulkhead_testkit::apiserver::Config::default())?;
    let reserved = reserved_beside(700 * MIB)?;
    let node = lab
        .node(NODE)
        .joins(&cluster)?
        .config("systemReserved", json!({"memory": reserved}))
        .config("evictionHard", json!({"memory.available": "100Mi"}))
        .config("evictionPressureTransitionPeriod", json!("3s"))
        .start()?;
    let mut member = Member { cluster, node };
    wait_node(&member.cluster, "True")?;
    let requests = json!({"requests": {"memory": "64Mi"}});
    create(&member.cluster, Pod::idle("calm").container_field("resources", requests.clone()))?;
    create(&member.cluster, holder("first", 250))?;
    for pod in ["calm", "first"] {
        wait_ready(&member.cluster, pod)?;
    }

    // The launcher starts nobody again while it is stopped.
    let script = "trap 'exit 3' TERM; until [ -e /go/go ]; do sleep 0.1; done; dd if=/dev/zero of=/mem/a bs=1M count=380 2>/dev/null; \
                  touch /go/taken; while true; do sleep 0.1; done";
    let go = lab.folder().join("go");
    std::fs::create_dir(&go)?;
    let second = Pod::busybox("second", script).empty_dir("mem", "Memory", None, "/mem").host_path(
        "go",
        &go.display().to_string(),
        "Directory",
        "/go",
    );
    create(&member.cluster, second)?;
    wait_ready(&member.cluster, "second")?;
    let launcher = member.node.pids()["kubelet"];
    processes::signal(launcher, Signal::SIGSTOP);
    let away = (|| {
        member.node.kill_daemon("kubelet-evictiond")?;
        member.node.kill_daemon("kubelet-syncd")?;
        std::fs::write(go.join("go"), "")?;
        eventually("memory is short", LONG, || {
            ensure!(go.join("taken").exists(), "not yet");
            Ok(())
        })
    })();
    processes::signal(launcher, Signal::SIGCONT);
    away?;
    member.node.wait_healthy()?;
    let gone = wait_phase(&member.cluster, "second", "Failed")?;
    ensure!(gone["status"]["reason"] == "Evicted", "{:#}", gone["status"]);
    eventually("the pressure is over", LONG, || {
        let pressure = condition(&member, "MemoryPressure")?;
        ensure!(pressure["status"] == "False", "{pressure}");
        Ok(())
    })?;
    ensure!(evicted(&member)? == ["second"], "{:?}", evicted(&member)?);

    // The API server goes away before the next one is evicted, and hears of it when it is back.
    create(&member.cluster, taker("third", 8, "0.5"))?;
    wait_ready(&member.cluster, "third")?;
    member.cluster.stop()?;
    let log = member.node.log();
    eventually("a pod is evicted meanwhile", LONG, || {
        let log = std::fs::read_to_string(&log)?;
        ensure!(log.matches("Evicting pod").count() == 2, "not yet");
        ensure!(log.matches("pods successfully cleaned up").count() == 2, "it has not ended");
        Ok(())
    })?;
    member.cluster.resume()?;
    let gone = wait_phase(&member.cluster, "third", "Failed")?;
    is_said(&gone["status"], &["The node was low on resource: memory. Threshold quantity: 100Mi, available: "])?;
    member.wait_event("third", "Evicted", |message| gone["status"]["message"] == message)?;
    let mut all = evicted(&member)?;
    all.sort();
    ensure!(all == ["second", "third"], "{all:?}");
    for pod in ["calm", "first"] {
        ensure!(wait_ready(&member.cluster, pod)?["status"]["containerStatuses"][0]["restartCount"] == 0, "{pod}");
    }
    member.node.finish()
}
