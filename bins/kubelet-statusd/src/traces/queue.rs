//! Spans of all processes on their way to the collector: bounded, the oldest go. Pure but for the waking.

use bulkhead_ipc::common::Span;
use bulkhead_types::Process;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::Notify;

use crate::oldest_first::OldestFirst;

/// As many as upstream's exporter holds and sends at once (`OTEL_BSP_MAX_QUEUE_SIZE`, `OTEL_BSP_MAX_EXPORT_BATCH_SIZE`).
const SPANS_MAX: usize = 2048;
pub const BATCH: usize = 512;
/// And so many bytes of them, as messages; most have 300.
const BYTES_MAX: usize = 4 << 20;

/// What waits.
#[derive(Debug)]
pub struct Queue {
    spans: Mutex<OldestFirst<(Process, Span)>>,
    some: Notify,
    full_batch: Notify,
}

impl Default for Queue {
    fn default() -> Self {
        let spans = OldestFirst::new(SPANS_MAX, BYTES_MAX, |(_, span): &(Process, Span)| span.encoded_len());
        Queue { spans: Mutex::new(spans), some: Notify::default(), full_batch: Notify::default() }
    }
}

impl Queue {
    /// Adds spans of a process; answers how many older ones had to go.
    pub fn add(&self, process: Process, spans: Vec<Span>) -> usize {
        let mut waiting = self.spans.lock();
        let lost = spans.into_iter().map(|span| waiting.push((process, span))).sum();
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
        self.spans.lock().is_empty()
    }

    /// Takes a batch, by process.
    pub fn batch(&self) -> Vec<(Process, Vec<Span>)> {
        let mut waiting = self.spans.lock();
        let mut batch: Vec<(Process, Vec<Span>)> = Vec::new();
        for (process, span) in std::iter::from_fn(|| waiting.pop()).take(BATCH) {
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

    #[test]
    fn bounded_in_bytes_too() {
        let queue = Queue::default();
        let large = |index| Span { name: "x".repeat(100 << 10), ..spans(index, 1).remove(0) };
        let lost: usize = (0..100).map(|index| queue.add(Process::Syncd, vec![large(index)])).sum();
        let kept = queue.batch().remove(0).1;
        assert_eq!((lost, kept.len(), kept[0].start_unix_nanos), (60, 40, 60));
    }
}
