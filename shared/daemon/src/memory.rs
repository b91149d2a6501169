//! When memory that is not used any more goes back to the kernel: after the process was busy, never when nothing
//! happens. A burst of pods takes several times the memory that the pods keep, and glibc by itself would hold on to it;
//! and most of a program's code is for what seldom happens, its start above all.

use std::convert::Infallible;
use std::time::Duration;

use bulkhead_sys::{heap, process, program};

/// How often is looked. A look at an idle process costs microseconds.
const EVERY: Duration = Duration::from_secs(15);
/// Who used less processor time than this since the last look is idle, and has freed little. More than what a hundred pods that do
/// nothing take in that time: their pages would be let go of and come back at each look, some microseconds for each. The looks at
/// them leave free memory as well, by and by: the heap is given back about once a minute for them.
const BUSY: Duration = Duration::from_millis(100);
/// Less than this is not worth the system calls, nor the page faults of the next burst; bytes.
const WORTH: usize = 256 << 10;

/// Looks for ever.
pub(crate) async fn give_back() -> Infallible {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut before, mut given_back) = (Duration::ZERO, Duration::ZERO);
    let mut work = Work::default();
    loop {
        tick.tick().await;
        let used = process::cpu_time();
        let is_worth = |free| is_worth(used.saturating_sub(given_back), free);
        if heap::free_bytes().is_some_and(is_worth) {
            heap::give_back();
            given_back = used;
        }
        if work.leaves_pages(used.saturating_sub(before)) {
            program::let_go_of_pages();
        }
        before = used;
    }
}

/// Whether the pages of the program that were used last are likely to be used again.
#[derive(Debug, Default)]
struct Work {
    looks: u32,
    was_busy: bool,
}

impl Work {
    /// True after work, and once more after the look that ended in its midst; the second look is the end of the start, also of one
    /// that took little.
    fn leaves_pages(&mut self, used: Duration) -> bool {
        let is_busy = used >= BUSY;
        let leaves = is_busy || self.was_busy || self.looks == 1;
        self.looks = self.looks.saturating_add(1);
        self.was_busy = is_busy;
        leaves
    }
}

/// `used`: processor time since the heap was given back. What is free may have been given back already: only work changes that.
fn is_worth(used: Duration, free: usize) -> bool {
    used >= BUSY && free >= WORTH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_work_that_left_much() {
        assert!(is_worth(Duration::from_secs(1), 6 << 20));
        assert!(!is_worth(Duration::from_millis(9), 6 << 20), "idle: it has been given back");
        assert!(!is_worth(Duration::from_secs(1), 100 << 10));
    }

    #[test]
    fn pages_are_let_go_of_until_nothing_happens_any_more() {
        let (busy, idle) = (BUSY, Duration::from_millis(1));
        let mut work = Work::default();
        let looks = [idle, idle, idle, busy, busy, idle, idle, idle].map(|used| work.leaves_pages(used));
        assert_eq!(looks, [false, true, false, true, true, true, false, false]);
    }

    #[test]
    fn work_takes_processor_time() {
        let before = process::cpu_time();
        let mut sum = 0u64;
        while process::cpu_time() - before < Duration::from_millis(5) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(process::cpu_time() > before);
    }
}
