//! The runtime as an independent witness: what a test believes about pods comes from here, not from the node under test.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead_cri::v1::runtime_service_client::RuntimeServiceClient;
use bulkhead_cri::v1::{
    ContainerState, ContainerStatusRequest, CreateContainerRequest, ExecRequest, ExecSyncRequest,
    LinuxPodSandboxConfig, ListContainersRequest, ListPodSandboxRequest, PodSandboxConfig, PodSandboxMetadata,
    PodSandboxState, PodSandboxStatusRequest, RemovePodSandboxRequest, ReopenContainerLogRequest, RunPodSandboxRequest,
    StartContainerRequest, StopContainerRequest, StopPodSandboxRequest,
};
use tokio::runtime::Runtime;
use tonic::transport::Channel;

use crate::wait::{LONG, eventually};
use crate::{Lab, Node, processes};

/// Largest answer of a runtime, as upstream's client allows it.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// For calls that only read.
const READ_DEADLINE: Duration = Duration::from_secs(20);

/// A pod sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    pub id: String,
    pub namespace: String,
    pub pod: String,
    pub uid: String,
    pub attempt: u32,
    pub ready: bool,
    pub created_at: i64,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
}

/// A container, with what only its status tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub id: String,
    pub sandbox: String,
    pub pod: String,
    pub uid: String,
    pub name: String,
    pub attempt: u32,
    pub running: bool,
    pub exited: bool,
    pub exit_code: i32,
    pub reason: String,
    /// Nanoseconds since 1970.
    pub started_at: i64,
    pub log_path: String,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// Container path to host path.
    pub mounts: Vec<(String, String)>,
    /// Container paths of those whose files the runtime was asked to label.
    pub relabelled: Vec<String>,
}

impl Container {
    /// What a restart of the agent must not change.
    pub fn identity(&self) -> (String, i64) {
        (self.id.clone(), self.started_at)
    }
}

/// A blocking client of a runtime.
#[derive(Debug)]
pub struct Cri {
    runtime: Runtime,
    channel: Channel,
}

impl Cri {
    /// A client for the runtime behind `socket`; connects when it is first used.
    ///
    /// # Errors
    /// No tokio runtime can be made.
    pub fn new(socket: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let channel = runtime.block_on(async { bulkhead_ipc::client::channel(socket) });
        Ok(Self { runtime, channel })
    }

    /// Runs an async action on this client's runtime.
    pub fn block_on<T>(&self, action: impl Future<Output = T>) -> T {
        self.runtime.block_on(action)
    }

    /// The connection, for other services on the same socket.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    fn client(&self) -> RuntimeServiceClient<Channel> {
        RuntimeServiceClient::new(self.channel.clone()).max_decoding_message_size(MAX_ANSWER_BYTES)
    }

    /// All sandboxes, the oldest first.
    ///
    /// # Errors
    /// The runtime did not answer.
    pub fn sandboxes(&self) -> Result<Vec<Sandbox>> {
        let request = timed(ListPodSandboxRequest::default());
        let answer = self.block_on(self.client().list_pod_sandbox(request)).context("listing sandboxes")?;
        let mut found: Vec<Sandbox> = answer
            .into_inner()
            .items
            .into_iter()
            .map(|item| {
                let ready = item.state == PodSandboxState::SandboxReady as i32;
                let metadata = item.metadata.unwrap_or_default();
                Sandbox {
                    id: item.id,
                    namespace: metadata.namespace,
                    pod: metadata.name,
                    uid: metadata.uid,
                    attempt: metadata.attempt,
                    ready,
                    created_at: item.created_at,
                    labels: item.labels,
                    annotations: item.annotations,
                }
            })
            .collect();
        found.sort_by_key(|sandbox| sandbox.created_at);
        Ok(found)
    }

    /// All containers with their status, the oldest first. One that goes meanwhile is left out.
    ///
    /// # Errors
    /// The runtime did not answer.
    pub fn containers(&self) -> Result<Vec<Container>> {
        self.block_on(async {
            let mut client = self.client();
            let list = client.list_containers(timed(ListContainersRequest::default())).await;
            let mut found = Vec::new();
            for item in list.context("listing containers")?.into_inner().containers {
                let request = ContainerStatusRequest { container_id: item.id.clone(), verbose: false };
                let status = match client.container_status(timed(request)).await {
                    Ok(answer) => answer.into_inner().status.unwrap_or_default(),
                    Err(status) if status.code() == tonic::Code::NotFound => continue,
                    Err(status) => return Err(status).context("reading a container's status"),
                };
                let label = |name: &str| item.labels.get(name).cloned().unwrap_or_default();
                let metadata = item.metadata.clone().unwrap_or_default();
                found.push((
                    item.created_at,
                    Container {
                        pod: label("io.kubernetes.pod.name"),
                        uid: label("io.kubernetes.pod.uid"),
                        name: metadata.name,
                        attempt: metadata.attempt,
                        running: status.state == ContainerState::ContainerRunning as i32,
                        exited: status.state == ContainerState::ContainerExited as i32,
                        exit_code: status.exit_code,
                        reason: status.reason,
                        started_at: status.started_at,
                        log_path: status.log_path,
                        relabelled: status
                            .mounts
                            .iter()
                            .filter(|mount| mount.selinux_relabel)
                            .map(|mount| mount.container_path.clone())
                            .collect(),
                        mounts: status
                            .mounts
                            .into_iter()
                            .map(|mount| (mount.container_path, mount.host_path))
                            .collect(),
                        id: item.id,
                        sandbox: item.pod_sandbox_id,
                        labels: item.labels,
                        annotations: item.annotations,
                    },
                ));
            }
            found.sort_by_key(|(created_at, _)| *created_at);
            Ok(found.into_iter().map(|(_, container)| container).collect())
        })
    }

    /// The first process of a container, as the machine numbers it.
    ///
    /// # Errors
    /// The container is gone, or the runtime does not say.
    pub fn pid(&self, container: &str) -> Result<i32> {
        let request = ContainerStatusRequest { container_id: container.to_owned(), verbose: true };
        let answer = self.block_on(self.client().container_status(timed(request)));
        let info = answer.with_context(|| format!("reading the status of container {container}"))?.into_inner().info;
        let info: serde_json::Value = serde_json::from_str(info.get("info").map_or("{}", String::as_str))?;
        let pid = info["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0);
        pid.with_context(|| format!("the runtime names no process of container {container}"))
    }

    /// The pod's address.
    ///
    /// # Errors
    /// The sandbox is gone or has none.
    pub fn address(&self, sandbox: &str) -> Result<std::net::IpAddr> {
        let request = PodSandboxStatusRequest { pod_sandbox_id: sandbox.to_owned(), verbose: false };
        let answer = self.block_on(self.client().pod_sandbox_status(timed(request)));
        let status = answer.with_context(|| format!("reading the status of sandbox {sandbox}"))?.into_inner().status;
        let ip = status.and_then(|status| status.network).map(|network| network.ip).unwrap_or_default();
        ip.parse().with_context(|| format!("sandbox {sandbox} has no address"))
    }

    /// Runs a command in a container: exit code and standard output.
    ///
    /// # Errors
    /// The container is gone or the command cannot be run.
    pub fn exec(&self, container: &str, command: &[&str]) -> Result<(i32, String)> {
        let request = ExecSyncRequest {
            container_id: container.to_owned(),
            cmd: command.iter().map(|part| (*part).to_owned()).collect(),
            timeout: 10,
        };
        let answer = self.block_on(self.client().exec_sync(timed(request)));
        let answer = answer.with_context(|| format!("running {command:?} in container {container}"))?.into_inner();
        let mut output = String::from_utf8_lossy(&answer.stdout).into_owned();
        output.push_str(&String::from_utf8_lossy(&answer.stderr));
        Ok((answer.exit_code, output))
    }

    /// The one-time URL at which a command can be talked to; its output is wanted.
    ///
    /// # Errors
    /// The container is gone.
    pub fn exec_url(&self, container: &str, command: &[&str]) -> Result<String> {
        let request = ExecRequest {
            container_id: container.to_owned(),
            cmd: command.iter().map(|part| (*part).to_owned()).collect(),
            stdout: true,
            ..ExecRequest::default()
        };
        let answer = self.block_on(self.client().exec(timed(request)));
        Ok(answer.with_context(|| format!("asking for {command:?} in container {container}"))?.into_inner().url)
    }

    /// Has the runtime write a container's log to a new file where the old one was.
    ///
    /// # Errors
    /// The runtime refuses.
    pub fn reopen_log(&self, container: &str) -> Result<()> {
        let request = ReopenContainerLogRequest { container_id: container.to_owned() };
        self.block_on(self.client().reopen_container_log(timed(request))).context("reopening a log")?;
        Ok(())
    }

    /// Stops a container behind the node's back.
    ///
    /// # Errors
    /// The runtime refuses.
    pub fn stop_container(&self, container: &str) -> Result<()> {
        let request = StopContainerRequest { container_id: container.to_owned(), timeout: 0 };
        self.block_on(self.client().stop_container(timed(request))).context("stopping a container")?;
        Ok(())
    }
}

/// A sandbox as some kubelet would have made it, without containers.
#[derive(Debug, Clone)]
pub struct StraySandbox<'a> {
    /// The pod's name, with the node's suffix.
    pub pod: &'a str,
    pub uid: &'a str,
    /// `podLogsDir` of whoever made it.
    pub pod_logs: &'a Path,
    /// Cgroup above its pods.
    pub pods_cgroup: &'a str,
}

impl Cri {
    /// Makes a sandbox behind every node's back; answers its id.
    ///
    /// # Errors
    /// The runtime refuses.
    pub fn run_sandbox(&self, stray: &StraySandbox<'_>) -> Result<String> {
        let labels = [
            ("io.kubernetes.pod.name", stray.pod),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.pod.uid", stray.uid),
        ];
        let log_directory = stray.pod_logs.join(format!("default_{}_{}", stray.pod, stray.uid));
        std::fs::create_dir_all(&log_directory)?;
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: stray.pod.to_owned(),
                uid: stray.uid.to_owned(),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            hostname: stray.pod.to_owned(),
            log_directory: log_directory.to_string_lossy().into_owned(),
            labels: labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            annotations: [("kubernetes.io/config.source".to_owned(), "file".to_owned())].into(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: format!("{}/besteffort/pod{}", stray.pods_cgroup, stray.uid),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = RunPodSandboxRequest { config: Some(config), ..Default::default() };
        let answer = self.block_on(self.client().run_pod_sandbox(timed(request))).context("making a sandbox")?;
        Ok(answer.into_inner().pod_sandbox_id)
    }

    /// Makes a sandbox with a whole request, encoded; answers its id.
    ///
    /// # Errors
    /// It is no such request, or the runtime refuses.
    pub fn replay_sandbox(&self, request: &[u8]) -> Result<String> {
        let request: RunPodSandboxRequest = prost::Message::decode(request)?;
        let answer = self.block_on(self.client().run_pod_sandbox(timed(request))).context("making a sandbox")?;
        Ok(answer.into_inner().pod_sandbox_id)
    }

    /// Makes and starts a container with a whole request, encoded; answers its id.
    ///
    /// # Errors
    /// It is no such request, or the runtime refuses.
    pub fn replay_container(&self, request: &[u8]) -> Result<String> {
        let request: CreateContainerRequest = prost::Message::decode(request)?;
        let made = self.block_on(self.client().create_container(timed(request))).context("making a container")?;
        let container_id = made.into_inner().container_id;
        let start = StartContainerRequest { container_id: container_id.clone() };
        self.block_on(self.client().start_container(timed(start))).context("starting a container")?;
        Ok(container_id)
    }

    /// Stops a sandbox behind every node's back.
    ///
    /// # Errors
    /// The runtime refuses.
    pub fn stop_sandbox(&self, sandbox: &str) -> Result<()> {
        let request = StopPodSandboxRequest { pod_sandbox_id: sandbox.to_owned() };
        self.block_on(self.client().stop_pod_sandbox(timed(request))).context("stopping a sandbox")?;
        Ok(())
    }

    /// Removes a sandbox behind every node's back.
    ///
    /// # Errors
    /// The runtime refuses.
    pub fn remove_sandbox(&self, sandbox: &str) -> Result<()> {
        let request = RemovePodSandboxRequest { pod_sandbox_id: sandbox.to_owned() };
        self.block_on(self.client().remove_pod_sandbox(timed(request))).context("removing a sandbox")?;
        Ok(())
    }
}

/// A request with a deadline.
pub fn timed<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(READ_DEADLINE);
    request
}

impl Lab {
    /// A new client of this lab's containerd.
    ///
    /// # Errors
    /// No tokio runtime can be made.
    pub fn cri(&self) -> Result<Cri> {
        Cri::new(&self.containerd().socket())
    }
}

impl Node {
    /// A new client of the node's containerd.
    ///
    /// # Errors
    /// No tokio runtime can be made.
    pub fn cri(&self) -> Result<Cri> {
        self.lab().cri()
    }

    /// Waits until the newest sandbox of a static pod is ready and `containers` of its containers run.
    ///
    /// # Errors
    /// What the runtime has instead.
    pub fn wait_running(&self, pod: &str, containers: usize) -> Result<Running> {
        let cri = self.cri()?;
        let name = self.pod_name(pod);
        eventually(&format!("pod {name} runs"), LONG, || {
            let Some(sandbox) = cri.sandboxes()?.into_iter().rfind(|sandbox| sandbox.pod == name && sandbox.ready)
            else {
                bail!("it has no ready sandbox");
            };
            let all = cri.containers()?;
            let mine: Vec<Container> = all.iter().filter(|one| one.sandbox == sandbox.id).cloned().collect();
            let running: Vec<Container> = mine.iter().filter(|one| one.running).cloned().collect();
            if running.len() != containers {
                bail!("{} of {containers} containers run; all: {mine:?}", running.len());
            }
            Ok(Running { sandbox, containers: running })
        })
    }

    /// Waits until the runtime has no container and no sandbox of a static pod.
    ///
    /// # Errors
    /// What it still has.
    pub fn wait_gone(&self, pod: &str) -> Result<()> {
        let cri = self.cri()?;
        let name = self.pod_name(pod);
        eventually(&format!("pod {name} is gone"), LONG, || {
            let sandboxes: Vec<_> = cri.sandboxes()?.into_iter().filter(|sandbox| sandbox.pod == name).collect();
            let containers: Vec<_> = cri.containers()?.into_iter().filter(|one| one.pod == name).collect();
            if sandboxes.is_empty() && containers.is_empty() {
                return Ok(());
            }
            bail!("{sandboxes:?} {containers:?}")
        })
    }

    /// Names, ids, start times and first processes of all running containers: what no failure of the agent may change.
    ///
    /// # Errors
    /// The runtime did not answer.
    pub fn fingerprint(&self) -> Result<Vec<Fingerprint>> {
        let cri = self.cri()?;
        let mut found = Vec::new();
        for container in cri.containers()?.into_iter().filter(|container| container.running) {
            let process = cri.pid(&container.id).and_then(processes::identify)?;
            found.push(Fingerprint {
                pod: container.pod,
                container: container.name,
                id: container.id,
                sandbox: container.sandbox,
                started_at: container.started_at,
                process,
            });
        }
        found.sort();
        Ok(found)
    }
}

/// A running pod.
#[derive(Debug, Clone)]
pub struct Running {
    pub sandbox: Sandbox,
    pub containers: Vec<Container>,
}

impl Running {
    /// The container `main`, or the only one.
    pub fn main(&self) -> &Container {
        self.containers.iter().find(|one| one.name == "main").unwrap_or(&self.containers[0])
    }
}

/// See [`Node::fingerprint`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fingerprint {
    pub pod: String,
    pub container: String,
    pub id: String,
    pub sandbox: String,
    pub started_at: i64,
    pub process: processes::ProcessId,
}
