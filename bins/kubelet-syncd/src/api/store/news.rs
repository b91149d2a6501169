//! Which objects have changed since somebody looked: each is named once, however often it changed, so that there are never
//! more names than objects.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::refs::Key;

/// For many who tell and one who listens.
#[derive(Debug, Default)]
pub struct News {
    changed: Mutex<BTreeSet<Key>>,
    some: Notify,
}

impl News {
    /// The object has changed.
    pub fn tell(&self, key: &Key) {
        self.changed.lock().insert(key.clone());
        self.some.notify_one();
    }

    /// Waits for an object that has changed. A wait that is given up loses nothing.
    pub async fn next(&self) -> Key {
        loop {
            let first = self.changed.lock().pop_first();
            if let Some(key) = first {
                return key;
            }
            self.some.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(name: u8) -> Key {
        Key { namespace: "ns".into(), name: name.to_string() }
    }

    proptest! {
        #[test]
        fn each_is_named_once_and_none_is_missed(told in prop::collection::vec(0..20_u8, 0..500)) {
            let news = News::default();
            told.iter().for_each(|name| news.tell(&key(*name)));
            let mut heard = Vec::new();
            while let Some(key) = futures_util::FutureExt::now_or_never(news.next()) {
                heard.push(key);
            }
            let wanted: BTreeSet<Key> = told.into_iter().map(key).collect();
            prop_assert_eq!(heard, wanted.into_iter().collect::<Vec<_>>());
        }
    }

    #[tokio::test]
    async fn who_waits_is_woken() {
        let news = std::sync::Arc::new(News::default());
        let waiting = tokio::spawn({
            let news = news.clone();
            async move { news.next().await }
        });
        tokio::task::yield_now().await;
        news.tell(&key(1));
        assert_eq!(waiting.await.unwrap(), key(1));
    }
}
