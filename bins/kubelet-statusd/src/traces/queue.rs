//! Spans of all processes on their way outward: bounded, the oldest go. Pure but for the waking.

use std::collections::VecDeque;
use std::sync::Mutex;

use bulkhead_ipc::common::Span;
use bulkhead_types::Process;
use tokio::sync::Notify;

/// As many as upstream's exporter holds and sends at once (`OTEL_BSP_MAX_QUEUE_SIZE`, `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`).
const SPANS_MAX: usize = 2048;
pub const BATCH: usize = 512;

/// What waits.
#[derive(Debug, Default)]
pub struct Queue {
    spans: Mutex<VecDeque<(Process, Span)>>,
    some: Notify,
    full_batch: Notify,
}

impl Queue {
    /// Adds spans of a process; answers how many older ones had to go.
    pub fn add(&self, process: Process, spans: Vec<Span>) -> usize {
        let Ok(mut waiting) = self.spans.lock() else { return spans.len() };
        waiting.extend(spans.into_iter().map(|span| (process, span)));
        let lost = waiting.len().saturating_sub(SPANS_MAX);
        waiting.drain(..lost);
        let count = waiting.len();
        drop(waiting);
        if count > 0 {
            self.some.notify_one();
        }
        if count >= BATCH {
            self.full_batch.notify_one();
        }
        lost
    }

    /// Waits until there is something.
    pub async fn some(&self) {
        while self.is_empty() {
            self.some.notified().await;
        }
    }

    /// Waits until there is enough for a full batch. A wake-up that is too early does no harm.
    pub async fn full(&self) {
        self.full_batch.notified().await;
    }

    fn is_empty(&self) -> bool {
        self.spans.lock().map_or(true, |waiting| waiting.is_empty())
    }

    /// Takes a batch, by process.
    pub fn batch(&self) -> Vec<(Process, Vec<Span>)> {
        let Ok(mut waiting) = self.spans.lock() else { return Vec::new() };
        let count = waiting.len().min(BATCH);
        let mut batch: Vec<(Process, Vec<Span>)> = Vec::new();
        for (process, span) in waiting.drain(..count) {
            match batch.iter_mut().find(|(of, _)| *of == process) {
                Some((_, spans)) => spans.push(span),
                None => batch.push((process, vec![span])),
            }
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(first: u64, count: u64) -> Vec<Span> {
        (first..first + count).map(|index| Span { start_unix_nanos: index, ..Span::default() }).collect()
    }

    #[test]
    fn the_oldest_go_and_batches_are_by_process() {
        let queue = Queue::default();
        assert_eq!(queue.add(Process::Syncd, spans(0, SPANS_MAX as u64)), 0);
        assert_eq!(queue.add(Process::Volnetd, spans(0, 2)), 2);
        let batch = queue.batch();
        assert_eq!(
            batch.iter().map(|(process, spans)| (*process, spans.len())).collect::<Vec<_>>(),
            [(Process::Syncd, BATCH)]
        );
        assert_eq!(batch[0].1[0].start_unix_nanos, 2);
        let last = std::iter::repeat_with(|| queue.batch()).take_while(|batch| !batch.is_empty()).last();
        assert_eq!(last.map(|batch| batch.len()), Some(2), "the rest of both processes");
    }
}
