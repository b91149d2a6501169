//! What has to do with released versions: the record of each one's internal API, and the programs of the one before, which
//! the tests mix with those of now.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{build, previous};

use crate::checks::cargo_program;

/// A revision's files in a folder of their own below target/, which goes when this is dropped.
struct Sources(PathBuf);

impl Sources {
    fn of(revision: &str, paths: &[&str]) -> Result<Self> {
        let name = format!("{revision}.{}", std::process::id());
        let sources = Self(build::target_dir().join("previous").join(name));
        previous::extract(revision, paths, &sources.0)?;
        Ok(sources)
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} stays behind: {error}", self.0.display());
        }
    }
}

/// Writes the record of a version: that of `revision`, which is HEAD unless given. Done when a version is tagged; from then
/// on it is the version before.
///
/// # Errors
/// There is another record of that version, or the revision's API does not compile.
pub fn record_api(revision: Option<&str>) -> Result<()> {
    let revision = previous::resolve(revision.unwrap_or("HEAD"))?;
    let sources = Sources::of(&revision, &["Cargo.toml", "proto"])?;
    let manifest = std::fs::read_to_string(sources.0.join("Cargo.toml"))?;
    let version = manifest.lines().find_map(|line| line.strip_prefix("version = "));
    let version = version.context("Cargo.toml names no version")?.trim_matches('"').to_owned();
    let mut command = Command::new(cargo_program());
    command
        .current_dir(build::workspace_root())
        .args(["run", "--locked", "--quiet", "--package", "bulkhead-tests", "--bin", "record-api", "--"])
        .arg("--proto")
        .arg(sources.0.join("proto"))
        .args(["--into", previous::RECORDS, "--version", &version, "--revision", &revision]);
    ensure!(command.status().context("starting cargo")?.success(), "the record could not be written");
    Ok(())
}

/// Builds the programs of an earlier version, that of the newest record unless given, and prints where they are.
///
/// # Errors
/// There is no such revision in this history, or it does not build.
pub fn previous(revision: Option<&str>) -> Result<()> {
    let revision =
        previous::resolve(&revision.map_or_else(previous::recorded_revision, |given| Ok(given.to_owned()))?)?;
    println!("{}", programs_of(&revision)?.display());
    Ok(())
}

/// The folder with the programs of the version before, for the tests. `None` where the history does not reach back to it:
/// then one test is skipped, and this is told. What cannot be built is told too, and that test fails for want of it.
///
/// # Errors
/// There is no record of a version.
pub fn programs_for_tests() -> Result<Option<PathBuf>> {
    if let Some(folder) = std::env::var_os(previous::VARIABLE) {
        return Ok(Some(folder.into()));
    }
    Ok(programs_if_known(&previous::recorded_revision()?))
}

fn programs_if_known(revision: &str) -> Option<PathBuf> {
    let folder = previous::folder(revision);
    if previous::is_complete(&folder) {
        return Some(folder);
    }
    if let Err(error) = previous::resolve(revision) {
        // Each test that is skipped for it names the cause too.
        eprintln!("\nthe version before is not there: {error:#}");
        return None;
    }
    if let Err(error) = programs_of(revision) {
        eprintln!("\nthe version before could not be built: {error:#}");
    }
    Some(folder)
}

/// The programs of a revision as they are built to be measured, with the same profile as those of now. What is intermediate
/// goes to a folder of its own, where libraries are found again by the next revision; it is not shared with that of now, as
/// [`build_programs`] shares it, because that takes another number of units, and here both are to be built the same.
///
/// # Errors
/// There is no such revision in this history, or it does not build.
pub fn programs_to_measure(revision: &str, profile: &str) -> Result<PathBuf> {
    let revision = previous::resolve(revision)?;
    let folder = previous::folder(&format!("{revision}.{profile}"));
    if !previous::is_complete(&folder) {
        eprintln!("building {revision} ({profile} profile)");
        let sources = Sources::of(&revision, &[])?;
        let target = previous::folder("measured");
        let mut command = Command::new(cargo_program());
        command.current_dir(&sources.0).args(["build", "--locked", "--workspace", "--profile", profile]);
        command.args(previous::programs().flat_map(|program| ["--bin", program]));
        command.env("CARGO_TARGET_DIR", &target);
        build::forget_own_build(&mut command);
        ensure!(command.status().context("starting cargo")?.success(), "{revision} does not build");
        let built = target.join(if profile == "dev" { "debug" } else { profile });
        put_in_place(&built, &sources.0, &folder)?;
    }
    Ok(folder)
}

/// The programs of a revision, which are built once and then kept.
fn programs_of(revision: &str) -> Result<PathBuf> {
    let folder = previous::folder(revision);
    if !previous::is_complete(&folder) {
        eprintln!("\nbuilding the version before, {revision}");
        let sources = Sources::of(revision, &[])?;
        build_programs(&sources.0, &folder).with_context(|| revision.to_owned())?;
    }
    Ok(folder)
}

/// Builds the programs of a revision into a folder, where they appear all at once.
///
/// What third parties wrote is the same for both versions mostly, so it is built once: the intermediate results go to where
/// this workspace's are, and features are worked out as for its tests (`--workspace`, and `--examples` of which there are
/// none, but which bring in what only tests depend on). The crates of the workspace themselves must not be shared. Cargo
/// names what it builds of them after the path within the workspace, which is the same for both, and would take the one for
/// the other: so each is told another number of units than any profile of ours has, and becomes another thing.
/// The environment stays that of the main build, names of this package included: a build script may ask for any of it (ring's
/// does), and would make all that depends on it anew for each of the two.
/// Cargo before 1.91 knows no other folder for what is intermediate, and builds everything again.
fn build_programs(sources: &Path, folder: &Path) -> Result<()> {
    let target = sources.join("target");
    let mut command = Command::new(cargo_program());
    command.current_dir(sources).args(["build", "--locked", "--workspace", "--examples"]);
    command.args(previous::programs().flat_map(|program| ["--bin", program]));
    // What third parties wrote is only found again where it was built with the same settings.
    let manifest = std::fs::read_to_string(build::workspace_root().join("Cargo.toml")).context("reading Cargo.toml")?;
    for setting in settings(&manifest) {
        command.arg("--config").arg(setting);
    }
    let lock = std::fs::read_to_string(sources.join("Cargo.lock")).context("reading its Cargo.lock")?;
    for package in own_packages(&lock) {
        for setting in ["codegen-units=17", "debug=0", "incremental=false"] {
            command.arg("--config").arg(format!("profile.dev.package.{package}.{setting}"));
        }
    }
    command.env("CARGO_TARGET_DIR", &target);
    if std::env::var_os("CARGO_BUILD_BUILD_DIR").is_none() {
        command.env("CARGO_BUILD_BUILD_DIR", build::target_dir());
    }
    ensure!(command.status().context("starting cargo")?.success(), "cargo failed");
    put_in_place(&target.join("debug"), sources, folder)
}

/// Copies the programs from where they were built to `folder`, where they appear all at once.
fn put_in_place(built: &Path, sources: &Path, folder: &Path) -> Result<()> {
    let complete = sources.join("programs");
    std::fs::create_dir(&complete)?;
    for program in previous::programs() {
        let built = built.join(program);
        std::fs::copy(&built, complete.join(program)).with_context(|| built.display().to_string())?;
    }
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::rename(&complete, folder).with_context(|| folder.display().to_string())
}

/// The packages of a Cargo.lock that come from nowhere else: those of the workspace.
fn own_packages(lock: &str) -> Vec<&str> {
    let packages = lock.split("[[package]]").skip(1);
    let own = packages.filter(|package| !package.lines().any(|line| line.starts_with("source = ")));
    own.filter_map(|package| package.lines().find_map(|line| line.strip_prefix("name = ")))
        .map(|name| name.trim_matches('"'))
        .collect()
}

/// The settings of the development profile of a Cargo.toml, those of single packages too, as cargo's `--config` takes them.
fn settings(manifest: &str) -> Vec<String> {
    let tables =
        manifest.split("\n[").filter(|table| table.starts_with("profile.dev]") || table.starts_with("profile.dev."));
    tables
        .filter_map(|table| table.split_once(']'))
        .flat_map(|(name, rest)| {
            let settings = rest.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
            settings.filter_map(|line| line.split_once(" = ")).map(move |(key, value)| format!("{name}.{key}={value}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{own_packages, programs_if_known, settings};

    #[test]
    fn settings_of_the_development_profile_are_found() {
        let manifest = "[profile.dev]\nopt-level = 0\n\n[profile.dev.package.h2]\nopt-level = 1\n\n[profile.dev.package.tests]\n\
                        debug = \"line-tables-only\"\n\n[profile.devel]\ndebug = 0\n\n[profile.dev.package.tokio]\n# why = because\n\
                        opt-level = 2\n\n[profile.release]\nopt-level = 3\n";
        let manifest = format!("[workspace]\nresolver = \"3\"\n\n{manifest}");
        let found = settings(&manifest);
        assert_eq!(
            found,
            [
                "profile.dev.opt-level=0",
                "profile.dev.package.h2.opt-level=1",
                "profile.dev.package.tests.debug=\"line-tables-only\"",
                "profile.dev.package.tokio.opt-level=2"
            ]
        );
    }

    #[test]
    fn without_the_history_there_is_nothing_to_build() {
        assert_eq!(programs_if_known(&"0".repeat(40)), None);
    }

    #[test]
    fn packages_without_a_source_are_the_workspaces() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1\"\nsource = \"registry\"\ndependencies = [\n \"b\",\n]\n\n\
                    [[package]]\nname = \"b\"\nversion = \"1\"\n";
        assert_eq!(own_packages(lock), ["b"]);
    }
}
