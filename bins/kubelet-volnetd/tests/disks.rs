//! Local volumes on block devices: loop devices of this machine, and the programs of kubelet-disks. Needs root.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use bulkhead_helper::{Door, Limits, serve};
use bulkhead_ipc::common::DiskRequest;
use bulkhead_ipc::helper::Asker;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::*;
use bulkhead_sys::{loop_device, scm};
use bulkhead_testkit::skip::{Lack, skip_this_test};
use kubelet_disks::act::{self, Devices};
use prost::Message as _;
use tonic::Code;

use crate::world::{SYNCD, World, world};

pub const MIB: u64 = 1 << 20;

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A loop device for as long as it lives.
pub struct Loop {
    file: PathBuf,
    pub device: String,
}

impl Loop {
    pub fn new(folder: &Path, name: &str, bytes: u64) -> Self {
        let file = folder.join(name);
        std::fs::File::create(&file).unwrap().set_len(bytes).unwrap();
        let device = run("losetup", &["--find", "--show", &file.display().to_string()]);
        Loop { file, device }
    }

    pub fn resize(&self, bytes: u64) {
        std::fs::File::options().write(true).open(&self.file).unwrap().set_len(bytes).unwrap();
        run("losetup", &["--set-capacity", &self.device]);
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.device]).status();
    }
}

/// A volnetd that has somebody to ask, with some pods; `None`, said, where that cannot be.
async fn with_disks(pods: &[&str]) -> Option<(World, VolumesClient<tonic::transport::Channel>)> {
    let world = world().await?;
    serve_disks(&world);
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    for pod in pods {
        volumes.prepare_pod(PreparePodRequest { pod_uid: (*pod).into() }).await.unwrap();
    }
    Some((world, volumes))
}

/// Somebody in kubelet-disks' place, with its programs.
pub fn serve_disks(world: &World) {
    let (theirs, ours) = scm::pair().unwrap();
    world.node.disks.set(Asker::new(Some(ours)).unwrap());
    let devices = Devices::default();
    let answer = move |question: DiskRequest, pipe: std::os::fd::OwnedFd| {
        let devices = devices.clone();
        async move {
            let reply = act::answer(&devices, &question).await.encode_to_vec();
            rustix::io::write(&pipe, &reply).unwrap();
        }
    };
    // Its tasks stay on one thread.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(serve(Door::Passed(theirs), Limits { at_once: 4, idle: None }, |_| Ok(()), answer)).unwrap();
    });
}

fn request(pod: &str, disk: &str) -> SetUpLocalRequest {
    SetUpLocalRequest { pod_uid: pod.into(), volume: "pv".into(), path: disk.into(), ..Default::default() }
}

fn tear_down(world: &World, pod: &str) -> TearDownPodRequest {
    TearDownPodRequest { pod_uid: pod.into(), guard: world.guard(1), volumes_only: false }
}

pub fn size(path: &Path) -> u64 {
    let is = rustix::fs::statvfs(path).unwrap();
    is.f_blocks * is.f_frsize
}

#[tokio::test(flavor = "current_thread")]
async fn a_device_is_mounted_once_a_node_and_goes_with_its_last_pod() {
    let Some((world, mut volumes)) = with_disks(&["p", "q", "r"]).await else { return };
    let disk = Loop::new(&world.dir, "disk", 32 * MIB);
    // By a link, as administrators name devices.
    let named = world.dir.join("by-id");
    std::os::unix::fs::symlink(&disk.device, &named).unwrap();
    let named = named.display().to_string();
    let global = world.dir.join("root/plugins/kubernetes.io/local-volume/mounts/pv");
    let point = |pod: &str| world.pod(pod).join("volumes/kubernetes.io~local-volume/pv");

    // Nothing is formatted for who only reads.
    let read_only = SetUpLocalRequest { read_only: true, ..request("p", &named) };
    let refused = volumes.set_up_local(read_only).await.unwrap_err();
    assert!(refused.message().contains("cannot mount unformatted disk"), "{refused:?}");
    assert_eq!(refused.details(), b"MountDevice");
    assert!(world.mounts(&global).is_empty());

    let grouped = SetUpLocalRequest {
        fs_group: Some(2000),
        mount_options: vec!["noatime".into(), "data=journal".into()],
        ..request("p", &named)
    };
    for _ in 0..2 {
        let reply = volumes.set_up_local(grouped.clone()).await.unwrap().into_inner();
        assert_eq!((reply.host_path, reply.other_group), (point("p").display().to_string(), None));
        assert_eq!((world.mounts(&global).len(), world.mounts(&point("p")).len()), (1, 1));
    }
    let shown = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = shown.lines().find(|line| line.contains(&global.display().to_string())).unwrap();
    assert!(line.contains("noatime") && line.contains("data=journal") && line.contains(" ext4 "), "{line}");
    assert!(line.contains(&format!(" {} ", disk.device)), "{line}");
    assert_eq!(std::fs::metadata(point("p")).unwrap().gid(), 2000);
    std::fs::write(point("p").join("f"), "data").unwrap();

    // Another group is told that it does not get it.
    let other = SetUpLocalRequest { fs_group: Some(3000), ..request("q", &named) };
    let reply = volumes.set_up_local(other).await.unwrap().into_inner();
    assert_eq!(reply.other_group, Some(2000));
    assert_eq!(std::fs::read_to_string(point("q").join("f")).unwrap(), "data");
    assert_eq!((world.mounts(&global).len(), std::fs::metadata(point("q")).unwrap().gid()), (1, 2000));

    // It stays for as long as a pod has it, and a pod that was about to have it brings it back.
    assert!(volumes.tear_down_pod(tear_down(&world, "p")).await.unwrap().into_inner().done);
    assert_eq!(world.mounts(&global).len(), 1);
    assert!(volumes.tear_down_pod(tear_down(&world, "q")).await.unwrap().into_inner().done);
    assert!(world.mounts(&global).is_empty() && !global.exists());
    let reply = volumes.set_up_local(request("r", &named)).await.unwrap().into_inner();
    assert_eq!(std::fs::read_to_string(Path::new(&reply.host_path).join("f")).unwrap(), "data", "not formatted again");

    // Of another kubelet's: mounted, and no pod has it.
    assert!(volumes.tear_down_pod(tear_down(&world, "r")).await.unwrap().into_inner().done);
    std::fs::create_dir_all(&global).unwrap();
    run("mount", &[&disk.device, &global.display().to_string()]);
    let pruned = PruneRequest { known_pod_uids: Vec::new(), guard: world.guard(2) };
    let mut steps = volumes.prune(pruned).await.unwrap().into_inner();
    while steps.message().await.unwrap().is_some() {}
    assert!(world.mounts(&global).is_empty() && !global.exists());
    assert!(world.node.journal.all().is_empty() && world.node.staging.all().is_empty());
}

#[tokio::test(flavor = "current_thread")]
async fn what_cannot_be_mounted_is_said_in_upstreams_words() {
    let Some((world, mut volumes)) = with_disks(&["p"]).await else { return };
    let disk = Loop::new(&world.dir, "disk", 32 * MIB);
    let bad = |fs_type: &str, option: &str| SetUpLocalRequest {
        fs_type: fs_type.into(),
        mount_options: vec![option.into()],
        ..request("p", &disk.device)
    };
    for (fs_type, option) in [("overlay", ""), ("ext4", "source=/dev/sda"), ("ext4", "bind")] {
        assert_eq!(volumes.set_up_local(bad(fs_type, option)).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let refused = volumes.set_up_local(request("p", "/dev/null")).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("only directory and block device are supported"), "{refused:?}");
    let folder = SetUpLocalRequest { block: true, ..request("p", &world.dir.display().to_string()) };
    let refused = volumes.set_up_local(folder).await.unwrap_err();
    assert!(refused.message().contains("volumeMode Block"), "{refused:?}");
    assert_eq!(Command::new("blkid").args(["-p", &disk.device]).status().unwrap().code(), Some(2), "nothing was done");

    // Another file system than the volume says is mounted as neither.
    run("mkfs.ext2", &["-q", &disk.device]);
    let refused = volumes.set_up_local(bad("xfs", "")).await.unwrap_err();
    assert_eq!(refused.details(), b"FilesystemMismatch");
    assert!(refused.message().contains("current format is ext2"), "{refused:?}");
    assert!(!world.dir.join("root/plugins/kubernetes.io/local-volume/mounts/pv").exists());

    // Another device under the volume's name.
    volumes.set_up_local(bad("ext2", "")).await.unwrap();
    let another = Loop::new(&world.dir, "another", 32 * MIB);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "q".into() }).await.unwrap();
    let refused = volumes.set_up_local(request("q", &another.device)).await.unwrap_err();
    assert!(refused.message().contains("mounted, and not"), "{refused:?}");
    assert!(volumes.tear_down_pod(tear_down(&world, "p")).await.unwrap().into_inner().done);
}

#[tokio::test(flavor = "current_thread")]
async fn a_device_is_mapped_as_upstream_and_held() {
    let Some((world, mut volumes)) = with_disks(&["p", "q"]).await else { return };
    let disk = Loop::new(&world.dir, "disk", 8 * MIB);
    let map = world.dir.join("root/plugins/kubernetes.io~local-volume/volumeDevices/pv");
    let link = |pod: &str| world.pod(pod).join("volumeDevices/kubernetes.io~local-volume/pv");
    for pod in ["p", "q", "q"] {
        let wanted = SetUpLocalRequest { block: true, ..request(pod, &disk.device) };
        let reply = volumes.set_up_local(wanted).await.unwrap().into_inner();
        assert_eq!(reply.host_path, link(pod).display().to_string());
        assert_eq!(std::fs::read_link(link(pod)).unwrap(), Path::new(&disk.device));
        let bound = map.join(pod);
        assert!(std::fs::metadata(&bound).unwrap().file_type().is_block_device());
        assert_eq!(std::fs::metadata(&bound).unwrap().rdev(), std::fs::metadata(&disk.device).unwrap().rdev());
        assert_eq!(loop_device::of_file(&bound).unwrap().len(), 1, "a loop device holds it");
    }
    assert_eq!(Command::new("blkid").args(["-p", &disk.device]).status().unwrap().code(), Some(2), "never formatted");

    // Half of it is there, as after a death; and a link that leads elsewhere.
    std::fs::remove_file(link("q")).unwrap();
    assert!(volumes.tear_down_pod(tear_down(&world, "q")).await.unwrap().into_inner().done);
    assert!(
        !map.join("q").exists() && map.join("p").exists() && loop_device::of_file(&map.join("q")).unwrap().is_empty()
    );
    std::fs::remove_file(link("p")).unwrap();
    std::fs::create_dir(link("p")).unwrap();
    let reply = volumes.tear_down_pod(tear_down(&world, "p")).await.unwrap().into_inner();
    assert!(!reply.done && reply.left[0].contains("in the way"), "{:?}", reply.left);
    std::fs::remove_dir(link("p")).unwrap();
    assert!(volumes.tear_down_pod(tear_down(&world, "p")).await.unwrap().into_inner().done);
    assert!(
        !map.exists() && world.mounts(&world.dir.join("root")).iter().all(|point| !point.contains("volumeDevices"))
    );
}

#[tokio::test(flavor = "current_thread")]
async fn a_file_system_fills_its_device_with_the_next_mount() {
    let Some((world, mut volumes)) = with_disks(&["p"]).await else { return };
    let disk = Loop::new(&world.dir, "disk", 32 * MIB);
    volumes.set_up_local(request("p", &disk.device)).await.unwrap();
    let point = world.pod("p").join("volumes/kubernetes.io~local-volume/pv");
    let before = size(&point);
    disk.resize(96 * MIB);
    let grown = SetUpLocalRequest { grow: true, ..request("p", &disk.device) };
    // While it is mounted the kernel wants CAP_SYS_RESOURCE, which not every machine gives.
    let online = volumes.set_up_local(grown.clone()).await;
    if let Err(refused) = &online {
        assert!(refused.message().contains("resize of device"), "{refused:?}");
        assert_eq!(size(&point), before);
        assert!(volumes.tear_down_pod(tear_down(&world, "p")).await.unwrap().into_inner().done);
        volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
        volumes.set_up_local(grown.clone()).await.unwrap();
    }
    assert!(size(&point) > before + 48 * MIB, "{before} {}", size(&point));
    volumes.set_up_local(grown).await.unwrap();
    assert!(volumes.tear_down_pod(tear_down(&world, "p")).await.unwrap().into_inner().done);
}

#[tokio::test(flavor = "current_thread")]
async fn without_anybody_to_ask_nothing_is_done() {
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let disk = Loop::new(&world.dir, "disk", 8 * MIB);
    let refused = volumes.set_up_local(request("p", &disk.device)).await.unwrap_err();
    assert!(refused.message().contains("kubelet-disks cannot be asked"), "{refused:?}");
    assert!(world.mounts(&world.dir.join("root/plugins")).is_empty());
}

/// Needs mkfs.xfs too.
#[tokio::test(flavor = "current_thread")]
async fn an_xfs_fills_its_device_while_it_is_mounted() {
    if !["/usr/sbin/mkfs.xfs", "/sbin/mkfs.xfs"].iter().any(|program| Path::new(program).exists()) {
        return skip_this_test(Lack::Program("mkfs.xfs")).unwrap();
    }
    let Some((world, mut volumes)) = with_disks(&["p"]).await else { return };
    let disk = Loop::new(&world.dir, "disk", 320 * MIB);
    let xfs = SetUpLocalRequest { fs_type: "xfs".into(), ..request("p", &disk.device) };
    let path = volumes.set_up_local(xfs.clone()).await.unwrap().into_inner().host_path;
    let before = size(Path::new(&path));
    std::fs::write(Path::new(&path).join("f"), "data").unwrap();
    disk.resize(640 * MIB);
    let grown = SetUpLocalRequest { grow: true, ..xfs };
    for _ in 0..2 {
        volumes.set_up_local(grown.clone()).await.unwrap();
        assert!(size(Path::new(&path)) > before + 300 * MIB, "{before} {}", size(Path::new(&path)));
    }
    assert_eq!(std::fs::read_to_string(Path::new(&path).join("f")).unwrap(), "data");
    assert!(volumes.tear_down_pod(tear_down(&world, "p")).await.unwrap().into_inner().done);
}
