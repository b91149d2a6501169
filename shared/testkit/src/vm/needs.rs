//! What this machine needs to run another one, and where its kernel is.
//!
//! A list of its own: only the test in the machine needs these packages, and they are large.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::machine;

pub(super) const QEMU: &str = "qemu-system-x86_64";

/// Debian package and a file that proves it is there; the kernel's name has its version in it.
const NEEDED: [(&str, &str); 4] = [
    ("qemu-system-x86", "/usr/bin/qemu-system-x86_64"),
    ("mmdebstrap", "/usr/bin/mmdebstrap"),
    ("e2fsprogs", "/usr/sbin/mkfs.ext4"),
    ("binutils", "/usr/bin/strip"),
];
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";

/// Packages that are not installed yet.
pub fn missing_packages() -> Vec<&'static str> {
    let mut missing: Vec<&str> =
        NEEDED.iter().filter(|(_, proof)| !Path::new(proof).exists()).map(|(package, _)| *package).collect();
    if kernel().is_err() {
        missing.push(KERNEL_PACKAGE);
    }
    missing
}

/// Installs what is missing. False: this machine cannot have it (no root, another architecture, no package source), and
/// `say` has been told why.
pub fn ensure_installed(say: &dyn Fn(&str)) -> bool {
    if cfg!(not(target_arch = "x86_64")) {
        say("the machine in the machine is made for x86_64");
        return false;
    }
    let missing = missing_packages();
    if missing.is_empty() {
        return true;
    }
    if let Err(error) = machine::install(&missing, say) {
        say(&format!("{error:#}"));
        return false;
    }
    let still = missing_packages();
    if !still.is_empty() {
        say(&format!("still missing: {}", still.join(" ")));
    }
    still.is_empty()
}

/// The newest cloud kernel in /boot and its initial file system.
pub(super) fn kernel() -> Result<(PathBuf, PathBuf)> {
    let mut versions: Vec<String> = std::fs::read_dir("/boot")
        .context("reading /boot")?
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("vmlinuz-").map(str::to_owned))
        .filter(|version| version.ends_with("-cloud-amd64"))
        .collect();
    versions
        .sort_by_key(|version| version.split(['.', '-']).map(|part| part.parse().unwrap_or(0)).collect::<Vec<u32>>());
    for version in versions.iter().rev() {
        let initrd = PathBuf::from(format!("/boot/initrd.img-{version}"));
        if initrd.exists() && modules(version).is_dir() {
            return Ok((PathBuf::from(format!("/boot/vmlinuz-{version}")), initrd));
        }
    }
    bail!("no kernel of {KERNEL_PACKAGE} with its initrd and modules")
}

/// Modules of that kernel.
pub(super) fn modules(version: &str) -> PathBuf {
    Path::new("/lib/modules").join(version)
}

/// Version of the kernel that will be booted, as its files are named.
pub(super) fn version() -> Result<String> {
    let (kernel, _) = kernel()?;
    let name = kernel.to_string_lossy().into_owned();
    name.rsplit_once("vmlinuz-").map(|(_, version)| version.to_owned()).context("a kernel without a version")
}
