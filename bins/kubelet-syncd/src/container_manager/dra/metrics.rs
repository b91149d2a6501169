//! Upstream's families of dynamic resource allocation (`pkg/kubelet/metrics`).

use std::sync::Arc;
use std::time::Duration;

use kubelet_edges::csi::CallObserver;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{HistogramOpts, HistogramVec, IntGaugeVec, Opts, Registry};
use tonic::Code;

use super::manager::DraManager;

/// Upstream's label for claims whatever their driver.
const ANY: &str = "<any>";

/// `ExponentialBucketsRange(.1, 40, 15)`, as Go works it out.
const SECONDS: [f64; 15] = [
    0.1,
    0.153_412_740_463_439_1,
    0.235_354_689_365_025_24,
    0.361_064_078_764_099_46,
    0.553_918_298_061_075_2,
    0.849_781_240_983_936,
    1.303_672_689_737_678,
    1.999_999_999_999_999_3,
    3.068_254_809_268_780_5,
    4.707_093_787_300_502_5,
    7.221_281_575_281_985,
    11.078_365_961_221_499,
    16.995_624_819_678_714,
    26.073_453_794_753_54,
    39.999_999_999_999_97,
];

/// `dra_operations_duration_seconds` and `dra_grpc_operations_duration_seconds`.
#[derive(Debug, Clone)]
pub struct Durations {
    operations: HistogramVec,
    calls: HistogramVec,
}

impl Durations {
    /// # Errors
    /// A name is taken.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let family = |name: &str, help: &str, labels: &[&str]| -> Result<HistogramVec, prometheus::Error> {
            let family = HistogramVec::new(HistogramOpts::new(name, help).buckets(SECONDS.to_vec()), labels)?;
            registry.register(Box::new(family.clone()))?;
            Ok(family)
        };
        Ok(Durations {
            operations: family(
                "dra_operations_duration_seconds",
                "[ALPHA] Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a pod when the \
                 pod starts or stops. Identified by the name of the operation (PrepareResources or UnprepareResources) and separated \
                 by the success of the operation. The number of failed operations is provided through the histogram's overall count.",
                &["operation_name", "is_error"],
            )?,
            calls: family(
                "dra_grpc_operations_duration_seconds",
                "[ALPHA] Duration in seconds of the DRA gRPC operations",
                &["driver_name", "method_name", "grpc_status_code"],
            )?,
        })
    }

    pub(super) fn operation(&self, name: &str, failed: bool, took: Duration) {
        let failed = if failed { "true" } else { "false" };
        self.operations.with_label_values(&[name, failed]).observe(took.as_secs_f64());
    }
}

impl CallObserver for Durations {
    fn call_ended(&self, driver: &str, method: &'static str, code: Code, took: Duration) {
        self.calls.with_label_values(&[driver, method, bulkhead_cri::go_name(code)]).observe(took.as_secs_f64());
    }
}

/// `dra_resource_claims_in_use`.
#[derive(Debug)]
pub struct ClaimsInUse {
    manager: Arc<DraManager>,
    claims: IntGaugeVec,
}

impl ClaimsInUse {
    /// # Errors
    /// The family cannot be made.
    pub fn new(manager: Arc<DraManager>) -> Result<Self, prometheus::Error> {
        let opts = Opts::new(
            "dra_resource_claims_in_use",
            "[ALPHA] The number of ResourceClaims that are currently in use on the node, by driver name (driver_name label value) and \
             across all drivers (special value <any> for driver_name). Note that the sum of all by-driver counts is not the total \
             number of in-use ResourceClaims because the same ResourceClaim might use devices from different drivers. Instead, use \
             the count for the <any> driver_name.",
        );
        Ok(ClaimsInUse { manager, claims: IntGaugeVec::new(opts, &["driver_name"])? })
    }
}

impl Collector for ClaimsInUse {
    fn desc(&self) -> Vec<&Desc> {
        self.claims.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.claims.reset();
        let (by_driver, all) = self.manager.in_use();
        for (driver, claims) in by_driver {
            self.claims.with_label_values(&[driver.as_str()]).set(count(claims));
        }
        self.claims.with_label_values(&[ANY]).set(count(all));
        self.claims.collect()
    }
}
