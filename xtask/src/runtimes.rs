//! The newer releases of containerd in a run of all tests: a lane for each, of the tests in which a runtime could show.
//! All tests on one of them: `BULKHEAD_RUNTIME=2.1 cargo xtask test`.

use std::ffi::OsStr;

use anyhow::{Result, bail};
use bulkhead_testkit::{Release, release};

/// A pod's life straight over CRI and what is left behind, what the node makes of what the runtime says of itself, all
/// recorded pods, and lives of pods in a cluster: as they should go, with init containers and sidecars, and as they fail.
const LANE: &str = "package(bulkhead-tests) and (test(/^runtime::/) \
    or test(=runtimes::the_node_takes_what_its_runtime_offers) \
    or test(=runtimes::an_end_is_seen_at_once_by_the_next_process_that_decides) \
    or test(=golden::pods_live_as_under_upstreams_kubelet) \
    or test(=cluster_life::a_pod_is_scheduled_runs_and_goes_gracefully) \
    or test(=init_containers::in_order_up_and_in_reverse_down) \
    or test(=termination::why_containers_end_or_do_not_start))";

/// What labs run on unless a test asks for another: the choice of the environment, with its versions.
///
/// # Errors
/// The choice is none, or it cannot be had here.
pub fn chosen() -> Result<String> {
    Ok(Release::from_environment()?.programs(&|line| eprintln!("{line}"))?.versions())
}

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
