//! Claims: files below `/run/kubelet.claims`, locked for life, that say which instance holds what.
//!
//! Two nodes on one machine are fine as long as they share no cgroup root, root directory or user. A claim is an flock,
//! so it ends with its holder however that ends; the file's text is for the message to whoever comes second.

use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What can be claimed.
#[derive(Debug, Clone, Copy)]
pub enum Subject<'a> {
    RootDir(&'a Path),
    CgroupRoot(&'a str),
    /// Base of four ids, which are half of a node's.
    UidBlock(u32),
    /// The system's named users.
    NamedUsers,
}

impl Subject<'_> {
    /// Name of the claim's file.
    pub fn file(self) -> String {
        let hash = |text: &[u8]| bulkhead_config::short_hash(text);
        match self {
            Subject::RootDir(path) => format!("root-{}", hash(path.as_os_str().as_encoded_bytes())),
            Subject::CgroupRoot(path) => hash(path.as_bytes()),
            Subject::UidBlock(base) => format!("uid-{base}"),
            Subject::NamedUsers => "uid-named".to_owned(),
        }
    }
}

impl std::fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Subject::RootDir(path) => write!(f, "root directory (--root-dir) {}", path.display()),
            Subject::CgroupRoot(path) => write!(f, "cgroup root (cgroupRoot) {path:?}"),
            Subject::UidBlock(base) => write!(f, "users {base} to {}", base + 3),
            Subject::NamedUsers => f.write_str("users kubelet-syncd, kubelet-evictiond and kubelet-statusd"),
        }
    }
}

/// Who holds a claim.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Holder {
    pub node: String,
    pub root_dir: PathBuf,
    pub pid: u32,
}

impl Holder {
    pub fn me(root_dir: &Path, node: &str) -> Self {
        Holder { node: node.to_owned(), root_dir: root_dir.to_owned(), pid: std::process::id() }
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {:?} with root directory {}, pid {}", self.node, self.root_dir.display(), self.pid)
    }
}

/// Why a claim was not had.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("{subject} is in use by another node on this machine: {holder}")]
    Held { subject: String, holder: String },
    #[error("failed to claim {subject} in {}", path.display())]
    Io { subject: String, path: PathBuf, source: std::io::Error },
    #[error("no free users: all blocks of eight ids in {first} to {last} are claimed or in the user database")]
    NoFreeUsers { first: u32, last: u32 },
}

/// The folder of claims.
#[derive(Debug)]
pub struct Registry {
    dir: PathBuf,
}

/// A claim that is held.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    // The lock lives as long as this descriptor and its copies; no child inherits it.
    file: std::fs::File,
}

impl Registry {
    /// Makes the folder (0700) when it is missing.
    pub fn open(dir: &Path) -> Result<Self, ClaimError> {
        let failed = |source| ClaimError::Io { subject: "anything".into(), path: dir.to_owned(), source };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).map_err(failed)?;
        Ok(Registry { dir: dir.to_owned() })
    }

    /// Whether the claim was last another root directory's that still exists: a node that was killed and will come back
    /// for it. A clean stop leaves no such trace.
    pub fn is_anothers(&self, subject: Subject<'_>, root_dir: &Path) -> bool {
        let Ok(text) = std::fs::read_to_string(self.dir.join(subject.file())) else { return false };
        let Ok(last) = serde_json::from_str::<Holder>(&text) else { return false };
        last.root_dir != root_dir && last.root_dir.exists()
    }

    /// Takes the claim, or says who holds it.
    pub fn claim(&self, subject: Subject<'_>, holder: &Holder) -> Result<Claim, ClaimError> {
        self.claim_with(subject, holder, None)
    }

    /// The same, with what an earlier start of this node may have left open: as long as it is the claim's file, the lock on
    /// it is ours already.
    pub fn claim_with(
        &self,
        subject: Subject<'_>,
        holder: &Holder,
        mut earlier: Option<std::fs::File>,
    ) -> Result<Claim, ClaimError> {
        let path = self.dir.join(subject.file());
        let failed = |source| ClaimError::Io { subject: subject.to_string(), path: path.clone(), source };
        loop {
            let mut file = match earlier.take() {
                Some(file) => file,
                None => std::fs::OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .mode(0o600)
                    .open(&path)
                    .map_err(failed)?,
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(std::fs::TryLockError::WouldBlock) => {
                    let mut text = String::new();
                    (&file).take(8192).read_to_string(&mut text).map_err(failed)?;
                    let holder = serde_json::from_str::<Holder>(&text)
                        .map_or_else(|_| format!("see the lock on {}", path.display()), |holder| holder.to_string());
                    return Err(ClaimError::Held { subject: subject.to_string(), holder });
                }
                Err(std::fs::TryLockError::Error(source)) => return Err(failed(source)),
            }
            // The holder before us may have removed the file between our open and our lock: then the lock is on a file
            // that nobody else will find.
            let mine = file.metadata().map_err(failed)?;
            match std::fs::metadata(&path) {
                Ok(there) if there.ino() == mine.ino() && there.dev() == mine.dev() => {}
                _ => continue,
            }
            file.set_len(0).map_err(failed)?;
            file.rewind().map_err(failed)?;
            let text = serde_json::to_string(holder).map_err(|error| failed(error.into()))?;
            file.write_all(text.as_bytes()).map_err(failed)?;
            return Ok(Claim { path, file });
        }
    }
}

impl Claim {
    /// The open file, whose lock is the claim: for a holder that outlives this process.
    pub fn into_file(self) -> std::fs::File {
        self.file
    }

    /// Removes the file while the lock is still held, then lets go.
    pub fn release(self) {
        // A file that stays behind is harmless: its lock is gone.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_claim_names_the_holder_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let first = registry.claim(Subject::CgroupRoot("/a"), &Holder::me(Path::new("/r1"), "n1")).unwrap();
        let second = registry.claim(Subject::CgroupRoot("/a"), &Holder::me(Path::new("/r2"), "n2")).unwrap_err();
        let text = second.to_string();
        for part in ["cgroupRoot", "\"/a\"", "\"n1\"", "/r1", &std::process::id().to_string()] {
            assert!(text.contains(part), "{part} in {text}");
        }
        registry.claim(Subject::CgroupRoot("/b"), &Holder::me(Path::new("/r2"), "n2")).unwrap();
        first.release();
        registry.claim(Subject::CgroupRoot("/a"), &Holder::me(Path::new("/r2"), "n2")).unwrap();
    }

    #[test]
    fn what_an_earlier_start_left_open_is_taken_up_while_it_is_the_claims_file() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let (subject, holder) = (Subject::CgroupRoot("/a"), Holder::me(Path::new("/r1"), "n1"));
        let earlier = registry.claim(subject, &holder).unwrap().into_file();
        let copy = earlier.try_clone().unwrap();
        assert!(registry.claim(subject, &holder).is_err(), "another open file is another holder");
        let renamed = Holder { node: "n2".into(), ..holder.clone() };
        let again = registry.claim_with(subject, &renamed, Some(earlier)).unwrap();
        let second = registry.claim(subject, &holder).unwrap_err().to_string();
        assert!(second.contains("\"n2\"") && !second.contains("\"n1\""), "{second}");
        // Somebody removed the file: the old lock says nothing any more.
        std::fs::remove_file(dir.path().join(subject.file())).unwrap();
        drop(again);
        let anew = registry.claim_with(subject, &holder, Some(copy)).unwrap();
        assert!(registry.claim(subject, &holder).is_err());
        anew.release();
    }

    #[test]
    fn what_a_killed_node_held_is_its_own_while_its_folder_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let subject = Subject::UidBlock(7);
        assert!(!registry.is_anothers(subject, Path::new("/other")));
        let held = registry.claim(subject, &Holder::me(root.path(), "n1")).unwrap();
        // As a kill does: the lock goes, the file stays.
        drop(held);
        assert!(registry.is_anothers(subject, Path::new("/other")) && !registry.is_anothers(subject, root.path()));
        let root = root.close().map(|()| "removed").unwrap();
        assert!(!registry.is_anothers(subject, Path::new("/other")), "{root}");
    }
}
