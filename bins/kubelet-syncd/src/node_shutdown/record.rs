//! When the last shutdown began and ended: upstream's file `graceful_node_shutdown_state` and its two metrics, and a record of our own,
//! which is kept without upstream's file, too. By them a successor of this process knows how much of the time is left.

use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::{State as StateRequest, StateKind};
use bulkhead_sys::clock::since_boot;
use bulkhead_sys::memfd;
use jiff::Timestamp;
use prometheus::{Gauge, Registry};
use serde::{Deserialize, Serialize};

/// A file of ours has a hundred bytes.
const BYTES_MAX: u64 = 64 << 10;
/// Nothing waits longer for the file: it is for the metrics of the next boot.
const WRITE: Duration = Duration::from_secs(1);

/// The form of our own record.
pub const VERSION: u64 = 1;

/// Our own record. It counts from the boot: a clock that is set meanwhile takes no time away.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    pub boot_id: String,
    /// Milliseconds since the boot at which a shutdown began; None: none is under way.
    pub start: Option<u64>,
}

impl Saved {
    /// How long ago a shutdown of this boot began that has not ended. `now`: since the boot; `total`: as long as one takes.
    fn running(&self, boot_id: &str, now: Duration, total: Duration) -> Option<Duration> {
        let start = self.start.filter(|_| self.boot_id == boot_id).map(Duration::from_millis)?;
        now.checked_sub(start).filter(|elapsed| *elapsed <= total)
    }
}

/// Where our own record is kept.
pub trait ShutdownStore: std::fmt::Debug + Send + Sync {
    /// What was saved last.
    fn load(&self) -> Option<Saved>;

    /// Returns when it is on the disk.
    ///
    /// # Errors
    /// It is not.
    fn save(&self, saved: &Saved) -> std::io::Result<()>;
}

/// As upstream writes it; a time that has not come yet is Go's zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct State {
    #[serde(rename = "startTime", default = "zero")]
    start: Timestamp,
    #[serde(rename = "endTime", default = "zero")]
    end: Timestamp,
}

fn zero() -> Timestamp {
    // 0001-01-01T00:00:00Z.
    Timestamp::from_second(-62_135_596_800).unwrap_or(Timestamp::MIN)
}

impl State {
    /// How long ago a shutdown began that has not ended. `total`: as long as one takes.
    fn running(&self, now: Timestamp, total: Duration) -> Option<Duration> {
        let elapsed = Duration::try_from(now.duration_since(self.start)).ok()?;
        (self.end == zero() && elapsed <= total).then_some(elapsed)
    }
}

fn seconds(time: Timestamp) -> f64 {
    if time == zero() { 0.0 } else { time.as_duration().as_secs_f64() }
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Record {
    broker: BrokerClient,
    start: Gauge,
    end: Gauge,
    /// Neither upstream's file nor metrics without GracefulNodeShutdownBasedOnPodPriority, as upstream.
    enabled: bool,
    own: Arc<dyn ShutdownStore>,
    boot_id: String,
    /// Whoever writes our own record.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Record {
    /// `enabled`: upstream's file is written and the metrics are shown.
    ///
    /// # Errors
    /// A metric's name is taken.
    pub fn register(
        registry: &Registry,
        broker: BrokerClient,
        enabled: bool,
        own: Arc<dyn ShutdownStore>,
        boot_id: &str,
    ) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| -> Result<Gauge, prometheus::Error> {
            let gauge = Gauge::new(name, help)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let start = gauge(
            "kubelet_graceful_shutdown_start_time_seconds",
            "[ALPHA] Last graceful shutdown start time since unix epoch in seconds",
        )?;
        let end = gauge(
            "kubelet_graceful_shutdown_end_time_seconds",
            "[ALPHA] Last graceful shutdown end time since unix epoch in seconds",
        )?;
        Ok(Record { broker, start, end, enabled, own, boot_id: boot_id.to_owned(), turn: Arc::default() })
    }

    /// Shows what upstream's file says. Answers how long ago a shutdown began that has not ended: by our own record of this boot, where
    /// there is one.
    pub async fn load(&self, total: Duration) -> Option<Duration> {
        let upstreams = self.load_upstreams(total).await;
        match self.own.load().filter(|own| own.boot_id == self.boot_id) {
            Some(own) => own.running(&self.boot_id, since_boot(), total),
            None => upstreams,
        }
    }

    async fn load_upstreams(&self, total: Duration) -> Option<Duration> {
        if !self.enabled {
            return None;
        }
        let file = self.broker.open(Kind::State(StateRequest { kind: StateKind::GracefulNodeShutdown.into() })).await;
        let file = file.inspect_err(|error| tracing::debug!(%error, "no shutdown is on record")).ok()?;
        let mut bytes = Vec::new();
        let read = File::from(file).take(BYTES_MAX).read_to_end(&mut bytes);
        let state: Result<State, _> = read.map_err(serde_json::Error::io).and_then(|_| serde_json::from_slice(&bytes));
        let state = state.inspect_err(|error| tracing::warn!(%error, "Failed to load graceful shutdown state")).ok()?;
        self.show(&state);
        state.running(Timestamp::now(), total)
    }

    /// One begins.
    pub async fn begin(&self, start: Timestamp) {
        self.keep(u64::try_from(since_boot().as_millis()).ok()).await;
        self.store(State { start, end: zero() }).await;
    }

    /// It is over.
    pub async fn end(&self, start: Timestamp) {
        self.keep(None).await;
        self.store(State { start, end: Timestamp::now() }).await;
    }

    /// On the disk, if that is not slow: it holds up nobody longer than [`WRITE`], and what is written late is written in order.
    async fn keep(&self, start: Option<u64>) {
        let (own, turn) = (self.own.clone(), self.turn.clone());
        let saved = Saved { boot_id: self.boot_id.clone(), start };
        let write = tokio::spawn(async move {
            let _turn = turn.lock_owned().await;
            tokio::task::spawn_blocking(move || own.save(&saved)).await
        });
        let error = match tokio::time::timeout(WRITE, write).await {
            Ok(Ok(Ok(Ok(())))) => return,
            Ok(Ok(Ok(Err(error)))) => error.to_string(),
            Ok(Ok(Err(error)) | Err(error)) => error.to_string(),
            Err(_) => "it takes too long".to_owned(),
        };
        tracing::warn!(
            error,
            "failed to save graceful shutdown state: a restarted process may begin the shutdown anew"
        );
    }

    fn show(&self, state: &State) {
        self.start.set(seconds(state.start));
        self.end.set(seconds(state.end));
    }

    async fn store(&self, state: State) {
        if !self.enabled {
            return;
        }
        self.show(&state);
        let write = async {
            let bytes = serde_json::to_vec(&state).map_err(|error| error.to_string())?;
            let content = memfd::sealed("shutdown", &bytes).map_err(|error| error.to_string())?;
            let put = self.broker.put_state(StateKind::GracefulNodeShutdown, content).await;
            put.map_err(|error| error.to_string())
        };
        let error = match tokio::time::timeout(WRITE, write).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => "it takes too long".to_owned(),
        };
        tracing::warn!(error, "Failed to store graceful shutdown state");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use parking_lot::Mutex;

    use super::*;

    #[derive(Debug, Default)]
    struct Disk(Mutex<Option<Saved>>);

    impl ShutdownStore for Disk {
        fn load(&self) -> Option<Saved> {
            self.0.lock().clone()
        }

        fn save(&self, saved: &Saved) -> std::io::Result<()> {
            *self.0.lock() = Some(saved.clone());
            Ok(())
        }
    }

    #[test]
    fn our_own_record_is_of_one_boot() {
        let (now, total) = (Duration::from_secs(1000), Duration::from_secs(30));
        let of = |boot_id: &str, start: Option<u64>| {
            Saved { boot_id: boot_id.to_owned(), start }.running("this", now, total)
        };
        assert_eq!(of("this", Some(988_000)), Some(Duration::from_secs(12)));
        assert_eq!(of("this", Some(970_000)), Some(total));
        assert_eq!(of("this", Some(969_999)), None, "longer ago than one takes");
        assert_eq!(of("this", Some(1_000_001)), None, "it has not begun");
        assert_eq!(of("this", None), None, "it has ended");
        assert_eq!(of("other", Some(988_000)), None, "another boot");
    }

    #[tokio::test]
    async fn a_successor_goes_on_without_upstreams_file() {
        let (disk, total) = (Arc::new(Disk::default()), Duration::from_secs(30));
        let life = |boot: &str| {
            let broker = BrokerClient::new(Path::new("/nowhere"));
            Record::register(&Registry::new(), broker, false, disk.clone(), boot).unwrap()
        };
        assert_eq!(life("one").load(total).await, None);
        life("one").begin(Timestamp::now()).await;
        assert!(life("one").load(total).await.is_some_and(|elapsed| elapsed < Duration::from_secs(20)));
        assert_eq!(life("two").load(total).await, None, "another boot");
        life("one").end(Timestamp::now()).await;
        assert_eq!(life("one").load(total).await, None);
    }

    #[test]
    fn the_file_is_upstreams() {
        let text = r#"{"startTime":"2026-11-24T15:00:00.123456789+01:00","endTime":"0001-01-01T00:00:00Z"}"#;
        let state: State = serde_json::from_str(text).unwrap();
        assert_eq!((seconds(state.start), seconds(state.end)), (1_795_528_800.123_456_7, 0.0));
        let written = serde_json::to_string(&state).unwrap();
        assert_eq!(written, r#"{"startTime":"2026-11-24T14:00:00.123456789Z","endTime":"0001-01-01T00:00:00Z"}"#);
        assert_eq!(serde_json::from_str::<State>("{}").unwrap(), State { start: zero(), end: zero() });
    }

    #[test]
    fn a_shutdown_that_goes_on() {
        let total = Duration::from_secs(30);
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let of = |ago: i64, end: Timestamp| {
            let start = now.checked_sub(jiff::SignedDuration::from_secs(ago)).unwrap();
            State { start, end }.running(now, total)
        };
        assert_eq!(of(12, zero()), Some(Duration::from_secs(12)));
        assert_eq!(of(12, now), None, "it has ended");
        assert_eq!(of(31, zero()), None, "the process died, and the machine went down");
        assert_eq!(of(-5, zero()), None, "another clock");
        assert_eq!(State { start: zero(), end: zero() }.running(now, total), None);
    }
}
