//! One round of garbage collection, and the removal of all unused images under disk pressure, against a store of images. One of them
//! at a time. What is decided is decided in the modules beside this one.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_daemon::state_file::{self, StateFile};
use bulkhead_daemon::{StateDir, StateError};
use bulkhead_ipc::syncd::{
    ImageCollectionFailureKind, ImageCollectionReason, RemoveImageOutcome, RemoveImageRequest,
    ReportImageCollectionRequest,
};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

use super::failures::Failures;
use super::ledger::{self, Ledger};
use super::passes::{self, ImageFs, Shortage, Unused};
use super::policy::Policy;
use super::schedule::{End, PERIOD_MS, next_round};
use super::store::ImageStore;

const LEDGER: StateFile = StateFile { name: "images.json", version: ledger::VERSION };
/// Under disk pressure nobody waits longer for images to go: whoever asks looks at the disk, and comes back.
const RECLAIM_MAX: Duration = Duration::from_secs(20);

/// Milliseconds since boot.
pub fn now_ms() -> i64 {
    i64::try_from(bulkhead_sys::clock::since_boot().as_millis()).unwrap_or(i64::MAX)
}

/// Why a round did not do what it should have.
#[derive(Debug, Clone, PartialEq)]
enum Failure {
    /// kubelet-syncd, the runtime or the file system did not answer.
    Away(String),
    NoCapacity,
    NotEnough {
        fs: ImageFs,
        shortage: Shortage,
        freed: i64,
    },
    SpaceErrors {
        wanted: i64,
        freed: i64,
    },
    AgeErrors,
}

/// What was removed, and what was not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    pub images: usize,
    /// Bytes, as the runtime counts its images.
    pub bytes: i64,
    /// Images that the runtime could not remove.
    pub errors: usize,
}

/// What came of asking for space under disk pressure.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reclaimed {
    pub removed: Removed,
    /// Its time was over before all unused images were.
    pub more: bool,
}

impl Reclaimed {
    /// It is worth to look at the disk and to go on.
    pub fn goes_on(&self) -> bool {
        self.more && self.removed.images > 0
    }
}

/// What the operator is shown of rounds.
#[derive(Debug, Clone, Default)]
pub struct Shown {
    pub ledger: Ledger,
    /// Since boot.
    pub last_round_ms: Option<i64>,
    pub next_round_ms: i64,
    pub last_outcome: String,
}

/// What one at a time works on.
#[derive(Debug)]
struct Work {
    ledger: Ledger,
    failures: Failures,
    /// The last round that was answered.
    answered_ms: i64,
}

/// See the module.
#[derive(Debug)]
pub struct Collector<S> {
    store: S,
    policy: Policy,
    /// When this process began to watch images.
    began_ms: i64,
    state: Option<Arc<StateDir>>,
    work: tokio::sync::Mutex<Work>,
    shown: Mutex<Shown>,
    /// Percent of the image file system that is used, as the eviction manager reads it.
    usage: watch::Sender<Option<i64>>,
}

impl<S: ImageStore> Collector<S> {
    /// # Errors
    /// What is kept of images cannot be read, or not be set aside.
    pub fn new(store: S, policy: Policy, boot_id: &str, state: Arc<StateDir>) -> Result<Self, StateError> {
        let ledger: Option<Ledger> = state.load(LEDGER, |bytes| serde_json::from_slice(bytes))?;
        Ok(Self::with_ledger(store, policy, ledger.unwrap_or_default().of_boot(boot_id, now_ms()), Some(state)))
    }

    fn with_ledger(store: S, policy: Policy, ledger: Ledger, state: Option<Arc<StateDir>>) -> Self {
        let now = now_ms();
        Collector {
            store,
            policy,
            began_ms: now,
            state,
            shown: Mutex::new(Shown { ledger: ledger.clone(), next_round_ms: now, ..Shown::default() }),
            work: tokio::sync::Mutex::new(Work { ledger, failures: Failures::default(), answered_ms: now }),
            usage: watch::Sender::new(None),
        }
    }

    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    pub fn store(&self) -> &S {
        &self.store
    }

    pub fn began_ms(&self) -> i64 {
        self.began_ms
    }

    pub fn shown(&self) -> Shown {
        self.shown.lock().clone()
    }

    /// The image file system was read.
    pub fn saw(&self, fs: ImageFs) {
        let used = fs.used_percent();
        self.usage.send_if_modified(|known| std::mem::replace(known, used) != used);
    }

    /// Percent of the image file system that is used.
    pub fn usage(&self) -> watch::Receiver<Option<i64>> {
        self.usage.subscribe()
    }

    /// A round; when the next one is due, since boot.
    pub async fn round(&self) -> i64 {
        let mut work = self.work.lock().await;
        let now = now_ms();
        let (outcome, left, waits, removed) = self.collect(&mut work.ledger, now).await;
        let ended = now_ms();
        let end = match (&outcome, waits) {
            (Err(Failure::Away(_)), _) => End::Away,
            (_, Some(until)) => End::Waits(until),
            _ => End::Whole,
        };
        let due = next_round(&self.policy, end, &left, ended, self.began_ms);
        let text = outcome_text(&outcome, removed, waits.map(|until| until.saturating_sub(ended)));
        match outcome {
            Ok(()) => {
                work.failures.succeeded();
                work.answered_ms = ended;
                if removed.images > 0 {
                    tracing::info!(
                        images = removed.images,
                        bytes = removed.bytes,
                        "Image garbage collection succeeded"
                    );
                }
            }
            // Each process starts and restarts now and then: that is no failure before upstream's next round would be one.
            Err(Failure::Away(why)) if ended.saturating_sub(work.answered_ms) < PERIOD_MS => {
                tracing::debug!(why, "image garbage collection is tried again soon");
            }
            Err(failure) => {
                if !matches!(failure, Failure::Away(_)) {
                    work.answered_ms = ended;
                }
                tracing::warn!("Image garbage collection failed: {text}");
                if let Some(told) = work.failures.failed(ended) {
                    let report = self.report(&failure, told.repeated);
                    if let Err(status) = self.store.report(report).await {
                        tracing::debug!(code = ?status.code(), "nobody heard of it: {}", status.message());
                    }
                }
            }
        }
        let mut shown = self.shown.lock();
        shown.last_round_ms = Some(ended);
        shown.next_round_ms = due;
        shown.last_outcome = text;
        due
    }

    /// Looks, and removes what is too old, then what is too much (upstream GarbageCollect). Answers what is left of those who may go,
    /// and until when waiting for the young is enough.
    async fn collect(&self, ledger: &mut Ledger, now: i64) -> (Result<(), Failure>, Vec<Unused>, Option<i64>, Removed) {
        let mut removed = Removed::default();
        let away = |status: Status| Failure::Away(status.message().to_owned());
        let mut order = match self.look(ledger, now).await {
            Ok(order) => order,
            Err(status) => return (Err(away(status)), Vec::new(), None, removed),
        };
        if self.policy.is_disabled() {
            return (Ok(()), order, None, removed);
        }
        let old: Vec<String> =
            passes::too_old(&order, &self.policy, now, self.began_ms).into_iter().map(|one| one.id.clone()).collect();
        let by_age = self.remove(&mut order, |one| old.contains(&one.id), ImageCollectionReason::Age, None, None);
        let by_age = by_age.await;
        removed = by_age.0;
        if let Err(status) = by_age.1 {
            return (Err(away(status)), order, None, removed);
        }
        if removed.errors > 0 {
            return (Err(Failure::AgeErrors), order, None, removed);
        }
        let Some(fs) = self.store.image_fs().await else {
            let why = "the image file system cannot be measured".to_owned();
            return (Err(Failure::Away(why)), order, None, removed);
        };
        if fs.capacity <= 0 {
            return (Err(Failure::NoCapacity), order, None, removed);
        }
        let Some(shortage) = fs.shortage(&self.policy) else { return (Ok(()), order, None, removed) };
        let Shortage { used_percent, wanted } = shortage;
        tracing::info!(
            usage = used_percent,
            high_threshold = self.policy.high_percent,
            amount_to_free = wanted,
            low_threshold = self.policy.low_percent,
            "Disk usage on image filesystem is over the high threshold, trying to free bytes down to the low threshold"
        );
        let of_age = |one: &Unused| one.is_of_age(&self.policy, now);
        let (for_space, ended) =
            self.remove(&mut order, of_age, ImageCollectionReason::Space, Some(wanted), None).await;
        let freed = for_space.bytes;
        removed.images += for_space.images;
        removed.bytes = removed.bytes.saturating_add(freed);
        let missing = wanted.saturating_sub(freed);
        let waits = (missing > 0).then(|| passes::worth_waiting(&order, &self.policy, now, missing)).flatten();
        let outcome = match ended {
            Err(status) => Err(away(status)),
            Ok(()) if for_space.errors > 0 => Err(Failure::SpaceErrors { wanted, freed }),
            Ok(()) if missing > 0 && waits.is_none() => Err(Failure::NotEnough { fs, shortage, freed }),
            Ok(()) => Ok(()),
        };
        (outcome, order, waits, removed)
    }

    /// What there is now, in the order in which it may go.
    async fn look(&self, ledger: &mut Ledger, now: i64) -> Result<Vec<Unused>, Status> {
        let images = self.store.list().await?;
        ledger.detect(&images, now);
        self.save(ledger, now);
        Ok(passes::order(&images, ledger, now))
    }

    /// Removes those that `goes` names, in order, until `wanted` bytes are free or the time is over. What went is taken out of `order`.
    async fn remove(
        &self,
        order: &mut Vec<Unused>,
        goes: impl Fn(&Unused) -> bool,
        reason: ImageCollectionReason,
        wanted: Option<i64>,
        until: Option<Instant>,
    ) -> (Removed, Result<(), Status>) {
        let mut removed = Removed::default();
        let mut left = Vec::with_capacity(order.len());
        let mut all = std::mem::take(order).into_iter();
        let mut ended = Ok(());
        for image in all.by_ref() {
            let is_enough = wanted.is_some_and(|wanted| removed.bytes >= wanted);
            let is_late = until.is_some_and(|until| Instant::now() >= until);
            if is_enough || is_late || !goes(&image) {
                left.push(image);
                if is_enough || is_late {
                    break;
                }
                continue;
            }
            let request =
                RemoveImageRequest { id: image.id.clone(), last_used_ms: image.seen_use_ms, reason: reason.into() };
            match self.store.remove(request).await {
                Ok(RemoveImageOutcome::Removed) => {
                    removed.images += 1;
                    removed.bytes = removed.bytes.saturating_add(image.size);
                }
                Ok(RemoveImageOutcome::Absent) => {}
                Ok(RemoveImageOutcome::Failed) => {
                    removed.errors += 1;
                    left.push(image);
                }
                Ok(refused) => {
                    tracing::debug!(image = image.id, ?refused, "the image stays");
                    left.push(image);
                }
                Err(status) => {
                    left.push(image);
                    ended = Err(status);
                    break;
                }
            }
        }
        left.extend(all);
        *order = left;
        (removed, ended)
    }

    /// Removes every image that nobody uses and that is of age, for as long as whoever asks may wait (upstream DeleteUnusedImages).
    ///
    /// # Errors
    /// kubelet-syncd or the runtime does not answer.
    pub async fn delete_unused(&self) -> Result<Reclaimed, Status> {
        let until = Instant::now() + RECLAIM_MAX;
        let Ok(mut work) = tokio::time::timeout_at(until, self.work.lock()).await else {
            return Ok(Reclaimed { removed: Removed::default(), more: true });
        };
        tracing::info!("Attempting to delete unused images");
        let now = now_ms();
        let mut order = self.look(&mut work.ledger, now).await?;
        let of_age = |one: &Unused| one.is_of_age(&self.policy, now);
        let (removed, ended) = self.remove(&mut order, of_age, ImageCollectionReason::Space, None, Some(until)).await;
        let more = Instant::now() >= until && order.iter().any(of_age);
        match ended {
            Err(status) if removed.images == 0 => Err(status),
            _ => Ok(Reclaimed { removed, more }),
        }
    }

    fn report(&self, failure: &Failure, repeated: bool) -> ReportImageCollectionRequest {
        use ImageCollectionFailureKind as Kind;
        let base = ReportImageCollectionRequest { repeated, ..ReportImageCollectionRequest::default() };
        match *failure {
            Failure::Away(_) => ReportImageCollectionRequest { kind: Kind::Unknown.into(), ..base },
            Failure::NoCapacity => ReportImageCollectionRequest { kind: Kind::NoCapacity.into(), ..base },
            Failure::NotEnough { fs, shortage, freed } => ReportImageCollectionRequest {
                kind: Kind::NotEnough.into(),
                capacity: fs.capacity,
                wanted: shortage.wanted,
                freed,
                used_percent: u32::try_from(shortage.used_percent).unwrap_or(100),
                ..base
            },
            Failure::SpaceErrors { wanted, freed } => {
                ReportImageCollectionRequest { kind: Kind::SpaceErrors.into(), wanted, freed, ..base }
            }
            #[allow(clippy::cast_precision_loss, reason = "an age is shown")]
            Failure::AgeErrors => ReportImageCollectionRequest {
                kind: Kind::AgeErrors.into(),
                maximum_age_seconds: self.policy.max_age_ms as f64 / 1000.0,
                ..base
            },
        }
    }

    /// Keeps what outlives this process. What cannot be written, on a full disk, is known all the same: only a restart would make
    /// images young.
    fn save(&self, ledger: &mut Ledger, now: i64) {
        ledger.saved_ms = now;
        self.shown.lock().ledger = ledger.clone();
        let Some(state) = &self.state else { return };
        let written = state_file::encode(LEDGER.version, ledger).map_err(|error| error.to_string());
        let written =
            written.and_then(|bytes| state.write(LEDGER.name, &bytes).map_err(|error| bulkhead_types::chain(&error)));
        if let Err(error) = written {
            tracing::warn!(error, "failed to save since when images are unused");
        }
    }
}

/// One sentence for the operator.
fn outcome_text(outcome: &Result<(), Failure>, removed: Removed, waits_ms: Option<i64>) -> String {
    let did = match removed.images {
        0 => "removed nothing".to_owned(),
        images => format!("removed {images} images, {} bytes", removed.bytes),
    };
    match outcome {
        Ok(()) => match waits_ms {
            None => did,
            Some(left) => {
                format!("{did}; images that are younger than imageMinimumGCAge go in {} s", left.max(0) / 1000)
            }
        },
        Err(Failure::Away(why)) => format!("{did}: {why}"),
        Err(Failure::NoCapacity) => format!("{did}: the image file system has no size"),
        Err(Failure::NotEnough { shortage, .. }) => {
            format!("{did}, which is not enough: {} bytes were wanted", shortage.wanted)
        }
        Err(Failure::SpaceErrors { .. } | Failure::AgeErrors) => format!("{did}: the runtime could not remove some"),
    }
}

#[cfg(test)]
#[path = "collector_tests.rs"]
mod tests;
