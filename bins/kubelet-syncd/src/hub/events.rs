//! Events to be recorded on the API server: a bounded queue that anybody may read from any position.

use std::collections::VecDeque;

use bulkhead_ipc::common::Cursor;
use bulkhead_ipc::syncd::Event;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::watch;

use super::pods::cut;

/// Events kept; the oldest goes first.
const CAPACITY: usize = 1024;
/// And so many bytes of them: most have 200, one with a command's output has 10 KiB, and a runtime's error may have more.
const BYTES_MAX: usize = 4 << 20;
/// Of a message: a command's output of 10 KiB is the longest that is made on purpose, and an event has to fit into a message
/// of the socket.
const MESSAGE_MAX: usize = 32 << 10;

#[derive(Debug, Default)]
struct Inner {
    seq: u64,
    /// As messages, which take a third of what they take as structures of texts; the last one has the number `seq`.
    events: VecDeque<Box<[u8]>>,
    /// What they take.
    bytes: usize,
}

/// Shared by everything that has something to report.
#[derive(Debug)]
pub struct EventRing {
    epoch: u64,
    inner: Mutex<Inner>,
    changed: watch::Sender<u64>,
}

impl EventRing {
    /// `epoch`: of this process.
    pub fn new(epoch: u64) -> Self {
        EventRing { epoch, inner: Mutex::default(), changed: watch::Sender::new(0) }
    }

    /// Gives the event its place and keeps it. Answers it as it is kept.
    pub fn push(&self, mut event: Event) -> Event {
        cut(&mut event.message, MESSAGE_MAX);
        let mut inner = self.inner.lock();
        inner.seq += 1;
        event.cursor = Some(Cursor { epoch: self.epoch, seq: inner.seq });
        let message = event.encode_to_vec().into_boxed_slice();
        inner.bytes += message.len();
        inner.events.push_back(message);
        while inner.events.len() > CAPACITY || inner.bytes > BYTES_MAX {
            let Some(oldest) = inner.events.pop_front() else { break };
            inner.bytes = inner.bytes.saturating_sub(oldest.len());
        }
        let seq = inner.seq;
        drop(inner);
        self.changed.send_replace(seq);
        event
    }

    /// Events after `seq`, oldest first, at most `limit`. Each says how many were lost before it.
    pub fn after(&self, seq: u64, limit: usize) -> Vec<Event> {
        let inner = self.inner.lock();
        let first = inner.seq + 1 - inner.events.len() as u64;
        let skipped = usize::try_from(seq.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        // What was dropped was dropped before the oldest one.
        let mut dropped = first.saturating_sub(seq.saturating_add(1));
        let wanted = inner.events.iter().skip(skipped).take(limit);
        let events = wanted.filter_map(|message| Event::decode(&**message).ok());
        events.map(|event| Event { dropped: std::mem::take(&mut dropped), ..event }).collect()
    }

    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounded_and_honest_about_losses() {
        let ring = EventRing::new(7);
        for i in 0..CAPACITY + 10 {
            ring.push(Event { message: i.to_string(), ..Event::default() });
        }
        let all = ring.after(0, usize::MAX);
        assert_eq!(all.len(), CAPACITY);
        assert_eq!((all[0].dropped, all[1].dropped), (10, 0));
        assert_eq!(all[0].message, "10");
        let last = all.last().unwrap().cursor.unwrap();
        assert_eq!((last.epoch, last.seq), (7, (CAPACITY + 10) as u64));
        assert!(ring.after(last.seq, 9).is_empty());
    }

    #[test]
    fn bounded_in_bytes_too() {
        let ring = EventRing::new(7);
        for _ in 0..200 {
            let kept = ring.push(Event { message: "x".repeat(300 << 10), ..Event::default() });
            assert!(kept.encoded_len() < bulkhead_ipc::MAX_MESSAGE_BYTES && kept.message.ends_with("..."));
        }
        let all = ring.after(0, usize::MAX);
        assert!(all.iter().map(|event| event.message.len()).sum::<usize>() <= BYTES_MAX);
        assert_eq!((all.len(), all[0].dropped), (127, 73), "as many as there is room for, and honest about the others");
        assert_eq!(all.last().unwrap().cursor.unwrap().seq, 200, "the newest are kept");
    }
}
