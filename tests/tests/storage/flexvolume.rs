//! Volumes of FlexVolume drivers: mounted and unmounted by a shell script, where the node is told to call such programs, over deaths of
//! processes; and what a pod's event says where it is not.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::csi::objects;
use bulkhead_testkit::{IDLE, LONG, eventually, image, mounts};
use bulkhead_tests::lab;
use bulkhead_tests::storage::Scene;
use serde_json::{Value, json};

const NAME: &str = "example.com/tmpfs";
const CLAIMS: &str = "persistentvolumeclaims";

/// What it is called with stands in a file beside it.
const SCRIPT: &str = r#"#!/bin/sh
echo "$@" >> "${0%/*}/calls"
case "$1" in
init) echo '{"status": "Success", "capabilities": {"attach": false}}' ;;
mount) mount -t tmpfs flex "$2" && echo from-the-driver > "$2/file" && mkdir "$2/part" && echo '{"status": "Success"}' ;;
unmount) umount "$2" && echo '{"status": "Success"}' ;;
*) echo '{"status": "Not supported"}'; exit 1 ;;
esac
"#;

/// A folder with the driver of [`SCRIPT`].
fn drivers(folder: &Path) -> Result<PathBuf> {
    let drivers = folder.join("drivers");
    let own = drivers.join("example.com~tmpfs");
    std::fs::create_dir_all(&own)?;
    let program = own.join("tmpfs");
    std::fs::write(&program, SCRIPT)?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    Ok(drivers)
}

/// A PersistentVolume of the driver's and its claim of the same name, bound to each other.
fn claimed(scene: &Scene, name: &str) -> Result<()> {
    let cluster = &scene.cluster;
    let claim = cluster.create(&objects::claim(name, "", "16Mi", &json!({"volumeName": name})))?;
    cluster.create(&json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "16Mi"}, "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": "default",
                "uid": claim["metadata"]["uid"]},
            "flexVolume": {"driver": NAME}}}))?;
    let status =
        json!({"status": {"phase": "Bound", "capacity": {"storage": "16Mi"}, "accessModes": ["ReadWriteOnce"]}});
    cluster.patch_status(CLAIMS, "default", name, &status)?;
    cluster.patch_status("persistentvolumes", "", name, &json!({"status": {"phase": "Bound"}})).map(drop)
}

/// A pod with a volume of the driver's of its own, a claimed one, and a part of the first.
fn pod() -> Value {
    json!({
        "securityContext": {"fsGroup": 2000},
        "volumes": [
            {"name": "own", "flexVolume": {"driver": NAME, "options": {"size": "1m"}, "secretRef": {"name": "word"}}},
            objects::of_claim("claimed"),
        ],
        "containers": [{"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE], "volumeMounts": [
            {"name": "own", "mountPath": "/own"},
            {"name": "own", "mountPath": "/part", "subPath": "part"},
            {"name": "claimed", "mountPath": "/claimed"},
        ]}],
    })
}

/// Mount points of the driver's volumes and of their parts.
fn points(scene: &Scene) -> Vec<PathBuf> {
    let mut found = mounts::below(&scene.node.root_dir().join("pods"));
    found.retain(|point| {
        ["example.com~tmpfs", "volume-subpaths"].iter().any(|part| point.display().to_string().contains(part))
    });
    found
}

fn calls(drivers: &Path, command: &str) -> Result<Vec<String>> {
    let path = drivers.join("example.com~tmpfs/calls");
    let all = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(all.lines().filter(|line| line.split(' ').next() == Some(command)).map(ToOwned::to_owned).collect())
}

#[test]
fn a_shell_driver_mounts_for_a_pod_and_unmounts_after_it() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let drivers = drivers(&lab.folder())?;
    let folder = drivers.display().to_string();
    let mut scene =
        Scene::start_with(lab, cluster, |node| node.argument("--flexvolume").config("volumePluginDir", json!(folder)))?;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "word", "namespace": "default"},
        "type": NAME, "data": {"word": "c2VjcmV0"}});
    scene.cluster.create(&secret)?;
    claimed(&scene, "claimed")?;
    let created = scene.create("user", &pod())?;
    let uid = created["metadata"]["uid"].as_str().context("no uid")?;
    scene.wait_ready("user")?;

    let folder = scene.node.root_dir().join(format!("pods/{uid}/volumes/example.com~tmpfs"));
    for volume in ["own", "claimed"] {
        let file = std::fs::read_to_string(folder.join(volume).join("file"))?;
        ensure!(file == "from-the-driver\n", "{volume}: {file}");
        let is = std::os::unix::fs::MetadataExt::gid(&std::fs::metadata(folder.join(volume).join("file"))?);
        ensure!(is == 2000, "{volume} is group {is}'s");
    }
    ensure!(points(&scene).len() == 3, "{:?}", points(&scene));
    let mounted = calls(&drivers, "mount")?;
    let own = mounted.iter().find(|line| line.contains("/own ")).with_context(|| format!("{mounted:?}"))?;
    for part in [
        "\"kubernetes.io/pod.name\":\"user\"",
        "\"kubernetes.io/secret/word\":\"c2VjcmV0\"",
        "\"kubernetes.io/mounterArgs.FsGroup\":\"2000\"",
        "\"kubernetes.io/readwrite\":\"rw\"",
        "\"size\":\"1m\"",
    ] {
        ensure!(own.contains(part), "{part} is not in {own}");
    }
    let log = std::fs::read_to_string(scene.node.log())?;
    ensure!(!log.contains("c2VjcmV0"), "a secret is in the log");

    // Deaths are noticed by nobody, and no driver is asked to mount again.
    for daemon in ["kubelet-volnetd", "kubelet-syncd"] {
        scene.node.kill_daemon(daemon)?;
        scene.node.wait_healthy()?;
        scene.wait_ready("user")?;
        ensure!(points(&scene).len() == 3, "{daemon}: {:?}", points(&scene));
    }
    ensure!(calls(&drivers, "mount")?.len() == 2, "{:?}", calls(&drivers, "mount")?);

    scene.delete("user")?;
    eventually("the driver has unmounted both", LONG, || {
        let left = points(&scene);
        ensure!(left.is_empty(), "{left:?}");
        let asked = calls(&drivers, "unmount")?;
        ensure!(asked.len() >= 2, "{asked:?}");
        Ok(())
    })?;
    eventually("its folder has gone", LONG, || {
        ensure!(!folder.exists(), "{} is there", folder.display());
        Ok(())
    })?;
    scene.finish_after_deaths()
}

#[test]
fn where_it_is_off_the_pods_event_says_who_switches_it_on() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let drivers = drivers(&lab.folder())?;
    let folder = drivers.display().to_string();
    let scene = Scene::start_with(lab, cluster, |node| node.config("volumePluginDir", json!(folder)))?;
    scene.create(
        "waits",
        &json!({
            "volumes": [{"name": "own", "flexVolume": {"driver": NAME}}],
            "containers": [{"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE],
                "volumeMounts": [{"name": "own", "mountPath": "/own"}]}],
        }),
    )?;
    let said = scene.wait_event("waits", "volumes of kind flexVolume are off on this node")?;
    ensure!(said.starts_with("FailedMount MountVolume.SetUp failed for volume \"own\" : "), "{said}");
    ensure!(said.contains("systemctl enable --now kubelet-flexvolume.socket"), "{said}");
    ensure!(!drivers.join("example.com~tmpfs/calls").exists(), "the driver was called");
    scene.delete("waits")?;
    scene.finish()
}
