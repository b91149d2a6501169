//! What a machine needs before a node can run on it, and how to get it from Debian.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::fcntl::FlockArg;

use crate::lab;

/// Debian package and a file that proves it is there; any one of the files will do.
const NEEDED: &[(&str, &[&str])] = &[
    ("containerd", &["/usr/bin/containerd", "/usr/local/bin/containerd"]),
    ("runc", &["/usr/sbin/runc", "/usr/bin/runc", "/usr/local/sbin/runc", "/usr/local/bin/runc"]),
    ("containernetworking-plugins", &["/usr/lib/cni/bridge", "/opt/cni/bin/bridge"]),
    ("busybox-static", &["/bin/busybox", "/usr/bin/busybox"]),
    ("iproute2", &["/usr/sbin/ip", "/sbin/ip", "/bin/ip", "/usr/bin/ip"]),
    ("iptables", &["/usr/sbin/iptables", "/sbin/iptables"]),
    ("mount", &["/usr/bin/mount", "/bin/mount"]),
    ("util-linux", &["/usr/bin/nsenter"]),
];

/// What tests need besides: a machine with systemd ([`crate::systemd`]) and kubectl. The demo and the benchmark do not.
const NEEDED_FOR_TESTS: &[(&str, &[&str])] = &[
    ("mmdebstrap", &["/usr/bin/mmdebstrap"]),
    ("systemd-container", &["/usr/bin/systemd-nspawn"]),
    ("kubernetes-client", &["/usr/bin/kubectl", "/usr/local/bin/kubectl"]),
    // File systems of local volumes, and a signer of pods' certificates.
    ("e2fsprogs", &["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"]),
    ("xfsprogs", &["/usr/sbin/mkfs.xfs", "/sbin/mkfs.xfs"]),
    ("openssl", &["/usr/bin/openssl"]),
];

/// What containerd of a newer Debian needs besides ([`crate::release`]): to be fetched, and to find its libraries.
const NEEDED_FOR_RELEASES: &[(&str, &[&str])] =
    &[("mmdebstrap", &["/usr/bin/mmdebstrap"]), ("patchelf", &["/usr/bin/patchelf"])];

/// What scrapes a node as a monitoring stack does, with promtool.
const NEEDED_FOR_MONITORING: &[(&str, &[&str])] = &[("prometheus", &["/usr/bin/prometheus"])];

/// Whether this process may build namespaces and mounts at all.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Packages that are not installed yet.
pub fn missing_packages() -> Vec<&'static str> {
    missing_of(NEEDED)
}

fn missing_of(needed: &[(&'static str, &[&str])]) -> Vec<&'static str> {
    needed
        .iter()
        .filter(|(package, proofs)| match *package {
            "busybox-static" => static_busybox().is_none(),
            _ => !proofs.iter().any(|proof| Path::new(proof).exists()),
        })
        .map(|(package, _)| *package)
        .collect()
}

/// A busybox that needs no library: the shared one (package `busybox`) would not start in an empty image.
pub fn static_busybox() -> Option<PathBuf> {
    ["/bin/busybox", "/usr/bin/busybox"].into_iter().map(PathBuf::from).find(|path| is_static(path).unwrap_or(false))
}

/// An ELF file without a program interpreter.
fn is_static(path: &Path) -> std::io::Result<bool> {
    const PT_INTERP: u32 = 3;
    let bytes = std::fs::read(path)?;
    let field = |at: usize, width: usize| -> Option<u64> {
        let raw = bytes.get(at..at + width)?;
        Some(raw.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    if !bytes.starts_with(b"\x7fELF") || bytes.get(4) != Some(&2) {
        return Ok(false);
    }
    let (Some(table), Some(entry), Some(count)) = (field(32, 8), field(54, 2), field(56, 2)) else { return Ok(false) };
    Ok((0..count).all(|index| field((table + index * entry) as usize, 4) != Some(u64::from(PT_INTERP))))
}

/// Folder of the CNI plugins: Debian's, or the one that upstream's archives unpack to.
pub fn cni_bin_dir() -> &'static str {
    if Path::new("/usr/lib/cni/bridge").exists() { "/usr/lib/cni" } else { "/opt/cni/bin" }
}

/// Installs what is missing with apt; `say` gets a line for each step.
///
/// # Errors
/// Not root, no apt here, or apt failed: the message names the packages.
pub fn ensure_installed(say: &dyn Fn(&str)) -> Result<()> {
    ensure(NEEDED, say)
}

/// The same for all that tests run: machines with systemd and kubectl too.
///
/// # Errors
/// As [`ensure_installed`].
pub fn ensure_installed_for_tests(say: &dyn Fn(&str)) -> Result<()> {
    ensure(NEEDED, say)?;
    ensure(NEEDED_FOR_TESTS, say)
}

/// The same for labs on a containerd of a newer Debian.
///
/// # Errors
/// As [`ensure_installed`].
pub fn ensure_installed_for_releases(say: &dyn Fn(&str)) -> Result<()> {
    ensure(NEEDED, say)?;
    ensure(NEEDED_FOR_RELEASES, say)
}

/// Prometheus and promtool.
///
/// # Errors
/// As [`ensure_installed`].
pub fn ensure_monitoring(say: &dyn Fn(&str)) -> Result<()> {
    ensure(NEEDED_FOR_MONITORING, say)
}

fn ensure(needed: &[(&'static str, &[&str])], say: &dyn Fn(&str)) -> Result<()> {
    let missing = missing_of(needed);
    if missing.is_empty() {
        return Ok(());
    }
    install(&missing, say)?;
    let still = missing_of(needed);
    if !still.is_empty() {
        bail!("apt-get reported success, yet these are still missing: {}", still.join(" "));
    }
    Ok(())
}

/// Installs packages with apt.
///
/// # Errors
/// Not root, no apt here, or apt failed: the message names the packages.
pub fn install(packages: &[&str], say: &dyn Fn(&str)) -> Result<()> {
    let wanted = packages.join(" ");
    if !is_root() {
        bail!("this machine lacks {wanted}; as root: apt-get install -y {wanted}");
    }
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("this machine lacks {wanted} and is no Debian: please install them with its own package manager");
    }
    say(&format!("installing {wanted}"));
    // apt waits for whoever installs, and not for whoever reads package lists, as another test may do.
    let _alone = lab::lock("apt", FlockArg::LockExclusive)?;
    // The package lists of a fresh image are empty or old; an update costs seconds and only happens when something is missing.
    apt(&["update", "-qq"])?;
    apt(&[&["install", "-y", "-qq", "--no-install-recommends"], packages].concat())
}

fn apt(arguments: &[&str]) -> Result<()> {
    let output = Command::new("apt-get")
        // Another process may be installing something.
        .args(["-o", "DPkg::Lock::Timeout=300"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        // A service that the package starts by itself (containerd's) is not ours to start: the lab runs its own.
        .env("RUNLEVEL", "1")
        .stdin(Stdio::null())
        .output()
        .context("starting apt-get")?;
    if !output.status.success() {
        bail!(
            "apt-get {} failed:\n{}{}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Runs a short command and returns its standard output.
///
/// # Errors
/// The command with its standard error when it does not end with 0.
pub fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {program}"))?;
    if !output.status.success() {
        bail!(
            "{program} {}: {}: {}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether overlayfs can lie on this folder's file system (not on another overlay).
pub fn overlay_possible(folder: &Path) -> bool {
    nix::sys::statfs::statfs(folder).is_ok_and(|fs| fs.filesystem_type() != nix::sys::statfs::OVERLAYFS_SUPER_MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_is_not_static() {
        assert!(!is_static(Path::new("/bin/sh")).unwrap_or(false));
        assert!(is_static(Path::new("/nonexistent")).is_err());
    }
}
