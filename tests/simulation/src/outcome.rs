//! What became of one run.

use std::path::Path;

use anyhow::{Context as _, Result};
use bulkhead_simulation_kernel as kernel;
use serde::{Deserialize, Serialize};

use crate::coverage::Coverage;
use crate::node::Node;
use crate::schedule::Schedule;

/// What one run came to, as a program tells it to the one that started it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Outcome {
    pub seed: u64,
    /// `check: what`; none: all checks held.
    pub broken: Vec<String>,
    pub story: Vec<String>,
    /// What there was at the end.
    pub picture: Vec<String>,
    pub coverage: Coverage,
    /// Pods that were made.
    pub lives: u64,
    /// Turns of the processes together.
    pub turns: u64,
}

impl Outcome {
    /// The name of the check that failed.
    pub fn check(&self) -> Option<&str> {
        self.broken.first().and_then(|broken| broken.split(':').next())
    }
}

/// Runs a schedule in this process, which can do that once.
///
/// # Errors
/// The simulation itself does not work.
pub fn of(schedule: &Schedule) -> Result<Outcome> {
    // Files are synced to the disk as on a node; in memory that takes no time.
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = tempfile::Builder::new().prefix("bulkhead-simulation-").tempdir_in(place).context("making a folder")?;
    kernel::begin(schedule.seed);
    let world = Node::new(schedule, folder.path())?.run()?;
    let world = world.lock();
    Ok(Outcome {
        seed: schedule.seed,
        broken: world.broken.clone(),
        story: world.story.clone(),
        picture: world.picture(),
        coverage: world.coverage.clone(),
        lives: world.lives,
        turns: world.steps,
    })
}
