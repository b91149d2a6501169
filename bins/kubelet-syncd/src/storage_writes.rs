//! What is to be written on the API server about storage, and whether it is: `docs/decisions/0065-plugins.md`.
//!
//! State, no queue: of each object the newest wish is kept under a number that rises. kubelet-statusd reads wishes with higher
//! numbers than it has, writes, and acknowledges by number; who made a wish waits for that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bulkhead_ipc::syncd::storage_write::Write;
use bulkhead_ipc::syncd::{
    AcknowledgeRequest, ClaimStatus, CsiDriverEntry, CsiDrivers, PodCertificateAsk, ResourceSliceWipe, StorageWrite,
};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Why a wish is not fulfilled, in the writer's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct WriteRefused(pub String);

/// So many names of drivers that have gone are remembered until the list is complete.
const MAX_GONE: usize = 256;

/// Clones are the same.
#[derive(Debug, Clone)]
pub struct StorageWrites {
    state: Arc<Mutex<State>>,
    /// Changes with every wish and every answer.
    changed: Arc<watch::Sender<u64>>,
}

#[derive(Debug, Default)]
struct State {
    sequence: u64,
    drivers: BTreeMap<String, CsiDriverEntry>,
    gone: BTreeSet<String>,
    complete: bool,
    /// Number of the newest list of drivers; 0: none has been wished for.
    drivers_wish: u64,
    /// What came of the lists of drivers up to this one.
    drivers_answer: Answer,
    /// Statuses of claims by uid, requests for certificates by namespace and name, wipes by driver. What is written is
    /// forgotten: nobody is to write it again over what came later.
    singles: BTreeMap<String, SingleWish>,
}

#[derive(Debug, Clone, Default)]
struct Answer {
    sequence: u64,
    refused: BTreeMap<String, String>,
    /// Why it takes so long.
    trouble: String,
}

#[derive(Debug)]
struct SingleWish {
    sequence: u64,
    write: Write,
    answer: Option<Result<(), WriteRefused>>,
    /// Somebody waits: it goes with the answer that is taken.
    waiting: usize,
}

impl Default for StorageWrites {
    fn default() -> Self {
        StorageWrites { state: Arc::default(), changed: Arc::new(watch::channel(0).0) }
    }
}

impl StorageWrites {
    fn change<T>(&self, how: impl FnOnce(&mut State) -> T) -> T {
        let result = how(&mut self.state.lock());
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
        result
    }

    /// The node has this driver; `Ok` once the API server has it. Dropped, the wish stays.
    ///
    /// # Errors
    /// The writer refuses it.
    pub async fn add_driver(&self, entry: CsiDriverEntry) -> Result<(), WriteRefused> {
        let name = entry.name.clone();
        let wish = self.change(|state| {
            state.gone.remove(&name);
            if state.drivers.get(&name) != Some(&entry) || state.drivers_answer.refused.contains_key(&name) {
                state.drivers.insert(name.clone(), entry);
                state.wish_drivers();
            }
            state.drivers_wish
        });
        self.driver_answered(&name, wish).await
    }

    async fn driver_answered(&self, name: &str, wish: u64) -> Result<(), WriteRefused> {
        self.answered(|state| {
            let answer = &state.drivers_answer;
            (answer.sequence >= wish).then(|| match answer.refused.get(name) {
                Some(why) => Err(WriteRefused(why.clone())),
                None => Ok(()),
            })
        })
        .await
    }

    /// What a driver that the node has says of it by now; `Ok` once the API server has it.
    ///
    /// # Errors
    /// The node has it no more, or the writer refuses it.
    pub async fn update_driver(&self, entry: CsiDriverEntry) -> Result<(), WriteRefused> {
        let name = entry.name.clone();
        let wish = self.change(|state| {
            let known = state.drivers.get_mut(&name)?;
            if *known != entry {
                *known = entry;
                state.wish_drivers();
            }
            Some(state.drivers_wish)
        });
        let Some(wish) = wish else {
            return Err(WriteRefused(format!("driver {name} is not registered any more")));
        };
        self.driver_answered(&name, wish).await
    }

    /// The node has this driver no more. Nobody waits for that.
    pub fn remove_driver(&self, name: &str) {
        self.change(|state| {
            state.drivers.remove(name);
            if state.complete || state.gone.len() < MAX_GONE {
                state.gone.insert(name.to_owned());
            }
            state.wish_drivers();
        });
    }

    /// Every plugin that was there when this process began has been asked: what is not named is not there.
    pub fn drivers_complete(&self) {
        self.change(|state| {
            if !state.complete {
                state.complete = true;
                state.wish_drivers();
            }
        });
    }

    /// Why drivers wait to be written; empty when nothing is known.
    pub fn drivers_trouble(&self) -> String {
        self.state.lock().drivers_answer.trouble.clone()
    }

    /// A claim's status is to be this; `Ok` once the API server has it. A newer wish for the same claim replaces it, and is
    /// what is waited for.
    ///
    /// # Errors
    /// The writer refuses it: the claim is gone, or is another one by now.
    pub async fn claim_status(&self, status: ClaimStatus) -> Result<(), WriteRefused> {
        self.single(status.uid.clone(), Write::ClaimStatus(status)).await
    }

    /// A pod is to get a certificate; `Ok` once the API server has the request. Dropped, the wish stays.
    ///
    /// # Errors
    /// The writer refuses it.
    pub async fn pod_certificate(&self, ask: PodCertificateAsk) -> Result<(), WriteRefused> {
        self.single(format!("{}/{}", ask.namespace, ask.name), Write::PodCertificate(ask)).await
    }

    /// The ResourceSlices of a driver on this node, or of all drivers where its name is empty, are to be deleted; `Ok` once they are, or
    /// once that was called off. Dropped, the wish stays.
    ///
    /// # Errors
    /// The writer refuses it.
    pub async fn wipe_resource_slices(&self, driver: &str) -> Result<(), WriteRefused> {
        let wipe = ResourceSliceWipe { driver: driver.to_owned(), called_off: false };
        self.single(wipe_key(driver), Write::ResourceSliceWipe(wipe)).await
    }

    /// The driver is back: if its ResourceSlices have not been deleted yet, they stay.
    pub fn keep_resource_slices(&self, driver: &str) {
        self.change(|state| {
            let key = wipe_key(driver);
            let open = state.singles.get(&key).filter(|wish| wish.answer.is_none());
            let Some(waiting) = open.map(|wish| wish.waiting) else { return };
            state.sequence += 1;
            let write = Write::ResourceSliceWipe(ResourceSliceWipe { driver: driver.to_owned(), called_off: true });
            let wish = SingleWish { sequence: state.sequence, write, answer: None, waiting };
            state.singles.insert(key, wish);
        });
    }

    async fn single(&self, key: String, write: Write) -> Result<(), WriteRefused> {
        self.change(|state| {
            state.sequence += 1;
            let sequence = state.sequence;
            let waiting = state.singles.get(&key).map_or(0, |wish| wish.waiting) + 1;
            state.singles.insert(key.clone(), SingleWish { sequence, write, answer: None, waiting });
        });
        let _waits = Waits { writes: self, key: &key };
        self.answered(|state| state.singles.get(&key).map_or(Some(Ok(())), |wish| wish.answer.clone())).await
    }

    async fn answered<T>(&self, mut look: impl FnMut(&State) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            if let Some(found) = look(&self.state.lock()) {
                return found;
            }
            // The sender lives as long as this does.
            let _ = changed.changed().await;
        }
    }

    /// The oldest wish after this number that is not fulfilled, or, of the drivers, the list as it is.
    pub fn after(&self, position: u64) -> Option<StorageWrite> {
        let state = self.state.lock();
        let drivers = (state.drivers_wish > position).then(|| (state.drivers_wish, state.drivers_write()));
        let open = state.singles.values().filter(|wish| wish.sequence > position && wish.answer.is_none());
        let single = open.min_by_key(|wish| wish.sequence).map(|wish| (wish.sequence, wish.write.clone()));
        let (sequence, write) = [drivers, single].into_iter().flatten().min_by_key(|(sequence, _)| *sequence)?;
        Some(StorageWrite { sequence, write: Some(write), ..Default::default() })
    }

    /// Word of every change.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// What came of a wish. One of a number that nobody has wished for is ignored.
    pub fn acknowledge(&self, answer: &AcknowledgeRequest) {
        self.change(|state| state.take(answer));
    }
}

/// No uid of a claim and no namespace has a space.
fn wipe_key(driver: &str) -> String {
    format!("resource slices of {driver}")
}

/// Forgets a wish with the last who waited for its answer.
struct Waits<'a> {
    writes: &'a StorageWrites,
    key: &'a str,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut state = self.writes.state.lock();
        if let Some(wish) = state.singles.get_mut(self.key) {
            wish.waiting -= 1;
            if wish.waiting == 0 && wish.answer.is_some() {
                state.singles.remove(self.key);
            }
        }
    }
}

impl State {
    fn wish_drivers(&mut self) {
        self.sequence += 1;
        self.drivers_wish = self.sequence;
    }

    fn drivers_write(&self) -> Write {
        Write::CsiDrivers(CsiDrivers {
            drivers: self.drivers.values().cloned().collect(),
            complete: self.complete,
            gone: self.gone.iter().cloned().collect(),
        })
    }

    fn take(&mut self, answer: &AcknowledgeRequest) {
        let number = answer.sequence;
        if let Some((key, wish)) = self.singles.iter_mut().find(|(_, wish)| wish.sequence == number) {
            let outcome = if answer.error.is_empty() { Ok(()) } else { Err(WriteRefused(answer.error.clone())) };
            if outcome.is_ok() || answer.r#final {
                wish.answer = Some(outcome);
                if wish.waiting == 0 {
                    let key = key.clone();
                    self.singles.remove(&key);
                }
            }
            return;
        }
        if number < self.drivers_answer.sequence || number > self.drivers_wish {
            return;
        }
        if !answer.error.is_empty() && !answer.r#final {
            self.drivers_answer.trouble.clone_from(&answer.error);
            return;
        }
        let mut refused: BTreeMap<String, String> =
            answer.refused_drivers.iter().map(|(name, why)| (name.clone(), why.clone())).collect();
        if !answer.error.is_empty() {
            refused.extend(self.drivers.keys().map(|name| (name.clone(), answer.error.clone())));
        }
        self.drivers_answer = Answer { sequence: number, refused, trouble: String::new() };
        if self.complete && number == self.drivers_wish {
            self.gone.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn entry(name: &str, node_id: &str) -> CsiDriverEntry {
        CsiDriverEntry { name: name.into(), node_id: node_id.into(), ..Default::default() }
    }

    fn drivers(writes: &StorageWrites, position: u64) -> Option<(u64, Vec<String>, CsiDrivers)> {
        let write = writes.after(position)?;
        let Some(Write::CsiDrivers(all)) = write.write else { panic!("drivers come first") };
        Some((write.sequence, all.drivers.iter().map(|driver| driver.name.clone()).collect(), all))
    }

    fn acknowledge(writes: &StorageWrites, sequence: u64, refused: &[&str]) {
        let refused_drivers = refused.iter().map(|name| ((*name).to_owned(), "no".to_owned())).collect();
        writes.acknowledge(&AcknowledgeRequest { sequence, refused_drivers, ..Default::default() });
    }

    #[tokio::test]
    async fn one_that_is_refused_holds_back_nobody() {
        let writes = StorageWrites::default();
        assert!(writes.after(0).is_none(), "nothing is wished for");
        let mut good = Box::pin(writes.add_driver(entry("good", "n")));
        let mut bad = Box::pin(writes.add_driver(entry("bad", "n")));
        assert!(good.as_mut().now_or_never().is_none());
        assert!(bad.as_mut().now_or_never().is_none());
        let (sequence, names, all) = drivers(&writes, 0).unwrap();
        assert_eq!((names, all.complete), (vec!["bad".to_owned(), "good".to_owned()], false));
        // An answer to the first list says nothing of the second wish.
        acknowledge(&writes, sequence - 1, &[]);
        assert_eq!(good.as_mut().now_or_never(), Some(Ok(())));
        assert!(bad.as_mut().now_or_never().is_none());
        acknowledge(&writes, sequence, &["bad"]);
        assert_eq!(bad.await, Err(WriteRefused("no".into())));
        writes.remove_driver("bad");
        let (_, names, all) = drivers(&writes, sequence).unwrap();
        assert_eq!((names, all.gone), (vec!["good".to_owned()], vec!["bad".to_owned()]));
        // Tried again it is asked again.
        let again = writes.add_driver(entry("bad", "n"));
        assert!(again.now_or_never().is_none());
    }

    #[tokio::test]
    async fn what_is_written_is_not_wished_for_again() {
        let writes = StorageWrites::default();
        let waiting = writes.clone();
        let first = tokio::spawn(async move { waiting.add_driver(entry("d", "n")).await });
        writes.watch().wait_for(|count| *count > 0).await.unwrap();
        let (sequence, ..) = drivers(&writes, 0).unwrap();
        writes.acknowledge(&AcknowledgeRequest { sequence, error: "away".into(), ..Default::default() });
        assert_eq!(writes.drivers_trouble(), "away");
        assert!(!first.is_finished());
        acknowledge(&writes, sequence, &[]);
        assert_eq!(first.await.unwrap(), Ok(()));
        assert_eq!(writes.add_driver(entry("d", "n")).now_or_never(), Some(Ok(())));
        assert!(drivers(&writes, sequence).is_none());
        assert!(drivers(&writes, 0).is_some(), "a new writer is told all");
        writes.drivers_complete();
        writes.drivers_complete();
        let (next, _, all) = drivers(&writes, sequence).unwrap();
        assert_eq!((next, all.complete), (sequence + 1, true));
    }

    #[tokio::test]
    async fn claims_are_forgotten_when_they_are_written() {
        let writes = StorageWrites::default();
        let status = |capacity: &str| ClaimStatus { uid: "u".into(), capacity: capacity.into(), ..Default::default() };
        let mut first = Box::pin(writes.claim_status(status("1Gi")));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = Box::pin(writes.claim_status(status("2Gi")));
        assert!(second.as_mut().now_or_never().is_none());
        let write = writes.after(0).unwrap();
        assert_eq!(write.write, Some(Write::ClaimStatus(status("2Gi"))));
        acknowledge(&writes, write.sequence - 1, &[]);
        assert!(first.as_mut().now_or_never().is_none(), "the newer one is what counts");
        acknowledge(&writes, write.sequence, &[]);
        assert!(writes.after(0).is_none());
        assert_eq!((first.await, second.await), (Ok(()), Ok(())));
        assert!(writes.state.lock().singles.is_empty());
        let mut gone = Box::pin(writes.claim_status(status("3Gi")));
        assert!(gone.as_mut().now_or_never().is_none());
        let sequence = writes.after(0).unwrap().sequence;
        let error = "claim is gone".to_owned();
        writes.acknowledge(&AcknowledgeRequest { sequence, error, r#final: true, ..Default::default() });
        assert_eq!(gone.await, Err(WriteRefused("claim is gone".into())));
    }

    #[tokio::test]
    async fn a_wipe_is_called_off_as_long_as_it_is_not_done() {
        let writes = StorageWrites::default();
        writes.keep_resource_slices("d");
        assert!(writes.after(0).is_none(), "there is nothing to call off");
        let mut wiped = Box::pin(writes.wipe_resource_slices("d"));
        assert!(wiped.as_mut().now_or_never().is_none());
        let wipe = |called_off| Write::ResourceSliceWipe(ResourceSliceWipe { driver: "d".into(), called_off });
        let first = writes.after(0).unwrap();
        assert_eq!(first.write, Some(wipe(false)));
        writes.keep_resource_slices("d");
        let second = writes.after(first.sequence).unwrap();
        assert_eq!(second.write, Some(wipe(true)));
        acknowledge(&writes, first.sequence, &[]);
        assert!(wiped.as_mut().now_or_never().is_none());
        acknowledge(&writes, second.sequence, &[]);
        assert_eq!(wiped.await, Ok(()));
        writes.keep_resource_slices("d");
        assert!(writes.after(0).is_none() && writes.state.lock().singles.is_empty());
    }

    #[tokio::test]
    async fn a_driver_that_has_gone_does_not_come_back_by_what_it_said_late() {
        let writes = StorageWrites::default();
        let more = |count| CsiDriverEntry { allocatable_count: count, ..entry("d", "n") };
        let late = writes.update_driver(more(7)).await;
        assert_eq!(late, Err(WriteRefused("driver d is not registered any more".into())));
        assert!(writes.after(0).is_none());
        assert!(writes.add_driver(more(5)).now_or_never().is_none());
        let mut update = Box::pin(writes.update_driver(more(7)));
        assert!(update.as_mut().now_or_never().is_none());
        let (sequence, _, all) = drivers(&writes, 0).unwrap();
        assert_eq!(all.drivers, [more(7)]);
        acknowledge(&writes, sequence, &[]);
        assert_eq!(update.await, Ok(()));
        assert_eq!(writes.update_driver(more(7)).now_or_never(), Some(Ok(())), "it is written already");
        writes.remove_driver("d");
        assert!(writes.update_driver(more(8)).await.is_err());
    }
}
