//! Metrics of the node's certificates, under upstream's names. What is not asked for has none.

use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, Histogram, HistogramOpts, IntCounter, Registry};

/// Where the histogram of lives is cut: from a minute to four years.
const LIVES: [f64; 10] =
    [60.0, 3_600.0, 14_400.0, 86_400.0, 604_800.0, 2_592_000.0, 7_776_000.0, 15_552_000.0, 31_104_000.0, 124_416_000.0];

/// Of the client certificate.
#[derive(Debug, Clone)]
pub struct ClientMetrics {
    pub failures: IntCounter,
}

impl ClientMetrics {
    /// # Errors
    /// The family exists already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let failures = IntCounter::new(
            "kubelet_certificate_manager_client_expiration_renew_errors",
            "[ALPHA] Counter of certificate renewal errors.",
        )?;
        registry.register(Box::new(failures.clone()))?;
        Ok(ClientMetrics { failures })
    }
}

/// Of the serving certificate.
#[derive(Debug, Clone)]
pub struct ServingMetrics {
    pub failures: IntCounter,
    /// How old certificates were when they were replaced.
    pub lives: Histogram,
    ends: Arc<Mutex<Option<Timestamp>>>,
}

impl ServingMetrics {
    /// # Errors
    /// A family exists already.
    pub fn register(registry: &Registry) -> prometheus::Result<Self> {
        let failures = IntCounter::new(
            "kubelet_server_expiration_renew_errors",
            "[ALPHA] Counter of certificate renewal errors.",
        )?;
        let lives = Histogram::with_opts(
            HistogramOpts::new(
                "kubelet_certificate_manager_server_rotation_seconds",
                "[ALPHA] Histogram of the number of seconds the previous certificate lived before being rotated.",
            )
            .buckets(LIVES.to_vec()),
        )?;
        let left = Gauge::new(
            "kubelet_certificate_manager_server_ttl_seconds",
            "[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds \
             until certificate expiry (negative if already expired). If serving certificate is invalid or unused, the value \
             will be +INF.",
        )?;
        let ends = Arc::default();
        registry.register(Box::new(failures.clone()))?;
        registry.register(Box::new(lives.clone()))?;
        registry.register(Box::new(Left { ends: Arc::clone(&ends), left }))?;
        Ok(ServingMetrics { failures, lives, ends })
    }

    /// When the certificate in force ends.
    pub fn in_force(&self, ends: Option<Timestamp>) {
        *self.ends.lock() = ends;
    }
}

/// The time that is left, as of each look.
struct Left {
    ends: Arc<Mutex<Option<Timestamp>>>,
    left: Gauge,
}

impl Collector for Left {
    fn desc(&self) -> Vec<&Desc> {
        self.left.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let ends = *self.ends.lock();
        self.left.set(crate::settled_metrics::seconds_left(ends, Timestamp::now()));
        self.left.collect()
    }
}
