//! Many runs, each in a process of its own, so that nothing of one is left in the next; and the shortest schedule that still fails.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use parking_lot::Mutex;

use crate::coverage::Coverage;
use crate::mutants::VARIABLE;
use crate::outcome::{self, Outcome};
use crate::schedule::{Family, SETTLING, Schedule};

/// The word with which this program runs one schedule, given on its standard input, in a folder, and prints what became of it.
pub const ONE: &str = "one";
/// A run that takes more of a processor goes round in a circle in which no time passes.
const PATIENCE: Duration = Duration::from_secs(120);
/// One that takes none of it for so long waits for what does not come.
const STILL: Duration = Duration::from_secs(600);
/// So often it is looked how much it took.
const LOOK: Duration = Duration::from_secs(5);
/// Of a second, as the kernel counts the time of processes (USER_HZ, the same on all machines that this runs on).
const TICKS: u64 = 100;

/// Runs a schedule in a process of its own. `program`: this one, or one with mutants in it, of which one may be put in force.
///
/// # Errors
/// It cannot be started, or says nothing that can be read.
pub fn run(program: &Path, schedule: &Schedule, mutant: Option<&str>) -> Result<Outcome> {
    // It goes also when the run has to be ended.
    let folder = outcome::folder()?;
    let mut child = Command::new(program)
        .arg(ONE)
        .arg(folder.path())
        .envs(mutant.map(|mutant| (VARIABLE, mutant)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(&serde_json::to_vec(schedule)?).context("passing the schedule")?;
    }
    let mut output = child.stdout.take().context("no output")?;
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        output.read_to_end(&mut text).map(|_| text)
    });
    let ended = wait(&mut child)?;
    let text = reader.join().map_err(|_| anyhow::anyhow!("the reader has panicked"))??;
    match serde_json::from_slice(&text) {
        Ok(outcome) => Ok(outcome),
        Err(_) => Ok(Outcome::lost(schedule, if ended { "it ended without a word" } else { "it takes for ever" })),
    }
}

/// False: it had to be ended.
fn wait(child: &mut Child) -> Result<bool> {
    let mut look = Instant::now() + LOOK;
    let (mut before, mut moved) = (Duration::ZERO, Instant::now());
    loop {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        // Not by the clock alone: beside other work it may have to wait for minutes.
        if Instant::now() >= look {
            let taken = processor_time(&format!("/proc/{}/stat", child.id()), OWN).unwrap_or(before);
            if taken > before {
                (before, moved) = (taken, Instant::now());
            }
            if taken > PATIENCE || moved.elapsed() > STILL {
                child.kill()?;
                child.wait()?;
                return Ok(false);
            }
            look = Instant::now() + LOOK;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// How long all runs that have ended took of processors: what they took, however many others wait for the same ones.
#[must_use]
pub fn taken() -> Duration {
    processor_time("/proc/self/stat", CHILDREN).unwrap_or_default()
}

/// Of /proc/<pid>/stat, counted from the field after the program's name: utime and stime, and the same of children that have ended.
const OWN: [usize; 2] = [11, 12];
const CHILDREN: [usize; 2] = [13, 14];

/// How long a process has run, not counting when it waited. None: it is gone.
fn processor_time(stat: &str, fields: [usize; 2]) -> Option<Duration> {
    let text = std::fs::read_to_string(stat).ok()?;
    // The program's name may have blanks, and ends with the last parenthesis.
    let (_, rest) = text.rsplit_once(')')?;
    let ticks = |field: usize| rest.split_whitespace().nth(field)?.parse::<u64>().ok();
    let all = fields.into_iter().try_fold(0_u64, |all, field| Some(all.saturating_add(ticks(field)?)))?;
    Some(Duration::from_millis(all.saturating_mul(1000 / TICKS)))
}

/// What many runs came to.
#[derive(Debug, Default)]
pub struct Found {
    pub runs: u64,
    /// On the clock of the nodes.
    pub lasted: Duration,
    pub lives: u64,
    pub coverage: Coverage,
    /// By seed.
    pub failed: Vec<Outcome>,
}

/// Which seeds are run, and how.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// None: all families, in turn.
    pub only: Option<Family>,
    pub first: u64,
    /// None: until the time is over.
    pub count: Option<u64>,
    pub until: Option<Instant>,
    /// Until all runs of this process together have [`taken`] so much of processors.
    pub most: Option<Duration>,
    pub jobs: usize,
    /// No more are begun after so many failures.
    pub failures: usize,
}

/// Runs seeds one after the other, some at a time, and tells `progress` of each.
///
/// # Errors
/// A run cannot be made.
pub fn search(program: &Path, plan: Plan, mutant: Option<&str>, progress: impl Fn(&Found) + Sync) -> Result<Found> {
    let next = AtomicU64::new(plan.first);
    let found = Mutex::new(Found::default());
    let work = || -> Result<()> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let over = plan.count.is_some_and(|count| seed >= plan.first.saturating_add(count));
            let over = over || plan.most.is_some_and(|most| taken() >= most);
            if over || plan.until.is_some_and(|until| Instant::now() >= until) {
                return Ok(());
            }
            let schedule = Schedule::of(seed, plan.only);
            let outcome = run(program, &schedule, mutant)?;
            let mut found = found.lock();
            found.runs += 1;
            found.lasted += schedule.calm() + SETTLING;
            found.lives += outcome.lives;
            found.coverage.add(&outcome.coverage);
            if outcome.check().is_some() {
                found.failed.push(outcome);
            }
            progress(&found);
            if found.failed.len() >= plan.failures {
                return Ok(());
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..plan.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| bail!("a run has panicked")))
    })?;
    let mut found = found.into_inner();
    found.failed.sort_by_key(|outcome| outcome.seed);
    Ok(found)
}

/// Leaves out of the schedule what the failure of this check does not need: halves, then quarters, down to single steps, until none can
/// be left out any more.
///
/// # Errors
/// A run cannot be made.
pub fn shrink(program: &Path, schedule: &Schedule, check: &str, mutant: Option<&str>) -> Result<(Schedule, Outcome)> {
    let mut best = (schedule.clone(), run(program, schedule, mutant)?);
    let mut size = schedule.steps.len().div_ceil(2).max(1);
    loop {
        let mut start = 0;
        let mut smaller = false;
        while start < best.0.steps.len() {
            let end = (start + size).min(best.0.steps.len());
            let dropped: Vec<usize> = (start..end).collect();
            let candidate = best.0.without(&dropped);
            let outcome = run(program, &candidate, mutant)?;
            if outcome.check() == Some(check) {
                best = (candidate, outcome);
                smaller = true;
            } else {
                start = end;
            }
        }
        match (size, smaller) {
            (1, false) => return Ok(best),
            (1, true) => {}
            _ => size = size.div_ceil(2),
        }
    }
}
