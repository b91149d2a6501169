//! The guard of destructive verbs: "unknown because somebody is restarting" must never be read as "gone".
//!
//! A destructive verb names the epoch of the volnetd that its sender has talked to, its own epoch, the generation of
//! desired state that it acts on, and says that every pod source has been heard. Anything stale is refused; the sender
//! looks again and asks again.

use std::collections::VecDeque;

use bulkhead_ipc::common::DestructiveGuard;
use bulkhead_types::{Epoch, Generation};

/// Former epochs of syncd that are remembered. A message from one that is older still would have to outlive as many
/// restarts on a local socket.
const RETIRED_MAX: usize = 32;

/// Why a destructive verb is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    #[error("no destructive guard was given")]
    Missing,
    #[error("the guard names volnetd's epoch {given:016x}, this is {ours}: say Hello again")]
    OtherVolnetd { given: u64, ours: Epoch },
    #[error("the guard names no epoch of kubelet-syncd")]
    NoSyncdEpoch,
    #[error("the guard comes from a kubelet-syncd that has been replaced (epoch {given})")]
    RetiredSyncd { given: Epoch },
    #[error("the guard's generation {given} is older than {seen}, seen before")]
    Stale { given: u64, seen: u64 },
    #[error("not all pod sources have synced yet")]
    SourcesNotReady,
}

/// What has been seen of syncd.
#[derive(Debug)]
pub struct Guard {
    ours: Epoch,
    current: Option<(Epoch, Generation)>,
    retired: VecDeque<Epoch>,
}

impl Guard {
    pub fn new(ours: Epoch) -> Self {
        Guard { ours, current: None, retired: VecDeque::new() }
    }

    /// Passes or refuses one request. Remembers the newest epoch and generation of those that pass.
    pub fn check(&mut self, guard: Option<&DestructiveGuard>) -> Result<(), GuardError> {
        let guard = guard.ok_or(GuardError::Missing)?;
        if guard.volnetd_epoch != self.ours.get() {
            return Err(GuardError::OtherVolnetd { given: guard.volnetd_epoch, ours: self.ours });
        }
        let epoch = Epoch::from_wire(guard.syncd_epoch).ok_or(GuardError::NoSyncdEpoch)?;
        if !guard.sources_ready {
            return Err(GuardError::SourcesNotReady);
        }
        if self.retired.contains(&epoch) {
            return Err(GuardError::RetiredSyncd { given: epoch });
        }
        let generation = Generation(guard.generation);
        match self.current {
            Some((current, seen)) if current == epoch && generation < seen => {
                return Err(GuardError::Stale { given: generation.0, seen: seen.0 });
            }
            Some((current, _)) if current == epoch => {}
            Some((former, _)) => {
                if self.retired.len() == RETIRED_MAX {
                    self.retired.pop_front();
                }
                self.retired.push_back(former);
            }
            None => {}
        }
        self.current = Some((epoch, generation));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(volnetd: u64, syncd: u64, generation: u64, ready: bool) -> DestructiveGuard {
        DestructiveGuard { volnetd_epoch: volnetd, syncd_epoch: syncd, generation, sources_ready: ready }
    }

    #[test]
    fn only_fresh_knowledge_destroys() {
        let mut state = Guard::new(Epoch::from_random(7));
        let mut ask = |v, s, g, r| state.check(Some(&guard(v, s, g, r)));
        assert!(matches!(ask(8, 1, 1, true), Err(GuardError::OtherVolnetd { .. })));
        assert_eq!(ask(7, 0, 1, true), Err(GuardError::NoSyncdEpoch));
        assert_eq!(ask(7, 1, 1, false), Err(GuardError::SourcesNotReady));
        assert_eq!(ask(7, 1, 5, true), Ok(()));
        assert_eq!(ask(7, 1, 4, true), Err(GuardError::Stale { given: 4, seen: 5 }));
        assert_eq!(ask(7, 1, 5, true), Ok(()));
        // syncd restarted: it counts anew, and what the former one still had in flight is void.
        assert_eq!(ask(7, 2, 1, true), Ok(()));
        assert!(matches!(ask(7, 1, 9, true), Err(GuardError::RetiredSyncd { .. })));
        assert_eq!(state.check(None), Err(GuardError::Missing));
    }

    use proptest::prelude::*;

    proptest! {
        /// Whatever comes in whatever order: of one epoch the passing generations never fall, an epoch that was
        /// replaced never passes again, and nothing passes without our epoch and ready sources.
        #[test]
        fn knowledge_never_goes_back(asked in proptest::collection::vec((0u64..3, 0u64..5, 0u64..6, any::<bool>()), 0..60)) {
            let ours = Epoch::from_random(1);
            let mut state = Guard::new(ours);
            let mut passed: Vec<(u64, u64)> = Vec::new();
            for (volnetd, syncd, generation, ready) in asked {
                if state.check(Some(&guard(volnetd, syncd, generation, ready))).is_ok() {
                    prop_assert!(volnetd == 1 && syncd != 0 && ready);
                    if let Some((last, newest)) = passed.last() {
                        if *last == syncd {
                            prop_assert!(generation >= *newest);
                        } else {
                            prop_assert!(passed.iter().all(|(epoch, _)| *epoch != syncd));
                        }
                    }
                    passed.push((syncd, generation));
                }
            }
        }
    }
}
