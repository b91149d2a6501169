//! A live node with persistent volumes goes from upstream's kubelet to ours, back, and to ours again: the pods that stay notice
//! nothing, and what ended while nobody ran is taken back by whoever comes next, whoever has made it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::csi::hostpath::{self, Hostpath};
use bulkhead_testkit::csi::{Driver, objects};
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::{LONG, Pod, cluster, eventually, image, loops};
use bulkhead_tests::history::readiness;
use bulkhead_tests::joined::is_true;
use bulkhead_tests::joined::versions::one_life;
use bulkhead_tests::lab;
use bulkhead_tests::storage::recorded::sha256;
use bulkhead_tests::storage::scene::unique_name;
use bulkhead_tests::storage::{Kubelet, NODE, Scene};
use serde_json::{Value, json};

use crate::DRIVER;

const NAME: &str = "take-over.test";
const CLAIMS: &str = "persistentvolumeclaims";
/// Writes to each of its volumes until one of them cannot be written.
const WRITER: &str =
    "trap 'exit 0' TERM; while sleep 0.2; do for one in $VOLUMES; do date >> $one/alive || exit 1; done; done";
/// Ends when its volume says so.
const ENDS: &str = "trap 'exit 0' TERM; until [ -e $VOLUMES/stop ]; do sleep 0.2; done";

struct World {
    scene: Scene,
    hostpath: Hostpath,
    driver: Driver,
    /// Pods that stay, with their uids.
    stay: BTreeMap<String, String>,
}

/// What must not change of the pods that stay.
#[derive(Debug, PartialEq)]
struct Seen {
    containers: Vec<Fingerprint>,
    /// Lines of mountinfo, the mounts' numbers with them.
    mounts: Vec<String>,
    loops: Vec<(PathBuf, String)>,
    /// Each vol_data.json, byte for byte.
    files: BTreeMap<PathBuf, String>,
}

fn world() -> Result<Option<World>> {
    let Some(lab) = lab()? else { return Ok(None) };
    if !Hostpath::is_there() || !cluster::controllers_are_there() {
        skip_this_test(Lack::ControlPlane)?;
        return Ok(None);
    }
    let cluster = lab.cluster_with_controllers()?;
    let Some(scene) = Scene::start_upstreams(lab, cluster)? else {
        skip_this_test(Lack::ControlPlane)?;
        return Ok(None);
    };
    let hostpath = Hostpath::start(&scene.node, &scene.cluster)?;
    let driver = scene.driver(DRIVER, NAME, &Value::Null)?.start()?;
    driver.wait_registered()?;
    let both = |node: &Value| node["spec"]["drivers"].as_array().is_some_and(|all| all.len() == 2);
    scene.cluster.wait_for("csinodes", "", NODE, "both drivers are in it", both).with_context(|| hostpath.logs())?;
    Ok(Some(World { scene, hostpath, driver, stay: BTreeMap::new() }))
}

fn uid_of(pod: &Value) -> Result<String> {
    pod["metadata"]["uid"].as_str().map(str::to_owned).context("no uid")
}

/// A container that runs the script with its volumes' places in `VOLUMES`.
fn container(script: &str, mounts: &[(&str, &str)], devices: &[&str]) -> Value {
    let paths: Vec<String> = mounts.iter().map(|(volume, _)| format!("/{volume}")).collect();
    let each = |(volume, part): &(&str, &str)| {
        let mut mount = json!({"name": volume, "mountPath": format!("/{volume}")});
        if !part.is_empty() {
            mount["subPath"] = json!(part);
        }
        mount
    };
    let mounts: Vec<Value> = mounts.iter().map(each).collect();
    let devices: Vec<Value> =
        devices.iter().map(|name| json!({"name": name, "devicePath": format!("/dev/{name}")})).collect();
    json!({"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", script],
        "env": [{"name": "VOLUMES", "value": paths.join(" ")}], "volumeMounts": mounts, "volumeDevices": devices})
}

impl World {
    /// A pod with volumes of each kind of both drivers, that stays.
    fn user(&mut self, name: &str) -> Result<()> {
        let [data, raw, disk, device] = ["data", "raw", "disk", "device"].map(|kind| format!("{name}-{kind}"));
        let cluster = &self.scene.cluster;
        cluster.create(&objects::claim(&data, hostpath::CLASS, "16Mi", &Value::Null))?;
        cluster.create(&objects::claim(&raw, hostpath::CLASS, "16Mi", &json!({"volumeMode": "Block"})))?;
        self.scene.volume(&disk, NAME)?;
        self.scene.block_volume(&device, NAME)?;
        let mut volumes: Vec<Value> = [&data, &raw, &disk, &device].map(|claim| objects::of_claim(claim)).to_vec();
        for (volume, driver) in [("inline", hostpath::NAME), ("own", NAME)] {
            volumes.push(json!({"name": volume, "csi": {"driver": driver}}));
        }
        let mounts = [(data.as_str(), ""), (&disk, ""), ("inline", ""), ("own", "")];
        self.stays(
            name,
            &json!({"volumes": volumes, "securityContext": {"fsGroup": 2000},
                "containers": [container(WRITER, &mounts, &[&raw, &device])]}),
        )
    }

    /// Another pod with a claim of a user, and a part of it.
    fn sharer(&mut self, name: &str, claim: &str) -> Result<()> {
        let mut container = container(WRITER, &[(claim, "")], &[]);
        let part = json!({"name": claim, "mountPath": "/part", "subPath": "part/of/it"});
        container["volumeMounts"].as_array_mut().context("no mounts")?.push(part);
        self.stays(name, &json!({"volumes": [objects::of_claim(claim)], "containers": [container]}))
    }

    fn stays(&mut self, name: &str, spec: &Value) -> Result<()> {
        let pod = self.scene.create(name, spec)?;
        self.scene.wait_ready(name).with_context(|| self.hostpath.logs())?;
        self.stay.insert(name.to_owned(), uid_of(&pod)?);
        Ok(())
    }

    /// A pod that ends by itself when its volume says so.
    fn ending(&self, name: &str) -> Result<String> {
        self.scene.volume(name, NAME)?;
        let spec = json!({"restartPolicy": "Never", "volumes": [objects::of_claim(name)],
            "containers": [container(ENDS, &[(name, "")], &[])]});
        let pod = self.scene.create(name, &spec)?;
        self.scene.wait_ready(name)?;
        uid_of(&pod)
    }

    fn target(&self, uid: &str, volume: &str) -> PathBuf {
        self.scene.node.root_dir().join("pods").join(uid).join("volumes/kubernetes.io~csi").join(volume).join("mount")
    }

    /// The handle of the volume that a claim is bound to.
    fn handle(&self, claim: &str) -> Result<String> {
        let claim = self.scene.cluster.get(CLAIMS, "default", claim)?;
        let volume = claim["spec"]["volumeName"].as_str().context("it is not bound")?;
        let volume = self.scene.cluster.get("persistentvolumes", "", volume)?;
        volume["spec"]["csi"]["volumeHandle"].as_str().map(str::to_owned).context("no handle")
    }

    /// Words by which paths of the pods that stay, and of their volumes, are known.
    fn words(&self) -> Result<Vec<String>> {
        let mut words: Vec<String> = self.stay.values().cloned().collect();
        for claim in self.scene.cluster.list(CLAIMS, Some("default"))? {
            let name = claim["metadata"]["name"].as_str().unwrap_or_default();
            if self.stay.keys().any(|pod| name.starts_with(&format!("{pod}-"))) {
                words.push(sha256(&self.handle(name)?));
                words.push(claim["spec"]["volumeName"].as_str().unwrap_or_default().to_owned());
            }
        }
        Ok(words)
    }

    fn seen(&self) -> Result<Seen> {
        let (root, words) = (self.scene.node.root_dir(), self.words()?);
        let is_theirs = |text: &str| words.iter().any(|word| text.contains(word.as_str()));
        let below = root.display().to_string();
        let info = std::fs::read_to_string("/proc/self/mountinfo")?;
        let of_drivers = ["~csi", "kubernetes.io/csi", "volume-subpaths"];
        let mut mounts: Vec<String> = info
            .lines()
            .filter(|line| line.contains(&below) && of_drivers.iter().any(|word| line.contains(word)))
            .filter(|line| is_theirs(line))
            .map(str::to_owned)
            .collect();
        mounts.sort();
        let mut loops = loops::below(root);
        loops.retain(|(_, file)| is_theirs(file));
        let mut files = BTreeMap::new();
        for folder in ["pods", "plugins"] {
            vol_data(&root.join(folder), &mut files)?;
        }
        files.retain(|path, _| is_theirs(&path.display().to_string()));
        let mut containers = self.scene.node.fingerprint()?;
        containers.retain(|one| self.stay.contains_key(&one.pod));
        Ok(Seen { containers, mounts, loops, files })
    }

    /// The kubelet changes. The pods that stay notice nothing, and none of their volumes is taken away.
    fn changes(&mut self, to: Kubelet, meanwhile: impl FnOnce(&Scene) -> Result<()>) -> Result<()> {
        let before = self.seen()?;
        for (what, count) in [("mounts", before.mounts.len()), ("files", before.files.len())] {
            ensure!(count >= 7, "this test does not see the {what}: {before:#?}");
        }
        let published = self.published()?;
        self.scene.hand_over(to, meanwhile)?;
        self.pods_write(&before)?;
        self.new_life(&format!("life-{published}"))?;
        let now = self.seen()?;
        ensure!(now == before, "{before:#?}\nbecame, with {to:?}:\n{now:#?}");
        for pod in self.stay.keys() {
            let shown = self.scene.wait_ready(pod)?;
            let status = &shown["status"]["containerStatuses"][0];
            ensure!(status["restartCount"] == 0, "{status:#}");
        }
        self.none_taken_away()
    }

    fn published(&self) -> Result<usize> {
        Ok(self.driver.calls()?.iter().filter(|call| call.method == "NodePublishVolume").count())
    }

    /// Each pod that stays goes on writing to each of its volumes.
    fn pods_write(&self, seen: &Seen) -> Result<()> {
        let points: Vec<&str> = seen.mounts.iter().filter_map(|line| line.split(' ').nth(4)).collect();
        let written = |point: &str| Some(std::fs::read_to_string(Path::new(point).join("alive")).ok()?.lines().count());
        let before: Vec<(&str, usize)> = points.iter().filter_map(|point| Some((*point, written(point)?))).collect();
        ensure!(before.len() >= 4, "{seen:#?}");
        for (point, before) in before {
            eventually("the pod goes on writing", LONG, || {
                let now = written(point).with_context(|| format!("{point} is gone"))?;
                ensure!(now > before + 1, "{point}: {before} lines, then {now}");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// A pod with a claim has its whole life: whoever does that has looked at all others.
    fn new_life(&self, name: &str) -> Result<()> {
        self.scene.volume(name, NAME)?;
        self.scene.pod(name, &[name])?;
        self.scene.wait_ready(name)?;
        self.scene.delete(name)?;
        self.driver.wait_call("NodeUnstageVolume", name, |call| call.is_ok()).map(drop)
    }

    /// No call takes a volume away from a pod that stays, nor one that it has from the node.
    fn none_taken_away(&self) -> Result<()> {
        let words = self.words()?;
        let is_one = |method: &str, request: &Value| {
            let request = request.to_string();
            match method {
                "NodeUnpublishVolume" => self.stay.values().any(|uid| request.contains(uid.as_str())),
                "NodeUnstageVolume" => words.iter().any(|word| request.contains(word.as_str())),
                _ => false,
            }
        };
        let own: Vec<_> = self.driver.calls()?.into_iter().filter(|one| is_one(&one.method, &one.request)).collect();
        ensure!(own.is_empty(), "{own:#?}");
        let others: Vec<_> =
            self.hostpath.calls()?.into_iter().filter(|one| is_one(&one.method, &one.request)).collect();
        ensure!(others.is_empty(), "{others:#?}");
        Ok(())
    }

    /// Nothing is left of a pod's volume, nor of what was staged of it.
    fn wait_taken_back(&self, uid: &str, volume: &str) -> Result<()> {
        eventually(&format!("the volume {volume} is taken back"), LONG, || {
            let left: Vec<String> =
                self.scene.traces().into_iter().filter(|one| one.contains(&sha256(volume))).collect();
            ensure!(left.is_empty(), "{left:#?}");
            let folder = self.target(uid, volume);
            let folder = folder.parent().context("no folder")?;
            ensure!(!folder.exists(), "{} is there", folder.display());
            Ok(())
        })?;
        for method in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
            let calls = self.driver.calls_of(method, volume)?;
            ensure!(calls.iter().any(|call| call.is_ok()), "{method} of {volume}: {calls:#?}");
        }
        Ok(())
    }

    /// The kubelet changes while one pod ends by itself, and another one is deleted.
    fn changes_while_pods_end(&mut self, to: Kubelet, round: &str) -> Result<()> {
        let (ends, deleted) = (format!("ends-{round}"), format!("deleted-{round}"));
        let (uid_of_ends, uid_of_deleted) = (self.ending(&ends)?, self.ending(&deleted)?);
        let stop = self.target(&uid_of_ends, &ends).join("stop");
        self.changes(to, |scene| {
            std::fs::write(&stop, "")?;
            let cri = scene.node.cri()?;
            eventually("the pod ends without a kubelet", LONG, || {
                let all = cri.containers()?;
                ensure!(all.iter().any(|one| one.pod == ends && one.exited), "{ends} runs");
                Ok(())
            })?;
            // Without a grace period the server does not wait for the node.
            scene.cluster.delete("pods", "default", &deleted, Some(0))?;
            scene.cluster.wait_gone("pods", "default", &deleted)
        })
        .with_context(|| round.to_owned())?;
        let over = |pod: &Value| pod["status"]["phase"] == "Succeeded";
        self.scene.cluster.wait_for("pods", "default", &ends, "it has succeeded", over)?;
        self.wait_taken_back(&uid_of_ends, &ends)?;
        self.wait_taken_back(&uid_of_deleted, &deleted)?;
        self.scene.delete(&ends)
    }

    /// A pod that stayed goes, with all that it has.
    fn goes(&mut self, name: &str) -> Result<()> {
        let uid = self.stay.remove(name).context("no such pod")?;
        self.scene.delete(name)?;
        eventually(&format!("nothing of {name} is left"), LONG, || {
            let left: Vec<String> = self.scene.traces().into_iter().filter(|one| one.contains(&uid)).collect();
            ensure!(left.is_empty(), "{left:#?}");
            Ok(())
        })
    }
}

/// Every vol_data.json below a folder; what is mounted is not entered.
fn vol_data(folder: &Path, found: &mut BTreeMap<PathBuf, String>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if name == "vol_data.json" {
            found.insert(path.clone(), std::fs::read_to_string(&path)?);
        } else if entry.file_type()?.is_dir() && name != "mount" && name != "globalmount" {
            vol_data(&path, found)?;
        }
    }
    Ok(())
}

#[test]
fn volumes_stay_mounted_when_the_kubelet_is_replaced_put_back_and_replaced_again() -> Result<()> {
    let Some(mut world) = world()? else { return Ok(()) };
    world.user("first")?;
    world.sharer("sharer", "first-disk")?;
    let in_use = ["first-data", "first-raw"].map(|claim| world.handle(claim));
    let in_use: Vec<String> =
        in_use.into_iter().map(|handle| Ok(unique_name(hostpath::NAME, &handle?))).collect::<Result<_>>()?;

    world.changes_while_pods_end(Kubelet::Ours, "upstreams")?;
    // What ours has made is upstream's to take over, too.
    world.user("second")?;
    world.sharer("sharer-of-ours", "second-disk")?;
    world.changes_while_pods_end(Kubelet::Upstreams, "ours")?;
    // Made by ours, ended by upstream's.
    world.goes("sharer-of-ours")?;
    world.changes_while_pods_end(Kubelet::Ours, "upstreams-again")?;
    // As long as it is mounted nothing leaves the list: the controller would detach it.
    let versions = world.scene.cluster.history("nodes", "", NODE)?;
    let used = |node: &Value| node["status"]["volumesInUse"].as_array().cloned().unwrap_or_default();
    let lists: Vec<Vec<Value>> = versions.iter().map(used).collect();
    let has_all = |list: &Vec<Value>| in_use.iter().all(|name| list.contains(&json!(name)));
    let since = lists.iter().position(has_all).context("they were never in use")?;
    ensure!(lists[since..].iter().all(has_all), "{lists:#?}");
    // Made by upstream's, ended by ours, and what ours made itself before upstream's had the node.
    for pod in ["sharer", "first", "second"] {
        world.goes(pod)?;
    }
    world.scene.wait_no_traces()?;
    let World { scene, hostpath, driver, .. } = world;
    drop((hostpath, driver));
    scene.finish()
}

/// The mirror of a static pod that is ready, and the uid of what it mirrors.
fn mirrored(scene: &Scene, name: &str) -> Result<String> {
    let pod = scene.wait_ready(&scene.node.pod_name(name))?;
    let hash = pod["metadata"]["annotations"]["kubernetes.io/config.hash"].as_str();
    hash.map(str::to_owned).context("no hash")
}

#[test]
fn what_upstreams_kubelet_did_in_between_counts() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let Some(mut scene) = Scene::start_upstreams(lab, cluster)? else { return skip_this_test(Lack::ControlPlane) };
    let mut probed = container("touch /tmp/ready; trap 'exit 0' TERM; while sleep 0.2; do :; done", &[], &[]);
    probed["readinessProbe"] =
        json!({"exec": {"command": ["test", "-e", "/tmp/ready"]}, "periodSeconds": 1, "failureThreshold": 1});
    scene.create("probed", &json!({"containers": [probed]}))?;
    for name in ["moved", "emptied"] {
        scene.node.write(&Pod::idle(name))?;
    }
    let theirs = mirrored(&scene, "moved")?;
    mirrored(&scene, "emptied")?;
    let probed = scene.wait_ready("probed")?;
    let log = |scene: &Scene| std::fs::read_to_string(scene.node.log());
    let signs =
        |scene: &Scene| Ok::<_, anyhow::Error>(log(scene)?.matches("another kubelet has had the node: ").count());

    // Ours takes it over, makes one of its pods anew, and is restarted.
    scene.hand_over(Kubelet::Ours, |_| Ok(()))?;
    one_life(&scene.cluster, &scene.node, "first")?;
    scene.node.remove("moved")?;
    scene.cluster.wait_gone("pods", "default", &scene.node.pod_name("moved"))?;
    scene.node.write(&Pod::idle("moved"))?;
    ensure!(mirrored(&scene, "moved")? != theirs);
    scene.hand_over(Kubelet::Ours, |_| Ok(()))?;
    one_life(&scene.cluster, &scene.node, "second")?;
    ensure!(signs(&scene)? == 0, "{}", log(&scene)?);

    // Upstream's has its own uid for that pod, ends one whose manifest is broken, and tells that one is not ready.
    scene.hand_over(Kubelet::Upstreams, |_| Ok(()))?;
    eventually("upstream's runs the pod by its own hash", LONG, || {
        ensure!(mirrored(&scene, "moved")? == theirs);
        Ok(())
    })?;
    scene.node.write_raw("emptied.yaml", b"")?;
    scene.cluster.wait_gone("pods", "default", &scene.node.pod_name("emptied"))?;
    let id = probed["status"]["containerStatuses"][0]["containerID"].as_str().context("no id")?;
    let id = id.rsplit("//").next().unwrap_or_default();
    scene.lab.cri()?.exec(id, &["rm", "/tmp/ready"])?;
    scene.cluster.wait_for("pods", "default", "probed", "it is not ready", |pod| !is_true(pod, "Ready"))?;
    let running = eventually("the ended pod is gone", LONG, || {
        let running = scene.node.fingerprint()?;
        ensure!(running.len() == 2, "{running:#?}");
        Ok(running)
    })?;

    let before = scene.cluster.history("pods", "default", "probed")?.len();
    scene.hand_over(Kubelet::Ours, |_| Ok(()))?;
    one_life(&scene.cluster, &scene.node, "third")?;
    let now = scene.node.fingerprint()?;
    ensure!(now == running, "{running:#?}\nbecame\n{now:#?}");
    let history = scene.cluster.history("pods", "default", "probed")?;
    let ready = readiness(history.get(before..).context("the history is shorter than it was")?);
    ensure!(ready.is_empty(), "a result of before counts: {ready:?}");
    ensure!(signs(&scene)? == 2, "kubelet-volnetd's and kubelet-syncd's: {}", log(&scene)?);
    scene.node.remove_all()?;
    scene.delete("probed")?;
    scene.finish()
}
