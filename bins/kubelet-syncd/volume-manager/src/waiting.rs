//! Whether a pod's volumes are there, or why they are not yet; and whether they are gone. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use bulkhead_types::PodUid;

use crate::actual_state::Presence;
use crate::context::State;
use crate::desired_state::DesiredVolume;
use crate::populator::Unresolved;
use crate::reconciler;
use crate::spec::{Source, UniqueName};

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

/// What of an ended pod's volumes was still there when nobody waited any longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmountTimeout {
    /// Each with the error of its last operation, if that has failed.
    pub left: Vec<String>,
}

impl fmt::Display for UnmountTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.left.join("; "))
    }
}

impl std::error::Error for UnmountTimeout {}

/// The pod's volumes, if all are there; else why some never will be as things are.
pub fn mounted(state: &State, uid: &PodUid) -> Result<BTreeMap<String, MountedVolume>, Option<Vec<Unresolved>>> {
    let Some(pod) = state.desired.pods.get(uid) else { return Ok(BTreeMap::new()) };
    if !pod.unresolved.is_empty() {
        return Err(Some(pod.unresolved.values().cloned().collect()));
    }
    let mut found = BTreeMap::new();
    for (unique, volume) in &pod.volumes {
        let there = state
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

/// Why they are not. `unresolved`: what never will be there as things are; `None`: nothing hinders it.
pub fn waiting(state: &State, uid: &PodUid, unresolved: Option<Vec<Unresolved>>) -> Waiting {
    let Some(pod) = state.desired.pods.get(uid) else {
        return Waiting {
            text: String::new(),
            away: true,
            timed_out: false,
            unmounted: Vec::new(),
            errors: Vec::new(),
        };
    };
    let is_there = |unique: &UniqueName| {
        state.actual.published(unique, uid).is_some_and(|published| published.presence == Presence::Yes)
    };
    let missing = || pod.volumes.iter().filter(|(unique, _)| !is_there(unique));
    let names = |volumes: &mut dyn Iterator<Item = (&UniqueName, &DesiredVolume)>| {
        volumes.flat_map(|(_, volume)| volume.names.iter().cloned()).collect::<BTreeSet<String>>()
    };
    let unattached = names(&mut missing().filter(|(unique, volume)| {
        volume.attachable && !reconciler::is_attached(&state.attacher, &state.node, unique)
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
        pod.volumes.keys().filter_map(|unique| state.errors.get(&(unique.clone(), Some(uid.clone()))).cloned());
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

/// What is left of an ended pod's volumes; `None`: nothing is.
pub fn left(state: &State, uid: &PodUid) -> Option<UnmountTimeout> {
    if state.actual.epoch == 0 {
        return Some(UnmountTimeout { left: vec!["waits for kubelet-volnetd's list of volumes".to_owned()] });
    }
    let there: Vec<&UniqueName> = state
        .actual
        .of_pod(uid)
        .filter(|name| state.actual.volumes.get(name).is_some_and(|volume| volume.device.is_some()))
        .collect();
    let begun = state.busy.holding(uid).filter(|name| !there.contains(name));
    let begun = begun.map(|name| format!("an operation on volume {name} has not ended"));
    let left: Vec<String> = there
        .iter()
        .map(|name| match state.errors.get(&((*name).clone(), Some(uid.clone()))) {
            Some(error) => error.clone(),
            None => format!("volume {name} is being unmounted"),
        })
        .chain(begun)
        .collect();
    (!left.is_empty()).then_some(UnmountTimeout { left })
}
