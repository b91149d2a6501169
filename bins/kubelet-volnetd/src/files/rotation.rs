//! Rotated logs: `<n>.log.<stamp>`, and `.gz` once compressed (upstream `pkg/kubelet/logs/container_log_manager.go`). Who decides
//! is kubelet-evictiond, who asks is kubelet-syncd.
//!
//! No rename replaces a file, and a stamp is later than all that are there. What is compressed is written by kubelet-evictiond
//! into a file that has no name until it is whole, and the plain one goes once that has its name.

use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_sys::open::{self, FileKind};
use bulkhead_types::{LogForm, LogStamp, current_log_name, parse_rotated_log_name, rotated_log_name};
use jiff::tz::TimeZone;
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;

use super::FileError;
use super::logs::{self, logs_dir};
use crate::node::Node;
use crate::validate::{LogPlace, Pick, Removal};

/// Where the machine keeps its time zone.
const LOCAL_TIME: &str = "/etc/localtime";
/// Bytes; the largest zones have some KiB.
const MAX_ZONE: u64 = 1 << 20;
/// A stamp may be taken by the time that it is used; the next second is free.
const TRIES: usize = 16;
/// Of a log's file before its owner and mode are those of the plain one.
const NEW: u32 = 0o600;

/// The container's folder, open.
struct Folder {
    dir: OwnedFd,
    path: PathBuf,
    number: u32,
}

/// Gives the current log the name of a rotated one; answers its stamp.
pub fn rotate(node: &Node, place: &LogPlace) -> Result<LogStamp, FileError> {
    let folder = Folder::open(node, place)?;
    let current = current_log_name(place.number);
    folder.regular(&current)?;
    let newest = folder.rotated()?.into_iter().map(|(stamp, _)| stamp).max();
    let no_stamp = || FileError::NoStamp { path: folder.path.clone() };
    let mut stamp = later(now(), newest).ok_or_else(no_stamp)?;
    for _ in 0..TRIES {
        let name = rotated_log_name(place.number, stamp, LogForm::Plain);
        match folder.rename(&current, &name) {
            Ok(()) => return Ok(stamp),
            Err(Errno::EXIST) => stamp = stamp.next().ok_or_else(no_stamp)?,
            Err(errno) => return Err(folder.error("rename", &current)(errno)),
        }
    }
    Err(no_stamp())
}

/// Gives the newest rotated log its old name back. False: a current one is there.
pub fn restore(node: &Node, place: &LogPlace, stamp: LogStamp) -> Result<bool, FileError> {
    let folder = Folder::open(node, place)?;
    let rotated = rotated_log_name(place.number, stamp, LogForm::Plain);
    folder.regular(&rotated)?;
    // A second form of it would be a second copy, once this one has another name.
    let rotated_before =
        |(other, form): &(LogStamp, LogForm)| *other > stamp || (*other == stamp && *form != LogForm::Plain);
    if folder.rotated()?.iter().any(rotated_before) {
        return Err(FileError::NotNewest { path: folder.path.join(rotated) });
    }
    match folder.rename(&rotated, &current_log_name(place.number)) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(errno) => Err(folder.error("rename", &rotated)(errno)),
    }
}

/// Removes rotated logs, one after the other. To be called with the pod's lock: of a log with two forms, two who each remove
/// another one would leave none.
pub fn remove(node: &Node, place: &LogPlace, files: &[Removal]) -> Result<(), FileError> {
    let folder = Folder::open(node, place)?;
    for removal in files {
        let name = rotated_log_name(place.number, removal.stamp, removal.form);
        if folder.stat(&name)?.is_none() {
            continue;
        }
        let path = || folder.path.join(&name);
        if removal.is_double {
            let other = match removal.form {
                LogForm::Plain => LogForm::Compressed,
                LogForm::Compressed | LogForm::Unfinished => LogForm::Plain,
            };
            folder
                .stat(&rotated_log_name(place.number, removal.stamp, other))?
                .ok_or_else(|| FileError::OnlyForm { path: path() })?;
        }
        logs::unlink(&folder.dir, &folder.path, name.as_ref())?;
    }
    Ok(())
}

/// A rotated log, read-only.
pub fn open_rotated(node: &Node, place: &LogPlace, pick: Pick) -> Result<OwnedFd, FileError> {
    let folder = Folder::open(node, place)?;
    match pick {
        Pick::Plain(stamp) => folder.open_form(stamp, LogForm::Plain),
        Pick::Any(stamp) => folder.open_any(stamp),
        Pick::Next(stamp) => {
            for _ in 0..TRIES {
                let mut all = folder.rotated()?;
                all.retain(|(other, form)| *other > stamp && *form != LogForm::Unfinished);
                let Some(oldest) = all.into_iter().map(|(other, _)| other).min() else {
                    return Err(folder.error("find a later one than", stamp.as_str())(Errno::NOENT));
                };
                match folder.open_any(oldest) {
                    // It has just been removed, and others may be there: that is not the same as none.
                    Err(error) if error.is_not_found() => {}
                    other => return other,
                }
            }
            Err(folder.error("open the one after", stamp.as_str())(Errno::AGAIN))
        }
    }
}

/// A file without a name, to be written: what it becomes has owner and mode of the plain one.
pub fn new_compressed(node: &Node, place: &LogPlace, stamp: LogStamp) -> Result<OwnedFd, FileError> {
    let folder = Folder::open(node, place)?;
    let stat = folder.to_be_compressed(stamp)?;
    let error = |errno| folder.error("make a file in", "")(errno);
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&folder.dir, ".", flags, Mode::from_raw_mode(NEW)).map_err(error)?;
    rustix::fs::fchown(&file, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid))).map_err(error)?;
    rustix::fs::fchmod(&file, Mode::from_raw_mode(stat.st_mode & 0o777)).map_err(error)?;
    Ok(file)
}

/// Gives a file that [`new_compressed`] made its name, once it is on the disk, and removes the plain one, which still has to have
/// as many bytes as were compressed. Nothing else can be given a name: the kernel links no file that has lost its names, and none
/// of another file system. To be called with the pod's lock.
pub fn link_compressed(
    node: &Node,
    place: &LogPlace,
    stamp: LogStamp,
    plain_bytes: u64,
    file: &OwnedFd,
) -> Result<(), FileError> {
    let folder = Folder::open(node, place)?;
    let plain = rotated_log_name(place.number, stamp, LogForm::Plain);
    if u64::try_from(folder.to_be_compressed(stamp)?.st_size) != Ok(plain_bytes) {
        return Err(FileError::Grown { path: folder.path.join(plain), bytes: plain_bytes });
    }
    let name = rotated_log_name(place.number, stamp, LogForm::Compressed);
    let error = |doing| folder.error(doing, &name);
    let stat = rustix::fs::fstat(file).map_err(error("examine"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_nlink != 0 || stat.st_size == 0 {
        return Err(FileError::NotNew { path: folder.path.join(&name) });
    }
    rustix::fs::fsync(file).map_err(error("write"))?;
    let through = format!("/proc/self/fd/{}", file.as_raw_fd());
    match rustix::fs::linkat(rustix::fs::CWD, through, &folder.dir, &name, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Err(FileError::Exists { path: folder.path.join(&name) }),
        Err(Errno::NOENT | Errno::XDEV) => return Err(FileError::NotNew { path: folder.path.join(&name) }),
        Err(errno) => return Err(error("link")(errno)),
    }
    // At once: both of them are one file more than there may be. The two reach the disk in this order.
    logs::unlink(&folder.dir, &folder.path, plain.as_ref())
}

impl Folder {
    fn open(node: &Node, place: &LogPlace) -> Result<Self, FileError> {
        let relative = Path::new(&place.pod.dir_name()).join(place.container.as_str());
        let path = node.settings.paths.pod_logs_dir.join(&relative);
        let base = logs_dir(node)?;
        match open::dir_beneath(base.as_fd(), &relative) {
            Ok(dir) => Ok(Folder { dir, path, number: place.number }),
            Err(source) => Err(FileError::Open { doing: "open", path, source }),
        }
    }

    fn error(&self, doing: &'static str, name: &str) -> impl Fn(Errno) -> FileError + use<> {
        let path = self.path.join(name);
        move |errno| FileError::Io { doing, path: path.clone(), source: errno.into() }
    }

    /// Every rotated form of this log.
    fn rotated(&self) -> Result<Vec<(LogStamp, LogForm)>, FileError> {
        let names = logs::list(&self.dir, &self.path)?.into_iter();
        let parsed = names.filter_map(|entry| parse_rotated_log_name(entry.name.to_str()?));
        Ok(parsed.filter(|(number, ..)| *number == self.number).map(|(_, stamp, form)| (stamp, form)).collect())
    }

    /// Plain before compressed: while both are there the first is whole for certain.
    fn open_any(&self, stamp: LogStamp) -> Result<OwnedFd, FileError> {
        match self.open_form(stamp, LogForm::Plain) {
            Err(error) if error.is_not_found() => self.open_form(stamp, LogForm::Compressed),
            other => other,
        }
    }

    fn open_form(&self, stamp: LogStamp, form: LogForm) -> Result<OwnedFd, FileError> {
        let name = rotated_log_name(self.number, stamp, form);
        open::regular_beneath(self.dir.as_fd(), &name).map_err(|source| FileError::Open {
            doing: "open",
            path: self.path.join(&name),
            source,
        })
    }

    /// `None`: there is no such name.
    fn stat(&self, name: &str) -> Result<Option<Stat>, FileError> {
        open::lstat_at(self.dir.as_fd(), name).map_err(|source| FileError::Open {
            doing: "examine",
            path: self.path.join(name),
            source,
        })
    }

    /// A link, or whatever else a pod may have put there, is no log.
    fn regular(&self, name: &str) -> Result<Stat, FileError> {
        let stat = self.stat(name)?.ok_or_else(|| self.error("find", name)(Errno::NOENT))?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            Ok(stat)
        } else {
            Err(FileError::NoRegularFile { path: self.path.join(name) })
        }
    }

    /// The plain one's figures; it is there, and a compressed one is not.
    fn to_be_compressed(&self, stamp: LogStamp) -> Result<Stat, FileError> {
        let compressed = rotated_log_name(self.number, stamp, LogForm::Compressed);
        if self.stat(&compressed)?.is_some() {
            return Err(FileError::Exists { path: self.path.join(compressed) });
        }
        self.regular(&rotated_log_name(self.number, stamp, LogForm::Plain))
    }

    /// Replaces nothing.
    fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        match rustix::fs::renameat_with(&self.dir, from, &self.dir, to, RenameFlags::NOREPLACE) {
            // A file system that knows no flags (ZFS before 2.2): a second name, and the first one goes.
            Err(Errno::INVAL) => {
                rustix::fs::linkat(&self.dir, from, &self.dir, to, AtFlags::empty())?;
                rustix::fs::unlinkat(&self.dir, from, AtFlags::empty())
            }
            renamed => renamed,
        }
    }
}

/// The stamp of a log that is rotated now: the clock may have been set back, or summer may have ended.
fn later(now: Option<LogStamp>, newest: Option<LogStamp>) -> Option<LogStamp> {
    match newest {
        None => now,
        Some(newest) => newest.next().map(|next| now.map_or(next, |now| now.max(next))),
    }
}

/// Local time as upstream has it; UTC where the machine has no time zone.
fn now() -> Option<LogStamp> {
    stamp_at(jiff::Timestamp::now(), local_zone().unwrap_or(TimeZone::UTC))
}

fn local_zone() -> Option<TimeZone> {
    let file = open::operator(Path::new(LOCAL_TIME), FileKind::RegularFile).ok()?;
    let mut bytes = Vec::new();
    std::fs::File::from(file).take(MAX_ZONE).read_to_end(&mut bytes).ok()?;
    TimeZone::tzif("local", &bytes).ok()
}

fn stamp_at(at: jiff::Timestamp, zone: TimeZone) -> Option<LogStamp> {
    let local = at.to_zoned(zone);
    let two = |number: i8| u8::try_from(number).ok();
    LogStamp::new(
        u16::try_from(local.year()).ok()?,
        two(local.month())?,
        two(local.day())?,
        two(local.hour())?,
        two(local.minute())?,
        two(local.second())?,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stamp(text: &str) -> LogStamp {
        LogStamp::parse(text).unwrap()
    }

    #[test]
    fn stamps_never_go_back() {
        let now = stamp("20261025-023000");
        for (newest, expected) in [
            (None, "20261025-023000"),
            (Some("20261025-022959"), "20261025-023000"),
            (Some("20261025-023000"), "20261025-023001"),
            // Summer has just ended, or the clock was set back.
            (Some("20261025-025959"), "20261025-030000"),
            (Some("20270101-000000"), "20270101-000001"),
        ] {
            assert_eq!(later(Some(now), newest.map(stamp)), Some(stamp(expected)), "{newest:?}");
        }
        assert_eq!(later(Some(now), Some(stamp("99991231-235959"))), None);
        assert_eq!(later(None, Some(now)), Some(stamp("20261025-023001")), "a clock beyond all years");
    }

    #[test]
    fn local_time() {
        let at: jiff::Timestamp = "2026-10-25T00:30:00Z".parse().unwrap();
        assert_eq!(stamp_at(at, TimeZone::UTC), Some(stamp("20261025-003000")));
        let east = TimeZone::fixed(jiff::tz::offset(2));
        assert_eq!(stamp_at(at, east), Some(stamp("20261025-023000")));
        assert!(now().is_some());
    }

    proptest! {
        #[test]
        fn a_new_stamp_is_the_latest(now in 0_i64..253_370_764_800, others in prop::collection::vec(0_i64..253_370_764_800, 0..6)) {
            let of = |second| stamp_at(jiff::Timestamp::from_second(second).unwrap(), TimeZone::UTC).unwrap();
            let newest = others.iter().copied().max().map(of);
            let made = later(Some(of(now)), newest).unwrap();
            prop_assert!(others.iter().all(|other| of(*other) < made) && made >= of(now));
        }
    }
}
