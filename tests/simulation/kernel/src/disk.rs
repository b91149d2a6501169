//! The disk below folders that a run has named ([`keep`]): what of them is durable is what was synced, and nothing else. Of a file that is
//! its content at its last `fsync`, of a folder its names at its last `fsync`, as POSIX has it; no file system promises less.
//!
//! The standard library writes and syncs by functions of the C library, so these two are seen here: `write`, and `fsync` (and
//! `fdatasync`), each of which is a step. Names that come, go and change are seen at the next step, as what asks the kernel for them does
//! it without the C library. Nothing is really synced: the files lie in memory, and go with the run.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{follows, is_simulated};

/// There are such folders.
static ON: AtomicBool = AtomicBool::new(false);
static DISK: Mutex<Disk> = Mutex::new(Disk::new());

/// A file, whatever it is called: its device and its number there.
type Id = (u64, u64);

/// What fails once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Writing into a file.
    Write,
    /// Syncing a file.
    Sync,
    /// Syncing the folder.
    SyncFolder,
}

/// A name in a folder, and the file that it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub content: Vec<u8>,
    /// Its content when it was synced last. None: it never was.
    pub synced: Option<Vec<u8>>,
}

/// A folder at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moment {
    /// As processes see it.
    pub now: BTreeMap<String, Entry>,
    /// The names of its last sync, with what their files are by now.
    pub synced: BTreeMap<String, Entry>,
    /// Names that stand for another file now than at the last sync, or for none, or for one that is not synced.
    pub open: Vec<String>,
}

/// What was synced of a file. It is held open, so that no other one gets its number.
#[derive(Debug)]
struct Synced {
    content: Vec<u8>,
    _held: File,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    id: Id,
    /// At the last sync, each held open.
    names: BTreeMap<String, (Id, File)>,
    files: BTreeMap<Id, Synced>,
    /// Syncs, and steps of every kind, since somebody asked.
    syncs: u64,
    steps: u64,
    /// Something failed since somebody asked.
    failed: bool,
    /// Files for which there was no room, and what was to be in them.
    refused: Vec<(String, Vec<u8>)>,
}

#[derive(Debug)]
struct Disk {
    /// By whom they belong to.
    folders: BTreeMap<&'static str, Folder>,
    full: bool,
    failures: Vec<Failure>,
    steps: u64,
    /// The moment before this step is kept.
    keep_before: Option<u64>,
    kept: Option<BTreeMap<&'static str, Moment>>,
}

/// What somebody has done to a folder since that was asked last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Doings {
    /// Writes and syncs.
    pub steps: u64,
    pub syncs: u64,
    /// One of them failed.
    pub failed: bool,
}

impl Disk {
    const fn new() -> Self {
        Disk { folders: BTreeMap::new(), full: false, failures: Vec::new(), steps: 0, keep_before: None, kept: None }
    }

    /// Whose folder, or whose file, the descriptor is of; and the file's name, where it is not the folder itself.
    fn owner(&self, descriptor: c_int) -> Option<(&'static str, Option<String>)> {
        let mut found = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: room for what is asked for.
        if unsafe { libc::fstat(descriptor, found.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: the call has filled it.
        let found = unsafe { found.assume_init() };
        let id = (found.st_dev, found.st_ino);
        match found.st_mode & libc::S_IFMT {
            libc::S_IFDIR => self.folders.iter().find(|(_, folder)| folder.id == id).map(|(owner, _)| (*owner, None)),
            libc::S_IFREG => {
                let path = std::fs::read_link(format!("/proc/self/fd/{descriptor}")).ok()?;
                let parent = path.parent()?;
                let name = path.file_name()?.to_string_lossy().into_owned();
                self.folders.iter().find(|(_, folder)| folder.path == parent).map(|(owner, _)| (*owner, Some(name)))
            }
            _ => None,
        }
    }

    fn step(&mut self, owner: &str) {
        self.steps += 1;
        if self.keep_before.is_some_and(|step| step <= self.steps) {
            self.keep_before = None;
            self.kept = Some(self.moments());
        }
        if let Some(folder) = self.folders.get_mut(owner) {
            folder.steps += 1;
        }
    }

    fn fails(&mut self, owner: &str, what: Failure) -> bool {
        let Some(place) = self.failures.iter().position(|failure| *failure == what) else { return false };
        self.failures.remove(place);
        self.note_failure(owner);
        true
    }

    fn note_failure(&mut self, owner: &str) {
        if let Some(folder) = self.folders.get_mut(owner) {
            folder.failed = true;
        }
    }

    fn moments(&self) -> BTreeMap<&'static str, Moment> {
        self.folders.iter().map(|(owner, folder)| (*owner, folder.moment())).collect()
    }

    /// How much of it may be written.
    fn on_write(&mut self, owner: &str, name: String, descriptor: c_int, content: &[u8]) -> Result<usize, c_int> {
        let length = content.len();
        self.step(owner);
        if self.fails(owner, Failure::Write) {
            return Err(libc::EIO);
        }
        if !self.full {
            return Ok(length);
        }
        self.note_failure(owner);
        // The last block of the disk takes some of it.
        // SAFETY: no pointer is passed.
        let is_empty = unsafe { libc::lseek(descriptor, 0, libc::SEEK_CUR) } == 0;
        if is_empty && let Some(folder) = self.folders.get_mut(owner) {
            folder.refused.push((name, content.to_vec()));
        }
        if is_empty && length > 1 { Ok(length / 2) } else { Err(libc::ENOSPC) }
    }

    fn on_sync(&mut self, owner: &str, is_folder: bool, descriptor: c_int) -> Result<(), c_int> {
        self.step(owner);
        if self.fails(owner, if is_folder { Failure::SyncFolder } else { Failure::Sync }) {
            return Err(libc::EIO);
        }
        let Some(folder) = self.folders.get_mut(owner) else { return Ok(()) };
        folder.syncs += 1;
        let done = if is_folder { folder.sync_names() } else { folder.sync_file(descriptor) };
        done.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl Folder {
    fn at(path: PathBuf) -> std::io::Result<Self> {
        let id = id_of(&std::fs::metadata(&path)?);
        let mut folder = Folder {
            path,
            id,
            names: BTreeMap::new(),
            files: BTreeMap::new(),
            syncs: 0,
            steps: 0,
            failed: false,
            refused: Vec::new(),
        };
        for (_, (id, file)) in folder.list()? {
            let content = content_of(&file)?;
            folder.files.insert(id, Synced { content, _held: file });
        }
        folder.sync_names()?;
        Ok(folder)
    }

    fn list(&self) -> std::io::Result<BTreeMap<String, (Id, File)>> {
        let mut all = BTreeMap::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let file = File::open(entry.path())?;
            let found = file.metadata()?;
            if found.is_file() {
                all.insert(entry.file_name().to_string_lossy().into_owned(), (id_of(&found), file));
            }
        }
        Ok(all)
    }

    fn sync_names(&mut self) -> std::io::Result<()> {
        self.names = self.list()?;
        let named: Vec<Id> = self.names.values().map(|(id, _)| *id).collect();
        self.files.retain(|id, _| named.contains(id));
        Ok(())
    }

    fn sync_file(&mut self, descriptor: c_int) -> std::io::Result<()> {
        // Who writes may not be allowed to read by the same descriptor.
        let file = File::open(format!("/proc/self/fd/{descriptor}"))?;
        let (id, content) = (id_of(&file.metadata()?), content_of(&file)?);
        self.files.insert(id, Synced { content, _held: file });
        Ok(())
    }

    fn moment(&self) -> Moment {
        // What cannot be read is gone: the folder is the run's own.
        let now = self.list().unwrap_or_default();
        let entry = |(id, file): &(Id, File)| Entry {
            content: content_of(file).unwrap_or_default(),
            synced: self.files.get(id).map(|synced| synced.content.clone()),
        };
        let entries = |names: &BTreeMap<String, (Id, File)>| -> BTreeMap<String, Entry> {
            names.iter().map(|(name, found)| (name.clone(), entry(found))).collect()
        };
        let (before, after) = (entries(&self.names), entries(&now));
        let names = now.keys().chain(self.names.keys().filter(|name| !now.contains_key(*name)));
        let is_open = |name: &&String| {
            let same = now.get(*name).map(|(id, _)| id) == self.names.get(*name).map(|(id, _)| id);
            let whole = after.get(*name).is_none_or(|entry| entry.synced.as_ref() == Some(&entry.content));
            !same || !whole
        };
        let open = names.filter(is_open).cloned().collect();
        Moment { now: after, synced: before, open }
    }
}

fn id_of(found: &std::fs::Metadata) -> Id {
    (found.dev(), found.ino())
}

fn content_of(file: &File) -> std::io::Result<Vec<u8>> {
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let mut content = vec![0; length];
    file.read_exact_at(&mut content, 0)?;
    Ok(content)
}

fn disk() -> MutexGuard<'static, Disk> {
    DISK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on what `owner` has in this folder is kept account of, and all that is there is durable.
///
/// # Errors
/// The folder cannot be read.
pub fn keep(owner: &'static str, path: &Path) -> std::io::Result<()> {
    let folder = Folder::at(path.canonicalize()?)?;
    disk().folders.insert(owner, folder);
    ON.store(true, Ordering::Relaxed);
    Ok(())
}

/// The same, but where it is kept account of already.
///
/// # Errors
/// The folder cannot be read.
pub fn keep_once(owner: &'static str, path: &Path) -> std::io::Result<()> {
    if disk().folders.contains_key(owner) { Ok(()) } else { keep(owner, path) }
}

/// No account is kept any more of what `owner` has.
pub fn forget(owner: &str) {
    disk().folders.remove(owner);
}

/// Everything in the folder of `owner` was moved to this one, for a process that begins anew: nothing becomes durable by that.
///
/// # Errors
/// The folder cannot be read.
pub fn moved(owner: &'static str, path: &Path) -> std::io::Result<()> {
    let path = path.canonicalize()?;
    let id = id_of(&std::fs::metadata(&path)?);
    if let Some(folder) = disk().folders.get_mut(owner) {
        (folder.path, folder.id) = (path, id);
    }
    Ok(())
}

/// What `owner` has done since this was asked last.
pub fn doings(owner: &str) -> Doings {
    let mut disk = disk();
    let Some(folder) = disk.folders.get_mut(owner) else { return Doings::default() };
    let Folder { steps, syncs, failed, .. } = folder;
    Doings { steps: std::mem::take(steps), syncs: std::mem::take(syncs), failed: std::mem::take(failed) }
}

/// Files of `owner` for which there was no room since this was asked last, and what was to be in them.
pub fn take_refused(owner: &str) -> Vec<(String, Vec<u8>)> {
    disk().folders.get_mut(owner).map(|folder| std::mem::take(&mut folder.refused)).unwrap_or_default()
}

/// The folder of `owner` as it is.
pub fn moment(owner: &str) -> Moment {
    disk().folders.get(owner).map(Folder::moment).unwrap_or_default()
}

/// All folders as they are, by whom they belong to.
pub fn moments() -> BTreeMap<&'static str, Moment> {
    disk().moments()
}

/// The moment before the step that comes after so many others is kept for [`take_kept`]. None: none is any more.
pub fn keep_before(steps: Option<u64>) {
    let mut disk = disk();
    disk.keep_before = steps.map(|steps| disk.steps + steps + 1);
    disk.kept = None;
}

/// The moment that was kept.
pub fn take_kept() -> Option<BTreeMap<&'static str, Moment>> {
    disk().kept.take()
}

/// Whether there is room for what is written.
pub fn fill(full: bool) {
    disk().full = full;
}

/// The next step of this kind fails (EIO).
pub fn fail(what: Failure) {
    disk().failures.push(what);
}

/// Nothing that was to fail does so any more.
pub fn heal() {
    disk().failures.clear();
}

fn is_on() -> bool {
    ON.load(Ordering::Relaxed) && (is_simulated() || follows())
}

fn refused(error: c_int) -> c_int {
    // SAFETY: the place where this thread's error number stands.
    unsafe { *libc::__errno_location() = error };
    -1
}

/// # Safety
/// As the C library's: `buffer` has `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(descriptor: c_int, buffer: *const c_void, length: usize) -> isize {
    let mut length = length;
    if is_on() {
        let mut disk = disk();
        if let Some((owner, Some(name))) = disk.owner(descriptor) {
            // SAFETY: the caller promises that so many bytes can be read there.
            let content = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), length) };
            match disk.on_write(owner, name, descriptor, content) {
                Ok(some) => length = some,
                Err(error) => return refused(error) as isize,
            }
        }
    }
    // SAFETY: the caller's own arguments, but for a length that is not greater.
    unsafe { libc::syscall(libc::SYS_write, descriptor, buffer, length) as isize }
}

fn sync(descriptor: c_int, number: libc::c_long) -> c_int {
    if is_on() {
        let mut disk = disk();
        if let Some((owner, name)) = disk.owner(descriptor) {
            return match disk.on_sync(owner, name.is_none(), descriptor) {
                Ok(()) => 0,
                Err(error) => refused(error),
            };
        }
    }
    // SAFETY: no pointer is passed.
    unsafe { libc::syscall(number, descriptor) as c_int }
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn fsync(descriptor: c_int) -> c_int {
    sync(descriptor, libc::SYS_fsync)
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(descriptor: c_int) -> c_int {
    sync(descriptor, libc::SYS_fdatasync)
}
