//! Who asked for which privileged act, and what came of it: one record each, kept on the disk within a bound.
//!
//! An act never waits for its record. Records queue up in memory for a moment ([`GATHER`]), a thread of the pool writes what has queued
//! up, and what does not fit into the queue or onto the disk is dropped and counted: the next record that is written says how many
//! were lost before it. Who reads has all of them.
//! Read-only calls (the lists, the watch) leave no record.

mod record;
mod store;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_ipc::peers::Role;
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio::sync::broadcast;
use tonic::Status;

pub use record::{Filter, Record};
use store::Store;
pub use store::StoreError;

/// How long a record waits for others: each write is a turn of a thread of the pool. A kill of the process loses what is younger.
const GATHER: Duration = Duration::from_millis(20);
/// Records that wait for the disk: the starts of some 300 pods, some 1 MiB.
const QUEUE_MAX: usize = 4096;
/// Records that are written with one call. None is longer than 32 KiB: a file is not longer than is read of it.
const BATCH_MAX: usize = 128;
/// Records that a slow follower may be behind.
const LIVE_MAX: usize = 1024;

/// Cheap to clone; all clones write the same log.
#[derive(Debug, Clone)]
pub struct AuditLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    store: Mutex<Store>,
    live: broadcast::Sender<Arc<Record>>,
    dropped: IntCounter,
}

#[derive(Debug, Default)]
struct Queue {
    records: VecDeque<Record>,
    /// Dropped since the last record that was queued.
    dropped: u64,
    /// Somebody is about to write.
    is_written: bool,
}

/// What is known of an act when it begins.
#[derive(Debug, Clone, Default)]
pub struct Act {
    pub peer: Option<Role>,
    pub verb: String,
    pub pod_uid: String,
    pub object: String,
    pub request_id: String,
}

/// An act that has begun.
#[derive(Debug)]
pub struct Begun {
    log: AuditLog,
    act: Act,
    time: Timestamp,
    began: Instant,
    told: bool,
}

impl AuditLog {
    /// Goes on with the records that lie in the folder.
    ///
    /// # Errors
    /// Its files cannot be opened.
    pub fn open(folder: OwnedFd, dropped: IntCounter) -> Result<Self, StoreError> {
        let (live, _) = broadcast::channel(LIVE_MAX);
        let store = Mutex::new(Store::open(folder)?);
        Ok(AuditLog(Arc::new(Shared { queue: Mutex::default(), store, live, dropped })))
    }

    pub fn begin(&self, act: Act) -> Begun {
        Begun { log: self.clone(), act, time: Timestamp::now(), began: Instant::now(), told: false }
    }

    /// Records that are kept and wanted, the oldest first, and what comes after them.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn read(&self, filter: &Filter) -> Result<(Vec<Record>, broadcast::Receiver<Arc<Record>>), StoreError> {
        let mut store = self.0.store.lock();
        self.write_to(&mut store);
        // Under the lock nothing is written: what comes is what is not in the files.
        let live = self.0.live.subscribe();
        Ok((store.read(filter)?, live))
    }

    fn add(&self, record: Record) {
        let mut queue = self.0.queue.lock();
        if queue.records.len() >= QUEUE_MAX {
            queue.dropped += 1;
            self.0.dropped.inc();
            return;
        }
        let dropped_before = std::mem::take(&mut queue.dropped);
        queue.records.push_back(Record { dropped_before, ..record });
        if queue.is_written {
            return;
        }
        let log = self.clone();
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                queue.is_written = true;
                drop(queue);
                runtime.spawn(async move {
                    tokio::time::sleep(GATHER).await;
                    tokio::task::spawn_blocking(move || log.write());
                });
            }
            // The end of the process: nothing is written any more.
            Err(_) => tracing::debug!("an audit record came too late"),
        }
    }

    /// Writes what is queued. Blocks.
    pub fn write(&self) {
        self.write_to(&mut self.0.store.lock());
    }

    /// Until nothing is queued.
    fn write_to(&self, store: &mut Store) {
        let mut lost = 0;
        loop {
            let mut records = {
                let mut queue = self.0.queue.lock();
                if queue.records.is_empty() {
                    queue.is_written = false;
                    queue.dropped += lost;
                    return;
                }
                let batch = queue.records.len().min(BATCH_MAX);
                queue.records.drain(..batch).collect::<Vec<Record>>()
            };
            if let Some(first) = records.first_mut() {
                first.dropped_before += std::mem::take(&mut lost);
            }
            match store.append(&mut records) {
                Ok(()) => {
                    for record in records {
                        // Nobody may follow.
                        let _ = self.0.live.send(Arc::new(record));
                    }
                }
                Err(error) => {
                    let carried: u64 = records.iter().map(|record| record.dropped_before).sum();
                    self.0.dropped.inc_by(records.len() as u64);
                    lost = carried + records.len() as u64;
                    tracing::warn!(%error, records = records.len(), "audit records are dropped");
                }
            }
        }
    }
}

impl Begun {
    /// `target`: what came of it, a path above all.
    pub fn ended(mut self, result: Result<String, &Status>) {
        let (target, code, message) = match result {
            Ok(target) => (target, tonic::Code::Ok, ""),
            Err(status) => (String::new(), status.code(), status.message()),
        };
        self.tell(target, code, message);
    }

    fn tell(&mut self, target: String, code: tonic::Code, message: &str) {
        self.told = true;
        let act = std::mem::take(&mut self.act);
        self.log.add(Record::of(act, self.time, self.began.elapsed(), target, code, message));
    }
}

impl Drop for Begun {
    /// The caller went away. The act may go on to its end all the same.
    fn drop(&mut self) {
        if !self.told {
            self.tell(String::new(), tonic::Code::Cancelled, "the caller does not wait for it any more");
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
