//! Waits of pods that are being admitted for the container manager: a task each, whose end is a message to the sync loop.

use std::collections::HashMap;

use bulkhead_types::PodUid;
use futures_util::future::BoxFuture;
use kubelet_container_manager::topology::Refusal;
use tokio::sync::mpsc;

/// One is over.
#[derive(Debug)]
pub(super) struct Waited {
    pub(super) uid: PodUid,
    pub(super) ticket: u64,
    /// None: the pod can be decided on. Else what became of what was left to do for it.
    pub(super) outcome: Option<Result<(), Refusal>>,
}

/// All that are under way.
#[derive(Debug)]
pub(super) struct ResourceWaits {
    tickets: u64,
    /// Of which pods something is being done that gives them what they have: a plugin may be allocating for one that was removed.
    completing: HashMap<u64, PodUid>,
    /// At most one message for each ticket.
    over: (mpsc::UnboundedSender<Waited>, mpsc::UnboundedReceiver<Waited>),
}

impl Default for ResourceWaits {
    fn default() -> Self {
        ResourceWaits { tickets: 0, completing: HashMap::new(), over: mpsc::unbounded_channel() }
    }
}

impl ResourceWaits {
    /// Until the pod can be decided on.
    pub(super) fn decidable(&mut self, uid: &PodUid, wait: BoxFuture<'static, ()>) -> u64 {
        self.begin(uid, async {
            wait.await;
            None
        })
    }

    /// Until nothing is left to do for the pod.
    pub(super) fn complete(&mut self, uid: &PodUid, wait: BoxFuture<'static, Result<(), Refusal>>) -> u64 {
        let ticket = self.begin(uid, async { Some(wait.await) });
        self.completing.insert(ticket, uid.clone());
        ticket
    }

    /// Pods for which that is under way, those that were removed meanwhile among them.
    pub(super) fn completing(&self) -> impl Iterator<Item = &PodUid> {
        self.completing.values()
    }

    fn begin(&mut self, uid: &PodUid, wait: impl Future<Output = Option<Result<(), Refusal>>> + Send + 'static) -> u64 {
        self.tickets += 1;
        let (uid, ticket, over) = (uid.clone(), self.tickets, self.over.0.clone());
        tokio::spawn(async move {
            let outcome = wait.await;
            // The loop is gone only when the process is.
            let _ = over.send(Waited { uid, ticket, outcome });
        });
        ticket
    }

    /// The next that is over; pending while none is.
    pub(super) async fn over(&mut self) -> Waited {
        match self.over.1.recv().await {
            Some(waited) => {
                self.completing.remove(&waited.ticket);
                waited
            }
            // Never: a sender lives here.
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    #[tokio::test]
    async fn what_is_being_done_for_a_pod_counts_until_it_is_over() {
        let (mut waits, uid) = (ResourceWaits::default(), PodUid::parse("a").unwrap());
        let (sender, answer) = tokio::sync::oneshot::channel::<()>();
        let first = waits.decidable(&uid, std::future::ready(()).boxed());
        assert_eq!(waits.completing().count(), 0, "nothing is given yet");
        assert_eq!(waits.over().await.ticket, first);
        let second = waits.complete(&uid, answer.map(|_| Ok(())).boxed());
        assert_eq!(waits.completing().collect::<Vec<_>>(), [&uid]);
        sender.send(()).unwrap();
        assert_eq!(waits.over().await.ticket, second);
        assert_eq!(waits.completing().count(), 0);
    }
}
