//! Devices and CPUs that containers have for themselves: what the plugin has told, what the state files say, who asked for what, and
//! what must hold of it. The files outlive whoever wrote them; who has what is read from the containers themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_config::cpu_set::CpuSet;
use bulkhead_device_plugin::v1beta1 as api;
use bulkhead_ipc::volnetd::StateKind;
use bulkhead_simulation_kernel as kernel;

use crate::resources_schedule::PluginFault;
use crate::schedule::{Behaviour, ContainerShape, Shape};
use crate::world::{Container, State, Told, World};

/// What the plugin's devices are called.
pub const RESOURCE: &str = "simulated.io/device";
/// Where they are in a container, and on the machine.
pub const PATH: &str = "/dev/simulated-";
/// How many there are.
const DEVICES: usize = 4;
/// CPUs of the machine in family `resources`, two of a core, of which the first is the system's.
pub const CPUS: u32 = 8;
/// The same in other families: the fewer there are, the sooner pods wait for each other's starts and ends.
pub const CPUS_OF_OTHERS: u32 = 2;
/// What all pods together may ask for, thousandths.
const CPU_ROOM: u64 = (CPUS as u64 - 1) * 1000;
/// What a container asks for that shares its CPUs, in a pod of which another one does not.
pub const SHARED: u64 = 100;
/// MiB of the machine, and of each such container.
const MEMORY: u64 = 16 << 10;
pub const MEMORY_OF_CONTAINER: u64 = 16;
/// The manifest of [`crate::schedule::Deed::Claim`].
pub const CLAIM: &str = "claim";

/// Upstream's kubelet gives up a plugin that does not come back after this time; a little less, for messages under way.
const COMING_BACK: Duration = Duration::from_secs(28);
/// A plugin that died was noticed by all that was under way.
const NOTICED: Duration = Duration::from_secs(5);
/// What disturbed has no effect any more: the longest call of a plugin, with what may come after it.
const QUIET: Duration = Duration::from_secs(200);
/// Containers that were made so long after kubelet-syncd had found the plugin were made by what it knew then, and what the plugin has
/// told is known.
const KNOWN: Duration = Duration::from_secs(10);

/// A stream of the plugin's devices.
pub type Watcher = tokio::sync::mpsc::UnboundedSender<Result<api::ListAndWatchResponse, tonic::Status>>;

/// What one pod asks for.
#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    devices: u64,
    /// Thousandths.
    cpus: u64,
    /// Since when nobody wants it any more.
    left: Option<Duration>,
}

/// What a container had when it was started last.
#[derive(Debug, Clone)]
struct Had {
    devices: BTreeSet<String>,
    cpus: CpuSet,
    life: u64,
    /// Since then there was a time in which nothing of the pod ran.
    rested: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Resources {
    /// There is a plugin, and containers are put on CPUs.
    pub on: bool,
    /// Devices, and whether they are healthy. None of them: there is no plugin.
    devices: BTreeMap<String, bool>,
    pub watchers: Vec<Watcher>,
    pub faults: Vec<PluginFault>,
    /// State files of upstream's names, by [`StateKind`].
    pub files: BTreeMap<i32, Vec<u8>>,
    /// Devices of which the plugin has heard that a container is to start with them.
    pub prepared: BTreeSet<String>,
    /// Since when this life of kubelet-syncd has a connection to this life of the plugin.
    connected: Option<Duration>,
    /// Since when the plugin is not registered.
    away: Option<Duration>,
    /// When the plugin was last killed, and when something else was last not as it should be.
    killed: Option<Duration>,
    disturbed: Option<Duration>,
    /// By version.
    asked: BTreeMap<u64, Asked>,
    /// By pod and container.
    had: BTreeMap<(String, String), Had>,
}

impl Resources {
    /// The node has a plugin.
    pub fn begin(&mut self) {
        self.on = true;
        self.devices = (0..DEVICES).map(|number| (number.to_string(), true)).collect();
        self.away = Some(Duration::ZERO);
    }

    pub fn list(&self) -> api::ListAndWatchResponse {
        let word = |healthy: &bool| match healthy {
            true => bulkhead_device_plugin::HEALTHY,
            false => bulkhead_device_plugin::UNHEALTHY,
        };
        let device = |(id, healthy): (&String, &bool)| api::Device {
            id: id.clone(),
            health: word(healthy).to_owned(),
            topology: None,
        };
        api::ListAndWatchResponse { devices: self.devices.iter().map(device).collect() }
    }

    /// The plugin tells all who listen.
    fn announce(&mut self) {
        let list = self.list();
        self.watchers.retain(|watcher| watcher.send(Ok(list.clone())).is_ok());
    }

    /// One of the devices falls ill, or recovers. Answers which.
    pub fn sicken(&mut self, pick: u64, healthy: bool) -> Option<String> {
        let place = usize::try_from(pick.checked_rem(self.devices.len() as u64)?).ok()?;
        let (id, is) = self.devices.iter_mut().nth(place)?;
        *is = healthy;
        let id = id.clone();
        self.announce();
        self.disturb();
        Some(id)
    }

    /// Something is not as it should be, but for a plugin that is away.
    pub fn disturb(&mut self) {
        self.disturbed = Some(kernel::now());
    }

    /// When something was last not as it should be.
    pub fn disturbed(&self) -> Option<Duration> {
        self.disturbed
    }

    pub fn take_fault(&mut self) -> Option<PluginFault> {
        let fault = (!self.faults.is_empty()).then(|| self.faults.remove(0))?;
        self.disturb();
        Some(fault)
    }

    /// The plugin is dead.
    pub fn plugin_dies(&mut self) {
        self.watchers.clear();
        // Twice, and together they may be too long.
        if self.killed.is_some_and(|before| kernel::now() < before + COMING_BACK * 2) {
            self.disturb();
        }
        (self.connected, self.killed) = (None, Some(kernel::now()));
        self.away.get_or_insert_with(kernel::now);
    }

    /// It is registered.
    pub fn is_back(&mut self) {
        let away = self.away.take().map_or(Duration::ZERO, |since| kernel::now().saturating_sub(since));
        // Who waited for it may have given up.
        if away >= COMING_BACK {
            self.disturb();
        }
    }

    /// kubelet-syncd has asked it what it can.
    pub fn is_connected(&mut self) {
        self.connected = Some(kernel::now());
    }

    /// A life of kubelet-syncd begins, which knows no plugin. `is_first`: there was none before it, so nothing is wrong.
    pub fn syncd_starts(&mut self, is_first: bool) {
        self.connected = None;
        if !is_first {
            self.disturb();
        }
    }

    /// The machine begins anew, and the plugin remembers nothing.
    pub fn reboot(&mut self) {
        self.prepared.clear();
        self.disturb();
    }

    /// A manifest is written.
    pub fn want(&mut self, version: u64, shape: &Shape) {
        let all = || shape.init.iter().chain(&shape.containers);
        let is_guaranteed = shape.is_guaranteed();
        let cpus = |c: &ContainerShape| if is_guaranteed { (c.cpus * 1000).max(SHARED) } else { 0 };
        let asked = Asked { devices: all().map(|c| c.devices).sum(), cpus: all().map(cpus).sum(), left: None };
        self.asked.insert(version, asked);
    }

    /// It goes, or another takes its place.
    pub fn want_no_more(&mut self, version: u64) {
        if let Some(asked) = self.asked.get_mut(&version) {
            asked.left = Some(kernel::now());
        }
    }

    fn file(&self, kind: StateKind) -> serde_json::Value {
        let found = self.files.get(&i32::from(kind));
        found.and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default()
    }

    /// Devices by pod and container, as the checkpoint has them.
    fn devices_of_file(&self) -> BTreeMap<(String, String), BTreeSet<String>> {
        let file = self.file(StateKind::DeviceManager);
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let entries = file["Data"]["PodDeviceEntries"].as_array().into_iter().flatten();
        let entry = |entry: &serde_json::Value| {
            let by_node = entry["DeviceIDs"].as_object().into_iter().flat_map(|nodes| nodes.values());
            let ids = by_node.filter_map(serde_json::Value::as_array).flatten().map(text).collect();
            ((text(&entry["PodUID"]), text(&entry["ContainerName"])), ids)
        };
        entries.map(entry).collect()
    }

    /// CPUs by pod and container, as `cpu_manager_state` has them, and those that are nobody's.
    fn cpus_of_file(&self) -> (BTreeMap<(String, String), CpuSet>, CpuSet) {
        let file = self.file(StateKind::CpuManager);
        let set = |value: &serde_json::Value| CpuSet::parse(value.as_str().unwrap_or_default()).unwrap_or_default();
        let pods = file["entries"].as_object().into_iter().flatten();
        let of = pods.flat_map(|(uid, containers)| {
            let containers = containers.as_object().into_iter().flatten();
            containers.map(move |(name, cpus)| ((uid.clone(), name.clone()), set(cpus)))
        });
        (of.collect(), set(&file["defaultCpuSet"]))
    }
}

impl Told {
    /// The pod asks for what cannot be had.
    pub fn is_refused(&self) -> bool {
        let is_refusal = self.reason == "UnexpectedAdmissionError" || self.reason.starts_with("OutOf");
        self.phase == "Failed" && is_refusal
    }
}

impl Shape {
    /// Some container is to have CPUs for itself, so all are limited.
    pub fn is_guaranteed(&self) -> bool {
        self.init.iter().chain(&self.containers).any(|container| container.cpus > 0)
    }
}

/// Devices that a container was made with.
fn devices_of(container: &Container) -> BTreeSet<String> {
    let paths = container.config.devices.iter().filter_map(|device| device.host_path.strip_prefix(PATH));
    paths.map(str::to_owned).collect()
}

fn cpus_of(container: &Container) -> CpuSet {
    CpuSet::parse(&container.cpus).unwrap_or_default()
}

/// What the container of this name was to be.
fn shape_of<'a>(shape: &'a Shape, name: &str) -> Option<&'a ContainerShape> {
    shape.init.iter().chain(&shape.containers).find(|container| container.name == name)
}

impl World {
    /// Something was not as it should be at that time or later.
    pub(crate) fn is_disturbed(&self, since: Duration) -> bool {
        self.resources.disturbed().is_some_and(|at| at >= since)
    }

    fn wants(&self, container: &Container) -> Option<&ContainerShape> {
        shape_of(self.past.get(container.uid())?.shape.as_ref()?, container.name())
    }

    /// A running container that has one of these, and is to have it for itself.
    fn owner(&self, but: &str, devices: &BTreeSet<String>, cpus: &CpuSet) -> Option<String> {
        let running = self.containers.values().filter(|c| c.state == State::Running && !c.is_ghost && c.id != but);
        let has = |other: &&Container| {
            let own = self.wants(other).is_some_and(|wants| wants.cpus > 0);
            !devices_of(other).is_disjoint(devices) || (own && !cpus_of(other).intersection(cpus).is_empty())
        };
        running.filter(has).map(|c| format!("{} ({}) of {}", c.name(), c.id, self.short(c.uid()))).next()
    }

    /// Before a container starts.
    pub(crate) fn check_resources(&mut self, this: &Container) {
        if !self.resources.on {
            return;
        }
        let Some(wants) = self.wants(this).cloned() else { return };
        let (name, uid) = (this.name().to_owned(), this.uid().to_owned());
        let (devices, pod, key) = (devices_of(this), self.short(&uid), (uid.clone(), name.clone()));
        let cpus = if wants.cpus > 0 { cpus_of(this) } else { CpuSet::default() };
        let mut wrong = Vec::new();
        if devices.len() as u64 != wants.devices || cpus.len() as u64 != wants.cpus {
            wrong.push((
                "as-asked",
                format!(
                    "starts with devices {devices:?} and CPUs {cpus}, and asks for {} and {}",
                    wants.devices, wants.cpus
                ),
            ));
        }
        if let Some(other) = self.owner(&this.id, &devices, &cpus) {
            wrong.push((
                "one-owner",
                format!("starts with devices {devices:?} and CPUs {cpus}, of which {other} has some"),
            ));
        }
        let of_file = self.resources.devices_of_file().remove(&key).unwrap_or_default();
        if of_file != devices {
            wrong.push((
                "as-checkpoint",
                format!("starts with devices {devices:?}, and by the checkpoint has {of_file:?}"),
            ));
        }
        let of_file = self.resources.cpus_of_file().0.remove(&key).unwrap_or_default();
        if of_file != cpus {
            wrong.push(("as-checkpoint", format!("starts with CPUs {cpus}, and by the state file has {of_file}")));
        }
        let before = self.resources.had.get(&key).filter(|had| had.life == self.life || !had.rested);
        if let Some(had) = before.filter(|had| had.devices != devices || had.cpus != cpus) {
            wrong.push((
                "keeps-own",
                format!("starts with devices {devices:?} and CPUs {cpus}, and had {:?} and {}", had.devices, had.cpus),
            ));
        }
        let is_known = self.resources.connected.is_some_and(|since| this.began > since + KNOWN);
        if is_known && !devices.is_subset(&self.resources.prepared) {
            wrong.push(("plugin-first", format!("starts with devices {devices:?} of which the plugin has not heard")));
        }
        for id in &devices {
            self.resources.prepared.remove(id);
        }
        self.resources.had.insert(key, Had { devices, cpus, life: self.life, rested: false });
        for (check, text) in wrong {
            self.breaks(check, format!("{name} of {pod} {text}"));
        }
    }

    /// A container of the pod has ended.
    pub(crate) fn resources_rest(&mut self, uid: &str) {
        if self.resources.on && self.running(uid).next().is_none() {
            self.resources.had.iter_mut().filter(|((of, _), _)| of == uid).for_each(|(_, had)| had.rested = true);
        }
    }

    /// Before the plugin gives devices to a container.
    pub(crate) fn check_allocate(&mut self, ids: &[String]) {
        let ids: BTreeSet<String> = ids.iter().cloned().collect();
        if let Some(other) = self.owner("", &ids, &CpuSet::default()) {
            self.breaks("one-owner", format!("the plugin is asked to give {ids:?}, of which {other} has some"));
        }
        // What it has told a moment ago may not have been read yet.
        let resources = &self.resources;
        let is_told = resources.disturbed.is_none_or(|at| kernel::now() > at + KNOWN);
        let ill = ids.iter().find(|id| resources.devices.get(*id) == Some(&false)).cloned();
        if let Some(ill) = ill.filter(|_| is_told) {
            self.breaks(
                "healthy-only",
                format!("the plugin is asked to give {ill}, and has told that it is not healthy"),
            );
        }
    }

    /// A running container is put on other CPUs.
    pub(crate) fn move_container(&mut self, id: &str, cpus: &str) -> Result<(), tonic::Status> {
        let Some(found) = self.containers.get_mut(id) else {
            return Err(tonic::Status::not_found(format!("container {id}: not found")));
        };
        cpus.clone_into(&mut found.cpus);
        let this = found.clone();
        if this.state == State::Running && self.is_waited_for && self.wants(&this).is_some_and(|wants| wants.cpus > 0) {
            let other = self.owner(id, &BTreeSet::new(), &cpus_of(&this));
            if let Some(other) = other {
                let text = format!("{} is put on CPUs {cpus}, of which {other} has some", this.name());
                self.breaks("one-owner", text);
            }
        }
        Ok(())
    }

    /// What is told of a pod: whether it was refused, and rightly.
    pub(crate) fn check_refusal(&mut self, uid: &str, name: &str, told: &Told) {
        if !told.is_refused() {
            return;
        }
        let (reason, message) = (told.reason.clone(), told.message.clone());
        self.tell("kubelet-syncd", format!("refuses {name}: {reason}: {message}"));
        // It has ended; a later life that takes it in begins it anew.
        self.past.entry(uid.to_owned()).or_default().ended.clear();
        if !self.resources.on && (self.pressure.is_off(uid) || self.sizes.is_judged_by_wish(uid)) {
            self.pressure.refused.insert(uid.to_owned(), self.life);
            return;
        }
        if !self.resources.on {
            let text = format!("{name} is refused, and asks for nothing that could be short: {reason}: {message}");
            return self.breaks("refused-rightly", text);
        }
        if name.starts_with(CLAIM) {
            return self.breaks("can-be-had", format!("what is free cannot be had: {reason}: {message}"));
        }
        let now = kernel::now();
        let since = |at: Option<Duration>| at.map_or(Duration::MAX, |at| now.saturating_sub(at));
        let counts = |asked: &&Asked| asked.left.is_none_or(|left| now < left + QUIET);
        let all = || self.resources.asked.values().filter(counts);
        let has_room = all().map(|asked| asked.devices).sum::<u64>() <= DEVICES as u64
            && all().map(|asked| asked.cpus).sum::<u64>() <= CPU_ROOM;
        let resources = &self.resources;
        let away = since(resources.away) < COMING_BACK || resources.away.is_none();
        let is_calm = since(resources.disturbed) > QUIET && since(resources.killed) > NOTICED && away;
        if has_room && is_calm {
            self.breaks("refused-rightly", format!("{name} is refused, and nothing is short: {reason}: {message}"));
        }
    }

    /// A pod that asks for all that nobody has; None: everything is somebody's.
    pub(crate) fn claim(&self) -> Option<Shape> {
        let (devices, (_, pool)) = (self.resources.devices_of_file(), self.resources.cpus_of_file());
        let held: BTreeSet<&String> = devices.values().flatten().collect();
        let devices = self.resources.devices.keys().filter(|id| !held.contains(id)).count() as u64;
        let over = |version: u64| {
            let told = self.told.values().find(|told| told.version == Some(version));
            told.is_some_and(|told| matches!(told.phase.as_str(), "Succeeded" | "Failed"))
        };
        let wanted = self.wanted.values().map(|wanted| wanted.version).filter(|version| !over(*version));
        let taken: u64 = wanted.filter_map(|version| self.resources.asked.get(&version)).map(|asked| asked.cpus).sum();
        let room = CPU_ROOM.saturating_sub(taken) / 1000;
        // The system's own is among those that are nobody's.
        let cpus = room.min((pool.len() as u64).saturating_sub(1));
        let container = ContainerShape {
            name: "c0".to_owned(),
            behaviour: Behaviour { ends_after: None, exit_code: 0, heeds_term: Some(0) },
            sidecar: false,
            probes: Vec::new(),
            devices,
            cpus,
        };
        let restart_policy = "Always".to_owned();
        let shape = Shape { restart_policy, grace: 1, containers: vec![container], ..Shape::default() };
        (devices + cpus > 0).then_some(shape)
    }

    /// At the end: what the files give is of pods that live, and everything runs where it is to.
    pub(crate) fn check_resources_end(&mut self) {
        let (devices, (cpus, pool)) = (self.resources.devices_of_file(), self.resources.cpus_of_file());
        let lives = |uid: &str| {
            let told = self.told.get(uid);
            let over = told.is_none_or(|told| matches!(told.phase.as_str(), "Succeeded" | "Failed"));
            let version = told.and_then(|told| told.version);
            !over && self.wanted.values().any(|wanted| Some(wanted.version) == version)
        };
        let mut wrong = Vec::new();
        for (uid, name) in devices.keys().chain(cpus.keys()).filter(|(uid, _)| !lives(uid)) {
            wrong.push(("held-by-the-living", format!("{name} of {} has something, and has ended", self.short(uid))));
        }
        for container in self.containers.values().filter(|c| c.state == State::Running) {
            let key = (container.uid().to_owned(), container.name().to_owned());
            let should = cpus.get(&key).unwrap_or(&pool);
            if cpus_of(container) != *should {
                let text = format!(
                    "{} of {} runs on CPUs {}, and is to run on {should}",
                    key.1,
                    self.short(&key.0),
                    container.cpus
                );
                wrong.push(("on-its-cpus", text));
            }
        }
        for (check, text) in wrong {
            self.breaks(check, text);
        }
    }
}

/// Writes the files by which a machine of so many CPUs (two of a core) tells of itself below `folder`, and lets processes find them
/// there.
///
/// # Errors
/// They cannot be written.
pub fn machine(folder: &Path, cpus: u32) -> Result<()> {
    let put = |path: &str, content: String| -> Result<()> {
        let path = folder.join(path);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).context("making a folder of the machine")?;
        }
        std::fs::write(path, content + "\n").context("writing a file of the machine")
    };
    put("meminfo", format!("MemTotal: {} kB\nSwapTotal: 0 kB", MEMORY << 10))?;
    let all = format!("0-{}", cpus.saturating_sub(1));
    let cores = (cpus / 2).max(1);
    put("system/cpu/online", all.clone())?;
    for cpu in 0..cpus {
        let topology = format!("system/cpu/cpu{cpu}/topology");
        put(&format!("{topology}/core_id"), (cpu % cores).to_string())?;
        put(&format!("{topology}/physical_package_id"), "0".to_owned())?;
    }
    put("system/node/node0/cpulist", all)?;
    put("system/node/node0/meminfo", format!("Node 0 MemTotal: {} kB", MEMORY << 10))?;
    put("system/node/node0/distance", "10".to_owned())?;
    let replaced = [
        ("/proc/meminfo", "meminfo"),
        ("/sys/devices/system", "system"),
        // There is none.
        ("/sys/kernel/mm/hugepages", "hugepages"),
    ];
    for (path, instead) in replaced {
        kernel::replace(Path::new(path), &folder.join(instead));
    }
    Ok(())
}
