//! Volumes that are mounted with their pods' SELinux label, on a machine that looks as if it had SELinux: the kernel here has none,
//! so what counts is what the driver and the runtime are asked for, and what is kept on the disk.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::csi::objects;
use bulkhead_testkit::image;
use bulkhead_tests::lab;
use bulkhead_tests::storage::{NODE, Scene};
use serde_json::{Value, json};

use crate::DRIVER;

/// The driver that mounts with labels, and one that does not.
const LABELS: &str = "labels.test";
const PLAIN: &str = "plain.test";

/// Files of a machine with SELinux.
fn machine(root: &Path) -> Result<()> {
    for (path, text) in [
        ("sys/fs/selinux/enforce", "1"),
        ("etc/selinux/config", "SELINUX=enforcing\nSELINUXTYPE=targeted\n"),
        (
            "etc/selinux/targeted/contexts/lxc_contexts",
            "process = \"system_u:system_r:container_t:s0\"\nfile = \"system_u:object_r:container_file_t:s0\"\n",
        ),
    ] {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().context("no folder")?)?;
        std::fs::write(path, text)?;
    }
    // kubelet-syncd reads it.
    Ok(std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755))?)
}

/// A pod of that level with claims, and a folder of its own.
fn pod(scene: &Scene, name: &str, level: &str, policy: &Value, claims: &[&str]) -> Result<()> {
    let mut volumes: Vec<Value> = claims.iter().map(|claim| objects::of_claim(claim)).collect();
    volumes.push(json!({"name": "scratch", "emptyDir": {}}));
    let mounts: Vec<Value> = volumes
        .iter()
        .map(|one| json!({"name": one["name"], "mountPath": format!("/{}", one["name"].as_str().unwrap_or_default())}))
        .collect();
    let spec = json!({"volumes": volumes,
        "securityContext": {"seLinuxOptions": {"level": level}, "seLinuxChangePolicy": policy},
        "containers": [{"name": "main", "image": image::BUSYBOX, "command": ["sleep", "100000"], "volumeMounts": mounts}]});
    scene.create(name, &spec).map(drop)
}

#[test]
fn a_volume_for_one_pod_is_mounted_with_its_label() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    if !Scene::is_ours() {
        // Upstream's kubelet looks at the kernel.
        return Ok(());
    }
    // Where kubelet-syncd may read.
    let root = tempfile::Builder::new().prefix("bulkhead-selinux-").tempdir_in("/run")?;
    machine(root.path())?;
    let cluster = lab.cluster()?;
    let scene = Scene::start_with(lab, cluster, |node| node.internal(&json!({"selinuxRoot": root.path()})))?;
    let labels = scene.driver(DRIVER, LABELS, &json!({"seLinuxMount": true}))?.start()?;
    let plain = scene.driver(DRIVER, PLAIN, &json!({"seLinuxMount": false}))?.start()?;
    labels.wait_registered()?;
    plain.wait_registered()?;
    let alone = json!({"accessModes": ["ReadWriteOncePod"], "mountOptions": ["noatime"]});
    for (name, driver, spec) in [
        ("alone", LABELS, &alone),
        ("recursive", LABELS, &alone),
        ("unable", PLAIN, &alone),
        ("shared", LABELS, &json!({"accessModes": ["ReadWriteOnce"]})),
    ] {
        objects::create_bound(&scene.cluster, name, driver, spec)?;
    }
    pod(&scene, "first", "s0:c1,c2", &Value::Null, &["alone", "unable", "shared"])?;
    pod(&scene, "other", "s0:c1,c2", &json!("Recursive"), &["recursive"])?;
    scene.wait_ready("first")?;
    scene.wait_ready("other")?;

    let flags = |driver: &bulkhead_testkit::csi::Driver, method: &str, volume: &str| -> Result<Vec<Value>> {
        let calls = driver.calls_of(method, volume)?;
        Ok(calls.iter().map(|call| call.request["volume_capability"]["mount"]["mount_flags"].clone()).collect())
    };
    let context = |level: &str| json!(["noatime", format!("context=\"system_u:object_r:container_file_t:{level}\"")]);
    for method in ["NodeStageVolume", "NodePublishVolume"] {
        ensure!(flags(&labels, method, "alone")? == [context("s0:c1,c2")], "{:#?}", labels.calls_of(method, "alone")?);
        // The pod does not want it, the driver cannot, or others may have the volume, too.
        ensure!(flags(&labels, method, "recursive")? == [json!(["noatime"])]);
        ensure!(flags(&plain, method, "unable")? == [json!(["noatime"])]);
        ensure!(flags(&labels, method, "shared")? == [Value::Null]);
    }
    // It is kept with the volume.
    let kept = |volume: &str| -> Result<Value> {
        let staged = labels.calls_of("NodeStageVolume", volume)?;
        let path = staged[0].request["staging_target_path"].as_str().context("no path")?.to_owned();
        let file = Path::new(&path).with_file_name("vol_data.json");
        Ok(serde_json::from_str::<Value>(&std::fs::read_to_string(file)?)?["seLinuxMountContext"].clone())
    };
    ensure!(kept("alone")? == "system_u:object_r:container_file_t:s0:c1,c2", "{}", kept("alone")?);
    ensure!(kept("recursive")?.is_null());
    // The runtime labels what is not.
    let containers = scene.node.cri()?.containers()?;
    let relabelled: Vec<String> = containers.into_iter().flat_map(|container| container.relabelled).collect();
    let is = |path: &str| relabelled.iter().any(|one| one == path);
    ensure!(is("/scratch") && !is("/alone"), "{relabelled:?}");

    // Another pod with another label: not while the first has it.
    pod(&scene, "second", "s0:c3", &Value::Null, &["alone"])?;
    scene.wait_event(
        "second",
        "FailedMount Unable to attach or mount volumes: unmounted volumes=[alone], unattached volumes=[], failed to process \
         volumes=[alone]: conflicting SELinux labels of volume alone: \"system_u:object_r:container_file_t:s0:c1,c2\" and \
         \"system_u:object_r:container_file_t:s0:c3\"",
    )?;
    if !scene.cluster.is_stand_in() {
        let metrics = scene.cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/metrics")])?;
        let labels = format!("access_mode=\"RWOP\",volume_plugin=\"kubernetes.io/csi/{LABELS}\"");
        for family in ["volume_context_mismatch_errors_total", "volumes_admitted_total"] {
            let series = format!("volume_manager_selinux_{family}{{{labels}}}");
            ensure!(metrics.contains(&series), "no {series}");
        }
    }
    scene.delete("first")?;
    scene.wait_ready("second")?;
    for method in ["NodeStageVolume", "NodePublishVolume"] {
        ensure!(flags(&labels, method, "alone")? == [context("s0:c1,c2"), context("s0:c3")]);
    }
    ensure!(labels.calls_of("NodeUnstageVolume", "alone")?.len() == 1, "it was staged anew");
    scene.delete("second")?;
    scene.delete("other")?;
    scene.wait_no_traces()?;
    drop((labels, plain));
    scene.finish()
}
