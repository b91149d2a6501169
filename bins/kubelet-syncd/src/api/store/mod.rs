//! ConfigMaps and secrets of the pods that run here, one copy of each however many pods name it, kept as
//! `configMapAndSecretChangeDetectionStrategy` says (upstream `pkg/kubelet/util/manager`).
//!
//! | strategy | a read | what it costs |
//! |---|---|---|
//! | Get | asks the server | a GET for each read |
//! | Cache | asks when what is known is older than the Node's annotation says, 1 min by default | a GET for each object and that time |
//! | Watch | answers from a watch of that object | a watch for each object; none for immutable ones and for those that are only read at a start, 5 sync periods after the last read |
//!
//! With Get and Cache nobody says that something has changed: pods with such volumes are named to
//! [`kubelet_model::objects::Objects::changes`] once in a sync period, or their objects looked at.

mod cached;
mod news;
mod refs;
mod watched;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::PodUid;
use parking_lot::Mutex;
use tokio::sync::broadcast;

use self::cached::Cached;
use self::news::News;
use self::refs::{Key, References};
use self::watched::Watched;
use super::references::Names;
use super::server::{Content, Got, ObjectServer};
use kubelet_model::objects::ObjectError;

/// `configMapAndSecretChangeDetectionStrategy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    Get,
    Cache,
    Watch,
}

impl Strategy {
    /// The configured value; it is validated before, so anything else is the default.
    pub fn of(text: &str) -> Strategy {
        match text {
            "Get" => Strategy::Get,
            "Cache" => Strategy::Cache,
            _ => Strategy::Watch,
        }
    }
}

/// How long a cached object counts now: the Node's annotation `node.alpha.kubernetes.io/ttl`.
pub type Ttl = Arc<dyn Fn() -> Duration + Send + Sync>;

/// All objects of one kind.
pub struct Store<K> {
    refs: Mutex<References>,
    backing: Backing<K>,
}

enum Backing<K> {
    Nothing(Arc<dyn ObjectServer<K>>),
    Cached(Cached<K>),
    Watched(Watched<K>),
}

impl<K> std::fmt::Debug for Store<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Secrets are among the contents.
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl<K: Content> Store<K> {
    /// `sync`: the period in which a pod is looked at anew. Must be called within a tokio runtime.
    pub fn start(
        server: Arc<dyn ObjectServer<K>>,
        strategy: Strategy,
        ttl: Ttl,
        sync: Duration,
        changes: broadcast::Sender<PodUid>,
    ) -> Arc<Self> {
        let backing = match strategy {
            Strategy::Get => Backing::Nothing(server),
            Strategy::Cache => Backing::Cached(Cached::new(server, ttl, sync)),
            Strategy::Watch => Backing::Watched(Watched::new(server, sync)),
        };
        let store = Arc::new(Store { refs: Mutex::default(), backing });
        tokio::spawn(tend(Arc::downgrade(&store), strategy, sync, changes));
        store
    }

    /// The pod names exactly these objects from now on. An equal registration changes nothing.
    pub fn register(&self, uid: &PodUid, namespace: &str, names: Names) {
        let diff = self.refs.lock().register(uid, namespace, names);
        match &self.backing {
            Backing::Nothing(_) => {}
            // A new pod sees what was written before it was made.
            Backing::Cached(cached) => {
                diff.unused.iter().for_each(|key| cached.forget(key));
                diff.named.iter().for_each(|key| cached.invalidate(key));
            }
            Backing::Watched(watched) => {
                diff.unused.iter().for_each(|key| watched.stop(key));
                diff.first.iter().for_each(|key| watched.start(key));
            }
        }
    }

    /// The pod names nothing any more.
    pub fn unregister(&self, uid: &PodUid) {
        self.register(uid, "", Names::new());
    }

    /// The object; only pods that are registered have objects.
    pub async fn get(&self, namespace: &str, name: &str) -> Got<Arc<K>> {
        let key = Key { namespace: namespace.to_owned(), name: name.to_owned() };
        if let Backing::Nothing(server) = &self.backing {
            return server.get(namespace, name, false).await.map(Arc::new);
        }
        if !self.refs.lock().is_used(&key) {
            return Err(ObjectError::Away(format!("object {namespace:?}/{name:?} not registered")));
        }
        match &self.backing {
            Backing::Nothing(server) => server.get(namespace, name, false).await.map(Arc::new),
            Backing::Cached(cached) => cached.get(&key).await,
            Backing::Watched(watched) => watched.get(&key).await,
        }
    }

    /// Pods that name the object.
    fn users(&self, key: &Key) -> Vec<PodUid> {
        self.refs.lock().users(key)
    }
}

/// What happens by itself: changes are told, cached objects that somebody follows are looked at, watches that nobody
/// needs end. Ends with the store.
async fn tend<K: Content>(
    store: std::sync::Weak<Store<K>>,
    strategy: Strategy,
    sync: Duration,
    changes: broadcast::Sender<PodUid>,
) {
    let news = match store.upgrade().as_deref() {
        Some(Store { backing: Backing::Cached(cached), .. }) => Some(cached.news()),
        Some(Store { backing: Backing::Watched(watched), .. }) => Some(watched.news()),
        _ => None,
    };
    // Several looks in each period, so that an object's or pod's own time is met well enough.
    let mut ticks = tokio::time::interval((sync / 6).max(Duration::from_secs(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let changed = tokio::select! {
            changed = next(news.as_deref()) => Some(changed),
            _ = ticks.tick() => None,
        };
        let Some(store) = store.upgrade() else { return };
        if let Some(key) = changed {
            for uid in store.users(&key) {
                // Nobody listens: nobody has a volume to bring up to date.
                let _ = changes.send(uid);
            }
            continue;
        }
        match (&store.backing, strategy) {
            (Backing::Nothing(_), _) => {
                for uid in store.refs.lock().due(tokio::time::Instant::now(), sync) {
                    let _ = changes.send(uid);
                }
            }
            (Backing::Cached(cached), _) => {
                let followed = store.refs.lock().followed();
                cached.look(followed).await;
            }
            (Backing::Watched(watched), _) => {
                let followed = store.refs.lock().followed().into_iter().collect();
                watched.stop_idle(&followed);
            }
        }
    }
}

async fn next(news: Option<&News>) -> Key {
    match news {
        Some(news) => news.next().await,
        None => std::future::pending().await,
    }
}
