//! Volumes of CSI drivers: stage once a node, publish once a pod, with a verb of kubelet-volnetd before and after each call (upstream
//! `pkg/volume/csi`).

use bulkhead_ipc::volnetd as api;
use kubelet_edges::csi::{CsiError, Outcome};
use tokio::time::Instant;

use super::csi_words::Act;
use super::driver_facts::DriverFacts;
use super::mount::Mount;
use super::secrets::{self, SecretField};
use super::{Failure, Phase, slow_group};
use crate::actual_state::{ActualVolume, Expansion, Presence, Published};
use crate::csi::policy::{Capabilities, gives_to_fs_group};
use crate::csi::requests::{self, Pairs, Publication};
use crate::metrics::Operation;
use crate::names;
use crate::spec::CsiSource;

/// What was found on the node when the operation began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Before {
    staged: Presence,
    published: Presence,
}

/// What a driver has published and nobody has looked at yet.
#[derive(Debug, Clone, Copy)]
struct Publishing {
    /// The group that it is to be given to.
    fs_group: Option<i64>,
}

impl Mount<'_> {
    pub(super) async fn set_up_csi(&self, source: &CsiSource) -> Result<(), Failure> {
        let mut before = self.before();
        if before.published == Presence::Yes && !self.remount {
            // Found after a start: the driver has done it, and it was committed. What is missing is what the runtime is told.
            match self.commit_publish(source, None, true).await {
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
        let place = self.context.place(&source.driver).await;
        let (phase, act) = if source.ephemeral { (Phase::SetUp, Act::Publish) } else { (Phase::Device, Act::Stage) };
        let can = self.context.ports.drivers.capabilities(&source.driver, source.migrated).await;
        let can = can.map_err(|error| Failure::capabilities(phase, &error, act, self.spec.block))?;
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
        let published = self.publish(source, can, &facts, context, staging_path, before).await?;
        // Giving it to a group may take hours, and the driver has no part in it.
        drop(place);
        let Some(Publishing { fs_group }) = published else { return Ok(()) };
        self.commit_publish(source, fs_group, false).await
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
        let volume = state
            .actual
            .volumes
            .entry(self.volume.clone())
            .or_insert_with(|| ActualVolume { device: Some(self.device(source)), ..self.not_there_yet() });
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

    /// `None`: the pod does not want it any more.
    async fn publish(
        &self,
        source: &CsiSource,
        can: Capabilities,
        facts: &DriverFacts,
        publish_context: Pairs,
        staging_path: String,
        before: Before,
    ) -> Result<Option<Publishing>, Failure> {
        let (phase, ports) = (Phase::SetUp, &self.context.ports);
        if !self.may_publish() {
            // Its pod has ended meanwhile.
            return Ok(None);
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
        Ok(Some(Publishing { fs_group: mount_group.filter(|_| gives) }))
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
    async fn commit_publish(&self, source: &CsiSource, fs_group: Option<i64>, found: bool) -> Result<(), Failure> {
        let request = api::CommitPublishRequest {
            pod_uid: self.uid.to_string(),
            device: Some(self.device(source)),
            fs_group,
            fs_group_on_root_mismatch: self.pod.on_root_mismatch,
            read_only: self.spec.read_only,
            found,
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
}
