//! `cargo xtask package`: builds the programs, makes the Debian package of them, and says what is in it and where it is.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use bulkhead_testkit::{build, package};
use clap::ArgMatches;

/// Does it; the path of the package goes to standard output, all else to standard error.
///
/// # Errors
/// The step that failed.
pub fn run(options: &ArgMatches) -> Result<()> {
    let given = |name: &str| options.get_one::<String>(name);
    let programs = match given("programs") {
        Some(folder) => PathBuf::from(folder),
        None => {
            let profile = given("profile").map_or("release", String::as_str);
            eprintln!("building the programs ({profile} profile)");
            build::programs(profile)?
        }
    };
    let wanted = package::Options {
        programs,
        version: given("version").cloned(),
        output: given("output").map(PathBuf::from),
        fast: options.get_flag("fast"),
    };
    let path = package::make(&wanted, &|line| eprintln!("{line}"))?;
    for question in ["--field", "--contents"] {
        let said = Command::new("dpkg-deb").arg(question).arg(&path).output().context("starting dpkg-deb")?;
        eprintln!("{}", String::from_utf8_lossy(&said.stdout));
    }
    println!("{}", path.display());
    Ok(())
}
