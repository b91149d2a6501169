//! The body of an answer on its way: it keeps its request in work, and ends when its time is up.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::activity::InWork;
use super::answer::{Body, BoxError};

/// The answer took longer than any may.
#[derive(Debug, thiserror::Error)]
#[error("an answer has been going on for too long")]
pub struct TooLong;

/// See the module.
#[derive(Debug)]
pub struct ServedBody {
    inner: Body,
    deadline: Instant,
    /// Made when the body first has to be waited for: most never are.
    timer: Option<Pin<Box<Sleep>>>,
    work: InWork,
}

impl ServedBody {
    pub fn new(inner: Body, deadline: Instant, work: InWork) -> Self {
        ServedBody { inner, deadline, timer: None, work }
    }
}

impl hyper::body::Body for ServedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        this.work.asked();
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) {
            // A stream that always has something is over in time, too.
            return if Instant::now() < this.deadline {
                if matches!(frame, Some(Ok(_))) {
                    this.work.gave();
                }
                Poll::Ready(frame)
            } else {
                Poll::Ready(Some(Err(TooLong.into())))
            };
        }
        let deadline = this.deadline;
        let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        timer.as_mut().poll(cx).map(|()| Some(Err(TooLong.into())))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::BodyExt as _;

    use super::super::activity::Phase;
    use super::super::answer;
    use super::super::connections::Connections;
    use super::super::source::Source;
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_ends_in_time_and_lets_go_of_its_request() {
        let slot = Connections::new(1, Duration::MAX).admit(Source::UNKNOWN).unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        let whole = ServedBody::new(answer::body("x"), deadline, slot.activity().begin());
        assert_eq!(whole.collect().await.unwrap().to_bytes(), "x");
        let silent = answer::stream(futures_util::stream::pending()).into_body();
        let silent = ServedBody::new(silent, deadline, slot.activity().begin());
        assert_eq!((slot.activity().phase(), slot.activity().stalled()), (Phase::Busy, None));
        assert!(silent.collect().await.unwrap_err().is::<TooLong>());
        assert_eq!(Instant::now(), deadline);
        let endless = answer::stream(futures_util::stream::repeat_with(|| Ok(Bytes::from_static(b"x")))).into_body();
        let endless = ServedBody::new(endless, deadline, slot.activity().begin());
        assert!(endless.collect().await.unwrap_err().is::<TooLong>());
        assert_eq!(slot.activity().phase(), Phase::Idle(Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_it_gave_waits_until_it_is_asked_again() {
        let slot = Connections::new(1, Duration::MAX).admit(Source::UNKNOWN).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let pieces = futures_util::stream::iter([Ok(Bytes::from_static(b"x"))]);
        let body = answer::stream(futures_util::StreamExt::chain(pieces, futures_util::stream::pending())).into_body();
        let mut body = ServedBody::new(body, deadline, slot.activity().begin());
        assert_eq!(slot.activity().stalled(), None);
        assert!(body.frame().await.unwrap().is_ok());
        let given = Instant::now();
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(slot.activity().stalled(), Some(given));
        let waits = tokio::time::timeout(Duration::from_secs(7), body.frame()).await;
        assert!(waits.is_err() && slot.activity().stalled().is_none(), "it waits for us");
    }
}
