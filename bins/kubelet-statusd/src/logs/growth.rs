//! Waiting for a log file to grow: one loop looks at all held files, however many follow them.
//!
//! inotify is not for this process: a watch wants read permission, which it has through the descriptor alone, and
//! root's instances are few. A look is one fstat; a file that was active lately is looked at more often, and while nobody
//! waits there is no loop.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Pause between two looks at files of which one was active lately.
const FAST: Duration = Duration::from_millis(10);
/// Every so many fast looks the quiet files are looked at too; while all are quiet that is the pause.
const SLOW: u32 = 5;
/// For so long after it has grown a file counts as active.
pub const ACTIVE: Duration = Duration::from_secs(1);

/// What of a file changes when it is written, cut, renamed or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Device and inode.
    pub id: (u64, u64),
    /// Bytes.
    pub size: u64,
    changed: (i64, i64),
}

/// What an open file is like now.
///
/// # Errors
/// The kernel does not say.
pub fn shape(file: &File) -> std::io::Result<Shape> {
    let stat = rustix::fs::fstat(file)?;
    Ok(Shape {
        id: (stat.st_dev, stat.st_ino),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        changed: (stat.st_ctime, i64::try_from(stat.st_ctime_nsec).unwrap_or(0)),
    })
}

#[derive(Debug)]
struct Waiter {
    seen: Shape,
    wake: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Watched {
    file: Arc<File>,
    active_until: Instant,
    waiters: Vec<Waiter>,
}

#[derive(Debug, Default)]
struct Inner {
    files: HashMap<(u64, u64), Watched>,
    is_running: bool,
}

/// The files that somebody waits for. One for the process.
#[derive(Debug, Clone, Default)]
pub struct Growth {
    inner: Arc<Mutex<Inner>>,
}

impl Growth {
    /// Resolves when the file is not as `seen` any more. `grown`: when it grew last. Must be called within a tokio
    /// runtime; who stops waiting is forgotten at the next look, and so is the file.
    pub fn wait(&self, file: &Arc<File>, seen: Shape, grown: Instant) -> oneshot::Receiver<()> {
        let (wake, woken) = oneshot::channel();
        let mut inner = self.inner.lock();
        let watched = inner.files.entry(seen.id).or_insert_with(|| Watched {
            file: file.clone(),
            active_until: grown,
            waiters: Vec::new(),
        });
        watched.active_until = watched.active_until.max(grown + ACTIVE);
        watched.waiters.push(Waiter { seen, wake });
        if !std::mem::replace(&mut inner.is_running, true) {
            tokio::spawn(look(self.inner.clone()));
        }
        woken
    }

    /// How many files are looked at.
    pub fn files(&self) -> usize {
        self.inner.lock().files.len()
    }
}

/// Until nobody waits any more.
async fn look(inner: Arc<Mutex<Inner>>) {
    let mut turn = 0;
    loop {
        let now = Instant::now();
        let any_active = {
            let mut inner = inner.lock();
            inner.files.retain(|_, watched| {
                if turn == 0 || watched.active_until > now {
                    watched.look();
                }
                !watched.waiters.is_empty()
            });
            if inner.files.is_empty() {
                inner.is_running = false;
                return;
            }
            inner.files.values().any(|watched| watched.active_until > now)
        };
        let turns = if any_active { 1 } else { SLOW - turn };
        tokio::time::sleep(FAST * turns).await;
        turn = (turn + turns) % SLOW;
    }
}

impl Watched {
    /// Wakes whom a change concerns, and drops who has gone.
    fn look(&mut self) {
        // A file that does not answer wakes everybody: reading it says why.
        let now = shape(&self.file).ok();
        let is_over = |waiter: &Waiter| now != Some(waiter.seen) || waiter.wake.is_closed();
        if !self.waiters.iter().any(is_over) {
            return;
        }
        let waiters = std::mem::take(&mut self.waiters);
        for waiter in waiters {
            if now != Some(waiter.seen) {
                let _ = waiter.wake.send(());
            } else if !waiter.wake.is_closed() {
                self.waiters.push(waiter);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    async fn within<T>(what: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(10), what).await.unwrap()
    }

    #[tokio::test]
    async fn whatever_happens_to_a_file_wakes_those_who_wait_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let mut writer = File::create(&path).unwrap();
        let file = Arc::new(File::open(&path).unwrap());
        let growth = Growth::default();
        let long_ago = Instant::now();
        for step in 0..4 {
            let seen = shape(&file).unwrap();
            let waiting = [growth.wait(&file, seen, long_ago), growth.wait(&file, seen, Instant::now())];
            // The clock of a file's changes is coarse.
            tokio::time::sleep(Duration::from_millis(20)).await;
            match step {
                0 => writer.write_all(b"line\n").unwrap(),
                1 => writer.set_len(0).unwrap(),
                2 => std::fs::rename(&path, folder.path().join("b")).unwrap(),
                _ => std::fs::remove_file(folder.path().join("b")).unwrap(),
            }
            for waiting in waiting {
                within(waiting).await.unwrap();
            }
        }
        let old = Shape { size: 77, ..shape(&file).unwrap() };
        within(growth.wait(&file, old, long_ago)).await.unwrap();
    }

    #[tokio::test]
    async fn who_goes_is_forgotten_with_the_file() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let growth = Growth::default();
        let seen = shape(&file).unwrap();
        let (stays, goes) = (growth.wait(&file, seen, Instant::now()), growth.wait(&file, seen, Instant::now()));
        assert_eq!(growth.files(), 1, "one look for both");
        drop(goes);
        tokio::time::sleep(FAST * (SLOW + 2)).await;
        assert_eq!(growth.files(), 1);
        drop(stays);
        within(async {
            while growth.files() > 0 {
                tokio::time::sleep(FAST).await;
            }
        })
        .await;
        within(async {
            while Arc::strong_count(&file) > 1 {
                tokio::time::sleep(FAST).await;
            }
        })
        .await;
    }
}
