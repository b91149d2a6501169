//! Starting one container: back-off, image, configuration, CreateContainer, StartContainer, and the events and waiting
//! reasons of each way it can fail (upstream `kuberuntime_container.go` startContainer).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_cri::v1;
use bulkhead_types::{ContainerId, SandboxId};
use k8s_openapi::api::core::v1::LifecycleHandler;
use kubelet_model::v1::{Container, Pod};
use tokio_util::sync::CancellationToken;

use super::actions::{ContainerKill, KillReason};
use super::argument_list::{ARGUMENT_LIST_MAX, Environment};
use super::backoff::{CrashLoopBackOff, Undo, held_back_message};
use super::container_config::{self, ContainerConfigError, Instance, container_config, wants_etc_hosts};
use super::env::{self, EnvError, Inputs};
use super::env_files::{self, EnvFile, EnvFileError, EnvFiles};
use super::hosts::etc_hosts;
use super::image_volumes::{self, ImageVolumes};
use super::ports::{HostFiles, HostFilesError, ImageRequest, Images, LogDirectory, ResolvedImage};
use super::request_check::{self, Refusal, Starting};
use super::result::{ActionError, CRASH_LOOP_BACK_OFF};
use super::sandbox_config::SandboxPlan;
use super::sub_paths::SubPath;
use super::sync::{RuntimeManager, SyncContext};
use crate::stages::{self, Stage};
use kubelet_edges::runtime_service::RuntimeService;
use kubelet_model::events::{EventType, PodEvent};
use kubelet_model::objects::Services;
use kubelet_model::objects::named_objects;
use kubelet_model::pod::model::{RunState, RuntimePod};
use kubelet_model::pod::names::restart_count_from_logs;
use kubelet_model::pod::spec::{ContainerKind, PodIdentity, image};
use kubelet_probes::hooks::Hook;
use kubelet_probes::hooks::run::run;

/// The starts of one sync, which share a sandbox.
pub(super) struct Start<'a, R, F, I> {
    pub manager: &'a RuntimeManager<R, F, I>,
    pub pod: &'a Pod,
    pub identity: &'a PodIdentity,
    pub status: &'a RuntimePod,
    pub context: &'a SyncContext<'a>,
    pub plan: &'a SandboxPlan,
    pub sandbox: &'a SandboxId,
    /// Primary first.
    pub ips: &'a [IpAddr],
    /// What came of the pod's image volumes.
    pub image_volumes: &'a image_volumes::Pulled,
}

/// A container that the runtime has made.
struct Created {
    id: ContainerId,
    restart_count: u32,
}

/// Files that were made for an instance.
struct Prepared {
    log: LogDirectory,
    etc_hosts: Option<PathBuf>,
    termination_file: Option<PathBuf>,
}

impl<R: RuntimeService, F: HostFiles, I: Images> Start<'_, R, F, I> {
    /// Starts the container, or says as what it is waiting.
    pub(super) async fn run(
        &self,
        kind: ContainerKind,
        container: &Container,
        target: Option<&str>,
    ) -> Result<(), ActionError> {
        let undo = self.check_back_off(kind, container)?;
        let outcome = self.run_now(kind, container, target).await;
        if let (Err(ActionError { transient: true, .. }), Some(undo)) = (&outcome, undo) {
            // Nothing of the container was tried: it must not wait longer for that.
            self.manager.back_off().undo(undo);
            self.manager.save_back_off();
        }
        outcome
    }

    async fn run_now(
        &self,
        kind: ContainerKind,
        container: &Container,
        target: Option<&str>,
    ) -> Result<(), ActionError> {
        let images = self.image_volumes(kind, container)?;
        let outcome = self.start(kind, container, target, &images).await;
        if !images.is_empty() {
            let error = outcome.as_ref().err().map(|error| (error.reason.as_str(), error.message.as_str()));
            self.manager.images.count_volumes(image_volumes::count(&images, container, error));
        }
        outcome
    }

    async fn start(
        &self,
        kind: ContainerKind,
        container: &Container,
        target: Option<&str>,
        images: &ImageVolumes,
    ) -> Result<(), ActionError> {
        // A pull may take long, and whoever ends the pod does not wait for it.
        let image = unless_cancelled(self.context.cancel, self.image(kind, container)).await??;
        stages::during(Stage::Container, async {
            let created = self.make(kind, container, target, images, &image).await?;
            self.start_created(kind, container, &created).await
        })
        .await
    }

    /// Variables, files and the container itself.
    async fn make(
        &self,
        kind: ContainerKind,
        container: &Container,
        target: Option<&str>,
        images: &ImageVolumes,
        image: &ResolvedImage,
    ) -> Result<Created, ActionError> {
        let target = self.target(target).map_err(|error| self.config_error(kind, container, &error))?;
        let refused = |error: EnvError| self.config_error(kind, container, &error.into());
        let mut environment = self.environment(container).await.map_err(refused)?;
        let mut turn = None;
        if env::is_large(container, &environment).map_err(refused)? {
            // Not kept while it waits, and made anew from what is known then.
            drop(environment);
            turn = unless_cancelled(self.context.cancel, self.manager.large_starts.acquire()).await?.ok();
            environment = self.environment(container).await.map_err(refused)?;
        }
        // Before anything is put into the command: what is given may be variables.
        let options = self.context.container_manager.run_options(self.pod, container).await.inspect_err(|error| {
            if !error.transient {
                self.warn(kind, container, "Failed", format!("Error: {}", error.message));
            }
        })?;
        let mut instance = Instance {
            restart_count: 0,
            image_ref: &image.image_ref,
            image_user: &image.user,
            volumes: self.context.volumes,
            environment: &environment,
            sub_paths: &BTreeMap::new(),
            options: &options,
            images,
            etc_hosts: None,
            termination_file: None,
            target: target.as_deref(),
            runtime: &self.plan.runtime,
        };
        let parts = container_config::check(self.pod, self.identity, container, &instance, self.context.facts)
            .map_err(|error| self.config_error(kind, container, &error))?;
        let sub_paths = self.sub_paths(kind, container, parts).await?;
        instance.sub_paths = &sub_paths;
        let prepared = self.prepare(container).await.map_err(|error| self.files_error(kind, container, &error))?;
        instance.restart_count = match self.status.newest(&container.name) {
            Some(status) => status.restart_count.saturating_add(1),
            None => {
                let former = self.manager.former_lives.next_count(&self.identity.uid, &container.name);
                restart_count_from_logs(prepared.log.highest_index).max(former)
            }
        };
        instance.etc_hosts = prepared.etc_hosts.as_deref();
        instance.termination_file = prepared.termination_file.as_deref();
        let created = self.create(kind, container, &instance).await;
        drop(turn);
        created
    }

    /// Refuses a start that comes too early, else notes it.
    fn check_back_off(&self, kind: ContainerKind, container: &Container) -> Result<Option<Undo>, ActionError> {
        let exited =
            |s: &&kubelet_model::pod::model::ContainerStatus| s.name == container.name && s.state == RunState::Exited;
        let Some(last) = self.status.containers.iter().find(exited) else { return Ok(None) };
        let now = (self.manager.clock)();
        let finished = last.finished_at.unwrap_or(last.created_at);
        let key = CrashLoopBackOff::key(self.identity, container);
        let held = {
            let mut back_off = self.manager.back_off();
            match back_off.held_back(&key, finished, now) {
                Some(held) => Ok(held),
                None => Err(back_off.next(&key, finished, now)),
            }
        };
        let held = match held {
            Ok(held) => held,
            Err(undo) => {
                self.manager.save_back_off();
                return Ok(Some(undo));
            }
        };
        let message = format!("Back-off restarting failed container {} in pod {}", container.name, self.identity);
        self.warn(kind, container, "BackOff", message);
        let message = held_back_message(held.delay, &container.name, self.identity);
        Err(ActionError { back_off_until: Some(held.until), ..ActionError::new(CRASH_LOOP_BACK_OFF, message) })
    }

    async fn image(&self, kind: ContainerKind, container: &Container) -> Result<ResolvedImage, ActionError> {
        let request = ImageRequest {
            pod: self.identity,
            container: Some((kind, &container.name)),
            image: image(container),
            pull_policy: container.image_pull_policy.as_deref().unwrap_or(""),
            sandbox_config: &self.plan.config,
            object: self.pod,
        };
        stages::during(Stage::Image, self.manager.images.ensure_image(request)).await.map_err(|failure| {
            self.warn(kind, container, "Failed", format!("Error: {}", failure.reason));
            ActionError { back_off_until: failure.back_off_until, ..ActionError::new(failure.reason, failure.message) }
        })
    }

    /// Its volumes that are images.
    fn image_volumes(&self, kind: ContainerKind, container: &Container) -> Result<ImageVolumes, ActionError> {
        let failures = match image_volumes::of_container(self.image_volumes, container) {
            Ok(images) => return Ok(images),
            Err(failures) => failures,
        };
        let mut waits = ActionError::new("ErrImagePull", "");
        for failure in failures {
            self.warn(kind, container, "Failed", format!("Error: {}", failure.reason));
            let back_off_until = failure.back_off_until;
            waits = ActionError { back_off_until, ..ActionError::new(failure.reason, failure.message) };
        }
        Err(waits)
    }

    /// Container id of the target that an ephemeral container names.
    fn target(&self, name: Option<&str>) -> Result<Option<String>, ContainerConfigError> {
        let Some(name) = name else { return Ok(None) };
        let found = self.status.newest(name).ok_or_else(|| ContainerConfigError::NoTarget(name.to_owned()))?;
        Ok(Some(found.id.to_string()))
    }

    /// Asks for the objects that the environment names, then makes it.
    async fn environment(&self, container: &Container) -> Result<Environment, EnvError> {
        let namespace = self.identity.namespace.as_str();
        let objects = named_objects::fetch(self.context.objects, namespace, env::wanted(container)).await;
        let services = self.context.objects.services();
        let services = Services { known: &services.services, synced: services.synced };
        let files = self.env_files(container).await;
        let inputs = Inputs { pod_ips: self.ips, services, objects: &objects, files: &files };
        env::environment(self.pod, container, inputs, self.context.facts)
    }

    /// Reads the files that the environment names: what other containers of the pod have written by now.
    async fn env_files(&self, container: &Container) -> EnvFiles {
        let mut files = EnvFiles::new();
        if !self.context.facts.env_files {
            return files;
        }
        let mut size = 0;
        for ((volume, path), keys) in env_files::wanted(container) {
            let file = match self.context.volumes.get(&volume) {
                None => Err(EnvFileError::NoVolume(volume.clone())),
                Some(_) if size > ARGUMENT_LIST_MAX => Err(EnvFileError::TooLong),
                Some(mounted) => match self.manager.files.read_env_file(self.identity, &volume, &path).await {
                    Ok(bytes) => Ok(EnvFile::read(mounted.host_path.join(&path), &bytes, &keys)),
                    Err(error) if error.transient => Err(EnvFileError::Away(error.message)),
                    Err(error) => {
                        let pod = self.identity;
                        tracing::warn!(%pod, container = %container.name, volume, %error, "cannot read a file with variables");
                        Err(EnvFileError::Unusable)
                    }
                },
            };
            size += file.as_ref().map_or(0, EnvFile::size);
            files.insert((volume, path), file);
        }
        files
    }

    /// One after another, in the order of the mounts: a part may be inside of one that is made before.
    async fn sub_paths(
        &self,
        kind: ContainerKind,
        container: &Container,
        parts: Vec<SubPath>,
    ) -> Result<BTreeMap<usize, PathBuf>, ActionError> {
        let mut found = BTreeMap::new();
        for part in parts {
            let failed = ContainerConfigError::sub_path(container, &part.volume);
            let Some(volume) = self.context.volumes.get(&part.volume) else {
                return Err(self.config_error(kind, container, &failed));
            };
            match self.manager.files.prepare_sub_path(self.identity, &container.name, &part, volume).await {
                Ok(path) => {
                    found.insert(part.index, path);
                }
                Err(error) if error.transient => return Err(self.files_error(kind, container, &error)),
                Err(error) => {
                    let (pod, volume) = (self.identity, &part.volume);
                    tracing::warn!(%pod, container = %container.name, volume, %error, "cannot prepare a subPath");
                    return Err(self.config_error(kind, container, &failed));
                }
            }
        }
        Ok(found)
    }

    async fn prepare(&self, container: &Container) -> Result<Prepared, HostFilesError> {
        let (files, pod) = (&self.manager.files, self.identity);
        let hosts = etc_hosts(self.pod, &self.plan.host_name, self.ips).filter(|_| wants_etc_hosts(container));
        let write_hosts = async {
            match &hosts {
                Some(hosts) => files.write_etc_hosts(pod, hosts).await.map(Some),
                None => Ok(None),
            }
        };
        let wants_message = container.termination_message_path.as_deref().is_some_and(|p| !p.is_empty());
        let make_termination = async {
            match wants_message {
                true => files.create_termination_file(pod, &container.name).await.map(Some),
                false => Ok(None),
            }
        };
        let log = files.prepare_log_directory(pod, Some(&container.name));
        let (log, etc_hosts, termination_file) = tokio::try_join!(log, write_hosts, make_termination)?;
        Ok(Prepared { log, etc_hosts, termination_file })
    }

    async fn create(
        &self,
        kind: ContainerKind,
        container: &Container,
        instance: &Instance<'_>,
    ) -> Result<Created, ActionError> {
        let config = container_config(self.pod, self.identity, container, instance, self.context.facts)
            .map_err(|error| self.config_error(kind, container, &error))?;
        self.look_again(container, instance, &config)
            .map_err(|refusal| self.config_error(kind, container, &refusal.into()))?;
        self.context.resizer.making(container).map_err(|error| ActionError {
            transient: true,
            ..ActionError::new("CreateContainerError", format!("noting the container's resources: {error}"))
        })?;
        let created = self.manager.api.create_container(self.sandbox, config, &self.plan.config).await;
        let id = created.map_err(|error| {
            self.warn(kind, container, "Failed", format!("Error: {}", error.message));
            let transient = error.is_unavailable();
            ActionError { transient, ..ActionError::new("CreateContainerError", error.message) }
        })?;
        self.context.container_manager.created(self.pod, container, &id, instance.options);
        self.say(kind, container, EventType::Normal, "Created", "Container created".to_owned());
        Ok(Created { id, restart_count: instance.restart_count })
    }

    async fn start_created(
        &self,
        kind: ContainerKind,
        container: &Container,
        Created { id, restart_count }: &Created,
    ) -> Result<(), ActionError> {
        let post_start = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.post_start.as_ref());
        let before = self.status.newest(&container.name);
        let _closed = post_start.map(|_| self.manager.post_start_gate.close(id, before));
        self.manager.api.start_container(id).await.map_err(|error| {
            // With the id in it, no two events would be alike and none could be counted.
            let text = error.message.replace(id.as_str(), &container.name);
            self.warn(kind, container, "Failed", format!("Error: {text}"));
            let transient = error.is_unavailable();
            ActionError { transient, ..ActionError::new("RunContainerError", error.message) }
        })?;
        self.say(kind, container, EventType::Normal, "Started", "Container started".to_owned());
        let link = self.manager.files.link_container_log(self.identity, &container.name, *restart_count, id);
        if let Err(error) = link.await {
            tracing::warn!(pod = %self.identity, container = %container.name, %error, "failed to link container log");
        }
        match post_start {
            Some(handler) => stages::during(Stage::PostStart, self.post_start(kind, container, id, handler)).await,
            None => Ok(()),
        }
    }

    /// Runs the hook; a container whose hook fails is ended. A hook that is cut off because the pod ends has not failed.
    async fn post_start(
        &self,
        kind: ContainerKind,
        container: &Container,
        id: &ContainerId,
        handler: &LifecycleHandler,
    ) -> Result<(), ActionError> {
        let hook = Hook {
            pod: Some(self.identity.clone()),
            kind,
            container: container.name.clone(),
            id: id.clone(),
            ports: container.ports.clone().unwrap_or_default(),
            ip: self.ips.first().copied(),
            handler: handler.clone(),
        };
        let (manager, cancel) = (self.manager, self.context.cancel);
        let run = manager.api.unhurried(run(&manager.api, &*manager.events, &hook, Duration::ZERO));
        let Err(failed) = unless_cancelled(cancel, run).await? else { return Ok(()) };
        // The text is for the status alone: it could hold what the container keeps to itself.
        self.warn(kind, container, "FailedPostStartHook", "PostStartHook failed".to_owned());
        let kill = ContainerKill {
            id: id.clone(),
            name: container.name.clone(),
            message: "FailedPostStartHook".to_owned(),
            reason: KillReason::Unknown,
        };
        let killed = manager.kill_container(self.pod, self.identity, &kill, None, hook.ip);
        if let Err(error) = unless_cancelled(cancel, killed).await? {
            let (pod, container) = (self.identity, &container.name);
            tracing::warn!(%pod, %container, %error, "cannot end the container whose postStart hook failed");
        }
        Err(ActionError::new("PostStartHookError", failed.0))
    }

    /// Whether the request grants no more than the spec.
    fn look_again(
        &self,
        container: &Container,
        instance: &Instance<'_>,
        config: &v1::ContainerConfig,
    ) -> Result<(), Refusal> {
        let known = self.context.known(self.pod, self.identity, &self.plan.runtime);
        let starting =
            Starting { container, image_user: instance.image_user, options: instance.options, target: instance.target };
        let checked = request_check::container(&known, &starting, config, &self.plan.config);
        checked.inspect_err(|refusal| self.manager.refused("CreateContainer", self.identity, refusal))
    }

    fn config_error(&self, kind: ContainerKind, container: &Container, error: &ContainerConfigError) -> ActionError {
        let transient = error.is_transient();
        if !transient {
            self.warn(kind, container, "Failed", format!("Error: {error}"));
        }
        ActionError { transient, ..ActionError::new("CreateContainerConfigError", error.to_string()) }
    }

    fn files_error(&self, kind: ContainerKind, container: &Container, error: &HostFilesError) -> ActionError {
        if !error.transient {
            self.warn(kind, container, "Failed", format!("Error: {error}"));
        }
        ActionError { transient: error.transient, ..ActionError::new("CreateContainerConfigError", error.to_string()) }
    }

    fn warn(&self, kind: ContainerKind, container: &Container, reason: &'static str, message: String) {
        self.say(kind, container, EventType::Warning, reason, message);
    }

    fn say(&self, kind: ContainerKind, container: &Container, event: EventType, reason: &'static str, message: String) {
        self.manager.event(PodEvent::container(self.identity, (kind, &container.name), event, reason, message));
    }
}

/// Waits for something that nobody needs once the pod ends.
pub(super) fn unless_cancelled<T>(
    cancel: &CancellationToken,
    what: impl Future<Output = T>,
) -> impl Future<Output = Result<T, ActionError>> {
    // Boxed, as in `stages::during`.
    let what = Box::pin(what);
    async move {
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(ActionError::cancelled()),
            done = what => Ok(done),
        }
    }
}
