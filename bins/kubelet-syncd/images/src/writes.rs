//! Writes of state beside the thread that everything else runs on: one at a time, and changes that come while one is under way stand
//! together with the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

/// Of one state file.
#[derive(Debug, Default)]
pub struct Writes {
    /// Changes so far that are to stand.
    changes: AtomicU64,
    /// How many of them stand. A write holds it to its end, whether or not anybody still waits for it.
    standing: Arc<Mutex<u64>>,
}

impl Writes {
    /// Something has changed that is to stand: the next write has it.
    pub fn changed(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends when everything stands that has changed before this call. `snapshot` is called where that takes a write, and answers
    /// what is to be done on a thread for blocking work.
    ///
    /// # Errors
    /// The write's, or the process is ending: what has changed does not stand yet, and the next call tries again.
    pub async fn settle<W, E>(&self, snapshot: impl FnOnce() -> W) -> Result<(), E>
    where
        W: FnOnce() -> Result<(), E> + Send + 'static,
        E: From<std::io::Error> + Send + 'static,
    {
        let wanted = self.changes.load(Ordering::Acquire);
        let mut standing = self.standing.clone().lock_owned().await;
        if *standing >= wanted {
            return Ok(());
        }
        // Before the snapshot, which so has at least these.
        let changes = self.changes.load(Ordering::Acquire);
        let write = snapshot();
        let written = tokio::task::spawn_blocking(move || write().map(|()| *standing = changes)).await;
        written.map_err(std::io::Error::from)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use std::io::Error;

    use parking_lot::Mutex as StdMutex;

    /// A disk that nothing comes to while somebody is at its gate, and what was written to it.
    #[derive(Debug, Default)]
    struct Disk {
        memory: StdMutex<Vec<u32>>,
        kept: Arc<StdMutex<Vec<Vec<u32>>>>,
        fails: Arc<StdMutex<bool>>,
        gate: Arc<StdMutex<()>>,
        writes: Writes,
    }

    impl Disk {
        async fn add(&self, entry: u32) -> Result<(), Error> {
            self.memory.lock().push(entry);
            self.writes.changed();
            self.settle().await
        }

        async fn settle(&self) -> Result<(), Error> {
            let snapshot = || {
                let memory = self.memory.lock().clone();
                let (kept, fails, gate) = (self.kept.clone(), self.fails.clone(), self.gate.clone());
                move || {
                    drop(gate.lock());
                    if *fails.lock() {
                        return Err(Error::other("no space"));
                    }
                    kept.lock().push(memory);
                    Ok(())
                }
            };
            self.writes.settle(snapshot).await
        }

        fn kept(&self) -> Vec<Vec<u32>> {
            self.kept.lock().clone()
        }
    }

    #[tokio::test]
    async fn changes_that_come_together_share_a_write() {
        let disk = Disk::default();
        let gate = disk.gate.lock();
        let mut all = futures_util::future::join_all((0..5).map(|entry| disk.add(entry)));
        assert!((&mut all).now_or_never().is_none());
        drop(gate);
        assert!(all.await.iter().all(Result::is_ok));
        assert_eq!(disk.kept(), [vec![0], vec![0, 1, 2, 3, 4]]);
        disk.settle().await.unwrap();
        assert_eq!(disk.kept().len(), 2, "everything stands already");
    }

    #[tokio::test]
    async fn a_write_that_nobody_waits_for_is_not_overtaken() {
        let disk = Disk::default();
        let gate = disk.gate.lock();
        assert!(disk.add(1).now_or_never().is_none());
        let second = disk.add(2);
        tokio::pin!(second);
        assert!(second.as_mut().now_or_never().is_none());
        drop(gate);
        second.await.unwrap();
        assert_eq!(disk.kept(), [vec![1], vec![1, 2]]);
    }

    #[tokio::test]
    async fn what_could_not_be_written_is_tried_again() {
        let disk = Disk::default();
        *disk.fails.lock() = true;
        assert!(disk.add(1).await.is_err());
        assert!(disk.settle().await.is_err());
        *disk.fails.lock() = false;
        disk.settle().await.unwrap();
        assert_eq!(disk.kept(), [vec![1]]);
    }
}
