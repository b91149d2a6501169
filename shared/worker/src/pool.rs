//! The daemon's side: a request goes to a worker that has nothing to do, or to a new one. One that does not answer is named
//! and left to itself; it stands in nobody's way but that of whom it works for and, where it goes through all files of a volume, of
//! others that do ([`crate::shares`]).

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bulkhead_sys::{async_fd, scm};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout};

use crate::hanging::Hanging;
use crate::shares::{Party, Shares, Taken, Verdict};
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
    pub shares: Shares,
    /// From here on a request hangs: it is named, and another one may begin in its place.
    pub hangs_after: Duration,
}

impl Limits {
    /// Longer than a disk under load takes for anything.
    pub const HANGS_AFTER: Duration = Duration::from_secs(5);

    /// Worker processes at once: those with a request, and those with nothing to do.
    pub const fn workers(&self) -> usize {
        self.shares.places() + IDLE_MAX
    }
}

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("failed to start a worker process")]
    Start(#[source] io::Error),
    #[error(
        "{count} worker processes hang in file systems that do not answer, as many as there may be for {whom}: {names}"
    )]
    TooMany { count: usize, whom: String, names: String },
    #[error(
        "{count} worker processes are at work on {whom} and as many requests wait for them, no further one may: {names}"
    )]
    Queue { count: usize, whom: String, names: String },
    #[error("the worker process {pid} ended in the middle of {what}")]
    Ended { pid: u32, what: String },
    #[error("failed to talk to the worker process {pid}")]
    Io { pid: u32, source: io::Error },
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
    taken: Taken,
    /// Requests that wait for others which may take as long as they like.
    queued: usize,
}

struct Inner {
    source: Source,
    limits: Limits,
    state: Mutex<State>,
    /// A request has ended, or begun to hang: who waits may begin, or is to be refused.
    changed: Notify,
    tell: Tell,
}

/// A request's place among those that have a worker, until it is dropped.
struct Place {
    pool: Arc<Inner>,
    key: u64,
    takes_long: bool,
}

/// A request's place among those that wait for what takes long, until it is dropped.
struct Queued(Arc<Inner>);

impl Drop for Queued {
    fn drop(&mut self) {
        self.0.lock().queued -= 1;
    }
}

impl Place {
    /// Waits for the answer of the worker `pid`, which is named when that takes long: it is said to hang, and others need not wait
    /// for it, unless it is of a kind that takes long.
    async fn in_time<T>(&self, pid: u32, what: &str, answer: impl Future<Output = T>) -> T {
        let since = Instant::now();
        let mut answer = std::pin::pin!(answer);
        if let Ok(answer) = timeout(self.pool.limits.hangs_after, answer.as_mut()).await {
            return answer;
        }
        let takes_long = self.takes_long;
        if takes_long {
            tracing::info!(pid, what, "a worker looks at all files of a volume, which takes a while");
        } else {
            tracing::warn!(pid, what, "a file system has not answered a worker for a while, others go on without it");
        }
        {
            let mut state = self.pool.lock();
            state.taken.hangs(self.key, Hanging { pid, what: what.to_owned(), since, takes_long });
            self.pool.tell(&state);
        }
        self.pool.changed.notify_waiters();
        answer.await
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        if let Some(hung) = state.taken.end(self.key) {
            let seconds = hung.since.elapsed().as_secs();
            tracing::info!(pid = hung.pid, what = hung.what, seconds, "the worker is done after all");
            self.pool.tell(&state);
        }
        self.pool.changed.notify_waiters();
    }
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
    /// The workers of the fork server that has the other end of this socket. Call within a tokio runtime.
    ///
    /// # Errors
    /// The socket cannot be registered with the runtime.
    pub fn passed(socket: OwnedFd, limits: Limits, tell: Tell) -> io::Result<Self> {
        Ok(Self::new(Source::Passed(async_fd::register(socket)?), limits, tell))
    }

    /// The workers of the fork server that listens at this path.
    pub fn at(path: PathBuf, limits: Limits, tell: Tell) -> Self {
        Self::new(Source::At(path), limits, tell)
    }

    /// No workers but threads of this process: for tests.
    pub fn here(limits: Limits, work: impl Fn(Message) -> Message + Send + Sync + 'static) -> Self {
        Self::new(Source::Here(Arc::new(work)), limits, Box::new(|_| ()))
    }

    fn new(source: Source, limits: Limits, tell: Tell) -> Self {
        WorkerPool { inner: Arc::new(Inner { source, limits, state: Mutex::default(), changed: Notify::new(), tell }) }
    }

    /// Has a worker do something for `party`; `what` is it in words ("TearDownPod of pod …"), `held` what is let go of when it
    /// is done and not before, whether the caller still waits or not.
    ///
    /// # Errors
    /// No worker can be had, or it ended without an answer. TooMany where the party's requests hang, as many as it may have, or
    /// all of its kind do. Queue where too many wait for what takes long.
    pub async fn call<H: Send + 'static>(
        &self,
        party: Party,
        what: String,
        request: Message,
        held: H,
    ) -> Result<Message, WorkerError> {
        self.call_telling(party, what, request, held, || ()).await
    }

    /// [`Self::call`], with `begun` called once a worker has the request. Where none could have it, it is dropped uncalled.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn call_telling<H: Send + 'static>(
        &self,
        party: Party,
        what: String,
        request: Message,
        held: H,
        begun: impl FnOnce() + Send + 'static,
    ) -> Result<Message, WorkerError> {
        let (answer, answered) = oneshot::channel();
        let inner = self.inner.clone();
        // A task of its own: a caller that goes away lets go of the answer, not of the work.
        tokio::spawn(async move {
            let result = inner.call(party, &what, request, begun).await;
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
        self.inner.lock().taken.hanging(|_| true).cloned().collect()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is a single call: a holder that panicked left a whole state.
        self.state.lock()
    }

    async fn call(
        self: &Arc<Self>,
        party: Party,
        what: &str,
        request: Message,
        begun: impl FnOnce(),
    ) -> Result<Message, WorkerError> {
        let place = self.place(party).await?;
        if let Source::Here(work) = &self.source {
            begun();
            let work = work.clone();
            let done = place.in_time(std::process::id(), what, tokio::task::spawn_blocking(move || work(request)));
            return done.await.map_err(|error| WorkerError::Start(io::Error::other(error)));
        }
        let worker = self.begin(&request).await?;
        begun();
        drop(request);
        let pid = worker.pid;
        let answer = worker.connection.async_io(Interest::READABLE, |socket| Message::recv(socket));
        match place.in_time(pid, what, answer).await.map_err(|source| WorkerError::Io { pid, source })? {
            Some(answer) => {
                self.keep(worker);
                Ok(answer)
            }
            None => Err(WorkerError::Ended { pid, what: what.to_owned() }),
        }
    }

    /// Waits for a place, unless all that it could wait for hangs, or others wait already for what takes long.
    async fn place(self: &Arc<Self>, party: Party) -> Result<Place, WorkerError> {
        let mut queued = None;
        loop {
            // Before the look, so that no change is missed.
            let changed = self.changed.notified();
            if let Some(place) = self.try_place(&party)? {
                return Ok(place);
            }
            if party.kind.takes_long() && queued.is_none() {
                queued = Some(self.queue(&party)?);
            }
            changed.await;
        }
    }

    fn queue(self: &Arc<Self>, party: &Party) -> Result<Queued, WorkerError> {
        let mut state = self.lock();
        let count = self.limits.shares.of(party.kind).places;
        if state.queued >= count {
            let named = state.taken.hanging(|other| other.kind == party.kind);
            return Err(WorkerError::Queue { count, whom: party.kind.to_string(), names: names(named) });
        }
        state.queued += 1;
        Ok(Queued(self.clone()))
    }

    /// `None`: it is to wait.
    fn try_place(self: &Arc<Self>, party: &Party) -> Result<Option<Place>, WorkerError> {
        let mut state = self.lock();
        let too_many = |whom: String, hanging: Vec<&Hanging>| {
            let count = hanging.len();
            WorkerError::TooMany { count, whom, names: names(hanging.into_iter()) }
        };
        match state.taken.verdict(&self.limits.shares, party) {
            Verdict::Begin => {
                let (key, takes_long) = (state.taken.begin(party.clone()), party.kind.takes_long());
                Ok(Some(Place { pool: self.clone(), key, takes_long }))
            }
            Verdict::Wait => Ok(None),
            Verdict::PartyHangs => {
                let own = state.taken.hanging(|other| other == party);
                Err(too_many(format!("{} of {}", party.kind, party.whose), own.collect()))
            }
            Verdict::KindHangs => {
                let all = state.taken.hanging(|other| other.kind == party.kind);
                Err(too_many(party.kind.to_string(), all.collect()))
            }
        }
    }

    fn tell(&self, state: &State) {
        (self.tell)(&state.taken.hanging(|_| true).cloned().collect::<Vec<_>>());
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

fn names<'a>(hanging: impl Iterator<Item = &'a Hanging>) -> String {
    hanging.map(ToString::to_string).collect::<Vec<_>>().join("; ")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shares::Share;

    const SHARE: Share = Share { places: 4, at_once: 2, of_one: 1 };
    const WALKS: Share = Share { places: 2, at_once: 2, of_one: 1 };
    const LIMITS: Limits = Limits {
        shares: Shares { node: SHARE, local: SHARE, foreign: SHARE, questions: SHARE, walks: WALKS },
        hangs_after: Duration::from_millis(20),
    };

    /// A request of any bytes is silent until its turn to be released comes; an empty one is answered.
    fn pool() -> (WorkerPool, std::sync::mpsc::Sender<()>) {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Mutex::new(held);
        let work = move |request: Message| {
            if !request.bytes.is_empty() {
                let _ = held.lock().recv();
            }
            request
        };
        (WorkerPool::here(LIMITS, work), release)
    }

    async fn call(pool: &WorkerPool, party: Party, bytes: &[u8]) -> Result<Message, WorkerError> {
        pool.call(party, "a statfs".to_owned(), Message::of(bytes.to_vec()), ()).await
    }

    #[tokio::test]
    async fn silent_file_systems_of_one_party_refuse_it_alone() {
        let (pool, release) = pool();
        let attacker = || Party::foreign("pod attacker");
        let asked = (0..61).map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { call(&pool, attacker(), b"silent").await })
        });
        let asked: Vec<_> = asked.collect();
        // All but the one that hangs are refused, with its name.
        let mut refused = 0;
        while refused < 60 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            refused = asked.iter().filter(|one| one.is_finished()).count();
        }
        let error = call(&pool, attacker(), b"").await.unwrap_err().to_string();
        assert!(error.contains("file systems and devices that others serve of pod attacker"), "{error}");
        assert!(error.contains("has been in a statfs for"), "{error}");
        for party in [Party::foreign("pod other"), Party::local("pod attacker"), Party::node("/")] {
            call(&pool, party, b"").await.unwrap();
        }
        // Other pods' silent ones take what is left for what others serve, and nothing else.
        for pod in ["a", "b", "c"] {
            let pool = pool.clone();
            tokio::spawn(async move { call(&pool, Party::foreign(pod), b"silent").await });
        }
        while pool.hanging().len() < SHARE.places {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let error = call(&pool, Party::foreign("pod other"), b"").await.unwrap_err();
        assert!(matches!(error, WorkerError::TooMany { count: 4, .. }), "{error}");
        for party in [Party::local("pod other"), Party::node("/")] {
            call(&pool, party, b"").await.unwrap();
        }
        // The servers are back.
        for _ in 0..SHARE.places {
            release.send(()).unwrap();
        }
        while !pool.hanging().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        call(&pool, attacker(), b"").await.unwrap();
    }

    #[tokio::test]
    async fn a_request_has_begun_when_a_worker_has_it() {
        let (pool, release) = pool();
        let ask = |party| {
            let (pool, (begun, begins)) = (pool.clone(), oneshot::channel());
            let ask = Message::of(b"silent".to_vec());
            let begun = move || begun.send(()).unwrap();
            let asked = tokio::spawn(async move { pool.call_telling(party, "one".into(), ask, (), begun).await });
            (asked, begins)
        };
        let mut asked = Vec::new();
        for party in 0..SHARE.places {
            let (one, begins) = ask(Party::foreign(party.to_string()));
            begins.await.unwrap();
            asked.push(one);
        }
        while pool.hanging().len() < SHARE.places {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let (refused, begins) = ask(Party::foreign("one more"));
        begins.await.unwrap_err();
        assert!(matches!(refused.await.unwrap(), Err(WorkerError::TooMany { .. })));
        // Whichever of them gets the word.
        for _ in &asked {
            release.send(()).unwrap();
        }
        for one in asked {
            one.await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn walks_wait_for_walks_and_nobody_else_does() {
        let (pool, release) = pool();
        let walk = |whose: &'static str, bytes: &'static [u8]| {
            let pool = pool.clone();
            tokio::spawn(async move { call(&pool, Party::walk(whose), bytes).await })
        };
        let at_work = [walk("pod a", b"long"), walk("pod b", b"long")];
        while pool.hanging().len() < WALKS.places {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(pool.hanging().iter().all(|one| one.takes_long));
        // As many may wait, however long those at work have been named.
        let waiting = [walk("pod a", b""), walk("pod c", b"")];
        while pool.inner.lock().queued < WALKS.places {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let error = call(&pool, Party::walk("pod d"), b"").await.unwrap_err();
        assert!(matches!(error, WorkerError::Queue { count: 2, .. }), "{error}");
        assert!(
            error.to_string().contains("on all files of volumes") && error.to_string().contains("been in a statfs")
        );
        for party in [Party::foreign("pod a"), Party::local("pod a"), Party::node("/")] {
            call(&pool, party, b"").await.unwrap();
        }
        assert!(waiting.iter().all(|one| !one.is_finished()));
        for _ in 0..WALKS.places {
            release.send(()).unwrap();
        }
        for one in at_work.into_iter().chain(waiting) {
            one.await.unwrap().unwrap();
        }
        assert_eq!(pool.inner.lock().queued, 0);
        call(&pool, Party::walk("pod d"), b"").await.unwrap();
    }

    #[tokio::test]
    async fn who_waits_for_a_place_begins_when_one_is_done() {
        let (pool, _) = pool();
        let all = (0..20).map(|n| {
            let pool = pool.clone();
            tokio::spawn(async move { call(&pool, Party::local(format!("pod {}", n % 3)), b"").await })
        });
        for one in all.collect::<Vec<_>>() {
            one.await.unwrap().unwrap();
        }
    }
}
