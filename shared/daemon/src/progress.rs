//! Whether a daemon's main loops still go round, which is what the watchdog's beat stands for.
//!
//! The supervisor's beat is sent from the one thread that does the work, so a blocked thread stops it by itself. What
//! that does not show is a loop that no longer comes back to its `select!`: a lock that is never let go of, a channel that
//! nobody empties. So at each beat every loop that has something to promise is asked, and answers by coming round
//! ([`Turn::asked`] is a branch of its `select!`): no timers, no work between two beats. A loop that waits on others (a
//! slow API server, a runtime that is dead, a file system that hangs) is not stuck; it says so ([`Turn::waits_on`]) or
//! promises nothing. A restart would not help those, it would only lose what is known.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// All loops of a process that made a promise.
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
    waits: bool,
}

/// A loop's end of its promise. Dropped with the loop, which then promises nothing any more.
#[derive(Debug)]
pub struct Turn(Arc<Loop>);

/// While this lives, the loop waits on somebody else.
#[derive(Debug)]
pub struct Waiting<'a>(&'a Loop);

/// What the watchdog knows of one loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub name: &'static str,
    /// How long an answer may take.
    pub bound: Duration,
    /// For how long it has owed one.
    pub owes: Option<Duration>,
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
pub fn decide(loops: &[Seen]) -> Beat {
    let overdue = loops.iter().filter(|seen| !seen.waits).filter_map(|seen| Some((seen, seen.owes?)));
    let stuck: Vec<String> = overdue
        .filter(|(seen, owes)| *owes > seen.bound)
        .map(|(seen, owes)| {
            let (name, owes, bound) = (seen.name, owes.as_secs(), seen.bound.as_secs());
            format!("the loop \"{name}\" has not gone round for {owes} s ({bound} s are its bound)")
        })
        .collect();
    if stuck.is_empty() { Beat::Send } else { Beat::HoldBack(stuck.join("; ")) }
}

impl Progress {
    /// From now on the loop answers within `bound` whenever it is asked, or holds a [`Waiting`].
    pub fn promise(&self, name: &'static str, bound: Duration) -> Turn {
        let one = Arc::new(Loop { name, bound, asked: Notify::new(), state: Mutex::default() });
        let mut all = locked(&self.0);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&one));
        Turn(one)
    }

    /// What is known at a beat; asks those that owe no answer yet.
    pub(crate) fn look(&self) -> Vec<Seen> {
        let now = Instant::now();
        let loops: Vec<Arc<Loop>> = locked(&self.0).iter().filter_map(Weak::upgrade).collect();
        let looked = loops.iter().map(|one| {
            let mut state = locked(&one.state);
            let owes = state.since.map(|since| now.saturating_duration_since(since));
            if owes.is_none() && !state.waits {
                state.since = Some(now);
                one.asked.notify_one();
            }
            Seen { name: one.name, bound: one.bound, owes, waits: state.waits }
        });
        looked.collect()
    }
}

impl Turn {
    /// A branch of the loop's `select!`: resolves when the watchdog asks, and has then answered. Dropping it before that
    /// loses no question.
    pub async fn asked(&self) {
        self.0.asked.notified().await;
        locked(&self.0.state).since = None;
    }

    /// The loop waits on somebody else until the answer is dropped; that time does not count.
    pub fn waits_on(&self) -> Waiting<'_> {
        locked(&self.0.state).waits = true;
        Waiting(&self.0)
    }
}

/// [`Turn::asked`] of a loop that may have made no promise, which is then never asked.
pub async fn asked(turn: Option<&Turn>) {
    match turn {
        Some(turn) => turn.asked().await,
        None => std::future::pending().await,
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = locked(&self.0.state);
        state.waits = false;
        // Its time begins anew.
        state.since = state.since.map(|_| Instant::now());
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(owes: Option<u64>, waits: bool) -> Seen {
        Seen { name: "engine", bound: Duration::from_secs(20), owes: owes.map(Duration::from_secs), waits }
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
        let turn = progress.promise("engine", Duration::from_secs(20));
        assert_eq!(decide(&progress.look()), Beat::Send);
        turn.asked().await;
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(decide(&progress.look()), Beat::Send, "nobody asked in between");
        tokio::time::advance(Duration::from_secs(15)).await;
        assert_eq!(decide(&progress.look()), Beat::Send);
        tokio::time::advance(Duration::from_secs(15)).await;
        assert!(matches!(decide(&progress.look()), Beat::HoldBack(_)));
        // It comes round after all: the question was not lost.
        turn.asked().await;
        assert_eq!(decide(&progress.look()), Beat::Send);
        drop(turn);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert!(progress.look().is_empty(), "a loop that has ended promises nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_on_others_does_not_count() {
        let progress = Progress::default();
        let turn = progress.promise("measure", Duration::from_secs(20));
        progress.look();
        let waiting = turn.waits_on();
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(decide(&progress.look()), Beat::Send);
        drop(waiting);
        tokio::time::advance(Duration::from_secs(15)).await;
        assert_eq!(decide(&progress.look()), Beat::Send, "its time began anew");
        tokio::time::advance(Duration::from_secs(15)).await;
        assert!(matches!(decide(&progress.look()), Beat::HoldBack(_)));
    }
}
