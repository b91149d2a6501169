//! How long the node took to be there, under upstream's names, and how many writes its object and lease cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus::{Gauge, IntCounterVec, Opts, Registry};
use tokio::time::Instant;

/// Families of this module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Metrics {
    writes: IntCounterVec,
    started: Instant,
    /// The machine's uptime at the start of this process, seconds.
    uptime: f64,
    pre_kubelet: Gauge,
    pre_registration: Gauge,
    registration: Gauge,
    post_registration: Gauge,
    total: Gauge,
    /// A Node that was there before tells nothing of a start.
    created: Arc<AtomicBool>,
}

impl Metrics {
    /// # Errors
    /// A family of the same name exists already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| -> Result<Gauge, prometheus::Error> {
            let gauge = Gauge::with_opts(Opts::new(name, help))?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let writes = IntCounterVec::new(
            Opts::new(
                "bulkhead_node_writes_total",
                "[ALPHA] Writes of the node's own objects to the API server by object and result.",
            ),
            &["object", "result"],
        )?;
        registry.register(Box::new(writes.clone()))?;
        Ok(Metrics {
            writes,
            started: Instant::now(),
            uptime: uptime().unwrap_or(0.0),
            pre_kubelet: gauge(
                "kubelet_node_startup_pre_kubelet_duration_seconds",
                "[ALPHA] Duration in seconds of node startup before kubelet starts.",
            )?,
            pre_registration: gauge(
                "kubelet_node_startup_pre_registration_duration_seconds",
                "[ALPHA] Duration in seconds of node startup before registration.",
            )?,
            registration: gauge(
                "kubelet_node_startup_registration_duration_seconds",
                "[ALPHA] Duration in seconds of node startup during registration.",
            )?,
            post_registration: gauge(
                "kubelet_node_startup_post_registration_duration_seconds",
                "[ALPHA] Duration in seconds of node startup after registration.",
            )?,
            total: gauge(
                "kubelet_node_startup_duration_seconds",
                "[ALPHA] Duration in seconds of node startup in total.",
            )?,
            created: Arc::default(),
        })
    }

    fn write(&self, object: &str, good: bool) {
        self.writes.with_label_values(&[object, if good { "success" } else { "error" }]).inc();
    }

    pub fn node_write(&self, good: bool) {
        self.write("node", good);
    }

    pub fn status_write(&self, good: bool) {
        self.write("node_status", good);
    }

    pub fn lease_write(&self, good: bool) {
        self.write("lease", good);
    }

    pub fn csi_node_write(&self, good: bool) {
        self.write("csinode", good);
    }

    pub fn claim_write(&self, good: bool) {
        self.write("claim_status", good);
    }

    fn since_start(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// The first try to register begins.
    pub fn registering(&self) {
        self.pre_registration.set(self.since_start());
    }

    /// A Node was created that had not been there.
    pub fn registered(&self) {
        self.registration.set(self.since_start() - self.pre_registration.get());
        self.created.store(true, Ordering::Relaxed);
    }

    /// The API server shows the node as ready. Only the first time counts, and only for a Node that was created.
    pub fn ready(&self) {
        if !self.created.swap(false, Ordering::Relaxed) {
            return;
        }
        self.pre_kubelet.set(self.uptime);
        self.post_registration.set(self.since_start() - self.pre_registration.get() - self.registration.get());
        self.total.set(self.uptime + self.since_start());
    }
}

fn uptime() -> Option<f64> {
    std::fs::read_to_string("/proc/uptime").ok()?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_start_is_measured_once() {
        let registry = Registry::new();
        let metrics = Metrics::register(&registry).unwrap();
        let second = || tokio::time::advance(std::time::Duration::from_secs(1));
        metrics.ready();
        assert_eq!(metrics.total.get(), 0.0);
        second().await;
        metrics.registering();
        second().await;
        metrics.registered();
        second().await;
        metrics.ready();
        let seen = [metrics.pre_registration.get(), metrics.registration.get(), metrics.post_registration.get()];
        assert_eq!(seen, [1.0, 1.0, 1.0]);
        assert_eq!(metrics.total.get(), metrics.uptime + 3.0);
        second().await;
        metrics.ready();
        assert_eq!(metrics.post_registration.get(), 1.0);
        assert!(Metrics::register(&registry).is_err());
    }
}
