//! A model of kubelet-volnetd as its callers see it. Its guard is the real one, and so is what it does to the folders of pods and the
//! volumes of drivers in them ([`crate::root_dir`]); cgroups and logs of pods are names in sets. Its epoch is another one after each
//! restart.

use std::collections::{BTreeSet, HashSet};
use std::io::Seek as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use bulkhead_ipc::broker::{self, BrokerRequest};
use bulkhead_ipc::common::process_server::{Process, ProcessServer};
use bulkhead_ipc::common::{
    DestructiveGuard, HelloReply, HelloRequest, MetricsReply, MetricsRequest, PrivilegesReply, PrivilegesRequest,
};
use bulkhead_ipc::limits::{Gate, Limits};
use bulkhead_ipc::peers::PeerUsers;
use bulkhead_ipc::volnetd as api;
use bulkhead_ipc::volnetd::cgroups_server::{Cgroups, CgroupsServer};
use bulkhead_ipc::volnetd::credential;
use bulkhead_ipc::volnetd::csi_server::CsiServer;
use bulkhead_ipc::volnetd::files_server::{Files, FilesServer};
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::volumes_server::{Volumes, VolumesServer};
use bulkhead_ipc::volnetd::watches_server::{Watches, WatchesServer};
use futures_util::Stream;
use kubelet_volnetd::files::image_pulls;
use kubelet_volnetd::node::Node;
use kubelet_volnetd::operations::prune;
use kubelet_volnetd::service::Verbs;
use kubelet_volnetd::validate;
use prost::Message as _;
use rustix::fs::{Mode, OFlags};
use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{UnboundedReceiverStream, UnixListenerStream};
use tonic::{Request, Response, Status};

use crate::logs::Place;
use crate::node::{POD_LOGS, PODS};
use crate::runtime::{AsyncFnOnceSend, Caller, change};
use crate::schedule::{Peer, Program};
use crate::versions::Age;
use crate::volumes::REGISTRATION;
use crate::world::{Shared, World};
use crate::{csi_driver, device_plugin};

pub(crate) type Answer<T> = Result<Response<T>, Status>;
pub(crate) type Listed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What the real one takes of a state file.
const STATE_BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, Clone)]
pub struct Model {
    pub world: Shared,
    pub machine: Handle,
    pub epoch: u64,
    /// What the real one has at hand: where it works, its journal, its guard.
    pub node: Arc<Node>,
    /// Where manifests and the state folder are, and the runtime's socket.
    pub manifests: PathBuf,
    pub state: Arc<parking_lot::Mutex<PathBuf>>,
    pub runtime_socket: PathBuf,
    /// Where the kubeconfig is, if there is one.
    pub kubeconfig: PathBuf,
    /// Where the CSI driver listens, if there is one.
    pub driver_socket: PathBuf,
    /// Where the device plugin listens, if there is one.
    pub plugin_socket: PathBuf,
    /// Where DRA drivers listen, if there are some: a folder.
    pub drivers_folder: PathBuf,
    /// The socket of device plugins' registration. Bound once, as the real one is in one start of the kubelet.
    pub registrar: Arc<OwnedFd>,
}

/// A verb of its own.
struct Own<F> {
    act: F,
    node: Arc<Node>,
}

impl<T, F, W> AsyncFnOnceSend<T> for Own<F>
where
    F: FnOnce(Verbs, Caller) -> W + Send + 'static,
    W: Future<Output = Result<T, Status>> + Send + 'static,
    T: Send + 'static,
{
    fn run(self, world: Shared, caller: Caller) -> Pin<Box<dyn Future<Output = Result<T, Status>> + Send>> {
        Box::pin(async move {
            let done = (self.act)(Verbs::of(self.node), caller).await;
            done.map_err(|status| world.lock().root_dir.named_status(&status))
        })
    }
}

/// Serves both sockets until it is dropped.
pub async fn serve(model: Model, listener: std::os::unix::net::UnixListener, side: OwnedFd, users: Arc<PeerUsers>) {
    let Ok(listener) = UnixListener::from_std(listener) else { return };
    let (_, health) = tonic_health::server::health_reporter();
    let server = tonic::transport::Server::builder()
        .add_service(health)
        .add_service(ProcessServer::new(model.clone()))
        .add_service(VolumesServer::new(model.clone()))
        .add_service(FilesServer::new(model.clone()))
        .add_service(CgroupsServer::new(model.clone()))
        .add_service(CsiServer::new(model.clone()))
        .add_service(WatchesServer::new(model.clone()));
    let descriptors = broker::serve(
        side,
        users,
        Gate::new(Limits::default()),
        move |_, request| {
            let model = model.clone();
            async move { model.answer(request).await }
        },
        std::future::pending::<()>(),
    );
    // Both end with the process.
    let _ = tokio::join!(server.serve_with_incoming(UnixListenerStream::new(listener)), descriptors);
}

fn folder(path: &std::path::Path) -> Result<OwnedFd, Status> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)
}

fn failed(error: impl std::error::Error) -> Status {
    Status::internal(error.to_string())
}

impl Model {
    /// A request as the version before has it, where that is asked; of what kubelet-evictiond's family asks alone.
    fn as_understood(&self, request: BrokerRequest) -> Result<BrokerRequest, Status> {
        let record = {
            let world = self.world.lock();
            let is_before = world.pressure.on && world.age(Program::Volnetd) == Age::Before;
            world.record.clone().filter(|_| is_before)
        };
        let Some(record) = record else { return Ok(request) };
        let cut = |whole: &api::OpenRequest| {
            let bytes = record.cut("kubelet.volnetd.v1.OpenRequest", &whole.encode_to_vec());
            api::OpenRequest::decode(&*bytes).map_err(failed)
        };
        let nothing = || Status::invalid_argument("a request names exactly one kind");
        match request {
            BrokerRequest::Open(kind) => {
                let whole = api::OpenRequest { kind: Some(kind), ..api::OpenRequest::default() };
                Ok(BrokerRequest::Open(cut(&whole)?.kind.ok_or_else(nothing)?))
            }
            BrokerRequest::LinkCompressedLog(log, file) => {
                let whole = api::OpenRequest { link_compressed_log: Some(log), ..api::OpenRequest::default() };
                Ok(BrokerRequest::LinkCompressedLog(cut(&whole)?.link_compressed_log.ok_or_else(nothing)?, file))
            }
            other => Ok(other),
        }
    }

    async fn answer(&self, request: BrokerRequest) -> Result<Option<OwnedFd>, Status> {
        match self.as_understood(request)? {
            BrokerRequest::Open(kind) => self.open(kind).map(Some),
            BrokerRequest::PutState(api::StateKind::ImagePullRecords, content) => {
                let content = bulkhead_sys::memfd::read_sealed(&content, STATE_BYTES_MAX).map_err(failed)?;
                if self.world.lock().disk_is_full {
                    return Err(Status::resource_exhausted("No space left on device (os error 28)"));
                }
                let changes = image_pulls::parse(&content).map_err(failed)?;
                let root = folder(&self.node.settings.paths.root_dir)?;
                let put = move |_: &mut World| {
                    image_pulls::put(root.as_fd(), &changes).map_err(failed)?;
                    Ok(None)
                };
                change(&self.world, &self.machine, Peer::Volnetd, "PutState of image pulls".to_owned(), put).await
            }
            BrokerRequest::PutState(kind, content) if self.keeps_files() => {
                let content = bulkhead_sys::memfd::read_sealed(&content, STATE_BYTES_MAX).map_err(failed)?;
                if self.world.lock().disk_is_full {
                    // As the real one (`bins/kubelet-volnetd/src/service/status.rs`).
                    return Err(Status::resource_exhausted("No space left on device (os error 28)"));
                }
                let what = format!("PutState {}", kind.as_str_name());
                let put = move |world: &mut World| {
                    world.resources.files.insert(kind.into(), content);
                    Ok(None)
                };
                change(&self.world, &self.machine, Peer::Volnetd, what, put).await
            }
            BrokerRequest::LinkCompressedLog(log, _) => {
                let place = Place::of(log.pod, log.container, log.restart_count)?;
                let what = format!("LinkCompressedLog of {}", place.container);
                let link = move |world: &mut World| {
                    world.link_compressed(&place, &log.stamp, log.plain_bytes)?;
                    Ok(None)
                };
                change(&self.world, &self.machine, Peer::Volnetd, what, link).await
            }
            _ => Ok(None),
        }
    }

    fn keeps_files(&self) -> bool {
        let world = self.world.lock();
        world.resources.on || world.claims.on
    }

    fn open(&self, kind: Kind) -> Result<OwnedFd, Status> {
        match kind {
            Kind::State(state) if state.kind() == api::StateKind::ImagePullRecords => {
                image_pulls::open(folder(&self.node.settings.paths.root_dir)?.as_fd()).map_err(failed)
            }
            Kind::State(state) => match self.world.lock().resources.files.get(&state.kind) {
                Some(content) => {
                    let mut file = std::fs::File::from(bulkhead_sys::memfd::sealed("state", content).map_err(failed)?);
                    file.rewind().map_err(failed)?;
                    Ok(file.into())
                }
                None => Err(Status::not_found("there is no such file")),
            },
            Kind::Listener(listener) if listener.kind() == api::listener::Kind::DevicePlugins => {
                self.registrar.try_clone().map_err(failed)
            }
            Kind::PrivateState(_) => {
                let path = self.state.lock().clone();
                folder(&path)
            }
            Kind::RuntimeSocket(_) => match std::os::unix::net::UnixStream::connect(&self.runtime_socket) {
                Ok(stream) => Ok(stream.into()),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Status::not_found(error.to_string())),
                Err(error) => Err(Status::unavailable(error.to_string())),
            },
            Kind::PluginSocket(plugin) => self.plugin_socket(&plugin),
            Kind::ContainerLog(log) => {
                let place = Place::of(log.pod, log.container, log.restart_count)?;
                let is_there = self.world.lock().has_current_log(&place);
                // Nobody reads it, but whether it is there.
                let file = bulkhead_sys::memfd::sealed("log", &[]).map_err(failed)?;
                is_there.then_some(file).ok_or_else(|| Status::not_found("there is no current log"))
            }
            Kind::RotatedLog(log) if log.pick() == api::rotated_log::Pick::Plain => {
                let place = Place::of(log.pod, log.container, log.restart_count)?;
                let bytes = self.world.lock().plain_log(&place, &log.stamp)?;
                let content = vec![b'.'; usize::try_from(bytes).unwrap_or(0)];
                let mut file = std::fs::File::from(bulkhead_sys::memfd::sealed("log", &content).map_err(failed)?);
                file.rewind().map_err(failed)?;
                Ok(file.into())
            }
            Kind::CompressedLog(log) => {
                let place = Place::of(log.pod, log.container, log.restart_count)?;
                self.world.lock().plain_log(&place, &log.stamp)?;
                rustix::fs::memfd_create("compressed", rustix::fs::MemfdFlags::CLOEXEC).map_err(failed)
            }
            Kind::Manifest(manifest) if manifest.name.is_empty() => folder(&self.manifests),
            Kind::Manifest(manifest) => match std::fs::File::open(self.manifests.join(&manifest.name)) {
                Ok(file) => Ok(file.into()),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Status::not_found(error.to_string())),
                Err(error) => Err(failed(error)),
            },
            Kind::Credential(file) if file.kind() == credential::Kind::Kubeconfig => {
                std::fs::File::open(&self.kubeconfig).map(OwnedFd::from).map_err(failed)
            }
            _ => Err(Status::not_found("the model has none")),
        }
    }

    pub(crate) async fn change<T: Send + 'static>(
        &self,
        what: String,
        act: impl FnOnce(&mut World) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        change(&self.world, &self.machine, Peer::Volnetd, what, act).await.map(Response::new)
    }

    fn plugin_socket(&self, plugin: &api::PluginSocket) -> Result<OwnedFd, Status> {
        if self.world.lock().resources.on && plugin.endpoint == device_plugin::endpoint() {
            let connected = std::os::unix::net::UnixStream::connect(&self.plugin_socket);
            return connected.map(OwnedFd::from).map_err(|error| match error.kind() {
                // As the real one: what a plugin that has ended left is no socket.
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                    Status::not_found(error.to_string())
                }
                _ => Status::unavailable(error.to_string()),
            });
        }
        let at = self.world.lock().claims.at(plugin);
        if let Some(driver) = at {
            let path = self.drivers_folder.join(format!("{}.sock", driver.name()));
            let connected = std::os::unix::net::UnixStream::connect(path);
            return connected.map(OwnedFd::from).map_err(|error| Status::unavailable(error.to_string()));
        }
        let is_known = plugin.registration == REGISTRATION || plugin.endpoint == csi_driver::endpoint();
        if !is_known || self.world.lock().volumes.socket == 0 {
            return Err(Status::not_found("there is no such socket"));
        }
        let connected = std::os::unix::net::UnixStream::connect(&self.driver_socket);
        connected.map(OwnedFd::from).map_err(|error| Status::unavailable(error.to_string()))
    }

    pub(crate) fn guard(&self, guard: Option<&DestructiveGuard>) -> Result<(), Status> {
        let mut state = self.node.guard.lock();
        Ok(state.check(guard)?)
    }

    /// Its own verbs, asked at once.
    pub(crate) fn verbs(&self) -> Verbs {
        Verbs::of(self.node.clone())
    }

    /// A verb of its own, as late as a call may be, and with what may go wrong on the way. It goes on without who has asked, and ends
    /// with the process.
    pub(crate) async fn verb<T, W>(
        &self,
        what: String,
        act: impl FnOnce(Verbs, Caller) -> W + Send + 'static,
    ) -> Result<T, Status>
    where
        T: Send + 'static,
        W: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let act = Own { act, node: self.node.clone() };
        change(&self.world, &Handle::current(), Peer::Volnetd, what, act).await
    }

    /// As others know the paths in it.
    pub(crate) fn named(&self, text: &str) -> String {
        self.world.lock().root_dir.named(text)
    }

    /// A list of its own, with each line as others know it.
    pub(crate) fn list<T: 'static>(
        &self,
        answer: Answer<Listed<T>>,
        name: impl Fn(T) -> T + Send + 'static,
    ) -> Answer<Listed<T>> {
        let named = |status: Status| self.world.lock().root_dir.named_status(&status);
        let lines = answer.map_err(named)?.into_inner();
        Ok(Response::new(Box::pin(lines.map(move |line| line.map(&name)))))
    }
}

/// As the real one.
pub(crate) fn is_pod(uid: &str) -> Result<(), Status> {
    Ok(validate::pod_uid(uid).map(drop)?)
}

fn not_prepared(uid: &str) -> Status {
    Status::not_found(format!("pod {uid} is not prepared"))
}

pub(crate) fn listed<T: Send + 'static>(items: Vec<T>) -> Listed<T> {
    Box::pin(tokio_stream::iter(items.into_iter().map(Ok)))
}

#[tonic::async_trait]
impl Process for Model {
    async fn hello(&self, _: Request<HelloRequest>) -> Answer<HelloReply> {
        Ok(Response::new(HelloReply {
            process: "kubelet-volnetd".to_owned(),
            version: "model".to_owned(),
            epoch: self.epoch,
            ready: true,
            ..Default::default()
        }))
    }

    async fn privileges(&self, _: Request<PrivilegesRequest>) -> Answer<PrivilegesReply> {
        Err(Status::unimplemented("model"))
    }

    async fn metrics(&self, _: Request<MetricsRequest>) -> Answer<MetricsReply> {
        Err(Status::unimplemented("model"))
    }
}

#[tonic::async_trait]
impl Watches for Model {
    type WatchStream = Listed<api::WatchEvent>;

    async fn watch(&self, request: Request<api::WatchRequest>) -> Answer<Self::WatchStream> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut world = self.world.lock();
        let kind = request.into_inner().kind();
        if kind == api::WatchKind::Unspecified {
            return Err(Status::invalid_argument("nothing is to be watched"));
        }
        if kind == api::WatchKind::Plugins {
            if world.claims.on {
                world.claims.watch(sender);
            } else {
                world.volumes.watch(sender);
            }
            return Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))));
        }
        // Who begins to watch looks at everything.
        let first = api::WatchEvent { change: api::watch_event::Change::Rescan.into(), ..Default::default() };
        if kind != api::WatchKind::Manifests {
            // What else there is does not change.
            return Ok(Response::new(Box::pin(tokio_stream::once(Ok(first)).chain(tokio_stream::pending()))));
        }
        // Its other end is the caller's.
        let _ = sender.send(Ok(first));
        world.watchers.push(sender);
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }
}

macro_rules! absent {
    ($($name:ident($request:ident) -> $reply:ident;)*) => {$(
        fn $name<'life0, 'async_trait>(
            &'life0 self,
            _: Request<api::$request>,
        ) -> Pin<Box<dyn Future<Output = Answer<api::$reply>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async { Err(Status::unimplemented("the model has none")) })
        }
    )*};
}

#[tonic::async_trait]
impl Volumes for Model {
    type ListDisksStream = Listed<api::DiskState>;
    type ListVolumesStream = Listed<api::VolumeState>;
    type PruneStream = Listed<api::PruneStep>;

    async fn prepare_pod(&self, request: Request<api::PreparePodRequest>) -> Answer<api::PreparePodReply> {
        let what = format!("PreparePod {}", self.world.lock().short(&request.get_ref().pod_uid));
        let made = self.verb(what, move |verbs, _| async move { verbs.prepare_pod(request).await }).await?;
        Ok(Response::new(api::PreparePodReply { pod_dir: self.named(&made.into_inner().pod_dir) }))
    }

    async fn tear_down_pod(&self, request: Request<api::TearDownPodRequest>) -> Answer<api::TearDownPodReply> {
        let uid = request.get_ref().pod_uid.clone();
        let what = format!("TearDownPod {}", self.world.lock().short(&uid));
        let world = self.world.clone();
        let act = move |verbs: Verbs, _| async move {
            world.lock().check_removal(&uid, "the folder");
            verbs.tear_down_pod(request).await
        };
        let done = self.verb(what, act).await?.into_inner();
        let left = done.left.iter().map(|left| self.named(left)).collect();
        Ok(Response::new(api::TearDownPodReply { left, ..done }))
    }

    async fn list_disks(&self, _: Request<api::ListDisksRequest>) -> Answer<Self::ListDisksStream> {
        Ok(Response::new(listed(Vec::new())))
    }

    async fn list_volumes(&self, request: Request<api::ListVolumesRequest>) -> Answer<Self::ListVolumesStream> {
        let named = self.clone();
        let name =
            move |volume: api::VolumeState| api::VolumeState { host_path: named.named(&volume.host_path), ..volume };
        self.list(self.verbs().list_volumes(request).await, name)
    }

    async fn prune(&self, request: Request<api::PruneRequest>) -> Answer<Self::PruneStream> {
        let request = request.into_inner();
        let what = format!("Prune but for {} pods", request.known_pod_uids.len());
        let known: Arc<HashSet<_>> = validate::known_pods(&request.known_pod_uids)?.into();
        self.guard(request.guard.as_ref())?;
        let (world, node) = (self.world.clone(), self.node.clone());
        let act = move |_, caller: Caller| async move {
            let mut steps = world.lock().prune_cgroups(&request.known_pod_uids.into_iter().collect());
            let caller = Arc::new(caller);
            let mut found = Vec::new();
            let of_pruned = world.clone();
            prune::prune(&node, known, move || caller.waits(), |step| found.push(step)).await?;
            let world = of_pruned.lock();
            steps.extend(found.into_iter().map(|step| api::PruneStep {
                action: step.action.as_str().to_owned(),
                pod_uid: step.pod.to_string(),
                what: world.root_dir.named(&step.what),
                error: world.root_dir.named(&step.error),
            }));
            Ok(steps)
        };
        let steps = self.verb(what, act).await?;
        Ok(Response::new(listed(steps)))
    }

    absent! {
        set_up_empty_dir(SetUpEmptyDirRequest) -> SetUpVolumeReply;
        check_host_path(CheckHostPathRequest) -> SetUpVolumeReply;
        set_up_content(SetUpContentRequest) -> SetUpVolumeReply;
        set_up_local(SetUpLocalRequest) -> SetUpVolumeReply;
        set_up_nfs(SetUpNfsRequest) -> SetUpVolumeReply;
        set_up_fc(SetUpFcRequest) -> SetUpVolumeReply;
        set_up_iscsi(SetUpIscsiRequest) -> SetUpVolumeReply;
        ask_flex_driver(AskFlexDriverRequest) -> AskFlexDriverReply;
        set_up_flex(SetUpFlexRequest) -> SetUpFlexReply;
        end_disk(EndDiskRequest) -> EndDiskReply;
        prepare_sub_path(PrepareSubPathRequest) -> SetUpVolumeReply;
    }
}

impl World {
    /// Cgroups of pods that nobody desires go, and after them their folders.
    fn prune_cgroups(&mut self, known: &BTreeSet<String>) -> Vec<api::PruneStep> {
        for uid in self.root_dir.pods().difference(known) {
            self.check_removal(uid, "the folder");
        }
        let gone: Vec<String> = self.cgroups.difference(known).cloned().collect();
        let mut steps = Vec::new();
        for pod_uid in gone {
            self.check_removal(&pod_uid, "the cgroup");
            self.cgroups.remove(&pod_uid);
            let action = prune::Action::RemovedCgroup.as_str().to_owned();
            steps.push(api::PruneStep { action, pod_uid, ..Default::default() });
        }
        steps
    }
}

#[tonic::async_trait]
impl Files for Model {
    async fn write_etc_hosts(&self, request: Request<api::WriteEtcHostsRequest>) -> Answer<api::HostFileReply> {
        let uid = request.into_inner().pod_uid;
        is_pod(&uid)?;
        if !self.world.lock().root_dir.has_pod(&uid) {
            return Err(not_prepared(&uid));
        }
        Ok(Response::new(api::HostFileReply { host_path: format!("{PODS}/{uid}/etc-hosts") }))
    }

    async fn create_termination_file(
        &self,
        request: Request<api::CreateTerminationFileRequest>,
    ) -> Answer<api::HostFileReply> {
        let api::CreateTerminationFileRequest { pod_uid: uid, container } = request.into_inner();
        is_pod(&uid)?;
        let mut world = self.world.lock();
        if !world.root_dir.has_pod(&uid) {
            return Err(not_prepared(&uid));
        }
        // Each container has one of its own.
        let file = world.next_id("t");
        Ok(Response::new(api::HostFileReply { host_path: format!("{PODS}/{uid}/containers/{container}/{file}") }))
    }

    async fn prepare_log_directory(
        &self,
        request: Request<api::PrepareLogDirectoryRequest>,
    ) -> Answer<api::PrepareLogDirectoryReply> {
        let api::PrepareLogDirectoryRequest { pod, container } = request.into_inner();
        let api::PodLogId { namespace, name, uid } = pod.ok_or_else(|| Status::invalid_argument("no pod"))?;
        is_pod(&uid)?;
        self.change(format!("PrepareLogDirectory {name} {container}"), move |world| {
            let pod_log_dir = format!("{POD_LOGS}/{namespace}_{name}_{uid}");
            let highest_index = world.logs.entry(uid).or_default().get(&container).copied();
            Ok(api::PrepareLogDirectoryReply { pod_log_dir, highest_index })
        })
        .await
    }

    async fn link_container_log(&self, _: Request<api::LinkContainerLogRequest>) -> Answer<api::LinkContainerLogReply> {
        Ok(Response::new(api::LinkContainerLogReply { link: "link".to_owned() }))
    }

    async fn remove_container_log(
        &self,
        request: Request<api::RemoveContainerLogRequest>,
    ) -> Answer<api::RemoveContainerLogReply> {
        let request = request.into_inner();
        let place = Place::of(request.pod, request.container, request.restart_count)?;
        self.guard(request.guard.as_ref())?;
        self.world.lock().remove_log(&place, &request.container_id);
        Ok(Response::new(api::RemoveContainerLogReply {}))
    }

    async fn prune_logs(&self, request: Request<api::PruneLogsRequest>) -> Answer<api::PruneLogsReply> {
        let request = request.into_inner();
        self.guard(request.guard.as_ref())?;
        self.change(format!("PruneLogs but for {} pods", request.known_pod_uids.len()), move |world| {
            let gone: Vec<String> =
                world.logs.keys().filter(|uid| !request.known_pod_uids.contains(uid)).cloned().collect();
            for uid in &gone {
                world.check_removal(uid, "the folder of logs");
                world.logs.remove(uid);
                world.log_files.of.retain(|_, log| log.uid != *uid);
            }
            Ok(api::PruneLogsReply { removed: gone })
        })
        .await
    }

    async fn rotate_container_log(
        &self,
        request: Request<api::RotateContainerLogRequest>,
    ) -> Answer<api::RotateContainerLogReply> {
        let request = request.into_inner();
        let place = Place::of(request.pod, request.container, request.restart_count)?;
        self.guard(request.guard.as_ref())?;
        self.world.lock().aim_fault(Peer::Volnetd);
        self.change(format!("RotateContainerLog of {}", place.container), move |world| {
            let stamp = world.rotate_log(&place)?;
            Ok(api::RotateContainerLogReply { stamp })
        })
        .await
    }

    async fn restore_container_log(
        &self,
        request: Request<api::RestoreContainerLogRequest>,
    ) -> Answer<api::RestoreContainerLogReply> {
        let request = request.into_inner();
        let place = Place::of(request.pod, request.container, request.restart_count)?;
        self.guard(request.guard.as_ref())?;
        self.world.lock().aim_fault(Peer::Volnetd);
        self.change(format!("RestoreContainerLog of {}", place.container), move |world| {
            let restored = world.restore_log(&place, &request.stamp)?;
            Ok(api::RestoreContainerLogReply { restored })
        })
        .await
    }

    async fn remove_rotated_logs(
        &self,
        request: Request<api::RemoveRotatedLogsRequest>,
    ) -> Answer<api::RemoveRotatedLogsReply> {
        let request = request.into_inner();
        let place = Place::of(request.pod, request.container, request.restart_count)?;
        self.guard(request.guard.as_ref())?;
        self.change(format!("RemoveRotatedLogs of {}", place.container), move |world| {
            world.remove_rotated(&place, &request.files)?;
            Ok(api::RemoveRotatedLogsReply {})
        })
        .await
    }
}

#[tonic::async_trait]
impl Cgroups for Model {
    type ListStream = Listed<api::PodCgroup>;

    async fn ensure_node(&self, _: Request<api::EnsureNodeRequest>) -> Answer<api::EnsureNodeReply> {
        let driver = "cgroupfs".to_owned();
        Ok(Response::new(api::EnsureNodeReply { driver, version: 2, ..Default::default() }))
    }

    async fn enforce_reserved(&self, _: Request<api::EnforceReservedRequest>) -> Answer<api::EnforceReservedReply> {
        Ok(Response::new(api::EnforceReservedReply { cgroups: Vec::new() }))
    }

    async fn ensure_pod(&self, request: Request<api::EnsurePodRequest>) -> Answer<api::EnsurePodReply> {
        let request = request.into_inner();
        let level = match request.qos() {
            api::Qos::Burstable => "/burstable",
            api::Qos::BestEffort => "/besteffort",
            api::Qos::Guaranteed => "",
            api::Qos::Unspecified => return Err(Status::invalid_argument("no QoS class")),
        };
        let resources = request.resources.unwrap_or_default();
        let is_asked = !request.without_limits;
        let uid = request.pod_uid;
        is_pod(&uid)?;
        let what = format!("EnsurePod {}", self.world.lock().short(&uid));
        self.change(what, move |world| {
            let created = world.cgroups.insert(uid.clone());
            if created {
                world.sizes.cgroup_goes(&uid);
            }
            let limits = world.sizes.cgroup_gets(&uid, &resources);
            if world.is_waited_for {
                world.check_room_in_cgroup(&uid);
            }
            let current = is_asked.then_some(limits);
            let memory_usage_bytes = is_asked.then(|| world.memory_used(&uid));
            let cgroup_parent = format!("/kubepods{level}/pod{uid}");
            Ok(api::EnsurePodReply { cgroup_parent, created, current, memory_usage_bytes })
        })
        .await
    }

    async fn set_qos(&self, _: Request<api::SetQosRequest>) -> Answer<api::SetQosReply> {
        Ok(Response::new(api::SetQosReply {}))
    }

    async fn remove_pod(&self, request: Request<api::RemovePodRequest>) -> Answer<api::RemovePodReply> {
        let request = request.into_inner();
        is_pod(&request.pod_uid)?;
        self.guard(request.guard.as_ref())?;
        let uid = request.pod_uid;
        let what = format!("RemovePod {}", self.world.lock().short(&uid));
        self.change(what, move |world| {
            world.check_removal(&uid, "the cgroup");
            world.cgroups.remove(&uid);
            Ok(api::RemovePodReply { done: true })
        })
        .await
    }

    async fn list(&self, _: Request<api::ListCgroupsRequest>) -> Answer<Self::ListStream> {
        let of = |uid: &String| api::PodCgroup { pod_uid: uid.clone(), ..Default::default() };
        let cgroups: Vec<_> = self.world.lock().cgroups.iter().map(of).collect();
        Ok(Response::new(listed(cgroups)))
    }

    absent! {
        end_session(EndSessionRequest) -> EndSessionReply;
    }
}
