//! `kubelet-journal`: reads the machine's journal for kubelet-statusd, where `enableSystemLogQuery` is on. It exists because
//! the journal is read by a program, and no daemon may start one.
//!
//! # Serves / calls      questions from one inherited socket, whose other end kubelet-statusd alone has; calls nobody
//! # Privileges          a user of its own and the group that the journal belongs to; no capability, no new ones
//! # Security            a question is typed, checked here again, and becomes arguments of one fixed program; no shell, no
//!                       environment, no path. The answer goes from that program into the asker's pipe: nothing of it is read here
//! # State               none
//! # When it fails       the asker's pipe ends; the launcher starts it again

mod argv;
mod serve;

use std::process::ExitCode;

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
    bulkhead_sys::process::set_not_dumpable()?;
    let socket = bulkhead_sys::listen_fds::take()?.into_iter().find(|(name, _)| name == "questions");
    let (_, socket) = socket.ok_or("it is started by `kubelet`, which gives it a socket")?;
    bulkhead_sys::process::keep_only(&[])?;
    bulkhead_sys::process::set_no_new_privs()?;
    confine()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve::serve(socket, serve::JOURNALCTL))?;
    Ok(())
}

/// What is left to it and to the program that it starts: files, pipes, Unix sockets.
fn confine() -> Result<(), Box<dyn std::error::Error>> {
    use bulkhead_sys::seccomp::{Deny, Family, restrict};
    let denied: Vec<Deny> = Deny::ALL.into_iter().filter(|deny| *deny != Deny::Exec).collect();
    Ok(restrict(&denied, Some(&[Family::Unix]))?)
}
