//! Whether the containers that are followed still run, learned from kubelet-syncd's stream of pods, which is read while
//! anybody follows and is the same for all.
//!
//! An end is what syncd says of an instance that the runtime had: it exited, or it is there no more. A syncd that is
//! away, or that has not looked yet, has said nothing.

use std::collections::HashMap;
use std::sync::Arc;

use bulkhead_ipc::client::Link;
use bulkhead_ipc::syncd::PodState;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use crate::pods::feed::{self, News};

/// Of the stream's messages so many wait; the sender waits with the next.
const WAITING: usize = 16;

/// What is known of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It runs, or nothing says otherwise.
    Runs,
    Ended,
}

/// Whether an instance of a pod runs, as syncd says. `id` is without the runtime's name.
pub fn life(pod: &PodState, id: &str) -> Life {
    match &pod.instances {
        Some(known) if !known.containers.iter().any(|one| one.id == id && one.running) => Life::Ended,
        _ => Life::Runs,
    }
}

type Followed = HashMap<String, HashMap<String, watch::Sender<Life>>>;

#[derive(Debug, Default)]
struct Inner {
    /// By the pod's uid, then by the instance's id.
    followed: Followed,
    is_running: bool,
}

/// The instances that somebody follows. One for the process.
#[derive(Debug, Clone, Default)]
pub struct Lives {
    inner: Arc<Mutex<Inner>>,
}

impl Lives {
    /// Sees what becomes of an instance from now on; an end that was told before is not told again, so the caller asks
    /// once more after this. Must be called within a tokio runtime.
    pub fn follow(&self, syncd: &Link, uid: &str, id: &str) -> watch::Receiver<Life> {
        let mut inner = self.inner.lock();
        let pod = inner.followed.entry(uid.to_owned()).or_default();
        let life = pod.entry(id.to_owned()).or_insert_with(|| watch::Sender::new(Life::Runs)).subscribe();
        if !std::mem::replace(&mut inner.is_running, true) {
            let (news, told) = mpsc::channel(WAITING);
            tokio::spawn(feed::pods(syncd.clone(), news, |state| Ok(Box::new(state))));
            tokio::spawn(listen(self.inner.clone(), told));
        }
        life
    }

    /// How many instances are followed.
    pub fn instances(&self) -> usize {
        self.inner.lock().followed.values().map(HashMap::len).sum()
    }
}

/// Until nobody follows any more, which is found out by the next word of syncd's.
async fn listen(inner: Arc<Mutex<Inner>>, mut told: mpsc::Receiver<News<Box<PodState>>>) {
    while let Some(news) = told.recv().await {
        let mut inner = inner.lock();
        tell(&mut inner.followed, &news);
        forget(&mut inner.followed);
        if inner.followed.is_empty() {
            inner.is_running = false;
            return;
        }
    }
    // The stream ends with the process.
}

fn tell(followed: &mut Followed, news: &News<Box<PodState>>) {
    let send = |sender: &watch::Sender<Life>, life: Life| {
        // An instance that has ended does not run again.
        sender.send_if_modified(|known| life == Life::Ended && std::mem::replace(known, life) != life)
    };
    match news {
        News::Pod(state) => {
            for (id, sender) in followed.get(&state.uid).into_iter().flatten() {
                send(sender, life(state, id));
            }
        }
        News::Removed(uid) => {
            for sender in followed.get(uid.as_str()).into_iter().flat_map(HashMap::values) {
                send(sender, Life::Ended);
            }
        }
        News::Connected(_) | News::SnapshotDone => {}
    }
}

fn forget(followed: &mut Followed) {
    followed.retain(|_, pod| {
        pod.retain(|_, sender| sender.receiver_count() > 0);
        !pod.is_empty()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::syncd::{ContainerInstance, Instances};
    use bulkhead_types::PodUid;

    fn pod(instances: Option<&[(&str, bool)]>) -> PodState {
        let one = |(id, running): &(&str, bool)| ContainerInstance {
            id: (*id).to_owned(),
            running: *running,
            ..ContainerInstance::default()
        };
        let instances = instances.map(|all| Instances { containers: all.iter().map(one).collect() });
        PodState { uid: "u".to_owned(), instances, ..PodState::default() }
    }

    #[test]
    fn only_reported_states_count() {
        for (instances, expected) in [
            (None, Life::Runs),
            (Some(&[("a", true)][..]), Life::Runs),
            (Some(&[("b", true), ("a", true)]), Life::Runs),
            (Some(&[("a", false)]), Life::Ended),
            (Some(&[("b", true)]), Life::Ended),
            (Some(&[]), Life::Ended),
        ] {
            assert_eq!(life(&pod(instances), "a"), expected, "{instances:?}");
        }
    }

    #[test]
    fn the_end_of_a_container_is_final() {
        let sender = watch::Sender::new(Life::Runs);
        let mut receiver = sender.subscribe();
        let mut followed = Followed::from([("u".to_owned(), HashMap::from([("a".to_owned(), sender)]))]);
        let news = |instances| News::Pod(Box::new(pod(instances)));
        tell(&mut followed, &news(Some(&[("a", true)])));
        tell(&mut followed, &News::Connected(7));
        tell(&mut followed, &News::SnapshotDone);
        tell(&mut followed, &news(None));
        tell(&mut followed, &News::Removed(PodUid::parse("other").unwrap()));
        assert!(!receiver.has_changed().unwrap(), "a new life of syncd that knows nothing yet ends nothing");
        tell(&mut followed, &news(Some(&[("a", false)])));
        assert!(receiver.has_changed().unwrap());
        assert_eq!(*receiver.borrow_and_update(), Life::Ended);
        tell(&mut followed, &news(Some(&[("a", true)])));
        tell(&mut followed, &News::Removed(PodUid::parse("u").unwrap()));
        assert_eq!((receiver.has_changed().unwrap(), *receiver.borrow()), (false, Life::Ended));
        forget(&mut followed);
        assert_eq!(followed.len(), 1);
        drop(receiver);
        forget(&mut followed);
        assert!(followed.is_empty());
    }
}
