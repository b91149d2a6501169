//! Intents: what was about to be done when the process ended.
//!
//! Disk and mountinfo are the truth and show nearly everything; an intent is recorded only for acts whose half-done
//! state they do not show: mounting what is not this node's own (nfs, disks, local volumes, those of FlexVolume drivers: a
//! directory without a mount may be one that was never mounted or one that was unmounted), and what a CSI driver is asked for
//! between two verbs. It is on disk (fsync) before the act and removed after it. At start, and
//! whenever volumes are listed, an intent that disk and mountinfo contradict is dropped.
//!
//! One file for each pod, `<root-dir>/bulkhead/volnetd/intents/<pod uid>`, replaced as a whole: a list, which is version 1
//! of the form, or an object with `version` and `intents`. What is not understood of a file is kept in `intents-kept`
//! beside the folder. What is staged once a node has files of the same kind in `staging-intents`, one for each volume.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use bulkhead_daemon::state_file;
use bulkhead_sys::{open, tree};
use bulkhead_types::{PodUid, VolumeName};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

/// More pods than a node holds, and more bytes than a pod's intents have: damage is not read into memory.
const MAX_FILES: usize = 10_000;
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Files that nobody understood are kept for whoever wants to know, and no more of them than this.
const MAX_KEPT: usize = 100;

/// Why the journal could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("failed to open the journal's folder")]
    Open(#[from] open::OpenError),
    #[error("failed to list the journal's folder")]
    List(#[source] io::Error),
    #[error("failed to record an intent for {of}")]
    Write { of: String, source: io::Error },
}

/// What may be half done.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(tag = "intent", rename_all = "kebab-case")]
pub enum Intent {
    /// A file system is being mounted on the volume's directory. `plugin` is not escaped: "kubernetes.io/empty-dir".
    Mount { plugin: String, volume: VolumeName },
    /// The pod's volumes are being unmounted and its directory removed. Versions before wrote it; what is left of a pod shows by
    /// itself, and whoever wants it torn down asks again.
    TearDown,
    /// A CSI driver is asked to publish a volume to the pod, or to take it back. `spec` names its folder.
    Publish { spec: VolumeName, block: bool },
}

/// What may be half done once a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(tag = "intent", rename_all = "kebab-case")]
pub enum StagingIntent {
    /// A CSI driver is asked to stage a volume, or to take it back. `folder` holds its `vol_data.json`, below
    /// `plugins/kubernetes.io/csi`.
    Stage { folder: PathBuf },
}

/// What a file of the journal is named by.
pub trait Key: Ord + Clone {
    fn parse(name: &str) -> Option<Self>;
    fn file_name(&self) -> &str;
    /// In words.
    fn what(&self) -> String;
}

impl Key for PodUid {
    fn parse(name: &str) -> Option<Self> {
        PodUid::parse(name).ok()
    }

    fn file_name(&self) -> &str {
        self.as_str()
    }

    fn what(&self) -> String {
        format!("pod {self}")
    }
}

/// A staged volume: the SHA-256 of its folder's path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StagedKey(Box<str>);

impl StagedKey {
    pub fn of(folder: &Path) -> Self {
        let digest = Sha256::digest(folder.as_os_str().as_bytes());
        StagedKey(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl Key for StagedKey {
    fn parse(name: &str) -> Option<Self> {
        let ok = name.len() == 64 && name.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        ok.then(|| StagedKey(name.into()))
    }

    fn file_name(&self) -> &str {
        &self.0
    }

    fn what(&self) -> String {
        format!("staged volume {}", self.0)
    }
}

/// All intents, in memory and on disk.
#[derive(Debug)]
pub struct Journal<K = PodUid, I = Intent> {
    dir: OwnedFd,
    intents: Mutex<BTreeMap<K, Vec<I>>>,
    was_damaged: bool,
}

impl<K: Key, I: Clone + PartialEq + fmt::Debug + Serialize + DeserializeOwned> Journal<K, I> {
    /// Reads what an earlier process left. A file of which something is not understood is moved to `kept`, and what was
    /// understood stands in a file of this version again; of a write that was cut off nothing stays.
    pub fn open(dir: OwnedFd, kept: OwnedFd) -> Result<Self, JournalError> {
        Self::open_with(dir, kept, || Ok(()))
    }

    /// The same; `before_keeping` is done before the first file is moved, because no later start will see that it was damaged.
    pub fn open_with(
        dir: OwnedFd,
        kept: OwnedFd,
        before_keeping: impl Fn() -> io::Result<()>,
    ) -> Result<Self, JournalError> {
        let mut journal = Journal { dir, intents: Mutex::default(), was_damaged: false };
        let dir = &journal.dir;
        let (mut intents, mut was_damaged) = (BTreeMap::new(), false);
        for entry in tree::list(dir.as_fd(), MAX_FILES).map_err(JournalError::List)? {
            let name = entry.name.to_string_lossy().into_owned();
            if name.starts_with('.') {
                tracing::info!(file = name, "removing a journal entry that was never complete");
                let _ = rustix::fs::unlinkat(dir, entry.name.as_os_str(), AtFlags::empty());
                continue;
            }
            let key = K::parse(&name);
            let (list, whole) = key.as_ref().and_then(|_| read(dir, &entry.name)).unwrap_or_default();
            if !whole {
                if !was_damaged {
                    before_keeping().map_err(|source| JournalError::Write { of: name, source })?;
                }
                was_damaged = true;
                keep(dir, &kept, &entry.name);
                if let Some(key) = key.as_ref().filter(|_| !list.is_empty()) {
                    journal.store(key, &list)?;
                }
            }
            if let Some(key) = key.filter(|_| !list.is_empty()) {
                intents.insert(key, list);
            }
        }
        *journal.lock() = intents;
        journal.was_damaged = was_damaged;
        Ok(journal)
    }

    /// Whether something was not understood when it was opened, so that an intent may be missing.
    pub fn was_damaged(&self) -> bool {
        self.was_damaged
    }

    /// Records an intent; on return it is on disk. Recording it again changes nothing.
    pub fn begin(&self, key: &K, intent: I) -> Result<(), JournalError> {
        let mut intents = self.lock();
        let list = intents.entry(key.clone()).or_default();
        if list.contains(&intent) {
            return Ok(());
        }
        list.push(intent);
        let result = self.store(key, list);
        if result.is_err() {
            list.pop();
        }
        result
    }

    /// The same of what the next process finds out by itself: this one has it also where it cannot be written.
    ///
    /// # Errors
    /// It is not on disk.
    pub fn begin_here(&self, key: &K, intent: I) -> Result<(), JournalError> {
        self.begin(key, intent.clone()).inspect_err(|_| {
            self.lock().entry(key.clone()).or_default().push(intent);
        })
    }

    /// The act is done (or was contradicted). Nobody waits for this to be on disk: after a crash the intent would be
    /// seen as contradicted.
    pub fn end(&self, key: &K, intent: &I) {
        let mut intents = self.lock();
        let Some(list) = intents.get_mut(key) else { return };
        list.retain(|i| i != intent);
        let result = if list.is_empty() {
            intents.remove(key);
            self.remove(key)
        } else {
            self.store(key, list)
        };
        if let Err(error) = result {
            tracing::warn!(%error, "failed to remove a finished intent from the journal");
        }
    }

    /// Forgets everything about one.
    pub fn end_all(&self, key: &K) {
        if self.lock().remove(key).is_some()
            && let Err(error) = self.remove(key)
        {
            tracing::warn!(%error, "failed to remove stale intents from the journal");
        }
    }

    pub fn of(&self, key: &K) -> Vec<I> {
        self.lock().get(key).cloned().unwrap_or_default()
    }

    pub fn all(&self) -> BTreeMap<K, Vec<I>> {
        self.lock().clone()
    }

    /// Drops every intent that `holds` says is contradicted, where `lock` lets nobody work on it meanwhile: whoever does has
    /// written an intent of something that is not there yet.
    pub fn retain<L>(&self, lock: impl Fn(&K) -> Option<L>, holds: impl Fn(&K, &I) -> bool) {
        for key in self.all().into_keys() {
            let Some(_lock) = lock(&key) else { continue };
            for intent in self.of(&key) {
                if !holds(&key, &intent) {
                    tracing::info!(of = key.what(), ?intent, "dropping an intent that disk and mounts contradict");
                    self.end(&key, &intent);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, Vec<I>>> {
        // A panic in a holder ends the process or leaves a whole map: each change is a single call.
        self.intents.lock()
    }

    fn store(&self, key: &K, list: &[I]) -> Result<(), JournalError> {
        let error = |source: io::Error| JournalError::Write { of: key.what(), source };
        let text = serde_json::to_vec(list).map_err(|e| error(e.into()))?;
        replace(self.dir.as_fd(), Path::new(key.file_name()), &text, 0o600).map_err(error)
    }

    fn remove(&self, key: &K) -> Result<(), JournalError> {
        match rustix::fs::unlinkat(&self.dir, key.file_name(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(JournalError::Write { of: key.what(), source: errno.into() }),
        }
    }
}

/// Moves a file out of the way. Best effort: where it cannot be moved it stays, and is looked at again at the next start.
fn keep(dir: &OwnedFd, kept: &OwnedFd, name: &std::ffi::OsStr) {
    let shown = name.to_string_lossy();
    if tree::list(kept.as_fd(), MAX_KEPT + 1).is_ok_and(|there| there.len() >= MAX_KEPT) {
        tracing::error!(file = %shown, "a journal entry is not understood, and removed: {MAX_KEPT} such are kept already");
        let _ = rustix::fs::unlinkat(dir, name, AtFlags::empty());
        return;
    }
    match rustix::fs::renameat(dir, name, kept, name) {
        Ok(()) => tracing::error!(file = %shown, "a journal entry is not fully understood: kept in intents-kept"),
        Err(error) => {
            tracing::error!(file = %shown, %error, "failed to set aside a journal entry that is not fully understood")
        }
    }
}

/// What is understood of a file, and whether that is all of it. Pure.
fn parse<I: DeserializeOwned>(text: &[u8]) -> Option<(Vec<I>, bool)> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        intents: Vec<serde_json::Value>,
    }
    let known = state_file::version_of(text) == 1;
    let all = serde_json::from_slice::<Vec<serde_json::Value>>(text)
        .or_else(|_| serde_json::from_slice::<Versioned>(text).map(|file| file.intents))
        .ok()?;
    let count = all.len();
    let list: Vec<I> = all.into_iter().filter_map(|value| serde_json::from_value(value).ok()).collect();
    let whole = known && list.len() == count;
    Some((list, whole))
}

fn read<I: DeserializeOwned>(dir: &OwnedFd, name: &std::ffi::OsStr) -> Option<(Vec<I>, bool)> {
    let file = std::fs::File::from(open::regular_beneath(dir.as_fd(), Path::new(name)).ok()?);
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut text).ok()?;
    parse(&text)
}

/// Replaces a file in one step: temporary file with a leading dot, fsync, rename, fsync of the folder. After a crash
/// there is the old or the new content, and the temporary file at most, which the next replacement removes.
///
/// A pod may write into some of the folders, too (that of device plugins, those of CSI drivers): what it has put under the
/// temporary file's name is removed, neither waited for (a FIFO) nor written to (a device).
///
/// # Errors
/// The kernel refuses, somebody else makes the temporary file meanwhile, or a folder is in its place.
pub fn replace(dir: std::os::fd::BorrowedFd<'_>, name: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(".tmp");
    match rustix::fs::unlinkat(dir, temporary.as_os_str(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, temporary.as_os_str(), flags, Mode::from_raw_mode(mode))?;
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))?;
    let mut file = std::fs::File::from(fd);
    file.write_all(content)?;
    file.sync_all()?;
    rustix::fs::renameat(dir, temporary.as_os_str(), dir, name)?;
    std::fs::File::from(dir.try_clone_to_owned()?).sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_under_the_temporary_name_is_neither_waited_for_nor_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let folder = bulkhead_sys::open::base_dir(dir.path()).unwrap();
        let temporary = dir.path().join(".checkpoint.tmp");
        let elsewhere = dir.path().join("elsewhere");
        std::fs::write(&elsewhere, "kept").unwrap();
        let replaced = || replace(folder.as_fd(), Path::new("checkpoint"), b"new", 0o600);
        let fifo = || {
            rustix::fs::mknodat(&folder, ".checkpoint.tmp", rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        };
        let in_the_way: [&dyn Fn(); 4] = [
            &fifo,
            &|| std::fs::hard_link(&elsewhere, &temporary).unwrap(),
            &|| std::os::unix::fs::symlink(&elsewhere, &temporary).unwrap(),
            &|| std::fs::write(&temporary, "what a crash has left").unwrap(),
        ];
        for put in in_the_way {
            put();
            replaced().unwrap();
            assert_eq!(std::fs::read(dir.path().join("checkpoint")).unwrap(), b"new");
            assert!(!temporary.exists());
        }
        assert_eq!(std::fs::read(&elsewhere).unwrap(), b"kept");
        // Nothing of a folder is removed; that nothing was written is said.
        std::fs::create_dir(&temporary).unwrap();
        assert!(replaced().is_err());
    }

    #[test]
    fn intents_outlive_the_process_and_damage_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let kept = tempfile::tempdir().unwrap();
        let folder = |dir: &tempfile::TempDir| bulkhead_sys::open::base_dir(dir.path()).unwrap();
        let open = || Journal::open(folder(&dir), folder(&kept)).unwrap();
        let pod = PodUid::parse("u1").unwrap();
        let mount =
            Intent::Mount { plugin: "kubernetes.io/empty-dir".into(), volume: VolumeName::parse("cache").unwrap() };
        let journal = open();
        journal.begin(&pod, mount.clone()).unwrap();
        journal.begin(&pod, mount.clone()).unwrap();
        journal.begin(&pod, Intent::TearDown).unwrap();
        std::fs::write(dir.path().join("u2"), "{not json").unwrap();
        std::fs::write(dir.path().join(".u3.tmp"), "").unwrap();
        drop(journal); // a crash

        let journal = open();
        assert_eq!(journal.all().len(), 1);
        assert_eq!(journal.of(&pod), [mount.clone(), Intent::TearDown]);
        assert!(!dir.path().join("u2").exists() && !dir.path().join(".u3.tmp").exists());
        assert_eq!(std::fs::read(kept.path().join("u2")).unwrap(), b"{not json");
        journal.end(&pod, &mount);
        assert_eq!(open().of(&pod), [Intent::TearDown]);
        journal.retain(|_| None::<()>, |_, _| false);
        assert!(!journal.all().is_empty(), "somebody works on it");
        journal.retain(|_| Some(()), |_, _| false);
        assert!(open().all().is_empty());
        journal.end_all(&pod);
    }

    /// A file is replaced as a whole; should one be cut off all the same, nothing is taken for certain.
    #[test]
    fn no_cut_loses_an_intent_unseen() {
        let [dir, kept] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let folder = |dir: &tempfile::TempDir| bulkhead_sys::open::base_dir(dir.path()).unwrap();
        let open = || Journal::<StagedKey, StagingIntent>::open(folder(&dir), folder(&kept)).unwrap();
        let of = Path::new("driver/0000");
        let (key, intent) = (StagedKey::of(of), StagingIntent::Stage { folder: of.to_owned() });
        open().begin(&key, intent.clone()).unwrap();
        let path = dir.path().join(key.file_name());
        let text = std::fs::read(&path).unwrap();
        assert!(!open().was_damaged());
        for cut in 0..text.len() {
            std::fs::write(&path, &text[..cut]).unwrap();
            let journal = open();
            assert!(journal.of(&key).is_empty() && journal.was_damaged(), "{cut}");
            assert!(!open().was_damaged(), "it is moved away once");
            // A write that was cut off before it took the file's place.
            std::fs::write(&path, &text).unwrap();
            std::fs::write(dir.path().join(format!(".{}.tmp", key.file_name())), &text[..cut]).unwrap();
            let journal = open();
            assert!(journal.of(&key) == [intent.clone()] && !journal.was_damaged(), "{cut}");
        }
    }

    /// Whoever opens it next finds no damage: that there was one is written down first, and where it cannot be, nothing is moved.
    #[test]
    fn damage_is_told_before_it_is_moved_away() {
        let [dir, kept] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let folder = |dir: &tempfile::TempDir| bulkhead_sys::open::base_dir(dir.path()).unwrap();
        std::fs::write(dir.path().join("u1"), "{").unwrap();
        let refused =
            Journal::<PodUid, Intent>::open_with(folder(&dir), folder(&kept), || Err(io::Error::other("no room")));
        assert!(refused.is_err() && dir.path().join("u1").exists());
        let told = std::cell::Cell::new(0);
        let open = || {
            Journal::<PodUid, Intent>::open_with(folder(&dir), folder(&kept), || {
                assert!(dir.path().join("u1").exists());
                told.set(told.get() + 1);
                Ok(())
            })
        };
        open().unwrap();
        assert_eq!((told.get(), dir.path().join("u1").exists()), (1, false));
        open().unwrap();
        assert_eq!(told.get(), 1);
    }

    #[test]
    fn a_newer_versions_file_is_read_as_far_as_understood() {
        let tear_down = r#"{"intent":"tear-down"}"#;
        for (text, understood, whole) in [
            (format!("[{tear_down}]"), 1, true),
            (r#"[{"intent":"tear-down","since":5}]"#.to_owned(), 1, true),
            (format!(r#"[{tear_down},{{"intent":"mirror","to":"x"}}]"#), 1, false),
            (format!(r#"{{"version":2,"intents":[{tear_down},{{"intent":"mirror"}}]}}"#), 1, false),
            (format!(r#"{{"version":2,"intents":[{tear_down}]}}"#), 1, false),
            (format!(r#"{{"version":1,"intents":[{tear_down}]}}"#), 1, true),
            ("[]".to_owned(), 0, true),
        ] {
            let (list, all) = parse::<Intent>(text.as_bytes()).unwrap();
            assert_eq!((list.len(), all), (understood, whole), "{text}");
        }
        for text in ["", "7", "{}", r#"{"version":2,"intents":{}}"#] {
            assert!(parse::<Intent>(text.as_bytes()).is_none(), "{text}");
        }
        let [dir, kept] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let folder = |dir: &tempfile::TempDir| bulkhead_sys::open::base_dir(dir.path()).unwrap();
        let newer = format!(r#"{{"version":2,"intents":[{tear_down},{{"intent":"mirror"}}]}}"#);
        std::fs::write(dir.path().join("u1"), &newer).unwrap();
        let journal: Journal = Journal::open(folder(&dir), folder(&kept)).unwrap();
        assert_eq!(journal.of(&PodUid::parse("u1").unwrap()), [Intent::TearDown]);
        assert_eq!(std::fs::read_to_string(kept.path().join("u1")).unwrap(), newer);
        assert_eq!(std::fs::read_to_string(dir.path().join("u1")).unwrap(), format!("[{tear_down}]"));
    }
}
