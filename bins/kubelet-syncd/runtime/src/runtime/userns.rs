//! Which of the machine's users and groups a pod with a user namespace of its own gets: a block of ids that no other pod
//! has, kept over restarts (upstream `pkg/kubelet/userns/userns_manager.go`, `kubelet_pods.go` getKubeletMappings).
//!
//! A block is written down before anybody uses it. Upstream writes it into the pod's folder; here it is private state of
//! this process, which may not enter that folder.

use std::collections::BTreeMap;

use bulkhead_cri::v1;
use bulkhead_daemon::state_file;
use bulkhead_types::PodUid;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

/// Blocks are multiples of this, and of this size by default.
pub const UNIT: i64 = 65_536;
const IDS: u64 = 1 << 32;

/// A pod's users and groups: its ids from 0 on are the machine's from `first` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdBlock {
    /// Never 0: the pod's root must not be the machine's.
    pub first: u32,
    pub length: u32,
}

impl IdBlock {
    /// As the CRI takes it, for users and groups alike.
    pub fn mapping(self) -> Vec<v1::IdMapping> {
        vec![v1::IdMapping { host_id: self.first, container_id: 0, length: self.length }]
    }

    fn overlaps(self, other: IdBlock) -> bool {
        let end = |block: IdBlock| u64::from(block.first) + u64::from(block.length);
        u64::from(self.first) < end(other) && u64::from(other.first) < end(self)
    }
}

/// Of the record's form.
pub const VERSION: u64 = 1;

/// Why there is no block for a pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UsernsError {
    #[error("could not find an empty slot to allocate a user namespace")]
    NoneLeft,
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error("the pods' users could not be written down: {0}")]
    NotSaved(String),
    /// Giving out users that a running pod has would let one into the other.
    #[error("it is not known which users other pods have: {0}")]
    Unknown(String),
}

/// Why the node has no users for pods. The texts are upstream's, where it ends the start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    #[error("kubelet user namespace length {0} is not a multiple of 65536")]
    Length(i64),
    #[error("kubelet user assigned ID {0} is not a multiple of {1}")]
    Start(u32, u64),
    #[error("kubelet user assigned ID {0} must be greater or equal to {1}")]
    TooLow(u32, u64),
    #[error("kubelet user assigned IDs length {0} is not a multiple of {1}")]
    Rest(u64, u64),
    #[error("kubelet user assigned IDs are not enough to support {0} pods")]
    TooFew(u32),
    #[error("subordinate ids of user kubelet: {0}")]
    Subordinate(String),
}

/// The ids that blocks are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    first: u64,
    blocks: u64,
    /// Ids in a block.
    length: u64,
}

impl Pool {
    /// `ids_per_pod`: `userNamespaces.idsPerPod`. `subordinate`: first id and number of those that the machine has set
    /// aside; None: all from `ids_per_pod` on. `max_pods`: how many pods must find a block.
    ///
    /// # Errors
    /// The numbers do not fit together.
    pub fn of(ids_per_pod: i64, subordinate: Option<(u32, u32)>, max_pods: u32) -> Result<Self, PoolError> {
        let fits = ids_per_pod > 0 && ids_per_pod % UNIT == 0;
        let length = u64::try_from(ids_per_pod).ok().filter(|length| fits && *length <= IDS);
        let length = length.ok_or(PoolError::Length(ids_per_pod))?;
        let (first, count) = match subordinate {
            None => (length, IDS - length),
            Some((first, _)) if u64::from(first) % length != 0 => return Err(PoolError::Start(first, length)),
            Some((first, _)) if u64::from(first) < length => return Err(PoolError::TooLow(first, length)),
            Some((first, count)) => (u64::from(first), u64::from(count).min(IDS - u64::from(first))),
        };
        if count % length != 0 {
            return Err(PoolError::Rest(count, length));
        }
        if count / length < u64::from(max_pods) {
            return Err(PoolError::TooFew(max_pods));
        }
        // What ends with the last id of all wraps around, and is mapped by no kernel (`map_write`: EINVAL).
        let usable = count.min((IDS - 1).saturating_sub(first));
        Ok(Pool { first, blocks: usable / length, length })
    }

    fn block(self, index: u64) -> Option<IdBlock> {
        let first = self.first + index * self.length;
        Some(IdBlock { first: u32::try_from(first).ok()?, length: u32::try_from(self.length).ok()? })
    }
}

/// What the machine has set aside for user `kubelet`, from the contents of /etc/subuid and /etc/subgid.
///
/// # Errors
/// There is more than one range, or they differ.
pub fn subordinate_ids(subuid: &str, subgid: &str) -> Result<Option<(u32, u32)>, PoolError> {
    let (uids, gids) = (range_of_kubelet(subuid)?, range_of_kubelet(subgid)?);
    if uids == gids { Ok(uids) } else { Err(PoolError::Subordinate("mismatched subuids and subgids".to_owned())) }
}

fn range_of_kubelet(file: &str) -> Result<Option<(u32, u32)>, PoolError> {
    let mut lines = file.lines().filter_map(|line| line.trim().strip_prefix("kubelet:"));
    let Some(line) = lines.next() else { return Ok(None) };
    if lines.next().is_some() {
        return Err(PoolError::Subordinate("there must be only one range".to_owned()));
    }
    let numbers = line.split_once(':').and_then(|(first, count)| Some((first.parse().ok()?, count.parse().ok()?)));
    numbers.map(Some).ok_or_else(|| PoolError::Subordinate(format!("invalid line \"kubelet:{line}\"")))
}

/// Keeps what is given out, over restarts.
pub trait BlockStore: Send + Sync {
    /// What was saved last; None when nothing was.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn load(&self) -> Result<Option<Vec<u8>>, String>;
    /// # Errors
    /// Why it cannot be written; then nothing has changed.
    fn save(&self, json: &[u8]) -> Result<(), String>;
}

/// Keeps nothing.
#[derive(Debug, Clone, Copy)]
pub struct NoBlockStore;

impl BlockStore for NoBlockStore {
    fn load(&self) -> Result<Option<Vec<u8>>, String> {
        Ok(None)
    }

    fn save(&self, _: &[u8]) -> Result<(), String> {
        Ok(())
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Allocated {
    // No version is written while it is 1: the first release takes no field that it does not know.
    /// Index of the block that was given last: one that was given back rests as long as others are free.
    last: Option<u64>,
    blocks: BTreeMap<PodUid, IdBlock>,
}

/// A newer version's record may tell of users in a way that is not understood: it stands as it is, for the version that
/// wrote it, and nothing is given out.
fn read(json: &[u8]) -> Result<Allocated, String> {
    match state_file::version_of(json) {
        VERSION => serde_json::from_slice(json).map_err(|error| error.to_string()),
        newer => Err(format!("their record is of version {newer}, and {VERSION} is understood")),
    }
}

/// All that are given out. One for the node.
pub struct UserNamespaces {
    pool: Result<Pool, PoolError>,
    store: Box<dyn BlockStore>,
    given: Mutex<Result<Allocated, String>>,
}

impl std::fmt::Debug for UserNamespaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserNamespaces").field("pool", &self.pool).field("given", &self.given).finish_non_exhaustive()
    }
}

impl UserNamespaces {
    /// Takes up what `store` kept. A pool that is none, or a record that cannot be read, is said to whoever wants a
    /// block; pods without one do not notice.
    pub fn new(pool: Result<Pool, PoolError>, store: Box<dyn BlockStore>) -> Self {
        let given = match store.load() {
            Ok(None) => Ok(Allocated::default()),
            Ok(Some(json)) => read(&json),
            Err(error) => Err(error),
        };
        if let Err(error) = &given {
            tracing::error!("pods with user namespaces are not started: {error}");
        }
        UserNamespaces { pool, store, given: Mutex::new(given) }
    }

    fn given(&self) -> MutexGuard<'_, Result<Allocated, String>> {
        // Replaced as a whole, never changed in part.
        self.given.lock()
    }

    /// The pod's block; a new one is written down first.
    ///
    /// # Errors
    /// None is left, or it could not be written down, or what others have is not known.
    pub fn of_pod(&self, uid: &PodUid) -> Result<IdBlock, UsernsError> {
        let mut given = self.given();
        let known = given.as_ref().map_err(|error| UsernsError::Unknown(error.clone()))?;
        if let Some(block) = known.blocks.get(uid) {
            return Ok(*block);
        }
        let pool = self.pool.clone()?;
        let start = known.last.map_or(0, |last| last + 1);
        let is_free = |block: &IdBlock| known.blocks.values().all(|other| !block.overlaps(*other));
        let found = (0..pool.blocks).find_map(|step| {
            let index = (start + step) % pool.blocks;
            Some((index, pool.block(index).filter(is_free)?))
        });
        let (index, block) = found.ok_or(UsernsError::NoneLeft)?;
        let mut next = known.clone();
        next.last = Some(index);
        next.blocks.insert(uid.clone(), block);
        self.save(&next).map_err(UsernsError::NotSaved)?;
        *given = Ok(next);
        Ok(block)
    }

    /// Gives back the blocks of all pods but those.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        let mut given = self.given();
        let Ok(known) = given.as_ref() else { return };
        if known.blocks.keys().all(&keep) {
            return;
        }
        let mut next = known.clone();
        next.blocks.retain(|uid, _| keep(uid));
        match self.save(&next) {
            Ok(()) => *given = Ok(next),
            // They stay given out; the next pass tries again.
            Err(error) => tracing::warn!("failed to release user namespaces of pods that are gone: {error}"),
        }
    }

    fn save(&self, given: &Allocated) -> Result<(), String> {
        let json = serde_json::to_vec(given).map_err(|error| error.to_string())?;
        self.store.save(&json)
    }
}

#[cfg(test)]
#[path = "userns_tests.rs"]
mod tests;
