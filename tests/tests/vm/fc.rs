//! Volumes behind Fibre Channel, for which disks of `scsi_debug` stand in: a real SCSI host that is scanned, real devices that are
//! mounted, mapped, and taken out of the kernel. The links that udev would make are there beforehand, and lead to nothing yet.
//!
//! In the machine of [`crate::nfs`], which has units and pods already.

use anyhow::{Context as _, Result, ensure};
use bulkhead_tests::joined::is_true;
use serde_json::{Value, json};

use crate::node::{IDLE, NAMESPACE, PODS, World, bound, pod};

const WWN: &str = "50060e801049cfd1";
const WWID: &str = "3600508b400105e210000900000490000";
/// As the Node lists them.
const DISK: &str = "kubernetes.io/fc/[50060e801049cfd1]:0";
const RAW: &str = "kubernetes.io/fc/[3600508b400105e210000900000490000]";
const FOLDER: &str = "/var/lib/kubelet/plugins/kubernetes.io/fc";

/// The host is there, and its disks are not until it is scanned: LUN 0 has been taken out, LUN 1 is none yet.
const START: &str = "modprobe sd_mod; modprobe scsi_debug dev_size_mb=32 max_luns=1\n\
     mkdir -p /dev/disk/by-path /dev/disk/by-id\n\
     ln -s ../../sda /dev/disk/by-path/pci-0000:41:00.0-fc-0x50060e801049cfd1-lun-0\n\
     ln -s ../../sdb /dev/disk/by-id/scsi-3600508b400105e210000900000490000\n\
     until [ -b /dev/sda ]; do sleep 0.2; done\n\
     echo 1 > /sys/block/sda/device/delete; until [ ! -e /dev/sda ]; do sleep 0.2; done\n\
     echo 2 > /sys/bus/pseudo/drivers/scsi_debug/max_luns";
/// Whatever the machine's one disk of its own is called, these are not it.
const GONE: &str = "! ls -d /sys/block/sd*";

fn disk() -> Value {
    json!({"name": "disk", "fc": {"targetWWNs": [WWN], "lun": 0}})
}

fn user(name: &str, command: &str) -> Value {
    let mut pod = pod(name, command, &json!({}));
    pod["spec"]["securityContext"] = json!({"fsGroup": 2000});
    pod["spec"]["volumes"] = json!([disk()]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "disk", "mountPath": "/data", "subPath": "part"}]);
    bound(pod)
}

/// A pod that has LUN 1 as a device.
fn of_a_device(world: &World) -> Result<Value> {
    let cluster = &world.cluster;
    let claim = cluster.create(&json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "raw", "namespace": NAMESPACE},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "pv-raw", "volumeMode": "Block",
            "resources": {"requests": {"storage": "16Mi"}}}}))?;
    cluster.create(
        &json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv-raw"}, "spec": {
        "capacity": {"storage": "16Mi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "", "volumeMode": "Block", "fc": {"wwids": [WWID]},
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": "raw",
            "uid": claim["metadata"]["uid"]}}}),
    )?;
    let status =
        json!({"status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "16Mi"}}});
    cluster.patch_status("persistentvolumeclaims", NAMESPACE, "raw", &status)?;
    let mut pod = pod("raw", &format!("head -c 512 /dev/raw > /dev/null || exit 1; {IDLE}"), &json!({}));
    pod["spec"]["volumes"] = json!([{"name": "raw", "persistentVolumeClaim": {"claimName": "raw"}}]);
    pod["spec"]["containers"][0]["volumeDevices"] = json!([{"name": "raw", "devicePath": "/dev/raw"}]);
    Ok(bound(pod))
}

/// As the controller does: what is in use is attached. Upstream's does no more than that for this kind.
pub fn attached(world: &World, names: &[&str]) -> Result<()> {
    let in_use = |node: &Value| {
        let all = node["status"]["volumesInUse"].as_array().cloned().unwrap_or_default();
        names.iter().all(|name| all.iter().any(|one| one == name)) && all.len() == names.len()
    };
    let wait = || world.cluster.wait_for("nodes", "", "vm", "its volumes are in use", in_use);
    wait().or_else(|_| wait())?;
    let entry = |name: &&str| json!({"name": name, "devicePath": ""});
    let all: Vec<Value> = names.iter().map(entry).collect();
    world.cluster.patch_status("nodes", "", "vm", &json!({"status": {"volumesAttached": all}})).map(drop)
}

/// Attached, mounted once a node and mapped; taken back with the last pod, and attached again with what was written.
pub fn disks(world: &mut World) -> Result<()> {
    world.vm.run(START)?;
    world.cluster.create(&user("first", &format!("date > /data/first || exit 1; {IDLE}")))?;
    let raw = of_a_device(world)?;
    world.cluster.create(&raw)?;
    attached(world, &[DISK, RAW])?;
    for pod in ["first", "raw"] {
        world.wait(pod, "it is ready", |pod| is_true(pod, "Ready"))?;
    }
    world.cluster.create(&user("second", &format!("ls /data/first || exit 1; {IDLE}")))?;
    world.wait("second", "it is ready", |pod| is_true(pod, "Ready"))?;
    let mounts = world.vm.run("grep /dev/sda /proc/self/mountinfo | cut -d ' ' -f 5 | sort")?;
    let of = |ends: &str| mounts.lines().filter(|point| point.ends_with(ends)).count();
    let once = mounts.lines().filter(|point| **point == format!("{FOLDER}/{WWN}-lun-0")).count();
    ensure!((once, of("/volumes/kubernetes.io~fc/disk")) == (1, 2), "{mounts}");
    let group = world.vm.run(&format!("stat -c %g {FOLDER}/{WWN}-lun-0"))?;
    ensure!(group == "2000", "{group}");
    let uid = world.cluster.get("pods", NAMESPACE, "raw")?["metadata"]["uid"].as_str().context("no uid")?.to_owned();
    let link = format!("/var/lib/kubelet/pods/{uid}/volumeDevices/kubernetes.io~fc/pv-raw");
    let map = format!("{FOLDER}/volumeDevices/{WWID}/{uid}");
    let shown = world.vm.run(&format!("readlink {link}; [ -b {map} ] && stat -c %t {map}"))?;
    ensure!(shown == "/dev/sdb\n8", "{shown}");
    // A death of whoever has mounted it, and of who asks: nobody notices.
    world.vm.run("systemctl kill -s KILL kubelet-volnetd kubelet-syncd")?;
    crate::life::healthy(world)?;
    for pod in ["first", "raw", "second"] {
        world.cluster.delete("pods", NAMESPACE, pod, None)?;
        world.gone(pod)?;
    }
    world.vm.until("both disks have gone", PODS, GONE)?;
    attached(world, &[])?;
    let left = world.vm.run(&format!("ls -A {FOLDER} {FOLDER}/volumeDevices; losetup -a"))?;
    ensure!(left == format!("{FOLDER}:\nvolumeDevices\n\n{FOLDER}/volumeDevices:"), "{left}");
    // The same disk again, and it was not formatted anew.
    world.cluster.create(&user("again", &format!("[ -s /data/first ] || exit 1; {IDLE}")))?;
    attached(world, &[DISK])?;
    world.wait("again", "it is ready", |pod| is_true(pod, "Ready"))?;
    world.cluster.delete("pods", NAMESPACE, "again", None)?;
    world.gone("again")?;
    world.vm.until("the disk has gone", PODS, "! ls -d /sys/block/sda")?;
    attached(world, &[])
}
