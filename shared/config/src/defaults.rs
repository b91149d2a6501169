//! Built-in defaults of `KubeletConfiguration` (upstream `pkg/kubelet/apis/config/v1beta1/defaults.go`).
//!
//! A zero in a field that is no pointer counts as unset: upstream cannot tell the two apart, and kubeadm's files rely
//! on it. A pointer keeps an explicit zero or false.

use bulkhead_types::GoDuration;

use crate::field::DurationOrNanos;
use crate::gates::{Feature, FeatureGates};
use crate::kubelet::{API_VERSION, KIND, KubeletConfiguration, TextMap};

pub const DEFAULT_RUNTIME_ENDPOINT: &str = "unix:///run/containerd/containerd.sock";
pub const DEFAULT_VOLUME_PLUGIN_DIR: &str = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/";

/// Hard eviction thresholds of Linux, given to a `--config` file that names none.
pub const DEFAULT_EVICTION_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// Which fields the document itself had, where absent and empty mean different things.
#[derive(Debug, Clone, Copy, Default)]
pub struct Presence {
    pub enforce_node_allocatable: bool,
}

impl Presence {
    /// Reads presence off the document, `null` being absent.
    pub fn of(document: &serde_json::Value) -> Self {
        let has = |name: &str| document.get(name).is_some_and(|value| !value.is_null());
        Presence { enforce_node_allocatable: has("enforceNodeAllocatable") }
    }
}

/// Pointer fields with a default: filled by [`set_defaults`], read through a method of the same name.
macro_rules! pointer_defaults {
    ($($field:ident : $type:ty = $default:expr;)*) => {
        impl KubeletConfiguration {
            $(
                #[doc = concat!("Effective value of the field, with upstream's default where it is unset.")]
                pub fn $field(&self) -> $type {
                    self.$field.unwrap_or($default)
                }
            )*
        }

        fn set_pointer_defaults(config: &mut KubeletConfiguration) {
            $(config.$field.get_or_insert($default);)*
        }
    };
}

pointer_defaults! {
    enable_server: bool = true;
    registry_pull_qps: i32 = 5;
    event_record_qps: i32 = 50;
    enable_debugging_handlers: bool = true;
    healthz_port: i32 = 10248;
    oom_score_adj: i32 = -999;
    image_gc_high_threshold_percent: i32 = 85;
    image_gc_low_threshold_percent: i32 = 80;
    cgroups_per_qos: bool = true;
    pod_pids_limit: i64 = -1;
    cpu_cfs_quota: bool = true;
    cpu_cfs_quota_period: GoDuration = GoDuration::from_millis(100);
    node_status_max_images: i32 = 50;
    kube_api_qps: i32 = 50;
    merge_default_eviction_settings: bool = false;
    enable_controller_attach_detach: bool = true;
    make_iptables_util_chains: bool = true;
    iptables_masquerade_bit: i32 = 14;
    iptables_drop_bit: i32 = 15;
    fail_swap_on: bool = true;
    container_log_max_files: i32 = 5;
    container_log_max_workers: i32 = 1;
    container_log_monitor_interval: GoDuration = GoDuration::from_secs(10);
    enable_system_log_handler: bool = true;
    enable_system_log_query: bool = false;
    enable_profiling_handler: bool = true;
    enable_debug_flags_handler: bool = true;
    seccomp_default: bool = false;
    memory_throttling_factor: f64 = 0.9;
    register_node: bool = true;
    local_storage_capacity_isolation: bool = true;
    fail_cgroup_v1: bool = true;
}

impl KubeletConfiguration {
    /// Whether images are pulled one after the other. Unset: unless several at a time are asked for.
    pub fn serialize_image_pulls(&self) -> bool {
        self.serialize_image_pulls.unwrap_or(self.max_parallel_image_pulls.is_none_or(|most| most <= 1))
    }

    /// Whether the node's journal answers queries, which are for debugging, too.
    pub fn answers_log_queries(&self) -> bool {
        self.enable_system_log_query() && self.enable_debugging_handlers()
    }

    /// Whether pods together are held to the node's allocatable.
    pub fn enforces_pods(&self) -> bool {
        self.enforce_node_allocatable.iter().any(|part| part == "pods")
    }
}

/// Fills everything that is unset.
pub fn set_defaults(config: &mut KubeletConfiguration, presence: Presence, gates: &FeatureGates) {
    fn text(field: &mut String, default: &str) {
        if field.is_empty() {
            default.clone_into(field);
        }
    }
    fn span(field: &mut GoDuration, default: GoDuration) {
        if field.is_zero() {
            *field = default;
        }
    }
    fn number(field: &mut i32, default: i32) {
        if *field == 0 {
            *field = default;
        }
    }
    let seconds = GoDuration::from_secs;

    text(&mut config.kind, KIND);
    text(&mut config.api_version, API_VERSION);
    text(&mut config.pod_logs_dir, "/var/log/pods");
    span(&mut config.sync_frequency, seconds(60));
    span(&mut config.file_check_frequency, seconds(20));
    span(&mut config.http_check_frequency, seconds(20));
    text(&mut config.address, "0.0.0.0");
    number(&mut config.port, 10250);
    config.authentication.anonymous.enabled.get_or_insert(false);
    config.authentication.webhook.enabled.get_or_insert(true);
    span(&mut config.authentication.webhook.cache_ttl, seconds(120));
    text(&mut config.authorization.mode, "Webhook");
    span(&mut config.authorization.webhook.cache_authorized_ttl, seconds(300));
    span(&mut config.authorization.webhook.cache_unauthorized_ttl, seconds(30));
    number(&mut config.registry_burst, 10);
    if gates.enabled(Feature::KubeletEnsureSecretPulledImages) {
        text(&mut config.image_pull_credentials_verification_policy, "NeverVerifyPreloadedImages");
    }
    number(&mut config.event_burst, 100);
    text(&mut config.healthz_bind_address, "127.0.0.1");
    span(&mut config.streaming_connection_idle_timeout, seconds(4 * 3600));
    // Without own value the report period follows an explicit update period, else it is 5 minutes.
    let report =
        if config.node_status_update_frequency.is_zero() { seconds(300) } else { config.node_status_update_frequency };
    span(&mut config.node_status_report_frequency, report);
    span(&mut config.node_status_update_frequency, seconds(10));
    number(&mut config.node_lease_duration_seconds, 40);
    span(&mut config.image_minimum_gc_age, seconds(120));
    span(&mut config.volume_stats_agg_period, seconds(60));
    text(&mut config.cgroup_driver, "cgroupfs");
    text(&mut config.cpu_manager_policy, "none");
    span(&mut config.cpu_manager_reconcile_period, seconds(10));
    text(&mut config.memory_manager_policy, "None");
    text(&mut config.topology_manager_policy, "none");
    text(&mut config.topology_manager_scope, "container");
    span(&mut config.runtime_request_timeout, seconds(120));
    text(&mut config.hairpin_mode, "promiscuous-bridge");
    number(&mut config.max_pods, 110);
    if config.pod_pids_limit.is_some_and(|limit| limit < 0) {
        config.pod_pids_limit = Some(-1);
    }
    config.resolv_conf.get_or_insert_with(|| "/etc/resolv.conf".to_owned());
    if config.max_open_files == 0 {
        config.max_open_files = 1_000_000;
    }
    text(&mut config.content_type, "application/vnd.kubernetes.protobuf");
    number(&mut config.kube_api_burst, 100);
    config.serialize_image_pulls = Some(config.serialize_image_pulls());
    span(&mut config.eviction_pressure_transition_period, seconds(300));
    text(&mut config.container_log_max_size, "10Mi");
    text(&mut config.config_map_and_secret_change_detection_strategy, "Watch");
    if !presence.enforce_node_allocatable && config.enforce_node_allocatable.is_empty() {
        config.enforce_node_allocatable = vec!["pods".to_owned()];
    }
    text(&mut config.volume_plugin_dir, DEFAULT_VOLUME_PLUGIN_DIR);
    text(&mut config.logging.format, "text");
    if config.logging.flush_frequency.duration.is_zero() {
        config.logging.flush_frequency = DurationOrNanos { duration: seconds(5), as_text: true };
    }
    if gates.enabled(Feature::KubeletCrashLoopBackOffMax) {
        config.crash_loop_back_off.max_container_restart_period.get_or_insert(seconds(300));
    }
    text(&mut config.memory_reservation_policy, "None");
    text(&mut config.container_runtime_endpoint, DEFAULT_RUNTIME_ENDPOINT);
    set_pointer_defaults(config);
}

/// The four values that differ while no `--config` file is given (upstream `applyLegacyDefaults`).
pub fn set_legacy_defaults(config: &mut KubeletConfiguration) {
    config.authentication.anonymous.enabled = Some(true);
    config.authentication.webhook.enabled = Some(false);
    "AlwaysAllow".clone_into(&mut config.authorization.mode);
    config.read_only_port = 10255;
}

/// What a run with no file starts from.
pub fn flag_defaults() -> KubeletConfiguration {
    let mut config = KubeletConfiguration::default();
    set_defaults(&mut config, Presence::default(), &FeatureGates::default());
    set_legacy_defaults(&mut config);
    config
}

/// `evictionHard` of a `--config` file: the default map where the file has none, its own map otherwise, completed with
/// the missing default signals only on request.
pub fn complete_eviction_hard(config: &mut KubeletConfiguration, named_in_file: bool) {
    if named_in_file && !config.merge_default_eviction_settings() {
        return;
    }
    for (signal, threshold) in DEFAULT_EVICTION_HARD {
        config.eviction_hard.entry(signal.to_owned()).or_insert_with(|| threshold.to_owned());
    }
}

/// The default map itself.
pub fn default_eviction_hard() -> TextMap {
    DEFAULT_EVICTION_HARD.iter().map(|(signal, threshold)| ((*signal).to_owned(), (*threshold).to_owned())).collect()
}
