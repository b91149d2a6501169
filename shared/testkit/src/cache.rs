//! What is made once for many labs and runs, below one folder: archives with images, folders with a Debian, the root folder of
//! a containerd that has its images. Each has the digest of what it is made of in its name.

use std::fs::File;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::fcntl::{Flock, FlockArg};

const CACHE: &str = "/var/cache/bulkhead-lab";
/// How long a file of another digest stays: another checkout may work with it.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The kept folder `name`; where it is not there, `make` is called with a draft's path and with the path that the draft gets
/// when it is whole.
///
/// # Errors
/// What `make` says, or the cache cannot be written.
pub(crate) fn folder(name: &str, make: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<PathBuf> {
    let root = Path::new(CACHE).join(name);
    if root.is_dir() {
        return Ok(root);
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(CACHE)
        .with_context(|| format!("creating {CACHE}"))?;
    // Two that want the same folder at once: the second one waits and finds it. Names may have dots in them.
    let beside = |suffix: &str| Path::new(CACHE).join(format!("{name}.{suffix}"));
    let lock = beside("lock");
    let file = File::create(&lock).with_context(|| format!("creating {}", lock.display()))?;
    let _held = Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .with_context(|| format!("locking {}", lock.display()))?;
    if root.is_dir() {
        return Ok(root);
    }
    let draft = beside("draft");
    if draft.exists() {
        std::fs::remove_dir_all(&draft).with_context(|| format!("removing {}", draft.display()))?;
    }
    make(&draft, &root)?;
    std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o755))
        .with_context(|| format!("opening {} to readers", draft.display()))?;
    std::fs::rename(&draft, &root).with_context(|| format!("moving {} into place", root.display()))?;
    Ok(root)
}

/// The kept archive whose name begins with `begins` and goes on with the digest of what it is made of. Where it is not there,
/// `write` writes it.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn file(begins: &str, digest: &str, write: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let path = Path::new(CACHE).join(format!("{begins}{digest}.tar"));
    if path.exists() {
        return Ok(path);
    }
    std::fs::create_dir_all(CACHE).with_context(|| format!("creating {CACHE}"))?;
    remove_old(begins);
    // Tests beside each other may both write it; whole it appears, and the same each time.
    let part = path.with_extension(format!("{}.part", std::process::id()));
    write(&part)?;
    std::fs::rename(&part, &path).with_context(|| path.display().to_string())?;
    Ok(path)
}

/// Removes files and folders of other digests that were made more than a day ago; best effort, as it is a cache.
pub(crate) fn remove_old(begins: &str) {
    let Ok(entries) = std::fs::read_dir(CACHE) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(begins)) {
        let Ok(facts) = entry.metadata() else { continue };
        if facts.modified().ok().and_then(|made| made.elapsed().ok()).is_some_and(|age| age > KEPT) {
            let path = entry.path();
            let _ = if facts.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        }
    }
}
