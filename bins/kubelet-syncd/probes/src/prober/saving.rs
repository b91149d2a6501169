//! The write of results to the private state. The pods hear of a result when it is kept, so that a restart takes nothing back that
//! was told. A disk that does not answer keeps results from nobody: upstream's (`results_manager.go`) are told without one.

use std::collections::HashSet;
use std::time::Duration;

use bulkhead_types::PodUid;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A write that takes longer is not waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// At most one write, on a thread of its own.
#[derive(Debug, Default)]
pub struct Saving(Option<Write>);

#[derive(Debug)]
struct Write {
    task: JoinHandle<()>,
    began: Instant,
    /// Who hears of results when it is done.
    pods: HashSet<PodUid>,
}

impl Saving {
    /// No write is under way.
    pub fn is_idle(&self) -> bool {
        self.0.is_none()
    }

    /// Begins one, of what `pods` are to hear. None may be under way.
    pub fn begin(&mut self, pods: HashSet<PodUid>, now: Instant, write: impl FnOnce() + Send + 'static) {
        self.0 = Some(Write { task: tokio::task::spawn_blocking(write), began: now, pods });
    }

    /// When the write under way is not waited for any more.
    pub fn late_at(&self) -> Option<Instant> {
        self.0.as_ref().map(|write| write.began + PATIENCE)
    }

    /// Who need not wait for the write any more. `None`: it is not late.
    pub fn late(&mut self, now: Instant) -> Option<HashSet<PodUid>> {
        let write = self.0.as_mut().filter(|write| write.began + PATIENCE <= now)?;
        Some(std::mem::take(&mut write.pods))
    }

    /// Waits for the write; for ever, when there is none. Answers who may be told.
    pub async fn done(&mut self) -> HashSet<PodUid> {
        let Some(write) = &mut self.0 else { return std::future::pending().await };
        // A write that panicked is one that failed: what is lost with it is only needed after a restart.
        let _ = (&mut write.task).await;
        self.0.take().map(|write| write.pods).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use kubelet_model::fixtures::uid;

    #[tokio::test]
    async fn results_are_told_when_they_are_kept_or_the_disk_does_not_answer() {
        let now = Instant::now();
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let mut saving = Saving::default();
        assert_eq!((saving.is_idle(), saving.late_at(), saving.late(now + PATIENCE)), (true, None, None));
        saving.begin(HashSet::from([uid()]), now, move || {
            let _ = wait.recv();
        });
        assert_eq!((saving.late_at(), saving.late(now)), (Some(now + PATIENCE), None));
        assert!(saving.done().now_or_never().is_none());
        assert_eq!(saving.late(now + PATIENCE), Some(HashSet::from([uid()])));
        assert_eq!(saving.late(now + PATIENCE * 2), Some(HashSet::new()), "each hears of it once");
        drop(end);
        assert_eq!(saving.done().await, HashSet::new());
        assert!(saving.is_idle());

        saving.begin(HashSet::from([uid()]), now, || ());
        assert_eq!(saving.done().await, HashSet::from([uid()]));
    }
}
