//! kubelet-evictiond: arguments, configuration, fence, socket, then statistics until SIGTERM.

use std::process::ExitCode;

use bulkhead_daemon::Spec;
use bulkhead_types::Process;

fn main() -> ExitCode {
    let spec = Spec {
        process: Process::Evictiond,
        about: "measures the node and its pods, has pods evicted, images removed and logs rotated",
        before: |_config| {},
        fork_server: None,
    };
    bulkhead_daemon::run(spec, kubelet_evictiond::run)
}
