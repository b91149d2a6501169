//! The command against processes that are fakes behind the real gRPC server: what an operator sees, and the exit codes.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::sync::Arc;

use bulkhead_ipc::common::process_server::{Process as ProcessApi, ProcessServer};
use bulkhead_ipc::common::{
    HelloReply, HelloRequest, MetricsReply, MetricsRequest, PrivilegesReply, PrivilegesRequest, SnapshotDone,
};
use bulkhead_ipc::evictiond::stats_server::{Stats, StatsServer};
use bulkhead_ipc::evictiond::{
    CgroupsPart, CgroupsRequest, NodeStats, SummaryPart, SummaryRequest, summary_part::Part,
};
use bulkhead_ipc::peers::{MethodRule, PeerUsers, Policy, Role};
use bulkhead_ipc::server::{self, Services, ServingStatus};
use bulkhead_ipc::statusd::status_server::{Status as StatusApi, StatusServer};
use bulkhead_ipc::statusd::{Check, GetStatusRequest, StatusReply};
use bulkhead_ipc::syncd::node_server::{Node, NodeServer};
use bulkhead_ipc::syncd::pods_server::{Pods, PodsServer};
use bulkhead_ipc::syncd::resource_entry::Entry;
use bulkhead_ipc::syncd::resources_server::{Resources, ResourcesServer};
use bulkhead_ipc::syncd::{
    ContainerState, CpuCore, Event, GetNodeRequest, GetPodRequest, ListPodsRequest, ListResourcesRequest, NodeState,
    NumaNode, PodState, PodUpdate, PodVolume, ResourceEntry, ResourceHolder, WatchPodsRequest, WorkerState,
    pod_update::Update,
};
use bulkhead_ipc::volnetd::cgroups_server::{Cgroups, CgroupsServer};
use bulkhead_ipc::volnetd::volumes_server::{Volumes, VolumesServer};
use bulkhead_ipc::volnetd::{self, PodCgroup, Qos, VolumeState};
use bulkhead_types::Process;
use kubelet_ctl::Exit;
use tonic::{Request, Response, Status};

type Answer<T> = Result<Response<T>, Status>;
type List<T> = tokio_stream::Iter<std::vec::IntoIter<Result<T, Status>>>;

fn list<T>(items: Vec<T>) -> Answer<List<T>> {
    Ok(Response::new(tokio_stream::iter(items.into_iter().map(Ok).collect::<Vec<_>>())))
}

fn not_faked<T>() -> Answer<T> {
    Err(Status::unimplemented("not faked"))
}

#[derive(Clone)]
struct Fake {
    process: Process,
    ready: bool,
}

#[tonic::async_trait]
impl ProcessApi for Fake {
    async fn hello(&self, _: Request<HelloRequest>) -> Answer<HelloReply> {
        let reason = if self.ready { "" } else { "waiting for something" };
        Ok(Response::new(HelloReply {
            epoch: 7,
            ready: self.ready,
            version: "0.1.0".into(),
            not_ready_reason: reason.into(),
            ..Default::default()
        }))
    }
    async fn privileges(&self, _: Request<PrivilegesRequest>) -> Answer<PrivilegesReply> {
        let uid = if self.process == Process::Volnetd { 0 } else { 60706 + self.process as u32 };
        Ok(Response::new(PrivilegesReply { uid, no_new_privs: true, seccomp_mode: 2, ..Default::default() }))
    }
    async fn metrics(&self, _: Request<MetricsRequest>) -> Answer<MetricsReply> {
        not_faked()
    }
}

fn pod(namespace: &str, name: &str, uid: &str) -> PodState {
    PodState {
        uid: uid.into(),
        namespace: namespace.into(),
        name: name.into(),
        source: "file".into(),
        worker: WorkerState::Sync.into(),
        phase: "Running".into(),
        why: "runs".into(),
        containers: vec![ContainerState {
            name: "main".into(),
            state: "running".into(),
            ready: true,
            ..Default::default()
        }],
        volumes: vec![PodVolume { name: "scratch".into(), kind: "emptyDir".into(), ready: true, ..Default::default() }],
        status_json: br#"{"phase":"Running"}"#.to_vec(),
        recent_events: vec![Event {
            time: "2026-01-01T00:00:00Z".into(),
            r#type: "Normal".into(),
            reason: "Started".into(),
            message: "Container started".into(),
            ..Default::default()
        }],
        ..Default::default()
    }
}

#[tonic::async_trait]
impl Pods for Fake {
    type ListStream = List<PodState>;
    type WatchStream = List<PodUpdate>;
    async fn list(&self, _: Request<ListPodsRequest>) -> Answer<Self::ListStream> {
        list(vec![pod("kube-system", "dns-n", "u2"), pod("default", "web-n", "u1")])
    }
    async fn get(&self, _: Request<GetPodRequest>) -> Answer<PodState> {
        not_faked()
    }
    async fn watch(&self, _: Request<WatchPodsRequest>) -> Answer<Self::WatchStream> {
        let updates = [
            Update::Upsert(pod("default", "web-n", "u1")),
            Update::SnapshotDone(SnapshotDone {}),
            Update::Upsert(pod("default", "later-n", "u3")),
            Update::RemovedUid("u1".into()),
        ];
        list(updates.map(|update| PodUpdate { cursor: None, update: Some(update) }).to_vec())
    }
}

#[tonic::async_trait]
impl Node for Fake {
    async fn get(&self, _: Request<GetNodeRequest>) -> Answer<NodeState> {
        Ok(Response::new(NodeState { runtime_ready: true, network_ready: true, ..Default::default() }))
    }
    type WatchStream = List<NodeState>;
    async fn watch(&self, _: Request<bulkhead_ipc::syncd::WatchNodeRequest>) -> Answer<Self::WatchStream> {
        not_faked()
    }
}

#[tonic::async_trait]
impl Resources for Fake {
    type ListStream = List<ResourceEntry>;
    async fn list(&self, _: Request<ListResourcesRequest>) -> Answer<Self::ListStream> {
        let cores = vec![CpuCore { socket: 0, cpus: vec![0, 1] }];
        let holder = ResourceHolder {
            namespace: "default".into(),
            pod: "web-n".into(),
            pod_uid: "u1".into(),
            container: "main".into(),
            cpus: vec![1],
            ..Default::default()
        };
        let entries = [Entry::Node(NumaNode { id: 0, cores, memory_bytes: 1 << 30 }), Entry::Holder(holder)];
        list(entries.map(|entry| ResourceEntry { entry: Some(entry) }).into())
    }
}

#[tonic::async_trait]
impl StatusApi for Fake {
    async fn get(&self, _: Request<GetStatusRequest>) -> Answer<StatusReply> {
        let ping = Check { name: "ping".into(), ok: true, ..Default::default() };
        let message = "has not answered for 3s: connection refused".into();
        let checks = vec![ping, Check { name: "apiserver".into(), ok: false, message, informative: true }];
        Ok(Response::new(StatusReply { node_name: "n".into(), listening: Vec::new(), checks }))
    }
}

#[tonic::async_trait]
impl Stats for Fake {
    type SummaryStream = List<SummaryPart>;
    async fn summary(&self, _: Request<SummaryRequest>) -> Answer<Self::SummaryStream> {
        let node = NodeStats { node_name: "n".into(), pods_known: true, ..Default::default() };
        list(vec![SummaryPart { part: Some(Part::Node(node)) }])
    }
    type CgroupsStream = List<CgroupsPart>;
    async fn cgroups(&self, _: Request<CgroupsRequest>) -> Answer<Self::CgroupsStream> {
        not_faked()
    }
}

#[tonic::async_trait]
impl Volumes for Fake {
    type ListVolumesStream = List<VolumeState>;
    type PruneStream = List<volnetd::PruneStep>;
    async fn list_volumes(&self, _: Request<volnetd::ListVolumesRequest>) -> Answer<Self::ListVolumesStream> {
        list(vec![VolumeState {
            pod_uid: "u1".into(),
            volume: "scratch".into(),
            plugin: "kubernetes.io/empty-dir".into(),
            host_path: "/p".into(),
            mounted: true,
            fs_type: "tmpfs".into(),
            ..Default::default()
        }])
    }
    async fn prepare_pod(&self, _: Request<volnetd::PreparePodRequest>) -> Answer<volnetd::PreparePodReply> {
        not_faked()
    }
    async fn set_up_empty_dir(&self, _: Request<volnetd::SetUpEmptyDirRequest>) -> Answer<volnetd::SetUpVolumeReply> {
        not_faked()
    }
    async fn check_host_path(&self, _: Request<volnetd::CheckHostPathRequest>) -> Answer<volnetd::SetUpVolumeReply> {
        not_faked()
    }
    async fn tear_down_pod(&self, _: Request<volnetd::TearDownPodRequest>) -> Answer<volnetd::TearDownPodReply> {
        not_faked()
    }
    async fn prune(&self, _: Request<volnetd::PruneRequest>) -> Answer<Self::PruneStream> {
        not_faked()
    }
    async fn set_up_content(&self, _: Request<volnetd::SetUpContentRequest>) -> Answer<volnetd::SetUpVolumeReply> {
        not_faked()
    }
    async fn set_up_nfs(&self, _: Request<volnetd::SetUpNfsRequest>) -> Answer<volnetd::SetUpVolumeReply> {
        not_faked()
    }
    async fn set_up_fc(&self, _: Request<volnetd::SetUpFcRequest>) -> Answer<volnetd::SetUpVolumeReply> {
        not_faked()
    }
    async fn set_up_iscsi(&self, _: Request<volnetd::SetUpIscsiRequest>) -> Answer<volnetd::SetUpVolumeReply> {
        not_faked()
    }
    async fn ask_flex_driver(&self, _: Request<volnetd::AskFlexDriverRequest>) -> Answer<volnetd::AskFlexDriverReply> {
        not_faked()
    }
    async fn set_up_flex(&self, _: Request<volnetd::SetUpFlexRequest>) -> Answer<volnetd::SetUpFlexReply> {
        not_faked()
    }
    async fn end_disk(&self, _: Request<volnetd::EndDiskRequest>) -> Answer<volnetd::EndDiskReply> {
        not_faked()
    }
    type ListDisksStream = List<volnetd::DiskState>;
    async fn list_disks(&self, _: Request<volnetd::ListDisksRequest>) -> Answer<Self::ListDisksStream> {
        not_faked()
    }
    async fn set_up_local(&self, _: Request<volnetd::SetUpLocalRequest>) -> Answer<volnetd::SetUpVolumeReply> {
        not_faked()
    }
    async fn prepare_sub_path(&self, _: Request<volnetd::PrepareSubPathRequest>) -> Answer<volnetd::SetUpVolumeReply> {
        not_faked()
    }
}

#[tonic::async_trait]
impl Cgroups for Fake {
    type ListStream = List<PodCgroup>;
    async fn list(&self, _: Request<volnetd::ListCgroupsRequest>) -> Answer<Self::ListStream> {
        let cgroup = PodCgroup { pod_uid: "u1".into(), qos: Qos::BestEffort.into(), cgroup: "/kubepods/x".into() };
        list(vec![cgroup])
    }
    async fn ensure_node(&self, _: Request<volnetd::EnsureNodeRequest>) -> Answer<volnetd::EnsureNodeReply> {
        not_faked()
    }
    async fn enforce_reserved(
        &self,
        _: Request<volnetd::EnforceReservedRequest>,
    ) -> Answer<volnetd::EnforceReservedReply> {
        not_faked()
    }
    async fn ensure_pod(&self, _: Request<volnetd::EnsurePodRequest>) -> Answer<volnetd::EnsurePodReply> {
        not_faked()
    }
    async fn set_qos(&self, _: Request<volnetd::SetQosRequest>) -> Answer<volnetd::SetQosReply> {
        not_faked()
    }
    async fn remove_pod(&self, _: Request<volnetd::RemovePodRequest>) -> Answer<volnetd::RemovePodReply> {
        not_faked()
    }
    async fn end_session(&self, _: Request<volnetd::EndSessionRequest>) -> Answer<volnetd::EndSessionReply> {
        not_faked()
    }
}

const OPERATOR: &[Role] = &[Role::Operator];
const RULES: &[MethodRule] = &[
    MethodRule { method: "/kubelet.syncd.v1.Pods/List", peers: OPERATOR },
    MethodRule { method: "/kubelet.syncd.v1.Pods/Watch", peers: OPERATOR },
    MethodRule { method: "/kubelet.syncd.v1.Node/Get", peers: OPERATOR },
    MethodRule { method: "/kubelet.syncd.v1.Resources/List", peers: OPERATOR },
    MethodRule { method: "/kubelet.statusd.v1.Status/Get", peers: OPERATOR },
    MethodRule { method: "/kubelet.evictiond.v1.Stats/Summary", peers: OPERATOR },
    MethodRule { method: "/kubelet.volnetd.v1.Volumes/ListVolumes", peers: OPERATOR },
    MethodRule { method: "/kubelet.volnetd.v1.Cgroups/List", peers: &[Role::Evictiond] },
];

async fn serve(process: Process, run_dir: &Path, ready: bool) {
    let listener = tokio::net::UnixListener::bind(run_dir.join(format!("{process}.sock"))).unwrap();
    let users =
        PeerUsers { syncd: 60801, evictiond: 60802, statusd: 60803, pods_cgroup: "/none".into(), no_pods: None };
    let services = Services::new();
    services.health().set_service_status("", ServingStatus::Serving).await;
    let fake = Fake { process, ready };
    let services = services.add(ProcessServer::new(fake.clone()));
    let services = match process {
        Process::Syncd => {
            let services = services.add(PodsServer::new(fake.clone())).add(NodeServer::new(fake.clone()));
            services.add(ResourcesServer::new(fake))
        }
        Process::Volnetd => services.add(VolumesServer::new(fake.clone())).add(CgroupsServer::new(fake)),
        Process::Evictiond => services.add(StatsServer::new(fake)),
        Process::Statusd => services.add(StatusServer::new(fake)),
    };
    let policy = Policy { users: Arc::new(users), rules: RULES };
    tokio::spawn(server::serve(listener, policy, services, std::future::pending()));
}

async fn node(ready: bool) -> tempfile::TempDir {
    let run_dir = tempfile::tempdir().unwrap();
    for process in Process::ALL {
        serve(process, run_dir.path(), ready).await;
    }
    run_dir
}

/// Exit code, standard output, standard error.
async fn ctl(run_dir: &Path, line: &str) -> (Exit, String, String) {
    let mut args: Vec<std::ffi::OsString> = vec!["kubelet-ctl".into()];
    args.extend(line.split(' ').map(Into::into));
    args.extend(["--run-dir".into(), run_dir.into()]);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = kubelet_ctl::run(args, &mut out, &mut err).await;
    (exit, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

#[tokio::test]
async fn pods_in_all_forms() {
    let node = node(true).await;
    let (exit, out, err) = ctl(node.path(), "pods").await;
    assert_eq!((exit, err.as_str()), (Exit::Success, ""));
    assert_eq!(
        out,
        "\
NAMESPACE     NAME    READY   STATUS    RESTARTS   AGE   IP   SOURCE   WHY
default       web-n   1/1     Running   0          -     -    file     runs
kube-system   dns-n   1/1     Running   0          -     -    file     runs
"
    );
    let (_, out, _) = ctl(node.path(), "pods -n default -o json").await;
    let pods: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((pods.as_array().unwrap().len(), &pods[0]["worker"]), (1, &"Sync".into()));
    assert!(pods[0].get("status").is_none());
    let (_, out, _) = ctl(node.path(), "pod dns -o yaml").await;
    assert!(out.contains("name: dns-n\n") && out.contains("status:\n  phase: Running\n"), "{out}");
    let (exit, out, _) = ctl(node.path(), "pod kube-system/dns-n").await;
    assert!(
        exit == Exit::Success
            && out.starts_with("kube-system/dns-n is Running, 1/1 containers ready: runs\n\nName:        dns-n\n"),
        "{out}"
    );
    let (exit, out, err) = ctl(node.path(), "pod nothing").await;
    assert_eq!(
        (exit, out.as_str(), err.as_str()),
        (Exit::NotFound, "", "kubelet-ctl: there is no pod \"nothing\" on this node\n")
    );
    let (exit, _, err) = ctl(node.path(), "pods -n nothing").await;
    assert_eq!((exit, err.as_str()), (Exit::Success, "No pods in namespace nothing.\n"));
}

#[tokio::test]
async fn a_watch_goes_on_until_the_process_ends_it() {
    let node = node(true).await;
    let (exit, out, err) = ctl(node.path(), "pods --watch").await;
    let names: Vec<&str> = out.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(names, ["NAME", "web-n", "later-n"]);
    assert_eq!(exit, Exit::Unreachable);
    assert!(err.starts_with("pod with uid u1 is gone\n") && err.contains("kubelet-syncd does not answer"), "{err}");
    let (_, out, _) = ctl(node.path(), "pods -w -o json").await;
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[1]["name"], &lines[2]["removedUid"]), (&"later-n".into(), &"u1".into()));
}

#[tokio::test]
async fn every_command_has_every_form() {
    let node = node(true).await;
    for command in ["pods", "pod web", "volumes", "health", "privileges", "stats", "top", "events", "resources"] {
        for format in ["table", "json", "yaml"] {
            let (exit, out, err) = ctl(node.path(), &format!("{command} -o {format}")).await;
            // The fakes are no processes of their own, which is a difference from the map.
            let expected = if command == "privileges" { Exit::Differs } else { Exit::Success };
            assert_eq!((exit, err.as_str()), (expected, ""), "{command} {format}");
            assert!(!out.is_empty(), "{command} {format}");
            if format == "json" {
                serde_json::from_str::<serde_json::Value>(&out).unwrap();
            }
        }
    }
    let (_, out, _) = ctl(node.path(), "resources").await;
    assert!(out.contains("  cpu   [0:. 1:A]\n") && out.contains("A     default     web-n   main"), "{out}");
    let (_, out, _) = ctl(node.path(), "volumes").await;
    assert!(out.contains("default       web-n   scratch   emptyDir   yes       tmpfs   /p"), "{out}");
    let (_, out, _) = ctl(node.path(), "privileges").await;
    let line = |name: &str| out.lines().find(|line| line.starts_with(name)).map(str::to_owned).unwrap_or_default();
    assert!(line("kubelet-volnetd").contains("NO: process: does not run"), "{out}");
    assert!(out.contains("privileges --detail shows"), "{out}");
    let (_, out, _) = ctl(node.path(), "privileges --detail").await;
    assert!(out.contains("kubelet-volnetd: DIFFERS") && out.contains("does not run"), "{out}");
}

#[tokio::test]
async fn a_refusal_is_passed_on() {
    let node = node(true).await;
    let (exit, _, err) = ctl(node.path(), "cgroups").await;
    assert_eq!(exit, Exit::NotFound);
    assert!(
        err.contains("kubelet-volnetd refused: /kubelet.volnetd.v1.Cgroups/List is for kubelet-evictiond"),
        "{err}"
    );
}

#[tokio::test]
async fn health_by_exit_code() {
    let well = node(true).await;
    let (exit, out, _) = ctl(well.path(), "health").await;
    assert!(exit == Exit::Success && out.starts_with("Node n: healthy\n"), "{out}");
    let unwell = node(false).await;
    let (exit, out, _) = ctl(unwell.path(), "health").await;
    assert!(exit == Exit::NotFound && out.contains("waiting for something"), "{out}");
}

#[tokio::test]
async fn what_does_not_answer_is_named() {
    let run_dir = tempfile::tempdir().unwrap();
    let (exit, _, err) = ctl(run_dir.path(), "pods").await;
    assert_eq!(exit, Exit::Unreachable);
    assert!(err.contains("no node has its sockets in"), "{err}");

    // A supervisor holds the socket, nobody serves.
    let held = tokio::net::UnixListener::bind(run_dir.path().join("kubelet-syncd.sock")).unwrap();
    let (exit, _, err) = ctl(run_dir.path(), "pods").await;
    assert_eq!(exit, Exit::Unreachable);
    assert!(err.contains("kubelet-syncd does not answer on") && err.contains("kubelet-syncd.sock"), "{err}");
    drop(held);
    let (exit, _, err) = ctl(run_dir.path(), "pods").await;
    assert_eq!(exit, Exit::Unreachable);
    assert!(err.contains("does not listen"), "{err}");
    let (exit, _, err) = ctl(run_dir.path(), "volumes").await;
    assert_eq!(exit, Exit::Unreachable);
    assert!(err.contains("kubelet-volnetd has no socket"), "{err}");

    // Volumes are shown by uid while kubelet-syncd is away.
    serve(Process::Volnetd, run_dir.path(), true).await;
    let (exit, out, err) = ctl(run_dir.path(), "volumes").await;
    assert!(exit == Exit::Success && out.contains("u1") && err.contains("shown by uid"), "{out}{err}");
    let (exit, out, _) = ctl(run_dir.path(), "privileges --detail").await;
    assert!(exit == Exit::Differs && out.contains("kubelet-syncd does not listen"), "{out}");
}

#[tokio::test]
async fn a_wrong_command_line_is_2() {
    let run_dir = tempfile::tempdir().unwrap();
    assert_eq!(ctl(run_dir.path(), "pods -o xml").await.0, Exit::Usage);
    assert_eq!(ctl(run_dir.path(), "nothing").await.0, Exit::Usage);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let words = ["kubelet-ctl", "privileges", "--vsock", "3:10240"].map(std::ffi::OsString::from);
    assert_eq!(kubelet_ctl::run(words, &mut out, &mut err).await, Exit::Usage);
    let err = String::from_utf8(err).unwrap();
    assert!(out.is_empty() && err.contains("on the machine itself"), "another machine's processes: {err}");
    let (exit, out, _) = ctl(run_dir.path(), "pods --help").await;
    assert!(exit == Exit::Success && out.contains("--watch"), "{out}");
}
