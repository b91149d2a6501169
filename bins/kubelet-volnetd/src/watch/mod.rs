//! One inotify instance for everything that only root can watch, and a stream of changes for whoever may follow it.
//!
//! [`manifests`] follows the manifest path, [`credentials`] the kubeconfigs and the files that they name, and those of
//! the HTTPS server, [`plugins`] the sockets of plugins. All share the instance (the kernel allows root few of them)
//! and the watches: one directory is one watch however many follow it. Whenever something may have been missed (the
//! start, an overflow, a subscriber that fell behind, a watched directory that went away) subscribers are told to look
//! at everything.
//!
//! The kernel allows each user so many instances, and whatever runs as root takes of the same: pods too. Where none is to be
//! had the followers look every few seconds instead ([`RETRY`]), which is said, and the kernel is asked again each time
//! (decision 52).

mod credentials;
mod manifests;
pub mod plugins;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_daemon::progress::Heartbeat;
use bulkhead_sys::inotify::{Change, Event, Inotify, WatchId};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Mutex, broadcast, watch as newest};

pub use manifests::ManifestChange;
use plugins::Sockets;

/// Changes that a subscriber may be behind; beyond it looks at everything.
const BACKLOG: usize = 256;

/// Events of the instance that a follower may be behind; beyond it starts anew.
const EVENT_BACKLOG: usize = 1024;

/// While a path is not there, or cannot be watched: look again. So often too the kernel is asked for an instance.
const RETRY: Duration = Duration::from_secs(5);

/// Where subscribers come from.
#[derive(Debug, Clone)]
pub struct Watches {
    manifests: broadcast::Sender<ManifestChange>,
    credentials: broadcast::Sender<()>,
    serving: broadcast::Sender<()>,
    plugins: newest::Sender<Option<Arc<Sockets>>>,
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
    /// `plugins_registry`.
    pub plugins: Option<PathBuf>,
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

    /// The newest of plugins' sockets; `None` until the first look.
    pub fn plugins(&self) -> newest::Receiver<Option<Arc<Sockets>>> {
        self.plugins.subscribe()
    }
}

/// Gives an instance; asked again as long as there is none.
pub type Opener = Box<dyn FnMut() -> std::io::Result<Inotify> + Send>;

/// Hears why files are not watched, and of `None` once they are.
pub type ReportHealth = Box<dyn Fn(Option<String>) + Send>;

/// Starts the tasks. `heartbeat`: the watchdog's registration of the one that passes changes on.
pub fn start(followed: Followed, heartbeat: Heartbeat, open: Opener, told: ReportHealth) -> Watches {
    let watches = Watches {
        manifests: broadcast::channel(BACKLOG).0,
        credentials: broadcast::channel(BACKLOG).0,
        serving: broadcast::channel(BACKLOG).0,
        plugins: newest::channel(None).0,
    };
    let Followed { manifests, kubeconfigs, client_pair, serving, plugins } = followed;
    if manifests.is_none() && kubeconfigs.is_empty() && serving.is_empty() && plugins.is_none() {
        return watches;
    }
    let hub = Arc::new(Hub {
        instance: std::sync::OnceLock::new(),
        users: Mutex::default(),
        events: broadcast::channel(EVENT_BACKLOG).0,
    });
    let mut source = Source { open, told, complained: false };
    source.try_open(&hub);
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
    if let Some(path) = plugins {
        tokio::spawn(plugins::follow(Follower::new(&hub), path, watches.plugins.clone()));
    }
    tokio::spawn(pass_on(hub, source, heartbeat));
    watches
}

/// The instance, and how many followers use each watch of it.
#[derive(Debug)]
struct Hub {
    /// Empty until the kernel gives one.
    instance: std::sync::OnceLock<AsyncFd<Inotify>>,
    /// Held while a directory is being watched, which takes as long as its file system does: followers wait for each other
    /// then, and the thread that does all the rest does not.
    users: Mutex<HashMap<WatchId, usize>>,
    events: broadcast::Sender<Event>,
}

impl Hub {
    /// Tells every follower that anything may have happened anywhere.
    fn all_may_have_changed(&self) {
        let _ = self.events.send(Event { watch: None, change: Change::Overflow, name: Default::default() });
    }
}

/// Where the instance comes from, and who hears that there is none.
struct Source {
    open: Opener,
    told: ReportHealth,
    complained: bool,
}

impl Source {
    /// Asks once; says each change of what comes of it, and no more.
    fn try_open(&mut self, hub: &Hub) {
        // To be waited for it also takes a watch of epoll's, which are counted for each user in the same way.
        let opened = (self.open)().and_then(bulkhead_sys::async_fd::register_inotify);
        match opened {
            Ok(instance) => {
                let _ = hub.instance.set(instance);
                if std::mem::take(&mut self.complained) {
                    tracing::info!("the kernel gives an inotify instance again, changes of files are watched");
                    (self.told)(None);
                }
                hub.all_may_have_changed();
            }
            Err(error) if !self.complained => {
                self.complained = true;
                let every = RETRY.as_secs();
                let text = format!(
                    "no inotify instance is to be had ({error}): files are looked at every {every} s instead of being watched. \
                     fs.inotify.max_user_instances counts all of root's, pods' too"
                );
                tracing::warn!("{text}");
                (self.told)(Some(text));
            }
            Err(_) => {}
        }
    }
}

/// Gives every event to every follower; each knows which watches are its own.
async fn pass_on(hub: Arc<Hub>, mut source: Source, heartbeat: Heartbeat) {
    let instance = loop {
        match hub.instance.get() {
            Some(instance) => break instance,
            None => {
                heartbeat.rests(tokio::time::sleep(RETRY)).await;
                source.try_open(&hub);
            }
        }
    };
    loop {
        match heartbeat.rests(instance.async_io(Interest::READABLE, read_some)).await {
            Ok(events) => events.into_iter().for_each(|event| {
                let _ = hub.events.send(event);
            }),
            Err(error) => {
                tracing::warn!(%error, "failed to read inotify events");
                hub.all_may_have_changed();
                heartbeat.rests(tokio::time::sleep(RETRY)).await;
            }
        }
    }
}

fn read_some(inotify: &Inotify) -> std::io::Result<Vec<Event>> {
    let events = inotify.read()?;
    if events.is_empty() { Err(std::io::ErrorKind::WouldBlock.into()) } else { Ok(events) }
}

/// Why a directory is not watched.
#[derive(Debug, thiserror::Error)]
enum NotWatched {
    /// Said once for all of them, where it happens.
    #[error("there is no inotify instance")]
    NoInstance,
    #[error(transparent)]
    Refused(#[from] std::io::Error),
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
    async fn watch_dir(&self, path: &Path) -> Result<WatchId, NotWatched> {
        let mut users = self.hub.users.lock().await;
        let (hub, path) = (self.hub.clone(), path.to_owned());
        let watch = tokio::task::spawn_blocking(move || match hub.instance.get() {
            Some(instance) => Ok(instance.get_ref().watch_dir(&path)?),
            None => Err(NotWatched::NoInstance),
        });
        let watch = watch.await.map_err(std::io::Error::from)??;
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
            if let Some(instance) = self.hub.instance.get() {
                instance.get_ref().unwatch(watch);
            }
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

    /// Until something that is not watched is to be looked at again: after a while, or as soon as there is an instance.
    async fn pause(&mut self) {
        let _ = tokio::time::timeout(RETRY, async { while self.next().await.change != Change::Overflow {} }).await;
    }

    /// Whether an event waits.
    fn is_behind(&self) -> bool {
        !self.events.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use bulkhead_daemon::progress::{LOOP_BOUND, Progress};

    use super::*;

    /// Of a process without a watchdog.
    pub(super) fn heartbeat() -> Heartbeat {
        Progress::default().register("changes", LOOP_BOUND)
    }

    pub(super) fn start(followed: Followed) -> Watches {
        super::start(followed, heartbeat(), Box::new(Inotify::new), Box::new(|_| ()))
    }

    /// Lost changes count as a look at everything.
    async fn next(changes: &mut broadcast::Receiver<ManifestChange>) -> ManifestChange {
        changes.recv().await.unwrap_or(ManifestChange::Rescan)
    }

    /// Time is the test's, and the kernel's answers too: none at first, as when a pod of root's has taken them all.
    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn without_an_instance_everything_is_looked_at_until_there_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let [manifests, serving] = ["manifests", "serving.crt"].map(|name| dir.path().join(name));
        std::fs::create_dir(&manifests).unwrap();
        let used_up = Arc::new(AtomicBool::new(true));
        let (kernel, said) = (used_up.clone(), Arc::new(parking_lot::Mutex::new(Vec::new())));
        let open: Opener = Box::new(move || {
            if kernel.load(Ordering::Relaxed) { Err(rustix::io::Errno::MFILE.into()) } else { Inotify::new() }
        });
        let told: ReportHealth = {
            let said = said.clone();
            Box::new(move |text| said.lock().push(text))
        };
        let followed =
            Followed { manifests: Some(manifests.clone()), serving: vec![serving.clone()], ..Followed::default() };
        let watches = super::start(followed, heartbeat(), open, told);
        let (mut changes, mut certificates) = (watches.manifests(), watches.serving());
        // Again and again, not once.
        for _ in 0..3 {
            assert_eq!(next(&mut changes).await, ManifestChange::Rescan);
        }
        certificates.recv().await.unwrap();
        std::fs::write(&serving, "x").unwrap();
        certificates.recv().await.unwrap();
        let text = said.lock().clone();
        assert!(matches!(&text[..], [Some(why)] if why.contains("max_user_instances")), "said once: {text:?}");

        used_up.store(false, Ordering::Relaxed);
        // Whoever sees a name has it from a watch: looking gives none.
        while next(&mut changes).await == ManifestChange::Rescan {
            std::fs::write(manifests.join("pod.yaml"), "x").unwrap();
        }
        assert_eq!(said.lock().last(), Some(&None), "told that it is over");
    }
}
