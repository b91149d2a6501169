//! The runtime's view of a pod, as PLEG caches it and as the pure functions read it. No generated type goes past here.

use std::net::IpAddr;
use std::time::SystemTime;

use bulkhead_types::{ContainerId, PodUid, SandboxId};

/// State of a sandbox (CRI `PodSandboxState`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SandboxState {
    Ready,
    NotReady,
}

/// State of a container instance (CRI `ContainerState`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RunState {
    Created,
    Running,
    Exited,
    Unknown,
}

/// One sandbox of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxStatus {
    pub id: SandboxId,
    pub attempt: u32,
    pub state: SandboxState,
    pub created_at: SystemTime,
    /// CRI network namespace mode is NODE.
    pub host_network: bool,
    /// The status carried a network block (it may still hold no address).
    pub has_network: bool,
    /// First the primary address, then the additional ones; in CRI's order.
    pub ips: Vec<IpAddr>,
}

/// CPU and memory of a running container by the runtime's own word (CRI `ContainerStatus.resources`). None: it does not
/// say, or there is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuntimeResources {
    /// Thousandths of a core.
    pub cpu_request: Option<i64>,
    pub cpu_limit: Option<i64>,
    /// Bytes.
    pub memory_limit: Option<i64>,
}

/// Who a container's first process is, as the runtime found out (CRI `ContainerStatus.user.linux`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinuxUser {
    pub uid: i64,
    pub gid: i64,
    /// In the runtime's order.
    pub supplemental_groups: Vec<i64>,
}

/// One instance of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerStatus {
    pub id: ContainerId,
    pub name: String,
    pub sandbox_id: SandboxId,
    pub state: RunState,
    pub created_at: SystemTime,
    pub started_at: Option<SystemTime>,
    pub finished_at: Option<SystemTime>,
    pub exit_code: i32,
    pub reason: String,
    /// CRI's message; the termination message file is joined to it by whoever builds the API status.
    pub message: String,
    /// CRI `image.image`, as upstream: containerd says the first tag of the image there, its id where it has none.
    pub image: String,
    /// CRI `image_ref`.
    pub image_ref: String,
    /// From annotation `io.kubernetes.container.restartCount`.
    pub restart_count: u32,
    /// From annotation `io.kubernetes.container.hash`; 0 when absent or unreadable.
    pub hash: u32,
    pub log_path: String,
    /// From the annotations `io.kubernetes.container.terminationMessagePath` and `...Policy`.
    pub termination_message_path: String,
    pub termination_message_policy: String,
    /// What the runtime says that the container has; runtimes that say nothing leave it empty.
    pub resources: RuntimeResources,
    /// None: the runtime does not say.
    pub user: Option<LinuxUser>,
    /// Host path that is mounted at the termination message path, from the runtime's mount list.
    pub termination_message_host_path: Option<String>,
    /// From annotation `io.kubernetes.pod.terminationGracePeriod`, seconds.
    pub pod_termination_grace: Option<i64>,
    /// From annotation `io.kubernetes.pod.deletionGracePeriod`, seconds.
    pub pod_deletion_grace: Option<i64>,
    /// CRI's number of the signal that stops it; 0 when the runtime does not say.
    pub stop_signal: i32,
    /// Images that it mounts as volumes, as the runtime was told of them.
    pub image_volumes: Vec<ImageMount>,
}

/// An image in a container's file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageMount {
    /// In the container.
    pub path: String,
    /// The runtime's id of the image.
    pub image: String,
}

/// Everything the runtime knows about a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RuntimePod {
    pub uid: Option<PodUid>,
    pub namespace: String,
    pub name: String,
    /// Newest first: highest attempt, then creation time, then id.
    pub sandboxes: Vec<SandboxStatus>,
    /// All instances of all containers, newest first: creation time, then id.
    pub containers: Vec<ContainerStatus>,
}

impl RuntimePod {
    /// Newest instance of the container of that name.
    pub fn newest(&self, container: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|c| c.name == container)
    }

    pub fn running(&self) -> impl Iterator<Item = &ContainerStatus> {
        self.containers.iter().filter(|c| c.state == RunState::Running)
    }

    pub fn has_ready_sandbox(&self) -> bool {
        self.sandboxes.iter().any(|s| s.state == SandboxState::Ready)
    }

    /// Addresses of the newest sandbox, when it is ready.
    pub fn ips(&self) -> &[IpAddr] {
        match self.sandboxes.first() {
            Some(sandbox) if sandbox.state == SandboxState::Ready => &sandbox.ips,
            _ => &[],
        }
    }
}
