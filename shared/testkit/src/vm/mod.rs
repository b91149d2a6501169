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
const BOOT: Duration = Duration::from_secs(180);
/// For one script; the longest ones start pods. Nothing is slow by a tenth of this on an idle machine.
const SCRIPT: Duration = Duration::from_secs(180);
/// Memory and processors of the machine; two, because two is what is there to run it on.
const MEMORY: &str = "2048";
const PROCESSORS: &str = "2";

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
    /// Boots the disk and waits until it answers. `folder` takes the console's output and the port's socket.
    ///
    /// # Errors
    /// qemu does not start, or the machine does not answer in time: the end of its console is in the message.
    pub fn boot(disk: &Disk, folder: &Path) -> Result<Self> {
        let (kernel, initrd) = needs::kernel()?;
        let socket = folder.join("port.sock");
        let listener = UnixListener::bind(&socket).with_context(|| format!("listening on {}", socket.display()))?;
        let console = folder.join("console.log");
        File::create(&console)?;
        let mut command = Command::new(needs::QEMU);
        command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", PROCESSORS, "-m", MEMORY]);
        command.args(["-nodefaults", "-display", "none", "-monitor", "none", "-no-reboot"]);
        command.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
        // The disk is this boot's alone, so nothing has to survive a crash of it.
        command.args(["-append", "root=/dev/vda rw console=ttyS0 quiet mitigations=off net.ifnames=0"]);
        command.arg("-drive").arg(format!("file={},format=raw,if=virtio,cache=unsafe", disk.path().display()));
        command.args(["-nic", "user,model=virtio-net-pci,restrict=on"]);
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
        self.asked += 1;
        let asked = self.asked;
        let line = format!("{asked} {}\n", BASE64.encode(script));
        self.port.get_mut().write_all(line.as_bytes()).context("writing to the machine")?;
        let answer = self.line(SCRIPT).with_context(|| format!("no answer to {script:?}\n{}", self.console(30)))?;
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
        let ended = self.script(&format!("set -eu\n{script}"))?;
        let Ended { status, stdout, stderr } = ended;
        ensure!(status == 0, "in the machine:\n{script}\nended with {status}\n{stdout}\n{stderr}");
        Ok(stdout.trim_end_matches('\n').to_owned())
    }

    /// Waits inside until the script ends with 0, and gives what it printed then.
    ///
    /// # Errors
    /// As for [`Vm::run`]; with the last output when it does not come true within `seconds`.
    pub fn until(&mut self, what: &str, seconds: u32, script: &str) -> Result<String> {
        let waiting = format!(
            "look() {{ (set -eu; {script}\n) }}\nSECONDS=0\nuntil out=$(look 2>&1); do\n\
             [ $SECONDS -lt {seconds} ] || {{ echo \"$out\" >&2; exit 1; }}\nsleep 0.3\ndone\nprintf '%s\\n' \"$out\""
        );
        self.run(&waiting).with_context(|| format!("{what}: not within {seconds} s"))
    }

    /// The end of what the machine wrote to its console.
    pub fn console(&self, lines: usize) -> String {
        let text = std::fs::read(self.folder.join("console.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
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
