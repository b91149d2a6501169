//! Volumes that are given to their groups while their file system takes long: nobody but who would end the volume waits. Needs root.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_ipc::common::process_client::ProcessClient;
use bulkhead_ipc::common::{DestructiveGuard, HelloRequest};
use bulkhead_ipc::volnetd::cgroups_client::CgroupsClient;
use bulkhead_ipc::volnetd::csi_client::CsiClient;
use bulkhead_ipc::volnetd::files_client::FilesClient;
use bulkhead_ipc::volnetd::prepare_sub_path_request::Root;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::*;
use bulkhead_testkit::silent_fs::SilentFs;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use tokio::task::JoinHandle;
use tonic::Code;
use tonic::transport::Channel;

use crate::csi::{Clients, device, mount_tmpfs, published, to_commit, to_end, to_publish};
use crate::process::{Program, ready};
use crate::world::{OPERATOR, Remote, SYNCD, World, world};

/// For what comes, on a slow machine.
const LONG: Duration = Duration::from_secs(60);
const GROUP: Option<i64> = Some(2000);

/// Waits for what the kernel or another process does.
async fn until(what: &str, mut is: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !is().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(LONG, waiting).await.is_ok(), "{what}");
}

fn named(spec: &str) -> CsiDevice {
    CsiDevice { spec_name: spec.into(), volume_handle: format!("handle-{spec}"), ..device(false) }
}

async fn prepare(csi: &mut CsiClient<Channel>, spec: &str) -> PathBuf {
    let target = csi.prepare_publish(to_publish("p", named(spec))).await.unwrap().into_inner().target_path;
    std::fs::create_dir_all(&target).unwrap();
    target.into()
}

type Committed = JoinHandle<Result<tonic::Response<CommitPublishReply>, tonic::Status>>;

fn commit(csi: &CsiClient<Channel>, spec: &str) -> Committed {
    let (mut csi, request) = (csi.clone(), CommitPublishRequest { fs_group: GROUP, ..to_commit("p", named(spec)) });
    tokio::spawn(async move { csi.commit_publish(request).await })
}

/// Mounted, and a walk has begun that goes no further.
async fn walked(csi: &mut CsiClient<Channel>, spec: &str) -> (SilentFs, Committed) {
    let target = prepare(csi, spec).await;
    let mounted = SilentFs::mount_unlistable(&target).unwrap();
    let walk = commit(csi, spec);
    until("the walk lists", async || mounted.unanswered() > 0).await;
    (mounted, walk)
}

/// What a pod needs beside one volume; refused where its lock is held.
pub async fn others_go_on(world: &World, pod: &str) {
    let channel = world.channel(SYNCD).await;
    let mut files = FilesClient::new(channel.clone());
    let hosts = WriteEtcHostsRequest { pod_uid: pod.into(), hostname: "h".into(), ..Default::default() };
    files.write_etc_hosts(hosts).await.unwrap();
    files
        .create_termination_file(CreateTerminationFileRequest { pod_uid: pod.into(), container: "c".into() })
        .await
        .unwrap();
    let mut volumes = VolumesClient::new(channel.clone());
    let empty_dir = SetUpEmptyDirRequest {
        pod_uid: pod.into(),
        volume: "cache".into(),
        medium: Medium::Disk.into(),
        ..Default::default()
    };
    volumes.set_up_empty_dir(empty_dir).await.unwrap();
    let sub_path = PrepareSubPathRequest {
        pod_uid: pod.into(),
        volume: "cache".into(),
        container: "c".into(),
        sub_path: "x".into(),
        root: Some(Root::Plugin("kubernetes.io/empty-dir".into())),
        ..Default::default()
    };
    volumes.prepare_sub_path(sub_path).await.unwrap();
    let resized = EnsurePodRequest { pod_uid: pod.into(), qos: Qos::Burstable.into(), ..Default::default() };
    CgroupsClient::new(channel).ensure_pod(resized).await.unwrap();
}

/// As others who would end a volume meet it.
pub fn is_busy<T: std::fmt::Debug>(answer: Result<T, tonic::Status>, walk: &str) {
    let refused = answer.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    let names = format!("has been in {walk} for");
    assert!(
        refused.message().contains("another request works on") && refused.message().contains(&names),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "current_thread")]
async fn a_walk_holds_its_volume_alone() {
    if !SilentFs::is_possible() {
        return skip_this_test(Lack::Fuse).unwrap();
    }
    let Some(mut clients) = Clients::new().await else { return };
    let (mounted, walk) = walked(&mut clients.csi, "pv").await;
    // Who has asked may go: the walk goes on, and the volume is held.
    walk.abort();
    others_go_on(&clients.world, "p").await;
    let other = prepare(&mut clients.csi, "other").await;
    mount_tmpfs(&other);
    assert_eq!(Path::new(&commit(&clients.csi, "other").await.unwrap().unwrap().into_inner().host_path), other);
    let listed = published(&mut clients.csi).await;
    let certain: Vec<(&str, bool)> = listed
        .iter()
        .map(|one| (one.data.as_ref().unwrap().device.as_ref().unwrap().spec_name.as_str(), one.uncertain))
        .collect();
    assert_eq!(certain, [("other", false), ("pv", true)]);

    // Who would end it, or make it anew, waits and is refused.
    let (end, name) = (to_end(&clients.world, "p", named("pv")), "GivePublished of volume pv of pod p");
    let torn = TearDownPodRequest { pod_uid: "p".into(), guard: clients.world.guard(1), volumes_only: false };
    let csi = || clients.csi.clone();
    let (mut one, mut two, mut three, mut four) = (csi(), csi(), csi(), csi());
    let (prepared, committed, begun, ended, torn) = tokio::join!(
        one.prepare_publish(to_publish("p", named("pv"))),
        two.commit_publish(CommitPublishRequest { fs_group: GROUP, ..to_commit("p", named("pv")) }),
        three.begin_unpublish(end.clone()),
        four.end_publish(end.clone()),
        clients.volumes.tear_down_pod(torn),
    );
    is_busy(prepared, name);
    is_busy(committed, name);
    is_busy(begun, name);
    is_busy(ended, name);
    is_busy(torn, name);
    let request = PruneRequest { known_pod_uids: Vec::new(), guard: clients.world.guard(1) };
    let mut steps = clients.volumes.prune(request).await.unwrap().into_inner();
    let mut last = None;
    while let Some(step) = steps.message().await.unwrap() {
        last = Some(step);
    }
    assert!(last.as_ref().is_some_and(|step| step.action == "kept" && step.error.contains(name)), "{last:?}");
    assert!(other.exists() && clients.world.node.workers.hanging().iter().all(|hanging| hanging.takes_long));
    others_go_on(&clients.world, "p").await;

    // A pod has two of the places: a third walk waits for one, and is not refused.
    let (second, refused) = walked(&mut clients.csi, "second").await;
    mount_tmpfs(&prepare(&mut clients.csi, "third").await);
    let third = commit(&clients.csi, "third");
    others_go_on(&clients.world, "p").await;
    assert!(!third.is_finished());
    drop(second);
    let refused = refused.await.unwrap().unwrap_err();
    let words = "applyFSGroup failed for vol handle-second: failed to list \".\" in the volume";
    assert!(refused.code() != Code::Unavailable && refused.message().starts_with(words), "{refused:?}");
    third.await.unwrap().unwrap();

    // Its end lets go of it, and what was not finished is known.
    drop(mounted);
    until("the walk ends", async || clients.world.node.workers.hanging().is_empty()).await;
    clients.csi.begin_unpublish(end.clone()).await.unwrap();
    clients.csi.end_publish(end).await.unwrap();
    let listed = published(&mut clients.csi).await;
    assert!(listed.iter().all(|one| one.uncertain == one.target_path.contains("second")), "{listed:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn a_local_volume_s_walk_does_as_well() {
    if !SilentFs::is_possible() {
        return skip_this_test(Lack::Fuse).unwrap();
    }
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let disk = world.dir.join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mounted = SilentFs::mount_unlistable(&disk).unwrap();
    let request = SetUpLocalRequest {
        pod_uid: "p".into(),
        volume: "pv".into(),
        path: disk.display().to_string(),
        fs_group: GROUP,
        ..Default::default()
    };
    let walk = {
        let (mut volumes, request) = (volumes.clone(), request.clone());
        tokio::spawn(async move { volumes.set_up_local(request).await })
    };
    until("the walk lists", async || mounted.unanswered() > 0).await;
    others_go_on(&world, "p").await;
    let torn = TearDownPodRequest { pod_uid: "p".into(), guard: world.guard(1), volumes_only: false };
    let (mut again, mut tears) = (volumes.clone(), volumes.clone());
    let (again, refused) = tokio::join!(again.set_up_local(request.clone()), tears.tear_down_pod(torn.clone()));
    is_busy(again, "GiveLocal of volume pv of pod p");
    is_busy(refused, "GiveLocal of volume pv of pod p");
    assert!(!world.node.journal.all().is_empty());
    drop(mounted);
    walk.await.unwrap().unwrap_err();
    assert!(!world.node.journal.all().is_empty(), "it is given the next time");
    others_go_on(&world, "p").await;
    assert!(volumes.tear_down_pod(torn).await.unwrap().into_inner().done);
}

/// Its processes are killed in the middle of it.
#[tokio::test(flavor = "current_thread")]
async fn a_walk_that_was_cut_off_is_begun_anew() {
    if !SilentFs::is_possible() {
        return skip_this_test(Lack::Fuse).unwrap();
    }
    let Some(mut program) = Program::new("walks") else { return };
    let remote = Remote { dir: program.remote.dir.clone() };
    ready(&remote).await;
    let channel = remote.channel(SYNCD).await;
    let (mut csi, mut volumes) = (CsiClient::new(channel.clone()), VolumesClient::new(channel));
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let is_uncertain = async |csi: &mut CsiClient<Channel>| published(csi).await.iter().all(|one| one.uncertain);

    // A worker: whoever waits for what is not even taken can be killed.
    let target = prepare(&mut csi, "pv").await;
    let unserved = SilentFs::mount_unserved(&target).unwrap();
    let walk = commit(&csi, "pv");
    let mut process = ProcessClient::new(remote.channel(OPERATOR).await);
    let mut worker = None;
    until("the walk is named", async || {
        let said = process.hello(HelloRequest::default()).await.unwrap().into_inner().degraded.join("; ");
        let names = said.contains("volumes take long or do not answer") && said.contains("GivePublished of volume pv");
        let pid = said.split("worker process ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<i32>().ok());
        worker = pid.filter(|_| names);
        worker.is_some()
    })
    .await;
    let worker = rustix::process::Pid::from_raw(worker.unwrap()).unwrap();
    rustix::process::kill_process(worker, rustix::process::Signal::KILL).unwrap();
    let refused = walk.await.unwrap().unwrap_err();
    assert!(
        refused.code() == Code::Unavailable && refused.message().contains("in the middle of GivePublished"),
        "{refused:?}"
    );
    assert!(is_uncertain(&mut csi).await);
    rustix::mount::unmount(&target, rustix::mount::UnmountFlags::empty()).unwrap();
    drop(unserved);

    // kubelet-volnetd itself.
    let (mounted, walk) = walked(&mut csi, "pv").await;
    program.kill();
    walk.await.unwrap().unwrap_err();
    program.start_again();
    let epoch = ready(&remote).await;
    let mut csi = CsiClient::new(remote.channel(SYNCD).await);
    assert!(is_uncertain(&mut csi).await);
    drop(mounted);
    mount_tmpfs(&target);
    std::fs::write(target.join("f"), "").unwrap();
    csi.prepare_publish(to_publish("p", named("pv"))).await.unwrap();
    commit(&csi, "pv").await.unwrap().unwrap();
    assert!(!is_uncertain(&mut csi).await);
    assert_eq!(std::os::unix::fs::MetadataExt::gid(&std::fs::metadata(target.join("f")).unwrap()), 2000);
    let guard = DestructiveGuard { volnetd_epoch: epoch, syncd_epoch: 1, generation: 1, sources_ready: true };
    let end = EndPublishRequest { pod_uid: "p".into(), device: Some(named("pv")), guard: Some(guard) };
    csi.begin_unpublish(end.clone()).await.unwrap();
    rustix::mount::unmount(&target, rustix::mount::UnmountFlags::empty()).unwrap();
    csi.end_publish(end).await.unwrap();
    program.stop().await;
}
