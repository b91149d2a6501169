//! What the verbs do, on real mounts, files and cgroups: a pod's life, crashes in between, orphans.

use crate::world;

use std::collections::HashSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bulkhead_ipc::volnetd::cgroups_client::CgroupsClient;
use bulkhead_ipc::volnetd::files_client::FilesClient;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::watches_client::WatchesClient;
use bulkhead_ipc::volnetd::*;
use bulkhead_types::{PodUid, VolumeName};
use kubelet_volnetd::journal::Intent;
use kubelet_volnetd::operations::prune::{self as removal, Action};
use tonic::Code;
use world::*;

async fn list(volumes: &mut VolumesClient<tonic::transport::Channel>) -> Vec<VolumeState> {
    let mut stream = volumes.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(state) = stream.message().await.unwrap() {
        all.push(state);
    }
    all.sort_by(|a, b| (&a.pod_uid, &a.volume).cmp(&(&b.pod_uid, &b.volume)));
    all
}

async fn prune(volumes: &mut VolumesClient<tonic::transport::Channel>, request: PruneRequest) -> Vec<PruneStep> {
    let mut stream = volumes.prune(request).await.unwrap().into_inner();
    let mut steps = Vec::new();
    while let Some(step) = stream.message().await.unwrap() {
        steps.push(step);
    }
    steps
}

fn memory(pod: &str, volume: &str, size: u64) -> SetUpEmptyDirRequest {
    SetUpEmptyDirRequest {
        pod_uid: pod.into(),
        volume: volume.into(),
        medium: Medium::Memory.into(),
        size_limit_bytes: size,
        huge_page_bytes: 0,
        ..Default::default()
    }
}

fn disk(pod: &str, volume: &str) -> SetUpEmptyDirRequest {
    SetUpEmptyDirRequest { medium: Medium::Disk.into(), size_limit_bytes: 0, ..memory(pod, volume, 0) }
}

#[tokio::test(flavor = "current_thread")]
async fn a_pods_directory_from_first_to_last() {
    let Some(world) = world().await else { return };
    let channel = world.channel(SYNCD).await;
    let mut volumes = VolumesClient::new(channel.clone());
    let mut files = FilesClient::new(channel);
    let host = world.dir.join("host");
    std::fs::create_dir(&host).unwrap();
    std::fs::write(host.join("data"), "mine").unwrap();
    let pod = world.pod("p");
    for _ in 0..2 {
        let reply = volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap().into_inner();
        assert_eq!(reply.pod_dir, pod.display().to_string());
    }
    assert_eq!(std::fs::metadata(&pod).unwrap().permissions().mode() & 0o7777, 0o750);

    let dir = pod.join("volumes/kubernetes.io~empty-dir");
    for round in 0..2 {
        let reply = volumes.set_up_empty_dir(disk("p", "cache")).await.unwrap().into_inner();
        assert_eq!(reply.host_path, dir.join("cache").display().to_string());
        volumes.set_up_empty_dir(memory("p", "mem", 1 << 20)).await.unwrap();
        assert_eq!(std::fs::metadata(dir.join("cache")).unwrap().permissions().mode() & 0o7777, 0o777);
        let mounts = world.mounts(&dir);
        assert_eq!(mounts.len(), 1, "round {round}: {mounts:?}");
        assert!(mounts[0].contains("/mem tmpfs ") && mounts[0].contains("size=1024k"), "{mounts:?}");
        if round == 0 {
            std::fs::write(dir.join("cache/file"), "kept").unwrap();
            std::fs::write(dir.join("mem/file"), "kept").unwrap();
            std::os::unix::fs::chown(dir.join("cache/file"), Some(1000), Some(1000)).unwrap();
            std::fs::create_dir_all(dir.join("cache/a/b")).unwrap();
            std::fs::set_permissions(dir.join("cache/a"), std::fs::Permissions::from_mode(0o000)).unwrap();
            symlink(&host, dir.join("cache/link")).unwrap();
        }
        assert!(dir.join("cache/file").exists() && dir.join("mem/file").exists());
    }
    assert!(pod.join("plugins/kubernetes.io~empty-dir/mem/ready").exists());
    let check = CheckHostPathRequest {
        pod_uid: "p".into(),
        volume: "h".into(),
        path: host.display().to_string(),
        r#type: HostPathType::Directory.into(),
    };
    volumes.check_host_path(check.clone()).await.unwrap();
    let status =
        volumes.check_host_path(CheckHostPathRequest { r#type: HostPathType::File.into(), ..check }).await.unwrap_err();
    assert_eq!(status.message(), format!("hostPath type check failed: {} is not a file", host.display()));

    let mut hosts = WriteEtcHostsRequest {
        pod_uid: "p".into(),
        pod_ips: vec!["10.1.2.3".into()],
        hostname: "web".into(),
        ..Default::default()
    };
    let path = files.write_etc_hosts(hosts.clone()).await.unwrap().into_inner().host_path;
    let inode = std::fs::metadata(&path).unwrap().ino();
    hosts.pod_ips = vec!["10.1.2.4".into()];
    files.write_etc_hosts(hosts).await.unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), inode, "containers have this very file mounted");
    assert!(std::fs::read_to_string(&path).unwrap().ends_with("10.1.2.4\tweb\n"));
    let create = CreateTerminationFileRequest { pod_uid: "p".into(), container: "c".into() };
    let first = files.create_termination_file(create.clone()).await.unwrap().into_inner().host_path;
    let second = files.create_termination_file(create).await.unwrap().into_inner().host_path;
    assert_ne!(first, second);
    assert_eq!(std::fs::metadata(&first).unwrap().permissions().mode() & 0o7777, 0o666);
    std::fs::write(&first, "it ended").unwrap();
    let message = TerminationMessage {
        pod_uid: "p".into(),
        container: "c".into(),
        suffix: first.rsplit('/').next().unwrap().into(),
    };
    let fd = world.open(SYNCD, open_request::Kind::TerminationMessage(message)).await.unwrap();
    assert_eq!(std::io::read_to_string(std::fs::File::from(fd)).unwrap(), "it ended");

    let states = list(&mut volumes).await;
    assert_eq!(
        states.iter().map(|s| (s.volume.as_str(), s.mounted)).collect::<Vec<_>>(),
        [("cache", false), ("mem", true)]
    );
    assert!(states.iter().all(|s| s.plugin == "kubernetes.io/empty-dir" && !s.uncertain));

    // Somebody still uses the volume: nothing is removed, and the answer says who.
    let held = std::fs::File::open(dir.join("mem/file")).unwrap();
    let tear_down = TearDownPodRequest { pod_uid: "p".into(), guard: world.guard(1), volumes_only: false };
    let reply = volumes.tear_down_pod(tear_down.clone()).await.unwrap().into_inner();
    assert!(!reply.done && reply.left[0].contains(&format!("({})", std::process::id())), "{:?}", reply.left);
    assert!(dir.join("cache/file").exists());
    drop(held);
    // A pod that has ended and is still wanted loses its volumes, and keeps its last words.
    let reply = volumes.tear_down_pod(TearDownPodRequest { volumes_only: true, ..tear_down.clone() }).await.unwrap();
    assert!(reply.into_inner().done);
    assert!(!dir.join("cache").exists() && pod.join("containers").is_dir() && world.mounts(&pod).is_empty());
    assert!(world.node.journal.all().is_empty());
    for _ in 0..2 {
        let reply = volumes.tear_down_pod(tear_down.clone()).await.unwrap().into_inner();
        assert!(reply.done, "{:?}", reply.left);
    }
    assert!(!pod.exists() && world.mounts(&pod).is_empty());
    assert_eq!(std::fs::read_to_string(host.join("data")).unwrap(), "mine");
    assert!(world.node.journal.all().is_empty());
}

/// A leftover of another plugin stays, and so does the pod's directory.
#[tokio::test(flavor = "current_thread")]
async fn data_of_other_plugins_is_never_removed() {
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let csi = world.pod("p").join("volumes/kubernetes.io~csi/vol");
    std::fs::create_dir_all(&csi).unwrap();
    std::fs::write(csi.join("vol_data.json"), "{}").unwrap();
    let tear_down = TearDownPodRequest { pod_uid: "p".into(), guard: world.guard(1), volumes_only: false };
    let reply = volumes.tear_down_pod(tear_down.clone()).await.unwrap().into_inner();
    assert!(!reply.done && csi.join("vol_data.json").exists(), "{:?}", reply.left);
    std::fs::remove_file(csi.join("vol_data.json")).unwrap();
    assert!(volumes.tear_down_pod(tear_down).await.unwrap().into_inner().done);
}

/// The process dies between an intent and its act, at each place where that can be.
#[tokio::test(flavor = "current_thread")]
async fn a_crash_in_between_is_settled_by_asking_again() {
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    let (pod, volume) = (PodUid::parse("p").unwrap(), VolumeName::parse("mem").unwrap());
    let intent = Intent::Mount { plugin: "kubernetes.io/empty-dir".into(), volume };
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let dir = world.pod("p").join("volumes/kubernetes.io~empty-dir/mem");

    // Before the directory: contradicted, dropped.
    world.node.journal.begin(&pod, intent.clone()).unwrap();
    assert!(list(&mut volumes).await.is_empty());
    assert!(world.node.journal.all().is_empty());
    // After the directory, before the mount: uncertain until it is asked for again.
    world.node.journal.begin(&pod, intent.clone()).unwrap();
    std::fs::create_dir_all(&dir).unwrap();
    let states = list(&mut volumes).await;
    assert!(states[0].uncertain && !states[0].mounted);
    volumes.set_up_empty_dir(memory("p", "mem", 1 << 20)).await.unwrap();
    assert!(list(&mut volumes).await.iter().all(|s| s.mounted && !s.uncertain));
    // After the mount, before the marker and the intent's end.
    std::fs::write(dir.join("file"), "kept").unwrap();
    std::fs::remove_file(world.pod("p").join("plugins/kubernetes.io~empty-dir/mem/ready")).unwrap();
    world.node.journal.begin(&pod, intent).unwrap();
    volumes.set_up_empty_dir(memory("p", "mem", 1 << 20)).await.unwrap();
    assert_eq!(world.mounts(&dir).len(), 1);
    assert!(dir.join("file").exists());
    // In the middle of tearing down: unmounted, half removed.
    world.node.journal.begin(&pod, Intent::TearDown).unwrap();
    rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::empty()).unwrap();
    std::fs::remove_dir_all(world.pod("p").join("plugins")).unwrap();
    assert!(list(&mut volumes).await[0].uncertain);
    let tear_down = TearDownPodRequest { pod_uid: "p".into(), guard: world.guard(1), volumes_only: false };
    assert!(volumes.tear_down_pod(tear_down).await.unwrap().into_inner().done);
    assert!(!world.pod("p").exists() && world.node.journal.all().is_empty());
}

#[tokio::test(flavor = "current_thread")]
async fn orphans_go_and_known_pods_stay() {
    let Some(world) = world().await else { return };
    let channel = world.channel(SYNCD).await;
    let mut volumes = VolumesClient::new(channel.clone());
    let mut cgroups = CgroupsClient::new(channel.clone());
    let mut files = FilesClient::new(channel);
    let node = CgroupResources { cpu_shares: Some(1024), ..Default::default() };
    cgroups.ensure_node(EnsureNodeRequest { kubepods: Some(node), ..Default::default() }).await.unwrap();
    for pod in ["known", "orphan"] {
        volumes.prepare_pod(PreparePodRequest { pod_uid: pod.into() }).await.unwrap();
        volumes.set_up_empty_dir(memory(pod, "mem", 1 << 20)).await.unwrap();
        let request = EnsurePodRequest { pod_uid: pod.into(), qos: Qos::BestEffort.into(), ..Default::default() };
        let reply = cgroups.ensure_pod(request).await.unwrap().into_inner();
        assert!(reply.created && reply.cgroup_parent.ends_with(&format!("/kubepods/besteffort/pod{pod}")));
        let log = Some(PodLogId { namespace: "ns".into(), name: pod.into(), uid: pod.into() });
        let prepare = PrepareLogDirectoryRequest { pod: log.clone(), container: "c".into() };
        files.prepare_log_directory(prepare.clone()).await.unwrap();
        std::fs::write(world.dir.join(format!("pod-logs/ns_{pod}_{pod}/c/3.log")), "x").unwrap();
        std::fs::write(world.dir.join(format!("pod-logs/ns_{pod}_{pod}/c/2.log.20260101-000000.gz")), "x").unwrap();
        assert_eq!(files.prepare_log_directory(prepare).await.unwrap().into_inner().highest_index, Some(3));
        for _ in 0..2 {
            let link = LinkContainerLogRequest {
                pod: log.clone(),
                container: "c".into(),
                restart_count: 3,
                container_id: "id".into(),
            };
            files.link_container_log(link).await.unwrap();
        }
    }
    // Something of the orphan still runs.
    let hierarchies = bulkhead_sys::cgroup::Hierarchies::detect().unwrap();
    let mut found = cgroups.list(ListCgroupsRequest {}).await.unwrap().into_inner();
    let mut orphan_cgroup = String::new();
    while let Some(found) = found.message().await.unwrap() {
        if found.pod_uid == "orphan" {
            orphan_cgroup = found.cgroup;
        }
    }
    let orphan_path = bulkhead_sys::cgroup::CgroupPath::parse(&orphan_cgroup).unwrap();
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let procs = hierarchies.file("cpu", &orphan_path, "cgroup.procs").unwrap();
    std::fs::write(procs, child.id().to_string()).unwrap();
    let reaper = std::thread::spawn(move || child.wait().unwrap().success());

    let request = PruneRequest { known_pod_uids: vec!["known".into()], guard: world.guard(1) };
    let steps = prune(&mut volumes, request.clone()).await;
    let actions: Vec<_> = steps.iter().map(|s| (s.action.as_str(), s.pod_uid.as_str(), s.error.as_str())).collect();
    assert_eq!(
        actions,
        [("removed cgroup", "orphan", ""), ("unmounted", "orphan", ""), ("removed directory", "orphan", "")]
    );
    assert!(!reaper.join().unwrap());
    assert!(!hierarchies.exists(&orphan_path));
    assert!(!world.pod("orphan").exists());
    assert_eq!(world.mounts(&world.pod("known")).len(), 1);
    assert!(prune(&mut volumes, request).await.is_empty());

    let request = PruneLogsRequest { known_pod_uids: vec!["known".into()], guard: world.guard(1) };
    let removed = files.prune_logs(request).await.unwrap().into_inner().removed;
    assert_eq!(removed.len(), 2, "folder and link: {removed:?}");
    // Who asks was told of the container before its end.
    let late = LinkContainerLogRequest {
        pod: Some(PodLogId { namespace: "ns".into(), name: "orphan".into(), uid: "orphan".into() }),
        container: "c".into(),
        restart_count: 3,
        container_id: "id".into(),
    };
    files.link_container_log(late).await.unwrap();
    assert!(std::fs::symlink_metadata(world.dir.join("links/orphan_ns_c-id.log")).is_err());
    let link = world.dir.join("links/known_ns_c-id.log");
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "x");
    let remove = RemoveContainerLogRequest {
        pod: Some(PodLogId { namespace: "ns".into(), name: "known".into(), uid: "known".into() }),
        container: "c".into(),
        restart_count: 3,
        container_id: "id".into(),
        guard: world.guard(1),
    };
    for _ in 0..2 {
        files.remove_container_log(remove.clone()).await.unwrap();
    }
    assert!(std::fs::symlink_metadata(&link).is_err());
    let left: Vec<_> = std::fs::read_dir(world.dir.join("pod-logs/ns_known_known/c")).unwrap().collect();
    assert_eq!(left.len(), 1, "the other restart's log stays");
}

#[tokio::test(flavor = "current_thread")]
async fn manifests_are_watched() {
    let Some(world) = world().await else { return };
    let mut watches = WatchesClient::new(world.channel(SYNCD).await);
    let status = watches.watch(WatchRequest { kind: 0 }).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    let request = WatchRequest { kind: WatchKind::Manifests.into() };
    let mut stream = watches.watch(request).await.unwrap().into_inner();
    // The first answer says to look at everything, and so does the beginning of the watch, which may come after it.
    let mut written = Vec::new();
    let name = loop {
        let event = stream.message().await.unwrap().unwrap();
        if event.change() == watch_event::Change::Added {
            break event.name;
        }
        assert_eq!(event.change(), watch_event::Change::Rescan);
        written.push(format!("{}.yaml", written.len()));
        std::fs::write(world.dir.join("manifests").join(written.last().unwrap()), "x").unwrap();
    };
    assert!(written.contains(&name), "{name} is none of {written:?}");
    assert!(written.len() <= 2, "a watch begins once: {written:?}");
}

/// statusd, which uses the credentials, follows them and nothing else.
#[tokio::test(flavor = "current_thread")]
async fn credentials_are_watched_by_those_who_use_them() {
    let Some(world) = world().await else { return };
    let request = |kind: WatchKind| WatchRequest { kind: kind.into() };
    let mut others = WatchesClient::new(world.channel(STATUSD).await);
    let refused = others.watch(request(WatchKind::Manifests)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let mut evictiond = WatchesClient::new(world.channel(EVICTIOND).await);
    assert_eq!(evictiond.watch(request(WatchKind::Credentials)).await.unwrap_err().code(), Code::PermissionDenied);

    let mut syncd = WatchesClient::new(world.channel(SYNCD).await);
    let mut streams = [
        others.watch(request(WatchKind::Credentials)).await.unwrap().into_inner(),
        syncd.watch(request(WatchKind::Credentials)).await.unwrap().into_inner(),
    ];
    let kubeconfig = world.dir.join("etc/kubelet.conf");
    std::fs::create_dir(world.dir.join("etc")).unwrap();
    std::fs::write(&kubeconfig, "current-context: ''").unwrap();
    for stream in &mut streams {
        let open = Kind::Credential(Credential { kind: credential::Kind::Kubeconfig.into() });
        // As a client does it: look after each answer, until the file is there.
        loop {
            let event = stream.message().await.unwrap().unwrap();
            assert_eq!((event.change(), event.name.as_str()), (watch_event::Change::Rescan, ""));
            if world.open(SYNCD, open.clone()).await.is_ok() {
                break;
            }
        }
    }
}

/// kubelet-syncd that has died or lost its patience makes pods again, which the removal that it had asked for does not know.
#[tokio::test(flavor = "current_thread")]
async fn a_removal_that_nobody_waits_for_begins_with_no_further_pod() {
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    for pod in ["a", "b", "c"] {
        volumes.prepare_pod(PreparePodRequest { pod_uid: pod.into() }).await.unwrap();
        volumes.set_up_empty_dir(disk(pod, "v")).await.unwrap();
    }
    let nobody = Arc::new(HashSet::new());
    removal::prune(&world.node, nobody.clone(), || false, |step| panic!("{step:?}")).await.unwrap();
    assert!(["a", "b", "c"].iter().all(|pod| world.pod(pod).exists()));

    let removed = Arc::new(AtomicUsize::new(0));
    let counted = removed.clone();
    let is_asked = move || removed.load(Ordering::Relaxed) == 0;
    removal::prune(&world.node, nobody, is_asked, |step| {
        if step.action == Action::RemovedDirectory {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    })
    .await
    .unwrap();
    assert_eq!(["a", "b", "c"].map(|pod| world.pod(pod).exists()), [false, true, true]);
}
