//! What only the command line can say: upstream's `KubeletFlags` and the global flags.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bulkhead_types::{GoDuration, Process, is_dns1123_subdomain};
use serde::{Deserialize, Serialize};

/// Values of the flags that have no field in the configuration file, defaults applied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct KubeletFlags {
    /// `--config`, empty when not given.
    pub config: String,
    pub config_dir: String,
    pub kubeconfig: String,
    pub bootstrap_kubeconfig: String,
    pub hostname_override: String,
    /// As written; [`crate::node_ip`] parses it.
    pub node_ip: String,
    pub cert_dir: PathBuf,
    /// "" or "external".
    pub cloud_provider: String,
    pub root_dir: PathBuf,
    pub seccomp_default: bool,
    pub node_labels: BTreeMap<String, String>,
    pub lock_file: String,
    pub exit_on_lock_contention: bool,
    pub runtime_cgroups: String,
    pub image_credential_provider_config: String,
    pub image_credential_provider_bin_dir: String,
    pub minimum_container_ttl_duration: GoDuration,
    pub maximum_dead_containers_per_container: i32,
    pub maximum_dead_containers: i32,
    pub experimental_mounter_path: String,
    pub experimental_allocatable_ignore_eviction: bool,
    pub housekeeping_interval: GoDuration,
    pub max_housekeeping_interval: GoDuration,
    /// Of our own: the HTTP method alone says what exec, attach, run and port-forward need, as upstream has it.
    pub allow_streaming_with_get: bool,
    /// Of our own: page cache that is in use counts as available memory, too, where pods are evicted for it.
    pub eviction_exclude_active_page_cache: bool,
    /// Of our own: the first of the vsock ports on which the processes answer read-only calls; 0: none listens.
    pub vsock_port: i32,
    /// Of our own: a pod that needs a device of a plugin that is coming back is refused at once, as upstream refuses it.
    pub device_plugin_no_wait: bool,
    /// Of our own: FlexVolume drivers are called (decision 91), where `kubelet` starts the processes itself.
    pub flexvolume: bool,
    /// Flags that upstream's statistics library once leaked: checked for their type, kept, used by nothing.
    pub cadvisor: BTreeMap<String, String>,
}

impl Default for KubeletFlags {
    fn default() -> Self {
        KubeletFlags {
            config: String::new(),
            config_dir: String::new(),
            kubeconfig: String::new(),
            bootstrap_kubeconfig: String::new(),
            hostname_override: String::new(),
            node_ip: String::new(),
            cert_dir: PathBuf::from("/var/lib/kubelet/pki"),
            cloud_provider: String::new(),
            root_dir: PathBuf::from("/var/lib/kubelet"),
            seccomp_default: false,
            node_labels: BTreeMap::new(),
            lock_file: String::new(),
            exit_on_lock_contention: false,
            runtime_cgroups: String::new(),
            image_credential_provider_config: String::new(),
            image_credential_provider_bin_dir: String::new(),
            minimum_container_ttl_duration: GoDuration::ZERO,
            maximum_dead_containers_per_container: 1,
            maximum_dead_containers: -1,
            experimental_mounter_path: String::new(),
            experimental_allocatable_ignore_eviction: false,
            housekeeping_interval: GoDuration::from_secs(10),
            max_housekeeping_interval: GoDuration::from_secs(15),
            allow_streaming_with_get: false,
            eviction_exclude_active_page_cache: false,
            vsock_port: 0,
            device_plugin_no_wait: false,
            flexvolume: false,
            cadvisor: BTreeMap::new(),
        }
    }
}

const ALLOWED_LABEL_KEYS: &[&str] = &[
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
const ALLOWED_LABEL_NAMESPACES: &[&str] = &["kubelet.kubernetes.io", "node.kubernetes.io"];

impl KubeletFlags {
    /// The vsock port of a process, in the order of [`Process::ALL`]; none where --vsock-port is 0.
    pub fn vsock_port_of(&self, process: Process) -> Option<u32> {
        let first = u32::try_from(self.vsock_port).ok().filter(|port| *port != 0)?;
        let place = Process::ALL.iter().position(|one| *one == process)?;
        first.checked_add(u32::try_from(place).ok()?)
    }

    /// Every error of the flags that are checked before any file is read (upstream `ValidateKubeletFlags`, and the
    /// start-up checks of root-dir, cloud-provider and lock-file).
    pub fn validate(&self) -> Vec<String> {
        let mut errors = Vec::new();
        self.validate_labels(&mut errors);
        let root = self.root_dir.to_string_lossy();
        if !crate::path_text::is_canonical(&root) {
            errors.push(format!(
                "invalid value {root:?} for --root-dir: must be an absolute path in canonical form, such as {:?}",
                crate::path_text::clean(&format!("/{root}"))
            ));
        }
        // Below 1024 the kernel wants one more capability; the last port is "any".
        if self.vsock_port != 0 && !(1024..=i32::MAX - 4).contains(&self.vsock_port) {
            errors.push(format!("invalid value {} for --vsock-port: must be 0 or at least 1024", self.vsock_port));
        }
        if !matches!(self.cloud_provider.as_str(), "" | "external") {
            errors.push(format!(
                "unknown cloud provider {:?} in --cloud-provider: must be \"external\" or empty",
                self.cloud_provider
            ));
        }
        if self.exit_on_lock_contention && self.lock_file.is_empty() {
            errors.push("cannot exit on lock file contention: no lock file specified (--exit-on-lock-contention needs --lock-file)".to_owned());
        }
        if let Err(error) = crate::node_ip::parse(&self.node_ip) {
            errors.push(error.to_string());
        }
        errors
    }

    fn validate_labels(&self, errors: &mut Vec<String>) {
        let mut unknown = Vec::new();
        for (key, value) in &self.node_labels {
            if let Err(why) = check_qualified_name(key) {
                errors.push(format!("invalid node label key {key:?} in --node-labels: {why}"));
            }
            if let Err(why) = check_label_value(value) {
                errors.push(format!("invalid value {value:?} of node label {key:?} in --node-labels: {why}"));
            }
            let namespace = key.split_once('/').map_or("", |(namespace, _)| namespace);
            let within = |parent: &str| namespace == parent || namespace.ends_with(&format!(".{parent}"));
            if (within("kubernetes.io") || within("k8s.io"))
                && !ALLOWED_LABEL_KEYS.contains(&key.as_str())
                && !ALLOWED_LABEL_NAMESPACES.iter().any(|allowed| within(allowed))
            {
                unknown.push(key.as_str());
            }
        }
        if !unknown.is_empty() {
            errors.push(format!(
                "unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: {unknown:?}\n  \
                 --node-labels in the 'kubernetes.io' namespace must begin with an allowed prefix ({}) or be in the \
                 specifically allowed set ({})",
                ALLOWED_LABEL_NAMESPACES.join(", "),
                ALLOWED_LABEL_KEYS.join(", ")
            ));
        }
    }
}

/// `[prefix/]name` as labels, taints and annotations have it (`apimachinery/pkg/util/validation` IsQualifiedName).
pub fn check_qualified_name(text: &str) -> Result<(), &'static str> {
    let name = match text.split_once('/') {
        Some((prefix, _)) if !is_dns1123_subdomain(prefix) => return Err("prefix must be a DNS subdomain"),
        Some((_, name)) if name.contains('/') => return Err("must have at most one '/'"),
        Some((_, name)) => name,
        None => text,
    };
    if name.is_empty() || name.len() > 63 {
        return Err("name must have 1 to 63 characters");
    }
    check_name_characters(name)
}

/// A label's value: empty, or at most 63 of the characters of a name.
pub fn check_label_value(text: &str) -> Result<(), &'static str> {
    if text.len() > 63 {
        return Err("must have at most 63 characters");
    }
    if text.is_empty() { Ok(()) } else { check_name_characters(text) }
}

fn check_name_characters(text: &str) -> Result<(), &'static str> {
    let bytes = text.as_bytes();
    let ends =
        bytes.first().is_some_and(u8::is_ascii_alphanumeric) && bytes.last().is_some_and(u8::is_ascii_alphanumeric);
    if ends && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b)) {
        Ok(())
    } else {
        Err("must consist of letters, digits, '-', '_' or '.', and start and end with a letter or digit")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(change: impl FnOnce(&mut KubeletFlags)) -> String {
        let mut flags = KubeletFlags::default();
        change(&mut flags);
        flags.validate().join("\n")
    }

    #[test]
    fn defaults_are_valid() {
        assert_eq!(errors(|_| {}), "");
    }

    #[test]
    fn labels() {
        let label = |key: &str, value: &str| errors(|f| drop(f.node_labels.insert(key.into(), value.into())));
        for good in [
            "a",
            "example.com/role",
            "kubernetes.io/hostname",
            "node.kubernetes.io/x",
            "a.node.kubernetes.io/x",
            "kubelet.kubernetes.io/x",
            "topology.kubernetes.io/zone",
            "notkubernetes.io/x",
        ] {
            assert_eq!(label(good, "v"), "", "{good}");
        }
        for bad in ["kubernetes.io/role", "node-role.kubernetes.io/worker", "k8s.io/x", "x.k8s.io/y"] {
            assert!(
                label(bad, "").contains("unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels"),
                "{bad}"
            );
        }
        for bad in ["", "-a", "a b", "a/b/c", "UPPER.example/x", "/x", "x/"] {
            assert!(label(bad, "").contains("invalid node label key"), "{bad}");
        }
        assert!(label("a", "has space").contains("invalid value \"has space\" of node label"));
        assert!(label("a", &"x".repeat(64)).contains("63"));
    }

    #[test]
    fn the_others() {
        assert!(errors(|f| f.root_dir = "/var/lib/kubelet/".into()).contains("--root-dir"));
        assert!(errors(|f| f.root_dir = "var".into()).contains("canonical"));
        assert!(errors(|f| f.cloud_provider = "aws".into()).contains("--cloud-provider"));
        assert_eq!(errors(|f| f.cloud_provider = "external".into()), "");
        for (port, good) in [(0, true), (1023, false), (1024, true), (-1, false), (i32::MAX, false)] {
            assert_eq!(errors(|f| f.vsock_port = port).is_empty(), good, "{port}");
        }
        let flags = KubeletFlags { vsock_port: 10240, ..KubeletFlags::default() };
        assert_eq!(Process::ALL.map(|process| flags.vsock_port_of(process)), [10240, 10241, 10242, 10243].map(Some));
        assert_eq!(KubeletFlags::default().vsock_port_of(Process::Syncd), None);
        assert!(errors(|f| f.exit_on_lock_contention = true).contains("no lock file specified"));
        assert!(errors(|f| f.node_ip = "1.1.1.1,2.2.2.2".into()).contains("--node-ip"));
    }
}
