//! What became of one run.

use std::path::Path;

use anyhow::{Context as _, Result};
use bulkhead_simulation_kernel as kernel;
use parking_lot::Mutex;
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
    /// Of a run that told nothing.
    pub(crate) fn lost(schedule: &Schedule, why: &str) -> Self {
        Outcome {
            seed: schedule.seed,
            broken: vec![format!("no-end: {why}")],
            story: Vec::new(),
            picture: Vec::new(),
            coverage: Coverage::default(),
            lives: 0,
            turns: 0,
        }
    }

    /// The name of the check that failed.
    pub fn check(&self) -> Option<&str> {
        self.broken.first().and_then(|broken| broken.split(':').next())
    }
}

static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// The first panic since this was asked last: a task that ends so ends alone, and nobody else hears of it.
pub(crate) fn take_panic() -> Option<String> {
    PANIC.lock().take()
}

fn note_panics() {
    std::panic::set_hook(Box::new(|info| {
        eprintln!("{info}");
        PANIC.lock().get_or_insert_with(|| info.to_string());
    }));
}

/// A folder for a run's sockets and files; it goes with the value. Files are synced to the disk as on a node, which takes no time in
/// memory.
///
/// # Errors
/// It cannot be made.
pub fn folder() -> Result<tempfile::TempDir> {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("bulkhead-simulation-").tempdir_in(place).context("making a folder")
}

/// Runs a schedule in this process, which can do that once. `folder`: an empty one.
///
/// # Errors
/// The simulation itself does not work.
pub fn of(schedule: &Schedule, folder: &Path) -> Result<Outcome> {
    note_panics();
    kernel::begin(schedule.seed);
    let world = Node::new(schedule, folder)?.run()?;
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
