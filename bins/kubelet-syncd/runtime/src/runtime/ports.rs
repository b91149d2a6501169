//! What the executor needs from outside besides the runtime ([`kubelet_edges::runtime_service`]): files on the host, images. Traits,
//! so that the order of work can be tested without any of them.

use std::path::PathBuf;
use std::time::SystemTime;

use bulkhead_cri::v1;
use bulkhead_types::ContainerId;
use kubelet_model::v1::Pod;

use super::container_config::MountedVolume;
use super::hosts::EtcHosts;
use super::image_volumes::Counted;
use super::security::ImageUser;
use super::sub_paths::SubPath;
use kubelet_model::pod::spec::{ContainerKind, PodIdentity};

/// A host file verb that did not succeed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HostFilesError {
    pub message: String,
    /// volnetd restarts or is not ready: asking again soon is the answer.
    pub transient: bool,
}

/// A container's log folder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogDirectory {
    /// Highest number of a log file in it.
    pub highest_index: Option<u32>,
}

/// Files that volnetd keeps for pods.
pub trait HostFiles: Send + Sync {
    /// Creates the pod's log folder, and the container's in it when one is named.
    fn prepare_log_directory(
        &self,
        pod: &PodIdentity,
        container: Option<&str>,
    ) -> impl Future<Output = Result<LogDirectory, HostFilesError>> + Send;
    /// Writes the pod's hosts file and says where it is.
    fn write_etc_hosts(
        &self,
        pod: &PodIdentity,
        hosts: &EtcHosts,
    ) -> impl Future<Output = Result<PathBuf, HostFilesError>> + Send;
    /// Creates a new termination message file for one instance.
    fn create_termination_file(
        &self,
        pod: &PodIdentity,
        container: &str,
    ) -> impl Future<Output = Result<PathBuf, HostFilesError>> + Send;
    /// Finds a part of a volume, makes it where it is missing, and binds it to a path of its own. `path` is relative
    /// and has no `..`; `volume` is where the volume is.
    fn prepare_sub_path(
        &self,
        pod: &PodIdentity,
        container: &str,
        part: &SubPath,
        volume: &MountedVolume,
    ) -> impl Future<Output = Result<PathBuf, HostFilesError>> + Send;
    /// Reads a file that a container of the pod wrote into an emptyDir. `path` is below the volume, without `..`.
    fn read_env_file(
        &self,
        pod: &PodIdentity,
        volume: &str,
        path: &str,
    ) -> impl Future<Output = Result<Vec<u8>, HostFilesError>> + Send;
    /// Makes the link in /var/log/containers.
    fn link_container_log(
        &self,
        pod: &PodIdentity,
        container: &str,
        restart_count: u32,
        id: &ContainerId,
    ) -> impl Future<Output = Result<(), HostFilesError>> + Send;
    /// Removes an instance's log files and the link to them.
    fn remove_container_log(
        &self,
        pod: &PodIdentity,
        container: &str,
        restart_count: u32,
        id: &ContainerId,
    ) -> impl Future<Output = Result<(), HostFilesError>> + Send;
}

/// An image that a container needs, or a volume.
#[derive(Debug, Clone, Copy)]
pub struct ImageRequest<'a> {
    pub pod: &'a PodIdentity,
    /// Whom the events are about; `None`: the pod as a whole.
    pub container: Option<(ContainerKind, &'a str)>,
    /// The spec's text.
    pub image: &'a str,
    /// `Always`, `IfNotPresent`, `Never`, or empty for the default.
    pub pull_policy: &'a str,
    pub sandbox_config: &'a v1::PodSandboxConfig,
    /// For its annotations and for who may pull.
    pub object: &'a Pod,
}

/// An image that is there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvedImage {
    /// What CreateContainer names.
    pub image_ref: String,
    pub user: ImageUser,
}

/// An image that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFailure {
    /// Waiting reason: `ErrImagePull`, `ImagePullBackOff`, ...
    pub reason: String,
    pub message: String,
    /// No attempt is made before then.
    pub back_off_until: Option<SystemTime>,
}

/// Makes images present; emits the events about it (`Pulled`, `Pulling`, `Failed`, `BackOff`, ...) itself, and counts how
/// they fare as volumes.
pub trait Images: Send + Sync {
    fn ensure_image(
        &self,
        request: ImageRequest<'_>,
    ) -> impl Future<Output = Result<ResolvedImage, ImageFailure>> + Send;
    /// A container with image volumes was started, or was not.
    fn count_volumes(&self, counted: Counted);
}
