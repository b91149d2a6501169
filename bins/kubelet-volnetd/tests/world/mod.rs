//! A volnetd on real sockets, in directories and a cgroup of the test's own, and peers with other uids. Needs root.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bulkhead_daemon::progress::{LOOP_BOUND, Progress};
use bulkhead_ipc::common::DestructiveGuard;
use bulkhead_ipc::limits::{Gate, Limits};
use bulkhead_ipc::peers::{PeerUsers, Policy};
use bulkhead_ipc::server::Services;
use bulkhead_ipc::volnetd::{OpenReply, OpenRequest, open_request::Kind};
use bulkhead_sys::cgroup::{CgroupPath, Hierarchies};
use bulkhead_sys::scm;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_types::{Epoch, InstancePaths, NodeName};
use bulkhead_worker::WorkerPool;
use kubelet_volnetd::cgroups::Driver;
use kubelet_volnetd::node::{Certificates, Node, Settings};
use kubelet_volnetd::{prepare, serve_broker, service, verbs, watch, worker};
use prost::Message;
use tonic::transport::{Channel, Endpoint};

pub const SYNCD: u32 = 61180;
pub const EVICTIOND: u32 = 61181;
pub const STATUSD: u32 = 61182;
pub const STRANGER: u32 = 61183;
pub const OPERATOR: u32 = 0;
pub const NODE: &str = "node-a";

/// Everything of one node in this process.
pub struct World {
    remote: Remote,
    pub node: Arc<Node>,
    cgroup_root: CgroupPath,
    _temp: Arc<tempfile::TempDir>,
}

/// The two sockets of a node, below `<dir>/run`.
pub struct Remote {
    pub dir: PathBuf,
}

impl std::ops::Deref for World {
    type Target = Remote;
    fn deref(&self) -> &Remote {
        &self.remote
    }
}

/// None, with a word, where the tests cannot run.
pub async fn world() -> Option<World> {
    Some(start(prepared()?, "root", 7).await)
}

/// The same whose root directory was named with a link on the way: `named-root`.
pub async fn world_by_a_link() -> Option<World> {
    let temp = prepared()?;
    std::os::unix::fs::symlink("root", temp.path().join("named-root")).unwrap();
    Some(start(temp, "named-root", 7).await)
}

fn prepared() -> Option<Arc<tempfile::TempDir>> {
    if !rustix::process::getuid().is_root() {
        skip_this_test(Lack::Root).unwrap();
        return None;
    }
    let temp = Arc::new(tempfile::tempdir().unwrap());
    let dir = temp.path().canonicalize().unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    Some(temp)
}

/// `named`: the root directory's name, below `dir`.
fn settings(dir: &Path, named: &str, cgroup_root: &CgroupPath) -> Settings {
    Settings {
        paths: InstancePaths {
            root_dir: dir.join("root"),
            run_dir: dir.join("run"),
            pod_logs_dir: dir.join("pod-logs"),
        },
        named_root_dir: dir.join(named),
        container_links_dir: dir.join("links"),
        node_name: NodeName::parse(NODE).unwrap(),
        start_id: String::new(),
        node_logs_dir: dir.join("var-log"),
        runtime_endpoint: Some(dir.join("runtime/containerd.sock")),
        image_endpoint: None,
        manifests: Some(dir.join("manifests")),
        kubeconfig: Some(dir.join("etc/kubelet.conf")),
        registry_configs: vec![dir.join("root/config.json"), dir.join("etc/.dockercfg")],
        serving: bulkhead_config::ServingPair {
            certificate: dir.join("pki/kubelet.crt"),
            key: dir.join("pki/kubelet.key"),
            own: true,
        },
        client_ca: Some(dir.join("pki/ca.crt")),
        certificates: Certificates {
            folder: dir.join("pki"),
            bootstrap: Some(dir.join("etc/bootstrap-kubelet.conf")),
            client: true,
            serving: true,
        },
        cgroup_root: cgroup_root.clone(),
        cgroups_per_qos: true,
        cgroup_driver: Driver::Cgroupfs,
        cpu_load_balance_disable: false,
        reserved: Vec::new(),
        shutdown_delay: None,
        protect_kernel_defaults: false,
        pods_api: false,
        manage_kernel_tunables: false,
    }
}

async fn start(temp: Arc<tempfile::TempDir>, named: &str, epoch: u64) -> World {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let dir = temp.path().canonicalize().unwrap();
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let cgroup_root = CgroupPath::parse(&format!("/bulkhead-c-test-{}-{n}", std::process::id())).unwrap();
    Hierarchies::detect().unwrap().ensure(&cgroup_root).unwrap();
    for name in ["runtime", "manifests", "var-log", "run"] {
        std::fs::create_dir_all(dir.join(name)).unwrap();
        std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let metrics = kubelet_volnetd::metrics::Metrics::new(&prometheus::Registry::new()).unwrap();
    let settings = settings(&dir, named, &cgroup_root);
    // This process has threads and forks nothing; the real one is in process.rs.
    let of_worker = settings.clone();
    let workers = WorkerPool::here(worker::LIMITS, move |request| worker::perform(&of_worker, request));
    let node = prepare(settings, Epoch::from_random(epoch), metrics, workers).await.unwrap();
    let users = Arc::new(PeerUsers {
        syncd: SYNCD,
        evictiond: EVICTIOND,
        statusd: STATUSD,
        pods_cgroup: format!("{cgroup_root}/kubepods").into(),
        no_pods: None,
    });
    let grpc = dir.join("run/grpc.sock");
    let _ = std::fs::remove_file(&grpc);
    let listener = tokio::net::UnixListener::bind(&grpc).unwrap();
    std::fs::set_permissions(&grpc, std::fs::Permissions::from_mode(0o666)).unwrap();
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
    tokio::spawn(bulkhead_ipc::server::serve(listener, policy, services, std::future::pending()));
    let broker = scm::listen(&dir.join("run/broker.sock"), 0o666).unwrap();
    tokio::spawn(serve_broker(node.clone(), broker, users, Gate::new(Limits::default()), std::future::pending()));
    World { remote: Remote { dir }, node, cgroup_root, _temp: temp }
}

impl Remote {
    /// A gRPC channel of a process with this uid.
    pub async fn channel(&self, uid: u32) -> Channel {
        let path = self.dir.join("run/grpc.sock");
        let stream = as_user(uid, move || std::os::unix::net::UnixStream::connect(path).unwrap()).await;
        stream.set_nonblocking(true).unwrap();
        let mut stream = Some(tokio::net::UnixStream::from_std(stream).unwrap());
        let connector = tower::service_fn(move |_| {
            let stream = stream.take();
            async move {
                stream.map(hyper_util::rt::TokioIo::new).ok_or_else(|| std::io::Error::other("one connection each"))
            }
        });
        Endpoint::from_static("http://volnetd").connect_with_connector(connector).await.unwrap()
    }

    /// One broker request of a process with this uid: the code, the message and the descriptor.
    pub async fn broker(&self, uid: u32, request: OpenRequest, fd: Option<OwnedFd>) -> (u32, String, Option<OwnedFd>) {
        self.broker_bytes(uid, request.encode_to_vec(), fd).await
    }

    pub async fn broker_bytes(&self, uid: u32, bytes: Vec<u8>, fd: Option<OwnedFd>) -> (u32, String, Option<OwnedFd>) {
        let path = self.dir.join("run/broker.sock");
        as_user(uid, move || {
            let socket = scm::connect(&path).unwrap();
            let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
            // A stranger may have been answered already.
            if let Err(error) = scm::send(&socket, &bytes, &fds) {
                assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
            }
            let mut poll = [rustix::event::PollFd::new(&socket, rustix::event::PollFlags::IN)];
            let timeout = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut poll, Some(&timeout)).unwrap(), 1, "no answer from the broker");
            let mut buffer = vec![0; 65536];
            let mut got = scm::recv(&socket, &mut buffer).unwrap();
            let reply = OpenReply::decode(&buffer[..got.len]).unwrap();
            (reply.code, reply.message, got.fds.pop())
        })
        .await
    }

    pub async fn open(&self, uid: u32, kind: Kind) -> Result<OwnedFd, (tonic::Code, String)> {
        let (code, message, fd) =
            self.broker(uid, OpenRequest { id: 1, kind: Some(kind), ..Default::default() }, None).await;
        match fd {
            Some(fd) if code == 0 => Ok(fd),
            _ => Err((tonic::Code::from_i32(code.cast_signed()), message)),
        }
    }

    pub fn guard(&self, generation: u64) -> Option<DestructiveGuard> {
        Some(DestructiveGuard { volnetd_epoch: 7, syncd_epoch: 9, generation, sources_ready: true })
    }

    pub fn pod(&self, uid: &str) -> PathBuf {
        self.dir.join("root/pods").join(uid)
    }

    /// Lines of mountinfo at or below a path.
    pub fn mounts(&self, path: &Path) -> Vec<String> {
        bulkhead_sys::mountinfo::MountInfo::new()
            .read()
            .unwrap()
            .filter(|m| m.mount_point.starts_with(path))
            .map(|m| format!("{} {} {}", m.mount_point.display(), m.fs_type, m.super_options))
            .collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        clean_up(&self.remote.dir, &self.cgroup_root);
    }
}

/// Unmounts what is below a directory and removes the cgroup.
pub fn clean_up(dir: &Path, cgroup_root: &CgroupPath) {
    let mut points: Vec<PathBuf> = bulkhead_sys::mountinfo::MountInfo::new()
        .read()
        .map(|mounts| mounts.filter(|m| m.mount_point.starts_with(dir)).map(|m| m.mount_point.into_owned()).collect())
        .unwrap_or_default();
    points.sort_by_key(|p| std::cmp::Reverse(p.components().count()));
    for point in points {
        let _ = rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH);
    }
    if let Ok(hierarchies) = Hierarchies::detect() {
        let _ = hierarchies.kill_and_remove(cgroup_root);
    }
}

/// Runs on a thread whose credentials are this user's: the kernel's user is a thread's, not a process's.
pub async fn as_user<T: Send + 'static>(uid: u32, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        if uid != 0 {
            let (gid, uid) = (rustix::process::Gid::from_raw(uid), rustix::process::Uid::from_raw(uid));
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
            rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        }
        let _ = sender.send(work());
    });
    receiver.await.unwrap()
}
