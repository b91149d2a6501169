//! kubelet-disks: privileges, then questions until there are none for a while.

use std::process::ExitCode;

use bulkhead_daemon::privileges::Program;
use bulkhead_helper::start;
use bulkhead_ipc::common::DiskRequest;
use kubelet_disks::act::{self, Devices};

/// A check of a large disk holds up none of the others.
const AT_ONCE: usize = 16;

fn main() -> ExitCode {
    let devices = Devices::default();
    start::run(Program::Disks, AT_ONCE, move |question: DiskRequest, pipe| {
        let devices = devices.clone();
        async move { start::give(&pipe, &act::answer(&devices, &question).await) }
    })
}
