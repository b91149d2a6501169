//! The clock by which the kernel notes when a process began.

use std::time::Duration;

/// Time since the machine began, sleep included: the clock of the times at which processes start.
pub fn since_boot() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec to where it is told, and nothing else.
    if unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) } != 0 {
        // As late as can be: then every process is older, and none is ended.
        return Duration::MAX;
    }
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanoseconds.unwrap_or_default())
}
