//! Limits of images, logs, pods' lives and node shutdown.

use bulkhead_types::{GoDuration, Quantity};

use super::{Limits, allowlist, quoted};
use crate::gates::Feature;

const PULL_POLICIES: &[&str] =
    &["NeverVerify", "NeverVerifyPreloadedImages", "NeverVerifyAllowlistedImages", "AlwaysVerify"];

impl Limits<'_> {
    pub(super) fn images(&mut self) {
        let config = self.config;
        self.check(
            !config.container_runtime_endpoint.is_empty(),
            "containerRuntimeEndpoint",
            "\"\"",
            "must name the runtime's socket, such as \"unix:///run/containerd/containerd.sock\"",
        );
        for (path, value) in [
            ("containerRuntimeEndpoint", &config.container_runtime_endpoint),
            ("imageServiceEndpoint", &config.image_service_endpoint),
        ] {
            if !value.is_empty() && crate::endpoint::socket_path(value).is_err() {
                self.refuse(
                    path,
                    quoted(value),
                    "must be a Unix socket by its absolute path, such as \"unix:///run/containerd/containerd.sock\"",
                );
            }
        }
        if let Some(parallel) = config.max_parallel_image_pulls {
            self.range("maxParallelImagePulls", parallel.into(), 1, i64::MAX);
            self.check(
                parallel <= 1 || config.serialize_image_pulls == Some(false),
                "maxParallelImagePulls",
                parallel,
                "must be 1 unless serializeImagePulls is false",
            );
        }
        self.range("registryPullQPS", config.registry_pull_qps().into(), 0, i64::MAX);
        self.range("registryBurst", config.registry_burst.into(), 0, i64::MAX);
        self.pull_policy();
        let (minimum, maximum) = (config.image_minimum_gc_age, config.image_maximum_gc_age);
        self.check(!minimum.is_negative(), "imageMinimumGCAge", minimum, "must be 0s or more");
        self.check(
            maximum.is_zero() || maximum > minimum && !maximum.is_negative(),
            "imageMaximumGCAge",
            maximum,
            "must be 0s (off) or longer than imageMinimumGCAge",
        );
        let (high, low) = (config.image_gc_high_threshold_percent(), config.image_gc_low_threshold_percent());
        self.range("imageGCHighThresholdPercent", high.into(), 0, 100);
        self.range("imageGCLowThresholdPercent", low.into(), 0, 100);
        self.check(
            low < high,
            "imageGCLowThresholdPercent",
            low,
            &format!("must be below imageGCHighThresholdPercent ({high})"),
        );
    }

    fn pull_policy(&mut self) {
        let config = self.config;
        let policy = config.image_pull_credentials_verification_policy.as_str();
        let path = "imagePullCredentialsVerificationPolicy";
        if self.gates.enabled(Feature::KubeletEnsureSecretPulledImages) {
            self.one_of(path, policy, PULL_POLICIES);
        } else {
            self.check(
                policy.is_empty(),
                path,
                quoted(policy),
                "must be empty while feature gate KubeletEnsureSecretPulledImages is off",
            );
        }
        let list = &config.preloaded_images_verification_allowlist;
        if !list.is_empty() && policy != "NeverVerifyAllowlistedImages" {
            self.refuse(
                "preloadedImagesVerificationAllowlist",
                format!("({} entries)", list.len()),
                "only with imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages",
            );
        }
        for (index, entry) in list.iter().enumerate() {
            if let Err(why) = allowlist::check(entry) {
                self.refuse(format!("preloadedImagesVerificationAllowlist[{index}]"), quoted(entry), why.to_string());
            }
        }
    }

    pub(super) fn logs(&mut self) {
        let config = self.config;
        let folder = config.pod_logs_dir.as_str();
        self.check(
            crate::path_text::is_canonical(folder) && folder.is_ascii(),
            "podLogsDir",
            quoted(folder),
            "must be an absolute path in canonical form, of ASCII characters",
        );
        let size = config.container_log_max_size.as_str();
        self.check(
            Quantity::parse(size)
                .is_ok_and(|size| size.is_integer() && (i64::MIN + 1..i64::MAX).contains(&size.value())),
            "containerLogMaxSize",
            quoted(size),
            "must be a whole number of bytes that fits 64 bits, such as 10Mi (negative: no rotation)",
        );
        self.range("containerLogMaxFiles", config.container_log_max_files().into(), 2, i64::MAX);
        self.range("containerLogMaxWorkers", config.container_log_max_workers().into(), 1, i64::MAX);
        let interval = config.container_log_monitor_interval();
        self.check(interval >= GoDuration::from_secs(3), "containerLogMonitorInterval", interval, "must be 3s or more");
    }

    pub(super) fn pods(&mut self) {
        let config = self.config;
        self.check(config.sync_frequency.as_nanos() > 0, "syncFrequency", config.sync_frequency, "must be above 0s");
        self.check(!config.run_once, "runOnce", true, "must be false: this mode was removed");
        self.range("maxPods", config.max_pods.into(), 0, i64::MAX);
        self.range("podsPerCore", config.pods_per_core.into(), 0, i64::MAX);
        self.one_of("hairpinMode", &config.hairpin_mode, &["promiscuous-bridge", "hairpin-veth", "none"]);
        self.range("iptablesMasqueradeBit", config.iptables_masquerade_bit().into(), 0, 31);
        self.range("iptablesDropBit", config.iptables_drop_bit().into(), 0, 31);
        for (index, sysctl) in config.allowed_unsafe_sysctls.iter().enumerate() {
            if let Err(why) = check_sysctl_pattern(sysctl) {
                self.refuse(format!("allowedUnsafeSysctls[{index}]"), quoted(sysctl), why);
            }
        }
        if let Some(period) = config.crash_loop_back_off.max_container_restart_period {
            let path = "crashLoopBackOff.maxContainerRestartPeriod";
            self.needs_gate(true, path, period, Feature::KubeletCrashLoopBackOffMax);
            self.check(
                (GoDuration::from_secs(1)..=GoDuration::from_secs(300)).contains(&period),
                path,
                period,
                "must be from 1s to 300s",
            );
        }
        if let Some(ids) = config.user_namespaces.as_ref().and_then(|namespaces| namespaces.ids_per_pod) {
            let path = "userNamespaces.idsPerPod";
            self.range(path, ids, 65_536, 4_294_967_295);
            self.check(ids % 65_536 == 0, path, ids, "must be a multiple of 65536");
        }
    }

    pub(super) fn shutdown(&mut self) {
        let config = self.config;
        let (total, critical) = (config.shutdown_grace_period, config.shutdown_grace_period_critical_pods);
        let one = GoDuration::from_secs(1);
        for (path, period) in [("shutdownGracePeriod", total), ("shutdownGracePeriodCriticalPods", critical)] {
            self.check(period.is_zero() || period >= one, path, period, "must be 0s, or 1s or more");
            self.needs_gate(!period.is_zero(), path, period, Feature::GracefulNodeShutdown);
        }
        self.check(
            critical <= total,
            "shutdownGracePeriodCriticalPods",
            critical,
            &format!("must not be longer than shutdownGracePeriod ({total})"),
        );
        let steps = &config.shutdown_grace_period_by_pod_priority;
        if steps.is_empty() {
            return;
        }
        let path = "shutdownGracePeriodByPodPriority";
        let shown = format!("({} entries)", steps.len());
        self.needs_gate(true, path, &shown, Feature::GracefulNodeShutdownBasedOnPodPriority);
        self.check(
            total.is_zero() && critical.is_zero(),
            path,
            &shown,
            "cannot be combined with shutdownGracePeriod or shutdownGracePeriodCriticalPods",
        );
        for (index, step) in steps.iter().enumerate() {
            self.range(
                &format!("{path}[{index}].shutdownGracePeriodSeconds"),
                step.shutdown_grace_period_seconds,
                0,
                i64::MAX,
            );
        }
    }
}

/// Name or `prefix*` of a sysctl that a namespace isolates (upstream `pkg/kubelet/sysctl/allowlist.go`).
fn check_sysctl_pattern(text: &str) -> Result<(), &'static str> {
    let segment = |part: &str, last: bool| {
        let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let (body, starred) = match part.strip_suffix('*') {
            Some(body) if last => (body, true),
            _ => (part, false),
        };
        body.bytes().all(|b| lower(b) || b == b'-' || b == b'_')
            && body.bytes().next().map_or(starred, lower)
            && (starred || body.bytes().last().is_some_and(lower))
    };
    let parts: Vec<&str> = text.split(['.', '/']).collect();
    let shaped = parts.iter().enumerate().all(|(index, part)| segment(part, index + 1 == parts.len()));
    if text.is_empty() || text.len() > 253 || !shaped {
        return Err("must be the name of a sysctl, or a prefix of one that ends in *");
    }
    // With a slash first, slashes separate and dots belong to names.
    let first = text.find(['.', '/']).and_then(|at| text.as_bytes().get(at));
    let dotted = if first == Some(&b'/') {
        text.chars()
            .map(|c| match c {
                '/' => '.',
                '.' => '/',
                c => c,
            })
            .collect()
    } else {
        text.to_owned()
    };
    // The part before the star has to be one of these names itself, or begin with a prefix.
    const NAMES: [&str; 10] = [
        "kernel.sem",
        "kernel.shm",
        "kernel.shmall",
        "kernel.shmmax",
        "kernel.shmmni",
        "kernel.shm_rmid_forced",
        "kernel.msg",
        "kernel.msgmax",
        "kernel.msgmnb",
        "kernel.msgmni",
    ];
    let known = dotted.split('*').next().unwrap_or_default();
    if NAMES.contains(&known) || ["fs.mqueue.", "net."].iter().any(|prefix| known.starts_with(prefix)) {
        Ok(())
    } else {
        Err("must be namespaced: kernel.shm*, kernel.msg*, kernel.sem*, a whole name of these, fs.mqueue.* or net.*")
    }
}
