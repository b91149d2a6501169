//! The privileged helper. What it may do stands in `verbs.rs`; how it starts is the skeleton's story: undumpable,
//! arguments, configuration, logging, passed sockets, capabilities, filter, runtime, setup, ready, serve.

use std::process::ExitCode;

use bulkhead_daemon::Spec;
use bulkhead_types::Process;

const SPEC: Spec = Spec {
    process: Process::Volnetd,
    about: "performs mounts, pod directories and cgroups for kubelet-syncd, and passes descriptors",
    fork_server: Some(kubelet_volnetd::worker::fork_server),
    before: |_config| {
        // What is created gets exactly the modes that the file table names, less what upstream's umask takes.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    },
};

fn main() -> ExitCode {
    bulkhead_daemon::run(SPEC, kubelet_volnetd::run)
}
