//! One question, one device: blkid, then mkfs or fsck, then resize2fs; or a disk that is attached or detached.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_helper::{Ended, Program};
use bulkhead_ipc::common::disk_reply::Outcome;
use bulkhead_ipc::common::disk_request::Act;
use bulkhead_ipc::common::{DiskReply, DiskRequest, FcDisk, IscsiDisk};
use parking_lot::Mutex;

use crate::device;
use crate::fc;
use crate::iscsi;
use crate::programs::{self, Checked};

/// A look reads some sectors.
const LOOK: Duration = Duration::from_secs(60);
/// Upstream sets no limit. A large disk is formatted in minutes, and checked in as much as an hour.
const WORK: Duration = Duration::from_secs(2 * 60 * 60);

/// Devices that are worked on: whoever asks again while a mkfs still runs waits for it.
#[derive(Debug, Clone, Default)]
pub struct Devices(Arc<Mutex<HashMap<Key, Lock>>>);

/// A device by its numbers, or a target, whose sessions its disks share.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Device(u32, u32),
    Target(String),
}

type Lock = Arc<tokio::sync::Mutex<()>>;

impl Devices {
    fn of(&self, question: &DiskRequest) -> Lock {
        let mut all = self.0.lock();
        all.retain(|_, lock| Arc::strong_count(lock) > 1);
        let key = match &question.iscsi {
            Some(disk) => Key::Target(disk.iqn.clone()),
            None => Key::Device(question.major, question.minor),
        };
        all.entry(key).or_default().clone()
    }
}

/// Answers in upstream's words.
pub async fn answer(devices: &Devices, question: &DiskRequest) -> DiskReply {
    let lock = devices.of(question);
    let _one_at_a_time = lock.lock().await;
    let mut reply = DiskReply::default();
    let done = match question.act() {
        Act::Attach => attach(question, &mut reply).await,
        Act::Detach => detach(question).await,
        Act::Unspecified | Act::Prepare | Act::PrepareAndGrow | Act::Grow => done(question, &mut reply.found).await,
    };
    match done {
        Ok(outcome) => reply.set_outcome(outcome),
        Err(message) => {
            reply.set_outcome(Outcome::Failed);
            reply.message = message;
        }
    }
    reply
}

/// What the kernel may take its time for holds up nobody else's question.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(error.to_string()))
}

async fn attach(question: &DiskRequest, reply: &mut DiskReply) -> Result<Outcome, String> {
    let path = match &question.iscsi {
        Some(disk) => iscsi::attach(Path::new("/"), disk).await?,
        None => {
            let disk = named(question)?;
            blocking(move || fc::attach(Path::new("/"), &disk)).await?
        }
    };
    let is = std::fs::symlink_metadata(&path).map_err(|_| format!("device {} does not exist", path.display()))?;
    (reply.major, reply.minor) = (rustix::fs::major(is.rdev()), rustix::fs::minor(is.rdev()));
    reply.device = path.to_string_lossy().into_owned();
    Ok(Outcome::Attached)
}

/// Its devices, and where nothing else of the target is in use its sessions.
async fn detach_from_target(question: &DiskRequest, disk: &IscsiDisk) -> Result<Outcome, String> {
    let (of_disk, is_there) = (disk.clone(), !question.device.is_empty());
    if is_there {
        device::check(question).map_err(|error| error.to_string())?;
    }
    blocking(move || {
        for path in iscsi::paths(Path::new("/"), &of_disk) {
            fc::detach(Path::new("/"), &path)?;
        }
        Ok(())
    })
    .await?;
    if question.log_out {
        iscsi::log_out(Path::new("/"), disk).await?;
    }
    Ok(Outcome::Detached)
}

async fn detach(question: &DiskRequest) -> Result<Outcome, String> {
    if let Some(disk) = &question.iscsi {
        return detach_from_target(question, disk).await;
    }
    if question.device.is_empty() {
        let disk = named(question)?;
        blocking(move || fc::detach_named(Path::new("/"), &disk)).await?;
        return Ok(Outcome::Detached);
    }
    let device = device::check(question).map_err(|error| error.to_string())?;
    // The kernel's own name is what /sys has.
    let name = device.strip_prefix("/dev/").unwrap_or_default().replace('/', "!");
    blocking(move || fc::detach(Path::new("/"), &name)).await?;
    Ok(Outcome::Detached)
}

fn named(question: &DiskRequest) -> Result<FcDisk, String> {
    question.fc.clone().ok_or_else(|| "fc: no fc disk information found".to_owned())
}

async fn done(question: &DiskRequest, found: &mut String) -> Result<Outcome, String> {
    let device = device::check(question).map_err(|error| error.to_string())?;
    let device = device.as_str();
    let looked = run(programs::BLKID, &programs::look(device), LOOK).await;
    let looked = looked.map_err(|error| format!("failed to get disk format of disk {device}: {error}"))?;
    let said = programs::found(&looked);
    *found = said.map_err(|why| format!("failed to get disk format of disk {device}: {why}"))?;
    match question.act() {
        Act::Unspecified | Act::Attach | Act::Detach => {
            Err("the question says nothing of what is to be done".to_owned())
        }
        Act::Grow => grow(device, found).await.map(|()| Outcome::Ready),
        Act::Prepare | Act::PrepareAndGrow if found.is_empty() => format(question, device).await,
        Act::Prepare => check(question, device).await.map(|()| Outcome::Ready),
        Act::PrepareAndGrow => {
            check(question, device).await?;
            if !question.read_only && programs::is_ext(found) {
                let checked = run(programs::E2FSCK, &programs::check_whole(device), WORK).await;
                let checked = checked.map_err(|error| format!("e2fsck of {device}: {error}"))?;
                if programs::checked(&checked) == Checked::Broken {
                    return Err(broken(device, &checked));
                }
                grow(device, found).await?;
            }
            Ok(Outcome::Ready)
        }
    }
}

async fn format(question: &DiskRequest, device: &str) -> Result<Outcome, String> {
    if question.read_only {
        return Err(format!("cannot mount unformatted disk {device} as we are manipulating it in read-only mode"));
    }
    let file_system = question.file_system();
    let name = programs::name(file_system);
    let Some((program, arguments)) = programs::format(file_system, device) else {
        return Err(format!("disk {device} is empty, and there is no file system to format it with"));
    };
    tracing::info!(
        device,
        options = arguments.join(" "),
        "Disk appears to be unformatted, attempting to format as type {name}"
    );
    let failed = |why: String| format!("format of disk {device:?} failed: type:({name:?}) {why}");
    let ended = run(program, &arguments, WORK).await.map_err(|error| failed(format!("errcode:({error})")))?;
    if ended.code != Some(0) {
        return Err(failed(format!("errcode:({}) output:({})", code(&ended), ended.output)));
    }
    tracing::info!(device, "Disk successfully formatted (mkfs) as type {name}");
    Ok(Outcome::Formatted)
}

/// What upstream passes over is passed over: the mount that follows says whether it can be used.
async fn check(question: &DiskRequest, device: &str) -> Result<(), String> {
    if question.read_only {
        return Ok(());
    }
    let ended = match run(programs::FSCK, &programs::check(device), WORK).await {
        Ok(ended) => ended,
        Err(error) => {
            tracing::warn!(device, %error, "fsck cannot be run; continuing mount without running 'fsck'");
            return Ok(());
        }
    };
    match programs::checked(&ended) {
        Checked::Clean => {}
        Checked::Corrected => tracing::info!(device, "Device has errors which were corrected by fsck"),
        Checked::Unchecked => tracing::info!(device, output = ended.output, "`fsck` error"),
        Checked::Broken => return Err(broken(device, &ended)),
    }
    Ok(())
}

fn broken(device: &str, ended: &Ended) -> String {
    format!("'fsck' found errors on device {device} but could not correct them: {}", ended.output)
}

async fn grow(device: &str, found: &str) -> Result<(), String> {
    if !programs::is_ext(found) {
        return Err(format!("resize of format {found} is not supported for device {device}"));
    }
    let failed = |why: String| format!("resize of device {device} failed: {why}. resize2fs output: ");
    let ended = run(programs::RESIZE2FS, &programs::grow(device), WORK).await;
    let ended = ended.map_err(|error| failed(error.to_string()))?;
    match ended.code {
        Some(0) => {
            tracing::info!(device, "Device resized successfully");
            Ok(())
        }
        _ => Err(format!("{}{}", failed(code(&ended)), ended.output)),
    }
}

fn code(ended: &Ended) -> String {
    ended.code.map_or("ended by a signal".to_owned(), |code| format!("exit status {code}"))
}

async fn run(program: Program, arguments: &[&str], deadline: Duration) -> io::Result<Ended> {
    program.run(arguments, deadline).await.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(error.kind(), format!("executable file {} not found", program.name)),
        _ => error,
    })
}
