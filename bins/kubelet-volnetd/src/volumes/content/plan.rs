//! What the atomic writer does, as a list of steps (upstream `pkg/volume/util/atomic_writer.go`). Pure.
//!
//! ```text
//! <volume>/..2026_11_21_17_05_00.123456/key     the files
//! <volume>/..data -> ..2026_11_21_17_05_00.123456
//! <volume>/key -> ..data/key                    first components alone
//! ```
//!
//! A new set of files is written beside the old one, then `..data` is replaced by one rename: whoever reads through it
//! sees the old files or the new ones. The order of the steps is such that a crash after any of them leaves one of the
//! two entire, and that the plan made after it finishes the work. Unlike upstream's, this plan looks at the names that
//! are there and not at those of the former set, so what a crash left behind (a directory, a temporary link, a visible
//! name of a removed key) goes with the next one.

use std::collections::{BTreeMap, BTreeSet};

/// The link that readers go through, and its name before it is in place.
pub const DATA: &str = "..data";
pub const NEW_DATA: &str = "..data_tmp";

/// One name at the volume's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A link and its target.
    Link(String),
    Directory,
    Other,
}

/// What is there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Current {
    pub root: BTreeMap<String, Entry>,
    /// The set behind `..data` holds exactly the wanted files with the wanted content.
    pub is_wanted: bool,
}

impl Current {
    /// The directory behind `..data`, if that is one of the writer's.
    pub fn data(&self) -> Option<&str> {
        match self.root.get(DATA) {
            Some(Entry::Link(target)) if is_set_name(target) && self.root.get(target) == Some(&Entry::Directory) => {
                Some(target)
            }
            _ => None,
        }
    }
}

/// One change of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Remove a leftover, or the former set: a tree, a file or a link.
    Remove(String),
    /// Write all files into this new directory, with modes and owners.
    Write(String),
    /// `..data_tmp` -> this directory.
    LinkNew(String),
    /// Rename `..data_tmp` over `..data`.
    Publish,
    /// Make `<name>` -> `..data/<name>`.
    Show(String),
    /// Remove a visible name that no file has.
    Hide(String),
}

/// Whether a name is one that the writer gives to a set of files: `..` and a digit.
pub fn is_set_name(name: &str) -> bool {
    name.strip_prefix("..").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()) && !rest.contains('/'))
}

/// The steps from what is there to the wanted files. `visible`: first components of their paths; `new`: a name that
/// does not exist yet, by [`is_set_name`].
pub fn plan(current: &Current, visible: &BTreeSet<&str>, new: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let data = current.data();
    let up_to_date = current.is_wanted && data.is_some();
    // Leftovers of a crash come first: their space may be needed. Not the set that is read.
    for name in current.root.keys() {
        if name == NEW_DATA || (is_set_name(name) && data != Some(name)) {
            steps.push(Step::Remove(name.clone()));
        }
    }
    if !up_to_date {
        if data.is_none() && current.root.contains_key(DATA) && !matches!(current.root.get(DATA), Some(Entry::Link(_)))
        {
            // Nothing that we made; a rename does not replace a directory.
            steps.push(Step::Remove(DATA.to_owned()));
        }
        steps.push(Step::Write(new.to_owned()));
        steps.push(Step::LinkNew(new.to_owned()));
        steps.push(Step::Publish);
    }
    for name in visible {
        match current.root.get(*name) {
            Some(Entry::Link(target)) if *target == link_target(name) => {}
            // Another volume's mount point, or what a pod put there: upstream leaves it, too.
            Some(Entry::Directory | Entry::Other) => {}
            Some(Entry::Link(_)) => {
                steps.push(Step::Hide((*name).to_owned()));
                steps.push(Step::Show((*name).to_owned()));
            }
            None => steps.push(Step::Show((*name).to_owned())),
        }
    }
    for (name, entry) in &current.root {
        if matches!(entry, Entry::Link(target) if *target == link_target(name)) && !visible.contains(name.as_str()) {
            steps.push(Step::Hide(name.clone()));
        }
    }
    if let Some(data) = data.filter(|_| !up_to_date) {
        steps.push(Step::Remove(data.to_owned()));
    }
    steps
}

/// Where a visible name leads.
pub fn link_target(name: &str) -> String {
    format!("{DATA}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A volume in memory: names at the root, and the files of each set.
    #[derive(Debug, Clone, Default)]
    struct Disk {
        root: BTreeMap<String, Entry>,
        sets: BTreeMap<String, BTreeMap<String, u8>>,
    }

    type Files = BTreeMap<String, u8>;

    fn first(path: &str) -> &str {
        path.split('/').next().unwrap()
    }

    impl Disk {
        fn current(&self, wanted: &Files) -> Current {
            let mut current = Current { root: self.root.clone(), is_wanted: false };
            current.is_wanted = current.data().is_some_and(|data| self.sets.get(data) == Some(wanted));
            current
        }

        fn plan(&self, wanted: &Files, new: &str) -> Vec<Step> {
            plan(&self.current(wanted), &wanted.keys().map(|p| first(p)).collect(), new)
        }

        /// `torn`: the process dies in the middle of it.
        fn apply(&mut self, step: &Step, wanted: &Files, torn: bool) {
            match step {
                Step::Remove(name) => {
                    if let Some(set) = self.sets.get_mut(name).filter(|_| torn) {
                        set.pop_first();
                        return;
                    }
                    self.root.remove(name);
                    self.sets.remove(name);
                }
                Step::Write(name) => {
                    assert!(!self.root.contains_key(name));
                    self.root.insert(name.clone(), Entry::Directory);
                    let part = if torn { wanted.len() / 2 } else { wanted.len() };
                    self.sets.insert(name.clone(), wanted.clone().into_iter().take(part).collect());
                }
                Step::LinkNew(name) => {
                    assert!(!self.root.contains_key(NEW_DATA));
                    self.root.insert(NEW_DATA.into(), Entry::Link(name.clone()));
                }
                Step::Publish => {
                    assert!(!matches!(self.root.get(DATA), Some(Entry::Directory)));
                    let link = self.root.remove(NEW_DATA).unwrap();
                    self.root.insert(DATA.into(), link);
                }
                Step::Show(name) => {
                    assert!(self.root.insert(name.clone(), Entry::Link(link_target(name))).is_none());
                }
                Step::Hide(name) => {
                    self.root.remove(name).unwrap();
                }
            }
        }

        /// What a reader gets through `..data`.
        fn read(&self) -> Option<&Files> {
            match self.root.get(DATA) {
                Some(Entry::Link(target)) => self.sets.get(target),
                _ => None,
            }
        }

        fn visible(&self) -> BTreeSet<&str> {
            self.root
                .iter()
                .filter(|(name, entry)| matches!(entry, Entry::Link(target) if *target == link_target(name)))
                .map(|(name, _)| name.as_str())
                .collect()
        }
    }

    fn files() -> impl Strategy<Value = Files> {
        proptest::collection::btree_map("[abc]|[ab]/[xy]", any::<u8>(), 0..5)
    }

    /// Names that a crash or a pod may have left.
    fn rubbish() -> impl Strategy<Value = BTreeMap<String, Entry>> {
        let entry = prop_oneof![
            Just(Entry::Directory),
            Just(Entry::Other),
            "[abc]|\\.\\.data/[abc]|\\.\\.[0-9]|/etc".prop_map(Entry::Link),
        ];
        proptest::collection::btree_map("[abc]|\\.\\.data|\\.\\.data_tmp|\\.\\.[0-9]", entry, 0..6)
    }

    #[test]
    fn the_first_the_same_and_the_next() {
        let wanted: Files = [("a".to_owned(), 1), ("d/x".to_owned(), 2), ("d/y".to_owned(), 3)].into();
        let mut disk = Disk::default();
        let s = |text: &str| text.to_owned();
        let steps = disk.plan(&wanted, "..1");
        assert_eq!(
            steps,
            [Step::Write(s("..1")), Step::LinkNew(s("..1")), Step::Publish, Step::Show(s("a")), Step::Show(s("d"))]
        );
        steps.iter().for_each(|step| disk.apply(step, &wanted, false));
        assert_eq!(disk.plan(&wanted, "..2"), [], "unchanged content is not written");
        let next: Files = [("b".to_owned(), 1), ("d/x".to_owned(), 2)].into();
        let steps = disk.plan(&next, "..2");
        assert_eq!(
            steps,
            [
                Step::Write(s("..2")),
                Step::LinkNew(s("..2")),
                Step::Publish,
                Step::Show(s("b")),
                Step::Hide(s("a")),
                Step::Remove(s("..1"))
            ]
        );
        steps.iter().for_each(|step| disk.apply(step, &next, false));
        assert_eq!(disk.visible(), ["b", "d"].into());
    }

    proptest! {
        /// From any state, with a crash after or in the middle of any step, any number of times: a reader never sees a
        /// mixture, and in the end there is what was wanted last and no more.
        #[test]
        fn old_or_new_and_never_a_mixture(
            rubbish in rubbish(),
            rounds in proptest::collection::vec((files(), 0usize..12, any::<bool>()), 1..6),
        ) {
            let mut disk = Disk { root: rubbish, ..Disk::default() };
            for (name, entry) in &disk.root {
                if *entry == Entry::Directory {
                    disk.sets.insert(name.clone(), [("left".to_owned(), 0)].into());
                }
            }
            let last = rounds.len() - 1;
            for (round, (wanted, crash_after, torn)) in rounds.iter().enumerate() {
                // Paths that are another one's directory are refused before a plan is made.
                let wanted: Files = wanted
                    .iter()
                    .filter(|(path, _)| !wanted.keys().any(|other| other.starts_with(&format!("{path}/"))))
                    .map(|(path, byte)| (path.clone(), *byte))
                    .collect();
                let before = disk.read().cloned();
                let steps = disk.plan(&wanted, &format!("..{}", 10 + round));
                let (mut published, mut crashed) = (disk.current(&wanted).is_wanted, false);
                for (i, step) in steps.iter().enumerate() {
                    let dies = round != last && i == *crash_after;
                    if dies && !torn {
                        crashed = true;
                        break;
                    }
                    disk.apply(step, &wanted, dies);
                    published |= *step == Step::Publish;
                    if published {
                        prop_assert_eq!(disk.read(), Some(&wanted), "after {:?}", step);
                    } else if disk.current(&wanted).data().is_some() {
                        // What a pod put in the place of a set may be gone; a set of ours is read until the next is there.
                        prop_assert_eq!(disk.read(), before.as_ref(), "after {:?}", step);
                    }
                    if dies {
                        crashed = true;
                        break;
                    }
                }
                if !crashed {
                    prop_assert_eq!(disk.read(), Some(&wanted));
                    let names: BTreeSet<&str> = wanted.keys().map(|path| first(path)).collect();
                    prop_assert!(disk.visible().is_subset(&names));
                    for name in names {
                        prop_assert!(disk.root.contains_key(name));
                    }
                    let sets = disk.root.keys().filter(|name| is_set_name(name)).count();
                    prop_assert_eq!((sets, disk.root.contains_key(NEW_DATA)), (1, false));
                    prop_assert_eq!(disk.plan(&wanted, "..99"), vec![]);
                }
            }
        }
    }
}
