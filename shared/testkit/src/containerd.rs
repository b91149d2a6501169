//! A containerd of the lab's own: own root, state, socket and CNI folders, started inside the lab's network namespace
//! but in the machine's mount namespace, because the node's mounts must be visible to it and the other way round.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use parking_lot::{Mutex, MutexGuard};
use sha2::{Digest, Sha256};

use crate::netns::NetNs;
use crate::release::Programs;
use crate::wait::{SHORT, eventually};
use crate::{image, machine, mounts, prepared_root, processes};

/// A running (or stopped) private containerd.
#[derive(Debug)]
pub struct Containerd {
    folder: PathBuf,
    netns: PathBuf,
    programs: Programs,
    child: Mutex<Option<Child>>,
}

impl Containerd {
    /// Writes the configuration below `folder`, and starts containerd with the images.
    ///
    /// # Errors
    /// containerd did not come up: the end of its log is in the message.
    pub(crate) fn start(folder: PathBuf, netns: &NetNs, programs: Programs) -> Result<Self> {
        let containerd = Self::create(folder, netns, programs)?;
        prepared_root::lay(&containerd.folder.join("root"), netns, &containerd.programs)?;
        match containerd.spawn() {
            Ok(()) => Ok(containerd),
            Err(error) => {
                containerd.tear_down();
                Err(error)
            }
        }
    }

    /// One that is configured and not started.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn create(folder: PathBuf, netns: &NetNs, programs: Programs) -> Result<Self> {
        std::fs::create_dir_all(&folder)?;
        netns.write_cni_config(&folder.join("cni"), &folder.join("ipam"))?;
        let containerd = Self { folder, netns: netns.path(), programs, child: Mutex::new(None) };
        std::fs::write(containerd.folder.join("config.toml"), containerd.config())?;
        Ok(containerd)
    }

    /// What it is made of, with the versions.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// The CRI socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("containerd.sock")
    }

    /// As `containerRuntimeEndpoint` wants it.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// containerd's own log.
    pub fn log(&self) -> PathBuf {
        self.folder.join("containerd.log")
    }

    /// The newest warnings and errors of that log.
    pub fn complaints(&self, lines: usize) -> String {
        let text = std::fs::read_to_string(self.log()).unwrap_or_default();
        let all: Vec<&str> =
            text.lines().filter(|line| line.contains("level=warning") || line.contains("level=error")).collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Addresses that CNI has given out, with the sandbox that holds each.
    pub fn addresses(&self) -> Vec<(String, String)> {
        let Ok(entries) = std::fs::read_dir(self.folder.join("ipam/bulkhead-lab")) else { return Vec::new() };
        let mut found: Vec<(String, String)> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                name.parse::<std::net::IpAddr>().ok()?;
                let owner = std::fs::read_to_string(entry.path()).unwrap_or_default();
                Some((name, owner.lines().next().unwrap_or_default().to_owned()))
            })
            .collect();
        found.sort();
        found
    }

    /// Network namespaces of sandboxes.
    pub fn network_namespaces(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.folder.join("state/io.containerd.grpc.v1.cri/netns")) else {
            return Vec::new();
        };
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Shim processes that serve this containerd.
    pub fn shims(&self) -> Vec<i32> {
        self.shim_processes().into_iter().map(|(pid, _)| pid).collect()
    }

    /// The daemon, where it runs, and its shims: what the runtime costs.
    pub fn processes(&self) -> Vec<i32> {
        let child = self.child.lock();
        let daemon = child.as_ref().map(|child| child.id() as i32);
        daemon.into_iter().chain(self.shims()).collect()
    }

    fn shim_processes(&self) -> Vec<(i32, Vec<String>)> {
        let socket = self.socket().to_string_lossy().into_owned();
        processes::all()
            .into_iter()
            .filter(|(_, arguments)| {
                arguments.first().is_some_and(|program| program.contains("containerd-shim"))
                    && arguments.iter().any(|argument| argument.strip_prefix("unix://").unwrap_or(argument) == socket)
            })
            .collect()
    }

    /// Ends shims of containers that the runtime does not list any more, and says so. containerd 1.6 starts a shim
    /// within its caller's request: when the caller dies meanwhile the start is given up, and the shim, already there, stays
    /// without anybody who knows of it. Any client does that: of 150 runs of its own `ctr`, each killed within 155 ms, 13
    /// left such a process for good, through the container's removal and the daemon's restart. None can be found through
    /// the CRI.
    ///
    /// # Errors
    /// The runtime does not answer.
    pub fn end_lost_shims(&self) -> Result<()> {
        let known = self.ctr(&["containers", "ls", "--quiet"])?;
        for (pid, arguments) in self.shim_processes() {
            let id = arguments.iter().skip_while(|argument| *argument != "-id").nth(1).cloned().unwrap_or_default();
            if !known.lines().any(|one| one == id) {
                eprintln!("containerd has lost the shim {pid} of {id}: ended");
                processes::signal(pid, nix::sys::signal::Signal::SIGKILL);
            }
        }
        Ok(())
    }

    /// Stops the daemon as an upgrade would (pods stay) and starts it again.
    ///
    /// # Errors
    /// It did not end or did not come up.
    pub fn restart(&self) -> Result<()> {
        self.stop()?;
        self.spawn()
    }

    /// SIGKILL; pods stay. [`Containerd::spawn`] brings it back.
    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// SIGTERM and wait; pods stay.
    ///
    /// # Errors
    /// It was still running after the limit.
    pub fn stop(&self) -> Result<()> {
        let Some(mut child) = self.child().take() else { return Ok(()) };
        processes::signal(child.id() as i32, Signal::SIGTERM);
        let ended = eventually("containerd ends", SHORT, || match child.try_wait()? {
            Some(_) => Ok(()),
            None => bail!("still running"),
        });
        if ended.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        ended
    }

    /// Starts the daemon and waits until it answers.
    ///
    /// # Errors
    /// It did not answer in time: the end of its log is in the message.
    pub fn spawn(&self) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log()).context("opening containerd's log")?;
        let child = in_namespace(&self.netns, &self.programs.program("containerd"))
            .env("PATH", self.programs.path())
            .arg("--config")
            .arg(self.folder.join("config.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting containerd")?;
        *self.child() = Some(child);
        let answer = eventually("containerd answers", SHORT, || {
            if let Some(status) = self.child().as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                bail!("containerd ended: {status}");
            }
            self.ctr(&["version"]).map(|_| ())
        });
        answer.with_context(|| format!("containerd's log ends:\n{}", tail(&self.log(), 20)))
    }

    /// `ctr` against this containerd.
    ///
    /// # Errors
    /// What ctr said.
    pub fn ctr(&self, arguments: &[&str]) -> Result<String> {
        let socket = self.socket();
        let socket = socket.to_string_lossy();
        let mut all = vec!["--address", &*socket, "--namespace", "k8s.io"];
        all.extend(arguments);
        machine::run(&self.programs.program("ctr").to_string_lossy(), &all)
    }

    /// Imports an archive and waits until CRI knows these images of it.
    pub(crate) fn import(&self, archive: &Path, names: &[&str]) -> Result<()> {
        self.ctr(&["images", "import", &archive.to_string_lossy()])?;
        // The CRI side learns of an image through an event and then labels it: before that it would try to pull.
        eventually("the images are known to CRI", SHORT, || {
            let list = self.ctr(&["images", "ls"])?;
            for name in names {
                if !list.lines().any(|line| line.starts_with(name) && line.contains("io.cri-containerd.image=managed"))
                {
                    bail!("{name} is not managed yet");
                }
            }
            Ok(())
        })
    }

    /// Ends the daemon, its shims and whatever they still hold mounted.
    pub(crate) fn tear_down(&self) {
        self.kill();
        remove_traces_of(&self.folder);
        for shim in self.shims() {
            processes::signal(shim, Signal::SIGKILL);
        }
        mounts::detach_below(&self.folder);
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        // The lock guards a plain handle: a panic elsewhere leaves nothing half-done in it.
        self.child.lock()
    }

    fn config(&self) -> String {
        let at = |name: &str| self.folder.join(name).display().to_string();
        let layout = Layout {
            root: &at("root"),
            state: &at("state"),
            socket: &self.socket().display().to_string(),
            opt: &at("opt"),
            cni_bin: machine::cni_bin_dir(),
            cni_conf: &at("cni"),
            overlay: machine::overlay_possible(&self.folder),
        };
        let crun = self.programs.crun();
        if self.programs.is_2() { layout.config_of_2(crun.as_deref()) } else { layout.config() }
    }
}

/// Where a containerd has its folders, and what its file systems allow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout<'a> {
    pub root: &'a str,
    pub state: &'a str,
    pub socket: &'a str,
    pub opt: &'a str,
    pub cni_bin: &'a str,
    pub cni_conf: &'a str,
    /// Whether overlayfs can lie on `root`.
    pub overlay: bool,
}

impl Layout<'_> {
    /// The content of config.toml, in version 2, which all of 1.x reads.
    pub(crate) fn config(&self) -> String {
        let Self { root, state, socket, opt, cni_bin, cni_conf, overlay } = self;
        let snapshotter = if *overlay { "overlayfs" } else { "native" };
        format!(
            r#"version = 2
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.tracing"]

[grpc]
  address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{opt}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Where CAP_SYS_RESOURCE is withheld, runc cannot lower oom_score_adj and every sandbox would fail.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_bin}"
    conf_dir = "{cni_conf}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"#,
            pause = image::PAUSE,
        )
    }

    /// The same for 2.x, in version 3. `crun`: a second OCI runtime, for pods whose runtime class names it.
    pub(crate) fn config_of_2(&self, crun: Option<&Path>) -> String {
        let Self { root, state, socket, opt, cni_bin, cni_conf, overlay } = self;
        let snapshotter = if *overlay { "overlayfs" } else { "native" };
        let crun = crun.map(|program| {
            format!(
                r#"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.crun]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.crun.options]
      BinaryName = "{}"
"#,
                program.display()
            )
        });
        format!(
            r#"version = 3
root = "{root}"
state = "{state}"
# NRI's socket has a fixed place: it is the machine's, not a lab's.
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.tracing", "io.containerd.nri.v1.nri"]

[grpc]
  address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{opt}"

[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{snapshotter}"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
  # Where CAP_SYS_RESOURCE is withheld, runc cannot lower oom_score_adj and every sandbox would fail.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  # The machine's, where drivers that run as pods write, and a lab's own: what a test's driver writes there is gone with the lab.
  cdi_spec_dirs = ["/var/run/cdi", "{state}/cdi"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{cni_bin}"]
    conf_dir = "{cni_conf}"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
{crun}"#,
            pause = image::PAUSE,
            crun = crun.unwrap_or_default(),
        )
    }
}

/// Removes what the runtime and CNI keep at fixed places outside their own folders for sandboxes that were not ended in
/// order: the shims' sockets and the cached results of network set-ups. To be called before the shims are killed.
pub(crate) fn remove_traces_of(folder: &Path) {
    let names = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    let socket = folder.join("containerd.sock");
    let mut ids: BTreeSet<String> =
        names(folder.join("state/io.containerd.runtime.v2.task/k8s.io")).into_iter().collect();
    for address in names(folder.join("ipam/bulkhead-lab")) {
        let owner = std::fs::read_to_string(folder.join("ipam/bulkhead-lab").join(address)).unwrap_or_default();
        ids.extend(owner.lines().next().map(str::to_owned));
    }
    for (_, arguments) in processes::all() {
        let ours = arguments.iter().any(|argument| Path::new(argument) == socket);
        let id = arguments.iter().position(|argument| argument == "-id").and_then(|at| arguments.get(at + 1));
        ids.extend(id.filter(|_| ours).cloned());
    }
    for id in ids {
        // As containerd's shims name their sockets.
        let name = format!("{}/k8s.io/{id}", socket.display());
        let digest = image::hex(&Sha256::digest(name.as_bytes()));
        let _ = std::fs::remove_file(Path::new("/run/containerd/s").join(digest));
        for cached in [format!("bulkhead-lab-{id}-eth0"), format!("cni-loopback-{id}-lo")] {
            let _ = std::fs::remove_file(Path::new("/var/lib/cni/results").join(cached));
        }
    }
}

/// A command that runs `program` inside a network namespace and in a process group of its own, so that a Ctrl-C in the
/// terminal reaches the lab's owner alone. The program replaces nsenter, so the child's pid is the program's.
pub(crate) fn in_namespace(netns: &Path, program: &Path) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", netns.display())).arg("--").arg(program).process_group(0);
    // A lab that runs under a supervisor must not hand the supervisor's sockets to the node under test.
    for name in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"] {
        command.env_remove(name);
    }
    command
}

/// The last lines of a log, without those that our own asking for its health has caused.
pub(crate) fn tail(path: &Path, lines: usize) -> String {
    let text = std::fs::read(path).map(|raw| String::from_utf8_lossy(&raw).into_owned()).unwrap_or_default();
    let all: Vec<&str> = text.lines().filter(|line| !line.contains("healthz check failed")).collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// How long a clean stop of the whole agent may take.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(20);
