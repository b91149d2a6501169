//! Policy, scope and options of the topology manager, and what a machine must be for them (upstream
//! `topologymanager/topology_manager.go`, `policy_options.go`).

use std::collections::BTreeMap;

use super::machine::Machine;
use super::mask::NumaMask;

/// More NUMA nodes than this need `max-allowable-numa-nodes`: the masks of them all are gone through for each container.
const DEFAULT_MAX_NODES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    #[default]
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    #[default]
    Container,
    Pod,
}

/// Both options are GA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TopologyOptions {
    /// `prefer-closest-numa-nodes`
    pub prefer_closest: bool,
    /// `max-allowable-numa-nodes`
    pub max_nodes: usize,
}

impl Default for TopologyOptions {
    fn default() -> Self {
        TopologyOptions { prefer_closest: false, max_nodes: DEFAULT_MAX_NODES }
    }
}

/// Why the node does not start; upstream's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyManagerError {
    #[error("unknown policy: \"{0}\"")]
    Policy(String),
    #[error("unknown scope: \"{0}\"")]
    Scope(String),
    #[error("unknown Topology Manager Policy option: {0:?}")]
    Option(String),
    #[error("bad value for option {0:?}: strconv.ParseBool: parsing {1:?}: invalid syntax")]
    Bool(String, String),
    #[error("unable to convert policy option to integer {0:?}: strconv.Atoi: parsing {1:?}: invalid syntax")]
    Integer(String, String),
    #[error("the minimum value of \"max-allowable-numa-nodes\" should not be less than {DEFAULT_MAX_NODES}")]
    TooFew,
    #[error("cannot discover NUMA topology: error getting NUMA distances from cadvisor")]
    NoDistances,
    #[error("unsupported on machines with more than {0} NUMA Nodes")]
    TooManyNodes(usize),
    /// A difference: upstream leaves such a node out of every mask.
    #[error("unsupported on machines with a NUMA node above 63: node {0}")]
    NodeNumber(u32),
}

impl Policy {
    /// # Errors
    /// It is none that there is.
    pub fn parse(name: &str) -> Result<Self, TopologyManagerError> {
        match name {
            "none" => Ok(Policy::None),
            "best-effort" => Ok(Policy::BestEffort),
            "restricted" => Ok(Policy::Restricted),
            "single-numa-node" => Ok(Policy::SingleNumaNode),
            other => Err(TopologyManagerError::Policy(other.to_owned())),
        }
    }
}

impl Scope {
    /// # Errors
    /// It is none that there is.
    pub fn parse(name: &str) -> Result<Self, TopologyManagerError> {
        match name {
            "container" => Ok(Scope::Container),
            "pod" => Ok(Scope::Pod),
            other => Err(TopologyManagerError::Scope(other.to_owned())),
        }
    }
}

/// What Go's `strconv.ParseBool` takes.
pub fn go_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

impl TopologyOptions {
    /// # Errors
    /// An option that there is not, or a value that it does not take.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self, TopologyManagerError> {
        let mut read = TopologyOptions::default();
        for (name, value) in options {
            let both = || (name.clone(), value.clone());
            match name.as_str() {
                "prefer-closest-numa-nodes" => {
                    let bad = || TopologyManagerError::Bool(both().0, both().1);
                    read.prefer_closest = go_bool(value).ok_or_else(bad)?;
                }
                "max-allowable-numa-nodes" => {
                    let bad = |_| TopologyManagerError::Integer(both().0, both().1);
                    let nodes: i64 = value.parse().map_err(bad)?;
                    let enough = usize::try_from(nodes).ok().filter(|nodes| *nodes >= DEFAULT_MAX_NODES);
                    read.max_nodes = enough.ok_or(TopologyManagerError::TooFew)?;
                }
                _ => return Err(TopologyManagerError::Option(name.clone())),
            }
        }
        Ok(read)
    }
}

/// NUMA nodes of a machine, and how far they are from each other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NumaInfo {
    pub nodes: Vec<u32>,
    distances: BTreeMap<u32, Vec<u64>>,
}

impl NumaInfo {
    /// # Errors
    /// Distances are wanted and not told, or the machine has too many nodes.
    pub fn of(machine: &Machine, options: TopologyOptions) -> Result<Self, TopologyManagerError> {
        let nodes: Vec<u32> = machine.nodes.iter().map(|node| node.id).collect();
        if options.prefer_closest && machine.nodes.iter().any(|node| node.distances.is_empty()) {
            return Err(TopologyManagerError::NoDistances);
        }
        if nodes.len() > options.max_nodes {
            return Err(TopologyManagerError::TooManyNodes(options.max_nodes));
        }
        if let Some(node) = nodes.iter().find(|node| **node > 63) {
            return Err(TopologyManagerError::NodeNumber(*node));
        }
        let distances = machine.nodes.iter().map(|node| (node.id, node.distances.clone())).collect();
        Ok(NumaInfo { nodes, distances })
    }

    pub fn all(&self) -> NumaMask {
        NumaMask::new(self.nodes.iter().copied())
    }

    /// Sum of the distances among all nodes of a mask; masks with as many nodes are compared by it. A node's list has a place for each
    /// node that there is, whatever their numbers. A difference: upstream takes the number for the place, and ends where it has none.
    fn distance(&self, mask: NumaMask) -> u64 {
        let place = |node: u32| self.nodes.iter().position(|known| *known == node);
        let between = |from: u32, to: u32| self.distances.get(&from)?.get(place(to)?).copied();
        let pairs = mask.nodes().flat_map(|from| mask.nodes().map(move |to| (from, to)));
        pairs.map(|(from, to)| between(from, to).unwrap_or(0)).sum()
    }

    /// `one` stands nearer together than `other`, or they are equal in that and it has lower nodes. Fewer nodes come first.
    pub fn closer(&self, one: NumaMask, other: NumaMask) -> bool {
        (one.count(), self.distance(one), one) < (other.count(), self.distance(other), other)
    }
}
