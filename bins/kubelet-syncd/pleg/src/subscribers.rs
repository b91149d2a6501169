//! Who hears of lifecycle events. For a reader that is behind nothing is kept but the names of the pods of which it has lost an event:
//! it is told to look at them as soon as it has room again, and finds in the cache what has become of them.

use std::collections::BTreeSet;

use bulkhead_types::PodUid;
use futures_util::future::select_all;
use tokio::sync::mpsc;

use super::relist::{PodLifecycleEvent, PodLifecycleEventKind};

#[derive(Debug)]
struct Subscriber {
    sender: mpsc::Sender<PodLifecycleEvent>,
    /// Pods of which an event found no room: at most as many as there are pods.
    unheard: BTreeSet<PodUid>,
}

#[derive(Debug, Default)]
pub(super) struct Subscribers {
    all: Vec<Subscriber>,
}

impl Subscribers {
    /// One more, that may be so many events behind.
    pub(super) fn add(&mut self, capacity: usize) -> mpsc::Receiver<PodLifecycleEvent> {
        let (sender, receiver) = mpsc::channel(capacity);
        self.all.push(Subscriber { sender, unheard: BTreeSet::new() });
        receiver
    }

    /// Tells all of them, whose cache shows the events' causes already. Answers how many events found no room.
    pub(super) fn tell(&mut self, events: &[PodLifecycleEvent]) -> u64 {
        self.catch_up();
        let mut discarded = 0;
        for subscriber in &mut self.all {
            for event in events {
                if subscriber.sender.try_send(event.clone()).is_err() {
                    subscriber.unheard.insert(event.uid.clone());
                    discarded += 1;
                }
            }
        }
        discarded
    }

    /// Tells who has room again of the pods that it has not heard of.
    pub(super) fn catch_up(&mut self) {
        self.all.retain(|subscriber| !subscriber.sender.is_closed());
        for subscriber in &mut self.all {
            while let Some(uid) = subscriber.unheard.first() {
                let kind = PodLifecycleEventKind::PodSync;
                let event = PodLifecycleEvent { uid: uid.clone(), kind, id: "".into() };
                if subscriber.sender.try_send(event).is_err() {
                    break;
                }
                subscriber.unheard.pop_first();
            }
        }
    }

    /// Whose room [`room`] is to wait for.
    pub(super) fn behind(&self) -> Vec<mpsc::Sender<PodLifecycleEvent>> {
        let behind = self.all.iter().filter(|subscriber| !subscriber.unheard.is_empty());
        behind.map(|subscriber| subscriber.sender.clone()).collect()
    }
}

/// Ends when one of these has room, or does not read any more; never if there are none.
pub(super) async fn room(behind: Vec<mpsc::Sender<PodLifecycleEvent>>) {
    if behind.is_empty() {
        return std::future::pending().await;
    }
    // The place is given back: whoever waits here asks for it anew.
    drop(select_all(behind.iter().map(|sender| Box::pin(sender.reserve()))).await);
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn died(uid: &str) -> PodLifecycleEvent {
        let kind = PodLifecycleEventKind::ContainerDied;
        PodLifecycleEvent { uid: PodUid::parse(uid).unwrap(), kind, id: "c".into() }
    }

    #[tokio::test]
    async fn who_is_behind_hears_of_every_pod_when_it_reads_on() {
        let mut subscribers = Subscribers::default();
        let (mut slow, gone) = (subscribers.add(10), subscribers.add(10));
        drop(gone);
        let events: Vec<_> = (10..35).map(|n| died(&format!("u{n}"))).collect();
        assert_eq!(subscribers.tell(&events), 15);
        assert_eq!(subscribers.tell(&events[20..]), 5, "and each pod is remembered once");
        assert_eq!(room(subscribers.behind()).now_or_never(), None);

        let mut heard = Vec::new();
        for _ in 0..25 {
            heard.push(slow.try_recv().unwrap());
            assert_eq!(room(subscribers.behind()).now_or_never(), (heard.len() <= 15).then_some(()));
            subscribers.catch_up();
        }
        assert!(slow.try_recv().is_err() && subscribers.behind().is_empty());
        assert_eq!(heard[..10], events[..10]);
        let later = heard[10..].iter().map(|event| (event.kind, &event.uid));
        let lost = events[10..].iter().map(|event| (PodLifecycleEventKind::PodSync, &event.uid));
        assert!(later.eq(lost), "{heard:?}");

        // What was lost goes before what comes, and nobody is waited for who has gone.
        assert_eq!(subscribers.tell(&events[..11]), 1);
        slow.try_recv().unwrap();
        slow.try_recv().unwrap();
        assert_eq!(subscribers.tell(&events[..1]), 0);
        let rest: Vec<_> = std::iter::from_fn(|| slow.try_recv().ok()).collect();
        assert_eq!((rest[8].kind, &rest[8].uid), (PodLifecycleEventKind::PodSync, &events[10].uid));
        assert_eq!(rest[9..], events[..1]);
        assert_eq!(subscribers.tell(&events), 15);
        drop(slow);
        assert_eq!(room(subscribers.behind()).now_or_never(), Some(()));
        subscribers.catch_up();
        assert!(subscribers.all.is_empty());
        assert_eq!(room(subscribers.behind()).now_or_never(), None);
    }
}
