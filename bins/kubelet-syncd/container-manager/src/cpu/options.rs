//! Options of the static policy (upstream `cpumanager/policy_options.go`).

use std::collections::BTreeMap;

use crate::request::Gates;
use crate::topology::cpus::{CpuTopology, Level};
use crate::topology::options::{Policy, go_bool};

/// All off: the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuOptions {
    pub full_pcpus_only: bool,
    pub distribute_across_numa: bool,
    pub align_by_socket: bool,
    pub distribute_across_cores: bool,
    pub strict_reservation: bool,
    pub prefer_align_by_uncore: bool,
}

const FULL_PCPUS: &str = "full-pcpus-only";
const ACROSS_NUMA: &str = "distribute-cpus-across-numa";
const BY_SOCKET: &str = "align-by-socket";
const ACROSS_CORES: &str = "distribute-cpus-across-cores";
const STRICT: &str = "strict-cpu-reservation";
const BY_UNCORE: &str = "prefer-align-cpus-by-uncorecache";

/// Why the node does not start; upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuOptionError {
    #[error("unknown CPU Manager Policy option: {0:?}")]
    Unknown(String),
    #[error("CPU Manager Policy Alpha-level Options not enabled, but option {0:?} provided")]
    Alpha(String),
    #[error("CPU Manager Policy Beta-level Options not enabled, but option {0:?} provided")]
    Beta(String),
    #[error("bad value for option {0:?}: strconv.ParseBool: parsing {1:?}: invalid syntax")]
    Value(String, String),
    #[error("static policy options {0} and {1} can not be used at the same time")]
    Together(&'static str, &'static str),
    // The spelling is upstream's.
    #[error("Topolgy manager single-numa-node policy is incompatible with CPUManager {BY_SOCKET} policy option")]
    SingleNumaNode,
    #[error("Align by socket is not compatible with hardware where number of sockets are more than number of NUMA")]
    Sockets,
}

impl CpuOptions {
    /// # Errors
    /// An option that there is not, whose gate is off, or that does not go with another.
    pub fn parse(options: &BTreeMap<String, String>, gates: Gates) -> Result<Self, CpuOptionError> {
        let mut read = CpuOptions::default();
        for (name, value) in options {
            let target = match name.as_str() {
                BY_SOCKET | ACROSS_CORES if !gates.cpu_alpha_options => {
                    return Err(CpuOptionError::Alpha(name.clone()));
                }
                ACROSS_NUMA if !gates.cpu_beta_options => return Err(CpuOptionError::Beta(name.clone())),
                FULL_PCPUS => &mut read.full_pcpus_only,
                ACROSS_NUMA => &mut read.distribute_across_numa,
                BY_SOCKET => &mut read.align_by_socket,
                ACROSS_CORES => &mut read.distribute_across_cores,
                STRICT => &mut read.strict_reservation,
                BY_UNCORE => &mut read.prefer_align_by_uncore,
                _ => return Err(CpuOptionError::Unknown(name.clone())),
            };
            *target = go_bool(value).ok_or_else(|| CpuOptionError::Value(name.clone(), value.clone()))?;
        }
        let conflicts = [
            (FULL_PCPUS, read.full_pcpus_only, ACROSS_CORES, read.distribute_across_cores),
            (ACROSS_NUMA, read.distribute_across_numa, ACROSS_CORES, read.distribute_across_cores),
            (BY_UNCORE, read.prefer_align_by_uncore, ACROSS_CORES, read.distribute_across_cores),
            (BY_UNCORE, read.prefer_align_by_uncore, ACROSS_NUMA, read.distribute_across_numa),
        ];
        match conflicts.into_iter().find(|(_, one, _, other)| *one && *other) {
            Some((one, _, other, _)) => Err(CpuOptionError::Together(one, other)),
            None => Ok(read),
        }
    }

    /// # Errors
    /// The options do not go with the topology manager's policy, or with the machine.
    pub fn check(self, topology: &CpuTopology, policy: Policy) -> Result<(), CpuOptionError> {
        if self.align_by_socket && policy == Policy::SingleNumaNode {
            return Err(CpuOptionError::SingleNumaNode);
        }
        if self.align_by_socket && topology.count(Level::Socket) > topology.count(Level::Numa) {
            return Err(CpuOptionError::Sockets);
        }
        Ok(())
    }
}
