//! Verbs around calls of CSI drivers, and a kubelet-volnetd that is killed between any two of them, a boot, and a driver whose file
//! system never answers. Needs root.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_ipc::common::DestructiveGuard;
use bulkhead_ipc::volnetd::csi_client::CsiClient;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::*;
use bulkhead_sys::loop_device;
use bulkhead_testkit::machine;
use bulkhead_testkit::silent_fs::SilentFs;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use rustix::io::Errno;
use tonic::transport::Channel;

use crate::csi::{Disk, device, mount_tmpfs, published, staged, to_commit, to_publish, to_stage};
use crate::process::{Program, ready};
use crate::world::{Remote, SYNCD};

/// For what hangs.
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(60);

fn guard(volnetd_epoch: u64) -> Option<DestructiveGuard> {
    Some(DestructiveGuard { volnetd_epoch, syncd_epoch: 1, generation: 1, sources_ready: true })
}

fn end(epoch: u64, block: bool) -> EndPublishRequest {
    EndPublishRequest { pod_uid: "p".into(), device: Some(device(block)), guard: guard(epoch) }
}

fn unstage(epoch: u64, block: bool) -> EndStageRequest {
    EndStageRequest { device: Some(device(block)), guard: guard(epoch), folder: String::new() }
}

async fn clients(program: &Program) -> (u64, CsiClient<Channel>, VolumesClient<Channel>) {
    let remote = Remote { dir: program.remote.dir.clone() };
    let epoch = ready(&remote).await;
    let channel = remote.channel(SYNCD).await;
    (epoch, CsiClient::new(channel.clone()), VolumesClient::new(channel))
}

async fn again(program: &mut Program, remote: &Remote) -> (CsiClient<Channel>, u64) {
    program.kill();
    program.start_again();
    let epoch = ready(remote).await;
    (CsiClient::new(remote.channel(SYNCD).await), epoch)
}

#[tokio::test(flavor = "current_thread")]
async fn killed_between_any_two_steps_what_is_unsure_is_uncertain() {
    let Some(mut program) = Program::new("csi-crashes") else { return };
    let remote = Remote { dir: program.remote.dir.clone() };
    ready(&remote).await;
    let mut volumes = VolumesClient::new(remote.channel(SYNCD).await);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let mut csi = CsiClient::new(remote.channel(SYNCD).await);

    let staging = csi.prepare_stage(to_stage(device(false))).await.unwrap().into_inner().staging_path;
    let (mut csi, _) = again(&mut program, &remote).await;
    assert!(staged(&mut csi).await[0].uncertain, "prepared");
    mount_tmpfs(Path::new(&staging));
    let (mut csi, _) = again(&mut program, &remote).await;
    assert!(staged(&mut csi).await[0].uncertain && staged(&mut csi).await[0].mounted, "staged by the driver");
    csi.commit_stage(device(false)).await.unwrap();
    let (mut csi, _) = again(&mut program, &remote).await;
    assert!(!staged(&mut csi).await[0].uncertain, "committed");

    let target = csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner().target_path;
    let (mut csi, _) = again(&mut program, &remote).await;
    assert!(published(&mut csi).await[0].uncertain, "prepared");
    mount_tmpfs(Path::new(&target));
    csi.commit_publish(to_commit("p", device(false))).await.unwrap();
    let (mut csi, epoch) = again(&mut program, &remote).await;
    assert!(!published(&mut csi).await[0].uncertain, "committed");
    assert!(csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner().committed_before);

    csi.begin_unpublish(end(epoch, false)).await.unwrap();
    let (mut csi, _) = again(&mut program, &remote).await;
    assert!(published(&mut csi).await[0].uncertain, "about to be taken back");
    assert!(!csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner().committed_before);
    rustix::mount::unmount(Path::new(&target), rustix::mount::UnmountFlags::empty()).unwrap();
    let (mut csi, epoch) = again(&mut program, &remote).await;
    assert!(published(&mut csi).await[0].uncertain, "taken back by the driver");
    csi.end_publish(end(epoch, false)).await.unwrap();
    csi.begin_unstage(unstage(epoch, false)).await.unwrap();
    let (mut csi, epoch) = again(&mut program, &remote).await;
    assert!(published(&mut csi).await.is_empty() && staged(&mut csi).await[0].uncertain, "about to be unstaged");
    rustix::mount::unmount(Path::new(&staging), rustix::mount::UnmountFlags::empty()).unwrap();
    csi.end_stage(unstage(epoch, false)).await.unwrap();
    let (mut csi, _) = again(&mut program, &remote).await;
    assert!(staged(&mut csi).await.is_empty());

    // Another boot: everything that was certain is no more.
    let staging = PathBuf::from(csi.prepare_stage(to_stage(device(true))).await.unwrap().into_inner().staging_path);
    csi.commit_stage(device(true)).await.unwrap();
    let target = csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner().target_path;
    mount_tmpfs(Path::new(&target));
    csi.commit_publish(to_commit("p", device(false))).await.unwrap();
    let (mut csi, _) = again(&mut program, &remote).await;
    assert!(!staged(&mut csi).await[0].uncertain && !published(&mut csi).await[0].uncertain);
    program.kill();
    std::fs::write(remote.dir.join("root/bulkhead/volnetd/boot-id"), "another").unwrap();
    program.start_again();
    ready(&remote).await;
    let mut csi = CsiClient::new(remote.channel(SYNCD).await);
    assert!(staged(&mut csi).await[0].uncertain && published(&mut csi).await[0].uncertain, "{}", staging.display());
    csi.commit_publish(to_commit("p", device(false))).await.unwrap();
    let (mut csi, _) = again(&mut program, &remote).await;
    assert!(staged(&mut csi).await[0].uncertain && !published(&mut csi).await[0].uncertain, "of the same boot");
    program.stop().await;
}

/// After a boot with a full disk the node comes up all the same, and nothing is taken for certain, in this process or the next.
#[tokio::test(flavor = "current_thread")]
async fn a_full_disk_does_not_keep_it_from_coming_up_after_a_boot() {
    let Some(mut program) = Program::new("csi-full") else { return };
    let remote = Remote { dir: program.remote.dir.clone() };
    ready(&remote).await;
    let mut volumes = VolumesClient::new(remote.channel(SYNCD).await);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let mut csi = CsiClient::new(remote.channel(SYNCD).await);
    let staging = csi.prepare_stage(to_stage(device(false))).await.unwrap().into_inner().staging_path;
    mount_tmpfs(Path::new(&staging));
    csi.commit_stage(device(false)).await.unwrap();
    let target = csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner().target_path;
    mount_tmpfs(Path::new(&target));
    csi.commit_publish(to_commit("p", device(false))).await.unwrap();
    program.kill();

    // Its state lies on a disk of its own, which has no room.
    let (state, before) = (remote.dir.join("root/bulkhead/volnetd"), remote.dir.join("before"));
    let copy = |from: &Path, to: &Path| {
        machine::run("cp", &["--archive", &format!("{}/.", from.display()), &to.display().to_string()]).unwrap();
    };
    copy(&state, &before);
    let small = Some(c"size=1m");
    rustix::mount::mount("small", &state, "tmpfs", rustix::mount::MountFlags::empty(), small).unwrap();
    copy(&before, &state);
    std::fs::write(state.join("boot-id"), "another").unwrap();
    let full = std::fs::write(state.join("filler"), vec![0; 2 << 20]).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{full}");
    program.start_again();
    ready(&remote).await;
    let mut csi = CsiClient::new(remote.channel(SYNCD).await);
    assert!(staged(&mut csi).await[0].uncertain && published(&mut csi).await[0].uncertain);
    csi.commit_publish(to_commit("p", device(false))).await.unwrap();
    assert!(!published(&mut csi).await[0].uncertain);
    let another = csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner();
    assert!(another.committed_before, "{another:?}");

    // The next one finds it out again, and writes it where there is room.
    std::fs::remove_file(state.join("filler")).unwrap();
    for uncertain in [true, false] {
        let (mut csi, _) = again(&mut program, &remote).await;
        let (staged, published) = (staged(&mut csi).await, published(&mut csi).await);
        assert!(staged[0].uncertain == uncertain && published[0].uncertain == uncertain, "{staged:?} {published:?}");
        csi.commit_stage(device(false)).await.unwrap();
        csi.commit_publish(to_commit("p", device(false))).await.unwrap();
    }
    program.stop().await;
}

/// The journal of a pod is cut off at each of its bytes: nothing is taken for certain, and a process that dies before it has told
/// that to anybody leaves it so.
#[tokio::test(flavor = "current_thread")]
async fn a_journal_that_was_cut_off_at_any_byte_makes_everything_uncertain() {
    let Some(mut program) = Program::new("csi-cut") else { return };
    let remote = Remote { dir: program.remote.dir.clone() };
    ready(&remote).await;
    let mut volumes = VolumesClient::new(remote.channel(SYNCD).await);
    for pod in ["p", "q"] {
        volumes.prepare_pod(PreparePodRequest { pod_uid: pod.into() }).await.unwrap();
    }
    let mut csi = CsiClient::new(remote.channel(SYNCD).await);
    let staging = csi.prepare_stage(to_stage(device(false))).await.unwrap().into_inner().staging_path;
    mount_tmpfs(Path::new(&staging));
    let target = csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner().target_path;
    mount_tmpfs(Path::new(&target));
    // Of this pod the driver is asked when the journal is cut off.
    csi.prepare_publish(to_publish("q", device(false))).await.unwrap();
    let state = remote.dir.join("root/bulkhead/volnetd");
    let (file, kept) = (state.join("intents/q"), state.join("intents-kept"));
    let whole = std::fs::read(&file).unwrap();
    for cut in 0..whole.len() {
        csi.commit_stage(device(false)).await.unwrap();
        csi.commit_publish(to_commit("p", device(false))).await.unwrap();
        let listed = published(&mut csi).await;
        assert!(!listed[0].uncertain && listed[1].uncertain, "{cut}: {listed:?}");
        program.kill();
        std::fs::write(&file, &whole[..cut]).unwrap();
        if cut % 8 == 0 {
            // As a process leaves it that ends after it has moved the file away.
            std::fs::rename(&file, kept.join("q")).unwrap();
            std::fs::remove_file(state.join("boot-id")).unwrap();
        }
        program.start_again();
        ready(&remote).await;
        csi = CsiClient::new(remote.channel(SYNCD).await);
        let listed = published(&mut csi).await;
        assert!(listed.len() == 2 && listed.iter().all(|volume| volume.uncertain), "{cut}: {listed:?}");
        assert!(staged(&mut csi).await[0].uncertain, "{cut}");
        assert!(!file.exists() || std::fs::read(&file).unwrap() == whole, "{cut}: what is uncertain is noted again");
    }
    program.stop().await;
}

/// A block volume, with what the program is let do: its filter, its capabilities and /dev.
#[tokio::test(flavor = "current_thread")]
async fn a_block_volume_of_the_confined_program_outlives_it() {
    let Some(mut program) = Program::new("csi-block") else { return };
    let remote = Remote { dir: program.remote.dir.clone() };
    ready(&remote).await;
    let Some(disk) = Disk::new(&remote.dir) else { return };
    let channel = remote.channel(SYNCD).await;
    let (mut csi, mut volumes) = (CsiClient::new(channel.clone()), VolumesClient::new(channel));
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    csi.prepare_stage(to_stage(device(true))).await.unwrap();
    csi.commit_stage(device(true)).await.unwrap();
    let target = csi.prepare_publish(to_publish("p", device(true))).await.unwrap().into_inner().target_path;
    std::fs::write(&target, "").unwrap();
    rustix::mount::mount_bind(&disk.device, Path::new(&target)).unwrap();
    let link = csi.commit_publish(to_commit("p", device(true))).await.unwrap().into_inner().host_path;
    assert_eq!(std::fs::read_link(link).unwrap(), Path::new(&target));
    let bound = remote.dir.join("root/plugins/kubernetes.io/csi/volumeDevices/pv/dev/p");
    let held = loop_device::of_file(&bound).unwrap();
    assert_eq!(held.len(), 1);
    let (mut csi, epoch) = again(&mut program, &remote).await;
    let listed = published(&mut csi).await;
    assert!(listed.len() == 1 && listed[0].mounted && !listed[0].uncertain, "{listed:?}");
    csi.commit_publish(to_commit("p", device(true))).await.unwrap();
    assert_eq!(loop_device::of_file(&bound).unwrap(), held, "no second one");
    csi.begin_unpublish(end(epoch, true)).await.unwrap();
    assert!(loop_device::of_file(&bound).unwrap().is_empty());
    let (mut csi, epoch) = again(&mut program, &remote).await;
    assert!(published(&mut csi).await[0].uncertain);
    rustix::mount::unmount(Path::new(&target), rustix::mount::UnmountFlags::empty()).unwrap();
    csi.end_publish(end(epoch, true)).await.unwrap();
    csi.begin_unstage(unstage(epoch, true)).await.unwrap();
    csi.end_stage(unstage(epoch, true)).await.unwrap();
    assert!(published(&mut csi).await.is_empty() && staged(&mut csi).await.is_empty());
    program.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn files_of_drivers_that_never_answer_hold_up_one_volume() {
    if !SilentFs::is_possible() {
        skip_this_test(Lack::Fuse).unwrap();
        return;
    }
    let Some(program) = Program::new("csi-silent") else { return };
    let (epoch, mut csi, mut volumes) = clients(&program).await;
    for pod in ["p", "q"] {
        volumes.prepare_pod(PreparePodRequest { pod_uid: pod.into() }).await.unwrap();
    }
    let target = csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner().target_path;
    std::fs::create_dir_all(&target).unwrap();
    let silent = SilentFs::mount_silent(Path::new(&target)).unwrap();
    let staging = csi.prepare_stage(to_stage(device(false))).await.unwrap().into_inner().staging_path;
    let silent_staging = SilentFs::mount_silent(Path::new(&staging)).unwrap();

    // Who serves it may be a container of the very pod, which has not started: a mount alone is not entered.
    tokio::time::timeout(LONG, csi.commit_stage(device(false))).await.unwrap().unwrap();
    let plain = csi.commit_publish(to_commit("p", device(false)));
    assert_eq!(tokio::time::timeout(LONG, plain).await.unwrap().unwrap().into_inner().host_path, target);
    let again = csi.prepare_publish(to_publish("p", device(false)));
    assert!(tokio::time::timeout(LONG, again).await.unwrap().unwrap().into_inner().committed_before);
    assert_eq!(silent.unanswered() + silent_staging.unanswered(), 0);
    let listed = tokio::time::timeout(LONG, published(&mut csi)).await.unwrap();
    assert!(!listed[0].uncertain && listed[0].mounted, "{listed:?}");
    let pod = TearDownPodRequest { pod_uid: "p".into(), guard: guard(epoch), volumes_only: false };
    let torn = tokio::time::timeout(LONG, volumes.tear_down_pod(pod)).await.unwrap().unwrap().into_inner();
    assert!(!torn.done && torn.left.len() == 1, "the driver's: {torn:?}");
    tokio::time::timeout(LONG, csi.begin_unpublish(end(epoch, false))).await.unwrap().unwrap();
    assert_eq!(silent.unanswered() + silent_staging.unanswered(), 0);
    // The driver takes it back.
    drop(silent);
    csi.end_publish(end(epoch, false)).await.unwrap();

    // What is to be given to a group is entered.
    csi.prepare_publish(to_publish("p", device(false))).await.unwrap();
    std::fs::create_dir_all(&target).unwrap();
    let silent = SilentFs::mount_silent(Path::new(&target)).unwrap();

    let commit = CommitPublishRequest { fs_group: Some(2000), ..to_commit("p", device(false)) };
    let answer = tokio::time::timeout(SHORT, csi.commit_publish(commit.clone())).await;
    assert!(answer.is_err(), "{answer:?}");
    assert!(silent.unanswered() > 0);
    // Lists and others go on.
    let listed = tokio::time::timeout(LONG, published(&mut csi)).await.unwrap();
    assert!(listed[0].uncertain && listed[0].mounted, "{listed:?}");
    let listed = tokio::time::timeout(LONG, staged(&mut csi)).await.unwrap();
    assert!(!listed[0].uncertain && listed[0].mounted, "{listed:?}");
    let other = csi.prepare_publish(to_publish("q", device(false))).await.unwrap().into_inner().target_path;
    mount_tmpfs(Path::new(&other));
    let reply = csi.commit_publish(CommitPublishRequest { pod_uid: "q".into(), ..commit.clone() }).await.unwrap();
    assert_eq!(reply.into_inner().host_path, other);
    // Whoever asks again gets to know what hangs, in time.
    let refused = tokio::time::timeout(LONG, csi.commit_publish(commit)).await.unwrap().unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    let names = "has been in GivePublished of volume pv of pod p for";
    assert!(refused.message().contains(names), "{}", refused.message());
    // What is mounted is not entered to see that it is.
    let refused = tokio::time::timeout(LONG, csi.end_stage(unstage(epoch, false))).await.unwrap().unwrap_err();
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused:?}");
    drop((silent, silent_staging));
    program.stop().await;
}

/// After a start of kubelet-syncd no driver is called for what is mounted, unless nobody serves it any more.
#[tokio::test(flavor = "current_thread")]
async fn a_mount_that_is_found_dead_is_refused() {
    if !SilentFs::is_possible() {
        skip_this_test(Lack::Fuse).unwrap();
        return;
    }
    let Some(program) = Program::new("csi-dead") else { return };
    let (epoch, mut csi, mut volumes) = clients(&program).await;
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let target = csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner().target_path;
    std::fs::create_dir_all(&target).unwrap();
    let found = CommitPublishRequest { found: true, ..to_commit("p", device(false)) };

    let dead = SilentFs::mount_dead(Path::new(&target)).unwrap();
    let refused = csi.commit_publish(found.clone()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Internal, "{refused:?}");
    assert!(refused.message().contains("Transport endpoint is not connected"), "{refused:?}");
    // What a driver has just published is its own affair.
    csi.commit_publish(to_commit("p", device(false))).await.unwrap();
    drop(dead);

    // Whatever is answered is an answer: upstream's IsCorruptedMnt knows EWOULDBLOCK.
    for errno in [Errno::AGAIN, Errno::BUSY, Errno::INTR] {
        let refusing = SilentFs::mount_refusing(Path::new(&target), errno.raw_os_error()).unwrap();
        let refused = csi.commit_publish(found.clone()).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Internal, "{errno}: {refused:?}");
        drop(refusing);
    }

    // One that does not answer may yet, however often it is asked, and its mount is not held: its driver can take it away.
    let unmount = || rustix::mount::unmount(Path::new(&target), rustix::mount::UnmountFlags::empty()).unwrap();
    let silent = SilentFs::mount_silent(Path::new(&target)).unwrap();
    for _ in 0..3 {
        let reply = tokio::time::timeout(LONG, csi.commit_publish(found.clone())).await.unwrap().unwrap();
        assert_eq!(reply.into_inner().host_path, target);
    }
    // Who has asked waits for as long as the server lives, whatever is mounted.
    assert!(silent.unanswered() > 0);
    unmount();
    let unserved = SilentFs::mount_unserved(Path::new(&target)).unwrap();
    for _ in 0..2 {
        tokio::time::timeout(LONG, csi.commit_publish(found.clone())).await.unwrap().unwrap();
    }
    unmount();
    drop((silent, unserved));
    csi.begin_unpublish(end(epoch, false)).await.unwrap();
    csi.end_publish(end(epoch, false)).await.unwrap();
    program.stop().await;
}

/// Each volume of a pod is asked for by itself: two that hang in their questions are taken as they are, and of a third one is known
/// whether it is served; verbs that enter none go on.
#[tokio::test(flavor = "current_thread")]
async fn silent_volumes_of_a_pod_keep_nobody_from_its_others() {
    if !SilentFs::is_possible() {
        skip_this_test(Lack::Fuse).unwrap();
        return;
    }
    let Some(program) = Program::new("csi-silent-pod") else { return };
    let (epoch, mut csi, mut volumes) = clients(&program).await;
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let of = |spec: &str| CsiDevice { volume_handle: spec.into(), spec_name: spec.into(), ..device(false) };
    let mut targets = Vec::new();
    for spec in ["silent-a", "silent-b", "dead", "well"] {
        let target = csi.prepare_publish(to_publish("p", of(spec))).await.unwrap().into_inner().target_path;
        std::fs::create_dir_all(&target).unwrap();
        targets.push(target);
    }
    let found = |spec: &str| CommitPublishRequest { found: true, ..to_commit("p", of(spec)) };
    let [a, b, dead, well] = &targets[..] else { panic!("four") };
    let silent = [a, b].map(|target| SilentFs::mount_silent(Path::new(target)).unwrap());
    let dead_one = SilentFs::mount_dead(Path::new(dead)).unwrap();
    mount_tmpfs(Path::new(well));
    for _ in 0..2 {
        for (spec, target) in [("silent-a", a), ("silent-b", b), ("well", well)] {
            let reply = tokio::time::timeout(LONG, csi.commit_publish(found(spec))).await.unwrap().unwrap();
            assert_eq!(reply.into_inner().host_path, *target);
        }
        let refused = tokio::time::timeout(LONG, csi.commit_publish(found("dead"))).await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Internal, "{refused:?}");
        assert!(silent.iter().all(|one| one.unanswered() > 0));
    }
    let end = EndPublishRequest { pod_uid: "p".into(), device: Some(of("silent-a")), guard: guard(epoch) };
    tokio::time::timeout(LONG, csi.begin_unpublish(end)).await.unwrap().unwrap();
    rustix::mount::unmount(Path::new(well), rustix::mount::UnmountFlags::empty()).unwrap();
    drop((silent, dead_one));
    program.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn what_is_mounted_elsewhere_on_the_machine_is_not_unstaged() {
    let Some(program) = Program::new("csi-elsewhere") else { return };
    let (epoch, mut csi, mut volumes) = clients(&program).await;
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let staging = csi.prepare_stage(to_stage(device(false))).await.unwrap().into_inner().staging_path;
    mount_tmpfs(Path::new(&staging));
    csi.commit_stage(device(false)).await.unwrap();
    let target = csi.prepare_publish(to_publish("p", device(false))).await.unwrap().into_inner().target_path;
    let by_hand = program.remote.dir.join("host/by-hand");
    std::fs::create_dir_all(&by_hand).unwrap();
    std::fs::create_dir_all(&target).unwrap();
    for point in [&by_hand, Path::new(&target)] {
        rustix::mount::mount_bind(Path::new(&staging), point).unwrap();
        let refused = csi.begin_unstage(unstage(epoch, false)).await.unwrap_err();
        let text = format!(
            "GetDeviceMountRefs check failed: the device mount path {staging:?} is still mounted by other references [{}]",
            point.display()
        );
        assert_eq!((refused.code(), refused.message()), (tonic::Code::Aborted, text.as_str()));
        assert!(!staged(&mut csi).await[0].uncertain, "it stays as it is");
        rustix::mount::unmount(point, rustix::mount::UnmountFlags::empty()).unwrap();
    }
    // Of a server one file system may be two volumes.
    let other = CsiDevice { volume_handle: "other".into(), ..device(false) };
    let twin = csi.prepare_stage(to_stage(other.clone())).await.unwrap().into_inner().staging_path;
    rustix::mount::mount_bind(Path::new(&staging), Path::new(&twin)).unwrap();
    csi.begin_unstage(unstage(epoch, false)).await.unwrap();
    rustix::mount::unmount(Path::new(&twin), rustix::mount::UnmountFlags::empty()).unwrap();
    rustix::mount::unmount(Path::new(&staging), rustix::mount::UnmountFlags::empty()).unwrap();
    csi.end_stage(unstage(epoch, false)).await.unwrap();
    program.stop().await;
}

/// What is mounted elsewhere, too, and does not answer is not known to be dead: it stays, and nobody is kept from it.
#[tokio::test(flavor = "current_thread")]
async fn what_is_mounted_elsewhere_and_silent_is_not_held() {
    if !SilentFs::is_possible() {
        skip_this_test(Lack::Fuse).unwrap();
        return;
    }
    let Some(program) = Program::new("csi-elsewhere-silent") else { return };
    let (epoch, mut csi, _) = clients(&program).await;
    let by_hand = program.remote.dir.join("host/by-hand");
    std::fs::create_dir_all(&by_hand).unwrap();
    let unmount = |point: &Path| rustix::mount::unmount(point, rustix::mount::UnmountFlags::empty()).unwrap();

    // What nobody serves any more nobody loses.
    let staging = csi.prepare_stage(to_stage(device(false))).await.unwrap().into_inner().staging_path;
    let dead = SilentFs::mount_dead(Path::new(&staging)).unwrap();
    csi.commit_stage(device(false)).await.unwrap();
    rustix::mount::mount_bind(Path::new(&staging), &by_hand).unwrap();
    csi.begin_unstage(unstage(epoch, false)).await.unwrap();
    unmount(&by_hand);
    drop(dead);
    csi.end_stage(unstage(epoch, false)).await.unwrap();

    csi.prepare_stage(to_stage(device(false))).await.unwrap();
    let silent = SilentFs::mount_silent(Path::new(&staging)).unwrap();
    csi.commit_stage(device(false)).await.unwrap();
    rustix::mount::mount_bind(Path::new(&staging), &by_hand).unwrap();
    for _ in 0..3 {
        let refused = tokio::time::timeout(LONG, csi.begin_unstage(unstage(epoch, false))).await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Aborted, "{refused:?}");
        assert!(refused.message().contains("is still mounted by other references"), "{refused:?}");
    }
    assert!(silent.unanswered() > 0);
    // Neither the volume's lock nor a mount is held by who waits.
    unmount(&by_hand);
    csi.begin_unstage(unstage(epoch, false)).await.unwrap();
    unmount(Path::new(&staging));
    csi.end_stage(unstage(epoch, false)).await.unwrap();
    drop(silent);
    program.stop().await;
}
