//! The chains and rules, and the arguments that make sure of each (upstream `pkg/kubelet/kubelet_network_linux.go` and
//! `pkg/util/iptables`). Pure.
//!
//! KUBE-IPTABLES-HINT says by being there whether the machine's components use the legacy or the nf_tables variant. KUBE-FIREWALL
//! drops packets to 127/8 that come from elsewhere (CVE-2020-8558); kube-proxy keeps the same rule in its iptables mode, and
//! both must look alike. KUBE-KUBELET-CANARY is there to be gone when somebody flushes the tables.

use bulkhead_ipc::common::family_chains::Family;

/// A table of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    Mangle,
    Nat,
    Filter,
}

/// Where a rule goes in its chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    First,
    Last,
}

/// What there should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    Chain(Table, &'static str),
    Rule { position: Position, table: Table, chain: &'static str, rule: &'static [&'static str] },
}

pub const HINT: &str = "KUBE-IPTABLES-HINT";
pub const FIREWALL: &str = "KUBE-FIREWALL";
pub const CANARY: &str = "KUBE-KUBELET-CANARY";

/// The first is asked for, because it holds least.
pub const CANARY_TABLES: [Table; 3] = [Table::Mangle, Table::Nat, Table::Filter];

/// Five seconds for the lock that all of iptables shares.
const WAIT: [&str; 2] = ["-w", "5"];

const JUMP: &[&str] = &["-j", FIREWALL];
const DROP_MARTIANS: &[&str] = &[
    "-m",
    "comment",
    "--comment",
    "block incoming localnet connections",
    "--dst",
    "127.0.0.0/8",
    "!",
    "--src",
    "127.0.0.0/8",
    "-m",
    "conntrack",
    "!",
    "--ctstate",
    "RELATED,ESTABLISHED,DNAT",
    "-j",
    "DROP",
];

/// What is made sure of, in this order. IPv6 has no martian packets of this kind.
pub fn wanted(family: Family) -> Vec<Wanted> {
    let filter = |position, chain, rule| Wanted::Rule { position, table: Table::Filter, chain, rule };
    let mut wanted = vec![Wanted::Chain(Table::Mangle, HINT)];
    if family == Family::Ipv4 {
        wanted.extend([
            Wanted::Chain(Table::Filter, FIREWALL),
            filter(Position::First, "OUTPUT", JUMP),
            filter(Position::First, "INPUT", JUMP),
            filter(Position::Last, FIREWALL, DROP_MARTIANS),
        ]);
    }
    wanted
}

/// The canaries, which are put up when the rest is there.
pub fn canaries() -> impl Iterator<Item = Wanted> {
    CANARY_TABLES.into_iter().map(|table| Wanted::Chain(table, CANARY))
}

impl Table {
    pub const fn name(self) -> &'static str {
        match self {
            Table::Mangle => "mangle",
            Table::Nat => "nat",
            Table::Filter => "filter",
        }
    }
}

impl Wanted {
    /// The arguments that tell whether it is there; `None` where making it tells that.
    pub fn check(&self) -> Option<Vec<&'static str>> {
        match self {
            Wanted::Chain(..) => None,
            Wanted::Rule { table, chain, rule, .. } => Some(arguments("-C", chain, *table, rule)),
        }
    }

    /// The arguments that make it.
    pub fn make(&self) -> Vec<&'static str> {
        match self {
            Wanted::Chain(table, chain) => arguments("-N", chain, *table, &[]),
            Wanted::Rule { position, table, chain, rule } => {
                let act = match position {
                    Position::First => "-I",
                    Position::Last => "-A",
                };
                arguments(act, chain, *table, rule)
            }
        }
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wanted::Chain(table, chain) => write!(f, "chain {chain} in table {}", table.name()),
            Wanted::Rule { table, chain, rule, .. } => {
                write!(f, "rule {:?} in chain {chain} of table {}", rule.join(" "), table.name())
            }
        }
    }
}

/// The arguments that list a chain: they fail where it is not there.
pub fn list(table: Table, chain: &'static str) -> Vec<&'static str> {
    arguments("-S", chain, table, &[])
}

fn arguments(act: &'static str, chain: &'static str, table: Table, rule: &'static [&'static str]) -> Vec<&'static str> {
    [&WAIT[..], &[act, chain, "-t", table.name()], rule].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_arguments() {
        let v4 = wanted(Family::Ipv4);
        let makes: Vec<String> = v4.iter().map(|one| one.make().join(" ")).collect();
        assert_eq!(
            makes,
            [
                "-w 5 -N KUBE-IPTABLES-HINT -t mangle",
                "-w 5 -N KUBE-FIREWALL -t filter",
                "-w 5 -I OUTPUT -t filter -j KUBE-FIREWALL",
                "-w 5 -I INPUT -t filter -j KUBE-FIREWALL",
                "-w 5 -A KUBE-FIREWALL -t filter -m comment --comment block incoming localnet connections --dst \
                 127.0.0.0/8 ! --src 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
            ]
        );
        assert_eq!(v4[0].check(), None);
        assert_eq!(v4[2].check().unwrap().join(" "), "-w 5 -C OUTPUT -t filter -j KUBE-FIREWALL");
        assert_eq!(wanted(Family::Ipv6), [Wanted::Chain(Table::Mangle, HINT)]);
        let canaries: Vec<String> = canaries().map(|one| one.make().join(" ")).collect();
        assert_eq!(canaries[0], "-w 5 -N KUBE-KUBELET-CANARY -t mangle");
        assert_eq!(canaries.len(), 3);
        assert_eq!(list(Table::Nat, "POSTROUTING").join(" "), "-w 5 -S POSTROUTING -t nat");
    }
}
