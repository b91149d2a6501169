//! The root file system of a machine: a Debian that is made once and kept, and a copy of it for each machine, made
//! with an overlay where the file system allows one and by copying where it does not.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MsFlags, mount};
use sha2::{Digest as _, Sha256};

use crate::{image, machine};

/// Kept between runs, as package caches are.
const CACHE: &str = "/var/cache/bulkhead-lab";
/// The release whose systemd (252) and containerd (1.6) are the oldest that the project promises to work with.
const SUITE: &str = "bookworm";
/// What every machine has besides Debian's essential packages.
const PACKAGES: &[&str] = &[
    "systemd",
    "systemd-sysv",
    "dbus",
    "libpam-systemd",
    "libnss-systemd",
    "containerd",
    "curl",
    "runc",
    "containernetworking-plugins",
    "iproute2",
    "iptables",
    "procps",
    "kmod",
    "mount",
];

/// The folder of the kept root for the usual packages and `extra` ones; made first where it is not there.
///
/// # Errors
/// mmdebstrap failed: the end of what it said is in the message.
pub(super) fn cached(extra: &[String], say: &dyn Fn(&str)) -> Result<PathBuf> {
    let packages = package_list(extra);
    let root = Path::new(CACHE).join(format!("{SUITE}-{}", digest(&packages)));
    if root.is_dir() {
        return Ok(root);
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(CACHE)
        .with_context(|| format!("creating {CACHE}"))?;
    // Two that want the same root at once: the second one waits and finds it.
    let lock = root.with_extension("lock");
    let file = File::create(&lock).with_context(|| format!("creating {}", lock.display()))?;
    let _held = Flock::lock(file, FlockArg::LockExclusive)
        .map_err(|(_, error)| error)
        .with_context(|| format!("locking {}", lock.display()))?;
    if root.is_dir() {
        return Ok(root);
    }
    let draft = root.with_extension("draft");
    if draft.exists() {
        std::fs::remove_dir_all(&draft).with_context(|| format!("removing {}", draft.display()))?;
    }
    say(&format!("making a Debian {SUITE} for machines under test in {} (once)", root.display()));
    debootstrap(&packages, &draft, say)?;
    std::fs::rename(&draft, &root).with_context(|| format!("moving {} into place", root.display()))?;
    Ok(root)
}

/// Sorted and without repetition, so that the same set has the same name.
fn package_list(extra: &[String]) -> Vec<String> {
    let mut all: Vec<String> = PACKAGES.iter().map(|name| (*name).to_owned()).chain(extra.iter().cloned()).collect();
    all.sort();
    all.dedup();
    all
}

fn digest(packages: &[String]) -> String {
    image::hex(&Sha256::digest(packages.join(" ").as_bytes())[..8])
}

fn debootstrap(packages: &[String], target: &Path, say: &dyn Fn(&str)) -> Result<()> {
    let mut child = Command::new("mmdebstrap")
        .arg("--variant=minbase")
        // As the invoking root: the modes without it need helpers that a test machine may not have.
        .arg("--mode=root")
        .arg("--format=directory")
        .arg("--aptopt=Acquire::Languages \"none\"")
        .arg(format!("--include={}", packages.join(",")))
        .arg(SUITE)
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
        bail!("mmdebstrap: {status}\n{}", said[said.len().saturating_sub(30)..].join("\n"));
    }
    Ok(())
}

/// Puts a copy of `cached` at `folder/root`, where a machine may write.
///
/// # Errors
/// The file system is full, or refuses.
pub(super) fn copy(cached: &Path, folder: &Path) -> Result<PathBuf> {
    let root = folder.join("root");
    if !machine::overlay_possible(folder) {
        machine::run("cp", &["-a", "--reflink=auto", &cached.to_string_lossy(), &root.to_string_lossy()])?;
        return Ok(root);
    }
    let (upper, work) = (folder.join("upper"), folder.join("work"));
    for made in [&root, &upper, &work] {
        std::fs::create_dir(made).with_context(|| format!("creating {}", made.display()))?;
    }
    let options = format!("lowerdir={},upperdir={},workdir={}", cached.display(), upper.display(), work.display());
    mount(Some("overlay"), &root, Some("overlay"), MsFlags::empty(), Some(options.as_str()))
        .with_context(|| format!("laying {} over {}", root.display(), cached.display()))?;
    Ok(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_packages_has_one_name() {
        let list = |names: &[&str]| package_list(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(digest(&list(&["b", "a"])), digest(&list(&["a", "b", "a", "systemd"])));
        assert_ne!(digest(&list(&[])), digest(&list(&["a"])));
        assert_eq!(digest(&list(&[])).len(), 16);
    }
}
