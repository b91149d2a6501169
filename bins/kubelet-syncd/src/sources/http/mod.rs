//! A URL as a source of pods: `staticPodURL`, polled (upstream `pkg/kubelet/config/http.go`, with the habits of Go's HTTP
//! client: user agent, redirects, credentials in the URL).
//!
//! Nothing but a good body changes the set: an unreachable server, another status than 200, a body that is no pod, all
//! leave it as it is. An empty body is an empty set, as upstream has it.

mod client;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::chain;
use kubelet_model::v1::Pod;
use parking_lot::Mutex;

use super::file::SetSink;
use super::static_pod::{self, ForNode, Origin, RefusedPod, StaticPod};
use super::uids::Uids;
use kubelet_model::decode::{self, DecodeError};
use kubelet_model::pod::source::SourceKind;

pub use client::FetchError;
use client::{Client, Fetched};

/// What to poll and how often.
#[derive(Clone)]
pub struct HttpConfig {
    /// `staticPodURL`.
    pub url: String,
    /// `staticPodURLHeader`; a name may come several times. May hold secrets: never logged.
    pub headers: Vec<(String, String)>,
    /// `httpCheckFrequency`.
    pub check_every: Duration,
}

impl std::fmt::Debug for HttpConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("HttpConfig")
            .field("url", &client::without_password(&self.url))
            .field("headers", &names)
            .field("check_every", &self.check_every)
            .finish()
    }
}

/// Why a poll gave no set.
#[derive(Debug, thiserror::Error)]
pub enum PollError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("{url}: {status}")]
    Status { url: String, status: String },
    #[error("zero-length data received from {url}")]
    Empty { url: String },
    #[error("{url}: received {bytes} bytes, but couldn't parse as single ({single}) or multiple pods ({multiple})")]
    Undecodable { url: String, bytes: usize, single: Box<DecodeError>, multiple: Box<DecodeError> },
    #[error("{url}: {source}")]
    Refused {
        url: String,
        #[source]
        source: RefusedPod,
    },
}

/// Polls until the sink is gone.
pub async fn run<K: SetSink>(config: HttpConfig, node: ForNode, uids: Arc<Mutex<Uids>>, mut sink: K) {
    let client = Client::new(&config.headers);
    let mut source = Source::new(config.url, node, uids);
    let mut failures = FailureLog::default();
    let mut ticks = tokio::time::interval(config.check_every.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let fetched = client.get(&source.url).await;
        let (set, result) = source.take(fetched.map_err(PollError::Fetch));
        failures.note(&result);
        if let Some(pods) = set
            && !sink.set(pods).await
        {
            return;
        }
        sink.errors(source.standing_error(result.err()));
    }
}

/// What a URL means: bodies in, sets out.
#[derive(Debug)]
struct Source {
    url: String,
    /// As it may be shown.
    shown: String,
    node: ForNode,
    uids: Arc<Mutex<Uids>>,
    last_body: Vec<u8>,
    /// The last body was refused, and why; an unchanged body does not make it good.
    refused: Option<String>,
}

impl Source {
    fn new(url: String, node: ForNode, uids: Arc<Mutex<Uids>>) -> Self {
        let shown = client::without_password(&url);
        Source { url, shown, node, uids, last_body: Vec::new(), refused: None }
    }

    /// A set, when the answer gives a new one, and whether the poll went well. Both at once: an empty body.
    fn take(&mut self, answer: Result<Fetched, PollError>) -> (Option<Vec<Pod>>, Result<(), PollError>) {
        let url = self.shown.clone();
        let body = match answer {
            Err(error) => return (None, Err(error)),
            Ok(Fetched { status, .. }) if status != http::StatusCode::OK => {
                return (None, Err(PollError::Status { url, status: status.to_string() }));
            }
            Ok(fetched) => fetched.body,
        };
        if body.is_empty() {
            // What comes next is news, be it what stood there before: the pods must come back.
            self.last_body = Vec::new();
            self.refused = None;
            return (Some(Vec::new()), Err(PollError::Empty { url }));
        }
        if body == self.last_body {
            return (None, Ok(()));
        }
        self.refused = None;
        let result = self.build(&body);
        self.last_body = body;
        match result {
            Err(error) => {
                self.refused = Some(error.to_string());
                (None, Err(error))
            }
            Ok(built) => {
                let mut uids = self.uids.lock();
                uids.commit("url:", built.iter().map(|b| (b.origin.clone(), b.choice())).collect());
                uids.close_adoption(SourceKind::Http);
                (Some(built.into_iter().map(|b| b.pod).collect()), Ok(()))
            }
        }
    }

    /// A pod, or a list of pods; one bad pod refuses the whole list, as upstream does.
    fn build(&self, body: &[u8]) -> Result<Vec<StaticPod>, PollError> {
        let url = || self.shown.clone();
        let undecodable = |single: DecodeError, multiple: DecodeError| PollError::Undecodable {
            url: url(),
            bytes: body.len(),
            single: Box::new(single),
            multiple: Box::new(multiple),
        };
        let document = decode::document(body).map_err(|e| undecodable(e.clone(), e))?;
        let pods = if document.is_pod_list() {
            document.clone().into_pod_list().map_err(|multiple| match document.into_pod() {
                Ok(_) => undecodable(multiple.clone(), multiple),
                Err(single) => undecodable(single, multiple),
            })?
        } else {
            vec![document.clone().into_pod().map_err(|single| match document.into_pod_list() {
                Ok(_) => undecodable(single.clone(), single),
                Err(multiple) => undecodable(single, multiple),
            })?]
        };
        let uids = self.uids.lock();
        pods.into_iter()
            .map(|pod| static_pod::build(pod, Origin::Url(&self.url), &self.node, &uids))
            .collect::<Result<_, _>>()
            .map_err(|source| PollError::Refused { url: url(), source })
    }

    fn standing_error(&self, error: Option<PollError>) -> Vec<String> {
        let text = error.map(|e| chain(&e)).or_else(|| self.refused.clone());
        text.into_iter().map(|t| t.chars().take(1000).collect()).collect()
    }
}

/// Three failures in a row are logged in full, the fourth says that it gets quiet, further ones only for debugging.
#[derive(Debug, Default)]
struct FailureLog {
    failures: u32,
}

impl FailureLog {
    fn note(&mut self, result: &Result<(), PollError>) {
        match result {
            Ok(()) => {
                if self.failures > 0 {
                    tracing::info!("Successfully read pods from URL");
                }
                self.failures = 0;
            }
            Err(error) => {
                let error = chain(error);
                match self.failures {
                    0..=2 => tracing::warn!(%error, "Failed to read pods from URL"),
                    3 => tracing::warn!(
                        %error,
                        "Failed to read pods from URL. Dropping verbosity of this message to debug"
                    ),
                    _ => tracing::debug!(%error, "Failed to read pods from URL"),
                }
                self.failures = self.failures.saturating_add(1);
            }
        }
    }
}
