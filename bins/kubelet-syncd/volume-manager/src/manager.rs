//! The volume manager as the pod workers use it: what pods want is put in, who waits is told, and a task for each operation does
//! the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::volnetd as api;
use bulkhead_types::{PodUid, later};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kubelet_model::events::EventType;
use kubelet_model::v1::Pod;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::actual_state::{Expansion, Presence};
use crate::attach_limit;
use crate::back_off::Key;
use crate::context::{Context, Ports, World};
use crate::desired_state::{DesiredPod, DesiredVolume};
use crate::operations::driver_facts::DriverFacts;
use crate::operations::expand::{Expand, Moment};
use crate::operations::mount::Mount;
use crate::operations::{Failure, Phase, flex, unmount};
use crate::pod_facts::PodFacts;
use crate::populator::resolve::Use;
use crate::populator::{self, Unresolved};
use crate::reconciler::{self, Action, Attacher, Look, NodeVolumes, Populating};
use crate::selinux::Label;
use crate::spec::{FlexCan, Source, UniqueName, VolumeSpec};
use crate::statistics::Statistics;

/// A list that could not be had is asked for again after this time.
const LIST_AGAIN: Duration = Duration::from_millis(500);
/// So long pods that a start has found may take to say what they want of the volumes that it has found.
const POPULATED_WITHIN: Duration = Duration::from_secs(10);
/// So long a write of the Node's list that the life before has caused may be under way: no request to the API server takes longer.
const INHERITED_FOR: Duration = Duration::from_secs(30);
/// All of both states is compared in this period, whatever events there were.
const AUDIT: Duration = Duration::from_secs(60);

/// Where the files of a volume are, for whoever looks for a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// What a driver has published.
    Csi,
    /// A folder of the host, bound into the pod's.
    Local,
    /// A disk behind Fibre Channel, bound into the pod's folder.
    Fc,
    /// A disk of an iSCSI target, bound into the pod's folder.
    Iscsi,
    /// An export of an NFS server.
    Nfs,
    /// What a FlexVolume driver has mounted.
    Flex { driver: String },
    /// What the host has there itself: the runtime binds it.
    HostPath,
}

/// A volume that is there for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedVolume {
    /// What the runtime mounts; of a block volume the link to its device.
    pub host_path: PathBuf,
    pub root: Root,
    /// The PersistentVolume's name, or an inline volume's.
    pub spec_name: String,
    pub block: bool,
    pub read_only: bool,
    /// Group that the pod gets beside its own.
    pub gid: Option<i64>,
    /// Where SELinux is on, the runtime labels its files.
    pub relabel: bool,
}

/// Why a pod's volumes are not there yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// As upstream says it after `Unable to attach or mount volumes: `.
    pub text: String,
    /// Nothing is wrong: somebody is away.
    pub away: bool,
    /// Nothing hinders it, but it has lasted for too long.
    pub timed_out: bool,
    /// Volumes that are not there.
    pub unmounted: Vec<String>,
    /// Why operations on them failed last.
    pub errors: Vec<String>,
}

/// What the Node's status is to list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InUse {
    /// Sorted.
    pub names: Vec<String>,
    /// It is known to be all: a shorter list than the Node's may be written.
    pub complete: bool,
}

/// See the crate's documentation.
#[derive(Debug)]
pub struct VolumeManager {
    context: Arc<Context>,
    in_use: watch::Sender<InUse>,
    statistics: Statistics,
    /// By driver, how often a pod was refused because the node can have no more of its volumes.
    limits_reached: watch::Sender<BTreeMap<String, u64>>,
}

impl VolumeManager {
    /// Starts what reconciles. Must be called within a tokio runtime.
    pub fn start(ports: Ports) -> Arc<Self> {
        let context = Arc::new(Context::new(ports));
        let statistics = Statistics::new(context.clone());
        let manager = Arc::new(VolumeManager {
            context,
            in_use: watch::Sender::default(),
            statistics,
            limits_reached: watch::Sender::default(),
        });
        tokio::spawn(manager.clone().follow_node());
        tokio::spawn(manager.clone().follow_drivers());
        tokio::spawn(manager.clone().follow_driver_objects());
        tokio::spawn(manager.clone().follow_volnetd());
        tokio::spawn(manager.clone().reconcile());
        manager
    }

    /// What drivers say of the room in volumes.
    pub fn statistics(&self) -> Statistics {
        self.statistics.clone()
    }

    /// The Node's `volumesInUse`, and each change of it.
    pub fn in_use(&self) -> watch::Receiver<InUse> {
        self.in_use.subscribe()
    }

    /// By driver, how often a pod was refused because the node can have no more of its volumes, and each change of it.
    pub fn limits_reached(&self) -> watch::Receiver<BTreeMap<String, u64>> {
        self.limits_reached.subscribe()
    }

    /// The driver of a volume of the pod that will not be attached, because the node has as many of its volumes as it can. To be
    /// asked once the pod has waited in vain.
    pub async fn limit_reached(&self, uid: &PodUid) -> Option<String> {
        let driver = attach_limit::exhausted(&self.context, uid).await?;
        self.limits_reached.send_modify(|all| *all.entry(driver.clone()).or_default() += 1);
        Some(driver)
    }

    /// Finds out what a pod's volumes are, and desires them from now on. Called in every sync of the pod: what has changed of its
    /// claims is seen then, and drivers that want to be called again are. Nothing is desired before all volumes are looked at: one of a
    /// FlexVolume driver whose answer to `init` takes long holds up the pod's others until kubelet-flexvolume ends the driver.
    pub async fn want(&self, uid: &PodUid, pod: &Pod) {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        if let Some(selinux) = &self.context.ports.selinux {
            let others = volumes.clone().filter(|volume| !populator::is_managed(volume));
            others.for_each(|volume| selinux.count_other(pod, &volume.name));
        }
        let used = volumes.filter(|volume| populator::is_managed(volume)).filter_map(|volume| {
            let used = Use::of(pod, &volume.name);
            used.any().then_some((volume, used))
        });
        let reader = &*self.context.ports.reader;
        let resolved = futures_util::future::join_all(used.map(|(volume, used)| async move {
            let has = self.has(uid, &volume.name);
            let found = async {
                let spec = populator::populate(reader, pod, volume, used, has.as_ref()).await?;
                let spec = self.with_driver(uid, &volume.name, spec).await?;
                let facts = self.facts(&spec)?;
                Ok::<_, Unresolved>((spec, facts))
            };
            (volume.name.clone(), found.await)
        }))
        .await;
        let mut world = self.context.world();
        if resolved.is_empty() {
            world.desired.pods.remove(uid);
            let was_last = world.populating.has_come(uid);
            drop(world);
            if was_last {
                self.context.touch();
            }
            return;
        }
        // The reconciler looks at all volumes of all pods, which a look at one pod is no reason for.
        let mut changed = false;
        let before = world.desired.pods.remove(uid);
        if before.is_none() {
            // A static pod comes again under the same uid: what it had went with its folder.
            world.actual.forget_folders(uid);
        }
        let mut wanted = DesiredPod {
            facts: Arc::new(PodFacts::of(pod)),
            prepared: before.as_ref().is_some_and(|before| before.prepared),
            volumes: BTreeMap::new(),
            unresolved: BTreeMap::new(),
        };
        for (name, found) in resolved {
            let (spec, facts) = match found {
                Ok(found) => found,
                Err(error) => {
                    // What was known stays: the volume is used already, or soon will be.
                    match before.as_ref().and_then(|before| before.named(&name)) {
                        Some((unique, volume)) => {
                            wanted.volumes.insert(unique.clone(), volume.clone());
                            tracing::debug!(pod_uid = %uid, volume = name, "claim cannot be read: {}", error.text);
                        }
                        None => {
                            wanted.unresolved.insert(name, error);
                        }
                    }
                    continue;
                }
            };
            let unique = spec.unique_name(uid.as_str());
            let is_csi = spec.csi().is_some_and(|source| !source.ephemeral);
            let mounted = world.actual.published(&unique, uid).is_some_and(|p| p.presence == Presence::Yes);
            let single_pod = spec.is_single_pod();
            // The driver's object may be another one since the other volumes' claims were read.
            let facts = self.facts(&spec).unwrap_or(facts);
            let attachable = (is_csi && facts.attach_required) || spec.place().is_some();
            let known = wanted.volumes.get(&unique).or_else(|| before.as_ref()?.volumes.get(&unique));
            let label = match (known, &self.context.ports.selinux) {
                (Some(known), _) => known.label.clone(),
                (None, None) => Label::default(),
                (None, Some(selinux)) => {
                    let supported = spec.csi().is_some() && facts.selinux_mount;
                    match selinux.label(pod, &name, &spec, supported, world.desired.label(&unique)) {
                        Ok(label) => label,
                        Err(text) => {
                            wanted.unresolved.insert(name, Unresolved { text, away: false });
                            continue;
                        }
                    }
                }
            };
            let spec = match known {
                Some(known) if *known.spec == spec => known.spec.clone(),
                _ => Arc::new(spec),
            };
            let volume = wanted.volumes.entry(unique.clone()).or_insert_with(|| DesiredVolume {
                spec,
                names: BTreeSet::new(),
                attachable,
                remount: facts.requires_republish && mounted,
                label,
            });
            volume.names.insert(name);
            if let Some(actual) = world.actual.volumes.get_mut(&unique) {
                changed |= actual.attachable.replace(volume.attachable) != Some(volume.attachable);
                if actual.claim_size == 0 {
                    actual.claim_size = volume.spec.claim.as_ref().map_or(0, |claim| claim.capacity);
                    changed |= actual.claim_size != 0;
                }
                if actual.expansion == Expansion::NextSync {
                    actual.expansion = Expansion::Possible;
                    changed = true;
                }
                if let Some(published) = actual.pods.get_mut(uid) {
                    changed |= std::mem::replace(&mut published.single_pod, single_pod) != single_pod;
                }
            }
        }
        // A volume that is not known yet may be one of those that were found.
        changed |= wanted.unresolved.is_empty() && world.populating.has_come(uid);
        changed |= world.ended.remove(uid);
        changed |= before.is_none_or(|before| !wanted.wants_as_before(&before));
        world.desired.pods.insert(uid.clone(), wanted);
        drop(world);
        if changed {
            self.context.touch();
        }
    }

    /// The pod's volume of this name, if it is there for the pod and its size is known where that counts: its claim has grown with
    /// each expansion.
    fn has(&self, uid: &PodUid, name: &str) -> Option<VolumeSpec> {
        let world = self.context.world();
        let (unique, volume) = world.desired.pods.get(uid)?.named(name)?;
        let there = world.actual.volumes.get(unique)?;
        if there.pods.get(uid)?.presence != Presence::Yes || there.claim_size == 0 && volume.spec.may_grow() {
            return None;
        }
        let mut spec = VolumeSpec::clone(&volume.spec);
        if let Some(claim) = spec.claim.as_mut().filter(|_| there.claim_size > 0) {
            claim.capacity = there.claim_size;
        }
        Some(spec)
    }

    /// A FlexVolume driver says what it can do, before the volume has a name. What a pod has, it has of the driver that there was.
    async fn with_driver(&self, uid: &PodUid, name: &str, mut spec: VolumeSpec) -> Result<VolumeSpec, Unresolved> {
        let Source::Flex(source) = &mut spec.source else { return Ok(spec) };
        if let Some(known) = self.known_driver(uid, name, &source.driver) {
            source.can = known;
            return Ok(spec);
        }
        let request = api::AskFlexDriverRequest { driver: source.driver.clone() };
        let said = self.context.ports.verbs.ask_flex_driver(request).await.map_err(|error| {
            let Failure { text, away, .. } = Failure::verb(Phase::NewMounter, &error);
            let text = format!("failed to get Plugin from volumeSpec for volume {:?} err={text}", spec.name);
            Unresolved { text, away }
        })?;
        source.can = flex::can(said.capabilities.unwrap_or_default());
        Ok(spec)
    }

    fn known_driver(&self, uid: &PodUid, name: &str, driver: &str) -> Option<FlexCan> {
        let world = self.context.world();
        let (unique, volume) = world.desired.pods.get(uid)?.named(name)?;
        let is_there = world.actual.published(unique, uid)?.presence == Presence::Yes;
        match &volume.spec.source {
            Source::Flex(source) if is_there && source.driver == driver => Some(source.can),
            _ => None,
        }
    }

    fn facts(&self, spec: &VolumeSpec) -> Result<DriverFacts, Unresolved> {
        let Some(source) = spec.csi() else { return Ok(DriverFacts::of(None)) };
        let found = self.context.ports.reader.driver(&source.driver);
        let found = found.map_err(|error| Unresolved { text: error.to_string(), away: true })?;
        Ok(DriverFacts::of(found.as_deref()))
    }

    /// kubelet-volnetd has made the pod's folders: its volumes may be mounted.
    pub fn folders_ready(&self, uid: &PodUid) {
        if let Some(pod) = self.context.world().desired.pods.get_mut(uid) {
            pod.prepared = true;
        }
        self.context.touch();
    }

    /// Waits until all of the pod's volumes are there, at most for `patience`.
    ///
    /// # Errors
    /// They are not, or cannot be.
    pub async fn mounted(&self, uid: &PodUid, patience: Duration) -> Result<BTreeMap<String, MountedVolume>, Waiting> {
        let deadline = later(Instant::now(), patience);
        let mut changed = self.context.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let unresolved = match self.look(uid) {
                Ok(volumes) => return Ok(volumes),
                Err(unresolved) => unresolved,
            };
            if unresolved.is_some() {
                return Err(self.waiting(uid, unresolved));
            }
            if tokio::time::timeout_at(deadline, changed.changed()).await.is_err() {
                return Err(self.waiting(uid, None));
            }
        }
    }

    /// The pod's volumes, if all are there; else why some never will be as things are.
    fn look(&self, uid: &PodUid) -> Result<BTreeMap<String, MountedVolume>, Option<Vec<Unresolved>>> {
        let world = self.context.world();
        let Some(pod) = world.desired.pods.get(uid) else { return Ok(BTreeMap::new()) };
        if !pod.unresolved.is_empty() {
            return Err(Some(pod.unresolved.values().cloned().collect()));
        }
        let mut found = BTreeMap::new();
        for (unique, volume) in &pod.volumes {
            let there = world
                .actual
                .published(unique, uid)
                .filter(|published| published.presence == Presence::Yes && !published.host_path.is_empty());
            let Some(there) = there else { return Err(None) };
            let mounted = MountedVolume {
                host_path: PathBuf::from(&there.host_path),
                root: match &volume.spec.source {
                    Source::Csi(_) => Root::Csi,
                    Source::Local { .. } => Root::Local,
                    Source::HostPath { .. } => Root::HostPath,
                    Source::Nfs { .. } => Root::Nfs,
                    Source::Fc(_) => Root::Fc,
                    Source::Iscsi(_) => Root::Iscsi,
                    Source::Flex(source) => Root::Flex { driver: source.driver.clone() },
                },
                spec_name: volume.spec.name.clone(),
                block: volume.spec.block,
                read_only: volume.spec.read_only,
                gid: volume.spec.gid,
                relabel: there.relabel,
            };
            found.extend(volume.names.iter().map(|name| (name.clone(), mounted.clone())));
        }
        Ok(found)
    }

    fn waiting(&self, uid: &PodUid, unresolved: Option<Vec<Unresolved>>) -> Waiting {
        let world = self.context.world();
        let Some(pod) = world.desired.pods.get(uid) else {
            return Waiting {
                text: String::new(),
                away: true,
                timed_out: false,
                unmounted: Vec::new(),
                errors: Vec::new(),
            };
        };
        let is_there = |unique: &UniqueName| {
            world.actual.published(unique, uid).is_some_and(|published| published.presence == Presence::Yes)
        };
        let missing = || pod.volumes.iter().filter(|(unique, _)| !is_there(unique));
        let names = |volumes: &mut dyn Iterator<Item = (&UniqueName, &DesiredVolume)>| {
            volumes.flat_map(|(_, volume)| volume.names.iter().cloned()).collect::<BTreeSet<String>>()
        };
        let unattached = names(&mut missing().filter(|(unique, volume)| {
            volume.attachable && !reconciler::is_attached(&world.attacher, &world.node, unique)
        }));
        let failed: BTreeSet<String> = pod.unresolved.keys().cloned().collect();
        let unmounted: BTreeSet<String> = names(&mut missing()).union(&failed).cloned().collect();
        let list = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(" ");
        let away = unresolved.as_ref().is_some_and(|all| all.iter().all(|one| one.away));
        let timed_out = unresolved.is_none();
        let why = match unresolved {
            None => "context deadline exceeded".to_owned(),
            Some(all) => all.into_iter().map(|one| one.text).collect::<Vec<_>>().join("; "),
        };
        let (missing_names, unattached, failed) = (list(&unmounted), list(&unattached), list(&failed));
        let errors =
            pod.volumes.keys().filter_map(|unique| world.errors.get(&(unique.clone(), Some(uid.clone()))).cloned());
        Waiting {
            text: format!(
                "unmounted volumes=[{missing_names}], unattached volumes=[{unattached}], failed to process \
                 volumes=[{failed}]: {why}"
            ),
            away,
            timed_out,
            errors: errors.collect(),
            unmounted: unmounted.into_iter().collect(),
        }
    }

    /// All sources have delivered, and these are the pods that are to run: what was found of volumes stays until each of them has said
    /// what it wants.
    pub fn await_pods<'a>(&self, pods: impl Iterator<Item = (&'a PodUid, &'a Pod)>) {
        let mut world = self.context.world();
        let has_volumes = |pod: &Pod| {
            let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
            volumes.any(populator::is_managed)
        };
        // One that has come before this, but could not read its claims, is waited for as well.
        let has_said = |uid: &PodUid| world.desired.pods.get(uid).is_some_and(|wanted| wanted.unresolved.is_empty());
        let awaited = pods.filter(|(uid, pod)| !has_said(uid) && has_volumes(pod));
        let awaited = awaited.map(|(uid, _)| uid.clone()).collect();
        world.populating = Populating::begin(awaited, Instant::now() + POPULATED_WITHIN);
    }

    /// The pod's containers have ended: its volumes are taken back from now on, for as long as that takes.
    pub fn end(&self, uid: &PodUid) {
        let mut world = self.context.world();
        world.populating.has_come(uid);
        world.desired.pods.remove(uid);
        world.actual.forget_folders(uid);
        world.ended.insert(uid.clone());
        drop(world);
        self.context.touch();
    }

    /// kubelet-volnetd has torn the pod down: nothing of it is bound any more.
    pub fn torn_down(&self, uid: &PodUid) {
        self.context.world().actual.folder_gone(uid);
        self.context.touch();
    }

    /// Pods other than these are gone: what is there of them is taken back.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        let mut world = self.context.world();
        let published = world.actual.volumes.values().flat_map(|volume| volume.pods.keys().cloned());
        let gone: BTreeSet<PodUid> = published.filter(|uid| !keep(uid)).collect();
        for uid in gone {
            world.desired.pods.remove(&uid);
            world.actual.folder_gone(&uid);
            world.ended.insert(uid);
        }
        drop(world);
        self.context.touch();
    }

    /// Waits until nothing of the pod's volumes is there, at most for `patience`.
    ///
    /// # Errors
    /// What is left, and why.
    pub async fn unmounted(&self, uid: &PodUid, patience: Duration) -> Result<(), String> {
        let deadline = later(Instant::now(), patience);
        let mut changed = self.context.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let left = {
                let world = self.context.world();
                self.left(&world, uid)
            };
            let Some(left) = left else {
                let mut world = self.context.world();
                world.ended.remove(uid);
                let gone = Some(uid.clone());
                world.errors.retain(|(_, pod), _| *pod != gone);
                return Ok(());
            };
            if tokio::time::timeout_at(deadline, changed.changed()).await.is_err() {
                return Err(left);
            }
        }
    }

    fn left(&self, world: &World, uid: &PodUid) -> Option<String> {
        if world.actual.epoch == 0 {
            return Some("waits for kubelet-volnetd's list of volumes".to_owned());
        }
        let left: Vec<&UniqueName> = world
            .actual
            .of_pod(uid)
            .filter(|name| world.actual.volumes.get(name).is_some_and(|volume| volume.device.is_some()))
            .collect();
        let begun = world.busy.iter().filter(|(name, pod)| pod.as_ref() == Some(uid) && !left.contains(name));
        let begun = begun.map(|(name, _)| format!("an operation on volume {name} has not ended"));
        let names: Vec<String> = left
            .iter()
            .map(|name| match world.errors.get(&((*name).clone(), Some(uid.clone()))) {
                Some(error) => error.clone(),
                None => format!("volume {name} is being unmounted"),
            })
            .chain(begun)
            .collect();
        (!names.is_empty()).then(|| names.join("; "))
    }

    /// Why the pod's volumes are not there, for who asks what it waits for.
    pub fn why(&self, uid: &PodUid) -> Vec<String> {
        self.waiting(uid, None).errors
    }

    /// How many volumes are wanted and there, by upstream's plugin.
    pub fn counts(&self) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
        let world = self.context.world();
        let (mut desired, mut actual) = (BTreeMap::new(), BTreeMap::new());
        for volume in world.desired.pods.values().flat_map(|pod| pod.volumes.values()) {
            *desired.entry(volume.spec.plugin()).or_default() += 1;
        }
        for volume in world.actual.volumes.values() {
            *actual.entry(volume.plugin.clone()).or_default() += volume.pods.len();
        }
        (desired, actual)
    }

    async fn follow_node(self: Arc<Self>) {
        let mut node = self.context.ports.reader.node();
        loop {
            let seen = node.borrow_and_update().as_deref().map(node_volumes).unwrap_or_default();
            let changed = {
                let mut world = self.context.world();
                let seen = world.node.followed_by(seen);
                let changed = world.node != seen;
                world.node = seen;
                changed
            };
            if changed {
                self.context.touch();
            }
            if node.changed().await.is_err() {
                return;
            }
        }
    }

    async fn follow_drivers(self: Arc<Self>) {
        let mut changes = self.context.ports.drivers.changes();
        while let Some(changed) = changes.next().await {
            {
                let mut world = self.context.world();
                let World { desired, actual, back_offs, .. } = &mut *world;
                // Volumes of other drivers go on waiting: a driver that comes and goes is no reason to call theirs.
                let wanted = |volume: &UniqueName| {
                    let mut specs = desired.pods.values().filter_map(|pod| pod.volumes.get(volume));
                    specs.find_map(|wanted| wanted.spec.csi()).is_some_and(|source| changed.contains(&source.driver))
                };
                let there = |volume: &UniqueName| {
                    let device = actual.volumes.get(volume).and_then(|volume| volume.device.as_ref());
                    device.is_some_and(|device| changed.contains(&device.driver))
                };
                back_offs.hurry(Instant::now(), |volume| wanted(volume) || there(volume));
            }
            self.context.touch();
        }
    }

    /// Whether a controller attaches its volumes is a word of the driver's object, which may come after the pods that wait for them.
    async fn follow_driver_objects(self: Arc<Self>) {
        let reader = &self.context.ports.reader;
        let mut changes = reader.driver_changes();
        while changes.next().await.is_some() {
            let mut changed = false;
            {
                let mut world = self.context.world();
                let World { desired, actual, .. } = &mut *world;
                for (unique, volume) in desired.pods.values_mut().flat_map(|pod| pod.volumes.iter_mut()) {
                    let Some(source) = volume.spec.csi().filter(|source| !source.ephemeral) else { continue };
                    let Ok(found) = reader.driver(&source.driver) else { continue };
                    let attachable = DriverFacts::of(found.as_deref()).attach_required;
                    changed |= std::mem::replace(&mut volume.attachable, attachable) != attachable;
                    if let Some(actual) = actual.volumes.get_mut(unique) {
                        changed |= actual.attachable.replace(attachable) != Some(attachable);
                    }
                }
            }
            if changed {
                self.context.touch();
            }
        }
    }

    /// What kubelet-volnetd has, once in each of its lives.
    async fn follow_volnetd(self: Arc<Self>) {
        let mut epoch = self.context.ports.verbs.epoch();
        loop {
            let life = *epoch.borrow_and_update();
            if life != 0 && self.context.world().actual.epoch != life {
                let verbs = &self.context.ports.verbs;
                let lists =
                    futures_util::future::try_join3(verbs.list_staged(), verbs.list_published(), verbs.list_disks());
                match lists.await {
                    Ok((staged, published, disks)) => {
                        self.tell_found(&published);
                        let mut world = self.context.world();
                        tracing::info!(
                            staged = staged.len(),
                            published = published.len(),
                            disks = disks.len(),
                            "volumes found on this node"
                        );
                        let mut rebuilt = world.actual.rebuilt(life, staged, published).with_disks(disks);
                        // What an operation is just writing of is its own.
                        for busy in world.busy.keys() {
                            match world.actual.volumes.get(busy) {
                                Some(volume) => rebuilt.volumes.insert(busy.clone(), volume.clone()),
                                None => rebuilt.volumes.remove(busy),
                            };
                        }
                        world.actual = rebuilt;
                        drop(world);
                        self.context.touch();
                        continue;
                    }
                    Err(error) => {
                        tracing::debug!(error = &error as &dyn std::error::Error, "volumes could not be listed");
                        let _ = tokio::time::timeout(LIST_AGAIN, epoch.changed()).await;
                        continue;
                    }
                }
            }
            if epoch.changed().await.is_err() {
                return;
            }
        }
    }

    /// Counts what was found of pods, and names what nobody knows.
    fn tell_found(&self, published: &[api::PublishedVolume]) {
        let unknown = published.iter().filter(|found| !found.problem.is_empty());
        self.context.ports.metrics.reconstructed(published.len(), unknown.clone().count());
        for found in unknown {
            tracing::warn!(
                pod_uid = found.pod_uid,
                path = found.target_path,
                "Could not construct volume information: {}",
                found.problem
            );
        }
    }

    async fn reconcile(self: Arc<Self>) {
        loop {
            let again = self.pass();
            let audit = Instant::now() + AUDIT;
            let again = again.map_or(audit, |again| again.min(audit));
            tokio::select! {
                () = self.context.wake.notified() => {}
                () = tokio::time::sleep_until(again) => {}
            }
        }
    }

    /// Begins what is to be begun. Answers when to look again.
    fn pass(&self) -> Option<Instant> {
        let now = Instant::now();
        let verbs = &self.context.ports.verbs;
        let epoch = *verbs.epoch().borrow();
        let sources_ready = verbs.guard("look").is_ok();
        let mut world = self.context.world();
        let known = world.actual.epoch != 0 && world.actual.epoch == epoch;
        if known && matches!(world.attacher, Attacher::Controller) {
            let World { node, actual, .. } = &mut *world;
            node.inherit(actual, now + INHERITED_FOR);
            node.lapse(now);
        }
        let (actions, again) = reconciler::plan(&Look {
            desired: &world.desired,
            actual: &world.actual,
            busy: &world.busy,
            ended: &world.ended,
            back_offs: &world.back_offs,
            node: &world.node,
            attacher: &world.attacher,
            may_unmount: known && sources_ready,
            populating_until: world.populating.until(now),
            known,
            now,
        });
        for action in actions {
            if let Action::Forget { volume } = &action {
                world.actual.volumes.remove(volume);
                continue;
            }
            let (volume, pod) = key(&action);
            world.busy.insert(volume.clone(), pod.cloned());
            tokio::spawn(operate(self.context.clone(), action));
        }
        let waiting = self.labelled_otherwise(&mut world);
        // An ended pod of which nothing is left, and that no operation is about, is forgotten; before kubelet-volnetd's list nobody
        // knows what is left.
        let World { ended, actual, busy, desired, attacher, back_offs, errors, .. } = &mut *world;
        if let Attacher::Node(attached) = attacher {
            attached.retain(|name| desired.wants(name) || actual.volumes.contains_key(name));
        }
        ended.retain(|uid| {
            !known || actual.of_pod(uid).next().is_some() || busy.values().any(|pod| pod.as_ref() == Some(uid))
        });
        // Nor is it remembered how operations for it failed.
        let busy = &*busy;
        let is_known = |(volume, pod): &Key| match pod {
            Some(pod) => {
                let operates = busy.get(volume).is_some_and(|of| of.as_ref() == Some(pod));
                operates || desired.pods.contains_key(pod) || actual.published(volume, pod).is_some()
            }
            None => busy.contains_key(volume) || actual.volumes.contains_key(volume),
        };
        back_offs.retain(is_known);
        errors.retain(|key, _| is_known(key));
        let names = reconciler::in_use(&world.desired, &world.actual, &world.node, &world.busy);
        let in_use = InUse { names, complete: known && sources_ready && world.node.known };
        if matches!(world.attacher, Attacher::Controller) {
            world.node.report(&in_use.names, in_use.complete);
        }
        drop(world);
        for (uid, pod, text) in waiting {
            let text = self.waiting(&uid, Some(vec![Unresolved { text, away: false }])).text;
            let message = format!("Unable to attach or mount volumes: {text}");
            self.context.event(&pod, EventType::Warning, "FailedMount", message);
        }
        self.in_use.send_if_modified(|told| {
            let changed = *told != in_use;
            *told = in_use;
            changed
        });
        // Word that all sources have delivered comes from nobody.
        let waits = (!sources_ready).then(|| now + LIST_AGAIN);
        match (again, waits) {
            (Some(again), Some(waits)) => Some(again.min(waits)),
            (again, waits) => again.or(waits),
        }
    }
}

/// A pod that newly waits, and for what.
type NewlyWaiting = (PodUid, Arc<PodFacts>, String);

impl VolumeManager {
    /// Pods that wait until a volume, mounted with another SELinux label, is taken from the node: said once to each. The volume
    /// is mounted as soon as it is free, and the pod need not fail for that.
    fn labelled_otherwise(&self, world: &mut World) -> Vec<NewlyWaiting> {
        if self.context.ports.selinux.is_none() {
            return Vec::new();
        }
        let mut newly = Vec::new();
        for (volume, uid) in reconciler::labelled_otherwise(&world.desired, &world.actual) {
            let text = format!(
                "waiting for unmount of volume {:?}, because it is already mounted to a different pod with a different SELinux label",
                volume.0
            );
            let known = world.errors.insert((volume, Some(uid.clone())), text.clone());
            if known.as_ref() != Some(&text)
                && let Some(pod) = world.desired.pods.get(&uid)
            {
                newly.push((uid, pod.facts.clone(), text));
            }
        }
        newly
    }
}

fn node_volumes(node: &Node) -> NodeVolumes {
    let status = node.status.as_ref();
    NodeVolumes {
        known: true,
        in_use: status.iter().flat_map(|s| s.volumes_in_use.iter().flatten().cloned()).collect(),
        attached: status.iter().flat_map(|s| s.volumes_attached.iter().flatten().map(|v| v.name.clone())).collect(),
        ..NodeVolumes::default()
    }
}

fn key(action: &Action) -> (&UniqueName, Option<&PodUid>) {
    match action {
        Action::Attach { volume, pod }
        | Action::Mount { volume, pod }
        | Action::Unmount { volume, pod }
        | Action::Expand { volume, pod } => (volume, Some(pod)),
        Action::Unstage { volume } | Action::Forget { volume } => (volume, None),
    }
}

/// One operation, from its begin to its place in the books.
async fn operate(context: Arc<Context>, action: Action) {
    let began = Instant::now();
    let (volume, pod) = key(&action);
    let (volume, pod) = (volume.clone(), pod.cloned());
    let (plugin, block, migrated) = {
        let world = context.world();
        let actual = world.actual.volumes.get(&volume);
        let desired = pod.as_ref().and_then(|pod| world.desired.volume(pod, &volume));
        let plugin = actual.map(|v| v.plugin.clone()).or_else(|| desired.map(|v| v.spec.plugin()));
        let of_device = actual.is_some_and(|volume| {
            volume.device.as_ref().is_some_and(|device| device.block)
                || volume.disk.as_ref().is_some_and(|disk| disk.block)
        });
        let migrated = desired.and_then(|v| v.spec.csi()).is_some_and(|source| source.migrated);
        (plugin.unwrap_or_default(), of_device || desired.is_some_and(|v| v.spec.block), migrated)
    };
    let Some(operation) = action.operation(block) else { return };
    let result = match &action {
        Action::Attach { volume, pod } => attach(&context, volume, pod),
        Action::Mount { volume, pod } => mount(&context, volume, pod).await,
        Action::Unmount { volume, pod } => {
            let unknown = context.world().actual.published(volume, pod).is_some_and(|published| published.unreadable);
            let result = unmount::unmount(&context, volume, pod).await;
            if unknown && !result.as_ref().is_err_and(|failure| failure.away) {
                context.ports.metrics.force_cleaned(result.is_ok());
            }
            result
        }
        Action::Expand { volume, pod } => expand(&context, volume, pod).await,
        Action::Unstage { volume } => unmount::unstage(&context, volume).await,
        Action::Forget { .. } => return,
    };
    context.ports.metrics.observe(&plugin, operation, result.is_ok(), migrated, began.elapsed());
    finish(&context, &action, block, result);
    context.touch();
}

/// What upstream's plugins do where no controller attaches: nothing, but for CSI's, which leaves it to the controller.
/// A FlexVolume driver's `attach` is the controller's as well.
fn attach(context: &Context, volume: &UniqueName, uid: &PodUid) -> Result<(), Failure> {
    let wanted = {
        let mut world = context.world();
        let World { desired, attacher, .. } = &mut *world;
        let Some(pod) = desired.pods.get(uid) else { return Ok(()) };
        let Some(wanted) = pod.volumes.get(volume) else { return Ok(()) };
        if matches!(wanted.spec.source, Source::Csi(_) | Source::Flex(_)) {
            return Err(Failure::new(Phase::Attach, "attaching volumes from the kubelet is not supported"));
        }
        if let Attacher::Node(attached) = attacher {
            attached.insert(volume.clone());
        }
        (pod.facts.clone(), wanted.spec.name.clone())
    };
    let (pod, name) = wanted;
    let message = format!("AttachVolume.Attach succeeded for volume {name:?} ");
    context.event(&pod, EventType::Normal, "SuccessfulAttachVolume", message);
    Ok(())
}

async fn mount(context: &Context, volume: &UniqueName, uid: &PodUid) -> Result<(), Failure> {
    let found = {
        let mut world = context.world();
        world.desired.pods.get_mut(uid).and_then(|pod| {
            let wanted = pod.volumes.get_mut(volume)?;
            let remount = std::mem::take(&mut wanted.remount);
            Some((pod.facts.clone(), wanted.spec.clone(), wanted.attachable, remount, wanted.label.mount.clone()))
        })
    };
    // Nobody wants it any more.
    let Some((pod, spec, attachable, remount, wanted)) = found else { return Ok(()) };
    let label = {
        let world = context.world();
        // What a pod has, it keeps as it is.
        let has = world.actual.volumes.get(volume).filter(|there| there.pods.contains_key(uid));
        has.map_or(wanted, |there| there.label.clone())
    };
    let result = Mount { context, volume, uid, pod, spec: spec.clone(), attachable, remount, label }.run().await;
    let Err(failure) = &result else { return result };
    if remount {
        // As upstream's remountRequired: until the driver has been called with success.
        let mut world = context.world();
        let wanted = world.desired.pods.get_mut(uid).and_then(|pod| pod.volumes.get_mut(volume));
        wanted.into_iter().for_each(|wanted| wanted.remount = true);
    }
    if failure.mismatch && spec.claim.is_some() {
        say_mismatch(context, &spec.name, &failure.text).await;
    }
    result
}

/// Told to the PersistentVolume, beside what the pod is told (upstream `operation_generator.go` checkForFailedMount).
async fn say_mismatch(context: &Context, name: &str, why: &str) {
    let Ok(volume) = context.ports.reader.volume(name).await else { return };
    let message = format!("MountVolume failed for volume {name:?} {why}");
    let reason = "FailedMountOnFilesystemMismatch";
    context.event_of("PersistentVolume", &volume.metadata, EventType::Warning, reason, message);
}

async fn expand(context: &Context, volume: &UniqueName, uid: &PodUid) -> Result<(), Failure> {
    let found = {
        let world = context.world();
        let pod = world.desired.pods.get(uid);
        pod.and_then(|pod| Some((pod.facts.clone(), pod.volumes.get(volume)?.spec.clone())))
    };
    let Some((pod, spec)) = found else { return Ok(()) };
    Expand { context, volume, uid, pod, spec, moment: Moment::Online }.run().await
}

fn finish(context: &Context, action: &Action, block: bool, result: Result<(), Failure>) {
    let (volume, pod) = key(action);
    let key = (volume.clone(), pod.cloned());
    let mut world = context.world();
    world.busy.remove(volume);
    let Err(failure) = result else {
        world.back_offs.forget(&key);
        world.errors.remove(&key);
        return;
    };
    world.back_offs.failed(key.clone(), action.kind(), Instant::now());
    let wanted = pod.and_then(|pod| {
        let wanted = world.desired.pods.get(pod)?;
        Some((wanted.facts.clone(), wanted.volumes.get(volume)?.spec.name.clone()))
    });
    let device = world.actual.volumes.get(volume).and_then(|v| v.device.as_ref()).map(|d| d.spec_name.clone());
    let name = wanted.as_ref().map(|(_, name)| name.clone()).or(device).unwrap_or_else(|| volume.0.clone());
    let message = failure.message(&name, block);
    world.errors.insert(key, message.clone());
    drop(world);
    match (action, wanted) {
        (_, _) if failure.away => tracing::debug!(volume = %volume, "{message}"),
        (Action::Mount { .. } | Action::Attach { .. }, Some((pod, _))) => {
            context.event(&pod, EventType::Warning, failure.phase.reason(block), message);
        }
        (Action::Expand { .. }, Some((pod, _))) => {
            context.event(&pod, EventType::Warning, "VolumeResizeFailed", message);
        }
        (_, _) => tracing::warn!(volume = %volume, "{message}"),
    }
}

#[cfg(test)]
#[path = "manager_tests.rs"]
mod tests;
