//! The real process with drivers that are shell scripts.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use bulkhead_config::NodeConfig;
use bulkhead_daemon::privileges::Program;
use bulkhead_ipc::common::flex_reply::Outcome;
use bulkhead_ipc::common::flex_request::Act;
use bulkhead_ipc::common::{FlexReply, FlexRequest, FlexSecret, FlexVolume};
use bulkhead_ipc::helper::Asker;
use bulkhead_sys::process::PrivilegeReport;
use bulkhead_sys::scm;
use bulkhead_sys::spawn::{Spec, User};
use bulkhead_testkit::skip::{Lack, skip_this_test};

const PATIENCE: Duration = Duration::from_secs(60);

/// A node's folders, and the process.
struct World {
    folder: tempfile::TempDir,
    asker: Asker,
    process: Child,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl World {
    /// As its launcher starts it.
    fn start() -> Option<Self> {
        Self::named("root")
    }

    /// `name`: of the root directory, below the folder; another one than `root` is a link.
    fn named(name: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip_this_test(Lack::Root).unwrap();
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let root = &std::fs::canonicalize(folder.path()).unwrap();
        std::fs::set_permissions(root, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut config = NodeConfig::for_tests(root);
        config.paths.root_dir = root.join(name);
        config.kubelet.volume_plugin_dir = root.join("drivers").display().to_string();
        std::fs::create_dir_all(root.join("root/pods/p/volumes/v~d/data")).unwrap();
        if name != "root" {
            std::os::unix::fs::symlink("root", root.join(name)).unwrap();
        }
        std::fs::create_dir_all(root.join("drivers")).unwrap();
        std::fs::create_dir_all(root.join("run")).unwrap();
        config.save(&root.join("run/config.json")).unwrap();
        let (theirs, ours) = scm::pair().unwrap();
        let mut spec = Spec::new(env!("CARGO_BIN_EXE_kubelet-flexvolume"));
        spec.args = vec!["--run-dir".into(), root.join("run").into()];
        spec.env = vec![("SECRET_OF_THE_PARENT".into(), "x".into())];
        spec.fds = vec![("questions".into(), theirs)];
        spec.user = Some(User { uid: 0, gid: 0, groups: Vec::new() });
        spec.bounding = Some(Program::Flexvolume.row().capabilities.to_vec());
        let (mut command, slots) = spec.prepare().unwrap().into_parts();
        let process = command.spawn().unwrap();
        drop(slots);
        Some(World { asker: Asker::new(Some(ours)).unwrap(), folder, process })
    }

    fn program(&self, name: &str) -> PathBuf {
        let (vendor, program) = name.split_once('/').unwrap();
        self.folder.path().join(format!("drivers/{vendor}~{program}/{program}"))
    }

    fn driver(&self, name: &str, script: &str) -> PathBuf {
        let path = self.program(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn volume(&self) -> PathBuf {
        std::fs::canonicalize(self.folder.path()).unwrap().join("root/pods/p/volumes/v~d/data")
    }

    async fn ask(&self, question: &FlexRequest) -> FlexReply {
        self.asker.ask_for(question, PATIENCE).await.unwrap()
    }

    async fn fails(&self, question: &FlexRequest, says: &str) {
        let reply = self.ask(question).await;
        assert!(reply.outcome() == Outcome::Failed && reply.message.contains(says), "{says}: {reply:?}");
    }
}

fn question(act: Act, driver: &str) -> FlexRequest {
    let secret = FlexSecret { data: [("word".to_owned(), b"SECRET".to_vec())].into() };
    let options = FlexVolume { pod_name: "pod".into(), secret: Some(secret), ..FlexVolume::default() };
    FlexRequest {
        act: act.into(),
        driver: driver.into(),
        pod_uid: "p".into(),
        volume: "data".into(),
        options: Some(options),
        device: "/dev/of-attach".into(),
        new_size: 20,
        old_size: 10,
    }
}

fn is_mounted(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

const TMPFS: &str = r#"echo "$# $1 $2" >> "${0%/*}/calls"
/usr/bin/env > "${0%/*}/environment"
case "$1" in
init) echo '{"status": "Success", "capabilities": {"attach": false, "fsGroup": false}}' ;;
mount) mount -t tmpfs flex "$2" && echo "$3" > "$2/told" && echo '{"status": "Success"}' ;;
unmount) umount "$2" && echo '{"status": "Success"}' ;;
*) echo '{"status": "Not supported"}' ;;
esac"#;

#[tokio::test]
async fn a_driver_says_what_it_can_mounts_and_unmounts() {
    let Some(world) = World::start() else { return };
    let program = world.driver("v/d", TMPFS);
    let beside = |name: &str| std::fs::read_to_string(program.with_file_name(name)).unwrap();
    let reply = world.ask(&question(Act::Init, "v/d")).await;
    assert_eq!(reply.outcome(), Outcome::Done, "{reply:?}");
    let can = reply.capabilities.unwrap();
    assert!(!can.attach && !can.fs_group && can.selinux_relabel && !can.supports_metrics);
    let environment = beside("environment");
    assert!(environment.contains("PATH=") && !environment.contains("SECRET_OF_THE_PARENT"), "{environment}");

    let process = PrivilegeReport::of(world.process.id()).unwrap();
    assert!(process.no_new_privs && process.seccomp_mode == 2 && process.uid == 0);
    assert!(process.effective.iter().any(|cap| cap.ends_with("SYS_ADMIN")), "{:?}", process.effective);
    assert_eq!(process.bounding.len(), Program::Flexvolume.row().capabilities.len(), "{:?}", process.bounding);
    assert!(process.ambient.is_empty() && process.inheritable.is_empty(), "its programs have theirs by root's exec");

    let volume = world.volume();
    let reply = world.ask(&question(Act::Mount, "v/d")).await;
    assert!(reply.outcome() == Outcome::Done && is_mounted(&volume), "{reply:?}");
    let told = std::fs::read_to_string(volume.join("told")).unwrap();
    assert!(told.contains(r#""kubernetes.io/secret/word":"U0VDUkVU""#), "{told}");
    assert!(told.contains(r#""kubernetes.io/pvOrVolumeName":"data""#), "{told}");
    let reply = world.ask(&question(Act::Unmount, "v/d")).await;
    assert!(reply.outcome() == Outcome::Done && !is_mounted(&volume), "{reply:?}");
    let path = volume.display();
    assert_eq!(beside("calls"), format!("1 init \n3 mount {path}\n2 unmount {path}\n"));
}

/// Upstream only cleans the root directory's path, and drivers whose work a container does know no other one.
#[tokio::test]
async fn a_driver_is_told_the_root_directory_as_it_was_written() {
    let Some(world) = World::named("linked") else { return };
    let program = world.driver("v/d", TMPFS);
    let volume = world.volume();
    assert!(world.ask(&question(Act::Mount, "v/d")).await.outcome() == Outcome::Done && is_mounted(&volume));
    assert!(world.ask(&question(Act::Unmount, "v/d")).await.outcome() == Outcome::Done && !is_mounted(&volume));
    let calls = std::fs::read_to_string(program.with_file_name("calls")).unwrap();
    let told = std::fs::canonicalize(world.folder.path()).unwrap().join("linked/pods/p/volumes/v~d/data");
    let told = told.display();
    assert!(calls.ends_with(&format!("3 mount {told}\n2 unmount {told}\n")), "{calls}");
}

const ATTACHES: &str = r#"echo "$@" >> "${0%/*}/calls"
case "$1" in
init) echo '{"status": "Success"}' ;;
waitforattach) echo '{"status": "Success", "device": "/dev/of-the-machine"}' ;;
mountdevice) mount -t tmpfs flex "$2" && echo '{"status": "Success"}' ;;
unmountdevice) umount "$2" && echo '{"status": "Success"}' ;;
expandfs) echo '{"status": "Success", "volumeNewSize": 20}' ;;
*) echo '{"status": "Not supported"}'; exit 1 ;;
esac"#;

#[tokio::test]
async fn a_driver_that_attaches_mounts_once_a_node_and_is_told_of_no_pod() {
    let Some(world) = World::start() else { return };
    let program = world.driver("v/d", ATTACHES);
    let root = std::fs::canonicalize(world.folder.path()).unwrap().join("root");
    let once = root.join("plugins/kubernetes.io/flexvolume/v/d/mounts/data");
    let asked = async |act| world.ask(&question(act, "v/d")).await;
    assert!(asked(Act::Init).await.capabilities.unwrap().attach);
    let reply = world.ask(&question(Act::WaitForAttach, "v/d")).await;
    assert_eq!((reply.outcome(), reply.device.as_str()), (Outcome::Done, "/dev/of-the-machine"));
    for not in [Act::GetVolumeName, Act::Mount, Act::Unmount] {
        assert_eq!(asked(not).await.outcome(), Outcome::NotSupported, "{not:?}");
    }
    world.fails(&question(Act::MountDevice, "v/d"), "is no volume's folder").await;
    std::fs::create_dir_all(&once).unwrap();
    assert!(asked(Act::MountDevice).await.outcome() == Outcome::Done && is_mounted(&once));
    assert_eq!(asked(Act::ExpandFs).await.outcome(), Outcome::Done);
    assert!(asked(Act::UnmountDevice).await.outcome() == Outcome::Done && !is_mounted(&once));
    let calls = std::fs::read_to_string(program.with_file_name("calls")).unwrap();
    let own = r#"{"kubernetes.io/fsType":"","kubernetes.io/pvOrVolumeName":"data","kubernetes.io/readwrite":"rw"}"#;
    let (pods, once) = (world.volume().display().to_string(), once.display());
    let expected = [
        "init".to_owned(),
        format!("waitforattach /dev/of-attach {own}"),
        format!("getvolumename {own}"),
        format!("unmount {pods}"),
        format!("mountdevice {once} /dev/of-attach {own}"),
        format!("expandfs {own} /dev/of-attach {pods} 20 10"),
        format!("unmountdevice {once}"),
    ];
    let others: Vec<&str> = calls.lines().filter(|line| !line.starts_with("mount ")).collect();
    assert_eq!(others, expected);
}

#[tokio::test]
async fn what_a_driver_refuses_or_gets_wrong_is_told_without_a_secret() {
    let Some(world) = World::start() else { return };
    world.driver("v/d", r#"echo '{"status": "Failure", "message": "no such share"}'; exit 1"#);
    world.fails(&question(Act::Mount, "v/d"), "mount command failed, status: Failure, reason: no such share").await;
    world.driver("v/d", r#"echo '{"status": "Not supported"}'; exit 1"#);
    assert_eq!(world.ask(&question(Act::Unmount, "v/d")).await.outcome(), Outcome::NotSupported);
    world.driver("v/d", r#"echo "mounting $3""#);
    let reply = world.ask(&question(Act::Mount, "v/d")).await;
    assert!(reply.message.contains("is no answer in JSON") && !reply.message.contains("U0VD"), "{reply:?}");
    world.driver("v/d", "head -c 1048576 /dev/zero");
    world.fails(&question(Act::Mount, "v/d"), "more than an answer has room for").await;
    world.driver("v/d", "kill -9 $$");
    world.fails(&question(Act::Mount, "v/d"), "ended by a signal").await;
    // A server that it leaves running, with the driver's output open, is not waited for.
    world.driver("v/d", r#"sleep 300 & echo $! > "${0%/*}/server"; echo '{"status": "Success"}'"#);
    assert_eq!(world.ask(&question(Act::Mount, "v/d")).await.outcome(), Outcome::Done);
    let id = std::fs::read_to_string(world.program("v/d").with_file_name("server")).unwrap().trim().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(id).unwrap(), rustix::process::Signal::KILL).unwrap();
}

#[tokio::test]
async fn a_driver_that_hangs_holds_up_no_other() {
    let Some(world) = World::start() else { return };
    world.driver("v/d", "exec sleep 300");
    world.driver("v/e", r#"echo '{"status": "Success"}'"#);
    std::fs::create_dir_all(world.folder.path().join("root/pods/p/volumes/v~e/data")).unwrap();
    let hangs = question(Act::Mount, "v/d");
    let hanging = world.asker.ask(&hangs).await.unwrap();
    assert_eq!(world.ask(&question(Act::Mount, "v/e")).await.outcome(), Outcome::Done);
    let mut more = Vec::new();
    for _ in 0..31 {
        more.push(world.asker.ask(&hangs).await.unwrap());
    }
    world.fails(&hangs, "too many calls of FlexVolume driver v/d have not ended").await;
    assert_eq!(world.ask(&question(Act::Mount, "v/e")).await.outcome(), Outcome::Done);
    drop((hanging, more));
}

#[tokio::test]
async fn only_roots_programs_and_volumes_folders_are_touched() {
    let Some(world) = World::start() else { return };
    world.fails(&question(Act::Init, "v/d"), "there is no FlexVolume driver v/d").await;
    let program = world.driver("v/d", r#"echo '{"status": "Success"}'"#);
    assert_eq!(world.ask(&question(Act::Init, "v/d")).await.outcome(), Outcome::Done, "it is noticed at once");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o757)).unwrap();
    world.fails(&question(Act::Init, "v/d"), "may be written by others than root").await;
    std::fs::remove_file(&program).unwrap();
    symlink("/bin/true", &program).unwrap();
    world.fails(&question(Act::Init, "v/d"), "it is a link").await;
    std::fs::remove_file(&program).unwrap();
    world.driver("v/d", r#"echo '{"status": "Success"}'"#);
    for (bad, says) in [
        (FlexRequest { act: 0, ..question(Act::Init, "v/d") }, "says nothing"),
        (question(Act::Init, "../d"), "is not valid"),
        (question(Act::Init, "kubernetes.io/nfs"), "is not valid"),
        (FlexRequest { pod_uid: "../x".into(), ..question(Act::Mount, "v/d") }, "is not valid"),
        (FlexRequest { volume: "../x".into(), ..question(Act::Unmount, "v/d") }, "is not valid"),
        (FlexRequest { pod_uid: "other".into(), ..question(Act::Mount, "v/d") }, "is no volume's folder"),
        (FlexRequest { pod_uid: "other".into(), ..question(Act::Unmount, "v/d") }, "is no volume's folder"),
        (FlexRequest { options: None, ..question(Act::Mount, "v/d") }, "says nothing of the volume"),
        (FlexRequest { options: None, ..question(Act::WaitForAttach, "v/d") }, "says nothing of the volume"),
        (FlexRequest { volume: "../x".into(), ..question(Act::MountDevice, "v/d") }, "is not valid"),
        (question(Act::UnmountDevice, "v/d"), "is no volume's folder"),
        (FlexRequest { device: "-o".into(), ..question(Act::WaitForAttach, "v/d") }, "begins with '-'"),
        (FlexRequest { device: "x\0".into(), ..question(Act::WaitForAttach, "v/d") }, "or NUL"),
        (FlexRequest { device: "x".repeat(4097), ..question(Act::ExpandFs, "v/d") }, "more than 4096 bytes"),
    ] {
        world.fails(&bad, says).await;
    }
    let volume = world.volume();
    std::fs::remove_dir(&volume).unwrap();
    symlink("/etc", &volume).unwrap();
    world.fails(&question(Act::Mount, "v/d"), "is no volume's folder").await;
}
