//! Whether a shutdown of the machine is being prepared, from logind on the system bus, and the lock that delays it, from
//! kubelet-volnetd.
//!
//! Two tasks: one listens, the other one keeps the lock. What the bus says is a state and not an event, so that a shutdown that
//! began while this process was not there is found, and one that was called off meanwhile too.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use bulkhead_ipc::client::PeerState;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd::ReleaseShutdownRequest;
use bulkhead_sys::dbus::bus::{Bus, BusError, SYSTEM_BUS};
use bulkhead_sys::dbus::login1;
use bulkhead_types::Epoch;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use kubelet_edges::volnetd::Volnetd;

/// After the bus, logind or kubelet-volnetd was away (upstream `dbusReconnectPeriod`).
const AGAIN: Duration = Duration::from_secs(1);
/// kubelet-volnetd is waited for so long before the lock's copy here is closed: the one that it had has ended with it.
const RELEASED: Duration = Duration::from_secs(3);

/// Whether a shutdown is being prepared; `None` before anybody has said so.
pub type Preparing = watch::Receiver<Option<bool>>;

/// Lets the machine go on.
#[derive(Debug, Clone)]
pub struct Release(mpsc::Sender<oneshot::Sender<()>>);

impl Release {
    /// Returns when this process and kubelet-volnetd have closed the lock.
    pub async fn release(&self) {
        let (done, released) = oneshot::channel();
        // The task lives as long as the process.
        if self.0.send(done).await.is_ok() {
            let _ = released.await;
        }
    }
}

/// Begins both tasks. Call within a tokio runtime.
pub fn follow(volnetd: Volnetd) -> (Preparing, Release) {
    let (preparing_sender, preparing) = watch::channel(None);
    let (connected_sender, connected) = watch::channel(0);
    let (wishes_sender, wishes) = mpsc::channel(1);
    tokio::spawn(listen(preparing_sender, connected_sender));
    let peer = volnetd.link().watch();
    let keeper =
        Keeper { volnetd, peer, preparing: preparing.clone(), connected, lock: None, complaint: Complaint::default() };
    tokio::spawn(keeper.keep(wishes));
    (preparing, Release(wishes_sender))
}

/// Nobody listens: no time is configured for pods.
pub fn off() -> (Preparing, Release) {
    (watch::channel(None).1, Release(mpsc::channel(1).0))
}

/// Says the same trouble once.
#[derive(Debug, Default)]
struct Complaint(Option<String>);

impl Complaint {
    fn of(&mut self, trouble: Option<String>) {
        if let Some(text) = trouble.as_ref().filter(|_| self.0 != trouble) {
            tracing::warn!("Unable to watch the node for shutdown events: {text}");
        }
        self.0 = trouble;
    }
}

async fn listen(preparing: watch::Sender<Option<bool>>, connected: watch::Sender<u64>) {
    let mut complaint = Complaint::default();
    loop {
        let error = session(&preparing, &connected, &mut complaint).await;
        complaint.of(error.err().map(|error| text(&error)));
        // Where nobody can say it, none is being prepared.
        preparing.send_if_modified(|known| known.is_none() && known.replace(false).is_none());
        tokio::time::sleep(AGAIN).await;
    }
}

/// One connection, until it ends.
async fn session(
    preparing: &watch::Sender<Option<bool>>,
    connected: &watch::Sender<u64>,
    complaint: &mut Complaint,
) -> Result<(), BusError> {
    let mut bus = Bus::connect(Path::new(SYSTEM_BUS), false).await?;
    // In this order nothing is missed in between.
    login1::follow_shutdown(&mut bus).await?;
    let mut is = login1::is_preparing(&mut bus).await?;
    complaint.of(None);
    connected.send_modify(|count| *count += 1);
    loop {
        preparing.send_if_modified(|known| known.replace(is) != Some(is));
        is = login1::next_shutdown(&mut bus).await?;
        tracing::info!(event = is, "Shutdown manager detected new shutdown event, isNodeShuttingDownNow");
    }
}

fn text(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Keeps the lock.
struct Keeper {
    volnetd: Volnetd,
    peer: watch::Receiver<PeerState>,
    preparing: Preparing,
    connected: watch::Receiver<u64>,
    lock: Option<OwnedFd>,
    complaint: Complaint,
}

impl Keeper {
    async fn keep(mut self, mut wishes: mpsc::Receiver<oneshot::Sender<()>>) {
        let mut due: Option<Instant> = None;
        let mut epoch: Option<Epoch> = None;
        // The shutdown may go on: nobody takes a lock before it is called off.
        let mut released = false;
        loop {
            tokio::select! {
                wish = wishes.recv() => {
                    let Some(done) = wish else { return };
                    // It may have been called off in this very moment: then the lock is for the next one.
                    if *self.preparing.borrow() == Some(true) {
                        self.release().await;
                        (released, due) = (true, None);
                    }
                    // Whoever asked may have gone.
                    let _ = done.send(());
                }
                Ok(()) = self.preparing.changed() => {
                    if *self.preparing.borrow_and_update() != Some(true) && released {
                        (released, due) = (false, Some(Instant::now()));
                    }
                }
                // Another bus, and perhaps another logind.
                Ok(()) = self.connected.changed() => {
                    self.connected.borrow_and_update();
                    due = (!released).then(Instant::now);
                }
                Ok(()) = self.peer.changed() => {
                    let now = self.peer.borrow_and_update().ready_epoch();
                    if now.is_some() && now != epoch {
                        epoch = now;
                        // Its copy has ended with it.
                        let known = *self.connected.borrow() > 0;
                        due = (known && !released).then(Instant::now);
                    }
                }
                () = at(due) => due = self.take().await.then(|| Instant::now() + AGAIN),
            }
        }
    }

    /// True: it is to be tried again.
    async fn take(&mut self) -> bool {
        match self.volnetd.inhibit_shutdown().await {
            Ok(lock) => {
                // The former one is closed only now.
                self.lock = Some(lock);
                self.complaint.of(None);
                false
            }
            Err(error) => {
                self.complaint.of(Some(text(&error)));
                true
            }
        }
    }

    async fn release(&mut self) {
        let context = CallContext::new();
        let asked = self.volnetd.release(&context, ReleaseShutdownRequest {});
        if let Ok(Err(error)) = tokio::time::timeout(RELEASED, asked).await {
            tracing::warn!(%error, "kubelet-volnetd did not say that it has closed its copy of the shutdown's lock");
        }
        self.lock = None;
    }
}

async fn at(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
