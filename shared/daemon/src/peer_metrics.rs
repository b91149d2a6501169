//! What this process's peers use of it and were refused, as metrics.

use std::sync::Arc;

use bulkhead_ipc::limits::Gate;
use bulkhead_ipc::peers::Role;
use bulkhead_ipc::refusals::Reason;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGaugeVec, Opts};

/// `bulkhead_peer_connections{process,peer}` and `bulkhead_peer_refusals_total{process,reason}`, read when somebody asks.
#[derive(Debug)]
pub(crate) struct PeerMetrics {
    process: &'static str,
    gate: Arc<Gate>,
    connections: IntGaugeVec,
    refusals: IntCounterVec,
}

impl PeerMetrics {
    pub(crate) fn new(process: &'static str, gate: Arc<Gate>) -> Result<Self, prometheus::Error> {
        let connections = Opts::new(
            "bulkhead_peer_connections",
            "[ALPHA] Open connections of other processes to this one's gRPC socket.",
        );
        let refusals = Opts::new(
            "bulkhead_peer_refusals_total",
            "[ALPHA] Connections and calls of other processes that were refused, by reason.",
        );
        Ok(PeerMetrics {
            process,
            gate,
            connections: IntGaugeVec::new(connections, &["process", "peer"])?,
            refusals: IntCounterVec::new(refusals, &["process", "reason"])?,
        })
    }
}

impl Collector for PeerMetrics {
    fn desc(&self) -> Vec<&Desc> {
        [self.connections.desc(), self.refusals.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        for role in Role::ALL {
            let open = i64::try_from(self.gate.connections(role)).unwrap_or(i64::MAX);
            self.connections.with_label_values(&[self.process, role.as_str()]).set(open);
        }
        for reason in Reason::ALL {
            let counter = self.refusals.with_label_values(&[self.process, reason.as_str()]);
            counter.inc_by(self.gate.refusals.count(reason).saturating_sub(counter.get()));
        }
        [self.connections.collect(), self.refusals.collect()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::limits::Limits;

    #[test]
    fn numbers_are_those_of_now() {
        let gate = Gate::new(Limits::default());
        let registry = prometheus::Registry::new();
        registry.register(Box::new(PeerMetrics::new("kubelet-x", gate.clone()).unwrap())).unwrap();
        let held = gate.connection(Role::Syncd);
        gate.refusals.record(Reason::Stranger);
        for _ in 0..2 {
            let text = crate::encode_metrics(&registry);
            assert!(
                text.contains("bulkhead_peer_connections{peer=\"kubelet-syncd\",process=\"kubelet-x\"} 1"),
                "{text}"
            );
            assert!(
                text.contains("bulkhead_peer_refusals_total{process=\"kubelet-x\",reason=\"stranger\"} 1"),
                "{text}"
            );
        }
        drop(held);
        assert!(
            crate::encode_metrics(&registry)
                .contains("bulkhead_peer_connections{peer=\"kubelet-syncd\",process=\"kubelet-x\"} 0")
        );
    }
}
