//! How many kills each control group has seen since the boot, for whoever makes statistics of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Cheap to clone; all clones show the same.
#[derive(Debug, Clone, Default)]
pub struct OomCounts(Arc<Mutex<State>>);

#[derive(Debug, Default)]
enum State {
    /// The log has not been read to its end yet.
    #[default]
    Unknown,
    Read(BTreeMap<String, u64>),
    /// Nobody reads it.
    Unread,
}

impl OomCounts {
    pub fn set(&self, counts: BTreeMap<String, u64>) {
        *self.0.lock() = State::Read(counts);
    }

    /// From here on the kernel's own count is told.
    pub fn give_up(&self) {
        *self.0.lock() = State::Unread;
    }

    /// Of this group itself. `kernels`: processes of it that the kernel counts as killed, of which a group that ends as a whole has
    /// many; what is told for a moment must not be more than what is told later.
    pub fn of(&self, group: &str, kernels: Option<u64>) -> Option<u64> {
        match &*self.0.lock() {
            State::Unknown => None,
            State::Read(counts) => Some(counts.get(group).copied().unwrap_or(0)),
            State::Unread => kernels,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_own_count_stands_in_for_a_log_that_nobody_reads() {
        let counts = OomCounts::default();
        assert_eq!(counts.of("/k", Some(3)), None, "not known yet");
        counts.set([("/k".to_owned(), 1)].into());
        assert_eq!((counts.of("/k", Some(3)), counts.of("/l", None)), (Some(1), Some(0)));
        counts.give_up();
        assert_eq!((counts.of("/k", Some(3)), counts.of("/l", None)), (Some(3), None));
    }
}
