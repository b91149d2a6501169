//! What must outlive this process and stands nowhere else: uids of static pods, back-off of crashing containers, what
//! probes found out, what pods were granted, which users of the machine they have. Small files in the private state folder, each replaced as a whole before anybody relies on it.

use std::sync::Arc;

use bulkhead_daemon::StateDir;

use crate::allocation::{AllocationStore, Saved};
use crate::hooks::pre_stop::PreStopStore;
use crate::images::pull_records::PullRecords;
use crate::images::{RecordStore, RecordStoreError};
use crate::prober::journal::ProbeStore;
use crate::runtime::backoff::BackOffStore;
use crate::runtime::user_blocks::BlockStore;
use crate::sources::uids::{UidBook, UidStore, UidStoreError};

const UIDS: &str = "static-pod-uids.json";
const BACK_OFF: &str = "restart-back-off.json";
const PULLS: &str = "image-pulls.json";
const PRE_STOPS: &str = "pre-stop-hooks.json";
const USERS: &str = "users-of-pods.json";
const ALLOCATIONS: &str = "allocations.json";
const PROBES: &str = "probe-results.json";

/// The state folder, shared by those who keep something in it.
#[derive(Debug, Clone)]
pub struct PrivateState(Arc<StateDir>);

impl PrivateState {
    pub fn new(dir: StateDir) -> Self {
        PrivateState(Arc::new(dir))
    }

    /// What [`BackOffStore::save`] wrote last.
    pub fn back_off(&self) -> Option<Vec<u8>> {
        self.0.read(BACK_OFF).unwrap_or_else(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "back-off of containers begins anew");
            None
        })
    }
}

impl PrivateState {
    /// What [`AllocationStore::save`] wrote last; None when there is nothing, or nothing that can be read.
    pub fn allocations(&self) -> Option<Saved> {
        let bytes = self.0.read(ALLOCATIONS).unwrap_or_else(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "what pods were granted is not known any more");
            None
        })?;
        serde_json::from_slice(&bytes)
            .inspect_err(|error| {
                let error = error as &dyn std::error::Error;
                tracing::warn!(error, "what pods were granted cannot be read: they have what their specs say");
            })
            .ok()
    }
}

impl AllocationStore for PrivateState {
    fn save(&self, json: &[u8]) -> std::io::Result<()> {
        self.0.write(ALLOCATIONS, json).map_err(std::io::Error::other)
    }
}

impl PrivateState {
    /// What [`PreStopStore::save`] wrote last.
    pub fn pre_stops(&self) -> Option<Vec<u8>> {
        self.0.read(PRE_STOPS).unwrap_or_else(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "preStop hooks that have run may run again");
            None
        })
    }
}

impl PreStopStore for PrivateState {
    fn save(&self, json: &[u8]) {
        if let Err(error) = self.0.write(PRE_STOPS, json) {
            tracing::warn!(error = &error as &dyn std::error::Error, "preStop hooks may run again after a restart");
        }
    }
}

impl ProbeStore for PrivateState {
    fn load(&self) -> Option<Vec<u8>> {
        self.0.read(PROBES).unwrap_or_else(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "what probes found out before is not known any more"
            );
            None
        })
    }

    fn save(&self, json: &[u8]) {
        if let Err(error) = self.0.write(PROBES, json) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "what probes find out would not survive a restart"
            );
        }
    }
}

impl PrivateState {
    /// What [`RecordStore::save`] wrote last. Without it every image that is there counts as brought by somebody else.
    pub fn pull_records(&self) -> PullRecords {
        let read = self.0.read(PULLS).map_err(std::io::Error::other);
        let parsed = read.and_then(|bytes| match bytes {
            Some(bytes) => Ok(serde_json::from_slice(&bytes)?),
            None => Ok(PullRecords::default()),
        });
        parsed.unwrap_or_else(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "records of image pulls begin anew");
            PullRecords::default()
        })
    }
}

impl RecordStore for PrivateState {
    fn save(&self, records: &PullRecords) -> Result<(), RecordStoreError> {
        let bytes = serde_json::to_vec(records).map_err(|error| RecordStoreError(error.into()))?;
        self.0.write(PULLS, &bytes).map_err(|error| RecordStoreError(std::io::Error::other(error)))
    }
}

impl UidStore for PrivateState {
    fn load(&self) -> Result<UidBook, UidStoreError> {
        let failed = |source| UidStoreError { doing: "reading", source };
        match self.0.read(UIDS).map_err(|error| failed(std::io::Error::other(error)))? {
            Some(bytes) => serde_json::from_slice(&bytes).map_err(|error| failed(error.into())),
            None => Ok(UidBook::default()),
        }
    }

    fn save(&self, book: &UidBook) -> Result<(), UidStoreError> {
        let failed = |source| UidStoreError { doing: "writing", source };
        let bytes = serde_json::to_vec(book).map_err(|error| failed(error.into()))?;
        self.0.write(UIDS, &bytes).map_err(|error| failed(std::io::Error::other(error)))
    }
}

impl BackOffStore for PrivateState {
    fn save(&self, json: &[u8]) {
        if let Err(error) = self.0.write(BACK_OFF, json) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "back-off of containers would not survive a restart"
            );
        }
    }
}

impl BlockStore for PrivateState {
    fn load(&self) -> Result<Option<Vec<u8>>, String> {
        self.0.read(USERS).map_err(|error| error.to_string())
    }

    fn save(&self, json: &[u8]) -> Result<(), String> {
        self.0.write(USERS, json).map_err(|error| error.to_string())
    }
}
