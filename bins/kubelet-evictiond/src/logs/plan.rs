//! What is to be done with one container's log files. Pure: the files in, steps out.
//!
//! Of `containerLogMaxFiles` one is the current file and one, after a rotation, the newest rotated one, which stays as it is; the
//! others are compressed. The oldest go first, and before a rotation, so that there never are more than allowed.

use std::collections::BTreeMap;

use bulkhead_types::{LogForm, LogStamp};

use crate::walker::LogFiles;

/// What the configuration asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// `containerLogMaxSize`, bytes.
    pub max_bytes: u64,
    /// `containerLogMaxFiles`, 2 at least.
    pub max_files: usize,
}

/// A rotated file that goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removal {
    pub stamp: LogStamp,
    pub form: LogForm,
    /// Its contents are there in another form, and it goes only if that is so.
    pub is_double: bool,
}

/// What is done with the current file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Current {
    #[default]
    Stays,
    Rotate,
    /// It is missing, and the container runs: something ended between a rename and the runtime's new file.
    Reopen,
    /// It is missing, and nobody will write one: the newest rotated file is it.
    Restore(LogStamp),
}

/// The steps, in this order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    pub remove: Vec<Removal>,
    pub current: Current,
    /// Oldest first.
    pub compress: Vec<LogStamp>,
    /// What is no longer the newest once the current file was rotated.
    pub compress_then: Option<LogStamp>,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        *self == Plan::default()
    }
}

/// See the module.
pub fn plan(files: &LogFiles, running: bool, policy: Policy) -> Plan {
    let mut plan = Plan::default();
    let mut kept: BTreeMap<LogStamp, Vec<LogForm>> = BTreeMap::new();
    for (stamp, form) in &files.rotated {
        kept.entry(*stamp).or_default().push(*form);
    }
    // What upstream left unfinished. A compressed file beside the plain one is whole, or it was never on the disk when the power
    // went: the plain one is whole in either case, and is compressed again.
    kept.retain(|stamp, forms| {
        let stamp = *stamp;
        if forms.contains(&LogForm::Unfinished) {
            plan.remove.push(Removal { stamp, form: LogForm::Unfinished, is_double: false });
        }
        if forms.contains(&LogForm::Plain) && forms.contains(&LogForm::Compressed) {
            plan.remove.push(Removal { stamp, form: LogForm::Compressed, is_double: true });
            *forms = vec![LogForm::Plain];
        }
        forms.retain(|form| *form != LogForm::Unfinished);
        !forms.is_empty()
    });
    let is_large = files.current_bytes.is_some_and(|bytes| bytes > 0 && bytes >= policy.max_bytes);
    let rotates = running && is_large;
    // The current file, and the one that it becomes.
    let others = if rotates { 2 } else { 1 };
    let excess = kept.len().saturating_sub(policy.max_files.saturating_sub(others));
    for _ in 0..excess {
        let Some((stamp, forms)) = kept.pop_first() else { break };
        plan.remove.extend(forms.into_iter().map(|form| Removal { stamp, form, is_double: false }));
    }
    let newest_plain = kept.last_key_value().filter(|(_, forms)| forms.contains(&LogForm::Plain));
    plan.current = match (files.current_bytes, newest_plain) {
        (Some(_), _) if rotates => Current::Rotate,
        (None, _) if running => Current::Reopen,
        (None, Some((newest, _))) => Current::Restore(*newest),
        (_, _) => Current::Stays,
    };
    let mut plain = kept.into_iter().map(|(stamp, forms)| forms.contains(&LogForm::Plain).then_some(stamp));
    // The newest stays as it is: its writer may not have let go of it yet.
    let newest = plain.next_back().flatten();
    plan.compress_then = newest.filter(|_| rotates);
    plan.compress = plain.flatten().collect();
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use LogForm::{Compressed, Plain, Unfinished};
    use proptest::prelude::*;

    const POLICY: Policy = Policy { max_bytes: 100, max_files: 4 };

    fn stamp(second: u8) -> LogStamp {
        LogStamp::new(2026, 1, 1, 0, second / 60, second % 60).unwrap()
    }

    fn files(current_bytes: Option<u64>, rotated: &[(u8, LogForm)]) -> LogFiles {
        LogFiles { current_bytes, rotated: rotated.iter().map(|(second, form)| (stamp(*second), *form)).collect() }
    }

    #[test]
    fn the_current_file() {
        for (current, running, expected) in [
            (Some(0), true, Current::Stays),
            (Some(99), true, Current::Stays),
            (Some(100), true, Current::Rotate),
            (Some(100), false, Current::Stays),
            (None, true, Current::Reopen),
            (None, false, Current::Stays),
        ] {
            assert_eq!(plan(&files(current, &[]), running, POLICY).current, expected, "{current:?} {running}");
        }
        let zero = Policy { max_bytes: 0, ..POLICY };
        assert_eq!(
            plan(&files(Some(0), &[]), true, zero).current,
            Current::Stays,
            "of nothing there is nothing to rotate"
        );
        assert_eq!(plan(&files(Some(1), &[]), true, zero).current, Current::Rotate);
        // Killed between rename and Reopen, and then the container ended.
        assert_eq!(
            plan(&files(None, &[(1, Compressed), (2, Plain)]), false, POLICY).current,
            Current::Restore(stamp(2))
        );
        assert_eq!(plan(&files(None, &[(2, Compressed)]), false, POLICY).current, Current::Stays);
        assert_eq!(plan(&files(None, &[(2, Plain)]), true, POLICY).current, Current::Reopen);
    }

    #[test]
    fn rotated_files() {
        let remove = |second, form, is_double| Removal { stamp: stamp(second), form, is_double };
        for (current, rotated, removed, compressed) in [
            (1, &[(1, Plain)][..], vec![], vec![]),
            (1, &[(1, Plain), (2, Plain), (3, Plain)], vec![], vec![1, 2]),
            (1, &[(2, Plain), (1, Compressed)], vec![], vec![]),
            // One more comes.
            (100, &[(1, Compressed), (2, Plain)], vec![], vec![2]),
            (100, &[(1, Compressed), (2, Compressed), (3, Plain)], vec![remove(1, Compressed, false)], vec![3]),
            (100, &[(3, Plain), (2, Plain), (1, Plain)], vec![remove(1, Plain, false)], vec![2, 3]),
            // More than are allowed (by now).
            (1, &[(1, Compressed), (2, Plain), (3, Plain), (4, Plain)], vec![remove(1, Compressed, false)], vec![2, 3]),
            // Left behind.
            (1, &[(1, Unfinished), (1, Plain), (2, Plain)], vec![remove(1, Unfinished, false)], vec![1]),
            (1, &[(1, Plain), (1, Compressed), (2, Plain)], vec![remove(1, Compressed, true)], vec![1]),
            (1, &[(2, Plain), (2, Compressed)], vec![remove(2, Compressed, true)], vec![]),
            (1, &[(5, Unfinished)], vec![remove(5, Unfinished, false)], vec![]),
        ] {
            let plan = plan(&files(Some(current), rotated), true, POLICY);
            assert_eq!(plan.remove, removed, "{current} {rotated:?}");
            let all: Vec<LogStamp> = plan.compress.into_iter().chain(plan.compress_then).collect();
            assert_eq!(all, compressed.into_iter().map(stamp).collect::<Vec<_>>(), "{current} {rotated:?}");
        }
        let two = Policy { max_files: 2, ..POLICY };
        assert_eq!(plan(&files(Some(100), &[(1, Plain)]), true, two).remove, [remove(1, Plain, false)]);
        assert!(plan(&files(Some(1), &[(1, Plain)]), true, two).is_empty());
    }

    /// What is there when the steps are done.
    fn carry_out(files: &LogFiles, plan: &Plan, now: LogStamp) -> LogFiles {
        let mut after = files.clone();
        for removal in &plan.remove {
            after.rotated.retain(|file| *file != (removal.stamp, removal.form));
        }
        match plan.current {
            Current::Stays => {}
            Current::Rotate => {
                after.current_bytes = Some(0);
                after.rotated.push((now, Plain));
            }
            Current::Reopen => after.current_bytes = Some(0),
            Current::Restore(stamp) => {
                after.current_bytes = Some(1);
                after.rotated.retain(|(other, _)| *other != stamp);
            }
        }
        for stamp in plan.compress.iter().chain(&plan.compress_then) {
            let file = after.rotated.iter_mut().find(|file| **file == (*stamp, Plain)).unwrap();
            file.1 = Compressed;
        }
        after
    }

    proptest! {
        #[test]
        fn whatever_was_left_comes_right(
            current in prop::option::of(0_u64..200),
            rotated in prop::collection::btree_set((0_u8..12, 0_u8..3), 0..16),
            running: bool,
            max_files in 2_usize..7,
        ) {
            let policy = Policy { max_bytes: 100, max_files };
            let form = |form| [Plain, Compressed, Unfinished][usize::from(form)];
            let rotated: Vec<_> = rotated.into_iter().map(|(second, of)| (second, form(of))).collect();
            let before = files(current, &rotated);
            let first = plan(&before, running, policy);
            // The only copy of something goes for the count alone, oldest first.
            let excess = first.remove.iter().filter(|removal| removal.form != Unfinished && !removal.is_double);
            let newest_gone = excess.map(|removal| removal.stamp).max();
            let after = carry_out(&before, &first, stamp(200));
            for (stamp, form) in &before.rotated {
                let is_there = after.rotated.iter().any(|(other, _)| other == stamp) || first.current == Current::Restore(*stamp);
                prop_assert!(*form == Unfinished || is_there || newest_gone.is_some_and(|gone| *stamp <= gone));
            }
            // Each only once, no more than are allowed, and all but the newest compressed.
            let mut stamps: Vec<_> = after.rotated.iter().map(|(stamp, _)| *stamp).collect();
            stamps.sort_unstable();
            let newest = stamps.last().copied();
            let all = stamps.len();
            stamps.dedup();
            prop_assert_eq!(stamps.len(), all);
            prop_assert!(all < max_files);
            prop_assert!(after.rotated.iter().all(|(stamp, form)| *form == Compressed || Some(*stamp) == newest));
            prop_assert!(!running || after.current_bytes.is_some());
            // The next pass finds nothing more to do.
            let second = plan(&after, running, policy);
            prop_assert!(second.is_empty(), "{:?} {:?}", first, second);
        }
    }
}
