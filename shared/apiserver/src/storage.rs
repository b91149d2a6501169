//! What is kept: objects under one counter of versions, the recent changes of each resource for watchers, and all
//! versions of each object for tests. Decides nothing about what a valid object is.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::resources::{RESOURCES, Resource};
use super::selectors::Selector;

/// Namespace (empty for what has none) and name.
pub type Key = (String, String);
/// A stored version of an object; shared, never changed.
pub type Object = Arc<Stored>;

/// Versions kept for tests of one object; older ones go.
const VERSIONS_OF_ONE: usize = 500;
/// Objects of one resource whose versions are kept; beyond that the oldest object's go.
const REMEMBERED_OBJECTS: usize = 4000;

/// One version of one object.
#[derive(Debug)]
pub struct Stored {
    pub version: u64,
    pub value: Value,
    json: OnceLock<Bytes>,
}

impl Stored {
    /// A version that is not in the storage: the answer of a try.
    pub fn detached(value: Value) -> Object {
        Self::new(0, value)
    }

    fn new(version: u64, value: Value) -> Object {
        Arc::new(Self { version, value, json: OnceLock::new() })
    }

    /// The object as it goes over the wire; serialised once, whoever asks.
    pub fn json(&self) -> Bytes {
        self.json.get_or_init(|| serde_json::to_vec(&self.value).unwrap_or_default().into()).clone()
    }
}

/// How an object changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

impl ChangeKind {
    /// As watch events are typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// One change of one resource.
#[derive(Debug, Clone)]
pub struct Change {
    pub version: u64,
    pub kind: ChangeKind,
    pub object: Object,
    pub previous: Option<Object>,
}

impl Change {
    /// The change as a watcher with this selector and namespace sees it: an object that begins to match is added, one
    /// that no longer matches is deleted (with its former content, at the version of the change).
    pub fn seen_by(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
        selector: &Selector,
    ) -> Option<(ChangeKind, Object)> {
        let key_namespace = self.object.value["metadata"]["namespace"].as_str();
        if namespace.is_some() && namespace != key_namespace {
            return None;
        }
        let now = self.kind != ChangeKind::Deleted && selector.matches(resource, &self.object.value);
        let previous = self.previous.as_ref().filter(|previous| selector.matches(resource, &previous.value));
        match (now, previous) {
            (true, None) => Some((ChangeKind::Added, self.object.clone())),
            (true, Some(_)) => Some((ChangeKind::Modified, self.object.clone())),
            (false, Some(_)) if self.kind == ChangeKind::Deleted => Some((ChangeKind::Deleted, self.object.clone())),
            (false, Some(previous)) => {
                let mut value = previous.value.clone();
                value["metadata"]["resourceVersion"] = json!(self.version.to_string());
                Some((ChangeKind::Deleted, Stored::new(self.version, value)))
            }
            (false, None) => None,
        }
    }
}

#[derive(Debug)]
struct Table {
    objects: BTreeMap<Key, Object>,
    ring: VecDeque<Change>,
    /// Changes up to this version are forgotten.
    forgotten: u64,
    changed: watch::Sender<u64>,
}

/// All objects of the server.
#[derive(Debug)]
pub struct Store {
    version: u64,
    tables: Vec<Table>,
    ring_size: usize,
    versions: BTreeMap<(usize, Key), Vec<(ChangeKind, Object)>>,
    /// Of each resource the objects whose versions are kept, oldest first: events do not crowd out pods.
    remembered: Vec<VecDeque<Key>>,
}

impl Store {
    /// `ring_size`: changes of one resource that watchers may still ask for.
    pub fn new(ring_size: usize) -> Self {
        let table =
            |_| Table { objects: BTreeMap::new(), ring: VecDeque::new(), forgotten: 0, changed: watch::channel(0).0 };
        Self {
            version: 1,
            tables: RESOURCES.iter().map(table).collect(),
            ring_size: ring_size.max(1),
            versions: BTreeMap::new(),
            remembered: RESOURCES.iter().map(|_| VecDeque::new()).collect(),
        }
    }

    /// The version of the latest change of anything.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Option<Object> {
        self.tables[resource.index()].objects.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Objects in order of namespace and name.
    pub fn list<'a>(&'a self, resource: &Resource, namespace: Option<&'a str>) -> impl Iterator<Item = &'a Object> {
        let objects = &self.tables[resource.index()].objects;
        objects.iter().filter(move |((of, _), _)| namespace.is_none_or(|namespace| of == namespace)).map(|(_, one)| one)
    }

    /// Objects as they were at `version`, or `None` where the history does not reach back so far.
    pub fn list_at(&self, resource: &Resource, version: u64) -> Option<BTreeMap<Key, Object>> {
        let table = &self.tables[resource.index()];
        if version < table.forgotten {
            return None;
        }
        let mut objects = table.objects.clone();
        for change in table.ring.iter().rev().take_while(|change| change.version > version) {
            let key = key_of(&change.object.value);
            match &change.previous {
                Some(previous) => objects.insert(key, previous.clone()),
                None => objects.remove(&key),
            };
        }
        Some(objects)
    }

    /// Stores an object under its own name; its `resourceVersion` is set here. The caller has checked everything.
    pub fn put(&mut self, resource: &Resource, mut value: Value) -> Object {
        self.version += 1;
        value["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Stored::new(self.version, value);
        let key = key_of(&object.value);
        let previous = self.tables[resource.index()].objects.insert(key.clone(), object.clone());
        let kind = if previous.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
        self.record(resource, key, Change { version: self.version, kind, object: object.clone(), previous });
        object
    }

    /// Removes an object; the version that watchers get to see is its last content at a new version.
    pub fn remove(&mut self, resource: &Resource, namespace: &str, name: &str) -> Option<Object> {
        let key = (namespace.to_owned(), name.to_owned());
        let previous = self.tables[resource.index()].objects.remove(&key)?;
        self.version += 1;
        let mut value = previous.value.clone();
        value["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Stored::new(self.version, value);
        let kind = ChangeKind::Deleted;
        self.record(
            resource,
            key,
            Change { version: self.version, kind, object: object.clone(), previous: Some(previous) },
        );
        Some(object)
    }

    fn record(&mut self, resource: &Resource, key: Key, change: Change) {
        let index = resource.index();
        let entry = (index, key);
        if !self.versions.contains_key(&entry) {
            let remembered = &mut self.remembered[index];
            remembered.push_back(entry.1.clone());
            if remembered.len() > REMEMBERED_OBJECTS
                && let Some(oldest) = remembered.pop_front()
            {
                self.versions.remove(&(index, oldest));
            }
        }
        let versions = self.versions.entry(entry).or_default();
        if versions.len() == VERSIONS_OF_ONE {
            versions.remove(0);
        }
        versions.push((change.kind, change.object.clone()));

        let table = &mut self.tables[index];
        let version = change.version;
        table.ring.push_back(change);
        while table.ring.len() > self.ring_size {
            if let Some(old) = table.ring.pop_front() {
                table.forgotten = old.version;
            }
        }
        table.changed.send_replace(version);
    }

    /// A receiver that wakes for each change of a resource, with its version.
    pub fn subscribe(&self, resource: &Resource) -> watch::Receiver<u64> {
        self.tables[resource.index()].changed.subscribe()
    }

    /// Changes after `version`, oldest first, or the oldest version that could be asked for.
    ///
    /// # Errors
    /// The version from which on the history is complete, where `version` lies before it.
    pub fn changes_after(&self, resource: &Resource, version: u64) -> Result<impl Iterator<Item = &Change>, u64> {
        let table = &self.tables[resource.index()];
        if version < table.forgotten {
            return Err(table.forgotten);
        }
        let skipped = table.ring.partition_point(|change| change.version <= version);
        Ok(table.ring.iter().skip(skipped))
    }

    /// Forgets all changes up to now, as etcd's compaction does: older versions are "too old" from here on.
    pub fn compact(&mut self) {
        for table in &mut self.tables {
            table.ring.clear();
            table.forgotten = self.version;
        }
    }

    /// Every version of an object that there was, oldest first (the last 500).
    pub fn versions(&self, resource: &Resource, namespace: &str, name: &str) -> Vec<(ChangeKind, Object)> {
        let key = (resource.index(), (namespace.to_owned(), name.to_owned()));
        self.versions.get(&key).cloned().unwrap_or_default()
    }
}

/// Namespace and name of an object.
pub fn key_of(object: &Value) -> Key {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::named;

    fn pod(name: &str, node: &str) -> Value {
        json!({"metadata": {"namespace": "n", "name": name}, "spec": {"nodeName": node}})
    }

    #[test]
    fn one_counter_for_all_and_a_bounded_ring() {
        let (pods, nodes) = (named("pods"), named("nodes"));
        let mut store = Store::new(2);
        let first = store.put(pods, pod("a", "x")).version;
        assert_eq!(store.put(nodes, json!({"metadata": {"name": "x"}})).version, first + 1);
        for _ in 0..3 {
            store.put(pods, pod("a", "x"));
        }
        assert!(matches!(store.changes_after(pods, first), Err(oldest) if oldest == first + 2));
        assert_eq!(store.changes_after(pods, first + 2).unwrap().count(), 2);
        assert_eq!(store.changes_after(nodes, first).unwrap().count(), 1, "each resource has a ring of its own");
        assert_eq!(store.versions(pods, "n", "a").len(), 4, "tests see all versions");
        store.compact();
        assert!(store.changes_after(pods, first + 2).is_err());
        assert_eq!(store.changes_after(pods, store.version()).unwrap().count(), 0);
    }

    #[test]
    fn an_object_that_no_longer_matches_is_deleted_for_the_watcher() {
        let pods = named("pods");
        let mut store = Store::new(100);
        let selector = Selector::parse(pods, "", "spec.nodeName=x").unwrap();
        let start = store.version();
        store.put(pods, pod("a", ""));
        store.put(pods, pod("a", "x"));
        store.put(pods, pod("a", "x"));
        let last = store.put(pods, pod("a", "y")).version;
        store.remove(pods, "n", "a");
        let seen: Vec<_> = store
            .changes_after(pods, start)
            .unwrap()
            .filter_map(|change| change.seen_by(pods, Some("n"), &selector))
            .map(|(kind, object)| (kind, object.value["spec"]["nodeName"].clone(), object.version))
            .collect();
        let kinds: Vec<_> = seen.iter().map(|(kind, ..)| *kind).collect();
        assert_eq!(kinds, [ChangeKind::Added, ChangeKind::Modified, ChangeKind::Deleted]);
        assert_eq!((seen[2].1.clone(), seen[2].2), (json!("x"), last), "former content, new version");
    }

    #[test]
    fn a_list_of_the_past() {
        let pods = named("pods");
        let mut store = Store::new(100);
        store.put(pods, pod("a", "x"));
        let then = store.put(pods, pod("b", "x")).version;
        store.put(pods, pod("a", "y"));
        store.remove(pods, "n", "b");
        store.put(pods, pod("c", "x"));
        let past = store.list_at(pods, then).unwrap();
        let names: Vec<_> =
            past.iter().map(|((_, name), one)| (name.as_str(), one.value["spec"]["nodeName"].as_str())).collect();
        assert_eq!(names, [("a", Some("x")), ("b", Some("x"))]);
    }
}
