//! One sample: the node, its pods and their containers, as the messages that the API carries. What it says of disks is put into it
//! afterwards.

use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead_ipc::evictiond::{
    CgroupStats, ContainerStats, CpuStats, Machine, NetworkStats, NodeStats, PodStats, ProcessStats, SystemContainer,
};
use bulkhead_types::InstancePaths;

use crate::cgroup::{self, Hierarchy, Usage};
use crate::detail::{self, Owner};
use crate::groupless::Groupless;
use crate::kernel::{self, Reader};
use crate::machine;
use crate::network;
use crate::oom::counts::OomCounts;
use crate::pods::{Pod, PodContainer};
use crate::rates::Rates;
use crate::starts::Starts;
use crate::stats::{self, Moment};
use crate::unrated::{Unrated, Whose};

/// What a sample is about.
#[derive(Debug, Clone)]
pub struct NodePaths {
    pub node_name: String,
    /// As the configuration has it; empty, the kernel's is told.
    pub boot_id: String,
    pub instance: InstancePaths,
    /// The tree of all pods, as /proc/<pid>/cgroup shows it; the first that exists counts.
    pub pods_cgroups: Vec<String>,
    /// Cgroups of the system by upstream's names ("kubelet", "runtime", "misc").
    pub system_cgroups: Vec<(&'static str, String)>,
}

/// What a sample is to hold beside CPU and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SampleScope {
    /// Disks and networks.
    pub disks: bool,
    /// Every cgroup in detail.
    pub cgroups: bool,
}

impl SampleScope {
    /// Its reader shows no pods, and so nothing that the runtime alone tells of containers.
    pub fn is_for_cgroups_alone(self) -> bool {
        self.cgroups && !self.disks
    }

    /// A sample that holds `self` answers who wants `other`.
    pub fn covers(self, other: SampleScope) -> bool {
        self.disks >= other.disks && self.cgroups >= other.cgroups
    }
}

/// A node's figures, then each pod's.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    pub node: NodeStats,
    pub pods: Vec<PodStats>,
    pub machine: Machine,
    /// Parents before children, each once; empty unless wanted.
    pub cgroups: Vec<CgroupStats>,
    /// Those whose CPU counter was read for the first time: they have no rate yet.
    pub unrated: Vec<Unrated>,
    /// Containers whose cgroup was not found: nothing was measured of them.
    pub groupless: Vec<Groupless>,
    pub holds: SampleScope,
}

impl Sample {
    /// Whether it has what is wanted. The runtime is not asked of containers without a cgroup for who shows no pods.
    pub fn answers(&self, wanted: SampleScope) -> bool {
        let lacks_containers = self.holds.is_for_cgroups_alone() && !self.groupless.is_empty();
        self.holds.covers(wanted) && (!lacks_containers || wanted.is_for_cgroups_alone())
    }
}

/// Why the kernel's files cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    #[error("failed to read /proc/self/mountinfo")]
    Mounts(#[source] std::io::Error),
    #[error("no control groups are mounted: neither v1 nor v2")]
    NoCgroups,
}

/// Reads the kernel's files. Blocking: ten small reads for a cgroup, thirty in detail.
#[derive(Debug)]
pub struct Sampler {
    paths: NodePaths,
    hierarchy: Hierarchy,
    reader: Reader,
    rates: Rates,
    starts: Starts,
    ooms: OomCounts,
    /// Containers that have, or had, a cgroup: without it they have ended.
    grouped: HashSet<String>,
    /// Name of the image that sandboxes are made of; empty: not known.
    sandbox_image: String,
    /// The node's network, which this process is in.
    node_network: Option<u64>,
    started: Instant,
}

/// By upstream's name, the tree of all pods.
const PODS: &str = "pods";
/// Most cgroups below those of the system that are told of.
const BELOW_SYSTEM_MAX: usize = 512;
/// It has no process, or none that opens a socket.
const GROUP_OF_GROUPS: Owner<'static> = Owner { pod: None, id: "", container: None, image: "", sockets: Some(0) };
/// Most groups below a container's, and most processes of a group, that are looked at for the pod's network.
const NETWORK_GROUPS_MAX: usize = 8;
const NETWORK_PROCESSES_MAX: usize = 8;

/// What one sample gathers on its way.
#[derive(Debug, Default)]
struct Gathered {
    unrated: Vec<Unrated>,
    groupless: Vec<Groupless>,
    grouped: HashSet<String>,
    cgroups: Vec<CgroupStats>,
    devices: Vec<machine::Device>,
}

impl Sampler {
    /// # Errors
    /// No control groups on this machine.
    pub fn new(paths: NodePaths) -> Result<Self, SamplerError> {
        let mountinfo = std::fs::read("/proc/self/mountinfo").map_err(SamplerError::Mounts)?;
        let hierarchy = Hierarchy::from_mountinfo(&mountinfo).ok_or(SamplerError::NoCgroups)?;
        Ok(Sampler::of(paths, hierarchy))
    }

    /// With these control groups.
    pub fn of(paths: NodePaths, hierarchy: Hierarchy) -> Self {
        Sampler {
            paths,
            hierarchy,
            reader: Reader::default(),
            rates: Rates::default(),
            starts: Starts::default(),
            ooms: OomCounts::default(),
            grouped: HashSet::new(),
            sandbox_image: String::new(),
            node_network: network::identity("self"),
            started: Instant::now(),
        }
    }

    /// Shows these kills for want of memory, while they are known.
    pub fn with_ooms(mut self, ooms: OomCounts) -> Self {
        self.ooms = ooms;
        self
    }

    /// Sandboxes are shown with this image from now on.
    pub fn set_sandbox_image(&mut self, name: String) {
        self.sandbox_image = name;
    }

    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    pub fn paths(&self) -> &NodePaths {
        &self.paths
    }

    /// Measures everything now but disks, which others do. `pods: None` means that nobody told which pods there are.
    pub fn sample(&mut self, pods: Option<&[Pod]>, wanted: SampleScope) -> Sample {
        self.rates.begin();
        self.starts.begin();
        let mut gathered = Gathered::default();
        let mut machine = Machine::default();
        if wanted.cgroups {
            machine = machine::read(&mut self.reader);
            if !self.paths.boot_id.is_empty() {
                machine.boot_id.clone_from(&self.paths.boot_id);
            }
            machine.pods_known = pods.is_some();
            gathered.devices = machine::devices(self.reader.read(Path::new("/proc/diskstats")).unwrap_or_default());
        }
        let node = self.node(pods.is_some(), wanted, &mut gathered);
        let mut shown = Vec::new();
        for pod in pods.unwrap_or_default() {
            let unrated = gathered.unrated.len();
            let stats = self.pod(pod, shown.len(), wanted, &mut gathered);
            // Upstream shows pods of which a container runs.
            if pod.containers.is_empty() {
                gathered.unrated.truncate(unrated);
            } else {
                shown.push(stats);
            }
        }
        if wanted.cgroups {
            self.below_system_cgroups(&mut gathered);
        }
        if pods.is_some() {
            self.grouped = std::mem::take(&mut gathered.grouped);
        }
        self.rates.end();
        self.starts.end();
        let Gathered { unrated, groupless, cgroups, .. } = gathered;
        Sample { node, pods: shown, machine, cgroups, unrated, groupless, holds: wanted }
    }

    /// Gives a rate to those that have none yet: their counters are read once more, and nothing else is.
    pub fn rate(&mut self, sample: &mut Sample) {
        for Unrated { cgroup, whose } in std::mem::take(&mut sample.unrated) {
            let (counter, time) = (self.hierarchy.cpu_nanoseconds(&mut self.reader, &cgroup), Moment::now());
            if let Some(nanoseconds) = counter
                && let Some(cpu) = whose.cpu(&mut sample.node, &mut sample.pods)
            {
                cpu.usage_nano_cores = self.rates.observe(&cgroup, nanoseconds_of(self.started.elapsed()), nanoseconds);
                cpu.usage_core_nano_seconds = Some(nanoseconds);
                cpu.time = time.text;
            }
        }
    }

    fn node(&mut self, pods_known: bool, wanted: SampleScope, gathered: &mut Gathered) -> NodeStats {
        let usage = self.hierarchy.machine(&mut self.reader);
        let time = Moment::now();
        let start_time = self.boot_time();
        let interfaces = if wanted.disks || wanted.cgroups { network::of_node(&mut self.reader) } else { None };
        if wanted.cgroups {
            let owner = Owner { sockets: network::sockets_of_node(&mut self.reader), ..Owner::default() };
            let mut stats = self.in_detail("/", &usage, &time, owner, gathered);
            stats.interfaces = interfaces.clone().unwrap_or_default();
            stats.start_time_seconds = start_time.map_or(0, |time| time.as_second());
            if let Some(memory) = &mut stats.memory {
                memory.swap_limit = usage.swap.and_then(|swap| swap.limit);
            }
            gathered.cgroups.push(stats);
        }
        let mut node = NodeStats {
            node_name: self.paths.node_name.clone(),
            start_time: start_time.map(|time| time.to_string()).unwrap_or_default(),
            cpu: self.cpu("/", Whose::Node, &usage, &time, gathered),
            memory: stats::memory(&usage, &time),
            io: Some(stats::io(&usage, &time)),
            swap: stats::swap(&usage, &time),
            pods_known,
            ..NodeStats::default()
        };
        if wanted.disks {
            node.network = interfaces.map(|interfaces| stats::network(interfaces, &time));
        }
        let pids = self.reader.number(Path::new("/proc/sys/kernel/pid_max"));
        let threads = self.reader.number(Path::new("/proc/sys/kernel/threads-max"));
        node.max_pid = kernel::max_tasks(pids, threads).unwrap_or(0);
        node.running_processes = self.reader.read(Path::new("/proc/loadavg")).ok().and_then(kernel::tasks).unwrap_or(0);
        node.rlimit_time = Moment::now().text;
        let pods_cgroup = self.paths.pods_cgroups.iter().find(|cgroup| self.hierarchy.exists(cgroup)).cloned();
        let system = self.paths.system_cgroups.clone();
        for (name, cgroup) in system.into_iter().chain(pods_cgroup.clone().map(|cgroup| (PODS, cgroup))) {
            if self.hierarchy.exists(&cgroup) {
                let whose = Whose::SystemContainer(node.system_containers.len());
                node.system_containers.push(self.system_container(name, &cgroup, whose, wanted, gathered));
            }
        }
        if let Some(pods_cgroup) = pods_cgroup
            && wanted.cgroups
        {
            for level in cgroup::qos_levels(&pods_cgroup) {
                if self.hierarchy.exists(&level) {
                    let (usage, time) = (self.hierarchy.usage(&mut self.reader, &level), Moment::now());
                    let stats = self.in_detail(&level, &usage, &time, GROUP_OF_GROUPS, gathered);
                    gathered.cgroups.push(stats);
                }
            }
        }
        node
    }

    fn system_container(
        &mut self,
        name: &str,
        cgroup: &str,
        whose: Whose,
        wanted: SampleScope,
        gathered: &mut Gathered,
    ) -> SystemContainer {
        let (usage, time) = (self.hierarchy.usage(&mut self.reader, cgroup), Moment::now());
        let made = self.hierarchy.made_at(cgroup);
        if wanted.cgroups {
            // Two may be one cgroup: that of the agent and that of the runtime.
            if gathered.cgroups.iter().all(|known| known.id != cgroup) {
                let owner = if name == PODS { GROUP_OF_GROUPS } else { Owner::default() };
                let stats = self.in_detail(cgroup, &usage, &time, owner, gathered);
                gathered.cgroups.push(stats);
            }
        }
        SystemContainer {
            name: name.to_owned(),
            cpu: self.cpu(cgroup, whose, &usage, &time, gathered),
            memory: stats::memory(&usage, &time),
            start_time: made.map(|time| time.to_string()).unwrap_or_default(),
            io: Some(stats::io(&usage, &time)),
            swap: stats::swap(&usage, &time),
        }
    }

    /// What lies below the system's cgroups has series of its own (upstream `cmd/kubelet/app/server.go` cgroupRoots), but for the mounts
    /// of systemd (cAdvisor `container/systemd/factory.go`) and what is told of already.
    fn below_system_cgroups(&mut self, gathered: &mut Gathered) {
        let mut known: HashSet<String> = gathered.cgroups.iter().map(|group| group.id.clone()).collect();
        known.extend(self.paths.pods_cgroups.iter().cloned());
        let mut most = BELOW_SYSTEM_MAX;
        for (_, root) in self.paths.system_cgroups.clone() {
            let is_left_out = |path: &str| path.ends_with(".mount") || known.contains(path);
            let below = self.hierarchy.below(&root, most, is_left_out);
            most -= below.len();
            for path in &below {
                let (usage, time) = (self.hierarchy.usage(&mut self.reader, path), Moment::now());
                let stats = self.in_detail(path, &usage, &time, Owner::default(), gathered);
                gathered.cgroups.push(stats);
            }
            known.extend(below);
        }
    }

    /// `at`: its place in the sample.
    fn pod(&mut self, pod: &Pod, at: usize, wanted: SampleScope, gathered: &mut Gathered) -> PodStats {
        let mut stats = PodStats {
            uid: pod.uid.to_string(),
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
            start_time: pod.started_at.clone(),
            ..PodStats::default()
        };
        let cgroup = pod.cgroup.as_deref();
        if let Some(cgroup) = cgroup {
            let (usage, time) = (self.hierarchy.usage(&mut self.reader, cgroup), Moment::now());
            stats.cpu = self.cpu(cgroup, Whose::Pod(at), &usage, &time, gathered);
            stats.memory = stats::memory(&usage, &time);
            stats.io = usage.memory.map(|_| stats::io(&usage, &time));
            stats.swap = stats::swap(&usage, &time);
            if wanted.cgroups && self.hierarchy.exists(cgroup) {
                let owner = Owner { pod: Some(pod), ..GROUP_OF_GROUPS };
                let stats = self.in_detail(cgroup, &usage, &time, owner, gathered);
                gathered.cgroups.push(stats);
            }
        }
        let (network, sockets) = self.sandbox(pod, cgroup, wanted, gathered);
        stats.network = network;
        let mut processes = None;
        for container in &pod.containers {
            let group = self.group_of(cgroup, &container.id);
            let had_group = self.grouped.contains(&container.id);
            if group.is_some() || had_group {
                gathered.grouped.insert(container.id.clone());
            }
            let Some(path) = group else {
                if had_group {
                    // kubelet-syncd has not told of its end yet. What the runtime said of it last is from before what was shown here.
                    continue;
                }
                let place = Groupless { id: container.id.clone(), pod: at, container: stats.containers.len() };
                gathered.groupless.push(place);
                stats.containers.push(ContainerStats {
                    name: container.name.to_string(),
                    start_time: self.starts.of(&container.id, &container.started_at, || None),
                    ..ContainerStats::default()
                });
                continue;
            };
            let whose = Whose::Container { pod: at, container: stats.containers.len() };
            let (one, count) = self.container(pod, container, (&path, sockets, whose), wanted, gathered);
            stats.containers.push(one);
            processes = count.map(|count| processes.unwrap_or(0) + count).or(processes);
        }
        stats.process = processes.map(|processes| ProcessStats { process_count: Some(processes) });
        stats
    }

    /// Whether a container is there, by its folder.
    pub fn has_group(&self, pod: Option<&str>, id: &str) -> bool {
        self.group_of(pod, id).is_some()
    }

    /// The folder of a container or sandbox inside its pod's cgroup, if pods have one.
    fn group_of(&self, pod: Option<&str>, id: &str) -> Option<String> {
        cgroup::container_candidates(pod, id).find(|path| self.hierarchy.exists(path))
    }

    /// The sandbox: its network, which is the pod's, with the number of sockets, and in detail its own cgroup.
    fn sandbox(
        &mut self,
        pod: &Pod,
        cgroup: Option<&str>,
        wanted: SampleScope,
        gathered: &mut Gathered,
    ) -> (Option<NetworkStats>, Option<u64>) {
        if !wanted.disks && !wanted.cgroups {
            return (None, None);
        }
        let sandbox = pod.sandbox.as_ref().and_then(|id| Some((id, self.group_of(cgroup, id)?)));
        let path = sandbox.as_ref().map(|(_, path)| path.clone());
        // In the host's network nobody can tell whose an interface or a socket is.
        let (interfaces, sockets) = match pod.host_network {
            true => (None, Some(0)),
            false => self.pod_network(pod, cgroup, path).map_or((None, None), |(all, sockets)| (Some(all), sockets)),
        };
        let time = Moment::now();
        if let Some((id, path)) = sandbox.filter(|_| wanted.cgroups) {
            let usage = self.hierarchy.usage(&mut self.reader, &path);
            let image = self.sandbox_image.clone();
            // What runs there opens no socket.
            let owner = Owner { pod: Some(pod), id, image: &image, ..GROUP_OF_GROUPS };
            let mut stats = self.in_detail(&path, &usage, &time, owner, gathered);
            stats.interfaces = interfaces.clone().unwrap_or_default();
            gathered.cgroups.push(stats);
        }
        (interfaces.filter(|_| wanted.disks).map(|interfaces| stats::network(interfaces, &time)), sockets)
    }

    /// At a process of the sandbox or, where that has none (CRI-O's `drop_infra_ctr`, a virtual machine), of a container. The first is not
    /// always in the pod's network: Kata's shim is in the node's, and gVisor's gofer in one without interfaces.
    fn pod_network(
        &mut self,
        pod: &Pod,
        cgroup: Option<&str>,
        mut sandbox: Option<String>,
    ) -> Option<(Vec<bulkhead_ipc::evictiond::InterfaceStats>, Option<u64>)> {
        let mut containers = pod.containers.iter();
        let mut empty = None;
        // A container's group is looked for only where those before it have told nothing.
        while let Some(group) = sandbox.take().or_else(|| containers.find_map(|one| self.group_of(cgroup, &one.id))) {
            for pid in self.processes_of(&group) {
                let identity = network::identity(&pid.to_string());
                if identity.is_none() || identity == self.node_network {
                    continue;
                }
                let Some(interfaces) = network::of_process(&mut self.reader, pid) else { continue };
                let is_empty = interfaces.is_empty();
                let found = (interfaces, network::sockets_of_process(&mut self.reader, pid));
                if !is_empty {
                    return Some(found);
                }
                empty.get_or_insert(found);
            }
        }
        empty
    }

    /// Some processes of a container; where its group has none itself, of the groups below (crun's is called `container`).
    fn processes_of(&mut self, group: &str) -> Vec<u32> {
        let mut pids = self.hierarchy.processes(&mut self.reader, group).unwrap_or_default();
        if pids.is_empty() {
            let below = self.hierarchy.below(group, NETWORK_GROUPS_MAX, |_| false);
            let lists = below.iter().filter_map(|below| self.hierarchy.processes(&mut self.reader, below));
            pids = lists.flatten().take(NETWORK_PROCESSES_MAX).collect();
        }
        pids.truncate(NETWORK_PROCESSES_MAX);
        pids
    }

    fn container(
        &mut self,
        pod: &Pod,
        container: &PodContainer,
        (path, sockets, whose): (&str, Option<u64>, Whose),
        wanted: SampleScope,
        gathered: &mut Gathered,
    ) -> (ContainerStats, Option<u64>) {
        let (usage, time) = (self.hierarchy.usage(&mut self.reader, path), Moment::now());
        let hierarchy = &self.hierarchy;
        let start_time = self.starts.of(&container.id, &container.started_at, || hierarchy.made_at(path));
        let mut processes = None;
        if wanted.cgroups {
            let image = &container.image;
            let owner = Owner { pod: Some(pod), id: &container.id, container: Some(container), image, sockets };
            let mut stats = self.in_detail(path, &usage, &time, owner, gathered);
            if let Ok(started) = start_time.parse::<jiff::Timestamp>() {
                stats.start_time_seconds = started.as_second();
            }
            processes = stats.tasks.and_then(|tasks| tasks.processes);
            gathered.cgroups.push(stats);
        } else if wanted.disks {
            let list = self.hierarchy.processes(&mut self.reader, path);
            processes = list.and_then(|list| u64::try_from(list.len()).ok());
        }
        let stats = ContainerStats {
            name: container.name.to_string(),
            start_time,
            cpu: self.cpu(path, whose, &usage, &time, gathered),
            memory: stats::memory(&usage, &time),
            io: usage.memory.map(|_| stats::io(&usage, &time)),
            swap: stats::swap(&usage, &time),
            ..ContainerStats::default()
        };
        (stats, processes)
    }

    fn in_detail(
        &mut self,
        path: &str,
        usage: &Usage,
        time: &Moment,
        owner: Owner<'_>,
        gathered: &Gathered,
    ) -> CgroupStats {
        let stats = detail::read(&self.hierarchy, &mut self.reader, path, usage, time, owner, &gathered.devices);
        let oom_kills = self.ooms.of(path, stats.oom_kills);
        CgroupStats { oom_kills, ..stats }
    }

    fn cpu(
        &mut self,
        cgroup: &str,
        whose: Whose,
        usage: &Usage,
        time: &Moment,
        gathered: &mut Gathered,
    ) -> Option<CpuStats> {
        let nanoseconds = usage.cpu_nanoseconds?;
        let rate = self.rates.observe(cgroup, nanoseconds_of(self.started.elapsed()), nanoseconds);
        if rate.is_none() {
            gathered.unrated.push(Unrated { cgroup: cgroup.to_owned(), whose });
        }
        Some(CpuStats {
            time: time.text.clone(),
            usage_nano_cores: rate,
            usage_core_nano_seconds: Some(nanoseconds),
            psi: Some(stats::pressure(usage.pressure.cpu)),
        })
    }

    fn boot_time(&mut self) -> Option<jiff::Timestamp> {
        let seconds = kernel::boot_time(self.reader.read(Path::new("/proc/stat")).ok()?)?;
        jiff::Timestamp::from_second(i64::try_from(seconds).ok()?).ok()
    }
}

fn nanoseconds_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(pods_cgroup: &str, system_cgroups: &[(&'static str, &str)]) -> NodePaths {
        let instance =
            InstancePaths { root_dir: "/nowhere".into(), run_dir: "/nowhere".into(), pod_logs_dir: "/nowhere".into() };
        NodePaths {
            boot_id: String::new(),
            node_name: "n".into(),
            instance,
            pods_cgroups: vec![pods_cgroup.into()],
            system_cgroups: system_cgroups.iter().map(|(name, cgroup)| (*name, (*cgroup).into())).collect(),
        }
    }

    /// Of a node with these cgroups.
    fn sample_of(cgroups: &[&str], paths: NodePaths) -> Sample {
        let temp = tempfile::tempdir().unwrap();
        for cgroup in cgroups {
            std::fs::create_dir_all(temp.path().join(cgroup.trim_start_matches('/'))).unwrap();
        }
        let mut sampler = Sampler::of(paths, Hierarchy::V2 { root: temp.path().to_owned() });
        sampler.sample(Some(&[]), SampleScope { disks: false, cgroups: true })
    }

    #[test]
    fn a_cgroup_is_told_of_once() {
        let paths = paths("/kubepods", &[("kubelet", "/podruntime.slice"), ("runtime", "/podruntime.slice")]);
        let sample = sample_of(&["/podruntime.slice", "/kubepods"], paths);
        let ids: Vec<_> = sample.cgroups.iter().map(|group| group.id.as_str()).collect();
        assert_eq!(ids, ["/", "/podruntime.slice", "/kubepods"]);
        let names: Vec<_> = sample.node.system_containers.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["kubelet", "runtime", PODS], "whose it is is told of each");
    }

    #[test]
    fn what_is_below_the_system_s_cgroups_is_told_of() {
        let system = [("kubelet", "/system.slice/kubelet.service"), ("misc", "/system.slice")];
        let cgroups = [
            "/system.slice/ssh.service",
            "/system.slice/boot.mount",
            "/system.slice/kubelet.service/daemon",
            "/system.slice/kubepods/podu",
        ];
        let sample = sample_of(&cgroups, paths("/system.slice/kubepods", &system));
        let ids: Vec<_> = sample.cgroups.iter().map(|group| group.id.as_str()).collect();
        let expected = [
            "/",
            "/system.slice/kubelet.service",
            "/system.slice",
            "/system.slice/kubepods",
            "/system.slice/kubelet.service/daemon",
            "/system.slice/ssh.service",
        ];
        assert_eq!(ids, expected);
    }

    /// Its sandbox and its container are called by `ids`.
    fn pod(cgroup: &str, [sandbox, container]: [&str; 2]) -> Pod {
        let container = PodContainer {
            name: bulkhead_types::ContainerName::parse("main").unwrap(),
            id: container.into(),
            image: "img".into(),
            started_at: String::new(),
        };
        Pod {
            uid: bulkhead_types::PodUid::parse("u1").unwrap(),
            namespace: bulkhead_types::Namespace::parse("default").unwrap(),
            name: bulkhead_types::PodName::parse("web").unwrap(),
            started_at: String::new(),
            cgroup: Some(cgroup.into()),
            sandbox: Some(sandbox.into()),
            host_network: false,
            containers: vec![container],
            volumes: Vec::new(),
            trace_parent: String::new(),
        }
    }

    #[test]
    fn sandboxes_have_the_image_that_is_told() {
        let temp = tempfile::tempdir().unwrap();
        for group in ["p.slice/crio-s1", "p.slice/docker-c1.scope"] {
            std::fs::create_dir_all(temp.path().join(group)).unwrap();
        }
        let mut sampler = Sampler::of(paths("/none", &[]), Hierarchy::V2 { root: temp.path().to_owned() });
        let mut images = || {
            let pods = [pod("/p.slice", ["s1", "c1"])];
            let sample = sampler.sample(Some(&pods), SampleScope { disks: false, cgroups: true });
            sampler.set_sandbox_image("pause:1".into());
            let named = sample.cgroups.into_iter().filter(|group| !group.name.is_empty());
            named.map(|group| (group.name, group.image)).collect::<Vec<_>>()
        };
        let with = |image: &str| [("s1".into(), image.into()), ("c1".into(), "img".into())];
        assert_eq!(images(), with(""));
        assert_eq!(images(), with("pause:1"));
    }

    #[test]
    fn the_node_s_network_is_no_pod_s() {
        let temp = tempfile::tempdir().unwrap();
        let group = temp.path().join("p/s1");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("cgroup.procs"), format!("{}\n", std::process::id())).unwrap();
        let mut sampler = Sampler::of(paths("/none", &[]), Hierarchy::V2 { root: temp.path().to_owned() });
        let pods = [pod("/p", ["s1", "c1"])];
        let sample = sampler.sample(Some(&pods), SampleScope { disks: true, cgroups: true });
        assert_eq!(sample.pods[0].network, None);
    }

    #[test]
    fn a_container_whose_cgroup_has_gone_has_ended() {
        let temp = tempfile::tempdir().unwrap();
        let group = temp.path().join("p.slice/c1");
        std::fs::create_dir_all(&group).unwrap();
        let mut sampler = Sampler::of(paths("/none", &[]), Hierarchy::V2 { root: temp.path().to_owned() });
        let pods = [pod("/p.slice", ["s1", "c1"])];
        let mut told = |pods: Option<&[Pod]>| {
            let sample = sampler.sample(pods, SampleScope::default());
            (sample.pods.first().map(|pod| pod.containers.len()), sample.groupless.len())
        };
        assert_eq!(told(Some(&pods)), (Some(1), 0));
        std::fs::remove_dir(&group).unwrap();
        assert_eq!(told(Some(&pods)), (Some(0), 0));
        assert_eq!(told(None), (None, 0));
        assert_eq!(told(Some(&pods)), (Some(0), 0), "however often it is still listed");
        assert_eq!(told(Some(&[])), (None, 0));
        assert_eq!(told(Some(&pods)), (Some(1), 1), "of another one nothing is known");
    }

    #[test]
    fn containers_without_a_cgroup_are_named_and_nothing_is_measured_of_them() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(temp.path().join("p.slice/s1")).unwrap();
        let mut sampler = Sampler::of(paths("/none", &[]), Hierarchy::V2 { root: temp.path().to_owned() });
        let mut ended = pod("/p.slice", ["s0", "c0"]);
        ended.containers.clear();
        let mut lacking = pod("/p.slice", ["s1", "c1"]);
        lacking.containers[0].started_at = "2026-11-21T00:46:32Z".into();
        let sample = sampler.sample(Some(&[ended, lacking]), SampleScope { disks: false, cgroups: true });
        assert_eq!(sample.groupless, [Groupless { id: "c1".into(), pod: 0, container: 0 }]);
        let expected = ContainerStats {
            name: "main".into(),
            start_time: "2026-11-21T00:46:32Z".into(),
            ..ContainerStats::default()
        };
        assert_eq!(sample.pods[0].containers, [expected]);
        let named: Vec<_> =
            sample.cgroups.iter().map(|group| group.name.as_str()).filter(|name| !name.is_empty()).collect();
        assert_eq!(named, ["s1"], "/metrics/cadvisor has no series of it, as with upstream");
    }

    #[test]
    fn processes_are_looked_for_below_a_group_without_any() {
        let temp = tempfile::tempdir().unwrap();
        for (group, pids) in [("s", ""), ("s/container", "7\n8\n"), ("own", "1\n2\n"), ("own/sub", "3\n")] {
            std::fs::create_dir_all(temp.path().join(group)).unwrap();
            std::fs::write(temp.path().join(group).join("cgroup.procs"), pids).unwrap();
        }
        let many: String = (1..100).map(|pid| format!("{pid}\n")).collect();
        std::fs::create_dir_all(temp.path().join("many")).unwrap();
        std::fs::write(temp.path().join("many/cgroup.procs"), many).unwrap();
        let mut sampler = Sampler::of(paths("/none", &[]), Hierarchy::V2 { root: temp.path().to_owned() });
        assert_eq!(sampler.processes_of("/s"), [7, 8]);
        assert_eq!(sampler.processes_of("/own"), [1, 2]);
        assert_eq!(sampler.processes_of("/many").len(), NETWORK_PROCESSES_MAX);
        assert_eq!(sampler.processes_of("/gone"), [0; 0]);
    }

    #[test]
    fn the_machine_is_measured_without_pods() {
        let paths = paths("/no-such-kubepods", &[("misc", "/no-such-group")]);
        let mut sampler = Sampler::new(paths).unwrap();
        let sample = sampler.sample(None, SampleScope { disks: true, cgroups: true });
        let node = Unrated { cgroup: "/".into(), whose: Whose::Node };
        assert_eq!(sample.unrated, [node], "the first has no rate");
        assert!(!sample.node.pods_known && !sample.machine.pods_known);
        let memory = sample.node.memory.clone().unwrap();
        let total = memory.available_bytes.unwrap() + memory.working_set_bytes.unwrap();
        let meminfo = std::fs::read("/proc/meminfo").unwrap();
        assert_eq!(Some(total), kernel::meminfo(&meminfo, "MemTotal"), "available + working set = capacity");
        assert!(sample.node.max_pid > 0 && sample.node.running_processes > 0);
        assert!(sample.node.start_time.ends_with('Z'), "{}", sample.node.start_time);
        assert!(sample.node.cpu.as_ref().unwrap().time.ends_with('Z'));
        assert!(sample.node.network.is_some() && sample.node.swap.is_some());
        assert!(sample.node.system_containers.is_empty());
        assert_eq!(sample.cgroups.len(), 1, "the root alone");
        let root = &sample.cgroups[0];
        assert_eq!((root.id.as_str(), root.start_time_seconds > 0), ("/", true));
        assert!(root.tasks.unwrap().max_open_files.is_some());
        let small = sampler.sample(None, SampleScope::default());
        assert!(small.cgroups.is_empty() && small.node.network.is_none());
        assert!(sample.holds.covers(small.holds) && !small.holds.covers(sample.holds));
    }
}
