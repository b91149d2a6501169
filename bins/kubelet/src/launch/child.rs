//! One daemon: started, watched until it ends, started again.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bulkhead_config::NodeConfig;
use bulkhead_daemon::{ExitReason, Passed};
use bulkhead_sys::Capability;
use bulkhead_sys::scm::Datagram;
use bulkhead_sys::spawn::{Spec, User};
use bulkhead_types::Process;
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::notify;
use super::privileges;
use super::restart::RestartBackOff;
use super::sockets::{self, Sockets};
use super::store::Store;

/// A daemon beats twice within this; one that misses it is killed and started again.
const WATCHDOG: Duration = Duration::from_secs(30);
/// From SIGTERM to SIGKILL.
const STOP_PATIENCE: Duration = Duration::from_secs(8);
/// Passed on from the launcher's own environment, where set.
pub const ENVIRONMENT: [&str; 11] = [
    "PATH",
    // Where docker's credentials for registries are looked for.
    "HOME",
    "TZ",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "RUST_BACKTRACE",
    "SSL_CERT_FILE",
];

/// What all children share.
#[derive(Debug)]
pub struct Shared<'a> {
    pub config: &'a NodeConfig,
    /// Sockets to helpers, and what only root may open: for whom, as what.
    pub passed: Vec<(Process, Passed, &'a OwnedFd)>,
    /// Read end of a pipe whose other end only the launcher holds.
    pub death: &'a OwnedFd,
    /// Folder of the four programs.
    pub programs: PathBuf,
    /// What the machine grants at all.
    pub granted: Vec<Capability>,
    pub max_open_files: Option<u64>,
}

/// How a daemon is doing, for the launcher's own READY.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct State {
    /// Ready now.
    pub ready: bool,
    /// Was ready once: what fails before that may be a broken installation.
    pub proven: bool,
}

/// A daemon that ended before it was ever ready, with a code that a restart will not mend.
#[derive(Debug, thiserror::Error)]
#[error("{process} cannot run: {why}")]
pub struct Hopeless {
    pub process: Process,
    pub why: String,
}

/// Runs the daemon until `stop`; then SIGTERM, and SIGKILL when it takes too long.
pub async fn run(
    process: Process,
    shared: &Shared<'_>,
    mut sockets: Sockets,
    state: watch::Sender<State>,
    stop: CancellationToken,
) -> Result<(), Hopeless> {
    let mut back_off = RestartBackOff::new();
    let mut store = Store::default();
    loop {
        let started = Instant::now();
        if let Err(error) = sockets.restore(shared.config) {
            let error = &error as &dyn std::error::Error;
            tracing::error!(process = process.name(), error, "failed to make removed files anew");
        }
        let ended = match start(process, shared, &sockets, &store) {
            Ok(mut child) => {
                tracing::info!(process = process.name(), pid = child.id(), "started");
                tokio::select! {
                    status = watch_one(process, &mut child, sockets.notifications(), &mut store, &state, &stop) => match status {
                        Some(status) => describe(status),
                        None => {
                            terminate(process, &mut child).await;
                            return Ok(());
                        }
                    },
                    () = sockets.removed() => {
                        terminate(process, &mut child).await;
                        Ended { code: None, why: "the files of its sockets were removed".to_owned() }
                    }
                }
            }
            Err(error) => Ended { code: None, why: format!("could not be started: {error}") },
        };
        let proven = state.borrow().proven;
        state.send_modify(|state| state.ready = false);
        let hopeless = matches!(ended.code, Some(code) if
            [ExitReason::Usage, ExitReason::Config, ExitReason::Privileges, ExitReason::Listen].iter().any(|r| *r as i32 == code));
        if hopeless && !proven {
            return Err(Hopeless { process, why: ended.why });
        }
        let mut wait = back_off.after(started.elapsed());
        if ended.code == Some(ExitReason::Listen as i32) && store.clear() {
            // A program of an earlier version does not take up what is kept here, and finds its ports taken.
            tracing::warn!(
                process = process.name(),
                "closed the daemon's kept ports: its version does not take them up"
            );
            wait = Duration::ZERO;
        }
        tracing::warn!(
            process = process.name(),
            ended = ended.why,
            wait_ms = wait.as_millis() as u64,
            "ended, will be started again"
        );
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

fn start(
    process: Process,
    shared: &Shared<'_>,
    sockets: &Sockets,
    store: &Store,
) -> std::io::Result<tokio::process::Child> {
    let config = shared.config;
    let mut spec = Spec::new(shared.programs.join(process.name()));
    spec.args = vec!["--run-dir".into(), config.paths.run_dir.clone().into()];
    spec.env = ENVIRONMENT.iter().filter_map(|name| Some(((*name).into(), std::env::var_os(name)?))).collect();
    spec.env.push(("NOTIFY_SOCKET".into(), sockets::notification_path(config, process).into()));
    spec.env.push(("WATCHDOG_USEC".into(), WATCHDOG.as_micros().to_string().into()));
    spec.fds = sockets.copies()?;
    let passed = shared.passed.iter().filter(|(of, ..)| *of == process).map(|(_, passed, fd)| (*passed, *fd));
    for (passed, fd) in passed.chain([(Passed::Death, shared.death)]) {
        spec.fds.push((passed.name().to_owned(), fd.try_clone()?));
    }
    // Last: of one name the first counts.
    spec.fds.extend(store.copies()?);
    let (capabilities, _) = privileges::available(privileges::of(process), &shared.granted);
    spec.user = Some(User {
        uid: config.users.uid(process),
        gid: config.users.primary_gid(process),
        groups: vec![config.users.gid],
    });
    if process != Process::Volnetd {
        // root's exec takes the whole bounding set; another user keeps only what is ambient.
        spec.ambient.clone_from(&capabilities);
    }
    spec.bounding = Some(capabilities);
    // With no_new_privs root's exec gains nothing over the launcher, which has given up most already: volnetd, whose
    // bounding set is its limit, sets the flag itself when it is up.
    spec.no_new_privs = process != Process::Volnetd;
    spec.lock_securebits = true;
    spec.die_with_parent = true;
    spec.max_open_files = shared.max_open_files;
    // Not a cgroup: whose cgroup this is (a unit's without Delegate=, a container's) is for its owner to divide (decision 53).
    let row = bulkhead_daemon::privileges::Program::Daemon(process).row();
    spec.max_data_bytes = Some(row.memory_bytes);
    spec.oom_score_adj = row.oom_score_adj;
    let (command, slots) = spec.prepare()?.into_parts();
    let child = tokio::process::Command::from(command).spawn();
    drop(slots);
    child
}

/// Until the child ends (its status), or `stop` (`None`).
async fn watch_one(
    process: Process,
    child: &mut tokio::process::Child,
    notifications: &UnixDatagram,
    store: &mut Store,
    state: &watch::Sender<State>,
    stop: &CancellationToken,
) -> Option<std::io::Result<std::process::ExitStatus>> {
    let mut beat = tokio::time::Instant::now();
    let mut buffer = [0; notify::MAX_BYTES];
    loop {
        let received = tokio::select! {
            status = child.wait() => return Some(status),
            () = stop.cancelled() => return None,
            received = receive(notifications, &mut buffer) => received,
            // A launcher that stood still itself (stopped, starved of the processor) wakes up to the clock before it has heard what
            // was said meanwhile: the socket is asked, and only a daemon that said nothing is killed.
            () = tokio::time::sleep_until(beat + WATCHDOG) => match bulkhead_sys::scm::recv(notifications, &mut buffer) {
                Ok(datagram) => Ok(datagram),
                Err(_) => {
                    tracing::error!(process = process.name(), seconds = WATCHDOG.as_secs(), "missed its watchdog, killed");
                    // An error means that it has just ended, which `wait` tells next.
                    let _ = child.start_kill();
                    beat = tokio::time::Instant::now();
                    continue;
                }
            },
        };
        let Ok(datagram) = received else { continue };
        let said = notify::parse(&buffer[..datagram.len]);
        // The others have nothing to lose, and whatever they send is closed here.
        if matches!(process, Process::Statusd | Process::Volnetd) {
            store.heed(&said, datagram.fds);
        }
        if said.ready {
            state.send_modify(|state| *state = State { ready: true, proven: true });
        }
        if said.ready || said.watchdog {
            beat = tokio::time::Instant::now();
        }
        if let Some(status) = said.status {
            tracing::debug!(process = process.name(), status, "says");
        }
    }
}

/// A datagram with the descriptors that came along. One that is too long is an error of its sender's, and gone.
async fn receive(socket: &UnixDatagram, buffer: &mut [u8]) -> std::io::Result<Datagram> {
    socket.async_io(Interest::READABLE, || bulkhead_sys::scm::recv(socket, buffer)).await
}

async fn terminate(process: Process, child: &mut tokio::process::Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        // Not reaped yet, so the pid is still this child's.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    match tokio::time::timeout(STOP_PATIENCE, child.wait()).await {
        Ok(_) => tracing::info!(process = process.name(), "stopped"),
        Err(_) => {
            tracing::warn!(process = process.name(), "did not stop in time, killed");
            let _ = child.kill().await;
        }
    }
}

struct Ended {
    code: Option<i32>,
    why: String,
}

fn describe(status: std::io::Result<std::process::ExitStatus>) -> Ended {
    use std::os::unix::process::ExitStatusExt as _;
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => {
                Ended { code: Some(code), why: format!("exit code {code}, {}", ExitReason::explain(code)) }
            }
            (None, Some(signal)) => Ended { code: None, why: format!("signal {signal}") },
            (None, None) => Ended { code: None, why: status.to_string() },
        },
        Err(error) => Ended { code: None, why: format!("could not be waited for: {error}") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets whatever is due be done, without time passing.
    async fn settle(watching: &mut (impl Future<Output = Option<std::io::Result<std::process::ExitStatus>>> + Unpin)) {
        for _ in 0..8 {
            let _ = futures_util::poll!(&mut *watching);
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_launcher_that_stood_still_kills_who_was_silent_alone() {
        let folder = tempfile::tempdir().unwrap();
        let notifications = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        let daemon = std::os::unix::net::UnixDatagram::unbound().unwrap();
        daemon.connect(folder.path().join("notify")).unwrap();
        let mut child = tokio::process::Command::new("sleep").arg("1000").kill_on_drop(true).spawn().unwrap();
        let (mut store, stop, (state, _)) =
            (Store::default(), CancellationToken::new(), watch::channel(State::default()));
        {
            let watching = watch_one(Process::Syncd, &mut child, &notifications, &mut store, &state, &stop);
            let mut watching = std::pin::pin!(watching);
            // As often as shows that nothing is left to chance.
            for _ in 0..32 {
                settle(&mut watching).await;
                daemon.send(b"STATUS=works").unwrap();
                daemon.send(b"WATCHDOG=1").unwrap();
                tokio::time::advance(WATCHDOG + Duration::from_secs(1)).await;
            }
            settle(&mut watching).await;
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(child.try_wait().unwrap().is_none(), "it beat all the time");
        let ended = watch_one(Process::Syncd, &mut child, &notifications, &mut store, &state, &stop).await;
        assert_eq!(describe(ended.unwrap()).why, "signal 9", "and now it does not");
    }
}
