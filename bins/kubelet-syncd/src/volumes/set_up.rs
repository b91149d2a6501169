//! Asks volnetd for a pod's volumes, all at once: each is a few round trips of its own and none needs another. Volumes
//! with files from the API are also brought up to date here, when their files have changed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;
use futures_util::future::join_all;
use kubelet_model::v1::Pod;
use tokio::sync::Semaphore;

use super::content::Content;
use super::plan::{VolumeKind, VolumePlan};
use super::render::{ContentHash, RenderError, Rendered, render};
use kubelet_edges::volnetd::{Volnetd, VolnetdError};
use kubelet_model::node_facts::NodeFacts;
use kubelet_model::objects::named_objects::{NamedObjects, ObjectReferences};
use kubelet_runtime::runtime::container_config::{MountedVolume, MountedVolumes};

/// Volumes whose files are rendered or on their way to volnetd at a time, of all pods: each may have
/// [`bulkhead_ipc::MAX_CONTENT_BYTES`], twice. Volnetd writes as many at a time, and one connection of its broker is open for each.
pub const FILES_ON_THEIR_WAY: usize = 8;

/// The verbs of volnetd that make volumes.
pub trait VolumeVerbs: Sync {
    fn set_up_empty_dir(
        &self,
        context: &CallContext,
        request: api::SetUpEmptyDirRequest,
    ) -> impl Future<Output = Result<api::SetUpVolumeReply, VolnetdError>> + Send;
    fn check_host_path(
        &self,
        context: &CallContext,
        request: api::CheckHostPathRequest,
    ) -> impl Future<Output = Result<api::SetUpVolumeReply, VolnetdError>> + Send;
    fn set_up_content(
        &self,
        context: &CallContext,
        request: api::SetUpContentRequest,
    ) -> impl Future<Output = Result<api::SetUpVolumeReply, VolnetdError>> + Send;
    fn put_content(
        &self,
        volume: api::PutContent,
        content: &[u8],
    ) -> impl Future<Output = Result<(), VolnetdError>> + Send;
}

impl VolumeVerbs for Volnetd {
    async fn set_up_empty_dir(
        &self,
        context: &CallContext,
        request: api::SetUpEmptyDirRequest,
    ) -> Result<api::SetUpVolumeReply, VolnetdError> {
        Volnetd::set_up_empty_dir(self, context, request).await
    }

    async fn check_host_path(
        &self,
        context: &CallContext,
        request: api::CheckHostPathRequest,
    ) -> Result<api::SetUpVolumeReply, VolnetdError> {
        Volnetd::check_host_path(self, context, request).await
    }

    async fn set_up_content(
        &self,
        context: &CallContext,
        request: api::SetUpContentRequest,
    ) -> Result<api::SetUpVolumeReply, VolnetdError> {
        Volnetd::set_up_content(self, context, request).await
    }

    async fn put_content(&self, volume: api::PutContent, content: &[u8]) -> Result<(), VolnetdError> {
        Volnetd::put_content(self, volume, content).await
    }
}

/// Why a pod's volumes are not ready.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("volume {volume:?}: {why}")]
    Impossible { volume: String, why: String },
    #[error("volume {volume:?}: {source}")]
    Files { volume: String, source: RenderError },
    #[error("volume {volume:?}: {source}")]
    Failed { volume: String, source: VolnetdError },
}

impl VolumeError {
    /// As upstream's volume manager words it.
    pub fn event_message(&self) -> String {
        let (volume, why) = match self {
            VolumeError::Impossible { volume, why } => (volume, why.clone()),
            VolumeError::Files { volume, source } => (volume, source.to_string()),
            VolumeError::Failed { volume, source: VolnetdError::Refused { source, .. } } => {
                (volume, source.message().to_owned())
            }
            VolumeError::Failed { volume, source } => (volume, source.to_string()),
        };
        format!("MountVolume.SetUp failed for volume {volume:?} : {why}")
    }

    /// kubelet-volnetd does not find the volume: its mount or its folder has gone.
    pub fn is_not_set_up(&self) -> bool {
        let VolumeError::Failed { source: VolnetdError::Refused { source, .. }, .. } = self else { return false };
        source.code() == tonic::Code::NotFound
    }

    /// Nothing has failed, volnetd or the API server is away: wait.
    pub fn is_transient(&self) -> bool {
        match self {
            VolumeError::Impossible { .. } => false,
            VolumeError::Files { source, .. } => source.is_transient(),
            VolumeError::Failed { source, .. } => source.is_transient(),
        }
    }
}

/// A volume that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    pub host_path: String,
    /// What its files are, where they come from us.
    pub content: Option<ContentHash>,
}

/// What came of each volume, in the order of the plans.
pub type Outcomes = Vec<(VolumePlan, Result<Ready, VolumeError>)>;

/// Which files each volume of a pod shows.
pub type ContentHashes = BTreeMap<String, ContentHash>;

/// What has to be asked for before the volumes can be made.
pub fn wanted(plans: &[VolumePlan]) -> ObjectReferences {
    let mut wanted = ObjectReferences::default();
    contents(plans).for_each(|(_, content)| content.add_wanted(&mut wanted));
    wanted
}

fn contents(plans: &[VolumePlan]) -> impl Iterator<Item = (&VolumePlan, &Content)> {
    plans.iter().filter_map(|plan| match &plan.kind {
        VolumeKind::Content(content) => Some((plan, content)),
        _ => None,
    })
}

/// Makes the volumes of one pod.
#[derive(Debug, Clone, Copy)]
pub struct Maker<'a, V> {
    pub verbs: &'a V,
    pub context: &'a CallContext,
    pub uid: &'a PodUid,
    pub pod: &'a Pod,
    pub facts: &'a NodeFacts,
    /// At least what [`wanted`] names.
    pub objects: &'a NamedObjects,
    /// Of all pods: [`FILES_ON_THEIR_WAY`]. Nothing is awaited with a place but volnetd.
    pub places: &'a Semaphore,
}

impl<V: VolumeVerbs> Maker<'_, V> {
    /// Sets up every volume; one that fails does not stop the others.
    pub async fn set_up(&self, plans: Vec<VolumePlan>) -> Outcomes {
        let work = plans.into_iter().map(|plan| async move {
            let outcome = self.one(&plan).await;
            (plan, outcome)
        });
        join_all(work).await
    }

    /// Puts the files of volumes that are set up already where they are others than `known` says, and notes them there. `all`:
    /// also those that are the same, for kubelet-volnetd to find out that a volume has gone; it writes nothing where they are there.
    /// A volume that fails keeps the files that it has.
    pub async fn refresh(&self, plans: &[VolumePlan], known: &mut ContentHashes, all: bool) -> Vec<VolumeError> {
        let (mut changed, mut errors) = (Vec::new(), Vec::new());
        for (plan, content) in contents(plans) {
            // A pod may have very many volumes: others have their turn between them.
            tokio::task::yield_now().await;
            // What is as it was waits for nobody, and is not kept while the others are looked at.
            match self.files(plan, content) {
                Ok(rendered) if !all && known.get(plan.name.as_str()) == Some(&rendered.hash) => {}
                Ok(_) => changed.push((plan, content)),
                Err(error) => errors.push(error),
            }
        }
        let puts = changed.into_iter().map(|(plan, content)| async move {
            let _place = self.places.acquire().await;
            let rendered = self.files(plan, content)?;
            self.put(plan, &rendered).await?;
            Ok::<_, VolumeError>((plan.name.to_string(), rendered.hash))
        });
        for put in join_all(puts).await {
            match put {
                Ok((name, hash)) => _ = known.insert(name, hash),
                Err(error) => errors.push(error),
            }
        }
        errors
    }

    async fn one(&self, plan: &VolumePlan) -> Result<Ready, VolumeError> {
        let (pod_uid, volume) = (self.uid.to_string(), plan.name.to_string());
        let failed = |source| VolumeError::Failed { volume: volume.clone(), source };
        let made = |reply: api::SetUpVolumeReply, content| Ready { host_path: reply.host_path, content };
        match &plan.kind {
            VolumeKind::EmptyDir { medium, size_limit, huge_page, fs_group } => {
                let request = api::SetUpEmptyDirRequest {
                    pod_uid,
                    volume: volume.clone(),
                    medium: (*medium).into(),
                    size_limit_bytes: *size_limit,
                    huge_page_bytes: *huge_page,
                    fs_group: *fs_group,
                    // fsGroupChangePolicy does not count for volumes that end with the pod.
                    fs_group_on_root_mismatch: false,
                };
                let reply = self.verbs.set_up_empty_dir(self.context, request).await.map_err(failed)?;
                Ok(made(reply, None))
            }
            VolumeKind::HostPath { path, kind } => {
                let (path, kind) = (path.clone(), (*kind).into());
                let request = api::CheckHostPathRequest { pod_uid, volume: volume.clone(), path, r#type: kind };
                let reply = self.verbs.check_host_path(self.context, request).await.map_err(failed)?;
                Ok(made(reply, None))
            }
            VolumeKind::Content(content) => {
                let _place = self.places.acquire().await;
                tokio::task::yield_now().await;
                // What cannot be filled is not made.
                let rendered = self.files(plan, content)?;
                let request = api::SetUpContentRequest {
                    pod_uid,
                    volume: volume.clone(),
                    plugin: content.plugin.into(),
                    size_limit_bytes: content.size_limit,
                    mount_points: content.nested.clone().unwrap_or_default(),
                };
                let reply = self.verbs.set_up_content(self.context, request).await.map_err(failed)?;
                self.put(plan, &rendered).await?;
                Ok(made(reply, Some(rendered.hash)))
            }
            // The volume manager's are awaited after the others.
            VolumeKind::Image | VolumeKind::Managed { .. } => Ok(Ready { host_path: String::new(), content: None }),
            VolumeKind::Impossible { why, .. } => Err(VolumeError::Impossible { volume, why: why.clone() }),
        }
    }

    fn files(&self, plan: &VolumePlan, content: &Content) -> Result<Rendered, VolumeError> {
        render(content, self.pod, self.objects, self.facts)
            .map_err(|source| VolumeError::Files { volume: plan.name.to_string(), source })
    }

    async fn put(&self, plan: &VolumePlan, rendered: &Rendered) -> Result<(), VolumeError> {
        let VolumeKind::Content(content) = &plan.kind else { return Ok(()) };
        let volume = plan.name.to_string();
        let target =
            api::PutContent { pod_uid: self.uid.to_string(), volume: volume.clone(), plugin: content.plugin.into() };
        let put = self.verbs.put_content(target, &rendered.bytes).await;
        put.map_err(|source| VolumeError::Failed { volume, source })
    }
}

/// The ready ones, for container mounts.
pub fn mounted(outcomes: &Outcomes) -> MountedVolumes {
    let ready = outcomes.iter().filter_map(|(plan, outcome)| {
        if matches!(plan.kind, VolumeKind::Managed { .. }) {
            return None;
        }
        let host_path = PathBuf::from(&outcome.as_ref().ok()?.host_path);
        let read_only = matches!(plan.kind, VolumeKind::Content(_) | VolumeKind::Image);
        let managed = !matches!(plan.kind, VolumeKind::HostPath { .. } | VolumeKind::Image);
        let volume = MountedVolume { host_path, read_only, managed, root: plan.kind.root(), folder: None, gid: None };
        Some((plan.name.to_string(), volume))
    });
    ready.collect()
}

/// What the ready ones show.
pub fn hashes(outcomes: &Outcomes) -> ContentHashes {
    let shown = outcomes.iter().filter_map(|(plan, outcome)| {
        let hash = outcome.as_ref().ok()?.content?;
        Some((plan.name.to_string(), hash))
    });
    shown.collect()
}

#[cfg(test)]
#[path = "set_up_tests.rs"]
mod tests;
