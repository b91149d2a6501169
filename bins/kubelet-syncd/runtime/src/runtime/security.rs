//! Security contexts as the CRI wants them: users, groups, capabilities, namespaces, seccomp, AppArmor, SELinux,
//! masked paths, and the check that a container which must not run as root does not.
//!
//! The rules are upstream's (`pkg/kubelet/kuberuntime/security_context*.go`, `.../util/util.go`,
//! `pkg/securitycontext/util.go`).

use std::path::PathBuf;

use bulkhead_cri::v1;
use k8s_openapi::api::core::v1::SecurityContext;
use k8s_openapi::api::core::v1::{AppArmorProfile, PodSecurityContext, SELinuxOptions, SeccompProfile};
use kubelet_model::v1::{Container, Pod};

use super::userns::IdBlock;
use kubelet_model::node_facts::NodeFacts;
use kubelet_model::pod::spec::{PodIdentity, containers, ephemeral_containers, host_network, init_containers};

/// A security context that cannot be put into effect. The texts end up in statuses, hence upstream's wording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecurityError {
    #[error("container's runAsUser breaks non-root policy (pod: {pod:?}, container: {container})")]
    RunAsUserIsRoot { pod: String, container: String },
    #[error("container has runAsNonRoot and image will run as root (pod: {pod:?}, container: {container})")]
    ImageRunsAsRoot { pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: {pod:?}, container: {container})"
    )]
    ImageUserNotNumeric { user: String, pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-(2147483647)): must be between 0 and 2147483647, inclusive (pod: {pod:?}, container: {container})"
    )]
    ImageUserInvalid { uid: i64, pod: String, container: String },
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    SeccompProfileMissing,
    #[error("localhostProfile {0:?} must be a relative path without '..'")]
    SeccompProfileEscapes(String),
    #[error("missing localhost apparmor profile name")]
    AppArmorProfileMissing,
    #[error("unknown apparmor profile type: {0:?}")]
    AppArmorType(String),
    #[error("unsupported supplementalGroupsPolicy: {0}")]
    SupplementalGroupsPolicy(String),
}

/// User that an image runs as, from its configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageUser {
    pub uid: Option<i64>,
    /// Empty when there is none.
    pub username: String,
}

fn pod_context(pod: &Pod) -> Option<&PodSecurityContext> {
    pod.spec.as_ref()?.security_context.as_ref()
}

/// The container's context with the pod's where the container says nothing.
fn effective(pod: &Pod, container: &Container) -> SecurityContext {
    let mut context = container.security_context.as_deref().cloned().unwrap_or_default();
    if let Some(pod) = pod_context(pod) {
        context.se_linux_options = context.se_linux_options.or_else(|| pod.se_linux_options.clone());
        context.run_as_user = context.run_as_user.or(pod.run_as_user);
        context.run_as_group = context.run_as_group.or(pod.run_as_group);
        context.run_as_non_root = context.run_as_non_root.or(pod.run_as_non_root);
    }
    context
}

/// Refuses a container with `runAsNonRoot` that would run as root, or whose image does not say by number.
pub fn verify_run_as_non_root(
    pod: &Pod,
    identity: &PodIdentity,
    container: &Container,
    image: &ImageUser,
) -> Result<(), SecurityError> {
    let context = effective(pod, container);
    if context.run_as_non_root != Some(true) {
        return Ok(());
    }
    let (pod, container) = (identity.to_string(), container.name.clone());
    match (context.run_as_user, image.uid) {
        (Some(0), _) => Err(SecurityError::RunAsUserIsRoot { pod, container }),
        (Some(_), _) => Ok(()),
        (None, Some(0)) => Err(SecurityError::ImageRunsAsRoot { pod, container }),
        (None, Some(uid)) if i32::try_from(uid).is_ok_and(|uid| uid > 0) => Ok(()),
        (None, Some(uid)) => Err(SecurityError::ImageUserInvalid { uid, pod, container }),
        (None, None) if image.username.is_empty() => Err(SecurityError::ImageRunsAsRoot { pod, container }),
        (None, None) => Err(SecurityError::ImageUserNotNumeric { user: image.username.clone(), pod, container }),
    }
}

/// Namespaces of the pod, the same for its sandbox and its containers. `users`: those of a pod that does not have the
/// node's.
pub fn namespace_options(pod: &Pod, users: Option<IdBlock>) -> v1::NamespaceOption {
    let spec = pod.spec.as_ref();
    let is = |value: Option<bool>| value == Some(true);
    let pod_or_node = |node: bool| if node { v1::NamespaceMode::Node } else { v1::NamespaceMode::Pod };
    let pid = if is(spec.and_then(|s| s.host_pid)) {
        v1::NamespaceMode::Node
    } else if is(spec.and_then(|s| s.share_process_namespace)) {
        v1::NamespaceMode::Pod
    } else {
        v1::NamespaceMode::Container
    };
    let mapping = users.map(IdBlock::mapping).unwrap_or_default();
    v1::NamespaceOption {
        network: pod_or_node(host_network(pod)).into(),
        pid: pid.into(),
        ipc: pod_or_node(is(spec.and_then(|s| s.host_ipc))).into(),
        target_id: String::new(),
        userns_options: Some(v1::UserNamespace {
            mode: pod_or_node(users.is_none()).into(),
            uids: mapping.clone(),
            gids: mapping,
        }),
    }
}

/// Security context of a sandbox. Its seccomp profile is always the runtime's default.
pub fn sandbox_security_context(
    pod: &Pod,
    users: Option<IdBlock>,
    extra_groups: &[i64],
) -> Result<v1::LinuxSandboxSecurityContext, SecurityError> {
    let mut result = v1::LinuxSandboxSecurityContext {
        privileged: has_privileged_container(pod),
        seccomp: Some(profile(v1::security_profile::ProfileType::RuntimeDefault)),
        ..Default::default()
    };
    if let Some(context) = pod_context(pod) {
        result.run_as_user = context.run_as_user.map(|value| v1::Int64Value { value });
        result.run_as_group = context.run_as_group.map(|value| v1::Int64Value { value });
        result.namespace_options = Some(namespace_options(pod, users));
        // In another order than for containers; upstream does so, and runtimes see it.
        result.supplemental_groups.extend(context.fs_group);
        result.supplemental_groups.extend(extra_groups);
        result.supplemental_groups.extend(context.supplemental_groups.iter().flatten());
        result.supplemental_groups_policy = groups_policy(context)?.into();
        result.selinux_options = context.se_linux_options.as_ref().map(selinux);
    }
    Ok(result)
}

/// Security context of a container. `target` is the container whose process namespace an ephemeral one joins.
pub fn container_security_context(
    pod: &Pod,
    container: &Container,
    image: &ImageUser,
    target: Option<&str>,
    users: Option<IdBlock>,
    facts: &NodeFacts,
) -> Result<v1::LinuxContainerSecurityContext, SecurityError> {
    let context = effective(pod, container);
    let mut namespaces = namespace_options(pod, users);
    if let Some(target) = target
        && namespaces.pid == i32::from(v1::NamespaceMode::Container)
    {
        namespaces.pid = v1::NamespaceMode::Target.into();
        namespaces.target_id = target.to_owned();
    }
    let mut result = v1::LinuxContainerSecurityContext {
        capabilities: context.capabilities.map(|c| v1::Capability {
            add_capabilities: c.add.unwrap_or_default(),
            drop_capabilities: c.drop.unwrap_or_default(),
            add_ambient_capabilities: Vec::new(),
        }),
        privileged: context.privileged.unwrap_or(false),
        namespace_options: Some(namespaces),
        selinux_options: context.se_linux_options.as_ref().map(selinux),
        run_as_user: context.run_as_user.map(|value| v1::Int64Value { value }),
        run_as_group: context.run_as_group.map(|value| v1::Int64Value { value }),
        readonly_rootfs: context.read_only_root_filesystem.unwrap_or(false),
        no_new_privs: context.allow_privilege_escalation == Some(false),
        seccomp: Some(seccomp_profile(pod, container, facts)?),
        ..Default::default()
    };
    if result.run_as_user.is_none() {
        match image.uid {
            Some(value) => result.run_as_user = Some(v1::Int64Value { value }),
            None if image.username.is_empty() => result.run_as_user = Some(v1::Int64Value { value: 0 }),
            None => result.run_as_username = image.username.clone(),
        }
    }
    if context.proc_mount.as_deref() != Some("Unmasked") {
        result.masked_paths = masked_paths(&facts.host.thermal_throttle_cpus);
        result.readonly_paths = READONLY_PATHS.map(str::to_owned).to_vec();
    }
    if let Some(context) = pod_context(pod) {
        result.supplemental_groups.extend(context.fs_group);
        result.supplemental_groups.extend(context.supplemental_groups.iter().flatten());
        result.supplemental_groups_policy = groups_policy(context)?.into();
    }
    if let Some(wanted) = app_armor_profile(pod, container) {
        set_app_armor(&mut result, &wanted)?;
    }
    Ok(result)
}

/// In front of a container's name: the annotation from before there were fields.
pub const APP_ARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The AppArmor profile of a container: its own field, else the annotation from before there were fields (the API server
/// makes a field of it, nobody does so for a file), else the pod's field (upstream `pkg/security/apparmor` GetProfile).
pub fn app_armor_profile(pod: &Pod, container: &Container) -> Option<AppArmorProfile> {
    let of = |kind: &str| AppArmorProfile { type_: kind.to_owned(), localhost_profile: None };
    let own = container.security_context.as_ref().and_then(|c| c.app_armor_profile.clone());
    own.or_else(|| {
        let annotations = pod.metadata.annotations.as_ref()?;
        let value = annotations.get(&format!("{APP_ARMOR_ANNOTATION}{}", container.name))?.as_str();
        match value {
            "runtime/default" => Some(of("RuntimeDefault")),
            "unconfined" => Some(of("Unconfined")),
            // Anything else is no profile, and as good as no annotation.
            value => {
                let name = value.strip_prefix("localhost/")?;
                Some(AppArmorProfile { localhost_profile: Some(name.to_owned()), ..of("Localhost") })
            }
        }
    })
    .or_else(|| pod_context(pod)?.app_armor_profile.clone())
}

/// The old text form goes along for runtimes that know nothing else.
#[allow(deprecated)]
fn set_app_armor(
    result: &mut v1::LinuxContainerSecurityContext,
    wanted: &AppArmorProfile,
) -> Result<(), SecurityError> {
    use v1::security_profile::ProfileType;
    let (profile, text) = match wanted.type_.as_str() {
        "RuntimeDefault" => (profile(ProfileType::RuntimeDefault), "runtime/default".to_owned()),
        "Unconfined" => (profile(ProfileType::Unconfined), "unconfined".to_owned()),
        "Localhost" => {
            let name = wanted.localhost_profile.as_deref().filter(|n| !n.trim().is_empty());
            let name = name.ok_or(SecurityError::AppArmorProfileMissing)?;
            let typed =
                v1::SecurityProfile { profile_type: ProfileType::Localhost.into(), localhost_ref: name.to_owned() };
            (typed, format!("localhost/{name}"))
        }
        other => return Err(SecurityError::AppArmorType(other.to_owned())),
    };
    result.apparmor = Some(profile);
    result.apparmor_profile = text;
    Ok(())
}

fn seccomp_profile(pod: &Pod, container: &Container, facts: &NodeFacts) -> Result<v1::SecurityProfile, SecurityError> {
    use v1::security_profile::ProfileType;
    let fallback = if facts.seccomp_default { ProfileType::RuntimeDefault } else { ProfileType::Unconfined };
    let wanted: Option<&SeccompProfile> = container
        .security_context
        .as_ref()
        .and_then(|c| c.seccomp_profile.as_ref())
        .or_else(|| pod_context(pod)?.seccomp_profile.as_ref());
    let Some(wanted) = wanted else { return Ok(profile(fallback)) };
    match wanted.type_.as_str() {
        "RuntimeDefault" => Ok(profile(ProfileType::RuntimeDefault)),
        "Localhost" => {
            let file = wanted.localhost_profile.as_deref().filter(|p| !p.is_empty());
            let file = file.ok_or(SecurityError::SeccompProfileMissing)?;
            // The runtime opens this path as root: it must stay below the seccomp folder.
            let escapes = file.starts_with('/') || file.split('/').any(|part| part == "..");
            if escapes {
                return Err(SecurityError::SeccompProfileEscapes(file.to_owned()));
            }
            let path: PathBuf = facts.seccomp_root.join(file).components().collect();
            let localhost_ref = path.to_string_lossy().into_owned();
            Ok(v1::SecurityProfile { profile_type: ProfileType::Localhost.into(), localhost_ref })
        }
        _ => Ok(profile(ProfileType::Unconfined)),
    }
}

fn profile(kind: v1::security_profile::ProfileType) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: kind.into(), localhost_ref: String::new() }
}

fn groups_policy(context: &PodSecurityContext) -> Result<v1::SupplementalGroupsPolicy, SecurityError> {
    match context.supplemental_groups_policy.as_deref() {
        None | Some("Merge") => Ok(v1::SupplementalGroupsPolicy::Merge),
        Some("Strict") => Ok(v1::SupplementalGroupsPolicy::Strict),
        Some(other) => Err(SecurityError::SupplementalGroupsPolicy(other.to_owned())),
    }
}

fn selinux(options: &SELinuxOptions) -> v1::SeLinuxOption {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    v1::SeLinuxOption {
        user: text(&options.user),
        role: text(&options.role),
        r#type: text(&options.type_),
        level: text(&options.level),
    }
}

/// Any container of any kind is privileged.
pub fn has_privileged_container(pod: &Pod) -> bool {
    let privileged = |context: Option<&SecurityContext>| context.is_some_and(|c| c.privileged == Some(true));
    containers(pod).iter().chain(init_containers(pod)).any(|c| privileged(c.security_context.as_deref()))
        || ephemeral_containers(pod).iter().any(|c| privileged(c.security_context.as_ref()))
}

const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

fn masked_paths(thermal_throttle_cpus: &[u32]) -> Vec<String> {
    let thermal = thermal_throttle_cpus.iter().map(|n| format!("/sys/devices/system/cpu/cpu{n}/thermal_throttle"));
    MASKED_PATHS.map(str::to_owned).into_iter().chain(thermal).collect()
}

/// Sysctls of the sandbox, named with dots: the runtime knows no slashes (upstream ConvertPodSysctlsVariableToDotsSeparator).
pub fn sandbox_sysctls(pod: &Pod) -> std::collections::BTreeMap<String, String> {
    pod_context(pod)
        .and_then(|c| c.sysctls.as_ref())
        .into_iter()
        .flatten()
        .map(|s| (dotted_sysctl(&s.name), s.value.clone()))
        .collect()
}

/// `net/ipv4/conf/eth0.1/x` becomes `net.ipv4.conf.eth0/1.x`; a name whose first separator is a dot stays as it is.
fn dotted_sysctl(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(first) if name.as_bytes()[first] == b'/' => name
            .chars()
            .map(|c| match c {
                '/' => '.',
                '.' => '/',
                c => c,
            })
            .collect(),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
#[path = "security_tests.rs"]
mod tests;
