//! The floor: the work of a pod done straight over CRI, with the calls that no node agent can do without
//! (ImageStatus, RunPodSandbox, CreateContainer, StartContainer; StopContainer, StopPodSandbox). The requests ask the
//! runtime for what a kubelet's requests ask (filters, masked paths, hosts and termination files, a name server), since
//! each of those is the runtime's work. What an agent takes longer than this is its own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_cri::containerd::service::SubscribeRequest;
use bulkhead_cri::containerd::service::events_client::EventsClient;
use bulkhead_cri::v1::image_service_client::ImageServiceClient;
use bulkhead_cri::v1::runtime_service_client::RuntimeServiceClient;
use bulkhead_cri::v1::security_profile::ProfileType;
use bulkhead_cri::v1::{
    ContainerConfig, ContainerMetadata, CreateContainerRequest, DnsConfig, ImageSpec, ImageStatusRequest,
    LinuxContainerConfig, LinuxContainerResources, LinuxContainerSecurityContext, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, Mount, NamespaceMode, NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
    RemovePodSandboxRequest, RunPodSandboxRequest, SecurityProfile, StartContainerRequest, StopContainerRequest,
    StopPodSandboxRequest,
};
use futures_util::StreamExt;
use nix::sys::signal::Signal;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;

use crate::cri::Cri;
use crate::{Lab, cgroups, image, processes};

/// Starts and ends pods in a lab of its own.
#[derive(Debug)]
pub struct Floor {
    cri: Cri,
    calls: Calls,
    // Last: the lab outlives its users.
    lab: Lab,
}

/// The calls of a pod, for whoever makes them: this floor, or an agent that is one.
#[derive(Debug, Clone)]
pub struct Calls {
    channel: Channel,
    cgroup: String,
    logs: PathBuf,
}

/// How the runtime is to call a pod.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    pub name: &'a str,
    pub uid: &'a str,
}

/// A pod that the floor has started.
#[derive(Debug, Clone)]
pub struct FloorPod {
    pub sandbox: String,
    pub container: String,
}

impl Floor {
    /// Prepares a lab for this: a cgroup and a folder for logs.
    ///
    /// # Errors
    /// The cgroup or the folder cannot be made.
    pub fn new(lab: Lab) -> Result<Self> {
        let (cgroup, logs) = place(&lab)?;
        let cri = lab.cri()?;
        let calls = Calls::new(cri.channel(), cgroup, logs);
        Ok(Self { cri, calls, lab })
    }

    pub fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Starts one pod.
    ///
    /// # Errors
    /// A call failed.
    pub fn start(&self, name: &str) -> Result<(FloorPod, Duration)> {
        let begin = Instant::now();
        let pod = self.cri.block_on(self.calls.start(Named { name, uid: &uid(name) }))?;
        Ok((pod, begin.elapsed()))
    }

    /// Stops a pod (timed) and removes it (not timed: agents leave that to their garbage collection).
    ///
    /// # Errors
    /// A call failed.
    pub fn delete(&self, pod: &FloorPod) -> Result<Duration> {
        let begin = Instant::now();
        self.cri.block_on(self.calls.stop(pod))?;
        let took = begin.elapsed();
        self.cri.block_on(self.calls.remove(pod))?;
        Ok(took)
    }

    /// Starts many, `in_flight` at a time: when each was up, counted from the common beginning.
    ///
    /// # Errors
    /// A call failed.
    pub fn start_many(&self, prefix: &str, count: usize, in_flight: usize) -> Result<Vec<(FloorPod, Duration)>> {
        let begin = Instant::now();
        self.cri
            .block_on(async {
                let starts = (0..count).map(|index| async move {
                    let name = format!("{prefix}{index}");
                    let pod = self.calls.start(Named { name: &name, uid: &uid(&name) }).await?;
                    Ok((pod, begin.elapsed()))
                });
                futures_util::stream::iter(starts).buffer_unordered(in_flight).collect::<Vec<_>>().await
            })
            .into_iter()
            .collect()
    }

    /// Stops many (timed to the last one) and removes them.
    ///
    /// # Errors
    /// A call failed.
    pub fn delete_many(&self, pods: &[FloorPod], in_flight: usize) -> Result<Duration> {
        let begin = Instant::now();
        let stopped: Vec<Result<()>> = self.cri.block_on(async {
            let stops = pods.iter().map(|pod| self.calls.stop(pod));
            futures_util::stream::iter(stops).buffer_unordered(in_flight).collect().await
        });
        stopped.into_iter().collect::<Result<()>>()?;
        let took = begin.elapsed();
        for pod in pods {
            self.cri.block_on(self.calls.remove(pod))?;
        }
        Ok(took)
    }
}

fn uid(name: &str) -> String {
    format!("floor-{name}")
}

/// Where pods that are started like this are in a lab: their cgroup, which is made, and their logs.
///
/// # Errors
/// The cgroup or the folder cannot be made.
pub(crate) fn place(lab: &Lab) -> Result<(String, PathBuf)> {
    let cgroup = format!("{}/floor", lab.cgroup());
    cgroups::create(&cgroup)?;
    let logs = lab.folder().join("floor-logs");
    std::fs::create_dir_all(&logs)?;
    Ok((cgroup, logs))
}

impl Calls {
    /// `channel` leads to the runtime; `cgroup` is above the pods, `logs` above their logs.
    pub fn new(channel: Channel, cgroup: String, logs: PathBuf) -> Self {
        Self { channel, cgroup, logs }
    }

    /// Starts a pod.
    ///
    /// # Errors
    /// A call failed.
    pub async fn start(&self, pod: Named<'_>) -> Result<FloorPod> {
        start(self.channel.clone(), pod, &self.cgroup, &self.logs).await
    }

    /// Stops its container and its sandbox.
    ///
    /// # Errors
    /// A call failed, again and again.
    pub async fn stop(&self, pod: &FloorPod) -> Result<()> {
        persistently(|| stop_once(self.channel.clone(), pod)).await
    }

    /// Removes what was stopped.
    ///
    /// # Errors
    /// A call failed, again and again.
    pub async fn remove(&self, pod: &FloorPod) -> Result<()> {
        persistently(|| remove_once(self.channel.clone(), pod)).await
    }
}

/// From a process's death until a client of the runtime can know of it.
impl Floor {
    /// Kills the pod's container and waits for the runtime's own event.
    ///
    /// # Errors
    /// No event came.
    pub fn exit_to_known(&self, pod: &FloorPod) -> Result<Duration> {
        let pid = self.cri.pid(&pod.container)?;
        let mut events = EventsClient::new(self.cri.channel());
        self.cri.block_on(async move {
            let mut subscribe = request(SubscribeRequest { filters: vec![r#"topic=="/tasks/exit""#.to_owned()] });
            subscribe.metadata_mut().insert("containerd-namespace", MetadataValue::from_static("k8s.io"));
            // The server answers with the first event and not before: so the call is sent, then the process killed.
            let mut first = Box::pin(async move {
                let mut stream = events.subscribe(subscribe).await?.into_inner();
                stream.message().await
            });
            let quiet = tokio::time::timeout(SUBSCRIPTION_SETTLES, &mut first).await;
            ensure!(quiet.is_err(), "an event came before anything was done");
            let begin = Instant::now();
            processes::signal(pid, Signal::SIGKILL);
            tokio::time::timeout(DEADLINE, first).await.context("no exit event came")?.context("reading events")?;
            Ok(begin.elapsed())
        })
    }
}

/// Time for a subscription to reach the runtime; nothing tells when it has.
const SUBSCRIPTION_SETTLES: Duration = Duration::from_millis(300);

/// Far above what a healthy runtime needs; a hanging one ends the run with a message.
const DEADLINE: Duration = Duration::from_secs(120);

fn request<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(DEADLINE);
    request
}

/// A kubelet's lists (upstream `pkg/securitycontext/util.go`).
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

fn namespaces() -> NamespaceOption {
    NamespaceOption { pid: NamespaceMode::Container.into(), ..Default::default() }
}

async fn start(channel: Channel, pod: Named<'_>, cgroup: &str, logs: &Path) -> Result<FloorPod> {
    let Named { name, uid } = pod;
    let mut images = ImageServiceClient::new(channel.clone());
    let mut runtime = RuntimeServiceClient::new(channel);
    let spec = ImageSpec { image: image::BUSYBOX.to_owned(), ..Default::default() };
    let known = images.image_status(request(ImageStatusRequest { image: Some(spec.clone()), verbose: false })).await;
    known.context("ImageStatus")?.into_inner().image.context("the image is not there")?;

    let log_directory = logs.join(format!("{name}_{uid}"));
    std::fs::create_dir_all(&log_directory)?;
    let sandbox_config = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: name.to_owned(),
            uid: uid.to_owned(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        hostname: name.to_owned(),
        log_directory: log_directory.to_string_lossy().into_owned(),
        dns_config: Some(DnsConfig { servers: vec!["10.255.255.53".to_owned()], ..Default::default() }),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: cgroup.to_owned(),
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces()),
                seccomp: Some(SecurityProfile {
                    profile_type: ProfileType::RuntimeDefault.into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let run = RunPodSandboxRequest { config: Some(sandbox_config.clone()), ..Default::default() };
    let sandbox = runtime.run_pod_sandbox(request(run)).await.context("RunPodSandbox")?.into_inner().pod_sandbox_id;

    let config = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "main".to_owned(), attempt: 0 }),
        image: Some(spec),
        command: vec!["/bin/sh".into(), "-c".into(), crate::pod::IDLE.into()],
        log_path: "main.log".to_owned(),
        mounts: ["/etc/hosts", "/dev/termination-log"]
            .map(|inside| {
                let outside = log_directory.join(inside.rsplit('/').next().unwrap_or(inside));
                std::fs::write(&outside, "").map(|()| Mount {
                    container_path: inside.to_owned(),
                    host_path: outside.to_string_lossy().into_owned(),
                    ..Default::default()
                })
            })
            .into_iter()
            .collect::<std::io::Result<_>>()?,
        linux: Some(LinuxContainerConfig {
            resources: Some(LinuxContainerResources { cpu_shares: 2, oom_score_adj: 1000, ..Default::default() }),
            security_context: Some(LinuxContainerSecurityContext {
                namespace_options: Some(namespaces()),
                masked_paths: MASKED.map(str::to_owned).into(),
                readonly_paths: READ_ONLY.map(str::to_owned).into(),
                seccomp: Some(SecurityProfile { profile_type: ProfileType::Unconfined.into(), ..Default::default() }),
                ..Default::default()
            }),
        }),
        ..Default::default()
    };
    let create = CreateContainerRequest {
        pod_sandbox_id: sandbox.clone(),
        config: Some(config),
        sandbox_config: Some(sandbox_config),
    };
    let container =
        runtime.create_container(request(create)).await.context("CreateContainer")?.into_inner().container_id;
    let start = StartContainerRequest { container_id: container.clone() };
    runtime.start_container(request(start)).await.context("StartContainer")?;
    Ok(FloorPod { sandbox, container })
}

/// How often a call is tried that the runtime refuses: a task that ends this moment can make a stop fail, and every
/// node agent answers that by asking again.
const TRIES: u32 = 5;

const BETWEEN_TRIES: Duration = Duration::from_millis(100);

async fn persistently<F: Future<Output = Result<()>>>(call: impl Fn() -> F) -> Result<()> {
    for _ in 1..TRIES {
        match call().await {
            Ok(()) => return Ok(()),
            Err(error) => eprintln!("tried again: {error:#}"),
        }
        tokio::time::sleep(BETWEEN_TRIES).await;
    }
    call().await
}

async fn stop_once(channel: Channel, pod: &FloorPod) -> Result<()> {
    let mut runtime = RuntimeServiceClient::new(channel);
    let stop = StopContainerRequest { container_id: pod.container.clone(), timeout: 1 };
    runtime.stop_container(request(stop)).await.context("StopContainer")?;
    let stop = StopPodSandboxRequest { pod_sandbox_id: pod.sandbox.clone() };
    runtime.stop_pod_sandbox(request(stop)).await.context("StopPodSandbox")?;
    Ok(())
}

async fn remove_once(channel: Channel, pod: &FloorPod) -> Result<()> {
    let mut runtime = RuntimeServiceClient::new(channel);
    let remove = RemovePodSandboxRequest { pod_sandbox_id: pod.sandbox.clone() };
    runtime.remove_pod_sandbox(request(remove)).await.context("RemovePodSandbox")?;
    Ok(())
}
