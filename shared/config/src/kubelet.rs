//! `KubeletConfiguration`, group `kubelet.config.k8s.io/v1beta1`: the object and its parts, field by field.
//!
//! Order of fields and presence in the written JSON are upstream's (`staging/src/k8s.io/kubelet/config/v1beta1/types.go`),
//! so that `/configz` and drop-in merging see the same document. `Option` is Go's pointer: unset differs from zero.

use std::collections::BTreeMap;

use bulkhead_types::{GoDuration, Quantity};

use crate::field::{DurationOrNanos, Field, Findings, Omit, config_object};

/// A map of quantities or percentages written as text (`evictionHard`, `kubeReserved`, ...).
pub type TextMap = BTreeMap<String, String>;

/// Headers of the manifest URL. They may hold credentials: `Debug` shows the names alone.
#[derive(Clone, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Headers(pub BTreeMap<String, Vec<String>>);

impl std::fmt::Debug for Headers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.0.keys().map(|name| (name, "<masked>"))).finish()
    }
}

impl std::ops::Deref for Headers {
    type Target = BTreeMap<String, Vec<String>>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl std::ops::DerefMut for Headers {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Field for Headers {
    fn decode(value: &serde_json::Value, path: &str, findings: &mut Findings) -> Self {
        let before = findings.errors.len();
        let headers = Headers(BTreeMap::decode(value, path, findings));
        for error in findings.errors.iter_mut().skip(before) {
            "(masked)".clone_into(&mut error.value);
        }
        headers
    }
}

impl Omit for Headers {
    fn omit(&self) -> bool {
        self.0.is_empty()
    }
}

pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
pub const KIND: &str = "KubeletConfiguration";

config_object! {
    /// The whole configuration of a node agent.
    pub struct KubeletConfiguration {
        kind: String = "kind",
        api_version: String = "apiVersion",
        enable_server: Option<bool> = "enableServer",
        static_pod_path: String = "staticPodPath",
        pod_logs_dir: String = "podLogsDir",
        sync_frequency: GoDuration = "syncFrequency",
        file_check_frequency: GoDuration = "fileCheckFrequency",
        http_check_frequency: GoDuration = "httpCheckFrequency",
        static_pod_url: String = "staticPodURL",
        static_pod_url_header: Headers = "staticPodURLHeader",
        address: String = "address",
        port: i32 = "port",
        read_only_port: i32 = "readOnlyPort",
        tls_cert_file: String = "tlsCertFile",
        tls_private_key_file: String = "tlsPrivateKeyFile",
        tls_cipher_suites: Vec<String> = "tlsCipherSuites",
        tls_min_version: String = "tlsMinVersion",
        tls_curve_preferences: Vec<i32> = "tlsCurvePreferences",
        rotate_certificates: bool = "rotateCertificates",
        server_tls_bootstrap: bool = "serverTLSBootstrap",
        authentication: Authentication = "authentication",
        authorization: Authorization = "authorization",
        registry_pull_qps: Option<i32> = "registryPullQPS",
        registry_burst: i32 = "registryBurst",
        image_pull_credentials_verification_policy: String = "imagePullCredentialsVerificationPolicy",
        preloaded_images_verification_allowlist: Vec<String> = "preloadedImagesVerificationAllowlist",
        event_record_qps: Option<i32> = "eventRecordQPS",
        event_burst: i32 = "eventBurst",
        enable_debugging_handlers: Option<bool> = "enableDebuggingHandlers",
        enable_contention_profiling: bool = "enableContentionProfiling",
        healthz_port: Option<i32> = "healthzPort",
        healthz_bind_address: String = "healthzBindAddress",
        oom_score_adj: Option<i32> = "oomScoreAdj",
        cluster_domain: String = "clusterDomain",
        cluster_dns: Vec<String> = "clusterDNS",
        streaming_connection_idle_timeout: GoDuration = "streamingConnectionIdleTimeout",
        node_status_update_frequency: GoDuration = "nodeStatusUpdateFrequency",
        node_status_report_frequency: GoDuration = "nodeStatusReportFrequency",
        node_lease_duration_seconds: i32 = "nodeLeaseDurationSeconds",
        image_minimum_gc_age: GoDuration = "imageMinimumGCAge",
        image_maximum_gc_age: GoDuration = "imageMaximumGCAge",
        image_gc_high_threshold_percent: Option<i32> = "imageGCHighThresholdPercent",
        image_gc_low_threshold_percent: Option<i32> = "imageGCLowThresholdPercent",
        volume_stats_agg_period: GoDuration = "volumeStatsAggPeriod",
        kubelet_cgroups: String = "kubeletCgroups",
        system_cgroups: String = "systemCgroups",
        cgroup_root: String = "cgroupRoot",
        cgroups_per_qos: Option<bool> = "cgroupsPerQOS",
        cgroup_driver: String = "cgroupDriver",
        cpu_manager_policy: String = "cpuManagerPolicy",
        single_process_oom_kill: Option<bool> = "singleProcessOOMKill",
        cpu_manager_policy_options: TextMap = "cpuManagerPolicyOptions",
        cpu_manager_reconcile_period: GoDuration = "cpuManagerReconcilePeriod",
        memory_manager_policy: String = "memoryManagerPolicy",
        topology_manager_policy: String = "topologyManagerPolicy",
        topology_manager_scope: String = "topologyManagerScope",
        topology_manager_policy_options: TextMap = "topologyManagerPolicyOptions",
        qos_reserved: TextMap = "qosReserved",
        runtime_request_timeout: GoDuration = "runtimeRequestTimeout",
        hairpin_mode: String = "hairpinMode",
        max_pods: i32 = "maxPods",
        pod_cidr: String = "podCIDR",
        pod_pids_limit: Option<i64> = "podPidsLimit",
        resolv_conf: Option<String> = "resolvConf",
        run_once: bool = "runOnce",
        cpu_cfs_quota: Option<bool> = "cpuCFSQuota",
        cpu_cfs_quota_period: Option<GoDuration> = "cpuCFSQuotaPeriod",
        node_status_max_images: Option<i32> = "nodeStatusMaxImages",
        max_open_files: i64 = "maxOpenFiles",
        content_type: String = "contentType",
        kube_api_qps: Option<i32> = "kubeAPIQPS",
        kube_api_burst: i32 = "kubeAPIBurst",
        serialize_image_pulls: Option<bool> = "serializeImagePulls",
        max_parallel_image_pulls: Option<i32> = "maxParallelImagePulls",
        eviction_hard: TextMap = "evictionHard",
        eviction_soft: TextMap = "evictionSoft",
        eviction_soft_grace_period: TextMap = "evictionSoftGracePeriod",
        eviction_pressure_transition_period: GoDuration = "evictionPressureTransitionPeriod",
        eviction_max_pod_grace_period: i32 = "evictionMaxPodGracePeriod",
        eviction_minimum_reclaim: TextMap = "evictionMinimumReclaim",
        merge_default_eviction_settings: Option<bool> = "mergeDefaultEvictionSettings",
        pods_per_core: i32 = "podsPerCore",
        enable_controller_attach_detach: Option<bool> = "enableControllerAttachDetach",
        protect_kernel_defaults: bool = "protectKernelDefaults",
        make_iptables_util_chains: Option<bool> = "makeIPTablesUtilChains",
        iptables_masquerade_bit: Option<i32> = "iptablesMasqueradeBit",
        iptables_drop_bit: Option<i32> = "iptablesDropBit",
        feature_gates: BTreeMap<String, bool> = "featureGates",
        fail_swap_on: Option<bool> = "failSwapOn",
        memory_swap: MemorySwap = "memorySwap",
        container_log_max_size: String = "containerLogMaxSize",
        container_log_max_files: Option<i32> = "containerLogMaxFiles",
        container_log_max_workers: Option<i32> = "containerLogMaxWorkers",
        container_log_monitor_interval: Option<GoDuration> = "containerLogMonitorInterval",
        config_map_and_secret_change_detection_strategy: String = "configMapAndSecretChangeDetectionStrategy",
        system_reserved: TextMap = "systemReserved",
        kube_reserved: TextMap = "kubeReserved",
        reserved_system_cpus: String = "reservedSystemCPUs",
        show_hidden_metrics_for_version: String = "showHiddenMetricsForVersion",
        system_reserved_cgroup: String = "systemReservedCgroup",
        kube_reserved_cgroup: String = "kubeReservedCgroup",
        enforce_node_allocatable: Vec<String> = "enforceNodeAllocatable",
        allowed_unsafe_sysctls: Vec<String> = "allowedUnsafeSysctls",
        volume_plugin_dir: String = "volumePluginDir",
        provider_id: String = "providerID",
        kernel_memcg_notification: bool = "kernelMemcgNotification",
        logging: Logging = "logging",
        enable_system_log_handler: Option<bool> = "enableSystemLogHandler",
        enable_system_log_query: Option<bool> = "enableSystemLogQuery",
        shutdown_grace_period: GoDuration = "shutdownGracePeriod",
        shutdown_grace_period_critical_pods: GoDuration = "shutdownGracePeriodCriticalPods",
        shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority> = "shutdownGracePeriodByPodPriority",
        crash_loop_back_off: CrashLoopBackOff = "crashLoopBackOff",
        reserved_memory: Vec<MemoryReservation> = "reservedMemory",
        enable_profiling_handler: Option<bool> = "enableProfilingHandler",
        enable_debug_flags_handler: Option<bool> = "enableDebugFlagsHandler",
        seccomp_default: Option<bool> = "seccompDefault",
        memory_throttling_factor: Option<f64> = "memoryThrottlingFactor",
        memory_reservation_policy: String = "memoryReservationPolicy",
        register_with_taints: Vec<Taint> = "registerWithTaints",
        register_node: Option<bool> = "registerNode",
        tracing: Option<Tracing> = "tracing",
        local_storage_capacity_isolation: Option<bool> = "localStorageCapacityIsolation",
        container_runtime_endpoint: String = "containerRuntimeEndpoint" always,
        image_service_endpoint: String = "imageServiceEndpoint",
        fail_cgroup_v1: Option<bool> = "failCgroupV1",
        user_namespaces: Option<UserNamespaces> = "userNamespaces",
    }
}

config_object! {
    pub struct Authentication {
        x509: X509Authentication = "x509",
        webhook: WebhookAuthentication = "webhook",
        anonymous: AnonymousAuthentication = "anonymous",
    }
}

config_object! {
    pub struct X509Authentication {
        client_ca_file: String = "clientCAFile",
    }
}

config_object! {
    pub struct WebhookAuthentication {
        enabled: Option<bool> = "enabled",
        cache_ttl: GoDuration = "cacheTTL",
    }
}

config_object! {
    pub struct AnonymousAuthentication {
        enabled: Option<bool> = "enabled",
    }
}

config_object! {
    pub struct Authorization {
        mode: String = "mode",
        webhook: WebhookAuthorization = "webhook",
    }
}

config_object! {
    pub struct WebhookAuthorization {
        cache_authorized_ttl: GoDuration = "cacheAuthorizedTTL",
        cache_unauthorized_ttl: GoDuration = "cacheUnauthorizedTTL",
    }
}

config_object! {
    pub struct MemorySwap {
        swap_behavior: String = "swapBehavior",
    }
}

config_object! {
    pub struct Logging {
        format: String = "format",
        flush_frequency: DurationOrNanos = "flushFrequency",
        verbosity: u32 = "verbosity" always,
        vmodule: Vec<VModuleItem> = "vmodule",
        options: LoggingOptions = "options",
    }
}

config_object! {
    pub struct VModuleItem {
        file_pattern: String = "filePattern" always,
        verbosity: u32 = "verbosity" always,
    }
}

config_object! {
    pub struct LoggingOptions {
        text: OutputRouting = "text",
        json: OutputRouting = "json",
    }
}

config_object! {
    pub struct OutputRouting {
        split_stream: bool = "splitStream",
        info_buffer_size: Quantity = "infoBufferSize",
    }
}

config_object! {
    pub struct ShutdownGracePeriodByPodPriority {
        priority: i32 = "priority" always,
        shutdown_grace_period_seconds: i64 = "shutdownGracePeriodSeconds" always,
    }
}

config_object! {
    pub struct CrashLoopBackOff {
        max_container_restart_period: Option<GoDuration> = "maxContainerRestartPeriod",
    }
}

config_object! {
    pub struct MemoryReservation {
        numa_node: i32 = "numaNode" always,
        limits: BTreeMap<String, Quantity> = "limits" always,
    }
}

config_object! {
    pub struct Taint {
        key: String = "key" always,
        value: String = "value",
        effect: String = "effect" always,
        time_added: Option<String> = "timeAdded",
    }
}

config_object! {
    pub struct Tracing {
        endpoint: Option<String> = "endpoint",
        sampling_rate_per_million: Option<i32> = "samplingRatePerMillion",
    }
}

config_object! {
    pub struct UserNamespaces {
        ids_per_pod: Option<i64> = "idsPerPod",
    }
}
