//! What runs in this process and with what, from the first socket to the last: one function for each task.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::{Feature, NodeConfig};
use bulkhead_daemon::{Daemon, Passed, RunError};
use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::evictiond::images_server::ImagesServer;
use bulkhead_ipc::evictiond::pressure_server::PressureServer;
use bulkhead_ipc::evictiond::stats_server::StatsServer;
use bulkhead_ipc::peers::{MethodRule, Role};
use bulkhead_types::Process;
use bulkhead_worker::WorkerPool;
use bulkhead_worker::hanging::{Hanging, degraded};
use parking_lot::Mutex;

use crate::cgroup::{self, Hierarchy};
use crate::eviction;
use crate::eviction::manager::Manager;
use crate::eviction::next::Ranker;
use crate::eviction::pressure::{self, PressureApi, Shown};
use crate::eviction::syncd::Syncd;
use crate::image_gc;
use crate::image_gc::collector::Collector;
use crate::image_gc::policy::Policy;
use crate::image_gc::report::ImagesApi;
use crate::image_gc::store::SyncdImages;
use crate::logs::manager::{LogManager, Settings};
use crate::metrics::Metrics;
use crate::oom;
use crate::oom::counts::OomCounts;
use crate::oom::log::Kmsg;
use crate::oom::owner::Owners;
use crate::persistent::{PersistentVolumes, VolumeGauges};
use crate::pods::SyncdPods;
use crate::runtime::SyncdRuntime;
use crate::sample::{NodePaths, SampleScope, Sampler};
use crate::service::{self, StatsService};
use crate::signals::reader::KernelReader;
use crate::signals::sensors::Sensors;
use crate::walker;

/// The loop that measures for the metrics does nothing but wait, for readers or for a sample.
const LOOP_BOUND: Duration = Duration::from_secs(20);

/// Name of what is told of the kernel's log.
const KERNEL_LOG: &str = "kernel log";

/// Who may call what.
const RULES: &[MethodRule] = &[
    MethodRule { method: "/kubelet.evictiond.v1.Stats/Summary", peers: &[Role::Statusd, Role::Operator] },
    MethodRule { method: "/kubelet.evictiond.v1.Stats/Cgroups", peers: &[Role::Statusd, Role::Operator] },
    MethodRule { method: "/kubelet.evictiond.v1.Pressure/Watch", peers: &[Role::Statusd, Role::Operator] },
    MethodRule { method: "/kubelet.evictiond.v1.Pressure/Get", peers: &[Role::Operator] },
    MethodRule { method: "/kubelet.evictiond.v1.Images/List", peers: &[Role::Operator] },
];

/// The daemon's work.
///
/// # Errors
/// The socket cannot be served, or another instance holds the state folder for too long.
pub async fn run(daemon: Arc<Daemon>) -> Result<(), RunError> {
    let measuring = Measuring::new(&daemon)?;
    let syncd = Syncd::new(daemon.link(Process::Syncd));
    let told = Told { shown: Arc::new(Shown::new(daemon.stop.clone())), images: ImagesApi::default() };
    let ranker = Ranker { stats: measuring.stats.clone(), syncd: syncd.clone() };
    let stats = StatsServer::from_arc(measuring.stats.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let pressure = PressureServer::new(PressureApi { shown: told.shown.clone(), ranker })
        .max_decoding_message_size(MAX_MESSAGE_BYTES);
    let images = ImagesServer::new(told.images.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let services = daemon.services().add(stats).add(pressure).add(images);

    let report = report(&daemon, syncd.clone(), told.shown.clone());
    let rotate = rotate_logs(&daemon, measuring.walker.clone());
    let (stats, metrics) = (measuring.stats.clone(), measuring.metrics.clone());
    let measure = measure_for_metrics(&daemon, &stats, &metrics);
    let persistent = measuring.persistent.clone();
    let watch_health = watch_health(&daemon, &persistent);
    // Statistics need nothing from the other processes, so peers are answered before the state folder is ours; what
    // the lock is for is that an older instance does not go on beside this one.
    let serve = daemon.serve(services, RULES);
    daemon.set_ready().await;
    tokio::try_join!(serve, hold_state(&daemon, measuring, syncd, told), report, rotate, measure, watch_health)?;
    Ok(())
}

/// What others read of this process, filled by who holds the state folder.
struct Told {
    shown: Arc<Shown>,
    images: ImagesApi,
}

/// All that measures.
struct Measuring {
    stats: Arc<StatsService<SyncdPods, SyncdRuntime>>,
    persistent: PersistentVolumes,
    walker: walker::Walker,
    metrics: Metrics,
    reader: Arc<Mutex<KernelReader>>,
    sensors: Sensors,
    kernel_log: Option<OwnedFd>,
    ooms: OomCounts,
    owners: Owners,
    hierarchy: Hierarchy,
}

impl Measuring {
    fn new(daemon: &Arc<Daemon>) -> Result<Self, RunError> {
        let config = &daemon.config;
        let metrics = Metrics::register(&daemon.registry)?;
        let paths = NodePaths {
            node_name: config.node_name.to_string(),
            boot_id: config.boot_id.clone(),
            instance: config.paths.clone(),
            // The runtime may be set up for another driver than the configured one: only one of the two trees is there.
            pods_cgroups: vec![
                config.pods_cgroup(),
                config.pods_cgroup_of("cgroupfs"),
                config.pods_cgroup_of("systemd"),
            ],
            system_cgroups: system_cgroups(config),
        };
        let pods = SyncdPods::new(daemon.link(Process::Syncd));
        let from_runtime = config.feature_gates().enabled(Feature::PodAndContainerStatsFromCRI);
        metrics.provider.with_label_values(&[if from_runtime { "cri" } else { "cadvisor" }]).set(1);
        let runtime = SyncdRuntime::new(daemon.link(Process::Syncd), from_runtime);
        let period = config.volume_stats_agg_period();
        let walker = walker(daemon)?;
        let reader = KernelReader::new(paths.pods_cgroups.clone(), config.flags.eviction_exclude_active_page_cache)?;
        let sensors = Sensors::start(daemon.broker.clone(), reader.is_v2());
        let owners = Owners {
            pods: paths.pods_cgroups.clone(),
            system: paths.system_cgroups.iter().map(|(_, cgroup)| cgroup.clone()).collect(),
        };
        let ooms = OomCounts::default();
        let sampler = Sampler::new(paths)?.with_ooms(ooms.clone());
        let hierarchy = sampler.hierarchy().clone();
        let persistent = PersistentVolumes::new(daemon.link(Process::Syncd), walker.clone(), period);
        daemon.registry.register(Box::new(VolumeGauges::new(persistent.clone())?))?;
        let stats = StatsService::new(sampler, pods, runtime, walker.clone(), metrics.clone(), period);
        Ok(Measuring {
            stats: Arc::new(stats.with_persistent(persistent.clone())),
            persistent,
            walker,
            metrics,
            reader: Arc::new(Mutex::new(reader)),
            sensors,
            kernel_log: daemon.take_passed(Passed::KernelLog),
            ooms,
            owners,
            hierarchy,
        })
    }
}

/// What one process alone may do at a time, and so holds the state folder for: evictions, garbage collection, and the kernel's log.
async fn hold_state(daemon: &Arc<Daemon>, measuring: Measuring, syncd: Syncd, told: Told) -> Result<(), RunError> {
    let config = &daemon.config;
    // While kubelet-volnetd is away there is no folder to be had; that must not hold up the end.
    let state = tokio::select! {
        state = daemon.state_dir() => Some(state?),
        () = daemon.stop.cancelled() => None,
    };
    let Some(state) = state.map(Arc::new) else { return Ok(()) };
    let Measuring { stats, walker, metrics, reader, sensors, kernel_log, ooms, owners, hierarchy, .. } = measuring;
    // Its place in the log is shared with whoever held the folder before.
    let watch = watch_kernel_log(daemon, &ooms, kernel_log, |log| oom::watch::Parts {
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
    told.images.set(collector.clone());
    let manager = Manager::new(eviction::manager::Parts {
        config: config.clone(),
        configured: config.eviction_thresholds(),
        epoch: daemon.epoch,
        stats,
        walker,
        reader,
        sensors,
        syncd,
        images: collector.clone(),
        state: state.clone(),
        shown: told.shown,
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
}

/// Tells kubelet-syncd the node's conditions.
async fn report(daemon: &Daemon, syncd: Syncd, shown: Arc<Shown>) -> Result<(), RunError> {
    tokio::select! {
        () = pressure::report(syncd, shown, daemon.progress.register("pressure", LOOP_BOUND)) => {}
        () = daemon.stop.cancelled() => {}
    }
    Ok(())
}

/// Rotates containers' logs, unless that is switched off.
async fn rotate_logs(daemon: &Daemon, walker: walker::Walker) -> Result<(), RunError> {
    let Some(settings) = Settings::of(&daemon.config) else { return Ok(()) };
    let link = daemon.link(Process::Syncd);
    let rotation = LogManager::new(settings, link, walker, daemon.broker.clone(), daemon.stop.clone());
    rotation.run(daemon.progress.register("rotation of logs", LOOP_BOUND)).await;
    Ok(())
}

/// Takes a sample when metrics are read: they show the usage of logs. Nobody reads them, nothing is measured.
async fn measure_for_metrics(
    daemon: &Daemon,
    stats: &StatsService<SyncdPods, SyncdRuntime>,
    metrics: &Metrics,
) -> Result<(), RunError> {
    let heartbeat = daemon.progress.register("measure", LOOP_BOUND);
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
}

/// With gate CSIVolumeHealth: asks for the health of volumes in each period, whoever reads.
async fn watch_health(daemon: &Daemon, persistent: &PersistentVolumes) -> Result<(), RunError> {
    let period = daemon.config.volume_stats_agg_period();
    let is_on = daemon.config.feature_gates().enabled(Feature::CSIVolumeHealth);
    if let Some(period) = period.filter(|_| is_on) {
        let heartbeat = daemon.progress.register("health of volumes", LOOP_BOUND);
        persistent.keep_new(period, &heartbeat, &daemon.stop).await;
    }
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
        oom::watch::run(parts(Kmsg::new(passed)?), daemon.progress.register(KERNEL_LOG, LOOP_BOUND)).await
    };
    if let Err(error) = read.await {
        let told = "the kernel's log (/dev/kmsg) is not read: no event SystemOOM, and container_oom_events_total is the kernel's \
                    own count of killed processes";
        counts.give_up();
        tracing::warn!(%error, "{told}");
        daemon.set_degraded(KERNEL_LOG, Some(format!("{told} ({error})")));
    }
}

/// Who enters file systems for us: the launcher's, by the socket that it passes, or the unit's, by its own.
fn walker(daemon: &Arc<Daemon>) -> std::io::Result<walker::Walker> {
    let health = daemon.clone();
    let tell = Box::new(move |hanging: &[Hanging]| {
        health.set_degraded("file systems", degraded(hanging));
    });
    let workers = match daemon.take_passed(Passed::Walker) {
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
