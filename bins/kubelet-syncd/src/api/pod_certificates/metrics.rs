//! `kubelet_podcertificate_states` (upstream `pkg/kubelet/metrics/collectors`): counted when somebody reads.

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGaugeVec, Opts};

use super::PodCertificates;

/// See the module.
#[derive(Debug)]
pub struct CertificateStates {
    certificates: Arc<PodCertificates>,
    states: IntGaugeVec,
}

impl CertificateStates {
    /// # Errors
    /// The family cannot be made.
    pub fn new(certificates: Arc<PodCertificates>) -> Result<Self, prometheus::Error> {
        let opts = Opts::new(
            "kubelet_podcertificate_states",
            "[ALPHA] Gauge vector reporting the number of pod certificate projected volume sources, faceted by signer_name and state.",
        );
        Ok(CertificateStates { certificates, states: IntGaugeVec::new(opts, &["signer_name", "state"])? })
    }
}

impl Collector for CertificateStates {
    fn desc(&self) -> Vec<&Desc> {
        self.states.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.states.reset();
        for ((signer, state), count) in self.certificates.states() {
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.states.with_label_values(&[signer.as_str(), state]).set(count);
        }
        self.states.collect()
    }
}
