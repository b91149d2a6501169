//! Merges what each source wants into ordered changes (upstream `pkg/kubelet/config/config.go`). Pure: complete sets, or
//! single pods of a source that tells of them one by one, in; changes out.
//!
//! Invariants: a uid is in at most one pod of a source; full names are unique within a source; what a consumer gets by
//! applying the changes in order is the newest set of each source; a source's first set always yields at least one
//! change, if only an empty ADD, so that its consumer learns that the source has spoken.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kubelet_model::annotations::{CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE};
use kubelet_model::pod::source::SourceKind;
use kubelet_model::v1::Pod;
use kubelet_model::validation::field::text;

/// What happened to the pods of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PodOp {
    /// No longer wanted by the source.
    Remove,
    /// New. An empty one only says that the source has delivered.
    Add,
    /// Content changed under the same uid.
    Update,
    /// Asked to terminate (deletionTimestamp); the API server alone does that.
    Delete,
    /// Only the status changed.
    Reconcile,
    /// Away for a moment and wanted again, unchanged: nothing to one that runs.
    Again,
}

impl PodOp {
    /// As upstream's log calls it; for [`PodOp::Again`] there would be a REMOVE and an ADD.
    pub const fn as_str(self) -> &'static str {
        match self {
            PodOp::Remove => "REMOVE",
            PodOp::Add => "ADD",
            PodOp::Update => "UPDATE",
            PodOp::Delete => "DELETE",
            PodOp::Reconcile => "RECONCILE",
            PodOp::Again => "AGAIN",
        }
    }
}

/// One change, for all its pods.
#[derive(Debug, Clone, PartialEq)]
pub struct PodUpdate {
    pub op: PodOp,
    pub source: SourceKind,
    pub pods: Vec<Arc<Pod>>,
}

/// A pod that was dropped, for an event on it.
#[derive(Debug, Clone, PartialEq)]
pub struct DroppedPod {
    pub pod: Arc<Pod>,
    /// `FailedValidation`.
    pub reason: &'static str,
    pub message: String,
}

/// What a set led to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Merged {
    /// In the order in which they have to be handled.
    pub updates: Vec<PodUpdate>,
    pub dropped: Vec<DroppedPod>,
}

/// The newest set of each source, and which sources have delivered and been heard.
#[derive(Debug, Default)]
pub struct Merge {
    sources: BTreeMap<SourceKind, Source>,
}

/// Namespace and name.
pub type FullName = (String, String);

#[derive(Debug, Default)]
struct Source {
    pods: BTreeMap<String, Arc<Pod>>,
    /// Uids by full name, of exactly those pods.
    names: BTreeMap<FullName, String>,
    /// It has delivered a set.
    delivered: bool,
    /// The main loop has taken a change of it.
    consumed: bool,
}

impl Merge {
    /// Announces a source: from here on [`Self::all_ready`] waits for it.
    pub fn register(&mut self, kind: SourceKind) {
        self.sources.entry(kind).or_default();
    }

    /// The main loop has taken a change of that source.
    pub fn consumed(&mut self, kind: SourceKind) {
        if let Some(source) = self.sources.get_mut(&kind) {
            source.consumed = true;
        }
    }

    pub fn delivered(&self, kind: SourceKind) -> bool {
        self.sources.get(&kind).is_some_and(|s| s.delivered)
    }

    /// Every registered source has delivered a set, and the main loop has heard of it. Before that nothing is deleted.
    pub fn all_ready(&self) -> bool {
        self.sources.values().all(|s| s.delivered && s.consumed)
    }

    /// Number of pods that the source wants now.
    pub fn count(&self, kind: SourceKind) -> usize {
        self.sources.get(&kind).map_or(0, |s| s.pods.len())
    }

    /// All pods that the sources want now, by namespace and name.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        let mut pods: Vec<Arc<Pod>> = self.sources.values().flat_map(|s| s.pods.values().cloned()).collect();
        pods.sort_by(|a, b| {
            let (a, b) = (&a.metadata, &b.metadata);
            (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name))
        });
        pods
    }

    /// The pod of that uid, whichever source wants it.
    pub fn pod(&self, uid: &str) -> Option<Arc<Pod>> {
        self.sources.values().find_map(|source| source.pods.get(uid).cloned())
    }

    /// Takes the complete new set of a source. `now` becomes the first-seen time of new pods.
    pub fn set(&mut self, kind: SourceKind, pods: Vec<Pod>, now: Timestamp) -> Merged {
        let source = self.sources.entry(kind).or_default();
        let mut dropped = Vec::new();
        let mut old = std::mem::take(&mut source.pods);
        source.names.clear();
        let mut given = BTreeSet::new();
        let (mut adds, mut updates, mut deletes, mut reconciles) = (vec![], vec![], vec![], vec![]);
        for pod in pods {
            let uid = text(&pod.metadata.uid).to_owned();
            let name = full_name(&pod);
            let duplicate_name = given.contains(&name);
            if duplicate_name || source.pods.contains_key(&uid) {
                dropped.push(drop_duplicate(pod, kind, &uid, duplicate_name));
                continue;
            }
            given.insert(name);
            let (op, kept) = take(old.remove(&uid), pod, kind, now);
            match op {
                Some(PodOp::Add) => adds.push(kept.clone()),
                Some(PodOp::Delete) => deletes.push(kept.clone()),
                Some(PodOp::Reconcile) => reconciles.push(kept.clone()),
                Some(PodOp::Update | PodOp::Remove | PodOp::Again) => updates.push(kept.clone()),
                None => {}
            }
            source.names.insert(full_name(&kept), uid.clone());
            source.pods.insert(uid, kept);
        }
        let first = !std::mem::replace(&mut source.delivered, true);
        let announce = first && adds.is_empty() && updates.is_empty() && deletes.is_empty();
        let removes: Vec<Arc<Pod>> = old.into_values().collect();
        let change = |op, pods: Vec<Arc<Pod>>| (!pods.is_empty()).then_some(PodUpdate { op, source: kind, pods });
        let empty_add = announce.then_some(PodUpdate { op: PodOp::Add, source: kind, pods: vec![] });
        let updates = [
            change(PodOp::Remove, removes),
            change(PodOp::Add, adds),
            change(PodOp::Update, updates),
            change(PodOp::Delete, deletes),
            empty_add,
            change(PodOp::Reconcile, reconciles),
        ];
        Merged { updates: updates.into_iter().flatten().collect(), dropped }
    }

    /// One pod is there or has changed; the others of the source stay as they are. It takes the place of another pod of
    /// the same full name, whose end has not been heard of. Says nothing about whether the source has delivered.
    pub fn upsert(&mut self, kind: SourceKind, pod: Pod, now: Timestamp) -> Merged {
        let source = self.sources.entry(kind).or_default();
        let uid = text(&pod.metadata.uid).to_owned();
        let replaced = source.names.get(&full_name(&pod)).filter(|other| **other != uid).cloned();
        let mut updates = Vec::new();
        if let Some(old) = replaced.and_then(|other| source.pods.remove(&other)) {
            updates.push(PodUpdate { op: PodOp::Remove, source: kind, pods: vec![old] });
        }
        let (op, kept) = take(source.pods.remove(&uid), pod, kind, now);
        if let Some(op) = op {
            updates.push(PodUpdate { op, source: kind, pods: vec![kept.clone()] });
        }
        source.names.insert(full_name(&kept), uid.clone());
        source.pods.insert(uid, kept);
        Merged { updates, dropped: Vec::new() }
    }

    /// One pod is gone; the others of the source stay as they are.
    pub fn remove(&mut self, kind: SourceKind, uid: &str) -> Merged {
        let Some(source) = self.sources.get_mut(&kind) else { return Merged::default() };
        let Some(old) = source.pods.remove(uid) else { return Merged::default() };
        source.names.remove(&full_name(&old));
        let updates = vec![PodUpdate { op: PodOp::Remove, source: kind, pods: vec![old] }];
        Merged { updates, dropped: Vec::new() }
    }

    /// One pod was removed and is wanted again, as it was.
    pub fn renew(&mut self, kind: SourceKind, uid: &str, now: Timestamp) -> Merged {
        let mut merged = self.remove(kind, uid);
        let removed: Vec<Arc<Pod>> = merged.updates.iter().flat_map(|update| update.pods.iter().cloned()).collect();
        for pod in removed {
            let added = self.upsert(kind, Arc::unwrap_or_clone(pod), now);
            merged.updates.extend(added.updates);
            merged.dropped.extend(added.dropped);
        }
        merged
    }

    /// One pod was away for a moment and is wanted again, as it was.
    pub fn again(&self, kind: SourceKind, uid: &str) -> Merged {
        let pod = self.sources.get(&kind).and_then(|source| source.pods.get(uid));
        let update = pod.map(|pod| PodUpdate { op: PodOp::Again, source: kind, pods: vec![pod.clone()] });
        Merged { updates: update.into_iter().collect(), dropped: Vec::new() }
    }

    /// Uids, namespaces and names of the pods that a source wants now.
    pub fn names(&self, kind: SourceKind) -> impl Iterator<Item = (&str, &FullName)> {
        self.sources.get(&kind).into_iter().flat_map(|s| s.names.iter().map(|(name, uid)| (uid.as_str(), name)))
    }
}

fn full_name(pod: &Pod) -> FullName {
    (text(&pod.metadata.namespace).to_owned(), text(&pod.metadata.name).to_owned())
}

/// What becomes of a pod of which `existing` is known under the same uid, and what kind of change that is.
fn take(existing: Option<Arc<Pod>>, mut pod: Pod, kind: SourceKind, now: Timestamp) -> (Option<PodOp>, Arc<Pod>) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(CONFIG_SOURCE.to_owned(), kind.as_str().to_owned());
    let Some(existing) = existing else {
        annotations.insert(CONFIG_SEEN.to_owned(), seen(now));
        return (Some(PodOp::Add), kept(&pod));
    };
    match compare(&existing, &pod) {
        Difference::None => (None, existing),
        Difference::Status => {
            let mut next = Arc::unwrap_or_clone(existing);
            next.status.clone_from(&pod.status);
            (Some(PodOp::Reconcile), Arc::new(next))
        }
        Difference::Content => {
            let op = if pod.metadata.deletion_timestamp.is_some() { PodOp::Delete } else { PodOp::Update };
            (Some(op), Arc::new(updated(&existing, &pod)))
        }
    }
}

/// A pod as it is kept for its whole life: a copy, which has room for what is there. The lists of what was decoded have room for up to
/// four times as much, as they grew.
fn kept(pod: &Pod) -> Arc<Pod> {
    Arc::new(pod.clone())
}

/// As upstream prints `config.seen`: nine digits of fraction, always.
fn seen(now: Timestamp) -> String {
    now.strftime("%Y-%m-%dT%H:%M:%S%.9fZ").to_string()
}

fn drop_duplicate(pod: Pod, kind: SourceKind, uid: &str, by_name: bool) -> DroppedPod {
    let name = text(&pod.metadata.name);
    let shown = format!("{name}_{}({uid})", text(&pod.metadata.namespace));
    let message = if by_name {
        format!("Error validating pod {shown} from {kind} due to duplicate pod name \"{name}\", ignoring")
    } else {
        format!("Error validating pod {shown} from {kind} due to duplicate pod uid \"{uid}\", ignoring")
    };
    tracing::warn!(pod = %shown, source = %kind, "{message}");
    DroppedPod { pod: Arc::new(pod), reason: "FailedValidation", message }
}

enum Difference {
    None,
    Status,
    Content,
}

fn is_local(annotation: &str) -> bool {
    [CONFIG_SOURCE, CONFIG_MIRROR, CONFIG_SEEN].contains(&annotation)
}

fn compare(existing: &Pod, new: &Pod) -> Difference {
    let foreign = |pod: &Pod| -> BTreeMap<String, String> {
        let all = pod.metadata.annotations.iter().flatten();
        all.filter(|(key, _)| !is_local(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    let same = existing.spec == new.spec
        && existing.metadata.labels == new.metadata.labels
        && existing.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        && existing.metadata.deletion_grace_period_seconds == new.metadata.deletion_grace_period_seconds
        && foreign(existing) == foreign(new);
    match same {
        true if existing.status == new.status => Difference::None,
        true => Difference::Status,
        false => Difference::Content,
    }
}

/// The new content under the old identity, copied as by [`kept`]; local annotations stay as they are.
fn updated(existing: &Pod, new: &Pod) -> Pod {
    let (old, next) = (&existing.metadata, &new.metadata);
    let mut annotations = next.annotations.clone().unwrap_or_default();
    for (key, value) in old.annotations.iter().flatten().filter(|(key, _)| is_local(key)) {
        annotations.insert(key.clone(), value.clone());
    }
    let metadata = ObjectMeta {
        annotations: Some(annotations),
        labels: next.labels.clone(),
        deletion_timestamp: next.deletion_timestamp.clone(),
        deletion_grace_period_seconds: next.deletion_grace_period_seconds,
        generation: next.generation,
        ..old.clone()
    };
    Pod { metadata, spec: new.spec.clone(), status: new.status.clone() }
}
