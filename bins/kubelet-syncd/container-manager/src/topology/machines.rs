//! Machines of tests: upstream's own (its tables of test cases name them), and trees of files as kernels of such machines have.

use std::collections::BTreeMap;

use bulkhead_config::cpu_set::CpuSet;

use super::cpus::{CpuInfo, CpuTopology};
use super::machine::{Core, HugePages, Machine, Node};
use super::sysfs::Tree;

pub fn set(text: &str) -> CpuSet {
    CpuSet::parse(text).unwrap()
}

/// CPUs by place: `(numa, socket, uncore, CPUs, CPUs of a core apart)`. A `stride` of 0: each CPU is a core.
type Place<'a> = (u32, u32, u32, &'a str, u32);

fn of(places: &[Place<'_>]) -> CpuTopology {
    let mut cpus = BTreeMap::new();
    for (numa, socket, uncore, list, stride) in places {
        let own = set(list);
        for cpu in own.iter() {
            let sibling = cpu.checked_sub(*stride).filter(|first| *stride > 0 && own.contains(*first));
            let core = sibling.unwrap_or(cpu);
            cpus.insert(cpu, CpuInfo { numa: *numa, socket: *socket, core, uncore: *uncore });
        }
    }
    CpuTopology::new(cpus)
}

pub fn single_socket_smt() -> CpuTopology {
    of(&[(0, 0, 0, "0-7", 4)])
}

pub fn dual_socket_smt() -> CpuTopology {
    of(&[(0, 0, 0, "0,2,4,6,8,10", 6), (1, 1, 0, "1,3,5,7,9,11", 6)])
}

/// The machine of upstream's table of hints.
pub fn dual_socket_in_turn() -> CpuTopology {
    of(&[(0, 0, 0, "0-2,6-8", 6), (1, 1, 0, "3-5,9-11", 6)])
}

pub fn dual_socket() -> CpuTopology {
    of(&[(0, 0, 0, "0-3", 0), (1, 1, 0, "4-7", 0)])
}

/// Two sockets of two NUMA nodes each.
pub fn dual_socket_four_nodes() -> CpuTopology {
    of(&[
        (0, 0, 0, "0-9,40-49", 40),
        (1, 0, 0, "10-19,50-59", 40),
        (2, 1, 0, "20-29,60-69", 40),
        (3, 1, 0, "30-39,70-79", 40),
    ])
}

/// Two NUMA nodes of two sockets each.
pub fn four_sockets_two_nodes() -> CpuTopology {
    of(&[
        (0, 0, 0, "0-9,40-49", 40),
        (0, 1, 0, "10-19,50-59", 40),
        (1, 2, 0, "20-29,60-69", 40),
        (1, 3, 0, "30-39,70-79", 40),
    ])
}

/// Two sockets of four NUMA nodes each.
pub fn dual_socket_eight_nodes() -> CpuTopology {
    let list = |node: u32| format!("{}-{},{}-{}", node * 16, node * 16 + 15, node * 16 + 128, node * 16 + 143);
    let lists: Vec<String> = (0..8).map(list).collect();
    let places: Vec<Place<'_>> =
        (0_u32..8).zip(&lists).map(|(node, list)| (node, node / 4, 0, list.as_str(), 128)).collect();
    of(&places)
}

pub fn uncore_dual_socket() -> CpuTopology {
    of(&[(0, 0, 0, "0-3", 0), (0, 0, 1, "4-7", 0), (0, 1, 2, "8-11", 0), (0, 1, 3, "12-15", 0)])
}

pub fn uncore_two_nodes() -> CpuTopology {
    of(&[(0, 0, 0, "0-3", 0), (0, 0, 1, "4-7", 0), (1, 0, 2, "8-11", 0), (1, 0, 3, "12-15", 0)])
}

pub fn uncore_smt() -> CpuTopology {
    of(&[(0, 0, 0, "0-3,8-11", 8), (0, 0, 1, "4-7,12-15", 8)])
}

pub fn uncore_single_socket() -> CpuTopology {
    of(&[(0, 0, 0, "0-3", 0), (0, 0, 1, "4-7", 0), (0, 0, 2, "8-11", 0), (0, 0, 3, "12-15", 0)])
}

/// Caches that so many cores share, so many of them on each NUMA node and on each socket. Where cores have two threads, their numbers are
/// as far apart as there are cores.
pub fn split_caches(caches: u32, cores: u32, per_node: u32, per_socket: u32, smt: bool) -> CpuTopology {
    let all = caches * cores;
    let list = |cache: u32| {
        let (first, last) = (cache * cores, (cache + 1) * cores - 1);
        if smt { format!("{first}-{last},{}-{}", first + all, last + all) } else { format!("{first}-{last}") }
    };
    let lists: Vec<String> = (0..caches).map(list).collect();
    let (stride, numbered) = (if smt { all } else { 0 }, (0_u32..).zip(&lists));
    let places: Vec<Place<'_>> =
        numbered.map(|(cache, list)| (cache / per_node, cache / per_socket, cache, list.as_str(), stride)).collect();
    of(&places)
}

/// Two sockets of two NUMA nodes each, with one cache a socket.
pub fn socket_caches() -> CpuTopology {
    of(&[
        (0, 0, 0, "0-29,120-149", 120),
        (1, 0, 0, "30-59,150-179", 120),
        (2, 1, 1, "60-89,180-209", 120),
        (3, 1, 1, "90-119,210-239", 120),
    ])
}

/// Eight cores of one thread, and eight of two.
pub fn uneven_cores() -> CpuTopology {
    of(&[(0, 0, 0, "0-7", 0), (0, 0, 0, "8-23", 8)])
}

pub fn single_socket_of_64() -> CpuTopology {
    of(&[(0, 0, 0, "0-63", 0)])
}

/// A machine of `nodes` NUMA nodes with `cores` cores of two threads each, a cache for each `cache` cores (0: for a node), `gib` GiB
/// and four huge pages of 1 GiB on each node; two nodes are a socket.
pub fn machine(nodes: u32, cores: u32, cache: u32, gib: u64) -> Machine {
    let all = nodes * cores;
    let node = |id: u32| {
        let core =
            |core: u32| Core { socket: id / 2, threads: vec![core, core + all], uncore_cache: core.checked_div(cache) };
        let distance = |to: u32| {
            if to == id {
                10
            } else if to / 2 == id / 2 {
                12
            } else {
                32
            }
        };
        Node {
            id,
            cores: (id * cores..(id + 1) * cores).map(core).collect(),
            memory: gib << 30,
            huge_pages: vec![HugePages { page_size_kib: 1 << 20, count: 4 }],
            distances: (0..nodes).map(distance).collect(),
        }
    };
    Machine { nodes: (0..nodes).map(node).collect() }
}

/// The files of that machine as its kernel would have them.
pub fn tree(machine: &Machine) -> Tree {
    let mut tree = Tree::new();
    let mut put = |path: String, content: String| _ = tree.insert(path, format!("{content}\n"));
    for node in &machine.nodes {
        let folder = format!("node/node{}", node.id);
        let cpus: CpuSet = node.cores.iter().flat_map(|core| core.threads.iter().copied()).collect();
        put(format!("{folder}/cpulist"), cpus.to_string());
        let kib = node.memory / 1024;
        put(format!("{folder}/meminfo"), format!("Node {0} MemTotal:  {kib} kB\nNode {0} MemFree:  7 kB", node.id));
        let distances: Vec<String> = node.distances.iter().map(u64::to_string).collect();
        put(format!("{folder}/distance"), distances.join(" "));
        for pages in &node.huge_pages {
            let path = format!("{folder}/hugepages/hugepages-{}kB/nr_hugepages", pages.page_size_kib);
            put(path, pages.count.to_string());
        }
        for (at, core) in node.cores.iter().enumerate() {
            let sharing = |other: &&Core| other.uncore_cache == core.uncore_cache;
            let shared: CpuSet = node.cores.iter().filter(sharing).flat_map(|c| c.threads.iter().copied()).collect();
            let own: CpuSet = core.threads.iter().copied().collect();
            for cpu in &core.threads {
                let folder = format!("cpu/cpu{cpu}");
                put(format!("{folder}/topology/core_id"), (node.id as usize % 2 * node.cores.len() + at).to_string());
                put(format!("{folder}/topology/physical_package_id"), core.socket.to_string());
                if *cpu > 0 {
                    put(format!("{folder}/online"), "1".to_owned());
                }
                for (index, level, id, list) in
                    [(0, 1, *cpu, &own), (3, 3, core.uncore_cache.unwrap_or(node.id), &shared)]
                {
                    let cache = format!("{folder}/cache/index{index}");
                    put(format!("{cache}/level"), level.to_string());
                    put(format!("{cache}/id"), id.to_string());
                    put(format!("{cache}/shared_cpu_list"), list.to_string());
                }
            }
        }
    }
    tree
}
