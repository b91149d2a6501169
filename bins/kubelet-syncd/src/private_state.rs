//! What must outlive this process and stands nowhere else: uids of static pods, back-off of crashing containers, what
//! probes found out, what pods were granted, which users of the machine they have. Small files in the private state
//! folder, each replaced as a whole before anybody relies on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_daemon::state_file::{self, StateFile};
use bulkhead_daemon::{StateDir, StateError};

use crate::container_manager::devices::EndpointStore;
use crate::evictions::book::{self, EvictionStore};
use crate::evictions::pressure::{self, PressureStore};
use crate::node_shutdown::record::{self, ShutdownStore};
use crate::ooms::{self, OomStore};
use crate::sources::uids::{FoundPod, UidBook, UidStore, UidStoreError};
use kubelet_images::backoff as pull_back_off;
use kubelet_images::pull_records::{self, PullRecords};
use kubelet_images::{RecordStore, RecordStoreError};
use kubelet_probes::hooks::pre_stop::{PreStopStore, PreStops};
use kubelet_probes::prober::journal::{self, ProbeStore};
use kubelet_runtime::allocation::{self, AllocationStore, Saved};
use kubelet_runtime::runtime::backoff::{self, BackOffStore, CrashLoopBackOff};
use kubelet_runtime::runtime::userns::{self, BlockStore};

const UIDS: StateFile = StateFile { name: "static-pod-uids.json", version: 1 };
const BACK_OFF: StateFile = StateFile { name: "restart-back-off.json", version: backoff::VERSION };
const PULLS: StateFile = StateFile { name: "image-pulls.json", version: pull_records::VERSION };
const PULL_BACK_OFF: StateFile = StateFile { name: "image-pull-back-off.json", version: pull_back_off::VERSION };
const PRE_STOPS: StateFile = StateFile { name: "pre-stop-hooks.json", version: 1 };
const USERS: StateFile = StateFile { name: "users-of-pods.json", version: userns::VERSION };
const ALLOCATIONS: StateFile = StateFile { name: "allocations.json", version: allocation::VERSION };
const EVICTIONS: StateFile = StateFile { name: "evictions.json", version: book::VERSION };
const PRESSURE: StateFile = StateFile { name: "pressure.json", version: pressure::VERSION };
const OOMS: StateFile = StateFile { name: "out-of-memory.json", version: ooms::VERSION };
const SHUTDOWN: StateFile = StateFile { name: "shutdown.json", version: record::VERSION };
const DEVICE_PLUGINS: StateFile = StateFile { name: "device-plugins.json", version: 1 };
const PROBES: StateFile = StateFile { name: "probe-results.json", version: journal::VERSION };

/// The state folder, shared by those who keep something in it.
#[derive(Debug, Clone)]
pub struct PrivateState(Arc<StateDir>);

impl PrivateState {
    pub fn new(dir: StateDir) -> Self {
        PrivateState(Arc::new(dir))
    }

    /// The file's content, when `understands` takes it; else it has been set aside.
    fn text(
        &self,
        file: StateFile,
        understands: impl FnOnce(&[u8]) -> serde_json::Result<()>,
    ) -> Result<Option<Vec<u8>>, StateError> {
        self.0.load(file, |bytes| understands(bytes).map(|()| bytes.to_vec()))
    }

    /// Forgets what was decided before another kubelet had the node, when one has had it since: this is a first start then. What it
    /// has made of pods counts, and what the API server was told of them. `found`: static pods that the runtime has now. To be called
    /// before any of that is read. Where the disk refuses, the next start tries again.
    pub fn after_another_kubelet(&self, found: &[FoundPod]) {
        let outdated = [PROBES, EVICTIONS, PRESSURE].map(|file| file.name);
        let forget = || -> Result<(), Box<dyn std::error::Error>> {
            if !self.0.drop_outdated(&outdated)? {
                return Ok(());
            }
            tracing::info!("another kubelet has had the node: starting as at a first take-over");
            let book = UidStore::load(self)?;
            UidStore::save(self, &book.after_another_kubelet(found))?;
            Ok(self.0.taken_over()?)
        };
        if let Err(error) = forget() {
            tracing::warn!(error = &*error, "failed to forget what was decided before another kubelet had the node");
        }
    }

    /// What [`BackOffStore::save`] wrote last.
    pub fn back_off(&self) -> Option<Vec<u8>> {
        self.text(BACK_OFF, CrashLoopBackOff::understands).unwrap_or_else(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to load container back-off: beginning anew"
            );
            None
        })
    }
}

impl PrivateState {
    /// What [`AllocationStore::save`] wrote last; None when there is nothing, or nothing that can be read.
    pub fn allocations(&self) -> Option<Saved> {
        self.0.load(ALLOCATIONS, |bytes| serde_json::from_slice(bytes)).unwrap_or_else(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to load the allocated resources of pods");
            None
        })
    }
}

impl EndpointStore for PrivateState {
    fn load(&self) -> std::io::Result<BTreeMap<String, String>> {
        let loaded =
            self.0.load(DEVICE_PLUGINS, |bytes| serde_json::from_slice(bytes)).map_err(std::io::Error::other)?;
        Ok(loaded.map(|file: DevicePlugins| file.endpoints).unwrap_or_default())
    }

    fn save(&self, endpoints: &BTreeMap<String, String>) -> std::io::Result<()> {
        let file = DevicePlugins { version: DEVICE_PLUGINS.version, endpoints: endpoints.clone() };
        let json = serde_json::to_vec(&file).map_err(std::io::Error::other)?;
        self.0.write(DEVICE_PLUGINS.name, &json).map_err(std::io::Error::other)
    }
}

/// The file of device plugins.
#[derive(serde::Serialize, serde::Deserialize)]
struct DevicePlugins {
    version: u64,
    endpoints: BTreeMap<String, String>,
}

impl AllocationStore for PrivateState {
    fn save(&self, json: &[u8]) -> std::io::Result<()> {
        self.0.write(ALLOCATIONS.name, json).map_err(std::io::Error::other)
    }
}

impl PrivateState {
    /// What [`PreStopStore::save`] wrote last.
    pub fn pre_stops(&self) -> Option<Vec<u8>> {
        self.text(PRE_STOPS, PreStops::understands).unwrap_or_else(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to load preStop hooks that have run: they may run again"
            );
            None
        })
    }
}

impl PreStopStore for PrivateState {
    fn save(&self, json: &[u8]) {
        if let Err(error) = self.0.write(PRE_STOPS.name, json) {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to save preStop hooks that have run");
        }
    }
}

impl ProbeStore for PrivateState {
    fn load(&self) -> Option<Vec<u8>> {
        self.text(PROBES, journal::understands).unwrap_or_else(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to load probe results");
            None
        })
    }

    fn save(&self, json: &[u8]) {
        if let Err(error) = self.0.write(PROBES.name, json) {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to save probe results");
        }
    }
}

impl PrivateState {
    /// What [`RecordStore::save`] wrote last. Without it every image that is there counts as brought by somebody else.
    pub fn pull_records(&self) -> PullRecords {
        let read = self.0.load(PULLS, |bytes| serde_json::from_slice(bytes)).unwrap_or_else(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to load image pull records: beginning anew"
            );
            None
        });
        read.unwrap_or_default()
    }
}

impl PrivateState {
    /// What [`pull_back_off::BackOffStore::save`] wrote last.
    pub fn pull_back_off(&self) -> Option<pull_back_off::Saved> {
        self.0.load(PULL_BACK_OFF, |bytes| serde_json::from_slice(bytes)).unwrap_or_else(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to load image pull back-off: beginning anew"
            );
            None
        })
    }
}

impl pull_back_off::BackOffStore for PrivateState {
    fn save(&self, saved: &pull_back_off::Saved) {
        let written = state_file::encode(PULL_BACK_OFF.version, saved).map_err(std::io::Error::from);
        let written = written.and_then(|json| self.0.write(PULL_BACK_OFF.name, &json).map_err(std::io::Error::other));
        if let Err(error) = written {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to save image pull back-off");
        }
    }
}

impl RecordStore for PrivateState {
    fn save(&self, records: &PullRecords) -> Result<(), RecordStoreError> {
        let bytes = state_file::encode(PULLS.version, records).map_err(|error| RecordStoreError(error.into()))?;
        self.0.write(PULLS.name, &bytes).map_err(|error| RecordStoreError(std::io::Error::other(error)))
    }
}

impl PrivateState {
    /// What [`EvictionStore::save`] wrote last. Without it a pod whose eviction was cut off by a restart runs on.
    pub fn evictions(&self) -> book::Saved {
        let read = self.0.load(EVICTIONS, |bytes| serde_json::from_slice(bytes)).unwrap_or_else(|error| {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to load evictions in flight");
            None
        });
        read.unwrap_or_default()
    }

    /// What [`PressureStore::save`] wrote last.
    pub fn pressure(&self) -> Option<pressure::Saved> {
        self.0.load(PRESSURE, |bytes| serde_json::from_slice(bytes)).unwrap_or_else(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to load the node's pressure conditions: pods are admitted until kubelet-evictiond reports them"
            );
            None
        })
    }
}

/// A full disk is told from other failures.
fn of_disk(error: StateError) -> std::io::Error {
    match error {
        StateError::Write { source, .. } => source,
        other => std::io::Error::other(other),
    }
}

impl EvictionStore for PrivateState {
    fn save(&self, evictions: &book::Saved) -> std::io::Result<()> {
        let bytes = state_file::encode(EVICTIONS.version, evictions).map_err(std::io::Error::other)?;
        self.0.write(EVICTIONS.name, &bytes).map_err(of_disk)
    }
}

impl PressureStore for PrivateState {
    fn save(&self, pressure: &pressure::Saved) -> std::io::Result<()> {
        let bytes = state_file::encode(PRESSURE.version, pressure).map_err(std::io::Error::other)?;
        self.0.write(PRESSURE.name, &bytes).map_err(of_disk)
    }
}

impl PrivateState {
    /// What [`OomStore::save`] wrote last.
    pub fn ooms(&self) -> Option<ooms::Saved> {
        self.0.load(OOMS, |bytes| serde_json::from_slice(bytes)).unwrap_or_else(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to load the last reported OOM kill: an event SystemOOM may come twice"
            );
            None
        })
    }
}

impl OomStore for PrivateState {
    fn save(&self, last: &ooms::Saved) -> std::io::Result<()> {
        let bytes = state_file::encode(OOMS.version, last).map_err(std::io::Error::other)?;
        self.0.write(OOMS.name, &bytes).map_err(of_disk)
    }
}

impl ShutdownStore for PrivateState {
    fn load(&self) -> Option<record::Saved> {
        self.0.load(SHUTDOWN, |bytes| serde_json::from_slice(bytes)).unwrap_or_else(|error| {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to load graceful shutdown state: pods have their whole grace period again"
            );
            None
        })
    }

    fn save(&self, saved: &record::Saved) -> std::io::Result<()> {
        let bytes = state_file::encode(SHUTDOWN.version, saved).map_err(std::io::Error::other)?;
        self.0.write(SHUTDOWN.name, &bytes).map_err(std::io::Error::other)
    }
}

impl UidStore for PrivateState {
    fn load(&self) -> Result<UidBook, UidStoreError> {
        let failed = |source| UidStoreError { doing: "read", source };
        let book = self.0.load(UIDS, |bytes| serde_json::from_slice(bytes));
        Ok(book.map_err(|error| failed(std::io::Error::other(error)))?.unwrap_or_default())
    }

    fn save(&self, book: &UidBook) -> Result<(), UidStoreError> {
        let failed = |source| UidStoreError { doing: "write", source };
        let bytes = state_file::encode(UIDS.version, book).map_err(|error| failed(error.into()))?;
        self.0.write(UIDS.name, &bytes).map_err(|error| failed(std::io::Error::other(error)))
    }
}

impl BackOffStore for PrivateState {
    fn save(&self, json: &[u8]) {
        if let Err(error) = self.0.write(BACK_OFF.name, json) {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to save container back-off");
        }
    }
}

impl BlockStore for PrivateState {
    fn load(&self) -> Result<Option<Vec<u8>>, String> {
        // Never set aside: which users are taken is asked before one is given out.
        self.0.read(USERS.name).map_err(|error| error.to_string())
    }

    fn save(&self, json: &[u8]) -> Result<(), String> {
        self.0.write(USERS.name, json).map_err(|error| error.to_string())
    }
}
