//! From `main` to questions, for helpers of kubelet-volnetd: privileges first, then whatever root asks, until nobody has asked for a
//! while.

use std::collections::BTreeMap;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;

use bulkhead_daemon::Passed;
use bulkhead_daemon::logging::{self, LogFormat};
use bulkhead_daemon::privileges::{self, Program};
use prost::Message;

use crate::serve::{Door, Limits, serve};

/// Without a question for so long, it ends.
const IDLE: Duration = Duration::from_secs(5);

/// The whole life of a helper, whose exit code says how it went. `at_once`: questions that are answered at a time. Its socket comes
/// from the launcher (`questions`) or from systemd (the program's name without `kubelet-`).
pub fn run<Q, A, F>(program: Program, at_once: usize, answer: A) -> ExitCode
where
    Q: Message + Default + 'static,
    A: Fn(Q, OwnedFd) -> F + Clone + 'static,
    F: Future<Output = ()> + 'static,
{
    match answered(program, Limits { at_once, idle: Some(IDLE) }, answer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {}", program.name(), bulkhead_types::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn answered<Q, A, F>(program: Program, limits: Limits, answer: A) -> Result<(), Box<dyn std::error::Error>>
where
    Q: Message + Default + 'static,
    A: Fn(Q, OwnedFd) -> F + Clone + 'static,
    F: Future<Output = ()> + 'static,
{
    privileges::hide_memory()?;
    logging::start(LogFormat::Text, 2, None);
    let mut passed: BTreeMap<String, OwnedFd> = bulkhead_sys::listen_fds::take()?.into_iter().collect();
    for warning in privileges::apply(program, None)?.warnings {
        tracing::warn!("{warning}");
    }
    let name = program.name();
    let socket = name.strip_prefix("kubelet-").unwrap_or(name);
    let door = match (passed.remove(Passed::Questions.name()), passed.remove(socket)) {
        (Some(socket), _) => Door::Passed(socket),
        (None, Some(listener)) => Door::Listener(listener),
        (None, None) => {
            return Err(format!("it is started by `kubelet` or by {name}.socket, which give it a socket").into());
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(serve(door, limits, is_root, answer))?)
}

/// Root's alone. Nothing of /proc is left to look at the peer's cgroup: a process of uid 0 in a pod that reaches the socket needs no
/// helper for what can be asked.
fn is_root(connection: &OwnedFd) -> Result<(), String> {
    match bulkhead_sys::peer::user(connection) {
        Ok(0) => Ok(()),
        Ok(uid) => Err(format!("user {uid} may not ask")),
        Err(error) => Err(error.to_string()),
    }
}

/// Gives the asker its answer.
pub fn give(pipe: &OwnedFd, reply: &impl Message) {
    // It fits into an empty pipe; an asker that has gone needs none.
    if let Err(error) = rustix::io::write(pipe, &reply.encode_to_vec()) {
        tracing::warn!(%error, "the answer could not be given");
    }
}
