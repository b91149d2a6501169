//! Upstream's own tables (`memorymanager/policy_static_test.go`, `memory_manager_test.go`).

use std::collections::BTreeMap;

use bulkhead_types::Quantity;
use kubelet_model::pod::resources::Amounts;

use super::policy::{MemoryManagerError, StaticMemory};
use super::reservation::{Reserved, reserved};
use super::state::{Block, MemoryState};
use crate::pods::{Container, pod, pod_with};
use crate::request::{Gates, Kind, PodRequest};
use crate::topology::mask::NumaMask;
use crate::topology::{Hint, HintProvider, machines};

const GATES: Gates = Gates {
    cpu_alpha_options: false,
    cpu_beta_options: true,
    pod_level: true,
    no_quota: true,
    extended_by_claims: true,
};
const ANY: Hint = Hint { affinity: None, preferred: false };
const GIB: u64 = 1 << 30;

/// Nodes of 20 GiB, of which 4 are huge pages and 1 is laid aside on node 0.
fn manager(nodes: u32) -> StaticMemory {
    let reserved = Reserved::from([(0, BTreeMap::from([("memory".to_owned(), GIB)]))]);
    StaticMemory::new(&machines::machine(nodes, 2, 0, 20), &reserved, GATES).unwrap()
}

fn request(uid: &str, containers: &[Container<'_>]) -> PodRequest {
    PodRequest::of(&pod(uid, containers), GATES)
}

fn one(uid: &str, memory: &str, huge: &str) -> PodRequest {
    request(uid, &[("c", Kind::App, "1", memory, huge)])
}

fn allocate(manager: &mut StaticMemory, pod: &PodRequest, best: Hint) -> Result<(), String> {
    pod.containers
        .iter()
        .try_for_each(|c| manager.allocate(pod, c, best).map_err(|r| format!("{}: {}", r.reason, r.message)))
}

fn on(nodes: &[u32], preferred: bool) -> Hint {
    Hint::new(NumaMask::new(nodes.iter().copied()), preferred)
}

fn failed(text: &str) -> Result<(), String> {
    Err(format!("UnexpectedAdmissionError: Allocate failed due to [memorymanager] {text}, which is unexpected"))
}

/// GiB of a node's ordinary memory: given, free.
fn memory(manager: &StaticMemory, node: u32) -> (u64, u64) {
    let table = manager.state.machine[&node].memory_map["memory"];
    (table.reserved / GIB, table.free / GIB)
}

#[test]
fn what_a_node_has() {
    let manager = manager(2);
    let tables = &manager.state.machine[&0].memory_map;
    let memory = tables["memory"];
    assert_eq!((memory.total, memory.system_reserved, memory.allocatable), (20 * GIB, GIB, 15 * GIB));
    assert_eq!(tables["hugepages-1Gi"].allocatable, 4 * GIB);
    let blocks: Vec<(Vec<u32>, String, u64)> =
        manager.allocatable().into_iter().map(|b| (b.nodes, b.kind, b.size / GIB)).collect();
    let huge = "hugepages-1Gi".to_owned();
    let wanted = [
        (vec![0], huge.clone(), 4),
        (vec![0], "memory".to_owned(), 15),
        (vec![1], huge, 4),
        (vec![1], "memory".to_owned(), 16),
    ];
    assert_eq!(blocks, wanted);
}

#[test]
fn alone_or_in_a_group() {
    let mut m = manager(4);
    assert_eq!(allocate(&mut m, &one("a", "10Gi", "1Gi"), on(&[0], true)), Ok(()));
    assert_eq!((memory(&m, 0), m.state.machine[&0].number_of_assignments), ((10, 5), 2));
    // Two nodes together: the first gives all that it has.
    assert_eq!(allocate(&mut m, &one("b", "20Gi", ""), on(&[1, 2], true)), Ok(()));
    assert_eq!((memory(&m, 1), memory(&m, 2)), ((16, 0), (4, 12)));
    assert_eq!(m.state.machine[&1].cells, [1, 2]);
    assert_eq!(m.nodes_of("b", "c").to_string(), "1-2");
    // Node 0 gives memory alone and nodes 1 and 2 together: no other group is had of them.
    assert_eq!(
        allocate(&mut m, &one("d", "2Gi", ""), on(&[0, 3], true)),
        failed("preferred hint violates NUMA node allocation")
    );
    assert_eq!(
        allocate(&mut m, &one("d", "2Gi", ""), on(&[2, 3], true)),
        failed("preferred hint violates NUMA node allocation")
    );
    let pod = one("d", "2Gi", "");
    let hints = m.hints(&pod, &pod.containers[0])["memory"].clone().unwrap();
    assert_eq!(hints, [on(&[0], true), on(&[3], true), on(&[1, 2], false)]);
    // None is given: the narrowest that has it.
    assert_eq!(allocate(&mut m, &pod, ANY), Ok(()));
    assert_eq!(m.nodes_of("d", "c").to_string(), "0");
    // One node of a group, as the CPUs' hint alone names it: the group's memory, if that node has it, else as with any hint.
    assert_eq!(allocate(&mut m, &one("e", "2Gi", ""), on(&[2], true)), Ok(()));
    assert_eq!((m.nodes_of("e", "c").to_string().as_str(), memory(&m, 2)), ("1-2", (6, 10)));
    let not_preferred = failed("failed to find the extended preferred hint");
    assert_eq!(allocate(&mut m, &one("f", "2Gi", ""), on(&[1], true)), not_preferred);
    assert_eq!(allocate(&mut m, &one("f", "2Gi", ""), on(&[1], false)), Ok(()));
    assert_eq!((m.nodes_of("f", "c").to_string().as_str(), memory(&m, 2)), ("1-2", (8, 8)));
    let no_room = failed("failed to find NUMA nodes to extend the current topology hint");
    assert_eq!(allocate(&mut m, &one("g", "9Gi", ""), on(&[2], false)), no_room);
    for uid in ["a", "b", "d", "e", "f"] {
        m.remove(uid, "c");
    }
    assert_eq!(m.state, manager(4).state);
}

#[test]
fn what_cannot_be_had() {
    let huge = "no NUMA nodes with enough memory is available";
    let table = [
        ("100Gi", "", ANY, failed(&format!("failed to get the default NUMA affinity, {huge}"))),
        ("2Gi", "9Gi", ANY, failed(&format!("failed to get the default NUMA affinity, {huge}"))),
        ("40Gi", "", on(&[0], true), failed("failed to find NUMA nodes to extend the current topology hint")),
        // Node 0 alone has not enough, both together have: wider, and as narrow as can be.
        ("20Gi", "", on(&[0], true), Ok(())),
    ];
    for (memory, huge, hint, wanted) in table {
        let mut manager = manager(2);
        let before = manager.state.clone();
        assert_eq!(allocate(&mut manager, &one("a", memory, huge), hint), wanted, "{memory} {huge}");
        assert_eq!(manager.state == before, wanted.is_err());
    }
    // What one node could give is given by two, as others have the rest of it: not preferred, so refused if it has to be.
    let mut m = manager(3);
    for (uid, node) in [("a", 0), ("b", 1)] {
        allocate(&mut m, &one(uid, "10Gi", ""), on(&[node], true)).unwrap();
    }
    m.state.machine.get_mut(&2).unwrap().memory_map.get_mut("memory").unwrap().free = 7 * GIB;
    let preferred = Hint { affinity: None, preferred: true };
    assert_eq!(
        allocate(&mut m, &one("c", "8Gi", ""), preferred),
        failed(&format!("failed to get the default NUMA affinity, {huge}"))
    );
    assert_eq!(allocate(&mut m, &one("c", "6Gi", ""), on(&[2], true)), Ok(()));
}

/// Upstream's cases of init containers: what they ask for, what apps ask for, what each has in the end, what is given in all (GiB).
#[test]
fn init_containers() {
    let table = [
        (["1Gi", "2Gi"], ["3Gi", "4Gi"], [0, 0, 3, 4], 7),
        (["4Gi", "3Gi"], ["2Gi", "1Gi"], [0, 1, 2, 1], 4),
        (["7Gi", "4Gi"], ["4Gi", "3Gi"], [0, 0, 4, 3], 7),
        (["7Gi", "4Gi"], ["5Gi", "2Gi"], [0, 0, 5, 2], 7),
    ];
    for (inits, apps, blocks, given) in table {
        let mut m = manager(1);
        let pod = request(
            "p",
            &[
                ("i", Kind::Init, "1", inits[0], ""),
                ("j", Kind::Init, "1", inits[1], ""),
                ("a", Kind::App, "1", apps[0], ""),
                ("b", Kind::App, "1", apps[1], ""),
            ],
        );
        allocate(&mut m, &pod, ANY).unwrap();
        let size = |name: &str| m.state.get("p", name).unwrap()[0].size / GIB;
        assert_eq!(["i", "j", "a", "b"].map(size), blocks, "{inits:?} {apps:?}");
        assert_eq!(memory(&m, 0).0, given);
        assert_eq!(m.state.machine[&0].number_of_assignments, 4);
        for name in ["i", "j", "a", "b"] {
            m.remove("p", name);
        }
        assert_eq!(m.state, manager(1).state);
    }
    // A sidecar goes on running: its memory is had by nobody else.
    let mut m = manager(1);
    let pod = request("p", &[("s", Kind::Sidecar, "1", "4Gi", ""), ("a", Kind::App, "1", "3Gi", "")]);
    allocate(&mut m, &pod, ANY).unwrap();
    assert_eq!(memory(&m, 0).0, 7);
}

#[test]
fn what_is_there_gives_its_hints_again() {
    let mut m = manager(2);
    let pod = one("p", "3Gi", "1Gi");
    allocate(&mut m, &pod, on(&[1], true)).unwrap();
    let hints = m.hints(&pod, &pod.containers[0]);
    assert_eq!(hints["memory"], Some(vec![on(&[1], true)]));
    assert_eq!(hints["hugepages-1Gi"], Some(vec![on(&[1], true)]));
    assert_eq!(m.pod_hints(&pod), hints);
    let other = one("p", "4Gi", "1Gi");
    assert!(m.hints(&other, &other.containers[0]).is_empty());
    let before = m.state.clone();
    allocate(&mut m, &pod, on(&[0], true)).unwrap();
    assert_eq!(m.state, before);
    let burstable = one("q", "1Gi/2Gi", "");
    assert!(m.hints(&burstable, &burstable.containers[0]).is_empty() && m.pod_hints(&burstable).is_empty());
    allocate(&mut m, &burstable, ANY).unwrap();
    assert_eq!(m.state, before);
}

#[test]
fn pods_with_memory_of_their_own() {
    use Kind::{App, Init, Sidecar};
    let mut m = manager(1);
    let containers =
        [("i", Init, "", "", ""), ("s", Sidecar, "1", "2Gi", ""), ("a", App, "1", "3Gi", ""), ("b", App, "", "", "")];
    let pod = PodRequest::of(&pod_with("p", ("6", "8Gi"), &containers), GATES);
    m.allocate_pod(&pod, ANY).unwrap();
    let size = |name: &str| m.state.get("p", name).unwrap()[0].size / GIB;
    assert_eq!(["i", "s", "a", "b"].map(size), [8, 2, 3, 3]);
    assert_eq!(memory(&m, 0).0, 8);
    for name in ["i", "s", "a"] {
        m.remove("p", name);
        assert_eq!(memory(&m, 0).0, 8);
    }
    m.remove("p", "b");
    assert_eq!(m.state, manager(1).state);
    let none_left = [("a", App, "1", "8Gi", ""), ("b", App, "", "", "")];
    let pod = PodRequest::of(&pod_with("p", ("6", "8Gi"), &none_left), GATES);
    let refusal = m.allocate_pod(&pod, ANY).unwrap_err();
    assert_eq!(
        refusal.message,
        "pod rejected, sum of exclusive container memory requests equals pod budget, leaving no memory for shared containers"
    );
    assert_eq!(m.pod_hints(&pod)["memory"], Some(Vec::new()));
}

#[test]
fn states_that_are_refused() {
    let mut given = manager(2);
    allocate(&mut given, &one("p", "20Gi", ""), on(&[0, 1], true)).unwrap();
    let good = given.state.clone();
    let refused = |change: fn(&mut MemoryState)| {
        let mut state = good.clone();
        change(&mut state);
        manager(2).restore(state).map_err(|error| error.to_string())
    };
    let other = Err("[memorymanager] the expected machine state is different from the real one".to_owned());
    fn table(state: &mut MemoryState) -> &mut super::state::MemoryTable {
        state.machine.get_mut(&0).unwrap().memory_map.get_mut("memory").unwrap()
    }
    assert_eq!(refused(|_| ()), Ok(()));
    assert_eq!(refused(|state| *state = MemoryState::default()), Ok(()));
    // How a group's bytes lie on its nodes is not looked at.
    let moved = refused(|state| {
        for (node, by) in [(0, 1_i64), (1, -1)] {
            let table = state.machine.get_mut(&node).unwrap().memory_map.get_mut("memory").unwrap();
            (table.free, table.reserved) =
                (table.free.wrapping_add_signed(by), table.reserved.wrapping_add_signed(-by));
        }
    });
    assert_eq!(moved, Ok(()));
    assert_eq!(refused(|state| table(state).total += 1), other);
    assert_eq!(refused(|state| table(state).system_reserved += 1), other);
    assert_eq!(refused(|state| table(state).free += 1), other);
    assert_eq!(refused(|state| _ = state.machine.remove(&1)), other);
    assert_eq!(refused(|state| state.machine.get_mut(&0).unwrap().number_of_assignments += 1), other);
    assert_eq!(refused(|state| state.machine.get_mut(&0).unwrap().cells = vec![0]), other);
    assert_eq!(
        refused(|state| state.machine.clear()),
        Err("[memorymanager] machine state can not be empty when it has memory assignments".to_owned())
    );
    let block = |nodes: &[u32], kind: &str| Block { nodes: nodes.to_vec(), kind: kind.to_owned(), size: 1 };
    let mut state = good.clone();
    state.set("p", "d", vec![block(&[2], "memory")]);
    assert_eq!(
        manager(2).restore(state).unwrap_err().to_string(),
        "[memorymanager] (pod: p, container: d) the memory assignment uses the NUMA that does not exist"
    );
    let mut state = good;
    state.set("p", "d", vec![block(&[1], "hugepages-2Mi")]);
    assert_eq!(
        manager(2).restore(state).unwrap_err().to_string(),
        "[memorymanager] (pod: p, container: d) the memory assignment uses memory resource that does not exist"
    );
}

/// Upstream's table (`TestValidateReservedMemory`): what is laid aside on nodes, what node allocatable lays aside, why not.
#[test]
fn sums_of_reservations() {
    let machine = machines::machine(2, 2, 0, 20);
    let amounts = |list: &[(&str, i64)]| -> Amounts {
        list.iter().map(|(name, n)| ((*name).to_owned(), Quantity::from_i64(*n))).collect()
    };
    let (memory, huge2, huge1) = ("memory", "hugepages-2Mi", "hugepages-1Gi");
    let differs = |reserved: i64, kind: &str, wanted: i64| {
        Some(format!(
            "the total amount \"{reserved}\" of type \"{kind}\" is not equal to the value \"{wanted}\" determined by Node Allocatable feature"
        ))
    };
    type Row<'a> = (&'a [(u32, &'a [(&'a str, i64)])], &'a [(&'a str, i64)], Option<String>);
    let table: &[Row<'_>] = &[
        (&[], &[], None),
        (&[(0, &[(memory, 0)])], &[(memory, 0)], None),
        (&[(0, &[(memory, 12)])], &[], differs(12, memory, 0)),
        (&[], &[(huge2, 5)], differs(0, huge2, 5)),
        (&[], &[("cpu", 5)], None),
        (&[(0, &[(memory, 12)])], &[(memory, 5)], differs(12, memory, 5)),
        (
            &[(0, &[(memory, 12)]), (2, &[(memory, 5)])],
            &[(memory, 17)],
            Some(
                "the reserved memory configuration references a NUMA node 2 that does not exist on this machine".into(),
            ),
        ),
        (
            &[(0, &[(memory, 12), (huge2, 70), (huge1, 13)]), (1, &[(memory, 5), (huge2, 7)])],
            &[(memory, 17), (huge2, 77), (huge1, 13)],
            None,
        ),
        (
            &[(0, &[(memory, 12), (huge2, 70), (huge1, 13)]), (1, &[(memory, 5), (huge2, 7)])],
            &[(memory, 17), (huge2, 14), (huge1, 13)],
            differs(77, huge2, 14),
        ),
    ];
    for (list, allocatable, wanted) in table {
        let list: Vec<(u32, Amounts)> = list.iter().map(|(node, of)| (*node, amounts(of))).collect();
        let found = reserved(&machine, &list, &amounts(allocatable)).err().map(|error| error.to_string());
        assert_eq!(found, *wanted);
    }
    assert_eq!(StaticMemory::new(&machine, &Reserved::new(), GATES).unwrap_err(), MemoryManagerError::NoReservation);
}
