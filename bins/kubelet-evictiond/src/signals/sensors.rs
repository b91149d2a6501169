//! What wakes the eviction manager before its next reading is due: the kernel's word that memory has reached a threshold (cgroup v1's
//! events, upstream `pkg/kubelet/eviction/threshold_notifier_linux.go`), and that tasks wait for memory (PSI). A second pair of eyes:
//! without them readings come in time by [`super::cadence`] all the same, for every fall that was seen before.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::eviction::{Signal, Threshold};
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::{MemcgEvent, Psi, psi};
use bulkhead_types::BackOff;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tonic::Code;

use super::observation::Observations;
use super::reader::MemoryUsage;

/// An event that stands at another mark is made anew no sooner than this after it was made (upstream notifierRefreshInterval).
const REFRESH: Duration = Duration::from_secs(10);
/// Marks this much above the wanted one would wake too late; as far below, only more often than needed. Bytes.
const LATE: u64 = 16 << 20;
const EARLY: u64 = 256 << 20;
/// Pause after a refusal: kubelet-volnetd restarts, or the pods' cgroup is not there yet.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Whose memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    Machine,
    Pods,
}

impl Whose {
    pub const ALL: [Whose; 2] = [Whose::Machine, Whose::Pods];

    const fn signal(self) -> Signal {
        match self {
            Whose::Machine => Signal::MemoryAvailable,
            Whose::Pods => Signal::AllocatableMemoryAvailable,
        }
    }
}

/// Memory use, page cache included, at which the next threshold is met. `None`: there is none that is not met yet.
pub type Marks = [Option<u64>; 2];

/// Where the next threshold of each is: what is used now, and what is left until then. Pure.
pub fn marks(thresholds: &[Threshold], seen: &Observations, usage: &MemoryUsage) -> Marks {
    Whose::ALL.map(|whose| {
        let signal = whose.signal();
        let (reading, used) = (seen.get(&signal)?, usage.get(&signal)?);
        let of_signal = thresholds.iter().filter(|threshold| threshold.signal == signal);
        let left = of_signal.filter_map(|threshold| {
            let margin = reading.available.saturating_sub(threshold.limit.absolute(reading.capacity));
            u64::try_from(margin).ok()
        });
        left.min().map(|margin| used.saturating_add(margin))
    })
}

/// Whether an event that stands at `armed` is to be made anew for `wanted`. Pure.
fn is_off(armed: Option<u64>, wanted: Option<u64>) -> bool {
    match (armed, wanted) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(armed), Some(wanted)) => armed > wanted.saturating_add(LATE) || armed.saturating_add(EARLY) < wanted,
    }
}

/// The eviction manager's end.
#[derive(Debug)]
pub struct Sensors {
    marks: watch::Sender<Marks>,
    woken: Arc<Notify>,
}

impl Sensors {
    /// Its tasks live for as long as the process. `is_v2`: the machine has cgroup v2, which has no events of memory, but PSI of the
    /// pods' cgroup.
    pub fn start(broker: BrokerClient, is_v2: bool) -> Self {
        let (marks, _) = watch::channel(Marks::default());
        let woken = Arc::new(Notify::new());
        for whose in Whose::ALL {
            if !is_v2 {
                tokio::spawn(events(broker.clone(), whose, marks.subscribe(), woken.clone()));
            }
            // Of the pods with v2 alone; with v1 the machine's wakes for them, too.
            if is_v2 || whose == Whose::Machine {
                tokio::spawn(stalls(broker.clone(), whose, woken.clone()));
            }
        }
        Sensors { marks, woken }
    }

    /// Where events are to stand from now on.
    pub fn set(&self, marks: Marks) {
        self.marks.send_if_modified(|known| std::mem::replace(known, marks) != marks);
    }

    /// Until the kernel has said something.
    pub async fn woken(&self) {
        self.woken.notified().await;
    }
}

/// Has the descriptor opened, also where the kubelet-volnetd that knows how comes later. `None`: this kernel has nothing of the kind.
async fn open(broker: &BrokerClient, kind: &Kind) -> Option<OwnedFd> {
    let mut retry = BackOff::new(RETRY.0, RETRY.1);
    loop {
        match broker.open(kind.clone()).await {
            Ok(fd) => return Some(fd),
            Err(error) if is_final(error.code()) => {
                tracing::info!(%error, "failed to watch cgroup memory: readings are periodic alone");
                return None;
            }
            Err(error) => tracing::debug!(%error, "no event of the kernel's for memory yet"),
        }
        tokio::time::sleep(retry.pause()).await;
    }
}

/// Whether asking again would help nothing: this kernel has it not, or kubelet-volnetd may not (before Linux 6.5 triggers take a
/// capability). An older kubelet-volnetd, which does not know what it is asked for, is replaced some day.
fn is_final(code: Code) -> bool {
    matches!(code, Code::FailedPrecondition | Code::PermissionDenied)
}

/// cgroup v1: an event at the mark, made anew as the mark moves.
async fn events(broker: BrokerClient, whose: Whose, mut marks: watch::Receiver<Marks>, woken: Arc<Notify>) {
    let pods = whose == Whose::Pods;
    loop {
        let Ok(marked) =
            marks.wait_for(|marks| marks[whose as usize].is_some()).await.map(|marks| marks[whose as usize])
        else {
            return;
        };
        let Some(threshold_bytes) = marked else { continue };
        let Some(fd) = open(&broker, &Kind::MemcgEvent(MemcgEvent { threshold_bytes, pods })).await else { return };
        let Ok(event) = bulkhead_sys::async_fd::register(fd) else { return };
        let made = Instant::now();
        tokio::select! {
            () = signalled(&event, &woken) => return,
            () = moved(&mut marks, whose, threshold_bytes, made) => {}
        }
    }
}

/// Until the mark is elsewhere, and the event old enough.
async fn moved(marks: &mut watch::Receiver<Marks>, whose: Whose, armed: u64, made: Instant) {
    let off = marks.wait_for(|marks| is_off(Some(armed), marks[whose as usize])).await.is_ok();
    if !off {
        // The manager is gone, and with it the process.
        std::future::pending::<()>().await;
    }
    tokio::time::sleep_until(made + REFRESH).await;
}

/// Wakes at each crossing, in either direction. Ends only if the descriptor cannot be read.
async fn signalled(event: &AsyncFd<OwnedFd>, woken: &Notify) {
    loop {
        match bulkhead_sys::async_fd::take_event(event).await {
            Ok(()) => woken.notify_one(),
            Err(error) => return tracing::warn!(%error, "failed to read an event of cgroup memory"),
        }
    }
}

/// PSI: wakes while tasks wait for memory, at most once in two seconds.
async fn stalls(broker: BrokerClient, whose: Whose, woken: Arc<Notify>) {
    let resource = psi::Resource::Memory.into();
    let Some(fd) = open(&broker, &Kind::Psi(Psi { resource, pods: whose == Whose::Pods })).await else { return };
    let Ok(trigger) = bulkhead_sys::async_fd::register_priority(fd) else { return };
    loop {
        let Ok(mut ready) = trigger.ready(tokio::io::Interest::PRIORITY).await else { return };
        if ready.ready().is_error() {
            // The cgroup is gone.
            return;
        }
        ready.clear_ready();
        woken.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_config::eviction::Limit;
    use bulkhead_types::Quantity;

    use super::*;
    use crate::signals::observation::Observation;

    #[test]
    fn a_mark_is_where_the_next_threshold_is_met() {
        let threshold = |signal, amount: i64| Threshold {
            signal,
            limit: Limit::Quantity(Quantity::from_i64(amount)),
            grace_period: Duration::ZERO,
            min_reclaim: None,
        };
        let at = Duration::from_secs(1);
        let (machine, pods) = (Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable);
        let thresholds = [threshold(machine, 100), threshold(machine, 300), threshold(pods, 50)];
        let mut seen = Observations::from([(machine, Observation { available: 400, capacity: 1000, at })]);
        // 600 are the working set; 250 more are inactive page cache.
        let usage = MemoryUsage::from([(machine, 850), (pods, 10)]);
        assert_eq!(marks(&thresholds, &seen, &usage), [Some(950), None], "of the pods nothing is known");
        seen.insert(pods, Observation { available: 50, capacity: 60, at });
        seen.insert(machine, Observation { available: 200, capacity: 1000, at });
        assert_eq!(marks(&thresholds, &seen, &usage), [Some(950), Some(10)], "the soft one is met already");
        seen.insert(machine, Observation { available: 99, capacity: 1000, at });
        assert_eq!(marks(&thresholds, &seen, &usage)[0], None, "both are");
    }

    #[test]
    fn an_event_follows_its_mark_where_it_would_come_late() {
        let gib = 1_u64 << 30;
        assert!(is_off(None, Some(gib)) && !is_off(Some(gib), None) && !is_off(Some(gib), Some(gib)));
        assert!(is_off(Some(gib), Some(gib - LATE - 1)) && !is_off(Some(gib), Some(gib - LATE)));
        assert!(is_off(Some(gib), Some(gib + EARLY + 1)) && !is_off(Some(gib), Some(gib + EARLY)));
    }
}
