//! Volumes of an iSCSI target, with the kernel's own target and initiator and the machine's iscsid: CHAP, two disks of one session,
//! a device, logout with the last.
//!
//! In the machine of [`crate::nfs`], which has units and pods already.

use anyhow::{Result, ensure};
use bulkhead_tests::joined::is_true;
use serde_json::{Value, json};

use crate::fc::attached;
use crate::node::{IDLE, NAMESPACE, PODS, World, bound, pod};

const PORTAL: &str = "10.0.2.15:3260";
const IQN: &str = "iqn.2003-01.test:disks";
const FOLDER: &str = "/var/lib/kubelet/plugins/kubernetes.io/iscsi";

/// A target of two disks, for one initiator with a password. It was discovered before, as upstream's kubelet does: there is a record.
const TARGET: &str = "modprobe sd_mod; modprobe iscsi_tcp; modprobe target_core_mod; modprobe target_core_file; modprobe iscsi_target_mod\n\
     C=/sys/kernel/config/target; [ -d /sys/kernel/config/target ] || mount -t configfs none /sys/kernel/config\n\
     T=$C/iscsi/iqn.2003-01.test:disks/tpgt_1; A=$T/acls/iqn.2024-01.test:vm\n\
     mkdir -p $C/iscsi; mkdir $C/iscsi/iqn.2003-01.test:disks; mkdir $T; mkdir $T/np/10.0.2.15:3260; mkdir $A\n\
     for n in 0 1; do truncate -s 48M /srv/disk$n; mkdir -p $C/core/fileio_$n/disk$n\n\
     echo fd_dev_name=/srv/disk$n,fd_dev_size=50331648 > $C/core/fileio_$n/disk$n/control\n\
     echo 1 > $C/core/fileio_$n/disk$n/enable; mkdir $T/lun/lun_$n; ln -s $C/core/fileio_$n/disk$n $T/lun/lun_$n/d\n\
     mkdir $A/lun_$n; ln -s $T/lun/lun_$n $A/lun_$n/l; done\n\
     echo 1 > $T/attrib/authentication; printf me > $A/auth/userid; printf 'a secret word' > $A/auth/password\n\
     echo 1 > $T/enable\n\
     echo InitiatorName=iqn.2024-01.test:vm > /etc/iscsi/initiatorname.iscsi\n\
     systemctl start iscsid.socket iscsid\n\
     iscsiadm -m discovery -t sendtargets -p 10.0.2.15 >/dev/null; systemctl is-active iscsid";
const SESSIONS: &str = "ls /sys/class/iscsi_session 2>/dev/null; true";

fn unique(lun: u32) -> String {
    format!("kubernetes.io/iscsi/{PORTAL}:{IQN}:{lun}")
}

fn source(lun: u32, secret: &str) -> Value {
    json!({"targetPortal": PORTAL, "iqn": IQN, "lun": lun, "chapAuthDiscovery": true, "chapAuthSession": true,
        "secretRef": {"name": secret}})
}

fn user(name: &str, command: &str, secret: &str) -> Value {
    let mut pod = pod(name, command, &json!({}));
    pod["spec"]["volumes"] = json!([{"name": "disk", "iscsi": source(0, secret)}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "disk", "mountPath": "/data"}]);
    bound(pod)
}

fn secret(name: &str, password: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE},
        "type": "kubernetes.io/iscsi-chap",
        "stringData": {"node.session.auth.username": "me", "node.session.auth.password": password}})
}

/// A pod that has LUN 1 as a device.
fn of_a_device(world: &World) -> Result<Value> {
    let cluster = &world.cluster;
    let claim = cluster.create(&json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "lun", "namespace": NAMESPACE},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "pv-lun", "volumeMode": "Block",
            "resources": {"requests": {"storage": "16Mi"}}}}))?;
    cluster.create(
        &json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv-lun"}, "spec": {
        "capacity": {"storage": "16Mi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "", "volumeMode": "Block", "iscsi": source(1, "chap"),
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": "lun",
            "uid": claim["metadata"]["uid"]}}}),
    )?;
    let status =
        json!({"status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "16Mi"}}});
    cluster.patch_status("persistentvolumeclaims", NAMESPACE, "lun", &status)?;
    let mut pod =
        pod("lun", &format!("echo block | dd of=/dev/raw conv=notrunc 2>/dev/null || exit 1; {IDLE}"), &json!({}));
    pod["spec"]["volumes"] = json!([{"name": "raw", "persistentVolumeClaim": {"claimName": "lun"}}]);
    pod["spec"]["containers"][0]["volumeDevices"] = json!([{"name": "raw", "devicePath": "/dev/raw"}]);
    Ok(bound(pod))
}

/// Refused with a wrong password; then both disks by one session, which ends with the last of them.
pub fn disks(world: &mut World) -> Result<()> {
    ensure!(world.vm.run(TARGET)?.ends_with("active"), "iscsid does not run");
    world.cluster.create(&secret("wrong", "another word"))?;
    world.cluster.create(&secret("chap", "a secret word"))?;
    world.cluster.create(&user("stranger", IDLE, "wrong"))?;
    attached(world, &[&unique(0)])?;
    crate::nfs::said(
        world,
        "stranger",
        "MountVolume.WaitForAttach failed for volume \"disk\" : failed to get any path for iscsi disk",
    )?;
    world.cluster.delete("pods", NAMESPACE, "stranger", Some(0))?;
    world.gone("stranger")?;
    world.cluster.create(&user("first", &format!("date > /data/first || exit 1; {IDLE}"), "chap"))?;
    let raw = of_a_device(world)?;
    world.cluster.create(&raw)?;
    attached(world, &[&unique(0), &unique(1)])?;
    for pod in ["first", "lun"] {
        world.wait(pod, "it is ready", |pod| is_true(pod, "Ready"))?;
    }
    let sessions = world.vm.run(SESSIONS)?;
    ensure!(sessions.lines().count() == 1, "{sessions}");
    let name = format!("{FOLDER}/iface-default/{PORTAL}-{IQN}-lun-0");
    let mounts = world.vm.run("grep /dev/sd /proc/self/mountinfo | cut -d ' ' -f 5")?;
    ensure!(mounts.lines().any(|point| point == name), "{mounts}");
    let file = world.vm.run(&format!("cat {FOLDER}/volumeDevices/iface-default/{PORTAL}-{IQN}-lun-1/iscsi.json"))?;
    ensure!(file.contains("\"Lun\":\"1\"") && file.ends_with("\"MetricsProvider\":null}"), "{file}");
    // Passwords stand in the record, which is root's alone, and nowhere else.
    let told = world.vm.run("journalctl -b --no-pager > /tmp/j; ! grep -l 'secret word' /tmp/j; \
                             find /etc/iscsi/nodes -type f -perm /077; grep -rl 'a secret word' /var/lib/kubelet /run/kubelet /etc/iscsi || true")?;
    ensure!(told.lines().all(|line| line.starts_with("/etc/iscsi/nodes/")), "{told}");
    world.cluster.delete("pods", NAMESPACE, "first", None)?;
    world.gone("first")?;
    attached(world, &[&unique(1)])?;
    ensure!(world.vm.run(SESSIONS)? == sessions, "the other disk needs it");
    world.vm.run("systemctl kill -s KILL kubelet-volnetd kubelet-syncd")?;
    crate::life::healthy(world)?;
    world.cluster.delete("pods", NAMESPACE, "lun", None)?;
    world.gone("lun")?;
    attached(world, &[])?;
    world.vm.until("the session has ended", PODS, &format!("[ -z \"$({SESSIONS})\" ]"))?;
    let left = world.vm.run(&format!("find {FOLDER} /etc/iscsi/nodes -type f; losetup -a; head -c 6 /srv/disk1"))?;
    ensure!(left == "block", "{left}");
    Ok(())
}
