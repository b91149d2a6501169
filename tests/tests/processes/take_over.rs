//! Does a node notice that Bulkhead takes upstream's place while its pods run, or that it gives it back? Upstream's kubelet
//! itself is not there: what it leaves is made with its recorded requests (`golden/`), and what it would make of what we
//! leave is read with its rules (`src/upstream/`).

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::cri::{Cri, Fingerprint};
use bulkhead_testkit::{Cluster, LONG, Lab, Node, Pod, eventually};
use bulkhead_tests::golden::{Recording, recording};
use bulkhead_tests::history::pod_only_advances;
use bulkhead_tests::lab;
use bulkhead_tests::upstream::checkpoints;
use bulkhead_tests::upstream::leave::{Left, Place, Volume, WRITTEN, log_link, status, tell};
use bulkhead_tests::upstream::read::{ExpectedPod, stumbles};
use serde_json::{Value, json};

const NODE: &str = "node-a";
const NAMESPACE: &str = "golden";
/// Recorded pods of the API server, with their volumes as upstream has set them up.
const PODS: [&str; 6] = ["basic", "emptydir", "configmap", "secret", "init", "guaranteed"];
/// The recorded static pod.
const STATIC: (&str, &str) = ("kube-system", "web-node-a");

fn volumes(pod: &str) -> Vec<Volume> {
    match pod {
        "emptydir" => vec![Volume::EmptyDir("v")],
        "configmap" => vec![Volume::Files("kubernetes.io~configmap", "v", false, vec![("a/b/k1", "v1", 0o640)])],
        "secret" => {
            let files = vec![("user", "u", 0o644), ("password", "p", 0o644)];
            vec![Volume::Files("kubernetes.io~secret", "v", true, files)]
        }
        _ => Vec::new(),
    }
}

/// The manifest of the recorded static pod; `uid` as somebody may write it there.
fn manifest(uid: Option<&str>) -> Value {
    named("web", uid)
}

fn named(name: &str, uid: Option<&str>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": STATIC.0, "labels": {"tier": "static"}},
        "spec": {
            "priorityClassName": "system-node-critical", "terminationGracePeriodSeconds": 2,
            "containers": [{"name": "main", "image": bulkhead_testkit::image::BUSYBOX,
                "command": ["sh", "-c", "sleep 3600"], "resources": {"requests": {"cpu": "10m"}}}],
        },
    });
    if let Some(uid) = uid {
        pod["metadata"]["uid"] = json!(uid);
    }
    pod
}

struct World {
    cluster: Cluster,
    node: Node,
    cri: Cri,
    place: Place,
    pods: BTreeMap<String, Left>,
}

/// A node on which upstream's kubelet ran until a moment ago.
fn upstreams_node(lab: &Lab) -> Result<World> {
    let cluster = lab.cluster()?;
    cluster.create(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}))?;
    let meta = |name: &str| json!({"name": name, "namespace": NAMESPACE});
    let data = json!({"k1": "v1", "k2": "v2"});
    cluster.create(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("cm"), "data": data}))?;
    let data = json!({"user": "dQ==", "password": "cA=="});
    cluster.create(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": meta("sec"), "data": data}))?;
    let of_node = cluster.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}))?;
    let node = lab
        .node(NODE)
        .joins(&cluster)?
        .config("clusterDNS", json!(["10.96.0.10"]))
        .config("clusterDomain", json!("cluster.local"))
        // So often a change of a configMap is looked for.
        .config("syncFrequency", json!("10s"))
        .prepare()?;
    let (cri, place) = (lab.cri()?, Place::of(&node));
    place.prepare()?;

    let recordings: BTreeMap<String, Recording> =
        recording::all()?.into_iter().map(|recording| (recording.name.clone(), recording)).collect();
    let of = |name: &str| recordings.get(name).with_context(|| format!("no recording {name}"));
    let address = lab.netns().address().to_string();
    let mut pods = BTreeMap::new();
    let mut granted = serde_json::Map::new();
    for name in PODS {
        let recording = of(name)?;
        let mut pod = recording.pod.clone().context("no pod")?;
        pod["spec"]["nodeName"] = json!(NODE);
        let uid = cluster.create(&pod)?["metadata"]["uid"].as_str().context("no uid")?.to_owned();
        let left = place.pod(&cri, recording, &uid, &volumes(name)).with_context(|| name.to_owned())?;
        tell(&cluster, &left, &status(&cri, &address, recording, &left)?)?;
        let resources =
            |container: &Value| Some((container["name"].as_str()?.to_owned(), container["resources"].clone()));
        let containers = pod["spec"]["containers"].as_array().into_iter().flatten().filter_map(resources);
        let containers: serde_json::Map<String, Value> = containers.collect();
        granted.insert(uid, json!({"ContainerResources": containers, "PodLevelResources": null}));
        pods.insert(name.to_owned(), left);
    }
    // The static pod keeps its recorded uid, which is upstream's hash of the manifest; its mirror has one of its own.
    let recording = of("staticpod")?;
    let left = place.pod(&cri, recording, &recording.uid, &[])?;
    let mut mirror = recording.mirror.clone().context("no mirror")?;
    mirror["spec"]["nodeName"] = json!(NODE);
    mirror["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": NODE,
        "uid": of_node["metadata"]["uid"], "controller": true}]);
    cluster.create(&mirror)?;
    tell(&cluster, &left, &status(&cri, &address, recording, &left)?)?;
    pods.insert("staticpod".into(), left);
    node.write_raw("web.yaml", manifest(None).to_string().as_bytes())?;
    for file in ["allocated_pods_state", "actuated_pods_state"] {
        std::fs::write(place.root.join(file), checkpoints::resources(&Value::Object(granted.clone())))?;
    }
    Ok(World { cluster, node, cri, place, pods })
}

impl World {
    fn shown(&self, pod: &Left) -> Result<Value> {
        self.cluster.get("pods", &pod.namespace, &pod.name)
    }

    /// What must stay of what the API server was told.
    fn told(&self, pod: &Left) -> Result<Value> {
        let shown = self.shown(pod)?;
        let mut kept = json!({"uid": shown["metadata"]["uid"]});
        for field in ["phase", "podIP", "podIPs", "hostIP", "startTime", "qosClass"] {
            kept[field] = shown["status"][field].clone();
        }
        for condition in shown["status"]["conditions"].as_array().into_iter().flatten() {
            let kind = condition["type"].as_str().unwrap_or_default();
            kept["conditions"][kind] = json!([condition["status"], condition["lastTransitionTime"]]);
        }
        for list in ["containerStatuses", "initContainerStatuses"] {
            for one in shown["status"][list].as_array().into_iter().flatten() {
                let (name, ended) = (one["name"].as_str().unwrap_or_default(), &one["state"]["terminated"]);
                // When exactly it ended the stand-in for upstream does not know.
                let state = json!([one["state"]["running"], ended["exitCode"], ended["reason"], ended["startedAt"]]);
                kept[list][name] = json!([one["containerID"], one["restartCount"], one["ready"], state]);
            }
        }
        Ok(kept)
    }

    /// Every pod as upstream's sources would give it to a kubelet that starts now.
    fn wanted(&self) -> Result<Vec<ExpectedPod>> {
        let mut wanted = Vec::new();
        for pod in self.cluster.list("pods", None)? {
            let metadata = &pod["metadata"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let mirror = &metadata["annotations"]["kubernetes.io/config.mirror"];
            wanted.push(ExpectedPod {
                namespace: text(&metadata["namespace"]),
                name: text(&metadata["name"]),
                uid: if mirror.is_string() { text(mirror) } else { text(&metadata["uid"]) },
                is_static: mirror.is_string(),
                spec: pod["spec"].clone(),
            });
        }
        Ok(wanted)
    }

    /// Upstream's kubelet runs a static pod whose manifest is refused here: anybody may write it.
    fn add_refused(&self) -> Result<Left> {
        let all = recording::all()?;
        let mut recording = all.into_iter().find(|one| one.name == "staticpod").context("no recording staticpod")?;
        for (_, call) in &mut recording.calls {
            call.request = serde_json::from_str(&call.request.to_string().replace(STATIC.1, "open-node-a"))?;
        }
        let left = self.place.pod(&self.cri, &recording, "5d41402abc4b2a76b9719d911017c592", &[])?;
        self.node.write_raw("open.yaml", named("open", None).to_string().as_bytes())?;
        self.set_mode_of_refused(0o666)?;
        Ok(left)
    }

    fn set_mode_of_refused(&self, mode: u32) -> Result<()> {
        let file = self.node.manifests().join("open.yaml");
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).context("its mode")
    }

    /// It runs on until its manifest is taken, and then it is that one's.
    fn mend_refused(&self, pod: &Left, running: &[Fingerprint]) -> Result<()> {
        eventually("it is told that a manifest could not be taken", LONG, || {
            let events = self.cluster.list("events", Some("default"))?;
            let told = |event: &Value| {
                let message = event["message"].as_str().unwrap_or_default();
                message.contains(&pod.uid) && message.contains("/open.yaml: ")
            };
            let event = events.iter().find(|event| event["reason"] == "StaticPodNotTaken");
            ensure!(event.is_some_and(told), "{event:#?}");
            Ok(())
        })?;
        ensure!(self.place.log_folder(pod).join("main/0.log").is_file(), "its log is gone");
        self.set_mode_of_refused(0o644)?;
        let agent = self.node.agent()?;
        eventually("its pod is known", LONG, || {
            let known = agent.pods()?;
            let one = known.iter().find(|one| one.uid == pod.uid).context("it is unknown")?;
            ensure!(one.phase == "Running", "{} {}", one.phase, one.why);
            Ok(())
        })?;
        ensure!(self.node.fingerprint()? == *running, "{running:#?}\nbecame\n{:#?}", self.node.fingerprint()?);
        self.node.remove("open")?;
        eventually("it has ended", LONG, || {
            let now = self.node.fingerprint()?;
            ensure!(now.len() + 1 == running.len(), "{now:#?}");
            Ok(())
        })
    }

    fn wait_all_known(&self) -> Result<()> {
        let agent = self.node.agent()?;
        eventually("all pods are known to run", LONG, || {
            let known = agent.pods()?;
            for (name, left) in &self.pods {
                let pod = known.iter().find(|pod| pod.uid == left.uid).with_context(|| format!("{name} is unknown"))?;
                ensure!(pod.phase == "Running", "{name}: {} {}", pod.phase, pod.why);
            }
            Ok(())
        })
    }

    /// A new pod has its whole life beside them: whoever tells of it has told what there was to tell of the others.
    fn new_life(&self, name: &str) -> Result<()> {
        let pod = Pod::busybox(name, "exit 0").restart_policy("Never").spec("nodeName", json!(NODE));
        let uid = self.cluster.create(pod.value())?["metadata"]["uid"].as_str().context("no uid")?.to_owned();
        let ended = |pod: &Value| pod["status"]["phase"] == "Succeeded";
        self.cluster.wait_for("pods", "default", name, "it has ended", ended)?;
        self.cluster.delete("pods", "default", name, None)?;
        self.cluster.wait_gone("pods", "default", name)?;
        eventually("nothing of it is left on the disk", LONG, || {
            let logs = self.place.logs.join(format!("default_{name}_{uid}"));
            ensure!(!self.place.root.join("pods").join(&uid).exists() && !logs.exists(), "its folders are there");
            Ok(())
        })
    }
}

#[test]
fn pods_run_on_when_the_kubelet_is_replaced_and_put_back() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let mut world = upstreams_node(&lab)?;
    // The checker agrees with the recordings before it judges anything of ours.
    let before_us = stumbles(&world.place, &world.cri, &world.wanted()?)?;
    ensure!(before_us.is_empty(), "upstream would stumble over its own node:\n{}", before_us.join("\n"));
    let refused = world.add_refused()?;
    let running = world.node.fingerprint()?;
    let mut told = BTreeMap::new();
    for (name, pod) in &world.pods {
        told.insert(name.clone(), world.told(pod)?);
    }
    let hosts = |pod: &Left| std::fs::metadata(world.place.root.join("pods").join(&pod.uid).join("etc-hosts"));
    let hosts_before: Vec<u64> = world.pods.values().map(|pod| Ok(hosts(pod)?.ino())).collect::<Result<_>>()?;

    // Bulkhead takes over.
    world.node.launch()?;
    world.node.wait_healthy()?;
    world.wait_all_known()?;
    world.new_life("first")?;
    ensure!(world.node.fingerprint()? == running, "containers: {running:#?}\nbecame\n{:#?}", world.node.fingerprint()?);
    world.mend_refused(&refused, &running)?;
    for (name, pod) in &world.pods {
        let now = world.told(pod)?;
        ensure!(now == told[name], "{name}: {:#}\nbecame\n{now:#}", told[name]);
        pod_only_advances(&world.cluster.history("pods", &pod.namespace, &pod.name)?)?;
    }
    let hosts_now: Vec<u64> = world.pods.values().map(|pod| Ok(hosts(pod)?.ino())).collect::<Result<_>>()?;
    ensure!(hosts_now == hosts_before, "a hosts file was made anew");
    for (file, content) in world.place.unmanaged() {
        let now = std::fs::read_to_string(world.place.root.join(file)).with_context(|| file.to_owned())?;
        ensure!(now == content, "{file}: {content:?} became {now:?}");
    }
    for name in PODS {
        let events = world.cluster.list("events", Some(NAMESPACE))?;
        let of = events.iter().filter(|event| event["involvedObject"]["name"] == name);
        let told: Vec<String> = of.map(|event| format!("{} {}", event["reason"], event["message"])).collect();
        ensure!(told.is_empty(), "of {name} it is told: {told:#?}");
    }
    let data =
        world.place.root.join("pods").join(&world.pods["secret"].uid).join("volumes/kubernetes.io~secret/v/..data");
    ensure!(std::fs::read_link(&data)? == std::path::Path::new(WRITTEN), "the secret's volume was written anew");

    // The node works on with what it took over: a change reaches a volume that upstream made, a container that ends runs
    // again in its sandbox, a pod that is deleted goes with all that upstream made for it.
    world.cluster.patch("configmaps", NAMESPACE, "cm", &json!({"data": {"k1": "changed"}}))?;
    let main = &world.pods["configmap"].containers["main"];
    eventually("the change is seen in the container", LONG, || {
        let (_, text) = world.cri.exec(main, &["cat", "/v/a/b/k1"])?;
        ensure!(text == "changed", "{text}");
        Ok(())
    })?;
    let (basic, main) = (&world.pods["basic"], &world.pods["basic"].containers["main"]);
    world.cri.stop_container(main)?;
    let again = world.cluster.wait_for("pods", NAMESPACE, "basic", "it runs again", |pod| {
        let one = &pod["status"]["containerStatuses"][0];
        one["restartCount"] == 1 && one["state"]["running"].is_object()
    })?;
    let last = again["status"]["containerStatuses"][0]["lastState"]["terminated"]["containerID"].as_str();
    ensure!(last == Some(&format!("containerd://{main}")), "{again:#}");
    ensure!(again["status"]["podIP"] == told["basic"]["podIP"], "another sandbox: {again:#}");
    ensure!(world.place.log_folder(basic).join("main/1.log").is_file(), "no second log");
    let left = world.pods.remove("init").context("init")?;
    world.cluster.delete("pods", NAMESPACE, "init", None)?;
    world.cluster.wait_gone("pods", NAMESPACE, "init")?;
    eventually("nothing of the deleted pod is left", LONG, || {
        ensure!(!world.place.root.join("pods").join(&left.uid).exists(), "its folder is there");
        ensure!(!world.place.log_folder(&left).exists(), "its logs are there");
        for (container, id) in &left.containers {
            ensure!(log_link(&left, container, id).symlink_metadata().is_err(), "the link of {container} is there");
        }
        Ok(())
    })?;

    // What Bulkhead itself makes is upstream's to take over, too: the same pods again, and a static one.
    for name in ["configmap", "secret", "emptydir"] {
        let mut pod = world.shown(&world.pods[name])?;
        pod["metadata"] = json!({"name": format!("{name}-ours"), "namespace": NAMESPACE});
        pod["status"] = Value::Null;
        world.cluster.create(&pod)?;
        let ready = |pod: &Value| bulkhead_tests::joined::is_true(pod, "Ready");
        world.cluster.wait_for("pods", NAMESPACE, &format!("{name}-ours"), "it is ready", ready)?;
    }
    world.node.write(&Pod::idle("ours"))?;
    let ours = world.node.wait_running("ours", 1)?;
    bulkhead_tests::joined::wait_ready(&world.cluster, &world.node.pod_name("ours"))?;

    // The way back: the uids that are not upstream's own hash are written into their manifests, and nobody notices.
    let running = world.node.fingerprint()?;
    let mut pinned = Pod::idle("ours").value().clone();
    pinned["metadata"]["uid"] = json!(ours.sandbox.uid);
    world.node.write_raw("ours.yaml", pinned.to_string().as_bytes())?;
    world.node.write_raw("web.yaml", manifest(Some(&world.pods["staticpod"].uid)).to_string().as_bytes())?;
    world.new_life("second")?;
    ensure!(world.node.fingerprint()? == running, "{running:#?}\nbecame\n{:#?}", world.node.fingerprint()?);
    eventually("upstream's checkpoints are as of now", LONG, || {
        let wanted = world.wanted()?;
        for file in ["allocated_pods_state", "actuated_pods_state"] {
            let entries = checkpoints::read_resources(&std::fs::read_to_string(world.place.root.join(file))?)?;
            let has = |pod: &ExpectedPod| entries[&pod.uid]["ContainerResources"].is_object();
            let missing: Vec<&str> = wanted.iter().filter(|pod| !has(pod)).map(|pod| pod.name.as_str()).collect();
            ensure!(missing.is_empty(), "{missing:?} are not in {file}: {entries:#}");
            ensure!(entries.as_object().is_some_and(|all| all.len() == wanted.len()), "{file}: {entries:#}");
        }
        Ok(())
    })?;
    world.node.stop()?;
    ensure!(world.node.fingerprint()? == running, "stopping Bulkhead touched a container");
    let wanted = world.wanted()?;
    let found = stumbles(&world.place, &world.cri, &wanted)?;
    ensure!(found.is_empty(), "upstream would stumble:\n{}", found.join("\n"));
    for (file, content) in world.place.unmanaged() {
        ensure!(std::fs::read_to_string(world.place.root.join(file))? == content, "{file} has changed");
    }
    world.node.finish()
}
