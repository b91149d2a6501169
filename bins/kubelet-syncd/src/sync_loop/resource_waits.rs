//! Waits of pods that are being admitted for the container manager: a task each, whose end is a message to the sync loop.

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
    /// At most one message for each ticket.
    over: (mpsc::UnboundedSender<Waited>, mpsc::UnboundedReceiver<Waited>),
}

impl Default for ResourceWaits {
    fn default() -> Self {
        ResourceWaits { tickets: 0, over: mpsc::unbounded_channel() }
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
        self.begin(uid, async { Some(wait.await) })
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
            Some(waited) => waited,
            // Never: a sender lives here.
            None => std::future::pending().await,
        }
    }
}
