//! Who may make a probe now: a bounded number at a time, shared fairly between the pods that want to.
//!
//! A pod may take another slot as long as it holds fewer than are free. So one pod alone gets half of them, two a third each,
//! and however many probes a pod has that hang, there is a slot for one that holds none. Who waits is served by how few his
//! pod holds, then in the order of coming.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bulkhead_types::PodUid;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

/// The slots, and who waits for one. Clones share them.
#[derive(Debug, Clone)]
pub struct Slots(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    free: usize,
    held: HashMap<PodUid, usize>,
    /// By the order of coming. At most one for each probe: a probe that waits is not due again.
    waiting: BTreeMap<u64, (PodUid, oneshot::Sender<Slot>)>,
    next: u64,
}

/// One slot; free again when it is dropped.
#[derive(Debug)]
pub struct Slot {
    of: Slots,
    pod: PodUid,
}

impl Slots {
    pub fn new(number: usize) -> Self {
        Slots(Arc::new(Mutex::new(Inner { free: number, held: HashMap::new(), waiting: BTreeMap::new(), next: 0 })))
    }

    /// Waits for a slot.
    pub async fn take(&self, pod: &PodUid) -> Option<Slot> {
        let (grant, granted) = oneshot::channel();
        {
            let mut inner = self.lock();
            let place = inner.next;
            inner.next += 1;
            inner.waiting.insert(place, (pod.clone(), grant));
        }
        self.grant();
        // The other end is kept until it is used, or until the process ends.
        granted.await.ok()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No method panics between two writes.
        self.0.lock()
    }

    /// Gives out what there is for those who may have it.
    fn grant(&self) {
        loop {
            let Some((pod, grant)) = self.lock().next() else { return };
            // Who does not wait any more drops its slot here, and so frees it: not under the lock.
            drop(grant.send(Slot { of: self.clone(), pod }));
        }
    }
}

impl Inner {
    /// Whose turn it is, counted as a holder already.
    fn next(&mut self) -> Option<(PodUid, oneshot::Sender<Slot>)> {
        // Who has stopped waiting is in nobody's way.
        self.waiting.retain(|_, (_, grant)| !grant.is_closed());
        let held = |pod: &PodUid| self.held.get(pod).copied().unwrap_or(0);
        let may = |(place, (pod, _)): (&u64, &(PodUid, _))| (held(pod) < self.free).then(|| (held(pod), *place));
        let (_, place) = self.waiting.iter().filter_map(may).min()?;
        let (pod, grant) = self.waiting.remove(&place)?;
        self.free -= 1;
        *self.held.entry(pod.clone()).or_default() += 1;
        Some((pod, grant))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        {
            let mut inner = self.of.lock();
            inner.free += 1;
            if let Some(held) = inner.held.get_mut(&self.pod) {
                *held -= 1;
                if *held == 0 {
                    inner.held.remove(&self.pod);
                }
            }
        }
        self.of.grant();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use futures_util::stream::{FuturesUnordered, StreamExt as _};

    fn pod(name: &str) -> PodUid {
        PodUid::parse(name).unwrap()
    }

    /// All that are granted without waiting.
    fn granted<F: Future<Output = Option<Slot>>>(asked: &mut FuturesUnordered<F>) -> Vec<Slot> {
        std::iter::from_fn(|| asked.next().now_or_never().flatten().flatten()).collect()
    }

    #[test]
    fn a_pod_whose_probes_hang_leaves_slots_for_others() {
        let slots = Slots::new(12);
        let [greedy, second, quiet] = ["greedy", "second", "quiet"].map(pod);
        let mut all: FuturesUnordered<_> = (0..1000).map(|_| slots.take(&greedy)).collect();
        let mut hang = granted(&mut all);
        assert_eq!(hang.len(), 6, "half of them");
        let mut more: FuturesUnordered<_> = (0..1000).map(|_| slots.take(&second)).collect();
        let seconds = granted(&mut more);
        assert_eq!(seconds.len(), 3, "as many as are left then");
        let one = slots.take(&quiet).now_or_never().flatten();
        assert!(one.is_some(), "a thousand wait before it, and it has its turn at once");
        drop(one);

        // What one gives back goes to who holds fewer, until they are even: four each, and four are free.
        hang.truncate(2);
        hang.extend(granted(&mut all));
        let mut seconds = seconds;
        seconds.extend(granted(&mut more));
        assert_eq!((hang.len(), seconds.len()), (4, 4));
        drop((hang, seconds, all, more));
        let rest: Vec<_> = (0..6).filter_map(|_| slots.take(&quiet).now_or_never().flatten()).collect();
        assert_eq!(rest.len(), 6, "nothing is lost by those that stopped waiting");
    }

    #[test]
    fn one_after_another_when_there_is_one() {
        let slots = Slots::new(1);
        let (a, b) = (pod("a"), pod("b"));
        let first = slots.take(&a).now_or_never().flatten().unwrap();
        let mut second = Box::pin(slots.take(&a));
        let mut third = Box::pin(slots.take(&b));
        assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
        drop(first);
        let second = (&mut second).now_or_never().flatten();
        assert!(second.is_some() && (&mut third).now_or_never().is_none(), "in the order of coming");
        drop(second);
        assert!((&mut third).now_or_never().flatten().is_some());
    }
}
