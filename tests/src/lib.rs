//! What the tests of this folder share: the decision to run at all.

pub mod api_record;
pub mod channels;
pub mod checklist;
pub mod collector;
pub mod disk;
pub mod followers;
pub mod fuzz;
pub mod golden;
pub mod guide;
pub mod history;
pub mod hostile;
pub mod installed;
pub mod joined;
pub mod journald;
pub mod kubectl;
pub mod metric_families;
pub mod mixed;
pub mod moments;
pub mod pod_resources;
pub mod privileges;
pub mod program;
pub mod registry;
pub mod rotated;
pub mod scrape;
pub mod storage;
pub mod upstream;
pub mod websocket;

use anyhow::Result;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::systemd::MachineBuilder;
use bulkhead_testkit::{Lab, Release, machine};

/// A lab of this test's own, or nothing (said loudly) where there is no root to build one. `$BULKHEAD_RUNTIME` chooses
/// its containerd.
///
/// # Errors
/// We are root and the lab could not be built: that is a failure, never a reason to skip.
pub fn lab() -> Result<Option<Lab>> {
    lab_by(Lab::start, Lab::start_beside)
}

/// The same with a certain containerd, for what not all of them can do.
///
/// # Errors
/// As [`lab`].
pub fn lab_on(release: Release) -> Result<Option<Lab>> {
    lab_by(|| Lab::start_on(release), || Lab::start_beside_on(release))
}

/// The same for a test that measures, or that takes so much of the machine that others would miss their limits: no other has
/// a lab meanwhile.
///
/// # Errors
/// As [`lab`].
pub fn lab_alone() -> Result<Option<Lab>> {
    lab_by(Lab::start_alone, Lab::start_beside)
}

/// The same with a certain containerd.
///
/// # Errors
/// As [`lab`].
pub fn lab_alone_on(release: Release) -> Result<Option<Lab>> {
    lab_by(|| Lab::start_alone_on(release), || Lab::start_beside_on(release))
}

fn lab_by(start: impl FnOnce() -> Result<Lab>, start_beside: impl FnOnce() -> Result<Lab>) -> Result<Option<Lab>> {
    if !machine::is_root() {
        skip_this_test(Lack::Root)?;
        return Ok(None);
    }
    // For whoever works on one test while others run: it does not wait for them, and its timings mean nothing.
    if std::env::var_os("BULKHEAD_BESIDE").is_some() {
        return start_beside().map(Some);
    }
    start().map(Some)
}

/// A machine with systemd to be described and booted, or nothing (said loudly) where there is no root to boot one.
///
/// # Errors
/// There is no root under `CI=true`.
pub fn systemd_machine() -> Result<Option<MachineBuilder>> {
    if !machine::is_root() {
        skip_this_test(Lack::Root)?;
        return Ok(None);
    }
    let builder = MachineBuilder::new();
    Ok(Some(if std::env::var_os("BULKHEAD_BESIDE").is_some() { builder.beside() } else { builder }))
}

/// Repeatable randomness: a small linear generator, its seed from `$BULKHEAD_SEED` or the clock.
#[derive(Debug, Clone)]
pub struct Dice {
    seed: u64,
    state: u64,
}

impl Dice {
    /// From the environment, so that a failure can be repeated.
    pub fn from_environment() -> Self {
        let given = std::env::var("BULKHEAD_SEED").ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(1, |now| now.as_secs())
        });
        Self { seed, state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// A number below `bound`. Constants: Knuth's MMIX generator.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) % bound.max(1)
    }
}
