//! Volumes of CSI drivers on real mounts and devices: a volume's life as upstream lays it out, and what drivers, pods and crashes
//! may put in the way. The driver is played here. Needs root.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use bulkhead_ipc::volnetd::csi_client::CsiClient;
use bulkhead_ipc::volnetd::prepare_sub_path_request::Root;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::*;
use bulkhead_sys::loop_device;
use bulkhead_testkit::immutable::{Immutable, LACK};
use bulkhead_testkit::skip::{Lack, skip_this_test};
use rustix::mount::{MountFlags, UnmountFlags};
use tonic::Code;
use tonic::transport::Channel;

use crate::world::{SYNCD, World, world};

pub const DRIVER: &str = "driver.example";
const HANDLE: &str = "volume-1";
const ATTACHMENT: &str = "csi-0000000000000000000000000000000000000000000000000000000000000000";

pub fn device(block: bool) -> CsiDevice {
    CsiDevice { driver: DRIVER.into(), volume_handle: HANDLE.into(), block, spec_name: "pv".into() }
}

pub fn to_stage(device: CsiDevice) -> PrepareStageRequest {
    PrepareStageRequest {
        device: Some(device),
        node_name: "node-a".into(),
        attachment_id: ATTACHMENT.into(),
        ..Default::default()
    }
}

pub fn to_publish(pod: &str, device: CsiDevice) -> PreparePublishRequest {
    let data = CsiVolumeData {
        lifecycle_mode: if device.block { String::new() } else { "Persistent".into() },
        device: Some(device),
        node_name: "node-a".into(),
        attachment_id: ATTACHMENT.into(),
        ..Default::default()
    };
    PreparePublishRequest { pod_uid: pod.into(), data: Some(data) }
}

pub fn to_commit(pod: &str, device: CsiDevice) -> CommitPublishRequest {
    CommitPublishRequest { pod_uid: pod.into(), device: Some(device), ..Default::default() }
}

pub fn to_end(world: &World, pod: &str, device: CsiDevice) -> EndPublishRequest {
    EndPublishRequest { pod_uid: pod.into(), device: Some(device), guard: world.guard(1) }
}

fn to_unstage(world: &World, device: CsiDevice) -> EndStageRequest {
    EndStageRequest { device: Some(device), guard: world.guard(1), folder: String::new() }
}

pub async fn staged(csi: &mut CsiClient<Channel>) -> Vec<StagedVolume> {
    let mut stream = csi.list_staged(ListStagedRequest {}).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(volume) = stream.message().await.unwrap() {
        all.push(volume);
    }
    all
}

pub async fn published(csi: &mut CsiClient<Channel>) -> Vec<PublishedVolume> {
    let mut stream = csi.list_published(ListPublishedRequest::default()).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(volume) = stream.message().await.unwrap() {
        all.push(volume);
    }
    all
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

pub fn mount_tmpfs(on: &Path) {
    std::fs::create_dir_all(on).unwrap();
    rustix::mount::mount("driver", on, "tmpfs", MountFlags::empty(), None).unwrap();
}

pub fn bind(from: &Path, to: &Path) {
    rustix::mount::mount_bind(from, to).unwrap();
}

fn unmount(point: &Path) {
    rustix::mount::unmount(point, UnmountFlags::empty()).unwrap();
}

/// Every path below a folder, other mounts not entered.
fn tree(base: &Path) -> Vec<String> {
    fn walk(folder: &Path, base: &Path, found: &mut Vec<String>) {
        let device = std::fs::metadata(folder).unwrap().dev();
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            found.push(entry.path().strip_prefix(base).unwrap().display().to_string());
            let meta = entry.metadata().unwrap();
            if meta.is_dir() && meta.dev() == device {
                walk(&entry.path(), base, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(base, base, &mut found);
    found.sort();
    found
}

pub struct Clients {
    pub world: World,
    pub csi: CsiClient<Channel>,
    pub volumes: VolumesClient<Channel>,
}

impl Clients {
    pub async fn new() -> Option<Self> {
        let world = world().await?;
        Some(Self::on(world).await)
    }

    async fn on(world: World) -> Self {
        let channel = world.channel(SYNCD).await;
        let (csi, mut volumes) = (CsiClient::new(channel.clone()), VolumesClient::new(channel));
        volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
        Clients { world, csi, volumes }
    }

    pub fn base(&self) -> PathBuf {
        self.world.dir.join("root/plugins/kubernetes.io/csi")
    }

    pub fn folder(&self) -> PathBuf {
        self.world.pod("p").join("volumes/kubernetes.io~csi/pv")
    }

    /// Prepared, and published by the driver: a tmpfs.
    pub async fn published(&mut self) -> PathBuf {
        let target = self.csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner().target_path;
        mount_tmpfs(Path::new(&target));
        target.into()
    }

    pub async fn tear_down(&mut self) -> TearDownPodReply {
        let request = TearDownPodRequest { pod_uid: "p".into(), guard: self.world.guard(1), volumes_only: false };
        self.volumes.tear_down_pod(request).await.unwrap().into_inner()
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_file_systems_life_is_upstreams() {
    let Some(mut clients) = Clients::new().await else { return };
    let (base, folder) = (clients.base(), clients.folder());

    // Staged.
    let request = to_stage(device(false));
    for _ in 0..2 {
        let reply = clients.csi.prepare_stage(request.clone()).await.unwrap().into_inner();
        assert!(reply.staging_path.starts_with(base.join(DRIVER).to_str().unwrap()));
        assert!(reply.staging_path.ends_with("/globalmount") && !reply.committed_before, "{reply:?}");
        let listed = staged(&mut clients.csi).await;
        assert!(listed.len() == 1 && listed[0].uncertain && !listed[0].mounted, "{listed:?}");
        assert_eq!((listed[0].device.clone().unwrap().volume_handle.as_str(), &*listed[0].problem), (HANDLE, ""));
    }
    let staging = PathBuf::from(staged(&mut clients.csi).await[0].staging_path.clone());
    let file = staging.parent().unwrap().join("vol_data.json");
    assert_eq!(
        std::fs::read_to_string(&file).unwrap(),
        "{\"driverName\":\"driver.example\",\"volumeHandle\":\"volume-1\"}\n"
    );
    assert_eq!((mode(&file), mode(&staging), mode(staging.parent().unwrap())), (0o644, 0o750, 0o750));
    mount_tmpfs(&staging);
    for _ in 0..2 {
        clients.csi.commit_stage(device(false)).await.unwrap();
    }
    let listed = staged(&mut clients.csi).await;
    assert!(!listed[0].uncertain && listed[0].mounted, "{listed:?}");
    let inode = std::fs::metadata(&file).unwrap().ino();
    assert!(clients.csi.prepare_stage(request.clone()).await.unwrap().into_inner().committed_before);
    assert!(!staged(&mut clients.csi).await[0].uncertain);
    assert_eq!(std::fs::metadata(&file).unwrap().ino(), inode, "it is not written again");

    // Published.
    for _ in 0..2 {
        let reply = clients.csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner();
        assert_eq!(reply.target_path, folder.join("mount").display().to_string());
        assert!(!reply.committed_before && !folder.join("mount").exists(), "the driver makes it");
        assert!(published(&mut clients.csi).await[0].uncertain);
    }
    let text = format!(
        "{{\"attachmentID\":\"{ATTACHMENT}\",\"driverName\":\"driver.example\",\"nodeName\":\"node-a\",\
         \"specVolID\":\"pv\",\"volumeHandle\":\"volume-1\",\"volumeLifecycleMode\":\"Persistent\"}}\n"
    );
    assert_eq!(std::fs::read_to_string(folder.join("vol_data.json")).unwrap(), text);
    assert_eq!((mode(&folder.join("vol_data.json")), mode(&folder)), (0o644, 0o750));
    std::fs::write(staging.join("f"), "data").unwrap();
    std::fs::create_dir(folder.join("mount")).unwrap();
    bind(&staging, &folder.join("mount"));
    let commit = CommitPublishRequest { fs_group: Some(2000), ..to_commit("p", device(false)) };
    for _ in 0..2 {
        let reply = clients.csi.commit_publish(commit.clone()).await.unwrap().into_inner();
        assert_eq!(reply.host_path, folder.join("mount").display().to_string());
    }
    let root = std::fs::metadata(folder.join("mount")).unwrap();
    let inner = std::fs::metadata(folder.join("mount/f")).unwrap();
    assert_eq!((root.gid(), root.mode() & 0o2070, inner.gid(), inner.mode() & 0o777), (2000, 0o2070, 2000, 0o664));
    let listed = published(&mut clients.csi).await;
    assert!(!listed[0].uncertain && listed[0].mounted && listed[0].problem.is_empty(), "{listed:?}");
    assert_eq!(listed[0].data, to_publish("p", device(false)).data);
    assert!(clients.csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner().committed_before);
    assert!(!published(&mut clients.csi).await[0].uncertain, "a call that is repeated takes nothing away");

    // A subPath, and a pod that is not torn down.
    let sub_path = PrepareSubPathRequest {
        pod_uid: "p".into(),
        volume: "pv".into(),
        container: "c".into(),
        sub_path: "sub".into(),
        root: Some(Root::Plugin("kubernetes.io/csi".into())),
        ..Default::default()
    };
    let bound = clients.volumes.prepare_sub_path(sub_path).await.unwrap().into_inner().host_path;
    std::fs::write(Path::new(&bound).join("g"), "").unwrap();
    assert!(staging.join("sub/g").exists());
    let empty = SetUpEmptyDirRequest {
        pod_uid: "p".into(),
        volume: "cache".into(),
        medium: Medium::Memory.into(),
        size_limit_bytes: 1 << 20,
        ..Default::default()
    };
    let cache = PathBuf::from(clients.volumes.set_up_empty_dir(empty).await.unwrap().into_inner().host_path);
    let before = clients.world.mounts(&clients.world.pod("p")).len();
    for volumes_only in [true, false] {
        let request = TearDownPodRequest { pod_uid: "p".into(), guard: clients.world.guard(1), volumes_only };
        let reply = clients.volumes.tear_down_pod(request).await.unwrap().into_inner();
        assert!(
            !reply.done && reply.left == ["volume pv of CSI driver driver.example is published to the pod"],
            "{reply:?}"
        );
        assert!(!cache.exists(), "the pod's other volumes go");
        assert_eq!(clients.world.mounts(&clients.world.pod("p")).len(), before - 1);
        assert!(Path::new(&bound).join("g").exists() && folder.join("mount/f").exists());
    }
    let request = PruneRequest { known_pod_uids: Vec::new(), guard: clients.world.guard(1) };
    let mut steps = clients.volumes.prune(request).await.unwrap().into_inner();
    let step = steps.message().await.unwrap().unwrap();
    assert!(step.action == "kept" && step.error.contains("volume pv of CSI driver"), "{step:?}");
    assert!(folder.join("mount/f").exists());

    // Taken back.
    let end = to_end(&clients.world, "p", device(false));
    let refused = clients.csi.end_publish(end.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    for _ in 0..2 {
        clients.csi.begin_unpublish(end.clone()).await.unwrap();
        assert!(!Path::new(&bound).exists() && staging.join("sub/g").exists());
        assert!(published(&mut clients.csi).await[0].uncertain);
        assert!(folder.join("vol_data.json").exists());
    }
    let held = std::fs::File::open(folder.join("mount/f")).unwrap();
    let refused = clients.csi.end_publish(end.clone()).await.unwrap_err();
    let who = format!("({})", std::process::id());
    assert!(refused.code() == Code::FailedPrecondition && refused.message().contains(&who), "{refused:?}");
    drop(held);
    unmount(&folder.join("mount"));
    for _ in 0..2 {
        clients.csi.end_publish(end.clone()).await.unwrap();
        assert!(!folder.exists() && published(&mut clients.csi).await.is_empty());
    }
    clients.csi.begin_unpublish(end).await.unwrap();
    assert!(clients.tear_down().await.done);
    let unstage = to_unstage(&clients.world, device(false));
    clients.csi.begin_unstage(unstage.clone()).await.unwrap();
    assert!(staged(&mut clients.csi).await[0].uncertain);
    assert_eq!(clients.csi.end_stage(unstage.clone()).await.unwrap_err().code(), Code::FailedPrecondition);
    unmount(&staging);
    for _ in 0..2 {
        clients.csi.end_stage(unstage.clone()).await.unwrap();
        assert!(staged(&mut clients.csi).await.is_empty());
        assert_eq!(tree(&base), [DRIVER], "as upstream leaves it");
    }
    assert!(clients.world.node.journal.all().is_empty() && clients.world.node.staging.all().is_empty());
}

/// A loop device over a file, as a driver has one.
pub struct Disk {
    file: PathBuf,
    pub device: PathBuf,
}

impl Disk {
    pub fn new(dir: &Path) -> Option<Self> {
        if !Path::new("/dev/loop-control").exists() {
            skip_this_test(Lack::LoopDevices).unwrap();
            return None;
        }
        let file = dir.join("disk");
        let opened = std::fs::File::options().read(true).write(true).create_new(true).open(&file).unwrap();
        opened.set_len(1 << 20).unwrap();
        let number = loop_device::attach(std::os::fd::AsFd::as_fd(&opened), &file).unwrap();
        Some(Disk { file, device: format!("/dev/loop{number}").into() })
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = loop_device::detach(&self.file);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_block_volumes_life_is_upstreams() {
    let Some(mut clients) = Clients::new().await else { return };
    let Some(disk) = Disk::new(&clients.world.dir) else { return };
    let base = clients.base();
    let block = || device(true);
    let refused = clients.csi.prepare_publish(to_publish("p", block())).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "not staged: {refused:?}");
    assert!(clients.world.node.journal.all().is_empty());
    let reply = clients.csi.prepare_stage(to_stage(block())).await.unwrap().into_inner();
    assert_eq!(reply.staging_path, base.join("volumeDevices/staging/pv").display().to_string());
    clients.csi.commit_stage(block()).await.unwrap();
    assert!(!staged(&mut clients.csi).await[0].uncertain);
    let reply = clients.csi.prepare_publish(to_publish("p", block())).await.unwrap().into_inner();
    let target = base.join("volumeDevices/publish/pv/p");
    assert_eq!(reply.target_path, target.display().to_string());
    let listed = published(&mut clients.csi).await;
    assert!(listed.len() == 1 && listed[0].uncertain, "by its intent alone: {listed:?}");
    let reply = clients.tear_down().await;
    assert!(!reply.done && reply.left[0].contains("block volume pv of CSI driver driver.example"), "{reply:?}");

    std::fs::write(&target, "").unwrap();
    bind(&disk.device, &target);
    let link = clients.world.pod("p").join("volumeDevices/kubernetes.io~csi/pv");
    let bound = base.join("volumeDevices/pv/dev/p");
    let mut number = Vec::new();
    for _ in 0..2 {
        let reply = clients.csi.commit_publish(to_commit("p", block())).await.unwrap().into_inner();
        assert_eq!(reply.host_path, link.display().to_string());
        assert_eq!(std::fs::read_link(&link).unwrap(), target);
        assert!(std::fs::symlink_metadata(&bound).unwrap().file_type().is_block_device());
        assert_eq!(std::fs::metadata(&bound).unwrap().rdev(), std::fs::metadata(&disk.device).unwrap().rdev());
        let held = loop_device::of_file(&bound).unwrap();
        assert_eq!(held.len(), 1, "held by one loop device");
        number.push(held[0]);
    }
    assert_eq!(number[0], number[1]);
    assert_eq!(
        tree(&base),
        [
            "volumeDevices",
            "volumeDevices/publish",
            "volumeDevices/publish/pv",
            "volumeDevices/publish/pv/p",
            "volumeDevices/pv",
            "volumeDevices/pv/data",
            "volumeDevices/pv/data/vol_data.json",
            "volumeDevices/pv/dev",
            "volumeDevices/pv/dev/p",
            "volumeDevices/staging",
            "volumeDevices/staging/pv",
        ]
    );
    for folder in
        ["volumeDevices/publish/pv", "volumeDevices/pv/data", "volumeDevices/pv/dev", "volumeDevices/staging/pv"]
    {
        assert_eq!(mode(&base.join(folder)), 0o750, "{folder}");
    }
    assert_eq!((mode(link.parent().unwrap()), mode(link.parent().unwrap().parent().unwrap())), (0o750, 0o750));
    let listed = published(&mut clients.csi).await;
    assert!(listed.len() == 1 && !listed[0].uncertain && listed[0].mounted, "{listed:?}");
    assert!(clients.csi.prepare_publish(to_publish("p", block())).await.unwrap().into_inner().committed_before);
    let unstage = to_unstage(&clients.world, block());
    let refused = clients.csi.begin_unstage(unstage.clone()).await.unwrap_err();
    assert!(refused.code() == Code::FailedPrecondition && refused.message().contains("pod p"), "{refused:?}");
    assert!(!clients.tear_down().await.done && link.exists());

    let end = to_end(&clients.world, "p", block());
    assert_eq!(clients.csi.end_publish(end.clone()).await.unwrap_err().code(), Code::FailedPrecondition);
    for _ in 0..2 {
        clients.csi.begin_unpublish(end.clone()).await.unwrap();
        assert!(!link.exists() && !bound.exists() && target.exists());
        assert!(loop_device::of_file(&bound).unwrap().is_empty());
        assert!(published(&mut clients.csi).await[0].uncertain);
    }
    assert_eq!(clients.csi.end_publish(end.clone()).await.unwrap_err().code(), Code::FailedPrecondition);
    unmount(&target);
    for _ in 0..2 {
        clients.csi.end_publish(end.clone()).await.unwrap();
        assert!(published(&mut clients.csi).await.is_empty());
    }
    assert!(clients.tear_down().await.done);
    // A driver may keep something of its own there.
    std::fs::write(base.join("volumeDevices/staging/pv/state"), "").unwrap();
    clients.csi.begin_unstage(unstage.clone()).await.unwrap();
    for _ in 0..2 {
        clients.csi.end_stage(unstage.clone()).await.unwrap();
        assert_eq!(tree(&base), ["volumeDevices", "volumeDevices/publish", "volumeDevices/staging"]);
    }
    assert!(clients.world.node.journal.all().is_empty() && clients.world.node.staging.all().is_empty());
}

#[tokio::test(flavor = "current_thread")]
async fn what_a_driver_must_not_put_there_is_refused() {
    let Some(mut clients) = Clients::new().await else { return };
    let (base, folder) = (clients.base(), clients.folder());
    let target = folder.join("mount");
    let outside = clients.world.dir.join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("keep"), "x").unwrap();
    let commit = CommitPublishRequest { fs_group: Some(2000), ..to_commit("p", device(false)) };

    // In place of the target.
    let node = |kind, device| {
        rustix::fs::mknodat(rustix::fs::CWD, &target, kind, rustix::fs::Mode::from_raw_mode(0o600), device).unwrap();
    };
    for (what, make) in [
        ("a symbolic link", Box::new(|| symlink(&outside, &target).unwrap()) as Box<dyn Fn()>),
        ("a regular file", Box::new(|| std::fs::write(&target, "").unwrap())),
        ("a FIFO", Box::new(|| node(rustix::fs::FileType::Fifo, 0))),
        ("a character device", Box::new(|| node(rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 5)))),
    ] {
        clients.csi.prepare_publish(to_publish("p", device(false))).await.unwrap();
        make();
        let committed = clients.csi.commit_publish(commit.clone()).await;
        if what == "a symbolic link" {
            // It is the link itself that is given to the group.
            assert_eq!(committed.unwrap().into_inner().host_path, target.display().to_string());
            assert_eq!(std::fs::symlink_metadata(&target).unwrap().gid(), 2000);
        } else {
            let refused = committed.unwrap_err();
            assert!(refused.code() == Code::Internal && refused.message().contains(what), "{what}: {refused:?}");
        }
        // A link is what some drivers publish by; nothing goes through it here.
        let prepared = clients.csi.prepare_publish(to_publish("p", device(false))).await;
        let code = prepared.err().map(|refused| refused.code());
        assert_eq!(code, (what != "a symbolic link").then_some(Code::Internal), "{what}");
        let sub_path = PrepareSubPathRequest {
            pod_uid: "p".into(),
            volume: "pv".into(),
            container: "c".into(),
            sub_path: "keep".into(),
            root: Some(Root::Plugin("kubernetes.io/csi".into())),
            ..Default::default()
        };
        assert!(clients.volumes.prepare_sub_path(sub_path).await.is_err(), "{what}");
        let listed = published(&mut clients.csi).await;
        assert!(listed[0].uncertain && listed[0].mounted == (what == "a symbolic link"), "{what}");
        std::fs::remove_file(&target).unwrap();
    }
    for (path, mode_before) in [(outside.clone(), 0o755), (outside.join("keep"), 0o644)] {
        assert_eq!((std::fs::metadata(&path).unwrap().gid(), mode(&path)), (0, mode_before), "{}", path.display());
    }

    // A volume whose root is no folder: a file is mounted on a file. Nobody enters it who has nothing to give.
    std::fs::write(&target, "").unwrap();
    bind(Path::new("/dev/zero"), &target);
    let refused = clients.csi.commit_publish(commit.clone()).await.unwrap_err();
    assert!(refused.code() == Code::Internal && refused.message().contains("no folder"), "{refused:?}");
    clients.csi.commit_publish(to_commit("p", device(false))).await.unwrap();
    unmount(&target);
    std::fs::remove_file(&target).unwrap();

    // A volume with links and devices in it: their targets stay what they are.
    std::fs::create_dir(&target).unwrap();
    mount_tmpfs(&target);
    symlink(&outside, target.join("link")).unwrap();
    clients.csi.commit_publish(commit.clone()).await.unwrap();
    assert_eq!(std::fs::metadata(outside.join("keep")).unwrap().gid(), 0);
    assert_eq!(std::fs::symlink_metadata(target.join("link")).unwrap().gid(), 2000);
    // Another mount over it, and one over the folder: neither is taken away, and the way is not taken.
    let end = to_end(&clients.world, "p", device(false));
    rustix::mount::mount("second", &target, "tmpfs", MountFlags::empty(), None).unwrap();
    for left in [1, 0] {
        let refused = clients.csi.end_publish(end.clone()).await.unwrap_err();
        assert!(refused.code() == Code::FailedPrecondition && refused.message().contains("tmpfs"), "{refused:?}");
        unmount(&target);
        assert_eq!(clients.world.mounts(&target).len(), left);
    }
    rustix::mount::mount("over", &folder, "tmpfs", MountFlags::empty(), None).unwrap();
    let refused = clients.csi.commit_publish(commit.clone()).await.unwrap_err();
    assert!(refused.message().contains("something is mounted over"), "{refused:?}");
    assert!(clients.csi.prepare_publish(to_publish("p", device(false))).await.is_err());
    let listed = published(&mut clients.csi).await;
    assert!(listed[0].problem.contains("something is mounted over"), "{listed:?}");
    assert_eq!(clients.csi.end_publish(end.clone()).await.unwrap_err().code(), Code::FailedPrecondition);
    assert!(!clients.tear_down().await.done);
    assert_eq!(clients.world.mounts(&folder).len(), 1);
    unmount(&folder);

    // A link in place of a parent.
    let plugin = folder.parent().unwrap();
    let aside = clients.world.dir.join("root/aside");
    std::fs::rename(plugin, &aside).unwrap();
    symlink(&outside, plugin).unwrap();
    for refused in [
        clients.csi.prepare_publish(to_publish("p", device(false))).await.map(drop).unwrap_err(),
        clients.csi.commit_publish(commit.clone()).await.map(drop).unwrap_err(),
        clients.csi.begin_unpublish(end.clone()).await.map(drop).unwrap_err(),
        clients.csi.end_publish(end.clone()).await.map(drop).unwrap_err(),
    ] {
        assert!(refused.code() == Code::Internal && refused.message().contains("symbolic link"), "{refused:?}");
    }
    std::fs::remove_file(plugin).unwrap();
    std::fs::rename(&aside, plugin).unwrap();
    clients.csi.end_publish(end).await.unwrap();

    // The same once a node.
    let stage = to_stage(device(false));
    let staging = PathBuf::from(clients.csi.prepare_stage(stage.clone()).await.unwrap().into_inner().staging_path);
    std::fs::remove_dir(&staging).unwrap();
    symlink(&outside, &staging).unwrap();
    assert!(clients.csi.commit_stage(device(false)).await.unwrap_err().message().contains("a symbolic link"));
    assert!(clients.csi.prepare_stage(stage.clone()).await.unwrap_err().message().contains("symbolic link"));
    std::fs::remove_file(&staging).unwrap();
    let of_driver = base.join(DRIVER);
    std::fs::rename(&of_driver, &aside).unwrap();
    symlink(&outside, &of_driver).unwrap();
    let unstage = to_unstage(&clients.world, device(false));
    assert!(clients.csi.prepare_stage(stage).await.unwrap_err().message().contains("symbolic link"));
    assert!(clients.csi.end_stage(unstage.clone()).await.unwrap_err().message().contains("symbolic link"));
    assert!(staged(&mut clients.csi).await.is_empty());
    std::fs::remove_file(&of_driver).unwrap();
    std::fs::rename(&aside, &of_driver).unwrap();
    clients.csi.end_stage(unstage).await.unwrap();

    // Block volumes: a device alone, or a file; a link to one or the other is none.
    clients.csi.prepare_stage(to_stage(device(true))).await.unwrap();
    clients.csi.prepare_publish(to_publish("p", device(true))).await.unwrap();
    let published_at = base.join("volumeDevices/publish/pv/p");
    for (what, make) in [
        ("a symbolic link", Box::new(|| symlink("/dev/null", &published_at).unwrap()) as Box<dyn Fn()>),
        (
            "a character device",
            Box::new(|| {
                std::fs::write(&published_at, "").unwrap();
                bind(Path::new("/dev/zero"), &published_at);
            }),
        ),
        ("a folder", Box::new(|| std::fs::create_dir(&published_at).unwrap())),
    ] {
        make();
        let refused = clients.csi.commit_publish(to_commit("p", device(true))).await.unwrap_err();
        assert!(refused.code() == Code::Internal && refused.message().contains(what), "{what}: {refused:?}");
        let _ = rustix::mount::unmount(&published_at, UnmountFlags::NOFOLLOW);
        let _ = std::fs::remove_file(&published_at);
        let _ = std::fs::remove_dir(&published_at);
    }
    assert!(!base.join("volumeDevices/pv/dev/p").exists());
    assert_eq!(tree(&outside), ["keep"], "nothing is made or removed outside");
    assert_eq!((std::fs::metadata(&outside).unwrap().gid(), mode(&outside) & 0o2000), (0, 0));
}

/// As Fluid (`node_publish_method: symlink`) and IBM Storage Scale publish.
#[tokio::test(flavor = "current_thread")]
async fn a_link_of_the_drivers_is_the_volume_and_is_not_followed() {
    let Some(mut clients) = Clients::new().await else { return };
    let target = clients.folder().join("mount");
    let outside = clients.world.dir.join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("keep"), "x").unwrap();
    clients.csi.prepare_publish(to_publish("p", device(false))).await.unwrap();
    symlink(&outside, &target).unwrap();
    let reply = clients.csi.commit_publish(to_commit("p", device(false))).await.unwrap().into_inner();
    assert_eq!(reply.host_path, target.display().to_string());
    let listed = published(&mut clients.csi).await;
    assert!(listed[0].uncertain && listed[0].mounted && listed[0].problem.is_empty(), "asked again: {listed:?}");
    let again = clients.csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner();
    assert!(again.committed_before);
    let end = to_end(&clients.world, "p", device(false));
    clients.csi.begin_unpublish(end.clone()).await.unwrap();
    clients.csi.end_publish(end).await.unwrap();
    assert!(published(&mut clients.csi).await.is_empty() && target.symlink_metadata().is_err());
    assert_eq!(tree(&outside), ["keep"]);
}

/// As HPE's driver publishes, and as some leave where they have staged.
#[tokio::test(flavor = "current_thread")]
async fn a_link_to_a_block_device_is_the_device() {
    let Some(mut clients) = Clients::new().await else { return };
    let Some(disk) = Disk::new(&clients.world.dir) else { return };
    let base = clients.base();
    let staging =
        PathBuf::from(clients.csi.prepare_stage(to_stage(device(true))).await.unwrap().into_inner().staging_path);
    std::fs::remove_dir(&staging).unwrap();
    symlink(&disk.device, &staging).unwrap();
    clients.csi.commit_stage(device(true)).await.unwrap();
    assert!(clients.csi.prepare_stage(to_stage(device(true))).await.unwrap().into_inner().committed_before);
    clients.csi.prepare_publish(to_publish("p", device(true))).await.unwrap();
    symlink(&disk.device, base.join("volumeDevices/publish/pv/p")).unwrap();
    for _ in 0..2 {
        clients.csi.commit_publish(to_commit("p", device(true))).await.unwrap();
        let bound = std::fs::symlink_metadata(base.join("volumeDevices/pv/dev/p")).unwrap();
        assert!(bound.file_type().is_block_device());
        assert_eq!(bound.rdev(), std::fs::metadata(&disk.device).unwrap().rdev());
    }
    let end = to_end(&clients.world, "p", device(true));
    clients.csi.begin_unpublish(end.clone()).await.unwrap();
    clients.csi.end_publish(end).await.unwrap();
    let unstage = to_unstage(&clients.world, device(true));
    clients.csi.begin_unstage(unstage.clone()).await.unwrap();
    clients.csi.end_stage(unstage).await.unwrap();
    assert!(disk.device.exists() && staging.symlink_metadata().is_err());
}

#[tokio::test(flavor = "current_thread")]
async fn names_that_are_none_are_refused_and_make_nothing() {
    let Some(mut clients) = Clients::new().await else { return };
    let with = |change: &dyn Fn(&mut CsiDevice)| {
        let mut device = device(true);
        change(&mut device);
        device
    };
    let long = "x".repeat(254);
    let bad = [
        with(&|device| device.driver = "..".into()),
        with(&|device| device.driver = "a/b".into()),
        with(&|device| device.driver = "../x".into()),
        with(&|device| device.driver = "volumeDevices".into()),
        with(&|device| device.driver = "a\nb".into()),
        with(&|device| device.driver = "x".repeat(64)),
        with(&|device| device.driver = String::new()),
        with(&|device| device.spec_name = "..".into()),
        with(&|device| device.spec_name = "a/b".into()),
        with(&|device| device.spec_name = "a\nb".into()),
        with(&|device| device.spec_name = long.clone()),
        with(&|device| device.spec_name = String::new()),
        with(&|device| device.volume_handle = String::new()),
        with(&|device| device.volume_handle = "a\0b".into()),
        with(&|device| device.volume_handle = "x".repeat(4097)),
    ];
    for bad in bad {
        let unstage = to_unstage(&clients.world, bad.clone());
        let end = to_end(&clients.world, "p", bad.clone());
        for refused in [
            clients.csi.prepare_stage(to_stage(bad.clone())).await.map(drop).unwrap_err(),
            clients.csi.commit_stage(bad.clone()).await.map(drop).unwrap_err(),
            clients.csi.begin_unstage(unstage.clone()).await.map(drop).unwrap_err(),
            clients.csi.end_stage(unstage).await.map(drop).unwrap_err(),
            clients.csi.prepare_publish(to_publish("p", bad.clone())).await.map(drop).unwrap_err(),
            clients.csi.commit_publish(to_commit("p", bad.clone())).await.map(drop).unwrap_err(),
            clients.csi.begin_unpublish(end.clone()).await.map(drop).unwrap_err(),
            clients.csi.end_publish(end).await.map(drop).unwrap_err(),
        ] {
            assert_eq!(refused.code(), Code::InvalidArgument, "{bad:?}: {refused:?}");
        }
    }
    let stale = EndPublishRequest { guard: None, ..to_end(&clients.world, "p", device(false)) };
    assert_eq!(clients.csi.begin_unpublish(stale.clone()).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(clients.csi.end_publish(stale).await.unwrap_err().code(), Code::FailedPrecondition);
    let unknown = clients.csi.prepare_publish(to_publish("none", device(false))).await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(!clients.base().exists() && clients.world.node.journal.all().is_empty());
    assert!(clients.world.node.staging.all().is_empty());

    // As long as they may be, and as strange as a handle may be.
    let strange = CsiDevice {
        driver: "x".repeat(63),
        volume_handle: format!("../{}\n<&>", "ä".repeat(2000)),
        block: false,
        spec_name: "x".repeat(253),
    };
    let staging = clients.csi.prepare_stage(to_stage(strange.clone())).await.unwrap().into_inner().staging_path;
    assert!(Path::new(&staging).is_dir());
    clients.csi.prepare_publish(to_publish("p", strange.clone())).await.unwrap();
    assert_eq!(staged(&mut clients.csi).await[0].device.clone().unwrap().volume_handle, strange.volume_handle);
    assert_eq!(published(&mut clients.csi).await[0].data.clone().unwrap().device.unwrap(), strange);
    // Another volume of the same name has to wait.
    let other = CsiDevice { volume_handle: "other".into(), ..strange.clone() };
    let refused = clients.csi.prepare_publish(to_publish("p", other.clone())).await.unwrap_err();
    assert!(
        refused.code() == Code::FailedPrecondition && refused.message().contains("which has to go first"),
        "{refused:?}"
    );
    let end = to_end(&clients.world, "p", other);
    assert_eq!(clients.csi.end_publish(end).await.unwrap_err().code(), Code::FailedPrecondition);
    clients.csi.end_publish(to_end(&clients.world, "p", strange)).await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn a_full_disk_stages_nothing_and_holds_nothing_back() {
    let Some(mut clients) = Clients::new().await else { return };
    let plugins = clients.world.dir.join("root/plugins");
    rustix::mount::mount("disk", &plugins, "tmpfs", MountFlags::empty(), Some(c"size=64k")).unwrap();
    let filler = plugins.join("filler");
    fill(&filler);
    let refused = clients.csi.prepare_stage(to_stage(device(false))).await.unwrap_err();
    assert!(refused.code() == Code::ResourceExhausted && refused.message().contains("vol_data.json"), "{refused:?}");
    assert!(staged(&mut clients.csi).await.is_empty());
    assert_eq!(tree(&clients.base()), [DRIVER], "what was begun is taken away");
    assert!(clients.world.node.staging.all().is_empty(), "nothing is uncertain");
    std::fs::remove_file(&filler).unwrap();
    let staging = clients.csi.prepare_stage(to_stage(device(false))).await.unwrap().into_inner().staging_path;
    let file = Path::new(&staging).parent().unwrap().join("vol_data.json");
    // What was cut off is read as a problem, and written anew.
    std::fs::write(&file, "{\"driverName\":\"dri").unwrap();
    let listed = staged(&mut clients.csi).await;
    assert!(
        listed[0].problem.contains("vol_data.json") && listed[0].device.clone().unwrap().driver == DRIVER,
        "{listed:?}"
    );
    clients.csi.prepare_stage(to_stage(device(false))).await.unwrap();
    assert_eq!(staged(&mut clients.csi).await[0].problem, "");

    clients.csi.end_stage(to_unstage(&clients.world, device(false))).await.unwrap();
    assert!(staged(&mut clients.csi).await.is_empty());
}

/// Writes until there is no room.
fn fill(file: &Path) {
    let full = std::io::copy(&mut std::io::repeat(1), &mut std::fs::File::create(file).unwrap()).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
}

#[tokio::test(flavor = "current_thread")]
async fn a_full_disk_of_pods_publishes_nothing_and_holds_nothing_back() {
    let Some(mut clients) = Clients::new().await else { return };
    let pods = clients.world.dir.join("root/pods");
    rustix::mount::mount("disk", &pods, "tmpfs", MountFlags::empty(), Some(c"size=64k,mode=755")).unwrap();
    clients.volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let filler = clients.world.pod("p").join("filler");
    fill(&filler);
    for _ in 0..2 {
        let refused = clients.csi.prepare_publish(to_publish("p", device(false))).await.unwrap_err();
        assert!(
            refused.code() == Code::ResourceExhausted && refused.message().contains("vol_data.json"),
            "{refused:?}"
        );
        assert!(published(&mut clients.csi).await.is_empty());
        assert!(!clients.folder().exists(), "what was begun is taken away");
        assert!(clients.world.node.journal.all().is_empty(), "nothing is uncertain");
    }
    std::fs::remove_file(&filler).unwrap();
    let target = clients.published().await;
    clients.csi.commit_publish(to_commit("p", device(false))).await.unwrap();
    let listed = published(&mut clients.csi).await;
    assert!(listed.len() == 1 && listed[0].mounted && !listed[0].uncertain, "{listed:?}");
    // To take it back needs no room.
    fill(&filler);
    let end = to_end(&clients.world, "p", device(false));
    clients.csi.begin_unpublish(end.clone()).await.unwrap();
    unmount(&target);
    clients.csi.end_publish(end).await.unwrap();
    assert!(published(&mut clients.csi).await.is_empty() && !clients.folder().exists());
    let torn = clients.tear_down().await;
    assert!(torn.done && !clients.world.pod("p").exists(), "{torn:?}");
}

/// `None`, said aloud: there are no such files on this file system.
fn immutable(file: &Path) -> Option<Immutable> {
    let made = Immutable::make(file).unwrap();
    if made.is_none() {
        skip_this_test(LACK).unwrap();
        return None;
    }
    assert_eq!(std::fs::remove_file(file).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    made
}

#[tokio::test(flavor = "current_thread")]
async fn files_that_nobody_can_remove_are_named_and_keep_what_they_are_of() {
    let Some(mut clients) = Clients::new().await else { return };
    // Once a node.
    let staging = clients.csi.prepare_stage(to_stage(device(false))).await.unwrap().into_inner().staging_path;
    let file = Path::new(&staging).parent().unwrap().join("vol_data.json");
    let Some(held) = immutable(&file) else { return };
    let unstage = to_unstage(&clients.world, device(false));
    let refused = clients.csi.end_stage(unstage.clone()).await.unwrap_err();
    let names = |refused: &tonic::Status| {
        refused.message().contains("failed to remove") && refused.message().contains("vol_data.json")
    };
    assert!(names(&refused), "{refused:?}");
    assert!(staged(&mut clients.csi).await[0].uncertain);
    drop(held);
    clients.csi.end_stage(unstage).await.unwrap();
    assert!(staged(&mut clients.csi).await.is_empty());

    // Once a pod. Files of a volume that nobody can change are left, as upstream leaves them.
    let content = clients.world.dir.join("content");
    std::fs::create_dir(&content).unwrap();
    for name in ["a", "b"] {
        std::fs::write(content.join(name), "").unwrap();
    }
    let target = clients.csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner().target_path;
    std::fs::create_dir(&target).unwrap();
    bind(&content, Path::new(&target));
    let Some(fixed) = immutable(&content.join("a")) else { return };
    let commit = CommitPublishRequest { fs_group: Some(2000), ..to_commit("p", device(false)) };
    clients.csi.commit_publish(commit).await.unwrap();
    let group = |name: &str| std::fs::metadata(content.join(name)).unwrap().gid();
    assert_eq!((group("a"), group("b")), (0, 2000));
    drop(fixed);
    let end = to_end(&clients.world, "p", device(false));
    let file = clients.folder().join("vol_data.json");
    let Some(held) = immutable(&file) else { return };
    clients.csi.begin_unpublish(end.clone()).await.unwrap();
    unmount(Path::new(&target));
    for _ in 0..2 {
        let refused = clients.csi.end_publish(end.clone()).await.unwrap_err();
        assert!(names(&refused), "{refused:?}");
        let listed = published(&mut clients.csi).await;
        assert!(listed.len() == 1 && listed[0].uncertain && !listed[0].mounted, "{listed:?}");
        assert!(!clients.tear_down().await.done, "the pod waits for its volume");
    }
    assert!(content.join("b").exists());
    drop(held);
    clients.csi.end_publish(end).await.unwrap();
    assert!(published(&mut clients.csi).await.is_empty() && !clients.folder().exists());

    // What is the pod's own: the one volume stays, and the others go.
    clients.volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let empty_dir = |volume: &str| SetUpEmptyDirRequest {
        pod_uid: "p".into(),
        volume: volume.into(),
        medium: Medium::Disk.into(),
        ..Default::default()
    };
    let stays =
        PathBuf::from(clients.volumes.set_up_empty_dir(empty_dir("stays")).await.unwrap().into_inner().host_path);
    let goes = PathBuf::from(clients.volumes.set_up_empty_dir(empty_dir("goes")).await.unwrap().into_inner().host_path);
    std::fs::create_dir(stays.join("below")).unwrap();
    for file in [stays.join("below/fixed"), stays.join("other"), goes.join("other")] {
        std::fs::write(file, "").unwrap();
    }
    let Some(held) = immutable(&stays.join("below/fixed")) else { return };
    for _ in 0..2 {
        let torn = clients.tear_down().await;
        assert!(!torn.done && torn.left[0].contains("kubernetes.io~empty-dir/stays"), "{torn:?}");
        assert!(!goes.exists() && stays.join("below/fixed").exists());
    }
    drop(held);
    assert!(clients.tear_down().await.done && !clients.world.pod("p").exists());
    assert!(clients.world.node.journal.all().is_empty() && clients.world.node.staging.all().is_empty());
}

#[tokio::test(flavor = "current_thread")]
async fn groups_are_given_by_upstreams_rules() {
    let Some(mut clients) = Clients::new().await else { return };
    let target = clients.published().await;
    std::fs::write(target.join("f"), "").unwrap();
    std::fs::set_permissions(&target, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::set_permissions(target.join("f"), PermissionsExt::from_mode(0o600)).unwrap();
    let group = |path: &Path| (std::fs::metadata(path).unwrap().gid(), mode(path));
    clients.csi.commit_publish(to_commit("p", device(false))).await.unwrap();
    assert_eq!(group(&target.join("f")), (0, 0o600), "no group is asked for");
    let commit = |fs_group, on_root_mismatch, read_only| CommitPublishRequest {
        fs_group: Some(fs_group),
        fs_group_on_root_mismatch: on_root_mismatch,
        read_only,
        ..to_commit("p", device(false))
    };
    clients.csi.commit_publish(commit(2000, true, true)).await.unwrap();
    assert_eq!(group(&target.join("f")), (2000, 0o640), "a volume that is read-only");
    clients.csi.commit_publish(commit(2000, true, false)).await.unwrap();
    assert_eq!(group(&target.join("f")), (2000, 0o660));
    std::fs::write(target.join("g"), "").unwrap();
    std::os::unix::fs::chown(target.join("g"), None, Some(0)).unwrap();
    clients.csi.commit_publish(commit(2000, true, false)).await.unwrap();
    assert_eq!(group(&target.join("g")).0, 0, "the root is right, and nothing is walked");
    clients.csi.commit_publish(commit(2000, false, false)).await.unwrap();
    assert_eq!(group(&target.join("g")).0, 2000);
    assert_eq!(clients.csi.commit_publish(commit(-1, false, false)).await.unwrap_err().code(), Code::InvalidArgument);
    // Who may not change owners there decides by himself who may what.
    rustix::mount::mount_remount(&target, MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
    clients.csi.commit_publish(commit(3000, false, false)).await.unwrap();
    assert_eq!(group(&target).0, 2000);
}

/// As upstream, which does not look but for a group, and containerd, which makes the folder.
#[tokio::test(flavor = "current_thread")]
async fn a_driver_that_puts_nothing_there_gets_a_folder_that_goes_with_the_volume() {
    let Some(mut clients) = Clients::new().await else { return };
    let target = clients.folder().join("mount");
    clients.csi.prepare_publish(to_publish("p", device(false))).await.unwrap();
    let commit = to_commit("p", device(false));
    let of_group = CommitPublishRequest { fs_group: Some(2000), ..commit.clone() };
    let refused = clients.csi.commit_publish(of_group).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    let words = format!("applyFSGroup failed for vol {HANDLE}: lstat {}: no such file or directory", target.display());
    assert_eq!(refused.message(), words);
    let listed = published(&mut clients.csi).await;
    assert!(listed.len() == 1 && listed[0].uncertain && !target.exists(), "{listed:?}");
    for _ in 0..2 {
        let reply = clients.csi.commit_publish(commit.clone()).await.unwrap().into_inner();
        assert_eq!(reply.host_path, target.display().to_string());
        let made = std::fs::symlink_metadata(&target).unwrap();
        assert_eq!((mode(&target), made.gid()), (0o755, 0));
        let listed = published(&mut clients.csi).await;
        assert!(listed.len() == 1 && !listed[0].uncertain && !listed[0].mounted, "{listed:?}");
    }
    assert!(!clients.tear_down().await.done, "the driver is told first");
    let end = to_end(&clients.world, "p", device(false));
    clients.csi.begin_unpublish(end.clone()).await.unwrap();
    clients.csi.end_publish(end).await.unwrap();
    assert!(!clients.folder().exists());
    assert!(clients.tear_down().await.done && clients.world.node.journal.all().is_empty());
}

/// Two roots on one machine have volumes of the same names.
#[tokio::test(flavor = "current_thread")]
async fn two_roots_do_not_touch_each_others() {
    let (Some(mut one), Some(mut other)) = (Clients::new().await, Clients::new().await) else { return };
    let mut targets = BTreeMap::new();
    for (name, clients) in [("one", &mut one), ("other", &mut other)] {
        let staging = clients.csi.prepare_stage(to_stage(device(false))).await.unwrap().into_inner().staging_path;
        mount_tmpfs(Path::new(&staging));
        clients.csi.commit_stage(device(false)).await.unwrap();
        targets.insert(name, clients.published().await);
        clients.csi.commit_publish(to_commit("p", device(false))).await.unwrap();
    }
    unmount(&targets["one"]);
    let end = to_end(&one.world, "p", device(false));
    one.csi.begin_unpublish(end.clone()).await.unwrap();
    one.csi.end_publish(end).await.unwrap();
    assert!(one.tear_down().await.done);
    assert!(published(&mut one.csi).await.is_empty());
    let listed = published(&mut other.csi).await;
    assert!(listed.len() == 1 && listed[0].mounted && !listed[0].uncertain, "{listed:?}");
    assert!(targets["other"].join("../vol_data.json").exists());
    assert_eq!(staged(&mut other.csi).await.len(), 1);
}

/// Folders within folders, as deep as given.
fn make_deep(folder: &Path, levels: usize) {
    use rustix::fs::{Mode, OFlags};
    let mut here = std::os::fd::OwnedFd::from(std::fs::File::open(folder).unwrap());
    for _ in 0..levels {
        rustix::fs::mkdirat(&here, "d", Mode::from_raw_mode(0o755)).unwrap();
        here = rustix::fs::openat(&here, "d", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    }
    rustix::fs::openat(&here, "leaf", OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))
        .unwrap();
}

/// Deeper than any path is long, and than a stack may be.
#[tokio::test(flavor = "current_thread")]
async fn deep_trees_are_removed_where_they_are_ours_and_kept_where_they_are_a_drivers() {
    const DEEP: usize = 6000;
    let Some(mut clients) = Clients::new().await else { return };
    // In a volume: its group reaches as far as it reaches, and what is deeper does not matter.
    let target = clients.published().await;
    make_deep(&target, DEEP);
    let commit = CommitPublishRequest { fs_group: Some(2000), ..to_commit("p", device(false)) };
    clients.csi.commit_publish(commit).await.unwrap();
    assert_eq!(std::fs::metadata(target.join("d/d/d")).unwrap().gid(), 2000);
    assert!(!clients.tear_down().await.done && target.join("d/d/d").exists(), "the driver has it");
    unmount(&target);

    // Below a volume's mount point, where a driver wrote that had nothing mounted: content, which nobody removes.
    make_deep(&target, DEEP);
    let end = to_end(&clients.world, "p", device(false));
    let refused = clients.csi.end_publish(end.clone()).await.unwrap_err();
    assert!(refused.message().contains("is not empty, and nothing is removed"), "{refused:?}");
    // Nor where nobody knows whose it is.
    let file = clients.folder().join("vol_data.json");
    let content = std::fs::read(&file).unwrap();
    std::fs::write(&file, "{").unwrap();
    let unknown = CsiDevice { spec_name: "pv".into(), ..Default::default() };
    let refused = clients.csi.end_publish(to_end(&clients.world, "p", unknown)).await.unwrap_err();
    assert!(refused.message().contains("is not empty, and nothing is removed"), "{refused:?}");
    assert!(file.exists() && target.join("d/d/d").exists());
    assert!(!clients.tear_down().await.done && target.join("d/d/d").exists());
    std::fs::write(&file, content).unwrap();
    // A folder of no volume: the pod's folder waits for whoever made it.
    let stray = clients.folder().with_file_name("stray");
    std::fs::create_dir(&stray).unwrap();
    make_deep(&stray, DEEP);
    let torn = clients.tear_down().await;
    assert!(!torn.done && stray.join("d/d/d").exists(), "{torn:?}");
    for folder in [&target, &stray] {
        std::process::Command::new("rm").arg("-rf").arg(folder.join("d")).status().unwrap();
    }
    clients.csi.end_publish(end).await.unwrap();

    // Where a block volume was staged, a driver may leave what it kept of it: that goes, as upstream's does.
    let staging = clients.csi.prepare_stage(to_stage(device(true))).await.unwrap().into_inner().staging_path;
    make_deep(Path::new(&staging), DEEP);
    clients.csi.commit_stage(device(true)).await.unwrap();
    let unstage = to_unstage(&clients.world, device(true));
    clients.csi.begin_unstage(unstage.clone()).await.unwrap();
    clients.csi.end_stage(unstage).await.unwrap();
    assert!(!Path::new(&staging).exists());
    assert!(clients.tear_down().await.done, "nothing is left of it");
}
