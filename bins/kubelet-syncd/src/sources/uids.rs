//! Which uid a static pod gets: the one in its manifest, else the recorded one for the same content, else that of a
//! pod that it matches of which the runtime has containers, else one hashed from its content.
//!
//! Upstream hashes Go's dump of its internal structs, which nothing else can reproduce; so taking over a node from it
//! (or from a lost record) would kill and restart every static pod. Instead the uid of a sandbox with the same
//! namespace and name, running or ended, is adopted, if its containers' names and hashes match. The choice is written down, so that it is
//! the same after a restart, and an edited manifest gets a new uid.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_types::hash::fnv1a_128;
use kubelet_model::v1::{Pod, PodSpec};
use serde_json::Value;

use kubelet_model::pod::hash::container_hash;
use kubelet_model::pod::source::SourceKind;
use kubelet_model::validation::field::{items, text};

/// A static pod that the runtime has containers of, from its labels and annotations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPod {
    pub uid: String,
    pub namespace: String,
    /// With the node's suffix.
    pub name: String,
    /// Pods of the API server are never adopted.
    pub source: SourceKind,
    /// Its sandbox is ready: it has not ended.
    pub runs: bool,
    /// Name and `io.kubernetes.container.hash` of the newest instance of each container.
    pub containers: Vec<(String, u32)>,
}

#[cfg(test)]
impl FoundPod {
    /// One from a manifest that runs, without what its containers were made of.
    pub fn of_file(uid: &str, namespace: &str, name: &str) -> Self {
        FoundPod {
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            source: SourceKind::File,
            runs: true,
            containers: Vec::new(),
        }
    }
}

/// One recorded choice.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct UidChoice {
    /// Of the defaulted pod, 32 hex digits.
    pub digest: String,
    pub uid: String,
    /// The pod as it was built: what stays desired when its file is broken at the moment of a restart.
    pub pod: Box<Pod>,
}

/// Every choice in force, by origin. This is what is written to the private state.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct UidBook {
    #[serde(deserialize_with = "bulkhead_daemon::state_file::map")]
    pub choices: BTreeMap<String, UidChoice>,
    /// Uids that were given to content which has been edited or removed since, the newest last. Their pods may run on for a while, and
    /// are not what a manifest of the same names and images means. (One that is chosen again is none of them.)
    #[serde(default, deserialize_with = "bulkhead_daemon::state_file::list", skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<String>,
    /// The digests that retired uids were given to, by uid. Of one that an earlier version has retired there is none: it is of other
    /// content than any.
    #[serde(
        default,
        deserialize_with = "bulkhead_daemon::state_file::map",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub retired_digests: BTreeMap<String, String>,
}

impl UidBook {
    /// The uid was given to content that has been edited or removed since, and this is not it. The same content once more means the same
    /// pod: upstream's hash of a manifest that was moved away and back is what it was, and so is that of a kubelet of upstream's that ran
    /// it in between.
    fn is_of_other_content(&self, uid: &String, digest: &str) -> bool {
        self.retired.contains(uid) && self.retired_digests.get(uid).is_none_or(|given_to| given_to != digest)
    }

    /// What is left of it when another kubelet has had the node: choices of pods that still run. That one has ended the others, and may
    /// have had its reasons; what was edited and removed before its time it knew as it is now.
    pub fn after_another_kubelet(mut self, found: &[FoundPod]) -> Self {
        let runs = |uid: &str| found.iter().any(|pod| pod.runs && pod.uid == uid);
        self.choices.retain(|_, choice| runs(&choice.uid));
        UidBook { choices: self.choices, ..UidBook::default() }
    }
}

/// More cannot still be ending.
const RETIRED_MAX: usize = 64;

/// A book that could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error("failed to {doing} the record of static pod uids: {source}")]
pub struct UidStoreError {
    pub doing: &'static str,
    #[source]
    pub source: std::io::Error,
}

/// Keeps the book over a restart. Called from the sources' tasks, seldom and with little data.
pub trait UidStore: Send {
    /// An absent or unreadable book is an empty one: pods are then adopted or get their hashed uid.
    fn load(&self) -> Result<UidBook, UidStoreError>;
    /// Atomically replaces the book.
    fn save(&self, book: &UidBook) -> Result<(), UidStoreError>;
}

/// A store that forgets, for sources without private state (tests).
#[derive(Debug, Default)]
pub struct Forgetful;

impl UidStore for Forgetful {
    fn load(&self) -> Result<UidBook, UidStoreError> {
        Ok(UidBook::default())
    }

    fn save(&self, _: &UidBook) -> Result<(), UidStoreError> {
        Ok(())
    }
}

/// Chooses uids and remembers the choices.
pub struct Uids {
    book: UidBook,
    /// What was running when the sources started; emptied once they have delivered.
    adoptable: Vec<FoundPod>,
    store: Box<dyn UidStore>,
}

impl std::fmt::Debug for Uids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uids").field("book", &self.book).field("adoptable", &self.adoptable).finish_non_exhaustive()
    }
}

impl Uids {
    pub fn new(store: Box<dyn UidStore>, adoptable: Vec<FoundPod>) -> Self {
        let book = store.load().unwrap_or_else(|error| {
            tracing::warn!(%error, "failed to load static pod UIDs");
            UidBook::default()
        });
        Uids { book, adoptable, store }
    }

    /// Pure: chooses, records nothing. `pod` has its final namespace and name; `origin` is the key of the choice.
    pub fn choose(&self, origin: &str, digest: &str, generated: &str, pod: &Pod) -> String {
        let recorded = self.book.choices.get(origin);
        let unchanged = recorded.filter(|choice| choice.digest == digest);
        let outdated = recorded.filter(|choice| choice.digest != digest);
        let mut candidates = self.adoptable.iter().filter(|running| {
            // The record says that this uid was given to other content: the manifest was edited since.
            matches(running, pod)
                && outdated.is_none_or(|choice| choice.uid != running.uid)
                && !self.book.is_of_other_content(&running.uid, digest)
        });
        match unchanged {
            // Somebody else (upstream's kubelet) ran the same manifest in between: what runs counts.
            Some(choice) => {
                let other = candidates.clone().next().map(|running| running.uid.clone());
                let ours_runs = candidates.any(|running| running.uid == choice.uid);
                if ours_runs { choice.uid.clone() } else { other.unwrap_or_else(|| choice.uid.clone()) }
            }
            None => candidates.next().map_or_else(|| generated.to_owned(), |running| running.uid.clone()),
        }
    }

    /// The choice in force for that origin. Of several files for one pod the recorded one is preferred.
    pub fn recorded(&self, origin: &str) -> Option<&UidChoice> {
        self.book.choices.get(origin)
    }

    /// Makes the record hold exactly `choices` among the origins that begin with `prefix`, and saves it when that is a
    /// change. A failure to save is logged: the pod runs anyway, and the hashed uid is the same next time.
    pub fn commit(&mut self, prefix: &str, choices: BTreeMap<String, UidChoice>) {
        let mut book = self.book.clone();
        book.choices.retain(|origin, _| !origin.starts_with(prefix));
        book.choices.extend(choices);
        if book.choices == self.book.choices {
            return;
        }
        book.retired.extend(self.book.choices.values().map(|choice| choice.uid.clone()));
        let digests = self.book.choices.values().map(|choice| (choice.uid.clone(), choice.digest.clone()));
        book.retired_digests.extend(digests);
        let in_force: BTreeSet<&String> = book.choices.values().map(|choice| &choice.uid).collect();
        book.retired.retain(|uid| !in_force.contains(uid));
        let mut seen = BTreeSet::new();
        let newest: Vec<String> =
            book.retired.iter().rev().filter(|uid| seen.insert(*uid)).take(RETIRED_MAX).cloned().collect();
        book.retired = newest.into_iter().rev().collect();
        book.retired_digests.retain(|uid, _| book.retired.contains(uid));
        if let Err(error) = self.store.save(&book) {
            tracing::warn!(%error, "failed to save static pod UIDs");
        }
        self.book = book;
    }

    /// From now on what was running at the start is no longer adopted by pods of that source.
    pub fn close_adoption(&mut self, source: SourceKind) {
        self.adoptable.retain(|running| running.source != source);
    }

    /// The same of those that a manifest has adopted.
    pub fn narrow_adoption(&mut self, source: SourceKind) {
        let adopted: BTreeSet<&String> = self.book.choices.values().map(|choice| &choice.uid).collect();
        self.adoptable.retain(|running| running.source != source || !adopted.contains(&running.uid));
    }

    /// A manifest was taken with that uid by this node agent, whether it is there still or not.
    pub fn was_taken(&self, uid: &str) -> bool {
        let book = &self.book;
        book.choices.values().any(|choice| choice.uid == uid) || book.retired.iter().any(|retired| retired == uid)
    }
}

fn matches(running: &FoundPod, pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    running.source.is_static()
        && running.namespace == text(&pod.metadata.namespace)
        && running.name == text(&pod.metadata.name)
        && !running.containers.is_empty()
        && running.containers.iter().all(|(name, hash)| expected_hash(spec, name) == Some(*hash))
}

fn expected_hash(spec: &PodSpec, container: &str) -> Option<u32> {
    let mut all = spec.containers.iter().chain(items(&spec.init_containers));
    all.find(|c| c.name == container).map(|c| container_hash(&c.name, text(&c.image)))
}

/// Hash of the pod's content, independent of the order of keys: 32 hex digits.
pub fn content_digest(pod: &Pod) -> String {
    format!("{:032x}", fnv1a_128(canonical(pod).as_bytes()))
}

/// The uid for content from that place; `place` tells nodes and files apart (`host:<node>file:<path>`).
pub fn generated_uid(pod: &Pod, place: &str) -> String {
    format!("{:032x}", fnv1a_128(format!("{}{place}", canonical(pod)).as_bytes()))
}

/// JSON with sorted keys.
fn canonical(pod: &Pod) -> String {
    fn write(value: &Value, out: &mut String) {
        match value {
            Value::Object(fields) => {
                let sorted: BTreeMap<&String, &Value> = fields.iter().collect();
                out.push('{');
                for (index, (key, field)) in sorted.into_iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    out.push_str(&Value::String(key.clone()).to_string());
                    out.push(':');
                    write(field, out);
                }
                out.push('}');
            }
            Value::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    write(item, out);
                }
                out.push(']');
            }
            scalar => out.push_str(&scalar.to_string()),
        }
    }
    let mut out = String::new();
    write(&serde_json::to_value(pod).unwrap_or(Value::Null), &mut out);
    out
}
