//! What a full collection of statistics costs: kubelet-evictiond's own code reads the control groups of many pods, each a sandbox and a
//! container with a process in it, beside `cat` on the same files. No runtime: the kernel's files are what is measured.

use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::cgroups;
use bulkhead_types::{ContainerName, InstancePaths, Namespace, PodName, PodUid};
use kubelet_evictiond::{NodePaths, Pod, PodContainer, SampleScope, Sampler};

const ROUNDS: usize = 9;
/// Of a control group, by either version; those that are there are read. The names are those that kubelet-evictiond reads.
const FILES: [&str; 36] = [
    "blkio.throttle.io_service_bytes_recursive",
    "blkio.throttle.io_serviced_recursive",
    "cgroup.procs",
    "cpu.cfs_period_us",
    "cpu.cfs_quota_us",
    "cpu.max",
    "cpu.pressure",
    "cpu.shares",
    "cpu.stat",
    "cpu.weight",
    "cpuacct.stat",
    "cpuacct.usage",
    "io.pressure",
    "io.stat",
    "memory.current",
    "memory.events",
    "memory.events.local",
    "memory.failcnt",
    "memory.kmem.usage_in_bytes",
    "memory.limit_in_bytes",
    "memory.max",
    "memory.max_usage_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.min",
    "memory.oom_control",
    "memory.peak",
    "memory.pressure",
    "memory.soft_limit_in_bytes",
    "memory.stat",
    "memory.swap.current",
    "memory.swap.max",
    "memory.usage_in_bytes",
    "pids.current",
    "pids.max",
    "tasks",
    "cgroup.threads",
];

/// How much of everything.
#[derive(Debug, Clone)]
pub struct Plan {
    pub pods: Vec<usize>,
}

#[derive(Debug, Clone)]
pub struct Measured {
    pub pods: usize,
    /// The fastest of some rounds.
    pub collection: Duration,
    pub cat: Duration,
    pub files: usize,
}

/// Runs everything.
///
/// # Errors
/// A control group cannot be made, or the sample lacks pods.
pub fn run(plan: &Plan) -> Result<Vec<Measured>> {
    plan.pods.iter().map(|pods| one(*pods)).collect()
}

/// Pods' groups with a process in each container; gone when dropped.
struct Groups {
    root: String,
    processes: Vec<Child>,
}

impl Groups {
    fn pod(&self, index: usize) -> String {
        format!("{}/kubepods/besteffort/pod{}", self.root, uid(index))
    }

    fn make(root: &str, pods: usize) -> Result<Self> {
        let mut groups = Groups { root: root.to_owned(), processes: Vec::new() };
        // From above: a new cpuset takes its processors from the one above it.
        for above in ["", "/kubepods", "/kubepods/besteffort"] {
            cgroups::create(&format!("{root}{above}"))?;
        }
        for index in 0..pods {
            cgroups::create(&groups.pod(index))?;
            for part in [sandbox(index), container(index)] {
                let cgroup = format!("{}/{part}", groups.pod(index));
                cgroups::create(&cgroup)?;
                let child = Command::new("sleep").arg("100000").stdin(Stdio::null()).spawn().context("sleep")?;
                let pid = child.id().to_string();
                groups.processes.push(child);
                for hierarchy in cgroups::hierarchies() {
                    let file = hierarchy.join(cgroup.trim_start_matches('/')).join("cgroup.procs");
                    std::fs::write(&file, &pid).with_context(|| file.display().to_string())?;
                }
            }
        }
        Ok(groups)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for child in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Err(error) = cgroups::kill_and_remove(&self.root) {
            eprintln!("bench: collection: {error:#}");
        }
    }
}

fn uid(index: usize) -> String {
    format!("00000000-0000-4000-8000-{index:012x}")
}

fn sandbox(index: usize) -> String {
    format!("{:064x}", index * 2 + 1)
}

fn container(index: usize) -> String {
    format!("{:064x}", index * 2 + 2)
}

fn pod(groups: &Groups, index: usize) -> Result<Pod> {
    let main = PodContainer {
        name: ContainerName::parse("main")?,
        id: container(index),
        image: "bench".into(),
        started_at: String::new(),
    };
    Ok(Pod {
        uid: PodUid::parse(&uid(index))?,
        namespace: Namespace::parse("default")?,
        name: PodName::parse(&format!("pod-{index}"))?,
        started_at: String::new(),
        cgroup: Some(groups.pod(index)),
        sandbox: Some(sandbox(index)),
        host_network: true,
        containers: vec![main],
        volumes: Vec::new(),
        trace_parent: String::new(),
    })
}

fn one(pods: usize) -> Result<Measured> {
    eprintln!("bench: collection: {pods} pods");
    let root = format!("/bulkhead-bench-{}", std::process::id());
    let groups = Groups::make(&root, pods)?;
    let list = (0..pods).map(|index| pod(&groups, index)).collect::<Result<Vec<_>>>()?;
    let folder = PathBuf::from("/nowhere");
    let instance =
        InstancePaths { root_dir: folder.clone(), run_dir: folder.clone(), pod_logs_dir: folder.join("logs") };
    let mut sampler = Sampler::new(NodePaths {
        node_name: "bench".into(),
        boot_id: String::new(),
        instance,
        pods_cgroups: vec![format!("{root}/kubepods")],
        system_cgroups: Vec::new(),
    })?;
    let scope = SampleScope { disks: false, cgroups: true };
    let mut collection = Duration::MAX;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        let sample = sampler.sample(Some(&list), scope);
        collection = collection.min(begin.elapsed());
        let measured = sample.pods.iter().filter(|pod| pod.memory.is_some()).count();
        ensure!(measured == pods, "{measured} of {pods} pods have figures");
    }
    let files = files(&format!("{root}/kubepods"));
    let cat = (0..ROUNDS).map(|_| cat(&files)).collect::<Result<Vec<_>>>()?.into_iter().min().unwrap_or_default();
    Ok(Measured { pods, collection, cat, files: files.len() })
}

/// All files of interest in the control group and below it, in every hierarchy.
fn files(cgroup: &str) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        cgroups::hierarchies().iter().map(|at| at.join(cgroup.trim_start_matches('/'))).collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        found.extend(FILES.iter().map(|name| folder.join(name)).filter(|file| std::fs::File::open(file).is_ok()));
        let below = std::fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
        folders.extend(below.filter(|path| path.is_dir()));
    }
    found
}

/// As fast as `cat` reads them, its own start included.
fn cat(files: &[PathBuf]) -> Result<Duration> {
    let begin = Instant::now();
    let mut command = Command::new("xargs");
    let mut child =
        command.args(["-0", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let mut input = child.stdin.take().context("no input")?;
    let names: Vec<&[u8]> = files.iter().map(|path: &PathBuf| Path::as_os_str(path).as_bytes()).collect();
    input.write_all(&names.join(&0))?;
    drop(input);
    child.wait()?;
    Ok(begin.elapsed())
}
