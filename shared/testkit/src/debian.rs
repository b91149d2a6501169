//! Folders with a Debian in them, made once by mmdebstrap and kept between runs, as package caches are.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest as _, Sha256};

use crate::image;

/// Kept between runs.
const CACHE: &str = "/var/cache/bulkhead-lab";

/// Short and the same for the same texts, in any order that is the same: part of the name of what is made of them.
pub(crate) fn digest(parts: &[String]) -> String {
    image::hex(&Sha256::digest(parts.join(" ").as_bytes())[..8])
}

/// The kept folder `name`; where it is not there, `make` is called with a draft's path and with the path that the draft gets
/// when it is whole.
///
/// # Errors
/// What `make` says, or the cache cannot be written.
pub(crate) fn kept(name: &str, make: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<PathBuf> {
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

/// What mmdebstrap is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Debootstrap<'a> {
    pub suite: &'a str,
    /// `minbase`: a system that boots. `extract`: the packages and what they depend on, unpacked and not configured.
    pub variant: &'a str,
    pub packages: &'a [String],
    /// More of its arguments.
    pub more: &'a [String],
}

impl Debootstrap<'_> {
    /// Runs it; `say` gets a line for each of its steps.
    ///
    /// # Errors
    /// It failed: the end of what it said is in the message.
    pub(crate) fn run(&self, target: &Path, say: &dyn Fn(&str)) -> Result<()> {
        let mut child = Command::new("mmdebstrap")
            .arg(format!("--variant={}", self.variant))
            // As the invoking root: the modes without it need helpers that a test machine may not have.
            .arg("--mode=root")
            .arg("--format=directory")
            .arg("--aptopt=Acquire::Languages \"none\"")
            .arg(format!("--include={}", self.packages.join(",")))
            .args(self.more)
            .arg(self.suite)
            .arg(target)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting mmdebstrap")?;
        let mut said = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if let Some(step) = line.strip_prefix("I: ") {
                    say(&format!("mmdebstrap: {step}"));
                }
                said.push(line);
            }
        }
        let status = child.wait().context("waiting for mmdebstrap")?;
        if !status.success() {
            bail!("mmdebstrap of {}: {status}\n{}", self.suite, said[said.len().saturating_sub(30)..].join("\n"));
        }
        Ok(())
    }
}
