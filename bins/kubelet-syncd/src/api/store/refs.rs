//! Which pods name which objects. Pure.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use bulkhead_types::PodUid;
use tokio::time::Instant;

use crate::api::references::Names;

/// An object of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

/// What a registration changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Diff {
    /// Nobody named them before.
    pub first: Vec<Key>,
    /// This pod did not name them before.
    pub named: Vec<Key>,
    /// Nobody names them any more.
    pub unused: Vec<Key>,
}

#[derive(Debug)]
struct Registered {
    namespace: String,
    names: Names,
    looked: Instant,
}

/// All registered pods and the objects that they name.
#[derive(Debug, Default)]
pub struct References {
    pods: HashMap<PodUid, Registered>,
    /// By object; true: the pod follows its changes.
    users: HashMap<Key, HashMap<PodUid, bool>>,
}

impl References {
    /// The pod names exactly `names`; none: it is forgotten.
    pub fn register(&mut self, uid: &PodUid, namespace: &str, names: Names) -> Diff {
        if self.pods.get(uid).is_some_and(|known| known.namespace == namespace && known.names == names) {
            return Diff::default();
        }
        let key = |namespace: &str, name: &str| Key { namespace: namespace.to_owned(), name: name.to_owned() };
        let known = self.pods.remove(uid);
        let before: BTreeSet<Key> =
            known.iter().flat_map(|old| old.names.keys().map(|name| key(&old.namespace, name))).collect();
        let mut diff = Diff::default();
        for (name, follows) in &names {
            let key = key(namespace, name);
            let users = self.users.entry(key.clone()).or_default();
            if users.is_empty() {
                diff.first.push(key.clone());
            }
            users.insert(uid.clone(), *follows);
            if !before.contains(&key) {
                diff.named.push(key);
            }
        }
        for key in before.into_iter().filter(|k| k.namespace != namespace || !names.contains_key(&k.name)) {
            if let Some(users) = self.users.get_mut(&key) {
                users.remove(uid);
                if users.is_empty() {
                    self.users.remove(&key);
                    diff.unused.push(key);
                }
            }
        }
        if !names.is_empty() {
            let looked = known.map_or_else(Instant::now, |known| known.looked);
            self.pods.insert(uid.clone(), Registered { namespace: namespace.to_owned(), names, looked });
        }
        diff
    }

    pub fn is_used(&self, key: &Key) -> bool {
        self.users.contains_key(key)
    }

    pub fn users(&self, key: &Key) -> Vec<PodUid> {
        self.users.get(key).map(|users| users.keys().cloned().collect()).unwrap_or_default()
    }

    /// Objects whose changes somebody follows.
    pub fn followed(&self) -> Vec<Key> {
        let followed = self.users.iter().filter(|(_, users)| users.values().any(|follows| *follows));
        followed.map(|(key, _)| key.clone()).collect()
    }

    /// Pods that follow changes and were not named here for `period`; they count as named now.
    pub fn due(&mut self, now: Instant, period: Duration) -> Vec<PodUid> {
        let mut due = Vec::new();
        for (uid, pod) in &mut self.pods {
            if pod.names.values().any(|follows| *follows) && now.duration_since(pod.looked) >= period {
                pod.looked = now;
                due.push(uid.clone());
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    fn uid(n: u8) -> PodUid {
        PodUid::parse(&format!("pod{n}")).unwrap()
    }

    proptest! {
        /// Whatever is registered in whatever order: an object is in use exactly while some pod names it, and the
        /// differences that were told, applied in order, give the same set.
        #[test]
        fn an_object_is_used_while_somebody_names_it(
            steps in proptest::collection::vec(
                (0u8..4, 0u8..2, proptest::collection::btree_map(0u8..4, any::<bool>(), 0..4)), 0..40)
        ) {
            let mut refs = References::default();
            let mut model: BTreeMap<u8, (u8, BTreeMap<u8, bool>)> = BTreeMap::new();
            let mut told: HashSet<Key> = HashSet::new();
            for (pod, namespace, names) in steps {
                let named: Names = names.iter().map(|(n, follows)| (n.to_string(), *follows)).collect();
                let before: HashSet<Key> = model.get(&pod).into_iter().flat_map(|(ns, names)| {
                    names.keys().map(|n| Key { namespace: ns.to_string(), name: n.to_string() }).collect::<Vec<_>>()
                }).collect();
                let diff = refs.register(&uid(pod), &namespace.to_string(), named);
                for key in &diff.named {
                    prop_assert!(!before.contains(key));
                }
                for key in diff.first {
                    prop_assert!(told.insert(key));
                }
                for key in diff.unused {
                    prop_assert!(told.remove(&key));
                }
                model.insert(pod, (namespace, names));
                let wanted: HashSet<Key> = model.values().flat_map(|(ns, names)| {
                    names.keys().map(|n| Key { namespace: ns.to_string(), name: n.to_string() }).collect::<Vec<_>>()
                }).collect();
                prop_assert_eq!(&told, &wanted);
                for key in &wanted {
                    let users = model.iter().filter(|(_, (ns, names))| {
                        ns.to_string() == key.namespace && names.keys().any(|n| n.to_string() == key.name)
                    }).count();
                    prop_assert_eq!(refs.users(key).len(), users);
                }
                let followed: HashSet<Key> = refs.followed().into_iter().collect();
                let wanted_followed: HashSet<Key> = model.values().flat_map(|(ns, names)| {
                    let followed = names.iter().filter(|(_, follows)| **follows);
                    followed.map(|(n, _)| Key { namespace: ns.to_string(), name: n.to_string() }).collect::<Vec<_>>()
                }).collect();
                prop_assert_eq!(followed, wanted_followed);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pods_that_follow_come_once_in_a_period() {
        let mut refs = References::default();
        refs.register(&uid(1), "a", Names::from([("x".to_owned(), true)]));
        refs.register(&uid(2), "a", Names::from([("x".to_owned(), false)]));
        let minute = Duration::from_secs(60);
        assert!(refs.due(Instant::now(), minute).is_empty());
        tokio::time::advance(minute).await;
        assert_eq!(refs.due(Instant::now(), minute), [uid(1)]);
        assert!(refs.due(Instant::now(), minute).is_empty());
    }
}
