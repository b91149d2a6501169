//! Volumes of which a kubelet that starts cannot tell what they are: their `vol_data.json` is gone, cut off, or another volume's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::csi::Driver;
use bulkhead_testkit::{LONG, eventually, mounts};
use bulkhead_tests::lab;
use bulkhead_tests::storage::recorded::sha256;
use bulkhead_tests::storage::{NODE, Scene};
use serde_json::Value;

use crate::DRIVER;

const NAME: &str = "unknown.test";
const FILE: &str = "vol_data.json";
const WRITES: &str = "trap 'exit 0' TERM; while sleep 0.2; do date >> /stays/alive || exit 1; done";

fn folder_of(root: &Path, pod: &Value, volume: &str) -> Result<PathBuf> {
    let uid = pod["metadata"]["uid"].as_str().context("no uid")?;
    Ok(root.join("pods").join(uid).join("volumes/kubernetes.io~csi").join(volume))
}

fn staged(scene: &Scene, volume: &str) -> PathBuf {
    scene.node.root_dir().join("plugins/kubernetes.io/csi").join(NAME).join(sha256(volume))
}

/// What a counter of the node says.
fn counter(scene: &Scene, name: &str) -> Result<u64> {
    let text = scene.cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/metrics")])?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).with_context(|| {
        let near: Vec<&str> = text.lines().filter(|line| line.contains("reconstruct")).collect();
        format!("no {name}: {near:?}")
    })?;
    Ok(line.trim().parse::<f64>()? as u64)
}

fn calls_about(driver: &Driver, volume: &str, methods: &[&str]) -> Result<Vec<String>> {
    let calls = driver.calls()?;
    let of = calls.iter().filter(|call| call.volume() == volume && methods.contains(&call.method.as_str()));
    Ok(of.map(|call| call.method.clone()).collect())
}

#[test]
fn volumes_that_nobody_knows_go_with_their_pods_and_stay_with_those_that_stay() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let mut scene = Scene::start(lab, cluster)?;
    if !Scene::is_ours() {
        // Upstream's kubelet tries once, and leaves what it cannot read for ever.
        return Ok(());
    }
    let driver = scene.driver(DRIVER, NAME, &Value::Null)?.start()?;
    driver.wait_registered()?;
    let mut pods = BTreeMap::new();
    for name in ["cut", "foreign", "missing", "both", "stays", "beside"] {
        scene.volume(name, NAME)?;
        let script = if name == "stays" { WRITES } else { bulkhead_testkit::IDLE };
        pods.insert(name, scene.pod_with(name, script, &[name], &[])?);
    }
    scene.block_volume("raw", NAME)?;
    pods.insert("raw", scene.pod_with("raw", bulkhead_testkit::IDLE, &[], &["raw"])?);
    for name in pods.keys() {
        scene.wait_ready(name)?;
    }
    let root = scene.node.root_dir().to_owned();
    let folder = |name: &str| folder_of(&root, &pods[name], name);
    let kept = std::fs::read_to_string(folder("stays")?.join(FILE))?;
    let kept_of_stage = std::fs::read_to_string(staged(&scene, "stays").join(FILE))?;
    let fingerprint_of = |scene: &Scene| -> Result<Vec<_>> {
        let all = scene.node.fingerprint()?;
        Ok(all.into_iter().filter(|one| ["stays", "beside"].contains(&one.pod.as_str())).collect())
    };
    let before = fingerprint_of(&scene)?;

    scene.node.kill_everything();
    let of_beside = std::fs::read_to_string(folder("beside")?.join(FILE))?;
    std::fs::write(folder("cut")?.join(FILE), "{\"attachmentID\":\"csi-")?;
    std::fs::write(folder("foreign")?.join(FILE), &of_beside)?;
    std::fs::remove_file(folder("missing")?.join(FILE))?;
    for name in ["both", "stays"] {
        std::fs::write(folder(name)?.join(FILE), "")?;
        std::fs::write(staged(&scene, name).join(FILE), "\0\0\0")?;
    }
    let of_block = scene.node.root_dir().join("plugins/kubernetes.io/csi/volumeDevices/raw/data").join(FILE);
    std::fs::write(&of_block, "[]")?;
    for name in ["cut", "foreign", "missing", "both", "raw"] {
        scene.cluster.delete("pods", "default", name, Some(0))?;
        scene.cluster.wait_gone("pods", "default", name)?;
    }
    scene.node.launch()?;
    scene.node.wait_healthy()?;

    // The pods that stay make their volumes known again.
    eventually("the files of the pod that stays are written again, byte for byte", LONG, || {
        for (path, content) in
            [(folder("stays")?.join(FILE), &kept), (staged(&scene, "stays").join(FILE), &kept_of_stage)]
        {
            let now = std::fs::read_to_string(&path)?;
            ensure!(now == *content, "{}: {now:?}", path.display());
        }
        Ok(())
    })?;
    scene.wait_ready("stays")?;
    // Those of pods that are gone go, and the folders of the pods with them.
    eventually("what belongs to pods that are gone is gone", LONG, || {
        for name in ["cut", "foreign", "missing", "both"] {
            let pod = folder(name)?;
            let pod = pod.ancestors().nth(3).context("no folder")?.to_owned();
            ensure!(!pod.exists(), "{name}: {} is there", pod.display());
            ensure!(!staged(&scene, name).exists(), "{name} is staged");
        }
        let left: Vec<_> = scene.traces().into_iter().filter(|trace| trace.contains("/raw")).collect();
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    })?;
    let below = |path: &Path| mounts::below(path).len();
    ensure!(below(&folder("stays")?) == 1 && below(&folder("beside")?) == 1, "{:#?}", scene.traces());
    ensure!(fingerprint_of(&scene)? == before, "a container was restarted");
    // No driver was asked for a volume that only looked like another one's.
    for name in ["beside", "stays"] {
        let ends = calls_about(&driver, name, &["NodeUnpublishVolume", "NodeUnstageVolume"])?;
        ensure!(ends.is_empty(), "{name}: {ends:?}");
    }
    // What is staged said what it is, and so its driver took it back.
    for name in ["cut", "foreign", "missing"] {
        ensure!(calls_about(&driver, name, &["NodeUnpublishVolume"])?.is_empty(), "{name} was known after all");
        ensure!(!calls_about(&driver, name, &["NodeUnstageVolume"])?.is_empty(), "{name} was not unstaged");
    }
    let counted = ["reconstruct_volume_operations_total", "reconstruct_volume_operations_errors_total"];
    eventually("it is counted", LONG, || {
        let counts = [counter(&scene, counted[0])?, counter(&scene, counted[1])?];
        ensure!(counts == [7, 6], "{counts:?}");
        let cleaned = counter(&scene, "force_cleaned_failed_volume_operations_total")?;
        ensure!(cleaned >= 5, "{cleaned} cleaned");
        Ok(())
    })?;

    for name in ["stays", "beside"] {
        scene.delete(name)?;
    }
    scene.wait_no_traces()?;
    drop(driver);
    scene.finish_after_deaths()
}
