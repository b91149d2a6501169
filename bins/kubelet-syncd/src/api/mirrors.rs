//! Which mirror pod on the API server shows which static pod. Pure: what was seen goes in, what each static pod's copy on
//! the server is now comes out.
//!
//! A mirror belongs to the static pod of its full name. It stays with a static pod whose manifest is gone until it is
//! gone itself or another static pod takes the name: a pod that ends is still shown.

use std::collections::BTreeMap;

use bulkhead_ipc::syncd::ApiObject;
use bulkhead_types::PodUid;

use crate::sources::{FullName, StaticName};

/// What a static pod's copy on the server is from now on.
pub type CopyOf = (PodUid, Option<ApiObject>);

/// Mirrors on the server and the static pods that they belong to.
#[derive(Debug, Default)]
pub struct Mirrors {
    mirrors: BTreeMap<FullName, ApiObject>,
    owners: BTreeMap<FullName, Owner>,
}

#[derive(Debug)]
struct Owner {
    uid: PodUid,
    /// A manifest names it now.
    wanted: bool,
}

impl Mirrors {
    /// The static pods that are wanted now.
    pub fn statics(&mut self, wanted: &[StaticName]) -> Vec<CopyOf> {
        let mut copies = Vec::new();
        self.owners.values_mut().for_each(|owner| owner.wanted = false);
        for StaticName { uid, name } in wanted {
            match self.owners.get_mut(name) {
                Some(owner) if owner.uid == *uid => owner.wanted = true,
                known => {
                    if let Some(old) = known {
                        copies.push((old.uid.clone(), None));
                    }
                    copies.push((uid.clone(), self.mirrors.get(name).cloned()));
                    self.owners.insert(name.clone(), Owner { uid: uid.clone(), wanted: true });
                }
            }
        }
        self.owners.retain(|name, owner| owner.wanted || self.mirrors.contains_key(name));
        copies
    }

    /// The mirror of this name and uid, as it was seen last.
    pub fn last(&self, name: &FullName, uid: &str) -> Option<&ApiObject> {
        self.mirrors.get(name).filter(|mirror| mirror.uid == uid)
    }

    /// All mirrors that exist.
    pub fn set(&mut self, mirrors: Vec<(FullName, ApiObject)>) -> Vec<CopyOf> {
        let new: BTreeMap<FullName, ApiObject> = mirrors.into_iter().collect();
        let gone: Vec<FullName> = self.mirrors.keys().filter(|name| !new.contains_key(*name)).cloned().collect();
        let mut copies: Vec<CopyOf> = gone.iter().filter_map(|name| self.remove_name(name)).collect();
        copies.extend(new.into_iter().filter_map(|(name, object)| self.upsert(name, object)));
        copies
    }

    /// A mirror is there or has changed.
    pub fn upsert(&mut self, name: FullName, object: ApiObject) -> Option<CopyOf> {
        let copy = self.owners.get(&name).map(|owner| (owner.uid.clone(), Some(object.clone())));
        self.mirrors.insert(name, object);
        copy
    }

    /// A mirror is gone. One of the same name that has taken its place stays.
    pub fn remove(&mut self, name: &FullName, uid: &str) -> Option<CopyOf> {
        if self.mirrors.get(name).is_none_or(|mirror| mirror.uid != uid) {
            return None;
        }
        self.remove_name(name)
    }

    fn remove_name(&mut self, name: &FullName) -> Option<CopyOf> {
        self.mirrors.remove(name)?;
        let owner = self.owners.get(name)?;
        let copy = (owner.uid.clone(), None);
        if !owner.wanted {
            self.owners.remove(name);
        }
        Some(copy)
    }

    /// Mirrors whose static pod no manifest names. One that still ends may be among them.
    pub fn unwanted(&self) -> Vec<(FullName, String)> {
        let unwanted = |name: &FullName| self.owners.get(name).is_none_or(|owner| !owner.wanted);
        self.mirrors.iter().filter(|(name, _)| unwanted(name)).map(|(n, o)| (n.clone(), o.uid.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> FullName {
        ("default".to_owned(), text.to_owned())
    }

    fn mirror(uid: &str) -> ApiObject {
        ApiObject { uid: uid.to_owned(), ..ApiObject::default() }
    }

    fn wanted(uid: &str, pod: &str) -> StaticName {
        StaticName { uid: PodUid::parse(uid).unwrap(), name: name(pod) }
    }

    fn shown(copies: impl IntoIterator<Item = CopyOf>) -> Vec<String> {
        let text = |(uid, copy): CopyOf| format!("{uid}={}", copy.map_or("-".to_owned(), |c| c.uid));
        copies.into_iter().map(text).collect()
    }

    #[test]
    fn a_mirror_belongs_to_the_pod_of_its_name() {
        let mut mirrors = Mirrors::default();
        assert_eq!(shown(mirrors.statics(&[wanted("s1", "a")])), ["s1=-"]);
        assert_eq!(shown(mirrors.set(vec![(name("a"), mirror("m1")), (name("b"), mirror("m2"))])), ["s1=m1"]);
        assert_eq!(mirrors.unwanted(), [(name("b"), "m2".to_owned())]);
        assert_eq!(shown(mirrors.statics(&[wanted("s1", "a"), wanted("s2", "b")])), ["s2=m2"]);
        assert!(mirrors.unwanted().is_empty());
        // The manifest was edited: the successor has the mirror of its name.
        assert_eq!(shown(mirrors.statics(&[wanted("s3", "a"), wanted("s2", "b")])), ["s1=-", "s3=m1"]);
        assert_eq!(shown(mirrors.upsert(name("a"), mirror("m3"))), ["s3=m3"]);
        assert_eq!(shown(mirrors.remove(&name("a"), "m1")), Vec::<String>::new(), "the one before has gone");
        assert_eq!(shown(mirrors.remove(&name("a"), "m3")), ["s3=-"]);
    }

    #[test]
    fn a_pod_that_ends_keeps_its_mirror() {
        let mut mirrors = Mirrors::default();
        mirrors.statics(&[wanted("s1", "a")]);
        mirrors.set(vec![(name("a"), mirror("m1"))]);
        assert!(shown(mirrors.statics(&[])).is_empty());
        assert_eq!(mirrors.unwanted(), [(name("a"), "m1".to_owned())]);
        assert_eq!(shown(mirrors.upsert(name("a"), mirror("m1"))), ["s1=m1"], "its status is still told");
        assert_eq!(shown(mirrors.set(vec![])), ["s1=-"]);
        assert_eq!(shown(mirrors.upsert(name("a"), mirror("m2"))), Vec::<String>::new());
    }
}
