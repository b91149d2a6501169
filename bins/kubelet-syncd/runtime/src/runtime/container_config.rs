//! CRI's ContainerConfig from a pod's container and what was prepared for this instance. Pure, like `sandbox_config`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bulkhead_cri::v1;
use k8s_openapi::api::core::v1::{VolumeDevice, VolumeMount};
use kubelet_model::v1::{Container, Pod};

use super::argument_list::Environment;
use super::env::{EnvError, expand_command};
use super::image_volumes::ImageVolumes;
use super::pod_runtime::PodRuntime;
use super::request_check::Refusal;
use super::run_options::RunContainerOptions;
use super::security::{ImageUser, SecurityError, container_security_context, verify_run_as_non_root};
use super::sub_paths::{SubPath, SubPathError, sub_paths};
use kubelet_model::node_facts::NodeFacts;
use kubelet_model::pod::labels::{container_annotations, container_labels};
use kubelet_model::pod::names::absolute;
use kubelet_model::pod::names::container_log_path;
use kubelet_model::pod::resources::{container_resources, drop_quota};
use kubelet_model::pod::spec::{PodIdentity, image};
use kubelet_model::pod::stop_signal;

/// Why a container cannot be described; the text is the message of `CreateContainerConfigError`.
#[derive(Debug, thiserror::Error)]
pub enum ContainerConfigError {
    #[error(transparent)]
    Security(#[from] SecurityError),
    #[error(transparent)]
    Environment(#[from] EnvError),
    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    NoVolume { volume: String, container: String },
    #[error("error DevicePath `{0}` must be an absolute path")]
    DevicePath(String),
    #[error("cannot find volume {volume:?} to pass into container {container:?}")]
    NoBlockVolume { volume: String, container: String },
    #[error(transparent)]
    SubPath(#[from] SubPathError),
    /// Why is in the log only: it could tell about the host's files.
    #[error("failed to prepare subPath for volumeMount {mount:?} of container {container:?}")]
    SubPathNotPrepared { mount: String, container: String },
    #[error("invalid MountPropagation mode: {0:?}")]
    Propagation(String),
    #[error("failed to resolve recursive read-only mode: {0}")]
    RecursiveReadOnly(String),
    #[error("unable to find target container {0}")]
    NoTarget(String),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl ContainerConfigError {
    pub(super) fn sub_path(container: &Container, volume: &str) -> Self {
        ContainerConfigError::SubPathNotPrepared { mount: volume.to_owned(), container: container.name.clone() }
    }

    /// Somebody has not answered yet: nothing is known to be wrong with the pod.
    pub fn is_transient(&self) -> bool {
        matches!(self, ContainerConfigError::Environment(error) if error.is_transient())
    }
}

/// Where the files of a volume are, for whoever looks for a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeRoot {
    /// Below the pod's own folder, by upstream's plugin name (`kubernetes.io/empty-dir`).
    Plugin(&'static str),
    /// The same, of a FlexVolume driver (`vendor/driver`).
    Flex { driver: String },
    /// The host's own.
    HostPath,
    /// An image: on this node it is nowhere, the runtime mounts it.
    Image,
}

/// A volume that is ready, as the volume manager gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedVolume {
    pub host_path: PathBuf,
    /// The volume itself only exists read-only.
    pub read_only: bool,
    /// The node made it: where SELinux is on, the runtime labels it for the container.
    pub managed: bool,
    pub root: VolumeRoot,
    /// A PersistentVolume's or inline volume's name, which its folder has; of other volumes it is their name in the pod.
    pub folder: Option<String>,
    /// Group that its PersistentVolume gives to the pod's processes (annotation `pv.beta.kubernetes.io/gid`).
    pub gid: Option<i64>,
}

/// Ready volumes by name.
pub type MountedVolumes = BTreeMap<String, MountedVolume>;

/// Where claims lead whose PersistentVolumes are of the kind hostPath: the runtime is given the path itself, as upstream gives it.
pub fn claimed_paths(pod: &Pod, volumes: &MountedVolumes) -> BTreeMap<String, PathBuf> {
    let all = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let claims = all.filter(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some());
    let path = |name: &String| {
        let mounted = volumes.get(name).filter(|mounted| mounted.root == VolumeRoot::HostPath)?;
        Some((name.clone(), mounted.host_path.clone()))
    };
    claims.filter_map(|volume| path(&volume.name)).collect()
}

/// The groups of volumes (annotation `pv.beta.kubernetes.io/gid` of their PersistentVolumes) that the pod's spec does not list
/// anyway (upstream GetExtraSupplementalGroupsForPod, in no order there).
pub fn volume_groups(pod: &Pod, volumes: &MountedVolumes) -> Vec<i64> {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let own = context.and_then(|context| context.supplemental_groups.as_deref()).unwrap_or(&[]);
    let groups: BTreeSet<i64> = volumes.values().filter_map(|volume| volume.gid).collect();
    groups.into_iter().filter(|group| !own.contains(group)).collect()
}

/// What was prepared for one instance of a container.
#[derive(Debug, Clone, Copy)]
pub struct Instance<'a> {
    pub restart_count: u32,
    /// Reference by which the runtime knows the image.
    pub image_ref: &'a str,
    pub image_user: &'a ImageUser,
    pub volumes: &'a MountedVolumes,
    /// [`super::env::environment`] of this container.
    pub environment: &'a Environment,
    /// What the container manager gives it.
    pub options: &'a RunContainerOptions,
    /// Where the parts of volumes are that are mounted by `subPath`, by the mount's place among `volumeMounts`. None
    /// yet while [`check`] looks.
    pub sub_paths: &'a BTreeMap<usize, PathBuf>,
    /// The volumes that are images.
    pub images: &'a ImageVolumes,
    /// The pod's hosts file, if it has one.
    pub etc_hosts: Option<&'a Path>,
    /// The file for this instance's termination message, if it has one.
    pub termination_file: Option<&'a Path>,
    /// Container whose process namespace an ephemeral container joins.
    pub target: Option<&'a str>,
    /// The pod's.
    pub runtime: &'a PodRuntime,
}

/// True when the container wants the pod's /etc/hosts (it mounts nothing there itself).
pub fn wants_etc_hosts(container: &Container) -> bool {
    container.volume_mounts.iter().flatten().all(|m| m.mount_path != "/etc/hosts")
}

/// What `$(NAME)` stands for in a command, an argument and a `subPathExpr`, each name once: the spec's variables, and those that the
/// container manager gives where the spec has none of the name (upstream GenerateRunContainerOptions hands on one list of both, of
/// which the last of a name counts).
fn variables<'a>(instance: &Instance<'a>) -> Cow<'a, Environment> {
    let given = &instance.options.envs;
    if given.is_empty() {
        return Cow::Borrowed(instance.environment);
    }
    let mut all = instance.environment.clone();
    for (name, value) in given.iter().rev() {
        all.entry(name.clone()).or_insert_with(|| value.clone());
    }
    Cow::Owned(all)
}

/// Everything that can be refused before anything is created for the instance: features that are not there yet, volumes,
/// users. [`container_config`] checks the same; this saves the files that a refused start would leave. Answers the
/// parts of volumes that are to be prepared.
pub fn check(
    pod: &Pod,
    identity: &PodIdentity,
    container: &Container,
    instance: &Instance<'_>,
    facts: &NodeFacts,
) -> Result<Vec<SubPath>, ContainerConfigError> {
    let variables = variables(instance);
    let mut parts = sub_paths(container, &variables)?;
    parts.retain(|part| !instance.images.contains_key(&part.volume));
    let unresolved: BTreeMap<usize, PathBuf> = parts.iter().map(|part| (part.index, PathBuf::new())).collect();
    // Upstream's order, of which the first refusal is told.
    devices(container, instance)?;
    mounts(container, &Instance { sub_paths: &unresolved, ..*instance }, facts)?;
    verify_run_as_non_root(pod, identity, container, instance.image_user)?;
    expand_command(container, &variables)?;
    security_context(pod, container, instance, facts)?;
    Ok(parts)
}

/// Describes one instance of a container.
pub fn container_config(
    pod: &Pod,
    identity: &PodIdentity,
    container: &Container,
    instance: &Instance<'_>,
    facts: &NodeFacts,
) -> Result<v1::ContainerConfig, ContainerConfigError> {
    verify_run_as_non_root(pod, identity, container, instance.image_user)?;
    let (command, args) = expand_command(container, &variables(instance))?;
    let options = instance.options;
    let given = options.envs.iter().map(|(name, value)| (name, value));
    let environment = given.chain(instance.environment);
    let mut annotations = options.annotations.clone();
    annotations.extend(container_annotations(container, pod, instance.restart_count));
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: container.name.clone(), attempt: instance.restart_count }),
        image: Some(v1::ImageSpec {
            image: instance.image_ref.to_owned(),
            user_specified_image: image(container).to_owned(),
            ..Default::default()
        }),
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: environment.map(|(key, value)| v1::KeyValue { key: key.clone(), value: value.clone() }).collect(),
        mounts: mounts(container, instance, facts)?,
        devices: devices(container, instance)?,
        labels: container_labels(container, identity),
        annotations,
        log_path: container_log_path(&container.name, instance.restart_count),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(resources(pod, container, options, facts)),
            security_context: Some(security_context(pod, container, instance, facts)?),
        }),
        stop_signal: stop_signal::wanted(container, facts).into(),
        cdi_devices: options.cdi_devices.iter().map(|name| v1::CdiDevice { name: name.clone() }).collect(),
    })
}

fn security_context(
    pod: &Pod,
    container: &Container,
    instance: &Instance<'_>,
    facts: &NodeFacts,
) -> Result<v1::LinuxContainerSecurityContext, SecurityError> {
    let (runtime, image_user) = (instance.runtime, instance.image_user);
    let mut context = container_security_context(pod, container, image_user, instance.target, runtime.users, facts)?;
    // After the pod's own, in contrast to the sandbox's.
    context.supplemental_groups.extend(&runtime.volume_groups);
    Ok(context)
}

/// What the spec says, on the CPUs and with the memory that the container was given.
fn resources(
    pod: &Pod,
    container: &Container,
    options: &RunContainerOptions,
    facts: &NodeFacts,
) -> v1::LinuxContainerResources {
    let mut resources = container_resources(pod, container, facts);
    if options.without_quota {
        drop_quota(&mut resources, facts);
    }
    resources.cpuset_cpus = options.cpuset_cpus.clone();
    resources.cpuset_mems = options.cpuset_mems.clone();
    resources
}

/// What the container manager gives, then block volumes (upstream `pkg/kubelet/kubelet_pods.go`, makeBlockVolumes).
fn devices(container: &Container, instance: &Instance<'_>) -> Result<Vec<v1::Device>, ContainerConfigError> {
    let device = |device: &VolumeDevice| {
        if !device.device_path.starts_with('/') {
            return Err(ContainerConfigError::DevicePath(device.device_path.clone()));
        }
        let volume = instance.volumes.get(&device.name).ok_or_else(|| ContainerConfigError::NoBlockVolume {
            volume: device.name.clone(),
            container: container.name.clone(),
        })?;
        Ok(v1::Device {
            container_path: device.device_path.clone(),
            host_path: volume.host_path.to_string_lossy().into_owned(),
            permissions: if volume.read_only { "r" } else { "mrw" }.to_owned(),
        })
    };
    let given = instance.options.devices.iter().cloned().map(Ok);
    given.chain(container.volume_devices.iter().flatten().map(device)).collect()
}

/// What the container manager gives, volumes in the order of the spec, then the hosts file, then the termination message file.
fn mounts(
    container: &Container,
    instance: &Instance<'_>,
    facts: &NodeFacts,
) -> Result<Vec<v1::Mount>, ContainerConfigError> {
    let mut mounts = instance.options.mounts.clone();
    let parts: BTreeMap<usize, String> =
        sub_paths(container, &variables(instance))?.into_iter().map(|part| (part.index, part.path)).collect();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let part = parts.get(&index);
        if let Some(image) = instance.images.get(&mount.name) {
            // The runtime looks for the part of an image itself.
            let mut shown = volume_mount(container, mount, None, instance, facts)?;
            shown.host_path = String::new();
            shown.image = Some(image.clone());
            shown.image_sub_path = part.cloned().unwrap_or_default();
            mounts.push(shown);
            continue;
        }
        let part = match (part, instance.sub_paths.get(&index)) {
            (None, _) => None,
            (Some(_), Some(path)) => Some(path),
            (Some(_), None) => return Err(ContainerConfigError::sub_path(container, &mount.name)),
        };
        mounts.push(volume_mount(container, mount, part, instance, facts)?);
    }
    let path_text = |path: &Path| path.to_string_lossy().into_owned();
    if let Some(file) = instance.etc_hosts.filter(|_| wants_etc_hosts(container)) {
        mounts.push(v1::Mount {
            container_path: "/etc/hosts".to_owned(),
            host_path: path_text(file),
            selinux_relabel: facts.host.selinux_enabled,
            ..Default::default()
        });
    }
    let termination_path = container.termination_message_path.as_deref().filter(|p| !p.is_empty());
    if let (Some(file), Some(path)) = (instance.termination_file, termination_path) {
        mounts.push(v1::Mount {
            container_path: absolute(path),
            host_path: path_text(file),
            selinux_relabel: facts.host.selinux_enabled,
            ..Default::default()
        });
    }
    if let Some(users) = instance.runtime.users {
        // What the pod's root has on the disk belongs to the machine's: the runtime shifts it.
        for mount in &mut mounts {
            mount.uid_mappings = users.mapping();
            mount.gid_mappings = users.mapping();
        }
    }
    Ok(mounts)
}

fn volume_mount(
    container: &Container,
    mount: &VolumeMount,
    part: Option<&PathBuf>,
    instance: &Instance<'_>,
    facts: &NodeFacts,
) -> Result<v1::Mount, ContainerConfigError> {
    let volume = instance.volumes.get(&mount.name).ok_or_else(|| ContainerConfigError::NoVolume {
        volume: mount.name.clone(),
        container: container.name.clone(),
    })?;
    let propagation = match mount.mount_propagation.as_deref() {
        None | Some("None") => v1::MountPropagation::PropagationPrivate,
        Some("HostToContainer") => v1::MountPropagation::PropagationHostToContainer,
        Some("Bidirectional") => v1::MountPropagation::PropagationBidirectional,
        Some(other) => return Err(ContainerConfigError::Propagation(other.to_owned())),
    };
    Ok(v1::Mount {
        container_path: absolute(&mount.mount_path),
        host_path: part.unwrap_or(&volume.host_path).to_string_lossy().into_owned(),
        selinux_relabel: volume.managed && facts.host.selinux_enabled,
        readonly: mount.read_only == Some(true) || volume.read_only,
        propagation: propagation.into(),
        recursive_read_only: recursive_read_only(mount, instance.runtime.features.recursive_read_only_mounts)
            .map_err(ContainerConfigError::RecursiveReadOnly)?,
        ..Default::default()
    })
}

/// Whether a mount becomes read-only all the way down (upstream resolveRecursiveReadOnly). The error says why not.
pub fn recursive_read_only(mount: &VolumeMount, supported: bool) -> Result<bool, String> {
    let mode = mount.recursive_read_only.as_deref();
    if matches!(mode, None | Some("Disabled")) {
        return Ok(false);
    }
    if mount.read_only != Some(true) {
        return Err(format!("volume {:?} requested recursive read-only mode, but it is not read-only", mount.name));
    }
    if mount.mount_propagation.as_deref().is_some_and(|p| p != "None") {
        return Err(format!(
            "volume {:?} requested recursive read-only mode, but it is not compatible with propagation {:?}",
            mount.name,
            mount.mount_propagation.as_deref().unwrap_or("")
        ));
    }
    match mode {
        Some("IfPossible") => Ok(supported),
        Some("Enabled") if supported => Ok(true),
        Some("Enabled") => Err(format!(
            "volume {:?} requested recursive read-only mode, but it is not supported by the runtime",
            mount.name
        )),
        other => Err(format!("unknown recursive read-only mode {:?}", other.unwrap_or(""))),
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
