//! The ten steps from `main` to serving, and what a daemon is given to do its work.

use std::collections::BTreeMap;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::NodeConfig;
use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::common::logging_server::LoggingServer;
use bulkhead_ipc::common::process_server::ProcessServer;
use bulkhead_ipc::common::traces_server::TracesServer;
use bulkhead_ipc::limits::{Gate, Limits};
use bulkhead_ipc::peers::{MethodRule, PeerUsers, Policy};
use bulkhead_ipc::server::{HealthReporter, Services, ServingStatus};
use bulkhead_ipc::volnetd::{PrivateState, open_request::Kind};
use bulkhead_trace::Recorder;
use bulkhead_types::{BackOff, Epoch, Process};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::arguments::{self, Arguments};
use crate::exit::{ExitReason, ListenError};
use crate::listeners::{self, Listeners, Passed};
use crate::logging::{self, LogFormat};
use crate::memory;
use crate::metrics::Tasks;
use crate::peer_metrics::PeerMetrics;
use crate::pool;
use crate::privileges::{self, Applied, Program};
use crate::process_service::{Degraded, LoggingService, ProcessService, Readiness};
use crate::progress::{LOOP_BOUND, Progress};
use crate::state_dir::{StateDir, StateError};
use crate::supervisor;
use crate::traces::{self, TracesService};

/// How long calls in flight may take to end after SIGTERM. Watch streams never end by themselves, so it is waited out.
const DRAIN: Duration = Duration::from_millis(300);
/// How long an older instance may take to let go of the state folder.
const LOCK_PATIENCE: Duration = Duration::from_secs(15);

/// What makes one daemon different from the others, before its work begins.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    pub process: Process,
    /// One line for `--help`.
    pub about: &'static str,
    /// Comes before the process drops to its row of the privilege map, and before any thread exists: what a fence names
    /// must be there.
    pub before: fn(&NodeConfig),
    /// Forks a process with this one's privileges, after they were dropped and before any thread exists, and answers the
    /// socket to it: [`FORK_SERVER`] among the daemon's listeners.
    pub fork_server: Option<fn(&NodeConfig) -> std::io::Result<OwnedFd>>,
}

/// Name of the socket to the process that [`Spec::fork_server`] forked.
pub const FORK_SERVER: &str = "fork-server";

/// Why a daemon's work ended in failure.
pub type RunError = Box<dyn std::error::Error + Send + Sync>;

/// What a daemon has when its work begins.
#[derive(Debug)]
pub struct Daemon {
    pub process: Process,
    pub config: Arc<NodeConfig>,
    /// Of this start.
    pub epoch: Epoch,
    pub broker: BrokerClient,
    /// How much of this process its peers may use, over all of its sockets.
    pub gate: Arc<Gate>,
    /// Metrics; what is registered here is served by `Process.Metrics`.
    pub registry: prometheus::Registry,
    /// Metrics that are served apart from the others, because they grow with the pods: series of probes.
    pub probes: prometheus::Registry,
    /// Cancelled when the daemon is to stop.
    pub stop: CancellationToken,
    listeners: Mutex<Listeners>,
    readiness: Readiness,
    degraded: Degraded,
    privileges: Arc<Applied>,
    /// Spans that have ended; `None` where the configuration names no tracing.
    pub traces: Option<Recorder>,
    health: Mutex<Option<HealthReporter>>,
    /// What the watchdog's beat depends on: each main loop registers here.
    pub progress: Progress,
}

impl Daemon {
    /// What a daemon has when its work begins, for [`run`] and for a simulation of the daemon (decision 88). Draws the epoch.
    /// `listeners`: passed sockets by their names ("grpc", "broker").
    ///
    /// # Errors
    /// The kernel gives no random numbers, or a metric of the process cannot be made; the text says which.
    pub fn new(
        process: Process,
        config: NodeConfig,
        listeners: BTreeMap<String, OwnedFd>,
        privileges: Applied,
        traces: Option<Recorder>,
    ) -> Result<Self, String> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|e| format!("no random numbers: {e}"))?;
        let registry = prometheus::Registry::new();
        let tasks = Tasks::new(process.name()).and_then(|tasks| registry.register(Box::new(tasks)));
        tasks.map_err(|e| format!("no metric of tasks: {e}"))?;
        let gate = Gate::new(Limits::default());
        let peers = PeerMetrics::new(process.name(), gate.clone()).and_then(|peers| registry.register(Box::new(peers)));
        peers.map_err(|e| format!("no metric of peers: {e}"))?;
        Ok(Daemon {
            process,
            broker: BrokerClient::new(&config.paths.broker_socket()),
            gate,
            config: Arc::new(config),
            epoch: Epoch::from_random(u64::from_le_bytes(random)),
            registry,
            probes: prometheus::Registry::new(),
            stop: CancellationToken::new(),
            listeners: Mutex::new(listeners),
            readiness: Arc::new(Mutex::new(Err("starting".into()))),
            degraded: Degraded::default(),
            privileges: Arc::new(privileges),
            traces,
            health: Mutex::new(None),
            progress: Progress::default(),
        })
    }

    /// The link to another process; call edges are those of the design, one link a process.
    pub fn link(&self, to: Process) -> Link {
        Link::open(self.process.name(), to, &self.config.paths.socket(to))
    }

    /// Which uid is which daemon on this node.
    pub fn peer_users(&self) -> Arc<PeerUsers> {
        Arc::new(PeerUsers {
            syncd: self.config.users.syncd,
            evictiond: self.config.users.evictiond,
            statusd: self.config.users.statusd,
            pods_cgroup: self.config.pods_cgroup().into(),
            no_pods: (!self.config.kubelet.cgroups_per_qos()).then(own_cgroups),
        })
    }

    /// Takes what the supervisor has passed.
    pub fn take_passed(&self, passed: Passed) -> Option<OwnedFd> {
        self.take_listener(passed.name())
    }

    /// Takes by its name what an earlier start of this process had kept, or this one has made for itself.
    pub fn take_listener(&self, name: &str) -> Option<OwnedFd> {
        self.listeners.lock().remove(name)
    }

    /// Takes what an earlier start of this process had kept under a name that begins so, with that name.
    pub fn take_kept(&self, prefix: &str) -> BTreeMap<String, OwnedFd> {
        let mut listeners = self.listeners.lock();
        let (kept, others) =
            std::mem::take(&mut *listeners).into_iter().partition(|(name, _)| name.starts_with(prefix));
        *listeners = others;
        kept
    }

    /// Asks the broker for this process's state folder and locks it for life. Waits while volnetd is away, and a while
    /// for an older instance to end.
    ///
    /// # Errors
    /// The broker's refusal, or [`StateError::Locked`].
    pub async fn state_dir(&self) -> Result<StateDir, RunError> {
        let started = tokio::time::Instant::now();
        let mut retry = BackOff::new(Duration::from_millis(20), Duration::from_secs(1));
        loop {
            match self.broker.open(Kind::PrivateState(PrivateState {})).await {
                Ok(dir) => match StateDir::lock(dir) {
                    Ok(state) => return Ok(state),
                    Err(StateError::Locked) if started.elapsed() < LOCK_PATIENCE => {
                        tracing::info!("an older instance of this process still holds the state folder, waiting");
                    }
                    Err(error) => return Err(error.into()),
                },
                Err(error) if error.code() == tonic::Code::Unavailable => {
                    tracing::debug!(error = &error as &dyn std::error::Error, "broker is away, waiting");
                }
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(retry.pause()).await;
        }
    }

    /// Services with health, reflection and Process in them.
    pub fn services(&self) -> Services {
        let services = Services::of(self.process).behind(self.gate.clone());
        *self.health.lock() = Some(services.health());
        let process = ProcessService {
            process: self.process,
            epoch: self.epoch,
            readiness: self.readiness.clone(),
            degraded: self.degraded.clone(),
            registry: self.registry.clone(),
            probes: self.probes.clone(),
            privileges: self.privileges.clone(),
        };
        let logging = LoggingServer::new(LoggingService::default()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let services = services.add(logging);
        let traces = TracesServer::new(TracesService(self.traces.clone())).max_decoding_message_size(MAX_MESSAGE_BYTES);
        services.add(ProcessServer::new(process).max_decoding_message_size(MAX_MESSAGE_BYTES)).add(traces)
    }

    /// Serves the gRPC socket until the daemon stops.
    ///
    /// # Errors
    /// No socket was passed, or the server cannot run.
    pub async fn serve(&self, services: Services, rules: &'static [MethodRule]) -> Result<(), RunError> {
        let listener = self.take_passed(Passed::Grpc).ok_or("no socket named \"grpc\" was passed by the supervisor")?;
        let listener = std::os::unix::net::UnixListener::from(listener);
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let services = match self.take_passed(Passed::Vsock) {
            Some(vsock) => {
                tracing::info!("answers read-only calls of this machine and its host on vsock");
                services.also_on(vsock)
            }
            None => services,
        };
        let policy = Policy { users: self.peer_users(), rules };
        let stop = self.stop.clone();
        // The loop that accepts looks at its end each time it is polled, and so answers the watchdog.
        let heartbeat = self.progress.register("serving", LOOP_BOUND);
        let ended = async { heartbeat.rests(stop.cancelled()).await };
        let server = bulkhead_ipc::server::serve(listener, policy, services, ended);
        tokio::pin!(server);
        tokio::select! {
            ended = &mut server => Ok(ended?),
            () = async { stop.cancelled().await; tokio::time::sleep(DRAIN).await } => {
                Ok(())
            }
        }
    }

    /// Says to peers and to the supervisor that the daemon can do its job.
    pub async fn set_ready(&self) {
        *self.readiness.lock() = Ok(());
        let health = self.health.lock().clone();
        if let Some(health) = health {
            health.set_service_status("", ServingStatus::Serving).await;
        }
        supervisor::notify(&[sd_notify::NotifyState::Ready]);
        tracing::info!(epoch = %self.epoch, "ready");
    }

    /// What the daemon waits for, for Hello and the supervisor's status line.
    pub fn set_waiting(&self, reason: &str) {
        *self.readiness.lock() = Err(reason.to_owned());
        supervisor::notify(&[sd_notify::NotifyState::Status(reason)]);
    }

    /// What the daemon does with less than it should have, for Hello and the supervisor's status line; `None`: no longer. It
    /// stays ready: what is degraded works, later or at more cost.
    pub fn set_degraded(&self, subject: &'static str, sentence: Option<String>) {
        let mut degraded = self.degraded.lock();
        match sentence {
            Some(sentence) => degraded.insert(subject, sentence),
            None => degraded.remove(subject),
        };
        let all: Vec<&str> = degraded.values().map(String::as_str).collect();
        supervisor::notify(&[sd_notify::NotifyState::Status(&all.join("; "))]);
    }

    fn tell_of_pool(&self, trouble: Option<String>) {
        match &trouble {
            Some(trouble) => tracing::error!("{trouble}"),
            None => tracing::info!("the pool of threads takes work again"),
        }
        supervisor::notify(&[sd_notify::NotifyState::Status(trouble.as_deref().unwrap_or_default())]);
    }
}

/// The body of each daemon's `main`.
pub fn run<W, F>(spec: Spec, work: W) -> ExitCode
where
    W: FnOnce(Arc<Daemon>) -> F,
    F: Future<Output = Result<(), RunError>>,
{
    match start(spec, work) {
        Ok(reason) => reason.into(),
        Err((reason, message)) => {
            // Logging may not be up yet, and a wrong command line is for a person anyway.
            eprintln!("{}: {message}", spec.process.name());
            reason.into()
        }
    }
}

fn start<W, F>(spec: Spec, work: W) -> Result<ExitReason, (ExitReason, String)>
where
    W: FnOnce(Arc<Daemon>) -> F,
    F: Future<Output = Result<(), RunError>>,
{
    privileges::hide_memory().map_err(|e| (ExitReason::Privileges, format!("could not hide memory: {e}")))?;
    let run_dir = match arguments::parse(spec.process.name(), spec.about, std::env::args().skip(1)) {
        Ok(Arguments::Run { run_dir }) => run_dir,
        Ok(Arguments::Print(text)) => {
            println!("{text}");
            return Ok(ExitReason::Stopped);
        }
        Err(message) => return Err((ExitReason::Usage, message)),
    };
    let config = load_config(run_dir).map_err(|message| (ExitReason::Config, message))?;
    let logging = &config.kubelet.logging;
    let format = if logging.format == "json" { LogFormat::Json } else { LogFormat::Text };
    let (traces, recording) = traces::recording(&config).unzip();
    logging::start(format, logging.verbosity, recording);
    let mut listeners =
        listeners::take().map_err(|e| (ExitReason::Privileges, format!("could not take the passed sockets: {e}")))?;

    (spec.before)(&config);
    let privileges = privileges::apply(Program::Daemon(spec.process), Some(&config))
        .map_err(|e| (ExitReason::Privileges, format!("privileges: {e}")))?;
    if listeners.contains_key(Passed::Death.name()) {
        // Set by the launcher too, but root's exec with more capabilities than before clears it.
        bulkhead_sys::process::die_with_parent().map_err(|e| (ExitReason::Privileges, e.to_string()))?;
    }
    for warning in &privileges.warnings {
        tracing::warn!("{warning}");
    }
    if let Some(fork) = spec.fork_server {
        let socket = fork(&config).map_err(|e| (ExitReason::Failed, format!("could not fork: {e}")))?;
        listeners.insert(FORK_SERVER.to_owned(), socket);
    }

    let daemon = Daemon::new(spec.process, config, listeners, privileges, traces);
    let daemon = Arc::new(daemon.map_err(|message| (ExitReason::Failed, message))?);
    // One thread does the work; the pool for blocking calls stays small, idle threads leave it soon.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .thread_keep_alive(Duration::from_secs(2))
        .build()
        .map_err(|e| (ExitReason::Failed, format!("could not start the runtime: {e}")))?;
    let reason = runtime.block_on(supervise(daemon, work));
    // Blocking work that hangs (a dead mount) must not hold up the exit.
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(reason)
}

async fn supervise<W, F>(daemon: Arc<Daemon>, work: W) -> ExitReason
where
    W: FnOnce(Arc<Daemon>) -> F,
    F: Future<Output = Result<(), RunError>>,
{
    let death = daemon.take_passed(Passed::Death);
    let (progress, readiness) = (daemon.progress.clone(), daemon.readiness.clone());
    let pool = progress.register("pool", LOOP_BOUND);
    let tell = daemon.clone();
    let ready = |readiness: &Readiness| readiness.lock().is_ok();
    let stop = daemon.stop.clone();
    let work = work(daemon.clone());
    tokio::pin!(work);
    let late = async {
        stop.cancelled().await;
        supervisor::notify(&[sd_notify::NotifyState::Stopping]);
        tokio::time::sleep(Duration::from_secs(5)).await;
    };
    let signals = async {
        if let Err(error) = supervisor::stop_signals(stop.clone()).await {
            tracing::error!(%error, "signals cannot be handled");
        }
        std::future::pending::<()>().await
    };
    tokio::select! {
        ended = &mut work => match ended {
            Ok(()) => ExitReason::Stopped,
            Err(error) => {
                tracing::error!(error = &*error as &dyn std::error::Error, "giving up");
                if error.downcast_ref::<StateError>().is_some_and(|e| matches!(e, StateError::Locked)) {
                    ExitReason::Locked
                } else if error.is::<ListenError>() {
                    ExitReason::Listen
                } else {
                    ExitReason::Failed
                }
            }
        },
        () = late => {
            tracing::warn!("did not stop in time, leaving");
            ExitReason::Stopped
        }
        () = supervisor::launcher_gone(death) => {
            tracing::warn!("the launcher is gone");
            ExitReason::Orphaned
        }
        () = supervisor::watchdog(progress, move || ready(&readiness)) => ExitReason::Failed,
        never = pool::watch(pool, move |trouble| tell.tell_of_pool(trouble)) => match never {},
        () = signals => ExitReason::Stopped,
        never = memory::give_back() => match never {},
    }
}

fn load_config(run_dir: PathBuf) -> Result<NodeConfig, String> {
    let path = run_dir.join("config.json");
    NodeConfig::load(&path).map_err(|error| {
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        text
    })
}

/// Where this process is; nowhere where that cannot be read, so that fewer are peers and none is too many.
fn own_cgroups() -> Vec<String> {
    bulkhead_sys::peer::own_cgroups().unwrap_or_else(|error| {
        tracing::error!(error = &error as &dyn std::error::Error, "failed to read this process's own cgroups");
        Vec::new()
    })
}
