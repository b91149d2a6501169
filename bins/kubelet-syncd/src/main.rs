//! kubelet-syncd, its work in ten sentences.
//!
//! It starts as its own user without a capability and forbids itself the calls that it will never need. Its socket is
//! answered at once, so that nobody takes a slow start for a dead process. The descriptor broker hands it its state
//! folder, which it locks, and a connection to the container runtime. The runtime is listed; before that,
//! nothing is decided. Then the sources are read: manifests through the broker, a URL by HTTP, the API server by a
//! watch. Each admitted pod gets a pod worker, and each pod worker one piece of work at a time. For a pod, syncd asks
//! volnetd for cgroup, folders and volumes, and makes the runtime agree with the pod's spec, a few starts at a time in
//! order of arrival. From then on events drive everything: PLEG's, those of the sources, and timers. Orphaned pods are
//! killed and cleaned up, but only when all pod sources have synced. A stop of syncd disturbs no pod: the next start
//! continues from what the runtime, the disk and the sources have.

use std::process::ExitCode;

use bulkhead_daemon::Spec;
use bulkhead_types::Process;

fn main() -> ExitCode {
    let spec = Spec {
        process: Process::Syncd,
        about: "decides what runs on the node and makes the container runtime run it",
        before: |_config| {},
        fork_server: None,
    };
    bulkhead_daemon::run(spec, kubelet_syncd::run::run)
}
