//! Limits of the servers, TLS, authorization, heartbeats and logging.

use bulkhead_types::ip::parse_sloppy;

use super::{Limits, quoted};
use crate::gates::Feature;
use crate::kubelet_flags::{check_label_value, check_qualified_name};

const SECURE_CIPHER_SUITES: &[&str] = &[
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];

/// Accepted, and served by none of our libraries.
const INSECURE_CIPHER_SUITES: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// Up to TLS 1.2: those that the TLS library here has. Those of 1.3 are always on, as in Go.
const SERVED_CIPHER_SUITES: &[&str] = &[
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];

fn is_of_tls13(suite: &str) -> bool {
    matches!(suite, "TLS_AES_128_GCM_SHA256" | "TLS_AES_256_GCM_SHA384" | "TLS_CHACHA20_POLY1305_SHA256")
}

/// Of [`CURVES`] those that the TLS library here has: P-256, P-384, X25519.
const SERVED_CURVES: &[i32] = &[23, 24, 29];

/// What is configured, allowed, and not to be had from the TLS library here; something else remains of each list.
pub(super) fn left_out(config: &crate::KubeletConfiguration) -> Vec<String> {
    let mut lines = Vec::new();
    for (index, suite) in config.tls_cipher_suites.iter().enumerate() {
        let suite = suite.as_str();
        if !SERVED_CIPHER_SUITES.contains(&suite) && !is_of_tls13(suite) {
            lines
                .push(format!("tlsCipherSuites[{index}]: {suite:?} is not in the TLS library of this build, left out"));
        }
    }
    for (index, curve) in config.tls_curve_preferences.iter().enumerate() {
        if !SERVED_CURVES.contains(curve) {
            lines.push(format!(
                "tlsCurvePreferences[{index}]: {curve} is not in the TLS library of this build, left out"
            ));
        }
    }
    if matches!(config.tls_min_version.as_str(), "VersionTLS10" | "VersionTLS11") {
        let version = &config.tls_min_version;
        lines.push(format!("tlsMinVersion: {version:?} is not in the TLS library of this build: TLS 1.2 is the least"));
    }
    if config.tls_min_version == "VersionTLS13" && !config.tls_cipher_suites.is_empty() {
        lines.push(
            "tlsCipherSuites is ignored with tlsMinVersion VersionTLS13: those of TLS 1.3 are always on".to_owned(),
        );
    }
    lines
}

/// IANA numbers of the key exchange groups that a TLS library of Go 1.25 knows.
const CURVES: &[i32] = &[23, 24, 25, 29, 4587, 4588, 4589];

const TLS_VERSIONS: &[&str] = &["", "VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];

impl Limits<'_> {
    pub(super) fn server(&mut self) {
        let config = self.config;
        self.check(
            parse_sloppy(&config.address).is_some(),
            "address",
            quoted(&config.address),
            "must be an IP address",
        );
        self.range("port", config.port.into(), 1, 65535);
        self.range("readOnlyPort", config.read_only_port.into(), 0, 65535);
        self.range("healthzPort", config.healthz_port().into(), 0, 65535);
        self.check(
            config.healthz_port() == 0
                || config.healthz_bind_address == "localhost"
                || parse_sloppy(&config.healthz_bind_address).is_some(),
            "healthzBindAddress",
            quoted(&config.healthz_bind_address),
            "must be an IP address, or localhost",
        );
        let before = self.errors.len();
        for (index, suite) in config.tls_cipher_suites.iter().enumerate() {
            let suite = suite.as_str();
            if !SECURE_CIPHER_SUITES.contains(&suite) && !INSECURE_CIPHER_SUITES.contains(&suite) {
                let known = [SECURE_CIPHER_SUITES, INSECURE_CIPHER_SUITES].concat().join(", ");
                self.refuse(format!("tlsCipherSuites[{index}]"), quoted(suite), format!("must be one of {known}"));
            }
        }
        for (index, curve) in config.tls_curve_preferences.iter().enumerate() {
            let path = format!("tlsCurvePreferences[{index}]");
            if !(1..=65535).contains(curve) {
                self.refuse(path, curve, "must be from 1 to 65535");
            } else if !CURVES.contains(curve) {
                self.refuse(path, curve, "must be a known group: 23, 24, 25, 29, 4587, 4588 or 4589");
            } else if config.tls_curve_preferences[..index].contains(curve) {
                self.refuse(path, curve, "must not be listed twice");
            }
        }
        let suites = &config.tls_cipher_suites;
        let served = |suite: &String| SERVED_CIPHER_SUITES.contains(&suite.as_str()) || is_of_tls13(suite);
        if self.errors.len() == before && !suites.is_empty() && !suites.iter().any(served) {
            let allowed = format!(
                "must name at least one that the TLS library of this build has: {}",
                SERVED_CIPHER_SUITES.join(", ")
            );
            self.refuse("tlsCipherSuites", suites.join(","), allowed);
        }
        let curves = &config.tls_curve_preferences;
        if self.errors.len() == before
            && !curves.is_empty()
            && !curves.iter().any(|curve| SERVED_CURVES.contains(curve))
        {
            let list: Vec<String> = curves.iter().map(ToString::to_string).collect();
            self.refuse(
                "tlsCurvePreferences",
                list.join(","),
                "must name at least one that the TLS library of this build has: 23, 24 or 29",
            );
        }
        self.check(
            config.tls_cert_file.is_empty() == config.tls_private_key_file.is_empty(),
            "tlsPrivateKeyFile",
            quoted(&config.tls_private_key_file),
            "must be given together with tlsCertFile",
        );
        self.one_of("tlsMinVersion", &config.tls_min_version, TLS_VERSIONS);
        self.needs_gate(
            config.server_tls_bootstrap,
            "serverTLSBootstrap",
            true,
            Feature::RotateKubeletServerCertificate,
        );
        self.one_of("authorization.mode", &config.authorization.mode, &["AlwaysAllow", "Webhook"]);
        if config.enable_system_log_query() {
            self.needs_gate(true, "enableSystemLogQuery", true, Feature::NodeLogQuery);
            self.check(
                config.enable_system_log_handler(),
                "enableSystemLogQuery",
                true,
                "needs enableSystemLogHandler: true",
            );
        }
        if let Some(tracing) = &config.tracing {
            if let Some(rate) = tracing.sampling_rate_per_million {
                self.range("tracing.samplingRatePerMillion", rate.into(), 0, 1_000_000);
            }
            if let Some(endpoint) = &tracing.endpoint {
                let scheme = endpoint.split_once("://").map_or("", |(scheme, _)| scheme);
                let opaque = endpoint.split_once(':').map_or("", |(scheme, _)| scheme);
                let known = matches!(scheme, "dns" | "unix" | "unix-abstract")
                    || scheme.is_empty() && (!endpoint.is_empty() || matches!(opaque, "unix" | "dns"));
                self.check(
                    known && !endpoint.contains(char::is_whitespace),
                    "tracing.endpoint",
                    quoted(endpoint),
                    "must be host:port, or a URL of scheme dns, unix or unix-abstract",
                );
            }
        }
    }

    pub(super) fn heartbeats(&mut self) {
        let config = self.config;
        for (index, taint) in config.register_with_taints.iter().enumerate() {
            let path = |field: &str| format!("registerWithTaints[{index}].{field}");
            if let Err(why) = check_qualified_name(&taint.key) {
                self.refuse(path("key"), quoted(&taint.key), why);
            }
            if let Err(why) = check_label_value(&taint.value) {
                self.refuse(path("value"), quoted(&taint.value), why);
            }
            self.one_of(&path("effect"), &taint.effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
            if let Some(time) = &taint.time_added {
                self.refuse(path("timeAdded"), quoted(time), "must not be set");
            }
        }
        self.range("nodeLeaseDurationSeconds", config.node_lease_duration_seconds.into(), 1, i64::MAX);
        self.range("nodeStatusMaxImages", config.node_status_max_images().into(), -1, i64::MAX);
        self.range("kubeAPIQPS", config.kube_api_qps().into(), 0, i64::MAX);
        self.range("kubeAPIBurst", config.kube_api_burst.into(), 0, i64::MAX);
        self.range("eventRecordQPS", config.event_record_qps().into(), 0, i64::MAX);
        self.range("eventBurst", config.event_burst.into(), 0, i64::MAX);
        self.one_of(
            "configMapAndSecretChangeDetectionStrategy",
            &config.config_map_and_secret_change_detection_strategy,
            &["Get", "Cache", "Watch"],
        );
        let wanted = format!("1.{}", crate::version::MINOR - 1);
        let shown = &config.show_hidden_metrics_for_version;
        if !shown.is_empty() && *shown != wanted {
            self.refuse(
                "showHiddenMetricsForVersion",
                quoted(shown),
                format!("must be empty or the previous minor version {wanted:?}"),
            );
        }
    }

    pub(super) fn logging(&mut self) {
        let logging = &self.config.logging;
        self.one_of("logging.format", &logging.format, &["text", "json"]);
        let flush = logging.flush_frequency.duration;
        self.check(flush.as_nanos() > 0, "logging.flushFrequency", flush, "must be above 0s");
        self.range("logging.verbosity", logging.verbosity.into(), 0, i32::MAX.into());
        if !logging.vmodule.is_empty() {
            self.check(logging.format == "text", "logging.vmodule", "(set)", "only works with logging.format: text");
        }
        for (index, item) in logging.vmodule.iter().enumerate() {
            let path = format!("logging.vmodule[{index}]");
            self.check(!item.file_pattern.is_empty(), &format!("{path}.filePattern"), "\"\"", "must not be empty");
            self.check(
                !item.file_pattern.contains(['=', ',']),
                &format!("{path}.filePattern"),
                quoted(&item.file_pattern),
                "must not contain '=' or ','",
            );
            self.range(&format!("{path}.verbosity"), item.verbosity.into(), 0, i32::MAX.into());
        }
        for (name, routing) in [("text", &logging.options.text), ("json", &logging.options.json)] {
            let path = format!("logging.options.{name}");
            self.needs_gate(routing.split_stream, &format!("{path}.splitStream"), true, Feature::LoggingAlphaOptions);
            let size = routing.info_buffer_size;
            self.needs_gate(!size.is_zero(), &format!("{path}.infoBufferSize"), size, Feature::LoggingAlphaOptions);
        }
    }
}
