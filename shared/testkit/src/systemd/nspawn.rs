//! One run of systemd-nspawn: from its start to the moment when the systemd inside says that it is up, and to its end.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;

use crate::containerd::tail;
use crate::wait::{LONG, SHORT, insist};
use crate::{cgroups, processes, wait};

/// A running machine, seen from outside.
#[derive(Debug)]
pub(super) struct Nspawn {
    child: Child,
    /// Its PID 1.
    leader: i32,
}

/// What to start.
#[derive(Debug)]
pub(super) struct Start<'a> {
    /// For the sockets and logs of this run; on a file system that is no part of the machine.
    pub folder: &'a Path,
    pub root: &'a Path,
    /// Machine and host name.
    pub machine: &'a str,
    pub hostname: &'a str,
    pub netns: &'a Path,
    pub cgroup: &'a str,
    /// More arguments of systemd-nspawn.
    pub arguments: &'a [String],
}

impl Nspawn {
    /// Starts the machine and waits until its systemd has started everything.
    ///
    /// # Errors
    /// It ended, or was not up in time: what it wrote to its console is in the message.
    pub(super) fn start(start: &Start<'_>) -> Result<Self> {
        let notify = start.folder.join("notify.sock");
        let _ = std::fs::remove_file(&notify);
        let socket = UnixDatagram::bind(&notify).with_context(|| format!("binding {}", notify.display()))?;
        let console = start.folder.join("console.log");
        let log = std::fs::File::options().create(true).append(true).open(&console)?;
        let mut child = command(start)
            .env("NOTIFY_SOCKET", &notify)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting systemd-nspawn")?;
        match wait_ready(&socket, &mut child) {
            Ok(leader) => Ok(Self { child, leader }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error.context(format!("the machine's console said:\n{}", tail(&console, 40))))
            }
        }
    }

    pub(super) fn leader(&self) -> i32 {
        self.leader
    }

    /// Asks the systemd inside for an orderly end and waits for it.
    ///
    /// # Errors
    /// It still runs after two minutes: a unit that does not stop has 90 s by default.
    pub(super) fn power_off(&mut self) -> Result<ExitStatus> {
        // systemd-nspawn passes it on as the signal that means this to the systemd inside.
        processes::signal(self.child.id() as i32, Signal::SIGTERM);
        insist("the machine powers off", LONG, || self.child.try_wait()?.context("it still runs"))
    }

    /// Waits for the end that something inside has asked for.
    ///
    /// # Errors
    /// It still runs after two minutes.
    pub(super) fn wait_end(&mut self) -> Result<ExitStatus> {
        insist("the machine powers itself off", LONG, || self.child.try_wait()?.context("it still runs"))
    }

    /// Ends everything inside at once: with PID 1 its namespace dies.
    pub(super) fn kill(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            processes::signal(self.leader, Signal::SIGKILL);
            let ended = insist("systemd-nspawn ends", SHORT, || self.child.try_wait()?.context("it still runs"));
            if ended.is_err() {
                let _ = self.child.kill();
            }
        }
        let _ = self.child.wait();
    }
}

/// Enters the machine's cgroup in every hierarchy before it becomes systemd-nspawn: what the machine sees as the root of
/// its cgroups is this one, so that two machines, and the one that they run on, do not share theirs.
fn command(start: &Start<'_>) -> Command {
    let mut command = Command::new("/bin/sh");
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").process_group(0).stdin(Stdio::null());
    // A node's user may change the kernel's parameters, as the kubelet does at its start.
    command.env("SYSTEMD_NSPAWN_API_VFS_WRITABLE", "yes");
    let enter = r#"while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec systemd-nspawn "$@""#;
    command.args(["-c", enter, "sh"]);
    command.args(cgroups::member_files(start.cgroup)).arg("--");
    command
        .arg(format!("--directory={}", start.root.display()))
        .arg(format!("--machine={}", start.machine))
        .arg(format!("--hostname={}", start.hostname))
        .arg(format!("--network-namespace-path={}", start.netns.display()))
        // There is no systemd outside to register with.
        .args(["--quiet", "--register=no", "--keep-unit", "--boot", "--console=pipe", "--notify-ready=yes"])
        .arg("--capability=all")
        // Landlock is newer than the list of calls that systemd-nspawn allows by itself.
        .arg("--system-call-filter=@mount @keyring @privileged bpf landlock_create_ruleset landlock_add_rule landlock_restrict_self")
        .args(["--resolv-conf=off", "--timezone=off", "--link-journal=no"])
        .args(start.arguments);
    command
}

/// Reads what systemd-nspawn tells until the machine is up; gives its PID 1.
fn wait_ready(socket: &UnixDatagram, child: &mut Child) -> Result<i32> {
    let began = Instant::now();
    let (mut leader, mut ready) = (None, false);
    // In slices, so that an early end and an interrupt are noticed.
    socket.set_read_timeout(Some(Duration::from_millis(200)))?;
    let mut buffer = [0; 4096];
    loop {
        if let (Some(leader), true) = (leader, ready) {
            return Ok(leader);
        }
        if let Some(status) = child.try_wait()? {
            bail!("systemd-nspawn ended: {status}");
        }
        if wait::interrupted() {
            bail!("interrupted");
        }
        if began.elapsed() > LONG {
            bail!("the machine was not up within {} s", LONG.as_secs());
        }
        let text = match socket.recv(&mut buffer) {
            Ok(length) => String::from_utf8_lossy(&buffer[..length]).into_owned(),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
            {
                continue;
            }
            Err(error) => return Err(error).context("reading what systemd-nspawn tells"),
        };
        let told = told(&text);
        leader = told.leader.or(leader);
        ready |= told.ready;
    }
}

/// What one notification says.
#[derive(Debug, PartialEq, Eq)]
struct Notification {
    leader: Option<i32>,
    ready: bool,
}

fn told(text: &str) -> Notification {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    Notification {
        leader: value("X_NSPAWN_LEADER_PID").and_then(|pid| pid.parse().ok()),
        ready: value("READY") == Some("1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_are_read_line_by_line() {
        assert_eq!(told("X_NSPAWN_LEADER_PID=42\n"), Notification { leader: Some(42), ready: false });
        assert_eq!(told("STATUS=Startup finished\nREADY=1"), Notification { leader: None, ready: true });
        assert_eq!(told("X_NSPAWN_LEADER_PID=many\nREADY=0"), Notification { leader: None, ready: false });
    }
}
