//! The runtime as syncs and ends of pods call it: what makes a sandbox or a container, or ends one, waits for its turn, and PLEG is told
//! what is made and removed.
//!
//! Whose turn it is stands in a task-local and in no parameter: between the sync that has the turn and the call that takes it lie the
//! executor of [`kubelet_runtime`] and the image manager, which know neither of turns nor of PLEG.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_cri::{CriClient, CriError, v1};
use bulkhead_types::{ContainerId, PodUid, SandboxId};
use parking_lot::Mutex;

use crate::cri_metrics::SandboxMetrics;
use crate::start_limit::{StartLimiter, StartSlot};
use crate::take_down::{TakeDown, TakeDowns};
use kubelet_edges::runtime_service::RuntimeService;
use kubelet_images::in_use::ImageHold;
use kubelet_pleg::{Busy, Making, Pleg};
use kubelet_runtime::stages;

/// What takes longer than this (an image that is pulled, a hook) holds no slot any more.
pub(super) const SOON: Duration = Duration::from_millis(300);
/// The end of a container that is replaced is held back until its successor is there, for so long at most. Upstream learns of the end at
/// its next relist, up to a second later (`pkg/kubelet/kubelet.go`, genericPlegRelistPeriod): a client that changes an image and reads
/// the status at once still finds the pod ready.
const REPLACED: Duration = Duration::from_secs(1);

/// What one sync of one pod holds while it starts something.
#[derive(Default)]
struct SyncHolds {
    slot: Option<StartSlot>,
    /// The pod's place among those that are prepared ahead of their start; given back with the turn.
    place: Option<StartSlot>,
    /// Keeps PLEG from looking at each step; the sync asks for one look at its end.
    busy: Option<Busy>,
}

#[derive(Clone)]
struct Turn {
    held: Arc<Mutex<SyncHolds>>,
    /// Images that this sync starts containers of: nobody removes them before it is over.
    images: Arc<Mutex<Vec<ImageHold>>>,
    pleg: Pleg,
    uid: PodUid,
    /// The pod has the machine's network: no network plugin is called for it, and it may be what the plugins of all others wait for. So it
    /// waits for no slot, which calls that wait for it may hold.
    host_network: bool,
}

impl Turn {
    /// PLEG looks at the end of this sync, unless it is let go before.
    fn hold_looks(&self) {
        let is_busy = self.held.lock().busy.is_some();
        if !is_busy {
            let busy = self.pleg.busy(&self.uid);
            self.held.lock().busy = Some(busy);
        }
    }
}

tokio::task_local! {
    /// The turn of the sync that this task does. Nothing that is called outside of a sync waits for one.
    static TURN: Turn;
    /// The end of a pod that this task makes.
    static TAKE_DOWN: TakeDown;
}

/// Stops a pod; its signals and the end of its sandboxes wait for their turn.
pub async fn with_take_down<T>(take_down: TakeDown, end: impl Future<Output = T>) -> T {
    TAKE_DOWN.scope(take_down, end).await
}

/// Runs a sync; what it starts waits for its turn, and the turn ends with the sync at the latest, as does its place among the pods that
/// are prepared.
pub fn with_turn<T>(
    pleg: Pleg,
    uid: PodUid,
    host_network: bool,
    place: Option<StartSlot>,
    sync: impl Future<Output = T>,
) -> impl Future<Output = T> {
    let held = Arc::new(Mutex::new(SyncHolds { place, ..SyncHolds::default() }));
    TURN.scope(Turn { held, images: Arc::default(), pleg, uid, host_network }, Box::pin(sync))
}

/// The next pod may start; PLEG still waits for the end of this sync.
fn give_back() {
    let _ = TURN.try_with(|turn| turn.held.lock().slot.take());
}

/// PLEG is told what the next call makes.
fn making() -> Option<Making> {
    TURN.try_with(|turn| turn.pleg.making(&turn.uid)).ok()
}

/// Until the end of this sync the image stays.
pub(super) fn keep(hold: ImageHold) {
    let _ = TURN.try_with(|turn| turn.images.lock().push(hold));
}

/// Before something that may take long: others start, and PLEG looks.
pub(super) fn let_go() {
    let _ = TURN.try_with(|turn| std::mem::take(&mut *turn.held.lock()));
}

/// Waits for something; when that takes longer than `soon`, others start meanwhile, and PLEG looks.
fn let_go_after<T>(soon: Duration, what: impl Future<Output = T>) -> impl Future<Output = T> {
    // Boxed, as in `stages::during`.
    let mut what = Box::pin(what);
    async move {
        tokio::select! {
            done = &mut what => done,
            () = tokio::time::sleep(soon) => {
                let_go();
                what.await
            }
        }
    }
}

pub(super) fn unhurried<T>(what: impl Future<Output = T>) -> impl Future<Output = T> {
    let_go_after(SOON, what)
}

/// Waits for the end of one container of a pod that goes on.
async fn replacing<T>(stop: impl Future<Output = T>) -> T {
    give_back();
    let _ = TURN.try_with(Turn::hold_looks);
    let_go_after(REPLACED, stop).await
}

/// The runtime with bounded, fair starts and take-downs.
#[derive(Debug, Clone)]
pub struct RateLimitedRuntime {
    cri: CriClient,
    limiter: StartLimiter,
    take_downs: TakeDowns,
    pleg: Pleg,
    metrics: SandboxMetrics,
}

impl RateLimitedRuntime {
    pub fn new(
        cri: CriClient,
        limiter: StartLimiter,
        take_downs: TakeDowns,
        pleg: Pleg,
        metrics: SandboxMetrics,
    ) -> Self {
        RateLimitedRuntime { cri, limiter, take_downs, pleg, metrics }
    }

    /// PLEG is told what is gone; that it was gone already is as good.
    fn note_removal(&self, id: &str, removed: &Result<(), CriError>) {
        if removed.is_ok() || removed.as_ref().is_err_and(CriError::is_not_found) {
            self.pleg.removed(id);
        }
    }

    /// Waits for the turn to start something, where a sync of this task's needs one and has none yet.
    async fn take(&self) {
        let Ok(turn) = TURN.try_with(Turn::clone) else { return };
        let waits = !turn.host_network && turn.held.lock().slot.is_none();
        if waits {
            let slot = match self.limiter.try_acquire() {
                Some(slot) => slot,
                None => stages::waiting(self.limiter.acquire()).await,
            };
            turn.held.lock().slot = Some(slot);
        }
        let place = turn.held.lock().place.take();
        drop(place);
        turn.hold_looks();
    }

    /// Stops a sandbox when its turn has come.
    async fn end_sandbox<T>(&self, stop: impl Future<Output = T>) -> T {
        if let Ok(take_down) = TAKE_DOWN.try_with(TakeDown::clone) {
            take_down.stop_sandbox(stop).await
        } else if TURN.try_with(|turn| turn.host_network).unwrap_or(false) {
            stop.await
        } else {
            self.take_downs.stop_sandbox(stop).await
        }
    }
}

impl RuntimeService for RateLimitedRuntime {
    async fn run_pod_sandbox(&self, config: &v1::PodSandboxConfig, handler: &str) -> Result<SandboxId, CriError> {
        self.take().await;
        let began = tokio::time::Instant::now();
        let making = making();
        let made = RuntimeService::run_pod_sandbox(&self.cri, config, handler).await;
        self.metrics.ran(handler, began.elapsed(), made.is_ok());
        if let (Some(making), Ok(id)) = (making, &made) {
            making.sandbox(id);
        }
        made.inspect_err(|_| let_go())
    }

    async fn sandbox_ips(&self, sandbox: &SandboxId) -> Result<Vec<IpAddr>, CriError> {
        self.cri.sandbox_ips(sandbox).await
    }

    async fn stop_pod_sandbox(&self, sandbox: &SandboxId) -> Result<(), CriError> {
        self.end_sandbox(RuntimeService::stop_pod_sandbox(&self.cri, sandbox)).await
    }

    async fn remove_pod_sandbox(&self, sandbox: &SandboxId) -> Result<(), CriError> {
        let removed = RuntimeService::remove_pod_sandbox(&self.cri, sandbox).await;
        self.note_removal(sandbox.as_str(), &removed);
        removed
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        config: v1::ContainerConfig,
        sandbox_config: &v1::PodSandboxConfig,
    ) -> Result<ContainerId, CriError> {
        self.take().await;
        let making = making();
        let made = RuntimeService::create_container(&self.cri, sandbox, config, sandbox_config).await;
        if let (Some(making), Ok(id)) = (making, &made) {
            making.container(id, sandbox);
        }
        made.inspect_err(|_| let_go())
    }

    async fn start_container(&self, container: &ContainerId) -> Result<(), CriError> {
        let started = RuntimeService::start_container(&self.cri, container).await;
        give_back();
        started
    }

    async fn stop_container(&self, container: &ContainerId, grace: i64) -> Result<(), CriError> {
        let stop = RuntimeService::stop_container(&self.cri, container, grace);
        match TAKE_DOWN.try_with(TakeDown::clone) {
            Ok(take_down) => {
                // A kill waits out a grace period.
                let_go();
                take_down.stop(container, stop).await
            }
            Err(_) => replacing(stop).await,
        }
    }

    async fn remove_container(&self, container: &ContainerId) -> Result<(), CriError> {
        let removed = RuntimeService::remove_container(&self.cri, container).await;
        self.note_removal(container.as_str(), &removed);
        removed
    }

    async fn exec_sync(&self, container: &ContainerId, command: &[String]) -> Result<v1::ExecSyncResponse, CriError> {
        RuntimeService::exec_sync(&self.cri, container, command).await
    }

    async fn annotations(&self, container: &ContainerId) -> Result<BTreeMap<String, String>, CriError> {
        self.cri.annotations(container).await
    }

    async fn unhurried<T: Send>(&self, what: impl Future<Output = T> + Send) -> T {
        unhurried(what).await
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_cri::DirectConnector;
    use kubelet_pleg::PlegOptions;
    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::start_limit::HOLD;
    use crate::take_down::Slots;

    fn cri() -> CriClient {
        CriClient::new(Arc::new(DirectConnector("/nowhere".into())), bulkhead_cri::CriDeadlines::default())
    }

    fn looks_are_held() -> bool {
        TURN.with(|turn| turn.held.lock().busy.is_some())
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_container_that_is_replaced_is_told_with_its_successor_or_after_a_second() {
        let (pleg, _task) = Pleg::new(cri(), PlegOptions::default(), &prometheus::Registry::new()).unwrap();
        for (millis, held) in [(0, true), (900, true), (1100, false)] {
            let uid = PodUid::parse("u").unwrap();
            with_turn(pleg.clone(), uid, false, None, async {
                replacing(sleep(Duration::from_millis(millis))).await;
                assert_eq!(looks_are_held(), held, "{millis} ms");
                unhurried(sleep(SOON * 2)).await;
                assert!(!looks_are_held(), "an image that is pulled takes long");
            })
            .await;
        }
        // A pod that ends has no successor.
        replacing(sleep(Duration::from_millis(1))).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_prepared_pod_holds_its_place_until_its_turn_to_start() {
        let registry = prometheus::Registry::new();
        let (pleg, _task) = Pleg::new(cri(), PlegOptions::default(), &registry).unwrap();
        let (limiter, places) = (StartLimiter::new(1, HOLD), StartLimiter::to_prepare(2, HOLD));
        let take_downs = TakeDowns::new(Slots { first: 1, most: 1 });
        let metrics = SandboxMetrics::register(&registry).unwrap();
        let runtime = RateLimitedRuntime::new(cri(), limiter.clone(), take_downs, pleg.clone(), metrics);
        let uid = PodUid::parse("u").unwrap();
        let others = limiter.acquire().await;
        let place = places.try_acquire();
        with_turn(pleg.clone(), uid.clone(), false, place, async {
            assert!(timeout(SOON, runtime.take()).await.is_err());
            assert_eq!(places.free(), 1, "it waits for its turn");
            drop(others);
            runtime.take().await;
            assert_eq!(places.free(), 2, "it starts");
        })
        .await;
        let place = places.try_acquire();
        with_turn(pleg, uid, false, place, unhurried(sleep(SOON * 2))).await;
        assert_eq!(places.free(), 2, "an image that is pulled before its turn");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_of_the_hosts_network_passes_lines_that_are_full() {
        let registry = prometheus::Registry::new();
        let (pleg, _task) = Pleg::new(cri(), PlegOptions::default(), &registry).unwrap();
        let limiter = StartLimiter::new(1, Duration::from_secs(100));
        let take_downs = TakeDowns::new(Slots { first: 1, most: 1 });
        let metrics = SandboxMetrics::register(&registry).unwrap();
        let runtime = RateLimitedRuntime::new(cri(), limiter.clone(), take_downs.clone(), pleg.clone(), metrics);
        let _starts = limiter.acquire().await;
        tokio::spawn(async move { take_downs.stop_sandbox(std::future::pending::<()>()).await });
        tokio::task::yield_now().await;
        let soon = Duration::from_millis(100);
        for (host_network, passes) in [(true, true), (false, false)] {
            let uid = PodUid::parse("u").unwrap();
            with_turn(pleg.clone(), uid, host_network, None, async {
                assert_eq!(timeout(soon, runtime.take()).await.is_ok(), passes, "a start");
                let ended = timeout(soon, runtime.end_sandbox(std::future::ready(()))).await;
                assert_eq!(ended.is_ok(), passes, "the end of a sandbox");
            })
            .await;
        }
    }
}
