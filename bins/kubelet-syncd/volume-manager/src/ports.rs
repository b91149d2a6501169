//! What the volume manager asks of others: a driver, kubelet-volnetd's verbs, the API server. The real ones are edges; tests
//! bring their own.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use bulkhead_csi::v1 as csi;
use bulkhead_ipc::common::DestructiveGuard;
use bulkhead_ipc::syncd::ClaimStatus;
use bulkhead_ipc::volnetd as api;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kubelet_edges::csi::CsiError;
use kubelet_edges::volnetd::VolnetdError;
use kubelet_model::objects::{ObjectError, Token, TokenWanted};
use tokio::sync::watch;

use crate::csi::policy::Capabilities;
use crate::spec::CsiSource;

/// What a driver answered.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, CsiError>>;

/// The node services of the drivers that have registered. Each call has a connection and a deadline of its own.
pub trait Drivers: Send + Sync + Debug {
    /// The names of drivers that have registered, gone or moved, with each change.
    fn changes(&self) -> BoxStream<'static, BTreeSet<String>>;
    /// `migrated`: it is asked for a volume whose kind is an in-tree one. Of volumes that go, and of their figures, nobody says so, as
    /// upstream's metrics have it.
    fn capabilities<'a>(&'a self, driver: &'a str, migrated: bool) -> Answer<'a, Capabilities>;
    fn stage<'a>(&'a self, source: &'a CsiSource, request: csi::NodeStageVolumeRequest) -> Answer<'a, ()>;
    fn unstage<'a>(&'a self, driver: &'a str, request: csi::NodeUnstageVolumeRequest) -> Answer<'a, ()>;
    fn publish<'a>(&'a self, source: &'a CsiSource, request: csi::NodePublishVolumeRequest) -> Answer<'a, ()>;
    fn unpublish<'a>(&'a self, driver: &'a str, request: csi::NodeUnpublishVolumeRequest) -> Answer<'a, ()>;
    /// Answers the size in bytes, 0 where the driver does not say.
    fn expand<'a>(&'a self, source: &'a CsiSource, request: csi::NodeExpandVolumeRequest) -> Answer<'a, i64>;
    fn stats<'a>(
        &'a self,
        driver: &'a str,
        request: csi::NodeGetVolumeStatsRequest,
    ) -> Answer<'a, csi::NodeGetVolumeStatsResponse>;
}

/// What kubelet-volnetd answered.
pub type Reply<'a, T> = BoxFuture<'a, Result<T, VolnetdError>>;

/// kubelet-volnetd's verbs around the calls of a driver.
pub trait VolumeVerbs: Send + Sync + Debug {
    /// What a destructive verb carries; there is none before every source of pods has delivered.
    ///
    /// # Errors
    /// Not yet.
    fn guard(&self, verb: &'static str) -> Result<DestructiveGuard, VolnetdError>;
    /// The life of kubelet-volnetd, 0 while it is not known.
    fn epoch(&self) -> watch::Receiver<u64>;
    fn prepare_stage(&self, request: api::PrepareStageRequest) -> Reply<'_, api::PrepareStageReply>;
    fn commit_stage(&self, request: api::CsiDevice) -> Reply<'_, api::CommitStageReply>;
    fn begin_unstage(&self, request: api::EndStageRequest) -> Reply<'_, api::EndStageReply>;
    fn end_stage(&self, request: api::EndStageRequest) -> Reply<'_, api::EndStageReply>;
    fn prepare_publish(&self, request: api::PreparePublishRequest) -> Reply<'_, api::PreparePublishReply>;
    fn commit_publish(&self, request: api::CommitPublishRequest) -> Reply<'_, api::CommitPublishReply>;
    fn begin_unpublish(&self, request: api::EndPublishRequest) -> Reply<'_, api::EndPublishReply>;
    fn end_publish(&self, request: api::EndPublishRequest) -> Reply<'_, api::EndPublishReply>;
    fn list_staged(&self) -> Reply<'_, Vec<api::StagedVolume>>;
    fn list_published(&self) -> Reply<'_, Vec<api::PublishedVolume>>;
    fn set_up_local(&self, request: api::SetUpLocalRequest) -> Reply<'_, api::SetUpVolumeReply>;
    fn set_up_nfs(&self, request: api::SetUpNfsRequest) -> Reply<'_, api::SetUpVolumeReply>;
    fn set_up_fc(&self, request: api::SetUpFcRequest) -> Reply<'_, api::SetUpVolumeReply>;
    fn set_up_iscsi(&self, request: api::SetUpIscsiRequest) -> Reply<'_, api::SetUpVolumeReply>;
    fn ask_flex_driver(&self, request: api::AskFlexDriverRequest) -> Reply<'_, api::AskFlexDriverReply>;
    fn set_up_flex(&self, request: api::SetUpFlexRequest) -> Reply<'_, api::SetUpFlexReply>;
    fn end_disk(&self, request: api::EndDiskRequest) -> Reply<'_, api::EndDiskReply>;
    fn list_disks(&self) -> Reply<'_, Vec<api::DiskState>>;
    fn check_host_path(&self, request: api::CheckHostPathRequest) -> Reply<'_, api::SetUpVolumeReply>;
}

/// Wants a claim's status written.
pub trait ClaimWriter: Send + Sync {
    /// Until it is written.
    ///
    /// # Errors
    /// It is refused, and why.
    fn write(&self, status: ClaimStatus) -> BoxFuture<'_, Result<(), String>>;
}

/// What the API server said.
pub type Read<'a, T> = BoxFuture<'a, Result<T, ObjectError>>;

/// What is read of the API server for volumes: single objects by their names, as nodes may.
pub trait ClusterReader: Send + Sync + Debug {
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> Read<'a, Arc<PersistentVolumeClaim>>;
    fn volume<'a>(&'a self, name: &'a str) -> Read<'a, Arc<PersistentVolume>>;
    fn attachment<'a>(&'a self, name: &'a str) -> Read<'a, VolumeAttachment>;
    /// Live, as a driver is told it.
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Read<'a, Secret>;
    fn token<'a>(&'a self, wanted: &'a TokenWanted) -> Read<'a, Token>;
    /// A driver's object as its watch has it; `None`: there is none.
    ///
    /// # Errors
    /// The drivers were not listed yet.
    fn driver(&self, name: &str) -> Result<Option<Arc<CSIDriver>>, ObjectError>;
    /// Word of every change of a driver's object.
    fn driver_changes(&self) -> BoxStream<'static, ()>;
    /// Our Node; `None` while the API server has not said whether it has one.
    fn node(&self) -> watch::Receiver<Option<Arc<Node>>>;
}
