//! Pairs that were signed for the node, in upstream's files (client-go `util/certificate`, certificate_store.go): certificates
//! and key in one file with the time in its name, and a link that names the one in force. The last three stay, and the one
//! that was in force when this process began: whoever asks for pairs to be written does not have the good one removed. The link is
//! replaced in one step: whoever follows it finds the old pair or the new one.
//!
//! Beside them the key of a bootstrap request that is not answered yet (upstream `pkg/kubelet/certificate/bootstrap`).

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bulkhead_sys::open::{self, FileKind, OpenError};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use super::BrokerError;
use super::put_credential::make_folder;
use crate::journal;

/// Pairs that stay, the one in force among them: an operator finds the one before, and a disk does not fill up.
const KEPT: usize = 3;
const PENDING_KEY: &str = "kubelet-client.key.tmp";

/// What a pair is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefix {
    Client,
    Server,
}

impl Prefix {
    const fn as_str(self) -> &'static str {
        match self {
            Prefix::Client => "kubelet-client",
            Prefix::Server => "kubelet-server",
        }
    }

    fn name(self, qualifier: &str) -> String {
        format!("{}-{qualifier}.pem", self.as_str())
    }

    /// Whether a file of this name is a pair, by the time in its name.
    fn is_pair(self, name: &str) -> bool {
        let time = name.strip_prefix(self.as_str()).and_then(|rest| rest.strip_prefix('-')?.strip_suffix(".pem"));
        let lengths = time.map(|time| time.split('-').map(digits).collect::<Vec<_>>());
        lengths.is_some_and(|lengths| lengths == [4, 2, 2, 2, 2, 2].map(Some))
    }
}

/// Where the link is.
pub fn current(folder: &Path, prefix: Prefix) -> PathBuf {
    folder.join(prefix.name("current"))
}

/// Opens the pair in force. A link whose last replacement was cut off half-way is put in place first.
pub fn open(folder: &Path, prefix: Prefix) -> Result<OwnedFd, BrokerError> {
    let path = current(folder, prefix);
    match open::operator(&path, FileKind::RegularFile) {
        Err(error) if error.is_not_found() => {
            if !recover(folder, prefix)? {
                return Err(error.into());
            }
            Ok(open::operator(&path, FileKind::RegularFile)?)
        }
        other => Ok(other?),
    }
}

/// Opens the key of a request that is not answered yet.
pub fn open_pending(folder: &Path) -> Result<OwnedFd, BrokerError> {
    Ok(open::operator(&folder.join(PENDING_KEY), FileKind::RegularFile)?)
}

/// Keeps the key of a request for a start that may come before the answer.
pub fn put_pending(folder: &Path, private_key: &[u8]) -> Result<(), BrokerError> {
    let dir = make_folder(folder)?;
    journal::replace(dir.as_fd(), Path::new(PENDING_KEY), private_key, 0o600)
        .map_err(|source| BrokerError::PutState { path: folder.join(PENDING_KEY), source })
}

/// Writes a pair and puts it into force. `found`: the name of the pair that was in force before this process wrote one, or else of the
/// first that it wrote; that one stays.
pub fn put(
    folder: &Path,
    prefix: Prefix,
    found: &OnceLock<String>,
    certificates: &[u8],
    private_key: &[u8],
) -> Result<(), BrokerError> {
    let dir = make_folder(folder)?;
    let link = prefix.name("current");
    if !is_link_or_missing(&dir, &link)? {
        return Err(BrokerError::NotALink { path: folder.join(link) });
    }
    // Upstream's names are in local time.
    let name = prefix.name(&jiff::Zoned::now().strftime("%Y-%m-%d-%H-%M-%S").to_string());
    let found = found.get_or_init(|| in_force(&dir, prefix, &link).unwrap_or_else(|| name.clone()));
    let mut content = certificates.to_vec();
    if content.last() != Some(&b'\n') {
        content.push(b'\n');
    }
    content.extend_from_slice(private_key);
    journal::replace(dir.as_fd(), Path::new(&name), &content, 0o600)
        .map_err(|source| BrokerError::PutState { path: folder.join(&name), source })?;
    let failed = |errno: Errno| BrokerError::PutState { path: folder.join(&link), source: errno.into() };
    let updated = prefix.name("updated");
    match rustix::fs::unlinkat(&dir, &updated, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed(errno)),
    }
    rustix::fs::symlinkat(folder.join(&name), &dir, &updated).map_err(failed)?;
    rustix::fs::renameat(&dir, &updated, &dir, &link).map_err(failed)?;
    rustix::fs::fsync(&dir).map_err(failed)?;
    if let Err(error) = remove_older(&dir, prefix, [&name, found]) {
        tracing::warn!(folder = %folder.display(), error = &error as &dyn std::error::Error, "failed to remove older pairs");
    }
    if prefix == Prefix::Client {
        // Its request is answered. One that stays costs a request with an old key and nothing else.
        let _ = rustix::fs::unlinkat(&dir, PENDING_KEY, AtFlags::empty());
    }
    Ok(())
}

/// The name of the pair that the link names.
fn in_force(dir: &OwnedFd, prefix: Prefix, link: &str) -> Option<String> {
    let target = rustix::fs::readlinkat(dir, link, Vec::new()).ok()?.into_string().ok()?;
    let name = target.rsplit('/').next().filter(|name| prefix.is_pair(name))?;
    Some(name.to_owned())
}

/// Removes pairs older than the last [`KEPT`] by the times in their names, the one that was just written among them, and never one of
/// `stay`.
fn remove_older(dir: &OwnedFd, prefix: Prefix, stay: [&str; 2]) -> std::io::Result<()> {
    let mut pairs = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if prefix.is_pair(&name) && !stay.contains(&name.as_str()) {
            pairs.push(name);
        }
    }
    pairs.sort_unstable_by(|one, other| other.cmp(one));
    for name in pairs.iter().skip(KEPT - 1) {
        rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
    }
    Ok(())
}

/// How many digits a text is, where it is nothing else.
fn digits(text: &str) -> Option<usize> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then_some(text.len())
}

fn is_link_or_missing(dir: &OwnedFd, name: &str) -> Result<bool, OpenError> {
    let found = open::lstat_at(dir.as_fd(), name)?;
    Ok(found.is_none_or(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink))
}

/// Whether an `updated` link has taken the place of the missing one.
fn recover(folder: &Path, prefix: Prefix) -> Result<bool, BrokerError> {
    let dir = match open::operator(folder, FileKind::Directory) {
        Ok(dir) => dir,
        Err(error) if error.is_not_found() => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let (updated, link) = (prefix.name("updated"), prefix.name("current"));
    let left = open::lstat_at(dir.as_fd(), &updated)?;
    let is_link = left.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
    // A link that names what is gone is there all the same: the operator's matter.
    if !is_link || open::lstat_at(dir.as_fd(), &link)?.is_some() {
        return Ok(false);
    }
    rustix::fs::renameat(&dir, &updated, &dir, &link)
        .map_err(|errno| BrokerError::PutState { path: folder.join(link), source: errno.into() })?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_known_by_their_names() {
        assert!(Prefix::Client.is_pair("kubelet-client-2026-11-23-16-02-03.pem"));
        for other in [
            "kubelet-client-current.pem",
            "kubelet-client-updated.pem",
            "kubelet-server-2026-11-23-16-02-03.pem",
            "kubelet-client-2026-11-23-16-02-03.pem.old",
            "kubelet-client-2026-11-23-16-02.pem",
            "kubelet-client-my-11-23-16-02-03.pem",
            "ca.crt",
        ] {
            assert!(!Prefix::Client.is_pair(other), "{other}");
        }
    }

    #[test]
    fn however_many_are_written_the_one_that_was_found_stays() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let pki = folder.path().join("pki");
        let good = "kubelet-client-2020-01-01-00-00-00.pem";
        std::fs::create_dir(&pki).unwrap();
        std::fs::write(pki.join(good), "good").unwrap();
        std::os::unix::fs::symlink(pki.join(good), pki.join("kubelet-client-current.pem")).unwrap();
        (2021..2026).for_each(|year| {
            std::fs::write(pki.join(format!("kubelet-client-{year}-01-01-00-00-00.pem")), "").unwrap();
        });
        let found = OnceLock::new();
        for _ in 0..3 {
            put(&pki, Prefix::Client, &found, b"certificate", b"key").unwrap();
        }
        assert_eq!(std::fs::read(pki.join(good)).unwrap(), b"good");
        assert_eq!(pki.read_dir().unwrap().count(), 1 + 1 + KEPT, "the link, this one, and the last three");
        // Of none at first it is the first that is written.
        let (server, found) = (folder.path().join("server"), OnceLock::new());
        put(&server, Prefix::Server, &found, b"certificate", b"key").unwrap();
        assert!(Prefix::Server.is_pair(found.get().unwrap()));
    }

    #[test]
    fn the_last_three_pairs_stay() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| std::fs::write(folder.path().join(name), "").unwrap();
        let client = |year: u32| format!("kubelet-client-{year}-01-01-00-00-00.pem");
        (2020..2026).for_each(|year| write(&client(year)));
        let others = ["ca.crt", "kubelet-client-current.pem", "kubelet-server-2019-01-01-00-00-00.pem"];
        others.iter().for_each(|name| write(name));
        let dir = OwnedFd::from(std::fs::File::open(folder.path()).unwrap());
        // The clock may have been set back: what was just written stays although its name is old.
        remove_older(&dir, Prefix::Client, [&client(2021), &client(2020)]).unwrap();
        let mut left: Vec<String> =
            folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        let mut expected: Vec<String> = [2020, 2021, 2024, 2025].map(client).into();
        expected.extend(others.map(str::to_owned));
        expected.sort();
        assert_eq!(left, expected);
    }
}
