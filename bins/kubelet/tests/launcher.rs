//! The real program with four stand-ins for the daemons: who is started with what, who dies with whom, who comes back.
//!
//! A stand-in is this test program itself, entered through [`stand_in`]; it takes its sockets, reports what the kernel

//! says of it, is ready, and ends with its launcher. Needs root, as the program does; without it there is nothing to see.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use bulkhead_config::{NodeConfig, run_dir_for, short_hash};
use bulkhead_sys::cgroup::{CgroupPath, Hierarchies};
use bulkhead_sys::process::PrivilegeReport;
use rustix::process::{Pid, Signal, kill_process};

const DAEMONS: [&str; 4] = ["kubelet-volnetd", "kubelet-syncd", "kubelet-evictiond", "kubelet-statusd"];
const LIMIT: Duration = Duration::from_secs(20);

/// Not a test of its own: what a started daemon is here.
#[test]
fn stand_in() {
    let Ok(name) = std::env::var("STAND_IN_FOR") else { return };
    let folder = PathBuf::from(std::env::var("STAND_IN_REPORTS").unwrap());
    let mut passed: BTreeMap<String, _> = bulkhead_sys::listen_fds::take().unwrap().into_iter().collect();
    let death = passed.remove("death").unwrap();
    // The thread's own view is the process's: nothing changed since exec.
    let report = PrivilegeReport::read().unwrap();
    let names: Vec<&str> = passed.keys().map(String::as_str).collect();
    let text = format!(
        "uid={} gid={} groups={:?} effective={:?} bounding={:?} ambient={:?} no_new_privs={} passed={names:?}",
        report.uid, report.gid, report.groups, report.effective, report.bounding, report.ambient, report.no_new_privs
    );
    fs::write(folder.join(format!("{name}.new")), text).unwrap();
    fs::rename(folder.join(format!("{name}.new")), folder.join(&name)).unwrap();
    sd_notify::notify(&[sd_notify::NotifyState::Ready]).unwrap();
    // Until the launcher's end of the pipe closes.
    let _ = std::fs::File::from(death).read(&mut [0]);
    fs::write(folder.join(format!("{name}.orphaned")), "").unwrap();
}

struct Node {
    folder: tempfile::TempDir,
    hierarchies: Hierarchies,
    cgroup: CgroupPath,
    launcher: Option<Child>,
    ready: UnixDatagram,
}

impl Node {
    /// None where the test cannot run: without root.
    fn new(name: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let bin = folder.path().join("bin");
        let reports = folder.path().join("reports");
        for path in [&bin, &reports] {
            fs::create_dir(path).unwrap();
        }
        fs::set_permissions(&reports, fs::Permissions::from_mode(0o777)).unwrap();
        // Below the build folder other users might not get at it.
        fs::copy(std::env::current_exe().unwrap(), bin.join("stand-in")).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_kubelet"), bin.join("kubelet")).unwrap();
        for daemon in DAEMONS {
            let script = format!(
                "#!/bin/sh\nSTAND_IN_FOR={daemon} STAND_IN_REPORTS={} exec {} launcher::stand_in --exact --test-threads=1 # $0 $*\n",
                reports.display(),
                bin.join("stand-in").display()
            );
            fs::write(bin.join(daemon), script).unwrap();
            fs::set_permissions(bin.join(daemon), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let hierarchies = Hierarchies::detect().unwrap();
        let cgroup = CgroupPath::parse(&format!("/kubelet-launcher-test-{name}-{}", std::process::id())).unwrap();
        hierarchies.ensure(&cgroup).unwrap();
        let ready = UnixDatagram::bind(folder.path().join("ready.sock")).unwrap();
        ready.set_read_timeout(Some(LIMIT)).unwrap();
        let node = Node { folder, hierarchies, cgroup, launcher: None, ready };
        fs::write(node.path("config.yaml"), node.config()).unwrap();
        Some(node)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A stand-in for kubelet-walker, which is no daemon: it has no notification and no pipe.
    fn add_walker(&self) {
        let (program, report) = (self.path("bin/kubelet-walker"), self.report_path("kubelet-walker"));
        let script = format!(
            "#!/bin/sh\n{{ cat /proc/self/status; echo \"names=$LISTEN_FDNAMES arguments=$*\"; }} > {0}.new\nmv {0}.new {0}\nexec sleep 600\n",
            report.display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn config(&self) -> String {
        format!(
            "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nfailCgroupV1: false\nfailSwapOn: false\n\
             enableServer: false\ncgroupRoot: {}\ncpuManagerReconcilePeriod: 7s\n",
            self.cgroup.as_str()
        )
    }

    fn root_dir(&self) -> PathBuf {
        self.path("root")
    }

    fn run_dir(&self) -> PathBuf {
        run_dir_for(&self.root_dir())
    }

    fn command(&self, root_dir: &Path) -> Command {
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = Command::new(self.path("bin/kubelet"));
        command
            .arg(format!("--config={}", self.path("config.yaml").display()))
            .arg(format!("--root-dir={}", root_dir.display()))
            .arg("--hostname-override=launcher-test")
            .env("NOTIFY_SOCKET", self.path("ready.sock"))
            .env_remove("WATCHDOG_USEC")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        command
    }

    /// Starts the launcher and waits until it says that all four are ready.
    fn start(&mut self) {
        for daemon in DAEMONS {
            let _ = fs::remove_file(self.report_path(daemon));
        }
        self.launcher = Some(self.command(&self.root_dir()).spawn().unwrap());
        self.wait_ready();
    }

    fn wait_ready(&self) {
        let mut buffer = [0; 256];
        loop {
            let length = self.ready.recv(&mut buffer).unwrap_or_else(|e| panic!("no READY: {e}\n{}", self.log()));
            if String::from_utf8_lossy(&buffer[..length]).contains("READY=1") {
                return;
            }
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    fn launcher_pid(&self) -> i32 {
        i32::try_from(self.launcher.as_ref().unwrap().id()).unwrap()
    }

    fn report_path(&self, daemon: &str) -> PathBuf {
        self.path("reports").join(daemon)
    }

    fn report(&self, daemon: &str) -> String {
        fs::read_to_string(self.report_path(daemon)).unwrap()
    }

    /// Stand-ins of this node that run, by pid, with their launcher's pid.
    fn daemons(&self) -> BTreeMap<i32, i32> {
        let program = self.path("bin/stand-in");
        let mut found = BTreeMap::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            if fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == program) {
                let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
                let parent =
                    stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)).and_then(|p| p.parse().ok());
                found.insert(pid, parent.unwrap_or(0));
            }
        }
        found
    }

    fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let started = Instant::now();
        while !holds() {
            assert!(started.elapsed() < LIMIT, "{what} did not come true\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn signal(pid: i32, signal: Signal) {
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    fn stop(&mut self) -> ExitStatus {
        Self::signal(self.launcher_pid(), Signal::TERM);
        self.launcher.take().unwrap().wait().unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut launcher) = self.launcher.take() {
            let _ = launcher.kill();
            let _ = launcher.wait();
        }
        for pid in self.daemons().into_keys() {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
        let _ = self.hierarchies.kill_and_remove(&self.cgroup);
        let _ = fs::remove_dir_all(self.run_dir());
        // Claims of launchers that were killed or refused stay behind as unlocked files.
        let roots = [self.root_dir(), self.path("other-root")];
        let claims = roots.iter().map(|root| format!("root-{}", short_hash(root.as_os_str().as_encoded_bytes())));
        for claim in claims.chain([short_hash(self.cgroup.as_str().as_bytes())]) {
            let _ = fs::remove_file(Path::new("/run/kubelet.claims").join(claim));
        }
    }
}

fn status_line(pid: i32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
}

#[test]
fn four_daemons_with_exactly_their_privileges() {
    let Some(mut node) = Node::new("privileges") else { return };
    node.add_walker();
    node.start();
    assert_eq!(node.daemons().len(), 4);
    assert!(node.daemons().values().all(|parent| *parent == node.launcher_pid()));

    let config = NodeConfig::load(&node.run_dir().join("config.json")).unwrap();
    assert_eq!(config.kubelet.cpu_manager_reconcile_period.to_string(), "7s");
    let users = config.users;
    for (daemon, uid, capabilities, passed) in [
        ("kubelet-syncd", users.syncd, "[]", "[\"grpc\"]"),
        ("kubelet-statusd", users.statusd, "[]", "[\"grpc\"]"),
        ("kubelet-evictiond", users.evictiond, "[]", "[\"grpc\", \"kmsg\", \"walker\"]"),
    ] {
        let report = node.report(daemon);
        for part in [
            format!("uid={uid} "),
            format!("groups=[{}]", users.gid),
            format!("effective={capabilities}"),
            format!("bounding={capabilities}"),
            "no_new_privs=true".to_owned(),
            format!("passed={passed}"),
        ] {
            assert!(report.contains(&part), "{daemon}: {part} is not in {report}");
        }
    }
    // What evictiond has done for it by a process that may list any folder, which has no daemon's user.
    node.until("the walker's report", || node.report_path("kubelet-walker").exists());
    let walker = node.report("kubelet-walker");
    for line in [
        format!("Uid:\t{0}\t{0}\t{0}\t{0}", users.gid + 4),
        format!("Gid:\t{0}\t{0}\t{0}\t{0}", users.gid + 4),
        "Groups:\t \n".to_owned(),
        "CapEff:\t0000000000000004".to_owned(),
        "CapBnd:\t0000000000000004".to_owned(),
        "NoNewPrivs:\t1".to_owned(),
        format!("names=requests arguments=--run-dir {}", node.run_dir().display()),
    ] {
        assert!(walker.contains(&line), "{line} is not in {walker}");
    }
    let volnetd = node.report("kubelet-volnetd");
    assert!(volnetd.contains("uid=0 ") && volnetd.contains("passed=[\"broker\", \"grpc\"]"), "{volnetd}");
    // In force, not only in the bounding set: exec must not have cut it down to what the launcher kept.
    let effective = volnetd.split("effective=").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    for capability in ["SYS_ADMIN", "CHOWN", "FOWNER", "FSETID", "DAC_OVERRIDE", "KILL"] {
        assert!(effective.contains(&format!("\"{capability}\"")), "{capability}: {volnetd}");
    }
    for capability in ["SYS_PTRACE", "SETUID", "SETPCAP", "NET_ADMIN", "NET_RAW", "MKNOD", "SYSLOG", "SYS_RESOURCE"] {
        assert!(!volnetd.contains(&format!("\"{capability}\"")), "{capability}: {volnetd}");
    }

    // SETUID, SETGID, SETPCAP and KILL.
    let kept = (1_u64 << 7) | (1 << 6) | (1 << 8) | (1 << 5);
    assert_eq!(u64::from_str_radix(&status_line(node.launcher_pid(), "CapEff:"), 16).unwrap(), kept);

    let mode = |path: PathBuf| {
        let metadata = fs::metadata(&path).unwrap();
        (metadata.mode() & 0o777, metadata.uid(), metadata.gid())
    };
    assert_eq!(mode(node.run_dir()), (0o750, 0, users.gid));
    assert_eq!(mode(node.run_dir().join("config.json")), (0o640, 0, users.gid));
    for daemon in DAEMONS {
        assert_eq!(mode(node.run_dir().join(format!("{daemon}.sock"))), (0o660, 0, users.gid), "{daemon}");
    }
    assert_eq!(mode(node.run_dir().join("kubelet-volnetd.fd.sock")), (0o660, 0, users.gid));
    assert!(node.stop().success(), "{}", node.log());
}

#[test]
fn a_killed_daemon_comes_back_alone() {
    let Some(mut node) = Node::new("restart") else { return };
    node.start();
    for daemon in DAEMONS {
        let before = node.daemons();
        let environment = |pid: &i32| fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let marker = format!("STAND_IN_FOR={daemon}\0");
        let is_it = |pid: &&i32| environment(pid).windows(marker.len()).any(|part| part == marker.as_bytes());
        let victim = *before.keys().find(is_it).unwrap();
        let report = node.report(daemon);
        fs::remove_file(node.report_path(daemon)).unwrap();
        Node::signal(victim, Signal::KILL);
        node.until(&format!("{daemon} is started again"), || node.report_path(daemon).exists());
        let after = node.daemons();
        assert_eq!(after.len(), 4, "{daemon}");
        assert_eq!(before.keys().filter(|pid| after.contains_key(pid)).count(), 3, "only {daemon} is new");
        assert_eq!(node.report(daemon), report, "{daemon} has the same privileges again");
    }
    assert!(node.stop().success(), "{}", node.log());
}

#[test]
fn removed_files_are_made_again() {
    let Some(mut node) = Node::new("removed") else { return };
    node.start();
    let users = NodeConfig::load(&node.run_dir().join("config.json")).unwrap().users;
    for entry in fs::read_dir(node.run_dir()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    for daemon in DAEMONS {
        fs::remove_file(node.report_path(daemon)).unwrap();
    }
    for pid in node.daemons().into_keys() {
        Node::signal(pid, Signal::KILL);
    }
    for daemon in DAEMONS {
        node.until(&format!("{daemon} is started again"), || node.report_path(daemon).exists());
        let socket = fs::metadata(node.run_dir().join(format!("{daemon}.sock"))).unwrap();
        assert_eq!((socket.mode() & 0o777, socket.uid(), socket.gid()), (0o660, 0, users.gid), "{daemon}");
    }
    let rendered = fs::metadata(node.run_dir().join("config.json")).unwrap();
    assert_eq!((rendered.mode() & 0o777, rendered.uid(), rendered.gid()), (0o640, 0, users.gid));
    // One that is not heard when it says that it is ready would have ended.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(node.log().matches("ended, will be started again").count(), 4, "{}", node.log());
    assert_eq!(node.daemons().len(), 4);
    assert!(node.stop().success(), "{}", node.log());
    assert!(!node.run_dir().exists());
}

#[test]
fn a_killed_launcher_leaves_no_process_and_the_next_starts_four() {
    let Some(mut node) = Node::new("kill") else { return };
    node.start();
    let users = NodeConfig::load(&node.run_dir().join("config.json")).unwrap().users;
    for _ in 0..3 {
        let before = node.daemons();
        let mut launcher = node.launcher.take().unwrap();
        launcher.kill().unwrap();
        launcher.wait().unwrap();
        node.start();
        node.until("the old daemons are gone", || node.daemons().keys().all(|pid| !before.contains_key(pid)));
        assert_eq!(node.daemons().len(), 4);
    }
    let again = NodeConfig::load(&node.run_dir().join("config.json")).unwrap().users;
    assert_eq!(users, again, "a root directory keeps its users");
    assert!(node.stop().success(), "{}", node.log());
    assert!(node.daemons().is_empty());
    assert!(!node.run_dir().exists(), "a clean stop leaves no socket folder");
}

#[test]
fn a_second_node_is_refused_by_name() {
    let Some(mut node) = Node::new("second") else { return };
    node.start();
    let attempt = |root_dir: &Path| {
        let output = node.command(root_dir).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let same_cgroup = attempt(&node.path("other-root"));
    for part in [
        "cgroupRoot",
        node.cgroup.as_str(),
        "launcher-test",
        &node.root_dir().display().to_string(),
        &node.launcher_pid().to_string(),
    ] {
        assert!(same_cgroup.contains(part), "{part} is not in {same_cgroup}");
    }
    assert!(!node.path("other-root").exists());
    let leftover = format!("root-{}", short_hash(node.path("other-root").as_os_str().as_encoded_bytes()));
    assert!(!Path::new("/run/kubelet.claims").join(leftover).exists(), "a refused node leaves no claim behind");
    let same_root = attempt(&node.root_dir());
    assert!(same_root.contains("--root-dir"), "{same_root}");
    assert_eq!(node.daemons().len(), 4, "the first node is untouched");
    assert!(node.stop().success(), "{}", node.log());
}

#[test]
fn hangup_changes_nothing_and_a_missing_program_is_named() {
    let Some(mut node) = Node::new("hangup") else { return };
    node.start();
    let before = node.daemons();
    Node::signal(node.launcher_pid(), Signal::HUP);
    node.until("the hangup is logged", || node.log().contains("SIGHUP"));
    assert_eq!(node.daemons(), before);
    assert!(node.stop().success(), "{}", node.log());
    fs::remove_file(node.path("bin/kubelet-statusd")).unwrap();
    let output = node.command(&node.root_dir()).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("kubelet-statusd"));
    assert!(node.daemons().is_empty());
}

#[test]
fn the_launcher_exits_when_another_process_opens_the_lock_file() {
    let Some(mut node) = Node::new("lock") else { return };
    let lock = node.path("lock");
    let mut command = node.command(&node.root_dir());
    command.arg(format!("--lock-file={}", lock.display())).arg("--exit-on-lock-contention");
    node.launcher = Some(command.spawn().unwrap());
    node.wait_ready();
    let opened = fs::File::open(&lock).unwrap();
    let status = node.launcher.take().unwrap().wait().unwrap();
    assert!(status.success(), "{}", node.log());
    assert!(node.daemons().is_empty());
    // The lock is free for the one who asked.
    opened.lock().unwrap();
}
