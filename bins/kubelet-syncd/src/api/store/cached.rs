//! Strategy Cache: what was read counts for a while, and is read again when somebody wants it after that (upstream
//! `cache_based_manager.go`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Ttl;
use super::news::News;
use super::refs::Key;
use crate::api::server::{Content, Got, ObjectServer};
use kubelet_model::objects::ObjectError;

/// Objects that are looked at anew at a time.
const LOOKS: usize = 4;

struct Data<K> {
    /// What the server said last that was to be believed: the object, or that there is none.
    answer: Option<Got<Arc<K>>>,
    at: Instant,
    /// Version told to who follows it; outlives an invalidation. None: never read.
    told: Option<String>,
}

type Item<K> = Arc<tokio::sync::Mutex<Data<K>>>;

/// All objects that are named, by name.
pub struct Cached<K> {
    server: Arc<dyn ObjectServer<K>>,
    ttl: Ttl,
    sync: Duration,
    items: Mutex<HashMap<Key, Item<K>>>,
    news: Arc<News>,
}

impl<K: Content> Cached<K> {
    pub fn new(server: Arc<dyn ObjectServer<K>>, ttl: Ttl, sync: Duration) -> Self {
        Cached { server, ttl, sync, items: Mutex::default(), news: Arc::default() }
    }

    /// Objects that were read anew and are others than before, for one who tells them on.
    pub fn news(&self) -> Arc<News> {
        self.news.clone()
    }

    fn item(&self, key: &Key) -> Item<K> {
        let empty = || Arc::new(tokio::sync::Mutex::new(Data { answer: None, at: Instant::now(), told: None }));
        self.items.lock().entry(key.clone()).or_insert_with(empty).clone()
    }

    pub fn forget(&self, key: &Key) {
        self.items.lock().remove(key);
    }

    /// The next read asks the server itself.
    pub fn invalidate(&self, key: &Key) {
        let Some(item) = self.items.lock().get(key).cloned() else { return };
        match item.try_lock() {
            Ok(mut data) => data.answer = None,
            // It is being read at this moment: the answer may be older than the invalidation, so another item begins.
            Err(_) => {
                self.items.lock().remove(key);
            }
        }
    }

    /// From the cache, or from the server when that is too old.
    pub async fn get(&self, key: &Key) -> Got<Arc<K>> {
        let item = self.item(key);
        let mut data = item.lock().await;
        let fresh = data.answer.is_some() && data.at.elapsed() < (self.ttl)();
        match &data.answer {
            Some(Ok(object)) if fresh => Ok(object.clone()),
            // That there is none is asked each time.
            _ => self.read(key, &mut data).await,
        }
    }

    async fn read(&self, key: &Key, data: &mut Data<K>) -> Got<Arc<K>> {
        // A look whether what is known has changed need not trouble the server's store.
        let known = data.answer.as_ref().and_then(|answer| answer.as_ref().ok()).cloned();
        match self.server.get(&key.namespace, &key.name, known.is_some()).await {
            Ok(object) => {
                if let Some(known) = &known
                    && is_older(object.resource_version(), known.resource_version())
                {
                    return Ok(known.clone());
                }
                let object = Arc::new(object);
                self.keep(key, data, Ok(object.clone()));
                Ok(object)
            }
            Err(missing @ ObjectError::NotFound(_)) => {
                self.keep(key, data, Err(missing.clone()));
                Err(missing)
            }
            // The server is away: what is known goes on counting.
            Err(error) => data.answer.clone().unwrap_or(Err(error)),
        }
    }

    fn keep(&self, key: &Key, data: &mut Data<K>, answer: Got<Arc<K>>) {
        let version = answer.as_ref().map_or_else(|_| String::new(), |object| object.resource_version().to_owned());
        let before = data.told.replace(version.clone());
        if before.is_some_and(|before| before != version) {
            self.news.tell(key);
        }
        data.answer = Some(answer);
        data.at = Instant::now();
    }

    /// Reads anew what has not been read for a sync period (for longer, where the cache holds longer).
    pub async fn look(&self, followed: Vec<Key>) {
        let period = self.sync.max((self.ttl)());
        futures_util::stream::iter(followed).for_each_concurrent(LOOKS, |key| self.look_at(key, period)).await;
    }

    async fn look_at(&self, key: Key, period: Duration) {
        let item = self.items.lock().get(&key).cloned();
        let Some(item) = item else { return };
        let mut data = item.lock().await;
        if data.answer.is_some() && data.at.elapsed() >= period && self.read(&key, &mut data).await.is_err() {
            tracing::debug!(namespace = key.namespace, name = key.name, "{} is not to be had", K::KIND);
        }
    }
}

/// Versions are compared as numbers, as upstream does it; one that is no number is never older.
fn is_older(new: &str, known: &str) -> bool {
    matches!((new.parse::<u64>(), known.parse::<u64>()), (Ok(new), Ok(known)) if new < known)
}
