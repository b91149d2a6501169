//! A node that has joined a cluster, and its pods with volumes.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::csi::{DriverBuilder, objects};
use bulkhead_testkit::{Cluster, IDLE, LONG, Lab, Node, NodeBuilder, cluster, eventually, image, loops, mounts};
use serde_json::{Value, json};

use super::recorded;
use crate::joined::{is_ready, is_true};

/// The recorded node's name.
pub const NODE: &str = "node-a";
/// Another kubelet to be asked the same: upstream's, to see whether the tests expect of a node what it does.
const KUBELET: &str = "BULKHEAD_STORAGE_KUBELET";

/// Folder of a lab with the other kubelet.
const ANOTHER: &str = "another";

/// Who is a node's kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kubelet {
    Ours,
    Upstreams,
}

/// See the module.
#[derive(Debug)]
pub struct Scene {
    // Order of fields is order of drop.
    pub node: Node,
    pub cluster: Cluster,
    pub lab: Lab,
}

impl Scene {
    /// A node of a cluster.
    ///
    /// # Errors
    /// One of them did not start.
    pub fn start(lab: Lab, cluster: Cluster) -> Result<Self> {
        Self::start_with(lab, cluster, |node| node)
    }

    /// The same with more of its configuration.
    ///
    /// # Errors
    /// As [`Scene::start`].
    pub fn start_with(lab: Lab, cluster: Cluster, configure: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Result<Self> {
        let builder = configure(lab.node(NODE).joins(&cluster)?);
        let node = match std::env::var_os(KUBELET) {
            None => builder.start()?,
            Some(kubelet) => another(&lab, builder, Path::new(&kubelet))?,
        };
        cluster.wait_for("nodes", "", NODE, "it is ready", |node| is_true(node, "Ready"))?;
        Ok(Self { node, cluster, lab })
    }

    /// A node whose kubelet is upstream's; `None` where `KUBEBUILDER_ASSETS` has none. [`Scene::hand_over`] puts ours in its place.
    ///
    /// # Errors
    /// As [`Scene::start`].
    pub fn start_upstreams(lab: Lab, cluster: Cluster) -> Result<Option<Self>> {
        Self::start_upstreams_with(lab, cluster, |node| node)
    }

    /// The same with more of its configuration.
    ///
    /// # Errors
    /// As [`Scene::start`].
    pub fn start_upstreams_with(
        lab: Lab,
        cluster: Cluster,
        configure: impl FnOnce(NodeBuilder) -> NodeBuilder,
    ) -> Result<Option<Self>> {
        let Some(kubelet) = upstreams_kubelet() else { return Ok(None) };
        let builder = configure(lab.node(NODE).joins(&cluster)?);
        let node = another(&lab, builder, &kubelet)?;
        cluster.wait_for("nodes", "", NODE, "it is ready", |node| is_true(node, "Ready"))?;
        Ok(Some(Self { node, cluster, lab }))
    }

    /// The kubelet ends as on SIGTERM, `meanwhile` happens, and another one takes the node over: ours or, as
    /// [`Scene::start_upstreams`] has left it, upstream's.
    ///
    /// # Errors
    /// One of them does not end, or does not start.
    pub fn hand_over(&mut self, to: Kubelet, meanwhile: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        self.node.stop()?;
        meanwhile(self)?;
        let upstreams = self.lab.folder().join(ANOTHER);
        self.node.set_programs(match to {
            Kubelet::Ours => None,
            Kubelet::Upstreams => Some(&upstreams),
        });
        self.node.launch()?;
        match to {
            Kubelet::Ours => self.node.wait_healthy(),
            Kubelet::Upstreams => Ok(()),
        }
    }

    /// Whether the node is that of the project, of which more is asked than of upstream's kubelet.
    pub fn is_ours() -> bool {
        std::env::var_os(KUBELET).is_none()
    }

    /// A driver of the node; its volumes need no attachment unless `spec` of its CSIDriver says so.
    ///
    /// # Errors
    /// The object was refused.
    pub fn driver(&self, program: &str, name: &str, spec: &Value) -> Result<DriverBuilder> {
        let mut all = json!({"attachRequired": false, "podInfoOnMount": true, "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Persistent", "Ephemeral"]});
        for (field, value) in spec.as_object().into_iter().flatten() {
            all[field] = value.clone();
        }
        self.cluster.create(&objects::csi_driver(name, &all))?;
        Ok(DriverBuilder::new(program, &self.node, name))
    }

    /// A volume of a driver with a claim of the same name.
    ///
    /// # Errors
    /// An object was refused.
    pub fn volume(&self, name: &str, driver: &str) -> Result<()> {
        objects::create_bound(&self.cluster, name, driver, &Value::Null)
    }

    /// The same as a block device.
    ///
    /// # Errors
    /// An object was refused.
    pub fn block_volume(&self, name: &str, driver: &str) -> Result<()> {
        objects::create_bound(&self.cluster, name, driver, &json!({"volumeMode": "Block"}))
    }

    /// Attaches volumes of a driver, whose handles are their names, as its attacher and the controller would where none runs: each
    /// with this metadata, and nothing else attached to the node.
    ///
    /// # Errors
    /// An object was refused.
    pub fn attach(&self, driver: &str, volumes: &[&str], metadata: &Value) -> Result<()> {
        for volume in volumes {
            let name = recorded::attachment(volume, driver, NODE);
            self.cluster.create(&json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
                "metadata": {"name": name}, "spec": {"attacher": driver, "nodeName": NODE,
                    "source": {"persistentVolumeName": volume}}}))?;
            let status = json!({"status": {"attached": true, "attachmentMetadata": metadata}});
            self.cluster.patch_status("volumeattachments", "", &name, &status)?;
        }
        let entry = |volume: &&str| json!({"name": unique_name(driver, volume), "devicePath": ""});
        let attached: Vec<Value> = volumes.iter().map(entry).collect();
        self.cluster.patch_status("nodes", "", NODE, &json!({"status": {"volumesAttached": attached}})).map(drop)
    }

    /// A pod that idles, with these claims as volumes at `/<claim>`.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn pod(&self, name: &str, claims: &[&str]) -> Result<Value> {
        self.pod_with(name, IDLE, claims, &[])
    }

    /// The same with a script, and with claims of block devices as `/dev/<claim>`.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn pod_with(&self, name: &str, script: &str, claims: &[&str], devices: &[&str]) -> Result<Value> {
        let volumes: Vec<Value> = claims.iter().chain(devices).map(|claim| objects::of_claim(claim)).collect();
        let mounts: Vec<Value> =
            claims.iter().map(|claim| json!({"name": claim, "mountPath": format!("/{claim}")})).collect();
        let devices: Vec<Value> =
            devices.iter().map(|claim| json!({"name": claim, "devicePath": format!("/dev/{claim}")})).collect();
        self.create(
            name,
            &json!({"volumes": volumes, "securityContext": {"fsGroup": 2000}, "containers": [{
                "name": "main", "image": image::BUSYBOX, "command": ["sh", "-c", script],
                "volumeMounts": mounts, "volumeDevices": devices}]}),
        )
    }

    /// A pod on the node.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn create(&self, name: &str, spec: &Value) -> Result<Value> {
        let mut spec = spec.clone();
        spec["nodeName"] = json!(NODE);
        spec["terminationGracePeriodSeconds"] = json!(1);
        spec["automountServiceAccountToken"] = json!(false);
        let metadata = json!({"name": name, "namespace": "default"});
        self.cluster.create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
    }

    /// Waits until a pod is ready.
    ///
    /// # Errors
    /// What the server shows of it, and the events about it.
    pub fn wait_ready(&self, name: &str) -> Result<Value> {
        let ready = self.cluster.wait_for("pods", "default", name, "it is ready", is_ready);
        ready.with_context(|| format!("events: {:#?}", self.events(name).unwrap_or_default()))
    }

    /// `Reason message` of the node's events about a pod, oldest first.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn events(&self, pod: &str) -> Result<Vec<String>> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut all = self.cluster.list("events", Some("default"))?;
        all.retain(|one| one["involvedObject"]["name"] == pod && one["source"]["component"] == "kubelet");
        all.sort_by_key(|one| text(&one["firstTimestamp"]));
        Ok(all.iter().map(|one| format!("{} {}", text(&one["reason"]), text(&one["message"]))).collect())
    }

    /// Waits for an event about a pod whose `Reason message` holds `words`.
    ///
    /// # Errors
    /// Those that there are.
    pub fn wait_event(&self, pod: &str, words: &str) -> Result<String> {
        eventually(&format!("an event of {pod} says {words:?}"), LONG, || {
            let all = self.events(pod)?;
            all.iter().find(|one| one.contains(words)).cloned().with_context(|| format!("{all:#?}"))
        })
    }

    /// Deletes a pod and waits until it is gone.
    ///
    /// # Errors
    /// It is still there.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.cluster.delete("pods", "default", name, Some(1))?;
        self.cluster.wait_gone("pods", "default", name)
    }

    /// `status.volumesInUse` or `status.volumesAttached` of the Node, names alone, sorted.
    ///
    /// # Errors
    /// There is no Node.
    pub fn volumes(&self, field: &str) -> Result<Vec<String>> {
        let node = self.cluster.get("nodes", "", NODE)?;
        let all = node["status"][field].as_array().into_iter().flatten();
        let name = |one: &Value| one.as_str().or(one["name"].as_str()).unwrap_or_default().to_owned();
        let mut names: Vec<String> = all.map(name).collect();
        names.sort();
        Ok(names)
    }

    /// Mount points of volumes of drivers, loop devices of the node, and folders of drivers' volumes.
    pub fn traces(&self) -> Vec<String> {
        let root = self.node.root_dir();
        let of_driver = |path: &Path| path.starts_with(root.join("plugins")) || path.to_string_lossy().contains("~csi");
        let points = mounts::below(root).into_iter().filter(|path| of_driver(path));
        let mut found: Vec<String> = points.map(|path| format!("mount {}", path.display())).collect();
        found.extend(loops::below(root).into_iter().map(|(device, file)| format!("{} of {file}", device.display())));
        let all = super::tree::lines(&[&root.join("plugins/kubernetes.io"), &root.join("pods")]).unwrap_or_default();
        found.extend(all.into_iter().filter(|line| line.contains("vol_data.json") || line.contains("~csi/")));
        found
    }

    /// Waits until nothing of any driver's volume is left on the node.
    ///
    /// # Errors
    /// What is left.
    pub fn wait_no_traces(&self) -> Result<()> {
        eventually("nothing of a volume is left", LONG, || {
            let left = self.traces();
            ensure!(left.is_empty(), "{left:#?}");
            let used = self.volumes("volumesInUse")?;
            ensure!(used.is_empty(), "in use: {used:?}");
            Ok(())
        })
    }

    /// The node ends, and has left nothing behind.
    ///
    /// # Errors
    /// What is left.
    pub fn finish(self) -> Result<()> {
        if Self::is_ours() {
            return self.node.finish();
        }
        self.node.abandon();
        Ok(())
    }

    /// The same after processes were killed in the middle of calls to the runtime.
    ///
    /// # Errors
    /// What is left.
    pub fn finish_after_deaths(self) -> Result<()> {
        if Self::is_ours() {
            return self.node.finish_after_deaths();
        }
        self.node.abandon();
        Ok(())
    }
}

/// By which the Node names a volume that can be attached.
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// Upstream's kubelet, beside the control plane's programs.
fn upstreams_kubelet() -> Option<PathBuf> {
    cluster::programs().map(|folder| folder.join("kubelet")).filter(|kubelet| kubelet.is_file())
}

/// A node whose kubelet is that program.
fn another(lab: &Lab, builder: NodeBuilder, kubelet: &Path) -> Result<Node> {
    let folder = lab.folder().join(ANOTHER);
    std::fs::create_dir_all(&folder)?;
    // Under the name by which the lab knows a node's processes.
    std::os::unix::fs::symlink(kubelet, folder.join("kubelet"))?;
    let mut node = builder.programs(&folder).config("contentType", json!("application/json")).prepare()?;
    node.launch()?;
    Ok(node)
}
