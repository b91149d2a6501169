//! The runtime's calls that change something, as a trait: the order of work can be tested without a runtime.

mod cri;

use std::collections::BTreeMap;
use std::net::IpAddr;

use bulkhead_cri::{CriError, v1};
use bulkhead_types::{ContainerId, SandboxId};

/// The CRI calls that change something, and the few whose answers are needed at once. Clones speak to the same runtime:
/// a hook that goes on by itself holds one.
pub trait RuntimeService: Clone + Send + Sync + 'static {
    fn run_pod_sandbox(
        &self,
        config: &v1::PodSandboxConfig,
        runtime_handler: &str,
    ) -> impl Future<Output = Result<SandboxId, CriError>> + Send;
    /// Addresses of the sandbox, primary first; those that do not parse are left out.
    fn sandbox_ips(&self, sandbox: &SandboxId) -> impl Future<Output = Result<Vec<IpAddr>, CriError>> + Send;
    fn stop_pod_sandbox(&self, sandbox: &SandboxId) -> impl Future<Output = Result<(), CriError>> + Send;
    fn remove_pod_sandbox(&self, sandbox: &SandboxId) -> impl Future<Output = Result<(), CriError>> + Send;
    fn create_container(
        &self,
        sandbox: &SandboxId,
        config: v1::ContainerConfig,
        sandbox_config: &v1::PodSandboxConfig,
    ) -> impl Future<Output = Result<ContainerId, CriError>> + Send;
    fn start_container(&self, container: &ContainerId) -> impl Future<Output = Result<(), CriError>> + Send;
    /// `grace`: seconds between the stop signal and the kill.
    fn stop_container(&self, container: &ContainerId, grace: i64) -> impl Future<Output = Result<(), CriError>> + Send;
    fn remove_container(&self, container: &ContainerId) -> impl Future<Output = Result<(), CriError>> + Send;
    /// Runs a command in a container and waits for its end, however long. Dropping the future kills the command.
    fn exec_sync(
        &self,
        container: &ContainerId,
        command: &[String],
    ) -> impl Future<Output = Result<v1::ExecSyncResponse, CriError>> + Send;
    /// The annotations that a container was created with.
    fn annotations(
        &self,
        container: &ContainerId,
    ) -> impl Future<Output = Result<BTreeMap<String, String>, CriError>> + Send;
    /// Waits for something that may take long and makes nothing: where starts are bounded, others go first meanwhile.
    fn unhurried<T: Send>(&self, what: impl Future<Output = T> + Send) -> impl Future<Output = T> + Send {
        what
    }
}
