//! Who is asked: the model behind a socket of its own, or the containerd of a lab. Everything else knows them by the CRI alone.

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use bulkhead_cri::v1;
use bulkhead_cri::v1::image_service_client::ImageServiceClient;
use bulkhead_cri::v1::runtime_service_client::RuntimeServiceClient;
use bulkhead_simulation::hooks_schedule::{Hook, HookKind};
use bulkhead_simulation::logs::Place;
use bulkhead_simulation::memory;
use bulkhead_simulation::node::POD_LOGS;
use bulkhead_simulation::runtime::{self as model, Model};
use bulkhead_simulation::schedule::{Behaviour, ContainerShape, ProbeKind, ProbeShape, Shape};
use bulkhead_simulation::world::Shared;
use bulkhead_testkit::{Lab, Release, cgroups, image, processes};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::DEADLINE;

/// What a container does.
#[derive(Debug, Clone, Copy)]
pub enum Does {
    /// It runs, and ends with code 143 when it is told to.
    Heeds,
    /// It runs, and does not listen.
    Ignores,
    /// It ends by itself after so many seconds, and does not listen.
    Ends { after: u64, code: i32 },
    /// It uses more memory than its limit allows ([`MEMORY_LIMIT`]).
    Exceeds,
    /// A process of it does so, which is not its first; it goes on, and ends by itself.
    ExceedsWithin { after: u64, code: i32 },
}

/// When the model's runtime knows that a container was killed for want of memory: before its end, with it, or after it; or it was not
/// its first process, and it goes on.
#[derive(Debug, Clone, Copy)]
pub enum Known {
    Before,
    With,
    After,
    AndGoesOn,
}

/// Milliseconds between the two: long enough to be looked at.
const LATE: u64 = 500;

/// Bytes.
const MEMORY_LIMIT: i64 = 24 << 20;

#[derive(Debug)]
enum Kind {
    Model {
        world: Shared,
        /// None when it is dropped.
        machine: Option<Runtime>,
        /// None while it is away.
        service: Mutex<Option<Runtime>>,
        folder: tempfile::TempDir,
    },
    Containerd(Lab),
}

/// See the module.
#[derive(Debug)]
pub struct Subject {
    kind: Kind,
    pub runtime: RuntimeServiceClient<Channel>,
    pub images: ImageServiceClient<Channel>,
    cgroup: String,
    logs: PathBuf,
}

/// With one thread of its own, so that it goes on while somebody here waits.
fn thread() -> Result<Runtime> {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().context("making a runtime")
}

fn limits(does: Does) -> Option<v1::LinuxContainerResources> {
    let is_limited = matches!(does, Does::Exceeds | Does::ExceedsWithin { .. });
    is_limited.then(|| v1::LinuxContainerResources { memory_limit_in_bytes: MEMORY_LIMIT, ..Default::default() })
}

/// A request with a deadline.
pub fn timed<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}

/// A probe's command that passes, or fails, at any time.
fn probe(passes: bool) -> ProbeShape {
    let (kind, passes_after) = if passes { (ProbeKind::Liveness, 0) } else { (ProbeKind::Readiness, u64::MAX) };
    ProbeShape { kind, passes_after, fails_after: None, period: 1, threshold: 1 }
}

/// A command that does not end by itself.
const LASTING: Hook = Hook { kind: HookKind::PreStop, lasts: None, code: 0 };

impl Subject {
    /// # Errors
    /// It cannot be served.
    pub fn model() -> Result<Self> {
        let folder = tempfile::tempdir().context("making a folder")?;
        let world = Shared::new(1);
        world.lock().images.insert(image::BUSYBOX.to_owned());
        let socket = folder.path().join("runtime.sock");
        let kind = Kind::Model { world, machine: Some(thread()?), service: Mutex::default(), folder };
        let subject = Self::new(kind, &socket, "/contract".to_owned(), POD_LOGS.into());
        subject.comes()?;
        Ok(subject)
    }

    /// # Errors
    /// Its place cannot be made.
    pub fn containerd(lab: Lab) -> Result<Self> {
        let cgroup = format!("{}/contract", lab.cgroup());
        cgroups::create(&cgroup)?;
        let (logs, socket) = (lab.folder().join("contract-logs"), lab.containerd().socket());
        Ok(Self::new(Kind::Containerd(lab), &socket, cgroup, logs))
    }

    fn new(kind: Kind, socket: &Path, cgroup: String, logs: PathBuf) -> Self {
        let channel = bulkhead_ipc::client::channel(socket);
        let (runtime, images) = (RuntimeServiceClient::new(channel.clone()), ImageServiceClient::new(channel));
        Self { kind, runtime, images, cgroup, logs }
    }

    /// The service ends; what it runs runs on.
    ///
    /// # Errors
    /// It does not end.
    pub fn goes(&self) -> Result<()> {
        match &self.kind {
            Kind::Containerd(lab) => lab.containerd().stop(),
            Kind::Model { world, service, folder, .. } => {
                if let Some(service) = service.lock().take() {
                    service.shutdown_background();
                }
                model::goes(&mut world.lock());
                std::fs::remove_file(folder.path().join("runtime.sock")).context("removing the socket")
            }
        }
    }

    /// The service is there again.
    ///
    /// # Errors
    /// It does not come.
    pub fn comes(&self) -> Result<()> {
        match &self.kind {
            Kind::Containerd(lab) => lab.containerd().spawn(),
            Kind::Model { world, machine, service, folder } => {
                let machine = machine.as_ref().context("no machine")?.handle().clone();
                let listener = UnixListener::bind(folder.path().join("runtime.sock")).context("listening")?;
                listener.set_nonblocking(true).context("making a listener")?;
                let (runtime, model) = (thread()?, Model { world: world.clone(), machine });
                runtime.spawn(model::serve(model, listener));
                *service.lock() = Some(runtime);
                Ok(())
            }
        }
    }

    /// A sandbox ends with all that is in it, by nobody's wish.
    ///
    /// # Errors
    /// There is none.
    pub fn sandbox_dies(&self, sandbox: &str) -> Result<()> {
        match &self.kind {
            Kind::Model { world, machine, .. } => {
                model::sandbox_dies(world, machine.as_ref().context("no machine")?.handle(), sandbox);
                Ok(())
            }
            // The shim holds the sandbox and its containers.
            Kind::Containerd(lab) => {
                let shims = lab.containerd().shims();
                let mut all = processes::all().into_iter();
                let shim = all.find(|(pid, words)| shims.contains(pid) && words.iter().any(|word| word == sandbox));
                let (shim, _) = shim.context("the sandbox has no shim")?;
                let shim = rustix::process::Pid::from_raw(shim).context("no process")?;
                rustix::process::kill_process(shim, rustix::process::Signal::KILL).context("killing a shim")
            }
        }
    }

    /// A container that was started comes to its limit. The real one does so by itself, and knows the reason when it likes.
    ///
    /// # Errors
    /// There is none.
    pub fn exceed(&self, container: &str, known: Known) -> Result<()> {
        if let Kind::Model { world, machine, .. } = &self.kind {
            let machine = machine.as_ref().context("no machine")?.handle();
            match known {
                Known::Before => memory::kill_in_container(world, machine, container, Some(LATE)),
                Known::With => memory::kill_container(world, machine, container, true, 0),
                Known::After => memory::kill_container(world, machine, container, true, LATE),
                Known::AndGoesOn => memory::kill_in_container(world, machine, container, None),
            }
        }
        Ok(())
    }

    /// Whether it tells events by the CRI, to each who listens.
    pub fn tells_events(&self) -> bool {
        match &self.kind {
            Kind::Model { .. } => true,
            Kind::Containerd(lab) => lab.containerd().programs().release() == Release::V2_1,
        }
    }

    fn command(&self, does: Does) -> Vec<String> {
        match &self.kind {
            Kind::Model { .. } => {
                let (ends_after, exit_code, heeds_term) = match does {
                    Does::Heeds => (None, 0, Some(0)),
                    Does::Ignores => (None, 0, None),
                    Does::Ends { after, code } => (Some(after * 1000), code, None),
                    // The kernel's part is in [`Subject::exceed`].
                    Does::Exceeds => (None, 0, None),
                    Does::ExceedsWithin { after, code } => (Some(after * 1000), code, None),
                };
                Behaviour { ends_after, exit_code, heeds_term }.words()
            }
            Kind::Containerd(_) => {
                let script = match does {
                    Does::Heeds => "trap 'exit 143' TERM; while true; do sleep 3600 & wait $!; done".to_owned(),
                    Does::Ignores => "trap '' TERM; while true; do sleep 3600; done".to_owned(),
                    Does::Ends { after, code } => format!("trap '' TERM; sleep {after}; exit {code}"),
                    // A line without an end is kept whole.
                    Does::Exceeds => "exec tail -f /dev/zero".to_owned(),
                    Does::ExceedsWithin { after, code } => format!("tail -f /dev/zero; sleep {after}; exit {code}"),
                };
                vec!["/bin/sh".to_owned(), "-c".to_owned(), script]
            }
        }
    }

    /// A pod, and what a kubelet writes on it.
    ///
    /// # Errors
    /// The folder of its logs cannot be made.
    pub fn pod(&self, name: &str) -> Result<Pod<'_>> {
        let uid = format!("uid-{name}");
        let labels = [("name", name), ("namespace", "default"), ("uid", &uid)];
        let labels = labels.map(|(key, value)| (format!("io.kubernetes.pod.{key}"), value.to_owned())).into();
        let log_directory = self.logs.join(format!("default_{name}_{uid}"));
        match &self.kind {
            Kind::Containerd(_) => std::fs::create_dir_all(&log_directory).context("making a folder of logs")?,
            Kind::Model { world, .. } => {
                let behaviour = Behaviour { ends_after: None, exit_code: 0, heeds_term: None };
                let probes = vec![probe(true), probe(false)];
                let main =
                    ContainerShape { name: "main".to_owned(), behaviour, sidecar: false, probes, devices: 0, cpus: 0 };
                let hooks = [("main".to_owned(), vec![LASTING])].into();
                let containers = vec![main];
                let shape = Shape { restart_policy: "Never".to_owned(), containers, hooks, ..Shape::default() };
                world.lock().past.entry(uid.clone()).or_default().shape = Some(shape);
            }
        }
        let config = v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.to_owned(),
                uid,
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            hostname: name.to_owned(),
            log_directory: log_directory.to_string_lossy().into_owned(),
            labels,
            annotations: [("example.com/note".to_owned(), format!("of {name}"))].into(),
            linux: Some(v1::LinuxPodSandboxConfig { cgroup_parent: self.cgroup.clone(), ..Default::default() }),
            ..Default::default()
        };
        Ok(Pod { subject: self, config })
    }

    /// Words of a command that ends well, or does not.
    pub fn exec_words(&self, passes: bool) -> Vec<String> {
        match &self.kind {
            Kind::Model { .. } => probe(passes).words(),
            Kind::Containerd(_) => vec![if passes { "true".to_owned() } else { "false".to_owned() }],
        }
    }

    /// Words of a command that does not end by itself.
    pub fn lasting_words(&self) -> Vec<String> {
        match &self.kind {
            Kind::Model { .. } => LASTING.words(),
            Kind::Containerd(_) => ["/bin/sh", "-c", "touch /begun; sleep 3600"].map(str::to_owned).into(),
        }
    }

    /// Words of a command that ends well once that one has begun.
    pub fn begun_words(&self) -> Vec<String> {
        match &self.kind {
            Kind::Model { .. } => probe(true).words(),
            Kind::Containerd(_) => ["test", "-e", "/begun"].map(str::to_owned).into(),
        }
    }

    pub async fn list_sandboxes(&self, filter: v1::PodSandboxFilter) -> Result<Vec<v1::PodSandbox>, Status> {
        let request = v1::ListPodSandboxRequest { filter: Some(filter) };
        Ok(self.runtime.clone().list_pod_sandbox(timed(request)).await?.into_inner().items)
    }

    pub async fn list_containers(&self, filter: v1::ContainerFilter) -> Result<Vec<v1::Container>, Status> {
        let request = v1::ListContainersRequest { filter: Some(filter) };
        Ok(self.runtime.clone().list_containers(timed(request)).await?.into_inner().containers)
    }

    pub async fn sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatus, Status> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose: false };
        Ok(self.runtime.clone().pod_sandbox_status(timed(request)).await?.into_inner().status.unwrap_or_default())
    }

    pub async fn status(&self, id: &str) -> Result<v1::ContainerStatus, Status> {
        let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false };
        Ok(self.runtime.clone().container_status(timed(request)).await?.into_inner().status.unwrap_or_default())
    }

    pub async fn start(&self, id: &str) -> Result<(), Status> {
        let request = v1::StartContainerRequest { container_id: id.to_owned() };
        self.runtime.clone().start_container(timed(request)).await.map(drop)
    }

    /// With so many seconds of grace.
    pub async fn stop(&self, id: &str, timeout: i64) -> Result<(), Status> {
        let request = v1::StopContainerRequest { container_id: id.to_owned(), timeout };
        self.runtime.clone().stop_container(timed(request)).await.map(drop)
    }

    pub async fn remove(&self, id: &str) -> Result<(), Status> {
        let request = v1::RemoveContainerRequest { container_id: id.to_owned() };
        self.runtime.clone().remove_container(timed(request)).await.map(drop)
    }

    pub async fn stop_sandbox(&self, id: &str) -> Result<(), Status> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.runtime.clone().stop_pod_sandbox(timed(request)).await.map(drop)
    }

    pub async fn remove_sandbox(&self, id: &str) -> Result<(), Status> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.to_owned() };
        self.runtime.clone().remove_pod_sandbox(timed(request)).await.map(drop)
    }

    /// The exit code.
    pub async fn exec(&self, id: &str, cmd: Vec<String>) -> Result<i32, Status> {
        let request = v1::ExecSyncRequest { container_id: id.to_owned(), cmd, timeout: 10 };
        Ok(self.runtime.clone().exec_sync(timed(request)).await?.into_inner().exit_code)
    }

    pub async fn reopen(&self, id: &str) -> Result<(), Status> {
        let request = v1::ReopenContainerLogRequest { container_id: id.to_owned() };
        self.runtime.clone().reopen_container_log(timed(request)).await.map(drop)
    }

    /// Whether the log of a pod's first container `main` has a file to be written to.
    pub fn has_log(&self, pod: &Pod<'_>) -> Result<bool> {
        match &self.kind {
            Kind::Model { world, .. } => Ok(world.lock().has_current_log(&pod.place())),
            Kind::Containerd(_) => std::fs::exists(pod.log()).context("looking for a log"),
        }
    }

    /// It is given another name, as a kubelet does.
    pub fn rename_log(&self, pod: &Pod<'_>) -> Result<()> {
        match &self.kind {
            Kind::Model { world, .. } => Ok(world.lock().rotate_log(&pod.place()).map(drop)?),
            Kind::Containerd(_) => {
                std::fs::rename(pod.log(), pod.log().with_extension("log.20260101-000000")).context("renaming a log")
            }
        }
    }

    pub async fn put_on_cpus(&self, id: &str, cpus: &str) -> Result<(), Status> {
        self.give(id, v1::LinuxContainerResources { cpuset_cpus: cpus.to_owned(), ..Default::default() }).await
    }

    pub async fn give(&self, id: &str, linux: v1::LinuxContainerResources) -> Result<(), Status> {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(linux),
            ..Default::default()
        };
        self.runtime.clone().update_container_resources(timed(request)).await.map(drop)
    }

    /// Waits until a container has ended, and says how.
    ///
    /// # Errors
    /// It runs on.
    pub async fn ended(&self, id: &str) -> Result<v1::ContainerStatus> {
        crate::eventually(&format!("container {id} ends"), async || {
            let status = self.status(id).await?;
            if status.state() != v1::ContainerState::ContainerExited {
                bail!("{status:?}");
            }
            Ok(status)
        })
        .await
    }
}

impl Drop for Kind {
    fn drop(&mut self) {
        // Nobody may wait here, as the test runs in a runtime itself.
        if let Kind::Model { machine, service, .. } = self {
            let service = service.get_mut().take();
            service.into_iter().chain(machine.take()).for_each(Runtime::shutdown_background);
        }
    }
}

/// A pod of a scenario.
#[derive(Debug)]
pub struct Pod<'a> {
    subject: &'a Subject,
    pub config: v1::PodSandboxConfig,
}

impl Pod<'_> {
    /// The name and attempt under which its next sandbox is made.
    pub fn attempt(&mut self, attempt: u32) {
        if let Some(metadata) = &mut self.config.metadata {
            metadata.attempt = attempt;
        }
    }

    /// The first log of its container `main`.
    fn log(&self) -> PathBuf {
        Path::new(&self.config.log_directory).join("main/0.log")
    }

    fn place(&self) -> Place {
        let uid = self.config.metadata.as_ref().map(|metadata| metadata.uid.clone()).unwrap_or_default();
        Place { uid, container: "main".to_owned(), number: 0 }
    }

    pub async fn sandbox(&self) -> Result<String, Status> {
        let request = v1::RunPodSandboxRequest { config: Some(self.config.clone()), ..Default::default() };
        Ok(self.subject.runtime.clone().run_pod_sandbox(timed(request)).await?.into_inner().pod_sandbox_id)
    }

    pub fn container(&self, name: &str, attempt: u32, does: Does) -> v1::ContainerConfig {
        let mut labels = self.config.labels.clone();
        labels.insert("io.kubernetes.container.name".to_owned(), name.to_owned());
        v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt }),
            image: Some(v1::ImageSpec { image: image::BUSYBOX.to_owned(), ..Default::default() }),
            command: self.subject.command(does),
            labels,
            annotations: BTreeMap::from([("io.kubernetes.container.restartCount".to_owned(), attempt.to_string())]),
            log_path: format!("{name}/{attempt}.log"),
            linux: Some(v1::LinuxContainerConfig { resources: limits(does), ..Default::default() }),
            ..Default::default()
        }
    }

    pub async fn create(&self, sandbox: &str, name: &str, attempt: u32, does: Does) -> Result<String, Status> {
        let folder = Path::new(&self.config.log_directory).join(name);
        if let Kind::Containerd(_) = self.subject.kind {
            std::fs::create_dir_all(&folder).map_err(|error| Status::internal(error.to_string()))?;
        }
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(self.container(name, attempt, does)),
            sandbox_config: Some(self.config.clone()),
        };
        Ok(self.subject.runtime.clone().create_container(timed(request)).await?.into_inner().container_id)
    }

    /// A container `main` that runs, and its sandbox.
    pub async fn runs(&self, does: Does) -> Result<(String, String), Status> {
        let sandbox = self.sandbox().await?;
        let container = self.create(&sandbox, "main", 0, does).await?;
        self.subject.start(&container).await?;
        Ok((sandbox, container))
    }
}
