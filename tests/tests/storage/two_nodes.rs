//! Two nodes on one machine, each with a driver of the same name and volumes of the same names: what one of them restarts, takes
//! back or cleans up is never the other's (kubernetes/kubernetes#138454).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::csi::{Driver, objects};
use bulkhead_testkit::{IDLE, Lab, image, loops};
use bulkhead_tests::lab;
use bulkhead_tests::storage::Scene;
use serde_json::{Value, json};

use crate::DRIVER;

const NAME: &str = "same.test";

struct Side {
    scene: Scene,
    driver: Driver,
}

/// What the other node must not change.
#[derive(Debug, PartialEq)]
struct Seen {
    containers: Vec<Fingerprint>,
    mounts: Vec<String>,
    loops: Vec<(PathBuf, String)>,
    files: BTreeMap<String, String>,
    ends: usize,
}

fn side(lab: Lab) -> Result<Side> {
    // A cluster for each: even the nodes have one name.
    let cluster = lab.stand_in(Config::default())?;
    let scene = Scene::start(lab, cluster)?;
    let driver = scene.driver(DRIVER, NAME, &Value::Null)?.start()?;
    driver.wait_registered()?;
    scene.volume("disk", NAME)?;
    scene.block_volume("raw", NAME)?;
    let side = Side { scene, driver };
    side.user("user")?;
    Ok(side)
}

impl Side {
    /// A pod with a volume of each kind, and a part of one.
    fn user(&self, name: &str) -> Result<()> {
        self.scene.create(
            name,
            &json!({"volumes": [objects::of_claim("disk"), objects::of_claim("raw"),
                    {"name": "inline", "csi": {"driver": NAME}}],
                "containers": [{"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE],
                    "volumeMounts": [{"name": "disk", "mountPath": "/disk"}, {"name": "inline", "mountPath": "/inline"},
                        {"name": "disk", "mountPath": "/part", "subPath": "a/b"}],
                    "volumeDevices": [{"name": "raw", "devicePath": "/dev/raw"}]}]}),
        )?;
        self.scene.wait_ready(name).map(drop)
    }

    fn seen(&self) -> Result<Seen> {
        let root = self.scene.node.root_dir();
        let below = format!("{}/", root.display());
        let info = std::fs::read_to_string("/proc/self/mountinfo")?;
        let mut mounts: Vec<String> = info.lines().filter(|line| line.contains(&below)).map(str::to_owned).collect();
        mounts.retain(|line| ["csi", "volume-subpaths"].iter().any(|word| line.contains(word)));
        mounts.sort();
        let files = bulkhead_tests::storage::tree::lines(&[&root.join("plugins/kubernetes.io"), &root.join("pods")])?;
        let files = files.into_iter().filter(|line| line.contains("vol_data.json"));
        let files = files.filter_map(|line| line.split_once(" content ").map(|(a, b)| (a.to_owned(), b.to_owned())));
        let ends = ["NodeUnpublishVolume", "NodeUnstageVolume"];
        let ends = self.driver.calls()?.iter().filter(|call| ends.contains(&call.method.as_str())).count();
        Ok(Seen {
            containers: self.scene.node.fingerprint()?,
            mounts,
            loops: loops::below(root),
            files: files.collect(),
            ends,
        })
    }

    /// Everything of the agent dies, `meanwhile` happens, and it starts again.
    fn restart(&mut self, meanwhile: impl FnOnce(&Scene) -> Result<()>) -> Result<()> {
        self.scene.node.kill_everything();
        meanwhile(&self.scene)?;
        self.scene.node.launch()?;
        self.scene.node.wait_healthy()
    }

    /// Its pod is gone before it starts again, and what the pod had is taken back.
    fn cleans_up(&mut self, meanwhile: impl FnOnce(&Scene) -> Result<()>) -> Result<()> {
        self.restart(|scene| {
            meanwhile(scene)?;
            scene.cluster.delete("pods", "default", "user", Some(0))?;
            scene.cluster.wait_gone("pods", "default", "user")
        })?;
        self.scene.wait_no_traces()
    }
}

/// `act` on one node changes nothing of the other.
fn unnoticed(what: &str, one: &mut Side, other: &Side, act: impl FnOnce(&mut Side) -> Result<()>) -> Result<()> {
    let before = other.seen()?;
    ensure!(before.mounts.len() >= 6 && before.files.len() >= 4 && !before.loops.is_empty(), "{what}: {before:#?}");
    act(one).with_context(|| what.to_owned())?;
    let now = other.seen()?;
    ensure!(now == before, "{what}: {before:#?}\nbecame\n{now:#?}");
    other.scene.node.is_healthy()
}

#[test]
fn nodes_with_one_driver_name_leave_each_others_volumes_alone() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    if !Scene::is_ours() {
        return Ok(());
    }
    let (mut alpha, mut beta) = (side(lab)?, side(Lab::start_beside()?)?);
    let of_alpha = alpha.seen()?;
    unnoticed("alpha restarts", &mut alpha, &beta, |alpha| {
        alpha.restart(|_| Ok(()))?;
        alpha.scene.wait_ready("user").map(drop)
    })?;
    ensure!(alpha.seen()? == of_alpha, "its own: {of_alpha:#?}\nbecame\n{:#?}", alpha.seen()?);
    unnoticed("beta restarts", &mut beta, &alpha, |beta| {
        beta.restart(|_| Ok(()))?;
        beta.scene.wait_ready("user").map(drop)
    })?;
    // Orphans: known ones by the driver of their own node.
    unnoticed("alpha cleans up", &mut alpha, &beta, |alpha| alpha.cleans_up(|_| Ok(())))?;
    ensure!(alpha.seen()?.ends >= 5, "its own driver was asked");
    alpha.user("user")?;
    // And unknown ones by their paths.
    unnoticed("beta cleans up what it does not know", &mut beta, &alpha, |beta| {
        beta.cleans_up(|scene| cut_all(&scene.node.root_dir().join("pods")))
    })?;
    beta.user("user")?;
    // Both at once.
    alpha.scene.node.kill_everything();
    beta.scene.node.kill_everything();
    let before = (alpha.seen()?, beta.seen()?);
    for side in [&mut alpha, &mut beta] {
        side.scene.node.launch()?;
    }
    for side in [&mut alpha, &mut beta] {
        side.scene.node.wait_healthy()?;
        side.scene.wait_ready("user")?;
    }
    ensure!((alpha.seen()?, beta.seen()?) == before);
    unnoticed("a pod of alpha ends", &mut alpha, &beta, |alpha| {
        alpha.scene.delete("user")?;
        alpha.scene.wait_no_traces()
    })?;
    beta.scene.delete("user")?;
    beta.scene.wait_no_traces()?;
    for Side { scene, driver } in [alpha, beta] {
        drop(driver);
        scene.finish_after_deaths()?;
    }
    Ok(())
}

/// Cuts every vol_data.json of pods off; what is mounted is not entered.
fn cut_all(folder: &Path) -> Result<()> {
    let mut cut = 0;
    for pod in std::fs::read_dir(folder)?.flatten() {
        let Ok(volumes) = std::fs::read_dir(pod.path().join("volumes/kubernetes.io~csi")) else { continue };
        for volume in volumes.flatten() {
            let file = volume.path().join("vol_data.json");
            let text = std::fs::read_to_string(&file)?;
            std::fs::write(&file, &text[..text.len() / 2])?;
            cut += 1;
        }
    }
    ensure!(cut == 2, "{cut} files were cut");
    Ok(())
}
