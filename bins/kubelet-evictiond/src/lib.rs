//! kubelet-evictiond: measures the node and its pods for whoever asks.
//!
//! # Serves / calls
//! `kubelet.evictiond.v1.Stats` on its socket. Calls kubelet-syncd for the pods and the runtime's image folder, and
//! kubelet-volnetd's broker for its state folder.
//!
//! # Privileges
//! Its own user and CAP_DAC_READ_SEARCH alone: pods' folders are behind directories that only root may search.
//!
//! # Security
//! The capability would read every file of the machine, so it is fenced (see [`confine`]): Landlock leaves listing of
//! directories below `<root>/pods` and the pod log folder, and reading of files in /proc and /sys; the system call
//! filter takes away opening by handle, which Landlock does not see, and every socket family but Unix. What pods
//! control (names, depth and number of files in their volumes) is walked relative to open directories, no link
//! followed, no file system border crossed, with a bound on depth and entries; a volume that is a mount of its own is
//! not entered at all, because an open directory would keep it from being unmounted.
//!
//! # State
//! None on disk. In memory the last sample, for rates, and disk usage for a minute.
//!
//! # When it fails
//! Without kubelet-syncd the node's own statistics go on and `pods_known` is false until it has told the pods once;
//! after that the last list is used. A file system that hangs takes away the figures of that pod alone.
//! Nothing is measured while nobody asks.
//!
//! # Known gaps
//! Signals, eviction and garbage-collection decisions, the OOM watcher and log sizes' watch are not there yet.
//! What only the runtime knows (bytes used by images, writable layers) and network counters are left out.

pub mod cgroup;
mod confinement;
pub mod disk;
pub mod kernel;
mod metrics;
mod pods;
pub mod rates;
mod sample;
pub mod service;

use std::sync::Arc;

use bulkhead_daemon::{Daemon, RunError};
use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::evictiond::stats_server::StatsServer;
use bulkhead_ipc::peers::{MethodRule, Role};
use bulkhead_types::Process;

pub use confinement::{Fenced, confine, fence};
pub use metrics::Metrics;
pub use pods::{Pod, PodContainer, PodSource, SyncdPods};
pub use sample::{NodePaths, Sampler};

/// Who may call what.
pub const RULES: &[MethodRule] =
    &[MethodRule { method: "/kubelet.evictiond.v1.Stats/Summary", peers: &[Role::Statusd, Role::Operator] }];

/// The daemon's work, from the first socket to the last.
///
/// # Errors
/// The socket cannot be served, or another instance holds the state folder for too long.
pub async fn run(daemon: Arc<Daemon>) -> Result<(), RunError> {
    let config = &daemon.config;
    let metrics = Metrics::register(&daemon.registry)?;
    let paths = NodePaths {
        node_name: config.node_name.to_string(),
        instance: config.paths.clone(),
        // The runtime may be set up for another driver than the configured one: only one of the two trees is there.
        pods_cgroups: vec![config.pods_cgroup(), config.pods_cgroup_of("cgroupfs"), config.pods_cgroup_of("systemd")],
    };
    let pods = SyncdPods::new(daemon.link(Process::Syncd));
    let stats = service::StatsService::new(Sampler::new(paths)?, pods, metrics, config.volume_stats_agg_period());
    let services = daemon.services()?.add(StatsServer::new(stats).max_decoding_message_size(MAX_MESSAGE_BYTES));

    // Statistics need nothing from the other processes, so peers are answered before the state folder is ours; what
    // the lock is for is that an older instance does not go on beside this one.
    let serve = daemon.serve(services, RULES);
    let hold = async {
        // While kubelet-volnetd is away there is no folder to be had; that must not hold up the end.
        let state = tokio::select! {
            state = daemon.state_dir() => Some(state?),
            () = daemon.stop.cancelled() => None,
        };
        daemon.stop.cancelled().await;
        drop(state);
        Ok(())
    };
    let fence = async {
        tokio::select! {
            () = confinement::outgrown(&config.paths) => Err(RunError::from(
                "the pods' folders were made after the fence was put up; starting again to measure them",
            )),
            () = daemon.stop.cancelled() => Ok(()),
        }
    };
    daemon.set_ready().await;
    tokio::try_join!(serve, hold, fence)?;
    Ok(())
}
