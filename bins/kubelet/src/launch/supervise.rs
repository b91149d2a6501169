//! The launcher's main work: four children, signals, its own notifications.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_config::NodeConfig;
use bulkhead_daemon::Passed;
use bulkhead_sys::process::PrivilegeError;
use bulkhead_types::Process;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::child::{self, Hopeless, Shared, State};
use super::disks;
use super::flexvolume;
use super::folder::{self, FolderError};
use super::iptables;
use super::journal;
use super::kernel_log;
use super::privileges;
use super::programs;
use super::sockets::{self, SocketError, Sockets};
use super::walker;

/// How long whoever is called goes on for a caller that takes its time to stop.
const CALLER_FIRST: Duration = Duration::from_secs(5);

/// Why the node does not run.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("failed to start the runtime")]
    Runtime(#[source] std::io::Error),
    #[error("the program {} is missing: the four daemons are looked for beside `kubelet` itself, then in ../libexec/bulkhead", .0.display())]
    Missing(PathBuf),
    #[error("failed to find out where `kubelet` itself is")]
    Executable(#[source] std::io::Error),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("failed to write the configuration for the daemons")]
    Config(#[from] bulkhead_config::NodeConfigError),
    #[error("failed to hide the launcher's memory")]
    Memory(#[source] std::io::Error),
    #[error("failed to reduce the launcher's own privileges")]
    Privileges(#[from] PrivilegeError),
    #[error("failed to make the pipe that tells the daemons of the launcher's end")]
    Pipe(#[source] std::io::Error),
    #[error("failed to handle signals")]
    Signals(#[source] std::io::Error),
    #[error(transparent)]
    Hopeless(#[from] Hopeless),
}

pub async fn run(config: &NodeConfig) -> Result<(), LaunchError> {
    let programs = programs()?;
    let granted = bulkhead_sys::process::permitted()?;
    warn_of_withheld(&granted);
    protect_from_oom(config.kubelet.oom_score_adj());
    let max_open_files = open_files_limit(config.kubelet.max_open_files);
    lift_processes_limit();

    folder::prepare(config)?;
    let journal = journal::prepare(config, &programs);
    let walker = walker::prepare(config, &programs, &granted);
    let iptables = iptables::prepare(config, &programs, &granted);
    let disks = disks::prepare(&programs, &granted);
    let flexvolume = flexvolume::prepare(config, &programs, &granted);
    let kernel_log = kernel_log::open(Path::new("/dev/kmsg"));
    let sockets = Process::ALL.into_iter().map(|process| Ok((process, Sockets::bind(config, process)?)));
    let sockets: Vec<(Process, Sockets)> = sockets.collect::<Result<_, SocketError>>()?;
    config.save(&config.paths.rendered_config())?;
    let (death, _held) = std::io::pipe().map_err(LaunchError::Pipe)?;
    let death = death.into();
    let stop = CancellationToken::new();
    let signals = Signals::listen()?;
    privileges::keep_own()?;

    let helpers = [
        (Process::Statusd, Passed::Journal, journal),
        (Process::Evictiond, Passed::Walker, walker),
        (Process::Volnetd, Passed::Iptables, iptables),
        (Process::Volnetd, Passed::Disks, disks),
        (Process::Volnetd, Passed::Flexvolume, flexvolume),
    ];
    let helpers = helpers.map(|(of, passed, helper)| helper.map(|helper| (of, passed, helper)));
    let askers = helpers.iter().flatten().map(|(of, passed, helper)| (*of, *passed, helper.asker()));
    let log = kernel_log.iter().map(|log| (Process::Evictiond, Passed::KernelLog, log));
    let passed = askers.chain(log).collect();
    let shared = Shared { config, passed, death: &death, programs, granted, max_open_files };
    let mut children = FuturesUnordered::new();
    let mut states = Vec::new();
    let mut stops = Vec::new();
    for (process, sockets) in sockets {
        let (sender, receiver) = watch::channel(State::default());
        let stop_one = CancellationToken::new();
        children.push(child::run(process, &shared, sockets, sender, stop_one.clone()));
        states.push((process, receiver.clone()));
        stops.push((stop_one, receiver));
    }
    let stopping = stop_in_order(&stop, stops);
    let signals = signals.obey(&stop);
    let readiness = report_readiness(states);
    let helping = async {
        let running = helpers.iter().flatten().map(|(.., helper)| helper.run(stop.clone()));
        futures_util::future::join_all(running).await;
        std::future::pending::<()>().await
    };
    tokio::pin!(stopping, signals, readiness, helping);
    let mut outcome = Ok(());
    loop {
        tokio::select! {
            ended = children.next() => match ended {
                None => break,
                Some(Ok(())) => {}
                Some(Err(hopeless)) => {
                    tracing::error!(error = &hopeless as &dyn std::error::Error, "the node cannot run, stopping");
                    outcome = Err(hopeless.into());
                    stop.cancel();
                }
            },
            () = &mut stopping => {}
            () = &mut signals => {}
            () = &mut readiness => {}
            () = &mut helping => {}
        }
    }
    drop(children);
    clean_up(config);
    outcome
}

/// A caller stops before those it calls, so nobody sees a peer vanish: the reverse of the start.
async fn stop_in_order(stop: &CancellationToken, stops: Vec<(CancellationToken, watch::Receiver<State>)>) {
    stop.cancelled().await;
    for (stop_one, mut state) in stops.into_iter().rev() {
        stop_one.cancel();
        // Closed when it has ended. syncd may finish a start, for which it needs volnetd.
        let _ = tokio::time::timeout(CALLER_FIRST, async { while state.changed().await.is_ok() {} }).await;
    }
    std::future::pending::<()>().await;
}

/// The signals that the launcher obeys.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> Result<Self, LaunchError> {
        let listen = |kind| signal(kind).map_err(LaunchError::Signals);
        Ok(Signals {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// Never ends: what follows from a signal is `stop`.
    async fn obey(mut self, stop: &CancellationToken) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => break,
                _ = self.interrupt.recv() => break,
                _ = self.hangup.recv() => {
                    tracing::info!("SIGHUP does nothing: restart `kubelet` for a changed configuration");
                }
            }
        }
        tracing::info!("asked to stop; pods go on running");
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
        stop.cancel();
        std::future::pending::<()>().await;
    }
}

/// Takes away what the launcher has put into the folder of its sockets.
fn clean_up(config: &NodeConfig) {
    let _ = std::fs::remove_file(config.paths.rendered_config());
    sockets::remove(config);
    // Empty unless somebody else put something there, and then it stays.
    let _ = std::fs::remove_dir(&config.paths.run_dir);
}

/// A daemon that takes longer to become ready is named in the log, again and again.
const READY_SLOW: Duration = Duration::from_secs(60);

/// READY=1 once all four are ready, and our own supervisor's watchdog while they are.
async fn report_readiness(mut states: Vec<(Process, watch::Receiver<State>)>) {
    for (process, state) in &mut states {
        loop {
            match tokio::time::timeout(READY_SLOW, state.wait_for(|state| state.ready)).await {
                Ok(Ok(_)) => break,
                Ok(Err(_)) => return std::future::pending().await,
                Err(_) => tracing::warn!(process = process.name(), "still waiting for this daemon to become ready"),
            }
        }
        tracing::debug!(process = process.name(), "ready");
    }
    tracing::info!("all four daemons are ready");
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    // From here on it waits: most of its code was for the start.
    bulkhead_sys::program::let_go_of_pages();
    let Some(interval) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let mut tick = tokio::time::interval((interval / 2).max(Duration::from_millis(1)));
    loop {
        tick.tick().await;
        if states.iter().all(|(_, state)| state.borrow().ready) {
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
        }
    }
}

fn programs() -> Result<PathBuf, LaunchError> {
    let me = std::env::current_exe().map_err(LaunchError::Executable)?;
    programs::folder(me.parent().unwrap_or(Path::new("/"))).map_err(LaunchError::Missing)
}

fn warn_of_withheld(granted: &[bulkhead_sys::Capability]) {
    for process in Process::ALL {
        let (_, missing) = privileges::available(privileges::of(process), granted);
        if !missing.is_empty() {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            tracing::warn!(
                process = process.name(),
                missing = missing.join(","),
                "this machine withholds capabilities, going on without"
            );
        }
    }
}

/// Inherited by the daemons. Lowering needs CAP_SYS_RESOURCE, which a machine may withhold.
fn protect_from_oom(score: i32) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", score.to_string()) {
        tracing::warn!(%error, score, "could not set oomScoreAdj for the node agent");
    }
}

/// Inherited by the daemons. The kernel counts the processes and threads of a user over the whole machine, and a pod may run
/// as the user of a daemon: with its processes there the daemon could not be started, nor start a thread. What bounds the
/// daemons is the number of their own (pools), and under systemd the units' `TasksMax=`.
fn lift_processes_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    if setrlimit(Resource::Nproc, Rlimit { current: None, maximum: None }).is_ok() {
        return;
    }
    // Raising the hard limit takes CAP_SYS_RESOURCE, which a machine may withhold.
    let hard = getrlimit(Resource::Nproc).maximum;
    if let Err(error) = setrlimit(Resource::Nproc, Rlimit { current: hard, maximum: hard }) {
        tracing::warn!(%error, "could not lift the limit of processes (RLIMIT_NPROC)");
    }
    if let Some(limit) = hard {
        tracing::debug!(limit, "RLIMIT_NPROC stays limited: this machine allows no more");
    }
}

/// The limit that children get; the hard limit can only be raised with CAP_SYS_RESOURCE.
fn open_files_limit(wanted: i64) -> Option<u64> {
    let wanted = u64::try_from(wanted).ok().filter(|wanted| *wanted > 0)?;
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    match hard {
        Some(hard) if hard < wanted => {
            let raised = rustix::process::Rlimit { current: Some(wanted), maximum: Some(wanted) };
            match rustix::process::setrlimit(rustix::process::Resource::Nofile, raised) {
                Ok(()) => Some(wanted),
                Err(error) => {
                    tracing::warn!(%error, wanted, limit = hard, "maxOpenFiles is above this machine's limit");
                    Some(hard)
                }
            }
        }
        _ => Some(wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    #[test]
    fn the_limit_of_processes_is_lifted_as_far_as_it_goes() {
        let hard = getrlimit(Resource::Nproc).maximum;
        setrlimit(Resource::Nproc, Rlimit { current: Some(5000), maximum: hard }).unwrap();
        lift_processes_limit();
        let now = getrlimit(Resource::Nproc);
        assert_eq!(now.current, now.maximum);
        assert!(now.maximum == hard || now.maximum.is_none(), "{now:?}");
    }
}
