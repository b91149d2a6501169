//! Does a pod keep the CPUs, the memory and the device that it has for itself when upstream's kubelet and ours take a node from
//! each other, whichever of them gave them, and does the one give back what the other gave?

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::cluster::{self, Storage};
use bulkhead_testkit::cri::Fingerprint;
use bulkhead_testkit::device_plugin::DevicePlugin;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::{IDLE, LONG, Release, eventually, image};
use bulkhead_tests::lab_alone_on;
use bulkhead_tests::storage::scene::{Kubelet, NODE, Scene};
use serde_json::{Value, json};

use crate::DEVICE_PLUGIN;

const RESOURCE: &str = "example.com/device";
/// Laid aside of the memory of the one node that there is.
const KEPT: &str = "100Mi";

struct World {
    scene: Scene,
    plugin: DevicePlugin,
    /// Kubelets so far.
    kubelets: usize,
    /// CPUs that pods may have for themselves: all but the first.
    free: usize,
}

/// What there is of the pods that run, beside the files' order.
#[derive(Debug, PartialEq)]
struct Seen {
    containers: Vec<Fingerprint>,
    /// By pod: CPUs and memory nodes as the kernel lists them, and what the plugin gave.
    has: BTreeMap<String, (String, String, Vec<String>)>,
    /// The managers' files as they are.
    states: [String; 2],
    /// Who has which device.
    devices: Vec<String>,
}

/// A node of upstream's kubelet with a device plugin. Upstream's looks for plugins below `/var/lib/kubelet`, whatever its root
/// directory is, and there is one such folder on the machine.
fn world() -> Result<Option<World>> {
    let Some(lab) = lab_alone_on(Release::V2_1)? else { return Ok(None) };
    if cluster::programs().is_none() {
        skip_this_test(Lack::ControlPlane)?;
        return Ok(None);
    }
    // The kubelets see the machine's, whatever this process may use.
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    let free: usize = online.trim().strip_prefix("0-").context("the test needs two CPUs, without gaps")?.parse()?;
    let cluster = lab.cluster_on(Storage::default())?;
    let scene = Scene::start_upstreams_with(lab.clone(), cluster, |node| {
        node.root_dir(Path::new("/var/lib/kubelet"))
            .config("cpuManagerPolicy", json!("static"))
            .config("cpuManagerReconcilePeriod", json!("1s"))
            .config("reservedSystemCPUs", json!("0"))
            .config("memoryManagerPolicy", json!("Static"))
            .config("systemReserved", json!({"memory": KEPT}))
            .config("evictionHard", json!({"memory.available": "0%"}))
            .config("reservedMemory", json!([{"numaNode": 0, "limits": {"memory": KEPT}}]))
            .config("topologyManagerPolicy", json!("single-numa-node"))
    })?;
    let Some(scene) = scene else {
        skip_this_test(Lack::ControlPlane)?;
        return Ok(None);
    };
    let devices = json!([{"id": "x", "health": "Healthy"}, {"id": "y", "health": "Healthy"}]);
    let plugin = DevicePlugin::start(DEVICE_PLUGIN, &scene.node, RESOURCE, &json!({"devices": devices}))?;
    let world = World { scene, plugin, kubelets: 1, free };
    world.wait_shown(0)?;
    Ok(Some(world))
}

impl World {
    /// The plugin, which was asked for its devices so often `before`, is known to the kubelet of now, and the Node shows both devices.
    fn wait_shown(&self, before: usize) -> Result<()> {
        eventually("the plugin is asked for its devices", LONG, || {
            let asked = self.plugin.calls("ListAndWatch")?.len();
            ensure!(asked > before, "{asked} times");
            Ok(())
        })?;
        let both = |node: &Value| node["status"]["allocatable"][RESOURCE] == "2";
        self.scene.cluster.wait_for("nodes", "", NODE, "both devices can be had", both).map(drop)
    }

    /// A pod with a device; with all free CPUs for itself if it is Guaranteed.
    fn pod(&self, name: &str, guaranteed: bool) -> Result<()> {
        let mut amounts = json!({RESOURCE: "1"});
        if guaranteed {
            (amounts["cpu"], amounts["memory"]) = (json!(self.free.to_string()), json!("32Mi"));
        }
        let container = json!({"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE],
            "resources": {"requests": amounts, "limits": amounts}});
        self.scene.create(name, &json!({"containers": [container]}))?;
        self.scene.wait_ready(name).map(drop)
    }

    /// One that has to be refused: nobody has a CPU left. Whoever does that knows what is given.
    fn refused(&self, name: &str) -> Result<()> {
        let amounts = json!({"cpu": "1", "memory": "32Mi"});
        let container = json!({"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE],
            "resources": {"requests": amounts, "limits": amounts}});
        self.scene.create(name, &json!({"containers": [container]}))?;
        let failed = |pod: &Value| pod["status"]["phase"] == "Failed";
        let pod = self.scene.cluster.wait_for("pods", "default", name, "it is refused", failed)?;
        ensure!(pod["status"]["reason"] == "TopologyAffinityError", "{:#}", pod["status"]);
        self.scene.delete(name)
    }

    fn file(&self, name: &str) -> Result<String> {
        let path = self.scene.node.root_dir().join(name);
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    fn seen(&self) -> Result<Seen> {
        let cri = self.scene.node.cri()?;
        let mut has = BTreeMap::new();
        for one in cri.containers()?.into_iter().filter(|one| one.running) {
            let status = std::fs::read_to_string(format!("/proc/{}/status", cri.pid(&one.id)?))?;
            let of = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            let (_, said) = cri.exec(&one.id, &["env"])?;
            let given = said.lines().filter(|line| line.starts_with("GIVEN_"));
            let mut given: Vec<String> = given.map(str::to_owned).collect();
            given.sort();
            let [cpus, nodes] = ["Cpus_allowed_list:", "Mems_allowed_list:"].map(|name| of(name).trim().to_owned());
            has.insert(one.pod, (cpus, nodes, given));
        }
        let devices: Value = serde_json::from_str(&self.file("device-plugins/kubelet_internal_checkpoint")?)?;
        let devices = devices["Data"]["PodDeviceEntries"].as_array().into_iter().flatten();
        let mut devices: Vec<String> = devices.map(Value::to_string).collect();
        devices.sort();
        let states = [self.file("cpu_manager_state")?, self.file("memory_manager_state")?];
        Ok(Seen { containers: self.scene.node.fingerprint()?, has, states, devices })
    }

    /// How often a device was given.
    fn asked(&self) -> Result<usize> {
        Ok(self.plugin.calls("Allocate")?.len())
    }

    /// The kubelet changes, and everybody has what he had; nobody is asked for anything again.
    fn changes(&mut self, to: Kubelet) -> Result<()> {
        let before = self.seen()?;
        let calls = self.asked()?;
        let lists = self.plugin.calls("ListAndWatch")?.len();
        self.scene.hand_over(to, |_| Ok(()))?;
        self.kubelets += 1;
        self.wait_shown(lists)?;
        self.refused(&format!("refused-{}", self.kubelets))?;
        let now = self.seen()?;
        ensure!(now == before, "{before:#?}\nbecame, with {to:?}:\n{now:#?}");
        let asked = self.asked()?;
        ensure!(asked == calls, "the plugin was asked again: {asked} times instead of {calls}");
        for pod in before.has.keys() {
            let shown = self.scene.wait_ready(pod)?;
            let status = &shown["status"]["containerStatuses"][0];
            ensure!(status["restartCount"] == 0, "{status:#}");
        }
        Ok(())
    }

    /// A pod ends, and what it had may be had by others: the shared CPUs are `shared`.
    fn ends(&self, name: &str, shared: &str) -> Result<()> {
        self.scene.delete(name)?;
        eventually(&format!("{name} has given back what it had"), LONG, || {
            let now = self.seen()?;
            ensure!(now.has["shared"].0 == shared, "{:?}", now.has);
            ensure!(now.states[0].contains(&format!(r#""defaultCpuSet":"{shared}""#)), "{:?}", now.states);
            Ok(())
        })
    }
}

#[test]
fn what_pods_have_for_themselves_stays_theirs_whoever_is_the_kubelet() -> Result<()> {
    let Some(mut world) = world()? else { return Ok(()) };
    let own = if world.free == 1 { "1".to_owned() } else { format!("1-{}", world.free) };
    let all = format!("0-{}", world.free);
    let container = json!({"name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", IDLE]});
    world.scene.create("shared", &json!({"containers": [container]}))?;
    world.scene.wait_ready("shared")?;
    world.pod("upstreams", true)?;
    eventually("the other pod has left the CPUs", LONG, || {
        let has = world.seen()?.has;
        let cpus = ["upstreams", "shared"].map(|pod| has[pod].0.as_str());
        ensure!(cpus == [own.as_str(), "0"], "{has:?}");
        Ok(())
    })?;

    world.changes(Kubelet::Ours).context("upstream's node becomes ours")?;
    // It gets the other device.
    world.pod("late", false)?;
    let seen = world.seen()?;
    ensure!(seen.devices.len() == 2, "{seen:#?}");
    ensure!(seen.has["late"].2 != seen.has["upstreams"].2 && seen.has["late"].0 == "0", "{seen:#?}");
    world.changes(Kubelet::Upstreams).context("ours goes back to upstream")?;
    world.changes(Kubelet::Ours).context("and becomes ours again")?;
    // Given by upstream's kubelet, given back by ours; and the other way around.
    world.ends("upstreams", &all)?;
    world.pod("ours", true)?;
    eventually("the others have left the CPUs", LONG, || {
        let has = world.seen()?.has;
        let cpus = ["ours", "late", "shared"].map(|pod| has[pod].0.as_str());
        ensure!(cpus == [own.as_str(), "0", "0"], "{has:?}");
        Ok(())
    })?;
    world.changes(Kubelet::Upstreams).context("what ours has given")?;
    world.ends("ours", &all)?;
    world.ends("late", &all)?;
    let World { mut scene, plugin, .. } = world;
    scene.hand_over(Kubelet::Ours, |_| Ok(()))?;
    scene.delete("shared")?;
    drop(plugin);
    scene.finish()
}
