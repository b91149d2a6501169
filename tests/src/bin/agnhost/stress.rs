//! `stress`: takes memory step by step, at an even rate, and touches every page of it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_types::{GoDuration, Quantity};
use clap::ArgMatches;

/// Milliseconds between SIGTERM and the end of the program.
pub const END_AFTER: &str = "END_AFTER_MS";
const TERMINATION_LOG: &str = "/dev/termination-log";
const PAGE: usize = 4096;

/// What is taken, and how fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    total: usize,
    step: usize,
    pause: Duration,
}

impl Plan {
    /// # Errors
    /// A flag that is no quantity or duration, or a step of nothing.
    pub fn of(matches: &ArgMatches) -> Result<Self> {
        let text = |name: &str| matches.get_one::<String>(name).map(String::as_str).unwrap_or_default();
        let bytes = |name: &str| -> Result<usize> {
            let quantity = Quantity::parse(text(name)).with_context(|| format!("--{name}"))?;
            usize::try_from(quantity.value()).with_context(|| format!("--{name}"))
        };
        let pause = GoDuration::parse(text("mem-alloc-sleep")).context("--mem-alloc-sleep")?.to_std();
        let plan = Plan { total: bytes("mem-total")?, step: bytes("mem-alloc-size")?, pause };
        ensure!(plan.step > 0, "--mem-alloc-size: must be more than 0");
        Ok(plan)
    }
}

/// Takes all of it and keeps it.
pub async fn take(plan: Plan) {
    let begin = tokio::time::Instant::now();
    let mut held: Vec<Vec<u8>> = Vec::new();
    for step in 0..plan.total.div_ceil(plan.step) {
        let mut more = vec![0_u8; plan.step.min(plan.total - step * plan.step)];
        more.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1);
        held.push(more);
        // Counted from the beginning, so that a step that took long does not slow down the rest.
        let due = plan.pause.saturating_mul(u32::try_from(step + 1).unwrap_or(u32::MAX));
        tokio::time::sleep_until(begin + due).await;
    }
    std::future::pending::<()>().await;
    drop(held);
}

/// What is said of a SIGTERM: nanoseconds since 1970, in the container's termination message too, which outlives its log.
pub fn say_end() {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let text = format!("SIGTERM at {}", now.as_nanos());
    println!("{text}");
    if let Err(error) = std::fs::write(TERMINATION_LOG, text) {
        eprintln!("agnhost: {TERMINATION_LOG}: {error}");
    }
}

/// How long the end takes.
pub fn end_after() -> Duration {
    let milliseconds = std::env::var(END_AFTER).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    Duration::from_millis(milliseconds)
}
