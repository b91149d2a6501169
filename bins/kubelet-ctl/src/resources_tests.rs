use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

/// Two nodes of two cores with two threads; two containers, one of a pod that is gone.
fn machine() -> Vec<Entry> {
    let block = |bytes: u64, nodes: &[u32]| wire::MemoryBlock { kind: "memory".into(), bytes, nodes: nodes.to_vec() };
    let core = |cpus: [u32; 2]| wire::CpuCore { socket: 0, cpus: cpus.to_vec() };
    let node = |id: u32, cores: [[u32; 2]; 2]| {
        Entry::Node(wire::NumaNode { id, cores: cores.map(core).to_vec(), memory_bytes: 8 * GIB })
    };
    let device = |id: &str, nodes: &[i64]| wire::NodeDevice {
        resource: "vendor.com/gpu".into(),
        id: id.into(),
        nodes: nodes.to_vec(),
    };
    let claimed = wire::HeldClaimDevice {
        driver: "d.example.com".into(),
        pool: "n".into(),
        device: "dev-1".into(),
        ..wire::HeldClaimDevice::default()
    };
    let claim = wire::HeldClaim { namespace: "ns".into(), name: "c".into(), devices: vec![claimed] };
    vec![
        Entry::Policies(wire::ResourcePolicies {
            cpu_manager: "static".into(),
            memory_manager: "Static".into(),
            topology_manager: "single-numa-node".into(),
            topology_scope: "container".into(),
            allocatable_cpus: (1..8).collect(),
            allocatable_memory: vec![block(6 * GIB, &[0]), block(8 * GIB, &[1])],
        }),
        node(0, [[0, 4], [1, 5]]),
        node(1, [[2, 6], [3, 7]]),
        Entry::Device(device("g0", &[0])),
        Entry::Device(device("g1", &[1])),
        Entry::Device(device("far", &[])),
        Entry::Holder(wire::ResourceHolder {
            namespace: "ns".into(),
            pod: "db".into(),
            pod_uid: "u1".into(),
            container: "main".into(),
            cpus: vec![6, 2],
            memory: vec![block(4 * GIB, &[1])],
            devices: vec![device("g1", &[1])],
            claims: vec![claim],
        }),
        Entry::Holder(wire::ResourceHolder {
            pod_uid: "u2".into(),
            container: "left\n".into(),
            cpus: vec![5],
            ..wire::ResourceHolder::default()
        }),
    ]
}

#[test]
fn a_map_to_look_at() {
    let shown = text(&view(machine()));
    let expected = "\
CPU manager static, memory manager Static, topology manager single-numa-node (scope container)

NUMA node 0: CPUs 0-1,4-5, memory 8.0Gi
  cpu   [0:r 4:.] [1:. 5:B]
  mem   rrrrrrrrrr..............................  6.0Gi free of 6.0Gi
  dev   vendor.com/gpu  g0:.

NUMA node 1: CPUs 2-3,6-7, memory 8.0Gi
  cpu   [2:A 6:A] [3:. 7:.]
  mem   AAAAAAAAAAAAAAAAAAAA....................  4.0Gi free of 8.0Gi
  dev   vendor.com/gpu  g1:A

Of no NUMA node
  dev   vendor.com/gpu  far:.

. shared or free, r reserved, letters as below

KEY   NAMESPACE   POD      CONTAINER   CPUS   MEMORY       DEVICES             CLAIMS
A     ns          db       main        2,6    4.0Gi on 1   vendor.com/gpu/g1   c (d.example.com/n/dev-1)
B     -           uid u2   left\\n      5      -            -                   -
";
    assert_eq!(shown, expected, "{shown}");
    let json = serde_json::to_value(view(machine())).unwrap();
    assert_eq!((&json["holders"][0]["key"], &json["holders"][0]["cpus"]), (&"A".into(), &serde_json::json!([6, 2])));
    assert_eq!(json["holders"][1].get("pod"), None);
}

#[test]
fn nobody_has_anything() {
    let policies = wire::ResourcePolicies {
        cpu_manager: "none".into(),
        memory_manager: "None".into(),
        topology_manager: "none".into(),
        topology_scope: "container".into(),
        ..wire::ResourcePolicies::default()
    };
    let node = wire::NumaNode { id: 0, cores: vec![wire::CpuCore { socket: 0, cpus: vec![0] }], memory_bytes: GIB };
    let shown = text(&view(vec![Entry::Policies(policies), Entry::Node(node)]));
    assert!(shown.contains("  cpu   [0:.]\n") && !shown.contains("mem "), "{shown}");
    assert!(shown.ends_with("No container has anything for itself.\n"), "{shown}");
}

#[test]
fn keys_go_on_after_z() {
    assert_eq!([0, 25, 26, 51, 52, 701, 702].map(key), ["A", "Z", "AA", "AZ", "BA", "ZZ", "AAA"]);
}

proptest! {
    #[test]
    fn ranges_name_every_number(numbers in prop::collection::btree_set(0_u32..64, 0..20)) {
        let mut named = std::collections::BTreeSet::new();
        for part in ranges(numbers.iter().copied()).split(',').filter(|part| !part.is_empty()) {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            named.extend(from.parse::<u32>().unwrap()..=to.parse::<u32>().unwrap());
        }
        prop_assert_eq!(named, numbers);
    }

    #[test]
    fn a_bar_is_always_as_wide(total in any::<u64>(), allocatable in any::<u64>(), held in prop::collection::vec(any::<u64>(), 0..60)) {
        let keys: Vec<String> = (0..held.len()).map(key).collect();
        let held: Vec<(&str, u64)> = keys.iter().map(String::as_str).zip(held).collect();
        prop_assert_eq!(bar(total, allocatable, &held).chars().count(), BAR);
    }
}
