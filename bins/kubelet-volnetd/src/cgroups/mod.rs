//! The pods' cgroup tree: kubepods, its QoS children, one cgroup for each pod (upstream `pkg/kubelet/cm`).
//!
//! How a cgroup is called depends on the driver ([`driver`]); how it is written depends on the cgroup version
//! (`bulkhead_sys::cgroup`); what is in the tree is decided here.

pub mod driver;
mod properties;

pub use driver::Driver;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bulkhead_config::reserved::{self, Enforcement};
use bulkhead_sys::cgroup::{CgroupError, CgroupPath, Hierarchies, Resources};
use bulkhead_sys::session::{self, SessionError};
use bulkhead_types::{ContainerId, PodUid, QosClass, cpu};

use crate::validate::QosLevels;

/// Huge pages of the QoS levels are not limited (upstream `HugePages unbounded`, 2^62).
const UNBOUNDED_HUGE_PAGES: u64 = 1 << 62;

/// Why a cgroup verb failed.
#[derive(Debug, thiserror::Error)]
pub enum PodsTreeError {
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error("invalid configuration: cgroup-root {root:?} doesn't exist")]
    NoRoot { root: String },
    #[error("the systemd cgroup driver needs systemd as the machine's first process")]
    NoSystemd,
    #[error("failed to ask systemd about the slice {slice}")]
    Systemd { slice: String, source: bulkhead_sys::systemd::SystemdError },
    #[error("{0}")]
    NothingReserved(String),
    #[error("the root of all cgroups cannot be limited")]
    Root,
    #[error("no cgroup of container {container} in that of pod {pod}")]
    NoContainer { pod: PodUid, container: ContainerId },
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// A pod's cgroup that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCgroup {
    pub pod: PodUid,
    pub qos: QosClass,
    pub path: CgroupPath,
}

/// The tree of this node.
#[derive(Debug)]
pub struct PodsTree {
    hierarchies: Hierarchies,
    /// The driver in use is systemd. The runtime's word counts more than the configuration's, and comes later.
    systemd: AtomicBool,
    root: CgroupPath,
    per_qos: bool,
}

impl PodsTree {
    pub fn new(hierarchies: Hierarchies, driver: Driver, root: CgroupPath, per_qos: bool) -> Result<Self, CgroupError> {
        let systemd = AtomicBool::new(driver == Driver::Systemd);
        Ok(PodsTree { hierarchies, systemd, root, per_qos })
    }

    pub fn driver(&self) -> Driver {
        if self.systemd.load(Ordering::Relaxed) { Driver::Systemd } else { Driver::Cgroupfs }
    }

    /// Names cgroups by this driver from now on.
    pub fn use_driver(&self, driver: Driver) {
        self.systemd.store(driver == Driver::Systemd, Ordering::Relaxed);
    }

    pub fn hierarchies(&self) -> &Hierarchies {
        &self.hierarchies
    }

    /// kubepods and its QoS children, with the node's limits on kubepods. The answer says whether it has those: its pods may
    /// use more than a new limit allows, which eviction is to change.
    ///
    /// # Errors
    /// The tree cannot be made.
    pub fn ensure_node(&self, kubepods: &Resources) -> Result<Result<(), PodsTreeError>, PodsTreeError> {
        self.hierarchies.check_required()?;
        if self.driver() == Driver::Systemd && !bulkhead_sys::systemd::is_running() {
            return Err(PodsTreeError::NoSystemd);
        }
        if !self.per_qos {
            return Ok(Ok(()));
        }
        let root = self.driver().path(&self.root, &[])?;
        if !self.hierarchies.exists(&root) {
            return Err(PodsTreeError::NoRoot { root: self.root.to_string() });
        }
        let top = self.level(&[])?;
        self.create(&top)?;
        let limited = self.apply(&top, kubepods);
        for (qos, shares) in [(QosClass::Burstable, None), (QosClass::BestEffort, Some(cpu::MIN_SHARES))] {
            let path = self.qos_path(qos)?;
            self.create(&path)?;
            let hugepage_limits = kubepods.hugepage_limits.keys().map(|k| (k.clone(), UNBOUNDED_HUGE_PAGES)).collect();
            self.apply(&path, &Resources { cpu_shares: shares, hugepage_limits, ..Resources::default() })?;
        }
        Ok(limited)
    }

    /// Limits a cgroup that is not ours and has to be there (`enforceNodeAllocatable`). systemd's units are told and not
    /// written to: it keeps what it was told, so their limits have one owner.
    ///
    /// # Errors
    /// Nothing is reserved for it, it is not there or cannot be limited.
    pub fn enforce_reserved(&self, reserved: &Enforcement) -> Result<(), PodsTreeError> {
        let systemd = self.driver() == Driver::Systemd;
        if reserved.is_empty {
            return Err(PodsTreeError::NothingReserved(reserved.nothing_reserved(systemd)));
        }
        let path = CgroupPath::parse(&reserved::path(&reserved.cgroup, systemd))?;
        if path.is_root() {
            return Err(PodsTreeError::Root);
        }
        self.hierarchies.check_existing(&path, &reserved.controllers(), systemd)?;
        let mut resources = Resources {
            cpu_shares: reserved.milli_cpu.map(cpu::milli_cpu_to_shares),
            memory_limit_bytes: reserved.memory_bytes,
            memory_min_bytes: reserved.memory_min_bytes,
            pids_limit: reserved.pids,
            ..Resources::default()
        };
        if systemd {
            return self.tell(&path, &resources);
        }
        // What is not reserved of them is none, as upstream has it.
        resources.hugepage_limits = self.hierarchies.huge_page_sizes(&path).into_iter().map(|size| (size, 0)).collect();
        self.hierarchies.fill_cpus(&path)?;
        self.apply(&path, &resources)
    }

    /// The pod's cgroup with its limits. Answers what CRI's cgroup_parent is, and whether it was missing. None: pods have no
    /// cgroups, and the runtime chooses where containers are put (upstream podContainerManagerNoop).
    pub fn ensure_pod(
        &self,
        pod: &PodUid,
        qos: QosClass,
        limits: &Resources,
    ) -> Result<(Option<CgroupPath>, bool), PodsTreeError> {
        if !self.per_qos {
            return Ok((None, false));
        }
        let path = self.pod_path(pod, qos)?;
        let created = self.create(&path)?;
        self.apply(&path, limits)?;
        Ok((Some(path), created))
    }

    /// What the pod's cgroup is limited to now, and the memory that it uses. None: there is no cgroup for each pod.
    pub fn pod_limits(&self, pod: &PodUid, qos: QosClass) -> Result<Option<(Resources, Option<u64>)>, PodsTreeError> {
        if !self.per_qos {
            return Ok(None);
        }
        let path = self.pod_path(pod, qos)?;
        Ok(Some((self.hierarchies.limits(&path)?, self.hierarchies.memory_usage(&path)?)))
    }

    /// The burstable level's share is the sum of its pods' requests; memory is kept for levels, and taken from them, only
    /// where that is given.
    pub fn set_qos(&self, levels: &QosLevels) -> Result<(), PodsTreeError> {
        if !self.per_qos {
            return Ok(());
        }
        let levels = [
            (QosClass::Guaranteed, Resources { memory_min_bytes: levels.kubepods_memory_min, ..Resources::default() }),
            (
                QosClass::Burstable,
                Resources {
                    cpu_shares: Some(levels.burstable_cpu_shares),
                    memory_low_bytes: levels.burstable_memory_low,
                    memory_limit_bytes: levels.burstable_memory_limit,
                    ..Resources::default()
                },
            ),
            (
                QosClass::BestEffort,
                Resources {
                    cpu_shares: Some(cpu::MIN_SHARES),
                    memory_limit_bytes: levels.best_effort_memory_limit,
                    ..Resources::default()
                },
            ),
        ];
        // Each level gets what can be had, also where another's cannot.
        let mut result = Ok(());
        for (qos, resources) in levels {
            let path = self.qos_path(qos)?;
            result = result.and(self.apply_or_hold(&path, resources));
        }
        result
    }

    /// A level that uses more memory than it may is kept from growing (upstream retrySetMemoryReserve).
    fn apply_or_hold(&self, path: &CgroupPath, resources: Resources) -> Result<(), PodsTreeError> {
        let Err(error) = self.apply(path, &resources) else { return Ok(()) };
        let usage = self.hierarchies.memory_usage(path)?.and_then(|usage| i64::try_from(usage).ok());
        match (resources.memory_limit_bytes, usage) {
            (Some(limit), Some(usage)) if usage > limit => {
                self.apply(path, &Resources { memory_limit_bytes: Some(usage), ..resources })
            }
            _ => Err(error),
        }
    }

    /// Kills what is left in the pod's cgroup, under whichever level it is, and removes it.
    pub fn remove(&self, pod: &PodUid) -> Result<(), PodsTreeError> {
        if !self.per_qos {
            return Ok(());
        }
        let mut slices = Vec::new();
        for qos in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let path = self.pod_path(pod, qos)?;
            let was_there = self.hierarchies.kill_and_remove(&path)?;
            slices.push((path.name().to_owned(), was_there));
        }
        if self.driver() != Driver::Systemd {
            return Ok(());
        }
        // A pod is of one class. Where none of its cgroups is there any more the slice may be.
        let is_known = slices.iter().any(|(_, was_there)| *was_there);
        for (slice, _) in slices.into_iter().filter(|(_, was_there)| *was_there || !is_known) {
            bulkhead_sys::systemd::stop_unit(&slice).map_err(|source| PodsTreeError::Systemd { slice, source })?;
        }
        Ok(())
    }

    /// Kills what is left of a session in one container's own cgroup. Answers how many processes it was.
    pub fn end_session(
        &self,
        pod: &PodUid,
        container: &ContainerId,
        session: u32,
        not_before: Duration,
    ) -> Result<usize, PodsTreeError> {
        let names = driver::names_of_container(container);
        if self.per_qos {
            for qos in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
                let pod = self.pod_path(pod, qos)?;
                if let Some(name) = self.hierarchies.children(&pod)?.iter().find(|name| names.contains(name)) {
                    return Ok(session::end(&self.hierarchies, &pod.child(name)?, session, not_before)?);
                }
            }
        }
        // Without a cgroup for each pod nothing ties the container to the pod.
        Err(PodsTreeError::NoContainer { pod: pod.clone(), container: container.clone() })
    }

    /// Every pod's cgroup in the tree.
    pub fn list(&self) -> Result<Vec<PodCgroup>, PodsTreeError> {
        let mut found = Vec::new();
        if !self.per_qos {
            return Ok(found);
        }
        for qos in [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort] {
            let level = self.qos_path(qos)?;
            for name in self.hierarchies.children(&level)? {
                if let Some(pod) = self.driver().pod_of(&level, &name) {
                    found.push(PodCgroup { pod, qos, path: level.child(&name)? });
                }
            }
        }
        Ok(found)
    }

    /// Makes a cgroup that may be there already. Answers whether it was missing.
    fn create(&self, path: &CgroupPath) -> Result<bool, PodsTreeError> {
        let missing = !self.hierarchies.exists(path);
        if self.driver() == Driver::Systemd {
            // Also where the directory is there: systemd may have lost the unit, and would clean up after it.
            let started = bulkhead_sys::systemd::start_slice(path.name());
            started.map_err(|source| PodsTreeError::Systemd { slice: path.name().to_owned(), source })?;
        }
        // Trees and controllers that systemd does not manage are completed here.
        Ok(self.hierarchies.ensure(path)? || missing)
    }

    fn apply(&self, path: &CgroupPath, resources: &Resources) -> Result<(), PodsTreeError> {
        let rounded;
        let resources = match self.driver() {
            Driver::Cgroupfs => resources,
            Driver::Systemd => {
                rounded = properties::rounded(resources);
                self.tell(path, &rounded)?;
                &rounded
            }
        };
        let skipped = self.hierarchies.apply(path, resources)?;
        if !skipped.is_empty() {
            tracing::debug!(cgroup = path.as_str(), ?skipped, "limits that this kernel does not have were left out");
        }
        Ok(())
    }

    /// Has systemd write what it knows of the limits.
    fn tell(&self, path: &CgroupPath, resources: &Resources) -> Result<(), PodsTreeError> {
        let properties = properties::of(resources, self.hierarchies.version());
        if properties.is_empty() {
            return Ok(());
        }
        let told = bulkhead_sys::systemd::set_properties(path.name(), &properties);
        told.map_err(|source| PodsTreeError::Systemd { slice: path.name().to_owned(), source })
    }

    /// Whose memory is watched: that of all pods together, or the machine's.
    pub fn watched(&self, pods: bool) -> Result<CgroupPath, CgroupError> {
        if pods { self.level(&[]) } else { Ok(CgroupPath::root()) }
    }

    fn level(&self, below: &[&str]) -> Result<CgroupPath, CgroupError> {
        let mut names = vec!["kubepods"];
        names.extend(below);
        self.driver().path(&self.root, &names)
    }

    fn qos_path(&self, qos: QosClass) -> Result<CgroupPath, CgroupError> {
        match qos {
            QosClass::Guaranteed => self.level(&[]),
            QosClass::Burstable => self.level(&["burstable"]),
            QosClass::BestEffort => self.level(&["besteffort"]),
        }
    }

    fn pod_path(&self, pod: &PodUid, qos: QosClass) -> Result<CgroupPath, CgroupError> {
        let name = format!("pod{pod}");
        match qos {
            QosClass::Guaranteed => self.level(&[&name]),
            QosClass::Burstable => self.level(&["burstable", &name]),
            QosClass::BestEffort => self.level(&["besteffort", &name]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_s_driver_names_cgroups_from_then_on() {
        let Ok(hierarchies) = Hierarchies::detect() else { return };
        let root = CgroupPath::parse("/a").unwrap();
        let tree = PodsTree::new(hierarchies, Driver::Cgroupfs, root, true).unwrap();
        let uid = PodUid::parse("0a-b").unwrap();
        let path = |tree: &PodsTree| tree.pod_path(&uid, QosClass::Guaranteed).unwrap().to_string();
        assert_eq!(path(&tree), "/a/kubepods/pod0a-b");
        tree.use_driver(Driver::Systemd);
        assert_eq!(
            (tree.driver(), path(&tree).as_str()),
            (Driver::Systemd, "/a.slice/a-kubepods.slice/a-kubepods-pod0a_b.slice")
        );
    }

    #[test]
    fn without_cgroups_of_pods_the_runtime_chooses() {
        let Ok(hierarchies) = Hierarchies::detect() else { return };
        for driver in [Driver::Cgroupfs, Driver::Systemd] {
            let tree = PodsTree::new(hierarchies.clone(), driver, CgroupPath::root(), false).unwrap();
            let uid = PodUid::parse("0a-b").unwrap();
            let made = tree.ensure_pod(&uid, QosClass::Burstable, &Resources::default()).unwrap();
            assert_eq!(made, (None, false));
            assert!(tree.pod_limits(&uid, QosClass::Burstable).unwrap().is_none() && tree.list().unwrap().is_empty());
            tree.remove(&uid).unwrap();
        }
    }

    /// The real tree of this machine, below a root of the test's own.
    #[test]
    fn a_nodes_tree() {
        if !rustix::process::getuid().is_root() {
            return;
        }
        let Ok(hierarchies) = Hierarchies::detect() else { return };
        let root = CgroupPath::parse(&format!("/bulkhead-c-test-tree-{}", std::process::id())).unwrap();
        let tree = PodsTree::new(hierarchies.clone(), Driver::Cgroupfs, root.clone(), true).unwrap();
        assert!(matches!(tree.ensure_node(&Resources::default()), Err(PodsTreeError::NoRoot { .. })));
        hierarchies.ensure(&root).unwrap();
        let node = Resources { cpu_shares: Some(2048), memory_limit_bytes: Some(1 << 33), ..Resources::default() };
        for _ in 0..2 {
            tree.ensure_node(&node).unwrap().unwrap();
        }
        let uid = PodUid::parse("0a-b").unwrap();
        let limits = Resources { cpu_shares: Some(102), pids_limit: Some(10), ..Resources::default() };
        let (path, created) = tree.ensure_pod(&uid, QosClass::Burstable, &limits).unwrap();
        let path = path.unwrap();
        assert_eq!(path.as_str(), format!("{root}/kubepods/burstable/pod0a-b"));
        assert!(created && !tree.ensure_pod(&uid, QosClass::Burstable, &limits).unwrap().1);
        let more = Resources {
            cpu_quota_us: Some(25_000),
            cpu_period_us: Some(100_000),
            memory_limit_bytes: Some(64 << 20),
            ..Resources::default()
        };
        let before = tree.pod_limits(&uid, QosClass::Burstable).unwrap().unwrap().0;
        assert_eq!((before.cpu_quota_us, before.memory_limit_bytes), (Some(-1), Some(-1)));
        tree.ensure_pod(&uid, QosClass::Burstable, &more).unwrap();
        let (now, usage) = tree.pod_limits(&uid, QosClass::Burstable).unwrap().unwrap();
        let unchanged = now.cpu_shares;
        assert_eq!(now, Resources { cpu_shares: unchanged, ..more });
        assert!(usage.is_some_and(|bytes| bytes < 64 << 20) && unchanged == before.cpu_shares);
        tree.set_qos(&QosLevels { burstable_cpu_shares: 512, ..QosLevels::default() }).unwrap();
        a_level_that_uses_more_is_held(&tree);
        reserved_cgroups(&tree, &root);
        let guaranteed = PodUid::parse("g").unwrap();
        tree.ensure_pod(&guaranteed, QosClass::Guaranteed, &Resources::default()).unwrap();
        let mut list: Vec<String> = tree.list().unwrap().iter().map(|p| format!("{} {}", p.pod, p.qos)).collect();
        list.sort();
        assert_eq!(list, ["0a-b Burstable", "g Guaranteed"]);
        if let Some(file) = hierarchies.file("cpu", &tree.qos_path(QosClass::Burstable).unwrap(), "cpu.shares")
            && hierarchies.version() == bulkhead_sys::cgroup::Version::V1
        {
            assert_eq!(std::fs::read_to_string(file).unwrap().trim(), "512");
        }
        // A container's own cgroup below its pod's is found, by its id alone.
        let container = ContainerId::parse("c0ffee").unwrap();
        let end = |pod: &PodUid| tree.end_session(pod, &container, std::process::id(), Duration::ZERO);
        assert!(matches!(end(&uid), Err(PodsTreeError::NoContainer { .. })));
        hierarchies.ensure(&path.child("cri-containerd-c0ffee.scope").unwrap()).unwrap();
        assert!(matches!(end(&uid), Err(PodsTreeError::Session(SessionError::LeaderLives(_)))));
        assert!(matches!(end(&guaranteed), Err(PodsTreeError::NoContainer { .. })), "another pod's");
        for _ in 0..2 {
            tree.remove(&uid).unwrap();
            tree.remove(&guaranteed).unwrap();
        }
        assert!(tree.list().unwrap().is_empty());
        hierarchies.kill_and_remove(&root).unwrap();
    }

    /// Memory of the burstable level is used, and may be no more from then on.
    fn a_level_that_uses_more_is_held(tree: &PodsTree) {
        use std::io::{BufRead as _, Write as _};
        let path = tree.qos_path(QosClass::Burstable).unwrap();
        let members = tree.hierarchies.file("memory", &path, "cgroup.procs").unwrap();
        let script = "read go; x=$(head -c 4000000 /dev/zero | tr '\\0' x); echo there; read end";
        let mut child = std::process::Command::new("sh")
            .args(["-c", script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // A level with controllers for its children takes no process on v2.
        if tree.hierarchies.version() == bulkhead_sys::cgroup::Version::V1 {
            std::fs::write(members, child.id().to_string()).unwrap();
            let mut input = child.stdin.take().unwrap();
            input.write_all(b"go\n").unwrap();
            let mut line = String::new();
            std::io::BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
            assert_eq!(line, "there\n");
            let limit = 1 << 20;
            let levels = QosLevels {
                burstable_cpu_shares: 512,
                burstable_memory_limit: Some(limit),
                best_effort_memory_limit: Some(limit),
                ..QosLevels::default()
            };
            tree.set_qos(&levels).unwrap();
            let now = |qos| tree.hierarchies.limits(&tree.qos_path(qos).unwrap()).unwrap().memory_limit_bytes.unwrap();
            assert_eq!(now(QosClass::BestEffort), limit);
            let held = now(QosClass::Burstable);
            assert!(held > limit && held < 64 << 20, "{held}");
            drop(input);
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn reserved_cgroups(tree: &PodsTree, root: &CgroupPath) {
        let mut config = bulkhead_config::NodeConfig::for_tests(std::path::Path::new("/t")).kubelet;
        config.enforce_node_allocatable = vec!["kube-reserved".into()];
        config.kube_reserved_cgroup = format!("{root}/reserved");
        let enforce = |config: &bulkhead_config::KubeletConfiguration| {
            tree.enforce_reserved(&reserved::enforcements(config)[0]).map_err(|error| bulkhead_types::chain(&error))
        };
        assert!(enforce(&config).unwrap_err().ends_with("cgroup is not configured properly"));
        config.kube_reserved.insert("cpu".into(), "500m".into());
        config.kube_reserved.insert("memory".into(), "64Mi".into());
        let missing = enforce(&config).unwrap_err();
        assert!(missing.contains("cgroup [\"bulkhead-c-test-tree-") && missing.contains("\"reserved\"]"), "{missing}");
        let path = root.child("reserved").unwrap();
        tree.hierarchies.ensure(&path).unwrap();
        for _ in 0..2 {
            enforce(&config).unwrap();
        }
        let now = tree.hierarchies.limits(&path).unwrap();
        assert_eq!(now.memory_limit_bytes, Some(64 << 20));
        if tree.hierarchies.version() == bulkhead_sys::cgroup::Version::V1 {
            assert_eq!(now.cpu_shares, Some(512));
        }
        config.kube_reserved_cgroup = "/".into();
        assert_eq!(enforce(&config).unwrap_err(), "the root of all cgroups cannot be limited");
    }
}
