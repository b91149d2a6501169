//! What a sync of a pod says of its volumes: they are looked at, and what the pod wants is written into the state (upstream
//! `pkg/kubelet/volumemanager/populator`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;
use futures_util::future::join_all;
use kubelet_model::v1::{Pod, Volume};

use crate::actual_state::Presence;
use crate::context::{Context, State};
use crate::desired_state::{DesiredPod, DesiredVolume, Found};
use crate::operations::driver_facts::DriverFacts;
use crate::operations::{Failure, Phase, flex};
use crate::pod_facts::PodFacts;
use crate::populator::resolve::Use;
use crate::populator::{self, Unresolved};
use crate::selinux::Label;
use crate::spec::{FlexCan, Source, UniqueName, VolumeSpec};

/// A volume's name in the pod, and what it is, with what its driver's object said when that was found out.
type Resolved = (String, Result<(VolumeSpec, DriverFacts), Unresolved>);

/// Finds out what the pod's volumes are, and desires them from now on. Nothing is desired before all are looked at.
pub async fn add_pod(context: &Context, uid: &PodUid, pod: &Pod) {
    count_others(context, pod);
    let resolved = resolve(context, uid, pod).await;
    let mut state = context.state();
    let changed = if resolved.is_empty() {
        state.desired.pods.remove(uid);
        state.populating.has_come(uid)
    } else {
        desire(context, &mut state, uid, pod, resolved)
    };
    drop(state);
    if changed {
        context.touch();
    }
}

fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten())
}

/// Volumes that are not this manager's have a part in the metrics of SELinux labels.
fn count_others(context: &Context, pod: &Pod) {
    if let Some(selinux) = &context.ports.selinux {
        let others = volumes(pod).filter(|volume| !populator::is_managed(volume));
        others.for_each(|volume| selinux.count_other(pod, &volume.name));
    }
}

/// All at the same time, of those that containers of the pod use.
async fn resolve(context: &Context, uid: &PodUid, pod: &Pod) -> Vec<Resolved> {
    let used = volumes(pod).filter(|volume| populator::is_managed(volume)).filter_map(|volume| {
        let used = Use::of(pod, &volume.name);
        used.any().then_some((volume, used))
    });
    join_all(used.map(|(volume, used)| async move {
        let has = has(context, uid, &volume.name);
        let found = async {
            let spec = populator::populate(&*context.ports.reader, pod, volume, used, has.as_ref()).await?;
            let spec = with_driver(context, uid, &volume.name, spec).await?;
            let facts = driver_facts(context, &spec)?;
            Ok::<_, Unresolved>((spec, facts))
        };
        (volume.name.clone(), found.await)
    }))
    .await
}

/// Answers whether the reconciler has to look: it looks at all volumes of all pods, which a look at one pod is no reason for.
fn desire(context: &Context, state: &mut State, uid: &PodUid, pod: &Pod, resolved: Vec<Resolved>) -> bool {
    let before = state.desired.pods.remove(uid);
    if before.is_none() {
        // A static pod comes again under the same uid: what it had went with its folder.
        state.actual.forget_folders(uid);
    }
    let found = found_now(context, state, uid, pod, before.as_ref(), resolved);
    let seen: BTreeSet<UniqueName> = found.iter().filter_map(|(_, found)| found.unique().cloned()).collect();
    let wanted = DesiredPod::update(before.as_ref(), Arc::new(PodFacts::of(pod)), found);
    let mut changed = false;
    for unique in &seen {
        if let (Some(volume), Some(actual)) = (wanted.volumes.get(unique), state.actual.volumes.get_mut(unique)) {
            changed |= actual.follow(volume);
        }
    }
    // A volume that is not known yet may be one of those that were found.
    changed |= wanted.unresolved.is_empty() && state.populating.has_come(uid);
    changed |= state.ended.remove(uid);
    changed |= before.is_none_or(|before| !wanted.wants_as_before(&before));
    state.desired.pods.insert(uid.clone(), wanted);
    changed
}

/// What was resolved, as the state of this moment has it.
fn found_now(
    context: &Context,
    state: &State,
    uid: &PodUid,
    pod: &Pod,
    before: Option<&DesiredPod>,
    resolved: Vec<Resolved>,
) -> Vec<(String, Found)> {
    // What the pod has a label for, it keeps; of two names of one volume the first decides.
    let known = before.into_iter().flat_map(|before| &before.volumes);
    let mut labels: BTreeMap<UniqueName, Label> =
        known.map(|(unique, volume)| (unique.clone(), volume.label.clone())).collect();
    let mut look = |name: &str, (spec, facts): (VolumeSpec, DriverFacts)| {
        let unique = spec.unique_name(uid.as_str());
        // The driver's object may be another one since the other volumes' claims were read.
        let facts = driver_facts(context, &spec).unwrap_or(facts);
        let label = match (labels.get(&unique), &context.ports.selinux) {
            (Some(known), _) => known.clone(),
            (None, None) => Label::default(),
            (None, Some(selinux)) => {
                let supported = spec.csi().is_some() && facts.selinux_mount;
                match selinux.label(pod, name, &spec, supported, state.desired.label(&unique)) {
                    Ok(label) => label,
                    Err(text) => return Found::Refused(Unresolved { text, away: false }),
                }
            }
        };
        labels.insert(unique.clone(), label.clone());
        let is_csi = spec.csi().is_some_and(|source| !source.ephemeral);
        let mounted = state.actual.published(&unique, uid).is_some_and(|p| p.presence == Presence::Yes);
        let volume = DesiredVolume {
            attachable: (is_csi && facts.attach_required) || spec.place().is_some(),
            remount: facts.requires_republish && mounted,
            spec: Arc::new(spec),
            names: BTreeSet::from([name.to_owned()]),
            label,
        };
        Found::Volume(unique, volume)
    };
    let found = resolved.into_iter().map(|(name, resolved)| {
        let found = match resolved {
            Ok(resolved) => look(&name, resolved),
            Err(error) => {
                tracing::debug!(pod_uid = %uid, volume = name, "claim cannot be read: {}", error.text);
                Found::Unknown(error)
            }
        };
        (name, found)
    });
    found.collect()
}

/// The pod's volume of this name, if it is there for the pod and its size is known where that counts: its claim has grown with
/// each expansion.
fn has(context: &Context, uid: &PodUid, name: &str) -> Option<VolumeSpec> {
    let state = context.state();
    let (unique, volume) = state.desired.pods.get(uid)?.named(name)?;
    let there = state.actual.volumes.get(unique)?;
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
async fn with_driver(
    context: &Context,
    uid: &PodUid,
    name: &str,
    mut spec: VolumeSpec,
) -> Result<VolumeSpec, Unresolved> {
    let Source::Flex(source) = &mut spec.source else { return Ok(spec) };
    if let Some(known) = known_driver(context, uid, name, &source.driver) {
        source.can = known;
        return Ok(spec);
    }
    let request = api::AskFlexDriverRequest { driver: source.driver.clone() };
    let said = context.ports.verbs.ask_flex_driver(request).await.map_err(|error| {
        let Failure { text, away, .. } = Failure::verb(Phase::NewMounter, &error);
        let text = format!("failed to get Plugin from volumeSpec for volume {:?} err={text}", spec.name);
        Unresolved { text, away }
    })?;
    source.can = flex::can(said.capabilities.unwrap_or_default());
    Ok(spec)
}

fn known_driver(context: &Context, uid: &PodUid, name: &str, driver: &str) -> Option<FlexCan> {
    let state = context.state();
    let (unique, volume) = state.desired.pods.get(uid)?.named(name)?;
    let is_there = state.actual.published(unique, uid)?.presence == Presence::Yes;
    match &volume.spec.source {
        Source::Flex(source) if is_there && source.driver == driver => Some(source.can),
        _ => None,
    }
}

fn driver_facts(context: &Context, spec: &VolumeSpec) -> Result<DriverFacts, Unresolved> {
    let Some(source) = spec.csi() else { return Ok(DriverFacts::of(None)) };
    let found = context.ports.reader.driver(&source.driver);
    let found = found.map_err(|error| Unresolved { text: error.to_string(), away: true })?;
    Ok(DriverFacts::of(found.as_deref()))
}
