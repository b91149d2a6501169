//! Machines that were recorded (`recorded.txt`), each as the machine that it is and as the files that its kernel has.

use std::collections::BTreeMap;

use bulkhead_config::cpu_set::CpuSet;

use super::machine::{Core, HugePages, Machine, Node};
use super::machines::set;
use super::sysfs::Tree;

/// A recorded machine.
#[derive(Debug)]
pub struct Recorded {
    /// Its shape.
    pub name: &'static str,
    nodes: Vec<Facts>,
    /// The kernel tells of nodes.
    numa: bool,
    off: CpuSet,
}

/// A node, or a socket of a machine that tells of none.
#[derive(Debug, Default)]
struct Facts {
    id: u32,
    memory_kib: u64,
    distances: Vec<u64>,
    huge_pages: Vec<HugePages>,
    /// What its `cpulist` names, where that is more than what is on.
    lists: Option<CpuSet>,
    cores: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    socket: i64,
    cache: String,
    threads: Vec<u32>,
}

/// All of them.
pub fn all() -> Vec<Recorded> {
    let text = include_str!("recorded.txt");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let mut all: Vec<Recorded> = Vec::new();
    for line in lines {
        let words: Vec<&'static str> = line.split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            ["machine", name] => {
                all.push(Recorded { name, nodes: Vec::new(), numa: false, off: CpuSet::default() });
            }
            ["off", cpus] => all.last_mut().unwrap().off = set(cpus),
            ["node", id, rest @ ..] => {
                let machine = all.last_mut().unwrap();
                machine.numa = true;
                machine.nodes.push(node(id, rest));
            }
            ["socket", socket, "cache", cache, "cores", firsts, others @ ..] => {
                all.last_mut().unwrap().add(socket.parse().unwrap(), cache, &set(firsts), others);
            }
            other => panic!("{other:?}"),
        }
    }
    all
}

pub fn named(name: &str) -> Recorded {
    all().into_iter().find(|machine| machine.name == name).unwrap()
}

fn node(id: &str, rest: &[&str]) -> Facts {
    let numbers = |text: &str| text.split(',').map(|number| number.parse().unwrap()).collect();
    let mut facts = Facts { id: id.parse().unwrap(), ..Facts::default() };
    for pair in rest.chunks(2) {
        match pair {
            ["memory", kib] => facts.memory_kib = kib.parse().unwrap(),
            ["distances", list] => facts.distances = numbers(list),
            ["lists", list] => facts.lists = Some(set(list)),
            ["huge", list] => {
                let pages = list.split(',').map(|pages| pages.split_once('x').unwrap());
                let pages = pages.map(|(size, count)| (size.parse().unwrap(), count.parse().unwrap()));
                facts.huge_pages = pages.map(|(page_size_kib, count)| HugePages { page_size_kib, count }).collect();
                // As their folders' names come.
                facts.huge_pages.sort_by_key(|pages| pages.page_size_kib.to_string());
            }
            other => panic!("{other:?}"),
        }
    }
    facts
}

impl Recorded {
    fn add(&mut self, socket: i64, cache: &str, firsts: &CpuSet, others: &[&str]) {
        let id = u32::try_from(socket).unwrap_or(0);
        if !self.numa && self.nodes.last().is_none_or(|node| node.id != id) {
            self.nodes.push(Facts { id, ..Facts::default() });
        }
        let offsets: Vec<u32> =
            others.iter().map(|offset| offset.strip_prefix('+').unwrap().parse().unwrap()).collect();
        for first in firsts.iter() {
            let threads: Vec<u32> = std::iter::once(first).chain(offsets.iter().map(|offset| first + offset)).collect();
            let cache = if cache == "each" { format!("?{first}") } else { cache.to_owned() };
            self.nodes.last_mut().unwrap().cores.push(Place { socket, cache, threads });
        }
        self.nodes.last_mut().unwrap().cores.sort_by_key(|core| core.threads[0]);
    }

    /// CPUs by cache; the caches may reach over nodes.
    fn caches(&self) -> BTreeMap<&str, CpuSet> {
        let mut caches: BTreeMap<&str, CpuSet> = BTreeMap::new();
        for core in self.nodes.iter().flat_map(|node| &node.cores) {
            let own = core.threads.iter().copied().collect();
            let all = caches.entry(core.cache.as_str()).or_default();
            *all = all.union(&own);
        }
        caches
    }

    /// What is to be read of it.
    pub fn machine(&self) -> Machine {
        let caches = self.caches();
        let node = |facts: &Facts| {
            let core = |core: &Place| {
                let whole = caches[core.cache.as_str()].len() == facts.cores.len() * core.threads.len();
                let number = core.cache.parse().ok().filter(|_| !whole);
                let socket = u32::try_from(core.socket).unwrap_or(0);
                Core { socket, threads: core.threads.clone(), uncore_cache: number }
            };
            Node {
                id: facts.id,
                cores: facts.cores.iter().map(core).collect(),
                memory: facts.memory_kib * 1024,
                huge_pages: facts.huge_pages.clone(),
                distances: facts.distances.clone(),
            }
        };
        Machine { nodes: self.nodes.iter().map(node).collect() }
    }

    /// The files of its kernel. Numbers of cores begin anew in each socket of each node, as some machines' do.
    pub fn tree(&self) -> Tree {
        let (mut tree, caches) = (Tree::new(), self.caches());
        let mut put = |path: String, content: String| _ = tree.insert(path, format!("{content}\n"));
        for cpu in self.off.iter() {
            put(format!("cpu/cpu{cpu}/online"), "0".to_owned());
        }
        for node in &self.nodes {
            let mut count: BTreeMap<i64, usize> = BTreeMap::new();
            for core in &node.cores {
                let number = count.entry(core.socket).or_default();
                let own: CpuSet = core.threads.iter().copied().collect();
                for cpu in &core.threads {
                    let folder = format!("cpu/cpu{cpu}");
                    if *cpu > 0 {
                        put(format!("{folder}/online"), "1".to_owned());
                    }
                    put(format!("{folder}/topology/core_id"), number.to_string());
                    put(format!("{folder}/topology/physical_package_id"), core.socket.to_string());
                    let last = &caches[core.cache.as_str()];
                    let first = core.threads[0].to_string();
                    for (index, level, id, list) in [(0, 1, &first, &own), (3, 3, &core.cache, last)] {
                        let file = |name: &str| format!("{folder}/cache/index{index}/{name}");
                        put(file("level"), level.to_string());
                        put(file("shared_cpu_list"), list.to_string());
                        if !core.cache.starts_with('?') {
                            put(file("id"), id.clone());
                        }
                    }
                }
                *number += 1;
            }
            if !self.numa {
                continue;
            }
            let file = |name: &str| format!("node/node{}/{name}", node.id);
            let own: CpuSet = node.cores.iter().flat_map(|core| core.threads.iter().copied()).collect();
            put(file("cpulist"), node.lists.as_ref().unwrap_or(&own).to_string());
            put(file("meminfo"), format!("Node {} MemTotal:  {} kB", node.id, node.memory_kib));
            let distances: Vec<String> = node.distances.iter().map(u64::to_string).collect();
            put(file("distance"), distances.join(" "));
            for pages in &node.huge_pages {
                let path = file(&format!("hugepages/hugepages-{}kB/nr_hugepages", pages.page_size_kib));
                put(path, pages.count.to_string());
            }
        }
        tree
    }
}
