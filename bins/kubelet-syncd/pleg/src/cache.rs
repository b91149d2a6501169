//! The pod cache: the newest runtime state of each pod, how fresh it is, and waiting for a fresher one. PLEG alone
//! writes it. (upstream `pkg/kubelet/container/cache.go`)

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bulkhead_cri::CriError;
use bulkhead_types::{ContainerId, PodUid, SandboxId};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use kubelet_model::pod::model::RuntimePod;

/// Why no state is given out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// Its last inspection failed.
    #[error("failed to inspect pod {uid} at the runtime")]
    Inspect {
        uid: PodUid,
        #[source]
        source: CriError,
    },
    /// PLEG has ended: the process is shutting down.
    #[error("failed to wait for the state of pod {uid}: the pod lifecycle event generator has ended")]
    Closed { uid: PodUid },
}

type Answer = Result<Arc<RuntimePod>, CacheError>;

#[derive(Debug)]
struct Entry {
    pod: Arc<RuntimePod>,
    failure: Option<CriError>,
    /// Moment before the runtime was asked: what had happened by then is in `pod`. None: never inspected yet.
    observed_at: Option<Instant>,
    /// A list showed another state than this one; the next inspection will tell.
    doubtful: bool,
    /// While it is doubtful: what that list showed of it.
    listed: Option<KnownIds>,
}

#[derive(Debug)]
struct Waiter {
    newer_than: Instant,
    answer: oneshot::Sender<Answer>,
}

#[derive(Debug, Default)]
struct Inner {
    pods: HashMap<PodUid, Entry>,
    /// Start of the last list of everything: an entry that is not doubtful is at least this fresh.
    listed_at: Option<Instant>,
    waiters: HashMap<PodUid, Vec<Waiter>>,
    /// Containers and sandboxes by id.
    owners: HashMap<Box<str>, PodUid>,
    /// Pods to inspect, and whether their worker is to hear of it (`PodSync`) if nothing changed.
    wanted: HashMap<PodUid, bool>,
    /// Containers about which everything is to be asked, by pod.
    anew: HashMap<PodUid, HashSet<Box<str>>>,
    /// Pods that we are changing ourselves right now, and since when.
    busy: HashMap<PodUid, Instant>,
    /// Those of which that has changed since PLEG asked.
    busy_changed: HashSet<PodUid>,
    /// What we have made for pods and no look has shown yet.
    made: HashMap<PodUid, Made>,
    closed: bool,
}

/// A container and the sandbox that it is in.
type Contained = (Box<str>, Box<str>);

/// What a pod has, or has not any more, by our own doing, and since when.
#[derive(Debug, Default)]
struct Made {
    sandboxes: Vec<(Box<str>, Instant)>,
    containers: Vec<(Contained, Instant)>,
    /// What we have removed since.
    removed: Vec<(Box<str>, Instant)>,
    /// A call failed that makes something: what it has made nobody knows.
    unclear: bool,
}

impl Made {
    /// Of what was made and removed before this moment a look has told.
    fn told(&mut self, until: Instant) {
        self.sandboxes.retain(|(_, at)| *at >= until);
        self.containers.retain(|(_, at)| *at >= until);
        self.removed.retain(|(_, at)| *at >= until);
    }

    fn says_nothing(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty() && self.removed.is_empty()
    }

    fn has_removed(&self, id: &str) -> bool {
        self.removed.iter().any(|(one, _)| &**one == id)
    }
}

/// All that the runtime has of a pod, by id: see [`PodCache::known`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct KnownIds {
    pub sandboxes: Vec<Box<str>>,
    pub containers: Vec<Contained>,
}

impl KnownIds {
    fn count(&self) -> usize {
        self.sandboxes.len() + self.containers.len()
    }

    fn has(&self, id: &str) -> bool {
        self.sandboxes.iter().any(|one| &**one == id) || self.containers.iter().any(|(one, _)| &**one == id)
    }

    /// Puts those in that are not among them. True: there was one.
    fn add<'a>(
        &mut self,
        sandboxes: impl Iterator<Item = &'a str>,
        containers: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> bool {
        let before = self.count();
        for id in sandboxes {
            if !self.has(id) {
                self.sandboxes.push(id.into());
            }
        }
        for (id, sandbox) in containers {
            if !self.has(id) {
                self.containers.push((id.into(), sandbox.into()));
            }
        }
        self.count() > before
    }
}

/// Of a pod with more than this two lists ask for less.
const IDS_MAX: usize = 8;

/// A call that makes something of a pod is under way. Dropped without an answer it leaves it open what there is.
#[derive(Debug)]
pub struct Making {
    cache: Arc<PodCache>,
    uid: PodUid,
    is_told: bool,
}

impl Making {
    /// It has made this sandbox.
    pub fn sandbox(mut self, id: &SandboxId) {
        self.is_told = true;
        self.cache
            .inner()
            .made
            .entry(self.uid.clone())
            .or_default()
            .sandboxes
            .push((id.as_str().into(), Instant::now()));
    }

    /// It has made this container.
    pub fn container(mut self, id: &ContainerId, sandbox: &SandboxId) {
        self.is_told = true;
        let made = (id.as_str().into(), sandbox.as_str().into());
        self.cache.inner().made.entry(self.uid.clone()).or_default().containers.push((made, Instant::now()));
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if !self.is_told {
            self.cache.inner().made.entry(self.uid.clone()).or_default().unclear = true;
        }
    }
}

/// While it lives, PLEG does not look at the pod for events: see [`super::Pleg::busy`].
#[derive(Debug)]
pub struct Busy {
    cache: Arc<PodCache>,
    uid: PodUid,
    since: Instant,
}

impl Drop for Busy {
    fn drop(&mut self) {
        {
            let mut inner = self.cache.inner();
            // Somebody else's that came later stays.
            if inner.busy.get(&self.uid) == Some(&self.since) {
                inner.busy.remove(&self.uid);
                inner.busy_changed.insert(self.uid.clone());
            }
        }
        self.cache.wake.notify_one();
    }
}

/// See the module. Shared by reference; every method may be called from any task.
#[derive(Debug, Default)]
pub struct PodCache {
    inner: Mutex<Inner>,
    /// Wakes PLEG when something was put into `wanted`.
    pub(super) wake: Notify,
}

impl PodCache {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere cannot leave it half-written: no method panics between two writes.
        self.inner.lock()
    }

    /// The newest known state; an empty one for a pod that the runtime does not have, without a uid where it was not listed yet.
    pub fn get(&self, uid: &PodUid) -> Arc<RuntimePod> {
        let inner = self.inner();
        let listed = || inner.listed_at.map(|_| nothing(uid)).unwrap_or_default();
        inner.pods.get(uid).map_or_else(listed, |entry| entry.pod.clone())
    }

    /// All pods that the runtime has something of. One that was listed and has not answered an inspection yet is
    /// among them, with nothing in it: what it has is not known, but it is there.
    pub fn snapshot(&self) -> Vec<(PodUid, Arc<RuntimePod>)> {
        let inner = self.inner();
        let there = inner.pods.iter().filter(|(_, e)| e.doubtful || !is_empty(&e.pod));
        there.map(|(uid, e)| (uid.clone(), e.pod.clone())).collect()
    }

    /// Whether the state held is what the runtime last said, as opposed to: listed and not inspected, or in doubt.
    pub fn is_certain(&self, uid: &PodUid) -> bool {
        self.inner().pods.get(uid).is_none_or(|entry| !entry.doubtful)
    }

    /// Whether the state is known, and as it was at `moment` or later.
    pub fn is_since(&self, uid: &PodUid, moment: Instant) -> bool {
        self.inner().answer(uid, moment).is_some_and(|answer| answer.is_ok())
    }

    /// The pod of a container or sandbox.
    pub fn owner(&self, id: &str) -> Option<PodUid> {
        self.inner().owners.get(id).cloned()
    }

    /// The state as it was at `newer_than` or later. Asks PLEG to look where the cache is older, so the wait is that
    /// of a few calls to the runtime. A pod that the runtime does not have gives an empty state.
    ///
    /// # Errors
    /// The inspection failed, or PLEG has ended.
    pub async fn get_newer_than(&self, uid: &PodUid, newer_than: Instant) -> Answer {
        let receiver = {
            let mut inner = self.inner();
            if let Some(answer) = inner.answer(uid, newer_than) {
                return answer;
            }
            if inner.closed {
                return Err(CacheError::Closed { uid: uid.clone() });
            }
            let (sender, receiver) = oneshot::channel();
            let waiters = inner.waiters.entry(uid.clone()).or_default();
            waiters.retain(|w| !w.answer.is_closed());
            waiters.push(Waiter { newer_than, answer: sender });
            inner.wanted.entry(uid.clone()).or_insert(false);
            receiver
        };
        self.wake.notify_one();
        receiver.await.unwrap_or_else(|_| Err(CacheError::Closed { uid: uid.clone() }))
    }

    /// Asks for an inspection of one pod; a `PodSync` event follows if it shows nothing new.
    pub(super) fn want(&self, uid: &PodUid) {
        self.inner().wanted.insert(uid.clone(), true);
        self.wake.notify_one();
    }

    pub(super) fn want_anew<'a>(&self, uid: &PodUid, containers: impl Iterator<Item = &'a ContainerId>) {
        let ids = containers.map(|id| id.as_str().into());
        self.inner().anew.entry(uid.clone()).or_default().extend(ids);
        self.want(uid);
    }

    /// Containers about which everything is to be asked, since the last call.
    pub(super) fn take_anew(&self) -> HashMap<PodUid, HashSet<Box<str>>> {
        std::mem::take(&mut self.inner().anew)
    }

    /// One at a time for each pod: its worker, or what tidies up after it. The one that came last counts.
    pub(super) fn busy(self: &Arc<Self>, uid: &PodUid) -> Busy {
        let since = Instant::now();
        {
            let mut inner = self.inner();
            inner.busy.insert(uid.clone(), since);
            inner.busy_changed.insert(uid.clone());
        }
        Busy { cache: self.clone(), uid: uid.clone(), since }
    }

    pub(super) fn making(self: &Arc<Self>, uid: &PodUid) -> Making {
        Making { cache: self.clone(), uid: uid.clone(), is_told: false }
    }

    /// We have removed this sandbox or container: no look asks about it any more.
    pub(super) fn removed(&self, id: &str) {
        let mut inner = self.inner();
        if let Some(uid) = inner.owners.get(id).cloned() {
            inner.made.entry(uid).or_default().removed.push((id.into(), Instant::now()));
        }
    }

    /// Ids of all that the runtime has of the pod, where that is known without asking for lists of it: what the last look showed,
    /// what the list of everything showed that doubts it, and what was made and removed since. `named`: ids that events have named,
    /// which must be among them.
    ///
    /// What somebody else makes after the list is not among them: at a start that is a call of our former life which the runtime is
    /// still at. Its start is an event that names an unknown id, and then lists are asked for. What is only created, and what events
    /// do not tell because their stream was not open yet, the list shows that follows each opening by a second, or the audit; until
    /// then the name that it has in the runtime keeps a second one from being made.
    pub(super) fn known<'a>(&self, uid: &PodUid, mut named: impl Iterator<Item = &'a str>) -> Option<KnownIds> {
        let inner = self.inner();
        // Before the first list nothing is known of pods that were there before us.
        inner.listed_at?;
        let (entry, made) = (inner.pods.get(uid), inner.made.get(uid));
        let mut known = KnownIds::default();
        if let Some(entry) = entry {
            if entry.failure.is_some() || (entry.doubtful && entry.listed.is_none()) {
                return None;
            }
            // Also of a pod in doubt: a look that began before the list may have ended after it, and have seen more.
            let containers = entry.pod.containers.iter().map(|one| (one.id.as_str(), one.sandbox_id.as_str()));
            known.add(entry.pod.sandboxes.iter().map(|one| one.id.as_str()), containers);
        }
        if let Some(made) = made {
            if made.unclear {
                return None;
            }
            let containers = made.containers.iter().map(|((id, sandbox), _)| (&**id, &**sandbox));
            known.add(made.sandboxes.iter().map(|(id, _)| &**id), containers);
        }
        if let Some(entry) = entry
            && let Some(listed) = &entry.listed
        {
            let containers = listed.containers.iter().map(|(id, sandbox)| (&**id, &**sandbox));
            let has_more = known.add(listed.sandboxes.iter().map(|id| &**id), containers);
            // The pod was known, and has something that nobody has told of: more may have been made since.
            if has_more && entry.observed_at.is_some() {
                return None;
            }
        }
        // What was never seen may have been made by somebody else.
        if known.count() == 0 || !named.all(|id| known.has(id)) {
            return None;
        }
        if let Some(made) = made {
            known.sandboxes.retain(|id| !made.has_removed(id));
            known.containers.retain(|(id, _)| !made.has_removed(id));
        }
        (known.count() <= IDS_MAX).then_some(known)
    }

    /// A look that was ordered at this moment has told of all that had been made by then.
    pub(super) fn looked_at(&self, uid: &PodUid, ordered: Instant) {
        let mut inner = self.inner();
        let Some(made) = inner.made.get_mut(uid) else { return };
        made.told(ordered);
        if made.says_nothing() && !made.unclear {
            inner.made.remove(uid);
        }
    }

    /// Pods whose events can wait, with the moment from which they cannot any more, and those whose events can wait no more: what has
    /// changed since the last call.
    pub(super) fn take_busy(&self, longest: std::time::Duration) -> Vec<(PodUid, Option<Instant>)> {
        let mut inner = self.inner();
        let changed = std::mem::take(&mut inner.busy_changed);
        let of = |uid: PodUid| {
            let until = inner.busy.get(&uid).map(|since| *since + longest);
            (uid, until)
        };
        changed.into_iter().map(of).collect()
    }

    /// What was asked for since the last call. The flag: tell the worker in any case.
    pub(super) fn take_wanted(&self) -> HashMap<PodUid, bool> {
        std::mem::take(&mut self.inner().wanted)
    }

    /// Result of an inspection that began at `observed_at`. A failure keeps the old state and hands out the error.
    pub(super) fn set(&self, uid: &PodUid, result: Result<RuntimePod, CriError>, observed_at: Instant) {
        let mut inner = self.inner();
        let old = inner.pods.remove(uid);
        let entry = match result {
            Ok(pod) => {
                if let Some(old) = &old {
                    for id in ids(&old.pod) {
                        inner.owners.remove(id);
                    }
                }
                for id in ids(&pod) {
                    inner.owners.insert(id.into(), uid.clone());
                }
                // A list that was begun later and doubts the entry knows more than this look.
                let is_older = inner.listed_at.is_some_and(|listed_at| observed_at < listed_at);
                let in_doubt = old.filter(|old| is_older && old.doubtful);
                let doubtful = in_doubt.is_some();
                let listed = in_doubt.and_then(|old| old.listed);
                Entry { pod: Arc::new(pod), failure: None, observed_at: Some(observed_at), doubtful, listed }
            }
            Err(failure) => {
                let pod = old.map(|e| e.pod).unwrap_or_default();
                Entry { pod, failure: Some(failure), observed_at: Some(observed_at), doubtful: true, listed: None }
            }
        };
        inner.pods.insert(uid.clone(), entry);
        inner.answer_waiters(uid);
    }

    /// Something became known without an inspection. It says nothing of the rest of the pod, so nothing gets fresher.
    pub(super) fn amend(&self, uid: &PodUid, pod: RuntimePod) {
        if let Some(entry) = self.inner().pods.get_mut(uid) {
            entry.pod = Arc::new(pod);
        }
    }

    /// A list of everything, begun at `listed_at`, agreed with every entry but the doubtful ones. `ids`: what it showed of each pod.
    pub(super) fn set_listed(
        &self,
        listed_at: Instant,
        doubtful: &HashSet<PodUid>,
        mut ids: HashMap<PodUid, KnownIds>,
    ) {
        let mut inner = self.inner();
        inner.listed_at = Some(listed_at);
        for uid in doubtful {
            let pod = Arc::new(RuntimePod { uid: Some(uid.clone()), ..Default::default() });
            let unknown = Entry { pod, failure: None, observed_at: None, doubtful: true, listed: None };
            let entry = inner.pods.entry(uid.clone()).or_insert(unknown);
            entry.doubtful = true;
            entry.listed = Some(ids.remove(uid).unwrap_or_default());
        }
        // An empty state of a pod that no list shows says no more than its absence does.
        inner.pods.retain(|_, e| !is_empty(&e.pod) || e.doubtful || e.observed_at >= Some(listed_at));
        // What was made before, the list has shown, or it is gone; what failed calls have left of a pod goes with all else of it.
        let Inner { pods, made, .. } = &mut *inner;
        made.retain(|uid, made| {
            made.told(listed_at);
            pods.contains_key(uid) || !made.says_nothing()
        });
        let waiting: Vec<PodUid> = inner.waiters.keys().filter(|uid| !doubtful.contains(*uid)).cloned().collect();
        for uid in waiting {
            inner.answer_waiters(&uid);
        }
    }

    /// PLEG has ended: nobody waits for it any more.
    pub(super) fn close(&self) {
        let mut inner = self.inner();
        inner.closed = true;
        inner.waiters.clear();
    }
}

impl Inner {
    fn answer(&self, uid: &PodUid, newer_than: Instant) -> Option<Answer> {
        let Some(entry) = self.pods.get(uid) else {
            return (self.listed_at? >= newer_than).then(|| Ok(nothing(uid)));
        };
        let fresh = entry.observed_at >= Some(newer_than)
            || (!entry.doubtful && self.listed_at.is_some_and(|listed_at| listed_at >= newer_than));
        fresh.then(|| match &entry.failure {
            Some(source) => Err(CacheError::Inspect { uid: uid.clone(), source: source.clone() }),
            None => Ok(entry.pod.clone()),
        })
    }

    fn answer_waiters(&mut self, uid: &PodUid) {
        let Some(waiters) = self.waiters.remove(uid) else { return };
        let mut left = Vec::new();
        for waiter in waiters {
            match self.answer(uid, waiter.newer_than) {
                // A waiter that went away does not matter.
                Some(answer) => drop(waiter.answer.send(answer)),
                None if waiter.answer.is_closed() => {}
                None => left.push(waiter),
            }
        }
        if !left.is_empty() {
            self.waiters.insert(uid.clone(), left);
        }
    }
}

/// What a list that does not show the pod says of it.
fn nothing(uid: &PodUid) -> Arc<RuntimePod> {
    Arc::new(RuntimePod { uid: Some(uid.clone()), ..RuntimePod::default() })
}

fn is_empty(pod: &RuntimePod) -> bool {
    pod.sandboxes.is_empty() && pod.containers.is_empty()
}

fn ids(pod: &RuntimePod) -> impl Iterator<Item = &str> {
    let sandboxes = pod.sandboxes.iter().map(|s| s.id.as_str());
    sandboxes.chain(pod.containers.iter().map(|c| c.id.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    use kubelet_model::pod::model::{SandboxState, SandboxStatus};

    fn uid(text: &str) -> PodUid {
        PodUid::parse(text).unwrap()
    }

    fn pod(sandbox: &str) -> RuntimePod {
        RuntimePod {
            uid: Some(uid("u")),
            sandboxes: vec![SandboxStatus {
                id: SandboxId::parse(sandbox).unwrap(),
                attempt: 0,
                state: SandboxState::Ready,
                created_at: UNIX_EPOCH,
                host_network: false,
                has_network: true,
                ips: Vec::new(),
            }],
            ..Default::default()
        }
    }

    fn failure() -> CriError {
        CriError { code: bulkhead_cri::Code::Unavailable, method: "list_containers", message: "gone".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_busy_is_told_once_and_the_last_one_counts() {
        let (cache, u, began) = (Arc::new(PodCache::default()), uid("u"), Instant::now());
        let take = || cache.take_busy(Duration::from_secs(2));
        let first = cache.busy(&u);
        assert_eq!(take(), [(u.clone(), Some(began + Duration::from_secs(2)))]);
        assert_eq!(take(), []);
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = cache.busy(&u);
        drop(first);
        assert_eq!(take(), [(u.clone(), Some(began + Duration::from_secs(3)))]);
        drop(second);
        assert_eq!(take(), [(u.clone(), None)]);
        drop(cache.busy(&u));
        assert_eq!(take(), [(u, None)], "what was and is no more takes back what was told");
    }

    async fn waits(cache: &Arc<PodCache>, uid: &PodUid, at: Instant) -> tokio::task::JoinHandle<Answer> {
        let (cache, uid) = (cache.clone(), uid.clone());
        let task = tokio::spawn(async move { cache.get_newer_than(&uid, at).await });
        tokio::task::yield_now().await;
        task
    }

    #[tokio::test(start_paused = true)]
    async fn waits_for_an_inspection_that_began_late_enough() {
        let cache = Arc::new(PodCache::default());
        let (u, start) = (uid("u"), Instant::now());
        assert!(!cache.is_since(&u, start), "never asked");
        cache.set(&u, Ok(pod("s1")), start);
        assert!(cache.is_since(&u, start) && !cache.is_since(&u, start + Duration::from_millis(1)));
        cache.set(&u, Err(failure()), start + Duration::from_millis(1));
        assert!(!cache.is_since(&u, start + Duration::from_millis(1)), "a failure tells nothing");
        cache.set(&u, Ok(pod("s1")), start);
        assert!(cache.get_newer_than(&u, start).await.is_ok());
        assert!(cache.take_wanted().is_empty());

        tokio::time::advance(Duration::from_secs(1)).await;
        let waiting = waits(&cache, &u, Instant::now()).await;
        assert_eq!(cache.take_wanted(), HashMap::from([(u.clone(), false)]), "asked for an inspection, no PodSync");
        cache.set(&u, Ok(pod("s2")), start + Duration::from_millis(999));
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "an inspection that began before says nothing");
        cache.set(&u, Ok(pod("s3")), Instant::now());
        assert_eq!(waiting.await.unwrap().unwrap().sandboxes[0].id.as_str(), "s3");
        assert_eq!(cache.owner("s3"), Some(u.clone()));
        assert_eq!(cache.owner("s1"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_a_list_does_not_show_is_known_to_have_nothing() {
        let (cache, u) = (Arc::new(PodCache::default()), uid("u"));
        assert_eq!(cache.get(&u).uid, None, "nobody has looked");
        cache.set_listed(Instant::now(), &HashSet::new(), HashMap::new());
        assert_eq!(cache.get(&u).uid, Some(u.clone()));
        assert_eq!(cache.get_newer_than(&u, Instant::now()).await.unwrap().uid, Some(u));
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_from_before_a_list_does_not_pass_for_the_list() {
        let cache = Arc::new(PodCache::default());
        let (u, look) = (uid("u"), Instant::now());
        cache.set(&u, Ok(pod("s1")), look);
        tokio::time::advance(Duration::from_secs(1)).await;
        // While another look is under way a list comes and goes.
        let list = Instant::now();
        let shown = HashMap::from([(u.clone(), KnownIds { sandboxes: vec!["s2".into()], containers: Vec::new() })]);
        cache.set_listed(list, &HashSet::from([u.clone()]), shown);
        cache.set(&u, Ok(pod("s1")), look);
        assert!(!cache.is_since(&u, list), "what has happened between look and list is not in it");
        assert_eq!(cache.known(&u, std::iter::empty()), None, "nor is all that was made");
        cache.set(&u, Ok(pod("s2")), list);
        assert!(cache.is_since(&u, list) && cache.is_certain(&u));
    }

    fn ids(sandboxes: &[&str], containers: &[(&str, &str)]) -> Option<KnownIds> {
        let sandboxes = sandboxes.iter().map(|id| Box::from(*id)).collect();
        let containers = containers.iter().map(|(id, sandbox)| (Box::from(*id), Box::from(*sandbox))).collect();
        Some(KnownIds { sandboxes, containers })
    }

    #[tokio::test(start_paused = true)]
    async fn ids_are_known_of_what_was_seen_and_what_was_made() {
        let cache = Arc::new(PodCache::default());
        let u = uid("u");
        let (sandbox, container) = (SandboxId::parse("s1").unwrap(), ContainerId::parse("c1").unwrap());
        let known = |named: &[&str]| cache.known(&u, named.iter().copied());
        cache.making(&u).sandbox(&sandbox);
        assert_eq!(known(&[]), None, "nobody knows what was there before");
        cache.inner().made.clear();
        cache.set_listed(Instant::now(), &HashSet::new(), HashMap::new());
        assert_eq!(known(&[]), None, "nothing is there to be asked about");
        cache.making(&u).sandbox(&sandbox);
        cache.making(&u).container(&container, &sandbox);
        assert_eq!(known(&["c1"]), ids(&["s1"], &[("c1", "s1")]));
        assert_eq!(known(&["c1", "c2"]), None, "somebody else has made something");

        // A look that was ordered between two calls knows of the first.
        tokio::time::advance(Duration::from_millis(1)).await;
        let ordered = Instant::now();
        cache.making(&u).container(&ContainerId::parse("c2").unwrap(), &sandbox);
        cache.set(&u, Ok(pod("s1")), ordered);
        cache.looked_at(&u, ordered);
        assert_eq!(known(&[]), ids(&["s1"], &[("c2", "s1")]), "c1 is gone");

        // What was removed is not asked about, and when all was removed nothing is.
        cache.removed("c2");
        cache.removed("s1");
        assert_eq!(known(&["s1"]), ids(&[], &[("c2", "s1")]), "whose c2 is no look has shown");
        cache.inner().owners.insert("c2".into(), u.clone());
        cache.removed("c2");
        assert_eq!(known(&["c2"]), ids(&[], &[]));
        tokio::time::advance(Duration::from_millis(1)).await;
        cache.set(&u, Ok(RuntimePod::default()), Instant::now());
        cache.looked_at(&u, Instant::now());
        assert_eq!(known(&[]), None, "what comes then is somebody else's");
        cache.set(&u, Ok(pod("s1")), Instant::now());

        cache.set(&u, Err(failure()), Instant::now());
        assert_eq!(known(&[]), None, "the runtime did not answer");
        cache.set(&u, Ok(pod("s1")), Instant::now());
        assert!(known(&[]).is_some());
        drop(cache.making(&u));
        assert_eq!(known(&[]), None, "a call has failed, and may have made something");
        tokio::time::advance(Duration::from_millis(1)).await;
        cache.looked_at(&u, Instant::now());
        assert_eq!(known(&[]), None, "or does so later");
        cache.set(&u, Ok(RuntimePod::default()), Instant::now());
        tokio::time::advance(Duration::from_millis(1)).await;
        cache.set_listed(Instant::now(), &HashSet::new(), HashMap::new());
        assert!(cache.inner().made.is_empty(), "and nothing is kept of a pod that is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn ids_are_known_of_what_a_list_showed() {
        let cache = Arc::new(PodCache::default());
        let (u, start) = (uid("u"), Instant::now());
        let (sandbox, container) = (SandboxId::parse("s1").unwrap(), ContainerId::parse("c3").unwrap());
        let known = |named: &[&str]| cache.known(&u, named.iter().copied());
        let list = |sandboxes: &[&str], containers: &[(&str, &str)]| {
            let shown = ids(sandboxes, containers).map(|ids| (u.clone(), ids)).into_iter().collect();
            cache.set_listed(Instant::now(), &HashSet::from([u.clone()]), shown);
        };
        list(&["s1"], &[("c1", "s1"), ("c2", "s1")]);
        assert_eq!(known(&["c2"]), ids(&["s1"], &[("c1", "s1"), ("c2", "s1")]), "as at a start");
        assert_eq!(known(&["c9"]), None, "a call of a former life has made something since");
        cache.making(&u).container(&container, &sandbox);
        assert_eq!(known(&["c3"]), ids(&["s1"], &[("c3", "s1"), ("c1", "s1"), ("c2", "s1")]), "and we have");
        assert!(!cache.is_certain(&u) && !cache.is_since(&u, start), "to know of it is not to have looked");

        // A look that began before the next list, and saw what is not in it.
        tokio::time::advance(Duration::from_millis(1)).await;
        let look = Instant::now();
        tokio::time::advance(Duration::from_millis(1)).await;
        list(&[], &[]);
        cache.set(&u, Ok(pod("s1")), look);
        assert_eq!(known(&[]), ids(&["s1"], &[]), "it may have come after the list");
        assert!(!cache.is_certain(&u));

        // The pod is known now.
        cache.set(&u, Ok(pod("s1")), Instant::now());
        tokio::time::advance(Duration::from_millis(1)).await;
        list(&["s1"], &[]);
        assert_eq!(known(&[]), ids(&["s1"], &[]), "another state, and nothing more");
        list(&["s1"], &[("c4", "s1")]);
        assert_eq!(known(&[]), None, "somebody else makes things");
        cache.set(&u, Err(failure()), Instant::now());
        assert_eq!(known(&[]), None, "the runtime did not answer");
        cache.set(&u, Ok(pod("s1")), Instant::now());
        assert_eq!(known(&[]), ids(&["s1"], &[]));
        assert!(cache.inner().pods.values().all(|entry| entry.listed.is_none()), "and nothing is kept of a list");
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_vouches_for_all_but_the_doubtful() {
        let cache = Arc::new(PodCache::default());
        let (a, b, gone) = (uid("a"), uid("b"), uid("gone"));
        cache.set(&a, Ok(pod("s1")), Instant::now());
        cache.set(&b, Ok(pod("s2")), Instant::now());
        cache.set(&gone, Ok(RuntimePod::default()), Instant::now());
        tokio::time::advance(Duration::from_secs(1)).await;
        let now = Instant::now();
        let (wait_a, wait_b) = (waits(&cache, &a, now).await, waits(&cache, &b, now).await);
        let wait_gone = waits(&cache, &gone, now).await;
        let new = uid("new");
        let wait_new = waits(&cache, &new, now).await;
        cache.set_listed(now, &HashSet::from([b.clone(), new]), HashMap::new());
        assert!(wait_a.await.unwrap().is_ok());
        assert!(wait_gone.await.unwrap().unwrap().sandboxes.is_empty());
        tokio::task::yield_now().await;
        assert!(!wait_b.is_finished() && !wait_new.is_finished(), "listed and not inspected yet is not absent");
        cache.set(&b, Ok(pod("s9")), now);
        assert_eq!(wait_b.await.unwrap().unwrap().sandboxes[0].id.as_str(), "s9");
        assert_eq!(cache.snapshot().len(), 3, "the new one is there, though nothing is known of it");
        assert!(cache.is_certain(&b) && !cache.is_certain(&uid("new")));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_handed_out_and_never_read_as_gone() {
        let cache = Arc::new(PodCache::default());
        let u = uid("u");
        cache.set(&u, Ok(pod("s1")), Instant::now());
        tokio::time::advance(Duration::from_secs(1)).await;
        let now = Instant::now();
        let waiting = waits(&cache, &u, now).await;
        cache.set(&u, Err(failure()), now);
        assert!(matches!(waiting.await.unwrap(), Err(CacheError::Inspect { .. })));
        assert_eq!(cache.get(&u).sandboxes.len(), 1, "the last known state stays");
        assert_eq!(cache.owner("s1"), Some(u.clone()));

        let waiting = waits(&cache, &u, now + Duration::from_secs(9)).await;
        cache.close();
        assert!(matches!(waiting.await.unwrap(), Err(CacheError::Closed { .. })));
        assert!(matches!(cache.get_newer_than(&uid("x"), now).await, Err(CacheError::Closed { .. })));
    }
}
