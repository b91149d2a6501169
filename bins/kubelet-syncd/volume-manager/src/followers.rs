//! What the rest of the world says, written into the state: the Node's status, drivers that come and go, their objects, and what
//! kubelet-volnetd finds on the disk.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::volnetd as api;
use futures_util::StreamExt as _;
use futures_util::future::try_join3;
use tokio::time::Instant;

use crate::context::{Context, State};
use crate::operations::driver_facts::DriverFacts;
use crate::reconciler::NodeVolumes;
use crate::spec::UniqueName;

/// A list that could not be had is asked for again after this time.
const LIST_AGAIN: Duration = Duration::from_millis(500);

pub async fn follow_node(context: Arc<Context>) {
    let mut node = context.ports.reader.node();
    loop {
        let seen = node.borrow_and_update().as_deref().map(NodeVolumes::of).unwrap_or_default();
        let changed = {
            let mut state = context.state();
            let seen = state.node.followed_by(seen);
            let changed = state.node != seen;
            state.node = seen;
            changed
        };
        if changed {
            context.touch();
        }
        if node.changed().await.is_err() {
            return;
        }
    }
}

pub async fn follow_drivers(context: Arc<Context>) {
    let mut changes = context.ports.drivers.changes();
    while let Some(changed) = changes.next().await {
        {
            let mut state = context.state();
            let State { desired, actual, back_offs, .. } = &mut *state;
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
        context.touch();
    }
}

/// Whether a controller attaches its volumes is a word of the driver's object, which may come after the pods that wait for them.
pub async fn follow_driver_objects(context: Arc<Context>) {
    let reader = &context.ports.reader;
    let mut changes = reader.driver_changes();
    while changes.next().await.is_some() {
        let mut changed = false;
        {
            let mut state = context.state();
            let State { desired, actual, .. } = &mut *state;
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
            context.touch();
        }
    }
}

/// What kubelet-volnetd has, once in each of its lives.
pub async fn follow_volnetd(context: Arc<Context>) {
    let verbs = &context.ports.verbs;
    let mut epoch = verbs.epoch();
    loop {
        let life = *epoch.borrow_and_update();
        if life == 0 || context.state().actual.epoch == life {
            if epoch.changed().await.is_err() {
                return;
            }
            continue;
        }
        match try_join3(verbs.list_staged(), verbs.list_published(), verbs.list_disks()).await {
            Ok((staged, published, disks)) => rebuild(&context, life, staged, published, disks),
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "volumes could not be listed");
                let _ = tokio::time::timeout(LIST_AGAIN, epoch.changed()).await;
            }
        }
    }
}

/// `life`: of kubelet-volnetd, whose lists these are.
fn rebuild(
    context: &Context,
    life: u64,
    staged: Vec<api::StagedVolume>,
    published: Vec<api::PublishedVolume>,
    disks: Vec<api::DiskState>,
) {
    tell_found(context, &published);
    tracing::info!(
        staged = staged.len(),
        published = published.len(),
        disks = disks.len(),
        "volumes found on this node"
    );
    let mut state = context.state();
    let mut rebuilt = state.actual.rebuilt(life, staged, published).with_disks(disks);
    // What an operation is just writing of is its own.
    for busy in state.busy.volumes() {
        match state.actual.volumes.get(busy) {
            Some(volume) => rebuilt.volumes.insert(busy.clone(), volume.clone()),
            None => rebuilt.volumes.remove(busy),
        };
    }
    state.actual = rebuilt;
    drop(state);
    context.touch();
}

/// Counts what was found of pods, and names what nobody knows.
fn tell_found(context: &Context, published: &[api::PublishedVolume]) {
    let unknown = published.iter().filter(|found| !found.problem.is_empty());
    context.ports.metrics.reconstructed(published.len(), unknown.clone().count());
    for found in unknown {
        tracing::warn!(
            pod_uid = found.pod_uid,
            path = found.target_path,
            "Could not construct volume information: {}",
            found.problem
        );
    }
}
