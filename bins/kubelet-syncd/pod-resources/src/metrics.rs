//! What is counted of requests, under upstream's names (`pkg/kubelet/metrics`).

use prometheus::{IntCounterVec, Opts, Registry};

/// Label `server_api_version`.
pub const V1: &str = "v1";
pub const V1ALPHA1: &str = "v1alpha1";

/// Requests that were answered or refused for what they ask; those that the rate limit refuses are not counted, as upstream does it.
#[derive(Debug, Clone)]
pub struct EndpointMetrics {
    pub total: IntCounterVec,
    pub list: IntCounterVec,
    pub get_allocatable: IntCounterVec,
    pub get: IntCounterVec,
    pub errors_get: IntCounterVec,
}

impl EndpointMetrics {
    /// # Errors
    /// A name is taken.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let family = |name: &str, help: &str| {
            let opts = Opts::new(format!("kubelet_pod_resources_endpoint_{name}"), format!("[ALPHA] {help}"));
            let family = IntCounterVec::new(opts, &["server_api_version"])?;
            registry.register(Box::new(family.clone()))?;
            Ok::<_, prometheus::Error>(family)
        };
        // Upstream's words. Its two other families, of errors of List and GetAllocatableResources, never have a series: neither fails.
        Ok(EndpointMetrics {
            total: family(
                "requests_total",
                "Cumulative number of requests to the PodResource endpoint. Broken down by server api version.",
            )?,
            list: family(
                "requests_list",
                "Number of requests to the PodResource List endpoint. Broken down by server api version.",
            )?,
            get_allocatable: family(
                "requests_get_allocatable",
                "Number of requests to the PodResource GetAllocatableResources endpoint. Broken down by server api version.",
            )?,
            get: family(
                "requests_get",
                "Number of requests to the PodResource Get endpoint. Broken down by server api version.",
            )?,
            errors_get: family(
                "errors_get",
                "Number of requests to the PodResource Get endpoint which returned error. Broken down by server api version.",
            )?,
        })
    }
}
