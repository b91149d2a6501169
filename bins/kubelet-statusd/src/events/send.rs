//! Brings events to the API server, one after the other, and waits for it as long as it takes.
//!
//! Upstream gives an event up after 12 attempts; here one that the server has not answered is kept, and those behind it
//! with it, up to the bounds of the queues. What the server refuses is dropped.

use std::time::Duration;

use bulkhead_daemon::progress::Heartbeat;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::syncd;
use http::{Method, Request, header};
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
}

impl Sender {
    /// Sends for ever.
    pub async fn run(self, mut own: OwnEvents) {
        let mut run = Run { correlator: Correlator::default(), jitter: Jitter::new(getrandom::u64().unwrap_or(1)) };
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
            Some(occurrence) => self.deal_with(run, &occurrence).await,
            None => {
                tracing::warn!(reason = %event.reason, "dropping event without time or namespace");
                self.metrics.count("unreadable", 1);
            }
        }
        self.backlog.dealt_with();
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
