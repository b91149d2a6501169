//! What was asked: every request with who, what, when and the answer's code, for tests and the benchmark to count.

mod audit;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use anyhow::Result;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;

use self::audit::AuditLog;
use super::request::Request;

/// The user agent of the kit's own client, which faults leave alone and counts leave out.
pub const KIT_AGENT: &str = "bulkhead-testkit";
/// Requests that are remembered; older ones go, but stay counted.
const REMEMBERED: usize = 20_000;

/// One request.
#[derive(Debug, Clone)]
pub struct Record {
    /// Grows by one with each request.
    pub number: u64,
    pub time: Timestamp,
    pub user: String,
    pub agent: String,
    pub method: String,
    /// `get`, `list`, `watch`, `create`...
    pub verb: &'static str,
    /// Path and query as they came.
    pub uri: String,
    pub resource: &'static str,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    /// Of the body; empty where a real server logged.
    pub content_type: String,
    /// 0 until there is an answer.
    pub status: u16,
    /// HTTP version, as `HTTP/2.0`; empty where a real server logged.
    pub protocol: String,
    /// The body where it was JSON and bodies are kept.
    pub body: Option<Value>,
}

impl Record {
    /// `patch pods/status`: what tests compare.
    pub fn what(&self) -> String {
        let resource = if self.resource.is_empty() { self.uri.as_str() } else { self.resource };
        let sub = if self.subresource.is_empty() { String::new() } else { format!("/{}", self.subresource) };
        format!("{} {resource}{sub}", self.verb)
    }

    pub fn is_kits_own(&self) -> bool {
        self.agent.starts_with(KIT_AGENT)
    }
}

#[derive(Debug, Default)]
struct Inner {
    records: VecDeque<Record>,
    next: u64,
    counts: BTreeMap<(String, String), u64>,
}

/// The log.
#[derive(Debug, Default)]
pub struct RequestLog {
    inner: Mutex<Inner>,
    /// Where a real server writes it, which is read before each look.
    audit: Option<Mutex<AuditLog>>,
}

impl RequestLog {
    /// The log of a real server, from now on.
    ///
    /// # Errors
    /// Its file cannot be read.
    pub fn of_audit_log(path: &Path) -> Result<Self> {
        Ok(Self { inner: Mutex::default(), audit: Some(Mutex::new(AuditLog::open(path)?)) })
    }

    fn audit(&self) -> Option<parking_lot::MutexGuard<'_, AuditLog>> {
        self.audit.as_ref().map(|audit| audit.lock())
    }

    /// Takes over what a real server has written meanwhile.
    pub fn read_on(&self) -> Result<()> {
        self.audit().map_or(Ok(()), |mut audit| audit.read_on(self))
    }

    fn inner(&self) -> parking_lot::MutexGuard<'_, Inner> {
        // What cannot be read now is read at the next look.
        let _ = self.read_on();
        self.inner.lock()
    }

    /// Begins anew, with a file that grows no further than a test needs.
    pub fn forget(&self) {
        if let Some(mut audit) = self.audit() {
            audit.begin_anew();
        }
        *self.inner.lock() = Inner::default();
    }

    /// Notes a request's arrival; gives its number.
    pub(super) fn begin(&self, mut record: Record) -> u64 {
        let mut inner = self.inner.lock();
        inner.next += 1;
        record.number = inner.next;
        let key = (record.user.clone(), record.what());
        *inner.counts.entry(key).or_default() += 1;
        if inner.records.len() == REMEMBERED {
            inner.records.pop_front();
        }
        inner.records.push_back(record);
        inner.next
    }

    /// Notes the answer.
    pub(super) fn end(&self, number: u64, status: u16, body: Option<Value>) {
        let mut inner = self.inner.lock();
        let Some(first) = inner.records.front().map(|record| record.number) else { return };
        let index = number.checked_sub(first).and_then(|index| usize::try_from(index).ok());
        if let Some(record) = index.and_then(|index| inner.records.get_mut(index)) {
            record.status = status;
            record.body = body;
        }
    }

    /// Requests with a number above `after`, oldest first, without the kit's own.
    pub fn after(&self, after: u64) -> Vec<Record> {
        let inner = self.inner();
        inner.records.iter().filter(|record| record.number > after && !record.is_kits_own()).cloned().collect()
    }

    /// The number of the latest request.
    pub fn mark(&self) -> u64 {
        self.inner().next
    }

    /// How often each user asked for what (`patch pods/status`), since the beginning.
    pub fn counts(&self) -> BTreeMap<(String, String), u64> {
        self.inner().counts.clone()
    }
}

impl Record {
    /// A record of a request that just came.
    pub(super) fn new(request: &Request, method: &str, uri: String) -> Self {
        Self {
            number: 0,
            time: Timestamp::now(),
            user: String::new(),
            agent: String::new(),
            method: method.to_owned(),
            verb: request.verb,
            uri,
            resource: request.resource.map_or("", |resource| resource.plural),
            subresource: request.subresource.clone(),
            namespace: request.namespace.clone(),
            name: request.name.clone(),
            content_type: String::new(),
            status: 0,
            protocol: String::new(),
            body: None,
        }
    }
}
