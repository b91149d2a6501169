//! A question that may take long to answer, such as one to a runtime that looks at each of a thousand containers: it is asked once at a
//! time, and goes on when whoever wanted to know has waited long enough, or has gone. One that has outlived somebody's patience holds up
//! nobody else for as long.

use std::future::Future;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How long a question that is overdue is waited for, by each who wants its answer.
pub const OVERDUE_PATIENCE: Duration = Duration::from_millis(500);

/// One question, and whether it is being asked.
#[derive(Debug)]
pub struct Question<T> {
    /// Since when.
    asking: Option<(Instant, JoinHandle<T>)>,
    ended: Option<Instant>,
}

impl<T> Default for Question<T> {
    fn default() -> Self {
        Question { asking: None, ended: None }
    }
}

impl<T: Send + 'static> Question<T> {
    /// How long ago it was answered last; `None`: never.
    pub fn age(&self) -> Option<Duration> {
        self.ended.map(|ended| ended.elapsed())
    }

    /// The answer, where it comes within `patience` of the question, which may have been asked before: then it is waited for the rest
    /// of that, and for [`OVERDUE_PATIENCE`] where that is longer. `begin` makes the question where none is being asked, or says that
    /// none is due. A question whose caller is out of patience, or drops this call, goes on, and its answer is that of a later call.
    pub async fn answer<F>(&mut self, begin: impl FnOnce() -> Option<F>, patience: Duration) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        if self.asking.is_none() {
            self.asking = begin().map(|question| (Instant::now(), tokio::spawn(question)));
        }
        let (since, asking) = self.asking.as_mut()?;
        let ended = tokio::time::timeout(rest(patience, since.elapsed()), asking).await.ok()?;
        self.asking = None;
        self.ended = Some(Instant::now());
        // One that panicked has no answer.
        ended.ok()
    }
}

/// How long a question that has been asked for so long is waited for by somebody with that patience.
fn rest(patience: Duration, asked_for: Duration) -> Duration {
    patience.saturating_sub(asked_for).max(OVERDUE_PATIENCE).min(patience)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_overdue_is_not_waited_for_as_long_again() {
        for (patience, asked_for, expected) in
            [(4000, 0, 4000), (4000, 1000, 3000), (4000, 3900, 500), (4000, 60_000, 500), (500, 0, 500), (0, 60_000, 0)]
        {
            let time = Duration::from_millis;
            assert_eq!(rest(time(patience), time(asked_for)), time(expected), "{patience} {asked_for}");
        }
    }

    const LONG: Duration = Duration::from_secs(60);
    const NOT: Duration = Duration::ZERO;

    #[tokio::test]
    async fn what_is_late_is_the_answer_of_a_later_call() {
        let mut question = Question::default();
        let none = || None::<std::future::Ready<u8>>;
        assert_eq!((question.answer(none, LONG).await, question.age()), (None, None), "none is due");
        assert_eq!(question.answer(|| Some(async { 1 }), LONG).await, Some(1));
        assert!(question.age().is_some());
        let (tell, told) = tokio::sync::oneshot::channel();
        let late = question.answer(|| Some(async { told.await.unwrap_or_default() }), NOT).await;
        assert_eq!(late, None);
        let asked_again = || -> Option<std::future::Ready<u8>> { panic!("it is being asked") };
        assert_eq!(question.answer(asked_again, NOT).await, None);
        tell.send(2).unwrap();
        assert_eq!(question.answer(asked_again, LONG).await, Some(2));
        assert_eq!(question.answer(none, LONG).await, None, "each answer once");
    }

    #[tokio::test]
    async fn one_that_nobody_waits_for_goes_on() {
        let mut question = Question::default();
        let (tell, told) = tokio::sync::oneshot::channel();
        let caller = question.answer(|| Some(async { told.await.unwrap_or_default() }), LONG);
        assert!(futures_util::FutureExt::now_or_never(caller).is_none());
        tell.send(3).unwrap();
        assert_eq!(question.answer(|| None::<std::future::Ready<u8>>, LONG).await, Some(3));
    }
}
