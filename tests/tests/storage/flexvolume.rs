//! Volumes of FlexVolume drivers: mounted and unmounted by a shell script, where the node is told to call such programs, over deaths of
//! processes, in each pod's folder, or once a node after a controller, whose part the test plays, has attached them; and what a pod's
//! event says where it is not.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use bulkhead_privileges::Program;
use bulkhead_testkit::csi::objects;
use bulkhead_testkit::{IDLE, LONG, eventually, image, mounts};
use bulkhead_tests::lab;
use bulkhead_tests::privileges::helper_is_as_mapped;
use bulkhead_tests::storage::{NODE, Scene};
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

const ATTACHED: &str = "example.com/attached";

/// One that attaches, mounts once a node, and leaves pods' mounts to binds of that.
const ATTACHES: &str = r#"#!/bin/sh
echo "$@" >> "${0%/*}/calls"
case "$1" in
init) echo '{"status": "Success", "capabilities": {"supportsMetrics": true}}' ;;
waitforattach) echo '{"status": "Success", "device": "of-wait"}' ;;
mountdevice) mount -t tmpfs -o size=1m flex "$2" && echo from-the-driver > "$2/file" && echo '{"status": "Success"}' ;;
unmountdevice) umount "$2" && echo '{"status": "Success"}' ;;
expandfs) mount -o remount,size=2m "$4" && echo '{"status": "Success"}' ;;
*) echo '{"status": "Not supported"}'; exit 1 ;;
esac
"#;

/// A folder with both drivers.
fn drivers(folder: &Path) -> Result<PathBuf> {
    let drivers = folder.join("drivers");
    driver(&drivers, NAME, SCRIPT)?;
    driver(&drivers, ATTACHED, ATTACHES)?;
    Ok(drivers)
}

fn driver(drivers: &Path, name: &str, script: &str) -> Result<()> {
    let own = drivers.join(name.replace('/', "~"));
    std::fs::create_dir_all(&own)?;
    let program = own.join(name.rsplit('/').next().unwrap_or_default());
    std::fs::write(&program, script)?;
    Ok(std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?)
}

/// A PersistentVolume of the driver's and its claim of the same name, bound to each other.
fn claimed(scene: &Scene, name: &str, driver: &str) -> Result<()> {
    let cluster = &scene.cluster;
    let claim = cluster.create(&objects::claim(name, "", "16Mi", &json!({"volumeName": name})))?;
    cluster.create(&json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "16Mi"}, "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": name, "namespace": "default",
                "uid": claim["metadata"]["uid"]},
            "flexVolume": {"driver": driver}}}))?;
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

/// How often a driver was asked what it can do.
fn inits(drivers: &Path, name: &str) -> Result<usize> {
    let path = drivers.join(name.replace('/', "~")).join("calls");
    let all = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(all.lines().filter(|line| *line == "init").count())
}

/// A daemon dies, and its successor serves; kubelet-syncd's has looked at both volumes of the pod: it has asked their driver anew.
fn dies(scene: &mut Scene, daemon: &str, drivers: &Path, driver: &str) -> Result<()> {
    let (before, asked) = (scene.node.pids().get(daemon).copied(), inits(drivers, driver)?);
    scene.node.kill_daemon(daemon)?;
    eventually(&format!("{daemon} runs again"), LONG, || {
        let now = scene.node.pids().get(daemon).copied();
        ensure!(now.is_some() && now != before, "{before:?} {now:?}");
        Ok(())
    })?;
    scene.node.wait_healthy()?;
    if daemon == "kubelet-syncd" {
        eventually("the driver is asked about both volumes", LONG, || {
            let now = inits(drivers, driver)?;
            ensure!(now >= asked + 2, "{asked} {now}");
            Ok(())
        })?;
    }
    Ok(())
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
    claimed(&scene, "claimed", NAME)?;
    let created = std::thread::scope(|threads| -> Result<Value> {
        // It runs for seconds, while a driver is called.
        let helper = threads.spawn(|| helper_is_as_mapped(&scene.node, Program::Flexvolume));
        let created = scene.create("user", &pod())?;
        scene.wait_ready("user")?;
        helper.join().map_err(|_| anyhow::anyhow!("it was not looked at"))??;
        Ok(created)
    })?;
    let uid = created["metadata"]["uid"].as_str().context("no uid")?;

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
        dies(&mut scene, daemon, &drivers, NAME)?;
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

/// A pod that has a claim, and volumes of its own, of the driver that attaches.
fn pod_of_attached(own: &[&str]) -> Value {
    let volumes = own.iter().map(|name| json!({"name": name, "flexVolume": {"driver": ATTACHED}}));
    let mounts = own.iter().chain(&["claimed"]).map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    let volumes: Vec<Value> = volumes.chain([objects::of_claim("claimed")]).collect();
    let mounts: Vec<Value> = mounts.collect();
    json!({
        "securityContext": {"fsGroup": 2000},
        "volumes": volumes,
        "containers": [{"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE], "volumeMounts": mounts}],
    })
}

/// What the driver that attaches was asked about a volume, in order: with these words for paths, and without its options.
fn asked(drivers: &Path, volume: &str, words: &[(String, &str)]) -> Result<Vec<String>> {
    let all = std::fs::read_to_string(drivers.join("example.com~attached/calls"))?;
    let is_about = |line: &&str| line.contains(&format!("/{volume}")) || line.contains(&format!("\"{volume}\""));
    let short = |line: &str| {
        let line = words.iter().fold(line.to_owned(), |line, (path, word)| line.replace(path, word));
        match (line.find('{'), line.rfind('}')) {
            (Some(from), Some(to)) => format!("{}OPTIONS{}", &line[..from], &line[to + 1..]),
            _ => line,
        }
    };
    Ok(all.lines().filter(is_about).map(short).collect())
}

#[test]
fn a_driver_that_attaches_mounts_once_a_node() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let drivers = drivers(&lab.folder())?;
    let folder = drivers.display().to_string();
    let mut scene = Scene::start_with(lab, cluster, |node| {
        // A claim's volume is looked at with each sync of its pod.
        node.argument("--flexvolume").config("volumePluginDir", json!(folder)).config("syncFrequency", json!("4s"))
    })?;
    claimed(&scene, "claimed", ATTACHED)?;
    let uid_of = |pod: &Value| pod["metadata"]["uid"].as_str().map(ToOwned::to_owned).context("no uid");
    let one = uid_of(&scene.create("one", &pod_of_attached(&["own"]))?)?;
    let used = ["example.com/attached/claimed", "example.com/attached/own"];
    eventually("both are in use, and wait for the controller", LONG, || {
        let in_use = scene.volumes("volumesInUse")?;
        ensure!(in_use == used, "{in_use:?}");
        Ok(())
    })?;
    let root = scene.node.root_dir().to_owned();
    let once = root.join("plugins/kubernetes.io/flexvolume/example.com/attached/mounts");
    ensure!(asked(&drivers, "claimed", &[])?.is_empty() && !once.exists(), "nobody has attached it");
    let attached = used.map(|name| json!({"name": name, "devicePath": "/dev/of-attach"}));
    scene.cluster.patch_status("nodes", "", NODE, &json!({"status": {"volumesAttached": attached}}))?;
    scene.wait_ready("one")?;
    let of_pod = |uid: &str| root.join(format!("pods/{uid}/volumes/example.com~attached"));
    for volume in ["own", "claimed"] {
        let file = of_pod(&one).join(volume).join("file");
        ensure!(std::fs::read_to_string(&file)? == "from-the-driver\n", "{volume}");
        let is = std::os::unix::fs::MetadataExt::gid(&std::fs::metadata(&file)?);
        ensure!(is == 2000, "{volume} is group {is}'s");
    }

    // Deaths are noticed by nobody, and no driver is asked to mount again.
    for daemon in ["kubelet-volnetd", "kubelet-syncd"] {
        dies(&mut scene, daemon, &drivers, ATTACHED)?;
        scene.wait_ready("one")?;
        ensure!(scene.volumes("volumesInUse")? == used, "{daemon}: {:?}", scene.volumes("volumesInUse")?);
    }

    scene.cluster.patch("persistentvolumes", "", "claimed", &json!({"spec": {"capacity": {"storage": "32Mi"}}}))?;
    let grown = |claim: &Value| claim["status"]["capacity"]["storage"] == "32Mi";
    scene.cluster.wait_for(CLAIMS, "default", "claimed", "it has grown", grown)?;
    ensure!(scene.volumes("volumesInUse")? == used, "after the deaths: {:?}", scene.volumes("volumesInUse")?);
    eventually("the larger volume is measured", LONG, || {
        let path = format!("/api/v1/nodes/{NODE}/proxy/stats/summary");
        let summary: Value = serde_json::from_str(&scene.cluster.kubectl(&["get", "--raw", &path])?)?;
        let pods = summary["pods"].as_array().context("no pods")?;
        let pod = pods.iter().find(|pod| pod["podRef"]["name"] == "one").context("no pod")?;
        let volumes = pod["volume"].as_array().context("no volumes")?;
        let volume = volumes.iter().find(|volume| volume["name"] == "claimed").context("no volume")?;
        ensure!(volume["pvcRef"]["name"] == "claimed" && volume["capacityBytes"] == 2 << 20, "{volume}");
        Ok(())
    })?;

    let two = uid_of(&scene.create("two", &pod_of_attached(&[]))?)?;
    scene.wait_ready("two")?;
    ensure!(of_pod(&two).join("claimed/file").exists(), "the second pod has it, too");
    scene.delete("one")?;
    eventually("the first pod's own is in use no more", LONG, || {
        let in_use = scene.volumes("volumesInUse")?;
        ensure!(in_use == used[..1], "{in_use:?}");
        Ok(())
    })?;
    ensure!(once.join("claimed/file").exists() && !once.join("own").exists(), "it is unmounted with its last pod");
    scene.delete("two")?;
    scene.wait_no_traces()?;
    ensure!(std::fs::read_dir(&once)?.next().is_none(), "a folder is left in {}", once.display());

    let words = [
        (once.display().to_string(), "ONCE"),
        (of_pod(&one).display().to_string(), "ONE"),
        (of_pod(&two).display().to_string(), "TWO"),
    ];
    let expected = [
        "waitforattach /dev/of-attach OPTIONS",
        "getvolumename OPTIONS",
        "mountdevice ONCE/claimed of-wait OPTIONS",
        "mount ONE/claimed OPTIONS",
        "waitforattach /dev/of-attach OPTIONS",
        "expandfs OPTIONS of-wait ONE/claimed 33554432 16777216",
        "waitforattach /dev/of-attach OPTIONS",
        "mount TWO/claimed OPTIONS",
        "unmount ONE/claimed",
        "unmount TWO/claimed",
        "unmountdevice ONCE/claimed",
    ];
    let said = asked(&drivers, "claimed", &words)?;
    ensure!(said == expected, "{said:#?}");
    let expected = [
        "waitforattach /dev/of-attach OPTIONS",
        "getvolumename OPTIONS",
        "mountdevice ONCE/own of-wait OPTIONS",
        "mount ONE/own OPTIONS",
        "unmount ONE/own",
        "unmountdevice ONCE/own",
    ];
    let said = asked(&drivers, "own", &words)?;
    ensure!(said == expected, "{said:#?}");
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
    ensure!(said.starts_with("FailedMount Unable to attach or mount volumes: unmounted volumes=[own]"), "{said}");
    ensure!(said.contains("failed to get Plugin from volumeSpec for volume \"own\" err="), "{said}");
    ensure!(said.contains("systemctl enable --now kubelet-flexvolume.socket"), "{said}");
    ensure!(!drivers.join("example.com~tmpfs/calls").exists(), "the driver was called");
    scene.delete("waits")?;
    scene.finish()
}
