//! The newer releases of containerd in a run of all tests: a lane for each, of the tests in which a runtime could show.
//! All tests on one of them: `BULKHEAD_RUNTIME=2.1 cargo xtask test`.

use std::ffi::OsStr;

use anyhow::{Result, bail};
use bulkhead_testkit::{Release, release};

/// A pod's life straight over CRI, what is left behind, and what the node makes of what the runtime says of itself.
const LANE: &str =
    "package(bulkhead-tests) and (test(/^runtime::/) or test(=runtimes::the_node_takes_what_its_runtime_offers))";

/// Runs the lanes, before all tests, so that theirs is the last summary. Whoever has chosen a runtime gets that alone.
/// `run`: the test runner.
///
/// # Errors
/// The lanes that failed, when all have run.
pub fn lanes(environment: &[(&str, &OsStr)], run: impl Fn(&[&str], &[(&str, &OsStr)]) -> Result<()>) -> Result<()> {
    if std::env::var_os(release::VARIABLE).is_some() {
        eprintln!("\n{} is set: all tests run on that containerd, and no others", release::VARIABLE);
        return Ok(());
    }
    let mut failed = Vec::new();
    for release in [Release::V1_7, Release::V2_1] {
        let programs = release.programs(&|line| eprintln!("{line}"))?;
        eprintln!("\ntests on {}", programs.versions());
        let mut environment = environment.to_vec();
        environment.push((release::VARIABLE, OsStr::new(release.name())));
        if let Err(error) = run(&["nextest", "run", "--workspace", "--locked", "-E", LANE], &environment) {
            eprintln!("on {}: {error:#}", programs.versions());
            failed.push(programs.versions());
        }
    }
    if !failed.is_empty() {
        bail!("tests failed on {}", failed.join(" and on "));
    }
    Ok(())
}
