//! The real process with the machine's real programs, on loop devices.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use bulkhead_ipc::common::disk_reply::Outcome;
use bulkhead_ipc::common::disk_request::Act;
use bulkhead_ipc::common::{DiskFileSystem, DiskReply, DiskRequest, FcDisk};
use bulkhead_ipc::helper::Asker;
use bulkhead_sys::process::PrivilegeReport;
use bulkhead_sys::scm;
use bulkhead_sys::spawn::Spec;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use kubelet_disks::programs::PARTITIONS;

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A loop device for as long as it lives.
struct Loop {
    file: PathBuf,
    device: String,
}

impl Loop {
    fn new(folder: &Path, name: &str, bytes: u64) -> Self {
        let file = folder.join(name);
        std::fs::File::create(&file).unwrap().set_len(bytes).unwrap();
        let device = run("losetup", &["--find", "--show", &file.display().to_string()]);
        Loop { file, device }
    }

    fn question(&self, act: Act) -> DiskRequest {
        let is = std::fs::metadata(&self.device).unwrap().rdev();
        DiskRequest {
            act: act.into(),
            device: self.device.clone(),
            major: rustix::fs::major(is),
            minor: rustix::fs::minor(is),
            file_system: DiskFileSystem::Ext4.into(),
            read_only: false,
            ..DiskRequest::default()
        }
    }

    fn resize(&self, bytes: u64) {
        std::fs::File::options().write(true).open(&self.file).unwrap().set_len(bytes).unwrap();
        run("losetup", &["--set-capacity", &self.device]);
    }

    fn blocks(&self) -> u64 {
        let shown = run("dumpe2fs", &["-h", &self.device]);
        let value = |name: &str| -> u64 {
            let line = shown.lines().find(|line| line.starts_with(name)).unwrap();
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        value("Block count:") * value("Block size:")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.device]).status();
    }
}

struct Helper {
    asker: Asker,
    process: Child,
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Helper {
    /// With what its row says and no more, as its launcher starts it.
    fn start() -> Self {
        let (theirs, ours) = scm::pair().unwrap();
        let mut spec = Spec::new("/usr/bin/setpriv");
        let none = ["--inh-caps=-all", "--bounding-set=-all", "--ambient-caps=-all", "--clear-groups", "--reuid=0"];
        spec.args = none.map(Into::into).to_vec();
        spec.args.push(env!("CARGO_BIN_EXE_kubelet-disks").into());
        spec.fds = vec![("questions".into(), theirs)];
        let (mut command, slots) = spec.prepare().unwrap().into_parts();
        let process = command.spawn().unwrap();
        drop(slots);
        Helper { asker: Asker::new(Some(ours)).unwrap(), process }
    }

    async fn ask(&self, question: &DiskRequest) -> (Outcome, String, String) {
        let reply: DiskReply = self.asker.ask_for(question, PATIENCE).await.unwrap();
        (reply.outcome(), reply.found, reply.message)
    }
}

fn can_run() -> bool {
    let programs = ["blkid", "fsck", "mkfs.ext4", "resize2fs", "e2fsck", "losetup", "setpriv"];
    let is_there = |name: &&str| ["/usr/sbin", "/sbin", "/usr/bin"].iter().any(|at| Path::new(at).join(name).exists());
    let missing = programs.into_iter().find(|name| !is_there(name)).map(Lack::Program);
    let lack = if rustix::process::geteuid().is_root() { missing } else { Some(Lack::Root) };
    let Some(lack) = lack else { return true };
    skip_this_test(lack).unwrap();
    false
}

#[tokio::test]
async fn a_device_is_formatted_once_checked_and_let_grow() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = Loop::new(folder.path(), "disk", 32 * MIB);
    let helper = Helper::start();
    let read_only = DiskRequest { read_only: true, ..disk.question(Act::Prepare) };
    let (outcome, _, message) = helper.ask(&read_only).await;
    assert_eq!(outcome, Outcome::Failed);
    assert!(message.starts_with("cannot mount unformatted disk /dev/loop"), "{message}");

    assert_eq!(helper.ask(&disk.question(Act::Prepare)).await, (Outcome::Formatted, String::new(), String::new()));
    let uuid = run("blkid", &["-p", "-s", "UUID", "-o", "value", &disk.device]);
    for question in [disk.question(Act::Prepare), read_only] {
        assert_eq!(helper.ask(&question).await, (Outcome::Ready, "ext4".into(), String::new()));
    }
    assert_eq!(run("blkid", &["-p", "-s", "UUID", "-o", "value", &disk.device]), uuid, "not formatted again");

    let process = PrivilegeReport::of(helper.process.id()).unwrap();
    assert!(process.effective.is_empty() && process.permitted.is_empty() && process.bounding.is_empty());
    assert!(process.no_new_privs && process.seccomp_mode == 2 && process.uid == 0);

    disk.resize(64 * MIB);
    assert_eq!(disk.blocks(), 32 * MIB);
    assert_eq!(helper.ask(&disk.question(Act::PrepareAndGrow)).await.0, Outcome::Ready);
    assert_eq!(disk.blocks(), 64 * MIB);
    assert_eq!(helper.ask(&disk.question(Act::PrepareAndGrow)).await.0, Outcome::Ready, "it has its size");
}

#[tokio::test]
async fn what_holds_something_else_or_is_broken_or_another_is_left_alone() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = Loop::new(folder.path(), "disk", 16 * MIB);
    let helper = Helper::start();
    let question = disk.question(Act::Prepare);
    let nowhere = FcDisk { wwids: vec!["none-of-it".into()], ..FcDisk::default() };
    let detach = DiskRequest { act: Act::Detach.into(), fc: Some(nowhere.clone()), ..DiskRequest::default() };
    assert_eq!(helper.ask(&detach).await.0, Outcome::Detached, "it is not there");
    for (bad, says) in [
        (DiskRequest { device: disk.file.display().to_string(), ..question.clone() }, "has to be absolute, below /dev"),
        (DiskRequest { device: "/dev/../etc/passwd".into(), ..question.clone() }, "below /dev"),
        (DiskRequest { device: "/dev/null".into(), ..question.clone() }, "/dev/null is no block device"),
        (DiskRequest { minor: question.minor + 1, ..question.clone() }, "any more"),
        (DiskRequest { act: 0, ..question.clone() }, "says nothing"),
        (DiskRequest { file_system: 0, ..question.clone() }, "no file system to format it with"),
        (DiskRequest { act: Act::Grow.into(), ..question.clone() }, "resize of format  is not supported"),
        (DiskRequest { act: Act::Detach.into(), minor: question.minor + 1, ..question.clone() }, "any more"),
        (DiskRequest { act: Act::Attach.into(), ..DiskRequest::default() }, "fc: no fc disk information found"),
        (
            DiskRequest { act: Act::Attach.into(), fc: Some(nowhere.clone()), ..DiskRequest::default() },
            "no fc disk found",
        ),
    ] {
        let (outcome, _, message) = helper.ask(&bad).await;
        assert!(outcome == Outcome::Failed && message.contains(says), "{message}");
    }
    assert_eq!(Command::new("blkid").args(["-p", &disk.device]).status().unwrap().code(), Some(2), "still empty");

    // A table of partitions: a disk in use.
    let device = std::fs::File::options().write(true).open(&disk.device).unwrap();
    device.write_all_at(&[0x55, 0xaa], 510).unwrap();
    device.write_all_at(&[0x80, 0, 2, 0, 0x83, 0, 3, 0, 1, 0, 0, 0, 16, 0, 0, 0], 446).unwrap();
    device.sync_all().unwrap();
    assert_eq!(
        helper.ask(&question).await,
        (Outcome::Ready, PARTITIONS.into(), String::new()),
        "for the mount to refuse"
    );
    device.write_all_at(&[0; 512], 0).unwrap();
    device.sync_all().unwrap();

    assert_eq!(helper.ask(&question).await.0, Outcome::Formatted);
    // What fsck does not repair by itself: the root folder's inode is gone.
    run("debugfs", &["-w", "-R", "clri <2>", &disk.device]);
    run("debugfs", &["-w", "-R", "ssv state 2", &disk.device]);
    let (outcome, found, message) = helper.ask(&question).await;
    assert_eq!((outcome, found.as_str()), (Outcome::Failed, "ext4"), "{message}");
    assert!(message.starts_with("'fsck' found errors on device /dev/loop"), "{message}");
}
