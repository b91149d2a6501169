//! Upstream's own tables (`cpumanager/policy_static_test.go`, `topology_hints_test.go`, `policy_options_test.go`).

use std::collections::BTreeMap;

use bulkhead_config::cpu_set::CpuSet;
use bulkhead_types::Quantity;

use super::policy::{CpuManagerError, Reservation, StaticCpu};
use super::state::CpuState;
use crate::pods::{Container, pod, pod_with};
use crate::request::{Gates, Kind, PodRequest};
use crate::topology::cpus::{CpuTopology, Level};
use crate::topology::machines::{self, set};
use crate::topology::mask::NumaMask;
use crate::topology::options::Policy;
use crate::topology::{Given, Hint, HintProvider};

const GATES: Gates = Gates {
    cpu_alpha_options: true,
    cpu_beta_options: true,
    pod_level: true,
    no_quota: true,
    extended_by_claims: true,
};
const ANY: Hint = Hint { affinity: None, preferred: false };

fn options(list: &[(&str, &str)]) -> BTreeMap<String, String> {
    list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn manager(topology: CpuTopology, list: &[(&str, &str)], count: i64, cpus: &str) -> Result<StaticCpu, CpuManagerError> {
    let reservation = Reservation { cpus: set(cpus), amount: Some(Quantity::from_i64(count)) };
    StaticCpu::new(topology, &options(list), &reservation, Policy::BestEffort, GATES)
}

fn request(uid: &str, containers: &[Container<'_>]) -> PodRequest {
    PodRequest::of(&pod(uid, containers), GATES)
}

fn one(cpus: &str) -> PodRequest {
    request("pod", &[("c", Kind::App, cpus, "1Gi", "")])
}

fn allocate(manager: &mut StaticCpu, pod: &PodRequest, best: Hint) -> Result<Vec<String>, String> {
    pod.containers
        .iter()
        .map(|container| {
            let given = manager.allocate(pod, container, best).map_err(|r| format!("{}: {}", r.reason, r.message));
            given.map(|()| manager.state.get(&pod.uid, &container.name).map(ToString::to_string).unwrap_or_default())
        })
        .collect()
}

fn smt(text: &str) -> Result<&'static str, String> {
    Err(format!("SMTAlignmentError: SMT Alignment Error: {text}"))
}

fn failed(text: &str) -> Result<&'static str, String> {
    Err(format!("UnexpectedAdmissionError: Allocate failed due to {text}, which is unexpected"))
}

/// Machine, options, reserved CPUs (how many, which), what others have, shared CPUs, wanted, what is given.
type Case = (
    fn() -> CpuTopology,
    &'static [(&'static str, &'static str)],
    i64,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    Result<&'static str, String>,
);

#[test]
fn upstreams_table() {
    use machines::{dual_socket, dual_socket_four_nodes, dual_socket_smt, single_socket_smt};
    const FULL: &[(&str, &str)] = &[("full-pcpus-only", "true")];
    const SOCKET: &[(&str, &str)] = &[("align-by-socket", "true")];
    let mut table: Vec<Case> = vec![
        (single_socket_smt, &[], 1, "", "", "0-7", "1", Ok("4")),
        (
            single_socket_smt,
            &[],
            1,
            "",
            "",
            "0-7",
            "8",
            failed("not enough cpus available to satisfy request: requested=8, available=7"),
        ),
        (
            dual_socket_smt,
            &[],
            1,
            "",
            "1,2,3",
            "0,4-11",
            "10",
            failed("not enough cpus available to satisfy request: requested=10, available=8"),
        ),
        (
            single_socket_smt,
            &[],
            1,
            "",
            "1-6",
            "0,7",
            "2",
            failed("not enough cpus available to satisfy request: requested=2, available=1"),
        ),
        (single_socket_smt, FULL, 1, "", "", "0-7", "1", smt("requested 1 cpus not multiple cpus per core = 2")),
        (
            dual_socket_smt,
            FULL,
            2,
            "1,6",
            "",
            "0,2-5,7-11",
            "10",
            smt("not enough free physical CPUs: available physical CPUs = 8, requested CPUs = 10, CPUs per core = 2"),
        ),
        (dual_socket_smt, FULL, 2, "", "", "1-5,7-11", "10", Ok("1-5,7-11")),
        (dual_socket_smt, FULL, 2, "0,6", "", "1-5,7-11", "10", Ok("1-5,7-11")),
        (dual_socket_four_nodes, SOCKET, 1, "", "", "2,11,21-22", "2", Ok("2,11")),
        (dual_socket_four_nodes, &[], 1, "", "", "2,11,21-22", "2", Ok("2,21")),
    ];
    // The same with and without whole cores.
    for options in [&[][..], FULL] {
        table.extend([
            (single_socket_smt as fn() -> CpuTopology, options, 1, "", "2,3,6,7", "0-1,4-5", "2", Ok("1,5")),
            (dual_socket_smt, options, 1, "", "2", "0-1,3-11", "6", Ok("1,3,5,7,9,11")),
            (dual_socket_smt, options, 1, "", "1,5", "0,2-4,6-11", "6", Ok("2-4,8-10")),
            (dual_socket, options, 1, "", "", "0-1,3-7", "4", Ok("4-7")),
            (dual_socket, options, 1, "", "4-5", "0-1,3,6-7", "4", Ok("1,3,6-7")),
            (dual_socket_smt, options, 1, "", "2", "0-1,3-11", "8", Ok("1,3-5,7,9-11")),
            (single_socket_smt, options, 1, "", "", "0-7", "1/2", Ok("")),
            (single_socket_smt, options, 1, "", "", "0-7", "977m", Ok("")),
        ]);
    }
    for (topology, options, count, reserved, taken, default, wanted, given) in table {
        let mut manager = manager(topology(), options, count, reserved).unwrap();
        manager.state.set("other", "c", set(taken));
        manager.state.default = set(default);
        let hint = if default == "2,11,21-22" { Hint::new(NumaMask::new([0, 2]), true) } else { ANY };
        let found = allocate(&mut manager, &one(wanted), hint).map(|given| given[0].clone());
        assert_eq!(found.as_deref().map_err(Clone::clone), given, "{wanted} of {default} {options:?}");
    }
}

/// Upstream's table of hints: 2 sockets, 6 cores, 12 threads.
#[test]
fn hints() {
    let hint = |text: &[(&[u32], bool)]| -> Option<Vec<Hint>> {
        Some(
            text.iter().map(|(nodes, preferred)| Hint::new(NumaMask::new(nodes.iter().copied()), *preferred)).collect(),
        )
    };
    let table = [
        ("2", "", "2-11", hint(&[(&[0], true), (&[1], true), (&[0, 1], false)])),
        ("5", "", "2-11", hint(&[(&[1], true), (&[0, 1], false)])),
        ("7", "", "2-11", hint(&[(&[0, 1], true)])),
        ("11", "", "2-11", hint(&[])),
        ("2", "", "0,3", hint(&[(&[0, 1], false)])),
        ("5", "", "0-3", hint(&[])),
        ("2", "0,6", "", hint(&[(&[0], true), (&[0, 1], false)])),
        ("2", "3,9", "", hint(&[(&[1], true), (&[0, 1], false)])),
        ("11", "0-10", "", hint(&[(&[0, 1], true)])),
        ("2", "0,3,6,9", "", hint(&[])),
        ("11", "0,3,6,9", "", hint(&[])),
        ("500m", "", "0-11", None),
    ];
    for (wanted, has, default, hints) in table {
        let mut manager = manager(machines::dual_socket_in_turn(), &[], 1, "0").unwrap();
        manager.forget_reservation();
        manager.state.default = set(default);
        if !has.is_empty() {
            manager.state.set("pod", "c", set(has));
        }
        let pod = one(wanted);
        let found = manager.hints(&pod, &pod.containers[0]);
        assert_eq!(found.get("cpu").cloned().flatten(), hints, "{wanted} of {default}");
        assert_eq!(manager.pod_hints(&pod), found);
    }
}

/// align-by-socket, what is wanted, the free CPUs; the nodes of all hints, and of those that are preferred.
type SocketHints = (&'static str, &'static str, &'static str, &'static [&'static [u32]], &'static [&'static [u32]]);

/// Upstream's table of hints by options (`TestGetPodTopologyHintsWithPolicyOptions`): two CPUs of one node, and more than two nodes have.
#[test]
fn hints_of_whole_sockets() {
    const ALL: [&[u32]; 8] = [&[0], &[0, 1], &[0, 2], &[0, 3], &[0, 1, 2], &[0, 1, 3], &[0, 2, 3], &[0, 1, 2, 3]];
    const WIDE: [&[u32]; 2] = [&[0, 1, 2], &[0, 1, 2, 3]];
    let table: [SocketHints; 3] = [
        ("false", "2", "2-3,11", &ALL, &[&[0]]),
        ("true", "2", "2-3,11", &ALL, &[&[0], &[0, 1]]),
        ("true", "41", "0-28,40-57", &WIDE, &WIDE),
    ];
    for (by_socket, wanted, default, nodes, preferred) in table {
        let options = [("align-by-socket", by_socket)];
        let mut manager = manager(machines::dual_socket_four_nodes(), &options, 1, "0").unwrap();
        manager.forget_reservation();
        manager.state.default = set(default);
        let hints: Vec<Hint> = nodes
            .iter()
            .map(|nodes| Hint::new(NumaMask::new(nodes.iter().copied()), preferred.contains(nodes)))
            .collect();
        let pod = one(wanted);
        assert_eq!(manager.pod_hints(&pod).get("cpu"), Some(&Some(hints)), "{wanted} of {default}, {by_socket}");
        assert_eq!(manager.hints(&pod, &pod.containers[0]), manager.pod_hints(&pod));
    }
}

/// What is said of what a pod is given.
#[derive(Debug)]
enum Has {
    /// Caches that its CPUs are of.
    Caches(&'static str),
    /// CPUs of its first container.
    Cpus(&'static str),
}

/// Machine, options, reserved CPUs, those that others have, what containers want, what they are given.
type CacheCase = (
    fn() -> CpuTopology,
    &'static [(&'static str, &'static str)],
    &'static str,
    &'static str,
    &'static [&'static str],
    Has,
);

/// Upstream's table of caches that are kept whole (`TestStaticPolicyAddWithUncoreAlignment`).
#[test]
fn whole_caches() {
    use Has::{Caches, Cpus};
    use machines::{single_socket_of_64, socket_caches, split_caches, uneven_cores};
    const CACHE: (&str, &str) = ("prefer-align-cpus-by-uncorecache", "true");
    const FULL: &[(&str, &str)] = &[CACHE, ("full-pcpus-only", "true")];
    const ALONE: &[(&str, &str)] = &[CACHE];
    const STRICT: &[(&str, &str)] = &[CACHE, ("strict-cpu-reservation", "true")];
    // Sixteen threads of a cache, on two sockets and on one; eight of two kinds; four; eight on two sockets and on four NUMA nodes.
    let wide: fn() -> CpuTopology = || split_caches(24, 8, 12, 12, true);
    let large: fn() -> CpuTopology = || split_caches(16, 8, 16, 16, true);
    let small: fn() -> CpuTopology = || split_caches(16, 4, 16, 16, true);
    let large_single: fn() -> CpuTopology = || split_caches(16, 8, 16, 16, false);
    let four_caches: fn() -> CpuTopology = || split_caches(4, 8, 4, 4, false);
    let tiny: fn() -> CpuTopology = || split_caches(16, 4, 16, 16, false);
    let two_sockets: fn() -> CpuTopology = || split_caches(8, 8, 4, 4, false);
    let four_nodes: fn() -> CpuTopology = || split_caches(24, 8, 6, 12, false);
    // Of two caches, and these two as a whole.
    let (some, both) = ("0-1,96-97,192-193,288-289", "0-7,96-103,192-199,288-295");
    let table: Vec<CacheCase> = vec![
        (wide, FULL, some, both, &["16"], Caches("1")),
        (wide, FULL, some, both, &["12", "2"], Caches("1")),
        (wide, FULL, some, both, &["2", "12"], Caches("1")),
        (wide, FULL, some, both, &["10", "2", "2", "2"], Caches("1")),
        (wide, FULL, some, "", &["12", "2"], Caches("0-1")),
        (small, FULL, "0-1,64-65", "", &["8"], Caches("1")),
        (small, FULL, "0-1,64-65", "4-7,68-71", &["12"], Caches("0,2")),
        (tiny, FULL, "0-3", "8-15,20-23", &["12"], Caches("1,4,6")),
        (two_sockets, FULL, "0-1,32-33", "8-15", &["4", "2"], Caches("0")),
        (two_sockets, FULL, "0-1,32-33", "8-15", &["4", "4"], Caches("0,2")),
        (large, FULL, "0-1,128-129", "8-9,136-137", &["12", "12"], Caches("0-1")),
        (large, FULL, "0-1,128-129", "8-9,136-137", &["14", "14"], Caches("2-3")),
        (four_nodes, FULL, "0-3", "", &["48"], Caches("6-11")),
        (large_single, FULL, "0-3", "", &["8"], Caches("1")),
        (four_caches, FULL, "0-3", "8-11,16-19,24-27", &["8"], Caches("0-1")),
        (four_caches, FULL, "0-3", "", &["5"], Cpus("8-12")),
        (single_socket_of_64, FULL, "0-1", "6-9,12-15,18-19", &["12"], Cpus("2-5,10-11,16-17,20-23")),
        (uneven_cores, FULL, "0-1", "4-7", &["6"], Cpus("2-3,8-9,16-17")),
        (small, ALONE, "0-1,64-65", "", &["3"], Cpus("2-3,66")),
        (small, ALONE, "0-1,64", "", &["3"], Cpus("2,65-66")),
        (small, ALONE, "0-1,64", "", &["4"], Cpus("4-5,68-69")),
        (small, ALONE, "0-1,64", "", &["11"], Cpus("2,4-7,65-66,68-71")),
        (small, STRICT, "0-1,64-65", "", &["2"], Cpus("2,66")),
        (socket_caches, FULL, "0-1,120-121", "", &["6"], Cpus("2-4,122-124")),
        (socket_caches, ALONE, "0-1,120", "128-239", &["5"], Cpus("2-3,121-123")),
        (socket_caches, ALONE, "0-1,120", "128-239", &["4"], Cpus("2-3,122-123")),
        (socket_caches, STRICT, "0-1,120-121", "", &["4"], Cpus("2-3,122-123")),
    ];
    for (index, (machine, options, reserved, taken, wanted, has)) in table.into_iter().enumerate() {
        let (topology, number) = (machine(), i64::try_from(set(reserved).len()).unwrap());
        let left = topology.all().difference(&set(taken)).difference(&set(reserved));
        let mut manager = manager(topology.clone(), options, number, reserved).unwrap();
        manager.state.default = left;
        let app = |(name, cpus): (&&'static str, &&'static str)| (*name, Kind::App, *cpus, "1Gi", "");
        let containers: Vec<Container<'_>> = ["a", "b", "c", "d"].iter().zip(wanted).map(app).collect();
        let given = allocate(&mut manager, &request("pod", &containers), ANY).unwrap();
        match has {
            Cpus(cpus) => assert_eq!(given, [set(cpus).to_string()], "{index}"),
            Caches(caches) => {
                let all: CpuSet = given.iter().fold(CpuSet::default(), |all, own| all.union(&set(own)));
                let found: CpuSet = topology.groups(&all, Level::Uncore).into_iter().collect();
                assert_eq!(found, set(caches), "{index}: {given:?}");
            }
        }
    }
}

/// An init container's CPUs go to those after it; a sidecar's do not.
#[test]
fn init_containers() {
    use Kind::{App, Init, Sidecar};
    let given = |containers: &[Container<'_>]| {
        let mut manager = manager(machines::single_socket_smt(), &[], 1, "").unwrap();
        let pod = request("pod", containers);
        let given = allocate(&mut manager, &pod, ANY).unwrap();
        let default = manager.state.default.to_string();
        for container in &pod.containers {
            manager.remove("pod", &container.name);
        }
        assert_eq!(manager.state, CpuState { default: set("0-7"), ..CpuState::default() });
        (given, default)
    };
    let mem = "1Gi";
    let reused = given(&[("i", Init, "4", mem, ""), ("a", App, "2", mem, ""), ("b", App, "4", mem, "")]);
    assert_eq!(reused, (vec!["1-2,5-6".into(), "1,5".into(), "2-3,6-7".into()], "0,4".into()));
    let kept = given(&[("s", Sidecar, "2", mem, ""), ("i", Init, "2", mem, ""), ("a", App, "2", mem, "")]);
    assert_eq!(kept, (vec!["1,5".into(), "2,6".into(), "2,6".into()], "0,3-4,7".into()));
}

/// A pod's own CPUs are shared out among its containers, and come back with the last.
#[test]
fn pods_with_cpus_of_their_own() {
    use Kind::{App, Init, Sidecar};
    let mut manager = manager(machines::single_socket_smt(), &[], 1, "").unwrap();
    let containers = [
        ("i", Init, "", "", ""),
        ("s", Sidecar, "2", "1Gi", ""),
        ("j", Init, "2", "1Gi", ""),
        ("a", App, "1", "1Gi", ""),
        ("b", App, "", "", ""),
    ];
    let pod = PodRequest::of(&pod_with("pod", ("6", "8Gi"), &containers), GATES);
    manager.allocate_pod(&pod, ANY).unwrap();
    let has = |manager: &StaticCpu, name: &str| manager.state.get("pod", name).unwrap().to_string();
    assert_eq!(manager.state.pods["pod"], set("1-3,5-7"));
    let all: Vec<String> = ["i", "s", "j", "a", "b"].iter().map(|name| has(&manager, name)).collect();
    assert_eq!(all, ["1-3,5-7", "1,5", "2,6", "2", "3,6-7"]);
    let mut counted = Given { requests: 3, errors: 0, allocations: 5, exclusive: 3, shared: 2 };
    assert_eq!((manager.counts.pod, manager.counts.node), (counted, Given::default()));
    // Again, as after a restart: nothing more is given.
    let before = manager.state.clone();
    manager.allocate_pod(&pod, ANY).unwrap();
    assert_eq!(manager.state, before);
    for name in ["i", "s", "j", "a"] {
        manager.remove("pod", name);
        assert_eq!(manager.state.default, set("0,4"));
    }
    manager.remove("pod", "b");
    assert_eq!(manager.state, CpuState { default: set("0-7"), ..CpuState::default() });

    let none_left = [("a", App, "4", "1Gi", ""), ("b", App, "", "", "")];
    let pod = PodRequest::of(&pod_with("pod", ("4", "8Gi"), &none_left), GATES);
    let refusal = manager.allocate_pod(&pod, ANY).unwrap_err();
    assert_eq!(refusal.reason, "EmptyPodSharedPoolError");
    counted.errors = 1;
    assert_eq!(manager.counts.pod, counted, "nothing was asked of what it has");
    assert_eq!(
        refusal.message,
        "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers"
    );
    assert_eq!(manager.pod_hints(&pod).get("cpu"), Some(&Some(Vec::new())));
}

/// As upstream counts: each try of a container that is to have CPUs for itself, and what was given anew.
#[test]
fn what_containers_are_given_is_counted() {
    let mut manager = manager(machines::single_socket_smt(), &[], 1, "").unwrap();
    for (wanted, requests, errors, allocations) in [("500m", 0, 0, 0), ("4", 1, 0, 1), ("4", 2, 0, 1)] {
        assert!(allocate(&mut manager, &one(wanted), ANY).is_ok());
        let counted = Given { requests, errors, allocations, exclusive: allocations, shared: 0 };
        assert_eq!(manager.counts.node, counted, "{wanted}");
    }
    assert!(allocate(&mut manager, &request("other", &[("c", Kind::App, "4", "1Gi", "")]), ANY).is_err());
    let counted = Given { requests: 3, errors: 1, allocations: 1, exclusive: 1, shared: 0 };
    assert_eq!((manager.counts.node, manager.counts.pod), (counted, Given::default()));
}

#[test]
fn settings_that_are_refused() {
    let refused = |list: &[(&str, &str)], gates: Gates, policy, topology: CpuTopology, reservation: Reservation| {
        StaticCpu::new(topology, &options(list), &reservation, policy, gates).unwrap_err().to_string()
    };
    let one = || Reservation { amount: Some(Quantity::from_i64(1)), ..Reservation::default() };
    let options =
        |list: &[(&str, &str)], gates| refused(list, gates, Policy::None, machines::single_socket_smt(), one());
    let off = Gates::default();
    let on = GATES;
    let table = [
        (options(&[("x", "true")], on), "unknown CPU Manager Policy option: \"x\""),
        (
            options(&[("align-by-socket", "true")], off),
            "CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided",
        ),
        (
            options(&[("distribute-cpus-across-numa", "true")], off),
            "CPU Manager Policy Beta-level Options not enabled, but option \"distribute-cpus-across-numa\" provided",
        ),
        (
            options(&[("full-pcpus-only", "maybe")], off),
            "bad value for option \"full-pcpus-only\": strconv.ParseBool: parsing \"maybe\": invalid syntax",
        ),
        (
            options(&[("full-pcpus-only", "true"), ("distribute-cpus-across-cores", "true")], on),
            "static policy options full-pcpus-only and distribute-cpus-across-cores can not be used at the same time",
        ),
        (
            options(&[("prefer-align-cpus-by-uncorecache", "1"), ("distribute-cpus-across-numa", "t")], on),
            "static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be used at the same time",
        ),
        (
            refused(&[("align-by-socket", "true")], on, Policy::SingleNumaNode, machines::single_socket_smt(), one()),
            "Topolgy manager single-numa-node policy is incompatible with CPUManager align-by-socket policy option",
        ),
        (
            refused(&[("align-by-socket", "true")], on, Policy::None, machines::uncore_dual_socket(), one()),
            "Align by socket is not compatible with hardware where number of sockets are more than number of NUMA",
        ),
    ];
    for (found, wanted) in table {
        assert_eq!(found, format!("new static policy error: {wanted}"));
    }
    let reservation = |amount: Option<i64>, cpus: &str| {
        let reservation = Reservation { amount: amount.map(Quantity::from_milli), cpus: set(cpus) };
        refused(&[], off, Policy::None, machines::single_socket_smt(), reservation)
    };
    let table = [
        (reservation(None, ""), "[cpumanager] unable to determine reserved CPU resources for static policy"),
        (
            reservation(Some(0), ""),
            "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero",
        ),
        (
            reservation(Some(1500), "0-2"),
            "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of 0-2 did not equal 2)",
        ),
        (
            reservation(Some(9000), ""),
            "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of  did not equal 9)",
        ),
        (
            reservation(Some(1000), "8"),
            "new static policy error: [cpumanager] unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: 8",
        ),
    ];
    for (found, wanted) in table {
        assert_eq!(found, wanted);
    }
}

/// Upstream's table of states at the start (`TestStaticPolicyStart`).
#[test]
fn states_that_are_refused() {
    let strict: &[(&str, &str)] = &[("strict-cpu-reservation", "true")];
    let table = [
        (&[][..], "", "", Ok("0-11")),
        (strict, "", "", Ok("1-5,7-11")),
        (&[], "0-11", "", Ok("0-11")),
        (&[], "0-1,3-11", "2", Ok("0-1,3-11")),
        (strict, "1-5,7-11", "", Ok("1-5,7-11")),
        (&[], "", "0", Err("default cpuset cannot be empty")),
        (&[], "0-1", "", Err("not all reserved cpus: \"0,6\" are present in defaultCpuSet: \"0-1\"")),
        (strict, "0-11", "", Err("some of strictly reserved cpus: \"0,6\" are present in defaultCpuSet: \"0-11\"")),
        (&[], "0-11", "2", Err("pod: pod, container: c cpuset: \"2\" overlaps with default cpuset \"0-11\"")),
        (&[], "0-9", "", Err("current set of available CPUs \"0-11\" doesn't match with CPUs in state \"0-9\"")),
        (&[], "0-12", "", Err("current set of available CPUs \"0-11\" doesn't match with CPUs in state \"0-12\"")),
    ];
    for (options, default, has, wanted) in table {
        let mut manager = manager(machines::dual_socket_smt(), options, 2, "").unwrap();
        let mut state = CpuState { default: set(default), ..CpuState::default() };
        if !has.is_empty() {
            state.set("pod", "c", set(has));
        }
        let found = manager.restore(state).map(|()| manager.state.default.to_string()).map_err(|e| e.to_string());
        assert_eq!(found.as_deref().map_err(String::as_str), wanted, "{default}");
    }
}
