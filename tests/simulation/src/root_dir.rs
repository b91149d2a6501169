//! kubelet-volnetd's root directory: folders and files of a run's own, which its own code makes. Everybody else knows it by the name
//! [`ROOT`]. Nothing is mounted in it: what a driver has mounted stands in a list that is given for the kernel's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use bulkhead_config::NodeConfig;
use bulkhead_simulation_kernel as kernel;
use bulkhead_types::Epoch;
use bulkhead_worker::WorkerPool;
use kubelet_volnetd::node::{Node, Settings};
use kubelet_volnetd::worker;
use serde_json::Value;
use tonic::Status;

use crate::disk::Image;
use crate::node::ROOT;
use crate::volumes::DRIVER;
use crate::world::World;

/// Where kubelet-volnetd's state is, below the root directory.
const STATE: &str = "bulkhead/volnetd";
/// What of it is kept account of, as a disk does: the journal of pods, and that of what is staged.
pub const JOURNALS: [&str; 2] = [OF_PODS, OF_STAGING];
const OF_PODS: &str = "intents";
const OF_STAGING: &str = "staging-intents";
const MOUNTINFO: &str = "/proc/self/mountinfo";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// See the module.
#[derive(Debug, Default)]
pub struct RootDir {
    root: PathBuf,
    /// What is read for the kernel's files.
    mountinfo: PathBuf,
    boot_id: PathBuf,
    /// Where the machine's control groups are ([`crate::pressure`]).
    cgroups: PathBuf,
}

/// What lies there, as somebody sees it who looks from outside.
#[derive(Debug, Default)]
pub struct Found {
    /// Handles of volumes that a folder is made for, by pod and name.
    pub published: BTreeMap<(String, String), String>,
    /// The same once a node.
    pub staged: BTreeSet<String>,
    /// What the journal has of pods: the pod and the volume's name.
    pub intents: BTreeSet<(String, String)>,
    /// And of what is staged: the folder's name.
    pub staging_intents: BTreeSet<String>,
}

impl RootDir {
    /// Makes it below `folder`, with nothing in it.
    ///
    /// # Errors
    /// The folder cannot be filled.
    pub fn lay(folder: &Path) -> Result<Self> {
        let folder = folder.canonicalize().context("finding the run's folder")?;
        let dir = RootDir {
            root: folder.join("root"),
            mountinfo: folder.join("mountinfo"),
            boot_id: folder.join("boot_id"),
            cgroups: folder.join("machine/cgroup"),
        };
        for name in ["pods", "plugins", "plugins_registry"] {
            std::fs::create_dir_all(dir.root.join(name)).context("making the root directory")?;
        }
        dir.mount(std::iter::empty()).context("writing what is mounted")?;
        dir.boot("simulated-0").context("writing the boot's id")?;
        kernel::replace(Path::new(MOUNTINFO), &dir.mountinfo);
        kernel::replace(Path::new(BOOT_ID), &dir.boot_id);
        Ok(dir)
    }

    /// The machine has booted.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn boot(&self, id: &str) -> std::io::Result<()> {
        std::fs::write(&self.boot_id, format!("{id}\n"))
    }

    /// Where that is which others know by this path.
    fn real(&self, path: &str) -> PathBuf {
        path.strip_prefix(ROOT).map_or_else(|| path.into(), |rest| self.root.join(rest.trim_start_matches('/')))
    }

    /// A text as others know the paths in it.
    pub fn named(&self, text: &str) -> String {
        text.replace(&*self.root.to_string_lossy(), ROOT)
    }

    /// An answer as others know the paths in it.
    pub fn named_status(&self, status: &Status) -> Status {
        Status::new(status.code(), self.named(status.message()))
    }

    /// From here on these are mounted, and nothing else.
    fn mount<'a>(&self, paths: impl Iterator<Item = &'a String>) -> std::io::Result<()> {
        let lines = paths.enumerate().map(|(number, path)| {
            let id = 1_000_000 + number;
            format!("{id} 1 0:{id} / {} rw - simulated driver rw\n", self.real(path).display())
        });
        let cgroups = format!("30 23 0:26 / {} rw - cgroup2 cgroup2 rw\n", self.cgroups.display());
        let text: String = std::iter::once(cgroups).chain(lines).collect();
        std::fs::write(&self.mountinfo, text)
    }

    /// Pods that have a folder.
    pub fn pods(&self) -> BTreeSet<String> {
        names(&self.root.join("pods"))
    }

    pub fn has_pod(&self, uid: &str) -> bool {
        !uid.is_empty() && self.root.join("pods").join(uid).is_dir()
    }

    /// Whether volumes of drivers have folders in that of the pod.
    pub fn has_volumes(&self, uid: &str) -> bool {
        !self.volumes_of(uid).is_empty()
    }

    fn volumes_of(&self, uid: &str) -> BTreeMap<String, String> {
        let folder = self.root.join("pods").join(uid).join("volumes/kubernetes.io~csi");
        let names = names(&folder).into_iter();
        names.filter_map(|name| handle_in(&folder.join(&name)).map(|handle| (name, handle))).collect()
    }

    /// What this journal would have in a field after a power cut, whatever is lost of it: in files of this name, or in all.
    fn durable(journal: &str, name: Option<&str>, field: &str) -> BTreeSet<String> {
        let moment = kernel::moment(journal);
        let files = moment.synced.iter().filter(|(file, _)| name.is_none_or(|name| name == *file));
        files.flat_map(|(_, entry)| values_in(entry.synced.as_deref().unwrap_or_default(), field)).collect()
    }

    /// Whether the journal has something of a pod's volume that a power cut leaves there.
    pub fn intends(uid: &str, volume: &str) -> bool {
        Self::durable(OF_PODS, Some(uid), "spec").contains(volume)
    }

    /// The same of what is staged at this path.
    pub fn intends_to_stage(path: &str) -> bool {
        Self::durable(OF_STAGING, None, "folder").iter().any(|intended| path.contains(intended))
    }

    /// Whether it is written down that what was found after this boot is uncertain; else the next life takes all for that.
    pub fn knows_boot(&self) -> bool {
        let kept = std::fs::read(self.root.join(STATE).join("boot-id"));
        kept.is_ok_and(|kept| std::fs::read(&self.boot_id).is_ok_and(|now| now == kept))
    }

    pub fn look(&self) -> Found {
        let mut found = Found::default();
        for uid in self.pods() {
            let volumes = self.volumes_of(&uid).into_iter();
            found.published.extend(volumes.map(|(name, handle)| ((uid.clone(), name), handle)));
        }
        let staged = self.root.join("plugins/kubernetes.io/csi").join(DRIVER);
        found.staged = names(&staged).into_iter().filter_map(|name| handle_in(&staged.join(name))).collect();
        for (uid, text) in self.files_of(OF_PODS) {
            found.intents.extend(values_in(&text, "spec").into_iter().map(|spec| (uid.clone(), spec)));
        }
        let staging = self.files_of(OF_STAGING).into_iter();
        found.staging_intents = staging.flat_map(|(_, text)| values_in(&text, "folder")).collect();
        found
    }

    fn files_of(&self, journal: &str) -> BTreeMap<String, Vec<u8>> {
        let folder = self.root.join(STATE).join(journal);
        names(&folder)
            .into_iter()
            .filter_map(|name| Some((name.clone(), std::fs::read(folder.join(name)).ok()?)))
            .collect()
    }

    /// What concerns kubelet-volnetd of the node's configuration.
    ///
    /// # Errors
    /// It says what cannot be worked with.
    pub fn settings(&self, config: &NodeConfig) -> Result<Settings> {
        let mut config = config.clone();
        self.root.clone_into(&mut config.paths.root_dir);
        // Its cgroups are names ([`crate::volnetd`]).
        config.kubelet.cgroups_per_qos = Some(false);
        kubelet_volnetd::settings::from_config(&config).context("reading the configuration")
    }

    /// After a power cut: what is in a journal.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn lay_out(&self, journal: &str, image: &Image) -> Result<()> {
        let folder = self.root.join(STATE).join(journal);
        for name in names(&folder) {
            std::fs::remove_file(folder.join(name)).context("removing what was not durable")?;
        }
        for (name, content) in image {
            std::fs::write(folder.join(name), content).context("writing what was durable")?;
        }
        Ok(())
    }

    /// Another life of kubelet-volnetd, with what the last one has left. `workers`: where its workers are to be had.
    ///
    /// # Errors
    /// What was left cannot be read.
    pub fn take_up(&self, settings: Settings, epoch: u64, workers: WorkerPool) -> Result<Arc<Node>> {
        // The last one may hold the lock of its folder for as long as this program runs.
        let (state, before) = (self.root.join(STATE), self.root.join("bulkhead/before"));
        if state.exists() {
            std::fs::rename(&state, &before).context("moving state")?;
            std::fs::create_dir(&state).context("moving state")?;
            for name in names(&before) {
                std::fs::rename(before.join(&name), state.join(name)).context("moving state")?;
            }
            std::fs::remove_dir(&before).context("moving state")?;
        }
        for journal in JOURNALS {
            let folder = state.join(journal);
            std::fs::create_dir_all(&folder).context("making a journal")?;
            kernel::keep_once(journal, &folder).context("looking at a journal")?;
        }
        let metrics = kubelet_volnetd::metrics::Metrics::new(&prometheus::Registry::new())?;
        let node = kubelet_volnetd::open(settings, Epoch::from_random(epoch), metrics, workers);
        Ok(Arc::new(node.map_err(anyhow::Error::from_boxed)?))
    }

    /// Workers of those that [`crate::workers::serve`] has at this socket.
    pub fn workers(socket: PathBuf) -> WorkerPool {
        WorkerPool::at(socket, worker::LIMITS, Box::new(|_| ()))
    }
}

/// Names in a folder; a folder that is not there has none.
fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The volume that a folder is made for; None: it is made for none.
fn handle_in(folder: &Path) -> Option<String> {
    let text = std::fs::read(folder.join("vol_data.json")).ok()?;
    let data: Value = serde_json::from_slice(&text).unwrap_or_default();
    Some(data["volumeHandle"].as_str().unwrap_or("?").to_owned())
}

/// What the intents in a file of the journal have in this field.
fn values_in(text: &[u8], field: &str) -> BTreeSet<String> {
    let all: Vec<Value> = serde_json::from_slice(text).unwrap_or_default();
    all.iter().filter_map(|intent| intent[field].as_str().map(str::to_owned)).collect()
}

impl World {
    /// What was mounted goes with the machine's power; folders stay.
    pub(crate) fn mounts_are_lost(&mut self) {
        self.volumes.staged_at.clear();
        self.volumes.published_at.clear();
        self.mounts_have_changed();
        if let Err(error) = self.root_dir.boot(&self.boot_id()) {
            self.breaks("no-end", format!("the boot's id cannot be told: {error}"));
        }
    }

    fn mounts_have_changed(&mut self) {
        let volumes = &self.volumes;
        let told = self.root_dir.mount(volumes.staged_at.keys().chain(volumes.published_at.keys()));
        if let Err(error) = told {
            self.breaks("no-end", format!("what is mounted cannot be told: {error}"));
        }
    }

    /// The driver mounts a volume once a node: the folder is there already.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn mount_staged(&mut self, path: String, handle: String) -> Result<(), Status> {
        if !self.root_dir.real(&path).is_dir() {
            return Err(Status::internal(format!("there is no folder {path}")));
        }
        self.volumes.staged_at.insert(path, handle);
        self.mounts_have_changed();
        Ok(())
    }

    /// The driver mounts a volume for a pod: the folder is its own to make, in one that is there already.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn mount_published(&mut self, path: String, handle: String) -> Result<(), Status> {
        match std::fs::create_dir(self.root_dir.real(&path)) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(Status::internal(format!("making {path}: {error}")));
            }
            _ => {}
        }
        self.volumes.published_at.insert(path, handle);
        self.mounts_have_changed();
        Ok(())
    }

    pub(crate) fn unmount_staged(&mut self, path: &str) {
        self.volumes.staged_at.remove(path);
        self.mounts_have_changed();
    }

    /// The driver takes its folder with it.
    pub(crate) fn unmount_published(&mut self, path: &str) {
        self.volumes.published_at.remove(path);
        self.mounts_have_changed();
        // It may not be there.
        let _ = std::fs::remove_dir(self.root_dir.real(path));
    }
}
