//! The runtime side's ports: files on the host by volnetd's verbs, images by the image manager, and the calls that make
//! sandboxes and containers, which wait for their turn.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bulkhead_cri::{CriClient, CriError, v1};
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::{ContainerId, PodUid, SandboxId};

use super::events::Reporter;
use crate::cri_metrics::SandboxMetrics;
use crate::start_latency::StartTimes;
use crate::start_limit::{StartLimiter, StartSlot};
use crate::take_down::{TakeDown, TakeDowns};
use kubelet_edges::runtime_service::RuntimeService;
use kubelet_edges::volnetd::{Volnetd, VolnetdError};
use kubelet_images::credentials::{Keyring, Puller};
use kubelet_images::in_use::ImageHold;
use kubelet_images::{Credential, Credentials, ImageManager, PullPolicy};
use kubelet_model::events::{EventSink as _, EventType, PodEvent};
use kubelet_model::pod::spec::PodIdentity;
use kubelet_pleg::{Busy, Making, Pleg};
use kubelet_runtime::runtime::container_config::{MountedVolume, VolumeRoot};
use kubelet_runtime::runtime::hosts::EtcHosts;
use kubelet_runtime::runtime::image_volumes::Counted;
use kubelet_runtime::runtime::ports::{
    HostFiles, HostFilesError, ImageFailure, ImageRequest, Images, LogDirectory, ResolvedImage,
};
use kubelet_runtime::runtime::security::ImageUser;
use kubelet_runtime::runtime::sub_paths::SubPath;
use kubelet_runtime::stages;

/// What takes longer than this (an image that is pulled, a hook) holds no slot any more.
const SOON: Duration = Duration::from_millis(300);
/// The end of a container that is replaced is held back until its successor is there, for so long at most. Upstream learns of the end at
/// its next relist, up to a second later (`pkg/kubelet/kubelet.go`, genericPlegRelistPeriod): a client that changes an image and reads
/// the status at once still finds the pod ready.
const REPLACED: Duration = Duration::from_secs(1);

/// What one sync of one pod holds while it starts something.
#[derive(Default)]
struct SyncHolds {
    slot: Option<StartSlot>,
    /// Keeps PLEG from looking at each step; the sync asks for one look at its end.
    busy: Option<Busy>,
}

#[derive(Clone)]
struct Turn {
    held: Arc<Mutex<SyncHolds>>,
    /// Images that this sync starts containers of: nobody removes them before it is over.
    images: Arc<Mutex<Vec<ImageHold>>>,
    pleg: Pleg,
    uid: PodUid,
}

impl Turn {
    fn held(&self) -> MutexGuard<'_, SyncHolds> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// PLEG looks at the end of this sync, unless it is let go before.
    fn hold_looks(&self) {
        let is_busy = self.held().busy.is_some();
        if !is_busy {
            let busy = self.pleg.busy(&self.uid);
            self.held().busy = Some(busy);
        }
    }
}

tokio::task_local! {
    /// The turn of the sync that this task does. Nothing that is called outside of a sync waits for one.
    static TURN: Turn;
    /// The end of a pod that this task makes.
    static TAKE_DOWN: TakeDown;
}

/// Stops a pod; its signals and the end of its sandboxes wait for their turn.
pub async fn with_take_down<T>(take_down: TakeDown, end: impl Future<Output = T>) -> T {
    TAKE_DOWN.scope(take_down, end).await
}

/// Runs a sync; what it starts waits for its turn, and the turn ends with the sync at the latest.
pub fn with_turn<T>(pleg: Pleg, uid: PodUid, sync: impl Future<Output = T>) -> impl Future<Output = T> {
    TURN.scope(Turn { held: Arc::default(), images: Arc::default(), pleg, uid }, Box::pin(sync))
}

/// The next pod may start; PLEG still waits for the end of this sync.
fn give_back() {
    let _ = TURN.try_with(|turn| turn.held().slot.take());
}

/// PLEG is told what the next call makes.
fn making() -> Option<Making> {
    TURN.try_with(|turn| turn.pleg.making(&turn.uid)).ok()
}

/// Until the end of this sync the image stays.
fn keep(hold: ImageHold) {
    let _ = TURN.try_with(|turn| turn.images.lock().unwrap_or_else(PoisonError::into_inner).push(hold));
}

/// Before something that may take long: others start, and PLEG looks.
fn let_go() {
    let _ = TURN.try_with(|turn| std::mem::take(&mut *turn.held()));
}

/// Waits for something; when that takes longer than `soon`, others start meanwhile, and PLEG looks.
fn let_go_after<T>(soon: Duration, what: impl Future<Output = T>) -> impl Future<Output = T> {
    // Boxed, as in `stages::during`.
    let mut what = Box::pin(what);
    async move {
        tokio::select! {
            done = &mut what => done,
            () = tokio::time::sleep(soon) => {
                let_go();
                what.await
            }
        }
    }
}

fn unhurried<T>(what: impl Future<Output = T>) -> impl Future<Output = T> {
    let_go_after(SOON, what)
}

/// Waits for the end of one container of a pod that goes on.
async fn replacing<T>(stop: impl Future<Output = T>) -> T {
    give_back();
    let _ = TURN.try_with(Turn::hold_looks);
    let_go_after(REPLACED, stop).await
}

/// The runtime with bounded, fair starts and take-downs.
#[derive(Debug, Clone)]
pub struct RateLimitedRuntime {
    cri: CriClient,
    limiter: StartLimiter,
    take_downs: TakeDowns,
    pleg: Pleg,
    metrics: SandboxMetrics,
}

impl RateLimitedRuntime {
    pub fn new(
        cri: CriClient,
        limiter: StartLimiter,
        take_downs: TakeDowns,
        pleg: Pleg,
        metrics: SandboxMetrics,
    ) -> Self {
        RateLimitedRuntime { cri, limiter, take_downs, pleg, metrics }
    }

    /// PLEG is told what is gone; that it was gone already is as good.
    fn note_removal(&self, id: &str, removed: &Result<(), CriError>) {
        if removed.is_ok() || removed.as_ref().is_err_and(CriError::is_not_found) {
            self.pleg.removed(id);
        }
    }
}

impl RateLimitedRuntime {
    async fn take(&self) {
        let Ok(turn) = TURN.try_with(Turn::clone) else { return };
        let has_slot = turn.held().slot.is_some();
        if !has_slot {
            let slot = match self.limiter.try_acquire() {
                Some(slot) => slot,
                None => stages::waiting(self.limiter.acquire()).await,
            };
            turn.held().slot = Some(slot);
        }
        turn.hold_looks();
    }
}

impl RuntimeService for RateLimitedRuntime {
    async fn run_pod_sandbox(&self, config: &v1::PodSandboxConfig, handler: &str) -> Result<SandboxId, CriError> {
        self.take().await;
        let began = tokio::time::Instant::now();
        let making = making();
        let made = RuntimeService::run_pod_sandbox(&self.cri, config, handler).await;
        self.metrics.ran(handler, began.elapsed(), made.is_ok());
        if let (Some(making), Ok(id)) = (making, &made) {
            making.sandbox(id);
        }
        made.inspect_err(|_| let_go())
    }

    async fn sandbox_ips(&self, sandbox: &SandboxId) -> Result<Vec<IpAddr>, CriError> {
        self.cri.sandbox_ips(sandbox).await
    }

    async fn stop_pod_sandbox(&self, sandbox: &SandboxId) -> Result<(), CriError> {
        let stop = RuntimeService::stop_pod_sandbox(&self.cri, sandbox);
        match TAKE_DOWN.try_with(TakeDown::clone) {
            Ok(take_down) => take_down.stop_sandbox(stop).await,
            Err(_) => self.take_downs.stop_sandbox(stop).await,
        }
    }

    async fn remove_pod_sandbox(&self, sandbox: &SandboxId) -> Result<(), CriError> {
        let removed = RuntimeService::remove_pod_sandbox(&self.cri, sandbox).await;
        self.note_removal(sandbox.as_str(), &removed);
        removed
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: v1::ContainerConfig,
        sandbox_config: &v1::PodSandboxConfig,
    ) -> Result<ContainerId, CriError> {
        self.take().await;
        let making = making();
        let made = RuntimeService::create_container(&self.cri, sandbox, config, sandbox_config).await;
        if let (Some(making), Ok(id)) = (making, &made) {
            making.container(id, sandbox);
        }
        made.inspect_err(|_| let_go())
    }

    async fn start_container(&self, container: &ContainerId) -> Result<(), CriError> {
        let started = RuntimeService::start_container(&self.cri, container).await;
        give_back();
        started
    }

    async fn stop_container(&self, container: &ContainerId, grace: i64) -> Result<(), CriError> {
        let stop = RuntimeService::stop_container(&self.cri, container, grace);
        match TAKE_DOWN.try_with(TakeDown::clone) {
            Ok(take_down) => {
                // A kill waits out a grace period.
                let_go();
                take_down.stop(container, stop).await
            }
            Err(_) => replacing(stop).await,
        }
    }

    async fn remove_container(&self, container: &ContainerId) -> Result<(), CriError> {
        let removed = RuntimeService::remove_container(&self.cri, container).await;
        self.note_removal(container.as_str(), &removed);
        removed
    }

    async fn exec_sync(&self, container: &ContainerId, command: &[String]) -> Result<v1::ExecSyncResponse, CriError> {
        RuntimeService::exec_sync(&self.cri, container, command).await
    }

    async fn annotations(&self, container: &ContainerId) -> Result<BTreeMap<String, String>, CriError> {
        self.cri.annotations(container).await
    }

    async fn unhurried<T: Send>(&self, what: impl Future<Output = T> + Send) -> T {
        unhurried(what).await
    }
}

/// Files of pods, by volnetd's verbs.
#[derive(Debug, Clone)]
pub struct Files(pub Volnetd);

fn failed(error: VolnetdError) -> HostFilesError {
    HostFilesError { transient: error.is_transient(), message: error.to_string() }
}

fn log_id(pod: &PodIdentity) -> Option<api::PodLogId> {
    Some(api::PodLogId { namespace: pod.namespace.to_string(), name: pod.name.to_string(), uid: pod.uid.to_string() })
}

impl HostFiles for Files {
    async fn prepare_log_directory(
        &self,
        pod: &PodIdentity,
        container: Option<&str>,
    ) -> Result<LogDirectory, HostFilesError> {
        let container = container.unwrap_or_default().to_owned();
        let request = api::PrepareLogDirectoryRequest { pod: log_id(pod), container };
        let reply = self.0.prepare_log_directory(&CallContext::for_pod(&pod.uid), request).await.map_err(failed)?;
        Ok(LogDirectory { highest_index: reply.highest_index })
    }

    async fn write_etc_hosts(&self, pod: &PodIdentity, hosts: &EtcHosts) -> Result<PathBuf, HostFilesError> {
        let alias =
            |(ip, hostnames): &(String, Vec<String>)| api::HostAlias { ip: ip.clone(), hostnames: hostnames.clone() };
        let request = api::WriteEtcHostsRequest {
            pod_uid: pod.uid.to_string(),
            host_network: hosts.host_network,
            pod_ips: hosts.pod_ips.iter().map(IpAddr::to_string).collect(),
            hostname: hosts.hostname.clone(),
            domain: hosts.domain.clone(),
            aliases: hosts.aliases.iter().map(alias).collect(),
        };
        let reply = self.0.write_etc_hosts(&CallContext::for_pod(&pod.uid), request).await.map_err(failed)?;
        Ok(reply.host_path.into())
    }

    async fn create_termination_file(&self, pod: &PodIdentity, container: &str) -> Result<PathBuf, HostFilesError> {
        let request =
            api::CreateTerminationFileRequest { pod_uid: pod.uid.to_string(), container: container.to_owned() };
        let reply = self.0.create_termination_file(&CallContext::for_pod(&pod.uid), request).await.map_err(failed)?;
        Ok(reply.host_path.into())
    }

    async fn prepare_sub_path(
        &self,
        pod: &PodIdentity,
        container: &str,
        part: &SubPath,
        volume: &MountedVolume,
    ) -> Result<PathBuf, HostFilesError> {
        let root = match &volume.root {
            VolumeRoot::Plugin(name) => api::prepare_sub_path_request::Root::Plugin((*name).to_owned()),
            VolumeRoot::Flex { driver } => api::prepare_sub_path_request::Root::Plugin(driver.clone()),
            VolumeRoot::HostPath => {
                api::prepare_sub_path_request::Root::HostPath(volume.host_path.to_string_lossy().into_owned())
            }
            VolumeRoot::Image => {
                let message = format!("volume {:?} is an image: its parts are the runtime's to show", part.volume);
                return Err(HostFilesError { message, transient: false });
            }
        };
        let request = api::PrepareSubPathRequest {
            pod_uid: pod.uid.to_string(),
            volume: volume.folder.clone().unwrap_or_else(|| part.volume.clone()),
            container: container.to_owned(),
            index: u32::try_from(part.index).unwrap_or(u32::MAX),
            sub_path: part.path.clone(),
            root: Some(root),
            // Upstream makes what is missing for a read-only mount, too.
            read_only: false,
        };
        let reply = self.0.prepare_sub_path(&CallContext::for_pod(&pod.uid), request).await.map_err(failed)?;
        Ok(reply.host_path.into())
    }

    async fn read_env_file(&self, pod: &PodIdentity, volume: &str, path: &str) -> Result<Vec<u8>, HostFilesError> {
        let file = api::EnvFile { pod_uid: pod.uid.to_string(), volume: volume.to_owned(), path: path.to_owned() };
        self.0.read_env_file(file).await.map_err(failed)
    }

    async fn link_container_log(
        &self,
        pod: &PodIdentity,
        container: &str,
        restart_count: u32,
        id: &ContainerId,
    ) -> Result<(), HostFilesError> {
        let request = api::LinkContainerLogRequest {
            pod: log_id(pod),
            container: container.to_owned(),
            restart_count,
            container_id: id.to_string(),
        };
        self.0.link_container_log(&CallContext::for_pod(&pod.uid), request).await.map(|_| ()).map_err(failed)
    }

    async fn remove_container_log(
        &self,
        pod: &PodIdentity,
        container: &str,
        restart_count: u32,
        id: &ContainerId,
    ) -> Result<(), HostFilesError> {
        let guard = Some(self.0.guard("remove_container_log").map_err(failed)?);
        let request = api::RemoveContainerLogRequest {
            pod: log_id(pod),
            container: container.to_owned(),
            restart_count,
            container_id: id.to_string(),
            guard,
        };
        self.0.remove_container_log(&CallContext::for_pod(&pod.uid), request).await.map(|_| ()).map_err(failed)
    }
}

/// Images, by the image manager; the pod's slot is given back while one is pulled.
#[derive(Debug, Clone)]
pub struct PodImages {
    pub manager: Arc<ImageManager<CriClient>>,
    pub keyring: Arc<Keyring>,
    pub reporter: Arc<Reporter>,
    pub starts: Arc<StartTimes>,
}

/// Credentials for one pod's pull; what is missing is told to the pod.
struct PullCredentials<'a> {
    images: &'a PodImages,
    pod: &'a PodIdentity,
    service_account: &'a str,
    secrets: Vec<String>,
}

impl<'a> PullCredentials<'a> {
    fn of(images: &'a PodImages, request: &ImageRequest<'a>) -> Self {
        let spec = request.object.spec.as_ref();
        let secrets = spec.and_then(|s| s.image_pull_secrets.as_ref()).into_iter().flatten();
        PullCredentials {
            images,
            pod: request.pod,
            service_account: spec.and_then(|s| s.service_account_name.as_deref()).unwrap_or_default(),
            secrets: secrets.map(|secret| secret.name.clone()).filter(|name| !name.is_empty()).collect(),
        }
    }

    fn warn(&self, reason: &'static str, message: String) {
        self.images.reporter.emit(PodEvent::pod(self.pod, EventType::Warning, reason, message));
    }
}

impl Credentials for PullCredentials<'_> {
    async fn find(&self, repository: &str) -> Vec<Credential> {
        let puller = Puller {
            namespace: self.pod.namespace.as_str(),
            pod: self.pod.name.as_str(),
            pod_uid: self.pod.uid.as_str(),
            service_account: self.service_account,
            secrets: &self.secrets,
        };
        let found = self.images.keyring.find(puller, repository).await;
        if !found.missing_secrets.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                found.missing_secrets.join(", ")
            );
            self.warn("FailedToRetrieveImagePullSecret", message);
        }
        for problem in found.provider_problems {
            self.warn("FailedImageCredentialProvider", format!("Image credential provider {problem}"));
        }
        found.credentials
    }
}

impl Images for PodImages {
    async fn ensure_image(&self, request: ImageRequest<'_>) -> Result<ResolvedImage, ImageFailure> {
        let events = |kind: EventType, reason: &'static str, message: &str| {
            // Time for images is no fault of the node: the start of a pod is counted without it, too.
            match reason {
                "Pulling" => self.starts.pull_began(&request.pod.uid, request.image),
                "Pulled" => self.starts.image_is_there(&request.pod.uid, request.image),
                _ => {}
            }
            self.reporter.emit(match request.container {
                Some(target) => PodEvent::container(request.pod, target, kind, reason, message),
                None => PodEvent::pod(request.pod, kind, reason, message),
            });
        };
        // A handler would go along only with the gate RuntimeClassInImageCriApi, which is alpha.
        let annotations = request.object.metadata.annotations.clone().unwrap_or_default();
        let policy = match request.pull_policy {
            "" => None,
            policy => Some(policy),
        };
        let wanted = kubelet_images::ImageRequest {
            pod_uid: &request.pod.uid,
            image: request.image,
            policy: PullPolicy::of(policy, request.image),
            annotations: &annotations,
            sandbox_config: Some(request.sandbox_config),
        };
        let credentials = PullCredentials::of(self, &request);
        let ensure = self.manager.hold_image(wanted, &credentials, &events);
        match unhurried(ensure).await {
            Ok((image, hold)) => {
                keep(hold);
                let user = ImageUser { uid: image.user_id, username: image.user_name };
                Ok(ResolvedImage { image_ref: image.id, user })
            }
            Err(error) => {
                let_go();
                let back_off_until = error
                    .retry_at
                    .map(|at| SystemTime::now() + at.saturating_duration_since(tokio::time::Instant::now()));
                tracing::debug!(image = request.image, ?back_off_until, "no image: {error}");
                Err(ImageFailure { reason: error.reason.to_string(), message: error.message, back_off_until })
            }
        }
    }

    fn count_volumes(&self, counted: Counted) {
        self.manager.count_volumes(counted.requested, counted.mounts, counted.failed);
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_cri::DirectConnector;
    use kubelet_pleg::PlegOptions;
    use tokio::time::sleep;

    use super::*;

    fn looks_are_held() -> bool {
        TURN.with(|turn| turn.held().busy.is_some())
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_container_that_is_replaced_is_told_with_its_successor_or_after_a_second() {
        let runtime =
            CriClient::new(Arc::new(DirectConnector("/nowhere".into())), bulkhead_cri::CriDeadlines::default());
        let (pleg, _task) = Pleg::new(runtime, PlegOptions::default(), &prometheus::Registry::new()).unwrap();
        for (millis, held) in [(0, true), (900, true), (1100, false)] {
            let uid = PodUid::parse("u").unwrap();
            with_turn(pleg.clone(), uid, async {
                replacing(sleep(Duration::from_millis(millis))).await;
                assert_eq!(looks_are_held(), held, "{millis} ms");
                unhurried(sleep(SOON * 2)).await;
                assert!(!looks_are_held(), "an image that is pulled takes long");
            })
            .await;
        }
        // A pod that ends has no successor.
        replacing(sleep(Duration::from_millis(1))).await;
    }
}
