//! kubelet-ctl: the operator's window into a node.
//!
//! # Serves / calls
//! Nothing / the read-only methods of the four processes, over their sockets. Works without an API server and without
//! a container runtime; whatever it shows, `grpcurl` can show too.
//!
//! # Privileges
//! None of its own. The sockets' folder is for root and the daemons, so it is run as root, and each process checks it
//! like any other peer.
//!
//! # Security
//! Messages of containers end up on a terminal: control characters are shown escaped, in every table.
//!
//! # State
//! None.
//!
//! # When it fails
//! Exit code 1: not found, or not healthy. 2: wrong command line. 3: a process does not answer; the message names it,
//! its socket, and what to look at. 4: `privileges` found a process that is not as the privilege map has it.
//!
//! # Known gaps
//! None.

mod age;
mod amount;
mod audit;
mod cgroups;
mod cli;
mod connect;
mod events;
mod health;
mod images;
mod instance;
mod output;
mod plot;
mod plugins;
mod pods;
mod pressure;
mod privileges;
mod resources;
mod stats;
mod table;
mod view;
mod volumes;

use std::ffi::OsString;
use std::io::Write;

pub use cli::command;
pub use instance::{Instance, InstanceError};

use crate::connect::ConnectError;
use crate::output::{Format, Printer};

/// How a run of the command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    Success = 0,
    /// What was asked for is not there, or the node is not healthy.
    NotFound = 1,
    Usage = 2,
    /// A process does not answer, or something cannot be seen (not root).
    Unreachable = 3,
    /// A process is not as the privilege map has it.
    Differs = 4,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        std::process::ExitCode::from(exit as u8)
    }
}

/// Why a command could not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    ConnectError(#[from] ConnectError),
    #[error("{0}")]
    Instance(#[from] InstanceError),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Usage(&'static str),
    #[error("failed to write the answer: {0}")]
    Output(#[from] std::io::Error),
    #[error("failed to write the answer as {format}: {problem}")]
    Encode { format: &'static str, problem: String },
}

impl Failure {
    fn exit(&self) -> Exit {
        match self {
            Failure::ConnectError(trouble) if trouble.unreachable() => Exit::Unreachable,
            Failure::Instance(_) => Exit::Unreachable,
            Failure::Usage(_) => Exit::Usage,
            _ => Exit::NotFound,
        }
    }
}

/// Runs the command line, writing to `out` and complaining to `err`.
pub async fn run(args: impl IntoIterator<Item = OsString>, out: &mut dyn Write, err: &mut dyn Write) -> Exit {
    let matches = match cli::command().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => {
            // Help and version are asked for, the rest is a mistake. A closed pipe is nobody's fault.
            let text = error.render();
            let _ = if error.use_stderr() { write!(err, "{text}") } else { write!(out, "{text}") };
            return if error.use_stderr() { Exit::Usage } else { Exit::Success };
        }
    };
    match dispatch(&matches, out, err).await {
        Ok(exit) => exit,
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => Exit::Success,
        Err(failure) => {
            let _ = writeln!(err, "kubelet-ctl: {failure}");
            failure.exit()
        }
    }
}

async fn dispatch(matches: &clap::ArgMatches, out: &mut dyn Write, err: &mut dyn Write) -> Result<Exit, Failure> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(Exit::Usage) };
    if name == "completion" {
        cli::completion(matches, out)?;
        return Ok(Exit::Success);
    }
    // Not every command has every option.
    let text = |id: &str| matches.try_get_one::<String>(id).ok().flatten().map(String::as_str);
    let instance = match text("vsock") {
        Some(_) if name == "privileges" => {
            // The map is compared with /proc and the rendered configuration, and here those are another machine's.
            return Err(Failure::Usage(
                "privileges are compared on the machine itself: run this there, without --vsock",
            ));
        }
        Some(address) => Instance::over_vsock(address)?,
        None => Instance::find(text("run-dir"), text("root-dir"), std::path::Path::new("/run"))?,
    };
    let mut printer = Printer::new(Format::of(text("output").unwrap_or("table")), out, err);
    let namespace = text("namespace");
    match name {
        "pods" if matches.get_flag("watch") => pods::watch(&instance, namespace, &mut printer).await,
        "pods" => pods::list(&instance, namespace, &mut printer).await,
        "pod" => pods::one(&instance, namespace, text("name").unwrap_or_default(), &mut printer).await,
        "volumes" => volumes::list(&instance, namespace, &mut printer).await,
        "cgroups" => cgroups::list(&instance, namespace, &mut printer).await,
        "health" => health::show(&instance, &mut printer).await,
        "privileges" => privileges::show(&instance, matches.get_flag("detail"), &mut printer).await,
        "stats" => stats::show(&instance, namespace, &mut printer).await,
        "images" => images::show(&instance, &mut printer).await,
        "resources" => resources::show(&instance, &mut printer).await,
        "plugins" => plugins::show(&instance, &mut printer).await,
        "pressure" => pressure::show(&instance, &mut printer).await,
        "audit" => {
            let wanted = audit::Wanted {
                pod: text("pod"),
                verb: text("verb"),
                failed: matches.get_flag("failed"),
                newest: matches.get_one::<u32>("newest").copied().unwrap_or(0),
                follow: matches.get_flag("follow"),
            };
            audit::show(&instance, wanted, &mut printer).await
        }
        "events" => events::list(&instance, namespace, &mut printer).await,
        _ => Ok(Exit::Usage),
    }
}
