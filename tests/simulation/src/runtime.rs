//! A model of a container runtime behind the CRI. Calls take time on the way there and back; what changes something may be refused,
//! done without an answer, or interrupted by the death of who asked. What is done is done, whether the caller still waits or not.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bulkhead_cri::v1;
use bulkhead_cri::v1::image_service_server::{ImageService, ImageServiceServer};
use bulkhead_cri::v1::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use bulkhead_simulation_kernel as kernel;
use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{UnboundedReceiverStream, UnixListenerStream};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use crate::node::PROBE_TIMEOUT;
use crate::schedule::{Behaviour, CallFault, Peer, ProbeKind};
use crate::stop::Stop;
use crate::world::{Command, Container, Sandbox, Shared, State, World, uid_of, version_of};

type Answer<T> = Result<Response<T>, Status>;

/// What lives on while the runtime's service restarts: containers.
#[derive(Debug, Clone)]
pub struct Model {
    pub world: Shared,
    /// Of the machine, not of the service.
    pub machine: Handle,
}

/// The service goes, and what it runs runs on. Nobody hears of what happens meanwhile, and how a container ends then stays unknown.
pub fn goes(world: &mut World) {
    world.listeners.clear();
    world.runtime_is_away = true;
}

/// Serves until it is dropped.
pub async fn serve(model: Model, listener: std::os::unix::net::UnixListener) {
    {
        let mut world = model.world.lock();
        world.runtime_is_away = false;
        world.logs_are_opened_again();
    }
    let Ok(listener) = UnixListener::from_std(listener) else { return };
    let runtime = RuntimeServiceServer::new(model.clone()).max_decoding_message_size(16 << 20);
    let images = ImageServiceServer::new(model);
    let server = tonic::transport::Server::builder().add_service(runtime).add_service(images);
    // It ends with the process.
    let _ = server.serve_with_incoming(UnixListenerStream::new(listener)).await;
}

fn pause(milliseconds: u64) -> tokio::time::Sleep {
    tokio::time::sleep(Duration::from_millis(milliseconds))
}

/// Runs something that changes the world and takes time there; what was begun is finished, whoever waits for it.
pub async fn change<T: Send + 'static>(
    world: &Shared,
    machine: &Handle,
    peer: Peer,
    what: String,
    act: impl AsyncFnOnceSend<T>,
) -> Result<T, Status> {
    let asked_for_at = kernel::now();
    let (there, back, fault, boots) = {
        let mut world = world.lock();
        let (there, back) = world.latency(peer);
        (there, back, world.take_fault(peer), world.boots)
    };
    let late = match fault {
        Some(CallFault::Late(by)) => by,
        _ => 0,
    };
    let (shared, of_machine) = (world.clone(), machine.clone());
    let waits = Arc::new(());
    let waited_for = Arc::downgrade(&waits);
    let work = machine.spawn(async move {
        pause(there + late).await;
        let caller = Caller(waited_for);
        {
            let mut world = shared.lock();
            if world.boots != boots {
                return Err(Status::unavailable("the machine has lost its power"));
            }
            world.is_waited_for = caller.waits();
            world.asked_for_at = asked_for_at;
            // What nobody waits for when its turn comes is mostly not begun, and now and then all the same.
            if !world.is_waited_for && (peer == Peer::Volnetd || world.dice.percent(70)) {
                return Err(Status::cancelled("nobody waits for it"));
            }
        }
        match fault {
            Some(CallFault::Refused) => {
                shared.lock().tell(name_of(peer), format!("refuses {what}"));
                return Err(Status::internal("refused by the simulation"));
            }
            Some(CallFault::DeathBefore) => {
                let mut world = shared.lock();
                world.tell(name_of(peer), format!("kubelet-syncd dies before {what} is done"));
                world.commands.push(Command::KillSyncd { down: 100 });
                return Err(Status::unavailable("the caller is dead"));
            }
            Some(CallFault::AnswerLost) => {
                if let Some((lasts, status)) = act.stalls() {
                    shared.lock().tell(name_of(peer), format!("gets nowhere with {what}"));
                    tokio::time::sleep(lasts).await;
                    shared.lock().tell(name_of(peer), format!("gives {what} up"));
                    return Err(status);
                }
            }
            _ => {}
        }
        let done = act.run(shared.clone(), caller).await;
        let happened = std::mem::take(&mut shared.lock().happened);
        for event in happened {
            emit(&shared, &of_machine, &event);
        }
        {
            let mut world = shared.lock();
            let how = match &done {
                Ok(_) => "does".to_owned(),
                Err(status) => format!("cannot ({}) do", status.message()),
            };
            world.tell(name_of(peer), format!("{how} {what}"));
            match fault {
                Some(CallFault::DeathAfter) => {
                    world.tell(name_of(peer), format!("kubelet-syncd dies before it has the answer to {what}"));
                    world.commands.push(Command::KillSyncd { down: 100 });
                }
                Some(CallFault::AnswerLost) => world.tell(name_of(peer), format!("the answer to {what} is lost")),
                _ => {}
            }
        }
        if fault == Some(CallFault::AnswerLost) {
            std::future::pending::<()>().await;
        }
        pause(back).await;
        done
    });
    // Whoever waits for an answer that is lost waits until its own deadline.
    let done = work.await;
    drop(waits);
    done.unwrap_or_else(|_| Err(Status::unavailable("the model is gone")))
}

pub fn name_of(peer: Peer) -> &'static str {
    match peer {
        Peer::Runtime => "runtime",
        Peer::Volnetd => "kubelet-volnetd",
    }
}

/// Who has asked for a change.
#[derive(Debug)]
pub struct Caller(Weak<()>);

impl Caller {
    pub fn waits(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// What [`change`] does with the world.
pub trait AsyncFnOnceSend<T>: Send + 'static {
    /// What [`CallFault::AnswerLost`] is to this call where the peer itself does not wait for ever: how long it does, and what it says
    /// then.
    fn stalls(&self) -> Option<(Duration, Status)> {
        None
    }

    fn run(self, world: Shared, caller: Caller) -> Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;
}

impl<T, F> AsyncFnOnceSend<T> for F
where
    F: FnOnce(&mut World) -> Result<T, Status> + Send + 'static,
    T: Send + 'static,
{
    fn run(self, world: Shared, _: Caller) -> Pin<Box<dyn Future<Output = Result<T, Status>> + Send>> {
        Box::pin(async move { self(&mut world.lock()) })
    }
}

/// How long containerd goes on with a pull of which nothing comes: `image_pull_progress_timeout`, as it is where nobody sets it.
const PULL_PROGRESS_TIMEOUT: Duration = Duration::from_secs(300);

/// Pulls an image. Its caller sends no deadline, neither here nor upstream (`cri-client/pkg/remote_image.go` PullImage), since a large
/// image takes as long as it takes. So an answer that never comes on a connection that stands would hold the pod for ever; but the
/// other end is not like that: a registry may stall and containerd then ends the pull, its own context being cancelled
/// (`internal/cri/server/images/image_pull.go` pullProgressReporter).
struct Pull {
    name: String,
}

impl AsyncFnOnceSend<()> for Pull {
    fn stalls(&self) -> Option<(Duration, Status)> {
        let text = format!("failed to pull and unpack image {:?}: context canceled", self.name);
        Some((PULL_PROGRESS_TIMEOUT, Status::cancelled(text)))
    }

    fn run(self, shared: Shared, _: Caller) -> Pin<Box<dyn Future<Output = Result<(), Status>> + Send>> {
        Box::pin(async move {
            shared.lock().images.insert(self.name);
            Ok(())
        })
    }
}

/// A container ends, and the runtime's listeners hear of it.
pub fn ended(shared: &Shared, machine: &Handle, id: &str, code: i32, reason: &str) {
    let event = {
        let mut world = shared.lock();
        world.exit(id, code, reason).then(|| event(&world, id, v1::ContainerEventType::ContainerStoppedEvent))
    };
    if let Some(event) = event {
        emit(shared, machine, &event);
    }
}

/// A sandbox ends by itself, with all that runs in it, and the runtime's listeners hear of it.
pub fn sandbox_dies(shared: &Shared, machine: &Handle, id: &str) {
    let inside: Vec<String> = {
        let mut world = shared.lock();
        if let Some(sandbox) = world.sandboxes.get_mut(id) {
            sandbox.ready = false;
        }
        world.tell("runtime", format!("sandbox {id} has died"));
        world.containers.values().filter(|c| c.sandbox == id).map(|c| c.id.clone()).collect()
    };
    for container in inside {
        ended(shared, machine, &container, 255, "");
    }
    let told = event(&shared.lock(), id, v1::ContainerEventType::ContainerStoppedEvent);
    emit(shared, machine, &told);
}

/// Tells the listeners, as the weather lets them hear it.
fn emit(shared: &Shared, machine: &Handle, event: &v1::ContainerEventResponse) {
    let late = {
        let mut world = shared.lock();
        let now = kernel::now();
        if now < world.weather.lost_until {
            return;
        }
        let twice = now < world.weather.doubled_until;
        if now >= world.weather.late_until {
            return send(&mut world, event, twice);
        }
        (world.weather.late_by, twice)
    };
    let (shared, event) = (shared.clone(), event.clone());
    machine.spawn(async move {
        let (late, twice) = late;
        pause(late).await;
        send(&mut shared.lock(), &event, twice);
    });
}

fn send(world: &mut World, event: &v1::ContainerEventResponse, twice: bool) {
    for _ in 0..if twice { 2 } else { 1 } {
        world.listeners.retain(|listener| listener.send(Ok(event.clone())).is_ok());
    }
}

/// An event of a container or a sandbox that is there. As with containerd it has all containers of the sandbox.
fn event(world: &World, id: &str, kind: v1::ContainerEventType) -> v1::ContainerEventResponse {
    let sandbox = world.containers.get(id).map_or(id, |container| container.sandbox.as_str());
    event_in(world, id, sandbox, kind)
}

/// The same of what may be gone.
fn event_in(world: &World, id: &str, sandbox: &str, kind: v1::ContainerEventType) -> v1::ContainerEventResponse {
    v1::ContainerEventResponse {
        container_id: id.to_owned(),
        container_event_type: kind.into(),
        created_at: World::wall(),
        pod_sandbox_status: world.sandboxes.get(sandbox).map(sandbox_status),
        containers_statuses: world.containers.values().filter(|c| c.sandbox == sandbox).map(container_status).collect(),
    }
}

fn sandbox_state(sandbox: &Sandbox) -> i32 {
    let state = if sandbox.ready { v1::PodSandboxState::SandboxReady } else { v1::PodSandboxState::SandboxNotready };
    state.into()
}

fn container_state(container: &Container) -> i32 {
    match container.state {
        State::Created => v1::ContainerState::ContainerCreated,
        State::Running => v1::ContainerState::ContainerRunning,
        State::Exited => v1::ContainerState::ContainerExited,
    }
    .into()
}

fn sandbox_status(sandbox: &Sandbox) -> v1::PodSandboxStatus {
    v1::PodSandboxStatus {
        id: sandbox.id.clone(),
        metadata: sandbox.config.metadata.clone(),
        state: sandbox_state(sandbox),
        created_at: sandbox.created,
        network: Some(v1::PodSandboxNetworkStatus { ip: sandbox.ip.clone(), additional_ips: Vec::new() }),
        linux: Some(v1::LinuxPodSandboxStatus::default()),
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: String::new(),
    }
}

fn container_status(container: &Container) -> v1::ContainerStatus {
    let image = container.config.image.clone();
    v1::ContainerStatus {
        id: container.id.clone(),
        metadata: container.config.metadata.clone(),
        state: container_state(container),
        created_at: container.created,
        started_at: container.started,
        finished_at: container.finished,
        exit_code: container.exit_code,
        image_ref: image_ref(container),
        image,
        reason: container.reason.clone(),
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
        mounts: container.config.mounts.clone(),
        log_path: log_path(container),
        resources: container
            .config
            .linux
            .as_ref()
            .map(|linux| v1::ContainerResources { linux: linux.resources.clone() }),
        ..Default::default()
    }
}

/// As containerd: the id of the image.
fn image_ref(container: &Container) -> String {
    container.config.image.as_ref().map(|image| image_id(&image.image)).unwrap_or_default()
}

fn log_path(container: &Container) -> String {
    let label = |key: &str| container.config.labels.get(key).cloned().unwrap_or_default();
    let (namespace, name, uid) =
        (label("io.kubernetes.pod.namespace"), label("io.kubernetes.pod.name"), label("io.kubernetes.pod.uid"));
    format!("{}/{namespace}_{name}_{uid}/{}", crate::node::POD_LOGS, container.config.log_path)
}

fn selected(
    wanted: &std::collections::BTreeMap<String, String>,
    labels: &std::collections::BTreeMap<String, String>,
) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}

impl Model {
    /// A question: the answer is of one moment, and may be old when it comes.
    async fn ask<T>(&self, read: impl FnOnce(&World) -> Result<T, Status> + Send) -> Answer<T> {
        let (there, back) = self.world.lock().latency(Peer::Runtime);
        pause(there).await;
        let answer = read(&self.world.lock());
        pause(back).await;
        answer.map(Response::new)
    }

    async fn change<T: Send + 'static>(
        &self,
        what: String,
        act: impl FnOnce(&mut World) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        change(&self.world, &self.machine, Peer::Runtime, what, act).await.map(Response::new)
    }

    /// Its own end, if it has one.
    fn live(&self, id: &str, behaviour: Behaviour) {
        let Some(after) = behaviour.ends_after else { return };
        let (world, machine, id) = (self.world.clone(), self.machine.clone(), id.to_owned());
        self.machine.spawn(async move {
            pause(after).await;
            ended(&world, &machine, &id, behaviour.exit_code, "");
        });
    }
}

impl World {
    /// Runs a probe's command: whether it passes.
    fn probe(&mut self, id: &str, command: &[String], is_late: bool) -> Result<bool, Status> {
        let Some(container) = self.containers.get(id).cloned() else { return Err(no_container(id)) };
        if container.state != State::Running {
            return Err(Status::unknown(format!("container {id} is not running")));
        }
        let shape = self.past.get(container.uid()).and_then(|past| past.shape.clone()).unwrap_or_default();
        let shape = shape.init.into_iter().chain(shape.containers).find(|c| c.name == container.name());
        let probe =
            shape.as_ref().and_then(|shape| shape.probes.iter().find(|probe| probe.words() == command).copied());
        let Some((shape, probe)) = shape.zip(probe) else {
            return Err(Status::invalid_argument(format!("the model does not know the command {command:?}")));
        };
        self.check_probe(&container, &shape, probe.kind);
        let since = kernel::now().saturating_sub(container.began);
        let passes = probe.passes(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        if let Some(found) = self.containers.get_mut(id) {
            let probed = found.probed.entry(probe.kind).or_default();
            probed.failures = if passes && !is_late { 0 } else { probed.failures + 1 };
            probed.has_passed |= passes;
        }
        if passes
            && probe.kind == ProbeKind::Startup
            && let Some(sandbox) = self.sandboxes.get_mut(&container.sandbox)
        {
            sandbox.passed.insert(shape.name.clone());
        }
        Ok(passes)
    }
}

fn no_sandbox(id: &str) -> Status {
    Status::not_found(format!("sandbox {id}: not found"))
}

pub(crate) fn no_container(id: &str) -> Status {
    Status::not_found(format!("container {id}: not found"))
}

fn run_pod_sandbox(world: &mut World, config: v1::PodSandboxConfig) -> Result<String, Status> {
    let metadata = config.metadata.clone().unwrap_or_default();
    // As containerd: the name of a sandbox is reserved.
    let taken = world.sandboxes.values().find(|s| s.config.metadata.as_ref() == Some(&metadata)).map(|s| s.id.clone());
    if let Some(taken) = taken {
        let name = format!("{}_{}_{}_{}", metadata.name, metadata.namespace, metadata.uid, metadata.attempt);
        return Err(Status::unknown(format!("failed to reserve sandbox name {name:?}: it is reserved for {taken:?}")));
    }
    let id = world.next_id("s");
    let address = id.trim_start_matches('s').parse::<u64>().unwrap_or(0) % 250;
    let sandbox = Sandbox {
        id: id.clone(),
        config,
        ready: true,
        created: World::wall(),
        ip: format!("10.88.0.{}", address + 2),
        done: Default::default(),
        ran: Default::default(),
        passed: Default::default(),
        life: world.life,
        is_ghost: !world.is_waited_for,
    };
    let uid = metadata.uid.clone();
    world.check_sandbox(&uid);
    world.count_change(&uid);
    let shape = version_of(&sandbox).and_then(|version| {
        world.wanted.values().find(|wanted| wanted.version == version).map(|wanted| wanted.shape.clone())
    });
    let past = world.past.entry(uid.clone()).or_default();
    if past.shape.is_none() {
        past.shape = shape;
        world.lives += 1;
    }
    world.sandboxes.insert(id.clone(), sandbox);
    if world.is_waited_for && !world.cgroups.contains(&uid) {
        let pod = world.short(&uid);
        world.breaks("place-is-there", format!("the sandbox of {pod} is made without its cgroup"));
    }
    for kind in [v1::ContainerEventType::ContainerCreatedEvent, v1::ContainerEventType::ContainerStartedEvent] {
        world.happens(&id, kind);
    }
    Ok(id)
}

fn create_container(world: &mut World, request: v1::CreateContainerRequest) -> Result<String, Status> {
    let sandbox = request.pod_sandbox_id;
    let config = request.config.unwrap_or_default();
    world.check_image(&config);
    let Some(found) = world.sandboxes.get(&sandbox) else { return Err(no_sandbox(&sandbox)) };
    // As containerd 2.x it does not ask whether that is ready; the container then cannot start.
    // As containerd (`internal/cri/server/helpers.go` makeContainerName): in all sandboxes of the pod.
    let pod = |sandbox: &Sandbox| sandbox.config.metadata.clone().map(|m| (m.name, m.namespace, m.uid));
    let of_pod = pod(found);
    let reserved = world.containers.values().find(|c| {
        c.config.metadata == config.metadata
            && world.sandboxes.get(&c.sandbox).is_some_and(|other| pod(other) == of_pod)
    });
    if let Some(taken) = reserved.map(|c| c.id.clone()) {
        return Err(Status::unknown(format!("failed to reserve container name: it is reserved for {taken:?}")));
    }
    let behaviour = Behaviour::read(&config.command)
        .ok_or_else(|| Status::invalid_argument(format!("the model does not know the command {:?}", config.command)))?;
    let cpus = config.linux.as_ref().and_then(|linux| linux.resources.as_ref()).map(|r| r.cpuset_cpus.clone());
    let cpus = cpus.unwrap_or_default();
    let id = world.next_id("c");
    let container = Container {
        id: id.clone(),
        sandbox,
        config,
        behaviour,
        state: State::Created,
        created: World::wall(),
        started: 0,
        finished: 0,
        exit_code: 0,
        reason: String::new(),
        cpus,
        is_ghost: false,
        is_stopped: false,
        is_to_stop: false,
        began: kernel::now(),
        probed: Default::default(),
    };
    world.count_change(container.uid());
    if !world.is_waited_for {
        world.past.entry(container.uid().to_owned()).or_default().unsure.insert(container.name().to_owned());
    }
    world.containers.insert(id.clone(), container);
    world.happens(&id, v1::ContainerEventType::ContainerCreatedEvent);
    Ok(id)
}

/// The container's behaviour, from when on it runs.
fn start_container(world: &mut World, id: &str) -> Result<Behaviour, Status> {
    let Some(container) = world.containers.get(id).cloned() else { return Err(no_container(id)) };
    if container.state != State::Created {
        return Err(Status::unknown(format!("container {id} is not in created state")));
    }
    if !world.sandboxes.get(&container.sandbox).is_some_and(|sandbox| sandbox.ready) {
        return Err(Status::unknown(format!("sandbox {} is not running", container.sandbox)));
    }
    world.count_change(container.uid());
    if world.is_waited_for {
        world.check_start(id);
    }
    let is_ghost = !world.is_waited_for;
    if let Some(found) = world.containers.get_mut(id) {
        found.is_ghost = is_ghost;
        found.state = State::Running;
        found.began = kernel::now();
        found.started = World::wall();
    }
    if !is_ghost {
        world.check_room_in_cgroup(container.uid());
    }
    let logs = world.logs.entry(container.uid().to_owned()).or_default();
    logs.insert(container.name().to_owned(), container.restart_count());
    world.log_begins(id);
    let life = world.life;
    world.hooks.starts(id, life);
    if let Some(sandbox) = world.sandboxes.get_mut(&container.sandbox) {
        sandbox.ran.insert(container.name().to_owned());
    }
    world.happens(id, v1::ContainerEventType::ContainerStartedEvent);
    Ok(container.behaviour)
}

fn stop_pod_sandbox(world: &mut World, id: &str) -> Result<(), Status> {
    let Some(sandbox) = world.sandboxes.get(id).cloned() else { return Err(no_sandbox(id)) };
    let uid = uid_of(&sandbox).to_owned();
    let running: Vec<String> =
        world.running(&uid).filter(|container| container.sandbox == id).map(|container| container.id.clone()).collect();
    if sandbox.ready {
        world.count_change(&uid);
        world.check_stop(&uid, &format!("sandbox {id}"));
    }
    if let Some(sandbox) = world.sandboxes.get_mut(id) {
        sandbox.ready = false;
        // Its network is taken down, and the address is free for others.
        sandbox.ip.clear();
    }
    for container in running {
        world.exit(&container, 137, "");
        world.happens(&container, v1::ContainerEventType::ContainerStoppedEvent);
    }
    if sandbox.ready {
        world.happens(id, v1::ContainerEventType::ContainerStoppedEvent);
    }
    Ok(())
}

fn remove_pod_sandbox(world: &mut World, id: &str) -> Result<(), Status> {
    if !world.sandboxes.contains_key(id) {
        return Ok(());
    }
    stop_pod_sandbox(world, id)?;
    let Some(found) = world.sandboxes.get(id) else { return Ok(()) };
    let uid = uid_of(found).to_owned();
    world.count_change(&uid);
    let inside: Vec<String> = world.containers.values().filter(|c| c.sandbox == id).map(|c| c.id.clone()).collect();
    for container in inside {
        world.goes(&container, id);
    }
    world.happens(id, v1::ContainerEventType::ContainerDeletedEvent);
    world.sandboxes.remove(id);
    Ok(())
}

fn remove_container(world: &mut World, id: &str) -> Result<(), Status> {
    let Some(container) = world.containers.get(id).cloned() else { return Ok(()) };
    let uid = container.uid().to_owned();
    world.count_change(&uid);
    if container.state == State::Running {
        world.check_stop(&uid, &format!("container {}", container.name()));
        world.exit(id, 137, "");
        world.happens(id, v1::ContainerEventType::ContainerStoppedEvent);
    }
    world.goes(id, &container.sandbox);
    Ok(())
}

impl World {
    /// Something happens to what is there, and is told once the call is done.
    fn happens(&mut self, id: &str, kind: v1::ContainerEventType) {
        let event = event(self, id, kind);
        self.happened.push(event);
    }

    /// A container is removed.
    fn goes(&mut self, id: &str, sandbox: &str) {
        self.containers.remove(id);
        let event = event_in(self, id, sandbox, v1::ContainerEventType::ContainerDeletedEvent);
        self.happened.push(event);
    }
}

#[tonic::async_trait]
impl RuntimeService for Model {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        self.ask(|_| {
            Ok(v1::VersionResponse {
                version: "0.1.0".to_owned(),
                runtime_name: "model".to_owned(),
                runtime_version: "2.0.0".to_owned(),
                runtime_api_version: "v1".to_owned(),
            })
        })
        .await
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let condition =
            |kind: &str| v1::RuntimeCondition { r#type: kind.to_owned(), status: true, ..Default::default() };
        let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
        self.ask(|_| Ok(v1::StatusResponse { status: Some(v1::RuntimeStatus { conditions }), ..Default::default() }))
            .await
    }

    async fn runtime_config(&self, _: Request<v1::RuntimeConfigRequest>) -> Answer<v1::RuntimeConfigResponse> {
        let linux = v1::LinuxRuntimeConfiguration { cgroup_driver: v1::CgroupDriver::Cgroupfs.into() };
        self.ask(|_| Ok(v1::RuntimeConfigResponse { linux: Some(linux) })).await
    }

    async fn update_runtime_config(
        &self,
        _: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Answer<v1::UpdateRuntimeConfigResponse> {
        self.ask(|_| Ok(v1::UpdateRuntimeConfigResponse::default())).await
    }

    async fn run_pod_sandbox(&self, request: Request<v1::RunPodSandboxRequest>) -> Answer<v1::RunPodSandboxResponse> {
        let config = request.into_inner().config.unwrap_or_default();
        let metadata = config.metadata.clone().unwrap_or_default();
        let what = format!("RunPodSandbox of {} (attempt {})", metadata.name, metadata.attempt);
        let made = self.change(what, move |world| run_pod_sandbox(world, config)).await?.into_inner();
        Ok(Response::new(v1::RunPodSandboxResponse { pod_sandbox_id: made }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Answer<v1::StopPodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let (what, sandbox) = (format!("StopPodSandbox of {id}"), id);
        self.change(what, move |world| stop_pod_sandbox(world, &sandbox)).await?;
        Ok(Response::new(v1::StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Answer<v1::RemovePodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let (what, sandbox) = (format!("RemovePodSandbox of {id}"), id);
        self.change(what, move |world| remove_pod_sandbox(world, &sandbox)).await?;
        Ok(Response::new(v1::RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Answer<v1::PodSandboxStatusResponse> {
        let request = request.into_inner();
        self.ask(move |world| {
            let id = &request.pod_sandbox_id;
            let sandbox = world.sandboxes.get(id).ok_or_else(|| no_sandbox(id))?;
            let parent = sandbox.config.linux.as_ref().map(|linux| linux.cgroup_parent.clone()).unwrap_or_default();
            let info = serde_json::json!({"config": {
                "log_directory": sandbox.config.log_directory, "linux": {"cgroup_parent": parent}}});
            let info = request.verbose.then(|| ("info".to_owned(), info.to_string()));
            Ok(v1::PodSandboxStatusResponse {
                status: Some(sandbox_status(sandbox)),
                info: info.into_iter().collect(),
                ..Default::default()
            })
        })
        .await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Answer<v1::ListPodSandboxResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        self.ask(move |world| {
            let items = world.sandboxes.values().filter(|s| {
                (filter.id.is_empty() || filter.id == s.id)
                    && filter.state.is_none_or(|wanted| wanted.state == sandbox_state(s))
                    && selected(&filter.label_selector, &s.config.labels)
            });
            let item = |s: &Sandbox| v1::PodSandbox {
                id: s.id.clone(),
                metadata: s.config.metadata.clone(),
                state: sandbox_state(s),
                created_at: s.created,
                labels: s.config.labels.clone(),
                annotations: s.config.annotations.clone(),
                runtime_handler: String::new(),
            };
            Ok(v1::ListPodSandboxResponse { items: items.map(item).collect() })
        })
        .await
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Answer<v1::CreateContainerResponse> {
        let request = request.into_inner();
        let metadata = request.config.as_ref().and_then(|config| config.metadata.clone()).unwrap_or_default();
        let what = format!("CreateContainer {} #{} in {}", metadata.name, metadata.attempt, request.pod_sandbox_id);
        let id = self.change(what, move |world| create_container(world, request)).await?.into_inner();
        Ok(Response::new(v1::CreateContainerResponse { container_id: id }))
    }

    async fn start_container(&self, request: Request<v1::StartContainerRequest>) -> Answer<v1::StartContainerResponse> {
        let id = request.into_inner().container_id;
        let (what, model, started) = (format!("StartContainer {id}"), self.clone(), id);
        let act = move |world: &mut World| {
            let behaviour = start_container(world, &started)?;
            model.live(&started, behaviour);
            Ok(())
        };
        self.change(what, act).await?;
        Ok(Response::new(v1::StartContainerResponse {}))
    }

    async fn stop_container(&self, request: Request<v1::StopContainerRequest>) -> Answer<v1::StopContainerResponse> {
        let v1::StopContainerRequest { container_id: id, timeout } = request.into_inner();
        let what = format!("StopContainer {id} with {timeout} s");
        self.world.lock().is_asked_to_stop(&id);
        let stop = Stop { id, grace: u64::try_from(timeout).unwrap_or(0), machine: self.machine.clone() };
        change(&self.world, &self.machine, Peer::Runtime, what, stop).await.map(Response::new)
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Answer<v1::RemoveContainerResponse> {
        let id = request.into_inner().container_id;
        let (what, removed) = (format!("RemoveContainer {id}"), id);
        self.change(what, move |world| remove_container(world, &removed)).await?;
        Ok(Response::new(v1::RemoveContainerResponse {}))
    }

    async fn list_containers(&self, request: Request<v1::ListContainersRequest>) -> Answer<v1::ListContainersResponse> {
        let filter = request.into_inner().filter.unwrap_or_default();
        self.ask(move |world| {
            let items = world.containers.values().filter(|c| {
                (filter.id.is_empty() || filter.id == c.id)
                    && (filter.pod_sandbox_id.is_empty() || filter.pod_sandbox_id == c.sandbox)
                    && filter.state.is_none_or(|wanted| wanted.state == container_state(c))
                    && selected(&filter.label_selector, &c.config.labels)
            });
            let item = |c: &Container| v1::Container {
                id: c.id.clone(),
                pod_sandbox_id: c.sandbox.clone(),
                metadata: c.config.metadata.clone(),
                image: c.config.image.clone(),
                image_ref: image_ref(c),
                state: container_state(c),
                created_at: c.created,
                labels: c.config.labels.clone(),
                annotations: c.config.annotations.clone(),
                ..Default::default()
            };
            Ok(v1::ListContainersResponse { containers: items.map(item).collect() })
        })
        .await
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Answer<v1::ContainerStatusResponse> {
        let id = request.into_inner().container_id;
        self.ask(move |world| {
            let container = world.containers.get(&id).ok_or_else(|| no_container(&id))?;
            Ok(v1::ContainerStatusResponse { status: Some(container_status(container)), ..Default::default() })
        })
        .await
    }

    async fn exec_sync(&self, request: Request<v1::ExecSyncRequest>) -> Answer<v1::ExecSyncResponse> {
        let v1::ExecSyncRequest { container_id: id, cmd, .. } = request.into_inner();
        let (there, back) = self.world.lock().latency(Peer::Runtime);
        pause(there).await;
        let hook = self.world.lock().hook_of(&id, &cmd);
        if let Some(hook) = hook {
            let done = crate::hooks::run(&self.world, &id, hook).await;
            pause(back).await;
            return done.map(|exit_code| Response::new(v1::ExecSyncResponse { exit_code, ..Default::default() }));
        }
        let answer = {
            let mut world = self.world.lock();
            // Whether this answer is in time is for the other side to say.
            let is_late = there + back >= PROBE_TIMEOUT * 1000;
            world.probe(&id, &cmd, is_late)
        };
        pause(back).await;
        answer.map(|passes| {
            let exit_code = i32::from(!passes);
            Response::new(v1::ExecSyncResponse { exit_code, ..Default::default() })
        })
    }

    async fn container_stats(&self, request: Request<v1::ContainerStatsRequest>) -> Answer<v1::ContainerStatsResponse> {
        let id = request.into_inner().container_id;
        self.ask(move |world| {
            let stats = world.stats_of(&id).ok_or_else(|| no_container(&id))?;
            Ok(v1::ContainerStatsResponse { stats: Some(stats) })
        })
        .await
    }

    async fn list_container_stats(
        &self,
        _: Request<v1::ListContainerStatsRequest>,
    ) -> Answer<v1::ListContainerStatsResponse> {
        self.ask(|world| Ok(world.container_stats())).await
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> Answer<v1::ReopenContainerLogResponse> {
        let id = request.into_inner().container_id;
        self.world.lock().aim_fault(Peer::Runtime);
        let (what, asked) = (format!("ReopenContainerLog {id}"), id.clone());
        let done = self.change(what, move |world| world.reopen_log(&asked)).await;
        if done.is_err() {
            self.world.lock().reopen_was_refused(&id);
        }
        done.map(|_| Response::new(v1::ReopenContainerLogResponse {}))
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Answer<v1::UpdateContainerResourcesResponse> {
        let v1::UpdateContainerResourcesRequest { container_id: id, linux, .. } = request.into_inner();
        let resources = linux.unwrap_or_default();
        self.change(crate::sizes::words(&id, &resources), move |world| {
            world.update_container(&id, &resources)?;
            Ok(v1::UpdateContainerResourcesResponse {})
        })
        .await
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Answer<BoxStream<v1::ContainerEventResponse>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.world.lock().listeners.push(sender);
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }
}

fn image_id(name: &str) -> String {
    format!("sha256:{name}")
}

/// What an image is called that is asked for by its name or its id.
fn image_name(asked: Option<v1::ImageSpec>) -> String {
    let asked = asked.map(|image| image.image).unwrap_or_default();
    asked.strip_prefix("sha256:").map_or(asked.clone(), str::to_owned)
}

#[tonic::async_trait]
impl ImageService for Model {
    async fn list_images(&self, _: Request<v1::ListImagesRequest>) -> Answer<v1::ListImagesResponse> {
        self.ask(|world| {
            Ok(v1::ListImagesResponse { images: world.images.iter().map(|name| world.image(name)).collect() })
        })
        .await
    }

    async fn image_status(&self, request: Request<v1::ImageStatusRequest>) -> Answer<v1::ImageStatusResponse> {
        let name = image_name(request.into_inner().image);
        self.ask(move |world| {
            Ok(v1::ImageStatusResponse {
                image: world.images.contains(&name).then(|| world.image(&name)),
                ..Default::default()
            })
        })
        .await
    }

    async fn pull_image(&self, request: Request<v1::PullImageRequest>) -> Answer<v1::PullImageResponse> {
        let name = request.into_inner().image.map(|image| image.image).unwrap_or_default();
        let (what, pull) = (format!("PullImage {name}"), Pull { name: name.clone() });
        change(&self.world, &self.machine, Peer::Runtime, what, pull).await?;
        Ok(Response::new(v1::PullImageResponse { image_ref: image_id(&name) }))
    }

    async fn image_fs_info(&self, _: Request<v1::ImageFsInfoRequest>) -> Answer<v1::ImageFsInfoResponse> {
        self.ask(|world| Ok(world.image_file_systems())).await
    }

    async fn remove_image(&self, request: Request<v1::RemoveImageRequest>) -> Answer<v1::RemoveImageResponse> {
        let id = request.into_inner().image.map(|image| image.image).unwrap_or_default();
        let act = move |world: &mut World| world.remove_image(&id);
        self.change("RemoveImage".to_owned(), act).await?;
        Ok(Response::new(v1::RemoveImageResponse {}))
    }
}
