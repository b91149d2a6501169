//! A whole machine, for what this one's kernel does not give: unified cgroup v2 under a real systemd, and vsock.
//!
//! qemu without hardware's help (some ten times slower than the machine it runs on), a stock Debian kernel, a disk made
//! from a folder. Inside, one small program takes scripts from a port of virtio-serial and answers with their exit
//! status and output: so a test outside reads like one that runs commands, and every wait ends with an answer. A script
//! that has to wait for something waits inside, where the looking costs one process and no round trip.

mod disk;
mod needs;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

pub use disk::Disk;
pub use needs::{ensure_installed, missing_packages};

/// From nothing to the first answer. Seen: 12 s on an idle machine.
const BOOT: Duration = Duration::from_secs(300);
/// For one script beyond what it waits by itself. Nothing takes a tenth of this on an idle machine.
const SCRIPT: Duration = Duration::from_secs(300);
/// Where the machine finds the one server outside that it may call.
pub const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);
/// Memory and processors of the machine; two, because two is what is there to run it on.
const MEMORY: &str = "2048";
const PROCESSORS: &str = "2";
/// All that qemu can compute but for what a kernel takes for fast and what is slow where it is computed: string instructions byte by
/// byte, a fifth level of page tables, a switch of access rights around each copy from user memory.
const PROCESSOR: &str = "max,erms=off,fsrm=off,la57=off,smap=off,smep=off";
/// The same memory on two NUMA nodes of four processors each, two threads a core. Two of the processors are online after the boot, which
/// eight would slow down. The other vendor's processors have one thread a core with this version of qemu, whatever it is told.
const TWO_NUMA_NODES: [&str; 10] = [
    "-smp",
    "8,sockets=2,cores=2,threads=2",
    "-object",
    "memory-backend-ram,id=near,size=1024M",
    "-object",
    "memory-backend-ram,id=far,size=1024M",
    "-numa",
    "node,nodeid=0,cpus=0-3,memdev=near",
    "-numa",
    "node,nodeid=1,cpus=4-7,memdev=far",
];

/// What a machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Two processors and one memory.
    Plain,
    /// Two NUMA nodes of four processors each, of which only the first two of the first node are online at first.
    TwoNumaNodes,
}

/// A machine that runs. Dropping it ends it.
#[derive(Debug)]
pub struct Vm {
    qemu: Child,
    port: BufReader<UnixStream>,
    asked: u64,
    folder: PathBuf,
}

/// How a script ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Vm {
    /// Boots the disk and waits until it answers. `folder` takes the console's output and the port's socket. Of the
    /// world outside the machine reaches `server` alone, by [`OUTSIDE`] and the same port.
    ///
    /// # Errors
    /// qemu does not start, or the machine does not answer in time: the end of its console is in the message.
    pub fn boot(disk: &Disk, folder: &Path, server: SocketAddr, shape: Shape) -> Result<Self> {
        let (kernel, initrd) = needs::kernel()?;
        let socket = folder.join("port.sock");
        let listener = UnixListener::bind(&socket).with_context(|| format!("listening on {}", socket.display()))?;
        let console = folder.join("console.log");
        File::create(&console)?;
        // Before others: a lab beside it is slower for a while, where the node in here would miss its deadlines.
        let mut command = Command::new("nice");
        command.args(["-n", "-3", needs::QEMU]);
        command.args(["-accel", "tcg,thread=multi", "-m", MEMORY]);
        let online = match shape {
            Shape::Plain => {
                command.args(["-cpu", PROCESSOR, "-smp", PROCESSORS]);
                String::new()
            }
            Shape::TwoNumaNodes => {
                command.args(["-cpu", &format!("{PROCESSOR},vendor=GenuineIntel")]).args(TWO_NUMA_NODES);
                format!(" maxcpus={PROCESSORS}")
            }
        };
        command.args(["-nodefaults", "-display", "none", "-monitor", "none", "-no-reboot"]);
        command.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
        // The disk is this boot's alone, so nothing has to survive a crash of it.
        let kernel_line = "root=/dev/vda rw console=ttyS0 quiet mitigations=off net.ifnames=0 tsc=reliable";
        command.arg("-append").arg(format!("{kernel_line}{online}"));
        command.arg("-drive").arg(format!("file={},format=raw,if=virtio,cache=unsafe", disk.path().display()));
        // A process for each connection: the other way to forward has one connection in all.
        let busybox = crate::machine::static_busybox().context("no static busybox here")?;
        let (address, port) = (server.ip(), server.port());
        command.arg("-nic").arg(format!(
            "user,model=virtio-net-pci,restrict=on,guestfwd=tcp:{OUTSIDE}:{port}-cmd:{} nc {address} {port}",
            busybox.display()
        ));
        command.arg("-serial").arg(format!("file:{}", console.display()));
        command.args(["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=port,name=bulkhead.port"]);
        command.arg("-chardev").arg(format!("socket,id=port,path={}", socket.display()));
        let log = File::create(folder.join("qemu.log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let mut qemu = command.spawn().context("starting qemu")?;
        let connected = connect(&listener, &mut qemu);
        let mut vm = match connected {
            Ok(stream) => Vm { qemu, port: BufReader::new(stream), asked: 0, folder: folder.to_owned() },
            Err(error) => {
                let _ = qemu.kill();
                let _ = qemu.wait();
                let said = std::fs::read_to_string(folder.join("qemu.log")).unwrap_or_default();
                return Err(error.context(said));
            }
        };
        let hello = vm.line(BOOT).with_context(|| format!("the machine does not come up\n{}", vm.console(30)))?;
        ensure!(hello == "ready", "the machine said {hello:?} instead of \"ready\"");
        Ok(vm)
    }

    /// Runs a bash script, whatever its status.
    ///
    /// # Errors
    /// No answer in time, or none that can be understood.
    pub fn script(&mut self, script: &str) -> Result<Ended> {
        self.ask(script, Duration::ZERO)
    }

    /// `waits`: how long the script may wait for something.
    fn ask(&mut self, script: &str, waits: Duration) -> Result<Ended> {
        self.asked += 1;
        let asked = self.asked;
        let line = format!("{asked} {}\n", BASE64.encode(script));
        self.port.get_mut().write_all(line.as_bytes()).context("writing to the machine")?;
        let answer =
            self.line(SCRIPT + waits).with_context(|| format!("no answer to {script:?}\n{}", self.console(30)))?;
        let mut parts = answer.split(' ');
        let mut part = || parts.next().with_context(|| format!("an answer that is cut short: {answer:?}"));
        ensure!(part()? == asked.to_string(), "an answer to something else: {answer:?}");
        let status = part()?.parse().context("exit status")?;
        let mut text = || -> Result<String> { Ok(String::from_utf8_lossy(&BASE64.decode(part()?)?).into_owned()) };
        Ok(Ended { status, stdout: text()?, stderr: text()? })
    }

    /// Runs a bash script (`set -eu`) and gives what it printed, without the last newline.
    ///
    /// # Errors
    /// As for [`Vm::script`], and any status but 0: its output is in the message.
    pub fn run(&mut self, script: &str) -> Result<String> {
        self.run_waiting(script, Duration::ZERO)
    }

    fn run_waiting(&mut self, script: &str, waits: Duration) -> Result<String> {
        let Ended { status, stdout, stderr } = self.ask(&format!("set -eu\n{script}"), waits)?;
        ensure!(status == 0, "in the machine:\n{script}\nended with {status}\n{stdout}\n{stderr}");
        Ok(stdout.trim_end_matches('\n').to_owned())
    }

    /// Waits inside until the script (`set -eu`: until none of its commands fails) ends with 0, and gives what it printed
    /// then.
    ///
    /// # Errors
    /// As for [`Vm::run`]; with the last output when it does not come true within `seconds`.
    pub fn until(&mut self, what: &str, seconds: u32, script: &str) -> Result<String> {
        self.run_waiting(&waiting(seconds, script), Duration::from_secs(seconds.into()))
            .with_context(|| format!("{what}: not within {seconds} s"))
    }

    /// The end of what the machine wrote to its console.
    pub fn console(&self, lines: usize) -> String {
        let text = std::fs::read(self.folder.join("console.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Processor seconds that the machine has used so far: tells a slow machine from a busy one.
    pub fn cpu_seconds(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.qemu.id())).unwrap_or_default();
        // proc_pid_stat(5): utime and stime are the 12th and 13th after the name, in hundredths on every Linux.
        let after = stat.rsplit(')').next().unwrap_or_default();
        after.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() / 100
    }

    /// One line from the machine. Waits for it until the machine ends or the time is up.
    fn line(&mut self, patience: Duration) -> Result<String> {
        let end = Instant::now() + patience;
        let mut line = Vec::new();
        loop {
            if let Some(status) = self.qemu.try_wait()? {
                bail!("qemu ended: {status}");
            }
            let left = end.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "not within {} s", patience.as_secs());
            // A second at a time, so that the machine's end is noticed.
            self.port.get_ref().set_read_timeout(Some(left.min(Duration::from_secs(1))))?;
            match self.port.read_until(b'\n', &mut line) {
                Ok(0) => bail!("the machine has closed its port"),
                Ok(_) if line.ends_with(b"\n") => {
                    return Ok(String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned());
                }
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("reading from the machine"),
            }
        }
    }
}

/// A script that runs another one until it succeeds. That one runs where nothing asks for its status but the line after it:
/// as the condition of a loop, or before `||`, bash would let it go on after a command that failed, whatever `set -e` says.
fn waiting(seconds: u32, script: &str) -> String {
    format!(
        "SECONDS=0\nset +e\nwhile :; do\nout=$(exec 2>&1; set -eu\n{script}\n)\n\
         if [ $? = 0 ]; then printf '%s\\n' \"$out\"; exit 0; fi\n\
         if [ $SECONDS -ge {seconds} ]; then printf '%s\\n' \"$out\" >&2; exit 1; fi\n\
         if [ $SECONDS -lt 2 ]; then sleep 0.3; else sleep 1; fi\ndone"
    )
}

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Waits for qemu's end of the port, which it connects before the machine runs.
fn connect(listener: &UnixListener, qemu: &mut Child) -> Result<UnixStream> {
    listener.set_nonblocking(true)?;
    crate::wait::insist("qemu connects", crate::SHORT, || {
        if let Some(status) = qemu.try_wait()? {
            return Ok(Err(anyhow::anyhow!("qemu ended: {status}")));
        }
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(false)?;
        Ok(Ok(stream))
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status and output of a wait, as the machine's bash would run it.
    fn wait(script: &str) -> (Option<i32>, String) {
        let script = format!("set -eu\n{}", waiting(0, script));
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    #[test]
    fn a_wait_is_over_when_no_command_fails() {
        assert_eq!(wait("echo a; echo b"), (Some(0), "a\nb\n".into()));
        // What comes after a command that failed does not count, and is not run.
        assert_eq!(wait("false; echo b"), (Some(1), String::new()));
        assert_eq!(wait("echo a; [ 1 = 2 ]; echo b"), (Some(1), String::new()));
        assert_eq!(wait("echo $nothing; echo b"), (Some(1), String::new()));
        assert_eq!(wait("! true").0, Some(1));
        let file = tempfile::NamedTempFile::new().unwrap();
        let once = format!("[ -s {0} ] || {{ echo more > {0}; false; }}; cat {0}", file.path().display());
        let script = format!("set -eu\n{}", waiting(60, &once));
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "more\n");
    }
}
