//! Processes beside the four daemons that do one thing for one of them, with a user and privileges of their own: started with
//! one end of a socket pair, of which that daemon gets the other one, and started again when they end, or when they are asked
//! again.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bulkhead_config::NodeConfig;
use bulkhead_daemon::Passed;
use bulkhead_daemon::privileges::Program;
use bulkhead_sys::Capability;
use bulkhead_sys::spawn::{Spec, User};
use tokio::io::Interest;
use tokio_util::sync::CancellationToken;

use super::restart::RestartBackOff;

/// Both ends of the pair, for the launcher's life: a restart on either side loses no request.
#[derive(Debug)]
pub struct Helper {
    program: Program,
    file: PathBuf,
    user: User,
    capabilities: Vec<Capability>,
    run_dir: Option<PathBuf>,
    /// It is started when a question waits for it, and ends by itself.
    on_demand: bool,
    /// What its end is passed as.
    passed: Passed,
    own: OwnedFd,
    theirs: OwnedFd,
}

/// Why there is no such process.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    #[error("{} is missing", .0.display())]
    Missing(PathBuf),
    #[error("failed to make its socket")]
    Socket(#[source] std::io::Error),
}

impl Helper {
    /// `passed`: what its end is passed to it as. `granted`: what the machine gives at all.
    ///
    /// # Errors
    /// The program is not there, or there is no socket to be had.
    pub fn prepare(
        program: Program,
        passed: Passed,
        user: User,
        programs: &Path,
        granted: &[Capability],
    ) -> Result<Self, HelperError> {
        let file = programs.join(program.name());
        if !file.is_file() {
            return Err(HelperError::Missing(file));
        }
        let (own, theirs) = bulkhead_sys::scm::pair().map_err(HelperError::Socket)?;
        let (capabilities, _) = super::privileges::available(program.row().capabilities, granted);
        Ok(Helper { program, file, user, capabilities, run_dir: None, on_demand: false, passed, own, theirs })
    }

    /// Tells it where the configuration is.
    pub fn with_configuration(mut self, config: &NodeConfig) -> Self {
        self.run_dir = Some(config.paths.run_dir.clone());
        self
    }

    /// It runs only while something is asked.
    pub fn on_demand(mut self) -> Self {
        self.on_demand = true;
        self
    }

    /// The end for the daemon that it works for.
    pub fn asker(&self) -> &OwnedFd {
        &self.theirs
    }

    /// Runs the process, and starts it again when it ends, until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        let process = self.program.name();
        let mut back_off = RestartBackOff::new();
        loop {
            if self.on_demand {
                tokio::select! {
                    asked = self.question() => if let Err(error) = asked {
                        tracing::warn!(process, %error, "failed to watch helper socket");
                        return;
                    },
                    () = stop.cancelled() => return,
                }
            }
            let started = Instant::now();
            match self.start() {
                Ok(mut child) => {
                    if self.on_demand {
                        tracing::debug!(process, pid = child.id(), "started");
                    } else {
                        tracing::info!(process, pid = child.id(), "started");
                    }
                    tokio::select! {
                        status = child.wait() => match status {
                            Ok(status) if self.on_demand && status.success() => continue,
                            status => tracing::warn!(process, ?status, "ended, will be started again"),
                        },
                        () = stop.cancelled() => {
                            // It keeps nothing.
                            let _ = child.kill().await;
                            return;
                        }
                    }
                }
                Err(error) => tracing::warn!(process, %error, "failed to start helper"),
            }
            tokio::select! {
                () = tokio::time::sleep(back_off.after(started.elapsed())) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Until a question waits in the socket.
    async fn question(&self) -> std::io::Result<()> {
        let socket = bulkhead_sys::async_fd::register(self.own.try_clone()?)?;
        socket.async_io(Interest::READABLE, |socket| bulkhead_sys::scm::peek(socket)).await
    }

    fn start(&self) -> std::io::Result<tokio::process::Child> {
        let row = self.program.row();
        let mut spec = Spec::new(&self.file);
        spec.args = self.run_dir.iter().flat_map(|folder| ["--run-dir".into(), folder.clone().into()]).collect();
        spec.fds = vec![(self.passed.name().to_owned(), self.own.try_clone()?)];
        spec.user = Some(self.user.clone());
        spec.ambient.clone_from(&self.capabilities);
        spec.bounding = Some(self.capabilities.clone());
        // Such a one sets the flag itself when it is up, as kubelet-volnetd does.
        let by_exec = row.programs_give_root_up();
        spec.no_new_privs = !by_exec;
        spec.lock_securebits = !by_exec;
        spec.die_with_parent = true;
        spec.max_data_bytes = Some(row.memory_bytes);
        spec.oom_score_adj = row.oom_score_adj;
        let (command, slots) = spec.prepare()?.into_parts();
        let child = tokio::process::Command::from(command).spawn();
        drop(slots);
        child
    }
}
