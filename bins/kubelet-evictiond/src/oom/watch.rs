//! Reads the kernel's log whenever it has grown, counts, and tells kubelet-syncd of what befell the machine as a whole.
//!
//! A start reads from the beginning of the log: what was read by a process that died before it dealt with it is found again, and the
//! ledger says what was dealt with. While nothing is written to the log nothing is done.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_daemon::StateDir;
use bulkhead_daemon::progress::Heartbeat;
use bulkhead_daemon::state_file::{self, StateFile};
use bulkhead_types::BackOff;
use prometheus::IntCounterVec;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::counts::OomCounts;
use super::kill::{Detector, Kill, Scope};
use super::ledger::{self, Ledger};
use super::log::{KernelLog, RECORD_MAX, Read};
use super::owner::Owners;
use super::record;
use super::syncd::Listener;
use crate::cgroup::Hierarchy;

const LEDGER: StateFile = StateFile { name: "kernel-log.json", version: ledger::VERSION };
/// Records that are read before others have their turn.
const TURN: usize = 256;
/// Pause before a kill is told once more, doubled between these.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// What could not be written is tried again after this.
const SAVE_AGAIN: Duration = Duration::from_secs(10);

/// What the loop is made of.
#[derive(Debug)]
pub struct Parts<L, S> {
    pub log: L,
    pub syncd: S,
    pub owners: Owners,
    pub hierarchy: Hierarchy,
    pub counts: OomCounts,
    pub kills: IntCounterVec,
    pub state: Arc<StateDir>,
    pub boot_id: String,
    pub stop: CancellationToken,
}

/// See the module.
#[derive(Debug)]
struct Watch<L, S> {
    parts: Parts<L, S>,
    ledger: Ledger,
    /// Since when the ledger is not as it is on the disk.
    unsaved: Option<Instant>,
    detector: Detector,
    buffer: Vec<u8>,
}

/// Until the daemon is to stop.
///
/// # Errors
/// The log can be read no further; what it told stays in the ledger.
pub async fn run<L: KernelLog, S: Listener>(parts: Parts<L, S>, heartbeat: Heartbeat) -> io::Result<()> {
    let kept = parts.state.load(LEDGER, |bytes| serde_json::from_slice(bytes)).unwrap_or_else(|error| {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "failed to load the place in the kernel's log: its last kills may be reported again"
        );
        None
    });
    let ledger = Ledger::of_boot(kept, &parts.boot_id);
    let mut watch = Watch { parts, ledger, unsaved: None, detector: Detector::default(), buffer: vec![0; RECORD_MAX] };
    watch.parts.log.rewind()?;
    let mut retry = BackOff::new(RETRY.0, RETRY.1);
    let mut tell_at = Instant::now();
    loop {
        watch.read_all(&heartbeat).await?;
        if watch.unsaved.is_some_and(|since| since <= Instant::now()) {
            watch.save();
        }
        if !watch.ledger.waiting.is_empty() && tell_at <= Instant::now() {
            let _waiting = heartbeat.waits_on();
            if watch.tell().await {
                retry.reset();
            } else {
                tell_at = Instant::now() + retry.pause();
            }
            continue;
        }
        let again = watch.unsaved.unwrap_or_else(|| Instant::now() + SAVE_AGAIN);
        let Watch { parts: Parts { log, syncd, stop, .. }, ledger, unsaved, .. } = &mut watch;
        let untold = async {
            tokio::time::sleep_until(tell_at).await;
            syncd.ready().await;
        };
        let stopped = heartbeat
            .rests(async {
                tokio::select! {
                    () = stop.cancelled() => Ok(true),
                    ready = log.readable() => ready.map(|()| false),
                    () = untold, if !ledger.waiting.is_empty() => Ok(false),
                    () = tokio::time::sleep_until(again), if unsaved.is_some() => Ok(false),
                }
            })
            .await?;
        if stopped {
            return Ok(());
        }
    }
}

impl<L: KernelLog, S: Listener> Watch<L, S> {
    /// Whatever is there to be read.
    async fn read_all(&mut self, heartbeat: &Heartbeat) -> io::Result<()> {
        let mut news = false;
        for read in 1_usize.. {
            match self.parts.log.read(&mut self.buffer)? {
                Read::Nothing => break,
                Read::Overwritten => {
                    tracing::warn!("the kernel's log was overwritten faster than it was read: some of it is lost");
                }
                Read::Record(bytes) => {
                    let record = record::parse(&self.buffer[..bytes]);
                    if let Some(kill) = record.and_then(|record| self.detector.feed(record)) {
                        news |= self.deal_with(&kill);
                    }
                }
            }
            if read.is_multiple_of(TURN) {
                heartbeat.rests(tokio::task::yield_now()).await;
            }
        }
        if news {
            let hierarchy = &self.parts.hierarchy;
            self.ledger.retain(|group| hierarchy.exists(group));
            self.save();
        }
        self.parts.counts.set(self.ledger.counts.clone());
        Ok(())
    }

    /// True: it is new.
    fn deal_with(&mut self, kill: &Kill) -> bool {
        let owner = self.parts.owners.of(&kill.scope);
        let Kill { sequence, process, pid, scope } = kill;
        if !self.ledger.take(kill, owner.clone()) {
            return false;
        }
        let label = match (scope, &owner) {
            (Scope::System, _) => "system",
            (_, Some(_)) => "cgroup",
            (_, None) => "foreign",
        };
        self.parts.kills.with_label_values(&[label]).inc();
        match owner {
            Some(cgroup) => tracing::info!(process, pid, cgroup, sequence, "OOM: the kernel has killed a process"),
            None => tracing::debug!(process, pid, sequence, "OOM: the kernel has killed a process of somebody else"),
        }
        true
    }

    fn save(&mut self) {
        let bytes = state_file::encode(LEDGER.version, &self.ledger).map_err(|error| error.to_string());
        let written = bytes.and_then(|bytes| {
            self.parts.state.write(LEDGER.name, &bytes).map_err(|error| bulkhead_types::chain(&error))
        });
        self.unsaved = written.err().map(|error| {
            // Whoever starts next reads the log again from where the file left off.
            tracing::warn!(error, "failed to save the place in the kernel's log");
            Instant::now() + SAVE_AGAIN
        });
    }

    /// Tells what waits, the oldest first. False: kubelet-syncd has not taken it.
    async fn tell(&mut self) -> bool {
        while let Some(kill) = self.ledger.waiting.front().cloned() {
            match self.parts.syncd.tell(&self.parts.boot_id, &kill).await {
                Ok(()) => {}
                Err(status) if status.code() == tonic::Code::InvalidArgument => {
                    tracing::error!(
                        sequence = kill.sequence,
                        "OOM: kubelet-syncd rejected the report: {}",
                        status.message()
                    );
                }
                Err(status) => {
                    tracing::debug!(code = ?status.code(), "OOM: not told yet: {}", status.message());
                    return false;
                }
            }
            self.ledger.told(kill.sequence);
            self.save();
        }
        true
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
