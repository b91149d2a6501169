//! Where things are. Built from ids only; the tables are upstream's (`pkg/kubelet/kubelet_getters.go`).

use std::path::PathBuf;

use crate::{ContainerName, Namespace, PodName, PodUid, Process, VolumeName};

/// `/` becomes `~` in plugin and volume names that are path components, nothing else changes.
pub fn escape_qualified_name(name: &str) -> String {
    name.replace('/', "~")
}

/// The folders of one node instance. Several instances on one machine differ in all of them.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct InstancePaths {
    /// `--root-dir`, in canonical form.
    pub root_dir: PathBuf,
    /// Sockets and the rendered configuration: `/run/kubelet`, or `/run/kubelet-<hash of root-dir>`.
    pub run_dir: PathBuf,
    /// `podLogsDir`.
    pub pod_logs_dir: PathBuf,
}

impl InstancePaths {
    pub fn socket(&self, process: Process) -> PathBuf {
        self.run_dir.join(format!("{}.sock", process.name()))
    }

    /// volnetd's side socket, on which descriptors are passed.
    pub fn broker_socket(&self) -> PathBuf {
        self.run_dir.join("kubelet-volnetd.fd.sock")
    }

    /// The effective configuration that the launcher rendered for the four.
    pub fn rendered_config(&self) -> PathBuf {
        self.run_dir.join("config.json")
    }

    /// Private state of a process, 0700 and owned by its user.
    pub fn private_state(&self, process: Process) -> PathBuf {
        self.root_dir.join("bulkhead").join(process.short())
    }

    pub fn pods(&self) -> PathBuf {
        self.root_dir.join("pods")
    }

    pub fn pod(&self, pod: &PodUid) -> PathBuf {
        self.pods().join(pod.as_str())
    }

    pub fn volumes(&self, pod: &PodUid) -> PathBuf {
        self.pod(pod).join("volumes")
    }

    /// `plugin` as upstream names it, not escaped: `kubernetes.io/empty-dir`.
    pub fn volume(&self, pod: &PodUid, plugin: &str, volume: &VolumeName) -> PathBuf {
        self.volumes(pod).join(escape_qualified_name(plugin)).join(volume.as_str())
    }

    pub fn etc_hosts(&self, pod: &PodUid) -> PathBuf {
        self.pod(pod).join("etc-hosts")
    }

    /// Folder of a container's termination message files.
    pub fn container(&self, pod: &PodUid, container: &ContainerName) -> PathBuf {
        self.pod(pod).join("containers").join(container.as_str())
    }

    /// `<podLogsDir>/<namespace>_<name>_<uid>`, CRI's `log_directory`.
    pub fn pod_logs(&self, namespace: &Namespace, name: &PodName, pod: &PodUid) -> PathBuf {
        self.pod_logs_dir.join(pod_log_dir_name(namespace, name, pod))
    }

    /// `R/seccomp/<profile>`; the profile's own check is the caller's.
    pub fn seccomp_root(&self) -> PathBuf {
        self.root_dir.join("seccomp")
    }

    /// Archives of checkpointed containers; the runtime writes them.
    pub fn checkpoints(&self) -> PathBuf {
        self.root_dir.join("checkpoints")
    }

    /// Where monitoring agents ask who has which devices; volnetd binds it, syncd answers.
    pub fn pod_resources_socket(&self) -> PathBuf {
        self.root_dir.join("pod-resources").join("kubelet.sock")
    }

    /// Where agents ask which pods there are, with the gate PodsAPI; volnetd binds it, syncd answers.
    pub fn pods_api_socket(&self) -> PathBuf {
        self.root_dir.join("pods-api").join("pods-api.sock")
    }
}

/// `<namespace>_<name>_<uid>`.
pub fn pod_log_dir_name(namespace: &Namespace, name: &PodName, pod: &PodUid) -> String {
    format!("{namespace}_{name}_{pod}")
}
