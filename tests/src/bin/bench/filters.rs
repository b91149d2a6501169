//! What a process pays in each system call for being confined: the same calls by two threads of this program in turn, one
//! as it is, one with exactly the filters and the fence that a daemon has. No node runs; what is measured is the kernel's.

use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_config::NodeConfig;
use bulkhead_daemon::privileges::{Applied, Program, restrict};
use bulkhead_sys::seccomp;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketType};

/// Calls of one batch, long enough that looking at the clock does not count.
const BATCH: u32 = 2000;
/// A file that every fence lets its process read.
const FILE: &str = "/proc/version";
/// What is called; each makes a call or two.
pub const CALLS: [&str; 6] =
    ["getppid", "fstat", "read of 1 byte", "open and close a file", "socket and close", "ioctl"];

/// How much of everything.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Batches of each kind, free and confined in turn.
    pub rounds: usize,
}

/// Time of one call, batch by batch.
#[derive(Debug, Clone, Default)]
pub struct Pair {
    pub free: Vec<Duration>,
    pub confined: Vec<Duration>,
}

#[derive(Debug, Clone)]
pub struct Measurements {
    /// For each process and each of [`CALLS`].
    pub pairs: Vec<(&'static str, [Pair; CALLS.len()])>,
}

/// Runs everything. As root: the daemons' users are not needed, because neither filter nor fence asks for one.
///
/// # Errors
/// A filter cannot be loaded, or a call that is measured is refused.
pub fn run(plan: &Plan) -> Result<Measurements> {
    // Helpers may not even make some of the calls.
    let daemons = Program::ALL.into_iter().filter(|program| matches!(program, Program::Daemon(_)));
    let pairs = daemons.map(|program| Ok((program.name(), measure(program, plan)?))).collect::<Result<_>>()?;
    Ok(Measurements { pairs })
}

fn measure(program: Program, plan: &Plan) -> Result<[Pair; CALLS.len()]> {
    eprintln!("bench: filters: {}", program.name());
    let (free, confined) = (Caller::start(None)?, Caller::start(Some(program))?);
    let mut pairs: [Pair; CALLS.len()] = Default::default();
    // The first round warms up and is not counted.
    for round in 0..=plan.rounds {
        for (call, pair) in pairs.iter_mut().enumerate() {
            let (one, other) = (free.batch(call)?, confined.batch(call)?);
            if round > 0 {
                pair.free.push(one);
                pair.confined.push(other);
            }
        }
    }
    Ok(pairs)
}

/// A thread that makes calls when it is told to.
struct Caller {
    ask: Sender<usize>,
    answer: Receiver<Result<Duration>>,
}

impl Caller {
    /// A filter is the thread's alone. Under the launcher a daemon has two, its own and the launcher's.
    fn start(confined: Option<Program>) -> Result<Self> {
        let (ask, asked) = channel::<usize>();
        let (tell, answer) = channel();
        std::thread::spawn(move || {
            let ready = Files::open().and_then(|files| confined.map_or(Ok(()), confine).map(|()| files));
            let files = match ready {
                Ok(files) => files,
                Err(error) => return tell.send(Err(error)).unwrap_or(()),
            };
            for call in asked {
                if tell.send(files.batch(call)).is_err() {
                    return;
                }
            }
        });
        Ok(Caller { ask, answer })
    }

    fn batch(&self, call: usize) -> Result<Duration> {
        // One that could not begin has left the reason.
        let _ = self.ask.send(call);
        self.answer.recv().context("a thread that measures has ended")?
    }
}

fn confine(program: Program) -> Result<()> {
    let config = NodeConfig::for_tests(Path::new("/var/lib/kubelet"));
    let launcher = Program::Launcher.row();
    seccomp::restrict(&launcher.denied(Some(&config)), Some(&launcher.families(Some(&config))))?;
    Ok(restrict(program.row(), Some(&config), &mut Applied::default())?)
}

/// What calls are about.
struct Files {
    file: OwnedFd,
    zero: OwnedFd,
    socket: OwnedFd,
}

impl Files {
    fn open() -> Result<Self> {
        let open = |path| rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
        Ok(Files { file: open(FILE)?, zero: open("/dev/zero")?, socket })
    }

    /// Time of one call of a batch.
    fn batch(&self, call: usize) -> Result<Duration> {
        let begin = Instant::now();
        for _ in 0..BATCH {
            match call {
                0 => drop(black_box(rustix::process::getppid())),
                1 => drop(black_box(rustix::fs::fstat(&self.file)?)),
                2 => drop(black_box(rustix::io::read(&self.zero, &mut [0u8; 1])?)),
                3 => drop(rustix::fs::open(FILE, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?),
                4 => drop(rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?),
                _ => rustix::io::ioctl_fionbio(&self.socket, true)?,
            }
        }
        Ok(begin.elapsed() / BATCH)
    }
}
