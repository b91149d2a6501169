//! `kubelet-journal`: reads the machine's journal for kubelet-statusd, where `enableSystemLogQuery` is on. It exists because
//! the journal is read by a program, and no daemon may start one.
//!
//! # Serves / calls      questions from one inherited socket, whose other end kubelet-statusd alone has, or (as a unit) from
//!                       connections that kubelet-statusd alone may make; calls nobody
//! # Privileges          a user of its own and the group that the journal belongs to; no capability, no new ones
//! # Security            a question is typed, checked here again, and becomes arguments of one fixed program; no shell, no
//!                       environment, no path. The answer goes from that program into the asker's pipe: nothing of it is read here
//! # State               none
//! # When it fails       the asker's pipe ends; the launcher starts it again, or systemd with the next question

mod answer;
mod argv;
mod unit;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;

use answer::{JOURNALCTL, answer};
use bulkhead_daemon::Passed;
use bulkhead_daemon::privileges::{self, Program};
use bulkhead_helper::{Door, Limits, serve};

/// Runs of journalctl at once; more wait in the socket.
const RUNS_MAX: usize = 4;
/// As a unit, without a question for so long, it ends.
const IDLE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kubelet-journal: {}", bulkhead_types::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    privileges::hide_memory()?;
    let mut passed: BTreeMap<String, OwnedFd> = bulkhead_sys::listen_fds::take()?.into_iter().collect();
    let (questions, listener) = (passed.remove(Passed::Questions.name()), passed.remove(Passed::Journal.name()));
    for left_out in privileges::apply(Program::Journal, None)?.landlock_left_out {
        // /var/log/journal and the like: journalctl does without as well.
        eprintln!("kubelet-journal: {left_out}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match (questions, listener) {
            (Some(socket), _) => {
                let limits = Limits { at_once: RUNS_MAX, idle: None };
                serve(Door::Passed(socket), limits, |_| Ok(()), |query, pipe| answer(query, pipe, JOURNALCTL)).await?;
            }
            (None, Some(listener)) => {
                let ours = bulkhead_sys::peer::own_cgroups()?;
                let limits = Limits { at_once: RUNS_MAX, idle: Some(IDLE) };
                let may_ask = |connection: &OwnedFd| unit::may_ask(connection, &ours);
                let answer = |query, pipe| answer(unit::with_all_units(query), pipe, JOURNALCTL);
                serve(Door::Listener(listener), limits, may_ask, answer).await?;
            }
            (None, None) => {
                return Err("it is started by `kubelet` or by kubelet-journal.socket, which give it a socket".into());
            }
        }
        Ok(())
    })
}
