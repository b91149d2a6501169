//! Rotated logs: what is renamed, linked and removed, what is refused, and that no file is ever replaced.

use crate::world;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use bulkhead_ipc::volnetd::files_client::FilesClient;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::rotated_log::Pick;
use bulkhead_ipc::volnetd::*;
use tonic::Code;
use tonic::transport::Channel;
use world::*;

const STAMPS: [&str; 3] = ["20200101-000000", "20200101-000001", "20200101-000002"];

fn pod() -> Option<PodLogId> {
    Some(PodLogId { namespace: "ns".into(), name: "n".into(), uid: "p".into() })
}

struct Log {
    world: World,
    files: FilesClient<Channel>,
    folder: PathBuf,
}

impl Log {
    async fn start() -> Option<Self> {
        let world = world().await?;
        let mut files = FilesClient::new(world.channel(SYNCD).await);
        files.prepare_log_directory(PrepareLogDirectoryRequest { pod: pod(), container: "c".into() }).await.unwrap();
        let folder = world.dir.join("pod-logs/ns_n_p/c");
        Some(Log { world, files, folder })
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        path
    }

    /// Names and contents, sorted.
    fn all(&self) -> Vec<(String, String)> {
        let entries = std::fs::read_dir(&self.folder).unwrap().flatten();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let mut all: Vec<_> =
            entries.map(|entry| (entry.file_name().into_string().unwrap(), read(&entry.path()))).collect();
        all.sort();
        all
    }

    async fn rotate(&mut self) -> Result<String, tonic::Status> {
        let guard = self.world.guard(1);
        let request = RotateContainerLogRequest { pod: pod(), container: "c".into(), restart_count: 0, guard };
        Ok(self.files.rotate_container_log(request).await?.into_inner().stamp)
    }

    async fn restore(&mut self, stamp: &str) -> Result<bool, tonic::Status> {
        let guard = self.world.guard(1);
        let (pod, container) = (pod(), "c".into());
        let request = RestoreContainerLogRequest { pod, container, restart_count: 0, stamp: stamp.into(), guard };
        Ok(self.files.restore_container_log(request).await?.into_inner().restored)
    }

    async fn remove(&mut self, files: Vec<RotatedLogFile>) -> Result<(), tonic::Status> {
        let guard = self.world.guard(1);
        let request = RemoveRotatedLogsRequest { pod: pod(), container: "c".into(), restart_count: 0, files, guard };
        self.files.remove_rotated_logs(request).await.map(drop)
    }

    async fn open(&self, stamp: &str, pick: Pick) -> Result<String, Code> {
        let (pod, container, stamp, pick) = (pod(), "c".into(), stamp.into(), pick.into());
        let kind = Kind::RotatedLog(RotatedLog { pod, container, restart_count: 0, stamp, pick });
        let file = self.world.open(STATUSD, kind).await.map_err(|(code, _)| code)?;
        let mut text = String::new();
        File::from(file).read_to_string(&mut text).unwrap();
        Ok(text)
    }

    /// Of a plain one of 5 bytes.
    fn compressed(stamp: &str) -> CompressedLog {
        CompressedLog { pod: pod(), container: "c".into(), restart_count: 0, stamp: stamp.into(), plain_bytes: 5 }
    }

    async fn new_file(&self, stamp: &str) -> Result<File, Code> {
        let file = self.world.open(EVICTIOND, Kind::CompressedLog(Self::compressed(stamp))).await;
        file.map(File::from).map_err(|(code, _)| code)
    }

    async fn link(&self, stamp: &str, file: OwnedFd) -> Code {
        let link_compressed_log = Some(Self::compressed(stamp));
        let request = OpenRequest { id: 1, link_compressed_log, ..Default::default() };
        Code::from_i32(self.world.broker(EVICTIOND, request, Some(file)).await.0.cast_signed())
    }
}

/// A file without a name, but of another file system.
fn elsewhere() -> OwnedFd {
    bulkhead_sys::memfd::sealed("test", b"elsewhere").unwrap()
}

fn code<T: std::fmt::Debug>(result: Result<T, tonic::Status>) -> Code {
    result.map_or_else(|status| status.code(), |_| Code::Ok)
}

fn names(all: &[(String, String)]) -> Vec<&str> {
    all.iter().map(|(name, _)| name.as_str()).collect()
}

#[tokio::test(flavor = "current_thread")]
async fn a_log_is_renamed_and_renamed_back() {
    let Some(mut log) = Log::start().await else { return };
    assert_eq!(code(log.rotate().await), Code::NotFound);
    log.write("0.log", "one");
    log.write("1.log", "another instance");
    let first = log.rotate().await.unwrap();
    assert!(first.starts_with("20") && first.len() == 15, "{first}");
    assert!(log.restore(&first).await.unwrap());
    assert_eq!(log.all(), [("0.log".into(), "one".into()), ("1.log".into(), "another instance".into())]);

    // Twice within a second, and after the clock was set back by many years.
    let first = log.rotate().await.unwrap();
    log.write("0.log", "two");
    let second = log.rotate().await.unwrap();
    assert!(second > first, "{second} {first}");
    log.write("0.log.29991231-235959.gz", "of the future");
    log.write("0.log", "three");
    assert_eq!(log.rotate().await.unwrap(), "30000101-000000");
    log.write("0.log.99991231-235959", "the last");
    log.write("0.log", "four");
    assert_eq!(code(log.rotate().await), Code::Internal, "there is no later stamp");
    std::fs::remove_file(log.folder.join("0.log.99991231-235959")).unwrap();

    // A current one that is there is not replaced, and only the newest gets its name back.
    assert!(!log.restore("30000101-000000").await.unwrap());
    std::fs::remove_file(log.folder.join("0.log")).unwrap();
    assert_eq!(code(log.restore(&first).await), Code::FailedPrecondition);
    assert_eq!(code(log.restore("30000101-000001").await), Code::NotFound);
    log.write("0.log.30000101-000000.gz", "three");
    assert_eq!(code(log.restore("30000101-000000").await), Code::FailedPrecondition, "it would be there twice");
    std::fs::remove_file(log.folder.join("0.log.30000101-000000.gz")).unwrap();
    assert!(log.restore("30000101-000000").await.unwrap());
    let texts: Vec<String> = log.all().into_iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["three", "one", "two", "of the future", "another instance"]);
}

#[tokio::test(flavor = "current_thread")]
async fn the_link_of_a_log_that_is_being_rotated_stays() {
    let Some(mut log) = Log::start().await else { return };
    let (container, container_id) = ("c".into(), "id".into());
    let link = LinkContainerLogRequest { pod: pod(), container, restart_count: 0, container_id };
    let path = log.files.link_container_log(link).await.unwrap().into_inner().link;
    let prune = |world: &World| PruneLogsRequest { known_pod_uids: vec!["p".into()], guard: world.guard(1) };
    let is_there = || std::fs::symlink_metadata(&path).is_ok();
    log.write("0.log", "one");
    log.rotate().await.unwrap();
    // The runtime has not opened it anew yet.
    assert_eq!(log.files.prune_logs(prune(&log.world)).await.unwrap().into_inner().removed, [""; 0]);
    assert!(is_there());
    log.write("0.log", "two");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");

    // With the last of the container's files the link goes as well, whoever removes them.
    std::fs::remove_dir_all(&log.folder).unwrap();
    let removed = log.files.prune_logs(prune(&log.world)).await.unwrap().into_inner().removed;
    assert_eq!(removed, [path.as_str()]);
    assert!(!is_there());
}

#[tokio::test(flavor = "current_thread")]
async fn links_and_strange_names_are_no_logs() {
    let Some(mut log) = Log::start().await else { return };
    let outside = log.world.dir.join("outside");
    std::fs::write(&outside, "secret").unwrap();
    symlink(&outside, log.folder.join("0.log")).unwrap();
    symlink(&outside, log.folder.join(format!("0.log.{}", STAMPS[0]))).unwrap();
    assert_eq!(code(log.rotate().await), Code::Internal);
    assert_eq!(code(log.restore(STAMPS[0]).await), Code::Internal);
    for pick in [Pick::Plain, Pick::Any, Pick::Next] {
        let stamp = if pick == Pick::Next { "20190101-000000" } else { STAMPS[0] };
        let answer = log.open(stamp, pick).await;
        assert!(matches!(answer, Err(Code::Internal)), "{pick:?} {answer:?}");
    }
    assert_eq!(log.new_file(STAMPS[0]).await.unwrap_err(), Code::Internal);
    for bad in
        ["", ".", "../../outside", "20200101-000000/..", "20200101-0000", "20209901-000000", "20200101-000000.gz"]
    {
        assert_eq!(code(log.restore(bad).await), Code::InvalidArgument, "{bad}");
        let file = |form| RotatedLogFile { stamp: bad.into(), form, ..Default::default() };
        assert_eq!(code(log.remove(vec![file(1)]).await), Code::InvalidArgument, "{bad}");
        assert_eq!(log.open(bad, Pick::Next).await, Err(Code::InvalidArgument), "{bad}");
        assert_eq!(log.new_file(bad).await.unwrap_err(), Code::InvalidArgument, "{bad}");
        assert_eq!(log.link(bad, tempfile::tempfile().unwrap().into()).await, Code::InvalidArgument, "{bad}");
    }
    let no_form = RotatedLogFile { stamp: STAMPS[0].into(), ..Default::default() };
    assert_eq!(code(log.remove(vec![no_form]).await), Code::InvalidArgument);
    assert_eq!(log.open(STAMPS[0], Pick::Unspecified).await, Err(Code::InvalidArgument));
    assert_eq!(std::fs::read_to_string(outside).unwrap(), "secret");
    // A link in place of the folder.
    std::fs::rename(&log.folder, log.folder.with_extension("moved")).unwrap();
    let elsewhere = log.world.dir.join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("0.log"), "not ours").unwrap();
    symlink(&elsewhere, &log.folder).unwrap();
    assert_ne!(code(log.rotate().await), Code::Ok);
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 1);
    assert!(elsewhere.join("0.log").exists());
}

#[tokio::test(flavor = "current_thread")]
async fn no_only_copy_is_taken_for_a_second_one() {
    let Some(mut log) = Log::start().await else { return };
    let plain = format!("0.log.{}", STAMPS[0]);
    let file =
        |form: LogForm, is_double: bool| RotatedLogFile { stamp: STAMPS[0].into(), form: form.into(), is_double };
    log.write(&plain, "12345");
    assert_eq!(code(log.remove(vec![file(LogForm::Plain, true)]).await), Code::FailedPrecondition);
    log.write(&format!("{plain}.gz"), "gz");
    log.write(&format!("{plain}.tmp"), "tmp");
    log.remove(vec![file(LogForm::Plain, true), file(LogForm::Unfinished, false)]).await.unwrap();
    log.remove(vec![file(LogForm::Plain, true)]).await.unwrap();
    assert_eq!(code(log.remove(vec![file(LogForm::Compressed, true)]).await), Code::FailedPrecondition);
    assert_eq!(names(&log.all()), [format!("{plain}.gz")]);
    log.write("0.log", "current");
    log.remove(vec![file(LogForm::Compressed, false)]).await.unwrap();
    assert_eq!(names(&log.all()), ["0.log"], "the current one has no stamp that could be named");
    let many = vec![file(LogForm::Plain, false); 1001];
    assert_eq!(code(log.remove(many).await), Code::InvalidArgument);
}

#[tokio::test(flavor = "current_thread")]
async fn rotated_logs_are_opened_by_their_stamps() {
    let Some(log) = Log::start().await else { return };
    let name = |stamp: usize, suffix: &str| format!("0.log.{}{suffix}", STAMPS[stamp]);
    log.write(&name(0, ".gz"), "oldest");
    log.write(&name(1, ""), "middle");
    log.write(&name(1, ".gz"), "not whole, perhaps");
    log.write(&name(2, ".tmp"), "unfinished");
    log.write(&format!("1.log.{}", STAMPS[2]), "another instance");
    for (stamp, pick, expected) in [
        (STAMPS[0], Pick::Plain, Err(Code::NotFound)),
        (STAMPS[0], Pick::Any, Ok("oldest")),
        (STAMPS[0], Pick::Next, Ok("middle")),
        (STAMPS[1], Pick::Plain, Ok("middle")),
        (STAMPS[1], Pick::Any, Ok("middle")),
        (STAMPS[1], Pick::Next, Err(Code::NotFound)),
        (STAMPS[2], Pick::Any, Err(Code::NotFound)),
        ("20190101-000000", Pick::Next, Ok("oldest")),
    ] {
        assert_eq!(log.open(stamp, pick).await, expected.map(str::to_owned), "{stamp} {pick:?}");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn only_a_file_that_was_made_for_it_becomes_a_compressed_log() {
    let Some(mut log) = Log::start().await else { return };
    assert_eq!(log.new_file(STAMPS[0]).await.unwrap_err(), Code::NotFound, "there is nothing to compress");
    let plain = log.write(&format!("0.log.{}", STAMPS[0]), "plain");
    std::os::unix::fs::chown(&plain, Some(7), Some(8)).unwrap();
    let compressed = log.folder.join(format!("0.log.{}.gz", STAMPS[0]));

    let empty = log.new_file(STAMPS[0]).await.unwrap();
    assert_eq!(log.link(STAMPS[0], empty.into()).await, Code::InvalidArgument);
    // What has a name, had one, is of another file system, or is no file.
    let named = File::create(log.world.dir.join("named")).unwrap();
    (&named).write_all(b"x").unwrap();
    assert_eq!(log.link(STAMPS[0], named.try_clone().unwrap().into()).await, Code::InvalidArgument);
    std::fs::remove_file(log.world.dir.join("named")).unwrap();
    assert_eq!(log.link(STAMPS[0], named.into()).await, Code::InvalidArgument);
    assert_eq!(log.link(STAMPS[0], elsewhere()).await, Code::InvalidArgument);
    assert_eq!(log.link(STAMPS[0], File::open(&log.folder).unwrap().into()).await, Code::InvalidArgument);
    assert!(!compressed.exists());
    let link_compressed_log = Some(Log::compressed(STAMPS[0]));
    let bare = OpenRequest { id: 1, link_compressed_log: link_compressed_log.clone(), ..Default::default() };
    assert_eq!(log.world.broker(EVICTIOND, bare, None).await.0, Code::InvalidArgument as u32);
    let put_state = Some(PutState { kind: StateKind::CpuManager.into() });
    let both = OpenRequest { id: 1, link_compressed_log, put_state, ..Default::default() };
    assert_eq!(log.world.broker(EVICTIOND, both.clone(), Some(elsewhere())).await.0, Code::InvalidArgument as u32);
    for other in [SYNCD, STATUSD, OPERATOR, STRANGER] {
        let request = OpenRequest { put_state: None, ..both.clone() };
        let refused = log.world.broker(other, request, Some(elsewhere())).await.0;
        assert_eq!(refused, Code::PermissionDenied as u32, "{other}");
    }

    let mut file = log.new_file(STAMPS[0]).await.unwrap();
    file.write_all(b"compressed").unwrap();
    assert_eq!(log.all().len(), 1, "it has no name yet");
    assert!(file.read(&mut [0]).is_err(), "and is to be written alone");
    let second = log.new_file(STAMPS[0]).await.unwrap();
    (&second).write_all(b"another").unwrap();
    std::fs::write(&plain, "it has grown").unwrap();
    assert_eq!(log.link(STAMPS[0], file.try_clone().unwrap().into()).await, Code::FailedPrecondition);
    std::fs::write(&plain, "plain").unwrap();
    assert_eq!(log.link(STAMPS[0], file.into()).await, Code::Ok);
    let stat = std::fs::metadata(&compressed).unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o7777), (7, 8, 0o640), "as the plain one");
    assert_eq!(std::fs::read_to_string(&compressed).unwrap(), "compressed");
    assert_eq!(log.link(STAMPS[0], second.into()).await, Code::AlreadyExists, "nothing is replaced");
    assert_eq!(log.new_file(STAMPS[0]).await.unwrap_err(), Code::AlreadyExists);
    assert_eq!(log.all().len(), 1, "it took the plain one's place");

    // All of it goes with the container's log.
    log.write("0.log", "current");
    log.write("1.log", "the next instance's");
    let guard = log.world.guard(1);
    let (container, container_id) = ("c".into(), "abc".into());
    let request = RemoveContainerLogRequest { pod: pod(), container, restart_count: 0, container_id, guard };
    log.files.remove_container_log(request).await.unwrap();
    assert_eq!(names(&log.all()), ["1.log"]);
}
