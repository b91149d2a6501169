//! Which budget a request comes from.

use std::time::Duration;

use bulkhead_config::NodeConfig;
use tokio::time::Instant;

use crate::budget::Budget;

/// How long a call may take. Upstream sets no limit for its main client; a hang must not be for ever.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Requests of one lane share connections and a rate limit, as upstream's three clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// kubeAPIQPS and kubeAPIBurst.
    Main,
    /// Node status and lease: no limit, a short time-out, connections of its own.
    Heartbeat,
    /// A limiter of its own: eventRecordQPS and eventBurst, 50 in a second and 100 at once by default.
    Events,
    /// Whose a token is that nobody has vouched for yet: kubeAPIQPS and kubeAPIBurst once more, so that strangers who send
    /// tokens hold up no other request.
    TokenReviews,
    /// Whose a token is that was good before: as many again, so that strangers do not hold up those who are known.
    KnownTokenReviews,
    /// What somebody may do, once it is known who it is: as many again.
    AccessReviews,
}

impl Lane {
    pub const ALL: [Lane; 6] =
        [Lane::Main, Lane::Heartbeat, Lane::Events, Lane::TokenReviews, Lane::KnownTokenReviews, Lane::AccessReviews];

    /// The lane's rate limit; None: none (upstream's heartbeat client has QPS -1).
    pub(crate) fn budget(self, config: &NodeConfig) -> Option<Budget> {
        let (kubelet, now) = (&config.kubelet, Instant::now().into_std());
        match self {
            Lane::Main | Lane::TokenReviews | Lane::KnownTokenReviews | Lane::AccessReviews => {
                Some(Budget::new(kubelet.kube_api_qps(), kubelet.kube_api_burst, now))
            }
            Lane::Heartbeat => None,
            Lane::Events => Some(Budget::new(kubelet.event_record_qps(), kubelet.event_burst, now)),
        }
    }

    /// How long one try of a call may take, its answer's body included. Heartbeat: nodeStatusUpdateFrequency or the
    /// lease's duration, whichever is less (upstream `cmd/kubelet/app/server.go`).
    pub(crate) fn timeout(self, config: &NodeConfig) -> Duration {
        match self {
            Lane::Main | Lane::Events | Lane::TokenReviews | Lane::KnownTokenReviews | Lane::AccessReviews => {
                CALL_TIMEOUT
            }
            Lane::Heartbeat => {
                let lease = u64::try_from(config.kubelet.node_lease_duration_seconds).unwrap_or(0);
                let status = config.kubelet.node_status_update_frequency.to_std();
                status.min(Duration::from_secs(lease)).max(Duration::from_secs(1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_follow_the_configuration() {
        let mut config = NodeConfig::for_tests(std::path::Path::new("/t"));
        config.kubelet.node_lease_duration_seconds = 40;
        config.kubelet.node_status_update_frequency = bulkhead_types::GoDuration::from_secs(10);
        assert_eq!(Lane::Heartbeat.timeout(&config), Duration::from_secs(10));
        config.kubelet.node_lease_duration_seconds = 4;
        assert_eq!(Lane::Heartbeat.timeout(&config), Duration::from_secs(4));
        assert_eq!(Lane::Main.timeout(&config), CALL_TIMEOUT);
        assert!(Lane::Heartbeat.budget(&config).is_none());
        let now = std::time::Instant::now();
        config.kubelet.kube_api_burst = 3;
        let at_once = |lane: Lane| {
            let mut budget = lane.budget(&config).unwrap();
            (0..200).filter(|_| budget.take(now).is_zero()).count()
        };
        assert_eq!((at_once(Lane::Main), at_once(Lane::Events)), (3, 100));
    }
}
