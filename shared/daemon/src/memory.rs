//! When memory that is not used any more goes back to the kernel: after the process was busy, never when nothing
//! happens. A burst of pods takes several times the memory that the pods keep, and glibc by itself would hold on to it;
//! and most of a program's code is for what seldom happens, its start above all.

use std::convert::Infallible;
use std::time::Duration;

use bulkhead_sys::{heap, process, program};

/// How often is looked. A look at an idle process costs microseconds.
const EVERY: Duration = Duration::from_secs(5);
/// Looks at the heap for each look at the program's pages.
const PAGES_EVERY: u32 = 3;
/// Who used less processor time than this since its pages were looked at last is idle, and they stay. More than what a hundred pods
/// that do nothing take in that time: their pages would be let go of and come back at each look, some microseconds for each.
const BUSY: Duration = Duration::from_millis(100);
/// Who used less processor time than this since the heap was given back has freed little. The looks at a hundred pods that do nothing
/// leave megabytes of free pages by and by, those at their claims most; a give-back costs some 0.2 ms with what comes back after it.
const FREED: Duration = Duration::from_millis(8);
/// Who used less than this after a look in the midst of work has not gone on with it.
const LITTLE: Duration = Duration::from_millis(1);
/// Less than this is not worth the system calls, nor the page faults of the next burst; bytes.
const WORTH: usize = 256 << 10;

/// Looks for ever.
pub(crate) async fn give_back() -> Infallible {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut before = Duration::ZERO;
    let (mut freed, mut work, mut looks) = (Freed::default(), Work::default(), 0);
    loop {
        tick.tick().await;
        let used = process::cpu_time();
        if heap::free_bytes().is_some_and(|free| freed.is_worth(used, free)) {
            heap::give_back();
        }
        if looks == 0 {
            if work.leaves_pages(used.saturating_sub(before)) {
                program::let_go_of_pages();
            }
            before = used;
        }
        looks = (looks + 1) % PAGES_EVERY;
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

/// Whether the heap has pages to give back. Those that are free may have been given back already: only work changes that.
#[derive(Debug, Default)]
struct Freed {
    /// Processor time of the process when the heap was given back last.
    given_back: Duration,
    was_amid_work: bool,
}

impl Freed {
    /// True after work, and once more after the look that came in its midst. `used`: processor time of the process; `free`: bytes.
    fn is_worth(&mut self, used: Duration, free: usize) -> bool {
        let since = used.saturating_sub(self.given_back);
        let is_after_work = since >= FREED;
        let is_rest = self.was_amid_work && since >= LITTLE;
        let is_worth = free >= WORTH && (is_after_work || is_rest);
        if is_worth {
            self.given_back = used;
            self.was_amid_work = is_after_work;
        }
        is_worth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_heap_goes_back_after_work_that_left_much() {
        let much = 6 << 20;
        let ms = Duration::from_millis;
        let mut freed = Freed::default();
        let looks = [
            (ms(7), much, false, "idle"),
            (ms(8), much, true, "what looks at idle pods leave goes back, too"),
            (ms(8), much, false, "nothing happened since"),
            (ms(15), much, true, "the rest of it"),
            (ms(22), much, false, "idle"),
            (ms(1000), much, true, "a burst"),
            (ms(1005), much, true, "the rest of the burst"),
            (ms(1010), much, false, "idle after it"),
            (ms(2000), 100 << 10, false, "too little is free"),
            (ms(2000), much, true, "and now there is enough"),
        ];
        for (used, free, expected, why) in looks {
            assert_eq!(freed.is_worth(used, free), expected, "{why}");
        }
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
