//! A root directory with a link on its way, as /var/lib/kubelet -> /data/kubelet: what others are told lies below the name that the
//! operator wrote, because a driver in a container has nothing but that; what is done and found is the same. Needs root.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use bulkhead_ipc::volnetd::csi_client::CsiClient;
use bulkhead_ipc::volnetd::files_client::FilesClient;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::prepare_sub_path_request::Root;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::*;
use tonic::transport::Channel;

use crate::csi::{Disk, bind, device, mount_tmpfs, published, staged, to_commit, to_end, to_publish, to_stage};
use crate::world::{SYNCD, World, world_by_a_link};

struct Clients {
    world: World,
    csi: CsiClient<Channel>,
    volumes: VolumesClient<Channel>,
    files: FilesClient<Channel>,
}

impl Clients {
    async fn new() -> Option<Self> {
        let world = world_by_a_link().await?;
        let channel = world.channel(SYNCD).await;
        let (csi, files) = (CsiClient::new(channel.clone()), FilesClient::new(channel.clone()));
        Some(Clients { world, csi, volumes: VolumesClient::new(channel), files })
    }

    /// A path of the name that was written, and the same without links.
    fn both(&self, below: &str) -> (String, PathBuf) {
        (self.world.dir.join("named-root").join(below).display().to_string(), self.world.dir.join("root").join(below))
    }
}

fn unmount(point: &Path) {
    rustix::mount::unmount(point, rustix::mount::UnmountFlags::empty()).unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn what_the_runtime_is_given_bears_the_written_name() {
    let Some(mut clients) = Clients::new().await else { return };
    let (pod, real) = clients.both("pods/p");
    let reply = clients.volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap().into_inner();
    assert_eq!(reply.pod_dir, pod);
    let empty = SetUpEmptyDirRequest {
        pod_uid: "p".into(),
        volume: "cache".into(),
        medium: Medium::Memory.into(),
        size_limit_bytes: 1 << 20,
        ..Default::default()
    };
    let cache = clients.volumes.set_up_empty_dir(empty).await.unwrap().into_inner().host_path;
    assert_eq!(cache, format!("{pod}/volumes/kubernetes.io~empty-dir/cache"));
    let mut listed = clients.volumes.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    let listed = listed.message().await.unwrap().unwrap();
    assert!(listed.host_path == cache && listed.mounted, "{listed:?}");
    let part = PrepareSubPathRequest {
        pod_uid: "p".into(),
        volume: "cache".into(),
        container: "c".into(),
        sub_path: "a".into(),
        root: Some(Root::Plugin("kubernetes.io/empty-dir".into())),
        ..Default::default()
    };
    let bound = clients.volumes.prepare_sub_path(part).await.unwrap().into_inner().host_path;
    assert_eq!(bound, format!("{pod}/volume-subpaths/cache/c/0"));
    let hosts = WriteEtcHostsRequest { pod_uid: "p".into(), hostname: "h".into(), ..Default::default() };
    let hosts = clients.files.write_etc_hosts(hosts).await.unwrap().into_inner().host_path;
    assert_eq!(hosts, format!("{pod}/etc-hosts"));
    let message = CreateTerminationFileRequest { pod_uid: "p".into(), container: "c".into() };
    let message = clients.files.create_termination_file(message).await.unwrap().into_inner().host_path;
    assert!(message.starts_with(&format!("{pod}/containers/c/")), "{message}");
    let request = TearDownPodRequest { pod_uid: "p".into(), guard: clients.world.guard(1), volumes_only: false };
    assert!(clients.volumes.tear_down_pod(request).await.unwrap().into_inner().done && !real.exists());
}

/// What shows sockets shows them by the name under which clients look for them.
#[tokio::test(flavor = "current_thread")]
async fn sockets_for_agents_and_plugins_bear_the_written_name() {
    let Some(clients) = Clients::new().await else { return };
    for (kind, below) in [
        (listener::Kind::DevicePlugins, "device-plugins/kubelet.sock"),
        (listener::Kind::PodResources, "pod-resources/kubelet.sock"),
    ] {
        let asked = || clients.world.open(SYNCD, Kind::Listener(Listener { kind: kind.into() }));
        let (named, real) = clients.both(below);
        for _ in 0..2 {
            let socket = UnixListener::from(asked().await.unwrap());
            assert_eq!(socket.local_addr().unwrap().as_pathname(), Some(Path::new(&named)));
            assert!(real.exists());
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_driver_is_told_the_written_name_of_a_file_system() {
    let Some(mut clients) = Clients::new().await else { return };
    clients.volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let (base, real_base) = clients.both("plugins/kubernetes.io/csi");
    let (target, real_target) = clients.both("pods/p/volumes/kubernetes.io~csi/pv/mount");

    let staging = clients.csi.prepare_stage(to_stage(device(false))).await.unwrap().into_inner().staging_path;
    assert!(staging.starts_with(&base) && staging.ends_with("/globalmount"), "{staging}");
    assert!(real_base.join(Path::new(&staging).strip_prefix(&base).unwrap()).is_dir());
    mount_tmpfs(Path::new(&staging));
    clients.csi.commit_stage(device(false)).await.unwrap();
    let listed = staged(&mut clients.csi).await;
    assert!(listed[0].staging_path == staging && listed[0].mounted && !listed[0].uncertain, "{listed:?}");
    let again = clients.csi.prepare_stage(to_stage(device(false))).await.unwrap().into_inner();
    assert!(again.staging_path == staging && again.committed_before, "{again:?}");

    let told = clients.csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner().target_path;
    assert_eq!(told, target);
    std::fs::create_dir(&told).unwrap();
    bind(Path::new(&staging), Path::new(&told));
    let reply = clients.csi.commit_publish(to_commit("p", device(false))).await.unwrap().into_inner();
    assert_eq!(reply.host_path, target);
    // As syncd finds it after a restart, and as a kubelet before us has left it.
    let listed = published(&mut clients.csi).await;
    assert!(listed[0].target_path == target && listed[0].mounted && !listed[0].uncertain, "{listed:?}");

    let end = to_end(&clients.world, "p", device(false));
    clients.csi.begin_unpublish(end.clone()).await.unwrap();
    assert!(clients.csi.end_publish(end.clone()).await.is_err(), "it is mounted");
    unmount(Path::new(&told));
    clients.csi.end_publish(end).await.unwrap();
    assert!(!real_target.parent().unwrap().exists());
    let unstage = EndStageRequest { device: Some(device(false)), guard: clients.world.guard(1), folder: String::new() };
    clients.csi.begin_unstage(unstage.clone()).await.unwrap();
    assert!(clients.csi.end_stage(unstage.clone()).await.is_err(), "it is mounted");
    unmount(Path::new(&staging));
    clients.csi.end_stage(unstage).await.unwrap();
    assert!(staged(&mut clients.csi).await.is_empty() && !Path::new(&staging).exists());
}

#[tokio::test(flavor = "current_thread")]
async fn a_driver_is_told_the_written_name_of_a_device() {
    let Some(mut clients) = Clients::new().await else { return };
    let Some(disk) = Disk::new(&clients.world.dir) else { return };
    clients.volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let (base, _) = clients.both("plugins/kubernetes.io/csi/volumeDevices");
    let (link, _) = clients.both("pods/p/volumeDevices/kubernetes.io~csi/pv");
    let block = || device(true);

    let staging = clients.csi.prepare_stage(to_stage(block())).await.unwrap().into_inner().staging_path;
    assert_eq!(staging, format!("{base}/staging/pv"));
    clients.csi.commit_stage(block()).await.unwrap();
    let target = clients.csi.prepare_publish(to_publish("p", block())).await.unwrap().into_inner().target_path;
    assert_eq!(target, format!("{base}/publish/pv/p"));
    std::fs::write(&target, "").unwrap();
    bind(&disk.device, Path::new(&target));
    for _ in 0..2 {
        let reply = clients.csi.commit_publish(to_commit("p", block())).await.unwrap().into_inner();
        assert_eq!(reply.host_path, link);
        assert_eq!(std::fs::read_link(&link).unwrap(), Path::new(&target));
    }
    let listed = published(&mut clients.csi).await;
    assert!(listed[0].target_path == target && listed[0].mounted && !listed[0].uncertain, "{listed:?}");
    let end = to_end(&clients.world, "p", block());
    clients.csi.begin_unpublish(end.clone()).await.unwrap();
    unmount(Path::new(&target));
    clients.csi.end_publish(end).await.unwrap();
    assert!(published(&mut clients.csi).await.is_empty());
}
