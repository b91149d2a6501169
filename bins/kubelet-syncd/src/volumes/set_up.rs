//! Asks volnetd for a pod's volumes, all at once: each is a round trip of its own and none needs another.

use std::path::PathBuf;

use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;

use super::plan::{VolumeKind, VolumePlan};
use crate::runtime::container_config::{MountedVolume, MountedVolumes};
use crate::volnetd::{Volnetd, VolnetdError};

/// Why a pod's volumes are not ready.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("volume {volume:?}: {why}")]
    Impossible { volume: String, why: String },
    #[error("volume {volume:?}: {source}")]
    Failed { volume: String, source: VolnetdError },
}

impl VolumeError {
    /// As upstream's volume manager words it.
    pub fn event_message(&self) -> String {
        let (volume, why) = match self {
            VolumeError::Impossible { volume, why } => (volume, why.clone()),
            VolumeError::Failed { volume, source: VolnetdError::Refused { source, .. } } => {
                (volume, source.message().to_owned())
            }
            VolumeError::Failed { volume, source } => (volume, source.to_string()),
        };
        format!("MountVolume.SetUp failed for volume {volume:?} : {why}")
    }

    /// Nothing has failed, volnetd is away: wait.
    pub fn is_transient(&self) -> bool {
        matches!(self, VolumeError::Failed { source, .. } if source.is_transient())
    }
}

/// What came of each volume, in the order of the plans.
pub type Outcomes = Vec<(VolumePlan, Result<String, VolumeError>)>;

/// Sets up every volume; one that fails does not stop the others.
pub async fn set_up(volnetd: &Volnetd, context: &CallContext, uid: &PodUid, plans: Vec<VolumePlan>) -> Outcomes {
    let work = plans.into_iter().map(|plan| async move {
        let outcome = one(volnetd, context, uid, &plan).await;
        (plan, outcome)
    });
    futures_util::future::join_all(work).await
}

async fn one(volnetd: &Volnetd, context: &CallContext, uid: &PodUid, plan: &VolumePlan) -> Result<String, VolumeError> {
    let volume = plan.name.to_string();
    let reply = match &plan.kind {
        VolumeKind::EmptyDir { medium, size_limit, huge_page } => {
            let request = api::SetUpEmptyDirRequest {
                pod_uid: uid.to_string(),
                volume: volume.clone(),
                medium: (*medium).into(),
                size_limit_bytes: *size_limit,
                huge_page_bytes: *huge_page,
                fs_group: None,
                fs_group_on_root_mismatch: false,
            };
            volnetd.set_up_empty_dir(context, request).await
        }
        VolumeKind::HostPath { path, kind } => {
            let request = api::CheckHostPathRequest {
                pod_uid: uid.to_string(),
                volume: volume.clone(),
                path: path.clone(),
                r#type: (*kind).into(),
            };
            volnetd.check_host_path(context, request).await
        }
        VolumeKind::Impossible { why, .. } => return Err(VolumeError::Impossible { volume, why: why.clone() }),
    };
    match reply {
        Ok(reply) => Ok(reply.host_path),
        Err(source) => Err(VolumeError::Failed { volume, source }),
    }
}

/// The ready ones, for container mounts.
pub fn mounted(outcomes: &Outcomes) -> MountedVolumes {
    let ready = outcomes.iter().filter_map(|(plan, outcome)| {
        let host_path = PathBuf::from(outcome.as_ref().ok()?);
        Some((plan.name.to_string(), MountedVolume { host_path, read_only: false }))
    });
    ready.collect()
}
