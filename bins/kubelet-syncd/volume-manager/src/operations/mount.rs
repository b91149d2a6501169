//! What makes a volume ready for a pod; how, is its kind's.

use std::sync::Arc;

use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;
use kubelet_edges::volnetd::VolnetdError;
use kubelet_model::events::EventType;
use kubelet_model::objects::ObjectError;

use super::expand::{Expand, Moment};
use super::{Failure, Phase, fc, slow_group};
use crate::actual_state::{ActualVolume, Presence, Published};
use crate::context::Context;
use crate::pod_facts::PodFacts;
use crate::populator::node_affinity;
use crate::ports::Reply;
use crate::spec::{Source, UniqueName, VolumeSpec};

const IN_USE: &str = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";

/// One volume for one pod.
#[derive(Debug)]
pub struct Mount<'a> {
    pub context: &'a Context,
    pub volume: &'a UniqueName,
    pub uid: &'a PodUid,
    pub pod: Arc<PodFacts>,
    pub spec: Arc<VolumeSpec>,
    pub attachable: bool,
    /// It is mounted, and the driver is to be called once more.
    pub remount: bool,
    /// SELinux label of all its files; empty: it is mounted with none.
    pub label: String,
}

impl Mount<'_> {
    /// Brings the volume to where the pod's containers can have it.
    ///
    /// # Errors
    /// See [`Failure`]; both states say what is known of the volume then.
    pub async fn run(&self) -> Result<(), Failure> {
        self.check_node()?;
        let comes_to_the_pod_later = match &self.spec.source {
            Source::Csi(_) => true,
            Source::Flex(source) => source.can.attach,
            Source::Local { .. } | Source::Nfs { .. } | Source::HostPath { .. } => false,
            Source::Fc(_) | Source::Iscsi(_) => false,
        };
        if !comes_to_the_pod_later && !self.may_publish() {
            return Ok(());
        }
        match &self.spec.source {
            Source::Csi(source) => self.set_up_csi(source).await,
            Source::Local { path, fs_type } => self.set_up_local(path, fs_type).await,
            Source::Nfs { server, path } => self.set_up_nfs(server, path).await,
            Source::Fc(source) => self.set_up_fc(source).await,
            Source::Iscsi(source) => self.set_up_iscsi(source).await,
            Source::Flex(source) => self.set_up_flex(source).await,
            Source::HostPath { path, kind } => self.set_up_host_path(path, kind).await,
        }
    }

    /// The pod still wants it, and its end waits from now on until this operation has ended.
    pub(super) fn may_publish(&self) -> bool {
        let mut state = self.context.state();
        let wants = state.desired.volume(self.uid, self.volume).is_some();
        if wants {
            state.busy.publishes(self.volume, self.uid);
        }
        wants
    }

    /// The group that kubelet-volnetd gives the volume to.
    pub(super) fn group(&self) -> Option<i64> {
        self.pod.fs_group.filter(|_| !self.spec.read_only)
    }

    fn check_node(&self) -> Result<(), Failure> {
        // An inline volume may be anywhere, and a node on its own has no Node.
        if self.spec.node_affinity.is_none() {
            return Ok(());
        }
        let node = self.context.ports.reader.node().borrow().clone();
        let Some(node) = node else {
            let why = "the API server has not yet said what it has of our Node".to_owned();
            let away = ObjectError::Away(why.clone());
            return Err(Failure::object(Phase::NodeAffinity, why, &away));
        };
        node_affinity::check(self.spec.node_affinity.as_ref(), &node)
            .map_err(|why| Failure::new(Phase::NodeAffinity, why))
    }

    /// A volume of ReadWriteOncePod is one pod's.
    pub(super) fn one_of_its_pods(&self) -> Result<(), Failure> {
        if self.spec.is_single_pod() && self.context.state().actual.is_used_by_another(self.volume, self.uid) {
            let phase = if self.spec.block { Phase::Device } else { Phase::SetUp };
            return Err(Failure::new(phase, IN_USE));
        }
        Ok(())
    }

    /// Work that gives the volume to the group, if the pod has one, which may take long. `kind`: as of [`Self::attached_disk`].
    pub(super) async fn with_group<T>(&self, kind: &str, work: Reply<'_, T>) -> Result<T, VolnetdError> {
        if self.group().is_none() {
            return work.await;
        }
        let folder = format!("{}/volumes/kubernetes.io~{kind}/{}", self.uid, self.spec.name);
        slow_group::said(self.context, &self.pod, &folder, work).await
    }

    /// A disk that is attached for the pod. `kind`: the plugin's, without what all begin with.
    pub(super) async fn attached_disk(
        &self,
        kind: &str,
        work: Reply<'_, api::SetUpVolumeReply>,
    ) -> Result<(), Failure> {
        let reply = self.with_group(kind, work).await.map_err(|error| {
            if fc::may_be_attached(&error) {
                self.attempted();
            }
            fc::failure(&error)
        })?;
        if let Some(place) = self.spec.place().filter(|_| self.spec.block) {
            let (global, map) = fc::maps(self.uid, &self.spec.name, &place, &reply.host_path);
            self.say_mapped_at(&global, &map);
        }
        self.mounted(reply.host_path);
        Ok(())
    }

    /// A volume that has become larger than its claim says, before the pod has it. What fails is uncertain, and mounted again.
    pub(super) async fn expand(&self) -> Result<(), Failure> {
        if self.spec.claim.as_ref().is_none_or(|claim| claim.capacity >= self.spec.capacity) {
            return Ok(());
        }
        let (pod, spec) = (self.pod.clone(), self.spec.clone());
        let Mount { context, volume, uid, .. } = *self;
        Expand { context, volume, uid, pod, spec, moment: Moment::Mount }.run().await
    }

    /// `global`, `map`: the folders of all pods' maps of the block volume, and of this pod's.
    pub(super) fn say_mapped_at(&self, global: &str, map: &str) {
        for (what, path) in [("globalMapPath", global), ("volumeMapPath", map)] {
            let message = format!("MapVolume.MapPodDevice succeeded for volume {:?} {what} {path:?}", self.spec.name);
            self.context.event(&self.pod, EventType::Normal, "SuccessfulMountVolume", message);
        }
    }

    /// The volume as it is written down when the first thing is known of it.
    pub(super) fn not_there_yet(&self) -> ActualVolume {
        ActualVolume {
            disk: self.spec.place(),
            attachable: Some(self.attachable),
            claim_size: self.spec.claim.as_ref().map_or(0, |claim| claim.capacity),
            ..ActualVolume::new(self.spec.plugin())
        }
    }

    /// A disk may be attached now, whatever came of the rest: it is to be detached.
    pub(super) fn attempted(&self) {
        let mut state = self.context.state();
        let volume = state.actual.volumes.entry(self.volume.clone()).or_insert_with(|| self.not_there_yet());
        if volume.staged == Presence::No {
            volume.staged = Presence::Uncertain;
        }
    }

    /// A volume that no driver has made is there.
    pub(super) fn mounted(&self, host_path: String) {
        // No driver has mounted it with a label.
        self.mounted_as(Presence::Yes, host_path, true);
    }

    /// The same of one that no CSI driver has made.
    pub(super) fn mounted_as(&self, presence: Presence, host_path: String, relabel: bool) {
        let mut state = self.context.state();
        let volume = state.actual.volumes.entry(self.volume.clone()).or_insert_with(|| self.not_there_yet());
        if volume.disk.is_some() {
            (volume.staged, volume.attachable) = (Presence::Yes, Some(self.attachable));
        }
        let spec_name = self.spec.name.clone();
        let published = Published {
            presence,
            host_path,
            spec_name,
            target_path: String::new(),
            unreadable: false,
            relabel,
            found: false,
        };
        volume.pods.insert(self.uid.clone(), published);
    }
}
