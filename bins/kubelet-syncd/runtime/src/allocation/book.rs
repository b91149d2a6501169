//! The book of what pods were granted and what they really have, by pod; kept on disk so that a restart of this process
//! neither grants a resize twice nor forgets one that is half done.
//!
//! On disk there is one file, replaced as a whole: what is allocated, and what is actuated where that is something else.
//! A pod that has what it was granted therefore costs one entry, and starting its containers costs no write of their own:
//! upstream's files follow within seconds, for all containers of that time together.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bulkhead_daemon::state_file;
use bulkhead_types::PodUid;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodCondition, ResourceRequirements};
use kubelet_model::v1::Pod;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::checkpoint::Entries;
use super::conditions::ResizeConditions;
use super::record::{Gates, PodResources, effective};
use kubelet_model::pod::resources::amounts;
use kubelet_model::pod::spec;

/// Of the file's form.
pub const VERSION: u64 = 1;

/// Where the book is kept.
pub trait AllocationStore: Send + Sync + std::fmt::Debug {
    /// Replaces the file. When this returns, the content outlives the process.
    ///
    /// # Errors
    /// The content is not safely there.
    fn save(&self, json: &[u8]) -> std::io::Result<()>;
}

/// The file's content.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    #[serde(deserialize_with = "state_file::map")]
    pub allocated: Entries,
    /// Pods that have something else than what is allocated to them.
    #[serde(default, deserialize_with = "state_file::map")]
    pub actuated: Entries,
    /// Checksums of `allocated_pods_state` as this process may have left it: a file with another one is somebody else's.
    #[serde(default)]
    pub exported: Vec<u64>,
    /// The same of `actuated_pods_state`; empty where an earlier version wrote it.
    #[serde(default)]
    pub exported_actuated: Vec<u64>,
}

/// So many writes of upstream's files may fail in a row, each with another content, and what stands there is still known as ours.
const EXPORTED_MAX: usize = 8;

#[derive(Debug, Default)]
struct Book {
    allocated: HashMap<PodUid, PodResources>,
    actuated: HashMap<PodUid, PodResources>,
    /// Those of `actuated` that differ from what is allocated: few, and asked for at each admission.
    deviating: HashSet<PodUid>,
    conditions: HashMap<PodUid, ResizeConditions>,
    exported: Vec<u64>,
    exported_actuated: Vec<u64>,
    dirty: bool,
    /// Somebody has less than before, and nobody has asked since.
    shrunk: bool,
}

impl Book {
    /// What is to stand on disk of what the pod really has. None: it is what is allocated.
    fn deviation(&self, uid: &PodUid) -> Option<&PodResources> {
        let (allocated, actuated) = (self.allocated.get(uid)?, self.actuated.get(uid)?);
        let granted = allocated.actuated();
        let as_granted = |(name, real): (&String, &ResourceRequirements)| {
            granted.containers.get(name).is_some_and(|granted| same_size(granted, real))
        };
        let none = ResourceRequirements::default();
        let level = actuated.pod.as_ref().is_none_or(|real| same_size(granted.pod.as_ref().unwrap_or(&none), real));
        (!level || !actuated.containers.iter().all(as_granted)).then_some(actuated)
    }

    /// Whether that changed what the pod really has.
    fn actuate(&mut self, uid: &PodUid, change: impl FnOnce(&mut PodResources)) -> bool {
        let before = self.actuated.get(uid).cloned();
        let deviated = self.deviation(uid).is_some();
        change(self.actuated.entry(uid.clone()).or_default());
        self.dirty |= self.deviation(uid) != before.as_ref().filter(|_| deviated);
        // Who had what it was granted cannot have got less by that.
        if let (Some(before), Some(now)) = (before.as_ref().filter(|_| deviated), self.actuated.get(uid)) {
            self.shrunk |= now.requests_less_than(before);
        }
        self.compare(uid);
        self.actuated.get(uid) != before.as_ref()
    }

    /// What is allocated or actuated has changed.
    fn compare(&mut self, uid: &PodUid) {
        if self.deviation(uid).is_some() {
            self.deviating.insert(uid.clone());
        } else {
            self.deviating.remove(uid);
        }
    }

    fn saved(&self) -> Saved {
        let allocated = self.allocated.iter().map(|(uid, r)| (uid.to_string(), r.clone())).collect();
        let uids = self.deviating.iter();
        let actuated = uids.filter_map(|uid| Some((uid.to_string(), self.actuated.get(uid)?.clone()))).collect();
        let (exported, exported_actuated) = (self.exported.clone(), self.exported_actuated.clone());
        Saved { allocated, actuated, exported, exported_actuated }
    }
}

/// The book. One for the process; a lock inside is never held across a wait.
#[derive(Debug)]
pub struct Allocations {
    book: Mutex<Book>,
    /// Held by whoever saves, from the copy that is saved to its end: an older one never replaces a newer one.
    saving: Mutex<()>,
    store: Arc<dyn AllocationStore>,
    gates: Gates,
    /// What is allocated or actuated has changed: upstream's files follow.
    pub(super) changed: Notify,
}

impl Allocations {
    /// Goes on from what was saved; entries whose key is no uid are dropped.
    pub fn new(saved: Saved, store: Arc<dyn AllocationStore>, gates: Gates) -> Self {
        let parse = |entries: Entries| -> HashMap<PodUid, PodResources> {
            entries.into_iter().filter_map(|(uid, r)| Some((PodUid::parse(&uid).ok()?, r))).collect()
        };
        let allocated = parse(saved.allocated);
        // Who is not named has what was granted.
        let mut actuated: HashMap<_, _> = allocated.iter().map(|(uid, r)| (uid.clone(), r.actuated())).collect();
        actuated.extend(parse(saved.actuated).into_iter().filter(|(uid, _)| allocated.contains_key(uid)));
        let Saved { exported, exported_actuated, .. } = saved;
        let mut book = Book { allocated, actuated, exported, exported_actuated, ..Book::default() };
        let deviates = |uid: &&PodUid| book.deviation(uid).is_some();
        book.deviating = book.actuated.keys().filter(deviates).cloned().collect();
        Allocations { book: Mutex::new(book), saving: Mutex::default(), store, gates, changed: Notify::new() }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // No method panics between two writes.
        self.book.lock()
    }

    pub fn gates(&self) -> Gates {
        self.gates
    }

    /// The pod as everybody but its source sees it: with the resources that are allocated to it.
    pub fn granted(&self, uid: &PodUid, wanted: &Arc<Pod>) -> Arc<Pod> {
        let granted = self.book().allocated.get(uid).and_then(|a| a.substituted(wanted, self.gates));
        granted.unwrap_or_else(|| wanted.clone())
    }

    /// The pod has what its spec says from now on; the spec is one that was admitted.
    pub fn allocate(&self, uid: &PodUid, pod: &Pod) {
        let mut book = self.book();
        let next = PodResources::of(pod, self.gates);
        if book.allocated.get(uid) != Some(&next) {
            book.allocated.insert(uid.clone(), next);
            book.dirty = true;
            book.compare(uid);
        }
    }

    /// What the pod really has, as far as that is known.
    pub fn actuated(&self, uid: &PodUid) -> Option<PodResources> {
        self.book().actuated.get(uid).cloned()
    }

    /// What those pods really have that have something else than what they were granted.
    pub fn deviating(&self) -> HashMap<PodUid, PodResources> {
        let book = self.book();
        book.deviating.iter().filter_map(|uid| Some((uid.clone(), book.actuated.get(uid)?.clone()))).collect()
    }

    /// Since the last time somebody asked, a resize has given back cpu or memory.
    pub fn take_shrunk(&self) -> bool {
        std::mem::take(&mut self.book().shrunk)
    }

    /// A container of the pod has these resources, or is about to be made with them.
    ///
    /// # Errors
    /// That could not be noted for good.
    pub fn set_actuated(
        &self,
        uid: &PodUid,
        container: &str,
        own: &ResourceRequirements,
        pod: &Pod,
    ) -> std::io::Result<()> {
        let level = pod.spec.as_ref().and_then(|s| s.resources.as_ref()).filter(|_| self.gates.pod_level);
        let real = effective(own, level);
        self.actuate(uid, |pod| {
            pod.containers.insert(container.to_owned(), real);
        })
    }

    /// The pod's cgroup has the resources that the pod's spec gives to the pod as a whole.
    ///
    /// # Errors
    /// That could not be noted for good.
    pub fn set_actuated_level(&self, uid: &PodUid, pod: &Pod) -> std::io::Result<()> {
        let level = pod.spec.as_ref().and_then(|s| s.resources.clone()).filter(|_| self.gates.pod_level);
        self.actuate(uid, |pod| pod.pod = level)
    }

    fn actuate(&self, uid: &PodUid, change: impl FnOnce(&mut PodResources)) -> std::io::Result<()> {
        let changed = self.book().actuate(uid, change);
        let written = self.write();
        // Upstream's file names every container that was made, our own none that has what it was granted: upstream's kubelet restarts
        // a container without an entry where its resizePolicy says RestartContainer.
        if changed || matches!(written, Ok(true)) {
            self.changed.notify_one();
        }
        written.map(|_| ())
    }

    /// Writes what has changed since the last time.
    ///
    /// # Errors
    /// It could not be written; the next call tries again.
    pub fn flush(&self) -> std::io::Result<()> {
        if self.write()? {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Whether there was something to write.
    fn write(&self) -> std::io::Result<bool> {
        // Where there is nothing to write, nobody else's write is waited for.
        if !self.book().dirty {
            return Ok(false);
        }
        let _saving = self.saving.lock();
        let saved = {
            let mut book = self.book();
            if !std::mem::take(&mut book.dirty) {
                return Ok(false);
            }
            book.saved()
        };
        let written = self.save(&saved);
        if written.is_err() {
            self.book().dirty = true;
        }
        written.map(|()| true)
    }

    /// Everything, as upstream's two files have it: allocated and actuated.
    pub(super) fn entries(&self) -> (Entries, Entries) {
        let book = self.book();
        let all = |map: &HashMap<PodUid, PodResources>| -> Entries {
            map.iter().map(|(uid, r)| (uid.to_string(), r.clone())).collect::<BTreeMap<_, _>>()
        };
        (all(&book.allocated), all(&book.actuated))
    }

    /// Checksums that upstream's files of what is allocated and actuated may carry from now on, beside those that they may carry already.
    ///
    /// # Errors
    /// That could not be noted for good.
    pub(super) fn exporting(&self, allocated: u64, actuated: u64) -> std::io::Result<()> {
        let next = |known: &[u64], checksum: u64| {
            let others: Vec<u64> = known.iter().copied().filter(|one| *one != checksum).collect();
            let kept = others.len().saturating_sub(EXPORTED_MAX - 1);
            others.into_iter().skip(kept).chain([checksum]).collect()
        };
        self.note_exported(next, allocated, actuated)
    }

    /// They carry these. One that was there before is somebody else's word when it comes again: that a resize back is carried out.
    ///
    /// # Errors
    /// As [`Allocations::exporting`].
    pub(super) fn exported(&self, allocated: u64, actuated: u64) -> std::io::Result<()> {
        self.note_exported(|_, checksum| vec![checksum], allocated, actuated)
    }

    fn note_exported(
        &self,
        next: impl Fn(&[u64], u64) -> Vec<u64>,
        allocated: u64,
        actuated: u64,
    ) -> std::io::Result<()> {
        let _saving = self.saving.lock();
        let mut saved = self.book().saved();
        let (allocated, actuated) = (next(&saved.exported, allocated), next(&saved.exported_actuated, actuated));
        if saved.exported == allocated && saved.exported_actuated == actuated {
            return Ok(());
        }
        (saved.exported, saved.exported_actuated) = (allocated, actuated);
        self.save(&saved)?;
        // What could not be saved is not noted: the next call tries again.
        let mut book = self.book();
        (book.exported, book.exported_actuated) = (saved.exported, saved.exported_actuated);
        Ok(())
    }

    fn save(&self, saved: &Saved) -> std::io::Result<()> {
        self.store.save(&state_file::encode(VERSION, saved)?)
    }

    /// Changes what is said of the pod's resize, and answers whether that changed anything.
    pub fn change<T>(&self, uid: &PodUid, change: impl FnOnce(&mut ResizeConditions) -> T) -> (T, bool) {
        let mut book = self.book();
        let conditions = book.conditions.entry(uid.clone()).or_default();
        let before = conditions.clone();
        let answer = change(conditions);
        let changed = *conditions != before;
        if conditions.is_empty() {
            book.conditions.remove(uid);
        }
        (answer, changed)
    }

    pub fn conditions(&self, uid: &PodUid) -> ResizeConditions {
        self.book().conditions.get(uid).cloned().unwrap_or_default()
    }

    /// The conditions as the status shows them.
    pub fn shown(&self, uid: &PodUid) -> Vec<PodCondition> {
        self.book().conditions.get(uid).map(ResizeConditions::to_api).unwrap_or_default()
    }

    /// Resizes that wait for room, that are infeasible, and that are under way: for the metrics.
    pub fn snapshot(&self) -> [usize; 3] {
        let book = self.book();
        let count = |of: fn(&ResizeConditions) -> bool| book.conditions.values().filter(|c| of(c)).count();
        [
            count(ResizeConditions::is_deferred),
            count(ResizeConditions::is_infeasible),
            count(ResizeConditions::is_in_progress),
        ]
    }

    /// What runs is not what is allocated: a running container has other resources than it was granted, or the pod as a
    /// whole has (upstream IsPodResizeInProgress). `is_running` answers by container name.
    pub fn is_in_progress(&self, uid: &PodUid, pod: &Pod, is_running: impl Fn(&str) -> bool) -> bool {
        let book = self.book();
        let Some(actuated) = book.actuated.get(uid) else { return false };
        let level = pod.spec.as_ref().and_then(|s| s.resources.as_ref()).filter(|_| self.gates.pod_level);
        if let (Some(wanted), Some(real)) = (level, actuated.pod.as_ref())
            && !same_size(wanted, real)
        {
            return true;
        }
        self.gates.resizable(pod).filter(|c| is_running(&c.name)).any(|c| {
            let granted = effective(&c.resources.clone().unwrap_or_default(), level);
            actuated.containers.get(&c.name).is_some_and(|real| !same_size(&granted, real))
        })
    }

    /// Nobody wants the pod any more: under the same uid another may come, which gets what it asks for.
    pub fn release(&self, uid: &PodUid) {
        let mut book = self.book();
        book.allocated.remove(uid);
        book.deviating.remove(uid);
        book.conditions.remove(uid);
    }

    /// Nothing of the pod is left.
    pub fn forget(&self, uid: &PodUid) {
        let mut book = self.book();
        // A deleted pod in our own file does no harm: it goes with the next write. Upstream's files follow.
        let was_there = book.allocated.remove(uid).is_some() | book.actuated.remove(uid).is_some();
        book.deviating.remove(uid);
        book.conditions.remove(uid);
        drop(book);
        if was_there {
            self.changed.notify_one();
        }
    }

    /// Drops every pod that is not named.
    pub fn retain(&self, known: &HashSet<PodUid>) {
        let mut book = self.book();
        book.allocated.retain(|uid, _| known.contains(uid));
        book.actuated.retain(|uid, _| known.contains(uid));
        book.deviating.retain(|uid| known.contains(uid));
        book.conditions.retain(|uid, _| known.contains(uid));
    }

    /// After a restart the conditions go on from what the API server has. What a pod has it does not wait for, also where nobody could
    /// write that before the restart.
    pub fn take_up(&self, uid: &PodUid, pod: &Pod) {
        if spec::is_static(pod) {
            return;
        }
        let mut told = ResizeConditions::of(pod);
        let mut book = self.book();
        if book.allocated.get(uid).is_none_or(|granted| granted.substituted(pod, self.gates).is_none()) {
            told.clear_pending();
        }
        if !told.is_empty() {
            book.conditions.entry(uid.clone()).or_insert(told);
        }
    }

    /// A resize was granted: it is under way, and what was said of an earlier one is over.
    pub fn start(&self, uid: &PodUid, generation: i64, now: Timestamp) {
        self.change(uid, |c| c.start(generation, now));
    }
}

/// Equal cpu and memory, which is all that can be resized.
fn same_size(one: &ResourceRequirements, other: &ResourceRequirements) -> bool {
    let pick = |list| {
        let list = amounts(list);
        ["cpu", "memory"].map(|name| list.get(name).copied().unwrap_or_default())
    };
    pick(one.requests.as_ref()) == pick(other.requests.as_ref())
        && pick(one.limits.as_ref()) == pick(other.limits.as_ref())
}

#[cfg(test)]
#[path = "book_tests.rs"]
mod tests;
