//! Stands in a daemon's place, with exactly its privileges, and tries what that daemon must not be able to do.
//!
//! Whoever starts the daemon starts this instead: the launcher from a copy of the program folder, or systemd by a drop-in.
//! So user, capabilities, descriptors and, in a unit, its whole sandbox are the real ones. What a daemon gives up by
//! itself this gives up by the same function. Then each act is tried in a child, and what came of it is told on standard
//! error, a line each: `INTRUDER <daemon> <act> <outcome>`, and `INTRUDER <daemon> end <number>` last. It then stays, as a
//! daemon does, until its supervisor ends it.
//!
//! What it is to try is in `intruder.json` beside the program, or where `--plan` says.

mod files;
mod kernel;
mod network;
mod peers;
mod plan;
mod processes;
mod report;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bulkhead_config::NodeConfig;
use bulkhead_daemon::privileges::{self, Program};
use bulkhead_types::Process;

use plan::Plan;
use report::Report;

fn main() -> Result<()> {
    let mut arguments = std::env::args_os();
    let program = PathBuf::from(arguments.next().context("no program name")?);
    let arguments: Vec<String> = arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    let value = |name: &str| arguments.iter().position(|one| one == name).and_then(|at| arguments.get(at + 1));
    let name = program.file_name().and_then(|name| name.to_str()).context("a program without a name")?;
    let name = value("--as").map_or(name, String::as_str);
    let Some(process) = Process::ALL.into_iter().find(|process| process.name() == name) else {
        bail!("{name} is no daemon: call this by the name of one, or with --as");
    };
    // Everything that is opened by path is opened while it still can be.
    let beside = program.with_file_name("intruder.json");
    let plan = Plan::read(&value("--plan").map_or(beside, PathBuf::from))?;
    let config = NodeConfig::load(&plan.run_dir.join("config.json"))?;
    let applied = privileges::apply(Program::Daemon(process), Some(&config))?;
    let mut report = Report::new(process.name());
    report.note("row", &format!("{applied:?}"));
    // Its supervisor waits for this; in a unit only the main process may say it.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    // Answered before any child is made: the runtime of the calls to the others is gone by then.
    let given = peers::all(&mut report, process, &plan)?;
    files::all(&mut report, process, &plan, given);
    kernel::all(&mut report, &plan);
    processes::all(&mut report, process, &plan);
    network::all(&mut report, &plan);
    report.end();
    loop {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
        std::thread::sleep(std::time::Duration::from_secs(5));
    }
}
