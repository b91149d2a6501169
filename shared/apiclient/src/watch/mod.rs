//! List and watch without an end: resumes, relists on 410, pauses after failures, and drops a connection on which
//! nothing comes any more.
//!
//! The rules are those of client-go's reflector (`tools/cache/reflector.go`): a streaming list where the server takes
//! it, else - within the same attempt - a list in pages; then a watch from there, ended by the server after five to ten
//! minutes and resumed.
//!
//! An object that cannot be decoded ends nothing: it is named in the log, its last copy goes on counting, and all others are as if it
//! were not there. What was noted of an object's managers is not decoded at all ([`crate::object`]).

mod decide;
mod decode;
mod lines;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::chain;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::Resource;
use kube::client::Body;
use kube::core::Status;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::backoff::{Backoff, random_fraction};
use crate::object::{ObjectRef, Parted, Whole};
use crate::session::LISTS_IN_PAGES;
use crate::transport::Slot;
use crate::{ApiClient, Lane};
use decide::{Failure, Instead, Named, Query, Quiet, enough_refusals, goes_back};
use decode::{Item, Said, Undecodable};
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
pub enum Change<T> {
    /// Everything that exists now: what is not in it is gone.
    Restarted(List<T>),
    Applied(T),
    Deleted(ObjectRef),
    /// The last attempt failed; the watch goes on by itself. For the log and for health.
    Failed(String),
}

/// Everything that exists.
#[derive(Debug, Clone)]
pub struct List<T> {
    pub objects: Vec<T>,
    /// These exist as well and cannot be decoded. The last copy of each goes on counting; one of which there is none is as if not
    /// there.
    pub undecodable: Vec<ObjectRef>,
}

impl<T> From<Vec<T>> for List<T> {
    fn from(objects: Vec<T>) -> Self {
        List { objects, undecodable: Vec::new() }
    }
}

impl<T> List<T> {
    /// The set by keys. `last`: what was known before, of which stays what exists and cannot be decoded.
    pub fn keyed<Q: Ord, V>(
        self,
        mut last: BTreeMap<Q, V>,
        key: impl Fn(&ObjectRef) -> Q,
        entry: impl Fn(T) -> (Q, V),
    ) -> BTreeMap<Q, V> {
        let mut all: BTreeMap<Q, V> = self.undecodable.iter().filter_map(|one| last.remove_entry(&key(one))).collect();
        all.extend(self.objects.into_iter().map(entry));
        all
    }
}

/// Watches for ever, objects without their `managedFields`.
pub fn watch<K>(client: &ApiClient, lane: Lane, scope: Scope) -> BoxStream<'static, Change<K>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Debug + Send + Sync + 'static,
{
    watch_with(client, lane, scope, |_| {})
}

/// The same. `strip` may take away from each object what its caller does not keep. It is called before objects of a list are
/// collected, so that a list of large objects is never in memory as a whole.
pub fn watch_with<K>(
    client: &ApiClient,
    lane: Lane,
    scope: Scope,
    strip: impl Fn(&mut K) + Send + Sync + 'static,
) -> BoxStream<'static, Change<K>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let keep = move |Parted { mut object, .. }: Parted<K, IgnoredAny>| {
        strip(&mut object);
        object
    };
    start(client, lane, scope, Box::new(keep))
}

/// The same, objects with the text of their `managedFields`.
pub fn watch_whole<K>(client: &ApiClient, lane: Lane, scope: Scope) -> BoxStream<'static, Change<Whole<K>>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Debug + Send + Sync + 'static,
{
    start::<K, Box<RawValue>, _>(client, lane, scope, Box::new(|whole| whole))
}

/// What is kept of an object.
type Keep<K, M, T> = Box<dyn Fn(Parted<K, M>) -> T + Send + Sync>;

fn start<K, M, T>(client: &ApiClient, lane: Lane, scope: Scope, keep: Keep<K, M, T>) -> BoxStream<'static, Change<T>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + 'static,
    M: DeserializeOwned + 'static,
    T: Send + 'static,
{
    let watcher = Watcher {
        client: client.clone(),
        lane,
        path: K::url_path(&(), scope.namespace.as_deref()),
        stall_after: scope.stall_after.unwrap_or(STALL_AFTER),
        scope,
        keep,
        state: State::Nothing,
        backoff: Backoff::new(PAUSE.0, PAUSE.1),
        pause: Duration::ZERO,
        quiet: Quiet::default(),
        named: Named::default(),
        streams_failed: 0,
        refusals: 0,
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

struct Watcher<K, M, T> {
    client: ApiClient,
    lane: Lane,
    path: String,
    scope: Scope,
    stall_after: Duration,
    keep: Keep<K, M, T>,
    state: State,
    backoff: Backoff,
    /// Before the next attempt.
    pause: Duration,
    quiet: Quiet,
    named: Named,
    /// Streamed lists that failed, in a row.
    streams_failed: u32,
    /// Refusals in a row.
    refusals: u32,
}

impl<K, M, T> Watcher<K, M, T>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
    M: DeserializeOwned,
{
    /// The next thing to hand out.
    async fn next(&mut self) -> Change<T> {
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

    async fn step(&mut self) -> Result<Option<Change<T>>, Failure> {
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
    async fn event(&mut self) -> Result<Option<Change<T>>, Failure> {
        let State::Watching { at, lines, .. } = &mut self.state else { return Ok(None) };
        let Some(line) = lines.next(self.stall_after).await? else { return Err(Failure::Ended) };
        let change = match decode::line::<K, M>(&line)? {
            Said::Applied(Item::Read(parted)) => {
                goes_to(at, parted.object.meta().resource_version.as_deref().unwrap_or_default());
                Some(Change::Applied((self.keep)(parted)))
            }
            Said::Applied(Item::Undecodable(one)) => {
                goes_to(at, &one.resource_version);
                self.name(&one);
                None
            }
            Said::Deleted(object, resource_version) => {
                goes_to(at, &resource_version);
                self.named.forget(&object);
                Some(Change::Deleted(object))
            }
            Said::Bookmark { resource_version, .. } => {
                // The server was put back to an older state: nothing that it says would reach us from here.
                if goes_back(at, &resource_version) {
                    return Err(Failure::Expired);
                }
                *at = resource_version;
                None
            }
            Said::Error(status) => return Err(Failure::of_status(&status)),
        };
        self.went_well();
        Ok(change)
    }

    /// Names an object that cannot be decoded in the log.
    fn name(&mut self, Undecodable { object, error, .. }: &Undecodable) {
        let ObjectRef { namespace, name, uid } = object;
        if self.named.speaks(object) {
            tracing::warn!(
                kind = %K::kind(&()),
                namespace,
                name,
                uid,
                %error,
                "skipping undecodable object: its last copy counts, without one it counts as absent"
            );
        } else {
            tracing::debug!(kind = %K::kind(&()), namespace, name, uid, %error, "skipping undecodable object");
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
    async fn list(&mut self) -> Result<Change<T>, Failure> {
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
    async fn paged_list(&mut self) -> Result<Change<T>, Failure> {
        let mut all = List::from(Vec::new());
        let mut token = String::new();
        loop {
            let query = self.query().page(&token);
            let body = self.get(&query).await?.into_body();
            let bytes = body.collect().await.map_err(|error| Failure::Broken(chain(&error)))?.to_bytes();
            let (items, list) = decode::page::<K, M>(&bytes)?;
            drop(bytes);
            for item in items {
                match item {
                    Item::Read(parted) => all.objects.push((self.keep)(parted)),
                    Item::Undecodable(one) => {
                        self.name(&one);
                        all.undecodable.push(one.object);
                    }
                }
            }
            token = list.continue_.unwrap_or_default();
            if token.is_empty() {
                self.state = State::At(list.resource_version.unwrap_or_default());
                self.went_well();
                return Ok(Change::Restarted(all));
            }
        }
    }

    /// The list as the beginning of a watch (KEP-3157).
    async fn streamed_list(&mut self) -> Result<Change<T>, Failure> {
        let query = self.query().streamed_list(random_fraction());
        let mut lines = Lines::new(self.get(&query).await?);
        let (mut objects, mut undecodable) = (BTreeMap::new(), BTreeMap::new());
        loop {
            let stalled = |error| match error {
                LineError::Stalled(_) => Failure::NoInitialEvents,
                error => error.into(),
            };
            let line = lines.next(LIST_STALL).await.map_err(stalled)?.ok_or(Failure::NoInitialEvents)?;
            match decode::line::<K, M>(&line)? {
                Said::Applied(Item::Read(parted)) => {
                    let meta = parted.object.meta();
                    let key = (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default());
                    undecodable.remove(&key);
                    objects.insert(key, (self.keep)(parted));
                }
                Said::Applied(Item::Undecodable(one)) => {
                    self.name(&one);
                    let key = (one.object.namespace.clone(), one.object.name.clone());
                    // Else this list itself has its last copy.
                    if !objects.contains_key(&key) {
                        undecodable.insert(key, one.object);
                    }
                }
                Said::Deleted(object, _) => {
                    self.named.forget(&object);
                    let key = (object.namespace, object.name);
                    objects.remove(&key);
                    undecodable.remove(&key);
                }
                Said::Bookmark { resource_version: at, ends_list: true } => {
                    self.state = State::Watching { at, lines, since: Instant::now() };
                    self.went_well();
                    let (objects, undecodable) = (objects.into_values().collect(), undecodable.into_values().collect());
                    return Ok(Change::Restarted(List { objects, undecodable }));
                }
                Said::Bookmark { .. } => {}
                Said::Error(status) => return Err(Failure::of_status(&status)),
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

/// Remembers how far we are.
fn goes_to(at: &mut String, resource_version: &str) {
    if !resource_version.is_empty() {
        resource_version.clone_into(at);
    }
}

/// The connection of an answer, put there by the service.
fn slot_of(response: &Response<Body>) -> Option<Arc<Slot>> {
    response.extensions().get::<Arc<Slot>>().cloned()
}
