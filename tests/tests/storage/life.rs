//! A pod with claims of the hostpath driver, beside the recording of upstream's kubelet; and the node's part of an attachment.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::csi::hostpath::{self, Hostpath};
use bulkhead_testkit::csi::{Fault, objects};
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::wait::holds_for;
use bulkhead_testkit::{LONG, NodeBuilder, build, eventually, image, loops, mounts};
use bulkhead_tests::lab;
use bulkhead_tests::storage::recorded::{self, Names, Volumes, same_lines};
use bulkhead_tests::storage::scene::unique_name;
use bulkhead_tests::storage::{NODE, Scene, tree};
use serde_json::{Value, json};

use crate::{DRIVER, measured};

const POD: &str = "csi-pod";
const CLAIMS: &str = "persistentvolumeclaims";

/// A node with the hostpath driver, registered; nothing (said) where there are no programs.
fn with_hostpath() -> Result<Option<(Scene, Hostpath)>> {
    with_hostpath_on(|node| node)
}

/// The same on a node of another configuration.
fn with_hostpath_on(configure: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Result<Option<(Scene, Hostpath)>> {
    let Some(lab) = lab()? else { return Ok(None) };
    if !(Hostpath::is_there() && bulkhead_testkit::cluster::controllers_are_there()) {
        skip_this_test(Lack::ControlPlane)?;
        return Ok(None);
    }
    let cluster = lab.cluster_with_controllers()?;
    let scene = Scene::start_with(lab, cluster, configure)?;
    let hostpath = Hostpath::start(&scene.node, &scene.cluster)?;
    let there = |node: &Value| node["spec"]["drivers"].as_array().is_some_and(|all| !all.is_empty());
    let registered = scene.cluster.wait_for("csinodes", "", NODE, "the driver is in it", there);
    registered.with_context(|| hostpath.logs())?;
    Ok(Some((scene, hostpath)))
}

/// The volume that a claim is bound to.
fn volume_of(scene: &Scene, hostpath: &Hostpath, claim: &str) -> Result<Value> {
    let bound = |claim: &Value| claim["status"]["phase"] == "Bound";
    let claim = scene.cluster.wait_for(CLAIMS, "default", claim, "it is bound", bound);
    let claim = claim.with_context(|| hostpath.logs())?;
    let volume = claim["spec"]["volumeName"].as_str().context("no volume")?;
    scene.cluster.get("persistentvolumes", "", volume)
}

/// The recorded pod.
fn recorded_pod(scene: &Scene) -> Result<Value> {
    scene.create(
        POD,
        &json!({
            "securityContext": {"fsGroup": 2000},
            "containers": [{
                "name": "c", "image": image::BUSYBOX,
                "command": ["sh", "-c",
                    "echo hello > /data/f; ls -ln /data /inline; mount | grep -e data -e inline; sleep 100000"],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "inline", "mountPath": "/inline"}],
                "volumeDevices": [{"name": "raw", "devicePath": "/dev/raw0"}],
            }],
            "volumes": [
                objects::of_claim("data"),
                objects::of_claim("raw"),
                {"name": "inline", "csi": {"driver": hostpath::NAME, "volumeAttributes": {"a": "b"}}},
            ],
        }),
    )
}

/// The folders of which a recording has lines about volumes of drivers.
fn tree(root: &Path, names: &Names) -> Result<Vec<String>> {
    let parts = ["plugins", "plugins_registry", "pods"].map(|part| root.join(part));
    let all = tree::lines(&parts.each_ref().map(|part| part.as_path()))?;
    // What every pod has stands in other recordings.
    let others = ["/etc-hosts", "/containers", "~empty-dir", "~projected"];
    let about_drivers =
        |line: &&String| !others.iter().any(|other| line.contains(other)) && !line.ends_with("$POD/plugins");
    let lines: Vec<String> = all.iter().map(|line| without_minor(&names.apply(line))).collect();
    Ok(lines.iter().filter(about_drivers).cloned().collect())
}

/// Which loop device it is, is chance.
fn without_minor(line: &str) -> String {
    line.split_once(" rdev 7:").map_or_else(|| line.to_owned(), |(rest, _)| format!("{rest} rdev 7:$MINOR"))
}

/// Root within its file system, mount point and options of each mount of a driver: the rest is the machine's.
fn mount_lines(lines: &[String]) -> Vec<String> {
    let of_driver = |line: &&String| line.contains("~csi") || line.contains("kubernetes.io/csi");
    let each = |line: &String| {
        let fields: Vec<&str> = line.split(' ').collect();
        let (root, point) = (fields.get(3).copied().unwrap_or_default(), fields.get(4).copied().unwrap_or_default());
        let root = if root.starts_with("/loop") { "/loopN" } else { root.rsplit('/').next().unwrap_or_default() };
        format!("{root} {point} {}", fields.get(5).copied().unwrap_or_default())
    };
    lines.iter().filter(of_driver).map(each).collect()
}

fn mounts_now(names: &Names) -> Result<Vec<String>> {
    let text = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mount_lines(
        &text.lines().map(|line| names.apply(line)).filter(|line| line.contains("$ROOT")).collect::<Vec<_>>(),
    ))
}

/// Calls of the node's service that mean something, as JSON lines.
fn calls(hostpath: &Hostpath, names: &Names) -> Result<Vec<String>> {
    let asked = ["NodeGetCapabilities", "NodeGetVolumeStats"];
    let each = |call: &hostpath::Logged| json!({"method": call.method, "request": names.apply_to(&call.request)});
    let all = hostpath.calls()?;
    let of_node = |call: &&hostpath::Logged| call.method.starts_with("Node") && !asked.contains(&call.method.as_str());
    Ok(all.iter().filter(of_node).map(|call| each(call).to_string()).collect())
}

/// The recorded calls of these methods.
fn recorded_calls(methods: &[&str]) -> Result<Vec<String>> {
    let mut all = recorded::values("calls.jsonl")?;
    all.retain(|call| methods.iter().any(|method| call["method"] == *method));
    Ok(all.iter().map(Value::to_string).collect())
}

/// The position of the call of a method about a volume.
fn position(calls: &[String], method: &str, volume: &str) -> Result<usize> {
    let fits = |call: &String| {
        call.contains(&format!("\"{method}\"")) && call.contains(&format!("\"volume_id\":\"{volume}\""))
    };
    calls.iter().position(fits).with_context(|| format!("no {method} of {volume} in {calls:#?}"))
}

#[test]
fn claims_of_the_hostpath_driver_live_as_under_upstreams_kubelet() -> Result<()> {
    let Some((scene, hostpath)) = with_hostpath()? else { return Ok(()) };
    let (cluster, root) = (&scene.cluster, scene.node.root_dir());
    is_registered_as_recorded(&scene)?;

    cluster.create(&objects::claim("data", hostpath::CLASS, "64Mi", &Value::Null))?;
    cluster.create(&objects::claim("raw", hostpath::CLASS, "16Mi", &json!({"volumeMode": "Block"})))?;
    let (data, raw) = (volume_of(&scene, &hostpath, "data")?, volume_of(&scene, &hostpath, "raw")?);
    let pod = recorded_pod(&scene)?;
    let uid = pod["metadata"]["uid"].as_str().context("no uid")?.to_owned();
    let volumes = Volumes { root, pod_uid: &uid, data: &data, raw: &raw };
    let names =
        Names::of(&volumes, hostpath::NAME, NODE)?.and(&hostpath.state().display().to_string(), "$DRIVER_STATE");
    scene.wait_ready(POD).with_context(|| format!("{}\n{:#?}", hostpath.logs(), calls(&hostpath, &names)))?;

    // What the node says of it.
    let handle = |volume: &Value| volume["spec"]["csi"]["volumeHandle"].as_str().unwrap_or_default().to_owned();
    let mut expected = [&data, &raw].map(|volume| format!("kubernetes.io/csi/{}^{}", hostpath::NAME, handle(volume)));
    expected.sort();
    ensure!(scene.volumes("volumesInUse")? == expected, "{:?}", scene.volumes("volumesInUse")?);
    ensure!(scene.volumes("volumesAttached")? == expected, "{:?}", scene.volumes("volumesAttached")?);
    for volume in [&data, &raw] {
        let name = recorded::attachment(&handle(volume), hostpath::NAME, NODE);
        let attachment = cluster.get("volumeattachments", "", &name)?;
        ensure!(attachment["status"]["attached"] == true, "{attachment:#}");
    }

    // What is on the disk, mounted, and held.
    eventually("the file is written", LONG, || {
        let found = tree(root, &names)?;
        ensure!(found.iter().any(|line| line.ends_with("/mount/f")), "{found:#?}");
        Ok(())
    })?;
    same_lines("folders", &recorded::lines("tree.txt")?, &tree(root, &names)?)?;
    same_lines("mounts", &mount_lines(&recorded::lines("mountinfo.txt")?), &mounts_now(&names)?)?;
    let held: Vec<String> = loops::below(root).iter().map(|(_, file)| names.apply(file)).collect();
    ensure!(held == ["$ROOT/plugins/kubernetes.io/csi/volumeDevices/$RAW/dev/$POD"], "{held:?}");
    ensure!(loops::below(&hostpath.state()).len() == 1, "the driver's own: {:?}", loops::below(&hostpath.state()));

    // What the driver was asked: each call as recorded, and in an order that means something.
    let asked = calls(&hostpath, &names)?;
    let begin = ["NodeGetInfo", "NodeStageVolume", "NodePublishVolume"];
    same_lines("calls", &recorded_calls(&begin)?, &asked)?;
    for volume in ["$DATA_HANDLE", "$RAW_HANDLE"] {
        let (stage, publish) = (position(&asked, begin[1], volume)?, position(&asked, begin[2], volume)?);
        ensure!(stage < publish, "{asked:#?}");
    }

    // What the pod sees.
    let running = scene.node.cri()?.containers()?.into_iter().find(|one| one.name == "c").context("no container")?;
    let run = |command: &str| scene.node.cri()?.exec(&running.id, &["sh", "-c", command]);
    let (code, seen) = run("stat -c '%a %g' /data /inline; cat /data/f; stat -c %F /dev/raw0")?;
    ensure!(code == 0 && seen == "2775 2000\n2775 2000\nhello\nblock special file\n", "{code}: {seen}");
    let (code, seen) = run("echo -n written > /dev/raw0 && dd if=/dev/raw0 bs=1M 2>/dev/null | wc -c")?;
    ensure!(code == 0 && seen.trim() == (16 << 20).to_string(), "{code}: {seen}");
    let events = scene.events(POD)?;
    let told: Vec<String> = events.iter().map(|one| names.apply(one)).collect();
    let recorded_events = recorded::values("events.jsonl")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for event in recorded_events.iter().filter(|one| one["reason"] == "SuccessfulMountVolume") {
        let line = format!("{} {}", text(&event["reason"]), text(&event["message"]));
        ensure!(told.contains(&line), "no {line} in {told:#?}");
    }
    ensure!(!told.iter().any(|one| one.starts_with("Failed")), "{told:#?}");

    measured::as_recorded(&scene, POD)?;

    // A second pod of the same claim, with a part of it: the volume is staged once.
    scene.create(
        "part",
        &json!({"volumes": [objects::of_claim("data")], "containers": [{"name": "main", "image": image::BUSYBOX,
            "command": ["sh", "-c", "echo part > /part/p; sleep 100000"],
            "volumeMounts": [{"name": "data", "mountPath": "/part", "subPath": "a/b"}]}]}),
    )?;
    scene.wait_ready("part")?;
    eventually("the part is in the volume", LONG, || {
        let (_, seen) = run("cat /data/a/b/p")?;
        ensure!(seen == "part\n", "{seen}");
        Ok(())
    })?;
    scene.delete("part")?;
    let asked = calls(&hostpath, &names)?;
    let count = |method: &str| asked.iter().filter(|call| call.contains(&format!("\"{method}\""))).count();
    ensure!(count("NodeStageVolume") == 2 && count("NodeUnstageVolume") == 0, "{asked:#?}");
    ensure!(count("NodePublishVolume") == 4 && count("NodeUnpublishVolume") == 1, "{asked:#?}");
    ensure!(run("cat /data/f")?.1 == "hello\n", "the first pod has its volume");

    // The end.
    scene.delete(POD)?;
    let limit = "nothing of the pod is left";
    eventually(limit, LONG, || {
        let used = scene.volumes("volumesInUse")?;
        ensure!(used.is_empty(), "{used:?}");
        same_lines("folders", &recorded::lines("tree-after-delete.txt")?, &tree(root, &names)?)?;
        let left = mounts_now(&names)?;
        ensure!(left.is_empty(), "{left:#?}");
        ensure!(loops::below(root).is_empty(), "{:?}", loops::below(root));
        Ok(())
    })?;
    let asked: Vec<String> = calls(&hostpath, &names)?.into_iter().skip(asked.len()).collect();
    same_lines("calls at the end", &recorded_calls(&["NodeUnpublishVolume", "NodeUnstageVolume"])?, &asked)?;
    for volume in ["$DATA_HANDLE", "$RAW_HANDLE"] {
        let unpublish = position(&asked, "NodeUnpublishVolume", volume)?;
        ensure!(unpublish < position(&asked, "NodeUnstageVolume", volume)?, "{asked:#?}");
    }
    for (volume, claim) in [(&data, "data"), (&raw, "raw")] {
        let name = recorded::attachment(&handle(volume), hostpath::NAME, NODE);
        cluster.wait_gone("volumeattachments", "", &name)?;
        cluster.delete(CLAIMS, "default", claim, None)?;
        // Its reclaim policy is Delete: the provisioner removes it, which it does not do while it is attached.
        let name = volume["metadata"]["name"].as_str().unwrap_or_default();
        cluster.wait_gone("persistentvolumes", "", name).with_context(|| hostpath.logs())?;
    }
    ensure!(scene.volumes("volumesAttached")?.is_empty());
    // The driver keeps its own loop device until the volume is deleted.
    ensure!(loops::below(&hostpath.state()).is_empty(), "{:?}", loops::below(&hostpath.state()));
    drop(hostpath);
    scene.finish()
}

/// CSINode, annotation and label of the node.
fn is_registered_as_recorded(scene: &Scene) -> Result<()> {
    let recorded: Value = serde_json::from_str(&recorded::lines("csinode.json")?.join("\n"))?;
    let ours = scene.cluster.get("csinodes", "", NODE)?;
    ensure!(ours["spec"] == recorded["spec"], "{ours:#}");
    ensure!(ours["metadata"]["annotations"] == recorded["annotations"], "{ours:#}");
    let node = scene.cluster.get("nodes", "", NODE)?;
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"]}]);
    ensure!(ours["metadata"]["ownerReferences"] == owner, "{ours:#}");
    let metadata = &node["metadata"];
    let id = json!(format!("{{\"{}\":\"{NODE}\"}}", hostpath::NAME));
    ensure!(metadata["annotations"]["csi.volume.kubernetes.io/nodeid"] == id, "{metadata:#}");
    ensure!(
        metadata["annotations"]["volumes.kubernetes.io/controller-managed-attach-detach"] == "true",
        "{metadata:#}"
    );
    ensure!(metadata["labels"][hostpath::TOPOLOGY] == NODE, "{metadata:#}");
    Ok(())
}

/// What the driver says of the claim's volume is in the statistics, and in the metrics by the claim's name.
fn is_measured(scene: &Scene, pod: &str, claim: &str) -> Result<()> {
    let get = |path: &str| scene.cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/{path}")]);
    let found = |all: &Value, key: &str, name: &str| -> Result<Value> {
        let one = all.as_array().and_then(|all| all.iter().find(|one| one.pointer(key) == Some(&json!(name))));
        one.cloned().with_context(|| format!("no {name} in {all:#}"))
    };
    eventually("the volume is measured", LONG, || {
        let summary: Value = serde_json::from_str(&get("stats/summary")?)?;
        let pod = found(&summary["pods"], "/podRef/name", pod)?;
        let volume = found(&pod["volume"], "/name", claim)?;
        ensure!(volume["pvcRef"] == json!({"name": claim, "namespace": "default"}), "{volume}");
        ensure!(volume["capacityBytes"].as_u64() > Some(0) && volume["inodes"].as_u64() > Some(0), "{volume}");
        let series =
            format!("kubelet_volume_stats_capacity_bytes{{namespace=\"default\",persistentvolumeclaim=\"{claim}\"}} ");
        ensure!(get("metrics")?.contains(&series), "no {series}");
        Ok(())
    })
}

/// A field of the claim's status about `storage`.
fn of_storage(claim: &Value, field: &str) -> Value {
    claim["status"][field]["storage"].clone()
}

#[test]
fn a_claim_is_expanded_while_its_pod_runs_and_before_the_next_has_it() -> Result<()> {
    // A claim's volume is looked at with each sync of its pod.
    let hasty = |node: NodeBuilder| node.config("syncFrequency", json!("4s"));
    let Some((scene, hostpath)) = with_hostpath_on(hasty)? else { return Ok(()) };
    let cluster = &scene.cluster;
    cluster.create(&objects::claim("data", hostpath::CLASS, "64Mi", &Value::Null))?;
    scene.pod("grows", &["data"])?;
    scene.wait_ready("grows").with_context(|| hostpath.logs())?;
    cluster.patch(CLAIMS, "default", "data", &json!({"spec": {"resources": {"requests": {"storage": "128Mi"}}}}))?;
    let grown = |claim: &Value| claim["status"]["capacity"]["storage"] == "128Mi";
    let claim = cluster.wait_for(CLAIMS, "default", "data", "it has grown", grown).with_context(|| hostpath.logs())?;
    ensure!(claim["status"]["conditions"].as_array().is_none_or(Vec::is_empty), "{claim:#}");
    let volume = claim["spec"]["volumeName"].as_str().unwrap_or_default();
    scene.wait_event(
        "grows",
        &format!("FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume \"{volume}\" {NODE}"),
    )?;
    let expansions = hostpath.calls()?.into_iter().filter(|call| call.method == "NodeExpandVolume");
    let sizes: Vec<Value> = expansions.map(|call| call.request["capacity_range"]["required_bytes"].clone()).collect();
    ensure!(sizes == [json!(128 << 20)], "{sizes:?}");
    is_measured(&scene, "grows", "data")?;
    measured::is_expansion_counted(&scene)?;
    ensure!(of_storage(&claim, "allocatedResources") == "128Mi", "{claim:#}");
    ensure!(of_storage(&claim, "allocatedResourceStatuses").is_null(), "{claim:#}");
    scene.delete("grows")?;

    // Nobody has it: the node's part waits for the next pod, and the claim says so.
    cluster.patch(CLAIMS, "default", "data", &json!({"spec": {"resources": {"requests": {"storage": "192Mi"}}}}))?;
    let pending = |claim: &Value| of_storage(claim, "allocatedResourceStatuses") == "NodeResizePending";
    let claim = cluster
        .wait_for(CLAIMS, "default", "data", "it is the node's turn", pending)
        .with_context(|| hostpath.logs())?;
    let capacity = |claim: &Value| of_storage(claim, "capacity");
    ensure!(of_storage(&claim, "allocatedResources") == "192Mi" && capacity(&claim) == "128Mi", "{claim:#}");
    let conditions = claim["status"]["conditions"].as_array().cloned().unwrap_or_default();
    ensure!(conditions.iter().any(|one| one["type"] == "FileSystemResizePending"), "{claim:#}");
    scene.pod("later", &["data"])?;
    scene.wait_ready("later").with_context(|| hostpath.logs())?;
    // The pod begins with the room that it is to have.
    let claim = cluster.get(CLAIMS, "default", "data")?;
    ensure!(capacity(&claim) == "192Mi" && of_storage(&claim, "allocatedResourceStatuses").is_null(), "{claim:#}");
    ensure!(claim["status"]["conditions"].as_array().is_none_or(Vec::is_empty), "{claim:#}");
    scene.wait_event("later", "FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume")?;
    scene.delete("later")?;
    scene.wait_no_traces()?;
    drop(hostpath);
    scene.finish()
}

#[test]
fn a_claim_that_nodes_may_watch_is_expanded_when_it_is_the_nodes_turn() -> Result<()> {
    // No sync of its own looks at the claim while this test lasts.
    let patient = |node: NodeBuilder| node.config("syncFrequency", json!("2h"));
    let Some((scene, hostpath)) = with_hostpath_on(patient)? else { return Ok(()) };
    let cluster = &scene.cluster;
    let role = build::workspace_root().join("deploy/rbac/watch-claims.yaml");
    cluster.kubectl(&["apply", "--validate=false", "-f", &role.display().to_string()])?;
    cluster.create(&objects::claim("data", hostpath::CLASS, "64Mi", &Value::Null))?;
    scene.pod("grows", &["data"])?;
    scene.wait_ready("grows").with_context(|| hostpath.logs())?;
    for size in ["128Mi", "192Mi"] {
        cluster.patch(CLAIMS, "default", "data", &json!({"spec": {"resources": {"requests": {"storage": size}}}}))?;
        let grown = |claim: &Value| of_storage(claim, "capacity") == size;
        let claim = cluster.wait_for(CLAIMS, "default", "data", "it has grown", grown);
        let claim = claim.with_context(|| hostpath.logs())?;
        ensure!(of_storage(&claim, "allocatedResourceStatuses").is_null(), "{claim:#}");
    }
    let expansions = hostpath.calls()?.into_iter().filter(|call| call.method == "NodeExpandVolume");
    let sizes: Vec<Value> = expansions.map(|call| call.request["capacity_range"]["required_bytes"].clone()).collect();
    ensure!(sizes == [json!(128 << 20), json!(192 << 20)], "{sizes:?}");
    scene.delete("grows")?;
    scene.wait_no_traces()?;
    drop(hostpath);
    scene.finish()
}

#[test]
fn a_volume_is_in_use_before_it_is_attached_and_staged_as_soon_as_it_is() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let scene = Scene::start(lab, cluster)?;
    let name = "attached.test";
    let driver = scene.driver(DRIVER, name, &json!({"attachRequired": true}))?.start()?;
    driver.wait_registered()?;
    let options = json!(["noatime", "nodev", "data=ordered"]);
    objects::create_bound(&scene.cluster, "disk", name, &json!({"mountOptions": options}))?;
    let pod = scene.pod("attached", &["disk"])?;
    let unique = unique_name(name, "disk");
    // No controller runs: this test is the one that attaches.
    let in_use = |node: &Value| node["status"]["volumesInUse"] == json!([unique]);
    scene.cluster.wait_for("nodes", "", NODE, "the volume is in use", in_use)?;
    ensure!(driver.calls_of("NodeStageVolume", "disk")?.is_empty(), "it is not attached");
    let metadata = json!({"device": "7"});
    scene.attach(name, &["disk"], &metadata)?;
    let call = driver.wait_call("NodeStageVolume", "disk", |_| true)?;
    ensure!(call.request["publish_context"] == metadata, "{}", call.request);
    scene.wait_ready("attached")?;
    // The options of the volume go to the driver with both calls.
    let published = driver.wait_call("NodePublishVolume", "disk", |call| call.is_ok())?;
    for call in [&call, &published] {
        ensure!(call.request["volume_capability"]["mount"]["mount_flags"] == options, "{}", call.request);
    }

    // Somebody takes it from the node by force, as from one that is out of service: a pod that runs keeps it.
    let nothing = json!({"status": {"volumesAttached": []}});
    scene.cluster.patch_status("nodes", "", NODE, &nothing)?;
    let cri = scene.node.cri()?;
    let container = cri.containers()?.into_iter().find(|one| one.pod == "attached").context("no container")?;
    holds_for("the pod goes on, and nothing is unmounted", Duration::from_secs(3), || {
        let status = &scene.cluster.get("pods", "default", "attached")?["status"];
        ensure!(status["phase"] == "Running" && status["containerStatuses"][0]["restartCount"] == 0, "{status}");
        let (code, said) =
            cri.exec(&container.id, &["sh", "-c", "echo on > /disk/file && grep -c ' /disk ' /proc/mounts"])?;
        ensure!(code == 0 && said.trim() == "1", "{code}: {said}");
        for method in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
            ensure!(driver.calls_of(method, "disk")?.is_empty(), "{method}");
        }
        ensure!(scene.volumes("volumesInUse")? == [unique.as_str()], "{:?}", scene.volumes("volumesInUse")?);
        Ok(())
    })?;
    ensure!(scene.volumes("volumesAttached")?.is_empty(), "nobody has attached it again");

    // As long as it may be mounted it is in use; then it is not.
    driver.faults(&[Fault::fails("NodeUnstageVolume", "INTERNAL", "it is busy")])?;
    scene.delete("attached")?;
    driver.wait_call("NodeUnpublishVolume", "disk", |call| call.is_ok())?;
    eventually("it is tried again", LONG, || {
        let count = driver.calls_of("NodeUnstageVolume", "disk")?.len();
        ensure!(count > 2, "{count} calls");
        Ok(())
    })?;
    ensure!(scene.volumes("volumesInUse")? == [unique.as_str()], "{:?}", scene.volumes("volumesInUse")?);
    driver.heal()?;
    driver.wait_call("NodeUnstageVolume", "disk", |call| call.is_ok())?;
    scene.wait_no_traces()?;
    ensure!(mounts::below(scene.node.root_dir()).iter().all(|path| !path.to_string_lossy().contains("csi")));
    if Scene::is_ours() {
        let uid = pod["metadata"]["uid"].as_str().context("no uid")?;
        // An act does not wait for its record.
        eventually("all is on record", LONG, || is_on_record(&scene, name, uid))?;
    }
    drop(driver);
    scene.finish()
}

/// What `kubelet-ctl audit` says of the life of the volume `disk`, which the pod had: each act of the privileged process, about what,
/// where, and how it ended.
fn is_on_record(scene: &Scene, driver: &str, uid: &str) -> Result<()> {
    let records = |arguments: &[&str]| -> Result<Vec<Value>> {
        let printed = scene.node.ctl(&[&["audit", "-o", "json", "--newest", "0"], arguments].concat())?;
        let records: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
        Ok(records.as_array().context("no list")?.clone())
    };
    let object = json!(format!("disk {driver}^disk"));
    let published = format!("/pods/{uid}/volumes/kubernetes.io~csi/disk/mount");
    let (of_node, of_pod) = (records(&["--verb", "Csi"])?, records(&["--verb", "Csi", "--pod", uid])?);
    let acts = [
        ("PrepareStage", "/globalmount", false),
        ("CommitStage", "", false),
        ("PreparePublish", published.as_str(), true),
        ("CommitPublish", published.as_str(), true),
        ("BeginUnpublish", "", true),
        ("EndPublish", "", true),
        ("BeginUnstage", "", false),
        ("EndStage", "", false),
    ];
    let mut last = 0;
    for (verb, target, is_pods) in acts {
        let all = if is_pods { &of_pod } else { &of_node };
        let is_it = |record: &&Value| record["verb"] == format!("Csi/{verb}") && record["object"] == object;
        let record = all.iter().find(is_it).with_context(|| format!("no {verb} of {object} in {all:#?}"))?;
        ensure!(record["peer"] == "kubelet-syncd" && record["code"] == "OK", "{record:#}");
        ensure!(record["seconds"].as_f64() > Some(0.0), "{record:#}");
        ensure!(record["target"].as_str().unwrap_or_default().ends_with(target), "{record:#}");
        let pod = if is_pods { uid } else { "" };
        ensure!(record["podUid"].as_str().unwrap_or_default() == pod, "{record:#}");
        let sequence = record["sequence"].as_u64().context("no number")?;
        ensure!(sequence > last, "{verb} came earlier than what it follows: {all:#?}");
        last = sequence;
    }
    // The connections to its sockets: the one that it registers by, and its own.
    let sockets = records(&["--verb", "PluginSocket"])?;
    for socket in [format!("{driver}-reg.sock"), format!("{driver}/csi.sock")] {
        let is_it = |record: &&Value| {
            let object = record["object"].as_str().unwrap_or_default();
            object.ends_with(&socket) && record["peer"] == "kubelet-syncd" && record["code"] == "OK"
        };
        ensure!(sockets.iter().any(|record| is_it(&record)), "no {socket} in {sockets:#?}");
    }
    Ok(())
}
