//! Claims and volumes that a pod may not use, in upstream's words; and what a claim gives to a pod beside its files.
//!
//! Each case was run with upstream's kubelet, too (`tests/README.md` says how).

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::csi::{Fault, objects};
use bulkhead_testkit::{LONG, eventually, image, mounts};
use bulkhead_tests::lab;
use bulkhead_tests::storage::recorded::attachment;
use bulkhead_tests::storage::scene::unique_name;
use bulkhead_tests::storage::{NODE, Scene};
use serde_json::{Value, json};

use crate::DRIVER;

const CLAIMS: &str = "persistentvolumeclaims";
const VOLUMES: &str = "persistentvolumes";
/// The driver of volumes that nobody attaches.
const NAME: &str = "claims.test";
/// One of volumes that somebody does.
const ATTACHED: &str = "attached.test";
/// One that has no part in an expansion: its controller does all of it.
const WHOLE: &str = "whole.test";

/// A pod that is refused: its name is that of its claim, and of the claim's volume.
struct Case {
    name: &'static str,
    /// What is changed about a claim and a volume that could be used.
    spoil: fn(&Scene, &str) -> Result<()>,
    /// Instead of a pod that mounts the claim.
    pod: Option<fn(&str) -> Value>,
    /// An event of the pod.
    says: String,
}

/// `FailedMount Unable to attach or mount volumes ...`.
fn unprocessed(volume: &str, why: &str) -> String {
    format!(
        "FailedMount Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process \
         volumes=[{volume}]: {why}"
    )
}

fn failed(step: &str, volume: &str, why: &str) -> String {
    format!("FailedMount MountVolume.{step} for volume \"{volume}\" : {why}")
}

fn nothing(_: &Scene, _: &str) -> Result<()> {
    Ok(())
}

fn bound(scene: &Scene, name: &str) -> Result<()> {
    scene.volume(name, NAME)
}

fn with_volume(scene: &Scene, name: &str, spec: &Value) -> Result<()> {
    objects::create_bound(&scene.cluster, name, NAME, spec)
}

/// A container that uses a volume as it is told, and the volume.
fn spec(usage: &str, volume: Value) -> Value {
    let name = volume["name"].clone();
    let (mounts, devices) = match usage {
        "device" => (json!([]), json!([{"name": name, "devicePath": "/dev/x"}])),
        _ => (json!([{"name": name, "mountPath": "/x"}]), json!([])),
    };
    json!({"volumes": [volume], "containers": [{"name": "main", "image": image::BUSYBOX, "command": ["sleep", "100000"],
        "volumeMounts": mounts, "volumeDevices": devices}]})
}

fn in_line(driver: &str, name: &str) -> Value {
    spec("mount", json!({"name": name, "csi": {"driver": driver}}))
}

fn cases(scene: &Scene) -> Result<Vec<Case>> {
    let case = |name: &'static str, spoil, says: String| Case { name, spoil, pod: None, says };
    let about_claim =
        |name: &'static str, why: &str| unprocessed(name, &format!("error processing PVC default/{name}: {why}"));
    let pvc_not_found = "failed to fetch PVC from API server: persistentvolumeclaims \"missing\" not found";
    let claim_uid = |name: &str| -> Result<String> {
        Ok(scene.cluster.get(CLAIMS, "default", name)?["metadata"]["uid"].as_str().unwrap_or_default().to_owned())
    };
    // Objects that later lines name by their uid.
    with_volume(scene, "another", &Value::Null)?;
    let other = json!({"spec": {"claimRef": {"uid": "00000000-0000-0000-0000-000000000000"}}});
    scene.cluster.patch(VOLUMES, "", "another", &other)?;
    let another = claim_uid("another")?;
    Ok(vec![
        case("missing", nothing, about_claim("missing", pvc_not_found)),
        case(
            "unbound",
            |scene, name| scene.cluster.create(&objects::claim(name, "", "16Mi", &Value::Null)).map(drop),
            about_claim("unbound", "PVC is not bound"),
        ),
        case(
            "lost",
            |scene, name| {
                bound(scene, name)?;
                scene.cluster.patch_status(CLAIMS, "default", name, &json!({"status": {"phase": "Lost"}})).map(drop)
            },
            about_claim("lost", "PVC is not bound"),
        ),
        case(
            "nameless",
            |scene, name| {
                scene.cluster.create(&objects::claim(name, "", "16Mi", &Value::Null))?;
                scene.cluster.patch_status(CLAIMS, "default", name, &json!({"status": {"phase": "Bound"}})).map(drop)
            },
            about_claim("nameless", "PVC has empty pvc.Spec.VolumeName"),
        ),
        case(
            "going",
            |scene, name| {
                bound(scene, name)?;
                let held = json!({"metadata": {"finalizers": ["example.com/held"]}});
                scene.cluster.patch(CLAIMS, "default", name, &held)?;
                scene.cluster.delete(CLAIMS, "default", name, None)
            },
            about_claim("going", "PVC is being deleted"),
        ),
        case(
            "another",
            nothing,
            about_claim(
                "another",
                &format!(
                    "found PV object another but its pv.Spec.ClaimRef.UID 00000000-0000-0000-0000-000000000000 does not point to \
                     claim.UID {another}"
                ),
            ),
        ),
        case(
            "block",
            |scene, name| with_volume(scene, name, &json!({"volumeMode": "Block"})),
            unprocessed("block", "volume block has volumeMode Block, but is specified in volumeMounts"),
        ),
        Case {
            name: "files",
            spoil: bound,
            pod: Some(|name| spec("device", objects::of_claim(name))),
            says: unprocessed("files", "volume files has volumeMode Filesystem, but is specified in volumeDevices"),
        },
        Case {
            name: "foreign",
            // Of the name that the pod's own claim would have.
            spoil: |scene, _| bound(scene, "foreign-scratch"),
            pod: Some(|_| {
                let template =
                    json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "16Mi"}}}});
                spec("mount", json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}))
            }),
            says: unprocessed(
                "scratch",
                "PVC default/foreign-scratch was not created for pod default/foreign (pod is not owner)",
            ),
        },
        case(
            "elsewhere",
            |scene, name| {
                let expression = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-z"]});
                let terms = json!([{"matchExpressions": [expression]}]);
                with_volume(scene, name, &json!({"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}))
            },
            failed("NodeAffinity check failed", "elsewhere", "no matching NodeSelectorTerms"),
        ),
        case(
            "driverless",
            |scene, name| {
                scene.cluster.create(&objects::csi_driver("nobody.test", &json!({"attachRequired": false})))?;
                scene.volume(name, "nobody.test")
            },
            failed(
                "MountDevice failed",
                "driverless",
                "kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: driver name nobody.test not found \
                 in the list of registered CSI drivers",
            ),
        ),
        Case {
            name: "inline",
            spoil: nothing,
            pod: Some(|name| in_line(ATTACHED, name)),
            says: failed(
                "SetUp failed",
                "inline",
                "kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: volume mode \"Ephemeral\" not supported by driver attached.test (only supports [\"Persistent\"])",
            ),
        },
        Case {
            name: "stranger",
            spoil: nothing,
            pod: Some(|name| in_line("stranger.test", name)),
            says: failed(
                "SetUp failed",
                "stranger",
                "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: driver name stranger.test not found in the list of \
                 registered CSI drivers",
            ),
        },
        case(
            "unattached",
            |scene, name| {
                for (name, message) in [(name, Value::Null), ("refused", json!("no such array"))] {
                    scene.volume(name, ATTACHED)?;
                    let attachment = attachment(name, ATTACHED, NODE);
                    scene.cluster.create(&json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
                        "metadata": {"name": attachment}, "spec": {"attacher": ATTACHED, "nodeName": NODE,
                            "source": {"persistentVolumeName": name}}}))?;
                    let status = match message {
                        Value::Null => json!({"attached": false}),
                        message => json!({"attached": false, "attachError": {"message": message}}),
                    };
                    scene.cluster.patch_status("volumeattachments", "", &attachment, &json!({"status": status}))?;
                }
                let names =
                    ["unattached", "refused"].map(|one| json!({"name": unique_name(ATTACHED, one), "devicePath": ""}));
                scene.cluster.patch_status("nodes", "", NODE, &json!({"status": {"volumesAttached": names}})).map(drop)
            },
            failed(
                "WaitForAttach failed",
                "unattached",
                &format!(
                    "volume unattached is not attached for volume attachment {}",
                    attachment("unattached", ATTACHED, NODE)
                ),
            ),
        ),
        case("refused", nothing, failed("WaitForAttach failed", "refused", "no such array")),
        case(
            "folder",
            |scene, name| {
                let path = json!({"path": "/etc/hostname", "type": "Directory"});
                with_volume(scene, name, &json!({"csi": null, "hostPath": path}))
            },
            failed("SetUp failed", "folder", "hostPath type check failed: /etc/hostname is not a directory"),
        ),
    ])
}

#[test]
fn what_a_pod_may_not_use_is_said_in_upstreams_words() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let scene = Scene::start(lab, cluster)?;
    let driver = scene.driver(DRIVER, NAME, &json!({"attachRequired": false}))?.start()?;
    let modes = json!({"attachRequired": true, "volumeLifecycleModes": ["Persistent"]});
    let attaches = scene.driver(DRIVER, ATTACHED, &modes)?.start()?;
    driver.wait_registered()?;
    attaches.wait_registered()?;
    let cases = cases(&scene)?;
    for case in &cases {
        (case.spoil)(&scene, case.name).with_context(|| case.name)?;
        let pod = case.pod.map_or_else(|| spec("mount", objects::of_claim(case.name)), |pod| pod(case.name));
        scene.create(case.name, &pod)?;
    }
    eventually("each pod says why", LONG, || {
        let mut silent = Vec::new();
        for case in &cases {
            let events = scene.events(case.name)?;
            if !events.contains(&case.says) {
                silent.push(format!("{}: {:?} is not among {events:#?}", case.name, case.says));
            }
        }
        ensure!(silent.is_empty(), "{}", silent.join("\n"));
        Ok(())
    })?;
    for case in &cases {
        let status = &scene.cluster.get("pods", "default", case.name)?["status"];
        let waiting = &status["containerStatuses"][0]["state"]["waiting"];
        ensure!(waiting == &json!({"reason": "ContainerCreating"}) && status["phase"] == "Pending", "{status}");
    }
    ensure!(driver.calls()?.iter().all(|call| !call.method.contains("Volume")), "no volume was asked for");
    for case in &cases {
        scene.delete(case.name)?;
    }
    scene.wait_no_traces()?;
    drop((driver, attaches));
    scene.finish()
}

#[test]
fn a_volume_for_one_pod_has_one() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let scene = Scene::start(lab, cluster)?;
    let driver = scene.driver(DRIVER, NAME, &json!({"attachRequired": false}))?.start()?;
    driver.wait_registered()?;
    let alone = json!({"accessModes": ["ReadWriteOncePod"]});
    with_volume(&scene, "alone", &alone)?;
    with_volume(&scene, "raw", &json!({"accessModes": ["ReadWriteOncePod"], "volumeMode": "Block"}))?;
    scene.pod_with("first", "sleep 100000", &["alone"], &["raw"])?;
    scene.wait_ready("first")?;
    scene.pod_with("second", "sleep 100000", &["alone"], &["raw"])?;
    let why = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
    scene.wait_event("second", &failed("SetUp failed", "alone", why))?;
    scene.wait_event("second", &format!("FailedMapVolume MapVolume.SetUpDevice failed for volume \"raw\" : {why}"))?;
    scene.delete("first")?;
    scene.wait_ready("second")?;
    scene.delete("second")?;
    scene.wait_no_traces()?;
    drop(driver);
    scene.finish()
}

#[test]
fn the_group_of_a_volume_is_its_pods() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let scene = Scene::start(lab, cluster)?;
    let driver = scene.driver(DRIVER, NAME, &json!({"attachRequired": false}))?.start()?;
    driver.wait_registered()?;
    for (name, gid) in [("first", "4242"), ("second", "1777"), ("again", "4242"), ("none", "wheel")] {
        scene.volume(name, NAME)?;
        let annotation = json!({"metadata": {"annotations": {"pv.beta.kubernetes.io/gid": gid}}});
        scene.cluster.patch(VOLUMES, "", name, &annotation)?;
    }
    let names = ["first", "second", "again", "none"];
    let mounts: Vec<Value> = names.iter().map(|name| json!({"name": name, "mountPath": format!("/{name}")})).collect();
    let volumes: Vec<Value> = names.iter().map(|name| objects::of_claim(name)).collect();
    let container = |name: &str, mounts: &[Value]| json!({"name": name, "image": image::BUSYBOX, "command": ["sleep", "100000"], "volumeMounts": mounts});
    // Every container has them, whether or not it mounts the volume.
    let containers = [container("main", &mounts), container("other", &[])];
    let security = json!({"runAsUser": 1000, "runAsGroup": 3000, "fsGroup": 2000, "supplementalGroups": [1777]});
    scene.create("grouped", &json!({"volumes": volumes, "containers": containers, "securityContext": security}))?;
    scene.wait_ready("grouped")?;
    let cri = scene.node.cri()?;
    for container in cri.containers()? {
        let (code, seen) = cri.exec(&container.id, &["id", "-G"])?;
        let mut groups: Vec<&str> = seen.split_whitespace().collect();
        groups.sort_unstable();
        groups.dedup();
        ensure!(code == 0 && groups == ["1777", "2000", "3000", "4242"], "{}: {code}: {seen}", container.name);
    }
    scene.delete("grouped")?;
    scene.wait_no_traces()?;
    drop(driver);
    scene.finish()
}

/// The volume and the claim as a resizer leaves them for the node.
pub(crate) fn grow(scene: &Scene, name: &str) -> Result<()> {
    scene.cluster.patch(VOLUMES, "", name, &json!({"spec": {"capacity": {"storage": "32Mi"}}}))?;
    let claim = json!({"spec": {"resources": {"requests": {"storage": "32Mi"}}}});
    scene.cluster.patch(CLAIMS, "default", name, &claim)?;
    let pending = json!({"type": "FileSystemResizePending", "status": "True"});
    let status = json!({"allocatedResources": {"storage": "32Mi"},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"}, "conditions": [pending]});
    scene.cluster.patch_status(CLAIMS, "default", name, &json!({"status": status})).map(drop)
}

#[test]
fn a_claim_that_grew_is_expanded_before_its_pod_has_it() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let scene = Scene::start(lab, cluster)?;
    let cluster = &scene.cluster;
    let driver = scene.driver(DRIVER, NAME, &json!({"attachRequired": false}))?.start()?;
    driver.wait_registered()?;
    cluster.create(&objects::storage_class("grows", NAME, &Value::Null))?;
    let names = ["well", "never", "broken", "used"];
    for name in names {
        with_volume(&scene, name, &json!({"storageClassName": "grows"}))?;
        grow(&scene, name)?;
    }
    driver.faults(&[
        Fault::fails("NodeExpandVolume", "OUT_OF_RANGE", "too large").of_volume("never"),
        Fault::fails("NodeExpandVolume", "INTERNAL", "it is broken").of_volume("broken"),
        Fault::fails("NodeExpandVolume", "FAILED_PRECONDITION", "it is in use").of_volume("used"),
    ])?;
    for name in names {
        scene.pod(name, &[name])?;
    }
    let claim = |name: &str| -> Result<Value> { Ok(cluster.get(CLAIMS, "default", name)?["status"].clone()) };

    scene.wait_ready("well")?;
    let status = claim("well")?;
    ensure!(status["capacity"]["storage"] == "32Mi", "{status:#}");
    // The API server in memory keeps an empty map.
    let states = status["allocatedResourceStatuses"].as_object();
    ensure!(states.is_none_or(serde_json::Map::is_empty), "{status:#}");
    ensure!(status["conditions"].as_array().is_none_or(Vec::is_empty), "{status:#}");
    let calls: Vec<String> =
        driver.calls()?.into_iter().filter(|call| call.volume() == "well").map(|c| c.method).collect();
    ensure!(calls == ["NodeStageVolume", "NodePublishVolume", "NodeExpandVolume"], "{calls:?}");
    let success =
        format!("FileSystemResizeSuccessful MountVolume.NodeExpandVolume succeeded for volume \"well\" {NODE}");
    scene.wait_event("well", &success)?;
    // The pod and the claim have one name here, and an event each.
    eventually("pod and claim say so", LONG, || {
        let all = cluster.list("events", Some("default"))?;
        let about = |kind: &str| {
            let fits = |event: &&Value| {
                event["reason"] == "FileSystemResizeSuccessful"
                    && event["involvedObject"]["kind"] == kind
                    && event["involvedObject"]["name"] == "well"
            };
            all.iter().filter(fits).count()
        };
        ensure!(about("Pod") == 1 && about("PersistentVolumeClaim") == 1, "{all:#?}");
        Ok(())
    })?;

    // Never: the first mount fails, the next one leaves it as it is.
    let text = |code: &str, text: &str, colon: &str| {
        format!("Expander.NodeExpand failed to expand the volume {colon}rpc error: code = {code} desc = {text}")
    };
    let while_mounted = |name: &str, why: &str| failed("Setup failed while expanding volume", name, why);
    let (never, broken) = (text("OutOfRange", "too large", ""), text("Internal", "it is broken", ": "));
    scene.wait_event("never", &while_mounted("never", &never))?;
    scene.wait_ready("never")?;
    // Broken: the pod waits until it is not.
    scene.wait_event("broken", &while_mounted("broken", &broken))?;
    // Used: the pod has it as it is.
    scene.wait_ready("used")?;
    let used = text("FailedPrecondition", "it is in use", ": ");
    for (name, state, why) in [
        ("never", "NodeResizeInfeasible", never),
        ("broken", "NodeResizeInProgress", broken),
        ("used", "NodeResizeInProgress", used),
    ] {
        let status = claim(name)?;
        ensure!(status["allocatedResourceStatuses"]["storage"] == state, "{name}: {status:#}");
        ensure!(status["capacity"]["storage"] == "16Mi", "{name}: {status:#}");
        let conditions = status["conditions"].as_array().context("no conditions")?;
        let kinds: Vec<&str> = conditions.iter().filter_map(|one| one["type"].as_str()).collect();
        ensure!(kinds == ["FileSystemResizePending", "NodeResizeError"], "{name}: {status:#}");
        ensure!(conditions[1]["message"] == format!("failed to expand pvc with {why}"), "{name}: {status:#}");
    }
    driver.heal()?;
    scene.wait_ready("broken")?;
    let grown = |claim: &Value| claim["status"]["capacity"]["storage"] == "32Mi";
    let healed = cluster.wait_for(CLAIMS, "default", "broken", "it has grown", grown)?;
    ensure!(healed["status"]["conditions"].as_array().is_none_or(Vec::is_empty), "{healed:#}");
    ensure!(driver.calls_of("NodeExpandVolume", "never")?.len() == 1);
    ensure!(driver.calls_of("NodeExpandVolume", "used")?.len() == 1);
    for name in names {
        scene.delete(name)?;
    }
    scene.wait_no_traces()?;
    // With the next mount what was in use is asked for again.
    scene.pod("later", &["used"])?;
    scene.wait_ready("later")?;
    ensure!(grown(&cluster.get(CLAIMS, "default", "used")?), "{:#}", claim("used")?);
    scene.delete("later")?;
    scene.wait_no_traces()?;
    drop(driver);
    scene.finish()
}

/// The volume and the claim as a resizer leaves them whose driver needs nothing of the node; answers the claim.
fn grow_whole(scene: &Scene, name: &str) -> Result<Value> {
    let size = json!({"storage": "32Mi"});
    scene.cluster.patch(CLAIMS, "default", name, &json!({"spec": {"resources": {"requests": size}}}))?;
    let status = json!({"status": {"capacity": size, "allocatedResources": size}});
    let claim = scene.cluster.patch_status(CLAIMS, "default", name, &status)?;
    // Last: from now on the node can see that the volume is larger than it was when the pod got it.
    scene.cluster.patch(VOLUMES, "", name, &json!({"spec": {"capacity": size}}))?;
    Ok(claim)
}

#[test]
fn a_claim_that_its_controller_alone_has_expanded_is_left_as_it_is() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    // A claim's volume is looked at with each sync of its pod.
    let scene = Scene::start_with(lab, cluster, |node| node.config("syncFrequency", json!("4s")))?;
    let cluster = &scene.cluster;
    let without = ["STAGE_UNSTAGE_VOLUME", "GET_VOLUME_STATS", "SINGLE_NODE_MULTI_WRITER"];
    let whole = scene.driver(DRIVER, WHOLE, &Value::Null)?.capabilities(&without).start()?;
    let grows = scene.driver(DRIVER, NAME, &Value::Null)?.start()?;
    whole.wait_registered()?;
    grows.wait_registered()?;
    cluster.create(&objects::storage_class("grows", WHOLE, &Value::Null))?;
    let names = ["alone", "shared"];
    for (name, mode) in [("alone", "ReadWriteOnce"), ("shared", "ReadWriteMany")] {
        let spec = json!({"storageClassName": "grows", "accessModes": [mode]});
        objects::create_bound(cluster, name, WHOLE, &spec)?;
    }
    with_volume(&scene, "witness", &Value::Null)?;
    scene.pod("holds", &["alone", "shared", "witness"])?;
    scene.wait_ready("holds")?;
    let grown = names.iter().map(|name| grow_whole(&scene, name)).collect::<Result<Vec<Value>>>()?;
    // Two syncs of the pod, each of which finds that another of its volumes has grown.
    for size in ["32Mi", "48Mi"] {
        cluster.patch(VOLUMES, "", "witness", &json!({"spec": {"capacity": {"storage": size}}}))?;
        let told = |claim: &Value| claim["status"]["capacity"]["storage"] == size;
        cluster.wait_for(CLAIMS, "default", "witness", "it has grown", told)?;
    }
    for (name, before) in names.into_iter().zip(&grown) {
        let after = cluster.get(CLAIMS, "default", name)?;
        let version = |claim: &Value| claim["metadata"]["resourceVersion"].clone();
        ensure!(after["status"]["capacity"]["storage"] == "32Mi", "{after:#}");
        ensure!(after["status"] == before["status"] && version(&after) == version(before), "{before:#} {after:#}");
        ensure!(whole.calls_of("NodeExpandVolume", name)?.is_empty(), "it cannot do that");
        let events = cluster.list("events", Some("default"))?;
        let is_of = |event: &&Value| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            text(&event["reason"]).contains("Resize") && text(&event["message"]).contains(&format!("\"{name}\""))
        };
        let told: Vec<&Value> = events.iter().filter(is_of).collect();
        ensure!(told.is_empty(), "{told:#?}");
    }
    let status = &cluster.get("pods", "default", "holds")?["status"];
    ensure!(status["phase"] == "Running" && status["containerStatuses"][0]["restartCount"] == 0, "{status}");
    scene.delete("holds")?;
    scene.wait_no_traces()?;
    drop((whole, grows));
    scene.finish()
}

#[test]
fn a_path_of_the_host_behind_a_claim_is_shown_as_it_is() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.cluster()?;
    let scene = Scene::start(lab, cluster)?;
    let folder = scene.lab.folder().join("host");
    std::fs::create_dir_all(folder.join("folder"))?;
    std::fs::write(folder.join("file"), "from the host")?;
    let _socket = std::os::unix::net::UnixListener::bind(folder.join("socket"))?;
    for (name, kind, minor) in [("character", "c", "3"), ("block", "b", "250")] {
        let number = if kind == "c" { "1" } else { "7" };
        let made = Command::new("mknod").arg(folder.join(name)).args([kind, number, minor]).status()?;
        ensure!(made.success(), "mknod {name}: {made}");
    }
    let kinds = [
        ("file", "File", "-f"),
        ("socket", "Socket", "-S"),
        ("character", "CharDevice", "-c"),
        ("block", "BlockDevice", "-b"),
        ("folder", "Directory", "-d"),
        ("new-file", "FileOrCreate", "-f"),
        ("new-folder", "DirectoryOrCreate", "-d"),
        ("any", "", "-d"),
    ];
    for (name, kind, _) in kinds {
        let path = if name == "any" { folder.join("folder") } else { folder.join(name) };
        with_volume(&scene, name, &json!({"csi": null, "hostPath": {"path": path, "type": kind}}))?;
    }
    let tests: Vec<String> = kinds.iter().map(|(name, _, test)| format!("test {test} /{name}")).collect();
    let script = format!(
        "{} && cat /file && echo seen > /new-file && echo seen > /folder/inside && sleep 100000",
        tests.join(" && ")
    );
    scene.pod_with("shown", &script, &kinds.map(|(name, ..)| name), &[])?;
    scene.wait_ready("shown")?;
    eventually("the pod has written", LONG, || {
        ensure!(std::fs::read_to_string(folder.join("new-file"))? == "seen\n");
        ensure!(std::fs::read_to_string(folder.join("folder/inside"))? == "seen\n");
        Ok(())
    })?;
    // Upstream mounts nothing for them.
    let points = mounts::below(scene.node.root_dir());
    ensure!(points.iter().all(|path| !path.to_string_lossy().contains("host-path")), "{points:#?}");
    ensure!(points.iter().all(|path| !path.to_string_lossy().contains("local-volume")), "{points:#?}");
    scene.delete("shown")?;
    ensure!(std::fs::read_to_string(folder.join("file"))? == "from the host", "the host keeps what is its own");
    scene.finish()
}
