//! What only the operator of the runtime changes: asked for when the runtime is ready, and seldom again.

use std::time::Duration;

use bulkhead_cri::CriError;
use bulkhead_types::BackOff;
use tokio::sync::watch;

/// Pause after an answer.
const PAUSE: Duration = Duration::from_secs(600);
/// Pause after a question that failed, and after the first one that has no answer yet; after the next ones it grows.
const RETRY: Duration = Duration::from_secs(10);

/// What is asked, and of whom.
pub trait Question: Send + Sync {
    /// What the answer is, as the log names it.
    const WHAT: &'static str;

    /// Waits until it can be answered. `false`: it never can any more.
    fn is_ready(&mut self) -> impl Future<Output = bool> + Send;

    /// `None`: whoever is asked cannot say yet.
    fn ask(&self) -> impl Future<Output = Result<Option<String>, CriError>> + Send;
}

/// Asks for ever.
pub async fn follow<Q: Question>(mut question: Q, answer: watch::Sender<String>) {
    let (what, mut unanswered) = (Q::WHAT, BackOff::new(RETRY, PAUSE));
    while question.is_ready().await {
        let pause = match question.ask().await {
            Ok(Some(now)) => {
                answer.send_if_modified(|known| {
                    let changed = *known != now;
                    if changed {
                        tracing::info!(answer = now, "Container runtime names the {what}");
                        *known = now;
                    }
                    changed
                });
                unanswered.reset();
                PAUSE
            }
            Ok(None) => unanswered.pause(),
            Err(error) => {
                tracing::debug!(%error, "the {what} is not known yet");
                RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use tokio::time::Instant;
    use tonic::Code;

    /// Seconds at which it was asked, of a runtime that answers so.
    struct Asked<'a> {
        answers: &'a [Result<Option<&'a str>, ()>],
        start: Instant,
        at: &'a Mutex<Vec<u64>>,
    }

    impl Question for Asked<'_> {
        const WHAT: &'static str = "a test";

        async fn is_ready(&mut self) -> bool {
            self.at.lock().len() < self.answers.len()
        }

        async fn ask(&self) -> Result<Option<String>, CriError> {
            let mut at = self.at.lock();
            at.push(self.start.elapsed().as_secs());
            let away = |()| CriError { code: Code::Unavailable, method: "ImageFsInfo", message: "away".to_owned() };
            self.answers[at.len() - 1].map(|answer| answer.map(str::to_owned)).map_err(away)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_cannot_say_is_asked_less_and_less_often() {
        let (answer, seen) = watch::channel(String::new());
        let at = Mutex::default();
        let answers = [Err(()), Err(()), Ok(None), Ok(None), Ok(Some("a")), Ok(None), Ok(Some("b"))];
        follow(Asked { answers: &answers, start: Instant::now(), at: &at }, answer).await;
        assert_eq!(*at.lock(), [0, 10, 20, 30, 50, 650, 660]);
        assert_eq!(*seen.borrow(), "b");
    }
}
