//! When memory that is not used any more goes back to the kernel: after the process was busy, never when nothing
//! happens. A burst of pods takes several times the memory that the pods keep, and glibc by itself would hold on to it;
//! and most of a program's code is for what seldom happens, its start above all.

use std::convert::Infallible;
use std::time::Duration;

use bulkhead_sys::{heap, process, program};

/// How often is looked. A look at an idle process costs microseconds.
const EVERY: Duration = Duration::from_secs(15);
/// Who used less processor time than this since the last look has freed little.
const BUSY: Duration = Duration::from_millis(20);
/// Less than this is not worth the system calls, nor the page faults of the next burst; bytes.
const WORTH: usize = 256 << 10;

/// Looks for ever.
pub(crate) async fn give_back() -> Infallible {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut before = Duration::ZERO;
    let mut looks = 0_u32;
    loop {
        tick.tick().await;
        let used = process::cpu_time();
        let since = used.saturating_sub(before);
        if heap::free_bytes().is_some_and(|free| is_worth(since, free)) {
            heap::give_back();
        }
        // The second look is the end of the start, also of one that took little.
        if since >= BUSY || looks == 1 {
            program::let_go_of_pages();
        }
        looks = looks.saturating_add(1);
        before = used;
    }
}

/// `used`: processor time since the last look. What is free may have been given back already: only work changes that.
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
    fn work_takes_processor_time() {
        let before = process::cpu_time();
        let mut sum = 0u64;
        while process::cpu_time() - before < Duration::from_millis(5) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(process::cpu_time() > before);
    }
}
