//! Which pods there are: asked of kubelet-syncd when somebody wants statistics.
//!
//! Asked, not watched: a pod that starts sends a dozen updates with its whole status, and nobody looks at statistics
//! that often. When kubelet-syncd does not answer, the last list is used - unknown is not "gone"; nor is a pod that it does not
//! list before all sources of pods have delivered ([`crate::known_pods`]).

use std::future::Future;
use std::time::Duration;

use bulkhead_ipc::MAX_POD_BYTES;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd::node_client::NodeClient;
use bulkhead_ipc::syncd::pods_client::PodsClient;
use bulkhead_ipc::syncd::{GetNodeRequest, ListPodsRequest, PodState};
use bulkhead_types::{ContainerName, Namespace, PodName, PodUid, VolumeName};

use crate::ask_syncd::each_at_most;

/// How long kubelet-syncd may take to answer.
const DEADLINE: Duration = Duration::from_secs(2);
/// More pods than a node can have (maxPods is at most a few thousand in practice); the rest of a longer list is cut.
const MAX_PODS: usize = 10_000;

/// What statistics need to know of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    pub uid: PodUid,
    pub namespace: Namespace,
    pub name: PodName,
    /// When its sandbox was made, as upstream shows it: its figures began then. RFC 3339, or empty.
    pub started_at: String,
    /// Path of the pod's cgroup, when it has one.
    pub cgroup: Option<String>,
    /// The runtime's id of its sandbox, when it has one.
    pub sandbox: Option<String>,
    /// Its interfaces are the node's.
    pub host_network: bool,
    /// Those that run.
    pub containers: Vec<PodContainer>,
    /// Volumes that the agent made: what is the host's own (hostPath) is nobody's usage.
    pub volumes: Vec<PodVolume>,
    /// The span of its newest change (W3C Trace Context), while traces are recorded.
    pub trace_parent: String,
}

/// A volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodVolume {
    pub name: VolumeName,
    pub kind: VolumeKind,
}

/// Kinds of volumes that have figures, by their plugins' folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeKind {
    EmptyDir,
    ConfigMap,
    Secret,
    Projected,
    DownwardApi,
}

impl VolumeKind {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "emptyDir" => VolumeKind::EmptyDir,
            "configMap" => VolumeKind::ConfigMap,
            "secret" => VolumeKind::Secret,
            "projected" => VolumeKind::Projected,
            "downwardAPI" => VolumeKind::DownwardApi,
            _ => return None,
        })
    }

    /// Upstream's name of the plugin, which names its folder.
    pub const fn plugin(self) -> &'static str {
        match self {
            VolumeKind::EmptyDir => "kubernetes.io/empty-dir",
            VolumeKind::ConfigMap => "kubernetes.io/configmap",
            VolumeKind::Secret => "kubernetes.io/secret",
            VolumeKind::Projected => "kubernetes.io/projected",
            VolumeKind::DownwardApi => "kubernetes.io/downward-api",
        }
    }

    /// Counts into the pod's ephemeral storage, if it is on disk (upstream `IsLocalEphemeralVolume`).
    pub const fn is_ephemeral(self) -> bool {
        matches!(self, VolumeKind::EmptyDir | VolumeKind::ConfigMap)
    }
}

/// A running container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodContainer {
    pub name: ContainerName,
    pub id: String,
    pub image: String,
    /// RFC 3339.
    pub started_at: String,
}

/// What kubelet-syncd says of the node beside its pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeWord {
    /// Folder of the image file system as the runtime reports it.
    pub image_fs: Option<String>,
    /// Name of the image that the runtime makes its sandboxes of.
    pub sandbox_image: Option<String>,
    /// All sources of pods have delivered since it started.
    pub sources_ready: bool,
}

/// Where pods come from; the tests have their own.
pub trait PodSource: Send + Sync + 'static {
    /// The pods that are known, or `None` when that is not to be had now.
    fn pods(&self) -> impl Future<Output = Option<Vec<Pod>>> + Send;
    /// `None`: nobody answers.
    fn node(&self) -> impl Future<Output = Option<NodeWord>> + Send;
}

/// kubelet-syncd.
#[derive(Debug)]
pub struct SyncdPods {
    link: Link,
}

impl SyncdPods {
    pub fn new(link: Link) -> Self {
        SyncdPods { link }
    }

    async fn list(&self) -> Result<Vec<Pod>, tonic::Status> {
        let request = CallContext::new().request(ListPodsRequest {}, DEADLINE);
        let mut client = PodsClient::new(self.link.channel()).max_decoding_message_size(MAX_POD_BYTES);
        let list = client.list(request).await?.into_inner();
        let mut pods = Vec::new();
        each_at_most(list, MAX_PODS, "pods", |state| match pod(state) {
            Ok(pod) => pods.push(pod),
            Err(error) => tracing::warn!(%error, "kubelet-syncd named a pod that cannot be one"),
        })
        .await?;
        Ok(pods)
    }
}

impl PodSource for SyncdPods {
    async fn pods(&self) -> Option<Vec<Pod>> {
        match tokio::time::timeout(DEADLINE, self.list()).await {
            Ok(Ok(pods)) => Some(pods),
            Ok(Err(status)) => {
                tracing::debug!(code = ?status.code(), "kubelet-syncd did not list its pods: {}", status.message());
                None
            }
            Err(_) => None,
        }
    }

    async fn node(&self) -> Option<NodeWord> {
        let request = CallContext::new().request(GetNodeRequest {}, DEADLINE);
        let mut client = NodeClient::new(self.link.channel());
        let reply = tokio::time::timeout(DEADLINE, client.get(request)).await.ok()?.ok()?.into_inner();
        let image_fs = Some(reply.image_fs_mountpoint).filter(|path| path.starts_with('/'));
        let sandbox_image = Some(reply.sandbox_image).filter(|name| !name.is_empty());
        Some(NodeWord { image_fs, sandbox_image, sources_ready: reply.sources_ready })
    }
}

/// Checks every id: they become paths.
fn pod(state: PodState) -> Result<Pod, bulkhead_types::IdError> {
    let mut containers = Vec::new();
    for container in state.containers {
        // The id becomes a path component of a cgroup.
        if container.state == "running" && bulkhead_types::ContainerId::parse(&container.id).is_ok() {
            let name = ContainerName::parse(&container.name)?;
            let (image, started_at) = (container.image, container.started_at);
            containers.push(PodContainer { name, id: container.id, image, started_at });
        }
    }
    let mut volumes = Vec::new();
    for volume in state.volumes {
        if let Some(kind) = VolumeKind::parse(&volume.kind) {
            volumes.push(PodVolume { name: VolumeName::parse(&volume.name)?, kind });
        }
    }
    // A kubelet-syncd of before says nothing of the sandbox.
    let began = if state.sandbox_created_at.is_empty() { state.started_at } else { state.sandbox_created_at };
    Ok(Pod {
        uid: PodUid::parse(&state.uid)?,
        namespace: Namespace::parse(&state.namespace)?,
        name: PodName::parse(&state.name)?,
        started_at: began,
        cgroup: crate::cgroup::pod_path(&state.cgroup),
        sandbox: Some(state.sandbox_id).filter(|id| bulkhead_types::SandboxId::parse(id).is_ok()),
        host_network: state.host_network,
        containers,
        volumes,
        trace_parent: state.trace_parent,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::syncd::{ContainerState, PodVolume as Volume};

    fn state() -> PodState {
        PodState {
            uid: "u1".into(),
            namespace: "default".into(),
            name: "web".into(),
            cgroup: "/kubepods/podu1".into(),
            containers: vec![
                ContainerState { name: "a".into(), id: "c1".into(), state: "running".into(), ..Default::default() },
                ContainerState { name: "b".into(), id: "c2".into(), state: "terminated".into(), ..Default::default() },
                ContainerState { name: "c".into(), id: "../x".into(), state: "running".into(), ..Default::default() },
            ],
            volumes: vec![
                Volume { name: "scratch".into(), kind: "emptyDir".into(), ..Default::default() },
                Volume { name: "etc".into(), kind: "hostPath".into(), ..Default::default() },
                Volume { name: "token".into(), kind: "projected".into(), ..Default::default() },
            ],
            ..Default::default()
        }
    }

    #[test]
    fn only_what_runs_and_what_is_an_id() {
        let pod = pod(state()).unwrap();
        assert_eq!(pod.containers.iter().map(|c| c.id.as_str()).collect::<Vec<_>>(), ["c1"]);
        let kinds: Vec<_> = pod.volumes.iter().map(|volume| volume.kind).collect();
        assert_eq!(kinds, [VolumeKind::EmptyDir, VolumeKind::Projected], "what is the host's is not measured");
        assert_eq!(pod.sandbox, None);
        assert_eq!(pod.cgroup.as_deref(), Some("/kubepods/podu1"));
    }

    #[test]
    fn a_pod_began_with_its_sandbox() {
        let of = |sandbox: &str| {
            let began = PodState { started_at: "t1".into(), sandbox_created_at: sandbox.into(), ..state() };
            pod(began).unwrap().started_at
        };
        assert_eq!([of("t2"), of("")], ["t2", "t1"]);
    }

    #[test]
    fn paths_are_refused() {
        for break_it in [
            (|s: &mut PodState| s.uid = "../..".into()) as fn(&mut PodState),
            |s| s.namespace = "a/b".into(),
            |s| s.volumes[0].name = "..".into(),
            |s| s.containers[0].name = "a/b".into(),
        ] {
            let mut state = state();
            break_it(&mut state);
            assert!(pod(state).is_err());
        }
    }
}
