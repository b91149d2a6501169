//! `NodeConfig`: the effective configuration that the launcher works out and all daemons read, as JSON.
//!
//! It is complete and checked: a daemon applies no default and parses no flag. Written once per start, atomically, to
//! `<run>/config.json`; a daemon restarted alone reads the same bytes again.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_types::ip::parse_sloppy;
use bulkhead_types::{GoDuration, InstancePaths, NodeName, Process, Quantity};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cpu_set::CpuSet;
use crate::credential_providers::CredentialProviders;
use crate::defaults::flag_defaults;
use crate::gates::{Feature, FeatureGates};
use crate::internal::Internal;
use crate::kubelet::{KubeletConfiguration, TextMap};
use crate::kubelet_flags::KubeletFlags;
use crate::{endpoint, eviction};

/// Form of the file. A daemon refuses another one: launcher and daemons are then of different builds.
const FORMAT: u32 = 1;
/// A rendered configuration has some kilobytes.
const MAX_FILE_BYTES: u64 = 8 << 20;

/// Users of the daemons. volnetd is root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Users {
    /// Group of the socket folder, a supplementary group of every daemon.
    pub gid: u32,
    pub syncd: u32,
    pub evictiond: u32,
    pub statusd: u32,
    pub syncd_gid: u32,
    pub evictiond_gid: u32,
    pub statusd_gid: u32,
}

impl Users {
    /// The block `base..base+4`: shared group, syncd, evictiond, statusd; each user's own group has its uid's number. The four that
    /// follow are the launcher's, for helpers.
    pub const fn block(base: u32) -> Self {
        Users {
            gid: base,
            syncd: base + 1,
            evictiond: base + 2,
            statusd: base + 3,
            syncd_gid: base + 1,
            evictiond_gid: base + 2,
            statusd_gid: base + 3,
        }
    }

    pub const fn uid(&self, process: Process) -> u32 {
        match process {
            Process::Volnetd => 0,
            Process::Syncd => self.syncd,
            Process::Evictiond => self.evictiond,
            Process::Statusd => self.statusd,
        }
    }

    /// Primary group.
    pub const fn primary_gid(&self, process: Process) -> u32 {
        match process {
            Process::Volnetd => 0,
            Process::Syncd => self.syncd_gid,
            Process::Evictiond => self.evictiond_gid,
            Process::Statusd => self.statusd_gid,
        }
    }
}

/// Everything a process of this node has to know about how it is configured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeConfig {
    pub format: u32,
    /// What the node reports as its version: `v1.36.0-bulkhead.0.1.0`.
    pub version: String,
    pub node_name: NodeName,
    /// The machine's host name, trimmed and in lower case; the node name unless overridden.
    pub hostname: String,
    /// From `--node-ip`; an unspecified address picks the family. Empty: detect.
    pub node_ips: Vec<IpAddr>,
    pub paths: InstancePaths,
    /// What only flags can say.
    pub flags: KubeletFlags,
    /// Defaulted and validated; `reservedSystemCPUs` has taken the place of the CPUs in both reservations.
    pub kubelet: KubeletConfiguration,
    /// The operator wrote no `systemReserved`: all that is in it comes of `reservedSystemCPUs`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub system_reserved_implied: bool,
    /// `clusterDNS` without what is no address.
    pub cluster_dns: Vec<IpAddr>,
    /// Parent of the pods' cgroup tree, `/` when not configured.
    pub cgroup_root: String,
    /// CRI runtime socket.
    pub runtime_socket: PathBuf,
    /// CRI image socket; the runtime's own unless configured.
    pub image_socket: PathBuf,
    pub users: Users,
    /// The kubeconfig takes credentials from a program: the two processes that talk to the API server may start one.
    #[serde(default)]
    pub kubeconfig_runs_program: bool,
    /// The bootstrap kubeconfig does: statusd may start one.
    #[serde(default)]
    pub bootstrap_runs_program: bool,
    /// This boot's id as the machine has it. A daemon whose unit gives it a fresh /proc would read the kernel's, which in a
    /// container with one of its own (systemd-nspawn) is that of the machine outside. Empty: it looks itself.
    #[serde(default)]
    pub boot_id: String,
    /// This start of the kubelet, of all its processes: another one whenever the launcher begins. A daemon that is restarted
    /// alone finds the one that it had. Empty: written by a launcher that names none.
    #[serde(default)]
    pub start_id: String,
    /// Fields set by the operator whose feature this version does not have.
    pub not_yet: Vec<String>,
    /// Programs that give credentials for image pulls.
    #[serde(default, deserialize_with = "crate::credential_providers::rendered")]
    pub credential_providers: Option<CredentialProviders>,
    /// Upstream's values but in tests of whole nodes.
    #[serde(default, skip_serializing_if = "Internal::is_default")]
    pub internal: Internal,
}

/// Why the rendered configuration cannot be used or written.
#[derive(Debug, thiserror::Error)]
pub enum NodeConfigError {
    #[error("failed to read the rendered configuration {path:?}")]
    Read { path: PathBuf, source: io::Error },
    #[error("the rendered configuration {path:?} cannot be decoded; was it written by another version of `kubelet`?")]
    Decode { path: PathBuf, source: serde_json::Error },
    #[error(
        "the rendered configuration {path:?} has format {found}, this build reads format {FORMAT}: restart the whole node agent"
    )]
    Format { path: PathBuf, found: u32 },
    #[error("failed to write the rendered configuration {path:?}")]
    Write { path: PathBuf, source: io::Error },
}

/// Sockets and the rendered configuration of the instance with this root directory.
pub fn run_dir_for(root_dir: &Path) -> PathBuf {
    if root_dir == Path::new("/var/lib/kubelet") {
        return PathBuf::from("/run/kubelet");
    }
    PathBuf::from(format!("/run/kubelet-{}", short_hash(root_dir.as_os_str().as_encoded_bytes())))
}

/// First 8 hex digits of SHA-256.
pub fn short_hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// What [`NodeConfig::new`] is given beside the configuration.
#[derive(Debug, Clone)]
pub struct Identity {
    /// As the kernel says it.
    pub hostname: String,
    pub version: String,
    pub users: Users,
}

/// Why no node configuration can be made of a configuration that is valid by itself.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error("empty hostname is invalid")]
    EmptyHostname,
    #[error("node name from {origin}")]
    NodeName { origin: &'static str, source: bulkhead_types::IdError },
    #[error("{field}")]
    Endpoint { field: &'static str, source: endpoint::EndpointError },
}

/// The override where one is given, be it of blanks alone, else the machine's name, trimmed and in lower case (upstream
/// `component-helpers/node/util`, GetHostname).
fn node_name(hostname: &str, overridden: &str) -> Result<NodeName, ResolveError> {
    let (name, origin) = match overridden {
        "" => (hostname, "the machine's host name"),
        name => (name, "--hostname-override"),
    };
    let name = name.trim();
    if name.is_empty() {
        return Err(ResolveError::EmptyHostname);
    }
    NodeName::parse(&name.to_lowercase()).map_err(|source| ResolveError::NodeName { origin, source })
}

/// The sockets of the runtime and of its image service; what of them is deprecated is a warning.
fn runtime_sockets(
    kubelet: &KubeletConfiguration,
    warnings: &mut Vec<String>,
) -> Result<(PathBuf, PathBuf), ResolveError> {
    let runtime_socket = endpoint::socket_path(&kubelet.container_runtime_endpoint)
        .map_err(|source| ResolveError::Endpoint { field: "containerRuntimeEndpoint", source })?;
    let image_socket = if kubelet.image_service_endpoint.is_empty() {
        runtime_socket.clone()
    } else {
        endpoint::socket_path(&kubelet.image_service_endpoint)
            .map_err(|source| ResolveError::Endpoint { field: "imageServiceEndpoint", source })?
    };
    for (field, value) in [
        ("containerRuntimeEndpoint", &kubelet.container_runtime_endpoint),
        ("imageServiceEndpoint", &kubelet.image_service_endpoint),
    ] {
        if value.starts_with('/') {
            warnings.push(format!("{field}: using {value:?} without a scheme is deprecated, write \"unix://{value}\""));
        }
    }
    Ok((runtime_socket, image_socket))
}

impl NodeConfig {
    /// Resolves names, addresses and sockets. Answers lines worth a warning, too.
    pub fn new(
        flags: KubeletFlags,
        mut kubelet: KubeletConfiguration,
        identity: Identity,
    ) -> Result<(Self, Vec<String>), ResolveError> {
        let mut warnings = Vec::new();
        let hostname = identity.hostname.trim().to_lowercase();
        let node_name = node_name(&hostname, &flags.hostname_override)?;
        // Checked with the flags: an error cannot come back here.
        let node_ips = crate::node_ip::parse(&flags.node_ip).unwrap_or_default();
        for entry in node_ips.ignored {
            warnings.push(format!("could not parse {entry:?} in --node-ip, ignoring it"));
        }
        let mut cluster_dns = Vec::new();
        for entry in &kubelet.cluster_dns {
            match parse_sloppy(entry) {
                Some(address) => cluster_dns.push(address),
                None => warnings.push(format!("clusterDNS: {entry:?} is no IP address, ignoring it")),
            }
        }
        let cgroup_root = if kubelet.cgroup_root.is_empty() { "/" } else { &kubelet.cgroup_root };
        let cgroup_root = crate::path_text::clean(&format!("/{cgroup_root}"));
        let (runtime_socket, image_socket) = runtime_sockets(&kubelet, &mut warnings)?;
        let paths = InstancePaths {
            root_dir: flags.root_dir.clone(),
            run_dir: run_dir_for(&flags.root_dir),
            pod_logs_dir: PathBuf::from(&kubelet.pod_logs_dir),
        };
        let not_yet = crate::not_yet::named(&flags, &kubelet);
        // Explicit CPUs replace both reservations of CPU (upstream `cmd/kubelet/app/server.go`).
        let mut system_reserved_implied = false;
        if let Ok(cpus) = CpuSet::parse(&kubelet.reserved_system_cpus)
            && !cpus.is_empty()
        {
            kubelet.kube_reserved.remove("cpu");
            system_reserved_implied = kubelet.system_reserved.is_empty();
            kubelet.system_reserved.insert("cpu".to_owned(), cpus.len().to_string());
        }
        let node = NodeConfig {
            format: FORMAT,
            version: identity.version,
            node_name,
            hostname,
            node_ips: node_ips.addresses,
            paths,
            flags,
            kubelet,
            system_reserved_implied,
            cluster_dns,
            cgroup_root,
            runtime_socket,
            image_socket,
            users: identity.users,
            kubeconfig_runs_program: false,
            bootstrap_runs_program: false,
            boot_id: String::new(),
            start_id: String::new(),
            not_yet,
            credential_providers: None,
            internal: Internal::default(),
        };
        Ok((node, warnings))
    }

    /// Labels of the Node when it is registered (upstream `pkg/kubelet/kubelet_node_status.go` initialNode). `architecture`: Go's name.
    /// The host's name is `--hostname-override` before the machine's own (upstream `nodeutil.GetHostname`).
    pub fn initial_labels(&self, architecture: &str) -> BTreeMap<String, String> {
        let mut labels: BTreeMap<String, String> = [
            ("kubernetes.io/hostname", self.node_name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", architecture),
            ("beta.kubernetes.io/os", "linux"),
            ("beta.kubernetes.io/arch", architecture),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        labels.extend(self.flags.node_labels.clone());
        labels
    }

    /// A complete configuration for tests of daemons: defaults, everything below `root` (which should be absolute),
    /// node `test-node`, containerd at `<root>/containerd.sock`, cgroup root `/`, users of the caller's own uid.
    /// Change fields as the test needs.
    pub fn for_tests(root: &Path) -> Self {
        let mut kubelet = flag_defaults();
        kubelet.pod_logs_dir = root.join("pod-logs").display().to_string();
        kubelet.static_pod_path = root.join("manifests").display().to_string();
        kubelet.container_runtime_endpoint = format!("unix://{}", root.join("containerd.sock").display());
        kubelet.fail_cgroup_v1 = Some(false);
        kubelet.healthz_port = Some(0);
        kubelet.read_only_port = 0;
        let uid = std::fs::metadata("/proc/self").map(|meta| std::os::unix::fs::MetadataExt::uid(&meta)).unwrap_or(0);
        NodeConfig {
            format: FORMAT,
            version: crate::version::reported(),
            node_name: NodeName::parse("test-node").expect("a DNS subdomain"),
            hostname: "test-node".to_owned(),
            node_ips: Vec::new(),
            paths: InstancePaths {
                root_dir: root.join("root"),
                run_dir: root.join("run"),
                pod_logs_dir: root.join("pod-logs"),
            },
            flags: KubeletFlags { root_dir: root.join("root"), ..KubeletFlags::default() },
            kubelet,
            system_reserved_implied: false,
            cluster_dns: Vec::new(),
            cgroup_root: "/".to_owned(),
            runtime_socket: root.join("containerd.sock"),
            image_socket: root.join("containerd.sock"),
            users: Users {
                gid: uid,
                syncd: uid,
                evictiond: uid,
                statusd: uid,
                syncd_gid: uid,
                evictiond_gid: uid,
                statusd_gid: uid,
            },
            kubeconfig_runs_program: false,
            bootstrap_runs_program: false,
            boot_id: String::new(),
            start_id: String::new(),
            not_yet: Vec::new(),
            credential_providers: None,
            internal: Internal::default(),
        }
    }

    /// Reads what [`Self::save`] wrote.
    pub fn load(path: &Path) -> Result<Self, NodeConfigError> {
        let unreadable = |source| NodeConfigError::Read { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(unreadable)?;
        let mut text = String::new();
        file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(unreadable)?;
        let undecodable = |source| NodeConfigError::Decode { path: path.to_owned(), source };
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let head: Head = serde_json::from_str(&text).map_err(undecodable)?;
        if head.format != FORMAT {
            return Err(NodeConfigError::Format { path: path.to_owned(), found: head.format });
        }
        serde_json::from_str(&text).map_err(undecodable)
    }

    /// Writes the file atomically (temporary file, fsync, rename) with mode 0640 and, as root, group `users.gid`.
    pub fn save(&self, path: &Path) -> Result<(), NodeConfigError> {
        let failed = |source| NodeConfigError::Write { path: path.to_owned(), source };
        let mut text = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        let temporary = path.with_extension("json.new");
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(failed)?;
        file.write_all(&text).map_err(failed)?;
        std::os::unix::fs::fchown(&file, None, Some(self.users.gid)).map_err(failed)?;
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o640)).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        std::fs::rename(&temporary, path).map_err(failed)
    }

    pub fn feature_gates(&self) -> FeatureGates {
        FeatureGates::from_map(&self.kubelet.feature_gates)
    }

    /// True without `--kubeconfig`: no API server.
    pub fn is_standalone(&self) -> bool {
        self.flags.kubeconfig.is_empty()
    }

    /// Cgroup (v2 path, or path in each v1 hierarchy) above all pods: `/kubepods`, `/kubepods.slice`, ...
    pub fn pods_cgroup(&self) -> String {
        self.pods_cgroup_of(&self.kubelet.cgroup_driver)
    }

    /// The same as another cgroup driver calls it: the runtime may be set up for another one than the configured.
    pub fn pods_cgroup_of(&self, driver: &str) -> String {
        let parts: Vec<&str> =
            self.cgroup_root.split('/').filter(|part| !part.is_empty()).chain(["kubepods"]).collect();
        if driver != "systemd" {
            return format!("/{}", parts.join("/"));
        }
        // A slice's name spells out its ancestors: a-b.slice lies in a.slice. A dash inside a name is escaped.
        let mut path = String::new();
        let mut name = String::new();
        for part in parts {
            if !name.is_empty() {
                name.push('-');
            }
            name.push_str(&part.trim_end_matches(".slice").replace('-', "_"));
            path.push_str(&format!("/{name}.slice"));
        }
        path
    }

    /// Manifest file or folder, when configured.
    pub fn static_pod_path(&self) -> Option<&Path> {
        let path = self.kubelet.static_pod_path.as_str();
        (!path.is_empty()).then(|| Path::new(path))
    }

    pub fn sync_frequency(&self) -> Duration {
        self.kubelet.sync_frequency.to_std()
    }

    pub fn file_check_frequency(&self) -> Duration {
        self.kubelet.file_check_frequency.to_std()
    }

    pub fn http_check_frequency(&self) -> Duration {
        self.kubelet.http_check_frequency.to_std()
    }

    /// Deadline of CRI calls other than pull, logs, exec and attach.
    pub fn runtime_request_timeout(&self) -> Duration {
        self.kubelet.runtime_request_timeout.to_std()
    }

    /// First and longest delay before a container that has ended starts again (upstream `pkg/kubelet/kubelet.go`
    /// newCrashLoopBackOff): `crashLoopBackOff.maxContainerRestartPeriod`, 5 minutes by default, whatever the gate
    /// `ReduceDefaultCrashLoopBackOffDecay` makes of the defaults.
    pub fn crash_loop_back_off(&self) -> (Duration, Duration) {
        let gates = self.feature_gates();
        let seconds = Duration::from_secs;
        let (initial, mut max) = match gates.enabled(Feature::ReduceDefaultCrashLoopBackOffDecay) {
            true => (seconds(1), seconds(60)),
            false => (seconds(10), seconds(300)),
        };
        if gates.enabled(Feature::KubeletCrashLoopBackOffMax) {
            let configured = self.kubelet.crash_loop_back_off.max_container_restart_period;
            max = configured.map_or(seconds(300), |period| period.to_std());
        }
        (initial.min(max), max)
    }

    /// None: statistics of volumes are off.
    pub fn volume_stats_agg_period(&self) -> Option<Duration> {
        let period = self.kubelet.volume_stats_agg_period;
        (period > GoDuration::ZERO).then(|| period.to_std())
    }

    /// Bytes; None: rotation is off.
    pub fn container_log_max_size(&self) -> Option<i64> {
        let size = Quantity::parse(&self.kubelet.container_log_max_size).map_or(10 << 20, Quantity::value);
        (size >= 0).then_some(size)
    }

    /// `seccompDefault`, from the file or the flag.
    pub fn seccomp_default(&self) -> bool {
        self.kubelet.seccomp_default() || self.flags.seccomp_default
    }

    /// `resolvConf`; None when it is the empty string: no host resolver file.
    pub fn resolv_conf(&self) -> Option<&Path> {
        let path = self.kubelet.resolv_conf.as_deref().unwrap_or("/etc/resolv.conf");
        (!path.is_empty()).then(|| Path::new(path))
    }

    /// Address and port of healthz; None: off.
    pub fn healthz_address(&self) -> Option<std::net::SocketAddr> {
        let port = u16::try_from(self.kubelet.healthz_port()).ok().filter(|port| *port != 0)?;
        let address = match self.kubelet.healthz_bind_address.as_str() {
            // The one name that is sometimes written there; upstream would resolve it.
            "localhost" => std::net::Ipv4Addr::LOCALHOST.into(),
            address => parse_sloppy(address)?,
        };
        Some(std::net::SocketAddr::new(address, port))
    }

    /// `kubeReserved`, parsed.
    pub fn kube_reserved(&self) -> BTreeMap<String, Quantity> {
        quantities(&self.kubelet.kube_reserved)
    }

    /// `systemReserved`, parsed; with `reservedSystemCPUs` its cpu is their number.
    pub fn system_reserved(&self) -> BTreeMap<String, Quantity> {
        quantities(&self.kubelet.system_reserved)
    }

    /// Hard and soft eviction thresholds.
    pub fn eviction_thresholds(&self) -> Vec<eviction::Threshold> {
        eviction::parse_all(&self.kubelet).unwrap_or_default()
    }

    /// Pods that fit: `maxPods`, capped by `podsPerCore` x `cores` when that is set.
    pub fn pod_capacity(&self, cores: u32) -> i64 {
        let max = i64::from(self.kubelet.max_pods);
        if self.kubelet.pods_per_core > 0 {
            max.min(i64::from(self.kubelet.pods_per_core) * i64::from(cores))
        } else {
            max
        }
    }

    /// Per-pod limit of processes; None: unlimited.
    pub fn pod_pids_limit(&self) -> Option<u64> {
        u64::try_from(self.kubelet.pod_pids_limit()).ok().filter(|limit| *limit > 0)
    }
}

fn quantities(map: &TextMap) -> BTreeMap<String, Quantity> {
    // Validated at start: nothing is dropped here.
    map.iter().filter_map(|(name, text)| Some((name.clone(), Quantity::parse(text).ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity { hostname: " Node-A.Example \n".into(), version: "v1".into(), users: Users::block(60706) }
    }

    fn make(
        change: impl FnOnce(&mut KubeletFlags, &mut KubeletConfiguration),
    ) -> Result<(NodeConfig, Vec<String>), ResolveError> {
        let (mut flags, mut kubelet) = (KubeletFlags::default(), flag_defaults());
        change(&mut flags, &mut kubelet);
        NodeConfig::new(flags, kubelet, identity())
    }

    #[test]
    fn restart_back_off() {
        let of = |gates: &[(&str, bool)], max: Option<i64>| {
            let change = |_: &mut KubeletFlags, kubelet: &mut KubeletConfiguration| {
                kubelet.feature_gates = gates.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect();
                kubelet.crash_loop_back_off.max_container_restart_period =
                    max.map(bulkhead_types::GoDuration::from_secs);
            };
            let (initial, max) = make(change).unwrap().0.crash_loop_back_off();
            (initial.as_secs(), max.as_secs())
        };
        let reduced = ("ReduceDefaultCrashLoopBackOffDecay", true);
        assert_eq!(of(&[], Some(300)), (10, 300));
        assert_eq!(of(&[], Some(2)), (2, 2));
        assert_eq!(of(&[reduced], Some(300)), (1, 300), "what is configured counts, and that is so by default");
        assert_eq!(of(&[reduced, ("KubeletCrashLoopBackOffMax", false)], None), (1, 60));
    }

    #[test]
    fn names_paths_and_sockets_are_resolved() {
        let (node, warnings) = make(|_, _| {}).unwrap();
        assert_eq!(node.node_name.as_str(), "node-a.example");
        assert_eq!(node.paths.run_dir, Path::new("/run/kubelet"));
        assert_eq!(node.runtime_socket, Path::new("/run/containerd/containerd.sock"));
        assert_eq!((node.cgroup_root.as_str(), node.pods_cgroup().as_str()), ("/", "/kubepods"));
        assert!(warnings.is_empty());
        let (node, warnings) = make(|flags, kubelet| {
            flags.hostname_override = " OTHER ".into();
            flags.root_dir = "/tmp/x".into();
            flags.node_ip = "junk,10.0.0.1".into();
            kubelet.cluster_dns = vec!["010.096.0.010".into(), "nope".into()];
            kubelet.container_runtime_endpoint = "/run/c.sock".into();
            kubelet.cgroup_root = "/a-b/c".into();
            kubelet.cgroup_driver = "systemd".into();
        })
        .unwrap();
        assert_eq!(node.node_name.as_str(), "other");
        assert_eq!(node.paths.run_dir.display().to_string(), format!("/run/kubelet-{}", short_hash(b"/tmp/x")));
        assert_eq!((node.node_ips.len(), warnings.len()), (1, 3));
        assert_eq!(node.cluster_dns, ["10.96.0.10".parse::<IpAddr>().unwrap()]);
        assert_eq!(node.runtime_socket, Path::new("/run/c.sock"));
        assert_eq!(node.pods_cgroup(), "/a_b.slice/a_b-c.slice/a_b-c-kubepods.slice");
        let (node, _) = make(|_, kubelet| {
            kubelet.reserved_system_cpus = "0,2-3".into();
            kubelet.kube_reserved.insert("cpu".into(), "1".into());
        })
        .unwrap();
        assert!(node.kube_reserved().is_empty());
        assert_eq!(node.system_reserved()["cpu"].value(), 3);
        assert!(node.system_reserved_implied);
        assert!(make(|flags, _| flags.hostname_override = "under_score".into()).is_err());
        for blank in [" ", "\t \n"] {
            let error = make(|flags, _| flags.hostname_override = blank.into()).unwrap_err();
            assert_eq!(error.to_string(), "empty hostname is invalid");
        }
        assert!(make(|_, kubelet| kubelet.container_runtime_endpoint = "tcp://1.2.3.4:5".into()).is_err());
    }

    #[test]
    fn the_file_round_trips() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.json");
        let mut node = NodeConfig::for_tests(folder.path());
        node.kubelet.eviction_hard = crate::defaults::default_eviction_hard();
        node.flags.node_labels.insert("a".into(), "b".into());
        node.save(&path).unwrap();
        assert_eq!(NodeConfig::load(&path).unwrap(), node);
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o7777, 0o640);
        std::fs::write(&path, "{\"format\": 99}").unwrap();
        assert!(NodeConfig::load(&path).unwrap_err().to_string().contains("format 99"));
        std::fs::write(&path, "junk").unwrap();
        assert!(matches!(NodeConfig::load(&path), Err(NodeConfigError::Decode { .. })));
        assert!(matches!(NodeConfig::load(&folder.path().join("none")), Err(NodeConfigError::Read { .. })));
    }

    #[test]
    fn accessors() {
        let mut node = NodeConfig::for_tests(Path::new("/t"));
        assert_eq!(node.sync_frequency(), Duration::from_secs(60));
        assert_eq!(node.container_log_max_size(), Some(10 << 20));
        node.kubelet.container_log_max_size = "-1".into();
        assert_eq!(node.container_log_max_size(), None);
        assert_eq!(node.pod_pids_limit(), None);
        assert_eq!(node.pod_capacity(2), 110);
        node.kubelet.pods_per_core = 10;
        assert_eq!(node.pod_capacity(2), 20);
        assert_eq!(node.healthz_address(), None);
        node.kubelet.healthz_port = Some(10248);
        assert_eq!(node.healthz_address().unwrap().to_string(), "127.0.0.1:10248");
        node.kubelet.address = "0.0.0.01".into();
        assert_eq!(node.https_address().unwrap().to_string(), "0.0.0.1:10250");
        node.kubelet.kube_reserved.insert("cpu".into(), "250m".into());
        assert_eq!(node.kube_reserved()["cpu"].milli_value(), 250);
    }
}
