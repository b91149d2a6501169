//! A machine as upstream's managers see it (cAdvisor's `info.Node`).

/// A physical core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Core {
    pub socket: u32,
    /// Its logical CPUs that are online, ascending.
    pub threads: Vec<u32>,
    /// Number of the last-level cache that it shares with some of the node's cores only; None where the whole node shares one or
    /// the machine does not tell.
    pub uncore_cache: Option<u32>,
}

/// Huge pages of one size on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HugePages {
    /// KiB.
    pub page_size_kib: u64,
    pub count: u64,
}

/// A NUMA node; on a machine that tells of none, a socket.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    pub id: u32,
    pub cores: Vec<Core>,
    /// Bytes, huge pages among them; 0 where the machine does not tell.
    pub memory: u64,
    pub huge_pages: Vec<HugePages>,
    /// To each node, in the order of their numbers; empty where the machine does not tell.
    pub distances: Vec<u64>,
}

/// All nodes, by number.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    pub nodes: Vec<Node>,
}
