//! The built program, confined as it is when it ships: it has what it needs, nothing else, and a restart loses no

//! caller. Sets the kernel tunables of the machine as every node does. Needs root.

use crate::world;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Child;

use bulkhead_config::NodeConfig;
use bulkhead_ipc::common::process_client::ProcessClient;
use bulkhead_ipc::common::{DestructiveGuard, HelloRequest, PrivilegesRequest};
use bulkhead_ipc::volnetd::cgroups_client::CgroupsClient;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::*;
use bulkhead_sys::Capability;
use bulkhead_sys::cgroup::{CgroupPath, Hierarchies};
use bulkhead_sys::spawn::Spec;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use prost::Message;
use world::*;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kubelet-volnetd");

/// `bounding` is all that the machine gives it; None: whatever there is.
fn start(run_dir: &Path, grpc: &OwnedFd, broker: &OwnedFd, bounding: Option<Vec<Capability>>) -> Child {
    let mut spec = Spec::new(PROGRAM);
    spec.args = vec!["--run-dir".into(), run_dir.into()];
    spec.fds = vec![("grpc".to_owned(), grpc.try_clone().unwrap()), ("broker".to_owned(), broker.try_clone().unwrap())];
    spec.bounding = bounding;
    spec.spawn().unwrap()
}

/// Waits until it can do its job, and answers its epoch.
pub async fn ready(remote: &Remote) -> u64 {
    for _ in 0..200 {
        let mut process = ProcessClient::new(remote.channel(SYNCD).await);
        if let Ok(reply) = process.hello(HelloRequest::default()).await {
            let reply = reply.into_inner();
            if reply.ready {
                return reply.epoch;
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    panic!("volnetd did not get ready");
}

/// The built program on sockets that outlive it.
pub struct Program {
    pub remote: Remote,
    child: Child,
    grpc: OwnedFd,
    broker: OwnedFd,
    cleaner: Cleaner,
    hierarchies: Hierarchies,
    /// Dropped after the cleaner.
    _temp: tempfile::TempDir,
}

impl Program {
    pub fn new(name: &str) -> Option<Self> {
        Self::with(name, None)
    }

    fn with(name: &str, bounding: Option<Vec<Capability>>) -> Option<Self> {
        if !rustix::process::getuid().is_root() {
            skip_this_test(Lack::Root).unwrap();
            return None;
        }
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().canonicalize().unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["run", "manifests"] {
            std::fs::create_dir(dir.join(name)).unwrap();
        }
        let cgroup_root = CgroupPath::parse(&format!("/bulkhead-c-test-{name}-{}", std::process::id())).unwrap();
        let hierarchies = Hierarchies::detect().unwrap();
        hierarchies.ensure(&cgroup_root).unwrap();
        let mut config = NodeConfig::for_tests(&dir);
        config.cgroup_root = cgroup_root.to_string();
        // Nobody here who keeps them.
        config.kubelet.make_iptables_util_chains = Some(false);
        (config.users.syncd, config.users.evictiond, config.users.statusd) = (SYNCD, EVICTIOND, STATUSD);
        config.save(&config.paths.rendered_config()).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(dir.join("run/grpc.sock")).unwrap();
        std::fs::set_permissions(dir.join("run/grpc.sock"), std::fs::Permissions::from_mode(0o666)).unwrap();
        let grpc = OwnedFd::from(listener);
        let broker = bulkhead_sys::scm::listen(&dir.join("run/broker.sock"), 0o666).unwrap();
        let child = start(&dir.join("run"), &grpc, &broker, bounding);
        let cleaner = Cleaner { dir: dir.clone(), cgroup_root, pid: std::cell::Cell::new(child.id()) };
        Some(Program { remote: Remote { dir }, child, grpc, broker, cleaner, hierarchies, _temp: temp })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn start_again(&mut self) {
        self.child = start(&self.remote.dir.join("run"), &self.grpc, &self.broker, None);
        self.cleaner.pid.set(self.child.id());
    }

    /// As its unit does, with another first argument.
    fn start_as_the_kubelet(&mut self) {
        let mut spec = Spec::new("/bin/bash");
        let script = "exec -a kubelet \"$0\" --run-dir \"$1\"";
        spec.args = vec!["-c".into(), script.into(), PROGRAM.into(), self.remote.dir.join("run").into()];
        let passed = [("grpc", &self.grpc), ("broker", &self.broker)];
        spec.fds = passed.map(|(name, fd)| (name.to_owned(), fd.try_clone().unwrap())).into();
        self.child = spec.spawn().unwrap();
        self.cleaner.pid.set(self.child.id());
    }

    /// SIGTERM: it leaves by itself.
    pub async fn stop(self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut child = self.child;
        let status = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
        assert!(status.success(), "{status}");
    }
}

/// Tools look for the node's kubelet by the kernel's name of it, and find one process.
#[tokio::test(flavor = "current_thread")]
async fn under_the_kubelets_name_it_is_shown_as_the_kubelet() {
    let Some(mut program) = Program::new("named") else { return };
    let remote = Remote { dir: program.remote.dir.clone() };
    ready(&remote).await;
    let name = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim_end().to_owned();
    assert_eq!(name(&program.pid().to_string()), "kubelet-volnetd");
    program.kill();
    program.start_as_the_kubelet();
    ready(&remote).await;
    let pid = program.pid().to_string();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    assert!(!children.trim().is_empty(), "the fork server is one");
    assert_eq!(
        (name(&pid).as_str(), children.split_whitespace().map(name).any(|name| name == "kubelet")),
        ("kubelet", false)
    );
    program.stop().await;
}

#[tokio::test(flavor = "current_thread")]
async fn confined_and_restarted() {
    let Some(mut program) = Program::new("process") else { return };
    let dir = program.remote.dir.clone();
    let remote = Remote { dir: dir.clone() };
    let first = ready(&remote).await;
    let privileges =
        ProcessClient::new(remote.channel(OPERATOR).await).privileges(PrivilegesRequest {}).await.unwrap().into_inner();
    let row = bulkhead_daemon::privileges::Program::Daemon(bulkhead_types::Process::Volnetd).row();
    let mut expected: Vec<String> =
        row.capabilities.iter().map(|cap| bulkhead_sys::process::short_name(*cap)).collect();
    let available = bulkhead_sys::process::permitted().unwrap();
    expected.retain(|name| available.iter().any(|cap| bulkhead_sys::process::short_name(*cap) == *name));
    expected.sort();
    let mut effective = privileges.effective.clone();
    effective.sort();
    assert_eq!(effective, expected);
    assert_eq!((privileges.uid, privileges.seccomp_mode), (0, 2));
    assert!(privileges.no_new_privs && !privileges.dumpable);

    // The work of every capability, with what is left of root.
    let channel = remote.channel(SYNCD).await;
    let mut volumes = VolumesClient::new(channel.clone());
    let mut cgroups = CgroupsClient::new(channel);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    for (volume, medium) in [("disk", Medium::Disk), ("mem", Medium::Memory)] {
        let request = SetUpEmptyDirRequest {
            pod_uid: "p".into(),
            volume: volume.into(),
            medium: medium.into(),
            size_limit_bytes: 1 << 20,
            huge_page_bytes: 0,
            ..Default::default()
        };
        volumes.set_up_empty_dir(request).await.unwrap();
    }
    let pod = dir.join("root/pods/p");
    let private = pod.join("volumes/kubernetes.io~empty-dir/disk/private");
    std::fs::create_dir(&private).unwrap();
    std::fs::write(private.join("file"), "x").unwrap();
    std::os::unix::fs::chown(&private, Some(STRANGER), Some(STRANGER)).unwrap();
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o1000)).unwrap();
    cgroups.ensure_node(EnsureNodeRequest::default()).await.unwrap();
    let request = EnsurePodRequest { pod_uid: "p".into(), qos: Qos::Burstable.into(), ..Default::default() };
    let parent = cgroups.ensure_pod(request).await.unwrap().into_inner().cgroup_parent;
    let mut sleeper = std::process::Command::new("sleep").arg("60").uid(STRANGER).spawn().unwrap();
    let path = CgroupPath::parse(&parent).unwrap();
    std::fs::write(program.hierarchies.file("cpu", &path, "cgroup.procs").unwrap(), sleeper.id().to_string()).unwrap();
    let reaper = std::thread::spawn(move || sleeper.wait().unwrap().success());
    let state = remote.open(SYNCD, Kind::PrivateState(PrivateState {})).await.unwrap();
    assert_eq!(rustix::fs::fstat(&state).unwrap().st_uid, SYNCD);

    // SIGKILL; a caller that connects meanwhile waits in the passed socket.
    program.kill();
    let waiting = remote.channel(SYNCD).await;
    program.start_again();
    ProcessClient::new(waiting).hello(HelloRequest::default()).await.unwrap();
    let second = ready(&remote).await;
    assert_ne!(first, second);
    let channel = remote.channel(SYNCD).await;
    let mut volumes = VolumesClient::new(channel.clone());
    let mut stream = volumes.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    let mut mounted = 0;
    while let Some(volume) = stream.message().await.unwrap() {
        mounted += u32::from(volume.mounted);
        assert!(!volume.uncertain);
    }
    assert_eq!(mounted, 1);
    let guard =
        |volnetd_epoch| Some(DestructiveGuard { volnetd_epoch, syncd_epoch: 1, generation: 1, sources_ready: true });
    let stale = TearDownPodRequest { pod_uid: "p".into(), guard: guard(first), volumes_only: false };
    assert_eq!(volumes.tear_down_pod(stale).await.unwrap_err().code(), tonic::Code::FailedPrecondition);
    let request = RemovePodRequest { pod_uid: "p".into(), guard: guard(second) };
    assert!(CgroupsClient::new(channel).remove_pod(request).await.unwrap().into_inner().done);
    assert!(!reaper.join().unwrap(), "killed");
    let request = TearDownPodRequest { pod_uid: "p".into(), guard: guard(second), volumes_only: false };
    let reply = volumes.tear_down_pod(request).await.unwrap().into_inner();
    assert!(reply.done, "{:?}", reply.left);
    assert!(!pod.exists());

    program.stop().await;
}

/// Work of every capability that it holds; names what could not be done.
async fn missed(program: &Program) -> Vec<&'static str> {
    let (remote, dir) = (&program.remote, &program.remote.dir);
    let epoch = ready(remote).await;
    let guard = || Some(DestructiveGuard { volnetd_epoch: epoch, syncd_epoch: 1, generation: 1, sources_ready: true });
    let channel = remote.channel(SYNCD).await;
    let (mut volumes, mut cgroups) = (VolumesClient::new(channel.clone()), CgroupsClient::new(channel));
    let mut missed = Vec::new();
    let mut note = |what, done: bool| {
        if !done {
            missed.push(what)
        }
    };
    note("a state folder for its owner", remote.open(SYNCD, Kind::PrivateState(PrivateState {})).await.is_ok());
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let folder = |volume: &str| dir.join("root/pods/p/volumes/kubernetes.io~empty-dir").join(volume);
    for (volume, medium) in [("disk", Medium::Disk), ("mem", Medium::Memory)] {
        let request = SetUpEmptyDirRequest {
            pod_uid: "p".into(),
            volume: volume.into(),
            medium: medium.into(),
            fs_group: Some(2000),
            ..Default::default()
        };
        let set_up = volumes.set_up_empty_dir(request).await.is_ok();
        note(if volume == "mem" { "a tmpfs" } else { "a folder" }, set_up);
    }
    let disk = std::fs::metadata(folder("disk")).unwrap();
    note("a volume for its group", disk.gid() == 2000);
    note("files of the volume's group", disk.mode() & 0o2000 != 0);
    // One that root may not enter, one in which root may remove nothing, each with a file of the pod's user.
    for (name, mode) in [("private", 0), ("sticky", 0o1777)] {
        let inner = folder("disk").join(name);
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("file"), "x").unwrap();
        std::os::unix::fs::chown(inner.join("file"), Some(STRANGER), Some(STRANGER)).unwrap();
        std::os::unix::fs::chown(&inner, Some(STRANGER), Some(STRANGER)).unwrap();
        std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    cgroups.ensure_node(EnsureNodeRequest::default()).await.unwrap();
    let request = EnsurePodRequest { pod_uid: "p".into(), qos: Qos::Burstable.into(), ..Default::default() };
    let parent = CgroupPath::parse(&cgroups.ensure_pod(request).await.unwrap().into_inner().cgroup_parent).unwrap();
    let mut left = std::process::Command::new("sleep").arg("60").uid(STRANGER).spawn().unwrap();
    std::fs::write(program.hierarchies.file("cpu", &parent, "cgroup.procs").unwrap(), left.id().to_string()).unwrap();
    let pid = rustix::process::Pid::from_child(&left);
    let reaper = std::thread::spawn(move || left.wait().unwrap());
    let removed = cgroups.remove_pod(RemovePodRequest { pod_uid: "p".into(), guard: guard() }).await;
    note("the end of what is left in a cgroup", removed.is_ok_and(|reply| reply.into_inner().done));
    // Gone already, where that was done.
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    reaper.join().unwrap();
    for inner in ["private", "sticky"] {
        let request = TearDownPodRequest { pod_uid: "p".into(), guard: guard(), volumes_only: false };
        let torn = volumes.tear_down_pod(request).await;
        if !torn.is_ok_and(|reply| reply.into_inner().done) {
            note(inner, !folder("disk").join(inner).exists());
        }
    }
    missed
}

/// Least privilege by trial: with all that its row says the work is done, and without any one of them it is not.
#[tokio::test(flavor = "current_thread")]
async fn each_capability_is_missed() {
    let held = bulkhead_daemon::privileges::Program::Daemon(bulkhead_types::Process::Volnetd).row().capabilities;
    let Some(program) = Program::with("all", Some(held.to_vec())) else { return };
    assert_eq!(missed(&program).await, [""; 0]);
    program.stop().await;
    for withheld in held {
        let rest = held.iter().copied().filter(|cap| cap != withheld).collect();
        let mut program = Program::with(&withheld.to_string().to_lowercase(), Some(rest)).unwrap();
        let expected = match withheld {
            Capability::CAP_CHOWN => "a volume for its group",
            Capability::CAP_FSETID => "files of the volume's group",
            Capability::CAP_FOWNER => "sticky",
            Capability::CAP_DAC_OVERRIDE => "private",
            Capability::CAP_KILL => "the end of what is left in a cgroup",
            // Its own root directory is a mount that it makes: it does not even start.
            Capability::CAP_SYS_ADMIN => {
                assert!(!program.child.wait().unwrap().success());
                continue;
            }
            other => panic!("{other} is held, and no work here shows what for"),
        };
        let missed = missed(&program).await;
        assert!(missed.contains(&expected), "without {withheld}: {missed:?}");
        program.stop().await;
    }
}

/// Killed again and again while it replaces the files of volumes: a reader sees old or new files, the next request
/// finishes the work, and nothing is left behind.
#[tokio::test(flavor = "current_thread")]
async fn killed_while_it_writes() {
    const FILES: usize = 20;
    let Some(mut program) = Program::new("writer") else { return };
    let remote = Remote { dir: program.remote.dir.clone() };
    let first = ready(&remote).await;
    let plugin = ContentPlugin::Secret;
    let set_up =
        SetUpContentRequest { pod_uid: "p".into(), volume: "v".into(), plugin: plugin.into(), ..Default::default() };
    let mut volumes = VolumesClient::new(remote.channel(SYNCD).await);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let dir: std::path::PathBuf = volumes.set_up_content(set_up).await.unwrap().into_inner().host_path.into();
    let request = |generation: usize| {
        let file = |n| VolumeFile {
            path: format!("key-{n}"),
            data: format!("{generation:<20000}").into_bytes(),
            mode: 0o640,
            user: Some(1000),
        };
        let content = VolumeContent { files: (0..FILES).map(file).collect(), fs_group: Some(2000) };
        let put_content = PutContent { pod_uid: "p".into(), volume: "v".into(), plugin: plugin.into() };
        let request = OpenRequest { id: 1, put_content: Some(put_content), ..Default::default() };
        (request, bulkhead_sys::memfd::sealed("files", &content.encode_to_vec()).unwrap())
    };
    let (ask, files) = request(0);
    let (code, message, _) = remote.broker(SYNCD, ask, Some(files)).await;
    assert_eq!(code, 0, "{message}");

    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let reader = std::thread::spawn({
        let (stop, dir) = (stop.clone(), dir.clone());
        move || {
            let mut newest = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let data = bulkhead_sys::open::base_dir(&dir.join("..data")).expect("a set is always there");
                let set: Option<Vec<usize>> = (0..FILES)
                    .map(|n| {
                        let file = bulkhead_sys::open::regular_beneath(data.as_fd(), format!("key-{n}")).ok()?;
                        let text = std::io::read_to_string(std::fs::File::from(file)).ok()?;
                        Some(text.trim().parse().expect("a whole file"))
                    })
                    .collect();
                // None: this set was removed while it was read, because a newer one is in force.
                if let Some(set) = set {
                    assert!(set.iter().all(|value| *value == set[0]) && set[0] >= newest, "{set:?} after {newest}");
                    newest = set[0];
                }
            }
            newest
        }
    });
    const ROUNDS: usize = 16;
    for round in 1..=ROUNDS {
        let (ask, files) = request(round);
        let (path, bytes) = (remote.dir.join("run/broker.sock"), ask.encode_to_vec());
        let asked = as_user(SYNCD, move || {
            let socket = bulkhead_sys::scm::connect(&path).unwrap();
            bulkhead_sys::scm::send(&socket, &bytes, &[files.as_fd()]).unwrap();
            socket
        })
        .await;
        // Not to wait for something: to die in another place each time.
        std::thread::sleep(std::time::Duration::from_micros(350 * round as u64));
        program.kill();
        drop(asked);
        program.start_again();
        ready(&remote).await;
        let (ask, files) = request(round);
        let (code, message, _) = remote.broker(SYNCD, ask, Some(files)).await;
        assert_eq!(code, 0, "{message}");
        let names: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), FILES + 2, "{names:?}");
        assert_eq!(std::fs::read_to_string(dir.join("..data/key-7")).unwrap().trim(), round.to_string());
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(tokio::task::spawn_blocking(move || reader.join().unwrap()).await.unwrap() <= ROUNDS);

    // A subPath and the end, with what is left of root.
    let epoch = ready(&remote).await;
    assert_ne!(epoch, first);
    let mut volumes = VolumesClient::new(remote.channel(SYNCD).await);
    let sub_path = PrepareSubPathRequest {
        pod_uid: "p".into(),
        volume: "v".into(),
        container: "c".into(),
        index: 0,
        sub_path: "key-7".into(),
        root: Some(prepare_sub_path_request::Root::Plugin("kubernetes.io/secret".into())),
        read_only: true,
    };
    let bound = volumes.prepare_sub_path(sub_path).await.unwrap().into_inner().host_path;
    assert_eq!(std::fs::read_to_string(bound).unwrap().trim(), ROUNDS.to_string());
    let guard = Some(DestructiveGuard { volnetd_epoch: epoch, syncd_epoch: 1, generation: 1, sources_ready: true });
    let request = TearDownPodRequest { pod_uid: "p".into(), guard, volumes_only: false };
    let reply = volumes.tear_down_pod(request).await.unwrap().into_inner();
    assert!(reply.done, "{:?}", reply.left);
    assert!(remote.mounts(&remote.dir.join("root/pods")).is_empty());
    program.stop().await;
}

/// A user namespace in which every user is who it is outside, and with a limit of inotify instances of its own. What the
/// kernel refuses in it, it refuses as it does to all of root's processes when a pod has used theirs up.
struct Namespace(Child);

impl Namespace {
    fn new() -> Self {
        let mut holder = std::process::Command::new("unshare")
            .args(["--user", "sh", "-c", "echo; exec sleep 600"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0];
        std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut line).unwrap();
        for map in ["uid_map", "gid_map"] {
            std::fs::write(format!("/proc/{}/{map}", holder.id()), "0 0 4294967295").unwrap();
        }
        Namespace(holder)
    }

    fn allow_instances(&self, most: u32) {
        let script = format!("echo {most} > /proc/sys/user/max_inotify_instances");
        let status = std::process::Command::new("nsenter")
            .args(["--user", "--target", &self.0.id().to_string(), "sh", "-c", &script])
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// volnetd as a supervisor starts it that keeps descriptors.
struct Supervised<'a> {
    program: &'a mut Program,
    namespace: &'a Namespace,
    notify: tokio::net::UnixDatagram,
    notify_path: std::path::PathBuf,
}

impl Supervised<'_> {
    /// With what was kept, if anything.
    fn start(&mut self, kept: Option<OwnedFd>) {
        let run_dir = self.program.remote.dir.join("run");
        // The mounts of a user namespace are its own; nsenter and unshare become the program.
        let mut spec = Spec::new("/usr/bin/nsenter");
        let target = self.namespace.0.id().to_string();
        let before = ["--user", "--target", &target, "unshare", "--mount", env!("CARGO_BIN_EXE_kubelet-volnetd")];
        spec.args = before.iter().map(Into::into).chain(["--run-dir".into(), run_dir.into()]).collect();
        spec.env.push(("PATH".into(), "/usr/sbin:/usr/bin:/sbin:/bin".into()));
        spec.env.push(("NOTIFY_SOCKET".into(), self.notify_path.clone().into()));
        for (name, fd) in [("grpc", &self.program.grpc), ("broker", &self.program.broker)] {
            spec.fds.push((name.to_owned(), fd.try_clone().unwrap()));
        }
        spec.fds.extend(kept.map(|fd| ("inotify".to_owned(), fd)));
        self.program.child = spec.spawn().unwrap();
        self.program.cleaner.pid.set(self.program.child.id());
    }

    /// The next descriptor that it wants kept.
    async fn kept(&self) -> OwnedFd {
        let mut buffer = [0; 4096];
        loop {
            let receive = || bulkhead_sys::scm::recv(&self.notify, &mut buffer);
            let mut datagram = self.notify.async_io(tokio::io::Interest::READABLE, receive).await.unwrap();
            let text = String::from_utf8_lossy(&buffer[..datagram.len]).into_owned();
            if text.contains("FDSTORE=1") {
                assert!(text.contains("FDNAME=inotify"), "{text}");
                return datagram.fds.remove(0);
            }
        }
    }
}

async fn degraded(remote: &Remote) -> Vec<String> {
    let mut process = ProcessClient::new(remote.channel(SYNCD).await);
    process.hello(HelloRequest::default()).await.unwrap().into_inner().degraded
}

async fn manifests(remote: &Remote) -> tonic::Streaming<WatchEvent> {
    let mut watches = watches_client::WatchesClient::new(remote.channel(SYNCD).await);
    let request = WatchRequest { kind: WatchKind::Manifests.into() };
    watches.watch(request).await.unwrap().into_inner()
}

/// Writes the file whenever everything is to be looked at, until it is named: only a watch gives names, and the last thing
/// before a folder is watched is such a look.
async fn until_named(changes: &mut tonic::Streaming<WatchEvent>, file: &Path) {
    loop {
        let event = changes.message().await.unwrap().unwrap();
        match event.change() {
            watch_event::Change::Rescan => std::fs::write(file, "x").unwrap(),
            _ => return assert_eq!(Some(event.name.as_ref()), file.file_name()),
        }
    }
}

/// Whatever runs as root may use up the inotify instances of root, a pod too. volnetd starts without one, has everything
/// looked at now and then and says so; it watches as soon as there is one, and its next start needs no other.
#[tokio::test(flavor = "current_thread")]
async fn inotify_instances_are_used_up() {
    let Some(mut program) = Program::new("instances") else { return };
    ready(&program.remote).await;
    program.kill();
    let namespace = Namespace::new();
    namespace.allow_instances(0);
    let remote = Remote { dir: program.remote.dir.clone() };
    let notify_path = remote.dir.join("run/notify");
    let notify = tokio::net::UnixDatagram::bind(&notify_path).unwrap();
    let mut supervised = Supervised { program: &mut program, namespace: &namespace, notify, notify_path };
    supervised.start(None);
    let first = ready(&remote).await;
    let said = degraded(&remote).await;
    assert!(said.len() == 1 && said[0].contains("max_user_instances"), "{said:?}");
    let mut changes = manifests(&remote).await;
    for _ in 0..3 {
        let event = changes.message().await.unwrap().unwrap();
        assert_eq!(event.change(), watch_event::Change::Rescan, "again and again, so nothing is missed for long");
    }

    namespace.allow_instances(1);
    let kept = supervised.kept().await;
    until_named(&mut changes, &remote.dir.join("manifests/a.yaml")).await;
    assert!(degraded(&remote).await.is_empty());

    // Used up again, and killed: its next start has the instance that it had, and no watch of the former one.
    namespace.allow_instances(0);
    supervised.program.kill();
    std::fs::write(remote.dir.join("manifests/b.yaml"), "x").unwrap();
    supervised.start(Some(kept));
    assert_ne!(ready(&remote).await, first);
    assert!(degraded(&remote).await.is_empty());
    let mut changes = manifests(&remote).await;
    until_named(&mut changes, &remote.dir.join("manifests/c.yaml")).await;
    program.stop().await;
}

/// Leaves nothing behind, whatever happened.
struct Cleaner {
    dir: std::path::PathBuf,
    cgroup_root: CgroupPath,
    pid: std::cell::Cell<u32>,
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(pid) = rustix::process::Pid::from_raw(self.pid.get().cast_signed())
        {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        clean_up(&self.dir, &self.cgroup_root);
    }
}
