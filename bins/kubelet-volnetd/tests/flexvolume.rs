//! Volumes of FlexVolume drivers, with somebody in kubelet-flexvolume's place. Needs root.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_helper::{Door, Limits, serve};
use bulkhead_ipc::common::flex_reply::Outcome;
use bulkhead_ipc::common::flex_request::Act;
use bulkhead_ipc::common::{FlexCapabilities, FlexReply, FlexRequest, FlexSecret, FlexVolume};
use bulkhead_ipc::helper::Asker;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::*;
use bulkhead_sys::scm;
use bulkhead_testkit::silent_fs::SilentFs;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_types::{PodUid, VolumeName};
use kubelet_volnetd::journal::{Intent, StagedKey};
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::Notify;
use tonic::Code;

use crate::disks::{Loop, MIB, serve_disks, size};
use crate::walks::{is_busy, others_go_on};
use crate::world::{SYNCD, World, world};

type Volumes = VolumesClient<tonic::transport::Channel>;

/// What the driver does next, and what it was asked.
#[derive(Debug, Clone, Default)]
struct Driver(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    asked: Vec<String>,
    attaches: bool,
    mount: Outcome,
    unmount: Outcome,
    /// What is done once a node, but for the wait, and what makes a volume larger.
    device: Outcome,
    /// Its word for the device; else one that is not there.
    waited: Option<String>,
    /// It does what is done once a node without a mount.
    mounts_nothing: bool,
    /// Its `mountdevice` takes as long as the test wants.
    takes_long: Option<Arc<TakesLong>>,
}

#[derive(Debug, Default)]
struct TakesLong {
    has_begun: Notify,
    goes_on: Notify,
}

impl Driver {
    fn says(&self, mount: Outcome, unmount: Outcome) {
        let mut state = self.0.lock();
        (state.mount, state.unmount) = (mount, unmount);
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().asked)
    }

    fn answer(&self, root: &std::path::Path, question: &FlexRequest) -> FlexReply {
        let mut state = self.0.lock();
        let folder = root.join(format!("pods/{}/volumes/v~d/{}", question.pod_uid, question.volume));
        let once = root.join(format!("plugins/kubernetes.io/flexvolume/v/d/mounts/{}", question.volume));
        let (what, outcome) = match question.act() {
            Act::Init => ("init", Outcome::Done),
            Act::Mount => ("mount", state.mount),
            Act::Unmount => ("unmount", state.unmount),
            Act::GetVolumeName => ("getvolumename", Outcome::NotSupported),
            Act::WaitForAttach => ("waitforattach", Outcome::Done),
            Act::MountDevice => ("mountdevice", state.device),
            Act::UnmountDevice => ("unmountdevice", state.device),
            Act::ExpandFs => ("expandfs", state.device),
            Act::Unspecified => ("nothing", Outcome::Failed),
        };
        let parts = [what, &question.pod_uid, &question.volume, &question.device];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        state.asked.push(parts.join(" "));
        let told = question.options.as_ref();
        let of_pod = told.is_some_and(|told| told.secret.is_some() || told.fs_group.is_some());
        assert_eq!(of_pod, question.act() == Act::Mount, "{question:?}");
        if outcome == Outcome::Done {
            let run = |program: &str, arguments: &[&str], folder: &std::path::Path| {
                let ended = Command::new(program).args(arguments).arg(folder).status().unwrap();
                assert!(ended.success(), "{program} {arguments:?}");
            };
            match question.act() {
                Act::Mount => run("mount", &["-t", "tmpfs", "flex"], &folder),
                Act::Unmount => run("umount", &[], &folder),
                Act::MountDevice | Act::UnmountDevice if state.mounts_nothing => {}
                Act::MountDevice => run("mount", &["-t", "tmpfs", "flex"], &once),
                Act::UnmountDevice => run("umount", &[], &once),
                _ => {}
            }
        }
        let capabilities =
            FlexCapabilities { attach: state.attaches, fs_group: true, selinux_relabel: true, ..Default::default() };
        let waited = state.waited.clone().unwrap_or_else(|| "/dev/waited".to_owned());
        let device = Some(waited).filter(|_| question.act() == Act::WaitForAttach).unwrap_or_default();
        let message = "no such share".to_owned();
        FlexReply { outcome: outcome.into(), message, capabilities: Some(capabilities), device }
    }
}

async fn with_driver(pods: &[&str]) -> Option<(World, Volumes, Driver)> {
    let world = world().await?;
    let (theirs, ours) = scm::pair().unwrap();
    world.node.flex.set(Asker::new(Some(ours)).unwrap());
    let driver = Driver::default();
    driver.says(Outcome::Done, Outcome::Done);
    let (of, root) = (driver.clone(), world.dir.join("root"));
    let answer = move |question: FlexRequest, pipe: std::os::fd::OwnedFd| {
        let (of, root) = (of.clone(), root.clone());
        async move {
            let takes_long = of.0.lock().takes_long.clone();
            if let Some(long) = takes_long.filter(|_| question.act() == Act::MountDevice) {
                long.has_begun.notify_one();
                long.goes_on.notified().await;
            }
            let reply = of.answer(&root, &question).encode_to_vec();
            rustix::io::write(&pipe, &reply).unwrap();
        }
    };
    // Its tasks stay on one thread.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(serve(Door::Passed(theirs), Limits { at_once: 4, idle: None }, |_| Ok(()), answer)).unwrap();
    });
    let volumes = prepared(&world, pods).await;
    Some((world, volumes, driver))
}

async fn prepared(world: &World, pods: &[&str]) -> Volumes {
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    for pod in pods {
        volumes.prepare_pod(PreparePodRequest { pod_uid: (*pod).into() }).await.unwrap();
    }
    volumes
}

fn request(pod: &str) -> SetUpFlexRequest {
    let secret = FlexSecret { data: [("word".to_owned(), b"SECRET".to_vec())].into() };
    SetUpFlexRequest {
        pod_uid: pod.into(),
        volume: "data".into(),
        driver: "v/d".into(),
        options: Some(FlexVolume { fs_group: Some(2000), secret: Some(secret), ..FlexVolume::default() }),
        fs_group_on_root_mismatch: false,
        device: None,
        grow: None,
        part: FlexPart::Unspecified.into(),
    }
}

/// Of a driver that attaches.
fn attached(pod: &str) -> SetUpFlexRequest {
    SetUpFlexRequest { device: Some("/dev/attached".into()), ..request(pod) }
}

/// One of the two parts of that.
fn part(part: FlexPart, pod: &str) -> SetUpFlexRequest {
    SetUpFlexRequest { part: part.into(), ..attached(pod) }
}

fn end(world: &World, name: &str) -> EndDiskRequest {
    let place = DiskPlace { plugin: "kubernetes.io/flexvolume".into(), name: name.into(), block: false };
    EndDiskRequest { place: Some(place), guard: world.guard(1) }
}

async fn disks(volumes: &mut Volumes) -> Vec<(String, bool)> {
    let mut stream = volumes.list_disks(ListDisksRequest {}).await.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(found) = stream.message().await.unwrap() {
        all.push((found.place.unwrap().name, found.in_use));
    }
    all
}

fn tear_down(world: &World, pod: &str) -> TearDownPodRequest {
    TearDownPodRequest { pod_uid: pod.into(), guard: world.guard(1), volumes_only: false }
}

fn folder(world: &World, pod: &str) -> PathBuf {
    world.pod(pod).join("volumes/v~d/data")
}

#[tokio::test(flavor = "current_thread")]
async fn a_driver_mounts_once_and_unmounts_before_the_folder_goes() {
    let Some((world, mut volumes, driver)) = with_driver(&["p"]).await else { return };
    let path = folder(&world, "p");
    for _ in 0..2 {
        let reply = volumes.set_up_flex(request("p")).await.unwrap().into_inner();
        assert_eq!((reply.host_path, reply.relabel), (path.display().to_string(), true));
    }
    assert_eq!(driver.asked(), ["init", "mount p data", "init"]);
    assert_eq!((world.mounts(&path).len(), std::fs::metadata(&path).unwrap().gid()), (1, 2000));
    let part = PrepareSubPathRequest {
        pod_uid: "p".into(),
        volume: "data".into(),
        container: "c".into(),
        sub_path: "part".into(),
        root: Some(prepare_sub_path_request::Root::Plugin("v/d".into())),
        ..Default::default()
    };
    let bound = volumes.prepare_sub_path(part).await.unwrap().into_inner().host_path;
    assert_eq!(world.mounts(bound.as_ref()).len(), 1);

    // What the driver does not unmount is left and named, and a part of it is bound no more.
    driver.says(Outcome::Done, Outcome::Failed);
    let reply = volumes.tear_down_pod(tear_down(&world, "p")).await.unwrap().into_inner();
    assert!(!reply.done && reply.left[0].contains("volume data of FlexVolume driver v/d: no such share"), "{reply:?}");
    assert_eq!((world.mounts(&path).len(), world.mounts(bound.as_ref()).len()), (1, 0));
    driver.says(Outcome::Done, Outcome::Done);
    let reply = volumes.tear_down_pod(tear_down(&world, "p")).await.unwrap().into_inner();
    assert!(reply.done && !world.pod("p").exists(), "{reply:?}");
    assert_eq!(driver.asked(), ["unmount p data", "unmount p data"]);
}

#[tokio::test(flavor = "current_thread")]
async fn refusals_leave_no_folder_and_a_driver_that_does_not_unmount_leaves_it_to_us() {
    let Some((world, mut volumes, driver)) = with_driver(&["p"]).await else { return };
    let path = folder(&world, "p");
    driver.says(Outcome::Failed, Outcome::NotSupported);
    let refused = volumes.set_up_flex(request("p")).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Aborted, "no such share"));
    assert!(!path.exists());
    driver.0.lock().attaches = true;
    let refused = volumes.set_up_flex(request("p")).await.unwrap_err();
    assert!(refused.code() == Code::Aborted && refused.message().contains("v/d attaches volumes"), "{refused:?}");
    driver.0.lock().attaches = false;
    driver.says(Outcome::Done, Outcome::NotSupported);
    volumes.set_up_flex(request("p")).await.unwrap();
    assert_eq!(world.mounts(&path).len(), 1);
    assert!(volumes.tear_down_pod(tear_down(&world, "p")).await.unwrap().into_inner().done);
    assert!(world.mounts(&path).is_empty() && !world.pod("p").exists());
    for bad in [
        SetUpFlexRequest { driver: "kubernetes.io/nfs".into(), ..request("p") },
        SetUpFlexRequest { driver: "../d".into(), ..request("p") },
        SetUpFlexRequest { volume: "../v".into(), ..request("p") },
        SetUpFlexRequest { options: None, ..request("p") },
    ] {
        assert_eq!(volumes.set_up_flex(bad).await.unwrap_err().code(), Code::InvalidArgument);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn a_driver_that_attaches_mounts_once_a_node_for_two_pods() {
    let Some((world, mut volumes, driver)) = with_driver(&["p", "q"]).await else { return };
    driver.0.lock().attaches = true;
    driver.0.lock().device = Outcome::Done;
    driver.says(Outcome::NotSupported, Outcome::NotSupported);
    let said = volumes.ask_flex_driver(AskFlexDriverRequest { driver: "v/d".into() }).await.unwrap().into_inner();
    assert!(said.capabilities.unwrap().attach);
    let once = world.dir.join("root/plugins/kubernetes.io/flexvolume/v/d/mounts/data");
    let (p, q) = (folder(&world, "p"), folder(&world, "q"));
    for pod in ["p", "p", "q"] {
        volumes.set_up_flex(attached(pod)).await.unwrap();
    }
    let expected = [
        "init",
        "init",
        "waitforattach data /dev/attached",
        "getvolumename data",
        "mountdevice data /dev/waited",
        "mount p data",
        "init",
        "init",
        "waitforattach data /dev/attached",
        "mount q data",
    ];
    assert_eq!(driver.asked(), expected);
    assert_eq!([&once, &p, &q].map(|point| world.mounts(point).len()), [1, 1, 1]);
    std::fs::write(p.join("file"), "shared").unwrap();
    assert_eq!(std::fs::metadata(q.join("file")).unwrap().len(), 6);
    assert_eq!(std::fs::metadata(&q).unwrap().gid(), 2000);
    assert_eq!(disks(&mut volumes).await, [("v/d/data".to_owned(), true)]);

    let growth = Some(FlexGrowth { new_size: 2, old_size: 1 });
    volumes.set_up_flex(SetUpFlexRequest { grow: growth, ..attached("p") }).await.unwrap();
    assert_eq!(driver.asked(), ["init", "waitforattach data /dev/attached", "expandfs p data /dev/waited"]);
    // What is no device does not grow, and nobody is told that it has.
    driver.0.lock().device = Outcome::NotSupported;
    let refused = volumes.set_up_flex(SetUpFlexRequest { grow: growth, ..attached("p") }).await.unwrap_err();
    assert!(refused.message().starts_with("resize of format tmpfs is not supported"), "{refused:?}");
    driver.0.lock().device = Outcome::Failed;
    let refused = volumes.set_up_flex(SetUpFlexRequest { grow: growth, ..attached("p") }).await.unwrap_err();
    assert_eq!(refused.message(), "no such share");
    driver.0.lock().device = Outcome::Done;
    // What a pod has, it has of the driver that there was.
    driver.0.lock().attaches = false;
    volumes.set_up_flex(SetUpFlexRequest { grow: growth, ..attached("p") }).await.unwrap();
    driver.0.lock().attaches = true;
    driver.asked();

    // A pod has it; the other one's part goes without it.
    assert!(volumes.tear_down_pod(tear_down(&world, "p")).await.unwrap().into_inner().done);
    let refused = volumes.end_disk(end(&world, "v/d/data")).await.unwrap_err();
    assert!(refused.message().contains("is in use by pod q"), "{refused:?}");
    assert!(volumes.tear_down_pod(tear_down(&world, "q")).await.unwrap().into_inner().done);
    volumes.end_disk(end(&world, "v/d/data")).await.unwrap();
    assert_eq!(driver.asked(), ["unmount p data", "unmount q data", "unmountdevice data"]);
    assert!(!once.exists() && disks(&mut volumes).await.is_empty());
    // Once more: nothing is there, and nobody is asked.
    volumes.end_disk(end(&world, "v/d/data")).await.unwrap();
    assert!(driver.asked().is_empty());
}

#[tokio::test(flavor = "current_thread")]
async fn what_a_driver_that_attaches_refuses_and_what_another_kubelet_has_left() {
    let Some((world, mut volumes, driver)) = with_driver(&["p"]).await else { return };
    driver.0.lock().device = Outcome::Failed;
    // It is attached or it is not, as its driver says.
    let refused = volumes.set_up_flex(attached("p")).await.unwrap_err();
    assert!(refused.code() == Code::Aborted && refused.message().contains("v/d attaches no volumes"), "{refused:?}");
    driver.0.lock().attaches = true;
    let refused = volumes.set_up_flex(attached("p")).await.unwrap_err();
    assert_eq!((refused.message(), refused.details()), ("no such share", &b"MountDevice"[..]));
    // The folder says that it may be mounted once a node.
    assert_eq!(disks(&mut volumes).await, [("v/d/data".to_owned(), false)]);
    assert!(!folder(&world, "p").exists());
    volumes.end_disk(end(&world, "v/d/data")).await.unwrap();
    assert!(disks(&mut volumes).await.is_empty());
    // A path that the driver has named and leaves to us, and that is no device.
    driver.0.lock().device = Outcome::NotSupported;
    let refused = volumes.set_up_flex(attached("p")).await.unwrap_err();
    assert!(refused.message().contains("/dev/waited") && refused.details() == b"MountDevice", "{refused:?}");
    volumes.end_disk(end(&world, "v/d/data")).await.unwrap();

    let left = world.dir.join("root/plugins/kubernetes.io/flexvolume/v/d/mounts/left");
    std::fs::create_dir_all(&left).unwrap();
    assert!(Command::new("mount").args(["-t", "tmpfs", "flex"]).arg(&left).status().unwrap().success());
    assert_eq!(disks(&mut volumes).await, [("v/d/left".to_owned(), true)]);
    driver.asked();
    // A driver that does not unmount it leaves that to us.
    volumes.end_disk(end(&world, "v/d/left")).await.unwrap();
    assert!(driver.asked() == ["unmountdevice left"] && world.mounts(&left).is_empty() && !left.exists());
    for bad in ["left", "../d/left", "kubernetes.io/nfs/left", "v/d/../left"] {
        assert_eq!(volumes.end_disk(end(&world, bad)).await.unwrap_err().code(), Code::InvalidArgument, "{bad}");
    }
    let mut block = end(&world, "v/d/left");
    block.place.as_mut().unwrap().block = true;
    assert_eq!(volumes.end_disk(block).await.unwrap_err().code(), Code::InvalidArgument);
    for bad in ["x".repeat(4097), "-o".to_owned(), "a\0".to_owned()] {
        let bad = SetUpFlexRequest { device: Some(bad), ..request("p") };
        assert_eq!(volumes.set_up_flex(bad).await.unwrap_err().code(), Code::InvalidArgument);
    }
}

/// A driver may take the device away with what it unmounts: who else has that mounted keeps it.
#[tokio::test(flavor = "current_thread")]
async fn what_is_mounted_elsewhere_on_the_machine_its_driver_is_not_asked_to_unmount() {
    let Some((world, mut volumes, driver)) = with_driver(&["p"]).await else { return };
    driver.says(Outcome::NotSupported, Outcome::NotSupported);
    driver.0.lock().attaches = true;
    driver.0.lock().device = Outcome::Done;
    volumes.set_up_flex(attached("p")).await.unwrap();
    assert!(volumes.tear_down_pod(tear_down(&world, "p")).await.unwrap().into_inner().done);
    driver.asked();
    let of_driver = world.dir.join("root/plugins/kubernetes.io/flexvolume/v/d/mounts");
    let (once, twin, by_hand) = (of_driver.join("data"), of_driver.join("twin"), world.dir.join("host/by-hand"));
    for folder in [&twin, &by_hand] {
        std::fs::create_dir_all(folder).unwrap();
        rustix::mount::mount_bind(&once, folder).unwrap();
    }
    for device in [Outcome::Done, Outcome::NotSupported] {
        driver.0.lock().device = device;
        let refused = volumes.end_disk(end(&world, "v/d/data")).await.unwrap_err();
        let text = format!(
            "GetDeviceMountRefs check failed: the device mount path {once:?} is still mounted by other references [{}]",
            by_hand.display()
        );
        assert_eq!((refused.code(), refused.message()), (Code::Aborted, text.as_str()));
        assert!(driver.asked().is_empty() && world.mounts(&once).len() == 1);
    }
    rustix::mount::unmount(&by_hand, rustix::mount::UnmountFlags::empty()).unwrap();
    // What is another volume's does not count.
    volumes.end_disk(end(&world, "v/d/data")).await.unwrap();
    assert!(driver.asked() == ["unmountdevice data"] && !once.exists());
    rustix::mount::unmount(&twin, rustix::mount::UnmountFlags::empty()).unwrap();
}

/// What the driver mounts in a pod by itself mountinfo shows as no part of what is mounted once a node, where anything is.
#[tokio::test(flavor = "current_thread")]
async fn what_is_mounted_once_a_node_stays_while_a_pod_has_its_folder() {
    let Some((world, mut volumes, driver)) = with_driver(&[]).await else { return };
    driver.says(Outcome::Done, Outcome::Done);
    driver.0.lock().attaches = true;
    let mounts = (Outcome::Done, "/dev/waited", false);
    let mounts_nothing = (Outcome::Done, "/dev/waited", true);
    for (device, waited, nothing) in [mounts, mounts_nothing, (Outcome::NotSupported, "", false)] {
        {
            let mut state = driver.0.lock();
            (state.device, state.waited, state.mounts_nothing) = (device, Some(waited.to_owned()), nothing);
        }
        volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
        volumes.set_up_flex(attached("p")).await.unwrap();
        driver.asked();
        let refused = volumes.end_disk(end(&world, "v/d/data")).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("is in use by pod p"), "{refused:?}");
        assert!(driver.asked().is_empty());
        assert!(volumes.tear_down_pod(tear_down(&world, "p")).await.unwrap().into_inner().done);
        volumes.end_disk(end(&world, "v/d/data")).await.unwrap();
        assert!(disks(&mut volumes).await.is_empty());
    }
}

#[tokio::test(flavor = "current_thread")]
async fn what_is_done_once_a_node_is_asked_for_apart() {
    let Some((world, mut volumes, driver)) = with_driver(&["p"]).await else { return };
    driver.says(Outcome::NotSupported, Outcome::NotSupported);
    driver.0.lock().attaches = true;
    driver.0.lock().device = Outcome::Done;
    let reply = volumes.set_up_flex(part(FlexPart::Device, "p")).await.unwrap().into_inner();
    assert!(reply == SetUpFlexReply::default() && !folder(&world, "p").exists());
    let expected = ["init", "waitforattach data /dev/attached", "getvolumename data", "mountdevice data /dev/waited"];
    assert_eq!(driver.asked(), expected);
    let reply = volumes.set_up_flex(part(FlexPart::Pod, "p")).await.unwrap().into_inner();
    assert_eq!((reply.host_path, reply.relabel), (folder(&world, "p").display().to_string(), true));
    assert_eq!(world.mounts(&folder(&world, "p")).len(), 1);
    // Once more: the pod has it.
    volumes.set_up_flex(part(FlexPart::Device, "p")).await.unwrap();
    assert_eq!(driver.asked(), ["init", "mount p data"]);
    let growth = Some(FlexGrowth { new_size: 2, old_size: 1 });
    for wanted in [FlexPart::Device, FlexPart::Pod].map(|of| part(of, "p")) {
        for bad in [SetUpFlexRequest { device: None, ..wanted.clone() }, SetUpFlexRequest { grow: growth, ..wanted }] {
            assert_eq!(volumes.set_up_flex(bad).await.unwrap_err().code(), Code::InvalidArgument);
        }
    }
}

/// The pod's lock is free meanwhile.
#[tokio::test(flavor = "current_thread")]
async fn a_pod_goes_while_its_volume_is_mounted_once_a_node() {
    let Some((world, mut volumes, driver)) = with_driver(&["p"]).await else { return };
    let long = Arc::new(TakesLong::default());
    {
        let mut state = driver.0.lock();
        (state.attaches, state.device, state.takes_long) = (true, Outcome::Done, Some(long.clone()));
    }
    let mut others = volumes.clone();
    let (done, ()) = tokio::join!(volumes.set_up_flex(part(FlexPart::Device, "p")), async {
        long.has_begun.notified().await;
        let reply = others.tear_down_pod(tear_down(&world, "p")).await.unwrap().into_inner();
        assert!(reply.done && !world.pod("p").exists(), "{reply:?}");
        long.goes_on.notify_one();
    });
    done.unwrap();
    assert_eq!(disks(&mut volumes).await, [("v/d/data".to_owned(), true)]);
    // For a pod that is gone nothing is begun.
    for of in [FlexPart::Device, FlexPart::Pod] {
        volumes.set_up_flex(part(of, "p")).await.unwrap_err();
    }
    assert!(world.node.journal.all().is_empty() && !world.pod("p").exists());
    volumes.end_disk(end(&world, "v/d/data")).await.unwrap();
    assert_eq!(driver.asked()[3..], ["mountdevice data /dev/waited", "unmountdevice data"]);
}

/// Who asks for growth tells no secret.
#[tokio::test(flavor = "current_thread")]
async fn what_is_to_become_larger_is_mounted_by_nobody_on_the_way() {
    let Some((world, mut volumes, driver)) = with_driver(&["p"]).await else { return };
    let growth = Some(FlexGrowth { new_size: 2, old_size: 1 });
    for attaches in [false, true] {
        driver.0.lock().attaches = attaches;
        let wanted = if attaches { attached("p") } else { request("p") };
        let refused = volumes.set_up_flex(SetUpFlexRequest { grow: growth, ..wanted }).await.unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    }
    assert!(driver.asked().is_empty() && !folder(&world, "p").exists() && world.node.journal.all().is_empty());
}

/// Who does not get the volume's lock has begun nothing: the next one does not give a running pod's volume to its group again.
#[tokio::test(flavor = "current_thread")]
async fn one_works_on_what_is_mounted_once_a_node() {
    let Some((world, mut volumes, driver)) = with_driver(&["p", "q"]).await else { return };
    driver.says(Outcome::NotSupported, Outcome::NotSupported);
    driver.0.lock().attaches = true;
    driver.0.lock().device = Outcome::Done;
    volumes.set_up_flex(attached("q")).await.unwrap();
    driver.asked();
    let key = StagedKey::of(Path::new("kubernetes.io/flexvolume/v/d/data"));
    let held = world.node.lock_staged(key, "the test's").await.unwrap();
    let growth = Some(FlexGrowth { new_size: 2, old_size: 1 });
    let (mut grows, mut ends) = (volumes.clone(), volumes.clone());
    let (set_up, grown, ended) = tokio::join!(
        volumes.set_up_flex(attached("p")),
        grows.set_up_flex(SetUpFlexRequest { grow: growth, ..attached("q") }),
        ends.end_disk(end(&world, "v/d/data")),
    );
    for refused in [set_up.map(|_| ()), grown.map(|_| ()), ended.map(|_| ())] {
        let refused = refused.unwrap_err();
        assert!(refused.message().contains("kubernetes.io/flexvolume/v/d/data"), "{refused:?}");
    }
    assert!(world.node.journal.all().is_empty() && !folder(&world, "p").exists());
    assert_eq!(driver.asked(), ["init", "init"]);
    drop(held);
    volumes.set_up_flex(attached("p")).await.unwrap();
}

/// What was mounted and not given to its group yet is given now, which takes as long as it takes.
#[tokio::test(flavor = "current_thread")]
async fn a_walk_holds_its_volume_alone() {
    if !SilentFs::is_possible() {
        return skip_this_test(Lack::Fuse).unwrap();
    }
    let Some((world, volumes, _driver)) = with_driver(&["p"]).await else { return };
    let folder = folder(&world, "p");
    std::fs::create_dir_all(&folder).unwrap();
    let mounted = SilentFs::mount_unlistable(&folder).unwrap();
    let intent = Intent::Mount { plugin: "v/d".into(), volume: VolumeName::parse("data").unwrap() };
    world.node.journal.begin(&PodUid::parse("p").unwrap(), intent).unwrap();
    let (mut walks, mut again, mut tears) = (volumes.clone(), volumes.clone(), volumes.clone());
    let walk = tokio::spawn(async move { walks.set_up_flex(request("p")).await });
    while mounted.unanswered() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    others_go_on(&world, "p").await;
    let torn = TearDownPodRequest { pod_uid: "p".into(), guard: world.guard(1), volumes_only: false };
    let (again, refused) = tokio::join!(again.set_up_flex(request("p")), tears.tear_down_pod(torn));
    is_busy(again, "GiveFlex of volume data of pod p");
    is_busy(refused, "GiveFlex of volume data of pod p");
    assert!(!world.node.journal.all().is_empty());
    drop(mounted);
    // As upstream: what cannot be looked at is left as it is.
    walk.await.unwrap().unwrap();
    assert!(world.node.journal.all().is_empty());
    others_go_on(&world, "p").await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_device_that_a_driver_names_is_formatted_mounted_and_grows() {
    let Some((world, mut volumes, driver)) = with_driver(&["p", "q"]).await else { return };
    serve_disks(&world);
    let disk = Loop::new(&world.dir, "disk", 32 * MIB);
    driver.says(Outcome::NotSupported, Outcome::NotSupported);
    let names = |device: &str| {
        let mut state = driver.0.lock();
        (state.attaches, state.device, state.waited) = (true, Outcome::NotSupported, Some(device.to_owned()));
    };
    names(disk.device.trim_start_matches('/'));
    let refused = volumes.set_up_flex(attached("p")).await.unwrap_err();
    assert!(refused.message().contains("v/d calls its device \"dev/loop"), "{refused:?}");
    assert_eq!(refused.details(), b"MountDevice");
    names(&disk.device);
    for pod in ["p", "q"] {
        volumes.set_up_flex(attached(pod)).await.unwrap();
    }
    let once = world.dir.join("root/plugins/kubernetes.io/flexvolume/v/d/mounts/data");
    let (p, q) = (folder(&world, "p"), folder(&world, "q"));
    assert_eq!([&once, &p, &q].map(|point| world.mounts(point).len()), [1, 1, 1]);
    std::fs::write(p.join("file"), "shared").unwrap();
    assert_eq!(std::fs::read_to_string(q.join("file")).unwrap(), "shared");

    let before = size(&p);
    disk.resize(96 * MIB);
    // Which file system it is its mount says, whatever the volume calls it.
    let mut grown = SetUpFlexRequest { grow: Some(FlexGrowth { new_size: 2, old_size: 1 }), ..attached("p") };
    grown.options.as_mut().unwrap().fs_type = "none-such".into();
    match volumes.set_up_flex(grown).await {
        Ok(_) => assert!(size(&q) > before + 48 * MIB, "{before} {}", size(&q)),
        // While it is mounted the kernel wants CAP_SYS_RESOURCE, which not every machine gives.
        Err(refused) => assert!(refused.message().contains("resize of device"), "{refused:?}"),
    }
    for pod in ["p", "q"] {
        assert!(volumes.tear_down_pod(tear_down(&world, pod)).await.unwrap().into_inner().done);
    }
    volumes.end_disk(end(&world, "v/d/data")).await.unwrap();
    assert!(world.mounts(&once).is_empty() && !once.exists());
}

#[tokio::test(flavor = "current_thread")]
async fn where_it_is_off_that_is_said_and_what_another_kubelet_has_mounted_stays() {
    let Some(world) = world().await else { return };
    let mut volumes = prepared(&world, &["p", "q"]).await;
    let refused = volumes.set_up_flex(request("p")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Aborted);
    assert!(refused.message().contains("systemctl enable --now kubelet-flexvolume.socket"), "{refused:?}");
    // An empty folder holds nobody up, a mount does.
    std::fs::create_dir_all(folder(&world, "p")).unwrap();
    assert!(volumes.tear_down_pod(tear_down(&world, "p")).await.unwrap().into_inner().done);
    let path = folder(&world, "q");
    std::fs::create_dir_all(&path).unwrap();
    assert!(Command::new("mount").args(["-t", "tmpfs", "flex"]).arg(&path).status().unwrap().success());
    let reply = volumes.tear_down_pod(tear_down(&world, "q")).await.unwrap().into_inner();
    assert!(!reply.done && reply.left.iter().any(|left| left.contains("are off on this node")), "{reply:?}");
    assert_eq!(world.mounts(&path).len(), 1);
    assert!(Command::new("umount").arg(&path).status().unwrap().success());
    assert!(volumes.tear_down_pod(tear_down(&world, "q")).await.unwrap().into_inner().done);
}
