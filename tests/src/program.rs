//! How a program of the tests begins and ends.

use std::process::ExitCode;

use anyhow::{Context as _, Result};

/// Runs it in one thread; what went wrong is its last word.
pub fn run(name: &str, program: impl Future<Output = Result<()>>) -> ExitCode {
    let tasks = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting tokio");
    match tasks.and_then(|tasks| tasks.block_on(program)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
