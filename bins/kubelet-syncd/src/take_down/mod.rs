//! Fair, bounded take-downs: so many pods are between `StopContainer` and the end of `StopPodSandbox` at a time (decision 89).
//!
//! A runtime that ends a hundred pods at once ends none of them for seconds; a few at a time are gone one after the other, and the
//! last not later. A container that uses its grace period costs the runtime nothing, so its pod gives the slot back meanwhile and
//! takes one again, before pods that have not been signalled, when it has ended. A grace period counts from the signal; a signal that
//! was held back for long enough waits for no slot any more, only for those of other pods of which the same is so, which go out at a
//! bounded rate; and a pod that has to go in a hurry (eviction, preemption, a shutdown of the machine, a grace period that was
//! shortened) is signalled at once.

mod line;
mod overdue;
mod progress;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::ContainerId;
use kubelet_runtime::runtime::grace_clock::HeldBack;
use kubelet_runtime::stages;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use self::line::{Line, Place, STALLS};
use self::overdue::Overdue;
use self::progress::{Stop, needs_slot};
use crate::start_limit::per_processor;

/// A container that runs for so long after its signal uses its grace period. What ends at once has ended by then, also on a
/// machine that does nothing else but take down.
pub const RUNS_ON: Duration = Duration::from_millis(300);
/// For so long a signal waits for a slot alone, counted from the first one of the pod that was wanted. Pods as many as
/// a node has by default (110), all of which use their grace periods, are signalled before it on two processors. After
/// it pods are signalled beside the slots as well, one in each [`RUNS_ON`] for each slot that can be open: as many as
/// these let through where every pod uses its grace period.
pub const HELD_MAX: Duration = Duration::from_secs(10);
/// A call that takes longer than this blocks nobody else.
pub const HOLD: Duration = Duration::from_secs(5);

/// How many pods are taken down at a time on a machine with so many processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// After quiet: one on up to two processors, else one for each, at most 4. The fewer begin together, the sooner the first is down.
    pub first: usize,
    /// Once pods have waited: three for each, at least 3, at most 12. With fewer the processors are not busy all the time.
    pub most: usize,
}

impl Slots {
    pub fn of(cpus: u32) -> Self {
        let first = if cpus <= 2 { 1 } else { per_processor(cpus, 1, 1..=4) };
        Slots { first, most: per_processor(cpus, 3, 3..=12) }
    }
}

/// Hands out the slots.
#[derive(Debug, Clone)]
pub struct TakeDowns {
    line: Arc<Mutex<Line<oneshot::Sender<Slot>>>>,
    overdue: Arc<Overdue>,
    /// Told each time that it is quiet again.
    quiet: Arc<Notify>,
}

/// A turn; dropping it gives it to the next in line.
#[derive(Debug)]
struct Slot {
    /// None: it was given on already, or there was none.
    from: Option<TakeDowns>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(from) = self.from.take() {
            from.hand_on();
        }
    }
}

impl TakeDowns {
    pub fn new(slots: Slots) -> Self {
        let every = RUNS_ON / u32::try_from(slots.most).unwrap_or(u32::MAX).max(1);
        TakeDowns {
            line: Arc::new(Mutex::new(Line::new(slots.first, slots.most))),
            overdue: Arc::new(Overdue::new(every)),
            quiet: Arc::default(),
        }
    }

    fn line(&self) -> MutexGuard<'_, Line<oneshot::Sender<Slot>>> {
        // Every step leaves the line whole.
        self.line.lock()
    }

    /// Take-downs that could begin now.
    pub fn free(&self) -> usize {
        self.line().free()
    }

    /// A slot has come back.
    fn hand_on(self) {
        let mut line = self.line();
        line.come_back();
        self.serve(line);
    }

    /// Gives free slots to who waits.
    fn serve(&self, mut line: MutexGuard<'_, Line<oneshot::Sender<Slot>>>) {
        while let Some(next) = line.next() {
            if let Err(mut slot) = next.send(Slot { from: Some(self.clone()) }) {
                // Whoever waited is gone, and the one behind it is next.
                slot.from = None;
                line.undo();
            }
        }
        if line.is_quiet() {
            self.quiet.notify_waiters();
        }
    }

    /// Waits until nothing is taken down: no slot is held, and nobody waits for one. A pod that uses its grace period holds none.
    pub async fn quiet(&self) {
        loop {
            // It hears from here on, also before it is polled.
            let quiet = self.quiet.notified();
            if self.line().is_quiet() {
                return;
            }
            quiet.await;
        }
    }

    fn take(&self) -> Option<Slot> {
        self.line().take().then(|| Slot { from: Some(self.clone()) })
    }

    async fn acquire(&self, place: Place) -> Slot {
        let turn = {
            let mut line = self.line();
            if line.take() {
                return Slot { from: Some(self.clone()) };
            }
            let (sender, turn) = oneshot::channel();
            line.wait(place, sender);
            turn
        };
        stages::waiting(self.served(turn)).await
    }

    async fn served(&self, mut turn: oneshot::Receiver<Slot>) -> Slot {
        loop {
            tokio::select! {
                biased;
                // The line is never dropped while somebody waits in it; were it, take-downs would go unbounded rather than stop.
                slot = &mut turn => return slot.unwrap_or(Slot { from: None }),
                () = tokio::time::sleep(STALLS) => {
                    let mut line = self.line();
                    line.open_if_stalled();
                    self.serve(line);
                }
            }
        }
    }

    /// Waits until a signal that may go out at that time does so without a slot.
    async fn overdue(&self, from: Instant) {
        tokio::time::sleep_until(from).await;
        self.overdue.turn().await;
    }

    /// Stops a sandbox that is not part of a take-down: one of which nothing runs any more.
    pub async fn stop_sandbox<T>(&self, call: impl Future<Output = T>) -> T {
        hold(self.acquire(Place::Back).await, call).await
    }
}

/// Makes a call with a slot, which goes to others when the call hangs.
async fn hold<T>(slot: Slot, call: impl Future<Output = T>) -> T {
    tokio::pin!(call);
    tokio::select! {
        done = &mut call => done,
        () = tokio::time::sleep(HOLD) => {
            drop(slot);
            call.await
        }
    }
}

/// What a take-down has to know and to tell.
pub trait Pod: Send + Sync {
    /// Whether the container still runs, by what is known already.
    fn runs(&self, container: &ContainerId) -> bool;

    /// All its sandboxes have the machine's network, so that no network plugin is called at their end.
    fn has_host_network(&self) -> bool;

    /// Its first signal has to wait for its turn, or need not any more.
    fn held_back(&self, waits: bool);

    /// The runtime works for the pod's end until the answer is dropped: what its events tell is our own doing.
    fn working(&self) -> Box<dyn Send>;
}

/// The take-down of one pod, from the first signal to the end of its sandboxes. Clones are the same one.
#[derive(Clone)]
pub struct TakeDown {
    inner: Arc<Inner>,
}

struct Inner {
    slots: TakeDowns,
    pod: Box<dyn Pod>,
    /// Nothing is held back.
    hurried: bool,
    /// Who waits for the pod's slot, on behalf of all its containers.
    gate: tokio::sync::Mutex<()>,
    held: HeldBack,
    state: Mutex<State>,
}

struct State {
    slot: Option<Slot>,
    working: Option<Box<dyn Send>>,
    /// Running containers of which no stop has come back.
    left: usize,
    stops: HashMap<ContainerId, Stop>,
    place: Place,
    /// From then on its signals may go out without a slot.
    signal_by: Option<Instant>,
    /// They do.
    is_overdue: bool,
}

impl std::fmt::Debug for TakeDown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TakeDown").field("hurried", &self.inner.hurried).finish_non_exhaustive()
    }
}

impl TakeDown {
    /// `running`: containers that are to be stopped. `hurried`: no signal waits.
    pub fn new(slots: TakeDowns, running: usize, hurried: bool, pod: Box<dyn Pod>) -> Self {
        let state = State {
            slot: None,
            working: None,
            left: running,
            stops: HashMap::new(),
            place: Place::Back,
            signal_by: None,
            is_overdue: false,
        };
        let (gate, held, state) = (tokio::sync::Mutex::default(), HeldBack::default(), Mutex::new(state));
        TakeDown { inner: Arc::new(Inner { slots, pod, hurried, gate, held, state }) }
    }

    /// For how long its signals are held back: no part of a grace period.
    pub fn held_back(&self) -> HeldBack {
        self.inner.held.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every step leaves it whole.
        self.inner.state.lock()
    }

    /// Stops a container by `call` when its turn has come.
    pub async fn stop<T>(&self, container: &ContainerId, call: impl Future<Output = T>) -> T {
        self.note(container, Some(Stop::Waits));
        self.turn_to_signal().await;
        self.state().place = Place::Front;
        self.note(container, Some(Stop::Ends));
        tokio::pin!(call);
        let stopped = tokio::select! {
            stopped = &mut call => stopped,
            () = tokio::time::sleep(RUNS_ON) => {
                self.note(container, Some(Stop::after_a_moment(self.inner.pod.runs(container))));
                tokio::select! {
                    stopped = &mut call => stopped,
                    () = tokio::time::sleep(HOLD) => {
                        self.note(container, Some(Stop::RunsOn));
                        call.await
                    }
                }
            }
        };
        self.note(container, None);
        stopped
    }

    /// Stops a sandbox of the pod by `call` when its turn has come. Nothing of the pod runs any more, so that this waits as long as
    /// it takes; but not with the machine's network, because the slots may be held by plugins that wait for this pod's successor.
    pub async fn stop_sandbox<T>(&self, call: impl Future<Output = T>) -> T {
        let slot = self.state().slot.take();
        let slot = match slot {
            Some(slot) => slot,
            None if self.inner.pod.has_host_network() => return call.await,
            None => {
                let place = self.state().place;
                self.inner.slots.acquire(place).await
            }
        };
        hold(slot, call).await
    }

    /// Where a container is; none: its stop has come back. The slot goes when nothing needs it.
    fn note(&self, container: &ContainerId, stop: Option<Stop>) {
        let given_back = {
            let mut state = self.state();
            match stop {
                Some(stop) => drop(state.stops.insert(container.clone(), stop)),
                None => {
                    state.stops.remove(container);
                    state.left = state.left.saturating_sub(1);
                }
            }
            if needs_slot(state.left, state.stops.values().copied()) {
                let works = stop == Some(Stop::Ends) || state.left == 0;
                if works && state.working.is_none() {
                    state.working = Some(self.inner.pod.working());
                }
                None
            } else {
                Some((state.slot.take(), state.working.take()))
            }
        };
        drop(given_back);
    }

    /// Waits until the pod has a slot, or may be signalled without one. On behalf of all its containers one waits, and those behind
    /// it find what it got.
    async fn turn_to_signal(&self) {
        if self.inner.hurried {
            return;
        }
        let _held = self.inner.held.begin();
        let signal_by = *self.state().signal_by.get_or_insert_with(|| Instant::now() + HELD_MAX);
        let _gate = self.inner.gate.lock().await;
        if self.state().slot.is_some() {
            return;
        }
        let free = self.inner.slots.take();
        // One turn is enough for all of a pod's signals.
        if free.is_some() || self.state().is_overdue {
            self.state().slot = free;
            return;
        }
        self.inner.pod.held_back(true);
        let place = self.state().place;
        let taken = tokio::select! {
            biased;
            slot = self.inner.slots.acquire(place) => Some(slot),
            () = self.inner.slots.overdue(signal_by) => None,
        };
        self.inner.pod.held_back(false);
        if taken.is_none() {
            tracing::debug!(after_seconds = HELD_MAX.as_secs(), "a pod's end was held back for long enough");
        }
        let mut state = self.state();
        state.is_overdue = taken.is_none();
        state.slot = taken;
    }
}

#[cfg(test)]
mod tests;
