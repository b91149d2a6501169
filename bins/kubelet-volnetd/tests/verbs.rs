//! Each verb against what must be refused: a wrong peer, an unknown id, a path in place of an id, a link in the way, a

//! message that is too large, a guard that is stale.

use crate::world;

use std::os::unix::fs::symlink;

use bulkhead_ipc::common::DestructiveGuard;
use bulkhead_ipc::peers::Role;
use bulkhead_ipc::volnetd::cgroups_client::CgroupsClient;
use bulkhead_ipc::volnetd::files_client::FilesClient;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::*;
use kubelet_volnetd::verbs::VERBS;
use tonic::Code;
use world::*;

const PEERS: [(u32, Option<Role>); 5] = [
    (SYNCD, Some(Role::Syncd)),
    (EVICTIOND, Some(Role::Evictiond)),
    (STATUSD, Some(Role::Statusd)),
    (OPERATOR, Some(Role::Operator)),
    (STRANGER, None),
];

/// Sends an empty message to a method and answers the status.
async fn call_empty(channel: tonic::transport::Channel, method: &'static str) -> Code {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    match client.unary(tonic::Request::new(()), method.parse().unwrap(), codec).await {
        Ok(_) => Code::Ok,
        Err(status) => status.code(),
    }
}

#[tokio::test(flavor = "current_thread")]
async fn wrong_peers() {
    let Some(world) = world().await else { return };
    for (uid, role) in PEERS {
        for verb in VERBS {
            if verb.method.ends_with("/Watch") && role == Some(Role::Syncd) {
                continue; // an endless stream; tests/life.rs follows it
            }
            let code = call_empty(world.channel(uid).await, verb.method).await;
            let may = role.is_some_and(|role| verb.peers.contains(&role));
            assert_eq!(code == Code::PermissionDenied, !may, "{} by uid {uid}: {code:?}", verb.method);
            assert_ne!(code, Code::Unimplemented, "{}", verb.method);
        }
        let code = call_empty(world.channel(uid).await, "/kubelet.volnetd.v1.Volumes/NoSuchVerb").await;
        assert_eq!(code, if role.is_some() { Code::Unimplemented } else { Code::PermissionDenied });
    }
}

fn end_session(pod: &str, container: &str, guard: Option<DestructiveGuard>) -> EndSessionRequest {
    EndSessionRequest { pod_uid: pod.into(), container_id: container.into(), session: 4_000_000, not_before: 0, guard }
}

const BAD_IDS: [&str; 8] = ["", ".", "..", "../../etc", "/etc/passwd", "a/b", "a\0b", ".hidden"];

#[tokio::test(flavor = "current_thread")]
async fn paths_in_place_of_ids() {
    let Some(world) = world().await else { return };
    let channel = world.channel(SYNCD).await;
    let mut volumes = VolumesClient::new(channel.clone());
    let mut files = FilesClient::new(channel.clone());
    let mut cgroups = CgroupsClient::new(channel);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "good".into() }).await.unwrap();
    let guard = world.guard(1);
    let log =
        |ns: &str, name: &str, uid: &str| Some(PodLogId { namespace: ns.into(), name: name.into(), uid: uid.into() });
    for bad in BAD_IDS {
        let b = || bad.to_owned();
        let g = || "good".to_owned();
        let mut codes = vec![
            volumes.prepare_pod(PreparePodRequest { pod_uid: b() }).await.err(),
            volumes
                .set_up_empty_dir(SetUpEmptyDirRequest { pod_uid: b(), volume: g(), medium: 1, ..Default::default() })
                .await
                .err(),
            volumes
                .set_up_empty_dir(SetUpEmptyDirRequest { pod_uid: g(), volume: b(), medium: 1, ..Default::default() })
                .await
                .err(),
            volumes
                .check_host_path(CheckHostPathRequest { pod_uid: b(), volume: g(), path: "/".into(), r#type: 0 })
                .await
                .err(),
            volumes
                .check_host_path(CheckHostPathRequest { pod_uid: g(), volume: b(), path: "/".into(), r#type: 0 })
                .await
                .err(),
            volumes.tear_down_pod(TearDownPodRequest { pod_uid: b(), guard, volumes_only: false }).await.err(),
            volumes.prune(PruneRequest { known_pod_uids: vec![g(), b()], guard }).await.err(),
            files.write_etc_hosts(WriteEtcHostsRequest { pod_uid: b(), ..Default::default() }).await.err(),
            files.create_termination_file(CreateTerminationFileRequest { pod_uid: b(), container: g() }).await.err(),
            files.create_termination_file(CreateTerminationFileRequest { pod_uid: g(), container: b() }).await.err(),
            files.prune_logs(PruneLogsRequest { known_pod_uids: vec![b()], guard }).await.err(),
            cgroups.ensure_pod(EnsurePodRequest { pod_uid: b(), qos: 1, ..Default::default() }).await.err(),
            cgroups.remove_pod(RemovePodRequest { pod_uid: b(), guard }).await.err(),
            cgroups.end_session(end_session(bad, "good", guard)).await.err(),
            cgroups.end_session(end_session("good", bad, guard)).await.err(),
        ];
        for pod in [log(bad, "good", "good"), log("good", bad, "good"), log("good", "good", bad)] {
            let prepare = PrepareLogDirectoryRequest { pod: pod.clone(), container: g() };
            codes.push(files.prepare_log_directory(prepare).await.err());
            let link =
                LinkContainerLogRequest { pod: pod.clone(), container: g(), restart_count: 0, container_id: g() };
            codes.push(files.link_container_log(link).await.err());
            let remove = RemoveContainerLogRequest { pod, container: g(), restart_count: 0, container_id: g(), guard };
            codes.push(files.remove_container_log(remove).await.err());
        }
        let places =
            [log(bad, "good", "good"), log("good", bad, "good"), log("good", "good", bad)].map(|pod| (pod, g()));
        for (pod, container) in places.into_iter().chain([(log("good", "good", "good"), b())]) {
            let rotate =
                RotateContainerLogRequest { pod: pod.clone(), container: container.clone(), restart_count: 0, guard };
            codes.push(files.rotate_container_log(rotate).await.err());
            let restore = RestoreContainerLogRequest {
                pod: pod.clone(),
                container: container.clone(),
                restart_count: 0,
                stamp: "20260101-000000".into(),
                guard,
            };
            codes.push(files.restore_container_log(restore).await.err());
            let remove = RemoveRotatedLogsRequest { pod, container, restart_count: 0, files: Vec::new(), guard };
            codes.push(files.remove_rotated_logs(remove).await.err());
        }
        for (container, container_id) in [(b(), g()), (g(), b())] {
            let pod = log("good", "good", "good");
            let link = LinkContainerLogRequest { pod, container, restart_count: 0, container_id };
            codes.push(files.link_container_log(link).await.err());
        }
        if !bad.is_empty() {
            codes.push(volumes.list_volumes(ListVolumesRequest { pod_uid: b() }).await.err());
            let prepare = PrepareLogDirectoryRequest { pod: log("good", "good", "good"), container: b() };
            codes.push(files.prepare_log_directory(prepare).await.err());
        }
        for (i, status) in codes.iter().enumerate() {
            assert_eq!(status.as_ref().map(tonic::Status::code), Some(Code::InvalidArgument), "{bad:?} in call {i}");
        }
    }
    for bad in ["", "relative", "/a/../b", "/a\0"] {
        let request = CheckHostPathRequest { pod_uid: "good".into(), volume: "v".into(), path: bad.into(), r#type: 0 };
        assert_eq!(volumes.check_host_path(request).await.unwrap_err().code(), Code::InvalidArgument, "{bad:?}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn unknown_ids() {
    let Some(world) = world().await else { return };
    let channel = world.channel(SYNCD).await;
    let mut volumes = VolumesClient::new(channel.clone());
    let mut files = FilesClient::new(channel);
    let pod_uid = || "never-seen".to_owned();
    let codes = [
        volumes
            .set_up_empty_dir(SetUpEmptyDirRequest {
                pod_uid: pod_uid(),
                volume: "v".into(),
                medium: 1,
                ..Default::default()
            })
            .await
            .err(),
        volumes
            .check_host_path(CheckHostPathRequest {
                pod_uid: pod_uid(),
                volume: "v".into(),
                path: "/".into(),
                r#type: 0,
            })
            .await
            .err(),
        files.write_etc_hosts(WriteEtcHostsRequest { pod_uid: pod_uid(), ..Default::default() }).await.err(),
        files
            .create_termination_file(CreateTerminationFileRequest { pod_uid: pod_uid(), container: "c".into() })
            .await
            .err(),
    ];
    for (i, status) in codes.iter().enumerate() {
        assert_eq!(status.as_ref().map(tonic::Status::code), Some(Code::NotFound), "call {i}");
    }
    assert!(!world.pod("never-seen").exists());
    // What is gone is gone: tearing down twice succeeds twice.
    let request = TearDownPodRequest { pod_uid: pod_uid(), guard: world.guard(1), volumes_only: false };
    assert!(volumes.tear_down_pod(request).await.unwrap().into_inner().done);
}

#[tokio::test(flavor = "current_thread")]
async fn links_in_the_way() {
    let Some(world) = world().await else { return };
    let channel = world.channel(SYNCD).await;
    let mut volumes = VolumesClient::new(channel.clone());
    let mut files = FilesClient::new(channel);
    let outside = world.dir.join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("keep"), "untouched").unwrap();
    let contents = || {
        let mut names: Vec<_> = std::fs::read_dir(&outside).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        (names, std::fs::read_to_string(outside.join("keep")).unwrap())
    };
    let before = contents();
    let empty_dir = |pod: &str, medium: Medium| SetUpEmptyDirRequest {
        pod_uid: pod.into(),
        volume: "v".into(),
        medium: medium.into(),
        ..Default::default()
    };

    // The pod's own directory is a link.
    symlink(&outside, world.pod("linked")).unwrap();
    assert!(volumes.prepare_pod(PreparePodRequest { pod_uid: "linked".into() }).await.is_err());
    assert!(volumes.set_up_empty_dir(empty_dir("linked", Medium::Disk)).await.is_err());
    let tear_down = TearDownPodRequest { pod_uid: "linked".into(), guard: world.guard(1), volumes_only: false };
    assert!(volumes.tear_down_pod(tear_down).await.is_err());
    assert_eq!(contents(), before);

    // Inside a pod: the plugin's folder, the volume, the container's folder, the hosts file.
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    symlink(&outside, world.pod("p").join("volumes/kubernetes.io~empty-dir")).unwrap();
    assert!(volumes.set_up_empty_dir(empty_dir("p", Medium::Disk)).await.is_err());
    std::fs::remove_file(world.pod("p").join("volumes/kubernetes.io~empty-dir")).unwrap();
    std::fs::create_dir(world.pod("p").join("volumes/kubernetes.io~empty-dir")).unwrap();
    symlink(&outside, world.pod("p").join("volumes/kubernetes.io~empty-dir/v")).unwrap();
    for medium in [Medium::Disk, Medium::Memory] {
        assert!(volumes.set_up_empty_dir(empty_dir("p", medium)).await.is_err());
    }
    std::fs::create_dir(world.pod("p").join("containers")).unwrap();
    symlink(&outside, world.pod("p").join("containers/c")).unwrap();
    let create = CreateTerminationFileRequest { pod_uid: "p".into(), container: "c".into() };
    assert!(files.create_termination_file(create).await.is_err());
    symlink(outside.join("keep"), world.pod("p").join("etc-hosts")).unwrap();
    let hosts = WriteEtcHostsRequest { pod_uid: "p".into(), hostname: "h".into(), ..Default::default() };
    assert!(files.write_etc_hosts(hosts).await.is_err());
    assert_eq!(contents(), before);

    // Tearing down removes the links and not what they point at.
    let tear_down = TearDownPodRequest { pod_uid: "p".into(), guard: world.guard(1), volumes_only: false };
    let reply = volumes.tear_down_pod(tear_down).await.unwrap().into_inner();
    assert_eq!((reply.done, reply.left), (true, Vec::<String>::new()));
    assert!(!world.pod("p").exists());

    // Log folders.
    symlink(&outside, world.dir.join("pod-logs/ns_name_u")).unwrap();
    let pod = Some(PodLogId { namespace: "ns".into(), name: "name".into(), uid: "u".into() });
    let prepare = PrepareLogDirectoryRequest { pod: pod.clone(), container: "c".into() };
    assert!(files.prepare_log_directory(prepare).await.is_err());
    let prune = PruneLogsRequest { known_pod_uids: vec![], guard: world.guard(1) };
    files.prune_logs(prune).await.unwrap();
    assert_eq!(contents(), before);
    for kind in [
        open_request::Kind::ContainerLog(ContainerLog { pod, container: "c".into(), restart_count: 0 }),
        open_request::Kind::NodeLog(NodeLog { relative: "link/keep".into() }),
        open_request::Kind::NodeLog(NodeLog { relative: "direct".into() }),
    ] {
        let _ = symlink(&outside, world.dir.join("var-log/link"));
        let _ = symlink(outside.join("keep"), world.dir.join("var-log/direct"));
        assert!(world.open(STATUSD, kind).await.is_err());
    }
}

#[tokio::test(flavor = "current_thread")]
async fn oversized_messages() {
    let Some(world) = world().await else { return };
    let channel = world.channel(SYNCD).await;
    let mut files = FilesClient::new(channel.clone()).max_encoding_message_size(8 << 20);
    let request = WriteEtcHostsRequest { pod_uid: "p".into(), hostname: "h".repeat(300 * 1024), ..Default::default() };
    let code = files.write_etc_hosts(request).await.unwrap_err().code();
    assert!(matches!(code, Code::OutOfRange | Code::ResourceExhausted), "{code:?}");
    let mut volumes = VolumesClient::new(channel);
    let request = PruneRequest { known_pod_uids: vec!["u".into(); 5001], guard: world.guard(1) };
    assert_eq!(volumes.prune(request).await.unwrap_err().code(), Code::InvalidArgument);
    let (code, _, fd) = world.broker_bytes(SYNCD, vec![0; 9000], None).await;
    assert_eq!((Code::from_i32(code.cast_signed()), fd.is_none()), (Code::ResourceExhausted, true));
}

#[tokio::test(flavor = "current_thread")]
async fn stale_guards() {
    let Some(world) = world().await else { return };
    let channel = world.channel(SYNCD).await;
    let mut volumes = VolumesClient::new(channel.clone());
    let mut files = FilesClient::new(channel.clone());
    let mut cgroups = CgroupsClient::new(channel);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let pod = || Some(PodLogId { namespace: "ns".into(), name: "n".into(), uid: "p".into() });
    files.prepare_log_directory(PrepareLogDirectoryRequest { pod: pod(), container: "c".into() }).await.unwrap();
    // A generation that is seen, so that an older one is stale.
    let newest = TearDownPodRequest { pod_uid: "other".into(), guard: world.guard(5), volumes_only: false };
    volumes.tear_down_pod(newest).await.unwrap();
    let good = world.guard(5).unwrap();
    let bad = [
        None,
        Some(DestructiveGuard { volnetd_epoch: 8, ..good }),
        Some(DestructiveGuard { volnetd_epoch: 0, ..good }),
        Some(DestructiveGuard { syncd_epoch: 0, ..good }),
        Some(DestructiveGuard { generation: 4, ..good }),
        Some(DestructiveGuard { sources_ready: false, ..good }),
    ];
    for guard in bad {
        let remove = RemoveContainerLogRequest {
            pod: pod(),
            container: "c".into(),
            restart_count: 0,
            container_id: "i".into(),
            guard,
        };
        let (container, stamp) = (|| "c".to_owned(), "20260101-000000".to_owned());
        let rotate = RotateContainerLogRequest { pod: pod(), container: container(), restart_count: 0, guard };
        let restore = RestoreContainerLogRequest { pod: pod(), container: container(), restart_count: 0, stamp, guard };
        let (restart_count, none) = (0, Vec::new());
        let rotated =
            RemoveRotatedLogsRequest { pod: pod(), container: container(), restart_count, files: none, guard };
        let codes = [
            files.rotate_container_log(rotate).await.err(),
            files.restore_container_log(restore).await.err(),
            files.remove_rotated_logs(rotated).await.err(),
            volumes.tear_down_pod(TearDownPodRequest { pod_uid: "p".into(), guard, volumes_only: false }).await.err(),
            volumes.prune(PruneRequest { known_pod_uids: vec![], guard }).await.err(),
            files.remove_container_log(remove).await.err(),
            files.prune_logs(PruneLogsRequest { known_pod_uids: vec![], guard }).await.err(),
            cgroups.remove_pod(RemovePodRequest { pod_uid: "p".into(), guard }).await.err(),
            cgroups.end_session(end_session("p", "c", guard)).await.err(),
        ];
        for (i, status) in codes.iter().enumerate() {
            assert_eq!(status.as_ref().map(tonic::Status::code), Some(Code::FailedPrecondition), "{guard:?}, call {i}");
        }
    }
    assert!(world.pod("p").exists());
    assert!(world.dir.join("pod-logs/ns_n_p/c").exists());
}

/// Somebody swaps a directory for a link, thousands of times, while verbs go through it: whichever they meet, nothing
/// is made or removed outside.
#[tokio::test(flavor = "current_thread")]
async fn a_race_for_the_way() {
    let Some(world) = world().await else { return };
    let channel = world.channel(SYNCD).await;
    let mut volumes = VolumesClient::new(channel.clone());
    let mut files = FilesClient::new(channel);
    let outside = world.dir.join("root/outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("keep"), "untouched").unwrap();
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let containers = world.pod("p").join("containers");
    std::fs::create_dir_all(containers.join("c")).unwrap();
    symlink(&outside, containers.join("evil")).unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let swapper = std::thread::spawn({
        let (stop, containers) = (stop.clone(), containers.clone());
        move || {
            let dir = bulkhead_sys::open::base_dir(&containers).unwrap();
            let mut swaps = 0u32;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                swaps += u32::from(rustix::fs::renameat_with(&dir, "c", &dir, "evil", exchange).is_ok());
            }
            swaps
        }
    });
    let (mut made, mut refused) = (0, 0);
    for _ in 0..300 {
        let create = CreateTerminationFileRequest { pod_uid: "p".into(), container: "c".into() };
        match files.create_termination_file(create).await {
            Ok(_) => made += 1,
            Err(_) => refused += 1,
        }
    }
    // Still swapping: the tear-down may fail and be asked for again, but it never follows.
    let tear_down = TearDownPodRequest { pod_uid: "p".into(), guard: world.guard(1), volumes_only: false };
    let _ = volumes.tear_down_pod(tear_down.clone()).await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let swaps = swapper.join().unwrap();
    assert!(volumes.tear_down_pod(tear_down).await.unwrap().into_inner().done);
    let left: Vec<_> = std::fs::read_dir(&outside).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["keep"], "{made} made, {refused} refused, {swaps} swaps");
    assert_eq!(std::fs::read_to_string(outside.join("keep")).unwrap(), "untouched");
    assert!(swaps > 0);
}
