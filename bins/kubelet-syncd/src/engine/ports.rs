//! The runtime side's ports: files on the host by volnetd's verbs, images by the image manager, and the calls that make
//! sandboxes and containers, which wait for their turn.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bulkhead_cri::{CriClient, CriError, v1};
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::{ContainerId, PodUid, SandboxId};

use super::events::Reporter;
use crate::images::{ImageManager, PullPolicy};
use crate::pleg::{Busy, Pleg};
use crate::runtime::events::{EventSink as _, EventType, PodEvent};
use crate::runtime::hosts::EtcHosts;
use crate::runtime::podspec::PodIdentity;
use crate::runtime::ports::{
    HostFiles, HostFilesError, ImageFailure, ImageRequest, Images, LogDirectory, ResolvedImage, RuntimeApi,
};
use crate::runtime::security::ImageUser;
use crate::start_limit::{StartLimiter, StartSlot};
use crate::volnetd::{Volnetd, VolnetdError};

/// An image that takes longer than this to be there is being pulled: no slot is held meanwhile.
const IMAGE_PRESENT: Duration = Duration::from_millis(300);

/// What one sync of one pod holds while it starts something.
#[derive(Default)]
struct Held {
    slot: Option<StartSlot>,
    /// Keeps PLEG from looking at each step; the sync asks for one look at its end.
    busy: Option<Busy>,
}

#[derive(Clone)]
struct Turn {
    held: Arc<Mutex<Held>>,
    pleg: Pleg,
    uid: PodUid,
}

impl Turn {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

tokio::task_local! {
    /// The turn of the sync that this task does. Nothing that is called outside of a sync waits for one.
    static TURN: Turn;
}

/// Runs a sync; what it starts waits for its turn, and the turn ends with the sync at the latest.
pub async fn with_turn<T>(pleg: Pleg, uid: PodUid, sync: impl Future<Output = T>) -> T {
    TURN.scope(Turn { held: Arc::default(), pleg, uid }, sync).await
}

/// The next pod may start; PLEG still waits for the end of this sync.
fn give_back() {
    let _ = TURN.try_with(|turn| turn.held().slot.take());
}

/// Before something that may take long: others start, and PLEG looks.
fn let_go() {
    let _ = TURN.try_with(|turn| std::mem::take(&mut *turn.held()));
}

/// The runtime with bounded, fair starts.
#[derive(Debug, Clone)]
pub struct Paced {
    pub cri: CriClient,
    pub limiter: StartLimiter,
}

impl Paced {
    async fn take(&self) {
        let Ok(turn) = TURN.try_with(Turn::clone) else { return };
        let has_slot = turn.held().slot.is_some();
        if !has_slot {
            let slot = self.limiter.acquire().await;
            turn.held().slot = Some(slot);
        }
        let is_busy = turn.held().busy.is_some();
        if !is_busy {
            let busy = turn.pleg.busy(&turn.uid);
            turn.held().busy = Some(busy);
        }
    }
}

impl RuntimeApi for Paced {
    async fn run_pod_sandbox(&self, config: &v1::PodSandboxConfig, handler: &str) -> Result<SandboxId, CriError> {
        self.take().await;
        RuntimeApi::run_pod_sandbox(&self.cri, config, handler).await.inspect_err(|_| let_go())
    }

    async fn sandbox_ips(&self, sandbox: &SandboxId) -> Result<Vec<IpAddr>, CriError> {
        self.cri.sandbox_ips(sandbox).await
    }

    async fn stop_pod_sandbox(&self, sandbox: &SandboxId) -> Result<(), CriError> {
        RuntimeApi::stop_pod_sandbox(&self.cri, sandbox).await
    }

    async fn remove_pod_sandbox(&self, sandbox: &SandboxId) -> Result<(), CriError> {
        RuntimeApi::remove_pod_sandbox(&self.cri, sandbox).await
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: v1::ContainerConfig,
        sandbox_config: &v1::PodSandboxConfig,
    ) -> Result<ContainerId, CriError> {
        self.take().await;
        RuntimeApi::create_container(&self.cri, sandbox, config, sandbox_config).await.inspect_err(|_| let_go())
    }

    async fn start_container(&self, container: &ContainerId) -> Result<(), CriError> {
        let started = RuntimeApi::start_container(&self.cri, container).await;
        give_back();
        started
    }

    async fn stop_container(&self, container: &ContainerId, grace: i64) -> Result<(), CriError> {
        // A kill waits out a grace period.
        let_go();
        RuntimeApi::stop_container(&self.cri, container, grace).await
    }

    async fn remove_container(&self, container: &ContainerId) -> Result<(), CriError> {
        RuntimeApi::remove_container(&self.cri, container).await
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
    pub reporter: Arc<Reporter>,
}

impl Images for PodImages {
    async fn ensure_image(&self, request: ImageRequest<'_>) -> Result<ResolvedImage, ImageFailure> {
        let events = |kind: EventType, reason: &'static str, message: &str| {
            let target = (request.kind, request.container);
            self.reporter.emit(PodEvent::container(request.pod, target, kind, reason, message));
        };
        let annotations =
            [("io.kubernetes.cri.runtime-handler".to_owned(), request.runtime_handler.to_owned())].into_iter();
        let annotations = annotations.filter(|(_, handler)| !handler.is_empty()).collect();
        let policy = match request.pull_policy {
            "" => None,
            policy => Some(policy),
        };
        let wanted = crate::images::ImageRequest {
            pod_uid: &request.pod.uid,
            image: request.image,
            policy: PullPolicy::of(policy, request.image),
            annotations: &annotations,
            sandbox_config: Some(request.sandbox_config),
            credentials: &[],
        };
        let ensure = self.manager.ensure_image_exists(wanted, &events);
        tokio::pin!(ensure);
        let outcome = tokio::select! {
            outcome = &mut ensure => outcome,
            () = tokio::time::sleep(IMAGE_PRESENT) => {
                let_go();
                ensure.await
            }
        };
        match outcome {
            Ok(image) => {
                let user = ImageUser { uid: image.user_id, username: image.user_name };
                Ok(ResolvedImage { image_ref: image.id, user })
            }
            Err(error) => {
                let_go();
                let back_off_until = error
                    .retry_at
                    .map(|at| SystemTime::now() + at.saturating_duration_since(tokio::time::Instant::now()));
                tracing::debug!(container = request.container, ?back_off_until, "no image: {error}");
                Err(ImageFailure { reason: error.reason.to_string(), message: error.message, back_off_until })
            }
        }
    }
}
