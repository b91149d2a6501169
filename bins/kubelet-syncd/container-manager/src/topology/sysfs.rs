//! A machine from its tree of files below `/sys/devices/system` (`cpu` and `node`), as upstream's cAdvisor reads it
//! (`utils/sysinfo`, `utils/sysfs`).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use bulkhead_config::cpu_set::CpuSet;

use super::machine::{Core, HugePages, Machine, Node};

/// Path below `/sys/devices/system` to content, of the files that [`machine`] looks at.
pub type Tree = BTreeMap<String, String>;

/// Why a tree describes no machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SysfsError {
    #[error("could not detect number of cpus")]
    NoCpus,
    #[error("{path} holds {content:?}, and must hold {wanted}")]
    Content { path: String, content: String, wanted: &'static str },
}

/// Entries of `cpu` whose number follows the name, of a folder's files.
fn numbered(tree: &Tree, folder: &str, name: &str) -> Vec<u32> {
    let prefix = format!("{folder}/{name}");
    let below = tree.range(prefix.clone()..).map_while(|(path, _)| path.strip_prefix(&prefix));
    let mut found: Vec<u32> = below.filter_map(|rest| rest.split('/').next()?.parse().ok()).collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn text<'a>(tree: &'a Tree, path: &str) -> Option<&'a str> {
    tree.get(path).map(|content| content.trim())
}

/// A file's number; None where there is no file.
fn number<T: std::str::FromStr>(tree: &Tree, path: &str) -> Result<Option<T>, SysfsError> {
    let Some(content) = text(tree, path) else { return Ok(None) };
    content.parse().map(Some).map_err(|_| refuse(path, content, "a number"))
}

fn refuse(path: &str, content: &str, wanted: &'static str) -> SysfsError {
    SysfsError::Content { path: path.to_owned(), content: content.chars().take(80).collect(), wanted }
}

fn list(tree: &Tree, path: &str) -> Result<Option<CpuSet>, SysfsError> {
    let Some(content) = text(tree, path) else { return Ok(None) };
    CpuSet::parse(content).map(Some).map_err(|_| refuse(path, content, "a list of CPUs"))
}

/// Cores of these CPUs, in the order in which their first CPUs come. CPUs that are off, or of no core, are left out.
fn cores(tree: &Tree, cpus: &[u32]) -> Result<Vec<Core>, SysfsError> {
    let mut found: Vec<((u32, i64), Core)> = Vec::new();
    for cpu in cpus {
        let folder = format!("cpu/cpu{cpu}");
        // The first CPU of most machines cannot be switched off and has no such file.
        if text(tree, &format!("{folder}/online")) == Some("0") {
            continue;
        }
        let Some(id) = number::<i64>(tree, &format!("{folder}/topology/core_id"))? else { continue };
        // Firmware that does not tell says -1, and upstream takes that for a socket's number too.
        let Some(socket) = number::<i64>(tree, &format!("{folder}/topology/physical_package_id"))? else { continue };
        let socket = u32::try_from(socket).unwrap_or(0);
        match found.iter_mut().find(|(key, _)| *key == (socket, id)) {
            Some((_, core)) => core.threads.push(*cpu),
            None => found.push(((socket, id), Core { socket, threads: vec![*cpu], uncore_cache: None })),
        }
    }
    Ok(found.into_iter().map(|(_, core)| core).collect())
}

/// Caches above the second level that some of a node's cores share. A cache without a number ends the search, as upstream's does.
fn caches(tree: &Tree, cores: &mut [Core]) -> Result<(), SysfsError> {
    let count = cores.len();
    for core in cores {
        let Some(first) = core.threads.first() else { continue };
        let folder = format!("cpu/cpu{first}/cache");
        for index in numbered(tree, &folder, "index") {
            let file = |name: &str| format!("{folder}/index{index}/{name}");
            let Some(id) = number::<u32>(tree, &file("id"))? else { return Ok(()) };
            let Some(level) = number::<u32>(tree, &file("level"))? else { return Ok(()) };
            let Some(shared) = list(tree, &file("shared_cpu_list"))? else { return Ok(()) };
            let whole_node = shared.len() == count * core.threads.len();
            if level > 2 && !whole_node && core.uncore_cache.is_none() {
                core.uncore_cache = Some(id);
            }
        }
    }
    Ok(())
}

/// Bytes of `MemTotal`; 0 where there is no such file.
fn memory(tree: &Tree, node: &str) -> Result<u64, SysfsError> {
    let path = format!("{node}/meminfo");
    let Some(content) = tree.get(&path) else { return Ok(0) };
    let total = content.lines().find_map(|line| line.split_once("MemTotal:")?.1.trim().strip_suffix("kB"));
    let kib = total.and_then(|number| number.trim().parse::<u64>().ok());
    let wanted = "a line with MemTotal: NUMBER kB";
    kib.and_then(|kib| kib.checked_mul(1024)).ok_or_else(|| refuse(&path, content, wanted))
}

fn huge_pages(tree: &Tree, node: &str) -> Result<Vec<HugePages>, SysfsError> {
    let folder = format!("{node}/hugepages/hugepages-");
    let sizes = tree.range(folder.clone()..).map_while(|(path, _)| path.strip_prefix(&folder));
    let mut found = Vec::new();
    for rest in sizes {
        let Some(size) = rest.strip_suffix("kB/nr_hugepages").and_then(|size| size.parse().ok()) else { continue };
        let count = number(tree, &format!("{folder}{rest}"))?.unwrap_or(0);
        found.push(HugePages { page_size_kib: size, count });
    }
    Ok(found)
}

fn distances(tree: &Tree, node: &str) -> Result<Vec<u64>, SysfsError> {
    let path = format!("{node}/distance");
    let Some(content) = text(tree, &path) else { return Ok(Vec::new()) };
    let numbers: Result<_, _> = content.split_whitespace().map(str::parse).collect();
    numbers.map_err(|_| refuse(&path, content, "numbers"))
}

/// The machine that a tree describes.
///
/// # Errors
/// It has no CPU, or a file holds something else than the kernel writes.
pub fn machine(tree: &Tree) -> Result<Machine, SysfsError> {
    let cpus = numbered(tree, "cpu", "cpu");
    let mut nodes = Vec::new();
    for id in numbered(tree, "node", "node") {
        let folder = format!("node/node{id}");
        let own: Vec<u32> = list(tree, &format!("{folder}/cpulist"))?.unwrap_or_default().iter().collect();
        let mut cores = cores(tree, &own)?;
        caches(tree, &mut cores)?;
        nodes.push(Node {
            id,
            cores,
            memory: memory(tree, &folder)?,
            huge_pages: huge_pages(tree, &folder)?,
            distances: distances(tree, &folder)?,
        });
    }
    if nodes.is_empty() {
        // A kernel without NUMA: each socket is taken for a node.
        let mut by_socket: BTreeMap<u32, Vec<Core>> = BTreeMap::new();
        for core in cores(tree, &cpus)? {
            by_socket.entry(core.socket).or_default().push(core);
        }
        for (id, mut cores) in by_socket {
            caches(tree, &mut cores)?;
            nodes.push(Node { id, cores, ..Node::default() });
        }
    }
    if nodes.iter().all(|node| node.cores.is_empty()) {
        return Err(SysfsError::NoCpus);
    }
    Ok(Machine { nodes })
}

/// Reads the files that [`machine`] looks at below a folder such as `/sys/devices/system`.
///
/// # Errors
/// The folder of CPUs cannot be listed. A file that cannot be read is left out: what is not there is not told.
pub fn read(folder: &Path) -> io::Result<Tree> {
    let mut tree = Tree::new();
    let names = |path: &str| -> io::Result<Vec<String>> {
        std::fs::read_dir(folder.join(path))?.map(|e| Ok(e?.file_name().to_string_lossy().into_owned())).collect()
    };
    let is = |name: &str, prefix: &str| name.strip_prefix(prefix).is_some_and(|n| n.parse::<u32>().is_ok());
    let mut take = |path: String| {
        if let Ok(content) = std::fs::read_to_string(folder.join(&path)) {
            tree.insert(path, content);
        }
    };
    for cpu in names("cpu")?.iter().filter(|name| is(name, "cpu")) {
        for file in ["online", "topology/core_id", "topology/physical_package_id"] {
            take(format!("cpu/{cpu}/{file}"));
        }
        for index in names(&format!("cpu/{cpu}/cache")).unwrap_or_default().iter().filter(|name| is(name, "index")) {
            for file in ["id", "level", "shared_cpu_list"] {
                take(format!("cpu/{cpu}/cache/{index}/{file}"));
            }
        }
    }
    for node in names("node").unwrap_or_default().iter().filter(|name| is(name, "node")) {
        for file in ["cpulist", "meminfo", "distance"] {
            take(format!("node/{node}/{file}"));
        }
        for size in names(&format!("node/{node}/hugepages")).unwrap_or_default() {
            take(format!("node/{node}/hugepages/{size}/nr_hugepages"));
        }
    }
    Ok(tree)
}

#[cfg(test)]
#[path = "sysfs_tests.rs"]
mod tests;
