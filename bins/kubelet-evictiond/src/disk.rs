//! Disk usage as kubelet-walker measures it: figures are kept for a time, and one that hangs (a dead disk) is not waited for
//! twice.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_ipc::common::{FileSystemFigures, FolderFigures};
use parking_lot::Mutex;

/// A file system's figures, bytes and inodes. `used` is what is not free, reserved blocks included, as cAdvisor has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileSystem {
    pub capacity: u64,
    pub available: u64,
    pub used: u64,
    pub inodes: u64,
    pub inodes_free: u64,
    /// File systems with the same one are the same.
    pub device: u64,
}

impl From<FileSystemFigures> for FileSystem {
    fn from(wire: FileSystemFigures) -> Self {
        FileSystem {
            capacity: wire.capacity_bytes,
            available: wire.available_bytes,
            used: wire.used_bytes,
            inodes: wire.inodes,
            inodes_free: wire.inodes_free,
            device: wire.device,
        }
    }
}

/// What a folder holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Folder {
    /// Allocated bytes (512-byte blocks), not file sizes.
    pub bytes: u64,
    /// Files and folders, the folder itself too; a file with several names counts once.
    pub inodes: u64,
    /// A bound was met or something could not be listed: the truth is larger.
    pub incomplete: bool,
}

impl From<FolderFigures> for Folder {
    fn from(wire: FolderFigures) -> Self {
        Folder { bytes: wire.bytes, inodes: wire.inodes, incomplete: wire.incomplete }
    }
}

/// A volume's folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Volume {
    pub fs: FileSystem,
    pub folder: Folder,
    /// It is a mount: what it holds is not on the node's own disk.
    pub is_mount: bool,
}

struct CachedUsage<V> {
    value: Option<V>,
    at: Option<Instant>,
    in_work: bool,
}

/// Figures by key, renewed when they are asked for and older than the cache keeps them.
pub struct Cache<K, V> {
    kept: Arc<Mutex<HashMap<K, CachedUsage<V>>>>,
    keep: Duration,
}

impl<K, V> std::fmt::Debug for Cache<K, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cache").field("keep", &self.keep).finish_non_exhaustive()
    }
}

impl<K, V> Cache<K, V> {
    /// A cache whose figures are good for this long.
    pub fn keeping(keep: Duration) -> Self {
        Cache { kept: Arc::default(), keep }
    }
}

impl<K, V> Cache<K, V>
where
    K: std::hash::Hash + Eq + Clone + Send + 'static,
    V: Clone + Send + 'static,
{
    /// Renews what is old and waits for it up to `patience`; what is not done by then comes with the next call.
    /// Keys that are not wanted any more are forgotten.
    pub async fn refresh<F>(&self, wanted: Vec<(K, F)>, patience: Duration)
    where
        F: Future<Output = Option<V>> + Send + 'static,
    {
        let mut running = Vec::new();
        {
            let mut kept = self.kept.lock();
            let names: HashSet<&K> = wanted.iter().map(|(key, _)| key).collect();
            kept.retain(|key, _| names.contains(key));
            drop(names);
            for (key, measure) in wanted {
                let entry = kept.entry(key.clone()).or_insert(CachedUsage { value: None, at: None, in_work: false });
                if entry.in_work || entry.at.is_some_and(|at| at.elapsed() < self.keep) {
                    continue;
                }
                entry.in_work = true;
                let kept = self.kept.clone();
                running.push(tokio::spawn(async move {
                    let value = measure.await;
                    if let Some(entry) = kept.lock().get_mut(&key) {
                        // What could not be measured (its worker was killed) is asked for again, and not kept as unknown.
                        let at = value.is_some().then(Instant::now);
                        *entry = CachedUsage { value, at, in_work: false };
                    }
                }));
            }
        }
        let all = async {
            for task in running {
                let _ = task.await;
            }
        };
        if tokio::time::timeout(patience, all).await.is_err() {
            tracing::debug!("some disk usage is not known yet, the walks go on");
        }
    }

    /// The newest figures, if there are any.
    pub fn get(&self, key: &K) -> Option<V> {
        self.kept.lock().get(key)?.value.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn figures_are_kept_and_hanging_ones_not_waited_for_twice() {
        let cache: Cache<u8, u8> = Cache::keeping(Duration::from_secs(60));
        let count = Arc::new(std::sync::atomic::AtomicU8::new(0));
        let measure = |count: &Arc<std::sync::atomic::AtomicU8>| {
            let count = count.clone();
            async move { Some(count.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) }
        };
        cache.refresh(vec![(1, measure(&count))], Duration::from_secs(5)).await;
        cache.refresh(vec![(1, measure(&count))], Duration::from_secs(5)).await;
        assert_eq!(cache.get(&1), Some(0), "measured once");

        cache.refresh(vec![(3, std::future::ready(None))], Duration::from_secs(5)).await;
        cache.refresh(vec![(3, std::future::ready(Some(9)))], Duration::from_secs(5)).await;
        assert_eq!(cache.get(&3), Some(9), "what was not measured is asked for again");
        cache.refresh(vec![(1, measure(&count))], Duration::from_secs(5)).await;

        let (release, hang) = tokio::sync::oneshot::channel::<()>();
        let hanging = async move { hang.await.ok().map(|()| 7) };
        cache.refresh(vec![(2, hanging)], Duration::from_millis(10)).await;
        assert_eq!((cache.get(&2), cache.get(&1)), (None, None), "not done yet; 1 is not wanted any more");
        cache.refresh(vec![(2, measure(&count))], Duration::from_millis(10)).await;
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 2, "the first walk is still on");
        release.send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(5), async {
            while cache.get(&2) != Some(7) {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
    }
}
