//! The real kubectl as a test uses it: what it prints and how it ends, one that is talked to while it runs, and both of
//! the ways in which it carries streams.

use std::io::{Read, Write as _};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::{Cluster, LONG, eventually};
use parking_lot::Mutex;

/// How kubectl carries streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    WebSocket,
    Spdy,
}

impl Transport {
    pub const BOTH: [Self; 2] = [Self::WebSocket, Self::Spdy];

    /// The method with which a stream begins, as the API server's log shows it.
    pub fn method(self) -> &'static str {
        match self {
            Self::WebSocket => "GET",
            Self::Spdy => "POST",
        }
    }
}

/// kubectl of a cluster, as its administrator.
#[derive(Debug, Clone)]
pub struct Kubectl {
    cluster: Cluster,
    transport: Transport,
}

/// How a kubectl ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ended {
    /// Standard output of a success.
    ///
    /// # Errors
    /// Code and standard error of a failure.
    pub fn success(self) -> Result<String> {
        ensure!(self.status.success(), "{}: {}", self.status, self.stderr.trim());
        Ok(String::from_utf8_lossy(&self.stdout).into_owned())
    }

    /// Standard error of a failure.
    ///
    /// # Errors
    /// It was a success.
    pub fn failure(self) -> Result<String> {
        ensure!(!self.status.success(), "it succeeded: {}", String::from_utf8_lossy(&self.stdout));
        Ok(self.stderr)
    }

    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }
}

impl Kubectl {
    /// # Errors
    /// There is no kubectl and it cannot be installed.
    pub fn new(cluster: &Cluster, transport: Transport) -> Result<Self> {
        bulkhead_testkit::cluster::ensure_kubectl(&|line| eprintln!("{line}"))?;
        Ok(Self { cluster: cluster.clone(), transport })
    }

    fn command(&self, arguments: &[&str]) -> Result<Command> {
        Ok(self.with_transport(self.cluster.kubectl_command(arguments)?))
    }

    fn with_transport(&self, mut command: Command) -> Command {
        let on = if self.transport == Transport::WebSocket { "true" } else { "false" };
        for variable in ["KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS"] {
            command.env(variable, on);
        }
        command
    }

    /// Runs it to its end with `stdin`.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn run_with(&self, arguments: &[&str], stdin: &[u8]) -> Result<Ended> {
        let mut talk = Talk::start(self.command(arguments)?)?;
        let mut input = talk.stdin.take().context("standard input")?;
        std::thread::scope(|scope| {
            // What is not read any more is no failure of ours.
            scope.spawn(move || drop(input.write_all(stdin)));
            talk.end()
        })
        .with_context(|| format!("kubectl {arguments:?}"))
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn run(&self, arguments: &[&str]) -> Result<Ended> {
        self.run_with(arguments, b"")
    }

    /// What it prints.
    ///
    /// # Errors
    /// It failed.
    pub fn say(&self, arguments: &[&str]) -> Result<String> {
        self.run(arguments)?.success().with_context(|| format!("kubectl {arguments:?}"))
    }

    /// Starts it, to be talked to.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(&self, arguments: &[&str]) -> Result<Talk> {
        Talk::start(self.command(arguments)?)
    }

    /// Starts it on a pseudo terminal of `rows` and `columns`, whose name it prints first.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_on_terminal(&self, rows: u16, columns: u16, arguments: &[&str]) -> Result<Talk> {
        let plain = self.cluster.kubectl_command(arguments)?;
        let words: Vec<String> = std::iter::once(plain.get_program())
            .chain(plain.get_args())
            .map(|word| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''")))
            .collect();
        let line = format!("tty; stty rows {rows} cols {columns}; exec {}", words.join(" "));
        let mut command = self.with_transport(Command::new("script"));
        command.args(["-qefc", &line, "/dev/null"]).env("HOME", self.cluster.folder()).env("TERM", "dumb");
        Talk::start(command)
    }

    /// The streams that were switched since `mark` of the API server's log, as `GET pods/exec`; nothing where the
    /// control plane is a real one.
    pub fn streams_since(&self, mark: u64) -> Option<Vec<String>> {
        let log = self.cluster.log().ok()?;
        let all = log.after(mark).into_iter().filter(|one| one.status == 101);
        Some(all.map(|one| format!("{} {}/{}", one.method, one.resource, one.subresource)).collect())
    }
}

/// What a stream has said until now.
#[derive(Debug, Clone, Default)]
struct Heard(Arc<Mutex<Vec<u8>>>);

impl Heard {
    fn of(stream: Option<impl Read + Send + 'static>) -> Result<(Self, std::thread::JoinHandle<()>)> {
        let mut stream = stream.context("a stream of kubectl")?;
        let heard = Self::default();
        let thread = std::thread::spawn({
            let heard = heard.clone();
            move || {
                let mut part = vec![0; 64 << 10];
                while let Ok(count) = stream.read(&mut part) {
                    if count == 0 {
                        break;
                    }
                    heard.0.lock().extend_from_slice(&part[..count]);
                }
            }
        });
        Ok((heard, thread))
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().clone()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }
}

/// A kubectl that runs; ends with this value.
#[derive(Debug)]
pub struct Talk {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Heard,
    stderr: Heard,
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Talk {
    fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("starting kubectl")?;
        let stdin = child.stdin.take();
        let (stdout, first) = Heard::of(child.stdout.take())?;
        let (stderr, second) = Heard::of(child.stderr.take())?;
        Ok(Self { child, stdin, stdout, stderr, readers: vec![first, second] })
    }

    /// Types.
    ///
    /// # Errors
    /// It has ended, or its input is closed.
    pub fn write(&mut self, text: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("standard input is closed")?;
        stdin.write_all(text.as_bytes())?;
        Ok(stdin.flush()?)
    }

    /// Ends its input.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Standard output up to now.
    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    /// What it has said up to now, on both outputs, for an error.
    pub fn so_far(&self) -> String {
        format!("it said {:?} and {:?}", self.stdout.text(), self.stderr.text())
    }

    /// Waits until standard output holds `text`; gives all of it.
    ///
    /// # Errors
    /// What it said instead.
    pub fn wait_for(&self, text: &str) -> Result<String> {
        eventually(&format!("kubectl says {text:?}"), LONG, || {
            let heard = self.stdout.text();
            ensure!(heard.contains(text), "{heard:?} and {:?}", self.stderr.text());
            Ok(heard)
        })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It did not end in time.
    pub fn end(&mut self) -> Result<Ended> {
        let status = eventually("kubectl ends", LONG, || {
            let status = self.child.try_wait()?;
            status.with_context(|| self.so_far())
        })?;
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        Ok(Ended { status, stdout: self.stdout.bytes(), stderr: self.stderr.text() })
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
