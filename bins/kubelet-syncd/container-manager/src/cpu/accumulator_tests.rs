//! Upstream's own tables (`cpumanager/cpu_assignment_test.go`): machine, free CPUs, how many are wanted, which are taken.

use super::accumulator::{Order, take_packed};
use super::distributed::take_distributed;
use crate::topology::cpus::{CpuTopology, Level};
use crate::topology::machines::*;

type Case = (fn() -> CpuTopology, &'static str, usize, &'static str);

const COMMON: &[Case] = &[
    (single_socket_smt, "0-7", 0, ""),
    (single_socket_smt, "0-7", 1, "0"),
    (single_socket_smt, "1,3,5-7", 1, "6"),
    (single_socket_smt, "0-7", 2, "0,4"),
    (single_socket_smt, "0-7", 8, "0-7"),
    (single_socket_smt, "0-3,6", 2, "2,6"),
    (dual_socket_smt, "0-11", 6, "0,2,4,6,8,10"),
    (dual_socket_four_nodes, "0-79", 40, "0-19,40-59"),
    (dual_socket_four_nodes, "0-79", 20, "0-9,40-49"),
    (dual_socket_four_nodes, "10-39,50-79", 20, "10-19,50-59"),
    (dual_socket_four_nodes, "0-79", 60, "0-29,40-69"),
    (dual_socket_four_nodes, "1-39,41-79", 60, "10-39,50-79"),
];

const PACKED: &[Case] = &[
    (dual_socket_smt, "1-5,7-11", 1, "2"),
    (dual_socket_smt, "0-11", 8, "0,6,2,8,4,10,1,7"),
    (dual_socket_four_nodes, "0-79", 64, "0-29,40-69,30-31,70-71"),
    // The same machine with nodes above sockets: whole nodes first.
    (four_sockets_two_nodes, "0-79", 60, "0-29,40-69"),
    (four_sockets_two_nodes, "0-79", 20, "0-9,40-49"),
];

const CACHES: &[Case] = &[
    (uncore_single_socket, "1-15", 10, "1-2,4-11"),
    (dual_socket_smt, "1-5,7-11", 1, "1"),
    (uncore_dual_socket, "0-15", 4, "0-3"),
    (uncore_dual_socket, "2-15", 6, "2-7"),
    (uncore_dual_socket, "8-15", 4, "8-11"),
    (uncore_two_nodes, "3-8,12", 2, "4-5"),
    (uncore_smt, "2-3,10-11,4-7,12-15", 6, "4-6,12-14"),
    (uncore_smt, "1-7,9-15", 10, "4-7,12-15,1,9"),
];

const SPREAD: &[Case] = &[
    (single_socket_smt, "0-7", 3, "0-2"),
    (dual_socket_smt, "0-11", 2, "0,2"),
    (dual_socket_smt, "0-11", 3, "0,2,4"),
    (dual_socket_smt, "0-11", 6, "0,2,4,6,8,10"),
    (dual_socket_smt, "0-11", 8, "0,2,4,6,8,10,1,3"),
    (dual_socket, "0-7", 2, "0-1"),
    (dual_socket_four_nodes, "0-79", 8, "0-7"),
];

/// And with groups of one or two threads.
type Grouped = (fn() -> CpuTopology, &'static str, usize, usize, &'static str);

const DISTRIBUTED: &[Grouped] = &[
    (dual_socket_smt, "0-11", 8, 1, "0,6,2,8,1,7,3,9"),
    (dual_socket_four_nodes, "0-79", 64, 1, "0-7,10-17,20-27,30-37,40-47,50-57,60-67,70-77"),
    (dual_socket_four_nodes, "0-79", 48, 1, "0-7,10-17,20-27,40-47,50-57,60-67"),
    (dual_socket_four_nodes, "1-29,32-39,41-69,72-79", 48, 1, "1-8,10-17,20-27,41-48,50-57,60-67"),
    (dual_socket_four_nodes, "2-29,31-39,42-69,71-79", 48, 1, "10-17,20-27,31-38,50-57,60-67,71-78"),
    (
        dual_socket_four_nodes,
        "0-2,10-12,20-22,30-32,40-41,50-51,60-61,70-71",
        16,
        1,
        "0-1,10-11,20-21,30-31,40-41,50-51,60-61,70-71",
    ),
    (dual_socket_smt, "1-5,7-11", 1, 1, "1"),
    (dual_socket_smt, "1-5,7-11", 1, 2, "2"),
    (dual_socket_four_nodes, "0-79", 26, 1, "0-6,10-16,40-45,50-55"),
    (dual_socket_four_nodes, "0-79", 26, 2, "0-6,10-15,40-46,50-55"),
    (dual_socket_four_nodes, "0-79", 62, 1, "0-7,10-17,20-27,30-37,40-47,50-57,60-66,70-76"),
    (dual_socket_four_nodes, "0-79", 62, 2, "0-7,10-17,20-27,30-36,40-47,50-57,60-67,70-76"),
    (
        dual_socket_four_nodes,
        "0-8,10-18,20-39,40-48,50-58,60-79",
        62,
        1,
        "0-7,10-17,20-27,30-37,40-46,50-56,60-67,70-77",
    ),
    (
        dual_socket_four_nodes,
        "0-8,10-18,20-39,40-48,50-58,60-79",
        62,
        2,
        "0-7,10-16,20-27,30-37,40-47,50-56,60-67,70-77",
    ),
    (
        dual_socket_four_nodes,
        "0-3,10-13,20-23,30-36,40-43,50-53,60-63,70-76",
        34,
        1,
        "0-3,10-13,20-23,30-34,40-43,50-53,60-63,70-74",
    ),
    (
        dual_socket_eight_nodes,
        "0,128,30-31,158-159,43-47,171-175,62-63,190-191,75-79,203-207,94,96,222-223,101-111,229-239,126-127,254-255",
        28,
        1,
        "43-47,75-79,96,101-105,171-174,203-206,229-232",
    ),
    // Not in upstream's table: four of eight nodes that are all alike, of which upstream would take others than it chose.
    (dual_socket_eight_nodes, "0-255", 128, 1, "0-63,128-191"),
];

fn check(tables: &[&[Case]], order: Order, caches: bool) {
    for (machine, free, wanted, taken) in tables.iter().flat_map(|table| table.iter()) {
        let found = take_packed(&machine(), &set(free), *wanted, order, caches);
        assert_eq!(found.map(|cpus| cpus.to_string()), Ok(set(taken).to_string()), "{wanted} of {free}");
    }
}

#[test]
fn packed() {
    check(&[COMMON, PACKED], Order::Packed, false);
    check(&[CACHES], Order::Packed, true);
    check(&[SPREAD], Order::Spread, false);
    let error = take_packed(&single_socket_smt(), &set("0,2,4,6"), 5, Order::Packed, false).unwrap_err();
    assert_eq!(error.to_string(), "not enough cpus available to satisfy request: requested=5, available=4");
}

#[test]
fn distributed() {
    let common = COMMON.iter().map(|(machine, free, wanted, taken)| (*machine, *free, *wanted, 1, *taken));
    for (machine, free, wanted, group, taken) in common.chain(DISTRIBUTED.iter().copied()) {
        let found = take_distributed(&machine(), &set(free), wanted, group, Order::Packed);
        assert_eq!(found.map(|cpus| cpus.to_string()), Ok(set(taken).to_string()), "{wanted} of {free}, {group}");
    }
}

proptest::proptest! {
    /// As many as are wanted are taken, and none that was not free, whatever is free.
    #[test]
    fn as_many_as_wanted(
        free in proptest::collection::btree_set(0_u32..80, 0..80),
        wanted in 0..80_usize,
        group in 1..3_usize,
        caches in proptest::prelude::any::<bool>(),
        spread in proptest::prelude::any::<bool>(),
    ) {
        let free: bulkhead_config::cpu_set::CpuSet = free.into_iter().collect();
        let order = if spread { Order::Spread } else { Order::Packed };
        for machine in [dual_socket_four_nodes(), four_sockets_two_nodes()] {
            for found in [
                take_packed(&machine, &free, wanted, order, caches),
                take_distributed(&machine, &free, wanted, group, order),
            ] {
                proptest::prop_assert_eq!(found.is_ok(), wanted <= free.len());
                let Ok(found) = found else { continue };
                proptest::prop_assert!(found.is_subset(&free) && found.len() == wanted);
            }
            // Whole cores where only whole cores are free.
            let whole: bulkhead_config::cpu_set::CpuSet =
                free.iter().filter(|cpu| free.contains((cpu + 40) % 80)).collect();
            if let Ok(found) = take_packed(&machine, &whole, wanted / 2 * 2, Order::Packed, false) {
                let cores = machine.groups(&found, Level::Core);
                proptest::prop_assert_eq!(cores.len() * 2, found.len());
            }
        }
    }
}
