//! One question after the other, each answered by a task of its own.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::helper::Questions;
use prost::Message;
use tokio::io::Interest;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// From a connection to its question, which is sent with it.
const QUESTION: Duration = Duration::from_secs(5);

/// Where questions come in.
#[derive(Debug)]
pub enum Door {
    /// One socket for all of them, from the launcher; when its other end is closed nobody asks any more.
    Passed(OwnedFd),
    /// A listening socket, from systemd: a connection for each question.
    Listener(OwnedFd),
}

/// How much is done at once, and how long nothing may be asked before the process ends.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Questions that are answered at once; more wait in the socket.
    pub at_once: usize,
    /// `None`: the process stays. Otherwise the next question starts it again.
    pub idle: Option<Duration>,
}

/// Answers questions until nobody can ask, or nobody does. `may_ask` sees each connection of a [`Door::Listener`]; its error is
/// logged.
///
/// # Errors
/// The socket is broken.
pub async fn serve<Q, A, F>(
    door: Door,
    limits: Limits,
    may_ask: impl Fn(&OwnedFd) -> Result<(), String>,
    answer: A,
) -> io::Result<()>
where
    Q: Message + Default + 'static,
    A: Fn(Q, OwnedFd) -> F + Clone + 'static,
    F: Future<Output = ()> + 'static,
{
    let tasks = tokio::task::LocalSet::new();
    tasks
        .run_until(async {
            notify(&[sd_notify::NotifyState::Ready]);
            tokio::select! {
                served = async {
                    match door {
                        Door::Passed(socket) => passed(socket, limits, answer).await,
                        Door::Listener(socket) => listener(socket, limits, may_ask, answer).await,
                    }
                } => served,
                never = beat() => never,
            }
        })
        .await
}

async fn passed<Q, A, F>(socket: OwnedFd, limits: Limits, answer: A) -> io::Result<()>
where
    Q: Message + Default + 'static,
    A: Fn(Q, OwnedFd) -> F + 'static,
    F: Future<Output = ()> + 'static,
{
    let questions = Questions::new(socket)?;
    let places = Places::new(limits);
    loop {
        let place = places.take().await?;
        let Some(next) = places.quiet(questions.next::<Q>()).await else { return Ok(()) };
        let Some((question, pipe)) = next? else { return Ok(()) };
        let answered = answer(question, pipe);
        tokio::task::spawn_local(async move {
            answered.await;
            drop(place);
        });
    }
}

async fn listener<Q, A, F>(
    socket: OwnedFd,
    limits: Limits,
    may_ask: impl Fn(&OwnedFd) -> Result<(), String>,
    answer: A,
) -> io::Result<()>
where
    Q: Message + Default + 'static,
    A: Fn(Q, OwnedFd) -> F + Clone + 'static,
    F: Future<Output = ()> + 'static,
{
    let socket = bulkhead_sys::async_fd::register(socket)?;
    let places = Places::new(limits);
    loop {
        let place = places.take().await?;
        let next = socket.async_io(Interest::READABLE, |listener| bulkhead_sys::scm::accept(listener));
        let Some(connection) = places.quiet(next).await else { return Ok(()) };
        let connection = connection?;
        if let Err(refusal) = may_ask(&connection) {
            tracing::warn!("{refusal}");
            continue;
        }
        let answer = answer.clone();
        tokio::task::spawn_local(async move {
            let question = async { Questions::new(connection)?.next::<Q>().await };
            if let Ok(Ok(Some((question, pipe)))) = tokio::time::timeout(QUESTION, question).await {
                answer(question, pipe).await;
            }
            drop(place);
        });
    }
}

/// Places for questions that are being answered.
struct Places {
    limits: Limits,
    free: Arc<Semaphore>,
}

impl Places {
    fn new(limits: Limits) -> Self {
        Places { limits, free: Arc::new(Semaphore::new(limits.at_once)) }
    }

    async fn take(&self) -> io::Result<OwnedSemaphorePermit> {
        self.free.clone().acquire_owned().await.map_err(io::Error::other)
    }

    /// `None` when nothing has come for long and nothing is being answered. The caller holds one place.
    async fn quiet<T>(&self, next: impl Future<Output = T>) -> Option<T> {
        let Some(idle) = self.limits.idle else { return Some(next.await) };
        tokio::pin!(next);
        loop {
            match tokio::time::timeout(idle, &mut next).await {
                Ok(next) => return Some(next),
                Err(_) if self.free.available_permits() == self.limits.at_once - 1 => return None,
                Err(_) => {}
            }
        }
    }
}

/// Of the main loop's own thread: one that is stuck beats no more.
async fn beat() -> io::Result<()> {
    let Some(interval) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    let mut tick = tokio::time::interval((interval / 2).max(Duration::from_millis(1)));
    loop {
        tick.tick().await;
        notify(&[sd_notify::NotifyState::Watchdog]);
    }
}

fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd could not be notified");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::common::JournalQuery;
    use bulkhead_ipc::helper::Asker;
    use std::io::Write as _;
    use tokio::io::AsyncReadExt as _;

    const SHORT: Option<Duration> = Some(Duration::from_millis(200));

    fn asks(unit: &str) -> JournalQuery {
        JournalQuery { units: vec![unit.to_owned()], ..JournalQuery::default() }
    }

    async fn echo(question: JournalQuery, pipe: OwnedFd) {
        std::fs::File::from(pipe).write_all(question.units.concat().as_bytes()).unwrap();
    }

    async fn said(asker: &Asker, unit: &str) -> String {
        let mut text = String::new();
        asker.ask(&asks(unit)).await.unwrap().read_to_string(&mut text).await.unwrap();
        text
    }

    fn at(path: &std::path::Path) -> (OwnedFd, Asker) {
        (bulkhead_sys::scm::listen(path, 0o600).unwrap(), Asker::at(path))
    }

    #[tokio::test]
    async fn a_passed_socket_is_served_until_its_other_end_is_closed() {
        let (theirs, ours) = bulkhead_sys::scm::pair().unwrap();
        let asker = Asker::new(Some(theirs)).unwrap();
        let serving = serve(Door::Passed(ours), Limits { at_once: 2, idle: None }, |_| Ok(()), echo);
        let asking = async {
            for name in ["a", "b", "c"] {
                assert_eq!(said(&asker, name).await, name);
            }
            drop(asker);
        };
        let (served, ()) = tokio::join!(serving, asking);
        served.unwrap();
    }

    #[tokio::test]
    async fn with_no_question_for_a_while_it_ends_and_one_that_comes_later_waits() {
        let (theirs, ours) = bulkhead_sys::scm::pair().unwrap();
        let (asker, again) = (Asker::new(Some(theirs)).unwrap(), ours.try_clone().unwrap());
        let limits = Limits { at_once: 1, idle: SHORT };
        serve(Door::Passed(ours), limits, |_| Ok(()), echo).await.unwrap();
        let (said, served) = tokio::join!(said(&asker, "later"), serve(Door::Passed(again), limits, |_| Ok(()), echo));
        assert_eq!(said, "later");
        served.unwrap();
    }

    #[tokio::test]
    async fn questions_over_connections_are_answered_and_a_long_answer_keeps_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let (listener, asker) = at(&folder.path().join("socket"));
        let slow = |question: JournalQuery, pipe: OwnedFd| async move {
            tokio::time::sleep(Duration::from_millis(600)).await;
            echo(question, pipe).await;
        };
        // One that says nothing takes a place for a while, and no more.
        let silent = bulkhead_sys::scm::connect(&folder.path().join("socket")).unwrap();
        let asking = async {
            let text = said(&asker, "containerd").await;
            drop(silent);
            text
        };
        let limits = Limits { at_once: 2, idle: SHORT };
        let (served, text) = tokio::join!(serve(Door::Listener(listener), limits, |_| Ok(()), slow), asking);
        served.unwrap();
        assert_eq!(text, "containerd");
    }

    #[tokio::test]
    async fn who_may_not_ask_gets_no_answer() {
        let folder = tempfile::tempdir().unwrap();
        let (listener, asker) = at(&folder.path().join("socket"));
        let limits = Limits { at_once: 1, idle: SHORT };
        let refuse = |_: &OwnedFd| Err("not you".to_owned());
        let (served, text) =
            tokio::join!(serve(Door::Listener(listener), limits, refuse, echo), said(&asker, "containerd"));
        served.unwrap();
        assert_eq!(text, "");
    }
}
