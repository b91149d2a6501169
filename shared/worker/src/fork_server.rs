//! The process that forks workers. It has one thread, enters no file system, and so can always be ended; and it ends by
//! itself when whoever asks for workers is gone. A worker serves one connection and ends with it, or is killed with the fork
//! server, so that a successor's workers do not meet it at work: what the kernel holds then does no more than the one call
//! that it hangs in.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use bulkhead_sys::program::Title;
use bulkhead_sys::{fork, peer, process, scm};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::wire::Message;

/// Workers of one fork server, those that hang included: each is a process of a few pages. Where the server outlives the daemon that
/// asks it (kubelet-walker), those that hang for an earlier one count, too.
pub const WORKERS_MAX: usize = 220;

/// Where connections for new workers come from.
#[allow(missing_debug_implementations, reason = "it holds functions")]
pub enum Connections<'a> {
    /// A socket that the one daemon has the other end of: each datagram brings a worker's end of a new pair. When it is
    /// closed the daemon is gone.
    Passed(OwnedFd),
    /// A listening socket: each connection is a worker's, if this says so of the user who connects.
    Listener { socket: OwnedFd, may_connect: &'a dyn Fn(u32) -> bool },
}

/// What the fork server does beside forking.
#[allow(missing_debug_implementations, reason = "it holds functions")]
pub struct Watch<'a> {
    /// The command line that workers show: "kubelet-walker: worker".
    pub title: Option<(Title, &'a str)>,
    /// How long nothing may come, with no worker there, until it ends. `None`: never for that.
    pub idle: Option<Duration>,
    /// Called at least this often; `true` ends it.
    pub each: Option<(Duration, &'a dyn Fn() -> bool)>,
}

struct Worker {
    pid: Pid,
    /// Readable when the process has ended.
    process: OwnedFd,
}

/// Forks a worker for each connection until none can come any more, `work` being what each does with a request.
///
/// # Errors
/// The socket is broken.
pub fn serve(connections: &Connections<'_>, watch: &Watch<'_>, work: &dyn Fn(Message) -> Message) -> io::Result<()> {
    let (Connections::Passed(socket) | Connections::Listener { socket, .. }) = connections;
    rustix::io::ioctl_fionbio(socket, true)?;
    let mut workers: Vec<Worker> = Vec::new();
    let mut quiet_since = Instant::now();
    loop {
        let something = wait(socket, &workers, patience(watch, workers.is_empty()))?;
        workers.retain(|worker| !fork::reap(worker.pid));
        if watch.each.is_some_and(|(_, ends)| ends()) {
            return Ok(());
        }
        if something {
            quiet_since = Instant::now();
        } else {
            if workers.is_empty() && watch.idle.is_some_and(|idle| quiet_since.elapsed() >= idle) {
                return Ok(());
            }
            continue;
        }
        let connection = match next(connections) {
            Ok(Some(connection)) => connection,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        // One that is not served is closed, which its other end sees.
        let Some(connection) = connection else { continue };
        if workers.len() >= WORKERS_MAX {
            tracing::error!(workers = workers.len(), "no further worker: most of these hang in file systems");
            continue;
        }
        match fork::apart(connection, watch.title, |connection| worker(&connection, work)) {
            Ok(pid) => match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(process) => workers.push(Worker { pid, process }),
                Err(errno) => tracing::warn!(%errno, "a worker's end will not be seen"),
            },
            Err(error) => tracing::error!(%error, "failed to fork a worker"),
        }
    }
}

/// Until something comes or a worker ends; whether something may have come.
fn wait(socket: &OwnedFd, workers: &[Worker], patience: Option<Duration>) -> io::Result<bool> {
    let mut polled: Vec<PollFd<'_>> = std::iter::once(PollFd::new(socket, PollFlags::IN))
        .chain(workers.iter().map(|worker| PollFd::new(&worker.process, PollFlags::IN)))
        .collect();
    let patience = patience.map(|patience| Timespec {
        tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: patience.subsec_nanos().into(),
    });
    match poll(&mut polled, patience.as_ref()) {
        Ok(0) => Ok(false),
        // A worker's end wakes it too; then there is nothing to be had at the socket, and it is asked in vain.
        Ok(_) | Err(Errno::INTR) => Ok(true),
        Err(errno) => Err(errno.into()),
    }
}

fn patience(watch: &Watch<'_>, without_workers: bool) -> Option<Duration> {
    let idle = watch.idle.filter(|_| without_workers);
    let each = watch.each.map(|(period, _)| period);
    [idle, each].into_iter().flatten().min()
}

/// `Ok(None)`: there will be none any more. `Ok(Some(None))`: one that is not served.
#[allow(clippy::option_option, reason = "the outer is the end of all, the inner one refusal")]
fn next(connections: &Connections<'_>) -> io::Result<Option<Option<OwnedFd>>> {
    match connections {
        Connections::Passed(socket) => {
            let mut byte = [0; 1];
            let mut datagram = match scm::recv(socket, &mut byte) {
                Err(error) if error.kind() == io::ErrorKind::InvalidData => return Ok(Some(None)),
                other => other?,
            };
            let ended = datagram.len == 0 && datagram.fds.is_empty();
            Ok(if ended { None } else { Some(datagram.fds.pop()) })
        }
        Connections::Listener { socket, may_connect } => {
            let connection = scm::accept(socket)?;
            let uid = peer::user(&connection)?;
            if may_connect(uid) {
                return Ok(Some(Some(connection)));
            }
            tracing::warn!(uid, "this user may not ask for a worker");
            Ok(Some(None))
        }
    }
}

/// A worker: says its pid, then answers one request after the other until the connection is closed.
fn worker(connection: &OwnedFd, work: &dyn Fn(Message) -> Message) -> u8 {
    let pid = std::process::id().to_le_bytes().to_vec();
    let run = || -> io::Result<()> {
        process::die_with_parent().map_err(io::Error::other)?;
        Message::of(pid).send(connection)?;
        loop {
            poll(&mut [PollFd::new(&connection.as_fd(), PollFlags::IN)], None)?;
            match Message::recv(connection) {
                Ok(Some(request)) => work(request).send(connection)?,
                Ok(None) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    };
    match run() {
        Ok(()) => 0,
        // Nobody waits for the answer any more.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(error) => {
            tracing::error!(%error, "a worker ends");
            1
        }
    }
}
