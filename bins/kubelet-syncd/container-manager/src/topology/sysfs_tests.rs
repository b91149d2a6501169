use super::*;
use crate::topology::cpus::{CpuTopology, Level};
use crate::topology::machines;

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
