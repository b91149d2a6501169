//! Stands in a daemon's place, or the journal reader's, with exactly its privileges, and tries what that daemon must not be able to do.
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
use bulkhead_sys::notify::Supervisor;

use plan::Plan;
use report::Report;

fn main() -> Result<()> {
    let mut arguments = std::env::args_os();
    let path = PathBuf::from(arguments.next().context("no program name")?);
    let arguments: Vec<String> = arguments.map(|argument| argument.to_string_lossy().into_owned()).collect();
    let value = |name: &str| arguments.iter().position(|one| one == name).and_then(|at| arguments.get(at + 1));
    let name = path.file_name().and_then(|name| name.to_str()).context("a program without a name")?;
    let name = value("--as").map_or(name, String::as_str);
    let Some(program) = Program::ALL.into_iter().find(|one| one.name() == name && *one != Program::Launcher) else {
        bail!("{name} is none that is started: call this by the name of one that is, or with --as");
    };
    // Everything that is opened by path is opened while it still can be.
    let beside = path.with_file_name("intruder.json");
    let plan = Plan::read(&value("--plan").map_or(beside, PathBuf::from))?;
    let config = match program {
        Program::Daemon(_) | Program::Walker => Some(NodeConfig::load(&plan.run_dir.join("config.json"))?),
        // It is none of the daemons' group, and so it cannot read it.
        Program::Journal | Program::Iptables | Program::Disks | Program::Flexvolume | Program::Launcher => None,
    };
    // So is what makes a socket for itself.
    let supervisor = Supervisor::connect().unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let applied = privileges::apply(program, config.as_ref())?;
    let mut report = Report::new(program.name());
    report.note("row", &format!("{applied:?}"));
    // Its supervisor waits for this; in a unit only the main process may say it.
    let _ = supervisor.tell("READY=1");
    // Answered before any child is made: the runtime of the calls to the others is gone by then.
    let given = peers::all(&mut report, program, &plan, runtime)?;
    files::all(&mut report, program, &plan, given);
    kernel::all(&mut report, &plan);
    processes::all(&mut report, program, &plan);
    network::all(&mut report, &plan);
    report.end();
    loop {
        let _ = supervisor.tell("WATCHDOG=1");
        std::thread::sleep(std::time::Duration::from_secs(5));
    }
}
