//! One inotify instance for everything that only root can watch, and a stream of changes for whoever may follow it.
//!
//! [`manifests`] follows the manifest path, [`credentials`] the kubeconfigs and the files that they name, and those of
//! the HTTPS server. All share the instance (the kernel allows root few of them) and the watches: one directory is one watch
//! however many follow it.
//! Whenever something may have been missed (the start, an overflow, a subscriber that fell behind, a watched directory
//! that went away) subscribers are told to look at everything.

mod credentials;
mod manifests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_daemon::progress::Turn;
use bulkhead_sys::inotify::{Change, Event, Inotify, WatchId};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, broadcast};

pub use manifests::ManifestChange;

/// Changes that a subscriber may be behind; beyond it looks at everything.
const BACKLOG: usize = 256;

/// Events of the instance that a follower may be behind; beyond it starts anew.
const EVENT_BACKLOG: usize = 1024;

/// While a path is not there, or cannot be watched: look again.
const RETRY: Duration = Duration::from_secs(5);

/// Where subscribers come from.
#[derive(Debug, Clone)]
pub struct Watches {
    manifests: broadcast::Sender<ManifestChange>,
    credentials: broadcast::Sender<()>,
    serving: broadcast::Sender<()>,
}

/// What is followed; what is not configured never changes.
#[derive(Debug, Clone, Default)]
pub struct Followed {
    /// `staticPodPath`.
    pub manifests: Option<PathBuf>,
    /// `--kubeconfig`, `--bootstrap-kubeconfig`: they and what they name.
    pub kubeconfigs: Vec<PathBuf>,
    /// The client pair that was signed for the node.
    pub client_pair: Option<PathBuf>,
    /// What the HTTPS server shows, the clients' CA.
    pub serving: Vec<PathBuf>,
}

impl Watches {
    /// The changes from now on. The first thing to do is a look at everything.
    pub fn manifests(&self) -> broadcast::Receiver<ManifestChange> {
        self.manifests.subscribe()
    }

    /// Each change of any of the credentials from now on.
    pub fn credentials(&self) -> broadcast::Receiver<()> {
        self.credentials.subscribe()
    }

    /// Each change of what the HTTPS server shows or believes, from now on.
    pub fn serving(&self) -> broadcast::Receiver<()> {
        self.serving.subscribe()
    }
}

/// Starts the tasks. `turn`: what the one that passes changes on promises to the watchdog.
///
/// # Errors
/// The kernel gives no inotify instance.
pub fn start(followed: Followed, turn: Turn) -> std::io::Result<Watches> {
    let watches = Watches {
        manifests: broadcast::channel(BACKLOG).0,
        credentials: broadcast::channel(BACKLOG).0,
        serving: broadcast::channel(BACKLOG).0,
    };
    let Followed { manifests, kubeconfigs, client_pair, serving } = followed;
    if manifests.is_none() && kubeconfigs.is_empty() && serving.is_empty() {
        return Ok(watches);
    }
    let inotify = Inotify::new()?;
    let hub = Arc::new(Hub {
        inotify: bulkhead_sys::async_fd::register_inotify(inotify)?,
        users: Mutex::default(),
        events: broadcast::channel(EVENT_BACKLOG).0,
    });
    if let Some(path) = manifests {
        tokio::spawn(manifests::follow(Follower::new(&hub), path, watches.manifests.clone()));
    }
    if !kubeconfigs.is_empty() {
        let what = credentials::Subject { kubeconfigs, files: client_pair.into_iter().collect() };
        tokio::spawn(credentials::follow(Follower::new(&hub), what, watches.credentials.clone()));
    }
    if !serving.is_empty() {
        let what = credentials::Subject { kubeconfigs: Vec::new(), files: serving };
        tokio::spawn(credentials::follow(Follower::new(&hub), what, watches.serving.clone()));
    }
    tokio::spawn(pass_on(hub, turn));
    Ok(watches)
}

/// The instance, and how many followers use each watch of it.
#[derive(Debug)]
struct Hub {
    inotify: AsyncFd<Inotify>,
    /// Held while a directory is being watched, which takes as long as its file system does: followers wait for each other
    /// then, and the thread that does all the rest does not.
    users: Mutex<HashMap<WatchId, usize>>,
    events: broadcast::Sender<Event>,
}

/// Gives every event to every follower; each knows which watches are its own.
async fn pass_on(hub: Arc<Hub>, turn: Turn) {
    loop {
        match turn.rests(hub.inotify.async_io(Interest::READABLE, read_some)).await {
            Ok(events) => events.into_iter().for_each(|event| {
                let _ = hub.events.send(event);
            }),
            Err(error) => {
                tracing::warn!(%error, "reading changes of files");
                let _ = hub.events.send(Event { watch: None, change: Change::Overflow, name: Default::default() });
                turn.rests(tokio::time::sleep(RETRY)).await;
            }
        }
    }
}

fn read_some(inotify: &Inotify) -> std::io::Result<Vec<Event>> {
    let events = inotify.read()?;
    if events.is_empty() { Err(std::io::ErrorKind::WouldBlock.into()) } else { Ok(events) }
}

/// One follower's view of the instance.
#[derive(Debug)]
struct Follower {
    hub: Arc<Hub>,
    events: broadcast::Receiver<Event>,
}

impl Follower {
    fn new(hub: &Arc<Hub>) -> Self {
        Follower { hub: hub.clone(), events: hub.events.subscribe() }
    }

    /// Watches a directory; each call needs its [`Follower::unwatch`].
    async fn watch_dir(&self, path: &Path) -> std::io::Result<WatchId> {
        let mut users = self.hub.users.lock().await;
        let (hub, path) = (self.hub.clone(), path.to_owned());
        let watch = tokio::task::spawn_blocking(move || hub.inotify.get_ref().watch_dir(&path)).await??;
        *users.entry(watch).or_default() += 1;
        Ok(watch)
    }

    /// Forgets a watch when nobody else uses it. The kernel gives the number of a forgotten one to no other for as long
    /// as there are numbers, so late events of it are nobody's.
    async fn unwatch(&self, watch: WatchId) {
        let mut users = self.hub.users.lock().await;
        let Some(count) = users.get_mut(&watch) else { return };
        *count -= 1;
        if *count == 0 {
            users.remove(&watch);
            self.hub.inotify.get_ref().unwatch(watch);
        }
    }

    /// The next event of anybody's watch.
    async fn next(&mut self) -> Event {
        match self.events.recv().await {
            Ok(event) => event,
            // The sender lives as long as the hub, which we hold: it is never closed.
            Err(_) => Event { watch: None, change: Change::Overflow, name: Default::default() },
        }
    }

    /// Whether an event waits.
    fn is_behind(&self) -> bool {
        !self.events.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_daemon::progress::{LOOP_BOUND, Progress};

    /// Of a process without a watchdog.
    pub(super) fn turn() -> super::Turn {
        Progress::default().promise("changes", LOOP_BOUND)
    }
}
