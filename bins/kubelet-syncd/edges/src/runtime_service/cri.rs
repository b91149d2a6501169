//! The executor's calls to the runtime, made with the CRI client.

use std::collections::BTreeMap;
use std::net::IpAddr;

use bulkhead_cri::{CONTAINERD_NAMESPACE, Code, CriClient, CriError, v1};
use bulkhead_types::{ContainerId, SandboxId};

use super::RuntimeService;

/// An id that the runtime gave and that is none: nothing can be done with it.
fn bad_id(method: &'static str, error: &bulkhead_types::IdError) -> CriError {
    CriError { code: Code::Internal, method, message: format!("the runtime answered with an unusable id: {error}") }
}

impl RuntimeService for CriClient {
    async fn run_pod_sandbox(&self, config: &v1::PodSandboxConfig, handler: &str) -> Result<SandboxId, CriError> {
        let request = v1::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: handler.to_owned() };
        let reply = CriClient::run_pod_sandbox(self, request).await?;
        SandboxId::parse(&reply.pod_sandbox_id).map_err(|e| bad_id("RunPodSandbox", &e))
    }

    async fn sandbox_ips(&self, sandbox: &SandboxId) -> Result<Vec<IpAddr>, CriError> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox.to_string(), verbose: false };
        let reply = self.pod_sandbox_status(request).await?;
        Ok(reply.status.and_then(|s| s.network).unwrap_or_default().addresses())
    }

    async fn stop_pod_sandbox(&self, sandbox: &SandboxId) -> Result<(), CriError> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: sandbox.to_string() };
        CriClient::stop_pod_sandbox(self, request).await.map(|_| ())
    }

    async fn remove_pod_sandbox(&self, sandbox: &SandboxId) -> Result<(), CriError> {
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: sandbox.to_string() };
        CriClient::remove_pod_sandbox(self, request).await.map(|_| ())
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: v1::ContainerConfig,
        sandbox_config: &v1::PodSandboxConfig,
    ) -> Result<ContainerId, CriError> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_string(),
            config: Some(config),
            sandbox_config: Some(sandbox_config.clone()),
        };
        let reply = CriClient::create_container(self, request).await?;
        ContainerId::parse(&reply.container_id).map_err(|e| bad_id("CreateContainer", &e))
    }

    async fn start_container(&self, container: &ContainerId) -> Result<(), CriError> {
        let request = v1::StartContainerRequest { container_id: container.to_string() };
        CriClient::start_container(self, request).await.map(|_| ())
    }

    async fn stop_container(&self, container: &ContainerId, grace: i64) -> Result<(), CriError> {
        let request = v1::StopContainerRequest { container_id: container.to_string(), timeout: grace };
        CriClient::stop_container(self, request).await.map(|_| ())
    }

    async fn remove_container(&self, container: &ContainerId) -> Result<(), CriError> {
        let request = v1::RemoveContainerRequest { container_id: container.to_string() };
        match CriClient::remove_container(self, request.clone()).await {
            Err(error) if error.is_lost_task() => {
                tracing::warn!(%container, %error, "the runtime has lost a task of this dead container, ending it");
                self.end_lost_task(CONTAINERD_NAMESPACE, container.as_str()).await?;
                CriClient::remove_container(self, request).await.map(|_| ())
            }
            other => other.map(|_| ()),
        }
    }

    async fn exec_sync(&self, container: &ContainerId, command: &[String]) -> Result<v1::ExecSyncResponse, CriError> {
        // Without a timeout the client sets no deadline either.
        let request = v1::ExecSyncRequest { container_id: container.to_string(), cmd: command.to_vec(), timeout: 0 };
        CriClient::exec_sync(self, request).await
    }

    async fn annotations(&self, container: &ContainerId) -> Result<BTreeMap<String, String>, CriError> {
        let request = v1::ContainerStatusRequest { container_id: container.to_string(), verbose: false };
        let status = self.container_status(request).await?.status;
        Ok(status.map(|status| status.annotations).unwrap_or_default())
    }
}
