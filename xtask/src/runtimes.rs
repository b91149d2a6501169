//! The newer releases of containerd in a run of all tests: a lane for each, of the tests in which a runtime could show.
//! All tests on one of them: `BULKHEAD_RUNTIME=2.1 cargo xtask test`.

use std::ffi::OsStr;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use bulkhead_testkit::{Release, build, release};

use crate::checks::{BUILD, cargo_program};

/// A pod's life straight over CRI and what is left behind, what the node makes of what the runtime says of itself, all
/// recorded pods, and lives of pods in a cluster: as they should go, with init containers and sidecars, and as they fail.
const LANE: &str = "package(bulkhead-tests) and (test(/^runtime::/) \
    or test(=runtimes::the_node_takes_what_its_runtime_offers) \
    or test(=runtimes::an_end_is_seen_at_once_by_the_next_process_that_decides) \
    or test(=golden::pods_live_as_under_upstreams_kubelet) \
    or test(=cluster_life::a_pod_is_scheduled_runs_and_goes_gracefully) \
    or test(=init_containers::init_containers_start_in_order_and_sidecars_stop_in_reverse) \
    or test(=termination::why_containers_end_or_do_not_start))";

/// What labs run on unless a test asks for another: the choice of the environment, with its versions.
///
/// # Errors
/// The choice is none, or it cannot be had here.
pub fn chosen() -> Result<String> {
    Ok(Release::from_environment()?.programs(&|line| eprintln!("{line}"))?.versions())
}

/// A lane at work, its output in a file: two at once would mix theirs.
struct Lane {
    versions: String,
    child: Child,
    output: PathBuf,
}

impl Lane {
    fn start(release: &Release, environment: &[(&str, &OsStr)]) -> Result<Self> {
        let versions = release.programs(&|line| eprintln!("{line}"))?.versions();
        let output = build::target_dir().join(format!("lane-{}.output", release.name()));
        let file = File::create(&output).with_context(|| format!("creating {}", output.display()))?;
        let arguments = [&["nextest", "run", "-E", LANE], BUILD].concat();
        eprintln!("\n+ cargo {} (on {versions}; its output follows)", arguments.join(" "));
        let mut command = Command::new(cargo_program());
        command.current_dir(build::workspace_root()).args(arguments).envs(environment.iter().copied());
        command.env(release::VARIABLE, release.name()).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        Ok(Self { versions, child: command.spawn().context("starting cargo")?, output })
    }

    /// Waits for its end and prints what it said; gives the versions of the runtime where a test failed.
    fn finish(mut self) -> Result<Option<String>> {
        let status = self.child.wait().context("waiting for cargo")?;
        eprintln!("\ntests on {}\n{}", self.versions, std::fs::read_to_string(&self.output)?);
        Ok((!status.success()).then_some(self.versions))
    }
}

/// Runs the lanes, at once, before all tests, so that theirs is the last summary. Whoever has chosen a runtime gets that alone.
///
/// # Errors
/// The lanes that failed, when all have run.
pub fn lanes(environment: &[(&str, &OsStr)]) -> Result<()> {
    if std::env::var_os(release::VARIABLE).is_some() {
        eprintln!("\n{} is set: all tests run on that containerd, and no others", release::VARIABLE);
        return Ok(());
    }
    let lanes: Vec<Result<Lane>> =
        [Release::V1_7, Release::V2_1].iter().map(|release| Lane::start(release, environment)).collect();
    let ended: Vec<Result<Option<String>>> = lanes.into_iter().map(|lane| lane.and_then(Lane::finish)).collect();
    let failed: Vec<String> = ended.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
    if !failed.is_empty() {
        bail!("tests failed on {}", failed.join(" and on "));
    }
    Ok(())
}
