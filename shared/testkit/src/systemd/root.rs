//! The root file system of a machine: a Debian that is made once and kept, and a copy of it for each machine, made
//! with an overlay where the file system allows one and by copying where it does not.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};

use crate::debian::{self, Debootstrap};
use crate::{cache, machine};

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
    cache::folder(&format!("{SUITE}-{}", debian::digest(&packages)), |draft, root| {
        say(&format!("making a Debian {SUITE} for machines under test in {} (once)", root.display()));
        Debootstrap { suite: SUITE, variant: "minbase", packages: &packages, more: &[] }.run(draft, say)
    })
}

/// Sorted and without repetition, so that the same set has the same name.
fn package_list(extra: &[String]) -> Vec<String> {
    let mut all: Vec<String> = PACKAGES.iter().map(|name| (*name).to_owned()).chain(extra.iter().cloned()).collect();
    all.sort();
    all.dedup();
    all
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
    use crate::debian::digest;

    #[test]
    fn a_set_of_packages_has_one_name() {
        let list = |names: &[&str]| package_list(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(digest(&list(&["b", "a"])), digest(&list(&["a", "b", "a", "systemd"])));
        assert_ne!(digest(&list(&[])), digest(&list(&["a"])));
        assert_eq!(digest(&list(&[])).len(), 16);
    }
}
