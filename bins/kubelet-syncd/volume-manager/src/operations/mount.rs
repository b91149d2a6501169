//! Stage and publish: what makes a volume ready for a pod.

use std::sync::Arc;

use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;
use kubelet_edges::csi::{CsiError, Outcome};
use kubelet_model::events::EventType;
use kubelet_model::objects::ObjectError;
use tokio::time::Instant;

use super::csi_words::Act;
use super::driver_facts::DriverFacts;
use super::expand::{Expand, Moment};
use super::secrets::{self, SecretField};
use super::{Failure, Phase, fc, flex, iscsi, local, nfs, slow_group};
use crate::actual_state::{ActualVolume, Expansion, Presence, Published};
use crate::context::Context;
use crate::csi::policy::{Capabilities, gives_to_fs_group};
use crate::csi::requests::{self, Pairs, Publication};
use crate::metrics::Operation;
use crate::names;
use crate::pod_facts::PodFacts;
use crate::populator::node_affinity;
use crate::ports::Reply;
use crate::spec::{CsiSource, Source, UniqueName, VolumeSpec};

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

/// What was found on the node when the operation began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Before {
    staged: Presence,
    published: Presence,
}

impl Mount<'_> {
    /// Brings the volume to where the pod's containers can have it.
    ///
    /// # Errors
    /// See [`Failure`]; both states say what is known of the volume then.
    pub async fn run(&self) -> Result<(), Failure> {
        self.check_node()?;
        match &self.spec.source {
            Source::Csi(source) => self.csi(source).await,
            Source::Local { path, fs_type } => {
                let group = self.pod.fs_group.filter(|_| !self.spec.read_only);
                let mut request = local::request(self.uid, &self.spec, path, fs_type);
                (request.fs_group, request.fs_group_on_root_mismatch) = (group, self.pod.on_root_mismatch);
                self.one_of_its_pods()?;
                let folder = format!("{}/volumes/kubernetes.io~local-volume/{}", self.uid, self.spec.name);
                let work = self.context.ports.verbs.set_up_local(request);
                let gives = group.is_some();
                let reply =
                    if gives { slow_group::said(self.context, &self.pod, &folder, work).await } else { work.await };
                let reply = reply.map_err(|error| local::failure(&error))?;
                if let (Some(wanted), Some(other)) = (group, reply.other_group) {
                    let message = local::other_group(wanted, &self.spec.name, other);
                    self.context.event(&self.pod, EventType::Warning, "AlreadyMountedVolume", message);
                }
                if self.spec.block {
                    let (global, map) = local::maps(self.uid, &self.spec.name, &reply.host_path);
                    self.say_mapped_at(&global, &map);
                }
                self.mounted(reply.host_path);
                Ok(())
            }
            Source::Nfs { server, path } => {
                if self.spec.block {
                    return Err(Failure::new(Phase::NewMounter, "no block volume plugin matched: kubernetes.io/nfs"));
                }
                let (pod, volume) = (self.uid.to_string(), self.spec.name.clone());
                let (options, read_only) = (self.spec.mount_options.clone(), self.spec.read_only);
                let request = nfs::request(pod, volume, server, path, options, read_only).await?;
                self.one_of_its_pods()?;
                let reply = self.context.ports.verbs.set_up_nfs(request).await;
                let reply = reply.map_err(|error| Failure::verb(Phase::SetUp, &error))?;
                self.mounted(reply.host_path);
                Ok(())
            }
            Source::Fc(source) => {
                let group = self.pod.fs_group.filter(|_| !self.spec.read_only);
                let mut request = fc::request(self.uid, &self.spec, source)?;
                (request.fs_group, request.fs_group_on_root_mismatch) = (group, self.pod.on_root_mismatch);
                self.one_of_its_pods()?;
                self.attached_disk("fc", group, self.context.ports.verbs.set_up_fc(request)).await
            }
            Source::Iscsi(source) => {
                let group = self.pod.fs_group.filter(|_| !self.spec.read_only);
                let namespace = self.pod.identity.as_ref().map_or("default", |identity| identity.namespace.as_str());
                let reader = &*self.context.ports.reader;
                let mut request = iscsi::request(reader, self.uid, namespace, &self.spec, source).await?;
                (request.fs_group, request.fs_group_on_root_mismatch) = (group, self.pod.on_root_mismatch);
                self.one_of_its_pods()?;
                self.attached_disk("iscsi", group, self.context.ports.verbs.set_up_iscsi(request)).await
            }
            Source::Flex(source) => {
                let reader = &*self.context.ports.reader;
                let device = flex::device(reader.node().borrow().as_deref(), self.volume);
                let mut request = flex::request(self.uid, &self.pod, &self.spec, source, device)?;
                let secret = flex::secret(reader, &self.pod, source).await?;
                request.options.iter_mut().for_each(|told| told.secret.clone_from(&secret));
                self.one_of_its_pods()?;
                let _place = self.context.place(&source.driver).await;
                // Giving it to a group is part of it, and told by nobody: what takes long is the driver's mount more often.
                let reply = self.context.ports.verbs.set_up_flex(request).await.map_err(|error| {
                    if source.can.attach && fc::may_be_attached(&error) {
                        self.attempted();
                    }
                    flex::failure(&error)
                })?;
                // Until its file system fills it, the pod does not have it.
                self.mounted_as(Presence::Uncertain, reply.host_path.clone(), reply.relabel);
                self.expand().await?;
                self.mounted_as(Presence::Yes, reply.host_path, reply.relabel);
                Ok(())
            }
            Source::HostPath { path, kind } => {
                super::is_plain(&self.spec, "kubernetes.io/host-path")?;
                let kind = api::HostPathType::from_str_name(&host_path_type(kind));
                let Some(kind) = kind else {
                    return Err(Failure::new(Phase::SetUp, "the hostPath's type is not known"));
                };
                let request = api::CheckHostPathRequest {
                    pod_uid: self.uid.to_string(),
                    volume: self.spec.name.clone(),
                    path: path.clone(),
                    r#type: kind.into(),
                };
                self.one_of_its_pods()?;
                let reply = self.context.ports.verbs.check_host_path(request).await;
                let reply = reply.map_err(|error| Failure::verb(Phase::SetUp, &error))?;
                self.mounted(reply.host_path);
                Ok(())
            }
        }
    }

    /// `kind`: the plugin's, without what all begin with.
    async fn attached_disk(
        &self,
        kind: &str,
        group: Option<i64>,
        work: Reply<'_, api::SetUpVolumeReply>,
    ) -> Result<(), Failure> {
        let folder = format!("{}/volumes/kubernetes.io~{kind}/{}", self.uid, self.spec.name);
        let reply = match group {
            Some(_) => slow_group::said(self.context, &self.pod, &folder, work).await,
            None => work.await,
        };
        let reply = reply.map_err(|error| {
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
    fn one_of_its_pods(&self) -> Result<(), Failure> {
        if self.spec.is_single_pod() && self.context.state().actual.is_used_by_another(self.volume, self.uid) {
            let phase = if self.spec.block { Phase::Device } else { Phase::SetUp };
            return Err(Failure::new(phase, IN_USE));
        }
        Ok(())
    }

    fn device(&self, source: &CsiSource) -> api::CsiDevice {
        api::CsiDevice {
            driver: source.driver.clone(),
            volume_handle: source.handle.clone(),
            block: self.spec.block,
            spec_name: self.spec.name.clone(),
        }
    }

    fn facts(&self, driver: &str) -> Result<DriverFacts, Failure> {
        let found = self.context.ports.reader.driver(driver);
        let found = found.map_err(|error| Failure::object(Phase::NewMounter, error.to_string(), &error))?;
        Ok(DriverFacts::of(found.as_deref()))
    }

    async fn csi(&self, source: &CsiSource) -> Result<(), Failure> {
        let mut before = self.before();
        if before.published == Presence::Yes && !self.remount {
            // Found after a start: the driver has done it, and it was committed. What is missing is what the runtime is told.
            match self.commit_publish(source, None).await {
                Err(failure) if !failure.away => {
                    tracing::warn!(volume = %self.volume, "a mount that was found is not used, its driver is called again: {}",
                        failure.text);
                    self.doubt();
                    before = self.before();
                }
                committed => return committed,
            }
        }
        let facts = self.facts(&source.driver)?;
        self.one_of_its_pods()?;
        let began = Instant::now();
        let context = self.publish_context(source).await;
        if self.attachable && before.staged != Presence::Yes && before.published == Presence::No {
            let (plugin, metrics) = (self.spec.plugin(), &self.context.ports.metrics);
            metrics.observe(&plugin, Operation::VerifyAttached, context.is_ok(), source.migrated, began.elapsed());
        }
        let context = context?;
        let _place = self.context.place(&source.driver).await;
        let (phase, act) = if source.ephemeral { (Phase::SetUp, Act::Publish) } else { (Phase::Device, Act::Stage) };
        let can = self.context.ports.drivers.capabilities(&source.driver, source.migrated).await;
        let can = can.map_err(|error| Failure::act(phase, &error, act, self.spec.block))?;
        // Before the stage, which upstream makes in vain.
        facts.check_lifecycle(&source.driver, source.ephemeral).map_err(|why| {
            let text = format!("kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: {why}");
            Failure::new(Phase::SetUp, text)
        })?;
        // A block volume has a folder to be staged in, whether or not its driver stages.
        let stages = !source.ephemeral && (can.stage || self.spec.block);
        let staging_path = match (stages, before.staged) {
            (false, _) => String::new(),
            (true, Presence::Yes) => self.staging_path(),
            (true, Presence::No | Presence::Uncertain) => self.stage(source, can, &context).await?,
        };
        self.publish(source, can, &facts, context, staging_path, before).await
    }

    fn before(&self) -> Before {
        let state = self.context.state();
        let volume = state.actual.volumes.get(self.volume);
        Before {
            staged: volume.map(|volume| volume.staged).unwrap_or_default(),
            published: volume.and_then(|v| v.pods.get(self.uid)).map(|pod| pod.presence).unwrap_or_default(),
        }
    }

    /// The kernel still lists what was found, but it may be dead (a driver's process that served it has gone): whoever made it makes it
    /// again, as upstream has it done with all that it finds.
    fn doubt(&self) {
        let mut state = self.context.state();
        let Some(volume) = state.actual.volumes.get_mut(self.volume) else { return };
        if volume.staged == Presence::Yes {
            volume.staged = Presence::Uncertain;
        }
        if let Some(published) = volume.pods.get_mut(self.uid) {
            published.presence = Presence::Uncertain;
        }
    }

    fn staging_path(&self) -> String {
        let state = self.context.state();
        state.actual.volumes.get(self.volume).map(|volume| volume.staging_path.clone()).unwrap_or_default()
    }

    /// What the controller's part has told for the node's, of the VolumeAttachment; one question.
    async fn publish_context(&self, source: &CsiSource) -> Result<Pairs, Failure> {
        if !self.attachable {
            return Ok(Pairs::new());
        }
        let (handle, id) = (&source.handle, self.attachment_id(source));
        let got = self.context.ports.reader.attachment(&id).await.map_err(|error| {
            let text = format!("volume {handle} has GET error for volume attachment {id}: {error}");
            Failure::object(Phase::WaitForAttach, text, &error)
        })?;
        if got.metadata.deletion_timestamp.is_some() {
            return Err(Failure::new(Phase::WaitForAttach, "volume attachment is being deleted"));
        }
        let status = got.status.unwrap_or_default();
        match status.attach_error.and_then(|error| error.message) {
            Some(message) if !status.attached => Err(Failure::new(Phase::WaitForAttach, message)),
            _ if !status.attached => {
                let text = format!("volume {handle} is not attached for volume attachment {id}");
                Err(Failure::new(Phase::WaitForAttach, text))
            }
            _ => Ok(status.attachment_metadata.unwrap_or_default()),
        }
    }

    fn attachment_id(&self, source: &CsiSource) -> String {
        names::attachment(&source.handle, &source.driver, &self.context.ports.node_name)
    }

    /// Writes of the actual state, under the lock.
    fn note<T>(&self, source: &CsiSource, write: impl FnOnce(&mut ActualVolume) -> T) -> T {
        let mut state = self.context.state();
        let volume = state.actual.volumes.entry(self.volume.clone()).or_insert_with(|| ActualVolume {
            device: Some(self.device(source)),
            disk: None,
            plugin: self.spec.plugin(),
            staged: Presence::No,
            staging_path: String::new(),
            attachable: Some(self.attachable),
            pods: std::collections::BTreeMap::new(),
            label: String::new(),
            claim_size: self.spec.claim.as_ref().map_or(0, |claim| claim.capacity),
            expansion: Expansion::Possible,
            expansion_failed: false,
            found: false,
        });
        volume.attachable = Some(self.attachable);
        if volume.is_gone() {
            volume.label.clone_from(&self.label);
        }
        let is_unknown = |device: &api::CsiDevice| device.volume_handle.is_empty() || device.spec_name.is_empty();
        if volume.device.as_ref().is_some_and(is_unknown) {
            // It was found, and its file does not say as much, or cannot be read.
            (volume.device, volume.plugin) = (Some(self.device(source)), self.spec.plugin());
        }
        write(volume)
    }

    /// Once a node. Answers the path.
    async fn stage(&self, source: &CsiSource, can: Capabilities, context: &Pairs) -> Result<String, Failure> {
        let verbs = &self.context.ports.verbs;
        let phase = Phase::Device;
        // A driver that does not stage is told nothing.
        let secret = source.stage_secret.as_ref().filter(|_| can.stage);
        let secret =
            secrets::secret(&*self.context.ports.reader, secret, SecretField::Stage, phase, self.spec.block).await?;
        let request = api::PrepareStageRequest {
            device: Some(self.device(source)),
            selinux_mount_context: self.label.clone(),
            node_name: self.context.ports.node_name.clone(),
            attachment_id: self.attachment_id(source),
        };
        let prepared = verbs.prepare_stage(request).await.map_err(|error| Failure::verb(phase, &error))?;
        let path = prepared.staging_path;
        self.note(source, |volume| {
            volume.staged = Presence::Uncertain;
            volume.staging_path.clone_from(&path);
        });
        self.context.state().actual.is_named(self.volume, &self.device(source), None);
        if can.stage {
            let group = self.pod.fs_group;
            let mut request =
                requests::stage(&self.spec, source, can, group, path.clone(), context.clone(), &self.label);
            request.secrets = secret;
            if let Err(error) = self.context.ports.drivers.stage(source, request).await {
                self.stage_failed(source, &error).await;
                return Err(Failure::act(phase, &error, Act::Stage, self.spec.block));
            }
        }
        verbs.commit_stage(self.device(source)).await.map_err(|error| Failure::verb(phase, &error))?;
        self.note(source, |volume| (volume.staged, volume.found) = (Presence::Yes, false));
        Ok(path)
    }

    /// What is known not to be staged leaves nothing; what may be, stays uncertain. So does what was found on the node: the driver
    /// may have staged it in a life before this one, and refuse it now.
    async fn stage_failed(&self, source: &CsiSource, error: &CsiError) {
        if error.outcome() == Outcome::Uncertain || self.note(source, |volume| volume.found) {
            return;
        }
        let verbs = &self.context.ports.verbs;
        let Ok(guard) = verbs.guard("end_stage") else { return };
        let request =
            api::EndStageRequest { device: Some(self.device(source)), guard: Some(guard), folder: String::new() };
        match verbs.end_stage(request).await {
            Ok(_) => self.note(source, |volume| {
                volume.staged = Presence::No;
                volume.staging_path.clear();
            }),
            Err(error) => {
                tracing::warn!(volume = %self.volume, error = &error as &dyn std::error::Error,
                    "the folder of a volume that could not be staged stays");
            }
        }
    }

    async fn publish(
        &self,
        source: &CsiSource,
        can: Capabilities,
        facts: &DriverFacts,
        publish_context: Pairs,
        staging_path: String,
        before: Before,
    ) -> Result<(), Failure> {
        let (phase, ports) = (Phase::SetUp, &self.context.ports);
        if self.context.state().desired.volume(self.uid, self.volume).is_none() {
            // Its pod has ended meanwhile.
            return Ok(());
        }
        let secret = source.publish_secret.as_ref();
        let mut secret = secrets::secret(&*ports.reader, secret, SecretField::Publish, phase, self.spec.block).await?;
        let pod = secrets::pod_info(&self.pod);
        let mut extra_context = if facts.pod_info_on_mount { pod.context(source.ephemeral) } else { Pairs::new() };
        // As upstream: a block volume's driver is given none.
        let tokens = if self.spec.block { Pairs::new() } else { secrets::tokens(&*ports.reader, facts, &pod).await? };
        if facts.tokens_in_secrets {
            secret.extend(tokens)
        } else {
            extra_context.extend(tokens)
        }
        let request = api::PreparePublishRequest {
            pod_uid: self.uid.to_string(),
            data: Some(api::CsiVolumeData {
                device: Some(self.device(source)),
                node_name: ports.node_name.clone(),
                attachment_id: self.attachment_id(source),
                lifecycle_mode: if source.ephemeral { "Ephemeral" } else { "Persistent" }.to_owned(),
                selinux_mount_context: self.label.clone(),
            }),
        };
        let prepared = ports.verbs.prepare_publish(request).await.map_err(|error| Failure::verb(phase, &error))?;
        let target_path = prepared.target_path;
        let mounted_before = before.published == Presence::Yes;
        if !mounted_before {
            self.note_published(source, Presence::Uncertain, String::new(), &target_path, false);
            self.note(source, |volume| volume.expansion = Expansion::Possible);
        }
        self.context.state().actual.is_named(self.volume, &self.device(source), Some(self.uid));
        let mount_group = self.pod.fs_group;
        let label = self.label.clone();
        let publication = Publication { staging_path, target_path, publish_context, mount_group, label, extra_context };
        let mut request = requests::publish(&self.spec, source, can, publication);
        request.secrets = secret;
        if let Err(error) = ports.drivers.publish(source, request).await {
            if error.outcome() != Outcome::Uncertain && !mounted_before && !self.was_found(source) {
                self.unprepare(source).await;
            }
            return Err(Failure::act(phase, &error, Act::Publish, self.spec.block));
        }
        if !mounted_before {
            self.expand().await?;
        }
        let modes = (!source.ephemeral).then_some(self.spec.access_modes.as_slice());
        let gives = !self.spec.block
            && !can.mount_group
            && gives_to_fs_group(&facts.fs_group_policy, self.spec.read_only, &source.fs_type, modes);
        self.commit_publish(source, mount_group.filter(|_| gives)).await
    }

    /// A volume that has become larger than its claim says, before the pod has it. What fails is uncertain, and mounted again.
    async fn expand(&self) -> Result<(), Failure> {
        if self.spec.claim.as_ref().is_none_or(|claim| claim.capacity >= self.spec.capacity) {
            return Ok(());
        }
        let (pod, spec) = (self.pod.clone(), self.spec.clone());
        let Mount { context, volume, uid, .. } = *self;
        Expand { context, volume, uid, pod, spec, moment: Moment::Mount }.run().await
    }

    fn note_published(
        &self,
        source: &CsiSource,
        presence: Presence,
        host_path: String,
        target_path: &str,
        relabel: bool,
    ) {
        let spec_name = self.spec.name.clone();
        self.note(source, |volume| {
            let target_path = match volume.pods.get(self.uid) {
                Some(known) if target_path.is_empty() => known.target_path.clone(),
                _ => target_path.to_owned(),
            };
            let found = presence != Presence::Yes && volume.pods.get(self.uid).is_some_and(|known| known.found);
            let unreadable = false;
            let published = Published { presence, host_path, spec_name, target_path, unreadable, relabel, found };
            volume.pods.insert(self.uid.clone(), published);
        });
    }

    /// The driver may have published it in a life before this one, whatever it says now.
    fn was_found(&self, source: &CsiSource) -> bool {
        self.note(source, |volume| volume.pods.get(self.uid).is_some_and(|published| published.found))
    }

    /// The driver has refused: folder and `vol_data.json` go.
    async fn unprepare(&self, source: &CsiSource) {
        let verbs = &self.context.ports.verbs;
        let Ok(guard) = verbs.guard("end_publish") else { return };
        let request = api::EndPublishRequest {
            pod_uid: self.uid.to_string(),
            device: Some(self.device(source)),
            guard: Some(guard),
        };
        match verbs.end_publish(request).await {
            Ok(_) => self.note(source, |volume| {
                volume.pods.remove(self.uid);
            }),
            Err(error) => {
                tracing::warn!(volume = %self.volume, pod_uid = %self.uid, error = &error as &dyn std::error::Error,
                    "the folder of a volume that could not be published stays");
            }
        }
    }

    /// The last step: kubelet-volnetd looks at what the driver has made, and gives it to the group.
    async fn commit_publish(&self, source: &CsiSource, fs_group: Option<i64>) -> Result<(), Failure> {
        let request = api::CommitPublishRequest {
            pod_uid: self.uid.to_string(),
            device: Some(self.device(source)),
            fs_group,
            fs_group_on_root_mismatch: self.pod.on_root_mismatch,
            read_only: self.spec.read_only,
        };
        let work = self.context.ports.verbs.commit_publish(request);
        let committed = match fs_group {
            Some(_) => {
                let folder = format!("{}/volumes/kubernetes.io~csi/{}/mount", self.uid, self.spec.name);
                slow_group::said(self.context, &self.pod, &folder, work).await
            }
            None => work.await,
        };
        let committed = committed.map_err(|error| Failure::verb(Phase::SetUp, &error))?;
        if self.spec.block && !self.remount {
            self.say_mapped(&committed.host_path);
        }
        let relabel = self.label.is_empty() && !committed.takes_no_labels;
        self.note_published(source, Presence::Yes, committed.host_path, "", relabel);
        Ok(())
    }

    /// Upstream tells of block volumes' maps, and of no other success.
    fn say_mapped(&self, host_path: &str) {
        let staging = self.staging_path();
        let global = staging.strip_suffix(&format!("/staging/{}", self.spec.name));
        let global = global.map_or_else(String::new, |root| format!("{root}/{}/dev", self.spec.name));
        let map = host_path.rsplit_once('/').map_or(host_path, |(folder, _)| folder);
        self.say_mapped_at(&global, map);
    }

    fn say_mapped_at(&self, global: &str, map: &str) {
        for (what, path) in [("globalMapPath", global), ("volumeMapPath", map)] {
            let message = format!("MapVolume.MapPodDevice succeeded for volume {:?} {what} {path:?}", self.spec.name);
            self.context.event(&self.pod, EventType::Normal, "SuccessfulMountVolume", message);
        }
    }

    fn of_no_driver(&self) -> ActualVolume {
        ActualVolume {
            device: None,
            disk: self.spec.place(),
            plugin: self.spec.plugin(),
            staged: Presence::No,
            staging_path: String::new(),
            attachable: Some(self.attachable),
            pods: std::collections::BTreeMap::new(),
            label: String::new(),
            claim_size: self.spec.claim.as_ref().map_or(0, |claim| claim.capacity),
            expansion: Expansion::Possible,
            expansion_failed: false,
            found: false,
        }
    }

    /// A disk may be attached now, whatever came of the rest: it is to be detached.
    fn attempted(&self) {
        let mut state = self.context.state();
        let volume = state.actual.volumes.entry(self.volume.clone()).or_insert_with(|| self.of_no_driver());
        if volume.staged == Presence::No {
            volume.staged = Presence::Uncertain;
        }
    }

    /// A volume that no driver has made is there.
    fn mounted(&self, host_path: String) {
        // No driver has mounted it with a label.
        self.mounted_as(Presence::Yes, host_path, true);
    }

    /// The same of one that no CSI driver has made.
    fn mounted_as(&self, presence: Presence, host_path: String, relabel: bool) {
        let mut state = self.context.state();
        let volume = state.actual.volumes.entry(self.volume.clone()).or_insert_with(|| self.of_no_driver());
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

/// The wire's name of the API's.
fn host_path_type(kind: &str) -> String {
    let kind = if kind.is_empty() { "Unspecified" } else { kind };
    let mut name = "HOST_PATH_TYPE".to_owned();
    for letter in kind.chars() {
        if letter.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}
