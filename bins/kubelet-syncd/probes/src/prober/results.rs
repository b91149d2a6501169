//! What probes have come to, as the rest of the process reads it.

use std::collections::BTreeMap;

use bulkhead_types::ContainerId;

/// Result of a probe of one container instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeResult {
    Success,
    Failure,
    Unknown,
}

/// Newest probe results by container id.
#[derive(Debug, Clone, Default)]
pub struct ProbeResults {
    pub liveness: BTreeMap<ContainerId, ProbeResult>,
    pub startup: BTreeMap<ContainerId, ProbeResult>,
    pub readiness: BTreeMap<ContainerId, ProbeResult>,
}
