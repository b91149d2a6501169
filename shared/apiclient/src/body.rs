//! An answer's body with an end to it: a call's has a deadline and a largest size, a watch's ends with its connection.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use prometheus::Histogram;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::transport::Place;

/// Largest answer to a call, bytes. A list of a full node's pods has a few megabytes.
const MAX_BYTES: u64 = 128 << 20;

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the answer broke off")]
    Broken(#[source] hyper::Error),
    #[error("the answer did not come to its end in time")]
    Deadline,
    #[error("the answer is larger than {MAX_BYTES} bytes")]
    TooLarge,
    /// Credentials were replaced, or the connection is thought dead.
    #[error("the connection was given up")]
    GivenUp,
}

enum End {
    Deadline { sleep: Pin<Box<Sleep>>, left: u64 },
    WithConnection(Pin<Box<WaitForCancellationFutureOwned>>),
}

/// See the module.
pub struct AnswerBody {
    inner: Incoming,
    end: End,
    /// The stream counts as long as its body lives.
    _place: Place,
    /// Where the bytes of a call's answer are counted at its end.
    size: Option<Histogram>,
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        if let (Some(size), End::Deadline { left, .. }) = (&self.size, &self.end) {
            #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
            size.observe((MAX_BYTES - left) as f64);
        }
    }
}

impl AnswerBody {
    pub(crate) fn of_call(inner: Incoming, place: Place, deadline: Instant, size: Option<Histogram>) -> Self {
        let sleep = Box::pin(tokio::time::sleep_until(deadline));
        AnswerBody { inner, end: End::Deadline { sleep, left: MAX_BYTES }, _place: place, size }
    }

    pub(crate) fn of_watch(inner: Incoming, place: Place) -> Self {
        let abandoned = Box::pin(place.slot().abandoned().cancelled_owned());
        AnswerBody { inner, end: End::WithConnection(abandoned), _place: place, size: None }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let frame = Pin::new(&mut this.inner).poll_frame(cx).map_err(BodyError::Broken);
        match &mut this.end {
            End::Deadline { sleep, left } => {
                if let Poll::Ready(Some(Ok(frame))) = &frame {
                    let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
                    match left.checked_sub(bytes) {
                        Some(rest) => *left = rest,
                        None => return Poll::Ready(Some(Err(BodyError::TooLarge))),
                    }
                }
                if frame.is_pending() && sleep.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Some(Err(BodyError::Deadline)));
                }
            }
            End::WithConnection(abandoned) => {
                if frame.is_pending() && abandoned.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Some(Err(BodyError::GivenUp)));
                }
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
