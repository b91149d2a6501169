//! Where the programs under test come from: `$BULKHEAD_BIN_DIR`, or a build of the workspace this code belongs to.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, bail};

/// Programs of a node, the launcher first.
pub const PROGRAMS: [&str; 6] =
    ["kubelet", "kubelet-volnetd", "kubelet-syncd", "kubelet-evictiond", "kubelet-statusd", "kubelet-ctl"];

/// Processes beside the daemons: some only where a configuration asks for them, and not every earlier version has them.
pub const HELPERS: [&str; 5] =
    ["kubelet-walker", "kubelet-journal", "kubelet-iptables", "kubelet-disks", "kubelet-flexvolume"];

static DIRECTORY: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// The folder that the workspace's Cargo.toml is in.
pub fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap_or_else(|_| PathBuf::from("."))
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace_root().join("target"), PathBuf::from)
}

/// The folder with the programs under test. Without `$BULKHEAD_BIN_DIR` they are built first (development profile), so
/// that `cargo test` alone never tests an old binary.
///
/// # Errors
/// The build failed, or a program is missing from the folder.
pub fn bin_dir() -> Result<PathBuf> {
    DIRECTORY
        .get_or_init(|| {
            let directory = match std::env::var_os("BULKHEAD_BIN_DIR") {
                Some(directory) => PathBuf::from(directory),
                None => programs("dev").map_err(|error| format!("{error:#}"))?,
            };
            complete(directory)
        })
        .clone()
        .map_err(anyhow::Error::msg)
}

/// Takes the programs from this folder from now on.
///
/// # Errors
/// A program is missing there, or some other folder is in use already.
pub fn use_programs(directory: &Path) -> Result<()> {
    DIRECTORY.get_or_init(|| complete(directory.to_owned())).clone().map_err(anyhow::Error::msg)?;
    if bin_dir()? != directory { bail!("programs are taken from {} already", bin_dir()?.display()) } else { Ok(()) }
}

fn complete(directory: PathBuf) -> Result<PathBuf, String> {
    match PROGRAMS.iter().find(|program| !directory.join(program).is_file()) {
        Some(program) => Err(format!("{} has no {program}", directory.display())),
        None => Ok(directory),
    }
}

/// What cargo tells a test or an xtask about its own package, and the compiler that it was built with, must not reach the build of
/// another one.
pub fn forget_own_build(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text == COMPILER {
            command.env_remove(&name);
        }
    }
}

/// What compiles the crates of a workspace in rustc's place (the Cargo book, "Environment variables Cargo reads").
pub const COMPILER: &str = "RUSTC_WORKSPACE_WRAPPER";

/// Builds all programs with a cargo profile, cargo's progress going to this process's standard error.
///
/// # Errors
/// cargo failed.
pub fn programs(profile: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(workspace_root()).args(["build", "--locked", "--bins", "--profile", profile]);
    for program in PROGRAMS.into_iter().chain(HELPERS) {
        command.args(["--package", program]);
    }
    forget_own_build(&mut command);
    if !command.status().context("starting cargo")?.success() {
        bail!("cargo could not build the programs of the node");
    }
    Ok(target_dir().join(if profile == "dev" { "debug" } else { profile }))
}
