//! A root directory that is named by a link, as where a machine keeps `/var/lib/kubelet` on another disk: drivers are told the paths of
//! its name, as upstream's kubelet tells them, because a driver in a container has nothing where the link leads to.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::csi::{Driver, objects};
use bulkhead_testkit::{LONG, eventually, mounts};
use bulkhead_tests::lab;
use bulkhead_tests::storage::Scene;
use serde_json::{Value, json};

use crate::DRIVER;
use crate::claims::grow;

const NAME: &str = "linked.test";
/// Fields of calls that are paths on the node.
const PATHS: [&str; 3] = ["target_path", "staging_target_path", "volume_path"];

/// Each path that the driver was told, with the method.
fn told(driver: &Driver) -> Result<Vec<(String, String)>> {
    let calls = driver.calls()?;
    let paths = calls.iter().flat_map(|call| {
        let path = |field: &&str| call.request[*field].as_str().map(str::to_owned);
        PATHS.iter().filter_map(path).map(|path| (call.method.clone(), path))
    });
    Ok(paths.collect())
}

/// Waits for a call that tells a path, and looks at all paths that were told so far.
fn wait_told(driver: &Driver, root: &Path, method: &str, volume: &str) -> Result<()> {
    driver.wait_call(method, volume, |call| call.is_ok())?;
    let all = told(driver)?;
    ensure!(all.iter().any(|(of, _)| of == method), "{method} tells no path: {all:#?}");
    let wrong: Vec<_> = all.iter().filter(|(_, path)| !Path::new(path).starts_with(root)).collect();
    ensure!(wrong.is_empty(), "not below {}: {wrong:#?}", root.display());
    Ok(())
}

#[test]
fn drivers_are_told_paths_by_the_name_of_a_linked_root_directory() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let mut scene = Scene::start_with(lab, cluster, |node| node.linked_root())?;
    let root = scene.node.root_dir().to_owned();
    let real = root.canonicalize()?;
    ensure!(real != root, "{} is a link", root.display());
    let driver = scene.driver(DRIVER, NAME, &Value::Null)?.start()?;
    // Its endpoint is one of that name as well.
    driver.wait_registered()?;
    scene.cluster.create(&objects::storage_class("grows", NAME, &Value::Null))?;
    objects::create_bound(&scene.cluster, "disk", NAME, &json!({"storageClassName": "grows"}))?;
    grow(&scene, "disk")?;
    scene.block_volume("raw", NAME)?;
    scene.pod_with("user", "echo written > /disk/file; sleep 100000", &["disk"], &["raw"])?;
    scene.wait_ready("user")?;
    for volume in ["disk", "raw"] {
        for method in ["NodeStageVolume", "NodePublishVolume"] {
            wait_told(&driver, &root, method, volume)?;
        }
    }
    wait_told(&driver, &root, "NodeExpandVolume", "disk")?;
    let container =
        scene.node.cri()?.containers()?.into_iter().find(|one| one.name == "main").context("no container")?;
    let (code, seen) = scene.node.cri()?.exec(&container.id, &["sh", "-c", "cat /disk/file; stat -c %F /dev/raw"])?;
    ensure!(code == 0 && seen == "written\nblock special file\n", "{code}: {seen}");

    // What is there is found again, and ends, by the same name.
    if Scene::is_ours() {
        for daemon in ["kubelet-volnetd", "kubelet-syncd"] {
            scene.node.kill_daemon(daemon)?;
        }
    } else {
        scene.node.stop()?;
        scene.node.launch()?;
    }
    scene.delete("user")?;
    for volume in ["disk", "raw"] {
        for method in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
            wait_told(&driver, &root, method, volume)?;
        }
    }
    scene.wait_no_traces()?;
    eventually("nothing of a driver is mounted", LONG, || {
        let left: Vec<_> =
            mounts::below(&real).into_iter().filter(|path| path.to_string_lossy().contains("csi")).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })?;
    drop(driver);
    scene.finish_after_deaths()
}
