//! A node that is being configured: its folders, its configuration file, its command line.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{FOLDER_FILE, HEALTHZ_PORT, NODES, Node, ROOT_DIR_FILE, run_dir};
use crate::wait::{SHORT, eventually};
use crate::{Lab, mounts};

/// A node that is being configured.
#[derive(Debug)]
pub struct NodeBuilder {
    lab: Lab,
    name: String,
    config: Value,
    arguments: Vec<String>,
    internal: Option<String>,
    programs: Option<PathBuf>,
    /// Everything of the node on disk; its root directory is below.
    folder: PathBuf,
    /// Where the root directory is mounted, if its path matters to somebody.
    root_dir: Option<PathBuf>,
    /// The root directory is named by a link.
    linked: bool,
    #[cfg(feature = "apiserver")]
    cluster: Option<crate::Cluster>,
}

impl NodeBuilder {
    pub(crate) fn new(lab: Lab, name: &str) -> Self {
        let folder = lab.folder().join(NODES).join(name);
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": false,
            "failSwapOn": false,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": lab.cgroup(),
            "containerRuntimeEndpoint": lab.containerd().endpoint(),
            // Standalone: without an API server nobody could be asked who may do what.
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            // A developer's full disk is no reason for this node to evict, or to remove the lab's images.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        });
        let builder = Self {
            folder,
            root_dir: None,
            linked: false,
            lab,
            name: name.to_owned(),
            config,
            arguments: Vec::new(),
            internal: None,
            programs: None,
            #[cfg(feature = "apiserver")]
            cluster: None,
        };
        builder.with_paths()
    }

    /// Puts everything of the node into a new folder of its own instead of the lab's.
    pub fn in_folder(mut self, folder: &Path) -> Self {
        folder.clone_into(&mut self.folder);
        self.with_paths()
    }

    /// Mounts the root directory at this path, for drivers in pods that name it (`/var/lib/kubelet`). What is there
    /// already is hidden as long as the lab lives.
    pub fn root_dir(mut self, path: &Path) -> Self {
        self.root_dir = Some(path.to_owned());
        self
    }

    /// Names the root directory by a link to it, as a machine has it that keeps `/var/lib/kubelet` on another disk.
    pub fn linked_root(mut self) -> Self {
        self.linked = true;
        self
    }

    fn with_paths(mut self) -> Self {
        self.config["staticPodPath"] = json!(self.folder.join("manifests"));
        self.config["podLogsDir"] = json!(self.folder.join("logs"));
        self
    }

    /// Sets a field of the KubeletConfiguration; `Value::Null` removes it.
    pub fn config(mut self, field: &str, value: Value) -> Self {
        self.config[field] = value;
        if let Some(object) = self.config.as_object_mut() {
            object.retain(|_, value| !value.is_null());
        }
        self
    }

    /// Makes the node a member of a cluster, with a client certificate of its own in a kubeconfig.
    ///
    /// # Errors
    /// The kubeconfig cannot be written.
    #[cfg(feature = "apiserver")]
    pub fn joins(self, cluster: &crate::Cluster) -> Result<Self> {
        let kubeconfig = cluster.kubeconfig_for_node(&self.name)?;
        let address = self.lab.netns().address();
        let mut builder = self
            .guarded_by(cluster)?
            .argument(&format!("--kubeconfig={}", kubeconfig.display()))
            .argument(&format!("--node-ip={address}"));
        builder.cluster = Some(cluster.clone());
        Ok(builder)
    }

    /// The node asks the cluster who may do what, as kubeadm has it.
    #[cfg(feature = "apiserver")]
    fn guarded_by(self, cluster: &crate::Cluster) -> Result<Self> {
        let authentication = json!({
            "x509": {"clientCAFile": cluster.client_ca_file()?},
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
        });
        Ok(self.config("authentication", authentication).config("authorization", json!({"mode": "Webhook"})))
    }

    /// As [`NodeBuilder::joins`], but the node has to ask for its certificate with a token first.
    ///
    /// # Errors
    /// The kubeconfig cannot be written.
    #[cfg(feature = "apiserver")]
    pub fn bootstraps_into(self, cluster: &crate::Cluster) -> Result<Self> {
        let bootstrap = cluster.bootstrap_kubeconfig(&self.name)?;
        let address = self.lab.netns().address();
        let kubeconfig = self.folder.join("kubeconfig");
        let mut builder = self
            .guarded_by(cluster)?
            .argument(&format!("--bootstrap-kubeconfig={}", bootstrap.display()))
            .argument(&format!("--kubeconfig={}", kubeconfig.display()))
            .argument(&format!("--node-ip={address}"));
        builder.cluster = Some(cluster.clone());
        Ok(builder)
    }

    /// Takes the node's programs from this folder, of which they may be replaced while it runs.
    pub fn programs(mut self, folder: &Path) -> Self {
        self.programs = Some(folder.to_owned());
        self
    }

    /// One more argument of the command line.
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// Sets what no operator sets: times and a made-up machine, as `bulkhead_config::Internal` has them. Upstream's kubelet does not
    /// look at it.
    pub fn internal(mut self, parameters: &Value) -> Self {
        self.internal = Some(parameters.to_string());
        self
    }

    /// Starts the node and waits until it is healthy.
    ///
    /// # Errors
    /// It ended, or was not healthy in time: its log's end is in the message.
    pub fn start(self) -> Result<Node> {
        let mut node = self.prepare()?;
        node.launch()?;
        node.wait_healthy()?;
        Ok(node)
    }

    /// Runs a node that is expected to refuse: its exit status and everything it wrote.
    ///
    /// # Errors
    /// It was still running after the limit.
    pub fn run_to_end(self) -> Result<(ExitStatus, String)> {
        let mut node = self.prepare()?;
        node.launch()?;
        let status = eventually("the kubelet refuses to start", SHORT, || {
            let status = node.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            status.context("it is running")
        })?;
        node.child = None;
        node.finished = true;
        let output = std::fs::read_to_string(node.log()).unwrap_or_default();
        Ok((status, output))
    }

    /// Everything but the start: folders and configuration are there, for somebody else to use first.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn prepare(self) -> Result<Node> {
        let (own, mounted_at) = (self.folder.join("root"), self.root_dir);
        let link = self.linked.then(|| self.folder.join("linked"));
        let root_dir = mounted_at.as_ref().or(link.as_ref()).unwrap_or(&own).clone();
        let node = Node {
            run_dir: run_dir(&root_dir),
            name: self.name,
            root_dir,
            folder: self.folder,
            arguments: self.arguments,
            internal: self.internal,
            programs: self.programs,
            healthz_port: port_of(&self.config),
            cgroup_root: self.config["cgroupRoot"].as_str().unwrap_or_default().to_owned(),
            lab: self.lab,
            child: None,
            outside: None,
            user_block: None,
            killed: Mutex::default(),
            finished: false,
            #[cfg(feature = "apiserver")]
            cluster: self.cluster,
        };
        let register = node.lab.folder().join(NODES).join(&node.name);
        for folder in [&node.manifests(), &own, &node.pod_logs(), &register] {
            std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        // For whoever takes the lab down, which may be another process than this one.
        std::fs::write(register.join(FOLDER_FILE), node.folder.as_os_str().as_encoded_bytes())?;
        let named = || std::fs::write(register.join(ROOT_DIR_FILE), node.root_dir.as_os_str().as_encoded_bytes());
        if let Some(path) = mounted_at {
            std::fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
            if in_use(&path) {
                bail!("{} is the root directory of a kubelet of this machine", path.display());
            }
            named()?;
            mounts::bind(&own, &path)?;
        } else if let Some(link) = link.filter(|link| !link.is_symlink()) {
            named()?;
            std::os::unix::fs::symlink(&own, &link).with_context(|| format!("linking {}", link.display()))?;
        }
        std::fs::write(node.config_file(), format!("{:#}", self.config)).context("writing the node's configuration")?;
        Ok(node)
    }
}

/// Whether a kubelet has pods there, or somebody has mounted something.
fn in_use(root_dir: &Path) -> bool {
    let has_pods = std::fs::read_dir(root_dir.join("pods")).is_ok_and(|mut pods| pods.next().is_some());
    has_pods || !mounts::below(root_dir).is_empty()
}

/// Two nodes of one lab share a network namespace: then one of them has a port of its own.
fn port_of(config: &Value) -> u16 {
    config["healthzPort"].as_u64().and_then(|port| u16::try_from(port).ok()).unwrap_or(HEALTHZ_PORT)
}
