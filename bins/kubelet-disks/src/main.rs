//! kubelet-disks: privileges, then questions until there are none for a while.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;

use bulkhead_daemon::logging::{self, LogFormat};
use bulkhead_daemon::privileges::{self, Program};
use bulkhead_helper::{Door, Limits, serve};
use bulkhead_ipc::common::DiskRequest;
use kubelet_disks::act::{self, Devices};
use prost::Message as _;

/// Without a question for so long, it ends.
const IDLE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kubelet-disks: {}", bulkhead_types::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    privileges::hide_memory()?;
    logging::start(LogFormat::Text, 2, None);
    let mut passed: BTreeMap<String, OwnedFd> = bulkhead_sys::listen_fds::take()?.into_iter().collect();
    for warning in privileges::apply(Program::Disks, None)?.warnings {
        tracing::warn!("{warning}");
    }
    let door = match (passed.remove("questions"), passed.remove("disks")) {
        (Some(socket), _) => Door::Passed(socket),
        (None, Some(listener)) => Door::Listener(listener),
        (None, None) => {
            return Err("it is started by `kubelet` or by kubelet-disks.socket, which give it a socket".into());
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // A check of a large disk holds up none of the others.
    let limits = Limits { at_once: 16, idle: Some(IDLE) };
    let devices = Devices::default();
    let answer = move |question, pipe| answer(devices.clone(), question, pipe);
    Ok(runtime.block_on(serve(door, limits, may_ask, answer))?)
}

/// Root's alone. A process of uid 0 in a pod that reaches the socket could open the devices itself.
fn may_ask(connection: &OwnedFd) -> Result<(), String> {
    match bulkhead_sys::peer::user(connection) {
        Ok(0) => Ok(()),
        Ok(uid) => Err(format!("user {uid} may not ask")),
        Err(error) => Err(error.to_string()),
    }
}

async fn answer(devices: Devices, question: DiskRequest, pipe: OwnedFd) {
    let reply = act::answer(&devices, &question).await.encode_to_vec();
    // It fits into an empty pipe; an asker that has gone needs none.
    if let Err(error) = rustix::io::write(&pipe, &reply) {
        tracing::warn!(%error, "the answer could not be given");
    }
}
