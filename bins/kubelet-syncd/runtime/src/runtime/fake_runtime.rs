//! A runtime, host files and images that only write down what they are asked, and a world around an executor on them.

// For tests alone, which end where a value is not what it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bulkhead_cri::{Code, CriError, v1};
use bulkhead_types::{ContainerId, SandboxId};
use kubelet_model::v1::Pod;
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use super::backoff::{CrashLoopBackOff, NoStore};
use super::container_config::{MountedVolume, MountedVolumes};
use super::grace_clock::HeldBack;
use super::hosts::EtcHosts;
use super::image_volumes::Counted;
use super::ports::{HostFiles, HostFilesError, ImageFailure, ImageRequest, Images, LogDirectory, ResolvedImage};
use super::resize::NoResizer;
use super::result::SyncResult;
use super::run_options::{ContainerManager, NoContainerManager};
use super::stop::KillContext;
use super::sub_paths::SubPath;
use super::sync::{RuntimeManager, SyncContext};
use kubelet_edges::runtime_service::RuntimeService;
use kubelet_model::events::{EventSink, NodeEvent, PodEvent};
use kubelet_model::fixtures::{FakeObjects, pod, sandbox_status, uid};
use kubelet_model::node_facts::{HostFacts, NodeFacts};
use kubelet_model::pod::model::{ContainerStatus, RuntimePod, SandboxState};
use kubelet_model::pod::restart::History;
use kubelet_model::pod::spec::PodIdentity;
use kubelet_probes::prober::results::ProbeResults;

#[derive(Default, Debug)]
pub struct Log {
    pub lines: Vec<String>,
    /// What fails: the call's line and the code and text of the error.
    pub failures: HashMap<String, (Code, &'static str)>,
    pub configs: Vec<v1::ContainerConfig>,
    pub sandboxes: Vec<v1::PodSandboxConfig>,
    pub counted: Vec<Counted>,
    pub highest_log: Option<u32>,
    pub volnetd_away: bool,
    pub annotations: BTreeMap<String, String>,
    /// Cancelled by the call of that line: the pod's end is asked for meanwhile.
    pub cancel_at: Option<(&'static str, CancellationToken)>,
    /// The signal of container `a` is held back for so long, and it ends so long after it.
    pub held: Option<(HeldBack, [Duration; 2])>,
}

#[derive(Clone, Default, Debug)]
pub struct Fake(Arc<Mutex<Log>>);

impl Fake {
    pub fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock()
    }

    pub fn fail(&self, call: &str, code: Code, text: &'static str) {
        self.log().failures.insert(call.to_owned(), (code, text));
    }

    pub fn call(&self, line: String) -> Result<(), CriError> {
        let mut log = self.log();
        let failure = log.failures.get(&line).copied();
        if let Some((_, cancel)) = log.cancel_at.as_ref().filter(|(at, _)| *at == line) {
            cancel.cancel();
        }
        log.lines.push(line);
        failure.map_or(Ok(()), |(code, text)| Err(CriError { code, method: "test", message: text.to_owned() }))
    }

    pub fn file(&self, line: String) -> Result<(), HostFilesError> {
        let mut log = self.log();
        log.lines.push(line);
        match log.volnetd_away {
            true => Err(HostFilesError { message: "away".to_owned(), transient: true }),
            false => Ok(()),
        }
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.log().lines)
    }

    /// The calls to the runtime alone.
    pub fn cri(&self) -> Vec<String> {
        self.take().into_iter().filter(|l| l.starts_with(|c: char| c.is_ascii_uppercase())).collect()
    }

    pub fn events(&self) -> Vec<String> {
        self.log().lines.iter().filter(|l| l.starts_with("event ")).cloned().collect()
    }
}

impl RuntimeService for Fake {
    async fn run_pod_sandbox(&self, config: &v1::PodSandboxConfig, handler: &str) -> Result<SandboxId, CriError> {
        let attempt = config.metadata.as_ref().unwrap().attempt;
        let handler = if handler.is_empty() { String::new() } else { format!(" by {handler}") };
        self.call(format!("RunPodSandbox {attempt}{handler}"))?;
        self.log().sandboxes.push(config.clone());
        Ok(SandboxId::parse(&format!("new{attempt}")).unwrap())
    }
    async fn sandbox_ips(&self, sandbox: &SandboxId) -> Result<Vec<IpAddr>, CriError> {
        self.call(format!("PodSandboxStatus {sandbox}"))?;
        Ok(vec!["10.88.0.9".parse().unwrap()])
    }
    async fn stop_pod_sandbox(&self, sandbox: &SandboxId) -> Result<(), CriError> {
        self.call(format!("StopPodSandbox {sandbox}"))
    }
    async fn remove_pod_sandbox(&self, sandbox: &SandboxId) -> Result<(), CriError> {
        self.call(format!("RemovePodSandbox {sandbox}"))
    }
    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: v1::ContainerConfig,
        _: &v1::PodSandboxConfig,
    ) -> Result<ContainerId, CriError> {
        let name = config.metadata.as_ref().unwrap().name.clone();
        self.call(format!("CreateContainer {sandbox} {name}"))?;
        self.log().configs.push(config);
        Ok(ContainerId::parse(&format!("{name}-new")).unwrap())
    }
    async fn start_container(&self, container: &ContainerId) -> Result<(), CriError> {
        self.call(format!("StartContainer {container}"))
    }
    async fn stop_container(&self, container: &ContainerId, grace: i64) -> Result<(), CriError> {
        // So that whoever does not wait for its turn would come first.
        if container.as_str() == "a-id" {
            tokio::task::yield_now().await;
            tokio::task::yield_now().await;
            let held = self.log().held.clone();
            if let Some((held, [waits, ends_after])) = held {
                let waiting = held.begin();
                tokio::time::sleep(waits).await;
                drop(waiting);
                self.call(format!("StopContainer {container} {grace}"))?;
                tokio::time::sleep(ends_after).await;
                return Ok(());
            }
        }
        self.call(format!("StopContainer {container} {grace}"))
    }
    async fn remove_container(&self, container: &ContainerId) -> Result<(), CriError> {
        self.call(format!("RemoveContainer {container}"))
    }
    async fn exec_sync(&self, container: &ContainerId, command: &[String]) -> Result<v1::ExecSyncResponse, CriError> {
        self.call(format!("ExecSync {container} {}", command.join(" ")))?;
        match command {
            // `sleep 3`, `exit 9`: all that the commands of tests can do.
            [word, number] if word == "sleep" => tokio::time::sleep(Duration::from_secs(number.parse().unwrap())).await,
            [word, code] if word == "exit" => {
                let exit_code = code.parse().unwrap();
                return Ok(v1::ExecSyncResponse { exit_code, stdout: b"no\n".to_vec(), stderr: Vec::new() });
            }
            _ => {}
        }
        Ok(v1::ExecSyncResponse::default())
    }
    async fn annotations(&self, container: &ContainerId) -> Result<BTreeMap<String, String>, CriError> {
        self.call(format!("ContainerStatus {container}"))?;
        Ok(self.log().annotations.clone())
    }
}

impl HostFiles for Fake {
    async fn prepare_log_directory(&self, _: &PodIdentity, c: Option<&str>) -> Result<LogDirectory, HostFilesError> {
        self.file(format!("log directory {}", c.unwrap_or("-")))?;
        Ok(LogDirectory { highest_index: self.log().highest_log })
    }
    async fn write_etc_hosts(&self, pod: &PodIdentity, hosts: &EtcHosts) -> Result<PathBuf, HostFilesError> {
        self.file(format!("hosts {} {:?}", hosts.hostname, hosts.pod_ips))?;
        Ok(format!("/var/lib/kubelet/pods/{}/etc-hosts", pod.uid).into())
    }
    async fn create_termination_file(&self, pod: &PodIdentity, c: &str) -> Result<PathBuf, HostFilesError> {
        self.file(format!("termination {c}"))?;
        Ok(format!("/var/lib/kubelet/pods/{}/containers/{c}/x", pod.uid).into())
    }
    async fn prepare_sub_path(
        &self,
        pod: &PodIdentity,
        c: &str,
        part: &SubPath,
        volume: &MountedVolume,
    ) -> Result<PathBuf, HostFilesError> {
        let line = format!("sub path {c} {} {}/{}", part.index, volume.host_path.display(), part.path);
        self.file(line.clone())?;
        match self.log().failures.contains_key(&line) {
            true => Err(HostFilesError { message: "/secret/place is a link".to_owned(), transient: false }),
            false => Ok(sub_path(pod.uid.as_str(), &part.volume, c, part.index).into()),
        }
    }
    async fn read_env_file(&self, _: &PodIdentity, volume: &str, path: &str) -> Result<Vec<u8>, HostFilesError> {
        let line = format!("env file {volume} {path}");
        self.file(line.clone())?;
        match self.log().failures.contains_key(&line) {
            true => Err(HostFilesError { message: "/secret/place is a link".to_owned(), transient: false }),
            false => Ok(b"FROM_FILE='yes'".to_vec()),
        }
    }
    async fn link_container_log(
        &self,
        _: &PodIdentity,
        c: &str,
        n: u32,
        id: &ContainerId,
    ) -> Result<(), HostFilesError> {
        self.file(format!("link {c} {n} {id}"))
    }
    async fn remove_container_log(
        &self,
        _: &PodIdentity,
        c: &str,
        n: u32,
        id: &ContainerId,
    ) -> Result<(), HostFilesError> {
        self.file(format!("remove log {c} {n} {id}"))
    }
}

pub fn sub_path(uid: &str, volume: &str, container: &str, index: usize) -> String {
    format!("/var/lib/kubelet/pods/{uid}/volume-subpaths/{volume}/{container}/{index}")
}

impl Images for Fake {
    async fn ensure_image(&self, request: ImageRequest<'_>) -> Result<ResolvedImage, ImageFailure> {
        self.call(format!("ImageStatus {}", request.image)).map_err(|error| ImageFailure {
            reason: "ErrImagePull".to_owned(),
            message: error.message,
            back_off_until: None,
        })?;
        Ok(ResolvedImage { image_ref: "sha256:i".to_owned(), ..ResolvedImage::default() })
    }
    fn count_volumes(&self, counted: Counted) {
        self.log().counted.push(counted);
    }
}

impl EventSink for Fake {
    fn emit_node(&self, event: NodeEvent) {
        self.log().lines.push(format!("event {} {} node {}", event.kind.as_str(), event.reason, event.message));
    }
    fn emit(&self, event: PodEvent) {
        self.log().lines.push(format!(
            "event {} {} {} {}",
            event.kind.as_str(),
            event.reason,
            event.field_path,
            event.message
        ));
    }
}

/// The container manager of a [`World`].
pub struct Managers(pub Box<dyn ContainerManager>);

impl std::fmt::Debug for Managers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Managers")
    }
}

#[derive(Debug)]
pub struct World {
    pub fake: Fake,
    pub manager: RuntimeManager<Fake, Fake, Fake>,
    pub facts: NodeFacts,
    pub now: Arc<Mutex<SystemTime>>,
    pub objects: FakeObjects,
    pub volumes: MountedVolumes,
    pub container_manager: Managers,
}

pub fn world() -> World {
    let fake = Fake::default();
    let now = Arc::new(Mutex::new(SystemTime::UNIX_EPOCH + Duration::from_secs(1000)));
    let clock = Arc::clone(&now);
    let manager = RuntimeManager::new(
        fake.clone(),
        fake.clone(),
        fake.clone(),
        Arc::new(fake.clone()),
        CrashLoopBackOff::default(),
        Arc::new(NoStore),
    )
    .with_clock(Arc::new(move || *clock.lock()));
    let mut facts = NodeFacts::new(HostFacts::default());
    facts.resolv_conf = PathBuf::new();
    facts.cluster_dns = vec!["10.96.0.10".to_owned()];
    World {
        fake,
        manager,
        facts,
        now,
        objects: FakeObjects::default(),
        volumes: BTreeMap::new(),
        container_manager: Managers(Box::new(NoContainerManager)),
    }
}

impl World {
    pub async fn sync(&self, pod: &Pod, status: &RuntimePod) -> SyncResult {
        self.sync_with(pod, status, false, false).await
    }

    pub async fn sync_with(&self, pod: &Pod, status: &RuntimePod, restart_all: bool, terminating: bool) -> SyncResult {
        if terminating {
            return self.sync_until(pod, status, "RunPodSandbox 0").await;
        }
        self.sync_under(pod, status, restart_all, CancellationToken::new()).await
    }

    /// A sync during which the pod's end is asked for, with that call.
    pub async fn sync_until(&self, pod: &Pod, status: &RuntimePod, call: &'static str) -> SyncResult {
        let cancel = CancellationToken::new();
        self.fake.log().cancel_at = Some((call, cancel.clone()));
        self.sync_under(pod, status, false, cancel).await
    }

    /// A sync of which the end was asked for already.
    pub async fn sync_cancelled(&self, pod: &Pod, status: &RuntimePod, cancel: CancellationToken) -> SyncResult {
        self.sync_under(pod, status, false, cancel).await
    }

    async fn sync_under(
        &self,
        pod: &Pod,
        status: &RuntimePod,
        restart_all: bool,
        cancel: CancellationToken,
    ) -> SyncResult {
        let fake = self.fake.clone();
        let context = SyncContext {
            facts: &self.facts,
            cgroup_parent: &format!("/kubepods/pod{}", pod.metadata.uid.as_deref().unwrap()),
            volumes: &self.volumes,
            objects: &self.objects,
            probes: &ProbeResults::default(),
            past: &History { restart_all, ..History::default() },
            cancel: &cancel,
            resizer: &NoResizer,
            container_manager: &*self.container_manager.0,
            on_sandbox_ready: &move |id, ips| fake.log().lines.push(format!("ready {id} {ips:?}")),
        };
        self.manager.sync_pod(pod, &PodIdentity::of(pod).unwrap(), status, &context).await
    }
}

/// Stops a pod on a node without addresses, with nobody who holds its signals back. `over`: seconds.
pub async fn kill_pod<R: RuntimeService, F: HostFiles, I: Images>(
    manager: &RuntimeManager<R, F, I>,
    pod: Option<&Pod>,
    status: &RuntimePod,
    over: Option<i64>,
) -> SyncResult {
    manager.kill_pod(pod, status, KillContext { over, host_ips: &[], held: &HeldBack::default() }).await
}

pub fn container(name: &str) -> serde_json::Value {
    serde_json::json!({"name": name, "image": "i", "terminationMessagePath": "/dev/termination-log"})
}

pub fn simple(names: &[&str]) -> Pod {
    let list: Vec<_> = names.iter().map(|n| container(n)).collect();
    pod(serde_json::json!({"containers": list, "enableServiceLinks": true, "terminationGracePeriodSeconds": 30}))
}

pub fn status(list: Vec<ContainerStatus>) -> RuntimePod {
    RuntimePod {
        uid: Some(uid()),
        namespace: "ns".to_owned(),
        name: "p".to_owned(),
        sandboxes: vec![sandbox_status("s0", 0, SandboxState::Ready)],
        containers: list,
    }
}
