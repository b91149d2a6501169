//! A machine of its own: a Debian whose PID 1 is a real systemd, in systemd-nspawn, with containerd in it and a network
//! by which it is reached from outside. Units, sockets, watchdogs, users and hardening are tried here as they are on a node.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use bulkhead_testkit::build;
//! use bulkhead_testkit::systemd::{Machine, MachineBuilder};
//! let machine = Machine::boot(MachineBuilder::new())?;
//! machine.install_programs(&build::bin_dir()?)?;
//! machine.install_units(&build::workspace_root())?;
//! machine.configure_kubelet(&machine.kubelet_config())?;
//! machine.check(&["systemctl", "start", "kubelet"])?;
//! # Ok(()) }
//! ```
//!
//! Numbers, addresses, folder and cgroup are those of a lab ([`crate::Lab`]), claimed in the same way: what a killed
//! test left behind is removed by the next lab or machine. Dropped, a machine dies at once; [`Machine::finish`] powers it
//! off in order and looks whether anything is left.

mod console;
mod installation;
mod journal;
mod nspawn;
mod root;
mod units;
#[cfg(feature = "grpc")]
mod witness;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

#[cfg(feature = "vm")]
pub(crate) use self::installation::unit_files;
pub use self::installation::{KUBECONFIG, KUBELET_CONFIG, LIBEXEC, MANIFESTS};
use self::nspawn::{Nspawn, Start};
pub use self::units::{SERVICES, Unit};
use crate::lab::{self, Claim};
use crate::netns::NetNs;
use crate::{cgroups, loops, machine, mounts};

/// What every machine has besides what Debian installs, in systemd's folder for the administrator.
const CGROUPS_WRITABLE: &str = "\
[Unit]
Description=Let this machine manage its own cgroups
DefaultDependencies=no
Before=sysinit.target
ConditionPathIsReadWrite=!/sys/fs/cgroup/memory
ConditionPathExists=/sys/fs/cgroup/memory

[Service]
Type=oneshot
# systemd-nspawn mounts the hierarchies of version 1 read-only. They begin at the machine's own cgroup.
ExecStart=/bin/sh -c 'for one in /sys/fs/cgroup/*/; do mount -o remount,bind,rw \"$one\"; done; mount -o remount,ro /sys/fs/cgroup'
";

/// Units that a machine in a test should not have: they would change the kernel's parameters for all, or wait for the internet.
const MASKED: &[&str] =
    &["systemd-sysctl.service", "console-getty.service", "apt-daily.timer", "apt-daily-upgrade.timer"];

/// The folder, in the machine's own outside, that is its /var/lib/containerd.
const IMAGES: &str = "containerd";

/// Its disk, MiB. It has one of its own, so that nodes in it come under pressure by what is in it, and not by how full this machine is.
const DISK_MIB: u64 = 32 << 10;

/// A machine that is being described.
#[derive(Debug)]
pub struct MachineBuilder {
    hostname: String,
    packages: Vec<String>,
    arguments: Vec<String>,
    /// Where it is inside, and its size, MiB.
    disk: Option<(String, u64)>,
    runtime: bool,
    beside: bool,
}

impl Default for MachineBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl MachineBuilder {
    /// A machine named `alpha` with containerd.
    pub fn new() -> Self {
        let hostname = "alpha".to_owned();
        Self { hostname, packages: Vec::new(), arguments: Vec::new(), disk: None, runtime: true, beside: false }
    }

    /// Another host name.
    pub fn named(mut self, hostname: &str) -> Self {
        hostname.clone_into(&mut self.hostname);
        self
    }

    /// One more package of Debian. Each set of packages is a root of its own, made once in about 20 s.
    pub fn package(mut self, name: &str) -> Self {
        self.packages.push(name.to_owned());
        self
    }

    /// Shows a file or folder of this machine in the other one, for reading.
    pub fn bind_read_only(mut self, outside: &Path, inside: &str) -> Self {
        self.arguments.push(format!("--bind-ro={}:{inside}", outside.display()));
        self
    }

    /// A file system of its own, MiB, at a folder inside. Outside it is [`Machine::disk`].
    pub fn disk(mut self, inside: &str, megabytes: u64) -> Self {
        self.disk = Some((inside.to_owned(), megabytes));
        self
    }

    /// One more argument of systemd-nspawn.
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    /// containerd as Debian configures it, not started, without images.
    pub fn without_runtime(mut self) -> Self {
        self.runtime = false;
        self
    }

    /// Does not wait until no other test has a lab or a machine.
    pub fn beside(mut self) -> Self {
        self.beside = true;
        self
    }
}

/// A machine that runs, or that was powered off.
#[derive(Debug)]
pub struct Machine {
    number: u8,
    hostname: String,
    folder: PathBuf,
    root: PathBuf,
    arguments: Vec<String>,
    finished: bool,
    // Order of fields is order of drop: the number is given back last.
    nspawn: Option<Nspawn>,
    netns: NetNs,
    _exclusive: Option<Claim>,
    _claim: Claim,
}

/// What a machine has before it runs.
struct Made {
    folder: PathBuf,
    root: PathBuf,
    netns: NetNs,
}

impl Made {
    fn make(number: u8, cached: &Path) -> Result<Self> {
        let folder = lab::folder(number).join("machine");
        let images = folder.join(IMAGES);
        std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        loops::mount_new(&folder.with_extension("img"), DISK_MIB, &folder)?;
        std::fs::create_dir(&images).with_context(|| format!("creating {}", images.display()))?;
        cgroups::create(&lab::cgroup(number))?;
        let root = root::copy(cached, &folder)?;
        Ok(Self { folder, root, netns: NetNs::create(number)? })
    }
}

impl Machine {
    /// Makes the machine and waits until its systemd has started everything (about a second; the first one of a set of
    /// packages is made before, in about 20 s).
    ///
    /// # Errors
    /// Not root, something cannot be installed, or a unit failed: what the console and the journal said.
    pub fn boot(builder: MachineBuilder) -> Result<Self> {
        if !machine::is_root() {
            bail!("a machine needs root: it makes network namespaces, cgroups and mounts");
        }
        let say = |line: &str| eprintln!("{line}");
        machine::ensure_installed_for_tests(&say)?;
        let cached = root::cached(&builder.packages, &say)?;
        let exclusive = if builder.beside { None } else { Some(lab::only_machine()?) };
        let (number, claim) = lab::claim_number()?;
        let Made { folder, root, netns } = Made::make(number, &cached).inspect_err(|_| lab::tear_down(number))?;
        let MachineBuilder { hostname, mut arguments, disk, runtime, .. } = builder;
        // Images and containers are overlays themselves, which cannot lie on another one.
        arguments.push(format!("--bind={}:/var/lib/containerd", folder.join(IMAGES).display()));
        // From here on dropping it takes down what there is.
        let mut machine = Self {
            number,
            hostname,
            folder,
            root,
            arguments,
            finished: false,
            nspawn: None,
            netns,
            _exclusive: exclusive,
            _claim: claim,
        };
        if let Some((inside, megabytes)) = disk {
            let at = machine.disk();
            std::fs::create_dir(&at).with_context(|| format!("creating {}", at.display()))?;
            loops::mount_new(&at.with_extension("img"), megabytes, &at)?;
            machine.arguments.push(format!("--bind={}:{inside}", at.display()));
        }
        machine.prepare(runtime)?;
        machine.start()?;
        let state = machine.run(&["systemctl", "is-system-running", "--wait"])?;
        if !state.status.success() {
            let failed = machine.check(&["systemctl", "--failed", "--no-legend", "--plain"])?;
            let said = machine.journal(&["--priority=warning", "--lines=40"]).unwrap_or_default();
            bail!("the machine is {}:\n{failed}{said}", String::from_utf8_lossy(&state.stdout).trim());
        }
        if runtime {
            machine.import_images().map_err(|error| error.context(machine.last_words(&["containerd"], 20)))?;
        }
        Ok(machine)
    }

    fn prepare(&self, runtime: bool) -> Result<()> {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid").context("reading a random id")?;
        self.write("/etc/machine-id", format!("{}\n", id.trim().replace('-', "")).as_bytes(), 0o444)?;
        self.write("/etc/hostname", format!("{}\n", self.hostname).as_bytes(), 0o644)?;
        let hosts = format!("127.0.0.1 localhost\n{} {}\n", self.address(), self.hostname);
        self.write("/etc/hosts", hosts.as_bytes(), 0o644)?;
        self.write("/etc/resolv.conf", b"", 0o644)?;
        // Journals that survive the machine's end are read from outside; tests look for lines that must not be dropped.
        self.write(
            "/etc/systemd/journald.conf.d/lab.conf",
            b"[Journal]\nStorage=persistent\nRateLimitIntervalSec=0\nSystemMaxUse=512M\n",
            0o644,
        )?;
        let units = "/etc/systemd/system";
        self.write(&format!("{units}/lab-cgroups.service"), CGROUPS_WRITABLE.as_bytes(), 0o644)?;
        self.link(&format!("{units}/sysinit.target.wants/lab-cgroups.service"), "../lab-cgroups.service")?;
        for unit in MASKED {
            self.link(&format!("{units}/{unit}"), "/dev/null")?;
        }
        if runtime {
            self.configure_runtime()
        } else {
            // Debian's package enables it.
            let wanted = self.outside(&format!("{units}/multi-user.target.wants/containerd.service"));
            if wanted.is_symlink() { std::fs::remove_file(&wanted).context("disabling containerd") } else { Ok(()) }
        }
    }

    fn link(&self, path: &str, target: &str) -> Result<()> {
        let link = self.outside(path);
        if let Some(folder) = link.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        }
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(target, &link).with_context(|| format!("linking {}", link.display()))
    }

    // === Its life ===

    /// Starts a machine that was powered off.
    ///
    /// # Errors
    /// It runs already, or did not come up.
    pub fn start(&mut self) -> Result<()> {
        ensure!(self.nspawn.is_none(), "the machine runs already");
        let cgroup = lab::cgroup(self.number);
        cgroups::create(&cgroup)?;
        let start = Start {
            folder: &self.folder,
            root: &self.root,
            machine: &name(self.number),
            hostname: &self.hostname,
            netns: &self.netns.path(),
            cgroup: &cgroup,
            arguments: &self.arguments,
        };
        self.nspawn = Some(Nspawn::start(&start)?);
        Ok(())
    }

    /// Powers it off in order, as `systemctl poweroff` does.
    ///
    /// # Errors
    /// It still runs after two minutes.
    pub fn power_off(&mut self) -> Result<()> {
        self.ended(Nspawn::power_off)
    }

    /// Waits until it is off, after a command inside has asked for that.
    ///
    /// # Errors
    /// It still runs after two minutes.
    pub fn wait_powered_off(&mut self) -> Result<()> {
        self.ended(Nspawn::wait_end)
    }

    fn ended(&mut self, end: fn(&mut Nspawn) -> Result<std::process::ExitStatus>) -> Result<()> {
        let mut nspawn = self.nspawn.take().context("the machine does not run")?;
        let ended = end(&mut nspawn);
        nspawn.kill();
        // What its systemd has left of its cgroups is not the next boot's.
        cgroups::kill_and_remove(&lab::cgroup(self.number))?;
        ended.map(drop)
    }

    /// Off and on again.
    ///
    /// # Errors
    /// It did not go down, or not come up.
    pub fn reboot(&mut self) -> Result<()> {
        self.power_off()?;
        self.start()
    }

    /// The end: powered off, taken down, and nothing of it left outside.
    ///
    /// # Errors
    /// It did not power off in order, or what is left, one line for each thing.
    pub fn finish(mut self) -> Result<()> {
        if self.nspawn.is_some() {
            self.power_off()?;
        }
        let (number, folder) = (self.number, self.folder.clone());
        self.finished = true;
        drop(self);
        let mut left: Vec<String> =
            mounts::below(&folder).iter().map(|mount| format!("mount {}", mount.display())).collect();
        left.extend(
            cgroups::member_files(&lab::cgroup(number))
                .iter()
                .filter(|file| file.exists())
                .map(|file| format!("cgroup {}", file.display())),
        );
        left.extend(folder.exists().then(|| format!("folder {}", folder.display())));
        left.extend(crate::processes::with_argument_below(&folder).iter().map(|pid| format!("process {pid}")));
        ensure!(left.is_empty(), "{} things are left of the machine:\n  {}", left.len(), left.join("\n  "));
        Ok(())
    }

    // === What it is ===

    /// Its file system from outside, without what it has on a tmpfs (/run, /tmp, /dev) and without /var/lib/containerd.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Its file system with everything that it has mounted, as its PID 1 sees it.
    ///
    /// # Errors
    /// It does not run.
    pub fn live_root(&self) -> Result<PathBuf> {
        Ok(PathBuf::from(format!("/proc/{}/root", self.leader()?)))
    }

    /// Its PID 1, by its number outside.
    ///
    /// # Errors
    /// It does not run.
    pub fn leader(&self) -> Result<i32> {
        Ok(self.nspawn.as_ref().context("the machine does not run")?.leader())
    }

    /// A folder outside that lives and dies with the machine.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What [`MachineBuilder::disk`] has made, from outside.
    pub fn disk(&self) -> PathBuf {
        self.folder.with_file_name("disk")
    }

    pub fn hostname(&self) -> &str {
        &self.hostname
    }

    /// Its network: a veth whose other end, [`NetNs::gateway`], is outside.
    pub fn netns(&self) -> &NetNs {
        &self.netns
    }

    /// Its address, which is reached from outside.
    pub fn address(&self) -> Ipv4Addr {
        self.netns.address()
    }

    /// The cgroup, in all hierarchies, that it runs in. It sees that one as the root.
    pub fn cgroup(&self) -> String {
        lab::cgroup(self.number)
    }

    /// A cluster outside of it that it can reach: the stand-in, or with `KUBEBUILDER_ASSETS` a real control plane.
    ///
    /// # Errors
    /// A server did not start.
    #[cfg(feature = "apiserver")]
    pub fn cluster(&self, mut config: bulkhead_apiserver::Config) -> Result<crate::Cluster> {
        config.listen = std::net::SocketAddr::new(self.netns.gateway().into(), config.listen.port());
        crate::Cluster::start(&self.folder.join("cluster"), config)
    }

    /// The same, always the stand-in: for tests that look behind the API.
    ///
    /// # Errors
    /// It did not start.
    #[cfg(feature = "apiserver")]
    pub fn stand_in(&self, mut config: bulkhead_apiserver::Config) -> Result<crate::Cluster> {
        config.listen = std::net::SocketAddr::new(self.netns.gateway().into(), config.listen.port());
        crate::Cluster::stand_in(&self.folder.join("cluster"), config)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if !self.finished && self.nspawn.is_some() {
            eprintln!("{}", self.last_words(&["kubelet*", "containerd"], 30));
        }
        if let Some(mut nspawn) = self.nspawn.take() {
            nspawn.kill();
        }
        lab::tear_down(self.number);
    }
}

fn name(number: u8) -> String {
    format!("bulkhead-{number}")
}

/// Removes what systemd-nspawn keeps at fixed places for a machine of this number.
pub(crate) fn remove_traces(number: u8) {
    let _ = std::fs::remove_dir(Path::new("/run/systemd/nspawn/propagate").join(name(number)));
    let _ = std::fs::remove_dir(Path::new("/run/systemd/nspawn/unix-export").join(name(number)));
}
