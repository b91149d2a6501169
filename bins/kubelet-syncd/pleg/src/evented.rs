//! Where events come from: the CRI's own stream where it is for all who listen, else containerd's event service, else nowhere
//! (then PLEG relists). Beside the CRI's stream containerd is asked for its own word of ends, which comes before the CRI's.
//!
//! Pure: it says what to open next and when. After every break the choice starts anew, because what comes back may be
//! another version of the runtime.

use std::time::Duration;

use bulkhead_types::BackOff;
use tokio::time::Instant;

/// A stream of events that a runtime may offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventSource {
    /// CRI `GetContainerEvents`.
    Cri,
    /// containerd's event service on the same socket.
    Containerd,
}

/// As the CRI's Version names it.
const CONTAINERD: &str = "containerd";

/// Whether a runtime gives each event of the CRI's stream to one listener alone, and not to all: containerd before 2.0. There a
/// listener that has just died takes one more with it, so after a restart of the kubelet an end would not be seen.
pub(super) fn gives_events_to_one_alone(runtime: &str, version: &str) -> bool {
    let major = version.trim_start_matches('v').split('.').next().and_then(|major| major.parse::<u32>().ok());
    runtime == CONTAINERD && major.is_some_and(|major| major < 2)
}

/// Whether a runtime tells of ends by events of its own as well. containerd sends the CRI's event of an end when it has cleared the
/// container away, which is when StopContainer answers; its own say at once that the process has ended.
pub(super) fn tells_ends_itself(runtime: &str) -> bool {
    runtime == CONTAINERD
}

/// Reconnecting after a break. The upper bound is what a restarted runtime waits at most before it is seen again.
const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(2);
/// A runtime with no events at all is asked again this often.
const UNSUPPORTED_RETRY: Duration = Duration::from_secs(300);
/// A stream that stood this long was a good one: back-off starts over.
const STOOD_LONG_ENOUGH: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct SourcePicker {
    next: EventSource,
    due: Option<Instant>,
    opened_at: Option<Instant>,
    attempts: u32,
    supported: bool,
}

impl SourcePicker {
    pub(super) fn new(now: Instant) -> Self {
        SourcePicker { next: EventSource::Cri, due: Some(now), opened_at: None, attempts: 0, supported: true }
    }

    /// When to open a stream. None while one is open.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The runtime may have events: no answer so far said otherwise.
    pub(super) fn supported(&self) -> bool {
        self.supported
    }

    /// The stream to open now.
    pub(super) fn open(&mut self, now: Instant) -> EventSource {
        self.due = None;
        self.opened_at = Some(now);
        self.next
    }

    /// The stream that was opened ended with an error.
    pub(super) fn failed(&mut self, source: EventSource, unimplemented: bool, now: Instant) {
        let stood = self.opened_at.take().is_some_and(|opened| now.duration_since(opened) >= STOOD_LONG_ENOUGH);
        match (unimplemented, source) {
            (true, EventSource::Cri) => {
                self.next = EventSource::Containerd;
                self.due = Some(now);
            }
            (true, EventSource::Containerd) => {
                self.next = EventSource::Cri;
                self.supported = false;
                self.due = Some(now + UNSUPPORTED_RETRY);
            }
            (false, _) => {
                self.attempts = if stood { 0 } else { self.attempts };
                self.next = EventSource::Cri;
                self.supported = true;
                self.attempts = self.attempts.saturating_add(1);
                let delay = BackOff::new(RECONNECT_MIN, RECONNECT_MAX).after(self.attempts);
                self.due = Some(now + delay);
            }
        }
    }

    /// Lists fail and then work again: the runtime restarted, so what it offers is asked anew.
    pub(super) fn runtime_is_back(&mut self, now: Instant) {
        if self.opened_at.is_none() {
            self.next = EventSource::Cri;
            self.due = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_stream_is_for_one_listener() {
        for (runtime, version, alone) in [
            ("containerd", "1.6.20~ds1", true),
            ("containerd", "v1.7.24", true),
            ("containerd", "2.1.9+unknown", false),
            ("containerd", "v2.0.0-rc.1", false),
            ("containerd", "", false),
            ("cri-o", "1.34.0", false),
        ] {
            assert_eq!(gives_events_to_one_alone(runtime, version), alone, "{runtime} {version}");
            assert_eq!(tells_ends_itself(runtime), runtime != "cri-o");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn from_the_cri_to_containerd_to_none_and_back() {
        let now = Instant::now();
        let mut picker = SourcePicker::new(now);
        assert_eq!(picker.open(now), EventSource::Cri);
        assert_eq!(picker.due(), None);
        picker.failed(EventSource::Cri, true, now);
        assert_eq!((picker.due(), picker.open(now)), (Some(now), EventSource::Containerd));
        picker.failed(EventSource::Containerd, true, now);
        assert!(!picker.supported());
        assert_eq!(picker.due(), Some(now + UNSUPPORTED_RETRY));
        picker.runtime_is_back(now);
        assert_eq!((picker.due(), picker.open(now)), (Some(now), EventSource::Cri));
    }

    #[tokio::test(start_paused = true)]
    async fn a_broken_stream_is_reopened_with_back_off() {
        let mut now = Instant::now();
        let mut picker = SourcePicker::new(now);
        let mut delays = Vec::new();
        for _ in 0..8 {
            picker.open(now);
            picker.failed(EventSource::Containerd, false, now);
            delays.push(picker.due().unwrap().duration_since(now).as_millis());
        }
        assert_eq!(delays, [50, 100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(picker.open(now), EventSource::Cri);
        now += STOOD_LONG_ENOUGH;
        picker.failed(EventSource::Cri, false, now);
        assert_eq!(picker.due(), Some(now + RECONNECT_MIN));
    }
}
