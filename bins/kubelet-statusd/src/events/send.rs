//! Brings events to the API server, one after the other, and waits for it as long as it takes.
//!
//! Upstream gives an event up after 12 attempts; here one that the server has not answered is kept, and those behind it
//! with it, up to the bounds of the queues. What the server refuses is dropped. While many pods start or end kubelet-syncd's events
//! are spread, see [`pause`].

use std::time::{Duration, Instant};

use bulkhead_daemon::progress::Heartbeat;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::syncd;
use http::{Method, Request, header};
use jiff::Timestamp;
use kube::Client;

use super::Involved;
use super::backlog::Backlog;
use super::correlate::{Correlation, Correlator};
use super::feed;
use super::metrics::EventMetrics;
use super::object::{EventObject, Occurrence};
use super::queue::{EventQueue, OwnEvents};
use crate::api_writer::gate::{Jitter, SILENT};
use crate::api_writer::{ANSWER_DEADLINE, retry_after};

/// Attempts at an event that the server fails over, as upstream's.
const FAILURES: u32 = 12;

/// So many pods that start or end at once take all of the node's CPUs, events of theirs too: they are told more slowly then.
const MANY_PODS: usize = 8;
/// From one event to the next while there are [`MANY_PODS`].
const SPREAD: Duration = Duration::from_millis(100);
/// No event is older than this when it is told, where the server takes events as fast as they come. As late is the last of 300
/// with upstream: its client sends 100 at once, then 50 a second (eventBurst, eventRecordQPS).
const LATEST: Duration = Duration::from_secs(4);

/// What sending needs.
#[derive(Clone)]
pub struct Sender {
    pub client: Client,
    pub syncd: Link,
    /// This node's name.
    pub node: String,
    /// Knows pods' resource versions.
    pub queue: EventQueue,
    pub backlog: Backlog,
    pub metrics: EventMetrics,
    /// The loop's registration with the watchdog.
    pub heartbeat: Heartbeat,
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Memory of one run.
struct Run {
    correlator: Correlator,
    jitter: Jitter,
    /// When the last event was sent.
    sent: Option<Instant>,
}

impl Sender {
    /// Sends for ever.
    pub async fn run(self, mut own: OwnEvents) {
        let jitter = Jitter::new(getrandom::u64().unwrap_or(1));
        let mut run = Run { correlator: Correlator::default(), jitter, sent: None };
        let work = async {
            loop {
                tokio::select! {
                    occurrence = own.next() => self.deal_with(&mut run, &occurrence).await,
                    event = self.backlog.oldest() => self.take(&mut run, &event).await,
                    () = self.heartbeat.asked() => {}
                }
                self.lost(own.dropped(), "here");
            }
        };
        tokio::join!(
            feed::follow(self.syncd.clone(), &self.backlog, |count| self.lost(count, "in kubelet-syncd")),
            work
        );
    }

    async fn take(&self, run: &mut Run, event: &syncd::Event) {
        match Occurrence::of(event) {
            Some(occurrence) => {
                self.wait_for_turn(run, occurrence.time).await;
                self.deal_with(run, &occurrence).await;
            }
            None => {
                tracing::warn!(reason = %event.reason, "dropping event without time or namespace");
                self.metrics.count("unreadable", 1);
            }
        }
        self.backlog.dealt_with();
    }

    /// Waits until an event of this time is to be sent; it stays in the backlog meanwhile.
    async fn wait_for_turn(&self, run: &Run, time: Timestamp) {
        let mut busy = self.queue.busy_pods();
        loop {
            let age = Duration::try_from(Timestamp::now().duration_since(time)).ok();
            let pause = pause(age, run.sent.map(|sent| sent.elapsed()), *busy.borrow_and_update());
            if pause.is_zero() {
                return;
            }
            let rest = async {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    Ok(()) = busy.changed() => {}
                }
            };
            self.heartbeat.rests(rest).await;
        }
    }

    fn lost(&self, count: u64, place: &str) {
        if count > 0 {
            tracing::warn!(count, "events were lost {place}: the queue was full");
            self.metrics.count("lost", count);
        }
    }

    async fn deal_with(&self, run: &mut Run, occurrence: &Occurrence) {
        let version = match &occurrence.involved {
            Involved::Node | Involved::Object { .. } => None,
            Involved::Pod { uid, .. } => self.queue.pod_version(uid),
        };
        match run.correlator.judge(EventObject::new(occurrence, &self.node, version.as_deref())) {
            Correlation::Spam => self.metrics.count("spam", 1),
            Correlation::Create(event) => self.deliver(run, &event, false).await,
            Correlation::Count(event) => self.deliver(run, &event, true).await,
        }
    }

    /// Until the server has it or refuses it.
    async fn deliver(&self, run: &mut Run, event: &EventObject, mut count: bool) {
        run.sent = Some(Instant::now());
        let (mut attempts, mut failures) = (0_u32, 0_u32);
        loop {
            let request = match request(event, count) {
                Ok(request) => request,
                Err(error) => {
                    tracing::warn!(%error, name = %event.name, "failed to encode event");
                    return self.metrics.count("unreadable", 1);
                }
            };
            let answer = tokio::time::timeout(ANSWER_DEADLINE, self.client.request_text(request));
            let answer = self.heartbeat.within(ANSWER_DEADLINE, answer).await;
            let pause = match answer.as_ref().map_or(Next::Again(None), |answer| next(answer, count)) {
                Next::Sent => return self.metrics.count(if count { "counted" } else { "created" }, 1),
                Next::Create => {
                    count = false;
                    continue;
                }
                Next::Known => {
                    tracing::debug!(name = %event.name, "event is there already");
                    return self.metrics.count("known", 1);
                }
                Next::Refused => {
                    if let Ok(Err(error)) = &answer {
                        tracing::warn!(%error, name = %event.name, namespace = %event.namespace, reason = %event.reason,
                            "API server rejected event, it is not sent again");
                    }
                    return self.metrics.count("refused", 1);
                }
                Next::Failed(after) => {
                    failures += 1;
                    if failures >= FAILURES {
                        tracing::warn!(name = %event.name, failures, "failed to write event, giving up");
                        return self.metrics.count("refused", 1);
                    }
                    after
                }
                Next::Again(after) => after,
            };
            attempts = attempts.saturating_add(1);
            if attempts == 1 {
                tracing::warn!(name = %event.name, "unable to write event, will retry");
            }
            let pause = pause.unwrap_or_else(|| run.jitter.pause(SILENT, attempts));
            self.heartbeat.rests(tokio::time::sleep(pause)).await;
        }
    }
}

/// How long the oldest event that waits is to wait still. `age`: of the event; `None`: by the clock it lies in the future.
/// `since_last`: time since an event was sent, if one was.
fn pause(age: Option<Duration>, since_last: Option<Duration>, busy_pods: usize) -> Duration {
    let (Some(age), Some(since_last)) = (age, since_last) else { return Duration::ZERO };
    if busy_pods < MANY_PODS {
        return Duration::ZERO;
    }
    SPREAD.saturating_sub(since_last).min(LATEST.saturating_sub(age))
}

/// What an answer asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Sent,
    /// What was to be counted is not there any more.
    Create,
    /// AlreadyExists: sent by an earlier run.
    Known,
    Refused,
    /// The server is there and cannot.
    Failed(Option<Duration>),
    /// Nobody is there, or too busy.
    Again(Option<Duration>),
}

fn next(answer: &Result<String, kube::Error>, count: bool) -> Next {
    let status = match answer {
        Ok(_) => return Next::Sent,
        Err(kube::Error::Api(status)) => status,
        Err(_) => return Next::Again(None),
    };
    let after = retry_after(status);
    match status.code {
        404 if count => Next::Create,
        409 if !count => Next::Known,
        401 | 408 | 429 | 502..=504 => Next::Again(after),
        409 | 500.. => Next::Failed(after),
        _ => Next::Refused,
    }
}

fn request(event: &EventObject, count: bool) -> Result<Request<Vec<u8>>, http::Error> {
    let events = format!("/api/v1/namespaces/{}/events", event.namespace);
    let (method, path, kind, body) = if count {
        (Method::PATCH, format!("{events}/{}", event.name), "application/strategic-merge-patch+json", event.patch())
    } else {
        (Method::POST, events, "application/json", event.body())
    };
    let body = body.to_string().into_bytes();
    Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, kind).body(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_spread_while_many_pods_start_or_end_and_never_become_old() {
        let ms = Duration::from_millis;
        for (what, age, since_last, busy_pods, expected) in [
            ("a pod alone", Some(0), Some(0), MANY_PODS - 1, 0),
            ("many", Some(0), Some(0), MANY_PODS, 100),
            ("the last was sent a while ago", Some(0), Some(70), MANY_PODS, 30),
            ("and a long while ago", Some(0), Some(100), 100, 0),
            ("the first of all", Some(0), None, 100, 0),
            ("soon old", Some(3970), Some(0), 100, 30),
            ("old", Some(4000), Some(0), 100, 0),
            ("of an earlier run", Some(1_000_000), Some(0), 100, 0),
            ("the clock was set back", None, Some(0), 100, 0),
        ] {
            assert_eq!(pause(age.map(ms), since_last.map(ms), busy_pods), ms(expected), "{what}");
        }
    }

    #[test]
    fn answers_mean_what_they_say() {
        let failed = |code: u16| {
            let status = kube::core::Status::failure("m", "r").with_code(code);
            Err::<String, _>(kube::Error::Api(status.boxed()))
        };
        for (code, creating, counting) in [
            (404, Next::Refused, Next::Create),
            (409, Next::Known, Next::Failed(None)),
            (403, Next::Refused, Next::Refused),
            (422, Next::Refused, Next::Refused),
            (429, Next::Again(None), Next::Again(None)),
            (401, Next::Again(None), Next::Again(None)),
            (503, Next::Again(None), Next::Again(None)),
            (500, Next::Failed(None), Next::Failed(None)),
        ] {
            assert_eq!((next(&failed(code), false), next(&failed(code), true)), (creating, counting), "{code}");
        }
        assert_eq!(next(&Ok("{}".into()), false), Next::Sent);
    }
}
