//! kubelet-disks: the folder that its fence is to have, privileges, then questions until there are none for a while.

use std::path::Path;
use std::process::ExitCode;

use bulkhead_daemon::privileges::Program;
use bulkhead_helper::start;
use bulkhead_ipc::common::DiskRequest;
use kubelet_disks::act::{self, Devices};
use kubelet_disks::sysfs;

/// A check of a large disk holds up none of the others.
const AT_ONCE: usize = 16;

fn main() -> ExitCode {
    if let Err(error) = sysfs::make_place(Path::new("/")) {
        eprintln!("the folder of iscsiadm's lock cannot be made: {error}");
    }
    let devices = Devices::default();
    start::run(Program::Disks, AT_ONCE, move |question: DiskRequest, pipe| {
        let devices = devices.clone();
        async move { start::give(&pipe, &act::answer(&devices, &question).await) }
    })
}
