//! Waiting for the outside world: every wait has an end, and a wait that ends in vain says what it saw last.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// For things that take well under a second on an idle machine.
pub const SHORT: Duration = Duration::from_secs(20);
/// For whole starts, and for anything while dozens of pods start on two shared cores.
pub const LONG: Duration = Duration::from_secs(120);

/// Time between two looks. Small against a container's start (0.1 s), large against the cost of a look.
const LOOK_EVERY: Duration = Duration::from_millis(25);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Ends every wait of this process at its next look: somebody pressed Ctrl-C.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::SeqCst);
}

/// Whether [`interrupt`] was called and not yet [`resume`].
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Lets waits wait again: the clean-up after an interrupt.
pub fn resume() {
    INTERRUPTED.store(false, Ordering::SeqCst);
}

/// Looks until `look` gives a value; its error text is what was seen instead.
///
/// # Errors
/// When `limit` has passed: `what` and the last thing seen.
pub fn eventually<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    insist(what, limit, || {
        let seen = look();
        if seen.is_err() && interrupted() {
            return Ok(Err(anyhow::anyhow!("{what}: interrupted")));
        }
        seen.map(Ok)
    })?
}

/// As [`eventually`], but nothing cuts it short: for taking things down.
///
/// # Errors
/// When `limit` has passed: `what` and the last thing seen.
pub fn insist<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        let seen = match look() {
            Ok(value) => return Ok(value),
            Err(seen) => seen,
        };
        if start.elapsed() > limit {
            bail!("{what}: not within {} s; last seen: {seen:#}", limit.as_secs());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// The opposite promise: nothing of the kind happens for `period`.
///
/// # Errors
/// As soon as `check` fails.
pub fn holds_for(what: &str, period: Duration, mut check: impl FnMut() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < period {
        if let Err(broken) = check() {
            bail!("{what}: broken after {:.2} s: {broken:#}", start.elapsed().as_secs_f64());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
