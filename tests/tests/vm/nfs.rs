//! Volumes of an NFS server, with the kernel's own server and client: versions and families, what is refused, and a server that goes
//! away and comes back. The machine has no mount.nfs.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::skip::skip_this_test;
use bulkhead_testkit::systemd::MANIFESTS;
use bulkhead_testkit::vm::{Disk, Shape, Vm};
use bulkhead_testkit::{Cluster, eventually};
use bulkhead_tests::joined::is_true;
use serde_json::{Value, json};

use crate::node::{self, IDLE, NAMESPACE, PODS, World, bound, get, pod};

/// Below /srv on the server. The addresses are the machine's own; the name is in its /etc/hosts.
const NAME: &str = "nfs.test";
const V4: &str = "10.0.2.15";
const V6: &str = "fd00::1";

const EXPORTS: &str = "/srv/nfs *(rw,no_root_squash,no_subtree_check,insecure)\n";
/// Its clients' leases end soon, and it does not wait long for those of a former life.
const SERVER: &str = "[nfsd]\nthreads=2\ngrace-time=10\nlease-time=10\n";

const START: &str = "ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2\n\
     ip addr add fd00::1/128 dev lo nodad\n\
     echo '10.0.2.15 nfs.test' >> /etc/hosts\n\
     rm -f /usr/sbin/mount.nfs* /usr/sbin/umount.nfs*\n\
     mkdir -p /srv/nfs/static/sub /srv/nfs/claimed /srv/nfs/old\n\
     modprobe nfsd; systemctl start nfs-server; exportfs -v > /tmp/exports; grep /srv/nfs /tmp/exports";
const NODE: &str = "systemd-sysusers; systemd-tmpfiles --create --prefix=/run/kubelet --prefix=/run/kubelet.claims\n\
     systemctl start containerd\nctr -n k8s.io images import /root/images.tar >/dev/null\n\
     systemctl enable --now kubelet";

const AWAY: &str = "iptables -I INPUT -p tcp --dport 2049 -j DROP; ip6tables -I INPUT -p tcp --dport 2049 -j DROP";
const BACK: &str = "iptables -D INPUT -p tcp --dport 2049 -j DROP; ip6tables -D INPUT -p tcp --dport 2049 -j DROP";

#[test]
fn a_node_with_volumes_of_an_nfs_server() -> Result<()> {
    if let Some(lack) = crate::lack() {
        return skip_this_test(lack);
    }
    let _alone = crate::alone()?;
    let folder = tempfile::tempdir()?;
    let cluster = Cluster::start(&folder.path().join("cluster"), Config::default())?;
    let config = config()?;
    let (config, kubeconfig) = (config.to_string(), node::kubeconfig(&cluster)?.to_string());
    let (manifest, static_pod) = (manifest("static"), of_a_static_pod().to_string());
    let files = [
        ("/var/lib/kubelet/config.yaml", config.as_str()),
        ("/etc/kubernetes/kubelet.conf", kubeconfig.as_str()),
        ("/etc/default/kubelet", node::DEFAULTS),
        ("/etc/exports", EXPORTS),
        ("/etc/nfs.conf.d/lab.conf", SERVER),
        (manifest.as_str(), static_pod.as_str()),
    ];
    let call: (&str, &Path) = ("vsock_call", Path::new(env!("CARGO_BIN_EXE_vsock_call")));
    let disk = Disk::with_packages(folder.path(), &["nfs-kernel-server", "open-iscsi"], &[call], &files)?;
    let vm = Vm::boot(&disk, folder.path(), cluster.address(), Shape::TwoNumaNodes)?;
    let mut world = World { vm, cluster };
    let told = story(&mut world);
    if let Err(fault) = &told {
        eprintln!("{fault:#}");
        let looks = "journalctl -b --no-pager -o short-monotonic -u 'kubelet*' | tail -n 120; grep nfs /proc/self/mountinfo; \
                     dmesg | grep -i -e nfs -e rpc | tail -n 20; exportfs -v; \
                     for p in /proc/[0-9]*; do s=$(cat $p/wchan 2>/dev/null); case $s in *rpc*) echo $p $(cat $p/comm) $s;; esac; done";
        eprintln!("{}", world.vm.script(looks).map(|ended| ended.stdout).unwrap_or_default());
    }
    told
}

/// Nobody is evicted: the machine is small.
pub fn config() -> Result<Value> {
    let mut config = node::config();
    for eviction in ["evictionSoft", "evictionSoftGracePeriod", "evictionMaxPodGracePeriod"] {
        config.as_object_mut().context("no object")?.remove(eviction);
    }
    Ok(config)
}

fn manifest(name: &str) -> String {
    format!("{MANIFESTS}/{name}.yaml")
}

/// A pod that writes a line where it can, and then idles.
fn of(name: &str, volume: Value, mount: Value) -> Value {
    let mut pod = pod(name, &format!("echo {name} >> /data/log; {IDLE}"), &json!({}));
    pod["spec"]["containers"][0]["volumeMounts"] = json!([mount]);
    pod["spec"]["volumes"] = json!([volume]);
    pod
}

fn export(server: &str, path: &str, read_only: bool) -> Value {
    json!({"name": "export", "nfs": {"server": server, "path": path, "readOnly": read_only}})
}

fn data() -> Value {
    json!({"name": "export", "mountPath": "/data"})
}

/// A name that the node resolves, and a version that it negotiates.
fn of_a_static_pod() -> Value {
    of("static", export(NAME, "/srv/nfs/static", false), data())
}

/// A PersistentVolume with its claim, bound to each other by hand: the version, an address of version 6, options.
fn claim(name: &str, server: &str, path: &str, options: &[&str]) -> [Value; 2] {
    [
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("pv-{name}")}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "", "mountOptions": options, "nfs": {"server": server, "path": path},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": name},
        }}),
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": format!("pv-{name}"),
                "resources": {"requests": {"storage": "1Gi"}}}}),
    ]
}

fn claimed(world: &World, name: &str, server: &str, path: &str, options: &[&str]) -> Result<()> {
    let [mut volume, claim] = claim(name, server, path, options);
    let made = world.cluster.create(&claim)?;
    volume["spec"]["claimRef"]["uid"] = made["metadata"]["uid"].clone();
    world.cluster.create(&volume)?;
    world.cluster.patch_status(
        "persistentvolumeclaims",
        NAMESPACE,
        name,
        &json!({"status": {"phase": "Bound",
        "accessModes": ["ReadWriteMany"], "capacity": {"storage": "1Gi"}}}),
    )?;
    let volume = json!({"name": "export", "persistentVolumeClaim": {"claimName": name}});
    world.cluster.create(&bound(of(name, volume, data())))?;
    Ok(())
}

fn story(world: &mut World) -> Result<()> {
    let begun = Instant::now();
    let told = |chapter: &str| eprintln!("{chapter}: done after {} s", begun.elapsed().as_secs());
    world.vm.run(START)?;
    told("the server serves");
    claimed(world, "claimed", V6, "/srv/nfs/claimed", &["vers=4.1", "actimeo=1"])?;
    claimed(world, "old", V4, "/srv/nfs/old", &["nfsvers=3,nolock", "noatime"])?;
    let reads = json!({"name": "export", "mountPath": "/data", "subPath": "sub"});
    world.cluster.create(&bound(of("reader", export(V4, "/srv/nfs/static", true), reads)))?;
    world.cluster.create(&bound(of("denied", export(V4, "/srv/none", false), data())))?;
    claimed(world, "bad", V4, "/srv/nfs/old", &["hard", "bogus=1"])?;
    world.cluster.create(&bound(of("nowhere", export("no-such-host.test", "/p", false), data())))?;
    world.vm.run(NODE)?;
    for pod in ["static-vm", "claimed", "old", "reader"] {
        world.wait(pod, "it is ready", |pod| is_true(pod, "Ready"))?;
    }
    told("pods run");
    mounted(world)?;
    refused(world)?;
    told("mounts and refusals");
    away(world)?;
    told("the server was away");
    back(world)?;
    told("and came back");
    lost(world)?;
    told("a subPath of which the folder is deleted");
    crate::fc::disks(world)?;
    told("disks behind Fibre Channel");
    crate::iscsi::disks(world)?;
    told("disks of an iSCSI target");
    gone(world)?;
    told("removal");
    crate::scarcity::no_inotify_instance(world)?;
    told("without inotify instances");
    crate::numa::policies(world, &told)?;
    Ok(())
}

/// Ids of containers that run.
const RUNNING: &str = "ctr -n k8s.io tasks list -q | sort";
const MOUNTS: &str = "grep ' - nfs4* ' /proc/self/mountinfo";

/// The folder of a pod's volume. A mirror pod has another uid than the static pod.
fn folder(world: &World, pod: &str, volume: &str) -> Result<String> {
    let pod = world.cluster.get("pods", NAMESPACE, pod)?;
    let of_static_pod = &pod["metadata"]["annotations"]["kubernetes.io/config.hash"];
    let uid = of_static_pod.as_str().or_else(|| pod["metadata"]["uid"].as_str()).context("no uid")?;
    Ok(format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~nfs/{volume}"))
}

/// As the kernel shows each: version, address, options; and what the server has. Under which name of a server it shows mounts
/// that share a superblock is chance: the first one's, be it one that was refused.
fn mounted(world: &mut World) -> Result<()> {
    let mounts = world.vm.run(MOUNTS)?;
    for (pod, volume, wanted) in [
        ("static-vm", "export", &[":/srv/nfs/static rw", "vers=4.2", "addr=10.0.2.15", "hard"][..]),
        ("claimed", "pv-claimed", &["[fd00::1]:/srv/nfs/claimed", "vers=4.1", "addr=fd00::1", "acregmin=1"]),
        ("old", "pv-old", &["10.0.2.15:/srv/nfs/old", "vers=3", "noatime", "nolock"]),
        ("reader", "export", &[":/srv/nfs/static ro", "vers=4.2"]),
    ] {
        let folder = format!(" {} ", folder(world, pod, volume)?);
        let line = mounts.lines().find(|line| line.contains(&folder));
        let line = line.with_context(|| format!("no {folder} in {mounts}"))?;
        ensure!(wanted.iter().all(|wanted| line.contains(wanted)), "{wanted:?} in {line}");
    }
    ensure!(mounts.contains("/volume-subpaths/export/main/0 "), "{mounts}");
    // A pod is ready before its shell has written.
    world.vm.until(
        "each has written",
        PODS,
        "[ \"$(cat /srv/nfs/*/log)\" = \"$(printf 'claimed\\nold\\nstatic')\" ]",
    )?;
    // Not even a socket of this kind could be made, or reach anybody.
    let filters = world.vm.run("systemctl show -p RestrictAddressFamilies -p IPAddressDeny kubelet-volnetd")?;
    ensure!(filters.contains("RestrictAddressFamilies=AF_UNIX") && filters.contains("0.0.0.0/0"), "{filters}");
    let summary = format!(
        "{} > /tmp/summary; tr -d ' \\n' < /tmp/summary > /tmp/s; grep -o '\"name\":\"export\"' /tmp/s | wc -l | grep -x 4",
        get("/stats/summary")
    );
    world.vm.until("statistics of the four", PODS, &summary).map(drop)
}

/// In upstream's words, and no folder is left.
fn refused(world: &mut World) -> Result<()> {
    let uid = |world: &World, name: &str| -> Result<String> {
        Ok(world.cluster.get("pods", NAMESPACE, name)?["metadata"]["uid"].as_str().context("no uid")?.to_owned())
    };
    for (name, volume, words) in [
        ("denied", "export", "mount failed: access denied by server while mounting 10.0.2.15:/srv/none"),
        ("bad", "pv-bad", "mount failed: an incorrect mount option was specified: \"bogus=1\": it is not known here"),
        ("nowhere", "export", "mount failed: Failed to resolve server no-such-host.test: "),
    ] {
        let begins = format!("MountVolume.SetUp failed for volume \"{volume}\" : {words}");
        said(world, name, &begins)?;
        let folder = format!("/var/lib/kubelet/pods/{}/volumes/kubernetes.io~nfs/{volume}", uid(world, name)?);
        world.vm.until("its folder is gone", PODS, &format!("! ls -d {folder}"))?;
    }
    let denied = uid(world, "denied")?;
    said(
        world,
        "denied",
        &format!(
            "MountVolume.SetUp failed for volume \"export\" : mount failed: access denied by server while mounting \
             10.0.2.15:/srv/none\nMounting arguments: -t nfs 10.0.2.15:/srv/none \
         /var/lib/kubelet/pods/{denied}/volumes/kubernetes.io~nfs/export"
        ),
    )?;
    for name in ["denied", "bad", "nowhere"] {
        world.cluster.delete("pods", NAMESPACE, name, Some(0))?;
        world.gone(name)?;
    }
    Ok(())
}

pub fn said(world: &World, pod: &str, begins: &str) -> Result<()> {
    eventually(&format!("{pod} says why"), std::time::Duration::from_secs(PODS.into()), || {
        let events = world.cluster.list("events", Some(NAMESPACE))?;
        let of_pod =
            events.iter().filter(|event| event["involvedObject"]["name"] == pod && event["reason"] == "FailedMount");
        let messages: Vec<&str> = of_pod.filter_map(|event| event["message"].as_str()).collect();
        ensure!(messages.iter().any(|message| message.starts_with(begins)), "{begins:?} is not in {messages:#?}");
        Ok(())
    })
}

const UNITS: [&str; 6] =
    ["kubelet-volnetd", "kubelet-syncd", "kubelet-evictiond", "kubelet-walker", "kubelet-statusd", "kubelet-iptables"];

/// Each unit once; the node is well after it. Seconds that each took.
fn restarts(world: &mut World) -> Result<()> {
    let mounts = world.vm.run(MOUNTS)?;
    for unit in UNITS {
        let restart = format!("SECONDS=0; timeout 80 systemctl restart {unit}; echo $SECONDS");
        let took = world.vm.run(&restart).with_context(|| format!("{unit} does not start again"))?;
        eprintln!("{unit} restarted in {took} s");
    }
    crate::life::healthy(world)?;
    ensure!(world.vm.run(MOUNTS)? == mounts, "mounts stay as they are");
    Ok(())
}

/// Nobody but who has the volumes notices: units restart, pods start, statistics are told. What is to go waits.
fn away(world: &mut World) -> Result<()> {
    world.vm.run(AWAY)?;
    world.vm.run(&format!("cp {} /root/static.yaml; rm {0}", manifest("static")))?;
    world.cluster.delete("pods", NAMESPACE, "claimed", None)?;
    let waiting = "journalctl -b --no-pager -u kubelet-volnetd > /tmp/j; grep 'has not answered a worker' /tmp/j | grep TearDownPod";
    world.vm.until("volnetd waits for the server", PODS, waiting)?;
    // The very same pod is wanted again.
    world.vm.run(&format!("cp /root/static.yaml {}", manifest("static")))?;
    let running = world.vm.run(RUNNING)?;
    restarts(world)?;
    let now = world.vm.run(RUNNING)?;
    ensure!(running.lines().all(|id| now.lines().any(|one| one == id)), "of {running:?} there are {now:?}");
    let neighbour = pod("neighbour", IDLE, &json!({}));
    world.vm.run(&format!("cat > {} <<'E'\n{neighbour}\nE", manifest("neighbour")))?;
    world.wait("neighbour-vm", "it is ready", |pod| is_true(pod, "Ready"))?;
    world.cluster.create(&bound(of("late", export(V4, "/srv/nfs/late", false), data())))?;
    said(
        world,
        "late",
        "MountVolume.SetUp failed for volume \"export\" : mount failed: Connection timed out for 10.0.2.15:/srv/nfs/late on ",
    )?;
    world.vm.until(
        "statistics",
        PODS,
        &format!("{} | grep -q '\"name\": *\"neighbour-vm\"'", get("/stats/summary")),
    )?;
    let mounts = world.vm.run(MOUNTS)?;
    for (pod, volume) in [("static-vm", "export"), ("claimed", "pv-claimed")] {
        let stays = folder(world, pod, volume)?;
        ensure!(mounts.contains(&format!(" {stays} ")), "{stays} stays mounted: {mounts}");
    }
    let there = "for d in $(ls -d /var/lib/kubelet/pods/*/volumes/kubernetes.io~nfs); do timeout 5 ls $d; done | sort";
    let there = world.vm.run(there)?;
    ensure!(there.contains("pv-claimed") && there.matches("export").count() >= 2, "{there}");
    let object = world.cluster.get("pods", NAMESPACE, "claimed")?;
    ensure!(object["metadata"]["deletionTimestamp"].is_string(), "{object}");
    Ok(())
}

/// A pod deletes the folder that is mounted for it by `subPath`: the server knows it no more, and the pod goes all the same (upstream
/// `test/e2e/storage/testsuites/subpath.go`, "should be able to unmount after the subpath directory is deleted").
fn lost(world: &mut World) -> Result<()> {
    let mut loser = pod("loser", &format!("rm -r /data/part && touch /data/lost; {IDLE}"), &json!({}));
    let part = json!({"name": "export", "mountPath": "/part", "subPath": "part"});
    loser["spec"]["containers"][0]["volumeMounts"] = json!([data(), part]);
    loser["spec"]["volumes"] = json!([export(V4, "/srv/nfs/old", false)]);
    world.cluster.create(&bound(loser))?;
    world.vm.until("the folder is deleted", PODS, "ls /srv/nfs/old/lost")?;
    let mounts = world.vm.run(MOUNTS)?;
    ensure!(mounts.contains("/volume-subpaths/export/main/1 "), "{mounts}");
    world.cluster.delete("pods", NAMESPACE, "loser", Some(1))?;
    world.gone("loser")?;
    world.vm.until("its mounts have gone", PODS, &format!("{MOUNTS} > /tmp/m; ! grep main/1 /tmp/m")).map(drop)
}

/// What was to go goes, and the same static pod starts again.
fn back(world: &mut World) -> Result<()> {
    world.vm.run(&format!("mkdir -p /srv/nfs/late; {BACK}"))?;
    world.gone("claimed")?;
    world.vm.until("its mount has gone", PODS, &format!("{MOUNTS} > /tmp/m; ! grep claimed /tmp/m"))?;
    world.vm.until(
        "the static pod has started again",
        PODS,
        "[ \"$(cat /srv/nfs/static/log)\" = \"$(printf 'static\\nstatic')\" ]",
    )?;
    world.wait("static-vm", "it is ready", |pod| is_true(pod, "Ready"))?;
    world.wait("late", "it is ready", |pod| is_true(pod, "Ready"))?;
    crate::life::healthy(world)
}

/// With the last pods go all mounts, and folders.
fn gone(world: &mut World) -> Result<()> {
    world.vm.run(&format!("rm {MANIFESTS}/*"))?;
    for name in ["old", "reader", "late"] {
        world.cluster.delete("pods", NAMESPACE, name, None)?;
        world.gone(name)?;
    }
    world.vm.until("no export is mounted", PODS, &format!("! {MOUNTS}"))?;
    world.vm.until("no pod's folder is left", PODS, "ls /var/lib/kubelet/pods > /tmp/p; ! grep . /tmp/p")?;
    let written = world.vm.run("cat /srv/nfs/static/log")?;
    ensure!(written == "static\nstatic", "what pods wrote stays: {written}");
    Ok(())
}
