//! A driver that fails, hangs, lies, answers late or dies at each step of a volume's life: what the pod says, and who else notices.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::csi::{Driver, Fault, objects};
use bulkhead_testkit::immutable::{Immutable, LACK};
use bulkhead_testkit::skip::skip_this_test;
use bulkhead_testkit::wait::holds_for;
use bulkhead_testkit::{IDLE, LONG, NodeBuilder, eventually, image, mounts};
use bulkhead_tests::lab;
use bulkhead_tests::storage::recorded::sha256;
use bulkhead_tests::storage::{NODE, Scene};
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};

use crate::DRIVER;

/// The driver that misbehaves, and the one that does not.
const BAD: &str = "bad.test";
const GOOD: &str = "good.test";
/// One that wants to be called again with every sync of a pod.
const AGAIN: &str = "again.test";
/// For how long nothing happens that must not.
const WHILE: Duration = Duration::from_secs(3);

struct World {
    scene: Scene,
    bad: Driver,
    good: Driver,
}

fn world() -> Result<Option<World>> {
    world_with(|node| node)
}

/// Pods are looked at, and volumes measured, every few seconds.
fn hasty_world() -> Result<Option<World>> {
    world_with(|node| node.config("syncFrequency", json!("4s")).config("volumeStatsAggPeriod", json!("2s")))
}

fn world_with(configure: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Result<Option<World>> {
    let Some(lab) = lab()? else { return Ok(None) };
    let cluster = lab.cluster()?;
    let scene = Scene::start_with(lab, cluster, configure)?;
    let bad = scene.driver(DRIVER, BAD, &Value::Null)?.start()?;
    let good = scene.driver(DRIVER, GOOD, &Value::Null)?.start()?;
    bad.wait_registered()?;
    good.wait_registered()?;
    Ok(Some(World { scene, bad, good }))
}

impl World {
    /// A pod of a new volume of the bad driver, both of that name.
    fn victim(&self, name: &str) -> Result<Value> {
        self.scene.volume(name, BAD)?;
        self.scene.pod(name, &[name])
    }

    /// A pod with a volume of the other driver comes and goes.
    fn others_notice_nothing(&self, name: &str) -> Result<()> {
        self.scene.volume(name, GOOD)?;
        self.scene.pod(name, &[name])?;
        self.scene.wait_ready(name)?;
        self.scene.delete(name)?;
        self.good.wait_call("NodeUnstageVolume", name, |call| call.is_ok())?;
        Ok(())
    }

    fn is_waiting(&self, pod: &str) -> Result<()> {
        let object = self.scene.cluster.get("pods", "default", pod)?;
        ensure!(object["status"]["phase"] == "Pending", "{}", object["status"]);
        Ok(())
    }

    /// A pod with a volume that is there.
    fn running(&self, names: &[&str]) -> Result<()> {
        names.iter().try_for_each(|name| self.victim(name).map(drop))?;
        names.iter().try_for_each(|name| self.scene.wait_ready(name).map(drop))
    }

    /// Since it became ready nothing has happened to the pod.
    fn runs_on(&self, pod: &str) -> Result<()> {
        let object = self.scene.cluster.get("pods", "default", pod)?;
        let status = &object["status"];
        ensure!(status["phase"] == "Running" && status["containerStatuses"][0]["restartCount"] == 0, "{status}");
        Ok(())
    }

    /// Bytes that a pod's volume of the same name has, as the node's statistics say; `None`: they say nothing.
    fn capacity(&self, name: &str) -> Result<Option<u64>> {
        let path = format!("/api/v1/nodes/{NODE}/proxy/stats/summary");
        let summary: Value = serde_json::from_str(&self.scene.cluster.kubectl(&["get", "--raw", &path])?)?;
        let of = |all: &Value, key: &str| {
            all.as_array().and_then(|all| all.iter().find(|one| one.pointer(key) == Some(&json!(name)))).cloned()
        };
        let volume = of(&summary["pods"], "/podRef/name").and_then(|pod| of(&pod["volume"], "/name"));
        Ok(volume.and_then(|volume| volume["capacityBytes"].as_u64()))
    }

    fn wait_measured(&self, name: &str) -> Result<()> {
        eventually(&format!("{name} is measured"), LONG, || {
            ensure!(self.capacity(name)? > Some(0));
            Ok(())
        })
    }

    /// The claim's volume becomes larger.
    fn grow(&self, name: &str) -> Result<()> {
        let size = json!({"spec": {"capacity": {"storage": "32Mi"}}});
        self.scene.cluster.patch("persistentvolumes", "", name, &size).map(drop)
    }

    fn wait_grown(&self, name: &str) -> Result<()> {
        let grown = |claim: &Value| claim["status"]["capacity"]["storage"] == "32Mi";
        self.scene.cluster.wait_for("persistentvolumeclaims", "default", name, "it has grown", grown).map(drop)
    }

    /// Whether something of the pod's volume is mounted for the pod.
    fn is_published(&self, volume: &str) -> bool {
        let below = mounts::below(self.scene.node.root_dir());
        below.iter().any(|path| path.ends_with(format!("kubernetes.io~csi/{volume}/mount")))
    }

    /// The pod's folder on the node.
    fn folder(&self, pod: &Value) -> Result<PathBuf> {
        let uid = pod["metadata"]["uid"].as_str().context("no uid")?;
        Ok(self.scene.node.root_dir().join("pods").join(uid))
    }

    fn wait_no_folder(&self, pod: &Value) -> Result<()> {
        let folder = self.folder(pod)?;
        eventually("the pod's folder is gone", LONG, || {
            ensure!(!folder.exists(), "{:#?}", bulkhead_tests::storage::tree::lines(&[&folder]));
            Ok(())
        })
    }

    fn finish(self) -> Result<()> {
        self.scene.wait_no_traces()?;
        let Self { scene, bad, good } = self;
        drop((bad, good));
        scene.finish()
    }
}

/// `FailedMount MountVolume.<step> failed for volume "x" : rpc error: code = <code> desc = <text>`.
fn told(step: &str, volume: &str, error: &str) -> String {
    format!("FailedMount MountVolume.{step} failed for volume \"{volume}\" : {error}")
}

#[test]
fn a_driver_that_fails_is_named_by_its_pod_and_asked_again() -> Result<()> {
    let Some(world) = world()? else { return Ok(()) };
    world.bad.faults(&[
        Fault::fails("NodeStageVolume", "INTERNAL", "no such array").of_volume("stage"),
        Fault::fails("NodePublishVolume", "PERMISSION_DENIED", "not for you").of_volume("publish"),
        Fault::fails_after_work("NodePublishVolume", "ABORTED", "try again").of_volume("half"),
    ])?;
    for name in ["stage", "publish", "half"] {
        world.victim(name)?;
    }
    let scene = &world.scene;
    scene.wait_event("stage", &told("MountDevice", "stage", "rpc error: code = Internal desc = no such array"))?;
    scene.wait_event("publish", &told("SetUp", "publish", "rpc error: code = PermissionDenied desc = not for you"))?;
    scene.wait_event("half", &told("SetUp", "half", "rpc error: code = Aborted desc = try again"))?;
    world.others_notice_nothing("beside")?;
    // With a growing pause between: 0.5 s, 1 s, 2 s.
    eventually("the driver is asked again", LONG, || {
        let calls = world.bad.calls_of("NodeStageVolume", "stage")?;
        ensure!(calls.len() >= 4, "{} calls", calls.len());
        Ok(())
    })?;
    let starts: Vec<f64> = world.bad.calls_of("NodeStageVolume", "stage")?.iter().map(|call| call.began).collect();
    let pauses: Vec<f64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    ensure!(pauses[0] >= 0.45 && pauses[1] >= 0.95 && pauses[2] >= 1.9, "{pauses:?}");
    // A final error: nothing of a publication stays. One that is not final: it may be there.
    ensure!(!world.is_published("publish"), "{:#?}", scene.traces());
    for pod in ["stage", "publish", "half"] {
        world.is_waiting(pod)?;
    }

    // One pod goes while its volume fails: what may be there is taken away, and no pause of the publication is waited for.
    let calls_before = world.bad.calls_of("NodePublishVolume", "half")?.len();
    eventually("a long pause has just begun", LONG, || {
        let calls = world.bad.calls_of("NodePublishVolume", "half")?;
        ensure!(calls.len() > calls_before.max(5), "{} calls", calls.len());
        Ok(())
    })?;
    scene.delete("half")?;
    let taken = world.bad.wait_call("NodeUnpublishVolume", "half", |call| call.is_ok())?;
    let tried = world.bad.calls_of("NodePublishVolume", "half")?;
    let failed = tried.iter().filter_map(|call| call.answer.as_ref()).map(|(at, ..)| *at).fold(0.0, f64::max);
    let pause = 0.5 * 2_f64.powi(i32::try_from(tried.len())? - 1);
    ensure!(taken.began - failed < pause, "{} s of a pause of {pause} s", taken.began - failed);
    world.bad.heal()?;
    for pod in ["stage", "publish"] {
        scene.wait_ready(pod)?;
        scene.delete(pod)?;
    }
    world.finish()
}

#[test]
fn a_republication_that_fails_is_tried_again_without_another_sync() -> Result<()> {
    let Some(world) = world()? else { return Ok(()) };
    let scene = &world.scene;
    let again = scene.driver(DRIVER, AGAIN, &json!({"requiresRepublish": true}))?.start()?;
    again.wait_registered()?;
    for name in ["fails", "well"] {
        scene.volume(name, AGAIN)?;
    }
    scene.pod("republished", &["fails", "well"])?;
    scene.wait_ready("republished")?;
    let publish = "NodePublishVolume";
    let calls = |volume: &str| again.calls_of(publish, volume).map(|all| all.len());
    let well = calls("well")?;
    again.faults(&[Fault::fails(publish, "INTERNAL", "no such token").of_volume("fails")])?;
    // A pod that was changed is synced.
    let change = json!({"metadata": {"annotations": {"example.com/changed": "yes"}}});
    scene.cluster.patch("pods", "default", "republished", &change)?;
    scene.wait_event("republished", &told("SetUp", "fails", "rpc error: code = Internal desc = no such token"))?;
    // Each sync calls once for each of the two volumes.
    eventually("it is tried again without a sync", LONG, || {
        let failed = again.calls_of(publish, "fails")?.iter().filter(|call| !call.is_ok()).count();
        let syncs = calls("well")? - well;
        ensure!(failed >= syncs + 3, "{failed} calls in {syncs} syncs");
        Ok(())
    })?;
    ensure!(again.calls_of("NodeUnpublishVolume", "fails")?.is_empty() && world.is_published("fails"));
    world.runs_on("republished")?;
    again.heal()?;
    eventually("the driver has done it at last", LONG, || {
        let last = again.calls_of(publish, "fails")?.pop().context("no call")?;
        ensure!(last.is_ok(), "{last:?}");
        Ok(())
    })?;
    let (fails, well) = (calls("fails")?, calls("well")?);
    holds_for("it is not called without need", WHILE, || {
        let (more, syncs) = (calls("fails")? - fails, calls("well")? - well);
        // Of a sync one call may be there already, and the other not.
        ensure!(more <= syncs + 1, "{more} calls in {syncs} syncs");
        world.runs_on("republished")
    })?;
    ensure!(again.calls_of("NodeStageVolume", "fails")?.len() == 1, "a republication stages nothing");
    scene.delete("republished")?;
    scene.wait_no_traces()?;
    drop(again);
    world.finish()
}

#[test]
fn a_driver_may_publish_a_link_and_what_is_not_there_has_no_group() -> Result<()> {
    let Some(world) = world()? else { return Ok(()) };
    let shared = world.bad.state().join("shared");
    std::fs::create_dir(&shared)?;
    std::fs::write(shared.join("key"), "mine")?;
    let before = bulkhead_tests::storage::tree::lines(&[&shared])?;
    world
        .bad
        .faults(&[Fault::lies("NodePublishVolume").of_volume("lies"), Fault::links(&shared).of_volume("links")])?;
    for name in ["lies", "links"] {
        world.victim(name)?;
    }
    world.scene.wait_event(
        "lies",
        "FailedMount MountVolume.SetUp failed for volume \"lies\" : applyFSGroup failed for vol lies: lstat ",
    )?;
    world.scene.wait_ready("links")?;
    world.others_notice_nothing("beside")?;
    holds_for("the pod waits, and nothing is changed behind the link", WHILE, || {
        world.is_waiting("lies")?;
        let now = bulkhead_tests::storage::tree::lines(&[&shared])?;
        ensure!(now == before, "{now:#?}");
        Ok(())
    })?;
    // The liar does its work at last.
    world.bad.heal()?;
    world.scene.wait_ready("lies")?;
    for pod in ["lies", "links"] {
        world.scene.delete(pod)?;
    }
    world.scene.wait_no_traces()?;
    ensure!(std::fs::read_to_string(shared.join("key"))? == "mine");
    world.finish()
}

#[test]
fn a_late_answer_counts_and_is_waited_for_once() -> Result<()> {
    let Some(world) = world()? else { return Ok(()) };
    let late = Duration::from_secs(4);
    world.bad.faults(&[
        Fault::answers_late("NodeStageVolume", late).of_volume("late"),
        Fault::answers_late("NodePublishVolume", late).of_volume("late"),
    ])?;
    world.victim("late")?;
    world.bad.wait_call("NodeStageVolume", "late", |_| true)?;
    world.others_notice_nothing("beside")?;
    world.scene.wait_ready("late")?;
    for method in ["NodeStageVolume", "NodePublishVolume"] {
        let calls = world.bad.calls_of(method, "late")?;
        ensure!(calls.len() == 1, "{calls:#?}");
    }
    world.scene.delete("late")?;
    world.finish()
}

#[test]
fn a_driver_that_dies_in_a_call_is_asked_when_it_is_back() -> Result<()> {
    let Some(mut world) = world()? else { return Ok(()) };
    for (method, step) in [("NodeStageVolume", "MountDevice"), ("NodePublishVolume", "SetUp")] {
        let name = format!("dies-{}", step.to_lowercase());
        world.bad.faults(&[Fault::dies(method)])?;
        world.victim(&name)?;
        world.bad.wait_dead()?;
        world.scene.wait_event(&name, &told(step, &name, "rpc error: code = Unavailable desc = "))?;
        world.others_notice_nothing(&format!("beside-{}", step.to_lowercase()))?;
        world.bad.heal()?;
        world.bad.again()?;
        world.scene.wait_ready(&name)?;
        world.scene.delete(&name)?;
    }
    world.scene.wait_no_traces()?;
    // At the end of a volume, too.
    for method in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
        let name = format!("ends-{}", method.to_lowercase());
        world.victim(&name)?;
        world.scene.wait_ready(&name)?;
        world.bad.faults(&[Fault::dies(method)])?;
        world.scene.cluster.delete("pods", "default", &name, Some(1))?;
        world.bad.wait_dead()?;
        world.bad.heal()?;
        world.bad.again()?;
        world.bad.wait_call("NodeUnstageVolume", &name, |call| call.is_ok())?;
        world.scene.cluster.wait_gone("pods", "default", &name)?;
        world.scene.wait_no_traces()?;
    }
    world.finish()
}

#[test]
fn a_volume_that_cannot_be_taken_away_keeps_its_pod_and_its_data() -> Result<()> {
    let Some(world) = world()? else { return Ok(()) };
    let scene = &world.scene;
    let mut names = vec!["unpublish", "unstage"];
    if Scene::is_ours() {
        // Upstream's kubelet believes the driver.
        names.extend(["unpublish-lies", "unstage-lies"]);
    }
    for name in &names {
        world.victim(name)?;
    }
    for name in &names {
        scene.wait_ready(name)?;
        for point in mounts::below(scene.node.root_dir()).iter().filter(|path| path.ends_with(format!("{name}/mount")))
        {
            std::fs::write(point.join("data"), "precious")?;
        }
    }
    world.bad.faults(&[
        Fault::fails("NodeUnpublishVolume", "INTERNAL", "it is busy").of_volume("unpublish"),
        Fault::fails("NodeUnstageVolume", "INTERNAL", "it is busy").of_volume("unstage"),
        Fault::lies("NodeUnpublishVolume").of_volume("unpublish-lies"),
        Fault::lies("NodeUnstageVolume").of_volume("unstage-lies"),
    ])?;
    for name in &names {
        scene.cluster.delete("pods", "default", name, Some(1))?;
    }
    for (name, method) in [("unpublish", "NodeUnpublishVolume"), ("unstage", "NodeUnstageVolume")] {
        eventually("it is tried again", LONG, || {
            ensure!(world.bad.calls_of(method, name)?.len() >= 3);
            Ok(())
        })?;
    }
    world.others_notice_nothing("beside")?;
    holds_for("nothing is forgotten, nothing is lost", WHILE, || {
        for name in names.iter().filter(|name| name.starts_with("unstage")) {
            let staged = scene.traces().iter().filter(|trace| trace.contains(&sha256(name))).count();
            ensure!(staged >= 2, "{name}: {:#?}", scene.traces());
        }
        for name in names.iter().filter(|name| name.starts_with("unpublish")) {
            scene.cluster.get("pods", "default", name).context("a pod went before its volume")?;
            let all = mounts::below(scene.node.root_dir());
            let point = all.iter().find(|path| path.ends_with(format!("{name}/mount")));
            let point = point.with_context(|| format!("{name} is not mounted"))?;
            ensure!(std::fs::read_to_string(point.join("data"))? == "precious");
        }
        Ok(())
    })?;
    world.bad.heal()?;
    for name in &names {
        scene.cluster.wait_gone("pods", "default", name)?;
    }
    world.finish()
}

#[test]
fn files_of_any_name_go_and_one_that_nobody_can_remove_keeps_its_own_pod() -> Result<()> {
    let Some(world) = world()? else { return Ok(()) };
    if !Scene::is_ours() {
        // Upstream's kubelet says in its log alone what it cannot remove, and unmounts nothing within an emptyDir.
        return Ok(());
    }
    any_names(&world)?;
    let scene = &world.scene;
    let settings = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "settings", "namespace": "default"}, "data": {"key": "value"}});
    scene.cluster.create(&settings)?;
    let with = |name: &str, volume: &Value| {
        let container = json!({"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE],
            "volumeMounts": [{"name": volume["name"], "mountPath": "/volume"}]});
        scene.create(name, &json!({"volumes": [volume], "containers": [container]}))
    };
    let names = ["scratch", "settings", "published"];
    let pods = [
        with("scratch", &json!({"name": "e", "emptyDir": {}}))?,
        with("settings", &json!({"name": "c", "configMap": {"name": "settings"}}))?,
        world.victim("published")?,
    ];
    for name in names {
        scene.wait_ready(name)?;
    }
    let files = [
        "volumes/kubernetes.io~empty-dir/e/kept",
        "volumes/kubernetes.io~configmap/c/key",
        "volumes/kubernetes.io~csi/published/vol_data.json",
    ];
    std::fs::write(world.folder(&pods[0])?.join(files[0]), "kept")?;
    let mut held = Vec::new();
    for (pod, file) in pods.iter().zip(files) {
        // A key of a configMap is a link.
        let path = world.folder(pod)?.join(file).canonicalize()?;
        let Some(immutable) = Immutable::make(&path)? else { return skip_this_test(LACK) };
        held.push(immutable);
    }
    for name in names {
        scene.cluster.delete("pods", "default", name, Some(1))?;
    }
    let stands_in_the_way = [
        ("scratch", ["could not be removed yet", "kubernetes.io~empty-dir/e"]),
        ("settings", ["could not be removed yet", "kubernetes.io~configmap/c"]),
        ("published", ["its volumes", "vol_data.json"]),
    ];
    for (name, words) in stands_in_the_way {
        // What stands in the way of a driver's volume is said at once, or when the pod has waited for two minutes.
        eventually(&format!("{name} says what stands in its way"), 2 * LONG, || {
            let all = scene.node.agent()?.pods()?;
            let pod = all.into_iter().find(|pod| pod.name == name).with_context(|| format!("no pod {name}"))?;
            ensure!(words.iter().all(|word| pod.why.contains(word)), "{}", pod.why);
            Ok(())
        })?;
    }
    world.bad.wait_call("NodeUnpublishVolume", "published", |call| call.is_ok())?;
    world.others_notice_nothing("beside")?;
    holds_for("no pod goes before its files", WHILE, || {
        for (pod, name) in pods.iter().zip(names) {
            scene.cluster.get("pods", "default", name)?;
            ensure!(world.folder(pod)?.is_dir(), "{name}");
        }
        Ok(())
    })?;
    ensure!(std::fs::read_to_string(world.folder(&pods[0])?.join(files[0]))? == "kept");
    drop(held);
    for (pod, name) in pods.iter().zip(names) {
        scene.cluster.wait_gone("pods", "default", name)?;
        world.wait_no_folder(pod)?;
    }
    world.finish()
}

/// Names with line breaks and of 255 bytes, as parts of volumes, as files, and as what something is mounted on.
fn any_names(world: &World) -> Result<()> {
    let scene = &world.scene;
    let (lines, long) = ("two\nlines\\012 and a\ttab", format!("x\n{}y", "\u{e4}".repeat(126)));
    ensure!(long.len() == 255);
    let part = format!("{lines}/{long}");
    scene.volume("named", BAD)?;
    let volumes = ["scratch", "named"];
    let mounts_of = |volume: &&str| {
        let whole = json!({"name": volume, "mountPath": format!("/{volume}")});
        [whole, json!({"name": volume, "mountPath": format!("/part-of-{volume}"), "subPath": part})]
    };
    let volume_mounts: Vec<Value> = volumes.iter().flat_map(mounts_of).collect();
    let pod = scene.create(
        "named",
        &json!({"volumes": [{"name": "scratch", "emptyDir": {}}, objects::of_claim("named")], "containers": [{
            "name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE], "volumeMounts": volume_mounts}]}),
    )?;
    scene.wait_ready("named")?;
    let cri = scene.node.cri()?;
    let container = cri.containers()?.into_iter().find(|one| one.pod == "named").context("no container")?;
    let script =
        "set -e; echo seen > \"/part-of-$0/$2\"; cat \"/$0/$1/$2\"; mkdir -p \"/$0/$2/$3\"; echo in > \"/$0/$2/$3/$2\"";
    for volume in volumes {
        let (code, said) = cri.exec(&container.id, &["sh", "-c", script, volume, &part, &long, lines])?;
        ensure!(code == 0 && said == "seen\n", "{code}: {said}");
    }
    // As a container does that shares its mounts with the host.
    let folder = world.folder(&pod)?;
    let scratch = folder.join("volumes/kubernetes.io~empty-dir/scratch");
    let inside = scratch.join(&long).join(lines);
    ensure!(std::fs::read_to_string(inside.join(&long))? == "in\n", "what the container wrote");
    mount(Some("strange"), &inside, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    std::fs::write(inside.join(&long), "")?;
    ensure!(mounts::below(&folder).contains(&inside), "{:#?}", mounts::below(&folder));
    scene.delete("named")?;
    world.wait_no_folder(&pod)?;
    let left = mounts::below(&folder);
    ensure!(left.is_empty(), "{left:#?}");
    scene.wait_no_traces()
}

#[test]
fn a_driver_that_hangs_uses_up_its_own_places_and_its_deadline_is_told() -> Result<()> {
    // A call may take 120 s where nobody says otherwise, as upstream's.
    let internal = json!({"csiTimeoutSeconds": 20});
    let Some(world) = world_with(|node| node.internal(&internal))? else { return Ok(()) };
    let scene = &world.scene;
    // More pods than anybody has places for.
    let crowd: Vec<String> = (0..12).map(|number| format!("crowd-{number}")).collect();
    world.bad.faults(&[Fault::hangs("NodeStageVolume")])?;
    for name in &crowd {
        world.victim(name)?;
    }
    world.bad.wait_call("NodeStageVolume", &crowd[0], |_| true)?;
    world.others_notice_nothing("beside")?;
    scene
        .wait_event(
            &crowd[0],
            &told("MountDevice", &crowd[0], "rpc error: code = DeadlineExceeded desc = context deadline exceeded"),
        )
        // Two minutes of upstream's, which is as long as one wait takes.
        .or_else(|_| {
            scene.wait_event(
                &crowd[0],
                &told("MountDevice", &crowd[0], "rpc error: code = DeadlineExceeded desc = context deadline exceeded"),
            )
        })?;
    // Half of them go without ever having had their volume: it may be staged, so it is unstaged.
    let (go, stay) = crowd.split_at(6);
    for name in go {
        scene.cluster.delete("pods", "default", name, Some(1))?;
    }
    world.bad.heal()?;
    for name in stay {
        scene.wait_ready(name)?;
    }
    for name in go {
        scene.cluster.wait_gone("pods", "default", name)?;
    }
    for name in stay {
        scene.delete(name)?;
    }
    world.finish()
}

#[test]
fn an_answer_after_the_deadline_leaves_it_uncertain_and_the_driver_is_asked_again() -> Result<()> {
    let internal = json!({"csiTimeoutSeconds": 6});
    let Some(world) = world_with(|node| node.internal(&internal))? else { return Ok(()) };
    if !Scene::is_ours() {
        // Upstream's kubelet waits for two minutes.
        return Ok(());
    }
    let exceeded = "rpc error: code = DeadlineExceeded desc = context deadline exceeded";
    let late = Duration::from_secs(20);
    let steps = [
        ("stage", "NodeStageVolume"),
        ("publish", "NodePublishVolume"),
        ("unpublish", "NodeUnpublishVolume"),
        ("unstage", "NodeUnstageVolume"),
    ];
    world.running(&["unpublish", "unstage"])?;
    world.bad.faults(&steps.map(|(name, method)| Fault::answers_late(method, late).of_volume(name)))?;
    for name in ["unpublish", "unstage"] {
        world.scene.cluster.delete("pods", "default", name, Some(1))?;
    }
    for name in ["stage", "publish"] {
        world.victim(name)?;
    }
    for (name, method) in steps {
        world.bad.wait_call(method, name, |_| true)?;
    }
    // These calls are late already; the next ones are answered at once.
    world.bad.heal()?;
    for (name, step) in [("stage", "MountDevice"), ("publish", "SetUp")] {
        world.scene.wait_event(name, &told(step, name, exceeded))?;
        world.scene.wait_ready(name)?;
    }
    for name in ["unpublish", "unstage"] {
        world.scene.cluster.wait_gone("pods", "default", name)?;
    }
    for (name, method) in steps {
        let calls = eventually(&format!("{method} was answered, once late"), LONG, || {
            let calls = world.bad.calls_of(method, name)?;
            ensure!(calls.len() > 1 && calls.iter().all(|call| call.answer.is_some()), "{calls:#?}");
            Ok(calls)
        })?;
        let answered = calls[0].answer.as_ref().map_or(0.0, |(at, ..)| *at);
        ensure!(calls[1].began < answered, "{method}: the late answer was waited for: {calls:#?}");
        ensure!(calls[1].began - calls[0].began >= 5.0, "{method}: before the deadline: {calls:#?}");
        ensure!(calls.iter().all(|call| call.request == calls[0].request), "{method}: it is the same: {calls:#?}");
    }
    // What came late has changed nothing.
    for name in ["stage", "publish"] {
        world.runs_on(name)?;
        ensure!(world.is_published(name), "{:#?}", world.scene.traces());
        world.scene.delete(name)?;
    }
    world.scene.wait_no_traces()?;
    never_answered(&world, exceeded)?;
    world.finish()
}

/// A stage and a publication that hang: both are tried again, other pods of the driver have their volumes meanwhile, and what may be
/// there is taken away with the pods.
fn never_answered(world: &World, exceeded: &str) -> Result<()> {
    let (stage, publish) = ("NodeStageVolume", "NodePublishVolume");
    let hang = [("hangs-staged", stage, "MountDevice"), ("hangs-published", publish, "SetUp")];
    world.bad.faults(&hang.map(|(name, method, _)| Fault::hangs(method).of_volume(name)))?;
    for (name, ..) in hang {
        world.victim(name)?;
    }
    let scene = &world.scene;
    for (name, method, step) in hang {
        world.bad.wait_call(method, name, |_| true)?;
        scene.wait_event(name, &told(step, name, exceeded))?;
    }
    world.running(&["meanwhile"])?;
    world.others_notice_nothing("elsewhere")?;
    for (name, method, _) in hang {
        eventually("it is called again", LONG, || {
            ensure!(world.bad.calls_of(method, name)?.len() > 1);
            Ok(())
        })?;
        world.is_waiting(name)?;
        ensure!(world.bad.calls_of(method, name)?.iter().all(|call| call.answer.is_none()), "{method} hangs");
    }
    for (name, ..) in hang {
        scene.delete(name)?;
    }
    world.bad.wait_call("NodeUnpublishVolume", "hangs-published", |call| call.is_ok())?;
    for (name, ..) in hang {
        world.bad.wait_call("NodeUnstageVolume", name, |call| call.is_ok())?;
    }
    ensure!(world.bad.calls_of(publish, "hangs-staged")?.is_empty(), "it was not staged");
    world.runs_on("meanwhile")?;
    scene.delete("meanwhile")?;
    scene.wait_no_traces()?;
    // The calls go on now, and find nothing of what they were about.
    world.bad.heal()?;
    for (name, method, _) in hang {
        eventually("the driver has ended all of them", LONG, || {
            let calls = world.bad.calls_of(method, name)?;
            ensure!(calls.iter().all(|call| call.answer.is_some()), "{calls:#?}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_driver_that_is_deleted_while_its_volumes_are_mounted_is_waited_for() -> Result<()> {
    let Some(mut world) = world()? else { return Ok(()) };
    world.victim("left")?;
    world.scene.wait_ready("left")?;
    world.bad.stop();
    world.scene.cluster.wait_for("csinodes", "", bulkhead_tests::storage::NODE, "it is taken out", |node| {
        let all = node["spec"]["drivers"].as_array().cloned().unwrap_or_default();
        all.iter().all(|one| one["name"] != BAD)
    })?;
    world.scene.cluster.delete("pods", "default", "left", Some(1))?;
    world.victim("new")?;
    let error = format!("driver name {BAD} not found in the list of registered CSI drivers");
    world.scene.wait_event("new", &error)?;
    world.others_notice_nothing("beside")?;
    holds_for("nothing is removed behind the driver's back", WHILE, || {
        ensure!(world.is_published("left"), "{:#?}", world.scene.traces());
        world.scene.cluster.get("pods", "default", "left").map(drop)
    })?;
    world.bad.again()?;
    world.scene.wait_ready("new")?;
    world.scene.cluster.wait_gone("pods", "default", "left")?;
    world.scene.delete("new")?;
    world.finish()
}

#[test]
fn a_driver_that_does_not_say_how_much_room_there_is_hides_that_volume_alone() -> Result<()> {
    let Some(mut world) = hasty_world()? else { return Ok(()) };
    if !Scene::is_ours() || world.scene.cluster.is_stand_in() {
        // Upstream's kubelet measures all volumes of a pod one after the other; the stand-in asks no node.
        return Ok(());
    }
    let silent = ["stat-fails", "stat-hangs", "stat-lies", "stat-big"];
    world.bad.faults(&[
        Fault::fails("NodeGetVolumeStats", "INTERNAL", "no such array").of_volume(silent[0]),
        Fault::hangs("NodeGetVolumeStats").of_volume(silent[1]),
        Fault::lies("NodeGetVolumeStats").of_volume(silent[2]),
        Fault::answers_big("NodeGetVolumeStats").of_volume(silent[3]),
        Fault::answers_late("NodeGetVolumeStats", Duration::from_secs(4)).of_volume("stat-late"),
    ])?;
    world.running(&silent)?;
    world.running(&["stat-late", "stat-well"])?;
    // The same driver's other volumes, too.
    world.wait_measured("stat-well")?;
    world.wait_measured("stat-late")?;
    world.others_notice_nothing("beside")?;
    for name in silent {
        world.bad.wait_call("NodeGetVolumeStats", name, |_| true)?;
    }
    holds_for("nothing is said of what is not known", WHILE, || {
        silent.iter().try_for_each(|name| {
            let told = world.capacity(name)?;
            ensure!(told.is_none(), "{name}: {told:?}");
            world.runs_on(name)
        })
    })?;
    // What hangs is not asked a second time before it was given up, which is after 10 s.
    let starts: Vec<f64> = world.bad.calls_of("NodeGetVolumeStats", silent[1])?.iter().map(|call| call.began).collect();
    ensure!(starts.windows(2).all(|pair| pair[1] - pair[0] >= 9.5), "{starts:?}");
    world.bad.heal()?;
    silent.iter().try_for_each(|name| world.wait_measured(name))?;

    // Drivers are asked when somebody wants to know.
    let asked_again = |world: &World| {
        let before = world.bad.calls_of("NodeGetVolumeStats", "stat-well")?.len();
        eventually("it is asked again", LONG, || {
            world.capacity("stat-well")?;
            ensure!(world.bad.calls_of("NodeGetVolumeStats", "stat-well")?.len() > before);
            Ok(())
        })
    };
    world.bad.faults(&[Fault::dies("NodeGetVolumeStats").of_volume("stat-well")])?;
    asked_again(&world)?;
    world.bad.wait_dead()?;
    world.others_notice_nothing("after")?;
    world.runs_on("stat-well")?;
    world.bad.heal()?;
    world.bad.again()?;
    asked_again(&world)?;
    for name in silent.iter().chain(&["stat-late", "stat-well"]) {
        world.scene.delete(name)?;
    }
    world.finish()
}

#[test]
fn an_expansion_that_goes_wrong_is_told_and_tried_again_while_the_pod_runs() -> Result<()> {
    let Some(mut world) = hasty_world()? else { return Ok(()) };
    let names = ["grow-fails", "grow-never", "grow-late", "grow-hangs", "grow-half", "grow-lies", "grow-smaller"];
    let call = "NodeExpandVolume";
    world.bad.faults(&[
        Fault::fails(call, "INTERNAL", "no such array").of_volume(names[0]),
        Fault::fails(call, "OUT_OF_RANGE", "too large").of_volume(names[1]),
        Fault::answers_late(call, Duration::from_secs(4)).of_volume(names[2]),
        Fault::hangs(call).of_volume(names[3]),
        Fault::fails_after_work(call, "ABORTED", "try again").of_volume(names[4]),
        Fault::lies(call).of_volume(names[5]),
        Fault::says_smaller().of_volume(names[6]),
    ])?;
    world.running(&names)?;
    // As a resizer says that it is the node's turn; without that, nothing but the size is written.
    let pending = json!({"status": {"allocatedResourceStatuses": {"storage": "NodeResizePending"}}});
    world.scene.cluster.patch_status("persistentvolumeclaims", "default", names[1], &pending)?;
    names.iter().try_for_each(|name| world.grow(name))?;
    let failed = |volume: &str, error: &str| {
        // Upstream has no colon before what can never be.
        let colon = if error.starts_with("OutOfRange") { "" } else { ": " };
        format!(
            "VolumeResizeFailed NodeExpandVolume.NodeExpandVolume failed for volume \"{volume}\" : \
             Expander.NodeExpand failed to expand the volume {colon}rpc error: code = {error}"
        )
    };
    let scene = &world.scene;
    scene.wait_event(names[0], &failed(names[0], "Internal desc = no such array"))?;
    scene.wait_event(names[1], &failed(names[1], "OutOfRange desc = too large"))?;
    scene.wait_event(names[4], &failed(names[4], "Aborted desc = try again"))?;
    // The size in the answer is optional, and upstream's kubelet does not look at it: the claim has what was asked for.
    for name in &names[5..] {
        world.wait_grown(name)?;
        ensure!(world.bad.calls_of(call, name)?.len() == 1, "it is believed");
        let grown = "FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume";
        scene.wait_event(name, &format!("{grown} \"{name}\" {NODE}"))?;
    }
    world.wait_grown(names[2])?;
    ensure!(world.bad.calls_of(call, names[2])?.len() == 1, "it was waited for");
    world.bad.wait_call(call, names[3], |_| true)?;
    world.others_notice_nothing("beside")?;
    // With a growing pause between.
    eventually("it is asked again", LONG, || {
        ensure!(world.bad.calls_of(call, names[0])?.len() >= 3);
        Ok(())
    })?;
    let starts: Vec<f64> = world.bad.calls_of(call, names[0])?.iter().map(|call| call.began).collect();
    ensure!(starts[1] - starts[0] >= 0.45 && starts[2] - starts[1] >= 0.95, "{starts:?}");
    // What can never be is said in the claim, and not tried again.
    let hopeless = |claim: &Value| claim["status"]["allocatedResourceStatuses"]["storage"] == "NodeResizeInfeasible";
    scene.cluster.wait_for("persistentvolumeclaims", "default", names[1], "it cannot be", hopeless)?;
    let asked = world.bad.calls_of(call, names[1])?.len();
    holds_for("it is not asked again, and pods run on", WHILE, || {
        ensure!(world.bad.calls_of(call, names[1])?.len() == asked);
        names.iter().try_for_each(|name| world.runs_on(name))
    })?;
    world.bad.heal()?;
    for name in [names[0], names[3], names[4]] {
        world.wait_grown(name)?;
    }

    // A driver that dies in the call is asked when it is back.
    world.running(&["grow-dies"])?;
    world.bad.faults(&[Fault::dies(call)])?;
    world.grow("grow-dies")?;
    world.bad.wait_dead()?;
    world.scene.wait_event("grow-dies", &failed("grow-dies", "Unavailable desc = "))?;
    world.others_notice_nothing("after")?;
    world.bad.heal()?;
    world.bad.again()?;
    world.wait_grown("grow-dies")?;
    for name in names.iter().chain(&["grow-dies"]) {
        world.runs_on(name)?;
        world.scene.delete(name)?;
    }
    world.finish()
}
