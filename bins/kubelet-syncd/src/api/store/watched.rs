//! Strategy Watch: each object that a pod names is watched, by one watch however many pods name it (upstream
//! `watch_based_manager.go`). An immutable object needs none once it was seen; one that is only read when something
//! starts is watched until it was not read for a while.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_apiclient::watch::Change;
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::news::News;
use super::refs::Key;
use crate::api::server::{Content, Got, ObjectServer};
use kubelet_model::objects::ObjectError;

/// So long a read waits for the watch's first word.
const FIRST_WORD: Duration = Duration::from_secs(1);
/// An idle watch lives at least so long.
const IDLE_MIN: Duration = Duration::from_secs(60);

/// What a watch has said: nothing yet, that there is none, or the object.
type Observed<K> = Option<Option<Arc<K>>>;

struct Item<K> {
    said: watch::Sender<Observed<K>>,
    task: Option<AbortHandle>,
    last_read: Instant,
    /// Version told to who follows it; outlives a stopped watch.
    told: Option<String>,
    /// Somebody asked before there was an answer.
    missed: bool,
}

impl<K> Item<K> {
    fn is_immutable(&self) -> bool
    where
        K: Content,
    {
        matches!(&*self.said.borrow(), Some(Some(object)) if object.is_immutable())
    }
}

type Items<K> = Arc<Mutex<HashMap<Key, Item<K>>>>;

/// All objects that are named, by name.
pub struct Watched<K> {
    server: Arc<dyn ObjectServer<K>>,
    idle: Duration,
    items: Items<K>,
    news: Arc<News>,
}

impl<K> Drop for Watched<K> {
    fn drop(&mut self) {
        self.items.lock().values().filter_map(|item| item.task.as_ref()).for_each(AbortHandle::abort);
    }
}

impl<K: Content> Watched<K> {
    pub fn new(server: Arc<dyn ObjectServer<K>>, sync: Duration) -> Self {
        let idle = (sync * 5).max(IDLE_MIN);
        Watched { server, idle, items: Items::default(), news: Arc::default() }
    }

    /// Objects that have changed, for one who tells them on.
    pub fn news(&self) -> Arc<News> {
        self.news.clone()
    }

    /// Somebody names the object.
    pub fn start(&self, key: &Key) {
        let mut items = self.items.lock();
        let item = items.entry(key.clone()).or_insert_with(|| Item {
            said: watch::Sender::new(None),
            task: None,
            last_read: Instant::now(),
            told: None,
            missed: false,
        });
        if item.task.is_none() {
            item.task = Some(self.follow(key));
        }
    }

    /// Nobody names it any more.
    pub fn stop(&self, key: &Key) {
        if let Some(task) = self.items.lock().remove(key).and_then(|item| item.task) {
            task.abort();
        }
    }

    fn follow(&self, key: &Key) -> AbortHandle {
        let mut changes = self.server.watch(&key.namespace, &key.name);
        let (items, news, key) = (self.items.clone(), self.news.clone(), key.clone());
        let task = tokio::spawn(async move {
            while let Some(change) = changes.next().await {
                if !take(&items, &news, &key, change) {
                    tracing::debug!(
                        namespace = key.namespace,
                        name = key.name,
                        "{} is immutable: not watched",
                        K::KIND
                    );
                    return;
                }
            }
        });
        task.abort_handle()
    }

    /// What the watch has said; waits a little for its first word.
    pub async fn get(&self, key: &Key) -> Got<Arc<K>> {
        let said = {
            let mut items = self.items.lock();
            let Some(item) = items.get_mut(key) else {
                let (namespace, name) = (&key.namespace, &key.name);
                return Err(ObjectError::Away(format!("object {namespace:?}/{name:?} not registered")));
            };
            item.last_read = Instant::now();
            if item.task.is_none() && !item.is_immutable() {
                item.task = Some(self.follow(key));
            }
            item.said.subscribe()
        };
        let first = async |mut said: watch::Receiver<Observed<K>>| said.wait_for(Option::is_some).await.ok()?.clone();
        match tokio::time::timeout(FIRST_WORD, first(said)).await {
            Ok(Some(Some(object))) => Ok(object),
            Ok(Some(None)) => Err(ObjectError::NotFound(format!("{} {:?} not found", K::KIND, key.name))),
            Ok(None) | Err(_) => {
                if let Some(item) = self.items.lock().get_mut(key) {
                    item.missed = true;
                }
                let text = format!("failed to sync {} cache: timed out waiting for the condition", K::KIND);
                Err(ObjectError::Away(text))
            }
        }
    }

    /// Ends watches of objects that nobody follows and that were not read for long.
    pub fn stop_idle(&self, followed: &HashSet<Key>) {
        for (key, item) in self.items.lock().iter_mut() {
            let idle = !followed.contains(key) && item.last_read.elapsed() > self.idle;
            if idle && item.said.borrow().is_some() && !item.is_immutable() {
                if let Some(task) = item.task.take() {
                    task.abort();
                }
                // What it said last is outdated from now on.
                item.said.send_replace(None);
            }
        }
    }
}

/// False: nothing more is to be watched.
fn take<K: Content>(items: &Items<K>, news: &News, key: &Key, change: Change<K>) -> bool {
    let now = match change {
        // It is there: what was said of it stays, and where nothing was, nothing is said.
        Change::Restarted(all) if !all.undecodable.is_empty() => return true,
        Change::Restarted(all) => all.objects.into_iter().next(),
        Change::Applied(object) => Some(object),
        Change::Deleted(_) => None,
        Change::Failed(error) => {
            tracing::debug!(namespace = key.namespace, name = key.name, "{} could not be watched: {error}", K::KIND);
            return true;
        }
    };
    let mut items = items.lock();
    let Some(item) = items.get_mut(key) else { return false };
    let version = now.as_ref().map_or_else(String::new, |object| object.resource_version().to_owned());
    let immutable = now.as_ref().is_some_and(Content::is_immutable);
    let missed = std::mem::take(&mut item.missed);
    let before = item.told.replace(version.clone());
    item.said.send_replace(Some(now.map(Arc::new)));
    if immutable {
        item.task = None;
    }
    if missed || before.is_some_and(|before| before != version) {
        news.tell(key);
    }
    !immutable
}
