//! Flags that no configuration file knows, and the global ones.

use super::Set::{Bool, Custom, I32, Ignored, MapOrKeys, Path, Span, Text};
use super::{Deprecation, Flag, Group, IgnoredType, Set, values};

const fn node(name: &'static str, set: Set, default: &'static str, usage: &'static str) -> Flag {
    Flag { name, short: None, set, default, usage, group: Group::Node, deprecated: None }
}

const fn old(name: &'static str, set: Set, default: &'static str, why: &'static str, usage: &'static str) -> Flag {
    Flag { name, short: None, set, default, usage, group: Group::Node, deprecated: Some(Deprecation::Because(why)) }
}

const fn global(name: &'static str, short: Option<char>, set: Set, default: &'static str, usage: &'static str) -> Flag {
    Flag { name, short, set, default, usage, group: Group::Global, deprecated: None }
}

const fn cadvisor(name: &'static str, kind: IgnoredType, default: &'static str, usage: &'static str) -> Flag {
    let deprecated = Some(Deprecation::Because("it never did anything for the node agent and will be removed"));
    Flag { name, short: None, set: Ignored(kind), default, usage, group: Group::Global, deprecated }
}

const fn log(name: &'static str, short: Option<char>, set: Set, default: &'static str, usage: &'static str) -> Flag {
    Flag { name, short, set, default, usage, group: Group::Logging, deprecated: None }
}

const fn old_log(name: &'static str, set: Set, default: &'static str, usage: &'static str) -> Flag {
    let deprecated = Some(Deprecation::UseConfigFile);
    Flag { name, short: None, set, default, usage, group: Group::Logging, deprecated }
}

const EVICTION: &str = "use eviction thresholds instead";

/// Sorted by name within each group.
#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    node("allow-streaming-with-get", Bool(|s| &mut s.flags.allow_streaming_with_get), "", "Not one of the Kubernetes kubelet's: let get on nodes/proxy be enough for exec, attach, run and port-forward by GET (WebSocket), as it is there; otherwise they need create"),
    node("bootstrap-kubeconfig", Text(|s| &mut s.flags.bootstrap_kubeconfig), "", "Kubeconfig file used to get a client certificate while the one of --kubeconfig cannot be used"),
    node("cert-dir", Path(|s| &mut s.flags.cert_dir), "/var/lib/kubelet/pki", "Folder of certificates; does not follow --root-dir"),
    node("cloud-provider", Text(|s| &mut s.flags.cloud_provider), "", "external when a cloud controller manager runs in the cluster, else empty"),
    node("config", Text(|s| &mut s.flags.config), "", "Configuration file (KubeletConfiguration); flags given beside it win"),
    node("config-dir", Text(|s| &mut s.flags.config_dir), "", "Folder of *.conf files that are merged over the configuration file, in lexical order"),
    node("exit-on-lock-contention", Bool(|s| &mut s.flags.exit_on_lock_contention), "", "Exit when somebody else opens the lock file"),
    old("experimental-allocatable-ignore-eviction", Bool(|s| &mut s.flags.experimental_allocatable_ignore_eviction), "", "it will be removed", "Leave hard eviction thresholds out of allocatable resources"),
    old("experimental-mounter-path", Text(|s| &mut s.flags.experimental_mounter_path), "", "it will be removed", "Program to mount with"),
    node("device-plugin-no-wait", Bool(|s| &mut s.flags.device_plugin_no_wait), "", "Not one of the Kubernetes kubelet's: refuse a pod at once that needs a device of a plugin that is coming back, as the Kubernetes kubelet does, in place of waiting 30 s for it"),
    node("eviction-exclude-active-page-cache", Bool(|s| &mut s.flags.eviction_exclude_active_page_cache), "", "Not one of the Kubernetes kubelet's: count page cache that is in use as available memory, too, for eviction thresholds of memory; the Kubernetes kubelet counts the inactive part alone"),
    node("hostname-override", Text(|s| &mut s.flags.hostname_override), "", "Name of the node instead of the machine's host name"),
    node("image-credential-provider-bin-dir", Text(|s| &mut s.flags.image_credential_provider_bin_dir), "", "Folder of image credential provider programs"),
    node("image-credential-provider-config", Text(|s| &mut s.flags.image_credential_provider_config), "", "Configuration file of image credential providers, or a folder of such files"),
    node("kubeconfig", Text(|s| &mut s.flags.kubeconfig), "", "Kubeconfig file for the API server; without it the node runs static pods alone"),
    node("lock-file", Text(|s| &mut s.flags.lock_file), "", "File that is locked while the node agent runs"),
    old("maximum-dead-containers", I32(|s| &mut s.flags.maximum_dead_containers), "-1", EVICTION, "How many dead containers are kept on the node; negative means no limit"),
    old("maximum-dead-containers-per-container", I32(|s| &mut s.flags.maximum_dead_containers_per_container), "1", EVICTION, "How many dead instances of each container are kept"),
    old("minimum-container-ttl-duration", Span(|s| &mut s.flags.minimum_container_ttl_duration), "", EVICTION, "How long a dead container is kept at least"),
    node("node-ip", Text(|s| &mut s.flags.node_ip), "", "IP address of the node, or an IPv4 and an IPv6 one; 0.0.0.0 or :: picks the family of the detected one"),
    node("node-labels", MapOrKeys(|s| &mut s.flags.node_labels), "", "Labels of the new Node object, as key=value; of the kubernetes.io and k8s.io namespaces only a fixed set"),
    node("flexvolume", Bool(|s| &mut s.flags.flexvolume), "", "Not one of the Kubernetes kubelet's: run drivers of flexVolume volumes that lie in volumePluginDir, as root"),
    node("root-dir", Path(|s| &mut s.flags.root_dir), "/var/lib/kubelet", "Folder of pods, volumes and state"),
    node("runtime-cgroups", Text(|s| &mut s.flags.runtime_cgroups), "", "Cgroup that the container runtime runs in"),
    node("seccomp-default", Bool(|s| &mut s.flags.seccomp_default), "", "Use RuntimeDefault where a pod names no seccomp profile"),
    node("vsock-port", I32(|s| &mut s.flags.vsock_port), "0", "Not one of the Kubernetes kubelet's: first of four vsock ports on which the processes answer read-only calls of the virtual machine's host and of this machine itself; 0 for none"),

    global("application-metrics-count-limit", None, Ignored(IgnoredType::Int), "100", "Cap of application metrics of a container").because_ignored(),
    cadvisor("boot-id-file", IgnoredType::Text, "/proc/sys/kernel/random/boot_id", "Files to read the boot id from"),
    cadvisor("container-hints", IgnoredType::Text, "/etc/cadvisor/container_hints.json", "File of container hints"),
    cadvisor("containerd", IgnoredType::Text, "/run/containerd/containerd.sock", "containerd's socket, for statistics"),
    cadvisor("containerd-namespace", IgnoredType::Text, "k8s.io", "containerd's namespace, for statistics"),
    cadvisor("enable-load-reader", IgnoredType::Bool, "", "Read CPU load"),
    cadvisor("event-storage-age-limit", IgnoredType::Text, "default=0", "How long statistics events are kept"),
    cadvisor("event-storage-event-limit", IgnoredType::Text, "default=0", "How many statistics events are kept"),
    cadvisor("global-housekeeping-interval", IgnoredType::Span, "1m0s", "Interval of global housekeeping"),
    global("help", Some('h'), Bool(|s| &mut s.help), "", "Print this text"),
    global("housekeeping-interval", None, Span(|s| &mut s.flags.housekeeping_interval), "10s", "How often container statistics are read"),
    cadvisor("log-cadvisor-usage", IgnoredType::Bool, "", "Log what reading statistics costs"),
    cadvisor("machine-id-file", IgnoredType::Text, "/etc/machine-id,/var/lib/dbus/machine-id", "Files to read the machine id from"),
    global("max-housekeeping-interval", None, Span(|s| &mut s.flags.max_housekeeping_interval), "15s", "Longest time between two readings of container statistics"),
    cadvisor("storage-driver-buffer-duration", IgnoredType::Span, "1m0s", "Buffering of the storage driver"),
    cadvisor("storage-driver-db", IgnoredType::Text, "cadvisor", "Database of the storage driver"),
    cadvisor("storage-driver-host", IgnoredType::Text, "localhost:8086", "Host of the storage driver"),
    cadvisor("storage-driver-password", IgnoredType::Text, "root", "Password of the storage driver"),
    cadvisor("storage-driver-secure", IgnoredType::Bool, "", "Secure connection of the storage driver"),
    cadvisor("storage-driver-table", IgnoredType::Text, "stats", "Table of the storage driver"),
    cadvisor("storage-driver-user", IgnoredType::Text, "root", "User of the storage driver"),
    global("version", None, Custom("version", values::version), "", "Print the version: --version in short, --version=raw in full; --version=vX.Y.Z... sets the reported version"),

    log("log-flush-frequency", None, Span(|s| &mut s.kubelet.logging.flush_frequency.duration), "5s", "Longest time that a log line is held back"),
    old_log("log-json-info-buffer-size", Custom("quantity", values::json_buffer), "", "Buffer of info lines in JSON form with split streams; needs feature gate LoggingAlphaOptions"),
    old_log("log-json-split-stream", Bool(|s| &mut s.kubelet.logging.options.json.split_stream), "", "Errors to stderr and info to stdout in JSON form; needs feature gate LoggingAlphaOptions"),
    old_log("log-text-info-buffer-size", Custom("quantity", values::text_buffer), "", "Buffer of info lines in text form with split streams; needs feature gate LoggingAlphaOptions"),
    old_log("log-text-split-stream", Bool(|s| &mut s.kubelet.logging.options.text.split_stream), "", "Errors to stderr and info to stdout in text form; needs feature gate LoggingAlphaOptions"),
    old_log("logging-format", Text(|s| &mut s.kubelet.logging.format), "text", "Form of log lines: text or json"),
    log("v", Some('v'), Custom("Level", values::verbosity), "0", "How much is logged; higher is more"),
    log("vmodule", None, Custom("pattern=N,...", values::vmodule), "", "Verbosity of single source files, as pattern=N; text form only"),
];
