//! What every verb has at hand: where things are, who we are, what is intended, and the locks of pods, of their volumes and
//! of what is staged.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bulkhead_config::ServingPair;
use bulkhead_config::reserved::Enforcement;
use bulkhead_ipc::volnetd::StateKind;
use bulkhead_sys::cgroup::{CgroupError, CgroupPath, Hierarchies};
use bulkhead_sys::open::{self, OpenError};
use bulkhead_types::{Epoch, InstancePaths, NodeName, PodUid, Process, VolumeName};
use bulkhead_worker::WorkerPool;
use parking_lot::Mutex;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use tokio::sync::RwLock;

use crate::agent_sockets::AgentSocket;
use crate::audit::{AuditLog, StoreError};
use crate::cgroups::PodsTree;
use crate::disks::Disks;
use crate::flexvolume::Flex;
use crate::guard::Guard;
use crate::inhibitor::Inhibitor;
use crate::journal::{Journal, JournalError, StagedKey, StagingIntent};
use crate::metrics::Metrics;
use crate::other_kubelet::Looked;

/// What the operator decided, reduced to what concerns this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub node_name: NodeName,
    /// This start of the kubelet, of all its processes; empty: it has no name.
    pub start_id: String,
    /// `root_dir` must be free of links: it is compared with mountinfo.
    pub paths: InstancePaths,
    /// The root directory as the operator wrote it, maybe with links on the way: others know it by this name alone ([`Settings::told`]).
    pub named_root_dir: PathBuf,
    /// `/var/log/containers`; not configurable upstream.
    pub container_links_dir: PathBuf,
    /// `/var/log`, below which node logs are.
    pub node_logs_dir: PathBuf,
    /// The path of a `unix://` endpoint.
    pub runtime_endpoint: Option<PathBuf>,
    pub image_endpoint: Option<PathBuf>,
    /// `staticPodPath`, a folder or one file.
    pub manifests: Option<PathBuf>,
    /// `--kubeconfig`, absolute; None on a node without API server.
    pub kubeconfig: Option<PathBuf>,
    /// Files with credentials for image registries in docker's formats, in upstream's order; absolute.
    pub registry_configs: Vec<PathBuf>,
    /// What the HTTPS server shows; absolute.
    pub serving: ServingPair,
    /// `authentication.x509.clientCAFile`; absolute.
    pub client_ca: Option<PathBuf>,
    /// What the node asks to be signed.
    pub certificates: Certificates,
    pub cgroup_root: CgroupPath,
    pub cgroups_per_qos: bool,
    pub cgroup_driver: crate::cgroups::Driver,
    /// `cpuManagerPolicy` is `static`: see [`Hierarchies::set_cpu_load_balance_disable`].
    pub cpu_load_balance_disable: bool,
    /// What cgroups that are not the pods' are limited to.
    pub reserved: Vec<Enforcement>,
    pub protect_kernel_defaults: bool,
    /// The gate PodsAPI.
    pub pods_api: bool,
    /// How long a shutdown of the machine waits for pods; None: it does not.
    pub shutdown_delay: Option<Duration>,
    /// Whether the kernel tunables are looked at at all: off in tests that must not change their machine.
    pub manage_kernel_tunables: bool,
}

/// What the configuration has the node ask for, and where that is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Certificates {
    /// `--cert-dir`; absolute.
    pub folder: PathBuf,
    /// `--bootstrap-kubeconfig`; absolute.
    pub bootstrap: Option<PathBuf>,
    /// A client pair may be written: rotateCertificates, or there is a bootstrap kubeconfig.
    pub client: bool,
    /// A serving pair may be: serverTLSBootstrap.
    pub serving: bool,
}

/// Why the node could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("failed to open this process's state folder")]
    State(#[from] OpenError),
    #[error("another kubelet-volnetd works on the root directory {0}")]
    Locked(PathBuf),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Audit(#[from] StoreError),
    #[error("failed to find the cgroup hierarchies")]
    Cgroups(#[from] CgroupError),
}

/// The file with the id of the boot in which this process was last ready.
pub const BOOT: &str = "boot-id";

/// Nothing that was found is certain at the next start, in whichever process that is. On return that is on the disk.
fn forget_boot(state: &OwnedFd) -> std::io::Result<()> {
    match rustix::fs::unlinkat(state, BOOT, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(rustix::fs::fsync(state)?),
        Err(errno) => Err(errno.into()),
    }
}

/// Shared by all verbs.
#[derive(Debug)]
pub struct Node {
    pub settings: Settings,
    pub epoch: Epoch,
    /// Of pods' volumes.
    pub journal: Journal,
    /// Of what is staged once a node.
    pub staging: Journal<StagedKey, StagingIntent>,
    pub guard: Mutex<Guard>,
    pub cgroups: PodsTree,
    pub metrics: Metrics,
    pub audit: AuditLog,
    pub workers: WorkerPool,
    pub disks: Disks,
    pub flex: Flex,
    /// The delay of a shutdown.
    pub inhibitor: Inhibitor,
    /// Names of the pairs that were in force before one was written here, or of the first that was.
    pub client_pair: OnceLock<String>,
    pub serving_pair: OnceLock<String>,
    /// Bound for kubelet-syncd.
    pub pod_resources: AgentSocket,
    pub pods_api: AgentSocket,
    pub device_plugins: AgentSocket,
    pub other_kubelet: Looked,
    locks: Mutex<HashMap<LockKey, Arc<RwLock<()>>>>,
    /// Held for life: one volnetd for each root directory.
    state: OwnedFd,
}

/// What one verb at a time works on. Who takes several takes them in this order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum LockKey {
    /// Shared by those that give volumes of the pod to a group.
    Walks(PodUid),
    /// One volume of a pod, with its plugin's name.
    Volume(PodUid, String, VolumeName),
    Pod(PodUid),
    Staged(StagedKey),
    StateFile(StateKind),
    Credentials,
}

/// How long a verb waits for another one of the same pod: less than its caller does.
const POD_PATIENCE: Duration = Duration::from_secs(5);

/// Another verb of the same pod or volume has not ended.
#[derive(Debug, thiserror::Error)]
#[error("another request works on {what}{hangs}")]
pub struct Busy {
    what: String,
    hangs: String,
}

/// A pod that no other verb works on meanwhile.
pub type PodLock = tokio::sync::OwnedRwLockWriteGuard<()>;

/// What a verb holds at once.
pub type Locks = Vec<PodLock>;

/// What is held while a volume is given to its group, which may take a day: other verbs of the pod go on, and those that would end the
/// volume wait.
#[derive(Debug)]
pub struct WalkLock {
    _volume: PodLock,
    _walks: tokio::sync::OwnedRwLockReadGuard<()>,
}

impl Settings {
    /// The folder of all pods.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn pods_dir(&self) -> Result<OwnedFd, OpenError> {
        open::base_dir(&self.paths.pods())
    }

    /// A path as others are told it: below the root directory as the operator wrote it, which upstream only cleans (`NewMainKubelet`).
    /// A driver in a container has what is mounted there under that name, and not what a link on the way leads to. A path that
    /// lies elsewhere stays as it is.
    pub fn told(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.paths.root_dir) {
            Ok(below) => self.named_root_dir.join(below),
            Err(_) => path.to_owned(),
        }
    }
}

impl Node {
    /// Needs the node directories of [`crate::setup`]. Waits a while for a former process on the same root directory,
    /// which may still be finishing an act when its successor is started already.
    pub fn open(settings: Settings, epoch: Epoch, metrics: Metrics, workers: WorkerPool) -> Result<Self, NodeError> {
        let root = open::base_dir(&settings.paths.root_dir)?;
        open::create_dirs_beneath(root.as_fd(), "bulkhead", 0o711)?;
        let private = format!("bulkhead/{}", Process::Volnetd.short());
        let state = open::create_dirs_beneath(root.as_fd(), &private, 0o700)?;
        lock_for_life(&state).map_err(|()| NodeError::Locked(settings.paths.root_dir.clone()))?;
        let folder = |name| open::create_dirs_beneath(state.as_fd(), name, 0o700);
        let journal = Journal::open_with(folder("intents")?, folder("intents-kept")?, || forget_boot(&state))?;
        let audit = AuditLog::open(folder("audit")?, metrics.audit_dropped.clone())?;
        let staging = Journal::open_with(folder("staging-intents")?, folder("intents-kept")?, || forget_boot(&state))?;
        let mut hierarchies = Hierarchies::detect()?;
        if settings.cpu_load_balance_disable {
            hierarchies.set_cpu_load_balance_disable();
        }
        let cgroups =
            PodsTree::new(hierarchies, settings.cgroup_driver, settings.cgroup_root.clone(), settings.cgroups_per_qos)?;
        Ok(Node {
            epoch,
            journal,
            staging,
            guard: Mutex::new(Guard::new(epoch)),
            cgroups,
            metrics,
            audit,
            workers,
            disks: Disks::default(),
            flex: Flex::default(),
            inhibitor: Inhibitor::default(),
            client_pair: OnceLock::new(),
            serving_pair: OnceLock::new(),
            pod_resources: AgentSocket::pod_resources(),
            pods_api: AgentSocket::pods_api(),
            device_plugins: AgentSocket::device_plugins(),
            other_kubelet: Looked::Done,
            locks: Mutex::new(HashMap::new()),
            settings,
            state,
        })
    }

    /// Waits until no other verb works on this pod, but not for ever: one that hangs in the kernel (a dead mount) holds up
    /// that pod alone, and whoever asks again gets to know what it is.
    ///
    /// # Errors
    /// Another verb has not ended in time.
    pub async fn lock_pod(&self, pod: &PodUid) -> Result<PodLock, Busy> {
        self.lock(LockKey::Pod(pod.clone()), || self.busy(pod)).await
    }

    async fn lock(&self, key: LockKey, busy: impl FnOnce() -> Busy) -> Result<PodLock, Busy> {
        tokio::time::timeout(POD_PATIENCE, self.of(key).write_owned()).await.map_err(|_| busy())
    }

    /// What works on the pod.
    pub fn busy(&self, pod: &PodUid) -> Busy {
        self.busy_with(format!("pod {pod}"))
    }

    fn busy_with(&self, what: String) -> Busy {
        let mut hanging = self.workers.hanging();
        // What takes long holds its own volume alone.
        hanging.sort_by_key(|hanging| hanging.takes_long);
        let hangs = hanging.into_iter().find(|hanging| hanging.what.contains(&what));
        Busy { what, hangs: hangs.map(|hanging| format!(": {hanging}")).unwrap_or_default() }
    }

    /// The same without waiting; None while another verb works on the pod.
    pub fn try_lock_pod(&self, pod: &PodUid) -> Option<PodLock> {
        self.of(LockKey::Pod(pod.clone())).try_write_owned().ok()
    }

    /// Waits until no other verb works on this pod, and none of its volumes is being given to a group.
    ///
    /// # Errors
    /// One of them has not ended in time.
    pub async fn lock_whole_pod(&self, pod: &PodUid) -> Result<Locks, Busy> {
        let walks = self.lock(LockKey::Walks(pod.clone()), || self.busy(pod)).await?;
        Ok(vec![self.lock_pod(pod).await?, walks])
    }

    /// The same without waiting.
    pub fn try_lock_whole_pod(&self, pod: &PodUid) -> Option<Locks> {
        let walks = self.of(LockKey::Walks(pod.clone())).try_write_owned().ok()?;
        Some(vec![self.try_lock_pod(pod)?, walks])
    }

    /// Waits until no other verb works on this volume of a pod, as [`Node::lock_pod`] does. It is taken before the pod's lock.
    ///
    /// # Errors
    /// Another verb has not ended in time.
    pub async fn lock_volume(&self, pod: &PodUid, plugin: &str, volume: &VolumeName) -> Result<PodLock, Busy> {
        let key = LockKey::Volume(pod.clone(), plugin.to_owned(), volume.clone());
        self.lock(key, || self.busy_with(format!("volume {volume} of pod {pod}"))).await
    }

    /// The same for a verb that may give the volume to a group.
    ///
    /// # Errors
    /// Another verb works on the volume, or tears the pod down, and has not ended in time.
    pub async fn lock_walk(&self, pod: &PodUid, plugin: &str, volume: &VolumeName) -> Result<WalkLock, Busy> {
        let walks = self.of(LockKey::Walks(pod.clone())).read_owned();
        let walks = tokio::time::timeout(POD_PATIENCE, walks).await.map_err(|_| self.busy(pod))?;
        Ok(WalkLock { _volume: self.lock_volume(pod, plugin, volume).await?, _walks: walks })
    }

    /// Waits until no other verb works on this staged volume, as [`Node::lock_pod`] does.
    ///
    /// # Errors
    /// Another verb has not ended in time. `what` names the volume.
    pub async fn lock_staged(&self, key: StagedKey, what: &str) -> Result<PodLock, Busy> {
        self.lock(LockKey::Staged(key), || self.busy_with(what.to_owned())).await
    }

    /// The same without waiting; None while another verb works on it.
    pub fn try_lock_staged(&self, key: &StagedKey) -> Option<PodLock> {
        self.of(LockKey::Staged(key.clone())).try_write_owned().ok()
    }

    /// Waits until nobody writes this state file, as [`Node::lock_pod`] does.
    ///
    /// # Errors
    /// Another write has not ended in time.
    pub async fn lock_state_file(&self, kind: StateKind) -> Result<PodLock, Busy> {
        self.lock(LockKey::StateFile(kind), || self.busy_with(format!("the state file {}", kind.as_str_name()))).await
    }

    /// Waits until nobody writes a credential, as [`Node::lock_pod`] does.
    ///
    /// # Errors
    /// Another write has not ended in time.
    pub async fn lock_credentials(&self) -> Result<PodLock, Busy> {
        self.lock(LockKey::Credentials, || self.busy_with("the node's credentials".to_owned())).await
    }

    /// The folder of this process's own state.
    pub fn state(&self) -> BorrowedFd<'_> {
        self.state.as_fd()
    }

    fn of(&self, key: LockKey) -> Arc<RwLock<()>> {
        // More than a node's pods: time to forget those that nobody holds.
        const KEPT: usize = 1024;
        let mut locks = self.locks.lock();
        if locks.len() > KEPT {
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        locks.entry(key).or_default().clone()
    }
}

/// As long as the other daemons wait for their state folder.
const LOCK_PATIENCE: Duration = Duration::from_secs(15);

fn lock_for_life(state: &OwnedFd) -> Result<(), ()> {
    let started = Instant::now();
    loop {
        if rustix::fs::flock(state, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(());
        }
        if started.elapsed() >= LOCK_PATIENCE {
            return Err(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
