//! What the node is short of: what pods and others use of memory, disks and tasks, the files and answers by which the machine and the
//! runtime tell of it, and what was so before, for the checks ([`crate::pressure_checks`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_cri::v1;
use bulkhead_simulation_kernel as kernel;
use tonic::Status;

use crate::pressure_schedule::{DISK, IMAGE_DISK, MEMORY, OLD_IMAGES, Plan, Signal, TASKS};
use crate::world::{Container, State, World};

/// Where the runtime keeps images, and writable layers with them.
const IMAGES: &str = "/simulated/images";
/// MiB of an image of a pod, and of memory and tasks that are always in use.
const IMAGE: u64 = 1 << 10;
const BASE_MEMORY: u64 = 200;
const BASE_TASKS: u64 = 100;
/// Of what a container writes the rest goes into its log; a fifth each.
const LAYER_FIFTHS: u64 = 3;
/// What was so long ago is not asked for.
const REMEMBERED: Duration = Duration::from_secs(400);

/// What a pod uses, by its schedule. MiB, tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Uses {
    pub memory: u64,
    pub disk: u64,
    /// Of the images' disk; of what is no pod alone.
    pub images: u64,
    pub tasks: u64,
}

/// What a pod of which a container runs is measured to use. MiB, tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    pub memory: u64,
    pub tasks: u64,
    pub layers: u64,
    pub logs: u64,
}

/// What was so since when, the newest last.
#[derive(Debug, Clone)]
pub struct Past<T>(VecDeque<(Duration, T)>);

impl<T> Default for Past<T> {
    fn default() -> Self {
        Past(VecDeque::new())
    }
}

impl<T: Copy + PartialEq> Past<T> {
    fn note(&mut self, now: Duration, what: T) {
        if self.0.back().is_none_or(|(_, last)| *last != what) {
            self.0.push_back((now, what));
        }
        while self.0.get(1).is_some_and(|(at, _)| *at + REMEMBERED < now) {
            self.0.pop_front();
        }
    }

    /// It was known already then.
    pub fn knows(&self, then: Duration) -> bool {
        self.0.front().is_some_and(|(at, _)| *at <= then)
    }

    /// All that was so at some time from then on, with its beginning.
    pub fn since(&self, then: Duration) -> impl Iterator<Item = (Duration, T)> {
        let first = self.0.iter().rposition(|(at, _)| *at <= then).unwrap_or(0);
        self.0.iter().skip(first).copied()
    }
}

/// A pod that kubelet-syncd has taken on to evict.
#[derive(Debug, Clone)]
pub struct Evicted {
    pub at: Duration,
    /// Seconds.
    pub grace: u64,
    /// When the last of its containers had ended.
    pub ended: Option<Duration>,
}

/// Since when something is so, and when it was so last for long enough to be seen by all who look.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spell {
    pub since: Option<Duration>,
    pub last_long: Option<Duration>,
}

impl Spell {
    /// `long`: what nobody overlooks.
    fn note(&mut self, now: Duration, is: bool, long: Duration) {
        if self.since.is_some_and(|since| since + long <= now) {
            // It was so until now.
            self.last_long = Some(now);
        }
        self.since = is.then(|| self.since.unwrap_or(now));
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Pressure {
    pub on: bool,
    pub plan: Plan,
    machine: PathBuf,
    /// By pod.
    uses: BTreeMap<String, Uses>,
    elsewhere: Uses,
    /// By container, MiB of its layer and of its log: what was written stays there until it goes.
    layers: BTreeMap<String, (u64, u64)>,
    /// Files of the machine as they are.
    files: BTreeMap<PathBuf, String>,
    /// MiB (tasks) that are left.
    pub left: BTreeMap<Signal, Past<u64>>,
    /// By uid; none: nothing of it runs.
    pub used: BTreeMap<String, Past<Option<Used>>>,
    /// By image: since when nobody uses it.
    pub unused: BTreeMap<String, Duration>,
    blind_until: Duration,
    late_until: Duration,
    late_by: Duration,
    /// Counts how often connections to kubelet-syncd were broken.
    pub breaks: tokio::sync::watch::Sender<u64>,
    /// kubelet-evictiond runs, and all that it asks has been as it should be for a while.
    pub looks: bool,
    /// When something was last not as it should be.
    pub disturbed: Duration,
    /// By uid.
    pub evicted: BTreeMap<String, Evicted>,
    /// Those of them that kubelet-syncd could not write down for want of room.
    pub unwritten: BTreeSet<String>,
    /// Pods that were not admitted because of the node's conditions, and the life of kubelet-syncd that has said so.
    pub refused: BTreeMap<String, u64>,
    /// By condition: since when kubelet-syncd admits by it, and when it did last.
    pub admits_by: [Spell; 3],
    /// That could not be written down for want of room.
    pub admits_unwritten: bool,
    /// By condition: a threshold of it is met, and kubelet-evictiond may see it.
    pub met: [Spell; 3],
    /// By signal with a hard threshold: the same of that one alone.
    pub hard_met: BTreeMap<Signal, Spell>,
    /// As the Node on the API server has them.
    pub told: [bool; 3],
    /// Since when it has those that it has.
    pub told_since: [Option<Duration>; 3],
    /// Of what all of this was made last.
    made_of: u64,
    /// What of kubelet-syncd's state was read last, to know it again.
    pub read: [Option<(u64, i64, i64)>; 2],
}

/// Which of the node's conditions a signal is about.
pub fn condition_of(signal: Signal) -> usize {
    match signal {
        Signal::Memory => 0,
        Signal::Disk | Signal::Images => 1,
        Signal::Tasks => 2,
    }
}

/// A threshold that is met for so long is seen by everybody who looks.
pub fn surely_seen(signal: Signal) -> Duration {
    // Upstream's period for what the kernel tells; file systems are looked at each second.
    match signal {
        Signal::Memory | Signal::Tasks => Duration::from_secs(12),
        Signal::Disk | Signal::Images => Duration::from_secs(4),
    }
}

impl Pressure {
    /// The node has kubelet-evictiond, and files by which the machine tells of its use.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn begin(&mut self, plan: Plan, machine: &Path) -> Result<()> {
        (self.on, self.plan, self.machine) = (true, plan, machine.to_owned());
        let cgroups = machine.join("cgroup");
        std::fs::create_dir_all(&cgroups).context("making a folder of the machine")?;
        std::fs::write(machine.join("pid_max"), format!("{TASKS}\n")).context("writing a file of the machine")?;
        let replaced = [
            ("/proc/loadavg", "loadavg"),
            ("/proc/sys/kernel/pid_max", "pid_max"),
            ("/proc/sys/kernel/threads-max", "pid_max"),
            // There is nothing of the kind.
            ("/proc/pressure", "none"),
            ("/proc/diskstats", "none"),
            ("/proc/net", "none"),
        ];
        for (path, instead) in replaced {
            kernel::replace(Path::new(path), &machine.join(instead));
        }
        Ok(())
    }

    pub fn disturb(&mut self) {
        self.disturbed = kernel::now();
    }

    /// The machine begins anew: what was seen before counts no more, as the files that tell of it are another boot's.
    pub fn reboot(&mut self) {
        (self.met, self.admits_by) = Default::default();
        self.hard_met.clear();
        self.breaks.send_modify(|count| *count += 1);
        self.disturb();
    }

    /// Nothing was wrong for so long.
    pub fn is_quiet_for(&self, time: Duration) -> bool {
        self.disturbed + time <= kernel::now()
    }

    /// The pod is no more to be as it is wanted.
    pub fn is_off(&self, uid: &str) -> bool {
        self.evicted.contains_key(uid) || self.refused.contains_key(uid)
    }

    pub fn uses(&mut self, pod: &str, uses: Uses) {
        self.uses.insert(pod.to_owned(), uses);
    }

    pub fn uses_elsewhere(&mut self, uses: Uses) {
        self.elsewhere = uses;
    }

    /// From here on the node has enough of everything: what containers that have ended left behind takes no room either, which a node
    /// keeps while a pod that it may not evict runs.
    pub fn relax(&mut self) {
        self.uses.clear();
        self.layers.clear();
        self.made_of = 0;
        self.elsewhere = Uses::default();
        let now = kernel::now();
        (self.blind_until, self.late_until) = (self.blind_until.min(now), self.late_until.min(now));
    }

    pub fn blind(&mut self, lasts: Duration) {
        self.blind_until = kernel::now() + lasts;
    }

    /// When something ends that lasts.
    pub fn ends(&self) -> Option<Duration> {
        Some(self.blind_until).filter(|until| *until > kernel::now())
    }

    pub fn late_figures(&mut self, lasts: Duration, by: Duration) {
        (self.late_until, self.late_by) = (kernel::now() + lasts, by);
    }

    pub fn is_blind(&self) -> bool {
        kernel::now() < self.blind_until
    }

    /// Since then something of the machine could not be read, or came late.
    pub fn was_hard_to_read_since(&self, then: Duration) -> bool {
        let until = self.blind_until.max(self.late_until);
        until > Duration::ZERO && until >= then
    }

    pub fn walker_is_late(&self) -> Duration {
        if kernel::now() < self.late_until { self.late_by } else { Duration::ZERO }
    }

    /// MiB that are left, MiB in all, and which one it is, of the file system on which the path lies.
    pub fn file_system(&self, path: &str) -> (u64, u64, u64) {
        let is_images = self.plan.separate_images && path.starts_with(IMAGES);
        let (signal, all, device) = if is_images { (Signal::Images, IMAGE_DISK, 2) } else { (Signal::Disk, DISK, 1) };
        (self.left_now(signal), all, device)
    }

    fn left_now(&self, signal: Signal) -> u64 {
        let newest = self.left.get(&signal).and_then(|past| past.0.back());
        newest.map_or(0, |(_, left)| *left)
    }

    /// What `below` of the signal's thresholds would be met now, with what is to be reclaimed beyond or without.
    pub fn is_met(&self, signal: Signal, left: u64, with_reclaim: bool) -> bool {
        self.plan.bounds.iter().filter(|bound| bound.signal == signal).any(|bound| {
            let reclaim = if with_reclaim { bound.reclaim } else { 0 };
            let at_most = bound.hard.max(bound.soft.map(|(soft, _)| soft)).unwrap_or(0);
            left < at_most + reclaim
        })
    }

    /// Makes files of the machine what they are to be.
    fn write(&mut self, wanted: BTreeMap<PathBuf, String>) -> std::io::Result<()> {
        let gone: Vec<PathBuf> = self.files.keys().filter(|path| !wanted.contains_key(*path)).cloned().collect();
        for path in gone {
            std::fs::remove_file(&path)?;
            self.files.remove(&path);
            // Folders with nothing in them go, too.
            for folder in path.ancestors().skip(1).take_while(|folder| folder.starts_with(self.machine.join("cgroup/")))
            {
                if std::fs::remove_dir(folder).is_err() {
                    break;
                }
            }
        }
        for (path, content) in wanted {
            if self.files.get(&path) == Some(&content) {
                continue;
            }
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(&path, &content)?;
            self.files.insert(path, content);
        }
        Ok(())
    }
}

impl World {
    /// The pod as its deeds name it.
    fn pod_of(&self, container: &Container) -> String {
        let sandbox = self.sandboxes.get(&container.sandbox);
        let name = sandbox.and_then(|s| s.config.metadata.as_ref()).map_or("", |metadata| metadata.name.as_str());
        name.strip_suffix("-test-node").unwrap_or(name).to_owned()
    }

    /// MiB.
    pub fn logs_of(&self, uid: &str, container: &str) -> u64 {
        let own = self.containers.values().filter(|c| c.uid() == uid && c.name() == container);
        own.filter_map(|c| self.pressure.layers.get(&c.id)).map(|(_, logs)| logs).sum()
    }

    /// MiB of an image.
    fn size_of(name: &str) -> u64 {
        OLD_IMAGES.iter().find(|(old, _)| *old == name).map_or(IMAGE, |(_, size)| *size)
    }

    /// Another number whenever something of it is another thing: it is asked for far more often than anything changes.
    fn what_pressure_is_made_of(&self) -> u64 {
        use std::hash::{Hash as _, Hasher as _};
        let mut all = std::hash::DefaultHasher::new();
        for container in self.containers.values() {
            (&container.id, container.state == State::Running).hash(&mut all);
        }
        self.images.hash(&mut all);
        let pressure = &self.pressure;
        (&pressure.uses, pressure.elsewhere, pressure.is_blind(), pressure.looks).hash(&mut all);
        all.finish()
    }

    /// After something may have changed: what is used, what is left, and what is told of it.
    pub fn note_pressure(&mut self) {
        if !self.pressure.on {
            return;
        }
        let made_of = self.what_pressure_is_made_of();
        if std::mem::replace(&mut self.pressure.made_of, made_of) == made_of {
            return;
        }
        let now = kernel::now();
        let mut used: BTreeMap<String, Option<Used>> = BTreeMap::new();
        let mut files = BTreeMap::new();
        let cgroups = self.pressure.machine.join("cgroup");
        let memory_files = |files: &mut BTreeMap<PathBuf, String>, group: &Path, memory: u64| {
            files.insert(group.join("memory.current"), format!("{}\n", memory << 20));
            files.insert(group.join("memory.stat"), format!("anon {}\nfile 0\ninactive_file 0\n", memory << 20));
        };
        let containers = &self.containers;
        self.pressure.layers.retain(|id, _| containers.contains_key(id));
        let (mut all, mut layers_of_all, mut logs_of_all) = (Used::default(), 0, 0);
        for container in self.containers.values() {
            let is_running = container.state == State::Running;
            let is_first = container.name() == "c0";
            let uses = self.pressure.uses.get(&self.pod_of(container)).copied().unwrap_or_default();
            let uses = if is_first && is_running { uses } else { Uses::default() };
            if is_first && is_running {
                let layer = uses.disk * LAYER_FIFTHS / 5;
                self.pressure.layers.insert(container.id.clone(), (layer, uses.disk - layer));
            }
            let (layer, log) = self.pressure.layers.get(&container.id).copied().unwrap_or_default();
            (layers_of_all, logs_of_all) = (layers_of_all + layer, logs_of_all + log);
            let pod = used.entry(container.uid().to_owned()).or_default();
            if !is_running {
                continue;
            }
            let pod = pod.get_or_insert_default();
            (pod.memory, pod.tasks, pod.layers) =
                (pod.memory + uses.memory, pod.tasks + uses.tasks, pod.layers + layer);
            (all.memory, all.tasks) = (all.memory + uses.memory, all.tasks + uses.tasks);
            let parent = self.sandboxes.get(&container.sandbox).and_then(|s| s.config.linux.as_ref());
            let Some(parent) = parent.map(|linux| cgroups.join(linux.cgroup_parent.trim_start_matches('/'))) else {
                continue;
            };
            let group = parent.join(&container.id);
            memory_files(&mut files, &group, uses.memory);
            // Numbers that no process has.
            let tasks: String = (0..uses.tasks).map(|number| format!("{}\n", 1_u64 << 31 | number)).collect();
            files.insert(group.join("cgroup.procs"), tasks);
            memory_files(&mut files, &parent, pod.memory);
        }
        for (uid, used) in &mut used {
            let own = self.containers.values().filter(|c| c.uid() == uid);
            let logs = own.filter_map(|c| self.pressure.layers.get(&c.id)).map(|(_, logs)| logs).sum();
            if let Some(used) = used {
                used.logs = logs;
            }
        }
        memory_files(&mut files, &cgroups.join("kubepods"), all.memory);
        files.insert(cgroups.join("kubepods/memory.max"), format!("{}\n", MEMORY << 20));
        let elsewhere = self.pressure.elsewhere;
        let memory = BASE_MEMORY + elsewhere.memory + all.memory;
        let tasks = BASE_TASKS + elsewhere.tasks + all.tasks;
        files.insert(cgroups.join("memory.stat"), format!("anon {}\nfile 0\ninactive_file 0\n", memory << 20));
        files.insert(self.pressure.machine.join("loadavg"), format!("0.00 0.00 0.00 1/{tasks} 1\n"));
        if self.pressure.is_blind() {
            files.clear();
        }
        let images: u64 = self.images.iter().map(|name| Self::size_of(name)).sum();
        let separate = self.pressure.plan.separate_images;
        let own_images = if separate { 0 } else { layers_of_all + images };
        let disk_left = DISK.saturating_sub(elsewhere.disk + logs_of_all + own_images);
        let images_left =
            if separate { IMAGE_DISK.saturating_sub(elsewhere.images + layers_of_all + images) } else { disk_left };
        let left = [
            (Signal::Memory, MEMORY.saturating_sub(memory)),
            (Signal::Disk, disk_left),
            (Signal::Images, images_left),
            (Signal::Tasks, TASKS.saturating_sub(tasks)),
        ];
        for (signal, left) in left {
            self.pressure.left.entry(signal).or_default().note(now, left);
        }
        for (uid, past) in &mut self.pressure.used {
            past.note(now, used.remove(uid).flatten());
        }
        for (uid, used) in used {
            self.pressure.used.entry(uid).or_default().note(now, used);
        }
        self.note_images(now);
        if let Err(error) = self.pressure.write(files) {
            self.breaks("no-end", format!("the files of the machine cannot be written: {error}"));
        }
        self.note_spells(now, left);
    }

    fn note_images(&mut self, now: Duration) {
        let is_used = |name: &str| self.containers.values().any(|container| uses_image(container, name));
        let unused: Vec<String> = self.images.iter().filter(|name| !is_used(name)).cloned().collect();
        self.pressure.unused.retain(|name, _| unused.contains(name));
        for name in unused {
            self.pressure.unused.entry(name).or_insert(now);
        }
    }

    fn note_spells(&mut self, now: Duration, left: [(Signal, u64); 4]) {
        let sees = self.pressure.looks && !self.pressure.is_blind();
        for condition in 0..3 {
            let own = left.iter().filter(|(signal, _)| condition_of(*signal) == condition);
            let (mut is_met, mut long) = (false, Duration::ZERO);
            for (signal, left) in own {
                is_met |= self.pressure.is_met(*signal, *left, false);
                long = long.max(surely_seen(*signal));
            }
            if let Some(spell) = self.pressure.met.get_mut(condition) {
                spell.note(now, is_met && sees, long);
            }
        }
        for bound in self.pressure.plan.bounds.clone() {
            let Some(hard) = bound.hard else { continue };
            let is_met = left.iter().any(|(signal, left)| *signal == bound.signal && *left < hard);
            let spell = self.pressure.hard_met.entry(bound.signal).or_default();
            spell.note(now, is_met && sees, surely_seen(bound.signal));
        }
    }

    /// As the runtime lists an image.
    pub fn image(&self, name: &str) -> v1::Image {
        let size = if self.pressure.on { Self::size_of(name) << 20 } else { 1 };
        v1::Image { id: format!("sha256:{name}"), repo_tags: vec![name.to_owned()], size, ..Default::default() }
    }

    /// # Errors
    /// None; it is one of the runtime's changes.
    pub fn remove_image(&mut self, id: &str) -> Result<(), Status> {
        let name = id.strip_prefix("sha256:").unwrap_or(id);
        let user = self.containers.values().find(|container| uses_image(container, name));
        if let Some((user, uid)) =
            user.filter(|_| self.is_waited_for).map(|c| (c.name().to_owned(), c.uid().to_owned()))
        {
            let pod = self.short(&uid);
            self.breaks("image-in-use", format!("image {name} is removed, and {user} of {pod} is made of it"));
        }
        self.images.remove(name);
        self.coverage.call("RemoveImage");
        Ok(())
    }

    /// Before a container is made.
    pub fn check_image(&mut self, config: &v1::ContainerConfig) {
        let name = config.image.as_ref().map_or("", |image| image.image.as_str());
        let name = name.strip_prefix("sha256:").unwrap_or(name);
        if self.pressure.on && self.is_waited_for && !self.images.contains(name) {
            self.breaks("image-in-use", format!("a container is made of image {name}, which is not there"));
        }
    }

    /// Where the runtime says that images and writable layers lie.
    pub fn image_file_systems(&self) -> v1::ImageFsInfoResponse {
        if !self.pressure.on {
            return v1::ImageFsInfoResponse::default();
        }
        let bytes: u64 = self.images.iter().map(|name| Self::size_of(name) << 20).sum();
        let one = usage(bytes);
        v1::ImageFsInfoResponse { image_filesystems: vec![one.clone()], container_filesystems: vec![one] }
    }

    pub fn container_stats(&self) -> v1::ListContainerStatsResponse {
        let running = self.containers.values().filter(|container| container.state == State::Running);
        let stats = running.map(|container| {
            let layer = self.pressure.layers.get(&container.id).map_or(0, |(layer, _)| layer << 20);
            let attributes = v1::ContainerAttributes {
                id: container.id.clone(),
                metadata: container.config.metadata.clone(),
                labels: container.config.labels.clone(),
                annotations: container.config.annotations.clone(),
            };
            v1::ContainerStats {
                attributes: Some(attributes),
                writable_layer: Some(usage(layer)),
                ..v1::ContainerStats::default()
            }
        });
        v1::ListContainerStatsResponse { stats: stats.collect() }
    }
}

fn uses_image(container: &Container, name: &str) -> bool {
    let own = container.config.image.as_ref().map_or("", |image| image.image.as_str());
    own == name || own.strip_prefix("sha256:") == Some(name)
}

fn usage(bytes: u64) -> v1::FilesystemUsage {
    v1::FilesystemUsage {
        timestamp: World::wall(),
        fs_id: Some(v1::FilesystemIdentifier { mountpoint: IMAGES.to_owned() }),
        used_bytes: Some(v1::UInt64Value { value: bytes }),
        inodes_used: Some(v1::UInt64Value { value: 1 }),
    }
}
