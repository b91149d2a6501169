//! kubelet-evictiond: measures the node and its pods for whoever asks, has pods evicted when the node runs short of something, and has
//! containers' logs rotated.
//!
//! # Serves / calls
//! `kubelet.evictiond.v1.Stats`, `.Pressure` and `.Images` on its socket. Calls kubelet-syncd for the pods, the runtime's images, their
//! folder and what the runtime knows of disks, to evict a pod, to remove an image, for what is done with logs, and to tell when the
//! machine was out of memory; kubelet-volnetd's broker for its state folder, for what wakes a reading, and for rotated logs that it
//! compresses; and has file systems entered by kubelet-walker.
//!
//! # Privileges
//! Its own user and no capability. The kernel's log is a descriptor that it is passed, for reading.
//!
//! # Security
//! Landlock leaves reading of files in /proc and in the mounted control groups (`bulkhead_privileges`), the system call filter
//! no socket family but Unix. What pods control (names, depth and number of files in their volumes) is entered by
//! kubelet-walker, whose answers are numbers.
//!
//! # State
//! On disk since when thresholds are met ([`eviction::judge::Ledger`]) and images are unused ([`image_gc::ledger::Ledger`]), and what
//! of the kernel's log was dealt with ([`oom::ledger::Ledger`]). In memory the last sample, for rates, disk usage for a minute, and the
//! runtime's word for half a minute.
//!
//! # When it fails
//! Without kubelet-syncd the node's own statistics go on and `pods_known` is false until it has told all pods once;
//! after that the last list is used, and while a new one starts its pods that still run count. A file system that hangs takes away the figures of that pod alone, and keeps one of
//! kubelet-walker's workers. Without kubelet-walker nothing is known of disks, and the rest goes on.
//! Statistics of pods are measured when somebody asks, or when one of them is to be evicted; with gate CSIVolumeHealth what drivers tell
//! of their volumes is asked for in each volumeStatsAggPeriod.
//!
//! # Modules
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | tells |
//! |---|---|
//! | [`kernel`] | what /proc says of the machine |
//! | [`cgroup`] | usage of control groups, v1 or v2 |
//! | [`disk`] | usage of file systems and folders, and how long it is good for |
//! | `machine` | processors, memory, block devices, mounts |
//! | `network` | counters of interfaces, numbers of sockets |
//! | `processes` | open files of processes |
//! | `starts` | when containers started |
//! | `stats` | readings as the messages of the API |
//! | [`rates`] | CPU rates from two readings |
//! | [`oom`] | which processes the kernel has killed for want of memory, by its log |
//! | `pods` | which pods there are, as kubelet-syncd has them |
//! | `known_pods` | which of the pods before still count while it starts |
//! | `runtime_pods` | figures of pods that are the runtime's to tell, in the place of our own |
//! | `runtime` | what only the runtime knows of disks |
//! | `question` | how long a question that takes its time is waited for |
//! | [`walker`] | what kubelet-walker is asked |
//! | `persistent` | what persistent volumes hold, as their drivers say |
//! | `detail` | one cgroup with everything of it |
//! | `unrated` | whose CPU rate a sample lacks |
//! | `sample` | one sample: the node, its pods, their containers |
//! | `disk_figures` | what a sample says of disks |
//! | `traced` | which sample is a span of a pod's trace |
//! | `incomplete` | of which volumes the log is told that they were not measured as a whole |
//! | `metrics` | this process's own metric families |
//! | [`service`] | the answers: one sample for all who take one of its age |
//! | [`signals`] | what is left of each resource, and when to look again |
//! | [`image_gc`] | which images go, and when |
//! | [`logs`] | which container's log gets a new file, what of the rotated ones is compressed, and what goes |
//! | [`eviction`] | which thresholds are met, which conditions the node has, which pod goes |
//!
//! # Tasks and channels
//! | task | takes | gives |
//! |---|---|---|
//! | gRPC ([`service`]) | calls | the newest sample, measured on a pool of threads when it is too old |
//! | measuring for metrics | that somebody reads them | a sample |
//! | health of volumes (`persistent`), with gate CSIVolumeHealth | the time of the next question | figures of volumes; kubelet-syncd, who asks the drivers, tells the events |
//! | the state folder | volnetd's broker | the lock |
//! | a question to the runtime (`question`), one at a time | a sample that needs it | what the runtime says of disks, of pods |
//! | requests to kubelet-walker ([`walker`]), one task each | a sample that needs them | figures; one that hangs is named |
//! | the eviction manager ([`eviction::manager`]) | the time of the next reading, readings of file systems (mpsc) | conditions (watch), evictions to kubelet-syncd |
//! | one for each event of the kernel's ([`signals::sensors`]) | memory use at which a threshold is met (watch), the kernel's word | a reading at once |
//! | rounds of garbage collection ([`image_gc::rounds`]) | the time of the next one, how full the image file system is (watch) | removals to kubelet-syncd |
//! | the rotation of logs ([`logs::manager`]) | the time of the next look | steps to kubelet-syncd; rotated logs, one task each, compressed |
//! | the kernel's log ([`oom::watch`]) | records, as they are written; kubelet-syncd's life | counts, events to kubelet-syncd |
//! | reports ([`eviction::pressure`]) | conditions (watch), kubelet-syncd's life | the conditions, until they are taken |
//!
//! # Known gaps
//! Sockets are counted by network, which a pod's containers share: whose a descriptor is, the kernel shows to tracers alone.

pub mod cgroup;
mod detail;
pub mod disk;
mod disk_figures;
pub mod eviction;
pub mod image_gc;
mod incomplete;
pub mod kernel;
mod known_pods;
pub mod logs;
mod machine;
mod metrics;
mod network;
pub mod oom;
mod persistent;
mod pods;
mod processes;
mod question;
pub mod rates;
mod runtime;
mod runtime_pods;
mod sample;
pub mod service;
pub mod signals;
mod starts;
mod stats;
mod traced;
mod unrated;
pub mod walker;

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bulkhead_config::{Feature, NodeConfig};
use bulkhead_daemon::{Daemon, RunError};
use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::evictiond::images_server::ImagesServer;
use bulkhead_ipc::evictiond::pressure_server::PressureServer;
use bulkhead_ipc::evictiond::stats_server::StatsServer;
use bulkhead_ipc::peers::{MethodRule, Role};
use bulkhead_types::Process;
use bulkhead_worker::WorkerPool;
use bulkhead_worker::hanging::{Hanging, degraded};

use eviction::manager::Manager;
use eviction::next::Ranker;
use eviction::pressure::{self, PressureApi, Shown};
use eviction::syncd::Syncd;
use image_gc::collector::Collector;
use image_gc::policy::Policy;
use image_gc::report::ImagesApi;
use image_gc::store::SyncdImages;
use logs::manager::LogManager;
use oom::counts::OomCounts;
use oom::log::Kmsg;
use oom::owner::Owners;
use persistent::{PersistentVolumes, VolumeGauges};
use signals::reader::KernelReader;
use signals::sensors::Sensors;

pub use metrics::Metrics;
pub use pods::{NodeWord, Pod, PodContainer, PodSource, PodVolume, SyncdPods, VolumeKind};
pub use runtime::{RuntimeDisks, RuntimeSource, SyncdRuntime};
pub use runtime_pods::PodFigures;
pub use sample::{NodePaths, Sample, SampleScope, Sampler};

/// The loop that measures for the metrics does nothing but wait, for readers or for a sample.
const LOOP_BOUND: Duration = Duration::from_secs(20);

/// Name of the descriptor of the kernel's log, and of what is told of it.
const KERNEL_LOG: (&str, &str) = ("kmsg", "kernel log");

/// Who may call what.
pub const RULES: &[MethodRule] = &[
    MethodRule { method: "/kubelet.evictiond.v1.Stats/Summary", peers: &[Role::Statusd, Role::Operator] },
    MethodRule { method: "/kubelet.evictiond.v1.Stats/Cgroups", peers: &[Role::Statusd, Role::Operator] },
    MethodRule { method: "/kubelet.evictiond.v1.Pressure/Watch", peers: &[Role::Statusd, Role::Operator] },
    MethodRule { method: "/kubelet.evictiond.v1.Pressure/Get", peers: &[Role::Operator] },
    MethodRule { method: "/kubelet.evictiond.v1.Images/List", peers: &[Role::Operator] },
];

/// The daemon's work, from the first socket to the last.
///
/// # Errors
/// The socket cannot be served, or another instance holds the state folder for too long.
pub async fn run(daemon: Arc<Daemon>) -> Result<(), RunError> {
    let config = &daemon.config;
    let metrics = Metrics::register(&daemon.registry)?;
    let paths = NodePaths {
        node_name: config.node_name.to_string(),
        boot_id: config.boot_id.clone(),
        instance: config.paths.clone(),
        // The runtime may be set up for another driver than the configured one: only one of the two trees is there.
        pods_cgroups: vec![config.pods_cgroup(), config.pods_cgroup_of("cgroupfs"), config.pods_cgroup_of("systemd")],
        system_cgroups: system_cgroups(config),
    };
    let pods = SyncdPods::new(daemon.link(Process::Syncd));
    let from_runtime = config.feature_gates().enabled(Feature::PodAndContainerStatsFromCRI);
    metrics.provider.with_label_values(&[if from_runtime { "cri" } else { "cadvisor" }]).set(1);
    let runtime = SyncdRuntime::new(daemon.link(Process::Syncd), from_runtime);
    let period = config.volume_stats_agg_period();
    let walker = walker(&daemon)?;
    let logs_walker = walker.clone();
    let reader = KernelReader::new(paths.pods_cgroups.clone(), config.flags.eviction_exclude_active_page_cache)?;
    let sensors = Sensors::start(daemon.broker.clone(), reader.is_v2());
    let reader = Arc::new(Mutex::new(reader));
    let owners = Owners {
        pods: paths.pods_cgroups.clone(),
        system: paths.system_cgroups.iter().map(|(_, cgroup)| cgroup.clone()).collect(),
    };
    let ooms = OomCounts::default();
    let sampler = Sampler::new(paths)?.with_ooms(ooms.clone());
    let hierarchy = sampler.hierarchy().clone();
    let kernel_log = daemon.take_listener(KERNEL_LOG.0);
    let persistent = PersistentVolumes::new(daemon.link(Process::Syncd), walker.clone(), period);
    daemon.registry.register(Box::new(VolumeGauges::new(persistent.clone())?))?;
    let stats = service::StatsService::new(sampler, pods, runtime, walker.clone(), metrics.clone(), period);
    let stats = Arc::new(stats.with_persistent(persistent.clone()));
    let shown = Arc::new(Shown::new(daemon.stop.clone()));
    let syncd_link = daemon.link(Process::Syncd);
    let syncd = Syncd::new(syncd_link.clone());
    let ranker = Ranker { stats: stats.clone(), syncd: syncd.clone() };
    let server = StatsServer::from_arc(stats.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let pressure =
        PressureServer::new(PressureApi { shown: shown.clone(), ranker }).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let images_api = ImagesApi::default();
    let images = ImagesServer::new(images_api.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let services = daemon.services().add(server).add(pressure).add(images);

    // Statistics need nothing from the other processes, so peers are answered before the state folder is ours; what
    // the lock is for is that an older instance does not go on beside this one.
    let serve = daemon.serve(services, RULES);
    let hold = async {
        // While kubelet-volnetd is away there is no folder to be had; that must not hold up the end.
        let state = tokio::select! {
            state = daemon.state_dir() => Some(state?),
            () = daemon.stop.cancelled() => None,
        };
        let Some(state) = state.map(Arc::new) else { return Ok(()) };
        // Its place in the log is shared with whoever held the folder before.
        let watch = watch_kernel_log(&daemon, &ooms, kernel_log, |log| oom::watch::Parts {
            log,
            syncd: oom::syncd::Syncd::new(daemon.link(Process::Syncd)),
            owners,
            hierarchy,
            counts: ooms.clone(),
            kills: metrics.oom_kills.clone(),
            state: state.clone(),
            boot_id: config.boot_id.clone(),
            stop: daemon.stop.clone(),
        });
        // The lock is held until the end of the manager, which is that of the process.
        let store = SyncdImages::new(daemon.link(Process::Syncd), walker.clone());
        let collector = Collector::new(store, Policy::of(&config.kubelet), &config.boot_id, state.clone())?;
        let collector = Arc::new(collector);
        images_api.set(collector.clone());
        let manager = Manager::new(eviction::manager::Parts {
            config: config.clone(),
            configured: bulkhead_config::eviction::parse_all(&config.kubelet).unwrap_or_default(),
            epoch: daemon.epoch,
            stats: stats.clone(),
            walker,
            reader,
            sensors,
            syncd: syncd.clone(),
            images: collector.clone(),
            state: state.clone(),
            shown: shown.clone(),
            metrics: metrics.clone(),
            stop: daemon.stop.clone(),
        })?;
        let heartbeat = daemon.progress.register("image garbage collection", LOOP_BOUND);
        tokio::join!(
            manager.run(daemon.progress.register("eviction manager", LOOP_BOUND)),
            image_gc::rounds::run(collector, heartbeat, daemon.stop.clone()),
            watch,
        );
        Ok(())
    };
    let report = async {
        let telling = pressure::report(syncd.clone(), shown.clone(), daemon.progress.register("pressure", LOOP_BOUND));
        tokio::select! {
            () = telling => {}
            () = daemon.stop.cancelled() => {}
        }
        Ok(())
    };
    let rotation = logs::manager::Settings::of(config)
        .map(|settings| LogManager::new(settings, syncd_link, logs_walker, daemon.broker.clone(), daemon.stop.clone()));
    let rotate = async {
        if let Some(rotation) = rotation {
            rotation.run(daemon.progress.register("rotation of logs", LOOP_BOUND)).await;
        }
        Ok(())
    };
    // Metrics show the usage of logs, which a sample finds out; nobody reads them, nothing is measured.
    let heartbeat = daemon.progress.register("measure", LOOP_BOUND);
    let measure = async {
        loop {
            tokio::select! {
                () = heartbeat.asked() => continue,
                () = metrics.read() => {}
                () = daemon.stop.cancelled() => return Ok(()),
            }
            // For file systems that hang, and for kubelet-syncd.
            let _waiting = heartbeat.waits_on();
            if let Err(status) = stats.sample(service::DEFAULT_AGE, SampleScope { disks: true, cgroups: false }).await {
                tracing::debug!("no sample for the metrics: {}", status.message());
            }
        }
    };
    let watched = period.filter(|period| !period.is_zero() && config.feature_gates().enabled(Feature::CSIVolumeHealth));
    let watch_health = async {
        if let Some(period) = watched {
            let heartbeat = daemon.progress.register("health of volumes", LOOP_BOUND);
            persistent.keep_new(period, &heartbeat, &daemon.stop).await;
        }
        Ok(())
    };
    daemon.set_ready().await;
    tokio::try_join!(serve, hold, report, rotate, measure, watch_health)?;
    Ok(())
}

/// Reads the kernel's log until the daemon is to stop, if the supervisor passed it and it is one. Without it the rest goes on.
async fn watch_kernel_log(
    daemon: &Daemon,
    counts: &OomCounts,
    passed: Option<OwnedFd>,
    parts: impl FnOnce(Kmsg) -> oom::watch::Parts<Kmsg, oom::syncd::Syncd>,
) {
    let read = async {
        let passed = passed.ok_or_else(|| std::io::Error::other("the supervisor could not open it"))?;
        oom::watch::run(parts(Kmsg::new(passed)?), daemon.progress.register(KERNEL_LOG.1, LOOP_BOUND)).await
    };
    if let Err(error) = read.await {
        let told = "the kernel's log (/dev/kmsg) is not read: no event SystemOOM, and container_oom_events_total is the kernel's \
                    own count of killed processes";
        counts.give_up();
        tracing::warn!(%error, "{told}");
        daemon.set_degraded(KERNEL_LOG.1, Some(format!("{told} ({error})")));
    }
}

/// Who enters file systems for us: the launcher's, by the socket that it passes, or the unit's, by its own.
fn walker(daemon: &Arc<Daemon>) -> std::io::Result<walker::Walker> {
    let health = daemon.clone();
    let tell = Box::new(move |hanging: &[Hanging]| {
        health.set_degraded("file systems", degraded(hanging));
    });
    let workers = match daemon.take_listener("walker") {
        Some(socket) => WorkerPool::passed(socket, walker::LIMITS, tell)?,
        None => WorkerPool::at(walker::socket(&daemon.config.paths), walker::LIMITS, tell),
    };
    Ok(walker::Walker::new(workers))
}

/// Cgroups of the system by upstream's names: those that the configuration names, and for the agent the one that all its
/// processes are in.
fn system_cgroups(config: &NodeConfig) -> Vec<(&'static str, String)> {
    let named = |name: &str| (name.starts_with('/') && name != "/").then(|| name.to_owned());
    let own = cgroup::of_process(&std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
    [
        ("kubelet", own.map(|own| cgroup::of_agent(own, &config.kubelet.kubelet_cgroups))),
        ("runtime", named(&config.flags.runtime_cgroups)),
        ("misc", named(&config.kubelet.system_cgroups)),
    ]
    .into_iter()
    .filter_map(|(name, cgroup)| Some((name, cgroup?)))
    .collect()
}
