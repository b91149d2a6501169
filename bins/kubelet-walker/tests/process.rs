//! The real process, started as the launcher starts it: what it holds, that it measures with just that, and what becomes of
//! workers.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::ffi::OsString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use bulkhead_config::{NodeConfig, Users};
use bulkhead_ipc::common::walk_request::What;
use bulkhead_ipc::common::{WalkReply, WalkRequest, WalkVolume, WalkVolumes};
use bulkhead_sys::process::PrivilegeReport;
use bulkhead_sys::spawn::{Spec, User};
use bulkhead_sys::{Capability, scm};
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_worker::{Limits, Message, Party, Share, Shares, WorkerPool};
use prost::Message as _;

/// Beside the range that real instances claim.
const BASE: u32 = 61194;
const SHARE: Share = Share { places: 8, at_once: 4, of_one: 4 };
const LIMITS: Limits = Limits {
    shares: Shares { node: SHARE, local: SHARE, foreign: SHARE, questions: Share::NONE, walks: Share::NONE },
    hangs_after: Duration::from_secs(5),
};

struct Walker(std::process::Child);

impl Drop for Walker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_root() -> bool {
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        skip_this_test(Lack::Root).unwrap();
    }
    root
}

fn node(root: &Path) -> NodeConfig {
    let mut config = NodeConfig::for_tests(root);
    config.users = Users::block(BASE);
    let volume = config.paths.pods().join("u1/volumes/kubernetes.io~empty-dir/scratch");
    std::fs::create_dir_all(&volume).unwrap();
    std::fs::create_dir_all(&config.paths.run_dir).unwrap();
    std::fs::create_dir_all(config.paths.pod_logs_dir.join("default_web_u1")).unwrap();
    std::fs::write(volume.join("data"), vec![1; 300_000]).unwrap();
    // As on a node: nobody but root gets in.
    std::fs::set_permissions(config.paths.pods(), std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::set_permissions(&volume, std::fs::Permissions::from_mode(0o700)).unwrap();
    config.save(&config.paths.rendered_config()).unwrap();
    config
}

/// A node, its walker and evictiond's end of the socket; nothing where it is not root who tests.
fn walker() -> Option<(tempfile::TempDir, Walker, OwnedFd)> {
    if !is_root() {
        return None;
    }
    let temp = tempfile::tempdir().unwrap();
    let (walker, socket) = start(&node(temp.path()));
    Some((temp, walker, socket))
}

/// With the fork server's end of a pair; the other one is evictiond's.
fn start(config: &NodeConfig) -> (Walker, OwnedFd) {
    start_with(config, Vec::new())
}

/// The same; `env`: more of its environment.
fn start_with(config: &NodeConfig, env: Vec<(OsString, OsString)>) -> (Walker, OwnedFd) {
    let (theirs, ours) = scm::pair().unwrap();
    let mut spec = Spec::new(env!("CARGO_BIN_EXE_kubelet-walker"));
    spec.args = vec!["--run-dir".into(), config.paths.run_dir.clone().into()];
    spec.fds = vec![("requests".into(), theirs)];
    spec.user = Some(User { uid: BASE, gid: BASE, groups: Vec::new() });
    spec.bounding = Some(vec![Capability::CAP_DAC_READ_SEARCH]);
    spec.ambient = vec![Capability::CAP_DAC_READ_SEARCH];
    spec.no_new_privs = true;
    spec.die_with_parent = true;
    spec.env.extend(env);
    (Walker(spec.spawn().unwrap()), ours)
}

async fn volumes(workers: &WorkerPool) -> WalkReply {
    let volume = WalkVolume { plugin: "kubernetes.io/empty-dir".into(), name: "scratch".into() };
    let what = What::Volumes(WalkVolumes { pod_uid: "u1".into(), volumes: vec![volume] });
    let request = Message::of(WalkRequest { what: Some(what) }.encode_to_vec());
    WalkReply::decode(&*workers.call(Party::local("pod u1"), "a test".into(), request, ()).await.unwrap().bytes)
        .unwrap()
}

/// Waits for a state of /proc, which has no events.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is() {
        assert!(started.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn children(of: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

#[tokio::test]
async fn it_measures_what_it_may_not_read_and_holds_nothing_else() {
    let Some((_temp, walker, socket)) = walker() else { return };
    let workers = WorkerPool::passed(socket, LIMITS, Box::new(|_| ())).unwrap();
    let reply = volumes(&workers).await;
    assert_eq!((reply.error.as_str(), reply.volumes.len()), ("", 1));
    assert!(reply.volumes[0].folder.unwrap().bytes >= 300_000, "{reply:?}");
    let [worker] = children(walker.0.id())[..] else { panic!("one worker") };
    for pid in [walker.0.id(), worker] {
        let held = PrivilegeReport::of(pid).unwrap();
        assert_eq!((held.uid, held.gid, held.groups.as_slice()), (BASE, BASE, &[][..]));
        for set in [&held.effective, &held.permitted, &held.bounding] {
            assert_eq!(set.as_slice(), ["DAC_READ_SEARCH"]);
        }
        assert!(held.no_new_privs && held.dumpable == Some(false) && held.seccomp_mode == 2, "{held:?}");
    }
    // What hangs must hold nothing that a successor waits for.
    let open = std::fs::read_dir(format!("/proc/{worker}/fd")).unwrap().count();
    assert_eq!(open, 4, "standard input, output and error, and its one socket");
    let line = std::fs::read(format!("/proc/{worker}/cmdline")).unwrap();
    assert!(line.starts_with(b"kubelet-walker: worker\0"), "{}", String::from_utf8_lossy(&line));
}

#[tokio::test]
async fn workers_are_used_again_replaced_and_end_with_whom_they_work_for() {
    let Some((_temp, walker, socket)) = walker() else { return };
    let workers = WorkerPool::passed(socket, LIMITS, Box::new(|_| ())).unwrap();
    for _ in 0..20 {
        assert_eq!(volumes(&workers).await.volumes.len(), 1);
    }
    let [first] = children(walker.0.id())[..] else { panic!("one after the other needs one worker") };
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(first.cast_signed()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    until("the fork server reaps it", || children(walker.0.id()).is_empty());
    assert_eq!(volumes(&workers).await.volumes.len(), 1, "a worker that was killed is replaced");
    let all = futures_util::future::join_all((0..12).map(|_| volumes(&workers))).await;
    assert!(all.iter().all(|reply| reply.volumes.len() == 1));
    assert!(children(walker.0.id()).len() <= SHARE.at_once);
    // evictiond is gone.
    let pid = walker.0.id();
    drop(workers);
    until("it ends by itself", || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z "));
    assert!(children(pid).is_empty());
}

#[tokio::test]
async fn what_is_no_request_for_a_worker_is_passed_over() {
    let Some((_temp, _walker, socket)) = walker() else { return };
    let file = tempfile::tempfile().unwrap();
    scm::send(&socket, b"x", &[]).unwrap();
    scm::send(&socket, b"more than a byte", &[]).unwrap();
    scm::send(&socket, b"w", &[file.as_fd()]).unwrap();
    let workers = WorkerPool::passed(socket, LIMITS, Box::new(|_| ())).unwrap();
    assert_eq!(volumes(&workers).await.volumes.len(), 1);
}

/// It may make no socket by then, and connect none.
#[test]
fn its_supervisor_hears_of_it_behind_the_filter() {
    if !is_root() {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("notify");
    let supervisor = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    supervisor.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let env = vec![("NOTIFY_SOCKET".into(), path.into()), ("WATCHDOG_USEC".into(), "100000".into())];
    let (walker, _socket) = start_with(&node(temp.path()), env);
    for _ in 0..2 {
        let mut text = [0; 64];
        let length = supervisor.recv(&mut text).unwrap();
        assert_eq!(&text[..length], b"WATCHDOG=1");
    }
    assert_eq!(PrivilegeReport::of(walker.0.id()).unwrap().seccomp_mode, 2);
}
