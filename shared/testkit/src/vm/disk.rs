//! The machine's disk: a Debian with systemd and containerd, the programs under test and their units where the package has
//! them, busybox images, and the program that runs scripts. Made from a folder in one go, nothing is mounted for it.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::needs;
use crate::systemd::{LIBEXEC, SERVICES, unit_files};
use crate::{build, image, machine};

/// Beside systemd itself what a node needs. No udev: what is on the one disk is known.
const PACKAGES: &str = "systemd,systemd-sysv,dbus,containerd,runc,containernetworking-plugins,iproute2,iptables,procps";
/// Of Debian's CNI plugins those that the configuration names.
const PLUGINS: [&str; 3] = ["loopback", "ptp", "host-local"];
/// Weight without use here.
const LEFT_OUT: [&str; 9] = [
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "usr/share/perl",
    "usr/share/zoneinfo",
    "var/cache/apt",
    "var/lib/apt/lists",
    "boot",
];
/// Room beside what the folder holds: layers of containers, logs, the journal.
const FREE_MIB: u64 = 512;

/// A disk that a machine can be booted from once.
#[derive(Debug)]
pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Makes the disk below `folder`: the programs of [`build::bin_dir`] and their units where the package has them, the
    /// programs `more` (name and file) in /usr/bin, and the files `files` (path and content, readable by root alone).
    /// Of the units nothing is enabled, and their users are not made yet.
    ///
    /// # Errors
    /// Debian cannot be fetched, a program is missing, or the disk does not fit on this one.
    pub fn make(folder: &Path, more: &[(&str, &Path)], files: &[(&str, &str)]) -> Result<Self> {
        Disk::with_packages(folder, &[], more, files)
    }

    /// The same with more of Debian's packages. What they would have started at a boot is not.
    ///
    /// # Errors
    /// As [`Disk::make`].
    pub fn with_packages(
        folder: &Path,
        packages: &[&str],
        more: &[(&str, &Path)],
        files: &[(&str, &str)],
    ) -> Result<Self> {
        let root = folder.join("root");
        let debian = debian(packages)?;
        machine::run("cp", &["-a", "--reflink=auto", text(&debian)?, text(&root)?])?;
        for left_out in LEFT_OUT {
            let _ = std::fs::remove_dir_all(root.join(left_out));
        }
        for entry in std::fs::read_dir(root.join("usr/lib/cni"))?.flatten() {
            if !PLUGINS.iter().any(|plugin| entry.file_name() == *plugin) {
                std::fs::remove_file(entry.path())?;
            }
        }
        let version = needs::version()?;
        std::fs::create_dir_all(root.join("usr/lib/modules"))?;
        let modules = root.join("usr/lib/modules").join(&version);
        machine::run("cp", &["-a", text(&needs::modules(&version))?, text(&modules)?])?;
        // Symbols are most of a development build, and there are no debuggers in there.
        let directory = build::bin_dir()?;
        let own = build::PROGRAMS.iter().chain(&build::HELPERS).map(|name| (*name, directory.join(name)));
        std::fs::create_dir_all(root.join(LIBEXEC.trim_start_matches('/')))?;
        for (name, program) in own.chain(more.iter().map(|(name, program)| (*name, (*program).to_owned()))) {
            let is_daemon = SERVICES.iter().any(|service| service.strip_suffix(".service") == Some(name));
            let is_inner = is_daemon || build::HELPERS.contains(&name);
            let folder = if is_inner { LIBEXEC } else { "/usr/bin" };
            let target = root.join(folder.trim_start_matches('/')).join(name);
            machine::run("strip", &["-o", text(&target)?, text(&program)?])?;
        }
        for (source, target) in unit_files(&build::workspace_root())? {
            let target = root.join(target.trim_start_matches('/'));
            std::fs::create_dir_all(target.parent().context("a file without a folder")?)?;
            std::fs::copy(&source, &target).with_context(|| format!("copying {}", source.display()))?;
        }
        let busybox = machine::static_busybox().context("no static busybox here")?;
        std::fs::copy(busybox, root.join("usr/bin/busybox"))?;
        // The kernel asks for this by its path when it wants a module.
        symlink("../bin/busybox", root.join("usr/sbin/modprobe"))?;
        std::fs::copy(image::archive()?, root.join("root/images.tar")).context("copying the image archive")?;
        let modes = [0o644; FILES.len()].into_iter().chain(std::iter::repeat(0o600));
        for ((path, content), mode) in FILES.iter().chain(files).zip(modes) {
            let path = root.join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().context("a file without a folder")?)?;
            std::fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
        }
        for program in ["usr/bin/agent", "usr/bin/http"] {
            std::fs::set_permissions(root.join(program), std::fs::Permissions::from_mode(0o755))?;
        }
        if !packages.is_empty() {
            for wanted in ["multi-user.target.wants", "sockets.target.wants", "remote-fs.target.wants"] {
                let _ = std::fs::remove_dir_all(root.join("etc/systemd/system").join(wanted));
            }
        }
        let wants = root.join("etc/systemd/system/multi-user.target.wants");
        std::fs::create_dir_all(&wants)?;
        symlink("../agent.service", wants.join("agent.service"))?;
        for masked in MASKED {
            let path = root.join("etc/systemd/system").join(masked);
            let _ = std::fs::remove_file(&path);
            symlink("/dev/null", path)?;
        }
        let path = folder.join("disk.ext4");
        let used = machine::run("du", &["-sm", text(&root)?])?;
        let used: u64 = used.split_whitespace().next().unwrap_or_default().parse().context("du")?;
        let size = format!("{}M", used + used / 8 + FREE_MIB);
        let made = machine::run("mkfs.ext4", &["-q", "-O", "^has_journal", "-d", text(&root)?, text(&path)?, &size]);
        std::fs::remove_dir_all(&root)?;
        made?;
        Ok(Disk { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// What is on each disk besides Debian and the programs.
const FILES: [(&str, &str); 7] = [
    ("/usr/bin/agent", include_str!("agent.sh")),
    ("/usr/bin/http", include_str!("http.sh")),
    (
        "/etc/systemd/system/agent.service",
        "[Unit]\nDescription=Scripts of the test outside\nAfter=basic.target\n\n[Service]\nExecStart=/usr/bin/agent\n\
         KillMode=process\nStandardOutput=journal+console\nStandardError=journal+console\n",
    ),
    ("/etc/hostname", "vm\n"),
    ("/etc/hosts", "127.0.0.1 localhost\n10.0.2.15 vm\n"),
    ("/etc/containerd/config.toml", CONTAINERD),
    (
        "/etc/cni/net.d/10-lab.conflist",
        r#"{"cniVersion": "1.0.0", "name": "lab", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.88.0.0/24"}}]}"#,
    ),
];

const CONTAINERD: &str = r#"version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "bulkhead.test/pause:1"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "/etc/cni/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = true
"#;

/// Units that wait for devices which nobody announces, or only take time.
const MASKED: [&str; 8] = [
    "serial-getty@ttyS0.service",
    "getty@tty1.service",
    "e2scrub_reap.service",
    "e2scrub_all.timer",
    "fstrim.timer",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
];

/// Debian as mmdebstrap unpacks it, kept between runs beside the build.
fn debian(packages: &[&str]) -> Result<PathBuf> {
    let name = [&["vm-debian"], packages].concat().join("-");
    let kept = build::target_dir().join(&name);
    if !kept.join("usr/bin/containerd").exists() {
        // Into a folder of this process first: a run that is cut off leaves no half of a Debian.
        let made = build::target_dir().join(format!("{name}.{}", std::process::id()));
        let include = format!("--include={}", [&[PACKAGES], packages].concat().join(","));
        machine::run("mmdebstrap", &["--variant=minbase", &include, "bookworm", text(&made)?])?;
        match std::fs::rename(&made, &kept) {
            Ok(()) => {}
            // Another run was first.
            Err(_) if kept.join("usr/bin/containerd").exists() => std::fs::remove_dir_all(&made)?,
            Err(error) => return Err(error).context("keeping the unpacked Debian"),
        }
    }
    Ok(kept)
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is no text")
}
