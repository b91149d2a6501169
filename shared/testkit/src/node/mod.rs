//! A node under test: the `kubelet` command with nothing but upstream's flags, its folders, its processes, its pods.

mod builder;
mod outside;

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::Signal;
use parking_lot::Mutex;
#[cfg(feature = "apiserver")]
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::containerd::{STOP_LIMIT, in_namespace, tail};
use crate::wait::{LONG, SHORT, eventually, insist};
use crate::{Lab, Pod, build, image, loops, mounts, processes, wait};

use self::outside::DevicePluginsFolder;

pub use builder::NodeBuilder;

/// The launcher's healthz port, upstream's default: each node has a network namespace of its own.
pub const HEALTHZ_PORT: u16 = 10248;
/// The four daemons, in the order in which they depend on each other.
pub const DAEMONS: [&str; 4] = ["kubelet-volnetd", "kubelet-syncd", "kubelet-evictiond", "kubelet-statusd"];

/// A node: started, stopped and started again, and watched from outside.
#[derive(Debug)]
pub struct Node {
    lab: Lab,
    name: String,
    folder: PathBuf,
    root_dir: PathBuf,
    run_dir: PathBuf,
    cgroup_root: String,
    healthz_port: u16,
    arguments: Vec<String>,
    /// What the launcher is told in its environment.
    internal: Option<String>,
    /// Where its programs are, when they are not those of all nodes.
    programs: Option<PathBuf>,
    child: Option<Child>,
    /// Where it has run another kubelet than ours.
    outside: Option<DevicePluginsFolder>,
    /// First id of the block of users, as the socket folder's group shows it.
    user_block: Option<u32>,
    /// Daemons that were killed, until [`Node::wait_healthy`] has seen their successors serve.
    killed: Mutex<BTreeMap<String, i32>>,
    finished: bool,
    #[cfg(feature = "apiserver")]
    cluster: Option<crate::Cluster>,
}

impl Node {
    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// `staticPodPath`.
    pub fn manifests(&self) -> PathBuf {
        self.folder.join("manifests")
    }

    pub fn root_dir(&self) -> &Path {
        &self.root_dir
    }

    /// The daemons' sockets.
    pub fn run_dir(&self) -> &Path {
        &self.run_dir
    }

    /// `--cert-dir`.
    pub fn certificates(&self) -> PathBuf {
        self.folder.join("pki")
    }

    /// `podLogsDir`.
    pub fn pod_logs(&self) -> PathBuf {
        self.folder.join("logs")
    }

    /// What the five processes wrote to standard error.
    pub fn log(&self) -> PathBuf {
        self.folder.join("kubelet.log")
    }

    /// The file behind `--config`.
    pub fn config_file(&self) -> PathBuf {
        self.folder.join("kubelet.yaml")
    }

    pub fn cgroup_root(&self) -> &str {
        &self.cgroup_root
    }

    /// The file that claims this node's block of users while it runs.
    pub fn user_claim(&self) -> Option<PathBuf> {
        self.user_block.map(|base| PathBuf::from(format!("/run/kubelet.claims/uid-{base}")))
    }

    /// The folder with its programs.
    ///
    /// # Errors
    /// The programs are not built.
    pub fn programs(&self) -> Result<PathBuf> {
        self.programs.clone().map_or_else(build::bin_dir, Ok)
    }

    /// The command line as a person would type it, without the way into the network namespace.
    pub fn command_line(&self) -> Result<Vec<String>> {
        let mut all = vec![
            self.programs()?.join("kubelet").display().to_string(),
            format!("--config={}", self.config_file().display()),
            format!("--root-dir={}", self.root_dir.display()),
            format!("--hostname-override={}", self.name),
            // Upstream's folder does not follow the root directory; nodes of one machine would share a certificate.
            format!("--cert-dir={}", self.certificates().display()),
        ];
        all.extend(self.arguments.iter().cloned());
        Ok(all)
    }

    /// From its next start on it runs the programs of this folder; `None`: those of all nodes. So another kubelet takes a node
    /// over with all that is on it.
    pub fn set_programs(&mut self, folder: Option<&Path>) {
        self.programs = folder.map(Path::to_owned);
    }

    // === Starting and stopping ===

    /// Starts `kubelet` and does not wait.
    ///
    /// # Errors
    /// The command cannot be started.
    pub fn launch(&mut self) -> Result<()> {
        let line = self.command_line()?;
        if self.programs.is_some() {
            self.outside.get_or_insert_with(|| DevicePluginsFolder::before(&self.root_dir));
        }
        let log = File::options().create(true).append(true).open(self.log()).context("opening the node's log")?;
        let mut command = in_namespace(&self.lab.netns().path(), Path::new(&line[0]));
        command.args(&line[1..]).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        if let Some(parameters) = &self.internal {
            command.env("BULKHEAD_INTERNAL", parameters);
        }
        self.child = Some(command.spawn().context("starting the kubelet")?);
        Ok(())
    }

    /// Waits until healthz answers 200, all five processes run, and the successors of those that [`Node::kill_daemon`] has killed
    /// serve: of a daemon that is away for a moment healthz says nothing.
    ///
    /// # Errors
    /// The launcher ended, or the time is up: the end of the log is in the message.
    pub fn wait_healthy(&mut self) -> Result<()> {
        let mut seen = None;
        let healthy = eventually(&format!("node {} is healthy", self.name), LONG, || {
            // A launcher that has ended will not become healthy: no need to wait for the limit.
            seen = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if seen.is_some() {
                return Ok(());
            }
            // Each asking in vain is a line in the log: not too often.
            self.is_healthy()
                .and_then(|()| self.successors_serve())
                .inspect_err(|_| std::thread::sleep(std::time::Duration::from_millis(50)))
        });
        let problem = match (healthy, seen) {
            (Ok(()), None) => {
                self.killed.get_mut().clear();
                self.user_block = std::fs::metadata(&self.run_dir).map(|folder| folder.gid()).ok();
                return Ok(());
            }
            (_, Some(status)) => format!("the kubelet of node {} ended: {status}", self.name),
            (Err(error), None) => format!("{error:#}"),
        };
        if wait::interrupted() {
            bail!("{problem}");
        }
        bail!("{problem}\nthe node's log ends:\n{}", tail(&self.log(), 40))
    }

    /// One look at healthz and the process list.
    ///
    /// # Errors
    /// What is not as it should be.
    pub fn is_healthy(&self) -> Result<()> {
        let (status, body) = self.http_get(IpAddr::V4(Ipv4Addr::LOCALHOST), self.healthz_port, "/healthz")?;
        if status != 200 {
            bail!("healthz says {status}: {body}");
        }
        let pids = self.pids();
        for daemon in DAEMONS {
            if !pids.contains_key(daemon) {
                bail!("{daemon} does not run");
            }
        }
        Ok(())
    }

    /// Whether another process serves in the place of each that was killed.
    fn successors_serve(&self) -> Result<()> {
        let killed = self.killed.lock().clone();
        #[cfg(feature = "grpc")]
        for (name, pid) in &killed {
            let serves = self.agent()?.privileges(name)?.pid;
            ensure!(i64::from(serves) != i64::from(*pid), "{name} is still process {pid}, which was killed");
        }
        let pids = self.pids();
        for (name, pid) in &killed {
            ensure!(pids.get(name).is_some_and(|now| now != pid), "{name} was killed and does not run again");
        }
        Ok(())
    }

    /// SIGTERM to the launcher; all five must end by themselves. Containers stay.
    ///
    /// # Errors
    /// Something still runs after the limit.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        let Some(mut child) = self.child.take() else { bail!("node {} does not run", self.name) };
        processes::signal(child.id() as i32, Signal::SIGTERM);
        let ended = eventually("the kubelet ends on SIGTERM", STOP_LIMIT, || {
            child.try_wait()?.context("the launcher still runs")
        });
        if ended.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let status = ended?;
        self.wait_no_processes()?;
        Ok(status)
    }

    /// SIGKILL to the launcher alone. What that means for the daemons is for the caller to check.
    pub fn kill_launcher(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGKILL to the launcher and all daemons at once.
    pub fn kill_everything(&mut self) {
        for pid in self.pids().into_values() {
            processes::signal(pid, Signal::SIGKILL);
        }
        self.kill_launcher();
        kill_all_of(&self.root_dir);
    }

    /// SIGKILL to one daemon, by name. When this returns, it has ended.
    ///
    /// # Errors
    /// It does not run, or does not end.
    pub fn kill_daemon(&self, name: &str) -> Result<()> {
        let pids = self.pids();
        let pid = *pids.get(name).with_context(|| format!("{name} does not run; there are {pids:?}"))?;
        processes::signal(pid, Signal::SIGKILL);
        insist(&format!("{name} ends when it is killed"), SHORT, || {
            ensure!(!processes::is_alive(pid), "process {pid} is there");
            Ok(())
        })?;
        self.killed.lock().insert(name.to_owned(), pid);
        Ok(())
    }

    /// Waits until no process of the node is left.
    ///
    /// # Errors
    /// Those that still run.
    pub fn wait_no_processes(&self) -> Result<()> {
        eventually("all processes of the node end", STOP_LIMIT, || {
            let left = self.all_pids();
            if left.is_empty() { Ok(()) } else { bail!("still running: {left:?}") }
        })
    }

    /// Name and pid of the launcher (`kubelet`) and the daemons that run now.
    pub fn pids(&self) -> BTreeMap<String, i32> {
        self.all_pids().into_iter().collect()
    }

    /// As [`Node::pids`], but a daemon that wrongly runs twice is there twice.
    pub fn all_pids(&self) -> Vec<(String, i32)> {
        let mut found: Vec<(String, i32)> = daemons_of(&self.root_dir);
        if let Some(child) = &self.child {
            let pid = child.id() as i32;
            if processes::is_alive(pid) && !found.iter().any(|(_, other)| *other == pid) {
                found.push(("kubelet".to_owned(), pid));
            }
        }
        found.sort();
        found
    }

    /// All processes of the node agent, those that its processes have forked or started among them, each with the name of the
    /// program that it is of: what the node costs.
    pub fn family(&self) -> Vec<(String, i32)> {
        let all = processes::all();
        let mut family = self.all_pids();
        // Parents before children, as many rounds as there are generations.
        loop {
            let known = family.len();
            for (pid, arguments) in &all {
                let parent = processes::stat(*pid).map_or(0, |stat| stat.parent);
                let is_child =
                    family.iter().any(|(_, one)| *one == parent) && !family.iter().any(|(_, one)| one == pid);
                if let (true, Some(program)) = (is_child, arguments.first()) {
                    // "kubelet-volnetd: worker" is kubelet-volnetd's.
                    let name = Path::new(program.split(':').next().unwrap_or(program)).file_name();
                    family.push((name.unwrap_or_default().to_string_lossy().into_owned(), *pid));
                }
            }
            if family.len() == known {
                return family;
            }
        }
    }

    // === Pods ===

    /// Puts a manifest into the folder in one step, as a careful operator does.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, pod: &Pod) -> Result<()> {
        self.write_raw(&format!("{}.yaml", pod.name()), pod.to_json().as_bytes())
    }

    /// The same with any content.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write_raw(&self, file: &str, content: &[u8]) -> Result<()> {
        let draft = self.folder.join(format!("{file}.draft"));
        std::fs::write(&draft, content).with_context(|| format!("writing {}", draft.display()))?;
        std::fs::rename(&draft, self.manifests().join(file)).with_context(|| format!("moving {file} into place"))
    }

    /// Takes a pod's manifest away.
    ///
    /// # Errors
    /// There is none.
    pub fn remove(&self, pod: &str) -> Result<()> {
        let path = self.manifests().join(format!("{pod}.yaml"));
        std::fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))
    }

    /// Takes all manifests away.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn remove_all(&self) -> Result<()> {
        for entry in std::fs::read_dir(self.manifests())? {
            let path = entry?.path();
            if path.is_dir() { std::fs::remove_dir_all(path)? } else { std::fs::remove_file(path)? }
        }
        Ok(())
    }

    /// A static pod's name on this node.
    pub fn pod_name(&self, pod: &str) -> String {
        format!("{pod}-{}", self.name)
    }

    /// Log folders of a pod in namespace `default`, one for each uid that it has had.
    pub fn log_folders(&self, pod: &str) -> Vec<PathBuf> {
        let prefix = format!("default_{}_", self.pod_name(pod));
        let Ok(entries) = std::fs::read_dir(self.pod_logs()) else { return Vec::new() };
        entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
            .map(|entry| entry.path())
            .collect()
    }

    /// All log files of a container: path and content, oldest restart first.
    pub fn logs(&self, pod: &str, container: &str) -> Vec<(PathBuf, String)> {
        let mut found: Vec<(u64, PathBuf, String)> = Vec::new();
        for folder in self.log_folders(pod) {
            let Ok(entries) = std::fs::read_dir(folder.join(container)) else { continue };
            for entry in entries.flatten() {
                let index = entry.file_name().to_string_lossy().split('.').next().and_then(|n| n.parse().ok());
                let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
                found.push((index.unwrap_or(0), entry.path(), text));
            }
        }
        found.sort();
        found.into_iter().map(|(_, path, text)| (path, text)).collect()
    }

    /// Waits until a container's log holds `text`; gives the file's path.
    ///
    /// # Errors
    /// The log files as they are.
    pub fn wait_for_log(&self, pod: &str, container: &str, text: &str) -> Result<PathBuf> {
        eventually(&format!("the log of {pod}/{container} says {text:?}"), LONG, || {
            let logs = self.logs(pod, container);
            match logs.iter().find(|(_, content)| content.contains(text)) {
                Some((path, _)) => Ok(path.clone()),
                None => bail!("{logs:?}"),
            }
        })
    }

    /// A GET inside the node's network namespace.
    ///
    /// # Errors
    /// No answer.
    pub fn http_get(&self, address: IpAddr, port: u16, path: &str) -> Result<(u16, String)> {
        self.lab.netns().http_get(address, port, path)
    }

    /// What `kubelet-ctl` prints for this node.
    ///
    /// # Errors
    /// It ended with another code than 0.
    pub fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let output = self.ctl_command(arguments)?.output().context("starting kubelet-ctl")?;
        if !output.status.success() {
            bail!("kubelet-ctl {arguments:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// `kubelet-ctl`, told which node it is about.
    ///
    /// # Errors
    /// The programs are not built.
    pub fn ctl_command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(self.programs()?.join("kubelet-ctl"));
        command.args(arguments).arg("--root-dir").arg(&self.root_dir).stdin(Stdio::null());
        Ok(command)
    }

    /// The name under which the local image is known.
    pub fn image(&self) -> &'static str {
        image::BUSYBOX
    }

    /// The end of the story: no manifest, no pod, no process, nothing left behind.
    ///
    /// # Errors
    /// What is left, one line for each thing.
    pub fn finish(mut self) -> Result<()> {
        self.remove_pods()?;
        self.end()
    }

    /// The same after deaths in the middle of calls to the runtime, which containerd may answer by losing a shim
    /// ([`crate::containerd::Containerd::end_lost_shims`]): such a one is ended and named instead of being a failure.
    ///
    /// # Errors
    /// What is left, one line for each thing.
    pub fn finish_after_deaths(mut self) -> Result<()> {
        self.remove_pods()?;
        crate::leaks::wait_runtime_alone(&self, LONG)?;
        let containerd = self.lab.containerd();
        // Those that still end do so within moments.
        if eventually("all shims have ended", SHORT, || {
            anyhow::ensure!(containerd.shims().is_empty());
            Ok(())
        })
        .is_err()
        {
            containerd.end_lost_shims()?;
        }
        self.end()
    }

    fn remove_pods(&mut self) -> Result<()> {
        if self.child.is_none() {
            self.launch()?;
        }
        self.wait_healthy()?;
        self.remove_all()?;
        #[cfg(feature = "apiserver")]
        self.delete_cluster_pods()?;
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        crate::leaks::wait_no_pods(&self, LONG)?;
        self.stop()?;
        crate::leaks::check(&self)?;
        self.finished = true;
        Ok(())
    }

    /// Deletes the pods that came from the cluster, as their owner would.
    #[cfg(feature = "apiserver")]
    fn delete_cluster_pods(&self) -> Result<()> {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        for pod in cluster.list("pods", None)? {
            let metadata = &pod["metadata"];
            let here = pod["spec"]["nodeName"] == self.name.as_str();
            if !here || bulkhead_apiserver::pods::is_mirror(&pod) || metadata["deletionTimestamp"].is_string() {
                continue;
            }
            let text = |field: &str| metadata[field].as_str().unwrap_or_default();
            cluster.delete("pods", text("namespace"), text("name"), Some(1))?;
        }
        Ok(())
    }

    /// The log folder of a pod from the cluster, known by its object.
    #[cfg(feature = "apiserver")]
    pub fn log_folder_of(&self, pod: &Value) -> PathBuf {
        let text = |field: &str| pod["metadata"][field].as_str().unwrap_or_default();
        self.pod_logs().join(format!("{}_{}_{}", text("namespace"), text("name"), text("uid")))
    }

    /// Waits until the newest log of a container of a pod from the cluster holds `text`; gives the whole log.
    ///
    /// # Errors
    /// The log as it is.
    #[cfg(feature = "apiserver")]
    pub fn wait_for_log_of(&self, pod: &Value, container: &str, text: &str) -> Result<String> {
        let folder = self.log_folder_of(pod).join(container);
        eventually(&format!("the log in {} says {text:?}", folder.display()), LONG, || {
            let mut files: Vec<PathBuf> = std::fs::read_dir(&folder)?
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| path.extension().is_some())
                .collect();
            files.sort();
            let log = files.last().map(std::fs::read_to_string).transpose()?.unwrap_or_default();
            if log.contains(text) { Ok(log) } else { bail!("{log:?}") }
        })
    }

    /// The story ends well although the node still runs (its owner takes it down roughly).
    pub fn abandon(mut self) {
        self.finished = true;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !self.finished && !wait::interrupted() {
            eprintln!("=== node {}: the kubelet's log ends ===\n{}", self.name, tail(&self.log(), 120));
            eprintln!("=== containerd's complaints ===\n{}", self.lab.containerd().complaints(20));
        }
        self.kill_everything();
    }
}

// === Traces of a node, known by its root directory alone ===

/// `/run/kubelet` for upstream's default root directory, else a folder named after its hash.
pub fn run_dir(root_dir: &Path) -> PathBuf {
    if root_dir == Path::new("/var/lib/kubelet") {
        return PathBuf::from("/run/kubelet");
    }
    let digest = Sha256::digest(root_dir.as_os_str().as_encoded_bytes());
    PathBuf::from(format!("/run/kubelet-{}", &image::hex(&digest)[..8]))
}

/// Folder of a lab with an entry for each node that was ever started in it.
const NODES: &str = "nodes";
/// In such an entry: where the node's own folder is.
const FOLDER_FILE: &str = "folder";
/// In such an entry: the root directory, where it is mounted elsewhere than below that folder.
const ROOT_DIR_FILE: &str = "root-dir";

/// Where a node keeps what it has, for whoever takes the lab down.
#[derive(Debug)]
pub(crate) struct Place {
    folder: PathBuf,
    pub(crate) root_dir: PathBuf,
}

/// Places of all nodes that were ever started in a lab.
pub(crate) fn places(lab_folder: &Path) -> Vec<Place> {
    let Ok(entries) = std::fs::read_dir(lab_folder.join(NODES)) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let named = |file| std::fs::read_to_string(entry.path().join(file)).ok().map(PathBuf::from);
            let folder = named(FOLDER_FILE)?;
            Some(Place { root_dir: named(ROOT_DIR_FILE).unwrap_or_else(|| folder.join("root")), folder })
        })
        .collect()
}

/// Launcher and daemons of a root directory: program name and pid.
fn daemons_of(root_dir: &Path) -> Vec<(String, i32)> {
    let (root, run) = (root_dir.to_string_lossy().into_owned(), run_dir(root_dir).to_string_lossy().into_owned());
    processes::all()
        .into_iter()
        .filter_map(|(pid, arguments)| {
            let program = Path::new(arguments.first()?).file_name()?.to_string_lossy().into_owned();
            if program != "kubelet" && !DAEMONS.contains(&program.as_str()) {
                return None;
            }
            let about_us = arguments[1..].iter().any(|argument| {
                let value = argument.split_once('=').map_or(argument.as_str(), |(_, value)| value);
                value == root || value == run
            });
            (about_us && processes::is_alive(pid)).then_some((program, pid))
        })
        .collect()
}

/// SIGKILL to every process of the node, launcher first, until none is left.
pub(crate) fn kill_all_of(root_dir: &Path) {
    let _ = insist("the node's processes die", SHORT, || {
        let mut left = daemons_of(root_dir);
        if left.is_empty() {
            return Ok(());
        }
        left.sort();
        for (_, pid) in &left {
            processes::signal(*pid, Signal::SIGKILL);
        }
        bail!("{left:?}")
    });
}

/// Removes a node's folder and what the node keeps outside of it.
pub(crate) fn remove_traces_of(place: &Place) {
    let (run, folder) = (run_dir(&place.root_dir), &place.folder);
    mounts::detach_below(&run);
    let _ = std::fs::remove_dir_all(run);
    loops::detach_below(&place.root_dir);
    mounts::detach_below(&place.root_dir);
    // First: without the mount nobody knows any more whose file is behind a loop device.
    loops::detach_below(folder);
    mounts::detach_below(folder);
    let _ = std::fs::remove_dir_all(folder);
    // Links that the node made for its containers' logs point into its own folder.
    let Ok(entries) = std::fs::read_dir("/var/log/containers") else { return };
    for entry in entries.flatten() {
        if std::fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(folder)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}
