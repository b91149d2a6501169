//! The volume manager as the pod workers use it: what pods want is put in, and who waits is told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::{PodUid, later};
use kubelet_model::v1::Pod;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::attach_limit;
use crate::context::{Context, Ports};
use crate::reconcile_loop::InUse;
use crate::reconciler::Populating;
use crate::statistics::Statistics;
use crate::waiting::{self, MountedVolume, UnmountTimeout, Waiting};
use crate::{followers, populate, populator, reconcile_loop};

/// So long pods that a start has found may take to say what they want of the volumes that it has found.
const POPULATED_WITHIN: Duration = Duration::from_secs(10);

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
        let manager = Arc::new(VolumeManager {
            context: context.clone(),
            in_use: watch::Sender::default(),
            statistics: Statistics::new(context.clone()),
            limits_reached: watch::Sender::default(),
        });
        tokio::spawn(followers::follow_node(context.clone()));
        tokio::spawn(followers::follow_drivers(context.clone()));
        tokio::spawn(followers::follow_driver_objects(context.clone()));
        tokio::spawn(followers::follow_volnetd(context.clone()));
        tokio::spawn(reconcile_loop::run(context, manager.in_use.clone()));
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
    pub async fn add_pod(&self, uid: &PodUid, pod: &Pod) {
        populate::add_pod(&self.context, uid, pod).await;
    }

    /// kubelet-volnetd has made the pod's folders: its volumes may be mounted.
    pub fn folders_ready(&self, uid: &PodUid) {
        if let Some(pod) = self.context.state().desired.pods.get_mut(uid) {
            pod.prepared = true;
        }
        self.context.touch();
    }

    /// Waits until all of the pod's volumes are there, at most for `patience`.
    ///
    /// # Errors
    /// They are not, or cannot be.
    pub async fn wait_for_attach_and_mount(
        &self,
        uid: &PodUid,
        patience: Duration,
    ) -> Result<BTreeMap<String, MountedVolume>, Waiting> {
        let deadline = later(Instant::now(), patience);
        let mut changed = self.context.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let mounted = waiting::mounted(&self.context.state(), uid);
            let unresolved = match mounted {
                Ok(volumes) => return Ok(volumes),
                Err(unresolved) => unresolved,
            };
            if unresolved.is_some() || tokio::time::timeout_at(deadline, changed.changed()).await.is_err() {
                return Err(waiting::waiting(&self.context.state(), uid, unresolved));
            }
        }
    }

    /// All sources have delivered, and these are the pods that are to run: what was found of volumes stays until each of them has said
    /// what it wants.
    pub fn await_pods<'a>(&self, pods: impl Iterator<Item = (&'a PodUid, &'a Pod)>) {
        let mut state = self.context.state();
        let has_volumes = |pod: &Pod| {
            let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
            volumes.any(populator::is_managed)
        };
        // One that has come before this, but could not read its claims, is waited for as well.
        let has_said = |uid: &PodUid| state.desired.pods.get(uid).is_some_and(|wanted| wanted.unresolved.is_empty());
        let awaited = pods.filter(|(uid, pod)| !has_said(uid) && has_volumes(pod));
        let awaited = awaited.map(|(uid, _)| uid.clone()).collect();
        state.populating = Populating::begin(awaited, Instant::now() + POPULATED_WITHIN);
    }

    /// The pod's containers have ended: its volumes are taken back from now on, for as long as that takes.
    pub fn remove_pod(&self, uid: &PodUid) {
        let mut state = self.context.state();
        state.populating.has_come(uid);
        state.desired.pods.remove(uid);
        state.actual.forget_folders(uid);
        state.ended.insert(uid.clone());
        drop(state);
        self.context.touch();
    }

    /// kubelet-volnetd has torn the pod down: nothing of it is bound any more.
    pub fn torn_down(&self, uid: &PodUid) {
        self.context.state().actual.folder_gone(uid);
        self.context.touch();
    }

    /// Pods other than these are gone: what is there of them is taken back.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        let mut state = self.context.state();
        let published = state.actual.volumes.values().flat_map(|volume| volume.pods.keys().cloned());
        let gone: BTreeSet<PodUid> = published.filter(|uid| !keep(uid)).collect();
        for uid in gone {
            state.desired.pods.remove(&uid);
            state.actual.folder_gone(&uid);
            state.ended.insert(uid);
        }
        drop(state);
        self.context.touch();
    }

    /// Waits until nothing of the pod's volumes is there, at most for `patience`.
    ///
    /// # Errors
    /// What is left, and why.
    pub async fn wait_for_unmount(&self, uid: &PodUid, patience: Duration) -> Result<(), UnmountTimeout> {
        let deadline = later(Instant::now(), patience);
        let mut changed = self.context.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let left = waiting::left(&self.context.state(), uid);
            let Some(left) = left else {
                let mut state = self.context.state();
                state.ended.remove(uid);
                let gone = Some(uid.clone());
                state.errors.retain(|(_, pod), _| *pod != gone);
                return Ok(());
            };
            if tokio::time::timeout_at(deadline, changed.changed()).await.is_err() {
                return Err(left);
            }
        }
    }

    /// Why the pod's volumes are not there, for who asks what it waits for.
    pub fn why(&self, uid: &PodUid) -> Vec<String> {
        waiting::waiting(&self.context.state(), uid, None).errors
    }

    /// How many volumes are wanted and there, by upstream's plugin.
    pub fn counts(&self) -> (BTreeMap<String, usize>, BTreeMap<String, usize>) {
        let state = self.context.state();
        let (mut desired, mut actual) = (BTreeMap::new(), BTreeMap::new());
        for volume in state.desired.pods.values().flat_map(|pod| pod.volumes.values()) {
            *desired.entry(volume.spec.plugin()).or_default() += 1;
        }
        for volume in state.actual.volumes.values() {
            *actual.entry(volume.plugin.clone()).or_default() += volume.pods.len();
        }
        (desired, actual)
    }
}

#[cfg(test)]
#[path = "manager_tests.rs"]
mod tests;
