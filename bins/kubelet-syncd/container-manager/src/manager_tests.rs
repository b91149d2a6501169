use std::collections::{BTreeMap, BTreeSet};

use bulkhead_types::Quantity;

use super::*;
use crate::pods::{pod, pod_with};
use crate::request::Kind;
use crate::topology::machines::{machine, set};

const GIB: i64 = 1 << 30;

fn settings(policy: &str, scope: &str, options: &[(&str, &str)]) -> Settings {
    let memory = Amounts::from([("memory".to_owned(), Quantity::from_bytes(GIB))]);
    Settings {
        cpu_policy: "static".into(),
        cpu_options: options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        cpu_reservation: Reservation { cpus: CpuSet::default(), amount: Some(Quantity::from_i64(1)) },
        memory_policy: "Static".into(),
        reserved_memory: vec![(0, memory.clone())],
        memory_reservation: memory,
        topology_policy: policy.into(),
        topology_scope: scope.into(),
        topology_options: BTreeMap::new(),
        gates: Gates {
            cpu_alpha_options: true,
            cpu_beta_options: true,
            pod_level: false,
            no_quota: true,
            extended_by_claims: true,
        },
        root: "/var/lib/kubelet".into(),
    }
}

fn start(settings: &Settings, machine: &Machine, found: &Found) -> Result<ContainerManager, StartError> {
    ContainerManager::start(settings, machine, found, &BTreeMap::new())
}

fn files(manager: &ContainerManager) -> Found {
    let mut found = Found::default();
    for file in manager.state_to_write().unwrap() {
        match file.name {
            "cpu_manager_state" => found.cpu = Some(file.content),
            _ => found.memory = Some(file.content),
        }
    }
    found
}

#[test]
fn a_pod_is_aligned_or_refused() {
    let machine = machine(2, 4, 0, 20);
    let mut manager = start(&settings("single-numa-node", "container", &[]), &machine, &Found::default()).unwrap();
    let given = manager.admit(&pod("a", &[("c", Kind::App, "4", "8Gi", "")]), &mut []).unwrap();
    // Node 0 has 7 CPUs that are not reserved and node 1 has 8.
    assert_eq!((given["c"].cpus.to_string(), given["c"].memory[0].nodes.clone()), ("1-2,9-10".to_owned(), vec![0]));
    assert_eq!((manager.cpuset_of("a", "c"), manager.memory_nodes_of("a", "c")), (set("1-2,9-10"), "0".to_owned()));
    assert_eq!(manager.cpuset_of("a", "other"), set("0,3-8,11-15"));
    // 3 CPUs are free on node 0, 8 on node 1.
    let nine = pod("b", &[("c", Kind::App, "9", "1Gi", "")]);
    let refusal = manager.admit(&nine, &mut []).unwrap_err();
    assert_eq!(refusal, Refusal::topology());
    assert_eq!(refusal.message, "Resources cannot be allocated with Topology locality");
    // Of two containers that fit by themselves the second is too much: nothing is given at all.
    let before = files(&manager).cpu;
    let both = pod("b", &[("c", Kind::App, "8", "1Gi", ""), ("d", Kind::App, "8", "1Gi", "")]);
    assert!(manager.admit(&both, &mut []).is_err());
    assert_eq!(files(&manager).cpu, before);
    // Twelve CPUs on two nodes are no matter to best-effort.
    let mut manager = start(&settings("best-effort", "pod", &[]), &machine, &Found::default()).unwrap();
    assert_eq!(manager.admit(&nine, &mut []).unwrap()["c"].cpus.len(), 9);
}

/// In scope `pod` all containers are on the pod's node; in scope `container` each is on its own.
#[test]
fn scopes() {
    let machine = machine(2, 4, 0, 20);
    let two = pod("a", &[("c", Kind::App, "4", "1Gi", ""), ("d", Kind::App, "4", "1Gi", "")]);
    let nodes = |scope: &str| {
        let mut manager = start(&settings("restricted", scope, &[]), &machine, &Found::default()).unwrap();
        let given = manager.admit(&two, &mut []).unwrap();
        ["c", "d"].map(|name| given[name].memory[0].nodes.clone())
    };
    assert_eq!(nodes("container"), [vec![0], vec![1]]);
    assert_eq!(nodes("pod"), [vec![1], vec![1]]);
}

/// A restart with the files goes on where it was; upstream's kubelet could read them in between.
#[test]
fn restarts() {
    let machine = machine(2, 4, 0, 20);
    let settings = settings("restricted", "container", &[("full-pcpus-only", "true")]);
    let mut manager = start(&settings, &machine, &Found::default()).unwrap();
    let whole = pod("a", &[("i", Kind::Init, "4", "2Gi", ""), ("c", Kind::App, "6", "2Gi", "1Gi")]);
    let given = manager.admit(&whole, &mut []).unwrap();
    let found = files(&manager);
    for file in manager.state_to_write().unwrap() {
        manager.written(file);
    }
    assert_eq!(manager.state_to_write(), Ok(Vec::new()));
    let mut again = start(&settings, &machine, &found).unwrap();
    assert_eq!(again.state_to_write(), Ok(Vec::new()));
    assert_eq!(again.admit(&whole, &mut []).unwrap(), given);
    assert_eq!(again.state_to_write(), Ok(Vec::new()));
    // Each container is told once after that.
    let running = |name: &str| Running { uid: "a".into(), name: name.into(), id: format!("{name}-id") };
    let plan = again.plan(&[running("c")]);
    assert_eq!(plan, [CpuUpdate { container: running("c"), cpus: given["c"].cpus.clone() }]);
    again.updated(plan[0].clone());
    assert_eq!(again.plan(&[running("c")]), []);
    // The pod is gone, and others know.
    again.remove_stale(|_, _| false);
    assert_eq!(again.cpuset_of("x", "y"), set("0-15"));
    assert_eq!(again.plan(&[running("c")])[0].cpus, set("0-15"));
}

#[test]
fn shared_cpus_follow() {
    let machine = machine(1, 4, 0, 20);
    let mut manager = start(&settings("none", "container", &[]), &machine, &Found::default()).unwrap();
    let shared = Running { uid: "s".into(), name: "c".into(), id: "1".into() };
    let burstable = pod("s", &[("c", Kind::App, "1/2", "1Gi", "")]);
    let given = manager.admit(&burstable, &mut []).unwrap();
    assert_eq!(given["c"], Allocation::default());
    manager.created(&burstable, &shared, manager.cpuset_of("s", "c"));
    assert_eq!(manager.plan(std::slice::from_ref(&shared)), []);
    manager.admit(&pod("a", &[("c", Kind::App, "2", "1Gi", "")]), &mut []).unwrap();
    let plan = manager.plan(std::slice::from_ref(&shared));
    assert_eq!(plan[0].cpus, set("0,2-4,6-7"));
    manager.updated(plan[0].clone());
    manager.remove("a", "c");
    assert_eq!(manager.plan(std::slice::from_ref(&shared))[0].cpus, set("0-7"));
    manager.retain(|uid| uid != "s", &[]);
    assert!(manager.applied.is_empty());
}

/// The runtime is told a container's CPUs when the container is made, and again when they are others: upstream tells those who share
/// theirs once more at the first look.
#[test]
fn who_is_told_of_their_cpus() {
    let machine = machine(1, 4, 0, 20);
    let mut manager = start(&settings("none", "container", &[]), &machine, &Found::default()).unwrap();
    let of_pod = pod("a", &[("own", Kind::App, "2", "1Gi", ""), ("shared", Kind::App, "1/2", "1Gi", "")]);
    manager.admit(&of_pod, &mut []).unwrap();
    let one = |name: &str, id: &str| Running { uid: "a".into(), name: name.into(), id: id.into() };
    enum Step {
        Made(&'static str),
        MadeWith(&'static str, &'static str),
        Told,
        Known(bool),
    }
    use Step::*;
    for name in ["own", "shared"] {
        let rows: &[(&str, &[Step], bool)] = &[
            ("made by another process", &[], true),
            ("and told", &[Told], false),
            ("made here", &[Made("1")], false),
            ("looked at before it is seen to run", &[Made("1"), Known(true)], false),
            ("made anew", &[Made("0"), Made("1")], false),
            ("made for other CPUs", &[MadeWith("1", "0")], true),
            ("another one of the name was made", &[Made("1"), Made("2")], false),
            ("and it does not run", &[Made("1"), Made("2"), Known(true)], true),
            ("its pod was forgotten meanwhile", &[Made("1"), Known(false)], true),
        ];
        for (what, steps, told) in rows {
            let mut manager = manager.clone();
            let cpus = manager.cpuset_of("a", name);
            for step in *steps {
                match step {
                    Made(id) => manager.created(&of_pod, &one(name, id), cpus.clone()),
                    MadeWith(id, cpus) => manager.created(&of_pod, &one(name, id), set(cpus)),
                    Told => manager.updated(CpuUpdate { container: one(name, "1"), cpus: cpus.clone() }),
                    Known(known) => manager.retain(|_| *known, &[]),
                }
            }
            let expected = told.then(|| CpuUpdate { container: one(name, "1"), cpus: cpus.clone() });
            assert_eq!(manager.plan(&[one(name, "1")]), Vec::from_iter(expected), "{name}: {what}");
        }
    }
}

/// A container that could not be ended runs on beside the next of its name: each is told once.
#[test]
fn two_of_one_name_are_told_once_each() {
    let machine = machine(1, 4, 0, 20);
    let mut manager = start(&settings("none", "container", &[]), &machine, &Found::default()).unwrap();
    manager.admit(&pod("a", &[("c", Kind::App, "1/2", "1Gi", "")]), &mut []).unwrap();
    let both = ["1", "2"].map(|id| Running { uid: "a".into(), name: "c".into(), id: id.into() });
    for update in manager.plan(&both) {
        manager.updated(update);
    }
    manager.retain(|_| true, &both);
    assert_eq!(manager.plan(&both), []);
    manager.retain(|_| true, &both[1..]);
    assert_eq!(manager.plan(&both[1..]), []);
    assert_eq!(manager.plan(&both).len(), 1, "the older one is forgotten");
}

/// The memory of an init container that has ended is free once the next is made.
#[test]
fn ended_init_containers() {
    let machine = machine(1, 4, 0, 20);
    let mut manager = start(&settings("none", "container", &[]), &machine, &Found::default()).unwrap();
    let pod = pod("a", &[("i", Kind::Init, "1", "6Gi", ""), ("c", Kind::App, "1", "2Gi", "")]);
    manager.admit(&pod, &mut []).unwrap();
    let given = |m: &ContainerManager| m.memory().unwrap().state.machine[&0].memory_map["memory"].reserved >> 30;
    assert_eq!(given(&manager), 6);
    let container = |name: &str| Running { uid: "a".into(), name: name.into(), id: name.into() };
    manager.created(&pod, &container("i"), CpuSet::default());
    assert_eq!(given(&manager), 6);
    manager.created(&pod, &container("c"), CpuSet::default());
    assert_eq!(given(&manager), 2);
    // Taken in again, after a restart: what the init container had stays free.
    manager.admit(&pod, &mut []).unwrap();
    assert_eq!(given(&manager), 2);
}

#[test]
fn quotas() {
    let machine = machine(1, 4, 0, 20);
    let mut settings = settings("none", "container", &[]);
    let mixed = pod("a", &[("c", Kind::App, "2", "1Gi", ""), ("d", Kind::App, "500m", "1Gi", "")]);
    let mut manager = start(&settings, &machine, &Found::default()).unwrap();
    assert_eq!(manager.without_quota(&mixed), (BTreeSet::new(), false));
    manager.admit(&mixed, &mut []).unwrap();
    assert_eq!(manager.without_quota(&mixed), (BTreeSet::from(["c".to_owned()]), true));
    // Of a pod with CPUs of its own, only if each of its containers has some for itself.
    settings.gates.pod_level = true;
    (settings.topology_policy, settings.topology_scope) = ("restricted".into(), "pod".into());
    let mut manager = start(&settings, &machine, &Found::default()).unwrap();
    let own = pod_with("a", ("4", "4Gi"), &[("c", Kind::App, "2", "1Gi", ""), ("d", Kind::App, "", "", "")]);
    manager.admit(&own, &mut []).unwrap();
    assert_eq!(manager.without_quota(&own), (BTreeSet::from(["c".to_owned()]), false));
    let request = PodRequest::of(&own, settings.gates);
    let isolation = ["c", "d", "x"].map(|name| manager.isolation(&request, name));
    assert_eq!(isolation, [Isolation::Container, Isolation::Pod, Isolation::Host]);
    let found = files(&manager);
    assert!(String::from_utf8(found.cpu.clone().unwrap()).unwrap().contains("\"podEntries\":{\"a\":{\"cpuSet\":"));
    // After a restart it is taken in as it was, on the node that it has.
    let mut again = start(&settings, &machine, &found).unwrap();
    again.admit(&own, &mut []).unwrap();
    let changed: Vec<_> = again.state_to_write().unwrap().into_iter().map(|file| file.name).collect();
    assert!(changed.is_empty(), "{changed:?}");
}

/// Upstream's words, after which its kubelet exits 1.
#[test]
fn starts_that_are_refused() {
    let machine = machine(2, 4, 0, 20);
    let refused = |change: &dyn Fn(&mut Settings), found: &Found| {
        let mut settings = settings("restricted", "container", &[]);
        change(&mut settings);
        start(&settings, &machine, found).unwrap_err().to_string()
    };
    let cpu = |text: &str| Found { cpu: Some(text.as_bytes().to_vec()), memory: None };
    let none = files(
        &start(
            &{
                let mut settings = settings("none", "", &[]);
                (settings.cpu_policy, settings.memory_policy) = ("none".into(), "None".into());
                settings
            },
            &machine,
            &Found::default(),
        )
        .unwrap(),
    );
    let table = [
        (
            refused(&|_| (), &Found { cpu: none.cpu.clone(), memory: None }),
            "start cpu manager error: could not restore state from checkpoint: configured policy \"static\" differs from state checkpoint policy \"none\", please drain this node and delete the CPU manager checkpoint file \"/var/lib/kubelet/cpu_manager_state\" before restarting Kubelet",
        ),
        (
            refused(&|_| (), &Found { cpu: None, memory: none.memory.clone() }),
            "start memory manager error: could not restore state from checkpoint: [memorymanager] configured policy \"Static\" differs from state checkpoint policy \"None\", please drain this node and delete the memory manager checkpoint file \"/var/lib/kubelet/memory_manager_state\" before restarting Kubelet",
        ),
        (
            refused(&|_| (), &cpu("")),
            "start cpu manager error: could not restore state from checkpoint: unexpected end of JSON input, please drain this node and delete the CPU manager checkpoint file \"/var/lib/kubelet/cpu_manager_state\" before restarting Kubelet",
        ),
        (refused(&|s| s.cpu_policy = "dynamic".into(), &Found::default()), "unknown policy: \"dynamic\""),
        (refused(&|s| s.memory_policy = "x".into(), &Found::default()), "unknown policy: \"x\""),
        (
            refused(&|s| s.memory_policy = "BestEffort".into(), &Found::default()),
            "policy \"BestEffort\" is not available for platform \"linux\"",
        ),
        (
            refused(
                &|s| {
                    s.cpu_policy = "none".into();
                    s.cpu_options.insert("full-pcpus-only".into(), "true".into());
                },
                &Found::default(),
            ),
            "new none policy error: None policy: received unsupported options=map[full-pcpus-only:true]",
        ),
    ];
    for (found, wanted) in table {
        assert_eq!(found, wanted);
    }
    // Fewer CPUs than before.
    let mut given = start(&settings("none", "", &[]), &machine, &Found::default()).unwrap();
    given.admit(&pod("a", &[("c", Kind::App, "2", "1Gi", "")]), &mut []).unwrap();
    let mut small = machine.clone();
    small.nodes[1].cores.pop();
    let error = start(&settings("none", "", &[]), &small, &files(&given)).unwrap_err().to_string();
    assert_eq!(
        error,
        "start cpu manager error: current set of available CPUs \"0-6,8-14\" doesn't match with CPUs in state \"0-15\""
    );
}
