//! kubelet-evictiond: arguments, configuration, fence, socket, then statistics until told to stop.

use std::process::ExitCode;

use bulkhead_daemon::{Capability, Intended, Spec};
use bulkhead_types::Process;

fn main() -> ExitCode {
    let spec = Spec {
        process: Process::Evictiond,
        about: "measures the node and its pods",
        // Sizes below pods' folders are behind directories that only root may search; the fence keeps this to listing.
        privileges: Intended { capabilities: &[Capability::CAP_DAC_READ_SEARCH], unprivileged_user: true },
        confine: kubelet_evictiond::confine,
    };
    bulkhead_daemon::run(spec, kubelet_evictiond::run)
}
