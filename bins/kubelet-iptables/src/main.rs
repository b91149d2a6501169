//! kubelet-iptables: privileges, then questions until there are none for a while.

use std::process::ExitCode;

use bulkhead_daemon::privileges::Program;
use bulkhead_helper::start;
use bulkhead_ipc::common::family_chains::Family;
use bulkhead_ipc::common::keep_chains_request::Mode;
use bulkhead_ipc::common::{KeepChainsReply, KeepChainsRequest};
use kubelet_iptables::keep;

/// The lock is shared by everybody: two at once would only wait for each other.
const AT_ONCE: usize = 1;

fn main() -> ExitCode {
    start::run(Program::Iptables, AT_ONCE, |question: KeepChainsRequest, pipe| async move {
        let mut families = Vec::new();
        for family in [Family::Ipv4, Family::Ipv6] {
            families.push(keep::keep(family, keep::program(family), question.mode() == Mode::Anew).await);
        }
        start::give(&pipe, &KeepChainsReply { families });
    })
}
