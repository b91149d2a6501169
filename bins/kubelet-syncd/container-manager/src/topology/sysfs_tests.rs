use super::*;
use crate::topology::cpus::{CpuTopology, Level};
use crate::topology::{machines, recorded};

#[test]
fn a_tree_gives_the_machine_that_it_is_of() {
    for (nodes, cores, cache) in [(1, 4, 0), (2, 8, 0), (4, 6, 2), (8, 4, 2), (1, 8, 2)] {
        let wanted = machines::machine(nodes, cores, cache, 16);
        assert_eq!(machine(&machines::tree(&wanted)), Ok(wanted));
    }
}

#[test]
fn it_is_read_from_a_folder() {
    let wanted = machines::machine(2, 4, 2, 8);
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in machines::tree(&wanted) {
        let path = folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    std::fs::create_dir(folder.path().join("cpu/cpufreq")).unwrap();
    assert_eq!(machine(&read(folder.path()).unwrap()), Ok(wanted));
    assert!(read(&folder.path().join("none")).is_err());
}

/// Nodes with CPUs, sockets, caches, cores and CPUs of machines that were recorded.
#[test]
fn recorded_machines() {
    let table = [
        ("1-node-cores-of-two-kinds", [1, 1, 1, 14, 20]),
        // Caches have no numbers there, and a socket counts as one.
        ("1-node-4-sockets-2-threads-some-off", [1, 4, 4, 7, 12]),
        ("1-node-of-2-cpu-0-off", [1, 1, 1, 8, 8]),
        ("2-nodes-2-threads", [2, 2, 2, 16, 32]),
        ("2-nodes-4-threads-6-nodes-of-memory", [2, 2, 2, 8, 32]),
        ("4-nodes-2-threads-cache-of-2-nodes", [4, 2, 2, 40, 80]),
        ("4-nodes-1-thread-uneven-distances", [4, 2, 2, 128, 128]),
        ("4-nodes-of-4-sockets-split-l3", [4, 16, 16, 96, 96]),
        ("8-nodes-2-a-socket", [8, 4, 4, 64, 64]),
        ("8-nodes-4-threads-gaps-in-numbers", [8, 1, 1, 64, 256]),
        ("8-nodes-numbers-above-63", [8, 4, 4, 48, 48]),
        ("2-sockets-2-threads-split-l3", [2, 2, 16, 48, 96]),
        ("2-sockets-1-thread-split-l3", [2, 2, 16, 128, 128]),
        ("1-socket-2-threads-uneven-l3", [1, 1, 2, 12, 24]),
    ];
    let all = recorded::all();
    assert_eq!(all.iter().map(|machine| machine.name).collect::<Vec<_>>(), table.map(|(name, _)| name));
    for (recorded, (name, wanted)) in all.iter().zip(table) {
        let found = machine(&recorded.tree()).unwrap();
        assert_eq!(found, recorded.machine(), "{name}");
        let topology = CpuTopology::of(&found);
        let [nodes, sockets, caches, cores] =
            [Level::Numa, Level::Socket, Level::Uncore, Level::Core].map(|level| topology.count(level));
        assert_eq!([nodes, sockets, caches, cores, topology.all().len()], wanted, "{name}");
    }
}

/// What a kernel may leave out: NUMA, caches, some CPUs.
#[test]
fn what_is_not_there_is_not_told() {
    let whole = machines::machine(2, 4, 2, 8);
    let mut tree = machines::tree(&whole);
    tree.insert("cpu/cpu3/online".to_owned(), "0\n".to_owned());
    tree.retain(|path, _| !path.contains("/cache/") && !path.ends_with("meminfo") && !path.ends_with("distance"));
    let found = machine(&tree).unwrap();
    assert!(found.nodes.iter().all(|node| node.memory == 0 && node.distances.is_empty()));
    let topology = CpuTopology::of(&found);
    assert_eq!(topology.all().to_string(), "0-2,4-15");
    // Without caches a socket counts as one.
    assert_eq!(topology.count(Level::Uncore), 1);
    // Its second thread is the core's only one then.
    assert_eq!(topology.info(11).unwrap().core, 11);

    tree.retain(|path, _| !path.starts_with("node/"));
    let found = machine(&tree).unwrap();
    assert_eq!(found.nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0]);
    assert_eq!(found.nodes[0].cores.len(), 8);
}

#[test]
fn nonsense_is_refused_with_its_file() {
    let whole = machines::tree(&machines::machine(1, 2, 0, 8));
    let cases = [
        ("node/node0/cpulist", "0-x", "a list of CPUs"),
        ("node/node0/meminfo", "MemTotal: many kB", "MemTotal"),
        ("node/node0/distance", "10 far", "numbers"),
        ("node/node0/hugepages/hugepages-1048576kB/nr_hugepages", "-1", "a number"),
        ("cpu/cpu0/topology/core_id", "", "a number"),
        ("cpu/cpu0/cache/index3/level", "L3", "a number"),
    ];
    for (path, content, wanted) in cases {
        let mut tree = whole.clone();
        tree.insert(path.to_owned(), content.to_owned());
        let error = machine(&tree).unwrap_err().to_string();
        assert!(error.contains(path) && error.contains(wanted), "{error}");
    }
    assert_eq!(machine(&Tree::new()), Err(SysfsError::NoCpus));
}
