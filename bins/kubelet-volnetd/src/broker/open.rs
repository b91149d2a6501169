//! Opening each kind, by the rule that its row names.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_ipc::broker::Caller;
use bulkhead_ipc::volnetd::{self as wire, StateKind, open_request::Kind};
use bulkhead_sys::cgroup::CgroupError;
use bulkhead_sys::memfd::{self, MemfdError};
use bulkhead_sys::open::{self, FileKind, OpenError};
use bulkhead_types::LogStamp;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::client_pair::ClientPairError;
use crate::agent_sockets::{self, AgentSocketError, Binding};
use crate::files::{FileError, image_pulls, rotation};
use crate::kubeconfig::KubeconfigError;
use crate::node::{Node, Settings};
use crate::validate::{self, InvalidRequest, LogPlace};
use crate::volumes::VolumeError;
use crate::{journal, other_kubelet, verbs};

/// Upstream's state files have some bytes for each pod; the largest, of a node with 500 pods, is below 2 MiB.
const MAX_STATE_BYTES: u64 = 16 << 20;

/// Why a descriptor is not given.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    #[error("{what} is not configured on this node")]
    NotConfigured { what: &'static str },
    #[error("{kind} is not served by this version")]
    NotServed { kind: &'static str },
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error("the kubeconfig's current context names no {what}")]
    NotNamed { what: &'static str },
    #[error("there are {count} places for registry credentials, {index} is past the last one")]
    PastTheLast { index: u32, count: usize },
    #[error(transparent)]
    Open(#[from] OpenError),
    /// What a plugin that has ended left of its socket is as good as none: who comes in its place binds anew. A full backlog is another
    /// matter.
    #[error(transparent)]
    NobodyListens(OpenError),
    #[error("failed to open {path}")]
    Kernel { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("failed to prepare the state folder {path}")]
    PrivateState { path: PathBuf, source: std::io::Error },
    #[error("failed to take over {name}")]
    Memfd { name: &'static str, source: MemfdError },
    #[error(transparent)]
    ClientPair(#[from] ClientPairError),
    #[error("failed to write {path}")]
    PutState { path: PathBuf, source: std::io::Error },
    #[error("{path} is there already")]
    Exists { path: PathBuf },
    #[error("{path} is to be a link to the newest pair, but it is something else: move it away")]
    NotALink { path: PathBuf },
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    File(#[from] FileError),
}

pub fn open(node: &Node, caller: Caller, kind: Kind) -> Result<OwnedFd, BrokerError> {
    match kind {
        Kind::RuntimeSocket(socket) => runtime_socket(node, socket.image_service),
        Kind::Manifest(manifest) => self::manifest(node, &manifest),
        Kind::PrivateState(_) => super::private_state::open(node, caller),
        Kind::ContainerLog(log) => container_log(node, &log),
        Kind::RotatedLog(log) => {
            let place = validate::log_place(log.pod.as_ref(), &log.container, log.restart_count)?;
            Ok(rotation::open_rotated(node, &place, validate::pick(&log)?)?)
        }
        Kind::CompressedLog(log) => {
            let (place, stamp) = compressed_log(&log)?;
            Ok(rotation::new_compressed(node, &place, stamp)?)
        }
        Kind::TerminationMessage(message) => termination_message(node, &message),
        Kind::State(state) => {
            let (name, _) = state_file(state.kind())?;
            let root = open::base_dir(&node.settings.paths.root_dir)?;
            if state.kind() == StateKind::ImagePullRecords {
                return Ok(image_pulls::open(root.as_fd())?);
            }
            Ok(open::regular_beneath(root.as_fd(), name)?)
        }
        Kind::MemcgEvent(event) => {
            let path = node.cgroups.watched(event.pods)?;
            Ok(node.cgroups.hierarchies().memory_event(&path, event.threshold_bytes)?)
        }
        Kind::Psi(psi) => match psi.resource() {
            wire::psi::Resource::Memory => {
                Ok(node.cgroups.hierarchies().memory_pressure_trigger(&node.cgroups.watched(psi.pods)?)?)
            }
            other => Err(validate::bad("resource", other.as_str_name(), "RESOURCE_MEMORY").into()),
        },
        Kind::ProductUuid(_) => kernel_file("/sys/class/dmi/id/product_uuid", OFlags::RDONLY),
        Kind::Credential(credential) => super::credential::open(node, credential.kind()),
        Kind::Listener(listener) if listener.kind() == wire::listener::Kind::PodResources => {
            let Settings { paths, named_root_dir, .. } = &node.settings;
            let note = |bind: Binding<'_>| match bind {
                Binding::Begins => other_kubelet::binding(node.state(), node.other_kubelet),
                Binding::Done(_) => other_kubelet::bound(&paths.root_dir, node.state(), node.other_kubelet),
            };
            Ok(node.pod_resources.take(&paths.root_dir, named_root_dir, note)?)
        }
        Kind::Listener(listener) if listener.kind() == wire::listener::Kind::PodsApi => {
            let Settings { paths, named_root_dir, pods_api, .. } = &node.settings;
            if !pods_api {
                return Err(BrokerError::NotConfigured { what: "the pods API (gate PodsAPI)" });
            }
            Ok(node.pods_api.take(&paths.root_dir, named_root_dir, |_| ())?)
        }
        Kind::PluginSocket(socket) => super::plugin_socket::connect(node, &socket),
        Kind::RegistryConfig(config) => super::credential::registry_config(node, config.index),
        Kind::Listener(listener) if listener.kind() == wire::listener::Kind::DevicePlugins => {
            let Settings { paths, named_root_dir, start_id, .. } = &node.settings;
            let keep = |bind: Binding<'_>| {
                if let Binding::Done(fd) = bind {
                    bulkhead_daemon::kept::keep(&agent_sockets::kept_name(start_id), fd.as_fd());
                }
            };
            Ok(node.device_plugins.take(&paths.root_dir, named_root_dir, keep)?)
        }
        kind @ (Kind::NodeLog(_)
        | Kind::EnvFile(_)
        | Kind::ShutdownInhibitor(_)
        | Kind::Kmsg(_)
        | Kind::Listener(_)) => Err(BrokerError::NotServed { kind: verbs::broker_row(&kind).kind }),
    }
}

/// A new connection each time: the server sees this process as its peer, so its socket may stay root's alone.
fn runtime_socket(node: &Node, image_service: bool) -> Result<OwnedFd, BrokerError> {
    let runtime = node.settings.runtime_endpoint.as_deref();
    let endpoint = if image_service { node.settings.image_endpoint.as_deref().or(runtime) } else { runtime };
    let path = endpoint.ok_or(BrokerError::NotConfigured { what: "containerRuntimeEndpoint" })?;
    Ok(open::connect(path)?)
}

fn manifest(node: &Node, manifest: &wire::Manifest) -> Result<OwnedFd, BrokerError> {
    let path = node.settings.manifests.as_deref().ok_or(BrokerError::NotConfigured { what: "staticPodPath" })?;
    if manifest.index != 0 {
        return Err(validate::bad("index", &manifest.index.to_string(), "0, the one staticPodPath").into());
    }
    if manifest.name.is_empty() {
        return match open::operator(path, FileKind::Directory) {
            Err(OpenError::WrongType { .. }) => Ok(open::operator(path, FileKind::RegularFile)?),
            other => Ok(other?),
        };
    }
    Ok(open::operator(&path.join(validate::manifest_name(&manifest.name)?), FileKind::RegularFile)?)
}

fn container_log(node: &Node, log: &wire::ContainerLog) -> Result<OwnedFd, BrokerError> {
    let pod = validate::pod_log(log.pod.as_ref())?;
    let container = validate::container(&log.container)?;
    let base = open::base_dir(&node.settings.paths.pod_logs_dir)?;
    let relative = Path::new(&pod.dir_name()).join(container.as_str()).join(format!("{}.log", log.restart_count));
    Ok(open::regular_beneath(base.as_fd(), relative)?)
}

fn compressed_log(log: &wire::CompressedLog) -> Result<(LogPlace, LogStamp), InvalidRequest> {
    let place = validate::log_place(log.pod.as_ref(), &log.container, log.restart_count)?;
    Ok((place, validate::log_stamp(&log.stamp)?))
}

/// Gives a file that was made for it the name of a compressed log, in place of the plain one.
pub fn link_compressed_log(node: &Node, log: &wire::CompressedLog, file: &OwnedFd) -> Result<(), BrokerError> {
    let (place, stamp) = compressed_log(log)?;
    Ok(rotation::link_compressed(node, &place, stamp, log.plain_bytes, file)?)
}

fn termination_message(node: &Node, message: &wire::TerminationMessage) -> Result<OwnedFd, BrokerError> {
    let pod = validate::pod_uid(&message.pod_uid)?;
    let container = validate::container(&message.container)?;
    let suffix = validate::suffix(&message.suffix)?;
    let pods = node.settings.pods_dir()?;
    let relative = Path::new(pod.as_str()).join("containers").join(container.as_str()).join(suffix);
    Ok(open::regular_beneath(pods.as_fd(), relative)?)
}

fn kernel_file(path: &'static str, flags: OFlags) -> Result<OwnedFd, BrokerError> {
    rustix::fs::open(path, flags | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| BrokerError::Kernel { path: path.into(), source: errno.into() })
}

/// Replaces a state file that upstream would read, or some of a folder: temporary file, fsync, rename, mode 0600.
pub fn put_state(node: &Node, kind: StateKind, content: OwnedFd) -> Result<(), BrokerError> {
    let (name, _) = state_file(kind)?;
    let content =
        memfd::read_sealed(&content, MAX_STATE_BYTES).map_err(|source| BrokerError::Memfd { name, source })?;
    let root = open::base_dir(&node.settings.paths.root_dir)?;
    if kind == StateKind::ImagePullRecords {
        return Ok(image_pulls::put(root.as_fd(), &image_pulls::parse(&content)?)?);
    }
    let (folder, file) = match name.rsplit_once('/') {
        Some((folder, file)) => (open::dir_beneath(root.as_fd(), folder)?, file),
        None => (root, name),
    };
    journal::replace(folder.as_fd(), Path::new(file), &content, 0o600)
        .map_err(|source| BrokerError::PutState { path: node.settings.paths.root_dir.join(name), source })
}

fn state_file(kind: StateKind) -> Result<(&'static str, bulkhead_ipc::peers::Role), BrokerError> {
    verbs::state_file(kind).ok_or_else(|| validate::bad("kind", "unspecified", "one of the named kinds").into())
}

impl From<AgentSocketError> for BrokerError {
    fn from(error: AgentSocketError) -> Self {
        match error {
            AgentSocketError::Open(error) => error.into(),
            AgentSocketError::Kernel { path, source } => BrokerError::Kernel { path, source },
        }
    }
}

impl BrokerError {
    /// The error number behind it, for the answer's code.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            BrokerError::Open(error) => error.errno(),
            BrokerError::Kernel { source, .. }
            | BrokerError::PrivateState { source, .. }
            | BrokerError::PutState { source, .. } => source.raw_os_error().map(Errno::from_raw_os_error),
            _ => None,
        }
    }
}
