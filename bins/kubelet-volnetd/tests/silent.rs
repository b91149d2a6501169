//! File systems that never answer, met by every verb that enters one: the built program goes on for everybody else, names what
//! hangs, and starts again beside what its predecessor left behind. Needs root.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_ipc::common::process_client::ProcessClient;
use bulkhead_ipc::common::{DestructiveGuard, HelloRequest};
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::*;
use bulkhead_sys::scm;
use bulkhead_testkit::silent_fs::SilentFs;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_worker::Limits;
use kubelet_volnetd::worker::LIMITS;
use prost::Message as _;
use tonic::Request;
use tonic::transport::Channel;

use crate::process::{Program, ready};
use crate::world::{OPERATOR, Remote, STATUSD, SYNCD, as_user};

/// How long a caller waits here for what does not come.
const SHORT: Duration = Duration::from_millis(300);
/// For what comes, on a slow machine.
const LONG: Duration = Duration::from_secs(60);

type Volumes = VolumesClient<Channel>;

async fn empty_dir(volumes: &mut Volumes, pod: &str) -> Result<PathBuf, tonic::Status> {
    let request = SetUpEmptyDirRequest {
        pod_uid: pod.into(),
        volume: "v".into(),
        medium: Medium::Disk.into(),
        fs_group: Some(2000),
        ..Default::default()
    };
    let mut request = Request::new(request);
    request.set_timeout(LONG);
    Ok(volumes.set_up_empty_dir(request).await?.into_inner().host_path.into())
}

async fn config_map(volumes: &mut Volumes, pod: &str) -> Result<PathBuf, tonic::Status> {
    let request = SetUpContentRequest {
        pod_uid: pod.into(),
        volume: "v".into(),
        plugin: ContentPlugin::ConfigMap.into(),
        mount_points: vec!["inside".into()],
        ..Default::default()
    };
    Ok(volumes.set_up_content(request).await?.into_inner().host_path.into())
}

async fn prepared(volumes: &mut Volumes, pod: &str) {
    volumes.prepare_pod(PreparePodRequest { pod_uid: pod.into() }).await.unwrap();
}

/// Asks and does not wait: the answer would come over this socket.
async fn ask_broker(remote: &Remote, uid: u32, request: OpenRequest, fd: Option<OwnedFd>) -> OwnedFd {
    let path = remote.dir.join("run/broker.sock");
    as_user(uid, move || {
        let socket = scm::connect(&path).unwrap();
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        scm::send(&socket, &request.encode_to_vec(), &fds).unwrap();
        socket
    })
    .await
}

fn children(of: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Waits for what the kernel or another process does.
async fn until(what: &str, mut is: impl FnMut() -> bool) {
    let waiting = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(LONG, waiting).await.is_ok(), "{what}");
}

/// Mounts one, silent, and keeps it under the verb's name.
fn silent(all: &mut BTreeMap<&'static str, SilentFs>, verb: &'static str, on: &Path) {
    std::fs::create_dir_all(on).unwrap();
    all.insert(verb, SilentFs::mount_silent(on).unwrap());
}

/// A call that is not answered: its deadline passes.
async fn hangs<T: std::fmt::Debug>(verb: &str, call: impl Future<Output = Result<T, tonic::Status>>) {
    let answer = tokio::time::timeout(SHORT, call).await;
    assert!(answer.is_err(), "{verb} was answered: {answer:?}");
}

#[tokio::test(flavor = "current_thread")]
async fn verbs_that_hang_hold_up_their_pods_alone_and_no_restart() {
    if !SilentFs::is_possible() {
        skip_this_test(Lack::Fuse).unwrap();
        return;
    }
    let Some(mut program) = Program::new("silent") else { return };
    let dir = program.remote.dir.clone();
    let remote = Remote { dir: dir.clone() };
    let epoch = ready(&remote).await;
    let guard =
        |volnetd_epoch| Some(DestructiveGuard { volnetd_epoch, syncd_epoch: 1, generation: 1, sources_ready: true });
    let mut volumes = VolumesClient::new(remote.channel(SYNCD).await);
    let logs = PathBuf::from(format!("/var/log/bulkhead-silent-{}", std::process::id()));
    let mut all = BTreeMap::new();
    for pod in ["empty-dir", "content", "put-content", "sub-path", "host-path", "tear-down", "env-file", "an-orphan"] {
        prepared(&mut volumes, pod).await;
    }

    let path = empty_dir(&mut volumes, "empty-dir").await.unwrap();
    silent(&mut all, "SetUpEmptyDir", &path);
    hangs("SetUpEmptyDir", empty_dir(&mut volumes, "empty-dir")).await;

    let path = config_map(&mut volumes, "content").await.unwrap();
    silent(&mut all, "SetUpContent", &path);
    hangs("SetUpContent", config_map(&mut volumes, "content")).await;

    let path = config_map(&mut volumes, "put-content").await.unwrap();
    silent(&mut all, "PutContent", &path);
    let put_content =
        PutContent { pod_uid: "put-content".into(), volume: "v".into(), plugin: ContentPlugin::ConfigMap.into() };
    let files = VolumeContent {
        files: vec![VolumeFile { path: "a".into(), data: "b".into(), mode: 0o644, user: None }],
        fs_group: None,
    };
    let files = bulkhead_sys::memfd::sealed("files", &files.encode_to_vec()).unwrap();
    let request = OpenRequest { id: 5, put_content: Some(put_content), ..Default::default() };
    let _put = ask_broker(&remote, SYNCD, request, Some(files)).await;

    silent(&mut all, "CheckHostPath", &dir.join("host/checked"));
    let request = CheckHostPathRequest {
        pod_uid: "host-path".into(),
        volume: "v".into(),
        path: dir.join("host/checked/file").display().to_string(),
        r#type: HostPathType::File.into(),
    };
    hangs("CheckHostPath", volumes.check_host_path(request)).await;

    silent(&mut all, "PrepareSubPath", &dir.join("host/bound"));
    let request = PrepareSubPathRequest {
        pod_uid: "sub-path".into(),
        volume: "v".into(),
        container: "c".into(),
        sub_path: "x".into(),
        root: Some(prepare_sub_path_request::Root::HostPath(dir.join("host/bound").display().to_string())),
        ..Default::default()
    };
    hangs("PrepareSubPath", volumes.prepare_sub_path(request)).await;

    let path = empty_dir(&mut volumes, "env-file").await.unwrap();
    silent(&mut all, "EnvFile", &path);
    let file = EnvFile { pod_uid: "env-file".into(), volume: "v".into(), path: "variables".into() };
    let request = OpenRequest { id: 6, kind: Some(Kind::EnvFile(file)), ..Default::default() };
    let _env = ask_broker(&remote, SYNCD, request, None).await;

    silent(&mut all, "NodeLog", &logs);
    let relative = format!("{}/file", logs.file_name().unwrap().display());
    let request = OpenRequest { id: 7, kind: Some(Kind::NodeLog(NodeLog { relative })), ..Default::default() };
    let _log = ask_broker(&remote, STATUSD, request, None).await;

    // A mount inside one that falls silent can only be reached through it.
    for (verb, pod) in [("TearDownPod", "tear-down"), ("Prune", "an-orphan")] {
        let inside = empty_dir(&mut volumes, pod).await.unwrap().join("inside");
        std::fs::create_dir_all(&inside).unwrap();
        let mounted = SilentFs::mount(&inside).unwrap();
        rustix::mount::mount("tmpfs", inside.join("deeper"), "tmpfs", rustix::mount::MountFlags::empty(), None)
            .unwrap();
        mounted.fall_silent();
        all.insert(verb, mounted);
    }
    let request = TearDownPodRequest { pod_uid: "tear-down".into(), guard: guard(epoch), volumes_only: false };
    hangs("TearDownPod", volumes.tear_down_pod(request)).await;
    prepared(&mut volumes, "other-orphan").await;
    let known = all_pods(&dir).into_iter().filter(|pod| !pod.ends_with("orphan")).collect();
    let request = PruneRequest { known_pod_uids: known, guard: guard(epoch) };
    let mut steps = volumes.prune(request).await.unwrap().into_inner();

    for (verb, mounted) in &all {
        until(&format!("{verb} has met the file system"), || mounted.unanswered() > 0).await;
    }
    // Everybody else is served.
    prepared(&mut volumes, "another").await;
    let path = empty_dir(&mut volumes, "another").await.unwrap();
    assert!(path.is_dir());
    let request = TearDownPodRequest { pod_uid: "another".into(), guard: guard(epoch), volumes_only: false };
    assert!(volumes.tear_down_pod(request).await.unwrap().into_inner().done);
    // Who asks again for what hangs gets to know what it is, and so does who looks at the process.
    let refused = empty_dir(&mut volumes, "empty-dir").await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    let names = "has been in SetUpEmptyDir of volume v of pod empty-dir for";
    assert!(refused.message().contains(names), "{}", refused.message());
    let mut process = ProcessClient::new(remote.channel(OPERATOR).await);
    let reply = process.hello(HelloRequest::default()).await.unwrap().into_inner();
    assert!(
        reply.ready && reply.degraded.iter().any(|text| text.contains("TearDownPod of pod tear-down")),
        "{reply:?}"
    );
    // One orphan that hangs holds up no other.
    let mut removed = Vec::new();
    while let Some(step) = steps.message().await.unwrap() {
        removed.push(format!("{} {} {}", step.action, step.pod_uid, step.error));
    }
    assert!(removed.iter().any(|step| step.starts_with("removed directory other-orphan")), "{removed:?}");
    assert!(removed.iter().any(|step| step.starts_with("kept an-orphan another request works")), "{removed:?}");

    // SIGKILL: what hangs stays and holds nothing that a successor waits for.
    let [fork_server] = children(program.pid())[..] else { panic!("one fork server") };
    let workers = children(fork_server);
    assert!(workers.len() >= all.len(), "{} workers, {} verbs", workers.len(), all.len());
    program.kill();
    until("the fork server ends", || has_ended(fork_server)).await;
    program.start_again();
    let again = ready(&remote).await;
    assert_ne!(again, epoch);
    let hung = workers.iter().filter(|pid| state(**pid) == Some('D')).count();
    assert!(hung >= all.len(), "{hung} of {} hang", all.len());
    let mut volumes = VolumesClient::new(remote.channel(SYNCD).await);
    prepared(&mut volumes, "another").await;
    assert!(empty_dir(&mut volumes, "another").await.unwrap().is_dir());

    // When the file systems go, what waited for them ends.
    drop(all);
    until("the workers that were left behind end", || workers.iter().all(|pid| has_ended(*pid))).await;
    std::fs::remove_dir(&logs).unwrap();
    program.stop().await;
}

/// What a pod needs that has nothing to do with silent servers: within the time that a request takes to be said to hang.
async fn is_served(volumes: &mut Volumes, pod: &str, epoch: u64) {
    let all = async {
        prepared(volumes, pod).await;
        empty_dir(volumes, pod).await.unwrap();
        config_map(volumes, pod).await.unwrap();
        let request = PrepareSubPathRequest {
            pod_uid: pod.into(),
            volume: "v".into(),
            container: "c".into(),
            sub_path: "x".into(),
            root: Some(prepare_sub_path_request::Root::Plugin("kubernetes.io/empty-dir".into())),
            ..Default::default()
        };
        volumes.prepare_sub_path(request).await.unwrap();
        let guard = DestructiveGuard { volnetd_epoch: epoch, syncd_epoch: 1, generation: 1, sources_ready: true };
        let request = TearDownPodRequest { pod_uid: pod.into(), guard: Some(guard), volumes_only: false };
        assert!(volumes.tear_down_pod(request).await.unwrap().into_inner().done);
    };
    assert!(tokio::time::timeout(Limits::HANGS_AFTER, all).await.is_ok(), "{pod} waits for others' file systems");
}

/// More deleted pods with silent servers than there are workers for what others serve.
#[tokio::test(flavor = "current_thread")]
async fn silent_servers_of_many_pods_leave_the_others_their_volumes() {
    if !SilentFs::is_possible() {
        skip_this_test(Lack::Fuse).unwrap();
        return;
    }
    let Some(program) = Program::new("many-silent") else { return };
    let remote = Remote { dir: program.remote.dir.clone() };
    let epoch = ready(&remote).await;
    let mut volumes = VolumesClient::new(remote.channel(SYNCD).await);
    let places = LIMITS.shares.foreign.places;
    let mut mounted = Vec::new();
    for n in 0..places + 4 {
        let pod = format!("silent-{n}");
        prepared(&mut volumes, &pod).await;
        // A mount inside one that falls silent can only be reached through it.
        let inside = empty_dir(&mut volumes, &pod).await.unwrap().join("inside");
        std::fs::create_dir_all(&inside).unwrap();
        mounted.push(SilentFs::mount(&inside).unwrap());
        rustix::mount::mount("tmpfs", inside.join("deeper"), "tmpfs", rustix::mount::MountFlags::empty(), None)
            .unwrap();
    }
    mounted.iter().for_each(SilentFs::fall_silent);
    let guard = DestructiveGuard { volnetd_epoch: epoch, syncd_epoch: 1, generation: 1, sources_ready: true };
    let asking = volumes.clone();
    let tear_down = |n: usize| {
        let mut volumes = asking.clone();
        let request = TearDownPodRequest { pod_uid: format!("silent-{n}"), guard: Some(guard), volumes_only: false };
        async move { volumes.tear_down_pod(request).await }
    };
    let asked: Vec<_> = (0..places).map(|n| tokio::spawn(tear_down(n))).collect();
    until("the first are met", || mounted.iter().any(|mounted| mounted.unanswered() > 0)).await;
    is_served(&mut volumes, "meanwhile", epoch).await;

    // Some at a time.
    for count in [places / 2, places] {
        let met = || mounted.iter().filter(|mounted| mounted.unanswered() > 0).count();
        until(&format!("{count} of them are met"), || met() >= count).await;
    }
    let refused = async {
        loop {
            let refused = tear_down(places).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::Unavailable);
            if refused.message().contains("as many as there may be for file systems and devices that others serve") {
                return;
            }
        }
    };
    assert!(tokio::time::timeout(LONG, refused).await.is_ok(), "one more is refused, with what hangs");
    is_served(&mut volumes, "afterwards", epoch).await;

    // The servers are back.
    drop(mounted);
    for one in asked {
        let _ = one.await.unwrap();
    }
    program.stop().await;
}

fn all_pods(dir: &Path) -> Vec<String> {
    let pods = std::fs::read_dir(dir.join("root/pods")).unwrap();
    pods.map(|pod| pod.unwrap().file_name().into_string().unwrap()).collect()
}

/// The state that /proc/<pid>/stat shows; none of a process that is gone.
fn state(pid: u32) -> Option<char> {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.rsplit(") ").next()?.chars().next()
}

/// Ended: whoever has to reap it may take its time.
fn has_ended(pid: u32) -> bool {
    matches!(state(pid), None | Some('Z' | 'X'))
}
