//! The real process, started as the launcher starts it: what it holds, and that it measures with just that. Disks are
//! kubelet-walker's, whose own tests show them.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::{NodeConfig, Users};
use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::common::PrivilegesRequest;
use bulkhead_ipc::common::process_client::ProcessClient;
use bulkhead_ipc::evictiond::stats_client::StatsClient;
use bulkhead_ipc::evictiond::{CgroupsRequest, SummaryRequest, cgroups_part, summary_part::Part};
use bulkhead_ipc::peers::{MethodRule, PeerUsers, Policy, Role};
use bulkhead_ipc::server::{self, Services};
use bulkhead_ipc::syncd::node_server::{Node, NodeServer};
use bulkhead_ipc::syncd::pods_server::{Pods, PodsServer};
use bulkhead_ipc::syncd::{
    ContainerState, GetNodeRequest, GetPodRequest, ListPodsRequest, NodeState, PodState, PodUpdate, PodVolume,
    WatchNodeRequest, WatchPodsRequest,
};
use bulkhead_sys::spawn::{Spec, User};
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_types::Process;
use tonic::{Request, Response, Status};

/// Beside the range that real instances claim.
const BASE: u32 = 61190;

type List<T> = tokio_stream::Iter<std::vec::IntoIter<Result<T, Status>>>;

struct OnePod;

#[tonic::async_trait]
impl Pods for OnePod {
    type ListStream = List<PodState>;
    type WatchStream = List<PodUpdate>;
    async fn list(&self, _: Request<ListPodsRequest>) -> Result<Response<Self::ListStream>, Status> {
        let volume = PodVolume { name: "scratch".into(), kind: "emptyDir".into(), ready: true, ..Default::default() };
        let pod = PodState {
            uid: "u1".into(),
            namespace: "default".into(),
            name: "web".into(),
            volumes: vec![volume],
            containers: vec![ContainerState {
                name: "a".into(),
                id: "c1".into(),
                state: "running".into(),
                ..Default::default()
            }],
            ..Default::default()
        };
        Ok(Response::new(tokio_stream::iter(vec![Ok(pod)])))
    }
    async fn get(&self, _: Request<GetPodRequest>) -> Result<Response<PodState>, Status> {
        Err(Status::unimplemented("not faked"))
    }
    async fn watch(&self, _: Request<WatchPodsRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("not faked"))
    }
}

#[tonic::async_trait]
impl Node for OnePod {
    type WatchStream = List<NodeState>;
    async fn get(&self, _: Request<GetNodeRequest>) -> Result<Response<NodeState>, Status> {
        Ok(Response::new(NodeState { sources_ready: true, ..Default::default() }))
    }
    async fn watch(&self, _: Request<WatchNodeRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("not faked"))
    }
}

const RULES: &[MethodRule] = &[
    MethodRule { method: "/kubelet.syncd.v1.Node/Get", peers: &[Role::Evictiond] },
    MethodRule { method: "/kubelet.syncd.v1.Pods/List", peers: &[Role::Evictiond] },
];

/// Only kubelet-evictiond's own user may list, so an answer proves that the peer check saw it.
fn fake_syncd(config: &NodeConfig) {
    let socket = config.paths.socket(Process::Syncd);
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    let users = PeerUsers {
        syncd: config.users.syncd,
        evictiond: config.users.evictiond,
        statusd: config.users.statusd,
        pods_cgroup: "/none".into(),
        no_pods: None,
    };
    let policy = Policy { users: Arc::new(users), rules: RULES };
    let services = Services::new().add(PodsServer::new(OnePod)).add(NodeServer::new(OnePod));
    tokio::spawn(server::serve(listener, policy, services, std::future::pending()));
}

struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(config: &NodeConfig) -> Killed {
    let listener = std::os::unix::net::UnixListener::bind(config.paths.socket(Process::Evictiond)).unwrap();
    let mut spec = Spec::new(env!("CARGO_BIN_EXE_kubelet-evictiond"));
    spec.args = vec!["--run-dir".into(), config.paths.run_dir.clone().into()];
    spec.fds = vec![("grpc".into(), listener.into())];
    let (uid, gid) = (config.users.evictiond, config.users.evictiond_gid);
    spec.user = Some(User { uid, gid, groups: vec![config.users.gid] });
    spec.bounding = Some(Vec::new());
    spec.no_new_privs = true;
    spec.die_with_parent = true;
    Killed(spec.spawn().unwrap())
}

fn node(root: &Path) -> NodeConfig {
    let mut config = NodeConfig::for_tests(root);
    config.users = Users::block(BASE);
    std::fs::create_dir_all(&config.paths.run_dir).unwrap();
    config.save(&config.paths.rendered_config()).unwrap();
    config
}

#[tokio::test]
async fn the_process_measures_without_a_capability() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return skip_this_test(Lack::Root).unwrap();
    }
    let temp = tempfile::tempdir().unwrap();
    let config = node(temp.path());
    fake_syncd(&config);
    let _process = start(&config);

    let channel = bulkhead_ipc::client::channel(&config.paths.socket(Process::Evictiond));
    let patience = Duration::from_secs(30);
    let call = async {
        let mut request = Request::new(PrivilegesRequest {});
        request.set_timeout(patience);
        ProcessClient::new(channel.clone()).privileges(request).await
    };
    let held = tokio::time::timeout(patience, call).await.unwrap().unwrap().into_inner();
    assert_eq!((held.uid, held.gid, held.groups.as_slice()), (BASE + 2, BASE + 2, [BASE].as_slice()));
    for set in [&held.effective, &held.permitted, &held.bounding] {
        assert!(set.is_empty(), "{set:?}");
    }
    assert!(held.no_new_privs && !held.dumpable && held.seccomp_mode == 2, "{held:?}");
    let files: Vec<&String> = held.landlock.iter().filter(|rule| rule.contains('/')).collect();
    let [proc, cgroups, own] = files.as_slice() else { panic!("{files:?}") };
    assert_eq!((proc.as_str(), cgroups.as_str()), ("read-file /proc", "read-file /sys/fs/cgroup"));
    let state = config.paths.private_state(Process::Evictiond);
    assert!(own.starts_with(&format!("read-write {}", state.display())), "{own}");
    assert!(held.warnings.is_empty(), "{:?}", held.warnings);

    let mut client = StatsClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let call = async {
        let mut parts = client.summary(SummaryRequest { max_age_ms: 1, ..Default::default() }).await?.into_inner();
        let mut all = Vec::new();
        while let Some(part) = parts.message().await? {
            all.extend(part.part);
        }
        Ok::<_, Status>(all)
    };
    let parts = tokio::time::timeout(patience, call).await.unwrap().unwrap();
    let [Part::Node(node), Part::Pod(pod)] = parts.as_slice() else { panic!("{parts:?}") };
    assert!(node.pods_known && node.cpu.as_ref().unwrap().usage_nano_cores.is_some());
    // Nobody enters file systems for it here: that is unknown, and the rest is told.
    assert!(pod.volumes.is_empty() && node.node_fs.is_none(), "{pod:?}");
    assert!(node.network.is_some(), "readable without a capability");

    let call = async {
        let mut parts = client.cgroups(CgroupsRequest::default()).await?.into_inner();
        let mut all = Vec::new();
        while let Some(part) = parts.message().await? {
            all.extend(part.part);
        }
        Ok::<_, Status>(all)
    };
    let parts = tokio::time::timeout(patience, call).await.unwrap().unwrap();
    let [cgroups_part::Part::Machine(machine), cgroups_part::Part::Page(page)] = parts.as_slice() else {
        panic!("{parts:?}")
    };
    assert!(machine.cores > 0 && machine.pods_known);
    let root = &page.cgroups[0];
    let tasks = root.tasks.unwrap();
    assert!(root.id == "/" && tasks.max_open_files.is_some(), "{tasks:?}");
    assert!(tasks.file_descriptors.unwrap() > tasks.processes.unwrap(), "of other users' processes: {tasks:?}");
    assert!(root.file_systems.is_empty() && !root.interfaces.is_empty());
}
