//! The hostpath driver of kubernetes-csi with the sidecars that every driver comes with, as processes.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::objects;
use super::process::Process;
use crate::cluster::Cluster;
use crate::wait::{SHORT, eventually};
use crate::{Node, cluster, loops, mounts};

/// The driver's name.
pub const NAME: &str = "hostpath.csi.k8s.io";
/// The class of its volumes that [`Hostpath::start`] creates.
pub const CLASS: &str = "hp";
/// The key of its topology.
pub const TOPOLOGY: &str = "topology.hostpath.csi/node";

const PLUGIN: &str = "hostpathplugin";
const REGISTRAR: &str = "csi-node-driver-registrar";
/// What talks to the API server, each by the same two arguments.
const SIDECARS: [(&str, &[&str]); 3] = [
    (
        "csi-provisioner",
        &["--feature-gates=Topology=true", "--kube-api-qps=100", "--kube-api-burst=100", "--leader-election=false"],
    ),
    ("csi-attacher", &["--kube-api-qps=100", "--kube-api-burst=100", "--leader-election=false"]),
    ("csi-resizer", &["--kube-api-qps=100", "--kube-api-burst=100", "--leader-election=false"]),
];

/// A running driver; what it has started ends with it.
#[derive(Debug)]
pub struct Hostpath {
    // Order of fields is order of drop: who asks the driver goes before it.
    sidecars: Vec<Process>,
    registrar: Option<Process>,
    plugin: Process,
    folder: PathBuf,
    root: PathBuf,
}

/// A call that the driver has logged.
#[derive(Debug, Clone, PartialEq)]
pub struct Logged {
    /// `NodeStageVolume`.
    pub method: String,
    pub request: Value,
    pub response: Value,
    /// Empty: none.
    pub error: String,
}

impl Hostpath {
    /// Whether its programs are where `$KUBEBUILDER_ASSETS` says.
    pub fn is_there() -> bool {
        let all = [PLUGIN, REGISTRAR].into_iter().chain(SIDECARS.map(|(name, _)| name));
        cluster::programs().is_some_and(|folder| all.into_iter().all(|name| folder.join(name).is_file()))
    }

    /// Starts it on a node, with sidecars that work for the cluster, and creates its CSIDriver and the class [`CLASS`].
    ///
    /// # Errors
    /// A program is missing or has ended, an object was refused.
    pub fn start(node: &Node, cluster: &Cluster) -> Result<Self> {
        let programs = cluster::programs().context("KUBEBUILDER_ASSETS names no folder of programs")?;
        let folder = node.lab().folder().join("csi").join(PLUGIN);
        let (state, logs) = (folder.join("state"), folder.join("logs"));
        for folder in [&state, &logs] {
            std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        cluster.create(&objects::csi_driver(
            NAME,
            &serde_json::json!({"attachRequired": true, "podInfoOnMount": true,
                "volumeLifecycleModes": ["Persistent", "Ephemeral"], "fsGroupPolicy": "File"}),
        ))?;
        cluster.create(&objects::storage_class(CLASS, NAME, &Value::Null))?;
        let root = node.root_dir().to_owned();
        let socket = root.join("plugins/csi-hostpath/csi.sock");
        for folder in [socket.parent().context("no folder")?, &root.join("plugins_registry")] {
            std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        let plugin = Process::start(
            &programs.join(PLUGIN),
            vec![
                format!("--drivername={NAME}"),
                format!("--endpoint=unix://{}", socket.display()),
                format!("--nodeid={}", node.name()),
                format!("--statedir={}", state.display()),
                "--enable-attach".to_owned(),
                // Calls are logged from this verbosity on.
                "--v=5".to_owned(),
            ],
            logs.join(PLUGIN),
        )?;
        let mut all =
            Self { sidecars: Vec::new(), registrar: None, plugin, folder: folder.clone(), root: root.clone() };
        eventually("the hostpath driver serves", SHORT, || {
            let answer = all.plugin.alive().map(|()| std::os::unix::net::UnixStream::connect(&socket));
            match answer {
                Err(ended) => Ok(Err(ended)),
                Ok(connection) => connection.map(|_| Ok(())).context("no connection"),
            }
        })??;
        all.registrar = Some(Process::start(
            &programs.join(REGISTRAR),
            vec![
                format!("--csi-address={}", socket.display()),
                format!("--kubelet-registration-path={}", socket.display()),
                format!("--plugin-registration-path={}", root.join("plugins_registry").display()),
            ],
            logs.join(REGISTRAR),
        )?);
        let kubeconfig = cluster.admin_kubeconfig()?;
        for (name, flags) in SIDECARS {
            let mut arguments =
                vec![format!("--csi-address={}", socket.display()), format!("--kubeconfig={}", kubeconfig.display())];
            arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
            all.sidecars.push(Process::start(&programs.join(name), arguments, logs.join(name))?);
        }
        Ok(all)
    }

    /// # Errors
    /// A program has ended: the end of its log.
    pub fn alive(&mut self) -> Result<()> {
        self.plugin.alive()?;
        self.registrar.iter_mut().chain(&mut self.sidecars).try_for_each(Process::alive)
    }

    /// The end of each program's log.
    pub fn logs(&self) -> String {
        let all = std::iter::once(&self.plugin).chain(&self.registrar).chain(&self.sidecars);
        let each =
            |one: &Process| format!("=== {} ===\n{}\n", one.log().display(), crate::containerd::tail(one.log(), 15));
        all.map(each).collect()
    }

    /// Where its volumes are.
    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// All calls that the driver was asked, oldest first.
    ///
    /// # Errors
    /// Its log cannot be read.
    pub fn calls(&self) -> Result<Vec<Logged>> {
        let text = std::fs::read_to_string(self.plugin.log()).context("reading the driver's log")?;
        let calls: Vec<Logged> = text.lines().filter_map(logged).collect();
        ensure!(!calls.is_empty() || !text.contains("GRPC"), "its log has another form: {text}");
        Ok(calls)
    }

    /// SIGKILL to the driver alone, and a new one.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn restart_plugin(&mut self) -> Result<()> {
        self.plugin.kill();
        let _ = std::fs::remove_file(self.root.join("plugins/csi-hostpath/csi.sock"));
        self.plugin.again()
    }
}

/// `... gRPCCall: {"Method":...,"Request":...,"Response":...,"Error":"","FullError":null}`.
fn logged(line: &str) -> Option<Logged> {
    let (_, json) = line.split_once("gRPCCall: ")?;
    let all: Value = serde_json::from_str(json).ok()?;
    Some(Logged {
        method: all["Method"].as_str()?.rsplit('/').next()?.to_owned(),
        request: as_recorded(all["Request"].clone()),
        response: all["Response"].clone(),
        error: all["Error"].as_str().unwrap_or_default().to_owned(),
    })
}

/// A request in the form of recordings: the log has the fields as Go names them, and modes as numbers.
fn as_recorded(mut request: Value) -> Value {
    const MODES: [&str; 8] = [
        "UNKNOWN",
        "SINGLE_NODE_WRITER",
        "SINGLE_NODE_READER_ONLY",
        "MULTI_NODE_READER_ONLY",
        "MULTI_NODE_SINGLE_WRITER",
        "MULTI_NODE_MULTI_WRITER",
        "SINGLE_NODE_SINGLE_WRITER",
        "SINGLE_NODE_MULTI_WRITER",
    ];
    let Some(capability) = request.get_mut("volume_capability").and_then(Value::as_object_mut) else { return request };
    for (kind, value) in capability.remove("AccessType").iter().filter_map(Value::as_object).flatten() {
        capability.insert(kind.to_lowercase(), value.clone());
    }
    let mode = capability.get("access_mode").and_then(|mode| mode["mode"].as_u64()).unwrap_or_default();
    if let Some(name) = usize::try_from(mode).ok().and_then(|mode| MODES.get(mode)) {
        capability.insert("access_mode".to_owned(), serde_json::json!({"mode": name}));
    }
    request
}

impl Drop for Hostpath {
    fn drop(&mut self) {
        self.sidecars.clear();
        if let Some(registrar) = &mut self.registrar {
            registrar.stop();
        }
        self.plugin.stop();
        release(&self.folder);
    }
}

fn release(folder: &Path) {
    mounts::detach_below(folder);
    loops::detach_below(folder);
}
