//! The daemon's side: a request goes to a worker that has nothing to do, or to a new one. One that does not answer is named
//! and left to itself; it stands in nobody's way but that of the request that it has.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bulkhead_sys::{async_fd, scm};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout};

use crate::wire::Message;

/// From asking for a worker to its first word. Forking takes less than a millisecond.
const START: Duration = Duration::from_secs(10);
/// A worker with nothing to do is kept for so long.
const IDLE: Duration = Duration::from_secs(10);
/// And no more of them.
const IDLE_MAX: usize = 4;

/// How many there may be.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Requests in work at once, without those that hang.
    pub at_once: usize,
    /// Requests that hang. Beyond it nothing is taken on until one of them ends.
    pub hanging: usize,
    /// From here on a request hangs: it is named, and another one may begin in its place.
    pub hangs_after: Duration,
}

impl Limits {
    /// Longer than a disk under load takes for anything.
    pub const HANGS_AFTER: Duration = Duration::from_secs(5);
}

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("failed to start a worker process")]
    Start(#[source] io::Error),
    #[error("{count} worker processes hang in file systems that do not answer, as many as there may be: {names}")]
    TooMany { count: usize, names: String },
    #[error("the worker process {pid} ended in the middle of {what}")]
    Ended { pid: u32, what: String },
    #[error("failed to talk to the worker process {pid}")]
    Io { pid: u32, source: io::Error },
}

/// A request that has not been answered for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hanging {
    pub pid: u32,
    pub what: String,
    pub since: Instant,
}

impl fmt::Display for Hanging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker process {} has been in {} for {} s", self.pid, self.what, self.since.elapsed().as_secs())
    }
}

/// What a person should know of file systems that do not answer; `None` where all do.
pub fn degraded(hanging: &[Hanging]) -> Option<String> {
    let names: Vec<String> = hanging.iter().map(ToString::to_string).collect();
    (!names.is_empty()).then(|| format!("file systems do not answer: {}", names.join("; ")))
}

/// Called whenever the list of requests that hang changes.
pub type Tell = Box<dyn Fn(&[Hanging]) + Send + Sync>;

/// Where workers come from.
enum Source {
    /// The fork server takes a worker's end of a new pair from this socket.
    Passed(AsyncFd<OwnedFd>),
    /// The fork server listens here.
    At(PathBuf),
    /// No process: the same work on a thread. For tests, whose process has threads and cannot fork.
    Here(Arc<dyn Fn(Message) -> Message + Send + Sync>),
}

struct Worker {
    pid: u32,
    connection: AsyncFd<OwnedFd>,
    /// Since when it has had nothing to do.
    idle_since: Instant,
}

#[derive(Default)]
struct State {
    idle: Vec<Worker>,
    sweeps: bool,
    hanging: BTreeMap<u64, Hanging>,
    next: u64,
}

struct Inner {
    source: Source,
    limits: Limits,
    slots: Arc<Semaphore>,
    state: Mutex<State>,
    tell: Tell,
}

/// The workers of a daemon. Cheap to clone.
#[derive(Clone)]
pub struct WorkerPool {
    inner: Arc<Inner>,
}

impl fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerPool").field("limits", &self.inner.limits).finish_non_exhaustive()
    }
}

impl WorkerPool {
    /// WorkerPool of the fork server that has the other end of this socket. Call within a tokio runtime.
    ///
    /// # Errors
    /// The socket cannot be registered with the runtime.
    pub fn passed(socket: OwnedFd, limits: Limits, tell: Tell) -> io::Result<Self> {
        Ok(Self::new(Source::Passed(async_fd::register(socket)?), limits, tell))
    }

    /// WorkerPool of the fork server that listens at this path.
    pub fn at(path: PathBuf, limits: Limits, tell: Tell) -> Self {
        Self::new(Source::At(path), limits, tell)
    }

    /// No workers but threads of this process: for tests.
    pub fn here(work: impl Fn(Message) -> Message + Send + Sync + 'static) -> Self {
        Self::new(
            Source::Here(Arc::new(work)),
            Limits { at_once: 8, hanging: 0, hangs_after: Limits::HANGS_AFTER },
            Box::new(|_| ()),
        )
    }

    fn new(source: Source, limits: Limits, tell: Tell) -> Self {
        let slots = Arc::new(Semaphore::new(limits.at_once));
        WorkerPool { inner: Arc::new(Inner { source, limits, slots, state: Mutex::default(), tell }) }
    }

    /// Has a worker do something; `what` is it in words ("TearDownPod of pod …"), `held` what is let go of when it is done and
    /// not before, whether the caller still waits or not.
    ///
    /// # Errors
    /// No worker can be had, or it ended without an answer.
    pub async fn call<H: Send + 'static>(
        &self,
        what: String,
        request: Message,
        held: H,
    ) -> Result<Message, WorkerError> {
        let (answer, answered) = oneshot::channel();
        let inner = self.inner.clone();
        // A task of its own: a caller that goes away lets go of the answer, not of the work.
        tokio::spawn(async move {
            let result = inner.call(&what, request).await;
            drop(held);
            let _ = answer.send(result);
        });
        answered.await.unwrap_or_else(|_| Err(WorkerError::Start(io::Error::other("the runtime is shutting down"))))
    }

    /// Resolves when the fork server at the other end of the passed socket has ended: there are no further workers then, and
    /// those that there were have been killed. Never where it listens: it is started again.
    pub async fn fork_server_gone(&self) {
        if let Source::Passed(server) = &self.inner.source {
            let ended = |server: &OwnedFd| scm::recv(server, &mut [0; 1]).map(|datagram| datagram.len);
            // It sends nothing: what comes is the end.
            let _ = server.async_io(Interest::READABLE, ended).await;
            return;
        }
        std::future::pending().await
    }

    /// What does not answer at the moment.
    pub fn hanging(&self) -> Vec<Hanging> {
        self.inner.lock().hanging.values().cloned().collect()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is a single call: a holder that panicked left a whole state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call(self: &Arc<Self>, what: &str, request: Message) -> Result<Message, WorkerError> {
        let slot = self.slots.clone().acquire_owned().await;
        if let Source::Here(work) = &self.source {
            let work = work.clone();
            let done = tokio::task::spawn_blocking(move || work(request)).await;
            drop(slot);
            return done.map_err(|error| WorkerError::Start(io::Error::other(error)));
        }
        self.has_room()?;
        let worker = self.begin(&request).await?;
        drop(request);
        let pid = worker.pid;
        let failed = |source| WorkerError::Io { pid, source };
        let since = Instant::now();
        let answer = || worker.connection.async_io(Interest::READABLE, |socket| Message::recv(socket));
        let answer = match timeout(self.limits.hangs_after, answer()).await {
            Ok(answer) => answer,
            Err(_) => {
                let key = self.hangs(Hanging { pid, what: what.to_owned(), since });
                // Others need not wait for this one.
                drop(slot);
                let answer = answer().await;
                self.came_back(key);
                answer
            }
        };
        match answer.map_err(failed)? {
            Some(answer) => {
                self.keep(worker);
                Ok(answer)
            }
            None => Err(WorkerError::Ended { pid, what: what.to_owned() }),
        }
    }

    fn has_room(&self) -> Result<(), WorkerError> {
        let state = self.lock();
        if state.hanging.len() < self.limits.hanging {
            return Ok(());
        }
        let names: Vec<String> = state.hanging.values().map(ToString::to_string).collect();
        Err(WorkerError::TooMany { count: names.len(), names: names.join("; ") })
    }

    fn hangs(&self, hanging: Hanging) -> u64 {
        tracing::warn!(
            pid = hanging.pid,
            what = hanging.what,
            "a file system has not answered a worker for a while, others go on without it"
        );
        let mut state = self.lock();
        let key = state.next;
        state.next += 1;
        state.hanging.insert(key, hanging);
        (self.tell)(&state.hanging.values().cloned().collect::<Vec<_>>());
        key
    }

    fn came_back(&self, key: u64) {
        let mut state = self.lock();
        if let Some(hanging) = state.hanging.remove(&key) {
            let seconds = hanging.since.elapsed().as_secs();
            tracing::info!(pid = hanging.pid, what = hanging.what, seconds, "the worker is done after all");
        }
        (self.tell)(&state.hanging.values().cloned().collect::<Vec<_>>());
    }

    /// Gives the request to a worker. One that ended while it had nothing to do is passed over.
    async fn begin(&self, request: &Message) -> Result<Worker, WorkerError> {
        loop {
            let worker = self.worker().await?;
            let sent = worker.connection.async_io(Interest::WRITABLE, |socket| request.send(socket)).await;
            match sent {
                Ok(()) => return Ok(worker),
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(source) => return Err(WorkerError::Io { pid: worker.pid, source }),
            }
        }
    }

    /// One that has nothing to do, else a new one.
    async fn worker(&self) -> Result<Worker, WorkerError> {
        if let Some(worker) = self.lock().idle.pop() {
            return Ok(worker);
        }
        match timeout(START, self.start()).await {
            Ok(started) => started.map_err(WorkerError::Start),
            Err(_) => Err(WorkerError::Start(io::ErrorKind::TimedOut.into())),
        }
    }

    async fn start(&self) -> io::Result<Worker> {
        let connection = match &self.source {
            Source::Passed(server) => {
                let (ours, theirs) = scm::pair()?;
                server.async_io(Interest::WRITABLE, |server| scm::send(server, b"w", &[theirs.as_fd()])).await?;
                ours
            }
            Source::At(path) => scm::connect(path)?,
            Source::Here(_) => return Err(io::ErrorKind::Unsupported.into()),
        };
        let connection = async_fd::register(connection)?;
        let first = connection.async_io(Interest::READABLE, |socket| Message::recv(socket)).await?;
        let pid = first.and_then(|first| first.bytes.try_into().ok()).map(u32::from_le_bytes);
        let pid = pid.ok_or_else(|| io::Error::other("the fork server gave no worker"))?;
        Ok(Worker { pid, connection, idle_since: Instant::now() })
    }

    fn keep(self: &Arc<Self>, mut worker: Worker) {
        let mut state = self.lock();
        if state.idle.len() >= IDLE_MAX {
            return;
        }
        worker.idle_since = Instant::now();
        state.idle.push(worker);
        if !std::mem::replace(&mut state.sweeps, true) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }
}

/// Lets workers go that have had nothing to do for a while: with its connection a worker ends. No timer runs without one.
async fn sweep(pool: Weak<Inner>) {
    loop {
        tokio::time::sleep(IDLE).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut state = pool.lock();
        // The newest is taken first, so those that are not needed are the oldest.
        state.idle.retain(|worker| worker.idle_since.elapsed() < IDLE);
        if state.idle.is_empty() {
            state.sweeps = false;
            return;
        }
    }
}
