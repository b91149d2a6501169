//! Control groups v1 (one tree for each set of controllers, hybrid too) and v2 (one tree) behind one interface.
//!
//! A cgroup is named by its path below the root of the hierarchy; on v1 the same path is used in every tree. Values are
//! v1's (shares, quota); on v2 they are converted. Every function may be repeated: what is there already is fine.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_types::cpu;
use rustix::event::EventfdFlags;
use rustix::fs::{Mode, OFlags};

use crate::mountinfo::{self, MountInfo};

/// Tries to kill what is in a cgroup, as upstream (`pkg/kubelet/cm/pod_container_manager_linux.go`).
const KILL_TRIES: usize = 5;

/// Controllers without which pods cannot be run (upstream `validateSystemRequirements`).
const REQUIRED: [&str; 4] = ["cpu", "cpuacct", "cpuset", "memory"];

/// What cgroup v1 shows for "no limit" of memory is the largest number of whole pages; from here on it is none.
const V1_NO_LIMIT: i64 = i64::MAX - (1 << 20);

/// Tasks that together waited for memory for 100 ms within 2 s. Windows that are no multiple of 2 s take CAP_SYS_RESOURCE.
const PRESSURE_TRIGGER: &str = "some 100000 2000000";

/// v1's files of a CFS quota: microseconds in a period of so many.
const CFS_PERIOD: &str = "cpu.cfs_period_us";
const CFS_QUOTA: &str = "cpu.cfs_quota_us";

/// Those that the unified hierarchy delegates to pods, where the kernel has them.
const V2_CONTROLLERS: [&str; 6] = ["cpuset", "cpu", "io", "memory", "hugetlb", "pids"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// Includes hybrid: controllers on v1, an empty v2 tree beside them.
    V1,
    V2,
}

/// Why a cgroup could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("{path:?} is no cgroup path: absolute, without empty, \".\" or \"..\" components")]
    Path { path: String },
    #[error("failed to read the mounts")]
    Mounts(#[source] io::Error),
    #[error("no cgroup hierarchy is mounted")]
    NoHierarchy,
    #[error("the cgroup controllers {missing:?} are not mounted")]
    MissingControllers { missing: Vec<&'static str> },
    #[error("cgroup {cgroup} has some missing paths: {}", list(.missing))]
    MissingPaths { cgroup: String, missing: Vec<PathBuf> },
    #[error("could not read controllers for cgroup {cgroup}: {path}")]
    NoControllers { cgroup: String, path: PathBuf, source: io::Error },
    #[error("cgroup {cgroup} has some missing controllers: {}", .missing.join(", "))]
    LacksControllers { cgroup: String, missing: Vec<String> },
    #[error("failed to create the cgroup {path}")]
    Create { path: PathBuf, source: io::Error },
    #[error("failed to write {value:?} to {path}")]
    Write { path: PathBuf, value: String, source: io::Error },
    #[error("failed to read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("failed to remove the cgroup {path}")]
    Remove { path: PathBuf, source: io::Error },
    #[error("the cgroup {path} still has the processes {pids:?}")]
    Busy { path: String, pids: Vec<i32> },
    #[error("the memory controller's events are there with cgroup v1 only")]
    NoMemoryEvents,
    #[error("the kernel tells no memory pressure (PSI) of it")]
    NoPressure,
}

impl CgroupError {
    /// The kernel does not take the value as things stand.
    fn is_invalid_value(&self) -> bool {
        matches!(self, CgroupError::Write { source, .. } if source.raw_os_error() == Some(libc::EINVAL))
    }
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Path of a cgroup below the hierarchy's root, in normal form: "/", "/kubepods", "/kubepods/burstable/pod…".
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupPath(String);

impl CgroupPath {
    pub fn root() -> Self {
        CgroupPath("/".to_owned())
    }

    /// Checks and normalises nothing but a trailing slash.
    pub fn parse(text: &str) -> Result<Self, CgroupError> {
        let bad = || CgroupError::Path { path: text.chars().take(256).collect() };
        let trimmed = text.strip_prefix('/').ok_or_else(bad)?.trim_end_matches('/');
        if trimmed.is_empty() {
            return if text.bytes().all(|b| b == b'/') { Ok(Self::root()) } else { Err(bad()) };
        }
        let mut path = Self::root();
        for component in trimmed.split('/') {
            path = path.child(component).map_err(|_| bad())?;
        }
        Ok(path)
    }

    /// One level down.
    pub fn child(&self, name: &str) -> Result<Self, CgroupError> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0', '\n']) || name.len() > 255 {
            return Err(CgroupError::Path { path: name.chars().take(256).collect() });
        }
        Ok(CgroupPath(if self.is_root() { format!("/{name}") } else { format!("{}/{name}", self.0) }))
    }

    pub fn is_root(&self) -> bool {
        self.0 == "/"
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last component; empty for the root.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// As upstream's messages show it: `["a" "b"]`.
    pub fn quoted(&self) -> String {
        let parts = self.0.split('/').filter(|part| !part.is_empty()).map(|part| format!("{part:?}"));
        format!("[{}]", parts.collect::<Vec<_>>().join(" "))
    }

    fn below(&self, mount_point: &Path) -> PathBuf {
        mount_point.join(self.0.trim_start_matches('/'))
    }

    /// This path's ancestors from the first level down to itself; none for the root.
    fn with_ancestors(&self) -> impl Iterator<Item = CgroupPath> + '_ {
        let ends = self.0.char_indices().skip(1).filter(|(_, c)| *c == '/').map(|(i, _)| i);
        let whole = (!self.is_root()).then_some(self.0.len());
        ends.chain(whole).map(|end| CgroupPath(self.0[..end].to_owned()))
    }
}

impl std::fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Limits to write; None leaves a value as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resources {
    /// v1 shares, 2 to 262144.
    pub cpu_shares: Option<u64>,
    /// Microseconds in a period; negative is no limit.
    pub cpu_quota_us: Option<i64>,
    pub cpu_period_us: Option<u64>,
    /// Bytes; negative is no limit.
    pub memory_limit_bytes: Option<i64>,
    /// Negative is no limit.
    pub pids_limit: Option<i64>,
    /// Page size as the kernel names it ("2MB") to bytes.
    pub hugepage_limits: BTreeMap<String, u64>,
    /// v2 only (on v1 a new cgroup has its parent's): CPUs that may be used, as the kernel lists them ("0-3,6").
    pub cpus: Option<String>,
    /// v2 only: bytes that are never taken back.
    pub memory_min_bytes: Option<u64>,
    /// v2 only: bytes that are taken back last.
    pub memory_low_bytes: Option<u64>,
}

/// The mounted hierarchies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchies {
    version: Version,
    trees: Vec<Tree>,
    /// The empty v2 tree of a hybrid system: never written, but cleaned.
    hybrid: Option<PathBuf>,
    cpu_load_balance_disable: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Tree {
    mount_point: PathBuf,
    /// v1: those of this tree; v2: empty.
    controllers: BTreeSet<String>,
}

impl Tree {
    /// v1: what is in it needs CPUs and memory nodes.
    fn has_cpuset(&self) -> bool {
        self.controllers.contains("cpuset")
    }
}

/// The folders below which all control groups are mounted, of either version.
///
/// # Errors
/// The list of mounts cannot be read.
pub fn mount_points() -> io::Result<Vec<PathBuf>> {
    let mut mounts = MountInfo::new();
    let groups = mounts.read()?.filter(|mount| matches!(&*mount.fs_type, "cgroup" | "cgroup2"));
    let mut points: Vec<PathBuf> = groups.map(|mount| mount.mount_point.into_owned()).collect();
    points.sort();
    points.dedup_by(|one, earlier| one.starts_with(earlier));
    // Where systemd has them, one for each controller of v1.
    let usual = Path::new("/sys/fs/cgroup");
    Ok(if points.iter().all(|point| point.starts_with(usual)) { vec![usual.to_owned()] } else { points })
}

impl Hierarchies {
    /// From the mounts of this process's namespace.
    pub fn detect() -> Result<Self, CgroupError> {
        Self::from_mounts(MountInfo::new().read().map_err(CgroupError::Mounts)?)
    }

    fn from_mounts<'a>(mounts: impl Iterator<Item = mountinfo::Mount<'a>>) -> Result<Self, CgroupError> {
        const NOT_CONTROLLERS: [&str; 8] =
            ["rw", "ro", "xattr", "clone_children", "noprefix", "none", "all", "cpuset_v2_mode"];
        let mut trees: Vec<Tree> = Vec::new();
        let mut unified = None;
        for mount in mounts {
            match &*mount.fs_type {
                "cgroup" => {
                    let controllers: BTreeSet<String> = mount
                        .super_options
                        .split(',')
                        .filter(|o| !NOT_CONTROLLERS.contains(o) && !o.starts_with("release_agent="))
                        .map(str::to_owned)
                        .collect();
                    // A tree mounted twice (containers' bind mounts of it) counts once, where it came first.
                    if !trees.iter().any(|tree| tree.controllers == controllers) {
                        trees.push(Tree { mount_point: mount.mount_point.into_owned(), controllers });
                    }
                }
                "cgroup2" if unified.is_none() => unified = Some(mount.mount_point.into_owned()),
                _ => {}
            }
        }
        // One tree of the old kind beside (`net_cls`, for a VPN) makes no machine of that kind.
        let is_required = |controller: &String| REQUIRED.contains(&controller.as_str());
        let has_v1_controllers = trees.iter().any(|tree| tree.controllers.iter().any(is_required));
        match (has_v1_controllers, unified) {
            (true, hybrid) => Ok(Hierarchies { version: Version::V1, trees, hybrid, cpu_load_balance_disable: false }),
            (false, Some(mount_point)) => {
                let trees = vec![Tree { mount_point, controllers: BTreeSet::new() }];
                Ok(Hierarchies { version: Version::V2, trees, hybrid: None, cpu_load_balance_disable: false })
            }
            (false, None) => Err(CgroupError::NoHierarchy),
        }
    }

    /// v1: cgroups that are made from now on leave it to those below them whether the scheduler moves tasks between their CPUs.
    /// A runtime can so keep a container's own CPUs out of that, though the pods' cgroups have them as well (upstream
    /// `SetCPULoadBalanceDisable`). v2 has no such file.
    pub fn set_cpu_load_balance_disable(&mut self) {
        self.cpu_load_balance_disable = true;
    }

    pub fn version(&self) -> Version {
        self.version
    }

    /// Fails when a controller that pods cannot do without is missing.
    pub fn check_required(&self) -> Result<(), CgroupError> {
        let available = self.available()?;
        // On v2 accounting is part of "cpu".
        let is_there = |c: &str| available.contains(c) || (self.version == Version::V2 && c == "cpuacct");
        let missing: Vec<_> = REQUIRED.into_iter().filter(|c| !is_there(c)).collect();
        if missing.is_empty() { Ok(()) } else { Err(CgroupError::MissingControllers { missing }) }
    }

    fn available(&self) -> Result<BTreeSet<String>, CgroupError> {
        match self.version {
            Version::V1 => Ok(self.trees.iter().flat_map(|tree| tree.controllers.iter().cloned()).collect()),
            Version::V2 => Ok(read(&self.trees[0].mount_point.join("cgroup.controllers"))?
                .split_whitespace()
                .map(str::to_owned)
                .collect()),
        }
    }

    /// Where this controller's tree is mounted (v2: the one tree).
    pub fn mount_point(&self, controller: &str) -> Option<&Path> {
        let tree = self.trees.iter().find(|t| self.version == Version::V2 || t.controllers.contains(controller))?;
        Some(&tree.mount_point)
    }

    /// A file of a cgroup, for reading statistics; None when the controller is not mounted.
    pub fn file(&self, controller: &str, path: &CgroupPath, name: &str) -> Option<PathBuf> {
        Some(path.below(self.mount_point(controller)?).join(name))
    }

    /// Creates the cgroup with its ancestors in every tree. True when any directory was missing.
    pub fn ensure(&self, path: &CgroupPath) -> Result<bool, CgroupError> {
        let mut created = false;
        for tree in &self.trees {
            // On v1 the ancestors are nearly always there, and need nothing.
            let leaf = if self.version == Version::V1 { self.create_leaf(tree, path)? } else { Leaf::LacksAncestors };
            created |= match leaf {
                Leaf::IsThere { created } => created,
                Leaf::LacksCpus { created } => self.create_with_ancestors(tree, path)? || created,
                Leaf::LacksAncestors => self.create_with_ancestors(tree, path)?,
            };
        }
        Ok(created)
    }

    fn create_with_ancestors(&self, tree: &Tree, path: &CgroupPath) -> Result<bool, CgroupError> {
        let mut created = false;
        let mut parent = tree.mount_point.clone();
        for step in path.with_ancestors() {
            let dir = step.below(&tree.mount_point);
            if self.version == Version::V2 {
                enable_controllers(&parent)?;
            }
            created |= self.create_dir(tree, &dir)?;
            if tree.has_cpuset() {
                inherit_cpuset(&parent, &dir)?;
            }
            parent = dir;
        }
        Ok(created)
    }

    /// v1: creates the cgroup in a tree where its parent is there.
    fn create_leaf(&self, tree: &Tree, path: &CgroupPath) -> Result<Leaf, CgroupError> {
        let dir = path.below(&tree.mount_point);
        let created = match self.create_dir(tree, &dir) {
            Err(CgroupError::Create { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(Leaf::LacksAncestors);
            }
            created => created?,
        };
        match dir.parent().filter(|_| tree.has_cpuset() && !path.is_root()) {
            Some(parent) if !inherit_cpuset(parent, &dir)? => Ok(Leaf::LacksCpus { created }),
            _ => Ok(Leaf::IsThere { created }),
        }
    }

    /// True when it was missing.
    fn create_dir(&self, tree: &Tree, dir: &Path) -> Result<bool, CgroupError> {
        match std::fs::create_dir(dir) {
            // Before it has CPUs, or they would be balanced together with all others for that moment.
            Ok(()) if self.cpu_load_balance_disable && tree.has_cpuset() => {
                write(&dir.join("cpuset.sched_load_balance"), "0").map(|()| true)
            }
            Ok(()) => Ok(true),
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(source) => Err(CgroupError::Create { path: dir.to_owned(), source }),
        }
    }

    /// Whether the cgroup is there in the tree of every controller that pods need.
    pub fn exists(&self, path: &CgroupPath) -> bool {
        self.trees
            .iter()
            .filter(|t| self.version == Version::V2 || REQUIRED.iter().any(|c| t.controllers.contains(*c)))
            .all(|tree| path.below(&tree.mount_point).is_dir())
    }

    /// Fails unless these controllers' files of a cgroup that somebody else has made can be written (upstream
    /// `CgroupManager.Validate`, which asks for all controllers that pods have). With `by_systemd` systemd writes them, which
    /// takes the controllers that it needs: then the cgroup alone must be there.
    ///
    /// # Errors
    /// What is missing, in upstream's words.
    pub fn check_existing(&self, path: &CgroupPath, controllers: &[&str], by_systemd: bool) -> Result<(), CgroupError> {
        let cgroup = || path.quoted();
        match self.version {
            Version::V1 => {
                let is_needed = |tree: &&Tree| {
                    let has = |name: &str| tree.controllers.contains(name);
                    if by_systemd { has("name=systemd") } else { controllers.iter().any(|name| has(name)) }
                };
                let dirs = self.trees.iter().filter(is_needed).map(|tree| path.below(&tree.mount_point));
                let missing: Vec<PathBuf> = dirs.filter(|dir| !dir.is_dir()).collect();
                if missing.is_empty() { Ok(()) } else { Err(CgroupError::MissingPaths { cgroup: cgroup(), missing }) }
            }
            Version::V2 => {
                let path = path.below(&self.trees[0].mount_point).join("cgroup.controllers");
                let enabled = std::fs::read_to_string(&path).map_err(|source| CgroupError::NoControllers {
                    cgroup: cgroup(),
                    path,
                    source,
                })?;
                let available = self.available()?;
                let lacks =
                    |name: &&&str| available.contains(**name) && !enabled.split_whitespace().any(|c| c == **name);
                let missing = controllers.iter().filter(lacks).map(|name| (*name).to_owned());
                let missing: Vec<String> = if by_systemd { Vec::new() } else { missing.collect() };
                if missing.is_empty() {
                    Ok(())
                } else {
                    Err(CgroupError::LacksControllers { cgroup: cgroup(), missing })
                }
            }
        }
    }

    /// v1: gives a cgroup that has no CPU yet those of its parent. On v2 it has them without being told.
    ///
    /// # Errors
    /// The files cannot be read or written.
    pub fn fill_cpus(&self, path: &CgroupPath) -> Result<(), CgroupError> {
        let dir = self.mount_point("cpuset").filter(|_| self.version == Version::V1).map(|top| path.below(top));
        match dir.as_deref().map(|dir| (dir, dir.parent())) {
            Some((dir, Some(parent))) if dir.is_dir() => inherit(parent, dir, "cpuset.cpus").map(|_| ()),
            _ => Ok(()),
        }
    }

    /// The sizes of huge pages that can be limited for this cgroup, as the kernel names them ("2MB").
    pub fn huge_page_sizes(&self, path: &CgroupPath) -> Vec<String> {
        let end = match self.version {
            Version::V1 => ".limit_in_bytes",
            Version::V2 => ".max",
        };
        let Some(dir) = self.mount_point("hugetlb").map(|top| path.below(top)) else { return Vec::new() };
        let names =
            std::fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok());
        // "hugetlb.2MB.rsvd.max" and "hugetlb.2MB.events.max" are others.
        let size = |name: String| {
            let size = name.strip_prefix("hugetlb.")?.strip_suffix(end)?;
            (!size.contains('.')).then(|| size.to_owned())
        };
        names.filter_map(size).collect()
    }

    /// Writes the limits. Controllers for process counts and huge pages may be missing from the kernel, or files of
    /// theirs: then those limits are skipped and named in the answer.
    pub fn apply(&self, path: &CgroupPath, resources: &Resources) -> Result<Vec<String>, CgroupError> {
        let mut skipped = Vec::new();
        let mut refused_period = None;
        for (controller, file, value) in self.writes(resources) {
            let optional = matches!(controller, "pids" | "hugetlb");
            let Some(target) = self.file(controller, path, &file) else {
                if optional {
                    skipped.push(controller.to_owned());
                    continue;
                }
                let missing = REQUIRED.into_iter().filter(|c| *c == controller).collect();
                return Err(CgroupError::MissingControllers { missing });
            };
            if optional && !target.exists() {
                skipped.push(file);
                continue;
            }
            match write(&target, &value) {
                // The quota of the former period may be more than the parent's in this one, or less than a child's: the new quota
                // comes next (upstream `CpuGroup.Set` of `opencontainers/cgroups`).
                Err(error) if file == CFS_PERIOD && resources.cpu_quota_us.is_some() && error.is_invalid_value() => {
                    refused_period = Some((target, value));
                    continue;
                }
                written => written?,
            }
            if file == CFS_QUOTA
                && let Some((target, value)) = refused_period.take()
            {
                write(&target, &value)?;
            }
        }
        Ok(skipped)
    }

    /// Controller, file and value of each limit. Pure.
    fn writes(&self, resources: &Resources) -> Vec<(&'static str, String, String)> {
        let mut writes = Vec::new();
        let mut add = |controller, file: &str, value: String| writes.push((controller, file.to_owned(), value));
        let or_max = |value: i64| if value < 0 { "max".to_owned() } else { value.to_string() };
        match self.version {
            Version::V1 => {
                if let Some(shares) = resources.cpu_shares {
                    add("cpu", "cpu.shares", shares.to_string());
                }
                if let Some(period) = resources.cpu_period_us {
                    add("cpu", CFS_PERIOD, period.to_string());
                }
                if let Some(quota) = resources.cpu_quota_us {
                    add("cpu", CFS_QUOTA, quota.max(-1).to_string());
                }
                if let Some(limit) = resources.memory_limit_bytes {
                    add("memory", "memory.limit_in_bytes", limit.max(-1).to_string());
                }
            }
            Version::V2 => {
                if let Some(shares) = resources.cpu_shares {
                    add("cpu", "cpu.weight", cpu::shares_to_weight(shares).to_string());
                }
                if let Some(quota) = resources.cpu_quota_us {
                    let period = resources.cpu_period_us.unwrap_or(cpu::QUOTA_PERIOD_US);
                    add("cpu", "cpu.max", format!("{} {period}", or_max(quota)));
                }
                if let Some(limit) = resources.memory_limit_bytes {
                    add("memory", "memory.max", or_max(limit));
                }
                if let Some(cpus) = &resources.cpus {
                    add("cpuset", "cpuset.cpus", cpus.clone());
                }
                if let Some(bytes) = resources.memory_min_bytes {
                    add("memory", "memory.min", bytes.to_string());
                }
                if let Some(bytes) = resources.memory_low_bytes {
                    add("memory", "memory.low", bytes.to_string());
                }
            }
        }
        if let Some(limit) = resources.pids_limit {
            add("pids", "pids.max", or_max(limit));
        }
        let end = match self.version {
            Version::V1 => "limit_in_bytes",
            Version::V2 => "max",
        };
        for (size, limit) in &resources.hugepage_limits {
            add("hugetlb", &format!("hugetlb.{size}.{end}"), limit.to_string());
            // Of pages that are reserved and not used yet, since Linux 5.7: more than the limit is refused when it is mapped, and not
            // with SIGBUS when it is used.
            add("hugetlb", &format!("hugetlb.{size}.rsvd.{end}"), limit.to_string());
        }
        writes
    }

    /// The cgroup's CPU and memory limits as they stand, in the units of [`Resources`]; what a controller that is not
    /// there would say is None. "No limit" is -1.
    pub fn limits(&self, path: &CgroupPath) -> Result<Resources, CgroupError> {
        let text = |controller: &str, name: &str| -> Result<Option<String>, CgroupError> {
            match self.file(controller, path, name) {
                Some(file) => read(&file).map(|text| Some(text.trim().to_owned())),
                None => Ok(None),
            }
        };
        let number =
            |text: Option<String>| text.and_then(|t| if t == "max" { Some(-1) } else { t.parse::<i64>().ok() });
        let unsigned = |text: Option<String>| text.and_then(|t| t.parse::<u64>().ok());
        let mut limits = Resources::default();
        match self.version {
            Version::V1 => {
                limits.cpu_shares = unsigned(text("cpu", "cpu.shares")?);
                limits.cpu_quota_us = number(text("cpu", CFS_QUOTA)?);
                limits.cpu_period_us = unsigned(text("cpu", CFS_PERIOD)?);
                let memory = number(text("memory", "memory.limit_in_bytes")?);
                limits.memory_limit_bytes = memory.map(|bytes| if bytes >= V1_NO_LIMIT { -1 } else { bytes });
            }
            Version::V2 => {
                limits.cpu_shares = unsigned(text("cpu", "cpu.weight")?).map(cpu::weight_to_shares);
                let max = text("cpu", "cpu.max")?.unwrap_or_default();
                let mut parts = max.split_whitespace().map(str::to_owned);
                limits.cpu_quota_us = number(parts.next());
                limits.cpu_period_us = unsigned(parts.next());
                limits.memory_limit_bytes = number(text("memory", "memory.max")?);
            }
        }
        Ok(limits)
    }

    /// Memory that the cgroup and everything below it uses, bytes, page cache included. None: no such controller.
    pub fn memory_usage(&self, path: &CgroupPath) -> Result<Option<u64>, CgroupError> {
        let name = match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        match self.file("memory", path, name) {
            Some(file) => Ok(read(&file)?.trim().parse().ok()),
            None => Ok(None),
        }
    }

    /// Names of the cgroup's children in any tree; empty when it is not there.
    pub fn children(&self, path: &CgroupPath) -> Result<BTreeSet<String>, CgroupError> {
        let mut names = BTreeSet::new();
        for dir in self.all_dirs(path) {
            for child in sub_dirs(&dir)? {
                if let Some(name) = child.file_name().and_then(|n| n.to_str()) {
                    names.insert(name.to_owned());
                }
            }
        }
        Ok(names)
    }

    /// Processes in the cgroup and below it, in any tree.
    pub fn pids(&self, path: &CgroupPath) -> Result<BTreeSet<i32>, CgroupError> {
        let mut pids = BTreeSet::new();
        for dir in self.all_dirs(path) {
            for dir in post_order(&dir)? {
                match crate::kernel_file::read(&dir.join("cgroup.procs")) {
                    // A process of another pid namespace shows as 0.
                    Ok(text) => pids.extend(text.lines().filter_map(|l| l.parse().ok()).filter(|pid: &i32| *pid > 0)),
                    Err(err) if is_gone(&err) => {}
                    Err(source) => return Err(CgroupError::Read { path: dir.join("cgroup.procs"), source }),
                }
            }
        }
        Ok(pids)
    }

    /// Kills what is in the cgroup and removes it with everything below, in every tree. Blocks for up to a second.
    /// The root is refused. True when it was there in any tree.
    pub fn kill_and_remove(&self, path: &CgroupPath) -> Result<bool, CgroupError> {
        if path.is_root() {
            return Err(CgroupError::Path { path: path.to_string() });
        }
        let (was_there, is_left) = self.remove_if_empty(path)?;
        if !is_left {
            return Ok(was_there);
        }
        let mut pids = self.pids(path)?;
        for attempt in 0..KILL_TRIES {
            if pids.is_empty() {
                break;
            }
            if !self.kill_by_kernel(path) {
                kill_members(&pids, || self.pids(path))?;
            }
            // SIGKILL takes effect when the process next runs; its parent need not have reaped it.
            std::thread::sleep(std::time::Duration::from_millis(10 << attempt));
            pids = self.pids(path)?;
        }
        if !pids.is_empty() {
            return Err(CgroupError::Busy { path: path.to_string(), pids: pids.into_iter().collect() });
        }
        for dir in self.all_dirs(path) {
            for dir in post_order(&dir)? {
                remove_dir(&dir)?;
            }
        }
        Ok(was_there)
    }

    /// Removes it where neither a process nor a cgroup is in it, which the kernel knows best: it refuses with EBUSY. That is how
    /// the cgroups of nearly all pods go, without a look into any. The answer: whether it was there, and whether it is left.
    fn remove_if_empty(&self, path: &CgroupPath) -> Result<(bool, bool), CgroupError> {
        let (mut was_there, mut is_left) = (false, false);
        for mount_point in self.mount_points() {
            let dir = path.below(mount_point);
            match std::fs::remove_dir(&dir) {
                Ok(()) => was_there = true,
                Err(err) if is_gone(&err) => {}
                Err(err) if matches!(err.raw_os_error(), Some(libc::EBUSY | libc::ENOTEMPTY)) => {
                    (was_there, is_left) = (true, true);
                }
                Err(source) => return Err(CgroupError::Remove { path: dir, source }),
            }
        }
        Ok((was_there, is_left))
    }

    /// v2 since Linux 5.14: the kernel kills whatever is in the cgroup and below it, which leaves no moment in between. False: there
    /// is no such file.
    fn kill_by_kernel(&self, path: &CgroupPath) -> bool {
        self.version == Version::V2
            && self.trees.iter().any(|tree| write(&path.below(&tree.mount_point).join("cgroup.kill"), "1").is_ok())
    }

    /// v1: an eventfd that becomes readable when the memory that the cgroup uses, page cache included, crosses `threshold_bytes` in
    /// either direction (kernel `Documentation/admin-guide/cgroup-v1/memory.rst`, 9). The root is the whole machine.
    pub fn memory_event(&self, path: &CgroupPath, threshold_bytes: u64) -> Result<OwnedFd, CgroupError> {
        let root = match self.version {
            Version::V1 => path.below(self.mount_point("memory").ok_or(CgroupError::NoMemoryEvents)?),
            Version::V2 => return Err(CgroupError::NoMemoryEvents),
        };
        let control = root.join("cgroup.event_control");
        let failed = |value: &str, source: io::Error| CgroupError::Write {
            path: control.clone(),
            value: value.to_owned(),
            source,
        };
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| failed("an eventfd", e.into()))?;
        let usage_path = root.join("memory.usage_in_bytes");
        let usage =
            std::fs::File::open(&usage_path).map_err(|source| CgroupError::Read { path: usage_path, source })?;
        let value = format!("{} {} {threshold_bytes}", event.as_raw_fd(), usage.as_raw_fd());
        // The kernel takes its own references; `usage` may be closed afterwards.
        std::fs::write(&control, &value).map_err(|source| failed(&value, source))?;
        Ok(event)
    }

    /// A PSI file with a trigger, which polls as urgent when tasks have waited for memory (kernel
    /// `Documentation/accounting/psi.rst`): of the machine, or with v2 of one cgroup.
    pub fn memory_pressure_trigger(&self, path: &CgroupPath) -> Result<OwnedFd, CgroupError> {
        let file = match (path.is_root(), self.version) {
            (true, _) => PathBuf::from("/proc/pressure/memory"),
            (false, Version::V2) => self.file("memory", path, "memory.pressure").ok_or(CgroupError::NoPressure)?,
            (false, Version::V1) => return Err(CgroupError::NoPressure),
        };
        let failed = |source| CgroupError::Write { path: file.clone(), value: PRESSURE_TRIGGER.to_owned(), source };
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = rustix::fs::open(&file, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        // The kernel overwrites the last byte.
        let text = format!("{PRESSURE_TRIGGER}\n");
        rustix::io::write(&open, text.as_bytes()).map_err(|errno| failed(errno.into()))?;
        Ok(open)
    }

    /// The cgroup's directory in each tree where it exists, the hybrid one included.
    fn all_dirs(&self, path: &CgroupPath) -> Vec<PathBuf> {
        self.mount_points().map(|mount_point| path.below(mount_point)).filter(|dir| dir.is_dir()).collect()
    }

    /// Where each tree is mounted, the hybrid one included.
    fn mount_points(&self) -> impl Iterator<Item = &Path> {
        self.trees.iter().map(|tree| tree.mount_point.as_path()).chain(self.hybrid.as_deref())
    }
}

/// Kills these processes, each only if it is a member after its pid was pinned: a number that was given to another process
/// meanwhile kills nobody. `members` is asked once.
fn kill_members(
    pids: &BTreeSet<i32>,
    members: impl FnOnce() -> Result<BTreeSet<i32>, CgroupError>,
) -> Result<(), CgroupError> {
    let pinned: Vec<(i32, OwnedFd)> = pids.iter().filter_map(|pid| Some((*pid, crate::peer::pin(*pid)?))).collect();
    let members = members()?;
    for (_, pidfd) in pinned.iter().filter(|(pid, _)| members.contains(pid)) {
        // It may have ended by itself meanwhile.
        let _ = rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
    }
    Ok(())
}

fn is_gone(err: &io::Error) -> bool {
    err.kind() == io::ErrorKind::NotFound || err.raw_os_error() == Some(libc::ENODEV)
}

fn read(path: &Path) -> Result<String, CgroupError> {
    crate::kernel_file::read(path).map_err(|source| CgroupError::Read { path: path.to_owned(), source })
}

/// What a cgroup is without a look at its ancestors. `created`: it was missing.
enum Leaf {
    IsThere { created: bool },
    LacksCpus { created: bool },
    LacksAncestors,
}

fn write(path: &Path, value: &str) -> Result<(), CgroupError> {
    // One write, no creation: a missing file is a missing controller.
    std::fs::OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
        .map_err(|source| CgroupError::Write { path: path.to_owned(), value: value.to_owned(), source })
}

/// A new v1 cpuset has no CPU and no memory node, and no process can enter it until it has. False: the parent has none either.
fn inherit_cpuset(parent: &Path, child: &Path) -> Result<bool, CgroupError> {
    Ok(inherit(parent, child, "cpuset.cpus")? & inherit(parent, child, "cpuset.mems")?)
}

/// Copies a cpuset value from the parent where the child's is empty. False: it is empty there, too.
fn inherit(parent: &Path, child: &Path, file: &str) -> Result<bool, CgroupError> {
    let own = child.join(file);
    if read(&own)?.trim().is_empty() {
        let from_parent = read(&parent.join(file))?;
        if from_parent.trim().is_empty() {
            return Ok(false);
        }
        write(&own, from_parent.trim())?;
    }
    Ok(true)
}

/// v2: lets children of `dir` have every controller that `dir` itself has.
fn enable_controllers(dir: &Path) -> Result<(), CgroupError> {
    let available = read(&dir.join("cgroup.controllers"))?;
    let control = dir.join("cgroup.subtree_control");
    let enabled = read(&control)?;
    for controller in V2_CONTROLLERS {
        let has = |list: &str| list.split_whitespace().any(|c| c == controller);
        if has(&available) && !has(&enabled) {
            write(&control, &format!("+{controller}"))?;
        }
    }
    Ok(())
}

fn sub_dirs(dir: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(err) if is_gone(&err) => return Ok(Vec::new()),
        Err(source) => return Err(CgroupError::Read { path: dir.to_owned(), source }),
    };
    Ok(entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect())
}

/// The directory and all below it, children before parents. The kernel bounds the depth.
fn post_order(dir: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let mut all = vec![dir.to_owned()];
    let mut next = 0;
    while let Some(dir) = all.get(next) {
        let below = sub_dirs(dir)?;
        all.extend(below);
        next += 1;
    }
    all.reverse();
    Ok(all)
}

/// rmdir, a few times: right after the last process died the kernel may still answer EBUSY.
fn remove_dir(dir: &Path) -> Result<(), CgroupError> {
    let mut wait = std::time::Duration::from_millis(5);
    loop {
        match std::fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(err) if is_gone(&err) => return Ok(()),
            Err(err) if err.raw_os_error() == Some(libc::EBUSY) && wait.as_millis() < 200 => {
                std::thread::sleep(wait);
                wait *= 2;
            }
            Err(source) => return Err(CgroupError::Remove { path: dir.to_owned(), source }),
        }
    }
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
