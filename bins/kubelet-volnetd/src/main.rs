//! The privileged helper. What it may do stands in `verbs.rs`; how it starts is the skeleton's story: undumpable,
//! arguments, configuration, logging, passed sockets, capabilities, filter, runtime, setup, ready, serve.

use std::process::ExitCode;

use bulkhead_daemon::{Intended, Spec};
use bulkhead_types::Process;
use kubelet_volnetd::confine;

const SPEC: Spec = Spec {
    process: Process::Volnetd,
    about: "performs mounts, pod directories and cgroups for kubelet-syncd, and passes descriptors",
    privileges: Intended { capabilities: confine::CAPABILITIES, unprivileged_user: false },
    confine: |_config| {
        // What is created gets exactly the modes that the file table names, less what upstream's umask takes.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        confine::apply()?;
        Ok(Vec::new())
    },
};

fn main() -> ExitCode {
    bulkhead_daemon::run(SPEC, kubelet_volnetd::run)
}
