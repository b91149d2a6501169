//! Intents: what was about to be done when the process ended.
//!
//! Disk and mountinfo are the truth and show nearly everything; an intent is recorded only for acts whose half-done
//! state they do not show: mounting a volume (a directory without a mount may be one that was never mounted or one that
//! was unmounted) and tearing a pod down. It is on disk (fsync) before the act and removed after it. At start, and
//! whenever volumes are listed, an intent that disk and mountinfo contradict is dropped.
//!
//! One file for each pod, `<root-dir>/bulkhead/volnetd/intents/<pod uid>`, replaced as a whole.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bulkhead_sys::{open, tree};
use bulkhead_types::{PodUid, VolumeName};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

/// More pods than a node holds, and more bytes than a pod's intents have: damage is not read into memory.
const MAX_FILES: usize = 10_000;
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Why the journal could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("opening the journal's folder")]
    Open(#[from] open::OpenError),
    #[error("listing the journal's folder")]
    List(#[source] io::Error),
    #[error("recording an intent for pod {pod}")]
    Write { pod: PodUid, source: io::Error },
}

/// What may be half done.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(tag = "intent", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Intent {
    /// A file system is being mounted on the volume's directory. `plugin` is not escaped: "kubernetes.io/empty-dir".
    Mount { plugin: String, volume: VolumeName },
    /// The pod's volumes are being unmounted and its directory removed.
    TearDown,
}

/// All intents, in memory and on disk.
#[derive(Debug)]
pub struct Journal {
    dir: OwnedFd,
    intents: Mutex<BTreeMap<PodUid, Vec<Intent>>>,
}

impl Journal {
    /// Reads what an earlier process left. A file that cannot be read says nothing and is removed.
    pub fn open(dir: OwnedFd) -> Result<Self, JournalError> {
        let mut intents = BTreeMap::new();
        for entry in tree::list(dir.as_fd(), MAX_FILES).map_err(JournalError::List)? {
            let name = entry.name.to_string_lossy().into_owned();
            let uid = if name.starts_with('.') { None } else { PodUid::parse(&name).ok() };
            match uid.and_then(|uid| Some((uid, read(&dir, &entry.name)?))) {
                Some((uid, list)) => {
                    intents.insert(uid, list);
                }
                None => {
                    tracing::warn!(file = name, "removing a journal entry that cannot be read");
                    let _ = rustix::fs::unlinkat(&dir, entry.name.as_os_str(), AtFlags::empty());
                }
            }
        }
        Ok(Journal { dir, intents: Mutex::new(intents) })
    }

    /// Records an intent; on return it is on disk. Recording it again changes nothing.
    pub fn begin(&self, pod: &PodUid, intent: Intent) -> Result<(), JournalError> {
        let mut intents = self.lock();
        let list = intents.entry(pod.clone()).or_default();
        if list.contains(&intent) {
            return Ok(());
        }
        list.push(intent);
        let result = self.store(pod, list);
        if result.is_err() {
            list.pop();
        }
        result
    }

    /// The act is done (or was contradicted). Nobody waits for this to be on disk: after a crash the intent would be
    /// seen as contradicted.
    pub fn end(&self, pod: &PodUid, intent: &Intent) {
        let mut intents = self.lock();
        let Some(list) = intents.get_mut(pod) else { return };
        list.retain(|i| i != intent);
        let result = if list.is_empty() {
            intents.remove(pod);
            self.remove(pod)
        } else {
            self.store(pod, list)
        };
        if let Err(error) = result {
            tracing::warn!(%error, "an intent that is done stays in the journal");
        }
    }

    /// Forgets everything about a pod.
    pub fn end_pod(&self, pod: &PodUid) {
        if self.lock().remove(pod).is_some()
            && let Err(error) = self.remove(pod)
        {
            tracing::warn!(%error, "intents of a removed pod stay in the journal");
        }
    }

    pub fn of_pod(&self, pod: &PodUid) -> Vec<Intent> {
        self.lock().get(pod).cloned().unwrap_or_default()
    }

    pub fn all(&self) -> BTreeMap<PodUid, Vec<Intent>> {
        self.lock().clone()
    }

    /// Drops every intent that `holds` says is contradicted.
    pub fn retain(&self, holds: impl Fn(&PodUid, &Intent) -> bool) {
        for (pod, list) in self.all() {
            for intent in list {
                if !holds(&pod, &intent) {
                    tracing::info!(%pod, ?intent, "dropping an intent that disk and mounts contradict");
                    self.end(&pod, &intent);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PodUid, Vec<Intent>>> {
        // A panic in a holder ends the process or leaves a whole map: each change is a single call.
        self.intents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn store(&self, pod: &PodUid, list: &[Intent]) -> Result<(), JournalError> {
        let error = |source: io::Error| JournalError::Write { pod: pod.clone(), source };
        let text = serde_json::to_vec(list).map_err(|e| error(e.into()))?;
        replace(self.dir.as_fd(), Path::new(pod.as_str()), &text, 0o600).map_err(error)
    }

    fn remove(&self, pod: &PodUid) -> Result<(), JournalError> {
        match rustix::fs::unlinkat(&self.dir, pod.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(JournalError::Write { pod: pod.clone(), source: errno.into() }),
        }
    }
}

fn read(dir: &OwnedFd, name: &std::ffi::OsStr) -> Option<Vec<Intent>> {
    let file = std::fs::File::from(open::regular_beneath(dir.as_fd(), Path::new(name)).ok()?);
    let mut text = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Replaces a file in one step: temporary file with a leading dot, fsync, rename, fsync of the folder. After a crash
/// there is the old or the new content.
pub fn replace(dir: std::os::fd::BorrowedFd<'_>, name: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(".tmp");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, temporary.as_os_str(), flags, Mode::from_raw_mode(mode))?;
    rustix::fs::fchmod(&fd, Mode::from_raw_mode(mode))?;
    let mut file = std::fs::File::from(fd);
    file.write_all(content)?;
    file.sync_all()?;
    rustix::fs::renameat(dir, temporary.as_os_str(), dir, name)?;
    Ok(rustix::fs::fsync(dir)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intents_outlive_the_process_and_damage_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Journal::open(bulkhead_sys::open::base_dir(dir.path()).unwrap()).unwrap();
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
        assert_eq!(journal.of_pod(&pod), [mount.clone(), Intent::TearDown]);
        assert!(!dir.path().join("u2").exists() && !dir.path().join(".u3.tmp").exists());
        journal.end(&pod, &mount);
        assert_eq!(open().of_pod(&pod), [Intent::TearDown]);
        journal.retain(|_, _| false);
        assert!(open().all().is_empty());
        journal.end_pod(&pod);
    }
}
