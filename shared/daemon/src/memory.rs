//! When memory that is not used any more goes back to the kernel: a while after much was freed, never when nothing
//! happens. A burst of pods takes several times the memory that the pods keep, and glibc by itself would hold on to it.

use std::convert::Infallible;
use std::time::Duration;

use bulkhead_sys::heap;

/// How often is looked. Each look of an idle process costs microseconds.
const EVERY: Duration = Duration::from_secs(15);
/// Less than this is not worth the system calls, nor the page faults of the next burst.
const WORTH: usize = 256 << 10;

/// Looks for ever.
pub(crate) async fn give_back() -> Infallible {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut known = 0;
    loop {
        tick.tick().await;
        let Some(free) = heap::free_bytes() else { return std::future::pending().await };
        if is_worth(&mut known, free) {
            heap::give_back();
        }
    }
}

/// `known`: what was free when memory was given back last, less what was used of it since.
fn is_worth(known: &mut usize, free: usize) -> bool {
    let worth = free >= known.saturating_add(WORTH);
    if worth || free < *known {
        *known = free;
    }
    worth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_back_once_after_much_was_freed() {
        let mut known = 0;
        // A start, a burst that takes what was free, its end, then small changes.
        let free = [300 << 10, 310 << 10, 20 << 10, 6 << 20, 6 << 20, (6 << 20) + WORTH - 1];
        let given: Vec<bool> = free.into_iter().map(|free| is_worth(&mut known, free)).collect();
        assert_eq!(given, [true, false, false, true, false, false]);
    }
}
