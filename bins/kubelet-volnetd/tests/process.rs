//! The built program, confined as it is when it ships: it has what it needs, nothing else, and a restart loses no
//! caller. Sets the kernel tunables of the machine as every node does. Needs root.

#![allow(clippy::unwrap_used)] // helpers of tests are no tests to the lint

mod world;

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Child;

use bulkhead_config::NodeConfig;
use bulkhead_ipc::common::process_client::ProcessClient;
use bulkhead_ipc::common::{DestructiveGuard, HelloRequest, PrivilegesRequest};
use bulkhead_ipc::volnetd::cgroups_client::CgroupsClient;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::*;
use bulkhead_sys::cgroup::{CgroupPath, Hierarchies};
use bulkhead_sys::spawn::Spec;
use world::*;

fn start(run_dir: &Path, grpc: &OwnedFd, broker: &OwnedFd) -> Child {
    let mut spec = Spec::new(env!("CARGO_BIN_EXE_kubelet-volnetd"));
    spec.args = vec!["--run-dir".into(), run_dir.into()];
    spec.fds = vec![("grpc".to_owned(), grpc.try_clone().unwrap()), ("broker".to_owned(), broker.try_clone().unwrap())];
    spec.spawn().unwrap()
}

/// Waits until it can do its job, and answers its epoch.
async fn ready(remote: &Remote) -> u64 {
    for _ in 0..200 {
        let mut process = ProcessClient::new(remote.channel(SYNCD).await);
        if let Ok(reply) = process.hello(HelloRequest::default()).await {
            let reply = reply.into_inner();
            if reply.ready {
                return reply.epoch;
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("volnetd did not get ready");
}

#[tokio::test(flavor = "current_thread")]
async fn confined_and_restarted() {
    if !rustix::process::getuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().canonicalize().unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["run", "manifests"] {
        std::fs::create_dir(dir.join(name)).unwrap();
    }
    let cgroup_root = CgroupPath::parse(&format!("/bulkhead-c-test-process-{}", std::process::id())).unwrap();
    let hierarchies = Hierarchies::detect().unwrap();
    hierarchies.ensure(&cgroup_root).unwrap();
    let mut config = NodeConfig::for_tests(&dir);
    config.cgroup_root = cgroup_root.to_string();
    (config.users.syncd, config.users.evictiond, config.users.statusd) = (SYNCD, EVICTIOND, STATUSD);
    config.save(&config.paths.rendered_config()).unwrap();
    let remote = Remote { dir: dir.clone() };
    let listener = std::os::unix::net::UnixListener::bind(dir.join("run/grpc.sock")).unwrap();
    std::fs::set_permissions(dir.join("run/grpc.sock"), std::fs::Permissions::from_mode(0o666)).unwrap();
    let grpc = OwnedFd::from(listener);
    let broker = bulkhead_sys::scm::listen(&dir.join("run/broker.sock"), 0o666).unwrap();

    let mut child = start(&dir.join("run"), &grpc, &broker);
    let cleaner = Cleaner { dir: dir.clone(), cgroup_root, pid: std::cell::Cell::new(child.id()) };
    let first = ready(&remote).await;
    let privileges =
        ProcessClient::new(remote.channel(OPERATOR).await).privileges(PrivilegesRequest {}).await.unwrap().into_inner();
    let mut expected: Vec<String> =
        kubelet_volnetd::confine::CAPABILITIES.iter().map(|cap| bulkhead_sys::process::short_name(*cap)).collect();
    let available = bulkhead_sys::process::permitted().unwrap();
    expected.retain(|name| available.iter().any(|cap| bulkhead_sys::process::short_name(*cap) == *name));
    expected.sort();
    let mut effective = privileges.effective.clone();
    effective.sort();
    assert_eq!(effective, expected);
    assert_eq!((privileges.uid, privileges.seccomp_mode), (0, 2));
    assert!(privileges.no_new_privs && !privileges.dumpable);

    // The work of every capability, with what is left of root.
    let channel = remote.channel(SYNCD).await;
    let mut volumes = VolumesClient::new(channel.clone());
    let mut cgroups = CgroupsClient::new(channel);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    for (volume, medium) in [("disk", Medium::Disk), ("mem", Medium::Memory)] {
        let request = SetUpEmptyDirRequest {
            pod_uid: "p".into(),
            volume: volume.into(),
            medium: medium.into(),
            size_limit_bytes: 1 << 20,
            huge_page_bytes: 0,
            ..Default::default()
        };
        volumes.set_up_empty_dir(request).await.unwrap();
    }
    let pod = dir.join("root/pods/p");
    let private = pod.join("volumes/kubernetes.io~empty-dir/disk/private");
    std::fs::create_dir(&private).unwrap();
    std::fs::write(private.join("file"), "x").unwrap();
    std::os::unix::fs::chown(&private, Some(STRANGER), Some(STRANGER)).unwrap();
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o1000)).unwrap();
    cgroups.ensure_node(EnsureNodeRequest::default()).await.unwrap();
    let request = EnsurePodRequest { pod_uid: "p".into(), qos: Qos::Burstable.into(), resources: None };
    let parent = cgroups.ensure_pod(request).await.unwrap().into_inner().cgroup_parent;
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let path = CgroupPath::parse(&parent).unwrap();
    std::fs::write(hierarchies.file("cpu", &path, "cgroup.procs").unwrap(), sleeper.id().to_string()).unwrap();
    let reaper = std::thread::spawn(move || sleeper.wait().unwrap().success());
    let state = remote.open(SYNCD, Kind::PrivateState(PrivateState {})).await.unwrap();
    assert_eq!(rustix::fs::fstat(&state).unwrap().st_uid, SYNCD);
    if let Err((code, message)) = remote.open(EVICTIOND, Kind::Kmsg(Kmsg {})).await {
        assert_eq!(code, tonic::Code::NotFound, "{message}");
    }

    // SIGKILL; a caller that connects meanwhile waits in the passed socket.
    child.kill().unwrap();
    child.wait().unwrap();
    let waiting = remote.channel(SYNCD).await;
    child = start(&dir.join("run"), &grpc, &broker);
    cleaner.pid.set(child.id());
    ProcessClient::new(waiting).hello(HelloRequest::default()).await.unwrap();
    let second = ready(&remote).await;
    assert_ne!(first, second);
    let channel = remote.channel(SYNCD).await;
    let mut volumes = VolumesClient::new(channel.clone());
    let mut stream = volumes.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    let mut mounted = 0;
    while let Some(volume) = stream.message().await.unwrap() {
        mounted += u32::from(volume.mounted);
        assert!(!volume.uncertain);
    }
    assert_eq!(mounted, 1);
    let guard =
        |volnetd_epoch| Some(DestructiveGuard { volnetd_epoch, syncd_epoch: 1, generation: 1, sources_ready: true });
    let stale = TearDownPodRequest { pod_uid: "p".into(), guard: guard(first), volumes_only: false };
    assert_eq!(volumes.tear_down_pod(stale).await.unwrap_err().code(), tonic::Code::FailedPrecondition);
    let request = RemovePodRequest { pod_uid: "p".into(), guard: guard(second) };
    assert!(CgroupsClient::new(channel).remove_pod(request).await.unwrap().into_inner().done);
    assert!(!reaper.join().unwrap(), "killed");
    let request = TearDownPodRequest { pod_uid: "p".into(), guard: guard(second), volumes_only: false };
    let reply = volumes.tear_down_pod(request).await.unwrap().into_inner();
    assert!(reply.done, "{:?}", reply.left);
    assert!(!pod.exists());

    // SIGTERM: it leaves by itself.
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
    assert!(status.success(), "{status}");
}

/// Leaves nothing behind, whatever happened.
struct Cleaner {
    dir: std::path::PathBuf,
    cgroup_root: CgroupPath,
    pid: std::cell::Cell<u32>,
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(pid) = rustix::process::Pid::from_raw(self.pid.get().cast_signed())
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        clean_up(&self.dir, &self.cgroup_root);
    }
}
