//! Who is asked: the model, or the real one in folders and a cgroup of its own. Either serves two sockets, as on a node.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, anyhow};
use bulkhead_daemon::progress::{LOOP_BOUND, Progress};
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::common::process_client::ProcessClient;
use bulkhead_ipc::common::{DestructiveGuard, HelloRequest};
use bulkhead_ipc::limits::{Gate, Limits};
use bulkhead_ipc::peers::{PeerUsers, Policy};
use bulkhead_ipc::server::Services;
use bulkhead_ipc::volnetd::cgroups_client::CgroupsClient;
use bulkhead_ipc::volnetd::csi_client::CsiClient;
use bulkhead_ipc::volnetd::files_client::FilesClient;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::watches_client::WatchesClient;
use bulkhead_simulation::logs::Place;
use bulkhead_simulation::root_dir::RootDir;
use bulkhead_simulation::volnetd::{self as model, Model};
use bulkhead_simulation::volumes::REGISTRATION;
use bulkhead_simulation::world::Shared;
use bulkhead_sys::cgroup::{CgroupPath, Hierarchies};
use bulkhead_sys::{mountinfo::MountInfo, scm};
use bulkhead_types::{Epoch, InstancePaths, NodeName};
use bulkhead_worker::WorkerPool;
use kubelet_volnetd::cgroups::Driver;
use kubelet_volnetd::node::{Certificates, Node, Settings};
use kubelet_volnetd::{prepare, serve_broker, service, verbs, watch, worker};
use parking_lot::Mutex;
use rustix::mount::{MountFlags, UnmountFlags};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;

/// A user that no process has.
const NOBODY: u32 = u32::MAX - 1;

#[derive(Debug)]
enum Kind {
    Model { world: Shared, machine: Option<Runtime>, registrar: Arc<OwnedFd> },
    Real { cgroup_root: CgroupPath, sockets: Mutex<Vec<UnixListener>> },
}

/// See the module.
#[derive(Debug)]
pub struct Subject {
    kind: Kind,
    /// None while it is away.
    service: Mutex<Option<Runtime>>,
    epochs: AtomicU64,
    // Last: it goes when all is unmounted.
    folder: tempfile::TempDir,
}

/// With threads of its own, so that it goes on while somebody here waits.
fn threads() -> Result<Runtime> {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().context("making a runtime")
}

/// Whoever runs the test is kubelet-syncd to it.
fn users(pods_cgroup: String) -> Arc<PeerUsers> {
    let syncd = rustix::process::getuid().as_raw();
    Arc::new(PeerUsers { syncd, evictiond: NOBODY, statusd: NOBODY, pods_cgroup: pods_cgroup.into(), no_pods: None })
}

impl Subject {
    /// # Errors
    /// It cannot be served.
    pub fn model() -> Result<Self> {
        let (world, folder) = (Shared::new(1), folder()?);
        {
            let mut world = world.lock();
            world.has_driver = true;
            world.resources.begin();
        }
        let registrar = Arc::new(listen(&folder.path().join("registrar.sock"))?.into());
        let kind = Kind::Model { world, machine: Some(threads()?), registrar };
        Self::started(kind, folder)
    }

    /// # Errors
    /// It cannot be served.
    pub fn real() -> Result<Self> {
        let folder = folder()?;
        let cgroup_root = CgroupPath::parse(&format!("/bulkhead-contract-{}", std::process::id()))?;
        Hierarchies::detect()?.ensure(&cgroup_root)?;
        Self::started(Kind::Real { cgroup_root, sockets: Mutex::default() }, folder)
    }

    fn started(kind: Kind, folder: tempfile::TempDir) -> Result<Self> {
        let subject = Self { kind, service: Mutex::default(), epochs: AtomicU64::new(100), folder };
        subject.comes()?;
        Ok(subject)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// It dies, and another life begins; what is mounted stays.
    ///
    /// # Errors
    /// It does not come.
    pub fn restart(&self) -> Result<()> {
        if let Some(service) = self.service.lock().take() {
            service.shutdown_background();
        }
        if let Kind::Model { world, .. } = &self.kind {
            let mut world = world.lock();
            world.watchers.clear();
            world.volumes.watchers.clear();
        }
        self.comes()
    }

    fn comes(&self) -> Result<()> {
        let epoch = self.epochs.fetch_add(1, Ordering::Relaxed);
        let service = threads()?;
        let listener = listen(&self.at("run/grpc.sock"))?;
        let broker = self.at("run/broker.sock");
        let _ = std::fs::remove_file(&broker);
        let broker = scm::listen(&broker, 0o600).context("listening for the broker")?;
        match &self.kind {
            Kind::Model { world, machine, registrar } => {
                let model = Model {
                    world: world.clone(),
                    machine: machine.as_ref().context("no machine")?.handle().clone(),
                    epoch,
                    node: self.node_of_model(epoch)?,
                    manifests: self.at("manifests"),
                    state: Arc::new(Mutex::new(self.at("state"))),
                    runtime_socket: self.at("runtime/containerd.sock"),
                    kubeconfig: self.at("etc/kubelet.conf"),
                    driver_socket: self.at("driver.sock"),
                    plugin_socket: self.at("plugin.sock"),
                    drivers_folder: self.folder.path().to_owned(),
                    registrar: registrar.clone(),
                };
                service.spawn(model::serve(model, listener, broker, users("/simulated".to_owned())));
            }
            Kind::Real { cgroup_root, .. } => {
                let (dir, root) = (self.folder.path().to_owned(), cgroup_root.clone());
                let (sender, receiver) = std::sync::mpsc::channel();
                service.spawn(async move {
                    let _ = sender.send(serve(&dir, &root, epoch, listener, broker).await);
                });
                receiver.recv().map_err(|_| anyhow!("it has panicked"))??;
            }
        }
        *self.service.lock() = Some(service);
        Ok(())
    }

    /// What the model has of the real one. It does not answer for the volumes of drivers, which are the real one's alone.
    fn node_of_model(&self, epoch: u64) -> Result<Arc<Node>> {
        let root_dir = RootDir::lay(self.folder.path())?;
        let mut settings = settings(self.folder.path(), &CgroupPath::parse("/")?)?;
        settings.cgroups_per_qos = false;
        let of_worker = settings.clone();
        let workers = WorkerPool::here(worker::LIMITS, move |request| worker::perform(&of_worker, request));
        let node = root_dir.take_up(settings, epoch, workers);
        if let Kind::Model { world, .. } = &self.kind {
            world.lock().root_dir = root_dir;
        }
        node
    }

    fn channel(&self) -> Channel {
        bulkhead_ipc::client::channel(&self.at("run/grpc.sock"))
    }

    pub fn volumes(&self) -> VolumesClient<Channel> {
        VolumesClient::new(self.channel())
    }

    pub fn files(&self) -> FilesClient<Channel> {
        FilesClient::new(self.channel())
    }

    pub fn cgroups(&self) -> CgroupsClient<Channel> {
        CgroupsClient::new(self.channel())
    }

    pub fn csi(&self) -> CsiClient<Channel> {
        CsiClient::new(self.channel())
    }

    pub fn watches(&self) -> WatchesClient<Channel> {
        WatchesClient::new(self.channel())
    }

    pub fn broker(&self) -> BrokerClient {
        BrokerClient::new(&self.at("run/broker.sock"))
    }

    /// As it says itself.
    pub async fn epoch(&self) -> Result<u64> {
        if let Kind::Real { .. } = self.kind {
            // Hello is not its own: the skeleton of all daemons answers it, with the epoch that this one was started with.
            return Ok(self.epochs.load(Ordering::Relaxed) - 1);
        }
        let said = ProcessClient::new(self.channel()).hello(HelloRequest::default()).await?.into_inner();
        Ok(said.epoch)
    }

    /// What lets somebody destroy something now.
    pub async fn guard(&self) -> Result<DestructiveGuard> {
        Ok(DestructiveGuard { volnetd_epoch: self.epoch().await?, syncd_epoch: 9, generation: 1, sources_ready: true })
    }

    pub fn manifests(&self) -> PathBuf {
        self.at("manifests")
    }

    /// The driver has mounted a volume at a path that it was given.
    ///
    /// # Errors
    /// It cannot be mounted.
    pub fn driver_mounts(&self, path: &str) -> Result<()> {
        std::fs::create_dir_all(path).context("making what is mounted over")?;
        rustix::mount::mount("driver", path, "tmpfs", MountFlags::empty(), None).context("mounting")
    }

    /// It takes it away again.
    ///
    /// # Errors
    /// It cannot be unmounted.
    pub fn driver_unmounts(&self, path: &str) -> Result<()> {
        rustix::mount::unmount(path, UnmountFlags::empty()).context("unmounting")?;
        // What it has made itself goes with it; where it stages is the kubelet's.
        if !path.ends_with("/globalmount") {
            std::fs::remove_dir(path).context("removing what was mounted over")?;
        }
        Ok(())
    }

    /// The runtime makes a container's first log file, or another one.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn log_comes(&self, uid: &str, container: &str) -> Result<()> {
        match &self.kind {
            Kind::Model { world, .. } => {
                let place = Place { uid: uid.to_owned(), container: container.to_owned(), number: 0 };
                world.lock().log_comes(&place);
                Ok(())
            }
            Kind::Real { .. } => {
                let folder = self.at("pod-logs").join(format!("default_pod_{uid}")).join(container);
                std::fs::write(folder.join("0.log"), "line").context("writing a log")
            }
        }
    }

    /// A plugin listens in `plugins_registry`, in place of the one that did.
    ///
    /// # Errors
    /// It cannot listen.
    pub fn plugin_comes(&self) -> Result<()> {
        match &self.kind {
            Kind::Model { world, .. } => {
                world.lock().volumes.socket_comes();
                Ok(())
            }
            Kind::Real { sockets, .. } => {
                let socket = listen(&self.at("root/plugins_registry").join(REGISTRATION))?;
                sockets.lock().push(socket);
                Ok(())
            }
        }
    }
}

fn folder() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir().context("making a folder")?;
    for name in ["", "runtime", "manifests", "var-log", "run", "state", "etc"] {
        let path = folder.path().join(name);
        std::fs::create_dir_all(&path).context("making a folder")?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).context("opening a folder")?;
    }
    Ok(folder)
}

fn listen(path: &Path) -> Result<UnixListener> {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).with_context(|| format!("listening at {}", path.display()))?;
    listener.set_nonblocking(true).context("making a listener")?;
    Ok(listener)
}

fn settings(dir: &Path, cgroup_root: &CgroupPath) -> Result<Settings> {
    Ok(Settings {
        paths: InstancePaths {
            root_dir: dir.join("root"),
            run_dir: dir.join("run"),
            pod_logs_dir: dir.join("pod-logs"),
        },
        named_root_dir: dir.join("root"),
        container_links_dir: dir.join("links"),
        node_name: NodeName::parse("node-a")?,
        start_id: String::new(),
        node_logs_dir: dir.join("var-log"),
        runtime_endpoint: Some(dir.join("runtime/containerd.sock")),
        image_endpoint: None,
        manifests: Some(dir.join("manifests")),
        kubeconfig: Some(dir.join("etc/kubelet.conf")),
        registry_configs: Vec::new(),
        serving: bulkhead_config::ServingPair {
            certificate: dir.join("pki/kubelet.crt"),
            key: dir.join("pki/kubelet.key"),
            own: true,
        },
        client_ca: None,
        certificates: Certificates { folder: dir.join("pki"), bootstrap: None, client: false, serving: false },
        cgroup_root: cgroup_root.clone(),
        cgroups_per_qos: true,
        cgroup_driver: Driver::Cgroupfs,
        cpu_load_balance_disable: false,
        reserved: Vec::new(),
        shutdown_delay: None,
        protect_kernel_defaults: false,
        pods_api: false,
        manage_kernel_tunables: false,
    })
}

/// Begins to serve.
async fn serve(
    dir: &Path,
    cgroup_root: &CgroupPath,
    epoch: u64,
    listener: UnixListener,
    broker: OwnedFd,
) -> Result<()> {
    let begin = tokio::time::Instant::now();
    // The one before may still hold the state folder for a moment.
    let node = loop {
        let metrics = kubelet_volnetd::metrics::Metrics::new(&prometheus::Registry::new())?;
        let settings = settings(dir, cgroup_root)?;
        let of_worker = settings.clone();
        let workers = WorkerPool::here(worker::LIMITS, move |request| worker::perform(&of_worker, request));
        match prepare(settings, Epoch::from_random(epoch), metrics, workers).await {
            Ok(node) => break node,
            Err(error) if begin.elapsed() > crate::PATIENCE => return Err(anyhow::Error::from_boxed(error)),
            Err(_) => tokio::time::sleep(crate::LOOK_EVERY).await,
        }
    };
    let users = users(format!("{cgroup_root}/kubepods"));
    let followed = watch::Followed {
        manifests: node.settings.manifests.clone(),
        kubeconfigs: node.settings.kubeconfig.iter().cloned().collect(),
        client_pair: None,
        plugins: Some(dir.join("root/plugins_registry")),
        serving: Vec::new(),
    };
    let heartbeat = Progress::default().register("changes", LOOP_BOUND);
    let watches = watch::start(followed, heartbeat, Box::new(bulkhead_sys::inotify::Inotify::new), Box::new(|_| ()));
    let services = service::add_to(Services::new(), node.clone(), watches);
    let policy = Policy { users: users.clone(), rules: &verbs::RULES };
    let listener = tokio::net::UnixListener::from_std(listener).context("listening")?;
    tokio::spawn(bulkhead_ipc::server::serve(listener, policy, services, std::future::pending()));
    tokio::spawn(serve_broker(node, broker, users, Gate::new(Limits::default()), std::future::pending()));
    Ok(())
}

impl Drop for Subject {
    fn drop(&mut self) {
        // Nobody may wait here, as the test runs in a runtime itself.
        let service = self.service.get_mut().take();
        service.into_iter().for_each(Runtime::shutdown_background);
        match &mut self.kind {
            Kind::Model { machine, .. } => machine.take().into_iter().for_each(Runtime::shutdown_background),
            Kind::Real { cgroup_root, .. } => clean_up(self.folder.path(), cgroup_root),
        }
    }
}

/// Unmounts what is below a folder and removes the cgroup.
fn clean_up(dir: &Path, cgroup_root: &CgroupPath) {
    let mut points: Vec<PathBuf> = MountInfo::new()
        .read()
        .map(|mounts| mounts.filter(|m| m.mount_point.starts_with(dir)).map(|m| m.mount_point.into_owned()).collect())
        .unwrap_or_default();
    points.sort_by_key(|point| std::cmp::Reverse(point.components().count()));
    for point in points {
        let _ = rustix::mount::unmount(&point, UnmountFlags::DETACH);
    }
    if let Ok(hierarchies) = Hierarchies::detect() {
        let _ = hierarchies.kill_and_remove(cgroup_root);
    }
}
