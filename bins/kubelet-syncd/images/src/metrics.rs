//! Metrics of images under upstream's names (upstream `pkg/kubelet/images/metrics.go`, `pkg/kubelet/metrics/metrics.go`).

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use super::pull_policy::PullPolicy;
use super::pull_records::PullDecision;

const PULL_SECONDS: [f64; 18] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0,
    3600.0,
];

const MB: u64 = 1024 * 1024;
const GB: u64 = 1024 * MB;
/// Label by lower bound, exclusive; the largest first.
const SIZES: [(u64, &str); 12] = [
    (100 * GB, "GT100GB"),
    (60 * GB, "60GB-100GB"),
    (40 * GB, "40GB-60GB"),
    (30 * GB, "30GB-40GB"),
    (20 * GB, "20GB-30GB"),
    (10 * GB, "10GB-20GB"),
    (5 * GB, "5GB-10GB"),
    (GB, "1GB-5GB"),
    (500 * MB, "500MB-1GB"),
    (100 * MB, "100MB-500MB"),
    (10 * MB, "10MB-100MB"),
    (0, "0-10MB"),
];

/// To be given to [`super::ImageManager::with_metrics`].
#[derive(Debug, Clone)]
pub struct ImageMetrics {
    ensure_requests: IntCounterVec,
    pull_duration: HistogramVec,
    volumes_requested: IntCounter,
    volumes_mounted: IntCounter,
    volumes_failed: IntCounter,
    must_pull_checks: IntCounterVec,
    collected: IntCounterVec,
    intents: IntGauge,
    records: IntGauge,
}

impl ImageMetrics {
    /// # Errors
    /// A name that is taken; each is registered once.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let ensure_requests = IntCounterVec::new(
            Opts::new(
                "kubelet_image_manager_ensure_image_requests_total",
                "[ALPHA] Number of ensure-image requests processed by the kubelet.",
            ),
            &["pull_policy", "present_locally", "pull_required"],
        )?;
        registry.register(Box::new(ensure_requests.clone()))?;
        let pull_duration = HistogramVec::new(
            HistogramOpts::new("kubelet_image_pull_duration_seconds", "[ALPHA] Duration in seconds to pull an image.")
                .buckets(PULL_SECONDS.to_vec()),
            &["image_size_in_bytes"],
        )?;
        registry.register(Box::new(pull_duration.clone()))?;
        let must_pull_checks = IntCounterVec::new(
            Opts::new(
                "kubelet_imagemanager_image_mustpull_checks_total",
                "[ALPHA] Counter for how many times kubelet checked whether credentials need to be re-verified to \
                 access an image",
            ),
            &["result"],
        )?;
        registry.register(Box::new(must_pull_checks.clone()))?;
        let collected = IntCounterVec::new(
            Opts::new(
                "kubelet_image_garbage_collected_total",
                "[ALPHA] Total number of images garbage collected by the kubelet, whether through disk usage or image age.",
            ),
            &["reason"],
        )?;
        registry.register(Box::new(collected.clone()))?;
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = IntGauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        Ok(ImageMetrics {
            intents: gauge(
                "kubelet_imagemanager_ondisk_pullintents",
                "[ALPHA] Number of ImagePullIntents stored on disk.",
            )?,
            records: gauge(
                "kubelet_imagemanager_ondisk_pulledrecords",
                "[ALPHA] Number of ImagePulledRecords stored on disk.",
            )?,
            ensure_requests,
            pull_duration,
            must_pull_checks,
            collected,
            volumes_requested: counter(
                "kubelet_image_volume_requested_total",
                "[BETA] Number of requested image volumes.",
            )?,
            volumes_mounted: counter(
                "kubelet_image_volume_mounted_succeed_total",
                "[BETA] Number of successful image volume mounts.",
            )?,
            volumes_failed: counter(
                "kubelet_image_volume_mounted_errors_total",
                "[BETA] Number of failed image volume mounts.",
            )?,
        })
    }

    /// None: the request ended before that was known.
    pub(super) fn ensured(&self, policy: PullPolicy, present: Option<bool>, pull_required: Option<bool>) {
        let policy = match policy {
            PullPolicy::Always => "always",
            PullPolicy::IfNotPresent => "ifnotpresent",
            PullPolicy::Never => "never",
        };
        let text = |known: Option<bool>| known.map_or("unknown", |known| if known { "true" } else { "false" });
        self.ensure_requests.with_label_values(&[policy, text(present), text(pull_required)]).inc();
    }

    pub(super) fn looked(&self, verdict: PullDecision) {
        let result = match verdict {
            PullDecision::Allowed => "credentialPolicyAllowed",
            PullDecision::Known { .. } => "credentialRecordFound",
            PullDecision::MustPull | PullDecision::AskCredentials => "mustAuthenticate",
        };
        self.must_pull_checks.with_label_values(&[result]).inc();
    }

    pub(super) fn volumes(&self, requested: usize, mounts: usize, failed: bool) {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        self.volumes_requested.inc_by(number(requested));
        let mounted = if failed { &self.volumes_failed } else { &self.volumes_mounted };
        mounted.inc_by(number(mounts));
    }

    /// Garbage collection removed an image; `reason`: "age" or "space".
    pub(super) fn collected(&self, reason: &str) {
        self.collected.with_label_values(&[reason]).inc();
    }

    /// What is on the disk now.
    pub(super) fn kept(&self, intents: usize, records: usize) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.intents.set(number(intents));
        self.records.set(number(records));
    }

    pub(super) fn pulled(&self, bytes: u64, took: Duration) {
        self.pull_duration.with_label_values(&[size_label(bytes)]).observe(took.as_secs_f64());
    }
}

fn size_label(bytes: u64) -> &'static str {
    SIZES.iter().find(|(above, _)| bytes > *above).map_or("N/A", |(_, label)| label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, label) in [
            (0, "N/A"),
            (1, "0-10MB"),
            (10 * MB, "0-10MB"),
            (10 * MB + 1, "10MB-100MB"),
            (GB, "500MB-1GB"),
            (6 * GB, "5GB-10GB"),
            (u64::MAX, "GT100GB"),
        ] {
            assert_eq!(size_label(bytes), label, "{bytes}");
        }
    }

    #[test]
    fn labels() {
        let metrics = ImageMetrics::register(&Registry::new()).unwrap();
        metrics.ensured(PullPolicy::IfNotPresent, Some(false), Some(true));
        metrics.ensured(PullPolicy::Always, None, Some(true));
        assert_eq!(metrics.ensure_requests.with_label_values(&["ifnotpresent", "false", "true"]).get(), 1);
        assert_eq!(metrics.ensure_requests.with_label_values(&["always", "unknown", "true"]).get(), 1);
        metrics.volumes(1, 2, false);
        metrics.volumes(1, 3, true);
        let counted =
            [&metrics.volumes_requested, &metrics.volumes_mounted, &metrics.volumes_failed].map(IntCounter::get);
        assert_eq!(counted, [2, 2, 3]);
    }
}
