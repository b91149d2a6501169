//! Local volumes on block devices: formatted once, mounted once a node, mapped, over deaths of processes, and grown.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use bulkhead_privileges::Program;
use bulkhead_testkit::csi::objects;
use bulkhead_testkit::{LONG, eventually, loops, machine, mounts};
use bulkhead_tests::lab;
use bulkhead_tests::privileges::helper_is_as_mapped;
use bulkhead_tests::storage::{NODE, Scene};
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const CLAIMS: &str = "persistentvolumeclaims";

/// A disk for as long as it lives.
#[derive(Debug)]
struct Disk {
    file: PathBuf,
    device: String,
}

impl Disk {
    fn new(scene: &Scene, name: &str, megabytes: u64) -> Result<Self> {
        let file = scene.lab.folder().join(name);
        std::fs::File::create(&file)?.set_len(megabytes * MIB)?;
        let said = machine::run("losetup", &["--find", "--show", &file.display().to_string()])?;
        Ok(Disk { file, device: said.trim().to_owned() })
    }

    fn grow(&self, megabytes: u64) -> Result<()> {
        std::fs::File::options().write(true).open(&self.file)?.set_len(megabytes * MIB)?;
        machine::run("losetup", &["--set-capacity", &self.device]).map(drop)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // By its file: when the lab is gone, the device may be another test's.
        loops::detach_below(&self.file);
    }
}

/// A local PersistentVolume and its claim of the same name, bound to each other.
fn local(scene: &Scene, name: &str, path: &str, mode: &str) -> Result<()> {
    let cluster = &scene.cluster;
    let claim = objects::claim(name, "", "16Mi", &json!({"volumeName": name, "volumeMode": mode}));
    let claim = cluster.create(&claim)?;
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]});
    cluster.create(&json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "16Mi"}, "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain", "volumeMode": mode,
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": "default",
                "uid": claim["metadata"]["uid"]},
            "local": {"path": path},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}}}))?;
    let status =
        json!({"status": {"phase": "Bound", "capacity": {"storage": "16Mi"}, "accessModes": ["ReadWriteOnce"]}});
    cluster.patch_status(CLAIMS, "default", name, &status)?;
    cluster.patch_status("persistentvolumes", "", name, &json!({"status": {"phase": "Bound"}})).map(drop)
}

fn with_node() -> Result<Option<Scene>> {
    let Some(lab) = lab()? else { return Ok(None) };
    let cluster = lab.cluster()?;
    // A claim's volume is looked at with each sync of its pod.
    Ok(Some(Scene::start_with(lab, cluster, |node| node.config("syncFrequency", json!("4s")))?))
}

/// Mount points of local volumes below the node's root directory.
fn points(scene: &Scene) -> Vec<String> {
    let root = scene.node.root_dir();
    let shown = |path: PathBuf| path.strip_prefix(root).unwrap_or(&path).display().to_string();
    let mut found: Vec<String> = mounts::below(root).into_iter().map(shown).collect();
    found.retain(|point| point.contains("local-volume"));
    found
}

fn nothing_is_left(scene: &Scene) -> Result<()> {
    eventually("nothing of the volumes is left", LONG, || {
        let (points, loops) = (points(scene), loops::below(scene.node.root_dir()));
        ensure!(points.is_empty() && loops.is_empty(), "{points:?} {loops:?}");
        Ok(())
    })
}

fn global(scene: &Scene, name: &str) -> PathBuf {
    scene.node.root_dir().join("plugins/kubernetes.io/local-volume/mounts").join(name)
}

fn lines(path: &Path) -> Result<usize> {
    Ok(std::fs::read_to_string(path).with_context(|| path.display().to_string())?.lines().count())
}

/// The size of the claim's device is in the statistics, and in the metrics by the claim's name.
fn is_measured(scene: &Scene, pod: &str, claim: &str, bytes: u64) -> Result<()> {
    let get = |path: &str| scene.cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/{path}")]);
    let series = "kubelet_volume_stats_capacity_bytes{namespace=\"default\",persistentvolumeclaim=";
    eventually("the volume is measured", LONG, || {
        let summary: Value = serde_json::from_str(&get("stats/summary")?)?;
        let pods = summary["pods"].as_array().context("no pods")?;
        let pod = pods.iter().find(|one| one["podRef"]["name"] == pod).with_context(|| format!("{summary:#}"))?;
        let volumes = pod["volume"].as_array().context("no volumes")?;
        let volume = volumes.iter().find(|one| one["name"] == claim).with_context(|| format!("{volumes:#?}"))?;
        ensure!(volume["pvcRef"] == json!({"name": claim, "namespace": "default"}), "{volume}");
        ensure!(volume["capacityBytes"] == bytes && volume["inodes"].is_null(), "{volume}");
        ensure!(get("metrics")?.contains(&format!("{series}\"{claim}\"}} {bytes}\n")), "no {series} of {claim}");
        Ok(())
    })
}

#[test]
fn devices_are_formatted_once_mounted_once_and_mapped() -> Result<()> {
    let Some(mut scene) = with_node()? else { return Ok(()) };
    let (disk, raw) = (Disk::new(&scene, "disk.img", 32)?, Disk::new(&scene, "raw.img", 8)?);
    local(&scene, "data", &disk.device, "Filesystem")?;
    local(&scene, "raw", &raw.device, "Block")?;
    let script = "trap 'exit 0' TERM; echo block | dd of=/dev/raw conv=notrunc 2>/dev/null || exit 1; \
                  while sleep 0.2; do date >> /data/alive || exit 1; done";
    std::thread::scope(|threads| -> Result<()> {
        // It runs for seconds, while there is a device to be prepared.
        let helper = threads.spawn(|| helper_is_as_mapped(&scene.node, Program::Disks));
        scene.pod_with("first", script, &["data"], &["raw"])?;
        scene.wait_ready("first")?;
        helper.join().map_err(|_| anyhow::anyhow!("it was not looked at"))?.map(drop)
    })?;
    scene.pod("second", &["data"])?;
    scene.wait_ready("second")?;
    let alive = global(&scene, "data").join("alive");
    ensure!(
        points(&scene).iter().filter(|point| point.starts_with("plugins/kubernetes.io/local-volume/mounts")).count()
            == 1
    );
    let events = scene.events("first")?;
    let mapped = |what: &str| events.iter().any(|one| one.starts_with("SuccessfulMountVolume") && one.contains(what));
    ensure!(mapped("plugins/kubernetes.io~local-volume/volumeDevices/raw") && mapped("volumeMapPath"), "{events:#?}");
    let held = loops::below(scene.node.root_dir());
    ensure!(held.len() == 1, "one loop device holds the mapped one: {held:?}");
    is_measured(&scene, "first", "raw", 8 * MIB)?;

    // Deaths are noticed by nobody.
    for daemon in ["kubelet-volnetd", "kubelet-syncd"] {
        scene.node.kill_daemon(daemon)?;
        scene.node.wait_healthy()?;
        let before = lines(&alive)?;
        eventually("the pod goes on writing", LONG, || {
            ensure!(lines(&alive)? > before + 2);
            Ok(())
        })?;
    }
    let before = points(&scene);
    scene.pod("third", &["data"])?;
    scene.wait_ready("third")?;
    ensure!(points(&scene).len() == before.len() + 1, "{before:?} {:?}", points(&scene));

    scene.delete("first")?;
    scene.delete("second")?;
    ensure!(alive.exists(), "another pod has it");
    scene.delete("third")?;
    nothing_is_left(&scene)?;
    let mut start = [0; 6];
    std::io::Read::read_exact(&mut std::fs::File::open(&raw.device)?, &mut start)?;
    ensure!(&start == b"block\n");

    // What was written is there again, and nothing was formatted anew.
    scene.pod("again", &["data"])?;
    scene.wait_ready("again")?;
    ensure!(lines(&alive)? > 0);
    scene.delete("again")?;
    nothing_is_left(&scene)?;
    drop((disk, raw));
    scene.finish_after_deaths()
}

#[test]
fn what_does_not_fit_is_said_in_the_pods_events() -> Result<()> {
    let Some(scene) = with_node()? else { return Ok(()) };
    let disk = Disk::new(&scene, "disk.img", 16)?;
    machine::run("mkfs.ext4", &["-q", &disk.device])?;
    let folder = scene.lab.folder().join("folder");
    std::fs::create_dir(&folder)?;
    local(&scene, "gone", "/dev/bulkhead-none", "Filesystem")?;
    local(&scene, "folder", &folder.display().to_string(), "Block")?;
    local(&scene, "raw", &disk.device, "Block")?;
    scene.pod("a", &["gone"])?;
    scene.wait_event("a", "MountVolume.SetUp failed for volume \"gone\"")?;
    scene.pod_with("b", "sleep 1000", &[], &["folder"])?;
    scene.wait_event("b", "MapVolume.MapPodDevice failed for volume \"folder\"")?;
    scene.pod("c", &["raw"])?;
    eventually("the pod waits with upstream's words", LONG, || {
        let events = scene.events("c")?;
        ensure!(
            events.iter().any(|one| one.contains("has volumeMode Block, but is specified in volumeMounts")),
            "{events:#?}"
        );
        Ok(())
    })?;
    for pod in ["a", "b", "c"] {
        scene.delete(pod)?;
    }
    nothing_is_left(&scene)?;
    drop(disk);
    scene.finish()
}

#[test]
fn a_claim_of_a_device_that_has_grown_is_expanded() -> Result<()> {
    let Some(scene) = with_node()? else { return Ok(()) };
    let disk = Disk::new(&scene, "disk.img", 32)?;
    local(&scene, "data", &disk.device, "Filesystem")?;
    scene.pod("first", &["data"])?;
    scene.wait_ready("first")?;
    let size = || -> Result<u64> {
        let said = machine::run("df", &["--output=size", "-B1", &global(&scene, "data").display().to_string()])?;
        Ok(said.lines().last().context("df says nothing")?.trim().parse()?)
    };
    let before = size()?;
    disk.grow(96)?;
    // As the controller that expands claims does.
    let larger = json!({"spec": {"capacity": {"storage": "64Mi"}}});
    scene.cluster.patch("persistentvolumes", "", "data", &larger)?;
    let expanded = |claim: &serde_json::Value| claim["status"]["capacity"]["storage"] == "64Mi";
    // A machine that withholds CAP_SYS_RESOURCE lets no ext4 grow that is mounted: the next mount does it then.
    eventually("it is expanded, or its pod says why not", LONG, || {
        let claim = scene.cluster.get(CLAIMS, "default", "data")?;
        let failed = scene.events("first")?.iter().any(|one| one.starts_with("VolumeResizeFailed"));
        ensure!(expanded(&claim) || failed, "{claim}");
        Ok(())
    })?;
    if size()? == before {
        scene.delete("first")?;
        scene.pod("second", &["data"])?;
        scene.wait_ready("second")?;
    }
    scene.cluster.wait_for(CLAIMS, "default", "data", "it is expanded", expanded)?;
    ensure!(size()? > before + 48 * MIB, "{before} {}", size()?);
    for pod in scene.cluster.list("pods", Some("default"))? {
        scene.delete(pod["metadata"]["name"].as_str().context("no name")?)?;
    }
    nothing_is_left(&scene)?;
    drop(disk);
    scene.finish()
}
