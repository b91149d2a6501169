//! Pods that have finished while a source named them, and whose folders and cgroups may still be there, as of one that ran before a
//! restart and was refused after it. A prune spares them for as long as a source names them, so one is due when none does any more.

use std::collections::HashSet;

use bulkhead_types::PodUid;

/// Those of which nobody has looked since.
#[derive(Debug, Default)]
pub(super) struct Left(HashSet<PodUid>);

impl Left {
    /// It has finished, and a source names it.
    pub(super) fn insert(&mut self, uid: PodUid) {
        self.0.insert(uid);
    }

    /// Forgets those of which it is not so any more that somebody knows them. True: there are such, and a prune is due.
    pub(super) fn forget_unknown(&mut self, is_known: impl Fn(&PodUid) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(is_known);
        self.0.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prune_is_due_once_when_nobody_knows_one_of_them() {
        let (mut left, a, b) = (Left::default(), PodUid::parse("a").unwrap(), PodUid::parse("b").unwrap());
        assert!(!left.forget_unknown(|_| false), "nothing has finished");
        left.insert(a.clone());
        left.insert(b.clone());
        left.insert(b.clone());
        assert!(!left.forget_unknown(|_| true), "a source names them");
        assert!(left.forget_unknown(|uid| *uid == b));
        assert!(!left.forget_unknown(|uid| *uid == b), "that was for the other one, and once");
        assert!(left.forget_unknown(|_| false));
        assert!(!left.forget_unknown(|_| false));
    }
}
