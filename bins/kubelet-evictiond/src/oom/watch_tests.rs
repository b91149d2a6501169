use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use bulkhead_daemon::progress::Progress;
use parking_lot::Mutex;
use prometheus::Opts;
use rustix::fs::{Mode, OFlags};
use tokio::sync::Notify;
use tonic::Status;

use super::*;
use crate::oom::ledger::Told;

/// A log that others can write to, with the place of whoever reads it, which outlives them.
#[derive(Debug, Default)]
struct Ring {
    records: Mutex<VecDeque<(u64, String)>>,
    next: Mutex<u64>,
    grown: Notify,
    broken: AtomicBool,
}

impl Ring {
    fn write(&self, sequence: u64, text: &str) {
        self.records.lock().push_back((sequence, text.to_owned()));
        self.grown.notify_one();
    }

    fn of_group(&self, sequence: u64, group: &str) {
        self.write(sequence, &format!("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={group},task_memcg={group},task=x,pid=1,uid=0"));
    }

    fn of_machine(&self, sequence: u64, process: &str) {
        self.write(sequence, &format!("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/a,task={process},pid=7,uid=0"));
    }
}

impl KernelLog for Arc<Ring> {
    fn rewind(&mut self) -> io::Result<()> {
        *self.next.lock() = 0;
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<Read> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let records = self.records.lock();
        let mut next = self.next.lock();
        let Some((sequence, text)) = records.iter().find(|(sequence, _)| *sequence >= *next) else {
            return Ok(Read::Nothing);
        };
        *next = sequence + 1;
        let line = format!("6,{sequence},1,-;{text}\n");
        buffer[..line.len()].copy_from_slice(line.as_bytes());
        Ok(Read::Record(line.len()))
    }

    async fn readable(&mut self) -> io::Result<()> {
        self.grown.notified().await;
        Ok(())
    }
}

#[derive(Debug, Clone, Default)]
struct Heard {
    away: Arc<AtomicBool>,
    all: Arc<Mutex<Vec<(u64, String, u32)>>>,
    one_more: Arc<Notify>,
}

impl Listener for Heard {
    async fn ready(&self) {
        if self.away.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    async fn tell(&self, boot_id: &str, kill: &Told) -> Result<(), Status> {
        assert_eq!(boot_id, "boot");
        if self.away.load(Ordering::Relaxed) {
            return Err(Status::unavailable("away"));
        }
        self.all.lock().push((kill.sequence, kill.process.clone(), kill.pid));
        self.one_more.notify_one();
        Ok(())
    }
}

struct Life {
    counts: OomCounts,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<io::Result<()>>,
}

fn state(folder: &std::path::Path) -> Arc<StateDir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir: OwnedFd = rustix::fs::open(folder, flags, Mode::empty()).unwrap();
    Arc::new(StateDir::lock(dir).unwrap())
}

fn live(folder: &std::path::Path, ring: &Arc<Ring>, heard: &Heard) -> Life {
    let (counts, stop) = (OomCounts::default(), CancellationToken::new());
    let parts = Parts {
        log: ring.clone(),
        syncd: heard.clone(),
        owners: Owners { pods: vec!["/k".into()], system: Vec::new() },
        hierarchy: Hierarchy::V2 { root: folder.join("cgroup") },
        counts: counts.clone(),
        kills: IntCounterVec::new(Opts::new("kills", "kills"), &["victim"]).unwrap(),
        state: state(folder),
        boot_id: "boot".into(),
        stop: stop.clone(),
    };
    let heartbeat = Progress::default().register("log", Duration::from_secs(1));
    Life { counts, stop, task: tokio::spawn(run(parts, heartbeat)) }
}

impl Life {
    async fn until(&self, group: &str, count: u64) {
        let wait = async {
            while self.counts.of(group, None) != Some(count) {
                tokio::task::yield_now().await;
            }
        };
        let late = tokio::time::timeout(Duration::from_secs(20), wait).await;
        assert!(late.is_ok(), "{group}: {:?} instead of {count}", self.counts.of(group, None));
    }

    /// As SIGKILL does.
    async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

#[tokio::test]
async fn kills_are_counted_and_told_once_however_often_it_dies() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(temp.path().join("cgroup/k/podu/c")).unwrap();
    let (ring, heard) = (Arc::new(Ring::default()), Heard::default());
    ring.of_group(2, "/k/podu/c");
    ring.of_machine(5, "dd");
    let first = live(temp.path(), &ring, &heard);
    assert_eq!(first.counts.of("/k/podu/c", None), None, "nothing was read yet");
    first.until("/k/podu/c", 1).await;
    heard.one_more.notified().await;
    // In its life, and of a group that is gone by the time that it is counted.
    ring.of_group(8, "/k/podu/c/nested");
    ring.of_group(9, "/k/gone");
    first.until("/k/podu/c", 2).await;
    assert_eq!((first.counts.of("/k/gone", None), first.counts.of("/", None)), (Some(0), Some(1)));
    first.kill().await;
    // While nobody is there.
    ring.of_group(12, "/k/podu/c");
    ring.of_machine(13, "tail");
    let second = live(temp.path(), &ring, &heard);
    second.until("/k/podu/c", 3).await;
    heard.one_more.notified().await;
    assert_eq!(second.counts.of("/", None), Some(2));
    second.stop.cancel();
    second.task.await.unwrap().unwrap();
    let third = live(temp.path(), &ring, &heard);
    third.until("/", 2).await;
    third.kill().await;
    let told = heard.all.lock().clone();
    assert_eq!(told, [(5, "dd".to_owned(), 7), (13, "tail".to_owned(), 7)]);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_takes_waits_although_the_log_forgets_it() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(temp.path().join("cgroup")).unwrap();
    let (ring, heard) = (Arc::new(Ring::default()), Heard::default());
    heard.away.store(true, Ordering::Relaxed);
    ring.of_machine(5, "dd");
    let first = live(temp.path(), &ring, &heard);
    first.until("/", 1).await;
    ring.of_machine(6, "tail");
    first.until("/", 2).await;
    first.kill().await;
    ring.records.lock().clear();
    let second = live(temp.path(), &ring, &heard);
    second.until("/", 2).await;
    assert!(heard.all.lock().is_empty());
    heard.away.store(false, Ordering::Relaxed);
    second.kill().await;
    let third = live(temp.path(), &ring, &heard);
    while heard.all.lock().len() < 2 {
        heard.one_more.notified().await;
    }
    third.kill().await;
    assert_eq!(heard.all.lock().iter().map(|told| told.0).collect::<Vec<_>>(), [5, 6]);
}

#[tokio::test]
async fn a_log_that_breaks_ends_it() {
    let temp = tempfile::tempdir().unwrap();
    let (ring, heard) = (Arc::new(Ring::default()), Heard::default());
    let life = live(temp.path(), &ring, &heard);
    life.until("/", 0).await;
    ring.broken.store(true, Ordering::Relaxed);
    ring.grown.notify_one();
    assert!(life.task.await.unwrap().is_err());
}
