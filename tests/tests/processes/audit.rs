//! What a node's privileged process has done is on record, whoever dies, and an operator finds it.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{LONG, Node, Pod, eventually};
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// The records that `kubelet-ctl audit` prints.
fn records(node: &Node, arguments: &[&str]) -> Result<Vec<Value>> {
    let arguments = [&["audit", "-o", "json", "--newest", "0"], arguments].concat();
    let printed = node.ctl(&arguments)?;
    let records: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
    Ok(records.as_array().context("no list")?.clone())
}

fn of(record: &Value) -> (&str, &str) {
    (record["verb"].as_str().unwrap_or_default(), record["code"].as_str().unwrap_or_default())
}

#[test]
fn each_privileged_act_is_on_record() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut node = lab.node("alpha").start()?;
    let cache = Pod::idle("cache").spec("volumes", json!([{"name": "c", "emptyDir": {"medium": "Memory"}}]));
    let cache = cache.container_field("volumeMounts", json!([{"name": "c", "mountPath": "/c"}]));
    let refused = Pod::idle("refused").host_path("gone", "/no/such/folder", "Directory", "/g");
    node.write(&cache)?;
    node.write(&refused)?;
    eventually("one runs, the other waits", LONG, || {
        let pods = node.agent()?.pods()?;
        let phase = |name: &str| pods.iter().find(|pod| pod.name.starts_with(name)).map(|pod| pod.phase.clone());
        ensure!(phase("cache").as_deref() == Some("Running"), "{:?}", phase("cache"));
        let failed = records(&node, &["--failed", "--pod", "refused"])?;
        ensure!(failed.iter().any(|record| of(record).0 == "Volumes/CheckHostPath"), "{failed:?}");
        Ok(())
    })?;
    let uid = node.agent()?.pods()?.into_iter().find(|pod| pod.name.starts_with("cache")).context("no pod")?.uid;

    // Who asked, for which pod, with which verb, about what, where, what came of it, how long it took.
    let set_up = records(&node, &["--pod", "cache", "--verb", "SetUpEmptyDir"])?;
    let [set_up] = set_up.as_slice() else { anyhow::bail!("{set_up:?}") };
    let target = set_up["target"].as_str().context("no target")?;
    ensure!(target.ends_with(&format!("/pods/{uid}/volumes/kubernetes.io~empty-dir/c")), "{set_up}");
    ensure!(
        (&set_up["peer"], &set_up["podUid"], &set_up["object"], &set_up["code"])
            == (&json!("kubelet-syncd"), &json!(uid), &json!("c"), &json!("OK"))
            && set_up["seconds"].as_f64() > Some(0.0),
        "{set_up}"
    );
    let failed = records(&node, &["--failed", "--pod", "refused"])?;
    let why = failed.iter().find(|record| of(record).0 == "Volumes/CheckHostPath").context("not there")?;
    ensure!(why["message"].as_str().is_some_and(|text| text.contains("/no/such/folder")), "{why}");
    let passed = records(&node, &["--verb", "Broker/RuntimeSocket"])?;
    ensure!(!passed.is_empty() && passed.iter().all(|record| record["code"] == "OK"), "{passed:?}");
    let table = node.ctl(&["audit", "--verb", "Volumes"])?;
    ensure!(table.starts_with("TIME ") && table.contains("default/cache"), "{table}");

    // A death in between: the numbers go on, nothing that was written is gone.
    let before = records(&node, &[])?;
    node.kill_daemon("kubelet-volnetd")?;
    node.wait_healthy()?;
    let after = records(&node, &[])?;
    ensure!(after.len() >= before.len() && after[..before.len()] == before[..], "{} of {}", after.len(), before.len());

    let mut follower =
        node.ctl_command(&["audit", "--follow", "-o", "json", "--newest", "1", "--verb", "TearDownPod"])?;
    let mut follower = follower.stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(follower.stdout.take().context("no output")?).lines();
    node.remove("cache")?;
    let told = lines.next().context("it ended")??;
    follower.kill()?;
    follower.wait()?;
    let torn: Value = serde_json::from_str(&told)?;
    ensure!(of(&torn) == ("Volumes/TearDownPod", "OK") && torn["podUid"] == json!(uid), "{torn}");
    let sequences: Vec<u64> = records(&node, &[])?.iter().filter_map(|record| record["sequence"].as_u64()).collect();
    ensure!(sequences.windows(2).all(|pair| pair[1] == pair[0] + 1), "none is missing in between: {sequences:?}");
    node.finish()
}
