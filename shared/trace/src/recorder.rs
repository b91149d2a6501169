//! Spans that have ended, until somebody takes them. Bounded: when nobody does, the oldest go.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// What waits at most, as upstream's exporter has it (`OTEL_BSP_MAX_QUEUE_SIZE`).
const SPANS_MAX: usize = 2048;
/// And so many bytes of them: most have 300, the longest texts make several KiB of one.
const BYTES_MAX: usize = 2 << 20;

/// OpenTelemetry's span kinds, as far as they occur here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Internal,
    Server,
    Client,
}

/// An attribute's value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Text(String),
    Number(i64),
    Flag(bool),
}

/// A span that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct FinishedSpan {
    pub trace: [u8; 16],
    pub span: [u8; 8],
    pub parent: Option<[u8; 8]>,
    pub name: String,
    pub kind: Kind,
    /// Nanoseconds since the epoch.
    pub start: u64,
    pub end: u64,
    pub attributes: Vec<(&'static str, Value)>,
    /// Why the work failed, where it did.
    pub error: Option<String>,
}

impl FinishedSpan {
    /// What it takes in memory, about.
    fn bytes(&self) -> usize {
        let of = |value: &Value| match value {
            Value::Text(text) => text.len(),
            Value::Number(_) | Value::Flag(_) => 0,
        };
        let attributes: usize = self.attributes.iter().map(|pair| size_of_val(pair) + of(&pair.1)).sum();
        size_of::<Self>() + self.name.len() + self.error.as_ref().map_or(0, String::len) + attributes
    }
}

/// Holds spans that have ended. Cheap to clone; clones share.
#[derive(Debug, Clone, Default)]
pub struct Recorder(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    waiting: Mutex<Waiting>,
    some: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    spans: VecDeque<FinishedSpan>,
    bytes: usize,
    dropped: u64,
}

impl Recorder {
    /// Keeps a span; the oldest goes when there are too many.
    pub fn keep(&self, span: FinishedSpan) {
        let mut waiting = self.0.waiting.lock();
        waiting.bytes += span.bytes();
        waiting.spans.push_back(span);
        while waiting.spans.len() > SPANS_MAX || waiting.bytes > BYTES_MAX {
            let Some(oldest) = waiting.spans.pop_front() else { break };
            waiting.bytes = waiting.bytes.saturating_sub(oldest.bytes());
            waiting.dropped += 1;
        }
        drop(waiting);
        self.0.some.notify_one();
    }

    /// Waits until there are spans, then takes at most `most` of them, oldest first. For one taker.
    pub async fn take(&self, most: usize) -> Vec<FinishedSpan> {
        loop {
            let taken = self.take_now(most);
            if !taken.is_empty() {
                return taken;
            }
            self.0.some.notified().await;
        }
    }

    /// Takes what there is.
    pub fn take_now(&self, most: usize) -> Vec<FinishedSpan> {
        let mut waiting = self.0.waiting.lock();
        let count = waiting.spans.len().min(most);
        let taken: Vec<FinishedSpan> = waiting.spans.drain(..count).collect();
        let bytes: usize = taken.iter().map(FinishedSpan::bytes).sum();
        waiting.bytes = waiting.bytes.saturating_sub(bytes);
        taken
    }

    /// How many went without having been taken, since the start.
    pub fn dropped(&self) -> u64 {
        self.0.waiting.lock().dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(index: u64) -> FinishedSpan {
        FinishedSpan {
            trace: [1; 16],
            span: [1; 8],
            parent: None,
            name: "work".into(),
            kind: Kind::Internal,
            start: index,
            end: index,
            attributes: Vec::new(),
            error: None,
        }
    }

    #[test]
    fn bounded_in_bytes_too() {
        let recorder = Recorder::default();
        for round in 1..=2 {
            for index in 0..1000 {
                let attributes = (0..8).map(|_| ("text", Value::Text("x".repeat(512)))).collect();
                recorder.keep(FinishedSpan { attributes, ..span(index) });
            }
            let taken = recorder.take_now(usize::MAX);
            assert!(taken.iter().map(FinishedSpan::bytes).sum::<usize>() <= BYTES_MAX);
            assert!(taken.len() > 400 && taken[taken.len() - 1].start == 999, "{} are kept", taken.len());
            assert_eq!(recorder.dropped(), round * (1000 - taken.len() as u64));
        }
    }

    #[test]
    fn the_oldest_go() {
        let recorder = Recorder::default();
        for index in 0..SPANS_MAX as u64 + 3 {
            recorder.keep(span(index));
        }
        assert_eq!(recorder.dropped(), 3);
        assert_eq!(recorder.take_now(2).iter().map(|span| span.start).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(recorder.take_now(usize::MAX).len(), SPANS_MAX - 2);
        assert!(recorder.take_now(1).is_empty());
    }
}
