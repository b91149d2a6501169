//! Lives of nodes: random pods are taken in, run and end, and the managers begin anew from their files, on recorded machines and under
//! each policy, scope and set of options. No CPU is two containers', hints are honoured, nothing leaks, and files say all that there is.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_types::Quantity;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::pods::{self, Container};
use crate::request::Kind;
use crate::topology::{Level, machines, recorded};

/// Pods taken in and ended on each machine; `BULKHEAD_ADMISSIONS` sets another number.
const ADMISSIONS: usize = 600;
/// Of the steps of a life those are admissions and ends, on average.
const OF_A_LIFE: usize = 48;
const GIB: u64 = 1 << 30;
const FULL: &str = "full-pcpus-only";
const ACROSS_NUMA: &str = "distribute-cpus-across-numa";
const BY_SOCKET: &str = "align-by-socket";
const ACROSS_CORES: &str = "distribute-cpus-across-cores";
const STRICT: &str = "strict-cpu-reservation";
const BY_UNCORE: &str = "prefer-align-cpus-by-uncorecache";

#[derive(Debug, Clone)]
struct Setup {
    policy: &'static str,
    scope: &'static str,
    cpu_options: Vec<&'static str>,
    closest: bool,
}

impl Setup {
    fn has(&self, option: &str) -> bool {
        self.cpu_options.contains(&option)
    }

    /// With the gates of the options' maturity and no others.
    fn settings(&self, place: &Place) -> Settings {
        let on = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), "true".to_owned())).collect();
        let gates = Gates {
            cpu_alpha_options: self.has(BY_SOCKET) || self.has(ACROSS_CORES),
            cpu_beta_options: self.has(ACROSS_NUMA),
            pod_level: false,
            no_quota: true,
            extended_by_claims: true,
        };
        // With half a core laid aside CPUs of a hint's nodes may be odd in number, and upstream's rule of whole cores does not hold there.
        let cpus = if self.has(FULL) { place.threads } else { 1 };
        let mut settings = Settings {
            cpu_policy: "static".into(),
            cpu_options: on(&self.cpu_options),
            cpu_reservation: Reservation { cpus: CpuSet::default(), amount: Some(Quantity::from_i64(cpus as i64)) },
            topology_policy: self.policy.into(),
            topology_scope: self.scope.into(),
            topology_options: if self.closest { on(&["prefer-closest-numa-nodes"]) } else { BTreeMap::new() },
            gates,
            ..Settings::default()
        };
        if let Some((first, _)) = place.memory() {
            let memory = Amounts::from([("memory".to_owned(), Quantity::from_bytes(1 << 30))]);
            settings.memory_policy = "Static".into();
            settings.reserved_memory = vec![(first, memory.clone())];
            settings.memory_reservation = memory;
        }
        settings
    }
}

/// A machine, and what pods ask of it.
#[derive(Debug)]
struct Place {
    machine: Machine,
    topology: CpuTopology,
    /// Threads of each core; 1 where cores differ in that, whose average upstream rounds down to it.
    threads: usize,
    /// Cores do not differ in that: whole ones can be promised.
    even: bool,
    /// The most CPUs that a container asks for: of one node more than there are.
    most: usize,
}

impl Place {
    fn new(machine: Machine) -> Self {
        let topology = CpuTopology::of(&machine);
        let cores = topology.groups(topology.all(), Level::Core);
        let sizes: BTreeSet<usize> = cores.iter().map(|core| topology.group(Level::Core, *core).len()).collect();
        let even = sizes.len() == 1;
        let threads = sizes.first().copied().filter(|_| even).unwrap_or(1);
        let most = (topology.per_group(Level::Numa) * 3 / 2).max(topology.all().len() / 3);
        Place { machine, topology, threads, even, most }
    }

    /// The first node and the least memory that a node has; None where the machine tells of no memory.
    fn memory(&self) -> Option<(u32, u64)> {
        let least = self.machine.nodes.iter().map(|node| node.memory).filter(|bytes| *bytes > 0).min()?;
        Some((self.machine.nodes.first()?.id, least))
    }

    /// All that there are to be set on this machine.
    fn setups(&self) -> Vec<Setup> {
        let mut all = Vec::new();
        for policy in ["none", "best-effort", "restricted", "single-numa-node"] {
            for scope in ["container", "pod"] {
                for cpu_options in sets_of_options() {
                    for closest in [false, true] {
                        let setup = Setup { policy, scope, cpu_options: cpu_options.clone(), closest };
                        if start(&setup.settings(self), &self.machine, &Found::default()).is_ok() {
                            all.push(setup);
                        }
                    }
                }
            }
        }
        all
    }

    fn nodes(&self, cpus: &CpuSet) -> BTreeSet<u32> {
        self.topology.groups(cpus, Level::Numa).into_iter().collect()
    }

    /// As few nodes as have so many CPUs.
    fn fewest_nodes(&self, cpus: usize) -> usize {
        let all = self.topology.groups(self.topology.all(), Level::Numa);
        let mut sizes: Vec<usize> = all.iter().map(|node| self.topology.group(Level::Numa, *node).len()).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let sums = sizes.iter().scan(0, |sum, size| {
            *sum += size;
            Some(*sum)
        });
        sums.take_while(|sum| *sum < cpus).count() + 1
    }
}

/// Each set that upstream takes.
fn sets_of_options() -> Vec<Vec<&'static str>> {
    let names = [FULL, ACROSS_NUMA, BY_SOCKET, ACROSS_CORES, STRICT, BY_UNCORE];
    let apart =
        [(FULL, ACROSS_CORES), (ACROSS_NUMA, ACROSS_CORES), (BY_UNCORE, ACROSS_CORES), (BY_UNCORE, ACROSS_NUMA)];
    let sets = (0..1_u32 << names.len()).map(|bits| -> Vec<&str> {
        (0..).zip(names).filter(|(at, _)| bits & (1 << at) != 0).map(|(_, name)| name).collect()
    });
    sets.filter(|set| !apart.iter().any(|(one, other)| set.contains(one) && set.contains(other))).collect()
}

fn start(settings: &Settings, machine: &Machine, found: &Found) -> Result<ContainerManager, StartError> {
    ContainerManager::start(settings, machine, found, &BTreeMap::new())
}

/// What the files would hold.
fn files(manager: &ContainerManager) -> Found {
    let mut fresh = manager.clone();
    fresh.written.clear();
    let mut found = Found::default();
    for file in fresh.state_to_write().unwrap() {
        match file.name {
            checkpoint::cpu::FILE => found.cpu = Some(file.content),
            _ => found.memory = Some(file.content),
        }
    }
    found
}

/// A container: its kind; a share of the CPUs that one may ask for, of 255; eighths of a node's memory; huge pages.
type Wish = (Kind, u8, u8, u8);

/// One step of a node's life.
#[derive(Debug, Clone)]
enum Step {
    Admit {
        uid: u8,
        wishes: Vec<Wish>,
    },
    End(u8),
    /// A container after the other is made and started.
    Run(u8),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kind = prop_oneof![2 => Just(Kind::App), 1 => Just(Kind::Init), 1 => Just(Kind::Sidecar)];
    let wish = (kind, any::<u8>(), 1..10_u8, 0..3_u8);
    let step = prop_oneof![
        6 => (0..12_u8, proptest::collection::vec(wish, 1..4)).prop_map(|(uid, mut wishes)| {
            // Each pod has an app container: of what init containers alone ask for, the pod as a whole asks for nothing.
            wishes.iter_mut().rev().take(1).for_each(|last| last.0 = Kind::App);
            Step::Admit { uid, wishes }
        }),
        4 => (0..12_u8).prop_map(Step::End),
        2 => (0..12_u8).prop_map(Step::Run),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..2 * OF_A_LIFE * 13 / 10)
}

fn build(place: &Place, uid: u8, wishes: &[Wish]) -> Pod {
    let texts: Vec<(String, Kind, String, String, String)> = wishes
        .iter()
        .enumerate()
        .map(|(at, (kind, share, memory, huge))| {
            // Few are large, and of four three ask for whole cores.
            let share = usize::from(*share);
            let mut cpus = share * share * place.most / (255 * 255);
            if share % 4 != 0 {
                cpus = cpus.next_multiple_of(place.threads);
            }
            let cpus = if cpus == 0 { "500m".to_owned() } else { cpus.to_string() };
            let eighth = place.memory().map_or(GIB, |(_, least)| least / 8);
            let huge = if *huge == 0 { String::new() } else { format!("{huge}Gi") };
            (format!("c{at}"), *kind, cpus, format!("{}Mi", (eighth >> 20) * u64::from(*memory)), huge)
        })
        .collect();
    let containers: Vec<Container<'_>> =
        texts.iter().map(|(n, kind, c, m, h)| (n.as_str(), *kind, c.as_str(), m.as_str(), h.as_str())).collect();
    pods::pod(&uid_of(uid), &containers)
}

fn uid_of(pod: u8) -> String {
    format!("pod-{pod}")
}

struct Life<'a> {
    place: &'a Place,
    setup: &'a Setup,
    settings: Settings,
    manager: ContainerManager,
    alive: BTreeMap<u8, Pod>,
    running: BTreeSet<u8>,
}

impl Life<'_> {
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Admit { uid, wishes } => match self.alive.get(uid).cloned() {
                // As after a restart: it has what it has.
                Some(_) if self.running.contains(uid) => {}
                Some(pod) => {
                    let before = self.manager.state_to_write();
                    let again = self.manager.admit(&pod, &mut []);
                    // With align-by-socket CPUs may lie on another node of the socket than the memory, and hints for what is there
                    // do not meet, with upstream neither.
                    prop_assert!(again.is_ok() || self.setup.has(BY_SOCKET), "{again:?}");
                    prop_assert_eq!(self.manager.state_to_write(), before);
                }
                None => {
                    let pod = build(self.place, *uid, wishes);
                    let before = self.manager.state_to_write();
                    match self.manager.admit(&pod, &mut []) {
                        Err(_) => prop_assert_eq!(self.manager.state_to_write(), before),
                        Ok(given) => {
                            self.honours(&pod, &given)?;
                            self.alive.insert(*uid, pod);
                        }
                    }
                }
            },
            Step::Run(uid) => {
                let Some(pod) = self.alive.get(uid) else { return Ok(()) };
                for container in PodRequest::of(pod, self.settings.gates).containers {
                    let made = Running { uid: uid_of(*uid), name: container.name.clone(), id: container.name };
                    let cpus = self.manager.cpuset_of(&made.uid, &made.name);
                    self.manager.created(pod, &made, cpus);
                }
                self.running.insert(*uid);
            }
            Step::End(uid) => {
                self.alive.remove(uid);
                self.running.remove(uid);
                let alive: BTreeSet<String> = self.alive.keys().copied().map(uid_of).collect();
                self.manager.remove_stale(|pod, _| alive.contains(pod));
            }
            Step::Restart => self.restart()?,
        }
        self.check()
    }

    /// What the files say is all that there is.
    fn restart(&mut self) -> Result<(), TestCaseError> {
        let found = files(&self.manager);
        let again = start(&self.settings, &self.place.machine, &found);
        let again = again.map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(again.cpu().map(|cpu| &cpu.state), self.manager.cpu().map(|cpu| &cpu.state));
        let memory = |manager: &ContainerManager| manager.memory().map(|memory| memory.state.clone());
        prop_assert_eq!(memory(&again), memory(&self.manager));
        prop_assert_eq!(again.state_to_write(), Ok(Vec::new()));
        self.manager = again;
        Ok(())
    }

    /// What was given is what the topology manager's policy and the options promise.
    fn honours(&self, pod: &Pod, given: &Allocations) -> Result<(), TestCaseError> {
        let (place, setup) = (self.place, self.setup);
        let request = PodRequest::of(pod, self.settings.gates);
        // What belongs together, and how many CPUs it asks for at a time.
        let groups: Vec<(usize, Vec<&Allocation>)> = match setup.scope {
            "pod" => vec![(request.cpus as usize, given.values().collect())],
            _ => request.containers.iter().map(|one| (one.cpus as usize, vec![&given[&one.name]])).collect(),
        };
        for (wanted, allocations) in groups {
            let cpus = allocations.iter().fold(CpuSet::default(), |sum, one| sum.union(&one.cpus));
            let nodes = place.nodes(&cpus);
            let blocks = || allocations.iter().flat_map(|one| &one.memory);
            let fewest = place.fewest_nodes(wanted);
            match setup.policy {
                "single-numa-node" => {
                    let memory = blocks().flat_map(|block| block.nodes.iter().copied());
                    let all: BTreeSet<u32> = memory.chain(nodes.iter().copied()).collect();
                    prop_assert!(all.len() <= 1, "{wanted} CPUs: {given:?}");
                }
                "restricted" if setup.has(BY_SOCKET) => {
                    let sockets = place.topology.groups(&cpus, Level::Socket).len();
                    prop_assert!(sockets <= fewest, "{wanted} CPUs: {given:?}");
                }
                "restricted" => {
                    prop_assert!(nodes.len() <= fewest, "{wanted} CPUs: {given:?}");
                    for block in blocks() {
                        prop_assert!(nodes.iter().all(|node| block.nodes.contains(node)), "{wanted} CPUs: {given:?}");
                    }
                }
                _ => {}
            }
        }
        for allocation in given.values().filter(|_| setup.has(FULL) && place.even) {
            let cores = place.topology.groups(&allocation.cpus, Level::Core);
            prop_assert_eq!(cores.len() * place.threads, allocation.cpus.len());
        }
        Ok(())
    }

    /// No CPU is two pods' nor two containers' that run at a time, none of the reserved is anybody's, every CPU is somewhere; what is
    /// given of memory is what blocks say, and a node gives alone or with the same others.
    fn check(&self) -> Result<(), TestCaseError> {
        let cpu = self.manager.cpu().unwrap();
        let mut seen = cpu.state.default.clone();
        for (uid, containers) in &cpu.state.entries {
            let own = containers.values().fold(CpuSet::default(), |sum, cpus| sum.union(cpus));
            prop_assert!(seen.intersection(&own).is_empty(), "{uid} has {own} of others");
            prop_assert!(own.is_subset(&cpu.allocatable()));
            seen = seen.union(&own);
        }
        let pool = if self.setup.has(STRICT) { cpu.allocatable() } else { cpu.topology().all().clone() };
        prop_assert_eq!(seen, pool);
        for pod in self.alive.values() {
            let request = PodRequest::of(pod, self.settings.gates);
            let of = |name: &str| self.manager.allocation(&request.uid, name).cpus;
            for (at, container) in request.containers.iter().enumerate() {
                prop_assert_eq!(of(&container.name).len(), container.cpus as usize);
                // Beside an init container run the sidecars before it.
                let before = request.containers[..at].iter().filter(|other| other.kind != Kind::Init);
                for other in before {
                    let both = of(&container.name).intersection(&of(&other.name));
                    prop_assert!(both.is_empty(), "{both} are of {} and {}", container.name, other.name);
                }
            }
        }
        self.manager.memory().map_or(Ok(()), |memory| self.check_memory(&memory.state))
    }

    fn check_memory(&self, memory: &MemoryState) -> Result<(), TestCaseError> {
        let blocks = || memory.entries.values().flat_map(|of| of.values()).flatten();
        let kinds: BTreeSet<&String> = memory.machine.values().flat_map(|node| node.memory_map.keys()).collect();
        for kind in kinds {
            let tables = memory.machine.values().filter_map(|node| node.memory_map.get(kind));
            let given: u64 = tables.map(|table| table.reserved).sum();
            let said: u64 = blocks().filter(|block| block.kind == *kind).map(|block| block.size).sum();
            prop_assert_eq!(given, said, "{}", kind);
        }
        for (id, node) in &memory.machine {
            let own: Vec<&Block> = blocks().filter(|block| block.nodes.contains(id)).collect();
            prop_assert_eq!(usize::try_from(node.number_of_assignments), Ok(own.len()));
            for block in own {
                prop_assert!(block.nodes == node.cells || (block.nodes.len() == 1 && node.cells.len() == 1));
            }
            for table in node.memory_map.values() {
                prop_assert_eq!(table.free + table.reserved, table.allocatable);
            }
        }
        Ok(())
    }
}

fn live(place: &Place, setup: &Setup, steps: &[Step]) -> Result<(), TestCaseError> {
    let settings = setup.settings(place);
    let manager = start(&settings, &place.machine, &Found::default()).unwrap();
    let empty = files(&manager);
    let mut life = Life { place, setup, settings, manager, alive: BTreeMap::new(), running: BTreeSet::new() };
    for step in steps {
        life.step(step)?;
    }
    life.restart()?;
    life.manager.remove_stale(|_, _| false);
    let end = files(&life.manager);
    prop_assert_eq!(end.cpu, empty.cpu);
    prop_assert_eq!(end.memory, empty.memory);
    Ok(())
}

/// So many lives as the admissions need, under one setup after the other: all of them where there are enough, else an even choice.
fn lives(machine: Machine) {
    let admissions = std::env::var("BULKHEAD_ADMISSIONS").ok();
    let admissions = admissions.map_or(ADMISSIONS, |text| text.parse().expect("BULKHEAD_ADMISSIONS is a number"));
    let place = Place::new(machine);
    let setups = place.setups();
    let mut runner =
        TestRunner::new(Config { cases: 1, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() });
    let lives = admissions.div_ceil(OF_A_LIFE);
    let first = runner.rng().next_u32() as usize;
    for life in 0..lives {
        let setup = &setups[(first + life * setups.len() / lives) % setups.len()];
        if let Err(error) = runner.run(&steps(), |steps| live(&place, setup, &steps)) {
            panic!("{setup:?}: {error}");
        }
    }
}

/// A test for each machine, so that they run beside each other.
macro_rules! lives {
    ($($test:ident: $machine:expr,)*) => { $(#[test] fn $test() { lives($machine); })* };
}

lives! {
    one_node_cores_of_two_kinds: recorded::named("1-node-cores-of-two-kinds").machine(),
    one_node_4_sockets_2_threads_some_off: recorded::named("1-node-4-sockets-2-threads-some-off").machine(),
    one_node_of_2_cpu_0_off: recorded::named("1-node-of-2-cpu-0-off").machine(),
    two_nodes_2_threads: recorded::named("2-nodes-2-threads").machine(),
    two_nodes_4_threads_6_nodes_of_memory: recorded::named("2-nodes-4-threads-6-nodes-of-memory").machine(),
    four_nodes_2_threads_cache_of_2_nodes: recorded::named("4-nodes-2-threads-cache-of-2-nodes").machine(),
    four_nodes_1_thread_uneven_distances: recorded::named("4-nodes-1-thread-uneven-distances").machine(),
    four_nodes_of_4_sockets_split_l3: recorded::named("4-nodes-of-4-sockets-split-l3").machine(),
    eight_nodes_2_a_socket: recorded::named("8-nodes-2-a-socket").machine(),
    eight_nodes_4_threads_gaps_in_numbers: recorded::named("8-nodes-4-threads-gaps-in-numbers").machine(),
    eight_nodes_numbers_above_63: recorded::named("8-nodes-numbers-above-63").machine(),
    two_sockets_2_threads_split_l3: recorded::named("2-sockets-2-threads-split-l3").machine(),
    two_sockets_1_thread_split_l3: recorded::named("2-sockets-1-thread-split-l3").machine(),
    one_socket_2_threads_uneven_l3: recorded::named("1-socket-2-threads-uneven-l3").machine(),
    // With huge pages of 1 GiB.
    made_up_1_node: machines::machine(1, 12, 0, 24),
    made_up_2_nodes_split_l3: machines::machine(2, 8, 2, 24),
    made_up_4_nodes_split_l3: machines::machine(4, 6, 3, 24),
    made_up_8_nodes: machines::machine(8, 3, 0, 24),
}

/// Each machine is lived on, under each policy and scope and with each option.
#[test]
fn nothing_is_left_out() {
    for recorded in recorded::all() {
        let place = Place::new(recorded.machine());
        let setups = place.setups();
        let above = place.machine.nodes.iter().any(|node| node.id > 63);
        let policies: BTreeSet<&str> = setups.iter().map(|setup| setup.policy).collect();
        let wanted = if above { vec!["none"] } else { vec!["best-effort", "none", "restricted", "single-numa-node"] };
        assert_eq!(policies.into_iter().collect::<Vec<_>>(), wanted, "{}", recorded.name);
        for option in [FULL, ACROSS_NUMA, ACROSS_CORES, STRICT, BY_UNCORE] {
            assert!(setups.iter().any(|setup| setup.has(option)), "{}: {option}", recorded.name);
        }
        // Refused where a node holds several sockets.
        let more_sockets = place.topology.count(Level::Socket) > place.topology.count(Level::Numa);
        assert_eq!(setups.iter().any(|setup| setup.has(BY_SOCKET)), !more_sockets, "{}", recorded.name);
    }
}
