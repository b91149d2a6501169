//! A watch's body as lines, each with a largest size and a time after which it is missed.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::chain;
use bytes::{Buf as _, Bytes, BytesMut};
use http::Response;
use http_body_util::BodyExt as _;
use kube::client::Body;

use super::slot_of;
use crate::transport::Slot;

/// Largest event, bytes. The API server's objects have at most 3 MiB, and JSON may need some more for them.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Why there is no next line.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error("nothing came for {} s", .0.as_secs_f32())]
    Stalled(Duration),
    #[error("the watch broke off: {0}")]
    Broken(String),
    /// Credentials were replaced, or another watch found the connection dead.
    #[error("the connection was given up")]
    GivenUp,
    #[error("an event is larger than {MAX_LINE_BYTES} bytes")]
    TooLong,
}

pub(super) struct Lines {
    body: Body,
    buffer: BytesMut,
    /// So much of the buffer has no line end.
    searched: usize,
    slot: Option<Arc<Slot>>,
}

impl Lines {
    pub(super) fn new(response: Response<Body>) -> Self {
        let slot = slot_of(&response);
        Lines { body: response.into_body(), buffer: BytesMut::new(), searched: 0, slot }
    }

    /// The next line that is not empty; None at the end. After `patience` without a byte the connection is given up,
    /// for whoever else uses it as well.
    pub(super) async fn next(&mut self, patience: Duration) -> Result<Option<Bytes>, LineError> {
        loop {
            while let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + end).freeze();
                self.buffer.advance(1);
                self.searched = 0;
                if !line.trim_ascii().is_empty() {
                    return Ok(Some(line));
                }
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_LINE_BYTES {
                return Err(LineError::TooLong);
            }
            // A large event's buffer is not kept for the small ones that follow.
            if self.buffer.is_empty() {
                self.buffer = BytesMut::new();
            }
            match tokio::time::timeout(patience, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
                Ok(Some(Err(_))) if self.slot.as_ref().is_some_and(|slot| slot.is_abandoned()) => {
                    return Err(LineError::GivenUp);
                }
                Ok(Some(Err(error))) => return Err(LineError::Broken(chain(&error))),
                // What has no line end was cut off.
                Ok(None) => return Ok(None),
                Err(_) => {
                    if let Some(slot) = &self.slot {
                        slot.abandon();
                    }
                    return Err(LineError::Stalled(patience));
                }
            }
        }
    }
}
