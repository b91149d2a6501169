//! One pod's place in the writer: what is wanted, which copies of the API object are known, when it is to be looked at.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Instant;

use bulkhead_types::PodUid;

use super::copies::{ApiCopy, compare};
use super::decide::Desired;
use super::normal;

/// An object that the server said is gone: this version of it and older ones are not to be believed any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gone {
    pub uid: PodUid,
    pub version: String,
}

impl Gone {
    pub fn of(copy: &ApiCopy) -> Self {
        Gone { uid: copy.uid.clone(), version: copy.version.clone() }
    }

    fn covers(&self, copy: &ApiCopy) -> bool {
        copy.uid == self.uid && compare(&copy.version, &self.version).is_none_or(std::cmp::Ordering::is_le)
    }
}

/// A patch that was answered.
#[derive(Debug)]
pub struct Written {
    /// Fingerprint of the status that was wanted.
    wish: u64,
    /// Of the object.
    uid: PodUid,
    at: Instant,
    body: u64,
    /// Fingerprint of the status that the server made of it.
    made: u64,
    /// The patch before it was for the same wish.
    again: bool,
}

/// A pod and its bookkeeping.
#[derive(Debug)]
pub struct Entry {
    pub desired: Desired,
    /// As kubelet-syncd's watch saw it.
    seen: Option<ApiCopy>,
    /// Of our own last request, as long as the watch has not caught up.
    own: Option<ApiCopy>,
    /// What the watch had when our own answer came, and when that was.
    seen_before_own: Option<String>,
    own_since: Option<Instant>,
    gone: Option<Gone>,
    gone_since: Option<Instant>,
    /// The final DELETE was accepted for this version.
    pub deleted: Option<Gone>,
    /// Not to be looked at before (a refusal to wait for), whatever changes.
    pub not_before: Option<Instant>,
    pub due: Option<Instant>,
    /// A change that may wait does so since.
    pub minor_since: Option<Instant>,
    pub failures: u32,
    /// The oldest change that was not written yet.
    pub changed_at: Option<Instant>,
    /// The last patch that was answered.
    pub written: Option<Written>,
    /// The last answer was no, for good: another wish may fare better at once.
    pub refused: bool,
    /// The next request is a GET: it is not known what stands under the name.
    pub look: bool,
}

impl Entry {
    pub fn new(desired: Desired, seen: Option<ApiCopy>) -> Self {
        Entry {
            desired,
            seen,
            own: None,
            seen_before_own: None,
            own_since: None,
            gone: None,
            gone_since: None,
            deleted: None,
            not_before: None,
            due: None,
            minor_since: None,
            failures: 0,
            changed_at: None,
            written: None,
            refused: false,
            look: false,
        }
    }

    /// Takes a newer state. False: nothing changed that matters here, such as when the watch shows what our own request was answered with.
    pub fn update(&mut self, desired: Desired, seen: Option<ApiCopy>) -> bool {
        if self.desired == desired {
            if self.seen == seen {
                return false;
            }
            if self.is_own(seen.as_ref()) {
                self.own = None;
                self.seen = seen;
                return false;
            }
        }
        if std::mem::take(&mut self.refused) {
            self.not_before = None;
        }
        self.desired = desired;
        self.saw(seen);
        true
    }

    /// Whether the copy is the one that our last request was answered with.
    fn is_own(&self, seen: Option<&ApiCopy>) -> bool {
        self.own.as_ref().zip(seen).is_some_and(|(own, seen)| {
            (&own.uid, &own.version, own.deleting) == (&seen.uid, &seen.version, seen.deleting)
        })
    }

    fn saw(&mut self, seen: Option<ApiCopy>) {
        let caught_up = match (&self.own, &seen) {
            (None, _) => false,
            (Some(own), Some(seen)) => match compare(&seen.version, &own.version) {
                Some(order) => order.is_ge(),
                // Versions that say nothing: whatever comes after our answer is newer than it.
                None => self.seen_before_own.as_deref() != Some(seen.version.as_str()),
            },
            // A static pod's mirror may not have been seen yet; a pod that is not seen (any more) is deleted.
            (Some(own), None) => !self.desired.is_static || self.seen.as_ref().is_some_and(|seen| seen.uid == own.uid),
        };
        if caught_up {
            self.own = None;
        }
        self.seen = seen;
    }

    /// The newest copy.
    pub fn api(&self) -> Option<ApiCopy> {
        let seen = self.believed();
        let mut newest = match (&self.own, seen) {
            (Some(own), _) => own.clone(),
            (None, seen) => seen?.clone(),
        };
        // Once it is being deleted it stays so.
        newest.deleting |= seen.is_some_and(|seen| seen.uid == newest.uid && seen.deleting);
        Some(newest)
    }

    /// What the watch saw, unless the server said since that it is gone.
    fn believed(&self) -> Option<&ApiCopy> {
        self.seen.as_ref().filter(|seen| !self.gone.as_ref().is_some_and(|gone| gone.covers(seen)))
    }

    /// Our request was answered with the object.
    pub fn answered(&mut self, copy: ApiCopy, now: Instant) {
        if self.seen.as_ref().is_some_and(|seen| seen.is_newer_than(&copy)) {
            return;
        }
        self.own_since = Some(now);
        self.seen_before_own = self.seen.as_ref().map(|seen| seen.version.clone());
        self.own = Some(copy);
    }

    /// The server has it no more.
    pub fn is_gone(&mut self, now: Instant) {
        self.gone = self.api().as_ref().map(Gone::of).or(self.gone.take());
        self.gone_since = Some(now);
        self.own = None;
    }

    /// When the server said that this object is gone, if a newer version of it was seen all the same: a DELETE passes
    /// through a version of its own, with a grace period of 0, and a watch shows that late.
    pub fn gone_before(&self, api: &ApiCopy) -> Option<Instant> {
        self.gone.as_ref().filter(|gone| gone.uid == api.uid).and(self.gone_since)
    }

    /// Whether the server has anything.
    pub fn has_copy(&self) -> bool {
        self.own.is_some() || self.believed().is_some()
    }

    /// When a mirror pod that we made and no watch has shown was last known to be there.
    pub fn unseen_since(&self) -> Option<Instant> {
        (self.desired.is_static && self.own.is_some() && self.seen.is_none()).then_some(self.own_since).flatten()
    }

    /// Another life of kubelet-syncd: what it sees is to be believed again.
    pub fn forget_gone(&mut self) {
        self.gone = None;
        self.deleted = None;
    }

    /// Whether the final DELETE was accepted and nothing happened to the object since.
    pub fn deletion_pending(&self) -> bool {
        match (&self.deleted, self.api()) {
            (Some(deleted), Some(api)) => deleted.covers(&api),
            (Some(_), None) => true,
            (None, _) => false,
        }
    }

    /// The wish was written by this patch, and this is what the server made of it.
    pub fn wrote(&mut self, wish: u64, body: &[u8], copy: &ApiCopy, at: Instant) {
        let again = self.written.as_ref().is_some_and(|before| before.wish == wish && before.uid == copy.uid);
        let (body, made) = (hash(body), status_fingerprint(copy));
        self.written = Some(Written { wish, uid: copy.uid.clone(), at, body, made, again });
    }

    /// Whether this patch was written already, and the server still has what it made of it. Another one may change something: a patch
    /// is what differs from a copy, which may have been older than what the server had.
    pub fn is_settled(&self, body: &[u8], api: &ApiCopy) -> bool {
        self.written
            .as_ref()
            .is_some_and(|written| written.body == hash(body) && written.made == status_fingerprint(api))
    }

    /// Whether the last patch made this copy what was wanted (`makes`, see [`normal::fingerprint`]), so that another look at the pod
    /// would find nothing to do. A mirror pod's next step depends on others; a pod that may go is to be deleted.
    pub fn is_told(&self, makes: u64, copy: &ApiCopy) -> bool {
        let is_newest = self.seen.as_ref().is_none_or(|seen| !seen.is_newer_than(copy));
        let is_pod = !self.desired.is_static && copy.uid == self.desired.uid && copy.mirror_hash.is_empty();
        let is_made = self.written.as_ref().is_some_and(|written| written.made == makes);
        is_newest && is_pod && is_made && !self.desired.may_delete
    }

    /// When this wish was written to the object, and somebody else has written over it since, or two patches were not enough.
    pub fn overwritten_since(&self, api: &ApiCopy) -> Option<Instant> {
        let written = self.written.as_ref()?;
        let is_it = written.wish == self.desired.fingerprint() && written.uid == api.uid;
        (is_it && (written.again || written.made != status_fingerprint(api))).then_some(written.at)
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn status_fingerprint(api: &ApiCopy) -> u64 {
    normal::parse(&api.status).map_or_else(|| hash(&api.status), |status| normal::fingerprint(&status))
}
