//! Whether a daemon's main loops still go round, which is what the watchdog's beat stands for.
//!
//! The supervisor's beat is sent from the one thread that does the work, so a blocked thread stops it by itself. What
//! that does not show is a loop that no longer comes back to its `select!`: a lock that is never let go of, a channel that
//! nobody empties. So at each beat every loop that is registered is asked, and answers by coming round
//! ([`Heartbeat::asked`] is a branch of its `select!`): no timers, no work between two beats.
//!
//! A loop that waits on others is not stuck, and a restart would not help it, it would only lose what is known. It says so:
//!
//! | waits for | says it with | stuck when |
//! |---|---|---|
//! | what may never come: a timer, news, a peer | [`Heartbeat::rests`] | nobody polls it for longer than its bound |
//! | an answer that has a deadline (the API server's) | [`Heartbeat::within`] | the deadline is past by more than its bound |
//! | what the kernel alone ends: a file system that hangs | [`Heartbeat::waits_on`] | never |

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a loop that waits for nobody may take to come round: far more than a busy machine makes of it, and less than
/// `WatchdogSec=` of the units.
pub const LOOP_BOUND: Duration = Duration::from_secs(20);

/// All loops of a process that are registered with the watchdog.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<Vec<Weak<Loop>>>>);

#[derive(Debug)]
struct Loop {
    name: &'static str,
    bound: Duration,
    asked: Notify,
    state: Mutex<State>,
}

#[derive(Debug, Default, Clone, Copy)]
struct State {
    /// When it was asked, until it answers.
    since: Option<Instant>,
    waits: Waits,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Waits {
    #[default]
    No,
    /// On an answer that comes by then, or is given up.
    Until(Instant),
    OnOthers,
}

impl State {
    /// For how long an answer has been owed: since it was asked, or since the wait should have been over.
    fn overdue(&self, now: Instant) -> Option<Duration> {
        match self.waits {
            Waits::Until(end) => now.checked_duration_since(end),
            Waits::No | Waits::OnOthers => self.since.map(|since| now.saturating_duration_since(since)),
        }
    }
}

/// A loop's registration with the watchdog; clones are for the parts of one loop. With the last of them it ends.
#[derive(Debug, Clone)]
pub struct Heartbeat(Arc<Loop>);

/// While this lives, the loop waits on somebody else.
#[derive(Debug)]
pub struct Waiting<'a>(&'a Loop);

/// What the watchdog knows of one loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopProgress {
    pub name: &'static str,
    /// How long an answer may take.
    pub bound: Duration,
    /// For how long it has owed one.
    pub overdue: Option<Duration>,
    /// On somebody else.
    pub waits: bool,
}

/// What to do at a beat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beat {
    Send,
    /// And why: "the loop \"engine\" has not gone round for 31 s (20 s are its bound)".
    HoldBack(String),
}

/// The decision at a beat. Pure.
pub fn decide(loops: &[LoopProgress]) -> Beat {
    let overdue = loops.iter().filter(|seen| !seen.waits).filter_map(|seen| Some((seen, seen.overdue?)));
    let stuck: Vec<String> = overdue
        .filter(|(seen, overdue)| *overdue > seen.bound)
        .map(|(seen, overdue)| {
            let (name, overdue, bound) = (seen.name, overdue.as_secs(), seen.bound.as_secs());
            format!("the loop \"{name}\" has not gone round for {overdue} s ({bound} s are its bound)")
        })
        .collect();
    if stuck.is_empty() { Beat::Send } else { Beat::HoldBack(stuck.join("; ")) }
}

impl Progress {
    /// From now on the loop answers within `bound` whenever it is asked, or holds a [`Waiting`].
    pub fn register(&self, name: &'static str, bound: Duration) -> Heartbeat {
        let one = Arc::new(Loop { name, bound, asked: Notify::new(), state: Mutex::default() });
        let mut all = self.0.lock();
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&one));
        Heartbeat(one)
    }

    /// What is to be done at a beat; asks every loop that owes no answer yet.
    pub fn beat(&self) -> Beat {
        decide(&self.look())
    }

    /// What is known at a beat; asks those that owe no answer yet.
    fn look(&self) -> Vec<LoopProgress> {
        let now = Instant::now();
        let loops: Vec<Arc<Loop>> = self.0.lock().iter().filter_map(Weak::upgrade).collect();
        let looked = loops.iter().map(|one| {
            let mut state = one.state.lock();
            let overdue = state.overdue(now);
            if overdue.is_none() && state.waits == Waits::No {
                state.since = Some(now);
                one.asked.notify_one();
            }
            LoopProgress { name: one.name, bound: one.bound, overdue, waits: state.waits == Waits::OnOthers }
        });
        looked.collect()
    }
}

impl Heartbeat {
    /// A branch of the loop's `select!`: resolves when the watchdog asks, and has then answered. Dropping it before that
    /// loses no question.
    pub async fn asked(&self) {
        self.0.asked.notified().await;
        self.0.state.lock().since = None;
    }

    /// Waits for what may never come, and answers the watchdog meanwhile: the loop is well as long as somebody polls this.
    pub async fn rests<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                outcome = &mut work => return outcome,
                () = self.asked() => {}
            }
        }
    }

    /// Waits for what is over after `limit` because it has a deadline of its own, such as a request to the API server. That
    /// it is not over then and for the loop's bound longer is what nobody but a stuck loop explains.
    pub async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> T {
        let now = Instant::now();
        // Beyond what a clock can say there is no end either.
        let waits = now.checked_add(limit).map_or(Waits::OnOthers, Waits::Until);
        *self.0.state.lock() = State { since: None, waits };
        let _waiting = Waiting(&self.0);
        work.await
    }

    /// The loop waits on somebody else until the answer is dropped; that time does not count.
    pub fn waits_on(&self) -> Waiting<'_> {
        self.0.state.lock().waits = Waits::OnOthers;
        Waiting(&self.0)
    }
}

/// [`Heartbeat::asked`] of a loop that may not be registered, which is then never asked.
pub async fn asked(heartbeat: Option<&Heartbeat>) {
    match heartbeat {
        Some(heartbeat) => heartbeat.asked().await,
        None => std::future::pending().await,
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.waits = Waits::No;
        // Its time begins anew.
        state.since = state.since.map(|_| Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::task::Poll;

    fn seen(overdue: Option<u64>, waits: bool) -> LoopProgress {
        LoopProgress {
            name: "engine",
            bound: Duration::from_secs(20),
            overdue: overdue.map(Duration::from_secs),
            waits,
        }
    }

    /// Polls it once.
    async fn is_over(mut work: Pin<&mut impl Future<Output = ()>>) -> bool {
        std::future::poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx).is_ready())).await
    }

    #[test]
    fn a_beat_is_held_back_for_a_loop_that_owes_its_answer_for_too_long() {
        let table = [
            (vec![], true),
            (vec![seen(None, false)], true),
            (vec![seen(Some(20), false)], true),
            (vec![seen(Some(21), false)], false),
            (vec![seen(Some(900), true)], true),
            (vec![seen(None, false), seen(Some(900), true), seen(Some(30), false)], false),
        ];
        for (loops, beats) in table {
            assert_eq!(decide(&loops) == Beat::Send, beats, "{loops:?}");
        }
        assert_eq!(
            decide(&[seen(Some(31), false)]),
            Beat::HoldBack("the loop \"engine\" has not gone round for 31 s (20 s are its bound)".into())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_turns_answers_and_one_that_does_not_is_seen() {
        let progress = Progress::default();
        let heartbeat = progress.register("engine", Duration::from_secs(20));
        assert_eq!(progress.beat(), Beat::Send);
        heartbeat.asked().await;
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(progress.beat(), Beat::Send, "nobody asked in between");
        tokio::time::advance(Duration::from_secs(15)).await;
        assert_eq!(progress.beat(), Beat::Send);
        tokio::time::advance(Duration::from_secs(15)).await;
        assert!(matches!(progress.beat(), Beat::HoldBack(_)));
        // It comes round after all: the question was not lost.
        heartbeat.asked().await;
        assert_eq!(progress.beat(), Beat::Send);
        drop(heartbeat);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(progress.look().is_empty(), "a loop that has ended is asked no more");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_on_others_does_not_count() {
        let progress = Progress::default();
        let heartbeat = progress.register("measure", Duration::from_secs(20));
        progress.look();
        let waiting = heartbeat.waits_on();
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(progress.beat(), Beat::Send);
        drop(waiting);
        tokio::time::advance(Duration::from_secs(15)).await;
        assert_eq!(progress.beat(), Beat::Send, "its time began anew");
        tokio::time::advance(Duration::from_secs(15)).await;
        assert!(matches!(progress.beat(), Beat::HoldBack(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_waited_for_until_its_deadline_and_no_longer() {
        let progress = Progress::default();
        let heartbeat = progress.register("lease", Duration::from_secs(20));
        progress.look();
        // A question that was asked before is answered by what begins now.
        let mut asking = std::pin::pin!(heartbeat.within(Duration::from_secs(75), std::future::pending::<()>()));
        assert!(!is_over(asking.as_mut()).await);
        for (after, beats) in [(74, true), (20, true), (2, false), (3600, false)] {
            tokio::time::advance(Duration::from_secs(after)).await;
            assert_eq!(progress.beat() == Beat::Send, beats, "after {after} s more");
        }
        assert_eq!(
            progress.beat(),
            Beat::HoldBack("the loop \"lease\" has not gone round for 3621 s (20 s are its bound)".into())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_answer_after_the_other_is_progress() {
        let progress = Progress::default();
        let heartbeat = progress.register("lease", Duration::from_secs(20));
        let looping = tokio::spawn(async move {
            loop {
                // A server that hangs: each request ends with its deadline.
                let limit = Duration::from_secs(10);
                let hangs = tokio::time::timeout(limit, std::future::pending::<()>());
                assert!(heartbeat.within(limit, hangs).await.is_err());
                heartbeat.rests(tokio::time::sleep(Duration::from_secs(3600))).await;
            }
        });
        for _ in 0..2000 {
            tokio::time::sleep(Duration::from_secs(15)).await;
            assert_eq!(progress.beat(), Beat::Send);
        }
        looping.abort();
        assert!(looping.await.unwrap_err().is_cancelled());
        assert!(progress.look().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_is_not_polled_is_overdue() {
        let progress = Progress::default();
        let heartbeat = progress.register("node", Duration::from_secs(20));
        let mut resting = std::pin::pin!(heartbeat.rests(std::future::pending::<()>()));
        for _ in 0..3 {
            assert!(!is_over(resting.as_mut()).await);
            assert_eq!(progress.beat(), Beat::Send);
            tokio::time::advance(Duration::from_secs(15)).await;
        }
        // Forgotten from here on.
        assert_eq!(progress.beat(), Beat::Send);
        tokio::time::advance(Duration::from_secs(15)).await;
        assert!(matches!(progress.beat(), Beat::HoldBack(_)));
    }
}
