//! What has been made of the kernel's log so far. Kept on disk: a process that starts reads the log from its beginning and skips
//! what this says was dealt with, so that whenever the one before it ended, each kill is counted once and told once. Pure.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::kill::{Kill, Scope};

/// The form of the state file.
pub const VERSION: u64 = 1;
/// Groups that are counted; far more than a node has containers.
const GROUPS_MAX: usize = 8192;
/// Kills that wait to be told; of more the oldest are not. The kernel itself tells at most ten in five seconds.
const WAITING_MAX: usize = 256;

/// See the module. Of one boot: another one's log begins anew.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    pub boot_id: String,
    /// The last record that was one's end for want of memory.
    #[serde(default)]
    pub sequence: Option<u64>,
    /// By control group.
    #[serde(default, deserialize_with = "bulkhead_daemon::state_file::map")]
    pub counts: BTreeMap<String, u64>,
    /// Of the machine, not yet told; in their order.
    #[serde(default)]
    pub waiting: VecDeque<Told>,
}

/// A kill for want of the machine's memory, as kubelet-syncd is told of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    pub sequence: u64,
    pub process: String,
    pub pid: u32,
}

impl Ledger {
    /// What was kept, if it is of this boot.
    pub fn of_boot(kept: Option<Ledger>, boot_id: &str) -> Self {
        let kept = kept.filter(|kept| kept.boot_id == boot_id);
        kept.unwrap_or_else(|| Ledger { boot_id: boot_id.to_owned(), ..Ledger::default() })
    }

    /// Takes a kill and whose it is; kills come in the order of their sequence. False: it has been dealt with.
    pub fn take(&mut self, kill: &Kill, owner: Option<String>) -> bool {
        if self.sequence.is_some_and(|last| kill.sequence <= last) {
            return false;
        }
        self.sequence = Some(kill.sequence);
        if let Some(owner) = owner.filter(|owner| self.counts.len() < GROUPS_MAX || self.counts.contains_key(owner)) {
            let count = self.counts.entry(owner).or_default();
            *count = count.saturating_add(1);
        }
        if kill.scope == Scope::System {
            if self.waiting.len() >= WAITING_MAX {
                self.waiting.pop_front();
            }
            let Kill { sequence, process, pid, .. } = kill.clone();
            self.waiting.push_back(Told { sequence, process, pid });
        }
        true
    }

    /// This one has been told.
    pub fn told(&mut self, sequence: u64) {
        self.waiting.retain(|one| one.sequence != sequence);
    }

    /// Forgets groups that are gone: their names do not come again.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.counts.retain(|group, _| is_there(group));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kill(sequence: u64, scope: Scope) -> Kill {
        Kill { sequence, process: "x".into(), pid: 7, scope }
    }

    fn group() -> Scope {
        Scope::Group(Some("/k/c".into()))
    }

    #[test]
    fn each_is_counted_and_told_once_whenever_the_process_ends() {
        let log = [kill(3, group()), kill(9, Scope::System), kill(11, group()), kill(20, Scope::System)];
        let owner = |kill: &Kill| Some(if kill.scope == Scope::System { "/" } else { "/k/c" }.to_owned());
        // Ended after that many kills were written down, and that many told; the next reads from the beginning.
        for ends_after in 0..=log.len() {
            let mut ledger = Ledger::of_boot(None, "b");
            for one in &log[..ends_after] {
                assert!(ledger.take(one, owner(one)));
            }
            if let Some(first) = ledger.waiting.front().cloned() {
                ledger.told(first.sequence);
            }
            let kept = serde_json::to_vec(&ledger).unwrap();
            let mut ledger = Ledger::of_boot(serde_json::from_slice(&kept).unwrap(), "b");
            for one in &log {
                ledger.take(one, owner(one));
            }
            assert_eq!((ledger.counts["/k/c"], ledger.counts["/"]), (2, 2), "{ends_after}");
            let waiting: Vec<u64> = ledger.waiting.iter().map(|one| one.sequence).collect();
            assert_eq!(waiting, if ends_after < 2 { vec![9, 20] } else { vec![20] }, "{ends_after}");
        }
    }

    #[test]
    fn another_boot_begins_anew() {
        let mut ledger = Ledger::of_boot(None, "b");
        ledger.take(&kill(500, Scope::System), Some("/".into()));
        assert_eq!(Ledger::of_boot(Some(ledger.clone()), "b"), ledger);
        let mut next = Ledger::of_boot(Some(ledger), "c");
        assert!(next.counts.is_empty() && next.waiting.is_empty());
        assert!(next.take(&kill(4, group()), None) && next.counts.is_empty());
    }

    #[test]
    fn nothing_grows_without_end() {
        let mut ledger = Ledger::of_boot(None, "b");
        for sequence in 0..10_000 {
            ledger.take(&kill(sequence, Scope::System), Some(format!("/{sequence}")));
        }
        assert_eq!((ledger.counts.len(), ledger.waiting.len()), (GROUPS_MAX, WAITING_MAX));
        assert_eq!(ledger.waiting.front().map(|one| one.sequence), Some(10_000 - WAITING_MAX as u64));
        ledger.take(&kill(20_000, group()), Some("/5".into()));
        assert_eq!(ledger.counts["/5"], 2, "who is there counts on");
        ledger.retain(|group| group == "/5");
        assert_eq!(ledger.counts.len(), 1);
    }

    proptest! {
        #[test]
        fn counts_are_those_of_different_kills(sequences in proptest::collection::vec(0_u64..50, 0..60)) {
            let mut ledger = Ledger::of_boot(None, "b");
            let mut last = None;
            let mut rising = 0;
            for sequence in sequences {
                let new = last.is_none_or(|last| sequence > last);
                prop_assert_eq!(ledger.take(&kill(sequence, group()), Some("/k/c".into())), new);
                if new {
                    (last, rising) = (Some(sequence), rising + 1);
                }
            }
            prop_assert_eq!(ledger.counts.get("/k/c").copied().unwrap_or(0), rising);
        }
    }
}
