//! kubelet-volnetd: does what needs root on a node, on behalf of kubelet-syncd: mounts, pod directories, cgroups,
//! root-owned files, and passing open descriptors to the processes that hold nothing.
//!
//! # Serves / calls
//! `kubelet.volnetd.v1` (Volumes, Csi, Files, Cgroups, Shutdown, Watches, Audit) and `kubelet.common.v1.Process` on
//! `kubelet-volnetd.sock`, the descriptor broker on `kubelet-volnetd.fd.sock`. No gRPC, no network: it asks kubelet-iptables,
//! kubelet-disks and, where an operator has switched it on, kubelet-flexvolume, which run programs for it, systemd over
//! its private socket where the cgroup driver is systemd, and logind on the system bus where pods get time at a
//! shutdown ([`inhibitor`]).
//!
//! # Privileges
//! uid 0 with the capabilities listed in `bulkhead_privileges`, each beside the work that needs it, and a system call filter. It
//! stays in the host's mount namespace, because mounts must be seen by the runtime.
//!
//! # Security
//! The whole surface is one page: [`verbs`]. Hostile input is every byte of every request (a compromised syncd), and
//! everything that pods can write: contents of volumes, termination files, logs. Requests are ids, parsed into types in
//! [`validate`]; paths are built here and opened by the three rules of `bulkhead_sys::open`; nothing is unmounted,
//! removed or killed without the [`guard`]. It never parses a pod spec or starts a program; by itself it asks for
//! chains of iptables ([`iptables`]), and nothing that came from a peer is in that. Of the
//! kubeconfig it reads the names of four files ([`kubeconfig`]), of a volume's files their paths, modes and owners.
//!
//! # State
//! Disk and mountinfo are the truth. The [`journal`] adds intents, and the [`audit`] log has the last privileged acts, both in
//! `<root-dir>/bulkhead/volnetd/`. Everything else is rebuilt by looking.
//!
//! # When it fails
//! Callers see UNAVAILABLE and ask again; every verb may be repeated. An act that was cut short is finished by asking
//! for it again; until then the volume is listed as uncertain. Running containers, mounts and cgroups need no volnetd.
//! One pod's hung mount holds that pod's lock and one worker process, which is named and left behind ([`worker`]).
//!
//! What the watchdog acts on is the one thread and its loops: the two that accept, and the one that passes changes of
//! files on. It does not act on file systems of the node's own that hang (the disk of the root directory, of logs, of
//! /etc), not even when they hold every thread of the pool: the kernel keeps
//! such a thread until the file system answers, whatever signal comes, so a process that is killed for it does not end,
//! still holds the journal's lock, and each successor would wait for that lock in vain. What is left would be a unit that
//! starts and fails for as long as the file system hangs, and nobody to serve the files that do not. So a full pool is told
//! (`bulkhead_daemon::pool`), calls wait until their callers' deadlines, what needs no file (Hello, metrics) goes on, and
//! all of it comes back by itself. For this to hold the one thread opens no path that is configured or a pod's: the pool
//! does.
//!
//! # Modules
//! A module uses only those above it in this table (`tests/tests/files/layers.rs` holds it to that).
//!
//! | module | decides |
//! |---|---|
//! | [`validate`] | whether what came over the wire is what its type says |
//! | [`kubeconfig`] | which files the kubeconfig names |
//! | [`journal`] | nothing: what was about to be done when the process ended |
//! | [`guard`] | whether a destructive verb is of today's knowledge |
//! | [`metrics`] | nothing: what this process counts |
//! | [`audit`] | how many records of privileged acts are kept, and which are shown |
//! | [`iptables`] | when the chains of iptables are looked at, and what of it is told |
//! | [`disks`] | how kubelet-disks is asked |
//! | [`flexvolume`] | how kubelet-flexvolume is asked |
//! | [`inhibitor`] | nothing: the lock that delays a shutdown, one copy of it |
//! | [`agent_sockets`] | whether a socket by which plugins register with kubelet-syncd, or agents ask it, is bound anew |
//! | [`other_kubelet`] | whether another kubelet has had the node, and who is told so |
//! | [`cgroups`] | the pods' cgroup tree and its limits |
//! | [`node`] | nothing: what every verb has at hand, and the locks of pods, of their volumes and of what is staged |
//! | [`settings`] | what of the node's configuration concerns this process |
//! | [`volumes`] | pods' directories and volumes, made and taken away |
//! | [`files`] | files that are kept for pods: etc-hosts, termination messages, logs |
//! | [`worker`] | what is done in a process that may hang |
//! | [`operations`] | when a volume's intent is in the journal, and whose lock is held |
//! | [`verbs`] | who may ask for what: the whole surface |
//! | [`broker`] | which descriptors are opened for whom |
//! | [`watch`] | which changes of files are told |
//! | [`setup`] | what is made once at start |
//! | [`service`] | nothing: from the wire to typed values, and to the work |
//!
//! # Tasks and channels
//! | task | takes | gives |
//! |---|---|---|
//! | gRPC, one task a connection ([`service`]) | calls | work on a pool of threads; answers |
//! | the broker ([`broker`]) | requests on the side socket | descriptors, opened on the pool |
//! | changes of files ([`watch`]) | the one inotify instance | events to followers (broadcast) |
//! | chains of iptables ([`iptables`]) | the clock | a question to kubelet-iptables, each minute |
//! | manifests, credentials, serving pair: a follower each ([`watch`]) | events | changes to whoever streams them (broadcast) |
//!
//! # Known gaps
//! A node log behind a link is refused. fsGroup leaves what is nested
//! deeper than 256 directories.

mod agent_sockets;
mod audit;
pub mod broker;
pub mod cgroups;
mod disks;
pub mod files;
mod flexvolume;
mod guard;
mod inhibitor;
mod iptables;
pub mod journal;
mod kubeconfig;
pub mod metrics;
pub mod node;
pub mod operations;
mod other_kubelet;
pub mod service;
pub mod settings;
mod setup;
pub mod validate;
pub mod verbs;
pub mod volumes;
pub mod watch;
pub mod worker;

use std::future::Future;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use bulkhead_daemon::progress::LOOP_BOUND;
use bulkhead_daemon::{Daemon, FORK_SERVER, Passed, RunError, StateError};
use bulkhead_ipc::helper::Asker;
use bulkhead_ipc::limits::Gate;
use bulkhead_ipc::peers::PeerUsers;
use bulkhead_sys::inotify::Inotify;
use bulkhead_types::Epoch;
use bulkhead_worker::WorkerPool;
use bulkhead_worker::hanging::{Hanging, degraded};

use crate::node::{Node, Settings};

/// The body of the daemon: set up, serve both sockets, say that it is ready.
///
/// # Errors
/// The node cannot be set up, or a socket cannot be served.
pub async fn run(daemon: Arc<Daemon>) -> Result<(), RunError> {
    let settings = settings::from_config(&daemon.config)?;
    daemon.set_waiting("setting up the node's directories");
    let workers = workers(&daemon)?;
    let metrics = metrics::Metrics::new(&daemon.registry)?;
    let node = prepare(settings, daemon.epoch, metrics, workers.clone()).await?;
    take_up_device_plugins(&daemon, &node);
    let settings = &node.settings;
    let watches = watches(&daemon, settings);
    let broker = daemon.take_passed(Passed::Broker).ok_or("no socket named \"broker\" was passed by the supervisor")?;
    // Polled with the loop that accepts, which so answers the watchdog.
    let heartbeat = daemon.progress.register("broker", LOOP_BOUND);
    let ended = async { heartbeat.rests(daemon.stop.cancelled()).await };
    let run_dir = &daemon.config.paths.run_dir;
    node.disks.set(Asker::passed_or_at(daemon.take_passed(Passed::Disks), &run_dir.join("kubelet-disks.sock"))?);
    let flex = daemon.take_passed(Passed::Flexvolume);
    node.flex.set(Asker::passed_or_at(flex, &run_dir.join("kubelet-flexvolume.sock"))?);
    let broker = serve_broker(node.clone(), broker, daemon.peer_users(), daemon.gate.clone(), ended);
    let audit = node.audit.clone();
    let services = service::add_to(daemon.services(), node, watches);
    daemon.set_ready().await;
    let iptables = iptables::asker(daemon.take_passed(Passed::Iptables), &daemon.config)?;
    let health = daemon.clone();
    let chains = async {
        if let Some(asker) = iptables {
            iptables::keep(asker, |trouble| health.set_degraded("iptables", trouble)).await;
        }
        std::future::pending::<()>().await;
    };
    let serving = async { tokio::try_join!(daemon.serve(services, &verbs::RULES), async { Ok(broker.await?) }) };
    let ended = tokio::select! {
        served = serving => served.map(|_| ()),
        // A successor forks another one.
        () = chains => Ok(()),
        () = workers.fork_server_gone() => Err("the process that forks workers has ended".into()),
    };
    if let Err(error) = tokio::task::spawn_blocking(move || audit.write()).await {
        tracing::warn!(%error, "failed to write the last audit records");
    }
    ended
}

/// The socket of device plugins as an earlier process left it, where that was in this start of the kubelet.
fn take_up_device_plugins(daemon: &Daemon, node: &Node) {
    for (name, socket) in daemon.take_kept(agent_sockets::KEPT_DEVICE_PLUGINS) {
        if agent_sockets::is_taken_up(&name, &node.settings.start_id) {
            node.device_plugins.adopt(socket);
        } else {
            tracing::info!(
                "the socket that was kept is not of this start of the kubelet: device plugins are to register again"
            );
            bulkhead_daemon::kept::let_go(&name);
        }
    }
}

/// The workers of the fork server that was forked before this process had a thread.
fn workers(daemon: &Arc<Daemon>) -> Result<WorkerPool, RunError> {
    let socket = daemon.take_listener(FORK_SERVER).ok_or("no fork server was forked")?;
    let health = daemon.clone();
    let tell = move |hanging: &[Hanging]| {
        health.set_degraded("file systems", degraded(hanging));
    };
    Ok(WorkerPool::passed(socket, worker::LIMITS, Box::new(tell))?)
}

/// Name of the inotify instance among what the supervisor keeps over restarts.
const KEPT_INSTANCE: &str = "inotify";

/// Watches what is followed: with the instance that an earlier start had, so that a restart never depends on there being one
/// to be had, or with one of the kernel's.
fn watches(daemon: &Arc<Daemon>, settings: &Settings) -> watch::Watches {
    let mut earlier = daemon.take_listener(KEPT_INSTANCE);
    let open = move || {
        if let Some(fd) = earlier.take() {
            match Inotify::adopt(fd) {
                Ok(instance) => return Ok(instance),
                Err(error) => tracing::warn!(%error, "failed to take up the kept inotify instance"),
            }
        }
        let instance = Inotify::new()?;
        bulkhead_daemon::kept::keep(KEPT_INSTANCE, instance.as_fd());
        Ok(instance)
    };
    let health = daemon.clone();
    let told = move |text: Option<String>| health.set_degraded("changes of files", text);
    watch::start(followed(settings), daemon.progress.register("changes", LOOP_BOUND), Box::new(open), Box::new(told))
}

/// What changes are told of.
fn followed(settings: &Settings) -> watch::Followed {
    use broker::pairs::{Prefix, current};
    let asked = &settings.certificates;
    let serving = [settings.serving.certificate.clone(), settings.serving.key.clone()];
    let serving_pair = asked.serving.then(|| current(&asked.folder, Prefix::Server));
    watch::Followed {
        manifests: settings.manifests.clone(),
        kubeconfigs: [&settings.kubeconfig, &asked.bootstrap].into_iter().flatten().cloned().collect(),
        plugins: Some(settings.paths.root_dir.join("plugins_registry")),
        client_pair: asked.client.then(|| current(&asked.folder, Prefix::Client)),
        serving: serving.into_iter().chain(settings.client_ca.clone()).chain(serving_pair).collect(),
    }
}

/// Directories, the shared root, tunables, the journal: all that comes before serving.
///
/// # Errors
/// See [`setup::SetupError`] and [`node::NodeError`].
pub async fn prepare(
    settings: Settings,
    epoch: Epoch,
    metrics: metrics::Metrics,
    workers: WorkerPool,
) -> Result<Arc<Node>, RunError> {
    let node = tokio::task::spawn_blocking(move || -> Result<Node, RunError> {
        setup::directories(&settings)?;
        if settings.manage_kernel_tunables {
            setup::kernel_tunables(Path::new("/proc/sys"), settings.protect_kernel_defaults)?;
        }
        open(settings, epoch, metrics, workers)
    });
    Ok(Arc::new(node.await??))
}

/// The node as an earlier process has left it. Needs its directories.
///
/// # Errors
/// See [`node::NodeError`]; what is there cannot be listed.
pub fn open(
    settings: Settings,
    epoch: Epoch,
    metrics: metrics::Metrics,
    workers: WorkerPool,
) -> Result<Node, RunError> {
    let mut node = match Node::open(settings, epoch, metrics, workers) {
        // The skeleton's word for it, so that the supervisor is told by the exit code.
        Err(error @ node::NodeError::Locked(_)) => {
            tracing::error!("{error}");
            return Err(StateError::Locked.into());
        }
        other => other?,
    };
    volumes::list::drop_contradicted(&node);
    let forget = || volumes::csi::boot::forget(&node);
    node.other_kubelet = other_kubelet::look(&node.settings.paths, node.state(), forget);
    volumes::csi::boot::look(&node)?;
    Ok(node)
}

/// Answers on the broker's socket until `shutdown` resolves.
///
/// # Errors
/// The socket cannot be served.
pub async fn serve_broker(
    node: Arc<Node>,
    listener: OwnedFd,
    users: Arc<PeerUsers>,
    gate: Arc<Gate>,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    bulkhead_ipc::broker::serve(
        listener,
        users,
        gate,
        move |caller, request| broker::answer(node.clone(), caller, request),
        shutdown,
    )
    .await
}
