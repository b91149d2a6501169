//! The DRA driver of upstream's end-to-end specs, made with upstream's own helper for drivers (`k8s.io/dynamic-resource-allocation`,
//! kubeletplugin). It runs inside `e2e.test` for as long as a spec does, and listens on a node through a pod of the hostpath driver's
//! image, which brings it the connections.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;

use crate::cluster::{controllers_are_there, programs};
use crate::csi::process::Process;
use crate::wait::{LONG, eventually};
use crate::{Cluster, Node, image, machine};

/// The spec: once its driver is registered it makes a pod with a claim, and waits minutes for it to run.
const SPEC: &str = r"\[DRA\] kubelet .*must call NodePrepareResources even if not used by any container";
const SPECS: &str = "e2e.test";
const HOSTPATH: &str = "hostpathplugin";
/// Where the driver writes a file for each device, whatever the node: a folder of the machine's.
const CDI: &str = "/var/run/cdi";

/// A driver that runs; it ends when this is dropped.
#[derive(Debug)]
pub struct UpstreamDriver {
    process: Process,
    name: String,
    root: PathBuf,
}

impl UpstreamDriver {
    /// Whether the programs are there that it takes.
    pub fn is_there() -> bool {
        let has = |program| programs().is_some_and(|folder| folder.join(program).is_file());
        controllers_are_there() && has(SPECS) && has(HOSTPATH)
    }

    /// Starts it on the one node of a cluster that has its controllers. From then on the node takes no more pods, so that the spec and
    /// its driver stay.
    ///
    /// # Errors
    /// It did not come to listen: the end of what the specs said.
    pub fn start(node: &Node, cluster: &Cluster) -> Result<Self> {
        let folder = programs().context("there are no programs of upstream's")?;
        let specs = folder.join(SPECS);
        import_proxy(node, &specs, &folder.join(HOSTPATH))?;
        let root = node.root_dir().to_owned();
        let arguments = vec![
            format!("--ginkgo.focus={SPEC}"),
            "--ginkgo.no-color".to_owned(),
            "--provider=local".to_owned(),
            format!("--kubeconfig={}", cluster.admin_kubeconfig()?.display()),
            format!("--kubelet-root-dir={}", root.display()),
            "--num-nodes=1".to_owned(),
            "--allowed-not-ready-nodes=0".to_owned(),
            "--disable-log-dump=true".to_owned(),
        ];
        let process = Process::start(&specs, arguments, node.lab().folder().join("e2e.log"))?;
        let mut driver = Self { process, name: String::new(), root };
        let namespace = driver.eventually("the driver's pod has a node", || {
            let pods = cluster.list("pods", None)?;
            let own = |pod: &&serde_json::Value| {
                pod["metadata"]["labels"]["app.kubernetes.io/part-of"] == "dra-test-driver"
                    && pod["spec"]["nodeName"].is_string()
            };
            let pod = pods.iter().find(own).context("there is none")?;
            Ok(pod["metadata"]["namespace"].as_str().context("a pod without a namespace")?.to_owned())
        })?;
        cluster.patch("nodes", "", node.name(), &json!({"spec": {"unschedulable": true}}))?;
        driver.name = format!("{namespace}.k8s.io");
        let sockets = [driver.endpoint(), driver.registration()];
        driver.eventually("the driver listens", || {
            let lacking = sockets.iter().find(|socket| !socket.exists());
            lacking.map_or(Ok(()), |socket| bail!("there is no {}", socket.display()))
        })?;
        Ok(driver)
    }

    /// As it registers.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The socket that claims are prepared by.
    pub fn endpoint(&self) -> PathBuf {
        self.root.join("plugins").join(&self.name).join("dra.sock")
    }

    /// The socket that it registers by.
    pub fn registration(&self) -> PathBuf {
        self.root.join("plugins_registry").join(format!("{}-reg.sock", self.name))
    }

    fn eventually<T>(&mut self, what: &str, look: impl Fn() -> Result<T>) -> Result<T> {
        let process = &mut self.process;
        // What has ended is not waited for.
        let found = eventually(what, LONG, || match process.alive() {
            Ok(()) => look().map(Ok),
            Err(ended) => Ok(Err(ended)),
        });
        let log = self.process.log();
        found
            .and_then(|found| found)
            .with_context(|| format!("the specs' log ends:\n{}", crate::containerd::tail(log, 40)))
    }
}

impl Drop for UpstreamDriver {
    fn drop(&mut self) {
        self.process.kill();
        if self.name.is_empty() {
            return;
        }
        for entry in std::fs::read_dir(CDI).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&self.name) {
                // Somebody else is welcome to have removed it.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// The image of the pod that brings connections, by the name that the specs have for it.
fn import_proxy(node: &Node, specs: &Path, hostpath: &Path) -> Result<()> {
    let all = machine::run(&specs.to_string_lossy(), &["--list-images"])?;
    let wanted: Vec<&str> = all.split_whitespace().filter(|name| name.contains("/hostpathplugin:")).collect();
    ensure!(!wanted.is_empty(), "the specs name no image of the hostpath driver");
    wanted.into_iter().try_for_each(|name| image::import_with_program(node.lab(), name, hostpath))
}
