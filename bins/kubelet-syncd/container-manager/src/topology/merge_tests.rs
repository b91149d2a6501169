//! Upstream's own tables (`topologymanager/policy_test.go`), in our form: `0,1+` is a preferred hint for nodes 0 and 1, `0-` one for
//! node 0 that is not, `*+` one for any. Resources are parted by `|`, hints of one by a space.

use std::collections::BTreeMap;

use super::hints::{Hint, ResourceHints};
use super::machine::{Machine, Node};
use super::mask::NumaMask;
use super::merge::merge;
use super::options::{NumaInfo, Policy, Scope, TopologyManagerError, TopologyOptions};
use super::{TopologyManager, machines, recorded};

fn hint(text: &str) -> Hint {
    let (nodes, preferred) = text.split_at(text.len() - 1);
    let nodes: Option<Vec<u32>> = (nodes != "*").then(|| nodes.split(',').map(|node| node.parse().unwrap()).collect());
    Hint { affinity: nodes.map(NumaMask::new), preferred: preferred == "+" }
}

/// Each resource is a provider's; `none` gives no list.
fn providers(text: &str) -> Vec<ResourceHints> {
    let lists = text.split('|').map(str::trim).filter(|list| !list.is_empty());
    let list = |text: &str| match text {
        "nothing" => ResourceHints::new(),
        "none" => ResourceHints::from([("r".to_owned(), None)]),
        "empty" => ResourceHints::from([("r".to_owned(), Some(Vec::new()))]),
        list => ResourceHints::from([("r".to_owned(), Some(list.split_whitespace().map(hint).collect()))]),
    };
    lists.map(list).collect()
}

fn numa(nodes: u32) -> NumaInfo {
    NumaInfo::of(&machines::machine(nodes, 1, 0, 1), TopologyOptions::default()).unwrap()
}

fn check(policy: Policy, numa: &NumaInfo, closest: bool, table: &[(&str, &str)]) {
    let options = TopologyOptions { prefer_closest: closest, ..TopologyOptions::default() };
    for (hints, wanted) in table {
        let (found, admitted) = merge(policy, numa, options, &providers(hints));
        let wanted = hint(wanted);
        assert_eq!(found, wanted, "{policy:?}: {hints}");
        assert_eq!(admitted, policy == Policy::BestEffort || wanted.preferred, "{policy:?}: {hints}");
    }
}

const COMMON: &[(&str, &str)] = &[
    ("0+ | 0+", "0+"),
    ("1+ | 1+", "1+"),
    ("nothing | 0+", "0+"),
    ("nothing | 1+", "1+"),
    ("0+ 1+ | 0+", "0+"),
    ("0+ 1+ | 1+", "1+"),
    ("0+ 1+ | 0+ 0,1-", "0+"),
    ("1+ 0,1- | 0+ 1+ 0,1-", "1+"),
];

const BEST_EFFORT: &[(&str, &str)] = &[
    ("0,1+ 0,2+ | 0,1+ 0,2+", "0,1+"),
    ("", "0,1,2,3+"),
    ("nothing", "0,1,2,3+"),
    ("none", "0,1,2,3+"),
    ("empty", "0,1,2,3-"),
    ("*+", "0,1,2,3+"),
    ("*-", "0,1,2,3-"),
    ("0+ | 1+", "0,1,2,3-"),
    ("0+ | 0-", "0-"),
    ("1+ | 1-", "1-"),
    ("0+ | 0,1+", "0-"),
    ("0+ 1+ | 0,1-", "0-"),
    ("1+ | 0,1+", "1-"),
    ("0,1,2,3- 0,1- | 0,1-", "0,1-"),
    ("0,1,2,3- 0,1- | 0,3-", "0,3-"),
    ("0,1,2,3- 0,1- | 1,2-", "1,2-"),
    ("0,1,2,3- 0,1- | 2,3-", "2,3-"),
];

const NARROWEST: &[(&str, &str)] =
    &[("0,1,2,3- 0,1- | 1,2- 2,3-", "1,2-"), ("0,1,2,3- 0,1- | 1,2,3- 1,2- 1,3- 2,3-", "1,2-")];

const SINGLE: &[(&str, &str)] = &[
    ("", "*+"),
    ("nothing", "*+"),
    ("none", "*+"),
    ("empty", "*-"),
    ("*+", "*+"),
    ("*-", "*-"),
    ("0+ | 1+", "*-"),
    ("0+ | 0-", "*-"),
    ("1+ | 1-", "*-"),
    ("0+ 1+ | 0,1-", "*-"),
    ("0,1+ | 0+ 1+ 0,1-", "*-"),
    ("0+ 1+ 0,1- | nothing", "0+"),
];

#[test]
fn upstreams_tables() {
    let numa = numa(4);
    for policy in [Policy::BestEffort, Policy::Restricted] {
        for table in [COMMON, BEST_EFFORT, NARROWEST] {
            check(policy, &numa, false, table);
        }
    }
    check(Policy::SingleNumaNode, &numa, false, COMMON);
    check(Policy::SingleNumaNode, &numa, false, SINGLE);
    assert_eq!(merge(Policy::None, &numa, TopologyOptions::default(), &[]), (hint("*-"), true));
}

/// Nodes 0 and 2, and 2 and 3, are nearer to each other than to others.
#[test]
fn the_closest() {
    let distances: [[u64; 8]; 8] = [
        [10, 11, 12, 12, 30, 30, 30, 30],
        [11, 10, 12, 12, 30, 30, 30, 30],
        [12, 12, 10, 11, 30, 30, 30, 30],
        [12, 12, 11, 10, 30, 30, 30, 30],
        [30, 30, 30, 30, 10, 11, 12, 12],
        [30, 30, 30, 30, 11, 10, 12, 12],
        [30, 30, 30, 30, 12, 12, 10, 11],
        [30, 30, 30, 30, 12, 12, 13, 10],
    ];
    let node = |(id, distances): (u32, [u64; 8])| Node { id, distances: distances.to_vec(), ..Node::default() };
    let machine = Machine { nodes: (0..8).zip(distances).map(node).collect() };
    let options = TopologyOptions { prefer_closest: true, ..TopologyOptions::default() };
    let numa = NumaInfo::of(&machine, options).unwrap();
    let table = [
        ("0,4+ 0,2+ | 0,4+ 0,2+", "0,2+"),
        ("4+ 0,2+ | 4+ 0,2+", "4+"),
        ("0,1,2,3- 0,1- | 1,2- 2,3-", "2,3-"),
        ("0,1,2,3- 0,1- | 1,2,3- 1,2- 1,3- 2,3-", "2,3-"),
    ];
    for policy in [Policy::BestEffort, Policy::Restricted] {
        check(policy, &numa, true, COMMON);
        check(policy, &numa, true, &table);
    }
    // One node alone is what it is.
    check(Policy::SingleNumaNode, &numa, true, SINGLE);
}

/// Of a recorded machine whose nodes are 0, 1, 4, 5, 8, 9, 12 and 13: a node's distances are told in that order.
#[test]
fn the_closest_where_numbers_have_gaps() {
    let machine = recorded::named("8-nodes-4-threads-gaps-in-numbers").machine();
    let options = TopologyOptions { prefer_closest: true, ..TopologyOptions::default() };
    let numa = NumaInfo::of(&machine, options).unwrap();
    let table = [
        ("0,9+ 8,9+ | 0,9+ 8,9+", "8,9+"),
        ("1,4+ 12,13+ | 1,4+ 12,13+", "12,13+"),
        ("4,8+ 4,5+ | 4,8+ 4,5+", "4,5+"),
        ("0,1,4,5- 4,5- | 0,4- 4,5-", "4,5-"),
    ];
    for policy in [Policy::BestEffort, Policy::Restricted] {
        check(policy, &numa, true, &table);
    }
}

#[test]
fn settings_that_are_refused() {
    let small = machines::machine(2, 2, 0, 1);
    let map = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let none = BTreeMap::new;
    let refused = |policy, scope, options: &_, machine: &_| {
        TopologyManager::new(policy, scope, options, machine).unwrap_err().to_string()
    };
    let table = [
        (refused("strict", "pod", &none(), &small), "unknown policy: \"strict\""),
        (refused("restricted", "node", &none(), &small), "unknown scope: \"node\""),
        (refused("restricted", "pod", &map("x", "1"), &small), "unknown Topology Manager Policy option: \"x\""),
        (
            refused("restricted", "pod", &map("prefer-closest-numa-nodes", "x"), &small),
            "bad value for option \"prefer-closest-numa-nodes\": strconv.ParseBool: parsing \"x\": invalid syntax",
        ),
        (
            refused("restricted", "pod", &map("max-allowable-numa-nodes", "7"), &small),
            "the minimum value of \"max-allowable-numa-nodes\" should not be less than 8",
        ),
        (
            refused("restricted", "pod", &map("max-allowable-numa-nodes", "x"), &small),
            "unable to convert policy option to integer \"max-allowable-numa-nodes\": strconv.Atoi: parsing \"x\": invalid syntax",
        ),
        (
            refused("best-effort", "pod", &none(), &machines::machine(9, 1, 0, 1)),
            "unsupported on machines with more than 8 NUMA Nodes",
        ),
    ];
    for (found, wanted) in table {
        assert_eq!(found, wanted);
    }
    let mut silent = small;
    silent.nodes[1].distances.clear();
    let closest = map("prefer-closest-numa-nodes", "true");
    assert_eq!(TopologyManager::new("restricted", "pod", &closest, &silent), Err(TopologyManagerError::NoDistances));
    let many = machines::machine(9, 1, 0, 1);
    let manager = |options: &_| TopologyManager::new("restricted", "container", options, &many);
    assert!(manager(&map("max-allowable-numa-nodes", "9")).is_ok());
    // Where nothing is aligned, neither options nor nodes matter.
    assert!(TopologyManager::new("none", "", &map("x", "1"), &many).is_ok());
    assert_eq!(Scope::parse("pod"), Ok(Scope::Pod));
}
