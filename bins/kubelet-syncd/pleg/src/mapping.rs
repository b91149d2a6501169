//! CRI statuses into the runtime model.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bulkhead_cri::v1;
use bulkhead_types::{ContainerId, PodUid, SandboxId};

use kubelet_model::pod::labels;
use kubelet_model::pod::model::{
    ContainerStatus, ImageMount, LinuxUser, RunState, RuntimeResources, SandboxState, SandboxStatus,
};
use kubelet_model::pod::names::absolute;
use kubelet_model::pod::resources::{quota_to_milli_cpu, shares_to_milli_cpu};

/// State of a container by its CRI number; a number from the future is Unknown.
pub fn run_state(state: i32) -> RunState {
    match v1::ContainerState::try_from(state) {
        Ok(v1::ContainerState::ContainerCreated) => RunState::Created,
        Ok(v1::ContainerState::ContainerRunning) => RunState::Running,
        Ok(v1::ContainerState::ContainerExited) => RunState::Exited,
        Ok(v1::ContainerState::ContainerUnknown) | Err(_) => RunState::Unknown,
    }
}

/// State of a sandbox by its CRI number; a number from the future is not ready.
pub fn sandbox_state(state: i32) -> SandboxState {
    match v1::PodSandboxState::try_from(state) {
        Ok(v1::PodSandboxState::SandboxReady) => SandboxState::Ready,
        Ok(v1::PodSandboxState::SandboxNotready) | Err(_) => SandboxState::NotReady,
    }
}

/// The pod that a listed container belongs to. None: not a kubelet's.
pub fn pod_of_container(container: &v1::Container) -> Option<PodUid> {
    PodUid::parse(container.labels.get(labels::POD_UID)?).ok()
}

/// The pod that a listed sandbox belongs to. None: not a kubelet's.
pub fn pod_of_sandbox(sandbox: &v1::PodSandbox) -> Option<PodUid> {
    PodUid::parse(&sandbox.metadata.as_ref()?.uid).ok()
}

/// A sandbox's status. None when its id is none.
pub fn sandbox(status: &v1::PodSandboxStatus) -> Option<SandboxStatus> {
    let options = status.linux.as_ref().and_then(|l| l.namespaces.as_ref()).and_then(|n| n.options.as_ref());
    let network = status.network.as_ref();
    Some(SandboxStatus {
        id: SandboxId::parse(&status.id).ok()?,
        attempt: status.metadata.as_ref().map_or(0, |m| m.attempt),
        state: sandbox_state(status.state),
        created_at: time(status.created_at).unwrap_or(UNIX_EPOCH),
        host_network: options.is_some_and(|o| o.network == v1::NamespaceMode::Node as i32),
        has_network: network.is_some(),
        ips: network.map(v1::PodSandboxNetworkStatus::addresses).unwrap_or_default(),
    })
}

/// A container's status; CRI's answer does not name the sandbox, the list does. None when its id is none.
pub fn container(status: &v1::ContainerStatus, sandbox_id: &str) -> Option<ContainerStatus> {
    let note = |key: &str| status.annotations.get(key).map(String::as_str);
    let name = status.labels.get(labels::CONTAINER_NAME).or(status.metadata.as_ref().map(|m| &m.name));
    let message_path = note(labels::TERMINATION_MESSAGE_PATH).unwrap_or_default();
    let mounted_at = absolute(message_path);
    let message_mount = status.mounts.iter().find(|m| !message_path.is_empty() && m.container_path == mounted_at);
    Some(ContainerStatus {
        id: ContainerId::parse(&status.id).ok()?,
        name: name.cloned().unwrap_or_default(),
        sandbox_id: SandboxId::parse(sandbox_id).ok()?,
        state: run_state(status.state),
        created_at: time(status.created_at).unwrap_or(UNIX_EPOCH),
        started_at: time(status.started_at),
        finished_at: time(status.finished_at),
        exit_code: status.exit_code,
        reason: status.reason.clone(),
        message: status.message.clone(),
        image: status.image.as_ref().map(|image| image.image.clone()).unwrap_or_default(),
        image_ref: status.image_ref.clone(),
        restart_count: note(labels::RESTART_COUNT).and_then(|n| n.parse().ok()).unwrap_or(0),
        hash: note(labels::CONTAINER_HASH).and_then(|h| u32::from_str_radix(h, 16).ok()).unwrap_or(0),
        log_path: status.log_path.clone(),
        termination_message_path: message_path.to_owned(),
        termination_message_policy: note(labels::TERMINATION_MESSAGE_POLICY).unwrap_or_default().to_owned(),
        resources: resources(status),
        user: status.user.as_ref().and_then(|user| user.linux.as_ref()).map(user),
        termination_message_host_path: message_mount.map(|m| m.host_path.clone()).filter(|p| !p.is_empty()),
        pod_termination_grace: note(labels::POD_TERMINATION_GRACE).and_then(|n| n.parse().ok()),
        pod_deletion_grace: note(labels::POD_DELETION_GRACE).and_then(|n| n.parse().ok()),
        stop_signal: status.stop_signal,
        image_volumes: image_volumes(&status.mounts),
    })
}

/// Images among the mounts.
pub fn image_volumes(mounts: &[v1::Mount]) -> Vec<ImageMount> {
    let image = |mount: &v1::Mount| {
        let image = mount.image.as_ref()?.image.clone();
        (!image.is_empty()).then(|| ImageMount { path: mount.container_path.clone(), image })
    };
    mounts.iter().filter_map(image).collect()
}

/// In the API's units (upstream `kuberuntime_container_linux.go` toKubeContainerResources).
fn resources(status: &v1::ContainerStatus) -> RuntimeResources {
    let Some(linux) = status.resources.as_ref().and_then(|r| r.linux.as_ref()) else {
        return RuntimeResources::default();
    };
    let shares = u64::try_from(linux.cpu_shares).ok().filter(|shares| *shares > 0);
    RuntimeResources {
        cpu_request: shares.map(shares_to_milli_cpu),
        cpu_limit: quota_to_milli_cpu(linux.cpu_quota, linux.cpu_period),
        memory_limit: Some(linux.memory_limit_in_bytes).filter(|bytes| *bytes > 0),
    }
}

fn user(user: &v1::LinuxContainerUser) -> LinuxUser {
    LinuxUser { uid: user.uid, gid: user.gid, supplemental_groups: user.supplemental_groups.clone() }
}

/// CRI's nanoseconds since 1970; 0 (and less) means that it has not happened.
fn time(nanos: i64) -> Option<SystemTime> {
    u64::try_from(nanos).ok().filter(|n| *n > 0).map(|n| UNIX_EPOCH + Duration::from_nanos(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_map(pairs: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn a_container_as_the_kubelet_labelled_it() {
        let status = v1::ContainerStatus {
            id: "c1".into(),
            metadata: Some(v1::ContainerMetadata { name: "other".into(), attempt: 9 }),
            state: v1::ContainerState::ContainerExited as i32,
            created_at: 1,
            started_at: 2,
            finished_at: 0,
            exit_code: 137,
            image: Some(v1::ImageSpec {
                image: "docker.io/library/busybox:1".into(),
                user_specified_image: "busybox:1".into(),
                ..Default::default()
            }),
            labels: text_map(&[(labels::CONTAINER_NAME, "main")]),
            annotations: text_map(&[
                (labels::CONTAINER_HASH, "c0ffee"),
                (labels::RESTART_COUNT, "4"),
                (labels::TERMINATION_MESSAGE_PATH, "/dev/termination-log"),
                (labels::TERMINATION_MESSAGE_POLICY, "File"),
                (labels::POD_TERMINATION_GRACE, "30"),
            ]),
            mounts: vec![
                v1::Mount {
                    container_path: "/dev/termination-log".into(),
                    host_path: "/h/13d0088e".into(),
                    ..Default::default()
                },
                v1::Mount {
                    container_path: "/models".into(),
                    image: Some(v1::ImageSpec { image: "sha256:models".into(), ..Default::default() }),
                    ..Default::default()
                },
            ],
            resources: Some(v1::ContainerResources {
                linux: Some(v1::LinuxContainerResources {
                    cpu_shares: 102,
                    cpu_quota: 25_000,
                    cpu_period: 100_000,
                    ..Default::default()
                }),
            }),
            user: Some(v1::ContainerUser {
                linux: Some(v1::LinuxContainerUser { uid: 1000, gid: 0, supplemental_groups: vec![0, 7] }),
            }),
            ..Default::default()
        };
        let mapped = container(&status, "s1").unwrap();
        assert_eq!((mapped.name.as_str(), mapped.state, mapped.hash), ("main", RunState::Exited, 0xc0_ffee));
        assert_eq!((mapped.restart_count, mapped.image.as_str()), (4, "docker.io/library/busybox:1"));
        assert_eq!(mapped.user, Some(LinuxUser { uid: 1000, gid: 0, supplemental_groups: vec![0, 7] }));
        assert_eq!(mapped.started_at, Some(UNIX_EPOCH + Duration::from_nanos(2)));
        assert_eq!(mapped.finished_at, None);
        assert_eq!(mapped.termination_message_host_path.as_deref(), Some("/h/13d0088e"));
        let [model] = mapped.image_volumes.as_slice() else { panic!("{:?}", mapped.image_volumes) };
        assert_eq!((model.path.as_str(), model.image.as_str()), ("/models", "sha256:models"));
        assert_eq!((mapped.pod_termination_grace, mapped.pod_deletion_grace), (Some(30), None));
        let has = RuntimeResources { cpu_request: Some(100), cpu_limit: Some(250), memory_limit: None };
        assert_eq!(mapped.resources, has);
        assert_eq!(container(&status, "../s"), None);
    }

    #[test]
    fn nothing_from_the_runtime_is_relied_on() {
        let bare = container(&v1::ContainerStatus { id: "c".into(), state: 77, ..Default::default() }, "s").unwrap();
        assert_eq!((bare.state, bare.hash, bare.restart_count), (RunState::Unknown, 0, 0));
        let bare = sandbox(&v1::PodSandboxStatus { id: "s".into(), state: 77, ..Default::default() }).unwrap();
        assert_eq!((bare.state, bare.has_network, bare.host_network), (SandboxState::NotReady, false, false));
        assert_eq!(sandbox(&v1::PodSandboxStatus::default()), None);
    }

    #[test]
    fn addresses_in_order_and_host_network() {
        let status = v1::PodSandboxStatus {
            id: "s".into(),
            network: Some(v1::PodSandboxNetworkStatus {
                // Upstream takes leading zeros, too (ParseIPSloppy).
                ip: "010.088.000.002".into(),
                additional_ips: vec![v1::PodIp { ip: "fd00::2".into() }, v1::PodIp { ip: "nonsense".into() }],
            }),
            linux: Some(v1::LinuxPodSandboxStatus {
                namespaces: Some(v1::Namespace {
                    options: Some(v1::NamespaceOption {
                        network: v1::NamespaceMode::Node as i32,
                        ..Default::default()
                    }),
                }),
            }),
            ..Default::default()
        };
        let mapped = sandbox(&status).unwrap();
        assert_eq!(mapped.ips.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.88.0.2", "fd00::2"]);
        assert!(mapped.host_network && mapped.has_network);
    }
}
