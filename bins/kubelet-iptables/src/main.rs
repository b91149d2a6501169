//! kubelet-iptables: privileges, then questions until there are none for a while.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;

use bulkhead_daemon::logging::{self, LogFormat};
use bulkhead_daemon::privileges::{self, Program};
use bulkhead_helper::{Door, Limits, serve};
use bulkhead_ipc::common::family_chains::Family;
use bulkhead_ipc::common::keep_chains_request::Mode;
use bulkhead_ipc::common::{KeepChainsReply, KeepChainsRequest};
use kubelet_iptables::keep;
use prost::Message as _;

/// Without a question for so long, it ends.
const IDLE: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kubelet-iptables: {}", bulkhead_types::chain(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    privileges::hide_memory()?;
    logging::start(LogFormat::Text, 2, None);
    let mut passed: BTreeMap<String, OwnedFd> = bulkhead_sys::listen_fds::take()?.into_iter().collect();
    for warning in privileges::apply(Program::Iptables, None)?.warnings {
        tracing::warn!("{warning}");
    }
    let door = match (passed.remove("questions"), passed.remove("iptables")) {
        (Some(socket), _) => Door::Passed(socket),
        (None, Some(listener)) => Door::Listener(listener),
        (None, None) => {
            return Err("it is started by `kubelet` or by kubelet-iptables.socket, which give it a socket".into());
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // The lock is shared by everybody: two at once would only wait for each other.
    let limits = Limits { at_once: 1, idle: Some(IDLE) };
    Ok(runtime.block_on(serve(door, limits, may_ask, answer))?)
}

/// Root's alone. Nothing of /proc is left to look at the peer's cgroup, and what can be asked for does no harm.
fn may_ask(connection: &OwnedFd) -> Result<(), String> {
    match bulkhead_sys::peer::user(connection) {
        Ok(0) => Ok(()),
        Ok(uid) => Err(format!("user {uid} may not ask")),
        Err(error) => Err(error.to_string()),
    }
}

async fn answer(question: KeepChainsRequest, pipe: OwnedFd) {
    let mut families = Vec::new();
    for family in [Family::Ipv4, Family::Ipv6] {
        families.push(keep::keep(family, keep::program(family), question.mode() == Mode::Anew).await);
    }
    let reply = KeepChainsReply { families }.encode_to_vec();
    // It fits into an empty pipe; an asker that has gone needs none.
    if let Err(error) = rustix::io::write(&pipe, &reply) {
        tracing::warn!(%error, "the answer could not be given");
    }
}
