//! The loop: looks at all logs, does what the plans say. What must be prompt (a log that is too large) waits for nothing; what takes
//! long (compression) goes on beside it, as much at a time as `containerLogMaxWorkers` says.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::NodeConfig;
use bulkhead_daemon::progress::Heartbeat;
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::syncd::ContainerLogPlace;
use bulkhead_types::{BackOff, LogStamp, chain};
use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use super::compress::{CompressError, compress};
use super::plan::{Current, Plan, Policy, plan};
use super::syncd::{LogList, Syncd};
use crate::walker::Walker;

/// After a pass for which somebody was away, the first time.
const RETRY: Duration = Duration::from_secs(1);

/// What is looked for, and how often.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub policy: Policy,
    pub workers: usize,
    pub interval: Duration,
}

impl Settings {
    /// `None`: rotation is off.
    pub fn of(config: &NodeConfig) -> Option<Self> {
        let number = |number: i32, least: usize| usize::try_from(number).unwrap_or(least).max(least);
        Some(Settings {
            policy: Policy {
                max_bytes: u64::try_from(config.container_log_max_size()?).ok()?,
                max_files: number(config.kubelet.container_log_max_files(), 2),
            },
            workers: number(config.kubelet.container_log_max_workers(), 1),
            interval: config.kubelet.container_log_monitor_interval().to_std(),
        })
    }
}

/// See the module.
#[derive(Debug)]
pub struct LogManager {
    settings: Settings,
    syncd: Syncd,
    walker: Walker,
    broker: BrokerClient,
    stop: CancellationToken,
    compression: Arc<Compression>,
}

/// What is being compressed: containers' ids and stamps.
#[derive(Debug)]
struct Compression {
    turns: Semaphore,
    running: Mutex<HashSet<(String, LogStamp)>>,
}

impl Compression {
    fn begin(&self, key: (String, LogStamp)) -> bool {
        self.running.lock().insert(key)
    }

    fn end(&self, key: &(String, LogStamp)) {
        self.running.lock().remove(key);
    }

    fn is_running(&self, log: &ContainerLogPlace, stamp: LogStamp) -> bool {
        let running = self.running.lock();
        running.contains(&(log.container_id.clone(), stamp))
    }
}

impl LogManager {
    pub fn new(settings: Settings, syncd: Link, walker: Walker, broker: BrokerClient, stop: CancellationToken) -> Self {
        let compression = Compression { turns: Semaphore::new(settings.workers), running: Mutex::default() };
        LogManager { settings, syncd: Syncd::new(syncd), walker, broker, stop, compression: Arc::new(compression) }
    }

    /// Until the daemon is to stop.
    pub async fn run(self, heartbeat: Heartbeat) {
        let mut due = Instant::now();
        let mut retry = BackOff::new(RETRY, self.settings.interval);
        let mut list = LogList::default();
        loop {
            let stopped = heartbeat.rests(async {
                tokio::select! {
                    biased;
                    () = self.stop.cancelled() => true,
                    () = tokio::time::sleep_until(due) => false,
                }
            });
            if stopped.await {
                return;
            }
            // For kubelet-syncd, and for file systems.
            let _waiting = heartbeat.waits_on();
            let began = Instant::now();
            let pass = tokio::select! {
                pass = self.pass(&mut list) => pass,
                () = self.stop.cancelled() => return,
            };
            due = match pass {
                Ok(()) => {
                    retry.reset();
                    (began + self.settings.interval).max(Instant::now())
                }
                Err(status) => {
                    tracing::debug!(code = ?status.code(), "logs are not looked at: {}", status.message());
                    Instant::now() + retry.pause()
                }
            };
        }
    }

    async fn pass(&self, list: &mut LogList) -> Result<(), Status> {
        self.syncd.list(list).await?;
        let logs = &list.logs;
        if logs.is_empty() {
            return Ok(());
        }
        let files = self.walker.container_logs(logs).await;
        let files = files.ok_or_else(|| Status::unavailable("kubelet-walker does not answer"))?;
        let planned = logs.iter().zip(files).filter_map(|(log, files)| {
            // What could not be looked at is not known to be missing.
            let mut plan = plan(&files?, log.running, self.settings.policy);
            // Both forms are there for a moment.
            plan.remove.retain(|removal| !removal.is_double || !self.compression.is_running(log, removal.stamp));
            (!plan.is_empty()).then_some((log, plan))
        });
        let planned: Vec<(&ContainerLogPlace, Plan)> = planned.collect();
        stream::iter(planned).for_each_concurrent(self.settings.workers, |(log, plan)| self.carry_out(log, plan)).await;
        Ok(())
    }

    async fn carry_out(&self, log: &ContainerLogPlace, plan: Plan) {
        let Plan { remove, current, compress, compress_then } = plan;
        if !remove.is_empty()
            && let Err(status) = self.syncd.remove(log, &remove).await
        {
            return failed("remove rotated logs", log, &status);
        }
        compress.into_iter().for_each(|stamp| self.compress(log, stamp));
        let done = match current {
            Current::Stays => Ok(()),
            Current::Reopen => self.syncd.reopen(log).await,
            Current::Restore(stamp) => self.syncd.restore(log, stamp).await,
            Current::Rotate => self.syncd.rotate(log).await.map(|stamp| {
                tracing::debug!(pod = log.name, container = log.container, stamp, "log rotated");
                compress_then.into_iter().for_each(|stamp| self.compress(log, stamp));
            }),
        };
        if let Err(status) = done {
            let doing = match current {
                Current::Stays | Current::Rotate => "rotate log",
                Current::Reopen => "reopen missing log",
                Current::Restore(_) => "restore missing log",
            };
            failed(doing, log, &status);
        }
    }

    /// Compresses it when its turn comes; what is being compressed is left alone.
    fn compress(&self, log: &ContainerLogPlace, stamp: LogStamp) {
        let key = (log.container_id.clone(), stamp);
        if !self.compression.begin(key.clone()) {
            return;
        }
        let (compression, log) = (self.compression.clone(), log.clone());
        let (broker, stop) = (self.broker.clone(), self.stop.clone());
        tokio::spawn(async move {
            // It is never closed.
            let turn = compression.turns.acquire().await;
            let result = compress(&broker, &log, stamp, &stop).await;
            drop(turn);
            match result {
                Ok(()) | Err(CompressError::Stopped) => {}
                // The oldest ones may have had to go while it waited.
                Err(CompressError::Broker(error)) if error.code() == Code::NotFound => {}
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(
                        pod = format!("{}/{}", log.namespace, log.name),
                        container = log.container,
                        %stamp,
                        error,
                        "Failed to compress rotated log; the next pass tries again"
                    );
                }
            }
            compression.end(&key);
        });
    }
}

/// The next pass tries again.
fn failed(doing: &str, log: &ContainerLogPlace, status: &Status) {
    let (pod, container) = (format!("{}/{}", log.namespace, log.name), &log.container);
    let (code, message) = (status.code(), status.message());
    // The container has ended or gone since it was listed, or the files are others than they were.
    if matches!(code, Code::NotFound | Code::FailedPrecondition) {
        tracing::debug!(pod, container, ?code, "Failed to {doing}: {message}");
    } else {
        tracing::warn!(pod, container, ?code, "Failed to {doing}: {message}");
    }
}
