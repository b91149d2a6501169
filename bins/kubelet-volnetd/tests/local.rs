//! Folders of the host that local PersistentVolumes name, bound into pods. Needs root.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use bulkhead_ipc::volnetd::prepare_sub_path_request::Root;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::*;
use bulkhead_types::{PodUid, VolumeName};
use kubelet_volnetd::journal::Intent;
use rustix::mount::MountFlags;
use tonic::Code;

use crate::world::{SYNCD, world};

fn request(pod: &str, path: &Path) -> SetUpLocalRequest {
    SetUpLocalRequest {
        pod_uid: pod.into(),
        volume: "pv".into(),
        path: path.display().to_string(),
        ..Default::default()
    }
}

fn group(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().gid()
}

#[tokio::test(flavor = "current_thread")]
async fn a_folder_is_bound_and_its_content_stays() {
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    let disk = world.dir.join("disk");
    std::fs::create_dir(&disk).unwrap();
    std::fs::write(disk.join("f"), "data").unwrap();
    for pod in ["p", "q", "r"] {
        volumes.prepare_pod(PreparePodRequest { pod_uid: pod.into() }).await.unwrap();
    }
    let point = world.pod("p").join("volumes/kubernetes.io~local-volume/pv");
    for _ in 0..2 {
        let reply = volumes.set_up_local(request("p", &disk)).await.unwrap().into_inner();
        assert_eq!(reply.host_path, point.display().to_string());
        assert_eq!(world.mounts(&point).len(), 1);
    }
    assert_eq!(std::fs::read_to_string(point.join("f")).unwrap(), "data");
    assert_eq!(group(&disk.join("f")), 0, "only when it is asked for");
    assert!(world.node.journal.all().is_empty());

    // Read-only, and others' groups: the first pod's stays.
    let mut read_only = SetUpLocalRequest { read_only: true, fs_group: Some(3000), ..request("q", &disk) };
    let other = PathBuf::from(volumes.set_up_local(read_only.clone()).await.unwrap().into_inner().host_path);
    assert_eq!(std::fs::write(other.join("g"), "").unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    std::fs::write(point.join("g"), "").unwrap();
    read_only.read_only = false;
    volumes.set_up_local(SetUpLocalRequest { pod_uid: "r".into(), ..read_only.clone() }).await.unwrap();
    assert_eq!(group(&disk.join("f")), 0, "it is bound for others");

    // A subPath.
    let sub_path = PrepareSubPathRequest {
        pod_uid: "p".into(),
        volume: "pv".into(),
        container: "c".into(),
        sub_path: "sub".into(),
        root: Some(Root::Plugin("kubernetes.io/local-volume".into())),
        ..Default::default()
    };
    let bound = volumes.prepare_sub_path(sub_path.clone()).await.unwrap().into_inner().host_path;
    std::fs::write(Path::new(&bound).join("h"), "").unwrap();
    let without = PrepareSubPathRequest { volume: "none".into(), ..sub_path };
    assert_eq!(volumes.prepare_sub_path(without).await.unwrap_err().code(), Code::NotFound);

    for pod in ["p", "q", "r"] {
        let tear_down = TearDownPodRequest { pod_uid: pod.into(), guard: world.guard(1), volumes_only: false };
        let reply = volumes.tear_down_pod(tear_down).await.unwrap().into_inner();
        assert!(reply.done, "{:?}", reply.left);
    }
    assert!(world.mounts(&world.dir.join("root/pods")).is_empty());
    for file in ["f", "g", "sub/h"] {
        assert!(disk.join(file).exists(), "{file}");
    }

    // The group, once it is nobody else's; and what was not finished is finished when it is asked for again.
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let grouped = SetUpLocalRequest { fs_group: Some(2000), ..request("p", &disk) };
    volumes.set_up_local(grouped.clone()).await.unwrap();
    assert_eq!((group(&disk), group(&disk.join("f"))), (2000, 2000));
    std::os::unix::fs::chown(disk.join("f"), None, Some(0)).unwrap();
    volumes.set_up_local(grouped.clone()).await.unwrap();
    assert_eq!(group(&disk.join("f")), 0, "done before");
    let intent =
        Intent::Mount { plugin: "kubernetes.io/local-volume".into(), volume: VolumeName::parse("pv").unwrap() };
    world.node.journal.begin(&PodUid::parse("p").unwrap(), intent).unwrap();
    volumes.set_up_local(grouped).await.unwrap();
    assert_eq!(group(&disk.join("f")), 2000);
    assert!(world.node.journal.all().is_empty());
}

#[tokio::test(flavor = "current_thread")]
async fn what_is_no_folder_is_refused() {
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let disk = world.dir.join("disk");
    std::fs::create_dir(&disk).unwrap();
    std::fs::write(disk.join("f"), "").unwrap();
    for bad in ["", "relative", "/a/../b", "/a\0"] {
        let request = SetUpLocalRequest { path: bad.into(), ..request("p", &disk) };
        assert_eq!(volumes.set_up_local(request).await.unwrap_err().code(), Code::InvalidArgument, "{bad:?}");
    }
    for (bad, code, says) in [
        ("none", Code::NotFound, "of a local volume cannot be opened"),
        ("f", Code::InvalidArgument, "only directory and block device are supported"),
    ] {
        let refused = volumes.set_up_local(request("p", &disk.join(bad))).await.unwrap_err();
        assert!(refused.code() == code && refused.message().contains(says), "{refused:?}");
    }
    let request = |change: &dyn Fn(&mut SetUpLocalRequest)| {
        let mut request = request("p", &disk);
        change(&mut request);
        request
    };
    let bad = request(&|request| request.volume = "..".into());
    assert_eq!(volumes.set_up_local(bad).await.unwrap_err().code(), Code::InvalidArgument);
    let bad = request(&|request| request.fs_group = Some(-1));
    assert_eq!(volumes.set_up_local(bad).await.unwrap_err().code(), Code::InvalidArgument);
    let bad = request(&|request| request.pod_uid = "none".into());
    assert_eq!(volumes.set_up_local(bad).await.unwrap_err().code(), Code::NotFound);
    assert!(world.mounts(&world.pod("p")).is_empty() && world.node.journal.all().is_empty());

    // Mounts keep what they forbid when they are bound read-only.
    rustix::mount::mount("disk", &disk, "tmpfs", MountFlags::NOEXEC | MountFlags::NOSUID, None).unwrap();
    let path = volumes.set_up_local(request(&|request| request.read_only = true)).await.unwrap().into_inner().host_path;
    let flags = rustix::fs::statvfs(&path).unwrap().f_flag;
    let kept = rustix::fs::StatVfsMountFlags::NOEXEC
        | rustix::fs::StatVfsMountFlags::NOSUID
        | rustix::fs::StatVfsMountFlags::RDONLY;
    assert!(flags.contains(kept), "{flags:?}");
    assert_eq!(std::fs::metadata(&disk).unwrap().permissions().mode() & 0o7777, 0o1777);
}

/// A folder has a file system already: which one its PersistentVolume names says nothing, and of the mount options those count that
/// are the bind's.
#[tokio::test(flavor = "current_thread")]
async fn a_folder_has_the_options_of_its_persistent_volume() {
    use rustix::fs::StatVfsMountFlags as Flags;
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    let disk = world.dir.join("disk");
    std::fs::create_dir(&disk).unwrap();
    for (pod, options, expected) in [
        ("p", &["noexec,nosuid", "bogus", "commit=30"][..], Flags::NOEXEC | Flags::NOSUID),
        ("q", &["ro", "noatime"], Flags::RDONLY | Flags::NOATIME),
        ("r", &[], Flags::empty()),
    ] {
        volumes.prepare_pod(PreparePodRequest { pod_uid: pod.into() }).await.unwrap();
        let mount_options = options.iter().map(|option| (*option).to_owned()).collect();
        let request = SetUpLocalRequest { mount_options, fs_type: "zfs".into(), ..request(pod, &disk) };
        let path = volumes.set_up_local(request).await.unwrap().into_inner().host_path;
        let flags = rustix::fs::statvfs(&path).unwrap().f_flag;
        let all = Flags::NOEXEC | Flags::NOSUID | Flags::RDONLY | Flags::NOATIME;
        let before = rustix::fs::statvfs(&disk).unwrap().f_flag;
        assert_eq!(flags & all, expected | (before & all), "{pod}");
    }
    for pod in ["p", "q", "r"] {
        let tear_down = TearDownPodRequest { pod_uid: pod.into(), guard: world.guard(1), volumes_only: false };
        assert!(volumes.tear_down_pod(tear_down).await.unwrap().into_inner().done);
    }
}
