//! What is not tried where it cannot be: said aloud, written down for the summary of the run, and a failure under `CI=true`
//! unless the machine truly cannot.

use std::fmt;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Result, bail};

/// Names the file that every skip of a run is written down in, a line each.
pub const VARIABLE: &str = "BULKHEAD_SKIPS";

/// What is lacking. `tests/README.md` lists those that are let pass under `CI=true`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// Network namespaces, cgroups, mounts and a container runtime need root.
    Root,
    /// A program that a package, or rustup, would bring.
    Program(&'static str),
    /// cargo-deny is built from source, which takes longer than what it checks; its checks do not depend on the machine, so
    /// it is enough that someone has it.
    CargoDeny,
    /// Where the sources came without git's history, or with the end of it, there are no sources of versions before.
    History,
    /// journald runs beside another one only where its folders and hierarchies are there.
    Journald,
    /// The machine in the machine is made for one architecture.
    Architecture,
    /// Upstream's programs are in no package of Debian's.
    ControlPlane,
    /// A kernel without FUSE, or a container that is not given /dev/fuse.
    Fuse,
    /// With one CPU, which is reserved, nobody can have one for itself.
    Cpus,
    /// A kernel without them, or a container that is not given /dev/loop-control.
    LoopDevices,
}

impl Lack {
    /// All that are let pass under `CI=true`.
    pub const LET_PASS: [Self; 7] = [
        Self::CargoDeny,
        Self::History,
        Self::Journald,
        Self::Architecture,
        Self::ControlPlane,
        Self::Fuse,
        Self::Cpus,
    ];

    /// Whether going without is no failure in CI: nothing that could be installed before is lacking.
    fn is_let_pass(self) -> bool {
        Self::LET_PASS.contains(&self)
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => formatter.write_str("it needs root"),
            Self::Program(program) => write!(formatter, "{program} is not installed"),
            Self::CargoDeny => formatter.write_str("cargo-deny is not installed"),
            Self::History => formatter.write_str("the history does not reach back to the version before"),
            Self::Journald => formatter.write_str("no journald can be run here"),
            Self::Architecture => formatter.write_str("the virtual machine is made for x86_64"),
            Self::Fuse => formatter.write_str("there is no /dev/fuse"),
            Self::Cpus => formatter.write_str("there is one CPU, and it is reserved"),
            Self::LoopDevices => formatter.write_str("there are no loop devices"),
            Self::ControlPlane => formatter.write_str("KUBEBUILDER_ASSETS names no such control plane"),
        }
    }
}

/// Leaves `what` out: in a test, its name is enough.
///
/// # Errors
/// Under `CI=true`, unless what lacks is one of [`Lack::LET_PASS`].
pub fn skip(what: &str, lack: Lack) -> Result<()> {
    skip_into(std::env::var_os(VARIABLE).as_deref().map(Path::new), what, lack)
}

/// The same where the file is known otherwise, or there is none.
///
/// # Errors
/// As [`skip`].
pub fn skip_into(record: Option<&Path>, what: &str, lack: Lack) -> Result<()> {
    let ci = std::env::var("CI").is_ok_and(|value| value == "true");
    let line = told(what, lack, ci)?;
    eprintln!("\n!!! SKIPPED: {line} !!!\n");
    if let Some(path) = record {
        // One write of one line: those of tests beside each other do not mix.
        let file = std::fs::File::options().create(true).append(true).open(path);
        if let Err(error) = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes())) {
            eprintln!("it could not be written down: {error}");
        }
    }
    Ok(())
}

/// The same by the name of the running test.
///
/// # Errors
/// As [`skip`].
pub fn skip_this_test(lack: Lack) -> Result<()> {
    skip(std::thread::current().name().unwrap_or("a test"), lack)
}

fn told(what: &str, lack: Lack, ci: bool) -> Result<String> {
    if ci && !lack.is_let_pass() {
        bail!("{what} was to be skipped, and nothing is under CI=true that a machine could have: {lack}");
    }
    Ok(format!("{what}: {lack}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_ci_only_what_the_machine_cannot_is_skipped() {
        for lack in [Lack::Root, Lack::Program("qemu"), Lack::History, Lack::CargoDeny] {
            assert_eq!(told("a test", lack, false).unwrap(), format!("a test: {lack}"));
        }
        for lack in [Lack::Root, Lack::Program("qemu"), Lack::LoopDevices] {
            assert!(told("a test", lack, true).unwrap_err().to_string().starts_with("a test was to be skipped"));
        }
        for lack in Lack::LET_PASS {
            assert!(told("a test", lack, true).is_ok());
        }
    }

    #[test]
    fn what_is_let_pass_is_listed() {
        let path = crate::build::workspace_root().join("tests/README.md");
        let listed = std::fs::read_to_string(path).unwrap();
        for lack in Lack::LET_PASS {
            assert!(listed.contains(&format!("| {lack} |")), "tests/README.md does not list: {lack}");
        }
    }
}
