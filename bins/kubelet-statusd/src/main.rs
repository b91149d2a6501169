//! kubelet-statusd: arguments, configuration, filter, sockets, then answers until SIGTERM.

use std::process::ExitCode;

use bulkhead_daemon::Spec;
use bulkhead_types::Process;

fn main() -> ExitCode {
    let spec = Spec {
        process: Process::Statusd,
        about: "writes to the API server what the node is, and serves its HTTPS",
        before: |_config| {},
        fork_server: None,
    };
    bulkhead_daemon::run(spec, kubelet_statusd::run)
}
