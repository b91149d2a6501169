//! One at a time has to do with a claim: it is prepared once, and not while it is being unprepared.

use std::collections::BTreeSet;

use kubelet_container_manager::dra::book::ClaimKey;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The claims that somebody is busy with.
#[derive(Debug, Default)]
pub struct Holds {
    busy: Mutex<BTreeSet<ClaimKey>>,
    freed: Notify,
}

/// These are free again when it is dropped.
#[derive(Debug)]
pub struct Held<'a> {
    holds: &'a Holds,
    keys: Vec<ClaimKey>,
}

impl Holds {
    /// Waits until all of them are free, and takes them at once: who waits for one holds none, so nobody waits in a circle.
    pub async fn hold(&self, keys: Vec<ClaimKey>) -> Held<'_> {
        loop {
            let freed = self.freed.notified();
            tokio::pin!(freed);
            // Before it is looked at whether they are free, so that nothing is missed in between.
            freed.as_mut().enable();
            {
                let mut busy = self.busy.lock();
                if keys.iter().all(|key| !busy.contains(key)) {
                    busy.extend(keys.iter().cloned());
                    return Held { holds: self, keys };
                }
            }
            freed.await;
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        {
            let mut busy = self.holds.busy.lock();
            for key in &self.keys {
                busy.remove(key);
            }
        }
        self.holds.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn keys(names: &[&str]) -> Vec<ClaimKey> {
        names.iter().map(|name| ClaimKey { namespace: "ns".into(), name: (*name).to_owned() }).collect()
    }

    #[tokio::test]
    async fn all_or_none() {
        let holds = Holds::default();
        let first = holds.hold(keys(&["a", "b"])).await;
        let mut second = Box::pin(holds.hold(keys(&["b", "c"])));
        assert!(second.as_mut().now_or_never().is_none());
        let third = holds.hold(keys(&["c"])).await;
        drop(first);
        assert!(second.as_mut().now_or_never().is_none(), "c is not free");
        drop(third);
        drop(second.await);
        assert!(holds.busy.lock().is_empty());
    }
}
