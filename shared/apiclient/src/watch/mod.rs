//! List and watch without an end: resumes, relists on 410, pauses after failures, and drops a connection on which
//! nothing comes any more.
//!
//! The rules are those of client-go's reflector (`tools/cache/reflector.go`): a streaming list where the server takes
//! it, else - within the same attempt - a list in pages; then a watch from there, ended by the server after five to ten
//! minutes and resumed.

mod decide;
mod lines;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::chain;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use kube::core::{ObjectList, Status, WatchEvent};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::backoff::{Backoff, random_fraction};
use crate::session::LISTS_IN_PAGES;
use crate::transport::Slot;
use crate::{ApiClient, Lane};
use decide::{Failure, Instead, Query, Quiet, enough_refusals, goes_back};
use lines::{LineError, Lines};

/// A server sends a bookmark about once a minute.
const STALL_AFTER: Duration = Duration::from_secs(180);
/// How long the beginning of a streaming list may take from one event to the next.
const LIST_STALL: Duration = Duration::from_secs(30);
/// How long a streaming list may take as a whole: events that come without ever leading to its end are no progress. A list
/// that honestly takes longer is asked for in pages, of which each has its own time.
const STREAMED_LIST: Duration = Duration::from_secs(60);
/// How long a list in pages may take as a whole: what the server keeps a continue token for (etcd compacts every 5 minutes).
const PAGED_LIST: Duration = Duration::from_secs(300);
/// Pauses after failures.
const PAUSE: (Duration, Duration) = (Duration::from_millis(800), Duration::from_secs(30));
/// A watch that lived so long was a good one.
const LIVED: Duration = Duration::from_secs(5);

/// What is watched.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// None: all namespaces, or a cluster-wide kind.
    pub namespace: Option<String>,
    /// `spec.nodeName=a`, `metadata.name=x`; empty for everything.
    pub field_selector: String,
    pub label_selector: String,
    /// Without anything from the server for so long - not even a bookmark - the watch starts anew. None: the default.
    pub stall_after: Option<Duration>,
}

/// One change. A (re)list arrives as `Restarted` with the complete set; later changes singly.
#[derive(Debug, Clone)]
pub enum Change<K> {
    /// Everything that exists now: what is not in it is gone.
    Restarted(Vec<K>),
    Applied(K),
    Deleted(K),
    /// The last attempt failed; the watch goes on by itself. For the log and for health.
    Failed(String),
}

/// Watches for ever. `managedFields` are dropped from each object before it is handed out.
pub fn watch<K>(client: &ApiClient, lane: Lane, scope: Scope) -> BoxStream<'static, Change<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    watch_with(client, lane, scope, |object: &mut K| object.meta_mut().managed_fields = None)
}

/// The same, with whole objects: `strip` may take away from each what its caller does not keep. It is called before objects of a list
/// are collected, so that a list of large objects is never in memory as a whole.
pub fn watch_with<K>(
    client: &ApiClient,
    lane: Lane,
    scope: Scope,
    strip: impl Fn(&mut K) + Send + Sync + 'static,
) -> BoxStream<'static, Change<K>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let watcher = Watcher {
        client: client.clone(),
        lane,
        path: K::url_path(&(), scope.namespace.as_deref()),
        stall_after: scope.stall_after.unwrap_or(STALL_AFTER),
        scope,
        strip: Box::new(strip),
        state: State::Nothing,
        backoff: Backoff::new(PAUSE.0, PAUSE.1),
        pause: Duration::ZERO,
        quiet: Quiet::default(),
        streams_failed: 0,
        refusals: 0,
        _kind: PhantomData,
    };
    futures_util::stream::unfold(watcher, |mut watcher| async move {
        let change = watcher.next().await;
        Some((change, watcher))
    })
    .boxed()
}

enum State {
    /// Nothing is known, or what was known is too old to go on from.
    Nothing,
    /// Everything up to this resource version was handed out.
    At(String),
    /// And there is a watch from there.
    Watching { at: String, lines: Lines, since: Instant },
}

struct Watcher<K> {
    client: ApiClient,
    lane: Lane,
    path: String,
    scope: Scope,
    stall_after: Duration,
    strip: Box<dyn Fn(&mut K) + Send + Sync>,
    state: State,
    backoff: Backoff,
    /// Before the next attempt.
    pause: Duration,
    quiet: Quiet,
    /// Streamed lists that failed, in a row.
    streams_failed: u32,
    /// Refusals in a row.
    refusals: u32,
    _kind: PhantomData<fn() -> K>,
}

impl<K> Watcher<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// The next thing to hand out.
    async fn next(&mut self) -> Change<K> {
        loop {
            match self.step().await {
                Ok(Some(change)) => return change,
                Ok(None) => {}
                Err(failure) => {
                    if let Some(text) = self.fail(failure) {
                        return Change::Failed(text);
                    }
                }
            }
        }
    }

    /// Takes note of a failure and decides how to go on. None: it is part of a watch's life.
    fn fail(&mut self, failure: Failure) -> Option<String> {
        let (at, lived) = match std::mem::replace(&mut self.state, State::Nothing) {
            State::Nothing => (None, Duration::ZERO),
            State::At(at) => (Some(at), Duration::ZERO),
            State::Watching { at, since, .. } => (Some(at), since.elapsed()),
        };
        if lived >= LIVED {
            self.backoff.reset();
        }
        self.refusals = if failure.says_no() { self.refusals.saturating_add(1) } else { 0 };
        if !failure.relist()
            && !enough_refusals(self.refusals)
            && let Some(at) = at
        {
            self.state = State::At(at);
        }
        if failure == Failure::GivenUp || (failure.is_ordinary() && lived >= LIVED) {
            self.pause = Duration::ZERO;
            return None;
        }
        self.pause = self.backoff.next(random_fraction());
        if failure.is_ordinary() {
            return None;
        }
        let text = failure.to_string();
        if self.quiet.speaks(Instant::now(), &text) {
            tracing::warn!(
                path = self.path,
                selector = self.scope.field_selector,
                error = text,
                "watch failed, going on"
            );
        } else {
            tracing::debug!(
                path = self.path,
                selector = self.scope.field_selector,
                error = text,
                "watch failed, going on"
            );
        }
        Some(text)
    }

    /// The pause before the next attempt. Whether the server is there is told to all watches by the first to reach it.
    async fn rest(&mut self) {
        let pause = std::mem::take(&mut self.pause);
        if !pause.is_zero() {
            self.client.shared.reachability.pause(pause).await;
        }
    }

    async fn step(&mut self) -> Result<Option<Change<K>>, Failure> {
        self.rest().await;
        match &mut self.state {
            State::Nothing => {
                // The server's URL is not needed here, but without one there is no use in trying.
                self.client.ready().await;
                self.list().await.map(Some)
            }
            State::At(at) => {
                let at = at.clone();
                let query = self.query().resume(&at, random_fraction());
                let response = self.get(&query).await?;
                let lines = Lines::new(response);
                self.state = State::Watching { at, lines, since: Instant::now() };
                Ok(None)
            }
            State::Watching { .. } => self.event().await,
        }
    }

    /// Waits for one event of the running watch.
    async fn event(&mut self) -> Result<Option<Change<K>>, Failure> {
        let State::Watching { at, lines, .. } = &mut self.state else { return Ok(None) };
        let Some(line) = lines.next(self.stall_after).await? else { return Err(Failure::Ended) };
        match decode::<K>(&line)? {
            WatchEvent::Added(mut object) | WatchEvent::Modified(mut object) => {
                version(at, &object);
                (self.strip)(&mut object);
                self.went_well();
                Ok(Some(Change::Applied(object)))
            }
            WatchEvent::Deleted(mut object) => {
                version(at, &object);
                (self.strip)(&mut object);
                self.went_well();
                Ok(Some(Change::Deleted(object)))
            }
            WatchEvent::Bookmark(bookmark) => {
                let version = bookmark.metadata.resource_version;
                // The server was put back to an older state: nothing that it says would reach us from here.
                if goes_back(at, &version) {
                    return Err(Failure::Expired);
                }
                *at = version;
                self.went_well();
                Ok(None)
            }
            WatchEvent::Error(status) => Err(Failure::of_status(&status)),
        }
    }

    fn went_well(&mut self) {
        self.quiet.reset();
        self.refusals = 0;
    }

    fn query(&self) -> Query<'_> {
        Query { field_selector: &self.scope.field_selector, label_selector: &self.scope.label_selector }
    }

    /// Everything that exists now; after it the state is a resource version or a running watch.
    async fn list(&mut self) -> Result<Change<K>, Failure> {
        let mut refusal = None;
        if self.client.shared.streams_lists() {
            let streamed = tokio::time::timeout(STREAMED_LIST, self.streamed_list()).await;
            let failure = match streamed.unwrap_or(Err(Failure::TooSlow { seconds: STREAMED_LIST.as_secs() })) {
                Ok(change) => {
                    self.streams_failed = 0;
                    return Ok(change);
                }
                Err(failure) => failure,
            };
            let instead = failure.instead_of_a_stream(self.streams_failed);
            self.streams_failed = self.streams_failed.saturating_add(1);
            match instead {
                Instead::Nothing => return Err(failure),
                Instead::Pages => {}
                Instead::PagesForAWhile => refusal = Some(failure.clone()),
            }
            tracing::debug!(path = self.path, error = %failure, "a list was not streamed, asking for it in pages");
        }
        let pages = tokio::time::timeout(PAGED_LIST, self.paged_list()).await;
        let change = pages.unwrap_or(Err(Failure::TooSlow { seconds: PAGED_LIST.as_secs() }))?;
        self.streams_failed = 0;
        // What would have refused the pages as well said nothing about streams.
        if let Some(refusal) = refusal
            && self.client.shared.lists_are_not_streamed()
        {
            tracing::info!(
                path = self.path,
                error = %refusal,
                seconds = LISTS_IN_PAGES.as_secs(),
                "the API server does not stream lists, asking for them in pages for a while"
            );
        }
        Ok(change)
    }

    /// The list in pieces, consistent with the present.
    async fn paged_list(&mut self) -> Result<Change<K>, Failure> {
        let mut all = Vec::new();
        let mut token = String::new();
        loop {
            let query = self.query().page(&token);
            let body = self.get(&query).await?.into_body();
            let bytes = body.collect().await.map_err(|error| Failure::Broken(chain(&error)))?.to_bytes();
            let mut page: ObjectList<K> = serde_json::from_slice(&bytes).map_err(Failure::undecodable)?;
            drop(bytes);
            page.items.iter_mut().for_each(&self.strip);
            all.append(&mut page.items);
            token = page.metadata.continue_.unwrap_or_default();
            if token.is_empty() {
                self.state = State::At(page.metadata.resource_version.unwrap_or_default());
                self.went_well();
                return Ok(Change::Restarted(all));
            }
        }
    }

    /// The list as the beginning of a watch (KEP-3157).
    async fn streamed_list(&mut self) -> Result<Change<K>, Failure> {
        let query = self.query().streamed_list(random_fraction());
        let mut lines = Lines::new(self.get(&query).await?);
        let mut all = BTreeMap::new();
        loop {
            let stalled = |error| match error {
                LineError::Stalled(_) => Failure::NoInitialEvents,
                error => error.into(),
            };
            let line = lines.next(LIST_STALL).await.map_err(stalled)?.ok_or(Failure::NoInitialEvents)?;
            let key = |object: &K| (object.namespace().unwrap_or_default(), object.name_any());
            match decode::<K>(&line)? {
                WatchEvent::Added(mut object) | WatchEvent::Modified(mut object) => {
                    (self.strip)(&mut object);
                    all.insert(key(&object), object);
                }
                WatchEvent::Deleted(object) => {
                    all.remove(&key(&object));
                }
                WatchEvent::Bookmark(bookmark) => {
                    let ends = bookmark.metadata.annotations.get("k8s.io/initial-events-end");
                    if ends.is_some_and(|value| value == "true") {
                        let at = bookmark.metadata.resource_version;
                        self.state = State::Watching { at, lines, since: Instant::now() };
                        self.went_well();
                        return Ok(Change::Restarted(all.into_values().collect()));
                    }
                }
                WatchEvent::Error(status) => return Err(Failure::of_status(&status)),
            }
        }
    }

    /// Sends the request; an answer that is no success is a failure with what the server says about it.
    async fn get(&mut self, query: &str) -> Result<Response<Body>, Failure> {
        let request = Request::get(format!("{}?{query}", self.path))
            .body(Body::empty())
            .map_err(|error| Failure::Broken(error.to_string()))?;
        let response = self.client.client(self.lane).send(request).await.map_err(|error| {
            Failure::NoAnswer(match error {
                // Our own error, without the client's words around it.
                kube::Error::Service(error) => chain(&*error),
                error => chain(&error),
            })
        })?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(refusal(response).await)
    }
}

/// The server's own words about a request that it does not grant.
async fn refusal(response: Response<Body>) -> Failure {
    const MAX_BYTES: usize = 64 << 10;
    let code = response.status();
    let body = http_body_util::Limited::new(response.into_body(), MAX_BYTES);
    let bytes = match tokio::time::timeout(LIST_STALL, body.collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(_)) | Err(_) => bytes::Bytes::new(),
    };
    let status: Option<Status> = serde_json::from_slice(&bytes).ok();
    match status {
        Some(status) if status.code != 0 => Failure::of_status(&status),
        Some(status) => Failure::Refused { code: code.as_u16(), reason: status.reason, message: status.message },
        None => Failure::Refused { code: code.as_u16(), reason: String::new(), message: words(code, &bytes) },
    }
}

fn words(code: StatusCode, body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(200)]);
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.is_empty() { code.canonical_reason().unwrap_or_default().to_owned() } else { line }
}

fn decode<K: DeserializeOwned>(line: &[u8]) -> Result<WatchEvent<K>, Failure> {
    serde_json::from_slice(line).map_err(Failure::undecodable)
}

/// Remembers how far we are.
fn version<K: Resource>(at: &mut String, object: &K) {
    if let Some(version) = &object.meta().resource_version {
        at.clone_from(version);
    }
}

/// The connection of an answer, put there by the service.
fn slot_of(response: &Response<Body>) -> Option<Arc<Slot>> {
    response.extensions().get::<Arc<Slot>>().cloned()
}
